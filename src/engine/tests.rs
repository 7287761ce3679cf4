#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is the message")]

use std::sync::Arc;

use spindrift_pmd::fault::FaultPort;
use spindrift_pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift_pmd::{LinkState, Port, PortCaps, PortCounters, RxFrame, TxFrame};

use super::rings::{Full, LaneRings, QpSubmit, qp_rings};
use super::tuning::{RECV_SEGMENT, SEND_SEGMENT, SEND_SEGMENT_POOL};
use super::tx_batch::TxBatch;
use super::{Idle, Lane, LaneCounters, LaneMode, Lanes, PollMode};
use crate::counters::Counters;
use crate::endpoint::{
    CqId, Endpoint, EndpointConfig, LocalPort, QpCap, QpInfo, QpInit, QpModify, RtrAttr, RtsAttr,
};
use crate::memory::{Access, Region};
use crate::time::Time;
use crate::wire::{Msn, Psn, Qpn};
use crate::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge};

const THREAD: LaneMode = LaneMode::Thread { core: None, idle: Idle::Yield };

fn send(wr_id: u64) -> SendWr {
    let local = Sge { addr: 0, len: 1, lkey: 0 };
    SendWr {
        wr_id,
        op: SendOp::Write,
        local,
        remote: RemoteAddr { addr: 0, rkey: 0 },
        signaled: true,
        fence: false,
    }
}

const fn cap(max_send_wr: u32, max_recv_wr: u32) -> QpCap {
    QpCap { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1 }
}

/// The way of a queue pair to RTS, for this peer.
fn to_rts(theirs: &QpInfo) -> [QpModify; 3] {
    let rtr = RtrAttr {
        dest_qpn: theirs.qpn,
        rq_psn: Psn::new(theirs.psn),
        rq_msn: Msn::new(theirs.msn),
        path_mtu: theirs.mtu,
        mpr_dest: theirs.mpr,
        max_wimm_dest: theirs.max_wimm,
        dynamic_mpr: false,
        trim_nack: true,
        ports: theirs.ports.clone(),
        udp_port: theirs.udp_port,
        extensions: theirs.extensions,
        min_rnr_timer: RtrAttr::MIN_RNR_TIMER,
        max_dest_rd_atomic: theirs.max_rd_atomic,
    };
    [QpModify::Init, QpModify::Rtr(Box::new(rtr)), QpModify::Rts(RtsAttr::default())]
}

type End = (Endpoint, Vec<Box<dyn Port>>, TxBatch);

/// Accepts half of every third burst, whatever room it announced.
struct ShortBurstPort {
    port: LoopbackPort,
    bursts: u32,
}

impl Port for ShortBurstPort {
    fn caps(&self) -> &PortCaps {
        self.port.caps()
    }
    fn link(&mut self) -> LinkState {
        self.port.link()
    }
    fn tx_room(&mut self, now_ns: u64) -> usize {
        self.port.tx_room(now_ns)
    }
    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        self.bursts += 1;
        let most = if self.bursts.is_multiple_of(3) { frames.len() / 2 } else { frames.len() };
        self.port.tx_burst(now_ns, &frames[..most])
    }
    fn unsent(&self) -> &[u16] {
        self.port.unsent()
    }
    fn flush(&mut self, now_ns: u64) {
        self.port.flush(now_ns);
    }
    fn reap(&mut self) -> u64 {
        self.port.reap()
    }
    fn recall(&mut self) {
        self.port.recall();
    }
    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        self.port.rx_burst(now_ns, max, sink)
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Two endpoints in virtual time; the writer's ports do not send all that they are given.
struct ThrottledPair {
    now: Time,
    ends: [End; 2],
    qpns: [Qpn; 2],
    wr: SendWr,
}

impl ThrottledPair {
    /// `wrap` makes the writer's port for a plane.
    fn new(wrap: impl Fn(usize, LoopbackPort) -> Box<dyn Port>) -> Self {
        let (left, right) = loopback::pair(3, LoopbackConfig::default());
        let left: Vec<_> = left.into_iter().enumerate().map(|(plane, port)| wrap(plane, port)).collect();
        let right = right.into_iter().map(|port| Box::new(port) as _).collect();
        let mut ends = [left, right].map(|ports: Vec<Box<dyn Port>>| {
            let local = ports.iter().map(|port| LocalPort::from(port.caps())).collect();
            let batch = TxBatch::for_ports(&ports);
            (Endpoint::new(EndpointConfig::new(local)).unwrap(), ports, batch)
        });
        let mut keys = Vec::new();
        let mut qpns = [Qpn::new(0); 2];
        for (at, (endpoint, ..)) in ends.iter_mut().enumerate() {
            let pd = endpoint.alloc_pd();
            let region = Region::alloc_at(1 << 16, 0x1000).unwrap();
            keys.push(endpoint.register(pd, region, Access::REMOTE_WRITE).unwrap());
            qpns[at] = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(0))).unwrap();
        }
        let infos = [0, 1].map(|at: usize| ends[at].0.qp_info(qpns[at]).unwrap());
        let now = Time(1_000);
        for (at, (endpoint, ..)) in ends.iter_mut().enumerate() {
            for change in to_rts(&infos[1 - at]) {
                endpoint.modify_qp(now, qpns[at], change).unwrap();
            }
        }
        let local = Sge { addr: 0x1000, len: 1 << 16, lkey: keys[0].lkey };
        let remote = RemoteAddr { addr: 0x1000, rkey: keys[1].rkey };
        let wr = SendWr { wr_id: 0, op: SendOp::Write, local, remote, signaled: true, fence: false };
        Self { now, ends, qpns, wr }
    }

    /// One turn of both, a microsecond later; returns how many frames came back.
    fn turn(&mut self) -> usize {
        self.now = self.now.after(1_000);
        let now = self.now;
        let mut refused = 0;
        for (endpoint, ports, batch) in &mut self.ends {
            for (plane, port) in ports.iter_mut().enumerate() {
                port.rx_burst(now.0, 64, &mut |frame| endpoint.receive(now, plane as u8, frame));
            }
            endpoint.on_timeout(now);
            batch.fill(now, endpoint, ports);
            refused += batch.send(now, endpoint, ports);
        }
        refused
    }
}

/// A write from one lane to another in real time, which `pause` falls into when its packets have left and are not
/// answered yet. Returns what the writer's lane and its transport counted.
fn write_with(pause: impl FnOnce(&mut Lane)) -> (LaneCounters, Counters) {
    let (left, right) = loopback::pair(2, LoopbackConfig::default());
    let mut lanes = [left, right].map(lane_over);
    let cqs = lanes.each_ref().map(|lane| lane.common().cqs.create(4, None));
    let mut keys = Vec::new();
    let mut qps = Vec::new();
    for (lane, cq) in lanes.iter_mut().zip(&cqs) {
        let pd = lane.endpoint_mut().alloc_pd();
        let region = Region::alloc_at(1 << 16, 0x1000).unwrap();
        keys.push(lane.endpoint_mut().register(pd, region, Access::REMOTE_WRITE).unwrap());
        let init = QpInit::new(pd, cq.core().id(), cq.core().id());
        qps.push(lane.create_qp(init, [cq.core(); 2]).unwrap());
    }
    let infos = [0, 1].map(|at: usize| lanes[at].endpoint().qp_info(qps[at].0).unwrap());
    for (at, lane) in lanes.iter_mut().enumerate() {
        for change in to_rts(&infos[1 - at]) {
            lane.modify_qp(qps[at].0, change).unwrap();
        }
    }
    let local = Sge { addr: 0x1000, len: 1 << 16, lkey: keys[0].lkey };
    let remote = RemoteAddr { addr: 0x1000, rkey: keys[1].rkey };
    let wr = SendWr { wr_id: 0, op: SendOp::Write, local, remote, signaled: true, fence: false };
    post_send(&mut qps[0].1, wr).unwrap();
    assert!(lanes[0].poll_busy() > 1, "a request, and its packets");
    pause(&mut lanes[0]);
    let mut polls = 0;
    while lanes[0].endpoint().qp_status(qps[0].0).unwrap().send_outstanding > 0 {
        lanes[0].poll();
        lanes[1].poll();
        polls += 1;
        assert!(polls < 10_000_000, "{:?}", lanes[0].endpoint().counters());
    }
    assert_eq!(lanes[1].endpoint().counters().rx_placed_bytes, 1 << 16);
    (lanes[0].counters(), lanes[0].endpoint().counters().clone())
}

/// Three times as long as the retransmission timer. The peer is not run either, so nothing waits at the ports.
#[expect(clippy::disallowed_methods, reason = "a lane reads a real clock")]
fn pause_50_ms() {
    std::thread::sleep(core::time::Duration::from_millis(50));
}

#[test]
fn a_lane_that_was_not_run_does_not_time_out() {
    let (lane, transport) = write_with(|_| pause_50_ms());
    assert!(lane.interruptions > 0, "{lane:?}");
    assert_eq!((transport.timeouts, transport.tx_retransmits), (0, 0), "{transport:?}");
}

/// It had nothing to do, and its timers wake it: time passes.
#[test]
fn a_nap_is_no_interruption() {
    let mut interruptions = 0;
    let (lane, transport) = write_with(|lane| {
        interruptions = lane.counters().interruptions;
        lane.note_sleep();
        pause_50_ms();
        lane.poll();
        assert_eq!(lane.counters().interruptions, interruptions);
    });
    assert_eq!(transport.timeouts, 1, "{lane:?}");
}

/// Every message arrives, no packet twice, and no path is blamed for what did not leave.
fn all_arrives_once(mut net: ThrottledPair) {
    const MESSAGES: u64 = 40;
    let (mut refused, qpn) = (0, net.qpns[0]);
    for wr_id in 0..MESSAGES {
        let now = net.now;
        net.ends[0].0.post_send(now, qpn, SendWr { wr_id, ..net.wr }).unwrap();
        let mut turns = 0;
        while net.ends[0].0.qp_status(qpn).unwrap().send_outstanding > 0 {
            refused += net.turn();
            turns += 1;
            assert!(turns < 1_000, "{:?}", net.ends[0].0.counters());
        }
    }
    let (writer, target) = (net.ends[0].0.counters(), net.ends[1].0.counters());
    assert!(refused > 100, "{refused}");
    assert_eq!(writer.tx_unsent, refused as u64);
    assert_eq!(target.rx_placed_bytes, MESSAGES * u64::from(net.wr.local.len));
    assert_eq!((writer.tx_retransmits, writer.tx_tail_probes), (0, 0), "{writer:?}");
    assert_eq!((target.rx_duplicates, target.rx_old), (0, 0), "{target:?}");
    assert!(net.ends[0].0.ev_states(qpn).unwrap().all(|path| path.drop_count == 0), "a path is blamed");
}

/// Had the wrong ones been taken back, those would arrive twice and the right ones never.
#[test]
fn the_frames_taken_back_are_those_that_did_not_leave() {
    all_arrives_once(ThrottledPair::new(|plane, port| {
        let plan = "full=30%".parse().unwrap();
        Box::new(FaultPort::new(Box::new(port), plane, plan, 5))
    }));
}

#[test]
fn a_port_may_accept_fewer_frames_than_it_announced() {
    all_arrives_once(ThrottledPair::new(|_, port| Box::new(ShortBurstPort { port, bursts: 0 })));
}

pub(super) fn lane(planes: usize) -> Lane {
    lane_over(loopback::pair(planes, LoopbackConfig::default()).0)
}

fn lane_over(ports: Vec<LoopbackPort>) -> Lane {
    let ports: Vec<Box<dyn Port>> = ports.into_iter().map(|port| Box::new(port) as _).collect();
    let local = ports.iter().map(|port| LocalPort::from(port.caps())).collect();
    Lane::new(Endpoint::new(EndpointConfig::new(local)).unwrap(), ports).unwrap()
}

fn post_send(submit: &mut QpSubmit, wr: SendWr) -> Result<(), Full> {
    submit.push_send(wr).inspect(|()| submit.ring())
}

fn post_recv(submit: &mut QpSubmit, wr: RecvWr) -> Result<(), Full> {
    submit.push_recv(wr).inspect(|()| submit.ring())
}

#[test]
fn a_queue_pair_is_in_the_doorbell_list_once() {
    let lane = LaneRings::new(1);
    let bells = &lane.doorbells;
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 9, &lane, cap(4, 2));
    post_send(&mut submit, send(1)).unwrap();
    post_send(&mut submit, send(2)).unwrap();
    post_recv(&mut submit, RecvWr::empty(3)).unwrap();
    assert_eq!((bells.pop(), bells.pop()), (Some(9), None));
    post_send(&mut submit, send(4)).unwrap();
    assert!(bells.is_empty(), "not again before the lane has looked");
    intake.disarm();
    assert_eq!(intake.pop_send().unwrap().wr.wr_id, 1);
    post_send(&mut submit, send(5)).unwrap();
    assert_eq!(bells.pop(), Some(9));
}

#[test]
fn requests_are_outstanding_until_they_are_retired_not_until_they_are_taken() {
    let lane = LaneRings::new(1);
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, cap(2, 1));
    post_send(&mut submit, send(1)).unwrap();
    post_send(&mut submit, send(2)).unwrap();
    while intake.pop_send().is_some() {}
    assert_eq!((post_send(&mut submit, send(3)), submit.sends_outstanding()), (Err(Full), 2));
    intake.retire_sends(2);
    assert_eq!((post_send(&mut submit, send(3)), submit.sends_outstanding()), (Ok(()), 1));
    post_recv(&mut submit, RecvWr::empty(1)).unwrap();
    assert_eq!(post_recv(&mut submit, RecvWr::empty(2)), Err(Full));
    intake.retire_recv();
    assert_eq!(submit.recvs_outstanding(), 0);
    submit.reset_outstanding();
    assert_eq!((submit.sends_outstanding(), submit.recvs_outstanding()), (0, 0));
}

/// A slow lane, an application that gets ahead of it by several rings, and another queue pair that gets those rings.
#[test]
fn rings_of_requests_are_chained_in_order_and_used_again() {
    let lane = LaneRings::new(2);
    for slot in 0..2 {
        let (mut submit, mut intake) = qp_rings(Qpn::new(5), slot, &lane, cap(100, 1));
        let (mut posted, mut taken) = (0, 0);
        for (post, take) in [(100, 30), (30, 99), (99, 100), (1, 2), (SEND_SEGMENT, 3), (1, usize::MAX)] {
            for _ in 0..post {
                post_send(&mut submit, send(posted)).unwrap();
                posted += 1;
            }
            assert_eq!(
                post_send(&mut submit, send(posted)).is_err(),
                posted - taken == 100,
                "{posted} {taken}"
            );
            if posted - taken < 100 {
                posted += 1;
            }
            for _ in 0..take {
                let Some(posted) = intake.pop_send() else { break };
                assert_eq!(posted.wr.wr_id, taken);
                taken += 1;
                intake.retire_sends(1);
            }
        }
        assert_eq!((taken, intake.pop_send()), (posted, None));
        let [spare, _] = lane.pooled_segments();
        assert!((6..=8).contains(&spare), "{spare} rings for both queue pairs");
    }
    // A lane does not keep what one large burst took.
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, cap(16_384, 1));
    (0..16_384).for_each(|wr_id| post_send(&mut submit, send(wr_id)).unwrap());
    assert_eq!(core::iter::from_fn(|| intake.pop_send()).count(), 16_384);
    assert_eq!(lane.pooled_segments(), [SEND_SEGMENT_POOL, 0]);
}

/// Receives are chained likewise: all of a deep queue at once, and again when the lane has taken them.
#[test]
fn receives_are_chained_in_order() {
    const DEPTH: u64 = 10 * RECV_SEGMENT as u64 + 7;
    let lane = LaneRings::new(1);
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, cap(1, DEPTH as u32));
    for turn in 0..3 {
        for wr_id in turn * DEPTH..(turn + 1) * DEPTH {
            submit.push_recv(RecvWr::empty(wr_id)).unwrap();
        }
        assert_eq!(submit.push_recv(RecvWr::empty(0)), Err(Full));
        assert_eq!(u64::from(submit.recvs_outstanding()), DEPTH);
        let taken = core::iter::from_fn(|| intake.pop_recv()).map(|posted| posted.wr.wr_id);
        assert!(taken.eq(turn * DEPTH..(turn + 1) * DEPTH));
        (0..DEPTH).for_each(|_| intake.retire_recv());
        assert!((9..=10).contains(&lane.pooled_segments()[1]), "{:?}", lane.pooled_segments());
    }
    // None is needed where none may be posted.
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, cap(1, 0));
    assert_eq!((submit.push_recv(RecvWr::empty(0)), intake.pop_recv()), (Err(Full), None));
}

/// Requests with one element and with several, through every turn of the rings, with a lane that is behind by several.
#[test]
fn elements_come_with_their_request() {
    const DEPTH: u64 = 50;
    let element = |wr_id: u64, n: u64| Sge { addr: wr_id << 8 | n, len: 1 + n as u32, lkey: 7 };
    // All, several, none.
    let elements = |wr_id: u64| [16, 2 + wr_id % 7, 0][(wr_id % 3) as usize];
    let lane = LaneRings::new(1);
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, QpCap { max_send_sge: 16, ..cap(50, 1) });
    let (mut posted, mut taken) = (0, 0);
    for (post, take) in [(DEPTH, 10), (10, 49), (49, DEPTH), (3, 2), (40, 41), (DEPTH, DEPTH)] {
        for _ in 0..post {
            let count = elements(posted);
            let list = (0..count).map(|n| element(posted, n));
            if count > 0 { submit.push_gather(send(posted), list) } else { submit.push_send(send(posted)) }
                .unwrap();
            posted += 1;
        }
        if posted - taken == DEPTH {
            let more = (0..16).map(|n| element(posted, n));
            assert_eq!(submit.push_gather(send(posted), more), Err(Full));
        }
        for _ in 0..take {
            let next = intake.pop_send().unwrap();
            assert_eq!((next.wr.wr_id, next.is_gather()), (taken, elements(taken) > 0));
            if next.is_gather() {
                let expected: Vec<_> = (0..elements(taken)).map(|n| element(taken, n)).collect();
                assert_eq!(intake.elements(), expected);
            }
            taken += 1;
            intake.retire_sends(1);
        }
    }
    assert_eq!(intake.pop_send(), None);

    // A queue pair for one element has no room for several.
    let (mut submit, intake) = qp_rings(Qpn::new(5), 0, &lane, cap(4, 1));
    assert_eq!(submit.push_gather(send(0), (0..2).map(|n| element(0, n))), Err(Full));
    assert_eq!((submit.sends_outstanding(), intake.elements()), (0, &[][..]));
}

#[test]
fn no_doorbell_is_lost_between_threads() {
    const COUNT: u64 = 200_000;
    let lane = LaneRings::new(1);
    let bells = &lane.doorbells;
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &lane, cap(50, 1));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for wr_id in 0..COUNT {
                while post_send(&mut submit, send(wr_id)).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < COUNT {
            if bells.pop().is_none() {
                std::thread::yield_now();
                continue;
            }
            intake.disarm();
            while let Some(posted) = intake.pop_send() {
                assert_eq!(posted.wr.wr_id, next);
                next += 1;
                intake.retire_sends(1);
            }
        }
    });
}

#[test]
fn completion_queue_numbers_are_used_again_only_when_nobody_reports_there() {
    let mut lane = lane(1);
    let cqs = Arc::clone(&lane.common().cqs);
    let first = cqs.create(4, None);
    let second = cqs.create(4, None);
    let id = first.core().id();
    assert_ne!(id, second.core().id());
    let pd = lane.endpoint_mut().alloc_pd();
    let (qpn, _submit) = lane.create_qp(QpInit::new(pd, id, id), [first.core(); 2]).unwrap();
    assert_eq!((lane.cq_users(id), first.core().lanes()), (1, 1));
    drop(first);
    lane.drop_cq(id);
    let third = cqs.create(4, None);
    assert!(![id, second.core().id()].contains(&third.core().id()));
    lane.destroy_qp(qpn);
    assert_eq!(cqs.create(4, None).core().id(), id, "free once its last queue pair is gone");
}

fn start(lane: Lane, mode: LaneMode) -> Lanes {
    let common = Arc::clone(lane.common());
    Lanes::start([(lane, mode)], common).unwrap()
}

#[test]
fn control_operations_reach_a_busy_lane_and_dropping_it_joins() {
    let handle = start(lane(4), LaneMode::Thread { core: None, idle: Idle::Spin });
    let mut last = 0;
    for _ in 0..200 {
        let polls = handle.control(0, |lane| lane.counters().polls).unwrap();
        assert!(polls >= last);
        last = polls;
    }
    assert_eq!(handle.poll(PollMode::MayPause), 0);
    drop(handle);
}

#[test]
fn a_lane_alone_is_idle() {
    let mut lane = lane(2);
    // The first polls may still tell a link's state.
    lane.poll();
    assert_eq!((lane.poll(), lane.poll_busy()), (0, 0));
    assert_eq!(lane.counters().polls, 3);
    assert_eq!(lane.port_counters().count(), 2);
    let handle = start(lane, THREAD);
    while handle.control(0, |lane| lane.counters().idle_polls).unwrap() < 10 {
        handle.poll(PollMode::MayPause);
    }
}
