//! `spindrift lab fault`: what it breaks is broken, nothing else is, and what is healed is as it was. Needs root, `ip`, `tc`, `nft` and
//! network namespaces; without them the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::lab::{KINDS, Lab, PATIENCE, name};
use support::pauses::Pauses;
use support::{Running, end_of, stderr, stdout};

/// How long nothing has to arrive before nothing is taken to be on its way.
const QUIET: Duration = Duration::from_millis(100);

/// Few enough for the receiver's buffer.
const DATAGRAMS: usize = 100;

/// Fewer, since they are longer.
const BURST: usize = 70;

impl Lab {
    /// What the kernel of each node knows, one thing a line.
    fn kernel(&self) -> BTreeMap<String, Vec<String>> {
        let nodes = Command::new("ip").args(["netns", "list"]).output().unwrap();
        let nodes: Vec<_> = stdout(&nodes)
            .lines()
            .filter_map(|line| line.split(' ').next().filter(|name| name.starts_with(&self.namespace(""))))
            .map(str::to_owned)
            .collect();
        let of = |node: &String| {
            let mut lines = Vec::new();
            for what in
                ["-o link", "-o -6 address", "-o -6 route show table all", "-6 neighbour show nud permanent"]
            {
                let ip = Command::new("ip").args(["-n", node]).args(what.split(' ')).output().unwrap();
                lines.extend(stdout(&ip).lines().map(str::to_owned));
            }
            lines.sort();
            lines
        };
        nodes.iter().map(|node| (node.clone(), of(node))).collect()
    }
}

/// The address of a host in `configs/lab`.
fn address(t0: u16, plane: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd5d, 0x7072, 0, t0, 0, 0, plane, host)
}

/// Sends datagrams with a flow label.
fn send(from: &UdpSocket, to: &UdpSocket, label: u32, count: usize) {
    let std::net::SocketAddr::V6(mut address) = to.local_addr().unwrap() else { panic!("IPv6") };
    address.set_flowinfo(label.to_be());
    for number in 0..count {
        // Where there is no carrier, there is no route.
        let _ = from.send_to(&[number as u8; 64], address);
    }
}

/// Sends datagrams and counts those that arrive: all of them, or those that do until it gets quiet.
fn arrive(from: &UdpSocket, to: &UdpSocket, label: u32, expected: usize) -> usize {
    send(from, to, label, DATAGRAMS);
    received(to, expected)
}

fn received(to: &UdpSocket, expected: usize) -> usize {
    let mut bytes = [0; 2048];
    let mut count = 0;
    loop {
        to.set_read_timeout(Some(if count < expected { PATIENCE } else { QUIET })).unwrap();
        match to.recv(&mut bytes) {
            Ok(_) => count += 1,
            Err(_) => return count,
        }
    }
}

fn set(socket: &UdpSocket, option: i32, value: i32) {
    let len = size_of_val(&value) as u32;
    // SAFETY: a plain call with a live descriptor, and the address and the length of a value that outlives it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            option,
            std::ptr::from_ref(&value).cast(),
            len,
        )
    };
    assert_eq!(result, 0, "option {option}");
}

/// So that flow labels are those of the address.
const IPV6_FLOWINFO_SEND: i32 = 33;

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn filters_take_the_packets_that_they_are_told() {
    for lab in Lab::each("filters", &KINDS) {
        lab.up("one-plane.toml");
        let one = lab.socket("h1", address(0, 0, 1), 20_000);
        let two = lab.socket("h2", address(0, 0, 2), 30_000);
        for socket in [&one, &two] {
            set(socket, IPV6_FLOWINFO_SEND, 1);
        }
        let label = 0x5678;
        let both = |expected: (bool, bool)| {
            let there = |yes| if yes { DATAGRAMS } else { 0 };
            let (to, fro) = (there(expected.0), there(expected.1));
            let found = (arrive(&one, &two, label, to), arrive(&two, &one, label, fro));
            (found == (to, fro)).then_some(2 * DATAGRAMS - to - fro).ok_or(found)
        };
        assert_eq!(both((true, true)), Ok(0));
        for (place, fault, there, back) in [
            ("h1:p0-t0-0", "blackhole", false, false),
            ("p0-t0-0:h1", "blackhole,dir=up", false, true),
            ("h1:p0-t0-0", "blackhole,dir=down", true, false),
            ("h2:p0-t0-0", "loss=100%,dir=up", true, false),
            ("h2:p0-t0-0", "loss=100%,dir=down", false, true),
            ("h1", "blackhole", false, false),
            ("h1", "blackhole,dir=down", true, false),
            // What a switch forwards is lost once, as it comes in.
            ("p0-t0-0", "blackhole", false, false),
            ("p0-t0-0", "loss=100%,dir=up", false, false),
            ("h1:p0-t0-0", "blackhole,sport=20000", false, true),
            ("h1:p0-t0-0", "blackhole,sport=20001", true, true),
            ("p0-t0-0", "blackhole,sport=30000", true, false),
            ("h2:p0-t0-0", "blackhole,ev=0x4e205678", false, true),
            ("h2:p0-t0-0", "blackhole,ev=0x4e205679", true, true),
            ("h2:p0-t0-0", "blackhole,ev=0x4e215678", true, true),
            ("h2:p0-t0-0", "loss=100%,dir=up,ev=0x4e205678", true, true),
        ] {
            let said = lab.ok(&["fault", place, fault]);
            assert!(said.starts_with(&format!("{place}: {fault} on ")), "{said}");
            let lost = both((there, back));
            assert_eq!(lost, Ok(lab.taken()), "{place} {fault}: {:?}", lab.faults());
            lab.ok(&["heal", place]);
            assert_eq!((lab.named(), both((true, true))), (vec![], Ok(0)), "{place} {fault}");
        }
        // The upper four bits of the flow label are no part of an entropy value.
        lab.ok(&["fault", "h1:p0-t0-0", "blackhole,ev=0x4e205678"]);
        assert_eq!(arrive(&one, &two, 0x9_5678, 0), 0);
        // It is the program that saw them, where there is one.
        let by_program = |told: &Value| told["forwarded"].as_u64().unwrap() > 20 * DATAGRAMS as u64;
        let switches = lab.status()["switches"].as_array().unwrap().clone();
        assert_eq!(switches.iter().any(by_program), lab.switch() != ["--switch", "kernel"], "{switches:?}");
        let told = lab.ok(&["exec", "p0-t0-0", "--", "nft", "-j", "list", "counters"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let by_kernel = told["nftables"][1]["counter"]["packets"].as_u64().unwrap() as usize;
        assert_eq!((by_kernel, lab.taken()), (if switches.is_empty() { DATAGRAMS } else { 0 }, DATAGRAMS));
    }
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn entropy_values_inside_outer_packets_are_seen() {
    for lab in Lab::each("inside", &KINDS) {
        lab.up("two-plane.toml");
        let (from, to) = (address(0, 1, 1), address(1, 1, 1));
        let (sender, receiver) = (lab.socket("h1", from, 0x4000), lab.socket("h3", to, 4971));
        set(&sender, IPV6_FLOWINFO_SEND, 1);
        let route = format!(
            "-n {} -6 route replace {to}/128 encap seg6 mode encap.red segs fcbb:bb00:4200:8201:4201:c200:: dev eth1 src {from}",
            lab.namespace("h1")
        );
        assert!(Command::new("ip").args(route.split(' ')).status().unwrap().success());
        assert_eq!(arrive(&sender, &receiver, 0x12, DATAGRAMS), DATAGRAMS);
        for (link, fault, arrives) in [
            ("p1-t0-0:p1-t1-1", "blackhole,ev=0x40000012", false),
            ("p1-t0-1:p1-t1-1", "blackhole,ev=0x40000012,dir=down", false),
            ("p1-t0-0:p1-t1-1", "blackhole,ev=0x40000012,dir=down", true),
            ("p1-t0-0:p1-t1-1", "blackhole,ev=0x40000013", true),
            ("p1-t0-0:p1-t1-1", "blackhole,ev=0x41000012", true),
            ("p1-t0-0:p1-t1-0", "blackhole", true),
            ("p1-t1-1", "blackhole,sport=16384", false),
            ("p1-t1-1", "blackhole,sport=16385", true),
            ("h3:p1-t0-1", "loss=100%", false),
        ] {
            lab.ok(&["fault", link, fault]);
            let expected = if arrives { DATAGRAMS } else { 0 };
            assert_eq!(arrive(&sender, &receiver, 0x12, expected), expected, "{link} {fault}");
            assert_eq!(lab.taken(), DATAGRAMS - expected, "{link} {fault}");
            lab.ok(&["heal"]);
        }
    }
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn losses_have_the_chance_that_is_given_and_add_up() {
    for lab in Lab::each("loss", &KINDS[..2]) {
        lab.up("one-plane.toml");
        let (one, two) = (lab.socket("h1", address(0, 0, 1), 0), lab.socket("h2", address(0, 0, 2), 0));
        lab.ok(&["fault", "h1:p0-t0-0", "loss=30%"]);
        let rounds = 20;
        let mut arrived = 0;
        let send = |arrived: &mut usize| {
            for _ in 0..rounds {
                *arrived += arrive(&one, &two, 0, 0);
            }
        };
        send(&mut arrived);
        // Whatever comes late is counted, too: a packet is lost or arrives.
        arrived += received(&two, 0);
        let (sent, lost) = (rounds * DATAGRAMS, lab.taken());
        assert_eq!(arrived + lost, sent);
        // Six deviations of a binomial distribution.
        assert!(lost.abs_diff(sent * 3 / 10) < 125, "{lost}");
        // Another fault of the same switch: what the first one took stays counted, and each has its share.
        lab.ok(&["fault", "h2:p0-t0-0", "loss=50%"]);
        assert_eq!(lab.taken(), lost);
        let before = lost;
        arrived = 0;
        send(&mut arrived);
        arrived += received(&two, 0);
        let lost = lab.taken() - before;
        assert_eq!(arrived + lost, sent);
        assert!(lost.abs_diff(sent * 65 / 100) < 130, "{lost}");
        // The same fault again replaces the first one, and counts from nothing.
        lab.ok(&["fault", "h1:p0-t0-0", "loss=1%"]);
        lab.ok(&["heal", "h2:p0-t0-0"]);
        assert_eq!((lab.named(), lab.taken()), (vec!["h1:p0-t0-0 loss=1%".to_owned()], 0));
    }
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn packets_that_can_be_marked_are() {
    for lab in Lab::each("ecn", &KINDS) {
        lab.up("one-plane.toml");
        let (one, two) = (lab.socket("h1", address(0, 0, 1), 0), lab.socket("h2", address(0, 0, 2), 0));
        // The receiver counts marks.
        let marked = count_packets(&lab, "h2", "ip6 ecn ce");
        lab.ok(&["fault", "h2:p0-t0-0", "ecn=100%"]);
        for (class, marks) in [(0, 0), (2, DATAGRAMS), (1, DATAGRAMS)] {
            set(&one, libc::IPV6_TCLASS, class);
            let before = (marked(), lab.taken());
            assert_eq!(arrive(&one, &two, 0, DATAGRAMS), DATAGRAMS);
            assert_eq!((marked() - before.0, lab.taken() - before.1), (marks, marks), "class {class}");
        }
        lab.ok(&["heal"]);
        let before = marked();
        assert_eq!(arrive(&one, &two, 0, DATAGRAMS), DATAGRAMS);
        assert_eq!(marked(), before);
        // By chance, too.
        lab.ok(&["fault", "p0-t0-0", "ecn=50%"]);
        for _ in 0..10 {
            assert_eq!(arrive(&one, &two, 0, DATAGRAMS), DATAGRAMS);
        }
        let marks = marked() - before;
        assert!(marks == lab.taken() && marks.abs_diff(500) < 100, "{marks}");
    }
}

/// A queue is as long as what it is given in advance of its rate, and marks what would wait longer than it is told.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn packets_that_wait_are_marked() {
    let rate = ["fault", "h2:p0-t0-0", "rate=1M,mark=5ms"];
    for lab in Lab::each("marked", &KINDS) {
        lab.up("one-plane.toml");
        if lab.switch() == ["--switch", "kernel"] {
            lab.wrong(&rate, 2, &["rate=1Mbit,mark=5ms", "--switch xdp"]);
            let file = support::temp("marked.toml");
            fs::write(&file, "[[fault]]\nwhere = 'h1'\naction = 'rate=1M,mark=5ms'\n").unwrap();
            let file = file.to_str().unwrap();
            lab.wrong(&["fault", "--schedule", file], 2, &["rate=1Mbit,mark=5ms", "--switch xdp"]);
            let trim = "rate=1M,trim=5ms";
            lab.wrong(&["fault", "h2:p0-t0-0", trim], 2, &["rate=1Mbit,trim=5ms", "--switch xdp"]);
            assert_eq!(lab.named(), [""; 0]);
            continue;
        }
        let (one, two) = (lab.socket("h1", address(0, 0, 1), 0), lab.socket("h2", address(0, 0, 2), 0));
        let marked = count_packets(&lab, "h2", "ip6 ecn ce");
        set(&one, libc::IPV6_TCLASS, 2);
        lab.ok(&rate);
        let start = Instant::now();
        for _ in 0..BURST {
            one.send_to(&[0; 1000], two.local_addr().unwrap()).unwrap();
        }
        let late = (start.elapsed().as_secs_f64() * 125.0) as usize;
        let arrived = received(&two, 0);
        // A packet takes 8.5 ms, and those that are there at once may wait 160 ms and ten.
        assert!((19..=22 + late).contains(&arrived), "{arrived}, {late} late");
        assert!((arrived - 2 - late..arrived).contains(&marked()), "{} of {arrived}", marked());
        // The lowest mark counts, and no mark does without one.
        lab.ok(&["heal"]);
        let before = marked();
        lab.ok(&["fault", "h2", "rate=1M"]);
        one.send_to(&[0; 1000], two.local_addr().unwrap()).unwrap();
        assert_eq!(received(&two, 1), 1);
        one.send_to(&[0; 1000], two.local_addr().unwrap()).unwrap();
        assert_eq!((received(&two, 1), marked()), (1, before));
    }
}

/// Packets that would wait too long lose their payload, and their code point tells on which hop. That of packets that may not be trimmed
/// has them lost. The states of queues are told.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn packets_that_wait_are_trimmed() {
    for lab in Lab::each("trimmed", &KINDS[1..2]) {
        lab.up("two-plane.toml");
        let (one, two) = (lab.socket("h1", address(0, 0, 1), 0), lab.socket("h3", address(1, 0, 1), 0));
        let on_the_way = ["p0-t0-0:p0-t1-0", "p0-t0-0:p0-t1-1", "p0-t0-0:p0-t1-2", "p0-t0-0:p0-t1-3"];
        for (links, dir, code_point) in [(&["h3:p0-t0-1"][..], "down", 16), (&on_the_way, "up", 12)] {
            let which = format!("ip6 dscp {code_point} ip6 length 88");
            let arrived = count_packets(&lab, "h3", &which);
            for link in links {
                lab.ok(&["fault", link, &format!("rate=1M,trim=5ms,dir={dir}")]);
            }
            for class in [4 << 2, 0] {
                set(&one, libc::IPV6_TCLASS, class);
                for _ in 0..BURST {
                    one.send_to(&[0; 1000], two.local_addr().unwrap()).unwrap();
                }
            }
            // How many are whole depends on how fast they were sent; a trimmed one is no whole datagram.
            let whole = received(&two, 0);
            let links: Vec<_> =
                lab.links().into_iter().filter(|link| links.contains(&&*support::lab::name(link))).collect();
            let queues: Vec<_> = links.iter().flat_map(|link| link["queues"].as_array().unwrap()).collect();
            assert_eq!(queues.len(), links.len());
            assert!(queues.iter().all(|queue| queue["dir"] == dir && queue["marked"] == 0), "{queues:?}");
            let sum =
                |key: &str| queues.iter().map(|queue| queue[key].as_u64().unwrap() as usize).sum::<usize>();
            let (trimmed, dropped) = (sum("trimmed"), sum("dropped"));
            assert_eq!((trimmed, whole + trimmed + dropped), (arrived(), 2 * BURST), "{queues:?}");
            // The queue has no room left for those that may be trimmed, and those that may not have filled it.
            assert!(trimmed > 0 && dropped > BURST / 2, "{queues:?}");
            let told = format!("[{dir}: 0 marked, {trimmed} trimmed, {dropped} dropped]");
            assert!(lab.ok(&["status"]).contains(&told), "{told}");
            lab.ok(&["heal"]);
        }
        assert!(lab.links().iter().all(|link| link["queues"].as_array().unwrap().is_empty()));
    }
}

/// Has a host count packets, and says how many there were.
fn count_packets(lab: &Lab, host: &str, which: &str) -> impl Fn() -> usize {
    let filter = format!(
        "table inet t {{ }}; delete table inet t; table inet t {{ counter seen {{ }}; chain c {{ type filter hook prerouting priority 0; {which} counter name seen; }}; }}"
    );
    lab.ok(&["exec", host, "--", "nft", &filter]);
    move || {
        let told = lab.ok(&["exec", host, "--", "nft", "-j", "list", "counters"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        told["nftables"][1]["counter"]["packets"].as_u64().unwrap() as usize
    }
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn rates_are_kept() {
    for lab in Lab::each("rate", &KINDS) {
        lab.up("one-plane.toml");
        // Sockets of their own, for what comes late.
        let burst = |from, to, fast: bool| {
            let at = |host| lab.socket(&format!("h{host}"), address(0, 0, host), 0);
            let (from, to) = (at(from), at(to));
            let start = Instant::now();
            for _ in 0..BURST {
                from.send_to(&[0; 1000], to.local_addr().unwrap()).unwrap();
            }
            let sent = start.elapsed();
            (received(&to, if fast { BURST } else { 0 }), sent)
        };
        for (place, fault, there, back) in [
            ("h1:p0-t0-0", "rate=1M,dir=up", false, true),
            ("h1:p0-t0-0", "rate=1M,dir=down", true, false),
            ("h2:p0-t0-0", "rate=1M", false, false),
            ("p0-t0-0", "rate=100G", true, true),
        ] {
            lab.ok(&["fault", place, fault]);
            for (from, to, fast) in [(1, 2, there), (2, 1, back)] {
                let (arrived, sent) = burst(from, to, fast);
                // What goes at once and what waits, each of twenty packets, and what the time adds to them.
                let slow = 10..44 + (sent.as_secs_f64() * 125.0) as usize;
                assert!(
                    if fast { arrived == BURST } else { slow.contains(&arrived) },
                    "{place} {fault}: {arrived} in {sent:?}"
                );
            }
            lab.ok(&["heal", place]);
        }
        // The lowest rate counts, and the other one after it.
        lab.ok(&["fault", "h1", "rate=1M,dir=up"]);
        lab.ok(&["fault", "h1:p0-t0-0", "rate=10G"]);
        assert!(burst(1, 2, false).0 < BURST);
        lab.ok(&["fault", "h1", "rate=1G,dir=up"]);
        assert_eq!((burst(1, 2, true).0, lab.named().len()), (BURST, 2));
    }
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn what_was_down_is_as_it_was_before() {
    for lab in Lab::each("down", &KINDS[..2]) {
        lab.up("two-plane.toml");
        let (from, to) = (lab.socket("h1", address(0, 0, 1), 0), lab.socket("h3", address(1, 0, 1), 0));
        let before = lab.kernel();
        let settle = |what: &str, done: &dyn Fn() -> bool| {
            let patience = Instant::now() + PATIENCE;
            while !done() {
                assert!(Instant::now() < patience, "{what}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        for (place, links, cut) in [
            ("h1:p0-t0-0", vec!["h1:p0-t0-0"], true),
            ("h3:p0-t0-1", vec!["h3:p0-t0-1"], true),
            ("p0-t0-0:p0-t1-2", vec!["p0-t0-0:p0-t1-2"], false),
            ("p0-t1-1", vec!["p0-t0-0:p0-t1-1", "p0-t0-1:p0-t1-1"], false),
            ("h2", vec!["h2:p0-t0-0", "h2:p1-t0-0"], false),
            (
                "p1-t0-0",
                vec![
                    "h1:p1-t0-0",
                    "h2:p1-t0-0",
                    "p1-t0-0:p1-t1-0",
                    "p1-t0-0:p1-t1-1",
                    "p1-t0-0:p1-t1-2",
                    "p1-t0-0:p1-t1-3",
                ],
                false,
            ),
        ] {
            lab.ok(&["fault", place, "down"]);
            assert_eq!(lab.down(), links, "{place}");
            assert!(lab.kernel() != before, "{place}");
            settle("no carrier", &|| {
                lab.links().iter().all(|link| {
                    let down = links.contains(&name(link).as_str());
                    (link["lower"]["up"] == false, link["upper"]["up"] == false) == (down, down)
                })
            });
            // The T0 switches notice, and use the ways that are left.
            let expected = if cut { 0 } else { DATAGRAMS };
            settle("packets find their way", &|| arrive(&from, &to, 0, 0) == expected);
            lab.ok(&["heal", place]);
            settle("all is as it was before", &|| lab.kernel() == before);
            assert_eq!(arrive(&from, &to, 0, DATAGRAMS), DATAGRAMS, "{place}");
        }
    }
}

/// Writes between two hosts go on while links and switches fail around them, and every byte is right.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn writes_ride_out_failures() {
    for lab in Lab::each("writes", &KINDS[..2]) {
        lab.up("two-plane.toml");
        let pair = |t0| format!("{},{}", address(t0, 0, 1), address(t0, 1, 1));
        let exec = |host: &str, args: &[&str]| {
            let mut command = lab.command(&["exec", host, "--", env!("CARGO_BIN_EXE_spindrift"), "write-bw"]);
            command.args(args).args(["--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            Running::start(&mut command)
        };
        let mut server = exec("h3", &["--local", &pair(1)]);
        let mut waiting = BufReader::new(server.child().stderr.take().unwrap());
        let mut line = String::new();
        waiting.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        let client = exec("h1", &["--local", &pair(0), "-D", "4", &address(1, 0, 1).to_string()]);
        let pauses = Pauses::watch();
        let start = Instant::now();
        while lab.up_packets("p0-t0-0").iter().sum::<u64>() < 100 {
            assert!(start.elapsed() < PATIENCE, "the client does not begin");
        }
        let file = support::temp("writes.toml");
        let faults = "[[fault]]\nat = '500ms'\nwhere = 'h1:p0-t0-0'\naction = 'down'\nfor = '400ms'\n\
                  [[fault]]\nat = '1200ms'\nwhere = 'h3:p1-t0-1'\naction = 'blackhole'\nfor = '400ms'\n\
                  [[fault]]\nat = '2s'\nwhere = 'p0-t1-1'\naction = 'down'\nfor = '300ms'\n\
                  [[fault]]\nat = '2s'\nwhere = 'p1-t0-0'\naction = 'loss=5%'\nfor = '500ms'\n";
        fs::write(&file, faults).unwrap();
        lab.ok(&["fault", "--schedule", file.to_str().unwrap()]);
        for (who, process) in [("client", client), ("server", server)] {
            let output = end_of(process, PATIENCE, who);
            assert!(output.status.success(), "{who}: {}", stderr(&output));
            let object: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
            assert_eq!(object["error"], Value::Null, "{who}");
            if who == "client" {
                // It saw its own link go and come back, and noticed what it was not told of.
                let seen = &object["counters"]["transport"];
                if pauses.none_above(Duration::from_millis(100)) {
                    assert_eq!(seen["port_changes"], 2, "{seen}");
                }
                assert!(seen["tx_retransmits"].as_u64() > Some(0), "{seen}");
            }
        }
    }
}
