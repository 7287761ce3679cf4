//! Message header (MRC 1.0 tables 6-8, 6-9).

use super::Msn;
use super::field::{U16, slice_forms};

const RQMSN: U16<0> = U16;
const MSN: U16<2> = U16;

/// Message header, in every data packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meth {
    /// Number of the write among those with immediate data; 0 in other writes. With the extensions of MRC, also the
    /// number of a send among these, and that of a READ or atomic request and its response among requests.
    pub rqmsn: Msn,
    /// Number of the message, the same in all its packets.
    pub msn: Msn,
}

impl Meth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { rqmsn: Msn::new(RQMSN.get(b)), msn: Msn::new(MSN.get(b)) }
    }

    /// The header as bytes.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        RQMSN.set(&mut b, self.rqmsn.get());
        MSN.set(&mut b, self.msn.get());
        b
    }
}

slice_forms!(Meth, "METH");
