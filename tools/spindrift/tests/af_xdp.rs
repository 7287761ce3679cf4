//! The benchmarks over `af_xdp` ports, between hosts of a lab. Needs a build with the feature, root, and iproute2; what is missing is
//! said. Builds without the feature are tested to say how to get it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use support::refused;

#[cfg(not(feature = "af_xdp"))]
#[test]
fn a_build_without_them_tells_how_to_get_them() {
    let how = ["this build has no such ports", "tools/setup.sh --af-xdp", "--features af_xdp", "--port udp"];
    refused(&["write-bw", "--port", "af_xdp"], &[&["--port af_xdp: "], &how[..]].concat());
    refused(&["write-lat", "--port", "af_xdp:eth0", "127.0.0.1"], &how);
    refused(
        &["pump", "af_xdp", "--local", "lo"],
        &["pump af_xdp: ", how[0], how[1], how[2], "spindrift pump udp"],
    );
    let ports = support::stdout(&support::run(&["ports"]));
    assert!(ports.contains("af_xdp ports are not in this build") && ports.contains(how[2]), "{ports}");
    assert!(
        !ports.lines().any(|line| line.contains(" af_xdp ") && line.contains("cannot be used")),
        "{ports}"
    );
}

/// Whether there are such ports or not.
#[test]
fn loopback_has_none() {
    refused(&["loopback", "--port", "af_xdp"], &["--port af_xdp: ", "connect hosts", "`write-bw`"]);
}

#[cfg(feature = "af_xdp")]
mod with {
    use std::io::{BufRead as _, BufReader};
    use std::net::Ipv6Addr;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use serde_json::{Value as Json, json as value};

    use super::support::lab::{Lab, PATIENCE};
    use super::support::{Running, end_of, json, refused, stderr, stdout};

    const BOTH: [&str; 4] = ["--port", "af_xdp:eth0", "--port", "af_xdp:eth1"];
    /// The server's first address.
    const SERVER: &str = "fd5d:7072::2";

    /// The objects of server and client.
    fn write_bw(lab: &Lab, options: [&[&str]; 2]) -> [Json; 2] {
        lab.write_bw(["h1", "h2"], SERVER, options)
    }

    /// What a side says of its ports.
    fn ports(side: &Json) -> String {
        side["settings"]["ports"].to_string()
    }

    /// Waits until something is so.
    fn wait_for(mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything that the interfaces of a host say of programs.
    fn programs(lab: &Lab, host: &str) -> usize {
        let links = Command::new("ip").args(["-n", &lab.namespace(host), "-d", "link"]).output().unwrap();
        stdout(&links).matches("prog/xdp").count()
    }

    #[test]
    fn hosts_write_to_each_other_over_both_planes() {
        let Some(lab) = Lab::new("afxdp") else { return };
        lab.up("two-plane.toml");
        let [server, client] = write_bw(&lab, [&BOTH, &BOTH]);
        for (side, addresses, data) in [
            (&client, ["(fd5d:7072::1)", "(fd5d:7072::1:1)"], "tx_frames"),
            (&server, [SERVER, "1:2"], "rx_frames"),
        ] {
            assert_eq!(
                (&side["settings"]["port"], &side["settings"]["planes"]),
                (&value!("af_xdp"), &value!(2))
            );
            let ports = ports(side);
            let said = ["af_xdp eth0", "af_xdp eth1", "native XDP", "copies", addresses[0], addresses[1]];
            assert!(said.iter().all(|part| ports.contains(part)), "{ports}");
            let counters = &side["counters"]["ports"];
            // Each message takes 16 packets. How many answer them depends on how busy the machine is.
            assert!(counters[data].as_u64() >= Some(300 * 16), "{counters}");
            assert!(counters["tx_frames"].as_u64() > Some(0), "{counters}");
            assert!(
                counters.get("tx_errors").is_none() && counters.get("tx_dropped").is_none(),
                "{counters}"
            );
        }
        // The interfaces are the kernel's again.
        assert_eq!((programs(&lab, "h1"), programs(&lab, "h2")), (0, 0));
        // Addresses in place of interfaces, a file in place of flags, the other mode, buffers that are soon full, and faults.
        let file = std::env::temp_dir().join(format!("spindrift-afxdp-{}.toml", std::process::id()));
        std::fs::write(
            &file,
            "[nic]\nport = \"af_xdp\"\nlocal = [\"eth0\", \"fd5d:7072::1:2\"]\nxdp_mode = \"generic\"\nrx_buffers = 64\n",
        )
        .unwrap();
        let of_file = ["--config", file.to_str().unwrap()];
        // Flags go before it.
        let addresses = ["--config", file.to_str().unwrap(), "--xdp-mode", "native"];
        let more = ["--local", "fd5d:7072::1,fd5d:7072::1:1", "--fault", "loss=1%"];
        let addresses = [&addresses[..], &more].concat();
        let [server, client] = write_bw(&lab, [&of_file, &addresses]);
        assert!(ports(&server).contains("generic XDP") && ports(&client).contains("native XDP"), "{server}");
        assert!(client["counters"]["transport"]["tx_retransmits"].as_u64() > Some(0), "{client}");
        // Without a place the address that leads to the peer decides: one plane.
        let [server, _] = write_bw(&lab, [&["--port", "af_xdp"], &["--port", "af_xdp"]]);
        assert!(ports(&server).contains("af_xdp eth0") && !ports(&server).contains("eth1"), "{server}");
        let lat = ["write-lat", SERVER, "--port", "af_xdp", "-n", "100"];
        let other = Running::start(&mut lab.spindrift("h2", &["write-lat", "--port", "af_xdp:eth0"]));
        // The server may not listen yet.
        let ended = |args: &[&str]| {
            end_of(Running::start(&mut lab.spindrift("h1", args)), PATIENCE, "the client").status.success()
        };
        wait_for(|| ended(&lat));
        assert!(end_of(other, PATIENCE, "the server").status.success());
        std::fs::remove_file(&file).unwrap();
    }

    /// Kernel sockets at the other end; the kernel takes what has no checksum.
    #[test]
    fn both_kinds_understand_each_other() {
        let Some(lab) = Lab::new("afxdpudp") else { return };
        lab.up("two-plane.toml");
        let file = std::env::temp_dir().join(format!("spindrift-afxdp-udp-{}.toml", std::process::id()));
        std::fs::write(&file, "transport.entropy = \"udp\"\n").unwrap();
        let past = [&BOTH[..], &["--config", file.to_str().unwrap()]].concat();
        let kernel = ["--port", "udp:eth0", "--port", "udp:eth1"];
        for options in [[&kernel[..], &past], [&past, &kernel]] {
            let [server, client] = write_bw(&lab, options);
            let kinds = [&server["settings"]["port"], &client["settings"]["port"]];
            assert!(kinds.contains(&&value!("udp")) && kinds.contains(&&value!("af_xdp")), "{kinds:?}");
        }
        // Not without being told: what they call a path differs.
        let waiting = lab.server("h2", &kernel);
        let args = [&["write-bw", SERVER, "--json"], &BOTH[..]].concat();
        let client = end_of(Running::start(&mut lab.spindrift("h1", &args)), PATIENCE, "the client");
        let error = json(&client.stdout)["error"].to_string();
        assert!(error.contains("entropy") && error.contains("kernel sockets need `udp`"), "{error}");
        drop(waiting);
        std::fs::remove_file(&file).unwrap();
    }

    /// What a switch trims is asked for again at once, whatever the packets look like; no byte is missing.
    #[test]
    fn trimmed_packets_are_sent_again() {
        let lab = Lab::each("afxdptrim", &["xdp"]).next();
        let Some(lab) = lab else { return };
        lab.up("two-plane.toml");
        let file = super::support::lab::config("two-plane.toml");
        lab.ok(&["fault", "h3", "rate=1G,trim=200us,dir=down"]);
        for routed in [
            &["--port", "af_xdp:eth0", "--port", "af_xdp:eth1"][..],
            &["--port", "af_xdp", "--topology", &file],
        ] {
            let queues = |what: &str| {
                let links = lab.links();
                let queues = links.iter().flat_map(|link| link["queues"].as_array().unwrap());
                queues.map(|queue| queue[what].as_u64().unwrap()).sum::<u64>()
            };
            let before = queues("trimmed");
            let [server, client] = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", [routed, routed]);
            let of =
                |side: &Json, name: &str| side["counters"]["transport"][name].as_u64().unwrap_or_default();
            let (trimmed, told) = (queues("trimmed") - before, of(&server, "rx_trimmed"));
            assert!(told > 0 && told <= trimmed, "{told} of {trimmed}");
            let (nacks, again) = (of(&client, "loss_nack"), of(&client, "tx_retransmits"));
            // A copy of what had arrived is of no use when it is trimmed. A machine that pauses a side makes the other send some.
            assert!(of(&server, "rx_trimmed_useless") <= again, "{server} {client}");
            assert!(
                nacks > 0 && nacks <= told && again * 10 > nacks * 9,
                "{nacks} of {told}, {again} sent again"
            );
        }
    }

    /// A socket that has the usual UDP port keeps it, and what is killed leaves nothing in the way.
    #[test]
    fn others_on_the_host_are_left_alone() {
        let Some(lab) = Lab::new("afxdpalone") else { return };
        lab.up("one-plane.toml");
        let port = ["--port", "af_xdp:eth0"];
        let address: Ipv6Addr = SERVER.parse().unwrap();
        let theirs = lab.socket("h2", address, 4971);
        let [_, client] = write_bw(&lab, [&port, &port]);
        assert_eq!(client["error"], Json::Null);
        // Nothing came to the other's socket.
        theirs.set_nonblocking(true).unwrap();
        assert!(theirs.recv(&mut [0; 64]).is_err());
        // A port that was asked for by number is not replaced.
        let fixed = [&["write-bw", "--udp-port", "4971"], &port[..]].concat();
        let output = end_of(Running::start(&mut lab.spindrift("h2", &fixed)), PATIENCE, "the server");
        let error = stderr(&output);
        assert!(
            error.contains("UDP port 4971 of fd5d:7072::2 is in use") && !output.status.success(),
            "{error}"
        );
        drop(theirs);
        // The server is killed in the middle of a run.
        let mut killed = lab.server("h2", &port);
        let args = [&["write-bw", SERVER, "-D", "20s", "--json"], &port[..]].concat();
        let client = Running::start(&mut lab.spindrift("h1", &args));
        wait_for(|| programs(&lab, "h2") > 0 && programs(&lab, "h1") > 0);
        killed.child().kill().unwrap();
        let client = end_of(client, PATIENCE, "the client");
        let error = json(&client.stdout)["error"].to_string();
        assert!(error.contains("closed the connection (it ended"), "{error}");
        write_bw(&lab, [&port, &port]);
        // A second one on the same interface is told why it cannot be.
        let second = [&["write-bw", "-p", "7000"], &port[..]].concat();
        let args = [&["write-bw", SERVER, "-D", "20s"], &port[..]].concat();
        let busy = lab.server("h2", &port);
        let client = Running::start(&mut lab.spindrift("h1", &args));
        wait_for(|| programs(&lab, "h2") > 0);
        let output = end_of(Running::start(&mut lab.spindrift("h2", &second)), PATIENCE, "the second");
        let error = stderr(&output);
        assert_eq!(error.matches("interface eth0 has an XDP program already").count(), 1, "{error}");
        drop((client, busy));
    }

    #[test]
    fn the_list_of_ports_tells_what_they_would_be() {
        let Some(lab) = Lab::new("afxdplist") else { return };
        lab.up("two-plane.toml");
        let output = lab.spindrift("h1", &["ports", "--json"]).output().unwrap();
        let all = json(&output.stdout);
        let of = |kind: &str, address: &str| {
            let rows = all["ports"].as_array().unwrap().iter();
            rows.filter(|row| row["port"] == kind && row["address"] == address).cloned().collect::<Vec<_>>()
        };
        let [row] = &of("af_xdp", "fd5d:7072::1:1")[..] else { panic!("{all}") };
        let notes = row["notes"].to_string();
        assert!(notes.contains("driver veth") && notes.contains("1 queue: 1 lane"), "{notes}");
        assert_eq!(
            (&row["interface"], &row["network"], &row["error"]),
            (&value!("eth1"), &value!(true), &Json::Null)
        );
        assert_eq!((&row["max_frame"], &row["batch"]), (&value!(9230), &value!(1)));
        assert_eq!(of("udp", "fd5d:7072::1:1")[0]["index"], row["index"]);
        assert_eq!(of("af_xdp", "::1"), [] as [Json; 0], "lo leads nowhere");
        assert_eq!(programs(&lab, "h1"), 0);
        let text = stdout(&lab.spindrift("h1", &["ports"]).output().unwrap());
        assert!(text.contains("fd5d:7072::1:1") && text.contains(" af_xdp      9230"), "{text}");
        assert!(text.contains("settings of af_xdp ports") && text.contains("nic.xdp_mode"), "{text}");
        without_a_driver(&lab);
        // Without permission: why, and what else there is.
        let who = ["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_spindrift"), "ports", "--json"];
        let output = lab.on("h1", "setpriv", &who).output().unwrap();
        if output.status.success() {
            let rows = json(&output.stdout);
            let row = rows["ports"].as_array().unwrap().iter().find(|row| row["port"] == "af_xdp").cloned();
            let error = row.unwrap()["error"].to_string();
            assert!(
                ["CAP_NET_RAW", "CAP_BPF", "`udp` port"].iter().all(|part| error.contains(part)),
                "{error}"
            );
        }
    }

    /// An interface whose driver has no XDP is what it is said to be.
    fn without_a_driver(lab: &Lab) {
        let namespace = lab.namespace("h1");
        let ip = |args: &str| {
            let args = ["-n", &namespace].into_iter().chain(args.split(' '));
            Command::new("ip").args(args).output().unwrap().status.success()
        };
        if !ip("link add odd0 type bridge") {
            return eprintln!("SKIPPED: this kernel has no bridges");
        }
        assert!(ip("address add 192.0.2.1/24 dev odd0") && ip("link set odd0 up"));
        let text = stdout(&lab.spindrift("h1", &["ports"]).output().unwrap());
        let said = ["driver bridge without native XDP: generic, with copies", "older than 6.3"];
        assert!(said.iter().any(|part| text.contains(part)), "{text}");
        let odd = ["--port", "af_xdp:odd0"];
        let native = [&["write-bw"], &odd[..], &["--xdp-mode", "native"]].concat();
        let output = end_of(Running::start(&mut lab.spindrift("h1", &native)), PATIENCE, "the server");
        assert!(
            stderr(&output).contains("odd0 (bridge) has no native XDP") && !output.status.success(),
            "{}",
            stderr(&output)
        );
        let mut auto = Running::start(&mut lab.spindrift("h1", &[&["write-bw"], &odd[..]].concat()));
        let mut line = String::new();
        BufReader::new(auto.child().stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
    }

    /// The kernel's own packets go on beside the transport's, however many those are.
    #[test]
    #[ignore = "slow: tools/check-all.sh"]
    fn ping_is_answered_while_the_transport_runs() {
        let Some(lab) = Lab::new("afxdpping") else { return };
        lab.up("two-plane.toml");
        let server = lab.server("h2", &BOTH);
        let args = [&["write-bw", SERVER, "--json", "-s", "1M", "-D", "6s"], &BOTH[..]].concat();
        let mut client = Running::start(&mut lab.spindrift("h1", &args));
        wait_for(|| programs(&lab, "h2") == 2 && programs(&lab, "h1") == 2);
        for (host, address) in [("h1", SERVER), ("h1", "fd5d:7072::1:2"), ("h2", "fd5d:7072::1:1")] {
            let ping = lab.on(host, "ping", &["-6", "-c", "5", "-i", "0.1", "-W", "5", address]).output();
            let said = stdout(&ping.unwrap());
            assert!(said.contains("5 packets transmitted, 5 received"), "{said}");
        }
        assert!(client.child().try_wait().unwrap().is_none(), "it was to run all the time");
        for side in [client, server] {
            let output = end_of(side, PATIENCE, "a side");
            let told = json(&output.stdout);
            assert!(output.status.success(), "{told} {}", stderr(&output));
            assert_eq!(
                (&told["error"], &told["rows"][0]["verified"]),
                (&Json::Null, &value!(true)),
                "{told}"
            );
        }
    }

    /// Starts a receiver, and returns what a sender with these options and then that one say.
    fn pump(lab: &Lab, of_receiver: &[&str], of_sender: &[&str]) -> [Json; 2] {
        let receiver = [&["pump", "af_xdp", "--json", "--local", "eth1"], of_receiver].concat();
        let receiver = Running::start(&mut lab.spindrift("h3", &receiver));
        wait_for(|| programs(lab, "h3") == 1);
        let sender = [&["pump", "af_xdp", "--json", "-D", "300ms"], of_sender].concat();
        let sender = end_of(Running::start(&mut lab.spindrift("h1", &sender)), PATIENCE, "the sender");
        assert!(sender.status.success(), "{}", stderr(&sender));
        let receiver = end_of(receiver, PATIENCE, "the receiver");
        [json(&sender.stdout), json(&receiver.stdout)]
    }

    /// By the kernel's routes, and along a path of the fabric.
    #[test]
    #[ignore = "slow: tools/check-all.sh"]
    fn the_pump_pumps() {
        let Some(lab) = Lab::new("afxdppump") else { return };
        lab.up("two-plane.toml");
        let to = "fd5d:7072:0:1::1:1";
        let topology = super::support::lab::config("two-plane.toml");
        let path = ["path", "-t", &topology, "--to", "h3", "--plane", "1", "--ev", "0x40000000", "--json"];
        let path = json(&super::support::run(&path).stdout);
        let carrier = path["paths"][0]["hops"][0]["destination"].as_str().unwrap();
        let crc = ["--crc-copy"];
        for (receiving, sending) in [
            (&crc[..], &[to, "--crc-copy", "--carrier", carrier] as &[&str]),
            (&["--wait", "poll", "--xdp-mode", "generic", "-s", "64"], &[to, "--local", "eth1", "-s", "64"]),
        ] {
            let [sender, receiver] = pump(&lab, receiving, sending);
            let payload = &sender["settings"]["payload_bytes"];
            for (side, moved, other) in [(&sender, "sent", "received"), (&receiver, "received", "sent")] {
                let (moved, other) = (&side[moved], &side[other]);
                assert_eq!((&side["command"], other), (&value!("pump af_xdp"), &Json::Null));
                let number = |name: &str| moved[name].as_u64().unwrap();
                assert!(number("packets") > 100 && number("errors") == 0 && number("calls") > 0, "{side}");
                assert_eq!(number("payload_bytes"), number("packets") * payload.as_u64().unwrap());
                assert!(moved["bandwidth_gbps"].as_f64() > Some(0.0), "{side}");
            }
            assert!(receiver["received"]["dropped"].is_u64() && sender["sent"]["dropped"].is_null());
            assert_eq!(
                (&sender["settings"]["interface"], &sender["settings"]["remote"]),
                (&value!("eth1"), &value!(to))
            );
        }
        // The path crosses the second switch of the upper tier, and the kernel's routes spread by flow.
        assert!(lab.up_packets("p1-t0-0").get(1) > Some(&100), "{:?}", lab.up_packets("p1-t0-0"));
        let text = lab.spindrift("h1", &["pump", "af_xdp", "fd5d:7072::2", "-D", "100ms"]).output().unwrap();
        let text = stdout(&text);
        assert!(
            text.contains("spindrift pump af_xdp: fd5d:7072::1 to fd5d:7072::2 port 4971, 4 KiB per"),
            "{text}"
        );
        assert!(
            text.contains("#dropped") && text.lines().last().unwrap().starts_with("     sent "),
            "{text}"
        );
        // Nothing comes: the receiver says so when it is told to end. A sender without the CRC is found out.
        let args = ["pump", "af_xdp", "--json", "--crc-copy", "--local", "eth1"];
        let receiver = Running::start(&mut lab.spindrift("h3", &args));
        wait_for(|| programs(&lab, "h3") == 1);
        assert!(
            lab.spindrift("h1", &["pump", "af_xdp", to, "-D", "50ms"]).output().unwrap().status.success()
        );
        let output = end_of(receiver, PATIENCE, "the receiver");
        assert!(stderr(&output).contains("give --crc-copy and the same --size to the sender too"));
        assert!(!output.status.success());
        let nobody =
            lab.spindrift("h1", &["pump", "af_xdp", "fd5d:7072::77", "--local", "eth0"]).output().unwrap();
        assert!(stderr(&nobody).contains("no way from af_xdp eth0"), "{}", stderr(&nobody));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let pump = |rest: &[&'static str]| [&["pump", "af_xdp"], rest].concat();
        for (args, parts) in [
            (pump(&["--local", "eth77"]), &["--local", "no interface eth77"] as &[&str]),
            (pump(&["--local", "127.0.0.9"]), &["127.0.0.9 is no interface's address"]),
            (pump(&["--local", "lo", "-s", "8961"]), &["--size 8961", "1 to 8960"]),
            (pump(&["--local", "lo", "-s", "0"]), &["--size 0"]),
            (pump(&["--local", "lo", "--port", "0"]), &["--port 0"]),
        ] {
            refused(&args, parts);
        }
        for (args, part) in [
            (pump(&[]), "--local <ADDR|IF>"),
            (pump(&["--local", "lo", "--carrier", "fcbb::"]), "<REMOTE>"),
            (pump(&["::1", "--wait", "poll"]), "--wait"),
            (pump(&["::1", "--carrier", "1.2.3.4"]), "--carrier"),
        ] {
            let output = super::support::run(&args);
            let error = stderr(&output);
            assert!(error.contains(part) && output.status.code() == Some(2), "{args:?}: {error}");
        }
        let xdp = |rest: &[&'static str]| [&["write-bw", "--port", "af_xdp"], rest].concat();
        for (args, parts) in [
            (xdp(&["--no-gso"]), &["--no-gso", "kind af_xdp", "--port udp"] as &[&str]),
            (xdp(&["--source-ports", "4"]), &["--source-ports", "kind af_xdp"]),
            (xdp(&["--rx-buffers", "100"]), &["--rx-buffers 100", "power of two from 64 to 65536"]),
            (xdp(&["--tx-buffers", "32"]), &["--tx-buffers 32", "from 64"]),
            (xdp(&["--tx-buffers", "131072"]), &["--tx-buffers 131072", "to 65536"]),
            (xdp(&["--local", "eth77"]), &["--local", "no interface eth77", "spindrift ports"]),
            (xdp(&["--local", "127.0.0.9"]), &["127.0.0.9 is no interface's address"]),
            (xdp(&["--port", "udp:lo"]), &["--port af_xdp and --port udp", "one kind"]),
            (xdp(&["--port", "af_xdp:lo", "--local", "::1"]), &["--port and --local", "one of them"]),
            (xdp(&["--port", "af_xdp:lo", "-x", "0"]), &["--port and --address-index", "one of them"]),
        ] {
            refused(&args, parts);
        }
    }
}

/// Kernel sockets have no XDP; this needs no such port.
#[test]
fn settings_of_one_kind_are_refused_for_another() {
    refused(&["write-bw", "--xdp-mode", "native"], &["--xdp-mode", "kind udp", "--port af_xdp"]);
    refused(&["write-bw", "--rx-buffers", "64"], &["--rx-buffers", "kind udp"]);
    refused(&["write-bw", "--tx-buffers", "64"], &["--tx-buffers", "kind udp"]);
    refused(&["write-bw", "--port", "udp:lo", "--local", "::1"], &["--port and --local", "one of them"]);
    refused(&["write-bw", "--port", "udp:eth77"], &["--port", "no interface eth77"]);
}
