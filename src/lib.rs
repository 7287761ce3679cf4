//! Spindrift: a userspace MRC transport.

pub mod congestion;
pub mod counters;
pub mod endpoint;
pub mod engine;
pub mod memory;
pub mod path;
mod requester;
mod responder;
mod ring;
pub mod time;
pub mod verbs;
pub mod wire;
pub mod work;

pub use spindrift_pmd as pmd;
pub use spindrift_srv6 as srv6;
