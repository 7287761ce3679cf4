//! Limit of the memory that a client's run may use on the server: the given one, or a quarter of the available memory.

use std::fs;
use std::path::{Path, PathBuf};

use spindrift::verbs::{QpConfig, RecvWr, Wc};

use crate::bench::layout::Layout;
use crate::bench::options::Settings;
use crate::config::FallbackName;

/// Part of the available memory that a client may take where nobody says.
const SHARE: u64 = 4;
/// Memory of an idle queue pair, in bytes: measured 5.5 KiB, rounded up.
const QP_BYTES: u64 = 16 << 10;
/// Memory of each PSN of a receive window while packets arrive out of order.
const PSN_BYTES: u64 = 80;
const MIB: u64 = 1 << 20;
/// PSNs of one unit of the window.
const PSNS_OF_UNIT: u64 = 128;

/// What a server takes for a run in these settings, which are the plan's: source, target, queue pairs and completion queues.
pub(super) fn needed(settings: &Settings, layouts: &[Layout]) -> u64 {
    let region = layouts.iter().map(|layout| layout.memory() as u64).max().unwrap_or_default();
    let window = u64::from(settings.config.transport.mpr.unwrap_or(QpConfig::default().mpr));
    let receives = u64::from(settings.receives());
    let completions = u64::from(settings.tx_depth) + receives;
    let requests = completions * size_of::<Wc>() as u64 + receives * size_of::<RecvWr>() as u64;
    let of_qp = QP_BYTES + window * PSNS_OF_UNIT * PSN_BYTES + requests;
    // Each has one more on the second NIC.
    let nics = if settings.fallback == FallbackName::Shift { 2 } else { 1 };
    2 * region + nics * settings.qps as u64 * of_qp
}

/// The most that a plan may take, and where that comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    bytes: u64,
    /// Why it is this many.
    origin: &'static str,
}

impl Bound {
    /// What was `set`, or a share of the available memory; nothing where that cannot be told.
    pub(super) fn new(set: Option<u64>) -> Option<Self> {
        if let Some(bytes) = set {
            return Some(Self { bytes, origin: "the limit set there" });
        }
        let bytes = available(Path::new("/"))? / SHARE;
        Some(Self { bytes, origin: "a quarter of its available memory" })
    }

    /// Refuses a plan that needs more.
    pub(super) fn check(&self, needed: u64) -> Result<(), String> {
        if needed <= self.bytes {
            return Ok(());
        }
        let (needed, bytes) = (needed.div_ceil(MIB), self.bytes / MIB);
        Err(format!(
            "the run needs {needed} MiB of memory on the server, more than {bytes} MiB, {}; use a smaller size, fewer queue pairs or a smaller tx depth, or start the server with --max-memory {needed}M",
            self.origin
        ))
    }
}

/// Bytes that a process can take before it is out of memory: of the machine, or of a control group that has less.
fn available(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = meminfo.as_deref().and_then(available_of_machine);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().flat_map(|line| left_of_groups(root, line));
    machine.into_iter().chain(left).min()
}

fn available_of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// Names of a hierarchy's files: the limit, the use, and the line of `memory.stat` with the part of the use that is given back.
struct Names {
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

const V1: Names =
    Names { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file " };
const V2: Names = Names { limit: "memory.max", used: "memory.current", cache: "inactive_file " };

/// What is left of the group on a line of `/proc/self/cgroup` and of the groups around it.
fn left_of_groups(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let base = root.join("sys/fs/cgroup");
    let (mounts, names): (Vec<PathBuf>, _) = match controllers {
        "" => (vec![base.join("unified"), base], V2),
        _ if controllers.split(',').any(|name| name == "memory") => (vec![base.join("memory")], V1),
        _ => return Vec::new(),
    };
    // In a container the path may be the host's: then the mount itself is the container's group.
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    let folders = groups.flat_map(|group| mounts.iter().map(move |mount| mount.join(group)));
    folders.filter_map(|folder| left_of_group(&folder, &names)).collect()
}

/// What is left of one group, if it has a limit.
fn left_of_group(folder: &Path, names: &Names) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number(names.limit)?, number(names.used)?);
    let stat = read("memory.stat").unwrap_or_default();
    let cache = stat.lines().find_map(|line| line.strip_prefix(names.cache)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or_default())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// What is available on a machine with these files: a path and a text on each line, in which `;` ends lines.
    fn machine(name: &str, files: &str) -> Option<u64> {
        let root = std::env::temp_dir().join(format!("spindrift-memory-{}-{name}", std::process::id()));
        for line in files.lines() {
            let (path, text) = line.trim().split_once(' ').unwrap();
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace(';', "\n")).unwrap();
        }
        let found = available(&root);
        let _ = fs::remove_dir_all(&root);
        found
    }

    #[test]
    fn a_control_group_may_have_less_than_the_machine() {
        let meminfo = "proc/meminfo MemTotal:       99 kB;MemFree:   7 kB;MemAvailable:    4096 kB;";
        let v2 = "proc/self/cgroup 0::/a/b;";
        let v1 = "proc/self/cgroup 9:name=systemd:/x;4:cpu,memory:/a/b;0::/;";
        let cases = [
            ("machine", v2, "proc/other x", 4 << 20),
            ("no-limit", v2, "sys/fs/cgroup/a/b/memory.max max;", 4 << 20),
            (
                "own",
                v2,
                "sys/fs/cgroup/a/b/memory.max 3000;
                sys/fs/cgroup/a/b/memory.current 1800;
                sys/fs/cgroup/a/b/memory.stat anon 7;inactive_file 300;active_file 9;",
                1500,
            ),
            (
                "outer",
                v2,
                "sys/fs/cgroup/a/b/memory.max 3000;
                sys/fs/cgroup/a/b/memory.current 0;
                sys/fs/cgroup/a/memory.max 2000;
                sys/fs/cgroup/a/memory.current 100;",
                1900,
            ),
            ("container", v2, "sys/fs/cgroup/memory.max 3000;\nsys/fs/cgroup/memory.current 5000;", 0),
            (
                "hybrid",
                v2,
                "sys/fs/cgroup/unified/a/memory.max 3000;\nsys/fs/cgroup/unified/a/memory.current 1000;",
                2000,
            ),
            (
                "v1",
                v1,
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes 9000;
                sys/fs/cgroup/memory/a/b/memory.usage_in_bytes 5000;
                sys/fs/cgroup/memory/a/b/memory.stat inactive_file 1;total_inactive_file 500;",
                4500,
            ),
            // As the kernel writes that there is none.
            (
                "v1-no-limit",
                v1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712;
                sys/fs/cgroup/memory/memory.usage_in_bytes 5000;",
                4 << 20,
            ),
        ];
        for (name, groups, files, expected) in cases {
            assert_eq!(machine(name, &[meminfo, groups, files].join("\n")), Some(expected), "{name}");
        }
        assert_eq!(machine("nothing", "proc/other x"), None);
    }

    #[test]
    fn a_second_nic_has_queue_pairs_of_its_own() {
        let settings = Settings { qps: 7, ..Settings::of_test(crate::driver::UDP) };
        let one = needed(&settings, &[]);
        let two = needed(&Settings { fallback: FallbackName::Shift, ..settings }, &[]);
        assert!(one > 7 * QP_BYTES && two == 2 * one, "{one} {two}");
    }

    #[test]
    fn a_refusal_names_the_need_the_bound_and_the_option() {
        let bound = Bound::new(Some(1 << 20)).unwrap();
        assert_eq!(bound.check(1 << 20), Ok(()));
        let refused = bound.check((1 << 20) + 1).unwrap_err();
        for part in ["needs 2 MiB of memory", "more than 1 MiB, the limit set there;", "with --max-memory 2M"]
        {
            assert!(refused.contains(part), "{refused}");
        }
        // This machine's.
        let usual = Bound::new(None).unwrap();
        assert!(usual.bytes > 0 && usual.check(u64::MAX).unwrap_err().contains("a quarter of"), "{usual:?}");
    }
}
