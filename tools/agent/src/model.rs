//! Which components, with which loss, explain best what the probes saw.
//!
//! The model: each component `c` loses a packet that crosses it with probability `r_c`, independently, and every path a few more (noise).
//! A probe of path `i` comes back with probability `S_i = (1 - noise) · Π (1 - r_c)^w` over the components of the path, each crossed `w` times, so the
//! log-likelihood of `n_i` probes of which `k_i` were lost is `Σ k_i ln(1 - S_i) + (n_i - k_i) ln S_i`. With `x_c = -ln(1 - r_c)` it is concave in
//! all `x_c` together, so raising one after the other to its best value finds the maximum.
//!
//! Components that the same paths cross are in one [`Group`]. A probe crosses each link of its path in both directions, the switch where it
//! turns once, and those below twice. But what is down for a part of the time loses the same share of all: so a group has an entry for each
//! way to count, once for all paths being one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::scope::{Scope, Suspects, parts, switch_place};
use crate::{Component, Count, Path};

/// Components that the same observed paths cross.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) components: Rc<[Component]>,
    /// Places in [`Model::paths`], ascending.
    pub(crate) paths: Rc<[usize]>,
    /// How often each of these crosses a component.
    weights: Vec<u8>,
    /// Those of `paths` that have lost anything, as places there.
    lossy: Rc<[usize]>,
    /// Probes of the others, each as often as it crosses the group.
    clean: f64,
}

/// The components that the same paths cross, and the ways to count how often beside once.
#[derive(Default)]
struct Alike {
    components: Vec<Component>,
    weights: BTreeSet<Vec<u8>>,
}

impl Alike {
    /// A group for each way to count how often the paths cross these components: first once for all of them.
    fn groups(self, places: Vec<usize>, paths: &[(Path, Count)]) -> Vec<Group> {
        let count = |at: &usize| paths.get(*at).map(|&(_, count)| count).unwrap_or_default();
        let is_lossy = |(_, at): &(usize, &usize)| count(at).lost > 0;
        let lossy: Rc<[usize]> = (0..).zip(&places).filter(is_lossy).map(|(place, _)| place).collect();
        let (components, places): (Rc<[_]>, Rc<[_]>) = (self.components.into(), places.into());
        let once = std::iter::once(vec![1; places.len()]);
        let group = |weights: Vec<u8>| {
            let clean = places.iter().zip(&weights).map(|(at, &weight)| (count(at), weight));
            let clean = clean.filter(|(count, _)| count.lost == 0);
            Group {
                clean: clean.map(|(count, weight)| f64::from(count.sent) * f64::from(weight)).sum(),
                components: Rc::clone(&components),
                paths: Rc::clone(&places),
                weights,
                lossy: Rc::clone(&lossy),
            }
        };
        once.chain(self.weights).map(group).collect()
    }
}

/// The places of the paths that cross each component, and how often they do.
#[derive(Default)]
struct Crossing {
    numbers: BTreeMap<Component, usize>,
    paths: Vec<Vec<(usize, u8)>>,
    /// The numbers of switches, by tier and their own number: they are asked for once for each path.
    switches: [Vec<Option<usize>>; 3],
    /// The link of a path before, from the host up, and its number: those of one host begin alike.
    links: [Option<(Component, usize)>; 6],
}

impl Crossing {
    /// Adds a path to those over a component, which is at a place on the way from the host up.
    fn add(&mut self, place: usize, component: Component, path: (usize, u8)) {
        let known = match component {
            Component::Node(node) => switch_place(node)
                .and_then(|(tier, number)| self.switches.get(tier)?.get(number).copied().flatten()),
            Component::Link(_) => {
                let before = self.links.get(place).copied().flatten();
                before.filter(|(before, _)| *before == component).map(|(_, number)| number)
            }
        };
        let number = known.unwrap_or_else(|| self.number(place, component));
        if let Some(paths) = self.paths.get_mut(number) {
            paths.push(path);
        }
    }

    fn number(&mut self, place: usize, component: Component) -> usize {
        let number = *self.numbers.entry(component).or_insert_with(|| {
            self.paths.push(Vec::new());
            self.paths.len() - 1
        });
        let at = if let Component::Node(node) = component { switch_place(node) } else { None };
        if let Some((tier, own)) = at
            && let Some(switches) = self.switches.get_mut(tier)
        {
            switches.resize(switches.len().max(own + 1), None);
            switches[own] = Some(number);
        } else if let Some(before) = self.links.get_mut(place) {
            *before = Some((component, number));
        }
        number
    }

    fn in_order(mut self) -> impl Iterator<Item = (Component, Vec<(usize, u8)>)> {
        let numbers = std::mem::take(&mut self.numbers);
        let mut paths = self.paths;
        numbers
            .into_iter()
            .filter_map(move |(component, number)| Some((component, std::mem::take(paths.get_mut(number)?))))
    }
}

/// What was seen in one plane, of the components that a path with unusual loss crosses.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) paths: Vec<(Path, Count)>,
    pub(crate) groups: Vec<Group>,
    /// `-ln(1 - noise)`.
    noise_x: f64,
    penalty: f64,
}

/// A set of groups with their loss.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fit {
    /// Groups, and the `x` of each.
    pub(crate) faults: Vec<(usize, f64)>,
    /// By how much the log-likelihood is larger than without faults.
    pub(crate) gain: f64,
    /// The sum of `x` over the faults of each path that has any.
    x: BTreeMap<usize, f64>,
}

/// Loss of a component that forwards nothing, as an `x`: 6 in a million packets pass.
const MAX_X: f64 = 12.0;
/// Halvings of the range of an `x`, which leave 1e-11 of it.
const HALVINGS: usize = 40;
/// Rounds over all faults of a fit, if it does not settle before.
const ROUNDS: usize = 40;
const SETTLED: f64 = 1e-7;
/// Faults in one plane that are looked for.
const MAX_FAULTS: usize = 8;
/// A path is looked at if its loss is so much more likely (in nats) with a fault than without.
const UNUSUAL: f64 = 3.0;
/// Another explanation must be so much better (in nats) that it is no rounding.
const BETTER: f64 = 0.1;

/// The probability that a packet is lost.
pub(crate) fn rate_of(x: f64) -> f64 {
    -(-x).exp_m1()
}

/// The `x` of a loss.
pub(crate) fn x_of(rate: f64) -> f64 {
    (-(-rate.clamp(0.0, 1.0)).ln_1p()).min(MAX_X)
}

fn log_likelihood(count: Count, x: f64) -> f64 {
    let (lost, returned) = (f64::from(count.lost), f64::from(count.sent - count.lost.min(count.sent)));
    // 0 · ln 0 is 0.
    let of_lost = if count.lost == 0 { 0.0 } else { lost * rate_of(x).ln() };
    of_lost - returned * x
}

/// `n · KL(k/n ‖ p)`: by how many nats a loss of `k` of `n` is less likely with the probability `p` than with `k/n`. The probability of a loss so
/// far from `p`, on the same side, is at most its negative exponential (Chernoff's bound of the binomial distribution).
pub(crate) fn surprise(count: Count, p: f64) -> f64 {
    if count.sent == 0 {
        return 0.0;
    }
    let term = |k: f64, at: f64, p: f64| if k == 0.0 { 0.0 } else { k * (at / p).ln() };
    let loss = count.loss();
    let (n, p) = (f64::from(count.sent), p.clamp(1e-12, 1.0 - 1e-12));
    term(n * loss, loss, p) + term(n * (1.0 - loss), 1.0 - loss, 1.0 - p)
}

/// Whether a path lost so much more than the noise that a component may be at fault.
pub(crate) fn is_unusual(count: Count, noise: f64) -> bool {
    count.loss() > noise && surprise(count, noise) > UNUSUAL
}

impl Model {
    /// The paths over suspects.
    pub(crate) fn new(scope: &Scope<'_>, suspects: &Suspects, noise: f64, penalty: f64) -> Self {
        let mut paths = Vec::new();
        let mut crossing = Crossing::default();
        for (path, count, way) in scope.over(suspects) {
            let at = paths.len();
            paths.push((path, count));
            for (place, part) in parts(way.nodes()).enumerate().filter(|&(_, part)| suspects.has(part)) {
                let is_passed = matches!(part, Component::Node(node) if node != path.top);
                crossing.add(place, part, (at, if is_passed { 2 } else { 1 }));
            }
        }
        let mut alike: BTreeMap<Vec<usize>, Alike> = BTreeMap::new();
        for (component, crossed) in crossing.in_order() {
            let is_once = crossed.iter().all(|&(_, weight)| weight == 1);
            let weights = crossed.iter().map(|&(_, weight)| weight).collect();
            let alike = alike.entry(crossed.into_iter().map(|(at, _)| at).collect()).or_default();
            alike.components.push(component);
            alike.weights.extend(Some(weights).filter(|_: &Vec<u8>| !is_once));
        }
        let groups = alike.into_iter().flat_map(|(places, alike)| alike.groups(places, &paths)).collect();
        Self { paths, groups, noise_x: x_of(noise), penalty }
    }

    pub(crate) fn group(&self, number: usize) -> Option<&Group> {
        self.groups.get(number)
    }

    /// The agents of a group's paths, one for each path.
    pub(crate) fn agents(&self, group: &Group) -> impl Iterator<Item = u16> {
        group.paths.iter().filter_map(|&at| Some(self.paths.get(at)?.0.host))
    }

    /// The counts of a group's paths together.
    pub(crate) fn through(&self, group: &Group) -> Count {
        let counts = group.paths.iter().filter_map(|&at| self.paths.get(at));
        counts.fold(Count::default(), |sum, &(_, count)| sum.plus(count))
    }

    /// The paths of a group that have lost anything: their counts, the `x` that other faults have on each, and how often it crosses the group.
    ///
    /// Of the others, which are most, the sum of their probes is enough: their log-likelihood falls evenly as `x` grows.
    fn lossy_paths<'a>(
        &'a self,
        number: usize,
        fit: &'a Fit,
        own_x: f64,
    ) -> impl Iterator<Item = (Count, f64, f64)> + 'a {
        self.groups.get(number).into_iter().flat_map(move |group| {
            group.lossy.iter().filter_map(move |&place| {
                let (&at, weight) = (group.paths.get(place)?, f64::from(*group.weights.get(place)?));
                let others = fit.x.get(&at).copied().unwrap_or_default() - weight * own_x;
                Some((self.paths.get(at)?.1, self.noise_x + others.max(0.0), weight))
            })
        })
    }

    fn clean(&self, number: usize) -> f64 {
        self.groups.get(number).map_or(0.0, |group| group.clean)
    }

    fn crossed(&self, number: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let group = self.groups.get(number);
        let paths = group.into_iter().flat_map(|group| group.paths.iter().zip(&group.weights));
        paths.map(|(&at, &weight)| (at, f64::from(weight)))
    }

    /// The most likely `x` of a group, all others as they are.
    fn best_x(&self, number: usize, fit: &Fit, own_x: f64) -> f64 {
        let paths: Vec<_> = self.lossy_paths(number, fit, own_x).collect();
        let clean = self.clean(number);
        // The derivative, which falls.
        let rises_at = |x: f64| {
            let slope = |&(count, others, weight): &(Count, f64, f64)| {
                let lost = f64::from(count.lost.min(count.sent));
                let passes = (-(others + weight * x)).exp();
                weight * (lost * passes / (1.0 - passes) - (f64::from(count.sent) - lost))
            };
            paths.iter().map(slope).sum::<f64>() > clean
        };
        if !rises_at(0.0) {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, MAX_X);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if rises_at(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// By how much a further fault would raise the log-likelihood, all others as they are.
    fn gain_of(&self, number: usize, fit: &Fit) -> f64 {
        let x = self.best_x(number, fit, 0.0);
        let gain = |(count, others, weight): (Count, f64, f64)| {
            log_likelihood(count, others + weight * x) - log_likelihood(count, others)
        };
        let lossy = || self.lossy_paths(number, fit, 0.0).map(gain).sum::<f64>();
        if x > 0.0 { lossy() - x * self.clean(number) } else { 0.0 }
    }

    /// The most likely loss of each of these groups; that of a pinned one is given.
    pub(crate) fn fit(&self, groups: &[usize], pinned: Option<(usize, f64)>) -> Fit {
        let mut fit = Fit::default();
        let start = |&number: &usize| (number, 0.0);
        fit.faults =
            groups.iter().filter(|&&number| pinned.is_none_or(|(pin, _)| pin != number)).map(start).collect();
        if let Some((number, x)) = pinned {
            self.raise(&mut fit, number, x);
        }
        for _ in 0..ROUNDS {
            let mut moved = 0.0_f64;
            for place in 0..fit.faults.len() {
                let Some(&(number, old)) = fit.faults.get(place) else { break };
                let new = self.best_x(number, &fit, old);
                self.raise(&mut fit, number, new - old);
                if let Some(fault) = fit.faults.get_mut(place) {
                    fault.1 = new;
                }
                moved = moved.max((new - old).abs());
            }
            if moved < SETTLED || fit.faults.len() < 2 {
                break;
            }
        }
        fit.faults.extend(pinned);
        let gain = |(at, x): (&usize, &f64)| {
            let count = self.paths.get(*at)?.1;
            Some(log_likelihood(count, self.noise_x + x.max(0.0)) - log_likelihood(count, self.noise_x))
        };
        fit.gain = fit.x.iter().filter_map(gain).sum();
        fit
    }

    fn raise(&self, fit: &mut Fit, number: usize, by: f64) {
        for (at, weight) in self.crossed(number) {
            *fit.x.entry(at).or_default() += weight * by;
        }
    }

    /// The other group that explains most beside a fit, and the log-likelihood's gain with it.
    pub(crate) fn best_addition(&self, fit: &Fit, except: &[usize]) -> Option<(usize, f64)> {
        // The entries of one group have the same paths.
        let paths = |number: usize| self.groups.get(number).map(|group| &group.paths);
        let is_other = |&number: &usize| !except.iter().any(|&not| paths(not) == paths(number));
        let others = (0..self.groups.len()).filter(is_other);
        let mut others: Vec<(usize, f64)> =
            others.map(|number| (number, self.most_of(number, fit))).collect();
        // The first of equals stays first, so that the order of groups decides and not that of floating-point sums.
        others.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut best: Option<(usize, f64)> = None;
        for (number, most) in others {
            if best.is_some_and(|(_, gain)| most <= gain) {
                break;
            }
            let gain = self.gain_of(number, fit);
            if best.is_none_or(|(_, so_far)| gain > so_far) {
                best = Some((number, gain));
            }
        }
        best.map(|(number, gain)| (number, fit.gain + gain))
    }

    /// No less than [`gain_of`](Self::gain_of), and sooner known: what the paths would gain if each had a loss of its own.
    fn most_of(&self, number: usize, fit: &Fit) -> f64 {
        let most = |(count, others, _): (Count, f64, f64)| {
            if count.loss() > rate_of(others) { surprise(count, rate_of(others)) } else { 0.0 }
        };
        // A path that lost nothing gains nothing.
        self.lossy_paths(number, fit, 0.0).map(most).sum()
    }

    /// The faults that explain best what was seen, each worth its penalty.
    ///
    /// Faults are added one by one, the one that explains most first. Then each is taken out, or replaced by what explains better without
    /// it, if that is worth more: two lossy links of a switch look like the switch at first.
    pub(crate) fn explain(&self) -> Fit {
        let mut best = self.grow(Fit::default(), None);
        for _ in 0..MAX_FAULTS {
            let chosen = numbers(&best);
            let without = |&out: &usize| self.grow(self.fit(&except(&chosen, out), None), Some(out));
            let better = chosen.iter().map(without).find(|fit| self.worth(fit) > self.worth(&best) + BETTER);
            let Some(better) = better else { break };
            best = better;
        }
        best
    }

    /// Adds faults to a fit, all but one that is left out, as long as each is worth its penalty.
    fn grow(&self, mut fit: Fit, left_out: Option<usize>) -> Fit {
        while fit.faults.len() < MAX_FAULTS {
            let chosen = numbers(&fit);
            let not: Vec<_> = chosen.iter().copied().chain(left_out).collect();
            let Some((next, gain)) = self.best_addition(&fit, &not) else { break };
            if gain - fit.gain < self.penalty {
                break;
            }
            fit = self.fit(&[&chosen[..], &[next]].concat(), None);
        }
        fit
    }

    fn worth(&self, fit: &Fit) -> f64 {
        fit.gain - self.penalty * fit.faults.len() as f64
    }

    /// The groups that explain as much in the place of this one: given the other faults, nothing tells them apart. And by how many nats the fit
    /// is more likely than the best one with any other group in its place.
    pub(crate) fn rivals(&self, fit: &Fit, number: usize) -> (Vec<usize>, f64) {
        let mut not = numbers(fit);
        let rest = self.fit(&except(&not, number), None);
        let mut equals = Vec::new();
        loop {
            let best = self.best_addition(&rest, &not);
            match best {
                Some((other, gain)) if fit.gain - gain < BETTER => {
                    equals.push(other);
                    not.push(other);
                }
                _ => return (equals, fit.gain - best.map_or(rest.gain, |(_, gain)| gain)),
            }
        }
    }

    /// Whether a path of a group lost clearly less, by so many nats, than the fit says: then something else is wrong, for which there is
    /// no component.
    pub(crate) fn contradicts(&self, fit: &Fit, group: &Group, nats: f64) -> bool {
        group.paths.iter().any(|at| {
            let count = self.paths.get(*at).map(|&(_, count)| count).unwrap_or_default();
            let expected = rate_of(self.noise_x + fit.x.get(at).copied().unwrap_or_default().max(0.0));
            count.loss() < expected && surprise(count, expected) > nats
        })
    }

    /// By how many nats the fit is more likely than the best one in which this component loses `rate` alone.
    pub(crate) fn excess(&self, fit: &Fit, number: usize, rate: f64) -> f64 {
        fit.gain - self.fit(&numbers(fit), Some((number, x_of(rate)))).gain
    }
}

fn numbers(fit: &Fit) -> Vec<usize> {
    fit.faults.iter().map(|&(number, _)| number).collect()
}

fn except(chosen: &[usize], out: usize) -> Vec<usize> {
    chosen.iter().copied().filter(|&number| number != out).collect()
}

#[cfg(test)]
impl Model {
    /// The sums over lossy paths and clean ones are those over all paths of a group, one by one, with nothing and with something else at fault.
    pub(crate) fn check_against_all_paths(&self) {
        let others = self.fit(&[0], None);
        for fit in [Fit::default(), others] {
            for number in 0..self.groups.len() {
                let gain_at = |x: f64| {
                    let one = |(at, weight): (usize, f64)| {
                        let before = self.noise_x + fit.x.get(&at).copied().unwrap_or_default().max(0.0);
                        let count = self.paths[at].1;
                        log_likelihood(count, before + weight * x) - log_likelihood(count, before)
                    };
                    self.crossed(number).map(one).sum::<f64>()
                };
                let (x, gain) = (self.best_x(number, &fit, 0.0), self.gain_of(number, &fit));
                assert!((gain - gain_at(x)).abs() < 1e-6 * (1.0 + gain.abs()), "{gain} {}", gain_at(x));
                // No other loss explains more.
                for other in [0.0, x / 2.0, x * 0.99, x * 1.01 + 1e-6, x + 0.1] {
                    let less = gain_at(other.min(MAX_X));
                    assert!(less <= gain + 1e-6 * (1.0 + gain.abs()), "{number}: {other} {x}: {less} {gain}");
                }
                assert!(self.most_of(number, &fit) >= gain - 1e-6 * (1.0 + gain.abs()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability that `lost` or more of `sent` are lost, each with probability `p`.
    fn tail(count: Count, p: f64) -> f64 {
        let (n, mut term, mut sum) = (f64::from(count.sent), (1.0 - p).powi(count.sent as i32), 0.0);
        for k in 0..=count.sent {
            if k >= count.lost {
                sum += term;
            }
            term *= (n - f64::from(k)) / f64::from(k + 1) * p / (1.0 - p);
        }
        sum
    }

    /// Never less likely than the exact distribution says, and not much more likely.
    #[test]
    fn the_bound_is_on_the_safe_side_of_the_binomial_distribution() {
        for (sent, lost, p) in [
            (20, 10, 0.1),
            (50, 43, 0.5),
            (100, 3, 0.003),
            (1_000, 30, 0.01),
            (1_000, 11, 0.01),
            (50, 50, 0.5),
        ] {
            let count = Count { sent, lost };
            let (bound, exact) = ((-surprise(count, p)).exp(), tail(count, p));
            assert!(bound >= exact * (1.0 - 1e-9), "{count:?} {p}: {bound} {exact}");
            assert!(bound < exact * 30.0, "{count:?} {p}: {bound} {exact}");
        }
        assert!(surprise(Count { sent: 100, lost: 1 }, 0.01).abs() < 1e-12);
        assert!(surprise(Count::default(), 0.01).abs() < 1e-12);
        // Below as well as above, and at the ends.
        let clean = surprise(Count { sent: 1_000, lost: 0 }, 0.01);
        assert!((clean - 1_000.0 * 1.0 / 99.498_7).abs() < 0.01, "{clean}");
        assert!(surprise(Count { sent: 10, lost: 10 }, 0.0).is_finite());
        assert!(surprise(Count { sent: 10, lost: 0 }, 1.0).is_finite());
    }

    #[test]
    fn rates_and_their_logarithms_agree() {
        for rate in [0.0, 1e-9, 0.003, 0.5, 0.99] {
            assert!((rate_of(x_of(rate)) - rate).abs() < 1e-12, "{rate}");
        }
        assert!(x_of(1.0) >= MAX_X && x_of(2.0) >= MAX_X && x_of(-1.0).abs() < 1e-12);
        // Losses in a row: what passes one passes the other.
        assert!((rate_of(x_of(0.1) + x_of(0.2)) - 0.28).abs() < 1e-12);
    }
}
