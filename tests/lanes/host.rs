//! Ports that give frames back.

use spindrift::pmd::Port;
use spindrift::pmd::fault::FaultPort;
use spindrift::pmd::loopback::{self, LoopbackConfig, LoopbackPort};
use spindrift::verbs::{LaneMode, QpConfig, WcStatus};

use crate::side::{THREAD, connect, side, until, write};

const LEN: u32 = 1 << 16;

fn crowded(ports: Vec<LoopbackPort>, seed: u64) -> Vec<Box<dyn Port>> {
    let plan: spindrift::pmd::fault::FaultPlan = "full=30%".parse().unwrap();
    let wrap = |(plane, port)| {
        let port = FaultPort::new(Box::new(port), plane, plan.clone(), seed);
        Box::new(port) as Box<dyn Port>
    };
    ports.into_iter().enumerate().map(wrap).collect()
}

/// Each burst loses some of its frames to a full queue, of any port and anywhere in the burst.
fn arrives_whole(lane: LaneMode) {
    let (left, right) = loopback::pair(3, LoopbackConfig::default());
    let config = QpConfig::default();
    let (mut left, mut right) =
        (side(crowded(left, 1), lane, &config), side(crowded(right, 2), lane, &config));
    connect(&mut left, &mut right);
    for n in 0..64_u64 {
        let bytes: Vec<u8> = (0..u64::from(LEN)).map(|at| (at * 31 + at / 256 + n) as u8).collect();
        left.mr.write_at(0, &bytes).unwrap();
        left.qp.post_send(write(&left, &right, n, LEN)).unwrap();
        let wc = until("a completion", || {
            left.context.poll();
            right.context.poll();
            left.cq.poll_one().unwrap()
        });
        assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
        let mut got = vec![0; LEN as usize];
        right.mr.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "message {n}");
    }
    // Probes may leave between a look at one and at the other.
    let counters = until("what the ports gave back to reach the endpoint", || {
        let counters = left.context.counters();
        (counters.tx_unsent == left.context.lane_counters().tx_refused).then_some(counters)
    });
    assert!(counters.tx_unsent > 100, "{counters:?}");
    assert_eq!(counters.tx_unsent_dropped, 0);
}

#[test]
fn frames_given_back_arrive_all_the_same() {
    arrives_whole(THREAD);
}

#[test]
fn frames_given_back_to_an_inline_lane_arrive_all_the_same() {
    arrives_whole(LaneMode::Inline);
}
