//! Agents in the fabric simulator, and how well they find faults.
//!
//! The agents are those of [`spindrift_agent`], on hosts that may run a transport too. Their probes are packets: switches forward them by their uSIDs,
//! they wait in queues, are dropped where those are full, and are lost by the simulator's faults. Nothing reads a clock, and each
//! run repeats from its seed.
//!
//! | Module | What it is about |
//! |---|---|
//! | [`ProbingHost`] | a host with an agent beside its transport |
//! | [`Watched`] | a fabric of them, and what they name together |
//! | [`Case`], [`Kind`] | every kind of fault, and its places |
//! | [`trial`] | a fault happens: was it named, and when? |
//! | [`campaign`] | many of them |
//! | [`healthy`] | fabrics at full load in which nothing is wrong |
//! | [`table`] | the results, as Markdown |
//!
//! ```
//! use spindrift_agent::Component;
//! use spindrift_agent_sim::trial::{Verdict, single};
//! use spindrift_agent_sim::{Case, Idle, Kind, Watched, WatchSettings, small};
//! use spindrift_srv6::Node;
//!
//! let spec = small(2, (4, 4), 2);
//! let mut watched = Watched::build(spec, WatchSettings::default(), 1, |_, _| Ok::<_, ()>(Idle))?;
//! watched.run(300_000_000, |_| false);
//! let switch = Component::Node(Node::T1 { plane: 0, number: 3 });
//! let trial = single(&mut watched, Case { kind: Kind::SwitchStops, component: switch });
//! assert_eq!(trial.verdict, Verdict::Right);
//! assert!(trial.named_ns.is_some_and(|ns| ns <= 100_000_000));
//! # Ok::<(), spindrift_agent_sim::WatchError<()>>(())
//! ```

pub mod campaign;
mod catalogue;
pub mod healthy;
mod host;
mod shapes;
pub mod table;
pub mod trial;
mod watch;

pub use catalogue::{Case, KINDS, Kind, Tier, Way};
pub use host::{Idle, ProbingHost};
pub use shapes::{small, three_tiers};
pub use watch::{Crossings, WatchError, WatchSettings, Watched};
