//! Timestamp header (MRC 1.0 tables 6-6, 6-7).

use super::FTYPE_TIMESTAMP;
use super::field::{Bits, U32, slice_forms};

const WORD0: U32<0> = U32;
const TIMESTAMP: Bits<0, 16, 16> = Bits;
const TSR: Bits<0, 15, 1> = Bits;
const RESERVED: Bits<0, 4, 11> = Bits;
const FTYPE: Bits<0, 0, 4> = Bits;

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

    #[inline]
    pub(super) fn timestamp_of(b: &[u8; Self::LEN]) -> u16 {
        TIMESTAMP.get(b) as u16
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            timestamp: Self::timestamp_of(b),
            tsr: TSR.flag(b),
            reserved: RESERVED.get(b) as u16,
            ftype: FTYPE.get(b) as u8,
        }
    }

    /// The header as bytes. Excess bits of `reserved` and `ftype` are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word0 = TIMESTAMP.place(self.timestamp)
            | TSR.place(self.tsr)
            | RESERVED.place(self.reserved)
            | FTYPE.place(self.ftype);
        WORD0.set(&mut b, word0);
        b
    }
}

slice_forms!(Tseth, "TSETH");
