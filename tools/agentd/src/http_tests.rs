#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use spindrift_agent::{Count, PathReport, Report, View, Window};
use spindrift_srv6::{Fabric, FabricHost, Node, Shape};

use super::*;
use crate::history::History;
use crate::published::Published;
use crate::runner::Event;
use crate::snapshot::{FindingReport, Link, Part};

/// The head and the body of a reply.
fn ask(address: SocketAddr, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    (String::from_utf8(reply[..end].to_vec()).unwrap(), reply[end + 4..].to_vec())
}

fn get(address: SocketAddr, path: &str) -> (String, Vec<u8>) {
    get_as(address, path, &address.to_string())
}

fn get_as(address: SocketAddr, path: &str, host: &str) -> (String, Vec<u8>) {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

fn status_of(reply: &(String, Vec<u8>)) -> u16 {
    reply.0.split(' ').nth(1).unwrap().parse().unwrap()
}

fn object(reply: &(String, Vec<u8>)) -> Value {
    assert!(reply.0.starts_with("HTTP/1.1 200 OK"), "{reply:?}");
    serde_json::from_slice(&reply.1).unwrap()
}

fn text(reply: &(String, Vec<u8>)) -> String {
    String::from_utf8(reply.1.clone()).unwrap()
}

fn fabric() -> Fabric {
    let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
    let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
    Fabric::new(shape, vec![host("a", 0), host("b", 1)]).unwrap()
}

fn source(published: &Arc<Published>) -> Source {
    Source::new(fabric(), Arc::clone(published), View::default)
}

const T0: Node = Node::T0 { plane: 1, number: 0 };
const T1: Node = Node::T1 { plane: 1, number: 1 };

fn report(paths: &[(Node, u32, u32)]) -> Report {
    let path = |&(top, sent, lost): &(Node, u32, u32)| PathReport {
        top,
        counts: Window::ALL.map(|_| Count { sent, lost }),
    };
    Report { host: 0, running_ns: 1_000_000_000, paths: paths.iter().map(path).collect() }
}

fn start(source: Source) -> Server {
    Server::start("127.0.0.1:0".parse().unwrap(), source, None).unwrap()
}

#[test]
fn it_shows_what_is_published() {
    let published = Arc::new(Published::default());
    let server = start(source(&published));
    let known = Snapshot { host: "h7".to_owned(), ..Snapshot::default() };
    published.set(known.clone());
    let shown = object(&get(server.address(), "/api/v1/status"));
    assert_eq!(serde_json::from_value::<Snapshot>(shown).unwrap(), known);
    let metrics = get(server.address(), "/metrics");
    assert!(status_of(&metrics) == 200 && text(&metrics).contains("spindrift_agent_probes_sent_total 0"));
    let missing = get(server.address(), "/other");
    assert!(status_of(&missing) == 404 && text(&missing).contains("there is no such page"), "{missing:?}");
    let address = server.address();
    let post = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    assert_eq!(status_of(&ask(address, &post)), 405);
    // Somebody who says nothing keeps nobody from ending.
    let silent = TcpStream::connect(address).unwrap();
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    drop(silent);
}

#[test]
fn links_and_their_history_are_shown() {
    let published = Arc::new(Published::default());
    let mut history = History::default();
    let number = source(&published).layout.number((T0, T1)).unwrap();
    let mut levels = vec![1; 12];
    history.push(10.0, &levels);
    levels[number] = 4;
    history.push(20.0, &levels);
    let server = start(source(&published).with_history(history));
    let address = server.address();
    // Before the first report nothing is known.
    assert_eq!(object(&get(address, "/api/v1/summary"))["tally"], json!([12, 0, 0, 0, 0, 0, 0]));
    let part = |name: &str| Part { kind: "link".to_owned(), name: name.to_owned() };
    let fault = |name: &str| FindingReport { components: vec![part(name)], ..FindingReport::default() };
    published.note(&Event::Opened(fault("p1-t0-0:p1-t1-1")));
    published.note(&Event::Opened(fault("p1-t1-1")));
    published.note(&Event::Opened(fault("p1-t1-0")));
    published.report(report(&[(T0, 1_000, 0), (T1, 1_000, 50)]));
    let own = Link { lower: "p1-t0-0".to_owned(), upper: "p1-t1-1".to_owned(), flaps: 7, ..Link::default() };
    published.set(Snapshot { time: 30.0, links: vec![own], ..Snapshot::default() });
    for name in ["p1-t0-0:p1-t1-1", "p1-t1-1:p1-t0-0"] {
        let link = object(&get(address, &format!("/api/v1/link/{name}")));
        let shown = ["name", "level", "agents", "agent_count"].map(|key| link[key].clone());
        assert_eq!(shown, [json!("p1-t0-0:p1-t1-1"), json!("medium"), json!(["a"]), json!(1)]);
        assert_eq!(link["loss_10s"], json!({ "sent": 1000, "lost": 50, "net": 0.05 }));
        assert_eq!((&link["levels"], &link["own"]["flaps"]), (&json!([1, 4]), &json!(7)));
        assert_eq!(link["episodes"].as_array().unwrap().len(), 2, "of the link and of its end");
    }
    for name in ["p1-t0-0:p1-t1-9", "p1-t0-0", "a:b", "p1-t0-0:p1-t0-1"] {
        let reply = get(address, &format!("/api/v1/link/{name}"));
        assert!(
            status_of(&reply) == 404 && text(&reply).contains(&format!("{name}: no such link")),
            "{reply:?}"
        );
    }
    let past = object(&get(address, "/api/v1/history"));
    assert_eq!(past["episodes"].as_array().unwrap().len(), 3);
    let frames = past["frames"].as_array().unwrap();
    assert_eq!(frames.iter().map(|frame| frame["time"].as_f64().unwrap()).collect::<Vec<_>>(), [10.0, 20.0]);
    let frame = get(address, &format!("/api/v1/history/{}", frames[1]["id"]));
    assert!(frame.0.contains("application/octet-stream") && frame.1.starts_with(b"SPDR"), "{frame:?}");
    for id in ["0", "99", "x"] {
        assert_eq!(status_of(&get(address, &format!("/api/v1/history/{id}"))), 404, "{id}");
    }
    assert_eq!(object(&get(address, "/api/v1/fabric"))["links"], json!(12));
    // The levels stay for a moment as they were.
    let now = || object(&get(address, "/api/v1/summary"))["tally"].clone();
    let began = std::time::Instant::now();
    while now() != json!([10, 1, 0, 0, 1, 0, 0]) {
        assert!(began.elapsed() < Duration::from_mins(1), "{}", now());
    }
    let links = get(address, "/api/v1/links");
    assert!(links.1.starts_with(b"SPDR\x0c\0\0\0"), "{links:?}");
}

/// By itself, for as long as the server runs.
#[test]
fn a_server_keeps_history() {
    let published = Arc::new(Published::default());
    published.report(report(&[(T0, 1_000, 0)]));
    let step = Duration::from_millis(1);
    let server = Server::start_with("127.0.0.1:0".parse().unwrap(), source(&published), None, step).unwrap();
    let began = std::time::Instant::now();
    while object(&get(server.address(), "/api/v1/history"))["frames"].as_array().unwrap().len() < 3 {
        assert!(began.elapsed() < Duration::from_mins(1));
    }
}

#[test]
fn the_present_becomes_history() {
    let published = Arc::new(Published::default());
    let app = App::new(source(&published));
    app.record();
    let frames = || serde_json::to_value(app.past()).unwrap()["frames"].clone();
    assert_eq!(frames(), json!([]), "nothing was known");
    published.report(report(&[(T0, 1_000, 1_000)]));
    published.set(Snapshot { time: 30.0, ..Snapshot::default() });
    app.record();
    assert_eq!(
        frames(),
        json!([{ "id": 1, "time": 30.0, "seconds": STEP, "tally": [11, 0, 0, 0, 0, 0, 1] }])
    );
}

/// Each path of the interface is in the document of the interface, whose answers `tests/page/schema.rs` checks.
#[test]
fn the_document_has_all_paths() {
    let document = object(&get(start(source(&Arc::default())).address(), "/api/v1/openapi.json"));
    let known: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    let routes = include_str!("http.rs").split(".route(\"").skip(1);
    let mut routes: Vec<&str> = routes.map(|rest| rest.split('"').next().unwrap()).collect();
    routes.push("/api/v1/openapi.json");
    routes.sort_unstable();
    assert_eq!(known, routes);
}

#[test]
fn the_page_is_served_with_its_policy() {
    let server = start(source(&Arc::default()));
    for (path, kind, content) in page::FILES {
        let reply = get(server.address(), path);
        assert!(status_of(&reply) == 200 && text(&reply) == content, "{path}");
        assert!(reply.0.contains(&format!("content-type: {kind}")), "{}", reply.0);
    }
    // Whatever the answer is.
    for path in ["/", "/other", "/api/v1/status", "/metrics"] {
        let head = get(server.address(), path).0;
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{path}: {header}: {head}");
        }
        assert!(!head.contains("access-control-allow"), "{head}");
    }
}

/// A name that leads to this machine would let the page of another in.
#[test]
fn it_replies_to_requests_for_this_machine_alone() {
    let server = start(source(&Arc::default()));
    for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:9467", "[::1]", "[::1]:9467"] {
        assert_eq!(status_of(&get_as(server.address(), "/", host)), 200, "{host}");
    }
    for host in [
        "agent",
        "localhost.example.com",
        "example.com:9467",
        "10.0.0.1",
        "127.0.0.1.example.com",
        "[::2]:9467",
        "",
        ":80",
    ] {
        for path in ["/", "/api/v1/status", "/metrics"] {
            let reply = get_as(server.address(), path, host);
            assert!(
                status_of(&reply) == 421 && text(&reply).contains("only requests for localhost"),
                "{reply:?}"
            );
        }
    }
}

#[test]
fn it_listens_where_it_may() {
    let start = |address: &str| Server::start(address.parse().unwrap(), source(&Arc::default()), None);
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
        let error = start(address).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{address} is no loopback address")) && error.contains("--token-file"),
            "{error}"
        );
    }
    let first = start("127.0.0.1:0").unwrap();
    let error = start(&first.address().to_string()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {}: ", first.address())), "{error}");
}

fn token(name: &str) -> Token {
    use std::os::unix::fs::PermissionsExt as _;
    let place = std::env::temp_dir().join(format!("spindrift-http-{name}-{}", std::process::id()));
    std::fs::write(&place, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Token::read(&place).unwrap();
    std::fs::remove_file(&place).unwrap();
    token
}

/// Whatever name leads there: what keeps others out is the token.
#[test]
fn on_other_addresses_a_token_is_needed() {
    let token = token("others");
    let own = format!("Authorization: {}\r\n", token.header());
    let server = Server::start("0.0.0.0:0".parse().unwrap(), source(&Arc::default()), Some(token)).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], server.address().port()));
    for path in ["/api/v1/status", "/api/v1/processes", "/metrics", "/metrics/transport"] {
        let with = |header: &str| {
            let head = format!(
                "GET {path} HTTP/1.1\r\nHost: agent.example.com\r\n{header}Connection: close\r\n\r\n"
            );
            status_of(&ask(address, &head))
        };
        assert_eq!((with(""), with(&own)), (401, 200), "{path}");
    }
}

#[test]
fn with_a_token_requests_have_to_show_it() {
    let token = token("token");
    let header = token.header();
    let server = Server::start("127.0.0.1:0".parse().unwrap(), source(&Arc::default()), Some(token)).unwrap();
    let address = server.address();
    let with = |path: &str, header: &str| {
        ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{header}Connection: close\r\n\r\n"))
    };
    let own = format!("Authorization: {header}\r\n");
    let all = ["status", "summary", "fabric", "links", "history", "history/1", "link/a:p0-t0-0", "processes"];
    let all: Vec<String> = all.map(|path| format!("/api/v1/{path}")).into();
    for path in all.iter().map(String::as_str).chain(["/metrics", "/metrics/transport", "/other"]) {
        for header in
            ["", "Authorization: Bearer 0123456789abcdeg\r\n", "Authorization: Basic 0123456789abcdef\r\n"]
        {
            let reply = with(path, header);
            assert_eq!(status_of(&reply), 401, "{path}");
            assert!(
                reply.0.contains("www-authenticate: Bearer") && text(&reply).contains("a token is needed")
            );
            assert!(reply.0.contains("content-security-policy"), "{}", reply.0);
        }
        assert_ne!(status_of(&with(path, &own)), 401, "{path}");
    }
    // The page itself has no secret in it.
    for (path, ..) in page::FILES {
        assert_eq!(status_of(&with(path, "")), 200, "{path}");
    }
    // A token does not make a foreign name good.
    let foreign =
        format!("GET /api/v1/status HTTP/1.1\r\nHost: example.com\r\n{own}Connection: close\r\n\r\n");
    assert_eq!(status_of(&ask(address, &foreign)), 421);
}
