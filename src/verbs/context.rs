//! Contexts.
//!
//! Each object that a context makes has a file of its own, which also has the call that makes it.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use spindrift_pmd::{Port, PortCaps};

use crate::counters::Counters;
use crate::endpoint::{CqId, DenyList, Endpoint, EndpointConfig, LocalPort, QpnShare};
use crate::engine::{
    AsyncEvent, ControlError, CqCore, CqReader, EventChannel, Lane, LaneCounters, LaneMode, LaneStartError,
    Lanes, LanesShared, PollMode, Snapshot, fresh_seed,
};
use crate::memory::MemorySpace;
use crate::seed::Seed;
use crate::wire::Qpn;
use crate::work::SrqId;

use super::error::VerbsError;
use super::port_attr::PortAttr;

/// Queue pairs that one control call changes, so that no lane stops for long.
const QPS_PER_CALL: usize = 16;

/// Makes a NIC of these ports, one per plane, for [`Context::open`].
pub fn nic<P: Port + 'static>(ports: Vec<P>) -> Vec<Box<dyn Port>> {
    ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
}

/// Makes a NIC for [`Context::open_lanes`] whose ports, one per plane, have several receive queues each. Queue `n` of
/// each port belongs to lane `n`.
///
/// ```
/// use spindrift::endpoint::QpnShare;
/// use spindrift::pmd::udp::{UdpConfig, UdpPort};
/// use spindrift::verbs::{Context, ContextConfig, LaneMode, nic_of_queues};
///
/// let config = UdpConfig { port: 0, ..UdpConfig::default() };
/// let plane = UdpPort::open_queues(&config, 2, &QpnShare::STEERING)?;
/// let udp_port = plane[0].port();
/// let lanes = nic_of_queues(vec![plane]);
/// let mut config = ContextConfig::new(&lanes[0]).lanes([LaneMode::Inline; 2]);
/// config.endpoint.udp_port = udp_port;
/// assert_eq!(Context::open_lanes(lanes, config)?.lanes(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn nic_of_queues<P: Port + 'static>(planes: Vec<Vec<P>>) -> Vec<Vec<Box<dyn Port>>> {
    let most = planes.iter().map(Vec::len).max().unwrap_or_default();
    let mut lanes: Vec<_> = (0..most).map(|_| Vec::with_capacity(planes.len())).collect();
    for queues in planes {
        for (lane, queue) in lanes.iter_mut().zip(queues) {
            lane.push(Box::new(queue) as Box<dyn Port>);
        }
    }
    lanes
}

/// Settings of a [`Context`].
#[derive(Clone, Debug)]
pub struct ContextConfig {
    /// Seed of every random choice (keys, numbers, paths). If it is `None`, the operating system supplies 256 bits, so
    /// that keys cannot be guessed. [`Seed::fixed`] repeats a run; its keys can be guessed.
    pub seed: Option<Seed>,
    /// How each lane is driven. Default: one lane, inside the caller's thread.
    pub lanes: Vec<LaneMode>,
    /// Settings of the transport on each lane. The seed above replaces its `seed`, and the lane's share replaces its
    /// `qpns`. On all lanes but the first, the properties of the lane's ports replace its `ports`, except for
    /// `max_frame`.
    pub endpoint: EndpointConfig,
}

impl ContextConfig {
    /// Defaults that suit these ports, for a lane inside the caller's thread.
    pub fn new(ports: &[Box<dyn Port>]) -> Self {
        let local = ports.iter().map(|port| LocalPort::from(port.caps())).collect();
        Self { seed: None, lanes: vec![LaneMode::Inline], endpoint: EndpointConfig::new(local) }
    }

    /// The same settings with one lane, driven in this mode.
    #[must_use]
    pub fn lane(self, lane: LaneMode) -> Self {
        self.lanes([lane])
    }

    /// The same settings with one lane for each of these modes, for [`Context::open_lanes`].
    #[must_use]
    pub fn lanes(self, lanes: impl Into<Vec<LaneMode>>) -> Self {
        Self { lanes: lanes.into(), ..self }
    }
}

/// A NIC in use: its ports, the transport on them and the lanes that drive both.
///
/// A lane is one loop with ports of its own, for one core; see [`Context::open_lanes`].
///
/// Clones are handles to the same context. The context ends, and its threads are joined, when all handles and
/// everything made from them have been dropped.
///
/// A context works in the process that opened it. After a fork, the child has copies of its objects, which do nothing
/// there. Calls return errors ([`ControlError::Forked`], [`PostError::LaneFailed`](super::PostError::LaneFailed), and
/// [`CqError::LaneFailed`](super::CqError::LaneFailed) once the completions already in the queue have been polled) or
/// nothing. No call waits, sends or affects the parent, and neither does dropping the objects. A child may open
/// contexts of its own. Registered memory is copied like all other memory: the writes of peers arrive in the parent's
/// copy. To let children see them, use [`Region::map_shared`](crate::memory::Region::map_shared).
#[derive(Clone)]
pub struct Context {
    shared: Arc<ContextShared>,
}

struct ContextShared {
    lanes: Lanes,
    memory: MemorySpace,
    /// The ports of each lane by plane, as they were at open.
    ports: Vec<Vec<PortAttr>>,
    config: EndpointConfig,
    /// Shared receive queues made so far.
    srqs: AtomicU32,
}

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names: Vec<_> = self.shared.ports.iter().flatten().map(|port| port.name.as_str()).collect();
        f.debug_struct("Context").field("ports", &names).finish_non_exhaustive()
    }
}

impl Context {
    /// The largest number of lanes of a context.
    pub const MAX_LANES: usize = QpnShare::MAX as usize;

    /// Opens a NIC made of these ports, one per plane, with one lane.
    ///
    /// # Errors
    /// [`VerbsError::Config`] if a setting cannot work, [`VerbsError::LaneCount`] if the settings are for more lanes,
    /// [`VerbsError::Lane`] if the thread cannot be started or the system has no random numbers for a seed.
    pub fn open(ports: Vec<Box<dyn Port>>, config: ContextConfig) -> Result<Self, VerbsError> {
        Self::open_lanes(vec![ports], config)
    }

    /// Opens a NIC with several lanes, in the modes of [`ContextConfig::lanes`]. Each lane has ports of its own, one
    /// per plane, all in the same order. A queue pair lives on one lane ([`QpConfig::lane`](super::QpConfig::lane)).
    /// All lanes share memory, protection domains, completion queues and completion channels.
    ///
    /// Each lane may have its own addresses. Lanes may also share addresses, plane by plane, as the receive queues of
    /// one NIC do. A packet that arrives on a different lane than its queue pair's is forwarded, which costs a copy
    /// and is counted ([`Counters::rx_other_lane`]). Ports that steer by [`QpnShare::STEERING`] avoid that; see
    /// [`nic_of_queues`].
    ///
    /// # Errors
    /// As [`Context::open`], [`VerbsError::PortCount`] if the number of ports of a lane differs from the settings, and
    /// [`VerbsError::LaneAddresses`] if an address belongs to different planes on different lanes.
    pub fn open_lanes(lanes: Vec<Vec<Box<dyn Port>>>, config: ContextConfig) -> Result<Self, VerbsError> {
        let ContextConfig { seed, lanes: modes, mut endpoint } = config;
        let (configured, given) = (modes.len(), lanes.len());
        if configured != given || !(1..=Self::MAX_LANES).contains(&given) {
            return Err(VerbsError::LaneCount { configured, given, most: Self::MAX_LANES });
        }
        let configured = endpoint.ports.len();
        if let Some(ports) = lanes.iter().find(|ports| ports.len() != configured) {
            return Err(VerbsError::PortCount { configured, given: ports.len() });
        }
        endpoint.seed = seed.map_or_else(fresh_seed, Ok).map_err(LaneStartError::Random)?;
        let caps: Vec<Vec<_>> =
            lanes.iter().map(|ports| ports.iter().map(|port| port.caps().clone()).collect()).collect();
        let memory = MemorySpace::new(endpoint.seed, endpoint.limits.max_regions);
        let common = Arc::new(LanesShared::new(given).map_err(LaneStartError::Thread)?);
        let settings: Vec<_> =
            (0..given as u32).map(|number| settings_of(&endpoint, number, given, &caps)).collect();
        check_addresses(&settings)?;
        let ports = settings.iter().zip(&caps).enumerate();
        let ports = ports.map(|(lane, (settings, caps))| PortAttr::of_lane(lane, settings, caps)).collect();
        let mut made = Vec::with_capacity(given);
        for (((number, ports), mode), settings) in (0u32..).zip(lanes).zip(modes).zip(settings) {
            let transport = Endpoint::with_memory(settings, &memory)?;
            made.push((Lane::new_in_context(transport, ports, number, &common), mode));
        }
        let lanes = Lanes::start(made, common)?;
        let shared = ContextShared { lanes, memory, ports, config: endpoint, srqs: AtomicU32::new(0) };
        for PortAttr { lane, plane, name, .. } in shared.ports.iter().flatten() {
            tracing::info!(target: "spindrift::plane", lane, plane, name, "port opened");
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The number of lanes. They are numbered from 0.
    pub fn lanes(&self) -> usize {
        self.shared.lanes.len()
    }

    /// The lane that a queue pair of this context with this number lives on.
    pub fn lane_of(&self, qpn: Qpn) -> usize {
        QpnShare::owner(qpn, self.lanes() as u32) as usize
    }

    /// Runs one poll of all lanes that run inside the caller's thread: sends, receives and completes what is due, and
    /// returns how much that was. Call it often. If all lanes have threads of their own, it only yields the caller's
    /// core and returns 0, so that the same waiting loop works for both. A lane in [`LaneMode::Hybrid`] that another
    /// thread polls at the moment is left to that thread.
    pub fn poll(&self) -> usize {
        self.shared.lanes.poll(PollMode::MayPause)
    }

    /// The same for one lane, so that each of an application's threads can drive one.
    ///
    /// # Panics
    /// There is no such lane.
    pub fn poll_lane(&self, lane: usize) -> usize {
        self.shared.lanes.poll_lane(lane, PollMode::MayPause)
    }

    /// As [`Context::poll`], for applications that poll without a pause and reply to short messages at once. The
    /// acknowledgements of up to four frames are held until the next poll, so that a reply posted in between leaves
    /// first. Over kernel sockets that at least halves the round-trip time. Before a pause, call [`Context::poll`]:
    /// it sends the acknowledgements held back.
    pub fn poll_busy(&self) -> usize {
        self.shared.lanes.poll(PollMode::Busy)
    }

    /// The same for one lane.
    ///
    /// # Panics
    /// There is no such lane.
    pub fn poll_lane_busy(&self, lane: usize) -> usize {
        self.shared.lanes.poll_lane(lane, PollMode::Busy)
    }

    /// Sleeps until a lane that runs inside the caller's thread has work: a frame arrived at one of its ports, another
    /// thread posted a request, another lane forwarded a packet, or a timer is due. It returns after `at_most` in any
    /// case, and may return earlier. It returns at once if the lane's last poll found work, and at the first call,
    /// which prepares the lane. Poll the lane afterwards. If the lane has a thread of its own, the call only yields
    /// the core.
    ///
    /// It is for applications that leave their core idle while there is no work; packets are received later than by an
    /// application that always polls. A port without a file descriptor for it ([`Port::readable`]), such as a loopback
    /// port, does not wake the caller. A link that goes up or down does not either.
    ///
    /// ```no_run
    /// # fn run(context: &spindrift::verbs::Context) -> std::io::Result<()> {
    /// loop {
    ///     if context.poll_lane(0) == 0 {
    ///         context.wait_lane(0, std::time::Duration::from_millis(1))?;
    ///     }
    ///     // What completed, and what to post next.
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the system has no file descriptors left for this (first call only).
    ///
    /// # Panics
    /// There is no such lane.
    pub fn wait_lane(&self, lane: usize, at_most: Duration) -> io::Result<()> {
        self.shared.lanes.wait(lane, at_most)
    }

    /// The message of a lane that panicked, if one did. The context then does nothing any more. In
    /// [`LaneMode::Inline`] the panic itself has passed through [`Context::poll`].
    pub fn failure(&self) -> Option<&str> {
        self.shared.lanes.failure()
    }

    /// The oldest asynchronous event, if there is one; [`AsyncEvent`] lists the kinds. The queue holds 1024.
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        // In a forked child, this would remove the event from the parent's queue.
        if self.in_forked_child() { None } else { self.shared.lanes.async_events().pop() }
    }

    /// Events lost because the queue was full.
    pub fn async_events_lost(&self) -> u64 {
        self.shared.lanes.async_events().lost()
    }

    /// Readable while asynchronous events are queued: wait on it, then call [`Context::poll_async_event`] until it
    /// returns `None`. Only that call reads from it.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.shared.lanes.async_events().fd()
    }

    /// The settings in use; those of the first lane if there are several.
    pub fn config(&self) -> &EndpointConfig {
        &self.shared.config
    }

    /// The transport's counters, summed over all lanes.
    ///
    /// They are taken after this call began, so they include all work whose completions the caller has seen. A lane
    /// with a thread of its own is not delayed. It publishes its counters at the end of a poll, while busy at most
    /// once a millisecond. The call waits at most that long for each lane.
    pub fn counters(&self) -> Counters {
        self.shared.lanes.transport_counters()
    }

    /// The lanes' own counters, in the same way.
    pub fn lane_counters(&self) -> LaneCounters {
        self.shared.lanes.lane_counters()
    }

    /// The transport's and the lane's own counters of one lane, in the same way.
    ///
    /// # Panics
    /// There is no such lane.
    pub fn counters_of(&self, lane: usize) -> (Counters, LaneCounters) {
        self.shared.lanes.counters(lane, |seen| (seen.transport.clone(), seen.lane))
    }

    /// Sets the list of paths that all queue pairs avoid as far as they can, in place of an earlier one: those that there
    /// are, and those to come. See [`Paths::follow_deny_list`](crate::path::Paths::follow_deny_list).
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call of this context on the same thread.
    pub fn set_deny_list(&self, list: &Arc<DenyList>) -> Result<(), VerbsError> {
        for lane in 0..self.lanes() {
            let qpns: Vec<Qpn> = self.with_endpoint_of(lane, |endpoint| {
                endpoint.set_deny_list(Arc::clone(list));
                endpoint.qpns().collect()
            })?;
            for some in qpns.chunks(QPS_PER_CALL) {
                self.with_endpoint_of(lane, |endpoint| {
                    for &qpn in some {
                        endpoint.follow_deny_list(qpn);
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Reads or changes the transport's state on the first lane between two polls: path states, deny lists, and
    /// everything that has no method here. Do not change the queue pairs and registrations behind this API's own
    /// objects: those objects would no longer match.
    ///
    /// Control calls are served in order of arrival. A busy lane with a thread of its own gives all of them together a
    /// sixteenth of its time. Keep the operation short, because the lane is stopped meanwhile.
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call of this context on the same thread. That call can still
    /// read counters and states, as they were when it began, and drop objects.
    pub fn with_endpoint<R>(&self, operation: impl FnOnce(&mut Endpoint) -> R) -> Result<R, VerbsError> {
        self.with_endpoint_of(0, operation)
    }

    /// The same on any lane, such as the lane of a queue pair ([`Context::lane_of`]).
    ///
    /// # Errors
    /// As [`Context::with_endpoint`], and [`VerbsError::OutOfRange`] when there is no such lane.
    pub fn with_endpoint_of<R>(
        &self,
        lane: usize,
        operation: impl FnOnce(&mut Endpoint) -> R,
    ) -> Result<R, VerbsError> {
        self.check_lane(lane)?;
        self.control(lane, |lane| operation(lane.endpoint_mut()))
    }

    /// # Errors
    /// [`VerbsError::OutOfRange`] when there is no such lane.
    pub(super) fn check_lane(&self, lane: usize) -> Result<(), VerbsError> {
        let lanes = self.lanes();
        if lane < lanes {
            return Ok(());
        }
        let allowed = format!("less than {lanes}, the number of lanes");
        Err(VerbsError::OutOfRange { name: "lane", value: lane as u64, allowed })
    }

    /// The lane for a new queue pair.
    pub(super) fn place(&self, placement: Placement) -> Result<usize, VerbsError> {
        match placement {
            Placement::RoundRobin => Ok(self.shared.lanes.next_lane()),
            Placement::On(lane) => self.check_lane(lane).map(|()| lane),
            Placement::FewestQueuePairs => {
                let mut counts = Vec::with_capacity(self.lanes());
                for lane in 0..self.lanes() {
                    counts.push(self.control(lane, |lane| lane.endpoint().qpns().count())?);
                }
                let least = (0..).zip(counts).min_by_key(|&(_, count)| count);
                Ok(least.map_or(0, |(lane, _)| lane))
            }
        }
    }

    /// The ports of each lane by plane, as they were at open.
    pub(super) fn port_attrs(&self) -> &[Vec<PortAttr>] {
        &self.shared.ports
    }

    /// Reads the counters that a lane publishes, as [`Context::counters`] does.
    pub(super) fn with_snapshot<R>(&self, lane: usize, pick: impl FnOnce(&Snapshot) -> R) -> R {
        self.shared.lanes.counters(lane, pick)
    }

    pub(super) fn control<R>(
        &self,
        lane: usize,
        operation: impl FnOnce(&mut Lane) -> R,
    ) -> Result<R, VerbsError> {
        Ok(self.shared.lanes.control(lane, operation)?)
    }

    /// Ends an object. Within a control call, this happens at its end.
    pub(super) fn control_deferred(&self, lane: usize, operation: impl FnOnce(&mut Lane) + Send + 'static) {
        self.shared.lanes.control_deferred(lane, operation);
    }

    pub(super) fn create_cq_reader(
        &self,
        depth: u32,
        channel: Option<&Arc<EventChannel>>,
    ) -> Result<CqReader, VerbsError> {
        self.check_alive()?;
        Ok(self.shared.lanes.cqs().create(depth, channel))
    }

    /// How many queue pairs report to a completion queue.
    pub(super) fn cq_users(&self, cq: &CqCore) -> Result<usize, VerbsError> {
        self.check_alive()?;
        self.check_not_nested()?;
        let mut users = 0;
        for lane in self.lanes_of_cq(cq) {
            users += self.control(lane, |lane| lane.cq_users(cq.id()))?;
        }
        Ok(users)
    }

    /// Removes a completion queue that is no longer read from the lanes.
    pub(super) fn drop_cq(&self, cq: &CqCore) {
        let id: CqId = cq.id();
        for lane in self.lanes_of_cq(cq) {
            self.control_deferred(lane, move |lane| lane.drop_cq(id));
        }
    }

    fn lanes_of_cq(&self, cq: &CqCore) -> impl Iterator<Item = usize> {
        let lanes = cq.lanes();
        (0..self.lanes()).filter(move |lane| lanes >> lane & 1 == 1)
    }

    pub(super) fn add_channel(&self, channel: &Arc<EventChannel>) {
        self.shared.lanes.cqs().add_channel(channel);
    }

    /// Reports an event that no lane has seen to the application.
    pub(super) fn report(&self, event: AsyncEvent) {
        if !self.in_forked_child() {
            self.shared.lanes.async_events().push(event);
        }
    }

    /// The number of the next shared receive queue.
    pub(super) fn next_srq_id(&self) -> SrqId {
        SrqId(self.shared.srqs.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn memory(&self) -> &MemorySpace {
        &self.shared.memory
    }

    /// Ends a registration that nothing uses.
    pub(super) fn deregister(&self, rkey: u32) -> Result<(), VerbsError> {
        self.check_not_forked()?;
        self.memory().deregister(rkey, |visit| {
            (0..self.lanes())
                .try_for_each(|lane| self.control(lane, |lane| visit(lane.memory_to_deregister())))
        })
    }

    /// Makes a registration invalid for everything that is posted or arrives after this call.
    pub(super) fn invalidate(&self, rkey: u32) {
        // Each lane first accepts what was posted before.
        (0..self.lanes()).for_each(|lane| self.control_deferred(lane, |_| ()));
        let memory = self.memory().clone();
        self.control_deferred(0, move |_| memory.invalidate(rkey));
        for lane in 0..self.lanes() {
            self.control_deferred(lane, |lane| lane.endpoint_mut().memory_mut().sync());
        }
    }

    /// Refuses new objects on a lane that has failed.
    pub(super) fn check_alive(&self) -> Result<(), VerbsError> {
        Ok(self.shared.lanes.check_alive()?)
    }

    /// Whether this is a child of the process that opened the context.
    pub(super) fn in_forked_child(&self) -> bool {
        self.shared.lanes.in_forked_child()
    }

    /// # Errors
    /// [`VerbsError::Control`] in a forked child.
    pub(super) fn check_not_forked(&self) -> Result<(), VerbsError> {
        if self.in_forked_child() { Err(ControlError::Forked.into()) } else { Ok(()) }
    }

    /// Accepts what was posted to a lane that runs inside the caller's thread.
    pub(super) fn drain_inline(&self, lane: usize) {
        if self.shared.lanes.is_inline(lane) {
            // Within a control call of that lane, the call itself has done so.
            let _ = self.control(lane, |_| ());
        }
    }

    /// A wait for the lane within a control call would never end.
    pub(super) fn check_not_nested(&self) -> Result<(), VerbsError> {
        Ok(self.shared.lanes.check_not_nested()?)
    }

    pub(crate) fn any_inline(&self) -> bool {
        self.shared.lanes.any_inline()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// The settings of one of `lanes` lanes, derived from those of the first.
fn settings_of(first: &EndpointConfig, number: u32, lanes: usize, caps: &[Vec<PortCaps>]) -> EndpointConfig {
    let mut own = EndpointConfig {
        seed: first.seed.of_part(number),
        qpns: QpnShare { index: number, of: lanes as u32 },
        ..first.clone()
    };
    if number > 0 {
        for (port, caps) in own.ports.iter_mut().zip(caps.get(number as usize).into_iter().flatten()) {
            *port = LocalPort { max_frame: port.max_frame.min(caps.max_frame), ..LocalPort::from(caps) };
        }
    }
    own
}

/// An address that several lanes share must be on the same plane of each, because packets are forwarded there.
fn check_addresses(lanes: &[EndpointConfig]) -> Result<(), VerbsError> {
    for (lane, here) in lanes.iter().enumerate() {
        for (plane, LocalPort { ip: address, .. }) in here.ports.iter().enumerate() {
            let elsewhere = |there: &EndpointConfig| {
                there.ports[plane].ip != *address && there.ports.iter().any(|port| port.ip == *address)
            };
            if let Some(other) = lanes.iter().position(elsewhere) {
                return Err(VerbsError::LaneAddresses { address: *address, lane, plane, other });
            }
        }
    }
    Ok(())
}

/// The lane of its context that a queue pair lives on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The lanes take turns.
    #[default]
    RoundRobin,
    /// The lane that has the fewest queue pairs now.
    FewestQueuePairs,
    /// The lane with this number.
    On(usize),
}
