//! Memory that ends while a response is sent from it.
//!
//! Tests decision 40 of `docs/protocol.md`.

use std::collections::BTreeMap;

use spindrift::endpoint::{EndpointError, Extensions, Transmit};
use spindrift::memory::MemoryError;
use spindrift::path::PlaneSet;
use spindrift::wire::{Aeth, Bth, NackReason, Opcode, Packet, Psn, Seth};

use crate::acks::give_nack;
use crate::bench::{ATTACKER_QPN, MTU, VICTIM};
use crate::fetches::Victim;
use crate::support::frame;
use crate::support::pair::Patience;

/// Packets of responses, by PSN: opcode, request, offset, bytes, and the timestamp of the last copy.
type Packets = BTreeMap<u32, (String, Vec<u8>, u16)>;

/// A victim that may have 128 packets in flight.
fn victim() -> Victim {
    Victim::with(Extensions::ALL, Patience::default(), |init| init.mpr_dest = 1)
}

/// What the victim sent since the last look. A packet that was sent before is the same.
#[track_caller]
fn take(victim: &mut Victim, known: &mut Packets) -> Vec<Psn> {
    let mut taken = Vec::new();
    for (_, bytes) in core::mem::take(&mut victim.bench.net.astray) {
        let Packet::Data { head, payload, .. } = frame::decode(&bytes).unwrap().1 else { continue };
        let psn = head.bth.psn;
        let name = format!("{:?} {:?} {:?}", head.bth.opcode, head.meth, head.reth);
        let now = (name, payload.to_vec(), head.tseth.unwrap().timestamp);
        if let Some(before) = known.insert(psn.get(), now.clone()) {
            assert_eq!((before.0, before.1), (now.0, now.1), "PSN {psn}");
        }
        taken.push(psn);
    }
    taken
}

fn sack(victim: &mut Victim, cack: Psn) {
    let (spdcid, dpdcid) = (ATTACKER_QPN.get() as u16, victim.bench.qp.qpn.get() as u16);
    let seth = Seth { spdcid, dpdcid, cack, sack_offset: 1, mpr: 1, ..Seth::default() };
    let bth = Bth::new(Opcode::Sack, victim.bench.qp.qpn, cack);
    victim.bench.give(&Packet::Sack { bth, seth });
}

fn deregister(victim: &mut Victim) -> Result<(), EndpointError> {
    let rkey = victim.readable.key.rkey;
    victim.bench.net.endpoint(VICTIM).deregister(rkey)
}

/// The peer has the whole response, and its acknowledgements were lost. The application frees the memory. What the peer
/// asks for again is what was sent before, byte by byte.
#[test]
fn memory_is_free_as_soon_as_the_whole_response_was_sent() {
    // Requests, and the packets acknowledged before the last one left.
    let cases: [&[u32]; 4] = [&[40], &[5 * MTU + 17], &[40, 2 * MTU, 1, 3 * MTU + 1], &[64 * 1024, 600]];
    for (what, lens) in cases.into_iter().enumerate() {
        let mut victim = victim();
        let mut known = Packets::new();
        for (n, &len) in (0..).zip(lens) {
            let read = victim.read(n, u64::from(n), len);
            victim.give(read, &[]);
        }
        let first = *take(&mut victim, &mut known).first().unwrap();
        let packets: u32 = lens.iter().map(|len| len.div_ceil(MTU)).sum();
        let (mut acked, mut held) = (0, 0);
        while (known.len() as u32) < packets {
            assert!(deregister(&mut victim).is_err(), "{what}: not all was sent");
            // Not quite all that was sent arrives.
            let sent = known.len() as u32;
            acked = (acked + 1).max(sent - 3);
            sack(&mut victim, first.add(acked).sub(1));
            take(&mut victim, &mut known);
            victim.bench.net.run_for(1_000);
            take(&mut victim, &mut known);
            held += 1;
        }
        assert_eq!(held > 0, lens[0] == 64 * 1024, "{what}");
        deregister(&mut victim).unwrap();
        let junk = vec![0xee; victim.readable.expected.len()];
        victim.readable.region.write_at(0, &junk).unwrap();
        for n in acked..packets {
            let psn = first.add(n);
            let timestamp = known[&psn.get()].2;
            give_nack(&mut victim.bench, psn, timestamp, NackReason::Trimmed);
            victim.bench.net.run_for(1_000);
            assert!(take(&mut victim, &mut known).contains(&psn), "{what}: packet {n} is sent again");
        }
        let expected = victim.readable.expected.clone();
        let mut at = 0;
        for (n, &len) in lens.iter().enumerate() {
            let count = len.div_ceil(MTU);
            let bytes: Vec<u8> =
                (at..at + count).flat_map(|psn| known[&first.add(psn).get()].1.clone()).collect();
            assert!(bytes == expected[n..n + len as usize], "{what}: response {n}");
            at += count;
        }
        let last = first.add(packets).sub(1);
        sack(&mut victim, last);
        let bth = Bth::new(Opcode::Ack, victim.bench.qp.qpn, last);
        victim.bench.give(&Packet::Ack { bth, aeth: Aeth::ack(lens.len() as u32) });
        victim.readable.expected = junk;
        victim.bench.net.run_for(50_000_000);
        assert_eq!(take(&mut victim, &mut known), [], "{what}: all is acknowledged");
        victim.check(&format!("{what}"));
    }
}

/// Before its last packet, the response needs the memory: the peer's READ cannot be complete.
#[test]
fn memory_of_a_response_that_is_not_sent_is_in_use() {
    let mut victim = victim();
    let read = victim.read(0, 0, 64 * 1024);
    victim.give(read, &[]);
    for _ in 0..3 {
        let error = deregister(&mut victim).unwrap_err();
        assert!(matches!(error, EndpointError::Memory(MemoryError::Busy { uses: 1 })), "{error}");
    }
    // The queue pair ends, and with it the response.
    let qpn = victim.bench.qp.qpn;
    victim.bench.net.endpoint(VICTIM).destroy_qp(qpn).unwrap();
    deregister(&mut victim).unwrap();
}

/// A registration that has ended keeps the memory until the ports have the packets of a burst.
#[test]
fn memory_of_a_burst_is_not_freed_before_the_ports_have_it() {
    let mut victim = victim();
    let (now, rkey) = (victim.bench.net.now, victim.readable.key.rkey);
    for n in 0..2 {
        let read = victim.read(n, u64::from(n), 2 * MTU + 1);
        victim.give_silently(read);
    }
    let endpoint = victim.bench.net.endpoint(VICTIM);
    endpoint.invalidate(rkey);
    endpoint.begin_burst(16);
    let mut made = Vec::new();
    let mut out = Transmit::default();
    while endpoint.transmit(now, PlaneSet(3), &mut out) {
        made.push(out.clone());
    }
    let mut bytes = Vec::new();
    for out in &made {
        endpoint.payload(out).append_to(&mut bytes, usize::MAX);
    }
    let len = 2 * MTU as usize + 1;
    let expected = &victim.readable.expected;
    assert!(bytes == [&expected[..len], &expected[1..=len]].concat(), "{} bytes", bytes.len());
    let regions = endpoint.memory().regions();
    assert_eq!(endpoint.memory_mut().regions(), regions - 1, "its last use is over");
}

/// A port may refer to the bytes of a packet in place.
#[test]
fn memory_is_in_use_while_a_port_holds_a_packet_of_the_response() {
    let mut victim = victim();
    victim.bench.net.endpoint(VICTIM).release_before(0);
    let read = victim.read(0, 0, 2 * MTU);
    victim.give(read, &[]);
    for ticket in [0, 1] {
        victim.bench.net.endpoint(VICTIM).release_before(ticket);
        assert!(victim.bench.net.endpoint(VICTIM).waits_for_release());
        assert!(deregister(&mut victim).is_err(), "{ticket}");
    }
    victim.bench.net.endpoint(VICTIM).release_before(2);
    assert!(!victim.bench.net.endpoint(VICTIM).waits_for_release());
    deregister(&mut victim).unwrap();
}
