//! Agents in the fabric simulator: what they name for each kind of fault, and that they name nothing in a fabric that is well.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod faults;
mod healthy;
mod host;
mod live;
mod thousand;
