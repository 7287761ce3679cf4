//! Ports that wrap another.

/// What a port that wraps another, its `inner`, leaves to that.
macro_rules! left_to_inner {
    () => {
        fn tx_room(&mut self, now_ns: u64) -> usize {
            self.inner.tx_room(now_ns)
        }

        fn unsent(&self) -> &[u16] {
            self.inner.unsent()
        }

        fn flush(&mut self, now_ns: u64) {
            self.inner.flush(now_ns);
        }

        fn reap(&mut self) -> u64 {
            self.inner.reap()
        }

        fn recall(&mut self) {
            self.inner.recall();
        }

        fn link(&mut self) -> spindrift::pmd::LinkState {
            self.inner.link()
        }

        fn counters(&self) -> spindrift::pmd::PortCounters {
            self.inner.counters()
        }
    };
}
pub(crate) use left_to_inner;
