//! The driver of the endpoint did not run for a while: that makes neither packets nor answers late.
//!
//! Tests decision 28 of `docs/protocol.md`.

use spindrift::wire::{Aeth, Seth};

use crate::sender::{RTT, Sender, Setup, same_path};

const MS: u64 = 1_000_000;
/// What a driver that was away has time to take in before timers run.
const HELD: u64 = 250_000;

/// Both timers, the tail probe's and the retransmission timer's, are long due when the driver comes back.
#[test]
fn answers_that_wait_are_heard_before_timers_run() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 4);
    sender.wait(50_000);
    sender.away(20 * MS);
    sender.wait(HELD - 1);
    assert_eq!((sender.sent(), sender.counters().timeouts), (vec![], 0));
    sender.sack(sender.answer(&sent[3], 4));
    sender.ack(4, Aeth::ack(1));
    sender.wait(100 * MS);
    let counters = sender.counters();
    assert_eq!((sender.sent(), counters.timeouts, counters.tx_tail_probes), (vec![], 0, 0));
}

/// For as long as the driver was away, and 250 us at most.
#[test]
fn timers_that_became_due_run_a_little_later() {
    for (away, held) in [(100_000, 100_000), (HELD, HELD), (20 * MS, HELD), (20_000 * MS, HELD)] {
        let (mut sender, sent) = Sender::sending(Setup::default(), 4);
        sender.wait(50_000);
        sender.away(away);
        let back = sender.net.now;
        sender.wait(held - 1);
        assert_eq!((sender.sent(), sender.counters().timeouts), (vec![], 0), "{away}");
        sender.wait(1);
        let probe = sender.sent_one();
        assert_eq!((probe.n, probe.rtx, probe.at), (0, true, back.after(held)), "{away}");
        assert_ne!(probe.ev, sent[0].ev);
        assert_eq!(sender.counters().timeouts, u64::from(away > 16 * MS), "once, however long it was");
    }
}

/// A timer that is not due yet keeps its time.
#[test]
fn timers_that_are_due_later_are_not_held_up() {
    let (mut sender, sent) = Sender::sending(Setup { tail_probe_floor_ns: 5 * MS, ..Setup::default() }, 4);
    sender.away(2 * MS);
    sender.wait(3 * MS - 1);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    assert_eq!(sender.sent_one().at, sent[0].at.after(5 * MS));
}

/// An application that polls now and then finds a dead peer all the same.
#[test]
fn a_driver_that_is_away_again_and_again_holds_a_timer_up_once() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 4);
    sender.away(10 * MS);
    sender.wait(0);
    assert_eq!(sender.sent(), []);
    sender.away(10 * MS);
    sender.wait(0);
    assert_eq!(sender.sent_one().at, sent[0].at.after(20 * MS), "in the turn after");
    // What became due since is held up in its turn.
    let late = sender.counters().timeouts;
    sender.away(100 * MS);
    sender.wait(0);
    assert_eq!((sender.sent(), sender.counters().timeouts), (vec![], late));
    sender.away(100 * MS);
    sender.wait(0);
    assert_eq!((sender.sent().len(), sender.counters().timeouts), (1, late + 1));
}

/// So does one that became due in the very moment at which the driver left again.
#[test]
fn a_timer_due_when_the_driver_leaves_again_has_been_held_up() {
    let (mut sender, sent) = Sender::sending(Setup { tail_probe_floor_ns: 5 * MS, ..Setup::default() }, 4);
    sender.away(5 * MS);
    sender.away(5 * MS);
    sender.wait(0);
    assert_eq!(sender.sent_one().at, sent[0].at.after(10 * MS));
}

/// The first packet of two bears the time of the turn before the driver was away. It may have left after that, just before
/// the second, and is not late because the second overtook it.
#[test]
fn packets_are_not_late_for_the_time_of_the_driver() {
    for away in [false, true] {
        let (mut sender, _) = Sender::sending(Setup { planes: 2, ..Setup::default() }, 1);
        let first = sender.net.now;
        if away {
            sender.away(8 * MS);
        } else {
            sender.wait(50_000);
        }
        sender.post(1);
        let second = sender.sent().into_iter().find(|packet| packet.n == 1).unwrap();
        sender.wait(RTT);
        sender.sack(Seth { bitmap: 0b10, ..sender.answer(&second, 0) });
        assert_eq!(sender.counters().loss_overdue, u64::from(!away));
        if away {
            assert_eq!(sender.sent(), []);
            // Its time runs from when the driver came back, and timers a little later.
            sender.wait(HELD - RTT);
            let again = sender.sent_one();
            assert_eq!((again.n, again.at), (0, second.at.after(HELD)));
            assert!(again.at.since(first) > 8 * MS);
        }
    }
}

/// A loss that the order on a path proves is one, whenever it is read.
#[test]
fn order_proves_a_loss_whether_or_not_the_driver_was_away() {
    let (mut sender, sent) = Sender::sending(Setup::default(), 32);
    let (lost, later) = same_path(&sent);
    sender.away(8 * MS);
    sender.sack(Seth { bitmap: 1 << later.n, ..sender.answer(&later, 0) });
    assert_eq!((sender.sent_one().n, sender.counters().loss_same_ev), (lost.n, 1));
}
