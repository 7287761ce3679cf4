//! Ports that refer to payloads where they are: what they hold is neither said to be complete nor left behind.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use spindrift::memory::Region;
use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::{LinkState, Port, PortCaps, PortCounters, RxFrame, Tail, TxFrame};
use spindrift::verbs::{FailReason, LaneMode, QpConfig, QpModify, QpState, WcStatus, nic};

use crate::connected_pair::{Side, connect, side, until, write};

/// A data frame that its port has kept.
struct Held {
    head: Vec<u8>,
    udp_payload_at: usize,
    region: Arc<Region>,
    at: usize,
    /// The payload as it was.
    bytes: Vec<u8>,
    /// Where its CRC starts: it is added when the frame leaves, over what is there then.
    crc: u32,
    ticket: u64,
    since_ns: u64,
}

#[derive(Default)]
struct State {
    /// Keep so many data frames.
    keep: usize,
    held: Vec<Held>,
    recalls: u32,
    /// The time of the port's lane.
    now_ns: u64,
    /// The shortest time that a frame was held before it was called back, ns.
    soonest_ns: u64,
    /// A payload changed while it was held.
    changed: bool,
}

#[derive(Clone, Default)]
struct Handle(Arc<Mutex<State>>);

impl Handle {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// Keeps data frames back until it is called on to let go of them.
struct Keeper<P> {
    inner: P,
    handle: Handle,
}

impl<P: Port> Port for Keeper<P> {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }

    fn tx_room(&mut self, now_ns: u64) -> usize {
        self.inner.tx_room(now_ns)
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let mut state = self.handle.state();
        for (sent, frame) in frames.iter().enumerate() {
            let (TxFrame { head, udp_payload_at, ticket, .. }, Tail::Crc32(crc)) = (*frame, frame.tail)
            else {
                panic!("a frame without a CRC");
            };
            match frame.payload.region().filter(|_| state.keep > 0 && !frame.payload.is_empty()) {
                Some((region, at)) => {
                    let mut bytes = Vec::new();
                    frame.payload.append_to(&mut bytes, usize::MAX);
                    let (head, region) = (head.to_vec(), Arc::clone(region));
                    state.keep -= 1;
                    state.held.push(Held {
                        head,
                        udp_payload_at,
                        region,
                        at,
                        bytes,
                        crc,
                        ticket,
                        since_ns: now_ns,
                    });
                }
                None if self.inner.tx_burst(now_ns, &[*frame]) == 0 => return sent,
                None => {}
            }
        }
        frames.len()
    }

    fn unsent(&self) -> &[u16] {
        &[]
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        self.handle.state().now_ns = now_ns;
        self.inner.rx_burst(now_ns, max, sink)
    }

    fn flush(&mut self, now_ns: u64) {
        self.inner.flush(now_ns);
    }

    fn reap(&mut self) -> u64 {
        let held = self.handle.state().held.iter().map(|held| held.ticket).min();
        held.unwrap_or(u64::MAX).min(self.inner.reap())
    }

    fn recall(&mut self) {
        let mut state = self.handle.state();
        state.recalls += 1;
        for held in core::mem::take(&mut state.held) {
            state.soonest_ns = state.soonest_ns.min(state.now_ns - held.since_ns);
            state.changed |= held.region.first_difference(held.at, &held.bytes).unwrap().is_some();
            let frame = TxFrame {
                head: &held.head,
                udp_payload_at: held.udp_payload_at,
                payload: held.region.payload(held.at, held.bytes.len()).unwrap(),
                tail: Tail::Crc32(held.crc),
                ticket: held.ticket,
            };
            assert_eq!(self.inner.tx_burst(0, &[frame]), 1, "the ring has room");
        }
        self.inner.recall();
    }

    fn link(&mut self) -> LinkState {
        self.inner.link()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

fn bench() -> (Side, Side, Handle) {
    let (ours, theirs) = loopback::pair(2, LoopbackConfig::default());
    let handle = Handle::default();
    handle.state().soonest_ns = u64::MAX;
    let ours: Vec<_> = ours.into_iter().map(|inner| Keeper { inner, handle: handle.clone() }).collect();
    let config = QpConfig::default();
    let (mut left, mut right) =
        (side(nic(ours), LaneMode::Inline, &config), side(nic(theirs), LaneMode::Inline, &config));
    connect(&mut left, &mut right);
    (left, right, handle)
}

/// The first copy is still in the port when the second has arrived and is acknowledged: the request is complete when
/// both have left, and the first is then what it was, though the application changes its memory at once.
#[test]
fn a_duplicate_that_a_port_holds_puts_the_completion_off() {
    for round in 0..5 {
        let (mut left, right, handle) = bench();
        // Longer than the lane waits before it calls anything back.
        std::thread::park_timeout(Duration::from_millis(3));
        left.mr.write_at(0, &[round; 4000]).unwrap();
        handle.state().keep = 1 + usize::from(round % 2);
        left.qp.post_send(write(&left, &right, 1, 4000)).unwrap();
        let wc = until("the completion", || {
            left.context.poll();
            right.context.poll();
            let wc = left.cq.poll_one().unwrap();
            assert!(wc.is_none() || handle.state().held.is_empty(), "complete, but held");
            wc
        });
        assert!(wc.status.is_success());
        left.mr.write_at(0, &[0xff; 4000]).unwrap();
        let counters = until("the duplicate", || {
            right.context.poll();
            left.context.poll();
            let counters = right.context.counters();
            (counters.rx_data > 1).then_some(counters)
        });
        assert_eq!(counters.rx_bad_icrc, 0);
        let state = handle.state();
        assert!(!state.changed && state.recalls > 0);
        // It may have gone by itself, as far as the lane knows.
        assert!((1_000_000..u64::MAX).contains(&state.soonest_ns), "{} ns", state.soonest_ns);
        assert_eq!(right.mr.region().first_difference(0, &[round; 4000]).unwrap(), None);
    }
}

/// What the peer takes at once is let go of without more ado.
#[test]
fn nothing_is_called_back_that_goes_by_itself() {
    let (mut left, right, handle) = bench();
    for wr_id in 0..200 {
        left.qp.post_send(write(&left, &right, wr_id, 60_000)).unwrap();
        let wc = until("the completion", || {
            left.context.poll();
            right.context.poll();
            left.cq.poll_one().unwrap()
        });
        assert!(wc.status.is_success());
    }
    let recalls = handle.state().recalls;
    assert!(recalls < 20, "{recalls}: more than pauses of this thread can explain");
}

/// A request that ends with an error, or whose queue pair is gone, is over too: its memory is the application's again.
#[test]
fn requests_that_fail_are_called_back_first() {
    let (mut left, right, handle) = bench();
    left.mr.write_at(0, &[1; 4000]).unwrap();
    handle.state().keep = 1;
    left.qp.post_send(write(&left, &right, 1, 4000)).unwrap();
    while handle.state().held.is_empty() {
        left.context.poll();
    }
    left.qp.modify(QpModify::Error).unwrap();
    let wc = until("the completion", || {
        left.context.poll();
        left.cq.poll_one().unwrap()
    });
    assert_eq!(
        (wc.status, left.qp.state()),
        (WcStatus::WrFlushError, (QpState::Error, Some(FailReason::Requested)))
    );
    let state = handle.state();
    assert!(state.held.is_empty() && state.recalls == 2 && !state.changed, "once for each port");
}

#[test]
fn dropping_a_queue_pair_calls_its_payload_back_and_frees_its_memory() {
    let (mut left, right, handle) = bench();
    handle.state().keep = 1;
    left.qp.post_send(write(&left, &right, 1, 4000)).unwrap();
    while handle.state().held.is_empty() {
        left.context.poll();
    }
    let region = Arc::clone(&handle.state().held[0].region);
    let Side { context, qp, mr, .. } = left;
    drop(qp);
    assert!(handle.state().held.is_empty());
    assert_eq!(handle.state().recalls, 2);
    drop(mr);
    until("its end", || {
        context.poll();
        (Arc::strong_count(&region) == 1).then_some(())
    });
}
