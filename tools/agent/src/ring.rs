//! Counts of probes by the time when they were sent, in a fixed number of buckets.

use crate::Count;

/// `N` buckets of the same length. A later probe takes the place of those `N` buckets before.
#[derive(Clone, Debug)]
pub(crate) struct Ring<const N: usize> {
    bucket_ns: u64,
    /// By number of the bucket modulo `N`.
    counts: Box<[Count]>,
    /// Number of the latest bucket with a probe: time divided by the length.
    newest: u64,
}

impl<const N: usize> Ring<N> {
    pub(crate) fn new(bucket_ns: u64) -> Self {
        Self { bucket_ns, counts: vec![Count::default(); N].into(), newest: 0 }
    }

    /// Counts a probe that was sent then. One that is older than all buckets is left out.
    pub(crate) fn add(&mut self, sent_ns: u64, lost: bool) {
        let bucket = sent_ns / self.bucket_ns;
        if bucket > self.newest {
            let passed = (bucket - self.newest).min(N as u64);
            for old in (bucket + 1 - passed)..=bucket {
                if let Some(count) = self.counts.get_mut((old % N as u64) as usize) {
                    *count = Count::default();
                }
            }
            self.newest = bucket;
        }
        if bucket + (N as u64) <= self.newest {
            return;
        }
        if let Some(count) = self.counts.get_mut((bucket % N as u64) as usize) {
            *count = count.plus(Count { sent: 1, lost: u32::from(lost) });
        }
    }

    /// The probes of the buckets from `first` to the one before `end`.
    pub(crate) fn sum(&self, first: u64, end: u64) -> Count {
        let oldest = (self.newest + 1).saturating_sub(N as u64);
        (first.max(oldest)..end.min(self.newest + 1))
            .filter_map(|bucket| self.counts.get((bucket % N as u64) as usize))
            .fold(Count::default(), |sum, &count| sum.plus(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_when_its_place_is_taken() {
        let mut ring = Ring::<4>::new(10);
        for (at, lost) in [(0, true), (9, false), (10, false), (35, true)] {
            ring.add(at, lost);
        }
        assert_eq!(ring.sum(0, 4), Count { sent: 4, lost: 2 });
        assert_eq!(ring.sum(0, 1), Count { sent: 2, lost: 1 });
        assert_eq!(ring.sum(1, 3), Count { sent: 1, lost: 0 });
        // Bucket 5 takes the place of bucket 1, and what was in 0 is out too, though nothing took its place.
        ring.add(50, false);
        assert_eq!(ring.sum(0, 9), Count { sent: 2, lost: 1 });
        // Too old, and just not too old.
        ring.add(19, true);
        assert_eq!(ring.sum(0, 9), Count { sent: 2, lost: 1 });
        ring.add(20, true);
        assert_eq!(ring.sum(2, 3), Count { sent: 1, lost: 1 });
        // After a long time nothing is left.
        ring.add(1_000, false);
        assert_eq!(ring.sum(0, 1_000), Count { sent: 1, lost: 0 });
    }
}
