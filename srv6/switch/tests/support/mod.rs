//! A switch and the neighbours around it, in two network namespaces that go when the test ends.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use spindrift_bpf::{Assembler, Existing, Mode, Program, Reg, verdict};
pub use spindrift_pmd::testing::within;
use spindrift_srv6::{Behavior, F3216};
use spindrift_switch::{NextHop, Pipeline, Port, Rules, Switch};

pub const BLOCK: u32 = 0xfcbb_bb00;
/// uSIDs of the switch: its own, that of its link to port 1, and one that takes outer packets off.
pub const NODE: u16 = 0xa01;
pub const LINK: u16 = 0xe101;
pub const END: u16 = 0xb02;
/// More links, those with even numbers to port 2 and the others to port 1: enough of them that the program does not try one after the other.
pub const MORE: std::ops::Range<u16> = 0xe110..0xe11a;
/// uSIDs of switches behind ports 1 and 2.
pub const BEHIND: [u16; 2] = [0xe001, 0x201];
/// A uSID that nobody has.
pub const NOBODY: u16 = 0x999;

/// Sources of all packets start with this, and nothing else on the wires does.
pub const SOURCE: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// Destinations inside, behind port 1 and port 2, and one that there is no route to.
pub const INSIDE: [&str; 3] = ["fd71::5", "fd72::5", "fd73::5"];

/// Packets come in by all of the ports but 2, which takes no long ones, and leave by 1 and 2.
pub const PORTS: usize = 5;
/// Longest packets of port 2 and of the others.
pub const MTU: [usize; 2] = [1400, 1500];

/// Of IPv6.
pub const ETHER_TYPE: [u8; 2] = [0x86, 0xdd];

/// Longer than any packet takes; only one that is lost meets it.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split_whitespace()).output().is_ok_and(|out| out.status.success())
}

/// The number of a port's device in both namespaces.
pub fn index(port: usize, at_switch: bool) -> usize {
    70 + 2 * port + usize::from(at_switch)
}

pub fn mac(port: usize, at_switch: bool) -> [u8; 6] {
    [2, 0, 0, 0, 7, index(port, at_switch) as u8]
}

pub fn mtu(port: usize) -> usize {
    MTU[usize::from(port != 2)]
}

/// The segments of links, with their ports.
pub fn links() -> impl Iterator<Item = (u16, usize)> {
    MORE.map(|usid| (usid, 1 + usize::from(usid % 2 == 0))).chain([(LINK, 1)])
}

/// The switch and the neighbours around it, gone when dropped.
pub struct Lab {
    pub switch: String,
    pub outside: String,
}

impl Lab {
    /// A switch with ports whose other ends are `out0` and so on, outside.
    pub fn new(name: &str) -> Option<Self> {
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
    pub fn sysctl(&self, name: &str, value: u8) -> bool {
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

    /// Sockets of all ports.
    pub fn sockets(&self) -> [OwnedFd; PORTS] {
        core::array::from_fn(|port| self.open(port))
    }

    /// The switch with the segments that the kernel has, on no port yet.
    pub fn switch(&self) -> Switch {
        let ports: Vec<_> = (0..PORTS).map(port).collect();
        within(&self.switch, move || Switch::new(&ports, &segments()).unwrap())
    }

    /// Has the neighbours take packets as frames.
    pub fn take_frames(&self) {
        within(&self.outside, || {
            let mut text = Assembler::new();
            text.mov(Reg::R0, verdict::PASS).exit();
            let all = Program::load("pass", text).unwrap();
            for port in 0..PORTS {
                let interface = index(port, false) as u32;
                spindrift_bpf::attach(interface, &all, Mode::Native, Existing::Refuse).unwrap();
            }
        });
    }

    /// Has the switch use a program with these rules.
    pub fn attach(&self, mode: Mode, rules: &Rules) -> (Switch, Pipeline) {
        if mode == Mode::Native {
            self.take_frames();
        }
        let switch = self.switch();
        let pipeline = switch.load(rules).unwrap();
        within(&self.switch, || pipeline.attach(mode).unwrap());
        (switch, pipeline)
    }
}

/// A port of the switch.
pub fn port(number: usize) -> Port {
    Port { interface: index(number, true) as u32, mac: mac(number, true), mtu: mtu(number) as u16 }
}

/// The segments of the switch.
pub fn segments() -> Vec<(F3216, Behavior<NextHop>)> {
    let next = |port| NextHop { interface: index(port, true) as u32, mac: mac(port, false) };
    let mut segments = vec![(NODE, Behavior::Node), (END, Behavior::Decapsulate)];
    segments.extend(links().map(|(usid, port)| (usid, Behavior::Adjacency(next(port)))));
    segments.into_iter().map(|(usid, behavior)| (segment(usid), behavior)).collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.switch));
        ip(&format!("netns del {}", self.outside));
    }
}

pub fn send(socket: &OwnedFd, frame: &[u8]) {
    // SAFETY: the bytes live during the call.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
}

/// A frame that came in; `None` when there is none now.
pub fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
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

pub fn carrier(usids: &[u16]) -> Ipv6Addr {
    F3216::new(BLOCK, usids).unwrap().address()
}

pub fn segment(usid: u16) -> F3216 {
    F3216::new(BLOCK, &[usid]).unwrap()
}

pub fn header(next: u8, hop_limit: u8, to: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    let [high, low] = (rest.len() as u16).to_be_bytes();
    let mut packet = vec![0x60, 0x21, 0x23, 0x45, high, low, next, hop_limit];
    packet.extend(SOURCE.octets());
    packet.extend(to.octets());
    packet.extend(rest);
    packet
}

/// The number at the end of a packet, if it is one of ours.
pub fn number_of(packet: &[u8]) -> Option<u32> {
    let ours = packet.len() > 40 && packet[8..24] == SOURCE.octets();
    ours.then(|| u32::from_be_bytes(*packet.last_chunk().unwrap()))
}

/// A packet, and what should become of it.
pub struct Sent {
    pub packet: Vec<u8>,
    pub out: Option<(usize, Vec<u8>)>,
}

/// What the switch has made of the packets that are out, each as expected; how many came out of each port.
pub fn arrivals(sockets: &[OwnedFd; PORTS], sent: &BTreeMap<u32, Sent>) -> [usize; PORTS] {
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
pub fn framed(port: usize, packet: &[u8]) -> Vec<u8> {
    [&mac(port, true)[..], &mac(port, false), &ETHER_TYPE, packet].concat()
}

pub fn skipped() {
    eprintln!("skipped: no permission to make network namespaces, no `ip`, or a kernel without seg6local");
}
