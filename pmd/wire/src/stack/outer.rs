//! The outer headers of source routing: IPv6, and a segment routing header where one address cannot hold the path.

use std::net::Ipv6Addr;

use spindrift_srv6::{EvProfile, Segments};

use crate::{Entropy, EntropyMode};

use super::{IPV6_LEN, PROTOCOL_ROUTING, ROUTING_LEN, SEGMENT_LEN, class_and_label, ipv6, routing};

/// The outer packet that takes packets along a path (RFC 8986 section 5.2, `H.Encaps.Red`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Source address, to which a switch reports that it cannot forward the packet.
    pub src: Ipv6Addr,
    /// The addresses that a packet visits, by its entropy value. The first one is its destination address; the others, if
    /// there are any, are listed in a segment routing header (RFC 8754 section 2).
    pub path: EvProfile,
    /// Hops that the outer packet may take.
    pub hop_limit: u8,
}

impl Outer {
    /// Bytes of these headers: 40, and 8 plus 16 for each address in a routing header.
    pub fn header_len(&self) -> usize {
        match self.path.addresses() {
            1 => IPV6_LEN,
            count => IPV6_LEN + ROUTING_LEN + SEGMENT_LEN * (count - 1),
        }
    }
}

/// These headers as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OuterHeaders {
    len: u8,
    /// With the path of entropy value 0.
    bytes: [u8; Self::MAX_LEN],
    path: EvProfile,
    entropy: EntropyMode,
}

impl OuterHeaders {
    /// Bytes of the longest: a routing header of four segments.
    pub(super) const MAX_LEN: usize = IPV6_LEN + ROUTING_LEN + SEGMENT_LEN * (Segments::CAPACITY - 1);

    /// The headers in front of a packet of `protocol`.
    pub(super) fn new(outer: &Outer, entropy: EntropyMode, protocol: u8) -> Self {
        let (len, path) = (outer.header_len() as u8, outer.path.clone());
        let segments = path.base();
        let mut bytes = [0; Self::MAX_LEN];
        ipv6::HOP_LIMIT.set(&mut bytes, outer.hop_limit);
        ipv6::SRC.set(&mut bytes, outer.src.octets());
        ipv6::DST.set(&mut bytes, segments.destination().octets());
        ipv6::NEXT_HEADER.set(&mut bytes, protocol);
        let later = segments.later();
        if later.is_empty() {
            return Self { len, bytes, path, entropy };
        }
        ipv6::NEXT_HEADER.set(&mut bytes, PROTOCOL_ROUTING);
        let count = later.len() as u8;
        let (_, behind) = bytes.split_at_mut(IPV6_LEN);
        if let Some((header, list)) = behind.split_first_chunk_mut::<ROUTING_LEN>() {
            routing::NEXT_HEADER.set(header, protocol);
            routing::LEN.set(header, count * (SEGMENT_LEN / 8) as u8);
            routing::TYPE.set(header, Self::SEGMENT_ROUTING);
            // The destination is not listed, so the first segment that is comes next.
            routing::SEGMENTS_LEFT.set(header, count);
            routing::LAST_ENTRY.set(header, count - 1);
            let (places, _) = list.as_chunks_mut();
            for (place, segment) in places.iter_mut().zip(later.iter().rev()) {
                *place = segment.octets();
            }
        }
        Self { len, bytes, path, entropy }
    }

    /// The type of a segment routing header.
    const SEGMENT_ROUTING: u8 = 4;

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Writes the headers of an outer packet around `inner_len` bytes into `out`, which has their length. `false` if
    /// the length exceeds what IP allows.
    pub(super) fn write(
        &self,
        out: &mut [u8],
        entropy: Entropy,
        traffic_class: u8,
        inner_len: usize,
    ) -> bool {
        let Ok(payload_len) = u16::try_from(self.len() - IPV6_LEN + inner_len) else { return false };
        out.copy_from_slice(self.bytes.get(..out.len()).unwrap_or_default());
        let ev = self.entropy.extract(entropy.src_port, entropy.flow_label);
        for (at, address) in self.path.varying(ev.0) {
            let place = match at {
                0 => IPV6_LEN - SEGMENT_LEN,
                // The last segment is listed first.
                later => out.len() - SEGMENT_LEN * later,
            };
            if let Some(room) = out.get_mut(place..place + SEGMENT_LEN) {
                room.copy_from_slice(&address.octets());
            }
        }
        let Some(ip) = out.first_chunk_mut::<IPV6_LEN>() else { return false };
        ipv6::VERSION_CLASS_LABEL.set(ip, class_and_label(traffic_class, entropy));
        ipv6::PAYLOAD_LEN.set(ip, payload_len);
        true
    }
}
