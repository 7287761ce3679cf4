//! A message, and what becomes of memory through it.
//!
//! The tests of the core compile this file, too: it knows nothing of the network.

use std::ops::Range;

use spindrift::work::SendOp;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) op: SendOp,
    pub(crate) len: usize,
    /// Where in the source region it starts.
    pub(crate) source: usize,
    /// The part of the target region that it uses: the bytes that are written, the buffer that receives them, or the bytes
    /// that are read.
    pub(crate) target: Range<usize>,
    /// The part of the region for responses that it uses.
    pub(crate) place: Range<usize>,
    /// Where its bytes go, in the order of the message: in the target region or, if it is a fetch, in that for responses.
    pub(crate) pieces: Vec<Range<usize>>,
    /// Its receive buffer is too short: it must fail, and nothing of it be placed.
    pub(crate) short: bool,
    /// What the peer responds to a fetch.
    pub(crate) response: Vec<u8>,
    /// What an atomic operation stores.
    pub(crate) stored: Option<[u8; 8]>,
}

impl Message {
    /// A message whose bytes go to `target`.
    pub(crate) fn new(wr_id: u64, signaled: bool, op: SendOp, source: usize, target: Range<usize>) -> Self {
        let pieces = vec![target.clone()];
        Self {
            wr_id,
            signaled,
            fence: false,
            op,
            len: target.len(),
            source,
            target,
            place: 0..0,
            pieces,
            short: false,
            response: Vec::new(),
            stored: None,
        }
    }

    /// A fetch of these bytes of the target region, with a place in the region for responses.
    pub(crate) fn fetch(
        wr_id: u64,
        signaled: bool,
        op: SendOp,
        target: Range<usize>,
        place: Range<usize>,
    ) -> Self {
        Self { pieces: vec![place.clone()], place, ..Self::new(wr_id, signaled, op, 0, target) }
    }

    /// Where its bytes go, and the bytes: those of `sent`, or the peer's response.
    pub(crate) fn placed<'a>(&'a self, sent: &'a [u8]) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
        let bytes = if self.op.is_fetch() { &self.response } else { sent };
        let mut from = 0;
        self.pieces.iter().map(move |piece| {
            let part = &bytes[from..from + piece.len()];
            from += piece.len();
            (piece.clone(), part)
        })
    }

    /// What it changes in the target region.
    pub(crate) fn changes<'a>(&'a self, sent: &'a [u8]) -> impl Iterator<Item = Change<'a>> {
        let writes = !self.op.is_fetch();
        let written = writes.then(|| self.placed(sent)).into_iter().flatten();
        let stored = self.stored.as_ref().map(|bytes| Change {
            place: self.target.clone(),
            bytes: bytes.as_slice(),
            whole: true,
        });
        written.map(|(place, bytes)| Change { place, bytes, whole: false }).chain(stored)
    }

    /// What it changes in the region for responses.
    pub(crate) fn results<'a>(&'a self, sent: &'a [u8]) -> impl Iterator<Item = Change<'a>> {
        let placed = self.op.is_fetch().then(|| self.placed(sent)).into_iter().flatten();
        placed.map(|(place, bytes)| Change { place, bytes, whole: false })
    }

    /// Whether a message with this operation must not be posted while this one is under way and both use the same bytes of
    /// the target region: the table of decision 42, and two messages that write.
    pub(crate) fn excludes(&self, later: SendOp, fence: bool) -> bool {
        match (self.op.is_fetch(), later.is_fetch()) {
            (_, true) if later == SendOp::Read || self.op != SendOp::Read => false,
            (true, _) => !fence,
            (false, _) => true,
        }
    }
}

/// Bytes that a message puts somewhere.
#[derive(Clone, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) place: Range<usize>,
    pub(crate) bytes: &'a [u8],
    /// All at once, or not at all.
    pub(crate) whole: bool,
}

impl Change<'_> {
    /// Its part in `window`, as a range of that and as bytes.
    fn within(&self, window: &Range<usize>) -> Option<(Range<usize>, &[u8])> {
        let part = self.place.start.max(window.start)..self.place.end.min(window.end);
        if part.is_empty() {
            return None;
        }
        let bytes = &self.bytes[part.start - self.place.start..part.end - self.place.start];
        Some((part.start - window.start..part.end - window.start, bytes))
    }

    /// It has happened: `model`, the bytes at `window`, is as it makes them.
    pub(crate) fn must(&self, window: &Range<usize>, model: &mut [u8]) {
        if let Some((at, bytes)) = self.within(window) {
            model[at].copy_from_slice(bytes);
        }
    }

    /// It may have happened, or a part of it: `model` takes those of its bytes that are `there`.
    pub(crate) fn may(&self, window: &Range<usize>, model: &mut [u8], there: &[u8]) {
        let Some((at, bytes)) = self.within(window) else { return };
        let there = &there[at.clone()];
        if self.whole && bytes.len() == self.bytes.len() {
            if there == bytes {
                model[at].copy_from_slice(bytes);
            }
            return;
        }
        for ((old, there), new) in model[at].iter_mut().zip(there).zip(bytes) {
            if there == new {
                *old = *new;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cell of decision 42, with and without the fence flag.
    #[test]
    fn what_a_fence_does_not_order_is_excluded() {
        let message = |op| Message::new(0, true, op, 0, 0..8);
        let (write, read, atomic) = (SendOp::Write, SendOp::Read, SendOp::FetchAdd(1));
        for (first, second, without, with) in [
            (write, write, true, true),
            (write, read, false, false),
            (write, atomic, false, false),
            (read, write, true, false),
            (read, read, false, false),
            (read, atomic, true, false),
            (atomic, write, true, false),
            (atomic, read, false, false),
            (atomic, atomic, false, false),
        ] {
            let found = [false, true].map(|fence| message(first).excludes(second, fence));
            assert_eq!(found, [without, with], "{first:?}, then {second:?}");
        }
    }

    #[test]
    fn a_change_counts_where_it_is_seen() {
        let change = |whole| Change { place: 4..8, bytes: &[1, 2, 3, 4], whole };
        for (window, there, whole, expected) in [
            (0..8, [0, 0, 0, 0, 1, 9, 3, 9], false, [0, 0, 0, 0, 1, 0, 3, 0]),
            (0..8, [0, 0, 0, 0, 1, 2, 3, 9], true, [0; 8]),
            (0..8, [0, 0, 0, 0, 1, 2, 3, 4], true, [0, 0, 0, 0, 1, 2, 3, 4]),
            (6..14, [3, 4, 0, 0, 0, 0, 0, 0], false, [3, 4, 0, 0, 0, 0, 0, 0]),
            (8..16, [1; 8], false, [0; 8]),
        ] {
            let mut model = [0; 8];
            change(whole).may(&window, &mut model, &there);
            assert_eq!(model, expected, "{window:?}");
        }
        let mut model = [0; 3];
        change(false).must(&(6..9), &mut model);
        assert_eq!(model, [3, 4, 0]);
    }
}
