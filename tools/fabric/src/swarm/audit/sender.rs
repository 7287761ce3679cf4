//! What a queue pair sends, judged by what it was told.
//!
//! - *A gap is repaired before new data leaves.* When a packet that left later has been reported, and the time for this one has passed,
//!   no data leaves for the first time before it has left again.
//! - *What was reported is not sent again*, but for a tail probe that asks for a completion.
//! - *What may be on its way is sent again for a reason only*: a NACK, a port that changed its state, the report of a packet that left
//!   later, a round trip ago at least; or silence, for two round trips or the tail probe's floor, or a retransmission timeout.
//!
//! Time is measured in round trips as they are in the run, however long queues and outages make them.

use std::collections::{BTreeMap, BTreeSet};

use spindrift::time::Time;
use spindrift::wire::{DataHead, Psn, Seth};

use crate::swarm::ledger::{Check, demand};

/// The least that counts as a reordering window, ns.
const REORDERING_FLOOR_NS: u64 = 2_000;
/// Round trips after which one of them no longer shows in a smoothed value: (7/8)^128 of it is left.
const RTT_MEMORY: u32 = 128;
/// A smoothed round trip and four times its variation are at most this many of the longest.
const SPREAD: u64 = 5;

/// A packet that was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// How often.
    copies: u32,
    /// When it was sent last, and for how long the host had stood still then.
    at: Time,
    paused_ns: u64,
    /// Position of the last copy among all that the queue pair sent.
    order: u64,
    timestamp: u16,
    reported: bool,
    nacked: bool,
}

/// Settings of a queue pair, ns.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit stands last in a name")]
pub(crate) struct Timers {
    /// Reordering that is expected at first.
    pub(crate) initial_reordering_ns: u64,
    /// The least silence before a tail probe.
    pub(crate) probe_floor_ns: u64,
    /// The shortest retransmission timeout.
    pub(crate) timeout_ns: u64,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Sender {
    timers: Timers,
    first: Psn,
    all: Vec<Sent>,
    actions: u64,
    /// The oldest packet that has not been reported.
    una: usize,
    /// Packets not reported, and not known to be overtaken, by the order of their last copy.
    in_order: BTreeMap<u64, usize>,
    /// Those known to be overtaken: when they should have left again at the latest.
    overtaken: BTreeSet<(Time, usize)>,
    /// Of those sent once, the latest that was reported.
    newest: u64,
    /// Of those sent again, the latest that was reported; it may have been an earlier copy that arrived.
    newest_repeat: u64,
    longest: Longest,
    /// No round trip was shorter.
    shortest_ns: Option<u64>,
    /// One was measured for certain: only then do tail probes wait for two of them.
    measured: bool,
    /// Copies up to this one may leave again at any time.
    excused: u64,
    /// When something was last reported for the first time.
    quiet_since: Time,
    /// Packets sent again since, without another reason.
    probes: u64,
}

/// The longest of the last round trips, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Longest {
    before: u64,
    now: u64,
    count: u32,
}

impl Longest {
    fn add(&mut self, ns: u64) {
        if self.count == RTT_MEMORY {
            *self = Self { before: self.now, now: 0, count: 0 };
        }
        self.now = self.now.max(ns);
        self.count += 1;
    }

    fn ns(&self) -> u64 {
        self.before.max(self.now)
    }
}

impl Sender {
    pub(super) fn new(timers: Timers) -> Self {
        Self { timers, ..Self::default() }
    }

    /// What was sent until now may leave again: a port of this host or of the peer's has changed its state.
    pub(super) const fn excuse(&mut self) {
        self.excused = self.actions;
    }

    /// Position of a packet, the first being 0; below, and beyond what was sent, there is none.
    fn at(&self, psn: Psn) -> i64 {
        let next = self.first.add(self.all.len() as u32 & 0x00ff_ffff);
        self.all.len() as i64 + i64::from(psn.distance(next))
    }

    fn psn(&self, at: usize) -> u32 {
        self.first.add(at as u32 & 0x00ff_ffff).get()
    }

    fn at_most(&mut self, rtt_ns: u64) {
        self.shortest_ns = Some(self.shortest_ns.map_or(rtt_ns, |shortest| shortest.min(rtt_ns)));
    }

    /// After this long a packet that was overtaken counts as lost: a fair round trip and the widest reordering window (RFC 8985,
    /// section 6.2).
    fn lost_after_ns(&self) -> u64 {
        let longest = self.longest.ns();
        longest + (SPREAD * longest).max(self.timers.initial_reordering_ns).max(REORDERING_FLOOR_NS)
    }

    /// `timers_run`: the host's timers are not held back after a stall.
    pub(super) fn on_send(&mut self, now: Time, paused_ns: u64, timers_run: bool, head: &DataHead) -> Check {
        if self.all.is_empty() {
            self.first = head.bth.psn;
        }
        if self.una == self.all.len() {
            self.progress(now);
        }
        let at = self.at(head.bth.psn) as usize;
        self.actions += 1;
        let timestamp = head.tseth.map_or(0, |tseth| tseth.timestamp);
        let copy = Sent {
            copies: 1,
            at: now,
            paused_ns,
            order: self.actions,
            timestamp,
            reported: false,
            nacked: false,
        };
        let Some(&before) = self.all.get(at) else {
            self.all.push(copy);
            self.in_order.insert(self.actions, at);
            return if timers_run { self.check_gaps(now, paused_ns) } else { Ok(()) };
        };
        let psn = head.bth.psn.get();
        if before.reported {
            demand!(
                self.una == self.all.len(),
                "packet {psn} was sent again although the peer had told of it"
            );
            return Ok(());
        }
        let check = self.check_reason(now, psn, &before);
        self.in_order.remove(&before.order);
        self.overtaken.retain(|(_, seq)| *seq != at);
        self.in_order.insert(self.actions, at);
        self.all[at] = Sent { copies: before.copies + 1, ..copy };
        check
    }

    /// A packet leaves again that has not been reported.
    fn check_reason(&mut self, now: Time, psn: u32, before: &Sent) -> Check {
        let shortest_ns = self.shortest_ns.unwrap_or(0);
        let overtaken = before.order < self.newest.max(self.newest_repeat);
        let may_be_lost = overtaken && now.since(before.at) >= shortest_ns;
        if before.nacked || before.order <= self.excused || may_be_lost {
            return Ok(());
        }
        self.probes += 1;
        let (silence_ns, timeout_ns) = (now.since(self.quiet_since), self.timers.timeout_ns.max(1));
        let late_ns = if self.measured { 2 * shortest_ns } else { 0 };
        let probe_ns = late_ns.max(self.timers.probe_floor_ns).max(1);
        demand!(
            self.probes <= silence_ns / probe_ns + silence_ns / timeout_ns,
            "packet {psn} was sent again, and nothing says that it is lost: tail probe number {} in a silence of {silence_ns} ns; one may leave every {probe_ns} ns, and at each retransmission timeout of {timeout_ns} ns",
            self.probes
        );
        Ok(())
    }

    /// The peer said something new.
    const fn progress(&mut self, now: Time) {
        (self.quiet_since, self.probes) = (now, 0);
    }

    pub(super) fn on_nack(&mut self, now: Time, psn: Psn) {
        let at = usize::try_from(self.at(psn)).ok();
        if let Some(sent) = at.and_then(|at| self.all.get_mut(at)) {
            sent.nacked = true;
            self.progress(now);
        }
    }

    /// Data leaves for the first time.
    fn check_gaps(&self, now: Time, paused_ns: u64) -> Check {
        for &(latest, at) in &self.overtaken {
            if latest >= now {
                break;
            }
            let sent = self.all[at];
            let age_ns = now.since(sent.at).saturating_sub(paused_ns - sent.paused_ns);
            let (lost_after_ns, psn) = (self.lost_after_ns(), self.psn(at));
            demand!(
                age_ns <= lost_after_ns,
                "data left for the first time although packet {psn} is lost: sent {} times, the last time {age_ns} ns ago; it counts as lost after {lost_after_ns} ns",
                sent.copies
            );
        }
        Ok(())
    }

    pub(super) fn on_sack(&mut self, now: Time, paused_ns: u64, seth: &Seth) {
        if !seth.pr
            && let Some(sent) = self.answered(seth)
        {
            let rtt_ns = now.since(sent.at);
            self.longest.add(rtt_ns);
            self.at_most(rtt_ns);
            self.measured |= sent.copies == 1 && !sent.reported;
            self.newest_repeat = self.newest_repeat.max(sent.order);
        }
        let base = self.at(seth.sack_base());
        for at in self.una as i64..=self.at(seth.cack) {
            self.report(at, now);
        }
        for bit in (0..64).filter(|bit| seth.bitmap >> bit & 1 == 1) {
            self.report(base + bit, now);
        }
        if !seth.pr {
            self.report(self.at(seth.ack_psn()), now);
        }
        self.advance();
        let (lost_after_ns, next_report) = (self.lost_after_ns(), now.after(self.longest.ns()));
        while let Some(entry) = self.in_order.first_entry().filter(|entry| *entry.key() < self.newest) {
            let at = entry.remove();
            let sent = self.all[at];
            let due = sent.at.after(lost_after_ns + (paused_ns - sent.paused_ns));
            // The report that shows that it was overtaken need not cover it; the next one makes the requester look.
            self.overtaken.insert((due.max(next_report), at));
        }
    }

    /// All packets up to this one have arrived.
    pub(super) fn on_ack(&mut self, now: Time, psn: Psn) {
        for at in self.una as i64..=self.at(psn) {
            self.report(at, now);
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.all.get(self.una).is_some_and(|sent| sent.reported) {
            self.una += 1;
        }
    }

    /// The packet whose last copy made the peer send this SACK.
    fn answered(&self, seth: &Seth) -> Option<Sent> {
        let at = usize::try_from(self.at(seth.ack_psn())).ok()?;
        let sent = *self.all.get(at)?;
        (sent.timestamp == seth.cc.tx_timestamp).then_some(sent)
    }

    fn report(&mut self, at: i64, now: Time) {
        let Ok(at) = usize::try_from(at) else { return };
        let Some(sent) = self.all.get_mut(at).filter(|sent| !sent.reported) else { return };
        sent.reported = true;
        let sent = *sent;
        if sent.copies == 1 {
            self.newest = self.newest.max(sent.order);
            let age_ns = now.since(sent.at);
            self.at_most(age_ns);
            if self.longest.ns() == 0 {
                self.longest.add(age_ns);
            }
        } else {
            self.newest_repeat = self.newest_repeat.max(sent.order);
        }
        self.progress(now);
        if self.in_order.remove(&sent.order).is_none() {
            self.overtaken.retain(|(_, other)| *other != at);
        }
    }
}

#[cfg(test)]
mod tests {
    use spindrift::wire::{Bth, Meth, Opcode, Qpn, Reth, Tseth};

    use super::*;

    const FIRST: Psn = Psn::new(0xff_ffff);
    const RTT: u64 = 1_000;

    /// A queue pair that has sent so many packets at once, at time 0.
    fn sender(packets: u32) -> Sender {
        let timers = Timers { initial_reordering_ns: 0, probe_floor_ns: 3_000, timeout_ns: 100_000 };
        let mut sender = Sender::new(timers);
        for n in 0..packets {
            send(&mut sender, 0, n).unwrap();
        }
        sender
    }

    fn head(at: u64, n: u32) -> DataHead {
        DataHead {
            bth: Bth { ts: true, ..Bth::new(Opcode::WriteMiddle, Qpn::new(7), FIRST.add(n)) },
            meth: Meth::default(),
            tseth: Some(Tseth::new((at >> 7) as u16)),
            reth: Reth::default(),
            imm: None,
            operands: None,
        }
    }

    fn send(sender: &mut Sender, at: u64, n: u32) -> Check {
        sender.on_send(Time(at), 0, true, &head(at, n))
    }

    /// A report for packet `of`, sent at `sent_at`: all before `end` have arrived, and those that are listed.
    fn sack(sender: &mut Sender, at: u64, end: u32, listed: &[u32], (of, sent_at): (u32, u64)) {
        let cack = FIRST.add(end).sub(1);
        let mut seth = Seth {
            cack,
            ack_psn_offset: FIRST.add(of).distance(cack) as i16,
            sack_offset: 1,
            bitmap: listed.iter().map(|n| 1 << (n - end)).sum(),
            ..Seth::default()
        };
        seth.cc.tx_timestamp = (sent_at >> 7) as u16;
        sender.on_sack(Time(at), 0, &seth);
    }

    #[test]
    fn new_data_waits_for_a_packet_that_is_lost() {
        let overtaken = || {
            let mut sender = sender(4);
            sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
            sender
        };
        // A round trip, and five for reordering.
        assert_eq!(send(&mut overtaken(), 6 * RTT, 4), Ok(()));
        let late = send(&mut overtaken(), 6 * RTT + 1, 4).unwrap_err();
        assert!(late.contains("packet 16777215 is lost: sent 1 times, the last time 6001 ns ago"), "{late}");
        let mut repaired = overtaken();
        send(&mut repaired, 5 * RTT, 0).unwrap();
        assert_eq!(send(&mut repaired, 20 * RTT, 4), Ok(()), "nothing that left later has been reported");
        sack(&mut repaired, 21 * RTT, 0, &[1, 2, 3, 4], (4, 20 * RTT));
        assert_eq!(send(&mut repaired, 22 * RTT, 5), Ok(()), "in the round trip after the report");
        assert!(send(&mut repaired, 22 * RTT + 1, 6).is_err(), "lost for the second time");
        let mut reported = overtaken();
        sack(&mut reported, 7 * RTT, 3, &[], (2, 0));
        assert_eq!(send(&mut reported, 8 * RTT, 4), Ok(()));
    }

    /// What a pause of the host takes does not count.
    #[test]
    fn a_host_that_stands_still_repairs_nothing() {
        let mut sender = sender(3);
        sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
        assert_eq!(sender.on_send(Time(50 * RTT), 45 * RTT, true, &head(50 * RTT, 3)), Ok(()));
    }

    /// After a stall a host holds its timers until it has read what arrived: it may send before it repairs.
    #[test]
    fn held_timers_excuse_a_late_repair() {
        let late = |timers_run| {
            let mut sender = sender(4);
            sack(&mut sender, RTT, 0, &[1, 2], (1, 0));
            sender.on_send(Time(50 * RTT), 0, timers_run, &head(50 * RTT, 4))
        };
        assert_eq!(late(false), Ok(()));
        assert!(late(true).is_err());
    }

    #[test]
    fn what_was_reported_is_not_sent_again() {
        let mut sender = sender(3);
        sack(&mut sender, RTT, 1, &[2], (2, 0));
        for n in [0, 2] {
            let again = send(&mut sender, 50 * RTT, n).unwrap_err();
            assert!(again.contains("although the peer had told of it"), "{again}");
        }
        sack(&mut sender, 51 * RTT, 3, &[], (1, 0));
        assert_eq!(send(&mut sender, 52 * RTT, 2), Ok(()), "it asks for the completion");
    }

    /// Before the first round trip is known the floor alone counts, and after it two round trips do, if they are longer.
    #[test]
    fn tail_probes_leave_after_silence() {
        for (rtt, wait) in [(None, 3_000), (Some(1_000), 3_000), (Some(2_000), 4_000)] {
            let quiet = || {
                let mut sender = sender(2);
                if let Some(rtt) = rtt {
                    sack(&mut sender, rtt, 1, &[], (0, 0));
                }
                (sender, rtt.unwrap_or(0))
            };
            let (mut probed, from) = quiet();
            assert_eq!(send(&mut probed, from + wait, 1), Ok(()));
            assert!(send(&mut probed, from + 2 * wait - 1, 1).is_err(), "{rtt:?}");
            let (mut early, from) = quiet();
            let told = send(&mut early, from + wait - 1, 1).unwrap_err();
            assert!(told.contains("tail probe number 1 in a silence of"), "{told}");
        }
        let mut timed_out = sender(1);
        let times = (1..=33).map(|n| 3_000 * n).chain([100_000, 100_001]);
        let sent: Vec<_> = times.map(|at| send(&mut timed_out, at, 0).is_ok()).collect();
        assert_eq!(sent, [vec![true; 34], vec![false]].concat(), "one more at the retransmission timeout");
    }

    #[test]
    fn there_are_other_reasons_to_send_again() {
        let mut nacked = sender(2);
        nacked.on_nack(Time(1), FIRST);
        assert_eq!(send(&mut nacked, 2, 0), Ok(()));
        assert!(send(&mut nacked, 3, 0).is_err(), "the NACK was for the copy before");
        let mut excused = sender(2);
        excused.excuse();
        assert_eq!(send(&mut excused, 2, 0), Ok(()));
        assert!(send(&mut excused, 3, 0).is_err(), "it left after the port had changed");
        let mut overtaken = sender(3);
        sack(&mut overtaken, RTT, 0, &[1], (1, 0));
        assert_eq!(send(&mut overtaken, RTT, 0), Ok(()));
        assert!(send(&mut overtaken, RTT + 1, 2).is_err(), "it left after the one that was reported");
    }

    #[test]
    fn transport_acks_report_as_well() {
        let mut sender = sender(3);
        sender.on_ack(Time(RTT), FIRST.add(1));
        assert!(send(&mut sender, 50 * RTT, 1).is_err());
        assert_eq!(send(&mut sender, 50 * RTT, 2), Ok(()), "a tail probe");
    }
}
