//! What lanes, contexts and the connection set-up report.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use spindrift::pmd::loopback::{self, LoopbackConfig};
use spindrift::pmd::{LinkState, Port, PortCaps, PortCounters, RxFrame, TxFrame};
use spindrift::verbs::{Context, ContextConfig, Idle, LaneMode, QpConfig, RecvWr, SendOp, SendWr, nic};
use spindrift_exchange::{Channel, Listener, Offer};
use tracing::Level;

use crate::connected_pair::{complete, connect, pair, side, until, write};
use crate::listener::{Report, listen, take, take_of_lanes, with_text};

/// The only report with this text.
#[track_caller]
fn one<'a>(reports: &'a [Report], level: Level, target: &str, text: &str) -> &'a Report {
    let found = with_text(reports, text);
    assert_eq!(found.len(), 1, "{text}: {reports:#?}");
    assert_eq!((found[0].level, found[0].target), (level, target));
    found[0]
}

#[test]
fn ports_and_lanes_are_reported_when_they_open_start_and_stop() {
    listen();
    let core = core_affinity::get_core_ids().unwrap()[0].id;
    for (core, idle) in [(None, Idle::Yield), (Some(core), Idle::Spin)] {
        let (left, _right) = loopback::pair(2, LoopbackConfig::default());
        let names: Vec<_> = left.iter().map(|port| port.caps().name.clone()).collect();
        let ports = nic(left);
        let config = ContextConfig::new(&ports).lane(LaneMode::Thread { core, idle });
        let context = Context::open(ports, config).unwrap();
        let opened = take();
        assert_eq!(opened.len(), 2, "{opened:#?}");
        for (plane, (report, name)) in opened.iter().zip(names).enumerate() {
            assert_eq!((report.level, report.target), (Level::INFO, "spindrift::plane"));
            assert_eq!(report.text(), "port opened");
            assert_eq!(
                (report.get("plane"), report.get("name")),
                (&*plane.to_string(), &*format!("{name:?}"))
            );
        }
        drop(context);
        let reports = take_of_lanes();
        assert_eq!(reports.len(), 2, "{reports:#?}");
        let core = core.map_or(String::new(), |core| core.to_string());
        let started = one(&reports, Level::INFO, "spindrift::lane", "lane started");
        assert_eq!((started.get("core"), started.get("idle")), (&*core, &*format!("{idle:?}")));
        assert_eq!(one(&reports, Level::INFO, "spindrift::lane", "lane stopped").get("core"), core);
    }
}

/// A port whose driver has a defect.
struct Broken(PortCaps);

impl Port for Broken {
    fn caps(&self) -> &PortCaps {
        &self.0
    }

    fn tx_room(&mut self, _: u64) -> usize {
        0
    }

    fn tx_burst(&mut self, _: u64, _: &[TxFrame<'_>]) -> usize {
        0
    }

    fn unsent(&self) -> &[u16] {
        &[]
    }

    fn rx_burst(&mut self, _: u64, _: usize, _: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        panic!("a defect of the driver");
    }

    fn flush(&mut self, _: u64) {}

    fn reap(&mut self) -> u64 {
        u64::MAX
    }

    fn recall(&mut self) {}

    fn link(&mut self) -> LinkState {
        LinkState::Up
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_panic_is_reported_with_its_message() {
    listen();
    let (mut left, _right) = loopback::pair(1, LoopbackConfig::default());
    let ports: Vec<Box<dyn Port>> = vec![Box::new(Broken(left.remove(0).caps().clone()))];
    let config = ContextConfig::new(&ports).lane(LaneMode::Inline);
    let context = Context::open(ports, config).unwrap();
    take();
    catch_unwind(AssertUnwindSafe(|| context.poll())).unwrap_err();
    let reports = take();
    let report = one(&reports, Level::ERROR, "spindrift::lane", "lane panicked");
    assert_eq!(report.get("message_of_panic"), "\"a defect of the driver\"");
}

#[test]
fn a_completion_queue_that_overruns_is_reported_once() {
    listen();
    let (mut left, right) = pair(1, LaneMode::Inline);
    take();
    for wr_id in 0..1_000 {
        // Refused once the queue pair has failed.
        let _ = left.qp.post_send(write(&left, &right, wr_id, 8));
        left.context.poll();
        right.context.poll();
    }
    let reports = take();
    let report = one(&reports, Level::ERROR, "spindrift::lane", "completion queue overran");
    assert_eq!(report.get("cq"), left.cq.id().0.to_string());
    let failed = one(&reports, Level::INFO, "spindrift::qp", "queue pair set to ERROR");
    assert_eq!(failed.get("qpn"), left.qp.qpn().to_string());
}

/// A window that follows its receiver's resources is reported as it stands at the receiver's visits, each change once.
#[test]
fn a_full_completion_queue_and_the_windows_it_narrows_are_reported() {
    listen();
    let (left, right) = loopback::pair(1, LoopbackConfig::default());
    let config = QpConfig { mpr: 40, dynamic_mpr: true, max_mtu: 256, ..QpConfig::default() };
    let (mut left, mut right) =
        (side(nic(left), LaneMode::Inline, &config), side(nic(right), LaneMode::Inline, &config));
    connect(&mut left, &mut right);
    let cq = right.cq.id();
    take();
    for wr_id in 0..200 {
        right.qp.post_recv(RecvWr::empty(wr_id)).unwrap();
        let wr = SendWr { op: SendOp::WriteWithImm(1), ..write(&left, &right, wr_id, 8) };
        complete(&mut left, &right, wr);
    }
    let mut reports = take();
    let filling = one(&reports, Level::DEBUG, "spindrift::qp", "completion queue filling up");
    assert_eq!((filling.get("cq"), filling.get("crowded")), (&*cq.0.to_string(), "true"));

    // Both sides draw the same numbers: their peers tell them apart.
    let peer = left.qp.info().unwrap().ports[0].ip.to_string();
    let windows = |reports: &[Report]| -> Vec<[u32; 2]> {
        let told = with_text(reports, "peer is granted another window");
        assert!(told.iter().all(|report| report.level == Level::DEBUG));
        let of_right = told.iter().filter(|report| report.get("peer") == peer);
        of_right
            .map(|report| ["before", "granted_psns"].map(|field| report.get(field).parse().unwrap()))
            .collect()
    };
    until("a window that fell and rose again", || {
        let wr = write(&left, &right, 0, 1 << 16);
        complete(&mut left, &right, wr);
        reports.extend(take());
        if windows(&reports).len() == 1 {
            while right.cq.poll_one().unwrap().is_some() {}
        }
        (windows(&reports).len() >= 2).then_some(())
    });
    let mut granted = 40 * 128;
    for [before, after] in windows(&reports) {
        assert!(before != after && before == granted, "{before} {after} {granted}");
        granted = after;
    }
    assert_eq!(with_text(&reports, "completion queue filling up")[1].get("crowded"), "false");
}

fn offer(qpn: u32) -> Offer {
    let (left, _right) = pair(1, LaneMode::Inline);
    let info = left.qp.info().unwrap();
    take();
    Offer { qps: vec![spindrift::endpoint::QpInfo { qpn, ..info }], memory: Vec::new(), app: String::new() }
}

#[test]
fn an_agreement_and_a_refusal_are_reported_on_both_sides() {
    const PATIENCE: Duration = Duration::from_secs(20);
    listen();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for agrees in [true, false] {
        let client = move || {
            let ours = offer(9);
            let mut peer = Channel::connect(address, PATIENCE).unwrap();
            let _ = peer.agree(&ours, |_, _| Ok::<_, Infallible>(()));
            (peer.peer().to_owned(), take())
        };
        let (theirs, ours) = std::thread::scope(|scope| {
            let client = scope.spawn(client);
            let ours = offer(10);
            let mut peer = listener.accept(PATIENCE, || true).unwrap();
            let establish = |_: &Offer, _: &[_]| if agrees { Ok(()) } else { Err("no\nroom") };
            assert_eq!(peer.agree(&ours, establish).is_ok(), agrees);
            (client.join().unwrap(), (peer.peer().to_owned(), take()))
        });
        for (name, reports) in [theirs, ours] {
            let text = if agrees { "peer agreed" } else { "no agreement with peer" };
            let report = one(&reports, Level::INFO, "spindrift::setup", text);
            assert_eq!(report.get("peer"), format!("{name:?}"));
            if agrees {
                assert_eq!(report.get("qps"), "1");
            } else {
                let reason = report.get("reason");
                assert!(reason.contains("no") && !reason.contains('\n'), "{reason}");
            }
        }
    }
}
