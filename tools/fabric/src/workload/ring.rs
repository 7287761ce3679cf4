//! Ring all-reduce.

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// An all-reduce over a ring: the data are cut into as many parts as there are hosts, and each host passes on what came from the
/// one before it, once around to add up and once around to hand out. A host cannot send a part before it has it, so each step waits for
/// the slowest (MRC paper, section 5.2.7).
#[derive(Clone, Debug)]
pub struct RingAllReduce {
    hosts: Vec<HostId>,
    part: u32,
    iterations: u32,
    /// Parts that have come to each host, and parts that each has sent to the end.
    received: Vec<u32>,
    sent: Vec<u32>,
}

impl RingAllReduce {
    /// Over these hosts, with `bytes` at each, so many times in a row.
    pub fn new(hosts: Vec<HostId>, bytes: u64, iterations: u32) -> Self {
        let part = bytes.div_ceil(hosts.len().max(1) as u64).clamp(1, u32::MAX.into()) as u32;
        let none = vec![0; hosts.len()];
        Self { hosts, part, iterations, received: none.clone(), sent: none }
    }

    /// Steps of one all-reduce: parts that each host sends.
    pub fn steps(&self) -> u32 {
        2 * (self.hosts.len() as u32).saturating_sub(1)
    }

    fn in_all(&self) -> u32 {
        self.steps() * self.iterations
    }

    fn post(&self, host: u32, step: u32, actions: &mut WorkloadActions) {
        if step < self.in_all() {
            actions
                .posts
                .push((FlowEndpoint::first(host), Message { tag: step, len: self.part, notify: true }));
        }
    }
}

impl Workload for RingAllReduce {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        super::ring(&self.hosts)
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        for host in 0..self.hosts.len() as u32 {
            self.post(host, 0, actions);
        }
    }

    fn sent(&mut self, side: FlowEndpoint, _tag: u32, _actions: &mut WorkloadActions) {
        if let Some(sent) = self.sent.get_mut(side.pair as usize) {
            *sent += 1;
        }
    }

    fn received(&mut self, side: FlowEndpoint, tag: u32, actions: &mut WorkloadActions) {
        // The connection that comes in at a host is the one before its own.
        let host = (side.pair + 1) % self.hosts.len() as u32;
        if let Some(received) = self.received.get_mut(host as usize) {
            *received += 1;
            debug_assert_eq!(*received, tag + 1, "parts come in order");
        }
        self.post(host, tag + 1, actions);
    }

    fn is_done(&self) -> bool {
        let all = |count: &Vec<u32>| count.iter().all(|&count| count == self.in_all());
        all(&self.received) && all(&self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::deliver_all;
    use super::*;

    #[test]
    fn every_part_goes_around_twice() {
        for hosts in [2, 3, 5] {
            let mut ring = RingAllReduce::new((0..hosts).map(HostId).collect(), 1_001, 2);
            let steps = 2 * (hosts - 1) * 2;
            // Some hosts are far ahead of others.
            let mut turn = 0;
            let sent = deliver_all(&mut ring, |under_way| {
                turn += 1;
                turn * 7 % under_way
            });
            assert!(ring.is_done());
            assert_eq!(sent.len() as u32, hosts * steps);
            for host in 0..hosts {
                let own = sent.iter().filter(|(from, ..)| from.0 == host);
                let tags: Vec<_> = own.clone().map(|(.., message)| message.tag).collect();
                assert_eq!(tags, (0..steps).collect::<Vec<_>>());
                assert!(own.clone().all(|(_, to, _)| to.0 == (host + 1) % hosts));
            }
            assert!(sent.iter().all(|(.., message)| message.len == 1_001_u32.div_ceil(hosts)));
        }
    }

    #[test]
    fn a_host_waits_for_the_one_before_it() {
        let mut ring = RingAllReduce::new((0..3).map(HostId).collect(), 300, 1);
        let mut actions = WorkloadActions::default();
        ring.start(&mut actions);
        assert_eq!(actions.posts.len(), 3);
        ring.sent(FlowEndpoint::first(0), 0, &mut actions);
        assert_eq!(actions.posts.len(), 3, "what it sent is not what it needs");
        ring.received(FlowEndpoint { pair: 2, second: true }, 0, &mut actions);
        assert_eq!(actions.posts[3], (FlowEndpoint::first(0), Message { tag: 1, len: 100, notify: true }));
    }
}
