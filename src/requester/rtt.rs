//! Round-trip time and reordering, measured from the packets' records.

use crate::time::Time;

/// Smoothed round-trip time, after RFC 6298 with the gains of TCP.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit stands last in a name")]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    latest_ns: u64,
    min_ns: u64,
    /// The recent peak. The part above the smoothed value fades by a 64th with each sample.
    peak_ns: u64,
    late_after_ns: u64,
}

impl Rtt {
    const PEAK_PARTS: u64 = 64;

    /// Adds a sample in nanoseconds.
    pub(crate) fn sample(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        if self.min_ns == 0 {
            self.start(rtt_ns);
            (self.min_ns, self.late_after_ns) = (rtt_ns, self.spread_ns());
            return;
        }
        self.latest_ns = rtt_ns;
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(rtt_ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
        self.min_ns = self.min_ns.min(rtt_ns);
        let above_ns = self.peak_ns.saturating_sub(self.smoothed_ns);
        self.peak_ns = rtt_ns.max(self.smoothed_ns + above_ns - above_ns / Self::PEAK_PARTS);
        self.late_after_ns = (2 * self.smoothed_ns).max(self.spread_ns());
    }

    /// A packet that was sent once was acknowledged after `age_ns`, by an acknowledgement without a usable timestamp.
    /// The age is an upper bound of the round-trip time. It is used until the first sample.
    #[cold]
    pub(crate) fn at_most(&mut self, age_ns: u64) {
        if self.min_ns == 0 {
            self.start(age_ns.max(1));
        }
    }

    const fn start(&mut self, rtt_ns: u64) {
        self.latest_ns = rtt_ns;
        self.smoothed_ns = rtt_ns;
        self.variation_ns = rtt_ns / 2;
    }

    /// The smoothed value. Before the first sample it is an upper bound, and zero before the first acknowledgement.
    pub(crate) const fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The smallest sample, zero before the first.
    pub(crate) const fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// The larger of the smoothed and the latest value: the round-trip time that a packet is allowed. RFC 8985
    /// section 6.2 uses the latest; a stall of the poll loop can only raise it.
    pub(crate) fn fair_ns(&self) -> u64 {
        self.smoothed_ns.max(self.latest_ns)
    }

    /// Whether recent round trips took at least 1.5 times the shortest one: packets wait in queues.
    pub(crate) fn queueing(&self) -> bool {
        self.min_ns > 0 && self.peak_ns >= self.min_ns + self.min_ns / 2
    }

    /// The round-trip time plus four times its variation, as in the timeout of RFC 6298.
    const fn spread_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.variation_ns
    }

    /// The PTO: the larger of two round trips and the timeout of RFC 6298 (RFC 8985 section 7.2). Zero before the
    /// first sample.
    pub(crate) const fn late_after_ns(&self) -> u64 {
        self.late_after_ns
    }
}

/// How far packets overtake each other across paths, in send time.
///
/// Spraying always reorders packets, so the reordering window is measured. If a packet that was never retransmitted
/// is acknowledged after one that was sent `extent` later, the window grows to cover `extent`. It halves after every
/// [`Reordering::MEMORY_RTTS`] round trips without such a packet.
///
/// At first nothing is measured, and the fastest paths report first. An assumed extent is used instead, and fades in
/// the same way.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit stands last in a name")]
pub(crate) struct Reordering {
    extent_ns: u64,
    seen_at_ns: u64,
    assumed_ns: u64,
    assumed_at_ns: u64,
}

impl Reordering {
    /// Number of round trips after which an extent that was not seen again is halved.
    const MEMORY_RTTS: u64 = 16;
    /// Smallest reordering window. The packets of one burst are sent within this time.
    const FLOOR_NS: u64 = 2_000;

    /// Starts without a measurement: extents up to `ns` are assumed.
    pub(crate) const fn assumed(ns: u64) -> Self {
        Self { extent_ns: 0, seen_at_ns: 0, assumed_ns: ns, assumed_at_ns: 0 }
    }

    /// A packet arrived after one that was sent `extent_ns` later had been acknowledged.
    pub(crate) fn observe(&mut self, extent_ns: u64, now_ns: u64) {
        if extent_ns >= self.extent_ns {
            self.extent_ns = extent_ns;
            self.seen_at_ns = now_ns;
        }
    }

    /// The first copy of a packet that was declared lost had arrived.
    pub(crate) fn widen(&mut self, rtt: &Rtt, now_ns: u64) {
        let most = rtt.spread_ns().max(Self::FLOOR_NS);
        self.extent_ns = self.extent_ns.saturating_mul(2).max(rtt.smoothed_ns() / 4).min(most);
        self.seen_at_ns = now_ns;
    }

    #[cold]
    fn fade_assumed(&mut self, memory_ns: u64, now_ns: u64) {
        if self.assumed_at_ns == 0 {
            self.assumed_at_ns = now_ns;
        } else if now_ns - self.assumed_at_ns > memory_ns {
            self.assumed_ns /= 2;
            self.assumed_at_ns = now_ns;
        }
    }

    /// The current reordering window. It is at least an eighth of a round trip, at most a round trip plus four times
    /// its variation, and never less than the assumed extent.
    pub(crate) fn window_ns(&mut self, rtt: &Rtt, now_ns: u64) -> u64 {
        let memory = (Self::MEMORY_RTTS * rtt.smoothed_ns()).max(1);
        if now_ns.saturating_sub(self.seen_at_ns) > memory {
            self.extent_ns /= 2;
            self.seen_at_ns = now_ns;
        }
        if self.assumed_ns != 0 {
            self.fade_assumed(memory, now_ns);
        }
        let most = rtt.spread_ns().max(Self::FLOOR_NS);
        let measured = (self.extent_ns + self.extent_ns / 4).max(rtt.smoothed_ns() / 8);
        measured.clamp(Self::FLOOR_NS, most).max(self.assumed_ns)
    }
}

/// The order rule: whether packets of one entropy value stay in order, so that an overtaken packet is lost.
///
/// The rule is suspended when it is proved wrong, and for longer each time that it is wrong again soon after.
/// Meanwhile only the time rule applies. It waits for the round-trip time plus the reordering window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathOrder {
    aside_until: Time,
    aside_ns: u64,
}

impl PathOrder {
    /// Number of round trips for which the rule is suspended at first.
    const FIRST_RTTS: u64 = 64;
    const LEAST_NS: u64 = 1_000_000;
    const MOST_NS: u64 = 10_000_000_000;
    /// The rule counts as sound again after it was right for this many times the last suspension.
    const PROBATION: u64 = 8;

    /// Whether the rule applies now.
    pub(crate) fn holds(&self, now: Time) -> bool {
        now >= self.aside_until
    }

    /// A packet that the rule declared lost had arrived. Returns `true` if this suspends the rule. While it is
    /// suspended, its earlier decisions prove nothing more.
    pub(crate) fn disproved(&mut self, rtt: &Rtt, now: Time) -> bool {
        if !self.holds(now) {
            return false;
        }
        let first = (Self::FIRST_RTTS * rtt.smoothed_ns()).clamp(Self::LEAST_NS, Self::MOST_NS);
        let sound = now.since(self.aside_until) > self.aside_ns.saturating_mul(Self::PROBATION);
        self.aside_ns = if sound { first } else { (2 * self.aside_ns).clamp(first, Self::MOST_NS) };
        self.aside_until = now.after(self.aside_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_follows_the_samples() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.late_after_ns(), 0);
        rtt.sample(10_000);
        assert_eq!((rtt.smoothed_ns(), rtt.min_ns(), rtt.late_after_ns()), (10_000, 10_000, 30_000));
        for _ in 0..100 {
            rtt.sample(20_000);
        }
        assert!((19_900..=20_000).contains(&rtt.smoothed_ns()));
        assert_eq!(rtt.min_ns(), 10_000);
        assert!((39_800..=40_100).contains(&rtt.late_after_ns()), "steady: two round trips");
    }

    #[test]
    fn half_as_long_again_is_a_sign_of_queues_for_a_while() {
        let mut rtt = Rtt::default();
        assert!(!rtt.queueing());
        rtt.sample(10_000);
        rtt.sample(14_999);
        assert!(!rtt.queueing());
        rtt.sample(15_000);
        assert!(rtt.queueing());
        rtt.sample(40_000);
        let mut samples = 0;
        while rtt.queueing() {
            rtt.sample(10_000);
            samples += 1;
        }
        assert!((100..150).contains(&samples), "{samples}: 30 us fade to 5 us, a 64th each time");
    }

    #[test]
    fn an_upper_bound_stands_in_until_the_first_sample() {
        let mut rtt = Rtt::default();
        rtt.at_most(80_000);
        assert_eq!((rtt.smoothed_ns(), rtt.fair_ns(), rtt.min_ns()), (80_000, 80_000, 0));
        assert_eq!(rtt.late_after_ns(), 0);
        rtt.sample(10_000);
        assert_eq!((rtt.smoothed_ns(), rtt.fair_ns(), rtt.min_ns()), (10_000, 10_000, 10_000));
        rtt.at_most(80_000);
        assert_eq!((rtt.smoothed_ns(), rtt.fair_ns(), rtt.min_ns()), (10_000, 10_000, 10_000));
    }

    #[test]
    fn the_reordering_window_grows_at_once_and_fades() {
        let mut rtt = Rtt::default();
        rtt.sample(100_000);
        let mut reordering = Reordering::default();
        for _ in 0..100 {
            reordering.widen(&rtt, 0);
        }
        assert_eq!(reordering.window_ns(&rtt, 0), 300_000, "however often it is widened");
        let mut reordering = Reordering::default();
        assert_eq!(reordering.window_ns(&rtt, 0), 12_500);
        reordering.observe(40_000, 1_000);
        assert_eq!(reordering.window_ns(&rtt, 1_000), 50_000);
        // The extent is remembered for 16 round trips, to the nanosecond.
        assert_eq!(reordering.window_ns(&rtt, 1_601_000), 50_000);
        assert_eq!(reordering.window_ns(&rtt, 1_601_001), 25_000);
        reordering.observe(1_000_000, 3_000_000);
        assert_eq!(reordering.window_ns(&rtt, 3_000_000), 300_000, "never more than the spread");
    }

    #[test]
    fn an_assumed_extent_fades_and_measuring_takes_its_place() {
        let mut rtt = Rtt::default();
        rtt.sample(10_000);
        let mut reordering = Reordering::assumed(100_000);
        let mut at = |now_ns| reordering.window_ns(&rtt, now_ns);
        assert_eq!((at(5_000), at(165_000), at(165_001)), (100_000, 100_000, 50_000));
        assert_eq!((at(165_002), at(325_001), at(325_002)), (50_000, 50_000, 25_000));
        for _ in 0..20 {
            reordering.window_ns(&rtt, reordering.assumed_at_ns + 160_001);
        }
        assert_eq!((reordering.window_ns(&rtt, 10_000_000), reordering.assumed_ns), (2_000, 0));
        let mut reordering = Reordering::assumed(1_000);
        assert_eq!(reordering.window_ns(&rtt, 5_000), 2_000, "the least");
        reordering.observe(4_000, 6_000);
        assert_eq!(reordering.window_ns(&rtt, 6_000), 5_000);
    }

    #[test]
    fn the_order_rule_is_set_aside_for_longer_each_time_and_trusted_again_at_last() {
        let mut rtt = Rtt::default();
        rtt.sample(100_000);
        let mut order = PathOrder::default();
        assert!(order.holds(Time(0)));
        assert!(order.disproved(&rtt, Time(1_000)));
        assert!(!order.holds(Time(6_400_999)) && order.holds(Time(6_401_000)));
        assert!(!order.disproved(&rtt, Time(2_000)), "what was decided before");
        assert!(order.holds(Time(6_401_000)));
        assert!(order.disproved(&rtt, Time(6_401_000)), "and again at once");
        assert!(!order.holds(Time(19_200_000)) && order.holds(Time(19_201_000)));
        let sound_from = Time(19_201_000 + 8 * 12_800_000 + 1);
        let mut too_soon = order;
        assert!(too_soon.disproved(&rtt, Time(sound_from.0 - 1)));
        assert_eq!(too_soon.aside_ns, 25_600_000, "one nanosecond short");
        assert!(order.disproved(&rtt, sound_from));
        assert!(order.holds(sound_from.after(6_400_000)), "a fresh start");
    }

    #[test]
    fn the_order_rule_is_never_set_aside_for_more_than_ten_seconds() {
        let mut rtt = Rtt::default();
        rtt.sample(100_000);
        let (mut order, mut now) = (PathOrder::default(), Time(1));
        for _ in 0..100 {
            assert!(order.disproved(&rtt, now));
            let until = order.aside_until;
            assert!(until.since(now) <= 10_000_000_000);
            now = until;
        }
    }
}
