//! Two ways to transmit over `AF_XDP`, in turn: the payload copied into the packet's buffers, as the port does it, and the payload left
//! where it is, with descriptors of its own between that of the headers and that of the CRC. As root, two cores:
//! `cargo bench -p spindrift-af-xdp --bench gather [-- ROUNDS]` (5 rounds unless said otherwise, 34 s each).
//!
//! The second way needs all payload within the UMEM, so here it is made there. An application's memory is elsewhere.
//!
//! Each run sends for a second over a veth pair between two namespaces that are made here and go at the end. The receiver is that of the
//! raw pump; where there is a CRC, it checks it, so what is gathered wrongly ends the benchmark. What arrives counts.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "benchmark"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::Ipv6Addr;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use etherparse::{Ethernet2Header, IpNumber, Ipv6Header, UdpHeader, ether_type};
use rustix::thread::{CpuSet, sched_setaffinity};
use spindrift_af_xdp::XdpMode;
use spindrift_af_xdp::pump::{PumpConfig, Receiver};
use spindrift_pmd::memory::Payload;
use spindrift_pmd::pump::{HEAD, TAIL};
use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, Socket, TxQueue, Umem};

use support::{DEVICES, Hosts, V6};

/// How long each run sends.
const RUN: Duration = Duration::from_secs(1);
/// What a buffer holds: a page without the room for XDP programs.
const BUFFER: usize = 4096 - 256;
/// Buffers for packets, or for the headers and CRCs of packets.
const BUFFERS: u32 = 2048;
/// Entries of each ring: packets have up to four descriptors, but no more than two of those are of `BUFFERS`.
const RING: u32 = 4096;
/// Packets that are queued before the kernel is called.
const BATCH: usize = 64;
/// `XDP_PKT_CONTD`: the packet goes on in the next descriptor.
const CONTINUED: u32 = 1;

/// What a run is like.
#[derive(Clone, Copy)]
struct Case {
    /// Payload bytes of a packet.
    payload: usize,
    /// Buffers that payload comes from, one after the other.
    memory: usize,
    /// A CRC of the payload is computed and sent behind it; the receiver checks it and copies the payload.
    crc: bool,
}

const CASES: [Case; 8] = [
    Case { payload: 3840, memory: 1 << 8, crc: true },
    Case { payload: 4096, memory: 1 << 8, crc: true },
    Case { payload: 3840, memory: 1 << 8, crc: false },
    Case { payload: 4096, memory: 1 << 8, crc: false },
    Case { payload: 3840, memory: 1 << 14, crc: true },
    Case { payload: 4096, memory: 1 << 14, crc: true },
    Case { payload: 3840, memory: 1 << 14, crc: false },
    Case { payload: 4096, memory: 1 << 14, crc: false },
];

fn main() {
    let rounds = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(5);
    let Some(hosts) = Hosts::new("gather", 9000, 1) else { std::process::exit(1) };
    hosts.introduce();
    println!("payload  memory  CRC   copied, Gb/s  gathered, Gb/s  gathered / copied");
    let mut results = CASES.map(|_| Vec::new());
    for _ in 0..rounds {
        for (case, results) in CASES.into_iter().zip(&mut results) {
            results.push([false, true].map(|gather| run(&hosts, case, gather)));
        }
    }
    for (case, results) in CASES.into_iter().zip(&results) {
        let of = |f: fn(&[f64; 2]) -> f64| spread(results.iter().map(f).collect());
        let [[copied, _, _], [gathered, _, _], [ratio, least, most]] =
            [of(|r| r[0]), of(|r| r[1]), of(|r| r[1] / r[0])];
        let (mib, crc) = ((case.memory * 4096) >> 20, if case.crc { "yes" } else { "no" });
        println!(
            "{:7}  {mib:2} MiB  {crc:3}  {copied:13.1}  {gathered:14.1}  {ratio:.2} [{least:.2} to {most:.2}]",
            case.payload
        );
    }
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0], values[values.len() - 1]]
}

/// Gb/s of payload that arrived.
fn run(hosts: &Hosts, case: Case, gather: bool) -> f64 {
    let port = Hosts::config(1, XdpMode::Auto, V6[1]);
    let udp_port = port.udp_ports[0];
    let config = PumpConfig {
        port,
        payload: case.payload,
        duration: 2 * RUN,
        crc_copy: case.crc,
        ..PumpConfig::default()
    };
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            hosts.on(1, || {
                pin(1);
                let receiver = Receiver::open(&config).unwrap();
                ready.wait();
                receiver.run(&AtomicBool::new(false))
            })
        });
        hosts.on(0, || {
            pin(0);
            let mut sender = Sender::open(case, udp_port);
            ready.wait();
            sender.run(gather);
        });
        let stats = receiving.join().unwrap();
        assert_eq!(stats.errors, 0, "payload that arrived is wrong");
        stats.payload_bytes as f64 * 8.0 / stats.elapsed.as_secs_f64() / 1e9
    })
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).unwrap();
}

struct Sender {
    case: Case,
    head: Vec<u8>,
    umem: Umem,
    tx: TxQueue,
    done: CompQueue,
    /// Nothing is received; the socket goes when these go.
    _receiving: (RxQueue, FillQueue),
    /// Buffers that nobody refers to.
    free: Vec<FrameDesc>,
    /// Buffers that payload lies in, to be gathered; never written again.
    lent: Vec<FrameDesc>,
    /// Where the first of them is.
    lent_from: usize,
    /// The same payload elsewhere, to be copied.
    memory: Vec<u8>,
    at: usize,
}

impl Sender {
    fn open(case: Case, udp_port: u16) -> Self {
        let ring = QueueSize::new(RING).unwrap();
        let umem = UmemConfig::builder().fill_queue_size(ring).comp_queue_size(ring).build().unwrap();
        let count = NonZeroU32::new(BUFFERS + case.memory as u32).unwrap();
        let (umem, mut free) = Umem::new(umem, count, false).unwrap();
        let socket = SocketConfig::builder()
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(BindFlags::XDP_USE_NEED_WAKEUP | BindFlags::XDP_USE_SG)
            .build();
        let interface: Interface = DEVICES[0].parse().unwrap();
        // SAFETY: libxdp loads no program, so it has none to take off twice.
        let (tx, rx, rings) = unsafe { Socket::new(socket, &umem, &interface, 0) }.unwrap();
        let (fill, done) = rings.unwrap();
        // As the port has it: frames for a call, and room for what is on its way.
        set(&tx, libc::SOL_XDP, 9, 256);
        set(&tx, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 64 << 20);
        let memory: Vec<u8> = (0..case.memory * BUFFER).map(|at| (at / 251) as u8).collect();
        let mut lent = free.split_off(BUFFERS as usize);
        for (desc, bytes) in lent.iter_mut().zip(memory.chunks_exact(BUFFER)) {
            append(&umem, desc, 0, bytes);
        }
        let lent_from = lent.iter().map(FrameDesc::addr).min().unwrap();
        assert!(free.iter().all(|desc| desc.addr() < lent_from));
        let head = head(case.payload, udp_port);
        Self { case, head, umem, tx, done, _receiving: (rx, fill), free, lent, lent_from, memory, at: 0 }
    }

    fn run(&mut self, gather: bool) {
        let began = Instant::now();
        while began.elapsed() < RUN {
            self.reclaim();
            for _ in 0..BATCH {
                if !(if gather { self.gather() } else { self.copy() }) {
                    break;
                }
            }
            self.kick();
        }
        while self.tx.nb_free_exact() < RING && began.elapsed() < 2 * RUN {
            self.reclaim();
            self.kick();
        }
    }

    fn reclaim(&mut self) {
        let mut back = [FrameDesc::default(); BATCH];
        loop {
            // SAFETY: the ring is of this UMEM.
            let got = unsafe { self.done.consume(&mut back) };
            self.free.extend(back[..got].iter().filter(|desc| desc.addr() < self.lent_from));
            if got < BATCH {
                return;
            }
        }
    }

    /// Queues a packet in two buffers that its payload is copied to. `false`: there is no room.
    fn copy(&mut self) -> bool {
        let Some(rest) = self.free.len().checked_sub(2) else { return false };
        let at = self.at * self.case.payload % (self.memory.len() - self.case.payload);
        let payload = &self.memory[at..at + self.case.payload];
        let (front, back) = payload.split_at(BUFFER - self.head.len());
        let [first, second] = &mut self.free[rest..] else { return false };
        append(&self.umem, first, 0, &self.head);
        append(&self.umem, first, self.head.len(), front);
        append(&self.umem, second, 0, back);
        let mut sum = 0;
        if self.case.crc {
            // Of the copy, as the port does it: the application may have written to its memory since.
            sum = crc(&self.umem, first, self.head.len(), sum);
            sum = crc(&self.umem, second, 0, sum);
        }
        append(&self.umem, second, back.len(), &sum.to_le_bytes());
        first.set_options(CONTINUED);
        second.set_options(0);
        // SAFETY: they are of this UMEM, and leave `free` if the ring takes them.
        let queued = unsafe { self.tx.produce(&self.free[rest..]) } == 2;
        if queued {
            self.free.truncate(rest);
            self.at += 1;
        }
        queued
    }

    /// Queues a packet whose payload stays where it is. `false`: there is no room.
    fn gather(&mut self) -> bool {
        let Some(rest) = self.free.len().checked_sub(2) else { return false };
        let [head, tail] = &mut self.free[rest..] else { return false };
        append(&self.umem, head, 0, &self.head);
        let mut descs = [*head; 4];
        let mut count = 1;
        let mut left = self.case.payload;
        let mut sum = 0;
        while left > 0 {
            let part = left.min(BUFFER);
            left -= part;
            let desc = &mut descs[count];
            *desc = self.lent[(self.at + count - 1) % self.lent.len()];
            // SAFETY: it is of this UMEM, and nobody writes to it any more; only the length in the descriptor is set.
            unsafe { self.umem.data_mut(desc) }.cursor().set_pos(part);
            if self.case.crc {
                sum = crc(&self.umem, desc, 0, sum);
            }
            count += 1;
        }
        append(&self.umem, tail, 0, &sum.to_le_bytes());
        descs[count] = *tail;
        for desc in &mut descs[..count] {
            desc.set_options(CONTINUED);
        }
        descs[count].set_options(0);
        // SAFETY: they are of this UMEM; two of them leave `free` if the ring takes them, and the others are never written.
        let queued = unsafe { self.tx.produce(&descs[..=count]) } == count + 1;
        if queued {
            self.free.truncate(rest);
            self.at += count - 1;
        }
        queued
    }

    /// As the port does it.
    fn kick(&mut self) {
        for _ in 0..16 {
            let free = self.tx.nb_free_exact();
            if free == RING || !self.tx.needs_wakeup() {
                return;
            }
            // That there is no room now is no error.
            let _ = self.tx.wakeup();
            if self.tx.nb_free_exact() == free {
                return;
            }
        }
    }
}

/// Writes into a buffer from `at` on; the buffer's packet, or its part of one, ends with that.
fn append(umem: &Umem, desc: &mut FrameDesc, at: usize, bytes: &[u8]) {
    // SAFETY: only buffers of this UMEM come here, before the kernel has them or after it gave them back.
    let mut data = unsafe { umem.data_mut(desc) };
    data.cursor().set_pos(at + bytes.len());
    data.contents_mut()[at..].copy_from_slice(bytes);
}

/// CRC-32 of what is in a buffer from `at` on, after what precedes it.
fn crc(umem: &Umem, desc: &FrameDesc, at: usize, before: u32) -> u32 {
    // SAFETY: the buffer is of this UMEM, and nobody writes to it now.
    Payload::from(&unsafe { umem.data(desc) }.contents()[at..]).crc32(before)
}

fn set(tx: &TxQueue, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is live and as long as is said.
    unsafe { libc::setsockopt(tx.fd().as_raw_fd(), level, name, (&raw const value).cast(), len) };
}

/// All that precedes the payload, as the raw pump's packets have it.
fn head(payload: usize, udp_port: u16) -> Vec<u8> {
    let length = (UdpHeader::LEN + HEAD + payload + TAIL) as u16;
    let mac = |side| [0x02, 0, 0, 0, 0x97, side];
    let ethernet = Ethernet2Header { source: mac(0), destination: mac(1), ether_type: ether_type::IPV6 };
    let octets = |address: &str| address.parse::<Ipv6Addr>().unwrap().octets();
    let ip = Ipv6Header {
        payload_length: length,
        next_header: IpNumber::UDP,
        hop_limit: 64,
        source: octets(V6[0]),
        destination: octets(V6[1]),
        ..Ipv6Header::default()
    };
    let udp = UdpHeader { source_port: 0xC000, destination_port: udp_port, length, checksum: 0 };
    [&ethernet.to_bytes()[..], &ip.to_bytes(), &udp.to_bytes(), &[0xC7; HEAD]].concat()
}
