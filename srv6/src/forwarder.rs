//! What a switch does to a packet: a table of segments of its own, and a table of routes.
//!
//! The endpoint behaviours are those of RFC 8986 with the NEXT-CSID flavor (RFC 9800 section 4.1), as Linux has them
//! (`seg6local`) and as the static tables of a source-routed fabric use them (MRC paper, section 2.3). No packet changes
//! the tables.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::F3216;

/// What a switch does with packets for one of its segments. `T` names a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior<T> {
    /// uN, `End` with NEXT-CSID: the next uSID moves up, and the new address is looked up.
    Node,
    /// uA, `End.X` with NEXT-CSID: the next uSID moves up, and the packet goes to this next hop.
    Adjacency(T),
    /// uDT6, `End.DT6`: the outer packet is taken off.
    Decapsulate,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a, T> {
    /// It leaves, as it is now, for this next hop.
    Forward(&'a T),
    /// It is for an address of the switch's own.
    Deliver,
    /// It was in an outer packet that ends here. The inner one, which may be for anybody, starts at this offset.
    Inner(usize),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Dropped {
    /// It is too short for an IPv6 header or not of version 6.
    #[error("the packet is no IPv6 packet")]
    NotIpv6,
    /// It may not travel further.
    #[error("the hop limit is used up")]
    HopLimit,
    /// No route fits its destination.
    #[error("no route fits {0}")]
    NoRoute(Ipv6Addr),
    /// A segment of this switch is its last one, and nothing says where it goes from there.
    #[error("the path ends in {0}, which passes packets on")]
    PathEnds(Ipv6Addr),
    /// Its routing header is cut short or contradicts itself.
    #[error("the segment routing header is malformed")]
    RoutingHeader,
    /// Nothing is inside the packet that ends here, or something else than IPv6.
    #[error("{0} takes the outer packet off, and there is none")]
    NoInner(Ipv6Addr),
}

/// Why an entry cannot be added to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A prefix with something behind it.
    #[error("there are bits behind the prefix {0}; write {trunc}", trunc = .0.trunc())]
    HostBits(Ipv6Net),
    /// Two entries for the same.
    #[error("there is an entry for {0} already")]
    Twice(Ipv6Net),
    /// A route must lead somewhere.
    #[error("the route to {0} has no next hop")]
    NoNextHop(Ipv6Net),
    /// A segment is a block and one uSID.
    #[error("{0} is not one uSID; a segment of a switch is a block and one uSID, as in fcbb:bb00:a01::")]
    NotOneUsid(F3216),
}

/// A switch. `T` is what it calls a next hop: a port, or a port and an address.
#[derive(Clone, Debug)]
pub struct Forwarder<T> {
    own: Vec<Ipv6Addr>,
    /// By block and uSID, in the low 48 bits.
    segments: BTreeMap<u64, Behavior<T>>,
    /// By length of their prefixes, the longest first.
    routes: Vec<Routes<T>>,
    hash_key: u64,
}

/// The routes whose prefixes have one length.
#[derive(Clone, Debug)]
struct Routes<T> {
    len: u8,
    /// The bits of the prefix.
    mask: u128,
    next_hops: BTreeMap<u128, Box<[T]>>,
}

impl<T> Default for Forwarder<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T> Forwarder<T> {
    /// A switch that drops everything. Where a route has several next hops, the flow decides with `hash_key`: switches with the same
    /// key that are asked one after the other decide alike.
    pub fn new(hash_key: u64) -> Self {
        Self { own: Vec::new(), segments: BTreeMap::new(), routes: Vec::new(), hash_key }
    }

    /// Adds an address of the switch's own.
    pub fn add_own(&mut self, address: Ipv6Addr) {
        self.own.push(address);
    }

    /// Adds a segment: a carrier of one uSID, the switch's or a link's.
    ///
    /// # Errors
    /// If it is not one uSID, or was added before.
    pub fn add_segment(&mut self, segment: F3216, behavior: Behavior<T>) -> Result<(), TableError> {
        if segment.len() != 1 {
            return Err(TableError::NotOneUsid(segment));
        }
        if self.segments.contains_key(&segment.locator()) {
            return Err(TableError::Twice(segment.prefix()));
        }
        self.segments.insert(segment.locator(), behavior);
        Ok(())
    }

    /// Adds a route: packets to addresses of a prefix that no longer prefix has go to one of `next_hops`.
    ///
    /// # Errors
    /// If there is no next hop, something behind the prefix, or a route for it.
    pub fn add_route(&mut self, to: Ipv6Net, next_hops: impl Into<Box<[T]>>) -> Result<(), TableError> {
        let next_hops = next_hops.into();
        if to.trunc() != to {
            return Err(TableError::HostBits(to));
        }
        if next_hops.is_empty() {
            return Err(TableError::NoNextHop(to));
        }
        let (len, mask) = (to.prefix_len(), to.netmask().to_bits());
        let at = self.routes.partition_point(|routes| routes.len > len);
        if self.routes.get(at).is_none_or(|routes| routes.len != len) {
            self.routes.insert(at, Routes { len, mask, next_hops: BTreeMap::new() });
        }
        match self.routes[at].next_hops.entry(to.addr().to_bits()) {
            Entry::Occupied(_) => Err(TableError::Twice(to)),
            Entry::Vacant(entry) => {
                entry.insert(next_hops);
                Ok(())
            }
        }
    }

    /// What becomes of `packet`, which starts with its IPv6 header. What leaves has been changed as it leaves: a uSID further, with
    /// a smaller hop limit. If the packet is dropped, its bytes mean nothing any more.
    ///
    /// One call is one hop, whatever number of the switch's own segments the packet visits: as in Linux, the hop limit
    /// falls by one. (RFC 9800 has it fall at each.)
    ///
    /// # Errors
    /// Why the packet is dropped.
    pub fn forward(&self, packet: &mut [u8]) -> Result<Verdict<'_, T>, Dropped> {
        let mut packet = Ipv6::new(packet)?;
        // Ends: each turn takes a uSID off the destination, or a segment off the routing header.
        let next_hop = loop {
            let destination = packet.destination();
            if self.own.contains(&destination) {
                return Ok(Verdict::Deliver);
            }
            let Some(behavior) = self.segments.get(&locator(destination)) else {
                break self.route(&packet, destination)?;
            };
            match behavior {
                Behavior::Node => packet.advance()?,
                Behavior::Adjacency(next_hop) => {
                    packet.advance()?;
                    break next_hop;
                }
                Behavior::Decapsulate => {
                    return packet.inner().map(Verdict::Inner).ok_or(Dropped::NoInner(destination));
                }
            }
        };
        packet.pass_on()?;
        Ok(Verdict::Forward(next_hop))
    }

    fn route(&self, packet: &Ipv6<'_>, destination: Ipv6Addr) -> Result<&T, Dropped> {
        let bits = destination.to_bits();
        let next_hops = self.routes.iter().find_map(|routes| routes.next_hops.get(&(bits & routes.mask)));
        match next_hops.map(|next_hops| &**next_hops) {
            None | Some([]) => Err(Dropped::NoRoute(destination)),
            Some([one]) => Ok(one),
            Some(several) => {
                let at = (u128::from(packet.flow(self.hash_key)) * several.len() as u128) >> 64;
                several.get(at as usize).ok_or(Dropped::NoRoute(destination))
            }
        }
    }
}

impl F3216 {
    /// The prefix of all addresses that start with the carrier's block and first uSID, as a switch's table has it.
    pub fn prefix(self) -> Ipv6Net {
        let first = Ipv6Addr::from_bits(u128::from(self.locator()) << (128 - LOCATOR_BITS));
        Ipv6Net::new_assert(first, LOCATOR_BITS as u8)
    }
}

/// Bits of a block and a uSID.
const LOCATOR_BITS: u32 = 48;
/// Bits behind them.
const ARGUMENT: u128 = u128::MAX >> LOCATOR_BITS;
const USID_BITS: u32 = 16;

const fn locator(address: Ipv6Addr) -> u64 {
    (address.to_bits() >> (128 - LOCATOR_BITS)) as u64
}

pub(crate) const HEADER_LEN: usize = 40;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
pub(crate) const DESTINATION: usize = 24;
pub(crate) const IPV6: u8 = 41;
const UDP: u8 = 17;
pub(crate) const ROUTING: u8 = 43;
/// Routing type of a segment routing header (RFC 8754 section 2).
pub(crate) const SEGMENT_ROUTING: u8 = 4;

/// A packet with at least an IPv6 header.
struct Ipv6<'a> {
    header: &'a mut [u8; HEADER_LEN],
    rest: &'a mut [u8],
}

impl<'a> Ipv6<'a> {
    fn new(packet: &'a mut [u8]) -> Result<Self, Dropped> {
        let (header, rest) = packet.split_first_chunk_mut().ok_or(Dropped::NotIpv6)?;
        if header[0] >> 4 != 6 {
            return Err(Dropped::NotIpv6);
        }
        Ok(Self { header, rest })
    }

    fn destination(&self) -> Ipv6Addr {
        self.header.last_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |&octets| octets.into())
    }

    fn set_destination(&mut self, address: Ipv6Addr) {
        self.header[DESTINATION..].copy_from_slice(&address.octets());
    }

    /// Goes to the next uSID, or where there is none to the next segment of the routing header.
    fn advance(&mut self) -> Result<(), Dropped> {
        let destination = self.destination();
        let argument = destination.to_bits() & ARGUMENT;
        let next = if argument == 0 {
            self.next_segment()?.ok_or(Dropped::PathEnds(destination))?
        } else {
            // The argument takes the place of the uSID, and zeros follow.
            let block = destination.to_bits() & !(u128::MAX >> (LOCATOR_BITS - USID_BITS));
            Ipv6Addr::from_bits(block | argument << USID_BITS)
        };
        self.set_destination(next);
        Ok(())
    }

    /// The routing header, if there is one.
    fn routing(&mut self) -> Result<Option<&mut [u8]>, Dropped> {
        if self.header[NEXT_HEADER] != ROUTING {
            return Ok(None);
        }
        let &[_, units, kind, left, last, ..] = &*self.rest else { return Err(Dropped::RoutingHeader) };
        let header = self.rest.get_mut(..8 * (usize::from(units) + 1)).ok_or(Dropped::RoutingHeader)?;
        // Two units of eight bytes for each segment, of which `last` is the highest index.
        let segments = usize::from(last) + 1;
        let fits = 2 * segments <= usize::from(units) && usize::from(left) <= segments;
        if kind != SEGMENT_ROUTING || !fits {
            return Err(Dropped::RoutingHeader);
        }
        Ok(Some(header))
    }

    /// Takes the next segment off the routing header (RFC 8986 section 4.1).
    fn next_segment(&mut self) -> Result<Option<Ipv6Addr>, Dropped> {
        let Some(header) = self.routing()? else { return Ok(None) };
        let Some(left) = header[3].checked_sub(1) else { return Ok(None) };
        header[3] = left;
        let segment = header.get(8 + 16 * usize::from(left)..).and_then(<[u8]>::first_chunk::<16>);
        segment.map(|&octets| Some(octets.into())).ok_or(Dropped::RoutingHeader)
    }

    /// Where the packet inside starts, if the path is at its end and that is an IPv6 packet. A routing header that is none of a
    /// path is passed over (RFC 8200 section 4.4).
    fn inner(&mut self) -> Option<usize> {
        let (next, len) = if self.header[NEXT_HEADER] == ROUTING {
            let goes_on = self.routing().is_ok_and(|header| header.is_some_and(|header| header[3] > 0));
            let &[next, units, ..] = &*self.rest else { return None };
            (if goes_on { ROUTING } else { next }, 8 * (usize::from(units) + 1))
        } else {
            (self.header[NEXT_HEADER], 0)
        };
        (next == IPV6 && self.rest.len() >= len + HEADER_LEN).then_some(HEADER_LEN + len)
    }

    fn pass_on(&mut self) -> Result<(), Dropped> {
        if self.header[HOP_LIMIT] <= 1 {
            return Err(Dropped::HopLimit);
        }
        self.header[HOP_LIMIT] -= 1;
        Ok(())
    }

    /// A number for the packet's flow: addresses, flow label, protocol, and ports where they follow the header.
    fn flow(&self, key: u64) -> u64 {
        let mut hash = mix(key);
        let mut add = |bytes: &[u8]| {
            for chunk in bytes.chunks(8) {
                let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
                hash = mix(hash ^ word);
            }
        };
        let &[_, l0, l1, l2, _, _, next, _, ref addresses @ ..] = &*self.header;
        add(&[l0 & 0xf, l1, l2, next]);
        add(addresses);
        if next == UDP {
            add(self.rest.get(..4).unwrap_or_default());
        }
        hash
    }
}

/// The finalizer of `SplitMix64`.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests;
