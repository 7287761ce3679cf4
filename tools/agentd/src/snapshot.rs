//! What an agent knows at one moment, as the HTTP interface and the command show it.
//!
//! Times of day are seconds since 1970 (UTC), durations and round-trip times nanoseconds, loss a share from 0 to 1. Nodes have the names of
//! the topology.

use serde::{Deserialize, Serialize};
use spindrift_agent::{Agent, Component, Count, Fault, Finding, LinkRecord, LinkState, RoundTrips, Window};
use spindrift_srv6::{Fabric, Node};

/// See the [module documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of the agent.
    pub version: String,
    /// The host.
    pub host: String,
    /// When this was so.
    pub time: f64,
    /// When the agent started.
    pub started: f64,
    /// Each T0 switch of the host is probed once in this time.
    pub interval_ns: u64,
    /// Each path above is probed once in this time.
    pub upper_interval_ns: u64,
    /// What became of the probes.
    pub probes: Probes,
    /// Why the kernel did not take a probe, in the last quarter of a second: the interface, and the error.
    pub send_error: Option<String>,
    /// The store by which agents work together, if there is one.
    pub store: Option<Store>,
    /// What the transports of the host are told to avoid, if there is a policy.
    pub deny: Option<DenyReport>,
    /// The ports of the host.
    pub planes: Vec<Plane>,
    /// The links that the agent probes, from the host up.
    pub links: Vec<Link>,
    /// The components at fault.
    pub findings: Vec<FindingReport>,
}

/// A store by which agents work together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Agents that report now, this one included.
    pub agents: u64,
    /// Why it cannot be reached, if so.
    pub error: Option<String>,
}

/// What the transports of the host are told to avoid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DenyReport {
    /// It is decided and nobody is told.
    pub dry_run: bool,
    /// What is denied.
    pub denied: Vec<DeniedReport>,
    /// Processes that follow it.
    pub processes: u64,
    /// Why others do not, one reason for each.
    pub errors: Vec<String>,
}

/// A component that is denied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeniedReport {
    /// What it is.
    pub component: String,
    /// The paths that this concerns, as `spindrift ctl status` shows them.
    pub rules: Vec<String>,
    /// The finding that it was denied for, in words.
    #[serde(default)]
    pub reason: String,
    /// Since when.
    pub since: f64,
}

/// A decision of the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionReport {
    /// `denied`, `allowed` or `not denied`: too many others are.
    pub what: &'static str,
    /// When it was made.
    pub time: f64,
    /// About what.
    pub entry: DeniedReport,
    /// It is decided, and nobody is told.
    pub dry_run: bool,
}

/// What became of the probes of 50 ms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountReport {
    /// The end of that time. Later probes may still be in flight.
    pub time: f64,
    /// The probes of each plane.
    pub planes: Vec<PlaneCount>,
}

/// Probes of a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlaneCount {
    /// Sent.
    pub sent: u64,
    /// Lost.
    pub lost: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// Sent by the agent.
    pub sent: u64,
    /// Came back in time.
    pub returned: u64,
    /// Did not.
    pub lost: u64,
    /// Nothing is known of them, since the agent did not run while they were in flight, or the host's own queue was full.
    pub void: u64,
    /// Not sent, since the agent came too late.
    pub skipped: u64,
    /// Not taken by the kernel: no route, a link without carrier, a full queue.
    pub unsent: u64,
    /// Packets that are no return of a probe in flight: malformed, of others, forged, twice, late.
    pub refused: u64,
}

/// A port of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// Its number.
    pub plane: u8,
    /// The interface.
    pub interface: String,
    /// The host's address there.
    pub address: String,
    /// The address that probes come back to.
    pub probe_address: String,
}

/// A link that the agent probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The lower node.
    pub lower: String,
    /// The upper one, where probes of the link turn.
    pub upper: String,
    /// The plane.
    pub plane: u8,
    /// `up`, `down` or `unknown`.
    pub state: String,
    /// Loss of its probes in the last second.
    pub loss_1s: Loss,
    /// In the last ten seconds.
    pub loss_10s: Loss,
    /// In the last five minutes.
    pub loss_5min: Loss,
    /// Round trips of the last 10 to 20 s.
    pub rtt: Rtt,
    /// How often it went down.
    pub flaps: u64,
    /// The latest transitions, the oldest first.
    pub transitions: Vec<Transition>,
}

/// Probes, and those that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Probes whose end is known.
    pub sent: u32,
    /// Those that were lost.
    pub lost: u32,
    /// The share, less that of the path below.
    pub net: f64,
}

/// Round-trip times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rtt {
    /// Round trips measured.
    pub samples: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// None took longer.
    pub max_ns: u64,
}

/// A link went up or down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// When.
    pub time: f64,
    /// Whether it is up since then.
    pub up: bool,
}

/// A component at fault, or several of which one is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Finding")]
pub struct FindingReport {
    /// Their names.
    pub components: Vec<Part>,
    /// `down` or `lossy`.
    pub fault: String,
    /// The share of probes that it loses.
    pub rate: f64,
    /// The probability that this is no accident, 0 to 1.
    pub confidence: f64,
    /// Since when.
    pub since: f64,
    /// In words.
    pub text: String,
}

/// A link, a switch or a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `link`, `switch` or `host`.
    pub kind: String,
    /// Its name; of a link the names of its nodes, joined by a colon, as other commands take it.
    pub name: String,
}

/// Names and times of an agent.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// When the agent's clock was 0, in seconds since 1970.
    pub epoch: f64,
}

impl Scene<'_> {
    /// The time of day of the agent's time.
    pub fn time(&self, ns: u64) -> f64 {
        self.epoch + ns as f64 / 1e9
    }

    /// A component's kind and name.
    pub fn part(&self, component: Component) -> Part {
        let name = |node| self.fabric.name(node);
        let (kind, name) = match component {
            Component::Link((lower, upper)) => ("link", format!("{}:{}", name(lower), name(upper))),
            Component::Node(node @ Node::Host(_)) => ("host", name(node)),
            Component::Node(node) => ("switch", name(node)),
        };
        Part { kind: kind.to_owned(), name }
    }

    /// A finding.
    pub fn finding(&self, finding: &Finding) -> FindingReport {
        FindingReport {
            components: finding.components.iter().map(|component| self.part(*component)).collect(),
            fault: match finding.fault {
                Fault::Down => "down",
                Fault::Lossy { .. } => "lossy",
            }
            .to_owned(),
            rate: finding.fault.rate(),
            confidence: finding.confidence,
            since: self.time(finding.since_ns),
            text: finding.explain(self.fabric),
        }
    }

    /// The links of an agent.
    pub fn links(&self, agent: &Agent, now_ns: u64) -> Vec<Link> {
        let recorder = agent.recorder();
        let routes = agent.plan().routes().zip(recorder.links());
        let link = |(at, (route, record)): (usize, (&spindrift_agent::Route, &LinkRecord))| {
            let loss = |window| {
                let count: Count = recorder.count(at, window, now_ns).unwrap_or_default();
                let net = recorder.net_loss(at, window, now_ns).unwrap_or_default();
                Loss { sent: count.sent, lost: count.lost, net }
            };
            let RoundTrips { samples, p50_ns, p99_ns, p999_ns, max_ns } = record.round_trips(now_ns);
            let (lower, upper) = record.link();
            Link {
                lower: self.fabric.name(lower),
                upper: self.fabric.name(upper),
                plane: route.plane,
                state: match record.state() {
                    LinkState::Up => "up",
                    LinkState::Down => "down",
                    LinkState::Unknown => "unknown",
                }
                .to_owned(),
                loss_1s: loss(Window::Second),
                loss_10s: loss(Window::TenSeconds),
                loss_5min: loss(Window::FiveMinutes),
                rtt: Rtt { samples, p50_ns, p99_ns, p999_ns, max_ns },
                flaps: record.flaps(),
                transitions: record
                    .transitions()
                    .map(|transition| Transition { time: self.time(transition.at_ns), up: transition.up })
                    .collect(),
            }
        };
        routes.enumerate().map(link).collect()
    }
}
