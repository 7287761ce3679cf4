//! Lanes: an endpoint, its ports and a clock, run to completion in one poll loop.
//!
//! A [`Lane`] is driven by [`Lane::poll`], either inside the caller's thread or by a thread of its own
//! ([`LaneMode`]). This is the only part of the transport that reads a clock or starts a thread; what it drives
//! ([`Endpoint`](crate::endpoint::Endpoint)) takes the time as an argument.
//!
//! ```text
//!  application             lane (one thread)
//!  post_send ──ring──▶ doorbells ─▶ endpoint.post_send
//!                      ports.rx_burst ─▶ endpoint.receive
//!                      timers, link states
//!                      endpoint.transmit ─▶ iCRC ─▶ ports.tx_burst, flush
//!  cq.poll ◀──ring──── completions
//! ```
//!
//! Data crosses threads by bounded lock-free rings. Control operations (create, modify, register) lock the lane between
//! two polls; a lane with a thread of its own steps aside for them, one at a time, in the order in which they
//! came, for a bounded share of its time. Counters and the states of queue pairs are read without that lock.

mod async_events;
mod board;
mod channel;
mod clock;
mod gate;
mod handle;
mod lane;
mod rings;
mod signal;
mod transmit;
mod tuning;
mod waker;

pub use async_events::AsyncEvent;
pub use handle::{ControlError, Idle, LaneMode, LaneStartError};
pub use lane::{Lane, LaneCounters};

pub(crate) use channel::EventChannel;
pub(crate) use clock::{Deadline, fresh_seed, pause};
pub(crate) use handle::LaneHandle;
pub(crate) use rings::{CqEnd, CqReader, Full, QpSubmit};

#[cfg(test)]
mod tests;
