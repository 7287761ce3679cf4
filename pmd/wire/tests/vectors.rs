//! Published packets: their iCRC, their fields, and their bytes when we write them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{reference_icrc, unhex};
use spindrift_wire::MacAddr;
use spindrift_wire::batch_ids::BatchIds;
use spindrift_wire::stack::{self, IPV6_STACK_LEN};
use spindrift_wire::{
    Bth, CcState, DataHead, DecodeError, Entropy, EntropyMode, Ev, Meth, Msn, Opcode, Packet, Psn, Qpn, Reth,
    Seth, StackTemplate, StevOrder, Tseth, icrc,
};

/// A send over IPv4, from the tests of scapy's `RoCE` module (its PSN is 13571856).
const VECTOR_A: &str = "4501 0040 0478 4000 40 11 b4d5 c0a80007 c0a80007  c000 12b7 002c aca2
    24 60 ffff 00 0000d3 00 cf1710  4630818be28935d90e9a95505401be885e500000  78f353f3";

/// A congestion notification captured from a `ConnectX-4`, from the same tests.
const VECTOR_B: &str = "45c2003c718c4000401191610a0011010a001201 000012b700280000
    8100ffff40000118 00000000  00000000000000000000000000000000  82fd002a";

/// A write of eight bytes in one packet, with a timestamp, asking for an acknowledgement.
const WRITE_ONLY: &str = "6000123400381140fd000000000000000000000000000001fd000000000000000000000000000002
    c00112b700380000ca00ffff0000004290000101000000011234000100000000000100000000abcd00000008
    4142434445464748 2f44b5a4";

/// The selective acknowledgement of it, with the packet before it missing.
const SACK: &str = "60001234003c1140fd000000000000000000000000000002fd000000000000000000000000000001
    c00112b7003c0000dc00ffff00000041000000ff00000002c001123400420041000000ff0008000100000000
    0000000212340001000000012f70ef94";

const SRC: &str = "fd00::1";
const DST: &str = "fd00::2";

fn write_head() -> DataHead {
    let bth = Bth { ack_req: true, ts: true, ..Bth::new(Opcode::WriteOnly, Qpn::new(0x42), Psn::new(0x101)) };
    DataHead {
        bth,
        meth: Meth { rqmsn: Msn::new(0), msn: Msn::new(1) },
        tseth: Some(Tseth::new(0x1234)),
        reth: Reth { va: 0x1_0000, rkey: 0xabcd, dma_len: 8 },
        imm: None,
        operands: None,
    }
}

fn sack() -> (Bth, Seth) {
    let seth = Seth {
        ack_psn_offset: 2,
        entropy: Ev(0xc001_1234),
        spdcid: 0x42,
        dpdcid: 0x41,
        cack: Psn::new(0xff),
        mpr: 8,
        sack_offset: 1,
        bitmap: 0b10,
        cc: CcState { tx_timestamp: 0x1234, ooo_count: 1, rcvd_bytes: 1, ..CcState::default() },
        ..Seth::default()
    };
    (Bth::new(Opcode::Sack, Qpn::new(0x41), Psn::new(0xff)), seth)
}

/// The MRC part of a sample over IPv6: without IP, UDP and iCRC.
fn mrc_of(l3: &[u8]) -> &[u8] {
    &l3[48..l3.len() - 4]
}

#[test]
fn published_icrcs_verify() {
    for vector in [VECTOR_A, VECTOR_B, WRITE_ONLY, SACK] {
        let l3 = unhex(vector);
        let (covered, stored) = l3.split_last_chunk().unwrap();
        assert!(icrc::verify_frame(&l3), "{vector}");
        assert_eq!(reference_icrc(covered), *stored, "{vector}");
        // The packet may be cut anywhere behind the last byte that is masked.
        let masked = if covered[0] >> 4 == 6 { 53 } else { 33 };
        for (head, payload) in (masked..=covered.len()).map(|head| covered.split_at(head)) {
            assert_eq!(icrc::compute(head, payload, &[]), *stored, "{vector}");
        }
    }
}

#[test]
fn an_opcode_of_roce_is_not_one_of_mrc() {
    let l3 = unhex(VECTOR_B);
    assert_eq!(Packet::decode(&l3[28..l3.len() - 4]), Err(DecodeError::UnknownOpcode(0x81)));
}

#[test]
fn write_sample_decodes_and_encodes() {
    let l3 = unhex(WRITE_ONLY);
    let packet = Packet::decode(mrc_of(&l3)).unwrap();
    assert_eq!(packet, Packet::Data { head: write_head(), payload: b"ABCDEFGH", pad: &[] });

    let template = StackTemplate::new(
        MacAddr([2; 6]),
        MacAddr([4; 6]),
        SRC.parse().unwrap(),
        DST.parse().unwrap(),
        4791,
        64,
    )
    .unwrap();
    let mut frame = [0; 192];
    let entropy = EntropyMode::Stev(StevOrder::SportHigh).place(Ev(0xc001_1234));
    let mut len = template.write(&mut frame, entropy, 0, 36 + 8 + 4);
    len += write_head().encode(&mut frame[len..]);
    let icrc = icrc::compute(&frame[14..len], b"ABCDEFGH", &[]);
    frame[len..len + 8].copy_from_slice(b"ABCDEFGH");
    frame[len + 8..len + 12].copy_from_slice(&icrc);
    assert_eq!(frame[14..len + 12], l3);
}

#[test]
fn sack_sample_decodes_and_encodes() {
    let l3 = unhex(SACK);
    let (bth, seth) = sack();
    assert_eq!(Packet::decode(mrc_of(&l3)).unwrap(), Packet::Sack { bth, seth });
    assert_eq!(seth.ack_psn(), Psn::new(0x101));
    assert_eq!(seth.sack_base(), Psn::new(0x100));

    let mut out = [0; 48];
    assert_eq!(Packet::Sack { bth, seth }.encode_head(&mut out), 48);
    assert_eq!(out, mrc_of(&l3));
}

#[test]
fn stack_of_the_samples_parses() {
    let mut frame = unhex("020202020202 040404040404 86dd");
    frame.extend(unhex(SACK));
    let sack = stack::parse(&frame).unwrap();
    assert_eq!((sack.meta.src, sack.meta.dst), (DST.parse().unwrap(), SRC.parse().unwrap()));
    assert_eq!((sack.meta.src_port, sack.meta.dst_port), (0xc001, 4791));
    assert_eq!((sack.meta.traffic_class, sack.meta.hop_limit), (0, 64));
    assert!(!sack.truncated);
    assert_eq!(sack.mrc, &frame[IPV6_STACK_LEN..]);
    assert!(icrc::verify_datagram(&sack.meta, sack.mrc, &mut BatchIds::default()));

    let Entropy { src_port, flow_label } = Entropy { src_port: 0xc001, flow_label: 0x1234 };
    assert_eq!((sack.meta.src_port, sack.meta.flow_label), (src_port, flow_label));
    assert_eq!(EntropyMode::default().extract(src_port, flow_label), Ev(0xc001_1234));
}

/// Each bit of the samples, flipped, is found out unless the rule leaves it out.
/// Decision 12.
#[test]
fn icrc_covers_all_but_what_switches_may_change() {
    let ipv6_masked =
        [(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (46, 0xff), (47, 0xff), (52, 0xff)];
    let ipv4_masked = [(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff), (26, 0xff), (27, 0xff), (32, 0xff)];
    for (sample, masked) in [(WRITE_ONLY, &ipv6_masked[..]), (SACK, &ipv6_masked), (VECTOR_A, &ipv4_masked)] {
        let mut l3 = unhex(sample);
        for at in 0..l3.len() {
            for bit in 0..8 {
                l3[at] ^= 1 << bit;
                let left_out = masked.iter().any(|&(byte, mask)| byte == at && mask & (1 << bit) != 0);
                assert_eq!(icrc::verify_frame(&l3), left_out, "byte {at} bit {bit}");
                l3[at] ^= 1 << bit;
            }
        }
    }
}
