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

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use spindrift_bpf::{Assembler, Existing, Mode, Program, Reg, verdict};
use spindrift_srv6::{Behavior, F3216, Forwarder, Verdict};
use spindrift_switch::{Counts, NextHop, Port, Switch};

const BLOCK: u32 = 0xfcbb_bb00;
/// uSIDs of the switch: its own, that of its link to port 1, and one that takes outer packets off.
const NODE: u16 = 0xa01;
const LINK: u16 = 0xe101;
const END: u16 = 0xb02;
/// More links, those with even numbers to port 2 and the others to port 1: enough of them that the program does not try one after the other.
const MORE: std::ops::Range<u16> = 0xe110..0xe11a;
/// uSIDs of switches behind ports 1 and 2.
const BEHIND: [u16; 2] = [0xe001, 0x201];
/// A uSID that nobody has.
const NOBODY: u16 = 0x999;

/// Sources of all packets start with this, and nothing else on the wires does.
const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// Destinations inside, behind port 1 and port 2, and one that there is no route to.
const INSIDE: [&str; 3] = ["fd71::5", "fd72::5", "fd73::5"];

/// Packets come in by all of the ports but 2, which takes no long ones, and leave by 1 and 2.
const PORTS: usize = 5;
/// Longest packets of port 2 and of the others.
const MTU: [usize; 2] = [1400, 1500];

/// Of IPv6.
const ETHER_TYPE: [u8; 2] = [0x86, 0xdd];

/// Longer than any packet takes; only one that is lost meets it.
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// The number of a port's device in both namespaces.
fn index(port: usize, at_switch: bool) -> usize {
    70 + 2 * port + usize::from(at_switch)
}

fn mac(port: usize, at_switch: bool) -> [u8; 6] {
    [2, 0, 0, 0, 7, index(port, at_switch) as u8]
}

fn mtu(port: usize) -> usize {
    MTU[usize::from(port != 2)]
}

/// The segments of links, with their ports.
fn links() -> impl Iterator<Item = (u16, usize)> {
    MORE.map(|usid| (usid, 1 + usize::from(usid % 2 == 0))).chain([(LINK, 1)])
}

/// The switch and the neighbours around it, gone when dropped.
struct Lab {
    switch: String,
    outside: String,
}

impl Lab {
    /// A switch with ports whose other ends are `out0` and so on, outside.
    fn new(name: &str) -> Option<Self> {
        let [switch, outside] =
            ["switch", "outside"].map(|side| format!("sdsrv6-{name}-{side}-{}", std::process::id()));
        let this = Self { switch, outside };
        this.build().then_some(this)
    }

    fn build(&self) -> bool {
        let Self { switch, outside } = self;
        let sysctl = |name: &str, value| self.sysctl(&format!("conf.{name}"), value);
        let mut made = ip(&format!("netns add {switch}")) && ip(&format!("netns add {outside}"));
        made = made && sysctl("all.forwarding", 1) && sysctl("all.seg6_enabled", 1);
        for port in 0..PORTS {
            let mac = |at_switch| mac(port, at_switch).map(|byte| format!("{byte:02x}")).join(":");
            let end = |name: &str, netns: &str, at_switch| {
                let (mac, index) = (mac(at_switch), index(port, at_switch));
                format!("{name}{port} index {index} address {mac} mtu {} netns {netns}", mtu(port))
            };
            let pair = format!(
                "link add {} type veth peer name {}",
                end("p", switch, true),
                end("out", outside, false)
            );
            made = made
                && ip(&pair)
                && ip(&format!("-n {switch} link set p{port} addrgenmode none up"))
                && ip(&format!("-n {outside} link set out{port} addrgenmode none up"))
                && sysctl(&format!("p{port}.seg6_enabled"), 1)
                && ip(&format!("-n {switch} -6 address add fd7f:{port}::1/64 dev p{port} nodad"))
                && ip(&format!(
                    "-n {switch} -6 neigh add fd7f:{port}::2 lladdr {} dev p{port} nud permanent",
                    mac(false)
                ));
        }
        let route = |to: &str, how: &str| ip(&format!("-n {switch} -6 route add {to} {how}"));
        let local = |usid: u16, action: &str| {
            route(&format!("{}/48", carrier(&[usid])), &format!("encap seg6local action {action}"))
        };
        let flavor = "flavors next-csid lblen 32 nflen 16";
        let link =
            |usid, port| local(usid, &format!("End.X nh6 fd7f:{port}::2 oif p{port} {flavor} dev p{port}"));
        made && local(NODE, &format!("End {flavor} dev p0"))
            && links().all(|(usid, port)| link(usid, port))
            && local(END, "End.DT6 table 254 dev p0")
            && (1..=2).all(|port| {
                let via = format!("via fd7f:{port}::2 dev p{port}");
                route(&format!("{}/48", carrier(&[BEHIND[port - 1]])), &via)
                    && route(&format!("fd7{port}::/16"), &via)
            })
            && route("fd74::/16", "nexthop via fd7f:1::2 dev p1 nexthop via fd7f:2::2 dev p2")
    }

    /// Sets a setting of IPv6 at the switch.
    fn sysctl(&self, name: &str, value: u8) -> bool {
        let mut command = Command::new("ip");
        let setting = format!("net.ipv6.{name}={value}");
        command.args(["netns", "exec", &self.switch, "sysctl", "-qw", &setting]);
        command.output().is_ok_and(|out| out.status.success())
    }

    /// A socket outside that sends to and hears from a port.
    fn open(&self, port: usize) -> OwnedFd {
        let device = CString::new(format!("out{port}")).unwrap();
        within(&self.outside, move || {
            let all = (libc::ETH_P_ALL as u16).to_be();
            // SAFETY: plain calls with live values of the right sizes; the socket is nobody else's.
            unsafe {
                let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_PACKET, kind, i32::from(all)));
                let mut address: libc::sockaddr_ll = core::mem::zeroed();
                address.sll_family = libc::AF_PACKET as u16;
                address.sll_protocol = all;
                address.sll_ifindex = libc::if_nametoindex(device.as_ptr()) as i32;
                let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
                assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len), 0);
                socket
            }
        })
    }

    /// Has the switch use the program, with the segments that the kernel has.
    fn attach(&self, mode: Mode) -> Switch {
        let ports = (0..PORTS).map(|port| Port {
            interface: index(port, true) as u32,
            mac: mac(port, true),
            mtu: mtu(port) as u16,
        });
        let ports: Vec<_> = ports.collect();
        let next = |port| NextHop { interface: index(port, true) as u32, mac: mac(port, false) };
        let mut segments = vec![(NODE, Behavior::Node), (END, Behavior::Decapsulate)];
        segments.extend(links().map(|(usid, port)| (usid, Behavior::Adjacency(next(port)))));
        let segments: Vec<_> =
            segments.into_iter().map(|(usid, behavior)| (segment(usid), behavior)).collect();
        if mode == Mode::Native {
            // Neighbours that take packets as frames.
            within(&self.outside, || {
                let mut text = Assembler::new();
                text.mov(Reg::R0, verdict::PASS).exit();
                let all = Program::load("pass", text).unwrap();
                for port in 0..PORTS {
                    let interface = index(port, false) as u32;
                    spindrift_bpf::attach(interface, &all, mode, Existing::Refuse).unwrap();
                }
            });
        }
        within(&self.switch, move || {
            let switch = Switch::load(&ports, &segments).unwrap();
            switch.attach(mode).unwrap();
            let of_port = |port| spindrift_bpf::attached(index(port, true) as u32).unwrap();
            assert!((0..PORTS).all(|port| of_port(port).is_some_and(|attached| attached.mode == mode)));
            // No port has two, and one that has none is as it was.
            spindrift_bpf::detach(index(0, true) as u32, mode).unwrap();
            let error = switch.attach(mode).unwrap_err().to_string();
            let id = of_port(1).unwrap().program;
            assert!(
                error.contains(&format!("interface {}", index(1, true))) && error.contains(&id.to_string()),
                "{error}"
            );
            assert_eq!(of_port(0), None);
            switch.detach(mode).unwrap();
            assert!((0..PORTS).all(|port| of_port(port).is_none()));
            switch.attach(mode).unwrap();
            switch
        })
    }
}

/// Does something in a network namespace.
fn within<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    let go = move || {
        // SAFETY: a plain call; only this short thread changes its namespace.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        work()
    };
    std::thread::scope(|scope| scope.spawn(go).join().unwrap())
}

impl Drop for Lab {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.switch));
        ip(&format!("netns del {}", self.outside));
    }
}

fn send(socket: &OwnedFd, frame: &[u8]) {
    // SAFETY: the bytes live during the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
}

/// A frame that came in; `None` when there is none now.
fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2048];
    loop {
        // SAFETY: `from` and `len` are live and of the right size, and the buffer is as long as is said.
        let (len, from) = unsafe {
            let mut from: libc::sockaddr_ll = core::mem::zeroed();
            let mut room = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            let buffer = frame.as_mut_ptr().cast();
            let len = libc::recvfrom(
                socket.as_raw_fd(),
                buffer,
                frame.len(),
                0,
                (&raw mut from).cast(),
                &raw mut room,
            );
            (len, from)
        };
        if from.sll_pkttype == libc::PACKET_OUTGOING {
            continue;
        }
        frame.truncate(usize::try_from(len).ok()?);
        return Some(frame);
    }
}

fn carrier(usids: &[u16]) -> Ipv6Addr {
    F3216::new(BLOCK, usids).unwrap().address()
}

fn segment(usid: u16) -> F3216 {
    F3216::new(BLOCK, &[usid]).unwrap()
}

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

fn header(next: u8, hop_limit: u8, to: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    let [high, low] = (rest.len() as u16).to_be_bytes();
    let mut packet = vec![0x60, 0x21, 0x23, 0x45, high, low, next, hop_limit];
    packet.extend(SOURCE.octets());
    packet.extend(to.octets());
    packet.extend(rest);
    packet
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

/// The number at the end of a packet, if it is one of ours.
fn number_of(packet: &[u8]) -> Option<u32> {
    let ours = packet.len() > 40 && packet[8..24] == SOURCE.octets();
    ours.then(|| u32::from_be_bytes(*packet.last_chunk().unwrap()))
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

/// A packet, and what should become of it.
struct Sent {
    packet: Vec<u8>,
    out: Option<(usize, Vec<u8>)>,
}

/// What the switch has made of the packets that are out, each as expected; how many came out of each port.
fn arrivals(sockets: &[OwnedFd; PORTS], sent: &BTreeMap<u32, Sent>) -> [usize; PORTS] {
    let mut expected = sent.values().filter(|sent| sent.out.is_some()).count();
    let mut arrived = [0; PORTS];
    let deadline = Instant::now() + PATIENCE;
    while expected > 0 {
        assert!(Instant::now() < deadline, "{expected} packets did not come");
        for (port, socket) in sockets.iter().enumerate() {
            while let Some(frame) = receive(socket) {
                let Some(number) = number_of(&frame[14..]) else { continue };
                let Sent { packet, out } = &sent[&number];
                assert_eq!(
                    Some((port, &frame[14..])),
                    out.as_ref().map(|(to, out)| (*to, &out[..])),
                    "{packet:02x?}"
                );
                assert_eq!(frame[..12], [mac(port, false), mac(port, true)].concat());
                arrived[port] += 1;
                expected -= 1;
            }
        }
    }
    arrived
}

/// A frame from the other end of a port.
fn framed(port: usize, packet: &[u8]) -> Vec<u8> {
    [&mac(port, true)[..], &mac(port, false), &ETHER_TYPE, packet].concat()
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

fn skipped() {
    eprintln!("skipped: no permission to make network namespaces, no `ip`, or a kernel without seg6local");
}

/// Sends packets through the kernel, with the program or without, and through the forwarder.
fn compare(name: &str, mode: Option<Mode>) {
    const BATCHES: u32 = 64;
    const BATCH: u32 = 64;
    let Some(lab) = Lab::new(name) else { return skipped() };
    let program = mode.map(|mode| lab.attach(mode));
    let sockets = core::array::from_fn(|port| lab.open(port));
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
    if let Some(program) = program {
        let Counts { forwarded: by_program, passed } = program.counts().unwrap();
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
    let sockets = core::array::from_fn(|port| lab.open(port));
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
            let program = lab.attach(Mode::Generic);
            assert_eq!(choices(&sockets, &packets), kernel, "policy {policy}, {what}");
            assert_eq!(program.counts().unwrap().forwarded, packets.len() as u64);
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
