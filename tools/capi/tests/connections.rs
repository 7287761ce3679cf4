//! Programs that connect by address and port, as they are: `rdmacm-utils`, `perftest -R` and `libfabric-bin`, on loopback addresses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Library, PATIENCE, Running, free_port};

const ONE: [&str; 2] = ["127.0.0.1", "127.0.0.1"];

/// Waits until somebody listens: a port of RDMA is a UDP port, which the kernel lists.
fn wait_for_listener(what: &str, port: u16) {
    let began = Instant::now();
    let is_in = |table: &str| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        let locals = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
        locals
            .filter_map(|local| local.rsplit_once(':'))
            .any(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
    };
    while !is_in("/proc/net/udp") && !is_in("/proc/net/udp6") {
        assert!(began.elapsed() < PATIENCE, "{what}: nobody listens at port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a server and a client, each with its options, and returns what they have written. `None`: the machine does not have the program.
fn pair(name: &str, planes: [&str; 2], options: [&str; 2], fault: &str) -> Option<[String; 2]> {
    pair_at(free_port(), [name; 2], planes, options, fault)
}

fn pair_at(
    port: u16,
    names: [&str; 2],
    planes: [&str; 2],
    options: [&str; 2],
    fault: &str,
) -> Option<[String; 2]> {
    let library = Library::new();
    let command = |side: usize| {
        let options = options[side].replace("PORT", &port.to_string());
        let mut command = library.program(names[side], planes[side], &options)?;
        command.env("SPINDRIFT_FAULT", fault);
        Some(command)
    };
    let server = Running::start(&mut command(0)?);
    wait_for_listener(names[0], port);
    let mut tries = 0;
    loop {
        let (code, said) = Running::start(&mut command(1)?).end();
        if code == Some(0) {
            let (code, told) = server.end();
            assert_eq!(code, Some(0), "{names:?} {options:?}, the server: {told}");
            return Some([told, said]);
        }
        // Some close their first listener before they open the next.
        tries += 1;
        let refused = said.contains("RDMA_CM_EVENT_REJECTED");
        assert!(refused && tries < 200, "{names:?} {options:?}, the client: {code:?} {said}");
    }
}

#[test]
fn programs_of_rdmacm_connect_in_each_way() {
    for (name, server, client) in [
        ("rping", "-s -p PORT -C 20 -v", "-c -a 127.0.0.1 -p PORT -C 20 -v"),
        ("rping", "-s -a 127.0.0.1 -p PORT -C 5 -S 4000", "-c -a 127.0.0.1 -p PORT -C 5 -S 4000"),
        ("rping", "-s -a 127.0.0.1 -p PORT -C 5 -q", "-c -a 127.0.0.1 -p PORT -C 5 -q"),
        ("ucmatose", "-p PORT -c 5", "-s 127.0.0.1 -p PORT -c 5"),
        ("ucmatose", "-p PORT -c 3 -m -C 2", "-s 127.0.0.1 -p PORT -c 3 -m -C 2"),
    ] {
        let Some([told, said]) = pair(name, ONE, [server, client], "") else { return };
        let done = if name == "rping" { "" } else { "return status 0" };
        assert!(told.contains(done) && said.contains(done), "{name}: {told} {said}");
    }
    let names = ["rdma_server", "rdma_client"];
    let all = pair_at(free_port(), names, ONE, ["-p PORT", "-s 127.0.0.1 -p PORT"], "");
    assert!(all.unwrap().iter().all(|text| text.contains("end 0")));
    // Its port is always the same.
    let at = ["127.0.3.1"; 2];
    let all = pair_at(7174, ["udaddy"; 2], at, ["-b 127.0.3.1 -c 3", "-s 127.0.3.1 -c 3"], "");
    assert!(all.unwrap().iter().all(|text| text.contains("return status 0")));
}

#[test]
fn perftest_connects_by_address_and_port() {
    for (name, args) in [
        ("ib_write_bw", "-n 200"),
        ("ib_send_lat", "-n 50"),
        ("ib_read_bw", "-n 100 -s 4096"),
        ("ib_send_bw", "-n 50 -s 64 -c UD"),
    ] {
        let args = format!("-R -u 20 -p PORT {args}");
        let client = format!("{args} 127.0.0.1");
        let Some([_, said]) = pair(name, ONE, [&args, &client], "") else { return };
        assert!(said.contains("#bytes"), "{name}: {said}");
    }
}

/// Connections and datagrams of libfabric, and what it makes of them.
#[test]
fn libfabric_runs_over_it() {
    for (provider, kind) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm"), ("verbs;ofi_rxd", "rdm")] {
        let args = format!("-p {provider} -e {kind} -I 5 -B PORT -P PORT");
        let library = Library::new();
        let port = free_port();
        let options = |more: &str| args.replace("-B PORT -P PORT", &format!("{more} {port}"));
        let Some(mut server) = library.program("fi_pingpong", ONE[0], &options("-B")) else { return };
        let server = Running::start(&mut server);
        // Its client tries once.
        let mut tries = 0;
        loop {
            let client = format!("{} 127.0.0.1", options("-P"));
            let (code, said) =
                Running::start(&mut library.program("fi_pingpong", ONE[1], &client).unwrap()).end();
            if code == Some(0) {
                assert!(said.contains("1m"), "{provider}: {said}");
                break;
            }
            tries += 1;
            assert!(said.contains("onnect") && tries < 200, "{provider}: {code:?} {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (code, told) = server.end();
        assert_eq!(code, Some(0), "{provider}: {told}");
    }
}

/// Two hosts' worth of addresses, planes of which one loses packets, a listener at all addresses; and IPv6.
#[test]
fn planes_losses_and_families_do_not_show() {
    let planes = ["127.0.1.1,127.0.1.2", "127.0.2.1,127.0.2.2"];
    let server = "-s -p PORT -C 50";
    let loss = "port=1,loss=5%";
    for client in ["-c -a 127.0.1.1 -p PORT -C 50", "-c -a 127.0.0.1 -p PORT -C 50"] {
        if pair("rping", planes, [server, client], loss).is_none() {
            return;
        }
    }
    pair("rping", ["::1"; 2], ["-s -a ::1 -p PORT -C 5", "-c -a ::1 -p PORT -C 5"], "");
}

#[test]
fn what_cannot_connect_is_told() {
    let library = Library::new();
    let port = free_port();
    let client = format!("-c -a 127.0.0.1 -p {port} -C 1");
    let Some(mut rping) = library.program("rping", ONE[0], &client) else { return };
    let (code, said) = Running::start(&mut rping).end();
    assert!(code != Some(0) && said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{code:?} {said}");
    let foreign = format!("-s -a 192.0.2.77 -p {port}");
    let (code, said) = Running::start(&mut library.program("rping", ONE[0], &foreign).unwrap()).end();
    assert!(code != Some(0) && said.contains("No such device"), "{code:?} {said}");
    let _taken = UdpSocket::bind((ONE[0], port)).unwrap();
    let server = format!("-s -p {port}");
    let (code, said) = Running::start(&mut library.program("rping", ONE[0], &server).unwrap()).end();
    assert!(code != Some(0) && said.contains("Address already in use"), "{code:?} {said}");
}

/// The kernel tells the other side, also of a process that is killed.
#[test]
fn a_killed_side_disconnects_the_other() {
    let library = Library::new();
    for victim in 0..2 {
        let port = free_port();
        let Some(mut server) = library.program("rping", ONE[0], &format!("-s -p {port} -v")) else { return };
        let mut server = Running::start(&mut server);
        wait_for_listener("server", port);
        let client = format!("-c -a 127.0.0.1 -p {port} -v -C 100000000");
        let mut client = Running::start(&mut library.program("rping", ONE[1], &client).unwrap());
        // It says so when data moves.
        let mut first = [0; 4];
        std::io::Read::read_exact(client.0.stdout.as_mut().unwrap(), &mut first).unwrap();
        let (victim, other) =
            if victim == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
        // What it writes has to be read, or it waits for that.
        let mut reader = other.0.stdout.take().unwrap();
        let drain = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()).unwrap());
        let mut said = String::new();
        std::io::Read::read_to_string(other.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        drain.join().unwrap();
        assert!(said.contains("DISCONNECT EVENT"), "{said}");
        let _ = other.0.wait().unwrap();
    }
}

/// A program that cancels threads which wait for events of each kind, as some do at their end; and that sends them signals before. With
/// `SA_RESTART` these do not end the wait, and without they do.
const CANCELS: &str = r"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

static struct rdma_event_channel *channel;
static struct ibv_comp_channel *completions;
static struct ibv_context *context;

static void *connections(void *arg) { struct rdma_cm_event *event; rdma_get_cm_event(channel, &event); return arg; }
static void *queues(void *arg) { struct ibv_cq *cq; void *user; ibv_get_cq_event(completions, &cq, &user); return arg; }
static void *events(void *arg) { struct ibv_async_event event; ibv_get_async_event(context, &event); return arg; }

static void nothing(int signal) { (void)signal; }

static void *interrupted(void *arg) {
    struct rdma_cm_event *event;
    int failed = rdma_get_cm_event(channel, &event);
    return failed == -1 && errno == EINTR ? arg : NULL;
}

int main(void) {
    void *(*waits[])(void *) = { connections, queues, events };
    struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, NULL);
    channel = rdma_create_event_channel();
    context = rdma_get_devices(NULL)[0];
    completions = ibv_create_comp_channel(context);
    for (int at = 0; at < 3; at++) {
        pthread_t thread;
        void *result = NULL;
        pthread_create(&thread, NULL, waits[at], NULL);
        usleep(50000);
        pthread_kill(thread, SIGUSR1);
        usleep(50000);
        if (pthread_cancel(thread) || pthread_join(thread, &result) || result != PTHREAD_CANCELED)
            return 1;
    }
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, interrupted, &action);
    while (pthread_kill(thread, SIGUSR2) == 0 && pthread_tryjoin_np(thread, &result))
        usleep(20000);
    return result != &action || ibv_destroy_comp_channel(completions);
}
";

#[test]
fn threads_that_wait_for_events_may_be_cancelled_and_get_signals() {
    let required = std::env::var_os("SPINDRIFT_REQUIRE_VERBS_H").is_some();
    let folder = std::env::temp_dir().join(format!("spindrift-cancels-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("cancels.c"), folder.join("cancels"));
    std::fs::write(&source, CANCELS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&binary).arg(&source).args(["-libverbs", "-lrdmacm"]);
    let compiled = compiler.output();
    if compiled.as_ref().is_ok_and(|output| output.status.success()) {
        let library = Library::new();
        let (code, said) = Running::start(&mut library.command(&binary, ONE[0], "")).end();
        assert_eq!(code, Some(0), "{said}");
    } else {
        assert!(!required, "{compiled:?}; ./tools/setup.sh --tests installs what is missing");
        eprintln!("SKIPPED: there is no C compiler, or no package librdmacm-dev");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
