//! `spindrift lab`: what it builds carries packets over the paths that `spindrift path` tells of, and nothing is left of it. Needs root,
//! `ip` and network namespaces, which the lab makes and removes; without them the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "tests that are skipped say so")]

mod support;

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use support::lab::{KINDS, Lab, PATIENCE, config};
use support::{end_of, spindrift, stderr, stdout};

/// Datagrams sent for each path: far more than what nodes say to each other.
const DATAGRAMS: usize = 100;

/// Sends datagrams and waits for all of them. Nothing is lost: the receiver has room for all.
fn send(from: &[UdpSocket], to: &UdpSocket) {
    let address = to.local_addr().unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..DATAGRAMS {
        from[number % from.len()].send_to(&[number as u8], address).unwrap();
    }
    let mut bytes = [0; 16];
    for _ in 0..DATAGRAMS {
        to.recv_from(&mut bytes).expect("every datagram arrives");
    }
}

/// How many went up to each T1 switch meanwhile, without what nodes say to each other.
fn risen(before: &[u64], after: &[u64]) -> Vec<bool> {
    before.iter().zip(after).map(|(before, after)| (after - before) as usize >= DATAGRAMS).collect()
}

/// The kernel sends packets over each path that `spindrift path` tells of, and over all of them where it chooses.
#[test]
fn packets_take_the_paths_that_are_told() {
    for lab in Lab::each("paths", &KINDS) {
        lab.up("two-plane.toml");
        assert!(lab.links().iter().all(|link| link["up"] == true), "{:?}", lab.links());
        for plane in 0..2_u16 {
            let address = |t0: u16, host: u16| Ipv6Addr::new(0xfd5d, 0x7072, 0, t0, 0, 0, plane, host);
            let (from, to) = (address(0, 1), address(1, 1));
            let receiver = lab.socket("h3", to, 4971);
            let sender = [lab.socket("h1", from, 0)];
            let switch = format!("p{plane}-t0-0");
            for (ev, upper) in (0..4_u32).map(|number| (number << 30, number as usize)) {
                let told = spindrift()
                    .args(["path", "--topology", &config("two-plane.toml"), "--to", "h3", "--json"])
                    .args(["--plane", &plane.to_string(), "--ev", &ev.to_string()])
                    .output();
                let told: Value = serde_json::from_str(&stdout(&told.unwrap())).unwrap();
                let carrier = told["paths"][0]["hops"][0]["destination"].as_str().unwrap();
                let route = format!(
                    "-n {} -6 route replace {to}/128 encap seg6 mode encap.red segs {carrier} dev eth{plane} src {from}",
                    lab.namespace("h1")
                );
                let added = Command::new("ip").args(route.split(' ')).output().unwrap();
                assert!(added.status.success(), "{route}: {}", stderr(&added));
                let before = lab.up_packets(&switch);
                send(&sender, &receiver);
                let expected: Vec<_> = (0..4).map(|at| at == upper).collect();
                assert_eq!(risen(&before, &lab.up_packets(&switch)), expected, "{carrier}");
            }
            // A port of the switch that goes down takes nothing else along: the last path works on.
            let other = ["exec", &switch, "--", "ip", "link", "set", "down1", "down"];
            assert_eq!(lab.run(&other).2, Some(0));
            send(&sender, &receiver);
            // Back over the plain routes: each source port has its path.
            let many: Vec<_> = (0..64).map(|_| lab.socket("h3", to, 0)).collect();
            let (back, switch) = (lab.socket("h1", from, 4971), format!("p{plane}-t0-1"));
            let before = lab.up_packets(&switch);
            send(&many, &back);
            let rose: Vec<_> =
                before.iter().zip(lab.up_packets(&switch)).map(|(before, after)| after - before).collect();
            // Sixty-four paths of four datagrams at four switches: one is left out in one of ten million cases.
            assert!(rose.iter().all(|&rise| (4..196).contains(&rise)), "{rose:?}");
        }
    }
}

#[test]
fn every_topology_given_is_built_and_carries_packets() {
    for (name, other, t0, host) in [
        ("one-plane.toml", "h2", 0, 2),
        ("four-plane.toml", "h2", 0, 2),
        ("two-tier.toml", "h3", 2, 1),
        ("dumbbell.toml", "h2", 1, 1),
    ] {
        let Some(lab) = Lab::new("given") else { return };
        lab.up(name);
        let links = lab.links();
        assert!(links.iter().all(|link| link["up"] == true), "{links:?}");
        let hosts: Vec<_> = links.iter().filter(|link| link["lower"]["node"] == "h1").collect();
        for plane in 0..hosts.len() as u16 {
            let address = |t0: u16, host: u16| Ipv6Addr::new(0xfd5d, 0x7072, 0, t0, 0, 0, plane, host);
            send(&[lab.socket("h1", address(0, 1), 0)], &lab.socket(other, address(t0, host), 4971));
        }
        let (_, error, status) = lab.run(&["down"]);
        assert_eq!((error.as_str(), status), ("", Some(0)));
    }
}

#[test]
fn nothing_is_left_of_a_lab() {
    let Some(lab) = Lab::new("left") else { return };
    let (out, error, status) = lab.run(&["status"]);
    assert!(status == Some(1) && out.is_empty() && error.contains("there is no lab"), "{error}");
    lab.up("one-plane.toml");
    assert_eq!(lab.left().len(), 4);
    // Twice is once too often, and harms nothing.
    let (_, error, status) = lab.run(&["up", &config("one-plane.toml")]);
    assert!(
        status == Some(1) && error.contains("already") && error.contains("lab down --name left"),
        "{error}"
    );
    assert_eq!(lab.left().len(), 4);
    // What runs there is ended.
    let sleeper = lab.command(&["exec", "h1", "--", "sleep", "1000"]).spawn().unwrap();
    let inside = || {
        let pids = Command::new("ip").args(["netns", "pids", &lab.namespace("h1")]).output().unwrap();
        stdout(&pids).lines().any(|line| line.trim() == sleeper.id().to_string())
    };
    let patience = Instant::now() + PATIENCE;
    while !inside() {
        assert!(Instant::now() < patience, "it never runs in the lab");
        std::thread::yield_now();
    }
    let (out, error, status) = lab.run(&["down"]);
    assert_eq!((error.as_str(), status), ("", Some(0)));
    assert!(out.contains("3 namespaces removed"), "{out}");
    assert!(!end_of(sleeper, PATIENCE, "sleep").status.success());
    assert_eq!(lab.left(), [""; 0]);
    // Once more is no error.
    let (out, error, status) = lab.run(&["down"]);
    assert!(status == Some(0) && error.is_empty() && out.contains("there is no lab"), "{out}{error}");
}

#[test]
fn what_a_crash_left_is_removed() {
    let Some(lab) = Lab::new("crash") else { return };
    // A namespace is in the way: the lab cannot be built, and nothing is left.
    let add = |node: &str| {
        let added = Command::new("ip").args(["netns", "add", &lab.namespace(node)]).output().unwrap();
        assert!(added.status.success());
    };
    add("h2");
    let (out, error, status) = lab.run(&["up", &config("one-plane.toml")]);
    assert!(status == Some(1) && out.is_empty(), "{out}");
    assert!(
        error.contains("ip netns add") && error.contains("h2") && error.contains("File exists"),
        "{error}"
    );
    assert_eq!(lab.left(), [""; 0]);
    // A build that was killed half-way.
    let folder = PathBuf::from("/run/spindrift/lab").join(&lab.name);
    fs::create_dir_all(&folder).unwrap();
    add("h1");
    let (_, error, status) = lab.run(&["up", &config("one-plane.toml")]);
    assert!(status == Some(1) && error.contains("already"), "{error}");
    let (_, error, status) = lab.run(&["exec", "h1", "--", "true"]);
    assert!(status == Some(1) && error.contains("there is no lab"), "{error}");
    let (out, error, status) = lab.run(&["down"]);
    assert!(status == Some(0) && error.is_empty() && out.contains("1 namespaces removed"), "{out}{error}");
    assert_eq!(lab.left(), [""; 0]);
    // And one whose nodes are not all there any more.
    lab.up("one-plane.toml");
    let deleted = Command::new("ip").args(["netns", "delete", &lab.namespace("p0-t0-0")]).output().unwrap();
    assert!(deleted.status.success());
    let (_, error, status) = lab.run(&["status"]);
    assert!(
        status == Some(1) && error.contains("the lab is incomplete; remove it with `spindrift lab down`"),
        "{error}"
    );
}

#[test]
fn commands_run_on_nodes() {
    let Some(lab) = Lab::new("exec") else { return };
    lab.up("one-plane.toml");
    let (out, _, status) =
        lab.run(&["exec", "p0-t0-0", "--", "sh", "-c", "cd /sys/class/net && echo *; exit 7"]);
    assert_eq!((out.as_str(), status), ("down0 down1 lo sr0 sr1\n", Some(7)));
    let (out, error, status) = lab.run(&["exec", "h9", "--", "true"]);
    assert_eq!((out.as_str(), status), ("", Some(2)));
    assert!(error.contains("h9: no such node") && error.contains("h1, h2, p0-t0-0"), "{error}");
}

#[test]
fn the_lab_is_drawn_as_it_is() {
    let Some(lab) = Lab::new("graph") else { return };
    lab.up("one-plane.toml");
    let file = support::temp("lab.svg");
    let draw = || {
        let (out, error, status) = lab.run(&["graph", "-o", file.to_str().unwrap()]);
        assert_eq!((out.as_str(), error.as_str(), status), ("", "", Some(0)));
        fs::read_to_string(&file).unwrap()
    };
    let whole = draw();
    let of_file =
        spindrift().args(["lab", "graph", "--topology", &config("one-plane.toml")]).output().unwrap();
    assert_eq!(whole, stdout(&of_file));
    let (_, error, status) = lab.run(&["exec", "h2", "--", "ip", "link", "set", "eth0", "down"]);
    assert_eq!(status, Some(0), "{error}");
    let broken = draw();
    assert!(
        broken.contains("<title>h2:p0-t0-0 (down)</title>") && broken.contains("<title>h1:p0-t0-0</title>"),
        "{broken}"
    );
    assert_eq!(broken.matches("stroke-dasharray").count(), 1);
}

#[test]
fn wrong_input_is_named() {
    let named = |args: &[&str], status, parts: &[&str]| {
        let output = spindrift().arg("lab").args(args).output().unwrap();
        let error = stderr(&output);
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(status)), "{args:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    };
    named(&["up", "/no/such.toml"], 2, &["cannot read the topology /no/such.toml"]);
    named(&["up"], 2, &["TOPOLOGY"]);
    named(&["down", "--name", "a/b"], 2, &["--name", "`a/b`", "letters and digits"]);
    named(&["down", "--name", "12345678901234567"], 2, &["1 to 16"]);
    named(&["exec", "h1", "true"], 2, &["true"]);
    let large = support::temp("large.toml");
    fs::write(&large, "[fabric]\nplanes = 32\nt0 = 2\nt1 = 1\nhosts_per_t0 = 3").unwrap();
    named(&["up", large.to_str().unwrap()], 2, &["102 hosts and switches", "100 at most"]);
    // Labs of which no packet would arrive.
    let file = support::temp("prefix.toml");
    for (key, prefix, why) in [
        ("prefix", "::/48", "loopback addresses"),
        ("prefix", "fe80::/48", "link-local addresses"),
        ("prefix", "ff05::/48", "multicast addresses"),
        ("block", "::/32", "loopback and IPv4 addresses"),
        ("block", "fe80::/32", "link-local addresses"),
        ("block", "ff05::/32", "multicast addresses"),
    ] {
        let hosts = "[[host]]\nname = \"h1\"\n";
        fs::write(&file, format!("[fabric]\n{key} = \"{prefix}\"\n{hosts}")).unwrap();
        named(&["up", file.to_str().unwrap()], 2, &["prefix.toml: line 2, column", key, prefix, why]);
    }
}

#[test]
fn without_root_the_reason_is_given() {
    let mut command = spindrift();
    command.args(["lab", "up", &config("one-plane.toml")]).uid(65_534);
    match command.output() {
        Ok(output) => {
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("needs root") && error.contains("CAP_NET_ADMIN"), "{error}");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            eprintln!("SKIPPED: no other user may run the command here");
        }
    }
}

/// The option says what forwards, or else the topology; what there is says so, and what is missing for it is named.
#[test]
fn switches_are_of_the_kind_that_is_asked_for() {
    let Some(lab) = Lab::new("kinds") else { return };
    let file = support::temp("kinds.toml");
    let topology =
        |section: &str| fs::write(&file, format!("{section}\n[fabric]\n[[host]]\nname = \"h1\"\n")).unwrap();
    let file = file.to_str().unwrap();
    for (args, section, kind) in [
        (&[][..], "", "kernel"),
        (&["--switch", "xdp"], "[lab]", "xdp"),
        (&[], "[lab]\nswitch = \"xdp-generic\"", "xdp-generic"),
        (&["--switch", "kernel"], "[lab]\nswitch = \"xdp\"", "kernel"),
    ] {
        topology(section);
        let (out, error, status) = lab.run(&[&["up", file], args].concat());
        assert_eq!((error.as_str(), status), ("", Some(0)), "{out}");
        let switches = if kind == "kernel" { String::new() } else { format!(" ({kind})") };
        assert!(out.contains(&format!(", 1 switches{switches}, ")), "{out}");
        let told = lab.status();
        assert_eq!(told["switch"], kind);
        let names: Vec<_> = told["switches"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        let (table, ..) = lab.run(&["status"]);
        assert_eq!(names, if kind == "kernel" { vec![] } else { vec!["p0-t0-0"] });
        assert_eq!(table.contains(&format!("\nswitch ({kind}) ")), kind != "kernel", "{table}");
        if kind == "xdp-generic" {
            let state = format!("/run/spindrift/lab/{}/switches.json", lab.name);
            for (text, part) in
                [("{", "damaged"), ("{\"kind\":\"xdp\",\"numbers\":{\"p0-t0-0\":0}}", "incomplete")]
            {
                fs::write(&state, text).unwrap();
                let (_, error, status) = lab.run(&["status"]);
                assert!(status == Some(1) && error.contains(part) && error.contains("remove"), "{error}");
            }
        }
        assert_eq!(lab.run(&["down"]).2, Some(0));
    }
    topology("[lab]\nswitch = \"fast\"");
    for (args, part) in [(&[][..], "line 2, column 10"), (&["--switch", "slow"], "`slow`")] {
        let (out, error, status) = lab.run(&[&["up", file], args].concat());
        let kinds = ["kernel", "xdp", "xdp-generic"];
        assert_eq!((out.as_str(), status), ("", Some(2)), "{error}");
        let error = error.replace('\'', "`");
        assert!(error.contains(part) && kinds.iter().all(|kind| error.contains(kind)), "{error}");
    }
    // Without ethtool, but with all else.
    let path = support::temp("no-ethtool");
    fs::create_dir_all(&path).unwrap();
    for program in ["ip", "sysctl", "tc"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        let _ = std::os::unix::fs::symlink(stdout(&found).trim(), path.join(program));
    }
    topology("");
    let output = lab.command(&["up", file, "--switch", "xdp"]).env("PATH", &path).output().unwrap();
    let error = stderr(&output);
    assert!(error.contains("ethtool") && error.contains("apt-get") && !output.status.success(), "{error}");
    assert_eq!(lab.left(), [""; 0]);
}
