//! Base transport header (MRC 1.0 tables 6-3, 7-10).

use super::field::{self, Bits, U8, U16, U24};
use super::{DecodeError, Opcode, Psn, Qpn};

const OPCODE: U8<0> = U8;
const SOLICITED: Bits<0, 7, 1> = Bits;
const MIGRATED: Bits<0, 6, 1> = Bits;
const PAD: Bits<0, 4, 2> = Bits;
const TVER: Bits<0, 0, 4> = Bits;
const PKEY: U16<2> = U16;
const VAR_RES: U8<4> = U8;
const DEST_QPN: U24<5> = U24;
const ACK_REQ: Bits<8, 15, 1> = Bits;
const RESERVED: Bits<8, 14, 1> = Bits;
const RTX: Bits<8, 13, 1> = Bits;
const TS: Bits<8, 12, 1> = Bits;
const INV_RES: Bits<8, 8, 4> = Bits;
const PSN: U24<9> = U24;

/// Base transport header, at the start of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
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
    /// The byte that the iCRC leaves out (FECN and BECN in `RoCEv2`).
    pub var_res: u8,
    /// The queue pair this is sent to.
    pub dest_qpn: Qpn,
    /// An acknowledgement is asked for.
    pub ack_req: bool,
    /// Reserved bit beside `ack_req`.
    pub reserved: bool,
    /// The packet was sent before.
    pub rtx: bool,
    /// A TSETH follows the METH.
    pub ts: bool,
    /// Four reserved bits that the iCRC covers.
    pub inv_res: u8,
    /// Packet sequence number. In a SACK the cumulative acknowledgement, in a NACK the offending packet, in an
    /// endpoint request or response the request id (lower 16 bits).
    pub psn: Psn,
}

impl Bth {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// The partition key that everyone is a full member of.
    pub const DEFAULT_PKEY: u16 = 0xffff;

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

    /// The header in `b`, unless its opcode is not one of MRC.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        Ok(Self {
            opcode: Opcode::try_from(OPCODE.get(b))?,
            solicited: SOLICITED.flag(b),
            migrated: MIGRATED.flag(b),
            pad: PAD.get(b) as u8,
            tver: TVER.get(b) as u8,
            pkey: PKEY.get(b),
            var_res: VAR_RES.get(b),
            dest_qpn: Qpn::new(DEST_QPN.get(b)),
            ack_req: ACK_REQ.flag(b),
            reserved: RESERVED.flag(b),
            rtx: RTX.flag(b),
            ts: TS.flag(b),
            inv_res: INV_RES.get(b) as u8,
            psn: Psn::new(PSN.get(b)),
        })
    }

    /// The header as it travels. Bits of `pad`, `tver` and `inv_res` that are too many are dropped.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        OPCODE.set(&mut b, self.opcode.code());
        SOLICITED.set(&mut b, self.solicited.into());
        MIGRATED.set(&mut b, self.migrated.into());
        PAD.set(&mut b, self.pad.into());
        TVER.set(&mut b, self.tver.into());
        PKEY.set(&mut b, self.pkey);
        VAR_RES.set(&mut b, self.var_res);
        DEST_QPN.set(&mut b, self.dest_qpn.get());
        ACK_REQ.set(&mut b, self.ack_req.into());
        RESERVED.set(&mut b, self.reserved.into());
        RTX.set(&mut b, self.rtx.into());
        TS.set(&mut b, self.ts.into());
        INV_RES.set(&mut b, self.inv_res.into());
        PSN.set(&mut b, self.psn.get());
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

    /// Writes the header to the front of `out` and returns its length, or returns 0 and leaves `out` alone if it
    /// does not fit.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        field::put(&self.to_bytes(), out)
    }
}
