//! Times of faults: beginning, duration, repetitions.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use crate::toml_file::TomlFile;
use crate::units::{parse_duration, parse_offset};

/// When an entry begins, after the start, and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) at: Duration,
    /// Until the schedule ends without it.
    pub(crate) lasts: Option<Duration>,
    pub(crate) every: Option<Duration>,
    /// How often, where it comes again; without an end if not given.
    pub(crate) count: Option<u32>,
}

impl Times {
    /// Says what is wrong, and with which of `every` and `times`.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        match (self.lasts, self.every, self.count) {
            (None, Some(_), _) => {
                Err(("every", "a repeated fault must end before it repeats; add `for`".to_owned()))
            }
            (Some(lasts), Some(every), _) if lasts >= every => Err((
                "every",
                format!(
                    "a fault of {lasts:?} cannot repeat every {every:?}; `every` must be longer than `for`"
                ),
            )),
            (_, None, Some(_)) => {
                Err(("times", "`times` needs the period of the repetitions, `every`".to_owned()))
            }
            (_, _, Some(0)) => Err(("times", "write 1 or more".to_owned())),
            _ => Ok(()),
        }
    }

    /// The time of an event: beginning and end of the first round, of the second, and so on.
    fn event(&self, number: u32) -> Option<Duration> {
        let (round, ends) = (number / 2, number % 2 == 1);
        let rounds = if self.every.is_some() { self.count.unwrap_or(u32::MAX / 2) } else { 1 };
        if round >= rounds {
            return None;
        }
        let begin = self.at.checked_add(self.every.unwrap_or_default().checked_mul(round)?)?;
        if ends { begin.checked_add(self.lasts?) } else { Some(begin) }
    }
}

/// Something that happens to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) entry: usize,
    pub(crate) begins: bool,
}

/// The events of a schedule in order.
pub(crate) struct Timeline<'a> {
    times: &'a [Times],
    /// How many events of each entry were.
    next: Vec<u32>,
}

impl<'a> Timeline<'a> {
    pub(crate) fn new(times: &'a [Times]) -> Self {
        Self { times, next: vec![0; times.len()] }
    }

    fn peek(&self) -> Option<Event> {
        let event = |(entry, (times, &number)): (usize, (&Times, &u32))| {
            Some(Event { at: times.event(number)?, entry, begins: number % 2 == 0 })
        };
        let all = self.times.iter().zip(&self.next).enumerate().filter_map(event);
        // What ends makes room for what begins.
        all.min_by_key(|event| (event.at, event.begins, event.entry))
    }

    /// The events that come next, all of one time.
    pub(crate) fn next(&mut self) -> Option<Vec<Event>> {
        let first = self.peek()?;
        let mut events = Vec::new();
        while let Some(event) = self.peek().filter(|event| event.at == first.at) {
            if let Some(number) = self.next.get_mut(event.entry) {
                *number += 1;
            }
            events.push(event);
        }
        Some(events)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FaultTable {
    at: Option<String>,
    r#where: Option<String>,
    action: Option<String>,
    r#for: Option<String>,
    every: Option<String>,
    times: Option<u32>,
}

impl FaultTable {
    /// Where it is, what happens, and when, of a table of this name.
    pub(crate) fn read(&self, file: &TomlFile, whole: &str) -> Result<(&str, &str, Times)> {
        let place = file.needed(whole, "where", self.r#where.as_deref())?;
        let action = file.needed(whole, "action", self.action.as_deref())?;
        let time = |key: &str, value: Option<&String>| {
            value.map(|text| parse_duration(text).map_err(|why| file.wrong(whole, key, &why))).transpose()
        };
        let at = parse_offset(self.at.as_deref()).map_err(|why| file.wrong(whole, "at", &why))?;
        let (lasts, every) = (time("for", self.r#for.as_ref())?, time("every", self.every.as_ref())?);
        let times = Times { at, lasts, every, count: self.times };
        Ok((place, action, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn timeline(times: &[Times], most: usize) -> Vec<(u64, Vec<(usize, bool)>)> {
        let mut timeline = Timeline::new(times);
        let next = || {
            let events = timeline.next()?;
            let at = events[0].at;
            assert!(events.iter().all(|event| event.at == at));
            Some((at.as_secs(), events.iter().map(|event| (event.entry, event.begins)).collect()))
        };
        std::iter::from_fn(next).take(most).collect()
    }

    #[test]
    fn events_come_in_order() {
        let once = Times { at: s(2), lasts: Some(s(3)), ..Times::default() };
        let lasting = Times { at: s(5), ..Times::default() };
        let flapping = Times { lasts: Some(s(2)), every: Some(s(5)), count: Some(2), ..Times::default() };
        assert_eq!(
            timeline(&[lasting, once, flapping], 99),
            [
                (0, vec![(2, true)]),
                (2, vec![(2, false), (1, true)]),
                (5, vec![(1, false), (0, true), (2, true)]),
                (7, vec![(2, false)]),
            ]
        );
        assert_eq!(timeline(&[], 99), []);
    }

    #[test]
    fn flapping_has_no_end_unless_it_is_counted() {
        let flapping = Times { at: s(1), lasts: Some(s(1)), every: Some(s(10)), count: None };
        let events = timeline(&[flapping], 2001);
        assert_eq!(events[2000], (10_001, vec![(0, true)]));
        let last = Times { count: Some(3), ..flapping };
        assert_eq!(timeline(&[last], 99).last(), Some(&(22, vec![(0, false)])));
    }

    #[test]
    fn times_fit_together() {
        let check = |lasts, every, count| {
            let times = Times { at: s(0), lasts, every, count };
            times.check().map_err(|(key, _)| key)
        };
        for (lasts, every, count, result) in [
            (None, None, None, Ok(())),
            (Some(s(1)), None, None, Ok(())),
            (Some(s(1)), Some(s(2)), None, Ok(())),
            (Some(s(1)), Some(s(2)), Some(1), Ok(())),
            (None, Some(s(2)), None, Err("every")),
            (Some(s(2)), Some(s(2)), None, Err("every")),
            (Some(s(1)), None, Some(3), Err("times")),
            (Some(s(1)), Some(s(2)), Some(0), Err("times")),
        ] {
            assert_eq!(check(lasts, every, count), result);
        }
    }

    /// The table of `docs/cli.md` has each key.
    #[test]
    fn every_key_is_documented() {
        assert_documented("#### Schedules", "[[fault]]", keys_of::<FaultTable>());
    }
}
