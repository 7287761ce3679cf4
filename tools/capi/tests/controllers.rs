//! A controller of MRC and programs that use what it has set, each a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use support::{Library, PATIENCE, Running};

/// The program, and the folder that holds the state of its device.
struct Controller {
    built: Library,
    folder: PathBuf,
    planes: String,
}

impl Controller {
    /// A device of its own; `place` is the test's. `None`: the machine has no C compiler, or no header of verbs.
    fn new(name: &str, place: u8) -> Option<Self> {
        let built = Library::new();
        let folder = std::env::temp_dir().join(format!("spindrift-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/controller.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-o"])
            .arg(folder.join("controller"))
            .arg(source);
        let compiled = compiler.arg(built.file("lib_mrc.so")).arg("-libverbs").output();
        let planes = format!("127.2.{place}.1,127.2.{place}.2");
        let controller = Self { built, folder, planes };
        if compiled.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(controller);
        }
        let required = std::env::var_os("SPINDRIFT_REQUIRE_VERBS_H").is_some();
        assert!(!required, "{compiled:?}; ./tools/setup.sh --tests installs what is missing");
        eprintln!("SKIPPED: there is no C compiler, or no package libibverbs-dev");
        None
    }

    fn command(&self, args: &str) -> Command {
        let mut command = self.built.command(&self.folder.join("controller"), &self.planes, args);
        command.env("SPINDRIFT_DEVICE_DIR", self.folder.join("devices")).env("PORTS", "2");
        command
    }

    /// What one call comes to.
    fn call(&self, args: &str) -> String {
        let output = self.command(args).stderr(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{args}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Repeats a call until it comes to this.
    fn becomes(&self, args: &str, wanted: &str) {
        let began = Instant::now();
        loop {
            let found = self.call(args);
            if found == wanted {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{args}: {found}, not {wanted}");
        }
    }

    /// Starts a program and waits for its first line.
    fn start(&self, args: &str, fault: &str, first: &str) -> Running {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).env("SPINDRIFT_FAULT", fault);
        let mut running = Running::start(&mut command);
        let mut line = String::new();
        BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), first, "{args}");
        running
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Ends a program by the end of its input.
fn end(mut running: Running) -> Option<i32> {
    drop(running.0.stdin.take());
    running.0.wait().unwrap().code()
}

#[test]
fn profiles_outlive_their_controller_and_bind_other_processes() {
    let Some(all) = Controller::new("profiles", 1) else { return };
    assert_eq!(all.call("list 7"), "state 0:");
    assert_eq!(all.call("set 7 22100 22101 22102 22103"), "ok");
    let listed = |second: u32| format!("state 2: 22100/1=1 22101/2={second} 22102/1=1 22103/2=1");
    assert_eq!(all.call("list 7"), listed(1));
    // Two programs may send from the same source ports.
    let programs = [(); 2].map(|()| all.start("pair 7", "", "running"));
    assert_eq!(all.call("move 7 1"), "EBUSY");
    assert_eq!(all.call("deny 7 22101 2 1"), "ok");
    assert_eq!(all.call("list 7"), listed(4));
    assert_eq!(all.call("deny 7 22101 2 0"), "ok");
    assert_eq!(all.call("deny 7 22101 1 1"), "ENOENT");
    assert_eq!(all.call("set 7 22104"), "EBUSY");
    let [first, second] = programs;
    assert_eq!(end(first), Some(0));
    assert_eq!(all.call("move 7 1"), "EBUSY");
    // One that is killed uses nothing any more.
    let mut second = second;
    second.0.kill().unwrap();
    second.0.wait().unwrap();
    assert_eq!(all.call("move 7 1"), "ok");
    assert_eq!(all.call("list 7"), listed(1).replace("state 2", "state 1"));
    let mut late = all.command("pair 7").stderr(Stdio::null()).spawn().map(Running).unwrap();
    let mut line = String::new();
    BufReader::new(late.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "EINVAL", "it is not ONLINE");
    assert_eq!(all.call("move 7 0"), "ok");
    assert_eq!(all.call("list 7"), "state 0:");
}

/// A process that is stopped may use the profile when it goes on.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn a_process_that_does_not_reply_counts_as_a_user() {
    let Some(all) = Controller::new("stopped", 2) else { return };
    assert_eq!(all.call("set 8 22110 22111"), "ok");
    let program = all.start("pair 0", "", "running");
    let signal = |name: &str| {
        let pid = program.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    assert_eq!(all.call("move 8 1"), "EBUSY");
    assert_eq!(all.call("list 8"), format!("state 2: 22110/1={0} 22111/2={0}", 1_u32 << 31));
    signal("-CONT");
    all.becomes("move 8 1", "ok");
    assert_eq!(end(program), Some(0));
}

#[test]
fn events_of_one_process_reach_another() {
    let Some(all) = Controller::new("events", 3) else { return };
    assert_eq!(all.call("set 9 22120 22121 22122 22123"), "ok");
    let watcher = all.start("watch 9", "", "watching");
    let program = all.start("pair 9", "loss=30%,ev=22120,port=0", "running");
    let (code, said) = watcher.end();
    assert_eq!((code, said.trim()), (Some(0), "ok"));
    all.becomes("list 9", "state 2: 22120/1=2 22121/2=1 22122/1=1 22123/2=1");
    assert_eq!(end(program), Some(0));
}

#[test]
fn ports_are_disabled_for_programs_that_run() {
    let Some(all) = Controller::new("ports", 4) else { return };
    let program = all.start("pair 0", "", "running");
    assert_eq!(all.call("port 2 0"), "ok");
    let later = all.start("pair 0", "", "running");
    assert_eq!(all.call("port 2 1"), "ok");
    assert_eq!(all.call("port 3 0"), "EINVAL");
    assert_eq!([end(program), end(later)], [Some(0); 2]);
}

/// The usual folder is for those who may administer networks.
#[test]
fn a_controller_needs_the_privilege() {
    let Some(all) = Controller::new("privilege", 5) else { return };
    let mut command = all.command("drop");
    command.env_remove("SPINDRIFT_DEVICE_DIR");
    let (code, said) = Running::start(&mut command).end();
    assert_eq!(code, Some(0));
    assert!(said.starts_with("EPERM\n") && said.contains("lacks CAP_NET_ADMIN"), "{said}");
}
