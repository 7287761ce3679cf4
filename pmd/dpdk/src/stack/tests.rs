//! Two stacks that talk to each other, and one that is told things.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn addresses(local: &str, last: u8) -> Addresses {
    let local: IpAddr = local.parse().unwrap();
    let gateways = vec!["fe80::ff".parse().unwrap(), "10.0.0.99".parse().unwrap()];
    let prefix_len = if local.is_ipv4() { 24 } else { 64 };
    Addresses { mac: mac(last), local, prefix_len, gateways, fixed: vec![(ip("fd00::77"), mac(77))] }
}

/// A stack that takes its addresses for its own.
fn stack_of(own: Addresses) -> Stack {
    Stack::new(own, Search { wait_ns: 0, optimistic: false, link_local: true, nonce: [0; NONCE_LEN] })
}

/// One that looks for duplicates first.
fn careful(last: u8, local: &str, optimistic: bool) -> Stack {
    Stack::new(
        addresses(local, last),
        Search { wait_ns: SECOND, optimistic, link_local: true, nonce: [last; NONCE_LEN] },
    )
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What a stack says when asked for the way.
fn ask(stack: &mut Stack, to: &str, now: u64) -> (Option<MacAddr>, Out) {
    let mut out = Out::new();
    (stack.mac_of(ip(to), now, &mut out), out)
}

/// What a stack says to frames.
fn tell(stack: &mut Stack, frames: &Out, now: u64) -> Out {
    let mut out = Out::new();
    for frame in frames {
        stack.receive(frame, now, &mut out);
    }
    out
}

/// Ends with the addresses of both, of each family.
const ENDS: [[&str; 2]; 2] = [["fd00::1", "fd00::2"], ["10.0.0.1", "10.0.0.2"]];

#[test]
fn neighbours_find_each_other() {
    for [a, b] in ENDS {
        let (mut first, mut second) = (stack_of(addresses(a, 1)), stack_of(addresses(b, 2)));
        let (unknown, asked) = ask(&mut first, b, 0);
        assert_eq!((unknown, asked.len()), (None, 1));
        let to = MacAddr(asked[0][..6].try_into().unwrap());
        assert_eq!(to, MacAddr(if a == ENDS[0][0] { [0x33, 0x33, 0xff, 0, 0, 2] } else { [0xff; 6] }));
        assert!(asked[0].len() >= 60);
        let answer = tell(&mut second, &asked, 0);
        assert_eq!(answer.len(), 1);
        assert_eq!((&answer[0][..6], &answer[0][6..12]), (&mac(1).0[..], &mac(2).0[..]));
        let changes = first.changes();
        assert_eq!(tell(&mut first, &answer, 1), Out::new(), "answers are not answered");
        assert_ne!(first.changes(), changes);
        assert_eq!(ask(&mut first, b, 2), (Some(mac(2)), Out::new()));
        // Others are not concerned.
        let mut third = stack_of(addresses(if a == ENDS[0][0] { "fd00::3" } else { "10.0.0.3" }, 3));
        assert_eq!(tell(&mut third, &asked, 0), Out::new());
    }
}

#[test]
fn who_does_not_answer_is_asked_now_and_then() {
    for [a, b] in ENDS {
        let mut stack = stack_of(addresses(a, 1));
        let mut asked = Vec::new();
        for now in (0..5 * SECOND).step_by(1_000_000) {
            let (known, out) = ask(&mut stack, b, now);
            assert_eq!(known, None);
            asked.extend(out.iter().map(|_| now / 1_000_000));
        }
        assert_eq!(asked, [0, 100, 200, 300, 400, 1400, 2400, 3400, 4400]);
    }
}

#[test]
fn what_is_not_on_the_link_goes_to_the_gateway() {
    let mut stack = stack_of(addresses("fd00::1", 1));
    for (to, hop) in [
        ("fcbb:bb00:201:e001::", "fe80::ff"),
        ("fd01::1", "fe80::ff"),
        ("fd00::ffff:1", "fd00::ffff:1"),
        ("fe80::5", "fe80::5"),
        ("192.168.1.1", "10.0.0.99"),
    ] {
        assert_eq!(stack.own.next_hop(ip(to)), Some(ip(hop)), "{to}");
    }
    assert_eq!(stack.own.next_hop(ip("ff02::1")), None);
    assert_eq!(ask(&mut stack, "fd00::77", 0), (Some(mac(77)), Out::new()), "fixed");
    // The gateway answers for itself.
    let (_, asked) = ask(&mut stack, "fcbb:bb00:201::", 0);
    assert_eq!(asked.len(), 1);
    let gateway = Addresses { mac: mac(0xff), ..addresses("fe80::ff", 0xff) };
    let answer = tell(&mut stack_of(gateway), &asked, 0);
    tell(&mut stack, &answer, 0);
    for to in ["fcbb:bb00:201::", "fcbb:bb00:202::", "fd01::1"] {
        assert_eq!(ask(&mut stack, to, 1), (Some(mac(0xff)), Out::new()));
    }
    // A port of IPv4 whose packets go inside IPv6 asks from its address of the link.
    let mut stack = stack_of(addresses("10.0.0.1", 1));
    let (_, asked) = ask(&mut stack, "fcbb:bb00:201::", 0);
    assert_eq!(asked[0][22..38], stack.own.link_local().octets());
    assert_eq!(ask(&mut stack, "10.1.0.1", 0).1.len(), 1, "and by ARP for a gateway of IPv4");
}

#[test]
fn the_address_of_the_link_follows_from_the_ethernet_address() {
    let mut own = addresses("fd00::1", 0);
    own.mac = MacAddr([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert_eq!(own.link_local(), "fe80::11:22ff:fe33:4455".parse::<Ipv6Addr>().unwrap());
    own.mac = MacAddr([0x3c, 0xfd, 0xfe, 0x01, 0x02, 0x03]);
    assert_eq!(own.link_local(), "fe80::3efd:feff:fe01:203".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn old_answers_are_asked_for_again_and_used_meanwhile() {
    for [a, b] in ENDS {
        let (mut first, mut second) = (stack_of(addresses(a, 1)), stack_of(addresses(b, 2)));
        let asked = ask(&mut first, b, 0).1;
        let answer = tell(&mut second, &asked, 0);
        tell(&mut first, &answer, 0);
        let mut seen = Vec::new();
        for now in (0..20 * SECOND).step_by(10_000_000) {
            let mut out = Out::new();
            first.refresh(now, &mut out);
            first.refresh(now, &mut out);
            seen.extend(out.iter().map(|frame| (now / 100_000_000, frame[0] & 1)));
            assert_eq!(ask(&mut first, b, now), (Some(mac(2)), Out::new()));
        }
        // To the neighbour first, then to everybody.
        assert_eq!(seen[..4], [(100, 0), (101, 0), (102, 1), (103, 1)], "{a}");
        assert!(seen.len() < 16);
        // The neighbour has another Ethernet address now.
        let mut third = stack_of(addresses(b, 3));
        let mut out = Out::new();
        first.refresh(40 * SECOND, &mut out);
        first.refresh(40 * SECOND, &mut out);
        let answer = tell(&mut third, &out, 0);
        assert_eq!(answer.len(), 1);
        tell(&mut first, &answer, 40 * SECOND);
        assert_eq!(ask(&mut first, b, 40 * SECOND), (Some(mac(3)), Out::new()));
        let mut out = Out::new();
        for _ in 0..3 {
            first.refresh(49 * SECOND, &mut out);
        }
        assert_eq!(out, Out::new(), "fresh again");
    }
}

/// Linux checks a neighbour by a solicitation to its own address.
#[test]
fn a_solicitation_to_our_own_address_is_answered() {
    let own = addresses("fd00::1", 1);
    let mut stack = stack_of(addresses("fd00::2", 2));
    let probe = messages::solicitation(&own, "fd00::2".parse().unwrap(), Some(mac(2)));
    assert_eq!(probe[..6], mac(2).0);
    assert_eq!(tell(&mut stack, &vec![probe], 0).len(), 1);
    // Who looks for duplicates has no address yet: everybody hears the answer.
    let nobody = Addresses { local: ip("::"), ..own };
    let probe = messages::solicitation(&nobody, "fd00::2".parse().unwrap(), None);
    let answer = tell(&mut stack, &vec![probe], 0);
    assert_eq!(answer[0][..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answer[0][38..54], "ff02::1".parse::<Ipv6Addr>().unwrap().octets());
}

#[test]
fn neighbours_that_nothing_is_sent_to_are_not_kept() {
    for [a, b] in ENDS {
        let mut stack = stack_of(addresses(a, 1));
        let asked = ask(&mut stack_of(addresses(b, 2)), a, 0).1;
        assert_eq!(tell(&mut stack, &asked, 0).len(), 1, "answered");
        assert_eq!(stack.hops.len(), 1, "the fixed one");
        // But one that packets go to is learned from its question.
        assert_eq!(ask(&mut stack, b, 0).0, None);
        tell(&mut stack, &asked, 0);
        assert_eq!(ask(&mut stack, b, 1).0, Some(mac(2)));
    }
}

#[test]
fn memory_is_bounded() {
    let mut stack = stack_of(addresses("fd00::1", 1));
    for n in 0..2 * MOST as u128 {
        let to = IpAddr::from(std::net::Ipv6Addr::from_bits((0xfd00 << 112) | (n + 100)));
        stack.mac_of(to, 0, &mut Out::new());
    }
    assert!(stack.hops.len() <= MOST, "{}", stack.hops.len());
    assert_eq!(ask(&mut stack, "fd00::77", 0).0, Some(mac(77)), "fixed ones stay");
}

fn ping(from: &str, to: &str, data: &[u8]) -> Vec<u8> {
    match (ip(from), ip(to)) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let echo = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data };
            messages::icmpv6((mac(1), mac(2)), (from, to), 64, &echo)
        }
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let echo = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data };
            messages::icmpv4((mac(1), mac(2)), (from, to), &echo)
        }
        _ => unreachable!(),
    }
}

#[test]
fn pings_are_answered() {
    let data: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
    for [a, b] in ENDS {
        let mut stack = stack_of(addresses(b, 2));
        let request = ping(a, b, &data);
        let reply = tell(&mut stack, &vec![request.clone()], 0).pop().unwrap();
        assert_eq!((&reply[..6], &reply[6..12]), (&mac(1).0[..], &mac(2).0[..]));
        assert_eq!(reply.len(), request.len());
        assert!(reply.ends_with(&data));
        assert_eq!(tell(&mut stack, &vec![reply], 0), Out::new());
        // To somebody else, by another Ethernet address, or with a wrong checksum.
        assert_eq!(tell(&mut stack_of(addresses(a, 2)), &vec![request.clone()], 0), Out::new());
        assert_eq!(tell(&mut stack_of(addresses(b, 3)), &vec![request.clone()], 0), Out::new());
        let mut garbled = request.clone();
        garbled[200] ^= 1;
        assert_eq!(tell(&mut stack, &vec![garbled], 0), Out::new());
    }
    let mut stack = stack_of(addresses("fd00::2", 2));
    let link_local = stack.own.link_local().to_string();
    assert_eq!(tell(&mut stack, &vec![ping("fe80::1", &link_local, b"x")], 0).len(), 1);
}

/// What comes from beyond a router proves nothing (RFC 4861, section 7.1).
#[test]
fn neighbour_discovery_from_afar_is_ignored() {
    let (mut first, mut second) = (stack_of(addresses("fd00::1", 1)), stack_of(addresses("fd00::2", 2)));
    let asked = ask(&mut first, "fd00::2", 0).1;
    let mut answer = tell(&mut second, &asked, 0);
    answer[0][21] = 254;
    tell(&mut first, &answer, 0);
    assert_eq!(ask(&mut first, "fd00::2", 0).0, None);
    // Nor is somebody else's word taken for our own address.
    let mut liar = stack_of(addresses("fd00::1", 9));
    let asked = ask(&mut second, "fd00::1", 0).1;
    let lie = tell(&mut liar, &asked, 0);
    first.hops.insert(ip("fd00::1"), Hop::default());
    tell(&mut first, &lie, 0);
    assert_eq!(first.hops[&ip("fd00::1")].mac, None);
}

/// An answer without the override flag does not replace what is known (RFC 4861, section 7.2.5).
#[test]
fn only_what_overrides_replaces() {
    let mut stack = stack_of(addresses("fd00::1", 1));
    ask(&mut stack, "fd00::2", 0);
    stack.learn(ip("fd00::2"), Some(mac(2)), false, 0);
    stack.learn(ip("fd00::2"), Some(mac(3)), false, 0);
    assert_eq!(ask(&mut stack, "fd00::2", 0).0, Some(mac(2)));
    stack.learn(ip("fd00::2"), Some(mac(3)), true, 0);
    assert_eq!(ask(&mut stack, "fd00::2", 0).0, Some(mac(3)));
    stack.learn(ip("fd00::77"), Some(mac(3)), true, 0);
    assert_eq!(ask(&mut stack, "fd00::77", 0).0, Some(mac(77)), "a fixed one stays");
}

/// The report of our groups, field by field (RFC 3810, section 5.2), and how often it is sent.
#[test]
fn switches_are_told_of_our_groups() {
    let mut stack = stack_of(addresses("fd00::12:3456", 2));
    let mut times = Vec::new();
    let mut out = Out::new();
    for second in 0..200 {
        let had = out.len();
        stack.announce(second * SECOND, &mut out);
        times.extend((had..out.len()).map(|_| second));
    }
    assert_eq!(times, [0, 1, 2, 62, 122, 182]);
    let report = &out[0];
    assert_eq!(report[..14], [0x33, 0x33, 0, 0, 0, 0x16, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]);
    let packet = Ipv6Packet::new_checked(&report[14..]).unwrap();
    assert_eq!((packet.hop_limit(), packet.next_header()), (1, IpProtocol::HopByHop));
    assert_eq!((packet.src_addr(), packet.dst_addr()), (stack.own.link_local(), "ff02::16".parse().unwrap()));
    assert_eq!(packet.payload()[..8], [58, 0, 5, 2, 0, 0, 1, 0]);
    let message = Icmpv6Packet::new_checked(&packet.payload()[8..]).unwrap();
    assert!(message.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    let bytes = &packet.payload()[8..];
    assert_eq!((bytes[0], &bytes[4..8], bytes.len()), (143, &[0, 0, 0, 2][..], 8 + 2 * 20));
    for (record, group) in bytes[8..].chunks(20).zip(["ff02::1:ff00:2", "ff02::1:ff12:3456"]) {
        assert_eq!(record[..4], [4, 0, 0, 0]);
        assert_eq!(record[4..], group.parse::<Ipv6Addr>().unwrap().octets());
    }
}

/// Changed and random frames neither panic nor make it say more than one frame each, and what it says can be read.
#[test]
fn nothing_that_arrives_makes_it_panic() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(11);
    for [a, b] in ENDS {
        let mut other = stack_of(addresses(a, 1));
        let asked = ask(&mut other, b, 0).1.pop().unwrap();
        let mut stack = stack_of(addresses(b, 2));
        let answer = tell(&mut stack, &vec![asked.clone()], 0).pop().unwrap();
        ask(&mut stack, a, 0);
        let frames = [asked, answer, ping(a, b, &[3; 100])];
        for turn in 0..60_000 {
            let mut frame = frames[turn % 3].clone();
            for _ in 0..random.next_u32() % 5 {
                let at = random.next_u32() as usize % frame.len();
                frame[at] = random.next_u32() as u8;
            }
            if turn % 4 == 0 {
                frame.truncate(random.next_u32() as usize % (frame.len() + 1));
            }
            if turn % 50 == 0 {
                frame.iter_mut().skip(14).for_each(|byte| *byte = random.next_u32() as u8);
            }
            let out = tell(&mut stack, &vec![frame], turn as u64);
            assert!(out.len() <= 1);
            for frame in out {
                assert!(frame.len() >= 60 && frame[6..12] == mac(2).0);
                tell(&mut other, &vec![frame], turn as u64);
            }
        }
    }
}

/// What a stack sends that looks for duplicates.
fn detect(stack: &mut Stack, now: u64) -> Out {
    let mut out = Out::new();
    stack.detect(true, now, &mut out);
    out
}

/// RFC 4862, sections 5.4.2 and 5.4.3, byte by byte.
#[test]
fn addresses_are_asked_for_once_and_used_after_a_second() {
    let mut stack = careful(1, "fd00::1", false);
    let mut out = Out::new();
    stack.detect(false, 0, &mut out);
    assert_eq!((out, stack.is_usable(), stack.detected_at()), (Out::new(), false, None), "no link");
    let asked = detect(&mut stack, 5);
    assert_eq!(asked.len(), 3, "the groups, and both addresses");
    for (frame, address) in asked[1..].iter().zip(["fd00::1", "fe80::ff:fe00:1"]) {
        let IpAddr::V6(address) = ip(address) else { panic!() };
        let group = messages::solicited_node(address);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0, 0, 1]);
        assert_eq!((&frame[6..12], &frame[12..14]), (&mac(1).0[..], &[0x86, 0xdd][..]));
        // No source, and the hop limit of what has passed no router.
        assert_eq!((frame[20], frame[21], &frame[22..38]), (58, 255, &[0; 16][..]));
        assert_eq!((&frame[38..54], &frame[54..56]), (&group.octets()[..], &[135, 0][..]));
        assert_eq!((&frame[62..78], &frame[78..86]), (&address.octets()[..], &[14, 1, 1, 1, 1, 1, 1, 1][..]));
    }
    for now in [6, SECOND, SECOND + 4] {
        assert_eq!((detect(&mut stack, now), stack.is_usable()), (Out::new(), false));
        assert_eq!(stack.detected_at(), Some(SECOND + 5));
    }
    // What the link loops back is no duplicate.
    assert_eq!(tell(&mut stack, &asked, SECOND), Out::new());
    assert_eq!((detect(&mut stack, SECOND + 5), stack.is_usable()), (Out::new(), true));
    assert_eq!((stack.is_detecting(), stack.duplicate()), (false, None));
}

/// The link is lost while nobody has answered: they may not have been asked.
#[test]
fn a_link_that_comes_back_has_its_nodes_asked_again() {
    let mut stack = careful(1, "fd00::1", false);
    assert_eq!(detect(&mut stack, 0).len(), 3);
    stack.detect(false, SECOND / 2, &mut Out::new());
    assert_eq!(stack.detected_at(), None);
    assert_eq!((detect(&mut stack, 2 * SECOND).len(), stack.is_usable()), (3, false));
    detect(&mut stack, 3 * SECOND);
    assert!(stack.is_usable());
}

/// A node that has the address, one that is about to use it, and nodes that have nothing to do with it.
#[test]
fn duplicates_are_found() {
    let asked = |last, local| detect(&mut careful(last, local, false), 0);
    let has_it = |stack: &Stack, last| {
        assert_eq!(
            stack.duplicate(),
            Some(Duplicate { address: "fd00::1".parse().unwrap(), mac: mac(last) })
        );
        assert!(!stack.is_usable() && !stack.is_detecting());
    };
    // It is in use.
    let (mut stack, mut owner) = (careful(1, "fd00::1", false), stack_of(addresses("fd00::1", 2)));
    let answers = tell(&mut owner, &detect(&mut stack, 0), 0);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][..6], [0x33, 0x33, 0, 0, 0, 1], "to all nodes");
    tell(&mut stack, &answers, 1);
    has_it(&stack, 2);
    detect(&mut stack, 10 * SECOND);
    has_it(&stack, 2);
    // Both are about to use it.
    let (mut first, mut second) = (careful(1, "fd00::1", false), careful(2, "fd00::1", true));
    let [from_first, from_second] = [&mut first, &mut second].map(|stack| detect(stack, 0));
    assert_eq!(tell(&mut first, &from_second, 1), Out::new());
    tell(&mut second, &from_first, 1);
    has_it(&first, 2);
    has_it(&second, 1);
    // Other addresses, and a node that looks for its neighbour.
    let mut stack = careful(1, "fd00::1", false);
    detect(&mut stack, 0);
    tell(&mut stack, &asked(3, "fd00::3"), 1);
    let looks = ask(&mut stack_of(addresses("fd00::4", 4)), "fd00::1", 1).1;
    assert_eq!(tell(&mut stack, &looks, 1), Out::new(), "a tentative address is not answered for");
    assert!(stack.is_detecting());
    detect(&mut stack, SECOND);
    assert!(stack.is_usable());
    assert_eq!(tell(&mut stack, &looks, SECOND).len(), 1);
    // What comes later is answered, and changes nothing: RFC 4862 leaves the address to who has it.
    assert_eq!(tell(&mut stack, &asked(5, "fd00::1"), SECOND).len(), 1);
    assert!(stack.is_usable());
}

#[test]
fn an_optimistic_address_is_used_at_once() {
    let mut stack = careful(1, "fd00::1", true);
    assert!(stack.is_usable() && stack.is_detecting());
    detect(&mut stack, 0);
    let looks = ask(&mut stack_of(addresses("fd00::4", 4)), "fd00::1", 1).1;
    assert_eq!(tell(&mut stack, &looks, 1).len(), 1);
    // What is looped back is not answered either, as the answer would come back, too.
    let mut stack = careful(1, "fd00::1", true);
    let asked = detect(&mut stack, 0);
    for now in [0, SECOND] {
        assert_eq!(tell(&mut stack, &asked, now), Out::new());
        detect(&mut stack, now);
    }
    assert!(!stack.is_detecting());
    assert_eq!(stack.duplicate(), None);
    // IPv4 has no such detection here.
    let stack = careful(1, "10.0.0.1", false);
    assert!(stack.is_usable() && !stack.is_detecting());
}

/// The kernel's interface under a port has the same Ethernet address, and so the same link-local one.
#[test]
fn an_address_that_the_kernel_shares_is_not_asked_for() {
    let search = Search { wait_ns: SECOND, optimistic: false, link_local: false, nonce: [1; NONCE_LEN] };
    let mut stack = Stack::new(addresses("fd00::1", 1), search);
    assert_eq!(detect(&mut stack, 0).len(), 2, "the groups, and the address");
    let kernel = detect(&mut careful(1, "fe80::ff:fe00:1", false), 0);
    assert_eq!(kernel.len(), 2, "one address");
    tell(&mut stack, &kernel, 1);
    assert!(stack.is_detecting());
    tell(&mut stack, &detect(&mut careful(2, "fd00::1", false), 0), 1);
    assert!(stack.duplicate().is_some());
}
