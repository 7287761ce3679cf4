//! The prober of a fabric ([`spindrift_agent`]) as a process: it sends probes through the kernel of its host, keeps the clock, and shows what it
//! knows over HTTP.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`frame`] | probes as packets |
//! | [`runner`] | the loop |
//! | [`cluster`] | what several agents know together |
//! | [`deny`] | what transports are told to avoid |
//! | [`snapshot`] | what the agent knows, for people and programs |
//! | [`http`] | the HTTP interface |
//! | [`metrics`] | the same for Prometheus |

pub mod cluster;
pub mod deny;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;
pub mod metrics;
pub mod runner;
pub mod snapshot;
