//! Faults as commands of `ip`, `tc` and `nft`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use spindrift_srv6::{Link, Node};
use spindrift_switch::Switch;

use super::fault::{Action, Chance, Dir, LinkFault, Packets};
use super::ip::Program;
use super::plan::{Interface, LabPlan};

/// The table of the packet filter in each switch, and its chain. A chain cannot be called `forward`.
const TABLE: &str = "inet spindrift";
const CHAIN: &str = "links";

/// How long packets wait for a link with a rate; there is no room for more.
pub(super) const QUEUE: Duration = Duration::from_millis(10);

/// A fault of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// No two faults of a lab ever share one.
    pub(super) id: u32,
    /// Who will end it: nobody, or an entry of a schedule.
    pub(super) owner: String,
    pub(super) link: Link,
    pub(super) fault: LinkFault,
}

impl Broken {
    /// The counter of what it did.
    pub(super) fn counter(&self) -> String {
        format!("f{}", self.id)
    }

    /// The counter that programs of switches have for it, which is that of later faults, too.
    pub(super) fn number(&self) -> usize {
        self.id as usize % Switch::COUNTERS
    }
}

/// Commands of one program for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commands {
    pub(super) node: Node,
    pub(super) program: Program,
    pub(super) lines: String,
}

/// The ends of links.
type Ends = BTreeMap<Link, [Interface; 2]>;

/// The ends of the links that faults name.
pub(super) fn ends(plan: &LabPlan<'_>, all: &[Broken]) -> Ends {
    let named: BTreeSet<_> = all.iter().map(|broken| broken.link).collect();
    plan.links().filter(|(link, _)| named.contains(link)).collect()
}

/// The commands that lead from some faults to others. Ports of hosts that have a queue always have one.
pub(super) fn change(plan: &LabPlan<'_>, queued: bool, old: &[Broken], new: &[Broken]) -> Vec<Commands> {
    let mut commands = Vec::new();
    // A link whose faults change its carrier, and the nodes whose filters change, are those that are named.
    let ends = ends(plan, &[old, new].concat());
    let mut carriers = BTreeMap::<Node, String>::new();
    let mut queues = BTreeMap::<Node, String>::new();
    for (&link, [lower, upper]) in &ends {
        match (is_down(old, link), is_down(new, link)) {
            (false, true) => {
                *carriers.entry(upper.node).or_default() += &format!("link set {} down\n", upper.name);
            }
            (true, false) => *carriers.entry(upper.node).or_default() += &plan.restore(upper),
            _ => {}
        }
        for (dir, end) in [(Dir::Up, lower), (Dir::Down, upper)] {
            let (before, after) = (rate(old, link, dir), rate(new, link, dir));
            if before != after {
                let queued = queued && matches!(end.node, Node::Host(_));
                *queues.entry(end.node).or_default() += &shape(&end.name, queued, after);
            }
        }
    }
    let (before, after) = (filters(&ends, old), filters(&ends, new));
    let nodes: BTreeSet<Node> = before.keys().chain(after.keys()).copied().collect();
    for node in nodes {
        let (before, after) = (before.get(&node), after.get(&node));
        if before != after {
            let lines = filter(before.map_or(&[], |rules| rules), after.map_or(&[], |rules| rules));
            commands.push(Commands { node, program: Program::Nft, lines });
        }
    }
    commands.extend(queues.into_iter().map(|(node, lines)| Commands { node, program: Program::Tc, lines }));
    commands.extend(carriers.into_iter().map(|(node, lines)| Commands { node, program: Program::Ip, lines }));
    commands
}

/// Whether a link is down.
pub(super) fn is_down(all: &[Broken], link: Link) -> bool {
    all.iter().any(|broken| broken.link == link && broken.fault.action == Action::Down)
}

/// The lowest of the rates that a link has in a direction.
fn rate(all: &[Broken], link: Link, dir: Dir) -> Option<u64> {
    let rates = of(all, link, dir).filter_map(|fault| match fault.action {
        Action::Rate(rate) => Some(rate),
        _ => None,
    });
    rates.min()
}

/// What an interface may send.
pub(super) struct Limit<'e> {
    pub(super) link: Link,
    pub(super) dir: Dir,
    pub(super) end: &'e Interface,
    /// The other end of its link.
    pub(super) far: &'e Interface,
    /// Bits per second.
    pub(super) rate: u64,
    /// The wait beyond which packets are marked.
    pub(super) mark: Option<Duration>,
    /// The wait beyond which packets are trimmed.
    pub(super) trim: Option<Duration>,
}

/// The rate of each interface that has one, and the least of the waits.
pub(super) fn limits<'e>(ends: &'e Ends, all: &[Broken]) -> Vec<Limit<'e>> {
    let each = ends.iter().flat_map(|(&link, [lower, upper])| {
        [(Dir::Up, lower, upper), (Dir::Down, upper, lower)].map(|(dir, end, far)| {
            let least = |wait: fn(&LinkFault) -> Option<Duration>| of(all, link, dir).filter_map(wait).min();
            let (mark, trim) = (least(|fault| fault.mark), least(|fault| fault.trim));
            Some(Limit { link, dir, end, far, rate: rate(all, link, dir)?, mark, trim })
        })
    });
    each.flatten().collect()
}

/// The faults of a link in a direction.
fn of(all: &[Broken], link: Link, dir: Dir) -> impl Iterator<Item = &LinkFault> {
    let here = all.iter().filter(move |broken| broken.link == link).map(|broken| &broken.fault);
    here.filter(move |fault| fault.dirs().any(|its| its == dir))
}

/// How many bytes pass at once where there is a rate: a millisecond of them, and two of the longest packets at least.
pub(super) fn burst(rate: u64) -> u64 {
    (rate / 8 / 1000).max(20_000)
}

/// A command that gives an interface a queue that waits for its link, and drops nothing before it is full.
pub(super) fn queue(interface: &str) -> String {
    format!("qdisc replace dev {interface} root pfifo\n")
}

/// A command that limits what an interface sends.
fn shape(interface: &str, queued: bool, rate: Option<u64>) -> String {
    // Whether one is there or not: a process may have been killed before it made one.
    let delete = if queued { String::new() } else { format!("qdisc delete dev {interface} root\n") };
    let Some(rate) = rate else { return queue(interface) + &delete };
    let (burst, latency) = (burst(rate), QUEUE.as_millis());
    format!("qdisc replace dev {interface} root tbf rate {rate}bit burst {burst}b latency {latency}ms\n")
}

/// A rule of a packet filter, and the counter that it has.
type Rule = (String, String);

/// Where packets meet a fault: as they come in by an interface of a switch, or as they leave by it.
pub(super) struct Place<'a> {
    pub(super) broken: &'a Broken,
    pub(super) end: &'a Interface,
    pub(super) incoming: bool,
}

/// The places of the faults that switches see to. Every packet on a link is forwarded by a switch at one of its ends: by the upper one
/// where it goes down or comes from a host, by the lower one otherwise.
pub(super) fn places<'a>(ends: &'a Ends, all: &'a [Broken]) -> Vec<Place<'a>> {
    let mut places = Vec::new();
    for broken in all.iter().filter(|broken| broken.fault.is_filter()) {
        let Some([lower, upper]) = ends.get(&broken.link) else { continue };
        for dir in broken.fault.dirs() {
            let (end, incoming) = match (dir, lower.node) {
                (Dir::Up, Node::Host(_)) => (upper, true),
                (Dir::Up, _) => (lower, false),
                (Dir::Down, _) => (upper, false),
            };
            places.push(Place { broken, end, incoming });
        }
    }
    places
}

/// The rules that each switch's packet filter has for some faults.
fn filters(ends: &Ends, all: &[Broken]) -> BTreeMap<Node, Vec<Rule>> {
    let mut rules = BTreeMap::<Node, Vec<Rule>>::new();
    for Place { broken, end, incoming } in places(ends, all) {
        let key = if incoming { "iifname" } else { "oifname" };
        let counter = broken.counter();
        let statements = statements(&broken.fault, &counter);
        let of_node = rules.entry(end.node).or_default();
        for packets in matches(broken.fault.packets) {
            of_node.push((counter.clone(), format!("{key} \"{}\"{packets}{statements}", end.name)));
        }
    }
    rules
}

/// How packets are told from others: of those inside outer packets, the UDP header is behind the inner IPv6 header.
fn matches(packets: Option<Packets>) -> Vec<String> {
    let port = |port: u32, label: &str| {
        vec![format!(" udp sport {port}{label}"), format!(" meta l4proto 41 @th,320,16 {port}{label}")]
    };
    match packets {
        None => vec![String::new()],
        Some(Packets::Port(number)) => port(number.into(), ""),
        Some(Packets::Ev(ev)) => port(ev >> 16, &format!(" ip6 flowlabel & 0xffff == {}", ev & 0xffff)),
    }
}

fn statements(fault: &LinkFault, counter: &str) -> String {
    let by_chance = |chance: Chance| {
        if chance == Chance::ALWAYS {
            String::new()
        } else {
            format!(" numgen random mod 1000000 < {}", chance.0)
        }
    };
    match fault.action {
        Action::Loss(chance) => format!("{} counter name {counter} drop", by_chance(chance)),
        Action::Ecn(chance) => {
            format!(" ip6 ecn != not-ect{} counter name {counter} ip6 ecn set ce", by_chance(chance))
        }
        Action::Blackhole | Action::Down | Action::Rate(_) => format!(" counter name {counter} drop"),
    }
}

/// Input of `nft` that replaces the rules of a switch at once and keeps the counters of those that stay.
fn filter(old: &[Rule], new: &[Rule]) -> String {
    let counters = |rules: &[Rule]| rules.iter().map(|(counter, _)| counter.clone()).collect::<BTreeSet<_>>();
    let mut text = format!("add table {TABLE}\n");
    if new.is_empty() {
        return text + &format!("delete table {TABLE}\n");
    }
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    line(format_args!("add chain {TABLE} {CHAIN} {{ type filter hook forward priority 0; policy accept; }}"));
    line(format_args!("flush chain {TABLE} {CHAIN}"));
    let kept = counters(new);
    for gone in counters(old).difference(&kept) {
        // Whether it is there or not.
        line(format_args!("add counter {TABLE} {gone}\ndelete counter {TABLE} {gone}"));
    }
    for counter in &kept {
        line(format_args!("add counter {TABLE} {counter}"));
    }
    for (_, rule) in new {
        line(format_args!("add rule {TABLE} {CHAIN} {rule}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use spindrift_srv6::Fabric;

    use super::*;
    use crate::lab::plan::two_hosts;

    fn broken(fabric: &Fabric, id: u32, link: (&str, &str), fault: &str) -> Broken {
        let node = |name| fabric.node(name).unwrap();
        let link = fabric.link(node(link.0), node(link.1)).unwrap();
        Broken { id, owner: String::new(), link, fault: fault.parse().unwrap() }
    }

    /// The commands from some faults to others: node, program, lines.
    fn commands(fabric: &Fabric, old: &[Broken], new: &[Broken]) -> Vec<(String, Program, String)> {
        let plan = LabPlan::new(fabric, "x");
        let all = change(&plan, false, old, new).into_iter();
        all.map(|commands| (fabric.name(commands.node), commands.program, commands.lines)).collect()
    }

    #[test]
    fn packets_are_taken_at_the_switch_that_forwards_them_onto_or_off_the_link() {
        let fabric = two_hosts(1);
        for (link, fault, node, rule) in [
            (("a", "p0-t0-0"), "blackhole,dir=up", "p0-t0-0", "iifname \"down0\" counter name f7 drop"),
            (("a", "p0-t0-0"), "blackhole,dir=down", "p0-t0-0", "oifname \"down0\" counter name f7 drop"),
            (("p0-t0-1", "p0-t1-0"), "blackhole,dir=up", "p0-t0-1", "oifname \"up0\" counter name f7 drop"),
            (
                ("p0-t0-1", "p0-t1-0"),
                "blackhole,dir=down",
                "p0-t1-0",
                "oifname \"down1\" counter name f7 drop",
            ),
            (
                ("p0-t0-1", "p0-t1-0"),
                "loss=0.5%,dir=down",
                "p0-t1-0",
                "oifname \"down1\" numgen random mod 1000000 < 5000 counter name f7 drop",
            ),
            (
                ("p0-t0-1", "p0-t1-0"),
                "ecn=100%,dir=down",
                "p0-t1-0",
                "oifname \"down1\" ip6 ecn != not-ect counter name f7 ip6 ecn set ce",
            ),
        ] {
            let lines = format!(
                "add table inet spindrift\n\
                 add chain inet spindrift links {{ type filter hook forward priority 0; policy accept; }}\n\
                 flush chain inet spindrift links\n\
                 add counter inet spindrift f7\n\
                 add rule inet spindrift links {rule}\n"
            );
            let new = [broken(&fabric, 7, link, fault)];
            let there = vec![(node.to_owned(), Program::Nft, lines)];
            assert_eq!(commands(&fabric, &[], &new), there, "{fault}");
            let gone = "add table inet spindrift\ndelete table inet spindrift\n".to_owned();
            assert_eq!(commands(&fabric, &new, &[]), [(node.to_owned(), Program::Nft, gone)]);
            assert_eq!(commands(&fabric, &new, &new), []);
        }
    }

    #[test]
    fn both_directions_of_a_link_share_a_counter_and_what_is_over_loses_its_own() {
        let fabric = two_hosts(1);
        let link = ("a", "p0-t0-0");
        let old = [broken(&fabric, 1, link, "loss=1%"), broken(&fabric, 2, link, "blackhole,sport=9")];
        let all = commands(&fabric, &[], &old);
        let [(_, _, lines)] = &*all else { panic!("{all:?}") };
        assert_eq!(lines.matches("add counter inet spindrift f1\n").count(), 1);
        assert_eq!((lines.matches(" f1 drop").count(), lines.matches(" f2 drop").count()), (2, 4));
        let all = commands(&fabric, &old, &old[1..]);
        let [(_, _, lines)] = &*all else { panic!("{all:?}") };
        assert!(
            lines.contains("delete counter inet spindrift f1\n")
                && !lines.contains("delete counter inet spindrift f2")
        );
        assert!(!lines.contains(" f1 drop") && lines.contains("add counter inet spindrift f2\n"));
    }

    #[test]
    fn the_lowest_rate_counts_in_each_direction() {
        let fabric = two_hosts(1);
        let link = ("p0-t0-0", "p0-t1-1");
        let (both, up) = (broken(&fabric, 1, link, "rate=2G"), broken(&fabric, 2, link, "rate=8M,dir=up"));
        let limit = |rate: &str, burst: &str, interface: &str| {
            format!("qdisc replace dev {interface} root tbf rate {rate}bit burst {burst}b latency 10ms\n")
        };
        let tc = |node: &str, lines: String| (node.to_owned(), Program::Tc, lines);
        assert_eq!(
            commands(&fabric, &[], &[both.clone(), up.clone()]),
            [
                tc("p0-t0-0", limit("8000000", "20000", "up1")),
                tc("p0-t1-1", limit("2000000000", "250000", "down0"))
            ]
        );
        let old = [both.clone(), up.clone()];
        assert_eq!(commands(&fabric, &old, &[both]), [tc("p0-t0-0", limit("2000000000", "250000", "up1"))]);
        assert_eq!(
            commands(&fabric, &old, &[up]),
            [tc("p0-t1-1", "qdisc replace dev down0 root pfifo\nqdisc delete dev down0 root\n".to_owned())]
        );
    }

    #[test]
    fn an_interface_comes_back_with_what_the_kernel_took() {
        let fabric = two_hosts(1);
        let link = ("p0-t0-1", "p0-t1-1");
        let down = [broken(&fabric, 1, link, "down")];
        let twice = [down.as_slice(), &[broken(&fabric, 2, link, "down")]].concat();
        let ip = |lines: &str| vec![("p0-t1-1".to_owned(), Program::Ip, lines.to_owned())];
        assert_eq!(commands(&fabric, &[], &down), ip("link set down1 down\n"));
        // One of two is over.
        assert_eq!(commands(&fabric, &twice, &down), []);
        assert_eq!(
            commands(&fabric, &down, &[]),
            ip("link set down1 up\n\
                address replace fe80::1/64 dev down1 nodad\n\
                neighbour replace fe80::2 lladdr 02:00:5d:00:03:f2 dev down1 nud permanent\n\
                route replace fcbb:bb00:4001::/48 via fe80::2 dev down1\n\
                route replace fd5d:7072:0:1::/64 via fe80::2 dev down1\n")
        );
    }
}
