//! Work requests as messages, and the packets of a message.

use std::collections::VecDeque;

use crate::memory::{PayloadRef, parts_of};
use crate::wire::{AtomicOperands, DataHead, Meth, Msn, Opcode, Reth};
use crate::work::{RemoteAddr, SendOp};

use super::copies::Copies;

/// The location of a work request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// One contiguous, pinned range.
    Region(PayloadRef),
    /// Several ranges.
    Pieces(Pieces),
    /// A copy of what the peer may lack of a response.
    Copy(Copied),
    /// The value that an atomic operation found.
    Value(u64),
}

/// The pieces of one work request, as a range of the send queue's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Index of the first piece, counted since the queue was created (wrapping).
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A copy in the send queue, which holds a message from one of its bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Its number since the queue was created (wrapping).
    pub(super) number: u32,
    /// Offset of its first byte in the message.
    pub(super) from: u64,
}

/// A posted work request. It covers packets `first..first + packets` of the queue pair's packet sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    /// That of a packet which neither starts nor ends the message.
    pub(super) form: Form,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// Size of the message in bytes; for a read, that of the bytes to be read.
    pub(crate) len: u32,
    /// Bytes that its packets carry.
    pub(super) payload: u32,
    pub(crate) remote: RemoteAddr,
    /// Where its bytes are, or where a response goes.
    pub(crate) source: Source,
    pub(crate) first: u64,
    pub(crate) packets: u32,
    pub(crate) msn: Msn,
    pub(crate) rqmsn: Msn,
    /// One past the ticket of its newest packet, 0 before the first. Ports release payload in the order of tickets.
    pub(crate) held_until: u64,
}

impl Entry {
    /// One past the last packet.
    pub(crate) const fn end(&self) -> u64 {
        self.first + self.packets as u64
    }

    /// Whether it is a response to a request of the peer, and not a work request.
    #[inline]
    pub(crate) const fn is_response(&self) -> bool {
        self.form.is_response()
    }

    /// Whether the peer responds to it with bytes.
    #[inline]
    pub(crate) const fn is_fetch(&self) -> bool {
        self.form.is_fetch()
    }

    /// Whether it takes a receive work request of the peer.
    #[inline]
    pub(crate) const fn takes_receive(&self) -> bool {
        self.form.takes_receive()
    }

    /// The word after the RETH of its last packet: the immediate, or the key to invalidate.
    const fn word(&self) -> Option<u32> {
        match self.op {
            SendOp::WriteWithImm(word) | SendOp::SendWithImm(word) | SendOp::SendWithInvalidate(word) => {
                Some(word)
            }
            _ => None,
        }
    }
}

/// What a message is, and the position of a packet in it. They take one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form(pub(super) u8);

impl Form {
    pub(super) const FIRST: u8 = 1;
    pub(super) const LAST: u8 = 2;

    // Kinds of messages, in the upper bits.
    pub(super) const WRITE: u8 = 0;
    pub(super) const WRITE_IMM: u8 = 1 << 2;
    pub(super) const SEND: u8 = 2 << 2;
    pub(super) const SEND_IMM: u8 = 3 << 2;
    pub(super) const SEND_INVALIDATE: u8 = 4 << 2;
    pub(super) const READ: u8 = 5 << 2;
    pub(super) const COMPARE_SWAP: u8 = 6 << 2;
    pub(super) const FETCH_ADD: u8 = 7 << 2;
    pub(super) const READ_RESPONSE: u8 = 8 << 2;
    pub(super) const ATOMIC_RESPONSE: u8 = 9 << 2;

    /// That of a packet which neither starts nor ends its message.
    #[inline]
    pub(super) const fn of(op: SendOp) -> Self {
        Self(match op {
            SendOp::Write => Self::WRITE,
            SendOp::WriteWithImm(_) => Self::WRITE_IMM,
            SendOp::Send => Self::SEND,
            SendOp::SendWithImm(_) => Self::SEND_IMM,
            SendOp::SendWithInvalidate(_) => Self::SEND_INVALIDATE,
            SendOp::Read => Self::READ,
            SendOp::CompareSwap { .. } => Self::COMPARE_SWAP,
            SendOp::FetchAdd(_) => Self::FETCH_ADD,
        })
    }

    /// The same for a packet at this position.
    #[inline]
    pub(super) const fn at(self, first: bool, last: bool) -> Self {
        Self(self.0 | first as u8 | ((last as u8) << 1))
    }

    #[inline]
    pub(super) const fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    #[inline]
    pub(super) const fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }

    /// Whether its message takes a receive work request.
    #[inline]
    pub(super) const fn takes_receive(self) -> bool {
        // One comparison: the position bits are the lowest.
        self.0.wrapping_sub(Self::WRITE_IMM) < Self::READ - Self::WRITE_IMM
    }

    /// Whether it is a request that the peer responds to with bytes.
    #[inline]
    pub(super) const fn is_fetch(self) -> bool {
        self.0.wrapping_sub(Self::READ) < Self::READ_RESPONSE - Self::READ
    }

    /// Whether it is a response to the peer's request.
    #[inline]
    pub(super) const fn is_response(self) -> bool {
        self.0 >= Self::READ_RESPONSE
    }

    /// Whether its message has a number besides that of all messages.
    #[inline]
    pub(super) const fn is_send(self) -> bool {
        self.0.wrapping_sub(Self::SEND) < Self::READ - Self::SEND
    }

    /// Whether immediate data, a key or operands follow the RETH.
    #[inline]
    const fn has_tail(self) -> bool {
        self.head_len() > BY_FORM[0].1 as usize
    }

    /// MRC 1.0 tables 6-3 to 6-9.
    #[inline]
    const fn opcode(self) -> Opcode {
        BY_FORM[(self.0 & 63) as usize].0
    }

    /// Bytes of the MRC headers, with a timestamp.
    #[inline]
    const fn head_len(self) -> usize {
        BY_FORM[(self.0 & 63) as usize].1 as usize
    }
}

/// The opcode and the length of the headers of each [`Form`].
const BY_FORM: [(Opcode, u8); 64] = {
    use Opcode::{
        AtomicResponse, CompareSwap, FetchAdd, ReadRequest, ReadResponseFirst, ReadResponseLast,
        ReadResponseMiddle, ReadResponseOnly, SendFirst, SendLast, SendLastImm, SendLastInvalidate,
        SendMiddle, SendOnly, SendOnlyImm, SendOnlyInvalidate, WriteFirst, WriteLast, WriteLastImm,
        WriteMiddle, WriteOnly, WriteOnlyImm,
    };
    // In the order of the kinds; each for a packet in the middle, the first, the last and the only one.
    const KINDS: [[Opcode; 4]; 10] = [
        [WriteMiddle, WriteFirst, WriteLast, WriteOnly],
        [WriteMiddle, WriteFirst, WriteLastImm, WriteOnlyImm],
        [SendMiddle, SendFirst, SendLast, SendOnly],
        [SendMiddle, SendFirst, SendLastImm, SendOnlyImm],
        [SendMiddle, SendFirst, SendLastInvalidate, SendOnlyInvalidate],
        [ReadRequest; 4],
        [CompareSwap; 4],
        [FetchAdd; 4],
        [ReadResponseMiddle, ReadResponseFirst, ReadResponseLast, ReadResponseOnly],
        [AtomicResponse; 4],
    ];
    let mut table = [(WriteMiddle, DataHead::len_of(WriteMiddle, true) as u8); 64];
    let mut at = 0;
    while at < 4 * KINDS.len() {
        let opcode = KINDS[at / 4][at % 4];
        table[at] = (opcode, DataHead::len_of(opcode, true) as u8);
        at += 1;
    }
    table
};

/// One packet of a work request: its header fields, and the location of its payload. Fields that are copied from the
/// request are read on demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketSpec<'a> {
    /// Payload size in bytes.
    pub(crate) len: u32,
    pub(super) form: Form,
    /// Offset of its first byte in the message.
    offset: u64,
    pub(super) entry: &'a Entry,
    stores: &'a Stores,
}

impl<'a> PacketSpec<'a> {
    /// Packet `seq` of a message.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(super) fn new(entry: &'a Entry, stores: &'a Stores, seq: u64, mtu: u32) -> Self {
        let index = (seq - entry.first) as u32;
        let offset = u64::from(index) * u64::from(mtu);
        let len = u64::from(mtu).min(u64::from(entry.payload) - offset) as u32;
        let last = index + 1 == entry.packets;
        let form = entry.form.at(index == 0, last);
        Self { len, form, offset, entry, stores }
    }

    #[inline]
    pub(crate) const fn opcode(&self) -> Opcode {
        self.form.opcode()
    }

    /// Whether it starts a message that takes a receive work request.
    #[inline]
    pub(crate) const fn starts_taker(&self) -> bool {
        self.form.is_first() && self.form.takes_receive()
    }

    /// Whether a header follows its RETH.
    #[inline]
    pub(crate) const fn has_tail(&self) -> bool {
        self.form.0 > Form::WRITE | Form::FIRST | Form::LAST && self.form.has_tail()
    }

    /// Whether its message counts against a limit: it takes a receive work request, or the peer responds to it.
    #[inline]
    pub(crate) const fn may_limit(&self) -> bool {
        self.form.0 >= Form::WRITE_IMM | Form::FIRST && self.form.is_first() && !self.form.is_response()
    }

    /// Whether it is a request that the peer responds to with bytes.
    #[inline]
    pub(crate) const fn is_fetch(&self) -> bool {
        self.form.is_fetch()
    }

    /// Whether it is the last packet of the response to a read.
    #[inline]
    pub(crate) const fn ends_read_response(&self) -> bool {
        self.form.0 | Form::FIRST == Form::READ_RESPONSE | Form::FIRST | Form::LAST
    }

    /// Size of the MRC headers in bytes, with a timestamp.
    #[inline]
    pub(crate) const fn head_len(&self) -> usize {
        self.form.head_len()
    }

    /// The message header.
    #[inline]
    pub(crate) fn meth(&self) -> Meth {
        Meth { rqmsn: self.entry.rqmsn, msn: self.entry.msn }
    }

    /// The RDMA header. In a SEND and in a response, the address is the offset in the message.
    #[inline]
    pub(crate) fn reth(&self) -> Reth {
        let RemoteAddr { addr, rkey } = self.entry.remote;
        Reth { va: addr.wrapping_add(self.offset), rkey, dma_len: self.entry.len }
    }

    /// The immediate data or the key to invalidate, if the packet carries one of them.
    #[inline]
    pub(crate) fn word(&self) -> Option<u32> {
        if self.form.is_last() { self.entry.word() } else { None }
    }

    /// The operands, if it is an atomic operation.
    #[inline]
    pub(crate) const fn operands(&self) -> Option<AtomicOperands> {
        match self.entry.op {
            SendOp::CompareSwap { compare, swap } => Some(AtomicOperands { swap_or_add: swap, compare }),
            SendOp::FetchAdd(add) => Some(AtomicOperands { swap_or_add: add, compare: 0 }),
            _ => None,
        }
    }

    /// The value that an atomic operation found, if it is a response to one.
    pub(crate) const fn value(&self) -> Option<u64> {
        match self.entry.source {
            Source::Value(value) => Some(value),
            Source::Region(_) | Source::Pieces(_) | Source::Copy(_) => None,
        }
    }

    /// The bytes, if a copy has them.
    pub(crate) fn copied(&self) -> Option<&'a [u8]> {
        match self.entry.source {
            Source::Copy(Copied { number, from }) => {
                let at = usize::try_from(self.offset.checked_sub(from)?).ok()?;
                self.stores.copies.get(number)?.get(at..)?.get(..self.len as usize)
            }
            _ => None,
        }
    }

    /// The location of its bytes, if the message is contiguous.
    #[inline]
    pub(crate) fn payload(&self) -> Option<PayloadRef> {
        match &self.entry.source {
            Source::Region(whole) => Some(whole.part(self.offset, self.len)),
            Source::Pieces(_) | Source::Copy(_) | Source::Value(_) => None,
        }
    }

    /// Where the response to it goes, if that is one range.
    pub(crate) fn place(&self) -> Option<PayloadRef> {
        match self.entry.source {
            Source::Region(whole) => Some(whole),
            Source::Pieces(_) | Source::Copy(_) | Source::Value(_) => None,
        }
    }

    /// The locations of its bytes, piece by piece and in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PayloadRef> + use<'a> {
        let (one, several) = match self.entry.source {
            Source::Region(whole) => (Some(whole), None),
            Source::Pieces(pieces) => (None, Some(self.stores.pieces.of(pieces).copied())),
            Source::Copy(_) | Source::Value(_) => (None, None),
        };
        parts_of(one.into_iter().chain(several.into_iter().flatten()), self.offset, self.len)
    }
}

/// What entries of a send queue have besides themselves.
#[derive(Debug, Default)]
pub(super) struct Stores {
    pub(super) pieces: PieceList,
    pub(super) copies: Copies,
}

/// The pieces of all entries that have several, in order.
#[derive(Debug, Default)]
pub(super) struct PieceList {
    pub(super) pieces: VecDeque<PayloadRef>,
    /// Number of pieces removed so far (wrapping).
    pub(super) past: u32,
}

impl PieceList {
    pub(super) fn of(&self, pieces: Pieces) -> impl Iterator<Item = &PayloadRef> {
        let at = pieces.first.wrapping_sub(self.past) as usize;
        self.pieces.iter().skip(at).take(pieces.count as usize)
    }
}
