//! Bytes that lie in several places.

use super::{Payload, Room};

/// The first `len` bytes of a slice and what follows it, such as the payload of a received frame: what lies behind the
/// headers in the port's first buffer, then what lies elsewhere, without the end that is not part of the payload.
///
/// ```
/// use spindrift_memory::{Payload, Pieces};
///
/// let rest = [Payload::from(b"defg"), Payload::from(b"hi")];
/// let pieces = Pieces::new(b"abc", &rest);
/// let all: Vec<_> = pieces.iter().map(|piece| piece.len()).collect();
/// assert_eq!((pieces.len(), all), (9, vec![3, 4, 2]));
/// assert_eq!(pieces.split_last::<3>().map(|(front, last)| (front.len(), last)), Some((6, *b"ghi")));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    first: &'a [u8],
    rest: &'a [Payload<'a>],
    len: usize,
}

impl<'a> Pieces<'a> {
    /// All bytes of `first`, then those of `rest`.
    #[inline]
    pub fn new(first: &'a [u8], rest: &'a [Payload<'a>]) -> Self {
        Self { first, rest, len: first.len() + rest.iter().map(Payload::len).sum::<usize>() }
    }

    /// The first `len` bytes, or all if there are fewer.
    #[inline]
    #[must_use]
    pub fn first_bytes(self, len: usize) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Takes `count` bytes off the front, if they lie in the first piece.
    #[inline]
    pub fn split_front(self, count: usize) -> Option<(&'a [u8], Self)> {
        let len = self.len.checked_sub(count)?;
        let (front, first) = self.first.split_at_checked(count)?;
        Some((front, Self { first, len, ..self }))
    }

    /// What lies in the first piece.
    #[inline]
    pub fn front(&self) -> &'a [u8] {
        self.first.get(..self.len).unwrap_or(self.first)
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order, none of them empty.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Payload<'a>> {
        let mut left = self.len;
        core::iter::once(Payload::from(self.first)).chain(self.rest.iter().copied()).filter_map(
            move |piece| {
                let piece = piece.first_bytes(left);
                left -= piece.len();
                (!piece.is_empty()).then_some(piece)
            },
        )
    }

    /// All but the last `count` bytes, or `None` if there are fewer.
    #[inline]
    pub fn without_last(self, count: usize) -> Option<Self> {
        Some(Self { len: self.len.checked_sub(count)?, ..self })
    }

    /// The last `N` bytes, and what precedes them; `None` if there are fewer.
    #[inline]
    pub fn split_last<const N: usize>(self) -> Option<(Self, [u8; N])> {
        if self.rest.is_empty() {
            let (front, last) = self.front().split_last_chunk()?;
            return Some((front.into(), *last));
        }
        let front = self.without_last(N)?;
        if let Some(last) = self.last_of_all() {
            return Some((front, last));
        }
        let mut last = [0; N];
        let (mut skip, mut filled) = (front.len, 0);
        for piece in self.iter() {
            let part = piece.skip(skip);
            skip -= piece.len() - part.len();
            filled += part.read(last.get_mut(filled..).unwrap_or_default());
        }
        Some((front, last))
    }

    /// The last `N` bytes, if nothing was cut off the end and they lie in a slice that is the last piece.
    #[inline]
    fn last_of_all<const N: usize>(&self) -> Option<[u8; N]> {
        let last = self.rest.last()?.slice()?.last_chunk()?;
        let all = self.first.len() + self.rest.iter().map(Payload::len).sum::<usize>();
        (self.len == all).then_some(*last)
    }

    /// Copies the bytes from `from` on to a room, as many as it has room for, and returns how many there were. So one
    /// packet is placed into several rooms. The last byte of each piece is stored last and with release ordering.
    ///
    /// ```
    /// use spindrift_memory::{Payload, Pieces, Region};
    ///
    /// let region = Region::alloc(10)?;
    /// let rest = [Payload::from(b"defg")];
    /// let pieces = Pieces::new(b"abc", &rest);
    /// assert_eq!(pieces.place_part(0, region.room_at(8, 2)?), 2);
    /// assert_eq!(pieces.place_part(2, region.room_at(0, 8)?), 5);
    /// assert_eq!(region.first_difference(0, b"cdefg\0\0\0ab")?, None);
    /// # Ok::<(), spindrift_memory::RegionError>(())
    /// ```
    pub fn place_part(&self, from: usize, room: Room<'_>) -> usize {
        let (mut skip, mut left) = (from, room);
        for piece in self.iter() {
            if left.is_empty() {
                break;
            }
            let part = piece.skip(skip);
            skip -= piece.len() - part.len();
            left = left.place_next(part);
        }
        room.len() - left.len()
    }

    /// The CRC-32 of Ethernet over all bytes, as [`Payload::crc32`].
    #[inline]
    pub fn crc32(&self, state: u32) -> u32 {
        self.iter().fold(state, |state, piece| piece.crc32(state))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Pieces<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'a> From<&'a Vec<u8>> for Pieces<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(&bytes[..])
    }
}

impl<'a> From<&'a [u8]> for Pieces<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { first: bytes, rest: &[], len: bytes.len() }
    }
}
