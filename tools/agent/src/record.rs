//! What an agent knows about each link that it covers: loss, round-trip times, and when the link went down and up.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use spindrift_srv6::{Link, Node};

use crate::ring::Ring;
use crate::{Outcome, Plan, ProbeEnd};

/// Probes whose end is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Probes that came back or were lost.
    pub sent: u32,
    /// Those that were lost.
    pub lost: u32,
}

/// The time before now that a [`Count`] is about, by when the probes were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Window {
    /// 50 ms, in steps of 10 ms: for links that went down.
    Fast,
    /// 1 s, in steps of 10 ms.
    Second,
    /// The current second and the nine before it.
    TenSeconds,
    /// The current second and the 299 before it.
    FiveMinutes,
}

/// What an agent tells the others about its paths, and what faults are located from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of the agent's host.
    pub host: u16,
    /// For how long the agent has probed, in nanoseconds.
    pub running_ns: u64,
    /// The paths.
    pub paths: Vec<PathReport>,
}

/// The counts of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathReport {
    /// Where its probes turn.
    pub top: Node,
    /// For each of [`Window::ALL`].
    pub counts: [Count; Window::ALL.len()],
}

/// Whether a link forwards, as far as its probes show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// Too few probes so far.
    #[default]
    Unknown,
    /// Probes come back.
    Up,
    /// No probe comes back, and those that turn below the link do.
    Down,
}

/// A link went down or up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// When the first of the probes was sent that show it, in nanoseconds.
    pub at_ns: u64,
    /// Whether it is up since then.
    pub up: bool,
}

/// Round-trip times of the paths that turn at a link's upper end, in nanoseconds with two significant digits or to 64 ns, of the last 10 to 20 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Round trips that were measured.
    pub samples: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

/// What is known about one link.
///
/// A probe crosses the link in both directions and turns at its upper end. So its loss is that of both directions together, and an agent
/// that sends such probes alone cannot tell which direction lost one.
///
/// It goes down when ten probes in a row are lost, by when they were sent, and up when ten in a row come back. An outage that is over when its
/// losses come to light, after the timeout of probes, shows as loss alone.
#[derive(Clone, Debug)]
pub struct LinkRecord {
    link: Link,
    below: Option<usize>,
    fine: Ring<FINE>,
    coarse: Ring<COARSE>,
    /// Round trips of the current ten seconds, and of those before.
    rtt: [Histogram<u32>; 2],
    rtt_period: u64,
    state: LinkState,
    losses: Run,
    returns: Run,
    last_loss_ns: u64,
    last_return_ns: u64,
    transitions: VecDeque<Transition>,
    flaps: u64,
}

/// Probes in a row, by the time when they were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    len: u32,
    start_ns: u64,
}

/// The records of all links that an agent covers. All memory is there from the start: about 24 KiB for each link.
#[derive(Clone, Debug)]
pub struct Recorder {
    host: u16,
    timeout_ns: u64,
    start_ns: u64,
    links: Vec<LinkRecord>,
    tops: Vec<Node>,
}

/// A record cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Timeouts would come after their window.
    #[error(
        "timeout_ns = {0}: windows end so long before now, and the records hold {MAX_TIMEOUT_NS} ns at most"
    )]
    Timeout(u64),
    /// The histogram library refuses the bounds of round-trip times.
    #[error("no histogram of round-trip times can be made")]
    Histogram,
}

/// Buckets of 10 ms: those of a second and of the longest timeout.
const FINE: usize = 128;
const FINE_NS: u64 = 10_000_000;
/// Buckets of 1 s: those of five minutes, and the second after them.
const COARSE: usize = 302;
const COARSE_NS: u64 = 1_000_000_000;
const MAX_TIMEOUT_NS: u64 = 250_000_000;
/// Probes in a row after which a link is down, or up.
const ROW: u32 = 10;
/// Transitions that are kept.
const TRANSITIONS: usize = 32;
const RTT_PERIOD_NS: u64 = 10_000_000_000;
/// Shorter round trips count as this long, and longer ones as the other: a probe of a second is lost.
const RTT_NS: (u64, u64) = (100, 2_000_000_000);

impl Window {
    /// All windows, the shortest first.
    pub const ALL: [Self; 4] = [Self::Fast, Self::Second, Self::TenSeconds, Self::FiveMinutes];

    /// Its length in nanoseconds.
    pub const fn span_ns(self) -> u64 {
        match self {
            Self::Fast => 50_000_000,
            Self::Second => 1_000_000_000,
            Self::TenSeconds => 10_000_000_000,
            Self::FiveMinutes => 300_000_000_000,
        }
    }
}

impl Count {
    /// The share of probes that were lost, 0 to 1; 0 without probes.
    pub fn loss(self) -> f64 {
        if self.sent == 0 { 0.0 } else { f64::from(self.lost) / f64::from(self.sent) }
    }

    /// Both counts together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { sent: self.sent.saturating_add(other.sent), lost: self.lost.saturating_add(other.lost) }
    }
}

impl PathReport {
    /// The counts of a window.
    pub fn count(&self, window: Window) -> Count {
        let place = Window::ALL.iter().position(|&other| other == window);
        place.and_then(|at| self.counts.get(at)).copied().unwrap_or_default()
    }
}

impl LinkRecord {
    fn new(link: Link, below: Option<usize>) -> Result<Self, RecordError> {
        let histogram =
            || Histogram::new_with_bounds(RTT_NS.0, RTT_NS.1, 2).map_err(|_| RecordError::Histogram);
        Ok(Self {
            link,
            below,
            fine: Ring::new(FINE_NS),
            coarse: Ring::new(COARSE_NS),
            rtt: [histogram()?, histogram()?],
            rtt_period: 0,
            state: LinkState::Unknown,
            losses: Run::default(),
            returns: Run::default(),
            last_loss_ns: 0,
            last_return_ns: 0,
            transitions: VecDeque::with_capacity(TRANSITIONS),
            flaps: 0,
        })
    }

    /// The link.
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Whether it forwards.
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// The latest transitions, at most 32, the oldest first. The first time that a link is up is one.
    pub fn transitions(&self) -> impl Iterator<Item = Transition> + '_ {
        self.transitions.iter().copied()
    }

    /// How often it went down.
    pub const fn flaps(&self) -> u64 {
        self.flaps
    }

    fn count(&self, window: Window, end_ns: u64) -> Count {
        let (fine, coarse) = (end_ns / FINE_NS, end_ns / COARSE_NS);
        let span = window.span_ns();
        match window {
            // The bucket of `end_ns` is not full yet.
            Window::Fast | Window::Second => self.fine.sum(fine.saturating_sub(span / FINE_NS), fine),
            Window::TenSeconds | Window::FiveMinutes => {
                self.coarse.sum((coarse + 1).saturating_sub(span / COARSE_NS), coarse + 1)
            }
        }
    }

    fn count_end(&mut self, sent_ns: u64, lost: bool) {
        self.fine.add(sent_ns, lost);
        self.coarse.add(sent_ns, lost);
    }

    fn on_rtt(&mut self, sent_ns: u64, rtt_ns: u64) {
        let period = sent_ns / RTT_PERIOD_NS;
        if period > self.rtt_period {
            let follows = period == self.rtt_period + 1;
            let [current, before] = &mut self.rtt;
            std::mem::swap(current, before);
            current.reset();
            if !follows {
                before.reset();
            }
            self.rtt_period = period;
        }
        let [current, _] = &mut self.rtt;
        current.saturating_record(rtt_ns.max(RTT_NS.0));
    }

    /// Round-trip times as of now.
    pub fn round_trips(&self, now_ns: u64) -> RoundTrips {
        let age = (now_ns / RTT_PERIOD_NS).saturating_sub(self.rtt_period);
        let [current, before] = &self.rtt;
        let mut all = current.clone();
        match age {
            0 => drop(all.add(before)),
            1 => {}
            _ => all.reset(),
        }
        RoundTrips {
            samples: all.len(),
            p50_ns: all.value_at_quantile(0.5),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            max_ns: all.max(),
        }
    }

    /// A probe that was sent then came back. Returns come in while losses of earlier probes are not known yet, so rows are counted by the times
    /// when the probes were sent.
    fn on_return(&mut self, sent_ns: u64) {
        self.last_return_ns = self.last_return_ns.max(sent_ns);
        if self.returns.len == 0 {
            self.returns.start_ns = sent_ns;
        }
        self.returns.len = self.returns.len.saturating_add(1);
        if self.returns.len >= ROW && self.state != LinkState::Up {
            self.set(self.returns.start_ns, true);
        }
    }

    /// A probe that was sent then was lost. `below_ns` is when the last probe was sent that came back from below the link.
    fn on_loss(&mut self, sent_ns: u64, below_ns: Option<u64>) {
        if sent_ns >= self.returns.start_ns {
            self.returns.len = 0;
        }
        if self.losses.len == 0 || self.last_return_ns > self.last_loss_ns {
            self.losses = Run { len: 0, start_ns: sent_ns };
        }
        self.losses.len = self.losses.len.saturating_add(1);
        self.last_loss_ns = sent_ns;
        let reached = below_ns.is_none_or(|below_ns| below_ns > self.losses.start_ns);
        if self.losses.len >= ROW && reached && self.state != LinkState::Down {
            self.set(self.losses.start_ns, false);
        }
    }

    fn set(&mut self, at_ns: u64, up: bool) {
        self.state = if up { LinkState::Up } else { LinkState::Down };
        self.flaps += u64::from(!up);
        if self.transitions.len() == TRANSITIONS {
            self.transitions.pop_front();
        }
        self.transitions.push_back(Transition { at_ns, up });
    }
}

impl Recorder {
    /// The records of a plan's links, with nothing in them: probing starts now.
    ///
    /// # Errors
    /// If the timeout of probes is longer than 250 ms.
    pub fn new(plan: &Plan, timeout_ns: u64, now_ns: u64) -> Result<Self, RecordError> {
        if timeout_ns > MAX_TIMEOUT_NS {
            return Err(RecordError::Timeout(timeout_ns));
        }
        let highest =
            |(number, route): (usize, &crate::Route)| Some((route.links().last()?, plan.below(number)));
        let links = plan.routes().enumerate().filter_map(highest);
        let links = links.map(|(link, below)| LinkRecord::new(link, below)).collect::<Result<_, _>>()?;
        let tops = plan.routes().map(|route| route.path.top).collect();
        Ok(Self { host: plan.host(), timeout_ns, start_ns: now_ns, links, tops })
    }

    /// The records for another plan of the same host: those of links that stay, and new ones.
    ///
    /// # Errors
    /// See [`RecordError::Histogram`].
    pub(crate) fn replanned(&self, before: &Plan, plan: &Plan) -> Result<Self, RecordError> {
        let new = Self::new(plan, self.timeout_ns, self.start_ns)?;
        let keep = |(number, (route, new)): (usize, (&crate::Route, LinkRecord))| {
            let old = before.number(route.path).and_then(|old| self.links.get(old));
            old.map_or(new, |old| LinkRecord { below: plan.below(number), ..old.clone() })
        };
        let links = plan.routes().zip(new.links).enumerate().map(keep).collect();
        Ok(Self { links, ..new })
    }

    /// Takes note of how a probe ended.
    pub fn record(&mut self, outcome: &Outcome) {
        let below = self.links.get(outcome.path).and_then(|link| link.below);
        let below_ns = below.and_then(|below| self.links.get(below)).map(|below| below.last_return_ns);
        let Some(link) = self.links.get_mut(outcome.path) else { return };
        link.count_end(outcome.sent_ns, outcome.end == ProbeEnd::Lost);
        match outcome.end {
            ProbeEnd::Returned { rtt_ns } => {
                link.on_return(outcome.sent_ns);
                if let Some(rtt_ns) = rtt_ns {
                    link.on_rtt(outcome.sent_ns, rtt_ns);
                }
            }
            ProbeEnd::Lost => link.on_loss(outcome.sent_ns, below_ns),
        }
    }

    /// The records, by the numbers of paths in the plan.
    pub fn links(&self) -> &[LinkRecord] {
        &self.links
    }

    /// The probes of a path, as of now: those whose timeout is over. `None` for a path that there is not.
    pub fn count(&self, path: usize, window: Window, now_ns: u64) -> Option<Count> {
        Some(self.links.get(path)?.count(window, now_ns.saturating_sub(self.timeout_ns)))
    }

    /// The loss of a path's highest link alone, 0 to 1: of the probes that reached it, the share that did not come back, if those to the
    /// node below show what the links below it lose. For display; [`Locator`](crate::Locator) weighs the evidence.
    pub fn net_loss(&self, path: usize, window: Window, now_ns: u64) -> Option<f64> {
        let loss = self.count(path, window, now_ns)?.loss();
        let below = self.links.get(path)?.below.and_then(|below| self.count(below, window, now_ns));
        let reach = 1.0 - below.map_or(0.0, Count::loss);
        Some(if reach > 0.0 { (1.0 - (1.0 - loss) / reach).clamp(0.0, 1.0) } else { 0.0 })
    }

    /// What the agent reports as of now.
    pub fn report(&self, now_ns: u64) -> Report {
        let end_ns = now_ns.saturating_sub(self.timeout_ns);
        let paths = self.tops.iter().zip(&self.links).map(|(&top, link)| PathReport {
            top,
            counts: Window::ALL.map(|window| link.count(window, end_ns)),
        });
        Report { host: self.host, running_ns: end_ns.saturating_sub(self.start_ns), paths: paths.collect() }
    }
}
