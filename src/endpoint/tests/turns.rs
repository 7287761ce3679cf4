//! Order of sending, waiting for ports, and packets given back by ports.

use super::*;
use crate::requester::Requester;
use crate::wire::Aeth;
use crate::wire::Opcode;

/// What a port refused is kept up to a limit, and goes out on that port when it has room.
#[test]
fn what_a_port_gave_back_goes_out_on_it_later() {
    let mut endpoint = Endpoint::new(EndpointConfig::new((1..=2).map(port).collect())).unwrap();
    let kept = Endpoint::MAX_GIVEN_BACK;
    let mut packet = Transmit::default();
    packet.port = 1;
    for number in 0..=kept {
        packet.head_len = number as u8;
        endpoint.unsent(&packet);
    }
    let counters = endpoint.counters();
    assert_eq!((counters.tx_unsent, counters.tx_unsent_dropped), (kept as u64 + 1, 1));
    let mut out = Transmit::default();
    assert!(!endpoint.transmit(Time(1), PlaneSet(0b01), &mut out), "the other port");
    for number in 0..kept {
        assert!(endpoint.transmit(Time(1), PlaneSet(0b10), &mut out));
        assert_eq!((out.port, out.head_len), (1, number as u8), "in their order");
    }
    assert!(!endpoint.transmit(Time(1), PlaneSet(0b11), &mut out));
}

/// Such packets need no timer to be sent again. A queue pair that failed meanwhile sends nothing.
#[test]
fn data_that_a_port_gave_back_is_sent_again() {
    for fails in [false, true] {
        let mut alone = Alone::new();
        alone.post();
        let mut first = Transmit::default();
        assert!(alone.endpoint.transmit(alone.now, PlaneSet(1), &mut first));
        let counters = alone.endpoint.counters();
        assert_eq!((counters.tx_data, counters.tx_data_bytes), (1, 64));
        let counters = alone.endpoint.qp_status(alone.qpn).unwrap().counters;
        assert_eq!(counters, QpCounters { tx_packets: 1, tx_bytes: 64, ..QpCounters::default() });
        if fails {
            alone.endpoint.modify_qp(alone.now, alone.qpn, QpModify::Error).unwrap();
        }
        alone.endpoint.unsent(&first);
        let counters = alone.endpoint.counters();
        assert_eq!((counters.tx_data, counters.tx_data_bytes, counters.tx_unsent), (0, 0, 1));
        let counters = alone.endpoint.qp_status(alone.qpn).unwrap().counters;
        assert_eq!(counters, QpCounters::default());
        assert_eq!(alone.transmit(), usize::from(!fails));
        assert_eq!(alone.endpoint.counters().tx_data, u64::from(!fails));
        assert_eq!(alone.endpoint.counters().tx_unsent_dropped, 0);
    }
}

#[test]
fn a_queue_pair_that_goes_leaves_the_turns_of_others() {
    let mut alone = Alone::new();
    let init = QpInit::new(alone.endpoint.alloc_pd(), CqId(0), CqId(1));
    let other = alone.endpoint.create_qp(init).unwrap();
    let slots = [alone.qpn, other].map(|qpn| alone.endpoint.slot_of(qpn).unwrap());
    for slot in [slots[0], slots[1], slots[0], slots[1]] {
        alone.endpoint.wake_control(slot);
    }
    assert_eq!(alone.endpoint.control_list, slots, "each once");
    alone.endpoint.destroy_qp(other).unwrap();
    assert_eq!(alone.endpoint.control_list, [slots[0]]);
}

/// Of the entropy values of a queue pair, a burst takes as many as its settings say, and the next burst others.
#[test]
fn a_burst_keeps_to_a_part_of_the_entropy_values() {
    let mut alone = Alone::with(
        |init| init.path = PathConfig { active: 8, backup: 0, spray_width: 2, ..PathConfig::new(1) },
        |_| {},
    );
    let mut burst = |hint| {
        let mut packet = Transmit::default();
        let mut evs = BTreeSet::new();
        (0..8).for_each(|_| alone.post());
        alone.endpoint.begin_burst(hint);
        for _ in 0..8 {
            assert!(alone.endpoint.transmit(alone.now, PlaneSet(1), &mut packet));
            let mut frame = packet.head().to_vec();
            frame.extend_from_slice(&[0; 64 + 4]);
            let meta = stack::parse(&frame).unwrap().meta;
            evs.insert((meta.src_port, meta.flow_label));
        }
        evs
    };
    assert_eq!(burst(1).len(), 1, "no more than packets are expected");
    let bursts = [burst(8), burst(8)];
    assert!(bursts.iter().all(|evs| evs.len() == 2), "{bursts:?}");
    assert!(bursts[0].is_disjoint(&bursts[1]));
}

/// Decision 31: where a port gains from packets of one path, those that may leave share as many paths as they fill, however many more
/// wait for the congestion window.
#[test]
fn a_burst_that_the_congestion_window_cuts_short_takes_fewer_entropy_values() {
    for (window, paths) in [(4, 1), (5, 2), (100, 2)] {
        let full = u64::from(Requester::counted(Opcode::WriteMiddle, 256));
        let max_cwnd_bytes = Some(window * full);
        let nscc = NsccOverrides { max_cwnd_bytes, ..NsccOverrides::default() };
        let mut alone = Alone::with(
            |init| {
                init.path = PathConfig { active: 8, backup: 0, spray_width: 8, ..PathConfig::new(1) };
                init.cc = CcConfig { nscc, ..CcConfig::new(100_000_000_000, 12_000, 4096) };
            },
            |peer| peer.path_mtu = 256,
        );
        alone.endpoint.burst.same_path_batch = 4;
        alone.wr.local.len = 256;
        (0..8).for_each(|_| alone.post());
        alone.endpoint.begin_burst(100);
        let mut packet = Transmit::default();
        let mut evs = BTreeSet::new();
        let mut sent = 0;
        while alone.endpoint.transmit(alone.now, PlaneSet(1), &mut packet) {
            let mut frame = packet.head().to_vec();
            frame.extend_from_slice(&[0; 256 + 4]);
            let meta = stack::parse(&frame).unwrap().meta;
            evs.insert((meta.src_port, meta.flow_label));
            sent += 1;
        }
        assert_eq!((sent, evs.len()), (window.min(8), paths), "window of {window}");
    }
}

/// Decision 32: only if acknowledgements are pending, no packet was given back and nothing is to be retransmitted.
/// Otherwise no data may go ahead.
#[test]
fn short_messages_go_ahead_of_answers_and_of_nothing_else() {
    let mut out = Transmit::default();
    for (case, goes) in
        [("alone", false), ("answers", true), ("given back", false), ("repairs", false), ("long", false)]
    {
        let mut alone = Alone::new();
        let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
        (0..if case == "long" { Endpoint::AHEAD + 1 } else { Endpoint::AHEAD }).for_each(|_| alone.post());
        if case != "alone" {
            alone.endpoint.wake_control(slot);
            assert!(alone.endpoint.has_pending_control());
        }
        let back = Transmit::default();
        match case {
            "given back" => alone.endpoint.unsent(&back),
            "repairs" => alone.endpoint.scheduler.push(TxClass::Retransmit, slot),
            _ => {}
        }
        assert_eq!(alone.endpoint.goes_ahead(), goes, "{case}");
        assert!(!alone.endpoint.transmit_ahead(alone.now, PlaneSet(0), &mut out), "no port has room");
        assert_eq!(alone.endpoint.transmit_ahead(alone.now, PlaneSet(1), &mut out), goes, "{case}");
    }
    let mut alone = Alone::new();
    alone.endpoint.wake_control(alone.endpoint.slot_of(alone.qpn).unwrap());
    assert!(!alone.endpoint.goes_ahead(), "nothing to send");
    alone.post();
    assert!(alone.endpoint.transmit_ahead(alone.now, PlaneSet(1), &mut out));
    assert!(!alone.endpoint.goes_ahead(), "nothing left to send, though it is still in turn");
}

/// Queue pairs with retransmissions are served, however many with new data wait for another port.
#[test]
fn repairs_leave_where_new_data_is_blocked() {
    let mut endpoint =
        Endpoint::new(EndpointConfig { quantum: 1, ..EndpointConfig::new((1..=2).map(port).collect()) })
            .unwrap();
    let pd = endpoint.alloc_pd();
    let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
    let mut now = Time(1_000);
    let connect = |endpoint: &mut Endpoint| {
        let path = PathConfig { active: 4, backup: 0, min_active: 1, ..PathConfig::new(1) };
        let qpn = endpoint.create_qp(QpInit { path, ..QpInit::new(pd, CqId(0), CqId(1)) }).unwrap();
        let peer = [11, 12].map(|last| PortAddr { ip: [10, 0, 0, last].into(), mac: [4; 6] });
        let rtr = rtr_to(peer.to_vec(), 4791);
        to_rts(endpoint, now, qpn, rtr);
        qpn
    };
    let post = |endpoint: &mut Endpoint, now, qpn| {
        endpoint.post_send(now, qpn, write(key.lkey)).unwrap();
    };
    let qpns: Vec<_> = (0..70).map(|_| connect(&mut endpoint)).collect();
    let mut out = Transmit::default();
    assert!(endpoint.deny_plane(qpns[0], 1));
    post(&mut endpoint, now, qpns[0]);
    assert!(endpoint.transmit(now, PlaneSet(0b01), &mut out));
    for &qpn in &qpns[1..] {
        assert!(endpoint.deny_plane(qpn, 0));
        post(&mut endpoint, now, qpn);
    }
    while endpoint.scheduler.len(TxClass::Retransmit) == 0 {
        now = endpoint.next_timeout();
        endpoint.on_timeout(now);
    }
    // Retransmissions are a quantum ahead, and the queue pair with one is the last of those with new data.
    assert_eq!(endpoint.scheduler.first(1), TxClass::Retransmit);
    while endpoint.scheduler.front(TxClass::New) != endpoint.slot_of(qpns[1]) {
        endpoint.scheduler.rotate(TxClass::New);
    }
    assert!(endpoint.transmit(now, PlaneSet(0b01), &mut out), "the repair");
    assert!(!endpoint.transmit(now, PlaneSet(0b01), &mut out));
    // Behind a few that are blocked, one that may send is found.
    post(&mut endpoint, now, qpns[0]);
    while endpoint.scheduler.front(TxClass::New) != endpoint.slot_of(qpns[0]) {
        endpoint.scheduler.rotate(TxClass::New);
    }
    (2..endpoint.scheduler.len(TxClass::New)).for_each(|_| endpoint.scheduler.rotate(TxClass::New));
    assert!(endpoint.transmit(now, PlaneSet(0b01), &mut out));
    let others = (0..100).filter(|_| endpoint.transmit(now, PlaneSet(0b10), &mut out)).count();
    assert_eq!(others, qpns.len() - 1, "they kept their turns");
}

/// One queue pair with three planes, a write posted.
struct ThreePlanes {
    endpoint: Endpoint,
    qpn: Qpn,
    now: Time,
}

impl ThreePlanes {
    fn new() -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig::new((1..=3).map(port).collect())).unwrap();
        let (now, pd) = (Time(1_000), endpoint.alloc_pd());
        let key = endpoint.register(pd, Region::alloc_at(4096, 0x1000).unwrap(), Access::LOCAL_READ).unwrap();
        let qpn = endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
        let peer = [11, 12, 13].map(|last| PortAddr { ip: [10, 0, 0, last].into(), mac: [4; 6] });
        to_rts(&mut endpoint, now, qpn, rtr_to(peer.to_vec(), 4791));
        endpoint.post_send(now, qpn, write(key.lkey)).unwrap();
        Self { endpoint, qpn, now }
    }

    /// The plane that a packet takes when these have room.
    fn transmit(&mut self, free: u32) -> Option<u8> {
        let mut out = Transmit::default();
        self.endpoint.transmit(self.now, PlaneSet(free), &mut out).then_some(out.port)
    }

    fn time_passes(&mut self) {
        self.now = self.endpoint.next_timeout();
        self.endpoint.on_timeout(self.now);
    }
}

/// A dead plane always has room, while the packets of others fill those that live: a repeat waits for one of them.
#[test]
fn a_repeat_waits_for_another_plane() {
    let mut host = ThreePlanes::new();
    assert_eq!(host.transmit(0b001), Some(0));
    host.time_passes();
    assert_eq!(host.transmit(0b001), None);
    assert_eq!(host.transmit(0b101), Some(2));
    host.time_passes();
    assert_eq!(host.transmit(0b100), None);
    assert!(host.transmit(0b111).is_some_and(|plane| plane < 2));
    // Without another that is up there is nothing to wait for.
    let mut host = ThreePlanes::new();
    assert_eq!(host.transmit(0b001), Some(0));
    host.time_passes();
    assert!(host.endpoint.deny_plane(host.qpn, 1));
    assert_eq!(host.transmit(0b011), None);
    assert!(host.endpoint.deny_plane(host.qpn, 2));
    assert_eq!(host.transmit(0b011), Some(0));
}

/// The EVs in use may be the dead ones, and the assumed-bad ones may work.
#[test]
fn every_other_tail_probe_takes_a_bad_path_of_another_plane() {
    let mut host = ThreePlanes::new();
    let slot = host.endpoint.slot_of(host.qpn).unwrap();
    let paths = &mut host.endpoint.qps.get_mut(slot).unwrap().paths;
    let others: Vec<_> = paths.states().filter(|status| status.plane > 0).map(|status| status.id).collect();
    for &id in &others {
        paths.on_loss(id, host.now);
    }
    assert_eq!(paths.usable_planes(), PlaneSet(0b001));
    assert_eq!(host.transmit(0b111), Some(0));
    for (free, taken) in [(0b111, 0), (0b101, 2), (0b111, 0), (0b011, 1)] {
        host.time_passes();
        assert_eq!(host.transmit(free), Some(taken));
    }
    // One in use that has room is better than none.
    let mut host = ThreePlanes::new();
    let slot = host.endpoint.slot_of(host.qpn).unwrap();
    for &id in &others {
        host.endpoint.qps.get_mut(slot).unwrap().paths.on_loss(id, host.now);
    }
    for free in [0b001, 0b001, 0b001] {
        assert_eq!(host.transmit(free), Some(0));
        host.time_passes();
    }
}

/// Planes that have no room for so long may be the dead ones.
#[test]
fn a_repeat_waits_for_no_more_than_a_timeout() {
    let mut host = ThreePlanes::new();
    assert_eq!(host.transmit(0b001), Some(0));
    let begun = host.now;
    while host.endpoint.counters().timeouts == 0 {
        host.time_passes();
        let taken = host.transmit(0b001);
        assert_eq!(taken.is_some(), host.endpoint.counters().timeouts == 1);
    }
    assert!(host.now.since(begun) < 20_000_000);
    // From then on, too: nothing has come yet.
    host.time_passes();
    assert_eq!(host.transmit(0b001), Some(0));
    // One that found room is not owed another plane's fault.
    let mut host = ThreePlanes::new();
    assert_eq!(host.transmit(0b001), Some(0));
    let mut last = 0;
    while host.endpoint.counters().timeouts == 0 {
        host.time_passes();
        last = host.transmit(0b111 & !(1 << last)).unwrap();
    }
    host.time_passes();
    assert_eq!(host.transmit(1 << last), None);
}

/// Retransmissions that cannot leave do not delay new data of other queue pairs.
#[test]
fn new_data_leaves_when_repairs_cannot() {
    let mut alone = Alone::with(|init| init.path = PathConfig { min_active: 1, ..init.path.clone() }, |_| {});
    alone.post();
    assert_eq!(alone.transmit(), 1);
    while alone.endpoint.scheduler.len(TxClass::Retransmit) == 0 {
        alone.now = alone.endpoint.next_timeout();
        alone.endpoint.on_timeout(alone.now);
    }
    assert!(alone.endpoint.deny_plane(alone.qpn, 0));
    let pd = alone.endpoint.qps.get(alone.endpoint.slot_of(alone.qpn).unwrap()).unwrap().init.pd;
    let other = alone.endpoint.create_qp(QpInit::new(pd, CqId(0), CqId(1))).unwrap();
    let info = alone.endpoint.qp_info(alone.qpn).unwrap();
    let peer = PortAddr { ip: [0xfd00, 0, 0, 0, 0, 0, 0, 9].into(), mac: [4; 6] };
    let rtr = RtrAttr { path_mtu: info.mtu, ..rtr_to(vec![peer], info.udp_port) };
    to_rts(&mut alone.endpoint, alone.now, other, rtr);
    alone.endpoint.post_send(alone.now, other, alone.wr).unwrap();
    // Whichever has its turn first.
    let turns = alone.endpoint.config().quantum;
    assert_eq!(alone.endpoint.scheduler.first(turns), TxClass::Retransmit);
    let mut out = Transmit::default();
    assert!(alone.endpoint.transmit(alone.now, PlaneSet(1), &mut out));
    let slot = alone.endpoint.slot_of(other).unwrap();
    assert_eq!(alone.endpoint.qps.get(slot).unwrap().counters.tx_packets, 1);
}

/// The first packet in flight has a timer of its own, whatever was armed before; and one is never without.
#[test]
fn a_packet_in_flight_has_a_timer() {
    let mut alone = Alone::new();
    let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
    let day = Time(86_400_000_000_000);
    for (outstanding, armed_at) in [(false, day), (true, Time::NEVER)] {
        alone.endpoint.timers = TimerHeap::default();
        alone.endpoint.qps.get_mut(slot).unwrap().armed_at = armed_at;
        alone.post();
        assert_eq!(alone.endpoint.qps.get(slot).unwrap().requester.outstanding(), outstanding);
        assert_eq!(alone.transmit(), 1);
        assert!(alone.endpoint.next_timeout() < day);
    }
    // Armed already, so another one changes nothing.
    let armed = alone.endpoint.timers.len();
    alone.post();
    assert_eq!(alone.transmit(), 1);
    assert_eq!(alone.endpoint.timers.len(), armed);
}

/// The headers' length is told in a byte.
#[test]
fn the_longest_headers_fit() {
    const { assert!(Transmit::HEAD_ROOM <= u8::MAX as usize) };
}

/// While its port has no room, a probe needs no timer: it goes out as soon as there is room.
#[test]
fn a_probe_waits_for_its_port_without_a_timer() {
    let mut alone = Alone::new();
    let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
    alone.endpoint.qps.get_mut(slot).unwrap().paths.on_loss(EvId(0), alone.now);
    alone.endpoint.arm(slot);
    alone.now = alone.endpoint.next_timeout();
    alone.endpoint.on_timeout(alone.now);
    let mut out = Transmit::default();
    for _ in 0..2 {
        assert!(!alone.endpoint.transmit(alone.now, PlaneSet(0b10), &mut out));
        assert!(alone.endpoint.next_timeout() > alone.now);
    }
    assert_eq!((alone.transmit(), alone.endpoint.counters().tx_probes), (1, 1));
}

#[test]
fn requests_for_a_port_that_goes_down_are_dropped_and_counted() {
    let mut alone = Alone::new();
    for ev in [5, 6] {
        alone.endpoint.send_ev_probe(alone.now, alone.qpn, 0, Ev(ev)).unwrap();
    }
    alone.endpoint.port_link(alone.now, 0, false);
    assert_eq!(alone.endpoint.counters().tx_endpoint_dropped, 2);
    assert_eq!(alone.transmit(), 0);
}

/// The peer acknowledges everything sent; returns the resulting events.
fn acknowledged(alone: &mut Alone) -> Vec<Event> {
    let slot = alone.endpoint.slot_of(alone.qpn).unwrap();
    let qp = alone.endpoint.qps.get_mut(slot).unwrap();
    let psn = qp.requester.psn(qp.counters.tx_packets - 1);
    let now = alone.now;
    alone.endpoint.with_qp(slot, |qp, cx| qp.on_ack(cx, now, psn, &Aeth::ack(0)));
    core::iter::from_fn(|| alone.endpoint.poll_event()).collect()
}

/// A driver counts the free places of its queue pairs, so every request that ends is reported, however it ended.
#[test]
fn requests_that_ended_are_told_with_their_number() {
    let mut alone = Alone::new();
    let retired = |events: &[Event]| -> Vec<u32> {
        let count =
            |event: &Event| if let Event::SendRetired { count, .. } = event { Some(*count) } else { None };
        events.iter().filter_map(count).collect()
    };
    for signaled in [true, false, false] {
        alone.wr.signaled = signaled;
        alone.post();
    }
    assert_eq!(alone.transmit(), 3);
    assert_eq!(retired(&acknowledged(&mut alone)), [3]);
    assert!(retired(&acknowledged(&mut alone)).is_empty(), "none is left");
    (0..2).for_each(|_| alone.post());
    alone.endpoint.modify_qp(alone.now, alone.qpn, QpModify::Error).unwrap();
    // One that is posted after that ends at once.
    alone.post();
    let events: Vec<_> = core::iter::from_fn(|| alone.endpoint.poll_event()).collect();
    assert_eq!(retired(&events), [2, 1]);
}

#[test]
fn requests_complete_if_they_or_their_queue_pair_say_so() {
    for (sig_all, signaled) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut alone = Alone::with(|init| init.sig_all = sig_all, |_| {});
        alone.wr.signaled = signaled;
        alone.post();
        assert_eq!(alone.transmit(), 1);
        let events = acknowledged(&mut alone);
        let completes = events.iter().any(|event| matches!(event, Event::Completion { .. }));
        assert_eq!(completes, sig_all || signaled, "{events:?}");
    }
}
