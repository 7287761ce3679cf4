//! The life of a queue pair: states, errors, ends.

use std::collections::BTreeSet;

use spindrift::congestion::CcConfig;
use spindrift::endpoint::{
    CqId, Endpoint, EndpointConfig, EndpointError, Event, FailReason, Limits, PostError, QpCap, QpFailure,
    QpInfo, QpInit, QpModify, QpState, RetryAttr, RtrAttr, RtsAttr,
};
use spindrift::path::PathConfig;
use spindrift::time::Time;
use spindrift::wire::{Aeth, Bth, EntropyMode, Ev, Mark, Opcode, Packet, Psn, Qpn, Seth, StevOrder};
use spindrift::work::{RecvWr, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

use crate::bench::{
    ATTACKER_QPN, Bench, IOVA, PEER, SHORT, VICTIM, attacker_info, attacker_ip, completions, first_sent, init,
};
use crate::support::frame;
use crate::support::net::ports;
use crate::support::pair::{self, End, Patience, gives_up_at, rts_attr};

fn modify(bench: &mut Bench, qpn: Qpn, change: QpModify) -> Result<Qpn, EndpointError> {
    let now = bench.net.now;
    bench.net.endpoint(VICTIM).modify_qp(now, qpn, change)
}

fn write(bench: &Bench, wr_id: u64, len: u32) -> SendWr {
    SendWr {
        wr_id,
        op: SendOp::Write,
        local: Sge { addr: IOVA, len, lkey: bench.target.key.lkey },
        remote: RemoteAddr { addr: 0, rkey: 1 },
        signaled: false,
        fence: false,
    }
}

fn post(bench: &mut Bench, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
    let now = bench.net.now;
    bench.net.endpoint(VICTIM).post_send(now, qpn, wr)
}

/// Every change of state from every state.
#[test]
fn states_follow_each_other_in_order_only() {
    use QpState::{Error, Init, Reset, Rtr, Rts};
    let mut bench = Bench::new();
    let mut qpn = bench.net.endpoint(VICTIM).create_qp(init(bench.pd)).unwrap();
    let ours = bench.net.endpoint(VICTIM).qp_info(qpn).unwrap();
    let theirs = attacker_info(&ours);
    let to_init = || QpModify::Init;
    let to_rtr = || QpModify::Rtr(Box::new(RtrAttr::between(&ours, &theirs)));
    let to_rts = || QpModify::Rts(rts_attr(&theirs, Patience::default()));
    let retry = QpModify::Retry(RetryAttr { timeout: 1, linear_retries: 0, exponential_retries: 0 });
    let congestion = QpModify::Congestion(Box::new(CcConfig::none()));
    let paths = QpModify::Paths(Box::new(PathConfig::new(1)));
    for (state, path) in [
        (Reset, vec![]),
        (Init, vec![to_init()]),
        (Rtr, vec![to_init(), to_rtr()]),
        (Rts, vec![to_init(), to_rtr(), to_rts()]),
        (Error, vec![QpModify::Error]),
    ] {
        for (change, allowed_from) in [
            (to_init(), &[Reset][..]),
            (to_rtr(), &[Init]),
            (to_rts(), &[Rtr]),
            (retry.clone(), &[Rts]),
            (congestion.clone(), &[Reset, Init, Rtr, Rts]),
            (paths.clone(), &[Reset, Init]),
        ] {
            qpn = modify(&mut bench, qpn, QpModify::Reset).unwrap();
            for step in &path {
                assert_eq!(modify(&mut bench, qpn, step.clone()), Ok(qpn));
            }
            assert_eq!(bench.net.endpoint(VICTIM).qp_state(qpn), Some(state));
            let result = modify(&mut bench, qpn, change.clone());
            assert_eq!(
                result.is_ok(),
                allowed_from.contains(&state),
                "{change:?} from {state:?}: {result:?}"
            );
            if result.is_err() {
                assert_eq!(
                    bench.net.endpoint(VICTIM).qp_state(qpn),
                    Some(state),
                    "a refusal changes nothing"
                );
            }
        }
        modify(&mut bench, qpn, QpModify::Error).unwrap();
        assert_eq!(bench.net.endpoint(VICTIM).qp_state(qpn), Some(Error));
    }
    bench.check_healthy("states");
}

#[test]
fn attributes_out_of_range_are_refused() {
    let mut bench = Bench::new();
    let qpn = bench.net.endpoint(VICTIM).create_qp(init(bench.pd)).unwrap();
    modify(&mut bench, qpn, QpModify::Init).unwrap();
    let ours = bench.net.endpoint(VICTIM).qp_info(qpn).unwrap();
    let theirs = attacker_info(&ours);
    let good = RtrAttr::between(&ours, &theirs);
    let mut bad = vec![];
    for spoil in 0..7 {
        let mut attr = good.clone();
        match spoil {
            0 => attr.dest_qpn = 2,
            1 => attr.dest_qpn = 1 << 24,
            2 => attr.path_mtu = 255,
            3 => attr.path_mtu = 9_000,
            4 => attr.mpr_dest = 0,
            5 => attr.ports.clear(),
            _ => attr.ports[0].ip = "192.0.2.1".parse().unwrap(),
        }
        bad.push(attr);
    }
    for attr in bad {
        assert!(modify(&mut bench, qpn, QpModify::Rtr(Box::new(attr.clone()))).is_err(), "{attr:?}");
        assert_eq!(bench.net.endpoint(VICTIM).qp_state(qpn), Some(QpState::Init));
    }
    modify(&mut bench, qpn, QpModify::Rtr(Box::new(good))).unwrap();
    let good = rts_attr(&theirs, Patience::default());
    for attr in [
        RtsAttr { mpr: 0, ..good },
        RtsAttr { timeout: 0, ..good },
        RtsAttr { timeout: 25, ..good },
        RtsAttr { linear_retries: 8, ..good },
        RtsAttr { exponential_retries: 26, ..good },
    ] {
        assert!(modify(&mut bench, qpn, QpModify::Rts(attr)).is_err(), "{attr:?}");
    }
    modify(&mut bench, qpn, QpModify::Rts(good)).unwrap();
    bench.check_healthy("attributes");
}

/// Decision 17.
#[test]
fn posting_depends_on_the_state() {
    let mut bench = Bench::new();
    let qpn = bench.net.endpoint(VICTIM).create_qp(init(bench.pd)).unwrap();
    let wr = write(&bench, 1, 8);
    let recv = RecvWr::empty(9);
    assert_eq!(post(&mut bench, qpn, wr), Err(PostError::WrongState(QpState::Reset)));
    assert_eq!(bench.net.endpoint(VICTIM).post_recv(qpn, recv), Err(PostError::WrongState(QpState::Reset)));
    modify(&mut bench, qpn, QpModify::Init).unwrap();
    assert_eq!(post(&mut bench, qpn, wr), Err(PostError::WrongState(QpState::Init)));
    assert_eq!(bench.net.endpoint(VICTIM).post_recv(qpn, recv), Ok(()));
    assert_eq!(post(&mut bench, Qpn::new(3), wr), Err(PostError::NoSuchQp));
    let empty = SendWr { local: Sge { len: 0, ..wr.local }, ..wr };
    let attacked = bench.qp.qpn;
    assert_eq!(post(&mut bench, attacked, empty), Err(PostError::Empty));
    for wr_id in 0..128 {
        let wr = write(&bench, wr_id, 8);
        assert_eq!(post(&mut bench, attacked, wr), Ok(()));
    }
    assert_eq!(post(&mut bench, attacked, wr), Err(PostError::QueueFull));
    bench.check_healthy("posting");
}

#[test]
fn immediates_that_the_peer_never_takes_are_refused() {
    let mut bench = Bench::new();
    let qpn = bench.net.endpoint(VICTIM).create_qp(init(bench.pd)).unwrap();
    let ours = bench.net.endpoint(VICTIM).qp_info(qpn).unwrap();
    let theirs = QpInfo { max_wimm: 0, ..attacker_info(&ours) };
    pair::bring_up(&mut bench.net, End { node: VICTIM, qpn }, &theirs, SHORT);
    let plain = write(&bench, 1, 8);
    let wr = SendWr { op: SendOp::WriteWithImm(1), ..plain };
    assert_eq!(post(&mut bench, qpn, wr), Err(PostError::NoneAccepted));
    assert_eq!(post(&mut bench, qpn, plain), Ok(()));
    bench.check_healthy("no immediates");
}

#[test]
fn a_packet_never_outgrows_ip() {
    for (v6, overhead) in [(true, 106), (false, 86)] {
        let mut cfg = EndpointConfig::new(ports(v6, 0, 1, 1 << 20));
        assert_eq!(cfg.max_mtu(), 65_535 + 14 - overhead);
        cfg.ports[0].max_frame = 1_514;
        assert_eq!(cfg.max_mtu(), 1_514 - overhead);
    }
}

#[test]
fn errors_flush_in_order_and_later_posts_too() {
    let mut bench = Bench::new();
    let qpn = bench.qp.qpn;
    for wr_id in 0..5 {
        bench.net.endpoint(VICTIM).post_recv(qpn, RecvWr::empty(100 + wr_id)).unwrap();
        let wr = write(&bench, wr_id, 700);
        post(&mut bench, qpn, wr).unwrap();
    }
    bench.net.pump(VICTIM);
    modify(&mut bench, qpn, QpModify::Error).unwrap();
    for wr_id in 5..7 {
        let wr = write(&bench, wr_id, 700);
        post(&mut bench, qpn, wr).unwrap();
        bench.net.endpoint(VICTIM).post_recv(qpn, RecvWr::empty(100 + wr_id)).unwrap();
    }
    bench.net.pump(VICTIM);
    let events = bench.net.take_events(VICTIM);
    let flushed = completions(&events);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushError && wc.byte_len == 0));
    let ids: Vec<_> = flushed.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 5, 105, 6, 106]);
    assert_eq!(retired(&events), 7);
    assert!(events.contains(&Event::QpFailed { qpn, reason: FailReason::Requested }));
    // The source is free again.
    let key = bench.target.key.rkey;
    bench.net.endpoint(VICTIM).deregister(key).unwrap();
    bench.net.run_for(1_000_000_000);
    assert_eq!(bench.net.next_at(), Time::NEVER, "a failed queue pair runs no timer");
    bench.check_healthy("flush");
}

fn retired(events: &[Event]) -> u32 {
    let count = |event: &Event| if let Event::SendRetired { count, .. } = event { *count } else { 0 };
    events.iter().map(count).sum()
}

#[test]
fn a_bad_source_fails_the_queue_pair_in_order() {
    let mut bench = Bench::new();
    let qpn = bench.qp.qpn;
    let good = write(&bench, 1, 8);
    post(&mut bench, qpn, good).unwrap();
    let bad = SendWr { wr_id: 2, local: Sge { addr: IOVA + 4_090, ..good.local }, ..good };
    post(&mut bench, qpn, bad).unwrap();
    let seen: Vec<_> = bench.net.endpoint(VICTIM).poll_all();
    assert_eq!(
        completions(&seen).iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(1, WcStatus::WrFlushError), (2, WcStatus::LocalProtectionError)]
    );
    assert_eq!(retired(&seen), 2);
    bench.check_healthy("a bad source");
}

trait PollAll {
    fn poll_all(&mut self) -> Vec<Event>;
}

impl PollAll for spindrift::endpoint::Endpoint {
    fn poll_all(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.poll_event()).collect()
    }
}

#[test]
fn a_silent_peer_is_given_up_on_schedule() {
    for patience in [
        SHORT,
        Patience { timeout: 8, linear: 0, exponential: 0 },
        Patience { timeout: 6, linear: 7, exponential: 0 },
        Patience { timeout: 14, linear: 0, exponential: 5 },
        Patience { timeout: 24, linear: 1, exponential: 1 },
    ] {
        let mut bench = Bench::with(|_| {}, patience);
        bench.net.endpoint(VICTIM).post_recv(bench.qp.qpn, RecvWr::empty(50)).unwrap();
        for wr_id in 0..3 {
            bench.post_to_attacker(wr_id, 1_000);
        }
        let start = first_sent(&bench);
        let mut events = Vec::new();
        bench.net.run_until(|net| {
            events.extend(net.take_events(VICTIM));
            events.iter().any(|event| matches!(event, Event::QpFailed { .. }))
        });
        assert_eq!(bench.net.now, gives_up_at(start, patience), "{patience:?}");
        let ends: Vec<_> = completions(&events).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = WcStatus::WrFlushError;
        assert_eq!(ends, [(0, WcStatus::RetryExceeded), (1, flushed), (2, flushed), (50, flushed)]);
        let waits = 1 + u64::from(patience.linear) + u64::from(patience.exponential);
        assert_eq!(bench.count("timeouts"), waits);
        assert_eq!(bench.count("retries_exhausted"), 1);
        let oldest = psn_of_first(&bench);
        let (plane, ev) = last_path(&bench, oldest);
        let failure = QpFailure {
            qpn: bench.qp.qpn,
            reason: FailReason::RetryExceeded,
            peer: Some(attacker_ip(0)),
            peer_qpn: ATTACKER_QPN,
            psn: Some(oldest),
            ev: Some(ev),
            plane: Some(plane),
            status: Some(WcStatus::RetryExceeded),
            violation: None,
        };
        assert_eq!(bench.net.endpoint(VICTIM).qp_failure(bench.qp.qpn), Some(failure));
        bench.check_healthy("a silent peer");
    }
}

/// A path assumed bad has a timer far off, which must not hide the timers of data that is posted later.
#[test]
fn a_far_deadline_does_not_hide_a_near_one() {
    let mut bench = Bench::with(|_| {}, SHORT);
    bench.post_to_attacker(1, 1_000);
    let first = psn_of_first(&bench);
    let mut seth = Seth {
        mark: Mark::AlwaysSkip,
        spdcid: ATTACKER_QPN.get() as u16,
        dpdcid: bench.qp.qpn.get() as u16,
        cack: first.add(3),
        ..Seth::default()
    };
    seth.cc.tx_timestamp = (bench.net.now.0 >> 7) as u16;
    bench.give(&Packet::Sack { bth: Bth::new(Opcode::Sack, bench.qp.qpn, seth.cack), seth });
    bench.give(&Packet::Ack { bth: Bth::new(Opcode::Ack, bench.qp.qpn, seth.cack), aeth: Aeth::ack(1) });
    assert_eq!(bench.completions().len(), 1);
    // Probes of the bad path go unanswered, and the pauses between them grow to a second.
    bench.net.run_for(5_000_000_000);
    assert!(bench.count("tx_probes") > 10);
    bench.mark();
    bench.post_to_attacker(2, 1_000);
    let start = first_sent(&bench);
    let until = gives_up_at(start, SHORT).since(bench.net.now);
    bench.net.run_for(until - 1);
    assert_eq!(bench.failures(), []);
    assert!(bench.count("tx_tail_probes") > 0);
    bench.net.run_for(1);
    assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::RetryExceeded)]);
    bench.check_healthy("far and near deadlines");
}

fn psn_of_first(bench: &Bench) -> Psn {
    let (_, packet) = frame::decode(&bench.net.astray[0].1).unwrap();
    packet.bth().psn
}

/// The plane and the entropy value of the last copy of a packet.
fn last_path(bench: &Bench, psn: Psn) -> (u8, Ev) {
    let mut copies = bench.net.astray.iter().rev().filter_map(|(_, frame)| frame::decode(frame));
    let (meta, _) = copies.find(|(_, packet)| packet.bth().psn == psn).unwrap();
    let plane = (0..2).find(|&plane| attacker_ip(plane) == meta.dst).unwrap();
    (plane, EntropyMode::Stev(StevOrder::SportHigh).extract(meta.src_port, meta.flow_label))
}

#[test]
fn destroy_and_reset_forget_work() {
    for reset in [false, true] {
        let mut bench = Bench::new();
        let qpn = bench.qp.qpn;
        for wr_id in 0..50 {
            bench.post_to_attacker(wr_id, 4_000);
        }
        let key = bench.target.key.rkey;
        assert!(bench.net.endpoint(VICTIM).deregister(key).is_err(), "in use");
        if reset {
            let anew = modify(&mut bench, qpn, QpModify::Reset).unwrap();
            assert_eq!(bench.net.endpoint(VICTIM).qp_state(anew), Some(QpState::Reset));
            assert_eq!(bench.net.endpoint(VICTIM).qp_state(qpn), None, "the old number is nobody's");
        } else {
            bench.net.endpoint(VICTIM).destroy_qp(qpn).unwrap();
            assert_eq!(bench.net.endpoint(VICTIM).destroy_qp(qpn), Err(EndpointError::NoSuchQp(qpn.get())));
        }
        bench.mark();
        bench.net.run_for(1_000_000_000);
        assert_eq!(bench.count("tx_data"), 0);
        assert_eq!(bench.completions(), []);
        bench.net.endpoint(VICTIM).deregister(key).unwrap();
        bench.check_healthy("destroy or reset");
    }
}

#[test]
fn a_reset_queue_pair_connects_again() {
    let mut bench = Bench::new();
    let pd = bench.net.endpoint(PEER).alloc_pd();
    let mut peer = pair::create(&mut bench.net, PEER, init(pd));
    let mut victim = bench.qp;
    let mut numbers = BTreeSet::new();
    for round in 0..20 {
        for end in [&mut victim, &mut peer] {
            let now = bench.net.now;
            end.qpn = bench.net.endpoint(end.node).modify_qp(now, end.qpn, QpModify::Reset).unwrap();
            numbers.insert(end.qpn);
        }
        pair::connect(&mut bench.net, victim, peer, Patience::default());
        transfer(&mut bench, victim, peer, round);
    }
    assert_eq!(numbers.len(), 40, "each life has a number of its own");
    bench.qp = victim;
    bench.check_healthy("many connections");
}

/// A write of an earlier life that comes late: to the memory that the next life uses too, with the PSN that is expected
/// first there.
#[test]
fn packets_of_an_earlier_life_change_nothing() {
    let mut bench = Bench::new();
    for life in 0..10 {
        let late = bench.write();
        let (now, old) = (bench.net.now, bench.qp.qpn);
        bench.qp.qpn = bench.net.endpoint(VICTIM).modify_qp(now, old, QpModify::Reset).unwrap();
        let (end, ours) = (bench.qp, bench.net.endpoint(VICTIM).qp_info(bench.qp.qpn).unwrap());
        assert_eq!(ours.qpn, end.qpn.get());
        pair::bring_up(&mut bench.net, end, &attacker_info(&ours), Patience::default());
        bench.mark();
        bench.give(&Packet::Data { head: late, payload: &[0x5a; 8], pad: &[] });
        bench.target.check("a late write");
        assert_eq!(bench.count("rx_unknown_qp"), 1, "life {life}");
        // The same with the number of this life is what the queue pair waits for.
        let head = bench.write();
        bench.give(&Packet::Data { head, payload: &[life; 8], pad: &[] });
        bench.target.expected[..8].fill(life);
        bench.target.check("a write of this life");
    }
}

fn transfer(bench: &mut Bench, from: End, to: End, round: u64) {
    let pd = bench.net.endpoint(to.node).alloc_pd();
    // Another protection domain: refused, and the sender is told.
    let alien = round % 4 == 3;
    let target = crate::bench::region(
        &mut bench.net,
        to.node,
        if alien { pd } else { spindrift::memory::PdId(2) },
        (0x9000, 4_096),
        spindrift::memory::Access::REMOTE_WRITE,
    );
    let wr = SendWr {
        remote: RemoteAddr { addr: 0x9000, rkey: target.key.rkey },
        signaled: true,
        ..write(bench, round, 3_000)
    };
    post(bench, from.qpn, wr).unwrap();
    bench.net.pump(from.node);
    let mut ends = Vec::new();
    bench.net.run_until(|net| {
        ends.extend(completions(&net.take_events(from.node)));
        !ends.is_empty()
    });
    let expected = if alien { WcStatus::RemoteAccessError } else { WcStatus::Success };
    assert_eq!(ends.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(round, expected)]);
    if !alien {
        assert_eq!(target.region.first_difference(0, &bench.target.expected[..3_000]).unwrap(), None);
    }
}

/// Numbers of queue pairs made one after the other say nothing of each other, and a full endpoint still finds the last slot.
#[test]
fn queue_pair_numbers_do_not_tell_of_each_other() {
    const COUNT: u32 = 4096;
    let cfg = EndpointConfig {
        seed: 3.into(),
        limits: Limits { max_qps: COUNT, ..Limits::default() },
        ..EndpointConfig::new(ports(true, 0, 1, 4300))
    };
    let mut endpoint = Endpoint::new(cfg).unwrap();
    let pd = endpoint.alloc_pd();
    let path = PathConfig { active: 4, backup: 0, ..PathConfig::new(1) };
    let init = QpInit {
        cap: QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() },
        path,
        ..QpInit::new(pd, CqId(0), CqId(0))
    };
    let made: Vec<Qpn> = (0..COUNT).map(|_| endpoint.create_qp(init.clone()).unwrap()).collect();
    assert!(matches!(endpoint.create_qp(init), Err(EndpointError::Limit("limits.max_qps"))));
    // Those made while there was room; the last ones take what is left.
    let early = &made[..COUNT as usize / 2];
    for bit in 0..24 {
        let differ = early.windows(2).filter(|pair| (pair[0].get() ^ pair[1].get()) >> bit & 1 == 1).count();
        // Five standard deviations of a fair coin thrown 2047 times.
        assert!((911..=1137).contains(&differ), "bit {bit}: {differ}");
    }
    assert!(made.iter().all(|qpn| qpn.get() > 2 && endpoint.qp_state(*qpn) == Some(QpState::Reset)));
    let mut psns: Vec<u32> = made.iter().map(|&qpn| endpoint.qp_info(qpn).unwrap().psn).collect();
    psns.sort_unstable();
    psns.dedup();
    assert!(psns.len() > 4080, "{} of {COUNT} PSNs differ", psns.len());
}
