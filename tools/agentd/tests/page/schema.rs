//! The answers of the interface, against their schemas.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{Context, ContextConfig, nic};
use spindrift_agentd::runner::Event;
use spindrift_control::ControlDir;

use crate::made_up::{MadeUp, fabric, finding};

const DOCUMENT: &str = "/api/v1/openapi.json";

pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let status = std::str::from_utf8(&reply[9..12]).unwrap().parse().unwrap();
    (status, reply[end + 4..].to_vec())
}

fn json_of(address: SocketAddr, path: &str) -> Value {
    serde_json::from_slice(&get(address, path).1).unwrap()
}

/// The schemas of a document.
struct Document {
    root: Value,
    compiler: Compiler,
    schemas: Schemas,
}

impl Document {
    fn of(address: SocketAddr) -> Self {
        let document = json_of(address, DOCUMENT);
        let mut compiler = Compiler::new();
        compiler.add_resource("http://agent/openapi.json", document.clone()).unwrap();
        Self { root: document, compiler, schemas: Schemas::new() }
    }

    /// The schema of the JSON answer to a path with this status, if it is JSON.
    fn schema(&mut self, path: &str, status: &str) -> Option<SchemaIndex> {
        let answer = &self.root["paths"][path]["get"]["responses"][status];
        assert!(answer.is_object(), "{path} {status} is not in the document");
        let name = answer["content"]["application/json"]["schema"]["$ref"].as_str()?;
        Some(self.compiler.compile(&format!("http://agent/openapi.json{name}"), &mut self.schemas).unwrap())
    }

    fn is_valid(&self, schema: SchemaIndex, value: &Value) -> bool {
        self.schemas.validate(value, schema).is_ok()
    }
}

/// Objects whose keys are names of counters, of which there may be more or fewer.
const BY_NAME: [&str; 4] = ["transport", "lanes", "counters", "states"];

/// All objects in a value whose keys are given, as JSON pointers.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if BY_NAME.iter().any(|name| at.rsplit('/').next() == Some(*name)) {
                return;
            }
            found.push(at.to_owned());
            fields.iter().for_each(|(key, value)| objects(value, &format!("{at}/{key}"), found));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(place, value)| objects(value, &format!("{at}/{place}"), found));
        }
        _ => {}
    }
}

/// The answer is as the schema says, and would not be with any field more or less.
fn check(document: &Document, schema: SchemaIndex, path: &str, value: &Value) -> usize {
    if let Err(error) = document.schemas.validate(value, schema) {
        panic!("{path}: {error:#}\n{value:#}");
    }
    let mut found = Vec::new();
    objects(value, "", &mut found);
    for pointer in &found {
        let fields = value.pointer(pointer).unwrap().as_object().unwrap();
        for key in fields.keys() {
            let mut less = value.clone();
            less.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(key);
            assert!(!document.is_valid(schema, &less), "{path}: without {pointer}/{key}");
        }
        let mut more = value.clone();
        more.pointer_mut(pointer).unwrap()["more"] = json!(1);
        assert!(!document.is_valid(schema, &more), "{path}: with more in {pointer}");
    }
    found.len()
}

#[test]
fn answers_are_as_the_document_says() {
    let well = MadeUp::new(fabric(2, 2, 3, 1));
    // With a process that has counted something.
    let folder = std::env::temp_dir().join(format!("spindrift-schema-{}", std::process::id()));
    let processes = vec![ControlDir::at(&folder)];
    let ports = nic(loopback::pair(2, LoopbackConfig::default()).0);
    let config = ContextConfig::new(&ports);
    let context = Context::open(ports, config).unwrap();
    let process = spindrift_control::Server::start(&processes[0], "a test", context).unwrap();
    let mut faulty = MadeUp::new(fabric(2, 2, 3, 1));
    faulty.processes = processes;
    let fault = finding("switch", &["p0-t1-1", "p0-t1-2"], 1.0, faulty.start);
    faulty.published.note(&Event::Opened(fault.clone()));
    faulty.note(finding("link", &["p0-t0-0:p0-t1-1"], 0.5, faulty.start - 9.0), faulty.start);
    faulty.now(&[("p0-t1-1", 1.0)], vec![fault], Some(""));
    let lost = MadeUp::new(fabric(2, 2, 3, 1));
    lost.now(&[], vec![], Some("Connection refused"));
    for (made_up, what) in [(&well, "nothing"), (&faulty, "faults"), (&lost, "no store")] {
        let server = made_up.serve("127.0.0.1:0", &[(7, &[("p0-t1-1", 1.0)])]);
        let address = server.address();
        let mut document = Document::of(address);
        let paths: Vec<String> = document.root["paths"].as_object().unwrap().keys().cloned().collect();
        let (mut answers, mut parts) = (0, 0);
        for path in paths {
            let asked = path.replace("{id}", "3").replace("{name}", "p0-t0-0:p0-t1-1");
            let (status, body) = get(address, &asked);
            assert_eq!(status, 200, "{asked}");
            if let Some(schema) = document.schema(&path, "200") {
                parts += check(&document, schema, &asked, &serde_json::from_slice(&body).unwrap());
                answers += 1;
            }
            if path.contains('{') {
                let (status, body) = get(address, &path.replace("{id}", "99").replace("{name}", "a:b"));
                let schema = document.schema(&path, "404").unwrap();
                assert_eq!(status, 404, "{path}");
                check(&document, schema, &path, &serde_json::from_slice(&body).unwrap());
            }
        }
        assert_eq!(answers, 6, "{what}");
        assert!(parts >= 16, "{what}: {parts}");
        if what == "faults" {
            let seen = json_of(address, "/api/v1/processes");
            assert_eq!(seen["contexts"][0]["planes"].as_array().unwrap().len(), 2, "{seen:#}");
            let metrics = String::from_utf8(get(address, "/metrics/transport").1).unwrap();
            assert!(metrics.contains("program=\"a test\",plane=\"1\",state=\"good\"}"), "{metrics}");
        }
    }
    drop(process);
    std::fs::remove_dir_all(folder).unwrap();
}

/// All that is described is used: a schema that nothing refers to is of a field that is gone.
#[test]
fn the_document_has_no_schema_too_many() {
    let server = MadeUp::new(fabric(1, 1, 0, 1)).serve("127.0.0.1:0", &[]);
    let document = json_of(server.address(), DOCUMENT);
    let text = document.to_string();
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(text.contains(&format!("\"#/components/schemas/{name}\"")), "{name}");
    }
}
