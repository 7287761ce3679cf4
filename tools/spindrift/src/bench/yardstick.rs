//! The yardstick of a run: the rate of a pump that alternates with the run, and whether other load disturbed the run.

use std::time::Duration;

use anyhow::Result;

use super::options::Amount;

/// A pump or a latency that moved by more than this part means a machine that others disturb.
const STEADY: f64 = 0.15;
/// Shortest and longest slice of a pump.
const SLICE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];
/// All slices together take this part of a run, if they are not at their shortest.
const PART: u32 = 5;
/// Shortest piece of a run that is cut, and most pieces.
const PIECE: Duration = Duration::from_millis(300);
const PIECES_MAX: u32 = 8;

/// What the pump is warmed up with: slices of this length, at least and at most so many, until two in turn are this
/// much alike.
const WARM_UP_SLICE: Duration = Duration::from_millis(20);
const WARM_UPS: core::ops::RangeInclusive<u32> = 6..=25;
const ALIKE: f64 = 0.05;

/// Runs `pump`, which returns the rate of a slice, until it has come to its speed: a processor that was idle takes its
/// time, and what it does meanwhile is not worth being measured.
pub(crate) fn warm_up(mut pump: impl FnMut(Duration) -> Result<f64>) -> Result<()> {
    let mut before = 0.0;
    for slice in 1..=*WARM_UPS.end() {
        let now = pump(WARM_UP_SLICE)?;
        if WARM_UPS.contains(&slice) && !moved(before, now, ALIKE) {
            break;
        }
        before = now;
    }
    Ok(())
}

/// How a run is cut into pieces, with a slice of the pump before, between and after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slices {
    pub(crate) piece: Amount,
    pub(crate) slice: Duration,
}

impl Slices {
    /// A number of messages is not cut: nobody knows how long they take.
    pub(crate) fn of(amount: Amount) -> Self {
        let [shortest, longest] = SLICE;
        let Amount::Time(time) = amount else { return Self { piece: amount, slice: shortest } };
        let pieces = (time.as_nanos() / PIECE.as_nanos()).clamp(1, PIECES_MAX.into()) as u32;
        let slice = (time / PART / (pieces + 1)).clamp(shortest, longest);
        Self { piece: Amount::Time(time / pieces), slice }
    }

    /// The next piece of a run of which so much is over; none if less than half a piece is left.
    pub(crate) fn next(&self, whole: Amount, over: Duration) -> Option<Amount> {
        let (Amount::Time(time), Amount::Time(piece)) = (whole, self.piece) else {
            return over.is_zero().then_some(self.piece);
        };
        let left = time.saturating_sub(over);
        (left > Duration::ZERO && left >= piece / 2).then_some(Amount::Time(piece.min(left)))
    }
}

/// What the pump and the core latency were beside a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Yardstick {
    /// Gb/s, in the order of time.
    pub(crate) slices: Vec<f64>,
    /// Before and after, in nanoseconds.
    pub(crate) latency_ns: Option<[f64; 2]>,
}

impl Yardstick {
    /// The mean of all slices, in Gb/s.
    pub(crate) fn gbps(&self) -> f64 {
        self.slices.iter().sum::<f64>() / self.slices.len().max(1) as f64
    }

    /// Whether a slice is off the first one, or the latency after the run off the one before.
    pub(crate) fn disturbed(&self) -> bool {
        let first = self.slices.first().copied().unwrap_or_default();
        let pump = self.slices.iter().any(|&slice| moved(first, slice, STEADY));
        let latency = self.latency_ns.is_some_and(|[before, after]| moved(before, after, STEADY));
        self.slices.is_empty() || pump || latency
    }
}

/// Whether a value went up or down by more than this part of what it was. What is no positive number never held still.
fn moved(before: f64, after: f64, part: f64) -> bool {
    let steady = before > 0.0 && before.is_finite() && (after - before).abs() <= part * before;
    !steady
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn disturbed_is_more_than_15_percent_up_or_down() {
        for base in [0.001, 100.0, 3e6] {
            for (percent, expected) in
                [(0.0, false), (14.9, false), (-14.9, false), (15.1, true), (-15.1, true), (-100.0, true)]
            {
                let other = base * (1.0 + percent / 100.0);
                assert_eq!(moved(base, other, STEADY), expected, "{base} {percent} %");
                let pump = Yardstick { slices: vec![base, base, other, base], latency_ns: None };
                assert_eq!(pump.disturbed(), expected, "pump {base} {percent} %");
                let latency = Yardstick { slices: vec![base, base], latency_ns: Some([base, other]) };
                assert_eq!(latency.disturbed(), expected, "latency {base} {percent} %");
            }
        }
    }

    #[test]
    fn what_is_no_number_is_disturbed() {
        for (before, after) in [
            (0.0, 0.0),
            (0.0, 1.0),
            (1.0, f64::NAN),
            (f64::NAN, 1.0),
            (f64::NAN, f64::NAN),
            (f64::INFINITY, 1.0),
            (1.0, f64::INFINITY),
            (-1.0, -1.0),
        ] {
            assert!(moved(before, after, STEADY), "{before} {after}");
        }
        let nothing = Yardstick::default();
        assert!(nothing.disturbed() && nothing.gbps().abs() < f64::EPSILON);
    }

    #[test]
    fn a_pump_is_warm_when_two_slices_are_alike() {
        let slices_of = |rates: &[f64]| {
            let mut next = rates.iter().copied().chain(core::iter::repeat(0.0));
            let mut slices = 0;
            let slice = |time| {
                assert_eq!(time, WARM_UP_SLICE);
                slices += 1;
                Ok(next.next().unwrap_or_default())
            };
            warm_up(slice).map(|()| slices).unwrap_or_default()
        };
        assert_eq!(slices_of(&[25.0, 25.0, 25.0, 25.0, 100.0, 104.9]), 6, "not before the least number");
        assert_eq!(slices_of(&[25.0, 25.0, 25.0, 25.0, 25.0, 50.0, 60.0, 62.0]), 8);
        assert_eq!(slices_of(&[0.0, 0.0, 0.0, 100.0, 94.9, 90.1, 85.0, 85.0]), 8, "down as well as up");
        assert_eq!(slices_of(&[]), *WARM_UPS.end(), "never");
        assert!(warm_up(|_| Err(anyhow::anyhow!("no pump"))).is_err());
    }

    #[test]
    fn the_rate_is_the_mean() {
        let yardstick = Yardstick { slices: vec![90.0, 100.0, 110.0], latency_ns: None };
        assert!((yardstick.gbps() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn pieces_make_up_the_whole() {
        let whole = Amount::Time(ms(900));
        let slices = Slices::of(whole);
        assert_eq!(slices.next(whole, ms(0)), Some(Amount::Time(ms(300))));
        assert_eq!(slices.next(whole, ms(301)), Some(Amount::Time(ms(300))));
        assert_eq!(slices.next(whole, ms(610)), Some(Amount::Time(ms(290))));
        assert_eq!(slices.next(whole, ms(760)), None, "less than half a piece");
        assert_eq!(slices.next(whole, ms(2000)), None);
        let counted = Amount::Iterations(9);
        let slices = Slices::of(counted);
        assert_eq!(slices.next(counted, ms(0)), Some(counted));
        assert_eq!(slices.next(counted, ms(1)), None);
    }

    #[test]
    fn slices_are_short_and_pieces_few() {
        let slices = |time| Slices::of(Amount::Time(ms(time)));
        assert_eq!(slices(20), Slices { piece: Amount::Time(ms(20)), slice: ms(50) });
        assert_eq!(slices(300), Slices { piece: Amount::Time(ms(300)), slice: ms(50) });
        assert_eq!(slices(1200), Slices { piece: Amount::Time(ms(300)), slice: ms(50) });
        assert_eq!(
            slices(4500),
            Slices { piece: Amount::Time(Duration::from_micros(562_500)), slice: ms(100) }
        );
        assert_eq!(slices(60_000), Slices { piece: Amount::Time(ms(7500)), slice: ms(200) });
        let counted = Amount::Iterations(9);
        assert_eq!(Slices::of(counted), Slices { piece: counted, slice: ms(50) });
    }
}
