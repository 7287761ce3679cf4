//! `spindrift lab fault` and `spindrift lab heal` as commands: what ends by itself, on Ctrl-C and by a schedule; several at once; what fails
//! and what is wrong. Needs root, `ip`, `tc`, `nft` and network namespaces; without them the tests say so and pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use support::lab::{KINDS, Lab, PATIENCE, config};
use support::{Running, end_of, stderr, stdout};

/// A command that runs on, and its lines.
fn start(lab: &Lab, args: &[&str]) -> (Running, Box<dyn Iterator<Item = String>>) {
    let mut command = lab.command(&[&["fault"], args].concat());
    let mut process = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let lines = BufReader::new(process.child().stdout.take().unwrap()).lines().map(Result::unwrap);
    (process, Box::new(lines))
}

fn interrupt(process: &mut Running) {
    signal(process, "-INT");
}

fn signal(process: &mut Running, name: &str) {
    assert!(Command::new("kill").args([name, &process.id().to_string()]).status().unwrap().success());
}

#[test]
fn faults_end_by_themselves() {
    let Some(lab) = Lab::new("timed") else { return };
    lab.up("one-plane.toml");
    let out = lab.ok(&["fault", "h1:p0-t0-0", "down", "--for", "100ms", "--every", "200ms", "--times", "2"]);
    let lines: Vec<_> = out.lines().map(|line| line.split_once(" s  ").unwrap()).collect();
    let what: Vec<_> = lines.iter().map(|(_, what)| *what).collect();
    assert_eq!(
        what,
        ["h1:p0-t0-0: down", "h1:p0-t0-0: down ends", "h1:p0-t0-0: down", "h1:p0-t0-0: down ends"]
    );
    let times: Vec<f64> = lines.iter().map(|(time, _)| time.trim().parse().unwrap()).collect();
    let due = [0.0, 0.1, 0.2, 0.3];
    assert!(times.iter().zip(due).all(|(time, due)| *time >= due), "{times:?}");
    assert_eq!((lab.named(), lab.down()), (vec![], vec![]));

    // What is there besides stays: faults add up, and each ends by itself.
    lab.ok(&["fault", "h1:p0-t0-0", "down"]);
    lab.ok(&["fault", "h1:p0-t0-0", "down", "--for", "50ms"]);
    assert_eq!(
        (lab.named(), lab.down()),
        (vec!["h1:p0-t0-0 down".to_owned()], vec!["h1:p0-t0-0".to_owned()])
    );
    lab.ok(&["heal"]);
    assert_eq!(lab.down(), [""; 0]);

    // Ctrl-C ends it, and so does a terminal that is closed.
    lab.ok(&["fault", "h2:p0-t0-0", "loss=1%"]);
    for name in support::ending_signals() {
        let (mut child, mut lines) = start(&lab, &["h2:p0-t0-0", "blackhole", "--for", "1h"]);
        assert!(lines.next().unwrap().ends_with(" s  h2:p0-t0-0: blackhole"));
        assert_eq!(lab.named(), ["h2:p0-t0-0 loss=1%", "h2:p0-t0-0 blackhole"]);
        signal(&mut child, name);
        let output = end_of(child, PATIENCE, "fault");
        assert_eq!((stderr(&output).as_str(), output.status.code()), ("spindrift: interrupted\n", Some(130)));
        assert_eq!(lab.named(), ["h2:p0-t0-0 loss=1%"]);
    }

    // Of one that is killed, `heal` ends what is left.
    let (mut child, mut lines) = start(&lab, &["p0-t0-0", "down", "--for", "1h"]);
    assert!(lines.next().is_some());
    child.child().kill().unwrap();
    assert!(!end_of(child, PATIENCE, "fault").status.success());
    assert_eq!(lab.down(), ["h1:p0-t0-0", "h2:p0-t0-0"]);
    assert_eq!(lab.ok(&["heal"]), "2 links healed\n");
    assert_eq!((lab.down(), lab.named()), (vec![], vec![]));
}

#[test]
fn schedules_are_played() {
    let Some(lab) = Lab::new("schedule") else { return };
    lab.up("two-plane.toml");
    let file = support::temp("schedule.toml");
    let schedule = |text: &str| fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    schedule(
        "[[fault]]\nat = '100ms'\nwhere = 'h1:p0-t0-0'\naction = 'down'\nfor = '100ms'\n\
         [[fault]]\nwhere = 'p1-t1-3'\naction = 'loss=5%'\nfor = '50ms'\nevery = '100ms'\ntimes = 2\n\
         [[fault]]\nat = '150ms'\nwhere = 'h2'\naction = 'rate=1G,dir=up'\nfor = '50ms'\n",
    );
    let out = lab.ok(&["fault", "--schedule", file]);
    let what: Vec<_> = out.lines().map(|line| line.split_once(" s  ").unwrap().1).collect();
    assert_eq!(
        what,
        [
            "p1-t1-3: loss=5%",
            "p1-t1-3: loss=5% ends",
            "h1:p0-t0-0: down",
            "p1-t1-3: loss=5%",
            "p1-t1-3: loss=5% ends",
            "h2: rate=1Gbit,dir=up",
            "h1:p0-t0-0: down ends",
            "h2: rate=1Gbit,dir=up ends",
        ]
    );
    assert_eq!((lab.named(), lab.down()), (vec![], vec![]));
    // What has no end of its own ends with the command.
    schedule("[[fault]]\nwhere = 'h1:p0-t0-0'\naction = 'ecn=1%'\n");
    let (mut child, mut lines) = start(&lab, &["--schedule", file]);
    assert!(lines.next().unwrap().ends_with("h1:p0-t0-0: ecn=1%"));
    assert_eq!(lab.named(), ["h1:p0-t0-0 ecn=1%"]);
    interrupt(&mut child);
    assert_eq!(end_of(child, PATIENCE, "schedule").status.code(), Some(130));
    assert_eq!(lab.named(), [""; 0]);
    // The one that is given begins well.
    let (mut child, mut lines) = start(&lab, &["--schedule", &config("../schedules/two-plane.toml")]);
    assert!(lines.next().unwrap().ends_with("h1:p0-t0-0: down"));
    interrupt(&mut child);
    assert_eq!(end_of(child, PATIENCE, "schedule").status.code(), Some(130));
    assert_eq!(lab.down(), [""; 0]);
    // What is wrong in one is named with its place.
    for (text, parts) in [
        ("", &["no [[fault]]"] as &[_]),
        ("[[fault]]\naction = 'down'\n", &["line 1", "`where` is missing"]),
        ("[[fault]]\nwhere = 'h1'\n", &["line 1", "`action` is missing"]),
        ("[[fault]]\nwhere = 'h1'\naction = 'up'\n", &["line 3, column 10", "fault.0.action", "`up`"]),
        ("[[fault]]\naction = 'down'\nwhere = 'h9'\n", &["line 3, column 9", "no node \"h9\""]),
        ("[[fault]]\naction = 'down'\nwhere = 'h1'\nat = 'soon'\n", &["line 4", "`soon` is not a duration"]),
        ("[[fault]]\naction = 'down'\nwhere = 'h1'\ntimes = 2\n", &["line 4", "`every`"]),
        ("[[fault]]\naction = 'down'\nwhere = 'h1'\nevery = '1s'\n", &["line 4", "`for`"]),
        ("[[fault]]\naction = 'down'\nwhere = 'h1'\ntimes = -1\n", &["line 4", "-1"]),
        ("[[fault]]\naction = 'down'\nwhere = 'h1'\nlong = '1s'\n", &["line 4", "long"]),
    ] {
        schedule(text);
        lab.wrong(&["fault", "--schedule", file], 2, &[&[file] as &[_], parts].concat());
    }
    lab.wrong(&["fault", "--schedule", "/no/such.toml"], 2, &["cannot read the schedule /no/such.toml"]);
}

#[test]
fn commands_at_the_same_time_do_not_lose_each_others_faults() {
    for lab in Lab::each("race", &KINDS[..2]) {
        lab.up("two-plane.toml");
        let places = [
            "p0-t0-0:p0-t1-0",
            "p0-t0-0:p0-t1-1",
            "p0-t0-0:p0-t1-2",
            "p0-t0-0:p0-t1-3",
            "h1:p0-t0-0",
            "h2:p0-t0-0",
        ];
        let started: Vec<_> = places.iter().map(|place| start(&lab, &[place, "loss=1%"])).collect();
        for (child, _lines) in started {
            assert!(end_of(child, PATIENCE, "fault").status.success());
        }
        assert_eq!(lab.named().len(), places.len());
        let rules = lab.ok(&["exec", "p0-t0-0", "--", "nft", "list", "ruleset"]);
        assert_eq!(rules.matches(" drop").count(), 4 + 2 + 2, "{rules}");
        lab.ok(&["heal", "p0-t0-0"]);
        assert_eq!(lab.ok(&["exec", "p0-t0-0", "--", "nft", "list", "ruleset"]), "");
    }
}

#[test]
fn what_cannot_be_brought_about_is_not_there() {
    let Some(lab) = Lab::new("fails") else { return };
    lab.up("one-plane.toml");
    lab.ok(&["fault", "h1:p0-t0-0", "loss=1%"]);
    // Without nft, but with ip.
    let path = support::temp("path");
    fs::create_dir_all(&path).unwrap();
    let ip = Command::new("sh").args(["-c", "command -v ip"]).output().unwrap();
    let _ = std::os::unix::fs::symlink(stdout(&ip).trim(), path.join("ip"));
    let command = |args: &[&str]| {
        let output = lab.command(args).env("PATH", &path).output().unwrap();
        (stderr(&output), output.status.code())
    };
    let (error, status) = command(&["fault", "h2:p0-t0-0", "loss=2%"]);
    assert!(status == Some(1) && error.contains("nft, of nftables") && error.contains("apt-get"), "{error}");
    assert_eq!(lab.named(), ["h1:p0-t0-0 loss=1%"]);
    let (error, status) = command(&["heal"]);
    assert!(status == Some(1) && error.contains("nft, of nftables"), "{error}");
    assert_eq!(lab.named(), ["h1:p0-t0-0 loss=1%"]);
    // A lab that is damaged says so.
    let faults = format!("/run/spindrift/lab/{}/faults.json", lab.name);
    fs::write(&faults, "{").unwrap();
    lab.wrong(&["heal"], 1, &[&faults, "damaged; remove the lab"]);
    fs::remove_file(&faults).unwrap();
    // What is to be ended may not have begun: a process was killed between the two.
    for fault in ["rate=1G", "loss=1%", "down"] {
        lab.ok(&["fault", "p0-t0-0", fault]);
    }
    for undo in ["tc qdisc delete dev down0 root", "nft delete table inet spindrift", "ip link set down1 up"]
    {
        lab.ok(&[&["exec", "p0-t0-0", "--"], &*undo.split(' ').collect::<Vec<_>>()].concat());
    }
    assert_eq!(lab.ok(&["heal"]), "2 links healed\n");
    assert_eq!((lab.named(), lab.down()), (vec![], vec![]));
    // What a program cannot do is told with the command that failed.
    lab.ok(&["exec", "p0-t0-0", "--", "ip", "link", "delete", "down0"]);
    lab.wrong(
        &["fault", "h1:p0-t0-0", "down"],
        1,
        &["ip link set down0 down", "p0-t0-0", "Cannot find device"],
    );
    lab.wrong(
        &["fault", "h1:p0-t0-0", "rate=1M,dir=down"],
        1,
        &["tc qdisc replace dev down0", "p0-t0-0", "Cannot find device"],
    );
}

#[test]
fn wrong_input_is_named() {
    let Some(lab) = Lab::new("wrong") else { return };
    lab.wrong(&["fault", "h1", "down"], 1, &["there is no lab", "spindrift lab up --name"]);
    lab.wrong(&["heal"], 1, &["there is no lab"]);
    lab.up("two-plane.toml");
    for (args, parts) in [
        (&["fault", "h9", "down"] as &[_], &["WHERE h9", "no node \"h9\""] as &[_]),
        (&["fault", "h1:h2", "down"], &["WHERE h1:h2", "not joined"]),
        (&["fault", "h1:p9-t0-0", "down"], &["no node \"p9-t0-0\""]),
        (&["fault", "h1", "loss=200%"], &["ACTION", "loss=200%", "outside"]),
        (&["fault", "h1", "up"], &["`up`", "blackhole"]),
        (&["fault", "h1"], &["ACTION"]),
        (&["fault"], &["WHERE", "--schedule <FILE>"]),
        (&["fault", "h1", "down", "loss=1%"], &["loss=1%"]),
        (
            &["fault", "p0-t1-0", "blackhole,dir=down"],
            &["ACTION blackhole,dir=down", "p0-t1-0 has no link in that direction"],
        ),
        (&["fault", "h1", "down", "--for", "0"], &["--for", "`0` is not a duration"]),
        (&["fault", "h1", "down", "--every", "1s"], &["--for"]),
        (&["fault", "h1", "down", "--for", "1s", "--every", "1s"], &["--every", "cannot repeat every 1s"]),
        (&["fault", "h1", "down", "--for", "1s", "--times", "2"], &["--every"]),
        (&["fault", "h1", "down", "--for", "1s", "--every", "2s", "--times", "0"], &["--times", "1 or more"]),
        (&["fault", "h1", "down", "--schedule", "x"], &["--schedule"]),
        (&["heal", "h9"], &["WHERE h9", "no node"]),
    ] {
        lab.wrong(args, 2, parts);
    }
    assert_eq!(lab.named(), [""; 0]);
    assert_eq!(lab.ok(&["heal"]), "0 links healed\n");
}

#[test]
fn the_picture_shows_faults() {
    let Some(lab) = Lab::new("drawn") else { return };
    lab.up("one-plane.toml");
    lab.ok(&["fault", "h1:p0-t0-0", "down"]);
    lab.ok(&["fault", "h2:p0-t0-0", "loss=1%"]);
    let svg = lab.ok(&["graph"]);
    for title in ["<title>h1:p0-t0-0 (down)</title>", "<title>h2:p0-t0-0 (loss=1%)</title>"] {
        assert!(svg.contains(title), "{svg}");
    }
}
