//! Fault injection on top of any port: what a bad network would do, decided by a seed and the driver's clock.
//!
//! A [`FaultPort`] wraps a port and treats each frame by the rules of a [`FaultPlan`]. Two runs with the
//! same seed, plan, frames and times are the same. Only frames that are changed, held or doubled are copied.
//!
//! # The text of a plan
//!
//! ```text
//! plan   = rule { ";" rule }            all rules are applied in order, until one loses the frame
//! rule   = piece { "," piece }          at least one action; all selectors must match
//!
//! actions                               selectors
//!   loss=CHANCE                           port=N            plane number
//!   dup=CHANCE (or duplicate)             ev=NUMBER         up to 0xffff: UDP source port; larger: source
//!   reorder=CHANCE:TIME                                     port << 16 | low 16 bits of the flow label
//!   corrupt=CHANCE                        opcode=A|B..      0xca, or write, send, send-invalidate,
//!   delay=TIME[:JITTER]                                     read-request, read-response, atomic,
//!   ecn=CHANCE                                              atomic-response, ack, sack, nack, probe,
//!   trim=CHANCE[:BYTES[:DSCP]]                              endpoint-request, endpoint-response
//!   full=CHANCE                           from=TIME         since the first call that the port saw
//!   blackhole                             until=TIME
//!   down                                  dir=tx|rx         default tx
//!                                         (down takes port, from and until only)
//!                                         after=COUNT       of the frames that the rule selects
//!
//! CHANCE = "1%" or "0.01"      TIME = "100ns", "50us", "2ms", "1.5s"      NUMBER = "49152" or "0xc000"
//! ```
//!
//! - `reorder` holds a frame back for the time given, so that later ones overtake it; `delay` makes every
//!   frame late by the time and, evenly spread, up to JITTER more.
//! - `full` is this host's own queue being full: the frame is given back ([`Port::unsent`]) and the network never sees
//!   it.
//! - `corrupt` flips one to four bits after the Ethernet header; below kernel sockets, which write their own
//!   headers, after the UDP header.
//! - `ecn` sets CE, whether the frame was ECN-capable or not; [`FaultStats::ecn_not_capable`] counts the latter,
//!   which a real switch would not have marked.
//! - `trim` cuts frames longer than BYTES (default 128, Ethernet header included) and sets the DSCP (default
//!   12). IP length and IPv4 checksum are rewritten, the UDP length is not, as trimming switches do.
//! - `blackhole` loses frames silently; `down` also reports [`LinkState::Down`], for both directions.
//!
//! ```
//! use spindrift_pmd::{fault::{FaultPlan, FaultPort}, loopback};
//!
//! let plan: FaultPlan = "loss=1%,reorder=2%:50us; blackhole,port=1,from=1s,until=2s".parse()?;
//! let (left, _right) = loopback::pair(2, loopback::LoopbackConfig::default());
//! let seed = 7;
//! let faulty: Vec<_> =
//!     left.into_iter().enumerate().map(|(plane, port)| FaultPort::new(Box::new(port), plane, plan.clone(), seed)).collect();
//! # drop(faulty);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod held;
mod judge;
mod plan;
mod stats;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use crate::forward_to_inner;
use crate::{ETHERNET_LEN, LinkState, Port, RxFrame, RxOrigin, Tail, TxFrame, frame};
use held::HeldFrames;
use judge::{Inside, Verdict, apply};
pub use plan::{Chance, Direction, FaultPlan, FaultPlanError, FaultRule, Trim};
pub use stats::FaultStats;
use stats::count;

/// Frames that one port can hold back in each direction; more are lost and counted.
pub const HELD_MAX: usize = 4096;

/// Frames given back of one burst before the list has to grow.
const UNSENT_ROOM: usize = 256;

/// A port with faults. The counters are those of the port below: what the faults did is in [`FaultStats`].
pub struct FaultPort<P: Port + ?Sized> {
    faults: Faults,
    inner: Box<P>,
    /// Frames of the last burst that were given back.
    unsent: Vec<u16>,
}

/// Everything but the port below, so that both can be used at once.
struct Faults {
    plane: usize,
    plan: FaultPlan,
    rng: Xoshiro256PlusPlus,
    /// Frames that each rule has selected and let pass.
    passed: Vec<u64>,
    stats: Arc<FaultStats>,
    /// The first time seen.
    epoch_ns: Option<u64>,
    now_ns: u64,
    /// Rules look into frames at all.
    looks_inside: bool,
    /// Below are kernel sockets.
    kernel: bool,
    tx_held: HeldFrames<TxShape>,
    rx_held: HeldFrames<RxOrigin>,
    scratch: Vec<u8>,
}

/// Where the pieces of a copied frame lie.
#[derive(Clone, Copy)]
struct TxShape {
    head_len: usize,
    udp_payload_at: usize,
}

impl TxShape {
    fn frame<'a>(&self, bytes: &'a [u8]) -> TxFrame<'a> {
        let (head, payload) = bytes.split_at(self.head_len.min(bytes.len()));
        TxFrame {
            head,
            udp_payload_at: self.udp_payload_at,
            payload: payload.into(),
            tail: Tail::Bytes(&[]),
            ticket: 0,
        }
    }
}

impl<P: Port + ?Sized> FaultPort<P> {
    /// Wraps `inner`, which is plane number `plane`. Planes with the same seed draw different numbers.
    pub fn new(inner: Box<P>, plane: usize, plan: FaultPlan, seed: u64) -> Self {
        let mixed = seed ^ (plane as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let faults = Faults {
            plane,
            looks_inside: plan.rules.iter().any(FaultRule::looks_inside),
            passed: vec![0; plan.rules.len()],
            plan,
            rng: Xoshiro256PlusPlus::seed_from_u64(mixed),
            stats: Arc::default(),
            epoch_ns: None,
            now_ns: 0,
            kernel: inner.caps().source_ports.is_some(),
            tx_held: HeldFrames::new(HELD_MAX),
            rx_held: HeldFrames::new(HELD_MAX),
            scratch: Vec::new(),
        };
        Self { faults, inner, unsent: Vec::with_capacity(UNSENT_ROOM) }
    }

    /// What the faults did; stays valid when the port has gone into a lane.
    pub fn stats(&self) -> Arc<FaultStats> {
        Arc::clone(&self.faults.stats)
    }

    /// Sends held frames whose time has come, as far as there is room.
    fn release(&mut self) {
        let now_ns = self.faults.now_ns;
        while self.faults.tx_held.next_due_ns().is_some_and(|due| due <= now_ns) {
            if self.inner.tx_room(now_ns) == 0 {
                return;
            }
            let Some(held) = self.faults.tx_held.pop() else { return };
            if self.faults.is_down() {
                count(&self.faults.stats.down);
            } else {
                self.forward_held(&[held.shape.frame(&held.bytes)]);
            }
            self.faults.tx_held.recycle(held);
        }
    }

    /// Sends frames that the caller takes for sent: what the port below gives back is lost.
    fn forward_held(&mut self, frames: &[TxFrame<'_>]) {
        let lost = match self.inner.tx_burst(self.faults.now_ns, frames) {
            taken if taken < frames.len() => frames.len(),
            _ => self.inner.unsent().len(),
        };
        self.faults.stats.overflow.fetch_add(lost as u64, Ordering::Relaxed);
    }

    /// Sends frames of the caller's burst, the first of which is number `first`.
    fn forward(&mut self, mut frames: &[TxFrame<'_>], mut first: usize) {
        while !frames.is_empty() {
            let taken = self.inner.tx_burst(self.faults.now_ns, frames).min(frames.len());
            self.unsent.extend(self.inner.unsent().iter().map(|&i| i + first as u16));
            if taken == 0 {
                self.unsent.extend((first..first + frames.len()).map(|i| i as u16));
                return;
            }
            frames = &frames[taken..];
            first += taken;
        }
    }

    fn send_treated(&mut self, number: usize, frame: &TxFrame<'_>, verdict: &Verdict) {
        if verdict.unsent {
            self.unsent.push(number as u16);
        }
        if verdict.lost || verdict.unsent {
            return;
        }
        let shape = TxShape { head_len: frame.head.len(), udp_payload_at: frame.udp_payload_at };
        let mut bytes = std::mem::take(&mut self.faults.scratch);
        bytes.clear();
        bytes.extend_from_slice(frame.head);
        frame.payload.append_to(&mut bytes, usize::MAX);
        bytes.extend_from_slice(frame.tail(&mut [0; 4]));
        self.faults.change_tx(&mut bytes, shape, verdict);
        if verdict.duplicate {
            self.faults.hold_tx(&bytes, shape, verdict.delay_ns);
        }
        if verdict.delay_ns > 0 {
            self.faults.hold_tx(&bytes, shape, verdict.delay_ns);
        } else {
            self.forward(&[shape.frame(&bytes)], number);
        }
        self.faults.scratch = bytes;
    }
}

impl Faults {
    fn at(&mut self, now_ns: u64) {
        self.epoch_ns.get_or_insert(now_ns);
        self.now_ns = now_ns;
    }

    fn elapsed_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.epoch_ns.unwrap_or(self.now_ns))
    }

    fn is_down(&self) -> bool {
        let elapsed = self.elapsed_ns();
        self.plan.rules.iter().any(|rule| rule.down && rule.selects_port(self.plane, elapsed))
    }

    /// Next time at which a link goes down or up by a rule.
    fn next_edge_ns(&self) -> Option<u64> {
        let epoch = self.epoch_ns?;
        let mine = self.plan.rules.iter().filter(|r| r.down && r.port.is_none_or(|p| p == self.plane));
        let edges = mine.flat_map(|r| [r.from_ns, r.until_ns]).filter(|&ns| ns != u64::MAX);
        edges.map(|ns| epoch.saturating_add(ns)).filter(|&ns| ns > self.now_ns).min()
    }

    fn judge(&mut self, direction: Direction, inside: impl FnOnce() -> Option<Inside>) -> Verdict {
        let mut verdict = Verdict::default();
        if self.is_down() {
            count(&self.stats.down);
            verdict.lost = true;
            return verdict;
        }
        let elapsed = self.elapsed_ns();
        let inside = if self.looks_inside { inside() } else { None };
        for (rule, passed) in self.plan.rules.iter().zip(&mut self.passed) {
            let selected = rule.direction == direction
                && rule.selects_port(self.plane, elapsed)
                && (!rule.looks_inside() || inside.is_some_and(|inside| inside.matches(rule)));
            if selected && *passed < rule.after {
                *passed += 1;
            } else if selected && apply(rule, &mut self.rng, &self.stats, &mut verdict) {
                break;
            }
        }
        verdict
    }

    fn change_tx(&mut self, bytes: &mut Vec<u8>, shape: TxShape, verdict: &Verdict) {
        let class = frame::traffic_class(bytes);
        if verdict.ecn {
            self.count_ecn(class.unwrap_or(0));
            frame::set_traffic_class(bytes, class.unwrap_or(0) | 3);
        }
        if let Some(trim) = verdict.trim.filter(|trim| trim.bytes.max(shape.udp_payload_at) < bytes.len()) {
            count(&self.stats.trimmed);
            bytes.truncate(trim.bytes.max(shape.udp_payload_at));
            let ecn = frame::traffic_class(bytes).unwrap_or(0) & 3;
            frame::set_traffic_class(bytes, trim.dscp << 2 | ecn);
            frame::set_ip_len(bytes);
        }
        if verdict.corrupt {
            let from = if self.kernel { shape.udp_payload_at } else { ETHERNET_LEN };
            self.flip_bits(bytes, from);
        }
    }

    fn change_rx(&mut self, bytes: &mut Vec<u8>, origin: &mut RxOrigin, verdict: &Verdict) {
        let RxOrigin::Udp(meta) = origin else {
            let at = frame::parse(bytes).map_or(ETHERNET_LEN, |(_, at)| at);
            return self.change_tx(bytes, TxShape { head_len: at, udp_payload_at: at }, verdict);
        };
        if verdict.ecn {
            self.count_ecn(meta.traffic_class);
            meta.traffic_class |= 3;
        }
        let headers = if meta.dst.is_ipv4() { 42 } else { 62 };
        if let Some(trim) = verdict.trim.filter(|trim| trim.bytes.saturating_sub(headers) < bytes.len()) {
            count(&self.stats.trimmed);
            bytes.truncate(trim.bytes.saturating_sub(headers));
            meta.traffic_class = trim.dscp << 2 | meta.traffic_class & 3;
        }
        if verdict.corrupt {
            self.flip_bits(bytes, 0);
        }
    }

    fn count_ecn(&self, class: u8) {
        count(&self.stats.ecn_marked);
        if class.trailing_zeros() >= 2 {
            count(&self.stats.ecn_not_capable);
        }
    }

    /// Flips one to four different bits from byte `from` on.
    fn flip_bits(&mut self, bytes: &mut [u8], from: usize) {
        let Some(bytes) = bytes.get_mut(from..).filter(|b| !b.is_empty()) else { return };
        let wanted = 1 + self.rng.next_u64() % 4;
        let mut flipped = [None; 4];
        for slot in flipped.iter_mut().take(wanted as usize) {
            *slot = Some(self.rng.next_u64() % (bytes.len() as u64 * 8));
        }
        for (i, bit) in flipped.iter().enumerate() {
            // A bit drawn twice stays flipped.
            if let Some(bit) = bit.filter(|_| !flipped[..i].contains(bit)) {
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
        count(&self.stats.corrupted);
    }

    fn hold_tx(&mut self, bytes: &[u8], shape: TxShape, delay_ns: u64) {
        if !self.tx_held.push(self.now_ns.saturating_add(delay_ns), bytes, shape) {
            count(&self.stats.overflow);
        }
    }

    fn hold_rx(&mut self, bytes: &[u8], origin: RxOrigin, delay_ns: u64) {
        if !self.rx_held.push(self.now_ns.saturating_add(delay_ns), bytes, origin) {
            count(&self.stats.overflow);
        }
    }

    /// Treats a received frame; returns whether it was shown.
    fn receive(&mut self, frame: &RxFrame<'_>, sink: &mut dyn FnMut(&RxFrame<'_>)) -> bool {
        let verdict = self.judge(Direction::Rx, || Inside::of_rx(frame));
        if verdict.passes() {
            sink(frame);
            return true;
        }
        if verdict.lost {
            return false;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        frame.append_to(&mut bytes);
        let mut origin = frame.origin;
        self.change_rx(&mut bytes, &mut origin, &verdict);
        if verdict.duplicate {
            self.hold_rx(&bytes, origin, verdict.delay_ns);
        }
        let shown = verdict.delay_ns == 0;
        if shown {
            sink(&RxFrame::whole(origin, &bytes));
        } else {
            self.hold_rx(&bytes, origin, verdict.delay_ns);
        }
        self.scratch = bytes;
        shown
    }

    /// Shows held frames whose time has come.
    fn show_held(&mut self, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let mut shown = 0;
        while shown < max && self.rx_held.next_due_ns().is_some_and(|due| due <= self.now_ns) {
            let Some(held) = self.rx_held.pop() else { break };
            if self.is_down() {
                count(&self.stats.down);
            } else {
                sink(&RxFrame::whole(held.shape, &held.bytes));
                shown += 1;
            }
            self.rx_held.recycle(held);
        }
        shown
    }
}

impl<P: Port + ?Sized> Port for FaultPort<P> {
    forward_to_inner!(caps, reap, recall, readable, counters);

    fn link(&mut self) -> LinkState {
        if self.faults.is_down() { LinkState::Down } else { self.inner.link() }
    }

    fn tx_room(&mut self, now_ns: u64) -> usize {
        self.faults.at(now_ns);
        self.release();
        self.inner.tx_room(now_ns)
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        self.faults.at(now_ns);
        self.unsent.clear();
        self.release();
        // Only as many as the port below surely takes, so that no frame is judged twice.
        let taken = frames.len().min(self.inner.tx_room(now_ns));
        let mut run = 0;
        for (i, frame) in frames[..taken].iter().enumerate() {
            let verdict = self.faults.judge(Direction::Tx, || Inside::of_tx(frame));
            if !verdict.passes() {
                self.forward(&frames[run..i], run);
                run = i + 1;
                self.send_treated(i, frame, &verdict);
            }
        }
        self.forward(&frames[run..taken], run);
        // Doubles are due at once.
        self.release();
        taken
    }

    fn unsent(&self) -> &[u16] {
        &self.unsent
    }

    fn flush(&mut self, now_ns: u64) {
        self.faults.at(now_ns);
        self.release();
        self.inner.flush(now_ns);
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        self.faults.at(now_ns);
        self.release();
        let mut shown = self.faults.show_held(max, sink);
        let faults = &mut self.faults;
        let rest = max - shown;
        self.inner.rx_burst(now_ns, rest, &mut |frame| {
            shown += usize::from(faults.receive(frame, sink));
        });
        shown
    }

    fn next_event_ns(&self) -> Option<u64> {
        let faults = &self.faults;
        let own = [faults.tx_held.next_due_ns(), faults.rx_held.next_due_ns(), faults.next_edge_ns()];
        own.into_iter().flatten().chain(self.inner.next_event_ns()).min()
    }
}
