//! Impact of faults: data packets lost on their links, and for how long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use spindrift::time::Time;
use spindrift::wire::Opcode;
use spindrift_fabric::{LinkId, Packet, PacketEvent};

use super::report::Spread;

/// A fault that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultImpact {
    /// Its entry in the plan.
    entry: usize,
    began: Time,
    /// Data packets, trimmed ones among them, that its links lost, dropped, or carried to a switch that does not forward.
    pub(super) lost: u64,
    last: Option<Time>,
}

impl FaultImpact {
    pub(super) const fn began_ns(&self) -> u64 {
        self.began.0
    }

    /// How long after its beginning the last of them was lost; 0 if none was.
    pub(super) fn lasted_us(&self) -> f64 {
        self.last.map_or(0.0, |last| last.since(self.began) as f64 / 1e3)
    }

    /// When the last of them was lost.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.last.map(|last| last.0)
    }
}

/// The faults of a run that have begun.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultImpacts(Rc<RefCell<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    list: Vec<FaultImpact>,
    /// Those that last, by link.
    lasting: BTreeMap<LinkId, Vec<usize>>,
}

impl FaultImpacts {
    /// The fault of an entry begins on some links, or ends on all.
    pub(super) fn change(&self, entry: usize, at: Time, links: impl Iterator<Item = LinkId>, begins: bool) {
        let Inner { list, lasting } = &mut *self.0.borrow_mut();
        if !begins {
            for numbers in lasting.values_mut() {
                numbers.retain(|&number| list.get(number).is_some_and(|impact| impact.entry != entry));
            }
            lasting.retain(|_, numbers| !numbers.is_empty());
            return;
        }
        for link in links {
            lasting.entry(link).or_default().push(list.len());
        }
        list.push(FaultImpact { entry, began: at, lost: 0, last: None });
    }

    /// Something happens to a packet.
    pub(super) fn see(&self, at: Time, link: LinkId, sight: PacketEvent, packet: &Packet) {
        if matches!(sight, PacketEvent::Sent | PacketEvent::Arrived)
            || !packet.opcode().is_some_and(Opcode::is_write)
        {
            return;
        }
        let Inner { list, lasting } = &mut *self.0.borrow_mut();
        for &number in lasting.get(&link).into_iter().flatten() {
            if let Some(impact) = list.get_mut(number) {
                impact.lost += 1;
                impact.last = Some(at);
            }
        }
    }

    /// All that began, in their order.
    pub(super) fn list(&self) -> Vec<FaultImpact> {
        self.0.borrow().list.clone()
    }
}

/// Of several, how long they lasted.
pub(super) fn spread_us(impacts: &[FaultImpact]) -> Spread {
    Spread::of(impacts.iter().map(FaultImpact::lasted_us).collect())
}
