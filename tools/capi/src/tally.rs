//! What a device in use has moved, for `spindrift run`: written to a file of each process, if the environment names a folder for that.

use core::sync::atomic::{AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use spindrift::pmd::LinkState;
use spindrift_programs::report::{Datagrams, FOLDER, PlaneReport, ProcessReport, QueuePairs};

use crate::nic::{Nic, program_name};

/// Counts of this library, beside those of the transport.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) created: AtomicU64,
    pub(crate) connected: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) failovers: AtomicU64,
    pub(crate) failbacks: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// Datagrams that no receive has taken.
    pub(crate) dropped: AtomicU64,
}

/// Adds one to a count.
pub(crate) fn count(of: &AtomicU64) {
    of.fetch_add(1, Ordering::Relaxed);
}

/// Writes the reports of a device.
#[derive(Debug)]
pub(crate) struct Reporter {
    folder: PathBuf,
    device: String,
    last: Mutex<ProcessReport>,
}

/// The devices that have something to do when the process ends.
static ENDING: Mutex<Vec<Weak<Nic>>> = Mutex::new(Vec::new());

impl Reporter {
    /// `None`: nobody wants reports.
    pub(crate) fn of(device: &str) -> Option<Self> {
        let folder = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty())?;
        Some(Self { folder: folder.into(), device: device.to_owned(), last: Mutex::default() })
    }

    /// Writes what has changed since the last report.
    pub(crate) fn write(&self, nic: &Nic, ended: bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // The last report is the one at the end.
        if last.ended {
            return;
        }
        let report = self.report(nic, ended);
        // A folder that is gone is nobody's loss.
        if report != *last && report.write(Path::new(&self.folder)).is_ok() {
            *last = report;
        }
    }

    fn report(&self, nic: &Nic, ended: bool) -> ProcessReport {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let tally = &nic.tally;
        let planes = nic.verbs.query_ports().into_iter().map(|port| PlaneReport {
            address: port.ip,
            is_up: port.link == LinkState::Up,
            tx_frames: port.counters.tx_frames,
            rx_frames: port.counters.rx_frames,
            tx_bytes: port.counters.tx_bytes,
            rx_bytes: port.counters.rx_bytes,
        });
        let counters = nic.verbs.counters();
        ProcessReport {
            pid: nic.pid,
            program: program_name(),
            device: self.device.clone(),
            ended,
            queue_pairs: QueuePairs {
                created: of(&tally.created),
                connected: of(&tally.connected),
                failed: of(&tally.failed),
                failovers: of(&tally.failovers),
                failbacks: of(&tally.failbacks),
            },
            datagrams: Datagrams {
                sent: of(&tally.sent),
                received: of(&tally.received),
                dropped: of(&tally.dropped),
            },
            planes: planes.collect(),
            counters: counters
                .iter()
                .filter(|(.., value)| *value > 0)
                .map(|(name, _, value)| (name.to_owned(), value))
                .collect(),
        }
    }
}

/// Sees that a device reports when the process ends, and leaves no socket behind.
pub(crate) fn end_with_process(nic: &Arc<Nic>) {
    extern "C" fn at_exit() {
        // A panic does not pass into C.
        let _ = std::panic::catch_unwind(|| {
            let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for nic in ending.iter().filter_map(Weak::upgrade) {
                // The child of a fork ends for itself.
                if nic.pid == std::process::id() {
                    nic.report(true);
                    nic.remove_socket();
                }
            }
        });
    }

    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    ending.retain(|nic| nic.strong_count() > 0);
    if ending.is_empty() {
        // SAFETY: the function stays, as the library is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
    ending.push(Arc::downgrade(nic));
}
