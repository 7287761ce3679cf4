//! Packet formats: bytes to values and back, no state.

pub mod num;
