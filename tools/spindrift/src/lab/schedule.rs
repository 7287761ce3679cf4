//! Schedules of faults, and their execution.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use spindrift_srv6::Fabric;

use super::fault::LinkFault;
use super::faults::{FaultSet, Faults, Place};
use crate::times::{Event, FaultTable, Timeline, Times};
use crate::toml_file::TomlFile;
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
            return Err((
                "action",
                format!("{name} has no link in that direction: \"{fault}\" changes nothing"),
            ));
        }
        times.check()?;
        Ok(Self { name: name.to_owned(), place, fault, times })
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
    let whole = format!("fault.{number}");
    let wrong = |key: &str, why: String| file.wrong(&whole, key, &why);
    let (place, action, times) = table.read(file, &whole)?;
    let fault = action.parse().map_err(|why| wrong("action", why))?;
    Entry::new(fabric, place, fault, times).map_err(|(key, why)| wrong(key, why))
}
