//! Counters of the faults.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What the faults of one port did, readable from any thread while it runs.
        #[derive(Debug, Default)]
        pub struct FaultStats { $($(#[$doc])* pub $name: AtomicU64),+ }

        impl FaultStats {
            /// Names and values.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),+]
            }
        }
    };
}

stats! {
    /// Frames lost by `loss`.
    lost,
    /// Frames lost by `blackhole`.
    blackholed,
    /// Frames given back to the caller by `full`.
    unsent,
    /// Frames lost by `down`.
    down,
    /// Frames doubled.
    duplicated,
    /// Frames held back by `reorder`.
    reordered,
    /// Frames made late by `delay`.
    delayed,
    /// Frames with flipped bits.
    corrupted,
    /// Frames marked CE.
    ecn_marked,
    /// Of these, the ones that were not ECN-capable.
    ecn_not_capable,
    /// Frames cut.
    trimmed,
    /// Frames lost because too many were held, or the port below had no room for one that was held.
    overflow,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
