//! Queue pairs.

use crate::congestion::CcConfig;
use crate::endpoint::{FailReason, QpCap, QpInfo, QpInit, QpModify, QpState, RtsAttr};
use crate::engine::{Full, QpSubmit};
use crate::memory::Access;
use crate::path::PathConfig;
use crate::wire::{Msn, Psn, Qpn};
use crate::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge};

use super::context::{Pd, Placement};
use super::cq::Cq;
use super::error::{PostError, VerbsError};
use super::exchange::{Negotiated, negotiate};
use super::mr::Mr;

/// Most bytes that a queue pair may take inline.
pub const MAX_INLINE: u32 = 4096;

/// Settings of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Send work requests that may be outstanding. Default 128.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding. Default 128.
    pub max_recv_wr: u32,
    /// Bytes of an inline send, at most [`MAX_INLINE`]; each send work request costs as much memory. Default 0: none.
    pub max_inline: u32,
    /// Every send work request is signalled. Default off.
    pub sig_all: bool,
    /// The lane of the context that it lives on. Default: the lanes take turns.
    pub lane: Placement,
    /// Entropy values and their health.
    pub path: PathConfig,
    /// Congestion control.
    pub cc: CcConfig,
    /// Largest payload of a packet in bytes; what the ports take when 0. Default 4096.
    pub max_mtu: u32,
    /// First PSN sent; random when not given (the default).
    pub psn: Option<u32>,
    /// First message number sent. Default 0; other values are for tests near the wrap.
    pub msn: u16,
    /// PSN range granted to the peer and, up to what it grants, used for sending; in units of 128 PSNs. Default 8
    /// (the least that MRC 1.0 asks for).
    pub mpr: u8,
    /// Writes with immediate in flight, granted and used likewise. Default 128.
    pub max_wimm: u16,
    /// The granted PSN range may change while connected: `mpr` is the most then, and what is granted depends on
    /// [`Limits::window_budget_psns`](crate::endpoint::Limits::window_budget_psns) and on how fast completions are
    /// polled. Default off.
    pub dynamic_mpr: bool,
    /// Retransmission timeout and retries; `mpr` and `max_wimm` in here are replaced by what is negotiated.
    pub retry: RtsAttr,
}

impl Default for QpConfig {
    fn default() -> Self {
        let QpCap { max_send_wr, max_recv_wr } = QpCap::default();
        Self {
            max_send_wr,
            max_recv_wr,
            max_inline: 0,
            sig_all: false,
            lane: Placement::default(),
            path: PathConfig::new(1),
            cc: CcConfig::none(),
            max_mtu: 4096,
            psn: None,
            msn: 0,
            mpr: 8,
            max_wimm: 128,
            dynamic_mpr: false,
            retry: RtsAttr::default(),
        }
    }
}

/// A queue pair: one side of a reliable connection.
///
/// It goes from RESET to INIT (receives may be posted), RTR (it receives) and RTS (it sends). [`Qp::connect`]
/// takes all these steps; [`Qp::modify`] takes one. After an error it is in ERROR: everything posted is
/// completed with [`WcStatus::WrFlushError`](crate::work::WcStatus::WrFlushError), and only RESET leads out.
///
/// Work requests complete in the order in which they were posted. Dropping a queue pair ends it at once; requests
/// not complete by then never will be.
#[derive(Debug)]
pub struct Qp {
    pd: Pd,
    lane: usize,
    qpn: Qpn,
    submit: QpSubmit,
    inline: Option<InlineArena>,
    retry: RtsAttr,
    /// As far as this handle has brought it; the lane may have moved it on to ERROR.
    state: QpState,
}

/// Memory that inline sends are copied to: one piece for each send work request.
#[derive(Debug)]
struct InlineArena {
    mr: Mr,
    piece: u32,
    pieces: u32,
    next: u32,
}

impl Qp {
    /// Makes a queue pair, in RESET. Both completion queues may be the same.
    ///
    /// # Errors
    /// [`VerbsError::OtherContext`], [`VerbsError::OutOfRange`], [`VerbsError::Endpoint`].
    pub fn create(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, config: &QpConfig) -> Result<Self, VerbsError> {
        for (cq, name) in [(send_cq, "send completion queue"), (recv_cq, "receive completion queue")] {
            if !cq.context().is_same(pd.context()) {
                return Err(VerbsError::OtherContext(name));
            }
        }
        let inline = InlineArena::create(pd, config)?;
        let init = QpInit {
            cap: QpCap { max_send_wr: config.max_send_wr, max_recv_wr: config.max_recv_wr },
            sig_all: config.sig_all,
            path: config.path.clone(),
            cc: config.cc.clone(),
            psn: config.psn.map(Psn::new),
            msn: Msn::new(config.msn),
            mpr_dest: config.mpr,
            max_wimm_dest: config.max_wimm,
            max_mtu: config.max_mtu,
            dynamic_mpr: config.dynamic_mpr,
            ..QpInit::new(pd.id(), send_cq.id(), recv_cq.id())
        };
        let lane = pd.context().place(config.lane)?;
        let cqs = [send_cq.core(), recv_cq.core()];
        let (qpn, submit) = pd.context().control(lane, |lane| lane.create_qp(init, cqs))??;
        Ok(Self { pd: pd.clone(), lane, qpn, submit, inline, retry: config.retry, state: QpState::Reset })
    }

    /// What a peer has to know to connect; see [`exchange`](super::exchange) for ways to carry it.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] should the queue pair be gone, which a living handle rules out.
    pub fn info(&self) -> Result<QpInfo, VerbsError> {
        let gone = crate::endpoint::EndpointError::NoSuchQp(self.qpn.get());
        Ok(self.pd.context().control(self.lane, |lane| lane.endpoint().qp_info(self.qpn))?.ok_or(gone)?)
    }

    /// RESET → INIT: from here on receives can be posted, and they are there when the peer's first immediate comes.
    /// Where this has not been done, [`Qp::connect`] does it, and leaves no time for that.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] in any other state.
    pub fn init(&mut self) -> Result<(), VerbsError> {
        self.modify(QpModify::Init)
    }

    /// Connects to a peer's queue pair: negotiates, then goes from RESET or INIT all the way to RTS.
    ///
    /// The peer must do the same with this side's [`Qp::info`]. It can receive once it has; what is
    /// sent before is lost and sent again.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when the peer does not fit, [`VerbsError::Endpoint`].
    pub fn connect(&mut self, peer: &QpInfo) -> Result<(), VerbsError> {
        let agreed = negotiate(&self.info()?, peer)?;
        self.establish(&agreed)
    }

    /// Goes from RESET or INIT to RTS with what was negotiated elsewhere.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`].
    pub fn establish(&mut self, agreed: &Negotiated) -> Result<(), VerbsError> {
        if self.state == QpState::Reset {
            self.modify(QpModify::Init)?;
        }
        self.modify(QpModify::Rtr(Box::new(agreed.rtr.clone())))?;
        self.modify(QpModify::Rts(RtsAttr { mpr: agreed.mpr, max_wimm: agreed.max_wimm, ..self.retry }))
    }

    /// One step of the state machine, with all its attributes.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] when the step is not allowed from here or an attribute is out of range.
    pub fn modify(&mut self, change: QpModify) -> Result<(), VerbsError> {
        let to = match change {
            QpModify::Reset => QpState::Reset,
            QpModify::Init => QpState::Init,
            QpModify::Rtr(_) => QpState::Rtr,
            QpModify::Rts(_) => QpState::Rts,
            QpModify::Error => QpState::Error,
        };
        self.pd.context().control(self.lane, |lane| lane.modify_qp(self.qpn, change))??;
        if to == QpState::Reset {
            self.submit.forget_outstanding();
        }
        self.state = to;
        Ok(())
    }

    /// Its state, and why it failed if it did.
    ///
    /// Whoever has seen a completion in error sees ERROR here. Asking does not hold up a lane that has a thread of its
    /// own; in the caller's thread, what was posted before is taken in first.
    pub fn state(&self) -> (QpState, Option<FailReason>) {
        self.pd.context().settle_inline(self.lane);
        self.submit.condition()
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The lane of its context that it lives on.
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Posts a send work request. Its bytes must stay as they are until it completes.
    ///
    /// A bad local or remote key shows in its completion. Once the queue pair has failed, the request is
    /// taken and completed as flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        if wr.local.len == 0 {
            return Err(PostError::Empty);
        }
        self.may_send()?;
        let max = self.submit.max_sends();
        self.submit.post_send(wr).map_err(|Full| PostError::QueueFull { max })
    }

    /// Posts a send work request for bytes that are copied now and need not be registered;
    /// at most [`QpConfig::max_inline`] of them.
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    #[inline]
    pub fn post_send_inline(&mut self, bytes: &[u8], wr: InlineWr) -> Result<(), PostError> {
        if bytes.is_empty() {
            return Err(PostError::Empty);
        }
        self.may_send()?;
        let max = self.submit.max_sends();
        // Requests finish in order and there is a piece for each that may be outstanding: with fewer than
        // that, the piece used longest ago is free again.
        if self.submit.sends_outstanding() >= max {
            return Err(PostError::QueueFull { max });
        }
        let too_long = |max| PostError::InlineTooLong { len: bytes.len(), max };
        let arena = self.inline.as_mut().ok_or(too_long(0))?;
        let local = arena.place(bytes).ok_or(too_long(arena.piece))?;
        let InlineWr { wr_id, op, remote, signaled } = wr;
        self.submit
            .post_send(SendWr { wr_id, op, local, remote, signaled })
            .map_err(|Full| PostError::QueueFull { max })
    }

    /// Posts a receive work request: room for one immediate of the peer's. An immediate that finds none
    /// is an error for both sides (MRC has no "receiver not ready"). Allowed from INIT on, see [`Qp::init`].
    ///
    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::WrongState(self.state));
        }
        if self.submit.is_closed() {
            return Err(PostError::LaneFailed);
        }
        let max = self.submit.max_recvs();
        self.submit.post_recv(wr).map_err(|Full| PostError::QueueFull { max })
    }

    /// Send work requests posted and not complete, those included that will not signal.
    pub fn sends_outstanding(&self) -> u32 {
        self.submit.sends_outstanding()
    }

    /// Receive work requests posted and not consumed.
    pub fn recvs_outstanding(&self) -> u32 {
        self.submit.recvs_outstanding()
    }

    #[inline]
    fn may_send(&self) -> Result<(), PostError> {
        match self.state {
            QpState::Rts | QpState::Error if self.submit.is_closed() => Err(PostError::LaneFailed),
            QpState::Rts | QpState::Error => Ok(()),
            state => Err(PostError::WrongState(state)),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let qpn = self.qpn;
        self.pd.context().control_at_last(self.lane, move |lane| lane.destroy_qp(qpn));
    }
}

/// A send work request whose bytes are given apart, for [`Qp::post_send_inline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineWr {
    /// The application's own name for the request; comes back in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Where the bytes go.
    pub remote: RemoteAddr,
    /// Whether success produces a completion.
    pub signaled: bool,
}

impl InlineArena {
    fn create(pd: &Pd, config: &QpConfig) -> Result<Option<Self>, VerbsError> {
        let (piece, pieces) = (config.max_inline, config.max_send_wr);
        if piece > MAX_INLINE {
            let allowed = format!("at most {MAX_INLINE}");
            return Err(VerbsError::OutOfRange { name: "max_inline", value: u64::from(piece), allowed });
        }
        let limit = pd.context().config().limits.max_send_wr;
        if pieces > limit {
            let allowed = format!("at most {limit}, see `EndpointConfig::limits`");
            return Err(VerbsError::OutOfRange { name: "max_send_wr", value: u64::from(pieces), allowed });
        }
        if piece == 0 || pieces == 0 {
            return Ok(None);
        }
        let mr = pd.register(piece as usize * pieces as usize, Access::LOCAL_READ)?;
        Ok(Some(Self { mr, piece, pieces, next: 0 }))
    }

    /// Copies the bytes to the next piece.
    #[inline]
    fn place(&mut self, bytes: &[u8]) -> Option<Sge> {
        if bytes.len() > self.piece as usize {
            return None;
        }
        let offset = self.next as usize * self.piece as usize;
        self.mr.write_at(offset, bytes).ok()?;
        self.next = if self.next + 1 == self.pieces { 0 } else { self.next + 1 };
        self.mr.sge(offset, bytes.len() as u32).ok()
    }
}
