//! What a port costs per frame: one thread sends frames to itself and receives them, through a ring of DPDK (`net_ring`) or through shared
//! memory (`net_memif`). Over the latter the port copies payloads, or leaves that to the driver: both in turn, and the ratio of each turn.
//!
//! `cargo bench -p spindrift-dpdk --bench loop`, or `-- --huge-pages` where some are free.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

use std::time::{Duration, Instant};

use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
use spindrift_pmd::memory::Region;
use spindrift_pmd::{DatagramMeta, LinkState, MacAddr, Port as _, Tail, TxFrame, testing};

const BURST: usize = 32;
const TIME: Duration = Duration::from_millis(500);
/// Turns of the comparison, each with both ways for a part of that time.
const TURNS: usize = 10;
const LENGTHS: [usize; 5] = [0, 64, 1024, 4096, 8192];
const ADDRESSES: [&str; 2] = ["fd96::1", "fd96::2"];

fn config(device: String, local: &str, neighbour: &str) -> DpdkConfig {
    DpdkConfig {
        device,
        local: local.parse().unwrap(),
        neighbours: vec![(neighbour.parse().unwrap(), MacAddr([2, 0, 0, 0, 0, 1]))],
        mtu: Some(9000),
        duplicate_wait: Duration::ZERO,
        ..DpdkConfig::default()
    }
}

/// The end of a frame.
#[derive(Clone, Copy)]
enum End {
    Plain,
    Crc,
}

/// Nanoseconds for each frame of the length, sent and received.
fn each(
    tx: &mut DpdkPort,
    mut rx: Option<&mut DpdkPort>,
    region_len: usize,
    len: usize,
    end: End,
    time: Duration,
) -> f64 {
    let region = Region::alloc(region_len.max(len).max(1)).unwrap();
    let meta = DatagramMeta {
        src: tx.caps().local_ip,
        dst: rx.as_ref().map_or(tx.caps().local_ip, |rx| rx.caps().local_ip),
        src_port: 0xc000,
        dst_port: 4971,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let mut head = [0; 62];
    testing::head(&meta, len + 4, &mut head);
    let tail = match end {
        End::Plain => Tail::Bytes(&[0; 4]),
        End::Crc => Tail::Crc32(1),
    };
    let (mut sent, mut got, mut at, began) = (0, 0, 0, Instant::now());
    while began.elapsed() < time {
        tx.link();
        for _ in 0..16 {
            let frames: [TxFrame<'_>; BURST] = std::array::from_fn(|_| {
                at = if at + 2 * len <= region.len() { at + len } else { 0 };
                let payload = region.payload(at, len).unwrap();
                TxFrame { head: &head, udp_payload_at: 62, payload, tail, ticket: 0 }
            });
            sent += tx.tx_burst(sent as u64, &frames);
            let port = rx.as_deref_mut().unwrap_or(&mut *tx);
            got += port.rx_burst(sent as u64, BURST, &mut |frame| assert_eq!(frame.len(), 62 + len + 4));
        }
    }
    let took = began.elapsed().as_secs_f64() * 1e9;
    let port = rx.unwrap_or(tx);
    while port.rx_burst(sent as u64, BURST, &mut |_| ()) > 0 {}
    assert!(got > 0);
    took / got as f64
}

fn ring(eal: Eal) {
    let device = "net_ring0".to_owned();
    let mut port = DpdkPort::open(eal, &config(device, ADDRESSES[0], ADDRESSES[0])).unwrap();
    println!("{}; {}", port.caps().name, port.caps().notes.join("; "));
    for len in LENGTHS {
        for (what, end) in [("plain", End::Plain), ("crc", End::Crc)] {
            let each = each(&mut port, None, len, len, end, TIME);
            let rate = (len * 8) as f64 / each;
            println!("{len:5} bytes, {what:5}: {each:6.1} ns a frame, {rate:6.1} Gb/s");
        }
    }
}

/// Two ends of shared memory.
fn memif(eal: Eal, zero_copy: bool) -> [DpdkPort; 2] {
    let mut ports = [("server", 0), ("client", 1)].map(|(role, side)| {
        let socket = format!("spindrift-loop-{}-{zero_copy}", std::process::id());
        let device = format!(
            "net_memif_{role}{zero_copy},role={role},bsize=10240,socket-abstract=yes,socket={socket}"
        );
        let config = config(device, ADDRESSES[side], ADDRESSES[1 - side]);
        DpdkPort::open(eal, &DpdkConfig { zero_copy: Some(zero_copy), ..config }).unwrap()
    });
    while ports.iter_mut().any(|port| port.link() == LinkState::Down) {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{}; {}", ports[0].caps().name, ports[0].caps().notes.join("; "));
    ports
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn copies(eal: Eal) {
    let mut ports = [false, true].map(|zero_copy| memif(eal, zero_copy));
    // A region of some frames, which stay in the first cache, and one that does not fit the second.
    for region in [16 << 10, 16 << 20] {
        for len in [64, 1024, 2048, 4096, 8192] {
            for (what, end) in [("plain", End::Plain), ("crc", End::Crc)] {
                let mut turn = || {
                    let [copied, lent] = ports
                        .each_mut()
                        .map(|[tx, rx]| each(tx, Some(rx), region, len, end, TIME / TURNS as u32));
                    [copied, lent, copied / lent]
                };
                let turns: Vec<_> = (0..TURNS).map(|_| turn()).collect();
                let column = |at: usize| median(&mut turns.iter().map(|turn| turn[at]).collect::<Vec<_>>());
                let mut ratios: Vec<_> = turns.iter().map(|turn| turn[2]).collect();
                let ratio = median(&mut ratios);
                println!(
                    "{len:5} bytes of {:5} KiB, {what:5}: {:6.1} ns a frame copied by the port, {:6.1} not; faster by {ratio:.2} [{:.2} to {:.2}]",
                    region >> 10,
                    column(0),
                    column(1),
                    ratios[0],
                    ratios[TURNS - 1],
                );
            }
        }
    }
    // One after the other: see the driver's trouble with ends that close at once.
    for port in ports.into_iter().flatten() {
        drop(port);
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn main() {
    let huge_pages = std::env::args().any(|arg| arg == "--huge-pages");
    let memory_mib = (!huge_pages).then_some(512);
    let eal = Eal::start(&EalConfig { huge_pages, memory_mib, ..EalConfig::default() }).unwrap();
    ring(eal);
    copies(eal);
}
