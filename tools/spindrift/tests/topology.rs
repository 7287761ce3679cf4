//! The benchmarks with a topology file. Most of it needs a lab, and some of that a build with `af_xdp` ports; what is missing is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value as Json, json};
use support::lab::{Lab, PATIENCE, config};
use support::{Running, end_of, refused, run, stderr, temp};

/// A file of these words, gone with the value.
struct Written(PathBuf);

impl Written {
    fn new(name: &str, text: &str) -> Self {
        let path = temp(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const ONE_HOST: &str = "[fabric]\nprefix = \"::/48\"\n[[host]]\nname = \"me\"\n";

#[test]
fn what_does_not_fit_is_refused() {
    let mine = Written::new("mine.toml", ONE_HOST);
    let theirs = Written::new("theirs.toml", "[fabric]\n[[host]]\nname = \"you\"\n");
    let broken = Written::new("broken.toml", "[fabric]\nplanes = 0\n[[host]]\nname = \"you\"\n");
    let (me, you) = (mine.path(), theirs.path());
    for (args, parts) in [
        (&["--topology", "/nowhere.toml"] as &[&str], &["cannot read the topology /nowhere.toml"] as &[&str]),
        (&["--topology", broken.path()], &[broken.path(), "fabric.planes"]),
        (
            &["--topology", you],
            &["--topology: this machine", you, "such as fd5d:7072::1 of you", "`spindrift ports`"],
        ),
        (&["--topology", me, "--local", "127.0.0.1"], &["--local: no host of", "address 127.0.0.1"]),
        (&["--topology", me, "--port", "udp:no0"], &["--port: no host of", "interface no0"]),
        (&["--routing", "srv6"], &["--routing srv6: ", "--topology"]),
        (&["--topology", me, "--routing", "srv6"], &["--routing srv6: ", "udp ports", "--port af_xdp"]),
        (&["--topology", me, "--local", "::1,::1"], &["--local: ::1 is listed twice"]),
    ] {
        refused(&[&["write-bw"], args].concat(), parts);
    }
    let both = run(&["write-bw", "--topology", me, "--plane-ids", "4"]);
    assert_eq!(both.status.code(), Some(2));
    assert!(stderr(&both).contains("cannot be used with"), "{}", stderr(&both));
    // Of a file, its place in it. A file that it names lies beside it.
    let config =
        Written::new("site.toml", "[nic]\nplane_ids = [4]\ntopology = \"theirs.toml\"\nrouting = \"srv6\"\n");
    let with = |more: &[&'static str]| [&["write-lat", "--config", config.path()], more].concat();
    refused(&with(&[]), &["site.toml: line 2, column", "nic.plane_ids and", "nic.topology both give"]);
    let config = Written::new("site2.toml", "[nic]\ntopology = \"no-such-theirs.toml\"\n");
    let beside = temp("x").with_file_name("no-such-theirs.toml");
    refused(
        &["write-lat", "--config", config.path()],
        &["cannot read the topology", beside.to_str().unwrap()],
    );
    for (port, parts) in [
        ("loopback", &["nic.topology", "kind loopback has no place in a fabric"] as &[&str]),
        ("udp", &["nic.topology", "`loopback` chooses the addresses"]),
    ] {
        let args = ["loopback", "--config", config.path(), "--port", port];
        if port == "loopback" {
            refused(&args, parts);
        } else {
            let output = run(&args);
            assert_eq!(output.status.code(), Some(2));
            assert!(parts.iter().all(|part| stderr(&output).contains(part)), "{}", stderr(&output));
        }
    }
}

/// What a side says of its place.
fn place(side: &Json) -> [&Json; 3] {
    ["topology", "host", "routing"].map(|key| &side["settings"][key])
}

#[test]
fn kernel_sockets_find_their_planes_in_it() {
    let Some(lab) = Lab::new("topology") else { return };
    lab.up("two-plane.toml");
    let file = config("two-plane.toml");
    let given = ["--topology", &file];
    let [server, client] = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", [&given, &given]);
    assert_eq!(place(&client), [&json!(file), &json!("h1"), &json!("ecmp")]);
    assert_eq!(place(&server), [&json!(file), &json!("h3"), &json!("ecmp")]);
    for (side, addresses) in [
        (client, ["fd5d:7072::1 port", "fd5d:7072::1:1 port"]),
        (server, ["fd5d:7072:0:1::1 port", "fd5d:7072:0:1::1:1 port"]),
    ] {
        let ports = side["settings"]["ports"].as_array().unwrap();
        assert_eq!(ports.len(), 2);
        for (port, address) in ports.iter().zip(addresses) {
            assert!(port["name"].to_string().contains(address), "{port}");
        }
    }
    // Planes in another order than the peer's are seen, since both have the file's numbers.
    let waiting = lab.server("h3", &given);
    let swapped = [&["write-bw", "fd5d:7072:0:1::1", "--json", "--local", "eth1,eth0"], &given[..]].concat();
    let client = end_of(Running::start(&mut lab.spindrift("h1", &swapped)), PATIENCE, "the client");
    let error = support::json(&client.stdout)["error"].to_string();
    assert!(error.contains("plane") && !client.status.success(), "{error}");
    drop(waiting);
}

#[cfg(feature = "af_xdp")]
mod source_routed {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv6Addr};

    use spindrift::wire::stack::parse_front;
    use spindrift::wire::{EntropyMode, StevOrder, UDP_PORT_MRC};
    use spindrift_srv6::{Fabric, FabricHost, Node, Shape};

    use super::support::raw::Ring;
    use super::*;

    const T1: u16 = 4;

    /// The fabric of `two-plane.toml`, told once more.
    fn fabric() -> Fabric {
        let host =
            |(name, t0, downlink): (&str, u16, u16)| FabricHost { name: name.to_owned(), t0, downlink };
        let hosts = [("h1", 0, 0), ("h2", 0, 1), ("h3", 1, 0), ("h4", 1, 1)].map(host);
        Fabric::new(Shape { planes: 2, t0: 2, t1: T1, ..Shape::default() }, hosts.into()).unwrap()
    }

    /// By destination address the source-routed packets that pass a switch, and by their entropy value.
    type Seen = BTreeMap<(Ipv6Addr, Ipv6Addr, u32), usize>;

    fn note(seen: &mut Seen, frame: &[u8]) {
        const PROTOCOL_IPV6: u8 = 41;
        /// The ring has headers only.
        const CUT: usize = 9000;
        let Some(outer) = frame.get(14..54).filter(|ip| ip[0] >> 4 == 6 && ip[6] == PROTOCOL_IPV6) else {
            return;
        };
        let outer = Ipv6Addr::from(<[u8; 16]>::try_from(&outer[24..40]).unwrap());
        let parsed = parse_front(frame, CUT).unwrap();
        assert_eq!(parsed.meta.dst_port, UDP_PORT_MRC);
        let IpAddr::V6(to) = parsed.meta.dst else { panic!("{:?}", parsed.meta) };
        let mode = EntropyMode::Stev(StevOrder::SportHigh);
        let ev = mode.extract(parsed.meta.src_port, parsed.meta.flow_label);
        *seen.entry((to, outer, ev.0)).or_default() += 1;
    }

    /// What both sides say of writes from h1 to h3, which are given this, and what these switches saw of them.
    fn watched(lab: &Lab, switches: &[Node], given: [&[&str]; 2]) -> ([Json; 2], Vec<Seen>) {
        let rings = switches.iter().map(|node| Ring::new(&lab.namespace(&node.to_string()), 512));
        let mut rings: Vec<_> = rings.collect();
        let both = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", given);
        let seen = rings.iter_mut().map(|ring| {
            let mut seen = Seen::new();
            ring.look(|frame| note(&mut seen, frame));
            seen
        });
        (both, seen.collect())
    }

    /// The client's file leaves out half of the T1 switches on the way to the other T0 switch; the way back has them all.
    #[test]
    fn templates_choose_the_switches() {
        let Some(lab) = Lab::new("templates") else { return };
        lab.up("two-plane.toml");
        let plain = config("two-plane.toml");
        let template = r#"
            [[template]]
            from = ["h1"]
            to = "fd5d:7072:0:1::/64"
            fields = [
                { init = 0xfcbbbb00 }, { init = 0x4000, plane = 0x200 }, { init = 0x8002, mask = 0x1, plane = 0x200 },
                { init = 0x4001, plane = 0x200 }, { init = 0xc000, plane = 0x200, downlink = 0x1 },
            ]"#;
        let ours = Written::new("ours.toml", &(fs::read_to_string(&plain).unwrap() + template));
        let all = (0..2).flat_map(|plane| (0..T1).map(move |number| Node::T1 { plane, number }));
        let switches: Vec<_> = all.collect();
        let given = |file| ["--port", "af_xdp", "--topology", file];
        let (_, seen) = watched(&lab, &switches, [&given(&plain), &given(ours.path())]);
        let fabric = fabric();
        let mut on_other_half = 0;
        for (node, seen) in switches.iter().zip(&seen) {
            let Node::T1 { plane, number } = *node else { panic!("{node}") };
            let [data, answers] = [2, 0].map(|host| {
                let address = fabric.address(host, plane);
                let of = seen.iter().filter(|((to, ..), _)| address == Some(*to));
                of.map(|(_, count)| count).sum::<usize>()
            });
            assert_eq!(data > 100, number >= 2, "{node}: {seen:?}");
            assert!(number >= 2 || data == 0, "{node}: {seen:?}");
            // Each stays on a path for a while: one run need not see all of them.
            on_other_half += if number < 2 { answers } else { 0 };
        }
        assert!(on_other_half > 0, "{seen:?}");
    }

    /// Each T1 switch sees the packets of its own entropy value, with the uSIDs that are left: as they come in, and as they go out.
    #[test]
    fn entropy_values_lead_over_their_switches() {
        let Some(lab) = Lab::new("srcroutes") else { return };
        lab.up("two-plane.toml");
        let file = config("two-plane.toml");
        let given = ["--port", "af_xdp", "--topology", &file];
        let all = (0..2).flat_map(|plane| (0..T1).map(move |number| Node::T1 { plane, number }));
        let switches: Vec<_> = all.collect();
        let (both, seen) = watched(&lab, &switches, [&given, &given]);
        for (side, name) in both.iter().zip(["h3", "h1"]) {
            assert_eq!(place(side), [&json!(file), &json!(name), &json!("srv6")]);
        }
        let fabric = fabric();
        let mut walker = fabric.walker();
        let mut answered = false;
        for (node, seen) in switches.iter().zip(&seen) {
            let mut carried = 0;
            for (&(to, outer, ev), &count) in seen {
                let (to, plane) = fabric.port_of(to).unwrap();
                let from = if to == 0 { 2 } else { 0 };
                let walk = walker.walk(from, to, plane, ev).unwrap();
                let at = walk.hops.iter().position(|hop| hop.node == *node);
                let at = at.unwrap_or_else(|| panic!("{node} is not on the path of {ev:#x}: {walk:?}"));
                let [comes, goes] = [at - 1, at].map(|at| walk.hops[at].destination);
                assert!(outer == comes || outer == goes, "{node} {ev:#x}: {outer}, not {comes} or {goes}");
                let also = if outer == comes { goes } else { comes };
                let also = seen.get(&(fabric.address(to, plane).unwrap(), also, ev));
                assert_eq!(also, Some(&count), "{node} {ev:#x}: as many go as come: {seen:?}");
                answered |= to == 0;
                carried += count;
            }
            assert!(carried > 100, "{node}: {carried}");
        }
        assert!(answered, "{seen:?}");
    }

    /// Between hosts at one T0 switch a plane is one path. When nothing comes through it, it is left at once.
    #[test]
    fn the_only_path_of_a_plane_may_fail() {
        let Some(lab) = Lab::new("srconly") else { return };
        lab.up("two-plane.toml");
        let (_, error, status) = lab.run(&["fault", "h2:p1-t0-0", "blackhole"]);
        assert_eq!(status, Some(0), "{error}");
        let file = config("two-plane.toml");
        let given = ["--port", "af_xdp", "--topology", &file];
        let [_, client] = lab.write_bw(["h1", "h2"], "fd5d:7072::2", [&given, &given]);
        let counters = &client["counters"]["transport"];
        let (sent, again) =
            (counters["tx_data"].as_u64().unwrap(), counters["tx_retransmits"].as_u64().unwrap());
        assert!(again > 0 && again < sent / 10, "{again} of {sent} packets were sent again");
    }

    /// A file that lacks the peer, and one that says not to.
    #[test]
    fn who_is_not_in_it_is_routed_by_switches() {
        let Some(lab) = Lab::new("noroutes") else { return };
        lab.up("two-plane.toml");
        let file = config("two-plane.toml");
        let few = "[fabric]\nplanes = 2\nt0 = 2\nt1 = 4\n[[host]]\nname = \"one\"\n";
        let few = Written::new("few.toml", few);
        let given = ["--port", "af_xdp", "--topology", &file];
        let server = lab.server("h3", &given);
        let args =
            ["write-bw", "fd5d:7072:0:1::1", "-n", "100", "--port", "af_xdp", "--topology", few.path()];
        let client = end_of(Running::start(&mut lab.spindrift("h1", &args)), PATIENCE, "the client");
        let told = stderr(&client);
        let said = "which no host has there in";
        assert!(client.status.success() && told.matches(said).count() == 2, "{told}");
        assert!(told.contains("fd5d:7072:0:1::1:1 on plane 1, ") && told.contains(few.path()), "{told}");
        let out = support::stdout(&client);
        assert!(out.contains("this is one of the topology; packets are source-routed"), "{out}");
        assert!(end_of(server, PATIENCE, "the server").status.success());
        let ecmp = [&given[..], &["--routing", "ecmp"]].concat();
        let [server, client] = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", [&ecmp, &ecmp]);
        for side in [server, client] {
            assert_eq!(side["settings"]["routing"], "ecmp");
        }
        // Where entropy values are where kernel sockets have them, there is no room for a path.
        let sockets = Written::new("sockets.toml", "transport.entropy = \"udp\"\n");
        let past = [&given[..], &["--config", sockets.path()]].concat();
        let [server, _] = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", [&past, &["--topology", &file]]);
        assert_eq!(server["settings"]["routing"], "ecmp");
        let asked = [&["write-bw", "--routing", "srv6"], &past[..]].concat();
        let output = end_of(Running::start(&mut lab.spindrift("h1", &asked)), PATIENCE, "the server");
        let error = stderr(&output);
        assert!(error.contains("transport.entropy: \"udp\" has no room for the path"), "{error}");
        assert_eq!(output.status.code(), Some(2));
    }
}
