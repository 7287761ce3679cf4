//! A device in use: Spindrift's context with a lane of its own, and the control socket by which processes find each other.

use core::ffi::c_int;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError, Weak};
use std::time::Instant;

use spindrift::endpoint::CqId;
use spindrift::path::PlaneSet;
use spindrift::pmd::fault::FaultPort;
use spindrift::pmd::fork::Home;
use spindrift::pmd::udp::{UdpConfig, UdpError, UdpPort};
use spindrift::pmd::{LinkState, Port};
use spindrift::time::Time;
use spindrift::verbs::{self, AsyncEvent, ContextConfig, LaneMode, VerbsError};
use spindrift::wire::Qpn;
use spindrift::work::SrqId;

use crate::abi::event_type;
use crate::connection::QpCore;
use crate::context::{mtu_bytes, mtu_code};
use crate::control::Control;
use crate::datagram::{self, Datagram};
use crate::error::{code_of, tell};
use crate::event::{About, EventQueue, counting_fd, lower, of_port, raise};
use crate::handshake::{Action, Handshakes, Hello, Number};
use crate::local::LocalMemory;
use crate::mrc::ctl::bus::Change;
use crate::mrc::ctl::managed::{Managed, RETRY_NS};
use crate::mrc::ctl::store::{Store, network_namespace};
use crate::mrc::ctl::usage;
use crate::operator;
use crate::plane::PlanePort;
use crate::tally::{Reporter, Tally, count, end_with_process};
use crate::ud::UdQp;
use spindrift_programs::settings::StaticPeers;
use spindrift_programs::{NicSettings, Settings};

/// Longest datagram on the control socket.
const MAX_DATAGRAM: usize = 16 << 10;
/// Datagrams that are taken before timers are looked at again.
const BATCH: usize = 64;
/// How often the device reports what it has moved.
const REPORT_NS: u64 = 1_000_000_000;
/// How often a UDP port is looked for that is free on all planes.
const PORT_TRIES: usize = 32;
/// How long an idle lane sleeps at most, for changes of links; packets and posts wake it.
const NAP: Duration = Duration::from_millis(100);

/// See the [module documentation](self).
pub(crate) struct Nic {
    pub(crate) verbs: verbs::Context,
    pub(crate) planes: Vec<IpAddr>,
    /// Those that stand by for the others.
    pub(crate) standby: PlaneSet,
    /// Peers that are not Spindrift, if all are.
    pub(crate) peers: Option<StaticPeers>,
    /// Which process of this host this is, and its identifier.
    process: u32,
    pub(crate) pid: u32,
    home: Home,
    control: Control,
    /// Where whoever reads the control socket puts a datagram.
    datagram: Mutex<Vec<u8>>,
    pub(crate) local: LocalMemory,
    pub(crate) tally: Tally,
    reporter: Option<Reporter>,
    /// What a controller manages.
    pub(crate) managed: Managed,
    /// The socket for `spindrift ctl`.
    operator: OnceLock<spindrift_control::Server>,
    /// Wakes the control thread.
    wake: OwnedFd,
    began: Instant,
    state: Mutex<State>,
    /// Queue pairs of datagrams.
    datagrams: RwLock<BTreeMap<Number, Arc<UdQp>>>,
    /// Connected queue pairs by their numbers on the wire.
    wires: RwLock<BTreeMap<u32, Arc<QpCore>>>,
    /// Completion queues and shared receive queues, for events.
    cqs: Mutex<BTreeMap<CqId, Object>>,
    srqs: Mutex<BTreeMap<SrqId, Object>>,
    /// Those of each context, for events of the device.
    contexts: Mutex<Vec<Weak<EventQueue>>>,
}

/// The address of an object of C, and where its events go.
pub(crate) type Object = (usize, Weak<EventQueue>);

#[derive(Default)]
struct State {
    handshakes: Handshakes,
    qps: BTreeMap<Number, Arc<QpCore>>,
    next: u32,
    /// When queue pairs give up whose peers have not been heard of.
    deadlines: BTreeMap<Number, Time>,
    nonces: u64,
    /// What the contexts were told of the port.
    is_down: bool,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(
        "no UDP port from {0} on is free on {1} for control; end other processes, or set SPINDRIFT_CONTROL_PORT"
    )]
    NoControlPort(u16, IpAddr),
    #[error("the control socket on {0}: {1}")]
    Control(SocketAddr, io::Error),
    #[error(transparent)]
    Port(#[from] UdpError),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error("the control thread: {0}")]
    Thread(io::Error),
    #[error("the system gives no random numbers")]
    Random,
    #[error("the system gives no descriptor")]
    Descriptor(c_int),
}

impl OpenError {
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Verbs(error) => code_of(error),
            Self::Descriptor(code) => *code,
            Self::Control(_, error) | Self::Thread(error) => error.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::ENODEV,
        }
    }
}

/// A port for each plane, all with the same number: this one, or if it is 0 one that the kernel chooses.
fn open_planes(planes: &[IpAddr], number: u16) -> Result<(Vec<UdpPort>, u16), UdpError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut ports: Vec<UdpPort> = Vec::new();
        let opened = planes.iter().try_for_each(|local| {
            let port = ports.first().map_or(number, UdpPort::port);
            ports.push(UdpPort::open(&UdpConfig { local: *local, port, ..UdpConfig::default() })?);
            Ok(())
        });
        match opened {
            Ok(()) => {
                let port = ports.first().map_or(0, UdpPort::port);
                return Ok((ports, port));
            }
            Err(UdpError::PortInUse { .. }) if number == 0 && tries < PORT_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Threads that begin meanwhile get no signals: those are for the threads of the program.
pub(crate) fn without_signals<R>(act: impl FnOnce() -> R) -> R {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are this function's, and the first is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = act();
    // SAFETY: the call above has filled it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    result
}

/// The name of the program, as the system has it.
pub(crate) fn program_name() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim().to_owned()
}

pub(crate) fn random() -> Result<u64, OpenError> {
    let mut bytes = [0_u8; 8];
    // SAFETY: eight bytes of this function.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(OpenError::Random) }
}

impl Nic {
    pub(crate) fn open(nic: &NicSettings, settings: &Settings) -> Result<Arc<Self>, OpenError> {
        let (control, process) = Control::open(&nic.planes, nic.standby, settings.control_port)?;
        let (ports, udp_port) =
            open_planes(&nic.planes, settings.peers.as_ref().map_or(0, |peers| peers.udp_port))?;
        let (ports, planes): (Vec<_>, Vec<_>) = ports.into_iter().map(PlanePort::new).unzip();
        let ports: Vec<Box<dyn Port>> = ports
            .into_iter()
            .enumerate()
            .map(|(plane, port)| match &settings.fault {
                None => Box::new(port) as Box<dyn Port>,
                Some(plan) => Box::new(FaultPort::new(Box::new(port), plane, plan.clone(), settings.seed))
                    as Box<dyn Port>,
            })
            .collect();
        let mut config = ContextConfig::new(&ports).lane(LaneMode::Hybrid { nap: NAP });
        config.endpoint.udp_port = udp_port;
        // Programs unmap what a peer has read, as a NIC that has pinned the pages lets them.
        config.endpoint.copy_responses = true;
        let wake = counting_fd().map_err(OpenError::Descriptor)?;
        let nonces = random()?;
        let device = nic.planes.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let store = Store::new(settings.device_dir.as_deref(), network_namespace(control.fd()), device);
        let managed = Managed::new(store, device, planes, nonces);
        without_signals(|| {
            let nic = Arc::new(Self {
                verbs: verbs::Context::open(ports, config)?,
                planes: nic.planes.clone(),
                process,
                pid: std::process::id(),
                home: Home::here(),
                control,
                standby: nic.standby,
                peers: settings.peers.clone(),
                datagram: Mutex::new(vec![0; MAX_DATAGRAM]),
                local: LocalMemory::default(),
                tally: Tally::default(),
                reporter: Reporter::of(&nic.name),
                managed,
                operator: OnceLock::new(),
                wake,
                began: Instant::now(),
                // Numbers are seldom used again at once when a process takes the place of one that has ended.
                state: Mutex::new(State { next: nonces as u32, nonces, ..State::default() }),
                datagrams: RwLock::default(),
                wires: RwLock::default(),
                cqs: Mutex::default(),
                srqs: Mutex::default(),
                contexts: Mutex::default(),
            });
            let of_thread = Arc::clone(&nic);
            let thread = std::thread::Builder::new().name("spindrift-peers".to_owned());
            thread.spawn(move || of_thread.run()).map_err(OpenError::Thread)?;
            // Unit tests leave the folder of the user alone.
            if !cfg!(test)
                && let Some(server) = operator::serve(&nic, &program_name(), &settings.control_dir)
            {
                let _ = nic.operator.set(server);
            }
            end_with_process(&nic);
            Ok(nic)
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    /// A context of a program wants the device's events.
    pub(crate) fn add_context(&self, events: &Arc<EventQueue>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(events));
    }

    /// A number for a queue pair, which is given to it before anybody else can see it. `None`: all are in use.
    pub(crate) fn add_qp(&self, wire: Qpn, make: impl FnOnce(Number) -> Arc<QpCore>) -> Option<Arc<QpCore>> {
        let mut state = self.state();
        let number = match self.peers {
            // They know it by its number on the wire.
            Some(_) => Number::from_verbs(wire.get()),
            None => self.free_number(&mut state)?,
        };
        let core = make(number);
        state.qps.insert(number, Arc::clone(&core));
        state.handshakes.created(number);
        count(&self.tally.created);
        Some(core)
    }

    /// The same for a queue pair of datagrams.
    pub(crate) fn add_datagrams(&self, make: impl FnOnce(Number) -> Arc<UdQp>) -> Option<Arc<UdQp>> {
        let mut state = self.state();
        let number = self.free_number(&mut state)?;
        let qp = make(number);
        self.datagrams.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&qp));
        count(&self.tally.created);
        Some(qp)
    }

    fn free_number(&self, state: &mut State) -> Option<Number> {
        let datagrams = self.datagrams.read().unwrap_or_else(PoisonError::into_inner);
        let number = (0..Number::QUEUE_PAIRS).find_map(|step| {
            let local = state.next.wrapping_add(step) % Number::QUEUE_PAIRS;
            let number = Number::new(self.process, local);
            let is_free = !state.qps.contains_key(&number) && !datagrams.contains_key(&number);
            // The first three are reserved, in each process alike.
            (local > 2 && is_free).then_some(number)
        })?;
        state.next = number.get().wrapping_add(1);
        Some(number)
    }

    pub(crate) fn remove_datagrams(&self, number: Number) {
        self.datagrams.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Bytes of a datagram's payload, at most: the MTU that the port reports.
    pub(crate) fn mtu(&self) -> u32 {
        mtu_bytes(self.mtu_code()).unwrap_or(256)
    }

    pub(crate) fn mtu_code(&self) -> c_int {
        mtu_code(self.verbs.query_ports().iter().map(|port| port.max_mtu).min().unwrap_or(256))
    }

    /// Sends a datagram to the process that a number names, or drops it: if the host cannot be reached, or the system takes none for
    /// long.
    pub(crate) fn send_datagram(&self, host: IpAddr, number: Number, bytes: &[u8]) {
        if self.control.send((host, number.process()), self.control.best(), bytes, true) {
            count(&self.tally.sent);
        }
    }

    /// Reports what the device has moved, if somebody wants that.
    pub(crate) fn report(&self, ended: bool) {
        if let Some(reporter) = &self.reporter {
            reporter.write(self, ended);
        }
    }

    /// The process ends: its socket for operators goes.
    pub(crate) fn remove_socket(&self) {
        if let Some(server) = self.operator.get() {
            let _ = std::fs::remove_file(server.path());
        }
    }

    pub(crate) fn remove_qp(&self, core: &QpCore) {
        let mut state = self.state();
        state.qps.remove(&core.number);
        state.handshakes.forget(core.number);
        state.deadlines.remove(&core.number);
    }

    /// The queue pair has this number on the wire now, in place of an older one.
    pub(crate) fn set_wire(&self, core: &Arc<QpCore>, old: Option<Qpn>, new: Option<Qpn>) {
        let mut wires = self.wires.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = old {
            wires.remove(&old.get());
        }
        if let Some(new) = new {
            wires.insert(new.get(), Arc::clone(core));
        }
    }

    /// Calls `act` with the queue pairs by their numbers on the wire.
    pub(crate) fn with_wires<R>(&self, act: impl FnOnce(&BTreeMap<u32, Arc<QpCore>>) -> R) -> R {
        act(&self.wires.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins the handshake of a queue pair.
    pub(crate) fn begin_handshake(
        &self,
        number: Number,
        peer: crate::handshake::Peer,
        info: spindrift::endpoint::QpInfo,
    ) {
        let now = self.now();
        let mut state = self.state();
        // Nonces differ, and nobody outside can tell the next one from those before.
        state.nonces = mix(state.nonces.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let nonce = state.nonces;
        let is_of = |host, address| self.control.is_of(host, address);
        let (peer, offer) = ((peer, self.control.best()), (info, nonce));
        let actions = state.handshakes.on_rtr(now, number, peer, offer, is_of);
        drop(state);
        self.perform(actions);
        self.wake();
    }

    /// A queue pair is reset: it is no longer connected.
    pub(crate) fn forget_handshake(&self, number: Number) {
        let mut state = self.state();
        state.handshakes.forget(number);
        state.deadlines.remove(&number);
    }

    /// If the peer has not been heard of by then, the queue pair gives up.
    pub(crate) fn set_deadline(&self, number: Number, at: Time) {
        self.state().deadlines.insert(number, at);
        self.wake();
    }

    fn wake(&self) {
        raise(&self.wake);
    }

    pub(crate) fn set_cq(&self, id: CqId, at: Option<Object>) {
        let mut cqs = self.cqs.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => drop(cqs.insert(id, at)),
            None => drop(cqs.remove(&id)),
        }
    }

    pub(crate) fn cq(&self, id: CqId) -> Option<usize> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner).get(&id).map(|(at, _)| *at)
    }

    pub(crate) fn set_srq(&self, id: SrqId, at: Option<Object>) {
        let mut srqs = self.srqs.lock().unwrap_or_else(PoisonError::into_inner);
        match at {
            Some(at) => drop(srqs.insert(id, at)),
            None => drop(srqs.remove(&id)),
        }
    }

    /// Does what the handshakes want. Without any lock: a queue pair that connects calls back.
    fn perform(&self, actions: Vec<Action>) {
        let mut left = actions;
        while let Some(action) = left.pop() {
            match action {
                Action::Send(peer, plane, hello) => {
                    // It is repeated, so a full queue or a host that cannot be reached is no error yet.
                    let to = (peer.address, peer.number.process());
                    self.control.send(to, plane, &hello.encode(), false);
                }
                Action::Connect(number, info) => {
                    if let Some(host) = self.state().handshakes.peer(number) {
                        self.control.learn(host, info.ports.iter().map(|port| port.ip));
                    }
                    let core = self.state().qps.get(&number).cloned();
                    if let Some(core) = core
                        && let Err(reason) = core.connect(&info)
                    {
                        left.extend(self.state().handshakes.refuse(number, &reason));
                        Self::fail(&core, &reason);
                    }
                    self.state().deadlines.remove(&number);
                }
                Action::Fail(number, reason) => {
                    let core = self.state().qps.get(&number).cloned();
                    if let Some(core) = core {
                        Self::fail(&core, &reason);
                    }
                }
            }
        }
    }

    fn fail(core: &QpCore, reason: &str) {
        tell(&format!("queue pair {:#x} cannot connect", core.number.get()), &reason);
        core.refuse();
    }

    /// The control thread.
    fn run(&self) {
        let mut reported = self.now();
        loop {
            self.wait();
            (0..self.planes.len()).for_each(|plane| self.receive_on(plane));
            self.on_time();
            self.listen();
            let now = self.now();
            if now.since(reported) >= REPORT_NS {
                reported = now;
                self.report(false);
            }
            let mut of_paths = PathEvents::default();
            while let Some(event) = self.verbs.poll_async_event() {
                if let AsyncEvent::Path { qpn, change } = &event {
                    of_paths.add(self, *qpn, change);
                } else {
                    self.on_event(&event);
                }
            }
            of_paths.report(&self.managed);
        }
    }

    /// Takes what other processes that use the device say, and says what they had no room for.
    fn listen(&self) {
        if self.is_elsewhere() {
            return;
        }
        let all = || self.state().qps.values().cloned().collect::<Vec<_>>();
        let mut changed = false;
        for _ in 0..BATCH {
            let count = |profile| usage::count(all().iter(), profile);
            let Some(has_changed) = self.managed.receive(count) else { break };
            changed |= has_changed;
        }
        if changed {
            let state = self.managed.refresh();
            for core in all() {
                core.follow(&state);
            }
        }
        self.managed.retry();
    }

    /// Whether this is the child of a fork, which shares the socket with its parent and must leave it alone.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere()
    }

    /// Takes datagrams that have arrived. A program calls it that polls for them. On other planes the control thread takes them.
    pub(crate) fn receive(&self) {
        self.receive_on(self.control.best());
    }

    /// Takes what has arrived on the control socket of a plane, unless another thread does.
    fn receive_on(&self, plane: usize) {
        if self.is_elsewhere() {
            return;
        }
        let mut buffer = match self.datagram.try_lock() {
            Ok(buffer) => buffer,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let first_port = self.control.first_port();
        let is_of = |host, address| self.control.is_of(host, address);
        for _ in 0..BATCH {
            let Some((len, source)) = self.control.receive(plane, &mut buffer) else { break };
            let bytes = buffer.get(..len).unwrap_or_default();
            if let Some(hello) = Hello::decode(bytes) {
                self.on_hello((source.ip(), plane), hello);
            } else if let Some(own) = self.planes.first()
                && let Some(datagram) = datagram::decode(bytes, source, *own, first_port, is_of)
            {
                self.on_datagram(&datagram);
            }
        }
    }

    fn on_datagram(&self, datagram: &Datagram<'_>) {
        let datagrams = self.datagrams.read().unwrap_or_else(PoisonError::into_inner);
        let qp = datagrams.get(&datagram.head.to).cloned();
        drop(datagrams);
        let taken = qp.is_some_and(|qp| qp.deliver(datagram));
        count(if taken { &self.tally.received } else { &self.tally.dropped });
    }

    fn wait(&self) {
        let due = {
            let state = self.state();
            let first = state.deadlines.values().min().copied().unwrap_or(Time::NEVER);
            state.handshakes.next_timeout().min(first)
        };
        let due = if self.managed.has_unsent() { due.min(self.now().after(RETRY_NS)) } else { due };
        let timeout = match due {
            _ if self.reporter.is_some() => {
                (due.since(self.now()).min(REPORT_NS).div_ceil(1_000_000)) as c_int
            }
            Time::NEVER => -1,
            due => (due.since(self.now()).div_ceil(1_000_000)).min(1 << 20) as c_int,
        };
        let fds = [self.wake.as_raw_fd(), self.verbs.async_fd().as_raw_fd()];
        let fds = fds.into_iter().chain(self.control.fds()).chain(self.managed.fd());
        let mut polls: Vec<_> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the elements are this function's.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        if polls.first().is_some_and(|wake| wake.revents != 0) {
            lower(&self.wake);
        }
    }

    fn on_hello(&self, from: (IpAddr, usize), hello: Hello) {
        let now = self.now();
        let mut state = self.state();
        let State { handshakes, qps, .. } = &mut *state;
        let is_of = |host, address| self.control.is_of(host, address);
        let actions = handshakes.on_hello(now, from, hello, |number| qps.contains_key(&number), is_of);
        drop(state);
        self.perform(actions);
    }

    fn on_time(&self) {
        let now = self.now();
        let mut state = self.state();
        let actions = state.handshakes.on_time(now);
        let over: Vec<_> =
            state.deadlines.iter().filter(|(_, at)| **at <= now).map(|(number, _)| *number).collect();
        let over: Vec<_> = over
            .into_iter()
            .filter_map(|number| {
                state.deadlines.remove(&number);
                state.qps.get(&number).cloned()
            })
            .collect();
        drop(state);
        self.perform(actions);
        for core in over {
            // The peer's process is silent, as a NIC may be.
            if core.give_up() {
                core.raise(event_type::QP_FATAL);
            }
        }
    }

    fn on_event(&self, event: &AsyncEvent) {
        match event {
            AsyncEvent::QpFatal(failure) => {
                let core = self.with_wires(|wires| wires.get(&failure.qpn.get()).cloned());
                if let Some(core) = core {
                    core.on_fatal(failure);
                }
            }
            AsyncEvent::CqError { cq } => {
                let found = self.cqs.lock().unwrap_or_else(PoisonError::into_inner).get(cq).cloned();
                raise_of(found, event_type::CQ_ERR);
            }
            AsyncEvent::SrqLimitReached { srq } => {
                let found = self.srqs.lock().unwrap_or_else(PoisonError::into_inner).get(srq).cloned();
                raise_of(found, event_type::SRQ_LIMIT_REACHED);
            }
            AsyncEvent::PortDown { plane, .. } => self.on_link(*plane, false),
            AsyncEvent::PortUp { plane, .. } => self.on_link(*plane, true),
            AsyncEvent::PlanesSwitched { planes, .. } => {
                let stands_by = planes.0 & self.standby.0 != 0;
                count(if stands_by { &self.tally.failovers } else { &self.tally.failbacks });
                self.control.set_serving(*planes);
            }
            AsyncEvent::LaneFailed => {
                tell("a lane has failed", &self.verbs.failure().unwrap_or("see above"));
                self.tell_contexts(About::Port, event_type::DEVICE_FATAL);
            }
            _ => {}
        }
    }

    /// The one port of the device is down when no plane has a link.
    pub(crate) fn is_up(&self) -> bool {
        self.verbs.query_ports().iter().any(|port| port.link == LinkState::Up)
    }

    fn on_link(&self, plane: u8, is_up: bool) {
        self.control.set_link(plane, is_up);
        let up = self.is_up();
        let was = core::mem::replace(&mut self.state().is_down, !up);
        if was == up {
            self.tell_contexts(About::Port, of_port(up));
        }
    }

    fn tell_contexts(&self, about: About, event: c_int) {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        contexts.iter().filter_map(Weak::upgrade).for_each(|context| context.push(about, event));
    }
}

/// Changes of paths that controllers want to know of, by profile.
#[derive(Default)]
struct PathEvents {
    by_profile: BTreeMap<u64, Vec<Change>>,
    /// Queue pairs that they are of, with their profiles.
    of: BTreeMap<u32, (u64, Arc<QpCore>)>,
}

impl PathEvents {
    fn add(&mut self, nic: &Nic, qpn: Qpn, event: &spindrift::path::EvEvent) {
        let Some(core) = nic.with_wires(|wires| wires.get(&qpn.get()).cloned()) else { return };
        if let Some((profile, change)) = core.path_event(&nic.managed.state(), event) {
            self.by_profile.entry(profile).or_default().push(change);
            self.of.insert(qpn.get(), (profile, core));
        }
    }

    fn report(self, to: &Managed) {
        for (profile, changes) in self.by_profile {
            let of = self.of.values().filter(|(of, _)| *of == profile);
            let lost = of.map(|(_, core)| core.events_lost()).fold(0, u32::saturating_add);
            to.report(profile, &changes, lost);
        }
    }
}

/// An event of an object, if it has not ended.
fn raise_of(object: Option<Object>, event: c_int) {
    if let Some((at, events)) = object
        && let Some(events) = events.upgrade()
    {
        events.push(About::Object(at), event);
    }
}

/// Mixes the bits of a number.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
