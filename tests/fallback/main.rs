//! Queue pairs with fallback over four contexts: two NICs on each of two sides. Requests are checked byte by byte and completion by
//! completion while NICs die, return and are lost. The protocol itself is searched state by state in `src/fallback/tests`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "lanes run in real time; a hang ends after a minute")]

mod duo;
#[path = "../lanes/fault_switch.rs"]
mod fault_switch;
mod operations;
mod store;
mod switching;
