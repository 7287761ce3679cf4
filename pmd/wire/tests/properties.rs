//! Properties of the wire formats over generated values and bytes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::reference_icrc;
use proptest::collection::vec;
use proptest::prelude::*;
use spindrift_wire::{
    Aeth, AtomicOperands, Bth, DataHead, DecodeError, Eeth, EntropyMode, Erth, Ev, ImmDt, Meth, Msn, Neth,
    Opcode, Packet, Peth, Psn, Qpn, Reth, Seth, StevOrder, TrimmedHead, Tseth, icrc, is_mrc_port,
};

fn opcode() -> impl Strategy<Value = Opcode> {
    proptest::sample::select(Opcode::ALL.to_vec())
}

/// Bytes of what may follow the BTH of `opcode`: mostly the right number.
fn rest_of(opcode: Opcode) -> BoxedStrategy<Vec<u8>> {
    let len = match opcode {
        Opcode::Ack => Aeth::LEN,
        Opcode::Sack => Seth::LEN,
        Opcode::Nack => Neth::LEN,
        Opcode::Probe => Peth::LEN,
        Opcode::EndpointRequest => Erth::LEN,
        Opcode::EndpointResponse => Eeth::LEN,
        _ => return vec(any::<u8>(), 0..100).boxed(),
    };
    prop_oneof![8 => vec(any::<u8>(), len), 1 => vec(any::<u8>(), 0..60)].boxed()
}

/// Bytes that start with a known opcode and are random otherwise.
fn packet_bytes() -> impl Strategy<Value = Vec<u8>> {
    opcode().prop_flat_map(|opcode| {
        (any::<[u8; 11]>(), rest_of(opcode)).prop_map(move |(bth, rest)| {
            let mut bytes = vec![opcode.code()];
            bytes.extend(bth);
            bytes.extend(rest);
            bytes
        })
    })
}

/// Whether immediate data or a key to invalidate follow the RETH.
fn has_word(opcode: Opcode) -> bool {
    opcode.has_imm() || opcode.invalidates()
}

fn data_head() -> impl Strategy<Value = DataHead> {
    let data = opcode().prop_filter("a data packet", |opcode| opcode.is_data());
    let bth = (data, any::<[u8; 11]>()).prop_map(|(opcode, rest)| {
        let mut bytes = [opcode.code(); 12];
        bytes[1..].copy_from_slice(&rest);
        Bth::from_bytes(&bytes).unwrap()
    });
    (bth, any::<[u8; 4]>(), any::<[u8; 4]>(), any::<[u8; 16]>(), any::<u32>(), any::<[u8; 16]>()).prop_map(
        |(bth, meth, tseth, reth, imm, operands)| DataHead {
            bth,
            meth: Meth::from_bytes(&meth),
            tseth: bth.ts.then(|| Tseth::from_bytes(&tseth)),
            reth: Reth::from_bytes(&reth),
            imm: has_word(bth.opcode).then_some(imm),
            operands: bth.opcode.has_operands().then(|| AtomicOperands::from_bytes(&operands)),
        },
    )
}

/// The header after the RETH, and its length.
fn tail_of(opcode: Opcode) -> (&'static str, usize) {
    match (has_word(opcode), opcode.has_operands()) {
        (true, _) => (if opcode.has_imm() { "ImmDt" } else { "IETH" }, 4),
        (_, true) => ("AtomicETH", 16),
        _ => ("", 0),
    }
}

fn encoded(packet: &Packet<'_>) -> Vec<u8> {
    let mut head = [0; Packet::MAX_HEAD_LEN];
    let len = packet.encode_head(&mut head);
    let mut bytes = head[..len].to_vec();
    if let Packet::Data { payload, pad, .. } = packet {
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(pad);
    }
    bytes
}

macro_rules! header_keeps_every_bit {
    ($($name:ident: $header:ty;)*) => {
        proptest! {
            $(
                #[test]
                fn $name(bytes in any::<[u8; <$header>::LEN]>(), more in vec(any::<u8>(), 0..4)) {
                    let header = <$header>::from_bytes(&bytes);
                    prop_assert_eq!(header.to_bytes(), bytes);

                    let long = [&bytes[..], &more].concat();
                    prop_assert_eq!(<$header>::read(&long), Ok(header));
                    let mut out = vec![0; long.len()];
                    prop_assert_eq!(header.write(&mut out), <$header>::LEN);
                    prop_assert_eq!(&out[..<$header>::LEN], bytes);

                    let short = &bytes[..<$header>::LEN - 1];
                    let is_short = matches!(<$header>::read(short), Err(DecodeError::Short { .. }));
                    prop_assert!(is_short);
                    prop_assert_eq!(header.write(&mut [0; <$header>::LEN - 1]), 0);
                }
            )*
        }
    };
}

header_keeps_every_bit! {
    meth_keeps_every_bit: Meth;
    tseth_keeps_every_bit: Tseth;
    reth_keeps_every_bit: Reth;
    imm_keeps_every_bit: ImmDt;
    operands_keep_every_bit: AtomicOperands;
    aeth_keeps_every_bit: Aeth;
    seth_keeps_every_bit: Seth;
    neth_keeps_every_bit: Neth;
    peth_keeps_every_bit: Peth;
    erth_keeps_every_bit: Erth;
    eeth_keeps_every_bit: Eeth;
}

proptest! {
    #[test]
    fn a_decoded_base_header_encodes_to_the_same_bytes(mut bytes in any::<[u8; Bth::LEN]>(), opcode in 0..Opcode::ALL.len()) {
        bytes[0] = Opcode::ALL[opcode] as u8;
        let header = Bth::read(&bytes).unwrap();
        let mut out = [0; Bth::LEN + 1];
        prop_assert_eq!(header.write(&mut out), Bth::LEN);
        prop_assert_eq!(&out[..Bth::LEN], bytes);
        prop_assert_eq!(header.write(&mut [0; Bth::LEN - 1]), 0);
    }

    #[test]
    fn a_decoded_packet_encodes_to_the_same_bytes(bytes in packet_bytes()) {
        if let Ok(packet) = Packet::decode(&bytes) {
            prop_assert_eq!(packet.bth(), &Bth::read(&bytes).unwrap());
            prop_assert_eq!(encoded(&packet), bytes);
        }
    }

    #[test]
    fn an_encoded_data_packet_decodes_to_the_same_value(head in data_head(), data in vec(any::<u8>(), 3..64)) {
        let (payload, pad) = data.split_at(data.len() - usize::from(head.bth.pad));
        let packet = Packet::Data { head, payload, pad };
        let bytes = encoded(&packet);
        prop_assert_eq!(bytes.len(), head.encoded_len() + data.len());
        prop_assert_eq!(Packet::decode(&bytes), Ok(packet));
        prop_assert_eq!(DataHead::decode(&bytes), Ok((head, &data[..])));
    }

    /// Whatever flags a caller forgets, what is written can be read.
    #[test]
    fn ts_and_immediate_follow_what_is_there(head in data_head(), ts: bool, imm: Option<u32>) {
        let operands = head.operands.filter(|_| ts);
        let careless = DataHead { bth: Bth { ts, ..head.bth }, imm, operands, ..head };
        let mut out = [0; DataHead::MAX_LEN];
        let len = careless.encode(&mut out);
        let (read, rest) = DataHead::decode(&out[..len]).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(read.bth, head.bth);
        prop_assert_eq!(read.tseth, head.tseth);
        prop_assert_eq!(read.operands, head.operands.map(|given| if ts { given } else { AtomicOperands::default() }));
        prop_assert_eq!(read.imm, has_word(head.bth.opcode).then(|| imm.unwrap_or(0)));
    }

    #[test]
    fn every_cut_of_a_packet_is_an_error_or_a_shorter_data_packet(bytes in packet_bytes(), cut in 1..60_usize) {
        let Ok(packet) = Packet::decode(&bytes) else { return Ok(()) };
        let cut = cut.min(bytes.len());
        match Packet::decode(&bytes[..bytes.len() - cut]) {
            Ok(Packet::Data { head, payload, pad }) => {
                let shorter = payload.len() + pad.len() + head.encoded_len();
                prop_assert_eq!(shorter + cut, bytes.len());
            }
            Ok(other) => prop_assert!(false, "{other:?} from a cut {packet:?}"),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn a_control_packet_ends_with_its_header(bytes in packet_bytes(), more in 1..5_usize) {
        let Ok(packet) = Packet::decode(&bytes) else { return Ok(()) };
        if !packet.bth().opcode.is_data() {
            let long = [&bytes[..], &vec![0; more]].concat();
            let opcode = packet.bth().opcode;
            let (expected, found) = (bytes.len(), long.len());
            prop_assert_eq!(Packet::decode(&long), Err(DecodeError::TrailingBytes { opcode, expected, found }));
        }
    }

    #[test]
    fn the_start_of_a_data_packet_survives_trimming(head in data_head(), left in 0..=DataHead::MAX_LEN) {
        let mut out = [0xee; DataHead::MAX_LEN];
        head.encode(&mut out);
        let needed = 16 + if head.bth.ts { 4 } else { 0 };
        let trimmed = TrimmedHead::decode(&out[..left]);
        if left < needed {
            let is_short = matches!(trimmed, Err(DecodeError::Short { .. }));
            prop_assert!(is_short);
        } else {
            let DataHead { bth, meth, tseth, .. } = head;
            prop_assert_eq!(trimmed, Ok(TrimmedHead { bth, meth, tseth }));
        }
    }

    /// The header that the packet ends in, what it takes and what is there of it.
    #[test]
    fn a_data_packet_that_is_cut_short_says_where(head in data_head()) {
        let mut out = [0xee; DataHead::MAX_LEN];
        let len = head.encode(&mut out);
        let layout = [
            ("BTH", 12),
            ("METH", 4),
            ("TSETH", if head.bth.ts { 4 } else { 0 }),
            ("RETH", 16),
            tail_of(head.bth.opcode),
        ];
        let mut starts = 0;
        for (header, needed) in layout {
            for found in 0..needed {
                let error = DecodeError::Short { header, needed, found };
                prop_assert_eq!(DataHead::decode(&out[..starts + found]), Err(error));
            }
            starts += needed;
        }
        prop_assert_eq!(starts, len);
        prop_assert_eq!(DataHead::decode(&out[..len]), Ok((head, &[][..])));
    }

    #[test]
    fn only_data_packets_are_trimmed(bytes in packet_bytes()) {
        let opcode = Bth::read(&bytes).unwrap().opcode;
        if !opcode.is_data() {
            prop_assert_eq!(TrimmedHead::decode(&bytes), Err(DecodeError::NotData(opcode)));
            prop_assert_eq!(DataHead::decode(&bytes), Err(DecodeError::NotData(opcode)));
        }
    }

    #[test]
    fn psn_arithmetic_wraps(a in 0..Psn::COUNT, n in 0..Psn::COUNT) {
        let (from, to) = (Psn::new(a), Psn::new(a).add(n));
        prop_assert_eq!(to.get(), (a + n) % Psn::COUNT);
        prop_assert_eq!(to.sub(n), from);
        let distance = to.distance(from);
        prop_assert_eq!(distance.rem_euclid(Psn::COUNT as i32) as u32, n);
        prop_assert!((-(1 << 23)..1 << 23).contains(&distance));
        prop_assert_eq!(from.add(distance.cast_unsigned()), to);
    }

    #[test]
    fn msn_arithmetic_wraps(a: u16, n: u16) {
        let (from, to) = (Msn::new(a), Msn::new(a).add(n));
        prop_assert_eq!(to.distance(from), n.cast_signed());
        prop_assert_eq!(to.sub(n), from);
        prop_assert_eq!(from.next().distance(from), 1);
    }

    /// Decision 2.
    #[test]
    fn an_entropy_value_survives_the_trip(ev: u32, upper_label in 0..16_u32) {
        for mode in [EntropyMode::Stev(StevOrder::SportHigh), EntropyMode::Stev(StevOrder::SportLow), EntropyMode::Udp] {
            let placed = mode.place(Ev(ev));
            let sent = if mode.width_bits() == 16 { ev & 0xffff } else { ev };
            // The upper four bits of the flow label are nobody's.
            let label = placed.flow_label | upper_label << 16;
            prop_assert!(placed.flow_label <= 0xffff);
            prop_assert_eq!(mode.extract(placed.src_port, label), Ev(sent));
        }
    }

    #[test]
    fn icrc_agrees_with_a_bit_by_bit_one(
        ipv6: bool,
        mut l3 in vec(any::<u8>(), 53..400),
        payload in vec(any::<u8>(), 0..300),
        pad in vec(any::<u8>(), 0..4),
    ) {
        l3[0] = if ipv6 { 0x60 | (l3[0] & 15) } else { 0x45 };
        let whole = [&l3[..], &payload, &pad].concat();
        let icrc = reference_icrc(&whole);
        prop_assert_eq!(icrc::compute(&l3, &payload, &pad), icrc);
        let mut frame = [&whole[..], &icrc].concat();
        prop_assert!(icrc::verify_frame(&frame));
        *frame.last_mut().unwrap() ^= 1;
        prop_assert!(!icrc::verify_frame(&frame));
    }

    /// Decision 1.
    #[test]
    fn both_ports_are_accepted_beside_the_configured_one(configured: u16, port: u16) {
        prop_assert!(is_mrc_port(4791, configured) && is_mrc_port(4971, configured));
        prop_assert!(is_mrc_port(configured, configured));
        prop_assert_eq!(is_mrc_port(port, configured), [4791, 4971, configured].contains(&port));
    }
}

#[test]
fn numbers_drop_bits_that_are_too_many() {
    assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
    assert_eq!(Qpn::new(0x1234_5678).get(), 0x34_5678);
    assert_eq!(Qpn::new(0x1234_5678).low16(), 0x5678);
}

#[test]
fn stev_puts_the_upper_half_into_the_port() {
    let placed = EntropyMode::default().place(Ev(0xc001_1234));
    assert_eq!((placed.src_port, placed.flow_label), (0xc001, 0x1234));
    let swapped = EntropyMode::Stev(StevOrder::SportLow).place(Ev(0xc001_1234));
    assert_eq!((swapped.src_port, swapped.flow_label), (0x1234, 0xc001));
}
