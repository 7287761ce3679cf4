//! Where clients come in. One thread accepts connections and reads their first messages, during a run too: a connection is a
//! client's once its first message is a plan. Port scans, browsers and connections that say nothing are turned away, and
//! take no place from a client: where there is none left, the connection that has said nothing for longest is closed.
//! Clients that come during a run are told that the server is busy, or wait a while if it keeps serving.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value as Json;
use spindrift_exchange::{Channel, Listener, MAX_MESSAGE_BYTES};

use super::plan::{Message, Plan};
use super::shift::store_token;
use super::{Session, pretty};
use crate::output::eprint_line;

/// Connections that have yet to send their first message at a time.
const WAITING_MAX: usize = 64;
/// Clients that wait for the end of a run at a time.
const QUEUE_MAX: usize = 64;
/// Longest first message: plans have less than 2 KiB.
const PLAN_BYTES_MAX: usize = 16 << 10;
/// Longest time for the first message, whatever the limit for later ones is.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Connections accepted between two looks at those that are there: their messages come before their places are taken.
const BURST: usize = 16;
/// Turned away with a line each; of later ones only the first is mentioned.
const TOLD_MAX: usize = 20;
/// Connections that are told at a time why they are turned away. More are closed without a word.
const FAREWELLS_MAX: usize = 64;
/// How often a client that waits is told that this side lives.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// Longest time between two looks at the queue and at the end.
const TURN: Duration = Duration::from_millis(100);
/// The same while clients wait in the queue.
const TURN_OF_QUEUE: Duration = Duration::from_millis(10);
/// Pause after a connection that could not be taken: the reason, such as too many open files, may last.
const RETRY: Duration = Duration::from_millis(50);

type Client = (Channel, Plan);

/// Who is served.
#[derive(Debug, Default)]
enum Serving {
    /// Nobody, and nobody may come yet.
    #[default]
    Closed,
    /// The next client.
    Next,
    Client(String),
}

#[derive(Debug, Default)]
struct Shared {
    serving: Mutex<Serving>,
    /// The token of the connection that the client's key-value store has, and who waits for it.
    expected: Mutex<Option<(u64, Sender<Channel>)>>,
    over: AtomicBool,
}

impl Shared {
    fn serving(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expected(&self) -> MutexGuard<'_, Option<(u64, Sender<Channel>)>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives out clients, one at a time.
pub(super) struct Acceptor {
    port: u16,
    shared: Arc<Shared>,
    clients: Receiver<Client>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    pub(super) fn open(session: &Session) -> Result<Self> {
        // A host without IPv6 still has IPv4.
        let listener = Listener::bind(("::", session.tcp_port))
            .or_else(|_| Listener::bind(("0.0.0.0", session.tcp_port)));
        let port = session.tcp_port;
        let listener =
            listener.with_context(|| format!("cannot listen on TCP port {port}; choose another with -p"))?;
        let port = listener.local_addr()?.port();
        let (send, clients) = channel();
        let shared = Arc::<Shared>::default();
        let doorman = AcceptorThread {
            listener,
            shared: Arc::clone(&shared),
            clients: send,
            timeout: session.timeout,
            keep_serving: session.keep_serving,
            waiting: VecDeque::new(),
            queue: VecDeque::new(),
            farewells: Vec::new(),
            turned_away: 0,
        };
        let thread = thread::Builder::new().name("acceptor".to_owned()).spawn(move || doorman.run());
        let thread = Some(thread.context("cannot start the thread that accepts clients")?);
        Ok(Self { port, shared, clients, thread })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// From now on, the connection whose first message has this token is the one of the client's key-value store.
    pub(super) fn expect_store(&self, token: u64) -> ExpectedStore<'_> {
        let (send, channel) = channel();
        *self.shared.expected() = Some((token, send));
        ExpectedStore { shared: &self.shared, channel }
    }

    /// Waits for the next client.
    pub(super) fn next_client(&mut self, session: &Session) -> Result<Client> {
        *self.shared.serving() = Serving::Next;
        loop {
            match self.clients.recv_timeout(TURN) {
                Ok(client) => return Ok(client),
                Err(RecvTimeoutError::Timeout) => session.stop.check()?,
                Err(RecvTimeoutError::Disconnected) => bail!("the thread that accepts clients panicked"),
            }
        }
    }
}

/// The connection of a client's key-value store, which is yet to come. Dropping it turns that away.
pub(super) struct ExpectedStore<'a> {
    shared: &'a Shared,
    channel: Receiver<Channel>,
}

impl ExpectedStore<'_> {
    pub(super) fn wait(&self, session: &Session) -> Result<Channel> {
        let limit = session.timeout;
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Ok(channel) = self.channel.recv_timeout(TURN) {
                return Ok(channel);
            }
            session.stop.check()?;
        }
        bail!("the client's connection for --fallback shift did not come within {limit:?}")
    }
}

impl Drop for ExpectedStore<'_> {
    fn drop(&mut self) {
        *self.shared.expected() = None;
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has said so if it panicked.
            let _ = thread.join();
        }
    }
}

/// A connection that has yet to send its first message.
struct Waiting {
    channel: Channel,
    until: Instant,
}

/// A client that waits for the end of a run.
struct Queued {
    client: Client,
    until: Instant,
    next_alive: Instant,
}

/// The thread behind a [`Acceptor`].
struct AcceptorThread {
    listener: Listener,
    shared: Arc<Shared>,
    clients: Sender<Client>,
    /// Limit for each message of the set-up.
    timeout: Duration,
    keep_serving: bool,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    queue: VecDeque<Queued>,
    farewells: Vec<JoinHandle<()>>,
    turned_away: usize,
}

impl AcceptorThread {
    fn run(mut self) {
        while !self.shared.over.load(Ordering::Relaxed) {
            self.wait();
            self.read_all();
            self.accept();
            self.read_all();
            self.serve();
        }
        for Queued { client: (channel, _), .. } in std::mem::take(&mut self.queue) {
            self.refuse(
                channel,
                "busy: the server has ended after another client's run; start it again".to_owned(),
            );
        }
        for farewell in self.farewells.drain(..) {
            let _ = farewell.join();
        }
    }

    /// Waits until somebody connects, or says something.
    fn wait(&self) {
        let limit = if self.queue.is_empty() { TURN } else { TURN_OF_QUEUE };
        let readable = |channel| PollFd::new(channel, PollFlags::IN);
        let mut fds: Vec<_> = self.waiting.iter().map(|waiting| readable(&waiting.channel)).collect();
        fds.push(PollFd::new(&self.listener, PollFlags::IN));
        // An error, such as an interruption, ends the wait as well.
        let _ = poll(&mut fds, Timespec::try_from(limit).ok().as_ref());
    }

    fn accept(&mut self) {
        let limit = self.timeout.min(GREETING_LIMIT);
        for _ in 0..BURST {
            match self.listener.try_accept(limit) {
                Ok(Some(mut channel)) => {
                    channel.set_max_message(PLAN_BYTES_MAX);
                    self.waiting.push_back(Waiting { channel, until: Instant::now() + limit });
                }
                Ok(None) => break,
                // This one connection failed, such as one that was reset before it was taken.
                Err(error) => {
                    self.turn_away("a connection", &error.to_string());
                    thread::sleep(RETRY);
                    break;
                }
            }
        }
    }

    /// Reads first messages. Where more connections wait than there are places, the oldest ones go.
    fn read_all(&mut self) {
        let now = Instant::now();
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.channel.try_receive::<Json>() {
                Ok(Some(message)) => self.greet(waiting.channel, message),
                Ok(None) if now < waiting.until => self.waiting.push_back(waiting),
                Ok(None) => {
                    let peer = pretty(waiting.channel.peer());
                    let limit = self.timeout.min(GREETING_LIMIT);
                    // It is not told: that could take as long again.
                    self.turn_away(&peer, &format!("no complete first message within {limit:?}"));
                }
                Err(error) => {
                    self.turn_away(&pretty(waiting.channel.peer()), &error.to_string());
                    self.dismiss(waiting.channel, move |channel| channel.explain(&error));
                }
            }
        }
        while self.waiting.len() > WAITING_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            let reason = format!("{WAITING_MAX} newer connections have yet to send their first message");
            self.turn_away(&pretty(oldest.channel.peer()), &format!("no message from it, and {reason}"));
            self.refuse(oldest.channel, format!("busy: {reason}; connect again"));
        }
    }

    /// What becomes of a connection that has sent its first message.
    fn greet(&mut self, mut channel: Channel, message: Json) {
        if let Some(token) = store_token(&message) {
            return self.greet_store(channel, token);
        }
        let plan = match Plan::read(message) {
            Ok(plan) => plan,
            Err(reason) => {
                self.turn_away(&pretty(channel.peer()), &reason);
                return self.refuse(channel, reason);
            }
        };
        channel.set_timeout(self.timeout);
        channel.set_max_message(MAX_MESSAGE_BYTES);
        if self.queue.len() >= QUEUE_MAX {
            let reason = format!("busy: {QUEUE_MAX} other clients wait for the server; try again later");
            return self.refuse_client(channel, reason);
        }
        let now = Instant::now();
        self.queue.push_back(Queued {
            client: (channel, plan),
            until: now + self.timeout / 2,
            next_alive: now + ALIVE_INTERVAL,
        });
    }

    /// A connection for the key-value store of a client.
    fn greet_store(&mut self, mut channel: Channel, token: u64) {
        let expected = self.shared.expected().take_if(|(expected, _)| *expected == token);
        let Some((_, waiting)) = expected else {
            let reason = "a connection of --fallback shift that no client has announced".to_owned();
            self.turn_away(&pretty(channel.peer()), &reason);
            return self.refuse(channel, reason);
        };
        channel.set_timeout(self.timeout);
        // The run may have ended.
        let _ = waiting.send(channel);
    }

    /// Gives out the next client if it is wanted, and looks after the others.
    fn serve(&mut self) {
        let mut next = None;
        if let serving @ Serving::Next = &mut *self.shared.serving()
            && let Some(queued) = self.queue.pop_front()
        {
            *serving = Serving::Client(pretty(queued.client.0.peer()));
            next = Some(queued.client);
        }
        if let Some(client) = next {
            // The server may have ended.
            let _ = self.clients.send(client);
        }
        let now = Instant::now();
        for mut queued in std::mem::take(&mut self.queue) {
            let (channel, _) = &mut queued.client;
            match channel.try_receive::<Message>() {
                Ok(None | Some(Message::Alive)) => {}
                // It goes as it came: nothing was begun for it.
                Ok(Some(_)) | Err(_) => continue,
            }
            if let Some(reason) = self.busy(now >= queued.until) {
                self.refuse_client(queued.client.0, reason);
                continue;
            }
            if now >= queued.next_alive {
                queued.next_alive = now + ALIVE_INTERVAL;
                if channel.send(&Message::Alive).is_err() {
                    continue;
                }
            }
            self.queue.push_back(queued);
        }
    }

    /// Why a client in the queue is not to wait for the end of the run, if it is not. `is_over` when it has waited long enough.
    fn busy(&self, is_over: bool) -> Option<String> {
        let waited = self.timeout / 2;
        match &*self.shared.serving() {
            Serving::Client(current) if !self.keep_serving => Some(format!(
                "busy: the server runs with the client {current} and ends after it; start another server with another -p, or one with --keep-serving"
            )),
            Serving::Client(current) if is_over => Some(format!(
                "busy: the server runs with the client {current}, for {waited:?} and longer; try again later"
            )),
            Serving::Closed | Serving::Next if is_over => Some(format!(
                "busy: the server had no time for another client for {waited:?}; try again later"
            )),
            _ => None,
        }
    }

    fn refuse_client(&mut self, channel: Channel, reason: String) {
        eprint_line(format_args!("spindrift: refused the client {}: {reason}", pretty(channel.peer())));
        self.refuse(channel, reason);
    }

    /// Tells a connection why it is not served, and closes it.
    fn refuse(&mut self, channel: Channel, reason: String) {
        self.dismiss(channel, |channel| {
            // It may have gone.
            let _ = channel.send_last(&Message::Refuse { reason });
        });
    }

    /// Says a last word to a connection, on a thread of its own, since the other end may take its time.
    fn dismiss(&mut self, mut channel: Channel, say: impl FnOnce(&mut Channel) + Send + 'static) {
        self.farewells.retain(|farewell| !farewell.is_finished());
        if self.farewells.len() < FAREWELLS_MAX {
            // Without a thread it is closed without a word.
            let farewell = thread::Builder::new().spawn(move || say(&mut channel));
            self.farewells.extend(farewell);
        }
    }

    fn turn_away(&mut self, peer: &str, reason: &str) {
        self.turned_away += 1;
        let in_run = matches!(*self.shared.serving(), Serving::Client(_));
        let still = if in_run { "" } else { "; still waiting" };
        match self.turned_away {
            1..=TOLD_MAX => eprint_line(format_args!("spindrift: {peer} is not a client: {reason}{still}")),
            n if n == TOLD_MAX + 1 => {
                eprint_line(format_args!(
                    "spindrift: further connections that are not clients are not reported"
                ));
            }
            _ => {}
        }
    }
}
