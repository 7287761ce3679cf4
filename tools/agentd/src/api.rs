//! The answers of the HTTP interface, beside a [`Snapshot`](crate::snapshot::Snapshot).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use spindrift_control::Watch;
use spindrift_srv6::Node;

use crate::exporter::Processes;
use crate::history::{About, Episode, Frame, History, STEP};
use crate::levels::{self, NAMES, Sums};
use crate::published::Source;
use crate::snapshot::{DenyReport, FindingReport, Link, Loss, Probes, Store};

/// For how long levels stay as they were computed.
const FRESH: Duration = Duration::from_millis(900);
/// Agents of a link that are named.
const AGENTS: usize = 16;

/// What the page shows above the links.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    version: String,
    host: String,
    time: f64,
    started: f64,
    interval_ns: u64,
    probes: Probes,
    send_error: Option<String>,
    store: Option<Store>,
    deny: Option<DenyReport>,
    tally: [u32; NAMES.len()],
    findings: Vec<FindingReport>,
}

/// The last hours.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Past {
    frames: Vec<About>,
    episodes: Vec<Episode>,
}

/// A link, as all agents see it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkAnswer {
    name: String,
    plane: u8,
    level: &'static str,
    /// The agents that probe it, at most 16 of them, and how many these are.
    agents: Vec<String>,
    agent_count: u32,
    loss_1s: Loss,
    loss_10s: Loss,
    loss_5min: Loss,
    /// As the agent itself sees it, if it probes the link.
    own: Option<Link>,
    /// Its level in each frame of the history.
    frames: Vec<u64>,
    levels: Vec<u8>,
    /// Faults of the link and of its ends.
    episodes: Vec<Episode>,
}

/// What the interface shows, and the history that it keeps.
pub(crate) struct App {
    pub(crate) source: Source,
    pub(crate) processes: Processes,
    history: Mutex<History>,
    current: Mutex<Option<(Instant, Arc<Frame>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App {
    pub(crate) fn new(mut source: Source) -> Self {
        let history = Mutex::new(std::mem::take(&mut source.history));
        let watch = std::mem::replace(&mut source.processes, Watch::all(Vec::new()));
        Self { source, processes: Processes::new(watch), history, current: Mutex::default() }
    }

    fn levels(&self) -> Option<Vec<u8>> {
        Some(levels::of_links(&self.source.layout, &self.source.view()?))
    }

    /// Adds the present to the history; nothing before the agent's first report.
    pub(crate) fn record(&self) {
        let time = self.source.published.get().time;
        if let Some(levels) = self.levels() {
            lock(&self.history).push(time, &levels);
        }
    }

    /// The levels of now, which are computed for whoever asks, at most about once a second.
    pub(crate) fn current(&self) -> Arc<Frame> {
        let mut current = lock(&self.current);
        if let Some((at, frame)) = &*current
            && at.elapsed() < FRESH
        {
            return Arc::clone(frame);
        }
        let time = self.source.published.get().time;
        let levels =
            self.levels().unwrap_or_else(|| vec![levels::UNKNOWN; self.source.layout.links as usize]);
        let frame = Arc::new(Frame::new(About { time, seconds: STEP, ..About::default() }, &levels));
        *current = Some((Instant::now(), Arc::clone(&frame)));
        frame
    }

    /// A frame of the history, as the interface sends it.
    pub(crate) fn frame(&self, id: u64) -> Option<Vec<u8>> {
        lock(&self.history).frame(id).map(Frame::to_bytes)
    }

    pub(crate) fn summary(&self) -> Summary {
        let known = self.source.published.get();
        let known = (*known).clone();
        Summary {
            version: known.version,
            host: known.host,
            time: known.time,
            started: known.started,
            interval_ns: known.interval_ns,
            probes: known.probes,
            send_error: known.send_error,
            store: known.store,
            deny: known.deny,
            tally: self.current().about().tally,
            findings: known.findings,
        }
    }

    pub(crate) fn past(&self) -> Past {
        let frames = lock(&self.history).frames().map(Frame::about).collect();
        Past { frames, episodes: self.source.published.episodes() }
    }

    /// What is known of a link, which is named in either direction.
    pub(crate) fn link(&self, name: &str) -> Option<LinkAnswer> {
        let Source { fabric, layout, published, .. } = &self.source;
        let (one, other) = name.split_once(':')?;
        let (one, other) = (fabric.node(one)?, fabric.node(other)?);
        let (lower, upper) = (one.min(other), one.max(other));
        let number = layout.number((lower, upper))?;
        let (lower, upper) = (fabric.name(lower), fabric.name(upper));
        let (sums, level, agents) = match self.source.view() {
            Some(view) => levels::of_link(layout, &view, number),
            None => (Sums::default(), levels::UNKNOWN, Vec::new()),
        };
        let [loss_1s, loss_10s, loss_5min] = sums.map(levels::Sum::shown);
        let known = published.get();
        let own = known.links.iter().find(|link| link.lower == lower && link.upper == upper);
        let name = format!("{lower}:{upper}");
        let is_of_link = |episode: &Episode| {
            episode.finding.components.iter().any(|part| [&name, &lower, &upper].contains(&&part.name))
        };
        let history = lock(&self.history);
        Some(LinkAnswer {
            plane: layout.link(number)?.1.plane()?,
            level: NAMES.get(usize::from(level)).copied().unwrap_or_default(),
            agents: agents.iter().take(AGENTS).map(|host| fabric.name(Node::Host(*host))).collect(),
            agent_count: agents.len() as u32,
            loss_1s,
            loss_10s,
            loss_5min,
            own: own.cloned(),
            frames: history.frames().map(|frame| frame.about().id).collect(),
            levels: history.of_link(number),
            episodes: published.episodes().into_iter().filter(is_of_link).collect(),
            name,
        })
    }
}
