//! What came of claims, over all seeds.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::report::Spread;

/// What came of a claim, with each seed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) what: String,
    /// What was measured, in the order of the seeds.
    pub(super) measured: Vec<Measured>,
    pub(super) unit: &'static str,
    pub(super) least: Option<f64>,
    pub(super) most: Option<f64>,
    /// Why it does not hold, if that is known.
    pub(super) why: Option<String>,
}

/// What was measured with one seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) seed: u64,
    /// Nothing if it could not be measured.
    pub(super) value: Option<f64>,
}

impl Finding {
    /// What came of the same claim with further seeds.
    pub(super) fn add(&mut self, other: Self) {
        self.measured.extend(other.measured);
    }

    fn is_within(&self, value: f64) -> bool {
        self.least.is_none_or(|least| value >= least) && self.most.is_none_or(|most| value <= most)
    }

    /// The seeds with which it does not hold.
    fn failing(&self) -> Vec<u64> {
        let fails = self
            .measured
            .iter()
            .filter(|measured| !measured.value.is_some_and(|value| self.is_within(value)));
        fails.map(|measured| measured.seed).collect()
    }

    /// With each seed.
    pub(super) fn holds(&self) -> bool {
        self.failing().is_empty()
    }

    /// Of what could be measured; nothing if nothing could be.
    fn spread(&self) -> Option<Spread> {
        let values: Vec<_> = self.measured.iter().filter_map(|measured| measured.value).collect();
        (!values.is_empty()).then(|| Spread::of(values))
    }

    /// The median, and with several seeds the least and the most if they differ from it.
    pub(super) fn measured(&self) -> String {
        let Some(Spread { count, p50, min, max, .. }) = self.spread() else {
            return "no data in that time".to_owned();
        };
        let [p50, min, max] = [p50, min, max].map(|value| self.shown(value));
        let mut text = format!("{p50}{}", self.unit);
        if min != p50 || max != p50 {
            text += &format!(" [{min} to {max}]");
        }
        if count < self.measured.len() {
            text +=
                &format!(", no data with {} of {} seeds", self.measured.len() - count, self.measured.len());
        }
        text
    }

    /// With so many digits that a value beyond a bound does not look as if it were within, nor the other way round.
    fn shown(&self, value: f64) -> String {
        let enough = |text: &String| {
            text.parse().is_ok_and(|shown: f64| self.is_within(shown) == self.is_within(value))
        };
        let usual = usual_digits(value);
        (usual..usual + MORE_DIGITS)
            .map(|digits| with_digits(value, digits))
            .find(enough)
            .unwrap_or_else(|| value.to_string())
    }

    pub(super) fn claimed(&self) -> String {
        match (self.least, self.most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), number(most)),
            (Some(least), None) => format!("at least {}", number(least)),
            (None, Some(most)) => format!("at most {}", number(most)),
            (None, None) => String::new(),
        }
    }

    pub(super) fn verdict(&self) -> Cow<'_, str> {
        let (failing, all) = (self.failing(), self.measured.len());
        let seeds = match (&*failing, all) {
            ([], 0..=1) => return "holds".into(),
            ([], _) => return format!("holds with all {all} seeds").into(),
            (_, 0..=1) => String::new(),
            (some, _) if some.len() == all => format!(" with any of {all} seeds"),
            (some, _) => {
                let names: Vec<_> = some.iter().map(u64::to_string).collect();
                format!(" with {} of {all} seeds ({})", some.len(), names.join(", "))
            }
        };
        match &self.why {
            None => format!("DOES NOT HOLD{seeds}").into(),
            Some(why) => format!("does not hold{seeds}: {why}").into(),
        }
    }

    /// All of it.
    pub(super) fn line(&self) -> String {
        format!("{}: {} ({}), {}", self.what, self.measured(), self.claimed(), self.verdict())
    }

    pub(super) fn json(&self) -> Json {
        let Self { what, measured, unit, least, most, why } = self;
        let spread = self.spread();
        let seeds = measured.iter().map(|measured| json!({ "seed": measured.seed, "value": measured.value }));
        json!({
            "what": what,
            "value": spread.map(|spread| spread.p50),
            "min": spread.map(|spread| spread.min),
            "max": spread.map(|spread| spread.max),
            "unit": unit.trim_start(),
            "least": least,
            "most": most,
            "holds": self.holds(),
            "seeds_held": measured.len() - self.failing().len(),
            "seeds": seeds.collect::<Vec<_>>(),
            "why": why,
        })
    }
}

/// Digits that a value may have beyond the usual ones.
const MORE_DIGITS: usize = 6;

/// As many digits as say something.
pub(super) fn number(value: f64) -> String {
    with_digits(value, usual_digits(value))
}

fn usual_digits(value: f64) -> usize {
    match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    }
}

/// Without a fraction that is 0.
fn with_digits(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some((whole, rest)) if rest.bytes().all(|digit| digit == b'0') => whole.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(values: &[Option<f64>], least: Option<f64>, most: Option<f64>) -> Finding {
        let measured = (3..).zip(values).map(|(seed, &value)| Measured { seed, value }).collect();
        Finding { what: "fast".to_owned(), measured, unit: " Gb/s", least, most, why: None }
    }

    /// A claim holds if it does with each seed; a reason excuses each seed with which it does not.
    #[test]
    fn verdicts_are_over_all_seeds() {
        let with_why = |finding| Finding { why: Some("slow".to_owned()), ..finding };
        let (low, high, none) = (Some(89.9), Some(90.0), None);
        for (values, verdict, excused) in [
            (&[high][..], "holds", "holds"),
            (&[low], "DOES NOT HOLD", "does not hold: slow"),
            (&[high, high], "holds with all 2 seeds", "holds with all 2 seeds"),
            (
                &[low, high, none],
                "DOES NOT HOLD with 2 of 3 seeds (3, 5)",
                "does not hold with 2 of 3 seeds (3, 5): slow",
            ),
            (&[low, low], "DOES NOT HOLD with any of 2 seeds", "does not hold with any of 2 seeds: slow"),
        ] {
            let finding = finding(values, Some(90.0), None);
            assert_eq!((finding.verdict().as_ref(), finding.holds()), (verdict, !verdict.contains("NOT")));
            assert_eq!(with_why(finding).verdict(), excused, "{values:?}");
        }
    }

    #[test]
    fn the_median_and_the_range_are_told() {
        let (a, b, c) = (Some(95.0), Some(97.0), Some(120.4));
        for (values, text) in [
            (&[a][..], "95 Gb/s"),
            (&[b, a, c], "97 Gb/s [95 to 120]"),
            (&[c, b, a, a], "95 Gb/s [95 to 120]"),
            (&[a, a], "95 Gb/s"),
            (&[None, a, b, None], "95 Gb/s [95 to 97], no data with 2 of 4 seeds"),
            (&[None, None], "no data in that time"),
        ] {
            assert_eq!(finding(values, Some(0.0), None).measured(), text, "{values:?}");
        }
        let json = finding(&[b, None, c], Some(96.0), None).json();
        let keys = ["value", "min", "max", "holds", "seeds_held", "seeds"].map(|key| json[key].clone());
        let seeds = json!([{ "seed": 3, "value": 97.0 }, { "seed": 4, "value": null }, { "seed": 5, "value": 120.4 }]);
        assert_eq!(keys, [json!(97.0), json!(97.0), json!(120.4), json!(false), json!(2), seeds]);
    }

    /// 100.4 is not shown as 100 where 100 is the bound.
    #[test]
    fn a_value_beyond_a_bound_does_not_look_as_if_it_were_within() {
        for (value, least, most, text) in [
            (100.4, None, Some(100.0), "100.4 Gb/s"),
            (100.004, None, Some(100.0), "100.004 Gb/s"),
            (99.96, Some(100.0), None, "99.96 Gb/s"),
            (100.4, None, Some(101.0), "100 Gb/s"),
            (100.5, Some(100.5), None, "100.5 Gb/s"),
        ] {
            assert_eq!(finding(&[Some(value)], least, most).measured(), text);
        }
    }
}
