//! Bad peers: whatever they send is counted and refused, nothing is written, and the healthy queue pair beside
//! the attacked one goes on. Also the life of a queue pair, and many of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access;
mod acks;
mod answer_ports;
mod bench;
mod closed_peer;
mod fetches;
mod floods;
mod freed;
mod fuzz;
mod life;
mod limits;
mod many;
mod matches;
mod messages;
mod parts;
mod port_news;
mod ports;
mod responses;
mod sends;
mod shares;

#[path = "../support/alloc.rs"]
mod alloc;
#[path = "../support/mod.rs"]
mod support;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;
