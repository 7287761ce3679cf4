//! Neighbour exchange.

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// Every host sends to the next one and receives from the one before it, and begins again when both are done: what `sendrecv_perf`
/// measures (MRC paper, section 5.2.7, figure 15).
#[derive(Clone, Debug)]
pub struct Neighbours {
    hosts: Vec<HostId>,
    bytes: u32,
    iterations: u32,
    /// Messages that each host has sent to the end, and received.
    sent: Vec<u32>,
    received: Vec<u32>,
}

impl Neighbours {
    /// Over these hosts, `bytes` from each to the next, so many times in a row.
    pub fn new(hosts: Vec<HostId>, bytes: u32, iterations: u32) -> Self {
        let none = vec![0; hosts.len()];
        Self { hosts, bytes, iterations, sent: none.clone(), received: none }
    }

    fn post(&self, host: u32, iteration: u32, actions: &mut WorkloadActions) {
        if iteration < self.iterations {
            let message = Message { tag: iteration, len: self.bytes, notify: true };
            actions.posts.push((FlowEndpoint::first(host), message));
        }
    }

    /// One half of an iteration of a host is done.
    fn half(&mut self, host: u32, actions: &mut WorkloadActions, count: impl Fn(&mut Self) -> &mut Vec<u32>) {
        let at = host as usize;
        let both = |me: &Self| Some((*me.sent.get(at)?).min(*me.received.get(at)?));
        let Some(before) = both(self) else { return };
        if let Some(count) = count(self).get_mut(at) {
            *count += 1;
        }
        if let Some(now) = both(self).filter(|&now| now > before) {
            self.post(host, now, actions);
        }
    }
}

impl Workload for Neighbours {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        super::ring(&self.hosts)
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        for host in 0..self.hosts.len() as u32 {
            self.post(host, 0, actions);
        }
    }

    fn sent(&mut self, side: FlowEndpoint, _tag: u32, actions: &mut WorkloadActions) {
        self.half(side.pair, actions, |me| &mut me.sent);
    }

    fn received(&mut self, side: FlowEndpoint, _tag: u32, actions: &mut WorkloadActions) {
        let host = (side.pair + 1) % (self.hosts.len() as u32).max(1);
        self.half(host, actions, |me| &mut me.received);
    }

    fn is_done(&self) -> bool {
        self.sent.iter().chain(&self.received).all(|&count| count == self.iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::deliver_all;
    use super::*;

    #[test]
    fn each_sends_to_the_next_as_often_as_it_should() {
        let mut exchange = Neighbours::new((0..4).map(HostId).collect(), 900, 5);
        let mut turn = 0;
        let sent = deliver_all(&mut exchange, |under_way| {
            turn += 1;
            turn * 5 % under_way
        });
        assert!(exchange.is_done());
        assert_eq!(sent.len(), 4 * 5);
        for host in 0..4 {
            let own = sent.iter().filter(|(from, ..)| from.0 == host);
            let tags: Vec<_> = own.clone().map(|(.., message)| message.tag).collect();
            assert_eq!(tags, [0, 1, 2, 3, 4]);
            assert!(own.clone().all(|(_, to, message)| to.0 == (host + 1) % 4 && message.len == 900));
        }
    }

    #[test]
    fn a_host_goes_on_when_both_halves_are_done() {
        let mut exchange = Neighbours::new((0..3).map(HostId).collect(), 900, 2);
        let mut actions = WorkloadActions::default();
        exchange.start(&mut actions);
        assert_eq!(actions.posts.len(), 3);
        let from_last = FlowEndpoint { pair: 2, second: true };
        exchange.sent(FlowEndpoint::first(0), 0, &mut actions);
        assert_eq!(actions.posts.len(), 3, "nothing has come in at host 0");
        exchange.received(from_last, 0, &mut actions);
        assert_eq!(actions.posts[3], (FlowEndpoint::first(0), Message { tag: 1, len: 900, notify: true }));
        // The one before is ahead.
        exchange.received(from_last, 1, &mut actions);
        assert_eq!(actions.posts.len(), 4);
        exchange.sent(FlowEndpoint::first(0), 1, &mut actions);
        assert_eq!((actions.posts.len(), exchange.is_done()), (4, false));
    }
}
