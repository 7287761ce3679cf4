//! The process at the other end: messages over the set-up connection, keep-alives in both directions, and its end.
//!
//! Each side sends `alive` twice a second, whatever it does, and looks for messages ten times a second at least. A process that
//! ends says why, and the system closes its connection if it is killed: the other side notices at its next look. A host that
//! dies, or a network that fails, closes nothing. Such a silence ends a run after as long as queue pairs wait for a silent peer:
//! it must not end one that they would survive.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use spindrift::verbs::WcStatus;
use spindrift_exchange::{Channel, ExchangeError, Offer};

use super::plan::{Message, Plan};
use super::{address_towards, pretty};
use crate::bench::endpoint_setup::Side;
use crate::bench::findings::violations;
use crate::bench::transport::Nics;
use crate::output::error_chain;
use crate::place::Local;
use crate::stop::{Interrupted, Stop};

/// How often each side tells that it lives.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// How often a side that waits for a message looks for one.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Signs of life that one look takes: a peer that sends nothing else must not hold the caller.
const ALIVE_MAX: usize = 16;

/// How long the peer's reason is waited for when it has refused a packet: its process looks at its queue pairs every now and then.
const REASON_LIMIT: Duration = Duration::from_secs(1);
/// Statuses of requests that the peer refused. It knows why.
const REFUSED: [WcStatus; 3] =
    [WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccessError, WcStatus::RemoteOperationError];

/// Of an error that says so.
const SILENT: &str = "has sent nothing for";

/// Whether this side is the client, or the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

impl Role {
    /// What the other side is.
    const fn of_peer(self) -> &'static str {
        match self {
            Self::Client => "server",
            Self::Server => "client",
        }
    }
}

/// The peer has ended, or is silent. There is nobody to tell what happens here.
#[derive(Debug)]
pub(super) struct Ended(String);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Ended {}

/// The other side.
pub(super) struct Peer {
    channel: Channel,
    /// Of this side.
    role: Role,
    /// Its name, if it was given one, and address.
    address: String,
    /// The same, and what it is.
    name: String,
    stop: Stop,
    /// Longest silence; none if it is waited for without end.
    limit: Option<Duration>,
    last_sent: Instant,
    last_seen: Instant,
    /// What had come from it over the network at the last look that needed to know.
    progress: u64,
    /// It has sent a message: what listens at the address of a server may be something else.
    met: bool,
    /// Nothing more can be sent.
    over: bool,
    /// This side of the run: the peer may break a rule.
    watched: Option<Nics>,
}

impl Peer {
    /// The process that has connected, or was connected to as `name`. `timeout` is the limit for each step of the set-up.
    pub(super) fn new(
        mut channel: Channel,
        role: Role,
        name: Option<&str>,
        timeout: Duration,
        stop: &Stop,
    ) -> Self {
        channel.cancel_with(stop.shared());
        let address = pretty(channel.peer());
        // A name that is the address says nothing more.
        let name = name.filter(|name| name.parse::<IpAddr>().is_err());
        let address = name.map_or_else(|| address.clone(), |name| format!("{name} ({address})"));
        let now = Instant::now();
        Self {
            channel,
            role,
            name: format!("{} {address}", role.of_peer()),
            address,
            stop: stop.clone(),
            limit: Some(timeout),
            last_sent: now,
            last_seen: now,
            progress: 0,
            // A client has sent its plan.
            met: role == Role::Server,
            over: false,
            watched: None,
        }
    }

    /// Its name and address.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// What it is, its name and address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What this side is.
    pub(super) const fn role(&self) -> Role {
        self.role
    }

    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Where this side's packets to it leave from.
    pub(super) fn local(&self) -> Result<Local> {
        let [_, peer] = self.connection()?;
        address_towards(peer)
    }

    /// The ends of the connection: this side's and the other's.
    pub(super) fn connection(&self) -> Result<[SocketAddr; 2]> {
        let peer = self.channel.peer();
        let peer = peer.parse().with_context(|| format!("the peer's address {peer}"))?;
        Ok([self.channel.local_addr()?, peer])
    }

    /// Brings the queue pairs of both sides up. From here on it may be silent for as long as queue pairs wait.
    pub(super) fn agree(&mut self, side: &mut Side, offer: &Offer) -> Result<Offer> {
        let budget = side.retry.budget_ns().map(Duration::from_nanos);
        let theirs =
            self.channel.agree(offer, |theirs, agreed| side.establish(theirs, agreed)).map_err(|error| {
                // It has been told anything else, or cannot be.
                self.over = !matches!(error, ExchangeError::Cancelled);
                self.named(error)
            })?;
        self.limit = self.limit.zip(budget).map(|(timeout, budget)| timeout.max(budget));
        self.last_seen = Instant::now();
        self.watched = Some(side.nics.clone());
        Ok(theirs)
    }

    /// Sends a client's first message.
    pub(super) fn send_plan(&mut self, plan: &Plan) -> Result<()> {
        self.channel.send(plan).map_err(|error| self.named(error))
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<()> {
        self.last_sent = Instant::now();
        let Err(error) = self.channel.send(message) else { return Ok(()) };
        // One that has ended may have said why before.
        self.next()?;
        Err(self.named(error))
    }

    /// Sends the last message of a run.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.over = true;
        self.channel.send_last(&Message::Finish).map_err(|error| self.named(error))
    }

    /// Tells that this side ends, and why, if there is somebody to tell.
    pub(super) fn abort(&mut self, error: &Error) {
        self.end(error, |channel, reason| channel.abort(&reason));
    }

    /// Tells that its plan will not be followed, and why.
    pub(super) fn refuse(&mut self, error: &Error) {
        self.end(error, |channel, reason| channel.send_last(&Message::Refuse { reason }));
    }

    fn end(&mut self, error: &Error, tell: impl FnOnce(&mut Channel, String) -> Result<(), ExchangeError>) {
        let is_foreign = matches!(error.downcast_ref(), Some(ExchangeError::Foreign { .. }));
        if !self.over && !is_foreign && !error.is::<Ended>() {
            // It may have gone.
            let _ = tell(&mut self.channel, error_chain(error));
        }
        self.over = true;
    }

    /// Looks whether the user wants an end, whether the peer has ended or broken a rule, and for a message, without waiting; and tells
    /// the peer that this side lives. `progress` counts what comes from the peer over the network: a sign of life too.
    pub(super) fn look(&mut self, progress: &mut dyn FnMut() -> u64) -> Result<Option<Message>> {
        let message = self.look_silently(progress)?;
        if message.is_none() && self.last_sent.elapsed() >= ALIVE_INTERVAL {
            self.send(&Message::Alive)?;
        }
        Ok(message)
    }

    /// As [`Peer::look`], without a word to the peer.
    fn look_silently(&mut self, progress: &mut dyn FnMut() -> u64) -> Result<Option<Message>> {
        self.stop.check()?;
        if let Some(message) = self.next()? {
            return Ok(Some(message));
        }
        let broken = self.violations();
        if !broken.is_empty() {
            bail!("run with the {}: {}", self.name, broken.join("; "));
        }
        self.check_silence(Instant::now(), progress)?;
        Ok(None)
    }

    /// As [`Peer::look`], during work for which the peer waits: it sends nothing else meanwhile.
    pub(super) fn tick(&mut self, progress: u64) -> Result<()> {
        match self.look(&mut || progress)? {
            None => Ok(()),
            Some(other) => bail!("the {} sent \"{}\" out of turn", self.name, other.name()),
        }
    }

    /// Waits for a message, while no lane runs.
    pub(super) fn receive(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.look(&mut || 0)? {
                return Ok(message);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Waits for the message after which both sides agree. This side sends nothing meanwhile: the peer reads no more messages, and
    /// the next thing that it takes is an offer.
    pub(super) fn receive_silently(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = self.look_silently(&mut || 0)? {
                return Ok(message);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// An error of a run with it; what names it already, or is no fault of the run, stays as it is.
    pub(super) fn blame(&self, error: Error) -> Error {
        if error.is::<Ended>() || error.is::<Interrupted>() {
            error
        } else {
            error.context(format!("run with the {}", self.name))
        }
    }

    /// Which rules it broke, since it was last asked.
    fn violations(&self) -> Vec<String> {
        self.watched.as_ref().map(violations).unwrap_or_default()
    }

    /// An error with what either side knows of its cause.
    pub(super) fn with_findings(&mut self, error: Error, side: &Side) -> Error {
        if error.is::<Interrupted>() {
            return error;
        }
        let text = error_chain(&error);
        let says = |words: &dyn std::fmt::Display| text.contains(&words.to_string());
        let mut findings = self.violations();
        if says(&WcStatus::RetryExceeded) || says(&SILENT) {
            findings.extend(side.findings(&self.name));
        }
        if !error.is::<Ended>() && REFUSED.iter().any(|status| says(status)) {
            findings.extend(self.reason().map(|reason| format!("the {} says: {reason}", self.name)));
        }
        if findings.is_empty() {
            return error;
        }
        let text = [&[text], &findings[..]].concat().join("; ");
        if error.is::<Ended>() { Ended(text).into() } else { anyhow!(text) }
    }

    /// Why it has ended or is about to, if it says so in time.
    fn reason(&mut self) -> Option<String> {
        let deadline = Instant::now() + REASON_LIMIT;
        while Instant::now() < deadline && self.stop.check().is_ok() {
            match self.channel.try_receive::<Message>() {
                Err(ExchangeError::Aborted { reason }) => return Some(reason),
                Err(_) => return None,
                Ok(Some(_)) => {}
                Ok(None) => thread::sleep(LOOK_INTERVAL),
            }
        }
        None
    }

    /// The end of the peer, if that is why something else with it failed; else that error.
    pub(super) fn end_or(&mut self, error: Error) -> Error {
        let deadline = Instant::now() + REASON_LIMIT;
        loop {
            match self.tick(0) {
                Err(end) if end.is::<Ended>() || end.is::<Interrupted>() => return end,
                Ok(()) if Instant::now() < deadline => thread::sleep(LOOK_INTERVAL),
                Ok(()) | Err(_) => return error,
            }
        }
    }

    /// An error about a message that is not the one that must come.
    pub(super) fn unexpected(&self, message: &Message, due: &str) -> Error {
        anyhow!("the {} sent \"{}\" when \"{due}\" was due", self.name, message.name())
    }

    /// The next message that is more than a sign of life, if it is here.
    fn next(&mut self) -> Result<Option<Message>> {
        for _ in 0..ALIVE_MAX {
            let message = match self.channel.try_receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.named(error)),
            };
            self.last_seen = Instant::now();
            self.met = true;
            match message {
                Message::Alive => {}
                other => return Ok(Some(other)),
            }
        }
        Ok(None)
    }

    fn check_silence(&mut self, now: Instant, progress: &mut dyn FnMut() -> u64) -> Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        if now.saturating_duration_since(self.last_seen) < limit {
            return Ok(());
        }
        let progress = progress();
        if !self.met {
            return Err(Ended(format!(
                "no message from the {} for {limit:?}: it is not a Spindrift server, it is stopped, or no packet reaches it",
                self.name
            ))
            .into());
        }
        if progress == self.progress {
            return Err(Ended(format!(
                "the {} {SILENT} {limit:?}: its process is stopped or stuck, its host is down, or no packet reaches it",
                self.name
            ))
            .into());
        }
        (self.progress, self.last_seen) = (progress, now);
        Ok(())
    }

    /// An error of the connection.
    fn named(&self, error: ExchangeError) -> Error {
        match error {
            ExchangeError::Closed if !self.met => Ended(format!(
                "the {} closed the connection without a message: it is not a Spindrift server, or has just ended; check the address and -p",
                self.name
            ))
            .into(),
            ExchangeError::Closed => {
                Ended(format!("the {} closed the connection (it ended, was interrupted, or crashed)", self.name)).into()
            }
            ExchangeError::Aborted { reason } => Ended(format!("the {} gave up: {reason}", self.name)).into(),
            ExchangeError::Cancelled => Interrupted.into(),
            other => Error::new(other).context(self.name.clone()),
        }
    }
}
