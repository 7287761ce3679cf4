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
    AtomicOperands, Bth, CcState, DataHead, DecodeError, Entropy, EntropyMode, Ev, Meth, Msn, NackReason,
    Neth, Opcode, Packet, Psn, Qpn, Reth, Seth, StackTemplate, StevOrder, Tseth, icrc,
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

/// One packet of each kind that is an extension: its name, and its bytes from the BTH to the end of the payload.
///
/// BTH: code, flags, partition, queue pair 0x42, flags, PSN. METH: number among messages of its kind, message number.
/// TSETH if bit 4 of the second flags is set. RETH: address, key, length.
const EXTENSIONS: [(Opcode, &str); 17] = [
    (
        Opcode::SendFirst,
        "c000ffff 00000042 10000101  00070009 12340001 0000000000000000 00000000 00000005 41424344",
    ),
    (Opcode::SendMiddle, "c100ffff 00000042 00000102  00070009 0000000000000004 00000000 0000000c 41424344"),
    (Opcode::SendLast, "c230ffff 00000042 80000103  00070009 0000000000000004 00000000 00000005 41000000"),
    (
        Opcode::SendLastImm,
        "c330ffff 00000042 80000104  00070009 0000000000000004 00000000 00000005 cafef00d 41000000",
    ),
    (Opcode::SendOnly, "c400ffff 00000042 80000105  00070009 0000000000000000 00000000 00000000"),
    (
        Opcode::SendOnlyImm,
        "c500ffff 00000042 90000106  00070009 12340001 0000000000000000 00000000 00000004 cafef00d 41424344",
    ),
    (
        Opcode::SendLastInvalidate,
        "d630ffff 00000042 80000107  00070009 0000000000000004 00000000 00000005 87654321 41000000",
    ),
    (
        Opcode::SendOnlyInvalidate,
        "d700ffff 00000042 90000108  00070009 12340001 0000000000000000 00000000 00000000 87654321",
    ),
    (Opcode::ReadRequest, "cc00ffff 00000042 90000109  00070009 12340001 00007f0000001000 deadbeef ffffffff"),
    (
        Opcode::ReadResponseFirst,
        "cd00ffff 00000042 0000010a  00070009 0000000000000000 00000000 00000009 41424344",
    ),
    (
        Opcode::ReadResponseMiddle,
        "ce00ffff 00000042 0000010b  00070009 0000000000000004 00000000 00000009 41424344",
    ),
    (
        Opcode::ReadResponseLast,
        "cf30ffff 00000042 8000010c  00070009 0000000000000008 00000000 00000009 41000000",
    ),
    (
        Opcode::ReadResponseOnly,
        "d000ffff 00000042 9000010d  00070009 12340001 0000000000000000 00000000 00000000",
    ),
    (
        Opcode::AtomicResponse,
        "d200ffff 00000042 8000010e  00070009 0000000000000000 00000000 00000008 0102030405060708",
    ),
    (
        Opcode::CompareSwap,
        "d300ffff 00000042 9000010f  00070009 12340001 00007f0000001000 deadbeef 00000008 \
        0102030405060708 1112131415161718",
    ),
    (
        Opcode::FetchAdd,
        "d400ffff 00000042 80000110  00070009 00007f0000001000 deadbeef 00000008 \
        ffffffffffffffff 0000000000000000",
    ),
    (Opcode::Nack, "dd00ffff 00000042 00000111  0000 0a 0c c0020001 0041 0042 00 000111 20 00 1234"),
];

/// Decisions 37, 38, 39, 40, 41, 43: where each field lies.
#[test]
fn packets_of_the_extensions_decode_and_encode() {
    for (n, (opcode, text)) in (0..).zip(EXTENSIONS) {
        let bytes = unhex(text);
        let packet = Packet::decode(&bytes).unwrap();
        let mut out = [0; 80];
        let len = packet.encode_head(&mut out);
        let bth = *packet.bth();
        assert_eq!((bth.opcode, bth.psn, bth.dest_qpn), (opcode, Psn::new(0x101 + n), Qpn::new(0x42)));
        let Packet::Data { head, payload, pad } = packet else {
            let Packet::Nack { neth, .. } = packet else { panic!("{opcode:?}") };
            let expected = Neth {
                vendor_info: 12,
                spdcid: 0x41,
                dpdcid: 0x42,
                tx_timestamp: 0x1234,
                ..Neth::new(NackReason::NoResource, Psn::new(0x111), Ev(0xc002_0001))
            };
            assert_eq!((neth, &out[..len]), (expected, &bytes[..]));
            assert_eq!(Neth::rnr_timer_ns(neth.vendor_info), 640_000);
            continue;
        };
        assert_eq!([&out[..len], payload, pad].concat(), bytes, "{opcode:?}");
        assert_eq!((head.meth.rqmsn, head.meth.msn), (Msn::new(7), Msn::new(9)), "{opcode:?}");
        assert_eq!(head.tseth, bth.ts.then(|| Tseth::new(0x1234)), "{opcode:?}");
        let at_an_address = matches!(opcode, Opcode::ReadRequest | Opcode::CompareSwap | Opcode::FetchAdd);
        let (base, rkey) = if at_an_address { (0x7f00_0000_1000, 0xdead_beef) } else { (0, 0) };
        let (offset, dma_len, sent): (u64, u32, &[u8]) = match opcode {
            Opcode::SendFirst => (0, 5, b"ABCD"),
            Opcode::SendMiddle => (4, 12, b"ABCD"),
            Opcode::SendLast | Opcode::SendLastImm | Opcode::SendLastInvalidate => (4, 5, b"A"),
            Opcode::SendOnlyImm => (0, 4, b"ABCD"),
            Opcode::ReadRequest => (0, u32::MAX, b""),
            Opcode::ReadResponseFirst => (0, 9, b"ABCD"),
            Opcode::ReadResponseMiddle => (4, 9, b"ABCD"),
            Opcode::ReadResponseLast => (8, 9, b"A"),
            Opcode::AtomicResponse => (0, 8, &[1, 2, 3, 4, 5, 6, 7, 8]),
            Opcode::CompareSwap | Opcode::FetchAdd => (0, 8, b""),
            _ => (0, 0, b""),
        };
        assert_eq!((head.reth, payload), (Reth { va: base + offset, rkey, dma_len }, sent), "{opcode:?}");
        let word = match opcode {
            Opcode::SendLastImm | Opcode::SendOnlyImm => Some(0xcafe_f00d),
            Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate => Some(0x8765_4321),
            _ => None,
        };
        let operands = match opcode {
            Opcode::CompareSwap => Some((0x0102_0304_0506_0708, 0x1112_1314_1516_1718)),
            Opcode::FetchAdd => Some((u64::MAX, 0)),
            _ => None,
        };
        let operands = operands.map(|(swap_or_add, compare)| AtomicOperands { swap_or_add, compare });
        assert_eq!((head.imm, head.operands), (word, operands), "{opcode:?}");
    }
}
