//! Registered memory: the bytes that packets are read from and written to, and the keys that guard them.
//!
//! [`Region`], which ports share ([`spindrift_pmd::memory`]), owns (or borrows) a range of bytes and copies in and out
//! of it whatever others do at the same time. [`MemoryTable`] maps random keys to regions and answers, for every
//! packet, whether it may touch the bytes it names.
//!
//! ```
//! use spindrift::memory::{Access, MemoryTable, PdId, Region};
//! use spindrift::seed::Seed;
//!
//! let mut table = MemoryTable::new(Seed::fixed(7), 16);
//! let region = Region::alloc_at(4096, 0x1_0000)?;
//! let pd = PdId(1);
//! let key = table.register(pd, region.clone(), Access::REMOTE_WRITE)?;
//! table.place(key.rkey, pd, 0x1_0010, b"bytes")?;
//! let mut got = [0; 5];
//! region.read_at(0x10, &mut got)?;
//! assert_eq!(&got, b"bytes");
//! # Ok::<(), spindrift::memory::MemoryError>(())
//! ```
//!
//! # What the keys promise
//!
//! A key is 32 random bits, drawn for each registration from a cryptographic generator. The keys that somebody holds reveal
//! nothing about others, except that those differ. A deregistered key is refused, even if its slot is in use again. Every access checks
//! the key, the protection domain, the access rights and the range, in that order, and touches nothing
//! when one of them fails.
//!
//! # What the application must take care of
//!
//! As in any RDMA system, registered memory is shared with the network while work requests or
//! remote writes are in flight. Reading it then may see some packets of a message and not others;
//! changing the source of a posted write may send either content (also, in different packets, both). That is all that
//! a race does: bytes are copied by accesses that may meet others, and no Rust reference to them is ever lent.
//! [`spindrift_pmd::memory`] tells what can be waited for in memory itself.

mod table;

pub use spindrift_pmd::memory::{Payload, Region, RegionError};
pub use table::{Access, MemoryTable, MrKey, PayloadRef, PdId, RegionSlot};

/// Why memory could not be registered or touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No live region has this key: it was never given out, or its region was deregistered.
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
    /// Work requests still use the region.
    #[error("{uses} work requests still use the region; wait for their completions, or drop the handle")]
    Busy {
        /// How many of them.
        uses: u32,
    },
    /// The table holds as many regions as it was made for.
    #[error("all {max} memory regions are in use; raise max_regions, or deregister some")]
    TooMany {
        /// The table's limit.
        max: u32,
    },
    /// The memory itself could not be had, or does not hold the range.
    #[error(transparent)]
    Region(#[from] RegionError),
}

#[cfg(test)]
mod tests;
