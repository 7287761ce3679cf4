//! Throughput of kernel UDP: the raw pump, and the `udp` port beside it. Each process has one role, so that the two
//! can run in network namespaces of their own; `udp_throughput.sh` makes two joined by a veth pair.
//!
//! `udp_throughput pump-send|pump-receive|port-send|port-receive LOCAL REMOTE [SECONDS] [off]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark owns its clock")]

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use spindrift_pmd::pump::{PumpConfig, PumpStats, receive, send};
use spindrift_pmd::udp::{Offload, SourcePorts, UdpConfig, UdpPort};
use spindrift_pmd::{Port, PortCounters, TxFrame};

const PAYLOAD: usize = 4096;
const PORTS: usize = 16;
/// Fifteen packets, one full batch, of each source port.
const BURST: usize = 15 * PORTS;

fn head(local: IpAddr, remote: IpAddr, source_port: u16) -> Vec<u8> {
    let mut head = vec![0; 14];
    match (local, remote) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            head.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
            head.extend(from.octets());
            head.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            head.extend([0x60, 0, 0, 0, 0, 0, 17, 64]);
            head.extend(from.octets());
            head.extend(to.octets());
        }
        _ => {}
    }
    head.extend(source_port.to_be_bytes());
    head.extend(4971_u16.to_be_bytes());
    head.extend([0; 4 + 40]);
    head
}

/// Bursts as a lane would offer them: packets sprayed one by one over the source ports.
fn port_send(port: &mut UdpPort, local: IpAddr, remote: IpAddr, duration: Duration) {
    let heads: Vec<_> =
        port.caps().source_ports.clone().unwrap().into_iter().map(|p| head(local, remote, p)).collect();
    let memory = vec![0x5a; 1 << 20];
    let start = Instant::now();
    let mut n = 0;
    while start.elapsed() < duration {
        let frames: Vec<_> = (0..BURST)
            .map(|i| {
                let at = (n + i) * PAYLOAD % memory.len();
                let head = &heads[i % PORTS];
                TxFrame {
                    head,
                    udp_payload_at: head.len() - 40,
                    payload: (&memory[at..at + PAYLOAD]).into(),
                    tail: (&[0; 4]).into(),
                    ticket: 0,
                }
            })
            .collect();
        n += port.tx_burst(0, &frames);
    }
    print_port(&port.counters(), port.counters().tx_frames, start.elapsed());
}

fn port_receive(port: &mut UdpPort, duration: Duration) {
    let mut last = Instant::now();
    let mut first = None;
    loop {
        if port.rx_burst(0, 256, &mut |frame| {
            std::hint::black_box(frame.data);
        }) > 0
        {
            last = Instant::now();
            first.get_or_insert(last);
        }
        let idle = first.is_some() && last.elapsed() > Duration::from_millis(500);
        if idle || first.is_some_and(|first| last - first >= duration) {
            break;
        }
    }
    print_port(&port.counters(), port.counters().rx_frames, last - first.unwrap());
}

fn print_port(counters: &PortCounters, frames: u64, elapsed: Duration) {
    let gbps = (frames as usize * PAYLOAD) as f64 * 8.0 / elapsed.as_secs_f64() / 1e9;
    println!("port: {gbps:.1} Gb/s of payload, {counters:?}");
}

fn print_pump(stats: &PumpStats) {
    println!("pump: {:.1} Gb/s of payload, {:.3} Mpps, {stats:?}", stats.gbps(), stats.mpps());
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, role, local, remote, rest @ ..] = &args[..] else {
        eprintln!(
            "usage: udp_throughput pump-send|pump-receive|port-send|port-receive LOCAL REMOTE [SECONDS] [off]"
        );
        std::process::exit(2);
    };
    let (local, remote): (IpAddr, IpAddr) = (local.parse().unwrap(), remote.parse().unwrap());
    let duration = Duration::from_secs_f64(rest.first().map_or(2.0, |s| s.parse().unwrap()));
    let offload = if rest.get(1).is_some() { Offload::Off } else { Offload::Auto };
    let pump = PumpConfig { local, remote, duration, gso: offload, gro: offload, ..PumpConfig::default() };
    let sending = role.ends_with("-send");
    core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(!sending) });
    let stop = AtomicBool::new(false);
    match role.as_str() {
        "pump-send" => print_pump(&send(&pump, &stop).unwrap()),
        "pump-receive" => print_pump(&receive(&pump, &stop).unwrap()),
        _ => {
            // The sender's receive socket is not used, and both may share an address.
            let port = if sending { 0 } else { 4971 };
            let source_ports = SourcePorts::Count(PORTS);
            let cfg =
                UdpConfig { local, port, source_ports, gso: offload, gro: offload, ..UdpConfig::default() };
            let mut port = UdpPort::open(&cfg).unwrap();
            eprintln!("{:?}", port.caps().notes);
            if sending {
                port_send(&mut port, local, remote, duration);
            } else {
                port_receive(&mut port, duration);
            }
        }
    }
}
