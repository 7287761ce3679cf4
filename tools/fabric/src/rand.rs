//! Seeded choices.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// The generator of a run, or of one part of it.
#[derive(Clone, Debug)]
pub(crate) struct Rng(Xoshiro256PlusPlus);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A generator for another part, independent of what this one is asked later.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, or 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high` whose size, not its value, is even: small ones are as likely as large ones.
    pub(crate) fn sized(&mut self, low: u64, high: u64) -> u64 {
        let most = self.range(low.max(1).ilog2().into(), high.max(1).ilog2().into());
        let ceiling = 1_u64 << most;
        self.range(ceiling, (2 * ceiling).saturating_sub(1)).clamp(low, high)
    }

    /// True in `per_ten_thousand` of ten thousand cases.
    pub(crate) fn chance(&mut self, per_ten_thousand: u32) -> bool {
        per_ten_thousand > 0 && self.below(10_000) < u64::from(per_ten_thousand)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the exponential distribution with mean 1, by von Neumann's method: comparisons alone, so that it is the same on
    /// machines whose logarithms differ in the last bit.
    pub(crate) fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut falls) = (first, 0_u32);
            loop {
                let next = self.unit();
                if next >= last {
                    break;
                }
                (last, falls) = (next, falls + 1);
            }
            if falls.is_multiple_of(2) {
                return whole + first;
            }
            whole += 1.0;
        }
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Mixes the bits of `x` (the finaliser of `SplitMix64`): for choices that must not depend on the order of events.
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of an exponential distribution that is below 1/2, 1, 2 and 4, and its mean.
    #[test]
    fn exponential_numbers_are_spread_as_they_should_be() {
        let mut rng = Rng::new(1);
        let numbers: Vec<_> = (0..100_000).map(|_| rng.exponential()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        for (below, want) in [(0.5, 0.3935), (1.0, 0.6321), (2.0, 0.8647), (4.0, 0.9817)] {
            let share = numbers.iter().filter(|&&number| number < below).count() as f64 / 1e5;
            assert!((share - want).abs() < 0.006, "{below}: {share}");
        }
    }
}
