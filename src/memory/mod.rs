//! Registered memory: the bytes that packets are read from and written to, and the keys that guard them.
//!
//! This is the one module of the transport that may use `unsafe`. It is kept small for that reason:
//! [`Region`] owns (or borrows) a range of bytes and gives bounds-checked access through raw pointers;
//! [`MemoryTable`] maps random keys to regions and answers, for every packet, whether it may touch the
//! bytes it names.
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
//! changing the source of a posted write may send either content (also, in different packets, both).
//! The accessors of [`Region`] copy through raw pointers and hand out no Rust references to shared bytes.
//!
//! # What is not sound yet
//!
//! [`Endpoint::payload`](crate::endpoint::Endpoint::payload) gives a packet's bytes to the driver as `&[u8]`, which
//! promises that nobody changes them while it is held. The endpoint keeps this promise for what it writes itself:
//! [`MemoryTable::place`] and [`Endpoint::receive`](crate::endpoint::Endpoint::receive) need it exclusively. It
//! cannot keep it for others. Each of these changes the bytes from safe code while such a slice is held, which is
//! undefined behaviour in Rust:
//!
//! - [`Region::write_at`], [`Region::fill`] and [`Region::store`] on another handle to the region, or
//!   [`Mr::write_at`](crate::verbs::Mr::write_at), which calls it;
//! - a peer that writes to the same region through a second registration, at another endpoint.
//!
//! For the same reason two threads must not use these accessors on the same bytes at once, nor one thread while the lane of
//! another places a packet there: the copies are not atomic, and Rust calls that a data race. [`Region::load`] and
//! [`Region::store`] are atomic towards each other, not towards the copies.
//!
//! In practice the compiler sees only a copy or a checksum of such a slice, and a race garbles data, and data only. Until this
//! module is rebuilt on accesses that may race, a program is sound if it leaves the source of a posted write alone until its
//! completion, and reads a target only after the completion or the byte that tells of it.

#![allow(unsafe_code, reason = "registered memory is shared with the network; this module holds all of it")]

mod region;
mod table;

pub use region::Region;
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
    /// The range is not inside the region.
    #[error("{len} bytes at {addr:#x} are not inside the region of {region_len} bytes at {region_addr:#x}")]
    OutOfBounds {
        /// First address of the access.
        addr: u64,
        /// Length of the access in bytes.
        len: u64,
        /// First address of the region.
        region_addr: u64,
        /// Length of the region in bytes.
        region_len: u64,
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
    /// A region must hold at least one byte and must not wrap around the end of the address space.
    #[error(
        "{len} bytes at {addr:#x} cannot be a region: a region has at least one byte and ends below 2^64"
    )]
    BadRange {
        /// First address asked for.
        addr: u64,
        /// Length asked for in bytes.
        len: u64,
    },
    /// The allocator refused.
    #[error("{len} bytes of memory could not be allocated")]
    OutOfMemory {
        /// Length asked for in bytes.
        len: u64,
    },
}

#[cfg(test)]
mod tests;
