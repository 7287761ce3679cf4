//! Replay of a list of messages.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use spindrift::time::Time;

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::transport::Message;

/// A message of a [`Trace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// When it is sent, ns: since the beginning, or since another one was complete.
    pub start_ns: u64,
    /// Who sends it.
    pub from: HostId,
    /// To whom.
    pub to: HostId,
    /// Bytes of it.
    pub bytes: u32,
    /// The number of an earlier entry, from 0, that must be complete before.
    pub after: Option<u32>,
}

/// Messages at given times, or after each other: what was recorded from a real run, or made by another program. Each two hosts that send
/// to each other have a connection for each way.
#[derive(Clone, Debug)]
pub struct Trace {
    entries: Vec<TraceEntry>,
    pairs: Vec<(HostId, HostId)>,
    /// The connection of each entry.
    connection: Vec<u32>,
    /// The entries that wait for each one.
    waiting: Vec<Vec<u32>>,
    /// Those that wait for their time alone.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    complete: usize,
}

/// What is wrong with an entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// It is sent to its sender.
    #[error("a host sends to itself")]
    ToItself,
    /// It has no bytes.
    #[error("a message has at least one byte")]
    Empty,
    /// It comes after one that is not before it in the list.
    #[error("it comes after entry {0}, which is not before it in the list")]
    NotBefore(u32),
}

impl Trace {
    /// Of these messages.
    ///
    /// # Errors
    /// The number of the first entry that cannot be, and what is wrong with it.
    pub fn new(entries: Vec<TraceEntry>) -> Result<Self, (usize, TraceError)> {
        let mut known = BTreeMap::new();
        let (mut pairs, mut connection, mut waiting) =
            (Vec::new(), Vec::new(), vec![Vec::new(); entries.len()]);
        let mut due = BinaryHeap::new();
        for (number, entry) in entries.iter().enumerate() {
            let TraceEntry { start_ns, from, to, bytes, after } = *entry;
            if from == to {
                return Err((number, TraceError::ToItself));
            }
            if bytes == 0 {
                return Err((number, TraceError::Empty));
            }
            match after {
                None => due.push(Reverse((start_ns, number as u32))),
                Some(after) if (after as usize) < number => waiting[after as usize].push(number as u32),
                Some(after) => return Err((number, TraceError::NotBefore(after))),
            }
            connection.push(*known.entry((from, to)).or_insert_with(|| {
                pairs.push((from, to));
                pairs.len() as u32 - 1
            }));
        }
        Ok(Self { entries, pairs, connection, waiting, due, complete: 0 })
    }

    fn go_on(&mut self, actions: &mut WorkloadActions) {
        while let Some(&Reverse((at, number))) = self.due.peek() {
            if at > actions.now.0 {
                actions.alarm = Some(Time(at));
                return;
            }
            self.due.pop();
            let len = self.entries[number as usize].bytes;
            let side = FlowEndpoint::first(self.connection[number as usize]);
            actions.posts.push((side, Message { tag: number, len, notify: false }));
        }
    }
}

impl Workload for Trace {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        self.pairs.clone()
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        self.go_on(actions);
    }

    fn alarm(&mut self, actions: &mut WorkloadActions) {
        self.go_on(actions);
    }

    fn sent(&mut self, _side: FlowEndpoint, tag: u32, actions: &mut WorkloadActions) {
        self.complete += 1;
        let released = self.waiting.get_mut(tag as usize).map(core::mem::take);
        for number in released.into_iter().flatten() {
            let start_ns = self.entries[number as usize].start_ns;
            self.due.push(Reverse((actions.now.0.saturating_add(start_ns), number)));
        }
        self.go_on(actions);
    }

    fn is_done(&self) -> bool {
        self.complete == self.entries.len()
    }

    fn listed(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start_ns: u64, from: u32, to: u32, after: Option<u32>) -> TraceEntry {
        let bytes = 100 + from * 10 + to;
        TraceEntry { start_ns, from: HostId(from), to: HostId(to), bytes, after }
    }

    fn tags(actions: &mut WorkloadActions) -> Vec<u32> {
        actions.posts.drain(..).map(|(_, message)| message.tag).collect()
    }

    #[test]
    fn messages_go_at_their_times_and_after_each_other() {
        let entries = vec![
            entry(50, 0, 1, None),
            entry(0, 1, 0, None),
            entry(20, 0, 2, Some(1)),
            entry(0, 0, 1, Some(1)),
            entry(50, 2, 1, None),
        ];
        let (mut trace, mut actions) = (Trace::new(entries).unwrap(), WorkloadActions::default());
        let host = HostId;
        assert_eq!(
            trace.pairs(),
            [(host(0), host(1)), (host(1), host(0)), (host(0), host(2)), (host(2), host(1))]
        );
        assert_eq!(trace.listed(), Some(5));
        trace.start(&mut actions);
        assert_eq!((actions.posts[0].0, actions.posts[0].1.len), (FlowEndpoint::first(1), 110));
        assert_eq!((tags(&mut actions), actions.alarm.take()), (vec![1], Some(Time(50))));
        actions.now = Time(10);
        trace.sent(FlowEndpoint::first(1), 1, &mut actions);
        assert_eq!((tags(&mut actions), actions.alarm.take()), (vec![3], Some(Time(30))));
        actions.now = Time(30);
        trace.alarm(&mut actions);
        assert_eq!((tags(&mut actions), actions.alarm.take()), (vec![2], Some(Time(50))));
        actions.now = Time(50);
        trace.alarm(&mut actions);
        assert_eq!((tags(&mut actions), actions.alarm.take()), (vec![0, 4], None));
        for (tag, done) in [(0, false), (4, false), (2, false), (3, true)] {
            trace.sent(FlowEndpoint::first(0), tag, &mut actions);
            assert_eq!((actions.posts.len(), trace.is_done()), (0, done));
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let good = entry(0, 0, 1, None);
        for (bad, want) in [
            (TraceEntry { to: HostId(0), ..good }, TraceError::ToItself),
            (TraceEntry { bytes: 0, ..good }, TraceError::Empty),
            (TraceEntry { after: Some(1), ..good }, TraceError::NotBefore(1)),
            (TraceEntry { after: Some(7), ..good }, TraceError::NotBefore(7)),
        ] {
            assert_eq!(Trace::new(vec![good, bad]).unwrap_err(), (1, want));
        }
    }
}
