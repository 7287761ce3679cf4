//! A port with a rate sends as much as its link would, and neither loses nor reorders what it takes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use spindrift_pmd::fault::FaultPort;
use spindrift_pmd::loopback::{LoopbackConfig, LoopbackPort, pair};
use spindrift_pmd::rate::{BURST_NS, RatePort};
use spindrift_pmd::{Port, TxFrame};

/// 800 Mb/s: a frame of 1000 bytes takes 10 us, and 25 of them pass at once.
const RATE: u64 = 800_000_000;
const BURST: usize = 25;
const FRAME_NS: u64 = 10_000;
const LONGEST: usize = 4000;

fn joined(slots: usize) -> (LoopbackPort, LoopbackPort) {
    let config = LoopbackConfig { slots, frame_max: LONGEST, ..LoopbackConfig::default() };
    let (mut left, mut right) = pair(1, config);
    (left.remove(0), right.remove(0))
}

fn port(slots: usize) -> (RatePort<LoopbackPort>, LoopbackPort) {
    let (left, right) = joined(slots);
    (RatePort::new(Box::new(left), RATE), right)
}

/// Frames of these lengths, each of one byte again and again.
fn send(port: &mut dyn Port, now_ns: u64, frames: &[(usize, u8)]) -> usize {
    let bytes: Vec<_> = frames.iter().map(|&(len, byte)| vec![byte; len]).collect();
    let frames: Vec<_> = bytes
        .iter()
        .map(|bytes| TxFrame {
            head: &bytes[..62],
            udp_payload_at: 62,
            payload: (&bytes[62..]).into(),
            tail: (&[]).into(),
            ticket: 0,
        })
        .collect();
    port.tx_burst(now_ns, &frames)
}

/// First byte and length of all that has arrived.
fn arrived(port: &mut dyn Port, now_ns: u64) -> Vec<(usize, u8)> {
    let mut all = Vec::new();
    while port.rx_burst(now_ns, 64, &mut |frame| all.push((frame.len(), frame.data[0]))) > 0 {}
    all
}

const MANY: [(usize, u8); 64] = [(1000, 1); 64];

#[test]
fn what_is_sent_all_the_time_leaves_at_the_rate() {
    let (mut port, mut other) = port(1024);
    let (mut sent, mut got) = (0, 0);
    for now_us in 10_000..30_000 {
        sent += send(&mut port, now_us * 1000, &MANY);
        got += arrived(&mut other, now_us * 1000).len();
        // 100 bytes in a microsecond, and the burst at the start; the frame that ends it may be longer than what is left.
        let bytes = 1000 * sent as u64;
        let may = 100 * (now_us - 10_000) + 100 * BURST_NS / 1000;
        assert!((may..=may + 1000).contains(&bytes), "{now_us}: {bytes} of {may}");
    }
    assert_eq!(got, sent);
    let counters = port.counters();
    assert_eq!((counters.tx_frames, counters.tx_dropped), (sent as u64, 0));
    assert!(counters.tx_full > 17_000);
}

/// A pause is made up for by a burst, whatever its length.
#[test]
fn a_pause_is_worth_a_burst() {
    let (mut port, _other) = port(1024);
    let mut now = 5_000_000;
    assert_eq!(send(&mut port, now, &MANY), BURST + 1);
    for (pause, frames) in
        [(FRAME_NS - 1, 0), (1, 1), (3 * FRAME_NS, 3), (3_600_000_000_000, BURST + 1), (10 * FRAME_NS, 10)]
    {
        now += pause;
        assert_eq!(send(&mut port, now, &MANY), frames, "{pause}");
    }
}

/// What is told of room is true, however long the frames are and whenever they come; and room comes when it was told, no sooner.
#[test]
fn promised_room_is_there() {
    for seed in 0..50 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut below = |limit: usize| rng.next_u64() as usize % limit;
        let (mut port, mut other) = port(32);
        let mut now = 1_000_000;
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for step in 0..400 {
            let room = port.tx_room(now);
            assert!(room <= 32);
            let longest = [LONGEST, 100, 1000][below(3)];
            let count = 1 + below(40);
            let frames: Vec<_> = (0..count).map(|_| (62 + below(longest - 61), below(256) as u8)).collect();
            let taken = send(&mut port, now, &frames);
            assert!(taken >= room.min(frames.len()), "{seed} {step}: {taken} of {room}");
            sent.extend_from_slice(&frames[..taken]);
            if below(2) == 0 {
                got.extend(arrived(&mut other, now));
            }
            if let Some(next) = port.next_event_ns() {
                assert!(next > now && port.tx_room(next - 1) == 0, "{seed} {step}");
                got.extend(arrived(&mut other, now));
                assert!(port.tx_room(next) > 0, "{seed} {step}");
                now = next;
            }
            now += below(50_000) as u64;
        }
        got.extend(arrived(&mut other, now));
        assert_eq!(got, sent, "{seed}");
    }
}

/// Nobody has to wait for frames that a queue of the host gave back, nor longer than the longest frame takes for one that is too long.
#[test]
fn only_what_leaves_takes_time() {
    let (left, mut other) = joined(1024);
    let full = FaultPort::new(Box::new(left), 0, "full=100%,until=12ms".parse().unwrap(), 1);
    let mut port = RatePort::new(Box::new(full), RATE);
    for now in [10_000_000, 10_000_001] {
        assert_eq!(send(&mut port, now, &MANY), BURST + 1);
        assert_eq!(port.unsent(), (0..=BURST as u16).collect::<Vec<_>>());
        assert_eq!(port.next_event_ns(), None);
    }
    assert_eq!(send(&mut port, 30_000_000, &MANY), BURST + 1);
    assert!(port.unsent().is_empty());
    assert_eq!(arrived(&mut other, 30_000_000).len(), BURST + 1);
    let now = 40_000_000;
    assert_eq!(send(&mut port, now, &[(50_000, 1); 64]), 7, "25,000 bytes hold six of the longest and a bit");
    assert_eq!(port.counters().tx_dropped, 7);
}
