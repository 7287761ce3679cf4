//! Spindrift: a userspace transport for MRC, the Multipath Reliable Connection.
//!
//! RDMA reliable-connection semantics over UDP, where every packet of a queue pair is sprayed over many paths and
//! several planes of a network, placed at its address on arrival in any order, and recovered by selective
//! acknowledgements. MRC carries RDMA WRITE and RDMA WRITE with immediate, and nothing else.
//!
//! # Where to start
//!
//! - **You want to move memory**: [`verbs`] has the whole application interface and a complete client and server to copy.
//! - **You want ports**: [`pmd`] has rings in memory, kernel UDP sockets, and middleware that injects faults or captures.
//! - **You want the protocol without a clock or a socket** (a simulator, a test, a driver of your own): [`endpoint`] is the
//!   transport as a state machine; `now` is an argument and a run repeats from its seed.
//! - **You want to read or write packets**: [`wire`].
//! - **You have two NICs**: [`fallback`], or [planes that stand by](path::PathConfig::standby).
//!
//! # The layers
//!
//! An arrow only ever points down: [`fallback`] → [`verbs`] → [`engine`] (lanes, the only place with a clock) → [`endpoint`] →
//! requester, responder → [`path`], [`congestion`], [`memory`] → [`wire`], [`time`], [`work`]. The decisions that the
//! public MRC sources leave open are listed, with their reasons and settings, in `docs/protocol.md` of the repository.

#![forbid(unsafe_code)]

mod config;
pub mod congestion;
pub mod counters;
pub mod endpoint;
pub mod engine;
pub mod fallback;
pub mod memory;
pub mod path;
mod peer;
mod qp;
mod requester;
mod responder;
mod ring;
pub mod seed;
pub mod time;
mod timers;
pub mod verbs;
pub mod work;

pub use spindrift_pmd as pmd;
pub use spindrift_srv6 as srv6;
pub use spindrift_wire as wire;
