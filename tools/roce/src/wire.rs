//! The packets of RoCEv2 RC that a write needs (InfiniBand specification, volume 1, chapter 9 and annex A17).
//!
//! Headers are bytes, so that switches hash and mark them as those of any transport. Payloads are lengths alone, and the iCRC is four bytes of
//! which only the length counts: the network tells a receiver of flipped bits.

use std::net::Ipv6Addr;

use spindrift::wire::headers::{ETHERNET_LEN, ETHERTYPE_IPV6, IPV6_LEN, PROTOCOL_UDP, UDP_LEN};
use spindrift::wire::{Aeth, ICRC_LEN, ImmDt, Psn, Qpn, Reth, UDP_PORT_ROCE};

/// Bytes of the BTH.
const BTH_LEN: usize = 12;
/// Bytes that are zero in a CNP (annex A17.9.3).
const CNP_RESERVED: usize = 16;
/// The longest headers: those of a write of one packet with immediate data.
const HEAD_ROOM: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN + BTH_LEN + Reth::LEN + ImmDt::LEN;
const HOP_LIMIT: u8 = 64;
/// ECN-capable (RFC 3168): data may be marked.
const ECT0: u8 = 0b10;
/// The partition that every port is in.
const DEFAULT_PKEY: u16 = 0xffff;
/// Backward explicit congestion notification, in the fifth byte of the BTH.
const BECN: u8 = 0x40;

/// What a packet is. Numbers are those of the specification's table 38, and of annex A17 for the CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// The first of several packets of a write.
    WriteFirst = 0x06,
    /// One between.
    WriteMiddle = 0x07,
    /// The last.
    WriteLast = 0x08,
    /// The last, with immediate data.
    WriteLastImm = 0x09,
    /// A write of one packet.
    WriteOnly = 0x0a,
    /// The same with immediate data.
    WriteOnlyImm = 0x0b,
    /// An acknowledgement, positive or negative.
    Acknowledge = 0x11,
    /// A congestion notification packet.
    Cnp = 0x81,
}

impl Opcode {
    /// The packet at this place of a write.
    pub const fn write(first: bool, last: bool, imm: bool) -> Self {
        match (first, last, imm) {
            (true, true, true) => Self::WriteOnlyImm,
            (true, true, false) => Self::WriteOnly,
            (true, false, _) => Self::WriteFirst,
            (false, false, _) => Self::WriteMiddle,
            (false, true, true) => Self::WriteLastImm,
            (false, true, false) => Self::WriteLast,
        }
    }

    const fn of(code: u8) -> Option<Self> {
        Some(match code {
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x11 => Self::Acknowledge,
            0x81 => Self::Cnp,
            _ => return None,
        })
    }

    /// Whether a message begins with it.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm)
    }

    /// Whether a message ends with it.
    pub const fn is_last(self) -> bool {
        matches!(self, Self::WriteLast | Self::WriteLastImm | Self::WriteOnly | Self::WriteOnlyImm)
    }

    const fn has_imm(self) -> bool {
        matches!(self, Self::WriteLastImm | Self::WriteOnlyImm)
    }
}

/// A packet of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Which one of its message it is.
    pub opcode: Opcode,
    /// Its number.
    pub psn: Psn,
    /// Whether the requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Of a message's first packet: where the message goes.
    pub reth: Option<Reth>,
    /// Of a message's last packet, if it has any.
    pub imm: Option<u32>,
    /// Bytes of payload.
    pub len: u32,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A part of a write.
    Data(Data),
    /// An acknowledgement of everything up to a PSN, or, negative, of everything before it.
    Ack {
        /// The PSN.
        psn: Psn,
        /// Which of the two, and how many messages are complete.
        aeth: Aeth,
    },
    /// Congestion was seen.
    Cnp,
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The queue pair that it is for.
    pub to: Qpn,
    /// What it carries.
    pub content: Content,
    /// Whether a switch marked it.
    pub marked: bool,
}

/// The way of a queue pair's packets through the network: one UDP source port, so that ECMP leads all of them the same way (annex A17.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The plane.
    pub plane: u8,
    /// This host's port.
    pub from: Ipv6Addr,
    /// The peer's.
    pub to: Ipv6Addr,
    /// What distinguishes the flow.
    pub source_port: u16,
}

/// The headers of a packet from Ethernet on, and how many bytes follow.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEAD_ROOM],
    len: usize,
    /// Payload, pad and iCRC.
    pub follows: u32,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Writes a packet that takes this path.
    pub fn new(path: &Path, to: Qpn, content: &Content, dscp: u8) -> Self {
        let (code, psn, ack_req, becn, len) = match content {
            Content::Data(data) => (data.opcode, data.psn, data.ack_req, 0, data.len),
            Content::Ack { psn, .. } => (Opcode::Acknowledge, *psn, false, 0, 0),
            Content::Cnp => (Opcode::Cnp, Psn::new(0), false, BECN, 0),
        };
        let pad = pad(len);
        let extra = match content {
            Content::Data(data) => {
                let (reth, imm) = (data.reth.map_or(0, |_| Reth::LEN), data.imm.map_or(0, |_| ImmDt::LEN));
                reth + imm
            }
            Content::Ack { .. } => Aeth::LEN,
            Content::Cnp => CNP_RESERVED,
        };
        let follows = len + pad + ICRC_LEN as u32;
        let udp_len = (UDP_LEN + BTH_LEN + extra) as u32 + follows;
        let ecn = if matches!(content, Content::Data(_)) { ECT0 } else { 0 };
        let mut head = Self { bytes: [0; HEAD_ROOM], len: 0, follows };
        head.put(&[2, 0, 0, path.plane, 0, 2, 2, 0, 0, path.plane, 0, 1]);
        head.put(&ETHERTYPE_IPV6.to_be_bytes());
        let class = dscp << 2 | ecn;
        let [high, low] = (udp_len as u16).to_be_bytes();
        head.put(&[0x60 | class >> 4, class << 4, 0, 0, high, low, PROTOCOL_UDP, HOP_LIMIT]);
        head.put(&path.from.octets());
        head.put(&path.to.octets());
        head.put(&path.source_port.to_be_bytes());
        head.put(&UDP_PORT_ROCE.to_be_bytes());
        // No UDP checksum: the iCRC covers the packet (annex A17.4.2).
        head.put(&[high, low, 0, 0]);
        let [k0, k1] = DEFAULT_PKEY.to_be_bytes();
        head.put(&[code as u8, (pad as u8) << 4, k0, k1]);
        let [_, q0, q1, q2] = to.get().to_be_bytes();
        let [_, p0, p1, p2] = psn.get().to_be_bytes();
        head.put(&[becn, q0, q1, q2, u8::from(ack_req) << 7, p0, p1, p2]);
        match content {
            Content::Data(data) => {
                if let Some(reth) = data.reth {
                    head.put(&reth.to_bytes());
                }
                if let Some(imm) = data.imm {
                    head.put(&ImmDt(imm).to_bytes());
                }
            }
            Content::Ack { aeth, .. } => head.put(&aeth.to_bytes()),
            Content::Cnp => head.put(&[0; CNP_RESERVED]),
        }
        head
    }
}

/// Bytes that make a payload a multiple of four.
const fn pad(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

/// Reads a packet: its headers from Ethernet on, and how many bytes follow. `None` if it is none of RoCEv2, or its lengths do not fit.
pub fn read(head: &[u8], follows: u32) -> Option<Datagram> {
    let (_, ip) = head.split_at_checked(ETHERNET_LEN)?;
    let (ip, udp) = ip.split_first_chunk::<IPV6_LEN>()?;
    let (udp, rest) = udp.split_first_chunk::<UDP_LEN>()?;
    let (bth, mut rest) = rest.split_first_chunk::<BTH_LEN>()?;
    let &[version, class, _, _, _, _, next, ..] = ip;
    let &[_, _, to0, to1, len0, len1, ..] = udp;
    let udp_len = u16::from_be_bytes([len0, len1]);
    let is_roce =
        version >> 4 == 6 && next == PROTOCOL_UDP && u16::from_be_bytes([to0, to1]) == UDP_PORT_ROCE;
    let whole = (UDP_LEN + BTH_LEN + rest.len()) as u64 + u64::from(follows);
    // A trimmed packet is shorter than it says.
    if !is_roce || u64::from(udp_len) != whole {
        return None;
    }
    let &[code, flags, _, _, _, q0, q1, q2, ack, p0, p1, p2] = bth;
    let [pad, version] = [flags >> 4 & 3, flags & 0xf];
    let (opcode, psn) = (Opcode::of(code)?, Psn::new(u32::from_be_bytes([0, p0, p1, p2])));
    let to = Qpn::new(u32::from_be_bytes([0, q0, q1, q2]));
    if version != 0 {
        return None;
    }
    let content = match opcode {
        Opcode::Acknowledge => {
            let aeth = Aeth::from_bytes(rest.split_first_chunk()?.0);
            Content::Ack { psn, aeth }
        }
        Opcode::Cnp => Content::Cnp,
        _ => {
            let reth = if opcode.is_first() {
                let (reth, behind) = rest.split_first_chunk()?;
                rest = behind;
                Some(Reth::from_bytes(reth))
            } else {
                None
            };
            let imm =
                if opcode.has_imm() { Some(ImmDt::from_bytes(rest.split_first_chunk()?.0).0) } else { None };
            let len = follows.checked_sub(ICRC_LEN as u32 + u32::from(pad))?;
            Content::Data(Data { opcode, psn, ack_req: ack >> 7 == 1, reth, imm, len })
        }
    };
    let marked = class >> 4 & 3 == 3;
    Some(Datagram { to, content, marked })
}

#[cfg(test)]
mod tests {
    use spindrift::wire::NakCode;

    use super::*;

    fn path() -> Path {
        let address = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
        Path { plane: 1, from: address(1), to: address(2), source_port: 0xc123 }
    }

    fn contents() -> Vec<Content> {
        let reth = Some(Reth { va: 1 << 40 | 5, rkey: 7, dma_len: 9_000 });
        let data = |opcode, reth, imm, len| {
            Content::Data(Data { opcode, psn: Psn::new(0xff_fffe), ack_req: len < 4_096, reth, imm, len })
        };
        vec![
            data(Opcode::WriteFirst, reth, None, 4_096),
            data(Opcode::WriteMiddle, None, None, 4_096),
            data(Opcode::WriteLast, None, None, 1),
            data(Opcode::WriteLastImm, None, Some(0xdead_beef), 4_095),
            data(Opcode::WriteOnly, reth, None, 0),
            data(Opcode::WriteOnlyImm, reth, Some(3), 2),
            Content::Ack { psn: Psn::new(17), aeth: Aeth::ack(0xab_cdef) },
            Content::Ack { psn: Psn::new(0), aeth: Aeth::nak(NakCode::PsnSequence, 5) },
            Content::Cnp,
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for content in contents() {
            let head = Head::new(&path(), Qpn::new(0xab_cdef), &content, 26);
            let read = read(head.bytes(), head.follows);
            assert_eq!(read, Some(Datagram { to: Qpn::new(0xab_cdef), content, marked: false }));
        }
    }

    /// Offsets and values from the specification, not from the code: Ethernet 14, IPv6 40, UDP 8, BTH 12.
    #[test]
    fn headers_are_where_the_specification_has_them() {
        let data = Data {
            opcode: Opcode::WriteOnlyImm,
            psn: Psn::new(0x01_0203),
            ack_req: true,
            reth: Some(Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, dma_len: 5 }),
            imm: Some(0xcafe_f00d),
            len: 5,
        };
        let head = Head::new(&path(), Qpn::new(0x0a_0b0c), &Content::Data(data), 26);
        let bytes = head.bytes();
        assert_eq!((bytes.len(), head.follows), (94, 5 + 3 + 4));
        assert_eq!(bytes[12..14], [0x86, 0xdd]);
        // Traffic class 26 << 2 | ECT(0); the payload is all from UDP on.
        assert_eq!(bytes[14..22], [0x66, 0xa0, 0, 0, 0, 52, 17, 64]);
        assert_eq!(bytes[54..62], [0xc1, 0x23, 0x12, 0xb7, 0, 52, 0, 0]);
        assert_eq!(bytes[62..74], [0x0b, 0x30, 0xff, 0xff, 0, 10, 11, 12, 0x80, 1, 2, 3]);
        assert_eq!(bytes[74..82], 0x1122_3344_5566_7788_u64.to_be_bytes());
        assert_eq!(bytes[90..94], [0xca, 0xfe, 0xf0, 0x0d]);
        let cnp = Head::new(&path(), Qpn::new(1), &Content::Cnp, 48);
        assert_eq!((cnp.bytes().len(), cnp.follows), (74 + 16, 4));
        // Not capable of ECN, opcode 0x81, and BECN.
        assert_eq!(
            (cnp.bytes()[14..16].to_vec(), cnp.bytes()[62], cnp.bytes()[66]),
            (vec![0x6c, 0], 0x81, 0x40)
        );
    }

    #[test]
    fn a_mark_is_seen() {
        for content in contents() {
            let mut head = Head::new(&path(), Qpn::new(9), &content, 26);
            head.bytes[15] |= 0x30;
            assert!(read(head.bytes(), head.follows).unwrap().marked);
        }
    }

    /// Cut short, of another length than it says, of another protocol, or of a version that does not exist.
    #[test]
    fn what_is_none_is_refused() {
        for content in contents() {
            let head = Head::new(&path(), Qpn::new(9), &content, 26);
            let bytes = head.bytes();
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut], head.follows), None, "{content:?} cut to {cut}");
            }
            assert_eq!(read(bytes, head.follows + 1), None);
            assert_eq!(read(bytes, head.follows - 1), None);
            for (at, flip) in [(14, 0x10), (20, 1), (56, 1), (62, 0x40), (63, 1)] {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= flip;
                assert_eq!(read(&bytes, head.follows), None, "byte {at} of {content:?}");
            }
        }
    }
}
