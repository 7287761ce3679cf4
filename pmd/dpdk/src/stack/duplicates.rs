//! Duplicate address detection (RFC 4862, section 5.4): before a port uses its IPv6 addresses, it asks whether another node has them.
//!
//! Each address gets one neighbour solicitation from the unspecified address (`DupAddrDetectTransmits` is 1). A node that has the address
//! answers with an advertisement to all nodes; one that is about to use it sends a solicitation of the same kind. Either makes
//! the address a duplicate, and it stays one. Solicitations carry a nonce (RFC 7527), by which a port knows its own ones when a link loops
//! them back.

use std::net::{IpAddr, Ipv6Addr};

use smoltcp::wire::NdiscRepr;
use spindrift_pmd::MacAddr;

use super::{Addresses, Out, messages, unicast_of};

/// Bytes of a nonce (RFC 3971, section 5.3.2: six or more).
pub(crate) const NONCE_LEN: usize = 6;
/// The option that carries it.
pub(super) const NONCE_OPTION: u8 = 14;
/// Bytes of a solicitation before its options.
const SOLICITATION_LEN: usize = 24;

/// How a port looks for duplicates of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    /// How long a node may take to say that it has the address (`RetransTimer`); 0: nobody is asked.
    pub(crate) wait_ns: u64,
    /// The addresses are used meanwhile (RFC 4429).
    pub(crate) optimistic: bool,
    /// The link-local address is the port's, and not shared with the kernel's interface of the same Ethernet address.
    pub(crate) link_local: bool,
    /// Tells own solicitations from others.
    pub(crate) nonce: [u8; NONCE_LEN],
}

/// A node that has an address of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Duplicate {
    pub(crate) address: Ipv6Addr,
    pub(crate) mac: MacAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has been asked yet.
    New,
    /// Everybody has been asked, and may answer until then.
    Asked {
        until_ns: u64,
    },
    Unique,
    Duplicate(Duplicate),
}

/// Whether the addresses of a port are its alone.
#[derive(Debug)]
pub(super) struct Detection {
    search: Search,
    state: State,
}

impl Detection {
    pub(super) fn new(search: Search, own: &Addresses) -> Self {
        let is_off = search.wait_ns == 0 || own.local.is_ipv4();
        Self { search, state: if is_off { State::Unique } else { State::New } }
    }

    /// Whether the addresses can be used.
    pub(super) fn is_usable(&self) -> bool {
        match self.state {
            State::New | State::Asked { .. } => self.search.optimistic,
            State::Unique => true,
            State::Duplicate(_) => false,
        }
    }

    /// Whether it is not known yet if they are unique.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::New | State::Asked { .. })
    }

    pub(super) fn duplicate(&self) -> Option<Duplicate> {
        match self.state {
            State::Duplicate(duplicate) => Some(duplicate),
            State::New | State::Asked { .. } | State::Unique => None,
        }
    }

    /// When the state changes by itself.
    pub(super) fn until_ns(&self) -> Option<u64> {
        match self.state {
            State::Asked { until_ns } => Some(until_ns),
            State::New | State::Unique | State::Duplicate(_) => None,
        }
    }

    /// Asks, and sees whether the time for answers is over. Without a link it asks again when there is one.
    pub(super) fn proceed(&mut self, own: &Addresses, has_link: bool, now_ns: u64, out: &mut Out) {
        self.state = match self.state {
            State::New if has_link => {
                // Switches that forward multicast frames to listeners only have to know of the groups first.
                out.push(messages::report(own));
                for address in self.addresses(own) {
                    out.push(messages::duplicate_solicitation(own.mac, address, self.search.nonce));
                }
                State::Asked { until_ns: now_ns.saturating_add(self.search.wait_ns) }
            }
            State::Asked { .. } if !has_link => State::New,
            State::Asked { until_ns } if now_ns >= until_ns => State::Unique,
            state => state,
        };
    }

    /// Takes a message of neighbour discovery; `bytes` are its own, from its type on. `false`: it is one of this port's, which the link has
    /// looped back, and not to be answered.
    pub(super) fn receive(
        &mut self,
        own: &Addresses,
        (from, source): (MacAddr, Ipv6Addr),
        message: &NdiscRepr<'_>,
        bytes: &[u8],
    ) -> bool {
        let asks = matches!(message, NdiscRepr::NeighborSolicit { .. }) && source.is_unspecified();
        if asks && nonce(bytes) == Some(self.search.nonce) {
            return false;
        }
        if !self.is_open() {
            return true;
        }
        let (address, mac) = match *message {
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                (target_addr, unicast_of(lladdr).unwrap_or(from))
            }
            // One with a source looks for the neighbour, and not for duplicates.
            NdiscRepr::NeighborSolicit { target_addr, .. } if asks => (target_addr, from),
            _ => return true,
        };
        if self.addresses(own).any(|own| own == address) {
            self.state = State::Duplicate(Duplicate { address, mac });
        }
        true
    }

    /// The addresses that are to be the port's alone.
    fn addresses(&self, own: &Addresses) -> impl Iterator<Item = Ipv6Addr> + use<> {
        let local = match own.local {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        };
        let link_local = Some(own.link_local()).filter(|&ip| self.search.link_local && local != Some(ip));
        local.into_iter().chain(link_local)
    }
}

/// The nonce of a solicitation.
fn nonce(solicitation: &[u8]) -> Option<[u8; NONCE_LEN]> {
    let mut options = solicitation.get(SOLICITATION_LEN..)?;
    loop {
        let (&[kind, units], _) = options.split_first_chunk()?;
        let len = usize::from(units) * 8;
        let option = options.get(2..len)?;
        if kind == NONCE_OPTION {
            return option.first_chunk().copied();
        }
        options = &options[len..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_are_found_among_options() {
        let with = |options: &[u8]| nonce(&[&[0; SOLICITATION_LEN], options].concat());
        let mac = [1, 1, 2, 0, 0, 0, 0, 9];
        let own = [14, 1, 1, 2, 3, 4, 5, 6];
        assert_eq!(with(&own), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(with(&[mac, own].concat()), Some([1, 2, 3, 4, 5, 6]));
        for bad in [&[][..], &mac, &own[..7], &[14, 0, 1, 2, 3, 4, 5, 6], &[14], &[1, 9, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(with(bad), None, "{bad:?}");
        }
        assert_eq!(nonce(&[0; 10]), None);
    }
}
