//! Ports that hold payloads: a request is not complete before they let go of it.

use spindrift::endpoint::{FailReason, QpModify};
use spindrift::wire::{Aeth, NakCode};
use spindrift::work::{SendOp, WcStatus};

use crate::sender::{Sender, Setup};

/// A sender whose port holds what it was given, so the first data packet has ticket 0.
fn holding() -> Sender {
    let mut sender = Sender::new(Setup::default());
    sender.net.endpoint(0).release_before(0);
    sender
}

const NONE: Vec<u64> = Vec::new();

/// Completions after the port let go of everything before `ticket`, by `wr_id`.
fn released(sender: &mut Sender, ticket: u64) -> Vec<u64> {
    sender.net.endpoint(0).release_before(ticket);
    sender.go();
    let (completions, failure) = sender.ended();
    assert!(failure.is_none() && completions.iter().all(|wc| wc.status.is_success()), "{completions:?}");
    completions.iter().map(|wc| wc.wr_id).collect()
}

fn waits(sender: &mut Sender) -> bool {
    sender.net.endpoint(0).waits_for_release()
}

fn recall(sender: &mut Sender) -> bool {
    sender.net.endpoint(0).take_recall()
}

#[test]
fn a_request_is_complete_when_no_port_holds_a_packet_of_it() {
    let mut sender = holding();
    for packets in [4, 1, 3] {
        sender.post(packets);
    }
    assert_eq!(released(&mut sender, 2), NONE, "not acknowledged");
    sender.ack(5, Aeth::ack(0));
    assert!(waits(&mut sender) && sender.ended().0.is_empty());
    assert_eq!(sender.status().send_outstanding, 3);
    assert_eq!((released(&mut sender, 3), waits(&mut sender)), (vec![], true));
    assert_eq!((released(&mut sender, 4), waits(&mut sender)), (vec![0], true));
    assert_eq!((released(&mut sender, 5), waits(&mut sender)), (vec![1], false));
    // The other way round: let go of first.
    assert_eq!(released(&mut sender, u64::MAX), NONE);
    sender.ack(8, Aeth::ack(0));
    assert_eq!((sender.ended().0.len(), waits(&mut sender), recall(&mut sender)), (1, false, false));
    // "All" was what had left by then.
    sender.post(1);
    sender.ack(9, Aeth::ack(0));
    assert!(waits(&mut sender) && sender.ended().0.is_empty());
    assert_eq!(released(&mut sender, u64::MAX), [3]);
}

/// The copy that was acknowledged was let go of, another one is still there.
#[test]
fn a_repeat_is_held_like_the_first_copy() {
    let mut sender = holding();
    sender.post(2);
    sender.post(1);
    sender.sent();
    sender.wait(150_000);
    let probe = sender.sent_one();
    assert_eq!((probe.n, probe.rtx, sender.status().counters.tx_repeats), (0, true, 1));
    sender.ack(3, Aeth::ack(0));
    assert_eq!(
        (released(&mut sender, 3), waits(&mut sender)),
        (vec![], true),
        "the second is behind the first"
    );
    assert_eq!((released(&mut sender, 4), waits(&mut sender)), (vec![0, 1], false));
}

/// The peer has all of it, so there is nothing to repeat and nothing to give up.
#[test]
fn a_request_that_is_only_held_runs_into_no_timer() {
    let mut sender = holding();
    sender.post(2);
    sender.sent();
    sender.ack(2, Aeth::ack(0));
    let now = sender.net.now;
    // Nor is there anything that a plane must be there for.
    sender.net.endpoint(0).port_link(now, 0, false);
    sender.wait(100_000_000_000);
    let now = sender.net.now;
    sender.net.endpoint(0).port_link(now, 0, true);
    sender.wait(100_000_000_000);
    assert_eq!((sender.sent(), sender.ended().1, waits(&mut sender)), (vec![], None, true));
    // A later one has its own time.
    sender.post(3);
    let first = sender.sent();
    assert_eq!(first.len(), 3);
    sender.wait(100_000);
    let probe = sender.sent_one();
    assert_eq!((probe.n, probe.rtx), (2, true));
    // All has arrived, but the acknowledgement is lost: the one asked about is the oldest that has none.
    let seth = sender.answer(&probe, 5);
    sender.sack(seth);
    sender.wait(1_000_000);
    let again = sender.sent();
    assert!(again.iter().all(|packet| (packet.n, packet.rtx) == (4, true)) && !again.is_empty(), "{again:?}");
    sender.ack(5, Aeth::ack(0));
    assert_eq!(released(&mut sender, u64::MAX), [0, 1]);
    sender.wait(100_000_000_000);
    assert_eq!(sender.sent(), []);
}

/// What the peer acknowledged has succeeded whatever comes after; and ports are made to let go of all of it.
#[test]
fn a_failure_ends_held_requests_well_and_calls_their_payload_back() {
    let mut sender = holding();
    for _ in 0..3 {
        sender.post(1);
    }
    sender.queue(300, SendOp::Write, true);
    sender.ack(2, Aeth::ack(0));
    assert!(!recall(&mut sender));
    sender.ack(3, Aeth::nak(NakCode::RemoteAccess, 2));
    assert!(recall(&mut sender) && !recall(&mut sender), "once");
    let (completions, failure) = sender.ended();
    let seen: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let (good, bad, flushed) = (WcStatus::Success, WcStatus::RemoteAccessError, WcStatus::WrFlushError);
    assert_eq!(seen, [(0, good), (1, good), (2, bad), (3, flushed)]);
    assert_eq!(failure, Some(FailReason::PeerRefused));
    assert_eq!(released(&mut sender, u64::MAX), NONE);
}

/// The same where the failure leaves nothing else that a port holds.
#[test]
fn what_was_acknowledged_is_called_back_from_ports_too() {
    let mut sender = holding();
    sender.post(1);
    sender.post(2);
    sender.ack(3, Aeth::ack(0));
    assert!(!recall(&mut sender) && sender.ended().0.is_empty());
    let (now, qpn) = (sender.net.now, sender.qp.qpn);
    sender.net.endpoint(0).modify_qp(now, qpn, QpModify::Error).unwrap();
    assert!(recall(&mut sender));
    sender.go();
    let ended: Vec<_> = sender.ended().0.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ended, [(0, WcStatus::Success), (1, WcStatus::Success)]);
}

/// Nothing is called back that no port can have.
#[test]
fn what_ports_let_go_of_is_not_called_back() {
    for (acked, before, called) in
        [(0, 0, true), (0, 1, true), (0, 2, false), (2, 1, true), (2, 6, true), (2, 7, false)]
    {
        for destroyed in [false, true] {
            let mut sender = holding();
            sender.post(2);
            sender.queue(5, SendOp::Write, false);
            if acked > 0 {
                // Sends what was queued, too.
                sender.ack(acked, Aeth::ack(0));
            }
            sender.net.endpoint(0).release_before(before);
            let (now, qpn) = (sender.net.now, sender.qp.qpn);
            if destroyed {
                sender.net.endpoint(0).destroy_qp(qpn).unwrap();
            } else {
                sender.net.endpoint(0).modify_qp(now, qpn, QpModify::Error).unwrap();
            }
            assert_eq!(recall(&mut sender), called, "{acked} acknowledged, before {before}, {destroyed}");
            // Its place in the list of those that wait means nothing any more.
            sender.net.endpoint(0).release_before(u64::MAX);
            assert!(!waits(&mut sender));
        }
    }
    let mut sender = Sender::new(Setup::default());
    sender.post(2);
    let qpn = sender.qp.qpn;
    sender.net.endpoint(0).destroy_qp(qpn).unwrap();
    assert!(!recall(&mut sender), "the ports hold nothing");
}
