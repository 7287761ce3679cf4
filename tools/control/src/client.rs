//! The client's side.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::message::{Reply, Request};
use crate::{ControlSocketError, io_at};

/// Limit for a reply.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest reply that is read, in bytes.
const REPLY_MAX: usize = 256 << 20;

/// The control socket of a process, one for each of its contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    process: u32,
    path: PathBuf,
}

impl Socket {
    pub(crate) fn new(process: u32, path: PathBuf) -> Self {
        Self { process, path }
    }

    /// The number of the process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects without waiting for a process that is stopped.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        let address = SocketAddrUnix::new(&self.path)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Removes the file if nobody listens there any more. Returns whether it has gone.
    pub(crate) fn remove_if_stale(&self) -> bool {
        match self.connect() {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                // A process of another user may have left it; it does no harm.
                let _ = fs::remove_file(&self.path);
                true
            }
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(_) => false,
        }
    }

    /// Sends a request and waits for the reply, so long at most. A process that has gone gives `None`.
    fn exchange(&self, request: &Request, within: Duration) -> Result<Option<Vec<u8>>, ControlSocketError> {
        let until = Instant::now() + within;
        let mut stream = match self.connect() {
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
                return Ok(None);
            }
            // Too many connections wait there.
            Err(error) if is_timeout(&error) => {
                return Err(ControlSocketError::NoReply { process: self.process });
            }
            connected => connected.map_err(io_at(&self.path, "cannot connect"))?,
        };
        let mut line = serde_json::to_vec(request)
            .map_err(|error| io_at(&self.path, "cannot write the request")(error.into()))?;
        line.push(b'\n');
        let exchanged = stream
            .set_write_timeout(Some(within))
            .and_then(|()| stream.write_all(&line))
            .and_then(|()| stream.shutdown(Shutdown::Write))
            .and_then(|()| read_until(&stream, until));
        match exchanged {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if is_timeout(&error) => Err(ControlSocketError::NoReply { process: self.process }),
            // It ended in the middle.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(None)
            }
            Err(error) => Err(io_at(&self.path, "cannot read the reply")(error)),
        }
    }

    /// Sends a request and waits for the reply; `None` if the process ended meanwhile.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn try_ask(&self, request: &Request) -> Result<Option<Reply>, ControlSocketError> {
        self.try_ask_within(request, TIMEOUT)
    }

    /// The same with another limit for the reply.
    ///
    /// # Errors
    /// [`ControlSocketError`].
    pub fn try_ask_within(
        &self,
        request: &Request,
        within: Duration,
    ) -> Result<Option<Reply>, ControlSocketError> {
        let reply = self.exchange(request, within)?;
        let Some(reply) = reply.filter(|reply| !reply.is_empty()) else { return Ok(None) };
        let reply = serde_json::from_slice(&reply);
        let bad = |error: serde_json::Error| ControlSocketError::BadReply {
            process: self.process,
            reason: error.to_string(),
        };
        reply.map(Some).map_err(bad)
    }

    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// [`ControlSocketError`], also if the process has ended.
    pub fn ask(&self, request: &Request) -> Result<Reply, ControlSocketError> {
        let gone = || io_at(&self.path, "nobody listens")(ErrorKind::ConnectionRefused.into());
        self.try_ask(request)?.ok_or_else(gone)
    }
}

/// Everything up to the end of the stream, also of a peer that sends a byte now and then.
fn read_until(mut stream: &UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut reply, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(reply),
            Ok(len) => reply.extend(&part[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if reply.len() > REPLY_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "the reply is too long"));
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
