//! Random sequences of calls, in every state and order that a program could choose, also in several threads at once.
//!
//! A program may pass any number. It may not use an object after its end, so neither do these. What is checked: nothing crashes (the
//! sanitizers run this too), an object in use is not destroyed, no work request completes twice, and each one that was accepted is
//! complete when its queue pair has failed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod of_mrc;
mod rng;

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::null_mut;
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::device::DeviceBox;
use crate::mrc::abi::mrc_context;
use crate::mrc::context::{mrc_create_context, mrc_destroy_context};
use crate::{ah, channel, context, cq, event, mr, pd, post, qp, srq};
use rng::Rng;
use spindrift_programs::NicSettings;

const MEMORY: usize = 64 << 10;
/// Objects of a kind at a time, at most.
const MOST: usize = 4;
const DEPTH: c_int = 512;
const CALLS: u64 = 150;
/// How long requests of a queue pair that has failed may take to complete, on a machine with other work.
const PATIENCE: Duration = Duration::from_mins(1);

/// A device that all tests of this file share. It stays open, as that of a process does.
fn device() -> &'static DeviceBox {
    static DEVICE: OnceLock<&'static DeviceBox> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let planes = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
        DeviceBox::new(7, NicSettings::new("calls", planes)).kept()
    })
}

struct Queue {
    qp: *mut ibv_qp,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    pd: *mut ibv_pd,
    kind: c_int,
    extended: bool,
    /// Work requests that were accepted and have no completion, and whether each has to have one if nothing fails.
    sends: BTreeMap<u64, bool>,
    receives: BTreeSet<u64>,
    /// It was reset, so that what was posted before may be gone.
    is_reset: bool,
}

/// What a program has of the library.
struct World {
    rng: Rng,
    memory: Vec<u8>,
    context: *mut ibv_context,
    mrc: *mut mrc_context,
    pds: Vec<*mut ibv_pd>,
    mrs: Vec<(*mut ibv_mr, *mut ibv_pd)>,
    channels: Vec<*mut ibv_comp_channel>,
    cqs: Vec<(*mut ibv_cq, *mut ibv_comp_channel)>,
    srqs: Vec<(*mut ibv_srq, *mut ibv_pd)>,
    ahs: Vec<(*mut ibv_ah, *mut ibv_pd)>,
    qps: Vec<Queue>,
    next_id: u64,
    /// Receives of shared queues that have no completion.
    shared: BTreeSet<u64>,
    reached: Reached,
}

/// What runs have come across, so that they do not pass by what they are for.
#[derive(Debug, Default)]
struct Reached {
    sent: u64,
    received: u64,
    datagrams: u64,
    flushed: u64,
    failed: u64,
    refused: u64,
    in_use: u64,
}

impl Reached {
    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.datagrams += other.datagrams;
        self.flushed += other.flushed;
        self.failed += other.failed;
        self.refused += other.refused;
        self.in_use += other.in_use;
    }
}

impl World {
    fn new(seed: u64) -> Self {
        // SAFETY: a device that stays.
        let context = unsafe { context::ibv_open_device(device().as_c()) };
        assert!(!context.is_null());
        // SAFETY: the context is open.
        let mrc = unsafe { mrc_create_context(context, null_mut()) };
        assert!(!mrc.is_null());
        Self {
            mrc,
            rng: Rng(seed),
            memory: vec![0; MEMORY],
            context,
            pds: Vec::new(),
            mrs: Vec::new(),
            channels: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            ahs: Vec::new(),
            qps: Vec::new(),
            next_id: 1,
            shared: BTreeSet::new(),
            reached: Reached::default(),
        }
    }

    /// What a program begins with: queue pairs that are connected, and one of datagrams.
    fn prepare(&mut self) {
        // SAFETY: objects of this world, and numbers.
        unsafe {
            let pd = pd::ibv_alloc_pd(self.context);
            let cq = cq::ibv_create_cq(self.context, DEPTH, null_mut(), null_mut(), 0);
            let mr = mr::ibv_reg_mr(pd, self.memory.as_mut_ptr().cast(), MEMORY, 0xf);
            let mut way: ibv_ah_attr = zeroed();
            (way.is_global, way.port_num, way.grh.sgid_index) = (1, 1, 3);
            way.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of("127.0.0.1".parse().unwrap()) };
            self.ahs.push((ah::ibv_create_ah(pd, &raw mut way), pd));
            self.pds.push(pd);
            self.cqs.push((cq, null_mut()));
            self.mrs.push((mr, pd));
            for kind in [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UD] {
                let mut attr: ibv_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, kind);
                attr.cap = ibv_qp_cap {
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    max_send_sge: 3,
                    max_recv_sge: 3,
                    max_inline_data: 64,
                };
                let made = qp::ibv_create_qp(pd, &raw mut attr);
                self.adopt(made, pd, [cq; 2], null_mut(), (kind, false));
            }
            let cap = ibv_qp_cap { max_send_wr: 16, max_recv_wr: 16, ..ibv_qp_cap::default() };
            for _ in 0..2 {
                let made = of_mrc::create(self.mrc, pd, [cq; 2], cap);
                self.adopt(made, pd, [cq; 2], null_mut(), (of_mrc::MRC, false));
            }
            for (at, peer) in [(0, 1), (1, 0), (2, 2), (3, 4), (4, 3)] {
                let mut attr = crate::connection::no_attributes();
                (attr.ah_attr, attr.qkey, attr.timeout) = (way, 5, 14);
                attr.dest_qp_num = (*self.qps[peer].qp).qp_num;
                for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
                    attr.qp_state = state;
                    let mask = 0x1f_ffff & !qp_attr_mask::CUR_STATE;
                    assert_eq!(qp::ibv_modify_qp(self.qps[at].qp, &raw mut attr, mask), 0);
                }
            }
        }
    }

    fn adopt(
        &mut self,
        qp: *mut ibv_qp,
        pd: *mut ibv_pd,
        [send_cq, recv_cq]: [*mut ibv_cq; 2],
        srq: *mut ibv_srq,
        (kind, extended): (c_int, bool),
    ) {
        assert!(!qp.is_null());
        let (sends, receives) = (BTreeMap::new(), BTreeSet::new());
        let queue = Queue { qp, send_cq, recv_cq, srq, pd, kind, extended, sends, receives, is_reset: false };
        self.qps.push(queue);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn make(&mut self) {
        // SAFETY: only objects of this world are passed, which live; numbers may be any.
        unsafe {
            match self.rng.below(9) {
                0 if self.pds.len() < MOST => self.pds.push(pd::ibv_alloc_pd(self.context)),
                1 if self.channels.len() < MOST => {
                    let made = channel::ibv_create_comp_channel(self.context);
                    libc::fcntl((*made).fd, libc::F_SETFL, libc::O_NONBLOCK);
                    self.channels.push(made);
                }
                2 if self.cqs.len() < MOST => {
                    let channels = self.channels.clone();
                    let channel =
                        self.rng.pick(&channels).filter(|_| self.rng.one_in(2)).unwrap_or(null_mut());
                    let depth = if self.rng.one_in(20) { self.rng.next() as c_int } else { DEPTH };
                    // A depth by chance may be large, but not as much as to fill the memory.
                    let depth = if depth > 1 << 16 { c_int::MAX } else { depth };
                    let vector = if self.rng.one_in(20) { 9 } else { 0 };
                    let made = cq::ibv_create_cq(self.context, depth, null_mut(), channel, vector);
                    if !made.is_null() && (*made).cqe < DEPTH {
                        // Too small for what follows.
                        assert_eq!(cq::ibv_destroy_cq(made), 0);
                    } else if !made.is_null() {
                        self.cqs.push((made, channel));
                    }
                }
                3 | 4 => self.register(),
                5 if self.srqs.len() < MOST => {
                    let Some(pd) = self.rng.pick(&self.pds) else { return };
                    let mut attr: ibv_srq_init_attr = zeroed();
                    (attr.attr.max_wr, attr.attr.max_sge) = (self.rng.number(64), self.rng.number(17));
                    if attr.attr.max_wr > 1 << 16 {
                        attr.attr.max_wr = u32::MAX;
                    }
                    let made = srq::ibv_create_srq(pd, &raw mut attr);
                    if !made.is_null() {
                        self.srqs.push((made, pd));
                    }
                }
                6 if self.ahs.len() < MOST => {
                    let Some(pd) = self.rng.pick(&self.pds) else { return };
                    let mut attr = self.way();
                    let made = ah::ibv_create_ah(pd, &raw mut attr);
                    if !made.is_null() {
                        self.ahs.push((made, pd));
                    }
                }
                _ => self.make_queue_pair(),
            }
        }
    }

    unsafe fn register(&mut self) {
        let Some(pd) = self.rng.pick(&self.pds).filter(|_| self.mrs.len() < 2 * MOST) else { return };
        let from = self.rng.below(MEMORY);
        let len = self.rng.below(MEMORY - from + 1);
        let flags = if self.rng.one_in(8) { self.rng.next() as c_uint & 0xff } else { 0xf };
        // SAFETY: within the memory, which lives as long as the regions.
        let made =
            unsafe { mr::ibv_reg_mr(pd, self.memory.as_mut_ptr().add(from).cast(), len, flags as c_int) };
        if !made.is_null() {
            self.mrs.push((made, pd));
        }
    }

    fn way(&mut self) -> ibv_ah_attr {
        // SAFETY: numbers.
        let mut attr: ibv_ah_attr = unsafe { zeroed() };
        attr.is_global = u8::from(!self.rng.one_in(10));
        attr.port_num = if self.rng.one_in(10) { 9 } else { 1 };
        attr.grh.sgid_index = if self.rng.one_in(10) { 77 } else { 3 };
        attr.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of("127.0.0.1".parse().unwrap()) };
        if self.rng.one_in(10) {
            attr.grh.dgid = ibv_gid { raw: [self.rng.next() as u8; 16] };
        }
        attr
    }

    unsafe fn make_queue_pair(&mut self) {
        if self.qps.len() >= 2 * MOST {
            return;
        }
        let (Some(pd), Some((send_cq, _)), Some((recv_cq, _))) =
            (self.rng.pick(&self.pds), self.rng.pick(&self.cqs), self.rng.pick(&self.cqs))
        else {
            return;
        };
        let kind = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_UC, of_mrc::MRC, 99][self.rng.below(6)];
        let srqs = self.srqs.clone();
        let shares = kind != of_mrc::MRC && self.rng.one_in(4);
        let srq = self.rng.pick(&srqs).filter(|_| shares).map_or(null_mut(), |(srq, _)| srq);
        let wrs = |rng: &mut Rng| if rng.one_in(30) { u32::MAX } else { rng.below(17) as u32 };
        let cap = ibv_qp_cap {
            max_send_wr: wrs(&mut self.rng),
            max_recv_wr: wrs(&mut self.rng),
            max_send_sge: self.rng.number(6),
            max_recv_sge: self.rng.number(6),
            max_inline_data: if self.rng.one_in(20) { u32::MAX } else { 64 },
        };
        let extended = kind != of_mrc::MRC && self.rng.one_in(3);
        // SAFETY: objects of this world.
        let made = unsafe {
            if extended {
                let mut attr: ibv_qp_init_attr_ex = zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type) =
                    (send_cq, recv_cq, srq, cap, kind);
                attr.comp_mask = qp_init_attr_mask::PD | qp_init_attr_mask::SEND_OPS_FLAGS;
                attr.pd = pd;
                attr.send_ops_flags = if kind == IBV_QPT_UD { send_ops::DATAGRAM } else { send_ops::ALL };
                qp::create_qp_ex(self.context, &raw mut attr)
            } else if kind == of_mrc::MRC {
                of_mrc::create(self.mrc, pd, [send_cq, recv_cq], cap)
            } else {
                let mut attr: ibv_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq, attr.srq, attr.cap, attr.qp_type) =
                    (send_cq, recv_cq, srq, cap, kind);
                qp::ibv_create_qp(pd, &raw mut attr)
            }
        };
        if !made.is_null() {
            self.adopt(made, pd, [send_cq, recv_cq], srq, (kind, extended));
        }
    }

    /// Destroys some object, or is told that it is in use.
    fn destroy(&mut self) {
        // SAFETY: objects of this world, which are forgotten if that succeeds.
        unsafe {
            match self.rng.below(7) {
                0 if !self.pds.is_empty() => {
                    let at = self.rng.below(self.pds.len());
                    let pd = self.pds[at];
                    let used = self.mrs.iter().any(|(_, of)| *of == pd)
                        || self.srqs.iter().any(|(_, of)| *of == pd)
                        || self.ahs.iter().any(|(_, of)| *of == pd)
                        || self.qps.iter().any(|queue| queue.pd == pd);
                    assert_eq!(pd::ibv_dealloc_pd(pd), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.pds.swap_remove(at);
                    }
                }
                1 if !self.mrs.is_empty() => {
                    let at = self.rng.below(self.mrs.len());
                    match mr::ibv_dereg_mr(self.mrs[at].0) {
                        0 => drop(self.mrs.swap_remove(at)),
                        code => {
                            assert_eq!(code, libc::EBUSY);
                            self.reached.in_use += 1;
                        }
                    }
                }
                2 if !self.channels.is_empty() => {
                    let at = self.rng.below(self.channels.len());
                    let used = self.cqs.iter().any(|(_, of)| *of == self.channels[at]);
                    let code = channel::ibv_destroy_comp_channel(self.channels[at]);
                    assert_eq!(code, if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.channels.swap_remove(at);
                    }
                }
                3 if !self.cqs.is_empty() => {
                    let at = self.rng.below(self.cqs.len());
                    let cq = self.cqs[at].0;
                    let used = self.qps.iter().any(|queue| queue.send_cq == cq || queue.recv_cq == cq);
                    assert_eq!(cq::ibv_destroy_cq(cq), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.cqs.swap_remove(at);
                    }
                }
                4 if !self.srqs.is_empty() => {
                    let at = self.rng.below(self.srqs.len());
                    let used = self.qps.iter().any(|queue| queue.srq == self.srqs[at].0);
                    assert_eq!(srq::ibv_destroy_srq(self.srqs[at].0), if used { libc::EBUSY } else { 0 });
                    if !used {
                        self.srqs.swap_remove(at);
                    }
                }
                5 if !self.ahs.is_empty() => {
                    let at = self.rng.below(self.ahs.len());
                    assert_eq!(ah::ibv_destroy_ah(self.ahs.swap_remove(at).0), 0);
                }
                6 if !self.qps.is_empty() => {
                    let at = self.rng.below(self.qps.len());
                    self.destroy_queue_pair(at);
                }
                _ => {}
            }
        }
    }

    unsafe fn destroy_queue_pair(&mut self, at: usize) {
        let queue = self.qps.swap_remove(at);
        // SAFETY: a queue pair of this world.
        unsafe { assert_eq!(qp::ibv_destroy_qp(queue.qp), 0) };
    }

    /// Changes a state: as programs do, or in any way.
    fn change(&mut self) {
        if self.qps.is_empty() {
            return;
        }
        let (at, other) = (self.rng.below(self.qps.len()), self.rng.below(self.qps.len()));
        // SAFETY: numbers.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.ah_attr = self.way();
        // SAFETY: a queue pair of this world.
        attr.dest_qp_num = unsafe { (*self.qps[other].qp).qp_num };
        (attr.port_num, attr.path_mtu, attr.qkey) = (1, 3, 5);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) =
            (8, 1, self.rng.below(8) as u8, 1);
        let steps: &[c_int] = match self.rng.below(8) {
            0 => &[qp_state::RESET],
            1 => &[qp_state::ERR],
            2 => &[qp_state::INIT],
            3..=6 => &[qp_state::INIT, qp_state::RTR, qp_state::RTS],
            _ => &[-3],
        };
        for step in steps {
            attr.qp_state = if *step == -3 { self.rng.next() as c_int % 10 } else { *step };
            let mask =
                if *step == -3 { self.rng.next() as c_int } else { 0x1f_ffff & !qp_attr_mask::CUR_STATE };
            let qp = self.qps[at].qp;
            // SAFETY: as above.
            let code = unsafe {
                match self.qps[at].kind {
                    of_mrc::MRC => of_mrc::modify(&mut self.rng, qp, &mut attr, mask),
                    _ => qp::ibv_modify_qp(qp, &raw mut attr, mask),
                }
            };
            if code == 0 && attr.qp_state == qp_state::RESET && mask & qp_attr_mask::STATE != 0 {
                self.qps[at].is_reset = true;
            }
        }
    }

    /// Ranges of regions, mostly.
    fn elements(&mut self, most: usize) -> Vec<ibv_sge> {
        let count = self.rng.below(most + 1);
        (0..count)
            .map(|_| {
                let mrs = self.mrs.clone();
                let Some((mr, _)) = self.rng.pick(&mrs).filter(|_| !self.rng.one_in(12)) else {
                    // Of no region. It is refused before it is read, but may be copied as inline data.
                    let addr = self.memory.as_ptr().addr() as u64;
                    return ibv_sge { addr, length: self.rng.below(16) as u32, lkey: self.rng.next() as u32 };
                };
                // SAFETY: a region of this world.
                let (addr, len, lkey) = unsafe { ((*mr).addr.addr(), (*mr).length, (*mr).lkey) };
                let from = self.rng.below(len);
                let length = self.rng.below((len - from).min(9000) + 1) as u32;
                ibv_sge { addr: (addr + from) as u64, length, lkey }
            })
            .collect()
    }

    fn send(&mut self) {
        if self.qps.is_empty() {
            return;
        }
        let at = self.rng.below(self.qps.len());
        let id = self.id();
        let mut list = self.elements(3);
        let mrs = self.mrs.clone();
        let remote = self.rng.pick(&mrs);
        // SAFETY: regions and handles of this world; numbers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = id;
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
        wr.opcode = if self.rng.one_in(12) { self.rng.next() as c_int } else { self.rng.below(7) as c_int };
        let signaled = self.rng.one_in(2);
        wr.send_flags = if signaled { IBV_SEND_SIGNALED } else { 0 }
            | if self.rng.one_in(4) { IBV_SEND_INLINE } else { 0 };
        if self.qps[at].kind == IBV_QPT_UD {
            let Some((ah, _)) = self.rng.pick(&self.ahs) else { return };
            let of_datagrams = |at: &usize| self.qps[*at].kind == IBV_QPT_UD;
            let likely: Vec<_> = (0..self.qps.len()).filter(of_datagrams).collect();
            let any = self.rng.below(self.qps.len());
            let to = self.rng.pick(&likely).filter(|_| !self.rng.one_in(4)).unwrap_or(any);
            // SAFETY: a queue pair of this world.
            let remote_qpn = unsafe { (*self.qps[to].qp).qp_num };
            wr.wr = SendPart { ud: UdPart { ah, remote_qpn, remote_qkey: 5 } };
        } else if let Some((mr, _)) = remote {
            // SAFETY: a region of this world.
            let (remote_addr, rkey) = unsafe { ((*mr).addr.addr() as u64, (*mr).rkey) };
            wr.wr = SendPart {
                atomic: AtomicPart { remote_addr: remote_addr & !7, compare_add: 1, swap: 2, rkey },
            };
            if wr.opcode < wr_opcode::ATOMIC_CMP_AND_SWP {
                wr.wr = SendPart { rdma: RdmaPart { remote_addr, rkey } };
            }
        }
        if wr.send_flags & IBV_SEND_INLINE != 0 && list.iter().any(|sge| sge.length > 16) {
            // Its bytes are read at once, wherever they are.
            wr.send_flags &= !IBV_SEND_INLINE;
        }
        let mut bad = null_mut();
        // SAFETY: as above.
        let code = unsafe { post::post_send(self.qps[at].qp, &raw mut wr, &raw mut bad) };
        if code == 0 {
            self.qps[at].sends.insert(id, signaled);
            // As programs do that wait. It also gives packets the time to arrive.
            let queue = self.qps[at].send_cq;
            for _ in 0..self.rng.below(4) {
                self.poll(queue);
            }
        } else {
            assert_eq!(bad, &raw mut wr);
            self.reached.refused += 1;
        }
    }

    /// By the functions that make requests one by one.
    fn build(&mut self) {
        let extended: Vec<usize> = (0..self.qps.len()).filter(|at| self.qps[*at].extended).collect();
        let Some(at) = self.rng.pick(&extended) else { return };
        let mrs = self.mrs.clone();
        let mut ids = Vec::new();
        // SAFETY: objects of this world.
        unsafe {
            let ex = qp::ibv_qp_to_qp_ex(self.qps[at].qp);
            assert!(!ex.is_null());
            ((*ex).wr_start.unwrap())(ex);
            for _ in 0..self.rng.below(4) {
                let id = self.id();
                (*ex).wr_id = id;
                (*ex).wr_flags = IBV_SEND_SIGNALED;
                let remote =
                    self.rng.pick(&mrs).map_or((0, 0), |(mr, _)| ((*mr).rkey, (*mr).addr.addr() as u64));
                if self.qps[at].kind == IBV_QPT_UD {
                    ((*ex).wr_send.unwrap())(ex);
                    if let Some((ah, _)) = self.rng.pick(&self.ahs).filter(|_| !self.rng.one_in(6)) {
                        ((*ex).wr_set_ud_addr.unwrap())(ex, ah, (*self.qps[at].qp).qp_num, 5);
                    }
                } else {
                    match self.rng.below(5) {
                        0 => ((*ex).wr_rdma_write.unwrap())(ex, remote.0, remote.1),
                        1 => ((*ex).wr_rdma_read.unwrap())(ex, remote.0, remote.1),
                        2 => ((*ex).wr_send_imm.unwrap())(ex, 9),
                        3 => ((*ex).wr_atomic_fetch_add.unwrap())(ex, remote.0, remote.1 & !7, 1),
                        _ => ((*ex).wr_send.unwrap())(ex),
                    }
                }
                let list = self.elements(4);
                match self.rng.below(4) {
                    0 => ((*ex).wr_set_sge_list.unwrap())(ex, list.len(), list.as_ptr()),
                    1 => {
                        let first = list.first().copied().unwrap_or(ibv_sge { addr: 0, length: 0, lkey: 0 });
                        ((*ex).wr_set_sge.unwrap())(ex, first.lkey, first.addr, first.length);
                    }
                    2 => ((*ex).wr_set_inline_data.unwrap())(
                        ex,
                        self.memory.as_mut_ptr().cast(),
                        self.rng.below(80),
                    ),
                    // Without data.
                    _ => {}
                }
                ids.push(id);
            }
            if self.rng.one_in(4) {
                ((*ex).wr_abort.unwrap())(ex);
            } else if ((*ex).wr_complete.unwrap())(ex) == 0 {
                self.qps[at].sends.extend(ids.into_iter().map(|id| (id, true)));
            }
        }
    }

    fn receive(&mut self) {
        let id = self.id();
        let mut list = self.elements(3);
        // SAFETY: numbers.
        let mut wr: ibv_recv_wr = unsafe { zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (id, list.as_mut_ptr(), list.len() as c_int);
        let mut bad = null_mut();
        let srqs = self.srqs.clone();
        // SAFETY: objects of this world.
        unsafe {
            if let Some((srq, _)) = self.rng.pick(&srqs).filter(|_| self.rng.one_in(4)) {
                if srq::post_srq_recv(srq, &raw mut wr, &raw mut bad) == 0 {
                    self.shared.insert(id);
                }
            } else if !self.qps.is_empty() {
                let at = self.rng.below(self.qps.len());
                if post::post_recv(self.qps[at].qp, &raw mut wr, &raw mut bad) == 0 {
                    self.qps[at].receives.insert(id);
                }
            }
        }
    }

    /// Takes what is complete, and checks that it was posted and not complete before.
    fn poll(&mut self, queue: *mut ibv_cq) -> usize {
        // SAFETY: numbers.
        let mut found: [ibv_wc; 8] = unsafe { zeroed() };
        // SAFETY: a queue of this world, and places of this function.
        let count = unsafe { cq::poll_cq(queue, 8, found.as_mut_ptr()) };
        let count = usize::try_from(count).unwrap();
        for wc in &found[..count] {
            let id = wc.wr_id;
            match wc.status {
                wc_status::SUCCESS if wc.wc_flags & IBV_WC_GRH != 0 => self.reached.datagrams += 1,
                wc_status::SUCCESS if wc.opcode & wc_opcode::RECV != 0 => self.reached.received += 1,
                wc_status::SUCCESS => self.reached.sent += 1,
                wc_status::WR_FLUSH_ERR => self.reached.flushed += 1,
                _ => self.reached.failed += 1,
            }
            let mut owners = self.qps.iter_mut();
            let known = owners.any(|queue| queue.sends.remove(&id).is_some() || queue.receives.remove(&id))
                || self.shared.remove(&id)
                // Its queue pair is destroyed.
                || !self.qps.iter().any(|queue| {
                    // SAFETY: a queue pair of this world.
                    unsafe { (*queue.qp).qp_num == wc.qp_num }
                });
            assert!(
                known,
                "{id} was complete before, or never posted: status {} of {:#x}",
                wc.status, wc.qp_num
            );
        }
        count
    }

    fn look(&mut self) {
        let (cqs, channels) = (self.cqs.clone(), self.channels.clone());
        // SAFETY: objects of this world; numbers may be any.
        unsafe {
            match self.rng.below(9) {
                0 => {
                    if let Some((cq, _)) = self.rng.pick(&cqs) {
                        assert_eq!(cq::req_notify_cq(cq, 0), 0);
                    }
                }
                1 => {
                    if let Some(channel) = self.rng.pick(&channels) {
                        let (mut cq, mut user) = (null_mut(), null_mut());
                        if channel::ibv_get_cq_event(channel, &raw mut cq, &raw mut user) == 0 {
                            assert!(self.cqs.iter().any(|(of, _)| *of == cq), "of a queue that has ended");
                        }
                    }
                }
                2 => {
                    libc::fcntl((*self.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
                    let mut found: ibv_async_event = zeroed();
                    if event::ibv_get_async_event(self.context, &raw mut found) == 0 {
                        event::ibv_ack_async_event(&raw mut found);
                    }
                }
                3 if !self.qps.is_empty() => {
                    let at = self.rng.below(self.qps.len());
                    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
                    assert_eq!(qp::ibv_query_qp(self.qps[at].qp, &raw mut attr, -1, &raw mut init), 0);
                    assert_eq!(init.send_cq, self.qps[at].send_cq);
                }
                4 => {
                    let (mut gid, index) = (ibv_gid { raw: [0; 16] }, self.rng.number(5) as c_int);
                    let code = context::ibv_query_gid(self.context, 1, index, &raw mut gid);
                    assert_eq!(code == 0, (0..4).contains(&index));
                }
                5 => {
                    if let Some((srq, _)) = self.rng.pick(&self.srqs) {
                        let mut attr = ibv_srq_attr { max_wr: 5, max_sge: 1, srq_limit: self.rng.number(9) };
                        let _ = srq::ibv_modify_srq(srq, &raw mut attr, self.rng.below(4) as c_int);
                        assert_eq!(srq::ibv_query_srq(srq, &raw mut attr), 0);
                    }
                }
                _ => {
                    if let Some((cq, _)) = self.rng.pick(&cqs) {
                        self.poll(cq);
                    }
                }
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(12) {
            0..=2 => self.make(),
            3 => self.destroy(),
            4 => self.change(),
            5 | 6 => self.send(),
            7 => self.build(),
            8 | 9 => self.receive(),
            _ => self.look(),
        }
    }

    /// Fails every queue pair. Each work request that was accepted is complete then, in whatever way.
    fn end(mut self) -> Reached {
        let mut attr = crate::connection::no_attributes();
        attr.qp_state = qp_state::ERR;
        for queue in &self.qps {
            // SAFETY: queue pairs of this world.
            assert_eq!(unsafe { qp::ibv_modify_qp(queue.qp, &raw mut attr, qp_attr_mask::STATE) }, 0);
        }
        let cqs: Vec<_> = self.cqs.iter().map(|(cq, _)| *cq).collect();
        let began = Instant::now();
        loop {
            let taken: usize = cqs.iter().map(|cq| self.poll(*cq)).sum();
            let left = |queue: &&Queue| {
                // Requests without a signal are complete with a later one, or when they fail.
                !queue.is_reset
                    && (queue.sends.values().any(|signaled| *signaled)
                        || (queue.srq.is_null() && !queue.receives.is_empty()))
            };
            let left: Vec<_> = self
                .qps
                .iter()
                .filter(left)
                .map(|queue| (queue.kind, &queue.sends, &queue.receives))
                .collect();
            if taken == 0 && left.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "not complete: {left:?}");
            std::thread::yield_now();
        }
        // SAFETY: the objects of this world, those that are made of others first.
        unsafe {
            while !self.qps.is_empty() {
                self.destroy_queue_pair(0);
            }
            for (cq, _) in self.cqs.drain(..) {
                assert_eq!(cq::ibv_destroy_cq(cq), 0);
            }
            for (srq, _) in self.srqs.drain(..) {
                assert_eq!(srq::ibv_destroy_srq(srq), 0);
            }
            for (ah, _) in self.ahs.drain(..) {
                assert_eq!(ah::ibv_destroy_ah(ah), 0);
            }
            for (mr, _) in self.mrs.drain(..) {
                assert_eq!(mr::ibv_dereg_mr(mr), 0, "nothing uses it");
            }
            for channel in self.channels.drain(..) {
                assert_eq!(channel::ibv_destroy_comp_channel(channel), 0);
            }
            for pd in self.pds.drain(..) {
                assert_eq!(pd::ibv_dealloc_pd(pd), 0);
            }
            assert_eq!(mrc_destroy_context(self.mrc), 0, "it has no object");
            assert_eq!(context::ibv_close_device(self.context), 0);
        }
        self.reached
    }
}

fn run(seed: u64) -> Reached {
    let _no_forks = crate::ud_tests::FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(seed);
    world.prepare();
    for _ in 0..CALLS {
        world.step();
    }
    world.end()
}

/// A run can be repeated with its number in `SPINDRIFT_SEED`, as far as threads and packets let it.
#[test]
fn no_sequence_of_calls_breaks_anything() {
    let one = std::env::var("SPINDRIFT_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut all = Reached::default();
    for seed in one.map_or(0..1_000, |seed: u64| seed..seed + 1) {
        println!("SPINDRIFT_SEED={seed}");
        all.add(&run(seed));
    }
    println!("{all:?}");
    let Reached { sent, received, datagrams, flushed, failed, refused, in_use } = all;
    let least = sent.min(received).min(datagrams).min(flushed).min(failed).min(refused).min(in_use);
    assert!(one.is_some() || least > 10, "{all:?}");
}

#[test]
fn nor_do_sequences_in_several_threads() {
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            std::thread::spawn(move || {
                for seed in 0..100 {
                    let _ = run((1 + thread) << 32 | seed);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
