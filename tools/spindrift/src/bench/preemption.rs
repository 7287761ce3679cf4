//! Times in which the measuring thread did not run. They make the average of a busy machine meaningless.

use std::time::Duration;

/// Preemption up to this long are usual where cores are shared.
const USUAL: Duration = Duration::from_millis(20);

/// The longest time between two looks at the clock. Who looks often enough sees nothing longer while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preemption {
    last: Duration,
    longest: Duration,
}

impl Preemption {
    /// A look at the clock, `elapsed` since the start of the measurement.
    pub(crate) fn look(&mut self, elapsed: Duration) {
        self.longest = self.longest.max(elapsed.saturating_sub(self.last));
        self.last = elapsed;
    }

    pub(crate) const fn longest(self) -> Duration {
        self.longest
    }
}

/// Whether a pause makes the average of a measurement of `elapsed` say more about a busy machine than about the
/// transport: longer than usual, and more than a tenth of the time.
pub(crate) fn invalidates(pause: Duration, elapsed: Duration) -> bool {
    pause > USUAL && pause * 10 > elapsed
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn long_pauses_invalidate_short_measurements() {
        assert!(invalidates(ms(21), ms(209)));
        assert!(!invalidates(ms(21), ms(210)), "a tenth of the time");
        assert!(!invalidates(ms(20), ms(30)), "usual");
        assert!(invalidates(ms(500), ms(500)));
        assert!(!invalidates(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn the_longest_pause_is_that_between_two_looks() {
        let mut pauses = Preemption::default();
        for at in [3, 4, 34, 35, 60] {
            pauses.look(ms(at));
        }
        assert_eq!(pauses.longest(), ms(30));
        let mut late = Preemption::default();
        late.look(ms(7));
        assert_eq!(late.longest(), ms(7), "from the start to the first look");
    }
}
