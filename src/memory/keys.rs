//! Random keys and the table of their values.

use rand::Rng;

/// Never used as a key.
const NO_KEY: u32 = 0;

/// Slots of a small table.
const FIRST_SLOTS: usize = 16;

/// A value for every live key.
///
/// All 32 bits of a key are random. Its low bits are the number of its slot: keys are drawn until one meets a free
/// slot, of which there are always at least as many as taken ones. A lookup therefore costs no more than a mask, and
/// a slot's number does not reveal when its key was drawn, or which keys are near it.
#[derive(Debug)]
pub(super) struct KeyTable<V> {
    /// As many as a power of two, or none yet.
    slots: Vec<Slot<V>>,
    live: u32,
    /// Of `slots`' length.
    index_mask: u32,
}

#[derive(Debug)]
struct Slot<V> {
    /// [`NO_KEY`] if never used, the last value's key when free.
    key: u32,
    value: Option<V>,
}

impl<V> Slot<V> {
    const EMPTY: Self = Self { key: NO_KEY, value: None };
}

impl<V> KeyTable<V> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), live: 0, index_mask: 0 }
    }

    /// Live keys.
    pub(super) const fn len(&self) -> u32 {
        self.live
    }

    /// Slots, for [`KeyTable::reserve`].
    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Draws a key that meets a free slot and differs from the previous key of this slot.
    pub(super) fn draw(&mut self, rng: &mut impl Rng) -> u32 {
        self.reserve(2 * (self.live as usize + 1));
        loop {
            let key = rng.next_u32();
            let slot = self.slots.get(self.index(key));
            if key != NO_KEY && slot.is_some_and(|slot| slot.value.is_none() && slot.key != key) {
                return key;
            }
        }
    }

    /// Puts a value in its key's slot. The key was drawn from this table, or from one with as many slots that holds all
    /// keys of this one.
    pub(super) fn insert(&mut self, key: u32, value: V) {
        let index = self.index(key);
        let Some(slot) = self.slots.get_mut(index) else { return };
        debug_assert!(slot.value.is_none(), "two live keys in one slot");
        self.live += u32::from(slot.value.is_none());
        *slot = Slot { key, value: Some(value) };
    }

    #[inline]
    pub(super) fn get(&self, key: u32) -> Option<&V> {
        let slot = self.slots.get(self.index(key))?;
        slot.value.as_ref().filter(|_| slot.key == key)
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut V> {
        let index = self.index(key);
        let slot = self.slots.get_mut(index)?;
        slot.value.as_mut().filter(|_| slot.key == key)
    }

    /// Removes the value but keeps the key, so that the slot's next key differs from it.
    pub(super) fn remove(&mut self, key: u32) -> Option<V> {
        let index = self.index(key);
        let slot = self.slots.get_mut(index).filter(|slot| slot.key == key)?;
        let value = slot.value.take()?;
        self.live -= 1;
        Some(value)
    }

    /// All keys and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.slots.iter().filter_map(|slot| Some((slot.key, slot.value.as_ref()?)))
    }

    /// Grows to a power of two of at least `least` slots. Keys in different slots stay in different slots, since more
    /// of their bits count.
    pub(super) fn reserve(&mut self, least: usize) {
        if least <= self.slots.len() {
            return;
        }
        let len = least.next_power_of_two().max(FIRST_SLOTS);
        let mut slots: Vec<_> = core::iter::repeat_with(|| Slot::EMPTY).take(len).collect();
        self.index_mask = len as u32 - 1;
        for slot in self.slots.drain(..).filter(|slot| slot.value.is_some()) {
            if let Some(place) = slots.get_mut((slot.key & self.index_mask) as usize) {
                *place = slot;
            }
        }
        self.slots = slots;
    }

    #[inline]
    const fn index(&self, key: u32) -> usize {
        (key & self.index_mask) as usize
    }
}
