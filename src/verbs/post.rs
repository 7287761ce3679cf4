//! Posting: from the thread that owns a queue pair, or from several.

use std::sync::{Arc, Mutex, PoisonError};

use spindrift_pmd::fork::Home;

use crate::endpoint::{FailReason, QpState};
use crate::engine::{Full, QpSubmit};
use crate::memory::Access;
use crate::wire::Qpn;
use crate::work::{GatherWr, RecvWr, RemoteAddr, SendOp, SendWr, Sge};

use super::error::{BadWr, PostError, VerbsError};
use super::mr::Mr;
use super::pd::Pd;

/// Most bytes that a queue pair may take inline.
pub const MAX_INLINE: u32 = 4096;

/// A send work request whose bytes are given apart, for [`Qp::post_send_inline`](super::Qp::post_send_inline).
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

/// What a thread posts to a queue pair with, one of several: see [`Qp::share`](super::Qp::share). The methods do what those of
/// [`Qp`](super::Qp) with the same names do.
///
/// Requests of one thread complete in the order in which it posted them; those of different threads in the order in
/// which they came. A list is posted as a whole, with nothing of others in between.
///
/// Once the queue pair is dropped, posts are refused with [`PostError::Dropped`]. While it is in RESET they are too, with
/// [`PostError::WrongState`], also from threads that know nothing of the reset.
#[derive(Clone, Debug)]
pub struct QpPoster {
    posting: Arc<SharedPosting>,
}

impl QpPoster {
    pub(super) const fn new(posting: Arc<SharedPosting>) -> Self {
        Self { posting }
    }

    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_send(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first that was not taken; those before it have been posted, none after it has.
    pub fn post_sends(&self, wrs: &[SendWr]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_sends(wrs))
    }

    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    pub fn post_gather(&self, wr: GatherWr<'_>) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_gather(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first that was not taken; those before it have been posted, none after it has.
    pub fn post_gathers(&self, wrs: &[GatherWr<'_>]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_gathers(wrs))
    }

    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    pub fn post_send_inline(&self, bytes: &[u8], wr: InlineWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_send_inline(bytes, wr))
    }

    /// # Errors
    /// [`PostError`]; nothing has been posted then.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.posting.with(|posting| posting.post_recv(wr))
    }

    /// # Errors
    /// [`BadWr`] names the first that was not taken; those before it have been posted, none after it has.
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> Result<(), BadWr> {
        self.posting.with(|posting| posting.post_recvs(wrs))
    }

    /// Send work requests posted, by any thread, and not complete.
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

    /// The state that its lane has brought the queue pair to, and why it failed if it did.
    pub fn state(&self) -> (QpState, Option<FailReason>) {
        self.posting.with(|posting| posting.condition())
    }
}

/// What several threads post with, one at a time.
#[derive(Debug)]
pub(super) struct SharedPosting {
    posting: Mutex<Posting>,
    home: Home,
}

impl SharedPosting {
    pub(super) fn new(posting: Posting) -> Self {
        Self { posting: Mutex::new(posting), home: Home::here() }
    }

    /// Does something with it. In a child, where a thread that is not there may have locked it, nothing.
    #[inline]
    pub(super) fn with<R: ForkedDefault>(&self, act: impl FnOnce(&mut Posting) -> R) -> R {
        if self.home.is_elsewhere() {
            return R::IN_FORKED_CHILD;
        }
        // Posting cannot panic halfway, so what a poisoned lock guards is sound.
        act(&mut self.posting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a call returns in a child of the process that the queue pair works in.
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

/// Posts requests up to the first that is refused.
#[inline]
pub(super) fn post_each<W: Copy>(
    wrs: &[W],
    mut post: impl FnMut(W) -> Result<(), PostError>,
) -> Result<(), BadWr> {
    wrs.iter().enumerate().try_for_each(|(index, &wr)| post(wr).map_err(|error| BadWr { index, error }))
}

/// Hands requests to a queue pair's lane, after all checks that can be made here.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) qpn: Qpn,
    submit: QpSubmit,
    inline: Option<InlineArena>,
    /// Receives come from a shared receive queue.
    shares_recvs: bool,
    /// As far as the application has brought it; the lane may have moved it on to ERROR.
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
        Self { qpn, submit, inline, shares_recvs, state: QpState::Reset, ended: false }
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
        self.post_send(SendWr { wr_id, op, local, remote, signaled })
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
        if wr.local.len == 0 {
            return Err(PostError::Empty);
        }
        self.may_send()?;
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
        if len == 0 {
            return Err(PostError::Empty);
        }
        self.may_send()?;
        let max = self.submit.max_sends();
        let all = wr.with_one(Sge { addr: 0, len, lkey: 0 });
        self.submit.push_gather(all, wr.elements()).map_err(|Full| PostError::QueueFull { max })
    }

    #[inline]
    fn push_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
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
        let max = self.submit.max_recvs();
        self.submit.push_recv(wr).map_err(|Full| PostError::QueueFull { max })
    }

    /// Takes requests up to the first that is refused, and tells the lane once.
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

/// Memory that inline sends are copied to: one piece for each send work request.
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
