//! One line of text for every frame through a port.
//!
//! ```text
//! 0.000012345 p2 tx fd00:2::1.49153 > fd00:2::2.4971 dscp 10 ecn 2 fl 0a3c1 write 0xc6 qp 00012b psn 000100 len 4202
//! ```
//!
//! Time in seconds, plane, direction, addresses and UDP ports, markings, the operation code with its name,
//! queue pair and packet sequence number in hexadecimal, bytes of the Ethernet frame (below kernel sockets, of the UDP
//! payload). For a frame that is not UDP, only its length is shown.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::forward_to_inner;
use crate::memory::Payload;
use crate::{DatagramMeta, Port, RxFrame, RxOrigin, TxFrame, frame};

/// Bytes of the base transport header: operation code, queue pair and sequence number are in it.
const BTH_LEN: usize = 12;

/// A port that writes a line for each frame, both ways.
pub struct TracePort<P: Port + ?Sized> {
    lines: Lines,
    inner: Box<P>,
}

struct Lines {
    plane: usize,
    out: Box<dyn Write + Send>,
    failed: Arc<AtomicU64>,
}

impl<P: Port + ?Sized> TracePort<P> {
    /// Wraps `inner`, plane number `plane`. Lines go to `out`, which should be buffered. One that cannot be
    /// written is counted and traffic goes on.
    pub fn new(inner: Box<P>, plane: usize, out: Box<dyn Write + Send>) -> Self {
        Self { lines: Lines { plane, out, failed: Arc::default() }, inner }
    }

    /// Lines that could not be written; stays valid when the port has gone into a lane.
    pub fn failed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lines.failed)
    }
}

/// What one line tells.
struct Line<'a> {
    now_ns: u64,
    direction: &'a str,
    meta: Option<DatagramMeta>,
    /// The first bytes after the UDP header.
    transport: &'a [u8],
    len: usize,
}

impl Lines {
    fn sent(&mut self, now_ns: u64, sent: &TxFrame<'_>) {
        let mut transport = [0; BTH_LEN];
        let mut at = 0;
        for piece in sent.udp_payload() {
            at += piece.read(&mut transport[at..]);
        }
        if at < BTH_LEN {
            at += Payload::from(sent.tail(&mut [0; 4])).read(&mut transport[at..]);
        }
        let meta = frame::parse(sent.head).map(|(meta, _)| meta);
        self.write(&Line { now_ns, direction: "tx", meta, transport: &transport[..at], len: sent.len() });
    }

    fn received(&mut self, now_ns: u64, frame: &RxFrame<'_>) {
        let found = match frame.origin {
            RxOrigin::Udp(meta) => Some((meta, 0)),
            RxOrigin::Ethernet => frame::parse(frame.data),
        };
        let transport = found.and_then(|(_, at)| frame.data.get(at..)).unwrap_or_default();
        let meta = found.map(|(meta, _)| meta);
        self.write(&Line { now_ns, direction: "rx", meta, transport, len: frame.len() });
    }

    fn write(&mut self, line: &Line<'_>) {
        if self.try_write(line).is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_write(&mut self, line: &Line<'_>) -> std::io::Result<()> {
        let out = &mut self.out;
        let (s, ns) = (line.now_ns / 1_000_000_000, line.now_ns % 1_000_000_000);
        write!(out, "{s}.{ns:09} p{} {}", self.plane, line.direction)?;
        if let Some(m) = line.meta {
            write!(out, " {}.{} > {}.{}", m.src, m.src_port, m.dst, m.dst_port)?;
            write!(
                out,
                " dscp {} ecn {} fl {:05x}",
                m.traffic_class >> 2,
                m.traffic_class & 3,
                m.flow_label
            )?;
            if let Some(bth) = line.transport.first_chunk::<BTH_LEN>() {
                let known = spindrift_wire::OPCODE_NAMES
                    .iter()
                    .find(|(first, last, _)| (*first..=*last).contains(&bth[0]));
                let name = known.map_or("opcode", |(_, _, name)| name);
                let word = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
                write!(out, " {name} {:#04x} qp {:06x} psn {:06x}", bth[0], word(5), word(9))?;
            }
        }
        writeln!(out, " len {}", line.len)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.out.flush().is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<P: Port + ?Sized> Port for TracePort<P> {
    forward_to_inner!(caps, link, tx_room, unsent, flush, reap, recall, next_event_ns, readable, counters);

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let taken = self.inner.tx_burst(now_ns, frames);
        let unsent = self.inner.unsent();
        for (i, frame) in frames.iter().enumerate().take(taken) {
            if unsent.binary_search(&(i as u16)).is_err() {
                self.lines.sent(now_ns, frame);
            }
        }
        taken
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let lines = &mut self.lines;
        self.inner.rx_burst(now_ns, max, &mut |frame| {
            lines.received(now_ns, frame);
            sink(frame);
        })
    }
}
