//! Programs on two hosts: network namespaces with links between them. They need root and iproute2.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use spindrift_pmd::testing::Hosts;
use spindrift_programs::report::{FOLDER, ProcessReport};
use support::{Library, PATIENCE, Running};

/// A link that stays, for what programs tell each other by TCP: the first one.
const OF_PROGRAMS: usize = 0;

/// Two hosts with planes 1, 2, .. beside the first link.
struct World {
    hosts: Hosts,
    files: Library,
    planes: usize,
    reports: PathBuf,
}

impl World {
    fn new(test: &str, planes: usize) -> Option<Self> {
        let Some(hosts) = Hosts::new(test, planes + 1) else {
            eprintln!("SKIPPED: network namespaces need root and iproute2");
            return None;
        };
        for (side, n) in (0..2).flat_map(|side| (0..=planes).map(move |n| (side, n))) {
            hosts.ip(side, &format!("address add 10.0.{n}.{}/24 dev n{n}", side + 1));
        }
        let reports = std::env::temp_dir().join(format!("spindrift-hosts-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&reports).unwrap();
        Some(Self { hosts, files: Library::new(), planes, reports })
    }

    /// A program on one side. The last `standby` planes are those of a second NIC. `None`: the machine does not have the program.
    fn program(&self, side: usize, standby: usize, name: &str, args: &str) -> Option<Command> {
        let found = self.files.program(name, "", args)?;
        let address = |n: usize| format!("10.0.{n}.{}", side + 1);
        let (first, second): (Vec<_>, Vec<_>) =
            (1..=self.planes).partition(|plane| *plane <= self.planes - standby);
        let text = |planes: Vec<usize>| planes.into_iter().map(address).collect::<Vec<_>>().join(",");
        let planes = if standby > 0 { format!("{}+{}", text(first), text(second)) } else { text(first) };
        let mut command = self.hosts.command(side, found.get_program().to_str().unwrap());
        command.args(found.get_args()).env(FOLDER, &self.reports).env("SPINDRIFT_PLANES", planes);
        let variables = found.get_envs().filter(|(name, _)| *name != "SPINDRIFT_PLANES");
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        Some(command)
    }

    /// Runs a server and a client, and something else in between. Returns what both have reported.
    fn run(
        &self,
        standby: usize,
        name: &str,
        args: &str,
        mut meanwhile: Option<&dyn Fn()>,
    ) -> Option<Vec<ProcessReport>> {
        let server = Running::start(&mut self.program(1, standby, name, args)?);
        let address = format!("10.0.{OF_PROGRAMS}.2");
        let mut tries = 0;
        loop {
            let args = format!("{args} {address}");
            let client = Running::start(&mut self.program(0, standby, name, &args)?);
            self.wait_for_traffic(&client, &mut meanwhile);
            let (code, said) = client.end();
            tries += 1;
            if code == Some(0) {
                let (code, told) = server.end();
                assert_eq!(code, Some(0), "{name} {args}, the server: {told}");
                break;
            }
            // The client of these programs tries once: the server has to listen.
            assert!(said.contains("onnect") && tries < 200, "{name} {args}: {code:?} {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(meanwhile.is_none(), "{name} {args}: no packet of it was seen");
        let reports = ProcessReport::read_all(&self.reports).unwrap();
        for report in &reports {
            std::fs::remove_file(self.reports.join(format!("{}.{}.json", report.pid, report.device)))
                .unwrap();
        }
        Some(reports.into_iter().filter(|report| report.queue_pairs.connected > 0).collect())
    }

    /// Calls `meanwhile` once the first plane carries traffic.
    fn wait_for_traffic(&self, client: &Running, meanwhile: &mut Option<&dyn Fn()>) {
        let carried = || self.hosts.sent(0, "n1") + self.hosts.sent(1, "n1");
        let before = carried();
        let began = std::time::Instant::now();
        while meanwhile.is_some() && client.is_running() && began.elapsed() < PATIENCE {
            if carried() > before + 1_000_000
                && let Some(meanwhile) = meanwhile.take()
            {
                meanwhile();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.reports);
    }
}

#[test]
fn one_plane_and_four() {
    for planes in [1, 4] {
        let Some(world) = World::new(&format!("planes{planes}"), planes) else { return };
        for (name, args) in
            [("ib_write_bw", "-n 200 -u 20"), ("ib_read_bw", "-n 100 -u 20"), ("ib_send_bw", "-n 100 -u 20")]
        {
            let Some(reports) = world.run(0, name, args, None) else { return };
            assert_eq!(reports.len(), 2, "{name}");
            for report in reports {
                assert!(report.ended && report.queue_pairs.failed == 0, "{name}: {report:?}");
                assert!(report.planes.iter().all(|plane| plane.rx_frames > 0), "{name}: {report:?}");
                assert_eq!(report.planes.len(), planes);
            }
        }
    }
}

/// The links of the first NIC go down while the program runs, and come back, or do not.
#[test]
fn a_nic_dies_under_a_program() {
    let Some(world) = World::new("dies", 3) else { return };
    for (name, comes_back) in [("ib_write_bw", false), ("ib_read_bw", true)] {
        let set = |state: &str| {
            for plane in [1, 2] {
                world.hosts.ip(0, &format!("link set n{plane} {state}"));
            }
        };
        let die = || {
            set("down");
            if comes_back {
                std::thread::sleep(Duration::from_millis(500));
                set("up");
            }
        };
        let reports = world.run(1, name, "-D 3 -u 20", Some(&die));
        set("up");
        let Some(reports) = reports else { return };
        assert_eq!(reports.len(), 2, "{name}");
        for report in &reports {
            assert!(report.ended && report.queue_pairs.failed == 0, "{name}: {report:?}");
            assert!(report.planes[2].rx_frames > 0, "{name}: {report:?}");
        }
        let moved: u64 = reports.iter().map(|report| report.queue_pairs.failovers).sum();
        assert!(moved > 0, "{name}: {reports:?}");
    }
}

/// Messages of the handshake are lost, and those of datagrams. The data comes through.
#[test]
fn handshakes_may_be_lost() {
    let Some(world) = World::new("losses", 2) else { return };
    for side in 0..2 {
        let rules = "add table ip faults; \
                     add chain ip faults out { type filter hook output priority 0; }; \
                     add rule ip faults out udp dport 24971-27018 numgen random mod 100 < 40 counter drop";
        let Ok(made) = world.hosts.command(side, "nft").arg(rules).output() else { return };
        if !made.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&made.stderr));
            return;
        }
    }
    for args in ["-n 50 -q 8 -u 20", "-n 50 -q 3 -u 20 -b"] {
        let Some(reports) = world.run(0, "ib_write_bw", args, None) else { return };
        assert!(reports.iter().all(|report| report.queue_pairs.failed == 0), "{args}: {reports:?}");
        let told = world.hosts.command(0, "nft").args(["list", "table", "ip", "faults"]).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("counter packets") && !told.contains("packets 0 "), "nothing was lost: {told}");
    }
}
