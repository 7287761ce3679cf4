//! A thousand hosts.

use spindrift_agent::Component;
use spindrift_agent_sim::campaign::Campaign;
use spindrift_agent_sim::trial::Verdict;
use spindrift_agent_sim::{Case, Kind, WatchSettings, Way, small};
use spindrift_srv6::Node;

/// 1,024 hosts in two planes of 32 x 32 switches, whose agents send 6 million probes a second: a link, a switch, a port and a NIC, each named in 100 ms.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn a_thousand_hosts_name_what_is_dead() {
    let (t0, t1) = (Node::T0 { plane: 1, number: 17 }, Node::T1 { plane: 1, number: 30 });
    let cases = [
        Case { kind: Kind::LinkDark(Way::Down), component: Component::Link((t0, t1)) },
        Case { kind: Kind::SwitchStops, component: Component::Node(t1) },
        Case { kind: Kind::LinkDown, component: Component::Link((Node::Host(17 * 32), t0)) },
        Case { kind: Kind::NicOff, component: Component::Node(Node::Host(1_023)) },
    ];
    let campaign = Campaign { spec: small(2, (32, 32), 32), settings: WatchSettings::default(), seed: 9 };
    let trials =
        campaign.in_turn(&cases, |trial| println!("{:?}: {:?}", trial.cases, trial.named_ns)).unwrap();
    for trial in &trials {
        assert_eq!(trial.verdict, Verdict::Right, "{:?}{}", trial.cases, trial.words);
        assert!(trial.named_ns.is_some_and(|ns| ns <= 100_000_000), "{trial:?}");
    }
    assert_eq!(trials.len(), 4);
}
