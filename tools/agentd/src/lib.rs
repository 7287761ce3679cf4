//! The prober of a fabric ([`spindrift_agent`]) as a process: it sends probes through the kernel of its host, keeps the clock, and shows what it
//! knows over HTTP.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`runner`] | the loop |
//! | [`cluster`] | what several agents know together |
//! | [`deny`] | what transports are told to avoid |
//! | [`snapshot`] | what the agent knows, for people and programs |
//! | [`http`] | the HTTP interface |
//! | [`exporter`] | the counters of processes over HTTP |
//! | [`token`] | the secret that requests may have to show |
//! | [`metrics`] | the same for Prometheus |
//! | [`published`] | what the threads have in common |
//! | [`layout`], [`levels`] | a number and a level of health for each link |
//! | [`history`] | levels and faults of the last hours |

mod api;
pub mod cluster;
pub mod deny;
pub mod exporter;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod history;
pub mod http;
pub mod layout;
pub mod levels;
pub mod metrics;
mod page;
pub mod published;
pub mod runner;
mod serve;
pub mod snapshot;
pub mod token;
