//! The network: hosts, switches and links, and what happens next.

mod pause;

use core::fmt;
use std::collections::VecDeque;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use spindrift::time::Time;
use spindrift_srv6::{Forwarder, Verdict};

use crate::calendar::Calendar;
use crate::impair::{Impairment, Outcome};
use crate::link::{End, Link, LinkCounters, LinkId, LinkSpec};
use crate::packet::{Packet, PacketId, Pool};
use crate::pfc::{Buffers, Class, Free};
use crate::transport::{ConnectError, Message, Messenger, Transport};

/// The number of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// The number of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u32);

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostFlow {
    /// The host.
    pub host: HostId,
    /// The flow's number there.
    pub flow: u32,
}

/// What a simulation stops for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimEvent<N> {
    /// A host's transport has something to say.
    Transport {
        /// The host.
        host: HostId,
        /// What it says.
        event: N,
    },
    /// The time of an alarm has come.
    Alarm(u32),
}

/// What a tap sees of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketEvent {
    /// Its first bit goes onto the link.
    Sent,
    /// It comes to the end of the link, where a host or a switch deals with it.
    Arrived,
    /// It is lost on the link.
    Lost,
    /// The link's queue has no room for it, or the link is down.
    Dropped,
    /// It comes to the end of the link, where the switch does not forward, or the host has stood still for too long.
    Discarded,
}

/// Called with each packet that something happens to. What is sent comes again once, as arrived, lost or discarded; what a switch
/// has no route for has arrived.
pub type Tap = Box<dyn FnMut(Time, LinkId, PacketEvent, &Packet)>;

/// What the network has done with packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Packets that came to a host.
    pub delivered: u64,
    /// Packets that found no room in a queue, or whose link was down before they left.
    pub dropped: u64,
    /// Packets that came off a link a second time.
    pub duplicated: u64,
    /// Packets lost on a link, or by a switch that does not forward.
    pub lost: u64,
    /// Packets whose bits were flipped, so that the host that they came to saw a wrong iCRC.
    pub corrupted: u64,
    /// Packets that came to a host that stood still, when it could keep no more of them.
    pub overrun: u64,
    /// Packets that a switch did not forward: no route, or no hops left.
    pub unroutable: u64,
    /// Pause frames that switches sent to stop a link (PFC).
    pub pauses: u64,
    /// Packets that came to the end of a link: what a simulation's work is measured in.
    pub hops: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet comes to the end of a link.
    Arrive {
        link: LinkId,
        packet: PacketId,
    },
    /// The same, late, or for the second time.
    Straggle {
        link: LinkId,
        packet: PacketId,
    },
    /// A host goes on.
    Resume(HostId),
    /// A link may send its next packet.
    Turn(LinkId),
    /// A host's timer may be due.
    Wake(HostId),
    Alarm(u32),
    /// A pause frame comes to the start of a link, whose cable had gone down so often when it was sent.
    Pause {
        link: LinkId,
        class: Class,
        on: bool,
        outages: u16,
    },
}

struct Host<T> {
    transport: T,
    /// By plane.
    uplinks: Vec<LinkId>,
    downlinks: Vec<LinkId>,
    /// When it is going to be woken.
    wakes_at: u64,
    /// It stands still: since when and until when, and what came in meanwhile.
    pause: Option<(u64, u64)>,
    backlog: VecDeque<(u8, PacketId)>,
}

/// Events at one time after which a transport is taken for one that never lets time go on.
const MOST_AT_ONCE: u32 = 1 << 24;

/// Packets that a host's ports keep while it stands still.
const BACKLOG: usize = 4096;

struct Switch {
    tables: Forwarder<LinkId>,
    forwards: bool,
}

/// A network of hosts that run `T`. Everything that happens follows from how it was made, its seed, and the calls made to it.
pub struct Net<T: Transport> {
    now: u64,
    /// Events since time moved last.
    at_once: u32,
    calendar: Calendar<Event>,
    hosts: Vec<Host<T>>,
    switches: Vec<Switch>,
    links: Vec<Link>,
    /// With PFC alone.
    buffers: Option<Box<Buffers>>,
    pool: Pool,
    rng: Xoshiro256PlusPlus,
    counters: NetCounters,
    /// What transports said that nobody has heard yet.
    events: VecDeque<(HostId, T::Event)>,
    tap: Option<Tap>,
}

impl<T: Transport> fmt::Debug for Net<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net")
            .field("now", &self.now)
            .field("hosts", &self.hosts.len())
            .field("switches", &self.switches.len())
            .field("links", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Net<T> {
    /// A network without anything in it.
    pub fn new(seed: u64) -> Self {
        Self {
            now: 0,
            at_once: 0,
            calendar: Calendar::new(),
            hosts: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            buffers: None,
            pool: Pool::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            counters: NetCounters::default(),
            events: VecDeque::new(),
            tap: None,
        }
    }

    /// Adds a host, which has no links yet.
    pub fn add_host(&mut self, transport: T) -> HostId {
        self.hosts.push(Host {
            transport,
            uplinks: Vec::new(),
            downlinks: Vec::new(),
            wakes_at: u64::MAX,
            pause: None,
            backlog: VecDeque::new(),
        });
        HostId(self.hosts.len() as u32 - 1)
    }

    /// Adds a switch, which drops everything until it gets its [tables](Self::set_tables).
    pub fn add_switch(&mut self) -> SwitchId {
        self.switches.push(Switch { tables: Forwarder::new(0), forwards: true });
        SwitchId(self.switches.len() as u32 - 1)
    }

    /// What a switch does to packets from now on.
    pub fn set_tables(&mut self, switch: SwitchId, tables: Forwarder<LinkId>) {
        self.switches[switch.0 as usize].tables = tables;
    }

    /// A switch stops to forward packets, or begins again. Its links stay up, so nobody is told.
    pub fn set_forwarding(&mut self, switch: SwitchId, forwards: bool) {
        self.switches[switch.0 as usize].forwards = forwards;
    }

    /// Adds the link by which a host sends on its next plane, to a switch.
    pub fn add_uplink(&mut self, from: HostId, to: SwitchId, spec: LinkSpec) -> LinkId {
        let link = self.add_link(End::Switch(to.0), spec);
        self.hosts[from.0 as usize].uplinks.push(link);
        link
    }

    /// Adds the link from a switch to a host's port in its next plane.
    pub fn add_downlink(&mut self, to: HostId, spec: LinkSpec) -> LinkId {
        let plane = self.hosts[to.0 as usize].downlinks.len() as u8;
        let link = self.add_link(End::Host { host: to.0, plane }, spec);
        self.hosts[to.0 as usize].downlinks.push(link);
        link
    }

    /// The links to a host, by plane.
    pub fn downlinks(&self, host: HostId) -> &[LinkId] {
        &self.hosts[host.0 as usize].downlinks
    }

    /// Adds a link to a switch from another one.
    pub fn add_trunk(&mut self, to: SwitchId, spec: LinkSpec) -> LinkId {
        self.add_link(End::Switch(to.0), spec)
    }

    fn add_link(&mut self, end: End, spec: LinkSpec) -> LinkId {
        self.links.push(Link::new(spec, end));
        LinkId(self.links.len() as u32 - 1)
    }

    /// The time, in nanoseconds since the beginning.
    pub const fn now(&self) -> Time {
        Time(self.now)
    }

    /// What happened to packets.
    pub const fn counters(&self) -> NetCounters {
        self.counters
    }

    /// Packets that are in queues and on links.
    pub fn on_their_way(&self) -> usize {
        self.pool.in_use()
    }

    /// What a host runs.
    pub fn transport(&self, host: HostId) -> &T {
        &self.hosts[host.0 as usize].transport
    }

    /// What a host runs; after a change, it sends what it has to send now.
    pub fn with_transport<R>(&mut self, host: HostId, change: impl FnOnce(&mut T, Time) -> R) -> R {
        let result = change(&mut self.hosts[host.0 as usize].transport, Time(self.now));
        self.pump(host);
        result
    }

    /// The hosts.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<T> {
        (0..self.hosts.len() as u32).map(HostId)
    }

    /// What a link has done.
    pub fn link(&self, link: LinkId) -> LinkCounters {
        self.links[link.0 as usize].counters(self.now)
    }

    /// Bytes that wait for a link.
    pub fn queued_bytes(&self, link: LinkId) -> u64 {
        self.links[link.0 as usize].queued_bytes()
    }

    /// The most bytes that waited for a link since this was called before.
    pub fn take_queue_peak(&mut self, link: LinkId) -> u64 {
        self.links[link.0 as usize].take_queue_peak()
    }

    /// The links, in the order in which they were added.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<T> {
        (0..self.links.len() as u32).map(LinkId)
    }

    /// What two hosts run, for a change that concerns both; they send what they have to send now. `None` if they are one, or one of
    /// them is none.
    pub fn with_pair<R>(
        &mut self,
        (one, other): (HostId, HostId),
        change: impl FnOnce(&mut T, &mut T, Time) -> R,
    ) -> Option<R> {
        let [a, b] = self.hosts.get_disjoint_mut([one.0 as usize, other.0 as usize]).ok()?;
        let result = change(&mut a.transport, &mut b.transport, Time(self.now));
        for host in [one, other] {
            self.pump(host);
        }
        Some(result)
    }

    /// From now on `tap` sees every packet; costs nothing while there is none.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Whether nothing is going to happen any more unless somebody changes something.
    pub fn is_idle(&self) -> bool {
        self.calendar.is_empty() && self.events.is_empty()
    }

    /// Stops the simulation at `at`, as [`SimEvent::Alarm`] with this number.
    pub fn set_alarm(&mut self, at: Time, number: u32) {
        self.calendar.add(at.0.max(self.now), Event::Alarm(number));
    }

    /// The link comes up or goes down. Whether the host at one of its ends learns of it is for the caller to tell: see
    /// [`set_carrier`](Self::set_carrier).
    pub fn set_link(&mut self, link: LinkId, up: bool) {
        for packet in self.links[link.0 as usize].set_up(up) {
            self.release(link, packet);
            self.drop_at(link, packet);
        }
        self.pauses_after(link, up);
    }

    /// Whether a link is up.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.links[link.0 as usize].is_up()
    }

    /// A host's port finds or loses its carrier.
    pub fn set_carrier(&mut self, host: HostId, plane: u8, up: bool) {
        self.with_transport(host, |transport, now| transport.carrier(now, plane, up));
    }

    /// From now on this is wrong with a link.
    pub fn set_impairment(&mut self, link: LinkId, impairment: Impairment) {
        self.set_impairments(link, vec![impairment]);
    }

    /// From now on all of this is wrong with a link, one after the other until a packet is lost or goes astray.
    pub fn set_impairments(&mut self, link: LinkId, impairments: Vec<Impairment>) {
        self.links[link.0 as usize].set_impairments(impairments);
    }

    /// A host stands still for so long: it neither reads nor sends, and its timers wait. Its ports go on, and keep 4,096 packets.
    pub fn pause(&mut self, host: HostId, ns: u64) {
        let until = self.now.saturating_add(ns);
        let at = &mut self.hosts[host.0 as usize];
        let (since, before) = at.pause.unwrap_or((self.now, 0));
        if until > before {
            at.pause = Some((since, until));
            self.calendar.add(until, Event::Resume(host));
        }
    }

    /// From now on a link has this rate, in bits per second.
    pub fn set_rate(&mut self, link: LinkId, rate_bps: u64) {
        self.links[link.0 as usize].set_rate(rate_bps.max(1));
    }

    /// Goes on until something happens that somebody should hear of; `None` when nothing is left to happen, or before what is
    /// later than `until`. The time is `until` then.
    ///
    /// # Panics
    /// If millions of events fall on one time: a transport has asked to be called again and again.
    pub fn run(&mut self, until: Time) -> Option<SimEvent<T::Event>> {
        loop {
            if let Some((host, event)) = self.events.pop_front() {
                return Some(SimEvent::Transport { host, event });
            }
            let Some((at, event)) = self.calendar.next(until.0) else {
                if until != Time::NEVER {
                    self.now = self.now.max(until.0);
                }
                return None;
            };
            self.at_once = if at == self.now { self.at_once + 1 } else { 0 };
            assert!(
                self.at_once < MOST_AT_ONCE,
                "time stands still at {at} ns, and something happens again and again"
            );
            self.now = at;
            match event {
                Event::Arrive { link, packet } => self.arrive(link, packet),
                Event::Straggle { link, packet } => self.pass_on(link, packet),
                Event::Resume(host) => self.resume(host),
                Event::Turn(link) => self.turn(link),
                Event::Wake(host) => self.wake(host),
                Event::Pause { link, class, on, outages } => self.on_pause(link, class, on, outages),
                Event::Alarm(number) => return Some(SimEvent::Alarm(number)),
            }
        }
    }

    fn arrive(&mut self, from: LinkId, packet: PacketId) {
        self.counters.hops += 1;
        let link = &mut self.links[from.0 as usize];
        let straggler = |packet| Event::Straggle { link: from, packet };
        match link.deliver(packet, &mut self.pool, &mut self.rng) {
            Outcome::Arrives => {}
            Outcome::Lost => {
                self.counters.lost += 1;
                self.see(from, PacketEvent::Lost, packet);
                return self.pool.give_back(packet);
            }
            Outcome::Late(ns) => return self.calendar.add(self.now + ns, straggler(packet)),
            Outcome::Twice(ns) => {
                let twin = self.pool.copy(packet);
                self.counters.duplicated += 1;
                self.calendar.add(self.now + ns, straggler(twin));
            }
        }
        self.pass_on(from, packet);
    }

    #[inline]
    fn see(&mut self, link: LinkId, sight: PacketEvent, packet: PacketId) {
        if let Some(tap) = &mut self.tap {
            tap(Time(self.now), link, sight, self.pool.get(packet));
        }
    }

    /// A packet is at the end of a link.
    fn pass_on(&mut self, from: LinkId, packet: PacketId) {
        let end = self.links[from.0 as usize].end;
        let taken = match end {
            End::Switch(switch) => self.switches[switch as usize].forwards,
            End::Host { host, .. } => {
                let host = &self.hosts[host as usize];
                host.pause.is_none() || host.backlog.len() < BACKLOG
            }
        };
        self.see(from, if taken { PacketEvent::Arrived } else { PacketEvent::Discarded }, packet);
        match end {
            End::Switch(_) if !taken => {
                self.counters.lost += 1;
                self.pool.give_back(packet);
            }
            End::Switch(switch) => {
                let tables = &self.switches[switch as usize].tables;
                if let Ok(Verdict::Forward(&next)) = self.pool.get_mut(packet).forward(tables) {
                    if self.buffers.is_some() {
                        return self.admit(from, next, packet);
                    }
                    return self.offer(next, packet);
                }
                self.counters.unroutable += 1;
                self.pool.give_back(packet);
            }
            End::Host { .. } if !taken => {
                self.counters.overrun += 1;
                self.pool.give_back(packet);
            }
            End::Host { host, plane } => {
                let at = &mut self.hosts[host as usize];
                if at.pause.is_some() {
                    return at.backlog.push_back((plane, packet));
                }
                self.receive(HostId(host), plane, packet);
                self.pump(HostId(host));
            }
        }
    }

    fn receive(&mut self, host: HostId, plane: u8, packet: PacketId) {
        let arrived = self.pool.get(packet);
        if arrived.is_broken() {
            self.counters.corrupted += 1;
        } else {
            self.counters.delivered += 1;
            self.hosts[host.0 as usize].transport.receive(Time(self.now), plane, arrived);
        }
        self.pool.give_back(packet);
    }

    /// A host's pause is over, unless it has become longer.
    fn resume(&mut self, id: HostId) {
        let host = &mut self.hosts[id.0 as usize];
        let Some((since, until)) = host.pause else { return };
        if until > self.now {
            return;
        }
        host.pause = None;
        host.transport.on_pause(Time(since), Time(self.now));
        while let Some((plane, packet)) = self.hosts[id.0 as usize].backlog.pop_front() {
            self.receive(id, plane, packet);
        }
        self.hosts[id.0 as usize].wakes_at = u64::MAX;
        self.pump(id);
    }

    /// Puts a packet into the queue of a link.
    #[inline]
    fn offer(&mut self, id: LinkId, packet: PacketId) {
        let link = &mut self.links[id.0 as usize];
        if !link.push(packet, &mut self.pool) {
            return self.drop_at(id, packet);
        }
        if link.has_turn {
            return link.note_wait();
        }
        let free_at = link.free_at();
        if free_at > self.now {
            link.note_wait();
            link.has_turn = true;
            return self.calendar.add(free_at, Event::Turn(id));
        }
        self.send(id);
    }

    fn drop_at(&mut self, link: LinkId, packet: PacketId) {
        self.counters.dropped += 1;
        self.see(link, PacketEvent::Dropped, packet);
        self.pool.give_back(packet);
    }

    /// A link that is free sends what is next.
    #[inline]
    fn send(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        let Some(sent) = link.send(self.now, &mut self.pool, &mut self.rng) else {
            // What waits is stopped.
            return link.note_wait();
        };
        self.calendar.add(sent.arrives_at, Event::Arrive { link: id, packet: sent.packet });
        if link.hungry.is_some() || link.can_send() {
            link.has_turn = true;
            self.calendar.add(link.free_at(), Event::Turn(id));
        }
        if self.buffers.is_some() {
            self.release(id, sent.packet);
        }
        self.see(id, PacketEvent::Sent, sent.packet);
    }

    fn turn(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        link.has_turn = false;
        let hungry = link.hungry.take();
        self.send(id);
        if let Some(host) = hungry {
            self.pump(HostId(host));
        }
    }

    fn wake(&mut self, host: HostId) {
        let at = &mut self.hosts[host.0 as usize];
        if at.wakes_at != self.now || at.pause.is_some() {
            return;
        }
        at.wakes_at = u64::MAX;
        if at.transport.next_timeout().0 <= self.now {
            at.transport.on_timeout(Time(self.now));
        }
        self.pump(host);
    }

    /// Sends what a host has to send and its links have room for, and sees to its timer.
    fn pump(&mut self, id: HostId) {
        if self.hosts[id.0 as usize].pause.is_some() {
            return;
        }
        loop {
            let host = &mut self.hosts[id.0 as usize];
            let mut idle = 0_u32;
            for (plane, link) in host.uplinks.iter().enumerate() {
                idle |= u32::from(!self.links[link.0 as usize].can_send()) << plane;
            }
            let (mut free, mut all) = (Free::same(idle), idle);
            if self.buffers.is_some() {
                free = pause::free(&host.uplinks, &self.links);
                (idle, all) = (free.any(), free.all());
            }
            let packet = self.pool.take();
            let out = self.pool.get_mut(packet);
            if idle == 0 || !host.transport.transmit(Time(self.now), free, out) {
                self.pool.give_back(packet);
                // It may have more for these.
                for (plane, link) in host.uplinks.iter().enumerate() {
                    self.links[link.0 as usize].hungry = (all >> plane & 1 == 0).then_some(id.0);
                }
                break;
            }
            let plane = usize::from(out.plane);
            let Some(&uplink) = host.uplinks.get(plane) else {
                self.pool.give_back(packet);
                continue;
            };
            self.counters.sent += 1;
            self.offer(uplink, packet);
        }
        let host = &mut self.hosts[id.0 as usize];
        while let Some(event) = host.transport.poll() {
            self.events.push_back((id, event));
        }
        let due = host.transport.next_timeout().0.max(self.now);
        if due < host.wakes_at {
            host.wakes_at = due;
            self.calendar.add(due, Event::Wake(id));
        }
    }
}

impl<T: Messenger> Net<T> {
    /// Makes a flow between two hosts.
    ///
    /// # Errors
    /// If they are one, or cannot be connected.
    pub fn connect(&mut self, one: HostId, other: HostId) -> Result<[HostFlow; 2], ConnectError> {
        let flows = self.with_pair((one, other), |a, b, now| T::connect(now, a, b));
        let [a, b] = flows.unwrap_or_else(|| {
            Err(ConnectError(format!("host {} and host {} are not two", one.0, other.0)))
        })?;
        Ok([HostFlow { host: one, flow: a }, HostFlow { host: other, flow: b }])
    }

    /// Sends a message on a flow; `false` if it takes none now.
    pub fn post(&mut self, end: HostFlow, message: Message) -> bool {
        self.with_transport(end.host, |transport, now| transport.post(now, end.flow, message))
    }
}

impl NetCounters {
    /// Whether each packet sent is accounted for, `on_their_way` of them as not there yet.
    pub const fn add_up(&self, on_their_way: usize) -> bool {
        let gone =
            self.delivered + self.dropped + self.lost + self.unroutable + self.corrupted + self.overrun;
        self.sent + self.duplicated == gone + on_their_way as u64
    }
}
