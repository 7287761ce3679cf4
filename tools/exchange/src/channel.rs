//! The TCP connection that carries the exchange.
//!
//! Every message is a 32-bit big-endian length and that many bytes of JSON. Nothing is trusted: the length
//! is bounded, memory grows only as bytes arrive, and each message has a deadline.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use spindrift::verbs::negotiate::{Negotiated, Refusal, bounded, plain_up_to};
use spindrift::verbs::{Mr, Qp};
use tracing::info;

use super::clock::{Deadline, pause};
use super::format::{Spoken, VERSIONS, check_envelope};
use super::message::{
    EXCHANGE_VERSION, ExchangeError, MAX_MESSAGE_BYTES, MAX_REASON, Message, PREFIX_LEN, PROTOCOL,
    check_sizes, complaint, fit, frame, framed_value, io_error, missing, of_application, too_long,
    unexpected, unreadable,
};
use super::offer::Offer;
use super::speaker::{OPENING_LEN, known, speaker};

/// Longest wait for a refused peer to take the refusal in.
const LINGER: Duration = Duration::from_secs(1);
/// How often a listener looks whether it shall go on.
const ACCEPT_CHECK: Duration = Duration::from_millis(5);
/// Bytes that are kept for a peer that does not read.
const MAX_UNSENT: usize = 64 << 20;
/// How often a wait for the peer looks whether it is cancelled.
const CANCEL_CHECK: Duration = Duration::from_millis(50);

/// Waits for peers.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Listens at an address, such as `"[::]:18515"`; port 0 picks a free one.
    ///
    /// # Errors
    /// [`ExchangeError::Io`] when the address is taken or not this machine's.
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self, ExchangeError> {
        let socket = TcpListener::bind(address).map_err(|error| io_error("the listener", error))?;
        socket.set_nonblocking(true).map_err(|error| io_error("the listener", error))?;
        Ok(Self { socket })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`ExchangeError::Io`].
    pub fn local_addr(&self) -> Result<SocketAddr, ExchangeError> {
        self.socket.local_addr().map_err(|error| io_error("the listener", error))
    }

    /// Waits for the next peer for as long as `go_on` returns true (it is asked every few milliseconds).
    ///
    /// `timeout` is the limit for each message of the connection.
    ///
    /// # Errors
    /// [`ExchangeError::Cancelled`] or [`ExchangeError::Io`].
    pub fn accept(
        &self,
        timeout: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Channel, ExchangeError> {
        loop {
            if let Some(channel) = self.try_accept(timeout)? {
                return Ok(channel);
            }
            if !go_on() {
                return Err(ExchangeError::Cancelled);
            }
            // A standard listener cannot wait with a limit.
            pause(ACCEPT_CHECK);
        }
    }

    /// The next peer, if one has connected, without waiting. To wait for one beside other things, poll the listener's file descriptor
    /// ([`AsFd`]) until it can be read.
    ///
    /// `timeout` is the limit for each message of the connection.
    ///
    /// # Errors
    /// [`ExchangeError::Io`].
    pub fn try_accept(&self, timeout: Duration) -> Result<Option<Channel>, ExchangeError> {
        match self.socket.accept() {
            Ok((stream, peer)) => Channel::new(stream, peer.to_string(), timeout, false).map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(io_error("the listener", error)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection to a peer for setting queue pairs up, and for the application's own messages around a run.
#[derive(Debug)]
pub struct Channel {
    /// Does not block.
    stream: TcpStream,
    /// The peer's next message, as far as it has arrived.
    partial: Vec<u8>,
    /// What [`Channel::try_send`] could not send yet.
    unsent: Vec<u8>,
    peer: String,
    timeout: Duration,
    /// Longest message that is taken, in bytes.
    message_max: usize,
    /// The peer has sent a message of this protocol.
    understood: bool,
    speaks_first: bool,
    cancel: Option<Arc<AtomicBool>>,
}

/// To wait for messages of several peers: poll until it can be read, then call [`Channel::try_receive`].
impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Channel {
    /// Connects to a [`Listener`]; every address that the name resolves to is tried.
    ///
    /// `timeout` is the limit for the connection, and then for each message.
    ///
    /// # Errors
    /// [`ExchangeError::Io`] with the last address's reason.
    pub fn connect(address: impl ToSocketAddrs, timeout: Duration) -> Result<Self, ExchangeError> {
        let candidates = address.to_socket_addrs().map_err(|error| io_error("the peer", error))?;
        let mut last = io_error("the peer", io::Error::other("the name resolves to no address"));
        for peer in candidates {
            match TcpStream::connect_timeout(&peer, timeout) {
                Ok(stream) => return Self::new(stream, peer.to_string(), timeout, true),
                Err(error) => last = io_error(&peer.to_string(), error),
            }
        }
        Err(last)
    }

    fn new(
        stream: TcpStream,
        peer: String,
        timeout: Duration,
        speaks_first: bool,
    ) -> Result<Self, ExchangeError> {
        let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        ready.map_err(|error| io_error(&peer, error))?;
        Ok(Self {
            stream,
            partial: Vec::new(),
            unsent: Vec::new(),
            peer,
            timeout,
            message_max: MAX_MESSAGE_BYTES,
            understood: false,
            speaks_first,
            cancel: None,
        })
    }

    /// Lets `flag` cancel: once it is set, a call that waits for the peer returns [`ExchangeError::Cancelled`] within 50 ms.
    /// The connection is of no further use then.
    pub fn cancel_with(&mut self, flag: Arc<AtomicBool>) {
        self.cancel = Some(flag);
    }

    /// The peer's TCP address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// This side's TCP address.
    ///
    /// # Errors
    /// [`ExchangeError::Io`].
    pub fn local_addr(&self) -> Result<SocketAddr, ExchangeError> {
        self.stream.local_addr().map_err(|error| io_error("the set-up connection", error))
    }

    /// Exchanges offers, checks that they fit, has `establish` bring this side's queue pairs up, and returns once the peer's are up too.
    ///
    /// `establish` gets the peer's offer and one [`Negotiated`] for each pair of queue pairs. It
    /// must leave the queue pairs ready to receive: the peer may send as soon as both sides have said so.
    ///
    /// A peer that is not understood, or takes too long, is told so too, as far as it still listens. The connection
    /// is of no further use after an error.
    ///
    /// # Errors
    /// [`ExchangeError::Refused`] (the peer is told why) and [`ExchangeError::RefusedByPeer`]; else as the variants say.
    pub fn agree<E: core::fmt::Display>(
        &mut self,
        ours: &Offer,
        establish: impl FnOnce(&Offer, &[Negotiated]) -> Result<(), E>,
    ) -> Result<Offer, ExchangeError> {
        let outcome = self.try_to_agree(ours, establish);
        let peer = &self.peer;
        match &outcome {
            Ok(_) => info!(target: "spindrift::setup", peer, qps = ours.qps.len(), "peer agreed"),
            // What the peer wrote is quoted, so that it cannot forge lines of a log.
            Err(error) => {
                info!(target: "spindrift::setup", peer, reason = ?error.to_string(), "no agreement with peer");
            }
        }
        outcome
    }

    fn try_to_agree<E: core::fmt::Display>(
        &mut self,
        ours: &Offer,
        establish: impl FnOnce(&Offer, &[Negotiated]) -> Result<(), E>,
    ) -> Result<Offer, ExchangeError> {
        let hello = self.hello(ours)?;
        let theirs = match self.swap_offers(&hello) {
            Ok(theirs) => theirs,
            Err(error) => {
                self.explain(&error);
                return Err(error);
            }
        };
        let verdict = theirs.and_then(|theirs| {
            let agreed = fit(ours, &theirs)?;
            establish(&theirs, &agreed).map_err(|error| {
                Refusal::new("queue pair set-up", error, "an acceptable offer", "mend the side that failed")
            })?;
            Ok(theirs)
        });
        let theirs = match verdict {
            Ok(theirs) => theirs,
            Err(refusal) => {
                self.refuse(&refusal);
                return Err(ExchangeError::Refused(refusal));
            }
        };
        let ready = frame(&Message::Ready)?;
        self.write_or_hear(&ready)?;
        match self.read()? {
            Message::Ready => Ok(theirs),
            other => Err(unexpected(other)),
        }
    }

    /// This side's offer as it is sent. One that no peer could take is said to the peer as well, which waits for it.
    fn hello(&mut self, ours: &Offer) -> Result<Vec<u8>, ExchangeError> {
        if let Err(refusal) = check_sizes(ours) {
            self.refuse(&refusal.clone().mirrored());
            return Err(ExchangeError::Refused(refusal));
        }
        let offer =
            serde_json::to_value(ours).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
        let hello = frame(&Message::Offer {
            protocol: PROTOCOL.to_owned(),
            version: EXCHANGE_VERSION,
            versions: VERSIONS.to_vec(),
            offer,
            more: BTreeMap::new(),
        });
        if let Err(ExchangeError::TooLong { len, max }) = &hello {
            self.refuse(&too_long(*len, *max).mirrored());
        }
        hello
    }

    /// Tells the peer why, as [`Channel::part`] does.
    fn refuse(&mut self, refusal: &Refusal) {
        // A peer that has gone cannot be told.
        let _ = frame(&Message::Refuse { refusal: refusal.clone() }).and_then(|bytes| self.part(&bytes));
    }

    /// Sends a last message, and waits a moment until the peer has closed the connection: closing it here, while bytes of the peer's
    /// wait to be read, resets it, and that can take the message with it.
    fn part(&mut self, framed: &[u8]) -> Result<(), ExchangeError> {
        // A flag that is set already would keep the peer from learning it.
        self.cancel = None;
        self.write_within(framed, LINGER)?;
        self.stream.shutdown(Shutdown::Write).map_err(|error| io_error(&self.peer, error))?;
        let deadline = Deadline::after(self.timeout.min(LINGER));
        let mut unread = [0; 4096];
        loop {
            match self.step((&self.stream).read(&mut unread)) {
                Ok(Some(_)) => {}
                Ok(None) if self.wait(PollFlags::IN, &deadline).is_ok() => {}
                _ => return Ok(()),
            }
        }
    }

    /// Writes; a peer that closed may have said why.
    fn write_or_hear(&mut self, framed: &[u8]) -> Result<(), ExchangeError> {
        match self.write(framed) {
            Err(ExchangeError::Closed) => match self.read() {
                Ok(reason @ (Message::Refuse { .. } | Message::Abort { .. })) => Err(unexpected(reason)),
                _ => Err(ExchangeError::Closed),
            },
            written => written,
        }
    }

    /// Exchanges and connects queue pairs, each with the peer's of the same index, and returns the peer's offer
    /// once both sides are ready to send. [`Channel::agree`] with all that is usual filled in.
    ///
    /// A lane inside the caller's thread is not polled meanwhile; nothing is sent yet that would need it. The peer may send
    /// as soon as this returns: a side that expects immediates takes its queue pairs to INIT ([`Qp::init`]) and posts receives before.
    ///
    /// # Errors
    /// As [`Channel::agree`].
    pub fn connect_qps(
        &mut self,
        qps: &mut [Qp],
        memory: &[&Mr],
        app: impl Into<String>,
    ) -> Result<Offer, ExchangeError> {
        let infos: Result<Vec<_>, _> = qps.iter().map(Qp::info).collect();
        let infos = infos.map_err(|error| {
            ExchangeError::Refused(Refusal::new("queue pairs", error, "an offer", "make them anew"))
        })?;
        let memory = memory.iter().map(|mr| mr.remote()).collect();
        self.agree(&Offer { qps: infos, memory, app: app.into() }, |_, agreed| {
            qps.iter_mut().zip(agreed).try_for_each(|(qp, agreed)| qp.establish(agreed))
        })
    }

    /// Waits until the peer has called this too.
    ///
    /// # Errors
    /// As the variants of [`ExchangeError`] say.
    pub fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.write(&frame(&Message::Ready)?)?;
        match self.read()? {
            Message::Ready => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Sends the application's own data, such as a result.
    ///
    /// # Errors
    /// [`ExchangeError::Malformed`] when it cannot be JSON; else as the variants say.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), ExchangeError> {
        self.write(&framed_value(value)?)
    }

    /// Receives what the peer gave to [`Channel::send`].
    ///
    /// # Errors
    /// [`ExchangeError::Malformed`] when it is not a `T`; else as the variants say.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ExchangeError> {
        self.read().and_then(of_application)
    }

    /// Receives what the peer gave to [`Channel::send`], if all of it is here, without waiting. A side that has other work asks
    /// now and then, and so learns in time that its peer has ended.
    ///
    /// # Errors
    /// [`ExchangeError::Closed`] when the peer has closed the connection or died, after all that it sent; else as
    /// [`Channel::receive`].
    pub fn try_receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ExchangeError> {
        self.try_read()?.map(of_application).transpose()
    }

    /// As [`Channel::send`], without waiting: what cannot be sent now is kept, and sent before all later messages or by
    /// [`Channel::try_flush`].
    ///
    /// # Errors
    /// [`ExchangeError::TooLong`] if too much is kept already, because the peer does not read; else as [`Channel::send`].
    pub fn try_send<T: Serialize>(&mut self, value: &T) -> Result<(), ExchangeError> {
        let framed = framed_value(value)?;
        let len = self.unsent.len() + framed.len();
        if len > MAX_UNSENT {
            return Err(ExchangeError::TooLong { len, max: MAX_UNSENT });
        }
        self.unsent.extend(framed);
        self.try_flush().map(|_| ())
    }

    /// Sends more of what [`Channel::try_send`] has kept. Returns whether all is sent.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn try_flush(&mut self) -> Result<bool, ExchangeError> {
        while !self.unsent.is_empty() {
            match self.step((&self.stream).write(&self.unsent))? {
                Some(written) => drop(self.unsent.drain(..written)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Tells the peer that this side ends early, and why; whatever the peer waits for then ends in [`ExchangeError::Aborted`].
    /// Waits up to a second until the peer has closed the connection too. The connection is of no further use.
    ///
    /// # Errors
    /// As [`Channel::send`]: the peer may have gone.
    pub fn abort(&mut self, reason: &str) -> Result<(), ExchangeError> {
        self.part(&frame(&Message::Abort { reason: plain_up_to(reason, MAX_REASON) })?)
    }

    /// As [`Channel::send`], for the last message. Waits up to a second until the peer, which has
    /// read it then, has closed the connection too. The connection is of no further use.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_last<T: Serialize>(&mut self, value: &T) -> Result<(), ExchangeError> {
        self.part(&framed_value(value)?)
    }

    /// Tells the peer that what it sent was no use and why, if `error` is of that kind; [`Channel::agree`] does so itself.
    /// Waits up to a second until the peer has heard. The connection is of no further use.
    ///
    /// A peer that waits in [`Channel::receive`] gets [`ExchangeError::RefusedByPeer`].
    pub fn explain(&mut self, error: &ExchangeError) {
        if let Some(reason) = complaint(error) {
            self.refuse(&reason);
        }
    }

    /// Sets the limit for each message from here on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sets the length in bytes of the longest message that is taken from here on, up to [`MAX_MESSAGE_BYTES`]. A side that
    /// many may connect to bounds the memory of their first messages so.
    pub fn set_max_message(&mut self, bytes: usize) {
        self.message_max = bytes.min(MAX_MESSAGE_BYTES);
    }

    fn swap_offers(&mut self, hello: &[u8]) -> Result<Result<Offer, Refusal>, ExchangeError> {
        // One side reads while the other writes, so that two long offers cannot block each other.
        if self.speaks_first {
            self.write_or_hear(hello)?;
        }
        let theirs = self.read()?;
        if !self.speaks_first {
            self.write_or_hear(hello)?;
        }
        Ok(match theirs {
            Message::Offer { protocol, .. } if protocol != PROTOCOL => {
                let fix = "connect to the set-up port of a Spindrift peer";
                Err(Refusal::new("set-up protocol", PROTOCOL, bounded(&protocol), fix))
            }
            Message::Offer { version, versions, offer, more, .. } => Spoken::agree(version, &versions)
                .and_then(|spoken| check_envelope(&spoken, &more).and_then(|()| spoken.read(offer))),
            other => return Err(unexpected(other)),
        })
    }

    fn write(&mut self, framed: &[u8]) -> Result<(), ExchangeError> {
        self.write_within(framed, self.timeout)
    }

    fn write_within(&mut self, framed: &[u8], limit: Duration) -> Result<(), ExchangeError> {
        let deadline = Deadline::after(limit);
        while !self.try_flush()? {
            self.wait(PollFlags::OUT, &deadline)?;
        }
        let mut rest = framed;
        while !rest.is_empty() {
            match self.step((&self.stream).write(rest))? {
                Some(written) => rest = rest.get(written..).unwrap_or_default(),
                None => self.wait(PollFlags::OUT, &deadline)?,
            }
        }
        Ok(())
    }

    /// The next message. The limit is for a message as a whole, so that a peer cannot hold it open byte by byte.
    fn read(&mut self) -> Result<Message, ExchangeError> {
        let deadline = Deadline::after(self.timeout);
        loop {
            match self.try_read()? {
                Some(message) => return Ok(message),
                None => self.wait(PollFlags::IN, &deadline)?,
            }
        }
    }

    /// The next message, if all of it is here. Nothing behind it is read.
    fn try_read(&mut self) -> Result<Option<Message>, ExchangeError> {
        let mut block = [0; 4096];
        loop {
            let missing = missing(&self.partial, self.message_max).map_err(|error| self.or_foreign(error))?;
            if missing == 0 {
                let body = self.partial.get(PREFIX_LEN..).unwrap_or_default();
                let message = serde_json::from_slice(body).map_err(|error| unreadable(&error));
                self.partial.clear();
                self.understood |= message.is_ok();
                return message.map(Some);
            }
            let part = block.get_mut(..missing.min(4096)).unwrap_or_default();
            let got = self.step((&self.stream).read(part)).map_err(|error| self.or_foreign(error))?;
            let Some(got) = got else { return Ok(None) };
            self.partial.extend_from_slice(part.get(..got).unwrap_or_default());
        }
    }

    /// An error of a connection on which nothing of this protocol has come yet: the peer may speak another one.
    fn or_foreign(&mut self, error: ExchangeError) -> ExchangeError {
        match error {
            // Lengths below 16 MiB begin with a zero, which no text does.
            ExchangeError::TooLong { .. } if !self.understood && self.partial.first() != Some(&0) => {
                let mut more = [0; OPENING_LEN];
                let got = (&self.stream).read(&mut more).unwrap_or_default();
                self.partial.extend_from_slice(more.get(..got).unwrap_or_default());
                ExchangeError::Foreign { speaker: speaker(&self.partial) }
            }
            ExchangeError::Closed if !self.understood => match known(&self.partial) {
                Some(speaker) => ExchangeError::Foreign { speaker: speaker.to_owned() },
                None => error,
            },
            other => other,
        }
    }

    /// Waits until the stream may be read or written.
    fn wait(&self, what: PollFlags, deadline: &Deadline) -> Result<(), ExchangeError> {
        let mut left = deadline.left().ok_or(ExchangeError::Timeout { timeout: self.timeout })?;
        if let Some(cancel) = &self.cancel {
            if cancel.load(Ordering::Relaxed) {
                return Err(ExchangeError::Cancelled);
            }
            left = left.min(CANCEL_CHECK);
        }
        // What is too long for the system is for ever.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&self.stream, what)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io_error(&self.peer, error.into())),
        }
    }

    /// One read or write that made progress, must be tried again (`None`), or failed.
    fn step(&self, result: io::Result<usize>) -> Result<Option<usize>, ExchangeError> {
        use io::ErrorKind as Kind;
        match result {
            Ok(0) => Err(ExchangeError::Closed),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => match error.kind() {
                Kind::Interrupted | Kind::WouldBlock => Ok(None),
                Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => {
                    Err(ExchangeError::Closed)
                }
                _ => Err(io_error(&self.peer, error)),
            },
        }
    }
}
