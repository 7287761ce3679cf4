//! Selective acknowledgement header (MRC 1.0 tables 7-14, 7-15) and the congestion state behind it
//! (tables 7-12, 7-13).

use super::field::{Bits, U8, U16, U24, U32, U64, slice_forms};
use super::{Ev, Psn};

const WORD0: U16<0> = U16;
const MARK: Bits<0, 5, 2> = Bits;
const PR: Bits<0, 1, 1> = Bits;
const ACK_PSN_OFFSET: U16<2> = U16;
const ENTROPY: U32<4> = U32;
const SPDCID: U16<8> = U16;
const DPDCID: U16<10> = U16;
const RESERVED12: U8<12> = U8;
const CACK: U24<13> = U24;
const CC_TYPE: Bits<16, 12, 4> = Bits;
const CC_FLAGS: Bits<16, 8, 4> = Bits;
const MPR: U8<17> = U8;
const SACK_OFFSET: U16<18> = U16;
const BITMAP: U64<20> = U64;
const TX_TIMESTAMP: U16<28> = U16;
const CC_RESERVED: Bits<30, 15, 1> = Bits;
const OOO_COUNT: Bits<30, 0, 15> = Bits;
const RESTORE_CWND: Bits<32, 15, 1> = Bits;
const CWND_PENALTY: Bits<32, 8, 7> = Bits;
const RCVD_BYTES: U24<33> = U24;

/// The bits of the first word that have no field of their own.
const WORD0_OTHER: u16 = !(MARK.mask() | PR.mask());

/// What the receiver saw on the path of the packet that triggered a SACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mark {
    /// Nothing.
    #[default]
    None = 0,
    /// The packet came with an ECN mark: leave the path out for a round.
    SkipOnce = 1,
    /// Do not use the path.
    AlwaysSkip = 2,
    /// Not assigned.
    Reserved = 3,
}

impl Mark {
    #[inline]
    const fn from_bits(bits: u16) -> Self {
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
    /// What was seen on the path in `entropy`.
    pub mark: Mark,
    /// This answers a reliability probe.
    pub pr: bool,
    /// The packet that triggered this SACK is `cack` plus this; see [`Seth::ack_psn`] and [`Seth::probe_id`].
    pub ack_psn_offset: i16,
    /// Entropy value of the packet that triggered this SACK.
    pub entropy: Ev,
    /// Lower 16 bits of the queue pair number of whoever sends this SACK.
    pub spdcid: u16,
    /// Lower 16 bits of the queue pair number this is sent to.
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
    /// Bit i (lowest first) tells that packet `cack + sack_offset + i` arrived. A clear bit says nothing.
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
    /// The sender may take back the cut that a penalty made.
    pub restore_cwnd: bool,
    /// Cut asked for by the receiver, in 1/128 of the bytes acknowledged, 7 bits.
    pub cwnd_penalty: u8,
    /// Bytes received, in units of 256 rounded up, 24 bits.
    pub rcvd_bytes: u32,
}

impl Seth {
    /// Bytes of the header, congestion state included.
    pub const LEN: usize = 36;

    /// How many packets the bitmap covers.
    pub const BITMAP_BITS: u32 = 64;

    /// The packet that triggered this SACK. Without meaning where `pr` is set.
    #[inline]
    pub const fn ack_psn(&self) -> Psn {
        self.cack.add((self.ack_psn_offset as i32).cast_unsigned())
    }

    /// The packet that the lowest bit of the bitmap stands for.
    #[inline]
    pub const fn sack_base(&self) -> Psn {
        self.cack.add((self.sack_offset as i32).cast_unsigned())
    }

    /// The id of the probe that this SACK answers. Without meaning where `pr` is clear.
    #[inline]
    pub const fn probe_id(&self) -> u16 {
        self.ack_psn_offset.cast_unsigned()
    }

    /// The header in `b`.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            reserved0: WORD0.get(b) & WORD0_OTHER,
            mark: Mark::from_bits(MARK.get(b)),
            pr: PR.flag(b),
            ack_psn_offset: ACK_PSN_OFFSET.get(b).cast_signed(),
            entropy: Ev(ENTROPY.get(b)),
            spdcid: SPDCID.get(b),
            dpdcid: DPDCID.get(b),
            reserved12: RESERVED12.get(b),
            cack: Psn::new(CACK.get(b)),
            cc_type: CC_TYPE.get(b) as u8,
            cc_flags: CC_FLAGS.get(b) as u8,
            mpr: MPR.get(b),
            sack_offset: SACK_OFFSET.get(b).cast_signed(),
            bitmap: BITMAP.get(b),
            cc: CcState {
                tx_timestamp: TX_TIMESTAMP.get(b),
                reserved: CC_RESERVED.flag(b),
                ooo_count: OOO_COUNT.get(b),
                restore_cwnd: RESTORE_CWND.flag(b),
                cwnd_penalty: CWND_PENALTY.get(b) as u8,
                rcvd_bytes: RCVD_BYTES.get(b),
            },
        }
    }

    /// The header as it travels. Bits that are too many for their field are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word0 = (self.reserved0 & WORD0_OTHER) | MARK.place(self.mark as u16) | PR.place(self.pr.into());
        WORD0.set(&mut b, word0);
        ACK_PSN_OFFSET.set(&mut b, self.ack_psn_offset.cast_unsigned());
        ENTROPY.set(&mut b, self.entropy.0);
        SPDCID.set(&mut b, self.spdcid);
        DPDCID.set(&mut b, self.dpdcid);
        RESERVED12.set(&mut b, self.reserved12);
        CACK.set(&mut b, self.cack.get());
        CC_TYPE.set(&mut b, self.cc_type.into());
        CC_FLAGS.set(&mut b, self.cc_flags.into());
        MPR.set(&mut b, self.mpr);
        SACK_OFFSET.set(&mut b, self.sack_offset.cast_unsigned());
        BITMAP.set(&mut b, self.bitmap);
        TX_TIMESTAMP.set(&mut b, self.cc.tx_timestamp);
        CC_RESERVED.set(&mut b, self.cc.reserved.into());
        OOO_COUNT.set(&mut b, self.cc.ooo_count);
        RESTORE_CWND.set(&mut b, self.cc.restore_cwnd.into());
        CWND_PENALTY.set(&mut b, self.cc.cwnd_penalty.into());
        RCVD_BYTES.set(&mut b, self.cc.rcvd_bytes);
        b
    }
}

slice_forms!(Seth, "SETH");
