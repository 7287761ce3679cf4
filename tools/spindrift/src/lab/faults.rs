//! The faults of a lab: stored in its folder, applied in its namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use spindrift_srv6::{Fabric, Link, Node};
use spindrift_switch::{QueueCounts, Switch};

use super::fault::{Dir, LinkFault};
use super::ip::{Ip, Program, Ready, Started};
use super::plan::LabPlan;
use super::rules::{self, Broken, Commands};
use super::state::Lab;
use super::switches::{Change, Switches};
use crate::topology::{self, SwitchKind};
use crate::usage::usage;

/// A part of a fabric: one link, or those of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Link(Link),
    Node(Node),
}

impl Place {
    /// Understands `h1:p0-t0-0` and `p0-t1-3`.
    pub(crate) fn parse(fabric: &Fabric, text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return topology::link(fabric, text).map(Self::Link);
        }
        let node = fabric.node(text).ok_or_else(|| {
            format!(
                "there is no node \"{text}\"; hosts have their names, switches are called p0-t0-0 or p0-t1-3, and links h1:p0-t0-0"
            )
        })?;
        Ok(Self::Node(node))
    }

    /// Whether a link is part of it.
    pub(crate) fn has(self, link: Link) -> bool {
        match self {
            Self::Link(own) => own == link,
            Self::Node(node) => link.0 == node || link.1 == node,
        }
    }

    /// A fault here as faults of links. A packet that a switch forwards crosses two of its links: what happens to packets of a switch
    /// happens to them as they come in, once.
    pub(super) fn faults(self, fabric: &Fabric, fault: LinkFault) -> Vec<(Link, LinkFault)> {
        let links = fabric.links().filter(|&link| self.has(link));
        let each = |link: Link| match self {
            Self::Node(node) if fault.is_filter() && !matches!(node, Node::Host(_)) => {
                let inwards = if link.1 == node { Dir::Up } else { Dir::Down };
                let fits = fault.dirs().any(|dir| dir == inwards);
                fits.then_some((link, LinkFault { dir: Some(inwards), ..fault }))
            }
            _ => Some((link, fault)),
        };
        links.filter_map(each).collect()
    }
}

/// All faults of a lab, and the number of the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultSet {
    pub(super) all: Vec<Broken>,
    next: u32,
}

impl FaultSet {
    /// Adds a fault. One of the same owner that is of the same kind, on the same packets, is replaced.
    pub(super) fn add(&mut self, owner: &str, link: Link, fault: LinkFault) {
        let broken = |id| Broken { id, owner: owner.to_owned(), link, fault };
        let replaces = |old: &Broken| {
            let same = std::mem::discriminant(&old.fault.action) == std::mem::discriminant(&fault.action);
            let packets = (old.fault.dir, old.fault.packets) == (fault.dir, fault.packets);
            (old.owner.as_str(), old.link) == (owner, link) && same && packets
        };
        self.all.retain(|old| !replaces(old));
        // Numbers go on, past those whose counter another fault of a switch still has.
        let free = |id: &u32| {
            !self.all.iter().any(|old| old.fault.is_filter() && old.number() == broken(*id).number())
        };
        let id = (self.next..).take(Switch::COUNTERS).find(free).unwrap_or(self.next);
        self.all.push(broken(id));
        self.next = id + 1;
    }

    /// Ends the faults of an owner.
    pub(super) fn end(&mut self, owner: &str) {
        self.all.retain(|broken| broken.owner != owner);
    }

    /// Ends the faults of a place, or all, whoever owns them. Returns how many links had some.
    pub(super) fn heal(&mut self, place: Option<Place>) -> usize {
        let healed = |broken: &Broken| place.is_none_or(|place| place.has(broken.link));
        let mut links: Vec<_> =
            self.all.iter().filter(|broken| healed(broken)).map(|broken| broken.link).collect();
        self.all.retain(|broken| !healed(broken));
        links.sort_unstable();
        links.dedup();
        links.len()
    }
}

/// What is in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Written {
    next: u32,
    faults: Vec<WrittenFault>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WrittenFault {
    id: u32,
    owner: String,
    link: String,
    fault: String,
}

/// Fails on faults that need other switches.
pub(super) fn check_switches<'f>(
    kind: SwitchKind,
    mut all: impl Iterator<Item = &'f LinkFault>,
) -> Result<()> {
    match all.find(|fault| fault.mark.is_some() || fault.trim.is_some()) {
        Some(fault) if kind == SwitchKind::Kernel => Err(usage(format!(
            "{fault}: the kernel's switches neither mark nor trim by how long packets wait; build the lab with --switch xdp, or leave out mark and trim"
        ))),
        _ => Ok(()),
    }
}

/// What became of commands.
#[derive(Default)]
struct Done {
    error: Option<anyhow::Error>,
    /// Nodes whose filters are as they were: `nft` does all that it is given, or nothing.
    untouched: BTreeSet<Node>,
}

/// The faults of a lab that is up.
pub(super) struct Faults<'a> {
    plan: &'a LabPlan<'a>,
    ip: &'a Ip,
    lab: Lab,
    /// Where they are not the kernel's.
    switches: Option<Switches<'a>>,
}

impl<'a> Faults<'a> {
    pub(super) fn open(lab: Lab, plan: &'a LabPlan<'a>, ip: &'a Ip) -> Result<Self> {
        let switches = Switches::open(&lab, plan)?;
        Ok(Self { plan, ip, lab, switches })
    }

    /// The kind of the lab's switches.
    pub(super) fn kind(&self) -> SwitchKind {
        self.switches.as_ref().map_or(SwitchKind::Kernel, |switches| switches.kind)
    }

    /// The switches, where they are not the kernel's.
    pub(super) fn switches(&self) -> Option<&Switches<'a>> {
        self.switches.as_ref()
    }

    fn path(&self) -> PathBuf {
        self.lab.file("faults.json")
    }

    /// The faults that there are.
    pub(super) fn read(&self) -> Result<FaultSet> {
        let path = self.path();
        if !path.exists() {
            return Ok(FaultSet::default());
        }
        let name = path.display();
        let text = fs::read(&path).with_context(|| format!("cannot read {name}"))?;
        let broken = || format!("{name} is damaged; remove the lab");
        let written: Written = serde_json::from_slice(&text).with_context(broken)?;
        let fault = |WrittenFault { id, owner, link, fault }| {
            let link = topology::link(self.plan.fabric, &link)?;
            Ok(Broken { id, owner, link, fault: fault.parse()? })
        };
        let all = written.faults.into_iter().map(fault).collect::<Result<_, String>>();
        let all = all.map_err(anyhow::Error::msg).with_context(broken)?;
        Ok(FaultSet { all, next: written.next })
    }

    fn write(&self, set: &FaultSet) -> Result<()> {
        let fault = |Broken { id, owner, link, fault }: &Broken| WrittenFault {
            id: *id,
            owner: owner.clone(),
            link: topology::link_name(self.plan.fabric, *link),
            fault: fault.to_string(),
        };
        let written = Written { next: set.next, faults: set.all.iter().map(fault).collect() };
        let text = serde_json::to_vec(&written).context("faults as JSON")?;
        let (path, new) = (self.path(), self.lab.file("faults.new"));
        // All or nothing, for those who read meanwhile, and after a crash.
        let put = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        put.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Changes the faults and the lab with them. Where that fails, they are what they were. One process at a time does this.
    pub(super) fn change<T>(&self, edit: impl FnOnce(&mut FaultSet) -> T) -> Result<T> {
        let mut result = None;
        self.prepare(|set| result = Some(edit(set)))?.apply()?;
        result.context("nothing was changed")
    }

    /// Has all ready for a change, so that it happens within milliseconds of the word. No other process can change anything meanwhile.
    pub(super) fn prepare(&self, edit: impl FnOnce(&mut FaultSet)) -> Result<Prepared<'_, 'a>> {
        let one_at_a_time = self.lock()?;
        let old = self.read()?;
        let mut new = old.clone();
        edit(&mut new);
        if self.switches.is_none() {
            check_switches(SwitchKind::Kernel, new.all.iter().map(|broken| &broken.fault))?;
        }
        let work = self.work(&old, &new, |_| true)?;
        Ok(Prepared { faults: self, _one_at_a_time: one_at_a_time, old, new, work })
    }

    /// What leads from some faults to others, as far as it is needed. All nodes at once: a switch that dies is one event.
    fn work(&self, old: &FaultSet, new: &FaultSet, needed: impl Fn(&Commands) -> bool) -> Result<Work> {
        let changes = self.switches.as_ref().map(|switches| switches.change(&old.all, &new.all));
        let ready = |commands: Commands| {
            let ready = self.ip.ready(commands.program, &self.plan.namespace(commands.node))?;
            Ok((commands, ready))
        };
        let all = rules::change(self.plan, self.switches.is_some(), &old.all, &new.all);
        let commands = all.into_iter().filter(needed).map(ready).collect::<Result<_>>()?;
        Ok(Work { commands, changes: changes.transpose()?.unwrap_or_default() })
    }

    fn lock(&self) -> Result<File> {
        let path = self.lab.topology_path();
        let lock = File::open(&path).and_then(|file| file.lock().map(|()| file));
        let lock = lock.with_context(|| format!("cannot lock {}; is the lab gone?", path.display()))?;
        if !path.exists() {
            bail!("the lab is gone");
        }
        Ok(lock)
    }

    /// What the queues of links with a rate have done, where switches are programs.
    pub(super) fn queues(&self, set: &FaultSet) -> Result<Vec<(Link, Dir, QueueCounts)>> {
        self.switches.as_ref().map_or_else(|| Ok(Vec::new()), |switches| switches.queues(&set.all))
    }

    /// How many packets each fault has taken or marked, by number; those whose work is not counted are left out.
    pub(super) fn counts(&self, set: &FaultSet) -> Result<BTreeMap<u32, u64>> {
        let mut counts = match &self.switches {
            Some(switches) => switches.hits(&set.all)?,
            None => BTreeMap::new(),
        };
        let mut nodes: Vec<_> = rules::change(self.plan, false, &[], &set.all)
            .into_iter()
            .filter(|commands| commands.program == Program::Nft)
            .map(|commands| commands.node)
            .collect();
        nodes.dedup();
        for node in nodes {
            for (name, packets) in self.ip.counters(&self.plan.namespace(node))? {
                let fault = set.all.iter().find(|broken| broken.counter() == name);
                if let Some(fault) = fault {
                    *counts.entry(fault.id).or_default() += packets;
                }
            }
        }
        Ok(counts)
    }
}

/// A change that waits for the word.
pub(super) struct Prepared<'a, 'l> {
    faults: &'a Faults<'l>,
    _one_at_a_time: File,
    old: FaultSet,
    new: FaultSet,
    work: Work,
}

/// What is to be done.
struct Work {
    commands: Vec<(Commands, Ready)>,
    changes: Vec<Change>,
}

impl Prepared<'_, '_> {
    /// Brings it about.
    pub(super) fn apply(self) -> Result<()> {
        let Self { faults, _one_at_a_time, old, new, work } = self;
        // Written first: whatever stops this process, no fault is left that nobody knows of.
        faults.write(&new)?;
        let done = Done::of(work);
        if let Some(error) = done.error {
            // The first error is the one that tells. What cannot be taken back stays in the file.
            let needed = |commands: &Commands| {
                !done.untouched.contains(&commands.node) || commands.program != Program::Nft
            };
            let taken_back = faults.work(&new, &old, needed).map(Done::of);
            if taken_back.is_ok_and(|done| done.error.is_none()) {
                faults.write(&old)?;
            }
            return Err(error);
        }
        Ok(())
    }
}

impl Done {
    /// Does it all, and waits for each, whatever becomes of the others.
    fn of(work: Work) -> Self {
        let go =
            |(Commands { node, program, lines }, ready): (Commands, Ready)| (node, program, ready.go(&lines));
        let started: Vec<_> = work.commands.into_iter().map(go).collect();
        let mut done = Self::default();
        for change in work.changes {
            if let Err(error) = change.apply() {
                done.error.get_or_insert(error);
            }
        }
        for (node, program, started) in started {
            if let Err(error) = started.and_then(Started::end) {
                if program == Program::Nft {
                    done.untouched.insert(node);
                }
                done.error.get_or_insert(error);
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::two_hosts;

    fn place(fabric: &Fabric, text: &str) -> Place {
        Place::parse(fabric, text).unwrap()
    }

    #[test]
    fn what_a_switch_forwards_is_hit_as_it_comes_in() {
        let fabric = two_hosts(2);
        let on = |at: &str, fault: &str| {
            let all = place(&fabric, at).faults(&fabric, fault.parse().unwrap()).into_iter();
            all.map(|(link, fault)| format!("{} {fault}", topology::link_name(&fabric, link)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            on("p0-t0-0", "loss=5%,sport=7"),
            [
                "a:p0-t0-0 loss=5%,dir=up,sport=7",
                "p0-t0-0:p0-t1-0 loss=5%,dir=down,sport=7",
                "p0-t0-0:p0-t1-1 loss=5%,dir=down,sport=7"
            ]
        );
        assert_eq!(on("p0-t0-0", "blackhole,dir=up"), ["a:p0-t0-0 blackhole,dir=up"]);
        assert_eq!(
            on("p1-t1-1", "ecn=5%"),
            ["p1-t0-0:p1-t1-1 ecn=5%,dir=up", "p1-t0-1:p1-t1-1 ecn=5%,dir=up"]
        );
        assert_eq!(on("p1-t1-1", "ecn=5%,dir=down"), [""; 0]);
        // Whole links, and those of a host, are as they are told.
        assert_eq!(on("p1-t1-1", "rate=1G,dir=down").len(), 2);
        assert_eq!(on("p0-t0-1", "down"), ["b:p0-t0-1 down", "p0-t0-1:p0-t1-0 down", "p0-t0-1:p0-t1-1 down"]);
        assert_eq!(on("a", "loss=5%"), ["a:p0-t0-0 loss=5%", "a:p1-t0-0 loss=5%"]);
        assert_eq!(on("p0-t0-0:a", "loss=5%"), ["a:p0-t0-0 loss=5%"]);
    }

    impl FaultSet {
        fn add_and_tell(&mut self, owner: &str, link: Link, fault: &str) -> u32 {
            self.add(owner, link, fault.parse().unwrap());
            self.all.last().unwrap().id
        }
    }

    #[test]
    fn faults_add_up_and_replace_only_their_like() {
        let fabric = two_hosts(2);
        let link = fabric.links().next().unwrap();
        let other = fabric.links().nth(1).unwrap();
        let mut set = FaultSet::default();
        let mut add = |owner: &str, link, fault: &str| set.add(owner, link, fault.parse().unwrap());
        for (owner, link, fault) in [
            ("", link, "loss=1%"),
            ("", link, "loss=1%,dir=up"),
            ("", link, "loss=1%,sport=1"),
            ("", link, "ecn=1%"),
            ("9.0", link, "loss=2%"),
            ("", other, "loss=3%"),
            ("", link, "loss=4%"),
        ] {
            add(owner, link, fault);
        }
        let all = |set: &FaultSet| {
            set.all.iter().map(|broken| format!("{} {}", broken.id, broken.fault)).collect::<Vec<_>>()
        };
        assert_eq!(
            all(&set),
            ["1 loss=1%,dir=up", "2 loss=1%,sport=1", "3 ecn=1%", "4 loss=2%", "5 loss=3%", "6 loss=4%"]
        );
        set.end("9.1");
        set.end("9");
        assert_eq!(set.all.len(), 6);
        set.end("9.0");
        assert_eq!(set.all.len(), 5);
        assert_eq!(set.heal(Some(Place::Link(other))), 1);
        assert_eq!((set.all.len(), set.heal(Some(Place::Link(other)))), (4, 0));
        assert_eq!((set.heal(None), set.all.len()), (1, 0));
        // A counter that a switch still has for another fault is no new one's. Those of other faults are free.
        let id = set.add_and_tell("", link, "loss=1%");
        set.add_and_tell("", link, "down");
        set.next = id + Switch::COUNTERS as u32;
        assert_eq!(set.add_and_tell("", other, "loss=1%"), id + Switch::COUNTERS as u32 + 1);
        assert_eq!(set.add_and_tell("", other, "rate=1M"), id + Switch::COUNTERS as u32 + 2);
        set.heal(None);
        set.next = 7;
        // Numbers go on.
        set.add("", link, "down".parse().unwrap());
        assert_eq!(set.all.first().map(|broken| broken.id), Some(7));
    }
}
