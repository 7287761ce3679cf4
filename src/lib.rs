//! Spindrift: a userspace MRC transport.

pub mod congestion;
pub mod path;
pub mod time;
pub mod wire;

pub use spindrift_pmd as pmd;
pub use spindrift_srv6 as srv6;
