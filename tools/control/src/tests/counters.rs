//! Counters through control sockets, and as metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use spindrift::counters::Counters;
use spindrift::endpoint::{DenyRule, Endpoint};

use super::{Folder, Pair, change, deny};
use crate::counters::RttTotals;
use crate::prometheus::{list, text};
use crate::{CountersReport, Reply, Request, Seen, Server, Socket, Watch};

/// Counters of lanes that ports count too.
const TWICE: [&str; 2] = ["rx_frames", "tx_frames"];

fn counters(socket: &Socket) -> CountersReport {
    match socket.ask(&Request::Counters).unwrap() {
        Reply::Counters(report) => *report,
        other => panic!("{other:?}"),
    }
}

/// A report in which each number is another one, the round-trip times included.
fn numbered() -> CountersReport {
    let folder = Folder::new("numbered");
    let pair = Pair::new(&[0]);
    let (_server, socket) = pair.serve(&folder);
    let mut report = counters(&socket);
    let mut next = 1_000;
    let mut number = || {
        next += 1;
        next
    };
    report.planes.truncate(1);
    let plane = &mut report.planes[0];
    for values in
        [&mut report.transport, &mut report.lanes, &mut plane.counters, &mut report.queue_pairs.states]
    {
        for value in values.values_mut() {
            *value = number();
        }
    }
    let evs = &mut plane.evs;
    for value in [&mut evs.good, &mut evs.skip, &mut evs.reserve, &mut evs.assumed_bad, &mut evs.denied] {
        *value = number();
    }
    report.queue_pairs.sends_outstanding = number();
    report.deny_rules = number();
    let ns = [1, 2, 3, 4].map(|step| step * 1_000_000_000);
    let [min_ns, p50_ns, p99_ns, max_ns] = ns;
    report.queue_pairs.rtt = RttTotals { queue_pairs: 4, min_ns, p50_ns, p99_ns, max_ns };
    CountersReport { process: 42, context: 3, program: "say \"a\\b\"\nc".to_owned(), ..report }
}

/// Name and labels, and the value.
fn samples(text: &str) -> Vec<(&str, f64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect()
}

#[test]
fn a_process_reports_its_counters() {
    let folder = Folder::new("counts");
    let pair = Pair::new(&[0, 0]);
    let (_server, socket) = pair.serve(&folder);
    let report = counters(&socket);
    assert_eq!((report.process, &*report.program, report.planes.len()), (std::process::id(), "a test", 4));
    let names: BTreeSet<_> = report.transport.keys().map(String::as_str).collect();
    assert_eq!(names, Counters::default().iter().map(|(name, ..)| name).collect());
    assert!(report.lanes["polls"] > 0, "{:?}", report.lanes);
    assert_eq!(report.queue_pairs.states["RTS"], 2);
    assert_eq!(report.queue_pairs.states.values().sum::<u64>(), 2);
    let evs = |report: &CountersReport| {
        report.planes.iter().map(|plane| (plane.evs.good > 0, plane.evs.denied > 0)).collect::<Vec<_>>()
    };
    assert_eq!((evs(&report), report.deny_rules), (vec![(true, false); 4], 0));
    // Those in use, and those in reserve.
    let states = |endpoint: &mut Endpoint| {
        let qpns: Vec<_> = endpoint.qpns().collect();
        let all =
            qpns.into_iter().flat_map(|qpn| endpoint.ev_states(qpn).unwrap()).filter(|ev| ev.plane == 1);
        all.partition::<Vec<_>, _>(|ev| ev.active)
    };
    let (active, reserve) = pair.contexts[0].with_endpoint(states).unwrap();
    let of_plane = report.planes[1].evs;
    assert_eq!((of_plane.good, of_plane.reserve), (active.len() as u64, reserve.len() as u64));
    assert!(of_plane.reserve > 0, "{of_plane:?}");
    change(&socket, &deny("operator", &[DenyRule::Plane { plane: 2 }], None));
    let report = counters(&socket);
    let expected = [(true, false), (true, false), (false, true), (true, false)];
    assert_eq!((evs(&report), report.deny_rules), (expected.to_vec(), 1));
    // Another context of the process is another one.
    let _other = Server::start(&folder.dir(), "the peer", pair.contexts[1].clone()).unwrap();
    let seen = Watch::all(vec![folder.dir(), folder.dir()]).look();
    let contexts: BTreeSet<_> = seen.contexts.iter().map(|of| (of.context, &*of.program)).collect();
    assert_eq!((contexts.len(), seen.contexts.len()), (2, 2), "{contexts:?}");
    let other = |process| process != std::process::id();
    assert_eq!(Watch::only(vec![folder.dir()], other).look(), Seen::default());
}

/// One that is missing in the table, there twice or of a wrong name would not be seen otherwise.
#[test]
fn each_counter_is_in_one_metric() {
    let report = numbered();
    let mut expected: BTreeMap<u64, String> = BTreeMap::new();
    for (group, values) in
        [("transport", &report.transport), ("lanes", &report.lanes), ("plane", &report.planes[0].counters)]
    {
        let shown = values.iter().filter(|(name, _)| group != "lanes" || !TWICE.contains(&&***name));
        expected.extend(shown.map(|(name, value)| (*value, name.clone())));
    }
    let seen = Seen { contexts: vec![report], ..Seen::default() };
    let text = text(&seen);
    let mut known = BTreeSet::new();
    for (name, value) in samples(&text) {
        expected.remove(&(value as u64));
        assert!(value <= 1_000.0 || known.insert(value as u64), "{name} is there twice");
    }
    assert_eq!(expected, BTreeMap::new(), "these are in no metric");
}

/// Names, labels and units are an interface. `SPINDRIFT_BLESS=1` writes the file anew.
#[test]
fn the_metrics_are_these() {
    let seen =
        Seen { contexts: vec![numbered()], silent: vec![7], errors: vec!["x".to_owned(); 2], omitted: 3 };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/metrics.txt");
    let text = text(&seen);
    if std::env::var_os("SPINDRIFT_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap());
}

#[test]
fn round_trip_times_that_are_not_known_are_not_shown() {
    let seen = Seen { contexts: vec![CountersReport::default()], ..Seen::default() };
    assert!(!text(&seen).contains("spindrift_transport_rtt_seconds{"));
    assert_eq!(list(&seen.contexts[0]), []);
}

/// Sockets of stopped processes: the look ends, and says which they are.
#[test]
fn silent_processes_are_named_and_too_many_are_not_asked() {
    let folder = Folder::new("silent");
    folder.dir().prepare().unwrap();
    let listen = |process: u32| UnixListener::bind(folder.0.join(format!("{process}-0.sock"))).unwrap();
    let _listeners: Vec<_> = (1..=66).map(listen).collect();
    let seen = Watch::all(vec![folder.dir()]).look();
    assert_eq!(seen, Seen { silent: (1..=64).collect(), omitted: 2, ..Seen::default() });
}

/// One that sends a byte now and then is as silent as one that sends nothing.
#[test]
fn a_reply_without_end_is_none() {
    let folder = Folder::new("slow");
    folder.dir().prepare().unwrap();
    let listener = UnixListener::bind(folder.0.join("8-0.sock")).unwrap();
    let server = std::thread::spawn(move || {
        // The first one only looks whether somebody listens.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let seen = Watch::all(vec![folder.dir()]).look();
    assert_eq!(seen, Seen { silent: vec![8], ..Seen::default() });
    server.join().unwrap();
}

/// A process of an older version, one that refuses, and a folder that cannot be trusted.
#[test]
fn reasons_are_told() {
    let folder = Folder::new("reasons");
    folder.dir().prepare().unwrap();
    let serve = |process: u32, reply: &'static [u8]| {
        let listener = UnixListener::bind(folder.0.join(format!("{process}-0.sock"))).unwrap();
        std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            stream.write_all(reply).unwrap();
        })
    };
    let servers = [
        serve(5, b"{\"error\":\"not a request that version 0.0.9 knows\"}"),
        serve(6, b"{\"moved\":{\"now\":[],\"later\":[],\"without_roles\":[]}}"),
        serve(7, b""),
    ];
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let seen = Watch::all(vec![folder.dir(), crate::ControlDir::at(&file)]).look();
    for server in servers {
        server.join().unwrap();
    }
    let [bad, old, other] = &*seen.errors else { panic!("{seen:?}") };
    assert!(bad.contains("file: "), "{bad}");
    assert!(old.starts_with("process 5 ") && old.contains("version 0.0.9"), "{old}");
    assert!(other.starts_with("process 6 ") && other.contains("another request"), "{other}");
    assert_eq!((seen.contexts.len(), seen.silent.len()), (0, 0), "one that has ended is none");
}
