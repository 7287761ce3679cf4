//! What a fabric must give to those who use it, and what becomes of them when parts of it fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod delays;
mod faults;
mod pauses;
mod planes;
mod recorded;
mod shares;
mod stripes;
mod stuck;
mod support;
mod twice;
