//! Many trials, each of which repeats from its seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use spindrift_fabric::ClosSpec;

use crate::catalogue::{Case, KINDS, Tier};
use crate::host::Idle;
use crate::trial::{self, Trial, Verdict};
use crate::watch::{WatchError, WatchSettings, Watched};

/// A fabric, and how it is watched. Its hosts have nothing to send but probes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Campaign {
    /// The fabric.
    pub spec: ClosSpec,
    /// How it is watched.
    pub settings: WatchSettings,
    /// What everything random follows from.
    pub seed: u64,
}

/// Why a campaign does not start.
pub type CampaignError = WatchError<core::convert::Infallible>;

/// How long a fabric is well before a fault: a gray one has the longest window to compare with.
const BEFORE_HARD_NS: u64 = 300_000_000;
const BEFORE_GRAY_NS: u64 = 11_000_000_000;

impl Campaign {
    /// The fabric, with agents that start now.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn build(&self, seed: u64) -> Result<Watched<Idle>, CampaignError> {
        Watched::build(self.spec, self.settings, seed, |_, _| Ok(Idle))
    }

    /// At most so many cases for each kind of fault in each tier, at random: of those that lose all packets, and of the others, which take
    /// longer.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn cases(&self, (hard, others): (usize, usize)) -> Result<Vec<Case>, CampaignError> {
        let watched = self.build(self.seed)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut picked = Vec::new();
        for kind in KINDS {
            let mut all: Vec<Case> = Case::of_kind(watched.clos(), kind).collect();
            shuffle(&mut all, &mut rng);
            let places = if kind.is_hard() { hard } else { others };
            for tier in [Tier::HostLink, Tier::Trunk, Tier::T0, Tier::Upper, Tier::Host] {
                let of_tier = all.iter().filter(|case| Tier::of(case.component) == tier);
                picked.extend(of_tier.take(places));
            }
        }
        Ok(picked)
    }

    /// A fault in a new fabric.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn single(&self, case: Case, seed: u64) -> Result<Trial, CampaignError> {
        let mut watched = self.build(seed)?;
        self.settle(&mut watched, &[case], seed);
        Ok(trial::single(&mut watched, case))
    }

    /// Two faults at random places, of kinds that agents can see, in a new fabric.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn pair(&self, seed: u64, hard_only: bool) -> Result<Trial, CampaignError> {
        let mut watched = self.build(seed)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let locate = &self.settings.agent.locate;
        let fits = |case: &Case| case.is_visible(locate) && (case.kind.is_hard() || !hard_only);
        let mut pick = || {
            let kinds: Vec<_> = KINDS.into_iter().filter(|kind| kind.is_hard() || !hard_only).collect();
            loop {
                // Each kind as often as any other, wherever it has more places.
                let kind = kinds[below(&mut rng, kinds.len())];
                let all: Vec<Case> = Case::of_kind(watched.clos(), kind).filter(fits).collect();
                if !all.is_empty() {
                    return all[below(&mut rng, all.len())];
                }
            }
        };
        let one = pick();
        let mut other = pick();
        while other.component == one.component {
            other = pick();
        }
        self.settle(&mut watched, &[one, other], seed);
        Ok(trial::pair(&mut watched, [one, other]))
    }

    /// Lets a fabric run until a fault may come, at any time between two judgements.
    fn settle(&self, watched: &mut Watched<Idle>, cases: &[Case], seed: u64) {
        let is_gray = cases.iter().any(is_gray);
        let before_ns = if is_gray { BEFORE_GRAY_NS } else { BEFORE_HARD_NS };
        watched.run(before_ns + seed.wrapping_mul(7_919) % self.settings.judge_ns, |_| false);
    }

    /// One fault after the other in one fabric, which is well for a time between them: for fabrics that are too large to make anew.
    ///
    /// # Errors
    /// A shape or settings that cannot be.
    pub fn in_turn(&self, cases: &[Case], mut tell: impl FnMut(&Trial)) -> Result<Vec<Trial>, CampaignError> {
        let mut watched = self.build(self.seed)?;
        let mut trials = Vec::new();
        watched.run(BEFORE_HARD_NS, |_| false);
        for (seed, &case) in (self.seed..).zip(cases) {
            let before_ns = if is_gray(&case) { BEFORE_GRAY_NS } else { 50_000_000 };
            let offset_ns = seed.wrapping_mul(7_919) % self.settings.judge_ns;
            watched.run(watched.now_ns() + before_ns + offset_ns, |_| false);
            let trial = trial::single(&mut watched, case);
            tell(&trial);
            trials.push(trial);
        }
        Ok(trials)
    }
}

fn is_gray(case: &Case) -> bool {
    case.kind.loses_probes() && !case.kind.is_hard()
}

fn below(rng: &mut Xoshiro256PlusPlus, n: usize) -> usize {
    (rng.next_u64() % n.max(1) as u64) as usize
}

fn shuffle<T>(all: &mut [T], rng: &mut Xoshiro256PlusPlus) {
    for at in (1..all.len()).rev() {
        all.swap(at, below(rng, at + 1));
    }
}

/// How many of these were named as well as can be.
pub fn named_well(trials: &[Trial]) -> usize {
    trials.iter().filter(|trial| trial.verdict <= Verdict::Alike).count()
}
