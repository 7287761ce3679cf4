//! Doubt about the planes that serve, while others stand by.

use super::*;
use crate::path::PlaneSet;

const SERVES: PlaneSet = PlaneSet(0b01);
const STANDS_BY: PlaneSet = PlaneSet(0b10);

fn bench() -> Bench {
    let mut bench = Bench::new(|setup| setup.max_rd_atomic = 8);
    let config = PathConfig { active: 8, backup: 0, standby: STANDS_BY, ..PathConfig::new(2) };
    bench.paths = Paths::new(&config, 1).unwrap();
    bench.r.expect_evs(16);
    bench
}

impl Bench {
    /// Sends the next packet on a path as hinted. Returns its number, and whether it took a plane that stands by.
    fn send_as_hinted(&mut self) -> Option<(u64, bool)> {
        let open = self.r.open_planes(&self.cc, self.now).0 != 0;
        let (seq, kind) = self.r.next_send(open, false)?;
        self.now = self.now.after(100);
        let hint = self.r.path_hint(seq, kind);
        let path = self.paths.select((PlaneSet::ALL, PlaneSet::ALL), &hint, |_| 0).unwrap();
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        let sent = if kind == SendKind::New {
            self.r.send_new_for_probe(self.now, (path.id, path.plane), 0, env.cc)
        } else {
            self.r.send_again(self.now, (seq, kind), path.id, 0, &mut env)
        };
        assert_eq!(sent.map(|sent| sent.seq), Some(seq));
        Some((seq, STANDS_BY.contains(path.plane)))
    }

    /// Sends all that may be sent. Returns which of it took planes that stand by.
    fn all_as_hinted(&mut self) -> Vec<u64> {
        let sent = core::iter::from_fn(|| self.send_as_hinted()).take(1_000);
        sent.filter(|&(_, stands_by)| stands_by).map(|(seq, _)| seq).collect()
    }

    /// The next timer expires, and what it asks for leaves.
    fn probe(&mut self) -> Vec<u64> {
        self.time_passes();
        self.all_as_hinted()
    }

    /// A SACK for the latest transmission of `seq`, with all packets before `end` received.
    fn sack(&mut self, seq: u64, end: u64, after_ns: u64) {
        self.now = self.now.after(after_ns);
        let record = self.r.records.get(seq);
        let offset = seq as i64 - (end as i64 - 1);
        let mut seth = Seth {
            cack: self.r.psn(end - 1),
            ack_psn_offset: offset as _,
            entropy: self.paths.ev(EvId(record.ev)),
            ..Default::default()
        };
        seth.cc.tx_timestamp = record.sent_at.timestamp();
        let mut env = SendContext { paths: &mut self.paths, cc: &mut self.cc, counters: &mut self.counters };
        assert_eq!(self.r.on_sack(self.now, &seth, &mut env), AckOutcome::Used);
    }

    fn serving(&self) -> PlaneSet {
        self.paths.role_status().unwrap().serving
    }

    /// Eight reads, and a round-trip time of 5 us.
    fn reads(&mut self) {
        self.post(1, SendOp::Write);
        assert_eq!(self.all_as_hinted(), []);
        self.sack(0, 1, 5_000);
        for _ in 0..8 {
            self.post(1, SendOp::Read);
        }
        assert_eq!(self.all_as_hinted(), []);
    }
}

/// Two tail loss probes over the standby were acknowledged. Whether a response completes the probed read before the SACK for
/// it arrives makes no difference.
#[test]
fn a_response_that_overtakes_the_sack_hides_no_dead_planes() {
    for response_first in [false, true] {
        let mut bench = bench();
        bench.reads();
        assert_eq!(bench.probe(), [], "the first takes a plane that serves");
        assert_eq!(bench.probe(), [1]);
        let mut done = 0;
        for (seq, serving) in [(1, SERVES), (2, STANDS_BY)] {
            if response_first {
                bench.response_comes();
                done += 1;
            }
            bench.sack(seq, seq + 1, 5_000);
            assert_eq!(bench.serving(), serving, "{response_first}: {seq}");
            if seq == 1 {
                assert_eq!(bench.all_as_hinted(), [], "{response_first}");
                assert_eq!(bench.probe(), [2], "{response_first}: at once");
            }
        }
        assert_eq!(bench.r.fetches.len(), 8 - done);
    }
}

/// A peer that was paused may send one SACK for all copies of a request, and its response may wait in a queue. Only what is sent
/// on the planes that serve after that SACK is evidence.
#[test]
fn planes_that_carried_nothing_meanwhile_have_not_failed() {
    for acknowledged in [false, true] {
        let mut bench = bench();
        bench.post(1, SendOp::Write);
        bench.all_as_hinted();
        bench.sack(0, 1, 5_000);
        bench.post(1, SendOp::Read);
        assert_eq!(bench.all_as_hinted(), []);
        assert_eq!((bench.probe(), bench.probe()), (vec![], vec![1]));
        bench.sack(1, 2, 5_000);
        assert!(bench.r.role_doubt.is_open());
        assert_eq!(bench.all_as_hinted(), [], "nothing is missing");
        let before = bench.r.orders;
        while bench.r.orders == before {
            assert_eq!(bench.probe(), [], "the planes that serve first");
        }
        // Of the packets that wait for more than a SACK the oldest is sent.
        if acknowledged {
            bench.sack(0, 2, 5_000);
            assert!(!bench.r.role_doubt.is_open());
            continue;
        }
        assert_eq!(bench.probe(), [0]);
        assert_eq!(bench.serving(), SERVES);
        bench.sack(0, 2, 5_000);
        assert_eq!(bench.serving(), STANDS_BY);
    }
}

/// The standby is probed again although the planes that serve had no room: that says nothing about them.
#[test]
fn a_second_probe_of_the_standby_alone_is_no_evidence() {
    let mut bench = bench();
    bench.reads();
    assert_eq!((bench.probe(), bench.probe()), (vec![], vec![1]));
    bench.sack(1, 2, 5_000);
    let order = bench.r.orders + 1;
    let idle = (0..16).map(EvId).find(|ev| !bench.paths.is_serving(*ev)).unwrap();
    for order in [order, order + 1] {
        bench.r.note_role_probed(idle, order, &bench.paths);
        let mut env =
            SendContext { paths: &mut bench.paths, cc: &mut bench.cc, counters: &mut bench.counters };
        bench.r.orders = order;
        bench.r.weigh_roles(bench.now, idle, order, &env);
        bench.r.fail_over_if_silent(bench.now, &mut env);
        assert_eq!(bench.serving(), SERVES, "{order}");
    }
}

/// Any acknowledgement of a packet on the planes that serve ends the doubt, however old the packet is.
#[test]
fn a_late_acknowledgement_ends_the_doubt() {
    for late in [2, 8] {
        let mut bench = bench();
        bench.reads();
        assert_eq!((bench.probe(), bench.probe()), (vec![], vec![1]));
        bench.sack(1, 2, 5_000);
        assert!(bench.r.role_doubt.is_open());
        bench.sack(late, 2, 1_000);
        assert!(!bench.r.role_doubt.is_open());
        bench.all_as_hinted();
        assert_eq!(bench.probe(), [], "a plane that serves again");
        assert_eq!(bench.serving(), SERVES);
    }
    // Before the SACK for the probe.
    let mut bench = bench();
    bench.reads();
    assert_eq!((bench.probe(), bench.probe()), (vec![], vec![1]));
    bench.sack(8, 1, 1_000);
    bench.sack(1, 2, 1_000);
    assert!(!bench.r.role_doubt.is_open());
}

/// Planes that stand by are empty. If their round-trip time counted, each packet that waits in a queue of the other planes would be
/// followed by tail loss probes.
#[test]
fn the_round_trip_time_of_the_standby_does_not_count() {
    let mut bench = bench();
    bench.reads();
    let before = bench.r.rtt.smoothed_ns();
    assert_eq!(before, 5_000);
    assert_eq!((bench.probe(), bench.probe()), (vec![], vec![1]));
    bench.sack(1, 2, 100);
    assert_eq!(bench.r.rtt.smoothed_ns(), before);
    bench.sack(8, 2, 100);
    assert!(bench.r.rtt.smoothed_ns() > before, "that one was slow");
}
