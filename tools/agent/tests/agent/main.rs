//! The agent's rules: what it probes, what it counts, and whom it accuses, over the tables of real fabrics in simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod faults;
mod healthy;
mod lab;
mod live;
mod pairs;
mod plan;
mod policy;
mod prober;
mod record;
mod share;
mod view;
