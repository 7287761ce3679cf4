//! What `--samples` writes: on both sides, at short intervals, and where it cannot.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::support::{self, run, stderr, stdout};
use super::{Server, both, free_port};

/// The lines of a file of samples, by type.
fn samples(path: &Path) -> (Vec<Json>, Vec<Json>) {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.partition(|line| line["type"] == "sample")
}

/// Only the client limits what it has in flight, and only it sends anything that is answered.
fn assert_windows(taken: &[Json], last: &Json) {
    assert!(last["cwnd_bytes"].is_null() && last["rtt_ns"].is_null() && last["min_rtt_ns"].is_null());
    assert_eq!(last["inflight_bytes"], 0);
    let busy = |sample: &&Json| sample["inflight_bytes"].as_u64().unwrap() > 20_000;
    assert!(taken.iter().any(|sample| busy(&sample)), "128 writes wait for each queue pair");
    let most = |name: &str| taken.iter().map(|sample| sample[name].as_u64().unwrap()).max().unwrap();
    // Losses make a window smaller than what is in flight already.
    assert!(most("inflight_bytes") <= most("cwnd_bytes") + 5_000);
    for sample in taken.iter().filter(|sample| !sample["rtt_ns"].is_null()) {
        assert!(sample["min_rtt_ns"].as_u64() <= sample["rtt_ns"].as_u64(), "{sample}");
    }
    assert!(taken.last().unwrap()["min_rtt_ns"].as_u64().unwrap() > 1_000);
}

/// One sample in each interval at most, which begin at equal distances; a slow machine leaves some without. The last sample comes at the
/// end of the run.
fn assert_interval(times: &[u64], interval_ns: u64) {
    let (_, rest) = times.split_last().unwrap();
    let three: Vec<_> = rest.windows(3).map(|times| times[2] - times[0]).collect();
    assert!(three.iter().all(|&ns| ns > interval_ns), "{three:?}");
    assert!(three.iter().any(|&ns| ns < 4 * interval_ns), "{three:?}");
}

/// Each side at short intervals, to the end: samples that only grow, the last of which is what the run says of itself.
#[test]
fn samples_tell_what_a_side_did_and_when() {
    let files = ["client", "server"].map(|side| support::temp(&format!("samples-{side}.jsonl")));
    let [client_file, server_file] = files.each_ref().map(|file| file.to_str().unwrap());
    let start = now_ns();
    let locals = ["127.0.0.21,127.0.0.22", "127.0.0.23,127.0.0.24"];
    let (client, server) = both(
        "write-bw",
        &["--local", locals[0], "--samples", server_file],
        &[
            &["--local", locals[1], "--samples", client_file, "--sample-interval", "2ms", "-q", "2"]
                as &[_],
            &["--cc", "nscc"],
            // However fast the machine is, a run takes 400 ms at least, and loses some of 5,000 packets on plane 1. Those that
            // are lost by chance need not make a path bad, but a path that loses everything is.
            &["-s", "20000", "-n", "2000", "--link-rate", "400M"],
            &["--source-ports", "41000-41011", "--fault", "loss=1%,port=1; blackhole,port=1,ev=41003"],
        ]
        .concat(),
    );
    let end = now_ns();
    for (file, side, interval_ns) in [(&files[0], &client, 2_000_000), (&files[1], &server, 10_000_000)] {
        let (taken, evs) = samples(file);
        let times: Vec<_> = taken.iter().map(|sample| sample["unix_ns"].as_u64().unwrap()).collect();
        assert!(times.is_sorted() && start <= times[0] && *times.last().unwrap() <= end);
        assert_interval(&times, interval_ns);
        let counters = &side["counters"]["transport"];
        for name in ["rx_placed_bytes", "tx_data", "tx_data_bytes", "tx_retransmits", "rx_data", "timeouts"] {
            let values: Vec<_> = taken.iter().map(|sample| sample[name].as_u64().unwrap()).collect();
            assert!(values.is_sorted(), "{name}");
            assert_eq!(*values.last().unwrap(), counters[name].as_u64().unwrap_or(0), "{name}");
        }
        let last = taken.last().unwrap();
        let planes = last["planes"].as_array().unwrap();
        assert_eq!(planes.len(), 2);
        for (name, of_ports) in [("tx_bytes", "tx_bytes"), ("rx_bytes", "rx_bytes")] {
            let sum: u64 = planes.iter().map(|plane| plane[name].as_u64().unwrap()).sum();
            assert_eq!(sum, side["counters"]["ports"][of_ports].as_u64().unwrap(), "{name}");
        }
        assert!(planes.iter().all(|plane| plane["up"] == true && plane["tx_bytes"].as_u64().unwrap() > 0));
        // The states that were told last add up to those of the last sample.
        let mut told = BTreeMap::new();
        for ev in &evs {
            let key = ["queue_pair", "plane", "ev"].map(|name| ev[name].as_u64().unwrap());
            told.insert(key, (ev["state"].as_str().unwrap(), ev["active"] == true));
        }
        for (plane, sample) in (0..).zip(planes) {
            let count = |state, active: &[bool]| {
                let of_plane = told.iter().filter(|(key, _)| key[1] == plane);
                of_plane.filter(|(_, told)| told.0 == state && active.contains(&told.1)).count() as u64
            };
            let number = |name: &str| sample[name].as_u64().unwrap();
            assert_eq!(number("good") + number("skip"), count("good", &[true]));
            assert_eq!(number("reserve"), count("good", &[false]));
            assert_eq!(number("assumed_bad"), count("assumed-bad", &[false, true]));
            assert_eq!(number("denied"), 0);
        }
        assert!(planes[0]["good"].as_u64().unwrap() > 0);
    }
    assert_windows(&samples(&files[0]).0, samples(&files[1]).0.last().unwrap());
    // What was lost on plane 1 shows there, and the source ports are those that were asked for.
    let (taken, evs) = samples(&files[0]);
    assert!(taken.last().unwrap()["losses"].as_u64().unwrap() > 0);
    // A busy machine may lose some on the other plane.
    let bad: Vec<_> = evs.iter().filter(|ev| ev["state"] == "assumed-bad" && ev["plane"] == 1).collect();
    // Where none counts, it was taken back: that packet had arrived.
    assert!(bad.iter().any(|ev| ev["ev"] == 41_003 && ev["drops"].as_u64().unwrap() > 0));
    assert!(evs.iter().all(|ev| (41_000..=41_011).contains(&ev["ev"].as_u64().unwrap())));
    assert!(evs.iter().any(|ev| ev["queue_pair"] == 1));
    // All that was sent took one of the paths: as many as are told one by one. The server has more.
    let last = taken.last().unwrap();
    let paths = last["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 24);
    let sum = |name: &str| paths.iter().map(|path| path[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("packets"), sum("plane")), (last["tx_data"].as_u64().unwrap(), 12));
    assert_eq!(samples(&files[1]).0.last().unwrap()["paths"], Json::Array(Vec::new()));
    let moved: u64 = client["rows"][0]["iterations"].as_u64().unwrap() * 20_000;
    assert!(samples(&files[1]).0.last().unwrap()["rx_placed_bytes"].as_u64().unwrap() >= moved);
}

fn now_ns() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// A file that cannot be written stops the run before it begins, on either side; one that fills up, when it is over.
#[test]
fn samples_that_cannot_be_written_are_an_error() {
    let nowhere = support::temp("no-such-folder").join("samples.jsonl");
    let nowhere = nowhere.to_str().unwrap();
    let server = run(&["write-bw", "-p", &free_port(), "--samples", nowhere]);
    let server_error = stderr(&server);
    assert!(!server_error.contains("waiting") && server_error.contains(nowhere), "{server_error}");
    let listening = Server::start(&["write-bw"]);
    let args = ["write-bw", "127.0.0.1", "-n", "20", "-p", &listening.port, "--samples"];
    let client = run(&[&args as &[_], &[nowhere]].concat());
    assert_eq!([server.status.code(), client.status.code()], [Some(1); 2]);
    assert!(
        stderr(&client).contains(&format!("--samples {nowhere}: cannot be written")),
        "{}",
        stderr(&client)
    );
    drop(listening);
    let listening = Server::start(&["write-bw"]);
    let client = run(&["write-bw", "127.0.0.1", "-n", "20", "-p", &listening.port, "--samples", "/dev/full"]);
    assert_eq!(client.status.code(), Some(1));
    assert!(stderr(&client).contains("--samples /dev/full: the file is not complete"), "{}", stderr(&client));
    assert!(stdout(&client).contains("yes"), "the run itself was good: {}", stdout(&client));
}
