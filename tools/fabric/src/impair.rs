//! What is wrong with a link that is up.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::packet::Packet;

/// What a link does to packets that it should not. Shares are of the packets that come over it, 0 to 1; each kind is drawn by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Impairment {
    /// Packets lost.
    pub loss: f64,
    /// Packets in which bits are flipped, which nobody notices but their receiver.
    pub corrupt: f64,
    /// Packets that come twice, the second time up to [`late_ns`](Self::late_ns) later.
    pub duplicate: f64,
    /// Packets that come up to [`late_ns`](Self::late_ns) late, behind others.
    pub reorder: f64,
    /// See there.
    pub late_ns: u64,
    /// Packets that are marked as if there were congestion.
    pub mark: f64,
    /// The entropy values that these apply to; all if empty.
    pub evs: Vec<u32>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Arrives,
    Lost,
    /// It arrives so many ns later.
    Late(u64),
    /// It arrives now, and so many ns later.
    Twice(u64),
}

/// Whether something happens that does in this share of cases.
#[inline]
pub(crate) fn chance(share: f64, rng: &mut Xoshiro256PlusPlus) -> bool {
    // 53 bits are what a float holds.
    share > 0.0 && ((rng.next_u64() >> 11) as f64) < share * (1_u64 << 53) as f64
}

impl Impairment {
    /// Whether nothing is wrong.
    pub fn is_none(&self) -> bool {
        let Self { loss, corrupt, duplicate, reorder, mark, .. } = self;
        [loss, corrupt, duplicate, reorder, mark].into_iter().all(|share| *share <= 0.0)
    }

    /// Decides, and does to the packet what is done to it.
    pub(crate) fn apply(&self, packet: &mut Packet, rng: &mut Xoshiro256PlusPlus) -> Outcome {
        if !self.evs.is_empty() && packet.ev().is_none_or(|ev| !self.evs.contains(&ev)) {
            return Outcome::Arrives;
        }
        if chance(self.loss, rng) {
            return Outcome::Lost;
        }
        if chance(self.corrupt, rng) {
            packet.corrupt(rng.next_u64());
        }
        if chance(self.mark, rng) {
            packet.mark();
        }
        if chance(self.reorder, rng) {
            return Outcome::Late(self.late(rng));
        }
        if chance(self.duplicate, rng) {
            return Outcome::Twice(self.late(rng));
        }
        Outcome::Arrives
    }

    fn late(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        1 + rng.next_u64() % self.late_ns.max(1)
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    /// Of 10,000 packets with this entropy value, how many were lost, late, twice, marked and broken.
    fn counts(impairment: &Impairment, ev: u32) -> [usize; 5] {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            let mut packet = crate::packet::testing::data(ev, 1_000);
            let outcome = impairment.apply(&mut packet, &mut rng);
            let late = |ns: u64| (1..=impairment.late_ns).contains(&ns);
            counts[0] += usize::from(outcome == Outcome::Lost);
            counts[1] += usize::from(matches!(outcome, Outcome::Late(ns) if late(ns)));
            counts[2] += usize::from(matches!(outcome, Outcome::Twice(ns) if late(ns)));
            counts[3] += usize::from(packet.is_marked());
            counts[4] += usize::from(packet.is_broken());
        }
        counts
    }

    #[test]
    fn each_kind_has_its_share() {
        let none = Impairment { late_ns: 500, ..Impairment::default() };
        assert!(none.is_none());
        assert_eq!(counts(&none, 7), [0; 5]);
        for at in 0..5 {
            let mut some = none.clone();
            let Impairment { loss, reorder, duplicate, mark, corrupt, .. } = &mut some;
            *[loss, reorder, duplicate, mark, corrupt][at] = 0.25;
            assert!(!some.is_none());
            for (other, count) in counts(&some, 7).into_iter().enumerate() {
                let want = if other == at { 2_300..2_700 } else { 0..1 };
                assert!(want.contains(&count), "{at} {other} {count}");
            }
        }
    }

    #[test]
    fn only_packets_that_are_meant_are_hit() {
        let some = Impairment { loss: 1.0, evs: vec![0xc001_0007, 9], ..Impairment::default() };
        assert_eq!([0xc001_0007, 9, 7].map(|ev| counts(&some, ev)[0]), [10_000, 10_000, 0]);
    }
}
