//! `spindrift loopback`, small.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use serde_json::Value as Json;
use support::{run, spindrift, stderr, stdout, temp};

fn json(args: &[&str]) -> Json {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}\n{}", stderr(&output), stdout(&output));
    assert_eq!(stdout(&output).lines().count(), 1, "one object and nothing else: {}", stdout(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn assert_rows(json: &Json, sizes: &[u64]) {
    let rows = json["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(found, sizes);
    for row in rows {
        assert_eq!(row["verified"], true);
        for field in ["bandwidth_gbps", "bandwidth_peak_gbps", "message_rate_mpps"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field}: {row}");
        }
        for field in OF_YARDSTICK {
            assert!(
                row.get(field).is_none() && json.get(field).is_none(),
                "{field} was not asked for: {row}"
            );
        }
    }
    assert_eq!((&json["verified"], &json["error"]), (&true.into(), &Json::Null));
}

/// The fields of `--yardstick`.
const OF_YARDSTICK: [&str; 10] = [
    "baseline_gbps",
    "ratio",
    "pump",
    "pump_gbps",
    "pump_ratio",
    "pump_slices_gbps",
    "core_latency_before_ns",
    "core_latency_after_ns",
    "disturbed",
    "summary_size_bytes",
];

/// The yardstick's fields are there and agree with each other.
fn assert_yardstick(row: &Json) {
    let number = |value: &Json| value.as_f64().unwrap();
    let over = number(&row["bandwidth_gbps"]) / number(&row["baseline_gbps"]);
    assert!((number(&row["ratio"]) - over).abs() <= 1e-9 * over, "{row}");
    let slices: Vec<f64> = row["pump_slices_gbps"].as_array().unwrap().iter().map(number).collect();
    assert!(slices.len() >= 2 && slices.iter().all(|&slice| slice > 0.0), "before and after: {row}");
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
    let pump = number(&row["pump_gbps"]);
    assert!(near(pump, slices.iter().sum::<f64>() / slices.len() as f64), "{row}");
    assert!(near(number(&row["pump_ratio"]), number(&row["bandwidth_gbps"]) / pump), "{row}");
    let [before, after] = ["core_latency_before_ns", "core_latency_after_ns"].map(|name| number(&row[name]));
    assert!(before > 0.0 && after > 0.0, "{row}");
    let moved = |from: f64, to: f64| (to - from).abs() > 0.15 * from;
    let expected = moved(before, after) || slices.iter().any(|&slice| moved(slices[0], slice));
    assert_eq!(row["disturbed"], expected, "{row}");
}

#[test]
fn the_pump_does_what_the_run_does() {
    for (args, steps) in [
        (&["-s", "4K"] as &[&str], "CRC, pointer | CRC + copy"),
        (&["-s", "300"], "CRC + copy | CRC + copy"),
        (&["-s", "4K", "--no-icrc"], "pointer | copy"),
        (&["-s", "4K", "-m", "256", "--no-icrc"], "copy | copy"),
    ] {
        let json = json(&[&["loopback", "-n", "9", "--json", "--yardstick"], args].concat());
        assert_eq!(json["rows"][0]["pump"], steps);
    }
    // Cut in two, so there is a slice between the pieces; late pieces may leave nothing for another.
    let json = json(&["loopback", "-s", "4K", "-D", "600ms", "--yardstick", "--json"]);
    let row = &json["rows"][0];
    assert_yardstick(row);
    assert_eq!((&row["verified"], &json["verified"]), (&true.into(), &true.into()));
    assert!((2..=3).contains(&row["pump_slices_gbps"].as_array().unwrap().len()), "{row}");
    assert_eq!(json["summary_size_bytes"], 4096);
    for name in ["baseline_gbps", "ratio", "pump_gbps", "pump_ratio", "disturbed"] {
        assert_eq!(json[name], row[name], "of the only row");
    }
}

#[test]
fn moves_and_verifies_memory() {
    let json = json(&["loopback", "--size", "64K", "-n", "200", "--json"]);
    assert_rows(&json, &[65_536]);
    assert_eq!(json["rows"][0]["iterations"], 200);
    assert_eq!(json["settings"]["planes"], 4);
    let counters = &json["counters"];
    // 128 slots once for warm-up, then 200 messages, of 16 packets each.
    assert!(counters["target"]["transport"]["rx_placed_bytes"].as_u64().unwrap() >= 328 << 16);
}

/// Each lane writes its queue pairs' share, over ports of its own.
#[test]
fn several_lanes_share_the_queue_pairs() {
    for (port, planes) in [("loopback", "2"), ("udp", "1")] {
        let json = json(&[
            "loopback",
            "--port",
            port,
            "--planes",
            planes,
            "--lanes",
            "3",
            "-q",
            "5",
            "-s",
            "20000",
            "-n",
            "1001",
            "--fault",
            "loss=0.5%",
            "--seed",
            "3",
            "--json",
        ]);
        assert_rows(&json, &[20_000]);
        assert_eq!(json["rows"][0]["iterations"], 1001);
        assert_eq!((&json["settings"]["lanes"], &json["settings"]["queue_pairs"]), (&3.into(), &5.into()));
        let target = &json["counters"]["target"];
        assert!(target["transport"]["rx_placed_bytes"].as_u64().unwrap() >= 1001 * 20_000, "{target}");
        assert_eq!(target["transport"]["rx_other_lane"], Json::Null, "each lane got what was its own");
    }
    let timed = json(&["loopback", "--lanes", "2", "-q", "2", "-s", "64", "-D", "50ms", "--json"]);
    assert_rows(&timed, &[64]);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn every_size_of_the_sweep() {
    let json = json(&["loopback", "-a", "-n", "3", "--tx-depth", "2", "--json"]);
    let sizes: Vec<u64> = (1..=23).map(|shift| 1 << shift).collect();
    assert_rows(&json, &sizes);
}

/// The summary is about 64 KiB, or else the last size.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn the_summary_of_a_sweep_is_about_64_kib() {
    let args = ["loopback", "-a", "-n", "3", "--tx-depth", "2", "--yardstick", "--json"];
    let json = json(&args);
    assert_eq!(json["summary_size_bytes"], 65_536);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 23);
    rows.iter().for_each(assert_yardstick);
    assert_eq!(json["pump_gbps"], rows[15]["pump_gbps"], "the 16th size");
}

#[test]
fn loses_nothing_to_a_network_that_does() {
    let json = json(&[
        "loopback",
        "-s",
        "10000",
        "-n",
        "500",
        "--fault",
        "loss=1%,reorder=1%:20us",
        "-q",
        "2",
        "--json",
    ]);
    assert_rows(&json, &[10_000]);
    let counters = &json["counters"];
    assert!(counters["writer"]["faults"]["lost"].as_u64().unwrap() > 0, "{counters}");
    assert!(counters["writer"]["transport"]["tx_retransmits"].as_u64().unwrap() > 0, "{counters}");
}

#[test]
fn trimmed_packets_are_recognised() {
    let json = json(&["loopback", "-s", "64K", "-n", "100", "--fault", "trim=2%", "--json"]);
    assert_rows(&json, &[65_536]);
    assert!(json["counters"]["target"]["transport"]["rx_trimmed"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn other_ways_to_run() {
    for extra in [
        &["--no-icrc"] as &[&str],
        &["--cc", "nscc"],
        &["--planes", "1", "--mtu", "1024"],
        &["--port", "udp", "--planes", "2"],
        &["-D", "0.05"],
        &["--seed", "7", "-t", "1"],
    ] {
        let mut args = vec!["loopback", "-s", "5000", "--json"];
        if extra[0] != "-D" {
            args.extend(["-n", "50"]);
        }
        args.extend(extra);
        assert_rows(&json(&args), &[5000]);
    }
}

/// Flags go before the file, the file before the defaults, and the run says what came of it.
/// Ports are no faster than they are told to be, whatever carries their packets and however many lanes share them.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn ports_keep_to_the_rate_of_their_links() {
    for port in ["loopback", "udp"] {
        for lanes in ["1", "2"] {
            let args =
                ["--port", port, "--planes", "2", "-q", "2", "--lanes", lanes, "--link-rate", "150Mbit"];
            let json = json(&[&["loopback", "-s", "64K", "-n", "150", "--json"], &args[..]].concat());
            assert_rows(&json, &[65_536]);
            assert_eq!(json["settings"]["link_rate_bps"], 150_000_000);
            // Two bursts of 250 us more, in a fifth of a second.
            let rate = json["rows"][0]["bandwidth_gbps"].as_f64().unwrap();
            assert!(rate < 0.3 * 1.01, "{port} {lanes}: {rate}");
        }
    }
    let file = temp("rate.toml");
    std::fs::write(&file, "nic.link_rate = \"80M\"\n").unwrap();
    let config = file.display().to_string();
    let output = run(&["loopback", "-s", "4K", "-n", "20", "--planes", "1", "--config", &config]);
    assert!(stdout(&output).contains("1 plane of 80Mbit/s, 1 queue pair"), "{}", stdout(&output));
    std::fs::write(&file, "nic.link_rate = \"80X\"\n").unwrap();
    let output = run(&["loopback", "--config", &config]);
    assert!(stderr(&output).contains("\"80X\" is not a rate; write bits per second"), "{}", stderr(&output));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn the_retry_budget_is_set_and_shown() {
    let retry = |args: &[&str]| {
        let mut all = vec!["loopback", "-s", "4K", "-n", "5", "--json"];
        all.extend(args);
        let settings = &json(&all)["settings"];
        ["timeout", "linear_retries", "exponential_retries", "retry_budget_s"]
            .map(|name| settings[name].clone())
    };
    let path = temp("retry.toml");
    std::fs::write(&path, "[transport]\ntimeout = 10\nlinear_retries = 3\n").unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(retry(&[]), [14.into(), 7.into(), 9.into(), Json::from(17.280_532_48)]);
    assert_eq!(retry(&["--config", path])[..3], [10.into(), 3.into(), Json::from(9)]);
    let flags = ["--config", path, "--timeout", "12", "--exponential-retries", "25"];
    assert_eq!(retry(&flags), [12.into(), 3.into(), 25.into(), Json::Null]);

    let text = |args: &[&str]| stdout(&run(&[&["loopback", "-s", "4K", "-n", "5"], args].concat()));
    assert!(text(&[]).contains("gives up after 17.3 s without progress"));
    assert!(text(&["--exponential-retries", "25"]).contains("never gives up"));
}

/// A peer that does not answer: the error says how long that was, and what would have waited longer, if the peer ever was there.
#[test]
fn a_silent_peer_is_given_up_with_the_way_to_wait_longer() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["loopback"], "blackhole", "no progress for"),
        (&["loopback", "--latency"], "blackhole", "no progress for"),
        (&["loopback"], "blackhole,after=200", "raise --exponential-retries"),
    ];
    for (mode, fault, advice) in cases {
        let wait =
            ["-s", "4K", "-n", "100000000", "--fault", fault, "--timeout", "15", "--linear-retries", "1"];
        let output = run(&[mode, &wait, &["--exponential-retries", "1"]].concat());
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        // 33.6 ms, and four times that.
        for part in ["retry counter exceeded", "0.1342 s", "--timeout 15", advice] {
            assert!(error.contains(part), "{part} in: {error}");
        }
    }
}

#[test]
fn table_for_people() {
    let usual = [
        "#bytes",
        "BW peak[Gb/s]",
        "BW average[Gb/s]",
        "MsgRate[Mpps]",
        "verified",
        "65536",
        " yes",
        "transport.tx_data",
        "faults on frames sent by the writer",
    ];
    let of_yardstick = [
        "pump[Gb/s]",
        "one-way[ns]",
        "alternating with the run, CRC, pointer | CRC + copy: ",
        "baseline: one core",
        "ratio of BW average",
    ];
    for yardstick in [false, true] {
        let args = ["loopback", "-s", "64K", "-n", "50", "--counters", "--fault", "dup=1%", "--yardstick"];
        let output = run(args.get(..args.len() - usize::from(!yardstick)).unwrap());
        let text = stdout(&output);
        assert!(output.status.success(), "{text}");
        for part in usual {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
        for part in of_yardstick {
            assert_eq!(text.contains(part), yardstick, "{part} in:\n{text}");
        }
        assert!(yardstick || !text.contains("disturbed"), "{text}");
    }
}

#[test]
fn latency_of_one_packet_and_of_many() {
    for size in ["2", "20000"] {
        let json = json(&["loopback", "--latency", "-s", size, "-n", "200", "--json"]);
        let row = &json["latency_rows"][0];
        assert_eq!(row["iterations"], 200);
        let of = |field: &str| row[field].as_f64().unwrap();
        assert!(
            0.0 < of("min_us") && of("min_us") <= of("typical_us") && of("typical_us") <= of("max_us"),
            "{row}"
        );
    }
}

#[test]
fn the_capture_of_a_run_dissects_without_errors() {
    let path = temp("run.pcap");
    let path = path.to_str().unwrap();
    json(&["loopback", "-s", "9000", "-n", "20", "--pcap", path, "--json"]);
    let seen = run(&["dissect", path, "--json"]);
    let seen: Json = serde_json::from_slice(&seen.stdout).unwrap();
    let totals = &seen["totals"];
    assert!(totals["by_opcode"]["WRITE_LAST"].as_u64().unwrap() >= 20, "{totals}");
    assert!(totals["by_opcode"]["SACK"].as_u64().unwrap() > 0, "{totals}");
    assert_eq!((&totals["bad_icrc"], &totals["unreadable"]), (&0.into(), &0.into()));
}

#[test]
fn errors_name_the_input_and_the_fix() {
    let config = temp("bad.toml");
    std::fs::write(&config, "[run]\nsize = \"64Q\"\n").unwrap();
    let unknown = temp("unknown.toml");
    std::fs::write(&unknown, "[nic]\nplanes = 2\nplains = 4\n").unwrap();
    let (config, unknown) = (config.to_str().unwrap(), unknown.to_str().unwrap());
    let cases: [(&[&str], &[&str]); 12] = [
        (&["--size", "64X"], &["64X", "64K"]),
        (&["--size", "0"], &["--size 0", "at least 1"]),
        (&["--size", "5G"], &["--size", "4294967295"]),
        (&["--mtu", "100"], &["--mtu 100", "256"]),
        (&["--qp", "0"], &["--qp 0", "1 to 1024"]),
        (&["--planes", "40"], &["--planes 40", "1 to 32"]),
        (&["-n", "0"], &["--iters 0", "at least 1"]),
        (&["-D", "soon"], &["soon", "300ms"]),
        (&["--fault", "loss=200%"], &["--fault", "loss=200%"]),
        (&["--config", config], &["bad.toml", "line 2", "column 8", "64Q"]),
        (&["--config", unknown], &["unknown.toml", "line 3", "plains"]),
        (&["--config", "/no/such.toml"], &["/no/such.toml", "No such file"]),
    ];
    for (args, parts) in cases {
        let output = spindrift().arg("loopback").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = stderr(&output);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

#[test]
fn the_shipped_configuration_files_are_read() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/");
    let from_file =
        json(&["loopback", "--config", &format!("{root}loopback.toml"), "-s", "1K", "-n", "10", "--json"]);
    assert_rows(&from_file, &[1024]);
    // Flags go before the file, which has kernel sockets and a gigabyte of work.
    let args = ["--port", "loopback", "--cc", "none", "-s", "1K", "-n", "10", "--json"];
    let path = format!("{root}two-host.toml");
    let mut all = vec!["loopback", "--config", &path];
    all.extend(args);
    assert_rows(&json(&all), &[1024]);
}

#[test]
fn without_a_command_it_suggests_one() {
    let output = run(&[]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("spindrift loopback"));
}
