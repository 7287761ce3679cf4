//! Time as the transport sees it: nanoseconds since an epoch that the driver chose.
//!
//! The core reads no clock. Whoever drives an [`Endpoint`](crate::endpoint::Endpoint) (a lane, a
//! test, a simulator) passes `now` in, so a run can be repeated exactly.

use core::fmt;
use core::ops::{Add, Sub};

/// A point in time, in nanoseconds since the driver's epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The driver's epoch.
    pub const ZERO: Self = Self(0);
    /// Later than any real time.
    pub const NEVER: Self = Self(u64::MAX);

    /// Nanoseconds from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// `ns` nanoseconds later, saturating at [`Time::NEVER`].
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// The 16-bit timestamp in units of 128 ns that packets carry (MRC 1.0 table 6-6).
    #[inline]
    pub(crate) const fn timestamp(self) -> u16 {
        (self.0 >> 7) as u16
    }
}

impl Add<u64> for Time {
    type Output = Self;
    fn add(self, ns: u64) -> Self {
        self.after(ns)
    }
}

impl Sub for Time {
    type Output = u64;
    fn sub(self, earlier: Self) -> u64 {
        self.since(earlier)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}
