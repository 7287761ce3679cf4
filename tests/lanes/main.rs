//! Lanes with threads of their own, seen from the application: control calls, failures, asynchronous events.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test is the message"
)]

mod async_events;
mod comp_channel;
mod connected_pair;
mod control;
mod fault_switch;
mod gather;
mod hybrid;
mod multi_lane;
mod panic;
mod posters;
mod query;
mod receive_window;
mod registrations;
mod sends;
mod shared_addresses;
mod sleep;
mod srq;
mod tx_done;
mod tx_order;
mod unsent;
