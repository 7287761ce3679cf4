#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is the message")]

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use spindrift_pmd::Port;
use spindrift_pmd::loopback::{self, LoopbackConfig};

use super::rings::{CqEnd, Full, Overrun, cq_ring, qp_rings};
use super::{Idle, Lane, LaneHandle, LaneMode};
use crate::endpoint::{Endpoint, EndpointConfig, LocalPort, QpInit};
use crate::wire::Qpn;
use crate::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc};

const THREAD: LaneMode = LaneMode::Thread { core: None, idle: Idle::Yield };

fn send(wr_id: u64) -> SendWr {
    let local = Sge { addr: 0, len: 1, lkey: 0 };
    SendWr { wr_id, op: SendOp::Write, local, remote: RemoteAddr { addr: 0, rkey: 0 }, signaled: true }
}

fn lane(planes: usize) -> Lane {
    let (ports, _) = loopback::pair(planes, LoopbackConfig::default());
    let ports: Vec<Box<dyn Port>> = ports.into_iter().map(|port| Box::new(port) as _).collect();
    let local = ports.iter().map(|port| LocalPort::from(port.caps())).collect();
    Lane::new(Endpoint::new(EndpointConfig::new(local)).unwrap(), ports).unwrap()
}

#[test]
fn a_queue_pair_is_in_the_doorbell_list_once() {
    let bells = Arc::new(ArrayQueue::new(1));
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 9, &bells, 4, 2);
    submit.post_send(send(1)).unwrap();
    submit.post_send(send(2)).unwrap();
    submit.post_recv(RecvWr { wr_id: 3 }).unwrap();
    assert_eq!((bells.pop(), bells.pop()), (Some(9), None));
    submit.post_send(send(4)).unwrap();
    assert!(bells.is_empty(), "not again before the lane has looked");
    intake.disarm();
    assert_eq!(intake.sends.pop().unwrap().wr_id, 1);
    submit.post_send(send(5)).unwrap();
    assert_eq!(bells.pop(), Some(9));
}

#[test]
fn requests_are_outstanding_until_they_are_retired_not_until_they_are_taken() {
    let bells = Arc::new(ArrayQueue::new(1));
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &bells, 2, 1);
    submit.post_send(send(1)).unwrap();
    submit.post_send(send(2)).unwrap();
    while intake.sends.pop().is_ok() {}
    assert_eq!((submit.post_send(send(3)), submit.sends_outstanding()), (Err(Full), 2));
    intake.retire_sends(2);
    assert_eq!((submit.post_send(send(3)), submit.sends_outstanding()), (Ok(()), 1));
    submit.post_recv(RecvWr { wr_id: 1 }).unwrap();
    assert_eq!(submit.post_recv(RecvWr { wr_id: 2 }), Err(Full));
    intake.retire_recv();
    assert_eq!(submit.recvs_outstanding(), 0);
    submit.forget_outstanding();
    assert_eq!((submit.sends_outstanding(), submit.recvs_outstanding()), (0, 0));
}

#[test]
fn no_doorbell_is_lost_between_threads() {
    const COUNT: u64 = 200_000;
    let bells = Arc::new(ArrayQueue::new(1));
    let (mut submit, mut intake) = qp_rings(Qpn::new(5), 0, &bells, 16, 1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for wr_id in 0..COUNT {
                while submit.post_send(send(wr_id)).is_err() {
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
            while let Ok(wr) = intake.sends.pop() {
                assert_eq!(wr.wr_id, next);
                next += 1;
                intake.retire_sends(1);
            }
        }
    });
}

#[test]
fn a_completion_queue_reports_an_overrun_after_what_it_holds() {
    let (mut reader, mut writer) = cq_ring(2);
    let wc = |wr_id| Wc { wr_id, ..Wc::default() };
    let pushed: Vec<_> = (0..4).map(|id| writer.push(wc(id))).collect();
    assert_eq!(pushed, [Ok(()), Ok(()), Err(Overrun), Ok(())], "reported once");
    let mut out = [Wc::default(); 4];
    assert_eq!(reader.poll(&mut out), Ok(2));
    assert_eq!((out[0].wr_id, out[1].wr_id), (0, 1));
    assert_eq!((reader.poll(&mut out), reader.poll(&mut out)), (Err(CqEnd::Overrun), Err(CqEnd::Overrun)));
    assert_eq!(reader.poll(&mut []), Ok(0));
}

#[test]
fn completions_for_a_dropped_queue_are_no_overrun() {
    let (reader, mut writer) = cq_ring(1);
    drop(reader);
    assert_eq!((writer.push(Wc::default()), writer.push(Wc::default())), (Ok(()), Ok(())));
    assert!(writer.is_abandoned());
}

#[test]
fn completion_queue_numbers_are_used_again_only_when_nobody_reports_there() {
    let mut lane = lane(1);
    let (first, first_reader) = lane.create_cq(4);
    let (second, _second_reader) = lane.create_cq(4);
    let pd = lane.endpoint_mut().alloc_pd();
    let (qpn, _submit) = lane.create_qp(QpInit::new(pd, first, first)).unwrap();
    drop(first_reader);
    lane.drop_cq(first);
    let (third, _third_reader) = lane.create_cq(4);
    assert!(third != first && third != second);
    lane.destroy_qp(qpn);
    assert_eq!(lane.create_cq(4).0, first, "free once its last queue pair is gone");
}

#[test]
fn control_operations_reach_a_busy_lane_and_dropping_it_joins() {
    let handle = LaneHandle::start(lane(4), LaneMode::Thread { core: None, idle: Idle::Spin }).unwrap();
    let mut last = 0;
    for _ in 0..200 {
        let polls = handle.control(|lane| lane.counters().polls).unwrap();
        assert!(polls >= last);
        last = polls;
    }
    assert_eq!(handle.poll(), 0);
    drop(handle);
}

#[test]
fn a_lane_alone_is_idle() {
    let mut lane = lane(2);
    // The first polls may still tell a link's state.
    lane.poll();
    assert_eq!((lane.poll(), lane.poll()), (0, 0));
    assert_eq!(lane.counters().polls, 3);
    assert_eq!(lane.port_counters().count(), 2);
    let handle = LaneHandle::start(lane, THREAD).unwrap();
    while handle.control(|lane| lane.counters().idle_polls).unwrap() < 10 {
        handle.poll();
    }
}
