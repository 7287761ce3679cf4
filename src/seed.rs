//! The seed of all random numbers.
//!
//! Keys, queue pair numbers, first PSNs and ids of requests and probes protect a peer from whoever does not hold them,
//! so they come from a cryptographic generator (ChaCha20): even many of them reveal nothing about the next.

use core::fmt;

use rand::rngs::ChaCha20Rng;
use rand::{Rng, SeedableRng};

/// 256 bits that decide every random choice of an endpoint.
///
/// There are two ways to one. [`Seed::fixed`] is for tests and replays: everything that follows from it can be
/// predicted. Bytes from the operating system are for everything else; a [`Context`](crate::verbs::Context) that is
/// given no seed draws them.
///
/// ```
/// use spindrift::seed::Seed;
///
/// assert_eq!(Seed::fixed(7), Seed::from(7));
/// assert_ne!(Seed::fixed(7), Seed::fixed(8));
/// assert_eq!(format!("{:?}", Seed::from([1; 32])), "Seed(..)", "a log does not tell it");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 32]);

/// What a generator is for. Those of one seed are independent of each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Queue pair numbers, PSNs, and the paths of a queue pair.
    QueuePairs,
    /// Keys of memory regions.
    Keys,
    /// Ids and times of endpoint requests, ids of reliability probes.
    Requests,
    /// Names in a key-value store.
    Names,
}

impl Seed {
    /// A seed to repeat a run with. Whoever knows the number knows every key.
    pub const fn fixed(number: u64) -> Self {
        let mut bytes = [0; 32];
        let (low, _) = bytes.split_at_mut(8);
        low.copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }

    /// The seed of one of several endpoints that belong together; the first keeps this one.
    pub(crate) fn of_part(self, number: u32) -> Self {
        if number == 0 {
            return self;
        }
        let mut rng = ChaCha20Rng::from_seed(self.0);
        // Beyond the streams of all purposes.
        rng.set_stream(1 << 32 | u64::from(number));
        let mut bytes = [0; 32];
        rng.fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// The generator for a purpose, at its start.
    pub(crate) fn generator(&self, purpose: Purpose) -> ChaCha20Rng {
        let mut rng = ChaCha20Rng::from_seed(self.0);
        rng.set_stream(purpose as u64);
        rng
    }
}

impl From<u64> for Seed {
    fn from(number: u64) -> Self {
        Self::fixed(number)
    }
}

impl From<[u8; 32]> for Seed {
    /// All 256 bits must be unpredictable.
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_seed_every_purpose_and_every_part_count() {
        let mut seen = Vec::new();
        for bit in 0..256 {
            let mut bytes = [0; 32];
            bytes[bit / 8] = 1 << (bit % 8);
            for purpose in [Purpose::QueuePairs, Purpose::Keys, Purpose::Requests] {
                for part in 0..3 {
                    seen.push(Seed::from(bytes).of_part(part).generator(purpose).next_u64());
                }
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 3 * 3 * 256);
    }
}
