//! Acknowledgement header, as in the reliable connection of `InfiniBand`.

use super::field::{Bits, U32, slice_forms};

const WORD0: U32<0> = U32;
const SYNDROME: Bits<0, 24, 8> = Bits;
const MSN: Bits<0, 0, 24> = Bits;

/// Upper three bits of the syndrome: acknowledged.
const TYPE_ACK: u8 = 0b000;
/// Upper three bits of the syndrome: refused; the lower five hold the reason.
const TYPE_NAK: u8 = 0b011;
/// MRC has no end-to-end credits; the field always has this value.
const NO_CREDITS: u8 = 0x1f;

/// Acknowledgement header, in a transport ACK or NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Kind in the upper three bits, credits or reason in the lower five.
    pub syndrome: u8,
    /// Number of the message, 24 bits.
    pub msn: u32,
}

/// The meaning of the syndrome of an [`Aeth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AethKind {
    /// Acknowledged.
    Ack,
    /// Refused.
    Nak(NakCode),
    /// A syndrome that MRC does not use, such as "receiver not ready".
    Other(u8),
}

/// The reason of a transport NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet sequence number is missing.
    PsnSequence = 0,
    /// The request cannot be served.
    InvalidRequest = 1,
    /// The memory does not exist or may not be written.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
}

impl Aeth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Acknowledges messages up to `msn`.
    #[inline]
    pub const fn ack(msn: u32) -> Self {
        Self { syndrome: (TYPE_ACK << 5) | NO_CREDITS, msn }
    }

    /// Refuses message `msn`.
    #[inline]
    pub const fn nak(code: NakCode, msn: u32) -> Self {
        Self { syndrome: (TYPE_NAK << 5) | code as u8, msn }
    }

    /// The meaning of the syndrome. An acknowledgement may carry any credits.
    #[inline]
    pub const fn kind(&self) -> AethKind {
        match (self.syndrome >> 5, self.syndrome & 0x1f) {
            (TYPE_ACK, _) => AethKind::Ack,
            (TYPE_NAK, 0) => AethKind::Nak(NakCode::PsnSequence),
            (TYPE_NAK, 1) => AethKind::Nak(NakCode::InvalidRequest),
            (TYPE_NAK, 2) => AethKind::Nak(NakCode::RemoteAccess),
            (TYPE_NAK, 3) => AethKind::Nak(NakCode::RemoteOperational),
            _ => AethKind::Other(self.syndrome),
        }
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: SYNDROME.get(b) as u8, msn: MSN.get(b) }
    }

    /// The header as it travels. Bits of `msn` above the 24th are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        WORD0.set(&mut b, SYNDROME.place(self.syndrome) | MSN.place(self.msn));
        b
    }
}

slice_forms!(Aeth, "AETH");
