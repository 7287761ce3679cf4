//! `spindrift run`: the view of a program, its end, the summary; UCX and MPI as they are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value as Json;
use support::program::{PATIENCE, end, free_port, run_of};
use support::{Running, end_of, json, refused, stderr, stdout, temp};

const ONE: &[&str] = &["--planes", "127.0.0.1"];

/// Whether a program is there. A test that needs one that is missing says so, and fails where it has to be there.
fn has(name: &str) -> bool {
    if Path::new("/usr/bin").join(name).exists() {
        return true;
    }
    let required = std::env::var_os("SPINDRIFT_REQUIRE_UCX").is_some();
    assert!(!required, "there is no {name}; ./tools/setup.sh --tests installs it");
    eprintln!("SKIPPED: there is no {name} (packages ucx-utils, openmpi-bin and libopenmpi-dev)");
    false
}

/// Whether this user may have a mount namespace, or one may be made here for it.
fn has_view() -> bool {
    let explained = end(&mut run_of(&["--planes", "127.0.0.1", "--explain"], &["true"]));
    let text = stdout(&explained);
    let line = text.lines().find(|line| line.starts_with("/sys, /dev")).unwrap();
    if line.contains("namespace of its own") {
        return true;
    }
    eprintln!("SKIPPED: {line}");
    false
}

#[test]
fn what_cannot_run_is_refused() {
    let file = temp("run.toml");
    fs::write(&file, "planes = [\"127.0.0.1\"]\nlanes = 2\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, parts) in [
        (&["run"] as &[&str], &["there is no program", "spindrift run -- ib_write_bw"] as &[&str]),
        (&["run", "--planes", "127.0.0.1,x", "--", "true"], &["--planes 127.0.0.1,x", "x is no address"]),
        (&["run", "--planes", "192.0.2.77", "--", "true"], &["192.0.2.77 is not an address of this host"]),
        (&["run", "--nics", "a b=127.0.0.1", "--", "true"], &["--nics a b=127.0.0.1", "a name has"]),
        (&["run", "--control-port", "80", "--", "true"], &["--control-port 80", "1024 to 60000"]),
        (&["run", "--fault", "los=1%", "--", "true"], &["--fault los=1%", "unknown word"]),
        (&["run", "--library", "/no/such.so", "--", "true"], &["--library /no/such.so", "No such file"]),
        (
            &["run", "--settings", "/no/such.toml", "--", "true"],
            &["settings file /no/such.toml", "No such file"],
        ),
    ] {
        refused(args, parts);
    }
    let unknown = end(&mut run_of(&["--settings", file], &["true"]));
    let error = stderr(&unknown);
    assert_eq!(unknown.status.code(), Some(2), "{error}");
    assert!(error.contains(file) && error.contains("unknown field `lanes`"), "{error}");
    fs::remove_file(file).unwrap();
}

#[test]
fn the_end_of_the_program_is_that_of_the_run() {
    for (script, status) in [("exit 7", 7), ("kill -9 $$", 128 + 9), ("true", 0)] {
        let ended = end(&mut run_of(ONE, &["sh", "-c", script]));
        assert_eq!(ended.status.code(), Some(status), "{script}: {}", stderr(&ended));
        assert!(stderr(&ended).contains("no process has opened a device"), "{}", stderr(&ended));
    }
    let quiet =
        end(&mut run_of(&["--planes", "127.0.0.1", "--quiet"], &["sh", "-c", "echo -n $0 $1", "-x", "--y"]));
    assert_eq!((stdout(&quiet), stderr(&quiet)), ("-x --y".to_owned(), String::new()));
    for (program, status, reason) in
        [("/no/such/program", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")]
    {
        let ended = end(&mut run_of(ONE, &[program]));
        let error = stderr(&ended);
        assert_eq!(ended.status.code(), Some(status), "{error}");
        assert!(error.contains(&format!("cannot run {program}")) && error.contains(reason), "{error}");
    }
}

/// Signals reach the program, which ends as it likes; nothing is left of the run.
#[test]
fn a_run_that_is_told_to_end_tells_the_program() {
    for signal in ["TERM", "INT"] {
        let script = format!("trap 'echo told; exit 3' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut run = Running::start(&mut run_of(ONE, &["sh", "-c", &script]));
        let folder = std::env::temp_dir().join(format!("spindrift-run-{}", run.id()));
        let mut first = [0; 6];
        let output = run.child().stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut first).unwrap();
        assert_eq!(&first, b"ready\n");
        assert!(folder.join("lib/libibverbs.so.1").exists());
        let id = run.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
        let ended = end_of(run, PATIENCE, signal);
        assert_eq!((ended.status.code(), stdout(&ended).trim()), (Some(3), "told"));
        assert!(!folder.exists(), "{} is left", folder.display());
    }
}

#[test]
fn programs_find_the_device_where_a_driver_would_put_it() {
    if !has_view() {
        return;
    }
    let script = "cat /sys/class/infiniband/right/ports/1/gids/3 /sys/class/infiniband_verbs/uverbs1/ibdev; \
                  stat -c %F /dev/infiniband/uverbs0; echo x >/dev/infiniband/uverbs1; \
                  cat /sys/class/net/lo/mtu; echo $LD_LIBRARY_PATH $LD_PRELOAD $NCCL_IBVERBS_LIB";
    let nics = ["--nics", "left=127.0.0.1;right=127.0.0.2,127.0.0.3"];
    let ended = end(run_of(&nics, &["sh", "-c", script]).env("LD_LIBRARY_PATH", "/there"));
    let text = stdout(&ended);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..3], ["0000:0000:0000:0000:0000:ffff:7f00:0002", "right", "character special file"]);
    assert!(lines[3].parse::<u32>().is_ok(), "{text}");
    assert!(lines[4].contains("/lib:/there ") && lines[4].ends_with("/lib/libibverbs.so.1"), "{text}");
    assert_eq!(stderr(&ended).lines().count(), 1, "{}", stderr(&ended));
    assert!(!Path::new("/dev/infiniband/uverbs1").exists() || Path::new("/sys/class/infiniband").exists());
    let without = end(&mut run_of(
        &["--planes", "127.0.0.1", "--no-view"],
        &["ls", "/sys/class/infiniband/spindrift0"],
    ));
    assert_eq!(without.status.code(), Some(2));
}

#[test]
fn an_explanation_names_all_that_a_run_does() {
    let explained =
        end(&mut run_of(&["--nics", "a=127.0.0.1,127.0.0.2", "--fault", "loss=1%", "--explain"], &["sh"]));
    let text = stdout(&explained);
    for part in [
        "device         a, GID ::ffff:127.0.0.1 at index 3",
        "plane 1      127.0.0.2 on lo",
        "control port   UDP 24971",
        "faults         loss=1%, seed 1",
        "libspindrift_ibverbs.so as libibverbs.so.1, librdmacm.so.1 and lib_mrc.so",
        "LD_PRELOAD=",
        "program        /usr/bin/sh",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!((explained.status.code(), stderr(&explained)), (Some(0), String::new()));
}

/// The summaries of a server and a client, each over its planes. `first` is the server's address.
fn pair(
    program: &[&str],
    [server, client]: [&[&str]; 2],
    first: &str,
    variables: &[(&str, &str)],
) -> [Json; 2] {
    let port = free_port();
    let files = ["server", "client"].map(|side| temp(&format!("run-{side}.json")));
    let with = |options: &[&str], file: &PathBuf, more: &[&str]| {
        let options = [options, &["--json", file.to_str().unwrap()]].concat();
        let mut command = run_of(&options, &[program, &["-p", &port], more].concat());
        command.envs(variables.iter().copied());
        command
    };
    let server = Running::start(&mut with(server, &files[0], &[]));
    let mut tries = 0;
    // The client of these programs tries once: the server has to listen.
    let said = loop {
        let ended = end(&mut with(client, &files[1], &[first]));
        if ended.status.success() {
            break ended;
        }
        tries += 1;
        let error = stdout(&ended) + &stderr(&ended);
        assert!(error.contains("onnect") && tries < 100, "{program:?}: {error}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let told = end_of(server, PATIENCE, "the server");
    assert!(told.status.success(), "{program:?}: {}{}", stdout(&told), stderr(&told));
    assert!(stderr(&said).contains("spindrift run: spindrift0: processes 1,"), "{}", stderr(&said));
    files.map(|file| {
        let read = json(&fs::read(&file).unwrap());
        fs::remove_file(file).unwrap();
        read
    })
}

/// Sum of one number of each plane of the one process of a summary.
fn moved(summary: &Json, name: &str) -> u64 {
    let planes = summary["processes"][0]["planes"].as_array().unwrap();
    planes.iter().map(|plane| plane[name].as_u64().unwrap()).sum()
}

const UCX: [(&str, &str); 3] =
    [("UCX_NET_DEVICES", "spindrift0:1"), ("UCX_TLS", "rc_v,ud_v,self"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];

/// Messages, rendezvous, one-sided operations and atomics of UCX, over four planes that lose packets. UCX compares nothing, so the bytes
/// that came over this transport are counted.
#[test]
fn ucx_finds_the_device_and_uses_it() {
    if !has("ucx_perftest") || !has_view() {
        return;
    }
    for (test, size, count) in [
        ("tag_bw", 4096, 300),
        ("tag_bw", 1 << 20, 20),
        ("ucp_put_bw", 65_536, 50),
        ("ucp_get", 65_536, 50),
        ("ucp_fadd", 8, 50),
    ] {
        let sides: [&[&str]; 2] = [
            &["--planes", "127.0.1.1,127.0.1.2,127.0.1.3,127.0.1.4", "--fault", "loss=1%"],
            &["--planes", "127.0.2.1,127.0.2.2,127.0.2.3,127.0.2.4", "--fault", "loss=1%", "--seed", "2"],
        ];
        let (bytes, times) = (size.to_string(), count.to_string());
        let program = ["ucx_perftest", "-t", test, "-s", &bytes, "-n", &times, "-w", "1"];
        let summaries = pair(&program, sides, "127.0.1.1", &UCX);
        let all: u64 = summaries.iter().map(|summary| moved(summary, "rx_bytes")).sum();
        assert!(all >= size * count, "{test}: {all} bytes of {}", size * count);
        for summary in &summaries {
            let process = &summary["processes"][0];
            assert_eq!(process["ended"], true, "{test}: {summary}");
            assert_eq!(process["queue_pairs"]["failed"], 0, "{test}: {summary}");
            assert!(process["queue_pairs"]["connected"].as_u64().unwrap() > 0, "{test}: {summary}");
            assert!(process["datagrams"]["sent"].as_u64().unwrap() > 0, "{test}: {summary}");
            assert_eq!(process["planes"].as_array().unwrap().len(), 4);
        }
    }
}

/// An MPI job of three ranks from a source in `programs`: what it prints, and the reports of the ranks. `None`: something that it needs is
/// missing.
fn mpi(name: &str, [program, args]: [&str; 2], planes: &str, fault: &str) -> Option<(String, Vec<Json>)> {
    if !has("mpirun") || !has("mpicc") || !has_view() {
        return None;
    }
    let (binary, summary) = (temp(name), temp(&format!("{name}.json")));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{program}.c"));
    let compiled =
        Command::new("mpicc").args(["-O1", "-o"]).args([&binary, &source]).arg("-lm").output().unwrap();
    assert!(compiled.status.success(), "{}", stderr(&compiled));
    let of_mpi = "--allow-run-as-root --oversubscribe -np 3 --mca pml ucx --mca osc ucx";
    let program = ["mpirun"].into_iter().chain(of_mpi.split(' ')).chain(binary.to_str());
    let options = ["--planes", planes, "--json", summary.to_str().unwrap(), "--fault", fault];
    let mut command = run_of(&options, &program.chain(args.split_whitespace()).collect::<Vec<_>>());
    let ended = end(command.envs(UCX));
    assert!(ended.status.success(), "{fault}: {}{}", stdout(&ended), stderr(&ended));
    let read = json(&fs::read(&summary).unwrap());
    let ranks = read["processes"].as_array().unwrap();
    assert_eq!(ranks.len(), 3, "{read}");
    for rank in ranks {
        assert!(rank["counters"]["tx_data_bytes"].as_u64().unwrap() > 1 << 21, "{rank}");
        let failed = &rank["queue_pairs"]["failed"];
        assert_eq!((&rank["ended"], failed), (&Json::from(true), &Json::from(0)), "{rank}");
    }
    for file in [binary, summary] {
        fs::remove_file(file).unwrap();
    }
    Some((stdout(&ended), ranks.clone()))
}

/// How often queue pairs of these ranks moved to the second NIC.
fn failovers(ranks: &[Json]) -> u64 {
    ranks.iter().map(|rank| rank["queue_pairs"]["failovers"].as_u64().unwrap()).sum()
}

/// The first NIC dies in silence, in the middle of a job.
const DIES: &str = "blackhole,port=0,after=300;blackhole,port=0,dir=rx,after=300";

/// Without a fault, with losses on both planes, and without the second plane.
#[test]
fn mpi_runs_over_it() {
    for fault in ["", "loss=5%", "blackhole,port=1"] {
        let Some((said, ranks)) = mpi("allreduce", ["allreduce", ""], "127.0.0.1,127.0.0.2", fault) else {
            return;
        };
        assert!(said.contains("right on 3 ranks"), "{fault}: {said}");
        for rank in ranks {
            let silent = rank["planes"][1]["rx_frames"] == 0;
            assert_eq!(silent, fault.starts_with("blackhole"), "{fault}: {rank}");
        }
    }
}

/// A NIC dies in silence in the middle of the job, or has no link: the planes of the second one take over.
#[test]
fn mpi_survives_a_nic() {
    for fault in [DIES, "down,port=0"] {
        let Some((said, ranks)) = mpi("survives", ["allreduce", ""], "127.0.0.1+127.0.0.2", fault) else {
            return;
        };
        assert!(said.contains("right on 3 ranks") && failovers(&ranks) > 0, "{fault}: {said} {ranks:?}");
    }
}

/// A job ends with the same weights, to the bit, whatever happens meanwhile.
#[test]
fn training_does_not_notice_that_a_nic_dies() {
    let mut weights = Vec::new();
    for fault in ["", DIES, "loss=2%"] {
        let Some((said, ranks)) = mpi("train", ["train", "60"], "127.0.0.1+127.0.0.2", fault) else { return };
        // A peer that waits for a core for long may look dead too.
        assert!(fault != DIES || failovers(&ranks) > 0, "{fault}: {ranks:?}");
        assert_eq!(said.lines().count(), 61, "{said}");
        weights.push(said.lines().last().unwrap().to_owned());
    }
    assert!(weights[0].len() == "weights ".len() + 16, "{weights:?}");
    assert!(weights.iter().all(|one| *one == weights[0]), "{weights:?}");
}

/// `spindrift ctl` sees the queue pairs of a program by the program's numbers, and moves them to the second NIC and back.
#[test]
fn an_operator_sees_and_moves_queue_pairs() {
    if !Path::new("/usr/bin/ib_write_bw").exists() {
        eprintln!("SKIPPED: there is no ib_write_bw (package perftest)");
        return;
    }
    let (folder, summary) = (temp("operator"), temp("operator.json"));
    let planes = ["--planes", "127.0.0.1+127.0.0.2", "--control-dir", folder.to_str().unwrap()];
    let port = free_port();
    let program = ["ib_write_bw", "-D", "8", "-p", &port];
    let server = Running::start(&mut run_of(&planes, &program));
    let options = [&planes[..], &["--json", summary.to_str().unwrap()]].concat();
    let script = "until ib_write_bw -D 8 -p $0 127.0.0.1; do sleep 0.02; done";
    let client = Running::start(&mut run_of(&options, &["sh", "-c", script, &port]));
    let ctl = |args: &[&str]| {
        let all = [&["ctl"], args, &["--control-dir", folder.to_str().unwrap(), "--json"]].concat();
        json(&support::run(&all).stdout)
    };
    let connected = || {
        let told = ctl(&["status"]);
        let mut all = Vec::new();
        for process in told["processes"].as_array()? {
            assert_eq!(process["program"], "ib_write_bw");
            let queue_pair = &process["queue_pairs"][0];
            let number = queue_pair["queue_pair"].as_u64().filter(|_| queue_pair["state"] == "RTS")?;
            let peer = queue_pair["peer"]["queue_pair"].as_u64()?;
            assert_eq!(queue_pair["roles"]["standby"], Json::from(vec![1]), "{told}");
            all.push((number, peer));
        }
        (all.len() == 2).then_some(all)
    };
    let began = std::time::Instant::now();
    let numbers = loop {
        if let Some(numbers) = connected() {
            break numbers;
        }
        assert!(began.elapsed() < PATIENCE, "{}", ctl(&["status"]));
    };
    // Each is the other's peer, as the programs told each other.
    assert_eq!((numbers[0].0, numbers[0].1), (numbers[1].1, numbers[1].0));
    let wanted = numbers[0].0.to_string();
    let moved = ctl(&["prefer", "standby", "--qp", &wanted]);
    assert!(moved.to_string().contains(&wanted), "{moved}");
    ctl(&["prefer", "standby"]);
    ctl(&["prefer", "primary"]);
    for (run, name) in [(client, "the client"), (server, "the server")] {
        let ended = end_of(run, PATIENCE, name);
        assert!(ended.status.success(), "{}{}", stdout(&ended), stderr(&ended));
    }
    let read = json(&fs::read(&summary).unwrap());
    let process =
        read["processes"].as_array().unwrap().iter().find(|one| one["queue_pairs"]["connected"] == 1);
    let queue_pairs = &process.unwrap()["queue_pairs"];
    assert!(queue_pairs["failovers"].as_u64() > Some(0) && queue_pairs["failed"] == 0, "{read}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "sockets are left");
    fs::remove_dir(folder).unwrap();
    fs::remove_file(summary).unwrap();
}

/// A process that is killed has reported what it had moved by then; its peer ends by itself.
#[test]
fn a_killed_process_is_in_the_summary() {
    if !Path::new("/usr/bin/ib_write_bw").exists() {
        eprintln!("SKIPPED: there is no ib_write_bw (package perftest)");
        return;
    }
    let summary = temp("killed.json");
    let options = ["--planes", "127.0.0.1", "--json", summary.to_str().unwrap()];
    let mut tries = 0;
    let (server, ended, read) = loop {
        let port = free_port();
        let server = Running::start(&mut run_of(ONE, &["ib_write_bw", "-D", "100", "-p", &port]));
        let script = "(sleep 1; exec ib_write_bw -D 100 -p $0 127.0.0.1) & sleep 4; kill -9 $!; wait $!";
        let ended = end(&mut run_of(&options, &["sh", "-c", script, &port]));
        let read = json(&fs::read(&summary).unwrap());
        let processes = read["processes"].as_array().unwrap();
        if processes.iter().any(|process| process["queue_pairs"]["connected"] == 1) {
            break (server, ended, read);
        }
        tries += 1;
        assert!(tries < 20, "{}{}", stdout(&ended), stderr(&ended));
    };
    assert_eq!(read["processes"][0]["ended"], false, "{read}");
    assert!(moved(&read, "tx_bytes") > 0, "{read}");
    assert!(stderr(&ended).contains("(1 did not end in order)"), "{}", stderr(&ended));
    let told = end_of(server, PATIENCE, "the server");
    assert!(!told.status.success(), "{}", stdout(&told));
    fs::remove_file(summary).unwrap();
}
