//! The object of a connection: its life, its addresses, its ports.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::abi::{QpInit, rdma_addr};
use super::abi::{
    event, ibv_sa_path_rec, port_space, rdma_cm_event, rdma_cm_id, rdma_event_channel, rdma_ib_addr,
    rdma_route,
};
use super::channel::{Channel, ChannelBox, EventBox, What};
use super::message::{Request, Side};
use super::service::Service;
use super::{Opened, address, device_of, open, service};
use crate::abi::{IBV_QPT_RC, IBV_QPT_UD, ibv_gid, ibv_pd};
use crate::error::{count, set_errno};
use spindrift_programs::gid;

/// Requests that wait for a decision, at most, if the program does not say.
const BACKLOG: usize = 1024;

/// What the thread of the service knows of an object.
pub(crate) struct IdCore {
    pub(crate) service: Arc<Service>,
    life: Mutex<Life>,
    idle: Condvar,
    channel: Mutex<Arc<Channel>>,
    /// Its lines in the service.
    lines: Mutex<Vec<u64>>,
    /// Requests that may wait for a decision, as the program says.
    backlog: AtomicUsize,
    /// Whether it listens for those who look for queue pairs of datagrams.
    of_datagrams: AtomicBool,
}

#[derive(Default)]
struct Life {
    /// The address of the object; 0 before it exists and after it has ended.
    at: usize,
    /// Events that the program has and has not acknowledged.
    held: u32,
    /// Nothing is told any more.
    ended: bool,
}

/// How far an object has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Fresh,
    Bound,
    Resolved,
    Routed,
    Listening,
    /// It has asked to connect.
    Calling,
    /// Somebody else has asked.
    Called,
    Accepted,
}

/// What both sides of a connection have agreed on, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) remote: Option<Side>,
    pub(crate) retry: u8,
    /// READs and atomic operations in flight that this side accepts, and that it will send.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
}

pub(crate) struct IdState {
    pub(crate) step: Step,
    /// Sockets that have its port.
    pub(crate) sockets: Vec<Arc<UdpSocket>>,
    pub(crate) agreed: Agreed,
    /// Those of a listener that was made in one call: the protection domain and the queue pairs of its connections.
    pub(crate) template: Option<(*mut ibv_pd, QpInit)>,
    pub(crate) v6_only: bool,
    pub(crate) ack_timeout: u8,
    pub(crate) found: Option<super::info::Found>,
    /// Calls wait for their events, which come over a channel of the object's own.
    pub(crate) own_channel: Option<Box<ChannelBox>>,
    pub(crate) device: Option<Opened>,
}

// SAFETY: the pointers are those of the program, which may be used by any thread.
unsafe impl Send for IdState {}

#[repr(C)]
pub(crate) struct IdBox {
    base: UnsafeCell<rdma_cm_id>,
    path: UnsafeCell<ibv_sa_path_rec>,
    pub(crate) core: Arc<IdCore>,
    state: Mutex<IdState>,
}

impl core::fmt::Debug for IdCore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IdCore").finish_non_exhaustive()
    }
}

impl IdCore {
    fn new(service: Arc<Service>, channel: Arc<Channel>, lines: Vec<u64>) -> Arc<Self> {
        Arc::new(Self {
            service,
            life: Mutex::default(),
            idle: Condvar::new(),
            channel: Mutex::new(channel),
            lines: Mutex::new(lines),
            backlog: AtomicUsize::new(0),
            of_datagrams: AtomicBool::new(false),
        })
    }

    /// That of a connection that somebody asks this one for.
    pub(crate) fn incoming(&self, line: u64) -> Arc<Self> {
        Self::new(Arc::clone(&self.service), self.channel(), vec![line])
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn channel(&self) -> Arc<Channel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tell(self: &Arc<Self>, what: What) {
        let life = self.life();
        if life.ended {
            drop(life);
            return drop_events(vec![what]);
        }
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.push(Arc::clone(self), what);
    }

    /// Moves it to another channel, with the events that nobody has read.
    pub(super) fn move_to(self: &Arc<Self>, to: &Arc<Channel>) {
        let mut now = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&now, to) {
            return;
        }
        let before = core::mem::replace(&mut *now, Arc::clone(to));
        for what in before.take(self) {
            to.push(Arc::clone(self), what);
        }
    }

    /// Waits until the program has acknowledged all events about it.
    fn wait_for_acknowledgements(&self) -> MutexGuard<'_, Life> {
        let mut life = self.life();
        while life.held > 0 {
            life = self.idle.wait(life).unwrap_or_else(PoisonError::into_inner);
        }
        life
    }

    /// Its object, which lives until [`IdCore::event_acknowledged`].
    pub(crate) fn hold_object(&self) -> Option<*mut rdma_cm_id> {
        let mut life = self.life();
        if life.at == 0 {
            return None;
        }
        life.held += 1;
        Some(life.at as *mut rdma_cm_id)
    }

    pub(crate) fn event_acknowledged(&self) {
        self.life().held -= 1;
        self.idle.notify_all();
    }

    fn lines(&self) -> MutexGuard<'_, Vec<u64>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_line(&self, key: u64) {
        self.lines().push(key);
    }

    /// The connection to the other side.
    pub(crate) fn line(&self) -> Result<u64, c_int> {
        self.lines().first().copied().ok_or(libc::EINVAL)
    }

    /// Ends what will have no object.
    pub(crate) fn abandon(&self) {
        self.life().ended = true;
        self.close();
    }

    pub(crate) fn close(&self) {
        let lines = core::mem::take(&mut *self.lines());
        for key in lines {
            self.service.close(key);
        }
    }

    /// Whether this request may wait for a decision.
    pub(crate) fn takes(self: &Arc<Self>, request: &Request) -> bool {
        if request.datagrams != self.of_datagrams.load(Ordering::Relaxed) || self.life().ended {
            return false;
        }
        let most = match self.backlog.load(Ordering::Relaxed) {
            0 => BACKLOG,
            most => most,
        };
        self.waiting() < most
    }

    /// Events that nobody has read.
    pub(crate) fn waiting(self: &Arc<Self>) -> usize {
        self.channel().waiting(self)
    }
}

/// Ends what nobody will read of.
pub(super) fn drop_events(events: Vec<What>) {
    for event in events {
        if let What::Request { core, .. } = event {
            core.abandon();
        }
    }
}

impl IdBox {
    /// An object that events of this channel are about; or its own, if there is none.
    pub(crate) fn make(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: c_int,
        core: Option<Arc<IdCore>>,
    ) -> Result<Box<Self>, c_int> {
        let own_channel = if channel.is_null() { Some(ChannelBox::make()?) } else { None };
        let as_c = match &own_channel {
            Some(own) => std::ptr::from_ref::<ChannelBox>(own).cast_mut().cast(),
            None => channel,
        };
        let core = match core {
            Some(core) => core,
            // SAFETY: the caller passes a channel of this library, or it was just made.
            None => IdCore::new(service()?, Arc::clone(&unsafe { ChannelBox::of(as_c) }.channel), Vec::new()),
        };
        let base = rdma_cm_id {
            verbs: null_mut(),
            channel: as_c,
            context,
            qp: null_mut(),
            route: rdma_route {
                addr: rdma_addr {
                    src_storage: address::none(),
                    dst_storage: address::none(),
                    addr: rdma_ib_addr {
                        sgid: ibv_gid { raw: [0; 16] },
                        dgid: ibv_gid { raw: [0; 16] },
                        pkey: 0,
                    },
                },
                path_rec: null_mut(),
                num_paths: 0,
            },
            ps,
            port_num: 0,
            event: null_mut(),
            send_cq_channel: null_mut(),
            send_cq: null_mut(),
            recv_cq_channel: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            pd: null_mut(),
            qp_type: if matches!(ps, port_space::UDP | port_space::IPOIB) { IBV_QPT_UD } else { IBV_QPT_RC },
        };
        let state = IdState {
            step: Step::Fresh,
            sockets: Vec::new(),
            agreed: Agreed::default(),
            template: None,
            v6_only: false,
            ack_timeout: 0,
            found: None,
            own_channel,
            device: None,
        };
        // SAFETY: all bit patterns are numbers.
        let path = UnsafeCell::new(unsafe { zeroed::<ibv_sa_path_rec>() });
        let made = Box::new(Self { base: UnsafeCell::new(base), path, core, state: Mutex::new(state) });
        made.core.life().at = std::ptr::from_ref::<Self>(&made).addr();
        Ok(made)
    }

    pub(crate) fn into_c(self: Box<Self>) -> *mut rdma_cm_id {
        Box::into_raw(self).cast()
    }

    /// # Safety
    /// An object of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*id.cast::<Self>() }
    }

    /// What C programs see of it. Only calls of the program write to it, one at a time, or the reading of an event about it.
    #[expect(clippy::mut_from_ref, reason = "the fields are those of C")]
    pub(crate) fn base(&self) -> &mut rdma_cm_id {
        // SAFETY: as described; no reference is kept beyond a call.
        unsafe { &mut *self.base.get() }
    }

    /// What its completion queues name as their context.
    pub(crate) fn as_user(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// # Errors
    /// `EIO` in the child of a fork, where a thread of the parent may hold the lock for ever.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, IdState>, c_int> {
        if self.core.service.is_elsewhere() {
            return Err(libc::EIO);
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.base().qp_type == IBV_QPT_UD
    }

    pub(crate) fn is_synchronous(&self) -> bool {
        self.state().is_ok_and(|state| state.own_channel.is_some())
    }

    /// It has this address now, and so the device that has it.
    pub(crate) fn set_local(&self, state: &mut IdState, local: SocketAddr) -> Result<(), c_int> {
        self.base().route.addr.src_storage = address::write(local).0;
        if local.ip().is_unspecified() {
            return Ok(());
        }
        let opened = open(device_of(local.ip()).ok_or(libc::ENODEV)?)?;
        state.device = Some(opened);
        let base = self.base();
        base.verbs = opened.context;
        base.port_num = 1;
        if base.pd.is_null() {
            base.pd = opened.pd;
        }
        base.route.addr.addr.sgid = ibv_gid { raw: gid::of(opened.address()?) };
        base.route.addr.addr.pkey = u16::MAX;
        Ok(())
    }

    pub(crate) fn set_peer(&self, peer: SocketAddr) {
        self.base().route.addr.dst_storage = address::write(peer).0;
        self.base().route.addr.addr.dgid = ibv_gid { raw: gid::of(peer.ip()) };
    }

    /// Fills the record of the path.
    pub(crate) fn set_route(&self, mtu: u8) {
        let base = self.base();
        let addr = &base.route.addr.addr;
        let record = ibv_sa_path_rec {
            dgid: addr.dgid,
            sgid: addr.sgid,
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            reversible: 1,
            numb_path: 1,
            pkey: u16::MAX,
            sl: 0,
            // "Exactly".
            mtu_selector: 2,
            mtu,
            rate_selector: 2,
            rate: 0,
            packet_life_time_selector: 2,
            packet_life_time: 14,
            preference: 0,
        };
        // SAFETY: as for the base.
        unsafe { self.path.get().write(record) };
        base.route.path_rec = self.path.get();
        base.route.num_paths = 1;
    }

    /// An event that a call leads to at once.
    pub(crate) fn post(&self, kind: c_int, status: c_int) {
        self.core.tell(What::Plain(kind, status, 0));
    }

    /// If calls wait for their events: takes the next one, and returns whether it tells of success.
    ///
    /// # Errors
    /// What the event tells.
    pub(crate) fn complete(&self) -> Result<(), c_int> {
        if !self.is_synchronous() {
            return Ok(());
        }
        self.drop_event();
        let event = self.core.channel().next()?.into_c();
        self.base().event = event;
        // SAFETY: it was just made.
        let (kind, status) = unsafe { ((*event).event, (*event).status) };
        match status {
            0 => Ok(()),
            _ if kind == event::REJECTED => Err(libc::ECONNREFUSED),
            status => Err(status.abs()),
        }
    }

    /// Acknowledges the event that the last call has waited for.
    pub(crate) fn drop_event(&self) {
        let event = core::mem::replace(&mut self.base().event, null_mut());
        if !event.is_null() {
            // SAFETY: an event that nobody else has.
            unsafe { EventBox::acknowledge(event) };
        }
    }

    /// Its calls wait for their events. It was brought by this one, which it keeps.
    pub(super) fn take_over(&self, event: *mut rdma_cm_event) -> Result<(), c_int> {
        self.migrate(null_mut())?;
        self.base().event = event;
        Ok(())
    }

    /// Moves it to another channel, with the events that nobody has read; or to one of its own.
    fn migrate(&self, channel: *mut rdma_event_channel) -> Result<(), c_int> {
        let own = if channel.is_null() { Some(ChannelBox::make()?) } else { None };
        let as_c = match &own {
            Some(own) => std::ptr::from_ref::<ChannelBox>(own).cast_mut().cast(),
            None => channel,
        };
        self.drop_event();
        drop(self.core.wait_for_acknowledgements());
        let mut state = self.state()?;
        // SAFETY: the caller passes a channel of this library, or it was just made.
        self.core.move_to(&unsafe { ChannelBox::of(as_c) }.channel);
        self.base().channel = as_c;
        let old = core::mem::replace(&mut state.own_channel, own);
        drop(state);
        drop(old);
        Ok(())
    }
}

/// # Safety
/// A channel of this library or null, and a place for the object.
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    count(|| {
        if !matches!(ps, port_space::TCP | port_space::UDP | port_space::IPOIB | port_space::IB) {
            return Err(libc::EPROTONOSUPPORT);
        }
        let made = IdBox::make(channel, context, ps, None)?;
        // SAFETY: as the caller promises.
        unsafe { id.write(made.into_c()) };
        Ok(0)
    })
}

/// Waits until the program has acknowledged all events about it.
///
/// # Safety
/// An object of this library, which is not used afterwards.
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        drop(of.state()?);
        of.drop_event();
        let core = &of.core;
        core.close();
        drop_events(core.channel().take(core));
        let mut life = core.wait_for_acknowledgements();
        (life.at, life.ended) = (0, true);
        drop(life);
        // What came meanwhile.
        drop_events(core.channel().take(core));
        // SAFETY: as the caller promises; it came from a box.
        drop(unsafe { Box::from_raw(id.cast::<IdBox>()) });
        Ok(0)
    })
}

/// # Safety
/// An object of this library, and a channel of it or null.
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        unsafe { IdBox::of(id) }.migrate(channel)?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library and an address of C.
pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, to: *mut libc::sockaddr) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, at) = unsafe { (IdBox::of(id), address::read(to)?) };
        of.bind(at.ok_or(libc::EINVAL)?)?;
        Ok(0)
    })
}

impl IdBox {
    pub(crate) fn bind(&self, mut at: SocketAddr) -> Result<(), c_int> {
        let mut state = self.state()?;
        if state.step != Step::Fresh {
            return Err(libc::EINVAL);
        }
        let sockets = address::bind(at, state.v6_only)?;
        let first = sockets.first().and_then(|socket| socket.local_addr().ok()).ok_or(libc::EIO)?;
        at.set_port(first.port());
        self.set_local(&mut state, at)?;
        state.sockets = sockets;
        state.step = Step::Bound;
        Ok(())
    }

    pub(crate) fn resolve(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), c_int> {
        let mut state = self.state()?;
        if !matches!(state.step, Step::Fresh | Step::Bound) {
            return Err(libc::EINVAL);
        }
        let socket = match address::reach(&state.sockets, from, to) {
            Ok(socket) => socket,
            Err(code) => {
                drop(state);
                self.post(event::ADDR_ERROR, -code);
                return Ok(());
            }
        };
        let local = socket.local_addr().map_err(|error| address::code(&error))?;
        self.set_local(&mut state, local)?;
        self.set_peer(to);
        state.sockets = vec![socket];
        state.step = Step::Resolved;
        drop(state);
        self.post(event::ADDR_RESOLVED, 0);
        Ok(())
    }
}

/// # Safety
/// An object of this library and addresses of C, of which the first may be null.
pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let (of, from, to) = unsafe { (IdBox::of(id), address::read(from)?, address::read(to)?) };
        of.resolve(from, to.ok_or(libc::EINVAL)?)?;
        of.complete()?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        let mut state = of.state()?;
        if state.step != Step::Resolved {
            return Err(libc::EINVAL);
        }
        state.step = Step::Routed;
        of.set_route(state.device.as_ref().map_or(5, Opened::mtu));
        drop(state);
        of.post(event::ROUTE_RESOLVED, 0);
        of.complete()?;
        Ok(0)
    })
}

/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    count(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { IdBox::of(id) };
        let step = of.state()?.step;
        if step == Step::Fresh {
            of.bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
        }
        let mut state = of.state()?;
        if state.step != Step::Bound {
            return Err(libc::EINVAL);
        }
        of.core.backlog.store(usize::try_from(backlog).unwrap_or(0), Ordering::Relaxed);
        of.core.of_datagrams.store(of.is_of_datagrams(), Ordering::Relaxed);
        for socket in &state.sockets {
            let line = of.core.service.listen(Arc::clone(socket), Arc::clone(&of.core));
            match line {
                Ok(key) => of.core.add_line(key),
                Err(error) => {
                    of.core.close();
                    return Err(address::code(&error));
                }
            }
        }
        state.step = Step::Listening;
        Ok(0)
    })
}

/// In network byte order.
///
/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises.
    unsafe { port_of(&raw const (*id).route.addr.src_storage) }
}

/// The same.
///
/// # Safety
/// An object of this library.
pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the caller promises.
    unsafe { port_of(&raw const (*id).route.addr.dst_storage) }
}

/// # Safety
/// An address of C.
unsafe fn port_of(storage: *const libc::sockaddr_storage) -> u16 {
    // SAFETY: as the caller promises.
    let address = unsafe { address::read(storage.cast()) };
    let Ok(Some(address)) = address else {
        set_errno(libc::EINVAL);
        return 0;
    };
    address.port().to_be()
}
