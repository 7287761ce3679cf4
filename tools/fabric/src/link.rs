//! One direction of a cable, with the queue of the port that it starts at.

use rand_xoshiro::Xoshiro256PlusPlus;

use crate::impair::{Impairment, Outcome};
use crate::packet::{PacketId, Pool};
use crate::pfc::{Class, Classes, PAUSE_BYTES};
use crate::queue::{Fate, Queue, QueueCounters, QueueSpec};

/// The number of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) u32);

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Bits per second on the wire.
    pub rate_bps: u64,
    /// From the last bit's leaving until what is at the end has dealt with the packet, in nanoseconds.
    pub delay_ns: u64,
    /// The queue in front of it.
    pub queue: QueueSpec,
}

/// What a link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent, with preambles, checksums and gaps between frames.
    pub bytes: u64,
    /// Packets lost as the link was down, before they left or on their way.
    pub lost_down: u64,
    /// Packets lost as the link is impaired.
    pub lost_impaired: u64,
    /// Packets that came late or twice for the same reason.
    pub astray: u64,
    /// Packets that came over it and found neither shared buffer nor headroom at the switch (PFC).
    pub overflowed: u64,
    /// Pause frames that the switch at its end sent to stop it. Those that let it go on are not counted.
    pub pauses: u64,
    /// How long it has been stopped, for one class at least, ns.
    pub paused_ns: u64,
    /// What its queue has done.
    pub queue: QueueCounters,
}

/// What is at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Switch(u32),
    Host { host: u32, plane: u8 },
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) packet: PacketId,
    pub(crate) arrives_at: u64,
}

const PS_PER_NS: u64 = 1_000;
/// Picoseconds that a bit takes at one bit per second.
const PS_PER_S: u64 = 1_000_000_000_000;

#[derive(Debug)]
pub(crate) struct Link {
    spec: LinkSpec,
    pub(crate) end: End,
    queue: Queue,
    /// When what was sent last has left, in picoseconds: in whole nanoseconds a link of 800 Gb/s would be wrong by a percent.
    free_at_ps: u64,
    /// Its next turn is in the calendar.
    pub(crate) has_turn: bool,
    /// The host that it starts at, if that has more to send.
    pub(crate) hungry: Option<u32>,
    up: bool,
    /// The other direction of its cable.
    pub(crate) back: Option<LinkId>,
    /// Since when it is paused, if it is.
    paused_at: u64,
    /// How often it has gone down.
    outages: u32,
    impairments: Vec<Impairment>,
    counters: LinkCounters,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec, end: End) -> Self {
        Self {
            queue: Queue::new(spec.queue),
            spec,
            end,
            free_at_ps: 0,
            has_turn: false,
            hungry: None,
            up: true,
            back: None,
            paused_at: 0,
            outages: 0,
            impairments: Vec::new(),
            counters: LinkCounters::default(),
        }
    }

    pub(crate) const fn counters(&self, now: u64) -> LinkCounters {
        let open = if self.queue.paused().is_empty() { 0 } else { now - self.paused_at };
        let paused_ns = self.counters.paused_ns + open;
        LinkCounters { queue: self.queue.counters, paused_ns, ..self.counters }
    }

    pub(crate) const fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Another pause frame was sent to stop it.
    pub(crate) const fn count_pause(&mut self) {
        self.counters.pauses += 1;
    }

    /// A packet that came over it found no room.
    pub(crate) const fn count_overflow(&mut self) {
        self.counters.overflowed += 1;
    }

    pub(crate) const fn queued_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    /// What is in the queue has to wait.
    #[inline]
    pub(crate) fn note_wait(&mut self) {
        self.queue.note_wait();
    }

    pub(crate) fn take_queue_peak(&mut self) -> u64 {
        self.queue.take_peak()
    }

    /// The classes of which a packet would leave as soon as the link is free.
    #[inline]
    pub(crate) const fn room(&self) -> Classes {
        self.queue.room()
    }

    /// Whether a packet waits that may leave.
    #[inline]
    pub(crate) const fn can_send(&self) -> bool {
        self.queue.can_send()
    }

    /// The class that a packet is in here.
    pub(crate) const fn class(&self, dscp: u8) -> Class {
        self.queue.class(dscp)
    }

    /// A class is stopped, or may go on.
    pub(crate) const fn set_paused(&mut self, now: u64, class: Class, paused: bool) {
        let before = self.queue.paused().is_empty();
        self.queue.set_paused(class, paused);
        match (before, self.queue.paused().is_empty()) {
            (true, false) => self.paused_at = now,
            (false, true) => self.counters.paused_ns += now - self.paused_at,
            _ => {}
        }
    }

    /// Sends a pause frame, which waits for nothing but the packet that is being sent. Returns when it has arrived; `None` if the link is
    /// down.
    pub(crate) fn send_pause(&mut self, now: u64) -> Option<u64> {
        if !self.up {
            return None;
        }
        self.occupy(now, PAUSE_BYTES);
        Some(self.free_at() + self.spec.delay_ns)
    }

    /// How often it has gone down.
    pub(crate) const fn outages(&self) -> u32 {
        self.outages
    }

    pub(crate) const fn is_up(&self) -> bool {
        self.up
    }

    /// The first nanosecond at which the link is free.
    #[inline]
    pub(crate) const fn free_at(&self) -> u64 {
        self.free_at_ps.div_ceil(PS_PER_NS)
    }

    /// Takes a packet in; `false` if it is gone.
    #[inline]
    pub(crate) fn push(&mut self, id: PacketId, pool: &mut Pool) -> bool {
        if !self.up {
            self.counters.lost_down += 1;
            return false;
        }
        self.queue.push(id, pool) != Fate::Dropped
    }

    /// Begins to send the next packet, if there is one; the link is free.
    #[inline]
    pub(crate) fn send(&mut self, now: u64, pool: &mut Pool, rng: &mut Xoshiro256PlusPlus) -> Option<Sent> {
        let packet = self.queue.pop(pool, rng)?;
        let on_its_way = pool.get_mut(packet);
        on_its_way.outage = self.outages;
        let bytes = u64::from(on_its_way.wire_len());
        self.occupy(now, bytes);
        self.counters.packets += 1;
        Some(Sent { packet, arrives_at: self.free_at() + self.spec.delay_ns })
    }

    /// Sends so many bytes after what is being sent.
    #[inline]
    fn occupy(&mut self, now: u64, bytes: u64) {
        // A turn comes up to a nanosecond after the link is free, which must not add up.
        let start = self.free_at_ps.max((now * PS_PER_NS).saturating_sub(PS_PER_NS - 1));
        self.free_at_ps = start + bytes * 8 * PS_PER_S / self.spec.rate_bps;
        self.counters.bytes += bytes;
    }

    /// What becomes of a packet that comes to the end of the link.
    #[inline]
    pub(crate) fn deliver(&mut self, id: PacketId, pool: &mut Pool, rng: &mut Xoshiro256PlusPlus) -> Outcome {
        if pool.get(id).outage != self.outages || !self.up {
            self.counters.lost_down += 1;
            return Outcome::Lost;
        }
        let mut all = self.impairments.iter().map(|impairment| impairment.apply(pool.get_mut(id), rng));
        let outcome = all.find(|&outcome| outcome != Outcome::Arrives).unwrap_or(Outcome::Arrives);
        match outcome {
            Outcome::Arrives => {}
            Outcome::Lost => self.counters.lost_impaired += 1,
            Outcome::Late(_) | Outcome::Twice(_) => self.counters.astray += 1,
        }
        outcome
    }

    /// The link comes up or goes down. What waits for one that goes down is lost, and what is on its way. Returns what waited.
    pub(crate) fn set_up(&mut self, up: bool) -> Vec<PacketId> {
        let mut waited = Vec::new();
        if self.up && !up {
            self.outages += 1;
            waited.extend(self.queue.drain());
        }
        self.up = up;
        self.counters.lost_down += waited.len() as u64;
        waited
    }

    pub(crate) fn set_impairments(&mut self, impairments: Vec<Impairment>) {
        self.impairments = impairments;
        self.impairments.retain(|impairment| !impairment.is_none());
    }

    pub(crate) const fn set_rate(&mut self, rate_bps: u64) {
        self.spec.rate_bps = rate_bps;
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;
    use spindrift::wire::DscpMap;

    use super::*;

    fn link(rate_bps: u64) -> Link {
        let queue = QueueSpec {
            limit_bytes: u64::MAX,
            control_limit_bytes: 0,
            ecn: None,
            trim: None,
            dscp: DscpMap::default(),
        };
        Link::new(LinkSpec { rate_bps, delay_ns: 500, queue }, End::Switch(0))
    }

    fn packet(pool: &mut Pool, wire_len: u32) -> PacketId {
        let id = pool.take();
        pool.get_mut(id).set_virtual(&[0; 54], wire_len - 78);
        id
    }

    /// A packet of 4301 bytes takes 43.01 ns at 800 Gb/s, and a thousand of them take no more than 43,010.
    #[test]
    fn fractions_of_nanoseconds_add_up() {
        for (rate_bps, len, want) in [(800_000_000_000, 4_301, 43_010), (3, 125, 333_333_333_333_333)] {
            let (mut link, mut pool) = (link(rate_bps), Pool::default());
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let (mut now, mut last) = (0, 0);
            for _ in 0..1_000 {
                let id = packet(&mut pool, len);
                assert!(link.push(id, &mut pool));
                last = link.send(now, &mut pool, &mut rng).unwrap().arrives_at;
                now = link.free_at();
            }
            assert_eq!((now, last), (want, want + 500), "{rate_bps}");
            assert_eq!((link.counters(0).packets, link.counters(0).bytes), (1_000, 1_000 * u64::from(len)));
            // After a pause it starts anew.
            let id = packet(&mut pool, len);
            link.push(id, &mut pool);
            let arrives_at = link.send(now + 10_000, &mut pool, &mut rng).unwrap().arrives_at;
            let alone = (u64::from(len) * 8_000_000_000).div_ceil(rate_bps);
            assert!((now + 10_499 + alone..=now + 10_500 + alone).contains(&arrives_at), "{arrives_at}");
        }
    }

    /// What waits is lost, and what is on its way, even if the link is up again when it would arrive.
    #[test]
    fn a_link_that_goes_down_loses_what_it_had() {
        let (mut link, mut pool) = (link(1_000_000_000), Pool::default());
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let ids = [(); 3].map(|()| packet(&mut pool, 1_000));
        for id in ids {
            assert!(link.push(id, &mut pool));
        }
        let sent = link.send(0, &mut pool, &mut rng).unwrap();
        assert_eq!(link.set_up(false), ids[1..]);
        assert_eq!(link.counters(0).lost_down, 2);
        assert!(!link.push(ids[1], &mut pool), "nothing is taken in");
        assert_eq!(link.set_up(true), []);
        assert_eq!(link.deliver(sent.packet, &mut pool, &mut rng), Outcome::Lost);
        assert_eq!(link.counters(0).lost_down, 4);
        let next = packet(&mut pool, 1_000);
        assert!(link.push(next, &mut pool));
        let sent = link.send(0, &mut pool, &mut rng).unwrap();
        assert_eq!(link.deliver(sent.packet, &mut pool, &mut rng), Outcome::Arrives);
    }

    #[test]
    fn impairments_are_counted_and_end() {
        let (mut link, mut pool) = (link(1_000_000_000), Pool::default());
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let id = packet(&mut pool, 1_000);
        let all = |impairment| Impairment { late_ns: 1, ..impairment };
        let loss = all(Impairment { loss: 1.0, ..Impairment::default() });
        let reorder = all(Impairment { reorder: 1.0, ..Impairment::default() });
        let duplicate = all(Impairment { duplicate: 1.0, ..Impairment::default() });
        let mut outcomes = Vec::new();
        for impairment in [loss, reorder, duplicate, Impairment::default()] {
            link.set_impairments(vec![impairment]);
            outcomes.push(link.deliver(id, &mut pool, &mut rng));
        }
        assert_eq!(outcomes, [Outcome::Lost, Outcome::Late(1), Outcome::Twice(1), Outcome::Arrives]);
        assert_eq!((link.counters(0).lost_impaired, link.counters(0).astray), (1, 2));
        // Several at once: the first that does something to the packet has it.
        let mark = Impairment { mark: 1.0, ..Impairment::default() };
        link.set_impairments(vec![
            mark,
            Impairment::default(),
            all(Impairment { loss: 1.0, ..Impairment::default() }),
        ]);
        assert_eq!(link.deliver(id, &mut pool, &mut rng), Outcome::Lost);
    }
}
