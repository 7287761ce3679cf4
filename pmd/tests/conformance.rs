//! Every port and every middleware passes the conformance run.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;

use spindrift_pmd::Port;
use spindrift_pmd::fault::{FaultPlan, FaultPort};
use spindrift_pmd::loopback::{LoopbackConfig, pair};
use spindrift_pmd::pcap::{Capture, PcapPort};
use spindrift_pmd::rate::RatePort;
use spindrift_pmd::testing::{Conformance, conformance};
use spindrift_pmd::trace::TracePort;
use spindrift_pmd::udp::{Offload, SourcePorts, UdpConfig, UdpPort};

fn loopback() -> (Box<dyn Port>, Box<dyn Port>) {
    let (mut a, mut b) = pair(1, LoopbackConfig::default());
    (Box::new(a.remove(0)), Box::new(b.remove(0)))
}

fn udp(a: &str, b: &str, gso: Offload, gro: Offload) -> (Box<dyn Port>, Box<dyn Port>, Conformance) {
    let open = |ip: &str| {
        let cfg = UdpConfig {
            local: ip.parse().unwrap(),
            port: 0,
            source_ports: SourcePorts::Count(8),
            gso,
            gro,
            ..UdpConfig::default()
        };
        UdpPort::open(&cfg).unwrap()
    };
    let (a, b) = (open(a), open(b));
    let ports = Conformance { port_a: a.port(), port_b: b.port() };
    (Box::new(a), Box::new(b), ports)
}

fn wrap(port: Box<dyn Port>, kind: &str) -> Box<dyn Port> {
    let readable = port.readable().len();
    let port: Box<dyn Port> = match kind {
        "fault" => Box::new(FaultPort::new(port, 0, FaultPlan::default(), 1)),
        // Rules that never hit this port.
        "fault with rules" => {
            let plan =
                "loss=100%,port=9; loss=100%,ev=77; corrupt=0%,opcode=write; down,from=1s".parse().unwrap();
            Box::new(FaultPort::new(port, 0, plan, 1))
        }
        // So fast that no frame takes any time.
        "rate" => Box::new(RatePort::new(port, u64::MAX)),
        "pcap" => Box::new(PcapPort::new(port, Capture::to(Box::new(std::io::sink()), 0))),
        _ => Box::new(TracePort::new(port, 0, Box::new(std::io::sink()) as Box<dyn Write + Send>)),
    };
    assert_eq!(port.readable().len(), readable, "{kind}: what is slept on is the port below");
    port
}

const KINDS: [&str; 5] = ["fault", "fault with rules", "rate", "pcap", "trace"];

#[test]
fn loopback_conforms() {
    let (mut a, mut b) = loopback();
    conformance(&mut *a, &mut *b);
}

#[test]
fn short_rings_conform() {
    let cfg = LoopbackConfig {
        slots: 2,
        frame_max: 9018,
        base_ips: ["10.1.0.1", "10.1.0.2"].map(|ip| ip.parse().unwrap()),
        ..LoopbackConfig::default()
    };
    let (mut a, mut b) = pair(1, cfg);
    conformance(&mut a[0], &mut b[0]);
}

#[test]
fn udp_conforms() {
    use Offload::{Auto, Off};
    for (gso, gro) in [(Auto, Auto), (Auto, Off), (Off, Auto), (Off, Off)] {
        for (a, b) in [("127.0.0.1", "127.0.0.9"), ("::1", "::1")] {
            let (mut a, mut b, ports) = udp(a, b, gso, gro);
            assert_eq!(a.readable().len(), 1);
            ports.run(&mut *a, &mut *b);
        }
    }
}

#[test]
fn udp_conforms_at_the_usual_port() {
    let open =
        |ip: &str| UdpPort::open(&UdpConfig { local: ip.parse().unwrap(), ..UdpConfig::default() }).unwrap();
    conformance(&mut open("127.83.7.1"), &mut open("127.83.7.2"));
}

#[test]
fn middleware_conforms_over_loopback() {
    for kind in KINDS {
        let (a, b) = loopback();
        conformance(&mut *wrap(a, kind), &mut *wrap(b, kind));
    }
}

#[test]
fn middleware_conforms_over_udp() {
    for kind in KINDS {
        let (a, b, ports) = udp("127.0.0.1", "127.0.0.9", Offload::Auto, Offload::Auto);
        ports.run(&mut *wrap(a, kind), &mut *wrap(b, kind));
    }
}

#[test]
fn all_middleware_at_once_conforms() {
    let (a, b) = loopback();
    let all = |port| KINDS.iter().fold(port, |port, kind| wrap(port, kind));
    conformance(&mut *all(a), &mut *all(b));
}
