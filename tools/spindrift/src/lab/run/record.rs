//! Samples of a flow on the time axis of the scenario.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::recovery::{Arrivals, Interpolator};
use crate::bench::samples::{EvLine, Line, Sample};

/// The samples of one side.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    /// Milliseconds after the start of the scenario, ascending.
    pub(super) times_ms: Vec<f64>,
    pub(super) samples: Vec<Sample>,
    pub(super) evs: Vec<(f64, EvLine)>,
}

impl Side {
    /// Reads a file of samples. The scenario began at `start_ns` after 1970.
    pub(super) fn read(path: &Path, start_ns: u64) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut side = Self::default();
        for line in text.lines() {
            let line =
                serde_json::from_str(line).with_context(|| format!("{} is damaged", path.display()))?;
            let after = |unix_ns: u64| (i128::from(unix_ns) - i128::from(start_ns)) as f64 / 1e6;
            match line {
                Line::Sample(sample) => {
                    side.times_ms.push(after(sample.unix_ns));
                    side.samples.push(sample);
                }
                Line::Ev(line) => side.evs.push((after(line.unix_ns), line)),
            }
        }
        if side.samples.is_empty() {
            bail!("{} has no samples", path.display());
        }
        Ok(side)
    }

    /// A count at ascending times in ms.
    pub(super) fn counts(
        &self,
        times_ms: impl Iterator<Item = f64>,
        count: impl Fn(&Sample) -> u64,
    ) -> Vec<f64> {
        let values: Vec<_> = self.samples.iter().map(|sample| count(sample) as f64).collect();
        let mut at = Interpolator { times_ms: &self.times_ms, values: &values, next: 0 };
        times_ms.map(|time| at.value(time)).collect()
    }

    /// Bits in each millisecond, of a count of bytes.
    pub(super) fn arrivals(&self, length_ms: usize, bytes: impl Fn(&Sample) -> u64) -> Arrivals {
        let bits: Vec<_> = self.samples.iter().map(|sample| bytes(sample) as f64 * 8.0).collect();
        Arrivals::from_counts(&self.times_ms, &bits, length_ms)
    }

    /// The latest sample that was taken by a time.
    pub(super) fn latest(&self, at_ms: f64) -> Option<&Sample> {
        let after = self.times_ms.partition_point(|&time| time <= at_ms);
        self.samples.get(after.saturating_sub(1))
    }
}
