//! Looking for a small part of a case that fails as the whole does.

use super::case::Case;

/// What of a case is left: numbers of its episodes and flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Episodes.
    pub episodes: Vec<usize>,
    /// Flows.
    pub flows: Vec<usize>,
}

impl Part {
    /// All of a case.
    pub fn whole(case: &Case) -> Self {
        Self { episodes: (0..case.episodes.len()).collect(), flows: (0..case.flows.len()).collect() }
    }

    /// The case with nothing but this part of its episodes and flows. Numbers that it does not have are left out.
    pub fn of(&self, case: &Case) -> Case {
        let episodes = self.episodes.iter().filter_map(|&at| case.episodes.get(at)).cloned().collect();
        let flows = self.flows.iter().filter_map(|&at| case.flows.get(at)).cloned().collect();
        Case { flows, episodes, ..case.clone() }
    }

    /// The options of `spindrift swarm` that run this part of the case of a seed.
    pub fn options(&self, seed: u64) -> String {
        let list = |parts: &[usize]| {
            let numbers: Vec<_> = parts.iter().map(ToString::to_string).collect();
            if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") }
        };
        format!("--seed {seed} --episodes {} --flows {}", list(&self.episodes), list(&self.flows))
    }

    fn parts(&mut self, which: usize) -> &mut Vec<usize> {
        if which == 0 { &mut self.episodes } else { &mut self.flows }
    }
}

/// The smallest part of a case that is found for which `fails`, which the whole does: no episode and no flow of it can be
/// left out by itself.
pub fn minimise(case: &Case, mut fails: impl FnMut(&Case) -> bool) -> Part {
    let mut best = Part::whole(case);
    loop {
        let before = best.clone();
        for which in [0, 1] {
            let mut size = best.parts(which).len().div_ceil(2);
            // Halves first, then single ones.
            while size > 0 {
                let mut at = 0;
                while at < best.parts(which).len() {
                    let mut smaller = best.clone();
                    let parts = smaller.parts(which);
                    parts.drain(at..(at + size).min(parts.len()));
                    if !smaller.flows.is_empty() && fails(&smaller.of(case)) {
                        best = smaller;
                    } else {
                        at += size;
                    }
                }
                size /= 2;
            }
        }
        if best == before {
            return best;
        }
    }
}
