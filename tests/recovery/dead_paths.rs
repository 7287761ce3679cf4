//! A path that swallows every packet is blamed and left, whatever the packets look like.
//!
//! Tests decisions 7, 8 and 30 of `docs/protocol.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use spindrift::path::EvState;
use spindrift::time::Time;
use spindrift::wire::Packet;

use crate::flow::{Flow, TARGET, WRITER, percentile};
use crate::support::link::{Link, Outage};
use crate::support::net::{Hop, Tap};

/// One of the writer's paths in four is dead for ever.
const DEAD: Outage = Outage { from: Time::ZERO, to: Time::NEVER, plane: 0, sender: Some(WRITER), paths: 4 };

fn flow(dead: bool) -> Flow {
    let mut flow = Flow::new(3, vec![Link::clean(5_000)], 32);
    flow.net.outages.extend(dead.then_some(DEAD));
    flow
}

/// Each write waits for the one before, so no later packet shows that an earlier one is missing.
#[test]
fn a_dead_path_under_lone_small_writes_is_blamed_after_two_losses() {
    for len in [2, 64, 4096] {
        let healthy: Vec<u64> = {
            let mut flow = flow(false);
            (0..2_000).map(|_| flow.write(len)).collect()
        };
        let mut flow = flow(true);
        let times: Vec<u64> = (0..5_000).map(|_| flow.write(len)).collect();
        let most = flow.evs().iter().map(|ev| ev.drop_count).max().unwrap();
        let slow = times.iter().filter(|&&time| time > 50_000).count();
        let counters = flow.counters(WRITER);
        let bad = flow.bad();
        println!(
            "{len} bytes: {slow} slow writes, {bad} entropy values bad, suspects {}",
            counters.tail_suspects
        );
        assert!(bad >= 2, "{len} bytes: the dead paths are known");
        // Two losses for each dead path, and some of a tail probe that met another dead one.
        assert!(counters.tail_suspects as usize <= 3 * bad, "{len} bytes: {counters:?}");
        assert!(slow <= 3 * bad, "{len} bytes: {slow} slow writes");
        assert!(most <= 3, "{len} bytes");
        let (late, usual) = (percentile(&times[1_000..], 999), percentile(&healthy, 999));
        assert!(late <= 2 * usual, "{len} bytes: p99.9 {late} ns, healthy {usual} ns");
    }
}

/// The same when only the last packet of each write meets the dead path by chance.
#[test]
fn dead_paths_under_large_writes_are_blamed() {
    let mut flow = flow(true);
    for _ in 0..500 {
        flow.write(20_000);
    }
    let times: Vec<u64> = (0..1_000).map(|_| flow.write(20_000)).collect();
    assert!(flow.bad() >= 2);
    assert!(percentile(&times, 999) < 50_000, "{}", percentile(&times, 999));
}

/// Answers that are lost make the writer probe, too; that is no reason to blame paths that work.
#[test]
fn lost_answers_blame_no_path() {
    let mut flow = Flow::new(5, vec![Link::clean(5_000)], 32);
    for round in 0..200 {
        // The target falls silent for one round trip in the middle of a write.
        let now = flow.net.now;
        flow.net.outages =
            vec![Outage { from: now, to: now.after(20_000), plane: 0, sender: Some(TARGET), paths: 0 }];
        flow.write(64);
        flow.net.outages.clear();
        // Long enough that every path carries something before the next time.
        for _ in 0..round % 7 + 64 {
            flow.write(64);
        }
    }
    let bad: Vec<_> = flow.evs().into_iter().filter(|ev| ev.state == EvState::AssumedBad).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(flow.counters(WRITER).tx_tail_probes >= 200, "the answers were lost");
    assert_eq!(flow.counters(TARGET).rx_old, flow.counters(WRITER).tx_tail_probes);
}

/// When each path lost first transmissions. Those that left together count once.
#[derive(Default)]
struct FirstLosses {
    by_path: Arc<Mutex<BTreeMap<u64, BTreeSet<Time>>>>,
    first: bool,
}

impl Tap for FirstLosses {
    fn sent(&mut self, _: Time, _: usize, packet: &Packet<'_>) {
        self.first = matches!(packet, Packet::Data { head, .. } if !head.bth.rtx);
    }

    fn on_its_way(&mut self, at: Time, hop: &Hop) {
        if self.first && hop.lost {
            self.by_path.lock().unwrap().entry(hop.path).or_default().insert(at);
        }
    }

    fn arrived(&mut self, _: Time, _: usize, _: &Packet<'_>) {}
}

/// The last path of a plane stays in use until its third loss in a row, whether a later packet or a tail probe reveals each.
#[test]
fn the_last_path_of_a_dead_plane_is_left_after_three_losses() {
    let mut thrice = 0;
    for seed in 0..40 {
        let mut flow = Flow::new(seed, vec![Link::clean(5_000); 2], 8);
        flow.write(20_000);
        let from = flow.net.now;
        flow.net.outages.push(Outage { from, paths: 1, ..DEAD });
        let losses = FirstLosses::default();
        let by_path = Arc::clone(&losses.by_path);
        flow.net.tap = Some(Box::new(losses));
        for number in 0..2_000_u64 {
            // One write that only a tail probe saves, or two of which the second may tell of the first.
            let burst = 1 + ((number * (seed + 3)) >> 4 & 1);
            (0..burst).for_each(|_| flow.post(64));
            flow.finish_all_but(0);
        }
        let by_path = by_path.lock().unwrap();
        assert_eq!(by_path.len(), 8, "seed {seed}: every path of the plane was tried");
        assert!(by_path.values().all(|lost| lost.len() <= 3), "seed {seed}: {by_path:?}");
        thrice += by_path.values().filter(|lost| lost.len() == 3).count();
    }
    assert!(thrice >= 10, "{thrice}");
}

/// Ids of the reliability probes that a writer whose paths are half dead sends in a second.
fn probe_ids(seed: u64) -> Vec<u16> {
    #[derive(Default)]
    struct Ids(Arc<Mutex<Vec<u16>>>);
    impl Tap for Ids {
        fn sent(&mut self, _: Time, _: usize, packet: &Packet<'_>) {
            if let Packet::Probe { peth, .. } = packet {
                self.0.lock().unwrap().push(peth.probe_id);
            }
        }
        fn arrived(&mut self, _: Time, _: usize, _: &Packet<'_>) {}
    }
    let mut flow = Flow::new(seed, vec![Link::clean(5_000)], 32);
    flow.net.outages.push(Outage { paths: 2, ..DEAD });
    let ids = Ids::default();
    let seen = Arc::clone(&ids.0);
    flow.net.tap = Some(Box::new(ids));
    for _ in 0..1_000 {
        flow.write(64);
    }
    flow.net.run_for(1_000_000_000);
    let ids = seen.lock().unwrap().clone();
    assert!(ids.len() >= 100, "{} probes", ids.len());
    ids
}

/// Somebody who has seen the probes so far cannot answer the next one in the name of a path that carries nothing.
#[test]
fn ids_of_probes_tell_nothing_of_the_next() {
    let ids = probe_ids(7);
    let mut steps: Vec<u16> = ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let count = steps.len();
    steps.sort_unstable();
    steps.dedup();
    assert!(steps.len() * 100 > count * 95, "{} different steps between {count} ids", steps.len());
    assert_eq!(probe_ids(7), ids, "one seed, one run");
    assert_ne!(probe_ids(8), ids);
}

/// Paths so long that an answer to a probe takes longer than `probe_timeout_ns`: they come back all the same, and soon.
#[test]
fn paths_longer_than_the_probe_timeout_come_back() {
    const MS: u64 = 1_000_000;
    let mut flow = Flow::new(9, vec![Link::clean(6 * MS)], 32);
    flow.write(100_000);
    let mended = flow.net.now.after(200 * MS);
    flow.net.outages.push(Outage { to: mended, ..DEAD });
    let (mut most, mut back) = (0, Time::NEVER);
    while flow.net.now < mended.after(2_000 * MS) && back == Time::NEVER {
        flow.write(100_000);
        most = most.max(flow.bad());
        if flow.net.now >= mended && flow.bad() == 0 {
            back = flow.net.now;
        }
    }
    println!("{most} bad, back {} us after the path was mended", back.since(mended) / 1_000);
    assert!(most >= 2, "the dead paths are known");
    // Delays have doubled to 128 ms by then, and two answers are needed, of four probes at a time.
    assert!(back.since(mended) < 600 * MS);
}

/// The target only receives, all the time, and round trips take longer than it remembers a probe of each millisecond: answers leave
/// a path that died all the same, after a few round trips.
#[test]
fn answers_leave_a_dead_path_when_round_trips_are_long() {
    const MS: u64 = 1_000_000;
    let rtt_ms = 12;
    let longest: Vec<_> = (0..16)
        .map(|seed| {
            let mut flow = Flow::new(seed, vec![Link::clean(rtt_ms / 2 * MS)], 32);
            let mut waiting = Vec::new();
            for ms in 0..500 {
                if ms == 200 {
                    let from = flow.net.now;
                    flow.net.outages.push(Outage { from, sender: Some(TARGET), paths: 2, ..DEAD });
                }
                flow.post(4096);
                flow.net.run_for(MS);
                waiting.push(flow.waiting());
            }
            assert!(waiting[..200].iter().all(|&writes| writes <= rtt_ms + 1), "{waiting:?}");
            waiting.into_iter().max().unwrap()
        })
        .collect();
    println!("after the path of answers died, up to {longest:?} writes of 1 ms wait");
    let cut_off = longest.iter().filter(|&&writes| writes > rtt_ms + 2).count();
    assert!(cut_off >= 4, "the case this is about: {cut_off}");
    assert!(longest.iter().all(|&writes| writes < 8 * rtt_ms), "{longest:?}");
}
