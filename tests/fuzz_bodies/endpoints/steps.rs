//! What each instruction does.

use spindrift::endpoint::PostError;
use spindrift::work::SendOp;

use super::world::World;
use crate::support::frame::{self, Envelope};
use crate::support::ledger::{Receive, gather};
use crate::support::message::Message;
use crate::support::net::{Held, address};
use crate::support::rand::Rng;

/// Queue pairs of a world, at most.
const MAX_PAIRS: usize = 3;
/// Packets that wait in the network, at most; the oldest are lost.
const MAX_HELD: usize = 256;
/// Virtual time of a step, ns.
const STEP_NS: u64 = 500;

impl World {
    /// Carries out one instruction.
    pub(crate) fn step(&mut self, [op, a, b]: [u8; 3]) {
        match op % 32 {
            0..=3 if b & 0x60 == 0x60 => self.fetch(a, b),
            0..=3 => self.write(a, b, false),
            4..=5 => {
                if b & 0x70 != 0 {
                    self.receive(a);
                }
                self.write(a, b, true);
            }
            6 => (0..=b % 4).for_each(|_| self.receive(a)),
            7 if b % 4 == 0 => self.write_with_bad_key(a, b),
            7 | 8 => (0..=b >> 6).for_each(|_| self.write(a, b, false)),
            9 | 10 => self.net.run_for(1 << (a % 25)),
            11..=15 => self.deliver(usize::from(a % 16) + 1, u64::from(b) * 64),
            16 | 17 => self.deliver_one(a),
            18 => drop(self.take(a)),
            19 => (0..=b % 8).for_each(|_| drop(self.take(a))),
            20 => self.duplicate(a, b),
            21 => self.with_held(a, |bytes| _ = frame::mark_congested(bytes)),
            22 => self.with_held(a, |bytes| flip(bytes, a, b)),
            23 => self.trim(a, b),
            24 if self.setup.forges => self.forge_copy(a, b),
            25 | 26 => self.garbage(a, b),
            27 => self.link(a, b),
            28 => self.deny(a, b),
            29 if self.pairs.len() < MAX_PAIRS => self.add_pair([a, b]),
            30 if b % 4 == 0 => self.destroy(a),
            31 => self.deliver(MAX_HELD, 5_000),
            _ => self.deliver(4, 1_000),
        }
        self.net.run_for(STEP_NS);
        if let Some(held) = &mut self.net.held {
            held.drain(..held.len().saturating_sub(MAX_HELD));
        }
    }

    /// The pair and the end of it that an argument stands for.
    fn choose(&self, a: u8) -> (usize, usize) {
        (usize::from(a >> 1) % self.pairs.len(), usize::from(a & 1))
    }

    fn write(&mut self, a: u8, b: u8, with_imm: bool) {
        self.post(a, b, with_imm, 0);
    }

    fn write_with_bad_key(&mut self, a: u8, b: u8) {
        let (at, _) = self.choose(a);
        self.pairs[at].flawed = true;
        self.post(a, b, false, 1);
    }

    fn post(&mut self, a: u8, b: u8, with_imm: bool, key_change: u32) {
        let (at, from) = self.choose(a);
        let pair = &mut self.pairs[at];
        if pair.destroyed[from] {
            return;
        }
        let mtu = pair.setup.mtu as usize;
        let extended = pair.setup.extended;
        // Messages without bytes are an extension.
        let least = usize::from(!extended);
        let len = [least, 8, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 7, 0xa00][usize::from(b % 8)];
        let (ledger, cursor) = (&mut pair.ledgers[from], &mut pair.cursors[from]);
        let area = ledger.area();
        let start = if *cursor + len > area.end { area.start } else { *cursor };
        let target = start..start + len;
        let full = ledger.outstanding() >= pair.setup.depth as usize;
        let fence = extended && b & 0x60 == 0x20;
        if !ledger.is_free(&target, SendOp::Write, fence) || full && !ledger.failed {
            return;
        }
        *cursor = target.end;
        let signaled = b & 8 != 0;
        let source = self.rng.below((ledger.source_len() - len + 1) as u64) as usize;
        let number = ledger.tally.posted;
        let op = match (with_imm, extended && b & 0x80 != 0) {
            (false, false) => SendOp::Write,
            (true, false) => SendOp::WriteWithImm(number as u32),
            (false, true) => SendOp::Send,
            (true, true) => SendOp::SendWithImm(number as u32),
        };
        let mut message = Message { fence, ..Message::new(number, signaled, op, source, target) };
        if extended && op.takes_receive() {
            let mut apart = Rng::new(!number ^ u64::from(b));
            let sends = matches!(op, SendOp::Send | SendOp::SendWithImm(_));
            let place = message.target.clone();
            let elements = if sends { ledger.buffer(&mut message, place, &mut apart) } else { Vec::new() };
            pair.pending[from].push_back(Receive { wr_id: self.rng.bits(), elements });
        }
        let mut wr = ledger.post(message, signaled || pair.setup.sig_all);
        let mut apart = Rng::new(wr.local.addr ^ u64::from(b));
        let local = ledger.split(&wr.local, ledger.source(), pair.setup.mtu, &mut apart);
        wr.remote.rkey ^= key_change;
        pair.flawed |= ledger.lacks_receives() && !extended;
        let end = pair.ends[from];
        let now = self.net.now;
        let endpoint = self.net.endpoint(end.node);
        if b & 0x10 == 0 {
            endpoint.post_send(now, end.qpn, wr).expect("there is room");
        } else {
            endpoint.post_gather(now, end.qpn, gather(&wr, &local)).expect("there is room");
        }
        self.net.pump(end.node);
    }

    /// Posts a READ or an atomic operation, of bytes that the newest message uses if there is one.
    fn fetch(&mut self, a: u8, b: u8) {
        let (at, from) = self.choose(a);
        let pair = &mut self.pairs[at];
        if pair.destroyed[from] || !pair.setup.extended {
            return;
        }
        let mtu = pair.setup.mtu as usize;
        let is_atomic = b & 0x80 != 0;
        let len = if is_atomic { 8 } else { [0, 8, mtu, 2 * mtu + 1][usize::from(b % 4)] };
        let (ledger, cursor) = (&mut pair.ledgers[from], &mut pair.results_cursors[from]);
        let (area, places) = (ledger.area(), ledger.results_area());
        let start = ledger.newest_target().map_or(area.start, |target| target.start.next_multiple_of(8));
        let start = if start + len > area.end { area.start } else { start };
        let target = start..start + len;
        let compare = if b & 4 == 0 { ledger.number_at(&(start..start + 8)) } else { self.rng.bits() };
        let op = match (is_atomic, b & 1) {
            (false, _) => SendOp::Read,
            (true, 0) => SendOp::FetchAdd(self.rng.bits()),
            (true, _) => SendOp::CompareSwap { compare, swap: self.rng.bits() },
        };
        let place = if *cursor + len > places.end { places.start } else { *cursor };
        let place = place..place + len;
        let full = ledger.outstanding() >= pair.setup.depth as usize;
        let fence = b & 2 != 0;
        let fits = ledger.is_free(&target, op, fence) && ledger.has_place(&place);
        if !fits || full && !ledger.failed {
            return;
        }
        *cursor = place.end;
        let (number, signaled) = (ledger.tally.posted, b & 8 != 0);
        let mut message = Message { fence, ..Message::fetch(number, signaled, op, target, place) };
        let several = b & 0x10 != 0;
        let mut apart = Rng::new(!number ^ u64::from(b));
        let local = several.then(|| ledger.destination(&mut message, &mut apart));
        let wr = ledger.post(message, signaled || pair.setup.sig_all);
        let (end, now) = (pair.ends[from], self.net.now);
        let endpoint = self.net.endpoint(end.node);
        match local {
            None => endpoint.post_send(now, end.qpn, wr).expect("there is room"),
            Some(local) => endpoint.post_gather(now, end.qpn, gather(&wr, &local)).expect("there is room"),
        }
        self.net.pump(end.node);
    }

    /// Posts a receive work request for what this end writes.
    fn receive(&mut self, a: u8) {
        let (at, from) = self.choose(a);
        let pair = &mut self.pairs[at];
        if pair.destroyed[1 - from] {
            return;
        }
        let receive = match pair.pending[from].pop_front() {
            Some(receive) => receive,
            // The next message has its own.
            None if pair.setup.extended => return,
            None => Receive { wr_id: self.rng.bits(), elements: Vec::new() },
        };
        pair.ledgers[from].post_recv(receive.wr_id);
        let end = pair.ends[1 - from];
        receive.post(self.net.endpoint(end.node), end.qpn).expect("there is room");
        self.net.pump(end.node);
    }

    /// Posts what has not been posted.
    pub(crate) fn receive_all(&mut self) {
        for a in 0..2 * self.pairs.len() as u8 {
            let (at, from) = self.choose(a);
            for _ in 0..self.pairs[at].pending[from].len() {
                self.receive(a);
            }
        }
    }

    fn held(&mut self) -> &mut Vec<Held> {
        self.net.held.get_or_insert_default()
    }

    fn take(&mut self, a: u8) -> Option<Held> {
        let held = self.held();
        (!held.is_empty()).then(|| held.remove(usize::from(a) % held.len()))
    }

    fn with_held(&mut self, a: u8, act: impl FnOnce(&mut Vec<u8>)) {
        let held = self.held();
        let len = held.len().max(1);
        if let Some(held) = held.get_mut(usize::from(a) % len) {
            act(&mut held.bytes);
        }
    }

    fn hand_over(&mut self, held: &Held) {
        if self.net.is_up(held.node, held.port) {
            self.net.inject(held.node, held.port, &held.bytes);
        }
    }

    /// Delivers the oldest `count` packets, `gap_ns` apart.
    fn deliver(&mut self, count: usize, gap_ns: u64) {
        for _ in 0..count {
            let Some(held) = self.take(0) else { break };
            self.hand_over(&held);
            self.net.run_for(gap_ns);
        }
    }

    fn deliver_one(&mut self, a: u8) {
        if let Some(held) = self.take(a) {
            self.hand_over(&held);
        }
    }

    fn duplicate(&mut self, a: u8, b: u8) {
        let Some(held) = self.take(a) else { return };
        let copies = 1 + usize::from(b % 3);
        self.held().extend(vec![held.clone(); copies]);
        self.hand_over(&held);
    }

    fn trim(&mut self, a: u8, b: u8) {
        let dscp = self.net.nodes[0].endpoint.config().dscp;
        let to = if b.is_multiple_of(3) { dscp.trimmed_last_hop } else { dscp.trimmed };
        self.with_held(a, |bytes| {
            let class = frame::traffic_class(bytes) >> 2;
            if class == dscp.trimmable || class == dscp.trimmable_retx {
                frame::trim(bytes, to);
            }
        });
    }

    /// A copy of a packet with one byte changed and the iCRC made right again.
    fn forge_copy(&mut self, a: u8, b: u8) {
        let Some(mut held) = self.take(a) else { return };
        self.held().push(held.clone());
        if frame::is_whole(&held.bytes) {
            self.forge();
            // From the UDP payload on.
            let start = if self.setup.v6 { 62 } else { 42 };
            let at = start + usize::from(b) % (held.bytes.len() - start - 4);
            held.bytes[at] ^= 1 << (a % 8);
            frame::fix_icrc(&mut held.bytes);
            self.held().push(held);
        }
    }

    /// What no receiver may take: noise, packets of strangers, packets on the wrong port.
    fn garbage(&mut self, a: u8, b: u8) {
        let (node, port) = (usize::from(a & 1), (a >> 1) % self.setup.planes);
        let body = usize::from(b) % 120;
        let bytes = self.rng.bytes(body);
        match a >> 5 {
            0 => self.net.inject(node, port, &bytes),
            1 | 2 => {
                let stranger = Envelope::new(address(self.setup.v6, 17, 0), self.address(node, port));
                let frame = match self.take(b) {
                    Some(held) if frame::is_whole(&held.bytes) => {
                        let start = if self.setup.v6 { 62 } else { 42 };
                        stranger.wrap(&held.bytes[start..held.bytes.len() - 4])
                    }
                    _ => stranger.wrap(&bytes),
                };
                self.net.inject(node, port, &frame);
            }
            3 | 4 if self.setup.forges => {
                self.forge();
                let (at, _) = self.choose(b);
                let mut mrc = bytes;
                mrc.resize(body.max(20), 0);
                mrc[5..8].copy_from_slice(&self.pairs[at].ends[node].qpn.get().to_be_bytes()[1..]);
                let peer = Envelope::new(self.address(1 - node, port), self.address(node, port));
                self.net.inject(node, port, &peer.wrap(&mrc));
            }
            _ => {
                let Some(held) = self.take(b) else { return };
                let other = (held.port + 1) % self.setup.planes;
                if other != held.port {
                    self.hand_over(&Held { port: other, ..held });
                }
            }
        }
        self.net.astray.clear();
    }

    fn address(&self, node: usize, port: u8) -> std::net::IpAddr {
        address(self.setup.v6, node, port)
    }

    fn link(&mut self, a: u8, b: u8) {
        let (node, port) = (usize::from(a & 1), (a >> 1) % self.setup.planes);
        let up = if b.is_multiple_of(4) { self.net.is_up(node, port) } else { !self.net.is_up(node, port) };
        self.net.schedule_link(self.net.now, node, port, up);
    }

    fn deny(&mut self, a: u8, b: u8) {
        let (at, end) = self.choose(a);
        let (end, plane) = (self.pairs[at].ends[end], (b >> 2) % self.setup.planes);
        let endpoint = self.net.endpoint(end.node);
        let ev =
            endpoint.ev_states(end.qpn).into_iter().flatten().nth(usize::from(b >> 2)).map(|state| state.ev);
        match (b % 4, ev) {
            (0, _) => drop(endpoint.deny_plane(end.qpn, plane)),
            (1, _) => drop(endpoint.allow_plane(end.qpn, plane)),
            (2, Some(ev)) => drop(endpoint.deny_ev(end.qpn, ev, None)),
            (_, Some(ev)) => drop(endpoint.allow_ev(end.qpn, ev, None)),
            _ => {}
        }
        self.net.pump(end.node);
    }

    fn destroy(&mut self, a: u8) {
        let (at, end) = self.choose(a);
        let pair = &mut self.pairs[at];
        if !pair.destroyed[end] {
            self.net.endpoint(pair.ends[end].node).destroy_qp(pair.ends[end].qpn).unwrap();
            pair.destroyed[end] = true;
            pair.broken = true;
            pair.ledgers[end].forget_sends();
            pair.ledgers[1 - end].forget_receives();
        }
        let end = pair.ends[end];
        let gone = self.net.endpoint(end.node).post_recv(end.qpn, spindrift::work::RecvWr::empty(0));
        assert_eq!(gone, Err(PostError::NoSuchQp));
    }
}

/// Changes bits of one byte, which the iCRC finds wherever it covers them.
fn flip(bytes: &mut [u8], a: u8, b: u8) {
    let at = usize::from(a >> 4) << 8 | usize::from(b);
    let len = bytes.len();
    bytes[at % len] ^= 1 << (a % 8);
}
