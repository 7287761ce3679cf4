//! Asynchronous events reach the application, and the descriptor says when.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use spindrift::time::Time;
use spindrift::verbs::{AsyncEvent, Context, FailReason, QpModify};
use spindrift::wire::Ev;

use crate::side::{THREAD, pair, until};

/// Whether the descriptor is readable within a while.
fn is_readable(context: &Context) -> bool {
    let stream = UnixStream::from(context.async_fd().try_clone_to_owned().unwrap());
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let readable = std::io::Read::read(&mut &stream, &mut [0]).is_ok();
    stream.set_nonblocking(true).unwrap();
    readable
}

#[test]
fn a_probe_a_denial_and_a_failure_are_told_in_order() {
    let (mut left, _right) = pair(2, THREAD);
    let qpn = left.qp.qpn();
    let context = left.context.clone();
    let next = || until("an event", || context.poll_async_event());
    let id = left.context.with_endpoint(|e| e.send_ev_probe(Time(1), qpn, 0, Ev(5))).unwrap().unwrap();
    assert!(
        matches!(next(), AsyncEvent::EvProbeAnswered { qpn: of, request_id, .. } if (of, request_id) == (qpn, id))
    );
    left.context.with_endpoint(|e| e.deny_plane(qpn, 1)).unwrap();
    assert_eq!(next(), AsyncEvent::PathDenied { qpn, ev: None, plane: Some(1) });
    assert_eq!(left.context.poll_async_event(), None);
    assert!(!is_readable(&left.context), "nothing waits");
    left.qp.modify(QpModify::Error).unwrap();
    assert!(is_readable(&left.context), "an event waits");
    let AsyncEvent::QpFatal(failure) = next() else { panic!("not a failure") };
    assert_eq!((failure.qpn, failure.reason), (qpn, FailReason::Requested));
    assert!(failure.peer.is_some() && failure.peer_qpn.get() > 2);
    assert_eq!(left.context.async_events_lost(), 0);
}
