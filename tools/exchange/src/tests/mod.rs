//! Connection set-up between two sides, and between a side and whatever speaks to it. Tests decision 13 of `docs/protocol.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unnecessary_wraps,
    reason = "a failed test is the message"
)]

mod agreement;
mod channel;
mod format;
mod store;

use core::sync::atomic::{AtomicBool, Ordering};
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::clock::Deadline;
use spindrift::endpoint::{PortAddr, QpInfo};

const PATIENCE: Duration = Duration::from_secs(20);

fn info(qpn: u32) -> QpInfo {
    QpInfo {
        version: QpInfo::VERSION,
        qpn,
        psn: 0xff_ff00,
        msn: 5,
        mtu: 4096,
        mpr: 32,
        max_wimm: 128,
        trim_nack: true,
        dynamic_mpr: false,
        icrc: true,
        udp_port: 4971,
        entropy: "stev-sport-high".into(),
        ports: (0..4)
            .map(|p| PortAddr { ip: format!("fd00::{p}:{qpn:x}").parse().unwrap(), mac: [p; 6] })
            .collect(),
        plane_ids: Vec::new(),
        extensions: spindrift::verbs::Extensions::NONE,
        max_rd_atomic: 0,
    }
}

fn offer(qpn: u32) -> Offer {
    Offer {
        qps: vec![info(qpn)],
        memory: vec![RemoteMr { addr: u64::MAX - 9, rkey: 7, len: 9 }],
        app: "size = 9".into(),
    }
}

/// Runs a client on a thread of its own and a server here; returns what each got.
fn meet<C: Send, S>(
    client: impl FnOnce(SocketAddr) -> C + Send,
    server: impl FnOnce(Channel) -> S,
) -> (C, S) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::scope(|scope: &Scope<'_, '_>| {
        let client = scope.spawn(move || client(address));
        let server = server(listener.accept(PATIENCE, || true).unwrap());
        (client.join().unwrap(), server)
    })
}

fn establish(_: &Offer, _: &[Negotiated]) -> Result<(), Infallible> {
    Ok(())
}
/// An offer as JSON, to be changed at will.
fn hello() -> Value {
    json!({
        "type": "offer",
        "protocol": "spindrift-exchange",
        "version": 1,
        "offer": offer(10),
    })
}

fn send(stream: &mut TcpStream, body: &[u8]) {
    stream.write_all(&(body.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

/// All that the other side still says, as JSON.
fn replies(stream: &mut TcpStream) -> Vec<Value> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let mut rest = bytes.as_slice();
    let mut messages = Vec::new();
    while let Some((prefix, more)) = rest.split_first_chunk() {
        let (body, more) = more.split_at(u32::from_be_bytes(*prefix) as usize);
        messages.push(serde_json::from_slice(body).unwrap());
        rest = more;
    }
    messages
}

/// A peer says `bytes` and listens: what it was told last, and what this side made of it.
fn peer_says(bytes: &[u8]) -> (Value, ExchangeError) {
    meet(
        |address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            let mut told = replies(&mut stream);
            told.pop().unwrap_or(Value::Null)
        },
        |mut channel| channel.agree(&offer(11), establish).unwrap_err(),
    )
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes(), body].concat()
}
