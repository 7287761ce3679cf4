//! What the transport reports through `tracing`: each change of state once, with its queue pair, peer and path, and
//! nothing about packets that go their way.
//!
//! A program of its own, because `tracing` keeps what is listened to for each place in the code: another thread that
//! reaches such a place while nobody listens could switch it off.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../lanes/connected_pair.rs"]
#[allow(dead_code, reason = "shared with another program")]
mod connected_pair;
#[path = "../recovery/flow.rs"]
#[allow(dead_code, reason = "shared with another program")]
mod flow;
#[path = "../support/mod.rs"]
mod support;

mod endpoint;
mod lane;
mod listener;
