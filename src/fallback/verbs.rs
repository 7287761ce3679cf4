//! What the machine needs of the NICs.

use core::fmt;

use crate::verbs::PostError;
use crate::work::{GatherWr, ScatterWr, SendWr};

/// One of the two NICs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nic {
    /// The application's.
    Default,
    /// The one that takes over.
    Backup,
}

impl Nic {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Default, Self::Backup];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Default => Self::Backup,
            Self::Backup => Self::Default,
        }
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default NIC",
            Self::Backup => "backup NIC",
        })
    }
}

/// A queue pair on one NIC, connected to the peer's pair with the same name. A name is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId {
    /// Where it is.
    pub nic: Nic,
    /// Which of those on that NIC, in the order of their creation.
    pub generation: u32,
}

impl PairId {
    /// The pair that the application's queue pair begins with.
    pub const FIRST: Self = Self { nic: Nic::Default, generation: 0 };
}

impl fmt::Display for PairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pair {} of the {}", self.generation, self.nic)
    }
}

/// Whose failure put a pair into ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The network's, or the NIC's: another NIC may help.
    Network,
    /// The application's, on either side: a wrong key, a message longer than its receive. It would fail again.
    Application,
}

/// What is known of a memory region of the peer on one of its NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemoteKey {
    /// Its remote key there.
    Known(u32),
    /// The key-value store has not replied yet, or does not have the region yet.
    Pending,
    /// The key-value store cannot be reached.
    Unreachable,
}

/// The verbs of the queue pairs of one connection, on both NICs.
///
/// A pair refuses requests only if its NIC is gone; then [`Machine::on_lost`](super::Machine::on_lost) follows.
///
/// A pair is made and connected by the caller of the machine: [`Machine::wants`](super::Machine::wants) tells on which
/// NIC. Send queues take [`EXTRA_SENDS`](super::EXTRA_SENDS) requests more than the application may post, and receive
/// queues [`EXTRA_RECEIVES`](super::EXTRA_RECEIVES). Pairs have the extensions `EMPTY_MESSAGES` and `RNR`, and RNR
/// retries without limit: a message that arrives on a new pair before its receive is repeated.
pub trait Verbs {
    /// Whether the application may post this request, apart from room in the queue.
    ///
    /// # Errors
    /// [`PostError`], as from the post itself.
    fn check(&self, wr: &GatherWr<'_>) -> Result<(), PostError>;

    /// Posts a send work request to a pair.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    fn post_send(&mut self, pair: PairId, wr: SendWr) -> Result<(), PostError>;

    /// The same with several elements.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    fn post_gather(&mut self, pair: PairId, wr: GatherWr<'_>) -> Result<(), PostError>;

    /// Posts a receive work request to a pair.
    ///
    /// # Errors
    /// [`PostError`]; then nothing has been posted.
    fn post_recv(&mut self, pair: PairId, wr: ScatterWr<'_>) -> Result<(), PostError>;

    /// Puts a pair into ERROR. It receives nothing from here on. What is posted to it completes as flushed, also what is
    /// posted later.
    fn fail(&mut self, pair: PairId);

    /// Ends a pair. It has no outstanding requests.
    fn destroy(&mut self, pair: PairId);

    /// Why a pair is in ERROR, if the machine did not put it there.
    fn cause(&self, pair: PairId) -> Cause;

    /// The local key on this NIC of the region that has `lkey` on the default NIC. `None`: there is no such region.
    fn local_key(&self, nic: Nic, lkey: u32) -> Option<u32>;

    /// The peer's remote key on this NIC of the region that has `rkey` on its default NIC.
    fn remote_key(&mut self, nic: Nic, rkey: u32) -> RemoteKey;
}
