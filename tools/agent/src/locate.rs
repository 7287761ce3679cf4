//! Which component is at fault: from the loss of all paths to the link, the switch or the NIC that explains it.
//!
//! Probes of all agents that report are weighed together ([`View`]); with its own report alone an agent still tells its host link from the
//! links above (MRC paper, section 3: if T0 probes show no problem but T1 probes do, it is the T0-T1 link). The rules:
//!
//! - The smallest set of components is named that explains the loss of all paths, with the loss of each (a maximum-likelihood fit
//!   with a penalty for each component). Loss that all paths of a host share is its host link's, and is taken off what the
//!   paths above show, so congestion there accuses no link above.
//! - Three windows are judged separately: 50 ms of probes show a component that loses most packets, 10 s one that loses 1 %.
//! - A component is accused if enough probes were lost, its loss is above the limit of the window by [`LocateSettings::certainty`], and no other
//!   component explains the loss nearly as well. No path over it may have lost clearly less than it should have.
//! - Components that explain the loss equally well are named together: those that the same paths cross, and those that differ only in paths
//!   over another component that is down.
//! - Loss at the ports of a host in all of several planes is that of its NIC.
//! - A component whose shorter windows are clean has healed.

use std::collections::BTreeMap;

use spindrift_srv6::{Fabric, Link, Node};

use crate::model::{self, Fit, Group, Model};
use crate::nic;
use crate::scope::Scope;
use crate::{Count, Path, View, Window};

/// A part of a fabric that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A cable with the two ports that it joins.
    Link(Link),
    /// A switch; or a host, with the NIC that all its ports are on.
    Node(Node),
}

/// What is wrong with a component.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It forwards nothing: at least 95 % are lost.
    Down,
    /// It loses some packets.
    Lossy {
        /// The share that a probe loses there, 0 to 1: of a link, in both directions together.
        rate: f64,
    },
}

/// The counts behind a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The time that the counts are about.
    pub window: Window,
    /// Probes that crossed the component.
    pub through: Count,
    /// Probes of the same agents in the same plane that did not.
    pub beside: Count,
    /// Paths that cross the component.
    pub paths: usize,
    /// Agents whose paths these are.
    pub agents: usize,
}

/// A component at fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The component; or several in order, of which one is at fault, and the probes cannot tell which.
    pub components: Vec<Component>,
    /// What is wrong.
    pub fault: Fault,
    /// The probability that this is no accident and no other component, 0 to 1, if packets are lost independently of each other.
    pub confidence: f64,
    /// The counts.
    pub evidence: Evidence,
    /// When it was first named, in nanoseconds.
    pub since_ns: u64,
}

/// A finding came or went.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A component is at fault now.
    Opened(Finding),
    /// This is no longer the case.
    Closed(Finding),
}

/// When a component is accused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocateSettings {
    /// Loss that every path may have, as a share: what is not worth a component. By default 1 in 10,000.
    pub noise: f64,
    /// The loss between switches that is accused, as a share. By default 0.3 %.
    pub switch_loss: f64,
    /// The loss of a host's link or a T0 switch that is accused, as a share. By default 1 %: less may be congestion.
    pub host_loss: f64,
    /// How much more likely (in nats) the loss must be with the component's loss than with the limit, and than without the component. By default
    /// 14: about one in a million.
    pub certainty: f64,
    /// How much more likely (in nats) it must be than with any other component. By default 7: one in a thousand.
    pub lead: f64,
    /// Probes that must have crossed the component. By default 20.
    pub min_probes: u32,
    /// Probes that must have been lost. By default 10.
    pub min_lost: u32,
    /// Updates in a row that must name a component: reports of several agents are not of the same moment. By default 2.
    pub confirm: u32,
    /// Updates in a row that do not name a component until its finding closes, unless it has healed. By default 20.
    pub release: u32,
}

/// A setting is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{setting} = {value}: must be {min} to {max}")]
pub struct LocateSettingsError {
    /// A field of [`LocateSettings`].
    pub setting: &'static str,
    /// What was given.
    pub value: f64,
    /// The least that can be; that of a loss is twice the noise.
    pub min: f64,
    /// The most.
    pub max: f64,
}

/// Follows the faults of a fabric from view to view.
#[derive(Clone, Debug)]
pub struct Locator {
    settings: LocateSettings,
    findings: Vec<Finding>,
    /// What the last update named that is not open: since when, and how often in a row.
    candidates: BTreeMap<Vec<Component>, (u64, u32)>,
    /// How many updates in a row did not name an open finding.
    missed: BTreeMap<Vec<Component>, u32>,
    /// When components healed.
    healed: BTreeMap<Vec<Component>, u64>,
}

/// Windows that are judged, with the least loss that they accuse anything of.
const JUDGED: [(Window, f64); 3] = [(Window::Fast, MOST), (Window::Second, 0.1), (Window::TenSeconds, 0.0)];
/// The longest of them.
const LONGEST_NS: u64 = Window::TenSeconds.span_ns();
/// What loses more loses most packets.
const MOST: f64 = 0.5;
/// What loses so much is down.
const DOWN: f64 = 0.95;
/// A shorter window clears a component if its loss is below half of what it is accused of with this certainty (in nats).
const CLEARED: f64 = 7.0;

impl Default for LocateSettings {
    fn default() -> Self {
        Self {
            noise: 1e-4,
            switch_loss: 0.003,
            host_loss: 0.01,
            certainty: 14.0,
            lead: 7.0,
            min_probes: 20,
            min_lost: 10,
            confirm: 2,
            release: 20,
        }
    }
}

impl LocateSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn check(&self) -> Result<(), LocateSettingsError> {
        let ranges = [
            ("noise", self.noise, 1e-9, 0.01),
            ("switch_loss", self.switch_loss, 2.0 * self.noise, 0.5),
            ("host_loss", self.host_loss, 2.0 * self.noise, 0.5),
            ("certainty", self.certainty, 3.0, 100.0),
            ("lead", self.lead, 1.0, 100.0),
            ("min_probes", f64::from(self.min_probes), 1.0, 1e6),
            ("min_lost", f64::from(self.min_lost), 1.0, 1e6),
            ("confirm", f64::from(self.confirm), 1.0, 1e3),
            ("release", f64::from(self.release), 1.0, 1e5),
        ];
        for (setting, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(LocateSettingsError { setting, value, min, max });
            }
        }
        Ok(())
    }
}

impl Locator {
    /// A locator that has seen nothing.
    pub const fn new(settings: LocateSettings) -> Self {
        Self {
            settings,
            findings: Vec::new(),
            candidates: BTreeMap::new(),
            missed: BTreeMap::new(),
            healed: BTreeMap::new(),
        }
    }

    /// The findings as of the last update, ordered by component.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Judges a view. Call it each 10 to 100 ms, with counts as of now.
    ///
    /// A finding opens when updates in a row name it, and closes as soon as shorter windows are clean, or when a number of updates does
    /// not name it.
    pub fn update(&mut self, now_ns: u64, fabric: &Fabric, view: &View) -> Vec<Change> {
        self.healed.retain(|_, &mut healed_ns| now_ns.saturating_sub(healed_ns) <= LONGEST_NS);
        let ago = |(components, &healed_ns)| (components, now_ns.saturating_sub(healed_ns));
        let healed: Vec<_> = self.healed.iter().map(ago).collect();
        let mut judged = judge(fabric, view, &self.settings, (&self.findings, &healed));
        let mut changes = Vec::new();
        let named: Vec<Component> =
            judged.keys().filter_map(|components| components.first().copied()).collect();
        let ends = |old: &Finding, missed: u32| {
            // A longer window may name it still.
            if has_healed(fabric, view, old) {
                return Some(End::Healed);
            }
            let is_replaced = || is_replaced(fabric, view, old, &named);
            (missed >= self.settings.release).then(|| if is_replaced() { End::Replaced } else { End::Healed })
        };
        let mut findings = Vec::new();
        for old in std::mem::take(&mut self.findings) {
            let new = judged.remove(&old.components);
            let missed = self.missed.entry(old.components.clone()).or_default();
            *missed = if new.is_some() { 0 } else { missed.saturating_add(1) };
            if let Some(end) = ends(&old, *missed) {
                if end == End::Healed {
                    self.healed.insert(old.components.clone(), now_ns);
                }
                changes.push(Change::Closed(old));
            } else {
                let new = new.unwrap_or_else(|| old.clone());
                findings.push(Finding { since_ns: old.since_ns, ..new });
            }
        }
        self.findings = findings;
        let mut candidates = BTreeMap::new();
        for (components, finding) in judged {
            let (since_ns, times) = self.candidates.get(&components).copied().unwrap_or((now_ns, 0));
            if times + 1 < self.settings.confirm {
                candidates.insert(components, (since_ns, times + 1));
            } else {
                let finding = Finding { since_ns, ..finding };
                changes.push(Change::Opened(finding.clone()));
                self.findings.push(finding);
            }
        }
        self.candidates = candidates;
        self.findings.sort_by(|a, b| a.components.cmp(&b.components));
        self.missed.retain(|components, _| self.findings.iter().any(|open| open.components == *components));
        changes
    }
}

/// Why a finding is no more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The component is well.
    Healed,
    /// Something else explains the loss better.
    Replaced,
}

/// Whether one of the named components is on a path over that of a finding.
fn is_replaced(fabric: &Fabric, view: &View, old: &Finding, named: &[Component]) -> bool {
    let Some(&component) = old.components.first() else { return false };
    let paths = view.over(fabric, component, Window::Fast);
    paths.into_iter().any(|(path, _)| named.iter().any(|&other| crosses(fabric, path, other)))
}

/// What each window says, the shortest one first: that of a component is the one that counts. `open` is what was at fault at the last update,
/// `healed` what was before, and how long ago.
///
/// A longer window leaves out the paths over what a shorter one shows to lose most packets, and over what was at fault within the window: two
/// faults at the same time, or one that began or ended in the window, would look like other ones there.
fn judge(
    fabric: &Fabric,
    view: &View,
    settings: &LocateSettings,
    (open, healed): (&[Finding], &[(&Vec<Component>, u64)]),
) -> BTreeMap<Vec<Component>, Finding> {
    let mut all: BTreeMap<Vec<Component>, Finding> = BTreeMap::new();
    for (window, least) in JUDGED {
        let mut found = Vec::new();
        let found_dead = all
            .values()
            .chain(open)
            .filter(|finding| finding.fault.rate() > MOST && finding.evidence.window < window);
        let dead = found_dead.map(|finding| &finding.components);
        let past = healed
            .iter()
            .filter(|(_, ago_ns)| *ago_ns <= window.span_ns())
            .map(|(components, _)| *components);
        let hidden: Vec<Component> =
            dead.chain(past).filter_map(|components| components.first().copied()).collect();
        for plane in 0..fabric.shape().planes {
            let scope = Scope { fabric, view, window, plane, hidden: &hidden };
            let suspects = scope.suspects(settings.noise);
            if !suspects.is_empty() {
                let model = Model::new(&scope, &suspects, settings.noise, settings.certainty);
                found.extend(accuse(&scope, &model, least, settings));
            }
        }
        let found = found.into_iter().filter(|finding| !has_healed(fabric, view, finding));
        for finding in nic::join((fabric, view, window), &hidden, found.collect()) {
            all.entry(finding.components.clone()).or_insert(finding);
        }
    }
    all
}

fn accuse(scope: &Scope<'_>, model: &Model, least: f64, settings: &LocateSettings) -> Vec<Finding> {
    let fit = model.explain();
    let accused = fit.faults.iter().filter_map(|&(number, x)| {
        let group = model.group(number)?;
        let running_ns = scope.view.running_ns(model.agents(group));
        let limit = limit(running_ns, group, (scope.window, least), settings);
        accuse_one((scope, model), &fit, (group, number, x), limit, settings)
    });
    accused.collect()
}

/// The loss that a window accuses a group's components of.
///
/// The loss of hosts' links and T0 switches may be a burst of congestion. So if agents have not probed for a whole window yet, it must be as much as
/// in a whole one.
fn limit(running_ns: u64, group: &Group, (window, least): (Window, f64), settings: &LocateSettings) -> f64 {
    if !group.components.iter().any(|&component| is_edge(component)) {
        return least.max(settings.switch_loss);
    }
    let whole = window.span_ns();
    let part = running_ns.clamp(1, whole) as f64 / whole as f64;
    (least.max(settings.host_loss) / part).min(MOST)
}

fn accuse_one(
    (scope, model): (&Scope<'_>, &Model),
    fit: &Fit,
    (group, number, x): (&Group, usize, f64),
    limit: f64,
    settings: &LocateSettings,
) -> Option<Finding> {
    let (rate, through) = (model::rate_of(x), model.through(group));
    if rate <= limit || through.sent < settings.min_probes || through.lost < settings.min_lost {
        return None;
    }
    let (excess, (equals, lead)) = (model.excess(fit, number, limit), model.rivals(fit, number));
    let is_contradicted = model.contradicts(fit, group, settings.certainty);
    if excess < settings.certainty || lead < settings.lead || is_contradicted {
        return None;
    }
    let mut agents: Vec<u16> = model.agents(group).collect();
    agents.sort_unstable();
    agents.dedup();
    // Both are in the same order.
    let mut own = group.paths.iter().filter_map(|&at| Some(model.paths.get(at)?.0)).peekable();
    let beside = agents.iter().flat_map(|&host| scope.of_agent(host));
    let beside = beside.filter(|(path, ..)| own.next_if_eq(path).is_none());
    let beside = beside.fold(Count::default(), |sum, (_, count, _)| sum.plus(count));
    let fault = Fault::of_rate(rate);
    let evidence =
        Evidence { window: scope.window, through, beside, paths: group.paths.len(), agents: agents.len() };
    let confidence = 1.0 / (1.0 + (-excess).exp() + (-lead).exp());
    let equals = equals.into_iter().filter_map(|equal| model.group(equal));
    let mut components = group.components.to_vec();
    components.extend(equals.flat_map(|equal| equal.components.iter().copied()));
    components.sort_unstable();
    components.dedup();
    Some(Finding { components, fault, confidence, evidence, since_ns: 0 })
}

/// Whether all probes over a component cross the hosts' ports with nothing to compare them with: a host's link, or a T0 switch. Congestion
/// at several hosts of a T0 switch looks like its own loss.
fn is_edge(component: Component) -> bool {
    matches!(
        component,
        Component::Link((Node::Host(_), _)) | Component::Node(Node::Host(_) | Node::T0 { .. })
    )
}

/// Whether the window of a finding, or a shorter one, shows that the component no longer loses what it is accused of.
fn has_healed(fabric: &Fabric, view: &View, finding: &Finding) -> bool {
    let Some(&component) = finding.components.first() else { return false };
    let rate = finding.fault.rate();
    JUDGED.iter().take_while(|(window, _)| *window <= finding.evidence.window).any(|&(window, _)| {
        // Of a host at fault no port is clean. Other components are in one plane.
        let mut recent: BTreeMap<Option<u8>, Count> = BTreeMap::new();
        for (path, count) in view.over(fabric, component, window) {
            let plane = recent.entry(path.plane()).or_default();
            *plane = plane.plus(count);
        }
        let is_clean =
            |&count: &Count| count.loss() < rate / 2.0 && model::surprise(count, rate / 2.0) > CLEARED;
        recent.values().any(is_clean)
    })
}

pub(crate) fn crosses(fabric: &Fabric, path: Path, component: Component) -> bool {
    let Some(way) = path.way(fabric) else { return false };
    let way = way.nodes();
    match component {
        Component::Node(node) => way.contains(&node),
        Component::Link((lower, upper)) => {
            way.windows(2).any(|pair| pair == [lower, upper] || pair == [upper, lower])
        }
    }
}

impl Fault {
    pub(crate) fn of_rate(rate: f64) -> Self {
        if rate >= DOWN { Self::Down } else { Self::Lossy { rate } }
    }

    /// The share that is lost, 0 to 1.
    pub const fn rate(self) -> f64 {
        match self {
            Self::Down => 1.0,
            Self::Lossy { rate } => rate,
        }
    }
}
