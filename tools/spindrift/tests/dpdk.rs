//! The benchmarks over `dpdk` ports: shared memory between two processes, and an interface of a host whose peer has other ports. Needs
//! a build with the feature; some tests need root and iproute2, and say so. Builds without the feature are tested to say how to get it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use support::refused;

#[cfg(not(feature = "dpdk"))]
#[test]
fn a_build_without_them_tells_how_to_get_them() {
    let how = ["this build has no such ports", "tools/setup.sh --dpdk", "--features dpdk", "--port udp"];
    refused(&["write-bw", "--port", "dpdk"], &[&["--port dpdk: "], &how[..]].concat());
    refused(&["write-lat", "--port", "dpdk:net_memif0", "127.0.0.1"], &how);
    let pump = ["pump", "dpdk", "--local", "net_null0", "--device-address", "fd00::1"];
    refused(&pump, &["pump dpdk: ", how[0], how[1], how[2], "spindrift pump udp"]);
    let ports = support::stdout(&support::run(&["ports"]));
    assert!(ports.contains("dpdk ports are not in this build") && ports.contains(how[2]), "{ports}");
}

/// Whether there are such ports or not.
#[test]
fn loopback_has_none() {
    refused(&["loopback", "--port", "dpdk"], &["--port dpdk: ", "connect hosts", "`write-bw`"]);
}

#[cfg(feature = "dpdk")]
mod with {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output, Stdio};
    use std::time::{Duration, Instant};

    use serde_json::Value as Json;
    use spindrift_pmd::testing::Hosts;

    use super::support::lab::{Lab, PATIENCE, config};
    use super::support::program::free_port;
    use super::support::{Running, end_of, json, refused, run, spindrift, stderr, stdout, temp};

    /// A server that waits for its client.
    struct Server {
        process: Running,
        errors: BufReader<std::process::ChildStderr>,
    }

    impl Server {
        fn start(mut command: Command, args: &[&str]) -> Self {
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut process = Running::start(&mut command);
            let mut errors = BufReader::new(process.child().stderr.take().unwrap());
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            assert!(line.contains("waiting for a client"), "{line}");
            Self { process, errors }
        }

        fn end(mut self) -> Output {
            let mut output = end_of(self.process, PATIENCE, "the server");
            self.errors.read_to_end(&mut output.stderr).unwrap();
            output
        }
    }

    /// The objects of a client and a server that both end well.
    fn passed(server: Server, client: Running) -> [Json; 2] {
        let client = end_of(client, PATIENCE, "the client");
        let server = server.end();
        let said = format!("{}\nserver: {}", stderr(&client), stderr(&server));
        assert!(client.status.success() && server.status.success(), "{said}\n{}", stdout(&client));
        [json(&client.stdout), json(&server.stdout)]
    }

    /// Two ends of shared memory, for so many planes.
    struct Memory {
        name: String,
        planes: usize,
        /// TCP port of the server.
        tcp: String,
    }

    /// Addresses of the server and the client on each plane.
    const V6: [[&str; 2]; 2] = [["fd00::1", "fd00::2"], ["fd00:0:0:1::1", "fd00:0:0:1::2"]];
    const V4: [[&str; 2]; 2] = [["10.0.0.1/24", "10.0.0.2/24"], ["10.0.1.1/24", "10.0.1.2/24"]];

    impl Memory {
        fn new(test: &str, planes: usize) -> Self {
            Self { name: format!("spindrift-{test}-{}", std::process::id()), planes, tcp: free_port() }
        }

        /// Options of one side.
        fn side(&self, command: &str, side: usize, addresses: &[[&str; 2]]) -> Vec<String> {
            let (name, role) = (&self.name, ["server", "client"][side]);
            let device = |plane| {
                format!(
                    "dpdk:net_memif{plane},role={role},id={plane},bsize=16384,socket-abstract=yes,socket={name}"
                )
            };
            let mut options =
                vec![command.to_owned(), "--json".to_owned(), "-p".to_owned(), self.tcp.clone()];
            options.extend((0..self.planes).flat_map(|plane| ["--port".to_owned(), device(plane)]));
            let addresses: Vec<_> = addresses[..self.planes].iter().map(|plane| plane[side]).collect();
            options.extend(["--device-addresses".to_owned(), addresses.join(",")]);
            options
        }

        fn server(&self, command: &str, addresses: &[[&str; 2]], args: &[&str]) -> Server {
            let options = self.side(command, 0, addresses);
            let options: Vec<&str> = options.iter().map(String::as_str).chain(args.iter().copied()).collect();
            Server::start(spindrift(), &options)
        }

        fn client(&self, command: &str, addresses: &[[&str; 2]], args: &[&str]) -> Running {
            let mut client = spindrift();
            client.args(self.side(command, 1, addresses)).args(args).arg("127.0.0.1");
            Running::start(client.stdout(Stdio::piped()).stderr(Stdio::piped()))
        }

        /// The objects of client and server.
        fn run(&self, command: &str, addresses: &[[&str; 2]], [client, server]: [&[&str]; 2]) -> [Json; 2] {
            let server = self.server(command, addresses, server);
            passed(server, self.client(command, addresses, client))
        }
    }

    const JUMBO: [&str; 2] = ["--device-mtu", "9000"];

    fn verified(client: &Json, writes: u64) {
        let row = &client["rows"][0];
        assert_eq!((&row["verified"], &row["iterations"]), (&true.into(), &writes.into()), "{client}");
    }

    /// IPv4 and IPv6, over two planes, with every byte compared.
    #[test]
    fn writes_arrive_over_shared_memory() {
        for addresses in [V6, V4] {
            let memory = Memory::new("write", 2);
            let client = [&["-s", "64K", "-n", "2000", "--verify", "every"][..], &JUMBO].concat();
            let [client, server] = memory.run("write-bw", &addresses, [&client, &JUMBO]);
            // The warm-up is compared as well.
            assert_eq!(client["rows"][0]["verified"], true, "{client}");
            let ports = &client["settings"]["ports"];
            assert_eq!(ports.as_array().unwrap().len(), 2);
            assert!(ports[1]["name"].as_str().unwrap().starts_with("dpdk net_memif1 ("), "{ports}");
            assert_eq!(client["settings"]["mtu"], 4096);
            // Memory has no queue that others share.
            assert_eq!(client["settings"]["cc"], "none", "{client}");
            assert_eq!(server["rows"][0]["verified"], true);
        }
    }

    /// The usual MTU, and the shortest messages, forth and back.
    #[test]
    fn latency_is_measured_over_shared_memory() {
        let memory = Memory::new("latency", 1);
        let [client, _] = memory.run("write-lat", &V6, [&["-s", "8", "-n", "500"], &[]]);
        let row = &client["rows"][0];
        assert_eq!(row["iterations"], 500, "{client}");
        assert_eq!(client["settings"]["mtu"], 1024.max(client["settings"]["mtu"].as_u64().unwrap()));
    }

    #[test]
    fn faults_lose_nothing() {
        let faults = "loss=2%;dup=1%;corrupt=1%;reorder=2%:50us";
        let memory = Memory::new("faults", 2);
        let both = [&["--fault", faults][..], &JUMBO].concat();
        let client = [&["-s", "64K", "-n", "1000", "-q", "2"][..], &both].concat();
        let [client, _] = memory.run("write-bw", &V6, [&client, &both]);
        verified(&client, 1000);
        assert!(client["counters"]["transport"]["tx_retransmits"].as_u64() > Some(0), "{client}");
    }

    /// Nothing of a killed side is in the way of the next one, with the same names.
    #[test]
    fn a_killed_side_leaves_nothing_behind() {
        let memory = Memory::new("killed", 1);
        for round in 0..2 {
            let samples = temp(&format!("killed-{round}"));
            let server_args = [&["--samples", samples.to_str().unwrap()][..], &JUMBO].concat();
            let server = memory.server("write-bw", &V6, &server_args);
            let mut client = memory.client("write-bw", &V6, &[&["-D", "10m"][..], &JUMBO].concat());
            // Packets arrive.
            let began = Instant::now();
            while fs::metadata(&samples).map_or(0, |file| file.len()) == 0 {
                assert!(client.child().try_wait().unwrap().is_none() && began.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(20));
            }
            fs::remove_file(&samples).unwrap();
            signal(&server.process, "-KILL");
            if let Some(client) = bereaved(client, "the client") {
                assert_eq!(client.status.code(), Some(1), "{client:?}");
            }
            drop(server.process);
        }
        let client = [&["-s", "4K", "-n", "100"][..], &JUMBO].concat();
        let [client, _] = memory.run("write-bw", &V6, [&client, &JUMBO]);
        verified(&client, 100);
    }

    fn in_host(hosts: &Hosts, side: usize) -> Command {
        hosts.command(side, env!("CARGO_BIN_EXE_spindrift"))
    }

    /// A device on an interface of the kernel's, with an address of its own, and kernel sockets or `AF_XDP` at the other end.
    #[test]
    fn other_ports_are_peers() {
        let Some(hosts) = Hosts::new("dpdkpeer", 1) else {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return;
        };
        for side in 0..2 {
            hosts.ip(side, "link set n0 mtu 5000");
            hosts.ip(side, &format!("address add 10.0.0.{}/24 dev n0", side + 1));
            hosts.ip(side, &format!("address add fd00::{}/64 dev n0 nodad", side + 1));
            // Partial checksums mean nothing to a device that shows packets as they are.
            drop(hosts.command(side, "ethtool").args(["-K", "n0", "tx", "off"]).output());
        }
        let device = "dpdk:net_af_packet0,iface=n0,blocksz=65536,framesz=8192,framecnt=512,qpairs=1";
        // Of kernel sockets the entropy value is the source port.
        let entropy = temp("entropy.toml");
        fs::write(&entropy, "transport.entropy = \"udp\"\n").unwrap();
        let with_sockets = ["--config", entropy.to_str().unwrap()];
        let mut others = vec![(&["--port", "udp"][..], &with_sockets[..])];
        if cfg!(feature = "af_xdp") {
            others.push((&["--port", "af_xdp:n0"], &[]));
        }
        for (other, ours) in others {
            for (theirs, own) in [("10.0.0.2", "10.0.0.11"), ("fd00::2", "fd00::11")] {
                // The sockets that set a run up are the kernel's.
                let place = [other, &["--local", theirs]].concat();
                let place = if other.contains(&"udp") { place } else { other.to_vec() };
                let waiting =
                    Server::start(in_host(&hosts, 1), &[&["write-bw", "--json"], &place[..]].concat());
                let mut client = in_host(&hosts, 0);
                client.args(["write-bw", theirs, "--json", "--port", device, "--device-addresses", own]);
                client.args(["-s", "64K", "-n", "300"]).args(ours);
                let client = Running::start(client.stdout(Stdio::piped()).stderr(Stdio::piped()));
                let [client, _] = passed(waiting, client);
                verified(&client, 300);
                assert_eq!(client["settings"]["cc"], "adaptive", "a network: {client}");
                let ports = client["settings"]["ports"].to_string();
                assert!(ports.contains("net_af_packet0") && ports.contains(own), "{ports}");
            }
        }
        fs::remove_file(entropy).unwrap();
    }

    /// Packets name the switches that they pass, over both planes of a fabric; the router of a host's link is its T0 switch. A path that
    /// loses packets costs none.
    #[test]
    fn paths_are_chosen_by_the_sender() {
        let Some(lab) = Lab::new("dpdk") else { return };
        lab.up("two-plane.toml");
        let topology = config("two-plane.toml");
        let device = |plane: usize| {
            format!(
                "dpdk:net_af_packet{plane},iface=eth{plane},blocksz=65536,framesz=8192,framecnt=256,qpairs=1"
            )
        };
        let devices = [device(0), device(1)];
        let of_host = |addresses| {
            let ports = ["--port", &devices[0], "--port", &devices[1], "--device-addresses", addresses];
            [&ports[..], &["--gateways", "fe80::1", "--topology", &topology]].concat()
        };
        let server = of_host("fd5d:7072:0:1::1/128,fd5d:7072:0:1:0:0:1:1/128");
        let client = of_host("fd5d:7072::1/128,fd5d:7072::1:1/128");
        let lossy = [&client[..], &["--fault", "loss=1%"]].concat();
        let [_, client] = lab.write_bw(["h1", "h3"], "fd5d:7072:0:1::1", [&server, &lossy]);
        let settings = &client["settings"];
        assert_eq!((&settings["routing"], &settings["host"]), (&"srv6".into(), &"h1".into()), "{settings}");
        assert_eq!(settings["planes"], 2);
        assert!(client["counters"]["transport"]["tx_retransmits"].as_u64() > Some(0), "{client}");
    }

    /// How a side ends whose peer has been killed; none: it crashed.
    ///
    /// The EAL's interrupt thread then unmaps the rings of `net_memif`, also while a burst writes to them (DPDK 22.11; `docs/cli.md`).
    fn bereaved(process: Running, what: &str) -> Option<Output> {
        const SIGSEGV: i32 = 11;
        let output = end_of(process, PATIENCE, what);
        (output.status.signal() != Some(SIGSEGV)).then_some(output)
    }

    /// Sends a signal.
    fn signal(process: &Running, signal: &str) {
        let id = process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// One side of a pump over shared memory.
    fn pump(memory: &Memory, side: usize, args: &[&str]) -> Running {
        let (role, name) = (["server", "client"][side], &memory.name);
        let device = format!("net_memif0,role={role},bsize=16384,socket-abstract=yes,socket={name}");
        let mut command = spindrift();
        command.args(["pump", "dpdk", "--local", &device, "--device-address", V6[0][side]]);
        command.args(JUMBO).args(args);
        Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// The receiver's device is there when its socket is.
    fn receiver(memory: &Memory, args: &[&str]) -> Running {
        let receiver = pump(memory, 0, args);
        wait_for_sockets(memory, 1);
        receiver
    }

    /// Waits until the server's end has so many sockets: one listens, one more is connected.
    fn wait_for_sockets(memory: &Memory, number: usize) {
        let (began, name) = (Instant::now(), format!("@{}", memory.name));
        let has = || {
            fs::read_to_string("/proc/net/unix").unwrap().lines().filter(|line| line.ends_with(&name)).count()
        };
        while has() < number {
            assert!(began.elapsed() < PATIENCE, "{} of {number} sockets", has());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Every packet that is sent comes, with the right CRC where there is one.
    #[test]
    fn the_pump_pumps() {
        for (name, more) in [("plain", &["-s", "64"][..]), ("crc", &["--crc-copy"][..])] {
            let memory = Memory::new(&format!("pump-{name}"), 1);
            let receiver = receiver(&memory, &[&["--json", "-D", "1m"], more].concat());
            let sender = pump(&memory, 1, &[&[V6[0][0], "--json", "-D", "300ms"], more].concat());
            let sender = end_of(sender, PATIENCE, "the sender");
            assert!(sender.status.success(), "{}", stderr(&sender));
            let receiver = end_of(receiver, PATIENCE, "the receiver");
            assert!(receiver.status.success(), "{}", stderr(&receiver));
            let [sender, receiver] = [sender, receiver].map(|output| json(&output.stdout));
            let (sent, received) = (&sender["sent"], &receiver["received"]);
            assert_eq!((&sender["received"], &receiver["sent"]), (&Json::Null, &Json::Null));
            for side in [sent, received] {
                assert!(side["packets"].as_u64().unwrap() > 0 && side["errors"] == 0, "{sender} {receiver}");
            }
            assert_eq!(sent["packets"], received["packets"], "{sender} {receiver}");
            let settings = &receiver["settings"];
            assert_eq!((&receiver["command"], &settings["local"]), (&"pump dpdk".into(), &"fd00::1".into()));
            assert_eq!(
                (&settings["device_mtu"], &settings["crc_copy"]),
                (&9000.into(), &(name == "crc").into())
            );
        }
    }

    /// A pump ends on Ctrl-C, and when its peer has been killed.
    #[test]
    fn a_pump_ends() {
        const ATTEMPTS: usize = 5;
        let memory = Memory::new("pump-end", 1);
        let peer_killed = || {
            let receiver = receiver(&memory, &["-D", "1m"]);
            let sender = pump(&memory, 1, &[V6[0][0], "-D", "1m", "--json"]);
            wait_for_sockets(&memory, 2);
            std::thread::sleep(Duration::from_millis(1500));
            signal(&receiver, "-KILL");
            bereaved(sender, "the sender")
        };
        let sender = (0..ATTEMPTS).find_map(|_| peer_killed());
        let sender = sender.expect("the sender crashed in each attempt");
        assert!(sender.status.success(), "{sender:?}");
        assert!(json(&sender.stdout)["sent"]["packets"].as_u64().unwrap() > 0);
        let alone = receiver(&memory, &["-D", "1m"]);
        signal(&alone, "-INT");
        assert_eq!(end_of(alone, PATIENCE, "the receiver").status.code(), Some(130));
    }

    #[test]
    fn pumps_name_what_is_in_the_way() {
        let with = |rest: &[&'static str]| {
            let usual = ["pump", "dpdk", "--local", "net_null0", "--device-address", "fd00::1"];
            [&usual[..], rest].concat()
        };
        // The parser of options says it in several lines.
        let misused = |args: &[&str], parts: &[&str]| {
            let output = run(args);
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        misused(&["pump", "dpdk", "--local", "net_null0"], &["--device-address"]);
        misused(&["pump", "dpdk", "--device-address", "fd00::1"], &["--local <DEVICE>"]);
        let bad = ["pump", "dpdk", "--local", "eth 0", "--device-address", "fd00::1"];
        misused(&bad, &["`eth 0` is no device of DPDK"]);
        refused(&with(&["--device-mtu", "9217"]), &["--device-mtu 9217", "at most 9216"]);
        refused(&with(&["--dpdk-eal", "-m"]), &["--dpdk-eal", "`-m` takes a value"]);
        refused(&with(&["-s", "8961"]), &["--size 8961", "1 to 8960"]);
        refused(&with(&["fd00::1"]), &["fd00::1 is this side's own address"]);
        misused(&with(&["--peer-mac", "02:00:00:00:00:02"]), &["<REMOTE>"]);
        misused(
            &with(&["fd00::2", "--peer-mac", "ff:ff:ff:ff:ff:ff"]),
            &["`ff:ff:ff:ff:ff:ff` is not a unicast Ethernet"],
        );
        for (rest, parts) in [
            (&["fd00::2"][..], &["frames of 4202", "up to 1514", "larger MTU"][..]),
            (&["10.0.0.1"], &["fd00::1 cannot send to 10.0.0.1"]),
            (&["fd00::2", "-s", "64"], &["no neighbour answers", "fd00::2"]),
            (&["--device-mtu", "100"], &["an MTU of 100"]),
        ] {
            let output = run(&with(rest));
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    /// Long payloads are copied by the driver unless the port is to do it; the driver's counters are among the others, and count what the
    /// port has sent.
    #[test]
    fn copies_and_the_drivers_counters_are_shown() {
        for zero_copy in [&["--zero-copy", "false"][..], &[]] {
            let memory = Memory::new("copies", 1);
            let server = [&JUMBO[..], zero_copy].concat();
            let client = [&server[..], &["-s", "64K", "-n", "50", "--verify", "every"]].concat();
            let both = memory.run("write-bw", &V6, [&client, &server]);
            for side in &both {
                let notes = side["settings"]["ports"].to_string();
                let by_port = !zero_copy.is_empty();
                assert_eq!(notes.contains("with copies"), by_port, "{notes}");
                assert_eq!(notes.contains("copied once, by the driver"), !by_port, "{notes}");
            }
            let counters = &both[0]["counters"];
            let device = &counters["devices"]["net_memif0"];
            let [by_driver, by_port] = [&device["tx_good_packets"], &counters["ports"]["tx_frames"]]
                .map(|count| count.as_u64().unwrap());
            // The port's own messages for neighbours are the driver's alone.
            assert!((by_port..by_port + 20).contains(&by_driver), "{by_driver} {by_port}");
            assert!(
                device["rx_good_packets"].as_u64() > Some(0) && device["rx_errors"].is_null(),
                "{device}"
            );
        }
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        refused(
            &["write-bw", "--port", "dpdk"],
            &["--port dpdk", "--port dpdk:DEVICE", "--device-addresses"],
        );
        refused(&["write-bw", "--port", "dpdk:net_null0"], &["--port: 1 device(s) and 0 address(es)"]);
        let output = run(&["write-bw", "--port", "dpdk:eth 0"]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("`eth 0` is no device of DPDK") && error.contains("net_memif0,role=client"));
        refused(
            &["write-bw", "--port", "udp", "--device-addresses", "fd00::1"],
            &["--device-addresses", "--port dpdk"],
        );
        let failed = |device: &str, parts: &[&str]| {
            let output =
                run(&["write-bw", "--port", &format!("dpdk:{device}"), "--device-addresses", "fd00::1"]);
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        failed("0000:ff:1f.7", &["cannot open DPDK ports", "there is no device 0000:ff:1f.7"]);
        failed("net_nosuch0", &["no driver net_nosuch", "librte-meta-allpmds"]);
    }
}
