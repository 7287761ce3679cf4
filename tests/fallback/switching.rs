//! The death of a NIC, and the return to it.

use std::sync::atomic::Ordering;

use spindrift::fallback::{
    Event, FallbackConfig, FallbackError, MemoryStore, Nic, PairId, ReceiveState, SendState,
};
use spindrift::verbs::{CqError, PostError, QpConfig, RtsAttr, SendOp, WcStatus};

use crate::duo::{Duo, PANIC, SHORT, Side, qp_config};
use crate::fault_switch::FaultSwitch;

const ON_DEFAULT: (SendState, ReceiveState) = (SendState::Default, ReceiveState::Default);
const ON_BACKUP: (SendState, ReceiveState) = (SendState::Fallback, ReceiveState::Fallback);

#[test]
fn without_a_failure_nothing_changes() {
    let mut duo = Duo::armed();
    for round in 0..8 {
        duo.exchange(round * 8, 8);
    }
    assert_eq!(duo.states(), [ON_DEFAULT; 2]);
    for side in &duo.sides {
        assert_eq!(side.context.counters(side.qp).unwrap().switches, 0);
        let first = PairId { nic: Nic::Backup, generation: 0 };
        assert_eq!(side.events, [Event::Prepared { qp: side.qp, pair: first }]);
    }
}

#[test]
fn messages_survive_the_death_of_the_default_nic() {
    for silent in [true, false] {
        let mut duo = Duo::armed();
        duo.exchange(0, 8);
        // The next messages are on their way when it dies.
        for at in 0..2 {
            duo.post_receives(at, 8..16);
            for number in 8..16 {
                let wr = duo.request(at, number, SendOp::SendWithImm(number as u32));
                duo.post(at, wr);
            }
        }
        if silent {
            duo.links[0].drop_silently();
        } else {
            duo.links[0].down();
        }
        let got = duo.collect([16; 2]);
        duo.check_exchange(&got, 8, 8);
        assert_eq!(duo.states(), [ON_BACKUP; 2]);
        duo.exchange(16, 8);
        let begun: u64 = duo.sides.iter().map(|side| side.context.counters(side.qp).unwrap().switches).sum();
        assert!(begun > 0);
    }
}

#[test]
fn traffic_returns_to_the_default_nic() {
    let mut duo = Duo::armed();
    for turn in 0..4 {
        duo.links[0].drop_silently();
        duo.exchange(turn * 48, 8);
        assert_eq!(duo.states(), [ON_BACKUP; 2], "turn {turn}");
        duo.links[0].open();
        duo.until("returned", |duo| duo.states() == [ON_DEFAULT; 2]);
        duo.exchange(turn * 48 + 8, 8);
        assert_eq!(duo.states(), [ON_DEFAULT; 2], "turn {turn}");
        duo.arm();
    }
    let moves = |side: &Side| side.context.counters(side.qp).unwrap().moves;
    assert!(duo.sides.iter().all(|side| moves(side) == 4));
}

/// A side that only serves the peer's writes has no completion between two failures.
#[test]
fn a_side_without_requests_survives_any_number_of_failures() {
    let mut duo = Duo::armed();
    let turns = 2 * FallbackConfig::default().max_attempts as usize + 1;
    for turn in 0..turns {
        duo.links[0].down();
        duo.until("left", |duo| duo.states() == [ON_BACKUP; 2]);
        let wr = duo.request(1, turn, SendOp::Write);
        duo.post(1, wr);
        duo.collect([0, 1]);
        duo.check(0, turn);
        duo.links[0].open();
        duo.until("returned", |duo| duo.states() == [ON_DEFAULT; 2]);
        duo.arm();
    }
    let begun = duo.sides[0].context.counters(duo.sides[0].qp).unwrap().switches;
    assert_eq!(begun, turns as u64);
}

#[test]
fn traffic_returns_while_messages_flow() {
    let mut duo = Duo::armed();
    duo.links[0].drop_silently();
    duo.exchange(0, 8);
    duo.links[0].open();
    let mut number = 8;
    while duo.states() != [ON_DEFAULT; 2] {
        duo.exchange(number, 8);
        number += 8;
        assert!(number < 10_000_000, "{:?}", duo.states());
    }
    duo.exchange(number, 8);
}

#[test]
fn an_operator_moves_traffic_and_back() {
    let mut duo = Duo::armed();
    for nic in [Nic::Backup, Nic::Default, Nic::Backup] {
        for side in &mut duo.sides {
            side.context.prefer(side.qp, nic).unwrap();
        }
        let state = if nic == Nic::Backup { ON_BACKUP } else { ON_DEFAULT };
        duo.until("moved", |duo| duo.states() == [state; 2]);
        duo.exchange(0, 8);
    }
    for side in &duo.sides {
        let counters = side.context.counters(side.qp).unwrap();
        assert_eq!((counters.switches, counters.switches_by_peer, counters.moves), (0, 0, 3));
    }
}

#[test]
fn the_backup_may_die_too_if_the_default_is_back() {
    let mut duo = Duo::armed();
    duo.links[0].drop_silently();
    duo.exchange(0, 8);
    assert_eq!(duo.states(), [ON_BACKUP; 2]);
    duo.links[0].open();
    duo.links[1].drop_silently();
    duo.exchange(8, 8);
    assert!(duo.states().iter().all(|state| *state == ON_DEFAULT), "{:?}", duo.states());
}

#[test]
fn a_nic_whose_lane_fails_is_a_nic_that_dies() {
    let mut duo = Duo::threaded();
    duo.arm();
    duo.exchange(0, 8);
    duo.defects[0].store(PANIC, Ordering::Relaxed);
    duo.exchange(8, 8);
    assert_eq!(duo.states()[0], ON_BACKUP);
    let lost = Event::NicLost { nic: Nic::Default, reason: CqError::LaneFailed };
    duo.until("lost", |duo| duo.sides[0].events.contains(&lost));
    // It does not come back, and nothing returns to it.
    duo.exchange(16, 8);
    assert_eq!(duo.states(), [ON_BACKUP; 2]);
}

#[test]
fn a_nic_that_loses_its_links_is_left_at_once() {
    // Retransmissions have no limit, so that only the link event can lead to the other NIC.
    let retry = RtsAttr { exponential_retries: RtsAttr::MAX_EXPONENTIAL, ..qp_config().retry };
    let mut duo = Duo::configured(&QpConfig { retry, ..qp_config() });
    duo.arm();
    duo.links[0].down();
    duo.exchange(0, 8);
    assert_eq!(duo.states(), [ON_BACKUP; 2]);
    let down = Event::Link { nic: Nic::Default, lane: 0, plane: 0, up: false };
    assert!(duo.sides[0].events.contains(&down), "{:?}", duo.sides[0].events);
    duo.links[0].open();
    duo.until("returned", |duo| duo.states() == [ON_DEFAULT; 2]);
    let up = Event::Link { nic: Nic::Default, lane: 0, plane: 0, up: true };
    assert!(duo.sides[0].events.contains(&up), "{:?}", duo.sides[0].events);
}

#[test]
fn links_that_are_all_down_lead_nowhere() {
    // Retransmissions have no limit: everything waits for a link.
    let retry = RtsAttr { exponential_retries: RtsAttr::MAX_EXPONENTIAL, ..qp_config().retry };
    let mut duo = Duo::configured(&QpConfig { retry, ..qp_config() });
    duo.arm();
    duo.links.iter().for_each(FaultSwitch::down);
    let down = |nic| Event::Link { nic, lane: 0, plane: 0, up: false };
    duo.until("down", |duo| Nic::ALL.iter().all(|nic| duo.sides[0].events.contains(&down(*nic))));
    (0..1000).for_each(|_| assert!(duo.poll().iter().all(Vec::is_empty)));
    let switched = |side: &Side| side.context.counters(side.qp).unwrap().switches;
    assert!(switched(&duo.sides[0]) <= 1, "one link may have gone down a moment before the other");
    assert!(duo.failures().iter().all(Option::is_none));
    duo.links.iter().for_each(FaultSwitch::open);
    duo.exchange(0, 8);
}

#[test]
fn a_context_may_move_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&Duo::new().sides[0].context);
}

#[test]
fn a_second_queue_pair_is_independent() {
    let mut duo = Duo::armed();
    let infos = [0, 1].map(|at: usize| {
        let context = &mut duo.sides[at].context;
        let qp = context.create_qp(&qp_config()).unwrap();
        (qp, context.info(qp).unwrap())
    });
    for at in 0..2 {
        duo.sides[at].context.connect(infos[at].0, &infos[1 - at].1).unwrap();
    }
    let second = infos[0].0;
    duo.until("armed", |duo| duo.sides[0].context.is_prepared(second, Nic::Backup).unwrap());
    duo.sides[0].context.prefer(second, Nic::Backup).unwrap();
    duo.until("moved", |duo| duo.sides[0].context.state(second).unwrap().0 == SendState::Fallback);
    assert_eq!(duo.states(), [ON_DEFAULT; 2]);
    duo.exchange(0, 8);
    let wr = duo.request(0, 9, SendOp::Write);
    duo.sides[0].context.post_send(second, wr).unwrap();
    let got = duo.collect([1, 0]);
    assert_eq!((got[0][0].wr_id, got[0][0].qpn.get()), (1009, infos[0].1.qpn));
    duo.check(1, 9);
    // Ended, it is gone, and the first one is not.
    duo.sides[0].context.destroy_qp(second).unwrap();
    assert!(duo.sides[0].context.state(second).is_err());
    assert_eq!(duo.sides[0].context.post_send(second, wr), Err(PostError::Dropped));
    duo.exchange(16, 8);
}

/// Both sides agree again and again, because their messages are short. What they agree on does not work.
#[test]
fn nics_that_lose_long_packets_are_not_tried_for_ever() {
    let mut duo = Duo::armed();
    duo.defects.iter().for_each(|defect| defect.store(SHORT, Ordering::Relaxed));
    let wr = duo.request(0, 0, SendOp::Write);
    duo.post(0, wr);
    let got = duo.collect([1, 0]);
    assert_eq!(got[0][0].status, WcStatus::RetryExceeded);
    let attempts = FallbackConfig::default().max_attempts;
    assert_eq!(duo.failures()[0], Some(FallbackError::AttemptsExhausted { attempts }));
}

#[test]
fn if_both_nics_die_requests_fail() {
    let store = MemoryStore::default();
    let mut duo = Duo::impatient(&[store.clone(), store]);
    duo.arm();
    duo.links.iter().for_each(FaultSwitch::drop_silently);
    duo.post_receives(0, 0..2);
    for number in 0..4 {
        let wr = duo.request(0, number, SendOp::Send);
        duo.post(0, wr);
    }
    let got = duo.collect([6, 0]);
    let statuses: Vec<_> = got[0].iter().map(|wc| wc.status).collect();
    assert_eq!(statuses[0], WcStatus::RetryExceeded);
    assert_eq!(statuses[1..], [WcStatus::WrFlushError; 5]);
    let side = &duo.sides[0];
    let failure = side.context.failure(side.qp).unwrap().unwrap();
    let expected = matches!(failure, FallbackError::NoSpare { .. } | FallbackError::AttemptsExhausted { .. });
    assert!(expected, "{failure}");
    assert!(side.events.contains(&Event::Failed { qp: side.qp, error: failure }));
    // Later requests are flushed.
    let wr = duo.request(0, 4, SendOp::Send);
    duo.post(0, wr);
    let got = duo.collect([1, 0]);
    assert_eq!((got[0][0].wr_id, got[0][0].status), (1004, WcStatus::WrFlushError));
}
