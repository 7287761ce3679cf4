//! When faults begin and end.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use spindrift_srv6::Fabric;

use super::fault::LinkFault;
use super::faults::{FaultSet, Faults, Place};
use crate::toml_file::TomlFile;
use crate::units::{parse_duration, parse_offset};
use crate::usage::usage;

/// How long this sleeps before it looks for Ctrl-C again.
const NAP: Duration = Duration::from_millis(20);
/// How long before its time a change is prepared: programs take their time to start, the more so on a busy machine.
const LEAD: Duration = Duration::from_millis(200);

/// A fault of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The place as the user wrote it.
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) fault: LinkFault,
    pub(super) times: Times,
}

/// When an entry begins, after the start, and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) at: Duration,
    /// Until the schedule ends without it.
    pub(super) lasts: Option<Duration>,
    pub(super) every: Option<Duration>,
    /// How often, where it comes again; without an end if not given.
    pub(super) count: Option<u32>,
}

impl Entry {
    /// Says what is wrong, and with which of `where`, `action`, `every` and `times`.
    pub(super) fn new(
        fabric: &Fabric,
        name: &str,
        fault: LinkFault,
        times: Times,
    ) -> Result<Self, (&'static str, String)> {
        let place = Place::parse(fabric, name).map_err(|why| ("where", why))?;
        if place.faults(fabric, fault).is_empty() {
            return Err(("action", format!("nothing comes to {name} that way: \"{fault}\" changes nothing")));
        }
        times.check()?;
        Ok(Self { name: name.to_owned(), place, fault, times })
    }
}

impl Times {
    /// Says what is wrong, and with which of `every` and `times`.
    fn check(&self) -> Result<(), (&'static str, String)> {
        match (self.lasts, self.every, self.count) {
            (None, Some(_), _) => Err((
                "every",
                "a fault that comes again has to end first; say how long it lasts with `for`".to_owned(),
            )),
            (Some(lasts), Some(every), _) if lasts >= every => Err((
                "every",
                format!(
                    "a fault that lasts {lasts:?} cannot come every {every:?}; it needs a time without it"
                ),
            )),
            (_, None, Some(_)) => Err(("times", "how far apart they are is missing: `every`".to_owned())),
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
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) entry: usize,
    pub(super) begins: bool,
}

/// The events of a schedule in order.
struct Timeline<'a> {
    times: &'a [Times],
    /// How many events of each entry were.
    next: Vec<u32>,
}

impl<'a> Timeline<'a> {
    fn new(times: &'a [Times]) -> Self {
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
    fn next(&mut self) -> Option<Vec<Event>> {
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

/// What a schedule is played to.
pub(super) struct Conductor<'a> {
    /// When it began.
    pub(super) start: Instant,
    /// When it is over, after the start. Without it, when no fault is left; never if one has no end.
    pub(super) until: Option<Duration>,
    /// An error ends it at once.
    pub(super) check: &'a dyn Fn() -> Result<()>,
    /// Is told what has happened.
    pub(super) told: &'a mut dyn FnMut(&Happened),
}

/// Faults that began and ended, all at one time.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) events: Vec<Event>,
    /// When the lab began to be changed, and when that was done.
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// Brings faults about and ends them, as their times tell, until all is over. Then none of them is left.
pub(super) fn play(
    faults: &Faults<'_>,
    fabric: &Fabric,
    entries: &[Entry],
    conductor: &mut Conductor<'_>,
) -> Result<()> {
    let played = run(faults, fabric, entries, conductor);
    let healed = faults.change(|set| (0..entries.len()).for_each(|entry| set.end(&owner(entry))));
    // Why it ended first.
    played.and(healed)
}

/// Who begins and ends the faults of an entry: this process, and no other that plays a schedule.
fn owner(entry: usize) -> String {
    format!("{}.{entry}", std::process::id())
}

fn run(faults: &Faults<'_>, fabric: &Fabric, entries: &[Entry], conductor: &mut Conductor<'_>) -> Result<()> {
    let times: Vec<_> = entries.iter().map(|entry| entry.times).collect();
    let mut timeline = Timeline::new(&times);
    while let Some(events) = timeline.next() {
        let due = events.first().map_or(Duration::ZERO, |event| event.at);
        if conductor.until.is_some_and(|until| due >= until) {
            break;
        }
        conductor.wait(Some(due.saturating_sub(LEAD)))?;
        let change =
            faults.prepare(|set| events.iter().for_each(|event| apply(set, fabric, entries, event)))?;
        conductor.wait(Some(due))?;
        let from = Instant::now();
        change.apply()?;
        (conductor.told)(&Happened { events, from, to: Instant::now() });
    }
    let lasting = times.iter().any(|times| times.lasts.is_none());
    if lasting || conductor.until.is_some() { conductor.wait(conductor.until) } else { Ok(()) }
}

/// Begins or ends the faults of an entry.
pub(super) fn apply(set: &mut FaultSet, fabric: &Fabric, entries: &[Entry], event: &Event) {
    let owner = owner(event.entry);
    match entries.get(event.entry) {
        Some(entry) if event.begins => {
            begin(set, fabric, &owner, entry);
        }
        _ => set.end(&owner),
    }
}

impl Happened {
    /// A line for each fault that began or ended.
    pub(super) fn lines(&self, entries: &[Entry]) -> Vec<String> {
        let line = |event: &Event| {
            let entry = entries.get(event.entry)?;
            let what = if event.begins { "" } else { " ends" };
            Some(format!("{}: {}{what}", entry.name, entry.fault))
        };
        self.events.iter().filter_map(line).collect()
    }
}

/// Adds the fault of an entry. Returns on how many links.
pub(super) fn begin(set: &mut FaultSet, fabric: &Fabric, owner: &str, entry: &Entry) -> usize {
    let faults = entry.place.faults(fabric, entry.fault);
    for &(link, fault) in &faults {
        set.add(owner, link, fault);
    }
    faults.len()
}

impl Conductor<'_> {
    /// Waits until a time after the start, or for ever.
    fn wait(&self, until: Option<Duration>) -> Result<()> {
        loop {
            (self.check)()?;
            let left = until.map_or(NAP, |until| until.saturating_sub(self.start.elapsed()));
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    #[serde(default)]
    fault: Vec<FaultTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FaultTable {
    at: Option<String>,
    r#where: Option<String>,
    action: Option<String>,
    r#for: Option<String>,
    every: Option<String>,
    times: Option<u32>,
}

/// The entries of a schedule in a file, `[[fault]]` each.
pub(super) fn load(file: &TomlFile, fabric: &Fabric) -> Result<Vec<Entry>> {
    let schedule: Schedule = file.parse()?;
    if schedule.fault.is_empty() {
        return Err(usage(format!("{}: there is no [[fault]] in it", file.name())));
    }
    entries(file, fabric, &schedule.fault)
}

/// The entries of the tables called `fault` in a file.
pub(super) fn entries(file: &TomlFile, fabric: &Fabric, tables: &[FaultTable]) -> Result<Vec<Entry>> {
    tables.iter().enumerate().map(|(number, table)| entry(file, fabric, number, table)).collect()
}

fn entry(file: &TomlFile, fabric: &Fabric, number: usize, table: &FaultTable) -> Result<Entry> {
    // A key that is not there has no place; the table has one.
    let wrong = |key: &str, why: String| {
        let whole = format!("fault.{number}");
        let place = file.place(&format!("{whole}.{key}")).or_else(|| file.place(&whole));
        usage(format!("{}: {why}", place.unwrap_or_else(|| file.name().to_owned())))
    };
    let needed = |key: &str, value: &Option<String>| {
        value.clone().ok_or_else(|| wrong(key, format!("`{key}` is missing")))
    };
    let time = |key: &str, value: &Option<String>| {
        value.as_ref().map(|text| parse_duration(text).map_err(|why| wrong(key, why))).transpose()
    };
    let name = needed("where", &table.r#where)?;
    let fault = needed("action", &table.action)?.parse().map_err(|why| wrong("action", why))?;
    let at = parse_offset(table.at.as_deref()).map_err(|why| wrong("at", why))?;
    let (lasts, every) = (time("for", &table.r#for)?, time("every", &table.every)?);
    let times = Times { at, lasts, every, count: table.times };
    Entry::new(fabric, &name, fault, times).map_err(|(key, why)| wrong(key, why))
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
        assert_documented("[[fault]]", keys_of::<FaultTable>());
    }
}
