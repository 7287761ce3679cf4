//! SRv6 uSID carriers: a path through the fabric, written in one IPv6 address, and [profiles](EvProfile), which make
//! one of an entropy value; and the [`Forwarder`], which is what a switch on the path does to the packet.
//!
//! An [`F3216`] carrier is a 32-bit locator block followed by up to six 16-bit uSIDs (RFC 9800, NEXT-CSID
//! flavor with a locator block of 32 bits and a locator-node length of 16). A switch that owns the first
//! uSID matches the first 48 bits of the destination address and [shifts](F3216::shift) the rest up by 16;
//! the carrier ends at the first zero uSID.
//!
//! ```
//! use spindrift_srv6::F3216;
//!
//! let path: F3216 = "fcbb:bb00:a01:e001:201::".parse()?;
//! assert_eq!(path.usids().collect::<Vec<_>>(), [0xa01, 0xe001, 0x201]);
//! let next = path.shift().ok_or("the path is not empty")?;
//! assert_eq!(next.to_string(), "fcbb:bb00:e001:201::");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fabric;
mod forwarder;
mod profile;
mod segments;

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

pub use fabric::{
    End, Fabric, FabricError, FabricHost, Hop, Link, Node, Shape, Tables, Template, TemplateField, Walk,
    Walker,
};
pub use forwarder::{Behavior, Dropped, Forwarder, TableError, Verdict};
pub use profile::{EvProfile, Field, ProfileError};
pub use segments::Segments;

const USID_BITS: u32 = 16;
const BLOCK_BITS: u32 = 32;
const USIDS_MASK: u128 = u128::MAX >> BLOCK_BITS;

/// Why an address is no F3216 carrier, or a uSID cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CarrierError {
    /// All six places are taken.
    #[error("the carrier {0} already holds six uSIDs; a longer path needs a second carrier")]
    Full(Ipv6Addr),
    /// More than six were given at once.
    #[error("{0} uSIDs given, a carrier with a 32-bit block holds six")]
    TooMany(usize),
    /// Zero marks the end of the carrier.
    #[error("uSID {place} is zero, which marks the end of a carrier; use 0x0001 to 0xffff")]
    ZeroUsid {
        /// Counted from 1.
        place: usize,
    },
    /// A uSID behind the end of the carrier would never be reached.
    #[error("{address}: uSID {place} is zero but a later one is not; a carrier ends at its first zero uSID")]
    Gap {
        /// The address.
        address: Ipv6Addr,
        /// The first zero, counted from 1.
        place: usize,
    },
    /// Not an IPv6 address.
    #[error("\"{0}\" is not an IPv6 address; write a carrier like fcbb:bb00:a01:e001:201::")]
    NotAnAddress(String),
    /// No path, or a longer one than a packet has room for.
    #[error(
        "{0} segments given, a path has one to five: the destination, and up to four in a routing header"
    )]
    Segments(usize),
}

/// A carrier of the F3216 format: 32-bit block, six places for 16-bit uSIDs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct F3216(u128);

impl F3216 {
    /// Places for uSIDs.
    pub const CAPACITY: usize = 6;

    /// The places of a carrier in an [`EvProfile`]: block and uSIDs.
    pub const FORMAT: [u8; 1 + Self::CAPACITY] = [32, 16, 16, 16, 16, 16, 16];

    /// A carrier of `block` and `usids`, first hop first.
    pub fn new(block: u32, usids: &[u16]) -> Result<Self, CarrierError> {
        if usids.len() > Self::CAPACITY {
            return Err(CarrierError::TooMany(usids.len()));
        }
        let empty = Self((block as u128) << (128 - BLOCK_BITS));
        usids.iter().try_fold(empty, |carrier, &usid| carrier.push(usid))
    }

    /// A carrier of one uSID, which is not 0.
    const fn of_one(block: u32, usid: u16) -> Self {
        Self((block as u128) << (128 - BLOCK_BITS) | (usid as u128) << (128 - BLOCK_BITS - USID_BITS))
    }

    /// The first 32 bits.
    pub const fn block(self) -> u32 {
        (self.0 >> (128 - BLOCK_BITS)) as u32
    }

    /// uSIDs held.
    pub const fn len(self) -> usize {
        let zeros = (self.0 & USIDS_MASK).trailing_zeros() / USID_BITS;
        if self.is_empty() { 0 } else { Self::CAPACITY - zeros as usize }
    }

    /// Whether no uSID is left.
    pub const fn is_empty(self) -> bool {
        self.0 & USIDS_MASK == 0
    }

    /// The uSIDs, next hop first.
    pub fn usids(self) -> impl Iterator<Item = u16> {
        (0..self.len() as u32).map(move |i| (self.0 >> (128 - BLOCK_BITS - USID_BITS * (i + 1))) as u16)
    }

    /// The next hop's uSID.
    pub fn active(self) -> Option<u16> {
        self.usids().next()
    }

    /// The 48 bits that a switch matches: block and active uSID, in the low bits of the result.
    pub const fn locator(self) -> u64 {
        (self.0 >> (128 - BLOCK_BITS - USID_BITS)) as u64
    }

    /// Adds a last hop.
    pub fn push(self, usid: u16) -> Result<Self, CarrierError> {
        let len = self.len();
        if len == Self::CAPACITY {
            return Err(CarrierError::Full(self.address()));
        }
        if usid == 0 {
            return Err(CarrierError::ZeroUsid { place: len + 1 });
        }
        Ok(Self(self.0 | (usid as u128) << (USID_BITS as usize * (Self::CAPACITY - 1 - len))))
    }

    /// What the switch that owns the active uSID makes of the address: the uSIDs move up by one place and
    /// zeros follow (RFC 9800 section 4.1). `None` for an empty carrier.
    pub const fn shift(self) -> Option<Self> {
        if self.is_empty() {
            return None;
        }
        Some(Self((self.0 & !USIDS_MASK) | ((self.0 << USID_BITS) & USIDS_MASK)))
    }

    /// The carrier as the destination address of a packet.
    pub const fn address(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.0)
    }
}

impl TryFrom<Ipv6Addr> for F3216 {
    type Error = CarrierError;

    fn try_from(address: Ipv6Addr) -> Result<Self, CarrierError> {
        let carrier = Self(address.to_bits());
        match carrier.usids().position(|usid| usid == 0) {
            Some(at) => Err(CarrierError::Gap { address, place: at + 1 }),
            None => Ok(carrier),
        }
    }
}

impl From<F3216> for Ipv6Addr {
    fn from(carrier: F3216) -> Self {
        carrier.address()
    }
}

impl FromStr for F3216 {
    type Err = CarrierError;

    fn from_str(text: &str) -> Result<Self, CarrierError> {
        let address: Ipv6Addr = text.parse().map_err(|_| CarrierError::NotAnAddress(text.to_owned()))?;
        address.try_into()
    }
}

impl fmt::Display for F3216 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl fmt::Debug for F3216 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "F3216({})", self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 0xfcbb_bb00;

    #[test]
    fn shifts_to_the_end_as_switches_do() {
        let mut path: F3216 = "fcbb:bb00:1:2:3:4:5:6".parse().unwrap();
        for (len, hop) in (1..=6).rev().zip(1..) {
            assert_eq!((path.len(), path.active()), (len, Some(hop)));
            assert_eq!(path.locator(), (BLOCK as u64) << 16 | hop as u64);
            path = path.shift().unwrap();
        }
        assert_eq!(path.to_string(), "fcbb:bb00::");
        assert_eq!((path.len(), path.is_empty(), path.active(), path.shift()), (0, true, None, None));
        assert_eq!(path.block(), BLOCK);
    }

    #[test]
    fn new_and_parse_agree() {
        let path = F3216::new(BLOCK, &[0xa01, 0xe001, 0x201]).unwrap();
        assert_eq!(path, "fcbb:bb00:a01:e001:201::".parse().unwrap());
        assert_eq!(F3216::try_from(path.address()), Ok(path));
        assert_eq!(Ipv6Addr::from(path), path.address());
        assert_eq!(format!("{path:?}"), "F3216(fcbb:bb00:a01:e001:201::)");
        assert_eq!(F3216::new(BLOCK, &[0x100]).unwrap().len(), 1);
        assert_eq!(F3216::new(0, &[0xffff; 6]).unwrap().usids().collect::<Vec<_>>(), [0xffff; 6]);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let text = |r: Result<F3216, CarrierError>| r.unwrap_err().to_string();
        assert!(text("fcbb:bb00:1::3".parse()).contains("uSID 2 is zero"));
        assert!(text("10.0.0.1".parse()).contains("not an IPv6 address"));
        assert!(text(F3216::new(BLOCK, &[1; 7])).contains("7 uSIDs"));
        assert!(text(F3216::new(BLOCK, &[1, 0])).contains("uSID 2 is zero"));
        assert!(text(F3216::new(BLOCK, &[1; 6]).unwrap().push(1)).contains("six"));
    }
}
