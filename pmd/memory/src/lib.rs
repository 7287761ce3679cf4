//! Memory that the application, the transport, ports and peers share.
//!
//! A [`Region`] is a range of bytes that may change at any time: a peer writes to it while the application reads, or
//! the application writes while a port sends from it. So nothing here lends a Rust reference to its bytes. They are
//! copied in and out, bounds checked, by copies that may race with others ([`Region::read_at`], [`Region::write_at`]).
//! Single bytes ([`Region::load`], [`Region::store`]) and counters of 8 bytes are read and written in place. A race can
//! garble data, but nothing else. No access through this module is undefined behaviour, whatever other threads, peers
//! and work requests do meanwhile. The exceptions are marked `unsafe` and state their requirements:
//! [`Region::from_raw`] and [`Region::view`].
//!
//! A [`Payload`] is the content of a frame: a part of a region, or a slice. [`Pieces`] are the part of it that the
//! receiver has to place, which may be in several places.
//!
//! # Waiting for a byte
//!
//! A write to a region, by [`Region::write_at`] or by a packet that is placed, stores its last byte last, with release
//! ordering, and [`Region::load`] reads with acquire ordering. So a thread that sees the last byte of a write sees all
//! of that write, and everything that the writing thread did before. For MRC this holds within one packet only. The
//! packets of a message take different paths and are placed in order of arrival, so the last byte of a message proves
//! nothing about its other packets. Wait for the completion, or keep the message to one packet.
//!
//! # Counters
//!
//! [`Region::fetch_add`] and [`Region::compare_swap`] change 8 aligned bytes as a whole. No update is lost among them,
//! whichever thread makes them, or which process that maps the same bytes. [`Region::load_u64`] and
//! [`Region::store_u64`] read and write such a counter as a whole. A thread that sees a count sees everything that the
//! counting thread wrote before.
//!
//! Copies are atomic only byte by byte, even where they copy 8 aligned bytes: [`Region::write_at`] stores its last byte
//! separately. A copy that reads a counter may return bytes of two values. A copy that writes to it may overwrite a part
//! of an update, and an atomic may return the mixture. This includes packets: a payload that is sent from a counter or
//! placed on it is copied. So a counter should have bytes of its own, which nobody copies to while others count.

#![allow(
    unsafe_code,
    reason = "shared memory is read and written through raw pointers; this module holds them all"
)]

mod copy;
mod crc;
mod payload;
mod pieces;
mod region;

pub use crc::{crc32, crc32_with_ones};
pub use payload::Payload;
pub use pieces::Pieces;
pub use region::{Region, Room};

/// Prefetches the cache line at an address, which may be any, for a write.
#[inline]
pub fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint without visible effects; an address without memory is ignored.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Errors of allocating and accessing memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
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
    /// A counter must start at a multiple of 8 in this process, whatever the address by which peers name it.
    #[error(
        "the 8 bytes at {addr:#x} are at {at:#x} in this process, which is not a multiple of 8, so no access to them is atomic; choose another offset, or register memory that starts at a multiple of 8"
    )]
    Misaligned {
        /// First address of the access.
        addr: u64,
        /// The same address in this process.
        at: u64,
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
    /// A file ends before the range to be mapped does: the first access beyond it would end the process (`SIGBUS`).
    #[error(
        "{len} bytes from offset {offset} on cannot be mapped: the file has {file_len}; make it longer first"
    )]
    FileTooShort {
        /// Where the mapping should start.
        offset: u64,
        /// Length asked for in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The system refused to map memory.
    #[error("{len} bytes could not be mapped: {}", std::io::Error::from_raw_os_error(*.errno))]
    Map {
        /// Length asked for in bytes.
        len: u64,
        /// The system's error number.
        errno: i32,
    },
}

#[cfg(test)]
mod tests;
