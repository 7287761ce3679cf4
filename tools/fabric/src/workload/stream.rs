//! Messages from some hosts to others, each connection by itself: continuous writes, a permutation, an incast with its victims.

use spindrift::time::Time;

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// What each connection of a [`Stream`] carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    /// Bytes of a message.
    pub size: u32,
    /// Messages outstanding.
    pub depth: u32,
    /// Messages in all; without end if `None`.
    pub count: Option<u64>,
    /// When the first ones are posted, ns.
    pub start_ns: u64,
    /// From when on none are, ns.
    pub stop_ns: Option<u64>,
}

/// Each connection sends messages of one size, with a number of them outstanding.
#[derive(Clone, Debug)]
pub struct Stream {
    pairs: Vec<(HostId, HostId)>,
    spec: StreamSpec,
    /// Messages posted, by connection.
    posted: Vec<u64>,
    complete: u64,
    started: bool,
}

impl Stream {
    /// From the first host of each pair to the second.
    pub fn new(pairs: Vec<(HostId, HostId)>, spec: StreamSpec) -> Self {
        let posted = vec![0; pairs.len()];
        Self { pairs, spec, posted, complete: 0, started: false }
    }

    fn begin(&mut self, actions: &mut WorkloadActions) {
        self.started = true;
        for pair in 0..self.pairs.len() as u32 {
            for _ in 0..self.spec.depth {
                self.post(pair, actions);
            }
        }
    }

    fn post(&mut self, pair: u32, actions: &mut WorkloadActions) {
        let Some(posted) = self.posted.get_mut(pair as usize) else { return };
        let over = self.spec.stop_ns.is_some_and(|stop| actions.now.0 >= stop);
        if over || self.spec.count.is_some_and(|count| *posted >= count) {
            return;
        }
        let message = Message { tag: *posted as u32, len: self.spec.size, notify: false };
        *posted += 1;
        actions.posts.push((FlowEndpoint::first(pair), message));
    }
}

impl Workload for Stream {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        self.pairs.clone()
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        if actions.now.0 < self.spec.start_ns {
            actions.alarm = Some(Time(self.spec.start_ns));
        } else {
            self.begin(actions);
        }
    }

    fn alarm(&mut self, actions: &mut WorkloadActions) {
        self.begin(actions);
    }

    fn sent(&mut self, side: FlowEndpoint, _tag: u32, actions: &mut WorkloadActions) {
        self.complete += 1;
        self.post(side.pair, actions);
    }

    fn is_done(&self) -> bool {
        let all = self.complete == self.posted.iter().sum::<u64>();
        self.started && all
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::deliver_all;
    use super::*;

    const SPEC: StreamSpec = StreamSpec { size: 700, depth: 3, count: Some(5), start_ns: 0, stop_ns: None };

    fn pairs() -> Vec<(HostId, HostId)> {
        vec![(HostId(0), HostId(2)), (HostId(1), HostId(2))]
    }

    #[test]
    fn each_connection_sends_its_count() {
        let mut stream = Stream::new(pairs(), SPEC);
        assert!(!stream.is_done(), "it has not begun");
        let sent = deliver_all(&mut stream, |under_way| under_way - 1);
        assert!(stream.is_done());
        for from in [0, 1] {
            let tags: Vec<_> =
                sent.iter().filter(|(host, ..)| host.0 == from).map(|(.., message)| message.tag).collect();
            assert_eq!(tags, [0, 1, 2, 3, 4]);
        }
        let alike = |&(_, to, message): &(_, HostId, Message)| to.0 == 2 && message.len == 700;
        assert!(sent.iter().all(alike) && sent.len() == 10);
    }

    #[test]
    fn it_begins_and_ends_when_it_should() {
        let spec = StreamSpec { count: None, start_ns: 100, stop_ns: Some(300), ..SPEC };
        let (mut stream, mut actions) = (Stream::new(pairs(), spec), WorkloadActions::default());
        stream.start(&mut actions);
        assert_eq!((actions.posts.len(), actions.alarm), (0, Some(Time(100))));
        actions.now = Time(100);
        stream.alarm(&mut actions);
        assert_eq!(actions.posts.len(), 6);
        for (now, posts) in [(299, 7), (300, 7), (301, 7)] {
            actions.now = Time(now);
            stream.sent(FlowEndpoint::first(1), 0, &mut actions);
            assert_eq!((actions.posts.len(), stream.is_done()), (posts, false), "{now}");
        }
        for done in [false, false, false, true] {
            stream.sent(FlowEndpoint::first(0), 0, &mut actions);
            assert_eq!(stream.is_done(), done);
        }
    }
}
