//! How long a NIC that failed must work before traffic returns to it.

use crate::time::Time;

/// Maximum of doublings, so that the time loses no bits.
const MAX_DOUBLINGS: u8 = 20;

/// A hold time that doubles with every failure, up to a maximum, and loses one doubling for each such maximum that passes
/// without a failure.
#[derive(Clone, Debug, Hash)]
pub(crate) struct HoldTime {
    first_ns: u64,
    max_ns: u64,
    now_ns: u64,
    /// Doublings of the next hold time.
    doublings: u8,
    /// When traffic last returned, or left.
    calm_since: Time,
}

impl HoldTime {
    pub(crate) const fn new(first_ns: u64, max_ns: u64) -> Self {
        Self { first_ns, max_ns, now_ns: first_ns, doublings: 0, calm_since: Time::ZERO }
    }

    /// The present hold time, ns.
    pub(crate) const fn ns(&self) -> u64 {
        self.now_ns
    }

    /// The NIC failed.
    pub(crate) fn failed(&mut self, now: Time) {
        let calm = now.since(self.calm_since).checked_div(self.max_ns).unwrap_or(0);
        self.doublings = self.doublings.saturating_sub(calm.min(u64::from(MAX_DOUBLINGS)) as u8);
        self.now_ns = self.first_ns.saturating_mul(1 << self.doublings).min(self.max_ns);
        self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
        // Time on the other NIC is not calm time.
        self.calm_since = now;
    }

    /// Traffic has returned to the NIC.
    pub(crate) const fn returned(&mut self, now: Time) {
        self.calm_since = now;
    }

    /// Forgets earlier failures.
    pub(crate) const fn reset(&mut self) {
        (self.doublings, self.now_ns) = (0, self.first_ns);
    }
}
