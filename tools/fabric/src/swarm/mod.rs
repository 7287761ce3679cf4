//! Many hosts and many faults at once, drawn from a seed, and what must hold whatever happens.
//!
//! A [`Case`] is a fabric, hosts, queue pairs with their work, and faults until the network heals. [`run`] carries it out
//! with real bytes, and judges:
//!
//! - memory equals a model of it at any completion and at the end; nothing else is written;
//! - each request completes once, in order, with success, or with the right status where queue pairs may give up;
//! - all work comes to its end after the network has healed, and then the network falls quiet: no timer, no probe;
//! - recovery takes no longer than round trips, losses and timers explain: each arrival is reported, gaps are repaired before new data
//!   leaves, and nothing is sent again without a reason;
//! - no entropy value stays bad, and congestion control has forgotten no bytes;
//! - no honest host accuses its peer, and each packet sent is accounted for.
//!
//! [`minimise`] looks for a part of a case that fails alike.

mod accusation;
mod audit;
mod case;
mod episode;
mod host;
#[allow(dead_code, reason = "the tests of the core, which compile it too, use the rest")]
mod ledger;
#[allow(dead_code, reason = "as for the ledger")]
mod message;
mod minimise;
mod run;
mod writer;

use crate::rand;

pub use case::{Case, EndPlan, FlowPlan, HostPlan, Roles};
pub use episode::{Episode, EpisodeKind, When};
pub use minimise::{Part, minimise};
pub use run::{Failure, Outcome, Watch, run};
