//! What queue pairs, contexts and ports say of themselves, on both sides of a connection, and that it is what holds.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spindrift::congestion::CcConfig;
use spindrift::endpoint::PortAddr;
use spindrift::memory::MemoryError;
use spindrift::path::{MAX_EVS, PathConfig};
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::pmd::{LinkState, Medium, Port, PortCaps, RxFrame, TxFrame, forward_to_inner};
use spindrift::verbs::{
    Access, Context, ContextConfig, ControlError, Extensions, FailReason, LaneMode, MAX_CQ_DEPTH, MAX_INLINE,
    Placement, Qp, QpAttr, QpConfig, QpModify, QpState, RecvWr, RetryAttr, RtsAttr, SendOp, SendWr, Sge,
    VerbsError, WrOpcode, nic,
};
use spindrift::wire::{EntropyMode, Psn, StevOrder};

use crate::connected_pair::{Side, THREAD, all_of, complete, connect, pair, side, until, write};
use crate::multi_lane::{Lanes, open, ports};
use crate::panic::Broken;

/// Two sides that differ in all that can differ.
fn unequal() -> (Side, Side) {
    let retry = RtsAttr { timeout: 11, linear_retries: 2, exponential_retries: 4, ..RtsAttr::default() };
    let left = QpConfig {
        max_send_wr: 7,
        max_recv_wr: 5,
        max_inline: 40,
        sig_all: true,
        cc: Some(CcConfig::new(100_000_000_000, 12_000, 4096)),
        max_mtu: 2048,
        psn: Some(0xff_fffe),
        mpr: 20,
        max_wimm: 30,
        dynamic_mpr: true,
        retry,
        ..QpConfig::default()
    };
    let right = QpConfig {
        max_send_wr: 9,
        max_recv_wr: 11,
        max_mtu: 1024,
        psn: Some(500),
        mpr: 10,
        max_wimm: 60,
        dynamic_mpr: true,
        ..QpConfig::default()
    };
    let (one, other) = loopback::pair(2, LoopbackConfig::default());
    (side(nic(one), LaneMode::Inline, &left), side(nic(other), LaneMode::Inline, &right))
}

fn addresses(side: &Side) -> Vec<PortAddr> {
    let ports = side.context.query_ports();
    ports.iter().map(|port| PortAddr { ip: port.ip, mac: port.mac.0 }).collect()
}

fn psns(attr: &QpAttr) -> [Option<u32>; 4] {
    [Some(attr.sq_psn), Some(attr.next_sq_psn), attr.rq_psn, attr.next_rq_psn].map(|psn| psn.map(Psn::get))
}

#[test]
fn a_queue_pair_without_a_connection_says_what_it_was_made_with() {
    let (left, right) = unequal();
    let attr = left.qp.query().unwrap();
    assert_eq!((attr.qpn, attr.state, attr.failure), (left.qp.qpn(), QpState::Reset, None));
    assert_eq!((attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.max_inline, attr.sig_all), (7, 5, 40, true));
    assert_eq!((attr.send_cq, attr.recv_cq), (left.cq.id(), left.cq.id()));
    assert_eq!((attr.peer.as_ref(), attr.path_mtu, attr.rts), (None, 0, None));
    assert_eq!(psns(&attr), [Some(0xff_fffe), Some(0xff_fffe), None, None]);
    assert_eq!((attr.mpr_dest, attr.max_wimm_dest, attr.dynamic_mpr), (20, 30, true));
    assert_eq!((attr.granted_psns, attr.window_psns), (0, 0));
    assert_eq!(attr.cc, CcConfig::new(100_000_000_000, 12_000, 4096));
    let attr = right.qp.query().unwrap();
    assert_eq!(
        (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.max_inline, attr.sig_all),
        (9, 11, 0, false)
    );
    assert_eq!((attr.mpr_dest, attr.max_wimm_dest, psns(&attr)[0]), (10, 60, Some(500)));
}

#[test]
fn both_sides_of_a_connection_say_what_was_agreed() {
    let (mut left, mut right) = unequal();
    right.qp.init().unwrap();
    assert_eq!(right.qp.query().unwrap().state, QpState::Init);
    connect(&mut left, &mut right);
    for (ours, theirs, mpr_dest, max_wimm_dest, sq_psn, rq_psn) in
        [(&left, &right, 20, 30, 0xff_fffe, 500), (&right, &left, 10, 60, 500, 0xff_fffe)]
    {
        let attr = ours.qp.query().unwrap();
        assert_eq!((attr.qpn, attr.state, attr.failure), (ours.qp.qpn(), QpState::Rts, None));
        let peer = attr.peer.as_ref().unwrap();
        assert_eq!((peer.qpn, peer.udp_port), (theirs.qp.qpn(), theirs.qp.info().unwrap().udp_port));
        assert_eq!(peer.ports, addresses(theirs));
        assert_eq!((attr.path_mtu, attr.dynamic_mpr), (1024, true));
        assert_eq!(psns(&attr), [sq_psn, sq_psn, rq_psn, rq_psn].map(Some));
        assert_eq!((attr.mpr_dest, attr.max_wimm_dest), (mpr_dest, max_wimm_dest));
        assert_eq!(attr.granted_psns, u32::from(mpr_dest) * 128);
        let rts = attr.rts.unwrap();
        assert_eq!((rts.mpr, rts.max_wimm, attr.window_psns), (10, 30, 1280));
        assert_eq!((attr.sends_outstanding, attr.recvs_outstanding, attr.inflight_bytes), (0, 0, 0));
    }
    let retry = |side: &Side| side.qp.query().unwrap().rts.unwrap().retry();
    assert_eq!(retry(&left), RetryAttr { timeout: 11, linear_retries: 2, exponential_retries: 4 });
    assert_eq!(retry(&right), RtsAttr::default().retry());
    let cc = left.qp.query().unwrap().cc;
    assert!(cc.mtu_bytes > 1024 && cc.mtu_bytes < 1200, "{cc:?}");
    assert_eq!(right.qp.query().unwrap().cwnd_bytes, u64::MAX);
}

#[test]
fn a_queue_pair_says_how_far_it_has_come() {
    let (mut left, mut right) = unequal();
    connect(&mut left, &mut right);
    for wr_id in 0..3 {
        right.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
    }
    // Posted, and taken in by the query, though nothing has been sent yet.
    let wr = SendWr { op: SendOp::WriteWithImm(1), ..write(&left, &right, 1, 5000) };
    left.qp.post_send(wr).unwrap();
    let attr = left.qp.query().unwrap();
    assert_eq!((attr.sends_outstanding, attr.counters.tx_packets, psns(&attr)[1]), (1, 0, Some(0xff_fffe)));
    assert_eq!(right.qp.query().unwrap().recvs_outstanding, 3);
    // In flight: five packets of at most 1024 bytes, over the end of the numbers.
    left.context.poll();
    let attr = left.qp.query().unwrap();
    assert_eq!((attr.sends_outstanding, attr.counters.tx_packets, psns(&attr)[1]), (1, 5, Some(3)));
    assert_eq!((attr.counters.tx_bytes, attr.smoothed_rtt_ns, attr.min_rtt_ns), (5000, 0, 0));
    assert!((5000..6000).contains(&attr.inflight_bytes), "{}", attr.inflight_bytes);
    until("a completion", || {
        right.context.poll();
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    let attr = left.qp.query().unwrap();
    assert_eq!((attr.sends_outstanding, attr.inflight_bytes, psns(&attr)[0]), (0, 0, Some(0xff_fffe)));
    assert!(attr.min_rtt_ns > 0 && attr.min_rtt_ns <= attr.smoothed_rtt_ns, "{attr:?}");
    let attr = right.qp.query().unwrap();
    assert_eq!(psns(&attr), [500, 500, 0xff_fffe, 3].map(Some));
    assert_eq!((attr.recvs_outstanding, attr.counters.rx_packets, attr.counters.rx_bytes), (2, 5, 5000));
}

#[test]
fn a_failed_queue_pair_says_why_and_keeps_what_was_agreed_until_it_is_reset() {
    let (mut left, mut right) = unequal();
    connect(&mut left, &mut right);
    let before = left.qp.query().unwrap();
    left.qp.post_recv(RecvWr::empty(1)).unwrap();
    left.qp.modify(QpModify::Error).unwrap();
    let attr = left.qp.query().unwrap();
    let failure = attr.failure.unwrap();
    assert_eq!((failure.reason, failure.qpn), (FailReason::Requested, before.qpn));
    assert_eq!(failure.peer_qpn, right.qp.qpn());
    assert_eq!(attr, QpAttr { state: QpState::Error, failure: Some(failure), ..before.clone() });

    left.qp.modify(QpModify::Reset).unwrap();
    let attr = left.qp.query().unwrap();
    assert_ne!(attr.qpn, before.qpn);
    assert_eq!((attr.qpn, attr.state, attr.failure), (left.qp.qpn(), QpState::Reset, None));
    assert_eq!((attr.peer.as_ref(), attr.path_mtu, attr.rts), (None, 0, None));
    assert_eq!((attr.cap, attr.max_inline, attr.sig_all), (before.cap, 40, true));
    assert_eq!(psns(&attr)[2..], [None, None]);
}

#[test]
fn a_shared_queue_pair_answers_too_and_none_within_a_control_call() {
    let (left, _right) = unequal();
    let Side { qp, context, .. } = left;
    let (qp, _poster) = qp.share();
    assert_eq!(qp.query().unwrap().max_inline, 40);
    let nested = context.with_endpoint(|_| (qp.query().err(), context.query_device().err())).unwrap();
    let is_nested = |error| matches!(error, Some(VerbsError::Control(ControlError::Nested)));
    assert!(is_nested(nested.0) && is_nested(nested.1));
}

/// The verbs object and its lane agree on the state after a change in RTS, refused or not.
#[test]
fn attributes_change_in_rts_until_the_next_reset() {
    let hurry = RetryAttr { timeout: 3, linear_retries: 1, exponential_retries: 0 };
    for lane in [LaneMode::Inline, THREAD] {
        let (mut left, mut right) = pair(1, lane);
        left.qp.modify(QpModify::Retry(hurry)).unwrap();
        let before = left.qp.query().unwrap();
        assert_eq!(before.rts, Some(RtsAttr::default().with_retry(hurry)));
        let refused = left.qp.modify(QpModify::Retry(RetryAttr { timeout: 25, ..hurry })).unwrap_err();
        assert_eq!(refused.to_string(), "attribute `timeout` is 25; it must be 1 to 24");
        let bad = CcConfig { base_rtt_ns: 0, ..CcConfig::new(1_000_000_000, 1, 4096) };
        let refused = left.qp.modify(QpModify::Congestion(Box::new(bad))).unwrap_err();
        assert!(refused.to_string().contains("base_rtt_ns"), "{refused}");
        assert_eq!((left.qp.query().unwrap(), left.qp.state().0), (before, QpState::Rts));
        let cc = CcConfig::new(1_000_000_000, 1_000_000, 4096);
        left.qp.modify(QpModify::Congestion(Box::new(cc))).unwrap();
        assert_eq!(left.qp.query().unwrap().cc.link_rate_bps, 1_000_000_000);
        left.qp.modify(QpModify::Retry(RtsAttr::default().retry())).unwrap();
        let wr = write(&left, &right, 1, 5000);
        complete(&mut left, &right, wr);

        left.qp.modify(QpModify::Retry(hurry)).unwrap();
        for side in [&mut left, &mut right] {
            side.qp.modify(QpModify::Reset).unwrap();
        }
        let refused = left.qp.modify(QpModify::Retry(hurry)).unwrap_err();
        assert!(refused.to_string().contains("retry attributes can be changed in RTS only"), "{refused}");
        assert_eq!(left.qp.query().unwrap().state, QpState::Reset);
        connect(&mut left, &mut right);
        let attr = left.qp.query().unwrap();
        assert_eq!((attr.rts, attr.cc), (Some(RtsAttr::default()), right.qp.query().unwrap().cc));
    }
}

/// A context of two lanes with small limits.
fn small() -> Context {
    let lanes = ports(2, 3).0;
    let mut config = ContextConfig::new(&lanes[0]).lanes([LaneMode::Inline; 2]);
    let limits = &mut config.endpoint.limits;
    (limits.max_qps, limits.max_send_wr, limits.max_recv_wr, limits.max_regions) = (2, 6, 5, 3);
    limits.window_budget_psns = 4096;
    (config.endpoint.trimming, config.endpoint.icrc, config.endpoint.oor_nack) = (false, false, true);
    Context::open_lanes(lanes, config).unwrap()
}

#[test]
fn a_context_says_what_its_settings_are() {
    let attr = small().query_device().unwrap();
    assert_eq!((attr.lanes, attr.planes), (2, 3));
    assert_eq!((attr.max_qps, attr.max_qps_per_lane, attr.qps), (4, 2, 0));
    assert_eq!((attr.max_send_wr, attr.max_recv_wr, attr.max_inline), (6, 5, MAX_INLINE));
    assert_eq!((attr.max_cq_depth, attr.max_regions, attr.regions), (MAX_CQ_DEPTH, 3, 0));
    assert_eq!((attr.msg_len, attr.mpr, attr.max_wimm), (0..=u32::MAX, 1..=255, 0..=65_535));
    assert_eq!((attr.window_budget_psns, attr.max_evs), (4096, MAX_EVS));
    assert_eq!((attr.entropy, attr.entropy_width_bits), (EntropyMode::Stev(StevOrder::SportHigh), 32));
    assert_eq!((attr.opcodes.len(), attr.caps.extensions), (8, Extensions::ALL));
    assert_eq!(attr.max_rd_atomic, 0..=255);
    let caps = attr.caps;
    assert_eq!((caps.trimming, caps.icrc, caps.dynamic_mpr, caps.oor_nack), (false, false, true, true));
    let usual = open(ports(1, 1).0, LaneMode::Inline).query_device().unwrap();
    let caps = usual.caps;
    assert_eq!((caps.trimming, caps.icrc, caps.dynamic_mpr, caps.oor_nack), (true, true, true, false));
}

fn name_of(error: VerbsError) -> String {
    match error {
        VerbsError::OutOfRange { name, .. } => name.to_owned(),
        other => other.to_string(),
    }
}

/// To each limit, and one beyond.
#[test]
fn a_limit_that_is_told_is_the_limit_that_holds() {
    let context = small();
    let attr = context.query_device().unwrap();
    let pd = context.create_pd().unwrap();
    let cq = context.create_cq(4).unwrap();
    let make = |config: &QpConfig| Qp::create(&pd, &cq, &cq, config);
    let full = QpConfig {
        max_send_wr: attr.max_send_wr,
        max_recv_wr: attr.max_recv_wr,
        max_send_sge: attr.max_send_sge,
        max_inline: attr.max_inline,
        mpr: *attr.mpr.end(),
        max_wimm: *attr.max_wimm.end(),
        path: PathConfig { active: attr.max_evs as u16 - 3, backup: 0, ..PathConfig::new(1) },
        ..QpConfig::default()
    };
    drop(make(&full).unwrap());
    let least =
        QpConfig { max_send_wr: 1, max_recv_wr: 0, mpr: *attr.mpr.start(), max_wimm: 0, ..full.clone() };
    drop(make(&least).unwrap());
    for (config, named) in [
        (QpConfig { max_send_wr: attr.max_send_wr + 1, ..full.clone() }, "max_send_wr"),
        (QpConfig { max_send_wr: 0, max_inline: 0, ..full.clone() }, "max_send_wr"),
        (QpConfig { max_recv_wr: attr.max_recv_wr + 1, ..full.clone() }, "max_recv_wr"),
        (QpConfig { max_send_sge: attr.max_send_sge + 1, ..full.clone() }, "max_send_sge"),
        (QpConfig { max_send_sge: 0, ..full.clone() }, "max_send_sge"),
        (QpConfig { max_inline: attr.max_inline + 1, ..full.clone() }, "max_inline"),
        (QpConfig { mpr: attr.mpr.start() - 1, ..full.clone() }, "mpr"),
        (
            QpConfig {
                path: PathConfig { active: attr.max_evs as u16 + 1, backup: 0, ..PathConfig::new(1) },
                ..full.clone()
            },
            "active",
        ),
    ] {
        let refused = name_of(make(&config).unwrap_err());
        assert!(refused.contains(named), "{named}: {refused}");
    }
    assert_eq!(context.query_device().unwrap().qps, 0);

    let plain = QpConfig { max_send_wr: 1, max_recv_wr: 1, ..QpConfig::default() };
    let mut qps = Vec::new();
    for made in 0..attr.max_qps {
        assert_eq!(context.query_device().unwrap().qps, made);
        qps.push(make(&plain).unwrap());
    }
    assert_eq!(context.query_device().unwrap().qps, attr.max_qps);
    for lane in 0..attr.lanes {
        let error = make(&QpConfig { lane: Placement::On(lane), ..plain.clone() }).unwrap_err();
        assert!(error.to_string().contains("max_qps"), "{error}");
    }
    // A failed one still counts, a dropped one does not.
    qps[0].modify(QpModify::Error).unwrap();
    assert_eq!(context.query_device().unwrap().qps, attr.max_qps);
    qps.pop();
    assert_eq!(context.query_device().unwrap().qps, attr.max_qps - 1);

    let mut regions = Vec::new();
    for made in 0..attr.max_regions {
        assert_eq!(context.query_device().unwrap().regions, made);
        regions.push(pd.register(1, Access::LOCAL_READ).unwrap());
    }
    let error = pd.register(1, Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, VerbsError::Memory(MemoryError::TooMany { max: 3 })), "{error}");
    regions.clear();
    assert_eq!(context.query_device().unwrap().regions, 0);

    // Depth is a promise that takes memory only when it is used.
    assert_eq!(context.create_cq(attr.max_cq_depth).unwrap().depth(), attr.max_cq_depth);
    for depth in [0, attr.max_cq_depth + 1] {
        assert_eq!(name_of(context.create_cq(depth).unwrap_err()), "depth");
    }
}

#[test]
fn each_opcode_of_the_device_can_be_posted_without_bytes() {
    let (mut left, mut right) = pair(1, LaneMode::Inline);
    let attr = left.context.query_device().unwrap();
    (0..4).for_each(|wr_id| right.qp.post_recv(RecvWr::empty(wr_id)).unwrap());
    let granted = right.pd.register(64, Access::REMOTE_INVALIDATE).unwrap();
    let counter = right.pd.register(64, Access::REMOTE_ATOMIC).unwrap();
    let found = left.pd.register(64, Access::LOCAL_WRITE).unwrap();
    let ops = [
        SendOp::Write,
        SendOp::WriteWithImm(1),
        SendOp::Send,
        SendOp::SendWithImm(1),
        SendOp::SendWithInvalidate(granted.remote().rkey),
        SendOp::Read,
        SendOp::CompareSwap { compare: 0, swap: 1 },
        SendOp::FetchAdd(1),
    ];
    assert_eq!(ops.map(WrOpcode::from), *attr.opcodes);
    assert_eq!(*attr.msg_len.start(), 0);
    for op in ops {
        let mut wr = SendWr { op, local: Sge::EMPTY, ..write(&left, &right, 1, 1) };
        if op.is_atomic() {
            (wr.local, wr.remote) = (found.sge(0, 8).unwrap(), counter.remote().at(0, 8).unwrap());
        }
        complete(&mut left, &right, wr);
    }
}

/// The settings' limit of regions has one of its own.
#[test]
fn as_many_regions_are_told_as_there_can_be() {
    for (set, told) in [(0, 1), (1 << 20, 1 << 20), ((1 << 20) + 1, 1 << 20)] {
        let ports = nic(loopback::pair(1, LoopbackConfig::default()).0);
        let mut config = ContextConfig::new(&ports);
        config.endpoint.limits.max_regions = set;
        assert_eq!(Context::open(ports, config).unwrap().query_device().unwrap().max_regions, told);
    }
}

/// A lane whose ports take smaller frames bounds what is told for all, and its own queue pairs.
#[test]
fn the_path_mtu_is_what_every_lane_takes() {
    let loopback = |frame_max| {
        let ports = loopback::pair(2, LoopbackConfig { frame_max, ..LoopbackConfig::default() });
        nic(ports.0)
    };
    let lanes: Lanes = vec![loopback(3000), loopback(1500)];
    let context = open(lanes, LaneMode::Inline);
    let attr = context.query_device().unwrap();
    let mtus: Vec<_> = context.query_ports().iter().map(|port| (port.max_frame, port.max_mtu)).collect();
    assert_eq!((mtus[0].0, mtus[2].0), (3000, 1500));
    assert_eq!((mtus[0], mtus[2]), (mtus[1], mtus[3]));
    assert_eq!(mtus[0].1 - mtus[2].1, 1500);
    assert_eq!(attr.path_mtu, 256..=mtus[2].1);
    let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(4).unwrap());
    for lane in 0..2 {
        let config = QpConfig { lane: Placement::On(lane), max_mtu: 0, ..QpConfig::default() };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).unwrap();
        let info = qp.info().unwrap();
        assert_eq!(info.mtu, mtus[2 * lane].1);
        qp.connect(&info).unwrap();
        assert_eq!(qp.query().unwrap().path_mtu, info.mtu);
    }
}

#[test]
fn a_port_says_what_it_is_and_what_went_through() {
    for mode in [LaneMode::Inline, THREAD] {
        let (mine, theirs) = loopback::pair(2, LoopbackConfig::default());
        let caps: Vec<_> = mine.iter().map(|port| port.caps().clone()).collect();
        let cable = mine[1].control();
        let (mut left, mut right) =
            (side(nic(mine), mode, &QpConfig::default()), side(nic(theirs), mode, &QpConfig::default()));
        connect(&mut left, &mut right);
        for (plane, caps) in caps.iter().enumerate() {
            let port = left.context.query_port(0, plane).unwrap();
            assert_eq!((port.lane, port.plane, &port.name), (0, plane, &caps.name));
            assert_eq!((port.ip, port.mac, port.max_frame), (caps.local_ip, caps.mac, caps.max_frame));
            assert_eq!((port.max_burst, &port.source_ports), (caps.max_burst, &caps.source_ports));
            assert_eq!(port.same_path_batch, caps.same_path_batch);
            assert_eq!((port.holds_payloads, &port.notes), (caps.holds_payloads, &caps.notes));
            assert_eq!(port.link, LinkState::Up);
        }
        let wr = write(&left, &right, 1, 40_000);
        complete(&mut left, &right, wr);
        let frames = left.context.query_ports().iter().map(|port| port.counters.tx_frames).sum::<u64>();
        assert!(frames >= 10, "{frames}");
        assert!(left.context.query_ports().iter().all(|port| port.counters.tx_frames > 0));

        let links =
            |context: &Context| context.query_ports().iter().map(|port| port.link).collect::<Vec<_>>();
        for down in [true, false] {
            cable.set_up(!down);
            let want = [LinkState::Up, if down { LinkState::Down } else { LinkState::Up }];
            until("the link's state", || {
                left.context.poll();
                (links(&left.context) == want).then_some(())
            });
        }
    }
}

/// A port that finds out while it runs what a user should know.
struct Noting {
    inner: LoopbackPort,
    caps: PortCaps,
    refused: Arc<AtomicBool>,
}

impl Port for Noting {
    forward_to_inner!(link, tx_room, unsent, flush, reap, recall, counters);

    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        self.inner.tx_burst(now_ns, frames)
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        if self.refused.swap(false, Ordering::Relaxed) {
            self.caps.notes.push("refused while running".to_owned());
        }
        self.inner.rx_burst(now_ns, max, sink)
    }
}

/// A kernel may refuse an offload only when it is used.
#[test]
fn what_a_port_notes_while_it_runs_is_told() {
    for mode in [LaneMode::Inline, THREAD] {
        let refused = Arc::new(AtomicBool::new(false));
        let noting = |(plane, inner): (usize, LoopbackPort)| {
            let mut caps = inner.caps().clone();
            caps.notes = vec![format!("noted at open by port {plane}")];
            let refused = if plane == 1 { Arc::clone(&refused) } else { Arc::default() };
            Noting { inner, caps, refused }
        };
        let (ours, _theirs) = loopback::pair(2, LoopbackConfig::default());
        let context = open(vec![nic(ours.into_iter().enumerate().map(noting).collect())], mode);
        let notes = |plane| context.query_port(0, plane).unwrap().notes;
        let at_open = [0, 1].map(|plane| vec![format!("noted at open by port {plane}")]);
        assert_eq!([notes(0), notes(1)], at_open);
        refused.store(true, Ordering::Relaxed);
        let news = until("the note", || {
            context.poll();
            let now = [notes(0), notes(1)];
            (now != at_open).then_some(now)
        });
        let [first, mut second] = at_open;
        second.push("refused while running".to_owned());
        assert_eq!(news, [first, second]);
    }
}

fn on(media: &[Medium]) -> Vec<Box<dyn Port>> {
    let (ours, _theirs) = loopback::pair(media.len(), LoopbackConfig::default());
    let port = |(inner, &medium): (LoopbackPort, &Medium)| {
        let caps = PortCaps { medium, ..inner.caps().clone() };
        Noting { inner, caps, refused: Arc::default() }
    };
    nic(ours.into_iter().zip(media).map(port).collect())
}

/// Decision 31. Within a host there is nobody to share a way with, and nothing limits a queue pair that does not ask for it.
#[test]
fn congestion_control_is_on_where_a_port_reaches_a_network() {
    let network = |gbps: u64| Medium::Network { rate_bps: Some(gbps * 1_000_000_000) };
    let unknown = Medium::Network { rate_bps: None };
    let lanes =
        [[Medium::Host; 3], [unknown, Medium::Host, network(25)], [network(400), network(200), unknown]];
    let context = open(lanes.iter().map(|lane| on(lane)).collect(), LaneMode::Inline);
    for (lane, media) in lanes.iter().enumerate() {
        let ports: Vec<_> = (0..3).map(|plane| context.query_port(lane, plane).unwrap()).collect();
        assert!(ports.iter().map(|port| &port.medium).eq(media));
        let mtu = ports[0].max_mtu;
        let software = |gbps: u64| CcConfig::for_software(gbps * 1_000_000_000, 50_000, mtu);
        let want = [CcConfig::none(), software(125), software(700)][lane].clone();
        assert_eq!(context.default_cc(lane), want);

        let pd = context.create_pd().unwrap();
        let cq = context.create_cq(16).unwrap();
        let of = |cc| {
            let config = QpConfig { cc, lane: Placement::On(lane), ..QpConfig::default() };
            Qp::create(&pd, &cq, &cq, &config).unwrap().query().unwrap().cc
        };
        assert_eq!(of(None), want, "lane {lane}");
        assert_eq!(of(Some(CcConfig::none())), CcConfig::none(), "lane {lane}: who asks is asked");
        let own = CcConfig { shared: true, ..CcConfig::new(10_000_000_000, 7_000, 1_024) };
        assert_eq!(of(Some(own.clone())), own, "lane {lane}");
    }
}

/// The settings can make less of a port than it could do.
#[test]
fn a_port_is_told_as_it_is_used() {
    let ports = nic(loopback::pair(1, LoopbackConfig::default()).0);
    let (name, frame) = (ports[0].caps().name.clone(), ports[0].caps().max_frame);
    let mut config = ContextConfig::new(&ports);
    config.endpoint.ports[0].max_frame = 1000;
    let ip: IpAddr = config.endpoint.ports[0].ip;
    assert!(frame > 1000);
    let context = Context::open(ports, config).unwrap();
    let port = context.query_port(0, 0).unwrap();
    assert_eq!((port.name, port.ip, port.max_frame), (name, ip, 1000));
    assert_eq!(*context.query_device().unwrap().path_mtu.end(), port.max_mtu);
}

#[test]
fn a_lane_or_plane_that_does_not_exist_is_named() {
    let context = open(ports(3, 2).0, LaneMode::Inline);
    let place = |lane, plane| context.query_port(lane, plane).map(|port| (port.lane, port.plane));
    assert_eq!(place(2, 1).unwrap(), (2, 1));
    let refused = |lane, plane| place(lane, plane).unwrap_err().to_string();
    assert_eq!(refused(3, 0), "lane is 3; it must be less than 3, the number of lanes");
    assert_eq!(refused(2, 2), "plane is 2; it must be less than 2, the number of planes");
    assert_eq!(
        refused(0, usize::MAX),
        format!("plane is {}; it must be less than 2, the number of planes", u64::MAX)
    );
}

/// After a panic, ports can still be looked at; what takes a control call is refused.
#[test]
fn a_lane_that_has_failed_still_shows_its_ports() {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let broken = |inner: LoopbackPort| {
        let (in_tx, in_rx) = (Arc::new(AtomicBool::new(true)), Arc::default());
        Box::new(Broken { inner, in_tx, in_rx }) as Box<dyn Port>
    };
    let left: Vec<_> = left.into_iter().map(broken).collect();
    let config = QpConfig::default();
    let (mut left, mut right) = (side(left, THREAD, &config), side(nic(right), THREAD, &config));
    connect(&mut left, &mut right);
    let wr = write(&left, &right, 1, 100);
    left.qp.post_send(wr).unwrap();
    all_of(&mut left.cq);
    assert_eq!(left.context.query_port(0, 0).unwrap().plane, 0);
    let failed = |error| matches!(error, Some(VerbsError::Control(ControlError::LaneFailed(_))));
    assert!(failed(left.qp.query().err()) && failed(left.context.query_device().err()));
}
