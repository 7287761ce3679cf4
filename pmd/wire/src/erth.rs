//! Endpoint request header (MRC 1.0 tables 7-20, 7-21).

use super::FTYPE_TIMESTAMP;
use super::field::{Bits, U32, slice_forms};

const WORD0: U32<0> = U32;
const RESERVED0: Bits<0, 16, 16> = Bits;
const OP: Bits<0, 16, 2> = Bits;
const RESERVED2: Bits<0, 8, 8> = Bits;
const VENDOR_INFO: Bits<0, 0, 8> = Bits;
const PORT_STATUS_MASK: U32<4> = U32;
const RESERVED8: U32<8> = U32;
const WORD12: U32<12> = U32;
const TX_TIMESTAMP: Bits<12, 16, 16> = Bits;
const TSR: Bits<12, 15, 1> = Bits;
const RESERVED14: Bits<12, 4, 11> = Bits;
const FTYPE: Bits<12, 0, 4> = Bits;

/// The operation of an endpoint request.
///
/// These are the values on the wire; the specification's control API numbers the two in the opposite order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EndpointOp {
    /// Reports which ports of the sender are reachable.
    #[default]
    PortStatusUpdate = 0,
    /// Tests the path that the request took.
    EvProbe = 1,
    /// Not assigned.
    Reserved2 = 2,
    /// Not assigned.
    Reserved3 = 3,
}

impl EndpointOp {
    #[inline]
    pub(super) const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::PortStatusUpdate,
            1 => Self::EvProbe,
            2 => Self::Reserved2,
            _ => Self::Reserved3,
        }
    }
}

/// Endpoint request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erth {
    /// The upper 14 bits of the first word, in place; 0 in MRC.
    pub reserved0: u16,
    /// The operation.
    pub op: EndpointOp,
    /// Reserved byte at 2.
    pub reserved2: u8,
    /// Vendor-specific.
    pub vendor_info: u8,
    /// A set bit means that the port is reachable. Valid in a port status update only.
    pub port_status_mask: u32,
    /// Reserved bytes at 8.
    pub reserved8: u32,
    /// When the request was sent, on the sender's clock.
    pub tx_timestamp: u16,
    /// The unit of the timestamp is not 128 ns but the sender's own.
    pub tsr: bool,
    /// 11 reserved bits at 14.
    pub reserved14: u16,
    /// Frame type, 4 bits, 1 in MRC.
    pub ftype: u8,
}

impl Erth {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved0: ((WORD0.get(b) & !OP.mask()) >> 16) as u16,
            op: EndpointOp::from_bits(OP.get(b)),
            reserved2: RESERVED2.get(b) as u8,
            vendor_info: VENDOR_INFO.get(b) as u8,
            port_status_mask: PORT_STATUS_MASK.get(b),
            reserved8: RESERVED8.get(b),
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
        let word0 = (RESERVED0.place(self.reserved0) & !OP.mask())
            | OP.place(self.op as u8)
            | RESERVED2.place(self.reserved2)
            | VENDOR_INFO.place(self.vendor_info);
        let word12 = TX_TIMESTAMP.place(self.tx_timestamp)
            | TSR.place(self.tsr)
            | RESERVED14.place(self.reserved14)
            | FTYPE.place(self.ftype);
        WORD0.set(&mut b, word0);
        PORT_STATUS_MASK.set(&mut b, self.port_status_mask);
        RESERVED8.set(&mut b, self.reserved8);
        WORD12.set(&mut b, word12);
        b
    }
}

impl Default for Erth {
    /// All zero but for `ftype`.
    fn default() -> Self {
        Self {
            reserved0: 0,
            op: EndpointOp::PortStatusUpdate,
            reserved2: 0,
            vendor_info: 0,
            port_status_mask: 0,
            reserved8: 0,
            tx_timestamp: 0,
            tsr: false,
            reserved14: 0,
            ftype: FTYPE_TIMESTAMP,
        }
    }
}

slice_forms!(Erth, "ERTH");
