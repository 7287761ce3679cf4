//! The forwarder beside Linux, and beside Linux with the XDP program: the same packets go through all of them, with the same segments
//! and routes, and what comes out must be the same, byte for byte from the IPv6 header on. Needs root and `ip` in two network
//! namespaces, which each test makes and removes; without them it says so and passes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests"
)]
#![allow(clippy::disallowed_methods, reason = "programs are started, and time passes")]

mod support;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spindrift_bpf::Mode;
use spindrift_srv6::{Behavior, Forwarder, Verdict};
use spindrift_switch::{Counts, Rules};
use support::{
    BEHIND, BLOCK, END, ETHER_TYPE, INSIDE, LINK, Lab, MORE, NOBODY, NODE, PATIENCE, PORTS, Sent, arrivals,
    carrier, framed, header, index, links, mac, mtu, receive, segment, send, skipped, within,
};

/// The same segments and routes.
fn forwarder() -> Forwarder<usize> {
    let mut switch = Forwarder::default();
    let mut add = |usid, behavior| switch.add_segment(segment(usid), behavior).unwrap();
    add(NODE, Behavior::Node);
    add(END, Behavior::Decapsulate);
    links().for_each(|(usid, port)| add(usid, Behavior::Adjacency(port)));
    for port in 1..=2 {
        switch.add_route(format!("{}/48", carrier(&[BEHIND[port - 1]])).parse().unwrap(), [port]).unwrap();
        switch.add_route(format!("fd7{port}::/16").parse().unwrap(), [port]).unwrap();
    }
    switch
}

/// Which port a packet leaves by, and as what.
fn expected(switch: &Forwarder<usize>, packet: &[u8]) -> Option<(usize, Vec<u8>)> {
    let mut packet = packet.to_vec();
    match switch.forward(&mut packet).ok()? {
        // What is too long is dropped, and its sender is told.
        Verdict::Forward(&port) => (packet.len() <= mtu(port)).then_some((port, packet)),
        Verdict::Inner(at) => expected(switch, &packet[at..]),
        Verdict::Deliver => None,
    }
}

/// A packet with a number in it, of a kind and along a path that are drawn at random.
fn draw(number: u32, rng: &mut SmallRng) -> Vec<u8> {
    let path = |rng: &mut SmallRng| {
        let more = rng.random_range(MORE);
        let all = [NODE, NODE, NODE, LINK, more, END, BEHIND[0], BEHIND[1], NOBODY];
        let usids: Vec<u16> =
            (0..rng.random_range(1..=6)).map(|_| all[rng.random_range(0..all.len())]).collect();
        carrier(&usids)
    };
    let hop_limit = [1, 2, 3, 64, 255][rng.random_range(0..5)];
    let inside = INSIDE[rng.random_range(0..3)].parse().unwrap();
    let mut udp = vec![0xc0, 1, 0x12, 0x83, 0, 12, 0, 0];
    udp.extend(number.to_be_bytes());
    let inner = header(17, hop_limit, inside, &udp);
    let to = path(rng);
    match rng.random_range(0..8) {
        0 => inner,
        1 => header(17, hop_limit, to, &udp),
        2..5 => header(41, hop_limit, to, &inner),
        _ => {
            let segments = rng.random_range(1..=3_u8);
            let left = rng.random_range(0..=segments);
            let mut routing = vec![41, 2 * segments, 4, left, segments - 1, 0, 0, 0];
            (0..segments).for_each(|_| routing.extend(path(rng).octets()));
            // A header that contradicts itself, or is another. (The kernel also reads what may stand behind the segments.)
            match rng.random_range(0..20) {
                0 => routing[1] = rng.random_range(0..2 * segments),
                1 => routing[2] = rng.random_range(0..4),
                2 => routing[3] = rng.random_range(0..=255),
                _ => {}
            }
            routing.extend(inner);
            header(43, hop_limit, to, &routing)
        }
    }
}

/// Whether the program takes a packet, of which nothing is odd: it leaves after one look at the switch's own segments.
fn taken(packet: &[u8]) -> bool {
    let usid = |at: usize| u16::from_be_bytes([packet[28 + 2 * at], packet[29 + 2 * at]]);
    let behind = |usid| BEHIND.contains(&usid);
    // The path goes on in the address.
    let goes_on = packet[30..40].iter().any(|&byte| byte != 0);
    let by_segment = match usid(0) {
        NODE => goes_on && behind(usid(1)),
        first if behind(first) => true,
        first => goes_on && links().any(|(usid, _)| usid == first),
    };
    let block = packet[24..28] == BLOCK.to_be_bytes();
    packet[7] > 1 && if block { by_segment } else { packet[24..26] != [0xfd, 0x73] }
}

/// A frame as it comes to a port, what should become of it, and whether the program takes it.
fn frame(number: u32, port: usize, switch: &Forwarder<usize>, rng: &mut SmallRng) -> (Vec<u8>, Sent, bool) {
    let inside = INSIDE[rng.random_range(0..2)].parse().unwrap();
    let end = number.to_be_bytes();
    let (mut to, mut kind) = (mac(port, true), ETHER_TYPE);
    let mut packet = draw(number, rng);
    let mut out = expected(switch, &packet);
    let mut plain = taken(&packet) && out.is_some();
    match rng.random_range(0..40) {
        0 => {
            // To somebody else.
            to[rng.random_range(1..6)] ^= 0x80;
            (out, plain) = (None, false);
        }
        1 => {
            packet[5] += 1;
            (out, plain) = (None, false);
        }
        2 => {
            packet.extend(end);
            plain = false;
        }
        3 => {
            let paths = [carrier(&[NODE, BEHIND[0]]), carrier(&[LINK, NOBODY]), inside];
            packet = header(17, 64, paths[rng.random_range(0..3)], &[[0; 4], end].concat());
            let sources = ["fe80::1", "ff0e::1", "::1", "::", "::ffff:1.2.3.4"];
            let source: Ipv6Addr = sources[rng.random_range(0..5)].parse().unwrap();
            packet[8..24].copy_from_slice(&source.octets());
            (out, plain) = (None, false);
        }
        8 => {
            packet[0] ^= 0x20;
            (out, plain) = (None, false);
        }
        9 => {
            kind[1] ^= 1;
            (out, plain) = (None, false);
        }
        4 => {
            // Eight bytes of hop-by-hop options that are none.
            packet = header(0, 64, inside, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &[0; 8], &end].concat());
            (out, plain) = (expected(switch, &packet), false);
        }
        5..8 => {
            let rest = [&vec![0; rng.random_range(1340..=1456)][..], &end].concat();
            packet = header(17, 64, carrier(&[rng.random_range(MORE), NOBODY]), &rest);
            if rng.random() {
                packet = header(17, 64, inside, &rest);
            }
            out = expected(switch, &packet);
            plain = out.is_some();
        }
        _ => {}
    }
    let mut frame = [to, mac(port, false)].concat();
    frame.extend(kind);
    frame.extend(&packet);
    (frame, Sent { packet, out }, plain)
}

/// Sends packets through the kernel, with the program or without, and through the forwarder.
fn compare(name: &str, mode: Option<Mode>) {
    const BATCHES: u32 = 64;
    const BATCH: u32 = 64;
    let Some(lab) = Lab::new(name) else { return skipped() };
    let program = mode.map(|mode| lab.attach(mode, &Rules::default()));
    let sockets = lab.sockets();
    let (switch, mut rng) = (forwarder(), SmallRng::seed_from_u64(7));
    let (mut arrived, mut forwarded) = ([0; PORTS], 0);
    for batch in 0..BATCHES {
        let mut sent = BTreeMap::new();
        let port = [0, 1, 3, 4][batch as usize % 4];
        for number in batch * BATCH..(batch + 1) * BATCH {
            let (mut frame, mut this, mut plain) = frame(number, port, &switch, &mut rng);
            // The last of each batch comes out for sure, so that whatever is ahead of it has come, too.
            if number % BATCH == BATCH - 1 {
                let rest = [[0; 4], number.to_be_bytes()].concat();
                let packet = header(17, 64, INSIDE[0].parse().unwrap(), &rest);
                frame = framed(port, &packet);
                (this, plain) = (Sent { out: expected(&switch, &packet), packet }, true);
            }
            send(&sockets[port], &frame);
            sent.insert(number, this);
            forwarded += u64::from(plain);
        }
        for (sum, count) in arrived.iter_mut().zip(arrivals(&sockets, &sent)) {
            *sum += count;
        }
    }
    eprintln!("{arrived:?} of {} packets left by each port, {forwarded} of them soon", BATCHES * BATCH);
    assert!(arrived[1] > 300 && arrived[2] > 300 && arrived[0] + arrived[3] + arrived[4] == 0, "{arrived:?}");
    if let Some((switch, _)) = program {
        let Counts { forwarded: by_program, passed } = switch.counts().unwrap();
        assert_eq!(by_program, forwarded);
        assert!(passed > 0 && by_program > 1000, "{by_program} forwarded, {passed} passed");
    }
}

#[test]
fn the_kernel_forwards_the_same_packets_the_same_way() {
    compare("kernel", None);
}

#[test]
fn so_does_the_program_in_the_driver() {
    compare("native", Some(Mode::Native));
}

#[test]
fn so_does_the_program_in_the_network_stack() {
    compare("generic", Some(Mode::Generic));
}

/// The port that each packet leaves by, of those that come in by port 0 with their numbers at their ends.
fn choices(sockets: &[OwnedFd; PORTS], packets: &[Vec<u8>]) -> Vec<usize> {
    let mut chosen = vec![None; packets.len()];
    let deadline = Instant::now() + PATIENCE;
    for batch in packets.chunks(64) {
        for packet in batch {
            send(&sockets[0], &framed(0, packet));
        }
        let mut left = batch.len();
        while left > 0 {
            assert!(Instant::now() < deadline, "{left} packets did not come");
            for (port, socket) in sockets.iter().enumerate() {
                while let Some(frame) = receive(socket) {
                    let Some(packet) = frame.get(54..).filter(|_| frame[38..40] == [0xfd, 0x74]) else {
                        continue;
                    };
                    let number = u32::from_be_bytes(*packet.last_chunk().unwrap());
                    assert_eq!(chosen[number as usize].replace(port), None);
                    left -= 1;
                }
            }
        }
    }
    chosen.into_iter().map(Option::unwrap).collect()
}

/// Of several next hops, the program takes the one that the kernel takes, whichever part of a packet differs.
#[test]
fn both_choose_the_same_of_several_next_hops() {
    let Some(lab) = Lab::new("multipath") else { return skipped() };
    let sockets = lab.sockets();
    let mut rng = SmallRng::seed_from_u64(8);
    // What differs: flow label, source, destination, ports, protocol.
    for (policy, counts) in [(0, [true, true, true, false]), (1, [false, true, true, true])] {
        assert!(lab.sysctl("fib_multipath_hash_policy", policy));
        for what in 0..5 {
            let packets: Vec<_> = (0..192_u32)
                .map(|number| {
                    let mut udp = vec![0xc0, 1, 0x12, 0x83, 0, 12, 0, 0];
                    udp.extend(number.to_be_bytes());
                    let mut packet = header(17, 64, "fd74::5".parse().unwrap(), &udp);
                    match what {
                        0 => packet[2..4].fill_with(|| rng.random()),
                        1 => packet[20..24].fill_with(|| rng.random()),
                        2 => packet[36..40].fill_with(|| rng.random()),
                        3 => packet[40..44].fill_with(|| rng.random()),
                        _ if number % 2 == 0 => {}
                        // Without ports that the program looks at.
                        _ => packet[6] = 59,
                    }
                    packet
                })
                .collect();
            let kernel = choices(&sockets, &packets);
            let (switch, program) = lab.attach(Mode::Generic, &Rules::default());
            assert_eq!(choices(&sockets, &packets), kernel, "policy {policy}, {what}");
            assert_eq!(switch.counts().unwrap().forwarded, packets.len() as u64);
            within(&lab.switch, || program.detach(Mode::Generic).unwrap());
            let first = kernel.iter().filter(|&&port| port == 1).count();
            // Whether they all leave by the same port says nothing of protocols, of which there are two.
            let spread = first > 0 && first < packets.len();
            assert!(
                counts.get(what).is_none_or(|&counts| counts == spread),
                "policy {policy}, {what}: {first}"
            );
        }
    }
}

/// No port has two programs, and one that has none is as it was; a program can take the place of another.
#[test]
fn ports_have_all_the_program_or_none_has_it() {
    for mode in [Mode::Native, Mode::Generic] {
        let Some(lab) = Lab::new("attach") else { return skipped() };
        let (switch, program) = lab.attach(mode, &Rules::default());
        let other = switch.load(&Rules::default()).unwrap();
        within(&lab.switch, move || {
            let of_port = |port| spindrift_bpf::attached(index(port, true) as u32).unwrap();
            assert!((0..PORTS).all(|port| of_port(port).is_some_and(|attached| attached.mode == mode)));
            spindrift_bpf::detach(index(0, true) as u32, mode).unwrap();
            let error = other.attach(mode).unwrap_err().to_string();
            let first = of_port(1).unwrap();
            let place = format!("interface {}", index(1, true));
            assert!(error.contains(&place) && error.contains(&first.program.to_string()), "{error}");
            assert_eq!(of_port(0), None);
            other.replace(mode).unwrap();
            let second = of_port(0).unwrap();
            assert!(second.program != first.program && second.mode == mode);
            assert!((0..PORTS).all(|port| of_port(port) == Some(second)));
            program.detach(mode).unwrap();
            assert!((0..PORTS).all(|port| of_port(port).is_none()));
        });
    }
}
