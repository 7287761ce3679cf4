//! Serial numbers and identifiers that are narrower than a Rust integer.

use core::fmt;

use serde::{Deserialize, Serialize};

const MASK_24: u32 = 0x00ff_ffff;

/// A packet sequence number: 24 bits that wrap.
///
/// Serial numbers have no total order, only a signed [`distance`](Psn::distance) between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct Psn(u32);

impl Psn {
    /// The count of all numbers, 2^24.
    pub const COUNT: u32 = MASK_24 + 1;

    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `n` further on.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// `n` back.
    #[inline]
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// `self - from` modulo 2^24, from -2^23 up to 2^23 - 1.
    #[inline]
    pub const fn distance(self, from: Self) -> i32 {
        (self.0.wrapping_sub(from.0) << 8).cast_signed() >> 8
    }
}

impl From<u32> for Psn {
    #[inline]
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

impl From<Psn> for u32 {
    #[inline]
    fn from(psn: Psn) -> Self {
        psn.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A message sequence number: 16 bits that wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Msn(u16);

impl Msn {
    /// The message number `value`.
    #[inline]
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The one after.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// `n` further on.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u16) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// `n` back.
    #[inline]
    #[must_use]
    pub const fn sub(self, n: u16) -> Self {
        Self(self.0.wrapping_sub(n))
    }

    /// `self - from` the short way round.
    #[inline]
    pub const fn distance(self, from: Self) -> i16 {
        self.0.wrapping_sub(from.0).cast_signed()
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A queue pair number, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub struct Qpn(u32);

impl Qpn {
    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The lower 16 bits, which `spdcid` and `dpdcid` carry (MRC 1.0 table 7-15).
    #[inline]
    pub const fn low16(self) -> u16 {
        self.0 as u16
    }
}

impl From<u32> for Qpn {
    #[inline]
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

impl From<Qpn> for u32 {
    #[inline]
    fn from(qpn: Qpn) -> Self {
        qpn.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An entropy value: names one of the paths to a peer. 32 bits in STEV mode, 16 in UDP mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ev(pub u32);

impl fmt::Display for Ev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
