//! Reference rate of one core: copy and CRC of the same bytes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::layout::Layout;

/// Length of one run.
const RUN: Duration = Duration::from_millis(8);

/// Memory of the same size as a run's, copied in packets of the same size.
pub(crate) struct Baseline {
    source: Vec<u8>,
    target: Vec<u8>,
    block: usize,
    size: usize,
    runs: Vec<f64>,
}

impl Baseline {
    /// For writes as `layout` has them, cut to packets of `mtu` bytes.
    pub(crate) fn new(layout: &Layout, pattern: &[u8], mtu: u32) -> Self {
        let size = layout.size as usize;
        Self {
            source: pattern.to_vec(),
            // Written to, so that no run meets memory that the system has yet to give.
            target: pattern.to_vec(),
            block: size.min(mtu as usize),
            size,
            runs: Vec::new(),
        }
    }

    /// Measures once more.
    pub(crate) fn run(&mut self) {
        // Messages lie as far apart as in the run that this is compared with.
        let stride = self.size.next_multiple_of(64);
        let (mut bytes, mut crc) = (0u64, 0u32);
        let start = Instant::now();
        let elapsed = 'time: loop {
            for (from, to) in self.source.chunks_exact(stride).zip(self.target.chunks_exact_mut(stride)) {
                let (from, to) = (from.split_at(self.size).0, to.split_at_mut(self.size).0);
                for (from, to) in from.chunks(self.block).zip(to.chunks_mut(self.block)) {
                    crc ^= crc32fast::hash(from);
                    to.copy_from_slice(from);
                }
                bytes += self.size as u64;
                // Looking at the clock costs as much as a small message: once every 16 KiB is enough.
                if bytes & 0x3fff < self.size as u64 {
                    let elapsed = start.elapsed();
                    if elapsed >= RUN {
                        break 'time elapsed;
                    }
                }
            }
        };
        black_box((crc, &self.target));
        self.runs.push(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9);
    }

    /// The median of all runs, in Gb/s.
    pub(crate) fn gbps(&self) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        runs.get(runs.len() / 2).copied().unwrap_or_default()
    }
}
