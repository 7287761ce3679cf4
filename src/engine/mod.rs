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
//! Lanes with the same addresses forward packets that arrive on the wrong one to the forward queue of the right one.
//!
//! Data crosses threads in bounded lock-free rings. Control operations (create, modify, register) lock the lane
//! between two polls. A lane with a thread of its own yields to them one at a time, in the order of their arrival,
//! for a bounded share of its time. Counters and the states of queue pairs are read without that lock.

mod async_events;
mod clock;
mod comp_channel;
mod control_error;
mod control_lock;
mod counters;
mod cq;
mod deferral;
mod event_fd;
mod forward_queue;
mod lane;
mod lane_handle;
mod lane_mode;
mod lanes;
mod lanes_shared;
mod rings;
mod segmented_queue;
mod stats_snapshot;
mod tuning;
mod tx_batch;
mod waker;
mod yield_backoff;

pub use async_events::AsyncEvent;
pub use control_error::ControlError;
pub use counters::LaneCounters;
pub use lane::Lane;
pub(crate) use lane::PollMode;
pub use lane_mode::{Idle, LaneMode, LaneStartError};

pub(crate) use async_events::AsyncEvents;
pub(crate) use clock::{Deadline, fresh_seed, process_time};
pub(crate) use comp_channel::EventChannel;
pub(crate) use cq::{CqCore, CqEnd, CqReader};
pub(crate) use lanes::Lanes;
pub(crate) use lanes_shared::LanesShared;
pub(crate) use rings::{Full, QpSubmit};
pub(crate) use stats_snapshot::Snapshot;

#[cfg(test)]
mod tests;
