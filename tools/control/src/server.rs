//! The server's side: a thread that carries out requests.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use spindrift::verbs::VerbsError;

use crate::controlled::Controlled;
use crate::deny::{DenyError, DenyLists};
use crate::dir::ControlDir;
use crate::message::{Moved, Reply, Request, Role, Status};
use crate::{ControlSocketError, io_at};

/// Limit for a connection, so that a client that does nothing keeps no other one out.
const CONNECTION_LIMIT: Duration = Duration::from_secs(2);
/// The longest request in bytes: a deny list with all the rules that it may have.
const REQUEST_MAX: usize = 512 << 10;
/// Wait after the system has refused a connection, for example for want of file descriptors.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Sockets that this process has opened.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// A socket at `path`, in place of one that a process with the same number has left.
///
/// It gets that name once it listens: whoever lists the folder removes sockets that refuse connections.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let unlisted = path.with_extension("new");
    let _ = fs::remove_file(&unlisted);
    let listener = UnixListener::bind(&unlisted)?;
    fs::rename(&unlisted, path).inspect_err(|_| drop(fs::remove_file(&unlisted)))?;
    Ok(listener)
}

/// The control socket of a context. Dropping it closes and removes the socket.
///
/// It holds the context open. After a fork the child has no socket of its own, and dropping its copy does nothing.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    process: u32,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens a socket in the folder, and serves requests about a context, or something else with queue pairs, from now on. `program` is shown to the
    /// operator.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn start(
        dir: &ControlDir,
        program: &str,
        controlled: impl Controlled,
    ) -> Result<Self, ControlSocketError> {
        dir.prepare()?;
        dir.sweep()?;
        let process = process::id();
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let path = dir.socket_path(process, number);
        let cannot_listen = "the control socket cannot be opened";
        let listener = listen(&path).map_err(io_at(&path, cannot_listen))?;
        let mut server = Self { path, process, stop: None, thread: None };
        let start = || {
            listener.set_nonblocking(true)?;
            let (stop, stopped) = UnixStream::pair()?;
            let controlled = Box::new(controlled);
            let (program, denied) = (program.to_owned(), DenyLists::default());
            let mut service = Service { controlled, program, process, number, denied };
            let thread = thread::Builder::new().name("spindrift-ctl".to_owned());
            let thread = thread.spawn(move || service.run(&listener, &stopped))?;
            Ok((stop, thread))
        };
        let (stop, thread) = start().map_err(io_at(&server.path, cannot_listen))?;
        (server.stop, server.thread) = (Some(stop), Some(thread));
        Ok(server)
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if process::id() != self.process {
            // A forked child: the thread and the socket are the parent's.
            let _ = Box::leak(Box::new((thread, self.stop.take())));
            return;
        }
        let _ = fs::remove_file(&self.path);
        drop(self.stop.take());
        if let Some(thread) = thread {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    // Rounded up, so that the time is over when the wait is.
    let time = time.min(Duration::from_hours(1)).saturating_add(Duration::from_nanos(999_999));
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Ready,
    TimedOut,
    Stopped,
}

/// Waits until the socket is ready, the server is to stop, or the time is over.
fn wait(fd: impl AsFd, flags: PollFlags, stopped: &UnixStream, limit: Option<Timespec>) -> Woken {
    let mut fds = [PollFd::new(&fd, flags), PollFd::new(stopped, PollFlags::IN)];
    match poll(&mut fds, limit.as_ref()) {
        Ok(0) => Woken::TimedOut,
        Ok(_) if !fds[1].revents().is_empty() => Woken::Stopped,
        // The caller tries, and waits again.
        Ok(_) | Err(rustix::io::Errno::INTR) => Woken::Ready,
        Err(_) => Woken::Stopped,
    }
}

struct Service {
    controlled: Box<dyn Controlled>,
    program: String,
    process: u32,
    /// Of its sockets, this one.
    number: u32,
    denied: DenyLists,
}

impl Service {
    fn run(&mut self, listener: &UnixListener, stopped: &UnixStream) {
        loop {
            let left = self.denied.next_end().map(|end| end.saturating_duration_since(Instant::now()));
            match wait(listener, PollFlags::IN, stopped, left.map(timespec)) {
                Woken::Stopped => return,
                Woken::TimedOut => {
                    self.denied.expire(Instant::now());
                    if let Err(error) = self.controlled.set_deny_list(self.denied.list()) {
                        tracing::warn!(target: "spindrift::control", %error, "the deny list cannot be changed");
                    }
                    continue;
                }
                Woken::Ready => {}
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.serve(&stream, stopped) {
                        tracing::debug!(target: "spindrift::control", %error, "control connection ended");
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    tracing::warn!(target: "spindrift::control", %error, "control connection refused");
                    // Nothing but the stop ends this wait early.
                    wait(stopped, PollFlags::IN, stopped, Some(PAUSE));
                }
            }
        }
    }

    /// Serves one connection: a request and its reply.
    fn serve(&mut self, stream: &UnixStream, stopped: &UnixStream) -> io::Result<()> {
        let user = socket_peercred(stream)?.uid;
        if !user.is_root() && user != geteuid() {
            return Err(io::Error::other(format!("user {} may not control this process", user.as_raw())));
        }
        stream.set_nonblocking(true)?;
        let connection = Connection { stream, stopped, since: Instant::now() };
        let line = connection.read_line()?;
        if line.is_empty() {
            // A client that only wanted to know whether somebody listens.
            return Ok(());
        }
        let reply = match serde_json::from_slice(&line) {
            Ok(request) => self.reply(request),
            Err(error) => {
                let version = env!("CARGO_PKG_VERSION");
                Reply::Error(format!("not a request that version {version} knows: {error}"))
            }
        };
        connection.write(&serde_json::to_vec(&reply)?)
    }

    fn reply(&mut self, request: Request) -> Reply {
        let reply = match request {
            Request::Deny { source, rules, replace, lifetime_ms } => {
                let lifetime = lifetime_ms.map(Duration::from_millis);
                return self.change(|denied, now| denied.deny((&source, replace), &rules, lifetime, now));
            }
            Request::Allow { source, rules } => {
                return self.change(|denied, _| denied.allow(&source, &rules));
            }
            Request::Status => self.status(),
            Request::Prefer { role, queue_pair } => self.prefer(role, queue_pair),
            Request::Counters => self.counters(),
        };
        reply.unwrap_or_else(|error| Reply::Error(error.to_string()))
    }

    /// Changes the deny lists.
    fn change(&mut self, act: impl FnOnce(&mut DenyLists, Instant) -> Result<(), DenyError>) -> Reply {
        let now = Instant::now();
        let before = self.denied.list();
        self.denied.expire(now);
        let changed = act(&mut self.denied, now);
        let list = self.denied.list();
        if list != before
            && let Err(error) = self.controlled.set_deny_list(list)
        {
            return Reply::Error(error.to_string());
        }
        match changed {
            Ok(()) => Reply::Denied(self.denied.entries(now)),
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    fn status(&self) -> Result<Reply, VerbsError> {
        let (planes, queue_pairs) = (self.controlled.planes(), self.controlled.queue_pairs()?);
        Ok(Reply::Status(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process,
            program: self.program.clone(),
            lanes: self.controlled.lanes(),
            planes,
            queue_pairs,
            denied: self.denied.entries(Instant::now()),
        }))
    }

    fn counters(&self) -> Result<Reply, VerbsError> {
        let rules = self.denied.entries(Instant::now()).len();
        let report = self.controlled.counters()?.report((self.process, self.number), &self.program, rules);
        Ok(Reply::Counters(Box::new(report)))
    }

    fn prefer(&self, role: Role, queue_pair: Option<u32>) -> Result<Reply, VerbsError> {
        let moved = self.controlled.prefer(role, queue_pair)?;
        let found = moved != Moved::default();
        Ok(match queue_pair {
            Some(number) if !found => Reply::Error(format!("there is no queue pair {number:#08x}")),
            _ => Reply::Moved(moved),
        })
    }
}

/// A client, for a limited time.
struct Connection<'a> {
    stream: &'a UnixStream,
    stopped: &'a UnixStream,
    since: Instant,
}

impl Connection<'_> {
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let left = CONNECTION_LIMIT.saturating_sub(self.since.elapsed());
        match wait(self.stream, flags, self.stopped, Some(timespec(left))) {
            Woken::Ready => Ok(()),
            Woken::TimedOut => Err(ErrorKind::TimedOut.into()),
            Woken::Stopped => Err(ErrorKind::Interrupted.into()),
        }
    }

    /// A line, or everything up to the end of the stream.
    fn read_line(&self) -> io::Result<Vec<u8>> {
        let (mut line, mut part) = (Vec::new(), [0; 512]);
        loop {
            match (&*self.stream).read(&mut part) {
                Ok(0) => return Ok(line),
                Ok(len) => line.extend(&part[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(error) => return Err(error),
            }
            if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
                line.truncate(end);
                return Ok(line);
            }
            if line.len() > REQUEST_MAX {
                return Err(io::Error::new(ErrorKind::InvalidData, "the request is too long"));
            }
        }
    }

    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&*self.stream).write(bytes) {
                Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
