//! Rules that can be told from the packets alone: the window, immediates in flight, what is marked as repeated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use spindrift::time::Time;
use spindrift::wire::{AethKind, DataHead, Packet, Psn, Qpn};

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
    recovery: recovery::Direction,
}

/// All directions. A data packet finds its rule by sender and destination, an acknowledgement by who gets it.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    by_sender: BTreeMap<Key, Rule>,
    by_receiver: BTreeMap<Key, Key>,
    /// Data packets that each node sent, those that came back included.
    pub(crate) data: [u64; 2],
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
    pub(crate) fn add(&mut self, of: Direction, initial: Psn, mpr: u8, max_wimm: u16, limits: Limits) {
        let rule = Rule {
            initial,
            window: u64::from(mpr) * 128,
            max_wimm: max_wimm.into(),
            next: 0,
            kept: BTreeSet::new(),
            acked: 0,
            immediates: BTreeSet::new(),
            recovery: recovery::Direction::new(limits, of.node),
        };
        self.by_sender.insert((of.node, of.dest), rule);
        self.by_receiver.insert((of.node, of.qpn), (of.node, of.dest));
    }

    fn write(&mut self, at: Time, node: usize, head: &DataHead) {
        if let Some(count) = self.data.get_mut(node) {
            *count += 1;
        }
        let Some(rule) = self.by_sender.get_mut(&(node, head.bth.dest_qpn)) else {
            self.broken.push(format!("{at}: data to a queue pair that nobody connected: {head:?}"));
            return;
        };
        match rule.sent(head) {
            Ok(seq) => {
                let last = head.bth.opcode.is_last();
                let (first_time, asks) = (!head.bth.rtx, head.bth.ack_req);
                let seen = Seen::Data { seq, first_time, last, asks };
                self.leaving = Some(((node, head.bth.dest_qpn), seen));
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
            let (first_time, last) = (!head.bth.rtx, head.bth.opcode.is_last());
            rule.recovery.given_back(at, Seen::Data { seq, first_time, last, asks: head.bth.ack_req });
        }
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
