//! Rules that can be told from the packets alone: the window, immediates in flight, what is marked as repeated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use spindrift::time::Time;
use spindrift::wire::{AethKind, Packet, Psn, Qpn, WriteHead};

use crate::support::net::Tap;

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
    /// Last packets of messages with immediate that the sender does not know to be complete.
    immediates: BTreeSet<u64>,
}

/// All directions. A data packet finds its rule by sender and destination, an acknowledgement by who gets it.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    by_sender: BTreeMap<(usize, Qpn), Rule>,
    by_receiver: BTreeMap<(usize, Qpn), (usize, Qpn)>,
    /// Data packets that each node sent, those that came back included.
    pub(crate) data: [u64; 2],
    pub(crate) broken: Vec<String>,
}

/// Data that node `node` sends from `qpn` to the peer's `dest`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    pub(crate) node: usize,
    pub(crate) qpn: Qpn,
    pub(crate) dest: Qpn,
}

impl Rules {
    pub(crate) fn add(&mut self, of: Direction, initial: Psn, mpr: u8, max_wimm: u16) {
        let rule = Rule {
            initial,
            window: u64::from(mpr) * 128,
            max_wimm: max_wimm.into(),
            next: 0,
            kept: BTreeSet::new(),
            acked: 0,
            immediates: BTreeSet::new(),
        };
        self.by_sender.insert((of.node, of.dest), rule);
        self.by_receiver.insert((of.node, of.qpn), (of.node, of.dest));
    }

    fn write(&mut self, at: Time, node: usize, head: &WriteHead) {
        if let Some(count) = self.data.get_mut(node) {
            *count += 1;
        }
        let Some(rule) = self.by_sender.get_mut(&(node, head.bth.dest_qpn)) else {
            self.broken.push(format!("{at}: data to a queue pair that nobody connected: {head:?}"));
            return;
        };
        if let Err(what) = rule.sent(head) {
            self.broken.push(format!("{at}: node {node} {what}: {head:?}"));
        }
    }

    fn given_back(&mut self, node: usize, head: &WriteHead) {
        if let Some(count) = self.data.get_mut(node) {
            *count += 1;
        }
        if let Some(rule) = self.by_sender.get_mut(&(node, head.bth.dest_qpn)) {
            rule.given_back(head);
        }
    }

    fn acknowledged(&mut self, node: usize, qpn: Qpn, psn: Psn, complete: bool) {
        let Some(key) = self.by_receiver.get(&(node, qpn)) else { return };
        let Some(rule) = self.by_sender.get_mut(key) else { return };
        let Ok(end) = u64::try_from(rule.seq(psn) + 1) else { return };
        rule.acked = rule.acked.max(end);
        if complete {
            rule.immediates.retain(|&last| last >= end);
        }
    }
}

impl Rule {
    fn seq(&self, psn: Psn) -> i64 {
        self.next as i64 + i64::from(psn.distance(self.initial.add(self.next as u32 & 0x00ff_ffff)))
    }

    fn given_back(&mut self, head: &WriteHead) {
        if self.seq(head.bth.psn) == self.next as i64 {
            self.kept.insert(self.next);
            self.next += 1;
        }
    }

    fn sent(&mut self, head: &WriteHead) -> Result<(), String> {
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
            return Ok(());
        }
        self.next = self.next.max(seq + 1);
        if head.imm.is_some() {
            self.immediates.insert(seq);
            if self.immediates.len() > self.max_wimm {
                return Err(format!(
                    "has {} immediates in flight of {}",
                    self.immediates.len(),
                    self.max_wimm
                ));
            }
        }
        // [cack + 1, cack + mpr), and `acked` is cack + 1.
        if seq + 1 >= self.acked + self.window {
            return Err(format!("sent packet {seq} beyond the window at {} of {}", self.acked, self.window));
        }
        Ok(())
    }
}

/// Shares the rules with the network.
pub(crate) struct Watcher(pub(crate) Rc<RefCell<Rules>>);

impl Tap for Watcher {
    fn sent(&mut self, at: Time, node: usize, packet: &Packet<'_>) {
        if let Packet::Write { head, .. } = packet {
            self.0.borrow_mut().write(at, node, head);
        }
    }

    fn given_back(&mut self, _at: Time, node: usize, packet: &Packet<'_>) {
        if let Packet::Write { head, .. } = packet {
            self.0.borrow_mut().given_back(node, head);
        }
    }

    fn arrived(&mut self, _at: Time, node: usize, packet: &Packet<'_>) {
        match packet {
            Packet::Sack { bth, seth } => {
                self.0.borrow_mut().acknowledged(node, bth.dest_qpn, seth.cack, false);
            }
            Packet::Ack { bth, aeth } if aeth.kind() == AethKind::Ack => {
                self.0.borrow_mut().acknowledged(node, bth.dest_qpn, bth.psn, true);
            }
            _ => {}
        }
    }
}
