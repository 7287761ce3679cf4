//! Messages of unreliable datagrams (UD) on the control socket, without socket or queue pair.
//!
//! UD is what programs use to find each other before they have a reliable connection: UCX and MPI send a few messages of it per peer. It
//! promises nothing, so nothing of MRC is needed.

use std::net::{IpAddr, SocketAddr};

use crate::handshake::{MAGIC, Number};
use spindrift_programs::gid;

/// Bytes of the global routing header (GRH), which a receiver finds before the payload.
pub(crate) const GRH: usize = 40;
/// Bytes before the payload: name and version (4), kind (1), flags (1), two bytes of 0, sender's and receiver's number, `Q_Key` and
/// immediate (4 each), all in network byte order; then the GRH.
const HEADER: usize = 24 + GRH;
/// The kind of these messages; those of the handshake have others.
const KIND: u8 = 2;
const HAS_IMM: u8 = 1;
/// The next header of a GRH: what follows is of InfiniBand.
const IBA: u8 = 0x1b;
/// Bytes between a GRH and the payload on InfiniBand, and after the payload: BTH, DETH and ICRC.
const IB_HEADERS: usize = 12 + 8 + 4;

/// The way to a port of another host, as an address handle has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) from: Number,
    pub(crate) to: Number,
    pub(crate) qkey: u32,
    pub(crate) imm: Option<u32>,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub(crate) head: Head,
    /// As the receiver finds it.
    pub(crate) grh: &'a [u8; GRH],
    pub(crate) payload: &'a [u8],
}

impl Route {
    /// InfiniBand 1.4, section 8.3. It has the shape of an IPv6 header for every family: that is what programs read.
    fn grh(&self, len: usize) -> [u8; GRH] {
        let mut grh = [0; GRH];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let len = (len.next_multiple_of(4) + IB_HEADERS) as u16;
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&len.to_be_bytes());
        grh[6] = IBA;
        grh[7] = self.hop_limit;
        grh[8..24].copy_from_slice(&self.sgid);
        grh[24..].copy_from_slice(&self.dgid);
        grh
    }

    /// The way back to the sender of a message, by the GRH of that.
    pub(crate) fn back(grh: &[u8; GRH]) -> Self {
        let [a, b, c, d, ..] = *grh;
        let first = u32::from_be_bytes([a, b, c, d]);
        let gid = |at: usize| core::array::from_fn(|byte| grh[at + byte]);
        Self {
            sgid: gid(24),
            dgid: gid(8),
            flow_label: first & 0xf_ffff,
            traffic_class: (first >> 20) as u8,
            hop_limit: u8::MAX,
        }
    }
}

/// Writes what comes before the payload of `len` bytes.
pub(crate) fn begin(head: &Head, route: &Route, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + len);
    bytes.extend(MAGIC);
    bytes.extend([KIND, if head.imm.is_some() { HAS_IMM } else { 0 }, 0, 0]);
    for word in [head.from.get(), head.to.get(), head.qkey, head.imm.unwrap_or(0)] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(route.grh(len));
    bytes
}

/// A message that has come from `source` to a control socket of the host `own`, where control ports begin with `first_port`. `None`: it is
/// none, or not from whom it says. A sender has the control port that its number names, so other users of its host cannot speak for it.
/// `is_of` tells whether a host has an address.
pub(crate) fn decode(
    bytes: &[u8],
    source: SocketAddr,
    own: IpAddr,
    first_port: u16,
    is_of: impl Fn(IpAddr, IpAddr) -> bool,
) -> Option<Datagram<'_>> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (&[KIND, flags @ 0..=HAS_IMM, 0, 0], rest) = rest.split_first_chunk::<4>()? else { return None };
    let (words, rest) = rest.split_first_chunk::<16>()?;
    let (grh, payload) = rest.split_first_chunk::<GRH>()?;
    let word = |at: usize| u32::from_be_bytes(core::array::from_fn(|byte| words[at + byte]));
    let (from, to) = (word(0), word(4));
    if *magic != MAGIC || from.max(to) >= 1 << 24 || grh[0] >> 4 != 6 {
        return None;
    }
    let [from, to] = [from, to].map(Number::from_verbs);
    let back = Route::back(grh);
    let port = first_port.checked_add(from.process() as u16)?;
    let honest = is_of(gid::address(back.dgid), source.ip()) && source.port() == port;
    if !honest || gid::address(back.sgid) != own {
        return None;
    }
    let imm = (flags == HAS_IMM).then(|| word(12));
    Some(Datagram { head: Head { from, to, qkey: word(8), imm }, grh, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head =
        Head { from: Number::new(3, 70), to: Number::new(0, 5), qkey: 0x1111_1111, imm: Some(0x0102_0304) };

    fn same(host: IpAddr, address: IpAddr) -> bool {
        host == address
    }

    fn addresses() -> [IpAddr; 2] {
        ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap())
    }

    fn route() -> Route {
        let [from, to] = addresses().map(gid::of);
        Route { sgid: from, dgid: to, flow_label: 0xf_1234, traffic_class: 0x12, hop_limit: 7 }
    }

    fn message() -> Vec<u8> {
        let mut bytes = begin(&HEAD, &route(), 5);
        bytes.extend(b"hello");
        bytes
    }

    #[test]
    fn a_message_arrives_with_its_header() {
        let [from, to] = addresses();
        let bytes = message();
        let found = decode(&bytes, SocketAddr::new(from, 103), to, 100, same).unwrap();
        assert_eq!((found.head, found.payload), (HEAD, &b"hello"[..]));
        // Version 6, traffic class, flow label; 8 bytes with padding, and 24 of headers; the next header; the hop limit.
        assert_eq!(found.grh[..8], [0x61, 0x2f, 0x12, 0x34, 0, 32, 0x1b, 7]);
        assert_eq!((&found.grh[8..24], &found.grh[24..]), (&gid::of(from)[..], &gid::of(to)[..]));
        let back = Route::back(found.grh);
        assert_eq!((back.sgid, back.dgid, back.hop_limit), (route().dgid, route().sgid, 255));
        assert_eq!((back.flow_label, back.traffic_class), (0xf_1234, 0x12));
        let plain = begin(&Head { imm: None, ..HEAD }, &route(), 0);
        let found = decode(&plain, SocketAddr::new(from, 103), to, 100, same).unwrap();
        assert_eq!((found.head.imm, found.payload.len()), (None, 0));
    }

    #[test]
    fn what_is_no_message_is_dropped() {
        let [from, to] = addresses();
        let whole = message();
        let source = SocketAddr::new(from, 103);
        for len in 0..HEADER {
            assert_eq!(decode(&whole[..len], source, to, 100, same), None, "{len} bytes");
        }
        // The name, the kind, the flags, the zeros, the high byte of either number, the version of the GRH.
        for at in [0, 3, 4, 5, 6, 7, 8, 12, 24] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x12;
            assert_eq!(decode(&bytes, source, to, 100, same), None, "byte {at}");
        }
        assert_eq!(crate::handshake::Hello::decode(&whole), None);
    }

    #[test]
    fn nobody_speaks_for_another() {
        let [from, to] = addresses();
        let bytes = message();
        for (address, port, own) in [(to, 103, to), (from, 102, to), (from, 100, to), (from, 103, from)] {
            assert_eq!(
                decode(&bytes, SocketAddr::new(address, port), own, 100, same),
                None,
                "{address} {port} {own}"
            );
        }
        // Another plane of the sender is as good as its first one.
        let second = |host, address| host == from && address == IpAddr::from([10, 0, 0, 9]);
        let source = SocketAddr::new(IpAddr::from([10, 0, 0, 9]), 103);
        assert!(decode(&bytes, source, to, 100, second).is_some());
        assert_eq!(decode(&bytes, source, to, 100, same), None);
        // Control ports end with the last UDP port.
        assert_eq!(decode(&bytes, SocketAddr::new(from, 2), to, u16::MAX, same), None);
    }
}
