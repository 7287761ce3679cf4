//! State changes of entropy values, for a controller.

use super::{EvEvent, EvId, EvState, Paths};

/// Events to be polled. A queue pair that loses a plane makes one for each of the plane's entropy values. The state
/// of all can be read at any time, so lost events are harmless.
const CAPACITY: u8 = 32;

/// Set in an event for `ASSUMED_BAD`; the rest is the id.
const BAD_BIT: u16 = 1 << 15;

/// A bounded queue, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    ring: [u16; CAPACITY as usize],
    head: u8,
    len: u8,
}

impl Events {
    fn push(&mut self, event: u16) -> bool {
        if self.len == CAPACITY {
            return false;
        }
        let at = (self.head + self.len) % CAPACITY;
        if let Some(place) = self.ring.get_mut(usize::from(at)) {
            *place = event;
        }
        self.len += 1;
        true
    }

    fn pop(&mut self) -> Option<u16> {
        self.len = self.len.checked_sub(1)?;
        let event = self.ring.get(usize::from(self.head)).copied();
        self.head = (self.head + 1) % CAPACITY;
        event
    }
}

impl Paths {
    /// The oldest state change that was not polled. As in the OCP API, only changes to GOOD and `ASSUMED_BAD` are
    /// events. The queue holds 32; `events_lost` counts those that did not fit.
    pub fn poll_event(&mut self) -> Option<EvEvent> {
        let event = self.events.pop()?;
        let id = EvId(event & !BAD_BIT);
        let entry = self.entries.get(usize::from(id.0))?;
        Some(EvEvent {
            ev: entry.ev,
            plane: entry.plane,
            drop_count: self.drops(id),
            state: if event & BAD_BIT == 0 { EvState::Good } else { EvState::AssumedBad },
        })
    }

    /// Whether there is an event to poll.
    #[inline]
    pub fn has_events(&self) -> bool {
        self.events.len > 0
    }

    pub(super) fn push_event(&mut self, id: EvId, state: EvState) {
        let bad = if state == EvState::AssumedBad { BAD_BIT } else { 0 };
        if !self.events.push(id.0 | bad) {
            self.counters.events_lost += 1;
        }
    }
}
