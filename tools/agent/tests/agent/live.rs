//! An agent whose plan changes while it probes.

use spindrift_agent::{Agent, AgentError, AgentSettings, PlanError, Refused, Window};
use spindrift_srv6::Fabric;

use crate::lab::{MS, STEP_NS, fabric};

fn agent(fabric: &Fabric, live: Option<&[u16]>) -> Agent {
    Agent::new(fabric, 0, live, AgentSettings::default(), ([7; 32], 0)).unwrap()
}

/// Probes until a time; each comes back at once, but those that are kept.
fn run(agent: &mut Agent, now_ns: &mut u64, end_ns: u64, keep: bool) -> Vec<(u8, Vec<u8>)> {
    let mut kept = Vec::new();
    while *now_ns < end_ns {
        *now_ns += STEP_NS;
        while agent.on_timeout(*now_ns) {}
        while let Some(probe) = agent.poll(*now_ns) {
            let (plane, bytes) = (probe.payload.path.plane().unwrap(), probe.payload.to_bytes().to_vec());
            let number = agent.plan().number(probe.payload.path);
            assert_eq!(number, Some(probe.path), "the numbers are those of the plan");
            if keep {
                kept.push((plane, bytes));
            } else {
                agent.on_return(*now_ns, plane, &bytes).unwrap();
            }
        }
    }
    kept
}

/// Links that stay keep what is known of them, new ones begin, and nothing is lost or forged by the change.
#[test]
fn a_new_plan_keeps_what_it_can() {
    let fabric = fabric((2, 2, 6), (1, 0), 4);
    let few = [0, 1, 5];
    let mut agent = agent(&fabric, None);
    let (before, mut now_ns) = (agent.plan().clone(), 0);
    run(&mut agent, &mut now_ns, 1_000 * MS, false);
    let flying = run(&mut agent, &mut now_ns, 1_010 * MS, true);
    assert!(!agent.replan(&fabric, None, now_ns).unwrap());
    assert!(agent.replan(&fabric, Some(&few), now_ns).unwrap());
    let after = agent.plan().clone();
    assert_eq!(after.upper().len(), 2 * 6, "agents 0 and 1 are alone at their switch");
    assert_eq!(after.lower(), before.lower());
    // Back again, without the links that only the few had it probe.
    let flying_then = run(&mut agent, &mut now_ns, 1_015 * MS, true);
    for (plane, bytes) in flying {
        agent.on_return(now_ns, plane, &bytes).unwrap();
    }
    assert!(agent.replan(&fabric, None, now_ns).unwrap());
    assert_eq!(*agent.plan(), before);
    let results: Vec<_> =
        flying_then.iter().map(|(plane, bytes)| agent.on_return(now_ns, *plane, bytes)).collect();
    let gone = results.iter().filter(|result| **result == Err(Refused::Late)).count();
    let kept = results.iter().filter(|result| result.is_ok()).count();
    assert!(gone > 0 && kept > 0 && gone + kept == results.len(), "{results:?}");
    run(&mut agent, &mut now_ns, 2_000 * MS, false);
    let counters = *agent.prober().counters();
    assert_eq!((counters.lost, counters.void as usize, counters.rx_late as usize), (0, gone, gone));
    assert_eq!((counters.rx_forged, counters.skipped), (0, 0));
    for (number, route) in before.routes().enumerate() {
        let count = agent.recorder().count(number, Window::TenSeconds, now_ns).unwrap();
        assert!((1_980..=2_002).contains(&count.sent) && count.lost == 0, "{route:?}: {count:?}");
    }
}

/// Every path of a plan is probed each millisecond, before and after it changes.
#[test]
fn a_new_plan_is_probed_at_once() {
    let fabric = fabric((1, 2, 8), (1, 0), 8);
    let mut agent = agent(&fabric, None);
    let mut now_ns = 0;
    run(&mut agent, &mut now_ns, 500 * MS, false);
    let few = agent.plan().routes().count();
    assert!(agent.replan(&fabric, Some(&[0]), now_ns).unwrap());
    let changed_ns = now_ns;
    run(&mut agent, &mut now_ns, 1_000 * MS, false);
    assert_eq!(agent.plan().routes().count(), 9);
    assert!(few < 9, "{few}");
    for number in 0..9 {
        let count = agent.recorder().count(number, Window::FiveMinutes, now_ns).unwrap();
        let since = if number == 0 { now_ns } else { now_ns - changed_ns };
        let is_new = count.sent < 600;
        assert!(
            count.sent as u64 + 22 >= if is_new { since.min(500 * MS) } else { now_ns } / MS,
            "{number}: {count:?}"
        );
    }
}

#[test]
fn an_agent_counts_itself_in() {
    let fabric = fabric((1, 2, 2), (1, 0), 2);
    let mut agent = agent(&fabric, None);
    let before = agent.plan().clone();
    let refused = agent.replan(&fabric, Some(&[1, 2]), 0);
    assert_eq!(refused, Err(AgentError::Plan(PlanError::NotLive(0))));
    assert_eq!(*agent.plan(), before);
}
