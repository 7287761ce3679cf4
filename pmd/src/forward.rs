//! Ports around other ports.

/// The methods of [`Port`](crate::Port) that a port around another one, its field `inner`, leaves to that one.
macro_rules! forward_to_inner {
    ($($method:ident),+ $(,)?) => { $(forward_to_inner!(@ $method);)+ };
    (@ caps) => {
        fn caps(&self) -> &$crate::PortCaps {
            self.inner.caps()
        }
    };
    (@ link) => {
        fn link(&mut self) -> $crate::LinkState {
            self.inner.link()
        }
    };
    (@ tx_room) => {
        fn tx_room(&mut self, now_ns: u64) -> usize {
            self.inner.tx_room(now_ns)
        }
    };
    (@ unsent) => {
        fn unsent(&self) -> &[u16] {
            self.inner.unsent()
        }
    };
    (@ flush) => {
        fn flush(&mut self, now_ns: u64) {
            self.inner.flush(now_ns);
        }
    };
    (@ rx_burst) => {
        fn rx_burst(
            &mut self,
            now_ns: u64,
            max: usize,
            sink: &mut dyn FnMut(&$crate::RxFrame<'_>),
        ) -> usize {
            self.inner.rx_burst(now_ns, max, sink)
        }
    };
    (@ reap) => {
        fn reap(&mut self) -> u64 {
            self.inner.reap()
        }
    };
    (@ recall) => {
        fn recall(&mut self) {
            self.inner.recall();
        }
    };
    (@ next_event_ns) => {
        fn next_event_ns(&self) -> Option<u64> {
            self.inner.next_event_ns()
        }
    };
    (@ readable) => {
        fn readable(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            self.inner.readable()
        }
    };
    (@ counters) => {
        fn counters(&self) -> $crate::PortCounters {
            self.inner.counters()
        }
    };
}

pub(crate) use forward_to_inner;
