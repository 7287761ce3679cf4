//! What a host's transports should avoid: from findings to entries of a deny list.
//!
//! A component is denied if it lost more than [`deny_loss`](PolicySettings::deny_loss) for some time, and allowed again when it lost less than
//! [`allow_loss`](PolicySettings::allow_loss), or was at fault no more, for some time, which is longer by default: a link that flaps stays
//! denied. (MRC paper, sections 2.4 and 4: for links between switches MRC manages without; a lossy link of a host needs it.)
//!
//! Whatever is found, no more than [`max_denied`](PolicySettings::max_denied) of the paths to any host are denied. So no host is ever cut off, not by
//! a wrong finding either.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use spindrift_srv6::{Fabric, Node};

use crate::{Component, Finding};

/// When components are denied and allowed again.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// Decide and say so, but deny nothing.
    pub dry_run: bool,
    /// The loss of which a component is denied, as a share: above 0, up to 1. By default 1 %.
    pub deny_loss: f64,
    /// For how long it must lose so much, in milliseconds, at most an hour. By default 50 ms.
    pub deny_after_ms: u64,
    /// The loss below which it may be allowed again, as a share: less than `deny_loss`. By default 0.5 %.
    pub allow_loss: f64,
    /// For how long it must lose less, in milliseconds, at most a day. By default 10 s.
    pub allow_after_ms: u64,
    /// The largest share of the paths to any other host that may be denied: above 0, up to 0.9. By default a half.
    pub max_denied: f64,
}

/// Settings that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting} = {value}: {fix}")]
pub struct PolicySettingsError {
    /// A field of [`PolicySettings`].
    pub setting: &'static str,
    /// What was given.
    pub value: f64,
    /// What it may be.
    pub fix: String,
}

/// An entry of a host's deny list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deny {
    /// No path of this plane.
    Plane(u8),
    /// No path that crosses this.
    Component(Component),
}

/// What the policy decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Add this entry.
    Deny(Deny),
    /// Remove it.
    Allow(Deny),
    /// It should be denied, but too many paths would be. It is when others are allowed again.
    TooMany(Deny),
}

/// Decides what one host's transports should avoid. It has no clock: time is an argument, as everywhere here.
#[derive(Clone, Debug)]
pub struct Policy {
    settings: PolicySettings,
    host: u16,
    watched: BTreeMap<Component, Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    state: State,
    /// Since when it has been lossy enough to be denied, or well enough to be allowed, whichever would change its state.
    since_ns: Option<u64>,
    /// The loss at the last update: 0 if it is at fault no more.
    loss: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Allowed,
    /// It would be denied if there were not so many.
    TooMany,
    Denied,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            dry_run: false,
            deny_loss: 0.01,
            deny_after_ms: 50,
            allow_loss: 0.005,
            allow_after_ms: 10_000,
            max_denied: 0.5,
        }
    }
}

impl PolicySettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// What is wrong, by name, and what it may be.
    pub fn check(&self) -> Result<(), PolicySettingsError> {
        let bad =
            |setting, value, fix: &str| Err(PolicySettingsError { setting, value, fix: fix.to_owned() });
        if !(self.deny_loss > 0.0 && self.deny_loss <= 1.0) {
            return bad("deny_loss", self.deny_loss, "must be above 0, up to 1; write 0.01 for 1 %");
        }
        if !(self.allow_loss > 0.0 && self.allow_loss < self.deny_loss) {
            let fix = format!("must be above 0 and less than deny_loss, which is {}", self.deny_loss);
            return bad("allow_loss", self.allow_loss, &fix);
        }
        if self.deny_after_ms > 3_600_000 {
            return bad("deny_after_ms", self.deny_after_ms as f64, "must be at most 3600000, an hour");
        }
        if self.allow_after_ms > 86_400_000 {
            return bad("allow_after_ms", self.allow_after_ms as f64, "must be at most 86400000, a day");
        }
        if !(self.max_denied > 0.0 && self.max_denied <= 0.9) {
            let fix = "must be above 0, up to 0.9: some paths must be left; write 0.5 for a half";
            return bad("max_denied", self.max_denied, fix);
        }
        Ok(())
    }
}

impl Policy {
    /// The policy of a host.
    ///
    /// # Errors
    /// If the settings are wrong.
    pub fn new(host: u16, settings: PolicySettings) -> Result<Self, PolicySettingsError> {
        settings.check()?;
        Ok(Self { settings, host, watched: BTreeMap::new() })
    }

    /// Whether it decides and denies nothing.
    pub const fn is_dry_run(&self) -> bool {
        self.settings.dry_run
    }

    /// What the transports are to avoid now: nothing in a dry run.
    pub fn denied(&self, fabric: &Fabric) -> Vec<Deny> {
        if self.settings.dry_run { Vec::new() } else { self.would_deny(fabric) }
    }

    /// The same, but for a dry run.
    pub fn would_deny(&self, fabric: &Fabric) -> Vec<Deny> {
        let denied = self.watched.iter().filter(|(_, watched)| watched.state == State::Denied);
        denied.map(|(&component, _)| self.entry(fabric, component)).collect()
    }

    /// Judges the findings as of now. Call it after each update of the [`Locator`](crate::Locator). What it decides in a dry run is to be shown
    /// and not to be done.
    pub fn update(&mut self, now_ns: u64, fabric: &Fabric, findings: &[Finding]) -> Vec<Decision> {
        for watched in self.watched.values_mut() {
            watched.loss = 0.0;
        }
        for finding in findings {
            let Some(component) = narrowest(finding) else { continue };
            let new = Watched { state: State::Allowed, since_ns: None, loss: 0.0 };
            let watched = self.watched.entry(component).or_insert(new);
            watched.loss = watched.loss.max(finding.fault.rate());
        }
        let mut decisions = self.allow(now_ns, fabric);
        decisions.extend(self.deny(now_ns, fabric));
        self.watched.retain(|_, watched| watched.state != State::Allowed || watched.since_ns.is_some());
        decisions
    }

    /// Allows what has been well for long enough.
    fn allow(&mut self, now_ns: u64, fabric: &Fabric) -> Vec<Decision> {
        let mut allowed = Vec::new();
        let after_ns = self.settings.allow_after_ms.saturating_mul(1_000_000);
        for (&component, watched) in &mut self.watched {
            let is_well = watched.loss < self.settings.allow_loss;
            match watched.state {
                State::Denied => {
                    let since_ns = is_well.then(|| watched.since_ns.unwrap_or(now_ns));
                    watched.since_ns = since_ns;
                    if since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= after_ns) {
                        (watched.state, watched.since_ns) = (State::Allowed, None);
                        allowed.push(component);
                    }
                }
                // It was not denied, so there is nothing to keep up.
                State::TooMany if is_well => watched.state = State::Allowed,
                State::TooMany | State::Allowed => {}
            }
        }
        allowed.into_iter().map(|component| Decision::Allow(self.entry(fabric, component))).collect()
    }

    /// Denies what has been lossy for long enough, the worst first, while there are not too many.
    fn deny(&mut self, now_ns: u64, fabric: &Fabric) -> Vec<Decision> {
        let after_ns = self.settings.deny_after_ms.saturating_mul(1_000_000);
        let mut due = Vec::new();
        for (&component, watched) in &mut self.watched {
            if watched.state == State::Allowed {
                let is_lossy = watched.loss >= self.settings.deny_loss;
                watched.since_ns = is_lossy.then(|| watched.since_ns.unwrap_or(now_ns));
            }
            let is_due = watched.since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= after_ns);
            if watched.state == State::TooMany || watched.state == State::Allowed && is_due {
                due.push((component, watched.loss));
            }
        }
        due.sort_by(|(a, loss_a), (b, loss_b)| loss_b.total_cmp(loss_a).then(a.cmp(b)));
        let mut decisions = Vec::new();
        for (component, _) in due {
            let denied = self.watched.iter().filter(|(_, watched)| watched.state == State::Denied);
            let mut set: BTreeSet<Component> = denied.map(|(&component, _)| component).collect();
            set.insert(component);
            let fits = denied_share(fabric, self.host, &set) <= self.settings.max_denied;
            let entry = self.entry(fabric, component);
            let Some(watched) = self.watched.get_mut(&component) else { continue };
            let was = watched.state;
            (watched.state, watched.since_ns) =
                if fits { (State::Denied, None) } else { (State::TooMany, Some(now_ns)) };
            match (fits, was) {
                (true, _) => decisions.push(Decision::Deny(entry)),
                (false, State::TooMany) => {}
                (false, _) => decisions.push(Decision::TooMany(entry)),
            }
        }
        decisions
    }

    fn entry(&self, fabric: &Fabric, component: Component) -> Deny {
        Deny::of(fabric, self.host, component)
    }
}

impl Deny {
    /// What a host avoids if a component is denied: the whole plane, if each of its paths there crosses it.
    pub fn of(fabric: &Fabric, host: u16, component: Component) -> Self {
        let own = fabric.hosts().get(usize::from(host)).map(|at| at.t0);
        match component {
            Component::Link((Node::Host(of), Node::T0 { plane, .. })) if of == host => Self::Plane(plane),
            Component::Node(Node::T0 { plane, number }) if Some(number) == own => Self::Plane(plane),
            other => Self::Component(other),
        }
    }
}

/// Of components that the same probes cross, the one that fewest paths cross: a link, if there is one.
fn narrowest(finding: &Finding) -> Option<Component> {
    let link = finding.components.iter().find(|component| matches!(component, Component::Link(_)));
    link.or_else(|| finding.components.first()).copied()
}

/// The share of the paths from a host to another one that cross one of these components: that of the other host with the largest share. 0 to 1; 0 where
/// there is no other host.
///
/// Looked at are the other hosts of the same T0 switch, those at T0 switches that a component is at, and one other T0 switch of each pod: all
/// others are like that.
pub fn denied_share(fabric: &Fabric, host: u16, denied: &BTreeSet<Component>) -> f64 {
    let named: BTreeSet<u16> = denied.iter().flat_map(|&component| t0_of(fabric, component)).collect();
    let mut like = BTreeSet::new();
    let mut largest = 0.0_f64;
    for (number, at) in (0..).zip(fabric.hosts()) {
        let own = fabric.hosts().get(usize::from(host)).map(|own| own.t0);
        let pod = fabric.pod_of(Node::Host(number));
        let is_new = Some(at.t0) == own || named.contains(&at.t0) || like.insert(pod);
        if number != host && is_new {
            largest = largest.max(share_to(fabric, host, number, denied));
        }
    }
    largest
}

/// The T0 switches of all planes that a component is at: none of one above.
fn t0_of(fabric: &Fabric, component: Component) -> Vec<u16> {
    let ends = match component {
        Component::Link((lower, upper)) => vec![lower, upper],
        Component::Node(node) => vec![node],
    };
    let t0 = |node| match node {
        Node::Host(host) => fabric.hosts().get(usize::from(host)).map(|at| at.t0),
        Node::T0 { number, .. } => Some(number),
        Node::T1 { .. } | Node::T2 { .. } => None,
    };
    ends.into_iter().filter_map(t0).collect()
}

fn share_to(fabric: &Fabric, from: u16, to: u16, denied: &BTreeSet<Component>) -> f64 {
    let (mut all, mut lost) = (0_u32, 0_u32);
    for plane in 0..fabric.shape().planes {
        for way in ways(fabric, from, to, plane) {
            all += 1;
            let crosses = way.iter().any(|&node| denied.contains(&Component::Node(node)))
                || way.windows(2).any(|pair| match *pair {
                    [a, b] => denied.contains(&Component::Link((a.min(b), a.max(b)))),
                    _ => false,
                });
            lost += u32::from(crosses);
        }
    }
    if all == 0 { 0.0 } else { f64::from(lost) / f64::from(all) }
}

/// The nodes of each path between two hosts in a plane.
fn ways(fabric: &Fabric, from: u16, to: u16, plane: u8) -> Vec<Vec<Node>> {
    let at = |host: u16| fabric.hosts().get(usize::from(host)).map(|at| Node::T0 { plane, number: at.t0 });
    let (Some(t0_from), Some(t0_to)) = (at(from), at(to)) else { return Vec::new() };
    let (from, to) = (Node::Host(from), Node::Host(to));
    if t0_from == t0_to {
        return vec![vec![from, t0_from, to]];
    }
    let mut ways = Vec::new();
    // The T1 switches of a pod have the same places as those of another one, and each two of a place the same T2 switches.
    for (up, down) in fabric.uplinks(t0_from).zip(fabric.uplinks(t0_to)) {
        if up == t0_to {
            ways.push(vec![from, t0_from, t0_to, to]);
        } else if up == down {
            ways.push(vec![from, t0_from, up, t0_to, to]);
        } else {
            let over = |top| vec![from, t0_from, up, top, down, t0_to, to];
            ways.extend(fabric.uplinks(up).map(over));
        }
    }
    ways
}
