//! What the processes of a run have moved. Each one writes a file per device into the folder that [`FOLDER`] names: once a second while
//! something changes, and when it ends.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The environment variable with the folder of the reports. Without it no process writes any.
pub const FOLDER: &str = "SPINDRIFT_REPORTS";

/// How files end that are complete.
const ENDING: &str = ".json";

/// One device in one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// The process.
    pub pid: u32,
    /// The name of its program.
    pub program: String,
    /// The device.
    pub device: String,
    /// The process has ended in order. If not, it was killed, or it runs.
    pub ended: bool,
    /// Its queue pairs.
    pub queue_pairs: QueuePairs,
    /// Its datagrams.
    pub datagrams: Datagrams,
    /// Its planes, in order.
    pub planes: Vec<PlaneReport>,
    /// The counters of the transport that are not 0, by name: those of [`spindrift::counters::Counters`].
    pub counters: BTreeMap<String, u64>,
}

/// How many queue pairs a process has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairs {
    /// Made, those of datagrams included.
    pub created: u64,
    /// Connected to a peer.
    pub connected: u64,
    /// Failed: what a program itself puts into ERROR is none of them.
    pub failed: u64,
    /// How often one moved to the planes that stand by.
    #[serde(default)]
    pub failovers: u64,
    /// How often one moved back.
    #[serde(default)]
    pub failbacks: u64,
}

/// How many datagrams (UD) a process has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    /// Given to the system.
    pub sent: u64,
    /// Taken by a receive.
    pub received: u64,
    /// Dropped for want of a receive, or for another reason of UD.
    pub dropped: u64,
}

/// One plane of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneReport {
    /// Its address.
    pub address: IpAddr,
    /// Whether its link was up at last.
    pub is_up: bool,
    /// Frames sent and received.
    pub tx_frames: u64,
    /// See above.
    pub rx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// See above.
    pub rx_bytes: u64,
}

impl ProcessReport {
    /// Writes the report, in place of an older one of the same process and device.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let name = format!("{}.{}{ENDING}", self.pid, self.device);
        let (part, whole) = (folder.join(format!("{name}.part")), folder.join(&name));
        fs::write(&part, serde_json::to_vec(self)?)?;
        // A reader sees all of a report, or none.
        fs::rename(part, whole)
    }

    /// Whether a process has written a report into a folder.
    pub fn exists(folder: &Path, pid: u32) -> bool {
        let start = format!("{pid}.");
        let mut names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_str().is_some_and(|name| name.starts_with(&start) && name.ends_with(ENDING)))
    }

    /// All reports of a folder, by process and device.
    ///
    /// # Errors
    /// Those of the file system, and a file that is no report.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Self>> {
        let mut reports: Vec<Self> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(ENDING) {
                reports.push(serde_json::from_slice(&fs::read(path)?)?);
            }
        }
        reports.sort_by(|a, b| (a.pid, &a.device).cmp(&(b.pid, &b.device)));
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn reports_are_read_as_they_were_written() {
        let folder = std::env::temp_dir().join(format!("spindrift-reports-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let plane = PlaneReport {
            address: "10.0.0.1".parse().unwrap(),
            is_up: true,
            tx_frames: 1,
            rx_frames: 2,
            tx_bytes: 3,
            rx_bytes: 4,
        };
        let of = |pid, sent| ProcessReport {
            pid,
            device: "spindrift0".to_owned(),
            datagrams: Datagrams { sent, ..Datagrams::default() },
            planes: vec![plane.clone()],
            counters: BTreeMap::from([("tx_data".to_owned(), 7)]),
            ..ProcessReport::default()
        };
        for (pid, sent) in [(20, 1), (3, 5), (20, 2)] {
            of(pid, sent).write(&folder).unwrap();
        }
        fs::write(folder.join("9.spindrift0.json.part"), "{").unwrap();
        assert_eq!(ProcessReport::read_all(&folder).unwrap(), [of(3, 5), of(20, 2)]);
        // Neither a part of a report, nor a part of a number.
        let seen = [2, 3, 9, 20].map(|pid| ProcessReport::exists(&folder, pid));
        assert_eq!(seen, [false, true, false, true]);
        fs::write(folder.join("9.spindrift0.json"), "{").unwrap();
        assert!(ProcessReport::read_all(&folder).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
