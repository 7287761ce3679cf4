//! One queue of a NIC: an `AF_XDP` socket with its four rings, and the buffers that are its own. All `unsafe` of the crate is here.
//!
//! A buffer is in one place at a time: in `free`, in the transmit ring or with the kernel until the completion ring returns it, or in the
//! fill ring or with the kernel until the receive ring brings it, and then in `received` until it goes back into the fill ring. Only what
//! is in `free` is written, and only what is in `received` is read.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::str::FromStr as _;

use spindrift_pmd::memory::Payload;
use spindrift_pmd::{MacAddr, RxFrame, RxOrigin, Tail, TxFrame};
use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

/// Bytes of a frame that one buffer holds: a page, without the room that XDP programs have in front of a packet.
pub(crate) const BUFFER: usize = 4096 - 256;
/// Most buffers of a frame: what the kernel takes (`MAX_SKB_FRAGS`, and one).
pub(crate) const MOST_BUFFERS: usize = 18;
/// Buffers that one look at a ring takes out.
const BATCH: usize = 64;
/// `XDP_PKT_CONTD`: the frame goes on in the next buffer.
const XDP_PKT_CONTD: u32 = 1;
/// Frames that the kernel sends in one call, where it lets us choose (`XDP_MAX_TX_SKB_BUDGET`).
const SEND_BUDGET: libc::c_int = 256;
/// `XDP_MAX_TX_SKB_BUDGET` (`linux/if_xdp.h`).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// Bytes that the kernel may hold of what is being sent.
const SEND_BYTES: libc::c_int = 64 << 20;
/// Calls to the kernel in a row, as long as each sends something.
const KICKS: usize = 16;

/// Buffers of one lane, for all its queues.
pub(crate) struct Buffers {
    umem: Umem,
    free: Vec<FrameDesc>,
}

/// What sockets ask of the drivers. The first socket of a UMEM asks for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// A frame may take several buffers.
    pub(crate) several: bool,
    /// The kernel copies; otherwise it does so where it has to.
    pub(crate) copy: bool,
}

/// How many buffers each queue has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// For what arrives, a power of two.
    pub(crate) rx: u32,
    /// For what is sent, a power of two.
    pub(crate) tx: u32,
}

/// What a call to the kernel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kicked {
    pub(crate) calls: u64,
    pub(crate) errors: u64,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) frames: usize,
    pub(crate) bytes: u64,
    /// Frames in too many buffers.
    pub(crate) dropped: u64,
}

pub(crate) struct Queue {
    umem: Umem,
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    done: CompQueue,
    sizes: Sizes,
    free: Vec<FrameDesc>,
    received: Vec<FrameDesc>,
}

impl Binding {
    fn flags(self) -> BindFlags {
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        flags.set(BindFlags::XDP_USE_SG, self.several);
        flags.set(BindFlags::XDP_COPY, self.copy);
        flags
    }
}

impl Buffers {
    /// Buffers for so many queues.
    pub(crate) fn new(sizes: Sizes, queues: u32) -> Result<Self, io::Error> {
        let mut config = UmemConfig::builder();
        config.fill_queue_size(ring(sizes.rx)?).comp_queue_size(ring(sizes.tx)?);
        let config = config.build().map_err(io::Error::other)?;
        let count = NonZeroU32::new((sizes.rx + sizes.tx) * queues).ok_or(io::ErrorKind::InvalidInput)?;
        let (umem, free) = Umem::new(config, count, false).map_err(|error| cause(&error))?;
        Ok(Self { umem, free })
    }
}

impl Queue {
    /// Binds a socket to a queue of an interface of this thread's network namespace.
    pub(crate) fn open(
        buffers: &mut Buffers,
        (sizes, binding): (Sizes, Binding),
        interface: &str,
        queue: u32,
    ) -> io::Result<Self> {
        let mut config = SocketConfig::builder();
        config
            .rx_queue_size(ring(sizes.rx)?)
            .tx_queue_size(ring(sizes.tx)?)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(binding.flags());
        let name = Interface::from_str(interface).map_err(io::Error::other)?;
        // SAFETY: libxdp loads no program, so it has none to take off twice.
        let made = unsafe { Socket::new(config.build(), &buffers.umem, &name, queue) };
        let (tx, rx, rings) = made.map_err(|error| cause(&error))?;
        // Each queue of an interface is bound once.
        let (mut fill, done) = rings.ok_or(io::ErrorKind::AddrInUse)?;
        let enough = || io::Error::other("too few buffers");
        let rest =
            buffers.free.len().checked_sub(sizes.tx as usize + sizes.rx as usize).ok_or_else(enough)?;
        let mut free = buffers.free.split_off(rest);
        let for_rx = free.split_off(sizes.tx as usize);
        // SAFETY: they are of this UMEM and nowhere else.
        if unsafe { fill.produce(&for_rx) } != for_rx.len() {
            return Err(enough());
        }
        let mut this = Self {
            umem: buffers.umem.clone(),
            tx,
            rx,
            fill,
            done,
            sizes,
            free,
            received: Vec::with_capacity(2 * BATCH),
        };
        // Older kernels have no such option, and less privileged users no such room. It works without.
        let _ = this.set(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, SEND_BUDGET.min(sizes.tx as libc::c_int));
        let _ = this.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BYTES);
        // When the socket was bound there were no buffers yet. A driver with zero-copy then waits for this call, and until it comes the
        // queue brings nothing to the kernel either: no answer of a neighbour, and nothing of TCP.
        let _ = this.fill.wakeup(this.rx.fd_mut(), 0);
        Ok(this)
    }

    /// Whether the driver sends and receives in the buffers themselves, and copies nothing.
    pub(crate) fn is_zero_copy(&self) -> io::Result<bool> {
        let mut options = libc::xdp_options { flags: 0 };
        let mut len = size_of_val(&options) as libc::socklen_t;
        // SAFETY: the options are live and as long as is said.
        let result = unsafe {
            let fd = self.as_fd().as_raw_fd();
            libc::getsockopt(fd, libc::SOL_XDP, libc::XDP_OPTIONS, (&raw mut options).cast(), &raw mut len)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the value is live and as long as is said.
        let result = unsafe {
            libc::setsockopt(self.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), len)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Buffers that frames to send can be written to now.
    pub(crate) fn room(&mut self) -> usize {
        let free = self.free.len();
        free.min(self.tx.nb_free(free as u32) as usize)
    }

    /// Buffers whose frames the kernel has not sent.
    pub(crate) fn waiting(&mut self) -> usize {
        (self.sizes.tx - self.tx.nb_free_exact()) as usize
    }

    /// Takes back the buffers of what has been sent.
    pub(crate) fn reclaim(&mut self) {
        loop {
            let had = self.free.len();
            self.free.resize(had + BATCH, FrameDesc::default());
            // SAFETY: the ring is of this UMEM.
            let got = unsafe { self.done.consume(&mut self.free[had..]) };
            self.free.truncate(had + got);
            if got < BATCH {
                return;
            }
        }
    }

    /// Copies a frame into free buffers, under these Ethernet addresses, and queues it. `false`: there is no room, and nothing has happened.
    pub(crate) fn push(&mut self, frame: &TxFrame<'_>, to: MacAddr, from: MacAddr) -> bool {
        let len = frame.len();
        let count = len.div_ceil(BUFFER);
        let Some(rest) = self.free.len().checked_sub(count) else { return false };
        let buffers = &mut self.free[rest..];
        let mut source = Source::new(frame);
        let mut left = len;
        for buffer in buffers.iter_mut() {
            let part = left.min(BUFFER);
            left -= part;
            buffer.set_options(if left > 0 { XDP_PKT_CONTD } else { 0 });
            // SAFETY: it is of this UMEM, and it is free, so nobody else writes or reads it.
            let mut data = unsafe { self.umem.data_mut(buffer) };
            data.cursor().set_pos(part);
            source.read(data.contents_mut());
        }
        if let Some(first) = buffers.first_mut() {
            // SAFETY: as above.
            let mut data = unsafe { self.umem.data_mut(first) };
            if let Some((ethernet, _)) = data.contents_mut().split_first_chunk_mut::<12>() {
                let (dst, src) = ethernet.split_at_mut(6);
                dst.copy_from_slice(&to.0);
                src.copy_from_slice(&from.0);
            }
        }
        // SAFETY: they are of this UMEM and leave `free` if the ring takes them. It takes all or none.
        let queued = unsafe { self.tx.produce(buffers) } == count;
        if queued {
            self.free.truncate(rest);
        }
        queued
    }

    /// Writes the same into every free buffer.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(BUFFER);
        for buffer in &mut self.free {
            // SAFETY: it is of this UMEM, and it is free, so nobody else writes or reads it.
            let mut data = unsafe { self.umem.data_mut(buffer) };
            data.cursor().set_pos(len);
            data.contents_mut().copy_from_slice(&bytes[..len]);
        }
    }

    /// Queues up to `most` frames of `len` bytes of whatever is in the free buffers; returns how many there was room for.
    pub(crate) fn push_as_written(&mut self, len: usize, most: usize) -> usize {
        let each = len.div_ceil(BUFFER);
        let frames = (self.room() / each).min(most);
        let rest = self.free.len() - frames * each;
        let buffers = &mut self.free[rest..];
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let part = at % each;
            buffer.set_options(if part + 1 < each { XDP_PKT_CONTD } else { 0 });
            // SAFETY: as above; only its length is set.
            unsafe { self.umem.data_mut(buffer) }.cursor().set_pos((len - part * BUFFER).min(BUFFER));
        }
        // SAFETY: they are of this UMEM and leave `free` if the ring takes them. It takes all or none.
        let queued = unsafe { self.tx.produce(buffers) } == frames * each;
        if queued {
            self.free.truncate(rest);
        }
        if queued { frames } else { 0 }
    }

    /// Has the kernel send what is queued, as far as it can now.
    pub(crate) fn kick(&mut self) -> Kicked {
        let mut kicked = Kicked::default();
        let mut waiting = self.waiting();
        while waiting > 0 && self.tx.needs_wakeup() && kicked.calls < KICKS as u64 {
            kicked.calls += 1;
            // That there is no room now, or that the link is down, is no error here.
            kicked.errors += u64::from(self.tx.wakeup().is_err());
            let still = self.waiting();
            if still == waiting {
                break;
            }
            waiting = still;
        }
        kicked
    }

    /// Shows up to `max` of the frames that have arrived, and gives their buffers back to the kernel.
    pub(crate) fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> Shown {
        let mut shown = Shown::default();
        loop {
            let had = self.received.len();
            self.received.resize(had + BATCH, FrameDesc::default());
            // SAFETY: the ring is of this UMEM.
            let got = unsafe { self.rx.consume(&mut self.received[had..]) };
            self.received.truncate(had + got);
            let read = self.show(max, &mut shown, sink);
            // SAFETY: they are of this UMEM, and what was shown of them has been looked at. The ring has room for all that there are.
            unsafe { self.fill.produce(&self.received[..read]) };
            self.received.drain(..read);
            if got < BATCH || shown.frames >= max {
                break;
            }
        }
        if self.fill.needs_wakeup() {
            // A driver without buffers waits for this. It cannot fail in a way that the next call would not.
            let _ = self.fill.wakeup(self.rx.fd_mut(), 0);
        }
        shown
    }

    /// Shows the whole frames in `received`, and returns how many buffers those have.
    fn show(&self, max: usize, shown: &mut Shown, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let mut read = 0;
        while shown.frames < max {
            let rest = &self.received[read..];
            let Some(last) = rest.iter().position(|buffer| !buffer.has_more_frames()) else { break };
            read += last + 1;
            if last >= MOST_BUFFERS {
                shown.dropped += 1;
                continue;
            }
            // SAFETY: they are of this UMEM, and with us until they are in the fill ring: nobody writes them meanwhile.
            let bytes = |buffer: &FrameDesc| unsafe { self.umem.data(buffer) }.contents();
            let mut parts = [Payload::default(); MOST_BUFFERS];
            for (part, buffer) in parts.iter_mut().zip(&rest[1..=last]) {
                *part = bytes(buffer).into();
            }
            let frame = RxFrame { origin: RxOrigin::Ethernet, data: bytes(&rest[0]), rest: &parts[..last] };
            shown.frames += 1;
            shown.bytes += frame.len() as u64;
            sink(&frame);
        }
        read
    }

    /// Frames that the kernel had for the socket and dropped, and buffers that it could not send.
    pub(crate) fn losses(&self) -> (u64, u64) {
        let Ok(statistics) = self.rx.fd().xdp_statistics() else { return (0, 0) };
        (statistics.rx_dropped() + statistics.rx_ring_full(), statistics.tx_invalid_descs())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open as long as its rings are here.
        unsafe { BorrowedFd::borrow_raw(self.rx.fd().as_raw_fd()) }
    }
}

/// What is left of a frame to be copied.
struct Source<'a> {
    head: &'a [u8],
    payload: Payload<'a>,
    tail: Tail<'a>,
    crc: [u8; Tail::CRC_LEN],
    tail_at: usize,
}

impl<'a> Source<'a> {
    fn new(frame: &TxFrame<'a>) -> Self {
        Self { head: frame.head, payload: frame.payload, tail: frame.tail, crc: [0; 4], tail_at: 0 }
    }

    /// Fills `out`, which is no longer than what is left.
    fn read(&mut self, mut out: &mut [u8]) {
        let (now, later) = self.head.split_at(self.head.len().min(out.len()));
        self.head = later;
        let (place, rest) = std::mem::take(&mut out).split_at_mut(now.len());
        place.copy_from_slice(now);
        let part = self.payload.first_bytes(rest.len());
        let (place, rest) = rest.split_at_mut(part.len());
        part.read(place);
        self.payload = self.payload.skip(part.len());
        if let Tail::Crc32(state) = &mut self.tail {
            // Of the copy: the region may have changed since.
            *state = Payload::from(&*place).crc32(*state);
            self.crc = state.to_le_bytes();
        }
        if !rest.is_empty() {
            let tail = match self.tail {
                Tail::Bytes(bytes) => bytes,
                Tail::Crc32(_) => &self.crc,
            };
            rest.copy_from_slice(&tail[self.tail_at..self.tail_at + rest.len()]);
            self.tail_at += rest.len();
        }
    }
}

fn ring(size: u32) -> io::Result<QueueSize> {
    QueueSize::new(size).map_err(io::Error::other)
}

/// The system's error behind one of xsk-rs.
fn cause(error: &dyn std::error::Error) -> io::Error {
    let system = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match system.and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(error.to_string()),
    }
}
