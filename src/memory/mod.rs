//! Registered memory: the bytes that packets are read from and written to, and the keys that guard them.
//!
//! A [`Region`], which ports share ([`spindrift_pmd::memory`]), owns (or borrows) a range of bytes. It copies in and
//! out of it whatever others do at the same time. A [`MemorySpace`] holds protection domains and registrations for
//! all lanes of a context. Each lane has a [`MemoryView`] of it, which maps random keys to regions and checks, for
//! every packet, whether it may access the bytes it names.
//!
//! ```
//! use spindrift::memory::{Access, MemorySpace, Region};
//! use spindrift::seed::Seed;
//!
//! let space = MemorySpace::new(Seed::fixed(7), 16);
//! let mut lane = space.view();
//! let region = Region::alloc_at(4096, 0x1_0000)?;
//! let pd = space.alloc_pd();
//! let key = space.register(pd, region.clone(), Access::REMOTE_WRITE)?;
//! lane.place(key.rkey, pd, 0x1_0010, b"bytes")?;
//! let mut got = [0; 5];
//! region.read_at(0x10, &mut got)?;
//! assert_eq!(&got, b"bytes");
//! # Ok::<(), spindrift::memory::MemoryError>(())
//! ```
//!
//! # What the keys promise
//!
//! A registration has two keys of 32 random bits, drawn from a cryptographic generator: one for this side's work
//! requests (lkey), one for peers (rkey). Known keys reveal nothing about others, except that those differ. An lkey
//! gives a peer no access. A deregistered key is refused, even if its slot is in use again. Every access checks the
//! key, the protection domain, the access rights and the range, in that order, and touches nothing if a check fails.
//! Each kind of access has its own right ([`Access`]). A range of zero bytes is checked like any other.
//!
//! # Duties of the application
//!
//! As in any RDMA system, registered memory is shared with the network while work requests or accesses of peers are in
//! flight. A read may then see some packets of a message and not others. A change to the source of a posted write, or
//! of a peer's read, may send either content (also, in different packets, both). A race has no other effect: bytes are
//! copied by accesses that may race, and no Rust reference to them is ever lent. [`spindrift_pmd::memory`] describes
//! what an application can poll in memory itself, and how atomics mix with copies of the same bytes.
//!
//! A peer with [`Access::REMOTE_INVALIDATE`] may end a registration at any time. Other lanes than the one that receives
//! its request may place packets in the region until their next poll. The region itself stays until its last use is over
//! and the application drops it.

mod keys;
mod space;
mod sync;
mod view;

pub use space::{MemorySpace, PdMember};
pub use spindrift_pmd::memory::{Payload, Pieces, Region, RegionError, Room};
pub use view::MemoryView;
pub(crate) use view::Target;

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// A protection domain: queue pairs may access only regions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// The rights of a registration, besides reads by this side's own work requests.
///
/// No right includes another. libibverbs demands [`Access::LOCAL_WRITE`] with [`Access::REMOTE_WRITE`] and with
/// [`Access::REMOTE_ATOMIC`]. Here either may be granted alone, since the rights of peers and those of this side's work
/// requests are checked separately.
///
/// ```
/// use spindrift::memory::Access;
///
/// let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
/// assert!(access.contains(Access::REMOTE_READ) && !access.contains(Access::REMOTE_WRITE));
/// assert_eq!(format!("{access:?}"), "LOCAL_WRITE | REMOTE_READ");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u8);

impl Access {
    /// Reads by this side's own work requests, which every registration permits: sources of sends and of writes.
    pub const LOCAL_READ: Self = Self(0);
    /// Writes by this side's own work requests: receive buffers, and the targets of reads and of atomics' results.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Writes by the peers of the protection domain's queue pairs.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Reads by the peers of the protection domain's queue pairs.
    pub const REMOTE_READ: Self = Self(4);
    /// Atomics by the peers of the protection domain's queue pairs.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// The end of the registration by a peer of the protection domain's queue pairs (send with invalidate).
    pub const REMOTE_INVALIDATE: Self = Self(16);

    /// The names of the rights, by bit.
    const NAMES: [&str; 5] =
        ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "REMOTE_INVALIDATE"];

    /// Whether every right of `other` is granted.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::LOCAL_READ {
            return f.write_str("LOCAL_READ");
        }
        let mut separator = "";
        for (_, name) in Self::NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1) {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        Ok(())
    }
}

/// A change that a peer makes to 8 bytes as a whole: see [`MemoryView::atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds this number. The sum wraps at 2^64.
    FetchAdd(u64),
    /// Sets the value to `swap` if it is `compare`, and leaves any other value as it is.
    CompareSwap {
        /// The value expected.
        compare: u64,
        /// The value to set.
        swap: u64,
    },
}

impl AtomicOp {
    /// Number of bytes that it changes, and their alignment.
    pub const LEN: u64 = 8;
}

/// The keys of a registration, two independent random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKey {
    /// For this side's own work requests.
    pub lkey: u32,
    /// For peers, as far as the registration grants them access.
    pub rkey: u32,
}

/// A region in use by a work request or by a response to a peer, from [`MemoryView::pin`] to [`MemoryView::unpin`].
///
/// The default value names no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSlot {
    index: u32,
    turn: u32,
}

impl RegionSlot {
    const NONE: Self = Self { index: u32::MAX, turn: 0 };
}

impl Default for RegionSlot {
    fn default() -> Self {
        Self::NONE
    }
}

/// Bytes of a pinned region, as a packet's payload refers to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRef {
    /// The region.
    pub slot: RegionSlot,
    /// Distance from the region's first byte, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl PayloadRef {
    /// No bytes: for packets without a payload.
    pub const EMPTY: Self = Self { slot: RegionSlot::NONE, offset: 0, len: 0 };

    /// `len` of the bytes, from `skip` on. A range that is too long reads as no bytes: see [`MemoryView::bytes`].
    #[inline]
    #[must_use]
    pub const fn part(&self, skip: u64, len: u32) -> Self {
        Self { slot: self.slot, offset: self.offset.wrapping_add(skip), len }
    }

    /// Bytes that have been copied together from several places, and are part of no region.
    pub(crate) const fn gathered(len: u32) -> Self {
        Self { len, ..Self::EMPTY }
    }

    /// Whether the bytes are part of no region, or there are none.
    #[inline]
    pub(crate) const fn is_gathered(&self) -> bool {
        self.slot.index == RegionSlot::NONE.index
    }
}

/// The parts of `ranges` that have the `len` bytes from `offset` of all their bytes, in order.
pub(crate) fn parts_of(
    ranges: impl Iterator<Item = PayloadRef>,
    offset: u64,
    len: u32,
) -> impl Iterator<Item = PayloadRef> {
    // `skip`: bytes from the start of the current range to the first byte; 0 from then on.
    let (mut skip, mut left) = (offset, len);
    ranges.filter_map(move |range| {
        let whole = u64::from(range.len);
        if skip >= whole {
            skip -= whole;
            return None;
        }
        let part = range.part(skip, left.min((whole - skip) as u32));
        skip = 0;
        left -= part.len;
        (part.len > 0).then_some(part)
    })
}

/// The reason why memory could not be registered or accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No live region has this key: it was never issued, or its region was deregistered.
    #[error(
        "key {key:#010x} names no registered region; register the memory, or fetch the peer's current key"
    )]
    UnknownKey {
        /// The key as given.
        key: u32,
    },
    /// The region belongs to another protection domain than the queue pair.
    #[error(
        "key {key:#010x} belongs to another protection domain; register the memory in the queue pair's domain"
    )]
    WrongPd {
        /// The key as given.
        key: u32,
    },
    /// The region was registered without the right that this access needs.
    #[error("key {key:#010x} does not grant {needed:?}; register the memory with that access")]
    NoAccess {
        /// The key as given.
        key: u32,
        /// The right that is missing.
        needed: Access,
    },
    /// Work requests of this side, or reads of peers, still use the region.
    #[error(
        "{uses} work requests still use the region (a peer's read counts as one); wait until they are done, or drop the handle"
    )]
    Busy {
        /// The number of these work requests and reads.
        uses: u32,
    },
    /// An atomic must name 8 aligned bytes.
    #[error("address {va:#x} of an atomic is not a multiple of 8; choose one that is")]
    Misaligned {
        /// The address as given.
        va: u64,
    },
    /// The space holds its maximum of regions.
    #[error("all {max} memory regions are in use; raise max_regions, or deregister some")]
    TooMany {
        /// The space's limit.
        max: u32,
    },
    /// The protection domain does not exist.
    #[error("protection domain {pd} does not exist")]
    NoSuchPd {
        /// Its number.
        pd: u32,
    },
    /// The protection domain is still in use.
    #[error("protection domain {pd} still has memory regions or queue pairs")]
    PdInUse {
        /// Its number.
        pd: u32,
    },
    /// A registration cannot end safely, since some views were not visited.
    #[error(
        "{visited} of {views} views of the memory space were visited; deregister by what knows all of them"
    )]
    ViewsLeftOut {
        /// Number of views visited.
        visited: u32,
        /// Number of views.
        views: u32,
    },
    /// The memory itself could not be allocated, or does not hold the range.
    #[error(transparent)]
    Region(#[from] RegionError),
}

#[cfg(test)]
#[cfg(spindrift_loom)]
mod model;
#[cfg(test)]
#[cfg(not(spindrift_loom))]
mod tests;
