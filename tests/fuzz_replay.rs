//! A short run of the fuzz targets on a stable compiler: the corpus, and random changes of it.
//!
//! The seed of the changes is printed; `SPINDRIFT_FUZZ_SEED` repeats a run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(clippy::disallowed_methods, reason = "the seed to repeat comes by the environment")]

mod fuzz_bodies;

#[path = "fuzz_bodies/endpoints/mod.rs"]
mod endpoints;
#[path = "support/mod.rs"]
mod support;

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use spindrift::pmd::MacAddr;
use spindrift::wire::{
    Aeth, Bth, DataHead, Eeth, EndpointOp, Entropy, Erth, Meth, NakCode, Neth, OpPosition, Opcode, Packet,
    Peth, Psn, Qpn, Reth, Seth, StackTemplate, Tseth, icrc,
};

/// Changes tried for each target and seed.
const CHANGES: usize = 150_000;
/// The same, of programs for two endpoints.
const PROGRAMS: usize = 15_000;
/// Every so many inputs of the replay are random all over.
const FRESH: usize = 4;
/// The longest of these.
const FRESH_LEN: usize = 300;
/// The seed that every run includes.
const FIXED_SEED: u64 = 1;

fn corpus_of(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

fn read_corpus(target: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        fs::read_dir(corpus_of(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {target} is empty");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn seeds() -> Vec<u64> {
    match env::var("SPINDRIFT_FUZZ_SEED") {
        Ok(seed) => vec![seed.parse().expect("SPINDRIFT_FUZZ_SEED must be a decimal number")],
        Err(_) => vec![FIXED_SEED, RandomState::new().hash_one(0)],
    }
}

/// One to eight small changes: bits, bytes, length, and pieces of other inputs.
fn change(rng: &mut Xoshiro256PlusPlus, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let below = |rng: &mut Xoshiro256PlusPlus, n: usize| (rng.next_u64() % n.max(1) as u64) as usize;
    for _ in 0..=below(rng, 8) {
        let at = below(rng, input.len());
        match rng.next_u64() % 6 {
            0 if !input.is_empty() => input[at] ^= 1 << below(rng, 8),
            1 if !input.is_empty() => input[at] = rng.next_u64() as u8,
            2 if !input.is_empty() => input[at] = [0, 0xff, 0x7f, 0x80][below(rng, 4)],
            3 => input.truncate(at),
            4 => input.insert(at, rng.next_u64() as u8),
            _ => {
                let other = &corpus[below(rng, corpus.len())];
                input.truncate(at);
                input.extend_from_slice(&other[below(rng, other.len())..]);
            }
        }
    }
}

fn replay(target: &str, changes: usize, body: fn(&[u8])) {
    let corpus = read_corpus(target);
    let check = |input: &[u8], origin: &str| {
        let passed = catch_unwind(AssertUnwindSafe(|| body(input))).is_ok();
        assert!(passed, "{target} failed on {origin}, with these bytes: {input:02x?}");
    };
    for input in &corpus {
        check(input, "the corpus");
    }
    for seed in seeds() {
        println!("{target}: SPINDRIFT_FUZZ_SEED={seed}");
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        for round in 0..changes {
            let mut input = corpus[round / FRESH % corpus.len()].clone();
            if round % FRESH == 0 {
                input = vec![0; rng.next_u64() as usize % FRESH_LEN];
                rng.fill_bytes(&mut input);
            } else {
                change(&mut rng, &mut input, &corpus);
            }
            check(&input, &format!("SPINDRIFT_FUZZ_SEED={seed}"));
        }
    }
}

#[test]
fn decode() {
    replay("decode", CHANGES, fuzz_bodies::decode);
}

#[test]
fn frame() {
    replay("frame", CHANGES, fuzz_bodies::frame);
}

#[test]
fn two_endpoints() {
    replay("endpoints", PROGRAMS, endpoints::endpoints);
}

/// A packet of each kind, by name.
fn specimens() -> Vec<(String, Vec<u8>)> {
    let write = |bth: Bth| DataHead {
        bth,
        meth: Meth::default(),
        tseth: bth.psn.get().is_multiple_of(2).then(|| Tseth::new(0x1234)),
        reth: Reth { va: 0x1_0000, rkey: 0xabcd, dma_len: 8 },
        imm: None,
        operands: None,
    };
    let bytes_of = |opcode: Opcode| {
        let bth =
            Bth { pad: opcode.code() & 3, ..Bth::new(opcode, Qpn::new(2), Psn::new(opcode.code().into())) };
        let mut out = vec![0; Packet::MAX_HEAD_LEN];
        let (payload, pad): (&[u8], &[u8]) = (&[7; 8], &[0; 3][..bth.pad.into()]);
        let packet = match opcode {
            Opcode::Ack => Packet::Ack { bth, aeth: Aeth::nak(NakCode::RemoteAccess, 3) },
            Opcode::Sack => Packet::Sack { bth, seth: Seth { bitmap: 5, ..Seth::default() } },
            Opcode::Nack => Packet::Nack { bth, neth: Neth::default() },
            Opcode::Probe => Packet::Probe { bth, peth: Peth::default() },
            Opcode::EndpointRequest => Packet::EndpointRequest { bth, erth: Erth::default() },
            Opcode::EndpointResponse => {
                let eeth = Eeth::new(EndpointOp::EvProbe, OpPosition::Bits5To4, 9);
                Packet::EndpointResponse { bth, eeth }
            }
            _ => Packet::Data { head: write(bth), payload, pad },
        };
        let len = packet.encode_head(&mut out);
        out.truncate(len);
        if opcode.is_data() {
            out.extend([payload, pad].concat());
        }
        out
    };
    Opcode::ALL.into_iter().map(|opcode| (format!("{opcode:?}").to_lowercase(), bytes_of(opcode))).collect()
}

fn framed(mrc: &[u8], ends: [&str; 2]) -> Vec<u8> {
    let [src, dst] = ends.map(|end| end.parse().unwrap());
    let template = StackTemplate::new(MacAddr([2; 6]), MacAddr([4; 6]), src, dst, 4791, 64).unwrap();
    let mut frame = vec![0; template.header_len()];
    template.write(&mut frame, Entropy { src_port: 0xc001, flow_label: 0x1234 }, 2, mrc.len() + 4);
    frame.extend_from_slice(mrc);
    let icrc = icrc::compute(&frame[14..], &[], &[]);
    frame.extend_from_slice(&icrc);
    frame
}

/// The same inside outer packets: without a routing header, and with one.
fn encapsulated(frame: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let inner = &frame[14..];
    let around = |routing: &[u8]| {
        let protocol = if inner[0] >> 4 == 6 { 41 } else { 4 };
        let mut bytes = [&frame[..12], &[0x86, 0xdd, 0x60, 0x20, 0, 0]].concat();
        bytes.extend(((routing.len() + inner.len()) as u16).to_be_bytes());
        bytes.extend([if routing.is_empty() { protocol } else { 43 }, 64]);
        bytes.extend([[0x20; 16], [0xfc; 16]].concat());
        bytes.extend(routing);
        if let Some(next) = bytes.get_mut(54).filter(|_| !routing.is_empty()) {
            *next = protocol;
        }
        bytes.extend(inner);
        bytes
    };
    let routing = [&[0, 4, 4, 0, 1, 0, 0, 0][..], &[0xfc; 32]].concat();
    vec![("outer", around(&[])), ("routed", around(&routing))]
}

/// Programs for two endpoints, each with what it is about: settings, and instructions as in
/// `fuzz_bodies/endpoints/steps.rs`.
const SITUATIONS: [(&str, &[[u8; 3]]); 16] = [
    ("writes", &[[1, 1, 0], [0, 0, 14], [0, 1, 15], [4, 0, 29], [31, 0, 0], [9, 18, 0], [31, 0, 0]]),
    (
        "losses",
        &[
            [2, 3, 8],
            [0, 0, 15],
            [0, 0, 15],
            [18, 2, 0],
            [18, 3, 0],
            [11, 3, 16],
            [9, 14, 0],
            [11, 7, 16],
            [18, 0, 0],
            [9, 19, 0],
            [31, 0, 0],
        ],
    ),
    (
        "reordering",
        &[
            [3, 2, 8],
            [0, 0, 15],
            [16, 7, 0],
            [16, 3, 0],
            [16, 5, 0],
            [16, 0, 0],
            [20, 1, 2],
            [20, 0, 1],
            [11, 3, 16],
            [9, 12, 0],
            [31, 0, 0],
        ],
    ),
    (
        "trims-and-marks",
        &[
            [4, 1, 8],
            [0, 0, 15],
            [23, 0, 1],
            [23, 3, 1],
            [21, 1, 0],
            [21, 2, 0],
            [11, 11, 16],
            [0, 1, 15],
            [23, 0, 3],
            [31, 0, 0],
        ],
    ),
    (
        "corruption",
        &[
            [5, 7, 16],
            [0, 0, 15],
            [22, 19, 70],
            [22, 2, 15],
            [11, 9, 16],
            [22, 33, 90],
            [11, 3, 16],
            [9, 20, 0],
        ],
    ),
    (
        "immediates",
        &[
            [6, 0, 0],
            [29, 36, 5],
            [4, 2, 26],
            [4, 2, 28],
            [4, 3, 25],
            [11, 2, 16],
            [18, 0, 0],
            [9, 20, 0],
            [31, 0, 0],
            [6, 2, 3],
            [4, 2, 25],
        ],
    ),
    (
        "sends",
        &[
            [29, 0, 0x40],
            [0, 2, 0x8d],
            [0, 2, 0x8e],
            [4, 2, 0x88],
            [31, 0, 0],
            [31, 0, 0],
            [6, 2, 0],
            [9, 20, 0],
            [31, 0, 0],
            [31, 0, 0],
            [6, 2, 1],
            [9, 20, 0],
            [11, 2, 16],
            [18, 0, 0],
            [0, 2, 0x08],
            [4, 2, 0x0c],
            [31, 0, 0],
        ],
    ),
    ("missing-receive", &[[7, 0, 0], [4, 0, 12], [0, 0, 13], [31, 0, 0], [9, 20, 0], [31, 0, 0]]),
    ("bad-key", &[[8, 1, 0], [0, 0, 13], [7, 0, 8], [0, 0, 10], [31, 0, 0], [31, 0, 0]]),
    (
        "ports",
        &[
            [9, 3, 0],
            [0, 0, 15],
            [27, 0, 1],
            [27, 2, 1],
            [11, 4, 16],
            [0, 0, 15],
            [27, 1, 1],
            [9, 18, 0],
            [27, 0, 1],
            [31, 0, 0],
            [27, 4, 1],
        ],
    ),
    (
        "denied",
        &[
            [10, 2, 8],
            [28, 0, 0],
            [28, 0, 4],
            [0, 0, 15],
            [28, 0, 8],
            [9, 16, 0],
            [28, 0, 1],
            [11, 7, 16],
            [28, 1, 2],
            [9, 19, 0],
            [31, 0, 0],
        ],
    ),
    (
        "destroyed",
        &[
            [11, 1, 0],
            [29, 24, 1],
            [0, 2, 15],
            [0, 3, 15],
            [11, 2, 16],
            [30, 2, 0],
            [9, 22, 0],
            [31, 0, 0],
            [9, 24, 0],
            [9, 24, 0],
        ],
    ),
    (
        "gives-up",
        &[
            [12, 0, 0],
            [29, 28, 49],
            [0, 2, 15],
            [19, 0, 7],
            [9, 22, 0],
            [19, 0, 7],
            [9, 24, 0],
            [19, 0, 7],
            [9, 24, 0],
            [0, 2, 15],
        ],
    ),
    (
        "strangers",
        &[
            [13, 5, 0],
            [0, 0, 15],
            [25, 32, 3],
            [25, 65, 1],
            [25, 1, 80],
            [25, 192, 0],
            [25, 224, 2],
            [31, 0, 0],
        ],
    ),
    (
        "forged",
        &[
            [14, 193, 4],
            [0, 0, 15],
            [24, 0, 40],
            [24, 3, 4],
            [24, 5, 9],
            [11, 11, 16],
            [25, 96, 50],
            [25, 129, 90],
            [31, 0, 0],
        ],
    ),
    (
        "several-pairs",
        &[
            [15, 3, 8],
            [29, 1, 49],
            [29, 98, 30],
            [0, 0, 15],
            [0, 2, 15],
            [0, 4, 15],
            [4, 3, 29],
            [18, 4, 0],
            [11, 15, 16],
            [9, 15, 0],
            [31, 0, 0],
        ],
    ),
];

/// Every file of the corpus that this file describes, by target and name.
fn described() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = SITUATIONS
        .iter()
        .map(|(name, program)| (corpus_of("endpoints").join(name), program.as_flattened().to_vec()))
        .collect();
    for (name, mrc) in specimens() {
        let frames = [("v4", ["192.0.2.1", "192.0.2.2"]), ("v6", ["2001:db8::1", "2001:db8::2"])];
        for (family, ends) in frames {
            let frame = framed(&mrc, ends);
            if name.contains("writefirst") || name == "sack" {
                for (around, bytes) in encapsulated(&frame) {
                    files.push((corpus_of("frame").join(format!("{name}-{family}-{around}")), bytes));
                }
            }
            files.push((corpus_of("frame").join(format!("{name}-{family}")), frame));
        }
        files.push((corpus_of("decode").join(name), mrc));
    }
    files
}

/// The corpus is what this file says, and what a fuzzer added. `SPINDRIFT_WRITE_CORPUS=1` writes it anew.
#[test]
fn the_corpus_is_up_to_date() {
    let write = env::var_os("SPINDRIFT_WRITE_CORPUS").is_some();
    for (path, expected) in described() {
        if write {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(found == expected, "{} is old: run again with SPINDRIFT_WRITE_CORPUS=1", path.display());
    }
}
