//! A network in virtual time that joins endpoints, shared by the property runs and the bad-peer tests.
//!
//! Everything is decided by one seed: delays, faults, the order of events that fall on the same nanosecond.
//! A run always ends, because virtual time and the number of steps are capped, and a run that fails prints its
//! last packets.

#![allow(dead_code, reason = "each test crate uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../tools/fabric/src/swarm/accusation.rs"]
pub(crate) mod accusation;
pub(crate) mod frame;
#[path = "../../tools/fabric/src/swarm/ledger.rs"]
pub(crate) mod ledger;
pub(crate) mod link;
#[path = "../../tools/fabric/src/swarm/message.rs"]
pub(crate) mod message;
pub(crate) mod net;
pub(crate) mod pair;
#[path = "../../tools/fabric/src/rand.rs"]
pub(crate) mod rand;
pub(crate) mod seeds;
pub(crate) mod trace;
#[path = "../../tools/fabric/src/swarm/writer.rs"]
pub(crate) mod writer;
