//! What the fuzz target `control` checks, shared with the replay that runs on a stable compiler: bytes of anybody, at the sockets by
//! which processes find each other.

use std::net::{IpAddr, SocketAddr};

use spindrift::endpoint::{Extensions, QpInfo};
use spindrift::path::PlaneSet;
use spindrift::time::Time;
use spindrift_programs::gid;

use crate::cm::message::{Lookup, Message};
use crate::datagram::{self, GRH};
use crate::handshake::{Action, Handshakes, Hello, Number, Peer};
use crate::mrc::ctl::state::DeviceState;
use crate::mrc::ctl::{bus, usage};

/// The hosts: this one, the one whose queue pair the program has named, and that one's second plane; and somebody else.
const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));
/// This side's queue pairs: one at RTR, one that is not; and the peer's.
const AT_RTR: Number = Number::new(1, 10);
const EARLY: Number = Number::new(1, 11);
const THEIRS: Number = Number::new(2, 20);
/// The nonce that this side has drawn. A peer knows it from this side's message alone.
const NONCE: u64 = 0x0123_4567_89ab_cdef;
/// What an input may be.
const KINDS: u8 = 7;
/// The first control port.
const PORT: u16 = 24_971;

fn is_of(host: IpAddr, address: IpAddr) -> bool {
    host == address || (host == PEER && address == SECOND)
}

/// What a queue pair offers.
fn offer() -> QpInfo {
    QpInfo {
        version: QpInfo::VERSION,
        qpn: 77,
        psn: 5,
        msn: 0,
        mpr: 8,
        max_wimm: 128,
        mtu: 4096,
        trim_nack: true,
        dynamic_mpr: false,
        icrc: true,
        udp_port: 4971,
        entropy: "udp".to_owned(),
        ports: vec![spindrift::endpoint::PortAddr { ip: PEER, mac: [0; 6] }],
        plane_ids: Vec::new(),
        extensions: Extensions::ALL,
        max_rd_atomic: 16,
    }
}

/// The first byte tells what the others are: datagrams of the control socket from one of three sources, datagrams at a port of
/// connections, the bytes of a connection in pieces, a message of a process of this host, or the state of a device.
///
/// # Panics
/// When a rule is broken.
pub fn control(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % KINDS {
        0 => datagrams(data, PEER),
        1 => datagrams(data, SECOND),
        2 => datagrams(data, STRANGER),
        3 => {
            if let Some(lookup) = Lookup::decode(data) {
                assert_eq!(lookup.encode(), *data);
            }
        }
        4 => connection(data, usize::from(kind / KINDS) + 1),
        5 => {
            if let Some(said) = bus::Message::decode(data) {
                assert_eq!(bus::Message::decode(&said.encode()), Some(said));
            }
        }
        _ => device(data),
    }
}

/// A file that somebody else may have written: what queue pairs make of it is something that they can have, or an error.
fn device(data: &[u8]) {
    const PLANES: u8 = 3;
    let Ok(state) = DeviceState::parse(data) else { return };
    for profile in state.profiles() {
        let paths = usage::paths(profile, PlaneSet(0b100), PLANES, |plane| 1 + u16::from(plane));
        if let Ok(paths) = paths {
            let checked = paths.config.validate();
            assert!(checked.is_ok(), "{checked:?} of {profile:?}");
        }
    }
}

/// One datagram after the other: each begins with its length, of two bytes.
fn datagrams(mut data: &[u8], source: IpAddr) {
    let mut handshakes = Handshakes::default();
    let (mut now, mut connected) = (Time(0), 0);
    for number in [AT_RTR, EARLY] {
        handshakes.created(number);
    }
    let peer = Peer { address: PEER, number: THEIRS };
    let sent = handshakes.on_rtr(now, AT_RTR, (peer, 0), (offer(), NONCE), is_of);
    let mut check = |actions: Vec<Action>, verified: bool| {
        for action in actions {
            match action {
                // What is sent goes to the one whom the program has named.
                Action::Send(to, _, hello) => {
                    assert_eq!((to, hello.from, hello.to), (peer, AT_RTR, THEIRS));
                    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
                }
                Action::Connect(number, _) => {
                    connected += 1;
                    assert!(number == AT_RTR && verified && connected == 1, "{number:?}");
                }
                Action::Fail(number, reason) => assert!(number == AT_RTR && verified, "{reason}"),
            }
        }
    };
    check(sent, false);
    while let Some((len, rest)) = data.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        data = rest;
        if let Some(hello) = Hello::decode(bytes) {
            assert_eq!(Hello::decode(&hello.encode()), Some(hello.clone()));
            let verified = hello.echo == NONCE && hello.from == THEIRS && is_of(PEER, source);
            let exists = |number| number == AT_RTR || number == EARLY;
            check(handshakes.on_hello(now, (source, 1), hello, exists, is_of), verified);
        }
        now = handshakes.next_timeout().min(now.after(1_000_000_000));
        check(handshakes.on_time(now), false);
        let from = SocketAddr::new(source, PORT + THEIRS.process() as u16);
        if let Some(found) = datagram::decode(bytes, from, OWN, PORT, is_of) {
            assert_eq!(found.head.from.process(), THEIRS.process());
            let route = datagram::Route::back(found.grh);
            assert!(is_of(gid::address(route.dgid), source) && gid::address(route.sgid) == OWN);
            assert_eq!(found.payload.len() + GRH + 24, bytes.len());
        }
    }
}

/// A connection whose bytes arrive in pieces.
fn connection(data: &[u8], piece: usize) {
    let mut arrived = Vec::new();
    for part in data.chunks(piece) {
        arrived.extend(part);
        loop {
            let before = arrived.len();
            match Message::take(&mut arrived) {
                Ok(Some(message)) => {
                    assert!(arrived.len() < before);
                    let mut again = message.encode();
                    assert_eq!(Message::take(&mut again), Ok(Some(message)));
                    assert!(again.is_empty());
                }
                Ok(None) => break,
                // The connection ends.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::path::PathBuf;

    use super::*;
    use crate::cm::message::tests::request;
    use crate::datagram::{Head, Route, begin};
    use crate::handshake::Body;
    use crate::mrc::ctl::state::Profile;

    const SEEDS: u64 = 60_000;
    /// A device with a profile of each mode.
    const STATE: &[u8] = br#"{"disabled":2,"formats":{"1":{"state":"online","mode":4,"widths":[8,8],"vendor":[]}},"ev":{
"1":{"state":"online","mode":"auto","format":null,"fields":[],"count":0,"entries":[],"widths":[],"min_active":4,"event_mask":3,"vendor":[]},
"2":{"state":"online","mode":"explicit","format":1,"fields":[],"count":2,"entries":[{"value":5000,"port":1},
{"value":5001,"port":2,"denied":true}],"widths":[8,8],"min_active":1,"event_mask":0,"vendor":[1]},
"3":{"state":"offline","mode":"generated","format":1,"fields":[{"width":8,"init":16,"min":1,"max":4,"mask":100}],"count":1,
"entries":[{"value":5120,"port":1}],"widths":[8,8],"min_active":0,"event_mask":0,"vendor":[]}},
"cc":{"9":{"state":"online","algorithm":"off","nscc":null,"vendor":[]}}}"#;

    /// An input of each kind.
    fn corpus() -> Vec<(&'static str, Vec<u8>)> {
        let hello = |body, echo| {
            Hello { from: THEIRS, to: AT_RTR, nonce: 9, echo, connected: true, settled: false, body }.encode()
        };
        let info = || Body::Info(Box::new(offer()));
        let early = Hello { to: EARLY, ..Hello::decode(&hello(info(), 0)).unwrap() }.encode();
        let head = Head { from: THEIRS, to: AT_RTR, qkey: 5, imm: Some(7) };
        let route =
            Route { sgid: gid::of(PEER), dgid: gid::of(OWN), flow_label: 1, traffic_class: 2, hop_limit: 64 };
        let datagram = [begin(&head, &route, 3), vec![1, 2, 3]].concat();
        let all = |kind: u8, parts: &[Vec<u8>]| {
            let sized = parts.iter().flat_map(|part| [&(part.len() as u16).to_be_bytes()[..], part].concat());
            [kind].into_iter().chain(sized).collect::<Vec<_>>()
        };
        let change = bus::Change { value: 5000, port: 2, state: 1 };
        let events = bus::Message::Events { profile: 7, changes: vec![change], lost: 2 };
        let refused = Body::Refused("no plane in common".to_owned());
        vec![
            ("connect", all(0, &[hello(info(), 0), hello(info(), NONCE)])),
            ("other-plane", all(1, &[hello(info(), NONCE), early, datagram.clone()])),
            ("refused", all(0, &[hello(refused, NONCE)])),
            ("stranger", all(2, &[hello(info(), NONCE), datagram])),
            ("lookup", [&[3][..], &Lookup { nonce: 3, port: Some(4000) }.encode()].concat()),
            ("request", [vec![4], request().encode(), Message::Ready.encode()].concat()),
            ("pieces", [vec![4 + KINDS * 6], Message::Reject { private: vec![9; 40] }.encode()].concat()),
            ("events", [vec![5], events.encode()].concat()),
            ("ask", [&[5][..], &bus::Message::Ask(Profile::Entropy(7)).encode()].concat()),
            ("state", [vec![6], STATE.to_vec()].concat()),
        ]
    }

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/control")
    }

    /// `SPINDRIFT_WRITE_CORPUS=1` writes it.
    #[test]
    fn the_corpus_is_up_to_date() {
        let write = std::env::var_os("SPINDRIFT_WRITE_CORPUS").is_some();
        for (name, bytes) in corpus() {
            let file = folder().join(name);
            if write {
                std::fs::create_dir_all(folder()).unwrap();
                std::fs::write(&file, &bytes).unwrap();
            }
            assert!(std::fs::read(&file).is_ok_and(|found| found == bytes), "{} is old", file.display());
        }
    }

    #[test]
    fn no_bytes_break_anything() {
        let corpus: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
        for input in &corpus {
            control(input);
        }
        for seed in 0..SEEDS {
            let mut state = seed;
            let mut below = |end: usize| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                (crate::nic::mix(state) % end.max(1) as u64) as usize
            };
            let mut input = corpus[below(corpus.len())].clone();
            for _ in 0..=below(6) {
                let at = below(input.len());
                match below(5) {
                    0 if !input.is_empty() => input[at] ^= 1 << below(8),
                    1 if !input.is_empty() => input[at] = below(256) as u8,
                    2 => input.truncate(at),
                    3 => input.insert(at, below(256) as u8),
                    _ => {
                        let other = &corpus[below(corpus.len())];
                        input.truncate(at);
                        input.extend_from_slice(&other[below(other.len())..]);
                    }
                }
            }
            let broken = std::panic::catch_unwind(|| control(&input)).is_err();
            assert!(!broken, "seed {seed}: {input:02x?}");
        }
    }
}
