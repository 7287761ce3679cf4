//! The thread that connects: listeners, questions to ports, and connections between processes.

use core::ffi::c_int;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use socket2::{Domain, Socket, Type};
use spindrift_pmd::fork::Home;

use super::channel::What;
use super::conversation::{Conversation, NO_LISTENER, News};
use super::id::IdCore;
use super::message::{Lookup, MAX_BODY, Message};
use crate::error::last_code;
use crate::event::{lower, raise, waking_fd};
use crate::nic::{mix, random, without_signals};

/// The first wait for the answer of a port; later ones are twice as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long a port may be silent.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a port may be closed. Programs close a listener and open it again at once, and their peers do not try twice.
const CLOSED_PATIENCE: Duration = Duration::from_millis(250);
/// How long the program at the other side may take to decide.
const DECISION_PATIENCE: Duration = Duration::from_mins(1);
/// How long the one who called may take to say what for; and the one who is told that all is over, to say that it knows.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections whose other side has not said what for, at most. The oldest ones make room for new ones: descriptors are few.
const MAX_NAMELESS: usize = 128;
/// Datagrams and connections that are taken from a listener before others are looked at, and pieces from a connection.
const BATCH: usize = 16;
/// How long a listener rests when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);

/// See the [module documentation](self).
pub(crate) struct Service {
    home: Home,
    wake: OwnedFd,
    lines: Mutex<Lines>,
}

struct Lines {
    all: BTreeMap<u64, Line>,
    next: u64,
    nonces: u64,
}

enum Line {
    Listen(Listen),
    Ask(Ask),
    Talk(Talk),
}

/// A port on one address.
struct Listen {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    tcp_port: u16,
    port: u16,
    /// Connections are left waiting until then.
    rests_until: Option<Instant>,
    to: Arc<IdCore>,
}

/// A question to a port.
struct Ask {
    udp: Arc<UdpSocket>,
    request: Message,
    nonce: u64,
    wait: Duration,
    again: Instant,
    until: Instant,
    closed_until: Instant,
    to: Arc<IdCore>,
}

/// A connection to another process.
struct Talk {
    stream: TcpStream,
    /// Not connected yet.
    dials: bool,
    state: Conversation,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    until: Option<Instant>,
    to: Arc<IdCore>,
    /// The port that was called.
    port: u16,
}

/// What a line leads to.
#[derive(Default)]
struct Effects {
    told: Vec<(Arc<IdCore>, What)>,
    /// The line has ended.
    over: bool,
    /// It is another one now.
    becomes: Option<Line>,
    called: Vec<Talk>,
}

impl Service {
    pub(crate) fn start() -> Result<Arc<Self>, c_int> {
        let nonces = random().map_err(|error| error.code())?;
        let lines = Mutex::new(Lines { all: BTreeMap::new(), next: 1, nonces });
        let service = Arc::new(Self { home: Home::here(), wake: waking_fd()?, lines });
        let of_thread = Arc::clone(&service);
        let thread = std::thread::Builder::new().name("spindrift-cm".to_owned());
        without_signals(|| thread.spawn(move || of_thread.run()))
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
        Ok(service)
    }

    /// Whether this is the child of a fork, which has no such thread.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: Line) -> u64 {
        let mut lines = self.lines();
        let key = lines.next;
        lines.next += 1;
        lines.all.insert(key, line);
        drop(lines);
        raise(&self.wake);
        key
    }

    /// Answers for a port, whose socket is bound.
    pub(crate) fn listen(&self, udp: Arc<UdpSocket>, to: Arc<IdCore>) -> io::Result<u64> {
        let at = udp.local_addr()?;
        let tcp = TcpListener::bind(with_port(at, 0))?;
        tcp.set_nonblocking(true)?;
        let tcp_port = tcp.local_addr()?.port();
        Ok(self.add(Line::Listen(Listen { udp, tcp, tcp_port, port: at.port(), rests_until: None, to })))
    }

    /// Asks the port that the socket is connected to.
    pub(crate) fn ask(&self, udp: Arc<UdpSocket>, request: Message, to: Arc<IdCore>) -> u64 {
        let now = Instant::now();
        let nonce = {
            let mut lines = self.lines();
            lines.nonces = mix(lines.nonces.wrapping_add(0x9e37_79b9_7f4a_7c15));
            lines.nonces
        };
        self.add(Line::Ask(Ask {
            udp,
            request,
            nonce,
            wait: FIRST_WAIT,
            again: now,
            until: now + LOOKUP_PATIENCE,
            closed_until: now + CLOSED_PATIENCE,
            to,
        }))
    }

    /// Says something to the other side.
    ///
    /// # Errors
    /// As [`Conversation::say`].
    pub(crate) fn say(&self, key: u64, message: &Message) -> Result<(), c_int> {
        let mut lines = self.lines();
        let talk = match lines.all.get_mut(&key) {
            Some(Line::Talk(talk)) => talk,
            Some(_) => return Err(libc::EINVAL),
            None => return Err(libc::ENOTCONN),
        };
        talk.say(message)?;
        let ended = if talk.is_over() { lines.all.remove(&key) } else { None };
        drop(lines);
        drop(ended);
        raise(&self.wake);
        Ok(())
    }

    /// Ends a line. The other side is told that it is over.
    pub(crate) fn close(&self, key: u64) {
        // Dropped without the lock.
        let line = self.lines().all.remove(&key);
        drop(line);
        raise(&self.wake);
    }

    fn run(&self) {
        let (mut polls, mut watched) = (Vec::new(), Vec::new());
        loop {
            let timeout = self.prepare(&mut polls, &mut watched);
            // SAFETY: as many elements as are passed, of this function.
            let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
            if ready < 0 && last_code() != libc::EINTR {
                std::thread::sleep(REST);
            }
            if polls[0].revents != 0 {
                lower(&self.wake);
            }
            let now = Instant::now();
            for (poll, (key, due)) in polls.iter().zip(&watched) {
                if poll.revents != 0 || due.is_some_and(|due| due <= now) {
                    self.serve(*key, poll.revents, now);
                }
            }
        }
    }

    /// What is waited for: the line of each descriptor, and when it is due without it. Returns how long at most, ms.
    fn prepare(&self, polls: &mut Vec<libc::pollfd>, watched: &mut Vec<(u64, Option<Instant>)>) -> c_int {
        polls.clear();
        watched.clear();
        let mut watch = |key: u64, fd: RawFd, events: libc::c_short, due: Option<Instant>| {
            polls.push(libc::pollfd { fd, events, revents: 0 });
            watched.push((key, due));
        };
        watch(0, self.wake.as_raw_fd(), libc::POLLIN, None);
        let lines = self.lines();
        for (&key, line) in &lines.all {
            match line {
                Line::Listen(listen) => {
                    watch(key, listen.udp.as_raw_fd(), libc::POLLIN, listen.rests_until);
                    if listen.rests_until.is_none() {
                        watch(key, listen.tcp.as_raw_fd(), libc::POLLIN, None);
                    }
                }
                Line::Ask(ask) => {
                    watch(key, ask.udp.as_raw_fd(), libc::POLLIN, Some(ask.again.min(ask.until)));
                }
                Line::Talk(talk) => {
                    let out = if talk.dials || !talk.leaving.is_empty() { libc::POLLOUT } else { 0 };
                    // Nobody listens to what comes after the end.
                    let heard = if talk.state.has_ended() { 0 } else { libc::POLLIN };
                    watch(key, talk.stream.as_raw_fd(), heard | out, talk.until);
                }
            }
        }
        drop(lines);
        let due = watched.iter().filter_map(|(_, due)| *due).min();
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        left.map_or(-1, |left| left.as_micros().div_ceil(1000).min(1 << 20) as c_int)
    }

    fn serve(&self, key: u64, ready: libc::c_short, now: Instant) {
        let mut lines = self.lines();
        let effects = match lines.all.get_mut(&key) {
            Some(Line::Listen(listen)) => listen.serve(now),
            Some(Line::Ask(ask)) => ask.serve(now),
            Some(Line::Talk(talk)) => talk.serve(key, ready, now),
            _ => return,
        };
        let mut dropped = Vec::new();
        for talk in effects.called {
            let nameless = |(key, line): (&u64, &Line)| {
                matches!(line, Line::Talk(talk) if talk.state.is_nameless()).then_some(*key)
            };
            let mut others = lines.all.iter().filter_map(nameless);
            if let Some(oldest) = others.next()
                && others.count() + 1 >= MAX_NAMELESS
            {
                dropped.extend(lines.all.remove(&oldest));
            }
            let key = lines.next;
            lines.next += 1;
            lines.all.insert(key, Line::Talk(talk));
        }
        let ended = match effects.becomes {
            Some(line) => lines.all.insert(key, line),
            None if effects.over => lines.all.remove(&key),
            None => None,
        };
        drop(lines);
        drop((ended, dropped));
        for (about, what) in effects.told {
            about.tell(what);
        }
    }
}

impl Listen {
    fn serve(&mut self, now: Instant) -> Effects {
        let mut effects = Effects::default();
        let mut buffer = [0; 64];
        for _ in 0..BATCH {
            let Ok((len, from)) = self.udp.recv_from(&mut buffer) else { break };
            if let Some(lookup @ Lookup { port: None, .. }) = Lookup::decode(&buffer[..len]) {
                let answer = Lookup { port: Some(self.tcp_port), ..lookup };
                // It is asked again if this is lost.
                let _ = self.udp.send_to(&answer.encode(), from);
            }
        }
        if self.rests_until.is_some_and(|until| now < until) {
            return effects;
        }
        self.rests_until = None;
        for _ in 0..BATCH {
            let stream = match self.tcp.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    let is_short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                    if error.raw_os_error().is_some_and(|code| is_short.contains(&code)) {
                        self.rests_until = Some(now + REST);
                        break;
                    }
                    // The one who called has gone.
                    continue;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let to = Arc::clone(&self.to);
            effects.called.push(Talk::new(stream, Conversation::called(), to, self.port, now + PATIENCE));
        }
        effects
    }
}

impl Ask {
    fn serve(&mut self, now: Instant) -> Effects {
        let mut buffer = [0; 64];
        for _ in 0..BATCH {
            match self.udp.recv(&mut buffer) {
                Ok(len) => {
                    let answer = Lookup::decode(&buffer[..len]).filter(|answer| answer.nonce == self.nonce);
                    if let Some(port) = answer.and_then(|answer| answer.port) {
                        return self.dial(port, now);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if self.waits_after(&error, now) => {}
                Err(error) => return self.failed(&error),
            }
        }
        if now >= self.until {
            return self.failed(&ErrorKind::TimedOut.into());
        }
        if now >= self.again {
            self.again = now + self.wait;
            self.wait = (2 * self.wait).min(LONGEST_WAIT);
            let lookup = Lookup { nonce: self.nonce, port: None };
            match self.udp.send(&lookup.encode()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock || self.waits_after(&error, now) => {}
                Err(error) => return self.failed(&error),
                Ok(_) => {}
            }
        }
        Effects::default()
    }

    /// Whether the port may be open soon.
    fn waits_after(&self, error: &io::Error, now: Instant) -> bool {
        error.kind() == ErrorKind::ConnectionRefused && now < self.closed_until
    }

    fn failed(&self, error: &io::Error) -> Effects {
        let told = vec![(Arc::clone(&self.to), What::News(failure(error)))];
        Effects { told, over: true, ..Effects::default() }
    }

    /// Connects to the listener.
    fn dial(&self, port: u16, now: Instant) -> Effects {
        let connect = || -> io::Result<TcpStream> {
            let (local, peer) = (self.udp.local_addr()?, self.udp.peer_addr()?);
            let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.bind(&with_port(local, 0).into())?;
            match socket.connect(&with_port(peer, port).into()) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(socket.into()),
            }
        };
        let stream = match connect() {
            Ok(stream) => stream,
            Err(error) => return self.failed(&error),
        };
        let datagrams = matches!(&self.request, Message::Request(request) if request.datagrams);
        let state = Conversation::asking(datagrams);
        let mut talk = Talk::new(stream, state, Arc::clone(&self.to), 0, now + DECISION_PATIENCE);
        talk.dials = true;
        talk.leaving = self.request.encode();
        Effects { becomes: Some(Line::Talk(talk)), ..Effects::default() }
    }
}

/// The address with another port.
const fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// What a program is told of an error before it is connected.
fn failure(error: &io::Error) -> News {
    match error.kind() {
        ErrorKind::ConnectionRefused => News::Rejected { status: NO_LISTENER, private: Vec::new() },
        ErrorKind::TimedOut => News::Unreachable(libc::ETIMEDOUT),
        _ => News::Unreachable(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

impl Talk {
    fn new(stream: TcpStream, state: Conversation, to: Arc<IdCore>, port: u16, until: Instant) -> Self {
        // Messages are short, and each is waited for.
        let _ = stream.set_nodelay(true);
        let (arrived, leaving) = (Vec::new(), Vec::new());
        Self { stream, dials: false, state, arrived, leaving, until: Some(until), to, port }
    }

    fn say(&mut self, message: &Message) -> Result<(), c_int> {
        self.state.say(message)?;
        self.until = self.patience().map(|patience| Instant::now() + patience);
        self.leaving.extend(message.encode());
        // What fails now is noticed by the thread.
        let _ = self.write();
        Ok(())
    }

    /// How long the other side may be silent now.
    fn patience(&self) -> Option<Duration> {
        if self.state.is_deciding_elsewhere() {
            Some(DECISION_PATIENCE)
        } else if self.state.waits() || self.state.has_ended() {
            Some(PATIENCE)
        } else {
            None
        }
    }

    /// Whether all has been said and sent.
    fn is_over(&self) -> bool {
        self.state.has_ended() && self.leaving.is_empty()
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.dials && !self.leaving.is_empty() {
            match self.stream.write(&self.leaving) {
                Ok(len) => drop(self.leaving.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn serve(&mut self, key: u64, ready: libc::c_short, now: Instant) -> Effects {
        let mut effects = Effects::default();
        if self.dials && ready != 0 {
            match self.stream.take_error() {
                Ok(None) => self.dials = false,
                Ok(Some(error)) | Err(error) => {
                    let told = vec![(Arc::clone(&self.to), What::News(failure(&error)))];
                    return Effects { told, over: true, ..Effects::default() };
                }
            }
        }
        let mut open = self.write().is_ok();
        if ready & !libc::POLLOUT != 0 && !self.state.has_ended() {
            open &= self.read(key, &mut effects);
        }
        if self.until.is_some_and(|until| now >= until) {
            // Whoever has to decide may be alive, and silent.
            if self.state.is_deciding_elsewhere() {
                let news = What::News(News::Unreachable(libc::ETIMEDOUT));
                effects.told.push((Arc::clone(&self.to), news));
                effects.over = true;
                return effects;
            }
            open = false;
        }
        if !open {
            effects.told.extend(self.state.over().map(|news| (Arc::clone(&self.to), What::News(news))));
        }
        effects.over |= !open || self.is_over();
        effects
    }

    /// Takes what has arrived, not all at once. Returns whether the other side may still say something.
    fn read(&mut self, key: u64, effects: &mut Effects) -> bool {
        let mut buffer = [0; MAX_BODY];
        for _ in 0..BATCH {
            let open = match self.stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(len) => {
                    self.arrived.extend(&buffer[..len]);
                    true
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => true,
                Err(_) => false,
            };
            while !self.state.has_ended() {
                let message = match Message::take(&mut self.arrived) {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(_) => return false,
                };
                let Some((news, answer)) = self.state.hear(message) else { return false };
                self.leaving.extend(answer.iter().flat_map(Message::encode));
                let _ = self.write();
                if let Some(news) = news {
                    self.until = self.patience().map(|patience| Instant::now() + patience);
                    self.tell(key, news, effects);
                }
            }
            if !open {
                return false;
            }
            if self.state.has_ended() {
                return true;
            }
        }
        true
    }

    fn tell(&mut self, key: u64, news: News, effects: &mut Effects) {
        let News::Request(request) = news else {
            effects.told.push((Arc::clone(&self.to), What::News(news)));
            return;
        };
        let ends = (self.stream.local_addr(), self.stream.peer_addr());
        let (Ok(local), Ok(peer)) = ends else { return self.refuse(effects) };
        if !self.to.takes(&request) {
            return self.refuse(effects);
        }
        let (local, peer) = (with_port(local, self.port), with_port(peer, request.port));
        // What follows is about a new object.
        let core = self.to.incoming(key);
        let listener = core::mem::replace(&mut self.to, Arc::clone(&core));
        effects.told.push((listener, What::Request { core, request, local, peer }));
    }

    /// Ends it without a word to the program.
    fn refuse(&mut self, effects: &mut Effects) {
        let _ = self.state.over();
        effects.over = true;
    }
}
