//! Transport acknowledgements: what they complete and free, and that they say nothing of paths.

use spindrift::endpoint::FailReason;
use spindrift::wire::{Aeth, NakCode};
use spindrift::work::WcStatus;

use crate::sender::{FULL, RTT, Sender, Setup};

#[test]
fn an_acknowledgement_completes_messages_and_frees_the_window() {
    let mut sender = Sender::new(Setup::default());
    for _ in 0..3 {
        sender.post(4);
    }
    assert_eq!(sender.sent().len(), 12);
    for (end, completed, inflight) in [(3, 0, 9), (4, 1, 8), (4, 0, 8), (2, 0, 8), (11, 1, 1), (12, 1, 0)] {
        sender.wait(100);
        sender.ack(end, Aeth::ack(0));
        assert_eq!((sender.ended().0.len(), sender.inflight()), (completed, inflight), "{end}");
    }
    let status = sender.status();
    assert_eq!((status.cwnd_bytes, status.smoothed_rtt_ns, status.send_outstanding), (FULL, 0, 0));
    assert_eq!((sender.blamed(), sender.paths().losses), (vec![], 0));
    sender.wait(1_000_000_000);
    assert_eq!(sender.sent(), [], "no timer is left");
}

/// The window is counted from what arrived in order, and an ACK says that too.
#[test]
fn an_acknowledgement_opens_the_window() {
    let cc = spindrift::congestion::CcConfig::none();
    let mut sender = Sender::new(Setup { mpr: 1, cc, ..Setup::default() });
    sender.post(200);
    assert_eq!(sender.sent().len(), 127);
    sender.ack(10, Aeth::ack(0));
    assert_eq!(sender.sent_numbers(), (127..137).collect::<Vec<_>>());
}

/// Silence is counted from the last acknowledgement that was news.
#[test]
fn an_acknowledgement_puts_the_tail_probe_off() {
    let (mut sender, _) = Sender::sending(Setup::default(), 8);
    sender.wait(90_000);
    sender.ack(2, Aeth::ack(0));
    sender.wait(50_000);
    sender.ack(2, Aeth::ack(0));
    sender.wait(49_999);
    assert_eq!(sender.sent(), []);
    sender.wait(1);
    let probe = sender.sent_one();
    assert_eq!((probe.n, probe.rtx), (2, true));
}

#[test]
fn a_nak_of_every_code_ends_the_queue_pair_and_blames_no_path() {
    for (code, status) in [
        (NakCode::InvalidRequest, Some(WcStatus::RemoteInvalidRequest)),
        (NakCode::RemoteAccess, Some(WcStatus::RemoteAccessError)),
        (NakCode::RemoteOperational, Some(WcStatus::RemoteOperationError)),
        (NakCode::PsnSequence, None),
    ] {
        let mut sender = Sender::new(Setup::default());
        for _ in 0..3 {
            sender.post(2);
        }
        sender.wait(RTT);
        // The second message is refused; the count says that the first is complete.
        sender.ack(4, Aeth::nak(code, 1));
        let (completions, failure) = sender.ended();
        let ends: Vec<_> = completions.iter().map(|wc| wc.status).collect();
        match status {
            Some(status) => {
                assert_eq!(ends, [WcStatus::Success, status, WcStatus::WrFlushError], "{code:?}");
                assert_eq!(failure, Some(FailReason::PeerRefused), "{code:?}");
            }
            None => assert_eq!((ends, failure), (vec![], None), "{code:?}"),
        }
        assert_eq!((sender.blamed(), sender.cwnd()), (vec![], FULL), "{code:?}");
    }
}
