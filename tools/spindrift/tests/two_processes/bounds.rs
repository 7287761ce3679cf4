//! What a client can make a server take: refused before it is taken, and given back when the client goes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::setup::framed;
use super::support::{run, stderr, temp};
use super::{PATIENCE, Server, VERSION, client_of, signal};

/// A number of `/proc/PID/status`, in MiB.
fn mib(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

fn plan(queue_pairs: usize, tx_depth: u32, sizes: &[u64]) -> Json {
    let plan = json!({
        "tool": "spindrift-benchmark", "version": VERSION, "kind": "write-bw", "queue_pairs": queue_pairs,
        "tx_depth": tx_depth, "sizes": sizes, "rounds": 0, "seed": 1, "operation": "write", "outs": 16, "srq": false,
        "planes": {"port": "udp", "addresses": ["127.0.0.1"], "connection": ["127.0.0.1:1", "127.0.0.1:2"]}
    });
    json!({ "type": "app", "app": plan })
}

/// Sends a plan, and returns what the server says to it.
fn told(server: &Server, plan: &Json) -> Json {
    let mut client = TcpStream::connect(format!("127.0.0.1:{}", server.port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(&framed(plan)).unwrap();
    let mut length = [0; 4];
    client.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    client.read_exact(&mut message).unwrap();
    serde_json::from_slice::<Json>(&message).unwrap()["app"].clone()
}

/// However little the machine has, a server that was told what to give refuses more, and takes nothing for it.
#[test]
fn a_plan_that_needs_more_memory_than_the_server_gives_is_refused_on_both_sides() {
    let config = temp("max-memory.toml");
    std::fs::write(&config, "[setup]\nmax_memory = \"64M\"\n").unwrap();
    let limits: [&[&str]; 2] = [&["--max-memory", "64M"], &["--config", config.to_str().unwrap()]];
    for limit in limits {
        let server = Server::start(&[&["write-bw", "--keep-serving"], limit].concat());
        let before = mib(&server, "VmPeak");
        for (queue_pairs, tx_depth, size) in
            [(1, 1, 0xffff_ffff_u64), (1024, 1, 8 << 20), (1, 1, 17 << 20), (200, 16_384, 64)]
        {
            let told = told(&server, &plan(queue_pairs, tx_depth, &[64, size]));
            let reason = told["reason"].as_str().unwrap_or_default();
            let expected = "more than 64 MiB, the limit set there; use a smaller size, fewer queue pairs";
            assert!(told["type"] == "refuse" && reason.contains(expected), "{size}: {told}");
        }
        // Threads take some address space; the largest plan would have taken 32 GiB.
        assert!(mib(&server, "VmPeak") < before + 4096, "memory was taken");
        let address = ["write-bw", "127.0.0.1", "-p", &server.port, "-n", "10"];
        let client = run(&[&address as &[_], &["-s", "64M"]].concat());
        let error = stderr(&client);
        assert!(
            error.contains("refused: the run needs 257 MiB of memory on the server, more than 64 MiB")
                && error.contains("start the server with --max-memory 257M"),
            "{error}"
        );
        // What fits is served.
        assert!(run(&[&address as &[_], &["-s", "8M"]].concat()).status.success());
        signal(&server.process, "-INT");
        let error = stderr(&server.end());
        assert_eq!(error.matches("more than 64 MiB").count(), 5, "{error}");
    }
}

/// Without an option. Where there is so much memory that no plan needs a quarter of it, none is refused.
#[test]
fn the_usual_limit_is_a_quarter_of_what_is_available() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let available = available.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    // On each side; three eighths of what is available on both.
    let side = available * 3 / 16;
    if side > 15 << 30 {
        return;
    }
    let queue_pairs = side.div_ceil(2 << 30) as usize;
    let server = Server::start(&["write-bw"]);
    let told = told(&server, &plan(queue_pairs, 1, &[side / 2 / queue_pairs as u64]));
    assert_eq!(told["type"], "refuse", "{told}");
    assert!(told["reason"].as_str().unwrap().contains("a quarter of its available memory"), "{told}");
}

/// Numbers that fit each by itself, but for which no completion queue is long enough.
#[test]
fn queue_pairs_and_depth_together_have_a_bound() {
    let server = Server::start(&["write-bw", "--max-memory", "1000G"]);
    let told = told(&server, &plan(1024, 16_384, &[64]));
    let reason = "1024 queue pairs with a tx depth of 16384 on 1 lane may have 16793600 completions";
    assert!(told["reason"].as_str().unwrap_or_default().contains(reason), "{told}");
}

#[test]
fn memory_is_freed_when_the_client_goes() {
    let server = Server::start(&["write-bw", "--keep-serving", "--max-memory", "1G"]);
    let before = mib(&server, "VmRSS");
    // Source and target: 256 MiB.
    let wait = |what: &str, until: &dyn Fn(u64) -> bool| {
        let start = Instant::now();
        while !until(mib(&server, "VmRSS").saturating_sub(before)) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for _ in 0..2 {
        let client = client_of(&server, &["-s", "64M"]);
        wait("it takes no memory", &|mib| mib > 200);
        signal(&client, "-KILL");
        drop(client);
        wait("it keeps the memory", &|mib| mib < 100);
    }
}
