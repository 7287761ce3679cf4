//! Posting, from the thread that owns a queue pair or from several.

use std::sync::{Arc, Mutex, PoisonError};

use spindrift_pmd::fork::Home;

use crate::endpoint::{Extensions, FailReason, QpState};
use crate::engine::{Full, QpSubmit};
use crate::memory::Access;
use crate::wire::Qpn;
use crate::work::{GatherWr, RecvWr, RemoteAddr, ScatterWr, SendOp, SendWr, Sge};

use super::error::{BadWr, PostError, VerbsError};
use super::mr::Mr;
use super::pd::Pd;

/// The largest inline limit of a queue pair, in bytes.
pub const MAX_INLINE: u32 = 4096;

/// A send work request whose bytes are a separate argument, for [`Qp::post_send_inline`](super::Qp::post_send_inline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineWr {
    /// The application's identifier of the request, returned in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Where the bytes go.
    pub remote: RemoteAddr,
    /// Whether success produces a completion.
    pub signaled: bool,
    /// Whether it waits until earlier reads and atomic operations are complete.
    pub fence: bool,
}

/// A handle by which one of several threads posts to a queue pair: see [`Qp::share`](super::Qp::share). The methods do
/// the same as those of [`Qp`](super::Qp) with the same names.
///
/// Requests of one thread complete in the order in which it posted them, and those of different threads in order of
/// arrival. A list is posted as a whole: requests of other threads do not come in between.
///
/// Once the queue pair is dropped, posts are refused with [`PostError::Dropped`]. While it is in RESET they are
/// refused with [`PostError::WrongState`], also in threads that do not know of the reset.
#[derive(Clone, Debug)]
pub struct QpPoster {
    posting: Arc<SharedPosting>,
}

impl QpPoster {
    pub(super) const fn new(posting: Arc<SharedPosting>) -> Self {
        Self { posting }
    }

    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_send(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first request that was refused. Those before it have been posted, none after it has.
    pub fn post_sends(&self, wrs: &[SendWr]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_sends(wrs))
    }

    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_gather(&self, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_gather(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first request that was refused. Those before it have been posted, none after it has.
    pub fn post_gathers(&self, wrs: &[GatherWr<'_>]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_gathers(wrs))
    }

    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_send_inline(&self, bytes: &[u8], wr: InlineWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_send_inline(bytes, wr))
    }

    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_recv(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first request that was refused. Those before it have been posted, none after it has.
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_recvs(wrs))
    }

    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    pub fn post_scatter(&self, wr: ScatterWr<'_>) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_scatter(wr))
    }

    /// Send work requests posted, by any thread, and not completed.
    pub fn sends_outstanding(&self) -> u32 {
        self.posting.with(|posting| posting.sends_outstanding())
    }

    /// Receive work requests posted, by any thread, and not consumed.
    pub fn recvs_outstanding(&self) -> u32 {
        self.posting.with(|posting| posting.recvs_outstanding())
    }

    /// The queue pair's number, until it is reset.
    pub fn qpn(&self) -> Qpn {
        self.posting.with(|posting| posting.qpn)
    }

    /// The state to which its lane has brought the queue pair, and the reason if it failed.
    pub fn state(&self) -> (QpState, Option<FailReason>) {
        self.posting.with(|posting| posting.condition())
    }
}

/// The posting side of a shared queue pair, used by one thread at a time.
#[derive(Debug)]
pub(super) struct SharedPosting {
    posting: Mutex<Posting>,
    home: Home,
}

impl SharedPosting {
    pub(super) fn new(posting: Posting) -> Self {
        Self { posting: Mutex::new(posting), home: Home::here() }
    }

    /// Calls `act` with it. In a forked child it does nothing: a thread that the child does not have may hold the
    /// lock.
    #[inline]
    pub(super) fn with<R: ForkedDefault>(&self, act: impl FnOnce(&mut Posting) -> R) -> R {
        if self.home.is_elsewhere() {
            return R::IN_FORKED_CHILD;
        }
        // Posting cannot panic halfway, so the data behind a poisoned lock is consistent.
        act(&mut self.posting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The result of a call in a child of the process that the queue pair works in.
pub(super) trait ForkedDefault {
    const IN_FORKED_CHILD: Self;
}

impl ForkedDefault for () {
    const IN_FORKED_CHILD: Self = ();
}

impl ForkedDefault for u32 {
    const IN_FORKED_CHILD: Self = 0;
}

impl ForkedDefault for Qpn {
    const IN_FORKED_CHILD: Self = Self::new(0);
}

impl ForkedDefault for QpState {
    const IN_FORKED_CHILD: Self = Self::Error;
}

impl ForkedDefault for (QpState, Option<FailReason>) {
    const IN_FORKED_CHILD: Self = (QpState::Error, Some(FailReason::LaneFailed));
}

impl ForkedDefault for Result<(), PostError> {
    const IN_FORKED_CHILD: Self = Err(PostError::LaneFailed);
}

impl ForkedDefault for Result<(), BadWr> {
    const IN_FORKED_CHILD: Self = Err(BadWr { index: 0, error: PostError::LaneFailed });
}

/// Posts requests until one is refused.
#[inline]
pub(super) fn post_each<W: Copy>(
    wrs: &[W],
    mut post: impl FnMut(W) -> Result<(), PostError>,
) -> Result<(), BadWr> {
    wrs.iter().enumerate().try_for_each(|(index, &wr)| post(wr).map_err(|error| BadWr { index, error }))
}

/// Passes requests to a queue pair's lane, after all checks that can be made here.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) qpn: Qpn,
    submit: QpSubmit,
    inline: Option<InlineArena>,
    /// Receives come from a shared receive queue.
    shares_recvs: bool,
    /// Extensions of MRC that the peers agreed on.
    pub(super) extensions: Extensions,
    /// The state that the application has set; the lane may have moved the queue pair to ERROR.
    pub(super) state: QpState,
    /// The queue pair has been dropped.
    pub(super) ended: bool,
}

impl Posting {
    pub(super) const fn new(
        qpn: Qpn,
        submit: QpSubmit,
        inline: Option<InlineArena>,
        shares_recvs: bool,
    ) -> Self {
        let (extensions, state) = (Extensions::NONE, QpState::Reset);
        Self { qpn, submit, inline, shares_recvs, extensions, state, ended: false }
    }

    /// The queue pair was reset.
    pub(super) fn start_over(&mut self, qpn: Qpn) {
        self.qpn = qpn;
        self.state = QpState::Reset;
        self.submit.reset_outstanding();
    }

    pub(super) fn condition(&self) -> (QpState, Option<FailReason>) {
        self.submit.condition()
    }

    pub(super) fn sends_outstanding(&self) -> u32 {
        self.submit.sends_outstanding()
    }

    pub(super) fn recvs_outstanding(&self) -> u32 {
        self.submit.recvs_outstanding()
    }

    #[inline]
    pub(super) fn post_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.push_send(wr)?;
        self.submit.ring();
        Ok(())
    }

    #[inline]
    pub(super) fn post_sends(&mut self, wrs: &[SendWr]) -> Result<(), BadWr> {
        self.push_all(wrs, Self::push_send)
    }

    #[inline]
    pub(super) fn post_gather(&mut self, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.push_gather(wr)?;
        self.submit.ring();
        Ok(())
    }

    #[inline]
    pub(super) fn post_gathers(&mut self, wrs: &[GatherWr<'_>]) -> Result<(), BadWr> {
        self.push_all(wrs, Self::push_gather)
    }

    #[inline]
    pub(super) fn post_send_inline(&mut self, bytes: &[u8], wr: InlineWr) -> Result<(), PostError> {
        self.may_send()?;
        let InlineWr { wr_id, op, remote, signaled, fence } = wr;
        self.check_extensions(op, bytes.len() as u32)?;
        if op.is_fetch() {
            return Err(PostError::InlineFetch);
        }
        let max = self.submit.max_sends();
        // Requests finish in order, and there is one piece for each that may be outstanding. With fewer outstanding,
        // the least recently used piece is free again.
        if self.submit.sends_outstanding() >= max {
            return Err(PostError::QueueFull { max });
        }
        let too_long = |max| PostError::InlineTooLong { len: bytes.len(), max };
        let arena = self.inline.as_mut().ok_or(too_long(0))?;
        let local = arena.place(bytes).ok_or(too_long(arena.piece))?;
        self.post_send(SendWr { wr_id, op, local, remote, signaled, fence })
    }

    #[inline]
    pub(super) fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.push_recv(wr)?;
        self.submit.ring();
        Ok(())
    }

    #[inline]
    pub(super) fn post_recvs(&mut self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        self.push_all(wrs, Self::push_recv)
    }

    #[inline]
    fn push_send(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.may_send()?;
        self.check_extensions(wr.op, wr.local.len)?;
        let max = self.submit.max_sends();
        self.submit.push_send(wr).map_err(|Full| PostError::QueueFull { max })
    }

    fn push_gather(&mut self, wr: GatherWr<'_>) -> Result<(), PostError> {
        let (count, most) = (wr.local.len(), self.submit.max_sge());
        if count > most as usize {
            return Err(PostError::TooManySges { count, max: most });
        }
        if let Some(only) = wr.only_element() {
            return self.push_send(wr.with_one(only));
        }
        let len = u32::try_from(wr.len()).map_err(|_| PostError::TooLong { len: wr.len() })?;
        self.may_send()?;
        self.check_extensions(wr.op, len)?;
        let max = self.submit.max_sends();
        let all = wr.with_one(Sge { addr: 0, len, lkey: 0 });
        self.submit.push_gather(all, wr.elements()).map_err(|Full| PostError::QueueFull { max })
    }

    /// Whether the peer takes a message of this operation with `len` bytes. In ERROR it does not matter.
    #[inline]
    pub(super) fn check_extensions(&self, op: SendOp, len: u32) -> Result<(), PostError> {
        let needed = Extensions::of(op);
        if len > 0 && needed.is_empty() || self.state == QpState::Error {
            return Ok(());
        }
        if op.is_atomic() && len != 8 {
            return Err(PostError::AtomicLength { len });
        }
        if !self.extensions.contains(needed) {
            return Err(PostError::NotNegotiated { needed });
        }
        if len == 0 && needed.is_empty() && !self.extensions.contains(Extensions::EMPTY_MESSAGES) {
            return Err(PostError::Empty);
        }
        Ok(())
    }

    pub(super) fn post_scatter(&mut self, wr: ScatterWr<'_>) -> Result<(), PostError> {
        let (count, most) = (wr.local.len(), self.submit.max_recv_sge());
        if count > most as usize {
            return Err(PostError::TooManySges { count, max: most });
        }
        self.may_receive()?;
        let max = self.submit.max_recvs();
        self.submit.push_scatter(&wr).map_err(|Full| PostError::QueueFull { max })?;
        self.submit.ring();
        Ok(())
    }

    #[inline]
    fn push_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.may_receive()?;
        let max = self.submit.max_recvs();
        self.submit.push_recv(wr).map_err(|Full| PostError::QueueFull { max })
    }

    #[inline]
    fn may_receive(&self) -> Result<(), PostError> {
        if self.ended {
            return Err(PostError::Dropped);
        }
        if self.shares_recvs {
            return Err(PostError::SharedReceives);
        }
        if self.state == QpState::Reset {
            return Err(PostError::WrongState(self.state));
        }
        if self.submit.is_closed() {
            return Err(PostError::LaneFailed);
        }
        Ok(())
    }

    /// Accepts requests until one is refused, and notifies the lane once.
    #[inline]
    fn push_all<W: Copy>(
        &mut self,
        wrs: &[W],
        mut push: impl FnMut(&mut Self, W) -> Result<(), PostError>,
    ) -> Result<(), BadWr> {
        let result = post_each(wrs, |wr| push(self, wr));
        if result.map_or_else(|bad| bad.index, |()| wrs.len()) > 0 {
            self.submit.ring();
        }
        result
    }

    #[inline]
    fn may_send(&self) -> Result<(), PostError> {
        match self.state {
            _ if self.ended => Err(PostError::Dropped),
            QpState::Rts | QpState::Error if self.submit.is_closed() => Err(PostError::LaneFailed),
            QpState::Rts | QpState::Error => Ok(()),
            state => Err(PostError::WrongState(state)),
        }
    }
}

/// Memory that inline sends are copied to: one piece per send work request.
#[derive(Debug)]
pub(super) struct InlineArena {
    mr: Mr,
    piece: u32,
    pieces: u32,
    next: u32,
}

impl InlineArena {
    /// Memory for `pieces` inline sends of up to `piece` bytes; none if either is 0.
    pub(super) fn create(pd: &Pd, piece: u32, pieces: u32) -> Result<Option<Self>, VerbsError> {
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
