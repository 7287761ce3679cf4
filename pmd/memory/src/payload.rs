//! What a frame carries.

use std::fmt;
use std::sync::Arc;

use super::{Region, RegionError, crc32};

/// Bytes that a frame carries: a slice that nobody changes, or a part of a [`Region`], which anybody may change at any time.
///
/// It is a reference, as long as it lives; only copies of the bytes can be had. Those of a *virtual* region, which
/// has a length and no bytes, read as zeros.
///
/// ```
/// use spindrift_memory::{Payload, Region};
///
/// let region = Region::alloc(4096)?;
/// region.write_at(100, b"shared")?;
/// let mut out = [0; 6];
/// for payload in [region.payload(100, 6)?, Payload::from(b"shared")] {
///     assert_eq!((payload.len(), payload.read(&mut out)), (6, 6));
///     assert_eq!(&out, b"shared");
/// }
/// # Ok::<(), spindrift_memory::RegionError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: Bytes<'a>,
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Own(&'a [u8]),
    /// The range lies inside the region.
    Shared {
        region: &'a Arc<Region>,
        offset: usize,
        len: usize,
    },
}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: Bytes::Own(&[]) };

    pub(super) fn of_region(region: &'a Arc<Region>, offset: usize, len: usize) -> Result<Self, RegionError> {
        region.check(offset, len)?;
        Ok(Self { bytes: Bytes::Shared { region, offset, len } })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self.bytes {
            Bytes::Own(bytes) => bytes.len(),
            Bytes::Shared { len, .. } => len,
        }
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region that the bytes are part of, and their distance from its first byte. `None` for a slice.
    pub fn region(&self) -> Option<(&'a Arc<Region>, usize)> {
        match self.bytes {
            Bytes::Own(_) => None,
            Bytes::Shared { region, offset, .. } => Some((region, offset)),
        }
    }

    /// The bytes, if they are those of a slice.
    #[inline]
    pub(super) const fn slice(&self) -> Option<&'a [u8]> {
        match self.bytes {
            Bytes::Own(bytes) => Some(bytes),
            Bytes::Shared { .. } => None,
        }
    }

    /// Where the bytes are, for the kernel or a device to read; `None` if they are virtual.
    ///
    /// Reading through the pointer in this process is a data race unless nobody writes meanwhile.
    #[inline]
    pub fn as_ptr(&self) -> Option<*const u8> {
        match self.bytes {
            Bytes::Own(bytes) => Some(bytes.as_ptr()),
            Bytes::Shared { region, offset, .. } => {
                Some(region.base()?.as_ptr().wrapping_add(offset).cast_const())
            }
        }
    }

    /// Copies the first bytes, as many as fit, and returns how many.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.len());
        let out = &mut out[..count];
        match self.bytes {
            Bytes::Own(bytes) => out.copy_from_slice(&bytes[..count]),
            Bytes::Shared { region, offset, .. } => region.copy_out(offset, out),
        }
        count
    }

    /// The first `most` bytes, or all if there are fewer.
    #[inline]
    #[must_use]
    pub fn first_bytes(self, most: usize) -> Self {
        let bytes = match self.bytes {
            Bytes::Own(bytes) => Bytes::Own(&bytes[..most.min(bytes.len())]),
            Bytes::Shared { region, offset, len } => Bytes::Shared { region, offset, len: len.min(most) },
        };
        Self { bytes }
    }

    /// What follows the first `count` bytes, nothing if there are no more.
    #[inline]
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let bytes = match self.bytes {
            Bytes::Own(bytes) => Bytes::Own(bytes.get(count..).unwrap_or_default()),
            Bytes::Shared { region, offset, len } => {
                let count = count.min(len);
                Bytes::Shared { region, offset: offset + count, len: len - count }
            }
        };
        Self { bytes }
    }

    /// Copies all bytes to `offset` bytes from the start of `target`, the last one last and with release ordering, if
    /// they fit there. Where they are part of the same region and overlap, the target is left with some mixture of them.
    #[inline]
    pub(super) fn copy_to(&self, target: &Region, offset: usize) -> Result<(), RegionError> {
        match self.bytes {
            Bytes::Own(bytes) => target.write_at(offset, bytes),
            Bytes::Shared { region, offset: from, len } => region.copy_to(from, len, target, offset),
        }
    }

    /// Appends the first `most` bytes, or all if there are fewer.
    pub fn append_to(&self, out: &mut Vec<u8>, most: usize) {
        let start = out.len();
        out.resize(start + most.min(self.len()), 0);
        self.read(&mut out[start..]);
    }

    /// The first byte, if there is one.
    pub fn first(&self) -> Option<u8> {
        let mut byte = [0];
        (self.read(&mut byte) == 1).then_some(byte[0])
    }

    /// The CRC-32 of Ethernet, continued over all bytes from `state`, which is the CRC of what precedes them (0 if
    /// nothing does).
    #[inline]
    pub fn crc32(&self, state: u32) -> u32 {
        match self.bytes {
            Bytes::Own(bytes) => crc32(state, bytes),
            Bytes::Shared { region, offset, len } => region.crc32(offset, len, state),
        }
    }
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { bytes: Bytes::Own(bytes) }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self { bytes: Bytes::Own(bytes) }
    }
}

impl<'a> From<&'a Vec<u8>> for Payload<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self { bytes: Bytes::Own(bytes) }
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Bytes::Own(bytes) => write!(f, "Payload({} bytes)", bytes.len()),
            Bytes::Shared { region, offset, len } => {
                write!(f, "Payload({len} bytes at {offset} of {region:?})")
            }
        }
    }
}
