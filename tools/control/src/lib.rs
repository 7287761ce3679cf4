//! The control socket: through it an operator sees the queue pairs of a running process, moves them to another NIC,
//! and tells them which paths to avoid; and what the process has counted is read.
//!
//! A process that has a [`Server`] listens at a Unix socket in a [folder](ControlDir) that belongs to its user.
//! `spindrift ctl` is the client; [`ControlDir::sockets`] finds the sockets of all processes.
//!
//! A client connects, sends one [`Request`] as a line of JSON, and reads one [`Reply`] until the end of the stream.
//! Only the user of the process and root are served. The server is one thread that sleeps until somebody connects.
//! Each request is carried out by control calls of the context, between two polls of a lane.
//!
//! ```
//! use spindrift::pmd::loopback::{self, LoopbackConfig};
//! use spindrift::verbs::{Context, ContextConfig, nic};
//! use spindrift_control::{ControlDir, Reply, Request, Server};
//!
//! # let folder = std::env::temp_dir().join(format!("spindrift-doc-{}", std::process::id()));
//! # let dir = ControlDir::at(&folder);
//! let ports = nic(loopback::pair(1, LoopbackConfig::default()).0);
//! let config = ContextConfig::new(&ports);
//! let context = Context::open(ports, config)?;
//! let server = Server::start(&dir, "my program", context.clone())?;
//! // In another process:
//! let sockets = dir.sockets()?;
//! if let Reply::Status(status) = sockets[0].ask(&Request::Status)? {
//!     assert_eq!((&*status.program, status.queue_pairs.len()), ("my program", 0));
//! }
//! # drop(server);
//! # std::fs::remove_dir(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod client;
mod controlled;
pub mod counters;
mod deny;
mod dir;
mod message;
pub mod prometheus;
mod server;
mod watch;

pub use client::{Socket, TIMEOUT};
pub use controlled::Controlled;
pub use counters::{CountersReport, Totals};
pub use deny::DenyEntry;
pub use dir::ControlDir;
pub use message::{
    Denied, Moved, PeerStatus, PlaneStatus, QpStatus, Reply, Request, Role, RolesStatus, ShiftStatus, Status,
};
pub use server::Server;
pub use watch::{Seen, Watch};

use std::io;
use std::path::{Path, PathBuf};

/// The control socket cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlSocketError {
    /// The system refused something.
    #[error("{}: {what}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was not possible.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Others could put their own sockets into the folder.
    #[error("{}: {reason}; remove it, or choose another folder for control sockets", path.display())]
    UnsafeDir {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The process accepted the connection and did not reply in time.
    #[error("process {process} does not reply; it may be stopped, or busy for longer than {} s", TIMEOUT.as_secs())]
    NoReply {
        /// Its number.
        process: u32,
    },
    /// The process sent something else than a reply.
    #[error(
        "process {process} sent no reply that this version understands: {reason}; use the version of spindrift that it uses"
    )]
    BadReply {
        /// Its number.
        process: u32,
        /// What is wrong with it.
        reason: String,
    },
}

/// Makes an error of this.
fn io_at(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> ControlSocketError {
    let path = path.to_owned();
    move |error| ControlSocketError::Io { path, what, error }
}

#[cfg(test)]
mod tests;
