//! Time in which the driver of the endpoint did not run.

use crate::time::Time;

/// The last driver stall: the driver's thread did not run, or did something else.
///
/// A packet that carries the time of the last poll before the stall may have been sent only after it. Packets that
/// arrived during the stall are processed late. So a stall is no evidence about packets and paths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverStall {
    from: Time,
    until: Time,
}

impl DriverStall {
    pub(crate) const fn new(from: Time, until: Time) -> Self {
        Self { from, until }
    }

    /// Whether the stall lies between these two times. Neither may lie within the stall.
    #[inline]
    pub(crate) fn falls_between(&self, earlier: Time, later: Time) -> bool {
        earlier <= self.from && self.until <= later
    }

    /// Nanoseconds from `earlier` to `later`, without the stall.
    #[inline]
    pub(crate) fn since(&self, earlier: Time, later: Time) -> u64 {
        let away_ns = if self.falls_between(earlier, later) { self.until.since(self.from) } else { 0 };
        later.since(earlier) - away_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_between_is_left_out() {
        let away = DriverStall::new(Time(100), Time(900));
        for (earlier, later, ns) in [
            (100, 900, 0),
            (99, 900, 1),
            (100, 901, 1),
            (0, 1_000, 200),
            (0, 100, 100),
            (40, 70, 30),
            (900, 950, 50),
            (950, 900, 0),
        ] {
            assert_eq!(away.since(Time(earlier), Time(later)), ns, "{earlier} to {later}");
        }
        assert_eq!(DriverStall::default().since(Time::ZERO, Time(7)), 7);
    }
}
