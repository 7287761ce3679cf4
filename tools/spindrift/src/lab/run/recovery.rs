//! Recovery time: how long the rate stays below what is possible.

use std::ops::Range;

/// Payload that arrived, over time: bits in each millisecond.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Arrivals(pub(super) Vec<f64>);

/// Milliseconds that a rate is the mean of: a single one says little, since packets come in bursts and threads take turns.
const WINDOW: usize = 10;
/// The share of what is left that counts as recovered.
pub(super) const ENOUGH: f64 = 0.9;
/// Milliseconds in which what happened shows, if it does: those of a rate, the change itself, and a retransmission timeout. Whatever
/// makes traffic stop later has other reasons.
const ONSET: usize = 30;

/// What became of the traffic after something happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recovery {
    /// Milliseconds until the rate was at [`ENOUGH`] of what was possible, and stayed there on average; `None` if it did not until the next
    /// event.
    pub(super) after_ms: Option<f64>,
    /// Milliseconds in which ten-millisecond rates were below that, until the next event.
    pub(super) below_ms: f64,
    /// The longest time without any payload, ms.
    pub(super) longest_gap_ms: f64,
    /// The least rate of ten milliseconds, bits per second.
    pub(super) least_bps: f64,
    /// The mean rate until the next event, bits per second.
    pub(super) mean_bps: f64,
}

impl Arrivals {
    /// From a count that was read at some times, in ms and ascending; between two of them it grew evenly.
    pub(super) fn from_counts(times_ms: &[f64], bits: &[f64], length_ms: usize) -> Self {
        let mut at = Interpolator { times_ms, values: bits, next: 0 };
        let mut last = at.value(0.0);
        let bins = (1..=length_ms).map(|end| {
            let value = at.value(end as f64);
            let grown = value - last;
            last = value;
            grown
        });
        Self(bins.collect())
    }

    /// The mean rate of a time in ms, in bits per second.
    pub(super) fn mean_bps(&self, span: Range<usize>) -> f64 {
        let bins = self.0.get(span.start.min(self.0.len())..span.end.min(self.0.len())).unwrap_or_default();
        if bins.is_empty() { 0.0 } else { bins.iter().sum::<f64>() / bins.len() as f64 * 1000.0 }
    }

    /// What became of the traffic between something that happened `at_ms` and the next event, where `possible_bps` is what can pass.
    pub(super) fn recovery(&self, at_ms: f64, until_ms: f64, possible_bps: f64) -> Recovery {
        let (first, end) = (at_ms.max(0.0) as usize, (until_ms.max(0.0) as usize).min(self.0.len()));
        let rate = |start: usize| self.mean_bps(start..(start + WINDOW).min(end));
        // A rest that is shorter says nothing.
        let starts = first..end.saturating_sub(WINDOW - 1).max(first);
        let low = |&start: &usize| rate(start) < ENOUGH * possible_bps;
        let began = starts.clone().take(ONSET).find(low);
        let after_ms = match began {
            None => Some(0.0),
            Some(began) => {
                let stays = |start: &usize| self.mean_bps(*start..end) >= ENOUGH * possible_bps;
                let over = (began..starts.end).find(|start| !low(start) && stays(start));
                over.map(|over| (over as f64 - at_ms).max(0.0))
            }
        };
        let bins = self.0.get(first.min(end)..end).unwrap_or_default();
        let gap = bins.split(|&bits| bits > 0.0).map(<[f64]>::len).max().unwrap_or_default();
        Recovery {
            after_ms,
            below_ms: starts.clone().filter(low).count() as f64,
            longest_gap_ms: gap as f64,
            least_bps: starts.map(rate).fold(f64::INFINITY, f64::min),
            mean_bps: self.mean_bps(first..end),
        }
    }
}

/// Reads a count at ascending times.
pub(super) struct Interpolator<'a> {
    pub(super) times_ms: &'a [f64],
    pub(super) values: &'a [f64],
    pub(super) next: usize,
}

impl Interpolator<'_> {
    /// The value at a time not before the one of the last call.
    pub(super) fn value(&mut self, at_ms: f64) -> f64 {
        while self.times_ms.get(self.next).is_some_and(|&time| time < at_ms) {
            self.next += 1;
        }
        let point = |number: usize| Some((*self.times_ms.get(number)?, *self.values.get(number)?));
        let before = self.next.checked_sub(1).and_then(point);
        match (before, point(self.next)) {
            (Some((from, low)), Some((to, high))) if to > from => {
                low + (high - low) * (at_ms - from) / (to - from)
            }
            (_, Some((_, value))) | (Some((_, value)), None) => value,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "these are exact")]
    use super::*;

    /// So many milliseconds at each rate, in bits per millisecond.
    fn arrivals(pieces: &[(usize, f64)]) -> Arrivals {
        Arrivals(pieces.iter().flat_map(|&(length, bits)| vec![bits; length]).collect())
    }

    #[test]
    fn counts_become_rates_of_each_millisecond() {
        let times = [-2.0, 0.5, 2.5, 2.5, 5.0];
        let bits = [0.0, 250.0, 450.0, 500.0, 1000.0];
        let all = Arrivals::from_counts(&times, &bits, 6);
        assert_eq!(all.0, [100.0, 100.0, 200.0, 200.0, 200.0, 0.0]);
        assert_eq!(all.mean_bps(0..2), 100_000.0);
        assert_eq!((all.mean_bps(4..99), all.mean_bps(7..9), all.mean_bps(3..3)), (100_000.0, 0.0, 0.0));
        assert_eq!(Arrivals::from_counts(&[], &[], 2).0, [0.0; 2]);
        // Before the first reading nothing is known.
        assert_eq!(Arrivals::from_counts(&[1.0, 2.0], &[70.0, 90.0], 2).0, [0.0, 20.0]);
    }

    #[test]
    fn recovery_is_told_from_the_event_to_the_end_of_the_dip() {
        let possible = 1e6;
        for (pieces, after, gap) in [
            // Nothing shows.
            (vec![(300, 1000.0)], Some(0.0), 0.0),
            // A share of 0.9 is enough, and a little less is not.
            (vec![(100, 1000.0), (200, 900.0)], Some(0.0), 0.0),
            (vec![(100, 1000.0), (200, 899.0)], None, 0.0),
            // 30 ms without anything, at once or some time later.
            (vec![(100, 1000.0), (30, 0.0), (170, 1000.0)], Some(29.0), 30.0),
            (vec![(120, 1000.0), (30, 0.0), (150, 1000.0)], Some(49.0), 30.0),
            // Half of it, for longer.
            (vec![(100, 1000.0), (50, 500.0), (150, 1000.0)], Some(48.0), 0.0),
            // Too late to have to do with the event.
            (vec![(220, 1000.0), (30, 0.0), (50, 1000.0)], Some(0.0), 30.0),
            (vec![(138, 1000.0), (30, 0.0), (132, 1000.0)], Some(0.0), 30.0),
            // Just not too late.
            (vec![(137, 1000.0), (30, 0.0), (133, 1000.0)], Some(66.0), 30.0),
            // A rise.
            (vec![(100, 500.0), (20, 500.0), (180, 1000.0)], Some(18.0), 0.0),
            // Never.
            (vec![(100, 1000.0), (200, 0.0)], None, 200.0),
            // For a moment, and then not again before the end, or late.
            (vec![(100, 1000.0), (30, 0.0), (20, 1000.0), (150, 100.0)], None, 30.0),
            (vec![(100, 1000.0), (30, 0.0), (20, 1000.0), (50, 100.0), (100, 1000.0)], Some(99.0), 30.0),
            // The rest is good enough in spite of a second dip.
            (vec![(100, 1000.0), (30, 0.0), (70, 1000.0), (5, 0.0), (95, 1000.0)], Some(29.0), 30.0),
        ] {
            let told = arrivals(&pieces).recovery(100.0, 300.0, possible);
            assert_eq!((told.after_ms, told.longest_gap_ms), (after, gap), "{pieces:?}");
        }
    }

    #[test]
    fn what_comes_after_the_next_event_is_not_looked_at() {
        let all = arrivals(&[(100, 1000.0), (50, 200.0), (150, 1000.0)]);
        let told = all.recovery(100.5, 150.0, 1e6);
        assert_eq!((told.after_ms, told.least_bps, told.mean_bps), (None, 200_000.0, 200_000.0));
        assert_eq!(told.below_ms, 41.0);
        let told = all.recovery(100.5, 200.0, 1e6);
        assert_eq!(told.below_ms, 49.0);
        assert_eq!((told.after_ms, told.least_bps, told.mean_bps), (Some(48.5), 200_000.0, 600_000.0));
        // Less than a window is nothing to go by.
        let short = all.recovery(100.0, 105.0, 1e6);
        assert_eq!((short.after_ms, short.mean_bps), (Some(0.0), 200_000.0));
        let beyond = all.recovery(400.0, 500.0, 1e6);
        assert_eq!((beyond.after_ms, beyond.longest_gap_ms, beyond.mean_bps), (Some(0.0), 0.0, 0.0));
    }
}
