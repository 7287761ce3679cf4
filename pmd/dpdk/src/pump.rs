//! A device at full speed, without a transport: what its driver can do at best.
//!
//! Sender and receiver have the buffers and queues of a [`DpdkPort`] and nothing else. The sender writes payload into all its buffers
//! when it starts, and from then on only the headers of each packet, as `dpdk-testpmd` does; the receiver looks at no byte and hands the
//! buffers back. The transport over these ports is measured against this. [`PumpConfig::crc_copy`] tells how much of the difference any
//! transport has to pay.
//!
//! Both block their thread until the limit that the settings give, until `stop` is set, or until the peer is gone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spindrift_pmd::memory::{Pieces, RegionError};
use spindrift_pmd::pump::{HEAD, Placing, PumpStats, TAIL};
use spindrift_pmd::{ETHERNET_LEN, LinkState, MacAddr, Port as _, Tail, TxFrame};

use crate::{DpdkConfig, DpdkError, DpdkPort, Eal};

/// Frames that are queued before the device is called.
const BATCH: usize = 32;
/// Memory that payload is read from, in bytes.
const MEMORY: usize = 1 << 20;
/// UDP source port, of those that MRC uses (`0xC000` and up).
const SOURCE_PORT: u16 = 0xC000;
const HOP_LIMIT: u8 = 64;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// How long the other end may take to be there and to tell its Ethernet address, and how often the sender looks.
const PEER_WAIT: Duration = Duration::from_secs(5);
const PEER_PAUSE: Duration = Duration::from_millis(1);
/// How long the device may take to send what is still queued at the end.
const LAST_WAIT: Duration = Duration::from_millis(300);
/// A receiver that has received something ends after so long without anything, and a sender after so long without a link.
const IDLE_END: Duration = Duration::from_secs(1);
/// How long a receiver may take to read what the device has sent: what still lies in shared memory when a device is closed is lost.
const LINGER: Duration = Duration::from_millis(100);
/// How long the driver may take to clean up once the link is down.
const CLEANUP: Duration = Duration::from_millis(50);
/// How often a sender asks for the link.
const LINK_POLL: Duration = Duration::from_millis(10);
/// Rounds between two looks at the clock.
const ROUNDS: usize = 64;

/// What to pump.
#[derive(Clone, Debug)]
pub struct PumpConfig {
    /// The device and its settings. Packets go to the first of the UDP ports, and come in at that.
    pub port: DpdkConfig,
    /// Payload bytes of a packet, at least 1; 44 bytes of transport headers and checksum are added, and the headers of UDP, IP and
    /// Ethernet. Default 4096.
    pub payload: usize,
    /// End after this time: of sending, or since the first packet received. Default 10 s.
    pub duration: Duration,
    /// End after so many payload bytes. Default: no such limit.
    pub bytes: Option<u64>,
    /// Do with payload what no transport can go without: the sender copies it into its buffers and writes its CRC-32 after it; the
    /// receiver computes that again, compares, and copies the payload to memory of its own. To be set on both sides. Default `false`.
    pub crc_copy: bool,
}

impl Default for PumpConfig {
    fn default() -> Self {
        Self {
            port: DpdkConfig::default(),
            payload: 4096,
            duration: Duration::from_secs(10),
            bytes: None,
            crc_copy: false,
        }
    }
}

/// Why a pump cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PumpError {
    /// There is no port.
    #[error(transparent)]
    Port(#[from] DpdkError),
    /// One address is IPv4, the other IPv6.
    #[error("{local} cannot send to {remote}: one address is IPv4, the other IPv6")]
    Family {
        /// This side's address.
        local: IpAddr,
        /// The other's.
        remote: IpAddr,
    },
    /// The port does not take frames of that length.
    #[error(
        "a payload of {payload} bytes makes frames of {frame}; {port} takes up to {most}: give it a larger MTU"
    )]
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
    /// The device has no link.
    #[error("{port} has no link after {} s: is there somebody at the other end?", PEER_WAIT.as_secs())]
    NoLink {
        /// The name of the port.
        port: String,
    },
    /// Nobody knows the next neighbour's Ethernet address.
    #[error(
        "no way from {port} to {to}: no neighbour answers for it, and it is not on the link if it is behind a gateway; \
         is the receiver running?"
    )]
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

#[expect(clippy::disallowed_methods, reason = "nothing else goes on yet")]
fn pause() {
    std::thread::sleep(PEER_PAUSE);
}

/// Sends to `remote` as fast as the device takes it, once the other end is there.
///
/// # Errors
/// When the port cannot be opened, or does not lead there. What goes wrong later is counted.
pub fn send(
    eal: Eal,
    config: &PumpConfig,
    remote: IpAddr,
    stop: &AtomicBool,
) -> Result<PumpStats, PumpError> {
    let local = config.port.local;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(PumpError::Family { local, remote });
    }
    let mut port = open_port(eal, &config.port)?;
    let mut head = head(config, local, remote);
    let frame = head.len() + config.payload + TAIL;
    let (name, most) = (port.caps().name.clone(), port.caps().max_frame);
    if frame > most {
        return Err(PumpError::TooLong { port: name, payload: config.payload, frame, most });
    }
    let start = clock();
    wait_for_link(&mut port, stop)?;
    let Some(mac) = neighbour(&mut port, remote, start, stop) else {
        return Err(PumpError::NoWay { port: name, to: remote });
    };
    address(&mut head, mac, port.caps().mac);
    Ok(Sender::new(config, port, head).run(stop))
}

/// The pump looks for no duplicates of its address: nothing polls its port the way a transport does.
fn open_port(eal: Eal, config: &DpdkConfig) -> Result<DpdkPort, DpdkError> {
    DpdkPort::open(eal, &DpdkConfig { duplicate_wait: Duration::ZERO, ..config.clone() })
}

fn wait_for_link(port: &mut DpdkPort, stop: &AtomicBool) -> Result<(), PumpError> {
    let start = clock();
    while port.link() == LinkState::Down {
        if stop.load(Ordering::Relaxed) || start.elapsed() > PEER_WAIT {
            return Err(PumpError::NoLink { port: port.caps().name.clone() });
        }
        pause();
    }
    Ok(())
}

/// Asks for the Ethernet address of the next neighbour, and answers those who ask for this port's.
fn neighbour(port: &mut DpdkPort, to: IpAddr, start: Instant, stop: &AtomicBool) -> Option<MacAddr> {
    let asked = clock();
    loop {
        let now_ns = start.elapsed().as_nanos() as u64;
        if let Some(mac) = port.ask_neighbour(to, now_ns) {
            return Some(mac);
        }
        if stop.load(Ordering::Relaxed) || asked.elapsed() > PEER_WAIT {
            return None;
        }
        port.rx_burst(now_ns, BATCH, &mut |_| {});
        pause();
    }
}

/// A sender that knows where packets go.
struct Sender<'a> {
    config: &'a PumpConfig,
    port: DpdkPort,
    head: Vec<u8>,
    /// Bytes that differ from packet to packet, so that a wrong one has a wrong CRC.
    memory: Vec<u8>,
    at: usize,
    stats: PumpStats,
}

impl<'a> Sender<'a> {
    fn new(config: &'a PumpConfig, mut port: DpdkPort, head: Vec<u8>) -> Self {
        let memory: Vec<u8> = (0..MEMORY + config.payload + TAIL).map(|at| (at / 251) as u8).collect();
        port.tx.write_all(&[&head[..], &memory[..config.payload + TAIL]].concat());
        Self { config, port, head, memory, at: 0, stats: PumpStats::default() }
    }

    fn run(mut self, stop: &AtomicBool) -> PumpStats {
        let start = clock();
        let (mut looked, mut down) = (start, None);
        while !stop.load(Ordering::Relaxed) && !self.has_all() {
            // A full queue is no reason to wait: only the receiver makes room.
            for _ in 0..ROUNDS {
                if self.has_all() || self.batch() == 0 {
                    break;
                }
            }
            let now = clock();
            if now.duration_since(start) >= self.config.duration {
                break;
            }
            if now.duration_since(looked) >= LINK_POLL {
                looked = now;
                let since = *down.get_or_insert(now);
                if self.port.link() == LinkState::Up {
                    down = None;
                } else if now.duration_since(since) > IDLE_END {
                    break;
                }
            }
        }
        self.finish();
        self.stats.elapsed = start.elapsed();
        let sent = clock();
        while sent.elapsed() < LINGER && self.port.link() == LinkState::Up {
            pause();
        }
        self.stats.payload_bytes = self.stats.packets * self.config.payload as u64;
        self.stats.errors += self.port.counters().tx_errors;
        self.stats
    }

    fn has_all(&self) -> bool {
        let sent = self.stats.packets * self.config.payload as u64;
        self.config.bytes.is_some_and(|bytes| sent >= bytes)
    }

    /// Fills the queue up to a batch and gives it to the device; returns how many frames that took.
    fn batch(&mut self) -> usize {
        let payload = self.config.payload;
        // Buffers that the device has just given back are still in the cache, and are used first.
        self.port.tx.room();
        while self.port.tx.waiting() < BATCH {
            let pushed = if self.config.crc_copy {
                let frame = TxFrame {
                    head: &self.head,
                    udp_payload_at: self.head.len() - HEAD,
                    payload: self.memory[self.at..self.at + payload].into(),
                    tail: Tail::Crc32(0),
                    ticket: 0,
                };
                self.at = (self.at + payload) % MEMORY;
                self.port.tx.push(frame.len(), |out| crate::sys::copy(&frame, out))
            } else {
                let head = &self.head;
                self.port.tx.push(head.len() + payload + TAIL, |out| {
                    if let Some(out) = out.get_mut(..head.len()) {
                        out.copy_from_slice(head);
                    }
                })
            };
            if !pushed {
                break;
            }
        }
        let waiting = self.port.tx.waiting();
        self.stats.calls += self.port.send_waiting();
        let sent = waiting - self.port.tx.waiting();
        self.stats.packets += sent as u64;
        sent
    }

    /// Has the device send what is queued, as far as it does so soon.
    fn finish(&mut self) {
        let start = clock();
        while self.port.tx.waiting() > 0 && start.elapsed() < LAST_WAIT {
            let waiting = self.port.tx.waiting();
            self.stats.calls += self.port.send_waiting();
            self.stats.packets += (waiting - self.port.tx.waiting()) as u64;
        }
    }
}

/// All that precedes the payload of a packet, with Ethernet addresses of zero. The UDP checksum is zero, as is MRC's (RFC 6936).
fn head(config: &PumpConfig, local: IpAddr, remote: IpAddr) -> Vec<u8> {
    let udp_len = (UDP_LEN + HEAD + config.payload + TAIL) as u16;
    let (ip, ether_type) = match (local, remote) {
        (IpAddr::V6(local), IpAddr::V6(remote)) => (ipv6(udp_len, local, remote), [0x86, 0xdd]),
        (IpAddr::V4(local), IpAddr::V4(remote)) => (ipv4(udp_len, local, remote), [0x08, 0x00]),
        // The caller has looked.
        _ => (Vec::new(), [0, 0]),
    };
    let to = config.port.udp_ports.first().copied().unwrap_or_default();
    let udp = [SOURCE_PORT, to, udp_len, 0].map(u16::to_be_bytes).concat();
    [&[0; 12][..], &ether_type, &ip, &udp, &[0xC7; HEAD]].concat()
}

fn ipv6(len: u16, local: Ipv6Addr, remote: Ipv6Addr) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    [&[0x60, 0, 0, 0, high, low, PROTOCOL_UDP, HOP_LIMIT][..], &local.octets(), &remote.octets()].concat()
}

fn ipv4(len: u16, local: Ipv4Addr, remote: Ipv4Addr) -> Vec<u8> {
    let [high, low] = (len + 20).to_be_bytes();
    let fixed = [0x45, 0, high, low, 0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_UDP, 0, 0];
    let mut header = [&fixed[..], &local.octets(), &remote.octets()].concat();
    let sum = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn address(head: &mut [u8], to: MacAddr, from: MacAddr) {
    if let Some((destination, rest)) = head.split_at_mut_checked(6) {
        destination.copy_from_slice(&to.0);
        rest[..6].copy_from_slice(&from.0);
    }
}

/// Receives until the limit, until `stop`, or until a second passes with nothing more.
///
/// # Errors
/// When the port cannot be opened. What goes wrong later is counted.
pub fn receive(eal: Eal, config: &PumpConfig, stop: &AtomicBool) -> Result<PumpStats, PumpError> {
    Ok(Receiver::open(eal, config)?.run(stop))
}

/// A receiver whose port is open: what is sent from now on comes in.
#[derive(Debug)]
pub struct Receiver {
    port: DpdkPort,
    duration: Duration,
    bytes: Option<u64>,
    payload: usize,
    /// Where payload is copied to, if it is.
    memory: Option<Placing>,
}

impl Receiver {
    /// Opens the port.
    ///
    /// # Errors
    /// When that cannot be done, or the port does not take frames of that length.
    pub fn open(eal: Eal, config: &PumpConfig) -> Result<Self, PumpError> {
        let port = open_port(eal, &config.port)?;
        let (frame, most) = (frame_len(config), port.caps().max_frame);
        if frame > most {
            let port = port.caps().name.clone();
            return Err(PumpError::TooLong { port, payload: config.payload, frame, most });
        }
        let memory = config.crc_copy.then(Placing::new).transpose()?;
        Ok(Self { port, duration: config.duration, bytes: config.bytes, payload: config.payload, memory })
    }

    /// What the port is, in words.
    pub fn notes(&self) -> &[String] {
        &self.port.caps().notes
    }

    /// As [`receive`].
    pub fn run(mut self, stop: &AtomicBool) -> PumpStats {
        let mut stats = PumpStats::default();
        let start = clock();
        let (mut first, mut last) = (None, start);
        let expected = frame_len_of(self.payload, self.port.caps().local_ip.is_ipv4());
        while !stop.load(Ordering::Relaxed) && self.bytes.is_none_or(|bytes| stats.payload_bytes < bytes) {
            let had = stats.packets;
            for _ in 0..ROUNDS {
                if !self.batch(expected, start, &mut stats) {
                    break;
                }
            }
            if stats.packets > had {
                last = clock();
                stats.elapsed = last.duration_since(*first.get_or_insert(last));
                if stats.elapsed >= self.duration {
                    break;
                }
            } else if first.is_some() && last.elapsed() > IDLE_END {
                break;
            }
        }
        self.settle();
        let counters = self.port.counters();
        stats.dropped = Some(counters.rx_dropped);
        stats.errors += counters.rx_errors;
        stats
    }

    /// Waits for the sender to close its end first. `net_memif` frees memory twice where an end is closed while it hears that the other
    /// one has gone (DPDK 22.11).
    fn settle(&mut self) {
        let start = clock();
        while start.elapsed() < LAST_WAIT {
            pause();
            if self.port.link() == LinkState::Down {
                let down = clock();
                while down.elapsed() < CLEANUP {
                    pause();
                }
                return;
            }
        }
    }

    /// Takes what the device brings at once; `false`: there was nothing.
    fn batch(&mut self, expected: usize, start: Instant, stats: &mut PumpStats) -> bool {
        let Self { port, payload, memory, .. } = self;
        let had = stats.packets;
        // The sender's packets are all alike, and known by their length.
        let got = port.receive_raw(
            BATCH,
            |len| len == expected,
            || start.elapsed().as_nanos() as u64,
            &mut |frame| {
                let pieces = Pieces::new(frame.data, frame.rest);
                stats.packets += 1;
                stats.payload_bytes += (*payload).min(pieces.len()) as u64;
                if let Some(memory) = memory {
                    let head = pieces.len().saturating_sub(*payload + TAIL);
                    let placed = pieces.split_front(head).is_some_and(|(_, rest)| memory.place(rest));
                    stats.errors += u64::from(!placed);
                }
            },
        );
        stats.calls += u64::from(stats.packets > had);
        got > 0
    }
}

fn frame_len(config: &PumpConfig) -> usize {
    frame_len_of(config.payload, config.port.local.is_ipv4())
}

/// Bytes of a frame.
fn frame_len_of(payload: usize, is_ipv4: bool) -> usize {
    ETHERNET_LEN + if is_ipv4 { 20 } else { 40 } + UDP_LEN + HEAD + payload + TAIL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::{Kind, Wanted};

    /// Receivers know the packets by their headers, and the kernel of Linux would too: lengths and the checksum are right.
    #[test]
    fn packets_are_datagrams() {
        for [local, remote] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let [local, remote]: [IpAddr; 2] = [local, remote].map(|text| text.parse().unwrap());
            let port = DpdkConfig { local, ..DpdkConfig::default() };
            let config = PumpConfig { port, payload: 100, ..PumpConfig::default() };
            let mut frame = head(&config, local, remote);
            address(&mut frame, MacAddr([1; 6]), MacAddr([2; 6]));
            frame.resize(frame.len() + config.payload + TAIL, 0);
            assert_eq!(frame.len(), frame_len(&config));
            assert_eq!(frame[..12], [[1; 6], [2; 6]].concat());
            let wanted = |ip, port| Wanted { ip, ports: vec![port] }.kind(&frame);
            assert_eq!(wanted(remote, 4971), Kind::Ours);
            assert_eq!((wanted(local, 4971), wanted(remote, 4972)), (Kind::Other, Kind::Other));
            let ip = &frame[ETHERNET_LEN..];
            if local.is_ipv4() {
                assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
                let words = ip[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
                let sum: u32 = words.sum();
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
            } else {
                assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
            }
        }
    }
}
