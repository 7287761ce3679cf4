//! Sending: which queue pair has its turn, what it sends, and on which path.
//!
//! Answers and probes go before data, but behind the data of short messages. The path is chosen at the last moment, among the ports that
//! have room, so a full port never holds back a packet that another could take.

use std::collections::BTreeSet;

use crate::memory::{MemoryView, Payload, PayloadRef};
use crate::path::PlaneSet;
use crate::requester::{PacketSpec, Requester, SendKind};
use crate::responder::{NackOut, SackOut, WindowBudget};
use crate::time::Time;
use crate::wire::stack::STACK_LEN_MAX;
use crate::wire::{
    Aeth, Bth, CcState, Entropy, ICRC_LEN, Mark, NackReason, Neth, Opcode, Packet, Peth, Psn, Qpn, Seth,
    StackTemplate, dscp,
};

use super::qp::Qp;
use super::senders::{List, Place};
use super::transmit_data::uncount;
use super::{CqId, Endpoint};

/// A packet to send: headers, and where its payload lies.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The port, that is the plane, to send it on.
    pub port: u8,
    /// Bytes of `head` in use.
    pub head_len: u8,
    /// Offset in `head` of the IP header next to UDP, where what the iCRC covers starts: 14 without an outer packet.
    pub l3_at: u8,
    /// Offset in `head` of the first byte behind the UDP header.
    pub udp_payload_at: u8,
    /// Ethernet, IP, UDP and MRC headers.
    pub head: [u8; Self::HEAD_ROOM],
    /// Where the payload is, and its length; read it with [`Endpoint::payload`].
    pub payload: PayloadRef,
    /// Data packets are numbered as they leave: see [`Endpoint::release_before`].
    pub ticket: u64,
    /// What to take back if it does not leave.
    pub(super) origin: Origin,
    /// The payload, if it was copied together from several places; otherwise of no meaning.
    gathered: Vec<u8>,
}

/// Which state a packet was made from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// None that cannot be found in its headers.
    Control,
    /// Data packet `seq` of the queue pair in `slot`.
    Data { slot: u32, seq: u64, kind: SendKind },
}

impl Transmit {
    /// Bytes for all headers: those of the longest route, with an outer packet around IPv6 and a routing header of
    /// four segments, and the longest MRC headers.
    pub const HEAD_ROOM: usize = STACK_LEN_MAX + Packet::MAX_HEAD_LEN;

    /// The headers.
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    #[inline]
    pub(super) fn gathered(&self) -> Payload<'_> {
        self.gathered.get(..self.payload.len as usize).unwrap_or_default().into()
    }

    /// Makes room for payloads of up to `bytes` that are copied together, so that no packet needs an allocation.
    pub(crate) fn reserve_gathered(&mut self, bytes: usize) {
        self.gathered.reserve(bytes.saturating_sub(self.gathered.len()));
    }

    /// Refers to the packet's bytes if they lie in one place, or copies them together. A virtual region gives zeros.
    #[cold]
    pub(super) fn gather(&mut self, memory: &MemoryView, spec: PacketSpec<'_>) {
        self.gathered.clear();
        for part in spec.parts() {
            if part.len == spec.len {
                self.payload = part;
                return;
            }
            memory.bytes(&part).append_to(&mut self.gathered, usize::MAX);
        }
        self.payload = PayloadRef::gathered(spec.len);
    }

    /// The headers from the IP header next to UDP on, which the iCRC covers.
    #[inline]
    pub fn l3(&self) -> &[u8] {
        self.head().get(usize::from(self.l3_at)..).unwrap_or_default()
    }
}

impl Default for Transmit {
    fn default() -> Self {
        Self {
            port: 0,
            head_len: 0,
            l3_at: 0,
            udp_payload_at: 0,
            head: [0; Self::HEAD_ROOM],
            payload: PayloadRef::EMPTY,
            ticket: 0,
            origin: Origin::Control,
            gathered: Vec::new(),
        }
    }
}

/// ECN codepoint of data: ECN-capable transport (0), so that switches may mark it (RFC 3168).
pub(super) const ECT0: u8 = 0b10;
/// ECN codepoint of everything else.
const NOT_ECT: u8 = 0;

/// What came of asking a queue pair for a packet.
pub(super) enum Turn {
    Sent,
    /// No port that it could use has room.
    Blocked,
    /// It has nothing to send now.
    Idle,
}

impl Endpoint {
    /// Begins a burst of at most `packets` transmits. Optional: it lets ports that batch by entropy
    /// value find several packets of one.
    pub fn begin_burst(&mut self, packets: usize) {
        self.burst += 1;
        self.burst_hint = packets;
    }

    /// Queue pairs without room that are passed over in one call, in each of the two lists. The
    /// next call goes on behind them.
    const MAX_BLOCKED: usize = 64;

    /// Fills `out` with the next packet whose port is in `free`; `false` when there is none now.
    pub fn transmit(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        if free.0 == 0 {
            return false;
        }
        if self.given_back.is_empty() && self.ops.is_empty() && self.control_list.is_empty() {
            self.transmit_from_senders(now, free, out)
        } else {
            self.transmit_control_first(now, free, out)
        }
    }

    /// Whether answers or probes wait to be sent.
    pub fn owes_answers(&self) -> bool {
        !self.control_list.is_empty()
    }

    /// Data packets that may go ahead of answers.
    pub const AHEAD: usize = 4;

    /// Whether the next packet is data of a short message that should go ahead of the answers that are owed: an
    /// application waits for it, and answers may take a driver longer to send than the message. A driver asks before it
    /// sends anything else, lets at most [`AHEAD`](Self::AHEAD) packets go in this way
    /// ([`transmit_ahead`](Self::transmit_ahead)), and sends them before it asks for more.
    pub fn goes_ahead(&self) -> bool {
        if self.control_list.is_empty() || !self.given_back.is_empty() || !self.senders.no_repairs() {
            return false;
        }
        // Whoever has sent its last packet is still there, and leaves when the next one is asked for.
        let in_turn = self.senders.in_turn(List::New).take(Self::AHEAD).filter_map(|slot| self.qp(slot));
        let mut left = in_turn.map(|qp| qp.requester.sendable(qp.cwnd.get(&self.cwnds)));
        left.find(|&left| left > 0).is_some_and(|left| left <= Self::AHEAD)
    }

    /// As [`transmit`](Self::transmit), for data that [goes ahead](Self::goes_ahead).
    pub fn transmit_ahead(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        free.0 != 0 && self.goes_ahead() && self.transmit_from_senders(now, free, out)
    }

    #[inline(never)]
    fn transmit_control_first(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        (!self.given_back.is_empty() && self.transmit_given_back(free, out))
            || (!self.ops.is_empty() && self.transmit_op(free, out))
            || self.transmit_from_control_list(now, free, out)
            || self.transmit_from_senders(now, free, out)
    }

    /// Data: from the one list that is in use where nothing is lost, or from two.
    #[inline(never)]
    fn transmit_from_senders(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        if !self.senders.no_repairs() {
            return self.transmit_from_lists(now, free, out);
        }
        let Some(slot) = self.senders.front(List::New) else { return false };
        match self.transmit_data(List::New, now, slot, free, out) {
            Turn::Sent => true,
            turn => self.transmit_behind(List::New, turn, now, free, out),
        }
    }

    #[cold]
    fn transmit_from_lists(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let first = self.first_list();
        let mut list = first;
        while !self.transmit_from_list(list, now, free, out) {
            if list == List::New && self.senders.no_repairs() {
                return false;
            }
            let Some(other) = self.senders.after(first, list) else { return false };
            list = other;
        }
        true
    }

    /// Answers, probes and endpoint packets given back that are kept; more are dropped and counted.
    pub(super) const MAX_GIVEN_BACK: usize = 256;

    /// Takes back a packet of the burst under way that did not leave, because a queue of this host was full, and what was counted for it: see
    /// [`Port::unsent`](spindrift_pmd::Port::unsent). It goes out again when a port has room. Nobody is
    /// blamed: the network had no part in it.
    #[cold]
    pub fn unsent(&mut self, packet: &Transmit) {
        self.counters.tx_unsent += 1;
        match packet.origin {
            Origin::Control if self.given_back.len() < Self::MAX_GIVEN_BACK => {
                self.given_back.push_back(packet.clone());
            }
            Origin::Control => self.counters.tx_unsent_dropped += 1,
            Origin::Data { slot, seq, kind } => {
                let mut qp = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut);
                let of_pair = qp.as_mut().map(|qp| &mut qp.counters);
                uncount(kind, packet.payload.len, of_pair, &mut self.counters);
                if let Some(qp) = qp.filter(|qp| qp.state == super::QpState::Rts) {
                    let (requester, mut env) = qp.requester_env(&mut self.cwnds, &mut self.counters);
                    requester.unsent(seq, kind, &mut env);
                    self.go_on(slot);
                }
            }
        }
    }

    /// A packet without payload is sent again as it was: what it says was true when it was written, as if it had
    /// waited in the port.
    #[cold]
    fn transmit_given_back(&mut self, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(at) = self.given_back.iter().position(|packet| free.contains(packet.port)) else {
            return false;
        };
        let Some(packet) = self.given_back.remove(at) else { return false };
        *out = packet;
        true
    }

    fn transmit_from_control_list(&mut self, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let mut blocked = 0;
        while let Some(&slot) = self.control_list.front() {
            match self.transmit_control(now, slot, free, out) {
                Turn::Sent => return true,
                Turn::Blocked => {
                    blocked += 1;
                    self.control_list.rotate_left(1);
                    if blocked >= self.control_list.len().min(Self::MAX_BLOCKED) {
                        break;
                    }
                }
                Turn::Idle => {
                    self.control_list.pop_front();
                    if let Some(qp) = self.qp_mut(slot) {
                        qp.in_control_list = false;
                    }
                    self.arm(slot);
                }
            }
        }
        false
    }

    /// Where the next packet comes from, when some queue pairs may have repairs.
    fn first_list(&mut self) -> List {
        while let Some(slot) = self.senders.front(List::Repairs) {
            if self.qp(slot).is_some_and(|qp| qp.requester.has_repairs()) {
                break;
            }
            self.leave_list(List::Repairs);
        }
        self.senders.first(self.cfg.quantum)
    }

    /// The one at the front of the list leaves it.
    fn leave_list(&mut self, list: List) {
        let Some(slot) = self.senders.pop(list) else { return };
        if let Some(qp) = self.qps[slot as usize].as_deref_mut() {
            let waits = list == List::New && qp.waits_for_cwnd;
            qp.places[list as usize] = Place { listed: waits, ..Place::default() };
            // It may leave room in a window that others wait for.
            qp.cwnd.stir(&mut self.cwnds);
        }
        self.wake_waiting();
    }

    /// A packet of the queue pair whose turn it is, or of one that follows if it has none now.
    fn transmit_from_list(&mut self, list: List, now: Time, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(slot) = self.senders.front(list) else { return false };
        let turn = self.transmit_any(list, now, slot, free, out);
        self.transmit_behind(list, turn, now, free, out)
    }

    /// [`transmit_data`](Self::transmit_data), out of line.
    #[inline(never)]
    fn transmit_any(&mut self, list: List, now: Time, slot: u32, free: PlaneSet, out: &mut Transmit) -> Turn {
        self.transmit_data(list, now, slot, free, out)
    }

    /// Goes through the list until a packet leaves; `turn` is what came of the queue pair at its front.
    #[cold]
    fn transmit_behind(
        &mut self,
        list: List,
        mut turn: Turn,
        now: Time,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> bool {
        let mut blocked = 0;
        loop {
            match turn {
                Turn::Sent => return true,
                Turn::Blocked => {
                    // Another queue pair may have other planes; this one keeps its turn for later.
                    blocked += 1;
                    self.senders.rotate(list);
                    if blocked >= self.senders.len(list).min(Self::MAX_BLOCKED) {
                        return false;
                    }
                }
                Turn::Idle => self.leave_list(list),
            }
            let Some(slot) = self.senders.front(list) else { return false };
            turn = self.transmit_any(list, now, slot, free, out);
        }
    }

    fn transmit_op(&mut self, free: PlaneSet, out: &mut Transmit) -> bool {
        let Some(op) = self.ops.pop(free.0) else { return false };
        let class = if op.control_class { self.cfg.dscp.control } else { self.cfg.dscp.no_trim };
        let traffic_class = dscp::traffic_class(class, NOT_ECT);
        let route = Route { plane: op.plane, template: &op.template, entropy: op.entropy, traffic_class };
        write_control(out, &route, &op.packet);
        true
    }

    fn transmit_control(&mut self, now: Time, slot: u32, free: PlaneSet, out: &mut Transmit) -> Turn {
        let Some(qp) = self.qps[slot as usize].as_deref_mut() else { return Turn::Idle };
        if let Some(turn) = Self::transmit_probe(now, qp, (&self.peers, &mut self.ops), &self.cfg, free, out)
        {
            self.counters.tx_probes += 1;
            return turn;
        }
        if !qp.responder.owes() {
            qp.paths.end_answers();
            let probe_waits = qp.state == super::QpState::Rts && qp.paths.probe_is_due(now);
            if qp.counters.rx_bytes.wrapping_sub(qp.refreshed_bytes) >= Self::REFRESH_BYTES {
                self.refresh_reverse_paths(now, slot);
            }
            return if probe_waits { Turn::Blocked } else { Turn::Idle };
        }
        let Some((ev, plane)) = qp.paths.pick_reverse(free, qp.responder.owes_ack()) else {
            // Without an open plane it would wait for ever; a port that returns lists it again.
            return if qp.paths.open_planes().0 == 0 { Turn::Idle } else { Turn::Blocked };
        };
        let backlog = self.events.len() > Self::EVENT_ROOM;
        let mut shared = Shared { budget: &mut self.windows, crowded: &self.crowded_cqs, backlog };
        let Some(packet) = next_answer(qp, &mut self.counters, &mut shared) else { return Turn::Idle };
        let Some(template) = template(&self.peers, qp.peer, plane) else { return Turn::Idle };
        let entropy = self.cfg.entropy.place(ev);
        let traffic_class = dscp::traffic_class(self.cfg.dscp.control, NOT_ECT);
        write_control(out, &Route { plane, template, entropy, traffic_class }, &packet);
        Turn::Sent
    }

    /// A reliability probe of an entropy value assumed bad, if one is due and its plane has room
    /// (MRC 1.0 section 7.4.6). It travels in the data class, on the path that it tests.
    fn transmit_probe(
        now: Time,
        qp: &mut Qp,
        (peers, ops): (&[Option<super::peer::Peer>], &mut super::ops::Ops),
        cfg: &super::EndpointConfig,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Option<Turn> {
        if qp.state != super::QpState::Rts {
            return None;
        }
        let probe = qp.paths.poll_probe(now, free, qp.requester.late_after_ns(), || ops.draw())?;
        let plane = qp.paths.plane(probe.ev);
        let template = template(peers, qp.peer, plane)?;
        let peth = Peth {
            probe_id: probe.id,
            spdcid: qp.qpn.low16(),
            dpdcid: qp.dest_qpn.low16(),
            tx_timestamp: Requester::timestamp(now),
            ..Peth::default()
        };
        let packet = Packet::Probe { bth: Bth::new(Opcode::Probe, qp.dest_qpn, Psn::new(0)), peth };
        let entropy = cfg.entropy.place(qp.paths.ev(probe.ev));
        let traffic_class = dscp::traffic_class(cfg.dscp.no_trim, ECT0);
        write_control(out, &Route { plane, template, entropy, traffic_class }, &packet);
        Some(Turn::Sent)
    }
}

#[inline]
pub(super) fn template(peers: &[Option<super::peer::Peer>], peer: u32, plane: u8) -> Option<&StackTemplate> {
    peers.get(peer as usize)?.as_ref()?.templates.get(usize::from(plane))
}

/// Which way a packet without payload takes.
struct Route<'a> {
    plane: u8,
    template: &'a StackTemplate,
    entropy: Entropy,
    traffic_class: u8,
}

/// Writes a packet without payload.
fn write_control(out: &mut Transmit, route: &Route<'_>, packet: &Packet<'_>) {
    let stack_len = route.template.header_len();
    let mrc_len = packet.encode_head(&mut out.head[stack_len..]);
    route.template.write(&mut out.head, route.entropy, route.traffic_class, mrc_len + ICRC_LEN);
    out.port = route.plane;
    out.l3_at = route.template.l3_at() as u8;
    out.udp_payload_at = stack_len as u8;
    out.head_len = (stack_len + mrc_len) as u8;
    out.payload = PayloadRef::EMPTY;
    out.origin = Origin::Control;
}

/// What a window depends on beside its own queue pair.
struct Shared<'a> {
    budget: &'a mut WindowBudget,
    crowded: &'a BTreeSet<CqId>,
    /// The driver leaves events untaken.
    backlog: bool,
}

/// The next answer that a queue pair owes. The ACK comes behind the SACK, which is longer: ports that batch frames of
/// one path send both at once, since only the last frame of a batch may be shorter. Whoever reads them has both anyway.
fn next_answer(
    qp: &mut Qp,
    counters: &mut crate::counters::Counters,
    shared: &mut Shared<'_>,
) -> Option<Packet<'static>> {
    let dest = qp.dest_qpn;
    if let Some(nack) = qp.responder.take_nack() {
        counters.tx_nacks += 1;
        return Some(nack_packet(qp.qpn, dest, &nack));
    }
    if let Some(sack) = qp.responder.take_sack() {
        counters.tx_sacks += 1;
        let told = qp.responder.take_counts();
        counters.tx_sacks_dropped += told.triggers_dropped;
        counters.rx_out_of_order += told.out_of_order;
        let behind = || shared.backlog || shared.crowded.contains(&qp.recv_cq);
        let mpr = qp.responder.grant(shared.budget, behind);
        return Some(sack_packet(qp.qpn, dest, &sack, mpr));
    }
    if let Some((psn, msn)) = qp.responder.take_ack() {
        counters.tx_acks += 1;
        return Some(Packet::Ack { bth: Bth::new(Opcode::Ack, dest, psn), aeth: Aeth::ack(msn) });
    }
    let (culprit, msn) = qp.responder.take_nak()?;
    counters.tx_naks += 1;
    let bth = Bth::new(Opcode::Ack, dest, culprit.psn);
    Some(Packet::Ack { bth, aeth: Aeth::nak(culprit.violation.code(), msn) })
}

fn nack_packet(qpn: Qpn, dest: Qpn, nack: &NackOut) -> Packet<'static> {
    let neth = Neth {
        spdcid: qpn.low16(),
        dpdcid: dest.low16(),
        tx_timestamp: nack.timestamp,
        ..Neth::new(NackReason::from(nack.reason), nack.psn, nack.ev)
    };
    Packet::Nack { bth: Bth::new(Opcode::Nack, dest, nack.psn), neth }
}

/// A SACK on the wire (MRC 1.0 tables 7-12 to 7-15).
fn sack_packet(qpn: Qpn, dest: Qpn, sack: &SackOut, mpr: u8) -> Packet<'static> {
    let trigger = &sack.trigger;
    let seth = Seth {
        mark: if trigger.marked { Mark::SkipOnce } else { Mark::None },
        pr: trigger.probe_id.is_some(),
        ack_psn_offset: match trigger.probe_id {
            Some(id) => id as i16,
            None => ack_offset(trigger.psn, sack.cack),
        },
        entropy: trigger.ev,
        spdcid: qpn.low16(),
        dpdcid: dest.low16(),
        cack: sack.cack,
        mpr,
        sack_offset: sack.sack_offset,
        bitmap: sack.bitmap,
        cc: CcState {
            tx_timestamp: trigger.timestamp,
            ooo_count: sack.out_of_order,
            rcvd_bytes: sack.rcvd_bytes,
            ..CcState::default()
        },
        ..Seth::default()
    };
    let mut bth = Bth::new(Opcode::Sack, dest, sack.cack);
    bth.rtx = trigger.repeated && trigger.probe_id.is_none();
    Packet::Sack { bth, seth }
}

/// The trigger relative to the cumulative acknowledgement; an old one too far back to express is
/// given as the oldest that can be.
fn ack_offset(psn: Psn, cack: Psn) -> i16 {
    psn.distance(cack).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}
