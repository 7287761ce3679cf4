//! The messages of a run by their numbers: what each asks for, and what they leave in the memory of both sides.
//!
//! A message whose bytes go to the other side fills a slot of the target there; a READ fills one of the target here. An atomic
//! operation changes its queue pair's counter, which is in the first cell of the target there, and leaves its result in a cell here.

use anyhow::Result;
use spindrift::memory::Region;
use spindrift::verbs::SendOp;

use super::layout::{Layout, Mismatch, Tick, last_write_to};
use super::mix::Mix;
use super::operation::Operation;

/// What a counter changes by from one message number to the next: a number whose bytes all count.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of the pattern from an offset on.
pub(crate) type Pattern<'a> = &'a dyn Fn(usize, &mut [u8]) -> Result<()>;

/// All messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) layout: Layout,
    pub(crate) operations: Mix,
    /// Of the run.
    pub(crate) seed: u64,
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) op: SendOp,
    /// Offset of the bytes here: in the target if they come from the other side, else in the source.
    pub(crate) local: usize,
    /// Offset of the bytes there: in the source of a READ, else in the target.
    pub(crate) remote: usize,
    pub(crate) len: u32,
}

impl Contents {
    #[inline]
    pub(crate) fn operation(&self, qp: usize, number: u64) -> Operation {
        self.operations.operation(self.seed, qp, number)
    }

    /// Bytes that a message moves.
    pub(crate) const fn len(&self, operation: Operation) -> u32 {
        if operation.is_atomic() { Layout::CELL_LEN } else { self.layout.size }
    }

    #[inline]
    pub(crate) fn request(&self, qp: usize, number: u64) -> Request {
        let (layout, operation) = (&self.layout, self.operation(qp, number));
        let (from, to) = (layout.source(qp, number), layout.target(qp, number));
        let imm = number as u32;
        let (op, local, remote) = match operation {
            Operation::Write => (SendOp::Write, from, to),
            Operation::WriteImm => (SendOp::WriteWithImm(imm), from, to),
            Operation::Send => (SendOp::Send, from, 0),
            Operation::SendImm => (SendOp::SendWithImm(imm), from, 0),
            Operation::Read => (SendOp::Read, to, from),
            Operation::FetchAdd | Operation::CompareSwap => {
                let (compare, swap) = (self.counter(qp, number), self.counter(qp, number + 1));
                let op = if operation == Operation::FetchAdd {
                    SendOp::FetchAdd(swap.wrapping_sub(compare))
                } else {
                    SendOp::CompareSwap { compare, swap }
                };
                (op, layout.cell(qp, number), layout.cell(qp, 0))
            }
        };
        Request { op, local, remote, len: self.len(operation) }
    }

    /// What a queue pair's counter holds after its first `messages`: each atomic operation takes it to what belongs to the number
    /// behind its own.
    pub(crate) fn counter(&self, qp: usize, messages: u64) -> u64 {
        let steps = match self.operations {
            Mix::One(_) => messages,
            Mix::Several(_) => {
                let mut before = (0..messages).rev();
                before.find(|&number| self.operation(qp, number).is_atomic()).map_or(0, |last| last + 1)
            }
        };
        let start = self.seed.rotate_left(17) ^ (qp as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        start.wrapping_add(steps.wrapping_mul(STEP))
    }

    /// The first message of a queue pair, from this one on, that takes a receive.
    pub(crate) fn next_taker(&self, qp: usize, from: u64) -> u64 {
        if !self.operations.takes_receive() {
            return u64::MAX;
        }
        (from..u64::MAX).find(|&number| self.operation(qp, number).takes_receive()).unwrap_or(u64::MAX)
    }

    /// How many messages of a queue pair, from this one on, take so many receives.
    pub(crate) fn messages_of(&self, receives: u64, qp: usize, from: u64) -> u64 {
        (0..receives).fold(from, |next, _| self.next_taker(qp, next) + 1) - from
    }

    /// Makes the target ready that the other side's messages use.
    pub(crate) fn clear(&self, target: &Region, tick: Tick<'_>) -> Result<()> {
        let layout = &self.layout;
        layout.clear(target, tick)?;
        if self.operations.has_atomics() {
            (0..layout.qps).try_for_each(|qp| target.store_u64(layout.cell(qp, 0), self.counter(qp, 0)))?;
        }
        Ok(())
    }

    /// Compares all of a target with what so many messages of each queue pair of the other side leave there. `shared` says for each
    /// slot which offset of the pattern its bytes are from, if the messages do not decide that.
    pub(crate) fn check_there(
        &self,
        target: &Region,
        pattern: Pattern<'_>,
        done: &[u64],
        shared: Option<&dyn Fn(usize, u64) -> Option<usize>>,
        tick: Tick<'_>,
    ) -> Result<Option<Mismatch>> {
        let layout = &self.layout;
        let content = |qp: usize, slot: u64| {
            let last = self.last(qp, slot, done, |operation| !operation.is_fetch());
            last.map(|number| layout.source(qp, number))
        };
        let content = shared.unwrap_or(&content);
        if !self.operations.has_atomics() {
            return layout.check(target, pattern, content, tick);
        }
        let mut values = Vec::with_capacity(layout.qps);
        for qp in 0..layout.qps {
            let (offset, done) = (layout.cell(qp, 0), done.get(qp).copied().unwrap_or_default());
            let value = target.load_u64(offset)?;
            if value != self.counter(qp, done) {
                return Ok(Some(Mismatch { qp, offset }));
            }
            values.push(value);
        }
        // The bytes around the counters.
        (0..layout.qps).try_for_each(|qp| layout.wipe_cell(target, qp, 0))?;
        let mismatch = layout.check(target, pattern, content, tick);
        for (qp, value) in values.into_iter().enumerate() {
            target.store_u64(layout.cell(qp, 0), value)?;
        }
        mismatch
    }

    /// Compares all of the target here with what so many messages of each queue pair leave in it. The results of atomic operations
    /// must have been compared before, and are gone after it.
    pub(crate) fn check_here(
        &self,
        target: &Region,
        pattern: Pattern<'_>,
        done: &[u64],
        tick: Tick<'_>,
    ) -> Result<Option<Mismatch>> {
        let layout = &self.layout;
        if self.operations.has_atomics() {
            for qp in 0..layout.qps {
                (0..layout.slots).try_for_each(|slot| layout.wipe_cell(target, qp, slot))?;
            }
        }
        let content = |qp: usize, slot: u64| {
            let last = self.last(qp, slot, done, |operation| operation == Operation::Read);
            last.map(|number| layout.source(qp, number))
        };
        layout.check(target, pattern, &content, tick)
    }

    /// Of the messages of a queue pair that are done, the last of this kind that has this slot.
    fn last(&self, qp: usize, slot: u64, done: &[u64], is: impl Fn(Operation) -> bool) -> Option<u64> {
        let done = done.get(qp).copied().unwrap_or_default();
        let mut number = last_write_to(slot, self.layout.slots, done)?;
        if !self.operations.any(&is) {
            return None;
        }
        while !is(self.operation(qp, number)) {
            number = number.checked_sub(self.layout.slots)?;
        }
        Some(number)
    }

    /// Compares the result of an atomic operation that is complete.
    pub(crate) fn is_result(&self, landing: &Region, qp: usize, number: u64) -> Result<bool> {
        Ok(landing.load_u64(self.layout.cell(qp, number))? == self.counter(qp, number))
    }

    /// Compares what a completed message has left in the target here. What it leaves there is not compared. All bytes of a READ are
    /// if `every`.
    pub(crate) fn is_right_here(
        &self,
        landing: &Region,
        pattern: Pattern<'_>,
        (qp, number): (usize, u64),
        every: bool,
    ) -> Result<bool> {
        match self.operation(qp, number) {
            Operation::Read if every => self.layout.holds(landing, pattern, (qp, number)),
            Operation::FetchAdd | Operation::CompareSwap => self.is_result(landing, qp, number),
            _ => Ok(true),
        }
    }

    /// Of the messages that are done, those that are compared where nobody wants all: the last to each slot, and every atomic
    /// operation.
    pub(crate) fn compared(&self, done: &[u64]) -> u64 {
        let Self { layout, operations, .. } = self;
        if operations.only().is_some() {
            return done.iter().map(|&done| done.min(layout.slots)).sum();
        }
        let mut compared = 0;
        for (qp, &done_of_it) in done.iter().enumerate() {
            for slot in 0..layout.slots {
                let there = self.last(qp, slot, done, |operation| !operation.is_fetch());
                let here = self.last(qp, slot, done, |operation| operation == Operation::Read);
                compared += u64::from(there.is_some()) + u64::from(here.is_some());
            }
            if operations.has_atomics() {
                compared +=
                    (0..done_of_it).filter(|&number| self.operation(qp, number).is_atomic()).count() as u64;
            }
        }
        compared
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bench::layout::bytes_of;

    const SEED: u64 = 11;

    fn contents(size: u64, mix: &str) -> Contents {
        let layout = Layout::with_cells(size, 2, 8).unwrap();
        Contents { layout, operations: mix.parse().unwrap(), seed: SEED }
    }

    /// The memory of both sides, and what requests do to it.
    struct Played {
        contents: Contents,
        pattern: Vec<u8>,
        here: Arc<Region>,
        there: Arc<Region>,
        done: [u64; 2],
    }

    impl Played {
        fn new(contents: Contents) -> Self {
            let [here, there] = [(); 2].map(|()| Region::alloc(contents.layout.memory()).unwrap());
            contents.layout.clear(&here, &mut || Ok(())).unwrap();
            contents.clear(&there, &mut || Ok(())).unwrap();
            let pattern = contents.layout.pattern(SEED);
            Self { contents, pattern, here, there, done: [0; 2] }
        }

        /// The next message of a queue pair, as both sides carry it out.
        fn play(&mut self, qp: usize) {
            let (contents, number) = (self.contents, self.done[qp]);
            let Request { op, local, remote, len } = contents.request(qp, number);
            let bytes = |from: usize| &self.pattern[from..from + len as usize];
            match op {
                SendOp::Write | SendOp::WriteWithImm(_) => {
                    self.there.write_at(remote, bytes(local)).unwrap();
                }
                SendOp::Send | SendOp::SendWithImm(_) => {
                    self.there.write_at(contents.layout.target(qp, number), bytes(local)).unwrap();
                }
                SendOp::Read => self.here.write_at(local, bytes(remote)).unwrap(),
                SendOp::FetchAdd(_) | SendOp::CompareSwap { .. } => {
                    let before = self.there.load_u64(remote).unwrap();
                    let after = match op {
                        SendOp::FetchAdd(more) => before.wrapping_add(more),
                        SendOp::CompareSwap { compare, swap } if compare == before => swap,
                        other => panic!("{other:?} found {before}"),
                    };
                    self.there.store_u64(remote, after).unwrap();
                    self.here.store_u64(local, before).unwrap();
                }
                SendOp::SendWithInvalidate(_) => panic!("{op:?}"),
            }
            let pattern = bytes_of(&self.pattern);
            assert!(contents.is_right_here(&self.here, &pattern, (qp, number), true).unwrap());
            self.done[qp] += 1;
        }

        fn check(&self, done: [u64; 2]) -> [Option<Mismatch>; 2] {
            let (pattern, mut tick) = (bytes_of(&self.pattern), || Ok(()));
            [
                self.contents.check_there(&self.there, &pattern, &done, None, &mut tick).unwrap(),
                self.contents.check_here(&self.here, &pattern, &done, &mut tick).unwrap(),
            ]
        }
    }

    /// Whatever is mixed, memory is what the requests make of it; and neither is one message more or less, nor a changed byte.
    #[test]
    fn memory_is_what_the_messages_leave() {
        for (size, mix) in [
            (100, "write"),
            (100, "read"),
            (8, "fetch-add"),
            (8, "compare-swap"),
            (100, "write=60,send=20,read=20"),
            (2, "write-imm=1,send-imm=1,fetch-add=1,compare-swap=1"),
            (64, "read=1,compare-swap=1"),
            (64, "read=100,fetch-add=1"),
        ] {
            let mut played = Played::new(contents(size, mix));
            assert_eq!(played.check([0; 2]), [None; 2], "{mix}");
            for round in 0..60 {
                played.play(0);
                if round % 3 == 0 {
                    played.play(1);
                }
                assert_eq!(played.check(played.done), [None; 2], "{mix}: {round}");
                // In so few laps no slot gets the bytes that it has.
                let [there, here] = played.check([played.done[0] + 1, played.done[1]]);
                let next = played.contents.operation(0, played.done[0]);
                assert_eq!(there.is_some(), next != Operation::Read, "{mix}: {round}");
                assert_eq!(here.is_some(), next == Operation::Read, "{mix}: {round}");
            }
            let layout = played.contents.layout;
            let behind = [layout.cell(1, 2), layout.cell(1, 2) + 8, layout.memory() - 1];
            for offset in [layout.target(0, 0), layout.target(1, 3)].into_iter().chain(behind) {
                for (side, region) in [&played.there, &played.here].into_iter().enumerate() {
                    let byte = region.load(offset).unwrap();
                    region.store(offset, !byte).unwrap();
                    let found = played.check(played.done)[side];
                    // The cells of results are compared with each of them.
                    let has_atomics = played.contents.operations.has_atomics();
                    let is_result = has_atomics && side == 1 && offset == layout.cell(1, 2);
                    assert_eq!(found.is_some(), !is_result, "{mix}: {side} {offset}");
                    region.store(offset, byte).unwrap();
                }
            }
        }
    }

    /// A result is that of its message: not of another queue pair, and not of the one before or after.
    #[test]
    fn wrong_results_and_counters_are_found() {
        for mix in ["fetch-add", "write=3,compare-swap=1,fetch-add=1"] {
            let mut played = Played::new(contents(8, mix));
            (0..40).for_each(|_| played.play(1));
            let contents = played.contents;
            let is_atomic = |number: &u64| contents.operation(1, *number).is_atomic();
            let number = (30..40).rev().find(is_atomic).unwrap();
            let pattern = bytes_of(&played.pattern);
            let right =
                |qp, number| contents.is_right_here(&played.here, &pattern, (qp, number), false).unwrap();
            assert!(right(1, number));
            let cell = contents.layout.cell(1, number);
            for other in [contents.counter(1, number + 1), contents.counter(0, number), 0] {
                played.here.store_u64(cell, other).unwrap();
                assert!(!right(1, number), "{mix}");
            }
            let counter = contents.layout.cell(1, 0);
            let found = |done: [u64; 2]| {
                contents.check_there(&played.there, &pattern, &done, None, &mut || Ok(())).unwrap()
            };
            assert_eq!(found([0, 40]), None);
            played.there.store_u64(counter, contents.counter(1, number)).unwrap();
            assert_eq!(found([0, 40]), Some(Mismatch { qp: 1, offset: counter }));
        }
    }

    #[test]
    fn receives_are_taken_in_turn() {
        let all = contents(64, "send");
        assert_eq!((all.next_taker(0, 7), all.messages_of(9, 0, 7)), (7, 9));
        let none = contents(64, "write=1,read=1");
        assert_eq!(none.next_taker(0, 7), u64::MAX);
        let some = contents(64, "write=2,send=1,write-imm=1");
        for from in 0..50 {
            let count = some.messages_of(5, 1, from);
            let takes = |number: &u64| some.operation(1, *number).takes_receive();
            assert_eq!((from..from + count).filter(takes).count(), 5);
            assert!(takes(&(from + count - 1)));
        }
    }

    #[test]
    fn what_is_compared_at_the_end() {
        assert_eq!(contents(64, "write").compared(&[3, 9]), 11);
        let mix = contents(64, "write=1,read=1,fetch-add=1");
        assert_eq!(mix.compared(&[0, 0]), 0);
        // Every slot of both sides, and each atomic operation.
        let atomics = (0..400).filter(|&number| mix.operation(0, number).is_atomic()).count();
        assert_eq!(mix.compared(&[400, 0]), 16 + atomics as u64);
    }
}
