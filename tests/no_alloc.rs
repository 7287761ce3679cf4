//! After warm-up, nothing allocates: not per packet, not per message, on neither side.
#![allow(clippy::unwrap_used, reason = "a failed test is the message")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::verbs::{
    Access, Context, ContextConfig, Cq, Idle, InlineWr, LaneMode, Mr, Qp, QpConfig, RecvWr, SendOp, SendWr,
    Wc, nic,
};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MESSAGE_BYTES: u32 = 20_000;
const OUTSTANDING: u32 = 16;

struct Side {
    context: Context,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

fn side(ports: Vec<LoopbackPort>, lane: LaneMode) -> Side {
    let ports = nic(ports);
    let config = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports).lane(lane) };
    let context = Context::open(ports, config).unwrap();
    let pd = context.create_pd().unwrap();
    let cq = context.create_cq(256).unwrap();
    let mr = pd.register((OUTSTANDING * MESSAGE_BYTES) as usize, Access::REMOTE_WRITE).unwrap();
    let config = QpConfig { max_inline: 32, mpr: 32, ..QpConfig::default() };
    let qp = Qp::create(&pd, &cq, &cq, &config).unwrap();
    Side { context, cq, mr, qp }
}

/// Posts `count` messages, a plain, an inline and an immediate in turn, never more than [`OUTSTANDING`] at a time.
fn stream(left: &mut Side, right: &mut Side, count: u32) {
    let (mut posted, mut done, mut receives) = (0, 0, 0);
    let mut seen = [Wc::default(); 32];
    while done < count {
        while right.qp.recvs_outstanding() < 2 * OUTSTANDING {
            right.qp.post_recv(RecvWr { wr_id: receives }).unwrap();
            receives += 1;
        }
        while posted < count && left.qp.sends_outstanding() < OUTSTANDING {
            post(left, right, posted);
            posted += 1;
        }
        left.context.poll();
        right.context.poll();
        let polled = left.cq.poll(&mut seen).unwrap();
        assert!(seen.iter().take(polled).all(|wc| wc.status.is_success()), "{seen:?}");
        done += polled as u32;
        right.cq.poll(&mut seen).unwrap();
    }
}

fn post(left: &mut Side, right: &Side, number: u32) {
    let offset = number % OUTSTANDING * MESSAGE_BYTES;
    let remote = right.mr.remote().at(u64::from(offset), u64::from(MESSAGE_BYTES)).unwrap();
    let wr_id = u64::from(number);
    let local = left.mr.sge(offset as usize, MESSAGE_BYTES).unwrap();
    match number % 3 {
        0 => left.qp.post_send(SendWr { wr_id, op: SendOp::Write, local, remote, signaled: true }),
        1 => {
            let wr = InlineWr { wr_id, op: SendOp::Write, remote, signaled: true };
            left.qp.post_send_inline(b"inline bytes", wr)
        }
        _ => left.qp.post_send(SendWr {
            wr_id,
            op: SendOp::WriteWithImm(number),
            local,
            remote,
            signaled: true,
        }),
    }
    .unwrap();
}

/// Rounds after which rings must have stopped growing. They double at most a few times, when a pause of the
/// machine first puts so much out of order.
const WARM_UP_ROUNDS: u32 = 20;

/// Allocations in the first quiet of at most [`WARM_UP_ROUNDS`] rounds of `count` messages, and the packets in it.
/// Whatever allocates for each packet, or each message, leaves no round quiet.
fn cost(lanes: [LaneMode; 2], count: u32) -> (u64, u64) {
    let (left, right) = loopback::pair(4, LoopbackConfig::default());
    let (mut left, mut right) = (side(left, lanes[0]), side(right, lanes[1]));
    left.qp.connect(&right.qp.info().unwrap()).unwrap();
    right.qp.connect(&left.qp.info().unwrap()).unwrap();
    stream(&mut left, &mut right, count);
    let packets = |side: &Side| side.context.lane_counters().rx_frames;
    let mut seen = (0, 0);
    for _ in 0..WARM_UP_ROUNDS {
        let before = (ALLOCATIONS.load(Ordering::Relaxed), packets(&right));
        stream(&mut left, &mut right, count);
        seen = (ALLOCATIONS.load(Ordering::Relaxed) - before.0, packets(&right) - before.1);
        if seen.0 == 0 {
            break;
        }
    }
    seen
}

#[test]
fn nothing_allocates_after_warm_up() {
    let thread = LaneMode::Thread { core: None, idle: Idle::Yield };
    for lanes in [[LaneMode::Inline; 2], [thread; 2]] {
        let (allocations, packets) = cost(lanes, 6000);
        assert!(packets > 6000 * 3, "{packets} packets were to be counted");
        assert_eq!(allocations, 0, "allocations over {packets} packets, lanes {lanes:?}");
    }
}
