//! What a port costs per frame: one thread sends frames through a ring of DPDK to itself and receives them.
//!
//! `cargo bench -p spindrift-dpdk --bench loop`, or `-- --huge-pages` where some are free.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark")]

use std::time::{Duration, Instant};

use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
use spindrift_pmd::memory::Region;
use spindrift_pmd::{DatagramMeta, MacAddr, Port as _, Tail, TxFrame, testing};

const BURST: usize = 32;
const TIME: Duration = Duration::from_millis(500);

fn main() {
    let huge_pages = std::env::args().any(|arg| arg == "--huge-pages");
    let memory_mib = (!huge_pages).then_some(192);
    let eal = Eal::start(&EalConfig { huge_pages, memory_mib, ..EalConfig::default() }).unwrap();
    let local = "fd96::1".parse().unwrap();
    let config = DpdkConfig {
        device: "net_ring0".to_owned(),
        local,
        neighbours: vec![(local, MacAddr([2, 0, 0, 0, 0, 1]))],
        mtu: Some(9000),
        ..DpdkConfig::default()
    };
    let mut port = DpdkPort::open(eal, &config).unwrap();
    println!("{}; {}", port.caps().name, port.caps().notes.join("; "));
    for len in [0, 64, 1024, 4096, 8192] {
        let region = Region::alloc(len.max(1)).unwrap();
        let meta = DatagramMeta {
            src: local,
            dst: local,
            src_port: 0xc000,
            dst_port: 4971,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut head = [0; 62];
        testing::head(&meta, len + 4, &mut head);
        for (what, tail) in [("plain", Tail::Bytes(&[0; 4])), ("crc", Tail::Crc32(1))] {
            let frame = TxFrame {
                head: &head,
                udp_payload_at: 62,
                payload: region.payload(0, len).unwrap(),
                tail,
                ticket: 0,
            };
            let (mut frames, began) = (0_u64, Instant::now());
            while began.elapsed() < TIME {
                port.link();
                for _ in 0..16 {
                    assert_eq!(port.tx_burst(frames, &[frame; BURST]), BURST);
                    let got =
                        port.rx_burst(frames, BURST, &mut |frame| assert_eq!(frame.len(), 62 + len + 4));
                    assert_eq!(got, BURST);
                    frames += BURST as u64;
                }
            }
            let each = began.elapsed().as_secs_f64() * 1e9 / frames as f64;
            let rate = (len * 8) as f64 / each;
            println!("{len:5} bytes, {what:5}: {each:6.1} ns a frame, {rate:6.1} Gb/s");
        }
    }
}
