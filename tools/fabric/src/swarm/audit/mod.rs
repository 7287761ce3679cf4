//! What the packets of a host say of its transport: rules that cost nothing but time when they are broken, so that neither memory nor
//! completions tell.
//!
//! - *Each arrival is listed.* When a responder has nothing more to send, its SACKs have listed each packet that had arrived before the
//!   last of them: by the cumulative acknowledgement or in the bitmap (MRC 1.0 table 7-15).
//! - *A gap is repaired before new data leaves*, *nothing that was reported is sent again*, and *nothing is sent again without a reason*:
//!   see [`sender`].

mod sender;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use spindrift::counters::Counters;
use spindrift::time::Time;
use spindrift::wire::{DataHead, Packet as Mrc, Psn, Qpn, Seth};

use super::ledger::Check;
use crate::packet::Packet;
use sender::Sender;
pub(super) use sender::Timers;

/// The queue pairs of a host. See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Audit {
    qps: BTreeMap<u32, Watched>,
    /// Local queue pair numbers by the peer's address and queue pair number.
    peers: BTreeMap<(Ipv6Addr, u32), u32>,
    /// Planes of the host, and those of them without a carrier, as bits.
    planes: u32,
    down: u32,
    /// Data packets of requests. Those of responses may leave again when their request is complete.
    requests: u64,
    /// Ports of its own and its peers' that went down or came up. Packets that were sent before may leave again at once.
    port_changes: u64,
    /// For how long the host has stood still, ns.
    paused_ns: u64,
    /// After it stood still, its timers wait until then for what arrived meanwhile (decision 28).
    timers_from: Time,
    /// The first thing that did not hold.
    broken: Option<String>,
}

/// The longest time for which timers are held back after a stall, ns.
const MOST_HELD_NS: u64 = 250_000;

/// What an endpoint had counted before it took a packet.
#[derive(Clone, Copy)]
pub(super) struct Before {
    placed_bytes: u64,
    answers: u64,
    refused: u64,
}

impl Before {
    pub(super) const fn new(counters: &Counters) -> Self {
        Self {
            placed_bytes: counters.rx_placed_bytes,
            answers: counters.rx_sacks + counters.rx_acks + counters.loss_nack + counters.loss_not_ready,
            refused: counters.rx_forged_ack,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
struct Watched {
    /// Arrived and not listed by a SACK.
    unlisted: Vec<Psn>,
    /// As many of the first of them had arrived before the last SACK.
    due: usize,
    /// Failovers for which no port was a reason.
    failovers: u64,
    sender: Sender,
}

impl Audit {
    pub(super) fn new(planes: u8) -> Self {
        Self { planes: (1 << planes) - 1, ..Self::default() }
    }

    /// A queue pair of this host, connected to a peer's, which has these addresses. The peer has up to `max_dest_rd_atomic`
    /// READs and atomic operations in flight.
    pub(super) fn connect(
        &mut self,
        qpn: Qpn,
        (peer, addresses): (Qpn, impl Iterator<Item = Ipv6Addr>),
        timers: Timers,
        max_dest_rd_atomic: u8,
    ) {
        let sender = Sender::new(timers, max_dest_rd_atomic);
        self.qps.insert(qpn.get(), Watched { unlisted: Vec::new(), due: 0, failovers: 0, sender });
        self.peers.extend(addresses.map(|address| ((address, peer.get()), qpn.get())));
    }

    /// The queue pair has failed.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn.get());
    }

    /// All work requests of the queue pair are complete.
    pub(super) fn has_retired(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn.get()) {
            qp.sender.has_retired();
        }
    }

    pub(super) fn on_pause(&mut self, from: Time, until: Time) {
        let ns = until.since(from);
        self.paused_ns += ns;
        self.timers_from = self.timers_from.max(until.after(ns.min(MOST_HELD_NS)));
    }

    pub(super) fn carrier(&mut self, plane: u8, up: bool) {
        let bit = 1 << plane;
        self.down = if up { self.down & !bit } else { self.down | bit };
    }

    /// Data packets that it has sent, but for those of responses.
    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    /// What did not hold.
    pub(super) fn verdict(&self) -> Check {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn note(&mut self, now: Time, check: Check) {
        if let (Err(what), None) = (check, &self.broken) {
            self.broken = Some(format!("{what}, at {now}"));
        }
    }

    /// The endpoint took a packet. `failovers` counts those of a queue pair for which no port is a reason.
    pub(super) fn received(
        &mut self,
        now: Time,
        packet: &Packet,
        before: Before,
        counters: &Counters,
        failovers: impl Fn(Qpn) -> u64,
    ) {
        let after = Before::new(counters);
        let arrived = after.placed_bytes > before.placed_bytes;
        let told = after.answers > before.answers && after.refused == before.refused;
        let Some((_, mrc)) = read(packet) else { return };
        let qpn = mrc.bth().dest_qpn;
        let Some(qp) = self.qps.get_mut(&qpn.get()) else { return };
        if let Mrc::Data { head, .. } = &mrc {
            qp.sender.on_data(now, head);
        }
        if !arrived && !told {
            return;
        }
        match mrc {
            Mrc::Data { head, .. } if arrived => qp.unlisted.push(head.bth.psn),
            Mrc::Sack { seth, .. } => {
                qp.sender.on_sack(now, self.paused_ns, &seth);
                // The planes of a NIC are silent: what was sent on them leaves again at once.
                if core::mem::replace(&mut qp.failovers, failovers(qpn)) != failovers(qpn) {
                    qp.sender.excuse();
                }
            }
            Mrc::Ack { bth, .. } => qp.sender.on_ack(now, bth.psn),
            Mrc::Nack { neth, .. } => qp.sender.on_nack(now, &neth),
            _ => {}
        }
    }

    /// The endpoint sent a packet.
    pub(super) fn sent(&mut self, now: Time, packet: &Packet, counters: &Counters) {
        let port_changes = counters.port_changes + counters.peer_port_changes;
        if core::mem::replace(&mut self.port_changes, port_changes) != port_changes {
            self.qps.values_mut().for_each(|qp| qp.sender.excuse());
        }
        let Some((to, mrc)) = read(packet) else { return };
        let qpn = self.peers.get(&(to, mrc.bth().dest_qpn.get()));
        let Some(qp) = qpn.and_then(|qpn| self.qps.get_mut(qpn)) else { return };
        match mrc {
            Mrc::Data { head, .. } => {
                self.requests += u64::from(!head.bth.opcode.is_fetch_response());
                let check = qp.sender.on_send(now, self.paused_ns, now >= self.timers_from, &head);
                self.note(now, check);
            }
            Mrc::Sack { seth, .. } => {
                qp.unlisted.retain(|psn| !lists(&seth, *psn));
                qp.due = qp.unlisted.len();
            }
            _ => {}
        }
    }

    /// The endpoint had nothing to send on these planes.
    pub(super) fn silent(&mut self, now: Time, free: u32) {
        if free != self.planes || self.down != 0 {
            return;
        }
        let mut qps = self.qps.iter();
        if let Some((qpn, qp)) = qps.find(|(_, qp)| qp.due > 0) {
            let psn = qp.unlisted.first().map_or(0, |psn| psn.get());
            let check = Err(format!(
                "no SACK of queue pair {qpn:#x} lists packet {psn}, which arrived before the last of them, and no more are to come"
            ));
            self.note(now, check);
        }
    }
}

/// Where a packet is to go, and what its headers say.
fn read(packet: &Packet) -> Option<(Ipv6Addr, Mrc<'_>)> {
    let (to, head) = packet.mrc()?;
    let mrc = match DataHead::decode(head) {
        Ok((head, _)) => Mrc::Data { head, payload: &[], pad: &[] },
        Err(_) => Mrc::decode(head).ok()?,
    };
    Some((to, mrc))
}

/// Whether a SACK says that a packet has arrived.
fn lists(seth: &Seth, psn: Psn) -> bool {
    let bit = psn.distance(seth.cack) - i32::from(seth.sack_offset);
    psn.distance(seth.cack) <= 0 || (0..64).contains(&bit) && seth.bitmap >> bit & 1 == 1
}

#[cfg(test)]
mod tests {
    use spindrift::wire::{Bth, Meth, Opcode, Reth};

    use super::*;

    const PEER: Ipv6Addr = Ipv6Addr::new(0xfd5d, 0, 0, 0, 0, 0, 0, 1);
    const PSN: Psn = Psn::new(0xff_fff0);

    fn audit() -> Audit {
        let mut audit = Audit::new(2);
        let timers = Timers { initial_reordering_ns: 0, probe_floor_ns: 1, timeout_ns: 1 };
        audit.connect(Qpn::new(7), (Qpn::new(9), [PEER].into_iter()), timers, 16);
        audit
    }

    fn packet(mrc: &Mrc<'_>) -> Packet {
        let mut head = [0; 14 + 40 + 8 + Mrc::MAX_HEAD_LEN];
        (head[14], head[20]) = (0x60, 17);
        head[38..54].copy_from_slice(&PEER.octets());
        let len = 62 + mrc.encode_head(&mut head[62..]);
        let mut packet = Packet::default();
        packet.set_virtual(&head[..len], 4);
        packet
    }

    fn arrives(audit: &mut Audit, n: u32) {
        let bth = Bth::new(Opcode::WriteMiddle, Qpn::new(7), PSN.add(n));
        let head = DataHead {
            bth,
            meth: Meth::default(),
            tseth: None,
            reth: Reth::default(),
            imm: None,
            operands: None,
        };
        let before = Counters::default();
        let after = Counters { rx_placed_bytes: 1, ..before.clone() };
        let packet = packet(&Mrc::Data { head, payload: &[], pad: &[] });
        audit.received(Time(1), &packet, Before::new(&before), &before, |_| 0);
        assert!(!audit.qps[&7].unlisted.contains(&PSN.add(n)), "it was dropped");
        audit.received(Time(1), &packet, Before::new(&before), &after, |_| 0);
    }

    /// A SACK leaves that acknowledges the packets before `end`, and lists those of `bitmap` from `base` on.
    fn leaves(audit: &mut Audit, end: u32, base: u32, bitmap: u64) {
        let cack = PSN.add(end).sub(1);
        let sack_offset = PSN.add(base).distance(cack) as i16;
        let seth = Seth { cack, sack_offset, bitmap, ..Seth::default() };
        let bth = Bth::new(Opcode::Sack, Qpn::new(9), cack);
        audit.sent(Time(2), &packet(&Mrc::Sack { bth, seth }), &Counters::default());
    }

    fn verdict(audit: &mut Audit) -> Result<(), String> {
        audit.silent(Time(3), 0b11);
        audit.verdict()
    }

    #[test]
    fn each_arrival_is_listed_before_a_responder_falls_silent() {
        let arrived = |numbers: core::ops::Range<u32>| {
            let mut audit = audit();
            numbers.for_each(|n| arrives(&mut audit, n));
            audit
        };
        // By the cumulative acknowledgement, by the first bit and by the last.
        for (end, base, bitmap, unlisted) in [
            (1, 1, 0, None),
            (0, 0, 1, None),
            (0, 0, 0, Some(0)),
            (0, 1, u64::MAX, Some(0)),
            (1, 0x4000, 1, None),
        ] {
            let mut audit = arrived(0..1);
            assert_eq!(verdict(&mut audit), Ok(()), "no SACK is due yet");
            leaves(&mut audit, end, base, bitmap);
            let psn = unlisted.map(|n| format!("lists packet {}", PSN.add(n).get()));
            let verdict = verdict(&mut audit);
            assert_eq!(verdict.is_err(), psn.is_some(), "{end} {base} {bitmap:x}");
            assert!(psn.is_none_or(|psn| verdict.is_err_and(|what| what.contains(&psn))));
        }
        let mut long = arrived(0..65);
        leaves(&mut long, 0, 1, u64::MAX);
        leaves(&mut long, 0, 0, 1);
        assert_eq!(verdict(&mut long), Ok(()), "by two SACKs");
        let mut last_bit = arrived(0..65);
        leaves(&mut last_bit, 1, 1, u64::MAX >> 1);
        assert!(verdict(&mut last_bit).is_err());
    }

    #[test]
    fn what_arrived_since_the_last_sack_is_not_due() {
        let mut audit = audit();
        arrives(&mut audit, 0);
        leaves(&mut audit, 1, 1, 0);
        arrives(&mut audit, 1);
        assert_eq!(verdict(&mut audit), Ok(()));
    }

    /// Where a port has no room or no carrier, answers may wait for it.
    #[test]
    fn a_port_that_cannot_send_holds_sacks_back() {
        let mut audit = audit();
        arrives(&mut audit, 0);
        leaves(&mut audit, 0, 0, 0);
        audit.silent(Time(3), 0b01);
        audit.carrier(1, false);
        audit.silent(Time(3), 0b11);
        assert_eq!(audit.verdict(), Ok(()));
        audit.carrier(1, true);
        assert!(verdict(&mut audit).is_err());
    }

    #[test]
    fn a_queue_pair_that_has_failed_is_not_judged() {
        let mut audit = audit();
        arrives(&mut audit, 0);
        leaves(&mut audit, 0, 0, 0);
        audit.forget(Qpn::new(7));
        assert_eq!(verdict(&mut audit), Ok(()));
    }
}
