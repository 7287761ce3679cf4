//! The Wireshark dissector against `spindrift dissect`. tshark has to be there unless `SPINDRIFT_SKIP_TSHARK=1` says
//! that it may be missing; with `SPINDRIFT_REQUIRE_TSHARK`, which `tools/test.sh` sets, it has to be there all the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;
use support::{capture_of, encapsulated, frames, run, stderr, stdout, with_extensions, write_capture};

/// What to do where tshark may be missing.
#[derive(Debug, PartialEq, Eq)]
enum Tshark {
    Use,
    Skip,
    Fail,
}

fn decide(there: bool, require: Option<&str>, skip: Option<&str>) -> Tshark {
    let required = require.is_some_and(|value| !matches!(value, "" | "0"));
    match (there, skip) {
        (false, _) if required => Tshark::Fail,
        (_, Some("1")) if !required => Tshark::Skip,
        (true, _) => Tshark::Use,
        (false, _) => Tshark::Fail,
    }
}

#[test]
fn a_missing_tshark_fails_unless_it_may_be_skipped() {
    assert_eq!(decide(false, Some("1"), Some("1")), Tshark::Fail, "required says more than skipped");
    assert_eq!(decide(false, Some("1"), None), Tshark::Fail);
    assert_eq!(decide(false, None, None), Tshark::Fail);
    assert_eq!(decide(false, None, Some("1")), Tshark::Skip);
    assert_eq!(decide(true, None, Some("1")), Tshark::Skip);
    assert_eq!(decide(true, Some("1"), Some("1")), Tshark::Use);
    assert_eq!(decide(true, Some("0"), None), Tshark::Use);
}

/// tshark with the dissector, ready to read `capture`; `None` where the test is to be skipped.
fn tshark(capture: &Path) -> Option<Command> {
    let there = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    let var = |name| std::env::var(name).ok();
    let (require, skip) = (var("SPINDRIFT_REQUIRE_TSHARK"), var("SPINDRIFT_SKIP_TSHARK"));
    match decide(there, require.as_deref(), skip.as_deref()) {
        Tshark::Use => {}
        Tshark::Skip => {
            eprintln!("skipped: SPINDRIFT_SKIP_TSHARK=1");
            return None;
        }
        Tshark::Fail => panic!(
            "tshark does not start; tools/setup.sh --tests installs it; SPINDRIFT_SKIP_TSHARK=1 without \
             SPINDRIFT_REQUIRE_TSHARK goes without"
        ),
    }
    let mut tshark = Command::new("tshark");
    let script = concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../wireshark/mrc.lua");
    tshark.args(["-X", script, "-T", "fields", "-E", "separator=|", "-r"]).arg(capture);
    Some(tshark)
}

/// Names of the Wireshark fields of a packet, with their values as `dissect --json` gives them.
fn wireshark_fields(packet: &Json) -> Vec<(String, Json)> {
    let mut fields = Vec::new();
    for (name, value) in packet.as_object().unwrap() {
        match value {
            Json::Object(header) => {
                fields.extend(
                    header.iter().map(|(field, value)| (format!("mrc.{name}.{field}"), value.clone())),
                );
            }
            _ if name == "trimmed" || name == "payload_len" => {
                fields.push((format!("mrc.{name}"), value.clone()));
            }
            _ => {}
        }
    }
    fields
}

/// A value of either side as a number where it is one.
fn normal(value: &str) -> String {
    let digits = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match (digits, value) {
        (Some(number), _) => number.to_string(),
        (None, "true" | "True") => "1".to_owned(),
        (None, "false" | "False") => "0".to_owned(),
        _ => value.replace(':', ""),
    }
}

fn of_json(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => normal(text),
        other => normal(&other.to_string()),
    }
}

/// Asserts that tshark and `dissect` find the same packets with the same fields; returns how many fields. What one of
/// the two calls malformed has none to compare.
fn assert_same_fields(capture: &Path) -> Option<usize> {
    let mut tshark = tshark(capture)?;
    let output = run(&["dissect", capture.to_str().expect("UTF-8"), "--json"]);
    let json: Json = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let packets = json["packets"].as_array().unwrap();
    let mut names: Vec<String> = packets.iter().flat_map(wireshark_fields).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    tshark.args(["-e", "frame.number"]);
    for name in &names {
        tshark.args(["-e", name]);
    }
    let output = tshark.output().unwrap();
    let errors = stderr(&output);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let table = stdout(&output);
    assert_eq!(table.lines().count() as u64, json["totals"]["frames"].as_u64().unwrap(), "{table}");
    assert!(!table.contains("Lua"), "{table}");
    for row in table.lines() {
        let mut row = row.split('|');
        let number = row.next().unwrap();
        let packet = packets.iter().find(|packet| packet["number"].as_u64() == number.parse().ok());
        if packet.is_some_and(|packet| packet["error"] != Json::Null) {
            continue;
        }
        let expected = packet.map(wireshark_fields).unwrap_or_default();
        for (name, found) in names.iter().zip(row) {
            let ours = expected.iter().find(|(ours, _)| ours == name).map(|(_, value)| of_json(value));
            assert_eq!(normal(found), ours.unwrap_or_default(), "frame {number}, {name}");
        }
    }
    Some(names.len())
}

#[test]
fn wireshark_agrees_on_every_field() {
    let fields = assert_same_fields(&write_capture("tshark.pcap"));
    assert!(fields.is_none_or(|fields| fields > 89), "every header is there: {fields:?}");
}

/// An extension header of Segment Routing with these segments, the last of the way first.
fn segment_routing(left: u8, segments: &[&[u8]]) -> (u8, Vec<u8>) {
    let mut body = vec![4, left, segments.len().saturating_sub(1) as u8, 0, 0, 0];
    body.extend(segments.concat());
    (43, body)
}

/// The iCRC covers the destination that the packet has where it arrives, which is not the one that it was captured with.
#[test]
fn wireshark_follows_the_extension_headers_that_dissect_follows() {
    let plain = frames()[0].clone();
    let end = plain[38..54].to_vec();
    let (via, other) = ([0xfc; 16], [0xfd; 16]);
    let hop = (0, vec![1, 4, 0, 0, 0, 0]);
    let options = (60, vec![1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A packet on its way, with the headers and the destination that it has there.
    let on_its_way = |headers: &[(u8, Vec<u8>)], destination: &[u8]| {
        let mut frame = with_extensions(&plain, headers);
        frame[38..54].copy_from_slice(destination);
        frame
    };
    let mut too_long = with_extensions(&plain, std::slice::from_ref(&hop));
    too_long[55] = 255;
    let mut inside = too_long.clone();
    inside[55] = 0;
    inside[18..20].copy_from_slice(&[0, 8]);
    let mut other_type = segment_routing(1, &[&other, &via]);
    other_type.1[0] = 253;
    let good = [
        with_extensions(&plain, std::slice::from_ref(&hop)),
        with_extensions(&plain, std::slice::from_ref(&options)),
        on_its_way(&[segment_routing(1, &[&end, &via])], &via),
        on_its_way(&[segment_routing(2, &[&end, &other, &via])], &via),
        on_its_way(&[hop.clone(), options, segment_routing(1, &[&end, &via])], &via),
        // Arrived: the list says nothing any more.
        on_its_way(&[segment_routing(0, &[&other, &via])], &end),
        // The last of two lists counts.
        on_its_way(&[segment_routing(1, &[&other, &via]), segment_routing(1, &[&end, &via])], &via),
        on_its_way(&[other_type], &end),
        with_extensions(&plain, &vec![hop.clone(); 8]),
    ];
    let none = [
        with_extensions(&plain, &vec![hop.clone(); 9]),
        with_extensions(&plain, &vec![hop; 150]),
        too_long,
        inside,
    ];
    let capture = capture_of("wireshark-extensions.pcap", &[&good[..], &none].concat());
    let output = run(&["dissect", capture.to_str().unwrap(), "--json"]);
    let json: Json = serde_json::from_slice(&output.stdout).unwrap();
    let right =
        json["packets"].as_array().unwrap().iter().filter(|packet| packet["icrc"]["good"] == true).count();
    assert_eq!((right, &json["totals"]["packets"]), (good.len(), &good.len().into()), "{json}");
    assert_same_fields(&capture);
}

/// In packets that are carried inside an outer one, switches mark the outer header, and trim all of it.
#[test]
fn wireshark_sees_the_marks_that_switches_make_on_outer_headers() {
    let mut all = Vec::new();
    for (number, plain) in frames().iter().enumerate() {
        let v6 = plain[12] == 0x86;
        let (next, ip) = (if v6 { 41 } else { 4 }, &plain[14..]);
        let dscp = if v6 { (ip[0] << 4 | ip[1] >> 4) >> 2 } else { ip[1] >> 2 };
        // What was trimmed before it came into the outer packet is none that a switch makes.
        if [12, 16].contains(&dscp) {
            continue;
        }
        let class = [8 << 2 | 3, 12 << 2, 16 << 2 | 1][number % 3];
        for srh in [false, true] {
            let routing = segment_routing(0, &[&[0xfc; 16]]).1;
            let (next, between) =
                if srh { (43, [&[next, 2][..], &routing].concat()) } else { (next, Vec::new()) };
            // A trimmed one has lost its end.
            let kept = if class >> 2 == 8 { ip.len() } else { ip.len().min(100) };
            let len = ((between.len() + kept) as u16).to_be_bytes();
            let head = [0x60 | class >> 4, class << 4, 0, 0, len[0], len[1], next, 64];
            all.push([&[2; 12][..], &[0x86, 0xdd], &head, &[0xfc; 32], &between, &ip[..kept]].concat());
        }
    }
    let Some(fields) = assert_same_fields(&capture_of("carried.pcap", &all)) else { return };
    assert!(fields > 20, "{fields}");
}

/// Source ports are entropy: one that another protocol has as its own takes no packet from MRC.
#[test]
fn no_source_port_takes_packets_from_the_wireshark_dissector() {
    let ports = [4754u16, 910, 3250, 0xc001];
    let frames: Vec<_> = ports
        .iter()
        .map(|port| {
            let mut frame = frames()[0].clone();
            frame[54..56].copy_from_slice(&port.to_be_bytes());
            frame
        })
        .collect();
    let path = capture_of("source-ports.pcap", &frames);
    let Some(mut tshark) = tshark(&path) else { return };
    let output = tshark.args(["-e", "mrc.bth.psn"]).output().unwrap();
    assert_eq!(stdout(&output), "256\n".repeat(ports.len()));
}

#[test]
fn wireshark_looks_through_the_encapsulations_that_dissect_looks_through() {
    for (name, plain) in [("v6", &frames()[0]), ("v4", &frames()[13])] {
        // Nothing in MPLS says that a pseudowire is one: Wireshark asks its user, `dissect` looks for an IP header.
        let is_pseudowire = |name: &str, frame: &[u8]| name == "MPLS" && frame.ends_with(plain);
        let all: Vec<_> = encapsulated(plain)
            .into_iter()
            .filter(|(name, frame)| !is_pseudowire(name, frame))
            .map(|(_, frame)| frame)
            .collect();
        assert_same_fields(&capture_of(&format!("wireshark-encapsulated-{name}.pcap"), &all));
    }
}

/// Writes pcapng blocks in one byte order.
struct Blocks {
    big: bool,
    bytes: Vec<u8>,
}

impl Blocks {
    fn u16(&self, value: u16) -> [u8; 2] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn u32(&self, value: u32) -> [u8; 4] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, words: &[u32], rest: &[u8]) {
        let len = self.u32((12 + 4 * words.len() + rest.len().next_multiple_of(4)) as u32);
        self.bytes.extend([self.u32(kind), len].concat());
        let words: Vec<_> = words.iter().flat_map(|word| self.u32(*word)).collect();
        self.bytes.extend(words);
        self.bytes.extend(rest);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(len);
    }

    fn section(&mut self, big: bool) {
        self.big = big;
        let version = [self.u16(1), self.u16(0)].concat();
        let order = self.u32(0x1a2b_3c4d);
        self.block(0x0a0d_0d0a, &[], &[&order[..], &version, &[0xff; 8]].concat());
    }

    fn interface(&mut self, snap_len: u32, resolution: Option<u8>, offset_s: Option<i64>) {
        // A comment that is no UTF-8 is nobody's business.
        let mut rest =
            [&self.u16(1)[..], &[0, 0], &self.u32(snap_len), &self.u16(1), &self.u16(2), &[0xff, 0xfe, 0, 0]]
                .concat();
        if let Some(resolution) = resolution {
            rest.extend([&self.u16(9)[..], &self.u16(1), &[resolution, 0, 0, 0]].concat());
        }
        if let Some(offset_s) = offset_s {
            let value = if self.big { offset_s.to_be_bytes() } else { offset_s.to_le_bytes() };
            rest.extend([&self.u16(14)[..], &self.u16(8), &value].concat());
        }
        rest.extend([0; 4]);
        self.block(1, &[], &rest);
    }

    fn enhanced(&mut self, interface: u32, ticks: u64, frame: &[u8]) {
        let len = frame.len() as u32;
        self.block(6, &[interface, (ticks >> 32) as u32, ticks as u32, len, len], frame);
    }

    fn obsolete(&mut self, interface: u16, ticks: u64, frame: &[u8]) {
        let first = [self.u16(interface), self.u16(0xffff)].concat();
        let len = frame.len() as u32;
        let words = [(ticks >> 32) as u32, ticks as u32, len, len].map(|word| self.u32(word)).concat();
        self.block(2, &[], &[&first[..], &words, frame].concat());
    }

    /// Blocks without packets: statistics, names, a custom block, one of an unknown type, an empty one.
    fn others(&mut self) {
        self.block(5, &[0, 0, 0], &[]);
        self.block(4, &[0], &[]);
        self.block(0xbad, &[32473], b"anything");
        self.block(0x7777_7777, &[1, 2, 3], &[]);
        self.block(0x7777_7778, &[], &[]);
    }
}

/// A capture of every kind of block and clock, from a seed.
fn generated(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let frames = frames();
    let mut file = Blocks { big: false, bytes: Vec::new() };
    let clocks: [(Option<u8>, u64); 8] = [
        (None, 1_000_000),
        (Some(0), 1),
        (Some(3), 1000),
        (Some(6), 1_000_000),
        (Some(9), 1_000_000_000),
        (Some(0x80), 1),
        (Some(0x8a), 1 << 10),
        (Some(0xa0), 1 << 32),
    ];
    for _ in 0..=random(4) {
        file.section(random(2) == 1);
        let mut rates = Vec::new();
        for _ in 0..=random(3) {
            let (resolution, per_second) = clocks[random(8) as usize];
            let offset_s = [None, Some(3600), Some(-86_400)][random(3) as usize];
            file.interface([0, 262_144][random(2) as usize], resolution, offset_s);
            rates.push(per_second);
        }
        for _ in 0..random(40) {
            let frame = &frames[random(20) as usize];
            let interface = random(rates.len() as u64);
            let per_second = rates[interface as usize];
            let ticks = (1_000_000 + random(100)) * per_second + random(per_second);
            match random(5) {
                0 => file.obsolete(interface as u16, ticks, frame),
                1 => file.block(3, &[frame.len() as u32], frame),
                2 => file.others(),
                _ => file.enhanced(interface as u32, ticks, frame),
            }
        }
    }
    file.bytes
}

/// Nanoseconds of a time as tshark prints it, in seconds.
fn ns_of(text: &str) -> Option<i64> {
    let (secs, fraction) = text.split_once('.')?;
    Some(secs.parse::<i64>().ok()? * 1_000_000_000 + format!("{fraction:0<9}").parse::<i64>().ok()?)
}

#[test]
fn wireshark_finds_the_same_packets_at_the_same_times_in_pcapng_files() {
    for seed in 0..6 {
        let path = support::temp(&format!("generated-{seed}.pcapng"));
        std::fs::write(&path, generated(seed)).unwrap();
        let Some(mut tshark) = tshark(&path) else { return };
        // Wireshark lists custom blocks among the packets; they have no Ethernet header.
        let fields = ["-Y", "eth", "-e", "frame.number", "-e", "frame.time_epoch"];
        let table = stdout(&tshark.args(fields).output().unwrap());
        let rows = table.lines().map(|row| row.split_once('|').unwrap());
        let (numbers, times): (Vec<_>, Vec<_>) =
            rows.map(|(number, time)| (number.parse::<u64>().unwrap(), ns_of(time))).unzip();
        let first = times.iter().flatten().next().copied();
        let output = run(&["dissect", path.to_str().unwrap(), "--json"]);
        let json: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["error"], &json["totals"]["frames"]), (&Json::Null, &times.len().into()), "{seed}");
        let expected: Vec<_> =
            times.iter().map(|time| time.zip(first).map(|(time, first)| time - first)).collect();
        let packets = json["packets"].as_array().unwrap();
        let found: Vec<_> = packets.iter().map(|packet| packet["time_ns"].as_i64()).collect();
        assert_eq!(found, expected, "{seed}");
        let found: Vec<_> = packets.iter().map(|packet| packet["number"].as_u64().unwrap()).collect();
        assert_eq!(found, numbers, "{seed}");
        std::fs::remove_file(path).unwrap();
    }
}
