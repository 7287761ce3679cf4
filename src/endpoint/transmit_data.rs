//! Data packets on their way out: what runs for every one of them.

use core::hint::cold_path;

use crate::counters::Counters;
use crate::memory::MemoryView;
use crate::path::Picked;
use crate::requester::{Env, Leaving, Requester, SendKind};
use crate::time::Time;
use crate::wire::{Bth, ICRC_LEN, Qpn, StackTemplate, Tseth, WriteHead, dscp};

use super::config::EndpointConfig;
use super::cwnd::SharedCwnds;
use super::qp::{Qp, QpCounters};
use super::senders::List;
use super::transmit::{ECT0, Origin, PortRoom, Transmit, Turn, template};
use super::{Endpoint, QpState};

impl Endpoint {
    /// Fills frames with packets of the queue pair in `slot`, as many as it has and may send in this turn. What is not
    /// the first transmission of a packet, or comes to nothing, is out of line, so that the values of the common case
    /// stay in registers.
    #[inline(never)]
    pub(super) fn transmit_run(
        &mut self,
        list: List,
        now: Time,
        slot: u32,
        room: &mut PortRoom,
        frames: &mut [Transmit],
    ) -> Turn {
        let Some(qp) = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            cold_path();
            return Turn::Idle;
        };
        if qp.state != QpState::Rts {
            cold_path();
            return Turn::Idle;
        }
        if qp.burst != self.burst {
            qp.burst = self.burst;
            begin_burst(qp, &self.cwnds, self.burst_hint, self.same_path_batch);
        }
        if qp.requester.has_repairs() {
            let Some(out) = frames.first_mut() else { return Turn::Idle };
            return self.transmit_repair(list, now, slot, room, out);
        }
        let Some(peer) = self.peers.get(qp.peer as usize).and_then(Option::as_ref) else {
            cold_path();
            return Turn::Idle;
        };
        let cc = qp.cwnd.get_mut(&mut self.cwnds);
        // The first packet in flight starts timers, which may be earlier than what is armed.
        let starts_timers = !qp.requester.outstanding();
        let place = &mut qp.places[list as usize];
        let turn_left = self.cfg.quantum.saturating_sub(place.turn).max(1);
        let (mut sent, mut bytes) = (0, 0);
        let mut stop = Stop::Idle;
        for out in frames.iter_mut().take(turn_left as usize) {
            if !qp.requester.may_send_new(cc) {
                stop = Stop::Held;
                break;
            }
            let Some(path) = qp.paths.pick_path(room.free(), None) else {
                stop = Stop::WithoutPath;
                break;
            };
            let Some(template) = peer.templates.get(usize::from(path.plane)) else { break };
            let ticket = self.next_ticket + u64::from(sent);
            let Some(packet) = qp.requester.send_new(now, path.id, ticket, cc) else { break };
            let to = To { qpn: qp.dest_qpn, trimmable: qp.trimmable, path, template };
            write_packet(out, now, &to, &packet, &self.cfg, &self.memory);
            out.ticket = ticket;
            out.origin = Origin::Data { slot, seq: packet.seq, kind: SendKind::New };
            bytes += u64::from(packet.spec.len);
            sent += 1;
            room.take(path.plane);
        }
        if sent == 0 {
            cold_path();
            return match stop {
                Stop::Held => self.pass(list, slot),
                Stop::WithoutPath => without_path(qp),
                Stop::Idle => Turn::Idle,
            };
        }
        self.next_ticket += u64::from(sent);
        count(SendKind::New, sent, bytes, &mut qp.counters, &mut self.counters);
        place.turn += sent;
        if place.turn >= self.cfg.quantum || starts_timers || qp.armed_at == Time::NEVER {
            self.end_turn(list, slot, starts_timers);
        }
        Turn::Sent(sent as usize)
    }

    /// The same where something is to be sent again. It goes first, but may have to wait for congestion control, or
    /// come to nothing.
    #[cold]
    fn transmit_repair(
        &mut self,
        list: List,
        now: Time,
        slot: u32,
        room: &mut PortRoom,
        out: &mut Transmit,
    ) -> Turn {
        let Some(qp) = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return Turn::Idle;
        };
        let Some((seq, kind)) = qp.requester.next_send(qp.cwnd.get(&self.cwnds)) else {
            return self.pass(list, slot);
        };
        let avoid = qp.requester.last_ev(seq, kind);
        let Some(path) = qp.paths.pick_path(room.free(), avoid) else { return without_path(qp) };
        let Some(template) = template(&self.peers, qp.peer, path.plane) else { return Turn::Idle };
        let to = To { qpn: qp.dest_qpn, trimmable: qp.trimmable, path, template };
        let ticket = self.next_ticket;
        let sent = if kind == SendKind::New {
            qp.requester.send_new(now, path.id, ticket, qp.cwnd.get_mut(&mut self.cwnds))
        } else {
            let cc = qp.cwnd.get_mut(&mut self.cwnds);
            let mut env = Env { paths: &mut qp.paths, cc, counters: &mut self.counters };
            qp.requester.send_again(now, (seq, kind), path.id, ticket, &mut env)
        };
        let Some(packet) = sent else { return Turn::Idle };
        write_packet(out, now, &to, &packet, &self.cfg, &self.memory);
        out.ticket = ticket;
        out.origin = Origin::Data { slot, seq, kind };
        count(kind, 1, packet.spec.len.into(), &mut qp.counters, &mut self.counters);
        self.next_ticket = ticket + 1;
        room.take(path.plane);
        qp.places[list as usize].turn += 1;
        self.end_turn(list, slot, true);
        Turn::Sent(1)
    }

    /// The queue pair has sent a packet: arm its timers, if asked to or if none is armed, and let the next one go first
    /// when its quantum is used up.
    #[cold]
    fn end_turn(&mut self, list: List, slot: u32, mut arms: bool) {
        let quantum = self.cfg.quantum;
        let Some(qp) = self.qp_mut(slot) else { return };
        arms |= qp.armed_at == Time::NEVER;
        let place = &mut qp.places[list as usize];
        if place.turn >= quantum {
            place.turn = 0;
            self.senders.rotate(list);
        }
        if arms {
            self.arm(slot);
        }
    }
}

/// As many entropy values as fill a batch each, on ports that gain from that.
#[inline(never)]
fn begin_burst(qp: &mut Qp, cwnds: &SharedCwnds, most: usize, same_path_batch: usize) {
    let packets = qp.requester.sendable(qp.cwnd.get(cwnds)).min(most);
    qp.paths.begin_burst(packets.div_ceil(same_path_batch));
}

/// Counts packets that leave with `bytes` of payload in all.
#[inline]
fn count(kind: SendKind, packets: u32, bytes: u64, of_pair: &mut QpCounters, counters: &mut Counters) {
    let packets = u64::from(packets);
    of_pair.tx_packets += packets;
    of_pair.tx_bytes += bytes;
    of_pair.tx_repeats += if kind.repeats() { packets } else { 0 };
    counters.tx_data += packets;
    counters.tx_data_bytes += bytes;
}

/// Why no more packets of a queue pair leave.
enum Stop {
    /// The window is full, or nothing is left to send.
    Held,
    WithoutPath,
    Idle,
}

/// Without a usable plane it would wait for ever; a path that returns lists it again.
#[cold]
fn without_path(qp: &Qp) -> Turn {
    if qp.paths.usable_planes().0 == 0 { Turn::Idle } else { Turn::Blocked }
}

/// Where a packet goes, and how.
struct To<'a> {
    qpn: Qpn,
    trimmable: bool,
    path: Picked,
    template: &'a StackTemplate,
}

/// Writes a packet that leaves.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
fn write_packet(
    out: &mut Transmit,
    now: Time,
    to: &To<'_>,
    packet: &Leaving<'_>,
    cfg: &EndpointConfig,
    memory: &MemoryView,
) {
    let spec = &packet.spec;
    let mut bth = Bth::new(spec.opcode(), to.qpn, packet.psn);
    bth.ack_req = packet.ack_req;
    bth.rtx = packet.kind.repeats();
    bth.ts = true;
    let mrc_len = spec.head_len();
    let class = data_class(&cfg.dscp, to.trimmable, packet.kind);
    let entropy = cfg.entropy.place(to.path.ev);
    let stack_len = to.template.write(&mut out.head, entropy, class, mrc_len + spec.len as usize + ICRC_LEN);
    // Made here, since what waits in registers for the stack to be written would go through memory.
    let head = WriteHead {
        bth,
        meth: spec.meth(),
        tseth: Some(Tseth::new(Requester::timestamp(now))),
        reth: spec.reth(),
        imm: spec.imm(),
    };
    head.encode(&mut out.head[stack_len..]);
    out.port = to.path.plane;
    out.l3_at = to.template.l3_at() as u8;
    out.udp_payload_at = stack_len as u8;
    out.head_len = (stack_len + mrc_len) as u8;
    match spec.payload() {
        Some(payload) => out.payload = payload,
        None => out.gather(memory, *spec),
    }
}

const fn data_class(map: &dscp::DscpMap, trimmable: bool, kind: SendKind) -> u8 {
    let class = match (trimmable, kind) {
        (false, _) => map.no_trim,
        (true, SendKind::New | SendKind::Resend) => map.trimmable,
        (true, SendKind::Retransmit | SendKind::Probe) => map.trimmable_retx,
    };
    dscp::traffic_class(class, ECT0)
}
