//! The planes that reach a peer, and which of them are suspect.
//!
//! Anyone can forge a port status update, so an update only makes a plane suspect. A suspect plane is probed until a
//! response or a packet shows that it works. Meanwhile it is closed, if another plane remains. A plane that updates make
//! suspect too often stays open until a probe times out.

use crate::path::PlaneSet;
use crate::time::Time;

/// The state of probing a suspect plane.
#[derive(Clone, Copy, Debug)]
struct PlaneProbe {
    /// When the next probe is due; never if the plane is trusted.
    due: Time,
    probed_at: Time,
    /// When the plane became suspect, or was closed if that came later.
    since: Time,
    /// Request id of every probe since the plane became suspect, drawn at random.
    id: u16,
    /// Probes sent since the last one was expedited.
    tries: u8,
    /// How many times updates alone may still close the plane.
    close_budget: Budget,
    /// How many times updates may still expedite a probe soon after the last one.
    expedite_budget: Budget,
    /// A probe was sent since the plane became suspect.
    probed: bool,
    /// The plane stays open until a probe times out.
    close_on_timeout: bool,
    /// Another update said "down" after a probe was sent: one response does not prove that the plane works.
    reprobe: bool,
}

/// Limits the effect of forged packets: a few in a row, and one more after each interval.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: u8,
    grown_at: Time,
}

impl Budget {
    const MOST: u8 = 4;
    /// Time after which one more is allowed, ns.
    const EACH_NS: u64 = 100_000_000;

    const FULL: Self = Self { left: Self::MOST, grown_at: Time::ZERO };

    fn grow(&mut self, now: Time) {
        let earned = (now.since(self.grown_at) / Self::EACH_NS).min(u64::from(Self::MOST)) as u8;
        if earned > 0 {
            self.left = (self.left + earned).min(Self::MOST);
            self.grown_at = now;
        }
    }

    fn take(&mut self, now: Time) -> bool {
        self.grow(now);
        let any = self.left > 0;
        self.left -= u8::from(any);
        any
    }
}

/// The planes to one peer.
#[derive(Debug)]
pub(crate) struct PortReachability {
    /// Planes that both sides have.
    all: u32,
    /// Planes that packets may take, judging by the peer's ports.
    open: u32,
    /// Planes that are not suspect.
    trusted: u32,
    /// Suspect planes on which a packet arrived, and those of them on which it arrived too early to count.
    rx_seen: u32,
    rx_early: u32,
    probes: Box<[PlaneProbe]>,
}

impl PortReachability {
    /// Least time between two probes of a plane, and the timeout of the first, ns.
    const GAP_NS: u64 = 1_000_000;
    /// The same for an expedited probe: an update says that the plane is back, and the budget allows it; ns.
    const EXPEDITED_GAP_NS: u64 = 50_000;
    /// Longest time between two probes of a plane, ns, plus or minus a quarter.
    const MAX_WAIT_NS: u64 = 8_000_000_000;
    /// A packet that arrives this long after the plane became suspect left the peer after that, ns.
    const RX_SETTLE_NS: u64 = 10_000_000;
    /// Entropy values that a probe takes at once after one that timed out.
    const PROBE_EVS: usize = 4;

    pub(crate) fn new(planes: u8) -> Self {
        let probe = PlaneProbe {
            due: Time::NEVER,
            probed_at: Time::ZERO,
            since: Time::ZERO,
            id: 0,
            tries: 0,
            close_budget: Budget::FULL,
            expedite_budget: Budget::FULL,
            probed: false,
            close_on_timeout: false,
            reprobe: false,
        };
        let all = PlaneSet::first(planes).0;
        let probes = vec![probe; usize::from(planes)].into_boxed_slice();
        Self { all, open: all, trusted: all, rx_seen: 0, rx_early: 0, probes }
    }

    /// Whether any plane is suspect.
    #[inline]
    pub(crate) const fn any_suspect(&self) -> bool {
        self.trusted != self.all
    }

    /// Planes that packets may take, judging by the peer's ports.
    pub(crate) const fn open(&self) -> PlaneSet {
        PlaneSet(self.open)
    }

    fn is_suspect(&self, plane: u8) -> bool {
        PlaneSet(self.all & !self.trusted).contains(plane)
    }

    /// A port status update arrived from a peer's address, which may be forged. Returns whether `open` changed. `draw`
    /// returns the request ids of probes.
    pub(crate) fn on_update(
        &mut self,
        now: Time,
        mask: u32,
        local: PlaneSet,
        draw: &mut impl FnMut() -> u16,
    ) -> bool {
        for plane in 0..self.probes.len() as u8 {
            match (PlaneSet(mask).contains(plane), self.is_suspect(plane)) {
                (false, false) => self.suspect(now, plane, true, draw()),
                (false, true) => {
                    let probe = &mut self.probes[usize::from(plane)];
                    probe.reprobe |= probe.probed;
                }
                (true, true) => self.expedite_probe(now, plane, true),
                (true, false) => {}
            }
        }
        self.review(local)
    }

    fn suspect(&mut self, now: Time, plane: u8, may_close: bool, id: u16) {
        self.trusted &= !(1 << plane);
        let probe = &mut self.probes[usize::from(plane)];
        probe.close_on_timeout = !may_close || !probe.close_budget.take(now);
        // A closed plane is probed as soon as possible, so that a forged update costs little.
        let gap = if probe.close_on_timeout { Self::GAP_NS } else { Self::EXPEDITED_GAP_NS };
        probe.due = now.max(probe.earliest(gap));
        (probe.since, probe.id, probe.tries, probe.probed, probe.reprobe) = (now, id, 0, false, false);
    }

    /// A suspect plane may be up again; with `told`, an update says so. It is probed soon.
    fn expedite_probe(&mut self, now: Time, plane: u8, told: bool) {
        let probe = &mut self.probes[usize::from(plane)];
        probe.tries = 0;
        probe.due = probe.due.min(now.max(probe.earliest(Self::GAP_NS)));
        let sooner = now.max(probe.earliest(Self::EXPEDITED_GAP_NS));
        if told && !probe.close_on_timeout && sooner < probe.due && probe.expedite_budget.take(now) {
            probe.due = sooner;
        }
    }

    /// Expedites the probes of all suspect planes: a queue pair connects to the peer.
    pub(crate) fn expedite_all(&mut self, now: Time) {
        for plane in 0..self.probes.len() as u8 {
            if self.is_suspect(plane) {
                self.expedite_probe(now, plane, false);
            }
        }
    }

    /// A response with this request id arrived over `plane`. Returns whether it belongs to a probe.
    pub(crate) fn on_answer(
        &mut self,
        now: Time,
        plane: u8,
        id: u16,
        draw: &mut impl FnMut() -> u16,
    ) -> bool {
        let Some(&probe) = self.probes.get(usize::from(plane)) else { return false };
        if !self.is_suspect(plane) || !probe.probed || probe.id != id {
            return false;
        }
        self.trust(plane);
        if probe.reprobe {
            self.suspect(now, plane, false, draw());
        }
        true
    }

    /// A response arrived over `plane` to another request, which left over it at `sent_at`. Returns whether that
    /// proves that a suspect plane works.
    pub(crate) fn on_proof(&mut self, plane: u8, sent_at: Time) -> bool {
        let Some(&probe) = self.probes.get(usize::from(plane)) else { return false };
        let proven = self.is_suspect(plane) && !probe.reprobe && sent_at > probe.since;
        if proven {
            self.trust(plane);
        }
        proven
    }

    fn trust(&mut self, plane: u8) {
        self.trusted |= 1 << plane;
        self.rx_seen &= !(1 << plane);
        self.rx_early &= !(1 << plane);
        self.probes[usize::from(plane)].due = Time::NEVER;
    }

    /// An accepted packet arrived over `plane`. Returns whether [`confirm_by_rx`](Self::confirm_by_rx) should be
    /// called.
    #[inline]
    pub(crate) fn note_rx(&mut self, plane: u8) -> bool {
        let news =
            self.all & !self.trusted & !self.rx_seen & 1_u32.checked_shl(u32::from(plane)).unwrap_or(0);
        self.rx_seen |= news;
        news != 0
    }

    /// The packet that [`note_rx`](Self::note_rx) noted did not come from the peer's port of that plane.
    pub(crate) fn forget_rx(&mut self, plane: u8) {
        self.rx_seen &= !1_u32.checked_shl(u32::from(plane)).unwrap_or(0);
    }

    /// Trusts suspect planes on which a packet arrived that left the peer after they became suspect.
    pub(crate) fn confirm_by_rx(&mut self, now: Time) {
        for plane in 0..self.probes.len() as u8 {
            let bit = 1 << plane;
            if self.rx_seen & bit == 0 {
                continue;
            }
            let settled = now >= self.probes[usize::from(plane)].settles();
            if !settled {
                self.rx_early |= bit;
            } else if self.rx_early & bit != 0 {
                self.rx_early &= !bit;
                self.rx_seen &= !bit;
            } else {
                self.trust(plane);
            }
        }
    }

    /// The plane to be probed now, and the request id.
    pub(crate) fn probe_due(&self, now: Time, local: PlaneSet) -> Option<(u8, u16)> {
        let mut planes = (0..).zip(self.probes.iter());
        let due = planes.find(|&(plane, probe)| probe.due <= now && local.contains(plane));
        due.map(|(plane, probe)| (plane, probe.id))
    }

    /// How many entropy values the next probe of `plane` takes.
    pub(crate) fn probe_evs(&self, plane: u8) -> usize {
        let asked = self.probes.get(usize::from(plane)).is_some_and(|probe| probe.probed);
        if asked { Self::PROBE_EVS } else { 1 }
    }

    /// A probe of `plane` was sent. The next one is due after about `GAP_NS`, then twice that, and so on.
    pub(crate) fn probed(&mut self, now: Time, plane: u8, random: u16) {
        let probe = &mut self.probes[usize::from(plane)];
        if probe.probed && probe.close_on_timeout {
            // The probe timed out.
            probe.close_on_timeout = false;
            probe.since = now;
            self.rx_seen &= !(1 << plane);
            self.rx_early &= !(1 << plane);
        }
        probe.probed = true;
        probe.probed_at = now;
        probe.due = now.after(jittered(Self::GAP_NS << probe.tries.min(13), Self::MAX_WAIT_NS, random));
        probe.tries = probe.tries.saturating_add(1);
    }

    /// A probe of `plane` could not be sent: it is tried again after `ns`.
    pub(crate) fn defer_probe(&mut self, now: Time, plane: u8, ns: u64) {
        self.probes[usize::from(plane)].due = now.after(ns);
    }

    /// The next deadline: a probe is due, or a received packet counts from then on.
    pub(crate) fn next_timeout(&self, local: PlaneSet) -> Time {
        let due = (0..).zip(self.probes.iter()).map(|(plane, probe)| {
            let probe_at = if local.contains(plane) { probe.due } else { Time::NEVER };
            let judge_at = match (self.rx_seen >> plane & 1, self.rx_early >> plane & 1) {
                (0, _) => Time::NEVER,
                (_, 0) => Time::ZERO,
                _ => probe.settles(),
            };
            probe_at.min(judge_at)
        });
        due.min().unwrap_or(Time::NEVER)
    }

    /// Decides which planes are open; `local` are our ports that are up. The last plane is never closed: if none would
    /// be left, the planes stay as they are, and if those are down on our side, all are open. Returns whether `open`
    /// changed.
    pub(crate) fn review(&mut self, local: PlaneSet) -> bool {
        let close_on_timeout = (0..).zip(self.probes.iter()).filter(|(_, probe)| probe.close_on_timeout);
        let wanted =
            self.trusted | close_on_timeout.fold(0, |mask, (plane, _)| mask | 1_u32 << plane) & self.all;
        let before = self.open;
        if wanted & local.0 != 0 {
            self.open = wanted;
        } else if self.open & local.0 == 0 {
            self.open = self.all;
        }
        self.open != before
    }
}

impl PlaneProbe {
    /// The next probe is due no less than `gap_ns` after the last one.
    fn earliest(&self, gap_ns: u64) -> Time {
        if self.probed_at == Time::ZERO { Time::ZERO } else { self.probed_at.after(gap_ns) }
    }

    fn settles(&self) -> Time {
        self.since.after(PortReachability::RX_SETTLE_NS)
    }
}

/// `wait`, at most `max`, plus or minus a quarter, depending on `random`.
pub(crate) fn jittered(wait: u64, max: u64, random: u16) -> u64 {
    let wait = wait.min(max);
    wait - wait / 4 + (wait / 2) * u64::from(random) / u64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: PlaneSet = PlaneSet(3);
    const MS: u64 = 1_000_000;

    fn update(planes: &mut PortReachability, at: u64, mask: u32) -> bool {
        planes.on_update(Time(at), mask, BOTH, &mut || 7)
    }

    fn answer(planes: &mut PortReachability, at: u64, plane: u8, id: u16) -> bool {
        let answered = planes.on_answer(Time(at), plane, id, &mut || 8);
        planes.review(BOTH);
        answered
    }

    fn probe(planes: &mut PortReachability, at: u64) -> Option<(u8, u16)> {
        let due = planes.probe_due(Time(at), BOTH)?;
        planes.probed(Time(at), due.0, u16::MAX / 2);
        planes.review(BOTH);
        Some(due)
    }

    #[test]
    fn only_an_answer_over_the_plane_opens_it() {
        let mut planes = PortReachability::new(2);
        assert!(update(&mut planes, 1_000, 1));
        assert_eq!(planes.open(), PlaneSet(1));
        assert!(!answer(&mut planes, 1_100, 1, 7), "nothing was asked");
        assert_eq!(probe(&mut planes, 1_000), Some((1, 7)));
        assert!(!answer(&mut planes, 2_000, 0, 7), "over another plane");
        assert!(!answer(&mut planes, 2_000, 1, 9), "of another id");
        assert!(!update(&mut planes, 3_000, 3), "an update says up");
        assert_eq!(planes.open(), PlaneSet(1));
        assert!(answer(&mut planes, 4_000, 1, 7));
        assert_eq!(planes.open(), PlaneSet(3));
        assert_eq!(planes.next_timeout(BOTH), Time::NEVER);
    }

    #[test]
    fn the_last_plane_stays_open() {
        let mut planes = PortReachability::new(2);
        assert!(!update(&mut planes, 1_000, 0));
        assert_eq!(planes.open(), PlaneSet(3), "none would be left");
        probe(&mut planes, 1_000);
        assert!(answer(&mut planes, 2_000, 0, 7));
        assert_eq!(planes.open(), PlaneSet(1), "one answers: the other is closed");
        // Our own port 0 goes down.
        assert!(planes.review(PlaneSet(2)));
        assert_eq!(planes.open(), PlaneSet(3));
    }

    #[test]
    fn an_answer_after_the_next_doubt_does_not_settle_it() {
        let mut planes = PortReachability::new(2);
        update(&mut planes, 1_000, 1);
        probe(&mut planes, 1_000);
        update(&mut planes, 2_000, 1);
        assert!(answer(&mut planes, 3_000, 1, 7));
        assert_eq!(planes.open(), PlaneSet(3));
        assert_eq!(probe(&mut planes, 1_000 + MS), Some((1, 8)));
        assert_eq!(probe(&mut planes, 1_000 + 3 * MS), Some((1, 8)));
        assert_eq!(planes.open(), PlaneSet(1), "a probe without an answer");
    }

    #[test]
    fn a_plane_that_is_doubted_too_often_stays_open_until_a_probe_is_not_answered() {
        let mut planes = PortReachability::new(2);
        let mut closed = 0;
        for at in (10..60).map(|n| n * 2 * MS) {
            closed += u32::from(update(&mut planes, at, 1));
            assert!(probe(&mut planes, at).is_some());
            assert!(answer(&mut planes, at + 1_000, 1, 7));
        }
        assert_eq!(closed, 5, "a burst of four, and one more after 100 ms");
        update(&mut planes, 190 * MS, 1);
        assert_eq!(planes.open(), PlaneSet(3));
        probe(&mut planes, 190 * MS);
        probe(&mut planes, 193 * MS);
        assert_eq!(planes.open(), PlaneSet(1));
    }

    /// A plane that becomes suspect again soon after a probe is closed, because a flap may be that short, and is
    /// probed soon. After four times in a row it stays open until a probe times out, which is due a millisecond after
    /// the last.
    #[test]
    fn a_plane_that_was_probed_a_moment_ago_closes_while_there_is_credit() {
        let mut planes = PortReachability::new(2);
        let gap = PortReachability::EXPEDITED_GAP_NS;
        let mut at = 5 * MS;
        for _ in 0..4 {
            assert!(update(&mut planes, at + 2_000, 1), "it closes");
            let due = if at == 5 * MS { at + 2_000 } else { at + gap };
            assert_eq!((planes.open(), planes.next_timeout(BOTH)), (PlaneSet(1), Time(due)));
            assert_eq!(probe(&mut planes, due - 1), None);
            assert_eq!(probe(&mut planes, due), Some((1, 7)));
            assert!(answer(&mut planes, due + 1_000, 1, 7));
            at = due;
        }
        assert!(!update(&mut planes, at + 2_000, 1), "four times is enough");
        assert_eq!((planes.open(), planes.next_timeout(BOTH)), (PlaneSet(3), Time(at + MS)));
        // An update that says "up" does not expedite the probe any further.
        update(&mut planes, at + 3_000, 3);
        assert_eq!(planes.next_timeout(BOTH), Time(at + MS));
        assert_eq!(probe(&mut planes, at + MS), Some((1, 7)));
        assert!(answer(&mut planes, at + MS + 1_000, 1, 7));
        assert!(update(&mut planes, 105 * MS + 2_000, 1), "and one more after 100 ms");
    }

    #[test]
    fn a_probe_that_is_put_off_is_due_later() {
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        planes.defer_probe(Time(MS), 1, 100);
        assert_eq!((planes.next_timeout(BOTH), probe(&mut planes, MS + 99)), (Time(MS + 100), None));
        assert_eq!(probe(&mut planes, MS + 100), Some((1, 7)));
    }

    /// A packet received during one doubt does not count in the next, and a packet over one plane does not count for
    /// another.
    #[test]
    fn what_was_heard_counts_for_one_doubt_of_one_plane() {
        let all = PlaneSet(0b1111);
        for answered in 0..4 {
            let others = 0b1111 & !(1 << answered);
            let mut planes = PortReachability::new(4);
            planes.on_update(Time(MS), 0, all, &mut || 7);
            for plane in 0..4 {
                assert!(planes.note_rx(plane));
                planes.probed(Time(MS), plane, 0);
            }
            planes.confirm_by_rx(Time(2 * MS));
            assert!(planes.on_answer(Time(3 * MS), answered, 7, &mut || 8));
            assert!(!planes.note_rx(answered), "it is not in doubt");
            assert!((0..4).all(|plane| !planes.note_rx(plane)), "the others were received");
            // Suspect again, with nothing received yet. The others received packets too early.
            planes.on_update(Time(4 * MS), others, all, &mut || 9);
            assert_eq!(planes.next_timeout(PlaneSet(0)), Time(11 * MS));
            planes.confirm_by_rx(Time(11 * MS));
            assert_eq!(planes.trusted, 0);
            assert_eq!(planes.next_timeout(PlaneSet(0)), Time::NEVER, "nothing is left to be judged");
            planes.confirm_by_rx(Time(20 * MS));
            assert_eq!(planes.trusted, 0, "nothing was received since");
            assert!((0..4).all(|plane| planes.note_rx(plane)));
            planes.confirm_by_rx(Time(20 * MS));
            assert_eq!(planes.trusted, 0b1111);
        }
    }

    /// A plane that closes on a probe timeout is not opened by packets that came before the timeout.
    #[test]
    fn a_spared_plane_that_closes_needs_news() {
        for plane in 0..4 {
            let mask = 0b1111 & !(1 << plane);
            let mut planes = PortReachability::new(4);
            let all = PlaneSet(0b1111);
            // All others are suspect too, and received packets too early.
            planes.on_update(Time(MS), 0, all, &mut || 7);
            (0..4).for_each(|plane| planes.probed(Time(MS), plane, 0));
            planes.on_answer(Time(MS + 1), plane, 7, &mut || 8);
            planes.probes[usize::from(plane)].close_budget.left = 0;
            planes.on_update(Time(MS + 2), mask, all, &mut || 9);
            assert!(planes.probes[usize::from(plane)].close_on_timeout);
            (0..4).for_each(|plane| assert!(planes.note_rx(plane)));
            planes.confirm_by_rx(Time(MS + 3));
            let before = (planes.rx_seen, planes.rx_early);
            assert_eq!(before, (0b1111, 0b1111));
            planes.probed(Time(2 * MS), plane, 0);
            assert_eq!((planes.rx_seen, planes.rx_early), before, "the first probe of this doubt");
            planes.probed(Time(4 * MS), plane, 0);
            assert_eq!((planes.rx_seen, planes.rx_early), (mask, mask));
            assert_eq!(planes.probes[usize::from(plane)].settles(), Time(14 * MS), "it closed at 4 ms");
        }
    }

    /// The peer reports that the plane is up soon after a probe: four times in a row it need not wait for the next
    /// one.
    #[test]
    fn an_update_hurries_probes_a_few_times() {
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        assert_eq!(probe(&mut planes, MS), Some((1, 7)));
        let gap = PortReachability::EXPEDITED_GAP_NS;
        let mut at = MS;
        for _ in 0..4 {
            update(&mut planes, at + 1, 3);
            assert_eq!(planes.next_timeout(BOTH), Time(at + gap));
            at += gap;
            assert_eq!(probe(&mut planes, at), Some((1, 7)));
        }
        update(&mut planes, at + 1, 3);
        assert!(planes.next_timeout(BOTH) > Time(at + MS / 2), "no more of it");
        // A connecting queue pair is no evidence about the plane.
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        probe(&mut planes, MS);
        planes.expedite_all(Time(MS + 1));
        assert!(planes.next_timeout(BOTH) > Time(MS + MS / 2));
        // After 100 ms there is credit for one more.
        let mut credit = Budget::FULL;
        let taken = |credit: &mut Budget, ms| (0..10).filter(|_| credit.take(Time(ms * MS))).count();
        let counts = [1_000, 1_099, 1_100, 1_400, 9_000].map(|ms| taken(&mut credit, ms));
        assert_eq!(counts, [4, 0, 1, 3, 4]);
    }

    /// One probe at first, several after one that timed out.
    #[test]
    fn a_probe_without_an_answer_is_followed_by_several() {
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        assert_eq!(planes.probe_evs(1), 1);
        probe(&mut planes, MS);
        assert_eq!(planes.probe_evs(1), PortReachability::PROBE_EVS);
        assert!(answer(&mut planes, MS + 1, 1, 7));
        update(&mut planes, 3 * MS, 1);
        assert_eq!(planes.probe_evs(1), 1, "another doubt");
    }

    /// The response to another request over the plane opens it, if the request left after the plane became suspect.
    #[test]
    fn a_response_to_a_later_request_settles_a_doubt() {
        for (sent_at, settles) in [(MS - 1, false), (MS, false), (MS + 1, true)] {
            let mut planes = PortReachability::new(2);
            assert!(!planes.on_proof(1, Time(MS)) && !planes.on_proof(32, Time(MS)), "no doubt");
            update(&mut planes, MS, 1);
            assert!(!planes.on_proof(0, Time(2 * MS)), "of another plane");
            assert_eq!(planes.on_proof(1, Time(sent_at)), settles);
            planes.review(BOTH);
            assert_eq!(planes.open(), if settles { BOTH } else { PlaneSet(1) });
        }
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        probe(&mut planes, MS);
        update(&mut planes, 2 * MS, 1);
        assert!(!planes.on_proof(1, Time(MS + 1)), "it may have left before the second update");
    }

    #[test]
    fn packets_that_left_early_do_not_open_a_plane() {
        let mut planes = PortReachability::new(2);
        assert!(!planes.note_rx(1), "not in doubt");
        update(&mut planes, MS, 1);
        assert!(!planes.note_rx(0) && !planes.note_rx(32));
        assert!(planes.note_rx(1) && !planes.note_rx(1));
        planes.confirm_by_rx(Time(2 * MS));
        planes.review(BOTH);
        assert_eq!(planes.open(), PlaneSet(1));
        planes.confirm_by_rx(Time(11 * MS));
        planes.review(BOTH);
        assert_eq!(planes.open(), PlaneSet(1), "it came rx_early");
        assert!(planes.note_rx(1));
        assert_eq!(planes.next_timeout(BOTH), Time::ZERO);
        planes.confirm_by_rx(Time(12 * MS));
        planes.review(BOTH);
        assert_eq!(planes.open(), PlaneSet(3));
    }

    #[test]
    fn probes_come_less_and_less_often() {
        let mut planes = PortReachability::new(2);
        update(&mut planes, MS, 1);
        let mut times = Vec::new();
        while times.len() < 20 {
            let at = planes.next_timeout(BOTH).0;
            assert!(probe(&mut planes, at).is_some());
            times.push(at);
        }
        let waits: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 100_000).collect();
        assert_eq!(waits[..4], [9, 19, 39, 79]);
        assert!(waits[14..].iter().all(|wait| (79_000..=80_000).contains(wait)), "{waits:?}");
        assert!((0..9).all(|n| (750..=1_250).contains(&jittered(1_000, 5_000, n * 8_000))));
        // An update reports the plane as up: the next probe is expedited.
        let last = times[19];
        update(&mut planes, last + 2 * MS, 3);
        assert_eq!(planes.next_timeout(BOTH), Time(last + 2 * MS));
        assert_eq!(planes.next_timeout(PlaneSet(1)), Time::NEVER, "our own port is down");
    }
}
