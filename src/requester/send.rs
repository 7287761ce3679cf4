//! Selection of the next packet, and the state kept for it.
//!
//! New packets are sent in order, one after another, for the request that has its turn.
//! [`Requester::new_packet_fits`] and [`Requester::send_new`] run for each of them. Retransmissions are rare and have
//! a separate, slower path.

use core::hint::cold_path;

use crate::congestion::{Controller, Flight};
use crate::path::{EvId, PathHint, PlaneSet};
use crate::time::Time;
use crate::wire::{DataHead, Ev, ICRC_LEN, Opcode, Psn};

use super::fetch::any_limit;
use super::spurious::{RtxReason, Transmission};
use super::{PacketSpec, Record, Requester, SendContext, psn_of};

/// Why a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendKind {
    /// First transmission.
    New,
    /// Also a first transmission: the previous attempt never left the host.
    Resend,
    /// A retransmission of a packet that was declared lost.
    Retransmit,
    /// A tail loss probe (TLP): a copy of the oldest unacknowledged packet, to elicit a SACK.
    Probe,
}

impl SendKind {
    /// Whether an earlier copy may be in flight.
    #[inline]
    pub(crate) const fn repeats(self) -> bool {
        matches!(self, Self::Retransmit | Self::Probe)
    }
}

/// A packet to be sent: its headers, and the location of its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutPacket<'a> {
    pub(crate) seq: u64,
    pub(crate) kind: SendKind,
    pub(crate) psn: Psn,
    /// Whether the peer is asked to acknowledge at once.
    pub(crate) ack_req: bool,
    pub(crate) spec: PacketSpec<'a>,
}

impl Requester {
    /// UDP payload length + 40: the nominal packet size that congestion control counts.
    pub(crate) const NOMINAL_OVERHEAD: u32 = 40;

    /// The size that congestion control counts for a packet with a timestamp and this much payload.
    #[inline]
    pub(crate) const fn counted(opcode: Opcode, payload: u32) -> u32 {
        Self::nominal(DataHead::len_of(opcode, true), payload)
    }

    #[inline]
    const fn nominal(head_len: usize, payload: u32) -> u32 {
        (head_len + ICRC_LEN) as u32 + payload + Self::NOMINAL_OVERHEAD
    }

    /// Whether there is a new packet and the window has room for it.
    #[inline]
    pub(crate) fn new_packet_fits(&self) -> bool {
        // MRC 1.0 section 6.3.1: [cack + 1, cack + mpr), and una = cack + 1.
        if self.next + 1 >= self.una + u64::from(self.window) || !self.queue.has_unsent() {
            return false;
        }
        !self.limited || self.passes_the_limits()
    }

    /// The planes on which congestion control allows a packet now. TLPs are not subject to it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(crate) fn open_planes(&self, cc: &Controller, now: Time) -> PlaneSet {
        PlaneSet(cc.open_planes(u64::from(self.setup.mtu), now))
    }

    /// Selects what to send next: the oldest lost packet, then a TLP, then new data.
    ///
    /// A due TLP ignores congestion control, because without acknowledgements nothing else will open the window soon.
    /// If a packet is lost, the oldest one serves as the TLP. New data elicits a SACK as well as a copy does (RFC
    /// 8985, section 7.3), but takes its place only once: its path may be the cause of the silence, and a copy takes
    /// a different one.
    ///
    /// `open`: congestion control allows a packet now. `opens`: it will allow one at a known time. If there are [no
    /// retransmissions](Self::has_retransmissions), [`new_packet_fits`](Self::new_packet_fits) gives the same result
    /// faster.
    pub(crate) fn next_send(&mut self, open: bool, opens: bool) -> Option<(u64, SendKind)> {
        if self.lost_count > 0
            && let Some(seq) = self.next_lost()
        {
            let never_left = self.records.get(seq).cause == RtxReason::TxRejected;
            if open {
                self.probe_pending = false;
                return Some((seq, if never_left { SendKind::Resend } else { SendKind::Retransmit }));
            }
            let kind = if never_left { SendKind::Resend } else { SendKind::Probe };
            return (self.probe_pending && !opens).then_some((seq, kind));
        }
        // While the peer is not ready for the oldest packets, only responses may leave.
        let asks = self.probe_pending && !(self.lost_count > 0 && self.is_paused());
        if asks && let Some(seq) = self.probe_target() {
            if !self.new_asked && !self.role_doubt.is_open() && open && self.new_packet_fits() {
                return Some((self.next, SendKind::New));
            }
            return Some((seq, SendKind::Probe));
        }
        (open && (self.new_packet_fits() || self.promotes_response())).then_some((self.next, SendKind::New))
    }

    /// The oldest lost packet that may be sent now. While the peer is not ready, those from the refused message on wait,
    /// except for responses.
    pub(super) fn next_lost(&self) -> Option<u64> {
        let mut seq = self.lost.next_set(self.una, self.next)?;
        while self.waits_for_receive(seq) && self.queue.find(seq).is_some_and(|entry| !entry.is_response()) {
            seq = self.lost.next_set(seq + 1, self.next)?;
        }
        Some(seq)
    }

    /// The oldest unacknowledged packet. If only a completion is missing, it is the last packet of the oldest
    /// message: the peer acknowledges any old PSN with a transport ACK.
    fn probe_target(&mut self) -> Option<u64> {
        let target = if self.una < self.next {
            Some(self.una)
        } else {
            self.queue.find(self.done).map(|entry| entry.end() - 1).filter(|&last| last < self.next)
        };
        if target.is_none() {
            self.probe_pending = false;
        }
        target
    }

    /// The path that packet `seq`, sent as `kind`, should take.
    ///
    /// - A retransmission avoids the path of the last transmission, and waits until another plane has room. A dead
    ///   plane always has room, while the packets of other queue pairs fill the working ones. But a plane without
    ///   room for a whole RTO may be the dead one, so the retransmission then takes any plane.
    /// - The first packet after an RTO prefers a path that is known to work. That knowledge may be out of date, so
    ///   the next packets take other paths in turn.
    /// - From the second TLP in a row on, every other one takes a path that is not in use. The paths in use may be
    ///   the dead ones, and the state of the others may be wrong. Half of these take the planes that stand by.
    /// - A TLP avoids the path in use that the TLP before it took. If each TLP is a copy of a different packet, the
    ///   last copies of all of them may have taken the one path that works.
    pub(crate) fn path_hint(&self, seq: u64, kind: SendKind) -> PathHint {
        let is_probe = kind == SendKind::Probe;
        let in_place_of_probe = kind == SendKind::New && self.probe_pending;
        let prefers_proven = (is_probe || in_place_of_probe) && self.tail_probes == 0;
        if !kind.repeats() {
            let oldest = self.in_flight(None).and_then(|(_, ev)| ev);
            return PathHint { proven_but: oldest.filter(|_| prefers_proven), ..PathHint::default() };
        }
        let last = EvId(self.records.get(seq).ev);
        let avoid = self.probed.filter(|_| is_probe).unwrap_or(last);
        PathHint {
            idle: is_probe && self.tries_idle_planes(),
            bad_but: (is_probe && self.tail_probes % 2 == 1).then_some(last),
            proven_but: prefers_proven.then_some(avoid),
            avoid: Some(avoid),
            other_plane: !self.any_plane,
        }
    }

    /// Records that the packet to be sent as `kind` takes this entropy value, which is in use.
    pub(crate) fn note_probed(&mut self, kind: SendKind, ev: EvId) {
        if kind == SendKind::Probe {
            self.probed = Some(ev);
        }
    }

    /// Sends the next new packet, with a ticket among all data packets of the endpoint. Returns `None` if there is
    /// none.
    // Inlined, so that the packet's fields stay in registers until they are written.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(crate) fn send_new(
        &mut self,
        now: Time,
        (ev, plane): (EvId, u8),
        ticket: u64,
        cc: &mut Controller,
    ) -> Option<OutPacket<'_>> {
        let seq = self.next;
        if self.all_arrived() {
            cold_path();
            self.start_over(now);
        }
        self.make_room_until(seq + 1);
        let Some((spec, asks)) = self.queue.send_next(seq, self.setup.mtu, ticket) else {
            cold_path();
            return None;
        };
        if spec.may_limit() {
            cold_path();
            self.wimm_in_flight += u32::from(spec.starts_taker());
            if spec.is_fetch() {
                self.fetches.note(seq, &spec);
            }
            self.limited = any_limit(&self.setup, self.wimm_in_flight, self.not_ready.waits(), &self.fetches);
        }
        let bytes = Self::nominal(spec.head_len(), spec.len);
        let flight = Flight { plane, bytes: u64::from(bytes), sent_at: now };
        let ack_req = asks || cc.wants_ack(plane, flight.bytes);
        cc.on_send(&flight);
        self.next = seq + 1;
        self.orders += 1;
        *self.records.get_mut(seq) =
            Record { sent_at: now, order: self.orders, bytes, ev: ev.0, ..Record::default() };
        let psn = psn_of(&self.setup, seq);
        Some(OutPacket { seq, kind: SendKind::New, psn, ack_req, spec })
    }

    /// Like [`Self::send_new`], if a TLP may be due: the new packet takes its place.
    #[inline(never)]
    pub(crate) fn send_new_for_probe(
        &mut self,
        now: Time,
        path: (EvId, u8),
        ticket: u64,
        cc: &mut Controller,
    ) -> Option<OutPacket<'_>> {
        let asks = self.probe_pending;
        if asks {
            self.probe_leaves(now);
            self.new_asked = true;
        }
        let packet = self.send_new(now, path, ticket, cc)?;
        Some(OutPacket { ack_req: packet.ack_req || asks, ..packet })
    }

    /// Sends packet `seq` again. Returns `None` if its request is gone.
    #[inline(never)]
    pub(crate) fn send_again(
        &mut self,
        now: Time,
        (seq, kind): (u64, SendKind),
        ev: EvId,
        ticket: u64,
        env: &mut SendContext<'_>,
    ) -> Option<OutPacket<'_>> {
        self.queue.hold_until(seq, ticket + 1);
        let spec = self.queue.packet(seq, self.setup.mtu)?;
        let bytes = Self::nominal(spec.head_len(), spec.len);
        self.orders += 1;
        let before = self.records.get(seq);
        let retries = before.retries.saturating_add(u8::from(kind.repeats()));
        let fresh =
            Record { sent_at: now, order: self.orders, bytes, ev: ev.0, retries, ..Record::default() };
        *self.records.get_mut(seq) = fresh;
        self.count_again(seq, kind, &before, &fresh, env);
        let spec = self.queue.packet(seq, self.setup.mtu)?;
        let psn = psn_of(&self.setup, seq);
        Some(OutPacket { seq, kind, psn, ack_req: true, spec })
    }

    fn count_again(
        &mut self,
        seq: u64,
        kind: SendKind,
        before: &Record,
        fresh: &Record,
        env: &mut SendContext<'_>,
    ) {
        match kind {
            SendKind::Probe => {
                self.probe_leaves(fresh.sent_at);
                self.note_role_probed(EvId(fresh.ev), fresh.order, env.paths);
                env.counters.tx_tail_probes += 1;
            }
            SendKind::Retransmit => env.counters.tx_retransmits += 1,
            SendKind::New | SendKind::Resend => {}
        }
        let was_lost = self.lost.test(seq);
        if was_lost {
            self.lost.clear(seq);
            self.lost_count -= 1;
            env.cc.on_send(&fresh.flight(env.paths));
        } else if self.is_in_flight(seq) {
            env.cc.on_move(&before.flight(env.paths), &fresh.flight(env.paths));
        }
        if !kind.repeats() {
            // This is the oldest gap, so it serves as the TLP that may be due.
            self.probe_pending = false;
            return;
        }
        self.newest_rtx = (self.orders, self.next);
        if seq >= self.una {
            let cause = if was_lost { before.cause } else { RtxReason::Tlp };
            let copy = |record: &Record| Transmission {
                sent_at: record.sent_at,
                order: record.order,
                ev: record.ev,
                ev_bits: Ev(env.paths.ev(EvId(record.ev)).0 & self.setup.ev_mask),
            };
            self.rtx_history.note(seq, copy(before), copy(fresh), cause);
        }
    }

    /// Takes back the last transmission of `seq`, which never left because a queue of this host was full. The state
    /// before it is restored, but a first transmission keeps its number and waits with the lost packets. It counts as
    /// a loss neither for its path nor for congestion control, because the network was not involved.
    #[cold]
    pub(crate) fn unsent(&mut self, seq: u64, kind: SendKind, env: &mut SendContext<'_>) {
        let record = self.records.get(seq);
        let flight = record.flight(env.paths);
        let mut held_window = true;
        if kind.repeats() {
            // `None`: too many retransmissions followed, so this one is forgotten. It then counts as sent and lost.
            let undone = self.rtx_history.undo(seq, record.order);
            if let Some((before, cause)) = undone {
                let Transmission { sent_at, order, ev, .. } = before;
                let retries = record.retries.saturating_sub(1);
                if kind == SendKind::Probe && cause == RtxReason::Tlp && self.is_in_flight(seq) {
                    let earlier = Record { sent_at, ev, ..record };
                    env.cc.on_move(&flight, &earlier.flight(env.paths));
                }
                *self.records.get_mut(seq) = Record { sent_at, order, ev, retries, cause, ..record };
            }
            held_window =
                kind == SendKind::Retransmit || undone.is_some_and(|(_, cause)| cause != RtxReason::Tlp);
            if kind == SendKind::Probe {
                self.probe_pending = true;
                self.tail_probes = self.tail_probes.wrapping_sub(1);
            }
        } else {
            self.records.get_mut(seq).cause = RtxReason::TxRejected;
        }
        if held_window && !self.lost.test(seq) {
            env.cc.on_discard(&flight);
            self.lost.set(seq);
            self.lost_count += 1;
        }
    }
}
