//! Packets that were sent more than once: which copies arrived, and what that proves.
//!
//! A [`Record`](super::Record) describes only the latest transmission of a packet. An [`Rtx`] describes the copy
//! before it. The timestamp that a SACK reflects shows which of the two triggered it:
//!
//! - The earlier copy arrived: the retransmission was spurious. The rule that caused it adapts, as RACK does on a
//!   duplicate SACK (RFC 8985 section 6.2).
//! - The later copy arrived and no SACK reports the earlier one: the earlier copy was lost, although no later packet
//!   overtook it. RFC 8985 section 7.4.2 infers the same for a TLP. Any copies before it were lost too. Their entropy
//!   values are suspected, and blamed if it happens to their next packets too. Once proves little: if the peer was
//!   paused, all copies arrive in one burst, and one SACK may acknowledge them.

use std::collections::BTreeMap;

use crate::time::Time;
use crate::wire::Ev;

/// Why a packet was sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RtxReason {
    /// Order rule: a later packet of the same entropy value arrived.
    Reordering,
    /// Time rule: later packets arrived, and this one is overdue.
    RackTimeout,
    /// A TLP of a packet that was not declared lost.
    Tlp,
    /// The previous transmission never left the host.
    TxRejected,
    /// A NACK refused it, or its plane went down.
    #[default]
    Nack,
}

/// A transmission, as a SACK can identify it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmission {
    pub(super) sent_at: Time,
    /// Position among all transmissions of the queue pair.
    pub(super) order: u64,
    /// The entropy value's index, and the value that a SACK reflects.
    pub(super) ev: u16,
    pub(super) ev_bits: Ev,
}

/// One retransmission or TLP, and the copy before it.
#[derive(Clone, Copy, Debug)]
struct Rtx {
    before: Transmission,
    again: Transmission,
    cause: RtxReason,
    /// The earliest known SACK that lists the packet as received.
    listed: Option<AckSnapshot>,
    /// The SACK that this copy itself triggered.
    answered: Option<AckSnapshot>,
    /// The earlier copy is known to have arrived.
    needless: bool,
    /// The earlier copy has been judged, or its path must not be blamed.
    settled: bool,
}

/// What the peer had received when it sent a SACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckSnapshot {
    /// `CC_STATE.rcvd_bytes`: 24 bits, units of 256 bytes.
    pub(super) rcvd_bytes: u32,
    /// One past the cumulative acknowledgement.
    pub(super) cack_end: u64,
}

impl AckSnapshot {
    /// Whether packets arrived at the peer between `earlier` and this SACK.
    fn follows(self, earlier: Self) -> bool {
        self.gained(earlier) > 0 || self.rcvd_bytes == earlier.rcvd_bytes && self.cack_end > earlier.cack_end
    }

    /// What arrived at the peer between `earlier` and this SACK, in units of 256 bytes. It is 0 if this one is the
    /// earlier.
    const fn gained(self, earlier: Self) -> u32 {
        let gained = self.rcvd_bytes.wrapping_sub(earlier.rcvd_bytes) & 0x00ff_ffff;
        if gained < 0x0080_0000 { gained } else { 0 }
    }
}

/// The copy that triggered a SACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckedCopy {
    pub(super) seq: u64,
    pub(super) timestamp: u16,
    pub(super) ev_bits: Ev,
}

impl AckedCopy {
    /// Which of the two copies triggered the SACK. Copies may be a whole period of the 16-bit timestamp apart after
    /// an RTO; then the entropy value decides.
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

/// What a SACK proves about the earlier copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RtxVerdict {
    /// It arrived on this entropy value. The packet was retransmitted for this cause.
    Needless { ev: u16, cause: RtxReason },
    /// It was probably lost. The fields are its entropy value, its position among all transmissions, and when it was
    /// sent.
    Lost { ev: u16, order: u64, sent_at: Time },
}

/// The recent retransmissions of a queue pair.
#[derive(Debug, Default)]
pub(super) struct RtxHistory {
    /// Keyed by packet and by the retransmission's position among all transmissions.
    recent: BTreeMap<(u64, u64), Rtx>,
}

/// Entropy values on which a copy was probably lost, each with the copy's position among all transmissions.
#[derive(Debug, Default)]
pub(super) struct SuspectedEvs {
    lost_at: BTreeMap<u16, Suspicion>,
}

/// Positions among all transmissions.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// The position of the lost copy.
    lost: u64,
    /// The last position that had been sent when the suspicion was raised.
    raised: u64,
    /// The packet, if a SACK that proves it missing would confirm the suspicion.
    open: Option<u64>,
}

impl RtxHistory {
    /// Most retransmissions remembered. Beyond that, those of the oldest packets are forgotten, with what they could
    /// prove.
    const MAX: usize = 256;

    /// Records that packet `seq` is retransmitted.
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

    /// Forgets the retransmission of `seq` at position `order`, which never left. Returns the copy before it and the
    /// cause.
    pub(super) fn undo(&mut self, seq: u64, order: u64) -> Option<(Transmission, RtxReason)> {
        self.recent.remove(&(seq, order)).map(|repeat| (repeat.before, repeat.cause))
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Processes a SACK: the copy that triggered it, and the packets that it lists as received. These are all packets
    /// before `now.cack_end` and those for which `listed` is true. `prove` receives each verdict.
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
            // `rcvd_bytes` does not grow while the SACK for a copy is pending. If the peer listed the packet with
            // fewer bytes, it had an earlier copy. SACKs may arrive here in any order.
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
                // If one of several retransmissions is acknowledged, those before it were probably lost like the
                // first copy, unless an earlier SACK listed the packet.
                repeat.settled = true;
                prove(RtxVerdict::Lost { ev, order, sent_at });
            }
        }
    }

    /// Whether a SACK for the retransmission of `seq` at position `order` may be for an earlier copy: the timestamps
    /// are a whole period apart on one path, or nothing is known of the retransmission.
    pub(super) fn may_be_mistaken(&self, seq: u64, order: u64) -> bool {
        let Some(Rtx { again, .. }) = self.recent.get(&(seq, order)) else { return true };
        let name = |copy: &Transmission| (copy.sent_at.timestamp(), copy.ev_bits);
        let mut copies = self.recent.range((seq, 0)..=(seq, order));
        copies.any(|(_, repeat)| name(&repeat.before) == name(again))
    }

    /// The position among all transmissions of the retransmission that triggered a SACK.
    fn position_of(&self, answered: Option<&AckedCopy>) -> Option<u64> {
        let answered = answered?;
        let copies = self.recent.range((answered.seq, 0)..=(answered.seq, u64::MAX));
        let mut again = copies.filter(|(_, repeat)| matches!(answered.which(repeat), Some(Which::Again)));
        again.next().map(|(&(_, order), _)| order)
    }

    /// Forgets the retransmissions, oldest packets first, that were sent before `before`. No SACK for them is
    /// expected any more.
    pub(super) fn forget(&mut self, before: Time) {
        while let Some(oldest) = self.recent.first_entry() {
            if oldest.get().again.sent_at >= before {
                return;
            }
            oldest.remove();
        }
    }

    /// The copies on these entropy values were lost with their plane: no path is to blame.
    pub(super) fn discard_planes(&mut self, on: impl Fn(u16) -> bool) {
        for repeat in self.recent.values_mut() {
            repeat.settled |= on(repeat.before.ev);
        }
    }
}

impl SuspectedEvs {
    /// Records that the copy at position `order` on this entropy value was probably lost. `newest` is the newest
    /// position known to have arrived on it. Returns `true` if the entropy value is to blame: two copies were lost,
    /// and nothing arrived since.
    pub(super) fn suspect(&mut self, ev: u16, order: u64, newest: u64) -> bool {
        self.suspect_again(ev, Suspicion { lost: order, raised: order, open: None }, newest, |_| true)
    }

    /// The same for packet `seq`, when the SACKs of many packets may have been lost together. `raised` is the last
    /// position sent so far. Of the copies sent by then, only one counts: the second loss must have left after the
    /// first was declared lost.
    pub(super) fn doubt(&mut self, ev: u16, (seq, order): (u64, u64), newest: u64, raised: u64) -> bool {
        let suspicion = Suspicion { lost: order, raised, open: Some(seq) };
        self.suspect_again(ev, suspicion, newest, |first| order > first.raised)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lost_at.is_empty()
    }

    /// Processes a SACK by the packets that it proves missing. `blame` receives the entropy value of each suspicion
    /// that this confirms, and the position of the lost copy.
    pub(super) fn resolve(&mut self, missing: impl Fn(u64) -> bool, mut blame: impl FnMut(u16, u64)) {
        self.lost_at.retain(|&ev, suspicion| {
            let lost = suspicion.open.is_some_and(&missing);
            if lost {
                blame(ev, suspicion.lost);
            }
            !lost
        });
    }

    /// Ends the suspicion of this entropy value, if the loss at position `order` confirms it: that copy left after the
    /// suspicion was raised, and nothing has arrived since the suspected loss. Returns the position of that loss.
    #[cold]
    pub(super) fn confirm(&mut self, ev: u16, order: u64, newest: u64) -> Option<u64> {
        self.lost_at.get(&ev).filter(|first| newest < first.lost && order > first.raised)?;
        self.lost_at.remove(&ev).map(|first| first.lost)
    }

    fn suspect_again(
        &mut self,
        ev: u16,
        suspicion: Suspicion,
        newest: u64,
        counts: impl Fn(&Suspicion) -> bool,
    ) -> bool {
        if newest > suspicion.lost {
            // A later packet has arrived on this path.
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

    /// The losses on these entropy values were caused by their plane, so their suspicions are dropped.
    pub(super) fn discard_planes(&mut self, on: impl Fn(u16) -> bool) {
        self.lost_at.retain(|&ev, _| !on(ev));
    }

    /// Keeps only suspicions of entropy values on which nothing has arrived since. `newest` returns the newest
    /// position known to have arrived on an entropy value.
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

    /// Packet 7 was sent on path 1 and retransmitted on path 2.
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

    /// One of several TLPs arrives. Packet 8 is unrelated.
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
        // The second copy arrived, so the third was spurious.
        let needless = [RtxVerdict::Needless { ev: 2, cause: RtxReason::Tlp }];
        let mut repeats = three();
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), [first, needless[0]]);
        assert_eq!(proofs(&mut repeats, last, listing(6, 9)), []);
        // One of the copies arrived; it is unknown which.
        let mut repeats = three();
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, last, listing(6, 9)), needless);
        // The path of a copy that was declared lost has already been blamed.
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
        // SACKs in the order in which they were sent, and in reverse.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), needless);
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), []);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), needless);
        // SACKs of the same moment prove nothing, nor does a later one.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, None, listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, None, listing(7, 12)), []);
        // A second SACK for the retransmission proves nothing either, although the first one listed the packet.
        let mut repeats = repeated(RtxReason::RackTimeout);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(5, 8)), []);
        assert_eq!(proofs(&mut repeats, Some(answer(1_000_000, 2)), listing(6, 9)), []);
        // Packet 7 is the first that this SACK reports as missing.
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

    /// SACKs are lost together, so all losses on one path at one time count once.
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
        // Both kinds of suspicion count for the same path.
        assert!(!suspects.suspect(3, 10, 0));
        assert!(suspects.doubt(3, (0, 11), 0, 40));
        assert!(!suspects.doubt(4, (0, 10), 0, 40));
        assert!(suspects.suspect(4, 20, 0));
    }

    /// A SACK that proves the packet missing confirms the suspicion; any other leaves it open.
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
        // From here on, earlier arrivals are forgotten.
        assert_eq!([1, 2, 3].map(|ev| suspects.suspect(ev, 20, 0)), [true, false, false]);
    }
}
