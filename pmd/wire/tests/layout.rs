//! The bit position of every field, against the tables of MRC 1.0.
//!
//! A field is set to all ones in a header that is otherwise zero. The bits that change must be those that the table
//! gives: byte, highest bit in it (7 down to 0), number of bits.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use spindrift_wire::{
    Aeth, AethKind, AtomicOperands, Bth, CcState, DataHead, Eeth, EndpointOp, Erth, Ev, Mark, Meth, Msn,
    NackReason, NakCode, Neth, OpPosition, Opcode, Operation, Packet, Peth, Psn, Qpn, Reth, Seth, Tseth,
};

/// Positions of the bits that differ, counted from the first bit on the wire.
fn changed(base: &[u8], other: &[u8]) -> Vec<usize> {
    assert_eq!(base.len(), other.len());
    (0..base.len() * 8).filter(|bit| (base[bit / 8] ^ other[bit / 8]) >> (7 - bit % 8) & 1 != 0).collect()
}

fn bits(byte: usize, highest: usize, count: usize) -> Vec<usize> {
    let first = byte * 8 + 7 - highest;
    (first..first + count).collect()
}

macro_rules! layout {
    ($base:expr; $($($field:ident).+ = $ones:expr => $byte:literal, $highest:literal, $count:literal;)*) => {{
        let base = $base;
        $({
            let mut header = base;
            header.$($field).+ = $ones;
            assert_eq!(
                changed(&base.to_bytes(), &header.to_bytes()),
                bits($byte, $highest, $count),
                stringify!($($field).+)
            );
        })*
    }};
}

/// Settings and logs hold them as plain numbers.
#[test]
fn numbers_come_from_integers_and_go_back() {
    for value in [0, 1, 0x12_3456, 0xff_ffff] {
        assert_eq!((Psn::from(value), u32::from(Psn::new(value))), (Psn::new(value), value));
        assert_eq!((Qpn::from(value), u32::from(Qpn::new(value))), (Qpn::new(value), value));
    }
}

/// Buffers are made as long as this.
#[test]
fn the_longest_headers() {
    assert_eq!(DataHead::MAX_LEN, 12 + 4 + 4 + 16 + 16);
    assert_eq!(Packet::MAX_HEAD_LEN, 52, "longer than the headers of a SACK, 12 + 36");
}

#[test]
fn bth_table_6_3() {
    let mut zero = Bth::new(Opcode::Sack, Qpn::new(0), Psn::new(0));
    zero.pkey = 0;
    assert_eq!(zero.to_bytes(), [0xdc, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    layout! { zero;
        solicited = true => 1, 7, 1;
        migrated = true => 1, 6, 1;
        pad = 3 => 1, 5, 2;
        tver = 15 => 1, 3, 4;
        pkey = 0xffff => 2, 7, 16;
        var_res = 0xff => 4, 7, 8;
        dest_qpn = Qpn::new(u32::MAX) => 5, 7, 24;
        ack_req = true => 8, 7, 1;
        reserved = true => 8, 6, 1;
        rtx = true => 8, 5, 1;
        ts = true => 8, 4, 1;
        inv_res = 15 => 8, 3, 4;
        psn = Psn::new(u32::MAX) => 9, 7, 24;
    }
    assert_eq!(Bth::new(Opcode::Sack, Qpn::new(0), Psn::new(0)).pkey, 0xffff);
}

#[test]
fn opcodes_table_6_4() {
    let codes: Vec<u8> = Opcode::ALL.iter().map(|opcode| opcode.code()).collect();
    let mrc = [0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xd1, 0xd8, 0xd9, 0xdc, 0xdd, 0xde];
    // IBTA volume 1, table 38, with the class bits of MRC. 0x15 is not assigned.
    let extensions = (0xc0..=0xc5).chain(0xcc..=0xd0).chain(0xd2..=0xd4).chain(0xd6..=0xd7);
    let mut all: Vec<u8> = mrc.into_iter().chain(extensions).collect();
    all.sort_unstable();
    assert_eq!(codes, all);
    for code in 0..=255 {
        assert_eq!(Opcode::try_from(code).is_ok(), codes.contains(&code), "{code:#x}");
    }
    for opcode in Opcode::ALL {
        assert_eq!(Opcode::try_from(opcode.code()), Ok(opcode));
        let name = format!("{opcode:?}");
        let operation = match &name {
            name if name.starts_with("Write") => Some(Operation::Write),
            name if name.starts_with("Send") => Some(Operation::Send),
            name if name.starts_with("ReadRequest") => Some(Operation::ReadRequest),
            name if name.starts_with("ReadResponse") => Some(Operation::ReadResponse),
            name if name.starts_with("AtomicResponse") => Some(Operation::AtomicResponse),
            name if name == "CompareSwap" || name == "FetchAdd" => Some(Operation::AtomicRequest),
            _ => None,
        };
        assert_eq!((opcode.operation(), opcode.is_data()), (operation, operation.is_some()), "{name}");
        assert_eq!(opcode.is_write(), operation == Some(Operation::Write));
        assert_eq!(opcode.is_send(), operation == Some(Operation::Send));
        assert_eq!(opcode.is_plain_write(), opcode.is_write() && !name.ends_with("Imm"));
        let alone = matches!(
            operation,
            Some(Operation::ReadRequest | Operation::AtomicRequest | Operation::AtomicResponse)
        );
        assert_eq!(opcode.is_first(), alone || name.contains("First") || name.contains("Only"), "{name}");
        assert_eq!(opcode.is_last(), alone || name.contains("Last") || name.contains("Only"), "{name}");
        assert_eq!(opcode.is_only(), alone || name.contains("Only"), "{name}");
        assert_eq!(opcode.has_imm(), name.ends_with("Imm"));
        assert_eq!(opcode.invalidates(), name.ends_with("Invalidate"));
        assert_eq!(opcode.has_operands(), operation == Some(Operation::AtomicRequest));
        let takes_receive = operation == Some(Operation::Send) || name.ends_with("Imm");
        assert_eq!(opcode.takes_receive(), takes_receive, "{name}");
    }
}

/// The second half of the `AtomicETH` (IBTA volume 1, section 9.3.4).
#[test]
fn atomic_operands() {
    layout! { AtomicOperands::default();
        swap_or_add = u64::MAX => 0, 7, 64;
        compare = u64::MAX => 8, 7, 64;
    }
}

#[test]
fn meth_table_6_8() {
    layout! { Meth::default();
        rqmsn = Msn::new(0xffff) => 0, 7, 16;
        msn = Msn::new(0xffff) => 2, 7, 16;
    }
}

#[test]
fn tseth_table_6_6() {
    layout! { Tseth { ftype: 0, ..Tseth::new(0) };
        timestamp = 0xffff => 0, 7, 16;
        tsr = true => 2, 7, 1;
        reserved = 0x7ff => 2, 6, 11;
        ftype = 15 => 3, 3, 4;
    }
    assert_eq!(Tseth::new(0).to_bytes(), [0, 0, 0, 1]);
}

#[test]
fn reth_table_6_5() {
    layout! { Reth::default();
        va = u64::MAX => 0, 7, 64;
        rkey = u32::MAX => 8, 7, 32;
        dma_len = u32::MAX => 12, 7, 32;
    }
}

#[test]
fn aeth() {
    layout! { Aeth { syndrome: 0, msn: 0 };
        syndrome = 0xff => 0, 7, 8;
        msn = u32::MAX => 1, 7, 24;
    }
    assert_eq!(Aeth::ack(5).to_bytes(), [0x1f, 0, 0, 5]);
    assert_eq!(Aeth::ack(5).kind(), AethKind::Ack);
    let codes =
        [NakCode::PsnSequence, NakCode::InvalidRequest, NakCode::RemoteAccess, NakCode::RemoteOperational];
    for (syndrome, code) in (0x60..).zip(codes) {
        assert_eq!(Aeth::nak(code, 7).to_bytes(), [syndrome, 0, 0, 7]);
        assert_eq!(Aeth::nak(code, 7).kind(), AethKind::Nak(code));
    }
    // "Receiver not ready", an unassigned refusal, and the reserved top bit.
    for syndrome in [0x20, 0x64, 0x9f, 0xe0] {
        assert_eq!(Aeth { syndrome, msn: 0 }.kind(), AethKind::Other(syndrome));
    }
}

#[test]
fn seth_tables_7_12_and_7_14() {
    layout! { Seth::default();
        mark = Mark::SkipOnce => 1, 5, 1;
        mark = Mark::AlwaysSkip => 1, 6, 1;
        mark = Mark::Reserved => 1, 6, 2;
        pr = true => 1, 1, 1;
        ack_psn_offset = -1 => 2, 7, 16;
        entropy = Ev(u32::MAX) => 4, 7, 32;
        spdcid = 0xffff => 8, 7, 16;
        dpdcid = 0xffff => 10, 7, 16;
        reserved12 = 0xff => 12, 7, 8;
        cack = Psn::new(u32::MAX) => 13, 7, 24;
        cc_type = 15 => 16, 7, 4;
        cc_flags = 15 => 16, 3, 4;
        mpr = 0xff => 17, 7, 8;
        sack_offset = -1 => 18, 7, 16;
        bitmap = u64::MAX => 20, 7, 64;
        bitmap = 1 => 27, 0, 1;
        cc.tx_timestamp = 0xffff => 28, 7, 16;
        cc.reserved = true => 30, 7, 1;
        cc.ooo_count = 0x7fff => 30, 6, 15;
        cc.restore_cwnd = true => 32, 7, 1;
        cc.cwnd_penalty = 0x7f => 32, 6, 7;
        cc.rcvd_bytes = u32::MAX => 33, 7, 24;
    }
    let others = Seth { reserved0: 0xffff, ..Seth::default() }.to_bytes();
    assert_eq!(others[..2], [0xff, 0b1001_1101]);
    assert_eq!(Seth::default().to_bytes(), [0; 36]);
    assert_eq!(Seth { ack_psn_offset: -2, ..Seth::default() }.probe_id(), 0xfffe);
    let wrapped = Seth { cack: Psn::new(0xff_ffff), ack_psn_offset: 2, sack_offset: -1, ..Seth::default() };
    assert_eq!((wrapped.ack_psn(), wrapped.sack_base()), (Psn::new(1), Psn::new(0xff_fffe)));
    assert_eq!(CcState::default(), Seth::default().cc);
}

#[test]
fn neth_table_7_16() {
    layout! { Neth { cc_type: 0, ..Neth::default() };
        reserved0 = 0xffff => 0, 7, 16;
        reason = 0xff => 2, 7, 8;
        vendor_info = 0xff => 3, 7, 8;
        entropy = Ev(u32::MAX) => 4, 7, 32;
        spdcid = 0xffff => 8, 7, 16;
        dpdcid = 0xffff => 10, 7, 16;
        reserved12 = 0xff => 12, 7, 8;
        nack_psn = Psn::new(u32::MAX) => 13, 7, 24;
        cc_type = 15 => 16, 7, 4;
        cc_flags = 15 => 16, 3, 4;
        reserved17 = 0xff => 17, 7, 8;
        tx_timestamp = 0xffff => 18, 7, 16;
    }
    let nack = Neth::new(NackReason::TrimmedLastHop, Psn::new(9), Ev(3)).to_bytes();
    assert_eq!(nack, [0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9, 0x20, 0, 0, 0]);
}

#[test]
fn nack_reasons() {
    let known = [
        (0x01, NackReason::Trimmed),
        (0x02, NackReason::TrimmedLastHop),
        (0x06, NackReason::NoBitmap),
        (0x07, NackReason::NoPacketBuffer),
        (0x0a, NackReason::NoResource),
        (0x0b, NackReason::PsnOutOfWindow),
        (0x19, NackReason::UnexpectedEvent),
    ];
    for code in 0..=255 {
        let reason = NackReason::from(code);
        assert_eq!(u8::from(reason), code);
        let expected =
            known.iter().find(|(known, _)| *known == code).map_or(NackReason::Other(code), |k| k.1);
        assert_eq!(reason, expected);
    }
}

#[test]
fn peth_table_7_18() {
    layout! { Peth { ftype: 0, ..Peth::default() };
        reserved0 = 0xffff => 0, 7, 16;
        reserved2 = 0xff => 2, 7, 8;
        vendor_info = 0xff => 3, 7, 8;
        probe_id = 0xffff => 4, 7, 16;
        reserved6 = 0xffff => 6, 7, 16;
        spdcid = 0xffff => 8, 7, 16;
        dpdcid = 0xffff => 10, 7, 16;
        tx_timestamp = 0xffff => 12, 7, 16;
        tsr = true => 14, 7, 1;
        reserved14 = 0x7ff => 14, 6, 11;
        ftype = 15 => 15, 3, 4;
    }
    assert_eq!(Peth::default().to_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn erth_table_7_20() {
    layout! { Erth { ftype: 0, ..Erth::default() };
        reserved0 = 0xfffc => 0, 7, 14;
        op = EndpointOp::EvProbe => 1, 0, 1;
        op = EndpointOp::Reserved2 => 1, 1, 1;
        op = EndpointOp::Reserved3 => 1, 1, 2;
        reserved2 = 0xff => 2, 7, 8;
        vendor_info = 0xff => 3, 7, 8;
        port_status_mask = u32::MAX => 4, 7, 32;
        reserved8 = u32::MAX => 8, 7, 32;
        tx_timestamp = 0xffff => 12, 7, 16;
        tsr = true => 14, 7, 1;
        reserved14 = 0x7ff => 14, 6, 11;
        ftype = 15 => 15, 3, 4;
    }
    assert_eq!(Erth::default().to_bytes()[12..], [0, 0, 0, 1]);
}

/// Decision 3.
#[test]
fn eeth_table_7_22_at_either_position() {
    layout! { Eeth::default();
        op = EndpointOp::Reserved3 => 1, 3, 2;
        reserved2 = [0xff; 26] => 2, 7, 208;
        tx_timestamp = 0xffff => 28, 7, 16;
        reserved30 = [0xff; 6] => 30, 7, 48;
    }
    layout! { Eeth { op_position: OpPosition::Bits5To4, ..Eeth::default() };
        op = EndpointOp::Reserved3 => 1, 5, 2;
    }
    for op in [EndpointOp::EvProbe, EndpointOp::Reserved2, EndpointOp::Reserved3] {
        for position in [OpPosition::Bits3To2, OpPosition::Bits5To4] {
            let sent = Eeth::new(op, position, 7);
            assert_eq!(Eeth::from_bytes(&sent.to_bytes()), sent);
        }
    }
    // With something at both positions, the first reading stands and the rest is kept as reserved.
    let both = Eeth { reserved0: 0x20, ..Eeth::new(EndpointOp::EvProbe, OpPosition::Bits3To2, 7) };
    assert_eq!(Eeth::from_bytes(&both.to_bytes()), both);
    // A port status update is all zero, which says nothing of the position.
    let update = Eeth::new(EndpointOp::PortStatusUpdate, OpPosition::Bits5To4, 7);
    assert_eq!(Eeth::from_bytes(&update.to_bytes()), Eeth { op_position: OpPosition::Bits3To2, ..update });
}
