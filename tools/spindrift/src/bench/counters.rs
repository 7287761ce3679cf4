//! The counters that atomic operations change, one for each queue pair, and the results that they give.

use anyhow::{Result, anyhow};
use spindrift::memory::Region;

use super::layout::{Layout, Mismatch, Tick};
use super::operation::counter;

/// Gives each queue pair's counter its first value.
pub(crate) fn set(target: &Region, layout: &Layout, seed: u64) -> Result<()> {
    (0..layout.qps).try_for_each(|qp| Ok(target.store_u64(layout.target(qp, 0), counter(seed, qp, 0))?))
}

/// Compares the counters with what so many operations of each queue pair make of them, and the bytes around them with those of
/// memory that nobody wrote to. The counters stay as they are.
pub(crate) fn check(
    target: &Region,
    layout: &Layout,
    seed: u64,
    operations: &[u64],
    tick: Tick<'_>,
) -> Result<Option<Mismatch>> {
    for qp in 0..layout.qps {
        let operations = operations.get(qp).copied().unwrap_or_default();
        let offset = layout.target(qp, 0);
        if target.load_u64(offset)? != counter(seed, qp, operations) {
            return Ok(Some(Mismatch { qp, offset }));
        }
    }
    let values = (0..layout.qps).map(|qp| target.load_u64(layout.target(qp, 0)));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    (0..layout.qps).try_for_each(|qp| layout.wipe(target, qp, 0))?;
    let mismatch = layout.check(target, &|_, _| Ok(()), &vec![0; layout.qps], tick);
    for (qp, value) in values.into_iter().enumerate() {
        target.store_u64(layout.target(qp, 0), value)?;
    }
    mismatch
}

/// Compares the result of an operation: what the counter held before it.
pub(crate) fn is_result(
    landing: &Region,
    layout: &Layout,
    seed: u64,
    qp: usize,
    number: u64,
) -> Result<bool> {
    Ok(landing.load_u64(layout.target(qp, number))? == counter(seed, qp, number))
}

/// Compares the bytes around the results, which have all been compared before.
pub(crate) fn check_around(landing: &Region, layout: &Layout, tick: Tick<'_>) -> Result<Option<Mismatch>> {
    for qp in 0..layout.qps {
        (0..layout.slots).try_for_each(|slot| layout.wipe(landing, qp, slot))?;
    }
    let untouched = vec![0; layout.qps];
    layout.check(landing, &|_, _| Err(anyhow!("nothing was written")), &untouched, tick)
}
