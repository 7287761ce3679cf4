//! Queue pairs of MRC's interface, by the functions that programs call: two devices on loopback addresses, as two processes would have
//! them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod attributes;
mod control;
mod foreign;

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, zeroed};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::abi::*;
use super::completion::*;
use super::context::*;
use super::hint::*;
use super::queue::*;
use crate::abi::*;
use crate::device::DeviceBox;
use crate::error::{last_code, set_errno};
use crate::{context, cq, event, mr, pd, qp};
use spindrift_programs::NicSettings;

const MEMORY: usize = 64 << 10;
const DEPTH: c_int = 64;
/// How long a test waits for what must come, on a machine with other work.
const PATIENCE: Duration = Duration::from_mins(1);

/// A device with one of each object.
struct Side {
    verbs: *mut ibv_context,
    context: *mut mrc_context,
    pd: *mut ibv_pd,
    cq: *mut mrc_cq,
    qp: *mut mrc_qp,
    mr: *mut ibv_mr,
    memory: Box<[u8]>,
    /// The address by which peers know it.
    host: IpAddr,
}

/// One of two devices in turn. All tests share them, and they stay open, as those of processes do.
fn device() -> &'static DeviceBox {
    static DEVICES: [OnceLock<DeviceBox>; 2] = [const { OnceLock::new() }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let at = NEXT.fetch_add(1, Ordering::Relaxed) % DEVICES.len();
    DEVICES[at].get_or_init(|| {
        let planes = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
        DeviceBox::new(at, NicSettings::new(format!("mrc{at}"), planes))
    })
}

/// Waits until something is there.
fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn init_attr(side: &Side) -> mrc_qp_init_attr {
    let cap = ibv_qp_cap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    mrc_qp_init_attr {
        qp_context: 7 as *mut c_void,
        send_cq: side.cq,
        recv_cq: side.cq,
        cap,
        sq_sig_all: 0,
        pd: side.pd,
        send_ops_flags: send_ops::RDMA_WRITE | send_ops::RDMA_WRITE_WITH_IMM,
        protocol_version: MRC_PROTOCOL_VERSION_1,
    }
}

fn no_attr() -> mrc_qp_attr {
    // SAFETY: numbers and a null pointer.
    unsafe { zeroed() }
}

impl Side {
    fn new() -> Self {
        Self::on(device())
    }

    fn on(device: &'static DeviceBox) -> Self {
        let host = device.settings.planes[0];
        let mut memory = vec![0_u8; MEMORY].into_boxed_slice();
        // SAFETY: the objects are used in the order of verbs, and the memory lives as long as they do.
        unsafe {
            let verbs = context::ibv_open_device(device.as_c());
            assert!(!verbs.is_null());
            let context = mrc_create_context(verbs, null_mut());
            let pd = pd::ibv_alloc_pd(verbs);
            let cq = mrc_create_cq(context, DEPTH, null_mut(), null_mut(), 0);
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
            let mr = mr::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), MEMORY, access as c_int);
            assert!(!context.is_null() && !pd.is_null() && !cq.is_null() && !mr.is_null());
            let mut side = Self { verbs, context, pd, cq, qp: null_mut(), mr, memory, host };
            side.qp = side.make(|_| ());
            side
        }
    }

    /// A queue pair, like the first one but for what is changed.
    fn make(&self, edit: impl FnOnce(&mut mrc_qp_init_attr)) -> *mut mrc_qp {
        let mut attr = init_attr(self);
        edit(&mut attr);
        // SAFETY: objects of the test.
        let made = unsafe { mrc_create_qp(self.context, &raw mut attr) };
        assert!(!made.is_null());
        made
    }

    fn number(&self) -> u32 {
        let mut number = 0;
        // SAFETY: a queue pair of the test.
        assert_eq!(unsafe { mrc_get_qpn(self.qp, &raw mut number) }, 0);
        number
    }

    fn modify(&self, state: c_int, peer: Option<&Self>, mrc_attr: &mrc_qp_attr, mrc_mask: c_int) -> c_int {
        let (mut attr, mut mrc_attr) = (crate::connection::no_attributes(), *mrc_attr);
        attr.qp_state = state;
        let mut mask = qp_attr_mask::STATE;
        if let Some(peer) = peer {
            mask |= qp_attr_mask::AV | qp_attr_mask::DEST_QPN | qp_attr_mask::PATH_MTU;
            attr.dest_qp_num = peer.number();
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of(peer.host) };
        }
        // SAFETY: a queue pair of the test.
        unsafe { mrc_modify_qp(self.qp, &raw mut attr, mask, &raw mut mrc_attr, mrc_mask) }
    }

    fn query(&self) -> (ibv_qp_attr, mrc_qp_attr, mrc_qp_init_attr) {
        // SAFETY: numbers, and a queue pair of the test.
        unsafe {
            let (mut attr, mut mrc_attr, mut init) = (zeroed(), no_attr(), zeroed());
            let all = attr_mask::ALL;
            let (to, mrc_to, init_to) = (&raw mut attr, &raw mut mrc_attr, &raw mut init);
            assert_eq!(mrc_query_qp(self.qp, to, qp_attr_mask::STATE, mrc_to, all, init_to), 0);
            (attr, mrc_attr, init)
        }
    }

    fn send(
        &self,
        to: &Self,
        (from_at, to_at, len): (usize, usize, u32),
        edit: impl FnOnce(&mut ibv_send_wr),
    ) -> c_int {
        // SAFETY: numbers; objects of the test.
        unsafe {
            let mut element = ibv_sge {
                addr: self.memory.as_ptr().addr() as u64 + from_at as u64,
                length: len,
                lkey: (*self.mr).lkey,
            };
            let mut wr: ibv_send_wr = zeroed();
            (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut element, 1, wr_opcode::RDMA_WRITE);
            wr.send_flags = IBV_SEND_SIGNALED;
            wr.wr.rdma.remote_addr = to.memory.as_ptr().addr() as u64 + to_at as u64;
            wr.wr.rdma.rkey = (*to.mr).rkey;
            edit(&mut wr);
            let mut bad = null_mut();
            let code = mrc_post_send(self.qp, &raw mut wr, &raw mut bad);
            assert_eq!(code != 0, bad == &raw mut wr, "the request that was refused is named");
            code
        }
    }

    fn receive(&self, wr_id: u64) -> c_int {
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        // SAFETY: a queue pair of the test.
        unsafe { mrc_post_recv(self.qp, &raw mut wr, &raw mut bad) }
    }

    fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: numbers; a queue of the test.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            let count = mrc_poll_cq(self.cq, 1, &raw mut wc);
            assert!(count >= 0);
            (count == 1).then_some(wc)
        }
    }

    fn fill(&mut self) {
        self.memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 256) as u8);
    }

    /// Ends all objects, which have to end in this order.
    fn end(self) {
        // SAFETY: objects of the test, each used for the last time.
        unsafe {
            assert_eq!(mrc_destroy_context(self.context), -1, "it has a queue pair and a completion queue");
            assert_eq!(last_code(), libc::EBUSY);
            assert_eq!(mrc_destroy_cq(self.cq), libc::EBUSY);
            assert_eq!(mrc_destroy_qp(self.qp), 0);
            assert_eq!(mrc_destroy_cq(self.cq), 0);
            assert_eq!(mrc_destroy_context(self.context), 0);
            assert_eq!(mr::ibv_dereg_mr(self.mr), 0);
            assert_eq!(pd::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(context::ibv_close_device(self.verbs), 0);
        }
    }
}

/// Two queue pairs in INIT, with attributes that are set there.
fn initialised(mrc_attr: &mrc_qp_attr, mask: c_int) -> [Side; 2] {
    both_initialised([Side::new(), Side::new()], mrc_attr, mask)
}

fn both_initialised(sides: [Side; 2], mrc_attr: &mrc_qp_attr, mask: c_int) -> [Side; 2] {
    for side in &sides {
        assert_eq!(side.modify(qp_state::INIT, None, mrc_attr, mask), 0);
    }
    sides
}

/// Two queue pairs that send to each other.
fn connected() -> [Side; 2] {
    connect(initialised(&no_attr(), 0))
}

fn connect(sides: [Side; 2]) -> [Side; 2] {
    for (side, peer) in [(0, 1), (1, 0)] {
        assert_eq!(sides[side].modify(qp_state::RTR, Some(&sides[peer]), &no_attr(), 0), 0);
        assert_eq!(sides[side].modify(qp_state::RTS, None, &no_attr(), 0), 0);
    }
    sides
}

/// A test that forks must not run beside these.
fn no_forks() -> std::sync::RwLockReadGuard<'static, ()> {
    crate::ud_tests::FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn layouts_are_those_of_the_interface() {
    assert_eq!(size_of::<mrc_device_attr>(), 20);
    assert_eq!(size_of::<mrc_context_attr>(), 8);
    assert_eq!((size_of::<mrc_qp_hint_attr>(), size_of::<mrc_qp_hint_init_attr>()), (140, 140));
    assert_eq!((size_of::<mrc_qp_init_attr>(), size_of::<mrc_qp_attr>()), (72, 176));
    assert_eq!(size_of::<mrc_async_event>(), 16);
    assert_eq!(offset_of!(mrc_device_attr, max_qp_hint), 12);
    assert_eq!(offset_of!(mrc_qp_init_attr, sq_sig_all), 44);
    assert_eq!(offset_of!(mrc_qp_init_attr, protocol_version), 64);
    assert_eq!(offset_of!(mrc_qp_attr, max_wimm_dest), 4);
    assert_eq!(offset_of!(mrc_qp_attr, timeout), 6);
    assert_eq!(offset_of!(mrc_qp_attr, cc_profile_id), 16);
    assert_eq!(offset_of!(mrc_qp_attr, exp_cnt), 25);
    assert_eq!(offset_of!(mrc_qp_attr, qp_hint), 32);
    assert_eq!(offset_of!(mrc_qp_attr, vendor_cfg), 44);
}

#[test]
fn versions_and_capabilities() {
    let side = Side::new();
    // SAFETY: places of this test, and objects of it.
    unsafe {
        let mut versions = [9_u32; 4];
        let [a, b, c, d] = &mut versions;
        mrc_query_version(a, b, c, d);
        assert_eq!(versions, [0x0100_0001, 0, 0x0100_0000, 0]);
        mrc_query_version(null_mut(), null_mut(), null_mut(), null_mut());
        let mut attr = mrc_device_attr::default();
        let mut supported = 0;
        assert_eq!(mrc_query_device(side.verbs, &raw mut attr, &raw mut supported), 0);
        assert_eq!(supported, 1);
        let cap = device_cap::TRIM_NACK | device_cap::DYNAMIC_MPR;
        let expected = mrc_device_attr {
            mrc_protocol_version: 1,
            max_wimm: u16::MAX,
            max_wimm_dest: u16::MAX,
            max_mpr: 255,
            mpr_resolution: 1,
            max_qp_hint: MAX_HINTS,
            cap,
        };
        assert_eq!(attr, expected);
        let mut again = mrc_device_attr::default();
        assert_eq!(mrc_query_device_ex(side.verbs, side.context, &raw mut again, null_mut()), 0);
        assert_eq!(again, expected);
        assert_eq!(mrc_query_device(null_mut(), &raw mut attr, &raw mut supported), -1);
        assert_eq!(last_code(), libc::EINVAL);
        // Programs pass versions that do not exist.
        for mrc_api_version_used in [0, 1, u32::MAX] {
            let mut attr = mrc_context_attr { mrc_api_version_used, mrc_vendor_api_version_used: 5 };
            let made = mrc_create_context(side.verbs, &raw mut attr);
            assert_eq!(mrc_destroy_context(made), 0);
        }
    }
    side.end();
}

#[test]
fn writes_arrive_with_and_without_immediates() {
    let _no_forks = no_forks();
    let [mut a, b] = connected();
    a.fill();
    for wr_id in 0..3 {
        assert_eq!(b.receive(wr_id), 0);
    }
    assert_eq!(a.send(&b, (0, 20_000, 40_000), |wr| wr.wr_id = 1), 0);
    assert_eq!(
        a.send(&b, (5, 3, 100), |wr| {
            (wr.wr_id, wr.opcode, wr.imm_data) = (2, wr_opcode::RDMA_WRITE_WITH_IMM, 0xa1b2_c3d4_u32.to_be());
        }),
        0
    );
    // Nothing to place, by no element, by an element of no bytes; NCCL's plugin sends both.
    assert_eq!(
        a.send(&b, (0, 0, 0), |wr| {
            (wr.wr_id, wr.opcode, wr.num_sge) = (3, wr_opcode::RDMA_WRITE_WITH_IMM, 0);
        }),
        0
    );
    assert_eq!(
        a.send(&b, (0, 0, 0), |wr| {
            (wr.wr_id, wr.opcode) = (4, wr_opcode::RDMA_WRITE_WITH_IMM);
        }),
        0
    );
    // Not signalled, and in the request itself.
    assert_eq!(a.send(&b, (7, 200, 64), |wr| (wr.wr_id, wr.send_flags) = (5, IBV_SEND_INLINE)), 0);
    assert_eq!(
        a.send(&b, (7, 300, 64), |wr| (wr.wr_id, wr.send_flags) = (6, IBV_SEND_INLINE | IBV_SEND_SIGNALED)),
        0
    );
    for wr_id in [1, 2, 3, 4, 6] {
        let wc = wait(|| a.poll());
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, wc_status::SUCCESS, wc_opcode::RDMA_WRITE));
        assert_eq!(wc.qp_num, a.number());
    }
    for (wr_id, len, imm) in [(0, 100, 0xa1b2_c3d4_u32), (1, 0, 0), (2, 0, 0)] {
        let wc = wait(|| b.poll());
        assert_eq!((wc.wr_id, wc.status), (wr_id, wc_status::SUCCESS));
        assert_eq!((wc.opcode, wc.byte_len), (wc_opcode::RECV_RDMA_WITH_IMM, len));
        assert_eq!((wc.wc_flags & IBV_WC_WITH_IMM, u32::from_be(wc.imm_data)), (IBV_WC_WITH_IMM, imm));
        assert_eq!((wc.qp_num, wc.src_qp), (b.number(), a.number()));
    }
    assert_eq!(b.memory[20_000..60_000], a.memory[..40_000]);
    assert_eq!((&b.memory[3..103], &b.memory[200..264]), (&a.memory[5..105], &a.memory[7..71]));
    assert_eq!((b.memory[2], b.memory[103], b.memory[199], b.memory[60_000]), (0, 0, 0, 0));
    assert!(a.poll().is_none() && b.poll().is_none());
    a.end();
    b.end();
}

/// A request with its bytes in itself has room for none of them on such a queue pair, but needs none if there are none.
#[test]
fn an_inline_request_without_bytes_needs_no_room() {
    let _no_forks = no_forks();
    let [mut a, b] = [Side::new(), Side::new()];
    let other = a.qp;
    a.qp = a.make(|attr| attr.cap.max_inline_data = 0);
    let inline = |wr: &mut ibv_send_wr| wr.send_flags |= IBV_SEND_INLINE;
    for (side, peer) in [(&a, &b), (&b, &a)] {
        assert_eq!(side.modify(qp_state::INIT, None, &no_attr(), 0), 0);
        assert_eq!(side.modify(qp_state::RTR, Some(peer), &no_attr(), 0), 0);
        assert_eq!(side.modify(qp_state::RTS, None, &no_attr(), 0), 0);
        // The peer is not known yet, or is.
        assert_eq!(a.send(&b, (0, 0, 0), inline), 0);
        assert_eq!(a.send(&b, (0, 0, 1), inline), libc::EINVAL);
    }
    for _ in 0..2 {
        assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    }
    // SAFETY: a queue pair of the test, used for the last time.
    unsafe { assert_eq!(mrc_destroy_qp(other), 0) };
    a.end();
    b.end();
}

/// MRC 1.0 has nothing else, whether the peer is known or not.
#[test]
fn other_operations_are_refused() {
    let _no_forks = no_forks();
    let others = [
        wr_opcode::SEND,
        wr_opcode::SEND_WITH_IMM,
        wr_opcode::SEND_WITH_INV,
        wr_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_AND_SWP,
        wr_opcode::ATOMIC_FETCH_AND_ADD,
        77,
    ];
    let refuse_all = |from: &Side, to: &Side| {
        for opcode in others {
            set_errno(0);
            assert_eq!(from.send(to, (0, 0, 8), |wr| wr.opcode = opcode), libc::EOPNOTSUPP, "{opcode}");
            assert_eq!(last_code(), libc::EOPNOTSUPP);
        }
    };
    let [a, b] = initialised(&no_attr(), 0);
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), libc::EINVAL, "it is in INIT");
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), libc::EINVAL, "it is in RTR");
    assert_eq!(a.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    refuse_all(&a, &b);
    // This one waits for the peer.
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
    assert_eq!(b.modify(qp_state::RTR, Some(&a), &no_attr(), 0), 0);
    assert_eq!(b.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    refuse_all(&a, &b);
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    // SAFETY: objects of the test.
    unsafe {
        for (send_ops_flags, protocol_version) in [(send_ops::SEND, 1), (0, 2)] {
            let mut attr = mrc_qp_init_attr { send_ops_flags, protocol_version, ..init_attr(&a) };
            set_errno(0);
            assert!(mrc_create_qp(a.context, &raw mut attr).is_null());
            assert_eq!(last_code(), libc::EOPNOTSUPP);
        }
        let without = |edit: fn(&mut mrc_qp_init_attr)| {
            let mut attr = init_attr(&a);
            edit(&mut attr);
            assert!(mrc_create_qp(a.context, &raw mut attr).is_null());
            assert_eq!(last_code(), libc::EINVAL);
        };
        without(|attr| attr.pd = null_mut());
        without(|attr| attr.send_cq = null_mut());
        without(|attr| attr.recv_cq = null_mut());
        without(|attr| attr.cap.max_send_sge = 1000);
    }
    a.end();
    b.end();
}

/// RNR is not part of MRC: an immediate that finds no receive ends the connection, and the events go to the context of MRC alone.
#[test]
fn an_immediate_without_a_receive_is_fatal() {
    let _no_forks = no_forks();
    let [a, b] = connected();
    assert_eq!(a.send(&b, (0, 0, 8), |wr| wr.opcode = wr_opcode::RDMA_WRITE_WITH_IMM), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::REM_OP_ERR);
    // SAFETY: numbers; a context of the test.
    let told = unsafe {
        let mut told: mrc_async_event = zeroed();
        assert_eq!(mrc_get_async_event(b.context, &raw mut told), 0);
        mrc_ack_async_event(&raw mut told);
        told
    };
    // SAFETY: the event is about an object.
    let about = unsafe { told.element.object };
    assert_eq!(about.cast::<mrc_qp>(), b.qp);
    assert!(
        [event_type::QP_FATAL, event_type::QP_ACCESS_ERR].contains(&told.event_type),
        "{}",
        told.event_type
    );
    // SAFETY: a context of the test, whose descriptor does not block.
    unsafe {
        libc::fcntl((*b.verbs).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut other: ibv_async_event = zeroed();
        assert_eq!(event::ibv_get_async_event(b.verbs, &raw mut other), -1);
        assert_eq!(last_code(), libc::EAGAIN);
    }
    assert_eq!(b.query().0.qp_state, qp_state::ERR);
    // An event that nobody has read ends with its object.
    a.end();
    b.end();
}

#[test]
fn hints_are_kept_while_queue_pairs_have_them() {
    let _no_forks = no_forks();
    let side = Side::new();
    let attr = mrc_qp_hint_attr {
        num_qps_per_peer: 2,
        num_send_peers: 3,
        num_remote_recv_peers: 4,
        vendor_cfg: [5; MRC_MAX_VENDOR_CFG_SIZE],
    };
    // SAFETY: objects of the test.
    unsafe {
        let mut init = mrc_qp_hint_init_attr { attr };
        let hint = mrc_create_qp_hint(side.context, &raw mut init);
        let other = mrc_create_qp_hint(side.context, &raw mut init);
        assert!(!hint.is_null() && !other.is_null());
        let mut found: mrc_qp_hint_attr = zeroed();
        let masks =
            [hint_mask::NUM_QPS_PER_PEER, hint_mask::NUM_SEND_PEERS, hint_mask::NUM_REMOTE_RECV_PEERS];
        assert_eq!(mrc_query_qp_hint(hint, &raw mut found, masks[1]), 0);
        assert_eq!((found.num_qps_per_peer, found.num_send_peers, found.vendor_cfg[0]), (0, 3, 0));
        assert_eq!(mrc_query_qp_hint(hint, &raw mut found, hint_mask::ALL), 0);
        assert_eq!(found, attr);
        let mut change = mrc_qp_hint_attr { num_qps_per_peer: 7, num_send_peers: 8, ..attr };
        assert_eq!(mrc_modify_qp_hint(hint, &raw mut change, masks[0]), 0);
        assert_eq!(mrc_query_qp_hint(hint, &raw mut found, hint_mask::ALL), 0);
        assert_eq!(found, mrc_qp_hint_attr { num_qps_per_peer: 7, ..attr });
        for bad in [
            mrc_modify_qp_hint(hint, &raw mut change, 8),
            mrc_query_qp_hint(hint, &raw mut found, 8),
            mrc_modify_qp_hint(hint, null_mut(), 1),
            mrc_query_qp_hint(null_mut(), &raw mut found, 1),
            mrc_destroy_qp_hint(null_mut()),
        ] {
            assert_eq!((bad, last_code()), (-1, libc::EINVAL));
        }
        // A queue pair takes it, changes it for another, and gives that back: by none, by a reset, by its end.
        let give = |hint| {
            let attr = mrc_qp_attr { qp_hint: hint, ..no_attr() };
            side.modify(qp_state::INIT, None, &attr, attr_mask::HINT)
        };
        assert_eq!(give(hint), 0);
        assert_eq!(side.query().1.qp_hint, hint);
        assert_eq!((mrc_destroy_qp_hint(hint), last_code()), (-1, libc::EBUSY));
        assert_eq!(give(other), 0);
        assert_eq!(mrc_destroy_qp_hint(hint), 0);
        assert_eq!((mrc_destroy_qp_hint(other), last_code()), (-1, libc::EBUSY));
        assert_eq!(side.modify(qp_state::RESET, None, &no_attr(), 0), 0);
        assert!(side.query().1.qp_hint.is_null());
        assert_eq!(give(other), 0);
        assert_eq!(give(null_mut()), 0);
        assert_eq!(mrc_destroy_qp_hint(other), 0);
        // A context has only so many, and none less for those that have ended.
        let hints: Vec<_> = (0..MAX_HINTS).map(|_| mrc_create_qp_hint(side.context, &raw mut init)).collect();
        assert!(hints.iter().all(|hint| !hint.is_null()));
        assert!(mrc_create_qp_hint(side.context, &raw mut init).is_null());
        assert_eq!(last_code(), libc::ENOMEM);
        for hint in hints {
            assert_eq!(mrc_destroy_qp_hint(hint), 0);
        }
        let last = mrc_create_qp_hint(side.context, &raw mut init);
        assert_eq!(give(last), 0);
        let Side { verbs, context, pd, cq, qp, mr, memory, .. } = side;
        assert_eq!(mrc_destroy_qp(qp), 0);
        assert_eq!(mrc_destroy_cq(cq), 0);
        assert_eq!((mrc_destroy_context(context), last_code()), (-1, libc::EBUSY), "it has a hint");
        assert_eq!(mrc_destroy_qp_hint(last), 0);
        assert_eq!(mrc_destroy_context(context), 0);
        assert_eq!((mr::ibv_dereg_mr(mr), pd::ibv_dealloc_pd(pd)), (0, 0));
        assert_eq!(context::ibv_close_device(verbs), 0);
        drop(memory);
    }
}

/// A completion queue remembers the queue pair of its last completion.
#[test]
fn a_hint_is_free_when_its_queue_pair_has_ended() {
    let _no_forks = no_forks();
    let [a, b] = connected();
    // SAFETY: objects of the test.
    unsafe {
        let mut init = mrc_qp_hint_init_attr { attr: zeroed() };
        let hint = mrc_create_qp_hint(a.context, &raw mut init);
        let attr = mrc_qp_attr { qp_hint: hint, ..no_attr() };
        assert_eq!(a.modify(qp_state::RTS, None, &attr, attr_mask::HINT), 0);
        assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
        wait(|| a.poll());
        assert_eq!(mrc_destroy_qp(a.qp), 0);
        assert_eq!(mrc_destroy_qp_hint(hint), 0);
        let qp = a.make(|_| ());
        Side { qp, ..a }.end();
    }
    b.end();
}

#[test]
fn a_channel_tells_of_completions() {
    let _no_forks = no_forks();
    let [mut a, b] = [Side::new(), Side::new()];
    // SAFETY: objects of the test.
    let (channel, old) = unsafe {
        let mut channel = null_mut();
        assert_eq!(mrc_create_comp_channel(a.context, &raw mut channel), 0);
        let old = (a.qp, a.cq);
        a.cq = mrc_create_cq(a.context, DEPTH, 11 as *mut c_void, channel, 0);
        a.qp = a.make(|_| ());
        assert_eq!((mrc_destroy_qp(old.0), mrc_destroy_cq(old.1)), (0, 0));
        assert_eq!(mrc_destroy_comp_channel(channel), libc::EBUSY);
        let mut fd = -1;
        assert_eq!(mrc_get_comp_channel_fd(channel, &raw mut fd), 0);
        (channel, fd)
    };
    for (side, peer) in [(&a, &b), (&b, &a)] {
        assert_eq!(side.modify(qp_state::INIT, None, &no_attr(), 0), 0);
        assert_eq!(side.modify(qp_state::RTR, Some(peer), &no_attr(), 0), 0);
        assert_eq!(side.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    }
    // SAFETY: objects and places of the test.
    unsafe {
        assert_eq!(mrc_req_notify_cq(a.cq, 0), 0);
        assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
        event::wait_for(old).unwrap();
        let (mut queue, mut user) = (null_mut(), null_mut());
        assert_eq!(mrc_get_cq_event(channel, &raw mut queue, &raw mut user), 0);
        assert_eq!((queue, user.addr()), (a.cq, 11));
        mrc_ack_cq_events(queue, 1);
    }
    assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    // The queue pair's context is still in use by the channel when all else has ended.
    // SAFETY: objects of the test, each used for the last time.
    unsafe {
        assert_eq!((mrc_destroy_qp(a.qp), mrc_destroy_cq(a.cq)), (0, 0));
        assert_eq!((mrc_destroy_context(a.context), last_code()), (-1, libc::EBUSY));
        assert_eq!(mrc_destroy_comp_channel(channel), 0);
        assert_eq!(mrc_destroy_context(a.context), 0);
        assert_eq!((mr::ibv_dereg_mr(a.mr), pd::ibv_dealloc_pd(a.pd)), (0, 0));
        assert_eq!(context::ibv_close_device(a.verbs), 0);
    }
    b.end();
}

/// A program with verbs and one with MRC's interface: what both have is MRC.
#[test]
fn a_peer_may_use_verbs() {
    let _no_forks = no_forks();
    let [mut a, b] = [Side::new(), Side::new()];
    a.fill();
    // SAFETY: objects of the test.
    let plain = unsafe {
        let cq = cq::ibv_create_cq(b.verbs, DEPTH, null_mut(), null_mut(), 0);
        let mut attr: ibv_qp_init_attr = zeroed();
        (attr.send_cq, attr.recv_cq, attr.qp_type, attr.cap) = (cq, cq, IBV_QPT_RC, init_attr(&b).cap);
        let plain = qp::ibv_create_qp(b.pd, &raw mut attr);
        let mut attr = crate::connection::no_attributes();
        attr.dest_qp_num = a.number();
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = ibv_gid { raw: spindrift_programs::gid::of("127.0.0.1".parse().unwrap()) };
        for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
            attr.qp_state = state;
            assert_eq!(qp::ibv_modify_qp(plain, &raw mut attr, 0x1f_ffff & !qp_attr_mask::CUR_STATE), 0);
        }
        // It is none of MRC's, so it has no such attributes.
        let mut mrc_attr = no_attr();
        let mask = attr_mask::TIMEOUT;
        assert_eq!(mrc_modify_qp(plain.cast(), null_mut(), 0, &raw mut mrc_attr, mask), libc::EINVAL);
        assert_eq!(
            mrc_query_qp(plain.cast(), null_mut(), 0, &raw mut mrc_attr, mask, null_mut()),
            libc::EINVAL
        );
        (plain, cq)
    };
    let own = b.qp;
    let b = Side { qp: plain.0.cast(), ..b };
    assert_eq!(a.modify(qp_state::INIT, None, &no_attr(), 0), 0);
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    assert_eq!(a.modify(qp_state::RTS, None, &no_attr(), 0), 0);
    assert_eq!(a.send(&b, (0, 100, 9000), |_| ()), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::SUCCESS);
    assert_eq!(b.memory[100..9100], a.memory[..9000]);
    // SAFETY: objects of the test, used for the last time.
    unsafe {
        assert_eq!((mrc_destroy_qp(plain.0.cast()), cq::ibv_destroy_cq(plain.1)), (0, 0));
    }
    Side { qp: own, ..b }.end();
    a.end();
}

/// A peer that never answers: the retries of MRC's own attributes decide when.
#[test]
fn a_silent_peer_uses_up_the_retries() {
    let _no_forks = no_forks();
    let [a, b] = initialised(&no_attr(), 0);
    let attr = mrc_qp_attr { timeout: 10, linear_cnt: 1, exp_cnt: 0, ..no_attr() };
    assert_eq!(a.modify(qp_state::RTR, Some(&b), &no_attr(), 0), 0);
    assert_eq!(a.modify(qp_state::RTS, None, &attr, attr_mask::TIMEOUT | attr_mask::RETRY_CNT), 0);
    assert_eq!(a.send(&b, (0, 0, 8), |_| ()), 0);
    assert_eq!(wait(|| a.poll()).status, wc_status::RETRY_EXC_ERR);
    a.end();
    b.end();
}
