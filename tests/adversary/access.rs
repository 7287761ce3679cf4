//! Accesses to memory that must be refused, and packets that must not even get that far.
//!
//! Tests decisions 21 and 24 of `docs/protocol.md`.

use spindrift::endpoint::{Endpoint, EndpointConfig, FailReason, QpModify, Violation};
use spindrift::memory::{Access, MemoryError, RegionError};
use spindrift::pmd::{RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::{DataHead, DscpMap, Msn, NakCode, Opcode, Packet, Qpn, Reth};

use crate::bench::{
    Bench, FIRST_MSN, FIRST_PSN, IOVA, LEN, MTU, PEER, VICTIM, attacker_ip, envelope, nak, region,
    stranger_ip,
};
use crate::fuzz::one_of_each;
use crate::support::frame::{self, Envelope};
use crate::support::net::{address, ports};

fn give_write(bench: &mut Bench, head: DataHead, payload: &[u8]) {
    bench.give(&Packet::Data { head, payload, pad: &[] });
}

/// The attacked queue pair fails with this counter and NAK, and nothing else happens.
#[track_caller]
fn refused(what: &str, counter: &'static str, code: NakCode, prepare: impl Fn(&mut Bench) -> DataHead) {
    let mut bench = Bench::new();
    let head = prepare(&mut bench);
    bench.mark();
    give_write(&mut bench, head, &[0xee; 8]);
    let mut expected = vec![
        ("rx_packets", 1),
        ("rx_data", 1),
        (counter, 1),
        ("tx_acks", 1),
        ("tx_naks", 1),
        ("qp_errors", 1),
    ];
    if code == NakCode::InvalidRequest {
        expected.insert(3, ("rx_invalid_request", 1));
    }
    bench.expect_counts(what, &expected);
    assert_eq!(bench.answers(), ["Ack psn fffffd".to_owned(), nak(code, FIRST_PSN)], "{what}");
    assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::PeerViolation)], "{what}");
    assert_eq!(bench.violation(), Some((FIRST_PSN, expected_violation(&head, counter))), "{what}");
    bench.check_healthy(what);
}

/// What is told of a refused write of eight bytes: key, address, length, the right that it needs, and the cause.
fn expected_violation(head: &DataHead, counter: &str) -> Violation {
    let Reth { va, rkey, dma_len } = head.reth;
    let needed = Access::REMOTE_WRITE;
    let error = match counter {
        "rx_bad_rkey" => MemoryError::UnknownKey { key: rkey },
        "rx_wrong_pd" => MemoryError::WrongPd { key: rkey },
        "rx_no_access" => MemoryError::NoAccess { key: rkey, needed },
        "rx_out_of_bounds" => {
            RegionError::OutOfBounds { addr: va, len: 8, region_addr: IOVA, region_len: LEN as u64 }.into()
        }
        _ => {
            let opcode = head.bth.opcode;
            return Violation::PayloadLength { opcode, len: 8, message_len: dma_len, path_mtu: MTU };
        }
    };
    Violation::Access { rkey, va, len: 8, needed, error }
}

/// A user reads it in a log.
#[test]
fn a_violation_says_what_the_peer_wanted_and_what_it_needs() {
    let head = Bench::new().write();
    for (counter, cause) in [
        ("rx_bad_rkey", "names no registered region"),
        ("rx_wrong_pd", "belongs to another protection domain"),
        ("rx_no_access", "does not grant REMOTE_WRITE"),
        ("rx_out_of_bounds", "0x70000000"),
    ] {
        let text = expected_violation(&head, counter).to_string();
        let key = format!("with key {:#010x} needs REMOTE_WRITE: ", head.reth.rkey);
        for part in ["its access to 8 bytes at address 0x70000000 ", &key, cause] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn memory_is_guarded_by_key_domain_right_and_range() {
    let access = NakCode::RemoteAccess;
    refused("wrong rkey", "rx_bad_rkey", access, |bench| {
        let mut head = bench.write();
        head.reth.rkey ^= 1 << 30;
        head
    });
    refused("rkey 0", "rx_bad_rkey", access, |bench| {
        let mut head = bench.write();
        head.reth.rkey = 0;
        head
    });
    refused("the key for our own requests", "rx_bad_rkey", access, |bench| {
        let mut head = bench.write();
        head.reth.rkey = bench.target.key.lkey;
        head
    });
    refused("stale rkey", "rx_bad_rkey", access, |bench| {
        let mut head = bench.write();
        let old = region(&mut bench.net, VICTIM, bench.pd, (IOVA, LEN), Access::REMOTE_WRITE);
        bench.net.endpoint(VICTIM).deregister(old.key.rkey).unwrap();
        // The slot is taken again, by another key.
        region(&mut bench.net, VICTIM, bench.pd, (IOVA, LEN), Access::REMOTE_WRITE);
        head.reth.rkey = old.key.rkey;
        head
    });
    refused("invalidated rkey", "rx_bad_rkey", access, |bench| {
        let mut head = bench.write();
        let old = region(&mut bench.net, VICTIM, bench.pd, (IOVA, LEN), Access::REMOTE_WRITE);
        bench.net.endpoint(VICTIM).invalidate(old.key.rkey);
        head.reth.rkey = old.key.rkey;
        head
    });
    refused("another protection domain", "rx_wrong_pd", access, |bench| {
        let mut head = bench.write();
        let other = bench.net.endpoint(VICTIM).alloc_pd();
        head.reth.rkey = region(&mut bench.net, VICTIM, other, (IOVA, LEN), Access::REMOTE_WRITE).key.rkey;
        head
    });
    refused("no right to write", "rx_no_access", access, |bench| {
        let mut head = bench.write();
        head.reth.rkey = region(&mut bench.net, VICTIM, bench.pd, (IOVA, LEN), Access::LOCAL_WRITE).key.rkey;
        head
    });
}

#[test]
fn ranges_are_checked_without_overflow() {
    let end = IOVA + LEN as u64;
    for (what, va) in [
        ("before the start", IOVA - 1),
        ("far before", 0),
        ("across the end", end - 7),
        ("at the end", end),
        ("at the end of the address space", u64::MAX - 7),
        ("around the end of the address space", u64::MAX - 3),
        ("at the very last byte", u64::MAX),
        ("wrapping back into the region", IOVA.wrapping_sub(8)),
    ] {
        refused(what, "rx_out_of_bounds", NakCode::RemoteAccess, |bench| {
            let mut head = bench.write();
            head.reth.va = va;
            head
        });
    }
    // The last bytes are fine.
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.reth.va = end - 8;
    give_write(&mut bench, head, &[0xee; 8]);
    bench.target.expected[LEN - 8..].fill(0xee);
    assert_eq!(bench.answers(), ["Sack cack fffffe bits 0", "Ack psn fffffe"]);
    bench.check_healthy("the last bytes");
}

#[test]
fn a_message_that_runs_out_of_the_region_stops_at_its_end() {
    let mut bench = Bench::new();
    let mut head = bench.write();
    head.bth.opcode = Opcode::WriteFirst;
    head.reth.dma_len = u32::MAX;
    head.reth.va = IOVA + LEN as u64 - 512;
    bench.mark();
    for packet in 0..3 {
        give_write(&mut bench, head, &[0xdd; 256]);
        head.bth.opcode = Opcode::WriteMiddle;
        head.bth.psn = head.bth.psn.add(1);
        head.reth.va += 256;
        if packet < 2 {
            let from = LEN - 512 + packet * 256;
            bench.target.expected[from..from + 256].fill(0xdd);
            bench.target.check("inside");
        }
    }
    assert_eq!(bench.count("rx_out_of_bounds"), 1);
    assert_eq!(bench.count("rx_placed_bytes"), 512);
    assert_eq!(bench.answers().last().unwrap(), &nak(NakCode::RemoteAccess, FIRST_PSN.add(2)));
    bench.check_healthy("a message longer than the region");
}

#[test]
fn lengths_must_suit_message_and_mtu() {
    for (what, opcode, dma_len) in [
        ("announces more than it has", Opcode::WriteOnly, 9),
        ("announces less than it has", Opcode::WriteOnly, 7),
        ("announces everything", Opcode::WriteOnly, u32::MAX),
        ("announces nothing", Opcode::WriteOnly, 0),
        ("first packet shorter than the MTU", Opcode::WriteFirst, 600),
        ("middle packet shorter than the MTU", Opcode::WriteMiddle, 600),
        ("last packet of a message of one", Opcode::WriteLast, 8),
        ("last packet with another length", Opcode::WriteLast, 600),
    ] {
        refused(what, "rx_bad_length", NakCode::InvalidRequest, |bench| {
            let mut head = bench.write();
            head.bth.opcode = opcode;
            head.reth.dma_len = dma_len;
            head
        });
    }
}

/// Of several refused packets the first in order is the one that is told, whichever came first.
#[test]
fn the_first_refused_packet_in_order_is_told() {
    for order in [[1, 2, 0], [2, 1, 0], [0, 1, 2], [2, 0, 1]] {
        let mut bench = Bench::new();
        let heads = [0, 1, 2].map(|n| {
            let mut head = bench.write();
            head.bth.psn = FIRST_PSN.add(n);
            head.meth.msn = Msn::new(FIRST_MSN.get().wrapping_add(n as u16));
            head.reth.rkey ^= if n == 0 { 0 } else { n << 8 };
            head
        });
        for n in order {
            let payload = bench.target.expected[..8].to_vec();
            give_write(&mut bench, heads[n], &payload);
        }
        let told = expected_violation(&heads[1], "rx_bad_rkey");
        assert_eq!(bench.violation(), Some((FIRST_PSN.add(1), told)), "{order:?}");
    }
}

#[test]
fn a_refused_packet_out_of_order_waits_for_its_turn() {
    let mut bench = Bench::new();
    let good = bench.write();
    let mut bad = good;
    bad.reth.rkey ^= 2;
    bad.bth.psn = FIRST_PSN.add(1);
    bad.meth.msn = good.meth.msn.next();
    give_write(&mut bench, bad, &[1; 8]);
    assert_eq!(bench.count("rx_bad_rkey"), 1);
    assert_eq!(bench.failures(), []);
    give_write(&mut bench, good, &[2; 8]);
    bench.target.expected[..8].fill(2);
    assert_eq!(bench.failures(), [(bench.qp.qpn, FailReason::PeerViolation)]);
    let told = expected_violation(&bad, "rx_bad_rkey");
    assert_eq!(bench.violation(), Some((bad.bth.psn, told)));
    let answers = bench.answers();
    assert_eq!(
        answers[answers.len() - 2..],
        ["Ack psn fffffe".to_owned(), nak(NakCode::RemoteAccess, bad.bth.psn)]
    );
    // A peer that has no NAK yet gets it again, once a packet, and never more than that.
    bench.mark();
    for _ in 0..10 {
        give_write(&mut bench, bad, &[1; 8]);
    }
    bench.expect_counts(
        "after the failure",
        &[("rx_packets", 10), ("rx_data", 10), ("rx_wrong_state", 10), ("tx_naks", 10)],
    );
    bench.check_healthy("a refused packet out of order");
}

#[test]
fn only_the_connected_peer_is_heard() {
    let mut bench = Bench::new();
    let head = bench.write();
    let frame = Envelope::new(stranger_ip(), address(true, VICTIM, 0)).seal(&Packet::Data {
        head,
        payload: &[7; 8],
        pad: &[],
    });
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("foreign source", &[("rx_packets", 1), ("rx_data", 1), ("rx_foreign_source", 1)]);
    assert_eq!(bench.answers(), Vec::<String>::new());
    bench.check_healthy("foreign source");
    // The healthy peer's address is foreign to the attacked queue pair, too.
    bench.mark();
    let frame = Envelope::new(address(true, 1, 0), address(true, VICTIM, 0)).seal(&Packet::Data {
        head,
        payload: &[7; 8],
        pad: &[],
    });
    bench.net.inject(VICTIM, 0, &frame);
    bench.expect_counts("another peer", &[("rx_packets", 1), ("rx_data", 1), ("rx_foreign_source", 1)]);
    bench.check_healthy("another peer");
}

/// Offsets of the BTH's `tver` (lower half) and `p_key` in a frame over IPv6.
const TVER: usize = 63;
const PKEY: usize = 64;

fn with_word0(frame: &[u8], tver: u8, pkey: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[TVER] = frame[TVER] & 0xf0 | tver;
    frame[PKEY..PKEY + 2].copy_from_slice(&pkey.to_be_bytes());
    frame::fix_icrc(&mut frame);
    frame
}

#[test]
fn other_versions_and_partitions_are_not_heard() {
    let mut bench = Bench::new();
    for packet in one_of_each(&bench) {
        let frame = envelope().seal(&packet);
        // The version decides what the rest means, so it is looked at first.
        for (tver, pkey, counter) in [
            (1, 0xffff, "rx_wrong_version"),
            (8, 0xffff, "rx_wrong_version"),
            (15, 0, "rx_wrong_version"),
            (0, 0, "rx_wrong_partition"),
            (0, 0x8000, "rx_wrong_partition"),
            (0, 0xfffe, "rx_wrong_partition"),
            (0, 0xbfff, "rx_wrong_partition"),
        ] {
            bench.mark();
            bench.net.inject(VICTIM, 0, &with_word0(&frame, tver, pkey));
            bench.expect_counts(&format!("{tver} {pkey:#x} {packet:?}"), &[("rx_packets", 1), (counter, 1)]);
            assert_eq!(bench.answers(), Vec::<String>::new());
        }
    }
    // A damaged packet is not said to be of another version: nothing in it is believed.
    bench.mark();
    let head = bench.write();
    let frame = envelope().seal(&Packet::Data { head, payload: &[7; 8], pad: &[] });
    let mut damaged = frame.clone();
    damaged[TVER] ^= 1;
    bench.net.inject(VICTIM, 0, &damaged);
    bench.expect_counts("damaged", &[("rx_packets", 1), ("rx_bad_icrc", 1)]);
    bench.check_healthy("other versions and partitions");
    // A limited member of the default partition may send to a full one.
    bench.net.inject(VICTIM, 0, &with_word0(&frame, 0, 0x7fff));
    bench.target.expected[..8].fill(7);
    bench.check_healthy("a limited member");
}

#[test]
fn trimmed_packets_of_other_versions_and_partitions_draw_no_nack() {
    let mut bench = Bench::new();
    let trimmed = DscpMap::default().trimmed;
    let envelope = Envelope { traffic_class: trimmed << 2, ..envelope() };
    let frame = envelope.seal(&Packet::Data { head: bench.write(), payload: &[7; 8], pad: &[] });
    for (tver, pkey, counter) in [(1, 0xffff, "rx_wrong_version"), (0, 0xfffe, "rx_wrong_partition")] {
        bench.mark();
        bench.net.inject(VICTIM, 0, &with_word0(&frame, tver, pkey));
        bench.expect_counts(counter, &[("rx_packets", 1), (counter, 1), ("rx_trimmed", 1)]);
        assert_eq!(bench.answers(), Vec::<String>::new());
    }
    bench.net.inject(VICTIM, 0, &frame);
    assert_eq!(bench.answers(), ["Nack 1 psn fffffe"]);
    bench.check_healthy("trimmed");
}

#[test]
fn only_packets_to_the_address_of_the_port_are_taken() {
    let mut bench = Bench::new();
    let head = bench.write();
    let packet = Packet::Data { head, payload: &[7; 8], pad: &[] };
    let ours = |port| address(true, VICTIM, port);
    for (what, dst, port) in [
        ("another host's", address(true, PEER, 0), 0),
        ("of another plane", ours(1), 0),
        ("of another plane", ours(0), 1),
        ("multicast", "ff02::1".parse().unwrap(), 0),
        ("of no port", ours(0), 2),
    ] {
        bench.mark();
        let frame = Envelope::new(attacker_ip(0), dst).seal(&packet);
        bench.give_silently(port, &frame);
        bench.expect_counts(what, &[("rx_packets", 1), ("rx_wrong_destination", 1)]);
        assert_eq!(bench.answers(), Vec::<String>::new());
    }
    bench.check_healthy("other addresses");

    // Over IPv4, and between the families.
    let mut endpoint = Endpoint::new(EndpointConfig::new(ports(false, 0, 2, 1600))).unwrap();
    let mut wrong = 0;
    for (v4, port, is_ours) in [(true, 0, true), (true, 1, false), (false, 0, false)] {
        let envelope = Envelope::new(address(!v4, 1, 0), address(!v4, 0, 0));
        let bytes = envelope.seal(&packet);
        let frame = RxFrame::whole(RxOrigin::Ethernet, &bytes);
        endpoint.receive(Time::ZERO, port, &frame);
        wrong += u64::from(!is_ours);
        assert_eq!(endpoint.counters().rx_wrong_destination, wrong);
    }
    assert_eq!(endpoint.counters().rx_unknown_qp, 1);
}

#[test]
fn queue_pairs_that_are_not_there_are_counted() {
    let mut bench = Bench::new();
    let head = bench.write();
    for unknown in [0, 1, 2, 3, 0x00ff_ffff, head.bth.dest_qpn.get() ^ 0x0080_0000] {
        let mut head = head;
        head.bth.dest_qpn = Qpn::new(unknown);
        bench.mark();
        give_write(&mut bench, head, &[7; 8]);
        bench.expect_counts("unknown", &[("rx_packets", 1), ("rx_data", 1), ("rx_unknown_qp", 1)]);
    }
    // Destroyed, and its slot taken by another.
    let qpn = bench.qp.qpn;
    bench.net.endpoint(VICTIM).destroy_qp(qpn).unwrap();
    let init = crate::bench::init(bench.pd);
    let fresh = bench.net.endpoint(VICTIM).create_qp(init).unwrap();
    bench.mark();
    give_write(&mut bench, head, &[7; 8]);
    bench.expect_counts("stale", &[("rx_packets", 1), ("rx_data", 1), ("rx_unknown_qp", 1)]);
    // Not connected yet.
    for state in ["RESET", "INIT"] {
        let mut head = head;
        head.bth.dest_qpn = fresh;
        bench.mark();
        give_write(&mut bench, head, &[7; 8]);
        bench.expect_counts(state, &[("rx_packets", 1), ("rx_data", 1), ("rx_wrong_state", 1)]);
        let now = bench.net.now;
        let _ = bench.net.endpoint(VICTIM).modify_qp(now, fresh, QpModify::Init);
    }
    bench.check_healthy("queue pairs that are not there");
}
