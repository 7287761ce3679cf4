//! RoCEv2 for the fabric simulator: what MRC is compared with (MRC paper, section 5.2.7 and the appendix).
//!
//! Reliable connections as NICs have them: packets in order or not at all, go-back-N after a loss, one path for each queue pair, and DCQCN for
//! congestion. Priority flow control is the network's: see [`PfcSpec`](spindrift_fabric::PfcSpec). Only RDMA writes exist, with immediate data or without.
//!
//! | Module | What it is about | Its source |
//! |---|---|---|
//! | [`wire`] | headers, to bytes and back | InfiniBand specification 1.4, volume 1, chapter 9; annex A17 |
//! | [`requester`] | PSNs, go-back-N, timer, retries, completions | sections 9.7.5 and 9.9.2 |
//! | [`responder`] | the expected PSN, acknowledgements, one NAK, CNPs | sections 9.7.4 and 9.7.5; annex A17.9 |
//! | [`dcqcn`] | rates, and named sets of parameters | Zhu et al., SIGCOMM 2015; the public ns-3 model of HPCC |
//! | [`endpoint`] | the queue pairs of a host: turns, pacing, timers | |
//! | [`RoceHost`] | a host of a simulated fabric | MRC paper, section 5.2.7 |
//!
//! All but [`RoceHost`] is sans-IO: it knows bytes and times, and nothing of the simulator.
//!
//! ```
//! use std::sync::Arc;
//!
//! use spindrift::time::Time;
//! use spindrift_fabric::workload::{Stream, StreamSpec};
//! use spindrift_fabric::{Clos, ClosSpec, HostId, PfcSpec, Sim, Striping};
//! use spindrift_roce::{Profile, RoceHost, RoceSpec};
//!
//! let rate_bps = 100_000_000_000;
//! let pfc = Some(PfcSpec::new(4 << 20, 4_300));
//! let fabric = ClosSpec {
//!     planes: 1,
//!     t0: 2,
//!     t1: 2,
//!     pods: 1,
//!     t2: 0,
//!     hosts_per_t0: 2,
//!     host_rate_bps: rate_bps,
//!     trunk_rate_bps: rate_bps,
//!     host_delay_ns: 1_000,
//!     trunk_delay_ns: 1_000,
//!     queues: Profile::Vendor.queues(rate_bps, pfc),
//! };
//! let nic = Arc::new(RoceSpec::new(rate_bps, Some(Profile::Vendor)));
//! let (_clos, net) =
//!     Clos::build(fabric, 1, |fabric, host| RoceHost::new(&nic, fabric, host, 1 << 32 | u64::from(host)))?;
//! let mut sim = Sim::new(net);
//! let spec = StreamSpec { size: 1 << 20, depth: 2, count: Some(10), start_ns: 0, stop_ns: None };
//! // Each message over four queue pairs.
//! let striping = Striping { qps: 4, mtu: nic.qp.mtu };
//! sim.add_striped(Box::new(Stream::new(vec![(HostId(0), HostId(3))], spec)), striping)?;
//! sim.run(Time(10_000_000));
//! assert!(sim.is_done());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod dcqcn;
pub mod endpoint;
mod host;
mod qp;
pub mod requester;
pub mod responder;
pub mod wire;

pub use dcqcn::{AlphaRule, Dcqcn, Marking, Profile, queues};
pub use host::{RoceError, RoceHost, RoceSpec};
pub use qp::{Peer, QpSpec};
pub use requester::Retry;
