//! `write-bw` and `write-lat` between hosts whose network is not as their interfaces say. The hosts are network namespaces; they need
//! root and iproute2, and some tests nftables. What is missing is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;
use spindrift_pmd::testing::Hosts;
use support::lab::PATIENCE;
use support::{Running, end_of, json, stderr, stdout};

fn hosts(test: &str, links: usize) -> Option<Hosts> {
    let hosts = Hosts::new(test, links);
    if hosts.is_none() {
        eprintln!("SKIPPED: network namespaces need root and iproute2");
    }
    hosts
}

fn spindrift(hosts: &Hosts, side: usize, args: &[&str]) -> Command {
    let mut command = hosts.command(side, env!("CARGO_BIN_EXE_spindrift"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A run: what the client and the server print and say.
struct Run {
    client: Output,
    server: Output,
}

impl Run {
    /// Runs a client on the first host and a server on the second.
    fn new(hosts: &Hosts, command: &str, address: &str, [of_client, of_server]: [&[&str]; 2]) -> Self {
        Self::during(hosts, command, address, [of_client, of_server], || ())
    }

    /// The same, and something else while the client runs.
    fn during(
        hosts: &Hosts,
        command: &str,
        address: &str,
        [of_client, of_server]: [&[&str]; 2],
        meanwhile: impl FnOnce(),
    ) -> Self {
        let args = [&[command, "--json"], of_server].concat();
        let mut server = Running::start(&mut spindrift(hosts, 1, &args));
        let mut errors = BufReader::new(server.child().stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        let args = [&[command, address, "--json"], of_client].concat();
        let client = Running::start(&mut spindrift(hosts, 0, &args));
        meanwhile();
        let client = end_of(client, PATIENCE, "the client");
        let mut server = end_of(server, PATIENCE, "the server");
        errors.read_to_end(&mut server.stderr).unwrap();
        Self { client, server }
    }

    /// The client's object of a run that went well, and everything both sides said besides.
    fn passed(&self) -> (Json, String) {
        let said = stderr(&self.client) + &stderr(&self.server);
        assert!(
            self.client.status.success() && self.server.status.success(),
            "{said}\n{}",
            stdout(&self.client)
        );
        (json(&self.client.stdout), said)
    }

    /// The client's error.
    fn failed(&self) -> String {
        let said = stderr(&self.client);
        assert_eq!(self.client.status.code(), Some(1), "{said}\nserver: {}", stderr(&self.server));
        assert_ne!(self.server.status.code(), Some(0));
        said
    }
}

fn addresses(hosts: &Hosts, links: usize) {
    for (side, n) in (0..2).flat_map(|side| (0..links).map(move |n| (side, n))) {
        hosts.ip(side, &format!("address add 10.0.{n}.{}/24 dev n{n}", side + 1));
        hosts.ip(side, &format!("address add fd00:0:0:{n}::{}/64 dev n{n} nodad", side + 1));
    }
}

const SHORT: [&str; 4] = ["-s", "64K", "-n", "200"];

/// BGP to the host.
#[test]
fn addresses_on_lo_take_mtu_and_congestion_control_from_the_way() {
    let Some(hosts) = hosts("bgp", 2) else { return };
    addresses(&hosts, 2);
    for (side, other) in [(0, 1), (1, 0)] {
        hosts.ip(side, &format!("address add 10.9.9.{}/32 dev lo", side + 1));
        let hops = (0..2).map(|n| format!("nexthop via 10.0.{n}.{} dev n{n}", other + 1));
        let hops = hops.collect::<Vec<_>>().join(" ");
        hosts.ip(side, &format!("route add 10.9.9.{}/32 src 10.9.9.{} {hops}", other + 1, side + 1));
    }
    for local in [&["--local", "10.9.9.1"][..], &[]] {
        let (client, _) = Run::new(&hosts, "write-bw", "10.9.9.2", [&[&SHORT, local].concat(), &[]]).passed();
        let settings = &client["settings"];
        assert_eq!((&settings["mtu"], &settings["cc"]), (&1428.into(), &"adaptive".into()), "{settings}");
        assert!(settings["ports"][0]["name"].as_str().unwrap().contains("10.9.9.1"), "{settings}");
    }
}

#[test]
fn the_mtu_is_negotiated_by_the_path_of_each_plane() {
    let Some(hosts) = hosts("negotiate", 2) else { return };
    addresses(&hosts, 2);
    // Seen by one side, on one plane.
    hosts.ip(1, "route add 10.0.1.1/32 dev n1 mtu 1300");
    let both = ["--local", "10.0.0.1,10.0.1.1"];
    let (client, said) = Run::new(
        &hosts,
        "write-bw",
        "10.0.0.2",
        [&[&SHORT[..], &both].concat(), &["--local", "10.0.0.2,10.0.1.2"]],
    )
    .passed();
    assert_eq!(client["settings"]["mtu"], 1300 - 72, "{said}");
    assert_eq!(client["counters"]["ports"]["tx_oversize"], Json::Null, "{client}");
}

/// The path takes less in the middle of a run: it goes on, and the user is told.
#[test]
fn a_path_that_shrinks_is_no_end() {
    let Some(hosts) = hosts("shrinks", 1) else { return };
    addresses(&hosts, 1);
    // Two seconds at least.
    let slow: &[&str] = &["-s", "64K", "-n", "400", "--link-rate", "100M"];
    let run = Run::during(&hosts, "write-bw", "10.0.0.2", [slow, &[]], || {
        while hosts.sent(0, "n0") < 1 << 20 {}
        hosts.ip(0, "route add 10.0.0.2/32 dev n0 mtu 1300");
    });
    let (client, said) = run.passed();
    assert!(said.contains("the path to 10.0.0.2 has come to take 1300 bytes"), "{said}");
    assert!(client["counters"]["ports"]["tx_fragmented"].as_u64().unwrap() > 0, "{client}");
    assert!(client["settings"]["ports"][0]["notes"].to_string().contains("1300 bytes"), "{client}");
}

/// Drops IP packets longer than this that arrive at an interface of the second host.
fn swallow(hosts: &Hosts, interface: &str, longer_than: usize) -> bool {
    // A batch that the kernel has not segmented is longer than its packets, so there are none.
    for side in 0..2 {
        let off =
            hosts.command(side, "ethtool").args(["-K", interface, "tx-udp-segmentation", "off"]).output();
        if !off.is_ok_and(|out| out.status.success()) {
            eprintln!("SKIPPED: no ethtool");
            return false;
        }
    }
    if !Command::new("nft").arg("--version").output().is_ok_and(|out| out.status.success()) {
        eprintln!("SKIPPED: no nftables");
        return false;
    }
    let v6 = longer_than - 40;
    let rules = format!(
        "add table inet t; add chain inet t c {{ type filter hook prerouting priority 0; }}; \
         add rule inet t c iifname {interface} ip length > {longer_than} drop; \
         add rule inet t c iifname {interface} ip6 length > {v6} drop"
    );
    assert!(hosts.command(1, "nft").arg(rules).status().unwrap().success());
    true
}

#[test]
fn a_path_that_swallows_large_packets_is_told_with_both_sizes() {
    for (command, address, args) in [
        ("write-bw", "10.0.0.2", &SHORT[..]),
        // Send queues that hold fewer writes than the path check has.
        ("write-bw", "10.0.0.2", &["-s", "64K", "-n", "200", "-t", "1"]),
        ("write-bw", "fd00::2", &["-s", "64K", "-n", "200", "-t", "2"]),
        ("write-lat", "10.0.0.2", &["-s", "4K", "-n", "10"]),
    ] {
        let Some(hosts) = hosts("swallow", 1) else { return };
        addresses(&hosts, 1);
        if !swallow(&hosts, "n0", 1200) {
            return;
        }
        let run = Run::new(&hosts, command, address, [args, &[]]);
        let error = run.failed();
        for part in ["packets of 1024 bytes of payload reach", "do not", "smaller MTU", "use --mtu 1024"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(stderr(&run.server).contains("use --mtu 1024"), "{}", stderr(&run.server));
        let (client, _) =
            Run::new(&hosts, command, address, [&[args, &["--mtu", "1024"]].concat(), &[]]).passed();
        assert_eq!(client["settings"]["mtu"], 1024);
    }
}

/// The others carry everything.
#[test]
fn a_plane_that_swallows_large_packets_is_not_used() {
    let Some(hosts) = hosts("plane", 2) else { return };
    addresses(&hosts, 2);
    if !swallow(&hosts, "n1", 1200) {
        return;
    }
    let [ours, theirs] = [1, 2].map(|side| format!("10.0.0.{side},10.0.1.{side}"));
    let sides: [&[&str]; 2] = [&[&SHORT[..], &["--local", &ours]].concat(), &["--local", &theirs]];
    let (client, said) = Run::new(&hosts, "write-bw", "10.0.0.2", sides).passed();
    assert!(
        said.contains("plane 1: packets of 1024 bytes") && said.contains("the plane is not used"),
        "{said}"
    );
    assert_eq!((&client["settings"]["mtu"], &client["rows"][0]["verified"]), (&1428.into(), &true.into()));
    assert!(hosts.sent(0, "n0") > 200 * 65_536 && hosts.sent(0, "n1") < 100_000);
    // A queue pair on the second NIC has no other plane.
    let shift = ["--standby", "1", "--fallback", "shift"];
    let sides = [sides[0], sides[1]].map(|side| [side, &shift].concat());
    for retries in ["9", "0"] {
        // Retries are exhausted after the check has seen enough, or before.
        let sides =
            [&sides[0], &sides[1]].map(|side| [&side[..], &["--exponential-retries", retries]].concat());
        let error = Run::new(&hosts, "write-bw", "10.0.0.2", [&sides[0], &sides[1]]).failed();
        let told = error.contains("plane 1: packets of 1024 bytes") && error.contains("use --mtu 1024");
        assert!(told && (retries == "9" || error.contains("has failed meanwhile")), "{error}");
    }
    let sides = sides.map(|side| [&side[..], &["--mtu", "1024"]].concat());
    let (client, _) = Run::new(&hosts, "write-bw", "10.0.0.2", [&sides[0], &sides[1]]).passed();
    // There and back, for the check.
    assert_eq!(client["counters"]["fallback"], serde_json::json!({ "moves": 2 }), "{client}");
    // Here both sides send, and check.
    let read = sides[0].iter().map(|&word| if word == "64K" { "1K" } else { word }).collect::<Vec<_>>();
    for command in ["read-bw", "send-lat"] {
        Run::new(&hosts, command, "10.0.0.2", [&read, &sides[1]]).passed();
    }
}

#[test]
fn two_nics_in_one_subnet_share_the_load() {
    let Some(hosts) = hosts("subnet", 2) else { return };
    for (side, n) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        hosts.ip(side, &format!("address add 10.0.0.{}{n}/24 dev n{n}", side + 1));
    }
    let sides: [&[&str]; 2] =
        [&[&SHORT[..], &["--local", "10.0.0.10,10.0.0.11"]].concat(), &["--local", "10.0.0.20,10.0.0.21"]];
    let (_, said) = Run::new(&hosts, "write-bw", "10.0.0.20", sides).passed();
    assert!(said.contains("n0 and n1 are in one subnet") && said.contains("arp_ignore=1"), "{said}");
    let sent = [hosts.sent(0, "n0"), hosts.sent(0, "n1")];
    // How much each carries depends on the machine: a full socket buffer makes paths bad for a while. The check alone is less than this.
    assert!(sent.iter().all(|&bytes| bytes > 200_000), "{sent:?}");
    for side in 0..2 {
        hosts.sysctl(side, "ipv4/conf/all/arp_ignore", "1");
    }
    let (_, said) = Run::new(&hosts, "write-bw", "10.0.0.20", sides).passed();
    assert!(!said.contains("one subnet"), "{said}");
}

/// It says which planes have no link of their own.
#[test]
fn planes_that_share_a_link_are_told() {
    let Some(hosts) = hosts("shared", 1) else { return };
    addresses(&hosts, 1);
    hosts.both(["address add 10.0.0.11/24 dev n0", "address add 10.0.0.12/24 dev n0"]);
    let sides: [&[&str]; 2] =
        [&[&SHORT[..], &["--local", "10.0.0.1,10.0.0.11"]].concat(), &["--local", "10.0.0.2,10.0.0.12"]];
    let (_, said) = Run::new(&hosts, "write-bw", "10.0.0.2", sides).passed();
    assert!(said.contains("plane 1 shares a link: its packets leave by n0"), "{said}");
}

#[test]
fn addresses_that_cannot_reach_the_peer_are_refused() {
    let Some(hosts) = hosts("unreachable", 1) else { return };
    addresses(&hosts, 1);
    let run = Run::new(&hosts, "write-bw", "10.0.0.2", [&["-n", "10", "--local", "127.0.0.1"], &[]]);
    let error = stderr(&run.client) + &stderr(&run.server);
    assert!(error.contains("127.0.0.1") && error.contains("a loopback address reaches"), "{error}");
    let run = Run::new(&hosts, "write-bw", "10.0.0.2", [&["-n", "10"], &["--local", "127.0.0.1"]]);
    assert!(run.failed().contains("a loopback address reaches"), "{}", run.failed());
}

/// Pumps from the first host to the second.
fn pump(hosts: &Hosts, (from, to): (&str, &str), at: &str) {
    let mut receiver =
        Running::start(&mut spindrift(hosts, 1, &["pump", "udp", "--local", at, "-D", "200ms"]));
    let mut errors = BufReader::new(receiver.child().stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("receiving on"), "{line}");
    let args = ["pump", "udp", to, "--local", from, "--size", "1000", "-D", "300ms"];
    let sender = spindrift(hosts, 0, &args).output().unwrap();
    assert!(sender.status.success(), "{}", stderr(&sender));
    assert!(end_of(receiver, PATIENCE, "the receiver").status.success());
}

#[test]
fn link_local_addresses_have_a_zone() {
    let Some(hosts) = hosts("zone", 2) else { return };
    for (side, n) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        hosts.ip(side, &format!("address add fe80::{}/64 dev n{n} nodad", side + 1));
    }
    for n in [1, 0] {
        let zone = format!("%n{n}");
        let before = hosts.sent(0, &format!("n{n}"));
        let server = format!("fe80::2{zone}");
        Run::new(&hosts, "write-bw", &server, [&SHORT, &[]]).passed();
        let local = format!("fe80::1{zone}");
        Run::new(
            &hosts,
            "write-bw",
            &server,
            [&[&SHORT[..], &["--local", &local, "--yardstick"]].concat(), &["--local", &server]],
        )
        .passed();
        pump(&hosts, (&local, "fe80::2"), &server);
        assert!(hosts.sent(0, &format!("n{n}")) - before > 400 * 65_536);
    }
    let args = ["write-bw", "fe80::2%n0", "--local", "fe80::1", "-n", "1"];
    let output = spindrift(&hosts, 0, &args).output().unwrap();
    let error = stderr(&output);
    assert!(output.status.code() == Some(2) && error.contains("fe80::1%n"), "{error}");
}

/// Ports past the kernel see the identifications that segmentation gives to IPv4 packets, and the iCRCs are right for them.
#[cfg(feature = "af_xdp")]
#[test]
fn af_xdp_and_udp_understand_each_other_over_both_families() {
    let Some(hosts) = hosts("mixed", 1) else { return };
    addresses(&hosts, 1);
    let config = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-entropy.toml", std::process::id()));
    std::fs::write(&config, "[transport]\nentropy = \"udp\"\n").unwrap();
    let config = config.to_str().unwrap();
    for address in ["10.0.0.2", "fd00::2"] {
        for turned in [false, true] {
            let sides: [&[&str]; 2] = [&["--port", "af_xdp:n0", "--config", config], &[]];
            let [client, server] = if turned { [sides[1], sides[0]] } else { sides };
            let client = [&SHORT[..], client].concat();
            let run = Run::new(&hosts, "write-bw", address, [&client, server]);
            let (object, said) = run.passed();
            let other = json(&run.server.stdout);
            let udp = if turned { &object } else { &other };
            assert_eq!(udp["settings"]["gso"], true, "{address}: {said}");
            assert_eq!(object["counters"]["transport"]["rx_bad_icrc"], Json::Null, "{object}");
            assert_eq!(other["counters"]["transport"]["rx_bad_icrc"], Json::Null, "{other}");
        }
    }
}

/// Few retries: an eighth of a second of silence.
const IMPATIENT: [&str; 8] =
    ["-n", "20", "--timeout", "15", "--linear-retries", "1", "--exponential-retries", "1"];

fn nft(hosts: &Hosts, side: usize, chain: &str, rule: &str) -> bool {
    if !Command::new("nft").arg("--version").output().is_ok_and(|out| out.status.success()) {
        eprintln!("SKIPPED: no nftables");
        return false;
    }
    let rules = format!("add table inet f; add chain inet f c {{ {chain}; }}; add rule inet f c {rule}");
    assert!(hosts.command(side, "nft").arg(rules).status().unwrap().success());
    true
}

/// Firewalls: the errors tell where packets arrived, where not, and what the kernel says.
#[test]
fn silence_is_told_with_what_is_known_of_its_cause() {
    const INPUT: &str = "type filter hook input priority 0";
    const OUTPUT: &str = "type filter hook output priority 0";
    let nothing = |side: u8| format!("arrived at udp 10.0.0.{side} port 4971 on n0");
    // Where, the rule, what the client's error says, and what the server's does.
    let cases = [
        ((1, INPUT, "udp dport 4971 drop"), nothing(1), nothing(2)),
        ((0, INPUT, "udp dport 4971 drop"), nothing(1), nothing(1)),
        (
            (0, OUTPUT, "udp dport 4971 drop"),
            "a firewall of this host rejects packets to 10.0.0.2 UDP port 4971".into(),
            nothing(2),
        ),
        (
            (1, INPUT, "udp dport 4971 reject"),
            "10.0.0.2 replies that nobody listens on its UDP port 4971".into(),
            "nobody listens on its UDP port 4971".into(),
        ),
        ((1, INPUT, "udp dport 4971 reject with icmp type admin-prohibited"), "(E".into(), nothing(2)),
    ];
    for ((side, chain, rule), at_client, at_server) in cases {
        let Some(hosts) = hosts("firewall", 1) else { return };
        addresses(&hosts, 1);
        if !nft(&hosts, side, chain, rule) {
            return;
        }
        let run = Run::new(&hosts, "write-bw", "10.0.0.2", [&IMPATIENT, &[]]);
        let (client, server) = (run.failed(), stderr(&run.server));
        assert!(client.contains("retry counter exceeded") && client.contains(&at_client), "{rule}: {client}");
        assert!(server.contains(&at_server), "{rule}: {server}");
        assert!(!client.contains("raise --exponential-retries"), "{rule}: {client}");
    }
}

#[test]
fn an_mtu_that_holds_no_packet_is_named() {
    let Some(hosts) = hosts("tiny", 1) else { return };
    addresses(&hosts, 1);
    hosts.ip(0, "link set n0 mtu 300");
    let run = Run::new(&hosts, "write-bw", "10.0.0.2", [&["-n", "1"], &[]]);
    for part in
        ["udp 10.0.0.1 port 4971 on n0", "300 bytes", "at least 328", "ip link set INTERFACE mtu 1500"]
    {
        assert!(run.failed().contains(part), "{}", run.failed());
    }
}

/// The set-up connection passes it and so may UDP; the user is told at once where to look.
#[test]
fn a_nat_is_told_at_set_up() {
    let Some(hosts) = hosts("nat", 1) else { return };
    addresses(&hosts, 1);
    if !nft(&hosts, 1, "type nat hook prerouting priority -100", "tcp dport 7000 redirect to :18515") {
        return;
    }
    let run = Run::new(&hosts, "write-bw", "10.0.0.2", [&[&SHORT[..], &["-p", "7000"]].concat(), &[]]);
    let (_, said) = run.passed();
    assert!(said.contains("a NAT or proxy is between this side and the server"), "{said}");
    assert!(said.contains("a NAT or proxy is between this side and the client"), "{said}");
    let (_, said) = Run::new(&hosts, "write-bw", "10.0.0.2", [&SHORT, &[]]).passed();
    assert!(!said.contains("NAT"), "{said}");
}
