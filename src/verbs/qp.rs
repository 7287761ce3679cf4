//! Queue pairs.

use crate::congestion::CcConfig;
use std::sync::Arc;

use crate::endpoint::{
    EndpointError, Extensions, FailReason, QpAttr, QpCap, QpInfo, QpInit, QpModify, QpState, RtrAttr, RtsAttr,
};
use crate::path::{PathConfig, PlaneRole, RoleStatus};
use crate::wire::{Msn, Psn, Qpn};
use crate::work::{GatherWr, RecvWr, ScatterWr, SendOp, SendWr};

use super::context::Placement;
use super::cq::Cq;
use super::error::{BadWr, PostError, VerbsError};
use super::negotiate::{Negotiated, negotiate};
use super::pd::Pd;
use super::post::{ForkedDefault, InlineArena, InlineWr, Posting, QpPoster, SharedPosting};
use super::srq::Srq;

/// Settings of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// The largest number of outstanding send work requests. Default 128.
    pub max_send_wr: u32,
    /// The largest number of outstanding receive work requests. Default 128. Ignored if `srq` is set.
    pub max_recv_wr: u32,
    /// The shared receive queue that immediates take receive work requests from. Default: none, the queue pair has its
    /// own.
    pub srq: Option<Srq>,
    /// Scatter/gather elements of a send work request, 1 to [`MAX_SGE`](super::MAX_SGE): see [`Qp::post_gather`]. If
    /// it is more than one, each send work request costs 16 bytes per element. Default 1.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive work request, 1 to [`MAX_SGE`](super::MAX_SGE): see [`Qp::post_scatter`].
    /// If it is more than one, each receive work request costs 16 bytes per element. Ignored if `srq` is set.
    /// Default 1.
    pub max_recv_sge: u32,
    /// Bytes of an inline send, at most [`MAX_INLINE`](super::MAX_INLINE). Each send work request costs that much
    /// memory. Default 0: none.
    pub max_inline: u32,
    /// Every send work request is signalled. Default off.
    pub sig_all: bool,
    /// The lane of the context that it lives on. Default: the lanes take turns.
    pub lane: Placement,
    /// Entropy values and their path states.
    pub path: PathConfig,
    /// Congestion control. Default: [`Context::default_cc`](super::Context::default_cc) for its lane's ports, which is
    /// adaptive if one of them reaches a network.
    pub cc: Option<CcConfig>,
    /// Largest payload of a packet in bytes. 0: the largest that the ports can carry. Default 4096.
    pub max_mtu: u32,
    /// First PSN sent. Default: random.
    pub psn: Option<u32>,
    /// First message number sent. Default 0; other values are for tests near the wrap.
    pub msn: u16,
    /// PSN range granted to the peer, in units of 128 PSNs. For sending, the smaller of this and the peer's grant is
    /// used. Default 8 (the least that MRC 1.0 allows).
    pub mpr: u8,
    /// Writes with immediate and SENDs in flight, granted and used in the same way. Default 128.
    pub max_wimm: u16,
    /// Reads and atomic operations in flight, granted and used in the same way. Default 16.
    pub max_rd_atomic: u8,
    /// The granted PSN range may change while connected. `mpr` is then the largest range. The grant depends on
    /// [`Limits::window_budget_psns`](crate::endpoint::Limits::window_budget_psns) and on how fast completions are
    /// polled. Default off.
    pub dynamic_mpr: bool,
    /// Extensions of MRC to offer to the peer: SEND and more. Those that both peers offer are used. Default: all.
    /// [`Extensions::NONE`] makes it plain MRC.
    pub extensions: Extensions,
    /// RESET keeps the queue pair's number, for peers that are told of it once: see [`QpInit::keep_number`]. Default off.
    pub keep_number: bool,
    /// How long the peer waits at least before it repeats a message for which no receive work request was posted: a
    /// code from 0 to 31, see [`Neth::rnr_timer_ns`](crate::wire::Neth::rnr_timer_ns). Default 12 (0.64 ms).
    pub min_rnr_timer: u8,
    /// Retransmission timeout and retries. The negotiated values replace `mpr`, `max_wimm` and `max_rd_atomic` in it.
    pub retry: RtsAttr,
}

impl Default for QpConfig {
    fn default() -> Self {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge } = QpCap::default();
        Self {
            max_send_wr,
            max_recv_wr,
            srq: None,
            max_send_sge,
            max_recv_sge,
            max_inline: 0,
            sig_all: false,
            lane: Placement::default(),
            path: PathConfig::new(1),
            cc: None,
            max_mtu: 4096,
            psn: None,
            msn: 0,
            mpr: 8,
            max_wimm: 128,
            max_rd_atomic: 16,
            dynamic_mpr: false,
            extensions: Extensions::ALL,
            keep_number: false,
            min_rnr_timer: RtrAttr::MIN_RNR_TIMER,
            retry: RtsAttr::default(),
        }
    }
}

/// The endpoint's error with the field names of [`QpConfig`].
fn named_as_in_config(error: EndpointError) -> EndpointError {
    match error {
        EndpointError::BadAttribute { name, value, allowed } => {
            let name = match name {
                "cap.max_send_wr" => "max_send_wr",
                "cap.max_recv_wr" => "max_recv_wr",
                "cap.max_send_sge" => "max_send_sge",
                "cap.max_recv_sge" => "max_recv_sge",
                "mpr_dest" => "mpr",
                "max_dest_rd_atomic" => "max_rd_atomic",
                name => name,
            };
            EndpointError::BadAttribute { name, value, allowed }
        }
        error => error,
    }
}

/// A queue pair: one side of a reliable connection.
///
/// It goes from RESET to INIT (receives may be posted), RTR (it receives) and RTS (it sends). [`Qp::connect`]
/// takes all these steps; [`Qp::modify`] takes one. After an error it is in ERROR: everything posted is
/// completed with [`WcStatus::WrFlushError`](crate::work::WcStatus::WrFlushError), and only RESET leads out.
///
/// Work requests complete in the order in which they were posted. Dropping a queue pair destroys it at once; requests
/// that have not completed by then never complete.
///
/// One thread posts through it, without a lock. To post from several, [share](Qp::share) it.
#[derive(Debug)]
pub struct Qp {
    // Dropped first: the queue pair ends before its posting side and the memory for inline sends are freed.
    end: End,
    posting: Holder,
    retry: RtsAttr,
    max_inline: u32,
    /// Extensions that it offers.
    offered: Extensions,
    min_rnr_timer: u8,
}

/// A queue pair's place in its context. Dropping it destroys the queue pair.
#[derive(Debug)]
struct End {
    pd: Pd,
    lane: usize,
    qpn: Qpn,
    /// The posting side, if it is shared.
    shared: Option<Arc<SharedPosting>>,
}

/// How requests are posted to a queue pair.
#[derive(Debug)]
enum Holder {
    Own(Posting),
    Shared(Arc<SharedPosting>),
}

impl Holder {
    #[inline]
    fn with<R: ForkedDefault>(&self, act: impl FnOnce(&Posting) -> R) -> R {
        match self {
            Self::Own(posting) => act(posting),
            Self::Shared(posting) => posting.with(|posting| act(posting)),
        }
    }

    #[inline]
    fn with_mut<R: ForkedDefault>(&mut self, act: impl FnOnce(&mut Posting) -> R) -> R {
        match self {
            Self::Own(posting) => act(posting),
            Self::Shared(posting) => posting.with(act),
        }
    }
}

impl Qp {
    /// Makes a queue pair in state RESET. The two completion queues may be the same.
    ///
    /// # Errors
    /// [`VerbsError::OtherContext`], [`VerbsError::CqEnded`], [`VerbsError::OutOfRange`], [`VerbsError::Endpoint`].
    pub fn create(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, config: &QpConfig) -> Result<Self, VerbsError> {
        let named = [(send_cq, "send completion queue"), (recv_cq, "receive completion queue")];
        for (cq, name) in named {
            if !cq.context().is_same(pd.context()) {
                return Err(VerbsError::OtherContext(name));
            }
        }
        if config.srq.as_ref().is_some_and(|srq| !srq.context().is_same(pd.context())) {
            return Err(VerbsError::OtherContext("shared receive queue"));
        }
        let inline = InlineArena::create(pd, config.max_inline, config.max_send_wr)?;
        let lane = pd.context().place(config.lane)?;
        let init = QpInit {
            cap: QpCap {
                max_send_wr: config.max_send_wr,
                max_recv_wr: config.max_recv_wr,
                max_send_sge: config.max_send_sge,
                max_recv_sge: config.max_recv_sge,
            },
            srq: config.srq.as_ref().map(|srq| Arc::clone(srq.queue())),
            sig_all: config.sig_all,
            path: config.path.clone(),
            cc: config.cc.clone().unwrap_or_else(|| pd.context().default_cc(lane)),
            psn: config.psn.map(Psn::new),
            msn: Msn::new(config.msn),
            mpr_dest: config.mpr,
            max_wimm_dest: config.max_wimm,
            max_dest_rd_atomic: config.max_rd_atomic,
            max_mtu: config.max_mtu,
            dynamic_mpr: config.dynamic_mpr,
            extensions: config.extensions,
            keep_number: config.keep_number,
            ..QpInit::new(pd.id(), send_cq.id(), recv_cq.id())
        };
        let cqs = [send_cq.core(), recv_cq.core()];
        let (qpn, submit) = pd.context().control(lane, |lane| {
            // Checked on the lane: if a queue ends later, the lane fails its queue pairs.
            for (cq, name) in named {
                if let Some(end) = cq.end() {
                    return Err(VerbsError::CqEnded { name, end });
                }
            }
            lane.create_qp(init, cqs).map_err(|error| named_as_in_config(error).into())
        })??;
        Ok(Self {
            end: End { pd: pd.clone(), lane, qpn, shared: None },
            posting: Holder::Own(Posting::new(qpn, submit, inline, config.srq.is_some())),
            retry: config.retry,
            max_inline: config.max_inline,
            offered: config.extensions,
            min_rnr_timer: config.min_rnr_timer,
        })
    }

    /// Lets other threads post to it too: each takes a clone of the second handle. The first handle is the queue pair
    /// as before, and the queue pair exists as long as that handle.
    ///
    /// From here on a post takes a lock, as `ibv_post_send` does without a thread domain. It costs some ten
    /// nanoseconds if no other thread posts at the same moment. A list of requests takes the lock once.
    pub fn share(self) -> (Self, QpPoster) {
        let Self { mut end, posting, retry, max_inline, offered, min_rnr_timer } = self;
        let shared = match posting {
            Holder::Own(posting) => Arc::new(SharedPosting::new(posting)),
            Holder::Shared(posting) => posting,
        };
        end.shared = Some(Arc::clone(&shared));
        let poster = QpPoster::new(Arc::clone(&shared));
        let posting = Holder::Shared(shared);
        (Self { end, posting, retry, max_inline, offered, min_rnr_timer }, poster)
    }

    /// The information that a peer needs to connect; see [`negotiate`](super::negotiate) for ways to send it.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] if the queue pair does not exist, which an existing handle excludes.
    pub fn info(&self) -> Result<QpInfo, VerbsError> {
        let End { pd, lane, qpn, .. } = &self.end;
        let gone = EndpointError::NoSuchQp(qpn.get());
        Ok(pd.context().control(*lane, |lane| lane.endpoint().qp_info(*qpn))?.ok_or(gone)?)
    }

    /// Its attributes now (`ibv_query_qp`), in any state: how it was made, its peer, and its progress. Requests posted
    /// before are accepted first.
    ///
    /// This is a control call. [`Qp::state`] and [`Qp::sends_outstanding`] do not involve the lane.
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call, or if the lane has failed.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        let End { pd, lane, qpn, .. } = &self.end;
        let gone = EndpointError::NoSuchQp(qpn.get());
        let attr = pd.context().control(*lane, |lane| lane.endpoint().query_qp(*qpn))?.ok_or(gone)?;
        Ok(QpAttr { max_inline: self.max_inline, ..attr })
    }

    /// RESET → INIT: receives can be posted from here on, before the peer's first immediate can arrive.
    /// [`Qp::connect`] includes this step, but then leaves no time for it.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] in any other state.
    pub fn init(&mut self) -> Result<(), VerbsError> {
        self.modify(QpModify::Init)
    }

    /// Connects to a peer's queue pair: negotiates, then goes from RESET or INIT all the way to RTS.
    ///
    /// The peer must do the same with this side's [`Qp::info`]. It can receive once it has. Packets sent before that
    /// are lost and retransmitted.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] if the peer is not compatible, [`VerbsError::Endpoint`].
    pub fn connect(&mut self, peer: &QpInfo) -> Result<(), VerbsError> {
        let agreed = negotiate(&self.info()?, peer)?;
        self.establish(&agreed)
    }

    /// Goes from RESET or INIT to RTS with attributes that were negotiated elsewhere.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`].
    pub fn establish(&mut self, agreed: &Negotiated) -> Result<(), VerbsError> {
        if self.posting.with(|posting| posting.state) == QpState::Reset {
            self.modify(QpModify::Init)?;
        }
        let rtr = RtrAttr { min_rnr_timer: self.min_rnr_timer, ..agreed.rtr.clone() };
        self.modify(QpModify::Rtr(Box::new(rtr)))?;
        let Negotiated { mpr, max_wimm, max_rd_atomic, .. } = *agreed;
        self.modify(QpModify::Rts(RtsAttr { mpr, max_wimm, max_rd_atomic, ..self.retry }))
    }

    /// One step of the state machine, with all its attributes, or a change of attributes in RTS: [`QpModify`] has the table.
    ///
    /// ```
    /// # use spindrift::verbs::{Qp, QpModify, RetryAttr, VerbsError};
    /// /// Gives up after a second (1.024 us x 2^14 x (7 + 2^6 - 1) = 1.2 s) from here on.
    /// fn hurry(qp: &mut Qp) -> Result<(), VerbsError> {
    ///     qp.modify(QpModify::Retry(RetryAttr { timeout: 14, linear_retries: 7, exponential_retries: 5 }))
    /// }
    /// ```
    ///
    /// After [`QpModify::Reset`] it has a new [number](Qp::qpn). The next [`Qp::info`] carries it to the peer.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] if the step is not allowed from this state or an attribute is out of range. Nothing
    /// has changed then.
    pub fn modify(&mut self, change: QpModify) -> Result<(), VerbsError> {
        let to = match change {
            QpModify::Reset => Some(QpState::Reset),
            QpModify::Init => Some(QpState::Init),
            QpModify::Rtr(_) => Some(QpState::Rtr),
            QpModify::Rts(_) => Some(QpState::Rts),
            QpModify::Error => Some(QpState::Error),
            QpModify::Paths(_) | QpModify::Retry(_) | QpModify::Congestion(_) => None,
        };
        let agreed = match &change {
            QpModify::Rtr(attr) => Some(attr.extensions & self.offered),
            _ => None,
        };
        let from = self.posting.with_mut(|posting| {
            let from = posting.state;
            // Other threads must not post between the moment when the lane drops all requests and the moment when they
            // are cleared here.
            if to == Some(QpState::Reset) {
                posting.state = QpState::Reset;
            }
            from
        });
        let End { pd, lane, qpn, .. } = &self.end;
        let changed = pd.context().control(*lane, |lane| lane.modify_qp(*qpn, change));
        let changed = changed.and_then(|changed| Ok(changed?));
        self.posting.with_mut(|posting| match changed {
            Ok(qpn) if to == Some(QpState::Reset) => posting.start_over(qpn),
            Ok(_) => {
                posting.state = to.unwrap_or(posting.state);
                posting.extensions = agreed.unwrap_or(posting.extensions);
            }
            Err(_) => posting.state = from,
        });
        self.end.qpn = changed?;
        Ok(())
    }

    /// Its state, and the reason if it failed.
    ///
    /// A thread that has seen a completion in error sees ERROR here. The call does not delay a lane that has a thread
    /// of its own. In the caller's thread, requests posted before are accepted first.
    pub fn state(&self) -> (QpState, Option<FailReason>) {
        self.end.pd.context().drain_inline(self.end.lane);
        self.posting.with(Posting::condition)
    }

    /// The roles of its planes, and which of them carry packets; `None` if they have no roles
    /// ([`PathConfig::standby`]). A control call.
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call, or if the lane has failed.
    pub fn role_status(&self) -> Result<Option<RoleStatus>, VerbsError> {
        let End { pd, lane, qpn, .. } = &self.end;
        pd.context().control(*lane, |lane| lane.endpoint().role_status(*qpn))
    }

    /// Moves its packets to the planes of a role, for maintenance of a NIC or because it slows the job, and keeps them
    /// there while that role is fit. Nothing is replayed, no request fails, and the order is kept. Returns whether
    /// packets take those planes now. `false`: they do so once the role has been fit for the hold time
    /// ([`PathConfig::failback_hold_ns`]), or the planes have no roles. A control call.
    ///
    /// ```
    /// # use spindrift::path::PlaneRole;
    /// # use spindrift::verbs::{Qp, VerbsError};
    /// /// Leaves the first NIC. `qp.prefer_role(PlaneRole::Primary)` leads back.
    /// fn drain_first_nic(qp: &Qp) -> Result<bool, VerbsError> {
    ///     qp.prefer_role(PlaneRole::Standby)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`VerbsError::Control`] within another control call, or if the lane has failed.
    pub fn prefer_role(&self, role: PlaneRole) -> Result<bool, VerbsError> {
        let End { pd, lane, qpn, .. } = &self.end;
        pd.context().control(*lane, |lane| lane.endpoint_mut().prefer_role(*qpn, role))
    }

    /// Its number, until a reset.
    pub fn qpn(&self) -> Qpn {
        self.end.qpn
    }

    /// The lane of its context that it lives on.
    pub fn lane(&self) -> usize {
        self.end.lane
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.end.pd
    }

    /// Posts a send work request. Its bytes must not change until it completes.
    ///
    /// A bad local or remote key is reported in its completion. Once the queue pair has failed, the request is
    /// accepted and completed as flushed.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.posting.with_mut(|posting| posting.post_send(wr))
    }

    /// Posts a list of send work requests, in order, and notifies the lane once. The cost beyond copying the requests
    /// arises once for the list.
    ///
    /// # Errors
    /// [`BadWr`] names the first request that was refused, and why. Those before it have been posted, none after it
    /// has.
    #[inline]
    pub fn post_sends(&mut self, wrs: &[SendWr]) -> Result<(), BadWr> {
        self.posting.with_mut(|posting| posting.post_sends(wrs))
    }

    /// Posts a send work request with several elements, up to [`QpConfig::max_send_sge`]. Their bytes must not change
    /// until it completes; the list of elements may.
    ///
    /// If any local key is bad, the request completes with
    /// [`WcStatus::LocalProtectionError`](crate::work::WcStatus::LocalProtectionError), and nothing of it is sent.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_gather(&mut self, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.posting.with_mut(|posting| posting.post_gather(wr))
    }

    /// Posts a list of gather requests, as [`Qp::post_sends`] does.
    ///
    /// # Errors
    /// [`BadWr`], as there.
    #[inline]
    pub fn post_gathers(&mut self, wrs: &[GatherWr<'_>]) -> Result<(), BadWr> {
        self.posting.with_mut(|posting| posting.post_gathers(wrs))
    }

    /// Posts a send work request for at most [`QpConfig::max_inline`] bytes. They are copied now and need not be
    /// registered.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_send_inline(&mut self, bytes: &[u8], wr: InlineWr) -> Result<(), PostError> {
        self.posting.with_mut(|posting| posting.post_send_inline(bytes, wr))
    }

    /// Posts a receive work request: for one immediate or one SEND of the peer. Allowed from INIT on, see
    /// [`Qp::init`]. Not allowed with [`QpConfig::srq`], which then holds the receives.
    ///
    /// The peer repeats a message that finds no request, up to [`RtsAttr::rnr_retry`] times. If it does not have the
    /// extension [`RNR`](Extensions::RNR), such a message is an error for both sides: MRC has no "receiver not ready".
    ///
    /// If the buffer cannot be used, the request completes with
    /// [`WcStatus::LocalProtectionError`](crate::work::WcStatus::LocalProtectionError), and the queue pair fails.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    #[inline]
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.posting.with_mut(|posting| posting.post_recv(wr))
    }

    /// Posts a receive work request whose buffer has several elements, up to [`QpConfig::max_recv_sge`]. The list of
    /// elements may change after the call.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_scatter(&mut self, wr: ScatterWr<'_>) -> Result<(), PostError> {
        self.posting.with_mut(|posting| posting.post_scatter(wr))
    }

    /// Posts a list of receive work requests, as [`Qp::post_sends`] does.
    ///
    /// # Errors
    /// [`BadWr`], as there.
    #[inline]
    pub fn post_recvs(&mut self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        self.posting.with_mut(|posting| posting.post_recvs(wrs))
    }

    /// Whether the peer takes a message of this operation with `len` bytes, as far as the two have agreed: for callers
    /// that post several requests or none.
    ///
    /// # Errors
    /// [`PostError::NotNegotiated`], [`PostError::Empty`], [`PostError::AtomicLength`].
    pub fn check_send(&self, op: SendOp, len: u32) -> Result<(), PostError> {
        self.posting.with(|posting| posting.check_extensions(op, len))
    }

    /// Send work requests posted and not completed, including unsignalled ones.
    pub fn sends_outstanding(&self) -> u32 {
        self.posting.with(Posting::sends_outstanding)
    }

    /// Receive work requests posted and not consumed.
    pub fn recvs_outstanding(&self) -> u32 {
        self.posting.with(Posting::recvs_outstanding)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Later posts of other threads are refused, so that no request reaches the lane after it has removed the queue
        // pair.
        if let Some(shared) = &self.shared {
            shared.with(|posting| posting.ended = true);
        }
        let qpn = self.qpn;
        self.pd.context().control_deferred(self.lane, move |lane| lane.destroy_qp(qpn));
    }
}
