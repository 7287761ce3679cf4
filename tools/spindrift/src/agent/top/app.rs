//! What is shown, and what keys do.

use std::cmp::Ordering;
use std::time::Duration;

use spindrift_agentd::snapshot::{DeniedReport, Link, Snapshot};
use spindrift_control::Seen;

use super::processes::{Process, processes};
use crate::agent::show;

/// A key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// What the table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Links,
    Findings,
    Denied,
    Processes,
}

impl View {
    pub(super) const ALL: [(Self, char, &str); 4] = [
        (Self::Links, '1', "Links"),
        (Self::Findings, '2', "Findings"),
        (Self::Denied, '3', "Denied"),
        (Self::Processes, '4', "Processes"),
    ];

    fn next(self) -> Self {
        match self {
            Self::Links => Self::Findings,
            Self::Findings => Self::Denied,
            Self::Denied => Self::Processes,
            Self::Processes => Self::Links,
        }
    }
}

/// By what links are ordered, the worst first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    Loss1s,
    #[default]
    Loss10s,
    Loss5min,
    RttP50,
    RttP99,
    Flaps,
    Name,
}

impl Sort {
    const ORDER: [(Self, &str); 7] = [
        (Self::Loss10s, "loss 10s"),
        (Self::Loss5min, "loss 5min"),
        (Self::Loss1s, "loss 1s"),
        (Self::RttP50, "rtt p50"),
        (Self::RttP99, "rtt p99"),
        (Self::Flaps, "flaps"),
        (Self::Name, "name"),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ORDER.iter().find(|(sort, _)| *sort == self).map_or("", |(_, name)| name)
    }

    fn next(self) -> Self {
        let place = Self::ORDER.iter().position(|(sort, _)| *sort == self).unwrap_or_default();
        Self::ORDER.get((place + 1) % Self::ORDER.len()).map_or(self, |(sort, _)| *sort)
    }

    fn compare(self, a: &Link, b: &Link) -> Ordering {
        match self {
            Self::Loss1s => b.loss_1s.net.total_cmp(&a.loss_1s.net),
            Self::Loss10s => b.loss_10s.net.total_cmp(&a.loss_10s.net),
            Self::Loss5min => b.loss_5min.net.total_cmp(&a.loss_5min.net),
            Self::RttP50 => b.rtt.p50_ns.cmp(&a.rtt.p50_ns),
            Self::RttP99 => b.rtt.p99_ns.cmp(&a.rtt.p99_ns),
            Self::Flaps => b.flaps.cmp(&a.flaps),
            Self::Name => name(a).cmp(&name(b)),
        }
    }
}

/// What is in front of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Overlay {
    #[default]
    None,
    Help,
    /// The explanation of a component, from this line on.
    Explain {
        component: String,
        from: usize,
    },
}

/// The health of a link. Each has a mark, so that nothing depends on colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Down,
    /// It is at fault, or loses as much.
    Lossy,
    /// It loses less.
    Trace,
    Denied,
    Unknown,
    Fine,
}

impl Health {
    pub(super) const fn mark(self) -> char {
        match self {
            Self::Down => 'X',
            Self::Lossy => '!',
            Self::Trace => '~',
            Self::Denied => 'd',
            Self::Unknown => '?',
            Self::Fine => ' ',
        }
    }
}

/// Less is no fault by itself: the limit of a host's link.
const LOSSY: f64 = 0.01;

pub(super) fn name(link: &Link) -> String {
    format!("{}:{}", link.lower, link.upper)
}

/// Whether an entry of the deny list concerns a link: itself, a switch at its end, or the plane of the host's own link.
pub(super) fn is_denied(link: &Link, entry: &DeniedReport, host: &str) -> bool {
    let Link { lower, upper, plane, .. } = link;
    let is = |name: String| entry.component == name;
    is(format!("link {lower}:{upper}"))
        || is(format!("switch {lower}"))
        || is(format!("switch {upper}"))
        || (lower == host && is(format!("plane {plane} of this host")))
}

/// What the agent has said.
#[derive(Debug)]
pub(super) enum News {
    /// All that it knows, or why it is not known.
    Status(Result<Box<Snapshot>, String>),
    /// The counters of the processes of its host.
    Processes(Seen),
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct App {
    /// Where the agent is.
    pub(super) agent: String,
    pub(super) known: Option<Snapshot>,
    pub(super) processes: Vec<Process>,
    seen: Option<(Seen, Duration)>,
    /// Why the agent is not reached, if so.
    pub(super) error: Option<String>,
    /// When the agent was last heard, and the time now.
    heard: Duration,
    now: Duration,
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// What is typed, while a filter is.
    pub(super) typed: Option<String>,
    pub(super) paused: bool,
    pub(super) overlay: Overlay,
    /// The link that is selected; without one, the first.
    selected: Option<String>,
    /// The row that is selected in other views.
    place: usize,
    pub(super) quit: bool,
}

impl App {
    pub(super) fn new(agent: String) -> Self {
        Self { agent, ..Self::default() }
    }

    /// It is so late.
    pub(super) fn tick(&mut self, now: Duration) {
        self.now = now;
    }

    /// How old what is shown is.
    pub(super) fn age(&self) -> Duration {
        self.now.saturating_sub(self.heard)
    }

    /// The agent has said something. While it is paused, what is shown stays.
    pub(super) fn update(&mut self, news: News) {
        match news {
            News::Status(Err(error)) => self.error = Some(error),
            News::Status(Ok(known)) => {
                self.error = None;
                if !self.paused {
                    self.known = Some(*known);
                    self.heard = self.now;
                }
            }
            News::Processes(seen) if !self.paused => {
                let before = self.seen.as_ref().map(|(seen, at)| (seen, self.now.saturating_sub(*at)));
                self.processes = processes(&seen, before);
                self.seen = Some((seen, self.now));
            }
            News::Processes(_) => {}
        }
    }

    /// What is not known of processes, one reason for each.
    pub(super) fn unseen(&self) -> Vec<String> {
        let Some((seen, _)) = &self.seen else { return Vec::new() };
        let silent = seen.silent.iter().map(|process| format!("process {process} does not reply"));
        let omitted = (seen.omitted > 0).then(|| format!("{} more contexts were not asked", seen.omitted));
        silent.chain(seen.errors.iter().cloned()).chain(omitted).collect()
    }

    pub(super) fn denied(&self) -> &[DeniedReport] {
        let deny = self.known.as_ref().and_then(|known| known.deny.as_ref());
        deny.map_or(&[], |deny| &deny.denied)
    }

    pub(super) fn health(&self, link: &Link) -> Health {
        let Some(known) = &self.known else { return Health::Unknown };
        let is_at_fault = || {
            let mut parts = known.findings.iter().flat_map(|finding| &finding.components);
            parts.any(|part| show::is_called(part, &name(link)))
        };
        match link.state.as_str() {
            "down" => Health::Down,
            _ if link.loss_10s.net >= LOSSY || is_at_fault() => Health::Lossy,
            _ if self.denied().iter().any(|entry| is_denied(link, entry, &known.host)) => Health::Denied,
            "up" if link.loss_10s.net > 0.0 => Health::Trace,
            "up" => Health::Fine,
            _ => Health::Unknown,
        }
    }

    fn matches(&self, text: &str) -> bool {
        let wanted = self.typed.as_ref().unwrap_or(&self.filter);
        text.to_lowercase().contains(&wanted.to_lowercase())
    }

    /// The links that are shown, in order.
    pub(super) fn links(&self) -> Vec<&Link> {
        let all = self.known.iter().flat_map(|known| &known.links);
        let mut links: Vec<_> = all.filter(|link| self.matches(&name(link))).collect();
        links.sort_by(|a, b| self.sort.compare(a, b));
        if self.reversed {
            links.reverse();
        }
        links
    }

    /// The processes that are shown: those that send and receive most come first.
    pub(super) fn shown_processes(&self) -> Vec<&Process> {
        let mut shown: Vec<_> =
            self.processes.iter().filter(|process| self.matches(&process.program)).collect();
        let rate =
            |process: &Process| process.sent_bps.unwrap_or_default() + process.placed_bps.unwrap_or_default();
        shown.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
        if self.reversed {
            shown.reverse();
        }
        shown
    }

    /// How many rows a view has.
    pub(super) fn count(&self, view: View) -> usize {
        match view {
            View::Links => self.links().len(),
            View::Findings => self.known.as_ref().map_or(0, |known| known.findings.len()),
            View::Denied => self.denied().len(),
            View::Processes => self.shown_processes().len(),
        }
    }

    /// The row that is selected.
    pub(super) fn row(&self) -> usize {
        let last = self.count(self.view).saturating_sub(1);
        if self.view == View::Links {
            let links = self.links();
            let is = |link: &&Link| Some(name(link)) == self.selected;
            return links.iter().position(is).unwrap_or_default();
        }
        self.place.min(last)
    }

    fn select(&mut self, row: usize) {
        let row = row.min(self.count(self.view).saturating_sub(1));
        if self.view == View::Links {
            // The first row stays the first, whichever link that is.
            self.selected = self.links().get(row).filter(|_| row > 0).map(|link| name(link));
        }
        self.place = row;
    }

    /// The component that is selected, if there is one.
    fn component(&self) -> Option<String> {
        match self.view {
            View::Links => self.links().get(self.row()).map(|link| name(link)),
            View::Findings => {
                let finding = self.known.as_ref()?.findings.get(self.row())?;
                finding.components.first().map(|part| part.name.clone())
            }
            View::Denied => {
                let entry = self.denied().get(self.row())?;
                self.denied_component(entry)
            }
            View::Processes => None,
        }
    }

    /// What an entry of the deny list is about; of a plane of the host, the host's link.
    fn denied_component(&self, entry: &DeniedReport) -> Option<String> {
        let known = self.known.as_ref()?;
        let is_own = |link: &&Link| link.lower == known.host && is_denied(link, entry, &known.host);
        let own = known.links.iter().find(is_own).map(name);
        own.or_else(|| entry.component.split_once(' ').map(|(_, name)| name.to_owned()))
    }

    /// The lines of an explanation.
    pub(super) fn explanation(&self, component: &str) -> Vec<String> {
        let known = self.known.as_ref();
        known.and_then(|known| show::explanation(known, component)).unwrap_or_else(|| {
            vec![format!("The agent probes no component {component}, so nothing more is known of it.")]
        })
    }

    /// A key was pressed; a page has so many rows.
    pub(super) fn press(&mut self, key: Key, page: usize) {
        if self.typed.is_some() {
            self.type_filter(key);
        } else if self.overlay == Overlay::None {
            self.press_in_table(key, page);
        } else {
            self.press_in_overlay(key, page);
        }
    }

    fn type_filter(&mut self, key: Key) {
        let typed = self.typed.get_or_insert_default();
        match key {
            Key::Char(letter) => typed.push(letter),
            Key::Backspace => _ = typed.pop(),
            Key::Enter => self.filter = self.typed.take().unwrap_or_default(),
            Key::Escape => self.typed = None,
            _ => {}
        }
    }

    fn press_in_overlay(&mut self, key: Key, page: usize) {
        match key {
            Key::Escape | Key::Enter | Key::Char('q' | '?' | 'h') => self.overlay = Overlay::None,
            _ => {}
        }
        if let Overlay::Explain { component, from } = &self.overlay {
            let last = self.explanation(component).len().saturating_sub(1);
            let from = moved(key, *from, page, last);
            self.overlay = Overlay::Explain { component: component.clone(), from };
        }
    }

    fn press_in_table(&mut self, key: Key, page: usize) {
        match key {
            Key::Char('q') => self.quit = true,
            Key::Char('?' | 'h') => self.overlay = Overlay::Help,
            Key::Char('p' | ' ') => self.paused = !self.paused,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('/') => self.typed = Some(self.filter.clone()),
            Key::Escape => self.filter.clear(),
            Key::Tab => self.show(self.view.next()),
            Key::Char(digit @ '1'..='4') => {
                let view = View::ALL.iter().find(|(_, key, _)| *key == digit);
                self.show(view.map_or(self.view, |(view, ..)| *view));
            }
            Key::Enter => {
                if let Some(component) = self.component() {
                    self.overlay = Overlay::Explain { component, from: 0 };
                }
            }
            _ => {
                let last = self.count(self.view).saturating_sub(1);
                self.select(moved(key, self.row(), page, last));
            }
        }
    }

    fn show(&mut self, view: View) {
        (self.view, self.place) = (view, 0);
    }
}

/// Where a key leads from a row.
fn moved(key: Key, from: usize, page: usize, last: usize) -> usize {
    let to = match key {
        Key::Up | Key::Char('k') => from.saturating_sub(1),
        Key::Down | Key::Char('j') => from + 1,
        Key::PageUp => from.saturating_sub(page),
        Key::PageDown => from + page,
        Key::Home => 0,
        Key::End => last,
        _ => from,
    };
    to.min(last)
}
