//! A capture of what goes through a port, in the nanosecond pcap format, link type Ethernet.
//!
//! One [`Capture`] may serve all planes of a NIC: it is a handle, and its clones write one file. A datagram
//! from a kernel socket, which comes without headers, gets Ethernet, IP and UDP headers made from what the
//! socket told (Ethernet addresses and UDP checksum 0). Timestamps are the driver's `now_ns` plus the offset
//! given at creation.
//!
//! Frames are collected in a bounded buffer and written when it is full, on [`Capture::flush`], and when the
//! last handle is dropped. When writing fails, as on a full disk, capturing ends, [`Capture::error`] tells why, further
//! frames are counted as missed, and traffic goes on.
//!
//! ```no_run
//! use spindrift_pmd::{loopback, pcap::{Capture, PcapPort}};
//!
//! let capture = Capture::create("run.pcap".as_ref(), 0)?;
//! let (left, _right) = loopback::pair(4, loopback::LoopbackConfig::default());
//! let left: Vec<_> = left.into_iter().map(|port| PcapPort::new(Box::new(port), capture.clone())).collect();
//! # drop(left);
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::forward_to_inner;
use crate::memory::Payload;
use crate::{Port, RxFrame, RxOrigin, TxFrame, frame};

/// First word of a pcap file with nanosecond timestamps.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Bytes kept of a frame.
const SNAP_LEN: u32 = 65_535;
/// Bytes collected before a write.
const BUFFER: usize = 1 << 20;
const NS_PER_S: u64 = 1_000_000_000;

/// What a capture has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Frames taken into the capture.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames not captured because writing had failed.
    pub missed: u64,
}

struct Writer {
    out: Box<dyn Write + Send>,
    buffer: Vec<u8>,
    offset_ns: u64,
    counters: CaptureCounters,
    error: Option<String>,
}

impl Writer {
    fn record<'a>(&mut self, now_ns: u64, pieces: impl Iterator<Item = &'a Payload<'a>> + Clone) {
        if self.error.is_some() {
            self.counters.missed += 1;
            return;
        }
        let len: usize = pieces.clone().map(Payload::len).sum();
        let kept = len.min(SNAP_LEN as usize);
        if self.buffer.len() + 16 + kept > BUFFER {
            self.write_out();
        }
        let at_ns = now_ns.saturating_add(self.offset_ns);
        for word in [(at_ns / NS_PER_S) as u32, (at_ns % NS_PER_S) as u32, kept as u32, len as u32] {
            self.buffer.extend(word.to_le_bytes());
        }
        let mut rest = kept;
        for piece in pieces {
            piece.append_to(&mut self.buffer, rest);
            rest -= piece.len().min(rest);
        }
        self.counters.frames += 1;
        self.counters.bytes += len as u64;
    }

    fn write_out(&mut self) {
        if self.error.is_none()
            && let Err(e) = self.out.write_all(&self.buffer).and_then(|()| self.out.flush())
        {
            self.error = Some(e.to_string());
        }
        self.buffer.clear();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.write_out();
    }
}

/// A capture file being written. Clones write the same file.
#[derive(Clone)]
pub struct Capture {
    writer: Arc<Mutex<Writer>>,
}

impl Capture {
    /// A capture into a new file. `offset_ns` is added to the driver's time: nanoseconds from 1970 to the
    /// driver's epoch, or 0.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path, offset_ns: u64) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot create {}: {e}", path.display()));
        Ok(Self::to(Box::new(File::create(path).map_err(named)?), offset_ns))
    }

    /// A capture into anything that can be written to.
    pub fn to(out: Box<dyn Write + Send>, offset_ns: u64) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER);
        buffer.extend(MAGIC_NANOSECONDS.to_le_bytes());
        // Version 2.4, time zone and accuracy 0.
        buffer.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        buffer.extend(SNAP_LEN.to_le_bytes());
        buffer.extend(LINKTYPE_ETHERNET.to_le_bytes());
        let writer = Writer { out, buffer, offset_ns, counters: CaptureCounters::default(), error: None };
        Self { writer: Arc::new(Mutex::new(writer)) }
    }

    /// Adds one frame, given in pieces.
    pub fn record(&self, now_ns: u64, pieces: &[Payload<'_>]) {
        self.lock().record(now_ns, pieces.iter());
    }

    /// Writes out what is collected.
    pub fn flush(&self) {
        self.lock().write_out();
    }

    /// Why capturing has ended early.
    pub fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    /// What has been captured.
    pub fn counters(&self) -> CaptureCounters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A panic elsewhere leaves a buffer of whole records behind, or one cut record at worst.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port whose frames, both ways, go into a [`Capture`].
pub struct PcapPort<P: Port + ?Sized> {
    capture: Capture,
    inner: Box<P>,
}

impl<P: Port + ?Sized> PcapPort<P> {
    /// Wraps `inner`.
    pub fn new(inner: Box<P>, capture: Capture) -> Self {
        Self { capture, inner }
    }
}

impl<P: Port + ?Sized> Port for PcapPort<P> {
    forward_to_inner!(caps, link, tx_room, unsent, flush, reap, recall, next_event_ns, readable, counters);

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let taken = self.inner.tx_burst(now_ns, frames);
        let mut writer = self.capture.lock();
        let unsent = self.inner.unsent();
        for (i, frame) in frames.iter().enumerate().take(taken) {
            if unsent.binary_search(&(i as u16)).is_err() {
                let mut room = [0; 4];
                let tail = frame.tail(&mut room);
                writer.record(now_ns, [frame.head.into(), frame.payload, tail.into()].iter());
            }
        }
        taken
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let capture = &self.capture;
        self.inner.rx_burst(now_ns, max, &mut |frame| {
            let mut head = [0; 62];
            let len = match &frame.origin {
                RxOrigin::Ethernet => 0,
                RxOrigin::Udp(meta) => frame::synthesise(meta, frame.len(), &mut head),
            };
            capture
                .lock()
                .record(now_ns, [(&head[..len]).into(), frame.data.into()].iter().chain(frame.rest));
            sink(frame);
        })
    }
}
