//! Lanes with threads of their own, seen from the application: control calls, failures, asynchronous events.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test is the message"
)]

mod busy;
mod channel;
mod control;
mod events;
mod forked;
mod gate;
mod gather;
mod holds;
mod host;
mod many;
mod naps;
mod panic;
mod posters;
mod query;
mod registrations;
mod shared;
mod side;
mod srq;
mod window;
