//! Forged, old and repeated acknowledgements.

use spindrift::endpoint::FailReason;
use spindrift::wire::{Aeth, Bth, Ev, Mark, NackReason, NakCode, Neth, Opcode, Packet, Psn, Seth, Tseth};
use spindrift::work::WcStatus;

use crate::bench::{ATTACKER_QPN, Bench, VICTIM, stranger_ip};
use crate::support::frame::{self, Envelope};
use crate::support::net::address;

/// A victim that has sent ten packets of one message; returns their first PSN.
fn sending() -> (Bench, Psn) {
    let mut bench = Bench::new();
    bench.post_to_attacker(77, 2_560);
    let first = sent(&bench)[0].0;
    assert_eq!(bench.net.astray.len(), 10);
    bench.mark();
    (bench, first)
}

/// PSNs and timestamps of the data that the victim sent since the mark.
fn sent(bench: &Bench) -> Vec<(Psn, u16)> {
    let write = |bytes: &Vec<u8>| match frame::decode(bytes).unwrap().1 {
        Packet::Data { head, .. } => Some((head.bth.psn, head.tseth.unwrap().timestamp)),
        _ => None,
    };
    bench.net.astray.iter().filter_map(|(_, bytes)| write(bytes)).collect()
}

/// The entropy value of the last packet with this PSN that the victim sent since the mark.
fn newest_ev(bench: &Bench, psn: Psn) -> Option<Ev> {
    let frames = bench.net.astray.iter().rev().map(|(_, bytes)| frame::decode(bytes).unwrap());
    let mut copies = frames.filter(|(_, packet)| packet.bth().psn == psn);
    copies.next().map(|(meta, _)| Ev(u32::from(meta.src_port) << 16 | meta.flow_label & 0xffff))
}

fn sack(bench: &Bench, cack: Psn) -> Seth {
    Seth {
        spdcid: ATTACKER_QPN.get() as u16,
        dpdcid: bench.qp.qpn.get() as u16,
        cack,
        sack_offset: 1,
        mpr: 8,
        ..Seth::default()
    }
}

fn give_sack(bench: &mut Bench, seth: Seth) {
    let bth = Bth::new(Opcode::Sack, bench.qp.qpn, seth.cack);
    bench.give(&Packet::Sack { bth, seth });
}

fn give_ack(bench: &mut Bench, psn: Psn, aeth: Aeth) {
    let bth = Bth::new(Opcode::Ack, bench.qp.qpn, psn);
    bench.give(&Packet::Ack { bth, aeth });
}

pub(crate) fn give_nack(bench: &mut Bench, psn: Psn, timestamp: u16, reason: NackReason) {
    give_nack_of(bench, (psn, timestamp, Ev(0x1234_5678)), reason);
}

fn give_nack_of(bench: &mut Bench, (psn, timestamp, ev): (Psn, u16, Ev), reason: NackReason) {
    let neth = Neth {
        spdcid: ATTACKER_QPN.get() as u16,
        dpdcid: bench.qp.qpn.get() as u16,
        tx_timestamp: timestamp,
        ..Neth::new(reason, psn, ev)
    };
    let bth = Bth::new(Opcode::Nack, bench.qp.qpn, psn);
    bench.give(&Packet::Nack { bth, neth });
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_refused_whole() {
    type Forge = fn(&mut Seth);
    let forgeries: [(&str, Forge); 6] = [
        ("cack of an unsent packet", |seth| seth.cack = seth.cack.add(11)),
        ("cack far ahead", |seth| seth.cack = seth.cack.add(5_000)),
        ("unsent trigger", |seth| seth.ack_psn_offset = 11),
        ("far trigger", |seth| seth.ack_psn_offset = i16::MAX),
        ("bitmap over unsent packets", |seth| seth.bitmap = 1 << 10),
        ("bitmap far ahead", |seth| (seth.sack_offset, seth.bitmap) = (i16::MAX, 1)),
    ];
    for (what, forge) in forgeries {
        let (mut bench, first) = sending();
        let before = bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn);
        let mut seth = sack(&bench, first.sub(1));
        forge(&mut seth);
        give_sack(&mut bench, seth);
        bench.expect_counts(what, &[("rx_packets", 1), ("rx_sacks", 1), ("rx_forged_ack", 1)]);
        assert_eq!(bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn), before, "{what}");
        assert_eq!(bench.completions(), [], "{what}");
        bench.check_healthy(what);
    }
    let (mut bench, first) = sending();
    give_ack(&mut bench, first.add(10), Aeth::ack(1));
    bench.expect_counts("unsent", &[("rx_packets", 1), ("rx_acks", 1), ("rx_forged_ack", 1)]);
    assert_eq!(bench.completions(), []);
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    let completed = bench.completions();
    assert_eq!(
        completed.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(77, WcStatus::Success)]
    );
    // And again: nothing is left to complete.
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    assert_eq!(bench.completions(), []);
    bench.check_healthy("a late acknowledgement");
}

#[test]
fn old_and_repeated_sacks_change_nothing() {
    let (mut bench, first) = sending();
    let news = Seth { ack_psn_offset: 3, bitmap: 0b111, ..sack(&bench, first.add(3)) };
    give_sack(&mut bench, news);
    let after = bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn).unwrap();
    for old in
        [first.add(3), first.add(1), first.sub(1), first.sub(2), first.sub(1_000), first.sub(0x70_0000)]
    {
        let seth = Seth { bitmap: if old == first.add(3) { 0b111 } else { 0 }, ..sack(&bench, old) };
        give_sack(&mut bench, seth);
        give_ack(&mut bench, old.sub(1_000), Aeth::ack(0));
    }
    let status = bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn).unwrap();
    assert_eq!(status.inflight_bytes, after.inflight_bytes);
    assert_eq!((status.send_outstanding, bench.completions().len()), (1, 0));
    assert_eq!(bench.count("rx_forged_ack"), 0);
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    assert_eq!(bench.completions().len(), 1);
    let status = bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn).unwrap();
    assert_eq!((status.send_outstanding, status.inflight_bytes), (0, 0));
    bench.check_healthy("old sacks");
}

#[test]
fn a_sack_alone_completes_nothing() {
    let (mut bench, first) = sending();
    let seth = sack(&bench, first.add(9));
    give_sack(&mut bench, seth);
    assert_eq!(bench.completions(), [], "arrived is not complete");
    // The victim asks again until it hears the transport acknowledgement.
    bench.net.run_for(1_000_000);
    assert!(bench.count("tx_tail_probes") > 0);
    assert!(sent(&bench).iter().all(|(psn, _)| *psn == first.add(9)));
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    assert_eq!(bench.completions().len(), 1);
    bench.check_healthy("a sack alone");
}

#[test]
fn acknowledgements_of_another_connection_are_dropped() {
    let (mut bench, first) = sending();
    for wrong in [Seth { dpdcid: 1, ..sack(&bench, first) }, Seth { spdcid: 1, ..sack(&bench, first) }] {
        bench.mark();
        give_sack(&mut bench, wrong);
        bench.expect_counts("ids", &[("rx_packets", 1), ("rx_sacks", 1), ("rx_wrong_connection", 1)]);
    }
    bench.mark();
    let bth = Bth::new(Opcode::Ack, bench.qp.qpn, first.add(9));
    let frame =
        Envelope::new(stranger_ip(), address(true, VICTIM, 0)).seal(&Packet::Ack { bth, aeth: Aeth::ack(1) });
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("source", &[("rx_packets", 1), ("rx_acks", 1), ("rx_foreign_source", 1)]);
    assert_eq!(bench.completions(), []);
    bench.check_healthy("another connection");
}

#[test]
fn a_nak_condemns_only_what_is_outstanding() {
    for offset in [10, 1_000, 0x00ff_ffff] {
        let (mut bench, first) = sending();
        give_ack(&mut bench, first.add(offset), Aeth::nak(NakCode::RemoteAccess, 0));
        bench.expect_counts("not sent", &[("rx_packets", 1), ("rx_naks", 1), ("rx_forged_ack", 1)]);
        assert_eq!(bench.failures(), []);
        bench.check_healthy("a NAK of what was not sent");
    }
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccessError),
        (NakCode::RemoteOperational, WcStatus::RemoteOperationError),
    ] {
        let (mut bench, first) = sending();
        bench.post_to_attacker(78, 300);
        bench.post_to_attacker(79, 300);
        give_ack(&mut bench, first.add(9), Aeth::ack(1));
        give_ack(&mut bench, first.add(11), Aeth::nak(code, 1));
        let events = bench.net.take_events(VICTIM);
        let seen: Vec<_> =
            crate::bench::completions(&events).iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, [(77, WcStatus::Success), (78, status), (79, WcStatus::WrFlushError)]);
        bench.check_healthy("a NAK");
    }
    // Without the ACK before it: the NAK says that what it does not name is done.
    let (mut bench, first) = sending();
    bench.post_to_attacker(78, 300);
    bench.post_to_attacker(79, 300);
    give_ack(&mut bench, first.add(12), Aeth::nak(NakCode::RemoteAccess, 2));
    let seen: Vec<_> = bench.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let success = WcStatus::Success;
    assert_eq!(seen, [(77, success), (78, success), (79, WcStatus::RemoteAccessError)]);
    // RoCE's go-back-N and "receiver not ready" have no place here.
    let (mut bench, first) = sending();
    give_ack(&mut bench, first, Aeth::nak(NakCode::PsnSequence, 0));
    give_ack(&mut bench, first, Aeth { syndrome: 0b0010_0000, msn: 0 });
    bench.expect_counts("kinds", &[("rx_packets", 2), ("rx_naks", 2), ("rx_malformed", 2)]);
    bench.check_healthy("NAKs that MRC does not have");
}

#[test]
fn nacks_make_at_most_one_packet_each() {
    let (mut bench, first) = sending();
    let stamp = Tseth::new((bench.net.now.0 >> 7) as u16).timestamp;
    // Wrong timestamps: none of them is about the copy under way.
    for n in 0..10_000_u32 {
        let wrong = stamp.wrapping_add(1 + (n % 0xfffe) as u16);
        give_nack(&mut bench, first.add(n % 10), wrong, NackReason::Trimmed);
    }
    bench.expect_counts("stale", &[("rx_packets", 10_000), ("rx_nacks", 10_000), ("rx_stale_nack", 10_000)]);
    bench.mark();
    for psn in [first.add(10), first.add(5_000)] {
        give_nack(&mut bench, psn, stamp, NackReason::Trimmed);
    }
    bench.expect_counts("unsent", &[("rx_packets", 2), ("rx_nacks", 2), ("rx_forged_ack", 2)]);
    bench.mark();
    for n in 0..1_000 {
        let psn = first.add(n % 10);
        give_nack(
            &mut bench,
            psn,
            stamp,
            if n % 2 == 0 { NackReason::Trimmed } else { NackReason::TrimmedLastHop },
        );
    }
    assert_eq!(bench.count("tx_data"), 1_000, "time stands still, so each names the newest copy");
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    assert_eq!(bench.completions().len(), 1);
    bench.check_healthy("a NACK storm");
}

#[test]
fn a_peer_that_cannot_go_on_ends_only_its_connection() {
    let mut bench = Bench::new();
    bench.post_to_attacker(77, 2_560);
    let (first, stamp) = sent(&bench)[0];
    let ev = newest_ev(&bench, first).unwrap();
    bench.mark();
    bench.post_to_attacker(78, 300);
    give_nack_of(&mut bench, (first, stamp, ev), NackReason::UnexpectedEvent);
    let events = bench.net.take_events(VICTIM);
    let seen: Vec<_> = crate::bench::completions(&events).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(77, WcStatus::FatalError), (78, WcStatus::WrFlushError)]);
    assert_eq!(bench.count("qp_errors"), 1);
    bench.check_healthy("a fatal NACK");
}

#[test]
fn marks_on_every_path_leave_some_in_use() {
    let (mut bench, first) = sending();
    for n in 0..200 {
        let mark = if n % 2 == 0 { Mark::AlwaysSkip } else { Mark::SkipOnce };
        let stamp = (bench.net.now.0 >> 7) as u16;
        let mut seth = Seth { mark, ack_psn_offset: 1 + n % 10, ..sack(&bench, first.sub(1)) };
        seth.cc.tx_timestamp = stamp;
        give_sack(&mut bench, seth);
    }
    bench.net.run_for(3_000_000);
    assert!(bench.count("tx_data") > 0, "the rest is still being sent");
    give_ack(&mut bench, first.add(9), Aeth::ack(1));
    assert_eq!(bench.completions().len(), 1);
    assert_eq!(bench.failures(), Vec::<(spindrift::wire::Qpn, FailReason)>::new());
    bench.check_healthy("marks");
}
