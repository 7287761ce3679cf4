//! A fabric that is well, with congestion, accuses nobody; nor do a few losses.

use spindrift_agent::{AgentSettings, Fault};
use spindrift_srv6::Node;

use crate::lab::{Break, Lab, MS, fabric, t0, t1};

/// Bursts of loss at the ports of hosts, as from incast: on average 0.4 % of the time a port loses 30 % for 10 to 30 ms, and 0.05 % always.
fn congest(lab: &mut Lab, planes: u8) {
    let hosts = lab.agents.len() as u16;
    for host in 0..hosts {
        for plane in 0..planes {
            let burst = lab.unit() < 0.004 * 10.0 / 20.0;
            let chance = if burst { 0.3 } else { 0.0005 };
            let goes_on =
                lab.congestion.get(&(host, plane)).is_some_and(|&now| now > 0.1) && lab.unit() < 0.5;
            if !goes_on {
                lab.congestion.insert((host, plane), chance);
            }
        }
    }
}

fn healthy(seconds: u64, seed: u64) {
    println!("seed {seed}");
    let mut lab = Lab::new(fabric((2, 2, 2), (1, 0), 2), seed);
    for _ in 0..100 * seconds {
        congest(&mut lab, 2);
        lab.run(10 * MS);
    }
    let lost: u64 = lab.agents.iter().map(|agent| agent.prober().counters().lost).sum();
    let sent: u64 = lab.agents.iter().map(|agent| agent.prober().counters().tx_probes).sum();
    println!("{lost} of {sent} probes lost");
    assert!(lost > sent / 1_000, "there is congestion");
    assert!(lab.changes.is_empty(), "{}", lab.words());
}

#[test]
fn congestion_accuses_nobody() {
    healthy(15, 1);
}

/// Five minutes each.
#[test]
#[ignore = "slow: tools/check-all.sh"]
fn congestion_accuses_nobody_for_long() {
    for seed in 2..4 {
        healthy(300, seed);
    }
}

/// A host's link that loses 3 % of all probes is named, and none of the links above, which its probes cross too.
#[test]
fn loss_at_a_host_is_taken_off_the_links_above() {
    for hosts in [1, 2] {
        let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), hosts), 4);
        lab.congestion.insert((0, 0), 0.015);
        lab.run(12_000 * MS);
        let expected = lab.alike(spindrift_agent::Component::Link((Node::Host(0), t0(0, 0))));
        assert_eq!(lab.ever_named(), [expected], "{}", lab.words());
    }
}

/// Half of that is not worth a name, for a host; between switches it is.
#[test]
fn what_is_accused_depends_on_the_tier() {
    let (host, upper) = ((Node::Host(0), t0(0, 0)), (t0(0, 0), t1(0, 0)));
    for (link, named) in [(host, 0), (upper, 1)] {
        let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 2), 9);
        lab.breaks = vec![Break::Gray(link, 0.003)];
        lab.run(12_000 * MS);
        assert_eq!(lab.locator.findings().len(), named, "{}", lab.words());
    }
}

/// Nine probes in a row that are lost (each of the two agents' 9) are no evidence, whatever the rate; nor are they later.
#[test]
fn a_short_break_accuses_nobody() {
    let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 2), 11);
    lab.run(100 * MS);
    lab.breaks = vec![Break::Cut((t0(0, 0), t1(0, 0)))];
    lab.run(4 * MS);
    lab.breaks.clear();
    lab.run(1_000 * MS);
    let lost: u64 = lab.agents.iter().map(|agent| agent.prober().counters().lost).sum();
    assert!((8..=9).contains(&lost), "{lost}");
    assert!(lab.changes.is_empty(), "{}", lab.words());
}

/// With so few probes that ten are not lost before, a dead link is named after ten lost ones, in whatever time that takes.
#[test]
fn slow_probes_take_longer() {
    let mut settings = AgentSettings::default();
    settings.probe.interval_ns = 100 * MS;
    let mut lab = Lab::with(fabric((1, 2, 2), (1, 0), 2), 2, settings);
    let link = (t0(0, 0), t1(0, 0));
    lab.run(2_000 * MS);
    lab.breaks = vec![Break::Cut(link)];
    assert!(!lab.run_until(400 * MS, |lab| !lab.changes.is_empty()), "{}", lab.words());
    assert!(lab.run_until(1_500 * MS, |lab| !lab.changes.is_empty()));
    assert_eq!(lab.ever_named(), [lab.alike(spindrift_agent::Component::Link(link))]);
    let finding = &lab.locator.findings()[0];
    assert!(finding.evidence.through.lost >= 10, "{finding:?}");
}

/// A link that went down and came back is named for as long as it was down, not for as long as its losses are in a window.
#[test]
fn an_outage_that_is_over_is_no_gray_link() {
    let mut lab = Lab::new(fabric((1, 2, 2), (1, 0), 2), 13);
    let link = (t0(0, 0), t1(0, 0));
    for _ in 0..3 {
        lab.run(3_000 * MS);
        lab.breaks = vec![Break::Cut(link)];
        lab.run(400 * MS);
        assert_eq!(lab.locator.findings()[0].fault, Fault::Down);
        lab.breaks.clear();
        lab.run(100 * MS);
        assert!(lab.named().is_empty(), "{}", lab.words());
    }
    assert_eq!(lab.changes.len(), 6, "{}", lab.words());
}
