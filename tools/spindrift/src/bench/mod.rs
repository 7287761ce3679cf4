//! What the benchmarks share.

pub(crate) mod baseline;
pub(crate) mod check;
pub(crate) mod contents;
pub(crate) mod endpoint_setup;
pub(crate) mod evs;
pub(crate) mod findings;
pub(crate) mod layout;
pub(crate) mod loopback_pump;
pub(crate) mod mix;
pub(crate) mod nic;
pub(crate) mod operation;
pub(crate) mod options;
pub(crate) mod pin;
pub(crate) mod pingpong;
pub(crate) mod preemption;
pub(crate) mod receiver;
pub(crate) mod report;
pub(crate) mod samples;
mod shift_control;
pub(crate) mod source_ports;
mod timing;
pub(crate) mod transport;
mod worker;
pub(crate) mod writer;
pub(crate) mod yardstick;
