//! Ticks of axes that begin at 0.

use super::text;

/// The range of values that an axis can end with. Lower values count as 0.
const LEAST: f64 = 1e-290;
const MOST: f64 = 1e290;
/// Labels of an axis with larger or smaller steps have an exponent.
const LARGE: f64 = 1e7;
const SMALL_EXPONENT: i32 = -6;
/// A share of a step within which a value counts as at a tick, despite rounding.
const SLACK: f64 = 1e-9;
/// Most ticks of a horizontal axis, and the least space between its labels in pixels.
const MAX_ACROSS: f64 = 12.0;
const LABEL_GAP: f64 = 16.0;

/// An axis from 0 to `end`, with a tick at each multiple of 1, 2 or 5 times a power of ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ticks {
    digit: u32,
    exponent: i32,
    /// The number of the last tick; the first, at 0, is number 0.
    last: u32,
    end: f64,
}

impl Ticks {
    const UNIT: Self = Self { digit: 1, exponent: 0, last: 1, end: 1.0 };

    /// An axis that ends with the first tick at or above `highest`, after at most `intervals` intervals.
    pub(super) fn covering(highest: f64, intervals: u32) -> Self {
        let Some(highest) = sane(highest) else { return Self::UNIT };
        let intervals = intervals.max(1);
        let steps = steps(highest / f64::from(intervals));
        let fitting = steps.map(|(digit, exponent)| {
            let last = (highest / value(digit, exponent) - SLACK).ceil();
            Self { digit, exponent, last: last as u32, end: value(last as u32 * digit, exponent) }
        });
        fitting.into_iter().find(|ticks| ticks.last <= intervals).unwrap_or(Self::UNIT)
    }

    /// An axis that ends at `end`, over `length` pixels, with as many labels of this size as have room.
    pub(super) fn up_to(end: f64, length: f64, size: f64) -> Self {
        let end = sane(end).unwrap_or(1.0);
        let fitting = steps(end / MAX_ACROSS).map(|(digit, exponent)| {
            let last = (end / value(digit, exponent) + SLACK).floor();
            Self { digit, exponent, last: last as u32, end }
        });
        let fits = |ticks: &Self| {
            let widest = ticks.labels().map(|(_, label)| text::width(&label, size)).fold(0.0, f64::max);
            ticks.position(value(ticks.digit, ticks.exponent)) * length >= widest + LABEL_GAP
        };
        fitting.into_iter().find(fits).unwrap_or(Self { last: 0, end, ..Self::UNIT })
    }

    #[cfg(test)]
    pub(super) fn end(&self) -> f64 {
        self.end
    }

    /// Where a finite value is on the axis, as a share of its length, also if that is off the axis.
    pub(super) fn position(&self, value: f64) -> f64 {
        (value / self.end).clamp(-1e6, 1e6)
    }

    /// Where each tick is, as a value, and its label.
    pub(super) fn labels(self) -> impl Iterator<Item = (f64, String)> {
        (0..=self.last).map(move |number| {
            let value = value(number * self.digit, self.exponent);
            let exponent = self.end >= LARGE || self.exponent < SMALL_EXPONENT;
            let label = if exponent && number > 0 { format!("{value:e}") } else { value.to_string() };
            (value, label)
        })
    }
}

/// The end of an axis up to a value; none for 0 and for what is not a number.
fn sane(value: f64) -> Option<f64> {
    (value.is_finite() && value >= LEAST).then(|| value.min(MOST))
}

/// Steps in ascending order, from below `least` to far above it, as a digit and an exponent.
fn steps(least: f64) -> [(u32, i32); 12] {
    let exponent = least.log10().floor() as i32;
    let mut steps = [(1, exponent); 12];
    for (number, step) in (0_i32..).zip(&mut steps) {
        let digit = match number % 3 {
            0 => 1,
            1 => 2,
            _ => 5,
        };
        *step = (digit, exponent - 1 + number / 3);
    }
    steps
}

/// Rounded only once: multiples of a step have no errors that would show in labels.
fn value(digits: u32, exponent: i32) -> f64 {
    format!("{digits}e{exponent}").parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: Ticks) -> Vec<String> {
        ticks.labels().map(|(_, label)| label).collect()
    }

    #[test]
    fn steps_are_one_two_or_five() {
        let of = |highest| labels(Ticks::covering(highest, 6)).join(" ");
        assert_eq!(of(382.0), "0 100 200 300 400");
        assert_eq!(of(400.0), "0 100 200 300 400");
        assert_eq!(of(12.8), "0 5 10 15");
        assert_eq!(of(0.07), "0 0.02 0.04 0.06 0.08");
        assert_eq!(of(0.6), "0 0.1 0.2 0.3 0.4 0.5 0.6");
        assert_eq!(of(1.0), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(of(2.3e9), "0 5e8 1e9 1.5e9 2e9 2.5e9");
        assert_eq!(of(3e-9), "0 5e-10 1e-9 1.5e-9 2e-9 2.5e-9 3e-9");
        assert_eq!(labels(Ticks::covering(7.0, 1)), ["0", "10"]);
        assert_eq!(labels(Ticks::covering(7.0, 0)), ["0", "10"]);
    }

    #[test]
    fn nothing_but_zeros_has_an_axis() {
        for highest in [0.0, -0.0, -5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-310] {
            let ticks = Ticks::covering(highest, 6);
            assert_eq!((labels(ticks).join(" ").as_str(), ticks.end()), ("0 1", 1.0), "{highest}");
            let ticks = Ticks::up_to(highest, 500.0, 12.0);
            assert_eq!((labels(ticks).len(), ticks.end()), (11, 1.0), "{highest}");
        }
    }

    /// Over all magnitudes, an axis covers its values with a few finite ticks.
    #[test]
    fn huge_and_tiny_ranges_have_ticks() {
        for exponent in -289..=289 {
            for digits in [100, 101, 199, 200, 333, 500, 501, 999] {
                let highest = value(digits, exponent - 2);
                for intervals in [1, 3, 6, 30] {
                    let ticks = Ticks::covering(highest, intervals);
                    let values: Vec<_> = ticks.labels().map(|(value, _)| value).collect();
                    assert!(values.len() >= 2 && values.len() <= intervals as usize + 1, "{highest}");
                    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{values:?}");
                    assert_eq!((values[0], values.last()), (0.0, Some(&ticks.end())));
                    assert!(ticks.end() >= highest * (1.0 - 1e-8) && ticks.end().is_finite(), "{highest}");
                    // An axis is not much longer than it has to be.
                    assert!(intervals < 3 || ticks.end() < 1.7 * highest, "{highest} {ticks:?}");
                }
            }
        }
        assert!(labels(Ticks::covering(f64::MAX, 6)).iter().all(|label| !label.contains("inf")));
    }

    #[test]
    fn labels_across_do_not_touch() {
        for end in [1e-12, 0.001_7, 0.5, 1.0, 10.0, 59.99, 6000.0, 123_456.0, 9_999_999.0, 1e15] {
            for length in [40.0, 200.0, 516.0, 2000.0] {
                let ticks = Ticks::up_to(end, length, 12.0);
                let spans = ticks.labels().map(|(value, label)| {
                    let (at, half) = (ticks.position(value) * length, text::width(&label, 12.0) / 2.0);
                    (at - half, at + half)
                });
                let spans: Vec<_> = spans.collect();
                assert!(spans.windows(2).all(|pair| pair[0].1 + 8.0 < pair[1].0), "{end} {length}");
                assert!(length < 200.0 || spans.len() >= 2, "{end} {length}");
                let last = ticks.labels().last().unwrap().0;
                assert!(last <= end * (1.0 + 1e-8), "no tick is beyond the end");
            }
        }
        assert_eq!(labels(Ticks::up_to(10.0, 516.0, 12.0)).len(), 11);
    }
}
