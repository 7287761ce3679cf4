//! The key-value store: late, unreachable, or separate.

use std::time::Instant;

use spindrift::fallback::{Event, FallbackError, MemoryStore, Nic};
use spindrift::verbs::{SendOp, Wc, WcStatus};

use crate::duo::{Duo, PATIENCE};

/// A write of side 0 ends with its queue pair, for this reason.
fn write_fails(duo: &mut Duo, reason: FallbackError) {
    let wr = duo.request(0, 8, SendOp::Write);
    duo.post(0, wr);
    assert_eq!(duo.collect([1, 0])[0][0].status, WcStatus::RetryExceeded);
    assert_eq!(duo.failures()[0], Some(reason));
}

#[test]
fn without_a_store_a_failure_is_an_error() {
    let store = MemoryStore::default();
    store.set_down(true);
    let mut duo = Duo::impatient(&[store.clone(), store]);
    duo.exchange(0, 8);
    let warned = |duo: &Duo| duo.sides.iter().all(|side| matches!(side.events[..], [Event::StoreFailed(_)]));
    assert!(warned(&duo), "one warning on each side, before anything fails");
    duo.links[0].drop_silently();
    write_fails(&mut duo, FallbackError::NoSpare { failed: Nic::Default });
}

#[test]
fn a_store_that_comes_late_is_in_time_before_the_failure() {
    let store = MemoryStore::default();
    store.set_down(true);
    let mut duo = Duo::impatient(&[store.clone(), store]);
    duo.exchange(0, 8);
    duo.store.set_down(false);
    duo.arm();
    duo.links[0].drop_silently();
    duo.exchange(8, 8);
}

/// A side that is prepared may stop polling: what the other side needs is in the store.
#[test]
fn one_side_does_not_wait_for_the_other_to_poll() {
    for _ in 0..20 {
        let mut duo = Duo::new();
        let armed = |duo: &Duo, at: usize| {
            let side = &duo.sides[at];
            side.context.is_prepared(side.qp, Nic::Backup).unwrap()
        };
        duo.until("one side is armed", |duo| armed(duo, 0) || armed(duo, 1));
        let last = usize::from(armed(&duo, 0));
        let start = Instant::now();
        while !armed(&duo, last) {
            assert_eq!(duo.sides[last].context.poll(&mut [Wc::default(); 4]), 0);
            assert!(start.elapsed() < PATIENCE, "side {last} waits for the other");
        }
    }
}

#[test]
fn keys_are_needed_when_the_nic_has_failed() {
    let mut duo = Duo::armed();
    duo.store.set_down(true);
    duo.links[0].drop_silently();
    // A SEND needs no key of the peer.
    duo.exchange(0, 8);
    write_fails(&mut duo, FallbackError::StoreUnreachable);
}

#[test]
fn two_stores_that_do_not_know_each_other_arm_nothing() {
    let mut duo = Duo::impatient(&Default::default());
    duo.exchange(0, 8);
    duo.links[0].drop_silently();
    write_fails(&mut duo, FallbackError::NoSpare { failed: Nic::Default });
}
