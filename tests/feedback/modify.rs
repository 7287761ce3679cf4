//! Attributes that change in RTS: retries, with the timer running or not, and congestion control.

use spindrift::congestion::{CcConfig, CcConfigError, NsccOverrides};
use spindrift::endpoint::{EndpointError, FailReason, QpAttr, QpModify, RetryAttr};
use spindrift::wire::{Aeth, Seth};
use spindrift::work::WcStatus;

use crate::sender::{FIRST, FULL, MTU, PACKET, RTT, Sender, Setup, cc};
use crate::support::pair::Patience;

const PATIENCE: Patience = Patience { timeout: 8, linear: 2, exponential: 3 };
const INTERVAL: u64 = 1024 << 8;

/// A sender of one packet without tail probes in the time that these tests take, so that each packet is a timeout.
fn patient() -> Sender {
    let setup = Setup { patience: PATIENCE, tail_probe_floor_ns: 1000 * INTERVAL, ..Setup::default() };
    Sender::sending(setup, 1).0
}

impl Sender {
    fn modify(&mut self, change: QpModify) -> Result<(), EndpointError> {
        let (now, qpn) = (self.net.now, self.qp.qpn);
        let modified = self.net.endpoint(0).modify_qp(now, qpn, change);
        self.go();
        modified.map(|same| assert_eq!(same, qpn))
    }

    fn retry(&mut self, timeout: u8, linear_retries: u8, exponential_retries: u8) {
        let attr = RetryAttr { timeout, linear_retries, exponential_retries };
        self.modify(QpModify::Retry(attr)).unwrap();
        assert_eq!(self.query().rts.unwrap().retry(), attr);
    }

    fn query(&mut self) -> QpAttr {
        let qpn = self.qp.qpn;
        self.net.endpoint(0).query_qp(qpn).unwrap()
    }

    /// Waits to the nanosecond before the next timeout, which is `ns` away, and then for it.
    #[track_caller]
    fn times_out_in(&mut self, ns: u64) {
        let before = self.counters().timeouts;
        self.wait(ns - 1);
        assert_eq!((self.counters().timeouts, self.ended().1), (before, None), "not before");
        self.wait(1);
        assert_eq!(self.counters().timeouts, before + 1);
    }

    #[track_caller]
    fn fails_in(&mut self, ns: u64) {
        self.times_out_in(ns);
        let (completions, failure) = self.ended();
        assert_eq!(failure, Some(FailReason::RetryExceeded));
        assert_eq!(completions.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExceeded]);
    }

    #[track_caller]
    fn goes_on(&mut self) {
        assert_eq!(self.ended(), (vec![], None));
    }
}

#[test]
fn a_shorter_timeout_does_not_wait_for_the_old_deadline() {
    let mut sender = patient();
    sender.wait(INTERVAL / 4);
    sender.retry(7, 2, 3);
    sender.times_out_in(INTERVAL / 4);
    // From there on the new schedule: two linear retries, then doubling ones.
    for interval in [1, 1, 2, 4] {
        sender.times_out_in(interval * INTERVAL / 2);
        sender.goes_on();
    }
    sender.fails_in(8 * INTERVAL / 2);
}

#[test]
fn a_timeout_that_has_passed_already_comes_at_once_and_once() {
    let mut sender = patient();
    sender.wait(INTERVAL - 1);
    sender.retry(1, 7, 9);
    sender.wait(0);
    assert_eq!(sender.counters().timeouts, 1);
    sender.times_out_in(2048);
}

#[test]
fn a_longer_timeout_does_not_come_at_the_old_deadline() {
    let mut sender = patient();
    sender.wait(INTERVAL - 1);
    sender.retry(10, 2, 3);
    sender.times_out_in(3 * INTERVAL + 1);
    sender.times_out_in(4 * INTERVAL);
}

/// Back and forth: what is set last holds, wherever the timer was set to before.
#[test]
fn the_last_change_holds() {
    let mut sender = patient();
    sender.retry(12, 2, 3);
    sender.retry(4, 2, 3);
    sender.retry(9, 2, 3);
    sender.times_out_in(2 * INTERVAL);
}

/// Three timeouts have passed, and the fourth is due after two intervals more.
fn three_timeouts_later() -> Sender {
    let mut sender = patient();
    (0..3).for_each(|_| sender.times_out_in(INTERVAL));
    sender
}

#[test]
fn fewer_retries_than_are_used_up_end_with_the_next_timeout_and_not_before() {
    // The last wait that is left of the schedule is the one that runs.
    for (linear, exponential, wait) in [(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 1, 2), (0, 2, 4), (1, 1, 2)] {
        let mut sender = three_timeouts_later();
        sender.retry(8, linear, exponential);
        sender.goes_on();
        sender.fails_in(wait * INTERVAL);
    }
}

#[test]
fn as_many_retries_as_are_used_up_end_with_the_next_timeout_and_one_more_does_not() {
    let mut sender = three_timeouts_later();
    sender.retry(8, 3, 0);
    sender.fails_in(INTERVAL);
    let mut sender = three_timeouts_later();
    sender.retry(8, 4, 0);
    sender.times_out_in(INTERVAL);
    sender.goes_on();
    sender.fails_in(INTERVAL);
}

#[test]
fn retries_that_are_added_late_count_from_those_used_up() {
    let until_the_end = || {
        let mut sender = three_timeouts_later();
        sender.times_out_in(2 * INTERVAL);
        sender.times_out_in(4 * INTERVAL);
        sender.wait(8 * INTERVAL - 1);
        sender
    };
    until_the_end().fails_in(1);
    let mut sender = until_the_end();
    sender.retry(8, 2, 4);
    sender.times_out_in(1);
    sender.goes_on();
    sender.fails_in(16 * INTERVAL);
    // For ever, and back.
    let mut sender = until_the_end();
    sender.retry(8, 2, 25);
    sender.times_out_in(1);
    sender.times_out_in(16 * INTERVAL);
    sender.times_out_in(32 * INTERVAL);
    sender.retry(8, 2, 3);
    sender.fails_in(8 * INTERVAL);
}

/// What was taken away and given back within one wait has never been missed.
#[test]
fn retries_used_up_are_not_forgotten() {
    let mut sender = three_timeouts_later();
    sender.retry(8, 0, 0);
    sender.retry(8, 2, 3);
    sender.times_out_in(2 * INTERVAL);
    sender.times_out_in(4 * INTERVAL);
    sender.fails_in(8 * INTERVAL);
}

#[test]
fn news_give_all_the_new_retries() {
    let mut sender = Sender::sending(
        Setup { patience: PATIENCE, tail_probe_floor_ns: 1000 * INTERVAL, ..Setup::default() },
        2,
    )
    .0;
    (0..3).for_each(|_| sender.times_out_in(INTERVAL));
    sender.retry(8, 0, 1);
    sender.sack(sender.seth(1));
    sender.times_out_in(INTERVAL);
    sender.goes_on();
    sender.fails_in(2 * INTERVAL);
}

#[test]
fn a_change_while_nothing_is_in_flight_holds_for_what_is_sent_next() {
    let mut sender = patient();
    sender.sack(sender.seth(1));
    sender.ack(1, Aeth::ack(1));
    sender.ended();
    sender.retry(9, 0, 0);
    sender.wait(100 * INTERVAL);
    assert_eq!(sender.counters().timeouts, 0);
    sender.post(1);
    sender.fails_in(2 * INTERVAL);
}

/// As everywhere, a timer waits for answers that take longer than its setting: up to four times the setting of now.
#[test]
fn a_shorter_timeout_waits_for_answers_that_take_long() {
    let mut sender = patient();
    sender.wait(100_000);
    let sent = sender.sent();
    assert_eq!(sent, []);
    sender.sack(sender.seth(1));
    sender.ack(1, Aeth::ack(1));
    for (timeout, wait) in [(1, 4 * 2048), (3, 4 * 8192)] {
        sender.post(1);
        let sent = sender.sent_one();
        sender.wait(100_000);
        sender.sack(sender.answer(&sent, sent.n + 1));
        sender.ack(sent.n + 1, Aeth::ack(sent.n as u32 + 1));
        sender.post(1);
        let last = sender.sent_one();
        sender.retry(timeout, 7, 9);
        sender.times_out_in(wait);
        sender.sack(sender.seth(last.n + 1));
        sender.ack(last.n + 1, Aeth::ack(last.n as u32 + 1));
        sender.sent();
        sender.retry(8, 7, 9);
    }
}

#[test]
fn what_is_out_of_range_is_refused_and_changes_nothing() {
    let mut sender = patient();
    sender.wait(INTERVAL - 1);
    let before = sender.query();
    let good = before.rts.unwrap().retry();
    assert_eq!(good, RetryAttr { timeout: 8, linear_retries: 2, exponential_retries: 3 });
    // What is in range does not slip in beside what is not.
    let other = RetryAttr { timeout: 1, linear_retries: 0, exponential_retries: 0 };
    for (attr, name, value, allowed) in [
        (RetryAttr { timeout: 0, ..other }, "timeout", 0, "1 to 24"),
        (RetryAttr { timeout: 25, ..other }, "timeout", 25, "1 to 24"),
        (RetryAttr { linear_retries: 8, ..other }, "linear_retries", 8, "0 to 7"),
        (RetryAttr { exponential_retries: 26, ..other }, "exponential_retries", 26, "0 to 25"),
    ] {
        let refused = sender.modify(QpModify::Retry(attr));
        let allowed = allowed.to_owned();
        assert_eq!(refused, Err(EndpointError::BadAttribute { name, value, allowed }));
        assert_eq!(sender.query(), before);
    }
    sender.times_out_in(1);
    // The limits themselves are allowed.
    sender.retry(24, 7, 25);
    sender.retry(1, 0, 0);
}

/// A window of so many packets; a packet goes while a whole one fits beside what is in flight.
fn window(packets: u64) -> CcConfig {
    let nscc = NsccOverrides { max_cwnd_bytes: Some(packets * PACKET), ..NsccOverrides::default() };
    CcConfig { nscc, ..cc(nscc) }
}

#[test]
fn other_congestion_control_counts_what_is_in_flight() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 8);
    assert_eq!((sender.cwnd(), sender.inflight()), (FULL, 8));
    sender.modify(QpModify::Congestion(Box::new(window(4)))).unwrap();
    assert_eq!((sender.cwnd(), sender.inflight()), (4 * PACKET, 8));
    let attr = sender.query();
    // The path's packet and what the peers agreed on.
    assert_eq!(attr.cc, CcConfig { mtu_bytes: PACKET as u32, trimming: true, ..window(4) });
    assert_eq!((attr.cwnd_bytes, attr.inflight_bytes), (4 * PACKET, 8 * PACKET));

    // Four more leave only when as many places are free.
    sender.post(4);
    assert_eq!(sender.sent(), []);
    sender.sack(sender.seth(4));
    assert_eq!((sender.inflight(), sender.sent()), (4, vec![]));
    sender.sack(sender.seth(6));
    assert_eq!((sender.sent_numbers(), sender.inflight()), (vec![8, 9], 4));

    // More room is used at once, without waiting for an answer.
    sender.modify(QpModify::Congestion(Box::new(window(16)))).unwrap();
    assert_eq!((sender.sent_numbers(), sender.inflight()), (vec![10, 11], 6));

    // All of it comes back, whichever controller it was counted by.
    sender.modify(QpModify::Congestion(Box::new(CcConfig::none()))).unwrap();
    assert_eq!((sender.cwnd(), sender.inflight()), (u64::MAX, 6));
    sender.modify(QpModify::Congestion(Box::new(window(16)))).unwrap();
    sender.wait(RTT);
    sender.sack(sender.answer(&sent[7], 12));
    assert_eq!(sender.inflight(), 0);
    assert_eq!(sender.query().path_mtu, MTU);
}

#[test]
fn congestion_control_that_cannot_work_is_refused_and_changes_nothing() {
    let (mut sender, _) = Sender::sending(Setup::default(), 8);
    let before = sender.query();
    let bad = CcConfig { link_rate_bps: 0, ..window(4) };
    let refused = sender.modify(QpModify::Congestion(Box::new(bad)));
    assert!(
        matches!(&refused, Err(EndpointError::Congestion(CcConfigError::Zero(name))) if name.contains("link_rate_bps")),
        "{refused:?}"
    );
    assert_eq!(sender.query(), before);
}

/// What a query tells of the requester, while it changes.
#[test]
fn a_query_follows_round_trips_and_the_window() {
    let (mut sender, sent) = Sender::sending(Setup { dynamic_mpr: true, ..Setup::default() }, 2);
    sender.wait(10_000);
    sender.sack(sender.answer(&sent[0], 1));
    sender.wait(40_000);
    sender.sack(Seth { mpr: 4, ..sender.answer(&sent[1], 2) });
    let attr = sender.query();
    assert_eq!((attr.min_rtt_ns, attr.smoothed_rtt_ns), (10_000, (7 * 10_000 + 50_000) / 8));
    assert_eq!((attr.window_psns, attr.rts.unwrap().mpr), (4 * 128, 8));
    assert_eq!((attr.sq_psn, attr.next_sq_psn, attr.sends_outstanding), (FIRST, FIRST.add(2), 1));
    let status = sender.status();
    assert_eq!((attr.smoothed_rtt_ns, attr.min_rtt_ns), (status.smoothed_rtt_ns, status.min_rtt_ns));
    assert_eq!((attr.cwnd_bytes, attr.inflight_bytes), (status.cwnd_bytes, status.inflight_bytes));
    assert_eq!((attr.counters, attr.granted_psns), (status.counters, status.granted_psns));
}
