//! Slices of the raw UDP pump beside a run, from the client to the server, between the addresses of the first plane.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use spindrift_exchange::Offer;
use spindrift_pmd::pump::{PumpConfig, PumpStats, Receiver, send};
use spindrift_pmd::udp::Offload;

use super::peer::Peer;
use super::plan::Message;

use crate::stop::SetOnDrop;

/// Largest payload of a packet, as for the transport.
const PAYLOAD_MAX: usize = 8960;
/// A server ends a slice after this time at the latest.
const SLICE_MAX: Duration = Duration::from_secs(5);

/// The address of an offer's first plane.
pub(super) fn first_address(offer: &Offer) -> Result<IpAddr> {
    let port = offer.qps.first().and_then(|qp| qp.ports.first());
    Ok(port.context("no plane to pump over")?.ip)
}

/// The client's end.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    pub(super) local: IpAddr,
    /// That has the address.
    pub(super) interface: Option<String>,
    pub(super) remote: IpAddr,
    pub(super) payload: usize,
    pub(super) gso: bool,
}

impl Sending {
    /// Sends for that long, and returns what came, in Gb/s.
    pub(super) fn slice(&self, peer: &mut Peer, duration: Duration) -> Result<f64> {
        peer.send(&Message::Pump { payload_bytes: self.payload })?;
        let port = match peer.receive()? {
            Message::PumpReady { port } => port,
            other => return Err(peer.unexpected(&other, "pump-ready")),
        };
        let config = PumpConfig {
            local: self.local,
            interface: self.interface.clone(),
            remote: self.remote,
            port,
            payload: self.payload,
            duration,
            gso: if self.gso { Offload::Auto } else { Offload::Off },
            ..PumpConfig::default()
        };
        let sent = send(&config, peer.stop().flag()).context("the pump beside the run")?;
        peer.stop().check()?;
        peer.send(&Message::PumpSent)?;
        let (payload_bytes, elapsed_ns) = match peer.receive()? {
            Message::Pumped { payload_bytes, elapsed_ns } => (payload_bytes, elapsed_ns),
            other => return Err(peer.unexpected(&other, "pumped")),
        };
        if payload_bytes == 0 {
            bail!(
                "--yardstick: no packet arrived from {} at {} UDP port {port} ({} packets sent, {} refused); does a firewall drop them? Run without --yardstick",
                self.local,
                self.remote,
                sent.packets,
                sent.errors
            );
        }
        let elapsed = Duration::from_nanos(elapsed_ns);
        Ok(PumpStats { payload_bytes, elapsed, ..PumpStats::default() }.gbps())
    }
}

/// The server's end: receives a slice on an address and the interface that has it. The lanes stand still meanwhile, as the client's do.
pub(super) fn receive_slice(
    peer: &mut Peer,
    (local, interface): (IpAddr, Option<String>),
    payload: usize,
) -> Result<PumpStats> {
    if !(1..=PAYLOAD_MAX).contains(&payload) {
        let peer = peer.name();
        bail!("the {peer} wants to pump packets of {payload} bytes; 1 to {PAYLOAD_MAX} can be used");
    }
    let config =
        PumpConfig { local, interface, port: 0, payload, duration: SLICE_MAX, ..PumpConfig::default() };
    let receiver = Receiver::open(&config).context("the pump beside the run")?;
    peer.send(&Message::PumpReady { port: receiver.port() })?;
    let [stop, over] = [const { AtomicBool::new(false) }; 2];
    let stats = thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        let receiving = scope.spawn(|| receiver.run_beside(&stop, &over));
        match peer.receive()? {
            Message::PumpSent => {}
            other => return Err(peer.unexpected(&other, "pump-sent")),
        }
        over.store(true, Ordering::Release);
        receiving.join().map_err(|_| anyhow!("the pump's thread panicked"))
    })?;
    let elapsed_ns = u64::try_from(stats.elapsed.as_nanos()).unwrap_or(u64::MAX);
    peer.send(&Message::Pumped { payload_bytes: stats.payload_bytes, elapsed_ns })?;
    Ok(stats)
}
