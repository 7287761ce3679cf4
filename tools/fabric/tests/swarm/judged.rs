//! What the swarm must notice, and what it tells.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use spindrift::endpoint::RetryAttr;
use spindrift::time::Time;
use spindrift_fabric::swarm::{Case, Episode, EpisodeKind, Part, When, minimise, run};
use spindrift_fabric::{Impairment, PacketEvent};
use spindrift_srv6::Node;

/// All ways of a case's fabric.
fn ways(case: &Case) -> Vec<(Node, Node)> {
    let links = case.fabric.fabric().unwrap();
    links.links().flat_map(|(one, other)| [(one, other), (other, one)]).collect()
}

/// From the beginning until the network heals.
fn always(case: &Case, kind: EpisodeKind) -> Episode {
    Episode { begins: When::At(Time(0)), lasts_ns: case.heal_at.0, times: 1, kind }
}

/// A case in which one bit of every hundredth packet is flipped, on all links, among other troubles.
fn flipping(seed: u64) -> Case {
    let mut case = Case::draw(seed);
    let impairment = |corrupt, mark| Impairment { corrupt, mark, late_ns: 1, ..Impairment::default() };
    let links = |impairment| always(&case, EpisodeKind::Links { ways: ways(&case), impairment });
    // Those of one kind take each other's place, so these come first and last.
    let (harmless, flips) = (links(impairment(0.0, 0.1)), links(impairment(0.01, 0.0)));
    let pauses = (0..3).map(|at| Episode { lasts_ns: 1_000, ..always(&case, EpisodeKind::Pause(at % 2)) });
    case.episodes = [harmless].into_iter().chain(pauses).chain([flips]).collect();
    case.may_fail = true;
    case
}

/// With the iCRC switched off, flipped bits reach the memory, and the judge says so; with it, nothing is wrong. What is not needed for that
/// is left out.
#[test]
fn wrong_bytes_are_noticed_and_traced_to_what_made_them() {
    let (mut noticed, mut alone) = (0, 0);
    for seed in 0..40 {
        let mut case = flipping(seed);
        assert_eq!(run(&case, None).err(), None, "seed {seed}");
        for host in &mut case.hosts {
            host.icrc = false;
        }
        let Err(failure) = run(&case, None) else { continue };
        noticed += 1;
        let small = minimise(&case, |case| run(case, None).is_err());
        assert!(run(&small.of(&case), None).is_err());
        assert!(small.episodes.contains(&4), "{failure}");
        alone += u64::from(small.episodes == [4]);
        for at in 0..small.episodes.len() + small.flows.len() {
            let mut smaller = small.clone();
            match at.checked_sub(small.episodes.len()) {
                None => smaller.episodes.remove(at),
                Some(at) => smaller.flows.remove(at),
            };
            assert_eq!(run(&smaller.of(&case), None).err(), None, "{at} of {small:?} was not needed");
        }
    }
    assert!(noticed > 10 && 2 * alone > noticed, "{noticed} {alone}");
}

/// Work that cannot be done is not forgotten: here the hosts stand still for long after the network has healed.
#[test]
fn work_that_is_left_is_noticed() {
    let mut noticed = 0;
    for seed in 0..20 {
        let mut case = Case::draw(seed);
        let pauses = (0..case.hosts.len() as u16).map(|host| always(&case, EpisodeKind::Pause(host)));
        case.episodes = pauses.map(|pause| Episode { lasts_ns: 60_000_000_000, ..pause }).collect();
        case.retry.exponential_retries = 25;
        let idle = case.flows.iter().flat_map(|flow| &flow.ends).all(|end| end.messages == 0);
        let failure = run(&case, None).err().map(|failure| failure.what);
        let left = failure.as_ref().is_some_and(|what| what.starts_with("work is left"));
        assert!(idle || left, "seed {seed}: {failure:?}");
        noticed += u64::from(left);
    }
    assert!(noticed > 10, "{noticed}");
}

/// READs of one queue pair, half of whose paths are dead from the first one on. With the last one, all cables go dead, so that the
/// peer hears no acknowledgement of its response, and has few retries.
fn last_response_unacknowledged(seed: u64) -> Option<Case> {
    let mut case = Case::draw(seed);
    case.flows.truncate(1);
    let flow = case.flows.first_mut()?;
    let messages = 20;
    (flow.ends[0].messages, flow.ends[1].messages) = (messages, 0);
    let (flow, reads) = (flow.number, flow.ends[0].operations().contains("READ"));
    (case.heal_at, case.may_fail) = (Time(100_000_000), true);
    case.retry = RetryAttr { timeout: 8, linear_retries: 0, exponential_retries: 0 };
    let cables = case.fabric.fabric().ok()?.links().collect();
    let dead = always(&case, EpisodeKind::DeadEvs { flow, end: 0, one_in: 2 });
    let cut = always(&case, EpisodeKind::Cables { cables, carrier: false });
    case.episodes =
        vec![Episode { begins: When::Done(1), ..dead }, Episode { begins: When::Done(messages), ..cut }];
    reads.then_some(case)
}

/// A queue pair may give up when all work is done. Its peer may then probe its bad paths for ever.
#[test]
fn a_queue_pair_may_give_up_after_its_last_response() {
    let (mut cases, mut gave_up) = (0, 0);
    for (seed, case) in (0..200).filter_map(|seed| Some((seed, last_response_unacknowledged(seed)?))) {
        let outcome = run(&case, None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        cases += 1;
        gave_up += u64::from(outcome.gave_up == 1 && outcome.messages == 20);
    }
    assert!(10 * gave_up > cases, "{gave_up} of {cases}");
}

/// What each link sent comes to its end or is lost, and two runs of a case are one.
#[test]
fn every_packet_is_seen_and_a_seed_decides_everything() {
    for seed in [1, 7, 30, u64::MAX] {
        let case = Case::draw(seed);
        let watched = || {
            let seen = Rc::new(RefCell::new((BTreeMap::new(), Vec::new())));
            let notes = Rc::clone(&seen);
            let watch = move |at: Time, ends: (Node, Node), sight, packet: &spindrift_fabric::Packet| {
                let (counts, trace) = &mut *notes.borrow_mut();
                let count: &mut [i64; 2] = counts.entry(ends).or_default();
                match sight {
                    PacketEvent::Sent => count[0] += 1,
                    PacketEvent::Arrived | PacketEvent::Lost | PacketEvent::Discarded => count[1] += 1,
                    PacketEvent::Dropped => {}
                }
                trace.push((at, ends, sight, packet.head().to_vec()));
            };
            let outcome = run(&case, Some(Box::new(watch))).unwrap();
            let seen = Rc::into_inner(seen).unwrap().into_inner();
            (outcome, seen)
        };
        let (outcome, (counts, trace)) = watched();
        let twins = trace.iter().filter(|(.., sight, _)| *sight == PacketEvent::Arrived).count();
        assert!(outcome.packets > 0 && twins > 0, "seed {seed}: {outcome:?}");
        let doubles = case.episodes.iter().any(|episode| match &episode.kind {
            EpisodeKind::Links { impairment, .. } => impairment.duplicate > 0.0,
            _ => false,
        });
        for (ends, [sent, ended]) in counts {
            assert!(ended == sent || doubles && ended > sent, "seed {seed}, {ends:?}: {sent} {ended}");
        }
        assert!(watched() == (outcome, (watched().1.0, trace)), "seed {seed}");
    }
}

#[test]
fn a_part_keeps_what_it_names() {
    let case = (0..).map(Case::draw);
    let case = case.into_iter().find(|case| case.episodes.len() > 3 && case.flows.len() > 3).unwrap();
    let part = Part { episodes: vec![0, 2, 99], flows: vec![3] };
    let small = part.of(&case);
    assert_eq!(small.episodes, [case.episodes[0].clone(), case.episodes[2].clone()]);
    assert_eq!(small.flows.iter().map(|flow| flow.number).collect::<Vec<_>>(), [3]);
    assert_eq!(part.options(7), "--seed 7 --episodes 0,2,99 --flows 3");
    assert_eq!(Part { episodes: vec![], ..part }.options(7), "--seed 7 --episodes none --flows 3");
}
