//! When an unacknowledged packet counts as lost: a pure decision about one record.
//!
//! The rules are Spindrift's own, because MRC's tolerance for reordering is not public. With spraying there are two
//! kinds of evidence. The order rule: packets of one entropy value stay in order on a static path, so an acknowledged
//! packet proves an unacknowledged earlier one lost. The time rule: across paths only time decides, as in RFC 8985
//! (RACK), with a measured reordering window.

use crate::congestion::Flight;
use crate::path::{EvId, Paths};
use crate::time::Time;

use super::driver_stall::DriverStall;
use super::spurious::RtxReason;

/// The requester's record of a packet's latest transmission.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Record {
    /// When it was sent.
    pub(crate) sent_at: Time,
    /// Position among all transmissions of the queue pair.
    pub(crate) order: u64,
    /// Nominal size in bytes, for congestion control.
    pub(crate) bytes: u32,
    /// The entropy value's index.
    pub(crate) ev: u16,
    /// Number of retransmissions so far.
    pub(crate) retries: u8,
    /// Why it was last declared lost.
    pub(crate) cause: RtxReason,
}

impl Record {
    /// The latest transmission, as congestion control counts it.
    #[inline]
    pub(crate) fn flight(&self, paths: &Paths) -> Flight {
        Flight { plane: paths.plane(EvId(self.ev)), bytes: u64::from(self.bytes), sent_at: self.sent_at }
    }
}

/// The evidence against which a record is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Position of the newest acknowledged transmission on the same entropy value. Set only if the SACK proves that
    /// the judged packet was missing at that moment.
    pub(crate) newest_on_ev: Option<u64>,
    /// Position of the newest acknowledged transmission. Packets of one burst have one send time. Only their order
    /// shows which of them an acknowledgement is evidence about (RFC 8985 section 6.2).
    pub(crate) newest_order: u64,
    /// The round-trip time that a packet is allowed, ns.
    pub(crate) rtt_ns: u64,
    /// The reordering window, ns.
    pub(crate) reordering_ns: u64,
    /// The last driver stall, which is subtracted from a packet's age.
    pub(crate) driver_stall: DriverStall,
}

/// The verdict on one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Order rule: a later packet of the same entropy value arrived, and this one did not.
    OvertakenOnItsPath,
    /// Time rule: later packets arrived, and this one is overdue.
    Overdue,
    /// Later packets arrived, but this one is not overdue before `until`.
    NotYet {
        /// When to judge again.
        until: Time,
    },
    /// Nothing sent later has arrived, so there is no evidence.
    NoEvidence,
}

/// Judges one unacknowledged packet.
pub(crate) fn judge(record: &Record, evidence: &Evidence, now: Time) -> Loss {
    if evidence.newest_on_ev.is_some_and(|newest| newest > record.order) {
        return Loss::OvertakenOnItsPath;
    }
    if record.order > evidence.newest_order {
        return Loss::NoEvidence;
    }
    let age_ns = evidence.driver_stall.since(record.sent_at, now);
    match (evidence.rtt_ns + evidence.reordering_ns).saturating_sub(age_ns) {
        0 => Loss::Overdue,
        left_ns => Loss::NotYet { until: now.after(left_ns) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record =
        Record { sent_at: Time(1_000), order: 10, bytes: 100, ev: 3, retries: 0, cause: RtxReason::Nack };

    fn evidence() -> Evidence {
        Evidence {
            newest_on_ev: None,
            newest_order: 15,
            rtt_ns: 2_000,
            reordering_ns: 500,
            driver_stall: DriverStall::default(),
        }
    }

    #[test]
    fn a_later_packet_on_the_same_path_is_proof() {
        let seen = Evidence { newest_on_ev: Some(11), newest_order: 0, ..evidence() };
        assert_eq!(judge(&RECORD, &seen, Time(1_001)), Loss::OvertakenOnItsPath);
        // An earlier packet proves nothing, nor does the packet itself.
        for not_later in [9, 10] {
            let seen = Evidence { newest_on_ev: Some(not_later), ..evidence() };
            assert_eq!(judge(&RECORD, &seen, Time(1_001)), Loss::NotYet { until: Time(3_500) });
        }
    }

    #[test]
    fn across_paths_only_time_tells() {
        assert_eq!(judge(&RECORD, &evidence(), Time(3_499)), Loss::NotYet { until: Time(3_500) });
        assert_eq!(judge(&RECORD, &evidence(), Time(3_500)), Loss::Overdue);
        let next = Evidence { newest_order: 11, ..evidence() };
        assert_eq!(judge(&RECORD, &next, Time(3_499)), Loss::NotYet { until: Time(3_500) });
    }

    #[test]
    fn while_the_driver_is_away_nothing_becomes_late() {
        // Sent in the last poll before the stall, or earlier.
        for from in [1_000, 1_200] {
            let back =
                Evidence { driver_stall: DriverStall::new(Time(from), Time(from + 50_000)), ..evidence() };
            assert_eq!(judge(&RECORD, &back, Time(53_499)), Loss::NotYet { until: Time(53_500) });
            assert_eq!(judge(&RECORD, &back, Time(53_500)), Loss::Overdue);
        }
        // Sent in the first poll after the stall.
        let back = Evidence { driver_stall: DriverStall::new(Time(900), Time(1_000)), ..evidence() };
        assert_eq!(judge(&RECORD, &back, Time(3_500)), Loss::Overdue);
    }

    #[test]
    fn silence_alone_is_no_evidence() {
        // An earlier packet with the same send time is no evidence either.
        let none = Evidence { newest_order: 9, ..evidence() };
        assert_eq!(judge(&RECORD, &none, Time(1_000_000)), Loss::NoEvidence);
    }
}
