//! Priority flow control: nothing is lost, and who pays for that.

use std::net::Ipv6Addr;

use spindrift::time::Time;
use spindrift::wire::DscpMap;
use spindrift_fabric::{
    Class, Clos, ClosSpec, Fault, Free, HostId, LinkCounters, LinkId, LinkSpec, Net, Packet, PfcSpec,
    QueueRules, QueueSpec, Threshold, Transport, TrimSpec,
};
use spindrift_srv6::{Fabric, Forwarder, Node};

use crate::support::{clos, dumbbell};

/// Bytes of a data packet on the wire, and of a control packet.
const DATA: u64 = 4_000;
const CONTROL: u64 = 100;
const CONTROL_DSCP: u8 = 46;

/// A host that sends as many packets as its port takes.
struct Blaster {
    me: Ipv6Addr,
    to: Option<Ipv6Addr>,
    left: u64,
    control_left: u64,
    /// Bytes of data that came in from each host, and when the last of them did.
    from: Vec<u64>,
    last: Time,
    controls: u64,
}

impl Blaster {
    fn new(fabric: &Fabric, number: u16, to: Option<u16>, left: u64) -> Self {
        let address = |host| fabric.address(host, 0).unwrap();
        let from = vec![0; fabric.hosts().len()];
        let to = to.map(address);
        Self { me: address(number), to, left, control_left: 0, from, last: Time::ZERO, controls: 0 }
    }

    fn make(&self, to: Ipv6Addr, dscp: u8, wire_len: u64, out: &mut Packet) {
        let mut head = [0; 14 + 40 + 8];
        let class = dscp << 2 | 0b10;
        head[14..16].copy_from_slice(&[0x60 | class >> 4, class << 4]);
        head[20..22].copy_from_slice(&[17, 64]);
        head[22..38].copy_from_slice(&self.me.octets());
        head[38..54].copy_from_slice(&to.octets());
        out.set_virtual(&head, wire_len as u32 - 62 - 24);
        out.plane = 0;
    }
}

impl Transport for Blaster {
    type Event = ();

    fn receive(&mut self, now: Time, _: u8, packet: &Packet) {
        if packet.dscp() == CONTROL_DSCP {
            self.controls += 1;
            return;
        }
        // The number of a host is in its address; any two differ, so the sender's is counted by its last bytes.
        let source = usize::from(packet.head()[14 + 8 + 15]) + 256 * usize::from(packet.head()[14 + 8 + 14]);
        let places = self.from.len();
        self.from[source % places] += u64::from(packet.wire_len());
        self.last = now;
    }

    fn transmit(&mut self, _: Time, free: Free, out: &mut Packet) -> bool {
        let Some(to) = self.to else { return false };
        if self.control_left > 0 && free.of(Class::Control) & 1 == 1 {
            self.control_left -= 1;
            self.make(to, CONTROL_DSCP, CONTROL, out);
            return true;
        }
        if self.left > 0 && free.of(Class::Data) & 1 == 1 {
            self.left -= 1;
            self.make(to, 4, DATA, out);
            return true;
        }
        false
    }

    fn next_timeout(&self) -> Time {
        Time::NEVER
    }

    fn on_timeout(&mut self, _: Time) {}

    fn on_pause(&mut self, _: Time, _: Time) {}

    fn carrier(&mut self, _: Time, _: u8, _: bool) {}

    fn poll(&mut self) -> Option<()> {
        None
    }
}

/// 256 KiB per switch, and a fixed XOFF, so that times can be computed by hand.
fn pfc() -> PfcSpec {
    PfcSpec { xoff: Threshold::Fixed(10 * DATA), resume_bytes: 2 * DATA, ..PfcSpec::new(1 << 18, DATA) }
}

fn with(spec: ClosSpec, pfc: Option<PfcSpec>) -> ClosSpec {
    ClosSpec { queues: QueueRules { pfc, trim_bytes: None, ecn_ns: None, ..spec.queues }, ..spec }
}

/// Hosts that send `count` packets each to the host that `to` says.
fn world(spec: ClosSpec, count: u64, to: impl Fn(u16) -> Option<u16>) -> (Clos, Net<Blaster>) {
    let made =
        Clos::build(spec, 1, |fabric, number| Ok::<_, ()>(Blaster::new(fabric, number, to(number), count)));
    made.unwrap()
}

fn start(net: &mut Net<Blaster>) {
    for host in net.hosts().collect::<Vec<_>>() {
        net.with_transport(host, |_, _| ());
    }
}

fn check(net: &Net<Blaster>) {
    let counters = net.counters();
    assert!(counters.add_up(net.on_their_way()), "{counters:?}");
    assert_eq!(counters.unroutable, 0);
}

/// The link from a host to its switch.
fn uplink(clos: &Clos, host: u16) -> LinkId {
    let t0 = clos.neighbours(Node::Host(host)).next().unwrap();
    clos.link(Node::Host(host), t0).unwrap()
}

/// An incast of seven, 1,000 packets each, within a rack.
fn incast(pfc: Option<PfcSpec>) -> (Clos, Net<Blaster>) {
    let spec = with(clos(1, 1, 8, 100), pfc);
    let (clos, mut net) = world(spec, 1_000, |host| (host > 0).then_some(0));
    start(&mut net);
    assert_eq!(net.run(Time(100_000_000)), None);
    check(&net);
    (clos, net)
}

#[test]
fn an_incast_that_would_overflow_loses_nothing() {
    let (_, lossy) = incast(None);
    assert!(lossy.counters().dropped > 1_000, "{:?}", lossy.counters());
    assert_eq!(lossy.counters().pauses, 0);
    for spec in [pfc(), PfcSpec::new(1 << 18, DATA)] {
        let (clos, mut net) = incast(Some(spec));
        let host = Node::Host(0);
        let to_target = clos.link(clos.neighbours(host).next().unwrap(), host).unwrap();
        // Nobody has asked before, and all of it is data: the most of the whole run.
        assert_eq!(net.take_queue_peak(to_target), net.link(to_target).queue.most_bytes);
        let counters = net.counters();
        println!("{counters:?}");
        assert_eq!((counters.dropped, counters.delivered), (0, 7_000));
        let target = net.transport(HostId(0));
        assert_eq!(target.from.iter().sum::<u64>(), 7_000 * DATA);
        // The link to the target is never idle: 320 ns for each packet, the first one's way of a few us before.
        assert!((7_000 * 320..7_000 * 320 + 5_000).contains(&target.last.0), "{:?}", target.last);
        let each: Vec<LinkCounters> = (1..8).map(|host| net.link(uplink(&clos, host))).collect();
        assert_eq!(each.iter().map(|link| link.pauses).sum::<u64>(), counters.pauses);
        assert!(each.iter().all(|link| link.pauses > 0 && link.overflowed == 0), "{each:?}");
        // Each has a seventh of the time to send in, and waits for the rest of it. Before all have begun to wait
        // and after the first is done, others have more.
        for link in &each {
            let share = link.paused_ns as f64 / target.last.0 as f64;
            assert!((0.7..0.87).contains(&share), "{share}");
        }
        let switch = clos.switches().next().unwrap();
        assert!(net.most_buffered(switch) <= spec.shared_bytes);
    }
}

/// What arrives between the decision to pause and its effect has to go somewhere.
#[test]
fn without_headroom_packets_are_lost() {
    let needed = {
        let (clos, net) = incast(Some(pfc()));
        assert_eq!(net.link(uplink(&clos, 1)).overflowed, 0);
        // 2 us at 12.5 bytes per ns, two packets, and the pause frame.
        2 * 1_000 * 100 / 8 + 2 * DATA + 84
    };
    for (headroom, lossless) in [(needed, true), (needed / 2, false), (0, false)] {
        // XOFF is as high as the buffer allows, so only the headroom can hold more.
        let spec = PfcSpec { headroom_bytes: Some(headroom), ..pfc() };
        let (clos, net) = incast(Some(spec));
        let overflowed: u64 = (1..8).map(|host| net.link(uplink(&clos, host)).overflowed).sum();
        assert_eq!(overflowed == 0, lossless, "{headroom}");
        assert_eq!(net.counters().dropped, overflowed);
    }
}

/// A pause takes effect when its frame has come back, not before.
#[test]
fn a_pause_takes_a_way_back() {
    // Two hosts at 100 Gb/s into one port: of every two packets that arrive in 320 ns, one leaves.
    let spec = with(clos(1, 1, 3, 100), Some(pfc()));
    let (clos, mut net) = world(spec, 1_000, |host| (host > 0).then_some(0));
    start(&mut net);
    // Packet n of each host is at the switch at 1,000 + 320 n. Of the 2 n that have come until then, n have left or begun to. Each
    // link's share is n / 2, and is at XOFF, which is 10, with n = 20 at 7,400 ns. The pause frame of 84 bytes takes 6.72 ns after
    // whatever is being sent to the host, which is nothing, and 1,000 ns more.
    let sent = |net: &Net<Blaster>| [1, 2].map(|host| net.link(uplink(&clos, host)).packets);
    let paused = |net: &Net<Blaster>| [1, 2].map(|host| net.link(uplink(&clos, host)).paused_ns > 0);
    assert_eq!(net.run(Time(6_700)), None);
    assert_eq!(net.counters().pauses, 0, "{:?}", net.counters());
    assert_eq!(net.run(Time(7_500)), None);
    assert_eq!(net.counters().pauses, 2);
    assert_eq!(net.run(Time(7_700)), None);
    assert_eq!(paused(&net), [false; 2]);
    assert_eq!(net.run(Time(8_500)), None);
    assert_eq!(paused(&net), [true; 2]);
    let before = sent(&net);
    assert!(before.iter().all(|&sent| (24..=27).contains(&sent)), "{before:?}");
    // What is on its way arrives and waits. XON is 8 packets; until then nobody sends.
    assert_eq!(net.run(Time(9_400)), None);
    assert_eq!(sent(&net), before);
    assert_eq!(net.run(Time(14_000)), None);
    assert!(sent(&net).iter().zip(before).any(|(&now, before)| now > before), "{:?}", sent(&net));
}

/// A port that is paused for data sends its acknowledgements.
#[test]
fn other_classes_are_not_paused() {
    let spec = with(clos(1, 1, 8, 100), Some(pfc()));
    let (clos, mut net) = world(spec, 1_000, |host| (host > 0).then_some(0));
    start(&mut net);
    let uplink = uplink(&clos, 1);
    // Until it has been paused for 400 ns on end, in which a packet that had begun has left.
    let (mut until, mut paused) = (10_000, 0);
    while paused < 40 {
        let before = net.link(uplink).paused_ns;
        until += 10;
        assert_eq!(net.run(Time(until)), None);
        assert!(until < 1_000_000, "it is never paused");
        paused = if net.link(uplink).paused_ns == before + 10 { paused + 1 } else { 0 };
    }
    let packets = net.link(uplink).packets;
    net.with_transport(HostId(1), |host, _| host.control_left = 5);
    assert_eq!(net.run(Time(until + 45)), None);
    let link = net.link(uplink);
    assert_eq!(link.packets - packets, 5, "at once: {link:?}");
    assert_eq!(net.run(Time(until + 4_000)), None);
    assert_eq!(net.transport(HostId(0)).controls, 5);
    assert_eq!(net.run(Time(100_000_000)), None);
    assert_eq!((net.counters().dropped, net.counters().delivered), (0, 7_005));
}

/// Head-of-line blocking: the incast fills the buffer of the switch that it comes from, and a flow to somebody else, over the same trunk,
/// waits with it.
#[test]
fn a_victim_is_slowed() {
    // Hosts 0 to 3 are behind one end of the trunk. Hosts 4 to 6 send to host 0, and host 7 to host 1.
    let to = |host: u16| match host {
        4..=6 => Some(0),
        7 => Some(1),
        _ => None,
    };
    // The trunk carries all four.
    let spec = ClosSpec { trunk_rate_bps: 400_000_000_000, ..dumbbell(4, 100) };
    let victim = |pfc| {
        let (_, mut net) = world(with(spec, pfc), 100_000, to);
        start(&mut net);
        net.run(Time(1_000_000));
        check(&net);
        let bytes = net.transport(HostId(1)).from.iter().sum::<u64>();
        (bytes as f64 * 8.0 / 1e6, net.counters().dropped)
    };
    let (alone, lost) = victim(None);
    assert!(alone > 99.0 && lost > 0, "{alone}");
    let (blocked, lost) = victim(Some(pfc()));
    println!("the victim has {blocked} of 100 Gb/s");
    // The trunk lets through a packet of each in turn, so the victim has what each of the others has: a third of a port.
    assert!((25.0..50.0).contains(&blocked), "{blocked}");
    assert_eq!(lost, 0);
}

/// Whatever goes down and comes back, nobody waits for ever.
#[test]
fn a_cable_that_goes_down_takes_its_pauses_with_it() {
    let spec = with(dumbbell(4, 100), Some(pfc()));
    let ends = (Node::T0 { plane: 0, number: 0 }, Node::T0 { plane: 0, number: 1 });
    for (down_at, there, back) in [(100, true, true), (101, true, false), (102, false, true)] {
        let (clos, mut net) = world(spec, 3_000, |host| (host > 3).then_some(host % 2));
        start(&mut net);
        for flap in 0..20_u64 {
            let at = down_at * 1_000 + flap * 17_300;
            for (ms, up) in [(0, false), (3_100, true)] {
                assert_eq!(net.run(Time(at + ms)), None);
                let (a, b) = ends;
                for (from, to, flaps) in [(a, b, there), (b, a, back)] {
                    if flaps {
                        assert!(clos.apply(&mut net, &Fault::LinkDirection { from, to, up }));
                    }
                }
            }
        }
        assert_eq!(net.run(Time(100_000_000)), None);
        check(&net);
        assert!(net.is_idle() && net.on_their_way() == 0, "{:?}", net.counters());
        let senders = (4..8).map(|host| net.transport(HostId(host)).left);
        assert_eq!(senders.sum::<u64>(), 0, "{there} {back}");
        assert!(net.counters().pauses > 10);
        let links: Vec<_> = net.links().collect();
        let paused = links.into_iter().map(|link| net.link(link).paused_ns);
        let before: u64 = paused.sum();
        assert!(before > 0);
    }
}

/// Goes on until another pause frame is sent to this link, whose switch has no other reason to send one for a while.
fn until_a_pause_is_sent(net: &mut Net<Blaster>, link: LinkId) -> u64 {
    let before = net.link(link).pauses;
    let mut until = net.now().0;
    while net.link(link).pauses == before {
        until += 10;
        assert_eq!(net.run(Time(until)), None);
        assert!(until < 1_000_000, "it is never paused");
    }
    until
}

fn start_of_an_incast() -> (Clos, Net<Blaster>) {
    let (clos, mut net) = world(with(clos(1, 1, 8, 100), Some(pfc())), 1_000, |host| (host > 0).then_some(0));
    start(&mut net);
    (clos, net)
}

/// A pause frame that was on its way when the cable went down does not arrive when it is up again: the switch has forgotten that pause, and
/// would never end it.
#[test]
fn pause_frames_are_lost_with_their_cable() {
    let (clos, mut net) = start_of_an_incast();
    let t0 = Node::T0 { plane: 0, number: 0 };
    let (up, down) = (uplink(&clos, 1), clos.link(t0, Node::Host(1)).unwrap());
    for flapping in [up, down] {
        let sent = until_a_pause_is_sent(&mut net, up);
        for is_up in [false, true] {
            net.set_link(flapping, is_up);
        }
        let before = net.link(up).paused_ns;
        assert_eq!(net.run(Time(sent + 1_006)), None);
        assert_eq!(net.link(up).paused_ns, before, "its frame of 6.72 ns would have come after 1,007 ns");
        assert_eq!(net.run(Time(sent + 20_000)), None);
        assert!(net.link(up).paused_ns > before, "another one has");
    }
    assert_eq!(net.run(Time(100_000_000)), None);
    assert_eq!(net.transport(HostId(1)).left, 0);
}

/// When the link that was paused comes back, it sends, and is paused anew.
#[test]
fn a_link_that_comes_back_is_paused_again() {
    let (clos, mut net) = start_of_an_incast();
    let up = uplink(&clos, 1);
    let sent = until_a_pause_is_sent(&mut net, up);
    assert_eq!(net.run(Time(sent + 1_500)), None);
    let pauses = net.link(up).pauses;
    for is_up in [false, true] {
        net.set_link(up, is_up);
    }
    // A packet of 320 ns and 1,000 ns later the switch sees that it sends.
    assert_eq!(net.run(Time(sent + 1_500 + 1_500)), None);
    assert_eq!(net.link(up).pauses, pauses + 1);
}

/// What a queue trims or drops is no longer in the buffer, so that the buffer is empty in the end, and nobody is paused for what is gone.
#[test]
fn what_a_queue_refuses_leaves_the_buffer() {
    for trim in [None, Some(TrimSpec { keep_bytes: 128, dscp: 12 })] {
        let mut net = Net::new(1);
        let addresses = [1, 2, 3].map(|last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        for (at, me) in addresses.into_iter().enumerate() {
            let to = addresses.first().copied().filter(|_| at > 0);
            let (from, last) = (vec![0; 4], Time::ZERO);
            net.add_host(Blaster { me, to, left: 2_000, control_left: 0, from, last, controls: 0 });
        }
        let switch = net.add_switch();
        let dscp = DscpMap { no_trim: 63, trimmable: 4, ..DscpMap::default() };
        let limits = QueueSpec { limit_bytes: 5 * DATA, control_limit_bytes: 1 << 20, ecn: None, trim, dscp };
        let link = |queue| LinkSpec { rate_bps: 100_000_000_000, delay_ns: 1_000, queue };
        let mut tables = Forwarder::new(0);
        for (host, address) in (0..).zip(addresses) {
            let own = QueueSpec { limit_bytes: u64::MAX, ..limits };
            let (up, down) = (
                net.add_uplink(HostId(host), switch, link(own)),
                net.add_downlink(HostId(host), link(limits)),
            );
            net.set_cable(up, down);
            tables.add_route(format!("{address}/128").parse().unwrap(), vec![down]).unwrap();
        }
        net.set_tables(switch, tables);
        // The queue refuses packets long before the buffer is full.
        net.set_pfc(Some(PfcSpec { xoff: Threshold::Fixed(20 * DATA), ..pfc() }));
        start(&mut net);
        assert_eq!(net.run(Time(100_000_000)), None);
        check(&net);
        let links: Vec<_> = net.links().map(|link| net.link(link)).collect();
        let [refused, overflowed] = [
            links.iter().map(|link| link.queue.trimmed + link.queue.dropped_data).sum::<u64>(),
            links.iter().map(|link| link.overflowed).sum(),
        ];
        assert!(refused > 1_000, "{refused}");
        assert_eq!((overflowed, net.counters().pauses), (0, 0), "{trim:?}");
        assert!(net.most_buffered(switch) <= 6 * DATA, "{}", net.most_buffered(switch));
    }
}

/// Off is off: the rules of a queue without PFC are those from before there was any.
#[test]
fn without_pfc_nothing_is_counted() {
    let (clos, net) = incast(None);
    let links: Vec<_> = net.links().collect();
    for link in links {
        let LinkCounters { pauses, paused_ns, overflowed, .. } = net.link(link);
        assert_eq!((pauses, paused_ns, overflowed), (0, 0, 0));
    }
    let switch = clos.switches().next().unwrap();
    assert_eq!(net.most_buffered(switch), 0);
}
