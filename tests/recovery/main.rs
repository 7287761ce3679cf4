//! Recovery: how soon a lost packet is sent again, over which path, and who is blamed. Whether every byte arrives
//! is judged by the property runs; here the network is small, and each test states its bound.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod crowd;
mod dead_paths;
mod deny_list;
mod flow;
mod host;
mod marks;
mod notify;
mod pauses;
mod reads;
mod reordering;
mod silence;
mod standby;

#[path = "../support/mod.rs"]
mod support;
