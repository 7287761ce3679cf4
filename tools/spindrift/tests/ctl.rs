//! `spindrift ctl` and processes with control sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use support::{json, run, spindrift, stderr, stdout, temp};

/// A run that lasts until it is ended.
struct Running {
    child: Child,
    dir: PathBuf,
}

impl Running {
    fn start(name: &str, args: &[&str]) -> Self {
        let dir = temp(name);
        let mut command = spindrift();
        command.args(["loopback", "-s", "4K", "-D", "10m", "--control-dir"]).arg(&dir).args(args);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
        Self { child, dir }
    }

    fn ctl(&self, args: &[&str]) -> std::process::Output {
        run(&[&["ctl"], args, &["--control-dir", self.dir.to_str().unwrap()]].concat())
    }

    /// The state of both sides, once they have sockets.
    fn status(&mut self) -> Json {
        let give_up = Instant::now() + Duration::from_mins(1);
        loop {
            let output = self.ctl(&["status", "--json"]);
            let status = json(&output.stdout);
            let sides = status["processes"].as_array().unwrap();
            let ready = |side: &Json| side["queue_pairs"][0]["state"] == "RTS";
            if sides.len() == 2 && sides.iter().all(ready) {
                return status;
            }
            assert_eq!(self.child.try_wait().unwrap(), None, "it runs");
            assert!(Instant::now() < give_up, "{status}: {}", stderr(&output));
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn sockets(&self) -> usize {
        fs::read_dir(&self.dir).map_or(0, Iterator::count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The planes that carry packets at each side.
fn serving(status: &Json) -> Vec<Json> {
    let sides = status["processes"].as_array().unwrap();
    sides.iter().map(|side| side["queue_pairs"][0]["roles"]["serving"].clone()).collect()
}

#[test]
fn queue_pairs_of_a_running_process_move_to_the_standby_and_back() {
    let mut running = Running::start("moves", &["--planes", "4", "--standby", "2,3"]);
    let pid = running.child.id().to_string();
    let status = running.status();
    let of_process = &status["processes"][0];
    assert_eq!((&of_process["process"], &of_process["lanes"]), (&running.child.id().into(), &1.into()));
    assert_eq!(of_process["program"], "loopback, writer");
    assert_eq!(status["processes"][1]["program"], "loopback, target");
    let (primary, standby) = (Json::from(vec![0, 1]), Json::from(vec![2, 3]));
    assert_eq!(serving(&status), [primary.clone(), primary.clone()]);

    // Both sides, then one queue pair.
    let output = running.ctl(&["prefer", "standby", "--pid", &pid]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = format!("process {pid}: 1 queue pair on the planes that stand by now");
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), [&*told; 2]);
    assert_eq!(serving(&running.status()), [standby.clone(), standby.clone()]);
    let number = of_process["queue_pairs"][0]["queue_pair"].to_string();
    let output = running.ctl(&["prefer", "primary", "--qp", &number, "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let moved = &json(&output.stdout)["processes"];
    assert_eq!(moved.as_array().unwrap().len(), 1, "the other side does not have it");
    assert_eq!(moved[0]["moved"]["now"][0].to_string(), number);
    assert_eq!(serving(&running.status()), [primary, standby]);

    // For people.
    let text = stdout(&running.ctl(&["status"]));
    assert!(text.contains(&format!("process {pid}: loopback, writer, 1 lane, 1 queue pair\n")), "{text}");
    assert!(text.contains("primary 0,1, standby 2,3, in use 2,3, preferred standby"), "{text}");

    // What is not there.
    let output = running.ctl(&["prefer", "primary", "--qp", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("process {pid}: there is no queue pair 0x000000")));
    let output = running.ctl(&["status", "--pid", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("spindrift: --pid 1: no control socket of this process is in "));

    // It is killed, and its sockets stay behind until somebody looks.
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert_eq!(running.sockets(), 2);
    let output = running.ctl(&["status"]);
    assert!(output.status.success());
    assert_eq!(stdout(&output), format!("no process has a control socket in {}\n", running.dir.display()));
    assert_eq!(running.sockets(), 0);
    let output = running.ctl(&["prefer", "standby"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no process has a control socket in "), "{}", stderr(&output));
}

#[test]
fn queue_pairs_without_a_standby_are_not_moved() {
    let mut running = Running::start("plain", &["--planes", "2"]);
    assert_eq!(serving(&running.status()), [Json::Null, Json::Null]);
    let output = running.ctl(&["prefer", "standby"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("start the programs with --standby"), "{}", stderr(&output));
}

/// A run that ends takes its sockets with it; one that cannot have any, or shall not, runs all the same.
#[test]
fn a_run_does_not_depend_on_its_control_socket() {
    let dir = temp("ends");
    let short = ["loopback", "-s", "64", "-n", "10", "--json", "--control-dir"];
    let run_in = |dir: &Path| run(&[&short[..], &[dir.to_str().unwrap()]].concat());
    assert!(run_in(&dir).status.success());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    fs::remove_dir(&dir).unwrap();
    assert!(run_in(Path::new("none")).status.success());
    assert!(!Path::new("none").exists());
    let file = temp("file");
    fs::write(&file, "").unwrap();
    let output = run_in(&file);
    fs::remove_file(&file).unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("no control socket"), "{}", stderr(&output));
}

#[test]
fn wrong_options_of_ctl_are_refused() {
    let refuse = |args: &[&str], part: &str| {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
    };
    refuse(&["ctl", "prefer", "both"], "[possible values: primary, standby]");
    refuse(&["ctl", "prefer"], "<ROLE>");
    refuse(&["ctl", "prefer", "standby", "--qp", "0x1000000"], "is not a queue pair number");
    refuse(&["ctl", "status", "--pid", "-1"], "-1");
}

/// The planes that each side avoids.
fn avoided(status: &Json) -> Vec<Json> {
    let sides = status["processes"].as_array().unwrap();
    sides.iter().map(|side| side["queue_pairs"][0]["denied"]["avoided"].clone()).collect()
}

#[test]
fn queue_pairs_of_a_running_process_avoid_paths_and_use_them_again() {
    let mut running = Running::start("avoids", &["--planes", "2"]);
    let status = running.status();
    assert_eq!(avoided(&status), [Json::Null, Json::Null]);
    let output = running.ctl(&["deny", "--plane", "1", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told = json(&output.stdout);
    assert_eq!((&told["command"], told["processes"].as_array().unwrap().len()), (&"ctl deny".into(), 2));
    let entry =
        serde_json::json!({ "source": "operator", "rule": { "deny": "plane", "plane": 1 }, "left_ms": null });
    assert_eq!(told["processes"][0]["denied"][0], entry);
    assert_eq!(avoided(&running.status()), [Json::from(vec![1]), Json::from(vec![1])]);
    // All planes are as good as none.
    let output = running.ctl(&["deny", "--plane", "0", "--for", "10m"]);
    assert!(stdout(&output).contains("  plane 0 (by operator, for 10m more)"), "{}", stdout(&output));
    assert_eq!(avoided(&running.status()), [Json::Array(vec![]), Json::Array(vec![])]);
    let shown = stdout(&running.ctl(&["status"]));
    assert!(shown.contains("uses the denied plane 0,1, since the others do not suffice"), "{shown}");
    // Other rules; what is allowed must be denied.
    let more = ["deny", "--ev", "0/1@0", "--peer", "10.9.8.7", "--path", "1:a,b"];
    assert!(running.ctl(&more).status.success());
    let output = running.ctl(&["allow", "--plane", "1", "--path", "1:a,c"]);
    assert!(
        stderr(&output).contains("operator does not deny paths of plane 1 over 000a:000c"),
        "{}",
        stderr(&output)
    );
    let output =
        running.ctl(&["allow", "--plane", "0", "--plane", "1", "--path", "1:a,b", "--peer", "10.9.8.7"]);
    assert!(stdout(&output).contains("  entropy values 0x0 in the bits 0x1 of plane 0 (by operator)"));
    assert_eq!(avoided(&running.status()), [Json::Array(vec![]), Json::Array(vec![])]);
    let output = running.ctl(&["allow", "--all"]);
    assert_eq!(stdout(&output).matches("nothing is denied").count(), 2, "{}", stdout(&output));
    assert_eq!(avoided(&running.status()), [Json::Null, Json::Null]);
}

#[test]
fn paths_that_cannot_be_denied_are_refused() {
    let dir = temp("no-denials");
    let ctl = |args: &[&str]| run(&[&["ctl"], args, &["--control-dir", dir.to_str().unwrap()]].concat());
    for (args, expected) in [
        (&["deny"][..], "nothing to deny; name paths with --plane, --peer, --ev or --path"),
        (&["allow"], "nothing to allow; name paths with --plane, --peer, --ev or --path, or use --all"),
        (&["deny", "--plane", "32"], "plane 32: at most 31"),
        (&["deny", "--plane", "x"], "invalid digit"),
        (&["deny", "--peer", "h1"], "invalid IP address"),
        (&["deny", "--ev", "3/1"], "all bits of the value must be in the mask"),
        (&["deny", "--path", "0:zz"], "\"zz\" is no uSID"),
        (&["allow", "--all", "--plane", "1"], "cannot be used with"),
    ] {
        let output = ctl(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    for args in [&["deny", "--plane", "1"][..], &["allow", "--all"]] {
        let output = ctl(args);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("no process has a control socket in"), "{}", stderr(&output));
    }
}
