//! Traffic classes as code points of the IP header (MRC's `DSCP_*` names).

use serde::{Deserialize, Serialize};

/// The code point of each traffic class. The network operator chooses the numbers; both ends and the switches use the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DscpMap {
    /// Data that a switch may trim.
    pub trimmable: u8,
    /// Data that must not be trimmed.
    pub no_trim: u8,
    /// Retransmitted data that a switch may trim.
    pub trimmable_retx: u8,
    /// Written by a switch on a packet that it trims.
    pub trimmed: u8,
    /// Written by a switch on a packet that it trims on the last hop.
    pub trimmed_last_hop: u8,
    /// Acknowledgements of all kinds and endpoint responses.
    pub control: u8,
}

impl Default for DscpMap {
    /// The numbers of a published example; no standard assigns any.
    fn default() -> Self {
        Self { trimmable: 0, no_trim: 4, trimmable_retx: 8, trimmed: 12, trimmed_last_hop: 16, control: 46 }
    }
}

/// Where a packet was trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrimKind {
    /// Before the last hop: the path is congested.
    Fabric,
    /// On the last hop: the receiver is congested.
    LastHop,
}

/// Why a [`DscpMap`] cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DscpError {
    /// A code point has more than 6 bits.
    #[error("dscp.{name}: expected a code point of 0 to 63, found {value}")]
    TooLarge {
        /// The class.
        name: &'static str,
        /// Its code point.
        value: u8,
    },
    /// A trimmed packet could not be distinguished from one of another class.
    #[error("dscp.{name} and dscp.{other} must differ, found {value} for both")]
    Ambiguous {
        /// The class that switches write.
        name: &'static str,
        /// The other class.
        other: &'static str,
        /// Their code point.
        value: u8,
    },
}

impl DscpMap {
    /// Where a packet with code point `dscp` was trimmed, if it was.
    #[inline]
    pub const fn class_of_trim(&self, dscp: u8) -> Option<TrimKind> {
        if dscp == self.trimmed {
            Some(TrimKind::Fabric)
        } else if dscp == self.trimmed_last_hop {
            Some(TrimKind::LastHop)
        } else {
            None
        }
    }

    /// Checks that each code point has 6 bits and that the two for trimmed packets are used for nothing else.
    ///
    /// The classes that senders use may share a code point, in a network that does not distinguish them.
    pub fn validate(&self) -> Result<(), DscpError> {
        let sent = [
            ("trimmable", self.trimmable),
            ("no_trim", self.no_trim),
            ("trimmable_retx", self.trimmable_retx),
            ("control", self.control),
        ];
        let last_hop = ("trimmed_last_hop", self.trimmed_last_hop);
        let written = [("trimmed", self.trimmed), last_hop];
        if let Some(&(name, value)) = sent.iter().chain(&written).find(|(_, value)| *value > 63) {
            return Err(DscpError::TooLarge { name, value });
        }
        for (name, value) in written {
            let mut others = sent.iter().chain([&last_hop]).filter(|(other, _)| *other != name);
            if let Some(&(other, _)) = others.find(|(_, other)| *other == value) {
                return Err(DscpError::Ambiguous { name, other, value });
            }
        }
        Ok(())
    }
}

/// The traffic class byte for a code point and two bits of ECN.
#[inline]
pub const fn traffic_class(dscp: u8, ecn: u8) -> u8 {
    (dscp << 2) | (ecn & 3)
}
