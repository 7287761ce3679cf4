//! `spindrift swarm`: what it tells of many seeds and of one, and of what it cannot run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;

use support::{json, refused, run, stderr, stdout, temp};

#[test]
fn many_seeds_are_run_and_added_up() {
    let one_by_one = json(&run(&["swarm", "--seeds", "60", "--first", "100", "-j", "1", "--json"]).stdout);
    let together = json(&run(&["swarm", "--seeds", "60", "--first", "100", "-j", "3", "--json"]).stdout);
    assert_eq!(one_by_one["outcome"], together["outcome"]);
    let outcome = &one_by_one["outcome"];
    assert_eq!((&outcome["runs"], &one_by_one["first"]), (&60.into(), &100.into()));
    assert!(outcome["packets"].as_u64() > Some(1_000) && outcome["bytes"].as_u64() > Some(1_000_000));
    assert_eq!((&one_by_one["failures"], &one_by_one["error"]), (&serde_json::json!([]), &().into()));
    // The first of them alone is a part of it.
    let output = run(&["swarm", "--seeds", "1", "--first", "100"]);
    let text = stdout(&output);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert!(text.starts_with("1 seed held, from 100 on:\n") && text.lines().count() >= 5, "{text}");
}

#[test]
fn a_time_ends_it() {
    let output = run(&["swarm", "--time", "300ms", "--first", "random", "--json"]);
    let told = json(&output.stdout);
    assert!(told["elapsed_s"].as_f64() >= Some(0.3), "{told}");
    assert!(told["outcome"]["runs"].as_u64() > Some(0), "{told}");
}

#[test]
fn one_seed_is_told_and_traced() {
    let file = temp("swarm.pcapng");
    let path = file.to_str().unwrap();
    let output = run(&["swarm", "--seed", "4", "--episodes", "none", "--flows", "0,1", "--pcap", path]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for part in ["  flow 0: ", "  episode 0: ", "(left out)", "  the network heals at ", "held:\n"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    // Each packet is in the file once for each link that it crossed.
    let hops = json(&run(&["swarm", "--seed", "4", "--episodes", "none", "--flows", "0,1", "--json"]).stdout);
    let hops = hops["outcome"]["hops"].as_u64().unwrap();
    let seen = json(&run(&["dissect", "--json", path]).stdout);
    fs::remove_file(&file).unwrap();
    assert_eq!(seen["packets"].as_array().unwrap().len() as u64, hops);
}

#[test]
fn what_cannot_be_run_is_named() {
    refused(&["swarm", "--seed", "4", "--episodes", "99"], &["--episodes 99", "0 to 0"]);
    refused(&["swarm", "--seed", "4", "--flows", "0,7"], &["--flows 7", "queue pairs", "0 to 5"]);
    refused(&["swarm", "--seed", "4", "--flows", "none"], &["--flows none", "at least one"]);
    for (args, part) in [
        (["swarm", "--first", "x"], "`x` is not a seed; give a number, or random"),
        (["swarm", "--time", "0"], "not a duration"),
        (["swarm", "--seeds", "0"], "--seeds"),
        (["swarm", "--flows", "1"], "--seed"),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
    }
    let output = run(&["swarm", "--seed", "4", "--pcap", "/nowhere/x.pcapng"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write /nowhere/x.pcapng"), "{}", stderr(&output));
}
