//! The examples run, and do what their first lines say.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Beside the folder of the tests. `cargo test` builds examples, unless it is told which tests to build.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let path: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --profile test --examples", path.display());
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(name: &str, arguments: &[&str]) -> Output {
    example(name).args(arguments).output().unwrap()
}

#[test]
fn a_client_writes_into_a_servers_memory() {
    let output = run("write", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("bytes verified: true"), "{}", text(&output.stdout));
}

/// A training job of three ranks on loopback addresses that only this job has.
struct Job {
    number: u8,
    port: String,
}

impl Job {
    fn new(number: u8) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { number, port: port.to_string() }
    }

    fn start(&self, options: &[&str]) -> Vec<Child> {
        let address = |rank: u8, nic: u8| format!("127.{}.{rank}.{nic}", self.number);
        let hosts: Vec<_> = (1..=3).map(|rank| address(rank, 1)).collect();
        let rank = |rank: u8| {
            let [first, second] = [1, 3].map(|nic| [address(rank, nic), address(rank, nic + 1)].join(","));
            let mut command = example("training");
            command.args(["--port", &self.port, "--nic", &first, "--second", &second]).args(options);
            command.arg((rank - 1).to_string()).args(&hosts).spawn().unwrap()
        };
        (1..=3).map(rank).collect()
    }

    /// The weights at the end, of which all ranks have the same, and the lines of the steps.
    fn run(&self, options: &[&str]) -> (String, Vec<String>) {
        let outputs: Vec<_> =
            self.start(options).into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
        let ends = outputs.iter().map(|output| {
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout).lines().last().unwrap().to_owned()
        });
        let mut ends: Vec<_> = ends.collect();
        ends.dedup();
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert!(ends[0].starts_with("weights "), "{ends:?}");
        let steps = text(&outputs[0].stdout);
        let steps = steps.lines().filter(|line| !line.starts_with("weights")).map(str::to_owned);
        (ends.remove(0), steps.collect())
    }
}

/// In each mode, and after a restart from a checkpoint, the job comes to the same weights.
#[test]
fn a_training_job_comes_to_the_same_weights_in_each_mode() {
    let [one, seamless, shift] =
        ["one", "seamless", "shift"].map(|mode| Job::new(91).run(&["--steps", "24", "--mode", mode]));
    assert_eq!(one.1.len(), 24);
    assert_eq!((&one.0, &one.0), (&seamless.0, &shift.0));

    let folder = std::env::temp_dir().join(format!("spindrift-training-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("job");
    let checkpoint = ["--checkpoint", file.to_str().unwrap(), "--every", "6"];
    let part = |steps: &str| Job::new(91).run(&[&checkpoint[..], &["--steps", steps]].concat());
    let (early, steps) = part("14");
    assert_eq!(steps.len(), 14);
    assert_ne!(early, one.0);
    let (late, steps) = part("24");
    // It goes on behind the checkpoint of step 12.
    assert_eq!((late, steps.len()), (one.0, 12));
    // Two checkpoints of each rank are kept.
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 6);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_rank_that_is_killed_ends_the_others() {
    for mode in ["seamless", "shift"] {
        let mut ranks = Job::new(92).start(&["--steps", "1000000", "--mode", mode]);
        // Rank 0 has made a step.
        let mut first = [0];
        std::io::Read::read_exact(ranks[0].stdout.as_mut().unwrap(), &mut first).unwrap();
        // Nobody reads the rest.
        drop(ranks[0].stdout.take());
        ranks[1].kill().unwrap();
        for rank in ranks {
            let output = rank.wait_with_output().unwrap();
            assert!(!output.status.success(), "{mode}");
        }
    }
}

#[test]
fn bad_arguments_of_a_training_job_are_named() {
    for (arguments, part) in [
        ("", "give the rank"),
        ("x 127.0.0.1 127.0.0.2", "rank x"),
        ("2 127.0.0.1 127.0.0.2", "rank 2 of 2 hosts"),
        ("0 127.0.0.1", "two hosts or more"),
        ("0 127.0.0.1 127.0.0.2", "--nic"),
        ("--nic 127.0.0.1 --mode shift 0 127.0.0.1 127.0.0.2", "--second"),
        ("--mode soft 0 127.0.0.1 127.0.0.2", "--mode soft"),
        ("--steps few", "--steps few"),
        ("--every 0 --nic 127.0.0.1 0 127.0.0.1 127.0.0.2", "--every 0"),
        ("--colour red", "--colour"),
        ("--nic", "--nic: a value is missing"),
        ("--nic here 0 127.0.0.1 127.0.0.2", "here"),
    ] {
        let arguments: Vec<_> = arguments.split(' ').filter(|word| !word.is_empty()).collect();
        let output = run("training", &arguments);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(part), "{arguments:?}: {}", text(&output.stderr));
    }
}
