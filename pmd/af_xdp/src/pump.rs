//! Raw `AF_XDP` at full speed, without a transport: what the rings can do at best between two interfaces.
//!
//! Sender and receiver have the buffers, rings and program of an [`AfXdpPort`] and nothing else. The sender writes one packet into all its
//! buffers when it starts, and from then on only tells the kernel which ones to send; the receiver looks at no byte and hands the buffers
//! back. The transport over these ports is measured against this. What of the distance is its own, and what any transport has to pay,
//! [`PumpConfig::crc_copy`] tells.
//!
//! Both block their thread until the limit that the settings give, or until `stop` is set.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etherparse::{
    Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader, ether_type::IPV4,
    ether_type::IPV6,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spindrift_pmd::memory::{Pieces, RegionError};
use spindrift_pmd::pump::{HEAD, Placing, PumpStats, TAIL};
use spindrift_pmd::{MacAddr, Port as _, Tail, TxFrame};

use crate::queue::{BUFFER, Queue};
use crate::{AfXdpConfig, AfXdpError, AfXdpPort};

/// Frames that are queued before the kernel is called.
const BATCH: usize = 64;
/// Memory that payload is read from, in bytes.
const MEMORY: usize = 1 << 20;
/// UDP source port, of those that MRC uses (`0xC000` and up).
const SOURCE_PORT: u16 = 0xC000;
const HOP_LIMIT: u8 = 64;
/// How long the kernel may take to find out the next neighbour's address, and how often it is asked.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(3);
const NEIGHBOUR_PAUSE: Duration = Duration::from_millis(5);
/// How long the kernel may take to send what is still queued at the end.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// A receiver that has received something ends after so long without anything.
const IDLE_END: Duration = Duration::from_secs(1);
const POLL_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What a receiver does while there is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It asks again and again.
    #[default]
    Spin,
    /// It sleeps in `poll`, which leaves its core to others, such as the kernel's thread that serves the interface (threaded NAPI).
    Poll,
}

/// What to pump.
#[derive(Clone, Debug)]
pub struct PumpConfig {
    /// The interface and its settings. Packets go to the first of the UDP ports, and come in at that.
    pub port: AfXdpConfig,
    /// Payload bytes of a packet, at least 1; 44 bytes of transport headers and checksum are added, and the headers of UDP, IP and
    /// Ethernet. Default 4096.
    pub payload: usize,
    /// Destination of an outer IPv6 header, such as the uSID carrier of a path. Default: none, and no outer header.
    pub carrier: Option<Ipv6Addr>,
    /// End after this time: of sending, or since the first packet received. Default 10 s.
    pub duration: Duration,
    /// End after so many payload bytes. Default: no such limit.
    pub bytes: Option<u64>,
    /// What a receiver does while there is nothing. Default `Spin`.
    pub wait: Wait,
    /// Do with payload what no transport can go without: the sender copies it into its buffers and writes its CRC-32 behind it; the
    /// receiver computes that again, compares, and copies the payload to memory of its own. To be set on both sides. Default `false`.
    pub crc_copy: bool,
}

impl Default for PumpConfig {
    fn default() -> Self {
        Self {
            port: AfXdpConfig::default(),
            payload: 4096,
            carrier: None,
            duration: Duration::from_secs(10),
            bytes: None,
            wait: Wait::Spin,
            crc_copy: false,
        }
    }
}

/// Why a pump cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PumpError {
    /// There is no port.
    #[error(transparent)]
    Port(#[from] AfXdpError),
    /// One address is IPv4, the other IPv6.
    #[error("{local} cannot send to {remote}: one address is IPv4, the other IPv6")]
    Family {
        /// This side's address.
        local: IpAddr,
        /// The other's.
        remote: IpAddr,
    },
    /// The interface does not take frames of that length.
    #[error("a payload of {payload} bytes makes frames of {frame}; {port} takes up to {most}")]
    TooLong {
        /// The name of the port.
        port: String,
        /// Payload of a packet.
        payload: usize,
        /// Length of its frame.
        frame: usize,
        /// Most.
        most: usize,
    },
    /// Nobody knows the next neighbour's Ethernet address.
    #[error("no way from {port} to {to}: there is no route by this interface, or no neighbour answers there")]
    NoWay {
        /// The name of the port.
        port: String,
        /// Where packets should go.
        to: IpAddr,
    },
    /// There is no memory to copy payload to.
    #[error("no memory for payload: {0}")]
    Memory(#[from] RegionError),
}

#[expect(clippy::disallowed_methods, reason = "the pump measures real time")]
fn clock() -> Instant {
    Instant::now()
}

/// Sends to `remote` as fast as the kernel takes it.
///
/// # Errors
/// When the port cannot be opened, or does not lead there. What goes wrong later is counted.
pub fn send(config: &PumpConfig, remote: IpAddr, stop: &AtomicBool) -> Result<PumpStats, PumpError> {
    let mut port = AfXdpPort::open(&config.port)?;
    let caps = port.caps().clone();
    let local = caps.local_ip;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(PumpError::Family { local, remote });
    }
    let to = config.carrier.map_or(remote, IpAddr::V6);
    let mac = neighbour(&mut port, to, stop)?;
    let head = head(config, (caps.mac, mac), (local, remote));
    let frame = head.len() + config.payload + TAIL;
    if frame > caps.max_frame {
        let (port, payload) = (caps.name, config.payload);
        return Err(PumpError::TooLong { port, payload, frame, most: caps.max_frame });
    }
    let queue = port.queues.first_mut().ok_or_else(|| PumpError::NoWay { port: caps.name.clone(), to })?;
    // Bytes that differ from packet to packet, so that a wrong one has a wrong CRC.
    let memory: Vec<u8> = (0..MEMORY + config.payload).map(|at| (at / 251) as u8).collect();
    queue.write_all([&head[..], &memory[..BUFFER - head.len().min(BUFFER)]].concat().as_slice());
    let mut stats = PumpStats::default();
    let start = clock();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed)
        && start.elapsed() < config.duration
        && config.bytes.is_none_or(|bytes| stats.packets * (config.payload as u64) < bytes)
    {
        queue.reclaim();
        let queued = if config.crc_copy {
            let mut queued = 0;
            while queued < BATCH
                && queue.push(&packet(&head, &memory[at..at + config.payload]), mac, caps.mac)
            {
                queued += 1;
                at = (at + config.payload) % MEMORY;
            }
            queued
        } else {
            queue.push_as_written(frame, BATCH)
        };
        stats.packets += queued as u64;
        kick(queue, &mut stats);
    }
    stats.packets -= finish(queue, &mut stats).div_ceil(frame.div_ceil(BUFFER)) as u64;
    stats.payload_bytes = stats.packets * config.payload as u64;
    stats.elapsed = start.elapsed();
    stats.errors += port.counters().tx_errors;
    Ok(stats)
}

fn kick(queue: &mut Queue, stats: &mut PumpStats) {
    let kicked = queue.kick();
    stats.calls += kicked.calls;
    stats.errors += kicked.errors;
}

/// Waits for the kernel to send what is queued; returns how many buffers it did not.
fn finish(queue: &mut Queue, stats: &mut PumpStats) -> usize {
    let start = clock();
    while queue.waiting() > 0 && start.elapsed() < LAST_WAIT {
        queue.reclaim();
        kick(queue, stats);
    }
    queue.waiting()
}

#[expect(clippy::disallowed_methods, reason = "nothing else goes on yet")]
fn neighbour(port: &mut AfXdpPort, to: IpAddr, stop: &AtomicBool) -> Result<MacAddr, PumpError> {
    let start = clock();
    loop {
        if let Some(mac) = port.interface.mac_of(to, start.elapsed().as_nanos() as u64) {
            return Ok(mac);
        }
        if stop.load(Ordering::Relaxed) || start.elapsed() > NEIGHBOUR_WAIT {
            return Err(PumpError::NoWay { port: port.caps().name.clone(), to });
        }
        std::thread::sleep(NEIGHBOUR_PAUSE);
    }
}

fn packet<'a>(head: &'a [u8], payload: &'a [u8]) -> TxFrame<'a> {
    TxFrame {
        head,
        udp_payload_at: head.len() - HEAD,
        payload: payload.into(),
        tail: Tail::Crc32(0),
        ticket: 0,
    }
}

/// All that precedes the payload of a packet. The UDP checksum is zero, as is MRC's (RFC 6936).
fn head(config: &PumpConfig, (from, to): (MacAddr, MacAddr), (local, remote): (IpAddr, IpAddr)) -> Vec<u8> {
    let udp_len = (UdpHeader::LEN + HEAD + config.payload + TAIL) as u16;
    let v6 = |next_header, payload_length, destination: Ipv6Addr, source: Ipv6Addr| Ipv6Header {
        traffic_class: 0,
        flow_label: Ipv6FlowLabel::ZERO,
        payload_length,
        next_header,
        hop_limit: HOP_LIMIT,
        source: source.octets(),
        destination: destination.octets(),
    };
    let (ip, number) = match (local, remote) {
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            (v6(IpNumber::UDP, udp_len, remote, local).to_bytes().to_vec(), IpNumber::IPV6)
        }
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let header = Ipv4Header::new(udp_len, HOP_LIMIT, IpNumber::UDP, local.octets(), remote.octets());
            let header = header.map(|mut header| {
                header.header_checksum = header.calc_header_checksum();
                header.to_bytes().to_vec()
            });
            (header.unwrap_or_default(), IpNumber::IPV4)
        }
        // The caller has looked.
        _ => (Vec::new(), IpNumber::IPV4),
    };
    let outer = config.carrier.map(|carrier| {
        let source = match local {
            IpAddr::V6(local) => local,
            IpAddr::V4(local) => local.to_ipv6_mapped(),
        };
        v6(number, ip.len() as u16 + udp_len, carrier, source).to_bytes().to_vec()
    });
    let ether_type = if outer.is_some() || local.is_ipv6() { IPV6 } else { IPV4 };
    let ethernet = Ethernet2Header { source: from.0, destination: to.0, ether_type };
    let destination_port = config.port.udp_ports.first().copied().unwrap_or_default();
    let udp = UdpHeader { source_port: SOURCE_PORT, destination_port, length: udp_len, checksum: 0 };
    [&ethernet.to_bytes()[..], &outer.unwrap_or_default(), &ip, &udp.to_bytes(), &[0xC7; HEAD]].concat()
}

/// Receives until the limit, until `stop`, or until a second passes with nothing more.
///
/// # Errors
/// When the port cannot be opened. What goes wrong later is counted.
pub fn receive(config: &PumpConfig, stop: &AtomicBool) -> Result<PumpStats, PumpError> {
    Ok(Receiver::open(config)?.run(stop))
}

/// A receiver whose port is open: what is sent from now on comes in.
#[derive(Debug)]
pub struct Receiver {
    port: AfXdpPort,
    duration: Duration,
    bytes: Option<u64>,
    wait: Wait,
    payload: usize,
    /// Where payload is copied to, if it is.
    memory: Option<Placing>,
}

impl Receiver {
    /// Opens the port.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn open(config: &PumpConfig) -> Result<Self, PumpError> {
        let port = AfXdpPort::open(&config.port)?;
        let memory = config.crc_copy.then(Placing::new).transpose()?;
        let (duration, bytes) = (config.duration, config.bytes);
        Ok(Self { port, duration, bytes, wait: config.wait, payload: config.payload, memory })
    }

    /// What the port is, in words.
    pub fn notes(&self) -> &[String] {
        &self.port.caps().notes
    }

    /// As [`receive`].
    pub fn run(mut self, stop: &AtomicBool) -> PumpStats {
        let mut stats = PumpStats::default();
        let (mut first, mut dropped) = (None, 0);
        let mut last = clock();
        while !stop.load(Ordering::Relaxed) && self.bytes.is_none_or(|bytes| stats.payload_bytes < bytes) {
            let had = stats.packets;
            for queue in &mut self.port.queues {
                let memory = &mut self.memory;
                let (mut bytes, mut wrong) = (0, 0);
                let shown = queue.receive(BATCH, &mut |frame| {
                    let pieces = Pieces::new(frame.data, frame.rest);
                    // What is not payload is known by the payload's length: the sender's packets are all alike.
                    bytes += self.payload.min(pieces.len()) as u64;
                    if let Some(memory) = memory {
                        let head = pieces.len().saturating_sub(self.payload + TAIL);
                        let placed = pieces.split_front(head).is_some_and(|(_, rest)| memory.place(rest));
                        wrong += u64::from(!placed);
                    }
                });
                stats.packets += shown.frames as u64;
                stats.payload_bytes += bytes;
                stats.errors += wrong;
                dropped += shown.dropped;
                stats.calls += u64::from(shown.frames > 0);
            }
            if stats.packets > had {
                last = clock();
                stats.elapsed = last.duration_since(*first.get_or_insert(last));
                if stats.elapsed >= self.duration {
                    break;
                }
            } else if first.is_some() && last.elapsed() > IDLE_END {
                break;
            } else if self.wait == Wait::Poll {
                let all = self.port.readable();
                let mut all: Vec<_> =
                    all.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                // A signal may end it early, as does a packet.
                let _ = poll(&mut all, Some(&POLL_WAIT));
            }
        }
        stats.dropped = Some(dropped + self.port.counters().rx_dropped);
        stats
    }
}
