//! Rules that can be told from the packets alone: the window, immediates in flight, what is marked as repeated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use spindrift::endpoint::QpInfo;
use spindrift::time::Time;
use spindrift::wire::{AethKind, Bth, DataHead, Packet, Psn, Qpn};

use crate::recovery::{self, Facts, Limits, Seen};
use crate::support::net::{Hop, Tap};

/// What one direction of a queue pair may do.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) initial: Psn,
    pub(crate) window: u64,
    pub(crate) max_wimm: usize,
    /// Next packet to be sent for the first time.
    next: u64,
    /// Packets before it that did not leave the host yet.
    kept: BTreeSet<u64>,
    /// One past the last packet that the peer acknowledged without a gap, as far as the sender was told.
    acked: u64,
    /// Last packets of messages that take a receive work request and that the sender does not know to be complete.
    immediates: BTreeSet<u64>,
    /// READs and atomic operations that the sender does not know to be complete, and responses that it does not know to
    /// have arrived: their last packets, by number.
    requests: BTreeMap<u16, u64>,
    responses: BTreeMap<u16, u64>,
    fetches: Fetches,
    recovery: recovery::Direction,
}

/// READs and atomic operations in flight, at most: this side's, and the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetches {
    pub(crate) own: u8,
    pub(crate) of_peer: u8,
}

/// All directions. A data packet finds its rule by sender and destination, an acknowledgement by who gets it.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    by_sender: BTreeMap<Key, Rule>,
    by_receiver: BTreeMap<Key, Key>,
    /// Data packets that each node sent, those that came back included.
    pub(crate) data: [u64; 2],
    /// Those of them that are not of responses, which may leave again when their request is complete.
    pub(crate) of_requests: [u64; 2],
    /// What left last and has not been told of to the judge of recovery.
    leaving: Option<(Key, Seen)>,
    pub(crate) broken: Vec<String>,
}

/// A node and a queue pair.
type Key = (usize, Qpn);

/// Data that node `node` sends from `qpn` to the peer's `dest`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
    pub(crate) dest: Qpn,
}

impl Rules {
    pub(crate) fn add(
        &mut self,
        of: Direction,
        initial: Psn,
        theirs: &QpInfo,
        fetches: Fetches,
        limits: Limits,
    ) {
        let rule = Rule {
            initial,
            window: u64::from(theirs.mpr) * 128,
            max_wimm: theirs.max_wimm.into(),
            next: 0,
            kept: BTreeSet::new(),
            acked: 0,
            immediates: BTreeSet::new(),
            requests: BTreeMap::new(),
            responses: BTreeMap::new(),
            fetches,
            recovery: recovery::Direction::new(limits, of.node),
        };
        self.by_sender.insert((of.node, of.dest), rule);
        self.by_receiver.insert((of.node, of.qpn), (of.node, of.dest));
    }

    fn write(&mut self, at: Time, node: usize, head: &DataHead) {
        self.data[node] += 1;
        self.of_requests[node] += u64::from(!head.bth.opcode.is_fetch_response());
        let Some(rule) = self.by_sender.get_mut(&(node, head.bth.dest_qpn)) else {
            self.broken.push(format!("{at}: data to a queue pair that nobody connected: {head:?}"));
            return;
        };
        match rule.sent(head) {
            Ok(seq) => {
                self.leaving = Some(((node, head.bth.dest_qpn), seen(seq, head)));
            }
            Err(what) => self.broken.push(format!("{at}: node {node} {what}: {head:?}")),
        }
    }

    /// An answer leaves `node` for the peer's queue pair `qpn`.
    fn answer(&mut self, node: usize, qpn: Qpn) {
        self.leaving = self.by_receiver.get(&(1 - node, qpn)).map(|&key| (key, Seen::Answer));
    }

    fn answer_given_back(&mut self, at: Time, node: usize, qpn: Qpn) {
        let Some(key) = self.by_receiver.get(&(1 - node, qpn)) else { return };
        if let Some(rule) = self.by_sender.get_mut(key) {
            rule.recovery.given_back(at, Seen::Answer);
        }
    }

    fn on_its_way(&mut self, at: Time, hop: &Hop) {
        let Some((key, seen)) = self.leaving.take() else { return };
        let Some(rule) = self.by_sender.get_mut(&key) else { return };
        if let Err(what) = rule.recovery.seen(at, hop, seen) {
            self.broken.push(format!("{at}: node {} {what}", key.0));
        }
    }

    /// The oldest work requests of a queue pair are complete.
    pub(crate) fn retired(&mut self, at: Time, node: usize, qpn: Qpn, count: u32) {
        let Some(key) = self.by_receiver.get(&(node, qpn)) else { return };
        let Some(rule) = self.by_sender.get_mut(key) else { return };
        for _ in 0..count {
            if let Err(what) = rule.recovery.retired(at) {
                self.broken.push(format!("{at}: node {node} {what}"));
            }
        }
    }

    /// What there was to judge of recovery in each direction.
    pub(crate) fn facts(&self) -> impl Iterator<Item = Facts> {
        self.by_sender.values().map(|rule| rule.recovery.facts)
    }

    fn given_back(&mut self, at: Time, node: usize, head: &DataHead) {
        if let Some(rule) = self.by_sender.get_mut(&(node, head.bth.dest_qpn)) {
            let seq = rule.given_back(head);
            rule.recovery.given_back(at, seen(seq, head));
        }
    }

    /// Data arrives at `node`. That of a response may complete its request, and that of a request tells that older
    /// responses have arrived: so have all packets before them.
    fn data_arrived(&mut self, node: usize, head: &DataHead) {
        let Some(key) = self.by_receiver.get(&(node, head.bth.dest_qpn)) else { return };
        let Some(rule) = self.by_sender.get_mut(key) else { return };
        let (opcode, number) = (head.bth.opcode, head.meth.rqmsn.get());
        let (sent, number) = if opcode.is_fetch_response() {
            (&mut rule.requests, number)
        } else if opcode.is_fetch_request() {
            (&mut rule.responses, number.wrapping_sub(rule.fetches.of_peer.into()))
        } else {
            return;
        };
        let is_over = |of: u16| number.wrapping_sub(of) < 1 << 15;
        let end = sent.iter().filter(|(of, _)| is_over(**of)).map(|(_, seq)| seq + 1).max();
        sent.retain(|of, _| !is_over(*of));
        let Some(end) = end else { return };
        rule.acked = rule.acked.max(end);
        rule.immediates.retain(|&last| last >= end);
    }

    fn acknowledged(&mut self, at: Time, node: usize, qpn: Qpn, psn: Psn, complete: bool) {
        let Some(key) = self.by_receiver.get(&(node, qpn)) else { return };
        let Some(rule) = self.by_sender.get_mut(key) else { return };
        let Ok(end) = u64::try_from(rule.seq(psn) + 1) else { return };
        rule.acked = rule.acked.max(end);
        rule.recovery.acknowledged(at, end);
        if complete {
            rule.immediates.retain(|&last| last >= end);
        }
    }
}

/// Packet `seq`, as the judge of recovery sees it.
fn seen(seq: u64, head: &DataHead) -> Seen {
    let Bth { opcode, rtx, ack_req: asks, .. } = head.bth;
    Seen::Data {
        seq,
        first_time: !rtx,
        last: opcode.is_last(),
        asks,
        is_response: opcode.is_fetch_response(),
    }
}

impl Rule {
    fn seq(&self, psn: Psn) -> i64 {
        self.next as i64 + i64::from(psn.distance(self.initial.add(self.next as u32 & 0x00ff_ffff)))
    }

    fn given_back(&mut self, head: &DataHead) -> u64 {
        let seq = self.seq(head.bth.psn).max(0) as u64;
        if seq == self.next {
            self.kept.insert(self.next);
            self.next += 1;
        }
        seq
    }

    fn sent(&mut self, head: &DataHead) -> Result<u64, String> {
        let seq = self.seq(head.bth.psn);
        if seq < 0 || seq > self.next as i64 {
            return Err(format!("sent packet {seq} when {} was next", self.next));
        }
        let seq = seq as u64;
        let fresh = self.kept.remove(&seq) || seq == self.next;
        if fresh == head.bth.rtx {
            return Err(format!("sent packet {seq} with a wrong rtx bit"));
        }
        if !fresh {
            return Ok(seq);
        }
        self.next = self.next.max(seq + 1);
        let (opcode, number) = (head.bth.opcode, head.meth.rqmsn.get());
        if opcode.is_fetch_request() {
            self.requests.insert(number, seq);
            if self.requests.len() > self.fetches.own.into() {
                return Err(format!("has {} fetches in flight of {}", self.requests.len(), self.fetches.own));
            }
        }
        if opcode.is_fetch_response() && opcode.is_last() {
            self.responses.insert(number, seq);
        }
        if head.bth.opcode.takes_receive() && head.bth.opcode.is_last() {
            self.immediates.insert(seq);
            if self.immediates.len() > self.max_wimm {
                return Err(format!(
                    "has {} messages for receive work requests in flight of {}",
                    self.immediates.len(),
                    self.max_wimm
                ));
            }
        }
        // [cack + 1, cack + mpr), and `acked` is cack + 1.
        if seq + 1 >= self.acked + self.window {
            return Err(format!("sent packet {seq} beyond the window at {} of {}", self.acked, self.window));
        }
        Ok(seq)
    }
}

/// Shares the rules with the network.
pub(crate) struct Watcher(pub(crate) Rc<RefCell<Rules>>);

impl Tap for Watcher {
    fn sent(&mut self, at: Time, node: usize, packet: &Packet<'_>) {
        let mut rules = self.0.borrow_mut();
        rules.leaving = None;
        match packet {
            Packet::Data { head, .. } => rules.write(at, node, head),
            Packet::Ack { bth, .. } | Packet::Sack { bth, .. } | Packet::Nack { bth, .. } => {
                rules.answer(node, bth.dest_qpn);
            }
            _ => {}
        }
    }

    fn on_its_way(&mut self, at: Time, hop: &Hop) {
        self.0.borrow_mut().on_its_way(at, hop);
    }

    fn given_back(&mut self, at: Time, node: usize, packet: &Packet<'_>) {
        let mut rules = self.0.borrow_mut();
        match packet {
            Packet::Data { head, .. } => rules.given_back(at, node, head),
            Packet::Ack { bth, .. } | Packet::Sack { bth, .. } | Packet::Nack { bth, .. } => {
                rules.answer_given_back(at, node, bth.dest_qpn);
            }
            _ => {}
        }
    }

    fn arrived(&mut self, at: Time, node: usize, packet: &Packet<'_>) {
        match packet {
            Packet::Data { head, .. } => self.0.borrow_mut().data_arrived(node, head),
            Packet::Sack { bth, seth } => {
                self.0.borrow_mut().acknowledged(at, node, bth.dest_qpn, seth.cack, false);
            }
            Packet::Ack { bth, aeth } if aeth.kind() == AethKind::Ack => {
                self.0.borrow_mut().acknowledged(at, node, bth.dest_qpn, bth.psn, true);
            }
            _ => {}
        }
    }
}
