//! What the fuzz target `probes` checks, shared with the replay that runs on a stable compiler: packets of anybody at the address of an agent.

use spindrift_agent::frame::{self, LEN, Template};
use spindrift_agent::{Agent, AgentSettings, probe_address};
use spindrift_srv6::{Fabric, FabricHost, Shape};

/// Probes that are kept to come back.
const KEPT: usize = 64;
/// One step of time, in nanoseconds.
const STEP_NS: u64 = 100_000;

/// A probe on its way.
struct Sent {
    plane: u8,
    packet: [u8; LEN],
    returned: bool,
}

/// Takes bytes from an input; zeros when it has ended.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn one(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn many(&mut self, count: usize) -> &'a [u8] {
        let count = count.min(self.0.len());
        self.0.split_off(..count).unwrap_or_default()
    }
}

/// The agent of a fabric with two planes, and the packets that it has sent. Each step is a byte: time passes, a packet comes back, on its
/// plane or on another, changed or not, or any bytes arrive. Returns how many came back.
///
/// # Panics
/// When a rule is broken.
pub fn probes(data: &[u8]) -> u64 {
    let host = |name: &str, t0| FabricHost { name: name.into(), t0, downlink: 0 };
    let shape = Shape { planes: 2, t0: 2, t1: 2, ..Shape::default() };
    let Ok(fabric) = Fabric::new(shape, vec![host("h1", 0), host("h2", 1)]) else { return 0 };
    let Ok(mut agent) = Agent::new(&fabric, 0, None, AgentSettings::default(), ([7; 32], 0)) else {
        return 0;
    };
    let inner = [0, 1].map(|plane| probe_address(&fabric, 0, plane));
    let inner = |plane: u8| inner.get(usize::from(plane)).copied().flatten();
    let mut sent: Vec<Sent> = Vec::new();
    let (mut now_ns, mut returned) = (0, 0);
    let mut data = Bytes(data);
    while !data.0.is_empty() {
        let kind = data.one() % 5;
        let chosen = usize::from(data.one());
        let picked = chosen.checked_rem(sent.len());
        let mut arrives = |plane: u8, bytes: &[u8], now_ns, sent: &mut Vec<Sent>| {
            let payload = inner(plane).and_then(|inner| frame::payload(bytes, inner)).unwrap_or_default();
            if agent.on_return(now_ns, plane, payload).is_ok() {
                returned += 1;
                // The outer header and the inner hop limit are the network's to change.
                let same = |of: &&mut Sent| of.plane == plane && bytes.get(48..LEN) == of.packet.get(48..);
                let found = sent.iter_mut().filter(|of| !of.returned).find(same);
                assert!(found.is_some(), "{bytes:02x?} is no probe that was sent");
                if let Some(found) = found {
                    found.returned = true;
                }
            }
        };
        match (kind, picked.and_then(|at| sent.get(at)).map(|of| (of.plane, of.packet))) {
            (0, _) => {
                now_ns += STEP_NS * (chosen as u64 + 1);
                while agent.on_timeout(now_ns) {}
                while let Some(probe) = agent.poll(now_ns) {
                    let Some(route) = agent.plan().route(probe.path) else { continue };
                    let Some(inner) = inner(route.plane) else { continue };
                    let packet = Template::new(route, inner, inner).packet(probe.payload);
                    sent.push(Sent { plane: route.plane, packet, returned: false });
                }
                let over = sent.len().saturating_sub(KEPT);
                sent.drain(..over);
            }
            (1, Some((plane, packet))) => arrives(plane, &packet, now_ns, &mut sent),
            (2, Some((plane, mut packet))) => {
                let at = usize::from(data.one()) % LEN;
                packet[at] ^= data.one();
                arrives(plane, &packet, now_ns, &mut sent);
            }
            (3, Some((plane, packet))) => arrives(1 - plane, &packet, now_ns, &mut sent),
            _ => {
                let len = usize::from(data.one());
                let bytes = data.many(len);
                arrives((chosen % 3) as u8, bytes, now_ns, &mut sent);
            }
        }
    }
    let counters = agent.prober().counters();
    assert_eq!(counters.rx_returned, returned);
    let ended = counters.rx_returned + counters.lost + counters.void;
    assert!(ended <= counters.tx_probes, "{counters:?}");
    returned
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::PathBuf;

    use super::*;

    const SEEDS: u64 = 20_000;

    /// An input of each kind.
    fn corpus() -> Vec<(&'static str, Vec<u8>)> {
        let probe = [&[0x60, 0, 0, 0, 0, 88, 41, 64][..], &[0; 32], &[0x60, 0, 0, 0, 0, 48, 17, 64]].concat();
        vec![
            ("return", vec![0, 9, 1, 0, 1, 1, 0, 3, 1, 2]),
            ("twice", vec![0, 20, 1, 0, 1, 0, 1, 0]),
            ("late", [vec![0, 9], vec![0, 250], vec![1, 0, 1, 1]].concat()),
            ("changed", vec![0, 9, 2, 0, 130, 1, 2, 1, 47, 255, 2, 2, 90, 4]),
            ("other-plane", vec![0, 9, 3, 0, 3, 1, 1, 0]),
            ("any", [&[0, 9, 4, 0, probe.len() as u8][..], &probe, &[4, 1, 3, 1, 2, 3]].concat()),
        ]
    }

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/probes")
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
    fn no_packet_is_taken_for_a_probe() {
        let corpus: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
        let returned: Vec<_> = corpus.iter().map(|input| probes(input)).collect();
        // Three probes; one, twice; none in time; two whose outer header or hop limit was changed; one, after other planes; none.
        assert_eq!(returned, [3, 1, 0, 2, 1, 0]);
        for seed in 0..SEEDS {
            let mut state = seed;
            let mut below = |end: usize| {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((mixed ^ (mixed >> 27)) % end.max(1) as u64) as usize
            };
            let mut input = corpus[below(corpus.len())].clone();
            for _ in 0..=below(12) {
                let at = below(input.len());
                match below(4) {
                    0 if !input.is_empty() => input[at] ^= 1 << below(8),
                    1 => input.insert(at, below(256) as u8),
                    2 => input.truncate(at),
                    _ => input.extend_from_slice(&corpus[below(corpus.len())]),
                }
            }
            let broken = std::panic::catch_unwind(|| probes(&input)).is_err();
            assert!(!broken, "seed {seed}: {input:02x?}");
        }
    }
}
