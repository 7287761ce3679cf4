//! Every order of events, for two sides with a few requests each: no state is a dead end, and no completion lies.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::world::{Limits, Op, Step, World};
use crate::fallback::FallbackConfig;

/// Tells states apart.
pub(super) fn digest(world: &World) -> u128 {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, world).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    hash(0) << 64 | hash(1)
}

/// What a search has seen.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) states: usize,
    /// Ends in which everything succeeded.
    pub(super) successes: usize,
    /// Ends with an error, by its name.
    pub(super) failures: BTreeMap<String, usize>,
}

/// Visits all states, depth first, and checks each end. In a panic, the steps that lead there are printed.
pub(super) fn search(scripts: [&'static [Op]; 2], limits: Limits) -> Found {
    let config = FallbackConfig {
        max_attempts: 3,
        prepare_timeout_ns: 1,
        hold_ns: 0,
        hold_max_ns: 0,
        probe_ns: 0,
        ..FallbackConfig::default()
    };
    let start = World::new(scripts, &config, limits);
    let mut seen: BTreeMap<u128, usize> = BTreeMap::new();
    let mut edges: Vec<Vec<usize>> = vec![Vec::new()];
    let mut ends = Vec::new();
    let mut found = Found::default();
    seen.insert(digest(&start), 0);
    let mut stack = vec![(start, 0, Vec::<Step>::new())];
    while let Some((world, at, path)) = stack.pop() {
        let mut visit = |step: Step| {
            let mut next = world.clone();
            let trail = Trail(&path, step);
            next.take(step);
            next.forget_counters();
            drop(trail);
            let key = digest(&next);
            let count = seen.len();
            let to = *seen.entry(key).or_insert(count);
            if to == at {
                return false;
            }
            if to == count {
                edges.push(Vec::new());
                let path = path.iter().copied().chain([step]).collect();
                stack.push((next, to, path));
            }
            edges[to].push(at);
            true
        };
        let moved = world.steps().into_iter().map(&mut visit).fold(false, |a, b| a | b);
        let moved = moved || world.expiries().map(visit).fold(false, |a, b| a | b);
        if !moved {
            let trail = Trail(&path, Step::Tick(0));
            world.check_end();
            drop(trail);
            ends.push(at);
            let failures = world.failures();
            if failures.iter().all(Option::is_none) {
                found.successes += 1;
            }
            for failure in failures.into_iter().flatten() {
                let name = format!("{failure:?}");
                let name = name.split([' ', '(']).next().unwrap_or_default().to_owned();
                *found.failures.entry(name).or_default() += 1;
            }
        }
    }
    found.states = seen.len();
    // From every state an end can be reached: nothing repeats for ever.
    let mut reaches = vec![false; edges.len()];
    while let Some(at) = ends.pop() {
        if !std::mem::replace(&mut reaches[at], true) {
            ends.extend(edges[at].iter().copied());
        }
    }
    let stuck = reaches.iter().filter(|reaches| !**reaches).count();
    assert_eq!(stuck, 0, "{stuck} of {} states lead to no end", found.states);
    found
}

/// Prints the steps when a check fails.
struct Trail<'a>(&'a [Step], Step);

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().chain([&self.1]).for_each(|step| eprintln!("{step:?}"));
        }
    }
}

const W: Op = Op::Write;
const U: Op = Op::UnsignaledWrite;
const S: Op = Op::Send;

/// Limits: links that go down and come up, NICs removed, pairs on each NIC.
const fn limits(downs: u8, ups: u8, removals: u8, pairs: u32) -> Limits {
    Limits { downs, ups, removals, pairs, prompt: true }
}

/// Everything succeeds in every order of events.
fn all_succeed(scripts: [&'static [Op]; 2], limits: Limits) {
    let found = search(scripts, limits);
    println!("{scripts:?}: {} states", found.states);
    assert!(found.failures.is_empty() && found.successes > 0, "{found:?}");
}

/// In some order of events everything succeeds, in others it fails with these errors, and in none otherwise.
fn ends_with(scripts: [&'static [Op]; 2], limits: Limits, errors: &[&str]) {
    let found = search(scripts, limits);
    assert!(found.failures.keys().eq(errors), "{found:?}");
    assert!(found.successes > 0, "{found:?}");
}

#[test]
fn a_write_and_a_message_survive_the_death_of_a_link() {
    all_succeed([&[W, S], &[]], limits(1, 0, 0, 2));
}

#[test]
fn pairs_may_be_prepared_at_any_time() {
    all_succeed([&[W, S], &[]], Limits { prompt: false, ..limits(1, 0, 0, 1) });
}

#[test]
fn the_last_unsignalled_request_is_kept_too() {
    all_succeed([&[S, U], &[]], limits(1, 0, 0, 1));
}

#[test]
fn both_links_may_die() {
    ends_with([&[S], &[]], limits(2, 0, 0, 2), &["AttemptsExhausted", "NoSpare"]);
}

#[test]
fn a_nic_may_be_removed() {
    all_succeed([&[W, S], &[]], limits(0, 0, 1, 1));
}

#[test]
fn an_atomic_operation_in_flight_is_an_error() {
    ends_with([&[Op::Atomic], &[]], limits(1, 0, 0, 1), &["NoSpare", "NotRepeatable", "PeerGaveUp"]);
}

#[test]
fn a_read_is_repeated_unless_something_follows_it() {
    all_succeed([&[W, Op::Read], &[]], limits(1, 0, 0, 1));
    ends_with([&[Op::Read, W], &[]], limits(1, 0, 0, 1), &["NoSpare", "NotRepeatable", "PeerGaveUp"]);
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn a_link_may_die_and_return_at_any_time() {
    all_succeed([&[W, S], &[]], limits(1, 1, 0, 2));
    all_succeed([&[U, S], &[]], limits(1, 1, 0, 2));
}

#[test]
#[ignore = "slow: tools/check-all.sh"]
fn both_sides_may_send_while_a_link_dies() {
    all_succeed([&[S], &[S]], limits(1, 0, 0, 2));
}
