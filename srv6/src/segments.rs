//! A list of segments: the addresses that a packet visits.

use std::net::Ipv6Addr;

use crate::CarrierError;

/// The addresses that a source-routed packet visits, in the order of its travel: the destination address that it
/// leaves with, then the segments of its routing header (RFC 8754, RFC 8986 section 5.2).
///
/// Each is a carrier of several uSIDs in general, so most paths need no more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segments {
    addresses: [Ipv6Addr; Self::CAPACITY],
    len: u8,
}

impl Segments {
    /// Addresses in the longest list: a destination and four segments in the routing header.
    pub const CAPACITY: usize = 5;

    /// The list of `addresses`, first stop first. Fails if there is none or more than [`CAPACITY`](Self::CAPACITY).
    pub fn new(addresses: &[Ipv6Addr]) -> Result<Self, CarrierError> {
        let mut list =
            Self { addresses: [Ipv6Addr::UNSPECIFIED; Self::CAPACITY], len: addresses.len() as u8 };
        match list.addresses.get_mut(..addresses.len()) {
            Some(room) if !addresses.is_empty() => {
                room.copy_from_slice(addresses);
                Ok(list)
            }
            _ => Err(CarrierError::Segments(addresses.len())),
        }
    }

    /// The destination address that the packet leaves with.
    pub const fn destination(&self) -> Ipv6Addr {
        self.addresses[0]
    }

    /// Puts `address` at a place, counted from 0; the list grows to there. Places beyond [`CAPACITY`](Self::CAPACITY) are
    /// left alone.
    pub(crate) fn set(&mut self, at: usize, address: Ipv6Addr) {
        if let Some(place) = self.addresses.get_mut(at) {
            *place = address;
            self.len = self.len.max(at as u8 + 1);
        }
    }

    /// What the routing header lists, in the order of travel.
    pub fn later(&self) -> &[Ipv6Addr] {
        self.addresses.get(1..usize::from(self.len)).unwrap_or_default()
    }
}

impl From<Ipv6Addr> for Segments {
    /// A path without a routing header.
    fn from(destination: Ipv6Addr) -> Self {
        let mut addresses = [Ipv6Addr::UNSPECIFIED; Self::CAPACITY];
        addresses[0] = destination;
        Self { addresses, len: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_five_addresses_make_a_list() {
        let all: Vec<_> = (1..=6_u16).map(|n| Ipv6Addr::from([n; 8])).collect();
        for len in 1..=5 {
            let list = Segments::new(&all[..len]).unwrap();
            assert_eq!((list.destination(), list.later()), (all[0], &all[1..len]));
        }
        assert_eq!(Segments::new(&all[..1]), Ok(all[0].into()));
        for len in [0, 6] {
            let error = Segments::new(&all[..len]).unwrap_err();
            assert_eq!(error, CarrierError::Segments(len));
            assert!(error.to_string().contains(&len.to_string()), "{error}");
        }
    }
}
