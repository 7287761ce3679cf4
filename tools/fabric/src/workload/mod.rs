//! What hosts send to each other, and when.
//!
//! A workload neither knows the network nor the time that passes in it: it is told what has arrived and says what to post next. So
//! the same one runs over any transport.

mod all_to_all;
mod neighbours;
mod ping_pong;
mod poisson;
mod ring;
mod stream;
mod trace;

use spindrift::time::Time;

use crate::net::HostId;
use crate::transport::Message;

pub use all_to_all::AllToAll;
pub use neighbours::Neighbours;
pub use ping_pong::PingPong;
pub use poisson::{Poisson, PoissonSpec, Sizes, SizesError};
pub use ring::RingAllReduce;
pub use stream::{Stream, StreamSpec};
pub use trace::{Trace, TraceEntry, TraceError};

/// One end of a workload's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEndpoint {
    /// The number of the connection, in the order of [`Workload::pairs`].
    pub pair: u32,
    /// Its second host, and not its first.
    pub second: bool,
}

impl FlowEndpoint {
    /// The end at the first host of a pair.
    pub const fn first(pair: u32) -> Self {
        Self { pair, second: false }
    }
}

/// What a workload asks for.
#[derive(Clone, Debug, Default)]
pub struct WorkloadActions {
    /// The time at which it is asked.
    pub now: Time,
    /// Messages to send. Those that an end of a connection has no room for wait there, in order.
    pub posts: Vec<(FlowEndpoint, Message)>,
    /// When to call [`Workload::alarm`]; a new one takes the old one's place.
    pub alarm: Option<Time>,
}

/// Something that hosts do together.
pub trait Workload: Send {
    /// The connections that it needs: those that send, and those they send to.
    fn pairs(&self) -> Vec<(HostId, HostId)>;

    /// It begins.
    fn start(&mut self, actions: &mut WorkloadActions);

    /// A message that one end sent is complete.
    fn sent(&mut self, side: FlowEndpoint, tag: u32, actions: &mut WorkloadActions);

    /// A message that notifies has come in at one end.
    fn received(&mut self, _side: FlowEndpoint, _tag: u32, _actions: &mut WorkloadActions) {}

    /// The time that it asked for has come.
    fn alarm(&mut self, _actions: &mut WorkloadActions) {}

    /// Whether all is done.
    fn is_done(&self) -> bool;

    /// How many messages it has, if they are a list.
    fn listed(&self) -> Option<usize> {
        None
    }
}

/// A connection from each host to the next, and from the last to the first.
fn ring(hosts: &[HostId]) -> Vec<(HostId, HostId)> {
    let next = hosts.iter().cycle().skip(1);
    hosts.iter().zip(next).map(|(&from, &to)| (from, to)).collect()
}

/// Posts that a test looks at.
#[cfg(test)]
mod testing {
    use super::*;

    /// Lets a workload run on a network that delivers one message after the other, in an order that `pick` decides from how many are
    /// under way. Returns each message with its hosts, in the order of delivery.
    pub(super) fn deliver_all(
        workload: &mut dyn Workload,
        mut pick: impl FnMut(usize) -> usize,
    ) -> Vec<(HostId, HostId, Message)> {
        let (pairs, mut actions) = (workload.pairs(), WorkloadActions::default());
        let (mut under_way, mut delivered) = (Vec::<(FlowEndpoint, Message)>::new(), Vec::new());
        workload.start(&mut actions);
        loop {
            under_way.append(&mut actions.posts);
            if under_way.is_empty() {
                return delivered;
            }
            // Those of one end stay in order.
            let (side, _) = under_way[pick(under_way.len())];
            let at = under_way.iter().position(|&(other, _)| other == side).expect("it is there");
            let (side, message) = under_way.remove(at);
            let (first, second) = pairs[side.pair as usize];
            let (from, to) = if side.second { (second, first) } else { (first, second) };
            delivered.push((from, to, message));
            if message.notify {
                workload.received(FlowEndpoint { second: !side.second, ..side }, message.tag, &mut actions);
            }
            workload.sent(side, message.tag, &mut actions);
        }
    }
}
