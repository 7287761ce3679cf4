//! Which agent probes which link: each agent finds out by itself, and all of them agree.
//!
//! The links of hosts are probed by their own agents. A link between switches is probed by some of the agents below it, by rendezvous
//! hashing (highest random weight): each pair of an agent and a link has a pseudo-random weight, and the agents with the
//! largest weights probe the link. So there is nothing to negotiate, the shares are even, and when an agent comes or goes only the
//! links move that it takes or had.

use std::cmp::Reverse;

use spindrift_srv6::{Fabric, Link, Node};

/// How links are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePolicy {
    /// Agents that probe each link between switches, where so many are below it. Two by default: the loss of one agent leaves no link
    /// unseen, and a fault that two agents see is not in either one's NIC. With 0 only the links of hosts are probed.
    pub agents_per_link: usize,
}

impl Default for SharePolicy {
    fn default() -> Self {
        Self { agents_per_link: 2 }
    }
}

/// The live agents that may probe a link between switches: those at the T0 switch below it, or in the pod below it.
pub fn candidates(fabric: &Fabric, link: Link, live: Option<&[u16]>) -> Vec<u16> {
    let (lower, upper) = link;
    let is_across = matches!((lower, upper), (Node::T0 { .. }, Node::T0 { .. }));
    let is_below = |host: u16| {
        let t0 = fabric.hosts().get(usize::from(host)).map(|at| at.t0);
        match lower {
            Node::T0 { number, .. } => t0 == Some(number) || is_across && t0.is_some(),
            Node::T1 { .. } => {
                fabric.pod_of(Node::Host(host)).is_some_and(|pod| fabric.pod_of(lower) == Some(pod))
            }
            Node::Host(_) | Node::T2 { .. } => false,
        }
    };
    let mut found: Vec<u16> = match live {
        Some(live) => live.iter().copied().filter(|&host| is_below(host)).collect(),
        None => (0..fabric.hosts().len() as u16).filter(|&host| is_below(host)).collect(),
    };
    found.sort_unstable();
    found.dedup();
    found
}

/// The agents that probe a link between switches, that with the largest weight first; none where no live agent is below it.
pub fn of_link(fabric: &Fabric, link: Link, live: Option<&[u16]>, policy: SharePolicy) -> Vec<u16> {
    largest(&candidates(fabric, link, live), link, policy)
}

/// The switches where the probes of an agent's share turn, each with the one link below it that the agent is to cover: plane by plane, T1
/// before T2.
pub fn of_agent(fabric: &Fabric, host: u16, live: Option<&[u16]>, policy: SharePolicy) -> Vec<Node> {
    let Some(at) = fabric.hosts().get(usize::from(host)) else { return Vec::new() };
    let mut tops = Vec::new();
    for plane in 0..fabric.shape().planes {
        let t0 = Node::T0 { plane, number: at.t0 };
        let first: Vec<_> = fabric.uplinks(t0).collect();
        let mut second = Vec::new();
        // All links of a tier have the same candidates, which are looked up once.
        let below_first = first.first().map(|&top| candidates(fabric, link(t0, top), live));
        let below_second = first.iter().find(|top| matches!(top, Node::T1 { .. })).and_then(|&t1| {
            let top = fabric.uplinks(t1).next()?;
            Some(candidates(fabric, link(t1, top), live))
        });
        let is_ours = |agents: Option<&Vec<u16>>, link| {
            agents.is_some_and(|agents| largest(agents, link, policy).contains(&host))
        };
        for &top in &first {
            if is_ours(below_first.as_ref(), link(t0, top)) {
                tops.push(top);
            }
            if matches!(top, Node::T1 { .. }) {
                let ours = |&upper: &Node| is_ours(below_second.as_ref(), link(top, upper));
                second.extend(fabric.uplinks(top).filter(ours));
            }
        }
        tops.extend(second);
    }
    tops
}

fn largest(agents: &[u16], link: Link, policy: SharePolicy) -> Vec<u16> {
    let of_link = key(link.0) ^ mix(key(link.1));
    // Equal weights are next to impossible; the smaller number goes first.
    let mut best: Vec<(Reverse<u64>, u16)> = Vec::new();
    for &host in agents {
        let entry = (Reverse(mix(of_link ^ mix(u64::from(host) + 1))), host);
        let at = best.partition_point(|other| *other < entry);
        if at < policy.agents_per_link {
            best.insert(at, entry);
            best.truncate(policy.agents_per_link);
        }
    }
    best.into_iter().map(|(_, host)| host).collect()
}

fn link(a: Node, b: Node) -> Link {
    (a.min(b), a.max(b))
}

/// A number for a node, the same on every machine.
fn key(node: Node) -> u64 {
    let of = |tier: u64, plane: u8, number: u16| mix(tier << 32 | u64::from(plane) << 16 | u64::from(number));
    match node {
        Node::Host(host) => of(4, 0, host),
        Node::T0 { plane, number } => of(1, plane, number),
        Node::T1 { plane, number } => of(2, plane, number),
        Node::T2 { plane, number } => of(3, plane, number),
    }
}

/// The finaliser of `SplitMix64`.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
