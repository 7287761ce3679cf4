//! The verbs API on two lanes of one process, joined by the loopback port.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed test is the message"
)]

use std::time::{Duration, Instant};

use spindrift::congestion::CcConfig;
use spindrift::path::PathConfig;
use spindrift::pmd::Port;
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackControl, LoopbackPort};
use spindrift::pmd::udp::{Offload, UdpConfig, UdpPort};
use spindrift::seed::Seed;
use spindrift::verbs::{
    Access, Context, ContextConfig, Cq, CqError, Extensions, FailReason, Idle, InlineWr, LaneMode, Mr, Pd,
    PostError, Qp, QpConfig, QpModify, QpState, RecvWr, SendOp, SendWr, VerbsError, Wc, WcOpcode, WcStatus,
    nic,
};

const THREAD: LaneMode = LaneMode::Thread { core: None, idle: Idle::Yield };

/// Longer than anything here takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_mins(1);

/// One side of a connection with all it needs.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

/// What differs between the tests.
#[derive(Clone)]
struct Setup {
    lanes: [LaneMode; 2],
    planes: usize,
    cq_depth: u32,
    bytes: usize,
    qp: QpConfig,
}

impl Default for Setup {
    fn default() -> Self {
        let qp = QpConfig { max_inline: 64, ..QpConfig::default() };
        Self { lanes: [LaneMode::Inline; 2], planes: 4, cq_depth: 1024, bytes: 1 << 20, qp }
    }
}

impl Setup {
    fn side(&self, ports: Vec<LoopbackPort>, index: usize) -> Side {
        self.side_on(nic(ports), index, 4971)
    }

    fn side_on(&self, ports: Vec<Box<dyn Port>>, index: usize, udp_port: u16) -> Side {
        let mut config = ContextConfig {
            seed: Some((index as u64).into()),
            ..ContextConfig::new(&ports).lane(self.lanes[index])
        };
        config.endpoint.udp_port = udp_port;
        let context = Context::open(ports, config).unwrap();
        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(self.cq_depth).unwrap();
        let mr = pd.register(self.bytes, Access::REMOTE_WRITE).unwrap();
        let qp = Qp::create(&pd, &cq, &cq, &self.qp).unwrap();
        Side { context, pd, cq, mr, qp }
    }

    fn unconnected(&self) -> (Side, Side, Vec<LoopbackControl>) {
        let (left, right) = loopback::pair(self.planes, LoopbackConfig::default());
        let cables = left.iter().map(LoopbackPort::control).collect();
        (self.side(left, 0), self.side(right, 1), cables)
    }

    fn connected(&self) -> (Side, Side) {
        let (mut left, mut right, _) = self.unconnected();
        left.qp.connect(&right.qp.info().unwrap()).unwrap();
        right.qp.connect(&left.qp.info().unwrap()).unwrap();
        (left, right)
    }
}

/// Keys, queue pair numbers and first PSNs of a context with four of each.
fn numbers(seed: Option<Seed>) -> Vec<u32> {
    let (ports, _) = loopback::pair(1, LoopbackConfig::default());
    let ports = nic(ports);
    let config = ContextConfig { seed, ..ContextConfig::new(&ports) };
    let context = Context::open(ports, config).unwrap();
    let pd = context.create_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    let mut numbers = Vec::new();
    for _ in 0..4 {
        let mr = pd.register(64, Access::REMOTE_WRITE).unwrap();
        let qp = Qp::create(&pd, &cq, &cq, &QpConfig::default()).unwrap();
        let info = qp.info().unwrap();
        numbers.extend([mr.rkey(), info.qpn, info.psn]);
    }
    numbers
}

/// Twelve numbers of 24 bits or more: two of them agree by chance in one run of 10^5.
#[test]
fn an_application_that_gives_no_seed_has_numbers_of_its_own() {
    let (one, other) = (numbers(None), numbers(None));
    let mut all = [one, other].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 24, "{all:x?}");
}

#[test]
fn a_fixed_seed_repeats_its_numbers() {
    assert_eq!(numbers(Some(Seed::fixed(5))), numbers(Some(5.into())));
    assert_ne!(numbers(Some(Seed::fixed(5))), numbers(Some(Seed::fixed(6))));
    let (bytes, mut others) = ([7; 32], [7; 32]);
    others[31] = 8;
    assert_eq!(numbers(Some(bytes.into())), numbers(Some(bytes.into())));
    assert_ne!(numbers(Some(bytes.into())), numbers(Some(others.into())));
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + salt * 17) as u8).collect()
}

/// Polls both sides until `done` says so.
fn drive(left: &mut Side, right: &mut Side, what: &str, mut done: impl FnMut(&mut Side, &mut Side) -> bool) {
    #[expect(clippy::disallowed_methods, reason = "real lanes run in real time")]
    let start = Instant::now();
    while !done(left, right) {
        left.context.poll();
        right.context.poll();
        assert!(start.elapsed() < PATIENCE, "{what}: {:?} / {:?}", left.qp.state(), right.qp.state());
    }
}

/// Polls both sides until the left one has so many completions.
fn completions(left: &mut Side, right: &mut Side, count: usize) -> Vec<Wc> {
    let mut seen = Vec::new();
    drive(left, right, "completions", |left, _| {
        seen.extend(left.cq.poll_one().unwrap());
        seen.len() == count
    });
    seen
}

fn write(left: &Side, right: &Side, wr_id: u64, offset: usize, len: u32) -> SendWr {
    SendWr {
        wr_id,
        op: SendOp::Write,
        local: left.mr.sge(offset, len).unwrap(),
        remote: right.mr.remote().at(offset as u64, u64::from(len)).unwrap(),
        signaled: true,
        fence: false,
    }
}

fn statuses(seen: &[Wc]) -> Vec<(u64, WcStatus)> {
    seen.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Writes of many sizes, every third with an immediate; then everything is compared.
fn many_messages(setup: &Setup) {
    let (left, right) = setup.connected();
    many_messages_between(left, right);
}

fn many_messages_between(mut left: Side, mut right: Side) {
    let data = pattern(left.mr.len(), 1);
    left.mr.write_at(0, &data).unwrap();
    let sizes = [1, 2, 3, 64, 255, 4096, 4097, 8192, 100_000, 5, 12_345, 65_536];
    let (mut offset, mut imms) = (0, 0);
    for (i, &len) in sizes.iter().enumerate() {
        let mut wr = write(&left, &right, i as u64, offset, len);
        if i % 3 == 0 {
            right.qp.post_recv(RecvWr::empty(1000 + i as u64)).unwrap();
            wr.op = SendOp::WriteWithImm(0xabc0 + i as u32);
            imms += 1;
        }
        left.qp.post_send(wr).unwrap();
        offset += len as usize;
    }
    let sent = completions(&mut left, &mut right, sizes.len());
    let want: Vec<_> = (0..sizes.len() as u64).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(statuses(&sent), want);
    assert!(sent.iter().zip(sizes).all(|(wc, len)| wc.byte_len == len && wc.opcode == WcOpcode::RdmaWrite));
    let received = completions(&mut right, &mut left, imms);
    for (n, wc) in received.iter().enumerate() {
        let i = 3 * n;
        assert_eq!((wc.wr_id, wc.status), (1000 + i as u64, WcStatus::Success));
        assert_eq!((wc.imm, wc.byte_len), (Some(0xabc0 + i as u32), sizes[i]));
        assert_eq!((wc.opcode, wc.qpn), (WcOpcode::RecvRdmaWithImm, right.qp.qpn()));
    }
    assert_eq!(right.mr.region().first_difference(0, &data[..offset]).unwrap(), None);
    let rest = vec![0; data.len() - offset];
    assert_eq!(right.mr.region().first_difference(offset, &rest).unwrap(), None);
}

#[test]
fn bytes_and_immediates_arrive_on_lanes_inside_the_caller() {
    many_messages(&Setup::default());
}

#[test]
fn bytes_and_immediates_arrive_on_lanes_with_threads() {
    many_messages(&Setup { lanes: [THREAD; 2], ..Setup::default() });
}

#[test]
fn bytes_and_immediates_arrive_between_a_spinning_and_a_napping_lane() {
    let nap = Idle::Nap(Duration::from_micros(100));
    let lanes =
        [LaneMode::Thread { core: Some(0), idle: Idle::Spin }, LaneMode::Thread { core: None, idle: nap }];
    many_messages(&Setup { lanes, planes: 1, ..Setup::default() });
}

#[test]
fn bytes_and_immediates_arrive_over_kernel_sockets() {
    for offload in [Offload::Auto, Offload::Off] {
        let setup = Setup::default();
        let [mut left, mut right] = [0, 1].map(|index| {
            let config = UdpConfig { port: 0, gso: offload, gro: offload, ..UdpConfig::default() };
            let port = UdpPort::open(&config).unwrap();
            let udp_port = port.port();
            setup.side_on(nic(vec![port]), index, udp_port)
        });
        left.qp.connect(&right.qp.info().unwrap()).unwrap();
        right.qp.connect(&left.qp.info().unwrap()).unwrap();
        many_messages_between(left, right);
    }
}

#[test]
fn inline_bytes_may_be_reused_at_once() {
    let (mut left, mut right) = Setup::default().connected();
    let depth = 128;
    for i in 0..3 * depth {
        let bytes = [i as u8; 8];
        let remote = right.mr.remote().at(i * 8, 8).unwrap();
        let wr = InlineWr { wr_id: i, op: SendOp::Write, remote, signaled: false, fence: false };
        let full = Err(PostError::QueueFull { max: depth as u32 });
        let mut posted = full;
        drive(&mut left, &mut right, "room in the queue", |left, _| {
            posted = left.qp.post_send_inline(&bytes, wr);
            posted != full
        });
        posted.unwrap();
    }
    drive(&mut left, &mut right, "all retired", |left, _| left.qp.sends_outstanding() == 0);
    let want: Vec<u8> = (0..3 * depth).flat_map(|i| [i as u8; 8]).collect();
    assert_eq!(right.mr.region().first_difference(0, &want).unwrap(), None);
    assert_eq!(left.cq.poll_one(), Ok(None), "unsignalled requests do not complete");

    let remote = right.mr.remote().at(0, 1).unwrap();
    let wr = InlineWr { wr_id: 0, op: SendOp::Write, remote, signaled: true, fence: false };
    assert_eq!(left.qp.post_send_inline(&[0; 65], wr), Err(PostError::InlineTooLong { len: 65, max: 64 }));
    left.qp.post_send_inline(&[], wr).unwrap();
    assert_eq!(completions(&mut left, &mut right, 1)[0].byte_len, 0);
}

#[test]
fn the_send_queue_is_bounded_and_drains() {
    let qp = QpConfig { max_send_wr: 4, max_recv_wr: 2, sig_all: true, ..QpConfig::default() };
    let (mut left, mut right) = Setup { qp, ..Setup::default() }.connected();
    let wr = write(&left, &right, 0, 0, 10);
    for wr_id in 0..4 {
        left.qp.post_send(SendWr { wr_id, signaled: false, ..wr }).unwrap();
    }
    assert_eq!(left.qp.post_send(wr), Err(PostError::QueueFull { max: 4 }));
    assert_eq!(completions(&mut left, &mut right, 4).len(), 4, "every request signals with sig_all");
    left.qp.post_send(wr).unwrap();
    for wr_id in 0..2 {
        left.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
    }
    assert_eq!(left.qp.post_recv(RecvWr::empty(9)), Err(PostError::QueueFull { max: 2 }));
}

/// Each setting of a queue pair reaches the transport.
#[test]
fn a_queue_pair_is_made_as_it_was_asked_for() {
    let qp = QpConfig {
        path: PathConfig { active: 12, backup: 4, ..PathConfig::new(4) },
        cc: Some(CcConfig::new(400_000_000_000, 8_000, 4_096)),
        psn: Some(0x12_3456),
        msn: 0x789,
        max_mtu: 256,
        mpr: 1,
        max_wimm: 3,
        dynamic_mpr: true,
        max_send_wr: 5,
        max_recv_wr: 6,
        ..QpConfig::default()
    };
    let (left, right) = Setup { qp, ..Setup::default() }.connected();
    let info = left.qp.info().unwrap();
    assert_eq!((info.psn, info.msn, info.mtu), (0x12_3456, 0x789, 256));
    assert_eq!((info.mpr, info.max_wimm, info.dynamic_mpr), (1, 3, true));
    let qpn = left.qp.qpn();
    let (evs, cwnd) = left
        .context
        .with_endpoint(|endpoint| {
            let evs = endpoint.ev_states(qpn).unwrap().count();
            (evs, endpoint.qp_status(qpn).unwrap().cwnd_bytes)
        })
        .unwrap();
    assert_eq!(evs, 16);
    assert!(cwnd < u64::MAX, "none would have no window");
    // What is sent without an answer is as much as the peer granted.
    let wide = QpConfig { mpr: 1, max_mtu: 256, ..QpConfig::default() };
    let (mut left, right_too) = Setup { qp: wide, ..Setup::default() }.connected();
    left.qp.post_send(write(&left, &right_too, 1, 0, 1 << 20)).unwrap();
    for _ in 0..200 {
        left.context.poll();
    }
    let qpn = left.qp.qpn();
    let status = left.context.with_endpoint(|endpoint| endpoint.qp_status(qpn).unwrap()).unwrap();
    // MRC 1.0 section 6.3.1: the window ends before `cack` + 128. A slow machine sends tail probes, too.
    assert_eq!(status.counters.tx_packets - status.counters.tx_repeats, 127);
    drop((right, right_too));
}

/// A peer may send an immediate as soon as it is connected: what was posted in INIT is there for it.
#[test]
fn receives_posted_in_init_meet_the_first_immediates() {
    for lanes in [[LaneMode::Inline; 2], [THREAD; 2]] {
        let qp = QpConfig { max_recv_wr: 3, ..QpConfig::default() };
        let (mut left, mut right, _cables) = Setup { lanes, qp, ..Setup::default() }.unconnected();
        for round in 0..2 {
            right.qp.init().unwrap();
            for wr_id in 0..3 {
                right.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
            }
            assert_eq!(right.qp.post_recv(RecvWr::empty(9)), Err(PostError::QueueFull { max: 3 }));
            assert_eq!(right.qp.state(), (QpState::Init, None));
            right.qp.connect(&left.qp.info().unwrap()).unwrap();
            assert_eq!(right.qp.recvs_outstanding(), 3);
            left.qp.connect(&right.qp.info().unwrap()).unwrap();
            for wr_id in 0..3 {
                let wr = write(&left, &right, wr_id, 0, 10);
                left.qp.post_send(SendWr { op: SendOp::WriteWithImm(wr_id as u32), ..wr }).unwrap();
            }
            let received = completions(&mut right, &mut left, 3);
            let imms: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.status, wc.imm)).collect();
            let want: Vec<_> = (0..3).map(|n| (n, WcStatus::Success, Some(n as u32))).collect();
            assert_eq!(imms, want, "round {round}");
            for side in [&mut left, &mut right] {
                side.qp.modify(QpModify::Reset).unwrap();
                while side.cq.poll_one().unwrap().is_some() {}
            }
        }
    }
}

#[test]
fn going_to_error_flushes_in_order_and_reset_leads_out() {
    let (mut left, mut right) = Setup::default().connected();
    left.qp.post_recv(RecvWr::empty(50)).unwrap();
    for wr_id in 0..3 {
        left.qp.post_send(write(&left, &right, wr_id, 0, 100)).unwrap();
    }
    left.qp.modify(QpModify::Error).unwrap();
    left.qp.post_send(write(&left, &right, 3, 0, 100)).unwrap();
    left.qp.post_recv(RecvWr::empty(51)).unwrap();
    let flushed = completions(&mut left, &mut right, 6);
    let of = |opcode| -> Vec<_> {
        let wanted = flushed.iter().filter(|wc| wc.opcode == opcode);
        wanted.map(|wc| (wc.wr_id, wc.status)).collect()
    };
    let flush = |ids: &[u64]| -> Vec<_> { ids.iter().map(|&id| (id, WcStatus::WrFlushError)).collect() };
    assert_eq!(of(WcOpcode::RdmaWrite), flush(&[0, 1, 2, 3]));
    assert_eq!(of(WcOpcode::RecvRdmaWithImm), flush(&[50, 51]));
    assert_eq!(left.qp.state(), (QpState::Error, Some(FailReason::Requested)));
    assert_eq!((left.qp.sends_outstanding(), left.qp.recvs_outstanding()), (0, 0));

    for side in [&mut left, &mut right] {
        side.qp.post_recv(RecvWr::empty(7)).unwrap();
        side.qp.modify(QpModify::Reset).unwrap();
        assert_eq!(side.qp.recvs_outstanding(), 0);
        while side.cq.poll_one().unwrap().is_some() {}
    }
    left.qp.connect(&right.qp.info().unwrap()).unwrap();
    right.qp.connect(&left.qp.info().unwrap()).unwrap();
    left.qp.post_send(write(&left, &right, 4, 0, 100)).unwrap();
    assert_eq!(statuses(&completions(&mut left, &mut right, 1)), [(4, WcStatus::Success)]);
}

#[test]
fn a_wrong_rkey_fails_the_request_and_writes_nothing() {
    let (mut left, mut right) = Setup::default().connected();
    left.mr.region().fill(0, 100, 0xee).unwrap();
    let mut bad = write(&left, &right, 1, 0, 100);
    bad.remote.rkey ^= 0x5555;
    left.qp.post_send(bad).unwrap();
    left.qp.post_send(write(&left, &right, 2, 200, 100)).unwrap();
    let seen = completions(&mut left, &mut right, 2);
    assert_eq!(statuses(&seen), [(1, WcStatus::RemoteAccessError), (2, WcStatus::WrFlushError)]);
    assert_eq!(left.qp.state().0, QpState::Error);
    assert_eq!(right.qp.state().0, QpState::Error);
    assert_eq!(right.mr.region().first_difference(0, &[0; 200]).unwrap(), None);
}

#[test]
fn a_wrong_lkey_shows_in_the_completion() {
    let (mut left, mut right) = Setup::default().connected();
    let mut bad = write(&left, &right, 1, 0, 100);
    bad.local.lkey ^= 0x5555;
    left.qp.post_send(SendWr { signaled: false, ..bad }).unwrap();
    let seen = completions(&mut left, &mut right, 1);
    assert_eq!(statuses(&seen), [(1, WcStatus::LocalProtectionError)]);
}

#[test]
fn an_immediate_without_a_receive_is_an_error() {
    let qp = QpConfig { extensions: Extensions::NONE, ..QpConfig::default() };
    let (mut left, mut right) = Setup { qp, ..Setup::default() }.connected();
    let wr = write(&left, &right, 1, 0, 100);
    left.qp.post_send(SendWr { op: SendOp::WriteWithImm(1), ..wr }).unwrap();
    let seen = completions(&mut left, &mut right, 1);
    assert_eq!(seen[0].status, WcStatus::RemoteOperationError);
}

#[test]
fn an_overrun_is_reported_after_the_good_completions_and_fails_the_queue_pair() {
    let (mut left, mut right) = Setup { cq_depth: 2, ..Setup::default() }.connected();
    for wr_id in 0..5 {
        left.qp.post_send(write(&left, &right, wr_id, 0, 10)).unwrap();
    }
    drive(&mut left, &mut right, "the overrun", |left, _| left.qp.state().0 == QpState::Error);
    let mut two = [Wc::default(); 8];
    assert_eq!(left.cq.poll(&mut two), Ok(2));
    assert_eq!(statuses(&two[..2]), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert!(left.cq.poll(&mut two).is_err());
    assert!(left.cq.poll_one().is_err(), "for ever");
    assert_eq!(left.context.lane_counters().cq_overruns, 1);
    // Nothing would tell of the completions of a queue pair that is made with it.
    let other = left.context.create_cq(8).unwrap();
    let config = QpConfig::default();
    for (send, recv, name) in
        [(&left.cq, &other, "send completion queue"), (&other, &left.cq, "receive completion queue")]
    {
        let error = Qp::create(&left.pd, send, recv, &config).unwrap_err();
        let VerbsError::CqEnded { name: named, end } = &error else { panic!("{error}") };
        assert_eq!((*named, *end), (name, CqError::Overrun { depth: 2 }));
    }
    Qp::create(&left.pd, &other, &other, &config).unwrap();
}

#[test]
fn deregistering_is_refused_while_a_request_uses_the_memory() {
    let (mut left, mut right) = Setup::default().connected();
    let (source, target) = (left.mr.addr(), right.mr.remote());
    left.qp.post_send(write(&left, &right, 1, 0, 100)).unwrap();
    let (mr, error) = left.mr.deregister().unwrap_err();
    assert!(error.to_string().contains("still use"), "{error}");
    left.mr = mr;
    assert_eq!(completions(&mut left, &mut right, 1)[0].status, WcStatus::Success);
    let lkey = left.mr.lkey();
    left.mr.deregister().unwrap();
    let local = spindrift::verbs::Sge { addr: source, len: 1, lkey };
    let remote = target.at(0, 1).unwrap();
    left.qp
        .post_send(SendWr { wr_id: 2, op: SendOp::Write, local, remote, signaled: true, fence: false })
        .unwrap();
    left.mr = left.pd.register(1, Access::LOCAL_READ).unwrap();
    assert_eq!(completions(&mut left, &mut right, 1)[0].status, WcStatus::LocalProtectionError);
}

#[test]
fn a_dropped_registration_is_kept_until_its_requests_are_done() {
    let (mut left, mut right) = Setup::default().connected();
    let source = left.pd.register_vec(pattern(50_000, 3), Access::LOCAL_READ).unwrap();
    let region = std::sync::Arc::downgrade(source.region());
    let local = source.sge(0, 50_000).unwrap();
    let remote = right.mr.remote().at(0, 50_000).unwrap();
    left.qp
        .post_send(SendWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true, fence: false })
        .unwrap();
    drop(source);
    assert!(region.upgrade().is_some());
    assert_eq!(completions(&mut left, &mut right, 1)[0].status, WcStatus::Success);
    assert_eq!(right.mr.region().first_difference(0, &pattern(50_000, 3)).unwrap(), None);
    assert!(region.upgrade().is_none());
}

/// Changes a configuration.
type Change = fn(&mut QpConfig);

#[test]
fn misuse_is_named() {
    let (mut left, right, _) = Setup::default().unconnected();
    let wr = write(&left, &right, 1, 0, 100);
    assert_eq!(left.qp.post_send(wr), Err(PostError::WrongState(QpState::Reset)));
    assert_eq!(left.qp.post_recv(RecvWr::empty(1)), Err(PostError::WrongState(QpState::Reset)));
    left.qp.init().unwrap();
    left.qp.post_recv(RecvWr::empty(1)).unwrap();
    assert!(left.qp.init().is_err());
    assert!(left.mr.sge(1 << 20, 1).is_err());
    assert!(right.mr.remote().at(1, 1 << 20).is_err());
    assert!(left.context.create_cq(0).is_err());
    let foreign = Qp::create(&left.pd, &right.cq, &left.cq, &QpConfig::default());
    assert!(matches!(foreign, Err(VerbsError::OtherContext(_))));
    let deep = QpConfig { max_send_wr: 1 << 20, ..QpConfig::default() };
    assert!(Qp::create(&left.pd, &left.cq, &left.cq, &deep).is_err());
    // By the names and limits that the caller has set.
    let named = |change: Change| {
        let mut config = QpConfig::default();
        change(&mut config);
        Qp::create(&left.pd, &left.cq, &left.cq, &config).unwrap_err().to_string()
    };
    let cases: [(Change, &str); 5] = [
        (|config| config.max_send_wr = 0, "`max_send_wr` is 0; it must be 1 to 16384"),
        (|config| config.max_recv_wr = 1 << 20, "`max_recv_wr` is 1048576; it must be 0 to 16384"),
        (|config| config.max_send_sge = 17, "`max_send_sge` is 17; it must be 1 to 16"),
        (|config| config.mpr = 0, "`mpr` is 0; it must be 1 to 255 units of 128 PSNs"),
        (|config| config.max_send_wr = 1 << 20, "max_send_wr is 1048576; it must be at most 16384"),
    ];
    for (change, text) in cases {
        assert!(named(change).contains(text), "{text}: {}", named(change));
    }
    let (cq, error) = left.cq.destroy().unwrap_err();
    assert!(matches!(error, VerbsError::CqInUse { queue_pairs: 1 }), "{error}");
    drop(left.qp);
    assert!(cq.destroy().is_ok());
    let none = Context::open(Vec::new(), ContextConfig::new(&[]));
    assert!(none.unwrap_err().to_string().contains("ports"));
}

#[test]
fn the_lane_ends_with_the_last_handle() {
    for lane in [LaneMode::Inline, THREAD] {
        let (left, right, cables) = Setup { lanes: [lane; 2], ..Setup::default() }.unconnected();
        let Side { context, pd, cq, mr, qp } = left;
        drop(context);
        drop(pd);
        drop(cq);
        drop(qp);
        assert!(cables.iter().all(LoopbackControl::is_up), "the registration keeps the lane");
        drop(mr);
        assert!(!cables.iter().any(LoopbackControl::is_up), "the ports are gone");
        drop(right);
    }
}

#[test]
fn a_core_that_is_not_there_is_an_error() {
    let (left, _right) = loopback::pair(1, LoopbackConfig::default());
    let ports = nic(left);
    let lane = LaneMode::Thread { core: Some(1000), idle: Idle::Yield };
    let config = ContextConfig::new(&ports).lane(lane);
    assert!(Context::open(ports, config).unwrap_err().to_string().contains("core 1000"));
}

#[test]
fn a_plane_that_goes_down_is_survived() {
    let (mut left, mut right, cables) = Setup::default().unconnected();
    left.qp.connect(&right.qp.info().unwrap()).unwrap();
    right.qp.connect(&left.qp.info().unwrap()).unwrap();
    let data = pattern(1 << 20, 9);
    left.mr.write_at(0, &data).unwrap();
    for (round, down) in [(0, 1), (1, 2), (2, 0)] {
        left.qp.post_send(write(&left, &right, round, 0, 1 << 20)).unwrap();
        left.context.poll();
        cables[down].set_up(false);
        assert_eq!(completions(&mut left, &mut right, 1)[0].status, WcStatus::Success);
        cables[down].set_up(true);
    }
    assert_eq!(right.mr.region().first_difference(0, &data).unwrap(), None);
}

/// What the peer takes none of cannot be sent. It ends in its turn, behind what was posted before it, and the queue
/// pair fails; the memory of inline sends in flight is not given out again before.
#[test]
fn a_request_that_is_not_taken_ends_in_its_turn() {
    let qp = QpConfig { max_wimm: 0, max_send_wr: 4, max_inline: 64, ..QpConfig::default() };
    let (mut left, mut right) = Setup { qp, ..Setup::default() }.connected();
    left.qp.post_send(write(&left, &right, 1, 0, 500_000)).unwrap();
    left.qp.post_send(SendWr { op: SendOp::WriteWithImm(9), ..write(&left, &right, 2, 0, 8) }).unwrap();
    left.qp.post_send(write(&left, &right, 3, 0, 8)).unwrap();
    let seen = completions(&mut left, &mut right, 3);
    let flushed = WcStatus::WrFlushError;
    assert_eq!(statuses(&seen), [(1, flushed), (2, WcStatus::LocalQpOperationError), (3, flushed)]);
    assert_eq!(left.qp.state(), (QpState::Error, Some(FailReason::LocalWorkRequest)));
    assert_eq!(left.qp.sends_outstanding(), 0);
    assert_eq!(left.context.lane_counters().refused_requests, 1);
}
