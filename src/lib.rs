//! Spindrift: a userspace MRC transport.

pub mod memory;
pub mod time;
pub mod verbs;

pub use spindrift_pmd as pmd;
pub use spindrift_srv6 as srv6;
