//! Where clients come in: a connection is a client's once its first message is a plan. Port scans, browsers and
//! connections that say nothing are turned away, and keep no client waiting meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use spindrift::verbs::exchange::{Channel, ExchangeError, Listener};

use super::plan::{Message, Plan};
use super::{Session, pretty};
use crate::output::tell;

/// Connections that may owe their first message at a time. More are closed at once.
const WAITING_MAX: usize = 64;
/// Longest time for the first message, whatever the limit for later ones is.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Turned away with a line each; of later ones only the first is mentioned.
const TOLD_MAX: usize = 20;

/// Pause after a connection that could not be taken: the reason, such as too many open files, may last.
const RETRY: Duration = Duration::from_millis(50);

/// What a connection turned out to be.
enum Visitor {
    Client(Box<(Channel, Plan)>),
    Stranger { peer: String, reason: String },
}

/// A listener that gives out clients only.
pub(super) struct Door {
    listener: Listener,
    visitors: Receiver<Visitor>,
    enter: Sender<Visitor>,
    waiting: Arc<AtomicUsize>,
    turned_away: usize,
}

impl Door {
    pub(super) fn open(session: &Session) -> Result<Self> {
        // A host without IPv6 still has IPv4.
        let listener = Listener::bind(("::", session.tcp_port))
            .or_else(|_| Listener::bind(("0.0.0.0", session.tcp_port)));
        let port = session.tcp_port;
        let listener =
            listener.with_context(|| format!("cannot listen on TCP port {port}; choose another with -p"))?;
        let (enter, visitors) = channel();
        Ok(Self { listener, visitors, enter, waiting: Arc::default(), turned_away: 0 })
    }

    pub(super) fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Waits for the next client.
    pub(super) fn next_client(&mut self, session: &Session) -> Result<(Channel, Plan)> {
        let limit = session.timeout.min(GREETING_LIMIT);
        loop {
            let mut visitor = None;
            let accepted = self.listener.accept(limit, || {
                visitor = self.visitors.try_recv().ok();
                visitor.is_none() && session.stop.check().is_ok()
            });
            match accepted {
                Ok(channel) => self.greet(channel, session.timeout),
                Err(ExchangeError::Cancelled) => {}
                // This one connection failed, such as one that was reset before it was taken.
                Err(error) => {
                    self.turn_away("a connection", &error.to_string());
                    thread::sleep(RETRY);
                }
            }
            match visitor {
                Some(Visitor::Client(client)) => return Ok(*client),
                Some(Visitor::Stranger { peer, reason }) => self.turn_away(&peer, &reason),
                None => {}
            }
            session.stop.check()?;
        }
    }

    /// Reads the first message on a thread of its own, which the limit ends.
    fn greet(&mut self, mut channel: Channel, timeout: Duration) {
        let peer = pretty(channel.peer());
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.turn_away(&peer, &format!("{WAITING_MAX} connections have yet to send their first message"));
            return;
        }
        let (enter, waiting) = (self.enter.clone(), Arc::clone(&self.waiting));
        thread::spawn(move || {
            let visitor = match first_message(&mut channel) {
                Ok(plan) => {
                    channel.set_timeout(timeout);
                    Visitor::Client(Box::new((channel, plan)))
                }
                Err(reason) => Visitor::Stranger { peer, reason },
            };
            waiting.fetch_sub(1, Ordering::Relaxed);
            // The server may have ended meanwhile.
            let _ = enter.send(visitor);
        });
    }

    fn turn_away(&mut self, peer: &str, reason: &str) {
        self.turned_away += 1;
        match self.turned_away {
            1..=TOLD_MAX => tell(format_args!("spindrift: {peer} is not a client: {reason}; still waiting")),
            n if n == TOLD_MAX + 1 => {
                tell(format_args!("spindrift: further connections that are not clients are not reported"));
            }
            _ => {}
        }
    }
}

/// The client's plan, or why the connection is turned away. The other end is told too, as far as it listens; one that
/// said nothing is not, since that could take as long again.
fn first_message(channel: &mut Channel) -> Result<Plan, String> {
    let message = channel.receive().map_err(|error| {
        if !matches!(error, ExchangeError::Timeout { .. }) {
            channel.explain(&error);
        }
        error.to_string()
    })?;
    Plan::read(message).inspect_err(|reason| {
        // It may have gone.
        let _ = channel.send(&Message::Refuse { reason: reason.clone() });
    })
}
