//! Timestamp header (MRC 1.0 tables 6-6, 6-7).

use super::FTYPE_TIMESTAMP;
use super::field::{Bits, U16, slice_forms};

const TX_TIMESTAMP: U16<0> = U16;
const TSR: Bits<2, 15, 1> = Bits;
const RESERVED: Bits<2, 4, 11> = Bits;
const FTYPE: Bits<2, 0, 4> = Bits;

/// Timestamp header, in a packet of a write whose BTH has `ts` set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tseth {
    /// When the packet was sent, on the sender's clock; the receiver only reflects it.
    pub timestamp: u16,
    /// The unit is not 128 ns but the sender's own.
    pub tsr: bool,
    /// 11 reserved bits.
    pub reserved: u16,
    /// Frame type, 4 bits, 1 in MRC.
    pub ftype: u8,
}

impl Tseth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// A header with `timestamp` in units of 128 ns.
    #[inline]
    pub const fn new(timestamp: u16) -> Self {
        Self { timestamp, tsr: false, reserved: 0, ftype: FTYPE_TIMESTAMP }
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            timestamp: TX_TIMESTAMP.get(b),
            tsr: TSR.flag(b),
            reserved: RESERVED.get(b),
            ftype: FTYPE.get(b) as u8,
        }
    }

    /// The header as it travels. Bits of `reserved` and `ftype` that are too many are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        TX_TIMESTAMP.set(&mut b, self.timestamp);
        TSR.set(&mut b, self.tsr.into());
        RESERVED.set(&mut b, self.reserved);
        FTYPE.set(&mut b, self.ftype.into());
        b
    }
}

slice_forms!(Tseth, "TSETH");
