//! Checks two DPDK devices that are cabled to each other: neighbours are found, and the ports do what every port must.
//!
//! `cargo run -p spindrift-dpdk --example conform -- DEVICE DEVICE [MTU]`, such as `0000:01:00.0 0000:01:00.1 9000`.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods, reason = "an example")]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use spindrift_dpdk::{DpdkConfig, DpdkPort, Eal, EalConfig};
use spindrift_pmd::{DatagramMeta, LinkState, Port as _, TxFrame, testing};

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conform: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, rest @ ..] = &args[..] else {
        return Err("usage: conform DEVICE DEVICE [MTU]".into());
    };
    let mtu = rest.first().map(|text| text.parse()).transpose()?;
    let config = |device: &String, local: &str| -> Result<DpdkConfig, Box<dyn Error>> {
        Ok(DpdkConfig { device: device.clone(), local: local.parse()?, mtu, ..DpdkConfig::default() })
    };
    let configs = [config(first, "fd96::1")?, config(second, "fd96::2")?];
    let eal = Eal::start(&EalConfig::for_devices(&configs))?;
    let mut ports: Vec<_> = DpdkPort::open_planes(eal, &configs, 1)?.into_iter().flatten().collect();
    for port in &ports {
        println!("{:?}", port.caps());
    }
    let [a, b] = &mut ports[..] else { return Err("two devices have two ports".into()) };
    introduce(a, b)?;
    introduce(b, a)?;
    testing::conformance(a, b);
    for port in [a, b] {
        println!("{}: {:?}", port.caps().name, port.counters());
    }
    println!("fine");
    Ok(())
}

/// Has one port find the other: sends it a datagram until one arrives.
fn introduce(from: &mut DpdkPort, to: &mut DpdkPort) -> Result<(), Box<dyn Error>> {
    let meta = DatagramMeta {
        src: from.caps().local_ip,
        dst: to.caps().local_ip,
        src_port: 0xc000,
        dst_port: 4971,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let mut head = [0; 62];
    let len = testing::head(&meta, 0, &mut head);
    let frame = TxFrame {
        head: &head[..len],
        udp_payload_at: len,
        payload: (&[]).into(),
        tail: (&[]).into(),
        ticket: 0,
    };
    let began = Instant::now();
    loop {
        let now = began.elapsed().as_nanos() as u64;
        if from.link() == LinkState::Up {
            from.tx_burst(now, &[frame]);
        }
        from.rx_burst(now, 32, &mut |_| ());
        if to.rx_burst(now, 32, &mut |_| ()) > 0 {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("nothing arrived: {:?} {:?}", from.counters(), to.counters()).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // What is still on its way.
    std::thread::sleep(Duration::from_millis(100));
    while to.rx_burst(0, 32, &mut |_| ()) > 0 {}
    Ok(())
}
