//! The agents of a fabric together: each writes its reports to a Redis server and reads those of the others. Without the server each works alone.
//!
//! | Key | What |
//! |---|---|
//! | `spindrift:agent:FABRIC:HOST` | the latest report of a host's agent, for 1.5 s |
//! | `spindrift:agent:FABRIC:events` | a stream of what the agents told of, at most some 10,000 entries: `host`, `event` |
//!
//! FABRIC is a checksum of the topology, so that several fabrics, or two versions of a topology, can use one server. The server must be open
//! to the agents alone: whoever can write to it can accuse any component.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult};
use serde::{Deserialize, Serialize};
use spindrift_agent::{Count, PathReport, Report, View, Window};
use spindrift_srv6::{Fabric, Node};

/// How often reports are written and read.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// How long a report stays that is not written again.
const EXPIRY_MS: u64 = 1_500;
/// A report that has not changed for so long is of an agent that has stopped.
const STALE: Duration = Duration::from_secs(1);
/// Limit for the connection and for each reply.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Events that wait for the server; older ones are dropped.
const MAX_EVENTS: usize = 1_000;
/// Entries of the stream, about.
const STREAM: u64 = 10_000;
const VERSION: u8 = 1;

/// The agents cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The address of the server cannot be read.
    #[error("the store is not `redis://HOST[:PORT]` or `unix:///PATH`: {0}")]
    Url(redis::RedisError),
    /// There is no thread for it.
    #[error("cannot start the store's thread: {0}")]
    Thread(std::io::Error),
}

/// Tier, plane and number of a switch, and counts of each window: probes, and those that were lost.
type WrittenPath = (u8, u8, u16, [(u32, u32); Window::ALL.len()]);

/// A report, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u8,
    host: u16,
    running_ns: u64,
    paths: Vec<WrittenPath>,
}

impl From<&Report> for Written {
    fn from(report: &Report) -> Self {
        let path = |path: &PathReport| {
            let (tier, plane, number) = match path.top {
                Node::T0 { plane, number } => (0, plane, number),
                Node::T1 { plane, number } => (1, plane, number),
                Node::T2 { plane, number } => (2, plane, number),
                // No path turns there.
                Node::Host(_) => return None,
            };
            Some((tier, plane, number, path.counts.map(|count| (count.sent, count.lost))))
        };
        let paths = report.paths.iter().filter_map(path).collect();
        Self { version: VERSION, host: report.host, running_ns: report.running_ns, paths }
    }
}

impl Written {
    /// The report of a host. `None`: it is none, or another host's.
    fn read(bytes: &[u8], host: u16) -> Option<Report> {
        let written: Self = serde_json::from_slice(bytes).ok()?;
        if written.version != VERSION || written.host != host {
            return None;
        }
        let path = |(tier, plane, number, counts): WrittenPath| {
            let top = match tier {
                0 => Node::T0 { plane, number },
                1 => Node::T1 { plane, number },
                2 => Node::T2 { plane, number },
                _ => return None,
            };
            Some(PathReport { top, counts: counts.map(|(sent, lost)| Count { sent, lost }) })
        };
        let paths = written.paths.into_iter().map(path).collect::<Option<_>>()?;
        Some(Report { host, running_ns: written.running_ns, paths })
    }
}

/// A checksum of a topology.
fn checksum(fabric: &Fabric) -> u32 {
    let mut text = String::new();
    let shape = fabric.shape();
    let _ = write!(
        text,
        "{} {} {} {} {} {} {}",
        shape.planes, shape.t0, shape.t1, shape.pods, shape.t2, shape.block, shape.prefix
    );
    for host in fabric.hosts() {
        let _ = write!(text, "\n{} {} {}", host.name, host.t0, host.downlink);
    }
    crc32fast::hash(text.as_bytes())
}

/// What an agent, or who watches, shares with the thread that talks to the server.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The own report that was not written yet.
    own: Option<Vec<u8>>,
    events: VecDeque<String>,
    others: BTreeMap<u16, Other>,
    /// The reports of `others`.
    view: View,
    /// Rounds that have succeeded.
    rounds: u64,
    error: Option<String>,
    stop: bool,
}

/// The latest report of another agent.
struct Other {
    bytes: Vec<u8>,
    since: Instant,
}

impl State {
    /// Notes what the server has under a host's key.
    fn note(&mut self, host: u16, reply: Option<Vec<u8>>) {
        let is_known = |bytes: &Vec<u8>| self.others.get(&host).is_some_and(|other| other.bytes == *bytes);
        if reply.as_ref().is_some_and(is_known) {
            return;
        }
        if let Some((report, bytes)) = reply.and_then(|bytes| Some((Written::read(&bytes, host)?, bytes))) {
            self.view.insert(&report);
            self.others.insert(host, Other { bytes, since: Instant::now() });
        } else {
            self.view.remove(host);
            self.others.remove(&host);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the [module documentation](self).
pub struct Cluster {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Begins to connect. `host` is the own host; without one, it only watches.
    ///
    /// # Errors
    /// The URL cannot be read, or there is no thread.
    pub fn open(url: &str, fabric: &Fabric, host: Option<u16>) -> Result<Self, ClusterError> {
        let client = Client::open(url).map_err(ClusterError::Url)?;
        let shared = Arc::<Shared>::default();
        let prefix = format!("spindrift:agent:{:08x}", checksum(fabric));
        let hosts = (0..fabric.hosts().len() as u16).filter(|other| Some(*other) != host).collect();
        let worker = Worker { client, prefix, host, hosts, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("store".to_owned()).spawn(move || worker.run());
        Ok(Self { shared, worker: Some(thread.map_err(ClusterError::Thread)?) })
    }

    /// Has a report of the own agent written, in place of one that still waits.
    pub fn publish(&self, report: &Report) {
        self.shared.lock().own = serde_json::to_vec(&Written::from(report)).ok();
    }

    /// Has something written to the stream of events.
    pub fn tell(&self, event: String) {
        let mut state = self.shared.lock();
        state.events.push_back(event);
        let over = state.events.len().saturating_sub(MAX_EVENTS);
        state.events.drain(..over);
    }

    /// What the other agents report now.
    pub fn view(&self) -> View {
        let state = self.shared.lock();
        let mut view = state.view.clone();
        let stale = state.others.iter().filter(|(_, other)| other.since.elapsed() >= STALE);
        stale.for_each(|(host, _)| view.remove(*host));
        view
    }

    /// The hosts whose agents report now.
    pub fn hosts(&self) -> Vec<u16> {
        let state = self.shared.lock();
        let live = state.others.iter().filter(|(_, other)| other.since.elapsed() < STALE);
        live.map(|(host, _)| *host).collect()
    }

    /// How often reports were read, and why the server cannot be reached, if so.
    pub fn condition(&self) -> (u64, Option<String>) {
        let state = self.shared.lock();
        (state.rounds, state.error.clone())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// The thread that talks to the server.
struct Worker {
    client: Client,
    prefix: String,
    host: Option<u16>,
    hosts: Vec<u16>,
    shared: Arc<Shared>,
}

impl Worker {
    fn key(&self, host: u16) -> String {
        format!("{}:{host}", self.prefix)
    }

    fn run(self) {
        let mut connection = None;
        loop {
            let began = Instant::now();
            let done = self.round(&mut connection);
            let mut state = self.shared.lock();
            match done {
                Ok(()) => (state.error, state.rounds) = (None, state.rounds + 1),
                Err(error) => {
                    connection = None;
                    state.error = Some(error.to_string());
                }
            }
            let left = INTERVAL.saturating_sub(began.elapsed());
            let waited = self.shared.changed.wait_timeout_while(state, left, |state| !state.stop);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.stop {
                drop(state);
                if let (Some(host), Some(connection)) = (self.host, &mut connection) {
                    // It expires otherwise.
                    let _ = redis::cmd("DEL").arg(self.key(host)).exec(connection);
                }
                return;
            }
        }
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    /// Writes what waits, and reads the reports of the others.
    fn round(&self, connection: &mut Option<Connection>) -> RedisResult<()> {
        if connection.is_none() {
            *connection = Some(self.connect()?);
        }
        let Some(connection) = connection else { return Ok(()) };
        let (own, events) = {
            let mut state = self.shared.lock();
            (state.own.take(), state.events.iter().cloned().collect::<Vec<_>>())
        };
        if let (Some(host), Some(own)) = (self.host, own) {
            redis::cmd("SET").arg(self.key(host)).arg(own).arg("PX").arg(EXPIRY_MS).exec(connection)?;
        }
        for event in events {
            let stream = format!("{}:events", self.prefix);
            let host = self.host.map_or_else(String::new, |host| host.to_string());
            redis::cmd("XADD")
                .arg(stream)
                .arg(&["MAXLEN", "~", &STREAM.to_string(), "*", "host", &host, "event", &event])
                .exec(connection)?;
            self.shared.lock().events.pop_front();
        }
        let mut found: Vec<(u16, Option<Vec<u8>>)> = Vec::new();
        for hosts in self.hosts.chunks(512) {
            let keys: Vec<String> = hosts.iter().map(|host| self.key(*host)).collect();
            let replies: Vec<Option<Vec<u8>>> = redis::cmd("MGET").arg(keys).query(connection)?;
            found.extend(hosts.iter().copied().zip(replies));
        }
        let mut state = self.shared.lock();
        for (host, reply) in found {
            state.note(host, reply);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use spindrift_srv6::{FabricHost, Shape};

    use super::*;

    fn fabric(names: &[&str], t1: u16) -> Fabric {
        let hosts =
            names.iter().zip(0..).map(|(name, t0)| FabricHost { name: (*name).into(), t0, downlink: 0 });
        Fabric::new(Shape { planes: 2, t0: names.len() as u16, t1, ..Shape::default() }, hosts.collect())
            .unwrap()
    }

    fn report() -> Report {
        let counts = [(1, 0), (20, 1), (300, 2), (4000, 3)].map(|(sent, lost)| Count { sent, lost });
        let tops = [
            Node::T0 { plane: 1, number: 2 },
            Node::T1 { plane: 0, number: 300 },
            Node::T2 { plane: 31, number: 7 },
        ];
        let paths = tops.map(|top| PathReport { top, counts }).to_vec();
        Report { host: 9, running_ns: 5_000_000_000, paths }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let bytes = serde_json::to_vec(&Written::from(&report())).unwrap();
        assert_eq!(Written::read(&bytes, 9), Some(report()));
        assert_eq!(Written::read(&bytes, 8), None, "under the key of another host");
    }

    /// The view has the reports of those hosts whose keys hold one, and the latest of each.
    #[test]
    fn the_view_follows_the_server() {
        let mut state = State::default();
        let hosts = |state: &State| state.view.hosts().collect::<Vec<_>>();
        let bytes = |report: &Report| serde_json::to_vec(&Written::from(report)).unwrap();
        state.note(9, Some(bytes(&report())));
        assert_eq!((hosts(&state), state.others.len()), (vec![9], 1));
        let since = state.others[&9].since;
        state.note(9, Some(bytes(&report())));
        assert_eq!(state.others[&9].since, since, "an agent that has stopped writes nothing new");
        let newer = Report { paths: vec![], ..report() };
        state.note(9, Some(bytes(&newer)));
        assert_eq!(state.view, View::new([&newer]));
        for gone in [None, Some(b"{}".to_vec())] {
            state.note(9, Some(bytes(&report())));
            state.note(9, gone);
            assert_eq!((hosts(&state), state.others.len()), (vec![], 0));
        }
    }

    #[test]
    fn what_is_no_report_is_none() {
        let text = serde_json::to_string(&Written::from(&report())).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("[0,1,2,", "[3,1,2,"),
            ("[0,1,2,", "[0,1,"),
            ("[4000,3]", "[4000,-3]"),
            ("{", "[{"),
            ("\"host\":9", "\"host\":9,\"more\":1"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            assert_eq!(Written::read(changed.as_bytes(), 9), None, "{changed}");
        }
    }

    #[test]
    fn fabrics_are_told_apart() {
        let all = [fabric(&["a", "b"], 2), fabric(&["a", "c"], 2), fabric(&["a", "b"], 3)];
        let sums = all.each_ref().map(checksum);
        assert!(sums[0] != sums[1] && sums[0] != sums[2] && sums[1] != sums[2]);
        // Agents of several versions and machines must agree.
        assert_eq!(checksum(&fabric(&["a", "b"], 2)), sums[0]);
    }

    #[test]
    fn without_a_server_there_is_an_error_and_nothing_else() {
        let fabric = fabric(&["a", "b"], 2);
        assert!(Cluster::open("http://127.0.0.1", &fabric, None).is_err());
        let cluster = Cluster::open("redis://127.0.0.1:9", &fabric, Some(0)).unwrap();
        let began = Instant::now();
        while cluster.condition().1.is_none() {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(1));
        }
        cluster.publish(&report());
        for number in 0..2 * MAX_EVENTS {
            cluster.tell(number.to_string());
        }
        let state = cluster.shared.lock();
        assert_eq!((state.rounds, state.events.len()), (0, MAX_EVENTS));
        assert_eq!(state.events.front().map(String::as_str), Some("1000"), "the oldest are dropped");
        drop(state);
        assert_eq!((cluster.view(), cluster.hosts()), (View::default(), vec![]));
    }
}
