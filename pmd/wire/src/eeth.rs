//! Endpoint response header (MRC 1.0 tables 7-22, 7-23).

use serde::{Deserialize, Serialize};

use super::EndpointOp;
use super::field::{Bits, Bytes, U16, U32, slice_forms};

/// Lies over the first two reserved bytes, which are written after it.
const WORD0: U32<0> = U32;
const RESERVED0: Bits<0, 16, 16> = Bits;
const OP_AT_2: Bits<0, 18, 2> = Bits;
const OP_AT_4: Bits<0, 20, 2> = Bits;
const RESERVED2: Bytes<2, 26> = Bytes;
const TX_TIMESTAMP: U16<28> = U16;
const RESERVED30: Bytes<30, 6> = Bytes;

/// Position of the operation in the first word of an endpoint response.
///
/// Readings of the specification disagree. Both positions are accepted. A response is matched to its request by the
/// request id in the BTH, so that nothing depends on the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpPosition {
    /// Bits 3 and 2.
    #[default]
    Bits3To2,
    /// Bits 5 and 4.
    Bits5To4,
}

/// Endpoint response header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eeth {
    /// The bits of the first word that are not `op`, in place; 0 in MRC.
    pub reserved0: u16,
    /// The operation of the request.
    pub op: EndpointOp,
    /// Where `op` was found, or is to be written.
    pub op_position: OpPosition,
    /// Reserved bytes at 2.
    pub reserved2: [u8; 26],
    /// The timestamp of the request, reflected.
    pub tx_timestamp: u16,
    /// Reserved bytes at 30.
    pub reserved30: [u8; 6],
}

impl Eeth {
    /// Bytes of the header.
    pub const LEN: usize = 36;

    /// A response to a request of kind `op` that was sent at `tx_timestamp`.
    #[inline]
    pub fn new(op: EndpointOp, op_position: OpPosition, tx_timestamp: u16) -> Self {
        Self { op, op_position, tx_timestamp, ..Self::default() }
    }

    /// The header in `b`. An operation that is at neither position is a port status update, whose code is 0.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        let (op_position, op, op_mask) = if OP_AT_4.flag(b) && !OP_AT_2.flag(b) {
            (OpPosition::Bits5To4, OP_AT_4.get(b), OP_AT_4.mask())
        } else {
            (OpPosition::Bits3To2, OP_AT_2.get(b), OP_AT_2.mask())
        };
        Self {
            reserved0: ((WORD0.get(b) & RESERVED0.mask() & !op_mask) >> 16) as u16,
            op: EndpointOp::from_bits(op),
            op_position,
            reserved2: RESERVED2.get(b),
            tx_timestamp: TX_TIMESTAMP.get(b),
            reserved30: RESERVED30.get(b),
        }
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let (op, op_mask) = match self.op_position {
            OpPosition::Bits3To2 => (OP_AT_2.place(self.op as u8), OP_AT_2.mask()),
            OpPosition::Bits5To4 => (OP_AT_4.place(self.op as u8), OP_AT_4.mask()),
        };
        WORD0.set(&mut b, (RESERVED0.place(self.reserved0) & !op_mask) | op);
        RESERVED2.set(&mut b, self.reserved2);
        TX_TIMESTAMP.set(&mut b, self.tx_timestamp);
        RESERVED30.set(&mut b, self.reserved30);
        b
    }
}

slice_forms!(Eeth, "EETH");
