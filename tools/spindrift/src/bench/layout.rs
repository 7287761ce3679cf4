//! Which bytes a write moves, so that memory tells afterwards whether every one of them did.
//!
//! Each queue pair has a number of slots in the target memory, and as many in the source. Write number *w*
//! goes to slot *w* mod *slots*. On each lap over the slots it comes from another slot of the source, so that
//! the bytes of an earlier lap are wrong bytes. No two writes in flight share a slot of the target.

use anyhow::{Result, bail};
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

/// How the memory of both sides is cut up for writes of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u32,
    pub(crate) qps: usize,
    pub(crate) slots: u64,
    stride: u64,
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
        let Ok(size_32) = u32::try_from(size) else {
            bail!("{}: an MRC message has at most 4294967295 bytes", format_size(size));
        };
        if size == 0 {
            bail!("0: an MRC message has at least 1 byte");
        }
        let stride = size.next_multiple_of(ALIGN);
        let slots = (BUDGET / (stride * qps as u64)).min(depth.into()).max(2);
        let layout = Self { size: size_32, qps, slots, stride };
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

    /// Bytes for the whole source, different for each seed and size.
    pub(crate) fn pattern(&self, seed: u64) -> Vec<u8> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from(self.size).rotate_left(32));
        let mut bytes = vec![0; self.footprint() as usize];
        rng.fill_bytes(&mut bytes);
        bytes
    }

    /// Makes the target ready for a run.
    pub(crate) fn clear(&self, target: &Region) -> Result<()> {
        Ok(target.fill(0, self.memory(), UNTOUCHED)?)
    }

    /// Compares the whole target, gaps and the bytes behind it included, with what `writes` (complete writes
    /// of each queue pair) of `pattern` leave there.
    pub(crate) fn check(&self, target: &Region, pattern: &[u8], writes: &[u64]) -> Result<Option<Mismatch>> {
        let (size, stride) = (self.size as usize, self.stride as usize);
        let mut expected = vec![UNTOUCHED; stride];
        for (qp, &writes) in writes.iter().enumerate() {
            for slot in 0..self.slots {
                let bytes = match last_write_to(slot, self.slots, writes) {
                    Some(write) => {
                        let at = self.source(qp, write);
                        pattern.get(at..at + size)
                    }
                    None => None,
                };
                let front = expected.split_at_mut(size).0;
                match bytes {
                    Some(bytes) => front.copy_from_slice(bytes),
                    None => front.fill(UNTOUCHED),
                }
                let at = self.at(qp, slot);
                if let Some(offset) = target.first_difference(at, &expected)? {
                    return Ok(Some(Mismatch { qp, offset: at + offset }));
                }
            }
        }
        let end = self.footprint() as usize;
        let behind = target.first_difference(end, &[UNTOUCHED; GUARD])?;
        Ok(behind.map(|offset| Mismatch { qp: self.qps - 1, offset: end + offset }))
    }

    /// Compares the first bytes, up to `most`, of one complete write that no later one has replaced.
    pub(crate) fn sample(
        &self,
        target: &Region,
        pattern: &[u8],
        (qp, write): (usize, u64),
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
        Ok(target.first_difference(self.target(qp, write) + skip, bytes)?.is_none())
    }
}

/// Of writes 0 to `writes` - 1, the last that goes to `slot`.
fn last_write_to(slot: u64, slots: u64, writes: u64) -> Option<u64> {
    let laps = writes.checked_sub(slot + 1)? / slots;
    Some(laps * slots + slot)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

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

    /// Writes by hand; then each kind of damage is found.
    #[test]
    fn damage_is_found_wherever_it_is() {
        let layout = Layout::new(100, 2, 4).unwrap();
        let pattern = layout.pattern(7);
        let target = Region::alloc(layout.memory()).unwrap();
        layout.clear(&target).unwrap();
        assert_eq!(layout.check(&target, &pattern, &[0, 0]).unwrap(), None);
        let put = |qp, write| {
            let from = layout.source(qp, write);
            target.write_at(layout.target(qp, write), &pattern[from..from + 100]).unwrap();
        };
        (0..11).for_each(|write| put(0, write));
        (0..3).for_each(|write| put(1, write));
        assert_eq!(layout.check(&target, &pattern, &[11, 3]).unwrap(), None);
        assert!(layout.sample(&target, &pattern, (0, 10), 64).unwrap());
        assert!(!layout.sample(&target, &pattern, (0, 6), 64).unwrap(), "write 10 took its slot");
        // A write that did not happen leaves the bytes of the lap before.
        assert!(layout.check(&target, &pattern, &[12, 3]).unwrap().is_some());
        for offset in [0, 99, 100, 127, 128, layout.footprint() as usize, layout.memory() - 1] {
            let byte = target.load(offset).unwrap();
            target.store(offset, byte ^ 1).unwrap();
            assert_eq!(layout.check(&target, &pattern, &[11, 3]).unwrap().map(|m| m.offset), Some(offset));
            target.store(offset, byte).unwrap();
        }
    }
}
