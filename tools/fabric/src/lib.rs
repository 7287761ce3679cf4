//! A fabric in a process: hosts that run the transport bit for bit as it is, joined by simulated links and switches.
//!
//! Time is counted in nanoseconds and moves from event to event; nothing reads a clock. Two runs with the same settings and the
//! same seed are identical on any machine. Switches forward each packet by the bytes of its headers, with the same
//! [`Forwarder`](spindrift_srv6::Forwarder) that is tested against the Linux kernel.
//!
//! A [`Net`] is made by hand or from a formula ([`Clos`]); [`Net::run`] goes on until something happens that its driver should
//! hear of. A [`Sim`] is such a driver: it lets [workloads](workload) run over a network.

mod calendar;
mod clos;
mod either;
mod fault;
mod impair;
mod link;
mod mrc;
mod net;
mod nic;
mod packet;
mod pfc;
mod queue;
#[allow(dead_code, reason = "the tests of the core, which compile it too, use the rest")]
mod rand;
mod record;
mod sim;
mod stripes;
pub mod swarm;
mod transport;
pub mod workload;

pub use clos::{Clos, ClosError, ClosSpec, QueueRules};
pub use either::Either;
pub use fault::Fault;
pub use impair::Impairment;
pub use link::{LinkCounters, LinkId, LinkSpec};
pub use mrc::{MrcError, MrcHost, MrcSpec};
pub use net::{HostFlow, HostId, Net, NetCounters, PacketEvent, SimEvent, SwitchId, Tap};
pub use packet::Packet;
pub use pfc::{Class, Classes, Free, PfcSpec, Threshold};
pub use queue::{EcnSpec, QueueCounters, QueueSpec, TrimSpec};
pub use record::{HostSample, LinkSample, Recorder, Sample, Watch};
pub use sim::{Done, Failure, Job, Sim};
pub use stripes::Striping;
pub use transport::{ConnectError, EvStateCounts, FlowEvent, Message, Messenger, Transport, TransportStats};
