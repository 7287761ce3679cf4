//! Packets that were sent more than once: which copies arrived, and what that proves.
//!
//! A [`Record`](super::Record) knows only the latest transmission of a packet. A [`Repeat`] remembers the copy before it,
//! so that a SACK for either of them can be told apart by the timestamp that it reflects:
//!
//! - The earlier copy arrived: the repeat was needless, and the rule that asked for it learns from it, as
//!   RFC 8985 section 6.2 lets RACK learn from a duplicate SACK.
//! - The later copy arrived and nothing is heard of the earlier one: that copy was lost, although no later packet
//!   overtook it (RFC 8985 section 7.4.2 infers the same for a tail loss probe). So were the copies before that one, if
//!   there are more. Their entropy values are suspected, and blamed when this happens to their next packets too. The first
//!   time proves little: if the peer stood still, all copies arrive in one burst, and one SACK may answer for them.

use std::collections::BTreeMap;

use crate::time::Time;
use crate::wire::Ev;

/// Why a packet was sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RtxReason {
    /// A later packet of the same entropy value arrived.
    Reordering,
    /// Later packets arrived and its time had passed.
    RackTimeout,
    /// Nothing was heard: a tail probe of a packet that was not declared lost.
    Tlp,
    /// It never left the host.
    TxRejected,
    /// The peer asked for it, or its plane went down.
    #[default]
    Nack,
}

/// A transmission, as far as an answer can name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmission {
    pub(super) sent_at: Time,
    /// Position among all transmissions of the queue pair.
    pub(super) order: u64,
    /// The entropy value's index, and the value that a SACK reflects.
    pub(super) ev: u16,
    pub(super) ev_bits: Ev,
}

/// One retransmission or tail probe, and the copy that it repeats.
#[derive(Clone, Copy, Debug)]
struct Rtx {
    before: Transmission,
    again: Transmission,
    cause: RtxReason,
    /// The earliest of the reports known that list the packet as received.
    listed: Option<AckSnapshot>,
    /// The report that answers this copy itself.
    answered: Option<AckSnapshot>,
    /// The earlier copy is known to have arrived.
    needless: bool,
    /// The earlier copy has been judged, or nobody may be blamed for it.
    settled: bool,
}

/// How far the peer was when it made a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckSnapshot {
    /// `CC_STATE.rcvd_bytes`: 24 bits, units of 256 bytes.
    pub(super) rcvd_bytes: u32,
    /// One past the cumulative acknowledgement.
    pub(super) cack_end: u64,
}

impl AckSnapshot {
    /// Whether packets arrived at the peer between `earlier` and this report.
    fn follows(self, earlier: Self) -> bool {
        self.gained(earlier) > 0 || self.rcvd_bytes == earlier.rcvd_bytes && self.cack_end > earlier.cack_end
    }

    /// What arrived at the peer between `earlier` and this report, units of 256 bytes; 0 if this one is the earlier.
    const fn gained(self, earlier: Self) -> u32 {
        let gained = self.rcvd_bytes.wrapping_sub(earlier.rcvd_bytes) & 0x00ff_ffff;
        if gained < 0x0080_0000 { gained } else { 0 }
    }
}

/// The packet that a SACK answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckedCopy {
    pub(super) seq: u64,
    pub(super) timestamp: u16,
    pub(super) ev_bits: Ev,
}

impl AckedCopy {
    /// Which of the two copies the SACK answers. Retransmission timers may put copies a whole round of the 16-bit
    /// timestamp apart; then the entropy value decides.
    fn which(&self, repeat: &Rtx) -> Option<Which> {
        let matches = |copy: &Transmission| copy.sent_at.timestamp() == self.timestamp;
        match (matches(&repeat.before), matches(&repeat.again)) {
            (true, false) => Some(Which::Before),
            (false, true) => Some(Which::Again),
            (false, false) => None,
            (true, true) if repeat.before.ev_bits == repeat.again.ev_bits => None,
            (true, true) if repeat.before.ev_bits == self.ev_bits => Some(Which::Before),
            (true, true) => (repeat.again.ev_bits == self.ev_bits).then_some(Which::Again),
        }
    }
}

enum Which {
    Before,
    Again,
}

/// What an answer proves about the earlier copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RtxVerdict {
    /// It arrived on this entropy value; the packet was repeated for this cause.
    Needless { ev: u16, cause: RtxReason },
    /// It was probably lost: this entropy value, its position among all transmissions, and when it left.
    Lost { ev: u16, order: u64, sent_at: Time },
}

/// The repeats of a queue pair that are recent enough to matter.
#[derive(Debug, Default)]
pub(super) struct RtxHistory {
    /// By packet and by position of the repeat among all transmissions.
    recent: BTreeMap<(u64, u64), Rtx>,
}

/// Entropy values on which a copy was probably lost, with the copy's position among all transmissions.
#[derive(Debug, Default)]
pub(super) struct SuspectedEvs {
    lost_at: BTreeMap<u16, Suspicion>,
}

/// Positions among all transmissions.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// Of the copy that was lost.
    lost: u64,
    /// Of the last one that had left when it was raised.
    raised: u64,
    /// The packet, if a report that says it to be missing would settle it.
    open: Option<u64>,
}

impl RtxHistory {
    /// Retransmissions remembered. Beyond that, those of the oldest packets are forgotten, and what they could have shown.
    const MAX: usize = 256;

    /// Packet `seq` is sent again.
    #[cold]
    pub(super) fn note(&mut self, seq: u64, before: Transmission, again: Transmission, cause: RtxReason) {
        if self.recent.len() >= Self::MAX {
            self.recent.pop_first();
        }
        let repeat = Rtx {
            before,
            again,
            cause,
            listed: None,
            answered: None,
            needless: false,
            settled: cause != RtxReason::Tlp,
        };
        self.recent.insert((seq, again.order), repeat);
    }

    /// The repeat of `seq` at position `order` never left: forgets it, and tells what it was to repeat.
    pub(super) fn undo(&mut self, seq: u64, order: u64) -> Option<(Transmission, RtxReason)> {
        self.recent.remove(&(seq, order)).map(|repeat| (repeat.before, repeat.cause))
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Takes in a SACK: the packet that it answers, and the packets that it lists as received, which are all before
    /// `now.cack_end` and those that `listed` names. `prove` is told what it proves.
    pub(super) fn on_sack(
        &mut self,
        answered: Option<&AckedCopy>,
        now: AckSnapshot,
        listed: impl Fn(u64) -> bool,
        mut prove: impl FnMut(RtxVerdict),
    ) {
        let answered_at = self.position_of(answered);
        for (&(seq, _), repeat) in &mut self.recent {
            let answered = answered.filter(|answered| answered.seq == seq);
            let which = answered.and_then(|answered| answered.which(repeat));
            let behind_it = answered.is_some() && answered_at.is_some_and(|order| order > repeat.again.order);
            match which {
                Some(Which::Again) if repeat.answered.is_none() => repeat.answered = Some(now),
                _ => {}
            }
            // No more bytes are told of while the answer to a copy waits. So when the peer listed the packet with fewer, it had
            // an earlier copy; reports may arrive here in any order.
            let earliest = repeat.listed.is_none_or(|other| other.follows(now));
            if earliest && (seq < now.cack_end || listed(seq)) {
                repeat.listed = Some(now);
            }
            let listed_before = match (repeat.listed, repeat.answered) {
                (Some(listed), Some(answered)) => answered.gained(listed) > 0,
                _ => false,
            };
            let Transmission { ev, order, sent_at, .. } = repeat.before;
            if matches!(which, Some(Which::Before)) || listed_before {
                if !repeat.needless {
                    prove(RtxVerdict::Needless { ev, cause: repeat.cause });
                }
                (repeat.needless, repeat.settled) = (true, true);
            } else if (matches!(which, Some(Which::Again)) || behind_it && repeat.listed == Some(now))
                && !repeat.settled
            {
                // Of several repeats one is answered: those before it were probably lost like the first copy, if no report
                // listed the packet earlier.
                repeat.settled = true;
                prove(RtxVerdict::Lost { ev, order, sent_at });
            }
        }
    }

    /// Whether an answer to the repeat of `seq` at position `order` may as well be one to a copy before it, as far as is
    /// remembered: timestamps a whole round apart on one path, or one that nothing is known of.
    pub(super) fn may_be_mistaken(&self, seq: u64, order: u64) -> bool {
        let Some(Rtx { again, .. }) = self.recent.get(&(seq, order)) else { return true };
        let name = |copy: &Transmission| (copy.sent_at.timestamp(), copy.ev_bits);
        let mut copies = self.recent.range((seq, 0)..=(seq, order));
        copies.any(|(_, repeat)| name(&repeat.before) == name(again))
    }

    /// Where among all transmissions the repeat is that a SACK answers.
    fn position_of(&self, answered: Option<&AckedCopy>) -> Option<u64> {
        let answered = answered?;
        let copies = self.recent.range((answered.seq, 0)..=(answered.seq, u64::MAX));
        let mut again = copies.filter(|(_, repeat)| matches!(answered.which(repeat), Some(Which::Again)));
        again.next().map(|(&(_, order), _)| order)
    }

    /// Forgets the oldest packets' repeats that were sent before `before`: nobody will speak of them any more.
    pub(super) fn forget(&mut self, before: Time) {
        while let Some(oldest) = self.recent.first_entry() {
            if oldest.get().again.sent_at >= before {
                return;
            }
            oldest.remove();
        }
    }

    /// Copies on these entropy values were lost with their plane: no path is to blame.
    pub(super) fn discard_planes(&mut self, on: impl Fn(u16) -> bool) {
        for repeat in self.recent.values_mut() {
            repeat.settled |= on(repeat.before.ev);
        }
    }
}

impl SuspectedEvs {
    /// The copy at position `order` on this entropy value was probably lost; `newest` is the newest position known to
    /// have arrived on it. `true` when the entropy value is to blame: two copies lost and nothing arrived since.
    pub(super) fn suspect(&mut self, ev: u16, order: u64, newest: u64) -> bool {
        self.suspect_again(ev, Suspicion { lost: order, raised: order, open: None }, newest, |_| true)
    }

    /// The same for packet `seq`, one of many whose answers may have been lost with it, at a time when `raised` was the last position
    /// to have left: of these, one alone counts, and the second has to have left after it was declared lost.
    pub(super) fn doubt(&mut self, ev: u16, (seq, order): (u64, u64), newest: u64, raised: u64) -> bool {
        let suspicion = Suspicion { lost: order, raised, open: Some(seq) };
        self.suspect_again(ev, suspicion, newest, |first| order > first.raised)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lost_at.is_empty()
    }

    /// Takes in a report, by the packets that it says to be missing. `blame` is told the entropy values of those in doubt and
    /// the positions of the copies lost.
    pub(super) fn resolve(&mut self, missing: impl Fn(u64) -> bool, mut blame: impl FnMut(u16, u64)) {
        self.lost_at.retain(|&ev, suspicion| {
            let lost = suspicion.open.is_some_and(&missing);
            if lost {
                blame(ev, suspicion.lost);
            }
            !lost
        });
    }

    fn suspect_again(
        &mut self,
        ev: u16,
        suspicion: Suspicion,
        newest: u64,
        counts: impl Fn(&Suspicion) -> bool,
    ) -> bool {
        if newest > suspicion.lost {
            // The path has carried something since.
            return false;
        }
        match self.lost_at.get(&ev).filter(|first| newest < first.lost) {
            None => {
                self.lost_at.insert(ev, suspicion);
                false
            }
            Some(first) if counts(first) => {
                self.lost_at.remove(&ev);
                true
            }
            Some(_) => false,
        }
    }

    /// What was lost on these entropy values was lost with their plane.
    pub(super) fn discard_planes(&mut self, on: impl Fn(u16) -> bool) {
        self.lost_at.retain(|&ev, _| !on(ev));
    }

    /// Keeps the suspicions that stand: those on entropy values on which nothing has arrived since, by their newest positions
    /// known to have arrived.
    pub(super) fn retain_unconfirmed(&mut self, newest: impl Fn(u16) -> u64) {
        self.lost_at.retain(|&ev, first| newest(ev) < first.lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(sent_at: u64, order: u64, ev: u16) -> Transmission {
        Transmission { sent_at: Time(sent_at), order, ev, ev_bits: Ev(u32::from(ev) + 100) }
    }

    fn listing(rcvd_bytes: u32, cack_end: u64) -> AckSnapshot {
        AckSnapshot { rcvd_bytes, cack_end }
    }

    /// Packet 7, sent on path 1 and again on path 2.
    fn repeated(cause: RtxReason) -> RtxHistory {
        let mut repeats = RtxHistory::default();
        repeats.note(7, copy(0, 10, 1), copy(1_000_000, 20, 2), cause);
        repeats
    }

    fn answer(sent_at: u64, ev: u16) -> AckedCopy {
        AckedCopy { seq: 7, timestamp: Time::timestamp(Time(sent_at)), ev_bits: Ev(u32::from(ev) + 100) }
    }

    fn proofs(repeats: &mut RtxHistory, answered: Option<AckedCopy>, now: AckSnapshot) -> Vec<RtxVerdict> {
        let mut proofs = Vec::new();
        repeats.on_sack(answered.as_ref(), now, |_| false, |proof| proofs.push(proof));
        proofs
    }

    #[test]
    fn an_answer_to_the_first_copy_makes_the_second_needless_once() {
        for cause in [RtxReason::Reordering, RtxReason::RackTimeout, RtxReason::Tlp, RtxReason::Nack] {
            let mut repeats = repeated(cause);
            let needless = [RtxVerdict::Needless { ev: 1, cause }];
            assert_eq!(proofs(&mut repeats, Some(answer(0, 1)), listing(1, 0)), needless);
            assert_eq!(proofs(&mut repeats, Some(answer(0, 1)), listing(2, 0)), []);
            assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(3, 9)), []);
        }
    }

    #[test]
    fn an_answer_to_the_probe_alone_means_that_the_first_copy_was_lost() {
        let mut repeats = repeated(RtxReason::Tlp);
        let lost = [RtxVerdict::Lost { ev: 1, order: 10, sent_at: Time(0) }];
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), lost);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), [], "once");
        let late = [RtxVerdict::Needless { ev: 1, cause: RtxReason::Tlp }];
        assert_eq!(proofs(&mut repeats, Some(answer(0, 1)), listing(6, 8)), late, "and yet it was only late");
    }

    /// Of several tail probes one gets through. Packet 8 has nothing to do with it.
    #[test]
    fn an_answer_to_the_last_of_three_copies_means_that_both_before_it_were_lost() {
        let three = || {
            let mut repeats = repeated(RtxReason::Tlp);
            repeats.note(7, copy(1_000_000, 20, 2), copy(3_000_000, 30, 3), RtxReason::Tlp);
            repeats.note(8, copy(0, 11, 4), copy(1_000_000, 21, 5), RtxReason::Tlp);
            repeats
        };
        let (first, second) = (
            RtxVerdict::Lost { ev: 1, order: 10, sent_at: Time(0) },
            RtxVerdict::Lost { ev: 2, order: 20, sent_at: Time(1_000_000) },
        );
        let last = Some(answer(3_000_000, 3));
        let mut repeats = three();
        assert_eq!(proofs(&mut repeats, last, listing(5, 8)), [first, second]);
        assert_eq!(proofs(&mut repeats, last, listing(5, 8)), [], "once");
        let late = [RtxVerdict::Needless { ev: 1, cause: RtxReason::Tlp }];
        assert_eq!(proofs(&mut repeats, Some(answer(0, 1)), listing(6, 8)), late, "and yet it was only late");
        // The second arrived, and so the third was not needed.
        let needless = [RtxVerdict::Needless { ev: 2, cause: RtxReason::Tlp }];
        let mut repeats = three();
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), [first, needless[0]]);
        assert_eq!(proofs(&mut repeats, last, listing(6, 9)), []);
        // One of them arrived, nobody knows which.
        let mut repeats = three();
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, last, listing(6, 9)), needless);
        // A copy that was declared lost has been blamed for it.
        let mut repeats = repeated(RtxReason::RackTimeout);
        repeats.note(7, copy(1_000_000, 20, 2), copy(3_000_000, 30, 3), RtxReason::Tlp);
        assert_eq!(proofs(&mut repeats, last, listing(5, 8)), [second]);
    }

    #[test]
    fn a_packet_declared_lost_is_not_blamed_twice() {
        for cause in [RtxReason::Reordering, RtxReason::RackTimeout, RtxReason::Nack] {
            let mut repeats = repeated(cause);
            assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        }
    }

    #[test]
    fn a_packet_listed_before_its_repeat_arrived_had_arrived_before() {
        let needless = [RtxVerdict::Needless { ev: 1, cause: RtxReason::RackTimeout }];
        // Reports in the order they were made, and the other way round.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), needless);
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), []);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), needless);
        // Reports of one moment prove nothing; nor does a later one.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, None, listing(7, 12)), []);
        // Nor does a second answer to the repeat, though the first one listed the packet.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), []);
        // Packet 7 is the one that this report waits for.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, None, listing(5, 7)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), []);
    }

    #[test]
    fn reports_are_ordered_across_the_wrap_of_the_byte_count() {
        assert!(listing(3, 0).follows(listing(0x00ff_fffe, 0)));
        assert!(!listing(0x00ff_fffe, 0).follows(listing(3, 0)));
        assert!(listing(3, 5).follows(listing(3, 4)) && !listing(3, 4).follows(listing(3, 4)));
        assert!(!listing(2, 9).follows(listing(3, 4)), "fewer bytes received, whatever it acknowledges");
        assert!(
            listing(0x80_0002, 0).follows(listing(3, 0)) && !listing(0x80_0003, 0).follows(listing(3, 0))
        );
    }

    #[test]
    fn the_entropy_value_decides_when_the_timestamps_are_a_round_apart() {
        let round_ns = 1 << 23;
        let mut repeats = RtxHistory::default();
        repeats.note(7, copy(0, 10, 1), copy(round_ns, 20, 2), RtxReason::Tlp);
        assert_eq!(
            proofs(&mut repeats, Some(answer(round_ns, 2)), listing(5, 8)),
            [RtxVerdict::Lost { ev: 1, order: 10, sent_at: Time(0) }]
        );
        assert_eq!(
            proofs(&mut repeats, Some(answer(0, 1)), listing(5, 8)),
            [RtxVerdict::Needless { ev: 1, cause: RtxReason::Tlp }]
        );
        let mut same = RtxHistory::default();
        same.note(7, copy(0, 10, 1), copy(round_ns, 20, 1), RtxReason::Tlp);
        assert_eq!(proofs(&mut same, Some(answer(0, 1)), listing(5, 8)), [], "nothing tells them apart");
    }

    #[test]
    fn copies_of_one_path_and_timestamp_may_be_mistaken() {
        let round_ns = 1 << 23;
        let mut repeats = RtxHistory::default();
        repeats.note(7, copy(0, 10, 1), copy(5, 20, 2), RtxReason::Tlp);
        repeats.note(7, copy(5, 20, 2), copy(round_ns, 30, 3), RtxReason::Tlp);
        repeats.note(7, copy(round_ns, 30, 3), copy(2 * round_ns, 40, 1), RtxReason::Tlp);
        repeats.note(8, copy(0, 11, 1), copy(round_ns, 31, 1), RtxReason::Tlp);
        assert_eq!([20, 30, 40].map(|order| repeats.may_be_mistaken(7, order)), [false, false, true]);
        assert!(repeats.may_be_mistaken(8, 31));
        assert!(repeats.may_be_mistaken(7, 50) && repeats.may_be_mistaken(9, 20), "nothing is known of them");
    }

    #[test]
    fn copies_lost_with_their_plane_are_nobodys_fault() {
        let mut repeats = repeated(RtxReason::Tlp);
        repeats.discard_planes(|ev| ev == 1);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        let mut repeats = repeated(RtxReason::Tlp);
        repeats.discard_planes(|ev| ev == 2);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)).len(), 1);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten() {
        let mut repeats = RtxHistory::default();
        for seq in 0..10_000 {
            repeats.note(seq, copy(seq, seq, 1), copy(seq + 1, seq + 1, 2), RtxReason::RackTimeout);
        }
        assert_eq!(repeats.recent.len(), RtxHistory::MAX);
        assert_eq!(repeats.recent.first_key_value().map(|(&(seq, _), _)| seq), Some(10_000 - 256));
        repeats.forget(Time(9_999));
        assert_eq!(repeats.recent.len(), 2);
        repeats.forget(Time(20_000));
        assert!(repeats.is_empty());
    }

    #[test]
    fn a_path_is_blamed_for_the_second_loss_in_a_row() {
        let mut suspects = SuspectedEvs::default();
        assert!(!suspects.suspect(1, 10, 0));
        assert!(!suspects.suspect(2, 11, 0), "another path");
        assert!(suspects.suspect(1, 20, 0));
        assert!(!suspects.suspect(1, 30, 0), "from the start");
        assert!(!suspects.suspect(1, 50, 40), "something arrived in between");
        assert!(suspects.suspect(1, 60, 40));
        assert!(!suspects.suspect(3, 70, 80), "something sent later arrived");
        assert!(!suspects.suspect(3, 90, 80));
        assert!(!suspects.suspect(4, 50, 40));
        assert!(!suspects.suspect(4, 30, 40), "an older copy, judged late");
        assert!(suspects.suspect(4, 60, 40), "and the suspicion stands");
    }

    /// Answers that are lost are lost together: what they would have told of one path at one time counts once.
    #[test]
    fn a_path_is_blamed_for_a_doubtful_loss_when_one_that_left_later_is_lost_too() {
        let mut suspects = SuspectedEvs::default();
        assert!(!suspects.doubt(1, (0, 10), 0, 30));
        assert!(!suspects.doubt(1, (0, 20), 0, 31), "declared later, but it had left before");
        assert!(!suspects.doubt(1, (0, 30), 0, 32), "the last that had left");
        assert!(!suspects.doubt(2, (0, 31), 0, 33), "another path");
        assert!(suspects.doubt(1, (0, 31), 0, 40));
        assert!(!suspects.doubt(1, (0, 50), 0, 60), "from the start");
        assert!(!suspects.doubt(1, (0, 70), 55, 80), "something arrived in between");
        assert!(!suspects.doubt(1, (0, 90), 91, 99), "something sent later arrived");
        assert!(suspects.doubt(1, (0, 81), 55, 80), "and the suspicion stands");
        // Both kinds of suspicion are of one path.
        assert!(!suspects.suspect(3, 10, 0));
        assert!(suspects.doubt(3, (0, 11), 0, 40));
        assert!(!suspects.doubt(4, (0, 10), 0, 40));
        assert!(suspects.suspect(4, 20, 0));
    }

    /// A report that says that the packet has not arrived settles it, and one that does not leaves it open.
    #[test]
    fn a_report_settles_doubts() {
        let mut suspects = SuspectedEvs::default();
        assert!(!suspects.suspect(1, 10, 0), "this one says nothing of a packet");
        for (ev, seq) in [(2, 7), (3, 8), (4, 9)] {
            assert!(!suspects.doubt(ev, (seq, 20), 0, 30));
        }
        let missing = |suspects: &mut SuspectedEvs, seqs: &[u64]| {
            let mut blamed = Vec::new();
            suspects.resolve(|seq| seqs.contains(&seq), |ev, at| blamed.push((ev, at)));
            blamed
        };
        assert_eq!(missing(&mut suspects, &[0, 6, 10]), []);
        assert_eq!(missing(&mut suspects, &[7, 9]), [(2, 20), (4, 20)]);
        assert_eq!(missing(&mut suspects, &[7, 9]), [], "once");
        assert!(suspects.doubt(3, (40, 41), 0, 50), "and the suspicion of the third stands");
        assert!(!suspects.is_empty());
        suspects.discard_planes(|ev| ev == 2);
        assert!(suspects.suspect(1, 20, 0));
        assert!(suspects.is_empty());
        assert!(!suspects.suspect(1, 30, 0));
        suspects.discard_planes(|ev| ev == 1);
        assert!(suspects.is_empty());
    }

    #[test]
    fn suspicions_that_something_has_cleared_are_not_kept() {
        let mut suspects = SuspectedEvs::default();
        for ev in 1..=3 {
            assert!(!suspects.suspect(ev, 10, 0));
        }
        suspects.retain_unconfirmed(|ev| [0, 9, 10, 11][usize::from(ev)]);
        // From here on nobody knows what had arrived before.
        assert_eq!([1, 2, 3].map(|ev| suspects.suspect(ev, 20, 0)), [true, false, false]);
    }
}
