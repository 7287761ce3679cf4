//! Data packets on their way out: what runs for every one of them.

use core::hint::cold_path;

use crate::counters::Counters;
use crate::memory::MemoryView;
use crate::path::{EvId, Picked, PlaneSet};
use crate::requester::{Env, Leaving, Requester, SendKind};
use crate::time::Time;
use crate::wire::{Bth, ICRC_LEN, Qpn, StackTemplate, Tseth, WriteHead, dscp};

use super::config::EndpointConfig;
use super::cwnd::SharedCwnds;
use super::qp::{Qp, QpCounters};
use super::senders::List;
use super::transmit::{ECT0, Origin, Transmit, Turn, template};
use super::{Endpoint, QpState};

impl Endpoint {
    /// The next packet of the queue pair in `slot`. What is not the first transmission of a packet, or comes to nothing,
    /// is out of line, so that the values of the common case stay in registers.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(super) fn transmit_data(
        &mut self,
        list: List,
        now: Time,
        slot: u32,
        free: PlaneSet,
        out: &mut Transmit,
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
            return self.transmit_repair(list, now, slot, free, out);
        }
        let cc = qp.cwnd.get_mut(&mut self.cwnds);
        let open = qp.requester.open_planes(cc, now);
        if !qp.requester.new_packet_fits() || open.0 & qp.paths.usable_planes().0 == 0 {
            return self.held_back(list, now, slot);
        }
        let Some(path) = qp.paths.pick_path(PlaneSet(free.0 & open.0), None) else { return without_path(qp) };
        let Some(template) = template(&self.peers, qp.peer, path.plane) else {
            cold_path();
            return Turn::Idle;
        };
        let ticket = self.next_ticket;
        let Some(packet) = qp.requester.send_new(now, (path.id, path.plane), ticket, cc) else {
            cold_path();
            return Turn::Idle;
        };
        let to = To { qpn: qp.dest_qpn, trimmable: qp.trimmable, path, template };
        write_packet(out, now, &to, &packet, &self.cfg, &self.memory);
        out.ticket = ticket;
        let seq = packet.seq;
        out.origin = Origin::Data { slot, seq, kind: SendKind::New };
        count(SendKind::New, packet.spec.len, &mut qp.counters, &mut self.counters);
        self.next_ticket = ticket + 1;
        let place = &mut qp.places[list as usize];
        place.turn += 1;
        let starts_timers = qp.requester.starts_timers(seq, now, qp.armed_at);
        if place.turn >= self.cfg.quantum || starts_timers || qp.armed_at == Time::NEVER {
            self.end_turn(list, slot, starts_timers);
        }
        Turn::Sent
    }

    /// The same where something is to be sent again. It goes first, but may have to wait for congestion control, or
    /// come to nothing.
    #[cold]
    fn transmit_repair(
        &mut self,
        list: List,
        now: Time,
        slot: u32,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Turn {
        let Some(qp) = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return Turn::Idle;
        };
        let open = qp.requester.open_planes(qp.cwnd.get(&self.cwnds), now);
        let usable = qp.paths.usable_planes();
        let is_open = open.0 & usable.0 != 0;
        let opens = !is_open && qp.cwnd.get(&self.cwnds).opens_at(now) != Time::NEVER;
        let Some((seq, kind)) = qp.requester.next_send(is_open, opens) else {
            return self.held_back(list, now, slot);
        };
        let open = if kind == SendKind::Probe { PlaneSet(u32::MAX) } else { open };
        let Some(path) = path_of_repair(qp, seq, kind, free, open) else { return without_path(qp) };
        let Some(template) = template(&self.peers, qp.peer, path.plane) else { return Turn::Idle };
        let to = To { qpn: qp.dest_qpn, trimmable: qp.trimmable, path, template };
        let ticket = self.next_ticket;
        let sent = if kind == SendKind::New {
            qp.requester.send_new_for_probe(
                now,
                (path.id, path.plane),
                ticket,
                qp.cwnd.get_mut(&mut self.cwnds),
            )
        } else {
            let cc = qp.cwnd.get_mut(&mut self.cwnds);
            let mut env = Env { paths: &mut qp.paths, cc, counters: &mut self.counters };
            qp.requester.send_again(now, (seq, kind), path.id, ticket, &mut env)
        };
        let Some(packet) = sent else { return Turn::Idle };
        write_packet(out, now, &to, &packet, &self.cfg, &self.memory);
        out.ticket = ticket;
        out.origin = Origin::Data { slot, seq, kind };
        count(kind, packet.spec.len, &mut qp.counters, &mut self.counters);
        self.next_ticket = ticket + 1;
        qp.places[list as usize].turn += 1;
        self.end_turn(list, slot, true);
        Turn::Sent
    }

    /// The queue pair in `slot` may not send now: it has nothing to send, no plane is usable, or congestion control does not
    /// let it, perhaps for a time that is known.
    #[cold]
    fn held_back(&mut self, list: List, now: Time, slot: u32) -> Turn {
        let Some(qp) = self.qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return Turn::Idle;
        };
        self.cwnds.now = now;
        if qp.requester.has_work() {
            if qp.paths.usable_planes().0 == 0 {
                return Turn::Idle;
            }
            qp.pace_at = qp.cwnd.get(&self.cwnds).opens_at(now);
            if qp.pace_at != Time::NEVER {
                self.arm(slot);
            }
        }
        self.pass(list, slot)
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

/// The path of what is sent again, or in the place of a tail probe.
/// Congestion control has `open` planes for it.
fn path_of_repair(qp: &mut Qp, seq: u64, kind: SendKind, free: PlaneSet, open: PlaneSet) -> Option<Picked> {
    let free = PlaneSet(free.0 & open.0);
    let asks = qp.requester.asks_first(kind);
    let Some(avoid) = qp.requester.last_ev(seq, kind) else {
        let oldest = qp.requester.in_flight(None).and_then(|(_, ev)| ev).filter(|_| asks);
        let proven = oldest.and_then(|avoid| pick_proven(qp, free, avoid));
        return proven.or_else(|| qp.paths.pick_path(free, None));
    };
    let bad = if qp.requester.tries_bad_path(kind) { qp.paths.pick_bad(free, avoid) } else { None };
    if bad.is_some() {
        return bad;
    }
    let avoid = qp.requester.last_probed(kind).unwrap_or(avoid);
    // A plane that may be dead keeps its window full.
    let waits = qp.requester.waits_for_another_plane()
        && qp.paths.others_if_any(open, avoid).0 & qp.paths.usable_planes().0 != 0;
    let free = if waits { qp.paths.others_if_any(free, avoid) } else { free };
    let proven = if asks { pick_proven(qp, free, avoid) } else { None };
    let picked = proven.or_else(|| qp.paths.pick_path(free, Some(avoid)));
    qp.requester.note_probed(kind, picked.map(|picked| picked.id));
    picked
}

fn pick_proven(qp: &mut Qp, free: PlaneSet, avoid: EvId) -> Option<Picked> {
    qp.paths.pick_proven(free, avoid, |id| qp.requester.newest_on(id))
}

/// Counts a packet that leaves with `len` bytes of payload.
#[inline]
fn count(kind: SendKind, len: u32, of_pair: &mut QpCounters, counters: &mut Counters) {
    of_pair.tx_packets += 1;
    of_pair.tx_bytes += u64::from(len);
    of_pair.tx_repeats += u64::from(kind.repeats());
    counters.tx_data += 1;
    counters.tx_data_bytes += u64::from(len);
}

/// Takes back what was counted for a packet that never left. The queue pair may be gone or reset by now.
#[cold]
pub(super) fn uncount(kind: SendKind, len: u32, of_pair: Option<&mut QpCounters>, counters: &mut Counters) {
    let less = |count: &mut u64, by: u64| *count = count.saturating_sub(by);
    if let Some(of_pair) = of_pair {
        less(&mut of_pair.tx_packets, 1);
        less(&mut of_pair.tx_bytes, len.into());
        less(&mut of_pair.tx_repeats, kind.repeats().into());
    }
    less(&mut counters.tx_data, 1);
    less(&mut counters.tx_data_bytes, len.into());
    less(&mut counters.tx_retransmits, (kind == SendKind::Retransmit).into());
    less(&mut counters.tx_tail_probes, (kind == SendKind::Probe).into());
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
