//! Fabrics that are not there, and what their agents would report.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use spindrift_agent::{Count, PathReport, Report, View, Window};
use spindrift_agentd::history::{History, STEP};
use spindrift_agentd::http::Server;
use spindrift_agentd::layout::Layout;
use spindrift_agentd::levels;
use spindrift_agentd::published::{Published, Source};
use spindrift_agentd::runner::Event;
use spindrift_agentd::snapshot::{
    DeniedReport, DenyReport, FindingReport, Part, Plane, Probes, Rtt, Snapshot, Store, Transition,
};
use spindrift_agentd::token::Token;
use spindrift_control::{ControlDir, Watch};
use spindrift_srv6::{Fabric, FabricHost, Node, Shape};

/// Loss by the ends of a link, as shares.
pub(crate) type Faults<'a> = &'a [(&'a str, f64)];

pub(crate) struct MadeUp {
    pub(crate) fabric: Fabric,
    pub(crate) published: Arc<Published>,
    others: Arc<Mutex<View>>,
    own: Mutex<Option<Report>>,
    pub(crate) start: f64,
    /// Control sockets of processes whose counters are shown.
    pub(crate) processes: Vec<ControlDir>,
}

pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

pub(crate) fn fabric(planes: u8, t0: u16, t1: u16, hosts: u16) -> Fabric {
    fabric_of(Shape { planes, t0, t1, ..Shape::default() }, hosts)
}

/// A fabric with so many hosts at each T0 switch.
pub(crate) fn fabric_of(shape: Shape, hosts: u16) -> Fabric {
    let host =
        |number: u16| FabricHost { name: format!("h{number}"), t0: number / hosts, downlink: number % hosts };
    Fabric::new(shape, (0..shape.t0 * hosts).map(host).collect()).unwrap()
}

pub(crate) fn finding(kind: &str, names: &[&str], rate: f64, since: f64) -> FindingReport {
    let components = names.iter().map(|name| Part { kind: kind.to_owned(), name: (*name).to_owned() });
    FindingReport {
        components: components.collect(),
        fault: if rate > 0.95 { "down" } else { "lossy" }.to_owned(),
        rate,
        confidence: 0.9999,
        since,
        text: format!(
            "The {kind} {} loses {:.2} % of all probes. In the last 10 s, 120 of 4000 probes over it were lost \
             (4 paths of 4 agents), and 0 of 16000 probes on these agents' other paths in the plane. Confidence: 99.99 %.",
            names[0],
            rate * 100.0
        ),
    }
}

fn denied(part: &Part, finding: &FindingReport) -> DeniedReport {
    DeniedReport {
        component: format!("{} {}", part.kind, part.name),
        rules: vec!["paths of plane 1 over 2a01:2401".to_owned()],
        reason: finding.text.clone(),
        since: finding.since,
    }
}

impl MadeUp {
    pub(crate) fn new(fabric: Fabric) -> Self {
        Self {
            fabric,
            published: Arc::default(),
            others: Arc::default(),
            own: Mutex::default(),
            start: now(),
            processes: Vec::new(),
        }
    }

    /// The loss of a link: that of its own, and of the nodes at its ends.
    fn loss(&self, faults: Faults, (lower, upper): (Node, Node)) -> f64 {
        let (lower, upper) = (self.fabric.name(lower), self.fabric.name(upper));
        let link = format!("{lower}:{upper}");
        let of = |name: &str| faults.iter().filter(|(fault, _)| *fault == name).map(|(_, loss)| loss).sum();
        let all: [f64; 3] = [&link, &lower, &upper].map(|name| of(name));
        all.iter().sum::<f64>().min(1.0)
    }

    /// The reports of all hosts, of which the first at each T0 switch probes all links above it.
    fn reports(&self, faults: Faults) -> Vec<Report> {
        let report = |(host, at): (u16, &FabricHost)| {
            let mut paths = Vec::new();
            for plane in 0..self.fabric.shape().planes {
                let t0 = Node::T0 { plane, number: at.t0 };
                let below = self.loss(faults, (Node::Host(host), t0));
                let mut path = |top, loss: f64| {
                    let lost = (1_000.0 * loss).round() as u32;
                    paths.push(PathReport { top, counts: Window::ALL.map(|_| Count { sent: 1_000, lost }) });
                };
                path(t0, below);
                if at.downlink == 0 {
                    for top in self.fabric.uplinks(t0) {
                        path(top, 1.0 - (1.0 - below) * (1.0 - self.loss(faults, (t0, top))));
                    }
                }
            }
            Report { host, running_ns: 1_000_000_000, paths }
        };
        (0..).zip(self.fabric.hosts()).map(report).collect()
    }

    /// The reports of all agents.
    pub(crate) fn view(&self) -> View {
        let mut view = self.others.lock().unwrap().clone();
        view.insert(self.own.lock().unwrap().as_ref().unwrap());
        view
    }

    /// From now on these are the faults.
    pub(crate) fn now(&self, faults: Faults, findings: Vec<FindingReport>, store: Option<&str>) {
        let reports = self.reports(faults);
        self.published.report(reports[0].clone());
        *self.own.lock().unwrap() = Some(reports[0].clone());
        // Without the store there are no others.
        let others = if store == Some("") { &reports[1..] } else { &[] };
        *self.others.lock().unwrap() = View::new(others);
        let agents = others.len() as u64 + 1;
        let error = store.filter(|error| !error.is_empty()).map(str::to_owned);
        self.published.set(Snapshot {
            version: "0.1.0".to_owned(),
            host: "h0".to_owned(),
            time: now(),
            started: self.start - 7_200.0,
            interval_ns: 1_000_000,
            probes: Probes { sent: 123_456, returned: 123_000, lost: 456, ..Probes::default() },
            store: store.map(|_| Store { agents, error }),
            deny: findings.first().map(|finding| DenyReport {
                denied: finding.components.iter().map(|part| denied(part, finding)).take(1).collect(),
                processes: 2,
                errors: vec!["process 7: it does not reply".to_owned()],
                ..DenyReport::default()
            }),
            planes: vec![Plane { interface: "eth0".to_owned(), ..Plane::default() }],
            links: vec![self.own_link()],
            findings,
            ..Snapshot::default()
        });
    }

    fn own_link(&self) -> spindrift_agentd::snapshot::Link {
        let rtt = Rtt { samples: 9, p50_ns: 11_200, p99_ns: 15_300, p999_ns: 20_000, max_ns: 31_000 };
        let transitions = vec![Transition { time: self.start - 3_000.0, up: true }];
        spindrift_agentd::snapshot::Link {
            lower: "p0-t0-0".to_owned(),
            upper: "p0-t1-1".to_owned(),
            state: "up".to_owned(),
            rtt,
            transitions,
            ..spindrift_agentd::snapshot::Link::default()
        }
    }

    /// A server that shows it, with a history of so many frames in which a fault lasted from one to another.
    pub(crate) fn serve(&self, address: &str, history: &[(u32, Faults)]) -> Server {
        self.serve_with(address, history, None)
    }

    /// The same, to those who have the token.
    pub(crate) fn serve_with(
        &self,
        address: &str,
        history: &[(u32, Faults)],
        token: Option<Token>,
    ) -> Server {
        let layout = Layout::new(&self.fabric);
        let mut kept = History::default();
        let total: u32 = history.iter().map(|(frames, _)| frames).sum();
        let mut time = self.start - f64::from(total * STEP);
        for (frames, faults) in history {
            let levels = levels::of_links(&layout, &View::new(&self.reports(faults)));
            for _ in 0..*frames {
                time += f64::from(STEP);
                kept.push(time, &levels);
            }
        }
        let others = Arc::clone(&self.others);
        let view = move || others.lock().unwrap().clone();
        let source = Source::new(self.fabric.clone(), Arc::clone(&self.published), view).with_history(kept);
        let source = source.with_processes(Watch::all(self.processes.clone()));
        Server::start(address.parse().unwrap(), source, token).unwrap()
    }

    pub(crate) fn note(&self, finding: FindingReport, until: f64) {
        self.published.note(&Event::Opened(finding.clone()));
        self.published.note(&Event::Closed(finding, until));
    }
}
