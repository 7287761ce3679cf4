//! Layout of memory and contents of writes, by which memory can be verified after a run.
//!
//! Each queue pair has a number of slots in the target memory, and as many in the source. Write number *w*
//! goes to slot *w* mod *slots*. On each lap over the slots it comes from another slot of the source, so that
//! the bytes of an earlier lap are wrong bytes. No two writes in flight share a slot of the target.
//!
//! Behind each slot there may be a cell for atomic operations: a queue pair's counter, or the result of an operation.

use std::ops::Range;

use anyhow::{Context as _, Result, bail};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use spindrift::memory::Region;

use crate::units::format_size;

/// What the target holds where nothing was written.
const UNTOUCHED: u8 = 0xa5;
/// Memory that the slots of all queue pairs may take; more only where two slots each need it. As much as the
/// default window of a queue pair holds, twice over, so that the run measures the
/// transport and not the machine's memory.
const BUDGET: u64 = 8 << 20;
/// Largest memory on each side.
const LIMIT: u64 = 16 << 30;
/// Untouched bytes behind the last slot.
const GUARD: usize = 4096;
/// Slots start at cache lines.
const ALIGN: u64 = 64;

/// Bytes that are made or compared at a time: few enough for the stack, a multiple of what the generator makes at once.
const BLOCK: usize = 16 << 10;
/// Bytes between two calls of [`Tick`]: some milliseconds.
const TICK_BYTES: usize = 16 << 20;

/// Called every few milliseconds during long work; an error ends it.
pub(crate) type Tick<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Goes through memory block by block.
struct Walk<'a> {
    tick: Tick<'a>,
    /// Bytes since the last call of it.
    bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(tick: Tick<'a>) -> Self {
        Self { tick, bytes: 0 }
    }

    /// Calls `work` for each block of a range of offsets, until it finds something.
    fn blocks(
        &mut self,
        range: Range<usize>,
        mut work: impl FnMut(Range<usize>) -> Result<Option<usize>>,
    ) -> Result<Option<usize>> {
        for start in range.clone().step_by(BLOCK) {
            let block = start..range.end.min(start + BLOCK);
            self.bytes += block.len();
            if self.bytes >= TICK_BYTES {
                self.bytes = 0;
                (self.tick)()?;
            }
            let found = work(block)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// How the memory of both sides is cut up for writes of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u32,
    pub(crate) qps: usize,
    pub(crate) slots: u64,
    stride: u64,
    /// From a slot's start to its cell, if there are cells.
    cell: Option<u64>,
}

/// A byte of the target that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) qp: usize,
    pub(crate) offset: usize,
}

impl Layout {
    /// Slots for writes of `size` bytes on `qps` queue pairs with up to `depth` writes in flight on each.
    pub(crate) fn new(size: u64, qps: usize, depth: u32) -> Result<Self> {
        Self::build(size, qps, depth, false)
    }

    /// As [`Layout::new`], with a cell behind each slot.
    pub(crate) fn with_cells(size: u64, qps: usize, depth: u32) -> Result<Self> {
        Self::build(size, qps, depth, true)
    }

    fn build(size: u64, qps: usize, depth: u32, has_cells: bool) -> Result<Self> {
        let Ok(size_32) = u32::try_from(size) else {
            bail!("{}: an MRC message has at most 4294967295 bytes", format_size(size));
        };
        if size == 0 {
            bail!("0: an MRC message has at least 1 byte");
        }
        if qps == 0 {
            bail!("{}: give at least 1 queue pair", format_size(size));
        }
        let room = size.next_multiple_of(ALIGN);
        let (stride, cell) = if has_cells { (room + ALIGN, Some(room)) } else { (room, None) };
        let slots = (BUDGET / (stride * qps as u64)).min(depth.into()).max(2);
        let layout = Self { size: size_32, qps, slots, stride, cell };
        if layout.footprint() > LIMIT {
            bail!(
                "{}: {qps} queue pairs with writes of that size need {} on each side, more than {}; use a smaller size or fewer queue pairs",
                format_size(size),
                format_size(layout.footprint()),
                format_size(LIMIT)
            );
        }
        Ok(layout)
    }

    /// Writes that may be in flight on a queue pair.
    pub(crate) fn depth(&self, wanted: u32) -> u64 {
        u64::from(wanted).min(self.slots)
    }

    /// Bytes that all slots span.
    pub(crate) fn footprint(&self) -> u64 {
        self.stride * self.slots * self.qps as u64
    }

    /// Bytes of memory to register on each side.
    pub(crate) fn memory(&self) -> usize {
        self.footprint() as usize + GUARD
    }

    /// Gives a slot's cell the bytes of memory that nothing was written to.
    pub(crate) fn wipe_cell(&self, target: &Region, qp: usize, slot: u64) -> Result<()> {
        Ok(target.fill(self.cell(qp, slot), Self::CELL_LEN as usize, UNTOUCHED)?)
    }

    /// Bytes of a cell that are used.
    pub(crate) const CELL_LEN: u32 = 8;

    /// Where the cell of message number `number` of a queue pair is. Without cells, where the slot is.
    pub(crate) fn cell(&self, qp: usize, number: u64) -> usize {
        self.target(qp, number) + self.cell.unwrap_or_default() as usize
    }

    fn at(&self, qp: usize, slot: u64) -> usize {
        ((qp as u64 * self.slots + slot) * self.stride) as usize
    }

    /// Where write number `write` of a queue pair comes from.
    pub(crate) fn source(&self, qp: usize, write: u64) -> usize {
        self.at(qp, (write % self.slots + write / self.slots) % self.slots)
    }

    /// Where write number `write` of a queue pair goes to.
    pub(crate) fn target(&self, qp: usize, write: u64) -> usize {
        self.at(qp, write % self.slots)
    }

    /// Source and target of the writes of these queue pairs in order, one of each in turn, without end.
    pub(crate) fn in_turn(
        self,
        qps: impl Iterator<Item = usize> + Clone,
    ) -> impl Iterator<Item = (usize, usize)> {
        let slots = move |lap| (0..self.slots).map(move |slot| (lap, slot));
        (0..self.slots).cycle().flat_map(slots).flat_map(move |(lap, slot)| {
            // As `source` has it, without divisions.
            let from = if lap + slot < self.slots { lap + slot } else { lap + slot - self.slots };
            qps.clone().map(move |qp| (self.at(qp, from), self.at(qp, slot)))
        })
    }

    fn generator(&self, seed: u64) -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from(self.size).rotate_left(32))
    }

    /// Bytes for the whole source, different for each seed and size.
    pub(crate) fn pattern(&self, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.footprint() as usize];
        self.generator(seed).fill_bytes(&mut bytes);
        bytes
    }

    /// Writes [`Layout::pattern`] to the source.
    pub(crate) fn fill(&self, source: &Region, seed: u64, tick: Tick<'_>) -> Result<()> {
        let mut rng = self.generator(seed);
        let mut block = [0; BLOCK];
        Walk::new(tick).blocks(0..self.footprint() as usize, |part| {
            let bytes = block.get_mut(..part.len()).unwrap_or_default();
            rng.fill_bytes(bytes);
            source.write_at(part.start, bytes)?;
            Ok(None)
        })?;
        Ok(())
    }

    /// Makes the target ready for a run.
    pub(crate) fn clear(&self, target: &Region, tick: Tick<'_>) -> Result<()> {
        Walk::new(tick).blocks(0..self.memory(), |part| {
            target.fill(part.start, part.len(), UNTOUCHED)?;
            Ok(None)
        })?;
        Ok(())
    }

    /// Compares the whole target, gaps and the bytes behind it included, with what must be there: `content` says for each slot from
    /// which offset of the pattern its bytes are. `pattern` gives its bytes from an offset on.
    pub(crate) fn check(
        &self,
        target: &Region,
        pattern: &dyn Fn(usize, &mut [u8]) -> Result<()>,
        content: &dyn Fn(usize, u64) -> Option<usize>,
        tick: Tick<'_>,
    ) -> Result<Option<Mismatch>> {
        let (mut walk, mut expected) = (Walk::new(tick), [UNTOUCHED; BLOCK]);
        // Compares a part of the target with the pattern from an offset on, or with bytes that nobody wrote.
        let mut compare = |part: Range<usize>, source: Option<usize>| {
            walk.blocks(part.clone(), |block| {
                let bytes = expected.get_mut(..block.len()).unwrap_or_default();
                match source {
                    Some(source) => pattern(source + (block.start - part.start), bytes)?,
                    None => bytes.fill(UNTOUCHED),
                }
                let offset = target.first_difference(block.start, bytes)?;
                Ok(offset.map(|offset| block.start + offset))
            })
        };
        for qp in 0..self.qps {
            for slot in 0..self.slots {
                let (start, end) = (self.at(qp, slot), self.at(qp, slot + 1));
                let behind = start + self.size as usize;
                let source = content(qp, slot);
                for (part, source) in [(start..behind, source), (behind..end, None)] {
                    if let Some(offset) = compare(part, source)? {
                        return Ok(Some(Mismatch { qp, offset }));
                    }
                }
            }
        }
        let offset = compare(self.footprint() as usize..self.memory(), None)?;
        Ok(offset.map(|offset| Mismatch { qp: self.qps - 1, offset }))
    }

    /// Compares one complete write that no later one has replaced, whole.
    pub(crate) fn holds(
        &self,
        target: &Region,
        pattern: &dyn Fn(usize, &mut [u8]) -> Result<()>,
        (qp, write): (usize, u64),
    ) -> Result<bool> {
        let (from, to, mut expected) = (self.source(qp, write), self.target(qp, write), [0; BLOCK]);
        let mut go_on = || Ok(());
        let found = Walk::new(&mut go_on).blocks(0..self.size as usize, |part| {
            let bytes = expected.get_mut(..part.len()).unwrap_or_default();
            pattern(from + part.start, bytes)?;
            Ok(target.first_difference(to + part.start, bytes)?)
        })?;
        Ok(found.is_none())
    }

    /// Compares the first bytes, up to `most`, of one complete write that no later one has replaced.
    pub(crate) fn sample(
        &self,
        target: &Region,
        pattern: &[u8],
        (qp, write): (usize, u64),
        most: usize,
    ) -> Result<bool> {
        self.sample_at(target, pattern, (qp, write), self.target(qp, write), most)
    }

    /// As [`Layout::sample`], where the write is at this offset of the target.
    pub(crate) fn sample_at(
        &self,
        target: &Region,
        pattern: &[u8],
        (qp, write): (usize, u64),
        offset: usize,
        most: usize,
    ) -> Result<bool> {
        let len = most.min(self.size as usize);
        // Another part of the message each time.
        let room = self.size as usize - len;
        let skip = if room == 0 { 0 } else { (write as usize).wrapping_mul(8191) % (room + 1) };
        let from = self.source(qp, write) + skip;
        let Some(bytes) = pattern.get(from..from + len) else {
            bail!("the pattern is shorter than the source")
        };
        Ok(target.first_difference(offset + skip, bytes)?.is_none())
    }
}

/// Of writes 0 to `writes` - 1, the last that goes to `slot`.
pub(crate) fn last_write_to(slot: u64, slots: u64, writes: u64) -> Option<u64> {
    let laps = writes.checked_sub(slot + 1)? / slots;
    Some(laps * slots + slot)
}

/// Bytes of a pattern from an offset on, as [`Layout::check`] wants them.
pub(crate) fn bytes_of(pattern: &[u8]) -> impl Fn(usize, &mut [u8]) -> Result<()> {
    |at, out| {
        out.copy_from_slice(
            pattern.get(at..at + out.len()).context("the pattern is shorter than the source")?,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::cell::Cell;

    use super::*;

    #[test]
    fn slots_fit_the_depth_and_the_budget() {
        let layout = Layout::new(65_536, 1, 128).unwrap();
        assert_eq!((layout.slots, layout.footprint()), (128, 8 << 20));
        let layout = Layout::new(8 << 20, 4, 128).unwrap();
        assert_eq!(layout.slots, 2);
        assert_eq!(layout.depth(128), 2);
        assert_eq!(Layout::new(1, 1, 1).unwrap().slots, 2, "laps need another source");
        assert!(Layout::new(0, 1, 1).is_err());
        assert!(Layout::new(1, 0, 1).is_err());
        assert!(Layout::new(1 << 32, 1, 1).is_err());
        assert!(Layout::new(1 << 31, 1000, 1).is_err());
    }

    #[test]
    fn the_last_write_to_a_slot() {
        assert_eq!(last_write_to(0, 4, 0), None);
        assert_eq!(last_write_to(3, 4, 3), None);
        assert_eq!(last_write_to(3, 4, 4), Some(3));
        assert_eq!(last_write_to(1, 4, 10), Some(9));
        assert_eq!(last_write_to(2, 4, 10), Some(6));
    }

    #[test]
    fn writes_in_turn_are_the_writes_by_number() {
        let layout = Layout::new(100, 3, 4).unwrap();
        let turns: Vec<_> = layout.in_turn([0, 2].into_iter()).take(80).collect();
        let by_number = (0..40).flat_map(|write| [0, 2].map(|qp| (qp, write)));
        let expected: Vec<_> =
            by_number.map(|(qp, write)| (layout.source(qp, write), layout.target(qp, write))).collect();
        assert_eq!(turns, expected);
    }

    /// Large memory takes several blocks and ticks; every byte of it is made, cleared and compared, and an error of a tick ends that.
    #[test]
    fn large_memory_goes_block_by_block() {
        let layout = Layout::new((10 << 20) + 7, 1, 1).unwrap();
        let pattern = layout.pattern(9);
        let [source, target] = [(); 2].map(|()| Region::alloc(layout.memory()).unwrap());
        let ticks = Cell::new(0);
        let mut tick = || {
            ticks.set(ticks.get() + 1);
            Ok(())
        };
        layout.fill(&source, 9, &mut tick).unwrap();
        assert_eq!(source.first_difference(0, &pattern).unwrap(), None);
        layout.clear(&target, &mut tick).unwrap();
        assert_eq!(ticks.get(), 2, "20 MiB each");
        let from = layout.source(0, 0);
        target.write_at(0, &pattern[from..from + layout.size as usize]).unwrap();
        let content = |_, slot| last_write_to(slot, layout.slots, 1).map(|write| layout.source(0, write));
        let check = |tick: Tick<'_>| layout.check(&target, &bytes_of(&pattern), &content, tick);
        assert_eq!(check(&mut tick).unwrap(), None);
        for offset in [BLOCK - 1, BLOCK, layout.size as usize - 1, layout.size as usize, layout.memory() - 1]
        {
            let byte = target.load(offset).unwrap();
            target.store(offset, byte ^ 1).unwrap();
            let found = check(&mut tick).unwrap();
            assert_eq!(found.map(|m| m.offset), Some(offset));
            target.store(offset, byte).unwrap();
        }
        let mut over = || bail!("over");
        assert!(check(&mut over).is_err());
        assert!(layout.fill(&source, 9, &mut over).is_err());
        assert!(layout.clear(&target, &mut over).is_err());
    }

    /// Writes by hand; then each kind of damage is found.
    #[test]
    fn damage_is_found_wherever_it_is() {
        let layout = Layout::new(100, 2, 4).unwrap();
        let pattern = layout.pattern(7);
        let target = Region::alloc(layout.memory()).unwrap();
        let mut tick = || Ok(());
        layout.clear(&target, &mut tick).unwrap();
        let mut check = |writes: &[u64]| {
            let content = |qp: usize, slot| {
                last_write_to(slot, layout.slots, writes[qp]).map(|write| layout.source(qp, write))
            };
            layout.check(&target, &bytes_of(&pattern), &content, &mut tick).unwrap()
        };
        assert_eq!(check(&[0, 0]), None);
        let put = |qp, write| {
            let from = layout.source(qp, write);
            target.write_at(layout.target(qp, write), &pattern[from..from + 100]).unwrap();
        };
        (0..11).for_each(|write| put(0, write));
        (0..3).for_each(|write| put(1, write));
        assert_eq!(check(&[11, 3]), None);
        assert!(layout.sample(&target, &pattern, (0, 10), 64).unwrap());
        assert!(!layout.sample(&target, &pattern, (0, 6), 64).unwrap(), "write 10 took its slot");
        // A write that did not happen leaves the bytes of the lap before.
        assert!(check(&[12, 3]).is_some());
        for offset in [0, 99, 100, 127, 128, layout.footprint() as usize, layout.memory() - 1] {
            let byte = target.load(offset).unwrap();
            target.store(offset, byte ^ 1).unwrap();
            assert_eq!(check(&[11, 3]).map(|m| m.offset), Some(offset));
            target.store(offset, byte).unwrap();
        }
    }
}
