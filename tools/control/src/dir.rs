//! The folder of control sockets.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::client::Socket;
use crate::{ControlSocketError, io_at};

/// The end of the names of sockets: `PROCESS-NUMBER.sock`.
const SUFFIX: &str = ".sock";

/// The folder in which the processes of a user have their control sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlDir {
    path: PathBuf,
}

impl ControlDir {
    /// The usual folder of this process's user: `/run/spindrift` of root, else `spindrift` in the user's folder for such
    /// things (`runtime`, the value of `XDG_RUNTIME_DIR`), else `/tmp/spindrift-UID`.
    pub fn of_user(runtime: Option<PathBuf>) -> Self {
        let user = geteuid();
        let path = if user.is_root() {
            PathBuf::from("/run/spindrift")
        } else {
            runtime.filter(|path| path.is_absolute()).map_or_else(
                || format!("/tmp/spindrift-{}", user.as_raw()).into(),
                |path| path.join("spindrift"),
            )
        };
        Self { path }
    }

    /// A folder of one's own choice.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder if there is none, for this user alone.
    pub(crate) fn prepare(&self) -> Result<(), ControlSocketError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(io_at(&self.path, "the folder for control sockets cannot be made"))?;
        self.check()
    }

    /// Nobody else may put a socket there, for a client would take it for this user's.
    fn check(&self) -> Result<(), ControlSocketError> {
        let found = fs::symlink_metadata(&self.path);
        let found = found.map_err(io_at(&self.path, "the folder for control sockets cannot be read"))?;
        let refuse = |reason| Err(ControlSocketError::UnsafeDir { path: self.path.clone(), reason });
        let (user, owner) = (geteuid().as_raw(), found.uid());
        if !found.is_dir() {
            refuse("it is no folder".to_owned())
        } else if owner != user && owner != 0 {
            refuse(format!("it belongs to user {owner}, not to user {user}"))
        } else if found.mode() & 0o022 != 0 {
            refuse(format!("others may write to it (mode {:o})", found.mode() & 0o7777))
        } else {
            Ok(())
        }
    }

    pub(crate) fn socket_path(&self, process: u32, number: u32) -> PathBuf {
        self.path.join(format!("{process}-{number}{SUFFIX}"))
    }

    /// The sockets in the folder, by process. No folder is an empty one. Sockets whose process has gone are removed.
    ///
    /// # Errors
    /// [`ControlSocketError`] if the folder cannot be read, or others may write to it.
    pub fn sockets(&self) -> Result<Vec<Socket>, ControlSocketError> {
        let mut sockets = self.list()?;
        sockets.retain(|socket| !socket.remove_if_stale());
        Ok(sockets)
    }

    /// Removes the sockets of processes that were killed. A process with no such number here may still run in a
    /// container, so its socket is tried first.
    pub(crate) fn sweep(&self) -> Result<(), ControlSocketError> {
        for socket in self.list()?.iter().filter(|socket| !exists(socket.process())) {
            socket.remove_if_stale();
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<Socket>, ControlSocketError> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(io_at(&self.path, "the folder for control sockets cannot be read"))?,
        };
        self.check()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut found: Vec<_> = names.filter_map(|name| process_and_number(&name)).collect();
        found.sort_unstable();
        let socket = |(process, number)| Socket::new(process, self.socket_path(process, number));
        Ok(found.into_iter().map(socket).collect())
    }
}

/// Whether a process with this number exists.
fn exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// Process and number of a socket with this name.
fn process_and_number(name: &str) -> Option<(u32, u32)> {
    let (process, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    Some((process.parse().ok()?, number.parse().ok()?))
}
