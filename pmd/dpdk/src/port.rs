//! The port itself.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spindrift_pmd::device::is_running;
use spindrift_pmd::netlink::Netlink;
use spindrift_pmd::shared_interface::destination;
use spindrift_pmd::{LinkState, MacAddr, Port, PortCaps, PortCounters, RxFrame, TxFrame};

use crate::classify::{Kind, Wanted};
use crate::open;
use crate::stack::{Duplicate, Out, Stack};
use crate::sys::{self, Device, RX_BATCH, RxQueue, Sent, Stats, TxQueue};
use crate::{DpdkConfig, DpdkError, Eal};

/// How often the device is asked for its link.
const LINK_POLL: Duration = Duration::from_millis(1);
/// How soon the device is given again what it had no room for.
const FULL_PAUSE_NS: u64 = 20_000;
/// How often it is looked for neighbours whose answers are old.
const REFRESH_NS: u64 = 10_000_000;
/// Destinations whose Ethernet address is at hand, a power of two.
const FRONT: usize = 512;
/// Frames that are not the transport's which one call takes.
const OTHERS: usize = 256;

/// What the ports of a device have in common.
pub(crate) struct Shared {
    stack: Mutex<Stack>,
    /// Those of the stack, for ports to see without a lock.
    changes: AtomicU64,
    is_usable: AtomicBool,
    /// What the device had counted before it was opened.
    before: Stats,
    /// Frames that the device did not take and was given again, which drivers may count as errors.
    refused: AtomicU64,
    interface: Option<KernelInterface>,
    device: Arc<Device>,
}

/// The kernel's interface that a device uses. Drivers of such devices may not say that it is down.
pub(crate) struct KernelInterface {
    /// A socket of its network namespace.
    pub(crate) socket: Netlink,
    pub(crate) name: String,
}

impl Shared {
    pub(crate) fn new(
        device: Arc<Device>,
        stack: Stack,
        before: Stats,
        interface: Option<KernelInterface>,
    ) -> Self {
        Self {
            interface,
            is_usable: AtomicBool::new(stack.is_usable()),
            stack: Mutex::new(stack),
            changes: AtomicU64::new(0),
            before,
            refused: AtomicU64::new(0),
            device,
        }
    }

    fn link(&self) -> LinkState {
        let is_up = self.device.link().is_up
            && self
                .interface
                .as_ref()
                .is_none_or(|kernel| is_running(&kernel.socket, &kernel.name).unwrap_or(false));
        if is_up { LinkState::Up } else { LinkState::Down }
    }

    fn stack(&self) -> MutexGuard<'_, Stack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the stack, and takes note of what has changed.
    fn with_stack<T>(&self, ask: impl FnOnce(&mut Stack) -> T) -> T {
        let mut stack = self.stack();
        let answer = ask(&mut stack);
        self.changes.store(stack.changes(), Ordering::Relaxed);
        self.is_usable.store(stack.is_usable(), Ordering::Relaxed);
        answer
    }
}

/// One lane's part of a device: a plane. See the [crate](crate).
pub struct DpdkPort {
    caps: PortCaps,
    counters: PortCounters,
    // The queues come before what keeps the device open.
    pub(crate) tx: TxQueue,
    rx: RxQueue,
    wanted: Wanted,
    shared: Arc<Shared>,
    /// The last destinations, each in one place, and the changes that they know of.
    front: Vec<Option<(IpAddr, MacAddr)>>,
    seen: u64,
    /// Whether frames can be sent: there is a carrier, and the port's address is its alone.
    link: LinkState,
    carrier: LinkState,
    link_at: Option<Instant>,
    /// When the port's address becomes its own.
    detected_at: Option<u64>,
    /// Of the ports of a device one counts what the device counts, and looks after neighbours.
    first: bool,
    retry_at: Option<u64>,
    refresh_at: u64,
    /// Frames of the stack, kept for its memory.
    out: Out,
    /// Frames of the last burst that were given back.
    unsent: Vec<u16>,
    /// Those of the burst at hand that are to be sent, and where to.
    chosen: Vec<(u16, MacAddr)>,
    /// Frames whose payload was not copied by the port.
    lent: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent(MacAddr),
    /// It stays with the caller, and so do those behind it.
    NoRoom,
    /// It stays with the caller: the next neighbour has just been asked for its address.
    Unresolved,
    Oversize,
    /// The port cannot read it, or its payload has no bytes.
    Unsendable,
    /// There is no way to its destination, or the next neighbour does not answer.
    Unreachable,
    LinkDown,
}

impl DpdkPort {
    /// Opens the planes of a NIC for several lanes: for each device one port per lane, each with a queue of its own. The device puts what
    /// arrives into any of the queues, so that a packet may arrive at another lane than its own.
    ///
    /// # Errors
    /// See [`DpdkError`].
    pub fn open_planes(eal: Eal, configs: &[DpdkConfig], lanes: usize) -> Result<Vec<Vec<Self>>, DpdkError> {
        open::open(eal, configs, lanes)
    }

    /// Opens a port for one lane.
    ///
    /// # Errors
    /// See [`DpdkError`].
    pub fn open(eal: Eal, config: &DpdkConfig) -> Result<Self, DpdkError> {
        let ports = open::open(eal, std::slice::from_ref(config), 1)?;
        let none =
            DpdkError::Lanes { device: config.device.clone(), driver: String::new(), lanes: 0, queues: 0 };
        ports.into_iter().flatten().next().ok_or(none)
    }

    pub(crate) fn new(
        caps: PortCaps,
        (tx, rx): (TxQueue, RxQueue),
        wanted: Wanted,
        shared: Arc<Shared>,
        first: bool,
    ) -> Self {
        Self {
            caps,
            counters: PortCounters::default(),
            tx,
            rx,
            wanted,
            shared,
            front: vec![None; FRONT],
            seen: 0,
            link: LinkState::Down,
            carrier: LinkState::Down,
            detected_at: None,
            link_at: None,
            first,
            retry_at: None,
            refresh_at: 0,
            out: Out::new(),
            unsent: Vec::with_capacity(open::STAGED),
            chosen: Vec::with_capacity(open::STAGED),
            lent: 0,
        }
    }

    /// Frames whose payload the driver has read where it was, so that the port has not copied it.
    pub fn uncopied_frames(&self) -> u64 {
        self.lent
    }

    /// Asks the device for its link, at most once in a while.
    #[expect(
        clippy::disallowed_methods,
        reason = "the link is polled by the clock, whatever time the driver keeps"
    )]
    fn look_at_link(&mut self) {
        let now = Instant::now();
        if self.link_at.is_some_and(|at| now.duration_since(at) < LINK_POLL) {
            return;
        }
        self.link_at = Some(now);
        self.carrier = self.shared.link();
        self.link = if self.shared.is_usable.load(Ordering::Relaxed) {
            self.carrier
        } else {
            self.look_at_duplicate();
            LinkState::Down
        };
    }

    /// Says who has the port's address.
    #[cold]
    fn look_at_duplicate(&mut self) {
        if self.caps.send_errors.is_empty() {
            let error = self.duplicate().map(|duplicate| self.error_of(duplicate).to_string());
            self.caps.send_errors.extend(error);
        }
    }

    fn error_of(&self, Duplicate { address, mac }: Duplicate) -> DpdkError {
        DpdkError::Duplicate { address: address.into(), device: self.caps.name.clone(), mac }
    }

    fn duplicate(&self) -> Option<Duplicate> {
        self.shared.stack().duplicate()
    }

    /// Looks for duplicates of the port's address while it is opened. `Ok(false)`: it has been looked for long enough, or there is no
    /// link.
    pub(crate) fn detect(&mut self, now_ns: u64) -> Result<bool, DpdkError> {
        self.look_at_link();
        self.refresh_at = now_ns;
        self.refresh(now_ns);
        self.receive_raw(RX_BATCH, |_| false, || now_ns, &mut |_| ());
        if let Some(duplicate) = self.duplicate() {
            return Err(self.error_of(duplicate));
        }
        Ok(self.carrier == LinkState::Up && self.shared.stack().is_detecting())
    }

    /// Whether the port must not use its address yet.
    pub(crate) fn is_tentative(&self) -> bool {
        let stack = self.shared.stack();
        stack.is_detecting() && !stack.is_usable()
    }

    /// Starts the driver's clock anew.
    pub(crate) fn restart_clock(&mut self) {
        (self.refresh_at, self.link_at, self.retry_at) = (0, None, None);
    }

    /// Where packets to an address go.
    #[inline]
    fn mac_of(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        let changes = self.shared.changes.load(Ordering::Relaxed);
        if self.seen != changes {
            self.seen = changes;
            self.front.fill(None);
        }
        match self.front.get(place(to)) {
            Some(&Some((ip, mac))) if ip == to => Some(mac),
            _ => self.look_up(to, now_ns),
        }
    }

    #[cold]
    fn look_up(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        let mac = self.shared.with_stack(|stack| stack.mac_of(to, now_ns, &mut self.out));
        self.queue_out();
        let mac = mac?;
        if let Some(place) = self.front.get_mut(place(to)) {
            *place = Some((to, mac));
        }
        Some(mac)
    }

    /// Queues what the stack has to say. Where there is no room it is lost; those who asked will ask again.
    fn queue_out(&mut self) {
        for frame in self.out.drain(..) {
            self.tx.push(frame.len(), |out| out.copy_from_slice(&frame));
        }
    }

    /// What is to become of a frame. The buffers that it and those before it take are not taken yet.
    fn choose(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Fate {
        let len = frame.len();
        if len > self.caps.max_frame {
            return Fate::Oversize;
        }
        let is_virtual = !frame.payload.is_empty() && frame.payload.as_ptr().is_none();
        let Some(to) = destination(frame.head).filter(|_| !is_virtual) else { return Fate::Unsendable };
        if self.link_at.is_none() {
            self.look_at_link();
        }
        if self.link == LinkState::Down {
            return Fate::LinkDown;
        }
        let Some(mac) = self.mac_of(to, now_ns) else {
            let soon = self.shared.stack().may_know_soon(to);
            return if soon { Fate::Unresolved } else { Fate::Unreachable };
        };
        if self.chosen.len() < self.tx.ready() { Fate::Sent(mac) } else { Fate::NoRoom }
    }

    fn count(&mut self, fate: Fate, len: usize) {
        let counters = &mut self.counters;
        match fate {
            Fate::Sent(_) => {
                counters.tx_frames += 1;
                counters.tx_bytes += len as u64;
                return;
            }
            Fate::NoRoom => return,
            Fate::Unresolved => {
                counters.tx_unsent += 1;
                return;
            }
            Fate::LinkDown => {}
            Fate::Oversize => counters.tx_oversize += 1,
            Fate::Unsendable => counters.tx_unsendable += 1,
            Fate::Unreachable => counters.tx_errors += 1,
        }
        counters.tx_dropped += 1;
    }

    /// Gives the device what waits.
    fn kick(&mut self, now_ns: u64) {
        if self.tx.waiting() == 0 {
            self.retry_at = None;
            return;
        }
        let sent = self.tx.send();
        self.note(sent, now_ns);
    }

    /// Counts what sending did, and sees to what the device had no room for.
    fn note(&mut self, sent: Sent, now_ns: u64) {
        self.counters.tx_calls += sent.calls;
        self.counters.tx_dropped += sent.dropped;
        self.lent += sent.lent;
        if sent.refused > 0 {
            self.shared.refused.fetch_add(sent.refused, Ordering::Relaxed);
        }
        let waits = self.tx.waiting() > 0;
        self.retry_at = waits.then(|| now_ns.saturating_add(FULL_PAUSE_NS));
    }

    /// The same if there is something left and it is time to.
    fn kick_again(&mut self, now_ns: u64) {
        if self.retry_at.is_some_and(|at| now_ns >= at) {
            self.kick(now_ns);
        }
    }

    /// Asks the neighbour that packets to an address go to for its Ethernet address, unless that is known.
    pub(crate) fn ask_neighbour(&mut self, to: IpAddr, now_ns: u64) -> Option<MacAddr> {
        sys::join();
        let mac = self.mac_of(to, now_ns);
        self.kick(now_ns);
        mac
    }

    /// Gives the device what waits; returns how often it was called.
    pub(crate) fn send_waiting(&mut self) -> u64 {
        sys::join();
        let sent = self.tx.send();
        if sent.refused > 0 {
            self.shared.refused.fetch_add(sent.refused, Ordering::Relaxed);
        }
        sent.calls
    }

    /// Shows up to `most` frames whose length is `known`, and the transport's other ones, to `sink`; the rest goes to the stack. Returns
    /// how many frames there were. `now_ns` is asked only for the stack.
    pub(crate) fn receive_raw(
        &mut self,
        most: usize,
        known: impl Fn(usize) -> bool,
        now_ns: impl Fn() -> u64,
        sink: &mut dyn FnMut(&RxFrame<'_>),
    ) -> usize {
        sys::join();
        let Self { rx, wanted, shared, out, counters, .. } = self;
        let received = rx.receive(most, &mut |frame| {
            if known(frame.len()) || wanted.kind(frame.data) == Kind::Ours {
                sink(frame);
            } else if frame.rest.is_empty() {
                shared.with_stack(|stack| stack.receive(frame.data, now_ns(), out));
            }
        });
        counters.rx_dropped += received.dropped;
        if !self.out.is_empty() {
            self.queue_out();
            self.kick(now_ns());
        }
        received.frames
    }

    /// Looks after neighbours, when it is time to.
    fn refresh(&mut self, now_ns: u64) {
        if !self.first || now_ns < self.refresh_at {
            return;
        }
        self.refresh_at = now_ns.saturating_add(REFRESH_NS);
        if self.link_at.is_none() {
            self.look_at_link();
        }
        let has_link = self.carrier == LinkState::Up;
        self.shared.with_stack(|stack| {
            stack.detect(has_link, now_ns, &mut self.out);
            self.detected_at = stack.detected_at();
            // What is said while nobody hears it is not said again soon.
            if has_link && stack.is_usable() {
                stack.announce(now_ns, &mut self.out);
            }
            stack.refresh(now_ns, &mut self.out);
        });
        if !self.out.is_empty() {
            self.queue_out();
            self.kick(now_ns);
        }
    }
}

impl fmt::Debug for DpdkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DpdkPort").field("name", &self.caps.name).finish_non_exhaustive()
    }
}

impl Port for DpdkPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    /// Asks the device at most once a millisecond.
    fn link(&mut self) -> LinkState {
        self.look_at_link();
        self.link
    }

    fn tx_room(&mut self, now_ns: u64) -> usize {
        sys::join();
        self.kick_again(now_ns);
        self.refresh(now_ns);
        let room = self.tx.room();
        self.counters.tx_full += u64::from(room == 0);
        room
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        sys::join();
        let frames = &frames[..frames.len().min(self.caps.max_burst)];
        self.unsent.clear();
        self.chosen.clear();
        self.tx.room();
        let mut taken = 0;
        for frame in frames {
            let fate = self.choose(now_ns, frame);
            self.count(fate, frame.len());
            match fate {
                Fate::NoRoom => {
                    self.counters.tx_full += 1;
                    break;
                }
                Fate::Sent(mac) => self.chosen.push((taken as u16, mac)),
                Fate::Unresolved => self.unsent.push(taken as u16),
                Fate::Oversize | Fate::Unsendable | Fate::Unreachable | Fate::LinkDown => {}
            }
            taken += 1;
        }
        if !self.chosen.is_empty() {
            let own = self.caps.mac;
            let chosen = self.chosen.iter();
            let chosen = chosen.map(|&(at, mac)| (&frames[usize::from(at)], [mac, own]));
            let sent = self.tx.send_frames(chosen);
            self.counters.tx_frames -= sent.dropped;
            self.note(sent, now_ns);
        } else if self.tx.waiting() > 0 {
            self.kick(now_ns);
        }
        taken
    }

    /// Frames to a neighbour whose address will be known soon. What the device has no room for waits in the port, and its place is not
    /// given to others.
    fn unsent(&self) -> &[u16] {
        &self.unsent
    }

    fn flush(&mut self, now_ns: u64) {
        self.kick_again(now_ns);
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        sys::join();
        self.kick_again(now_ns);
        self.refresh(now_ns);
        let Self { rx, wanted, shared, out, counters, .. } = self;
        let (mut shown, mut others) = (0, 0);
        while shown < max && others < OTHERS {
            let asked = (max - shown).min(RX_BATCH);
            let received = rx.receive(asked, &mut |frame| match wanted.kind(frame.data) {
                Kind::Ours => {
                    shown += 1;
                    counters.rx_bytes += frame.len() as u64;
                    sink(frame);
                }
                kind => {
                    others += 1;
                    counters.rx_unread += u64::from(kind == Kind::Unread);
                    // Messages to the stack are short, but for pings of several buffers.
                    if kind == Kind::Other && frame.rest.is_empty() {
                        shared.with_stack(|stack| stack.receive(frame.data, now_ns, out));
                    }
                }
            });
            counters.rx_dropped += received.dropped;
            // There is no more; asking again would delay those that came.
            if received.frames < asked {
                break;
            }
        }
        counters.rx_frames += shown as u64;
        counters.rx_calls += u64::from(shown > 0);
        if !self.out.is_empty() {
            self.queue_out();
            self.kick(now_ns);
        }
        shown
    }

    fn reap(&mut self) -> u64 {
        u64::MAX
    }

    fn recall(&mut self) {}

    fn next_event_ns(&self) -> Option<u64> {
        [self.retry_at, self.detected_at].into_iter().flatten().min()
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        if self.first {
            let (now, before) = (self.shared.device.stats(), self.shared.before);
            counters.rx_dropped += now.dropped.saturating_sub(before.dropped);
            counters.rx_errors += now.rx_errors.saturating_sub(before.rx_errors);
            let refused = self.shared.refused.load(Ordering::Relaxed);
            counters.tx_errors += now.tx_errors.saturating_sub(before.tx_errors).saturating_sub(refused);
        }
        counters
    }
}

/// A place in front. Destinations next to each other have different ones.
fn place(ip: IpAddr) -> usize {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let bits = (bits as u64) ^ ((bits >> 64) as u64);
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % FRONT
}
