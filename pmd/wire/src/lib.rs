//! The MRC wire formats: bytes to values and back, without state.
//!
//! A packet is read in two steps. [`stack::parse`] takes Ethernet, IP and UDP off a frame and
//! [`icrc::verify_frame`] checks the invariant CRC; [`Packet::decode`] then turns the bytes from the base
//! transport header (BTH) up to the iCRC into one of seven packet kinds. Sending goes the other way:
//! [`StackTemplate::write`] writes the outer headers, [`DataHead::encode`] or [`Packet::encode_head`] the
//! transport headers after them, and [`icrc::compute`] checksums both.
//!
//! Each header has its own file, and each offset is named once, in that file. An offset outside its header does not
//! compile. No input can make this module panic: input that is too short or unknown gives a [`DecodeError`] with the
//! expected values. Reserved bits are kept, so that a decoded packet encodes to the same bytes.
//!
//! The tables cited are those of the MRC specification, revision 1.0 (Open Compute Project). Multi-byte fields are
//! big-endian, except the iCRC.
//!
//! ```
//! use spindrift_wire::{Bth, Ev, Opcode, Packet, Psn, Qpn, Seth};
//!
//! let bth = Bth::new(Opcode::Sack, Qpn::new(0x41), Psn::new(0xff));
//! let seth = Seth { entropy: Ev(0xc001_1234), cack: Psn::new(0xff), mpr: 8, ..Seth::default() };
//! let mut bytes = [0; 48];
//! assert_eq!(Packet::Sack { bth, seth }.encode_head(&mut bytes), 48);
//! assert_eq!(Packet::decode(&bytes), Ok(Packet::Sack { bth, seth }));
//! ```

#![forbid(unsafe_code)]

mod aeth;
pub mod batch_ids;
mod bth;
pub mod dscp;
mod eeth;
mod entropy;
mod erth;
mod field;
pub mod frame;
pub mod headers;
pub mod icrc;
mod meth;
mod neth;
mod num;
mod opcode;
mod packet;
mod peth;
mod reth;
mod seth;
pub mod stack;
mod tseth;

pub use aeth::{Aeth, AethKind, NakCode};
pub use bth::{Bth, Foreign};
pub use dscp::{DscpMap, TrimKind};
pub use eeth::{Eeth, OpPosition};
pub use entropy::{Entropy, EntropyMode, StevOrder};
pub use erth::{EndpointOp, Erth};
pub use headers::{DatagramMeta, ETHERNET_LEN, MacAddr};
pub use meth::Meth;
pub use neth::{NackReason, Neth};
pub use num::{Ev, Msn, Psn, Qpn};
pub use opcode::{OPCODE_NAMES, Opcode, Operation};
pub use packet::{DataHead, DataView, Packet, TrimmedHead};
pub use peth::Peth;
pub use reth::{AtomicOperands, ImmDt, Reth};
pub use seth::{CcState, Mark, Seth};
pub use stack::{Parsed, StackError, StackTemplate};
pub use tseth::Tseth;

/// UDP destination port of MRC, according to readings of the specification.
pub const UDP_PORT_MRC: u16 = 4971;

/// UDP destination port that IANA assigned to `RoCEv2`.
pub const UDP_PORT_ROCE: u16 = 4791;

/// Bytes of the invariant CRC at the end of each packet.
pub const ICRC_LEN: usize = 4;

/// The queue pair number that endpoint requests and responses are sent to (MRC 1.0 sections 7.4.7, 7.4.8).
pub const ENDPOINT_QPN: Qpn = Qpn::new(2);

/// The frame type in the packets that carry a timestamp (MRC 1.0 table 6-7).
pub const FTYPE_TIMESTAMP: u8 = 1;

/// Nanoseconds per unit of a 16-bit timestamp whose `tsr` bit is clear (MRC 1.0 table 6-7).
pub const TIMESTAMP_UNIT_NS: u64 = 128;

/// Whether a datagram to `dst_port` may be MRC, where `configured` is our own setting.
///
/// Public sources disagree on the port, so both are accepted, whatever port we send to.
#[inline]
pub const fn is_mrc_port(dst_port: u16, configured: u16) -> bool {
    dst_port == configured || dst_port == UDP_PORT_MRC || dst_port == UDP_PORT_ROCE
}

/// Why bytes are not an MRC packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a header.
    #[error("{header} takes {needed} bytes, found {found}")]
    Short {
        /// Name of the header.
        header: &'static str,
        /// Its length in bytes.
        needed: usize,
        /// Bytes that were left for it.
        found: usize,
    },
    /// The first byte is not an opcode of MRC.
    #[error(
        "expected an opcode of MRC (0xC6 to 0xCB, 0xD1, 0xD8, 0xD9, 0xDC to 0xDE) or its extensions (0xC0 to 0xC5, 0xCC to 0xD0, 0xD2 to 0xD4, 0xD6, 0xD7), found {0:#04X}"
    )]
    UnknownOpcode(u8),
    /// A control packet has bytes after its last header.
    #[error("{opcode:?} takes {expected} bytes from the BTH to the iCRC, found {found}")]
    TrailingBytes {
        /// The kind of the packet.
        opcode: Opcode,
        /// Its length in bytes, BTH included, iCRC not.
        expected: usize,
        /// The length found.
        found: usize,
    },
    /// The BTH announces more pad bytes than follow the headers.
    #[error("the BTH announces {pad} pad bytes, found {found} bytes after the headers")]
    Pad {
        /// Pad bytes announced, 1 to 3.
        pad: u8,
        /// Bytes after the headers.
        found: usize,
    },
    /// The packet is a control packet; only data packets are trimmed.
    #[error("expected a data packet, found {0:?}")]
    NotData(Opcode),
}
