//! A host's deny list, which a queue pair follows as long as the other paths suffice.
//!
//! [`deny_ev`](Paths::deny_ev) and [`deny_plane`](Paths::deny_plane) are orders of the application. A deny list is
//! advice, for example of an agent that probes the network: a path that loses some packets is better than none. So the
//! list can neither cut a queue pair off nor make it wait for a dead path.
//!
//! | Denied | Effect | Used all the same |
//! |---|---|---|
//! | a plane, or all entropy values of a plane | it stands by, as a plane with the [role](super::PlaneRole) does | while the other planes are not fit, see `Paths::is_fit` |
//! | some entropy values of a plane | they are out of use | where the floor of [`min_active`](super::PathConfig::min_active) would keep a bad value in use; then all of them, for the [hold time](super::PathConfig::failback_hold_ns) or longer |
//!
//! Every fourth tail loss probe in a row takes such a plane or value too, so the death of all other paths is noticed
//! although no port reports it.

use super::hold::HoldTime;
use super::{BAD, DENIED, Entry, FORCED, LISTED, Paths, PlaneSet};
use crate::time::Time;
use crate::wire::Ev;

/// What a queue pair knows of the list.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// Planes on the list.
    planes: u32,
    /// By number of the entropy value: it is on the list, while others of its plane are not.
    evs: Box<[bool]>,
    released: Release,
    hold: HoldTime,
}

/// Whether entropy values on the list are in use all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    No,
    /// They are. The timer has not run since.
    Now,
    Since(Time),
}

/// What a queue pair does about the deny list, see [`Paths::deny_list_status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyListStatus {
    /// Planes on the list.
    pub planes: PlaneSet,
    /// Those of them that carry no data now.
    pub avoided: PlaneSet,
    /// Entropy values of other planes on the list.
    pub evs: u16,
    /// The list's entropy values are in use all the same, since the others are too few.
    pub released: bool,
    /// Times that nothing arrived on the planes that carried data, although no port reported it, while others stood by.
    pub silent_failovers: u64,
}

impl Listed {
    pub(super) fn has(&self, id: u16) -> bool {
        self.evs.get(usize::from(id)).copied().unwrap_or_default()
    }

    /// When the timer has work.
    fn next_timeout(&self) -> Time {
        match self.released {
            Release::No => Time::NEVER,
            Release::Now => Time::ZERO,
            Release::Since(since) => since.after(self.hold.ns()),
        }
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.evs)
    }
}

impl Paths {
    /// Follows a deny list from now on, in place of an earlier one: `denies` says of a plane (`None`) or of one of its
    /// entropy values whether it is on the list.
    pub fn follow_deny_list(&mut self, denies: impl Fn(u8, Option<Ev>) -> bool) {
        let mut planes = 0;
        let mut evs = vec![false; self.entries.len()].into_boxed_slice();
        for plane in 0..self.plane_count() {
            let range = self.of_plane(plane);
            let (entries, of_plane) = (self.entries.get(range.clone()), evs.get_mut(range));
            let (Some(entries), Some(of_plane)) = (entries, of_plane) else { continue };
            let all = denies(plane, None) || entries.iter().all(|entry| denies(plane, Some(entry.ev)));
            if all {
                planes |= 1 << plane;
                continue;
            }
            for (entry, listed) in entries.iter().zip(of_plane) {
                *listed = denies(plane, Some(entry.ev));
            }
        }
        let before = self.listed.take();
        if before.as_deref().is_some_and(|before| before.planes == planes && before.evs == evs) {
            self.listed = before;
            return;
        }
        self.allow_listed(|id| !evs.get(usize::from(id)).is_some_and(|listed| *listed));
        let hold = before.map_or_else(|| HoldTime::new(self.hold_ns, self.hold_max_ns), |before| before.hold);
        let is_empty = planes == 0 && !evs.contains(&true);
        self.listed = (!is_empty).then(|| Box::new(Listed { planes, evs, released: Release::No, hold }));
        self.deny_listed();
        self.planes_changed();
    }

    /// What the queue pair does about the deny list; `None` if nothing of its paths is on it.
    pub fn deny_list_status(&self) -> Option<DenyListStatus> {
        let listed = self.listed.as_deref()?;
        Some(DenyListStatus {
            planes: PlaneSet(listed.planes),
            avoided: PlaneSet(self.avoided),
            evs: listed.evs.iter().filter(|listed| **listed).count() as u16,
            released: listed.released != Release::No,
            silent_failovers: self.silent_failovers,
        })
    }

    /// Takes the entropy values on the list out of use, but for those that the application has denied.
    fn deny_listed(&mut self) {
        for id in 0..self.entries.len() as u16 {
            if self.listed.as_deref().is_some_and(|listed| listed.has(id)) && !self.has(id, DENIED) {
                self.deny_id(id);
                self.set_flags(id, DENIED | LISTED);
            }
        }
    }

    /// Brings back those that only the list denies.
    fn allow_listed(&mut self, which: impl Fn(u16) -> bool) {
        for id in 0..self.entries.len() as u16 {
            if which(id) && self.has(id, LISTED) {
                self.allow_id(id);
            }
        }
    }

    /// Whether an entropy value that the application allows stays out of use because of the list.
    pub(super) fn stays_listed(&self, id: u16) -> bool {
        self.listed.as_deref().is_some_and(|listed| listed.released == Release::No && listed.has(id))
    }

    /// Uses the entropy values on the list all the same, if there are some on planes to which the floor applies.
    /// Returns whether there were.
    pub(super) fn release_listed(&mut self) -> bool {
        let floor = PlaneSet(self.floor_planes());
        let helps = |entry: &Entry| entry.flags & LISTED != 0 && floor.contains(entry.plane);
        if self.listed.is_none() || !self.entries.iter().any(helps) {
            return false;
        }
        self.allow_listed(|_| true);
        if let Some(listed) = self.listed.as_deref_mut() {
            listed.released = Release::Now;
        }
        true
    }

    /// The hold time begins, or ends: the list's values are out of use again if the others suffice.
    pub(super) fn run_deny_list(&mut self, now: Time) {
        let Some(listed) = self.listed.as_deref_mut().filter(|listed| listed.next_timeout() <= now) else {
            return;
        };
        if listed.released == Release::Now {
            listed.hold.failed(now);
            listed.released = Release::Since(now);
            return;
        }
        listed.released = Release::Since(now);
        if self.others_suffice() {
            if let Some(listed) = self.listed.as_deref_mut() {
                listed.released = Release::No;
                listed.hold.returned(now);
            }
            self.deny_listed();
            self.planes_changed();
        }
    }

    /// When [`run_deny_list`](Self::run_deny_list) has work.
    pub(super) fn next_deny_list_timeout(&self) -> Time {
        self.listed.as_deref().map_or(Time::NEVER, Listed::next_timeout)
    }

    /// Whether more entropy values than the floor asks for are good that are not on the list, or as many as it asks for and
    /// all of them.
    fn others_suffice(&self) -> bool {
        let Some(listed) = self.listed.as_deref() else { return false };
        let floor = PlaneSet(self.floor_planes());
        let others = || {
            let all = (0..).zip(&*self.entries);
            let others = all.filter(|(id, entry)| floor.contains(entry.plane) && !listed.has(*id));
            others.filter(|(_, entry)| entry.flags & DENIED == 0)
        };
        let good = others().filter(|(_, entry)| entry.flags & (BAD | FORCED) == 0).count();
        let enough = usize::from(self.min_active);
        good > enough || good == enough && good == others().count()
    }

    /// Decides whether the planes on the list stand by, after any change of planes or of the health of their entropy
    /// values.
    pub(super) fn choose_avoided(&mut self) {
        let before = self.avoided;
        self.avoided = match self.listed.as_deref() {
            Some(listed) if self.is_fit(self.serving & !listed.planes) => self.serving & listed.planes,
            _ => 0,
        };
        if self.avoided != before {
            // Those that were not avoided come first, and packets that arrive on others change that.
            let role = PlaneSet(self.ack_role);
            let first = role.iter().find(|&plane| !PlaneSet(self.avoided).contains(plane)).or(role.nth(0));
            if let Some(plane) = first {
                self.switch_acks(plane);
            }
        }
    }

    /// Planes that carry packets if they can: those whose role serves, without those that the deny list lets stand by.
    pub(super) const fn carrying(&self) -> u32 {
        self.serving & !self.avoided
    }

    /// A value out of use that [`pick_bad`](Self::pick_bad) may try: bad, or denied by the list alone.
    pub(super) const fn may_be_tried(entry: &Entry) -> bool {
        entry.flags & (BAD | LISTED) != 0
    }
}
