//! Ports that give frames back.

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::verbs::{LaneMode, QpConfig, WcStatus};

use crate::connected_pair::{THREAD, connect, faulty, side, until, write};

const LEN: u32 = 1 << 16;

/// Each burst loses some of its frames to a full queue, of any port and anywhere in the burst.
fn arrives_whole(lane: LaneMode) {
    let (left, right) = loopback::pair(3, LoopbackConfig::default());
    let config = QpConfig::default();
    let (mut left, mut right) =
        (side(faulty(left, "full=30%", 1), lane, &config), side(faulty(right, "full=30%", 2), lane, &config));
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
