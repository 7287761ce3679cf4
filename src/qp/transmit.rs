//! Sending data packets: the code that runs for every one of them.

use core::hint::cold_path;

use crate::config::EndpointConfig;
use crate::counters::Counters;
use crate::memory::{MemoryView, Payload, PayloadRef};
use crate::path::{PlaneSet, SelectedPath};
use crate::requester::{OutPacket, PacketSpec, SendContext, SendKind};
use crate::time::Time;
use crate::wire::stack::STACK_LEN_MAX;
use crate::wire::{Bth, DataHead, Entropy, ICRC_LEN, Packet, Qpn, StackTemplate, Tseth, dscp};

use super::cwnd::SharedCwnds;
use super::{Cx, Qp, QpCounters, QpState, TxClass, Wakes};

/// A packet to send: headers, and the location of its payload.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The port, that is the plane, to send it on.
    pub port: u8,
    /// Bytes of `head` in use.
    pub head_len: u8,
    /// Offset in `head` of the IP header next to UDP, where the coverage of the iCRC starts: 14 without an outer
    /// packet.
    pub l3_at: u8,
    /// Offset in `head` of the first byte after the UDP header.
    pub udp_payload_at: u8,
    /// Ethernet, IP, UDP and MRC headers.
    pub head: [u8; Self::HEAD_ROOM],
    /// Location and length of the payload; read it with [`Endpoint::payload`](crate::endpoint::Endpoint::payload).
    pub payload: PayloadRef,
    /// Data packets are numbered as they leave: see [`Endpoint::release_before`](crate::endpoint::Endpoint::release_before).
    pub ticket: u64,
    /// The state to restore if it does not leave.
    pub(crate) origin: TxOrigin,
    /// The payload, if it was gathered from several elements; otherwise meaningless.
    gathered: Vec<u8>,
}

/// The state that a packet was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxOrigin {
    /// No state beyond its headers.
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
    pub(crate) fn gathered(&self) -> Payload<'_> {
        self.gathered.get(..self.payload.len as usize).unwrap_or_default().into()
    }

    /// Reserves room for gathered payloads of up to `bytes`, so that no packet needs an allocation.
    pub(crate) fn reserve_gathered(&mut self, bytes: usize) {
        self.gathered.reserve(bytes.saturating_sub(self.gathered.len()));
    }

    /// Refers to the packet's bytes if they are contiguous, or gathers them. A virtual region gives zeros.
    #[cold]
    pub(crate) fn gather(&mut self, memory: &MemoryView, spec: PacketSpec<'_>) {
        self.gathered.clear();
        if let Some(value) = spec.value() {
            self.gathered.extend_from_slice(&value.to_be_bytes());
        }
        if let Some(copied) = spec.copied() {
            self.gathered.extend_from_slice(copied);
        }
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
            origin: TxOrigin::Control,
            gathered: Vec::new(),
        }
    }
}

/// ECN codepoint of data: ECN-capable transport (0), so that switches may mark it (RFC 3168).
pub(super) const ECT0: u8 = 0b10;
/// ECN codepoint of everything else.
pub(crate) const NOT_ECT: u8 = 0;

/// The result of requesting a packet from a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A packet is to be sent.
    Sent,
    /// A packet is to be sent; and the queue pair's timers are to be armed (if `arms`), or its quantum may be used up.
    SentLast { arms: bool },
    /// No port that it could use has room.
    Blocked,
    /// It has nothing to send now.
    Idle,
    /// It has nothing to send now, and its timers are to be armed: congestion control has set the time.
    Paced,
}

/// The burst of packets that a lane sends to its ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) number: u64,
    /// The most packets in the burst.
    pub(crate) packets: usize,
    /// Packets of one entropy value that are worth sending together, on any port.
    pub(crate) same_path_batch: usize,
}

impl Qp {
    /// The next data packet. Anything but a successful first transmission is not inlined, so that the values of the
    /// common case stay in registers.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(crate) fn transmit_data(
        &mut self,
        cx: &mut Cx,
        (class, now, free): (TxClass, Time, PlaneSet),
        burst: &Burst,
        out: &mut Transmit,
    ) -> Turn {
        if self.state != QpState::Rts {
            cold_path();
            return Turn::Idle;
        }
        if self.burst != burst.number {
            self.burst = burst.number;
            begin_burst(self, &cx.cwnds, burst);
        }
        if self.requester.has_retransmissions() {
            return self.retransmit(cx, class, now, free, out);
        }
        let cc = self.cwnd.get_mut(&mut cx.cwnds);
        let open = self.requester.open_planes(cc, now);
        if open.0 & self.paths.usable_planes().0 == 0
            || !(self.requester.new_packet_fits() || self.requester.promotes_response())
        {
            return self.held_back(cx, class, now);
        }
        let Some(path) = self.paths.pick_path(PlaneSet(free.0 & open.0), None) else {
            return without_path(self);
        };
        let Some(template) = cx.peers.template(self.peer, path.plane) else {
            cold_path();
            return Turn::Idle;
        };
        let ticket = cx.next_ticket;
        let Some(packet) = self.requester.send_new(now, (path.id, path.plane), ticket, cc) else {
            cold_path();
            return Turn::Idle;
        };
        let to = TxTarget { qpn: self.dest_qpn, trimmable: self.trimmable, path, template };
        write_packet(out, now, &to, &packet, &cx.cfg, &cx.memory);
        out.ticket = ticket;
        let seq = packet.seq;
        out.origin = TxOrigin::Data { slot: self.slot, seq, kind: SendKind::New };
        count(SendKind::New, packet.spec.len, &mut self.counters, &mut cx.counters);
        cx.next_ticket = ticket + 1;
        if packet.spec.ends_read_response() {
            cold_path();
            self.copy_response(cx, ticket);
        }
        let slot = &mut self.tx_slots[class as usize];
        slot.quantum_used += 1;
        let arms = self.requester.starts_timers(seq, now, self.armed_at);
        if slot.quantum_used >= cx.cfg.quantum || arms || self.armed_at == Time::NEVER {
            return Turn::SentLast { arms };
        }
        Turn::Sent
    }

    /// The same if there is something to retransmit. It goes first, but may have to wait for congestion control, or
    /// may turn out to be unnecessary.
    #[cold]
    fn retransmit(
        &mut self,
        cx: &mut Cx,
        class: TxClass,
        now: Time,
        free: PlaneSet,
        out: &mut Transmit,
    ) -> Turn {
        let open = self.requester.open_planes(self.cwnd.get(&cx.cwnds), now);
        let usable = self.paths.usable_planes();
        let is_open = open.0 & usable.0 != 0;
        let opens = !is_open && self.cwnd.get(&cx.cwnds).opens_at(now) != Time::NEVER;
        let Some((seq, kind)) = self.requester.next_send(is_open, opens) else {
            return self.held_back(cx, class, now);
        };
        // A closed window lets only a tail probe leave, be it a packet that never left.
        let is_probe = kind == SendKind::Probe || !is_open;
        let open = if is_probe { PlaneSet(u32::MAX) } else { open };
        let hint = self.requester.path_hint(seq, kind);
        let requester = &self.requester;
        let Some(path) = self.paths.select((free, open), &hint, |id| requester.newest_on(id)) else {
            return without_path(self);
        };
        if self.paths.is_in_use(path.id) {
            self.requester.note_probed(kind, path.id);
        }
        let Some(template) = cx.peers.template(self.peer, path.plane) else { return Turn::Idle };
        let to = TxTarget { qpn: self.dest_qpn, trimmable: self.trimmable, path, template };
        let ticket = cx.next_ticket;
        let cc = self.cwnd.get_mut(&mut cx.cwnds);
        let sent = if kind == SendKind::New {
            self.requester.send_new_for_probe(now, (path.id, path.plane), ticket, cc)
        } else {
            let mut env = SendContext { paths: &mut self.paths, cc, counters: &mut cx.counters };
            self.requester.send_again(now, (seq, kind), path.id, ticket, &mut env)
        };
        let Some(packet) = sent else { return Turn::Idle };
        write_packet(out, now, &to, &packet, &cx.cfg, &cx.memory);
        out.ticket = ticket;
        out.origin = TxOrigin::Data { slot: self.slot, seq, kind };
        count(kind, packet.spec.len, &mut self.counters, &mut cx.counters);
        cx.next_ticket = ticket + 1;
        if kind == SendKind::New && packet.spec.ends_read_response() {
            self.copy_response(cx, ticket);
        }
        self.tx_slots[class as usize].quantum_used += 1;
        Turn::SentLast { arms: true }
    }

    /// The last packet of the response to a READ leaves with this ticket. From here on, the READ may be complete, so the
    /// response no longer needs the memory of the application.
    #[inline(never)]
    fn copy_response(&mut self, cx: &mut Cx, ticket: u64) {
        if !cx.cfg.copy_responses {
            return;
        }
        let memory = &cx.memory;
        let pinned = self.requester.copy_response(|bytes| memory.bytes(bytes));
        cx.pinned_until.extend(pinned.map(|slot| (ticket + 1, slot)));
    }

    /// The queue pair may not send now: it has nothing to send, no plane is usable, or congestion control does not
    /// allow it, perhaps until a known time.
    #[cold]
    fn held_back(&mut self, cx: &mut Cx, class: TxClass, now: Time) -> Turn {
        cx.cwnds.now = now;
        let usable = self.paths.usable_planes().0;
        let open = self.requester.open_planes(self.cwnd.get(&cx.cwnds), now).0;
        // If the window has room, something else holds the packets back. A queue pair that waited for a shared window
        // would be listed again at once, for ever.
        if usable == 0 || open & usable != 0 || !self.requester.has_work() {
            return Turn::Idle;
        }
        self.pace_at = self.cwnd.get(&cx.cwnds).opens_at(now);
        self.park_on_shared_cwnd(cx, class);
        if self.pace_at == Time::NEVER { Turn::Idle } else { Turn::Paced }
    }

    /// Takes back a data packet that did not leave because a queue of this host was full, and what was counted for it.
    #[cold]
    pub(crate) fn unsent(&mut self, cx: &mut Cx, (seq, kind): (u64, SendKind), len: u32) -> Wakes {
        uncount(kind, len, Some(&mut self.counters), &mut cx.counters);
        if self.state != QpState::Rts {
            return Wakes::NONE;
        }
        let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
        requester.unsent(seq, kind, &mut env);
        Wakes::DATA | Wakes::CWND
    }
}

/// The number of entropy values that fill a batch each, on ports that gain from batches.
#[inline(never)]
fn begin_burst(qp: &mut Qp, cwnds: &SharedCwnds, burst: &Burst) {
    let packets = qp.requester.sendable(qp.cwnd.get(cwnds)).min(burst.packets);
    qp.paths.begin_burst(packets.div_ceil(burst.same_path_batch));
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

/// Takes back what was counted for a packet that did not leave. The queue pair may have been destroyed or reset.
#[cold]
pub(crate) fn uncount(kind: SendKind, len: u32, of_pair: Option<&mut QpCounters>, counters: &mut Counters) {
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

/// Without a usable plane it would block for ever; a path that comes up lists it again.
#[cold]
fn without_path(qp: &Qp) -> Turn {
    if qp.paths.usable_planes().0 == 0 { Turn::Idle } else { Turn::Blocked }
}

/// The destination of a packet and its path.
struct TxTarget<'a> {
    qpn: Qpn,
    trimmable: bool,
    path: SelectedPath,
    template: &'a StackTemplate,
}

/// Writes a data packet.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
fn write_packet(
    out: &mut Transmit,
    now: Time,
    to: &TxTarget<'_>,
    packet: &OutPacket<'_>,
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
    // Made here: values kept in registers while the stack is written would go through memory.
    let head = DataHead {
        bth,
        meth: spec.meth(),
        tseth: Some(Tseth::new(now.timestamp())),
        reth: spec.reth(),
        imm: None,
        operands: None,
    };
    if spec.has_tail() {
        encode_whole(head, spec, &mut out.head[stack_len..]);
    } else {
        head.encode_front(&mut out.head[stack_len..]);
    }
    out.port = to.path.plane;
    out.l3_at = to.template.l3_at() as u8;
    out.udp_payload_at = stack_len as u8;
    out.head_len = (stack_len + mrc_len) as u8;
    match spec.payload() {
        Some(payload) => out.payload = payload,
        None => out.gather(memory, *spec),
    }
}

/// The headers of a packet in which one follows the RETH.
#[inline(never)]
fn encode_whole(head: DataHead, spec: &PacketSpec<'_>, out: &mut [u8]) {
    DataHead { imm: spec.word(), operands: spec.operands(), ..head }.encode(out);
}

const fn data_class(map: &dscp::DscpMap, trimmable: bool, kind: SendKind) -> u8 {
    let class = match (trimmable, kind) {
        (false, _) => map.no_trim,
        (true, SendKind::New | SendKind::Resend) => map.trimmable,
        (true, SendKind::Retransmit | SendKind::Probe) => map.trimmable_retx,
    };
    dscp::traffic_class(class, ECT0)
}

/// The path of a packet without payload.
pub(crate) struct ControlPath<'a> {
    pub(crate) plane: u8,
    pub(crate) template: &'a StackTemplate,
    pub(crate) entropy: Entropy,
    pub(crate) traffic_class: u8,
}

/// Writes a packet without payload.
pub(crate) fn write_control(out: &mut Transmit, route: &ControlPath<'_>, packet: &Packet<'_>) {
    let stack_len = route.template.header_len();
    let mrc_len = packet.encode_head(&mut out.head[stack_len..]);
    route.template.write(&mut out.head, route.entropy, route.traffic_class, mrc_len + ICRC_LEN);
    out.port = route.plane;
    out.l3_at = route.template.l3_at() as u8;
    out.udp_payload_at = stack_len as u8;
    out.head_len = (stack_len + mrc_len) as u8;
    out.payload = PayloadRef::EMPTY;
    out.origin = TxOrigin::Control;
}
