//! Checks that packets, taken in order, form messages.
//!
//! Every packet states where its bytes go, so placement needs no message state. But if a peer skips, repeats or
//! resizes part of a message, that message must not be acknowledged as complete. This check runs in packet order,
//! after placement, and costs a few comparisons.

use core::hint::cold_path;

use crate::wire::{DataView, Msn, Opcode, Operation};

/// The fields of a packet that the in-order check needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) opcode: Opcode,
    pub(crate) ack_req: bool,
    /// Whether the packet was refused on arrival. Its payload was then not placed.
    pub(crate) refused: bool,
    pub(crate) msn: Msn,
    pub(crate) rqmsn: Msn,
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    pub(crate) dma_len: u32,
    pub(crate) len: u32,
    /// Immediate data, if the opcode has any.
    pub(crate) imm: u32,
}

impl Default for Arrived {
    fn default() -> Self {
        Self {
            opcode: Opcode::WriteOnly,
            ack_req: false,
            refused: false,
            msn: Msn::new(0),
            rqmsn: Msn::new(0),
            va: 0,
            rkey: 0,
            dma_len: 0,
            len: 0,
            imm: 0,
        }
    }
}

impl Arrived {
    /// Copies the fields from a packet with `len` bytes of payload that was not refused.
    #[inline]
    pub(crate) fn new(head: DataView<'_>, len: usize) -> Self {
        let (meth, reth) = (head.meth(), head.reth());
        Self {
            opcode: head.opcode(),
            ack_req: head.ack_req(),
            refused: false,
            msn: meth.msn,
            rqmsn: meth.rqmsn,
            va: reth.va,
            rkey: reth.rkey,
            dma_len: reth.dma_len,
            len: len as u32,
            imm: head.last_word(),
        }
    }

    /// The same for a part of a write without immediate, in which fewer fields count.
    #[inline]
    pub(crate) fn plain(head: DataView<'_>, len: usize) -> Self {
        Self { rqmsn: Msn::new(0), imm: 0, ..Self::new(head, len) }
    }

    /// Whether the payload length fits the opcode, the message length and the path MTU. All packets of a message but
    /// the last carry exactly the MTU (MRC 1.0 section 6.2).
    ///
    /// A message without bytes is an extension; see [`is_empty`](Self::is_empty).
    #[inline]
    pub(crate) fn well_formed(&self, mtu: u32) -> bool {
        match (self.opcode.is_first(), self.opcode.is_last()) {
            (true, true) => self.len == self.dma_len && self.len <= mtu && self.len > 0,
            (_, false) => self.len == mtu && self.dma_len > mtu,
            (false, true) => self.dma_len > mtu && self.len == (self.dma_len - 1) % mtu + 1,
        }
    }

    /// Whether it is a whole message without bytes.
    pub(crate) const fn is_empty(&self) -> bool {
        self.opcode.is_only() && self.len == 0 && self.dma_len == 0
    }

    /// What all packets of a message have in common besides its number: the operation, and the number among messages of
    /// its kind. In a write that ends with immediate, only the last packet's number counts.
    #[inline]
    const fn key<const PLAIN: bool>(&self) -> u32 {
        if PLAIN || self.opcode.is_write() { 0 } else { self.other_key() }
    }

    #[cold]
    const fn other_key(&self) -> u32 {
        let operation = if self.opcode.takes_receive() { 1 } else { 2 };
        operation << 16 | self.rqmsn.get() as u32
    }

    /// Whether it may start a message: the address in a SEND and in a response is the offset in the message.
    #[inline]
    const fn may_begin(&self) -> bool {
        self.opcode.is_write() || self.va == 0 || self.opcode.is_fetch_request()
    }

    /// Whether it is the request of a read or an atomic operation, which has no payload.
    pub(crate) const fn is_request(&self) -> bool {
        self.len == 0
            && match self.opcode.operation() {
                Some(Operation::ReadRequest) => true,
                Some(Operation::AtomicRequest) => self.dma_len == 8,
                _ => false,
            }
    }

    /// Whether it ends a message that takes a receive work request.
    #[inline]
    pub(super) const fn ends_taker(&self) -> bool {
        self.opcode.takes_receive() && self.opcode.is_last()
    }
}

impl Arrived {
    /// Whether its bytes are among the `remaining` ones of its message, and are all of them if and only if it is the
    /// last.
    #[inline]
    const fn fits(&self, remaining: u32) -> bool {
        self.len <= remaining && self.opcode.is_last() == (self.len == remaining)
    }
}

/// Why the next packet in order does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It was refused on arrival.
    Refused,
    MessageNumber {
        expected: Msn,
    },
    /// It does not follow the packet before it.
    Order,
    ImmediateNumber {
        expected: Msn,
    },
    FetchNumber {
        expected: Msn,
    },
}

/// The current message, if there is one.
#[derive(Clone, Copy, Debug)]
struct Open {
    next_va: u64,
    remaining: u32,
    rkey: u32,
    dma_len: u32,
    key: u32,
}

impl Open {
    #[inline]
    const fn goes_on_with<const PLAIN: bool>(&self, packet: &Arrived) -> bool {
        packet.va == self.next_va
            && packet.rkey == self.rkey
            && packet.dma_len == self.dma_len
            && packet.fits(self.remaining)
            && self.key == packet.key::<PLAIN>()
    }
}

/// Checks packets in order.
#[derive(Debug)]
pub(crate) struct Assembly {
    next_msn: Msn,
    next_rqmsn: Msn,
    /// Number of the peer's next read or atomic operation.
    next_request: Msn,
    /// Number of the own request that the next response is for.
    next_response: Msn,
    open: Option<Open>,
}

impl Assembly {
    /// Messages of the peer are numbered from `initial_msn` on, and own requests from `own_msn` on.
    pub(crate) const fn new(initial_msn: Msn, own_msn: Msn) -> Self {
        Self {
            next_msn: initial_msn,
            next_rqmsn: initial_msn,
            next_request: initial_msn,
            next_response: own_msn,
            open: None,
        }
    }

    /// Number of the current message, or of the next one.
    #[inline]
    pub(crate) const fn next_msn(&self) -> Msn {
        self.next_msn
    }

    /// Number of the next message that takes a receive work request.
    #[inline]
    pub(crate) const fn next_rqmsn(&self) -> Msn {
        self.next_rqmsn
    }

    /// Processes the next packet in order. Returns `Ok(true)` if it completes its message.
    ///
    /// `PLAIN`: it is known to be part of a write without immediate.
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    #[inline(always)]
    pub(super) fn step<const PLAIN: bool>(&mut self, packet: &Arrived) -> Result<bool, Flaw> {
        if packet.refused {
            cold_path();
            return Err(Flaw::Refused);
        }
        if packet.msn != self.next_msn {
            cold_path();
            return Err(Flaw::MessageNumber { expected: self.next_msn });
        }
        let last = packet.opcode.is_last();
        match (&mut self.open, packet.opcode.is_first()) {
            (Some(open), false) if open.goes_on_with::<PLAIN>(packet) => {
                if !last {
                    open.next_va = open.next_va.wrapping_add(packet.len.into());
                    open.remaining -= packet.len;
                    return Ok(false);
                }
                self.open = None;
            }
            // On arrival, its length was checked against its opcode and the message length.
            (None, true) if PLAIN || packet.may_begin() => {
                if !last {
                    self.open = Some(Open {
                        next_va: packet.va.wrapping_add(packet.len.into()),
                        remaining: packet.dma_len - packet.len,
                        rkey: packet.rkey,
                        dma_len: packet.dma_len,
                        key: packet.key::<PLAIN>(),
                    });
                    return Ok(false);
                }
            }
            _ => {
                cold_path();
                return Err(Flaw::Order);
            }
        }
        self.next_msn = self.next_msn.next();
        if !PLAIN && !packet.opcode.is_plain_write() {
            self.step_number(packet)?;
        }
        Ok(true)
    }

    /// Counts a message that is numbered among those of its kind.
    #[inline(never)]
    fn step_number(&mut self, packet: &Arrived) -> Result<(), Flaw> {
        if !packet.opcode.takes_receive() {
            return self.step_fetch(packet);
        }
        if packet.rqmsn != self.next_rqmsn {
            return Err(Flaw::ImmediateNumber { expected: self.next_rqmsn });
        }
        self.next_rqmsn = self.next_rqmsn.next();
        Ok(())
    }

    /// Counts a request that the peer expects a response to, or a response.
    #[cold]
    fn step_fetch(&mut self, packet: &Arrived) -> Result<(), Flaw> {
        let is_request = packet.opcode.is_fetch_request();
        let next = if is_request { &mut self.next_request } else { &mut self.next_response };
        if packet.rqmsn != *next {
            return Err(Flaw::FetchNumber { expected: *next });
        }
        *next = next.next();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(opcode: Opcode, msn: u16, va: u64, dma_len: u32, len: u32) -> Arrived {
        Arrived { opcode, msn: Msn::new(msn), va, dma_len, len, ..Arrived::default() }
    }

    #[test]
    fn a_message_is_complete_after_its_last_byte() {
        let mut assembly = Assembly::new(Msn::new(0xffff), Msn::new(0));
        assert_eq!(assembly.step::<false>(&packet(Opcode::WriteFirst, 0xffff, 0, 600, 256)), Ok(false));
        assert_eq!(assembly.step::<false>(&packet(Opcode::WriteMiddle, 0xffff, 256, 600, 256)), Ok(false));
        assert_eq!(assembly.step::<false>(&packet(Opcode::WriteLast, 0xffff, 512, 600, 88)), Ok(true));
        assert_eq!(assembly.step::<false>(&packet(Opcode::WriteOnly, 0, 0, 8, 8)), Ok(true), "MSN wraps");
    }

    #[test]
    fn skipped_repeated_or_resized_parts_are_refused() {
        let first = packet(Opcode::WriteFirst, 0, 0, 600, 256);
        for (bad, flaw) in [
            (packet(Opcode::WriteLast, 0, 512, 600, 88), Flaw::Order),
            (packet(Opcode::WriteMiddle, 0, 0, 600, 256), Flaw::Order),
            (packet(Opcode::WriteMiddle, 0, 256, 601, 256), Flaw::Order),
            (packet(Opcode::WriteMiddle, 1, 256, 600, 256), Flaw::MessageNumber { expected: Msn::new(0) }),
            (packet(Opcode::WriteFirst, 0, 256, 600, 256), Flaw::Order),
            (Arrived { rkey: 9, ..packet(Opcode::WriteMiddle, 0, 256, 600, 256) }, Flaw::Order),
        ] {
            let mut assembly = Assembly::new(Msn::new(0), Msn::new(0));
            assert_eq!(assembly.step::<false>(&first), Ok(false));
            assert_eq!(assembly.step::<false>(&bad), Err(flaw), "{bad:?}");
        }
        let mut assembly = Assembly::new(Msn::new(0), Msn::new(0));
        assert_eq!(assembly.step::<false>(&packet(Opcode::WriteMiddle, 0, 0, 600, 256)), Err(Flaw::Order));
    }

    #[test]
    fn payload_lengths_must_suit_the_mtu() {
        for (opcode, dma_len, len, good) in [
            (Opcode::WriteOnly, 256, 256, true),
            (Opcode::WriteOnly, 257, 257, false),
            (Opcode::WriteOnly, 0, 0, false),
            (Opcode::WriteOnly, 8, 7, false),
            (Opcode::WriteFirst, 257, 256, true),
            (Opcode::WriteFirst, 256, 256, false),
            (Opcode::WriteFirst, 600, 255, false),
            (Opcode::WriteLast, 600, 88, true),
            (Opcode::WriteLast, 512, 256, true),
            (Opcode::WriteLast, 600, 87, false),
            (Opcode::WriteLast, 88, 88, false),
            (Opcode::WriteLast, 256, 256, false),
        ] {
            let packet = packet(opcode, 0, 0, dma_len, len);
            assert_eq!(packet.well_formed(256), good, "{opcode:?} {dma_len} {len}");
        }
    }
}
