//! After warm-up, nothing allocates: not per packet, not per message, on neither side.
#![allow(clippy::unwrap_used, reason = "a failed test is the message")]

use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::verbs::{
    Access, Context, ContextConfig, Cq, GatherWr, Idle, InlineWr, LaneMode, Mr, Qp, QpConfig, RecvWr, SendOp,
    SendWr, Wc, nic,
};

#[path = "support/alloc.rs"]
mod alloc;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

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
    let mut config = ContextConfig { seed: Some(1.into()), ..ContextConfig::new(&ports).lane(lane) };
    config.endpoint.copy_responses = true;
    let context = Context::open(ports, config).unwrap();
    let pd = context.create_pd().unwrap();
    let cq = context.create_cq(256).unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE;
    let mr = pd.register((OUTSTANDING * MESSAGE_BYTES) as usize, access).unwrap();
    let config = QpConfig { max_inline: 32, max_send_sge: 4, mpr: 32, ..QpConfig::default() };
    let qp = Qp::create(&pd, &cq, &cq, &config).unwrap();
    Side { context, cq, mr, qp }
}

/// Posts `count` messages of these kinds in turn, never more than [`OUTSTANDING`] at a time.
fn stream(left: &mut Side, right: &mut Side, kinds: &[Kind], count: u32) {
    let (mut posted, mut done, mut receives) = (0, 0, 0);
    let mut seen = [Wc::default(); 32];
    while done < count {
        while right.qp.recvs_outstanding() < 2 * OUTSTANDING {
            right.qp.post_recv(RecvWr::empty(receives)).unwrap();
            receives += 1;
        }
        while posted < count && left.qp.sends_outstanding() < OUTSTANDING {
            post(left, right, kinds[posted as usize % kinds.len()], posted);
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

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Inline,
    Immediate,
    /// The response is sent again from a copy.
    Read,
    /// Of four elements, the first of which have these lengths.
    Gather([u32; 3]),
}

fn post(left: &mut Side, right: &Side, kind: Kind, number: u32) {
    let offset = number % OUTSTANDING * MESSAGE_BYTES;
    let remote = right.mr.remote().at(u64::from(offset), u64::from(MESSAGE_BYTES)).unwrap();
    let wr_id = u64::from(number);
    let local = left.mr.sge(offset as usize, MESSAGE_BYTES).unwrap();
    match kind {
        Kind::Gather([one, two, three]) => {
            let part = |from: u32, len| left.mr.sge((offset + from) as usize, len).unwrap();
            let last = one + two + three;
            let local =
                &[part(0, one), part(one, two), part(one + two, three), part(last, MESSAGE_BYTES - last)];
            left.qp.post_gather(GatherWr {
                wr_id,
                op: SendOp::Write,
                local,
                remote,
                signaled: true,
                fence: false,
            })
        }
        Kind::Plain => left.qp.post_send(SendWr {
            wr_id,
            op: SendOp::Write,
            local,
            remote,
            signaled: true,
            fence: false,
        }),
        Kind::Read => {
            left.qp.post_send(SendWr { wr_id, op: SendOp::Read, local, remote, signaled: true, fence: false })
        }
        Kind::Inline => {
            let wr = InlineWr { wr_id, op: SendOp::Write, remote, signaled: true, fence: false };
            left.qp.post_send_inline(b"inline bytes", wr)
        }
        Kind::Immediate => left.qp.post_send(SendWr {
            wr_id,
            op: SendOp::WriteWithImm(number),
            local,
            remote,
            signaled: true,
            fence: false,
        }),
    }
    .unwrap();
}

/// Rounds that are judged, every one of them, after a first one to warm up.
const ROUNDS: u32 = 20;

/// The first round copies nothing together, as its elements end where packets do: the room for whole packets is there
/// from the start.
const WARM_UP: [Kind; 5] = [Kind::Plain, Kind::Inline, Kind::Immediate, Kind::Read, Kind::Gather([4096; 3])];

/// Packets of one element, of two and of three.
const JUDGED: [Kind; 5] =
    [Kind::Plain, Kind::Inline, Kind::Immediate, Kind::Read, Kind::Gather([100, 50, 9000])];

/// Allocations for a packet that is sent again. Nothing is lost here, but the machine may pause a thread for so long that
/// tail probes are sent. A repeat is remembered in a `BTreeMap` and so may be the path of the earlier copy: each may split
/// a leaf and make a node above it.
const PER_REPEAT: u64 = 4;

/// Rings that wait for the first time that a pause of a thread puts so much out of order, or lets so many answers wait,
/// and how often each doubles until it has its full size. Counted over all rounds. A lane in the caller's thread is not
/// interrupted in the middle of a round trip, so its rings have their sizes after the first round.
const GROWTH: u64 = 2 * 4 * 4;

/// What a number of rounds took.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    allocations: u64,
    packets: u64,
    /// Packets sent again.
    repeats: u64,
}

impl Cost {
    /// Allocations that repeats do not account for.
    fn unexplained(&self) -> u64 {
        self.allocations.saturating_sub(PER_REPEAT * self.repeats)
    }
}

/// What each of [`ROUNDS`] rounds of `count` messages took. A round has the repeats of the one before, too, as answers to
/// them may be late.
fn costs(lanes: [LaneMode; 2], count: u32) -> Vec<Cost> {
    let (left, right) = loopback::pair(4, LoopbackConfig::default());
    let (mut left, mut right) = (side(left, lanes[0]), side(right, lanes[1]));
    left.qp.connect(&right.qp.info().unwrap()).unwrap();
    right.qp.connect(&left.qp.info().unwrap()).unwrap();
    let mut before = Cost::default();
    let mut rounds = Vec::with_capacity(ROUNDS as usize + 1);
    for round in 0..=ROUNDS {
        let allocated = alloc::allocations();
        let kinds = if round == 0 { &WARM_UP } else { &JUDGED };
        stream(&mut left, &mut right, kinds, count);
        let allocations = alloc::allocations() - allocated;
        let counters = left.context.counters();
        let now = Cost {
            allocations,
            packets: right.context.lane_counters().rx_frames,
            repeats: counters.tx_retransmits + counters.tx_tail_probes,
        };
        rounds.push(Cost {
            packets: now.packets - before.packets,
            repeats: now.repeats - before.repeats,
            ..now
        });
        before = now;
    }
    let pairs = rounds.windows(2);
    pairs.map(|pair| Cost { repeats: pair[0].repeats + pair[1].repeats, ..pair[1] }).collect()
}

#[test]
fn nothing_allocates_after_warm_up() {
    let thread = LaneMode::Thread { core: None, idle: Idle::Yield };
    for (lanes, growth) in [([LaneMode::Inline; 2], 0), ([thread; 2], GROWTH)] {
        let rounds = costs(lanes, 6000);
        println!("{lanes:?}: {rounds:?}");
        assert!(
            rounds.iter().all(|round| round.packets > 6000 * 3),
            "packets were to be counted: {rounds:?}"
        );
        let unexplained: u64 = rounds.iter().map(Cost::unexplained).sum();
        assert!(unexplained <= growth, "{unexplained} allocations, lanes {lanes:?}: {rounds:#?}");
    }
}
