//! Packets cut short, packets damaged, and garbage with a correct iCRC.

use spindrift::endpoint::{QpModify, QpState};
use spindrift::wire::{
    Aeth, Bth, DataHead, ENDPOINT_QPN, Eeth, EndpointOp, Erth, Ev, Meth, Msn, NackReason, Neth, Opcode,
    Packet, Peth, Psn, Reth, Seth, Tseth,
};

use crate::bench::{
    ATTACKER_QPN, Bench, FIRST_PSN, IOVA, MTU, VICTIM, attacker_info, attacker_ip, envelope, stranger_ip,
};
use crate::support::frame::Envelope;
use crate::support::net::address;
use crate::support::pair::{self, Patience};
use crate::support::rand::Rng;

/// One of each kind of packet.
pub(crate) fn one_of_each(bench: &Bench) -> Vec<Packet<'static>> {
    let bth = |opcode| Bth::new(opcode, bench.qp.qpn, FIRST_PSN.add(1));
    let mut imm = bench.write();
    imm.bth.opcode = Opcode::WriteOnlyImm;
    imm.imm = Some(3);
    vec![
        Packet::Data { head: bench.write(), payload: &[9; 8], pad: &[] },
        Packet::Data { head: imm, payload: &[9; 8], pad: &[] },
        Packet::Ack { bth: bth(Opcode::Ack), aeth: Aeth::ack(0) },
        Packet::Sack { bth: bth(Opcode::Sack), seth: Seth::default() },
        Packet::Nack { bth: bth(Opcode::Nack), neth: Neth::new(NackReason::Trimmed, FIRST_PSN, Ev(1)) },
        Packet::Probe { bth: bth(Opcode::Probe), peth: Peth::default() },
        Packet::EndpointRequest {
            bth: Bth::new(Opcode::EndpointRequest, ENDPOINT_QPN, Psn::new(1)),
            erth: Erth::default(),
        },
        Packet::EndpointResponse {
            bth: Bth::new(Opcode::EndpointResponse, ENDPOINT_QPN, Psn::new(1)),
            eeth: Eeth::new(EndpointOp::EvProbe, spindrift::wire::OpPosition::default(), 0),
        },
    ]
}

#[test]
fn a_frame_cut_anywhere_is_dropped() {
    let mut bench = Bench::new();
    for packet in one_of_each(&bench) {
        let frame = envelope().seal(&packet);
        for len in 0..frame.len() {
            bench.mark();
            bench.net.inject(VICTIM, 0, &frame[..len]);
            bench.expect_counts(&format!("{len} of {packet:?}"), &[("rx_packets", 1), ("rx_bad_stack", 1)]);
        }
    }
    bench.check_healthy("cut frames");
}

#[test]
fn a_packet_cut_anywhere_is_dropped_even_if_its_lengths_and_crc_are_right() {
    let mut bench = Bench::new();
    for packet in one_of_each(&bench) {
        let mut mrc = vec![0; 64];
        let len = packet.encode_head(&mut mrc);
        // Up to the end of the headers, without the last byte of them.
        for cut in 0..len {
            bench.mark();
            let frame = envelope().wrap(&mrc[..cut]);
            bench.net.inject(VICTIM, 0, &frame);
            // The iCRC masks the fifth byte, so there is none of less.
            let counter = if cut < 5 { "rx_bad_icrc" } else { "rx_malformed" };
            bench.expect_counts(&format!("{cut} of {packet:?}"), &[("rx_packets", 1), (counter, 1)]);
        }
        if !matches!(packet, Packet::Data { .. }) {
            bench.mark();
            let frame = envelope().wrap(&mrc[..=len]);
            bench.net.inject(VICTIM, 0, &frame);
            bench.expect_counts("a byte too many", &[("rx_packets", 1), ("rx_malformed", 1)]);
        }
    }
    // A write whose payload is short never completes; out of order it only waits.
    bench.mark();
    let mut head = bench.write();
    for len in 0..8_u32 {
        head.bth.psn = FIRST_PSN.add(1 + len);
        let frame = envelope().seal(&Packet::Data { head, payload: &[9; 8][..len as usize], pad: &[] });
        bench.net.inject(VICTIM, 0, &frame);
    }
    assert_eq!(bench.count("rx_bad_length"), 8);
    assert_eq!(bench.count("rx_placed_bytes"), 0);
    bench.check_healthy("short packets");
}

#[test]
fn a_flipped_bit_is_noticed() {
    let mut bench = Bench::new();
    let frame = envelope().seal(&one_of_each(&bench)[0]);
    // Everything that the iCRC covers: addresses, ports, headers but BTH byte 4, payload, the iCRC itself.
    let covered = (22..60).chain(62..66).chain(67..frame.len());
    for byte in covered {
        for bit in 0..8 {
            bench.mark();
            let mut damaged = frame.clone();
            damaged[byte] ^= 1 << bit;
            bench.net.inject(VICTIM, 0, &damaged);
            let counted = bench.counted();
            let fine = [
                ("rx_bad_icrc", 1),
                ("rx_other_port", 1),
                ("rx_bad_stack", 1),
                ("rx_truncated", 1),
                ("rx_wrong_destination", 1),
            ];
            assert!(
                counted.len() == 2 && counted[0] == ("rx_packets", 1) && fine.contains(&counted[1]),
                "byte {byte} bit {bit}: {counted:?}"
            );
        }
    }
    bench.check_healthy("flipped bits");
}

fn any_write(rng: &mut Rng, bench: &Bench) -> DataHead {
    let opcodes = [
        Opcode::WriteFirst,
        Opcode::WriteMiddle,
        Opcode::WriteLast,
        Opcode::WriteLastImm,
        Opcode::WriteOnly,
        Opcode::WriteOnlyImm,
    ];
    let mut head = bench.write();
    let opcode = rng.pick(&opcodes);
    head.bth =
        Bth { rtx: rng.one_in(2), ack_req: rng.one_in(2), ..Bth::new(opcode, bench.qp.qpn, near(rng)) };
    head.meth = Meth { rqmsn: Msn::new(rng.below(3) as u16), msn: Msn::new((0xffff + rng.below(4)) as u16) };
    head.tseth = rng.one_in(2).then(|| Tseth::new(rng.bits() as u16));
    let rkey = rng.pick(&[0, 1, head.reth.rkey ^ 4, rng.clone().bits() as u32]);
    head.reth = Reth {
        va: IOVA.wrapping_add(rng.below(5_000)).wrapping_sub(10),
        rkey,
        dma_len: rng.below(900) as u32,
    };
    head.imm = head.bth.opcode.has_imm().then_some(5);
    head
}

fn near(rng: &mut Rng) -> Psn {
    match rng.below(3) {
        0 => Psn::new(rng.bits() as u32),
        1 => FIRST_PSN.add(1 + rng.below(1_200) as u32),
        _ => FIRST_PSN.sub(rng.below(300) as u32),
    }
}

/// A packet of any kind with fields that are random, or nearly right.
fn any_packet(rng: &mut Rng, bench: &Bench) -> Vec<u8> {
    let packets = one_of_each(bench);
    let payload = rng.bytes(MTU as usize + 4);
    let len = rng.pick(&[0, 1, 8, 255, 256, 257]);
    let packet = match rng.below(8) {
        0..3 => Packet::Data { head: any_write(rng, bench), payload: &payload[..len], pad: &[] },
        n => packets[n as usize],
    };
    let mut mrc = vec![0; 64];
    let head_len = packet.encode_head(&mut mrc);
    mrc.truncate(head_len);
    if matches!(packet, Packet::Data { .. }) {
        mrc.extend_from_slice(&payload[..len]);
    } else {
        // Random behind the BTH, but often with the right connection.
        let random = rng.bytes(head_len - 12);
        let from = rng.pick(&[12, 12, 16, 20, 24]).min(head_len);
        mrc[from..].copy_from_slice(&random[from - 12..]);
        if head_len >= 24 && rng.one_in(2) {
            mrc[20..22].copy_from_slice(&(ATTACKER_QPN.get() as u16).to_be_bytes());
            mrc[22..24].copy_from_slice(&(bench.qp.qpn.get() as u16).to_be_bytes());
        }
    }
    if rng.one_in(8) {
        let at = rng.below(mrc.len() as u64) as usize;
        mrc[at] = rng.bits() as u8;
    }
    if rng.one_in(16) {
        return rng.bytes(rng.clone().below(80) as usize);
    }
    mrc
}

/// Makes the attacked queue pair anew if it failed.
fn revive(bench: &mut Bench) {
    let (qpn, now) = (bench.qp.qpn, bench.net.now);
    if bench.net.endpoint(VICTIM).qp_state(qpn) == Some(QpState::Rts) {
        return;
    }
    bench.qp.qpn = bench.net.endpoint(VICTIM).modify_qp(now, qpn, QpModify::Reset).unwrap();
    let end = bench.qp;
    let ours = bench.net.endpoint(VICTIM).qp_info(end.qpn).unwrap();
    pair::bring_up(&mut bench.net, end, &attacker_info(&ours), Patience::default());
}

#[test]
fn garbage_with_a_correct_crc_does_no_harm() {
    let mut bench = Bench::new();
    let mut rng = Rng::new(2026);
    let mut revived = 0;
    for n in 0..200_000_u64 {
        let src = if rng.one_in(8) { stranger_ip() } else { attacker_ip(rng.below(2) as u8) };
        let mut envelope = Envelope::new(src, address(true, VICTIM, 0));
        envelope.traffic_class = if rng.one_in(4) { rng.bits() as u8 } else { 0 };
        envelope.entropy.src_port = rng.bits() as u16;
        let mrc = any_packet(&mut rng, &bench);
        bench.net.inject(VICTIM, rng.below(3) as u8, &envelope.wrap(&mrc));
        if bench.net.endpoint(VICTIM).qp_state(bench.qp.qpn) != Some(QpState::Rts) {
            revived += 1;
            revive(&mut bench);
        }
        // Something to acknowledge falsely.
        if n % 64 == 0 && bench.net.endpoint(VICTIM).qp_status(bench.qp.qpn).unwrap().send_outstanding < 100 {
            bench.post_to_attacker(n, 1_000);
        }
        if n % 256 == 0 {
            bench.net.run_for(50_000);
            bench.net.astray.clear();
            bench.net.take_events(VICTIM);
        }
        if n % 20_000 == 0 {
            bench.check_healthy(&format!("garbage packet {n}"));
        }
    }
    assert!(revived > 10, "{revived}: garbage that is nearly right is taken seriously");
    assert_eq!(bench.count("rx_placed_bytes"), 10 * 5_000, "only what the healthy peer sent");
    bench.check_healthy("garbage");
}
