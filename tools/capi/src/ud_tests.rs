//! Datagrams, by the functions that programs call: two devices on a loopback address, as two processes would have them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::ffi::{c_int, c_uint};
use core::mem::zeroed;
use core::sync::atomic::Ordering;
use std::ptr::null_mut;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::device::DeviceBox;
use crate::{ah, channel, context, cq, mr, pd, post, qp};
use spindrift_programs::NicSettings;

const MEMORY: usize = 16 << 10;
const QKEY: u32 = 0x1111_1111;
const DEPTH: u32 = 8;
/// How long a test waits for what must come, on a machine with other work.
const PATIENCE: Duration = Duration::from_mins(1);

/// A child has the locks of other threads as they were, so busy tests leave it alone.
pub(crate) static FORKS: RwLock<()> = RwLock::new(());

/// A device with one of each object.
struct Side {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    memory: Vec<u8>,
}

fn modify(qp: *mut ibv_qp, state: c_int, mask: c_int) -> c_int {
    // SAFETY: numbers and bytes.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    (attr.qp_state, attr.qkey, attr.port_num) = (state, QKEY, 1);
    // SAFETY: a queue pair of the test.
    unsafe { qp::ibv_modify_qp(qp, &raw mut attr, mask | qp_attr_mask::STATE) }
}

impl Side {
    fn new() -> Self {
        let planes = vec!["127.0.0.1".parse().unwrap()];
        let device = DeviceBox::new(0, NicSettings::new("spindrift0", planes)).kept();
        let mut memory = vec![0_u8; MEMORY];
        // SAFETY: the objects are used in the order of verbs, and the memory lives as long as they do.
        unsafe {
            let context = context::ibv_open_device(device.as_c());
            assert!(!context.is_null());
            let pd = pd::ibv_alloc_pd(context);
            let channel = channel::ibv_create_comp_channel(context);
            let cq = cq::ibv_create_cq(context, DEPTH as c_int, null_mut(), channel, 0);
            let mr = mr::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), MEMORY, IBV_ACCESS_LOCAL_WRITE as c_int);
            let mut attr: ibv_qp_init_attr = zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (cq, cq, IBV_QPT_UD);
            let (max_send_wr, max_recv_wr) = (4, 4);
            attr.cap = ibv_qp_cap {
                max_send_wr,
                max_recv_wr,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            };
            let qp = qp::ibv_create_qp(pd, &raw mut attr);
            assert!(!qp.is_null());
            Self { context, pd, channel, cq, qp, mr, memory }
        }
    }

    fn ready() -> Self {
        let side = Self::new();
        let init = qp_attr_mask::QKEY | qp_attr_mask::PORT | qp_attr_mask::PKEY_INDEX;
        for (state, mask) in
            [(qp_state::INIT, init), (qp_state::RTR, 0), (qp_state::RTS, qp_attr_mask::SQ_PSN)]
        {
            assert_eq!(modify(side.qp, state, mask), 0);
        }
        side
    }

    fn number(&self) -> u32 {
        // SAFETY: a queue pair of the test.
        unsafe { (*self.qp).qp_num }
    }

    fn state(&self) -> c_int {
        // SAFETY: numbers and bytes; a queue pair of the test.
        unsafe {
            let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
            assert_eq!(qp::ibv_query_qp(self.qp, &raw mut attr, 0, &raw mut init), 0);
            assert_eq!(init.qp_type, IBV_QPT_UD);
            attr.qp_state
        }
    }

    fn element(&self, at: usize, len: usize) -> ibv_sge {
        // SAFETY: a region of the test.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.memory.as_ptr().addr() as u64 + at as u64, length: len as u32, lkey }
    }

    fn receive(&self, wr_id: u64, list: &mut [ibv_sge]) -> c_int {
        let mut wr =
            ibv_recv_wr { wr_id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: list.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: a queue pair of the test, and a list of one.
        unsafe { post::post_recv(self.qp, &raw mut wr, &raw mut bad) }
    }

    /// The way to the port of the other side: it has the same address.
    fn ah(&self) -> *mut ibv_ah {
        // SAFETY: numbers and bytes; objects of the test.
        unsafe {
            let mut attr: ibv_ah_attr = zeroed();
            assert_eq!(context::ibv_query_gid(self.context, 1, 3, &raw mut attr.grh.dgid), 0);
            (attr.grh.sgid_index, attr.grh.hop_limit, attr.is_global, attr.port_num) = (3, 64, 1, 1);
            let made = ah::ibv_create_ah(self.pd, &raw mut attr);
            assert!(!made.is_null());
            made
        }
    }

    fn send(&self, wr_id: u64, to: (u32, u32), list: &mut [ibv_sge], flags: c_uint) -> c_int {
        let ah = self.ah();
        // SAFETY: numbers and bytes; a queue pair of the test, and a list of one. The handle is used only by the call.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, list.as_mut_ptr(), list.len() as c_int);
            (wr.opcode, wr.imm_data) = (wr_opcode::SEND_WITH_IMM, 7_u32.to_be());
            wr.send_flags = flags;
            wr.wr.ud = UdPart { ah, remote_qpn: to.0, remote_qkey: to.1 };
            let mut bad = null_mut();
            let code = post::post_send(self.qp, &raw mut wr, &raw mut bad);
            assert_eq!(bad.is_null(), code == 0);
            assert_eq!(ah::ibv_destroy_ah(ah), 0);
            code
        }
    }

    fn has_events(&self) -> bool {
        // SAFETY: a channel of the test, and one element.
        unsafe {
            let mut poll = libc::pollfd { fd: (*self.channel).fd, events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut poll, 1, 0) > 0
        }
    }

    fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: numbers; a queue of the test, and room for one completion.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            (cq::poll_cq(self.cq, 1, &raw mut wc) == 1).then_some(wc)
        }
    }

    fn wait(&self) -> ibv_wc {
        let began = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(began.elapsed() < PATIENCE, "no completion");
        }
    }

    fn wait_for_drops(&self, count: u64) {
        // SAFETY: a context of the test.
        let dropped = &unsafe { context::ContextBox::of(self.context) }.nic.tally.dropped;
        until(|| dropped.load(Ordering::Relaxed) >= count);
        assert_eq!(dropped.load(Ordering::Relaxed), count);
    }

    /// Sends something that arrives. No other receive is posted.
    fn settle(&self, to: &Self) {
        assert_eq!(to.receive(99, &mut [to.element(8192, 100)]), 0);
        assert_eq!(self.send(98, (to.number(), QKEY), &mut [self.element(0, 1)], 0), 0);
        let wc = to.wait();
        assert_eq!((wc.wr_id, wc.status), (99, wc_status::SUCCESS));
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // SAFETY: in the order of verbs.
        unsafe {
            assert_eq!(cq::ibv_destroy_cq(self.cq), libc::EBUSY);
            assert_eq!(qp::ibv_destroy_qp(self.qp), 0);
            assert_eq!(cq::ibv_destroy_cq(self.cq), 0);
            assert!(!self.has_events());
            assert_eq!(channel::ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!(mr::ibv_dereg_mr(self.mr), 0);
            assert_eq!(pd::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(context::ibv_close_device(self.context), 0);
        }
    }
}

#[test]
fn a_datagram_arrives_with_its_header_and_the_way_back() {
    let (mut a, mut b) = (Side::ready(), Side::ready());
    a.memory[..6].copy_from_slice(b"hello!");
    // The header goes into the first element, and into a part of the second.
    assert_eq!(b.receive(5, &mut [b.element(100, 30), b.element(0, 80)]), 0);
    let list = &mut [a.element(0, 2), a.element(2, 4)];
    assert_eq!(a.send(6, (b.number(), QKEY), list, IBV_SEND_SIGNALED), 0);
    let sent = a.wait();
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (6, wc_status::SUCCESS, wc_opcode::SEND));
    let got = b.wait();
    assert_eq!((got.wr_id, got.status, got.opcode), (5, wc_status::SUCCESS, wc_opcode::RECV));
    assert_eq!((got.byte_len, got.qp_num, got.src_qp), (46, b.number(), a.number()));
    assert_eq!((u32::from_be(got.imm_data), got.wc_flags), (7, IBV_WC_GRH | IBV_WC_WITH_IMM));
    assert_eq!(&b.memory[10..16], b"hello!");
    assert!(b.memory[16..100].iter().all(|byte| *byte == 0));
    let mut grh: Vec<u8> = b.memory[100..130].to_vec();
    grh.extend(&b.memory[..10]);
    let address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    assert_eq!((grh[0] >> 4, &grh[8..24], &grh[24..]), (6, &address[..], &address[..]));
    // The way back, as programs ask for it.
    // SAFETY: numbers and bytes; objects of the test.
    unsafe {
        let (mut wc, mut attr): (ibv_wc, ibv_ah_attr) = (got, zeroed());
        let header: *mut ibv_grh = grh.as_mut_ptr().cast();
        assert_eq!(ah::ibv_init_ah_from_wc(b.context, 1, &raw mut wc, header, &raw mut attr), 0);
        assert_eq!((attr.grh.dgid.raw, attr.grh.sgid_index, attr.is_global), (address, 3, 1));
        let made = ah::ibv_create_ah_from_wc(b.pd, &raw mut wc, header, 1);
        assert_eq!(pd::ibv_dealloc_pd(b.pd), libc::EBUSY);
        assert_eq!(ah::ibv_destroy_ah(made), 0);
    }
    // Inline, without a completion: the bytes may change after the call.
    b.memory.fill(0);
    assert_eq!(b.receive(7, &mut [b.element(0, 200)]), 0);
    let list = &mut [ibv_sge { lkey: 0, ..a.element(0, 6) }];
    assert_eq!(a.send(8, (b.number(), QKEY), list, IBV_SEND_INLINE), 0);
    a.memory.fill(0);
    assert_eq!((b.wait().byte_len, &b.memory[40..46]), (46, &b"hello!"[..]));
    assert!(a.poll().is_none());
}

#[test]
fn what_the_receiver_does_not_take_is_dropped() {
    let (a, b) = (Side::ready(), Side::ready());
    let whole = &mut [a.element(0, 4)];
    // No receive; another key; another number.
    assert_eq!(a.send(1, (b.number(), QKEY), whole, 0), 0);
    b.wait_for_drops(1);
    assert_eq!(b.receive(1, &mut [b.element(0, 100)]), 0);
    assert_eq!(a.send(2, (b.number(), QKEY + 1), whole, 0), 0);
    assert_eq!(a.send(3, (b.number() ^ 1, QKEY), whole, 0), 0);
    b.wait_for_drops(3);
    assert!(b.poll().is_none());
    // The highest bit stands for the sender's own key.
    assert_eq!(a.send(4, (b.number(), 1 << 31), whole, 0), 0);
    assert_eq!(b.wait().wr_id, 1);
    assert!(b.poll().is_none());
    // A completion queue without room: receives stay posted.
    for round in 0..DEPTH + 2 {
        assert_eq!(b.receive(round.into(), &mut [b.element(0, 100)]), 0);
        assert_eq!(a.send(5, (b.number(), QKEY), whole, 0), 0);
        match round.checked_sub(DEPTH) {
            None => until(|| waiting(&b) > round as usize),
            Some(over) => b.wait_for_drops(u64::from(over) + 4),
        }
    }
    let taken = core::iter::from_fn(|| b.poll()).take(DEPTH as usize).map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!(taken, (0..u64::from(DEPTH)).collect::<Vec<_>>());
    assert_eq!(b.state(), qp_state::RTS);
}

/// Waits until something is true.
fn until(is_true: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

/// Completions that wait to be polled.
fn waiting(side: &Side) -> usize {
    // SAFETY: a queue of the test.
    unsafe { cq::CqBox::of(side.cq) }.side.len()
}

#[test]
fn a_receive_that_is_too_small_ends_the_queue_pair() {
    for case in 0..3 {
        let (a, b) = (Side::ready(), Side::ready());
        let (element, status) = match case {
            0 => (b.element(0, 43), wc_status::LOC_LEN_ERR),
            1 => (ibv_sge { lkey: 0x1234, ..b.element(0, 100) }, wc_status::LOC_PROT_ERR),
            _ => (b.element(MEMORY - 10, 100), wc_status::LOC_PROT_ERR),
        };
        assert_eq!(b.receive(1, &mut [element]), 0);
        assert_eq!(b.receive(2, &mut [b.element(0, 100)]), 0);
        assert_eq!(a.send(3, (b.number(), QKEY), &mut [a.element(0, 4)], 0), 0);
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, status, wc_opcode::RECV));
        let wc = b.wait();
        assert_eq!((wc.wr_id, wc.status), (2, wc_status::WR_FLUSH_ERR));
        assert_eq!(b.state(), qp_state::ERR);
        // What is posted from now on is flushed too.
        assert_eq!(b.receive(4, &mut [b.element(0, 100)]), 0);
        assert_eq!(b.send(5, (a.number(), QKEY), &mut [b.element(0, 4)], 0), 0);
        for wr_id in [4, 5] {
            let wc = b.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, wc_status::WR_FLUSH_ERR));
        }
        assert!(b.memory.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_send_that_fails_stops_the_send_queue_alone() {
    let (a, b) = (Side::ready(), Side::ready());
    let to = (b.number(), QKEY);
    for (list, status) in [
        (ibv_sge { lkey: 0x1234, ..a.element(0, 4) }, wc_status::LOC_PROT_ERR),
        (a.element(MEMORY - 2, 4), wc_status::LOC_PROT_ERR),
        (a.element(0, 4097), wc_status::LOC_LEN_ERR),
    ] {
        assert_eq!(a.send(1, to, &mut [list], 0), 0);
        assert_eq!(a.send(2, to, &mut [a.element(0, 4)], 0), 0);
        for (wr_id, status) in [(1, status), (2, wc_status::WR_FLUSH_ERR)] {
            let wc = a.wait();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, status, wc_opcode::SEND));
        }
        assert_eq!(a.state(), qp_state::SQE);
        // Receives go on.
        b.settle(&a);
        assert_eq!(modify(a.qp, qp_state::RTS, 0), 0);
    }
    assert_eq!(b.receive(6, &mut [b.element(0, 4136)]), 0);
    assert_eq!(a.send(6, to, &mut [a.element(0, 4096)], 0), 0);
    assert_eq!(b.wait().byte_len, 4136);
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let (a, b) = (Side::new(), Side::ready());
    let list = &mut [a.element(0, 4)];
    assert_eq!(a.send(1, (b.number(), QKEY), list, 0), libc::EINVAL);
    assert_eq!(a.receive(1, list), libc::EINVAL);
    assert_eq!(modify(a.qp, qp_state::RTS, 0), libc::EINVAL);
    assert_eq!(b.receive(1, &mut [b.element(0, 1); 3]), libc::EINVAL);
    assert_eq!(b.send(1, (a.number(), QKEY), &mut [b.element(0, 1); 3], 0), libc::EINVAL);
    assert_eq!(b.send(1, (a.number(), QKEY), &mut [b.element(0, 65)], IBV_SEND_INLINE), libc::EINVAL);
    // Sends are complete at once, but their places are free when somebody has polled.
    for left in (0..5).rev() {
        let code = b.send(left, (a.number(), QKEY), &mut [b.element(0, 1)], IBV_SEND_SIGNALED);
        assert_eq!(code, if left == 0 { libc::ENOMEM } else { 0 });
    }
    assert_eq!(b.poll().unwrap().wr_id, 4);
    assert_eq!(b.send(0, (a.number(), QKEY), &mut [b.element(0, 1)], IBV_SEND_SIGNALED), 0);
    for left in (0..5).rev() {
        assert_eq!(b.receive(9, &mut [b.element(0, 60)]), if left == 0 { libc::ENOMEM } else { 0 });
    }
    // A reset drops completions and receives.
    assert_eq!(modify(b.qp, qp_state::RESET, 0), 0);
    assert!(b.poll().is_none());
    for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
        assert_eq!(modify(b.qp, state, qp_attr_mask::QKEY), 0);
    }
    for _ in 0..4 {
        assert_eq!(b.send(0, (a.number(), QKEY), &mut [b.element(0, 1)], IBV_SEND_SIGNALED), 0);
    }
    assert_eq!(modify(b.qp, qp_state::ERR, 0), 0);
    assert_eq!(core::iter::from_fn(|| b.poll()).count(), 4);
}

/// It shares the socket and the memory's addresses, and can harm neither. It can open a device of its own.
#[test]
fn a_child_of_a_fork_leaves_its_parent_alone() {
    let _alone = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let (a, b) = (Side::ready(), Side::ready());
    assert_eq!(b.receive(1, &mut [b.element(0, 100)]), 0);
    let told = spindrift::pmd::testing::in_child(|| {
        let mut wc = core::mem::MaybeUninit::<ibv_wc>::uninit();
        // SAFETY: a queue of the test, and room for one completion.
        let polled = unsafe { cq::poll_cq(b.cq, 1, wc.as_mut_ptr()) };
        let refused = [
            a.send(2, (b.number(), QKEY), &mut [a.element(0, 4)], 0),
            b.receive(3, &mut [b.element(0, 100)]),
            modify(b.qp, qp_state::ERR, 0),
            // SAFETY: a queue pair of the test.
            unsafe { qp::ibv_destroy_qp(a.qp) },
        ];
        let own = (Side::ready(), Side::ready());
        own.0.settle(&own.1);
        polled == -1 && refused == [libc::EIO; 4]
    });
    assert_eq!(told, Some(true));
    assert!(b.poll().is_none());
    assert_eq!(a.send(4, (b.number(), QKEY), &mut [a.element(0, 7)], 0), 0);
    assert_eq!((b.wait().wr_id, b.state()), (1, qp_state::RTS));
}

#[test]
fn a_channel_tells_of_datagrams() {
    let (a, b) = (Side::ready(), Side::ready());
    // SAFETY: objects of the test.
    unsafe {
        let fd = (*b.channel).fd;
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let event = || {
            let (mut cq, mut context) = (null_mut(), null_mut());
            let code = channel::ibv_get_cq_event(b.channel, &raw mut cq, &raw mut context);
            (code, cq)
        };
        assert_eq!(cq::req_notify_cq(b.cq, 0), 0);
        assert_eq!(b.receive(1, &mut [b.element(0, 60)]), 0);
        assert_eq!(a.send(1, (b.number(), QKEY), &mut [a.element(0, 4)], 0), 0);
        assert_eq!(event(), (0, b.cq));
        assert_eq!(b.wait().wr_id, 1);
        // Each request stands for one event.
        a.settle(&b);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        assert_eq!(event().0, -1);
        // The end of the test drops an event that nobody has taken.
        assert_eq!(cq::req_notify_cq(b.cq, 0), 0);
        a.settle(&b);
        assert!(b.has_events());
    }
}
