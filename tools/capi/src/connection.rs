//! The connection behind a queue pair: its state as verbs has it, what the program has said of its peer, and requests that wait for it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spindrift::endpoint::{FailReason, QpFailure, QpInfo};
use spindrift::verbs::negotiate::negotiate;
use spindrift::verbs::{PostError, Qp, QpModify, QpState, RtrAttr, RtsAttr, VerbsError};
use spindrift::wire::{Psn, Qpn};

use crate::abi::{
    event_type, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap, qp_attr_mask, qp_state,
};
use crate::context::mtu_bytes;
use crate::error::{code_of, tell};
use crate::event::{About, EventQueue};
use crate::foreign;
use crate::handshake::{Number, Peer};
use crate::mrc::attributes::{Attributes, Change, Grants};
use crate::mrc::ctl::usage::{self, Used};
use crate::nic::Nic;
use crate::post::Request;
use crate::tally::count;
use spindrift_programs::gid;

/// A queue pair, for everybody who knows it: the program, completion queues, the control thread.
pub(crate) struct QpCore {
    pub(crate) number: Number,
    pub(crate) nic: Arc<Nic>,
    pub(crate) events: Arc<EventQueue>,
    /// The address of its object, for events.
    pub(crate) at: AtomicUsize,
    /// Its number on the wire now.
    wire: AtomicU32,
    /// The number of the peer, as the program knows it.
    peer: AtomicU32,
    /// The first send work request that is flushed stands for a peer that never answered.
    blames: AtomicBool,
    inner: Mutex<Inner>,
    /// The profiles that it uses. Locked after `inner`.
    pub(crate) used: Mutex<Used>,
}

pub(crate) struct Inner {
    pub(crate) qp: Option<Qp>,
    pub(crate) state: c_int,
    connected: bool,
    /// Posted before the peer was known.
    held: VecDeque<Request>,
    /// The control thread knows when they have waited too long.
    is_watched: bool,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
    /// What the program has set by MRC's own interface, if it made the queue pair with that.
    pub(crate) mrc: Option<Attributes>,
    /// The program says which PSN is the first, at RTS.
    says_psn: bool,
    /// Spindrift's queue pair is in RTR, and enters RTS with these when the program's does.
    agreed: Option<(RtsAttr, Grants)>,
}

/// What remains to be done of a change of state, without the lock.
enum After {
    Nothing,
    Handshake(Peer, Box<QpInfo>),
    /// The peer is known already, by this.
    Connect(Box<QpInfo>),
    Forget,
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
        request.check(&self.cap)?;
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
        while let Some(request) = self.held.front() {
            request.post(qp)?;
            self.held.pop_front();
        }
        Ok(())
    }

    /// The attributes of retransmission. In verbs a timeout is 4.096 us x 2^t, here 1.024 us x 2^t; 0 stands for ever. The
    /// timer may run for up to four times as long (InfiniBand 1.4, section 9.7.6.1.3), and does: a peer's process may have
    /// to wait for a core, which a NIC never has.
    fn retry(&self) -> RtsAttr {
        if let Some(mrc) = &self.mrc {
            return mrc.retry(RtsAttr::default());
        }
        let exponential = if self.attr.timeout == 0 { RtsAttr::MAX_EXPONENTIAL } else { 0 };
        let timeout = if self.attr.timeout == 0 { 14 } else { self.attr.timeout & 31 };
        RtsAttr {
            timeout: (timeout + 4).min(RtsAttr::MAX_TIMEOUT),
            linear_retries: self.attr.retry_cnt.min(RtsAttr::MAX_LINEAR),
            exponential_retries: exponential,
            rnr_retry: self.attr.rnr_retry.min(RtsAttr::MAX_RNR),
            ..RtsAttr::default()
        }
    }

    fn info(&self) -> Result<QpInfo, c_int> {
        let info = self.qp.as_ref().ok_or(libc::EINVAL)?.info().map_err(|error| code_of(&error))?;
        let most = mtu_bytes(self.attr.path_mtu).unwrap_or(u32::MAX);
        let info = QpInfo { mtu: info.mtu.min(most), ..info };
        Ok(self.mrc.as_ref().map_or(info.clone(), |mrc| mrc.offer(info)))
    }

    /// Begins to send, if the peer is known.
    fn start(&mut self) -> Result<(), VerbsError> {
        let Some((agreed, peer)) = self.agreed.take() else { return Ok(()) };
        let rts = RtsAttr {
            mpr: agreed.mpr,
            max_wimm: agreed.max_wimm,
            max_rd_atomic: agreed.max_rd_atomic,
            ..self.retry()
        };
        let rts = self.mrc.as_ref().map_or(rts, |mrc| mrc.sends(rts, &peer));
        let rts = RtsAttr { psn: self.says_psn.then(|| Psn::new(self.attr.sq_psn)), ..rts };
        let Some(qp) = &mut self.qp else { return Ok(()) };
        qp.modify(QpModify::Rts(rts))?;
        self.connected = true;
        Ok(())
    }
}

impl QpCore {
    /// Gives a queue pair a number. `None`: all are in use.
    pub(crate) fn add(
        nic: &Arc<Nic>,
        events: Arc<EventQueue>,
        qp: Qp,
        (cap, sig_all): (ibv_qp_cap, bool),
        mrc: Option<Attributes>,
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
            mrc,
            says_psn: nic.peers.is_some(),
            agreed: None,
        };
        let wire = inner.qp.as_ref()?.qpn();
        nic.add_qp(wire, |number| {
            Arc::new(Self {
                number,
                nic: Arc::clone(nic),
                events,
                at: AtomicUsize::new(0),
                wire: AtomicU32::new(0),
                peer: AtomicU32::new(0),
                blames: AtomicBool::new(false),
                inner: Mutex::new(inner),
                used: Mutex::default(),
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
        if let Some(budget_ns) = retry.budget_ns() {
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
        if inner.connected || inner.agreed.is_some() || !matches!(inner.state, qp_state::RTR | qp_state::RTS)
        {
            return Ok(());
        }
        let own = inner.info().map_err(|code| std::io::Error::from_raw_os_error(code).to_string())?;
        let agreed = negotiate(&own, peer).map_err(|refusal| refusal.to_string())?;
        let rtr = RtrAttr { min_rnr_timer: inner.attr.min_rnr_timer & 31, ..agreed.rtr };
        let rtr = inner.mrc.as_ref().map_or(rtr.clone(), |mrc| mrc.receives(rtr));
        let (mpr, max_wimm, max_rd_atomic) = (agreed.mpr, agreed.max_wimm, agreed.max_rd_atomic);
        let rts = RtsAttr { mpr, max_wimm, max_rd_atomic, ..RtsAttr::default() };
        let qp = inner.qp().map_err(|_| "it was destroyed".to_owned())?;
        qp.modify(QpModify::Rtr(Box::new(rtr))).map_err(|error| error.to_string())?;
        inner.agreed = Some((rts, Grants { mpr: peer.mpr, max_wimm: peer.max_wimm }));
        count(&self.nic.tally.connected);
        // Attributes of MRC for what it sends come with RTS, and so does a PSN. A queue pair of verbs responds to READs before that,
        // which is to send.
        let sends_early = inner.mrc.is_none() && !inner.says_psn;
        if sends_early || inner.state == qp_state::RTS {
            inner.start().map_err(|error| error.to_string())?;
        }
        inner.post_held().map_err(|error| error.to_string())
    }

    /// The program destroys it.
    pub(crate) fn end(self: &Arc<Self>) {
        self.at.store(0, Ordering::Release);
        self.nic.remove_qp(self);
        let mut inner = self.lock();
        // The control thread may be about to connect it.
        inner.state = qp_state::RESET;
        // A completion queue may know it for longer, which must not keep a hint.
        inner.mrc = None;
        let ended = inner.qp.take();
        drop(inner);
        if let Some(ended) = ended {
            self.set_wire(Some(ended.qpn()), None);
        }
    }

    /// Ends a queue pair whose peer is silent. Returns whether it did: not if it is connected.
    pub(crate) fn give_up(&self) -> bool {
        let mut inner = self.lock();
        !inner.connected && self.fail(&mut inner)
    }

    /// Ends a queue pair that the peer refuses, or that cannot be connected to it.
    pub(crate) fn refuse(&self) {
        let mut inner = self.lock();
        if self.fail(&mut inner) {
            self.raise(event_type::QP_FATAL);
        }
    }

    fn fail(&self, inner: &mut Inner) -> bool {
        if !matches!(inner.state, qp_state::RTR | qp_state::RTS) {
            return false;
        }
        self.blames.store(!inner.held.is_empty(), Ordering::Relaxed);
        inner.state = qp_state::ERR;
        count(&self.nic.tally.failed);
        let failed = inner.qp.as_mut().is_some_and(|qp| qp.modify(QpModify::Error).is_ok());
        // They are flushed, so there is room.
        let _ = inner.post_held();
        failed
    }

    /// Spindrift has put it into ERROR.
    pub(crate) fn on_fatal(&self, failure: &QpFailure) {
        if !matches!(failure.reason, FailReason::Requested) {
            count(&self.nic.tally.failed);
        }
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
    pub(crate) fn state(inner: &Inner) -> c_int {
        let failed = inner.qp.as_ref().is_some_and(|qp| qp.state().0 == QpState::Error);
        if failed { qp_state::ERR } else { inner.state }
    }

    /// Changes attributes, those of MRC's own interface too, and the state if the mask names it. Returns the state.
    pub(crate) fn modify(
        self: &Arc<Self>,
        attr: &ibv_qp_attr,
        mask: c_int,
        change: Option<&Change>,
    ) -> Result<c_int, c_int> {
        let mut inner = self.lock();
        let from = Self::state(&inner);
        let to = if mask & qp_attr_mask::STATE == 0 { from } else { attr.qp_state };
        if mask & qp_attr_mask::CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(libc::EINVAL);
        }
        let before = inner.mrc.clone();
        if let Some(change) = change {
            inner.mrc.as_mut().ok_or(libc::EINVAL)?.apply(change, [from, to])?;
            if let Err(code) = self.check_profiles(change) {
                inner.mrc = before;
                return Err(code);
            }
        }
        let after = self.step(&mut inner, [from, to], attr, mask);
        match &after {
            Ok(_) => inner.state = to,
            Err(_) => inner.mrc = before,
        }
        drop(inner);
        match after? {
            After::Nothing => {}
            After::Handshake(peer, info) => self.nic.begin_handshake(self.number, peer, *info),
            After::Connect(known) => {
                if let Err(reason) = self.connect(&known) {
                    tell(&format!("queue pair {:#x} cannot connect", self.number.get()), &reason);
                    self.lock().state = from;
                    return Err(libc::EINVAL);
                }
            }
            After::Forget => self.nic.forget_handshake(self.number),
        }
        Ok(to)
    }

    /// Whether the profiles that a change names can be used.
    fn check_profiles(&self, change: &Change) -> Result<(), c_int> {
        let profiles = change.profiles();
        if profiles == (0, 0) {
            return Ok(());
        }
        let state = self.nic.managed.read();
        state.and_then(|state| usage::check(&state, profiles)).map_err(|refusal| {
            tell(&format!("queue pair {:#x}", self.number.get()), &refusal.why);
            refusal.code
        })
    }

    fn step(
        self: &Arc<Self>,
        inner: &mut Inner,
        states: [c_int; 2],
        attr: &ibv_qp_attr,
        mask: c_int,
    ) -> Result<After, c_int> {
        match (states[0], states[1]) {
            (_, qp_state::RESET) => self.reset(inner)?,
            (_, qp_state::ERR) => {
                inner.qp()?.modify(QpModify::Error).map_err(|error| code_of(&error))?;
                inner.state = qp_state::ERR;
                let _ = inner.post_held();
                return Ok(After::Forget);
            }
            (qp_state::RESET, qp_state::INIT) => {
                inner.qp()?.init().map_err(|error| code_of(&error))?;
                remember(&mut inner.attr, attr, mask);
            }
            (qp_state::INIT, qp_state::INIT) | (qp_state::RTR, qp_state::RTR) => {
                remember(&mut inner.attr, attr, mask);
            }
            (qp_state::INIT, qp_state::RTR) => {
                if mask & qp_attr_mask::DEST_QPN == 0
                    || mask & qp_attr_mask::AV == 0
                    || attr.ah_attr.is_global == 0
                {
                    return Err(libc::EINVAL);
                }
                self.use_profiles(inner)?;
                remember(&mut inner.attr, attr, mask);
                // SAFETY: all bit patterns are bytes.
                let dgid = unsafe { attr.ah_attr.grh.dgid.raw };
                let peer = Peer { address: gid::address(dgid), number: Number::from_verbs(attr.dest_qp_num) };
                self.peer.store(peer.number.get(), Ordering::Relaxed);
                let own = inner.info()?;
                let Some(peers) = &self.nic.peers else { return Ok(After::Handshake(peer, Box::new(own))) };
                let known = foreign::info(&own, &inner.attr, (peer, peers));
                return known.map(|known| After::Connect(Box::new(known))).map_err(|reason| {
                    tell(&format!("queue pair {:#x} cannot connect", self.number.get()), &reason);
                    libc::EINVAL
                });
            }
            (qp_state::RTR | qp_state::RTS, qp_state::RTS) => {
                remember(&mut inner.attr, attr, mask);
                inner.start().map_err(|error| code_of(&error))?;
                let retry = inner.retry();
                if inner.connected {
                    inner.qp()?.modify(QpModify::Retry(retry.retry())).map_err(|error| code_of(&error))?;
                }
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(After::Nothing)
    }

    fn reset(self: &Arc<Self>, inner: &mut Inner) -> Result<(), c_int> {
        let qp = inner.qp()?;
        let old = qp.qpn();
        qp.modify(QpModify::Reset).map_err(|error| code_of(&error))?;
        let new = qp.qpn();
        self.set_wire(Some(old), Some(new));
        inner.held.clear();
        (inner.connected, inner.is_watched, inner.agreed) = (false, false, None);
        inner.mrc = inner.mrc.take().map(|_| Attributes::default());
        self.blames.store(false, Ordering::Relaxed);
        self.nic.forget_handshake(self.number);
        Ok(())
    }

    pub(crate) fn set_wire(self: &Arc<Self>, old: Option<Qpn>, new: Option<Qpn>) {
        self.wire.store(new.map_or(0, Qpn::get), Ordering::Release);
        self.nic.set_wire(self, old, new);
    }
}

/// Keeps the attributes that the mask names.
pub(crate) fn remember(own: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: c_int) {
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

/// The attributes of a queue pair of which nothing is known: as IB has them by default.
pub(crate) fn no_attributes() -> ibv_qp_attr {
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
