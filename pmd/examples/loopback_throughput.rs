//! Throughput of the loopback rings between two threads, next to what one core can copy and checksum.
//!
//! `cargo run --release -p spindrift-pmd --example loopback_throughput [slots] [burst]`
//!
//! The sender gathers 4096-byte payloads out of a 64 KiB message, the receiver copies them out; with `crc`
//! both also run a CRC-32 over each payload, as the transport does for the invariant CRC.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark owns clock and threads")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spindrift_pmd::loopback::{LoopbackConfig, LoopbackPort, pair};
use spindrift_pmd::{Port, TxFrame};

const PAYLOAD: usize = 4096;
const MESSAGE: usize = 64 * 1024;
const HEAD: [u8; 102] = [1; 102];
const PLANES: usize = 4;

fn pin(core: usize) {
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}

/// Rates over windows of 2 ms: on a shared machine the mean tells of the neighbours, the best of the code.
struct Windows {
    start: Instant,
    window: Instant,
    bytes: usize,
    window_bytes: usize,
    best: f64,
}

impl Windows {
    fn new() -> Self {
        let now = Instant::now();
        Self { start: now, window: now, bytes: 0, window_bytes: 0, best: 0.0 }
    }

    /// False once the run is over.
    fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.window_bytes += bytes;
        let elapsed = self.window.elapsed();
        if elapsed > Duration::from_millis(2) {
            self.best = self.best.max(self.window_bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9);
            (self.window, self.window_bytes) = (Instant::now(), 0);
        }
        self.start.elapsed() < Duration::from_millis(700)
    }

    fn text(&self) -> String {
        format!(
            "{:.0} ({:.0})",
            self.best,
            self.bytes as f64 * 8.0 / self.start.elapsed().as_secs_f64() / 1e9
        )
    }
}

fn baseline() -> String {
    let (src, mut dst) = (vec![7_u8; MESSAGE], vec![0_u8; MESSAGE]);
    let mut windows = Windows::new();
    loop {
        for at in (0..MESSAGE).step_by(PAYLOAD) {
            dst[at..at + PAYLOAD].copy_from_slice(&src[at..at + PAYLOAD]);
            std::hint::black_box(crc32fast::hash(&dst[at..at + PAYLOAD]));
        }
        if !windows.add(MESSAGE) {
            return windows.text();
        }
    }
}

fn send(mut ports: Vec<LoopbackPort>, burst: usize, crc: bool, stop: &AtomicBool) {
    let message = vec![7_u8; MESSAGE];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        for port in &mut ports {
            let room = port.tx_room(0).min(burst);
            if room == 0 {
                std::hint::spin_loop();
                continue;
            }
            let frames: Vec<TxFrame<'_>> = (0..room)
                .map(|i| {
                    let from = (at + i * PAYLOAD) % MESSAGE;
                    let payload = &message[from..from + PAYLOAD];
                    if crc {
                        std::hint::black_box(crc32fast::hash(payload));
                    }
                    TxFrame {
                        head: &HEAD,
                        udp_payload_at: 62,
                        payload: payload.into(),
                        tail: (&[0; 4]).into(),
                        ticket: 0,
                    }
                })
                .collect();
            at += port.tx_burst(0, &frames) * PAYLOAD;
        }
    }
}

fn run(slots: usize, burst: usize, crc: bool) -> String {
    let (tx, mut rx) = pair(PLANES, LoopbackConfig { slots, ..LoopbackConfig::default() });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            send(tx, burst, crc, &stop);
        });
        pin(1);
        let mut memory = vec![0_u8; MESSAGE];
        let (mut bytes, mut at) = (0_usize, 0);
        let mut windows = Windows::new();
        while windows.add(std::mem::take(&mut bytes)) {
            for port in &mut rx {
                port.rx_burst(0, burst, &mut |frame| {
                    let payload = &frame.data[HEAD.len()..HEAD.len() + PAYLOAD];
                    if crc {
                        std::hint::black_box(crc32fast::hash(payload));
                    }
                    memory[at..at + PAYLOAD].copy_from_slice(payload);
                    at = (at + PAYLOAD) % MESSAGE;
                    bytes += PAYLOAD;
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
        std::hint::black_box(&memory);
        windows.text()
    })
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap());
    let only_slots = args.next();
    let only_burst = args.next();
    pin(1);
    println!("Gb/s: best 2 ms (mean). Baseline, one core memcpy + crc: {}", baseline());
    println!("{:>6} {:>6} {:>12} {:>16}", "slots", "burst", "ring", "ring+crc");
    for slots in [16, 32, 64, 128, 256] {
        for burst in [4, 8, 16, 32] {
            if only_slots.is_some_and(|s| s != slots) || only_burst.is_some_and(|b| b != burst) {
                continue;
            }
            println!(
                "{slots:>6} {burst:>6} {:>12} {:>16}",
                run(slots, burst, false),
                run(slots, burst, true)
            );
        }
    }
}
