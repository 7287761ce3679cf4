//! Peers, ports, keys and denied paths; visits to queue pairs.

use std::net::IpAddr;

use super::*;
use crate::wire::Aeth;
use crate::wire::{EndpointOp, Packet};

/// In turn, and each at most once a second: queue pairs visited recently wait until the others had their turn.
#[test]
fn every_queue_pair_is_visited_once_a_second() {
    const SECOND: u64 = 1_000_000_000;
    let visits = |qps: u32, calls: &[(u64, u64)]| {
        let limits = Limits { max_qps: qps, ..Limits::default() };
        let mut endpoint =
            Endpoint::new(EndpointConfig { limits, ..EndpointConfig::new(vec![port(1)]) }).unwrap();
        let path = PathConfig { active: 4, backup: 0, ..PathConfig::new(1) };
        let init = QpInit { path, ..QpInit::new(endpoint.alloc_pd(), CqId(0), CqId(1)) };
        (0..qps).for_each(|_| assert!(endpoint.create_qp(init.clone()).is_ok()));
        let mut seen = Vec::new();
        for &(at, rx_packets) in calls {
            for slot in 0..endpoint.qps.slots() as u32 {
                if let Some(qp) = endpoint.qps.get_mut(slot) {
                    (qp.counters.tx_packets, qp.counters.rx_packets) = (1, rx_packets);
                }
            }
            endpoint.reclaim(Time(at));
            seen.push(endpoint.qps.iter().filter(|qp| qp.moved == 1 + rx_packets).count());
        }
        seen
    };
    assert_eq!(visits(4, &[(0, 5), (SECOND - 1, 6), (SECOND, 6)]), [4, 0, 4]);
    let half = SECOND / 2;
    let calls = [
        (0, 5),
        (half - 1, 5),
        (half, 5),
        (2 * half - 1, 6),
        (2 * half, 6),
        (3 * half - 1, 6),
        (3 * half, 6),
    ];
    assert_eq!(visits(512, &calls), [256, 256, 512, 0, 256, 256, 512]);
}

/// All queue pairs to one peer learn of its ports together, so any difference in addresses makes a different peer.
#[test]
fn peers_are_told_apart_by_all_their_addresses() {
    let mut endpoint = Endpoint::new(EndpointConfig::new((1..=2).map(port).collect())).unwrap();
    let pd = endpoint.alloc_pd();
    let addr = |last, mac| PortAddr { ip: [10, 0, 0, last].into(), mac: [mac; 6] };
    let mut connect = |ports: [PortAddr; 2], udp_port| {
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        let rtr = rtr_to(ports.to_vec(), udp_port);
        endpoint.modify_qp(Time(1), qpn, QpModify::Init).unwrap();
        endpoint.modify_qp(Time(1), qpn, QpModify::Rtr(Box::new(rtr))).unwrap();
        let slot = endpoint.slot_of(qpn).unwrap();
        endpoint.qps.get(slot).unwrap().peer
    };
    let peers = [
        ([addr(11, 1), addr(12, 2)], 4791),
        ([addr(11, 1), addr(12, 3)], 4791),
        ([addr(11, 1), addr(13, 2)], 4791),
        ([addr(11, 1), addr(12, 2)], 4971),
        ([addr(14, 1), addr(12, 2)], 4791),
    ];
    for _ in 0..2 {
        assert_eq!(peers.map(|(ports, udp_port)| connect(ports, udp_port)), [0, 1, 2, 3, 4]);
    }
}

/// Removing the last queue pair of a peer removes the peer, and its slot is reused.
#[test]
fn a_peer_is_kept_while_it_has_queue_pairs() {
    let mut endpoint = Endpoint::new(EndpointConfig::new(vec![port(1)])).unwrap();
    let pd = endpoint.alloc_pd();
    let connect = |endpoint: &mut Endpoint, last| {
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        let peer = PortAddr { ip: [10, 0, 0, last].into(), mac: [4; 6] };
        to_rts(endpoint, Time(1), qpn, rtr_to(vec![peer], 4791));
        qpn
    };
    let members = |endpoint: &Endpoint| -> Vec<_> {
        endpoint.cx.peers.slots().map(|peer| peer.map(|peer| peer.members.len())).collect()
    };
    let qpns = [11, 11, 12].map(|last| connect(&mut endpoint, last));
    assert_eq!(members(&endpoint), [Some(2), Some(1)]);
    endpoint.destroy_qp(qpns[0]).unwrap();
    assert_eq!(members(&endpoint), [Some(1), Some(1)]);
    endpoint.modify_qp(Time(1), qpns[1], QpModify::Reset).unwrap();
    assert_eq!(members(&endpoint), [None, Some(1)]);
    connect(&mut endpoint, 13);
    assert_eq!(members(&endpoint), [Some(1), Some(1)]);
}

/// A peer assumes that all our ports are up until an update says otherwise.
#[test]
fn a_new_peer_is_told_of_ports_that_are_down_alone() {
    for down in [false, true] {
        let mut endpoint = Endpoint::new(EndpointConfig::new((1..=2).map(port).collect())).unwrap();
        if down {
            endpoint.port_link(Time(1), 1, false);
        }
        let pd = endpoint.alloc_pd();
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        let info = endpoint.qp_info(qpn).unwrap();
        let rtr = rtr_to(info.ports, info.udp_port);
        to_rts(&mut endpoint, Time(1), qpn, rtr);
        assert_eq!(endpoint.planes(qpn), Some(PlaneSet(if down { 0b01 } else { 0b11 })));
        assert_eq!(endpoint.cx.peers.get(0).unwrap().status_update.is_some(), down);
        let mut out = Transmit::default();
        assert_eq!(endpoint.transmit(Time(1), PlaneSet(0b11), &mut out), down, "at once");
    }
}

/// A peer that does not respond gets updates at growing intervals, and none in the end.
#[test]
fn a_silent_peer_is_told_of_ports_less_and_less_often() {
    const MS: u64 = 1_000_000;
    let mut alone = Alone::new();
    alone.endpoint.port_link(alone.now, 0, false);
    alone.endpoint.port_link(alone.now, 0, true);
    let mut waits = Vec::new();
    while let Some(update) = alone.endpoint.cx.peers.get(0).unwrap().status_update {
        waits.push(update.due.since(alone.now));
        assert!(waits.len() <= 64, "{waits:?}");
        alone.transmit();
        alone.now = update.due;
        alone.endpoint.on_timeout(alone.now);
    }
    for (n, &wait) in waits.iter().enumerate() {
        let about = (MS << n.min(10)).min(1_000 * MS);
        assert!((about / 4 * 3..=about / 4 * 5).contains(&wait), "{n}: {wait} ns");
    }
    let counters = alone.endpoint.counters();
    assert_eq!((waits.len(), counters.tx_port_status_unheard), (64, 1));
    assert_eq!(counters.tx_endpoint_requests, 64);
}

/// A plane that is down on our side or closed on the peer's is not used.
#[test]
fn news_of_ports_take_the_planes_that_work_in_turn() {
    let mut endpoint = Endpoint::new(EndpointConfig::new((1..=4).map(port).collect())).unwrap();
    let pd = endpoint.alloc_pd();
    let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
    let info = endpoint.qp_info(qpn).unwrap();
    let mut now = Time(1_000);
    to_rts(&mut endpoint, now, qpn, rtr_to(info.ports, info.udp_port));
    let (mask, local) = (0b0111, endpoint.ports_up());
    endpoint.cx.peers.get_mut(0).unwrap().reachability.on_update(now, mask, local, &mut || 7);
    endpoint.port_link(now, 0, false);
    let (mut planes, mut probes) = (Vec::new(), 0);
    let mut out = Transmit::default();
    while planes.len() < 8 {
        while endpoint.transmit(now, PlaneSet(0b1111), &mut out) {
            let mut frame = out.head().to_vec();
            frame.extend_from_slice(&[0; 4]);
            let mrc = stack::parse(&frame).unwrap().mrc;
            let packet = Packet::decode(&mrc[..mrc.len() - 4]);
            let Ok(Packet::EndpointRequest { erth, .. }) = packet else { panic!("{packet:?}") };
            // The other requests probe whether the closed plane works again.
            if erth.op == EndpointOp::PortStatusUpdate {
                planes.push(out.port);
            } else {
                probes += 1;
            }
        }
        assert_eq!(endpoint.counters().tx_plane_probes, probes);
        now = endpoint.next_timeout();
        assert!(now < Time::NEVER, "nothing is due");
        endpoint.on_timeout(now);
    }
    assert_eq!(planes, [1, 2, 1, 2, 1, 2, 1, 2]);
    assert!(probes > 1);
}

/// A lane that cannot go on fails its queue pairs; with nothing under way that is all there is to tell.
#[test]
fn an_abandoned_queue_pair_fails() {
    let mut alone = Alone::new();
    let events =
        |alone: &mut Alone| -> Vec<_> { core::iter::from_fn(|| alone.endpoint.poll_event()).collect() };
    events(&mut alone);
    alone.endpoint.abandon_qp(alone.qpn);
    let failed = Event::QpFailed { qpn: alone.qpn, reason: FailReason::LaneFailed };
    assert_eq!(events(&mut alone), [failed]);
    alone.endpoint.abandon_qp(alone.qpn);
    assert_eq!(events(&mut alone), [], "once");
}

#[test]
fn an_invalid_key_is_no_source() {
    let mut alone = Alone::new();
    let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
    let pd = alone.endpoint.qps.get(slot).unwrap().init.pd;
    let region = Region::alloc_at(4096, 0x9000).unwrap();
    let key = alone.endpoint.register(pd, region, Access::REMOTE_WRITE).unwrap();
    let wr = SendWr { local: Sge { addr: 0x9000, len: 64, lkey: key.lkey }, ..alone.wr };
    let statuses = |alone: &mut Alone| -> Vec<_> {
        core::iter::from_fn(|| alone.endpoint.poll_event())
            .filter_map(|event| if let Event::Completion { wc, .. } = event { Some(wc.status) } else { None })
            .collect()
    };
    alone.endpoint.post_send(alone.now, alone.qpn, wr).unwrap();
    assert_eq!(statuses(&mut alone), []);
    alone.endpoint.invalidate(key.rkey);
    alone.endpoint.post_send(alone.now, alone.qpn, wr).unwrap();
    assert_eq!(statuses(&mut alone), [WcStatus::WrFlushError, WcStatus::LocalProtectionError]);
}

/// Nothing is said to be denied that was not there.
#[test]
fn only_paths_that_there_are_are_denied() {
    let Alone { mut endpoint, qpn, .. } = Alone::new();
    let status = endpoint.ev_states(qpn).unwrap().next().unwrap();
    let mut deny = |ev| {
        let count = endpoint.deny_ev(qpn, ev, None);
        let denied = |event| matches!(event, Event::PathDenied { .. });
        (count, core::iter::from_fn(|| endpoint.poll_event()).any(denied))
    };
    assert_eq!(deny(Ev(status.ev.0 ^ 1)), (0, false));
    assert_eq!(deny(status.ev), (1, true));
    assert_eq!(deny(status.ev), (0, false), "it is denied already");
    assert_eq!([(); 2].map(|()| endpoint.allow_ev(qpn, status.ev, None)), [1, 0]);
    assert_eq!([(); 2].map(|()| endpoint.deny_plane(qpn, 0)), [true, false]);
    assert_eq!([(); 2].map(|()| endpoint.allow_plane(qpn, 0)), [true, false]);
}

/// A queue pair gets other settings until its peer is known, and keeps them over RESET.
#[test]
fn paths_and_congestion_control_change_before_rtr() {
    let Alone { mut endpoint, qpn: connected, now, .. } = Alone::new();
    let pd = endpoint.alloc_pd();
    let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(0))).unwrap();
    let planes = endpoint.ports_up().0.count_ones() as u8;
    let lists = |first: u32| {
        (0..u32::from(planes))
            .map(move |plane| (first..first + 3).map(|at| Ev((at << 16) | (0x100 + plane))).collect())
    };
    let wanted = |first| {
        let source = EvSource::Explicit(lists(first).collect::<Vec<Vec<_>>>().into());
        let active = 3 * u16::from(planes);
        QpModify::Paths(Box::new(PathConfig {
            active,
            backup: 0,
            min_active: 2,
            source,
            ..PathConfig::new(1)
        }))
    };
    let evs = |endpoint: &Endpoint, qpn| {
        let mut evs: Vec<_> =
            endpoint.ev_states(qpn).unwrap().map(|status| (status.plane, status.ev)).collect();
        evs.sort_unstable();
        evs
    };
    let expected = |first| {
        let listed: Vec<Vec<Ev>> = lists(first).collect();
        (0..)
            .zip(listed)
            .flat_map(|(plane, evs)| evs.into_iter().map(move |ev| (plane, ev)))
            .collect::<Vec<_>>()
    };
    endpoint.modify_qp(now, qpn, wanted(1)).unwrap();
    assert_eq!(evs(&endpoint, qpn), expected(1));
    // What is denied stays so where it is chosen again.
    endpoint.deny_ev(qpn, Ev(3 << 16 | 0x100), Some(0));
    endpoint.modify_qp(now, qpn, QpModify::Init).unwrap();
    endpoint.modify_qp(now, qpn, wanted(2)).unwrap();
    assert_eq!(evs(&endpoint, qpn), expected(2));
    let denied = endpoint.ev_states(qpn).unwrap().filter(|status| status.state == EvState::Denied);
    assert_eq!(denied.map(|status| status.ev).collect::<Vec<_>>(), [Ev(3 << 16 | 0x100)]);
    let none = QpModify::Paths(Box::new(PathConfig { min_active: 0, ..PathConfig::new(1) }));
    assert!(endpoint.modify_qp(now, qpn, none).is_err());
    let cc = CcConfig::new(1_000_000_000, 20_000, 4096);
    endpoint.modify_qp(now, qpn, QpModify::Congestion(Box::new(cc.clone()))).unwrap();
    let bad = QpModify::Congestion(Box::new(CcConfig { base_rtt_ns: 0, ..cc.clone() }));
    assert!(endpoint.modify_qp(now, qpn, bad).is_err());
    let qpn = endpoint.modify_qp(now, qpn, QpModify::Reset).unwrap();
    assert_eq!(evs(&endpoint, qpn), expected(2));
    assert_eq!(endpoint.query_qp(qpn).unwrap().cc, cc);
    let late = endpoint.modify_qp(now, connected, wanted(1)).unwrap_err().to_string();
    assert_eq!(late, "the path settings can be changed in RESET and INIT only, and the queue pair is in Rts");
    endpoint.modify_qp(now, qpn, QpModify::Error).unwrap();
    assert!(endpoint.modify_qp(now, qpn, QpModify::Congestion(Box::new(cc))).is_err());
    assert!(endpoint.modify_qp(now, qpn, wanted(1)).is_err());
}

/// For peers that are told of numbers once, before anything is known.
#[test]
fn a_number_may_be_kept_and_the_first_psn_given_late() {
    let Alone { mut endpoint, now, .. } = Alone::new();
    let pd = endpoint.alloc_pd();
    let init = |keep_number| QpInit { keep_number, ..QpInit::new(pd, CqId(0), CqId(0)) };
    let kept = endpoint.create_qp(init(true)).unwrap();
    let drawn = endpoint.create_qp(init(false)).unwrap();
    for _ in 0..3 {
        assert_eq!(endpoint.modify_qp(now, kept, QpModify::Reset), Ok(kept));
    }
    assert_ne!(endpoint.modify_qp(now, drawn, QpModify::Reset), Ok(drawn));
    let peer = PortAddr { ip: [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(), mac: [4; 6] };
    let rtr = rtr_to(vec![peer], 4793);
    for psn in [None, Some(Psn::new(0x00ab_cdef))] {
        let random = Psn::new(endpoint.qp_info(kept).unwrap().psn);
        for change in [
            QpModify::Init,
            QpModify::Rtr(Box::new(rtr.clone())),
            QpModify::Rts(RtsAttr { psn, ..RtsAttr::default() }),
        ] {
            endpoint.modify_qp(now, kept, change).unwrap();
        }
        let attr = endpoint.query_qp(kept).unwrap();
        let expected = psn.unwrap_or(random);
        assert_eq!((attr.sq_psn, attr.next_sq_psn), (expected, expected));
        assert_eq!(endpoint.modify_qp(now, kept, QpModify::Reset), Ok(kept));
    }
}

/// A queue pair frees its packet records when none has moved between two visits.
#[test]
fn only_quiet_queue_pairs_give_memory_up() {
    let mut alone = Alone::new();
    let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
    let mut kept = |acts: bool| {
        if acts {
            alone.post();
            assert_eq!(alone.transmit(), 1);
            let qp = alone.endpoint.qps.get_mut(slot).unwrap();
            let psn = qp.requester.psn(qp.counters.tx_packets - 1);
            let now = alone.now;
            alone.endpoint.with_qp(slot, |qp, cx| qp.on_ack(cx, now, psn, &Aeth::ack(0)));
        }
        (alone.endpoint.next_visit, alone.endpoint.visit_at) = (slot, Time::ZERO);
        alone.endpoint.reclaim(alone.now);
        format!("{:?}", alone.endpoint.qps.get(slot).unwrap().requester).len()
    };
    let idle = [kept(false), kept(false)][1];
    for _ in 0..2 {
        assert!(kept(true) > idle + 100);
        assert!(kept(false) < idle + 100);
    }
}

/// Queue pairs made before and after the list follow it, in each state, and their peer's address counts once they have one.
#[test]
fn queue_pairs_follow_the_deny_list_of_the_host() {
    let ip = |plane: u8, last: u8| IpAddr::from([10, 0, plane, last]);
    let ports = [0, 1].map(|plane| LocalPort { ip: ip(plane, 1), ..port(plane) }).to_vec();
    let mut endpoint = Endpoint::new(EndpointConfig::new(ports)).unwrap();
    let pd = endpoint.alloc_pd();
    let now = Time(1);
    let make = |endpoint: &mut Endpoint| {
        let path = PathConfig { active: 8, backup: 0, min_active: 2, ..PathConfig::new(2) };
        endpoint.create_qp(QpInit { path, ..QpInit::new(pd, CqId(0), CqId(0)) }).unwrap()
    };
    let denied = |endpoint: &Endpoint, qpn| {
        let denied = endpoint.ev_states(qpn).unwrap().filter(|ev| ev.state == EvState::Denied);
        denied.map(|ev| (ev.plane, ev.ev)).collect::<Vec<_>>()
    };
    let avoided = |endpoint: &Endpoint, qpn| endpoint.deny_list_status(qpn).map(|status| status.avoided.0);
    let before = make(&mut endpoint);
    let first = endpoint.ev_states(before).unwrap().next().unwrap();
    let (plane, ev) = (first.plane, first.ev);
    let set = |endpoint: &mut Endpoint, rules: &[DenyRule]| {
        endpoint.set_deny_list(Arc::new(DenyList::new(rules).unwrap()));
    };
    set(&mut endpoint, &[DenyRule::Ev { value: ev.0, mask: u32::MAX, plane: None }]);
    assert_eq!(denied(&endpoint, before), vec![], "it has not been told yet");
    endpoint.follow_deny_list(before);
    assert_eq!(denied(&endpoint, before), [(plane, ev)]);
    // A plane to a peer, for those that are connected to it.
    set(&mut endpoint, &[DenyRule::Peer { address: ip(1, 2) }]);
    endpoint.follow_deny_list(before);
    assert_eq!((denied(&endpoint, before), avoided(&endpoint, before)), (vec![], None));
    let connect = |endpoint: &mut Endpoint, qpn, last| {
        let ports = [0, 1].map(|plane| PortAddr { ip: ip(plane, last), mac: [2; 6] }).to_vec();
        let info = endpoint.qp_info(qpn).unwrap();
        let rtr = rtr_to(ports, info.udp_port);
        to_rts(endpoint, now, qpn, RtrAttr { path_mtu: info.mtu, mpr_dest: info.mpr, ..rtr });
    };
    connect(&mut endpoint, before, 2);
    assert_eq!(avoided(&endpoint, before), Some(0b10));
    let [same, other] = [2, 3].map(|last| {
        let qpn = make(&mut endpoint);
        connect(&mut endpoint, qpn, last);
        qpn
    });
    assert_eq!([same, other].map(|qpn| avoided(&endpoint, qpn)), [Some(0b10), None]);
    // RESET forgets the peer, and another path set follows too.
    let again = endpoint.modify_qp(now, same, QpModify::Reset).unwrap();
    assert_eq!(avoided(&endpoint, again), None);
    set(&mut endpoint, &[DenyRule::Plane { plane: 0 }]);
    endpoint.modify_qp(now, again, QpModify::Paths(Box::new(PathConfig::new(2)))).unwrap();
    assert_eq!(avoided(&endpoint, again), Some(0b01));
    endpoint.follow_deny_list(before);
    let unknown = Qpn::new(before.get() ^ 1);
    endpoint.follow_deny_list(unknown);
    assert_eq!((avoided(&endpoint, before), endpoint.deny_list_status(unknown)), (Some(0b01), None));
    let new = make(&mut endpoint);
    assert_eq!(avoided(&endpoint, new), Some(0b01));
    set(&mut endpoint, &[]);
    endpoint.follow_deny_list(new);
    assert_eq!((avoided(&endpoint, new), denied(&endpoint, new)), (None, vec![]));
}
