//! The store over a real Redis server, which each test starts on a loopback address and stops.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a server is a process; a hang ends after a minute")]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spindrift::fallback::{Context, FallbackConfig, Nic, Record, SendState, Store, StoreError, StoreKey};
use spindrift::verbs::{self, Access, ContextConfig, QpConfig, SendOp, SendWr, Wc, nic};
use spindrift_pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift_redis::{RedisConfig, RedisStore};

/// Longer than anything here takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);

struct Server {
    port: u16,
    process: Child,
}

impl Server {
    fn start() -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::start_at(free.local_addr().unwrap().port())
    }

    fn start_at(port: u16) -> Self {
        // The same program as `redis-server`. The package with that name would also start a server for the whole machine.
        let process = Command::new("redis-check-rdb")
            .arg0("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-check-rdb: {error}; tools/setup.sh --tests installs it"));
        Self { port, process }
    }

    fn config(&self) -> RedisConfig {
        RedisConfig::new(format!("redis://127.0.0.1:{}", self.port))
    }

    fn store(&self) -> RedisStore {
        RedisStore::open(&self.config()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn key(rkey: u32) -> StoreKey {
    StoreKey::Region { home: "192.0.2.1:1234".to_owned(), rkey }
}

/// Calls until it returns what is wanted.
fn until<T: core::fmt::Debug>(mut call: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let got = call();
        if wanted(&got) {
            return got;
        }
        assert!(start.elapsed() < PATIENCE, "{got:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn has(store: &mut RedisStore, rkey: u32, record: u32) {
    let _ = until(|| store.get(&key(rkey)), |got| *got == Ok(Some(Record::Region(record))));
}

#[test]
fn one_side_gets_what_the_other_one_puts() {
    let server = Server::start();
    let (mut a, mut b) = (server.store(), server.store());
    let mut other = RedisStore::open(&RedisConfig { prefix: "other:".into(), ..server.config() }).unwrap();
    // The server may not be up yet: what was put is not lost.
    for rkey in 0..50 {
        let _ = a.put(&key(rkey), &Record::Region(rkey + 1000));
    }
    (0..50).for_each(|rkey| has(&mut b, rkey, rkey + 1000));
    a.put(&key(7), &Record::Region(7)).unwrap();
    has(&mut b, 7, 7);
    // Another job has other keys.
    other.put(&key(7), &Record::Region(70)).unwrap();
    has(&mut other, 7, 70);
    has(&mut b, 7, 7);
    // Keys go with the side that put them. Stopping takes as long as the server needs.
    let client = redis::Client::open(server.config().url).unwrap();
    let mut raw = client.get_connection().unwrap();
    let mut count = || redis::cmd("DBSIZE").query::<u32>(&mut raw).unwrap();
    assert_eq!(count(), 51);
    drop(a);
    assert_eq!(count(), 1);
}

#[test]
fn a_server_that_dies_is_an_error_until_it_is_back() {
    let server = Server::start();
    let (mut a, mut b) = (server.store(), server.store());
    let _ = a.put(&key(1), &Record::Region(1));
    has(&mut b, 1, 1);
    let port = server.port;
    drop(server);
    let StoreError(error) = until(|| b.get(&key(1)), Result::is_err).unwrap_err();
    assert!(error.contains("Redis server"), "{error}");
    until(|| a.put(&key(2), &Record::Region(2)), Result::is_err).unwrap_err();
    let _server = Server::start_at(port);
    has(&mut b, 2, 2);
    until(|| a.put(&key(3), &Record::Region(3)), Result::is_ok).unwrap();
}

#[test]
fn what_is_no_record_is_an_error() {
    let server = Server::start();
    let mut store = server.store();
    let client = redis::Client::open(server.config().url).unwrap();
    until(|| client.get_connection().is_ok(), |connected| *connected);
    let mut raw = client.get_connection().unwrap();
    for junk in [&b"{}"[..], b"", b"\xff\xff", b"{\"region\":-1}", b"{\"pair\":{\"generation\":1}}"] {
        redis::cmd("SET").arg(key(5).to_string()).arg(junk).exec(&mut raw).unwrap();
        let StoreError(error) = until(|| store.get(&key(5)), |got| !matches!(got, Ok(None))).unwrap_err();
        assert!(error.contains("spindrift:2:region:192.0.2.1:1234:00000005"), "{error}");
    }
}

#[test]
fn a_bad_url_is_named_and_its_password_is_not() {
    for url in ["", "redis", "http://127.0.0.1", "redis://:secret@:x"] {
        let StoreError(error) = RedisStore::open(&RedisConfig::new(url)).unwrap_err();
        assert!(error.contains("redis://host[:port]") && !error.contains("secret"), "{url}: {error}");
    }
}

#[test]
fn a_server_that_does_not_reply_holds_nothing_up() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let config = RedisConfig { timeout: Duration::from_millis(20), ..RedisConfig::new(url) };
    let mut store = RedisStore::open(&config).unwrap();
    until(|| store.get(&key(1)), Result::is_err).unwrap_err();
    let _ = store.put(&key(1), &Record::Region(1));
    drop(store);
}

/// Two NICs of a side, with fallback.
fn side(ports: [Vec<LoopbackPort>; 2], store: RedisStore) -> Context {
    let [default, backup] = ports.map(|ports| {
        let ports = nic(ports);
        let config = ContextConfig::new(&ports);
        verbs::Context::open(ports, config).unwrap()
    });
    Context::open(&default, &backup, Box::new(store), 256, FallbackConfig::default()).unwrap()
}

#[test]
fn queue_pairs_are_armed_through_it() {
    let server = Server::start();
    let (here, there) = loopback::pair(1, LoopbackConfig::default());
    let (here_too, there_too) = loopback::pair(1, LoopbackConfig::default());
    let mut a = side([here, here_too], server.store());
    let mut b = side([there, there_too], server.store());
    let source = a.register(64, Access::LOCAL_READ).unwrap();
    let target = b.register(64, Access::REMOTE_WRITE).unwrap();
    let (ours, theirs) =
        (a.create_qp(&QpConfig::default()).unwrap(), b.create_qp(&QpConfig::default()).unwrap());
    b.connect(theirs, &a.info(ours).unwrap()).unwrap();
    a.connect(ours, &b.info(theirs).unwrap()).unwrap();
    let mut out = [Wc::default(); 4];
    let mut poll = |a: &mut Context, b: &mut Context| {
        b.poll(&mut out);
        let count = a.poll(&mut out);
        (count == 1).then(|| out[0])
    };
    let armed = |context: &Context, qp| context.is_prepared(qp, Nic::Backup).unwrap();
    until(|| poll(&mut a, &mut b).map_or(armed(&a, ours) && armed(&b, theirs), |_| false), |armed| *armed);
    a.prefer(ours, Nic::Backup).unwrap();
    let moved = |a: &Context| a.state(ours).unwrap().0 == SendState::Fallback;
    until(|| poll(&mut a, &mut b).map_or(moved(&a), |_| false), |moved| *moved);
    // The key of the target on the backup NIC is in the store too.
    source.region().write_at(0, b"through Redis").unwrap();
    let (local, remote) = (source.sge(0, 13).unwrap(), target.remote().at(0, 13).unwrap());
    a.post_send(ours, SendWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true, fence: false })
        .unwrap();
    let wc = until(|| poll(&mut a, &mut b), Option::is_some).unwrap();
    assert!(wc.status.is_success(), "{wc:?}");
    let mut bytes = [0; 13];
    target.region().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"through Redis");
}
