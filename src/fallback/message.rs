//! What the two machines tell each other: the immediates of zero-length writes.
//!
//! The SHIFT paper sends the receive counter alone as the immediate (section 4.3.2). Here two bits more say what it means, and six
//! bits number the attempt, because both sides may switch at once.

/// Bits of a count of two-sided messages.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;
/// Bits of the number of an attempt.
const ROUND_BITS: u32 = 6;

/// Two-sided messages (SENDs and writes with immediate) of one direction since the connection began, modulo 2^24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Count(u32);

impl Count {
    pub(super) const fn add(self, more: u32) -> Self {
        Self(self.0.wrapping_add(more) & COUNT_MASK)
    }

    /// How far it is ahead of `other`. More than half the range means behind.
    pub(super) const fn ahead_of(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0) & COUNT_MASK
    }
}

/// The number of an attempt to switch, modulo 2^6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Round(u8);

impl Round {
    pub(super) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & ((1 << ROUND_BITS) - 1))
    }

    /// Whether it comes after `other`. The two sides of a connection are never half the range apart.
    pub(super) const fn is_after(self, other: Self) -> bool {
        let ahead = self.0.wrapping_sub(other.0) & ((1 << ROUND_BITS) - 1);
        ahead != 0 && ahead < 1 << (ROUND_BITS - 1)
    }
}

/// The first message on a pair that takes a receive work request. There is one in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The sender has failed every other pair, and takes this one for both directions. Its receives are posted.
    Report {
        round: Round,
        /// Messages that it has received.
        received: Count,
    },
    /// The sender's requests have completed on their pair, and later ones follow on this pair.
    Moved {
        /// Messages that it has sent.
        sent: Count,
    },
    /// The sender has failed, and uses no pair any more.
    GaveUp,
}

impl Message {
    pub(super) const fn encode(self) -> u32 {
        let (kind, round, count) = match self {
            Self::Report { round, received } => (0, round.0, received.0),
            Self::Moved { sent } => (1, 0, sent.0),
            Self::GaveUp => (2, 0, 0),
        };
        kind << (COUNT_BITS + ROUND_BITS) | (round as u32) << COUNT_BITS | count
    }

    /// `None` if no such message exists.
    pub(super) const fn decode(imm: u32) -> Option<Self> {
        let round = Round((imm >> COUNT_BITS) as u8 & ((1 << ROUND_BITS) - 1));
        let count = Count(imm & COUNT_MASK);
        match (imm >> (COUNT_BITS + ROUND_BITS), round.0, count.0) {
            (0, ..) => Some(Self::Report { round, received: count }),
            (1, 0, _) => Some(Self::Moved { sent: count }),
            (2, 0, 0) => Some(Self::GaveUp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_wire() {
        for value in [0, 1, 0x12_3456, COUNT_MASK] {
            let count = Count(value);
            for round in [0, 1, 63] {
                let report = Message::Report { round: Round(round), received: count };
                assert_eq!(Message::decode(report.encode()), Some(report));
            }
            let moved = Message::Moved { sent: count };
            assert_eq!(Message::decode(moved.encode()), Some(moved));
        }
        assert_eq!(Message::decode(Message::GaveUp.encode()), Some(Message::GaveUp));
        assert_eq!(Message::Report { round: Round(5), received: Count(7) }.encode(), 0x0500_0007);
        assert_eq!(Message::Moved { sent: Count(7) }.encode(), 0x4000_0007);
        assert_eq!(Message::GaveUp.encode(), 0x8000_0000);
    }

    #[test]
    fn what_no_machine_sends_is_no_message() {
        for imm in [0xc000_0000, 0xffff_ffff, 0x4100_0000, 0x8000_0001, 0x8100_0000] {
            assert_eq!(Message::decode(imm), None, "{imm:#x}");
        }
    }

    #[test]
    fn rounds_and_counts_wrap() {
        assert!(Round(0).is_after(Round(63)) && !Round(63).is_after(Round(0)));
        assert!(Round(31).is_after(Round(0)) && !Round(32).is_after(Round(0)));
        assert!(!Round(7).is_after(Round(7)));
        assert_eq!(Round(63).next(), Round(0));
        assert_eq!(Count(COUNT_MASK).add(2), Count(1));
        assert_eq!(Count(1).ahead_of(Count(COUNT_MASK)), 2);
        assert_eq!(Count(1).ahead_of(Count(2)), COUNT_MASK);
    }
}
