//! The queue in front of a link: three classes, marks, trimming, and an end.

use std::collections::VecDeque;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;
use spindrift::wire::DscpMap;

use crate::packet::{PacketId, Pool};
use crate::pfc::{Class, Classes};

/// What a queue does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Bytes of data that may wait. What finds no room is trimmed or dropped.
    pub limit_bytes: u64,
    /// Bytes of control packets that may wait, and as many of trimmed ones. More are dropped. Control goes first; what it leaves of the link is
    /// for trimmed packets up to a half, where data waits too.
    pub control_limit_bytes: u64,
    /// When data is marked; never if `None`.
    pub ecn: Option<EcnSpec>,
    /// What is left of data that finds no room; `None` to drop all of it.
    pub trim: Option<TrimSpec>,
    /// The classes, by code point.
    pub dscp: DscpMap,
}

/// Data is marked as it leaves, by what waits behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcnSpec {
    /// Up to this many bytes, no packet is marked.
    pub low_bytes: u64,
    /// From this many on, each is; between the two, a share of them that grows evenly. A step where both are the same.
    pub high_bytes: u64,
    /// The share at `high_bytes`, in millionths: Pmax of RED and DCQCN. Above it, it is 1 all the same.
    pub most_ppm: u32,
}

/// A share of 1.
pub(crate) const WHOLE_PPM: u32 = 1_000_000;

/// How packets are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimSpec {
    /// Bytes of the frame that are left, beside an outer IPv6 header.
    pub keep_bytes: u32,
    /// The class of what is left.
    pub dscp: u8,
}

/// What became of a packet that came to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Queued,
    Trimmed,
    /// There was no room.
    Dropped,
}

/// What a queue has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets trimmed and kept.
    pub trimmed: u64,
    /// Data packets dropped for want of room.
    pub dropped_data: u64,
    /// Control packets and trimmed ones that were.
    pub dropped_control: u64,
    /// Packets marked.
    pub marked: u64,
    /// The most data that waited, in bytes.
    pub most_bytes: u64,
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<PacketId>,
    bytes: u64,
}

impl Lane {
    fn push(&mut self, id: PacketId, bytes: u64) {
        self.packets.push_back(id);
        self.bytes += bytes;
    }

    fn pop(&mut self, pool: &Pool) -> Option<PacketId> {
        let id = self.packets.pop_front()?;
        self.bytes -= u64::from(pool.get(id).wire_len());
        Some(id)
    }
}

/// A queue. Lengths are those on the wire.
#[derive(Debug)]
pub(crate) struct Queue {
    spec: QueueSpec,
    control: Lane,
    trimmed: Lane,
    data: Lane,
    /// Bytes that trimmed packets are ahead of data, since both began to wait.
    ahead: i64,
    /// The classes that must not leave.
    paused: Classes,
    /// The most bytes that waited since somebody asked.
    peak_bytes: u64,
    pub(crate) counters: QueueCounters,
}

impl Queue {
    pub(crate) fn new(spec: QueueSpec) -> Self {
        let [control, trimmed, data] = Default::default();
        Self {
            spec,
            control,
            trimmed,
            data,
            ahead: 0,
            paused: Classes::NONE,
            peak_bytes: 0,
            counters: QueueCounters::default(),
        }
    }

    /// Takes a packet in. One that is dropped stays the caller's.
    #[inline]
    pub(crate) fn push(&mut self, id: PacketId, pool: &mut Pool) -> Fate {
        let packet = pool.get_mut(id);
        let dscp = packet.dscp();
        let map = &self.spec.dscp;
        let bytes = u64::from(packet.wire_len());
        if dscp == map.control {
            return self.push_small(Class::Control, id, bytes, Fate::Queued);
        }
        if map.class_of_trim(dscp).is_some() {
            return self.push_small(Class::Trimmed, id, bytes, Fate::Queued);
        }
        if self.data.bytes + bytes <= self.spec.limit_bytes {
            self.data.push(id, bytes);
            self.counters.most_bytes = self.counters.most_bytes.max(self.data.bytes);
            return Fate::Queued;
        }
        let may_be = dscp == map.trimmable || dscp == map.trimmable_retx;
        let Some(trim) = self.spec.trim.filter(|_| may_be) else {
            self.counters.dropped_data += 1;
            return Fate::Dropped;
        };
        packet.trim(trim.keep_bytes, trim.dscp);
        let bytes = u64::from(packet.wire_len());
        let fate = self.push_small(Class::Trimmed, id, bytes, Fate::Trimmed);
        // One that is dropped all the same counts once, as dropped.
        self.counters.trimmed += u64::from(fate == Fate::Trimmed);
        fate
    }

    /// The class of packets with this code point.
    #[inline]
    pub(crate) const fn class(&self, dscp: u8) -> Class {
        if dscp == self.spec.dscp.control {
            Class::Control
        } else if self.spec.dscp.class_of_trim(dscp).is_some() {
            Class::Trimmed
        } else {
            Class::Data
        }
    }

    /// Puts a small packet into its class; each of the two has a limit of its own.
    fn push_small(&mut self, class: Class, id: PacketId, bytes: u64, fate: Fate) -> Fate {
        let class = if class == Class::Control { &mut self.control } else { &mut self.trimmed };
        if class.bytes + bytes > self.spec.control_limit_bytes {
            self.counters.dropped_control += 1;
            return Fate::Dropped;
        }
        class.push(id, bytes);
        fate
    }

    /// The next packet to leave.
    #[inline]
    pub(crate) fn pop(&mut self, pool: &mut Pool, rng: &mut Xoshiro256PlusPlus) -> Option<PacketId> {
        if !self.paused.is_empty() {
            return self.pop_of_others(pool, rng);
        }
        if let Some(id) = self.control.pop(pool) {
            return Some(id);
        }
        if self.trimmed_is_next() {
            return self.pop_trimmed(pool);
        }
        self.pop_data(pool, rng)
    }

    /// The next packet to leave of the classes that are not paused.
    #[cold]
    fn pop_of_others(&mut self, pool: &mut Pool, rng: &mut Xoshiro256PlusPlus) -> Option<PacketId> {
        let may_leave = self.paused.others();
        if may_leave.has(Class::Control) && !self.control.packets.is_empty() {
            return self.control.pop(pool);
        }
        let data = may_leave.has(Class::Data) && !self.data.packets.is_empty();
        if may_leave.has(Class::Trimmed) && !self.trimmed.packets.is_empty() && (!data || self.ahead <= 0) {
            return self.pop_trimmed(pool);
        }
        if data { self.pop_data(pool, rng) } else { None }
    }

    #[inline]
    fn pop_trimmed(&mut self, pool: &Pool) -> Option<PacketId> {
        let before = self.trimmed.bytes;
        let id = self.trimmed.pop(pool)?;
        self.ahead += (before - self.trimmed.bytes) as i64;
        Some(id)
    }

    #[inline]
    fn pop_data(&mut self, pool: &mut Pool, rng: &mut Xoshiro256PlusPlus) -> Option<PacketId> {
        let before = self.data.bytes;
        let id = self.data.pop(pool)?;
        self.ahead -= (before - self.data.bytes) as i64;
        if self.spec.ecn.is_some_and(|ecn| ecn.marks(self.data.bytes, rng)) && pool.get_mut(id).mark() {
            self.counters.marked += 1;
        }
        Some(id)
    }

    /// Where both wait, trimmed packets have their turn once data has had as many bytes.
    #[inline]
    fn trimmed_is_next(&mut self) -> bool {
        if self.data.packets.is_empty() || self.trimmed.packets.is_empty() {
            self.ahead = 0;
        }
        self.ahead <= 0 && !self.trimmed.packets.is_empty()
    }

    /// Stops a class, or lets it go on.
    pub(crate) const fn set_paused(&mut self, class: Class, paused: bool) {
        self.paused = self.paused.with(class, paused);
    }

    /// The classes that are stopped.
    pub(crate) const fn paused(&self) -> Classes {
        self.paused
    }

    /// The classes of which a packet would leave as soon as the link is free: all that are not stopped, if nothing of these waits.
    #[inline]
    pub(crate) const fn room(&self) -> Classes {
        if self.can_send() { Classes::NONE } else { self.paused.others() }
    }

    /// Whether a packet waits that may leave.
    #[inline]
    pub(crate) const fn can_send(&self) -> bool {
        if self.paused.is_empty() { !self.is_empty() } else { self.others_wait() }
    }

    #[cold]
    const fn others_wait(&self) -> bool {
        let may_leave = self.paused.others();
        (self.control.bytes > 0 && may_leave.has(Class::Control))
            || (self.trimmed.bytes > 0 && may_leave.has(Class::Trimmed))
            || (self.data.bytes > 0 && may_leave.has(Class::Data))
    }

    /// What is in the queue has to wait.
    #[inline]
    pub(crate) fn note_wait(&mut self) {
        self.peak_bytes = self.peak_bytes.max(self.bytes());
    }

    /// The most bytes that waited since this was called before.
    pub(crate) fn take_peak(&mut self) -> u64 {
        let waits = self.bytes();
        std::mem::replace(&mut self.peak_bytes, waits)
    }

    /// Takes out all that waits.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PacketId> {
        let Self { control, trimmed, data, .. } = self;
        [control, trimmed, data].into_iter().flat_map(|class| {
            class.bytes = 0;
            class.packets.drain(..)
        })
    }

    /// Bytes that wait, of all classes.
    #[inline]
    pub(crate) const fn bytes(&self) -> u64 {
        self.data.bytes + self.trimmed.bytes + self.control.bytes
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        // No packet has no bytes.
        self.bytes() == 0
    }
}

impl EcnSpec {
    #[inline]
    fn marks(self, waiting: u64, rng: &mut Xoshiro256PlusPlus) -> bool {
        if waiting <= self.low_bytes || waiting >= self.high_bytes {
            return waiting > self.low_bytes;
        }
        // Both are far below 2^32, as limits of queues are.
        let share = ((waiting - self.low_bytes) << 32) / (self.high_bytes - self.low_bytes);
        let share = share * u64::from(self.most_ppm) / u64::from(WHOLE_PPM);
        rng.next_u64() >> 32 < share
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    const HEAD: usize = 14 + 40 + 8 + 40;

    fn spec() -> QueueSpec {
        QueueSpec {
            limit_bytes: 10_000,
            control_limit_bytes: 1_000,
            ecn: None,
            trim: None,
            dscp: DscpMap::default(),
        }
    }

    fn rng() -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(1)
    }

    /// A packet of this class, capable of ECN, of `len` bytes on the wire.
    fn packet(pool: &mut Pool, dscp: u8, len: u32) -> PacketId {
        let id = pool.take();
        let mut head = [0; HEAD];
        let class = dscp << 2 | 0b10;
        (head[14], head[15]) = (0x60 | class >> 4, class << 4);
        pool.get_mut(id).set_virtual(&head, len - HEAD as u32 - 24);
        assert_eq!((pool.get(id).dscp(), pool.get(id).wire_len()), (dscp, len));
        id
    }

    #[test]
    fn control_goes_first_and_each_class_keeps_its_order() {
        let (mut pool, mut queue, map) = (Pool::default(), Queue::new(spec()), DscpMap::default());
        let classes =
            [map.trimmable, map.control, map.no_trim, map.trimmed, map.trimmable_retx, map.trimmed_last_hop];
        let ids = classes.map(|dscp| packet(&mut pool, dscp, 200));
        for id in ids {
            assert_eq!(queue.push(id, &mut pool), Fate::Queued);
        }
        assert_eq!((queue.bytes(), queue.counters.most_bytes), (1_200, 600));
        let out: Vec<_> = core::iter::from_fn(|| queue.pop(&mut pool, &mut rng())).collect();
        // Trimmed packets and data take turns.
        assert_eq!(out, [1, 3, 0, 5, 2, 4].map(|at| ids[at]));
        assert!(queue.is_empty() && queue.bytes() == 0);
    }

    #[test]
    fn what_finds_no_room_is_dropped_or_trimmed() {
        let (mut pool, map) = (Pool::default(), DscpMap::default());
        let mut queue = Queue::new(spec());
        let full = packet(&mut pool, map.trimmable, 10_000);
        assert_eq!(queue.push(full, &mut pool), Fate::Queued, "just fits");
        let late = packet(&mut pool, map.trimmable, 4_000);
        assert_eq!(queue.push(late, &mut pool), Fate::Dropped);
        assert_eq!(pool.get(late).wire_len(), 4_000, "as it was");
        let trim = Some(TrimSpec { keep_bytes: 128, dscp: map.trimmed });
        let mut queue = Queue::new(QueueSpec { trim, ..spec() });
        assert_eq!(queue.push(full, &mut pool), Fate::Queued);
        let fates = [(map.trimmable, 6_000), (map.trimmable_retx, 200), (map.no_trim, 6_000)]
            .map(|(dscp, len)| packet(&mut pool, dscp, len))
            .map(|id| (queue.push(id, &mut pool), pool.get(id).frame_len(), pool.get(id).dscp()));
        let trimmed = (Fate::Trimmed, 128, map.trimmed);
        assert_eq!(fates, [trimmed, trimmed, (Fate::Dropped, 5_976, map.no_trim)]);
        let QueueCounters { trimmed, dropped_data, dropped_control, .. } = queue.counters;
        assert_eq!((trimmed, dropped_data, dropped_control), (2, 1, 0));
        // 304 bytes that were trimmed wait, so 696 more fit; control has room of its own.
        for (dscp, waits) in [(map.trimmed_last_hop, 304), (map.control, 0)] {
            let lens = [1_001 - waits, 1_000 - waits - 200, 201, 200];
            let fates = lens.map(|len| queue.push(packet(&mut pool, dscp, len), &mut pool));
            assert_eq!(fates, [Fate::Dropped, Fate::Queued, Fate::Dropped, Fate::Queued], "{dscp}");
        }
        assert_eq!(queue.counters.dropped_control, 4);
        // Data that is trimmed and then finds no room either is dropped, and not trimmed as well.
        let late = packet(&mut pool, map.trimmable, 4_000);
        assert_eq!(queue.push(late, &mut pool), Fate::Dropped);
        assert_eq!((queue.counters.trimmed, queue.counters.dropped_control), (2, 5));
        assert_eq!((queue.drain().count(), queue.bytes(), queue.is_empty()), (7, 0, true));
    }

    /// Bytes of all classes; those that wait when somebody asks are the least of what comes next.
    #[test]
    fn the_peak_is_the_most_that_waited_since_it_was_asked_for() {
        let (mut pool, mut queue, map) = (Pool::default(), Queue::new(spec()), DscpMap::default());
        for (dscp, waits) in [(map.trimmable, true), (map.control, true), (map.trimmable, false)] {
            let id = packet(&mut pool, dscp, 200);
            assert_eq!(queue.push(id, &mut pool), Fate::Queued);
            if waits {
                queue.note_wait();
            }
        }
        queue.pop(&mut pool, &mut rng()).unwrap();
        queue.note_wait();
        assert_eq!((queue.take_peak(), queue.take_peak()), (400, 400));
        queue.pop(&mut pool, &mut rng()).unwrap();
        queue.note_wait();
        assert_eq!((queue.take_peak(), queue.take_peak()), (400, 200));
    }

    /// UET 1.0 recommends as much for switches; with less than that a crowd of trimmed packets would starve data.
    #[test]
    fn trimmed_packets_have_half_of_the_link_at_most() {
        let (mut pool, map) = (Pool::default(), DscpMap::default());
        let limits = QueueSpec { limit_bytes: 1 << 30, control_limit_bytes: 1 << 30, ..spec() };
        let mut queue = Queue::new(limits);
        for _ in 0..1_000 {
            for (dscp, len) in [(map.trimmable, 4_000), (map.trimmed, 200)] {
                let id = packet(&mut pool, dscp, len);
                queue.push(id, &mut pool);
            }
        }
        let mut sent = [0; 2];
        for _ in 0..525 {
            let id = queue.pop(&mut pool, &mut rng()).unwrap();
            sent[usize::from(pool.get(id).dscp() == map.trimmed)] += pool.get(id).wire_len();
        }
        assert_eq!(sent, [25 * 4_000, 500 * 200]);
        // Without data, the whole of it; and that is not held against them.
        let left: Vec<_> = core::iter::from_fn(|| queue.pop(&mut pool, &mut rng())).collect();
        assert_eq!(left.len(), 2_000 - 525);
        for dscp in [map.trimmed, map.trimmed, map.trimmable] {
            let id = packet(&mut pool, dscp, 200);
            queue.push(id, &mut pool);
        }
        let order = [(); 3].map(|()| {
            let id = queue.pop(&mut pool, &mut rng()).unwrap();
            pool.get(id).dscp()
        });
        assert_eq!(order, [map.trimmed, map.trimmable, map.trimmed]);
    }

    #[test]
    fn marks_follow_what_waits_behind() {
        let (mut pool, mut rng) = (Pool::default(), rng());
        let mut share = |ecn: EcnSpec, waiting: u64| {
            let mut queue = Queue::new(QueueSpec { limit_bytes: 1 << 40, ecn: Some(ecn), ..spec() });
            let marked = (0..1000).filter(|_| {
                let first = packet(&mut pool, 0, 1_000);
                let behind = packet(&mut pool, 0, waiting as u32);
                queue.push(first, &mut pool);
                queue.push(behind, &mut pool);
                let out = queue.pop(&mut pool, &mut rng).unwrap();
                queue.drain().count();
                pool.get(out).is_marked()
            });
            let marked = marked.count();
            assert_eq!(queue.counters.marked, marked as u64);
            marked
        };
        let red = EcnSpec { low_bytes: 1_000, high_bytes: 5_000, most_ppm: WHOLE_PPM };
        assert_eq!((share(red, 1_000), share(red, 5_000)), (0, 1_000));
        assert!((200..300).contains(&share(red, 2_000)), "a quarter");
        assert!((700..800).contains(&share(red, 4_000)), "three quarters");
        // Pmax is the share at the upper end, beyond which all are marked.
        let gentle = EcnSpec { most_ppm: 200_000, ..red };
        assert!((80..120).contains(&share(gentle, 3_000)), "half of a fifth");
        assert!((150..240).contains(&share(gentle, 4_999)), "a fifth");
        assert_eq!((share(gentle, 1_000), share(gentle, 5_000)), (0, 1_000));
        let step = EcnSpec { most_ppm: 1, low_bytes: 2_000, high_bytes: 2_000 };
        assert_eq!((share(step, 2_000), share(step, 2_001)), (0, 1_000));
    }

    #[test]
    fn a_class_that_is_paused_waits_and_the_others_do_not() {
        let (mut pool, mut queue, map) = (Pool::default(), Queue::new(spec()), DscpMap::default());
        assert_eq!((queue.room(), queue.can_send()), (Classes::ALL, false));
        let data = packet(&mut pool, map.no_trim, 200);
        queue.push(data, &mut pool);
        assert_eq!((queue.room(), queue.can_send()), (Classes::NONE, true));
        queue.set_paused(Class::Data, true);
        assert_eq!((queue.paused(), queue.can_send()), (Classes::DATA, false));
        assert_eq!(queue.room(), Classes::DATA.others(), "an acknowledgement would leave at once");
        assert_eq!(queue.pop(&mut pool, &mut rng()), None);
        let [trimmed, control] = [map.trimmed, map.control].map(|dscp| {
            let id = packet(&mut pool, dscp, 200);
            queue.push(id, &mut pool);
            id
        });
        assert_eq!((queue.room(), queue.can_send()), (Classes::NONE, true));
        queue.set_paused(Class::Control, true);
        assert_eq!(queue.pop(&mut pool, &mut rng()), Some(trimmed));
        assert_eq!((queue.pop(&mut pool, &mut rng()), queue.bytes()), (None, 400));
        queue.set_paused(Class::Control, false);
        queue.set_paused(Class::Data, false);
        let left: Vec<_> = core::iter::from_fn(|| queue.pop(&mut pool, &mut rng())).collect();
        assert_eq!(left, [control, data]);
        queue.set_paused(Class::Trimmed, true);
        queue.push(trimmed, &mut pool);
        queue.push(data, &mut pool);
        let left: Vec<_> = core::iter::from_fn(|| queue.pop(&mut pool, &mut rng())).collect();
        assert_eq!((left, queue.can_send(), queue.bytes()), (vec![data], false, 200));
    }

    /// Who is not capable of ECN is not marked (RFC 3168).
    #[test]
    fn only_those_who_listen_are_marked() {
        let (mut pool, ecn) = (Pool::default(), EcnSpec { low_bytes: 0, high_bytes: 0, most_ppm: WHOLE_PPM });
        let mut queue = Queue::new(QueueSpec { ecn: Some(ecn), ..spec() });
        let id = pool.take();
        let mut head = [0; HEAD];
        head[14] = 0x60;
        pool.get_mut(id).set_virtual(&head, 1_000);
        queue.push(id, &mut pool);
        let behind = packet(&mut pool, 0, 1_000);
        queue.push(behind, &mut pool);
        let out = queue.pop(&mut pool, &mut rng()).unwrap();
        assert_eq!((out, pool.get(out).is_marked(), queue.counters.marked), (id, false, 0));
    }
}
