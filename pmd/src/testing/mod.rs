//! The conformance run: what every [`Port`] must do, whatever the medium.
//!
//! The driver of a new kind of port opens two that are joined, and calls [`conformance`], or
//! [`Conformance::run`] where peers do not send to UDP port 4971. It panics with a description of the first violation. Both ports are driven by the
//! calling thread; the medium must be lossless at this rate.
//!
//! # Writing a port
//!
//! A port is one plane and knows frames and addresses, no more. What it has to get right, beside the bytes:
//!
//! - **Room.** What [`Port::tx_room`] promises, the next burst takes. What finds a queue of this host full is given
//!   back, by a shorter count or by [`Port::unsent`], and counted as lost nowhere.
//! - **Order.** Frames of one source port and traffic class leave in the order given.
//! - **Payloads.** A frame's pieces are valid during the call. A port that copies them, or lets the kernel, says so
//!   ([`PortCaps::holds_payloads`](crate::PortCaps::holds_payloads)), returns `u64::MAX` from [`Port::reap`] and has
//!   nothing to do in [`Port::recall`]. One that refers to them keeps the [`Region`] (a clone of the `Arc`) and the
//!   frame's [ticket](TxFrame::ticket) until the medium is done, and copies payloads that are no part of a region. A device
//!   that needs memory mapped maps a region when it first sees it, and forgets it when the last share is dropped (a
//!   `Weak` tells).
//! - **Tails.** For [`Tail::Crc32`] the port computes four bytes over what it sends, best over its own copy.
//! - **Receiving.** All headers of a frame lie in [`RxFrame::data`], which nobody changes; the payload may lie in further
//!   buffers. All of it may be used again when the sink has returned.
//! - **Arrivals.** A port with descriptors ([`Port::readable`]) is readable from a frame's arrival until [`Port::rx_burst`]
//!   finds nothing, and not longer: who sleeps on it would be woken for ever.
//! - **Counting.** Each frame is counted once, as sent, dropped (and why) or not sent.
//! - **Patience.** No call waits, except `recall`, and that not for a peer that may be dead.
//!
//! A port that passes copies of frames through queues of this process:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::sync::{Arc, Mutex};
//!
//! use spindrift_pmd::{
//!     LinkState, MacAddr, Medium, Port, PortCaps, PortCounters, RxFrame, RxOrigin, TxFrame, testing,
//! };
//!
//! type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;
//!
//! struct Mailbox {
//!     caps: PortCaps,
//!     counters: PortCounters,
//!     out: Queue,
//!     inbox: Queue,
//! }
//!
//! const ROOM: usize = 64;
//!
//! impl Port for Mailbox {
//!     fn caps(&self) -> &PortCaps {
//!         &self.caps
//!     }
//!     fn link(&mut self) -> LinkState {
//!         LinkState::Up
//!     }
//!     fn tx_room(&mut self, _now_ns: u64) -> usize {
//!         ROOM - self.out.lock().unwrap().len()
//!     }
//!     fn tx_burst(&mut self, _now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
//!         let mut out = self.out.lock().unwrap();
//!         let taken = frames.len().min(ROOM - out.len());
//!         for frame in &frames[..taken] {
//!             if frame.len() > self.caps.max_frame {
//!                 self.counters.tx_oversize += 1;
//!                 self.counters.tx_dropped += 1;
//!                 continue;
//!             }
//!             let mut bytes = frame.head.to_vec();
//!             frame.payload.append_to(&mut bytes, usize::MAX);
//!             bytes.extend_from_slice(frame.tail(&mut [0; 4]));
//!             self.counters.tx_frames += 1;
//!             self.counters.tx_bytes += bytes.len() as u64;
//!             out.push_back(bytes);
//!         }
//!         self.counters.tx_full += u64::from(taken < frames.len());
//!         taken
//!     }
//!     fn unsent(&self) -> &[u16] {
//!         &[]
//!     }
//!     fn flush(&mut self, _now_ns: u64) {}
//!     fn rx_burst(&mut self, _now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
//!         let mut shown = 0;
//!         while shown < max {
//!             let Some(frame) = self.inbox.lock().unwrap().pop_front() else { break };
//!             self.counters.rx_frames += 1;
//!             self.counters.rx_bytes += frame.len() as u64;
//!             sink(&RxFrame::whole(RxOrigin::Ethernet, &frame));
//!             shown += 1;
//!         }
//!         shown
//!     }
//!     fn reap(&mut self) -> u64 {
//!         u64::MAX
//!     }
//!     fn recall(&mut self) {}
//!     fn counters(&self) -> PortCounters {
//!         self.counters
//!     }
//! }
//!
//! let (left, right) = (Queue::default(), Queue::default());
//! let port = |n: u8, out: &Queue, inbox: &Queue| Mailbox {
//!     caps: PortCaps {
//!         name: format!("mailbox {n}"),
//!         local_ip: [10, 0, 0, n].into(),
//!         mac: MacAddr([2, 0, 0, 0, 0, n]),
//!         max_frame: 4352,
//!         max_burst: ROOM,
//!         source_ports: None,
//!         same_path_batch: 1,
//!         holds_payloads: false,
//!         medium: Medium::Host,
//!         notes: Vec::new(),
//!         send_errors: Vec::new(),
//!     },
//!     counters: PortCounters::default(),
//!     out: Arc::clone(out),
//!     inbox: Arc::clone(inbox),
//! };
//! testing::conformance(&mut port(1, &left, &right), &mut port(2, &right, &left));
//! ```

#![expect(clippy::expect_used, reason = "a failed check panics, as in any test")]

mod child;
mod hosts;
mod namespace;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::memory::Region;
use crate::{DatagramMeta, LinkState, Port, RxFrame, RxOrigin, Tail, TxFrame, frame};

pub use child::in_child;
pub use hosts::Hosts;
pub use namespace::within;

/// How often an empty port is asked before frames count as lost.
const PATIENCE: usize = 3_000_000;

/// Which UDP ports the two receive at.
#[derive(Clone, Copy, Debug)]
pub struct Conformance {
    /// UDP port that reaches the first.
    pub port_a: u16,
    /// UDP port that reaches the second.
    pub port_b: u16,
}

impl Default for Conformance {
    fn default() -> Self {
        Self { port_a: 4971, port_b: 4971 }
    }
}

/// Runs the conformance checks over two joined ports that receive at UDP port 4971.
///
/// # Panics
/// When a check fails.
pub fn conformance(a: &mut dyn Port, b: &mut dyn Port) {
    Conformance::default().run(a, b);
}

/// Writes Ethernet, IP and UDP headers for `payload_len` bytes behind them, and returns their length.
pub fn head(meta: &DatagramMeta, payload_len: usize, out: &mut [u8; 62]) -> usize {
    frame::synthesise(meta, payload_len, out)
}

struct Frame {
    head: Vec<u8>,
    udp_payload_at: usize,
    payload: Vec<u8>,
    /// Holds the payload from `OFFSET` on, if that is not sent as a slice.
    region: Option<Arc<Region>>,
    tail: Vec<u8>,
    /// The port has to compute the tail from this.
    crc: Option<u32>,
}

/// Where a payload starts in its region.
const OFFSET: usize = 13;

impl Frame {
    fn borrow(&self, ticket: u64) -> TxFrame<'_> {
        let shared = self.region.as_ref().map(|region| region.payload(OFFSET, self.payload.len()));
        TxFrame {
            head: &self.head,
            udp_payload_at: self.udp_payload_at,
            payload: shared
                .map_or_else(|| (&self.payload).into(), |shared| shared.expect("it holds the payload")),
            tail: self.crc.map_or_else(|| self.tail[..].into(), Tail::Crc32),
            ticket,
        }
    }

    fn udp_payload(&self) -> Vec<u8> {
        [&self.head[self.udp_payload_at..], &self.payload, &self.tail].concat()
    }

    /// Changes what the payload was sent from.
    fn spoil(&self) {
        if let Some(region) = &self.region {
            region.fill(0, region.len(), 0xa5).expect("inside");
        }
    }
}

impl Conformance {
    /// Runs the checks.
    ///
    /// # Panics
    /// When a check fails.
    pub fn run(self, a: &mut dyn Port, b: &mut dyn Port) {
        let mut clock = 0;
        for port in [&*a, &*b] {
            let caps = port.caps();
            assert!(!caps.name.is_empty(), "a port has a name");
            assert!(caps.max_frame >= 590 && caps.max_burst >= 1 && caps.same_path_batch >= 1, "{caps:?}");
            assert!(caps.source_ports.as_ref().is_none_or(|ports| !ports.is_empty()), "{caps:?}");
        }
        one_way(a, b, self.port_b, &mut clock);
        one_way(b, a, self.port_a, &mut clock);
    }
}

fn one_way(tx: &mut dyn Port, rx: &mut dyn Port, dst_port: u16, clock: &mut u64) {
    assert_eq!(tx.link(), LinkState::Up, "links are up");
    assert_eq!(rx.rx_burst(*clock, 8, &mut |_| ()), 0, "nothing was sent yet");
    assert_eq!(tx.tx_burst(*clock, &[]), 0, "an empty burst");
    for round in 0..8 {
        let frames = frames(tx, rx, dst_port, round);
        exchange(tx, rx, &frames, clock, round >= 6);
    }
    arrivals(tx, rx, dst_port, clock);
    oversize(tx, dst_port, clock);
}

/// What arrives can be slept on, if the port has descriptors for it.
fn arrivals(tx: &mut dyn Port, rx: &mut dyn Port, dst_port: u16, clock: &mut u64) {
    if rx.readable().is_empty() {
        return;
    }
    for frame in frames(tx, rx, dst_port, 0).iter().take(5) {
        assert!(!is_readable(rx, 0), "a port is not readable once rx_burst has found nothing");
        assert_eq!(tx.tx_burst(*clock, &[frame.borrow(*clock)]), 1, "an idle port has room");
        let mut is_awake = false;
        for _ in 0..1000 {
            *clock += 1000;
            tx.flush(*clock);
            is_awake = is_readable(rx, 10_000_000);
            if is_awake {
                break;
            }
        }
        assert!(is_awake, "a frame that arrives makes a port readable: {:?}", rx.counters());
        assert!(is_readable(rx, 0), "it stays so until the frame is taken");
        let mut got = 0;
        while got == 0 || rx.rx_burst(*clock, 7, &mut |_| ()) > 0 {
            got += rx.rx_burst(*clock, 7, &mut |_| ());
        }
    }
    assert!(!is_readable(rx, 0), "a port is not readable once rx_burst has found nothing");
}

/// Waits until one of the port's descriptors is readable.
fn is_readable(port: &dyn Port, most_ns: i64) -> bool {
    let fds = port.readable();
    let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: most_ns })).expect("descriptors that can be polled")
        > 0
}

/// Frames of all sizes, over several source ports and traffic classes.
fn frames(tx: &dyn Port, rx: &dyn Port, dst_port: u16, round: usize) -> Vec<Frame> {
    let caps = tx.caps();
    let any = [0xc000, 0xc001, 0xd123, 0xffff];
    let ports = caps.source_ports.as_deref().unwrap_or(&any);
    let len_max = caps.max_frame.min(rx.caps().max_frame);
    let v4 = caps.local_ip.is_ipv4();
    let headers = if v4 { 42 } else { 62 };
    (0..40 + round)
        .map(|i| {
            let room = len_max - headers - 12 - 4;
            let len = match (i + round) % 5 {
                0 => room,
                1 => i,
                _ => room.min(4096),
            };
            let meta = DatagramMeta {
                src: caps.local_ip,
                dst: rx.caps().local_ip,
                src_port: ports[i % ports.len().min(4)],
                dst_port,
                flow_label: 0,
                traffic_class: [0, 2, 0x29][i % 3],
                hop_limit: 64,
            };
            let payload: Vec<u8> = (0..len).map(|at| (at * 31 + i * 7 + round) as u8).collect();
            let mut full = [0; 62];
            let udp_payload_at = frame::synthesise(&meta, 12 + len + 4, &mut full);
            let mut head = full[..udp_payload_at].to_vec();
            head.extend([0xC7, 0, 0, 0, round as u8, 0, 0, 0, 0, 0, 0, i as u8]);
            let region = (i % 2 == 0).then(|| Region::alloc(OFFSET + len + 1).expect("memory"));
            if let Some(region) = &region {
                region.write_at(OFFSET, &payload).expect("it has room for the payload");
            }
            let crc = (i % 3 == 0).then_some(i as u32 * 0x0123_4567);
            let tail = match crc {
                Some(state) => {
                    let mut hasher = crc32fast::Hasher::new_with_initial(state);
                    hasher.update(&payload);
                    hasher.finalize().to_le_bytes().to_vec()
                }
                None => vec![!(i as u8); i % 5],
            };
            Frame { head, udp_payload_at, payload, region, tail, crc }
        })
        .collect()
}

/// All arrive whole, once, with their marks, and those of one source port and class in order, though a region changes
/// as soon as the port lets go of it: by itself, or because it is told to.
fn exchange(tx: &mut dyn Port, rx: &mut dyn Port, frames: &[Frame], clock: &mut u64, recall: bool) {
    // Numbers with gaps, larger than in the bursts before.
    let first = *clock;
    let borrowed: Vec<_> =
        frames.iter().enumerate().map(|(i, frame)| frame.borrow(first + 3 * i as u64)).collect();
    let mut spoiled = 0;
    let before = (tx.counters(), rx.counters());
    let (mut sent, mut got, mut idle) = (0, Vec::new(), 0);
    while got.len() < frames.len() {
        *clock += 1000;
        let room = tx.tx_room(*clock);
        let taken = tx.tx_burst(*clock, &borrowed[sent..]);
        assert!(taken >= room.min(borrowed.len() - sent), "tx_room promised {room}, tx_burst took {taken}");
        assert!(taken <= borrowed.len() - sent, "tx_burst took more than there was");
        sent += taken;
        tx.flush(*clock);
        if recall {
            tx.recall();
            assert_eq!(tx.reap(), u64::MAX, "a port that was told to let go of all payloads holds none");
        }
        let held_from = tx.reap();
        assert!(tx.caps().holds_payloads || held_from == u64::MAX, "a port that copies holds nothing");
        while spoiled < sent && borrowed[spoiled].ticket < held_from {
            frames[spoiled].spoil();
            spoiled += 1;
        }
        let count = got.len();
        let returned = rx.rx_burst(*clock, 7, &mut |frame| got.push(read(frame)));
        assert_eq!(returned, got.len() - count, "rx_burst returns what it showed");
        assert!(returned <= 7, "rx_burst shows at most what was asked for");
        idle = if returned == 0 { idle + 1 } else { 0 };
        assert!(idle < PATIENCE, "{} of {} frames arrived: {:?}", got.len(), frames.len(), rx.counters());
    }
    assert_eq!(rx.rx_burst(*clock, 64, &mut |_| ()), 0, "nothing arrives twice");
    for _ in 0..PATIENCE {
        *clock += 1000;
        tx.flush(*clock);
        if tx.reap() == u64::MAX {
            break;
        }
    }
    assert_eq!(tx.reap(), u64::MAX, "what has arrived is not held");
    let shares = frames.iter().filter_map(|frame| frame.region.as_ref()).map(Arc::strong_count);
    assert!(shares.max().is_none_or(|most| most == 1), "a region that is not held is not kept");
    let mut last: BTreeMap<(u16, u8), usize> = BTreeMap::new();
    let mut seen = vec![false; frames.len()];
    for (meta, data) in got {
        let i = data[11] as usize;
        let (sent, _) = frame::parse(&frames[i].head).expect("the frames sent are UDP");
        let expected = DatagramMeta { hop_limit: meta.hop_limit, ..sent };
        assert_eq!(meta, DatagramMeta { flow_label: meta.flow_label, ..expected }, "frame {i}");
        assert!(data == frames[i].udp_payload(), "the bytes of frame {i} differ");
        assert!(!std::mem::replace(&mut seen[i], true), "frame {i} came twice");
        let flow = last.entry((meta.src_port, meta.traffic_class)).or_insert(i);
        assert!(*flow <= i, "frame {i} of a source port was overtaken by {flow}");
        *flow = i;
    }
    let (tx_now, rx_now, count) = (tx.counters(), rx.counters(), frames.len() as u64);
    assert_eq!(tx_now.tx_frames - before.0.tx_frames, count, "frames sent are counted");
    let bytes: usize = borrowed.iter().map(TxFrame::len).sum();
    assert_eq!(tx_now.tx_bytes - before.0.tx_bytes, bytes as u64, "bytes sent are counted");
    assert_eq!(rx_now.rx_frames - before.1.rx_frames, count, "frames received are counted");
    assert_eq!(tx_now.tx_dropped, before.0.tx_dropped, "nothing was dropped");
}

fn read(frame: &RxFrame<'_>) -> (DatagramMeta, Vec<u8>) {
    let mut data = Vec::new();
    frame.append_to(&mut data);
    assert_eq!(data.len(), frame.len(), "a frame has the bytes of all its parts");
    match frame.origin {
        RxOrigin::Udp(meta) => (meta, data),
        RxOrigin::Ethernet => {
            let (meta, at) =
                frame::parse(frame.data).expect("a UDP frame arrives as one, with all headers in front");
            (meta, data.split_off(at))
        }
    }
}

/// A frame longer than the port takes is dropped and counted, and the port goes on.
fn oversize(tx: &mut dyn Port, dst_port: u16, clock: &mut u64) {
    let caps = tx.caps().clone();
    let source = caps.source_ports.as_ref().map_or(0xc000, |ports| ports[0]);
    let meta = DatagramMeta {
        src: caps.local_ip,
        dst: caps.local_ip,
        src_port: source,
        dst_port,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let mut head = [0; 62];
    let at = frame::synthesise(&meta, 0, &mut head);
    let payload = vec![0; caps.max_frame - at + 1];
    let before = tx.counters();
    let frame = TxFrame {
        head: &head[..at],
        udp_payload_at: at,
        payload: (&payload).into(),
        tail: (&[]).into(),
        ticket: 0,
    };
    *clock += 1000;
    assert_eq!(tx.tx_burst(*clock, &[frame]), 1, "a frame too long is accepted and dropped");
    let now = tx.counters();
    assert_eq!(now.tx_oversize - before.tx_oversize, 1, "and counted as too long");
    assert_eq!(now.tx_dropped - before.tx_dropped, 1, "and as dropped");
}
