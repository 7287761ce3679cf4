//! Requests of several elements, through the verbs API.

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{
    Access, BadWr, Extensions, GatherWr, LaneMode, MAX_SGE, Mr, PostError, Qp, QpConfig, QpState, RecvWr,
    RemoteAddr, SendOp, Sge, VerbsError, WcStatus,
};

use crate::connected_pair::{Side, THREAD, connect, faulty, side, until};

/// Regions that elements are taken from, each with bytes of its own.
const REGIONS: usize = 16;
const REGION_LEN: usize = 10_000;
/// Where a request goes, whatever its length.
const CELL: usize = 24_000;

fn byte(region: usize, at: usize) -> u8 {
    (region * 53 + at / 3 + at * 7) as u8
}

fn sources(side: &Side) -> Vec<Mr> {
    let bytes = |region| (0..REGION_LEN).map(|at| byte(region, at)).collect();
    (0..REGIONS).map(|region| side.pd.register_vec(bytes(region), Access::LOCAL_READ).unwrap()).collect()
}

/// The elements of a request, by region, first byte and length: any number of them, from a byte to several packets.
fn parts(number: usize) -> Vec<(usize, usize, usize)> {
    let count = 1 + number * 7 % MAX_SGE as usize;
    let len = |n: usize| {
        [1, 64, 0, 700, 4096, 3 * (number + n), 9000][(number * 5 + n) % 7]
            .clamp(usize::from(n == 0), CELL / count)
    };
    (0..count).map(|n| ((number + 3 * n) % REGIONS, (number * 11 + n * 13) % 900, len(n))).collect()
}

fn sges(sources: &[Mr], parts: &[(usize, usize, usize)]) -> Vec<Sge> {
    parts.iter().map(|&(region, at, len)| sources[region].sge(at, len as u32).unwrap()).collect()
}

fn expected(parts: &[(usize, usize, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|&(region, at, len)| (at..at + len).map(move |at| byte(region, at))).collect()
}

/// Both sides on ports that lose packets, and the target of the right one. Which packets are lost depends on how threads interleave; the loss
/// is high enough that a run always loses some.
fn two_sides(lane: LaneMode, config: &QpConfig) -> (Side, Side, Mr) {
    let (left, right) = loopback::pair(2, LoopbackConfig::default());
    let left = side(faulty(left, "loss=15%", 5), lane, config);
    let right = side(faulty(right, "loss=15%", 6), lane, config);
    let target = right.pd.register(CELL * 60, Access::REMOTE_WRITE).unwrap();
    (left, right, target)
}

/// Alone, in lists, and by a handle for several threads; with more of them than the lane's ring takes.
fn bytes_come_together(lane: LaneMode) {
    const COUNT: usize = 60;
    let config = QpConfig { max_send_wr: 40, max_send_sge: MAX_SGE, ..QpConfig::default() };
    let (mut left, mut right, target) = two_sides(lane, &config);
    connect(&mut left, &mut right);
    let sources = sources(&left);
    let lists: Vec<_> = (0..COUNT).map(parts).collect();
    let locals: Vec<_> = lists.iter().map(|parts| sges(&sources, parts)).collect();
    let wrs: Vec<_> = (0..COUNT)
        .map(|number| {
            let len = expected(&lists[number]).len() as u64;
            assert!(len > 0, "request {number} has no bytes");
            let op = if number % 4 == 0 { SendOp::WriteWithImm(number as u32) } else { SendOp::Write };
            let remote = target.remote().at((number * CELL) as u64, len).unwrap();
            GatherWr {
                wr_id: number as u64,
                op,
                local: &locals[number],
                remote,
                signaled: true,
                fence: false,
            }
        })
        .collect();
    right.qp.post_recvs(&[RecvWr::empty(0); COUNT / 4]).unwrap();
    let (qp, poster) = left.qp.share();
    left.qp = qp;
    let one = |posted: Result<(), _>| posted.map(|()| 1).map_err(|error| BadWr { index: 0, error });
    let (mut posted, mut done) = (0, 0);
    while done < COUNT {
        let rest = &wrs[posted..];
        let result = match posted % 3 {
            _ if rest.is_empty() => Ok(0),
            0 => poster.post_gathers(&rest[..rest.len().min(19)]).map(|()| rest.len().min(19)),
            1 => left.qp.post_gathers(rest).map(|()| rest.len()),
            _ if posted % 2 == 0 => one(poster.post_gather(rest[0])),
            _ => one(left.qp.post_gather(rest[0])),
        };
        posted += result.unwrap_or_else(|bad| {
            assert_eq!(bad.error, PostError::QueueFull { max: 40 });
            bad.index
        });
        let wc = until("a completion", || {
            right.context.poll();
            left.context.poll();
            left.cq.poll_one().unwrap()
        });
        assert_eq!((wc.wr_id, wc.status), (done as u64, WcStatus::Success));
        assert_eq!(wc.byte_len as usize, expected(&lists[done]).len());
        done += 1;
    }
    for (number, parts) in lists.iter().enumerate() {
        let mut cell = vec![0; CELL];
        target.read_at(number * CELL, &mut cell).unwrap();
        let (sent, rest) = cell.split_at(expected(parts).len());
        assert!(sent == expected(parts), "request {number}: {parts:?}");
        assert!(rest.iter().all(|&byte| byte == 0), "beyond request {number}: {parts:?}");
    }
    assert!(left.context.counters().tx_retransmits > 0, "nothing was lost");
    for mr in sources {
        mr.deregister().unwrap();
    }
}

#[test]
fn bytes_come_together_on_a_lane_inside_the_caller() {
    bytes_come_together(LaneMode::Inline);
}

#[test]
fn bytes_come_together_on_a_lane_with_a_thread() {
    bytes_come_together(THREAD);
}

const fn to(remote: RemoteAddr, local: &[Sge]) -> GatherWr<'_> {
    GatherWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true, fence: false }
}

#[test]
fn what_is_no_message_is_refused_at_once() {
    let extensions = Extensions::NONE;
    let config = QpConfig { max_send_wr: 2, max_send_sge: 3, extensions, ..QpConfig::default() };
    let (mut left, mut right, target) = two_sides(LaneMode::Inline, &config);
    let sge = left.mr.sge(0, 10).unwrap();
    let (empty, huge) = (Sge { len: 0, ..sge }, Sge { len: u32::MAX, ..sge });
    let target = target.remote().at(0, 1).unwrap();
    assert_eq!(left.qp.post_gather(to(target, &[sge; 2])), Err(PostError::WrongState(QpState::Reset)));
    connect(&mut left, &mut right);
    let many = PostError::TooManySges { count: 4, max: 3 };
    assert_eq!(left.qp.post_gather(to(target, &[sge; 4])), Err(many));
    assert_eq!(left.qp.post_gather(to(target, &[empty, sge, empty, empty])), Err(many));
    assert!(many.to_string().contains("max_send_sge"), "{many}");
    assert_eq!(left.qp.post_gather(to(target, &[])), Err(PostError::Empty));
    assert_eq!(left.qp.post_gather(to(target, &[empty; 3])), Err(PostError::Empty));
    let len = 2 * u64::from(u32::MAX);
    assert_eq!(left.qp.post_gather(to(target, &[huge, empty, huge])), Err(PostError::TooLong { len }));
    assert_eq!(left.qp.sends_outstanding(), 0);
    let (one, two) = ([sge], [sge; 2]);
    let list = [&two[..], &one, &two].map(|local| to(target, local));
    let full = PostError::QueueFull { max: 2 };
    assert_eq!(left.qp.post_gathers(&list), Err(BadWr { index: 2, error: full }));
    assert_eq!(left.qp.post_gather(to(target, &[sge; 2])), Err(full));

    for (max_send_sge, is_taken) in [(0, false), (1, true), (MAX_SGE, true), (MAX_SGE + 1, false)] {
        let made = Qp::create(&left.pd, &left.cq, &left.cq, &QpConfig { max_send_sge, ..config.clone() });
        let named = made.as_ref().err().is_none_or(|error| error.to_string().contains("max_send_sge"));
        assert_eq!((made.is_ok(), named), (is_taken, true), "{max_send_sge}");
    }
}

/// A queue pair for one element takes a list of one.
#[test]
fn one_element_needs_no_room_for_several() {
    let (mut left, mut right, target) = two_sides(LaneMode::Inline, &QpConfig::default());
    connect(&mut left, &mut right);
    let sge = left.mr.sge(0, 300).unwrap();
    let remote = target.remote().at(0, 300).unwrap();
    left.qp.post_gather(to(remote, &[sge])).unwrap();
    let wc = until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 300));
}

/// Every element's memory is in use until the request is done, also that of the last.
#[test]
fn a_region_of_any_element_is_in_use() {
    let config = QpConfig { max_send_sge: 3, ..QpConfig::default() };
    let (mut left, mut right, target) = two_sides(LaneMode::Inline, &config);
    connect(&mut left, &mut right);
    let mut sources = sources(&left);
    sources.truncate(3);
    let local = sges(&sources, &[(0, 0, 5000), (1, 0, 5000), (2, 0, 5000)]);
    let remote = target.remote().at(0, 15_000).unwrap();
    left.qp
        .post_gather(GatherWr {
            wr_id: 1,
            op: SendOp::Write,
            local: &local,
            remote,
            signaled: true,
            fence: false,
        })
        .unwrap();
    let sources: Vec<_> = sources
        .into_iter()
        .map(|mr| {
            let (mr, error) = mr.deregister().unwrap_err();
            assert!(matches!(error, VerbsError::Memory(_)), "{error}");
            mr
        })
        .collect();
    let wc = until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    assert!(wc.status.is_success(), "{wc:?}");
    for mr in sources {
        mr.deregister().unwrap();
    }
}
