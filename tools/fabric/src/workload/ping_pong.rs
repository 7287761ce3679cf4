//! Messages back and forth.

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// A message to and fro, again and again: half of the time from one message of the first host to its next is the latency, as `ib_write_lat`
/// has it.
#[derive(Clone, Debug)]
pub struct PingPong {
    pairs: Vec<(HostId, HostId)>,
    bytes: u32,
    rounds: u32,
    /// Messages that are complete at their senders, by connection and end.
    sent: Vec<[u32; 2]>,
}

impl PingPong {
    /// Between the hosts of each pair, so many times there and back.
    pub fn new(pairs: Vec<(HostId, HostId)>, bytes: u32, rounds: u32) -> Self {
        let sent = vec![[0; 2]; pairs.len()];
        Self { pairs, bytes, rounds, sent }
    }

    fn post(&self, side: FlowEndpoint, round: u32, actions: &mut WorkloadActions) {
        if round < self.rounds {
            actions.posts.push((side, Message { tag: round, len: self.bytes, notify: true }));
        }
    }
}

impl Workload for PingPong {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        self.pairs.clone()
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        for pair in 0..self.pairs.len() as u32 {
            self.post(FlowEndpoint::first(pair), 0, actions);
        }
    }

    fn sent(&mut self, side: FlowEndpoint, _tag: u32, _actions: &mut WorkloadActions) {
        if let Some(sent) = self.sent.get_mut(side.pair as usize) {
            sent[usize::from(side.second)] += 1;
        }
    }

    fn received(&mut self, side: FlowEndpoint, tag: u32, actions: &mut WorkloadActions) {
        // The second host answers; the first begins the next round.
        self.post(side, tag + u32::from(!side.second), actions);
    }

    fn is_done(&self) -> bool {
        self.sent.iter().flatten().all(|&sent| sent == self.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::deliver_all;
    use super::*;

    #[test]
    fn each_message_is_answered() {
        let mut rounds = PingPong::new(vec![(HostId(0), HostId(1)), (HostId(2), HostId(3))], 8, 3);
        let sent = deliver_all(&mut rounds, |under_way| under_way - 1);
        assert!(rounds.is_done());
        for (one, other) in [(0, 1), (2, 3)] {
            let ways: Vec<_> = sent
                .iter()
                .filter(|(from, ..)| from.0 == one || from.0 == other)
                .map(|(from, to, message)| (from.0, to.0, message.tag))
                .collect();
            let round = |tag| [(one, other, tag), (other, one, tag)];
            assert_eq!(ways, [round(0), round(1), round(2)].concat());
        }
    }
}
