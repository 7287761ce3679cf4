//! Random sequences of calls, in every state and order that a program could choose, also in several threads at once.
//!
//! A program may pass any number. It may not use an object after its end, so neither do these. What is checked: nothing crashes (the
//! sanitizers run this too), an object in use is not destroyed, no work request completes twice, and each one that was accepted is
//! complete when its queue pair has failed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod objects;
mod of_mrc;
mod rng;
mod work;

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
