//! The TCP connection that carries the exchange.
//!
//! Every message is a 32-bit big-endian length and that many bytes of JSON. Nothing is trusted: the length
//! is bounded, memory grows only as bytes arrive, and each message has a deadline.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::format::{Spoken, VERSIONS, check_envelope};
use super::offer::{Negotiated, Offer, Refusal, bounded, negotiate, plain};
use crate::engine::{Deadline, pause};
use crate::verbs::{Mr, Qp};

/// Version of the exchange's own messages.
pub const EXCHANGE_VERSION: u32 = 1;
/// Longest message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Longest [`Offer::app`] in bytes.
pub const MAX_APP_BYTES: usize = 4096;
/// Most queue pairs and most memory regions in an offer.
pub const MAX_OFFERED: usize = 1024;

/// Names the protocol, so that a stranger's bytes are told apart at once.
const PROTOCOL: &str = "spindrift-exchange";
/// Longest wait for a refused peer to take the refusal in.
const LINGER: Duration = Duration::from_secs(1);
/// How often a listener looks whether it shall go on.
const ACCEPT_CHECK: Duration = Duration::from_millis(5);

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The TCP connection could not be made, or broke.
    #[error("set-up connection to {peer}: {error}; is the peer running, and reachable at this address?")]
    Io {
        /// The other end.
        peer: String,
        /// What the system said.
        error: io::Error,
    },
    /// The peer sent nothing, or took nothing, for too long.
    #[error("the peer did not answer within {timeout:?}; it may be stuck, or the timeout too short")]
    Timeout {
        /// The limit for one message.
        timeout: Duration,
    },
    /// The peer closed the connection.
    #[error("the peer closed the set-up connection; look at its output for the reason")]
    Closed,
    /// The peer's bytes are not a message of this protocol.
    #[error("the peer does not speak this protocol: {0}")]
    Malformed(String),
    /// A message is longer than the protocol allows.
    #[error(
        "a set-up message of {len} bytes exceeds the limit of {max}; offer fewer queue pairs or less data"
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// This side refused the peer.
    #[error("incompatible peer: {0}")]
    Refused(Refusal),
    /// The peer refused this side.
    #[error("the peer refused: {0}")]
    RefusedByPeer(Refusal),
    /// The wait was cancelled.
    #[error("cancelled while waiting for a peer")]
    Cancelled,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Message {
    Offer {
        protocol: String,
        /// The version that the offer is written in.
        version: u32,
        /// Every version that the sender speaks; only that one if absent.
        #[serde(default)]
        versions: Vec<u32>,
        offer: serde_json::Value,
        #[serde(flatten)]
        more: BTreeMap<String, serde_json::Value>,
    },
    Ready,
    Refuse {
        refusal: Refusal,
    },
    App {
        app: serde_json::Value,
    },
}

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
            match self.socket.accept() {
                Ok((stream, peer)) => return Channel::new(stream, peer.to_string(), timeout, false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(io_error("the listener", error)),
            }
            if !go_on() {
                return Err(ExchangeError::Cancelled);
            }
            // A standard listener cannot wait with a limit.
            pause(ACCEPT_CHECK);
        }
    }
}

/// A connection to a peer for setting queue pairs up, and for the application's own messages around a run.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    peer: String,
    timeout: Duration,
    speaks_first: bool,
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
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
        ready.map_err(|error| io_error(&peer, error))?;
        Ok(Self { stream, peer, timeout, speaks_first })
    }

    /// The peer's TCP address.
    pub fn peer(&self) -> &str {
        &self.peer
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

    /// Tells the peer why, and waits a moment until it has heard: closing while bytes of the peer's wait to be read
    /// resets the connection, and could take the reason with it.
    fn refuse(&mut self, refusal: &Refusal) {
        let told = frame(&Message::Refuse { refusal: refusal.clone() })
            .and_then(|bytes| self.write_within(&bytes, LINGER));
        if told.is_err() || self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let deadline = Deadline::after(self.timeout.min(LINGER));
        let mut unread = [0; 4096];
        while let Some(left) = deadline.left() {
            let step = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut unread));
            match step {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Writes; a peer that closed may have said why.
    fn write_or_hear(&mut self, framed: &[u8]) -> Result<(), ExchangeError> {
        match self.write(framed) {
            Err(ExchangeError::Closed) => match self.read() {
                Ok(refusal @ Message::Refuse { .. }) => Err(unexpected(refusal)),
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
        let app = serde_json::to_value(value).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
        self.write(&frame(&Message::App { app })?)
    }

    /// Receives what the peer gave to [`Channel::send`].
    ///
    /// # Errors
    /// [`ExchangeError::Malformed`] when it is not a `T`; else as the variants say.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ExchangeError> {
        match self.read()? {
            Message::App { app } => serde_json::from_value(app).map_err(|error| unreadable(&error)),
            other => Err(unexpected(other)),
        }
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

    /// Whether the peer has closed the connection or died, without waiting. Bytes not yet read count as alive.
    pub fn peer_is_gone(&self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let gone = match self.stream.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        gone || self.stream.set_nonblocking(false).is_err()
    }

    /// Sets the limit for each message from here on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
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
        let mut rest = framed;
        while !rest.is_empty() {
            let left = self.left(&deadline)?;
            let step = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write(rest));
            let written = self.step(step)?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Message, ExchangeError> {
        let deadline = Deadline::after(self.timeout);
        let mut prefix = [0; 4];
        self.fill(&mut prefix, &deadline)?;
        let len = u32::from_be_bytes(prefix) as usize;
        if len > MAX_MESSAGE_BYTES {
            return Err(ExchangeError::TooLong { len, max: MAX_MESSAGE_BYTES });
        }
        let mut body = Vec::new();
        let mut block = [0; 4096];
        while body.len() < len {
            let want = block.len().min(len - body.len());
            let part = block.get_mut(..want).unwrap_or_default();
            self.fill(part, &deadline)?;
            body.extend_from_slice(part);
        }
        serde_json::from_slice(&body).map_err(|error| unreadable(&error))
    }

    fn fill(&mut self, mut out: &mut [u8], deadline: &Deadline) -> Result<(), ExchangeError> {
        while !out.is_empty() {
            let left = self.left(deadline)?;
            let step = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(out));
            let got = self.step(step)?;
            out = out.get_mut(got..).unwrap_or_default();
        }
        Ok(())
    }

    /// What is left for a message as a whole, so that a peer cannot hold it open byte by byte.
    fn left(&self, deadline: &Deadline) -> Result<Duration, ExchangeError> {
        deadline.left().ok_or(ExchangeError::Timeout { timeout: self.timeout })
    }

    /// One read or write that made progress, must be tried again (0), or failed.
    fn step(&self, result: io::Result<usize>) -> Result<usize, ExchangeError> {
        use io::ErrorKind as Kind;
        match result {
            Ok(0) => Err(ExchangeError::Closed),
            Ok(bytes) => Ok(bytes),
            Err(error) => match error.kind() {
                Kind::Interrupted => Ok(0),
                Kind::WouldBlock | Kind::TimedOut => Err(ExchangeError::Timeout { timeout: self.timeout }),
                Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => {
                    Err(ExchangeError::Closed)
                }
                _ => Err(io_error(&self.peer, error)),
            },
        }
    }
}

/// What a peer should hear about an error, if it may be listening.
fn complaint(error: &ExchangeError) -> Option<Refusal> {
    match error {
        ExchangeError::Timeout { timeout } => Some(Refusal::new(
            "set-up offer",
            format!("a limit of {timeout:?}"),
            "sent no whole offer by then",
            "see why the peer is slow, or raise the time-out",
        )),
        ExchangeError::Malformed(what) => {
            let fix = "both sides must be Spindrift's set-up exchange";
            Some(Refusal::new("set-up message", PROTOCOL, what, fix))
        }
        ExchangeError::TooLong { len, max } => Some(too_long(*len, *max)),
        _ => None,
    }
}

/// The error quotes the peer.
fn unreadable(error: &serde_json::Error) -> ExchangeError {
    ExchangeError::Malformed(plain(&error.to_string()))
}

/// A message with its length in front.
fn frame(message: &Message) -> Result<Vec<u8>, ExchangeError> {
    let body = serde_json::to_vec(message).map_err(|error| ExchangeError::Malformed(error.to_string()))?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(ExchangeError::TooLong { len: body.len(), max: MAX_MESSAGE_BYTES });
    }
    let mut framed = (body.len() as u32).to_be_bytes().to_vec();
    framed.extend_from_slice(&body);
    Ok(framed)
}

fn too_long(len: usize, max: usize) -> Refusal {
    let fix = "offer fewer queue pairs or less data";
    Refusal::new("bytes of the offer", format!("at most {max}"), len, fix)
}

/// Both offers together: counts, sizes and each pair of queue pairs.
fn fit(ours: &Offer, theirs: &Offer) -> Result<Vec<Negotiated>, Refusal> {
    check_sizes(theirs)?;
    if ours.qps.len() != theirs.qps.len() {
        let (ours, theirs) = (ours.qps.len(), theirs.qps.len());
        return Err(Refusal::new("number of queue pairs", ours, theirs, "offer as many on both sides"));
    }
    ours.qps.iter().zip(&theirs.qps).map(|(our, their)| negotiate(our, their)).collect()
}

fn check_sizes(offer: &Offer) -> Result<(), Refusal> {
    let limits = [
        ("number of queue pairs", offer.qps.len(), MAX_OFFERED),
        ("number of memory regions", offer.memory.len(), MAX_OFFERED),
        ("bytes of application data", offer.app.len(), MAX_APP_BYTES),
    ];
    for (field, len, max) in limits {
        if len > max {
            return Err(Refusal::new(field, format!("at most {max}"), len, "offer less"));
        }
    }
    Ok(())
}

fn unexpected(message: Message) -> ExchangeError {
    match message {
        Message::Refuse { refusal } => ExchangeError::RefusedByPeer(refusal.cleaned().mirrored()),
        Message::Offer { .. } => ExchangeError::Malformed("an offer out of turn".to_owned()),
        Message::Ready => ExchangeError::Malformed("\"ready\" out of turn".to_owned()),
        Message::App { .. } => ExchangeError::Malformed("application data out of turn".to_owned()),
    }
}

fn io_error(peer: &str, error: io::Error) -> ExchangeError {
    ExchangeError::Io { peer: peer.to_owned(), error }
}
