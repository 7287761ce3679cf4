//! The prober of a fabric: sends source-routed packets over every link and back to itself, and names the component that loses them.
//!
//! An agent runs on every host. It probes the T0 switches of its host, and a share of the links above, so that the agents together probe
//! each link of the fabric every millisecond (Clustermapper: MRC paper, sections 2.4 and 3). A probe turns at a switch and comes back by
//! the same links to the agent that sent it, so no other host, and no switch's management, need take part.
//!
//! The crate is sans-IO: it has no clock, socket or thread. Time is an argument, in nanoseconds since any start; the same code runs in an agent
//! and in a simulator.
//!
//! | Module | What it is about |
//! |---|---|
//! | [`Plan`], [`Route`], [`Path`] | what to probe: carriers, addresses, the links of each path |
//! | [`share`], [`LiveAgents`] | which agent probes which link |
//! | [`Payload`], [`frame`] | what is in a probe, and its packet |
//! | [`Prober`] | when probes leave, which returns are theirs, which are lost |
//! | [`Recorder`] | loss, round-trip times and transitions of each link |
//! | [`View`], [`Locator`] | which component is at fault, from the reports of several agents |
//! | [`Finding`] | the result, also in words |
//! | [`policy`] | what transports should avoid |
//! | [`Agent`] | all of these together |
//!
//! # The drive loop
//!
//! 1. Pass each packet that arrived at the agent's address to [`Agent::on_return`].
//! 2. Call [`Agent::on_timeout`] until it returns `false`.
//! 3. Call [`Agent::poll`] until it returns nothing; send each probe on the port of its plane with the headers that [`Plan`] describes.
//! 4. Every 10 to 100 ms, hand out the [`Agent::report`] and call [`Agent::locate`] with the reports of others.
//! 5. Call [`Agent::replan`] when other agents come or go, if that is known.
//! 6. Wait for a packet, or until [`Agent::next_timeout`].
//!
//! ```
//! use spindrift_agent::{Agent, AgentSettings, Component, View};
//! use spindrift_srv6::{Fabric, FabricHost, Node, Shape};
//!
//! let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
//! let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
//! let fabric = Fabric::new(shape, vec![host("h1", 0), host("h2", 1)])?;
//! let mut agent = Agent::new(&fabric, 0, None, AgentSettings::default(), ([7; 32], 0))?;
//! let broken = (Node::T0 { plane: 1, number: 0 }, Node::T1 { plane: 1, number: 0 });
//!
//! let mut now_ns = 0;
//! while now_ns < 200_000_000 {
//!     while agent.on_timeout(now_ns) {}
//!     while let Some(probe) = agent.poll(now_ns) {
//!         let route = agent.plan().route(probe.path).ok_or("a probe has a path")?;
//!         // A network in which one link is down, and the others take no time.
//!         if !route.links().any(|link| link == broken) {
//!             let plane = route.plane;
//!             agent.on_return(now_ns, plane, &probe.payload.to_bytes())?;
//!         }
//!     }
//!     if now_ns % 10_000_000 == 0 {
//!         agent.locate(now_ns, &fabric, View::default());
//!     }
//!     now_ns += 500_000;
//! }
//! let [finding] = agent.locator().findings() else { return Err("one finding".into()) };
//! // Host h2's agent would have to say whether the switch still forwards.
//! assert_eq!(finding.components, [Component::Link(broken), Component::Node(broken.1)]);
//! assert_eq!(
//!     finding.explain(&fabric),
//!     "One of these forwards nothing, and the probes cannot tell which: the link p1-t0-0 - p1-t1-0, the switch p1-t1-0. \
//!      In the last 50 ms, 50 of 50 probes over it were lost (1 path of 1 agent), and 0 of 100 probes on this agent's other paths in \
//!      the plane. Confidence: 99.99 %."
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent;
mod explain;
pub mod frame;
mod live;
mod locate;
mod model;
mod nic;
mod payload;
mod plan;
pub mod policy;
mod prober;
mod record;
mod ring;
mod scope;
pub mod share;
mod view;

pub use agent::{Agent, AgentError, AgentSettings};
pub use live::LiveAgents;
pub use locate::{Change, Component, Evidence, Fault, Finding, LocateSettings, LocateSettingsError, Locator};
pub use payload::{PAYLOAD_LEN, Payload, PayloadError, VERSION};
pub use plan::{Path, Plan, PlanError, Route, probe_address};
pub use prober::{
    Outcome, Probe, ProbeCounters, ProbeEnd, ProbeSettings, ProbeSettingsError, Prober, Refused,
};
pub use record::{
    Count, LinkRecord, LinkState, PathReport, RecordError, Recorder, Report, RoundTrips, Transition, Window,
};
pub use share::SharePolicy;
pub use view::View;
