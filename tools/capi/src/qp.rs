//! Queue pairs: their states as verbs has them, and the connection behind them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spindrift::endpoint::{FailReason, QpFailure, QpInfo};
use spindrift::verbs::negotiate::negotiate;
use spindrift::verbs::{Cq, PostError, Qp, QpConfig, QpModify, QpState, RtrAttr, RtsAttr};
use spindrift::wire::Qpn;

use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, event_type, ibv_ah_attr, ibv_context, ibv_ece, ibv_gid, ibv_global_route, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, qp_attr_mask,
    qp_init_attr_mask, qp_state, send_ops,
};
use crate::context::{ContextBox, mtu_bytes};
use crate::cq::CqBox;
use crate::error::{code, code_of, object, tell};
use crate::event::{About, EventQueue};
use crate::gid;
use crate::handshake::{Number, Peer};
use crate::nic::Nic;
use crate::pd::PdBox;
use crate::post::{self, Builder, Request};
use crate::srq::SrqBox;

/// A queue pair, for everybody who knows it: the program, completion queues, the control thread.
pub(crate) struct QpCore {
    pub(crate) number: Number,
    nic: Arc<Nic>,
    events: Arc<EventQueue>,
    /// The address of its object, for events.
    at: AtomicUsize,
    /// Its number on the wire now.
    wire: AtomicU32,
    /// The number of the peer, as the program knows it.
    peer: AtomicU32,
    /// The first send work request that is flushed stands for a peer that never answered.
    blames: AtomicBool,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    qp: Option<Qp>,
    state: c_int,
    connected: bool,
    /// Posted before the peer was known.
    held: VecDeque<Request>,
    /// The control thread knows when they have waited too long.
    is_watched: bool,
    attr: ibv_qp_attr,
    pub(crate) cap: ibv_qp_cap,
    sig_all: bool,
}

/// What a program has of a queue pair.
#[repr(C)]
pub(crate) struct QpBox {
    base: UnsafeCell<ibv_qp_ex>,
    zeros: [u64; 32],
    pub(crate) core: Arc<QpCore>,
    /// Requests that are being made one by one, and whether a thread makes some.
    pub(crate) builder: UnsafeCell<Builder>,
    pub(crate) building: AtomicBool,
    /// It was made with the functions for that.
    is_extended: bool,
}

impl QpBox {
    /// # Safety
    /// A queue pair of this library that was not destroyed.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: it is the first field of a box.
        unsafe { &*qp.cast::<Self>() }
    }

    pub(crate) fn base(&self) -> *mut ibv_qp_ex {
        self.base.get()
    }
}

impl Inner {
    /// Whether requests may be posted, now or later.
    pub(crate) fn takes_sends(&self) -> Result<(), c_int> {
        match self.state {
            qp_state::RTS | qp_state::ERR => Ok(()),
            _ => Err(libc::EINVAL),
        }
    }

    /// Requests that hold a place in the send queue.
    pub(crate) fn sends_outstanding(&self) -> u32 {
        self.held.len() as u32 + self.qp.as_ref().map_or(0, Qp::sends_outstanding)
    }

    /// The queue pair, if it takes requests at once.
    #[inline]
    pub(crate) fn ready(&mut self) -> Option<&mut Qp> {
        if self.connected || self.state == qp_state::ERR { self.qp.as_mut() } else { None }
    }

    /// Keeps a request until the peer is known.
    pub(crate) fn hold(&mut self, request: Request) -> Result<(), c_int> {
        if self.sends_outstanding() >= self.cap.max_send_wr {
            return Err(libc::ENOMEM);
        }
        self.held.push_back(request);
        Ok(())
    }

    pub(crate) fn qp(&mut self) -> Result<&mut Qp, c_int> {
        self.qp.as_mut().ok_or(libc::EINVAL)
    }

    /// Whether a receive may be posted.
    pub(crate) fn takes_receives(&self) -> Result<(), c_int> {
        if self.state == qp_state::RESET { Err(libc::EINVAL) } else { Ok(()) }
    }

    /// Posts what was held. In ERROR all of it is flushed.
    fn post_held(&mut self) -> Result<(), PostError> {
        let Some(qp) = &mut self.qp else { return Ok(()) };
        while let Some(request) = self.held.pop_front() {
            request.post(qp)?;
        }
        Ok(())
    }

    /// The attributes of retransmission. In verbs a timeout is 4.096 us x 2^t, here 1.024 us x 2^t; 0 stands for ever.
    fn retry(&self) -> RtsAttr {
        let exponential = if self.attr.timeout == 0 { RtsAttr::MAX_EXPONENTIAL } else { 0 };
        let timeout = if self.attr.timeout == 0 { 14 } else { self.attr.timeout & 31 };
        RtsAttr {
            timeout: (timeout + 2).min(RtsAttr::MAX_TIMEOUT),
            linear_retries: self.attr.retry_cnt.min(RtsAttr::MAX_LINEAR),
            exponential_retries: exponential,
            rnr_retry: self.attr.rnr_retry.min(RtsAttr::MAX_RNR),
            ..RtsAttr::default()
        }
    }

    fn info(&self) -> Result<QpInfo, c_int> {
        let info = self.qp.as_ref().ok_or(libc::EINVAL)?.info().map_err(|error| code_of(&error))?;
        let most = mtu_bytes(self.attr.path_mtu).unwrap_or(u32::MAX);
        Ok(QpInfo { mtu: info.mtu.min(most), ..info })
    }
}

impl QpCore {
    /// Gives a queue pair a number. `None`: all are in use.
    fn add(
        nic: &Arc<Nic>,
        events: Arc<EventQueue>,
        qp: Qp,
        cap: ibv_qp_cap,
        sig_all: bool,
    ) -> Option<Arc<Self>> {
        let inner = Inner {
            qp: Some(qp),
            state: qp_state::RESET,
            connected: false,
            held: VecDeque::new(),
            is_watched: false,
            attr: no_attributes(),
            cap,
            sig_all,
        };
        nic.add_qp(|number| {
            Arc::new(Self {
                number,
                nic: Arc::clone(nic),
                events,
                at: AtomicUsize::new(0),
                wire: AtomicU32::new(0),
                peer: AtomicU32::new(0),
                blames: AtomicBool::new(false),
                inner: Mutex::new(inner),
            })
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wire(&self) -> u32 {
        self.wire.load(Ordering::Acquire)
    }

    pub(crate) fn peer_number(&self) -> u32 {
        self.peer.load(Ordering::Relaxed)
    }

    /// Whether the request that is flushed now stands for the silence of the peer: the first one does.
    pub(crate) fn takes_blame(&self) -> bool {
        self.blames.load(Ordering::Relaxed) && self.blames.swap(false, Ordering::Relaxed)
    }

    /// Ends what a call of the program has begun: requests that wait for the peer do not wait for ever.
    pub(crate) fn watch(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.held.is_empty() || inner.is_watched {
            return;
        }
        inner.is_watched = true;
        let retry = inner.retry();
        drop(inner);
        if retry.exponential_retries < RtsAttr::MAX_EXPONENTIAL {
            let budget_ns = retry.timeout_ns() * (1 + u64::from(retry.linear_retries));
            self.nic.set_deadline(self.number, self.nic.now().after(budget_ns));
        }
    }

    /// Tells the program of an event.
    pub(crate) fn raise(&self, event: c_int) {
        let at = self.at.load(Ordering::Acquire);
        if at != 0 {
            self.events.push(About::Object(at), event);
        }
    }

    /// The peer is known. Returns why the two do not fit, if so.
    pub(crate) fn connect(&self, peer: &QpInfo) -> Result<(), String> {
        let mut inner = self.lock();
        if inner.connected || !matches!(inner.state, qp_state::RTR | qp_state::RTS) {
            return Ok(());
        }
        let own = inner.info().map_err(|code| std::io::Error::from_raw_os_error(code).to_string())?;
        let agreed = negotiate(&own, peer).map_err(|refusal| refusal.to_string())?;
        let rtr = RtrAttr { min_rnr_timer: inner.attr.min_rnr_timer & 31, ..agreed.rtr };
        let rts = RtsAttr {
            mpr: agreed.mpr,
            max_wimm: agreed.max_wimm,
            max_rd_atomic: agreed.max_rd_atomic,
            ..inner.retry()
        };
        let qp = inner.qp().map_err(|_| "it was destroyed".to_owned())?;
        qp.modify(QpModify::Rtr(Box::new(rtr))).map_err(|error| error.to_string())?;
        qp.modify(QpModify::Rts(rts)).map_err(|error| error.to_string())?;
        inner.connected = true;
        inner.post_held().map_err(|error| error.to_string())
    }

    /// Ends a queue pair whose peer is silent. Returns whether it did: not if it is connected.
    pub(crate) fn give_up(&self) -> bool {
        let mut inner = self.lock();
        !inner.connected && self.end(&mut inner)
    }

    /// Ends a queue pair that the peer refuses, or that cannot be connected to it.
    pub(crate) fn refuse(&self) {
        let mut inner = self.lock();
        if self.end(&mut inner) {
            self.raise(event_type::QP_FATAL);
        }
    }

    fn end(&self, inner: &mut Inner) -> bool {
        if !matches!(inner.state, qp_state::RTR | qp_state::RTS) {
            return false;
        }
        self.blames.store(!inner.held.is_empty(), Ordering::Relaxed);
        inner.state = qp_state::ERR;
        let failed = inner.qp.as_mut().is_some_and(|qp| qp.modify(QpModify::Error).is_ok());
        // They are flushed, so there is room.
        let _ = inner.post_held();
        failed
    }

    /// Spindrift has put it into ERROR.
    pub(crate) fn on_fatal(&self, failure: &QpFailure) {
        match failure.reason {
            // The program hears of these by completions, or has asked for it.
            FailReason::Requested
            | FailReason::RetryExceeded
            | FailReason::RnrRetryExceeded
            | FailReason::PeerRefused
            | FailReason::LocalWorkRequest => {}
            FailReason::PeerViolation => {
                tell(&format!("queue pair {:#x}", self.number.get()), failure);
                self.raise(event_type::QP_ACCESS_ERR);
            }
            _ => {
                tell(&format!("queue pair {:#x}", self.number.get()), failure);
                self.raise(event_type::QP_FATAL);
            }
        }
    }

    /// The state now, which may be ERROR without a call of the program.
    fn state(inner: &Inner) -> c_int {
        let failed = inner.qp.as_ref().is_some_and(|qp| qp.state().0 == QpState::Error);
        if failed { qp_state::ERR } else { inner.state }
    }

    fn modify(self: &Arc<Self>, attr: &ibv_qp_attr, mask: c_int) -> Result<c_int, c_int> {
        let mut inner = self.lock();
        let from = Self::state(&inner);
        let to = if mask & qp_attr_mask::STATE == 0 { from } else { attr.qp_state };
        if mask & qp_attr_mask::CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(libc::EINVAL);
        }
        match (from, to) {
            (_, qp_state::RESET) => self.reset(&mut inner)?,
            (_, qp_state::ERR) => {
                inner.qp()?.modify(QpModify::Error).map_err(|error| code_of(&error))?;
                inner.state = qp_state::ERR;
                let _ = inner.post_held();
                drop(inner);
                self.nic.forget_handshake(self.number);
                return Ok(to);
            }
            (qp_state::RESET, qp_state::INIT) => {
                inner.qp()?.init().map_err(|error| code_of(&error))?;
                inner.remember(attr, mask);
            }
            (qp_state::INIT, qp_state::INIT) | (qp_state::RTR, qp_state::RTR) => inner.remember(attr, mask),
            (qp_state::INIT, qp_state::RTR) => {
                if mask & qp_attr_mask::DEST_QPN == 0
                    || mask & qp_attr_mask::AV == 0
                    || attr.ah_attr.is_global == 0
                {
                    return Err(libc::EINVAL);
                }
                inner.remember(attr, mask);
                inner.state = to;
                // SAFETY: all bit patterns are bytes.
                let dgid = unsafe { attr.ah_attr.grh.dgid.raw };
                let peer = Peer { address: gid::address(dgid), number: Number::from_verbs(attr.dest_qp_num) };
                self.peer.store(peer.number.get(), Ordering::Relaxed);
                let info = inner.info()?;
                drop(inner);
                self.nic.begin_handshake(self.number, peer, info);
                return Ok(to);
            }
            (qp_state::RTR | qp_state::RTS, qp_state::RTS) => {
                inner.remember(attr, mask);
                inner.state = to;
                let retry = inner.retry();
                if inner.connected {
                    inner.qp()?.modify(QpModify::Retry(retry.retry())).map_err(|error| code_of(&error))?;
                }
            }
            _ => return Err(libc::EINVAL),
        }
        inner.state = to;
        Ok(to)
    }

    fn reset(self: &Arc<Self>, inner: &mut Inner) -> Result<(), c_int> {
        let qp = inner.qp()?;
        let old = qp.qpn();
        qp.modify(QpModify::Reset).map_err(|error| code_of(&error))?;
        let new = qp.qpn();
        self.set_wire(Some(old), Some(new));
        inner.held.clear();
        (inner.connected, inner.is_watched) = (false, false);
        self.blames.store(false, Ordering::Relaxed);
        self.nic.forget_handshake(self.number);
        Ok(())
    }

    fn set_wire(self: &Arc<Self>, old: Option<Qpn>, new: Option<Qpn>) {
        self.wire.store(new.map_or(0, Qpn::get), Ordering::Release);
        self.nic.set_wire(self, old, new);
    }
}

impl Inner {
    /// Keeps the attributes that the mask names.
    fn remember(&mut self, attr: &ibv_qp_attr, mask: c_int) {
        let own = &mut self.attr;
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)+) => {
                $(if mask & qp_attr_mask::$bit != 0 {
                    $(own.$field = attr.$field;)+
                })+
            };
        }
        take! {
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            DEST_QPN: dest_qp_num;
        }
    }
}

/// The attributes of a queue pair of which nothing is known: as IB has them by default.
fn no_attributes() -> ibv_qp_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: [0; 16] },
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    };
    let ah = ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 0, port_num: 0 };
    ibv_qp_attr {
        qp_state: 0,
        cur_qp_state: 0,
        path_mtu: 5,
        path_mig_state: 0,
        qkey: 0,
        rq_psn: 0,
        sq_psn: 0,
        dest_qp_num: 0,
        qp_access_flags: 0,
        cap: ibv_qp_cap::default(),
        ah_attr: ah,
        alt_ah_attr: ah,
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// Spindrift's queue pair.
fn make(
    pd: &PdBox,
    [send_cq, recv_cq]: [&CqBox; 2],
    srq: Option<&SrqBox>,
    cap: &ibv_qp_cap,
    sig_all: bool,
) -> Result<Qp, c_int> {
    let config = QpConfig {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
        srq: srq.map(|srq| srq.srq.clone()),
        sig_all,
        max_mtu: 0,
        ..QpConfig::default()
    };
    let with =
        |send: &Cq, recv: &Cq| Qp::create(&pd.pd, send, recv, &config).map_err(|error| code_of(&error));
    if std::ptr::eq(send_cq, recv_cq) {
        send_cq.with(|cq| with(cq, cq))?
    } else {
        send_cq.with(|send| recv_cq.with(|recv| with(send, recv)))??
    }
}

/// # Safety
/// Objects of this library in the attributes.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, c_int> {
    match attr.qp_type {
        // What a reliable connection does is more than an unreliable one promises.
        IBV_QPT_RC | IBV_QPT_UC => {}
        _ => return Err(libc::EOPNOTSUPP),
    }
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    if ops.is_some_and(|ops| ops & !send_ops::ALL != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller promises.
    let (pd_box, context) = unsafe { (PdBox::of(pd), (*pd).context) };
    // SAFETY: as the caller promises.
    let (send_cq, recv_cq) = unsafe { (CqBox::of(attr.send_cq), CqBox::of(attr.recv_cq)) };
    // SAFETY: as the caller promises.
    let srq = (!attr.srq.is_null()).then(|| unsafe { SrqBox::of(attr.srq) });
    // SAFETY: the context of a protection domain is open.
    let context_box = unsafe { ContextBox::of(context) };
    let cap = ibv_qp_cap {
        max_send_wr: attr.cap.max_send_wr.max(1),
        max_recv_wr: attr.cap.max_recv_wr.max(1),
        max_send_sge: attr.cap.max_send_sge.max(1),
        max_recv_sge: attr.cap.max_recv_sge.max(1),
        max_inline_data: attr.cap.max_inline_data,
    };
    let qp = make(pd_box, [send_cq, recv_cq], srq, &cap, attr.sq_sig_all != 0)?;
    let wire = qp.qpn();
    let nic = Arc::clone(&context_box.nic);
    let events = Arc::clone(&context_box.events);
    let core = QpCore::add(&nic, events, qp, cap, attr.sq_sig_all != 0).ok_or(libc::ENOMEM)?;
    core.set_wire(None, Some(wire));
    pd_box.add_user();
    send_cq.add_user();
    recv_cq.add_user();
    if let Some(srq) = srq {
        srq.add_user();
    }
    attr.cap = cap;
    let base = ibv_qp_ex {
        base: ibv_qp {
            context,
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: 0,
            qp_num: core.number.get(),
            state: qp_state::RESET,
            qp_type: attr.qp_type,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        },
        ..post::functions()
    };
    let made = QpBox {
        base: UnsafeCell::new(base),
        zeros: [0; 32],
        core: Arc::clone(&core),
        builder: UnsafeCell::default(),
        building: AtomicBool::new(false),
        is_extended: ops.is_some(),
    };
    let made = Box::into_raw(Box::new(made));
    core.at.store(made.addr(), Ordering::Release);
    Ok(made.cast())
}

/// # Safety
/// A protection domain of this library, and attributes with objects of this library.
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as the caller promises.
        unsafe { create(pd, &mut *attr, None) }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the caller passes attributes.
        let attr = unsafe { &mut *attr };
        let known =
            qp_init_attr_mask::PD | qp_init_attr_mask::CREATE_FLAGS | qp_init_attr_mask::SEND_OPS_FLAGS;
        let flags = attr.comp_mask & qp_init_attr_mask::CREATE_FLAGS != 0 && attr.create_flags != 0;
        if attr.comp_mask & !known != 0 || flags {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & qp_init_attr_mask::PD == 0 {
            return Err(libc::EINVAL);
        }
        let ops = (attr.comp_mask & qp_init_attr_mask::SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
        let mut plain = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        // SAFETY: as for every function of a context.
        let made = unsafe { create(attr.pd, &mut plain, ops) }?;
        attr.cap = plain.cap;
        Ok(made)
    })
}

/// The functions that make requests one by one, if the queue pair was made for them.
///
/// # Safety
/// A queue pair of this library.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: as the caller promises.
    let of = unsafe { QpBox::of(qp) };
    if of.is_extended { of.base() } else { core::ptr::null_mut() }
}

/// # Safety
/// A queue pair of this library, and attributes.
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let (of, attr) = unsafe { (QpBox::of(qp), &*attr) };
        let state = of.core.modify(attr, mask)?;
        // SAFETY: only this function writes the field, and verbs has one caller of it at a time.
        unsafe { (&raw mut (*of.base()).base.state).write(state) };
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, and places for attributes.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        // SAFETY: as the caller promises.
        let of = unsafe { QpBox::of(qp) };
        let inner = of.core.lock();
        let state = QpCore::state(&inner);
        let found = ibv_qp_attr { qp_state: state, cur_qp_state: state, cap: inner.cap, ..inner.attr };
        // SAFETY: the fields are written only when the queue pair is made, and by `ibv_modify_qp`.
        let base = unsafe { &(*of.base()).base };
        let found_init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: inner.cap,
            qp_type: base.qp_type,
            sq_sig_all: inner.sig_all.into(),
        };
        // SAFETY: as the caller promises.
        unsafe { attr.write(found) };
        // SAFETY: as the caller promises.
        unsafe { init.write(found_init) };
        // SAFETY: as in `ibv_modify_qp`.
        unsafe { (&raw mut (*of.base()).base.state).write(state) };
        Ok(())
    })
}

/// # Safety
/// A queue pair of this library, which is not used afterwards if the call succeeds.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| {
        // SAFETY: as the caller promises; it came from a box.
        let of = unsafe { Box::from_raw(qp.cast::<QpBox>()) };
        let core = &of.core;
        core.at.store(0, Ordering::Release);
        core.nic.remove_qp(core);
        let mut inner = core.lock();
        // The control thread may be about to connect it.
        inner.state = qp_state::RESET;
        let ended = inner.qp.take();
        drop(inner);
        if let Some(ended) = ended {
            core.set_wire(Some(ended.qpn()), None);
        }
        core.events.forget(qp.addr());
        // SAFETY: the fields are written only when the queue pair is made.
        let base = unsafe { &(*of.base()).base };
        // SAFETY: objects with queue pairs cannot be destroyed.
        unsafe {
            CqBox::of(base.send_cq).remove_user();
            CqBox::of(base.recv_cq).remove_user();
            if !base.srq.is_null() {
                SrqBox::of(base.srq).remove_user();
            }
            PdBox::of(base.pd).remove_user();
        }
        Ok(())
    })
}

/// Packets of one message arrive in any order, over many paths.
pub(crate) extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// Nothing is agreed between vendors' devices.
///
/// # Safety
/// A place for the options.
pub(crate) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { ece.write(ibv_ece::default()) };
    0
}

/// # Safety
/// Options.
pub(crate) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: as the caller promises.
    let none = ece.is_null() || unsafe { (*ece).vendor_id == 0 };
    if none { 0 } else { libc::EOPNOTSUPP }
}
