//! Asynchronous events reach the application, and the descriptor says when.

use spindrift::path::{EvState, PathConfig, PlaneSet};
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::time::Time;
use spindrift::verbs::{AsyncEvent, Context, FailReason, QpConfig, QpModify, QpState, nic};
use spindrift::wire::Ev;

use crate::connected_pair::{self as sides, Side, THREAD, connect, pair, side, until, write};
use crate::fault_switch::{FaultSwitch, SwitchedPort};

fn is_readable(context: &Context) -> bool {
    sides::is_readable(context.async_fd())
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

/// A pair of two planes. The second port of the left side can be switched off.
fn pair_with_switch() -> (Side, Side, FaultSwitch) {
    let (left, right) = loopback::pair(2, LoopbackConfig::default());
    let (left, switch) = SwitchedPort::last_of(left);
    let config = QpConfig::default();
    let (mut left, mut right) = (side(left, THREAD, &config), side(nic(right), THREAD, &config));
    connect(&mut left, &mut right);
    (left, right, switch)
}

#[test]
fn a_port_that_loses_its_link_and_has_it_back_is_told() {
    let (left, right, switch) = pair_with_switch();
    let next = || until("an event", || left.context.poll_async_event());
    switch.down();
    assert_eq!(next(), AsyncEvent::PortDown { lane: 0, plane: 1 });
    switch.open();
    assert_eq!(next(), AsyncEvent::PortUp { lane: 0, plane: 1 });
    assert_eq!(left.context.poll_async_event(), None);
    assert_eq!(right.context.poll_async_event(), None, "its own port has its link");
}

/// Every entropy value of the plane is told as bad once, and as good once after the plane carries packets again.
#[test]
fn paths_that_go_bad_and_come_back_are_told() {
    let (mut left, right, switch) = pair_with_switch();
    switch.drop_silently();
    let qpn = left.qp.qpn();
    let mut told: Vec<(Ev, Vec<EvState>)> = Vec::new();
    let mut posted = 0;
    until("a path that came back", || {
        while left.cq.poll_one().unwrap().is_some() {
            posted -= 1;
        }
        while posted < 16 {
            left.qp.post_send(write(&left, &right, 1, 1 << 16)).unwrap();
            posted += 1;
        }
        while let Some(event) = left.context.poll_async_event() {
            let AsyncEvent::Path { qpn: of, change } = event else { panic!("{event:?}") };
            assert_eq!(of, qpn);
            // Where the machine pauses this process, packets of the other plane may be taken for lost too, until they
            // arrive after all.
            if change.plane != 1 {
                continue;
            }
            assert!(change.drop_count > 0, "{change:?}");
            match told.iter_mut().find(|(ev, _)| *ev == change.ev) {
                Some((_, states)) => states.push(change.state),
                None => told.push((change.ev, vec![change.state])),
            }
        }
        if !told.is_empty() {
            switch.open();
        }
        let back = told.iter().any(|(_, states)| states.last() == Some(&EvState::Good));
        back.then_some(())
    });
    let lost =
        left.context.with_endpoint(move |e| e.path_counters(qpn).map(|paths| paths.events_lost)).unwrap();
    if lost != Some(0) {
        // A pause brought more changes at once than are kept, and counted the rest: then one may be missing here too.
        return;
    }
    for (ev, states) in told {
        assert_eq!(states[0], EvState::AssumedBad, "{ev:?} {states:?}");
        assert!(states.windows(2).all(|pair| pair[0] != pair[1]), "{ev:?} {states:?}");
    }
}

#[test]
fn a_completion_queue_that_overruns_is_told_before_its_queue_pairs_fail() {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let config = QpConfig::default();
    let (mut left, mut right) = (side(nic(left), THREAD, &config), side(nic(right), THREAD, &config));
    connect(&mut left, &mut right);
    let qpn = left.qp.qpn();
    let mut wr_id = 0;
    until("the overrun", || {
        // Refused when the queue pair has failed, or is full for now.
        wr_id += u64::from(left.qp.post_send(write(&left, &right, wr_id, 8)).is_ok());
        (left.qp.state().0 == QpState::Error).then_some(())
    });
    // A machine that pauses a lane for long may make a path look bad meanwhile.
    let ends = |event: &AsyncEvent| matches!(event, AsyncEvent::CqError { .. } | AsyncEvent::QpFatal(_));
    let next = || until("an event", || left.context.poll_async_event().filter(ends));
    let AsyncEvent::CqError { cq } = next() else { panic!("the failure comes first") };
    assert_eq!(cq, left.cq.id());
    let AsyncEvent::QpFatal(failure) = next() else { panic!("a second overrun") };
    assert_eq!((failure.qpn, failure.reason), (qpn, FailReason::Requested));
    let rest = core::iter::from_fn(|| left.context.poll_async_event());
    assert_eq!(rest.filter(ends).collect::<Vec<_>>(), []);
    assert!(wr_id > 256, "{wr_id}: the queue holds as many as it was made for");
}

/// The newest are lost: those that tell how it began are kept.
#[test]
fn events_that_nobody_takes_are_counted() {
    const ROOM: u64 = 1_024;
    let (left, _right) = pair(2, THREAD);
    let qpn = left.qp.qpn();
    let evs: Vec<_> = left.context.with_endpoint(|e| e.ev_states(qpn).unwrap().collect::<Vec<_>>()).unwrap();
    let ev = evs.iter().find(|ev| ev.active).unwrap().ev;
    for _ in 0..ROOM + 10 {
        left.context.with_endpoint(|e| e.deny_ev(qpn, ev, None)).unwrap();
        left.context.with_endpoint(|e| e.allow_ev(qpn, ev, None)).unwrap();
    }
    let lost = until("the last event", || Some(left.context.async_events_lost()).filter(|lost| *lost >= 10));
    let events: Vec<_> = core::iter::from_fn(|| left.context.poll_async_event()).collect();
    assert_eq!((events.len() as u64, lost), (ROOM, 10));
    assert!(events.iter().all(|event| *event == AsyncEvent::PathDenied { qpn, ev: Some(ev), plane: None }));
    assert!(!is_readable(&left.context));
}

/// Plane 0 stands by for plane 1, whose port fails. The work requests complete over plane 0, and the application is told.
#[test]
fn a_nic_that_takes_over_and_gives_back_is_told() {
    for silent in [false, true] {
        let (left, right) = loopback::pair(2, LoopbackConfig::default());
        let (left, switch) = SwitchedPort::last_of(left);
        let path = PathConfig { standby: PlaneSet(0b01), failback_hold_ns: 1_000_000, ..PathConfig::new(2) };
        let config = QpConfig { path, ..QpConfig::default() };
        let (mut left, mut right) = (side(left, THREAD, &config), side(nic(right), THREAD, &config));
        connect(&mut left, &mut right);
        let qpn = left.qp.qpn();
        let mut posted = 0;
        // Writes until the packets take these planes. Where the machine pauses a side, they may take others before.
        let mut wait_for = |left: &mut Side, wanted: PlaneSet| {
            until("other planes", || {
                while left.cq.poll_one().unwrap().inspect(|wc| assert!(wc.status.is_success())).is_some() {
                    posted -= 1;
                }
                while posted < 16 {
                    left.qp.post_send(write(left, &right, 1, 1 << 16)).unwrap();
                    posted += 1;
                }
                match left.context.poll_async_event()? {
                    AsyncEvent::PlanesSwitched { qpn: of, planes } if of == qpn && planes == wanted => {
                        Some(())
                    }
                    _ => None,
                }
            });
        };
        if silent {
            switch.drop_silently();
        } else {
            switch.down();
        }
        wait_for(&mut left, PlaneSet(0b01));
        switch.open();
        wait_for(&mut left, PlaneSet(0b10));
        let status = left.context.with_endpoint(move |e| e.role_status(qpn)).unwrap().unwrap();
        assert!(status.failovers >= 1 && status.failbacks >= 1, "{status:?}");
        assert!(silent || status.silent_failovers < status.failovers, "{status:?}");
    }
}
