//! What the transports of this host are told to avoid.
//!
//! The [policy](spindrift_agent::policy) decides which components are denied. [`rules`] says the same in terms that a transport knows:
//! planes, addresses of peers, and the uSIDs of source-routed paths. A [`Messenger`] hands the rules to all processes with a control
//! socket: at once when they change, and again every second, so that new processes get them too. In the processes they end by themselves
//! soon after the agent does.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use spindrift::endpoint::DenyRule;
use spindrift_agent::policy::Deny;
use spindrift_agent::{Component, Finding};
use spindrift_control::{ControlDir, Reply, Request, Socket};
use spindrift_srv6::{Fabric, Node};

/// How often the processes get the rules.
const REFRESH: Duration = Duration::from_secs(1);
/// For how long they follow them without an agent.
const LIFETIME: Duration = Duration::from_secs(10);
/// Processes that are told at the same time.
const AT_ONCE: usize = 16;

/// The rules of an entry of a host's deny list. What no path of the host crosses has none.
pub fn rules(fabric: &Fabric, host: u16, entry: Deny) -> Vec<DenyRule> {
    let peer =
        |host, plane| fabric.address(host, plane).map(|address| DenyRule::Peer { address: address.into() });
    let planes = 0..fabric.shape().planes;
    match entry {
        Deny::Plane(plane) => vec![DenyRule::Plane { plane }],
        Deny::Component(Component::Link((Node::Host(of), Node::T0 { plane, .. }))) if of != host => {
            peer(of, plane).into_iter().collect()
        }
        Deny::Component(Component::Node(Node::Host(of))) if of != host => {
            planes.filter_map(|plane| peer(of, plane)).collect()
        }
        Deny::Component(Component::Link((lower, upper))) => Paths { fabric, host }.over_link(lower, upper),
        Deny::Component(Component::Node(node)) => Paths { fabric, host }.over(node),
    }
}

/// Why an entry is denied: the finding about it, in words. Nothing once there is none any more.
pub fn reason(fabric: &Fabric, host: u16, entry: Deny, findings: &[Finding]) -> String {
    let own = fabric.hosts().get(usize::from(host)).map(|at| at.t0);
    let is_meant = |component: &Component| match (entry, *component) {
        (Deny::Component(entry), component) => entry == component,
        (Deny::Plane(of), Component::Link((Node::Host(from), Node::T0 { plane, .. }))) => {
            of == plane && from == host
        }
        (Deny::Plane(of), Component::Node(Node::T0 { plane, number })) => of == plane && own == Some(number),
        _ => false,
    };
    let finding = findings.iter().find(|finding| finding.components.iter().any(is_meant));
    finding.map(|finding| finding.explain(fabric)).unwrap_or_default()
}

/// The paths of a host.
#[derive(Clone, Copy)]
struct Paths<'a> {
    fabric: &'a Fabric,
    host: u16,
}

impl Paths<'_> {
    fn own_t0(self) -> Option<u16> {
        self.fabric.hosts().get(usize::from(self.host)).map(|at| at.t0)
    }

    /// Those that visit these nodes in this order.
    fn visiting(self, nodes: &[Node]) -> Option<DenyRule> {
        let plane = nodes.iter().find_map(|node| node.plane())?;
        let usid = |&node: &Node| self.fabric.segment_of(node, plane)?.active();
        Some(DenyRule::Path { plane, usids: nodes.iter().map(usid).collect::<Option<_>>()? })
    }

    fn is_in_own_pod(self, node: Node) -> bool {
        self.fabric.pod_of(node) == self.fabric.pod_of(Node::Host(self.host))
    }

    /// The T0 switches of the plane and the pod of a T1 switch.
    fn below(self, t1: Node) -> impl Iterator<Item = Node> {
        let pod = self.fabric.pod_of(t1);
        let is_t0 = |node: &Node| matches!(node, Node::T0 { .. });
        let in_plane = move |node: &Node| is_t0(node) && node.plane() == t1.plane();
        self.fabric.nodes().filter(move |node| in_plane(node) && self.fabric.pod_of(*node) == pod)
    }

    /// The T1 switches of this host's pod that are joined to a T2 switch.
    fn own_t1_at(self, t2: Node) -> impl Iterator<Item = Node> {
        let t1 = self
            .fabric
            .nodes()
            .filter(move |node| matches!(node, Node::T1 { .. }) && self.is_in_own_pod(*node));
        t1.filter(move |node| self.fabric.uplinks(*node).any(|upper| upper == t2))
    }

    /// Paths over a switch. T1 switches of all pods have the same uSIDs, so where a path goes tells in which pod it comes down.
    fn over(self, switch: Node) -> Vec<DenyRule> {
        match switch {
            Node::T0 { number, .. } if self.own_t0() != Some(number) => {
                self.visiting(&[switch]).into_iter().collect()
            }
            Node::T1 { .. } if self.is_in_own_pod(switch) => self.visiting(&[switch]).into_iter().collect(),
            Node::T1 { .. } => self.below(switch).filter_map(|t0| self.visiting(&[switch, t0])).collect(),
            Node::T2 { .. } => self.own_t1_at(switch).filter_map(|t1| self.visiting(&[t1, switch])).collect(),
            // All paths.
            Node::T0 { .. } | Node::Host(_) => Vec::new(),
        }
    }

    fn over_link(self, lower: Node, upper: Node) -> Vec<DenyRule> {
        match (lower, upper) {
            (Node::T0 { number, .. }, Node::T1 { .. }) if self.own_t0() == Some(number) => {
                self.visiting(&[lower, upper]).into_iter().collect()
            }
            (Node::T0 { .. }, Node::T1 { .. }) => self.visiting(&[upper, lower]).into_iter().collect(),
            (Node::T1 { .. }, Node::T2 { .. }) if self.is_in_own_pod(lower) => {
                self.visiting(&[lower, upper]).into_iter().collect()
            }
            (Node::T1 { .. }, Node::T2 { .. }) => {
                self.below(lower).filter_map(|t0| self.visiting(&[lower, upper, t0])).collect()
            }
            // Of a dumbbell.
            (Node::T0 { number, .. }, Node::T0 { .. }) => {
                let other = if self.own_t0() == Some(number) { upper } else { lower };
                self.visiting(&[other]).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What became of the last attempt to tell the processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Processes that follow the rules.
    pub processes: usize,
    /// Why others do not, one reason for each.
    pub errors: Vec<String>,
}

/// Tells all processes of this host what to avoid.
#[derive(Debug)]
pub struct Messenger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    folders: Vec<ControlDir>,
    source: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<DenyRule>,
    is_new: bool,
    stop: bool,
    told: Told,
}

impl Messenger {
    /// Starts the thread that tells processes with control sockets in these folders. `source` is what they call the agent.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(folders: Vec<ControlDir>, source: String) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { folders, source, state: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("spindrift-deny".to_owned()).spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// These are the rules from now on.
    pub fn set(&self, rules: Vec<DenyRule>) {
        let mut state = self.shared.state();
        (state.rules, state.is_new) = (rules, true);
        self.shared.changed.notify_one();
    }

    /// What became of the last attempt.
    pub fn told(&self) -> Told {
        self.shared.state().told.clone()
    }
}

/// The processes follow the rules no longer.
impl Drop for Messenger {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Those that may still follow rules.
        let mut informed = BTreeSet::new();
        loop {
            let state = self.state();
            let idle = |state: &mut State| !state.is_new && !state.stop;
            let waited = self.changed.wait_timeout_while(state, REFRESH, idle);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let stop = state.stop;
            state.is_new = false;
            let rules = if stop { Vec::new() } else { state.rules.clone() };
            drop(state);
            let told = self.tell(&rules, &mut informed);
            if stop {
                return;
            }
            self.state().told = told;
        }
    }

    /// Tells all processes once.
    fn tell(&self, rules: &[DenyRule], informed: &mut BTreeSet<PathBuf>) -> Told {
        let mut told = Told::default();
        let mut sockets = Vec::new();
        for folder in &self.folders {
            match folder.sockets() {
                Ok(of_folder) => sockets.extend(of_folder),
                Err(error) => told.errors.push(error.to_string()),
            }
        }
        informed.retain(|path| sockets.iter().any(|socket| socket.path() == path));
        let source = self.source.clone();
        let request = if rules.is_empty() {
            sockets.retain(|socket| informed.contains(socket.path()));
            Request::Allow { source, rules: Vec::new() }
        } else {
            let lifetime_ms = Some(LIFETIME.as_millis() as u64);
            Request::Deny { source, rules: rules.to_vec(), replace: true, lifetime_ms }
        };
        for some in sockets.chunks(AT_ONCE) {
            let replies: Vec<_> = thread::scope(|scope| {
                let ask = |socket: &Socket| {
                    let (socket, request) = (socket.clone(), &request);
                    scope.spawn(move || (socket.path().to_owned(), outcome(&socket, request)))
                };
                let asked: Vec<_> = some.iter().map(ask).collect();
                asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
            });
            for (path, reply) in replies {
                match reply {
                    Ok(true) if rules.is_empty() => _ = informed.remove(&path),
                    Ok(true) => {
                        told.processes += 1;
                        informed.insert(path);
                    }
                    Ok(false) => {}
                    Err(error) => told.errors.push(error),
                }
            }
        }
        told
    }
}

/// Whether the process has done it; `false`: it has ended.
fn outcome(socket: &Socket, request: &Request) -> Result<bool, String> {
    match socket.try_ask(request) {
        Ok(Some(Reply::Denied(_))) => Ok(true),
        Ok(None) => Ok(false),
        Ok(Some(Reply::Error(reason))) => Err(format!("process {}: {reason}", socket.process())),
        Ok(Some(_)) => Err(format!("process {}: it replied to another request", socket.process())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

    use spindrift::endpoint::DenyList;
    use spindrift::pmd::loopback::{self, LoopbackConfig};
    use spindrift::verbs::{Context, ContextConfig, Idle, LaneMode, nic};
    use spindrift::wire::Ev;
    use spindrift_agent::{Count, Evidence, Fault, Window};
    use spindrift_control::Server;
    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    fn fabric(shape: Shape, hosts: &[u16]) -> Fabric {
        let mut downlinks = [0; 64];
        let hosts = hosts.iter().zip(1..).map(|(&t0, number)| {
            let downlink = downlinks[usize::from(t0)];
            downlinks[usize::from(t0)] += 1;
            FabricHost { name: format!("h{number}"), t0, downlink }
        });
        let hosts = hosts.collect();
        Fabric::new(shape, hosts).unwrap()
    }

    /// Of each component and each path: it is denied if, and only if, a packet on it crosses the component.
    #[test]
    fn exactly_the_paths_over_a_component_are_denied() {
        let two = |t0, t1| Shape { planes: 2, t0, t1, ..Shape::default() };
        let three = Shape { planes: 2, pods: 2, t0: 4, t1: 2, t2: 2, ..Shape::default() };
        for (shape, hosts) in [
            (two(1, 0), &[0, 0, 0][..]),
            (two(2, 0), &[0, 0, 1, 1]),
            (two(3, 4), &[0, 0, 1, 2]),
            (three, &[0, 0, 1, 2, 3]),
        ] {
            let fabric = fabric(shape, hosts);
            let mut walker = fabric.walker();
            let count = fabric.hosts().len() as u16;
            let (mut denied_some, mut all) = (0, 0);
            for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
                if from == to {
                    continue;
                }
                for plane in 0..2 {
                    let profile = fabric.paths(from, to, plane).unwrap();
                    for ev in (0..profile.count()).filter_map(|n| profile.nth(n)) {
                        let walk = walker.walk(from, to, plane, ev).unwrap();
                        let links = fabric.links().map(|link| (Component::Link(link), walk.crosses(link)));
                        let nodes = fabric.nodes().map(|node| {
                            (Component::Node(node), walk.hops.iter().any(|hop| hop.node == node))
                        });
                        for (component, crosses) in links.chain(nodes) {
                            let own = fabric.hosts()[usize::from(from)].t0;
                            let entry = match component {
                                Component::Link((Node::Host(host), Node::T0 { plane, .. }))
                                    if host == from =>
                                {
                                    Deny::Plane(plane)
                                }
                                Component::Node(Node::T0 { plane, number }) if number == own => {
                                    Deny::Plane(plane)
                                }
                                // Without the host nothing is to be denied.
                                Component::Node(Node::Host(host)) if host == from => continue,
                                other => Deny::Component(other),
                            };
                            let list = DenyList::new(&rules(&fabric, from, entry)).unwrap();
                            let peer = fabric.address(to, plane).map(Into::into);
                            let denies = list.denies_plane(plane, peer)
                                || list.denies_ev(plane, Ev(ev), Some(&profile));
                            assert_eq!(denies, crosses, "{component:?} from {from} to {to}: {walk:?}");
                            (denied_some, all) = (denied_some + u32::from(denies), all + 1);
                        }
                    }
                }
            }
            assert!(denied_some > 10 && all > 2 * denied_some, "{denied_some} of {all}");
        }
    }

    /// Processes that are there, that come later and that stay; and the end of the messenger.
    #[test]
    fn processes_follow_the_rules_as_long_as_there_is_a_messenger() {
        let path = std::env::temp_dir().join(format!("spindrift-messenger-{}", std::process::id()));
        let folder = ControlDir::at(&path);
        let context = || {
            let ports = nic(loopback::pair(2, LoopbackConfig::default()).0);
            let mode = LaneMode::Thread { core: None, idle: Idle::Yield };
            let config = ContextConfig::new(&ports).lane(mode);
            Context::open(ports, config).unwrap()
        };
        let list =
            |context: &Context| context.with_endpoint(|endpoint| endpoint.deny_list().clone()).unwrap();
        let until = |is: &dyn Fn() -> bool| {
            while !is() {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let [one, two] = [context(), context()];
        let _first = Server::start(&folder, "one", one.clone()).unwrap();
        let messenger = Messenger::start(vec![folder.clone()], "agent h1".to_owned()).unwrap();
        let rules = [DenyRule::Plane { plane: 1 }];
        let expected = DenyList::new(&rules).unwrap();
        messenger.set(rules.to_vec());
        until(&|| *list(&one) == expected);
        // A process that comes later.
        let second = Server::start(&folder, "two", two.clone()).unwrap();
        until(&|| *list(&two) == expected);
        until(&|| messenger.told() == Told { processes: 2, errors: Vec::new() });
        let sockets = folder.sockets().unwrap();
        let shown = sockets.iter().filter_map(|socket| match socket.ask(&Request::Status) {
            Ok(Reply::Status(status)) => Some(status.denied),
            _ => None,
        });
        for entries in shown {
            let [entry] = &*entries else { panic!("{entries:?}") };
            assert!(entry.source == "agent h1" && entry.left_ms.is_some_and(|left| left <= 10_000));
        }
        // One ends, and the rules end.
        drop(second);
        until(&|| messenger.told().processes == 1);
        messenger.set(Vec::new());
        until(&|| list(&one).is_empty() && messenger.told() == Told::default());
        messenger.set(rules.to_vec());
        until(&|| !list(&one).is_empty());
        drop(messenger);
        assert!(list(&one).is_empty());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn processes_that_refuse_are_named() {
        let path = std::env::temp_dir().join(format!("spindrift-refusals-{}", std::process::id()));
        let folder = ControlDir::at(&path);
        let ports = nic(loopback::pair(1, LoopbackConfig::default()).0);
        let mode = LaneMode::Thread { core: None, idle: Idle::Yield };
        let config = ContextConfig::new(&ports).lane(mode);
        let _server = Server::start(&folder, "one", Context::open(ports, config).unwrap()).unwrap();
        let messenger = Messenger::start(vec![folder], "agent h1".to_owned()).unwrap();
        messenger.set(vec![DenyRule::Plane { plane: 99 }]);
        let told = loop {
            let told = messenger.told();
            if told != Told::default() {
                break told;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let expected = format!("process {}: plane 99: at most 31", std::process::id());
        assert_eq!(told, Told { processes: 0, errors: vec![expected] });
        drop(messenger);
        std::fs::remove_dir_all(path).unwrap();
    }

    /// An entry is explained by the finding about it: a plane by one of the host's link or of its T0 switch there.
    #[test]
    fn an_entry_has_the_reason_of_its_finding() {
        let fabric = fabric(Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() }, &[0, 1]);
        let t0 = |plane, number| Node::T0 { plane, number };
        let t1 = Node::T1 { plane: 0, number: 1 };
        let link = |lower, upper| Component::Link((lower, upper));
        let counts = Count { sent: 50, lost: 50 };
        let evidence =
            Evidence { window: Window::Second, through: counts, beside: counts, paths: 1, agents: 1 };
        let finding = |components: &[Component]| Finding {
            components: components.to_vec(),
            fault: Fault::Down,
            confidence: 0.99,
            evidence,
            since_ns: 0,
        };
        let findings = [
            finding(&[link(t0(0, 0), t1), Component::Node(t1)]),
            finding(&[link(Node::Host(1), t0(1, 1))]),
            finding(&[link(Node::Host(0), t0(1, 0)), Component::Node(t0(1, 0))]),
        ];
        let of = |host, entry| reason(&fabric, host, entry, &findings);
        let texts = findings.each_ref().map(|finding| finding.explain(&fabric));
        assert_eq!(of(0, Deny::Component(Component::Node(t1))), texts[0]);
        assert_eq!(of(0, Deny::Component(link(t0(0, 0), t1))), texts[0]);
        assert_eq!([of(0, Deny::Plane(1)), of(1, Deny::Plane(1))], [texts[2].clone(), texts[1].clone()]);
        assert_eq!([of(0, Deny::Plane(0)), of(0, Deny::Component(Component::Node(t0(0, 1))))], ["", ""]);
        // The switch alone.
        let switch = [finding(&[Component::Node(t0(1, 0))])];
        assert_eq!(reason(&fabric, 0, Deny::Plane(1), &switch), switch[0].explain(&fabric));
        assert_eq!(reason(&fabric, 1, Deny::Plane(1), &switch), "");
    }

    #[test]
    fn the_host_itself_is_not_denied() {
        let fabric = fabric(Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() }, &[0, 1]);
        assert_eq!(rules(&fabric, 0, Deny::Component(Component::Node(Node::Host(0)))), []);
        assert_eq!(rules(&fabric, 0, Deny::Component(Component::Node(Node::Host(1)))).len(), 2);
    }
}
