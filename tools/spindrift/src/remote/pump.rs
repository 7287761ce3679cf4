//! Slices of the raw UDP pump beside a run, from the client to the server, between the addresses of the first plane.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use spindrift::verbs::exchange::{Channel, Offer};
use spindrift_pmd::pump::{PumpConfig, PumpStats, Receiver, send};
use spindrift_pmd::udp::Offload;

use super::plan::Message;
use super::with_peer;
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) payload: usize,
    pub(super) gso: bool,
}

impl Sending {
    /// Sends for that long, and returns what came, in Gb/s.
    pub(super) fn slice(
        &self,
        channel: &mut Channel,
        peer: &str,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<f64> {
        let named = |error| with_peer(error, "server", peer);
        channel.send(&Message::Pump { payload_bytes: self.payload }).map_err(named)?;
        let port = match channel.receive().map_err(named)? {
            Message::PumpReady { port } => port,
            other => bail!("the server {peer} sent \"{}\" when \"pump-ready\" was due", other.name()),
        };
        let config = PumpConfig {
            local: self.local,
            remote: self.remote,
            port,
            payload: self.payload,
            duration,
            gso: if self.gso { Offload::Auto } else { Offload::Off },
            ..PumpConfig::default()
        };
        let sent = send(&config, stop).context("the pump beside the run")?;
        channel.send(&Message::PumpSent).map_err(named)?;
        let (payload_bytes, elapsed_ns) = match channel.receive().map_err(named)? {
            Message::Pumped { payload_bytes, elapsed_ns } => (payload_bytes, elapsed_ns),
            other => bail!("the server {peer} sent \"{}\" when \"pumped\" was due", other.name()),
        };
        if payload_bytes == 0 && !stop.load(Ordering::Relaxed) {
            bail!(
                "--with-pump: nothing came from {} to {} UDP port {port} ({} packets sent, {} refused); does a firewall take it? Run without --with-pump",
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

/// The server's end: receives a slice on `local`. The lanes stand still meanwhile, as the client's do.
pub(super) fn receive_slice(
    channel: &mut Channel,
    peer: &str,
    local: IpAddr,
    payload: usize,
) -> Result<PumpStats> {
    let named = |error| with_peer(error, "client", peer);
    if !(1..=PAYLOAD_MAX).contains(&payload) {
        bail!("the client {peer} wants to pump packets of {payload} bytes; 1 to {PAYLOAD_MAX} can be used");
    }
    let config = PumpConfig { local, port: 0, payload, duration: SLICE_MAX, ..PumpConfig::default() };
    let receiver = Receiver::open(&config).context("the pump beside the run")?;
    channel.send(&Message::PumpReady { port: receiver.port() }).map_err(named)?;
    let [stop, over] = [const { AtomicBool::new(false) }; 2];
    let stats = thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        let receiving = scope.spawn(|| receiver.run_beside(&stop, &over));
        match channel.receive().map_err(named)? {
            Message::PumpSent => {}
            Message::Abort { reason } => bail!("the client {peer} gave up: {reason}"),
            other => bail!("the client {peer} sent \"{}\" when \"pump-sent\" was due", other.name()),
        }
        over.store(true, Ordering::Release);
        receiving.join().map_err(|_| anyhow!("the pump's thread panicked"))
    })?;
    let elapsed_ns = u64::try_from(stats.elapsed.as_nanos()).unwrap_or(u64::MAX);
    channel.send(&Message::Pumped { payload_bytes: stats.payload_bytes, elapsed_ns }).map_err(named)?;
    Ok(stats)
}
