//! Lanes: an endpoint, its ports and a clock, run to completion in one poll loop.
//!
//! [`Lane::poll`] drives a [`Lane`], either inside the caller's thread or in a thread of its own ([`LaneMode`]). This
//! is the only part of the transport that reads a clock or starts a thread; the
//! [`Endpoint`](crate::endpoint::Endpoint) below it takes the time as an argument.
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
//! A context may have several lanes. Each has its own endpoint, ports, rings and lock. Lanes share completion queues,
//! asynchronous events and failure propagation. No packet needs these except for completions, which have a ring per
//! lane. Memory is shared below them, in [`memory`](crate::memory).
//!
//! Lanes with the same addresses forward packets that arrive on the wrong one to the inbox of the right one.
//!
//! Data crosses threads in bounded lock-free rings. Control operations (create, modify, register) lock the lane
//! between two polls. A lane with a thread of its own yields to them one at a time, in the order of their arrival,
//! for a bounded share of its time. Counters and the states of queue pairs are read without that lock.

mod async_events;
mod board;
mod chain;
mod channel;
mod clock;
mod common;
mod counters;
mod cq;
mod gate;
mod group;
mod handle;
mod inbox;
mod lane;
mod rings;
mod signal;
mod transmit;
mod tuning;
mod waker;

pub use async_events::AsyncEvent;
pub use counters::LaneCounters;
pub use handle::{ControlError, Idle, LaneMode, LaneStartError};
pub(crate) use lane::Driver;
pub use lane::Lane;

pub(crate) use async_events::AsyncEvents;
pub(crate) use board::Snapshot;
pub(crate) use channel::EventChannel;
pub(crate) use clock::{Deadline, fresh_seed};
pub(crate) use common::Common;
pub(crate) use cq::{CqCore, CqEnd, CqReader};
pub(crate) use group::Lanes;
pub(crate) use rings::{Full, QpSubmit};

#[cfg(test)]
mod tests;
