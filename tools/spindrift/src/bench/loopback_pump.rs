//! Reference rate of two cores of this machine that pass payloads without a protocol: the minimum that any transport over the
//! loopback port has to do, without a protocol.
//!
//! A producer computes the CRC of each payload and pushes its place into a ring; a consumer computes the CRC again, compares,
//! copies the payload to where it belongs, and gives the slot back. As in the loopback port, a payload shorter than
//! [`BY_REFERENCE`] is copied into the slot. Rings, slots, memory, cores and the kernels of CRC and copy are those of a run.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use crossbeam_utils::CachePadded;
use spindrift::memory::{Payload, Pieces, Region};
use spindrift_pmd::loopback::{BY_REFERENCE, LoopbackConfig};

use super::layout::Layout;
use super::pin::Cores;

/// Packets handed over together, and taken from one ring before the next.
const BURST: usize = 16;
/// This part of the time goes by before the rate is taken.
const WARM_UP: u32 = 5;
/// Turns of the consumer between two looks at the clock.
const CLOCK_TURNS: u32 = 32;

/// What is pumped, and between which cores.
#[derive(Clone, Copy)]
pub(crate) struct PumpPlan<'a> {
    pub(crate) layout: Layout,
    /// Payload bytes of a packet.
    pub(crate) mtu: u32,
    pub(crate) icrc: bool,
    /// Rings between the two cores of a lane.
    pub(crate) planes: usize,
    pub(crate) lanes: usize,
    /// The producers', then the consumers'.
    pub(crate) cores: &'a [Cores; 2],
}

impl PumpPlan<'_> {
    fn block(&self) -> usize {
        self.layout.size.min(self.mtu) as usize
    }

    fn copies(&self) -> bool {
        self.block() < BY_REFERENCE
    }

    /// What the two cores do, for people.
    pub(crate) fn steps(&self) -> &'static str {
        match (self.icrc, self.copies()) {
            (true, false) => "CRC, pointer | CRC + copy",
            (true, true) => "CRC + copy | CRC + copy",
            (false, false) => "pointer | copy",
            (false, true) => "copy | copy",
        }
    }
}

/// When a pump ends.
#[derive(Clone, Copy, Debug)]
enum End {
    After(Duration),
    /// After so many writes of each queue pair. For tests, which look at memory then.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    Writes(u64),
}

/// What was pumped.
#[derive(Clone, Copy, Debug, Default)]
struct Pumped {
    /// All payload bytes, those of the warm-up included.
    bytes: u64,
    gbps: f64,
}

/// Two cores for each lane, and memory to pump to.
pub(crate) struct TwoCores<'a> {
    plan: PumpPlan<'a>,
    source: Arc<Region>,
    target: Arc<Region>,
}

impl<'a> TwoCores<'a> {
    /// Pumps from `source`, which holds what `plan.layout` says.
    pub(crate) fn new(plan: PumpPlan<'a>, source: Arc<Region>) -> Result<Self> {
        let target = Region::alloc(plan.layout.memory())?;
        // Written to, so that no run meets memory that the system has yet to give.
        plan.layout.clear(&target, &mut || Ok(()))?;
        Ok(Self { plan, source, target })
    }

    pub(crate) fn steps(&self) -> &'static str {
        self.plan.steps()
    }

    /// Pumps for that long, and returns the rate in Gb/s, of all lanes together.
    pub(crate) fn run(&self, time: Duration) -> Result<f64> {
        Ok(self.pump(End::After(time))?.gbps)
    }

    fn pump(&self, end: End) -> Result<Pumped> {
        let lanes = self.plan.lanes;
        let start = Barrier::new(2 * lanes);
        let links: Vec<Link> =
            (0..lanes).map(|_| Link::new(self.plan.planes, self.plan.copies())).collect::<Result<_>>()?;
        let [producers, consumers] = self.plan.cores;
        thread::scope(|scope| {
            let threads = links.iter().enumerate().map(|(lane, link)| {
                let start = &start;
                let producer = scope.spawn(move || {
                    producers.pin(lane);
                    start.wait();
                    self.produce(lane, link, end)
                });
                let consumer = scope.spawn(move || {
                    consumers.pin(lane);
                    start.wait();
                    self.consume(link, end)
                });
                (producer, consumer)
            });
            let threads: Vec<_> = threads.collect();
            let mut all = Pumped::default();
            for (producer, consumer) in threads {
                let panicked = |_| anyhow!("a thread of the pump panicked");
                producer.join().map_err(panicked)??;
                let one = consumer.join().map_err(panicked)??;
                all.bytes += one.bytes;
                all.gbps += one.gbps;
            }
            Ok(all)
        })
    }

    /// Pushes the lane's share of the writes, cut to packets, until the end.
    fn produce(&self, lane: usize, link: &Link, end: End) -> Result<()> {
        let _closed = CloseOnDrop(&link.closed);
        let Layout { size, qps, .. } = self.plan.layout;
        let mine = (lane..qps).step_by(self.plan.lanes);
        let most = match end {
            End::After(_) if mine.len() > 0 => usize::MAX,
            End::After(_) => 0,
            End::Writes(each) => each as usize * mine.len(),
        };
        let (size, block) = (size as usize, self.plan.block());
        let mut sender = Sender::new(self, link);
        for (from, to) in self.plan.layout.in_turn(mine).take(most) {
            for at in (0..size).step_by(block) {
                if !sender.push(from + at, to + at, block.min(size - at))? {
                    return Ok(());
                }
            }
        }
        sender.publish();
        Ok(())
    }

    /// Takes all that comes, and asks the producer to end when the time is over.
    fn consume(&self, link: &Link, end: End) -> Result<Pumped> {
        let _stopped = CloseOnDrop(&link.stop);
        let [_, consumers] = self.plan.cores;
        let mut idle = consumers.idle();
        let mut window = Window::new(end);
        let mut bytes = 0;
        let mut heads = vec![0; link.rings.len()];
        loop {
            // Read first: what was pushed before is found below.
            let closed = link.closed.load(Ordering::Acquire);
            for _ in 0..CLOCK_TURNS {
                let before = bytes;
                for (ring, head) in link.rings.iter().zip(&mut heads) {
                    bytes += self.take(ring, head)?;
                }
                idle.after((bytes - before) as usize);
                if closed && bytes == before {
                    return Ok(Pumped { bytes, gbps: window.gbps(bytes) });
                }
            }
            if window.look(bytes) {
                link.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Takes up to a burst from a ring, and returns the payload bytes.
    fn take(&self, ring: &Ring, head: &mut usize) -> Result<u64> {
        // Acquire: pairs with `publish`.
        let tail = ring.tail.load(Ordering::Acquire);
        let count = tail.wrapping_sub(*head).min(BURST);
        if count == 0 {
            return Ok(0);
        }
        let mut room = [0; BY_REFERENCE];
        let mut bytes = 0;
        for index in *head..*head + count {
            let Some(slot) = ring.slot(index) else { bail!("no such slot") };
            let (from, to) = (slot.from.load(Ordering::Relaxed), slot.to.load(Ordering::Relaxed));
            let len = slot.len.load(Ordering::Relaxed) as usize;
            let payload = match &ring.copies {
                Some(copies) => {
                    let room = room.split_at_mut(len).0;
                    copies.read_at(from, room)?;
                    Payload::from(&*room)
                }
                None => self.source.payload(from, len)?,
            };
            let rest = [payload];
            let pieces = Pieces::new(&[], &rest);
            if self.plan.icrc && pieces.crc32(0) != slot.crc.load(Ordering::Relaxed) {
                bail!("the pump's payload at byte {to} of its target changed on its way");
            }
            self.target.place(self.target.iova() + to as u64, &pieces)?;
            bytes += len as u64;
        }
        *head += count;
        // Release: our reads are done before the producer sees the slots free.
        ring.head.store(*head, Ordering::Release);
        Ok(bytes)
    }
}

/// The time in which the rate is taken.
struct Window {
    start: Instant,
    end: End,
    /// When the warm-up was over, and the bytes until then.
    from: Option<(Instant, u64)>,
    gbps: Option<f64>,
}

impl Window {
    fn new(end: End) -> Self {
        Self { start: Instant::now(), end, from: None, gbps: None }
    }

    /// Whether the time is over, by which so many bytes were taken.
    fn look(&mut self, bytes: u64) -> bool {
        let End::After(time) = self.end else { return false };
        let now = Instant::now();
        let elapsed = now.duration_since(self.start);
        let (_, before) = *match &mut self.from {
            Some(from) => from,
            None if elapsed >= time / WARM_UP => self.from.insert((now, bytes)),
            None => return false,
        };
        // On a busy machine the producer may not have had its turn yet.
        if self.gbps.is_none() && elapsed >= time && bytes > before {
            self.gbps = Some(self.rate(now, bytes));
        }
        self.gbps.is_some()
    }

    fn rate(&self, now: Instant, bytes: u64) -> f64 {
        let (from, before) = self.from.unwrap_or((self.start, 0));
        (bytes - before) as f64 * 8.0 / now.duration_since(from).as_secs_f64().max(1e-9) / 1e9
    }

    /// In Gb/s; that of all bytes if the time was not over.
    fn gbps(&self, bytes: u64) -> f64 {
        self.gbps.unwrap_or_else(|| self.rate(Instant::now(), bytes))
    }
}

/// The rings between the two cores of a lane.
struct Link {
    rings: Vec<Ring>,
    /// The producer has pushed its last.
    closed: CachePadded<AtomicBool>,
    /// The consumer wants no more.
    stop: CachePadded<AtomicBool>,
}

impl Link {
    fn new(planes: usize, copies: bool) -> Result<Self> {
        let rings = (0..planes).map(|_| Ring::new(copies)).collect::<Result<_>>()?;
        Ok(Self { rings, closed: CachePadded::default(), stop: CachePadded::default() })
    }
}

/// One producer, one consumer: `tail` counts payloads published, `head` slots given back.
struct Ring {
    slots: Box<[Slot]>,
    /// Room for a short payload in each slot.
    copies: Option<Arc<Region>>,
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
}

/// Where a payload is, and where it belongs.
#[derive(Default)]
#[repr(align(32))]
struct Slot {
    from: AtomicUsize,
    to: AtomicUsize,
    len: AtomicU32,
    crc: AtomicU32,
}

impl Ring {
    fn new(copies: bool) -> Result<Self> {
        let slots = LoopbackConfig::default().slots.next_power_of_two();
        let copies = if copies { Some(Region::alloc(slots * BY_REFERENCE)?) } else { None };
        let slots = (0..slots).map(|_| Slot::default()).collect();
        Ok(Self { slots, copies, head: CachePadded::default(), tail: CachePadded::default() })
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index & (self.slots.len() - 1))
    }
}

/// The producer's end of all rings of a lane, which it fills in turn, a burst each.
struct Sender<'a> {
    pump: &'a TwoCores<'a>,
    link: &'a Link,
    /// Of each ring: payloads pushed, and the consumer's `head` as last seen.
    ends: Vec<(usize, usize)>,
    at: usize,
    in_burst: usize,
    idle: super::pin::Idle,
}

impl<'a> Sender<'a> {
    fn new(pump: &'a TwoCores<'a>, link: &'a Link) -> Self {
        let [producers, _] = pump.plan.cores;
        let ends = vec![(0, 0); link.rings.len()];
        Self { pump, link, ends, at: 0, in_burst: 0, idle: producers.idle() }
    }

    /// Waits for room and pushes a payload. False when the consumer wants no more.
    fn push(&mut self, from: usize, to: usize, len: usize) -> Result<bool> {
        let (Some(ring), Some((tail, seen))) = (self.link.rings.get(self.at), self.ends.get_mut(self.at))
        else {
            bail!("no such ring")
        };
        while tail.wrapping_sub(*seen) >= ring.slots.len() {
            // Acquire: the consumer's reads of the slots it gave back happened before.
            *seen = ring.head.load(Ordering::Acquire);
            if tail.wrapping_sub(*seen) < ring.slots.len() {
                self.idle.after(1);
                break;
            }
            ring.tail.store(*tail, Ordering::Release);
            if self.link.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.idle.after(0);
        }
        let PumpPlan { icrc, .. } = self.pump.plan;
        let Some(slot) = ring.slot(*tail) else { bail!("no such slot") };
        let mut place = from;
        let mut crc = 0;
        if let Some(copies) = &ring.copies {
            let mut room = [0; BY_REFERENCE];
            let room = room.split_at_mut(len).0;
            self.pump.source.read_at(from, room)?;
            if icrc {
                crc = Payload::from(&*room).crc32(0);
            }
            place = (*tail & (ring.slots.len() - 1)) * BY_REFERENCE;
            copies.write_at(place, room)?;
        } else if icrc {
            crc = self.pump.source.payload(from, len)?.crc32(0);
        }
        slot.from.store(place, Ordering::Relaxed);
        slot.to.store(to, Ordering::Relaxed);
        slot.len.store(len as u32, Ordering::Relaxed);
        slot.crc.store(crc, Ordering::Relaxed);
        *tail = tail.wrapping_add(1);
        self.in_burst += 1;
        if self.in_burst == BURST {
            self.publish();
            return Ok(!self.link.stop.load(Ordering::Relaxed));
        }
        Ok(true)
    }

    /// Shows the burst to the consumer and turns to the next ring.
    fn publish(&mut self) {
        if let (Some(ring), Some((tail, _))) = (self.link.rings.get(self.at), self.ends.get(self.at)) {
            // Release: the slots are written before the new tail is seen.
            ring.tail.store(*tail, Ordering::Release);
        }
        self.in_burst = 0;
        self.at = (self.at + 1) % self.ends.len().max(1);
    }
}

/// Tells the other end however this one is left.
struct CloseOnDrop<'a>(&'a AtomicBool);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Round trips of a cache line between two looks at the clock.
const ROUND_TRIPS: u64 = 16;
/// Fewest and most such groups; those between are taken in this time.
const GROUPS: [usize; 2] = [15, 255];
const LATENCY_TIME: Duration = Duration::from_millis(10);

/// The time in which a cache line gets from the first writer's core to its target's, in nanoseconds: half of a round trip, the
/// median of many.
pub(crate) fn core_latency_ns(cores: &[Cores; 2]) -> Result<f64> {
    let [there, back] = [const { CachePadded::new(AtomicU64::new(0)) }; 2];
    let over = AtomicBool::new(false);
    let [first, second] = cores;
    thread::scope(|scope| {
        scope.spawn(|| {
            second.pin(0);
            let (mut idle, mut seen) = (second.idle(), 0);
            while !over.load(Ordering::Relaxed) {
                let now = there.load(Ordering::Acquire);
                if now != seen {
                    back.store(now, Ordering::Release);
                }
                idle.after(usize::from(now != seen));
                seen = now;
            }
        });
        let leader = scope.spawn(|| {
            let _over = CloseOnDrop(&over);
            first.pin(0);
            let (mut idle, mut number) = (first.idle(), 0);
            let mut groups = Vec::new();
            let [fewest, most] = GROUPS;
            let start = Instant::now();
            while groups.len() < fewest || (groups.len() < most && start.elapsed() < LATENCY_TIME) {
                let since = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    number += 1;
                    there.store(number, Ordering::Release);
                    idle.after(1);
                    while back.load(Ordering::Acquire) != number {
                        idle.after(0);
                    }
                }
                groups.push(since.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64);
            }
            groups.sort_by(f64::total_cmp);
            groups.get(groups.len() / 2).copied().unwrap_or_default()
        });
        leader.join().map_err(|_| anyhow!("a thread of the latency measurement panicked"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::bench::contents::Contents;
    use crate::bench::layout::bytes_of;
    use crate::bench::mix::Mix;
    use crate::bench::operation::Operation;

    /// Every byte gets to its place, whatever the size, the number of rings and the lanes are.
    #[test]
    fn the_target_ends_up_as_the_writes_leave_it() {
        for (size, qps, lanes, planes, icrc) in [
            (65_536, 1, 1, 4, true),
            (10_000, 5, 2, 3, true),
            (100, 3, 1, 4, true),
            (511, 1, 1, 1, false),
            (512, 2, 2, 2, false),
            (2, 1, 1, 4, true),
        ] {
            let layout = Layout::new(size, qps, 16).unwrap();
            let pattern = layout.pattern(3);
            let source = Region::alloc(layout.memory()).unwrap();
            source.write_at(0, &pattern).unwrap();
            let cores = Cores::of_pair(lanes);
            let plan = PumpPlan { layout, mtu: 4096, icrc, planes, lanes, cores: &cores };
            let pump = TwoCores::new(plan, source).unwrap();
            let writes = 41;
            let pumped = pump.pump(End::Writes(writes)).unwrap();
            assert_eq!(pumped.bytes, size * writes * qps as u64, "size {size}");
            let contents = Contents { layout, operations: Mix::One(Operation::Write), seed: 3 };
            let (pattern, writes) = (bytes_of(&pattern), vec![writes; qps]);
            let found = contents.check_there(&pump.target, &pattern, &writes, None, &mut || Ok(()));
            assert_eq!(found.unwrap(), None, "size {size}");
        }
    }

    #[test]
    fn a_timed_pump_ends_and_lanes_without_queue_pairs_do_nothing() {
        let layout = Layout::new(4096, 1, 2).unwrap();
        let cores = Cores::of_pair(2);
        let plan = PumpPlan { layout, mtu: 4096, icrc: true, planes: 1, lanes: 2, cores: &cores };
        let pump = TwoCores::new(plan, Region::alloc(layout.memory()).unwrap()).unwrap();
        let pumped = pump.pump(End::After(Duration::from_millis(5))).unwrap();
        assert!(pumped.bytes > 0 && pumped.gbps.is_finite());
    }

    #[test]
    fn the_steps_follow_the_size_and_the_crc() {
        let cores = Cores::of_pair(1);
        let steps = |size, mtu, icrc| {
            let layout = Layout::new(size, 1, 2).unwrap();
            PumpPlan { layout, mtu, icrc, planes: 1, lanes: 1, cores: &cores }.steps()
        };
        assert_eq!(steps(512, 4096, true), "CRC, pointer | CRC + copy");
        assert_eq!(steps(511, 4096, true), "CRC + copy | CRC + copy");
        assert_eq!(steps(65_536, 256, false), "copy | copy");
        assert_eq!(steps(65_536, 4096, false), "pointer | copy");
    }

    #[test]
    fn a_cache_line_takes_some_time() {
        assert!(core_latency_ns(&Cores::of_pair(1)).unwrap() > 0.0);
    }
}
