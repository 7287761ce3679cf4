//! Negative acknowledgement header (MRC 1.0 tables 7-16, 7-17).

use super::field::{Bits, U8, U16, U32, slice_forms};
use super::{Ev, Psn};

const RESERVED0: U16<0> = U16;
const REASON: U8<2> = U8;
const VENDOR_INFO: U8<3> = U8;
const ENTROPY: U32<4> = U32;
const SPDCID: U16<8> = U16;
const DPDCID: U16<10> = U16;
const WORD12: U32<12> = U32;
const RESERVED12: Bits<12, 24, 8> = Bits;
const NACK_PSN: Bits<12, 0, 24> = Bits;
const WORD16: U32<16> = U32;
const CC_TYPE: Bits<16, 28, 4> = Bits;
const CC_FLAGS: Bits<16, 24, 4> = Bits;
const RESERVED17: Bits<16, 16, 8> = Bits;
const TX_TIMESTAMP: Bits<16, 0, 16> = Bits;

/// The reason of a NACK. The codes are those of Ultra Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NackReason {
    /// A switch trimmed the packet before the last hop: the path is congested.
    Trimmed,
    /// A switch trimmed the packet on the last hop: many senders share it, so the path is not the cause.
    TrimmedLastHop,
    /// The receiver has no room to track the packet.
    NoBitmap,
    /// The receiver has no buffer for the packet.
    NoPacketBuffer,
    /// The receiver lacks some other resource.
    NoResource,
    /// The packet lies outside the window.
    PsnOutOfWindow,
    /// An error that is fatal to the queue pair.
    UnexpectedEvent,
    /// Another code.
    Other(u8),
}

impl From<u8> for NackReason {
    #[inline]
    fn from(code: u8) -> Self {
        match code {
            0x01 => Self::Trimmed,
            0x02 => Self::TrimmedLastHop,
            0x06 => Self::NoBitmap,
            0x07 => Self::NoPacketBuffer,
            0x0a => Self::NoResource,
            0x0b => Self::PsnOutOfWindow,
            0x19 => Self::UnexpectedEvent,
            _ => Self::Other(code),
        }
    }
}

impl From<NackReason> for u8 {
    #[inline]
    fn from(reason: NackReason) -> Self {
        match reason {
            NackReason::Trimmed => 0x01,
            NackReason::TrimmedLastHop => 0x02,
            NackReason::NoBitmap => 0x06,
            NackReason::NoPacketBuffer => 0x07,
            NackReason::NoResource => 0x0a,
            NackReason::PsnOutOfWindow => 0x0b,
            NackReason::UnexpectedEvent => 0x19,
            NackReason::Other(code) => code,
        }
    }
}

/// Negative acknowledgement header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neth {
    /// First two bytes, 0 in MRC.
    pub reserved0: u16,
    /// The reason, see [`NackReason`].
    pub reason: u8,
    /// Vendor-specific.
    pub vendor_info: u8,
    /// Entropy value of the refused packet.
    pub entropy: Ev,
    /// Lower 16 bits of the sender's queue pair number.
    pub spdcid: u16,
    /// Lower 16 bits of the receiver's queue pair number.
    pub dpdcid: u16,
    /// Reserved byte at 12.
    pub reserved12: u8,
    /// The refused packet.
    pub nack_psn: Psn,
    /// Kind of congestion state, 4 bits, 2 in a NACK.
    pub cc_type: u8,
    /// Congestion flags, 4 bits.
    pub cc_flags: u8,
    /// Reserved byte at 17.
    pub reserved17: u8,
    /// The timestamp of the refused packet, reflected.
    pub tx_timestamp: u16,
}

impl Neth {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// The value of `cc_type` in a NACK.
    pub const CC_TYPE: u8 = 2;

    /// The time in nanoseconds that a code of the RNR timer stands for (IBTA volume 1, table 45). Only the low 5 bits
    /// count. In an RNR NACK, an extension of MRC, `vendor_info` holds the code.
    ///
    /// ```
    /// use spindrift_wire::Neth;
    ///
    /// assert_eq!([0, 1, 12, 31].map(Neth::rnr_timer_ns), [655_360_000, 10_000, 640_000, 491_520_000]);
    /// ```
    pub const fn rnr_timer_ns(code: u8) -> u64 {
        const UNIT_NS: u64 = 10_000;
        const UNITS: [u64; 32] = [
            65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
        ];
        UNITS[(code & 31) as usize] * UNIT_NS
    }

    /// Refuses packet `nack_psn`, which arrived on path `entropy`.
    #[inline]
    pub fn new(reason: NackReason, nack_psn: Psn, entropy: Ev) -> Self {
        Self { reason: reason.into(), nack_psn, entropy, ..Self::default() }
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved0: RESERVED0.get(b),
            reason: REASON.get(b),
            vendor_info: VENDOR_INFO.get(b),
            entropy: Ev(ENTROPY.get(b)),
            spdcid: SPDCID.get(b),
            dpdcid: DPDCID.get(b),
            reserved12: RESERVED12.get(b) as u8,
            nack_psn: Psn::new(NACK_PSN.get(b)),
            cc_type: CC_TYPE.get(b) as u8,
            cc_flags: CC_FLAGS.get(b) as u8,
            reserved17: RESERVED17.get(b) as u8,
            tx_timestamp: TX_TIMESTAMP.get(b) as u16,
        }
    }

    /// The header as bytes. Excess bits of a field are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word16 = CC_TYPE.place(self.cc_type)
            | CC_FLAGS.place(self.cc_flags)
            | RESERVED17.place(self.reserved17)
            | TX_TIMESTAMP.place(self.tx_timestamp);
        RESERVED0.set(&mut b, self.reserved0);
        REASON.set(&mut b, self.reason);
        VENDOR_INFO.set(&mut b, self.vendor_info);
        ENTROPY.set(&mut b, self.entropy.0);
        SPDCID.set(&mut b, self.spdcid);
        DPDCID.set(&mut b, self.dpdcid);
        WORD12.set(&mut b, RESERVED12.place(self.reserved12) | NACK_PSN.place(self.nack_psn));
        WORD16.set(&mut b, word16);
        b
    }
}

impl Default for Neth {
    /// All zero but for `cc_type`.
    fn default() -> Self {
        Self {
            reserved0: 0,
            reason: 0,
            vendor_info: 0,
            entropy: Ev(0),
            spdcid: 0,
            dpdcid: 0,
            reserved12: 0,
            nack_psn: Psn::new(0),
            cc_type: Self::CC_TYPE,
            cc_flags: 0,
            reserved17: 0,
            tx_timestamp: 0,
        }
    }
}

slice_forms!(Neth, "NETH");
