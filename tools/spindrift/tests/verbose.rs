//! What `-v` and `SPINDRIFT_LOG` report on standard error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::process::{Output, Stdio};

use support::{run, spindrift, stderr, stdout};

const RUN: [&str; 7] = ["loopback", "--json", "-s", "64K", "-n", "50", "--planes=2"];

fn with_log(filter: &str, args: &[&str]) -> Output {
    let mut command = spindrift();
    command.args(args).env("SPINDRIFT_LOG", filter).stdin(Stdio::null());
    command.output().unwrap()
}

fn verbose(flags: &[&str]) -> Output {
    run(&[&RUN, flags].concat())
}

/// Lines that report something, without the progress of the run.
fn reports(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", stderr(output));
    stderr(output).lines().filter(|line| line.contains(" spindrift")).map(str::to_owned).collect()
}

#[test]
fn life_cycles_are_reported_on_standard_error_and_results_stay_alone() {
    assert_eq!(reports(&verbose(&[])), [""; 0], "a run without trouble is silent");
    let output = verbose(&["-v"]);
    let lines = reports(&output);
    let ready = lines.iter().filter(|line| line.contains("spindrift::qp:") && line.contains("state=Rts"));
    assert_eq!(ready.count(), 2, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("queue pair destroyed")).count(), 2, "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains(" INFO ")), "{lines:#?}");
    let object: serde_json::Value =
        serde_json::from_str(&stdout(&output)).expect("one object and nothing else");
    assert_eq!(object["verified"], true);
}

#[test]
fn more_is_reported_the_more_often_it_is_asked_for() {
    let [once, twice] =
        ["-v", "-vv"].map(|flag| reports(&verbose(&[flag, "--fault", "blackhole,port=1,until=20ms"])));
    assert!(!once.iter().any(|line| line.contains("spindrift::path")), "{once:#?}");
    assert!(
        twice.iter().any(|line| line.contains("DEBUG spindrift::path: path is assumed bad")),
        "{twice:#?}"
    );
}

#[test]
fn the_variable_chooses_targets_and_replaces_the_flag() {
    let args = [&RUN[..], &["-v", "--fault", "blackhole,port=1,until=20ms"]].concat();
    let lines = reports(&with_log("spindrift::path=debug", &args));
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains("spindrift::path")), "{lines:#?}");
    // As if it were not set.
    assert!(reports(&with_log(" ", &args)).iter().any(|line| line.contains("INFO spindrift::qp")));
}

#[test]
fn a_malformed_variable_is_named() {
    for command in [&RUN[..], &["ports"], &["pump", "udp", "--loopback", "-D", "100ms"]] {
        let output = with_log("spindrift=loud", command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("SPINDRIFT_LOG=spindrift=loud: ") && text.contains("debug"), "{text}");
        assert!(output.stdout.is_empty());
    }
}
