//! A context with queue pairs whose planes have roles, and clients of all kinds.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use spindrift::endpoint::{DenyRule, Endpoint};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{Context, ContextConfig, Idle, LaneMode, Qp, QpConfig, nic};

use super::*;

mod counters;

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spindrift-ctl-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn dir(&self) -> ControlDir {
        ControlDir::at(&self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two connected contexts of four planes, with a queue pair without roles and some whose last two planes stand by.
struct Pair {
    contexts: [Context; 2],
    qps: Vec<[Qp; 2]>,
}

impl Pair {
    /// Lanes have threads of their own, as control calls of an application's own lane need it to poll.
    fn new(standby: &[u32]) -> Self {
        let (left, right) = loopback::pair(4, LoopbackConfig::default());
        let contexts = [left, right].map(|ports| {
            let ports = nic(ports);
            let mode = LaneMode::Thread { core: None, idle: Idle::Yield };
            let config = ContextConfig::new(&ports).lane(mode);
            Context::open(ports, config).unwrap()
        });
        let qps = standby.iter().map(|&standby| Self::connect(&contexts, standby)).collect();
        Self { contexts, qps }
    }

    /// Another pair of queue pairs.
    fn connect(contexts: &[Context; 2], standby: u32) -> [Qp; 2] {
        let path = PathConfig { standby: PlaneSet(standby), ..PathConfig::new(4) };
        let config = QpConfig { path, ..QpConfig::default() };
        let [mut left, mut right] = contexts.each_ref().map(|context| {
            let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(1024).unwrap());
            Qp::create(&pd, &cq, &cq, &config).unwrap()
        });
        left.connect(&right.info().unwrap()).unwrap();
        right.connect(&left.info().unwrap()).unwrap();
        [left, right]
    }

    /// The control socket of the first context, the only one in the folder.
    fn serve(&self, folder: &Folder) -> (Server, Socket) {
        let server = Server::start(&folder.dir(), "a test", self.contexts[0].clone()).unwrap();
        (server, only(&folder.dir()))
    }

    fn number(&self, index: usize) -> u32 {
        self.qps[index][0].qpn().get()
    }
}

fn only(dir: &ControlDir) -> Socket {
    let mut sockets = dir.sockets().unwrap();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    sockets.remove(0)
}

fn status(socket: &Socket) -> Status {
    match socket.ask(&Request::Status).unwrap() {
        Reply::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

fn prefer(socket: &Socket, role: Role, queue_pair: Option<u32>) -> Moved {
    match socket.ask(&Request::Prefer { role, queue_pair }).unwrap() {
        Reply::Moved(moved) => moved,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_operator_sees_and_moves_queue_pairs() {
    let folder = Folder::new("moves");
    let pair = Pair::new(&[0, 0b1100, 0b1100]);
    let (server, socket) = pair.serve(&folder);
    assert_eq!((socket.process(), socket.path()), (std::process::id(), server.path()));

    let seen = status(&socket);
    assert_eq!((&*seen.program, seen.process, seen.lanes), ("a test", std::process::id(), 1));
    assert_eq!(
        seen.planes.iter().map(|plane| (plane.plane, plane.up)).collect::<Vec<_>>(),
        [(0, true), (1, true), (2, true), (3, true)]
    );
    let of = |seen: &Status, index| {
        let number = pair.number(index);
        seen.queue_pairs.iter().find(|qp| qp.queue_pair == number).unwrap().clone()
    };
    assert_eq!(seen.queue_pairs.len(), 3);
    let [plain, first, second] = [0, 1, 2].map(|index| of(&seen, index));
    assert_eq!((plain.queue_pair, &*plain.state, &plain.roles), (pair.number(0), "RTS", &None));
    assert_eq!(plain.peer.as_ref().unwrap().queue_pair, pair.qps[0][1].qpn().get());
    assert_eq!(plain.planes, [0, 1, 2, 3]);
    for qp in [first, second] {
        let roles = qp.roles.as_ref().unwrap();
        assert_eq!((&roles.primary[..], &roles.standby[..]), (&[0, 1][..], &[2, 3][..]));
        assert_eq!((&roles.serving[..], roles.preferred), (&[0, 1][..], Role::Primary));
    }

    // One, then all, then back.
    let moved = prefer(&socket, Role::Standby, Some(pair.number(1)));
    assert_eq!(moved, Moved { now: vec![pair.number(1)], ..Moved::default() });
    let serving = |index: usize| pair.qps[index][0].role_status().unwrap().unwrap().serving;
    assert_eq!([1, 2].map(serving), [PlaneSet(0b1100), PlaneSet(0b0011)]);
    let mut both = vec![pair.number(1), pair.number(2)];
    both.sort_unstable();
    let all = Moved { now: both, without_roles: vec![pair.number(0)], ..Moved::default() };
    assert_eq!(prefer(&socket, Role::Standby, None), all);
    assert_eq!([1, 2].map(serving), [PlaneSet(0b1100); 2]);
    assert_eq!(of(&status(&socket), 2).roles.as_ref().unwrap().preferred, Role::Standby);
    assert_eq!(prefer(&socket, Role::Primary, None), all);
    assert_eq!([1, 2].map(serving), [PlaneSet(0b0011); 2]);

    // A number that no queue pair has.
    let reply = socket.ask(&Request::Prefer { role: Role::Primary, queue_pair: Some(0xffff) }).unwrap();
    assert_eq!(reply, Reply::Error("there is no queue pair 0x00ffff".to_owned()));
    drop(server);
    assert_eq!(folder.dir().sockets().unwrap(), []);
}

#[test]
fn a_queue_pair_moves_later_if_the_role_is_not_fit() {
    let folder = Folder::new("later");
    let pair = Pair::new(&[0b1100]);
    let (_server, socket) = pair.serve(&folder);
    let deny = |endpoint: &mut Endpoint| {
        let qpn = endpoint.qpns().next().unwrap();
        [2, 3].map(|plane| endpoint.deny_plane(qpn, plane))
    };
    assert_eq!(pair.contexts[0].with_endpoint(deny).unwrap(), [true; 2]);
    let moved = prefer(&socket, Role::Standby, None);
    assert_eq!(moved, Moved { later: vec![pair.number(0)], ..Moved::default() });
}

/// More queue pairs than one control call visits.
#[test]
fn all_queue_pairs_of_a_lane_are_visited() {
    let folder = Folder::new("many");
    let pair = Pair::new(&[0b1000; 37]);
    let (_server, socket) = pair.serve(&folder);
    let mut numbers: Vec<_> = (0..37).map(|index| pair.number(index)).collect();
    numbers.sort_unstable();
    let seen: Vec<_> = status(&socket).queue_pairs.iter().map(|qp| qp.queue_pair).collect();
    assert_eq!(seen, numbers);
    assert_eq!(prefer(&socket, Role::Standby, None).now, numbers);
}

/// What a client sends, and what it gets.
fn raw(socket: &Socket, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket.path()).unwrap();
    // The server may have closed it already.
    let _ = stream.write_all(request);
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    reply
}

#[test]
fn bad_requests_get_a_reason_and_do_no_harm() {
    let folder = Folder::new("bad");
    let pair = Pair::new(&[0b1100]);
    let (_server, socket) = pair.serve(&folder);
    for request in [
        &b"hello\n"[..],
        b"{\"request\":\"fly\"}\n",
        b"{\"request\":\"prefer\"}\n",
        b"{\"request\":\"prefer\",\"role\":\"both\"}\n",
        b"{\"request\":\"prefer\",\"role\":\"standby\",\"queue_pair\":-1}\n",
        b"{\"request\":\"prefer\",\"role\":\"standby\",\"all\":1}\n",
        b"\xff\xfe\n",
    ] {
        let reply = raw(&socket, request);
        assert!(reply.starts_with("{\"error\":\"not a request that version"), "{request:?}: {reply}");
    }
    assert_eq!(raw(&socket, &vec![b'x'; 100_000]), "");
    assert_eq!(raw(&socket, b"\n"), "");
    // Without the end of the line the server waits until its limit, and serves the next client.
    let silent = UnixStream::connect(socket.path()).unwrap();
    assert_eq!(status(&socket).queue_pairs.len(), 1);
    drop(silent);
    // Several at once.
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let socket = socket.clone();
            std::thread::spawn(move || status(&socket).queue_pairs.len())
        })
        .collect();
    assert!(clients.into_iter().all(|client| client.join().unwrap() == 1));
}

/// Otherwise a program would not end while somebody is connected.
#[test]
fn a_server_ends_while_a_client_says_nothing() {
    let folder = Folder::new("ends");
    let pair = Pair::new(&[0]);
    let server = Server::start(&folder.dir(), "a test", pair.contexts[0].clone()).unwrap();
    let mut silent = UnixStream::connect(server.path()).unwrap();
    silent.write_all(b"{\"request\":").unwrap();
    let path = server.path().to_owned();
    drop(server);
    assert!(!path.exists());
    let mut rest = Vec::new();
    assert_eq!(silent.read_to_end(&mut rest).unwrap_or(0), 0);
}

#[test]
fn each_context_of_a_process_has_a_socket() {
    let folder = Folder::new("failed");
    let pair = Pair::new(&[0]);
    let (_server, socket) = pair.serve(&folder);
    // Two contexts of one process have a socket each.
    let _other = Server::start(&folder.dir(), "the peer", pair.contexts[1].clone()).unwrap();
    let sockets = folder.dir().sockets().unwrap();
    let programs: Vec<_> = sockets.iter().map(|socket| status(socket).program).collect();
    assert_eq!(programs, ["a test", "the peer"]);
    drop(pair.qps);
    assert_eq!(status(&socket).queue_pairs, []);
    assert_eq!(prefer(&socket, Role::Standby, None), Moved::default());
}

#[test]
fn a_socket_whose_process_has_gone_is_removed() {
    let folder = Folder::new("stale");
    assert_eq!(folder.dir().sockets().unwrap(), [], "no folder");
    folder.dir().prepare().unwrap();
    let stale = folder.0.join("77-0.sock");
    drop(UnixListener::bind(&stale).unwrap());
    for other in ["notes.txt", "77.sock", "x-0.sock", "77-0.socket"] {
        fs::write(folder.0.join(other), "").unwrap();
    }
    assert!(stale.exists());
    assert_eq!(folder.dir().sockets().unwrap(), []);
    assert!(!stale.exists());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 4, "what is not ours stays");
    // It went between the list and the request.
    let gone = Socket::new(77, stale);
    assert_eq!(gone.try_ask(&Request::Status).unwrap(), None);
    let error = gone.ask(&Request::Status).unwrap_err().to_string();
    assert!(error.contains("77-0.sock: nobody listens"), "{error}");
}

/// Others list the folder, and remove sockets at which nobody listens, while sockets are opened.
#[test]
fn a_socket_is_not_removed_while_it_is_opened() {
    const OPENED: u32 = 300;
    let folder = Folder::new("opened");
    let pair = Pair::new(&[]);
    let ended = AtomicBool::new(false);
    let kept = std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    folder.dir().sockets().unwrap();
                }
            });
        }
        let open = |_: &u32| {
            let server = Server::start(&folder.dir(), "a test", pair.contexts[0].clone());
            server.is_ok_and(|server| server.path().exists())
        };
        let kept = (0..OPENED).filter(open).count();
        ended.store(true, Ordering::Relaxed);
        kept
    });
    assert_eq!(kept, OPENED as usize);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing is left");
}

/// Numbers that no process here has, as the system gives none above 4194304.
#[test]
fn a_new_socket_sweeps_those_of_killed_processes_away() {
    let folder = Folder::new("sweep");
    folder.dir().prepare().unwrap();
    let at = |name: &str| folder.0.join(name);
    drop(UnixListener::bind(at("5000001-0.sock")).unwrap());
    let _in_a_container = UnixListener::bind(at("5000002-0.sock")).unwrap();
    // A process that exists is asked only when somebody lists the sockets.
    drop(UnixListener::bind(at("1-0.sock")).unwrap());
    let pair = Pair::new(&[]);
    let _server = Server::start(&folder.dir(), "a test", pair.contexts[0].clone()).unwrap();
    let left = ["5000001-0.sock", "5000002-0.sock", "1-0.sock"].map(|name| at(name).exists());
    assert_eq!(left, [false, true, true]);
}

/// A listener that never accepts is what a stopped process looks like.
#[test]
fn a_process_that_does_not_reply_is_named() {
    let folder = Folder::new("stopped");
    folder.dir().prepare().unwrap();
    let path = folder.0.join("4242-0.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let socket = only(&folder.dir());
    // Its queue is full: no client waits for it.
    let mut waiting = Vec::new();
    let full = loop {
        match socket.connect() {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100_000);
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    let error = socket.ask(&Request::Status).unwrap_err().to_string();
    assert!(error.contains("process 4242 does not reply"), "{error}");
    // It ends.
    drop(listener);
    drop(waiting);
    assert_eq!(folder.dir().sockets().unwrap(), []);
}

#[test]
fn a_reply_of_another_version_is_no_reply() {
    let folder = Folder::new("version");
    folder.dir().prepare().unwrap();
    let path = folder.0.join("5-0.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(b"{\"weather\":\"fine\"}").unwrap();
        request
    });
    let error = Socket::new(5, path).ask(&Request::Status).unwrap_err().to_string();
    assert!(error.contains("process 5 sent no reply that this version understands"), "{error}");
    assert_eq!(server.join().unwrap(), b"{\"request\":\"status\"}\n");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = Folder::new("unsafe");
    folder.dir().prepare().unwrap();
    assert_eq!(fs::metadata(&folder.0).unwrap().permissions().mode() & 0o777, 0o700);
    let pair = Pair::new(&[]);
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(&folder.0, Permissions::from_mode(mode)).unwrap();
        let error = Server::start(&folder.dir(), "a test", pair.contexts[0].clone()).unwrap_err().to_string();
        assert!(error.contains(&format!("others may write to it (mode {mode:o})")), "{error}");
        assert!(folder.dir().sockets().unwrap_err().to_string().contains("others may write"));
    }
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(folder.dir().sockets().unwrap(), []);
    // No folder at all, and a link to one.
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    let error =
        Server::start(&ControlDir::at(&file), "a test", pair.contexts[0].clone()).unwrap_err().to_string();
    assert!(error.contains("cannot be made"), "{error}");
    let link = folder.0.join("link");
    std::os::unix::fs::symlink("/tmp", &link).unwrap();
    let error = ControlDir::at(&link).sockets().unwrap_err().to_string();
    assert!(error.contains("it is no folder"), "{error}");
}

#[test]
fn each_user_has_a_folder() {
    let of = |runtime: Option<&str>| ControlDir::of_user(runtime.map(PathBuf::from)).path().to_owned();
    if rustix::process::geteuid().is_root() {
        assert_eq!(of(Some("/run/user/7")), PathBuf::from("/run/spindrift"));
    } else {
        assert_eq!(of(Some("/run/user/7")), PathBuf::from("/run/user/7/spindrift"));
        let own = format!("/tmp/spindrift-{}", rustix::process::geteuid().as_raw());
        assert_eq!([of(None), of(Some("here"))], [PathBuf::from(&own), PathBuf::from(&own)]);
    }
}

fn change(socket: &Socket, request: &Request) -> Vec<(String, DenyRule)> {
    match socket.ask(request).unwrap() {
        Reply::Denied(entries) => entries.into_iter().map(|entry| (entry.source, entry.rule)).collect(),
        other => panic!("{other:?}"),
    }
}

fn deny(source: &str, rules: &[DenyRule], lifetime_ms: Option<u64>) -> Request {
    Request::Deny { source: source.to_owned(), rules: rules.to_vec(), replace: false, lifetime_ms }
}

fn allow(source: &str, rules: &[DenyRule]) -> Request {
    Request::Allow { source: source.to_owned(), rules: rules.to_vec() }
}

/// The planes that each queue pair of the first context uses.
fn used(pair: &Pair) -> Vec<u32> {
    pair.qps
        .iter()
        .map(|[qp, _]| {
            let qpn = qp.qpn();
            pair.contexts[0].with_endpoint(|endpoint| endpoint.deny_list_status(qpn)).unwrap()
        })
        .map(|status| 0b1111 & !status.unwrap_or_default().avoided.0)
        .collect()
}

#[test]
fn an_operator_denies_and_allows_planes() {
    let folder = Folder::new("denies");
    let mut pair = Pair::new(&[0, 0]);
    let (_server, socket) = pair.serve(&folder);
    let [one, two] = [1, 2].map(|plane| DenyRule::Plane { plane });
    let by = |source: &str, rule: &DenyRule| (source.to_owned(), rule.clone());
    assert_eq!(change(&socket, &deny("operator", std::slice::from_ref(&one), None)), [by("operator", &one)]);
    assert_eq!(used(&pair), [0b1101; 2]);
    // Another source, a queue pair that comes later, and what is shown of it.
    change(&socket, &deny("agent", &[two.clone(), one.clone()], None));
    let later = Pair::connect(&pair.contexts, 0);
    pair.qps.push(later);
    assert_eq!(used(&pair), [0b1001; 3]);
    let seen = status(&socket);
    let entries: Vec<_> =
        seen.denied.iter().map(|entry| (&*entry.source, &entry.rule, entry.left_ms)).collect();
    assert_eq!(entries, [("agent", &one, None), ("agent", &two, None), ("operator", &one, None)]);
    let denied =
        Denied { planes: vec![1, 2], avoided: vec![1, 2], evs: 0, released: false, silent_failovers: 0 };
    assert!(seen.queue_pairs.iter().all(|qp| qp.denied.as_ref() == Some(&denied)));
    // What one source allows, another may deny.
    assert_eq!(change(&socket, &allow("agent", &[])), [by("operator", &one)]);
    assert_eq!(used(&pair), [0b1101; 3]);
    assert_eq!(change(&socket, &allow("operator", std::slice::from_ref(&one))), []);
    assert_eq!((used(&pair), status(&socket).denied), (vec![0b1111; 3], vec![]));
    for (request, expected) in [
        (
            allow("operator", &[one]),
            "operator does not deny plane 1; `spindrift ctl status` shows what is denied",
        ),
        (deny("operator", &[DenyRule::Plane { plane: 77 }], None), "plane 77: at most 31"),
    ] {
        assert_eq!(socket.ask(&request).unwrap(), Reply::Error(expected.to_owned()));
    }
    assert_eq!(used(&pair), [0b1111; 3]);
}

#[test]
fn rules_with_a_lifetime_end_by_themselves() {
    let folder = Folder::new("lifetimes");
    let pair = Pair::new(&[0]);
    let (_server, socket) = pair.serve(&folder);
    let rule = |plane| DenyRule::Plane { plane };
    change(&socket, &deny("agent", &[rule(1)], Some(3_600_000)));
    change(&socket, &deny("agent", &[rule(2)], Some(1)));
    while used(&pair) != [0b1101] {
        std::thread::yield_now();
    }
    let left = status(&socket).denied[0].left_ms.unwrap();
    assert!((1..=3_600_000).contains(&left));
    // The longest list that there may be.
    let usids = [0xabcd; DenyRule::MAX_USIDS];
    let paths = (0..1024_u16).map(|last| DenyRule::Path {
        plane: 31,
        usids: [&usids[..DenyRule::MAX_USIDS - 1], &[last]].concat(),
    });
    let rules = paths.collect();
    let all = Request::Deny { source: "agent".to_owned(), rules, replace: true, lifetime_ms: None };
    assert_eq!(change(&socket, &all).len(), 1024);
    assert_eq!(used(&pair), [0b1111]);
}
