//! Raw UDP at full speed, without a transport: what kernel sockets can do at best between two addresses.
//!
//! Sender and receiver use the sockets, offloads and packet size of the [`udp`](crate::udp) port, and nothing
//! else: the sender gathers header, payload and tail of each packet from memory and knows no
//! acknowledgement; the receiver looks at no byte. The transport over the `udp` port is measured against this. What of
//! the distance is its own, and what any transport has to pay, [`PumpConfig::crc_copy`] tells.
//!
//! Both block their thread until the limit that the settings give, or until `stop` is set.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::memory::{Payload, Pieces, Region, RegionError};
use crate::udp::sys::{self, Destination, RxBuffers, TxScratch};
use crate::udp::{
    BATCH_BYTES_MAX, Buffer, Egress, GRO_BUFFER, Offload, UdpError, ask_for_marks, bind, enable_gro,
    forbid_fragments, probe_gso, size_buffer, socket_address,
};
use spindrift_wire::batch_ids::SEGMENTS_MAX;

/// Memory that payload is gathered from, and that it is copied to, in bytes.
const MEMORY: usize = 1 << 20;
/// Transport headers before the payload of a packet and the checksum after it, in bytes, as on a write
/// packet with all its headers.
pub const HEAD: usize = 40;
/// See [`HEAD`].
pub const TAIL: usize = 4;
/// A receiver that has received something ends after so long without anything.
const IDLE_END: Duration = Duration::from_secs(1);
const FULL_WAIT_US: u32 = 1000;
const RECEIVE_WAIT_MS: i32 = 20;
/// A receiver asks again and again for so long before it sleeps: waking it would cost the sender time.
const SPIN: Duration = Duration::from_millis(2);
const SOCKET_BYTES: usize = 16 << 20;

/// What to pump.
#[derive(Clone, Debug)]
pub struct PumpConfig {
    /// Address of this host.
    pub local: IpAddr,
    /// The interface that has `local`: where several have it, as may be with link-local addresses, there is no telling else.
    /// Default: whichever has it.
    pub interface: Option<String>,
    /// Where the sender sends.
    pub remote: IpAddr,
    /// UDP port of the receiver. Default 4971.
    pub port: u16,
    /// Payload bytes of a packet, at least 1; 44 bytes of headers and checksum are added. Default 4096.
    pub payload: usize,
    /// The sender's sockets, used in turn. Default 1.
    pub source_ports: usize,
    /// End after this time: of sending, or since the first packet received. Default 10 s.
    pub duration: Duration,
    /// End after so many payload bytes. Default: no such limit.
    pub bytes: Option<u64>,
    /// Segmentation offload. Default `Auto`.
    pub gso: Offload,
    /// Receive coalescing. Default `Auto`.
    pub gro: Offload,
    /// Do with payload what no transport can go without: the sender writes the CRC-32 of each packet behind it; the
    /// receiver computes it again, compares, and copies the payload to memory of its own. To be set on both sides.
    /// Default `false`.
    pub crc_copy: bool,
}

impl Default for PumpConfig {
    fn default() -> Self {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            local,
            interface: None,
            remote: local,
            port: 4971,
            payload: 4096,
            source_ports: 1,
            duration: Duration::from_secs(10),
            bytes: None,
            gso: Offload::Auto,
            gro: Offload::Auto,
            crc_copy: false,
        }
    }
}

/// What was pumped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PumpStats {
    /// Packets sent or received.
    pub packets: u64,
    /// Payload bytes of these, without headers.
    pub payload_bytes: u64,
    /// From the first to the last packet.
    pub elapsed: Duration,
    /// System calls that moved packets.
    pub calls: u64,
    /// Packets that the kernel refused to send, or receive errors; with [`PumpConfig::crc_copy`] also packets received
    /// with a wrong CRC.
    pub errors: u64,
    /// Packets that came and that there was no room for, where the kernel tells.
    pub dropped: Option<u64>,
    /// Whether batches went through the kernel in one piece.
    pub offload: bool,
}

impl PumpStats {
    /// Payload gigabits a second.
    pub fn gbps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.payload_bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 }
    }

    /// Millions of packets a second.
    pub fn mpps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.packets as f64 / seconds / 1e6 } else { 0.0 }
    }
}

#[expect(clippy::disallowed_methods, reason = "the pump measures real time")]
fn clock() -> Instant {
    Instant::now()
}

/// Sends as fast as the kernel takes it.
///
/// # Errors
/// When the sockets cannot be opened. What goes wrong later is counted.
pub fn send(cfg: &PumpConfig, stop: &AtomicBool) -> Result<PumpStats, UdpError> {
    let mut egress = Egress::find(cfg.local, cfg.interface.as_deref(), Some(cfg.remote))?;
    let scope = egress.scope_id();
    let mut sockets = Vec::new();
    for opened in 0..cfg.source_ports.max(1) {
        let socket = bind(socket_address(cfg.local, 0, scope), opened)?;
        egress.bind(&socket);
        forbid_fragments(&socket, cfg.local.is_ipv4()).map_err(UdpError::io("forbid fragments"))?;
        size_buffer(&socket, Buffer::Send, SOCKET_BYTES).map_err(UdpError::io("size a send buffer"))?;
        sockets.push(socket);
    }
    let to = Destination { address: socket_address(cfg.remote, cfg.port, scope), traffic_class: 0 };
    let mut sender = Sender::new(cfg, to, sockets.first().is_some_and(|s| probe_gso(s).is_ok()));
    let start = clock();
    let mut turn = sockets.iter().cycle();
    while !stop.load(Ordering::Relaxed)
        && start.elapsed() < cfg.duration
        && cfg.bytes.is_none_or(|bytes| sender.stats.payload_bytes < bytes)
    {
        if let Some(socket) = turn.next() {
            sender.batch(socket);
        }
    }
    sender.stats.elapsed = start.elapsed();
    Ok(sender.stats)
}

struct Sender {
    to: Destination,
    memory: Vec<u8>,
    payload: usize,
    /// Packets of a batch.
    count: usize,
    at: usize,
    /// What goes behind the payload of each packet of a batch.
    tails: Vec<[u8; TAIL]>,
    crc_copy: bool,
    scratch: TxScratch,
    stats: PumpStats,
}

impl Sender {
    fn new(cfg: &PumpConfig, to: Destination, kernel_segments: bool) -> Self {
        let payload = cfg.payload.clamp(1, BATCH_BYTES_MAX - HEAD - TAIL);
        let offload = cfg.gso == Offload::Auto && kernel_segments;
        let count = (BATCH_BYTES_MAX / (payload + HEAD + TAIL)).min(SEGMENTS_MAX);
        let stats = PumpStats { offload, ..PumpStats::default() };
        // Bytes that differ from packet to packet, so that a wrong one has a wrong CRC.
        let memory = (0..MEMORY + BATCH_BYTES_MAX).map(|at| (at / 251) as u8).collect();
        let tails = vec![[0; TAIL]; count];
        Self {
            to,
            memory,
            payload,
            count,
            at: 0,
            tails,
            crc_copy: cfg.crc_copy,
            scratch: TxScratch::default(),
            stats,
        }
    }

    fn batch(&mut self, socket: &UdpSocket) {
        let payloads = self.memory[self.at..].chunks_exact(self.payload);
        if self.crc_copy {
            for (tail, payload) in self.tails.iter_mut().zip(payloads.clone()) {
                *tail = Payload::from(payload).crc32(0).to_le_bytes();
            }
        }
        let packets = self.tails.iter().zip(payloads);
        let packets = packets.map(|(tail, payload)| [&[0xC7; HEAD][..], payload, tail].map(Payload::from));
        let segment = (self.payload + HEAD + TAIL) as u16;
        let outcome = if self.stats.offload && self.count > 1 {
            self.scratch.send(socket, &self.to, Some(segment), packets.flatten()).map(|()| self.count)
        } else {
            self.scratch.send_each(socket, &self.to, packets)
        };
        self.at = (self.at + self.count * self.payload) % MEMORY;
        match outcome {
            Ok(sent) => {
                self.stats.calls += 1;
                self.stats.packets += sent as u64;
                self.stats.payload_bytes += (sent * self.payload) as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => sys::wait_writable(socket, FULL_WAIT_US),
            Err(e) => {
                self.stats.errors += self.count as u64;
                // A device that cannot segment says so here; from now on one by one.
                self.stats.offload &=
                    !matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP));
            }
        }
    }
}

/// Receives until the limit, until `stop`, or until a second passes with nothing more.
///
/// # Errors
/// When the socket cannot be opened. What goes wrong later is counted.
pub fn receive(cfg: &PumpConfig, stop: &AtomicBool) -> Result<PumpStats, UdpError> {
    Ok(Receiver::open(cfg)?.run(stop))
}

/// A receiver whose socket is open: what is sent from now on is not refused.
#[derive(Debug)]
pub struct Receiver {
    socket: UdpSocket,
    port: u16,
    duration: Duration,
    bytes: Option<u64>,
    offload: bool,
    /// Where payload is copied to, if it is.
    memory: Option<Placing>,
}

impl Receiver {
    /// Opens the socket. If the settings have port 0, the kernel chooses one.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn open(cfg: &PumpConfig) -> Result<Self, UdpError> {
        let scope = Egress::find(cfg.local, cfg.interface.as_deref(), None)?.scope_id();
        let socket = bind(socket_address(cfg.local, cfg.port, scope), 0)?;
        size_buffer(&socket, Buffer::Receive, SOCKET_BYTES)
            .map_err(UdpError::io("size the receive buffer"))?;
        ask_for_marks(&socket, cfg.local.is_ipv4(), false).map_err(UdpError::io("ask for ECN marks"))?;
        let port = socket.local_addr().map_err(UdpError::io("read the port of the socket"))?.port();
        let offload = cfg.gro == Offload::Auto && enable_gro(&socket).is_ok();
        let memory = cfg.crc_copy.then(Placing::new).transpose();
        let memory = memory.map_err(|error| UdpError::io("allocate memory")(io::Error::other(error)))?;
        Ok(Self { socket, port, duration: cfg.duration, bytes: cfg.bytes, offload, memory })
    }

    /// The UDP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// As [`receive`].
    pub fn run(self, stop: &AtomicBool) -> PumpStats {
        self.run_beside(stop, &AtomicBool::new(false))
    }

    /// As [`receive`], and ends when `sender_ended` is set and all that has arrived is taken, be that nothing.
    pub fn run_beside(self, stop: &AtomicBool, sender_ended: &AtomicBool) -> PumpStats {
        let Self { socket, duration, bytes: limit, offload, mut memory, .. } = self;
        let mut buffers =
            RxBuffers::new(if offload { 8 } else { 64 }, if offload { GRO_BUFFER } else { 9216 });
        let mut stats = PumpStats { offload, ..PumpStats::default() };
        let mut first: Option<Instant> = None;
        let mut last = clock();
        while !stop.load(Ordering::Relaxed) && limit.is_none_or(|bytes| stats.payload_bytes < bytes) {
            // Read before the socket: what was sent before it was set has arrived.
            let is_last = sender_ended.load(Ordering::Acquire);
            match buffers.receive(&socket) {
                Ok(count) => {
                    last = clock();
                    let start = *first.get_or_insert(last);
                    stats.calls += 1;
                    for (message, bytes) in (0..count).filter_map(|i| buffers.message(i)) {
                        let packets = message.len.div_ceil(message.segment);
                        stats.packets += packets as u64;
                        stats.payload_bytes += message.len.saturating_sub(packets * (HEAD + TAIL)) as u64;
                        if let Some(memory) = &mut memory {
                            let packets = bytes.chunks(message.segment);
                            let wrong = packets.filter(|packet| {
                                !packet.get(HEAD..).is_some_and(|rest| memory.place(rest.into()))
                            });
                            stats.errors += wrong.count() as u64;
                        }
                    }
                    stats.elapsed = last.duration_since(start);
                    if stats.elapsed >= duration {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let idle = last.elapsed();
                    if is_last || (first.is_some() && idle > IDLE_END) {
                        break;
                    }
                    if idle > SPIN {
                        sys::wait_readable(&socket, RECEIVE_WAIT_MS);
                    }
                }
                Err(_) => stats.errors += 1,
            }
        }
        stats
    }
}

/// Memory that received payload is copied to, packet behind packet, and again from the start.
#[derive(Debug)]
pub struct Placing {
    region: Arc<Region>,
    at: usize,
}

impl Placing {
    /// Allocates it.
    ///
    /// # Errors
    /// When there is none.
    pub fn new() -> Result<Self, RegionError> {
        Ok(Self { region: Region::alloc(MEMORY)?, at: 0 })
    }

    /// Copies a payload, if the CRC-32 behind it, in the order of an iCRC's bytes, is right.
    pub fn place(&mut self, packet: Pieces<'_>) -> bool {
        let Some((payload, tail)) = packet.split_last::<TAIL>() else { return false };
        if payload.crc32(0).to_le_bytes() != tail {
            return false;
        }
        let at = if self.at + payload.len() > MEMORY { 0 } else { self.at };
        self.at = at + payload.len();
        self.region.place(self.region.iova() + at as u64, &payload).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn payload_with_a_right_crc_is_copied_to_memory() {
        let mut placing = Placing::new().unwrap();
        let packet = |byte: u8, len: usize| {
            let payload = vec![byte; len];
            let tail = Payload::from(&payload[..]).crc32(0).to_le_bytes();
            [&payload[..], &tail].concat()
        };
        let size = MEMORY / 2 - 1;
        for (byte, want) in [(1, [1, 0]), (2, [1, 2]), (3, [3, 2]), (4, [3, 4])] {
            assert!(placing.place((&packet(byte, size)).into()));
            assert_eq!([0, size].map(|at| placing.region.load(at).unwrap()), want, "round the end");
        }
        for at in [0, 8, 9] {
            let mut damaged = packet(5, 9);
            damaged[at] ^= 1;
            assert!(!placing.place((&damaged).into()), "{at}");
        }
        assert!(!placing.place(packet(0, 0)[..TAIL - 1].into()), "too short");
        assert_eq!([0, size].map(|at| placing.region.load(at).unwrap()), [3, 4], "as before");
    }
}
