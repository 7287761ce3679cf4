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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const SEED: u64 = 11;

    /// Each kind of damage is found: a counter that is ahead or behind, one of another queue pair, and a byte beside one.
    #[test]
    fn wrong_counters_and_stray_bytes_are_found() {
        let layout = Layout::new(8, 2, 4).unwrap();
        let target = Region::alloc(layout.memory()).unwrap();
        let mut tick = || Ok(());
        layout.clear(&target, &mut tick).unwrap();
        set(&target, &layout, SEED).unwrap();
        let mut found = |done: [u64; 2]| check(&target, &layout, SEED, &done, &mut tick).unwrap();
        assert_eq!(found([0, 0]), None);
        target.store_u64(layout.target(1, 0), counter(SEED, 1, 5)).unwrap();
        assert_eq!(found([0, 5]), None);
        let at = |qp, offset| Some(Mismatch { qp, offset });
        assert_eq!(found([0, 4]), at(1, layout.target(1, 0)));
        assert_eq!(found([1, 5]), at(0, layout.target(0, 0)));
        for offset in [layout.target(0, 0) + 8, layout.target(1, 2), layout.memory() - 1] {
            let byte = target.load(offset).unwrap();
            target.store(offset, !byte).unwrap();
            assert_eq!(found([0, 5]).map(|found| found.offset), Some(offset));
            target.store(offset, byte).unwrap();
        }
        // The check leaves the counters as they are.
        assert_eq!(found([0, 5]), None);
    }

    #[test]
    fn wrong_results_and_bytes_beside_them_are_found() {
        let layout = Layout::new(8, 2, 4).unwrap();
        let landing = Region::alloc(layout.memory()).unwrap();
        let mut tick = || Ok(());
        layout.clear(&landing, &mut tick).unwrap();
        landing.store_u64(layout.target(1, 6), counter(SEED, 1, 6)).unwrap();
        let is_right = |qp, number| is_result(&landing, &layout, SEED, qp, number).unwrap();
        assert!(is_right(1, 6));
        // That of the lap before, of the next one, and of the other queue pair.
        assert!(!is_right(1, 2) && !is_right(1, 10) && !is_right(0, 6));
        let mut around = || check_around(&landing, &layout, &mut tick).unwrap();
        assert_eq!(around(), None);
        landing.store(layout.target(1, 2) + 8, 0).unwrap();
        assert_eq!(around(), Some(Mismatch { qp: 1, offset: layout.target(1, 2) + 8 }));
    }
}
