//! Programs of distributions, as they are, over this library: `ibverbs-utils` and `perftest`, on loopback addresses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use support::{Library, Running, free_port};

/// Runs a server and a client, and returns what they have written. `None`: the machine does not have the program.
fn pair(name: &str, [server, client]: [&str; 2], args: &str, extra: &[(&str, &str)]) -> Option<[String; 2]> {
    let library = Library::new();
    // On a machine with other work a lane may be kept from its core for longer than these programs wait for a retransmission.
    let patient = if name.starts_with("ib_") { "-u 20" } else { "" };
    let args = format!("{args} {patient} -p {}", free_port());
    let command = |planes: &str, args: &str| {
        let mut command = library.program(name, planes, args)?;
        command.envs(extra.iter().copied());
        Some(command)
    };
    let first = server.split(',').next().unwrap();
    let server = Running::start(&mut command(server, &args)?);
    // The client of these programs tries once: the server has to listen.
    let mut tries = 0;
    loop {
        let (code, said) = Running::start(&mut command(client, &format!("{args} {first}"))?).end();
        tries += 1;
        if code == Some(0) {
            let (code, told) = server.end();
            assert_eq!(code, Some(0), "{name} {args}, the server: {told}");
            return Some([told, said]);
        }
        assert!(said.contains("onnect") && tries < 200, "{name} {args}: {code:?} {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const ONE: [&str; 2] = ["127.0.0.1", "127.0.0.1"];

#[test]
fn devices_are_shown() {
    let library = Library::new();
    let Some(mut command) = library.program("ibv_devinfo", "127.0.0.1", "-v") else { return };
    let (code, text) = Running::start(&mut command).end();
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "hca_id:\tspindrift0",
        "state:\t\t\tPORT_ACTIVE",
        "link_layer:\t\tEthernet",
        "GID[  0]:\t\tfe80:0000:0000:0000:0253:5044:7f00:0001, RoCE v1",
        "GID[  3]:\t\t::ffff:127.0.0.1, RoCE v2",
        "atomic_cap:\t\t\tATOMIC_HCA",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let mut two = library.program("ibv_devices", "", "").unwrap();
    two.env("SPINDRIFT_NICS", "left=127.0.0.1,127.0.0.2;right=127.0.0.3");
    let (code, text) = Running::start(&mut two).end();
    assert!(code == Some(0) && text.contains("left") && text.contains("right"), "{text}");
    let mut bad = library.program("ibv_devinfo", "10.0.0.1,x", "").unwrap();
    let (code, text) = Running::start(&mut bad).end();
    assert!(code != Some(0) && text.contains("SPINDRIFT_PLANES=10.0.0.1,x: x is no address"), "{text}");
}

#[test]
fn pingpong_in_each_way() {
    for (name, args) in [
        ("ibv_rc_pingpong", "-g 3 -n 100"),
        ("ibv_rc_pingpong", "-g 3 -n 100 -e"),
        ("ibv_rc_pingpong", "-g 3 -n 100 -N"),
        ("ibv_rc_pingpong", "-g 3 -n 20 -s 300000 -m 4096 -c"),
        ("ibv_uc_pingpong", "-g 3 -n 100 -e"),
        ("ibv_srq_pingpong", "-g 3 -n 100 -q 4 -e"),
        ("ibv_ud_pingpong", "-g 3 -n 100"),
        ("ibv_ud_pingpong", "-g 3 -n 100 -s 500 -e"),
    ] {
        let Some([server, client]) = pair(name, ONE, args, &[]) else { return };
        for said in [server, client] {
            assert!(said.contains("iters in"), "{name} {args}: {said}");
        }
    }
}

/// The number of iterations in the table of a perftest program.
fn iterations(text: &str) -> Option<u64> {
    let row = text.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    row.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn perftest_measures_each_operation() {
    for (name, args, count) in [
        ("ib_write_bw", "-n 200", 200),
        ("ib_write_bw", "-n 200 -q 4 --post_list 8 -s 4096", 800),
        ("ib_write_bw", "-n 100 -b", 100),
        ("ib_write_lat", "-n 50", 50),
        ("ib_send_bw", "-n 200 -e", 200),
        ("ib_send_bw", "-n 200 --use-srq", 200),
        ("ib_send_bw", "-n 100 -c UC", 100),
        ("ib_send_lat", "-n 50", 50),
        // Datagrams may be lost where a system's queue is full: as many as this one takes.
        ("ib_send_bw", "-n 100 -s 64 -c UD", 100),
        ("ib_send_lat", "-n 50 -c UD", 50),
        ("ib_read_bw", "-n 200", 200),
        ("ib_read_lat", "-n 50", 50),
        ("ib_atomic_bw", "-n 50", 50),
        ("ib_atomic_bw", "-n 50 -A CMP_AND_SWAP", 50),
        ("ib_atomic_lat", "-n 50", 50),
    ] {
        let Some(both) = pair(name, ONE, args, &[]) else { return };
        assert_eq!(iterations(&both[1]), Some(count), "{name} {args}: {}", both[1]);
    }
}

/// Four planes, two hosts' worth of addresses, packets that are lost.
#[test]
fn planes_and_losses_do_not_show() {
    let planes = ["127.0.1.1,127.0.1.2,127.0.1.3,127.0.1.4", "127.0.2.1,127.0.2.2,127.0.2.3,127.0.2.4"];
    for (name, args) in [("ib_write_bw", "-n 200 -q 4"), ("ib_read_bw", "-n 100"), ("ib_send_bw", "-n 100")] {
        let loss = [("SPINDRIFT_FAULT", "loss=1%")];
        let Some(both) = pair(name, planes, args, &loss) else { return };
        assert!(iterations(&both[1]).is_some(), "{name}: {}", both[1]);
    }
}

/// Peers that find each other by what perftest tells them alone, as an MRC NIC would.
#[test]
fn peers_may_be_told_of_by_settings() {
    let planes = ["127.4.1.1,127.4.1.2", "127.4.2.1,127.4.2.2"];
    let peers = planes.join(";");
    let extra = [("SPINDRIFT_STATIC_PEERS", peers.as_str()), ("SPINDRIFT_UDP_PORT", "21972")];
    for (name, args, count) in [("ib_write_bw", "-n 200 -q 4", 800), ("ib_write_lat", "-n 50", 50)] {
        let Some(both) = pair(name, planes, args, &extra) else { return };
        assert_eq!(iterations(&both[1]), Some(count), "{name} {args}: {}", both[1]);
    }
}

/// The control and data ports of a process that is killed are free again, and its peer ends within the retry budget.
#[test]
fn a_killed_side_ends_the_other() {
    let library = Library::new();
    for victim in 0..2 {
        let args = format!("-D 100 -p {}", free_port());
        let Some(mut server) = library.program("ib_write_bw", "127.0.0.1", &args) else { return };
        let mut server = Running::start(&mut server);
        let args = format!("{args} 127.0.0.1");
        let mut tries = 0;
        let mut client = loop {
            let mut client = Running::start(&mut library.program("ib_write_bw", "127.0.0.1", &args).unwrap());
            std::thread::sleep(Duration::from_secs(1));
            if client.0.try_wait().unwrap().is_none() {
                break client;
            }
            tries += 1;
            assert!(tries < 20, "{}", client.end().1);
        };
        let (victim, other) = if victim == 0 { (&mut server, client) } else { (&mut client, server) };
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
        let (code, said) = other.end();
        assert!(code.is_some() && code != Some(0), "{code:?} {said}");
    }
}

/// Each process takes the next free control port; none disturbs another.
#[test]
fn sixty_four_processes_share_a_host() {
    let library = Library::new();
    let mut servers = Vec::new();
    for _ in 0..32 {
        let port = free_port();
        let args = format!("-g 3 -n 50 -e -p {port}");
        let Some(mut command) = library.program("ibv_rc_pingpong", "127.0.0.1", &args) else { return };
        servers.push((Running::start(&mut command), args));
    }
    let start = |args: &str| {
        let args = format!("{args} 127.0.0.1");
        Running::start(&mut library.program("ibv_rc_pingpong", "127.0.0.1", &args).unwrap())
    };
    let clients: Vec<_> = servers.iter().map(|(_, args)| start(args)).collect();
    for ((server, args), client) in servers.into_iter().zip(clients) {
        let (mut code, mut said) = client.end();
        let mut tries = 0;
        // The client of this program tries once: the server has to listen.
        while code != Some(0) {
            tries += 1;
            assert!(said.contains("onnect") && tries < 200, "{args}: {code:?} {said}");
            std::thread::sleep(Duration::from_millis(20));
            (code, said) = start(&args).end();
        }
        assert!(said.contains("50 iters in"), "{args}: {said}");
        let (code, told) = server.end();
        assert!(code == Some(0) && told.contains("50 iters in"), "{args}: {code:?} {told}");
    }
}
