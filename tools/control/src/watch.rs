//! The counters of all processes with a control socket in some folders.

use std::fmt;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ControlSocketError;
use crate::client::Socket;
use crate::counters::CountersReport;
use crate::dir::ControlDir;
use crate::message::{Reply, Request};

/// Contexts that are asked, at most, so that neither threads nor metrics are without bound.
const CONTEXTS_MAX: usize = 64;
/// Limit for a reply, which is less than what a scrape of Prometheus may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of one look at all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Those that have replied, in ascending order of processes.
    pub contexts: Vec<CountersReport>,
    /// Processes that have not replied in time, one for each of their contexts.
    pub silent: Vec<u32>,
    /// Why nothing is known of others.
    pub errors: Vec<String>,
    /// Contexts that were not asked, since there are too many.
    pub omitted: u64,
}

type Wanted = dyn Fn(u32) -> bool + Send + Sync;

/// Folders of control sockets, and which processes of them are looked at.
pub struct Watch {
    folders: Vec<ControlDir>,
    wanted: Box<Wanted>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("folders", &self.folders).finish_non_exhaustive()
    }
}

impl Watch {
    /// All processes with sockets in these folders.
    pub fn all(folders: Vec<ControlDir>) -> Self {
        Self::only(folders, |_| true)
    }

    /// Those whose numbers are wanted.
    pub fn only(folders: Vec<ControlDir>, wanted: impl Fn(u32) -> bool + Send + Sync + 'static) -> Self {
        Self { folders, wanted: Box::new(wanted) }
    }

    /// Asks all of them at the same time, and returns within two seconds and a moment.
    pub fn look(&self) -> Seen {
        let (mut seen, mut sockets) = (Seen::default(), Vec::new());
        for folder in &self.folders {
            match folder.sockets() {
                Ok(of_folder) => sockets.extend(of_folder),
                Err(error) => seen.errors.push(error.to_string()),
            }
        }
        sockets.retain(|socket| (self.wanted)(socket.process()));
        // A folder that is named twice.
        sockets.sort_by(|a, b| (a.process(), a.path()).cmp(&(b.process(), b.path())));
        sockets.dedup();
        seen.omitted = sockets.len().saturating_sub(CONTEXTS_MAX) as u64;
        sockets.truncate(CONTEXTS_MAX);
        let replies: Vec<_> = thread::scope(|scope| {
            let ask = |socket| scope.spawn(move || ask(socket));
            let asked: Vec<_> = sockets.iter().map(ask).collect();
            asked.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        for (socket, reply) in sockets.iter().zip(replies) {
            match reply {
                Ok(Ok(report)) => seen.contexts.extend(report),
                Ok(Err(ControlSocketError::NoReply { process })) => seen.silent.push(process),
                Ok(Err(error)) => seen.errors.push(error.to_string()),
                Err(_) => seen.errors.push(format!("process {}: its reply cannot be read", socket.process())),
            }
        }
        seen
    }
}

/// The counters of a context; `None` if it has ended.
fn ask(socket: &Socket) -> Result<Option<CountersReport>, ControlSocketError> {
    let bad =
        |reason: &str| ControlSocketError::BadReply { process: socket.process(), reason: reason.to_owned() };
    match socket.try_ask_within(&Request::Counters, PATIENCE)? {
        Some(Reply::Counters(report)) => Ok(Some(*report)),
        Some(Reply::Error(reason)) => Err(bad(&reason)),
        Some(_) => Err(bad("it replied to another request")),
        None => Ok(None),
    }
}
