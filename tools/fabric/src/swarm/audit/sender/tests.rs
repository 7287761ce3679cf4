//! Traces of packets and reports, and what the rules say of them.

use spindrift::wire::{Bth, Meth, Msn, Opcode, Qpn, Reth, Tseth};

use super::*;

const FIRST: Psn = Psn::new(0xff_ffff);
const RTT: u64 = 1_000;

/// A queue pair that has sent so many packets at once, at time 0.
fn sender(packets: u32) -> Sender {
    let timers = Timers { initial_reordering_ns: 0, probe_floor_ns: 3_000, timeout_ns: 100_000 };
    let mut sender = Sender::new(timers, 16);
    for n in 0..packets {
        send(&mut sender, 0, n).unwrap();
    }
    sender
}

fn head(at: u64, n: u32) -> DataHead {
    DataHead {
        bth: Bth { ts: true, ..Bth::new(Opcode::WriteMiddle, Qpn::new(7), FIRST.add(n)) },
        meth: Meth::default(),
        tseth: Some(Tseth::new((at >> 7) as u16)),
        reth: Reth::default(),
        imm: None,
        operands: None,
    }
}

fn send(sender: &mut Sender, at: u64, n: u32) -> Check {
    sender.on_send(Time(at), 0, true, &head(at, n))
}

/// A report for packet `of`, sent at `sent_at`: all before `end` have arrived, and those that are listed.
fn sack(sender: &mut Sender, at: u64, end: u32, listed: &[u32], (of, sent_at): (u32, u64)) {
    let cack = FIRST.add(end).sub(1);
    let mut seth = Seth {
        cack,
        ack_psn_offset: FIRST.add(of).distance(cack) as i16,
        sack_offset: 1,
        bitmap: listed.iter().map(|n| 1 << (n - end)).sum(),
        ..Seth::default()
    };
    seth.cc.tx_timestamp = (sent_at >> 7) as u16;
    sender.on_sack(Time(at), 0, &seth);
}

#[test]
fn new_data_waits_for_a_packet_that_is_lost() {
    let overtaken = || {
        let mut sender = sender(4);
        sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
        sender
    };
    // A round trip, and five for reordering.
    assert_eq!(send(&mut overtaken(), 6 * RTT, 4), Ok(()));
    let late = send(&mut overtaken(), 6 * RTT + 1, 4).unwrap_err();
    assert!(late.contains("packet 16777215 is lost: sent 1 times, the last time 6001 ns ago"), "{late}");
    let mut repaired = overtaken();
    send(&mut repaired, 5 * RTT, 0).unwrap();
    assert_eq!(send(&mut repaired, 20 * RTT, 4), Ok(()), "nothing that left later has been reported");
    sack(&mut repaired, 21 * RTT, 0, &[1, 2, 3, 4], (4, 20 * RTT));
    assert_eq!(send(&mut repaired, 22 * RTT, 5), Ok(()), "in the round trip after the report");
    assert!(send(&mut repaired, 22 * RTT + 1, 6).is_err(), "lost for the second time");
    let mut reported = overtaken();
    sack(&mut reported, 7 * RTT, 3, &[], (2, 0));
    assert_eq!(send(&mut reported, 8 * RTT, 4), Ok(()));
}

/// What a pause of the host takes does not count.
#[test]
fn a_host_that_stands_still_repairs_nothing() {
    let mut sender = sender(3);
    sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
    assert_eq!(sender.on_send(Time(50 * RTT), 45 * RTT, true, &head(50 * RTT, 3)), Ok(()));
}

/// After a stall a host holds its timers until it has read what arrived: it may send before it repairs.
#[test]
fn held_timers_excuse_a_late_repair() {
    let late = |timers_run| {
        let mut sender = sender(4);
        sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
        sender.on_send(Time(50 * RTT), 0, timers_run, &head(50 * RTT, 4))
    };
    assert_eq!(late(false), Ok(()));
    assert!(late(true).is_err());
}

#[test]
fn what_was_reported_is_not_sent_again() {
    let mut sender = sender(3);
    sack(&mut sender, RTT, 1, &[2], (2, 0));
    for n in [0, 2] {
        let again = send(&mut sender, 50 * RTT, n).unwrap_err();
        assert!(again.contains("although the peer had told of it"), "{again}");
    }
    sack(&mut sender, 51 * RTT, 3, &[], (1, 0));
    assert_eq!(send(&mut sender, 52 * RTT, 2), Ok(()), "it asks for the completion");
}

/// Before the first round trip is known the floor alone counts, and after it two round trips do, if they are longer.
#[test]
fn tail_probes_leave_after_silence() {
    for (rtt, wait) in [(None, 3_000), (Some(1_000), 3_000), (Some(2_000), 4_000)] {
        let quiet = || {
            let mut sender = sender(2);
            if let Some(rtt) = rtt {
                sack(&mut sender, rtt, 1, &[], (0, 0));
            }
            (sender, rtt.unwrap_or(0))
        };
        let (mut probed, from) = quiet();
        assert_eq!(send(&mut probed, from + wait, 1), Ok(()));
        assert!(send(&mut probed, from + 2 * wait - 1, 1).is_err(), "{rtt:?}");
        let (mut early, from) = quiet();
        let told = send(&mut early, from + wait - 1, 1).unwrap_err();
        assert!(told.contains("tail probe number 1 in a silence of"), "{told}");
    }
    let mut timed_out = sender(1);
    let times = (1..=33).map(|n| 3_000 * n).chain([100_000, 100_001]);
    let sent: Vec<_> = times.map(|at| send(&mut timed_out, at, 0).is_ok()).collect();
    assert_eq!(sent, [vec![true; 34], vec![false]].concat(), "one more at the retransmission timeout");
}

#[test]
fn there_are_other_reasons_to_send_again() {
    let mut nacked = sender(2);
    nacked.on_nack(Time(1), &Neth { nack_psn: FIRST, ..Neth::default() });
    assert_eq!(send(&mut nacked, 2, 0), Ok(()));
    assert!(send(&mut nacked, 3, 0).is_err(), "the NACK was for the copy before");
    let mut excused = sender(2);
    excused.excuse();
    assert_eq!(send(&mut excused, 2, 0), Ok(()));
    assert!(send(&mut excused, 3, 0).is_err(), "it left after the port had changed");
    let mut overtaken = sender(3);
    sack(&mut overtaken, RTT, 0, &[1], (1, 0));
    assert_eq!(send(&mut overtaken, RTT, 0), Ok(()));
    assert!(send(&mut overtaken, RTT + 1, 2).is_err(), "it left after the one that was reported");
}

fn fetch_head(opcode: Opcode, number: u16) -> DataHead {
    DataHead {
        bth: Bth::new(opcode, Qpn::new(7), Psn::new(1)),
        meth: Meth { rqmsn: Msn::new(number), ..Meth::default() },
        ..head(0, 0)
    }
}

/// A sender whose first packet is that of a fetch or a response with this number, and which has sent two more.
fn fetcher(opcode: Opcode, number: u16) -> Sender {
    let mut sender = sender(0);
    let first = fetch_head(opcode, number);
    let first = DataHead { bth: Bth { psn: FIRST, ..first.bth }, ..first };
    sender.on_send(Time(0), 0, true, &first).unwrap();
    (1..3).for_each(|n| send(&mut sender, 0, n).unwrap());
    sender
}

/// A response tells that its request has arrived, and request *n* that the responses up to *n* - 16 have. Whether the
/// requester was told is not known then, so neither a repeat nor its lack is judged; later packets are.
#[test]
fn what_fetches_may_have_told_is_not_judged() {
    for (sent, comes, number, told) in [
        (Opcode::ReadRequest, Opcode::ReadResponseFirst, 0xffff, true),
        (Opcode::FetchAdd, Opcode::AtomicResponse, 0xffff, true),
        (Opcode::ReadRequest, Opcode::ReadResponseOnly, 3, true),
        (Opcode::ReadRequest, Opcode::ReadResponseOnly, 0xfffe, false),
        (Opcode::ReadRequest, Opcode::ReadRequest, 3, false),
        (Opcode::ReadResponseOnly, Opcode::CompareSwap, 15, true),
        (Opcode::AtomicResponse, Opcode::ReadRequest, 14, false),
        (Opcode::AtomicResponse, Opcode::AtomicResponse, 15, false),
    ] {
        let what = format!("{sent:?}, then {comes:?} {number}");
        let mut again = fetcher(sent, 0xffff);
        again.on_data(Time(1), &fetch_head(comes, number));
        assert_eq!(send(&mut again, 2, 0).is_ok(), told, "{what}");
        assert!(send(&mut again, 2, 2).is_err(), "{what}");
        let mut late = fetcher(sent, 0xffff);
        sack(&mut late, RTT, 0, &[1, 2], (1, 0));
        late.on_data(Time(1), &fetch_head(comes, number));
        assert_eq!(send(&mut late, 50 * RTT, 3).is_ok(), told, "{what}");
    }
}

/// While a fetch waits for its response, the requester is not idle: its silence does not start with the next packet.
#[test]
fn a_fetch_without_a_response_keeps_the_silence() {
    for (opcode, retired, early) in [
        (Opcode::ReadRequest, false, true),
        (Opcode::ReadRequest, true, false),
        (Opcode::WriteOnly, false, false),
    ] {
        let mut sender = fetcher(opcode, 0);
        sack(&mut sender, RTT, 3, &[], (2, 0));
        if retired {
            sender.has_retired();
        }
        send(&mut sender, 4 * RTT - 1, 3).unwrap();
        assert_eq!(send(&mut sender, 4 * RTT, 3).is_ok(), early, "{opcode:?} {retired}");
    }
}

fn nack(sender: &mut Sender, of: u32, reason: NackReason) {
    sender.on_nack(Time(RTT), &Neth { nack_psn: FIRST.add(of), reason: reason.into(), ..Neth::default() });
}

/// From the first packet on of a message that found no receive work request, all wait but responses.
#[test]
fn a_message_that_found_no_receive_waits() {
    let refused = || {
        let mut sender = sender(5);
        nack(&mut sender, 3, NackReason::NoResource);
        sack(&mut sender, 2 * RTT, 0, &[4], (4, 0));
        sender
    };
    assert_eq!(send(&mut refused(), 50 * RTT, 5), Ok(()), "all is of one message");
    let mut left_again = refused();
    send(&mut left_again, 50 * RTT, 3).unwrap();
    assert!(send(&mut left_again, 50 * RTT, 5).is_err(), "the first is lost");
}

/// A packet that found no receive work request has arrived, so what left before it may be lost.
#[test]
fn a_nack_for_a_missing_receive_tells_of_an_arrival() {
    for (reason, may_leave) in [(NackReason::NoResource, true), (NackReason::Trimmed, false)] {
        let mut sender = sender(5);
        nack(&mut sender, 3, reason);
        assert_eq!(send(&mut sender, RTT, 0).is_ok(), may_leave, "{reason:?}");
        assert!(send(&mut sender, RTT, 4).is_err());
    }
}

/// A round trip of four is measured, so a tail probe waits for eight, unless something shows that it may be shorter.
#[test]
fn what_shows_a_short_round_trip_shortens_the_wait_for_a_tail_probe() {
    let slow = || {
        let mut sender = sender(1);
        sack(&mut sender, 4 * RTT, 1, &[], (0, 0));
        sender
    };
    for answered in [false, true] {
        let mut copied = slow();
        assert_eq!(send(&mut copied, 8 * RTT, 0), Ok(()), "it asks for the completion");
        let sent_at = if answered { 8 * RTT } else { 0 };
        sack(&mut copied, 9 * RTT, 1, &[], (0, sent_at));
        send(&mut copied, 10 * RTT, 1).unwrap();
        assert_eq!(send(&mut copied, 13 * RTT, 1).is_ok(), answered, "the SACK is for that copy: {answered}");
    }
    for responds in [false, true] {
        let mut fetched = fetcher(Opcode::ReadRequest, 0);
        if responds {
            fetched.on_data(Time(RTT), &fetch_head(Opcode::ReadResponseFirst, 0));
        }
        sack(&mut fetched, 4 * RTT, 2, &[], (1, 0));
        assert_eq!(send(&mut fetched, 7 * RTT, 2).is_ok(), responds, "{responds}");
    }
    // An earlier copy may be the one that arrived.
    let mut repeated = fetcher(Opcode::ReadRequest, 0);
    send(&mut repeated, 3 * RTT, 0).unwrap();
    send(&mut repeated, 3 * RTT, 3).unwrap();
    repeated.on_data(Time(4 * RTT), &fetch_head(Opcode::ReadResponseFirst, 0));
    sack(&mut repeated, 5 * RTT, 2, &[], (1, 0));
    assert!(send(&mut repeated, 9 * RTT, 3).is_err());
}

/// A packet that found no receive work request has arrived, so its NACK comes a round trip after it.
#[test]
fn a_nack_for_a_missing_receive_shows_a_round_trip() {
    for (timestamp, shows) in [((4 * RTT) >> 7, true), (0, false)] {
        let mut sender = sender(1);
        sack(&mut sender, 4 * RTT, 1, &[], (0, 0));
        (1..4).for_each(|n| send(&mut sender, 4 * RTT, n).unwrap());
        sack(&mut sender, 5 * RTT, 1, &[], (0, 0));
        let reason = NackReason::NoResource.into();
        let neth = Neth { nack_psn: FIRST.add(3), reason, tx_timestamp: timestamp as u16, ..Neth::default() };
        sender.on_nack(Time(5 * RTT), &neth);
        assert_eq!(send(&mut sender, 5 * RTT, 1).is_ok(), shows, "{timestamp}");
    }
}

/// A sender whose first packet is the response to request 0xffff of the peer, and which has sent two more and sends no tail probes.
/// The first has arrived after a round trip, and the peer says so.
fn responder() -> Sender {
    let mut sender = fetcher(Opcode::ReadResponseOnly, 0xffff);
    sender.timers = Timers { probe_floor_ns: 1_000 * RTT, timeout_ns: 1_000 * RTT, ..sender.timers };
    sender.on_data(Time(RTT), &fetch_head(Opcode::ReadRequest, 15));
    sender
}

/// A request waits for the messages before it, so what it tells may be known with any later packet of the peer's data. If the
/// response was sent again meanwhile, that copy counts as the one that arrived once a round trip has passed, and what left
/// before it may be lost.
#[test]
fn a_request_that_waited_tells_of_the_last_copy() {
    for (comes_after, opcode, may_leave) in [
        (RTT, Some(Opcode::SendOnly), true),
        (RTT, Some(Opcode::WriteMiddle), true),
        (RTT, Some(Opcode::ReadRequest), true),
        (RTT - 1, Some(Opcode::SendOnly), false),
        (RTT, None, false),
    ] {
        let mut sender = responder();
        send(&mut sender, 100 * RTT, 0).unwrap();
        if let Some(opcode) = opcode {
            sender.on_data(Time(100 * RTT + comes_after), &fetch_head(opcode, 15));
        }
        let again = send(&mut sender, 101 * RTT, 1);
        assert_eq!(again.is_ok(), may_leave, "{opcode:?} after {comes_after}: {again:?}");
    }
}

/// Tail probes that left before the first measurement do not count against those that leave after it: the requester may have
/// heard of the packet that it measures by, so nothing new restarts its timers.
#[test]
fn a_measurement_that_tells_nothing_new_keeps_the_budget_of_tail_probes() {
    let mut sender = fetcher(Opcode::ReadRequest, 0);
    sender.timers.timeout_ns = 1_000 * RTT;
    sender.on_data(Time(60 * RTT), &fetch_head(Opcode::ReadResponseOnly, 0));
    for at in [63, 66, 72, 84] {
        send(&mut sender, at * RTT, 1).unwrap();
    }
    sack(&mut sender, 90 * RTT, 1, &[], (0, 0));
    // After a round trip of 90, and four times half of that.
    assert_eq!(send(&mut sender, (60 + 270) * RTT, 1), Ok(()));
    sack(&mut sender, 400 * RTT, 2, &[], (1, 330 * RTT));
    send(&mut sender, 400 * RTT, 3).unwrap();
    let early = send(&mut sender, 520 * RTT - 1, 3).unwrap_err();
    assert!(early.contains("one may leave every 120000 ns"), "{early}");
}

/// The peer tells of an arrival.
type Tells = fn(&mut Sender);

/// What arrived before the first measurement stands in for it.
#[test]
fn arrivals_bound_the_round_trip_until_one_is_measured() {
    let nacked: Tells = |sender| {
        let reason = NackReason::NoResource.into();
        let neth = Neth { nack_psn: FIRST.add(2), reason, ..Neth::default() };
        sender.on_nack(Time(4 * RTT), &neth);
        send(sender, 4 * RTT, 2).unwrap();
    };
    let responds: Tells = |sender| sender.on_data(Time(4 * RTT), &fetch_head(Opcode::ReadResponseOnly, 0));
    let silent: Tells = |_| ();
    for (tells, rtts) in [(nacked, 24), (responds, 24), (silent, 6)] {
        let mut sender = fetcher(Opcode::ReadRequest, 0);
        tells(&mut sender);
        send(&mut sender, 4 * RTT, 3).unwrap();
        send(&mut sender, 4 * RTT, 4).unwrap();
        // Not by the copy that made the peer send it.
        sack(&mut sender, 5 * RTT, 0, &[3], (3, 0));
        let told = send(&mut sender, 30 * RTT, 5).unwrap_err();
        assert!(told.contains(&format!("it counts as lost after {} ns", rtts * RTT)), "{told}");
    }
}

/// A peer without room for a packet says nothing new.
#[test]
fn only_news_restart_the_silence() {
    for (reason, is_news) in [
        (NackReason::Trimmed, true),
        (NackReason::TrimmedLastHop, true),
        (NackReason::NoResource, true),
        (NackReason::PsnOutOfWindow, false),
        (NackReason::NoPacketBuffer, false),
    ] {
        let mut sender = sender(3);
        nack(&mut sender, 2, reason);
        // A packet that found no receive work request tells of an arrival.
        (sender.newest_repeat, sender.shortest_ns) = (0, None);
        assert_eq!(send(&mut sender, 3 * RTT, 0).is_err(), is_news, "{reason:?}");
    }
}

#[test]
fn transport_acks_report_as_well() {
    let mut sender = sender(3);
    sender.on_ack(Time(RTT), FIRST.add(1));
    assert!(send(&mut sender, 50 * RTT, 1).is_err());
    assert_eq!(send(&mut sender, 50 * RTT, 2), Ok(()), "a tail probe");
}
