//! Messages at random times, of random sizes, between random hosts.

use spindrift::time::Time;

use super::{FlowEndpoint, Workload, WorkloadActions};
use crate::net::HostId;
use crate::rand::Rng;
use crate::transport::Message;

/// How long messages are: a cumulative distribution, linear between its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes(Vec<(u32, f64)>);

/// Why points make no distribution of sizes.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SizesError {
    /// There are none, or the last does not have all messages.
    #[error("the last point of `sizes` must be 100 %")]
    NotAll,
    /// A point is not further than the one before it, in bytes and share.
    #[error("point {0}: sizes must grow from 1 on, and shares from 0 to 1")]
    NotGrowing(usize),
}

impl Sizes {
    /// All alike.
    pub fn fixed(bytes: u32) -> Self {
        Self(vec![(bytes.max(1), 1.0)])
    }

    /// From points: bytes, and the share of the messages that are no longer than that, from 0 to 1. Sizes grow from point to point; the share
    /// of the first point is that of messages of just that size.
    ///
    /// # Errors
    /// Points that are no such thing.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Self, SizesError> {
        let mut before = (0, 0.0);
        for (number, &(bytes, share)) in points.iter().enumerate() {
            if bytes <= before.0 || !(before.1..=1.0).contains(&share) {
                return Err(SizesError::NotGrowing(number));
            }
            before = (bytes, share);
        }
        if before.1 < 1.0 {
            return Err(SizesError::NotAll);
        }
        Ok(Self(points))
    }

    /// Bytes of a message, on average.
    pub fn mean(&self) -> f64 {
        let first = self.0.first().map_or(0.0, |&(bytes, share)| f64::from(bytes) * share);
        let between = |pair: &[(u32, f64)]| match *pair {
            [(low, from), (high, to)] => f64::midpoint(low.into(), high.into()) * (to - from),
            _ => 0.0,
        };
        first + self.0.windows(2).map(between).sum::<f64>()
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        let share = rng.unit();
        let mut before = (0, 0.0);
        for (number, &(bytes, up_to)) in self.0.iter().enumerate() {
            if share < up_to {
                if number == 0 {
                    return bytes;
                }
                let way = (share - before.1) / (up_to - before.1);
                return before.0 + (way * f64::from(bytes - before.0)).ceil() as u32;
            }
            before = (bytes, up_to);
        }
        before.0
    }
}

/// What a [`Poisson`] workload is like.
#[derive(Clone, Debug, PartialEq)]
pub struct PoissonSpec {
    /// How long messages are.
    pub sizes: Sizes,
    /// Payload that is offered by all senders together, bits per second.
    pub offered_bps: u64,
    /// Times at which messages come, ns: from the first on, before the second.
    pub during_ns: (u64, u64),
    /// Of everything random.
    pub seed: u64,
}

/// Messages that come without regard to how the last ones fare, at the times of a Poisson process, each on a connection picked at
/// random. How long one takes is counted from its time, even if it waits for room at its sender.
#[derive(Clone, Debug)]
pub struct Poisson {
    pairs: Vec<(HostId, HostId)>,
    spec: PoissonSpec,
    rng: Rng,
    mean_gap_ns: f64,
    next_ns: f64,
    posted: u64,
    complete: u64,
}

impl Poisson {
    /// From the first host of each pair to the second.
    pub fn new(pairs: Vec<(HostId, HostId)>, spec: PoissonSpec) -> Self {
        let mean_gap_ns = spec.sizes.mean() * 8e9 / spec.offered_bps.max(1) as f64;
        let (rng, next_ns) = (Rng::new(spec.seed), spec.during_ns.0 as f64);
        let mut this = Self { pairs, spec, rng, mean_gap_ns, next_ns, posted: 0, complete: 0 };
        this.step();
        this
    }

    fn step(&mut self) {
        self.next_ns += self.rng.exponential() * self.mean_gap_ns;
    }

    /// The first nanosecond that is not before the next message's time; `None` when there are no more.
    fn next(&self) -> Option<u64> {
        let next = self.next_ns.ceil() as u64;
        (next < self.spec.during_ns.1 && !self.pairs.is_empty()).then_some(next)
    }

    fn go_on(&mut self, actions: &mut WorkloadActions) {
        while let Some(at) = self.next() {
            if at > actions.now.0 {
                actions.alarm = Some(Time(at));
                return;
            }
            let pair = self.rng.below(self.pairs.len() as u64) as u32;
            let len = self.spec.sizes.draw(&mut self.rng);
            actions
                .posts
                .push((FlowEndpoint::first(pair), Message { tag: self.posted as u32, len, notify: false }));
            self.posted += 1;
            self.step();
        }
    }
}

impl Workload for Poisson {
    fn pairs(&self) -> Vec<(HostId, HostId)> {
        self.pairs.clone()
    }

    fn start(&mut self, actions: &mut WorkloadActions) {
        self.go_on(actions);
    }

    fn alarm(&mut self, actions: &mut WorkloadActions) {
        self.go_on(actions);
    }

    fn sent(&mut self, _side: FlowEndpoint, _tag: u32, _actions: &mut WorkloadActions) {
        self.complete += 1;
    }

    fn is_done(&self) -> bool {
        self.next().is_none() && self.complete == self.posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posts(spec: &PoissonSpec) -> Vec<(Time, FlowEndpoint, u32)> {
        let pairs = (1..6).map(|to| (HostId(0), HostId(to))).collect();
        let (mut poisson, mut actions) = (Poisson::new(pairs, spec.clone()), WorkloadActions::default());
        let mut posts = Vec::new();
        poisson.start(&mut actions);
        loop {
            for (side, message) in actions.posts.drain(..) {
                posts.push((actions.now, side, message.len));
                assert!(!poisson.is_done());
                poisson.sent(side, message.tag, &mut WorkloadActions::default());
            }
            let Some(at) = actions.alarm.take() else { break };
            assert!(at > actions.now);
            actions.now = at;
            poisson.alarm(&mut actions);
        }
        assert!(poisson.is_done());
        posts
    }

    #[test]
    fn as_much_comes_as_is_offered_evenly_spread() {
        let sizes = Sizes::new(vec![(1_000, 0.5), (2_000, 0.5), (10_000, 1.0)]).unwrap();
        assert!((sizes.mean() - 3_500.0).abs() < 1e-6);
        let spec =
            PoissonSpec { sizes, offered_bps: 10_000_000_000, during_ns: (5_000, 50_005_000), seed: 3 };
        let posts = posts(&spec);
        let bytes: u64 = posts.iter().map(|&(.., len)| u64::from(len)).sum();
        // 62.5 million bytes in 50 ms.
        assert!((60_000_000..65_000_000).contains(&bytes), "{bytes}");
        assert!(posts.iter().all(|(at, ..)| (5_000..50_005_000).contains(&at.0)));
        let within = |from: u64| posts.iter().filter(|(at, ..)| at.0 / 10_000_000 == from).count();
        for tenth in 0..5 {
            assert!(within(tenth).abs_diff(posts.len() / 5) < 200, "{tenth}: {}", within(tenth));
        }
        for pair in 0..5 {
            let own = posts.iter().filter(|(_, side, _)| *side == FlowEndpoint::first(pair)).count();
            assert!(own.abs_diff(posts.len() / 5) < 200, "{pair}: {own}");
        }
        // Half of them have the least size, none are between the first two points, and the rest is spread to the last.
        let share = |low: u32, high: u32| {
            posts.iter().filter(|&&(.., len)| (low..=high).contains(&len)).count() as f64 / posts.len() as f64
        };
        assert!((share(1_000, 1_000) - 0.5).abs() < 0.02, "{}", share(1_000, 1_000));
        assert!(posts.iter().all(|&(.., len)| !(1_001..=2_000).contains(&len)));
        assert!((share(2_001, 6_000) - 0.25).abs() < 0.02, "{}", share(2_001, 6_000));
        assert!((share(6_001, 10_000) - 0.25).abs() < 0.02, "{}", share(6_001, 10_000));
        assert_eq!(posts, self::posts(&spec));
        assert_ne!(posts, self::posts(&PoissonSpec { seed: 4, ..spec }));
    }

    #[test]
    fn many_may_come_in_one_nanosecond() {
        let spec = PoissonSpec {
            sizes: Sizes::fixed(1),
            offered_bps: 40_000_000_000,
            during_ns: (0, 1_000),
            seed: 1,
        };
        let posts = posts(&spec);
        assert!((4_700..5_300).contains(&posts.len()), "{}", posts.len());
    }

    #[test]
    fn points_that_are_none_are_refused() {
        for (points, want) in [
            (vec![], SizesError::NotAll),
            (vec![(1, 0.5)], SizesError::NotAll),
            (vec![(0, 1.0)], SizesError::NotGrowing(0)),
            (vec![(1, 0.5), (1, 1.0)], SizesError::NotGrowing(1)),
            (vec![(1, 0.5), (2, 0.4), (3, 1.0)], SizesError::NotGrowing(1)),
            (vec![(1, 0.5), (2, 1.1)], SizesError::NotGrowing(1)),
            (vec![(1, f64::NAN)], SizesError::NotGrowing(0)),
            (vec![(1, -0.1), (2, 1.0)], SizesError::NotGrowing(0)),
        ] {
            assert_eq!(Sizes::new(points.clone()), Err(want), "{points:?}");
        }
    }
}
