//! What a lane tells its endpoint of its applications: who is behind, and when time has passed.

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{LaneMode, QpConfig, RecvWr, SendOp, SendWr, Wc, nic};

use crate::connected_pair::{Side, THREAD, complete, connect, side, until, write};

/// PSNs granted when all is well, and the least.
const MOST: u32 = 40 * 128;
const LEAST: u32 = 1024;

fn pair(lane: LaneMode) -> (Side, Side) {
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let config = QpConfig { mpr: 40, dynamic_mpr: true, max_mtu: 256, ..QpConfig::default() };
    let (mut left, mut right) = (side(nic(left), lane, &config), side(nic(right), lane, &config));
    connect(&mut left, &mut right);
    (left, right)
}

/// A write that is complete on the left; what the right grants then.
fn after(left: &mut Side, right: &mut Side, wr: SendWr) -> u32 {
    complete(left, right, wr);
    granted(right)
}

fn granted(side: &Side) -> u32 {
    let qpn = side.qp.qpn();
    side.context.with_endpoint(|endpoint| endpoint.qp_status(qpn).unwrap().granted_psns).unwrap()
}

/// Writes until the right side is busy enough for a wide window. A machine that stands still for a second makes it idle.
fn widen(left: &mut Side, right: &mut Side) {
    until("a wide window", || {
        let wr = write(left, right, 0, 1 << 16);
        (after(left, right, wr) == MOST && in_use(right) == MOST - LEAST).then_some(())
    });
}

fn in_use(side: &Side) -> u32 {
    side.context.with_endpoint(|endpoint| endpoint.window_psns_in_use()).unwrap()
}

#[test]
fn a_receive_queue_that_is_not_polled_narrows_the_window_until_it_is() {
    for lane in [LaneMode::Inline, THREAD] {
        let (mut left, mut right) = pair(lane);
        // The completion queue holds 256.
        for n in 0..200 {
            right.qp.post_recv(RecvWr::empty(n)).unwrap();
            let wr = SendWr { op: SendOp::WriteWithImm(1), ..write(&left, &right, n, 8) };
            after(&mut left, &mut right, wr);
            if n == 180 {
                widen(&mut left, &mut right);
            }
        }
        for n in 0..24 {
            let wr = write(&left, &right, n, 1 << 16);
            assert_eq!(after(&mut left, &mut right, wr), LEAST, "however busy");
        }
        let mut seen = [Wc::default(); 256];
        assert_eq!(right.cq.poll(&mut seen).unwrap(), 200);
        widen(&mut left, &mut right);
    }
}

#[test]
fn an_idle_queue_pair_leaves_the_budget() {
    for lane in [LaneMode::Inline, THREAD] {
        let (mut left, mut right) = pair(lane);
        widen(&mut left, &mut right);
        until("an empty budget", || {
            right.context.poll();
            (in_use(&right) == 0).then_some(())
        });
    }
}
