//! All-to-all.

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// Every host sends as much to every other, to a number of them at a time, the next one after itself first: so that at no time all send to
/// one.
#[derive(Clone, Debug)]
pub struct AllToAll {
    hosts: Vec<HostId>,
    bytes: u32,
    at_a_time: u32,
    /// Others that each host has begun to send to, and has sent to.
    begun: Vec<u32>,
    done: Vec<u32>,
}

impl AllToAll {
    /// Over these hosts, with `bytes` from each to each other, to `at_a_time` of them at once.
    pub fn new(hosts: Vec<HostId>, bytes: u32, at_a_time: u32) -> Self {
        let none = vec![0; hosts.len()];
        Self { hosts, bytes, at_a_time: at_a_time.max(1), begun: none.clone(), done: none }
    }

    fn others(&self) -> u32 {
        (self.hosts.len() as u32).saturating_sub(1)
    }

    fn post(&mut self, host: u32, actions: &mut WorkloadActions) {
        let others = self.others();
        let Some(begun) = self.begun.get_mut(host as usize).filter(|begun| **begun < others) else { return };
        let message = Message { tag: *begun, len: self.bytes, notify: false };
        actions.posts.push((FlowEndpoint::first(host * others + *begun), message));
        *begun += 1;
    }
}

impl Workload for AllToAll {
    /// Those of the first host, then those of the second; the next host first.
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        let count = self.hosts.len();
        let host = |at: usize| self.hosts[at % count];
        (0..count).flat_map(|from| (1..count).map(move |by| (host(from), host(from + by)))).collect()
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        for host in 0..self.hosts.len() as u32 {
            for _ in 0..self.at_a_time {
                self.post(host, actions);
            }
        }
    }

    fn sent(&mut self, side: FlowEndpoint, _tag: u32, actions: &mut WorkloadActions) {
        let host = side.pair / self.others().max(1);
        if let Some(done) = self.done.get_mut(host as usize) {
            *done += 1;
        }
        self.post(host, actions);
    }

    fn is_done(&self) -> bool {
        self.done.iter().all(|&done| done == self.others())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::testing::deliver_all;
    use super::*;

    #[test]
    fn each_sends_to_each_other_once() {
        for at_a_time in [1, 3, 100] {
            let mut all = AllToAll::new((0..5).map(HostId).collect(), 700, at_a_time);
            let sent = deliver_all(&mut all, |under_way| under_way / 2);
            assert!(all.is_done());
            let ways: BTreeSet<_> = sent.iter().map(|(from, to, _)| (from.0, to.0)).collect();
            let want: BTreeSet<_> =
                (0..5).flat_map(|a| (0..5).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
            assert_eq!((ways, sent.len()), (want, 20));
        }
    }

    #[test]
    fn no_more_than_wanted_at_a_time_and_never_all_to_one() {
        let mut all = AllToAll::new((0..4).map(HostId).collect(), 700, 2);
        let (pairs, mut actions) = (all.pairs(), WorkloadActions::default());
        all.start(&mut actions);
        let to: Vec<_> = actions
            .posts
            .iter()
            .map(|(side, _)| pairs[side.pair as usize])
            .map(|(a, b)| (a.0, b.0))
            .collect();
        assert_eq!(to, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 0), (3, 0), (3, 1)]);
        all.sent(FlowEndpoint::first(3), 0, &mut actions);
        assert_eq!(actions.posts.len(), 9);
        let (side, _) = actions.posts[8];
        assert_eq!(pairs[side.pair as usize], (HostId(1), HostId(0)));
    }
}
