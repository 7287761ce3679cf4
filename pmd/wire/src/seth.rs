//! Selective acknowledgement header (MRC 1.0 tables 7-14, 7-15) and the congestion state after it
//! (tables 7-12, 7-13).

use super::field::{Bits, U16, U32, U64, slice_forms};
use super::{Ev, Psn};

const WORD0: U32<0> = U32;
const RESERVED0: Bits<0, 16, 16> = Bits;
const MARK: Bits<0, 21, 2> = Bits;
const PR: Bits<0, 17, 1> = Bits;
const ACK_PSN_OFFSET: Bits<0, 0, 16> = Bits;
const ENTROPY: U32<4> = U32;
const SPDCID: U16<8> = U16;
const DPDCID: U16<10> = U16;
const WORD12: U32<12> = U32;
const RESERVED12: Bits<12, 24, 8> = Bits;
const CACK: Bits<12, 0, 24> = Bits;
const WORD16: U32<16> = U32;
const CC_TYPE: Bits<16, 28, 4> = Bits;
const CC_FLAGS: Bits<16, 24, 4> = Bits;
const MPR: Bits<16, 16, 8> = Bits;
const SACK_OFFSET: Bits<16, 0, 16> = Bits;
const BITMAP: U64<20> = U64;
const WORD28: U32<28> = U32;
const TX_TIMESTAMP: Bits<28, 16, 16> = Bits;
const CC_RESERVED: Bits<28, 15, 1> = Bits;
const OOO_COUNT: Bits<28, 0, 15> = Bits;
const WORD32: U32<32> = U32;
const RESTORE_CWND: Bits<32, 31, 1> = Bits;
const CWND_PENALTY: Bits<32, 24, 7> = Bits;
const RCVD_BYTES: Bits<32, 0, 24> = Bits;

/// The bits of the first word that belong to `mark` and `pr`.
const NOT_RESERVED0: u32 = MARK.mask() | PR.mask();

/// The state of the path of the packet that triggered a SACK, as seen by the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mark {
    /// No mark.
    #[default]
    None = 0,
    /// The packet arrived with an ECN mark: skip the path for one rotation.
    SkipOnce = 1,
    /// Do not use the path.
    AlwaysSkip = 2,
    /// Not assigned.
    Reserved = 3,
}

impl Mark {
    #[inline]
    const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::SkipOnce,
            2 => Self::AlwaysSkip,
            _ => Self::Reserved,
        }
    }
}

/// Selective acknowledgement header with its congestion state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seth {
    /// The bits of the first 16 that are neither `mark` nor `pr`, in place; 0 in MRC.
    pub reserved0: u16,
    /// The mark for the path in `entropy`.
    pub mark: Mark,
    /// This SACK acknowledges a reliability probe.
    pub pr: bool,
    /// The packet that triggered this SACK is `cack` plus this; see [`Seth::ack_psn`] and [`Seth::probe_id`].
    pub ack_psn_offset: i16,
    /// Entropy value of the packet that triggered this SACK.
    pub entropy: Ev,
    /// Lower 16 bits of the sender's queue pair number.
    pub spdcid: u16,
    /// Lower 16 bits of the receiver's queue pair number.
    pub dpdcid: u16,
    /// Reserved byte at 12.
    pub reserved12: u8,
    /// Every packet up to and including this one arrived.
    pub cack: Psn,
    /// Kind of congestion state, 4 bits, 0 in a SACK.
    pub cc_type: u8,
    /// Congestion flags, 4 bits.
    pub cc_flags: u8,
    /// Window granted now, in units of 128 packets.
    pub mpr: u8,
    /// The first bit of `bitmap` is packet `cack` plus this.
    pub sack_offset: i16,
    /// Bit i (lowest first) means that packet `cack + sack_offset + i` arrived.
    /// A clear bit alone proves nothing.
    pub bitmap: u64,
    /// Congestion state.
    pub cc: CcState,
}

/// Congestion state that a SACK carries (MRC 1.0 tables 7-12, 7-13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CcState {
    /// The timestamp of the packet that triggered the SACK, reflected.
    pub tx_timestamp: u16,
    /// Reserved bit above `ooo_count`.
    pub reserved: bool,
    /// Packets received out of order, 15 bits.
    pub ooo_count: u16,
    /// The sender may undo the cut that a penalty made.
    pub restore_cwnd: bool,
    /// Cut requested by the receiver, in 1/128 of the bytes acknowledged, 7 bits.
    pub cwnd_penalty: u8,
    /// Bytes received, in units of 256 rounded up, 24 bits.
    pub rcvd_bytes: u32,
}

impl Seth {
    /// Bytes of the header, congestion state included.
    pub const LEN: usize = 36;

    /// How many packets the bitmap covers.
    pub const BITMAP_BITS: u32 = 64;

    /// The packet that triggered this SACK. Meaningless if `pr` is set.
    #[inline]
    pub const fn ack_psn(&self) -> Psn {
        self.cack.add((self.ack_psn_offset as i32).cast_unsigned())
    }

    /// The packet that the lowest bit of the bitmap stands for.
    #[inline]
    pub const fn sack_base(&self) -> Psn {
        self.cack.add((self.sack_offset as i32).cast_unsigned())
    }

    /// The id of the probe that this SACK acknowledges. Meaningless if `pr` is clear.
    #[inline]
    pub const fn probe_id(&self) -> u16 {
        self.ack_psn_offset.cast_unsigned()
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved0: ((WORD0.get(b) & !NOT_RESERVED0) >> 16) as u16,
            mark: Mark::from_bits(MARK.get(b)),
            pr: PR.flag(b),
            ack_psn_offset: ACK_PSN_OFFSET.get(b) as i16,
            entropy: Ev(ENTROPY.get(b)),
            spdcid: SPDCID.get(b),
            dpdcid: DPDCID.get(b),
            reserved12: RESERVED12.get(b) as u8,
            cack: Psn::new(CACK.get(b)),
            cc_type: CC_TYPE.get(b) as u8,
            cc_flags: CC_FLAGS.get(b) as u8,
            mpr: MPR.get(b) as u8,
            sack_offset: SACK_OFFSET.get(b) as i16,
            bitmap: BITMAP.get(b),
            cc: CcState {
                tx_timestamp: TX_TIMESTAMP.get(b) as u16,
                reserved: CC_RESERVED.flag(b),
                ooo_count: OOO_COUNT.get(b) as u16,
                restore_cwnd: RESTORE_CWND.flag(b),
                cwnd_penalty: CWND_PENALTY.get(b) as u8,
                rcvd_bytes: RCVD_BYTES.get(b),
            },
        }
    }

    /// The header as bytes. Excess bits of a field are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word0 = (RESERVED0.place(self.reserved0) & !NOT_RESERVED0)
            | MARK.place(self.mark as u8)
            | PR.place(self.pr)
            | ACK_PSN_OFFSET.place(self.ack_psn_offset.cast_unsigned());
        let word16 = CC_TYPE.place(self.cc_type)
            | CC_FLAGS.place(self.cc_flags)
            | MPR.place(self.mpr)
            | SACK_OFFSET.place(self.sack_offset.cast_unsigned());
        let word28 = TX_TIMESTAMP.place(self.cc.tx_timestamp)
            | CC_RESERVED.place(self.cc.reserved)
            | OOO_COUNT.place(self.cc.ooo_count);
        let word32 = RESTORE_CWND.place(self.cc.restore_cwnd)
            | CWND_PENALTY.place(self.cc.cwnd_penalty)
            | RCVD_BYTES.place(self.cc.rcvd_bytes);
        WORD0.set(&mut b, word0);
        ENTROPY.set(&mut b, self.entropy.0);
        SPDCID.set(&mut b, self.spdcid);
        DPDCID.set(&mut b, self.dpdcid);
        WORD12.set(&mut b, RESERVED12.place(self.reserved12) | CACK.place(self.cack));
        WORD16.set(&mut b, word16);
        BITMAP.set(&mut b, self.bitmap);
        WORD28.set(&mut b, word28);
        WORD32.set(&mut b, word32);
        b
    }
}

slice_forms!(Seth, "SETH");
