//! Contexts and protection domains.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use spindrift_pmd::{Port, PortCaps, PortCounters};

use crate::counters::Counters;
use crate::endpoint::{Endpoint, EndpointConfig, LocalPort};
use crate::engine::{AsyncEvent, Lane, LaneCounters, LaneHandle, LaneMode, LaneStartError, fresh_seed};
use crate::memory::{Access, MemorySpace, PdId, Region};
use crate::seed::Seed;

use super::comp_channel::CompChannel;
use super::cq::Cq;
use super::error::VerbsError;
use super::mr::Mr;

/// A NIC of these ports, one a plane, as [`Context::open`] takes it.
pub fn nic<P: Port + 'static>(ports: Vec<P>) -> Vec<Box<dyn Port>> {
    ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect()
}

/// Settings of a [`Context`].
#[derive(Clone, Debug)]
pub struct ContextConfig {
    /// Seed of every random choice (keys, numbers, paths). When not given, 256 bits are drawn from the operating
    /// system, so that nobody can guess keys. [`Seed::fixed`] repeats a run; its keys can be guessed.
    pub seed: Option<Seed>,
    /// Who drives the lane.
    pub lane: LaneMode,
    /// Settings of the transport; its `seed` is replaced by the one above.
    pub endpoint: EndpointConfig,
}

impl ContextConfig {
    /// Defaults that suit these ports, for a lane inside the caller's thread.
    pub fn new(ports: &[Box<dyn Port>]) -> Self {
        let local = ports.iter().map(|port| LocalPort::from(port.caps())).collect();
        Self { seed: None, lane: LaneMode::Inline, endpoint: EndpointConfig::new(local) }
    }

    /// The same on a thread of its own, as [`LaneMode::Thread`] says.
    #[must_use]
    pub fn lane(self, lane: LaneMode) -> Self {
        Self { lane, ..self }
    }
}

/// A NIC in use: its ports, the transport on them and the lane that drives both.
///
/// Clones are handles to the same context. It ends, and a thread of its own is joined, when all handles and
/// everything made from them have been dropped.
#[derive(Clone)]
pub struct Context {
    shared: Arc<ContextShared>,
}

struct ContextShared {
    lane: LaneHandle,
    memory: MemorySpace,
    ports: Vec<PortCaps>,
    config: EndpointConfig,
}

impl core::fmt::Debug for Context {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names: Vec<_> = self.shared.ports.iter().map(|port| port.name.as_str()).collect();
        f.debug_struct("Context").field("ports", &names).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a NIC made of these ports, one a plane.
    ///
    /// # Errors
    /// [`VerbsError::Config`] when a setting cannot work, [`VerbsError::Lane`] when the thread cannot be started or the
    /// system has no random numbers for a seed.
    pub fn open(ports: Vec<Box<dyn Port>>, config: ContextConfig) -> Result<Self, VerbsError> {
        let ContextConfig { seed, lane: mode, mut endpoint } = config;
        if endpoint.ports.len() != ports.len() {
            return Err(VerbsError::PortCount { configured: endpoint.ports.len(), given: ports.len() });
        }
        endpoint.seed = seed.map_or_else(fresh_seed, Ok).map_err(LaneStartError::Random)?;
        let caps = ports.iter().map(|port| port.caps().clone()).collect();
        let memory = MemorySpace::new(endpoint.seed, endpoint.limits.max_regions);
        let lane = Endpoint::with_memory(endpoint.clone(), &memory)?;
        let lane = Lane::new(lane, ports).map_err(LaneStartError::Thread)?;
        let lane = LaneHandle::start(lane, mode)?;
        let shared = ContextShared { lane, memory, ports: caps, config: endpoint };
        for (plane, port) in shared.ports.iter().enumerate() {
            tracing::info!(target: "spindrift::plane", plane, name = port.name, "port opened");
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// One turn of a lane that runs inside the caller's thread: sends, receives and completes what is there to be done now,
    /// and returns how much that was. Call it often. Where the lane has a thread of its own, this only gives the
    /// caller's core away for a moment and returns 0, so that waiting loops look the same.
    pub fn poll(&self) -> usize {
        self.shared.lane.poll()
    }

    /// What the lane said when it panicked, if it did. Nothing moves on this context any more then; in
    /// [`LaneMode::Inline`] the panic itself has passed through [`Context::poll`].
    pub fn failure(&self) -> Option<&str> {
        self.shared.lane.failure()
    }

    /// The oldest asynchronous event, if there is one; see [`AsyncEvent`] for what is told. The queue holds 1024.
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.shared.lane.async_events().pop()
    }

    /// Events lost because the queue was full.
    pub fn async_events_lost(&self) -> u64 {
        self.shared.lane.async_events().lost()
    }

    /// Readable while asynchronous events wait: wait on it, then call [`Context::poll_async_event`] until `None`.
    /// Only that reads from it.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.shared.lane.async_events().fd()
    }

    /// What the ports are and can do, by plane.
    pub fn ports(&self) -> &[PortCaps] {
        &self.shared.ports
    }

    /// The settings in use.
    pub fn config(&self) -> &EndpointConfig {
        &self.shared.config
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Control`] if the lane has failed.
    pub fn create_pd(&self) -> Result<Pd, VerbsError> {
        self.check_alive()?;
        let id = self.memory().alloc_pd();
        Ok(Pd { shared: Arc::new(PdShared { context: self.clone(), id }) })
    }

    /// A completion queue for up to `depth` completions that have not been polled.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn create_cq(&self, depth: u32) -> Result<Cq, VerbsError> {
        Cq::create(self, depth, None)
    }

    /// The same, of a queue that can tell of its completions on a channel.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`], [`VerbsError::OtherContext`].
    pub fn create_cq_with_channel(&self, depth: u32, channel: &CompChannel) -> Result<Cq, VerbsError> {
        Cq::create(self, depth, Some(channel))
    }

    /// A completion channel, to wait on for completions.
    ///
    /// # Errors
    /// [`VerbsError::Channel`] when the system has no file descriptor left, [`VerbsError::Control`] if the lane has failed.
    pub fn create_comp_channel(&self) -> Result<CompChannel, VerbsError> {
        self.check_alive()?;
        CompChannel::create(self)
    }

    /// The transport's counters.
    ///
    /// They are taken after this call began, so they include all work that the caller has seen the completions of. A
    /// lane with a thread of its own is not held up: it shows its counters to all who ask at the end of a poll, while busy at
    /// most once a millisecond, and a call waits that long at most.
    pub fn counters(&self) -> Counters {
        self.shared.lane.counters(|seen| seen.transport.clone())
    }

    /// The lane's counters, as [`Context::counters`].
    pub fn lane_counters(&self) -> LaneCounters {
        self.shared.lane.counters(|seen| seen.lane)
    }

    /// Each port's counters, by plane, as [`Context::counters`].
    pub fn port_counters(&self) -> Vec<PortCounters> {
        self.shared.lane.counters(|seen| seen.ports.clone())
    }

    /// Looks at or changes the transport's state between two polls: path states, deny lists, whatever
    /// has no method here. Changing what this API's own objects stand for (their queue pairs and
    /// registrations) confuses them, and no one else.
    ///
    /// Control calls are served in the order in which they come. A busy lane with a thread of its own gives all of them
    /// together a sixteenth of its time; keep the operation short, for nothing moves meanwhile.
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call of this context on the same thread. Counters and states can be read there, as that
    /// call found them, and objects dropped.
    pub fn with_endpoint<R>(&self, operation: impl FnOnce(&mut Endpoint) -> R) -> Result<R, VerbsError> {
        self.control(|lane| operation(lane.endpoint_mut()))
    }

    pub(super) fn control<R>(&self, operation: impl FnOnce(&mut Lane) -> R) -> Result<R, VerbsError> {
        Ok(self.shared.lane.control(operation)?)
    }

    /// Ends an object; at the end of the control call, if this is within one.
    pub(super) fn control_at_last(&self, operation: impl FnOnce(&mut Lane) + Send + 'static) {
        self.shared.lane.control_at_last(operation);
    }

    pub(super) fn memory(&self) -> &MemorySpace {
        &self.shared.memory
    }

    /// Ends a registration that nothing uses.
    pub(super) fn deregister(&self, rkey: u32) -> Result<(), VerbsError> {
        self.memory().deregister(rkey, |visit| self.control(|lane| visit(lane.endpoint_mut().memory_mut())))
    }

    /// Ends a registration for anything that is posted or arrives after this call.
    pub(super) fn invalidate(&self, rkey: u32) {
        let memory = self.memory().clone();
        // Within a control call, which has taken in what was posted before.
        self.control_at_last(move |lane| {
            memory.invalidate(rkey);
            lane.endpoint_mut().memory_mut().sync();
        });
    }

    /// Nothing new is made on a lane that has failed.
    pub(super) fn check_alive(&self) -> Result<(), VerbsError> {
        Ok(self.shared.lane.check_alive()?)
    }

    /// Takes in what was posted, where the lane runs inside the caller's thread.
    pub(super) fn settle_inline(&self) {
        if self.shared.lane.is_inline() {
            // Within a control call, that one has.
            let _ = self.control(|_| ());
        }
    }

    /// Whoever waits for the lane within a control call waits for ever.
    pub(super) fn check_not_nested(&self) -> Result<(), VerbsError> {
        Ok(self.shared.lane.check_not_nested()?)
    }

    pub(super) fn is_inline(&self) -> bool {
        self.shared.lane.is_inline()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A protection domain: queue pairs write only to memory of their own domain.
///
/// Clones are handles to the same domain; it ends with the last of them and of what was made from them.
#[derive(Clone, Debug)]
pub struct Pd {
    shared: Arc<PdShared>,
}

#[derive(Debug)]
struct PdShared {
    context: Context,
    id: PdId,
}

impl Pd {
    /// Allocates and registers `len` zeroed bytes.
    ///
    /// # Errors
    /// [`VerbsError::Memory`] for zero bytes or when memory or keys run out.
    pub fn register(&self, len: usize, access: Access) -> Result<Mr, VerbsError> {
        self.register_region(Region::alloc(len)?, access)
    }

    /// Registers the bytes of a vector, which the registration owns from then on.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register_vec(&self, bytes: Vec<u8>, access: Access) -> Result<Mr, VerbsError> {
        self.register_region(Region::from_vec(bytes)?, access)
    }

    /// Registers a region that the caller made, such as one over mapped memory
    /// ([`Region::from_raw`]). A region may be registered more than once.
    ///
    /// # Errors
    /// [`VerbsError::Memory`] when keys run out, [`VerbsError::Control`] if the lane has failed.
    pub fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Mr, VerbsError> {
        Mr::create(self, region, access)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(super) fn id(&self) -> PdId {
        self.shared.id
    }
}

impl Drop for PdShared {
    fn drop(&mut self) {
        // All that could keep it busy holds a handle to it, and is gone; memory that still drains keeps
        // the endpoint's own entry until then.
        let id = self.id;
        self.context.control_at_last(move |lane| {
            let _ = lane.endpoint_mut().dealloc_pd(id);
        });
    }
}
