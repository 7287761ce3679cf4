//! State that the queue pairs of an endpoint share, and their requests to it.

use core::ops::{BitOr, BitOrAssign};
use std::collections::{BTreeSet, VecDeque};

use crate::config::EndpointConfig;
use crate::counters::Counters;
use crate::memory::{MemoryView, RegionSlot};
use crate::peer::{Members, Peers};
use crate::requester::SpareQueues;
use crate::responder::{Delivery, WindowBudget};
use crate::wire::{Ev, Qpn};

use super::cwnd::SharedCwnds;
use super::{CqId, Event, Qp};

/// State that the queue pairs of an endpoint share.
#[derive(Debug)]
pub(crate) struct Cx {
    pub(crate) cfg: EndpointConfig,
    pub(crate) memory: MemoryView,
    pub(crate) peers: Peers,
    pub(crate) cwnds: SharedCwnds,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) windows: WindowBudget,
    pub(crate) spare_queues: SpareQueues,
    /// Completion queues that the driver reports as filling up.
    pub(crate) cqs_nearly_full: BTreeSet<CqId>,
    /// Messages that took a receive work request and are next in order, until the packet that completed them is
    /// processed.
    pub(crate) deliveries: Vec<Delivery>,
    /// The ticket of the next data packet.
    pub(crate) next_ticket: u64,
    /// Ports hold no payload of a packet with a smaller ticket.
    pub(crate) released: u64,
    /// Queue pairs whose oldest request only waits for a port to release payload.
    pub(crate) held: Vec<u32>,
    /// Regions of responses that were copied after their last packet, each with the ticket from which on
    /// [`released`](Self::released) shows that no port holds a packet of the response; in the order of tickets.
    pub(crate) pinned_until: VecDeque<(u64, RegionSlot)>,
    /// A request has ended while ports may hold its payload.
    pub(crate) recall: bool,
}

impl Cx {
    /// Capacity of the event queue before it has to grow: the events of one poll of a busy lane.
    pub(crate) const EVENT_ROOM: usize = 256;

    /// Unpins the regions of copied responses whose packets no port holds. Not between the time at which a packet is
    /// made and the time at which the port has it: a registration that has ended may be freed.
    pub(crate) fn unpin_released(&mut self) {
        while let Some((_, slot)) = self.pinned_until.pop_front_if(|(until, _)| *until <= self.released) {
            self.memory.unpin(slot);
        }
    }
}

/// The actions of an endpoint for a queue pair after a call: a set of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Wakes(u8);

impl Wakes {
    /// No action.
    pub(crate) const NONE: Self = Self(0);
    /// It may have data to send.
    pub(crate) const DATA: Self = Self(1);
    /// It has an acknowledgement or a probe to send.
    pub(crate) const CONTROL: Self = Self(2);
    /// Its next deadline may be earlier than the one that is armed.
    pub(crate) const ARM: Self = Self(4);
    /// A congestion window that other queue pairs wait for may have room.
    pub(crate) const CWND: Self = Self(8);

    /// Whether all of these are in the set.
    #[inline]
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These, if `on`.
    #[inline]
    pub(crate) const fn when(self, on: bool) -> Self {
        if on { self } else { Self::NONE }
    }
}

impl BitOr for Wakes {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Wakes {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The queue pairs of an endpoint, by slot.
#[derive(Debug)]
pub(crate) struct QpTable {
    /// Up to the highest slot used.
    slots: Vec<Option<Box<Qp>>>,
    live: u32,
    /// The low bits of a queue pair number that are its slot.
    mask: u32,
}

impl QpTable {
    pub(crate) const fn new(max_qps: u32) -> Self {
        Self { slots: Vec::new(), live: 0, mask: max_qps.next_power_of_two() - 1 }
    }

    /// The number of existing queue pairs.
    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    /// Sets this number of queue pairs.
    #[cfg(test)]
    pub(crate) const fn pretend_live(&mut self, live: u32) {
        self.live = live;
    }

    /// Slots up to the highest one used.
    pub(crate) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The low bits of a queue pair number that are its slot.
    pub(crate) const fn mask(&self) -> u32 {
        self.mask
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Qp> {
        self.slots.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// The queue pair with this number.
    #[inline]
    pub(crate) fn find(&self, qpn: Qpn) -> Option<&Qp> {
        self.get(qpn.get() & self.mask).filter(|qp| qp.qpn == qpn)
    }

    /// The queue pair with this number.
    #[inline]
    pub(crate) fn find_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.get_mut(qpn.get() & self.mask).filter(|qp| qp.qpn == qpn)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.slots.iter().flatten().map(|qp| &**qp)
    }

    /// Adds a queue pair, whose slot is free.
    pub(crate) fn insert(&mut self, qp: Qp) {
        let slot = qp.slot as usize;
        if self.slots.len() <= slot {
            // Slots are taken in any order, so a high one is soon reached.
            self.slots.reserve_exact(self.mask as usize + 1 - self.slots.len());
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Box::new(qp));
        self.live += 1;
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<Box<Qp>> {
        let removed = self.slots.get_mut(slot as usize)?.take();
        self.live -= u32::from(removed.is_some());
        removed
    }
}

impl Members for QpTable {
    fn ev_in_turn(&self, slot: u32, plane: u8, turn: u32, work: bool) -> Option<Ev> {
        self.get(slot)?.paths.ev_in_turn(plane, turn, work)
    }
}
