//! Which window a responder grants (`SETH.mpr`), as its resources come and go.
//!
//! Tests decisions 15 and 27 of `docs/protocol.md`.

use spindrift::endpoint::{CqId, QpInit};
use spindrift::memory::{Access, Region};
use spindrift::path::PathConfig;
use spindrift::wire::Ev;
use spindrift::work::{RemoteAddr, SendOp, SendWr, Sge};

use crate::receiver::{Answer, Receiver, data};
use crate::support::link::Link;
use crate::support::net::{Net, ports};
use crate::support::pair::{self, End, Patience};

/// PSNs in a unit of `SETH.mpr`.
const UNIT: i32 = 128;
/// MRC 1.0 asks for a window of 1024 PSNs at least.
const LEAST: u8 = 8;
const SECOND: u64 = 1_000_000_000;

fn dynamic(mpr: u8) -> impl Fn(&mut QpInit) {
    move |init| (init.mpr_dest, init.dynamic_mpr) = (mpr, true)
}

/// Queue pairs of one endpoint, whose peers have sent as many packets each.
struct Windows {
    receiver: Receiver,
    qps: Vec<(End, i32)>,
}

impl Windows {
    /// Each with a range of `mpr` units, and a budget of `budget` units for all.
    fn new(qps: usize, mpr: u8, budget: u32) -> Self {
        let mut receiver =
            Receiver::of(|cfg| cfg.limits.window_budget_psns = budget * UNIT.cast_unsigned(), dynamic(mpr));
        let mut all = vec![(receiver.qp, 0)];
        all.resize_with(qps, || (receiver.add_qp(dynamic(mpr)), 0));
        Self { receiver, qps: all }
    }

    /// The next `count` packets of one peer arrive in order; what the SACK for the last one grants.
    #[track_caller]
    fn receive(&mut self, qp: usize, count: i32) -> u8 {
        let (end, sent) = &mut self.qps[qp];
        self.receiver.qp = *end;
        for n in *sent..*sent + count {
            let mut packet = data(n);
            packet.ack_req = n + 1 == *sent + count;
            self.receiver.give(&[packet]);
        }
        *sent += count;
        let sacks = self.receiver.answers().into_iter().rev().find_map(|answer| match answer {
            Answer::Sack(seth, _) => Some(seth),
            _ => None,
        });
        let sack = sacks.unwrap();
        let granted = self.receiver.net.endpoint(0).qp_status(end.qpn).unwrap().granted_psns;
        assert_eq!(u32::from(sack.mpr) * 128, granted);
        sack.mpr
    }

    /// Whether the packet `ahead` of the next one is taken. It is given once only.
    fn takes(&mut self, qp: usize, ahead: i32) -> bool {
        let (end, sent) = self.qps[qp];
        self.receiver.qp = end;
        let before = self.receiver.counters().rx_out_of_window;
        self.receiver.give(&[data(sent + ahead)]);
        self.receiver.answers();
        self.receiver.counters().rx_out_of_window == before
    }

    /// Time passes, and the endpoint's driver calls `reclaim` all the while.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..100 * seconds {
            self.receiver.net.run_for(SECOND / 100);
            let now = self.receiver.net.now;
            self.receiver.net.endpoint(0).reclaim(now);
        }
        // Probes of reverse paths.
        self.receiver.net.astray.clear();
    }

    fn in_use(&mut self) -> u32 {
        self.receiver.net.endpoint(0).window_psns_in_use() / 128
    }
}

#[test]
fn with_budget_enough_everyone_keeps_what_was_negotiated() {
    let mut windows = Windows::new(3, 40, 1000);
    for qp in [0, 1, 2, 2, 1, 0] {
        assert_eq!((windows.receive(qp, 1), windows.receive(qp, 1022), windows.receive(qp, 1)), (40, 40, 40));
    }
    assert_eq!(windows.in_use(), 3 * 32);
}

#[test]
fn a_window_that_is_not_dynamic_or_at_the_least_never_changes() {
    for (mpr, is_dynamic) in [(40, false), (3, true), (LEAST, true)] {
        let init = move |init: &mut QpInit| (init.mpr_dest, init.dynamic_mpr) = (mpr, is_dynamic);
        let receiver = Receiver::of(|cfg| cfg.limits.window_budget_psns = 0, init);
        let mut windows = Windows { qps: vec![(receiver.qp, 0)], receiver };
        assert_eq!((windows.receive(0, 1), windows.receive(0, 3000)), (mpr, mpr));
        windows.receiver.net.endpoint(0).set_cq_nearly_full(CqId(1), true);
        windows.pass(3);
        assert_eq!((windows.receive(0, 1), windows.in_use()), (mpr, 0));
        assert!(windows.takes(0, i32::from(mpr) * UNIT - 2));
        assert!(!windows.takes(0, i32::from(mpr) * UNIT - 1));
    }
}

/// Queue pairs whose windows do not change have no part in what the others share.
#[test]
fn fixed_windows_take_no_share() {
    let mut windows = Windows::new(1, 40, 32);
    for (mpr, is_dynamic) in [(40, false), (LEAST, true)] {
        let init = move |init: &mut QpInit| (init.mpr_dest, init.dynamic_mpr) = (mpr, is_dynamic);
        windows.qps.push((windows.receiver.add_qp(init), 0));
        let last = windows.qps.len() - 1;
        assert_eq!((windows.receive(last, 1), windows.receive(last, 6000)), (mpr, mpr));
    }
    assert_eq!((windows.receive(0, 1), windows.receive(0, 6000)), (40, 40), "32 units beyond the least");
}

#[test]
fn without_a_budget_a_busy_queue_pair_falls_to_the_least_and_no_further() {
    let mut windows = Windows::new(1, 40, 0);
    assert_eq!(windows.receive(0, 1023), 40, "the least window would not have held it up");
    assert_eq!(windows.receive(0, 1), LEAST);
    assert_eq!(windows.receive(0, 40 * UNIT), LEAST);
    assert_eq!(windows.in_use(), 0);
    assert!(!windows.takes(0, i32::from(LEAST) * UNIT - 1));
    assert!(windows.takes(0, i32::from(LEAST) * UNIT - 2));
}

/// The right edge does not move back: all that was allowed is taken, to the packet.
#[test]
fn what_was_allowed_before_a_window_fell_is_taken() {
    let mut windows = Windows::new(1, 40, 0);
    assert_eq!((windows.receive(0, 1023), windows.receive(0, 1)), (40, LEAST));
    assert!(!windows.takes(0, 40 * UNIT - 1));
    assert!(windows.takes(0, 40 * UNIT - 2));
    // The last packet that the peer was allowed before is 40 units away. It has to come within the least window.
    assert_eq!(windows.receive(0, 32 * UNIT - 1), LEAST);
    assert!(windows.takes(0, i32::from(LEAST) * UNIT - 1), "one packet early, the old edge holds still");
    assert_eq!(windows.receive(0, 1), LEAST);
    assert!(!windows.takes(0, i32::from(LEAST) * UNIT - 1));
    assert_eq!(
        windows.receiver.counters().rx_duplicates,
        1,
        "none of them came twice but the one at the edge"
    );
}

#[test]
fn busy_queue_pairs_share_the_budget_equally_and_idle_ones_leave_it() {
    let mut windows = Windows::new(3, 40, 36);
    assert_eq!(windows.receive(0, 2000), 40);
    // It is above its share from now on, and gives way as packets come.
    assert_eq!(windows.receive(1, 1024), LEAST + 18);
    assert_eq!(windows.receive(0, 1), LEAST + 18);
    for _ in 0..2 {
        for qp in [0, 1] {
            windows.receive(qp, 40 * UNIT);
        }
    }
    assert_eq!([windows.receive(0, 1), windows.receive(1, 1)], [LEAST + 18; 2]);
    assert_eq!(windows.in_use(), 36, "no more than there is");
    windows.receive(2, 40 * UNIT);
    for _ in 0..2 {
        let _ = [0, 1, 2].map(|qp| windows.receive(qp, 40 * UNIT));
    }
    assert_eq!([0, 1, 2].map(|qp| windows.receive(qp, 1)), [LEAST + 12; 3]);
    assert_eq!(windows.in_use(), 36);
    // Two of them fall silent; one of those says a word now and then.
    for _ in 0..3 {
        windows.pass(1);
        windows.receive(1, 2000);
        windows.receive(2, 1);
    }
    assert_eq!([windows.receive(1, 1), windows.receive(2, 1)], [40, LEAST]);
    assert_eq!(windows.in_use(), 32);
    windows.pass(3);
    assert_eq!(windows.in_use(), 0);
    // What was allowed to the silent one when it was busy is taken still.
    assert!(windows.takes(0, (i32::from(LEAST) + 12) * UNIT - 2));
}

#[test]
fn queue_pairs_that_end_leave_their_share() {
    use spindrift::endpoint::QpModify;
    let mut windows = Windows::new(3, 40, 96);
    let _ = [0, 1, 2].map(|qp| windows.receive(qp, 2000));
    assert_eq!(windows.in_use(), 96);
    let [failed, reset, gone] = [0, 1, 2].map(|qp: usize| windows.qps[qp].0.qpn);
    let now = windows.receiver.net.now;
    let endpoint = windows.receiver.net.endpoint(0);
    endpoint.modify_qp(now, failed, QpModify::Error).unwrap();
    assert_eq!(endpoint.window_psns_in_use() / 128, 64);
    endpoint.modify_qp(now, reset, QpModify::Reset).unwrap();
    assert_eq!(endpoint.window_psns_in_use() / 128, 32);
    endpoint.destroy_qp(gone).unwrap();
    endpoint.destroy_qp(failed).unwrap();
    assert_eq!(endpoint.window_psns_in_use(), 0);
    // Nobody counts as busy any more: one that is gets all of it.
    windows.receiver.qp = windows.receiver.add_qp(dynamic(110));
    windows.qps.push((windows.receiver.qp, 0));
    assert_eq!(windows.receive(3, 8000), LEAST + 96);
}

#[test]
fn an_application_that_is_behind_narrows_the_window_until_it_has_caught_up() {
    let mut windows = Windows::new(1, 40, 1000);
    assert_eq!(windows.receive(0, 2000), 40);
    windows.receiver.net.endpoint(0).set_cq_nearly_full(CqId(0), true);
    assert_eq!(windows.receive(0, 1), 40, "receives do not complete there");
    windows.receiver.net.endpoint(0).set_cq_nearly_full(CqId(1), true);
    assert_eq!(windows.receive(0, 1), LEAST);
    assert!(windows.takes(0, 40 * UNIT - 2), "what was allowed is taken");
    windows.receiver.net.endpoint(0).set_cq_nearly_full(CqId(1), false);
    assert_eq!(windows.receive(0, 1), 40);
}

#[test]
fn a_driver_that_leaves_events_untaken_narrows_the_windows() {
    let mut windows = Windows::new(1, 40, 1000);
    let qpn = windows.qps[0].0.qpn;
    assert_eq!(windows.receive(0, 2000), 40);
    for (events, granted) in [(256, 40), (257, LEAST), (0, 40)] {
        let endpoint = windows.receiver.net.endpoint(0);
        // Each of them tells the driver that a path was denied; the simulated driver sends before it looks.
        for _ in 0..events {
            assert_eq!(endpoint.deny_ev(qpn, Ev(0x1000_1000), None), 1);
            assert_eq!(endpoint.allow_ev(qpn, Ev(0x1000_1000), None), 1);
        }
        assert_eq!(windows.receive(0, 1), granted, "{events} events");
    }
}

/// Real requesters, whose windows rise and fall under them: no packet is ever refused.
#[test]
fn requesters_obey_windows_that_rise_and_fall() {
    const QPS: usize = 4;
    let link = Link { spread_ns: 40_000, jitter_ns: 20_000, ..Link::clean(200_000) };
    let mut net = Net::new(1, vec![link; 2]);
    let (len, iova) = (4 << 20, 0x1000);
    let mut keys = Vec::new();
    let mut pds = Vec::new();
    for node in 0..2 {
        let mut cfg = spindrift::endpoint::EndpointConfig::new(ports(true, node, 2, 4300));
        cfg.limits.window_budget_psns = 30 * 128;
        net.add(cfg);
        pds.push(net.endpoint(node).alloc_pd());
        let region = Region::alloc_at(len as usize, iova).unwrap();
        keys.push(net.endpoint(node).register(pds[node], region, Access::REMOTE_WRITE).unwrap());
    }
    let ends: Vec<_> = (0..QPS)
        .map(|_| {
            let ends = [0, 1].map(|node| {
                let path = PathConfig::new(2);
                let mut init = QpInit { path, max_mtu: 256, ..QpInit::new(pds[node], CqId(0), CqId(1)) };
                dynamic(40)(&mut init);
                pair::create(&mut net, node, init)
            });
            pair::connect(&mut net, ends[0], ends[1], Patience { timeout: 14, linear: 7, exponential: 25 });
            ends
        })
        .collect();
    let mut granted = Vec::new();
    for busy in [vec![0], vec![0, 1], vec![0, 1, 2, 3], vec![3], vec![1, 2]] {
        for &qp in &busy {
            let wr = SendWr {
                wr_id: 0,
                op: SendOp::Write,
                local: Sge { addr: iova, len, lkey: keys[0].lkey },
                remote: RemoteAddr { addr: iova, rkey: keys[1].rkey },
                signaled: true,
                fence: false,
            };
            let now = net.now;
            net.endpoint(0).post_send(now, ends[qp][0].qpn, wr).unwrap();
        }
        net.pump(0);
        let idle = |net: &mut Net| {
            ends.iter().all(|ends| net.endpoint(0).qp_status(ends[0].qpn).unwrap().send_outstanding == 0)
        };
        assert!(net.run_until(idle), "{}", net.why_stopped());
        let last = busy[0];
        granted.push(net.endpoint(1).qp_status(ends[last][1].qpn).unwrap().granted_psns / 128);
        for _ in 0..300 {
            net.run_for(SECOND / 100);
            let now = net.now;
            net.endpoint(1).reclaim(now);
        }
        assert_eq!(net.endpoint(1).window_psns_in_use(), 0);
    }
    assert_eq!(granted, [38, 23, 15, 38, 23], "the least and a share of 30");
    let counters = net.endpoint(1).counters();
    assert_eq!((counters.rx_out_of_window, counters.rx_malformed), (0, 0));
    assert!(counters.rx_out_of_order > 10_000, "windows were needed");
}
