//! Extensions of MRC, which two peers agree on when they connect (`docs/protocol.md`, decision 37).

use core::fmt;
use core::ops::{BitAnd, BitOr, Not};

use serde::{Deserialize, Serialize};

use crate::wire::{Opcode, Operation};
use crate::work::SendOp;

/// A set of extensions of MRC. A queue pair uses those that both peers have; without any, it is plain MRC.
///
/// In an offer, it is a list of names. Names that this version does not know are ignored.
///
/// ```
/// use spindrift::endpoint::Extensions;
///
/// let ours = Extensions::SEND | Extensions::RNR;
/// assert_eq!(ours.names().collect::<Vec<_>>(), ["send", "rnr"]);
/// let theirs = Extensions::from(vec!["send".to_owned(), "something-newer".to_owned()]);
/// assert_eq!(ours & theirs, Extensions::SEND);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<&'static str>")]
pub struct Extensions(u8);

impl Extensions {
    /// Plain MRC.
    pub const NONE: Self = Self(0);
    /// Messages without bytes: writes, and writes with immediate.
    pub const EMPTY_MESSAGES: Self = Self(1);
    /// SEND, with and without immediate, into the buffers of receive work requests.
    pub const SEND: Self = Self(2);
    /// A message that finds no receive work request is refused with an RNR NACK and sent again later.
    pub const RNR: Self = Self(4);
    /// SEND that ends a registration of the receiver.
    pub const INVALIDATE: Self = Self(8);
    /// RDMA READ.
    pub const READ: Self = Self(16);
    /// Compare-and-swap and fetch-and-add.
    pub const ATOMIC: Self = Self(32);
    /// Every extension that this version has.
    pub const ALL: Self = Self(63);

    const NAMED: [(Self, &'static str); 6] = [
        (Self::EMPTY_MESSAGES, "empty-messages"),
        (Self::SEND, "send"),
        (Self::RNR, "rnr"),
        (Self::INVALIDATE, "invalidate"),
        (Self::READ, "read"),
        (Self::ATOMIC, "atomic"),
    ];

    /// Whether every extension of `other` is in the set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Whether reads or atomic operations are in the set.
    pub(crate) const fn fetches(self) -> bool {
        self.contains(Self::READ) || self.contains(Self::ATOMIC)
    }

    /// The names of the extensions in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().filter(move |(extension, _)| self.contains(*extension)).map(|(_, name)| name)
    }

    /// The extension that an operation needs.
    pub(crate) const fn of(op: SendOp) -> Self {
        match op {
            SendOp::Write | SendOp::WriteWithImm(_) => Self::NONE,
            SendOp::Send | SendOp::SendWithImm(_) => Self::SEND,
            SendOp::SendWithInvalidate(_) => Self(Self::SEND.0 | Self::INVALIDATE.0),
            SendOp::Read => Self::READ,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd(_) => Self::ATOMIC,
        }
    }

    /// Whether a peer that agreed on these may send this kind of data packet.
    const fn admit(self, opcode: Opcode) -> bool {
        match opcode.operation() {
            Some(Operation::Send) if opcode.invalidates() => {
                self.contains(Self(Self::SEND.0 | Self::INVALIDATE.0))
            }
            Some(Operation::Send) => self.contains(Self::SEND),
            Some(Operation::ReadRequest | Operation::ReadResponse) => self.contains(Self::READ),
            Some(Operation::AtomicRequest | Operation::AtomicResponse) => self.contains(Self::ATOMIC),
            Some(Operation::Write) => true,
            None => false,
        }
    }
}

/// The data packets that a peer may send: a bit for each of the low five bits of the opcode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted(u32);

impl Admitted {
    /// Those of a peer that agreed on these extensions.
    pub(crate) fn by(extensions: Extensions) -> Self {
        let admitted = Opcode::ALL.into_iter().filter(|&opcode| extensions.admit(opcode));
        Self(admitted.fold(0, |bits, opcode| bits | 1 << (opcode.code() & 0x1f)))
    }

    #[inline]
    pub(crate) const fn has(self, opcode: Opcode) -> bool {
        self.0 >> (opcode.code() & 0x1f) & 1 != 0
    }
}

impl BitOr for Extensions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Extensions {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// All but these.
impl Not for Extensions {
    type Output = Self;

    fn not(self) -> Self {
        Self(Self::ALL.0 & !self.0)
    }
}

/// The names, separated by commas; `none` if there are none.
impl fmt::Display for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({self})")
    }
}

impl From<Extensions> for Vec<&'static str> {
    fn from(extensions: Extensions) -> Self {
        extensions.names().collect()
    }
}

impl From<Vec<String>> for Extensions {
    fn from(names: Vec<String>) -> Self {
        let known = |name: &String| Self::NAMED.iter().find(|(_, known)| known == name);
        names.iter().filter_map(known).fold(Self::NONE, |found, &(extension, _)| found | extension)
    }
}
