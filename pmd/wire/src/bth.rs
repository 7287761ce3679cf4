//! Base transport header (MRC 1.0 tables 6-3, 7-10).

use super::field::{self, Bits, U32};
use super::{DecodeError, Opcode, Psn, Qpn};

const WORD0: U32<0> = U32;
const OPCODE: Bits<0, 24, 8> = Bits;
const SOLICITED: Bits<0, 23, 1> = Bits;
const MIGRATED: Bits<0, 22, 1> = Bits;
const PAD: Bits<0, 20, 2> = Bits;
const TVER: Bits<0, 16, 4> = Bits;
const PKEY: Bits<0, 0, 16> = Bits;
const WORD4: U32<4> = U32;
const VAR_RES: Bits<4, 24, 8> = Bits;
const DEST_QPN: Bits<4, 0, 24> = Bits;
const WORD8: U32<8> = U32;
const ACK_REQ: Bits<8, 31, 1> = Bits;
const RESERVED: Bits<8, 30, 1> = Bits;
const RTX: Bits<8, 29, 1> = Bits;
const TS: Bits<8, 28, 1> = Bits;
const INV_RES: Bits<8, 24, 4> = Bits;
const PSN: Bits<8, 0, 24> = Bits;

/// Base transport header, at the start of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The kind of the packet.
    pub opcode: Opcode,
    /// Solicited event, 0 in MRC.
    pub solicited: bool,
    /// Migration state, 0 in MRC.
    pub migrated: bool,
    /// Bytes, 0 to 3, that fill the payload up to a multiple of four.
    pub pad: u8,
    /// Header version, 4 bits, 0 in MRC.
    pub tver: u8,
    /// Partition key.
    pub pkey: u16,
    /// The byte that the iCRC does not cover (FECN and BECN in `RoCEv2`).
    pub var_res: u8,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// An acknowledgement is requested.
    pub ack_req: bool,
    /// Reserved bit beside `ack_req`.
    pub reserved: bool,
    /// The packet is a retransmission.
    pub rtx: bool,
    /// A TSETH follows the METH.
    pub ts: bool,
    /// Four reserved bits that the iCRC covers.
    pub inv_res: u8,
    /// Packet sequence number. In a SACK the cumulative acknowledgement, in a NACK the offending packet, in an
    /// endpoint request or response the request id (lower 16 bits).
    pub psn: Psn,
}

/// Why this receiver must ignore a packet, whatever else it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// The transport version is not 0.
    Version,
    /// The partition key does not match [`Bth::DEFAULT_PKEY`].
    Partition,
}

impl Bth {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// The default partition key, with full membership.
    pub const DEFAULT_PKEY: u16 = 0xffff;

    /// What a receiver checks in the first word: `tver` and the 15 bits of `pkey` that name the partition.
    const ADMITTED: u32 = TVER.mask() | 0x7fff;

    /// A header with the default partition key and all flags clear.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            tver: 0,
            pkey: Self::DEFAULT_PKEY,
            var_res: 0,
            dest_qpn,
            ack_req: false,
            reserved: false,
            rtx: false,
            ts: false,
            inv_res: 0,
            psn,
        }
    }

    /// Checks version and partition of the packet that starts with `mrc`: `tver` must be 0 (MRC 1.0 table 6-3) and
    /// `pkey` must name the default partition. As in `InfiniBand` (IBTA volume 1, section 10.9.3), the top bit of a
    /// partition key says whether the sender is a full member. Full members and limited members may send to a full
    /// member, which every receiver here is.
    ///
    /// Bytes too short for either are left to [`Bth::read`].
    #[inline]
    pub fn admit(mrc: &[u8]) -> Result<(), Foreign> {
        let Some(word) = mrc.first_chunk::<4>() else { return Ok(()) };
        let word = WORD0.get(word);
        if word & Self::ADMITTED == u32::from(Self::DEFAULT_PKEY) & Self::ADMITTED {
            return Ok(());
        }
        Err(if word & TVER.mask() == 0 { Foreign::Partition } else { Foreign::Version })
    }

    /// The header in `b`, unless its opcode is not one of MRC.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        Ok(Self::of(Self::opcode_of(b)?, b))
    }

    #[inline]
    pub(super) fn opcode_of(b: &[u8; Self::LEN]) -> Result<Opcode, DecodeError> {
        Opcode::try_from(OPCODE.get(b) as u8)
    }

    /// The opcode, if it is a data packet's.
    #[inline]
    pub(super) fn data_opcode_of(b: &[u8; Self::LEN]) -> Option<Opcode> {
        Opcode::data(OPCODE.get(b) as u8)
    }

    #[inline]
    pub(super) fn pad_of(b: &[u8; Self::LEN]) -> u8 {
        PAD.get(b) as u8
    }

    #[inline]
    pub(super) fn ts_of(b: &[u8; Self::LEN]) -> bool {
        TS.flag(b)
    }

    #[inline]
    pub(super) fn dest_qpn_of(b: &[u8; Self::LEN]) -> Qpn {
        Qpn::new(DEST_QPN.get(b))
    }

    #[inline]
    pub(super) fn ack_req_of(b: &[u8; Self::LEN]) -> bool {
        ACK_REQ.flag(b)
    }

    #[inline]
    pub(super) fn rtx_of(b: &[u8; Self::LEN]) -> bool {
        RTX.flag(b)
    }

    #[inline]
    pub(super) fn psn_of(b: &[u8; Self::LEN]) -> Psn {
        Psn::new(PSN.get(b))
    }

    /// The header in `b`, whose opcode is already known.
    #[inline]
    pub(super) fn of(opcode: Opcode, b: &[u8; Self::LEN]) -> Self {
        Self {
            opcode,
            solicited: SOLICITED.flag(b),
            migrated: MIGRATED.flag(b),
            pad: Self::pad_of(b),
            tver: TVER.get(b) as u8,
            pkey: PKEY.get(b) as u16,
            var_res: VAR_RES.get(b) as u8,
            dest_qpn: Self::dest_qpn_of(b),
            ack_req: Self::ack_req_of(b),
            reserved: RESERVED.flag(b),
            rtx: Self::rtx_of(b),
            ts: Self::ts_of(b),
            inv_res: INV_RES.get(b) as u8,
            psn: Self::psn_of(b),
        }
    }

    /// The header as bytes. Excess bits of `pad`, `tver` and `inv_res` are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let word0 = OPCODE.place(self.opcode.code())
            | SOLICITED.place(self.solicited)
            | MIGRATED.place(self.migrated)
            | PAD.place(self.pad)
            | TVER.place(self.tver)
            | PKEY.place(self.pkey);
        let word8 = ACK_REQ.place(self.ack_req)
            | RESERVED.place(self.reserved)
            | RTX.place(self.rtx)
            | TS.place(self.ts)
            | INV_RES.place(self.inv_res)
            | PSN.place(self.psn);
        WORD0.set(&mut b, word0);
        WORD4.set(&mut b, VAR_RES.place(self.var_res) | DEST_QPN.place(self.dest_qpn));
        WORD8.set(&mut b, word8);
        b
    }

    /// Reads the header from the front of `bytes`; what follows it is ignored.
    ///
    /// Fails if `bytes` is shorter than the header or the opcode is not one of MRC.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.first_chunk() {
            Some(header) => Self::from_bytes(header),
            None => Err(DecodeError::Short { header: "BTH", needed: Self::LEN, found: bytes.len() }),
        }
    }

    /// Writes the header to the front of `out` and returns its length, or returns 0 and does not change `out` if it
    /// does not fit.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        field::put(&self.to_bytes(), out)
    }
}
