//! Reliability probe header (MRC 1.0 tables 7-18, 7-19).

use super::FTYPE_TIMESTAMP;
use super::field::{Bits, U8, U16, U32, slice_forms};

const RESERVED0: U16<0> = U16;
const RESERVED2: U8<2> = U8;
const VENDOR_INFO: U8<3> = U8;
const PROBE_ID: U16<4> = U16;
const RESERVED6: U16<6> = U16;
const SPDCID: U16<8> = U16;
const DPDCID: U16<10> = U16;
const WORD12: U32<12> = U32;
const TX_TIMESTAMP: Bits<12, 16, 16> = Bits;
const TSR: Bits<12, 15, 1> = Bits;
const RESERVED14: Bits<12, 4, 11> = Bits;
const FTYPE: Bits<12, 0, 4> = Bits;

/// Reliability probe header. A SACK with `pr` set and the probe id in place of the offset acknowledges the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peth {
    /// First two bytes, 0 in MRC.
    pub reserved0: u16,
    /// Reserved byte at 2.
    pub reserved2: u8,
    /// Vendor-specific.
    pub vendor_info: u8,
    /// Number of the probe, reflected in the SACK.
    pub probe_id: u16,
    /// Reserved bytes at 6.
    pub reserved6: u16,
    /// Lower 16 bits of the sender's queue pair number.
    pub spdcid: u16,
    /// Lower 16 bits of the receiver's queue pair number.
    pub dpdcid: u16,
    /// When the probe was sent, on the sender's clock.
    pub tx_timestamp: u16,
    /// The unit of the timestamp is not 128 ns but the sender's own.
    pub tsr: bool,
    /// 11 reserved bits at 14.
    pub reserved14: u16,
    /// Frame type, 4 bits, 1 in MRC.
    pub ftype: u8,
}

impl Peth {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved0: RESERVED0.get(b),
            reserved2: RESERVED2.get(b),
            vendor_info: VENDOR_INFO.get(b),
            probe_id: PROBE_ID.get(b),
            reserved6: RESERVED6.get(b),
            spdcid: SPDCID.get(b),
            dpdcid: DPDCID.get(b),
            tx_timestamp: TX_TIMESTAMP.get(b) as u16,
            tsr: TSR.flag(b),
            reserved14: RESERVED14.get(b) as u16,
            ftype: FTYPE.get(b) as u8,
        }
    }

    /// The header as bytes. Excess bits of a field are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word12 = TX_TIMESTAMP.place(self.tx_timestamp)
            | TSR.place(self.tsr)
            | RESERVED14.place(self.reserved14)
            | FTYPE.place(self.ftype);
        RESERVED0.set(&mut b, self.reserved0);
        RESERVED2.set(&mut b, self.reserved2);
        VENDOR_INFO.set(&mut b, self.vendor_info);
        PROBE_ID.set(&mut b, self.probe_id);
        RESERVED6.set(&mut b, self.reserved6);
        SPDCID.set(&mut b, self.spdcid);
        DPDCID.set(&mut b, self.dpdcid);
        WORD12.set(&mut b, word12);
        b
    }
}

impl Default for Peth {
    /// All zero but for `ftype`.
    fn default() -> Self {
        Self {
            reserved0: 0,
            reserved2: 0,
            vendor_info: 0,
            probe_id: 0,
            reserved6: 0,
            spdcid: 0,
            dpdcid: 0,
            tx_timestamp: 0,
            tsr: false,
            reserved14: 0,
            ftype: FTYPE_TIMESTAMP,
        }
    }
}

slice_forms!(Peth, "PETH");
