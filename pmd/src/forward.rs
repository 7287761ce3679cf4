//! Ports around other ports.

/// The methods of [`Port`](crate::Port) that a port around another one, its field `inner`, leaves to that one. Read
/// when a method is added to the trait: a wrapper that does not name it has the trait's default.
///
/// ```
/// use spindrift_pmd::{Port, TxFrame, forward_to_inner};
///
/// /// Counts bursts.
/// struct Counting<P> {
///     inner: P,
///     bursts: u64,
/// }
///
/// impl<P: Port> Port for Counting<P> {
///     forward_to_inner!(
///         caps, link, tx_room, unsent, flush, rx_burst, reap, recall, next_event_ns, readable, counters
///     );
///
///     fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
///         self.bursts += 1;
///         self.inner.tx_burst(now_ns, frames)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_to_inner {
    ($($method:ident),+ $(,)?) => { $($crate::forward_to_inner!(@ $method);)+ };
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
