//! Fallback between two queue pairs on different NICs, after the SHIFT paper.

mod config;
mod machine;
mod message;
mod moves;
mod queue;
mod switch;
mod verbs;

#[cfg(test)]
mod tests;

pub use self::config::{Counters, FallbackConfig, FallbackError, ReceiveState, SendState};
pub use self::machine::{EXTRA_RECEIVES, EXTRA_SENDS, Machine};
pub use self::verbs::{Cause, Nic, PairId, RemoteKey, Verbs};
