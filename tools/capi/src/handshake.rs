//! How two processes learn what MRC needs beyond what verbs passes on: a state machine without socket, clock or thread.
//!
//! Verbs gives each side the other's address and queue pair number at RTR, and no more. The first number is that of a *process*, see
//! [`Number`]. Its control port is known from that, so this side can ask it for the rest: planes, window, UDP port, the number on the
//! wire.
//!
//! Each side sends a [`Hello`] when its application takes the queue pair to RTR, and never waits for the other: many programs go to RTS
//! before they tell their peer that number. A side is connected when it has received a message that repeats the nonce it has drawn.
//! Whoever does not see its packets cannot make one up. Messages are repeated until both sides have told each other that they are
//! connected, so that any of them may be lost.

use std::collections::BTreeMap;
use std::net::IpAddr;

use spindrift::endpoint::QpInfo;
use spindrift::time::Time;
use spindrift::verbs::negotiate::plain_up_to;

/// Bits of a queue pair's number that name it within its process.
const LOCAL_BITS: u32 = 13;

/// The number of a queue pair as applications see it, 24 bits: which process of its host, and which queue pair of that.
///
/// It stays the same through RESET, when the number on the wire changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Number(u32);

impl Number {
    /// Processes of a host, at most.
    pub(crate) const PROCESSES: u32 = 1 << (24 - LOCAL_BITS);
    /// Queue pairs of a process, at most.
    pub(crate) const QUEUE_PAIRS: u32 = 1 << LOCAL_BITS;

    /// The number of a queue pair in a process.
    pub(crate) const fn new(process: u32, local: u32) -> Self {
        Self(((process % Self::PROCESSES) << LOCAL_BITS) | (local % Self::QUEUE_PAIRS))
    }

    /// A number that an application passes in.
    pub(crate) const fn from_verbs(number: u32) -> Self {
        Self(number & 0xff_ffff)
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    pub(crate) const fn process(self) -> u32 {
        self.0 >> LOCAL_BITS
    }
}

/// A queue pair and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) number: Number,
}

/// A message of the handshake.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) from: Number,
    pub(crate) to: Number,
    /// Drawn by the sender for this connection.
    pub(crate) nonce: u64,
    /// The receiver's nonce, as far as the sender knows it; 0 if not.
    pub(crate) echo: u64,
    /// The sender is connected.
    pub(crate) connected: bool,
    /// The sender knows that the receiver is, and repeats nothing any more.
    pub(crate) settled: bool,
    pub(crate) body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    /// How to connect.
    Info(Box<QpInfo>),
    /// The sender cannot connect to what it was told, for this reason.
    Refused(String),
}

/// What comes of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Send a message to a peer on a plane, if its host has so many.
    Send(Peer, usize, Hello),
    /// Connect the queue pair to this one.
    Connect(Number, Box<QpInfo>),
    /// The peer refuses the queue pair, or is not compatible: it fails.
    Fail(Number, String),
}

/// The first repetition comes after this time, ns, and each later one after twice the time before.
const FIRST_WAIT_NS: u64 = 10_000_000;
const LONGEST_WAIT_NS: u64 = 640_000_000;

/// A connection that is being made, or was made.
#[derive(Debug)]
struct Pending {
    peer: Peer,
    info: QpInfo,
    nonce: u64,
    /// The peer's nonce.
    theirs: u64,
    connected: bool,
    /// The peer has said that it is connected. Nothing is repeated any more.
    settled: bool,
    failed: bool,
    /// The plane of the next message: that of the peer's last one, and after each repetition another one.
    plane: usize,
    due: Time,
    wait_ns: u64,
}

/// The handshakes of a process.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    pending: BTreeMap<Number, Pending>,
    /// The last message for a queue pair that is not at RTR yet, and who sent it.
    early: BTreeMap<Number, (IpAddr, Hello)>,
}

impl Handshakes {
    /// A queue pair exists, so a message for it may be kept.
    pub(crate) fn created(&mut self, number: Number) {
        self.early.remove(&number);
    }

    /// An application has named the peer of a queue pair. The first message takes this plane.
    pub(crate) fn on_rtr(
        &mut self,
        now: Time,
        own: Number,
        (peer, plane): (Peer, usize),
        (info, nonce): (QpInfo, u64),
        is_of: impl Fn(IpAddr, IpAddr) -> bool,
    ) -> Vec<Action> {
        let mut pending = Pending {
            peer,
            info,
            // 0 means "not known".
            nonce: nonce.max(1),
            theirs: 0,
            connected: false,
            settled: false,
            failed: false,
            plane,
            due: now.after(FIRST_WAIT_NS),
            wait_ns: FIRST_WAIT_NS,
        };
        // Its message told everything but this side's nonce.
        if let Some((address, hello)) = self.early.remove(&own)
            && is_of(peer.address, address)
            && hello.from == peer.number
        {
            pending.theirs = hello.nonce;
        }
        let actions = vec![pending.hello(own)];
        self.pending.insert(own, pending);
        actions
    }

    /// A queue pair goes back to RESET, or ends.
    pub(crate) fn forget(&mut self, own: Number) {
        self.pending.remove(&own);
        self.early.remove(&own);
    }

    /// The host of a queue pair's peer.
    pub(crate) fn peer(&self, own: Number) -> Option<IpAddr> {
        self.pending.get(&own).map(|pending| pending.peer.address)
    }

    /// The queue pair cannot be connected to what the peer offers. The peer is told.
    pub(crate) fn refuse(&mut self, own: Number, reason: &str) -> Vec<Action> {
        let Some(pending) = self.pending.get_mut(&own) else { return Vec::new() };
        pending.failed = true;
        pending.due = Time::NEVER;
        let refusal = Hello { body: Body::Refused(reason.to_owned()), ..pending.message(own) };
        vec![Action::Send(pending.peer, pending.plane, refusal)]
    }

    /// A message has arrived on a plane. `exists`: whether this process has such a queue pair. `is_of`: whether a host has an address.
    pub(crate) fn on_hello(
        &mut self,
        now: Time,
        (from, plane): (IpAddr, usize),
        hello: Hello,
        exists: impl Fn(Number) -> bool,
        is_of: impl Fn(IpAddr, IpAddr) -> bool,
    ) -> Vec<Action> {
        let own = hello.to;
        let Some(pending) = self.pending.get_mut(&own) else {
            // Its own application goes to RTR later, or never.
            if exists(own) && matches!(hello.body, Body::Info(_)) {
                self.early.insert(own, (from, hello));
            }
            return Vec::new();
        };
        // Only the one that the application has named is believed.
        if hello.from != pending.peer.number || !is_of(pending.peer.address, from) || pending.failed {
            return Vec::new();
        }
        // It has come through there, so what follows may too.
        pending.plane = plane;
        let verified = hello.echo == pending.nonce;
        let info = match hello.body {
            Body::Refused(reason) if verified => {
                pending.failed = true;
                pending.due = Time::NEVER;
                return vec![Action::Fail(own, reason)];
            }
            Body::Refused(_) => return Vec::new(),
            Body::Info(info) => info,
        };
        if pending.connected && hello.nonce != pending.theirs {
            // The peer has made its queue pair anew. This side's is connected to the old one, and fails for silence.
            return Vec::new();
        }
        pending.theirs = hello.nonce;
        let mut actions = Vec::new();
        if verified && !pending.connected {
            pending.connected = true;
            pending.wait_ns = FIRST_WAIT_NS;
            pending.due = now.after(FIRST_WAIT_NS);
            actions.push(Action::Connect(own, info));
        }
        if verified && hello.connected {
            pending.settled = true;
            pending.due = Time::NEVER;
        }
        // The peer lacks something that this side can tell.
        if !verified || !hello.settled {
            actions.push(pending.hello(own));
        }
        actions
    }

    /// When [`Handshakes::on_time`] has something to do.
    pub(crate) fn next_timeout(&self) -> Time {
        self.pending.values().map(|pending| pending.due).min().unwrap_or(Time::NEVER)
    }

    /// Repeats what was not answered.
    pub(crate) fn on_time(&mut self, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        for (own, pending) in &mut self.pending {
            if pending.due <= now {
                pending.wait_ns = (2 * pending.wait_ns).min(LONGEST_WAIT_NS);
                pending.due = now.after(pending.wait_ns);
                pending.plane = pending.plane.wrapping_add(1);
                actions.push(pending.hello(*own));
            }
        }
        actions
    }
}

impl Pending {
    fn message(&self, own: Number) -> Hello {
        Hello {
            from: own,
            to: self.peer.number,
            nonce: self.nonce,
            echo: self.theirs,
            connected: self.connected,
            settled: self.settled,
            body: Body::Info(Box::new(self.info.clone())),
        }
    }

    fn hello(&self, own: Number) -> Action {
        Action::Send(self.peer, self.plane, self.message(own))
    }
}

/// The first bytes of each message on a control socket: a name, and the version of its format.
pub(crate) const MAGIC: [u8; 4] = *b"SPD\x01";
/// Bytes before the body.
const HEADER: usize = 32;
/// Bytes of a reason for a refusal, at most.
const MAX_REASON: usize = 400;

impl Hello {
    /// The message as a datagram: magic (4 bytes), kind (1), flags (1), two bytes of 0, sender's and receiver's number (4 each), nonce
    /// and echo (8 each), all in network byte order; then the body, [`QpInfo`] as JSON or a text.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match &self.body {
            Body::Info(info) => (0, serde_json::to_vec(info).unwrap_or_default()),
            Body::Refused(reason) => (1, plain_up_to(reason, MAX_REASON).into_bytes()),
        };
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend(MAGIC);
        bytes.extend([kind, u8::from(self.connected) | u8::from(self.settled) << 1, 0, 0]);
        bytes.extend(self.from.get().to_be_bytes());
        bytes.extend(self.to.get().to_be_bytes());
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(self.echo.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    /// `None`: it is no such message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (&[kind, flags, 0, 0], rest) = rest.split_first_chunk::<4>()? else { return None };
        let (from, rest) = rest.split_first_chunk::<4>()?;
        let (to, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (echo, body) = rest.split_first_chunk::<8>()?;
        let [from, to] = [from, to].map(|number| u32::from_be_bytes(*number));
        let known = *magic == MAGIC && flags < 4 && from.max(to) < 1 << 24;
        let nonce = u64::from_be_bytes(*nonce);
        if !known || nonce == 0 {
            return None;
        }
        let body = match kind {
            0 => Body::Info(serde_json::from_slice(body).ok()?),
            1 => Body::Refused(plain_up_to(core::str::from_utf8(body).ok()?, MAX_REASON)),
            _ => return None,
        };
        Some(Self {
            from: Number(from),
            to: Number(to),
            nonce,
            echo: u64::from_be_bytes(*echo),
            connected: flags & 1 != 0,
            settled: flags & 2 != 0,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(qpn: u32) -> QpInfo {
        QpInfo {
            version: QpInfo::VERSION,
            qpn,
            psn: 5,
            msn: 0,
            mpr: 8,
            max_wimm: 128,
            mtu: 4096,
            trim_nack: false,
            dynamic_mpr: false,
            icrc: true,
            udp_port: 4971,
            entropy: "udp".to_owned(),
            ports: Vec::new(),
            plane_ids: Vec::new(),
            extensions: spindrift::endpoint::Extensions::ALL,
            max_rd_atomic: 16,
        }
    }

    /// Two processes, and messages between them.
    struct World {
        now: Time,
        sides: [Handshakes; 2],
        /// From which side, on which plane.
        under_way: Vec<(usize, usize, Hello)>,
        /// Planes that lose all messages.
        dead: [bool; PLANES],
        connected: [Vec<u32>; 2],
        failed: [Vec<String>; 2],
    }

    const NUMBERS: [Number; 2] = [Number::new(3, 70), Number::new(0, 5)];

    const PLANES: usize = 3;

    fn address(side: usize) -> IpAddr {
        on(side, 0)
    }

    fn on(side: usize, plane: usize) -> IpAddr {
        IpAddr::from([10, plane as u8, 0, side as u8 + 1])
    }

    /// The address of a host ends with its number.
    fn is_of(host: IpAddr, address: IpAddr) -> bool {
        let (IpAddr::V4(host), IpAddr::V4(address)) = (host, address) else { return false };
        host.octets()[3] == address.octets()[3]
    }

    impl World {
        fn new() -> Self {
            Self {
                now: Time(0),
                sides: [Handshakes::default(), Handshakes::default()],
                under_way: Vec::new(),
                dead: [false; PLANES],
                connected: [Vec::new(), Vec::new()],
                failed: [Vec::new(), Vec::new()],
            }
        }

        fn rtr(&mut self, side: usize) {
            let peer = Peer { address: address(1 - side), number: NUMBERS[1 - side] };
            let info = info(100 + side as u32);
            let offer = (info, 1000 + side as u64);
            let actions = self.sides[side].on_rtr(self.now, NUMBERS[side], (peer, 0), offer, is_of);
            self.take(side, actions);
        }

        fn take(&mut self, side: usize, actions: Vec<Action>) {
            for action in actions {
                match action {
                    Action::Send(peer, plane, hello) => {
                        assert_eq!((peer.address, peer.number), (address(1 - side), NUMBERS[1 - side]));
                        let hello = Hello::decode(&hello.encode()).expect("a message");
                        if !self.dead[plane % PLANES] {
                            self.under_way.push((side, plane % PLANES, hello));
                        }
                    }
                    Action::Connect(own, info) => {
                        assert_eq!(own, NUMBERS[side]);
                        self.connected[side].push(info.qpn);
                    }
                    Action::Fail(_, reason) => self.failed[side].push(reason),
                }
            }
        }

        fn deliver(&mut self, at: usize) {
            let (from, plane, hello) = self.under_way.remove(at);
            let side = 1 - from;
            let exists = |number| number == NUMBERS[side];
            let source = (on(from, plane), plane);
            let actions = self.sides[side].on_hello(self.now, source, hello, exists, is_of);
            self.take(side, actions);
        }

        fn deliver_all(&mut self) -> usize {
            let mut count = 0;
            while !self.under_way.is_empty() {
                self.deliver(0);
                count += 1;
            }
            count
        }

        fn is_settled(&self) -> bool {
            self.connected == [[101], [100]]
                && self.sides.iter().all(|side| side.next_timeout() == Time::NEVER)
        }
    }

    #[test]
    fn numbers_name_process_and_queue_pair() {
        let number = Number::new(2047, 8191);
        assert_eq!((number.get(), number.process()), (0xff_ffff, 2047));
        assert_eq!(Number::new(1, 2).get(), 0x2002);
        assert_eq!(Number::from_verbs(0x0100_2002), Number::new(1, 2));
    }

    /// Whoever comes first, without a timer. A side that comes later is connected a round trip later.
    #[test]
    fn sides_connect_in_any_order() {
        for order in [[0, 1], [1, 0]] {
            for meanwhile in [false, true] {
                let mut world = World::new();
                NUMBERS.iter().zip(&mut world.sides).for_each(|(number, side)| side.created(*number));
                world.rtr(order[0]);
                if meanwhile {
                    world.deliver_all();
                }
                world.rtr(order[1]);
                let messages = world.deliver_all();
                assert!(world.is_settled() && messages <= 8, "{messages} messages, {:?}", world.connected);
            }
        }
    }

    /// A repetition takes another plane, and what answers a message the plane of that.
    #[test]
    fn messages_find_a_plane_that_works() {
        for dead in [[true, false, false], [true, true, false], [true, false, true], [false, true, true]] {
            for order in [[0, 1], [1, 0]] {
                let mut world = World::new();
                world.dead = dead;
                NUMBERS.iter().zip(&mut world.sides).for_each(|(number, side)| side.created(*number));
                world.rtr(order[0]);
                world.deliver_all();
                world.rtr(order[1]);
                world.deliver_all();
                let mut timers = 0;
                while !world.is_settled() {
                    timers += 1;
                    assert!(timers <= 2 * PLANES, "{dead:?} {:?}", world.connected);
                    world.now = world.sides[0].next_timeout().min(world.sides[1].next_timeout());
                    for side in 0..2 {
                        let actions = world.sides[side].on_time(world.now);
                        world.take(side, actions);
                    }
                    world.deliver_all();
                }
            }
        }
    }

    #[test]
    fn any_message_may_be_lost() {
        for seed in 0..2_000_u64 {
            let mut world = World::new();
            if let Some(dead) = world.dead.get_mut((seed % 4) as usize) {
                *dead = true;
            }
            let mut state = seed;
            let mut draw = |n: u64| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (mixed ^ (mixed >> 31)) % n
            };
            let mut begun = [false; 2];
            for _ in 0..10_000 {
                let side = draw(2) as usize;
                match draw(4) {
                    0 if !begun[side] => {
                        begun[side] = true;
                        world.rtr(side);
                    }
                    1 if !world.under_way.is_empty() => {
                        let at = draw(world.under_way.len() as u64) as usize;
                        world.under_way.remove(at);
                    }
                    2 if !world.under_way.is_empty() => {
                        let at = draw(world.under_way.len() as u64) as usize;
                        // Sometimes it comes twice.
                        if draw(4) == 0 {
                            let copy = world.under_way[at].clone();
                            world.under_way.push(copy);
                        }
                        world.deliver(at);
                    }
                    _ if world.under_way.is_empty() => {
                        let next = world.sides.iter().map(Handshakes::next_timeout).min().unwrap();
                        match next {
                            Time::NEVER if begun == [true; 2] => break,
                            Time::NEVER => continue,
                            next => world.now = next,
                        }
                        for side in 0..2 {
                            let actions = world.sides[side].on_time(world.now);
                            world.take(side, actions);
                        }
                    }
                    _ => {}
                }
            }
            assert!(world.is_settled(), "seed {seed}: {:?}", world.connected);
        }
    }

    /// The source address can be forged, the nonce cannot be known.
    #[test]
    fn who_does_not_see_the_packets_connects_nothing() {
        let mut world = World::new();
        world.rtr(0);
        world.under_way.clear();
        let forged = |echo, from, number| {
            let hello = Hello {
                from: number,
                to: NUMBERS[0],
                nonce: 7,
                echo,
                connected: true,
                settled: true,
                body: Body::Info(Box::new(info(66))),
            };
            (address(from), hello)
        };
        for (from, hello) in [
            forged(0, 1, NUMBERS[1]),
            forged(999, 1, NUMBERS[1]),
            // The right nonce from elsewhere, or for another queue pair.
            forged(1000, 5, NUMBERS[1]),
            forged(1000, 1, Number::new(9, 9)),
        ] {
            let actions = world.sides[0].on_hello(world.now, (from, 0), hello, |_| true, is_of);
            assert!(!actions.iter().any(|action| matches!(action, Action::Connect(..))), "{actions:?}");
        }
        // The real one still connects.
        world.rtr(1);
        world.deliver_all();
        world.now = world.sides[0].next_timeout();
        let actions = world.sides[0].on_time(world.now);
        world.take(0, actions);
        world.deliver_all();
        assert_eq!(world.connected, [vec![101], vec![100]]);
    }

    #[test]
    fn a_refusal_reaches_the_peer() {
        let mut world = World::new();
        world.rtr(0);
        world.rtr(1);
        while world.connected[0].is_empty() {
            world.deliver(0);
        }
        let actions = world.sides[0].refuse(NUMBERS[0], "no plane in common");
        world.take(0, actions);
        world.deliver_all();
        assert_eq!(world.failed[1], ["no plane in common"]);
        assert_eq!(world.sides[0].next_timeout(), Time::NEVER);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let hello = Hello {
            from: NUMBERS[0],
            to: NUMBERS[1],
            nonce: 1,
            echo: 2,
            connected: false,
            settled: true,
            body: Body::Refused("x".to_owned()),
        };
        let good = hello.encode();
        assert_eq!(Hello::decode(&good), Some(hello));
        for len in 0..HEADER {
            assert_eq!(Hello::decode(&good[..len]), None);
        }
        for (at, value) in [(0, 0), (3, 9), (4, 7), (5, 4), (6, 1), (8, 1), (12, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Hello::decode(&bad), None, "byte {at}");
        }
        let mut unnamed = good.clone();
        unnamed[16..24].fill(0);
        assert_eq!(Hello::decode(&unnamed), None, "a nonce of 0");
        let mut no_text = good;
        no_text.push(0xff);
        assert_eq!(Hello::decode(&no_text), None);
    }
}
