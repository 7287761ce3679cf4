//! The send queue: work requests from posting to completion, and their packets.

use std::collections::VecDeque;

use crate::memory::{PayloadRef, RegionSlot, parts_of};
use crate::wire::Msn;
use crate::work::{RemoteAddr, SendOp, SendWr, Sge};

use super::copies::Copies;
use super::packet::{Entry, Form, PacketSpec, PieceList, Pieces, Source, Stores};

/// Work requests in posting order. The front is the oldest that is not completed.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    stores: Stores,
    /// Index of the entry whose packets are being sent for the first time.
    sending: usize,
    /// Packet sequence number after the last queued packet.
    end: u64,
    next_msn: Msn,
    next_rqmsn: Msn,
    /// Number of the next read or atomic operation.
    next_fetch: Msn,
    /// Queued responses, by the packet after their last one.
    pub(super) responses: VecDeque<u64>,
    /// The newest message that has begun is a response.
    after_response: bool,
    depth: usize,
    /// Number of first transmissions since the last one that requested an acknowledgement.
    unasked: u64,
}

impl SendQueue {
    /// At least one message out of this many requests an acknowledgement.
    const ACK_EVERY_MESSAGES: u16 = 16;
    /// The last packet of a signalled message requests an acknowledgement if as many packets as this were sent since
    /// the last request.
    const ACK_EVERY_PACKETS: u64 = 16;
    /// In short queues, a fraction (1/n) of the queue length applies instead. Most of the queue is then still in
    /// flight when the acknowledgement arrives.
    const ACKS_OF_QUEUE: u64 = 8;
    /// Number of requests that an empty queue keeps room for.
    const KEPT: usize = 16;

    /// Whether storage must grow for one more request.
    #[inline]
    pub(crate) fn has_outgrown(&self) -> bool {
        self.entries.len() == self.entries.capacity()
    }

    /// Whether it is empty and has more storage than an idle queue should.
    #[inline]
    pub(crate) fn is_oversized(&self) -> bool {
        self.entries.is_empty() && self.entries.capacity() > Self::KEPT
    }

    pub(crate) fn new(depth: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            stores: Stores::default(),
            sending: 0,
            end: 0,
            next_msn: Msn::new(0),
            next_rqmsn: Msn::new(0),
            next_fetch: Msn::new(0),
            responses: VecDeque::new(),
            after_response: false,
            depth,
            unasked: 0,
        }
    }

    /// Sets the first message number, before anything is queued.
    pub(crate) fn start_at(&mut self, msn: Msn) {
        self.next_msn = msn;
        self.next_rqmsn = msn;
        self.next_fetch = msn;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.depth + self.responses.len()
    }

    /// One past the last packet queued.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of work requests, which excludes responses.
    pub(crate) fn requests(&self) -> usize {
        self.entries.len() - self.responses.len()
    }

    /// Number of responses.
    pub(crate) fn responses(&self) -> usize {
        self.responses.len()
    }

    /// The packet after the last one of the response after the `older` oldest ones.
    pub(crate) fn end_of_response(&self, older: usize) -> Option<u64> {
        self.responses.get(older).copied()
    }

    pub(crate) fn begin_pieces(&self) -> Pieces {
        Pieces {
            first: self.stores.pieces.past.wrapping_add(self.stores.pieces.pieces.len() as u32),
            count: 0,
        }
    }

    pub(crate) fn add_piece(&mut self, pieces: &mut Pieces, piece: PayloadRef) {
        self.stores.pieces.pieces.push_back(piece);
        pieces.count += 1;
    }

    pub(crate) fn take_back_pieces(&mut self, pieces: Pieces, mut unpin: impl FnMut(RegionSlot)) {
        for _ in 0..pieces.count {
            self.stores.pieces.pieces.pop_back().inspect(|piece| unpin(piece.slot));
        }
    }

    #[cold]
    fn drop_pieces(&mut self, oldest: Pieces, unpin: impl FnMut(RegionSlot)) {
        let PieceList { pieces, past } = &mut self.stores.pieces;
        let count = pieces.len().min(oldest.count as usize);
        pieces.drain(..count).map(|piece| piece.slot).for_each(unpin);
        *past = past.wrapping_add(oldest.count);
    }

    /// Releases the storage of an empty queue.
    pub(crate) fn give_up_room(&mut self) {
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
            self.stores.pieces.pieces = VecDeque::new();
            self.stores.copies.give_up_room();
        }
    }

    /// Queues a request whose bytes are pinned.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the way of every request; measured by benches/instructions.rs")]
    pub(crate) fn push(&mut self, wr: &SendWr, sig_all: bool, source: Source, mtu: u32) {
        let &SendWr { wr_id, op, local: Sge { len, .. }, mut remote, signaled, fence } = wr;
        let signaled = signaled || sig_all;
        let (mut form, mut payload, mut rqmsn) = (Form(Form::WRITE), len, Msn::new(0));
        if !matches!(op, SendOp::Write) {
            form = Form::of(op);
            rqmsn = self.number(form);
            payload = if form.is_fetch() { 0 } else { len };
            if form.is_send() {
                remote = RemoteAddr::default();
            }
        }
        let packets = payload.div_ceil(mtu).max(1);
        let msn = self.next_msn;
        self.next_msn = msn.next();
        let first = self.end;
        self.entries.push_back(Entry {
            wr_id,
            op,
            form,
            signaled,
            fence,
            len,
            payload,
            remote,
            source,
            first,
            packets,
            msn,
            rqmsn,
            held_until: 0,
        });
        self.end += u64::from(packets);
    }

    /// The number of a message among those of its kind. MRC 1.0 table 6-8: used for messages that take a receive work
    /// request, 0 in other writes. Reads and atomic operations have numbers of their own.
    #[inline(never)]
    fn number(&mut self, form: Form) -> Msn {
        let next = if form.is_fetch() { &mut self.next_fetch } else { &mut self.next_rqmsn };
        let number = *next;
        *next = number.next();
        number
    }

    /// Queues the response to the peer's request number `number`, whose `len` bytes are in `source`.
    ///
    /// It goes before work requests whose packets have not been sent, since these may have to wait for the peer. After a
    /// response, one work request has its turn if there is any. `next`: the first packet not sent.
    pub(crate) fn push_response(&mut self, number: Msn, source: Source, (len, mtu): (u32, u32), next: u64) {
        let mut at = self.sending;
        let mut after_response = self.after_response;
        if self.entries.get(at).is_some_and(|entry| entry.first < next) {
            after_response = self.entries.get(at).is_some_and(Entry::is_response);
            at += 1;
        }
        if let Some(last) = (at..self.entries.len()).rev().find(|&at| self.entries[at].is_response()) {
            (at, after_response) = (last + 1, true);
        }
        at = (at + usize::from(after_response)).min(self.entries.len());
        let first = self.entries.get(at).map_or(self.end, |entry| entry.first);
        let msn = self.entries.get(at).map_or(self.next_msn, |entry| entry.msn);
        let packets = len.div_ceil(mtu).max(1);
        let form = Form(match source {
            Source::Value(_) => Form::ATOMIC_RESPONSE,
            _ => Form::READ_RESPONSE,
        });
        let response = Entry {
            wr_id: 0,
            op: SendOp::Write,
            form,
            signaled: false,
            fence: false,
            len,
            payload: len,
            remote: RemoteAddr::default(),
            source,
            first,
            packets,
            msn,
            rqmsn: number,
            held_until: 0,
        };
        self.entries.insert(at, response);
        for entry in self.entries.range_mut(at + 1..) {
            entry.first += u64::from(packets);
            entry.msn = entry.msn.next();
        }
        self.end += u64::from(packets);
        self.next_msn = self.next_msn.next();
        self.responses.push_back(first + u64::from(packets));
    }

    /// Moves the next response before the work requests that wait, if there is one. The first of these has not begun.
    #[cold]
    pub(crate) fn promote_response(&mut self) {
        let waiting = self.entries.range(self.sending..);
        let Some(skipped) = waiting.clone().position(Entry::is_response).filter(|&skipped| skipped > 0)
        else {
            return;
        };
        let at = self.sending + skipped;
        let (Some(head), Some(mut response)) =
            (self.entries.get(self.sending).copied(), self.entries.remove(at))
        else {
            return;
        };
        for entry in self.entries.range_mut(self.sending..at) {
            entry.first += u64::from(response.packets);
            entry.msn = entry.msn.next();
        }
        (response.first, response.msn) = (head.first, head.msn);
        let end = response.end();
        self.entries.insert(self.sending, response);
        // Those before it have been sent, so it is the first whose packets are not.
        if let Some(place) = self.responses.iter_mut().find(|place| **place > head.first) {
            *place = end;
        }
    }

    /// Whether any packet has not been sent yet.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        self.sending < self.entries.len()
    }

    /// The entry whose packets are being sent for the first time.
    #[inline]
    pub(crate) fn sending(&self) -> Option<&Entry> {
        self.entries.get(self.sending)
    }

    /// Sends packet `seq`, the next new one, with this ticket. The flag tells whether the end of its message requests
    /// an acknowledgement.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub(crate) fn send_next(&mut self, seq: u64, mtu: u32, ticket: u64) -> Option<(PacketSpec<'_>, bool)> {
        let ends_queue = self.sending + 1 >= self.entries.len();
        let patience = (self.entries.len() as u64 / Self::ACKS_OF_QUEUE).min(Self::ACK_EVERY_PACKETS);
        let entry = self.entries.get_mut(self.sending)?;
        entry.held_until = ticket + 1;
        let spec = PacketSpec::new(entry, &self.stores, seq, mtu);
        self.unasked += 1;
        let mut asks = false;
        if spec.form.is_last() {
            self.sending += 1;
            self.after_response = spec.form.is_response();
            asks = ends_queue
                || spec.form.takes_receive()
                || spec.entry.msn.get().is_multiple_of(Self::ACK_EVERY_MESSAGES)
                || (spec.entry.signaled && self.unasked >= patience);
            if asks {
                self.unasked = 0;
            }
        }
        Some((spec, asks))
    }

    /// The newest message whose packets have all been sent, and the copies of the queue.
    pub(super) fn newest_sent(&mut self) -> Option<(&mut Entry, &mut Copies)> {
        let entry = self.entries.get_mut(self.sending.checked_sub(1)?)?;
        Some((entry, &mut self.stores.copies))
    }

    /// Ports may keep the payload of packet `seq` until this ticket is released.
    pub(crate) fn hold_until(&mut self, seq: u64, ticket: u64) {
        let at = self.entries.partition_point(|entry| entry.end() <= seq);
        if let Some(entry) = self.entries.get_mut(at) {
            entry.held_until = ticket;
        }
    }

    /// Packet `seq`, sent before or not.
    pub(crate) fn packet(&self, seq: u64, mtu: u32) -> Option<PacketSpec<'_>> {
        self.find(seq).map(|entry| PacketSpec::new(entry, &self.stores, seq, mtu))
    }

    /// The entry that packet `seq` belongs to.
    pub(crate) fn find(&self, seq: u64) -> Option<&Entry> {
        let at = self.entries.partition_point(|entry| entry.end() <= seq);
        self.entries.get(at).filter(|entry| entry.first <= seq)
    }

    /// The ranges of the `len` bytes from `offset` of what the entry of packet `seq` names, in order.
    pub(super) fn ranges(
        &self,
        seq: u64,
        offset: u64,
        len: u32,
    ) -> impl Iterator<Item = PayloadRef> + use<'_> {
        let ranges = self.find(seq).into_iter().flat_map(|entry| {
            let (one, several) = match entry.source {
                Source::Region(whole) => (Some(whole), None),
                Source::Pieces(pieces) => (None, Some(self.stores.pieces.of(pieces).copied())),
                Source::Copy(_) | Source::Value(_) => (None, None),
            };
            one.into_iter().chain(several.into_iter().flatten())
        });
        parts_of(ranges, offset, len)
    }

    /// The number of entries before the one that packet `seq` belongs to.
    pub(crate) fn ahead_of(&self, seq: u64) -> u32 {
        self.entries.partition_point(|entry| entry.end() <= seq) as u32
    }

    /// The oldest entry.
    pub(crate) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// Removes the oldest entry. `unpin` is called for each region pinned for it.
    #[inline]
    pub(crate) fn pop(&mut self, mut unpin: impl FnMut(RegionSlot)) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.sending = self.sending.saturating_sub(1);
        match entry.source {
            Source::Region(payload) => unpin(payload.slot),
            Source::Pieces(pieces) => self.drop_pieces(pieces, unpin),
            Source::Copy(_) => self.stores.copies.drop_oldest(),
            Source::Value(_) => {}
        }
        if entry.is_response() {
            self.responses.pop_front();
        }
        Some(entry)
    }
}

/// Storage released by empty send queues, for queues that outgrow theirs. All queue pairs of an endpoint share it, so
/// a queue pair that was busy once does not keep its storage for ever.
#[derive(Debug, Default)]
pub(crate) struct SpareQueues {
    /// Indexed by the logarithm of their size.
    by_size: [Vec<VecDeque<Entry>>; Self::SIZES],
    /// Total capacity in entries.
    entries: usize,
}

impl SpareQueues {
    /// In any sensible configuration, a send queue has at most 2^20 entries. Larger storage is not kept.
    const SIZES: usize = 21;
    /// Most entries kept, in addition to one storage of each size: 320 KB.
    const MAX: usize = 4096;

    /// Makes room for more requests in a full queue.
    #[cold]
    pub(crate) fn grow(&mut self, queue: &mut SendQueue) {
        let size = (queue.entries.capacity() + 1).max(SendQueue::KEPT).next_power_of_two();
        let found = self.by_size.get_mut(size.ilog2() as usize).and_then(Vec::pop);
        let mut larger = match found {
            Some(storage) => {
                self.entries -= storage.capacity();
                storage
            }
            None => VecDeque::with_capacity(size),
        };
        larger.extend(queue.entries.drain(..));
        let old = core::mem::replace(&mut queue.entries, larger);
        self.keep(old);
    }

    /// Takes the storage of an empty queue if it is large.
    #[cold]
    pub(crate) fn shrink(&mut self, queue: &mut SendQueue) {
        let small = self.by_size.get_mut(SendQueue::KEPT.ilog2() as usize).and_then(Vec::pop);
        if let Some(small) = &small {
            self.entries -= small.capacity();
        }
        let old = core::mem::replace(&mut queue.entries, small.unwrap_or_default());
        self.keep(old);
    }

    /// The capacity of the kept storage, in entries.
    #[cfg(test)]
    pub(super) const fn kept(&self) -> usize {
        self.entries
    }

    fn keep(&mut self, storage: VecDeque<Entry>) {
        let capacity = storage.capacity();
        let Some(same) = capacity.checked_ilog2().and_then(|size| self.by_size.get_mut(size as usize)) else {
            return;
        };
        if same.is_empty() || self.entries + capacity <= Self::MAX {
            same.push(storage);
            self.entries += capacity;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::wire::{DataHead, Opcode};

    fn write(len: u32, op: SendOp) -> SendWr {
        SendWr {
            wr_id: 7,
            op,
            local: Sge { addr: 0x1000, len, lkey: 1 },
            remote: RemoteAddr { addr: 0x9000, rkey: 2 },
            signaled: true,
            fence: false,
        }
    }

    fn region() -> Source {
        Source::Region(PayloadRef { offset: 0x1000, len: u32::MAX, ..PayloadRef::EMPTY })
    }

    /// The message numbers are those of decision 16 of `docs/protocol.md`.
    #[test]
    fn a_message_is_cut_at_the_mtu() {
        let mut queue = SendQueue::new(4);
        queue.push(&write(600, SendOp::WriteWithImm(9)), false, region(), 256);
        queue.push(&write(256, SendOp::Write), false, region(), 256);
        queue.push(&write(1, SendOp::WriteWithImm(1)), false, region(), 256);
        let seen: Vec<_> = (0..5)
            .map(|seq| {
                let p = queue.packet(seq, 256).unwrap();
                let (reth, meth, payload) = (p.reth(), p.meth(), p.payload().unwrap());
                assert_eq!((payload.offset - 0x1000, payload.len), (reth.va - 0x9000, p.len));
                assert!(p.parts().eq([payload]));
                assert_eq!(p.head_len(), DataHead::len_of(p.opcode(), true));
                (p.opcode(), reth.va, p.len, p.word(), meth.msn.get(), meth.rqmsn.get(), reth.dma_len)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (Opcode::WriteFirst, 0x9000, 256, None, 0, 0, 600),
                (Opcode::WriteMiddle, 0x9100, 256, None, 0, 0, 600),
                (Opcode::WriteLastImm, 0x9200, 88, Some(9), 0, 0, 600),
                (Opcode::WriteOnly, 0x9000, 256, None, 1, 0, 256),
                (Opcode::WriteOnlyImm, 0x9000, 1, Some(1), 2, 1, 1),
            ]
        );
        assert!(queue.find(5).is_none());
    }

    #[test]
    fn messages_are_numbered_from_the_agreed_number_on() {
        let mut queue = SendQueue::new(4);
        queue.start_at(Msn::new(0xffff));
        for op in [SendOp::Write, SendOp::WriteWithImm(1), SendOp::WriteWithImm(2)] {
            queue.push(&write(1, op), false, region(), 256);
        }
        let numbers = |seq| queue.find(seq).map(|entry| (entry.msn.get(), entry.rqmsn.get()));
        assert_eq!([0, 1, 2].map(numbers), [Some((0xffff, 0)), Some((0, 0xffff)), Some((1, 0))]);
    }

    /// Each packet lists its part of each piece, and no piece that it has no bytes of.
    #[test]
    fn a_packet_takes_its_bytes_from_the_pieces_that_hold_them() {
        let mut queue = SendQueue::new(4);
        let mut pieces = queue.begin_pieces();
        for (slot, len) in [100, 156, 300, 256, 1].into_iter().enumerate() {
            let offset = 1_000 * slot as u64;
            queue.add_piece(&mut pieces, PayloadRef { slot: RegionSlot::default(), offset, len });
        }
        queue.push(&write(813, SendOp::Write), false, Source::Pieces(pieces), 256);
        let parts = |seq| {
            let packet = queue.packet(seq, 256).unwrap();
            packet.parts().map(|part| (part.offset, part.len)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0), [(0, 100), (1_000, 156)]);
        assert_eq!(parts(1), [(2_000, 256)]);
        assert_eq!(parts(2), [(2_256, 44), (3_000, 212)]);
        assert_eq!(parts(3), [(3_212, 44), (4_000, 1)]);
    }

    /// Each pinned region is unpinned once, with its request. Piece numbers wrap.
    #[test]
    fn pieces_leave_with_their_request() {
        let mut queue = SendQueue::new(100);
        queue.stores.pieces.past = u32::MAX - 2;
        let piece = |n: u32| PayloadRef { slot: RegionSlot::default(), offset: n.into(), len: 1 + n };
        let add = |queue: &mut SendQueue, numbers: core::ops::Range<u32>| {
            let mut pieces = queue.begin_pieces();
            numbers.for_each(|n| queue.add_piece(&mut pieces, piece(n)));
            pieces
        };
        let mut posted = Vec::new();
        for (first, count) in [(0, 2), (2, 16), (18, 3)] {
            let pieces = add(&mut queue, first..first + count);
            queue.push(&write(600, SendOp::Write), false, Source::Pieces(pieces), 256);
            queue.push(&write(600, SendOp::Write), false, region(), 256);
            posted.push((pieces, first..first + count));
            // The pieces of a request that is not posted.
            let none = add(&mut queue, 90..95);
            let mut given_back = 0;
            queue.take_back_pieces(none, |_| given_back += 1);
            assert_eq!(given_back, 5);
        }
        for (at, (pieces, numbers)) in posted.iter().enumerate() {
            for (pieces, numbers) in &posted[at..] {
                let found: Vec<_> = queue.stores.pieces.of(*pieces).copied().collect();
                assert_eq!(found, numbers.clone().map(piece).collect::<Vec<_>>());
            }
            let mut unpinned = 0;
            let entry = queue.pop(|_| unpinned += 1).unwrap();
            assert_eq!((entry.source, unpinned), (Source::Pieces(*pieces), numbers.len()));
            assert!(queue.pop(|_| unpinned += 1).is_some());
            assert_eq!(unpinned, numbers.len() + 1);
        }
        assert!(queue.stores.pieces.pieces.is_empty() && queue.pop(|_| ()).is_none());
        assert!(queue.stores.pieces.pieces.capacity() > 0 && queue.entries.capacity() > 0);
        queue.give_up_room();
        assert_eq!((queue.stores.pieces.pieces.capacity(), queue.entries.capacity()), (0, 0));
    }

    #[test]
    fn storage_goes_round_between_queues() {
        let (mut spare, mut queues) = (SpareQueues::default(), [SendQueue::new(100), SendQueue::new(100)]);
        let mut capacities = Vec::new();
        for turn in 0..6 {
            let queue = &mut queues[turn % 2];
            for len in 1..=100 {
                if queue.has_outgrown() {
                    spare.grow(queue);
                }
                queue.push(&write(len, SendOp::Write), false, region(), 256);
                assert!(!queue.has_outgrown() || queue.len().is_power_of_two());
            }
            let lens: Vec<_> = core::iter::from_fn(|| queue.pop(|_| ())).map(|entry| entry.len).collect();
            assert_eq!(lens, (1..=100).collect::<Vec<_>>(), "in order through every move");
            assert!(queue.is_oversized());
            spare.shrink(queue);
            assert!(!queue.is_oversized());
            capacities
                .push(spare.entries + queues.iter().map(|queue| queue.entries.capacity()).sum::<usize>());
        }
        assert_eq!(capacities[0], 16 + 32 + 64 + 128);
        assert_eq!(
            capacities[1], capacities[5],
            "the second queue, and every later burst, finds what it needs"
        );
        assert_eq!(spare.entries, spare.by_size.iter().flatten().map(VecDeque::capacity).sum::<usize>());
    }

    /// Beyond the limit, one storage of each size is kept.
    #[test]
    fn no_more_storage_is_kept_than_the_limit() {
        let mut spare = SpareQueues::default();
        let mut give = |capacity| {
            let before = spare.kept();
            spare.keep(VecDeque::with_capacity(capacity));
            spare.kept() - before
        };
        for n in 1..=40 {
            assert_eq!(give(128), if 128 * n <= SpareQueues::MAX { 128 } else { 0 }, "number {n}");
        }
        for capacity in [8, 256, 8192] {
            assert_eq!((give(capacity), give(capacity)), (capacity, 0));
        }
        assert_eq!(give(1 << 21), 0, "no size for it");
    }

    #[test]
    fn not_all_that_was_large_once_is_kept() {
        let mut spare = SpareQueues::default();
        for _ in 0..100 {
            let mut queue = SendQueue::new(2048);
            for _ in 0..2048 {
                if queue.has_outgrown() {
                    queue.entries.reserve(1);
                }
                queue.push(&write(1, SendOp::Write), false, region(), 256);
            }
            while queue.pop(|_| ()).is_some() {}
            spare.shrink(&mut queue);
        }
        assert!(spare.entries <= SpareQueues::MAX, "{}", spare.entries);
    }

    #[test]
    fn the_largest_message_has_more_packets_than_psns() {
        let mut queue = SendQueue::new(1);
        queue.push(&write(u32::MAX, SendOp::Write), false, region(), 256);
        assert!(queue.is_full());
        let entry = *queue.front().unwrap();
        assert_eq!(entry.packets, 1 << 24);
        let last = queue.packet(entry.end() - 1, 256).unwrap();
        assert_eq!((last.opcode(), last.len), (Opcode::WriteLast, 255));
    }
}
