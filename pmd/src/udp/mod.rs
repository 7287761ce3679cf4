//! Kernel sockets as a port: for users without privileges or special NICs.
//!
//! One plane is one local address. Datagrams arrive at one socket, bound to that address and the
//! transport's UDP port. Each entropy value is a UDP source port, and each source port is a socket of its
//! own, so the network's ECMP hashing spreads them. Several lanes may each have a receive queue of one address
//! ([`UdpPort::open_queues`]).
//!
//! Two kernel offloads make it fast. Both are probed for when the port is opened; where one is missing the port works
//! without it, and [`PortCaps::notes`](crate::PortCaps::notes) says so:
//!
//! - **`UDP_SEGMENT`**: `tx_burst` collects the frames of one source port from the whole burst (see
//!   [`PortCaps::same_path_batch`](crate::PortCaps::same_path_batch)), and one `sendmsg` sends up to 64 of them
//!   (15 with 4096-byte payloads), straight from the callers' memory. So it pays to offer long bursts, of
//!   few entropy values, with equal sizes.
//! - **`UDP_GRO`**: one buffer receives a batch; the datagrams are shown in place.
//!
//! The kernel writes Ethernet, IP and UDP headers: it uses only the addresses, ports, traffic class and hop limit
//! of a frame's head, and chooses the IPv6 flow label itself. Datagrams are not fragmented (DF is set), but where the path
//! has come to take less than it did at the start. No error
//! of the kernel is fatal. If a send buffer or the queue of the interface is full, the frame is given back
//! ([`Port::unsent`]) and the port has no room for [`FULL_PAUSE_NS`]; any other refused frame is counted and lost, as in a network.

mod config;
mod egress;
mod group;
mod open;
mod socket;
mod source;
pub(crate) mod sys;

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

pub use config::{FRAME_MAX, MTU_MIN, Offload, SOURCE_PORTS_MAX, SourcePorts, UdpConfig, UdpError};
pub(crate) use egress::Egress;
pub(crate) use group::BATCH_BYTES_MAX;
use group::{Batch, Grouper};
pub(crate) use open::GRO_BUFFER;
use open::{Queue, open_senders, set_up_receiver, use_gso};
pub(crate) use socket::{
    Buffer, ask_for_marks, bind, enable_gro, forbid_fragments, probe_gso, size_buffer, socket_address,
};
use socket::{set_hop_limit, steer};
pub use source::{SourceOpener, SourceSocket};
use sys::{Destination, RxBuffers, TxScratch};

use spindrift_wire::batch_ids::{BatchIds, SEGMENTS_MAX};
use spindrift_wire::headers::{IPV4_LEN, IPV6_LEN, UDP_LEN};

use crate::memory::Payload;
use crate::{
    DatagramMeta, ETHERNET_LEN, LinkState, MacAddr, Port, PortCaps, PortCounters, RxFrame, RxOrigin,
    Steering, Tail, TxFrame, device,
};

/// Frames that one `tx_burst` looks at.
const MAX_BURST: usize = 256;
/// How often the interface is asked for its carrier.
const LINK_POLL: Duration = Duration::from_millis(1);
/// How long a port has no room after the kernel found a queue full, in nanoseconds. The kernel does not tell
/// when the queue of an interface has room again.
pub const FULL_PAUSE_NS: u64 = 50_000;
/// UDP payload of a packet with 4096 bytes of data, for the batch hint.
const USUAL_DATAGRAM: usize = 4150;
const NO_SOCKET: u16 = u16::MAX;

/// A plane over kernel sockets.
pub struct UdpPort {
    caps: PortCaps,
    counters: PortCounters,
    port: u16,
    receiver: UdpSocket,
    buffers: RxBuffers,
    /// Message of `buffers` and offset in it to show next.
    cursor: (usize, usize),
    senders: Vec<UdpSocket>,
    opener: SourceOpener,
    /// Of each sender: the hop limit that it has been given, 0 if none.
    hop_limits: Vec<u8>,
    /// Index of the sender of each of the 65536 source ports.
    by_port: Box<[u16]>,
    grouper: Grouper,
    scratch: TxScratch,
    /// The CRC of each frame of a burst that has one to be computed.
    crcs: Box<[[u8; Tail::CRC_LEN]]>,
    ids: BatchIds,
    gso: bool,
    /// Frames of the last burst that were given back.
    unsent: Vec<u16>,
    /// No room until then, on the driver's clock.
    full_until_ns: u64,
    /// Codes of the errors that have been noted.
    errors_noted: Vec<i32>,
    egress: Egress,
    link: LinkState,
    link_polled: Option<Instant>,
}

impl UdpPort {
    /// Binds the sockets.
    ///
    /// # Errors
    /// When the address is not local, a port is taken, or a setting does not fit; the message names the
    /// setting and the way out.
    pub fn open(cfg: &UdpConfig) -> Result<Self, UdpError> {
        Self::open_queue(cfg, Queue::ONLY)
    }

    /// Opens several ports on one address and UDP port, one for each of several lanes: receive queues, among which the kernel
    /// shares the datagrams out. It steers what it has coalesced, or what came as one segmentation batch, by the first of
    /// them. Where it cannot steer, datagrams arrive at any queue, and a [note](PortCaps::notes) says so.
    ///
    /// Close them together: when one is closed, the kernel gives its number to the last.
    ///
    /// # Errors
    /// As [`UdpPort::open`], and [`UdpError::Queues`] for none or more than [`Steering::QUEUES_MAX`].
    pub fn open_queues(cfg: &UdpConfig, queues: usize, steering: &Steering) -> Result<Vec<Self>, UdpError> {
        if !(1..=Steering::QUEUES_MAX).contains(&queues) {
            return Err(UdpError::Queues(queues));
        }
        let mut ports = Vec::with_capacity(queues);
        let mut cfg = cfg.clone();
        for number in 0..queues {
            let port = Self::open_queue(&cfg, Queue { number, of: queues })?;
            cfg.port = port.port;
            ports.push(port);
        }
        let steered =
            ports.first().filter(|_| queues > 1).map(|port| steer(&port.receiver, steering, queues));
        if let Some(Err(e)) = steered {
            for port in &mut ports {
                port.caps.notes.push(format!("datagrams are not steered to their queues ({e})"));
            }
        }
        Ok(ports)
    }

    fn open_queue(cfg: &UdpConfig, queue: Queue) -> Result<Self, UdpError> {
        if !(1..=1024).contains(&cfg.receive_buffers) {
            return Err(UdpError::ReceiveBuffers(cfg.receive_buffers));
        }
        let mut notes = Vec::new();
        let mut egress = Egress::find(cfg.local, cfg.interface.as_deref(), cfg.peer)?;
        let receiver = queue.bind(socket_address(cfg.local, cfg.port, egress.scope_id()), 0)?;
        let port = receiver.local_addr().map_err(UdpError::io("read the bound port"))?.port();
        let (senders, ports) = open_senders(cfg, queue, port, &mut egress, &mut notes)?;
        let max_frame = egress.frame_limit(cfg, &mut notes)?;
        let buffers = set_up_receiver(cfg, &receiver, max_frame, &mut notes)?;
        let gso = use_gso(cfg, &senders, &mut notes);
        let mut by_port = vec![NO_SOCKET; 1 << 16].into_boxed_slice();
        for (i, &port) in ports.iter().enumerate() {
            by_port[port as usize] = i as u16;
        }
        let mut name = format!("udp {} port {port} on {}", cfg.local, egress.name());
        if queue.of > 1 {
            name.push_str(&format!(", queue {} of {}", queue.number, queue.of));
        }
        let usual = (max_frame - ETHERNET_LEN).min(USUAL_DATAGRAM);
        let caps = PortCaps {
            name,
            local_ip: cfg.local,
            mac: MacAddr::default(),
            max_frame,
            max_burst: MAX_BURST,
            source_ports: Some(ports),
            same_path_batch: if gso { (BATCH_BYTES_MAX / usual).min(SEGMENTS_MAX) } else { 1 },
            holds_payloads: false,
            medium: egress.medium(&receiver),
            notes,
            send_errors: Vec::new(),
        };
        let opener =
            SourceOpener::new(cfg.local, egress.scope_id(), egress.bound_to(), cfg.socket_send_bytes);
        Ok(Self {
            opener,
            grouper: Grouper::new(MAX_BURST, senders.len()),
            caps,
            counters: PortCounters::default(),
            port,
            receiver,
            buffers,
            cursor: (0, 0),
            hop_limits: vec![0; senders.len()],
            senders,
            by_port,
            scratch: TxScratch::default(),
            crcs: vec![[0; Tail::CRC_LEN]; MAX_BURST].into_boxed_slice(),
            ids: BatchIds::default(),
            gso,
            unsent: Vec::with_capacity(MAX_BURST),
            full_until_ns: 0,
            errors_noted: Vec::new(),
            egress,
            link: LinkState::Up,
            link_polled: None,
        })
    }

    /// The UDP port that peers send to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether batches are sent by segmentation offload.
    pub fn uses_gso(&self) -> bool {
        self.gso
    }

    /// Sorts the burst into batches; counts and leaves out what cannot be sent.
    fn plan(&mut self, frames: &[TxFrame<'_>]) {
        self.grouper.start();
        for (i, frame) in frames.iter().enumerate() {
            let found = group::destination(frame)
                .map(|(port, key)| (self.by_port[port as usize], key))
                .filter(|&(socket, key)| {
                    socket != NO_SOCKET
                        && key.dst.is_ipv4() == self.caps.local_ip.is_ipv4()
                        && frame.payload.as_ptr().is_some()
                });
            let Some((socket, key)) = found else {
                self.counters.tx_unsendable += 1;
                self.counters.tx_dropped += 1;
                continue;
            };
            let len = frame.len();
            if len > self.caps.max_frame {
                self.counters.tx_oversize += 1;
                self.counters.tx_dropped += 1;
                continue;
            }
            frame.tail(&mut self.crcs[i]);
            self.grouper.add(i, group::Key { socket, ..key }, len - frame.udp_payload_at);
        }
    }

    /// Sends a batch; `false` when a queue was full, and what is left of it has been given back.
    fn send_batch(&mut self, batch: &Batch, frames: &[TxFrame<'_>]) -> bool {
        self.follow_hop_limit(batch.key);
        if batch.count <= 1 || !self.gso || self.egress.fragments(self.ip_len(batch)) {
            return self.send_singly(batch, frames);
        }
        let mut again = Again::default();
        loop {
            match self.send_segmented(batch, frames) {
                Ok(()) => {
                    self.count_sent(batch, frames, 0..batch.count);
                    return true;
                }
                Err(e) if is_full(&e) => {
                    self.give_back(batch, 0);
                    return false;
                }
                Err(e) if again.worth(&e) => self.note_error(&e, batch),
                Err(e) if is_offload_refusal(&e) => break,
                Err(e) => {
                    self.count_lost(&e, batch.count);
                    return true;
                }
            }
        }
        // No offload cuts packets that are longer than the path takes.
        self.follow_path_mtu(batch);
        let before = self.counters.tx_frames;
        let room = self.send_singly(batch, frames);
        if self.counters.tx_frames > before && !self.egress.fragments(self.ip_len(batch)) {
            // The same frames went one by one, so it was the offload that the kernel refused.
            self.gso = false;
            self.caps.same_path_batch = 1;
            self.caps.notes.push("UDP_SEGMENT refused while sending: sending one by one".to_owned());
        }
        room
    }

    /// The CRCs are for identification 0, before and after; over IPv4 those that are sent are for what segmentation makes of it.
    fn send_segmented(&mut self, batch: &Batch, frames: &[TxFrame<'_>]) -> io::Result<()> {
        if self.caps.local_ip.is_ipv6() {
            return self.call_segmented(batch, frames);
        }
        self.change_ids(batch, frames);
        let sent = self.call_segmented(batch, frames);
        if sent.is_err() {
            self.change_ids(batch, frames);
        }
        sent
    }

    /// Turns CRCs for identification 0 into those for the packets' numbers in the batch, or back.
    fn change_ids(&mut self, batch: &Batch, frames: &[TxFrame<'_>]) {
        for (id, i) in self.grouper.frames(batch).enumerate() {
            let Some((frame, crc)) = frames.get(i).zip(self.crcs.get_mut(i)) else { continue };
            if let Tail::Crc32(_) = frame.tail {
                let datagram = frame.len().saturating_sub(frame.udp_payload_at);
                let delta = self.ids.deltas(datagram).get(id).copied().unwrap_or_default();
                *crc = (u32::from_le_bytes(*crc) ^ delta).to_le_bytes();
            }
        }
    }

    fn call_segmented(&mut self, batch: &Batch, frames: &[TxFrame<'_>]) -> io::Result<()> {
        let to = self.destination(batch);
        let Some(socket) = self.senders.get(batch.key.socket as usize) else { return Ok(()) };
        let pieces = self.grouper.frames(batch).flat_map(|i| datagram(&frames[i], &self.crcs[i]));
        self.counters.tx_calls += 1;
        self.scratch.send(socket, &to, Some(batch.segment as u16), pieces)
    }

    /// As [`send_batch`](Self::send_batch), every datagram by itself.
    fn send_singly(&mut self, batch: &Batch, frames: &[TxFrame<'_>]) -> bool {
        let to = self.destination(batch);
        let mut again = Again::default();
        let mut done = 0;
        while done < batch.count {
            let Some(socket) = self.senders.get(batch.key.socket as usize) else { return true };
            let rest = self.grouper.frames(batch).skip(done).map(|i| datagram(&frames[i], &self.crcs[i]));
            self.counters.tx_calls += 1;
            match self.scratch.send_each(socket, &to, rest) {
                Ok(sent) => {
                    self.count_sent(batch, frames, done..done + sent);
                    // Nothing sent and no error cannot happen; if it did, this loop must still end.
                    done += sent.max(1);
                }
                Err(e) if is_full(&e) => {
                    self.give_back(batch, done);
                    return false;
                }
                Err(e) if again.worth(&e) => self.note_error(&e, batch),
                Err(e) if is_too_long(&e) && self.follow_path_mtu(batch) => again = Again::default(),
                Err(e) => {
                    // It was about one datagram; the next may do better.
                    self.count_lost(&e, 1);
                    done += 1;
                    again = Again::default();
                }
            }
        }
        true
    }

    fn follow_hop_limit(&mut self, key: group::Key) {
        let number = usize::from(key.socket);
        let Some((socket, given)) = self.senders.get(number).zip(self.hop_limits.get_mut(number)) else {
            return;
        };
        // Without a hop limit packets would not leave: the kernel's own holds then.
        if *given != key.hop_limit && key.hop_limit > 0 {
            *given = key.hop_limit;
            if let Err(error) = set_hop_limit(socket, key.dst.is_ipv4(), key.hop_limit) {
                self.caps
                    .notes
                    .push(format!("packets have the kernel's hop limit, not {} ({error})", key.hop_limit));
            }
        }
    }

    /// Bytes of the longest IP packet of a batch.
    fn ip_len(&self, batch: &Batch) -> usize {
        batch.segment + UDP_LEN + if self.caps.local_ip.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
    }

    /// Whether the path takes less than before, and what was refused for its length can go now.
    fn follow_path_mtu(&mut self, batch: &Batch) -> bool {
        let note = self.egress.shrink(batch.key.dst, &self.senders, self.caps.max_frame);
        let shrunk = note.is_some();
        self.caps.notes.extend(note);
        shrunk
    }

    /// The frames of a batch from number `from` on stay with the caller.
    fn give_back(&mut self, batch: &Batch, from: usize) {
        self.unsent.extend(self.grouper.frames(batch).skip(from).map(|i| i as u16));
    }

    fn destination(&self, batch: &Batch) -> Destination {
        Destination {
            address: socket_address(batch.key.dst, batch.key.dst_port, self.egress.scope_id()),
            traffic_class: batch.key.traffic_class,
        }
    }

    fn count_sent(&mut self, batch: &Batch, frames: &[TxFrame<'_>], which: std::ops::Range<usize>) {
        let sent = self.grouper.frames(batch).skip(which.start).take(which.len());
        let mut bytes = 0;
        for len in sent.filter_map(|i| frames.get(i)).map(TxFrame::len) {
            bytes += len;
            self.counters.tx_fragmented += u64::from(self.egress.fragments(len.saturating_sub(ETHERNET_LEN)));
        }
        self.counters.tx_frames += which.len() as u64;
        self.counters.tx_bytes += bytes as u64;
    }

    /// Keeps an error for people, the first of its kind.
    fn note_error(&mut self, error: &io::Error, batch: &Batch) {
        let Some(code) = error.raw_os_error() else { return };
        // Those have an explanation of their own, or are none.
        if is_offload_refusal(error) || code == libc::EINTR || self.errors_noted.contains(&code) {
            return;
        }
        self.errors_noted.push(code);
        self.caps.send_errors.push(meaning(error, batch.key.dst, batch.key.dst_port));
    }

    fn count_lost(&mut self, error: &io::Error, frames: usize) {
        self.counters.tx_dropped += frames as u64;
        if is_too_long(error) {
            self.counters.tx_oversize += frames as u64;
        } else {
            self.counters.tx_errors += 1;
        }
    }

    /// Shows what is left of the messages received last, up to `max` datagrams.
    fn show(&mut self, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let mut shown = 0;
        let mut bytes = 0;
        while let Some((message, data)) = self.buffers.message(self.cursor.0) {
            if message.truncated {
                self.counters.rx_dropped += 1;
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let origin = RxOrigin::Udp(DatagramMeta {
                src: message.src,
                dst: self.caps.local_ip,
                src_port: message.src_port,
                dst_port: self.port,
                flow_label: 0,
                traffic_class: message.traffic_class,
                hop_limit: message.hop_limit,
            });
            for data in data[self.cursor.1.min(data.len())..].chunks(message.segment) {
                if shown == max {
                    break;
                }
                sink(&RxFrame::whole(origin, data));
                shown += 1;
                bytes += data.len();
                self.cursor.1 += data.len();
            }
            if self.cursor.1 < data.len() {
                break;
            }
            self.cursor = (self.cursor.0 + 1, 0);
        }
        self.counters.rx_frames += shown as u64;
        self.counters.rx_bytes += bytes as u64;
        shown
    }
}

/// Whether a failed call is made once more.
#[derive(Default)]
struct Again {
    tried: bool,
}

impl Again {
    /// An ICMP error that an earlier datagram met is told to the next call, which then sends nothing. So the
    /// first error of any kind may be old news.
    fn worth(&mut self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::Interrupted || !std::mem::replace(&mut self.tried, true)
    }
}

/// What a frame has after the UDP header; `crc` is its tail, unless it brings its own.
fn datagram<'a>(frame: &TxFrame<'a>, crc: &'a [u8]) -> [Payload<'a>; 3] {
    let [head, payload] = frame.udp_payload();
    let tail = match frame.tail {
        Tail::Bytes(bytes) => bytes,
        Tail::Crc32(_) => crc,
    };
    [head, payload, tail.into()]
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// What an error of sending means, as far as the kernel's documentation tells (udp(7), ip(7)).
fn meaning(error: &io::Error, to: IpAddr, port: u16) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => format!(
            "a firewall of this host rejects packets to {to} UDP port {port} (EPERM): `nft list ruleset` or `iptables -S OUTPUT` shows its rules"
        ),
        Some(libc::ECONNREFUSED) => format!(
            "{to} replies that nobody listens on its UDP port {port} (ECONNREFUSED): the peer has closed it, or a firewall there rejects packets"
        ),
        Some(libc::EHOSTUNREACH) => format!(
            "{to} cannot be reached (EHOSTUNREACH): no host has this address on the link, or a router or firewall on the way rejects packets"
        ),
        Some(libc::ENETUNREACH) => format!("this host has no route to {to} (ENETUNREACH)"),
        Some(libc::EACCES) => {
            format!("packets to {to} are prohibited (EACCES), by a route or by a firewall on the way")
        }
        _ => format!("sending to {to} UDP port {port} fails: {error}"),
    }
}

/// Longer than the path takes.
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// What `sendmsg` says where a device or kernel cannot segment.
fn is_offload_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE))
}

impl Port for UdpPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    /// Asks the kernel at most once a millisecond.
    #[expect(
        clippy::disallowed_methods,
        reason = "the carrier is polled by the clock, whatever time the driver keeps"
    )]
    fn link(&mut self) -> LinkState {
        let now = Instant::now();
        let Some(interface) = self.egress.interface() else { return self.link };
        if self.link_polled.is_some_and(|at| now.duration_since(at) < LINK_POLL) {
            return self.link;
        }
        self.link_polled = Some(now);
        // It may have been renamed.
        let running = device::name(&self.receiver, interface)
            .and_then(|name| device::is_running(&self.receiver, &name))
            .unwrap_or(false);
        self.link = if running { LinkState::Up } else { LinkState::Down };
        self.caps.notes.extend(self.egress.look(now, &self.senders, self.caps.max_frame));
        self.link
    }

    /// The kernel does not tell its room in advance: a burst is always taken, and what does not fit is
    /// given back.
    fn tx_room(&mut self, now_ns: u64) -> usize {
        if now_ns < self.full_until_ns {
            return 0;
        }
        self.full_until_ns = 0;
        MAX_BURST
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let frames = &frames[..frames.len().min(MAX_BURST)];
        self.unsent.clear();
        self.plan(frames);
        let mut room = true;
        for i in 0..self.grouper.len() {
            let Some(batch) = self.grouper.batch(i) else { continue };
            if room {
                room = self.send_batch(&batch, frames);
            } else {
                // Another batch of this source port may have been given back: this one must not overtake it.
                self.give_back(&batch, 0);
            }
        }
        if !room {
            self.unsent.sort_unstable();
            self.counters.tx_full += 1;
            self.counters.tx_unsent += self.unsent.len() as u64;
            self.full_until_ns = now_ns.saturating_add(FULL_PAUSE_NS);
        }
        frames.len()
    }

    fn unsent(&self) -> &[u16] {
        &self.unsent
    }

    fn flush(&mut self, _now_ns: u64) {}

    fn reap(&mut self) -> u64 {
        u64::MAX
    }

    fn recall(&mut self) {}

    fn rx_burst(&mut self, _now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let mut shown = self.show(max, sink);
        if shown < max {
            // All shown: the buffers are free for the next messages.
            self.cursor = (0, 0);
            match self.buffers.receive(&self.receiver) {
                Ok(0) => {}
                Ok(_) => {
                    self.counters.rx_calls += 1;
                    shown += self.show(max - shown, sink);
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => self.counters.rx_errors += 1,
            }
        }
        shown
    }

    fn next_event_ns(&self) -> Option<u64> {
        (self.full_until_ns > 0).then_some(self.full_until_ns)
    }

    fn readable(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.receiver.as_fd()]
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
