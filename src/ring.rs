//! Rings indexed by a sequence number that never wraps (64 bit), sized by what is outstanding.
//!
//! PSNs are 24 bit on the wire; inside, requester and responder count packets with a `u64`, and a
//! slot of a ring belongs to sequence number `seq` as long as the window is no longer than the
//! ring. Rings start empty and double on demand, so that an idle queue pair costs nothing, and
//! a busy one stops allocating once its window has been seen.

/// Smallest ring that is allocated, in slots; also the number of bits in a word of [`BitRing`].
const MIN_SLOTS: u64 = 64;

/// A ring of plain records.
#[derive(Debug, Default)]
pub(crate) struct SeqRing<T> {
    slots: Box<[T]>,
}

impl<T: Copy + Default> SeqRing<T> {
    /// Makes room for every sequence number in `[low, high)`, keeping what is there.
    #[inline]
    pub(crate) fn ensure(&mut self, low: u64, high: u64) {
        let need = high - low;
        if need > self.slots.len() as u64 {
            self.grow(low, need);
        }
    }

    /// How many sequence numbers in a row there is room for.
    pub(crate) const fn room(&self) -> u64 {
        self.slots.len() as u64
    }

    #[cold]
    fn grow(&mut self, low: u64, need: u64) {
        let mut grown =
            vec![T::default(); need.max(MIN_SLOTS).next_power_of_two() as usize].into_boxed_slice();
        let old_len = self.slots.len() as u64;
        let mask = grown.len() - 1;
        for seq in low..low + old_len {
            grown[seq as usize & mask] = self.slots[seq as usize & (old_len as usize - 1)];
        }
        self.slots = grown;
    }

    /// Gives memory back if there is more than a window of `most` needs, keeping what is in `[low, high)`.
    pub(crate) fn fit(&mut self, low: u64, high: u64, most: u64) {
        if self.slots.len() as u64 <= most.max(MIN_SLOTS).next_power_of_two() {
            return;
        }
        let mut smaller = Self::default();
        if low < high {
            smaller.ensure(low, high);
        }
        for seq in low..high {
            *smaller.get_mut(seq) = self.get(seq);
        }
        *self = smaller;
    }

    /// Whether nothing stored for a sequence number before `high` has taken the place of `seq`. A ring that grew
    /// after the window left `seq` holds the default value there.
    #[inline]
    pub(crate) const fn keeps(&self, seq: u64, high: u64) -> bool {
        high.saturating_sub(seq) <= self.slots.len() as u64
    }

    /// The record of `seq`; the default value when nothing was ever stored.
    #[inline]
    pub(crate) fn get(&self, seq: u64) -> T {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get(seq as usize & mask).copied().unwrap_or_default()
    }

    /// Stores the record of `seq`, with room for everything from `low` on.
    pub(crate) fn insert(&mut self, low: u64, seq: u64, record: T) {
        self.ensure(low, seq + 1);
        *self.get_mut(seq) = record;
    }

    /// The record of `seq` to change in place. [`ensure`](Self::ensure) must have covered it.
    #[inline]
    pub(crate) fn get_mut(&mut self, seq: u64) -> &mut T {
        let mask = self.slots.len() - 1;
        &mut self.slots[seq as usize & mask]
    }
}

/// A ring of bits. Bits outside the live window must be zero: whoever moves the window clears
/// what it leaves behind.
#[derive(Debug, Default)]
pub(crate) struct BitRing {
    words: Box<[u64]>,
}

impl BitRing {
    /// Makes room for every bit in `[low, high)` and for reading 64 bits from any of them.
    #[inline]
    pub(crate) fn ensure(&mut self, low: u64, high: u64) {
        let need = high - low + 2 * MIN_SLOTS;
        if need > self.words.len() as u64 * 64 {
            self.grow(low, need);
        }
    }

    /// How many bits in a row there is room for, with 64 read from any of them.
    pub(crate) const fn room(&self) -> u64 {
        (self.words.len() as u64 * 64).saturating_sub(2 * MIN_SLOTS)
    }

    #[cold]
    fn grow(&mut self, low: u64, need: u64) {
        let mut grown = vec![0_u64; need.next_power_of_two() as usize / 64].into_boxed_slice();
        let first = low / 64;
        for word in first..first + self.words.len() as u64 {
            let old = self.words[word as usize & (self.words.len() - 1)];
            grown[word as usize & (grown.len() - 1)] = old;
        }
        self.words = grown;
    }

    /// Gives memory back if there is more than a window of `most` needs, keeping what is in `[low, high)`.
    pub(crate) fn fit(&mut self, low: u64, high: u64, most: u64) {
        if self.words.len() as u64 * 64 <= (most + 2 * MIN_SLOTS).next_power_of_two() {
            return;
        }
        let mut smaller = Self::default();
        if low < high {
            smaller.ensure(low, high);
            for seq in (low / 64..high.div_ceil(64)).map(|word| word * 64) {
                *smaller.word_mut(seq) = self.word(seq / 64);
            }
        }
        *self = smaller;
    }

    /// Bits that there is room for.
    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.words.len() * 64
    }

    #[inline]
    fn word(&self, index: u64) -> u64 {
        let mask = self.words.len().wrapping_sub(1);
        self.words.get(index as usize & mask).copied().unwrap_or(0)
    }

    #[inline]
    fn word_mut(&mut self, seq: u64) -> &mut u64 {
        let mask = self.words.len() - 1;
        &mut self.words[(seq / 64) as usize & mask]
    }

    /// Whether the bit of `seq` is set.
    #[inline]
    pub(crate) fn test(&self, seq: u64) -> bool {
        self.word(seq / 64) >> (seq % 64) & 1 == 1
    }

    /// Sets the bit of `seq`.
    #[inline]
    pub(crate) fn set(&mut self, seq: u64) {
        *self.word_mut(seq) |= 1 << (seq % 64);
    }

    /// Sets the bit of `seq`, with room for everything from `low` on.
    pub(crate) fn insert(&mut self, low: u64, seq: u64) {
        self.ensure(low, seq + 1);
        self.set(seq);
    }

    /// Clears the bit of `seq`.
    #[inline]
    pub(crate) fn clear(&mut self, seq: u64) {
        *self.word_mut(seq) &= !(1 << (seq % 64));
    }

    /// Bits `seq..seq + 64`, lowest first.
    #[inline]
    pub(crate) fn get64(&self, seq: u64) -> u64 {
        let shift = seq % 64;
        let low = self.word(seq / 64) >> shift;
        if shift == 0 { low } else { low | self.word(seq / 64 + 1) << (64 - shift) }
    }

    /// Clears `[low, high)`.
    pub(crate) fn clear_range(&mut self, low: u64, high: u64) {
        if self.words.is_empty() {
            return;
        }
        let mut at = low;
        while at < high {
            let in_word = (64 - at % 64).min(high - at);
            let ones = if in_word == 64 { u64::MAX } else { (1 << in_word) - 1 };
            *self.word_mut(at) &= !(ones << (at % 64));
            at += in_word;
        }
    }

    /// The first set bit in `[from, to)`.
    #[inline]
    pub(crate) fn next_set(&self, from: u64, to: u64) -> Option<u64> {
        let mut at = from;
        while at < to {
            let bits = self.get64(at);
            if bits != 0 {
                let hit = at + u64::from(bits.trailing_zeros());
                return (hit < to).then_some(hit);
            }
            at += 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_its_records_when_it_grows() {
        let mut ring = SeqRing::<u32>::default();
        assert_eq!(ring.get(7), 0);
        ring.ensure(1000, 1064);
        for seq in 1000..1064 {
            *ring.get_mut(seq) = seq as u32;
        }
        ring.ensure(1000, 1300);
        for seq in 1000..1064 {
            assert_eq!(ring.get(seq), seq as u32);
        }
    }

    #[test]
    fn rings_that_are_too_large_shrink_around_what_is_in_use() {
        let (mut ring, mut bits) = (SeqRing::<u32>::default(), BitRing::default());
        ring.ensure(1000, 5096);
        bits.ensure(1000, 5096);
        for seq in (4000..4100).step_by(3) {
            *ring.get_mut(seq) = seq as u32;
            bits.set(seq);
        }
        ring.fit(4000, 4100, 4096);
        bits.fit(4000, 4100, 8192 - 128);
        assert_eq!((ring.slots.len(), bits.words.len()), (4096, 8192 / 64), "no larger than allowed");
        ring.fit(4000, 4100, 1024);
        bits.fit(4000, 4100, 1024);
        assert_eq!((ring.slots.len(), bits.words.len()), (128, 256 / 64));
        for seq in 4000..4100 {
            assert_eq!(ring.get(seq), if seq % 3 == 1 { seq as u32 } else { 0 });
            assert_eq!(bits.test(seq), seq % 3 == 1);
        }
        ring.fit(4100, 4100, 64);
        bits.fit(4100, 4100, 64);
        assert_eq!((ring.slots.len(), bits.words.len()), (0, 256 / 64), "a window of 64 needs 256 bits");
    }

    #[test]
    fn bits_survive_growth_and_wrap() {
        let mut ring = BitRing::default();
        assert!(!ring.test(5));
        assert_eq!(ring.get64(3), 0);
        ring.ensure(100, 160);
        ring.set(101);
        ring.set(150);
        ring.ensure(100, 1100);
        ring.set(1099);
        assert_eq!(ring.next_set(100, 1100), Some(101));
        assert_eq!(ring.next_set(102, 1100), Some(150));
        assert_eq!(ring.next_set(151, 1100), Some(1099));
        assert_eq!(ring.next_set(151, 1099), None);
        assert_eq!(ring.get64(150), 1);
        ring.clear_range(100, 1100);
        assert_eq!(ring.next_set(100, 1100), None);
    }
}
