//! Tests that need access to the inside of an endpoint.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod control;
mod pacing;
mod turns;

use std::collections::BTreeSet;

use super::*;
pub(super) use crate::config::test_port as port;
use crate::congestion::{CcConfig, NsccOverrides};
use crate::memory::{Access, MemoryError, Region};
use crate::path::{EvId, EvSource, EvState, PathConfig, PlaneSet};
use crate::wire::{EntropyMode, Ev, Msn, Psn, StevOrder, stack};
use crate::work::{RemoteAddr, SendOp, Sge};

/// An endpoint with a queue pair in RTS, whose peer sends nothing.
struct Alone {
    endpoint: Endpoint,
    qpn: Qpn,
    now: Time,
    wr: SendWr,
}

/// Takes all the steps from RESET to RTS.
fn to_rts(endpoint: &mut Endpoint, now: Time, qpn: Qpn, rtr: RtrAttr) {
    for change in [QpModify::Init, QpModify::Rtr(Box::new(rtr)), QpModify::Rts(RtsAttr::default())] {
        endpoint.modify_qp(now, qpn, change).unwrap();
    }
}

/// A write of 64 bytes from address 0x1000.
fn write(lkey: u32) -> SendWr {
    SendWr {
        wr_id: 0,
        op: SendOp::Write,
        local: Sge { addr: 0x1000, len: 64, lkey },
        remote: RemoteAddr { addr: 0x1000, rkey: 1 },
        signaled: true,
        fence: false,
    }
}

impl Alone {
    fn new() -> Self {
        Self::with(|_| {}, |_| {})
    }

    /// The same with other settings of the queue pair and of the peer.
    fn with(adjust: impl Fn(&mut QpInit), adjust_peer: impl Fn(&mut RtrAttr)) -> Self {
        let ip = |last| [0xfd00, 0, 0, 0, 0, 0, 0, last].into();
        let mut endpoint =
            Endpoint::new(EndpointConfig::new(vec![LocalPort { ip: ip(1), ..port(1) }])).unwrap();
        let pd = endpoint.alloc_pd();
        let mut init = QpInit::new(pd, CqId(0), CqId(1));
        adjust(&mut init);
        let qpn = endpoint.create_qp(init).unwrap();
        let info = endpoint.qp_info(qpn).unwrap();
        let peer = PortAddr { ip: ip(2), mac: [4; 6] };
        let mut rtr = RtrAttr { path_mtu: info.mtu, mpr_dest: info.mpr, ..rtr_to(vec![peer], info.udp_port) };
        adjust_peer(&mut rtr);
        let now = Time(1_000);
        to_rts(&mut endpoint, now, qpn, rtr);
        let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
        Self { endpoint, qpn, now, wr: write(key.lkey) }
    }

    fn post(&mut self) {
        self.endpoint.post_send(self.now, self.qpn, self.wr).unwrap();
    }

    /// Sends everything that may leave, and returns the number of packets.
    fn transmit(&mut self) -> usize {
        let mut packet = Transmit::default();
        core::iter::from_fn(|| self.endpoint.transmit(self.now, PlaneSet(1), &mut packet).then_some(()))
            .take(100)
            .count()
    }
}

#[test]
fn a_queue_pair_is_listed_once_however_much_it_has_to_send() {
    let mut alone = Alone::new();
    assert_eq!(alone.endpoint.scheduler.len(TxClass::New), 0);
    for _ in 0..3 {
        alone.post();
        assert_eq!(alone.endpoint.scheduler.len(TxClass::New), 1);
    }
    assert_eq!((alone.transmit(), alone.endpoint.scheduler.len(TxClass::New)), (3, 0));
    alone.post();
    assert_eq!(
        (alone.endpoint.scheduler.len(TxClass::New), alone.endpoint.scheduler.len(TxClass::Retransmit)),
        (1, 0)
    );
    // The same for retransmissions.
    alone.transmit();
    while alone.endpoint.scheduler.len(TxClass::Retransmit) == 0 {
        alone.now = alone.endpoint.next_timeout();
        assert!(alone.now < Time::NEVER);
        alone.endpoint.on_timeout(alone.now);
    }
    for _ in 0..3 {
        assert_eq!(alone.endpoint.scheduler.len(TxClass::Retransmit), 1);
        alone.post();
    }
}

/// Reported at once, and not again until all of them have been polled.
#[test]
fn news_of_paths_are_told_once() {
    let Alone { mut endpoint, qpn, now, .. } = Alone::new();
    let slot = endpoint.slot_of(qpn).unwrap();
    let mut told = |lost: Option<u16>, seen: bool| {
        if let Some(id) = lost {
            endpoint.qps.get_mut(slot).unwrap().paths.on_loss(EvId(id), now);
        }
        endpoint.arm(slot);
        let events = core::iter::from_fn(|| endpoint.poll_event()).collect::<Vec<_>>();
        while seen && endpoint.poll_ev_event(qpn).is_some() {}
        events.iter().filter(|event| matches!(event, Event::PathsChanged { .. })).count()
    };
    assert_eq!(told(None, false), 0);
    assert_eq!([Some(0), Some(1), None].map(|lost| told(lost, false)), [1, 0, 0]);
    assert_eq!(told(Some(2), true), 0);
    assert_eq!([None, Some(3), Some(4)].map(|lost| told(lost, false)), [0, 1, 0]);
}

/// However many queue pairs there were, those that are left have few entries in the heap.
#[test]
fn dead_timers_go_when_their_owners_are_gone() {
    let mut alone = Alone::new();
    let init = QpInit::new(alone.endpoint.alloc_pd(), CqId(0), CqId(1));
    let others: Vec<_> = (0..100).map(|_| alone.endpoint.create_qp(init.clone()).unwrap()).collect();
    for at in 1..200 {
        alone.endpoint.push_timer(Time(at), 0);
    }
    assert!(alone.endpoint.timers.len() >= 199, "none is in the way");
    for qpn in others {
        alone.endpoint.destroy_qp(qpn).unwrap();
    }
    alone.endpoint.push_timer(Time(200), 0);
    assert!(alone.endpoint.timers.len() <= TimerHeap::SPARE, "{}", alone.endpoint.timers.len());
}

/// A table of one slot leaves 64 draws little hope, and one that is full but for a slot as little.
#[test]
fn every_slot_can_be_had() {
    for max_qps in [1, 2, 5, 512] {
        let limits = Limits { max_qps, ..Limits::default() };
        let mut endpoint =
            Endpoint::new(EndpointConfig { limits, ..EndpointConfig::new(vec![port(1)]) }).unwrap();
        let pd = endpoint.alloc_pd();
        let init = QpInit::new(pd, CqId(0), CqId(1));
        let mut qpns: Vec<Qpn> = (0..max_qps).map(|_| endpoint.create_qp(init.clone()).unwrap()).collect();
        assert_eq!(endpoint.create_qp(init.clone()), Err(EndpointError::Limit("limits.max_qps")));
        let mut known: Vec<Qpn> = endpoint.qpns().collect();
        known.sort_unstable();
        qpns.sort_unstable();
        assert_eq!(known, qpns);
        // One leaves and one comes, whichever it is: the number is another, the slot the same.
        let slots = max_qps.next_power_of_two() - 1;
        for qpn in qpns {
            endpoint.destroy_qp(qpn).unwrap();
            let heir = endpoint.create_qp(init.clone()).unwrap();
            assert!(heir.get() > 2 && heir.get() <= 0xff_ffff && heir != qpn, "{heir:?}");
            assert!(!max_qps.is_power_of_two() || heir.get() & slots == qpn.get() & slots);
        }
        assert_eq!(endpoint.qpns().count(), max_qps as usize);
    }
}

#[test]
fn a_queue_pair_has_the_limits_of_its_endpoint() {
    let limits = Limits { max_send_wr: 8, max_recv_wr: 4, ..Limits::default() };
    let mut endpoint =
        Endpoint::new(EndpointConfig { limits, ..EndpointConfig::new(vec![port(1)]) }).unwrap();
    let init = QpInit::new(endpoint.alloc_pd(), CqId(0), CqId(1));
    for (max_send_wr, max_recv_wr, mpr_dest, refused) in [
        (8, 4, 1, None),
        (1, 0, 255, None),
        (0, 4, 1, Some("cap.max_send_wr")),
        (9, 4, 1, Some("cap.max_send_wr")),
        (8, 5, 1, Some("cap.max_recv_wr")),
        (8, 4, 0, Some("mpr_dest")),
    ] {
        let cap = QpCap { max_send_wr, max_recv_wr, ..QpCap::default() };
        let made = endpoint.create_qp(QpInit { cap, mpr_dest, ..init.clone() });
        let named = match made {
            Ok(_) => None,
            Err(EndpointError::BadAttribute { name, .. }) => Some(name),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(named, refused);
    }
    for (max_send_sge, taken) in [(0, false), (1, true), (16, true), (17, false)] {
        let cap = QpCap { max_send_sge, max_send_wr: 8, max_recv_wr: 4, max_recv_sge: 1 };
        let made = endpoint.create_qp(QpInit { cap, ..init.clone() });
        assert_eq!(made.is_ok(), taken, "{made:?}");
        let named = made.err().is_none_or(|error| error.to_string().contains("max_send_sge"));
        assert!(named, "{max_send_sge}");
    }
}

/// A full endpoint draws another number as long as there is one: where many queue pairs share the numbers with other
/// lanes, a slot may have just one.
#[test]
fn a_reset_queue_pair_has_another_number_if_there_is_one() {
    let endpoint = |max_qps, of| {
        let cfg = EndpointConfig {
            limits: Limits { max_qps, ..Limits::default() },
            qpns: QpnShare { index: of - 1, of },
            ..EndpointConfig::new(vec![port(1)])
        };
        Endpoint::new(cfg).unwrap()
    };
    for (max_qps, of) in [(1, 1), (1, 15), (2, 1), (4, 3), (64, 15)] {
        let mut endpoint = endpoint(max_qps, of);
        let path = PathConfig { active: 4, backup: 0, ..PathConfig::new(1) };
        let init = QpInit { path, ..QpInit::new(endpoint.alloc_pd(), CqId(0), CqId(1)) };
        let mut made: Vec<_> = (0..max_qps).map(|_| endpoint.create_qp(init.clone()).unwrap()).collect();
        for turn in 0..200 {
            let which = turn % made.len();
            let old = made[which];
            made[which] = endpoint.modify_qp(Time(1), old, QpModify::Reset).unwrap();
            assert_ne!(made[which], old);
            let mut known: Vec<_> = endpoint.qpns().collect();
            let mut ours = made.clone();
            known.sort_unstable_by_key(|qpn| qpn.get());
            ours.sort_unstable_by_key(|qpn| qpn.get());
            assert_eq!(known, ours);
            assert!(made.iter().all(|&qpn| QpnShare::owner(qpn, of) == of - 1 && qpn.get() > 2));
        }
    }
    let full = |of| {
        let mut endpoint = endpoint(1 << 20, of);
        let number = (of - 1) << 20 | 5;
        endpoint.qps.pretend_live((1 << 20) - 1);
        let when_full = endpoint.has_other_than(Qpn::new(number));
        endpoint.qps.pretend_live((1 << 20) - 2);
        (when_full, endpoint.has_other_than(Qpn::new(number)))
    };
    assert_eq!(full(1), (true, true));
    assert_eq!(full(15), (false, true), "one number a slot");
    // Where there are fewer slots, the bits in between tell numbers of a slot apart.
    assert!(endpoint(1, 15).has_other_than(Qpn::new(14 << 20)));
}

/// Settings that the ports cannot support are not used, also after a reset.
#[test]
fn paths_are_as_the_ports_allow() {
    let width = |source_ports: Option<Vec<u16>>, batch, active, spray_width| {
        let ports: Vec<_> = (1..=2)
            .map(|last| LocalPort {
                source_ports: source_ports.clone(),
                same_path_batch: batch,
                ..port(last)
            })
            .collect();
        let mut endpoint = Endpoint::new(EndpointConfig::new(ports)).unwrap();
        let init = QpInit::new(endpoint.alloc_pd(), CqId(0), CqId(1));
        let path = PathConfig { active, spray_width, min_active: 1, ..PathConfig::new(7) };
        let qpn = endpoint.create_qp(QpInit { path, ..init }).unwrap();
        let slot = endpoint.slot_of(qpn).unwrap();
        let before = endpoint.qps.get(slot).unwrap().init.path.clone();
        let paths = |endpoint: &Endpoint, qpn| {
            let mut evs: Vec<_> =
                endpoint.ev_states(qpn).unwrap().map(|status| (status.plane, status.ev)).collect();
            evs.sort_unstable();
            evs
        };
        let evs = paths(&endpoint, qpn);
        let anew = endpoint.modify_qp(Time(1), qpn, QpModify::Reset).unwrap();
        assert_eq!(paths(&endpoint, anew).len(), evs.len());
        assert_eq!(before.planes, 2, "as there are ports");
        (before.active, before.spray_width, evs)
    };
    let any = |batch, active, spray| {
        let (active, spray, _) = width(None, batch, active, spray);
        (active, spray)
    };
    assert_eq!(any(1, 16, 0), (16, 0), "a burst takes all");
    assert_eq!(any(2, 16, 0), (16, 16));
    assert_eq!(any(2, 16, 3), (16, 3), "as was asked for");
    assert_eq!(any(1, 16, 3), (16, 3));
    assert_eq!(any(1, 1, 0), (2, 0), "one a plane");
    let (_, _, evs) = width(Some(vec![100, 101, 102]), 1, 16, 0);
    let expected = [0, 1].iter().flat_map(|&plane| [100, 101, 102].map(|ev| (plane, Ev(ev))));
    assert_eq!(evs, expected.collect::<Vec<_>>());
}

#[test]
fn windows_change_where_both_sides_want_that() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let alone = Alone::with(|init| init.dynamic_mpr = ours, |peer| peer.dynamic_mpr = theirs);
        let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
        assert_eq!(alone.endpoint.qps.get(slot).unwrap().dynamic_mpr, ours && theirs);
    }
}

/// NSCC is for switches that trim, and of no use where the peers have nothing trimmed, whatever the settings were made for.
#[test]
fn congestion_control_knows_whether_switches_trim() {
    let control = |trimming, trim_nack| {
        let cc = CcConfig { trimming, ..CcConfig::new(400_000_000_000, 8_000, 4_096) };
        let alone = Alone::with(|init| init.cc = cc.clone(), |peer| peer.trim_nack = trim_nack);
        let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
        format!("{:?}", alone.endpoint.qps.get(slot).unwrap().cwnd)
    };
    let ([a, b], [c, d]) =
        ([true, false].map(|set| control(set, true)), [true, false].map(|set| control(set, false)));
    assert!(b == c && c == d && a != c, "{a} {b} {c} {d}");
}

/// An unresponsive peer gets repeated updates, each on a different path. An update that cannot be sent is not counted
/// as sent.
#[test]
fn news_of_ports_take_many_paths() {
    let mut alone = Alone::new();
    let sent =
        |alone: &Alone| alone.endpoint.cx.peers.get(0).unwrap().status_update.map(|update| update.sent);
    alone.endpoint.port_link(alone.now, 0, false);
    for _ in 0..5 {
        alone.now = alone.endpoint.next_timeout();
        alone.endpoint.on_timeout(alone.now);
    }
    assert_eq!(sent(&alone), Some(0), "there is no plane");
    alone.endpoint.port_link(alone.now, 0, true);
    let (mut ports, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut packet = Transmit::default();
    for n in 0..50 {
        assert_eq!(sent(&alone), Some(n + 1));
        assert!(alone.endpoint.transmit(alone.now, PlaneSet(1), &mut packet));
        let mut frame = packet.head().to_vec();
        frame.extend_from_slice(&[0; 4]);
        let meta = stack::parse(&frame).unwrap().meta;
        ports.insert(meta.src_port);
        labels.insert(meta.flow_label);
        while sent(&alone) == Some(n + 1) {
            alone.now = alone.endpoint.next_timeout();
            alone.endpoint.on_timeout(alone.now);
        }
    }
    assert!(ports.len() > 45 && labels.len() > 45, "{ports:x?} {labels:x?}");
}

/// A port that goes down drops the packets that it gave back and those queued for it, and nothing else.
#[test]
fn what_a_port_gave_back_is_dropped_with_it() {
    for (port, kept) in [(0, 1), (1, 2)] {
        let mut endpoint = Endpoint::new(EndpointConfig::new((1..=2).map(self::port).collect())).unwrap();
        let mut packet = Transmit::default();
        for from in [0, 1, 0] {
            packet.port = from;
            endpoint.unsent(&packet);
        }
        for _ in 0..2 {
            endpoint.port_link(Time(1), port, false);
            endpoint.port_link(Time(1), 7, false);
        }
        let counters = endpoint.counters();
        assert_eq!((counters.tx_unsent, counters.tx_unsent_dropped), (3, 3 - kept));
        assert_eq!(counters.port_changes, 1, "there is no port 7, and port {port} was down already");
        let left: Vec<u8> = endpoint.given_back.iter().map(|packet| packet.port).collect();
        assert_eq!(left, vec![1 - port; kept as usize]);
    }
}

/// The names are part of the exchange between peers, so all versions must use the same.
#[test]
fn each_mode_of_entropy_has_its_name_in_what_the_peer_is_told() {
    for (mode, name) in [
        (EntropyMode::Stev(StevOrder::SportHigh), "stev-sport-high"),
        (EntropyMode::Stev(StevOrder::SportLow), "stev-sport-low"),
        (EntropyMode::Udp, "udp"),
    ] {
        let mut cfg = EndpointConfig::new(vec![port(1)]);
        cfg.entropy = mode;
        let mut endpoint = Endpoint::new(cfg).unwrap();
        let pd = endpoint.alloc_pd();
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        assert_eq!(endpoint.qp_info(qpn).unwrap().entropy, name);
    }
}

#[test]
fn protection_domains_are_all_different() {
    let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port(1)])).unwrap();
    let pds = [(); 3].map(|()| endpoint.alloc_pd());
    assert!(pds[0] != pds[1] && pds[1] != pds[2] && pds[0] != pds[2], "{pds:?}");
    assert!(endpoint.dealloc_pd(pds[1]).is_ok());
    assert_eq!(endpoint.dealloc_pd(pds[1]), Err(MemoryError::NoSuchPd { pd: pds[1].0 }.into()));
    assert!(!pds.contains(&endpoint.alloc_pd()), "a number that was given out before");
    // What belongs to one domain keeps that one alone.
    let qpn = endpoint.create_qp(QpInit::new(pds[0], CqId(0), CqId(1))).unwrap();
    assert!(endpoint.dealloc_pd(pds[2]).is_ok());
    let held = Err(MemoryError::PdInUse { pd: pds[0].0 }.into());
    assert_eq!(endpoint.dealloc_pd(pds[0]), held);
    endpoint.destroy_qp(qpn).unwrap();
    assert!(endpoint.dealloc_pd(pds[0]).is_ok());
}

/// The attributes for accepting packets from a peer that has these ports.
fn rtr_to(ports: Vec<PortAddr>, udp_port: u16) -> RtrAttr {
    RtrAttr {
        dest_qpn: 77,
        rq_psn: Psn::new(0),
        rq_msn: Msn::new(0),
        path_mtu: 1024,
        mpr_dest: 8,
        max_wimm_dest: 128,
        dynamic_mpr: false,
        trim_nack: true,
        ports,
        udp_port,
        extensions: Extensions::NONE,
        min_rnr_timer: RtrAttr::MIN_RNR_TIMER,
        max_dest_rd_atomic: 0,
    }
}
