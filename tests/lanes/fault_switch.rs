//! A port whose faults begin and end when the test says so, and not by a clock that a slow machine runs past.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use spindrift::pmd::{LinkState, Port, RxFrame, TxFrame, forward_to_inner};

const OPEN: u8 = 0;
const DROPPING: u8 = 1;
const DOWN: u8 = 2;

/// Says what a [`SwitchedPort`] does.
#[derive(Clone, Default)]
pub(crate) struct FaultSwitch(Arc<AtomicU8>);

impl FaultSwitch {
    pub(crate) fn open(&self) {
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// Frames are lost in both directions without any report.
    pub(crate) fn drop_silently(&self) {
        self.0.store(DROPPING, Ordering::Relaxed);
    }

    /// The same, and the link is reported down.
    pub(crate) fn down(&self) {
        self.0.store(DOWN, Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }
}

pub(crate) struct SwitchedPort<P> {
    inner: P,
    control: FaultSwitch,
}

impl<P: Port> SwitchedPort<P> {
    /// These ports; the last of them can be switched.
    pub(crate) fn last_of(mut ports: Vec<P>) -> (Vec<Box<dyn Port>>, FaultSwitch)
    where
        P: 'static,
    {
        let control = FaultSwitch::default();
        let port = Self { inner: ports.pop().unwrap(), control: control.clone() };
        let mut all: Vec<Box<dyn Port>> = Vec::new();
        all.extend(ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>));
        all.push(Box::new(port));
        (all, control)
    }
}

impl<P: Port> Port for SwitchedPort<P> {
    forward_to_inner!(caps, tx_room, unsent, flush, reap, recall, next_event_ns, readable, counters);

    fn link(&mut self) -> LinkState {
        if self.control.0.load(Ordering::Relaxed) == DOWN { LinkState::Down } else { self.inner.link() }
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        if self.control.is_open() {
            return self.inner.tx_burst(now_ns, frames);
        }
        // An empty burst: what the port below gave back of its last one is not given back again.
        self.inner.tx_burst(now_ns, &[]);
        frames.len()
    }

    fn rx_burst(&mut self, now_ns: u64, max: usize, sink: &mut dyn FnMut(&RxFrame<'_>)) -> usize {
        let open = self.control.is_open();
        let received = self.inner.rx_burst(now_ns, max, &mut |frame| {
            if open {
                sink(frame);
            }
        });
        if open { received } else { 0 }
    }
}
