//! Carrying out a case.

mod demands;

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use spindrift::counters::Counters;
use spindrift::endpoint::{DenyList, DenyRule, Event, FailReason};
use spindrift::path::{PlaneRole, PlaneSet, RoleStatus};
use spindrift::time::Time;
use spindrift::wire::Qpn;
use spindrift_srv6::Node;

use super::case::{Case, EndPlan, FlowPlan};
use super::episode::{EpisodeKind, When};
use super::host::Host;
use super::ledger::{Check, Receive, demand};
use super::rand::Rng;
use super::writer::{Work, Writer};
use crate::clos::Clos;
use crate::fault::Fault;
use crate::impair::Impairment;
use crate::link::LinkId;
use crate::net::{HostId, Net, PacketEvent, SimEvent};
use crate::packet::Packet;

/// What a run came to; equal for equal cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Runs.
    pub runs: u64,
    /// Packets that hosts sent.
    pub packets: u64,
    /// Packets that came to the end of a link.
    pub hops: u64,
    /// Messages complete.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// READs and atomic operations carried out.
    pub fetches: u64,
    /// Packets that found no receive work request.
    pub not_ready: u64,
    /// Packets that were lost in any way.
    pub lost: u64,
    /// Packets trimmed.
    pub trimmed: u64,
    /// Packets sent again.
    pub retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Queue pairs that gave up, as they may.
    pub gave_up: u64,
    /// Times that a queue pair left the NIC that it prefers.
    pub failovers: u64,
    /// Failovers that only silence caused.
    pub silent_failovers: u64,
    /// Times that a queue pair returned to it.
    pub failbacks: u64,
    /// Of data packets that came to a host, those that had come before; without those that a link doubled.
    pub needless: u64,
    /// Simulated time, ns.
    pub virtual_ns: u64,
    /// The longest time from when the network had healed until all was done, ns.
    pub slowest_ns: u64,
}

impl Outcome {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        let Self {
            runs,
            packets,
            hops,
            messages,
            bytes,
            fetches,
            not_ready,
            lost,
            trimmed,
            retransmits,
            timeouts,
            gave_up,
            failovers,
            silent_failovers,
            failbacks,
            needless,
            virtual_ns,
            slowest_ns,
        } = self;
        *runs += other.runs;
        *packets += other.packets;
        *hops += other.hops;
        *messages += other.messages;
        *bytes += other.bytes;
        *fetches += other.fetches;
        *not_ready += other.not_ready;
        *lost += other.lost;
        *trimmed += other.trimmed;
        *retransmits += other.retransmits;
        *timeouts += other.timeouts;
        *gave_up += other.gave_up;
        *failovers += other.failovers;
        *silent_failovers += other.silent_failovers;
        *failbacks += other.failbacks;
        *needless += other.needless;
        *virtual_ns += other.virtual_ns;
        *slowest_ns = other.slowest_ns.max(*slowest_ns);
    }
}

/// What did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {at}: {what}")]
pub struct Failure {
    /// When it was noticed.
    pub at: Time,
    /// What it is.
    pub what: String,
}

/// Called with what happens to each packet on the link between two nodes.
pub type Watch = Box<dyn FnMut(Time, (Node, Node), PacketEvent, &Packet)>;

/// Carries out a case, which `watch` may look at.
///
/// # Errors
/// The first thing that did not hold; a panic is one.
pub fn run(case: &Case, watch: Option<Watch>) -> Result<Outcome, Failure> {
    let mut now = Time::ZERO;
    let run = || {
        let mut world = World::build(case)?;
        if let Some(watch) = watch {
            world.watch(watch);
        }
        let result = world.run();
        now = world.net.now();
        result
    };
    // What it has changed is dropped.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a message")))
    });
    result.map_err(|what| Failure { at: now, what })
}

/// Something that is due at a time.
#[derive(Clone, Copy, Debug)]
enum Due {
    Connect(usize),
    /// The next messages of a way.
    Post(usize),
    /// Receive work requests for them.
    Receive(usize),
    /// An episode comes for the first time.
    Begin(usize),
    /// What is wrong begins or ends, once.
    Turn {
        episode: usize,
        begins: bool,
    },
    Heal,
}

/// One end of a queue pair, and what it writes to the other.
struct Transfer {
    from: (HostId, Qpn),
    to: (HostId, Qpn),
    flow: u32,
    plan: EndPlan,
    writer: Writer,
    /// It posts again when something has retired.
    waits: bool,
    /// Receive work requests that are posted late, by so much at most, in order.
    late_ns: u64,
    receives: VecDeque<Receive>,
}

struct World<'a> {
    case: &'a Case,
    clos: Clos,
    net: Net<Host>,
    rng: Rng,
    transfers: Vec<Transfer>,
    due: Vec<Due>,
    connected: usize,
    /// Messages complete, and episodes that wait for more to be.
    done: u64,
    waiting: Vec<(u64, usize)>,
    healed: bool,
    heal_at: Time,
}

/// How long a run may go on after the network has healed, ns: timers have grown to the length of an outage by then, and
/// the slowest fabric still has to carry all of it.
const PATIENCE_NS: u64 = 20_000_000_000;
/// Packets at the ends of links after which a run is taken for one that never ends.
const MOST_HOPS: u64 = 20_000_000;

fn told(error: impl fmt::Display) -> String {
    error.to_string()
}

impl<'a> World<'a> {
    fn build(case: &'a Case) -> Check<Self> {
        let host = |fabric: &_, number| Host::new(case, fabric, number);
        let (clos, net) = Clos::build(case.fabric, case.seed, host).map_err(told)?;
        let mut world = Self {
            case,
            clos,
            net,
            rng: Rng::new(case.seed ^ 0x776f_726b),
            transfers: Vec::new(),
            due: Vec::new(),
            connected: 0,
            done: 0,
            waiting: Vec::new(),
            healed: false,
            heal_at: case.heal_at,
        };
        for (number, flow) in case.flows.iter().enumerate() {
            world.set(flow.starts_at, Due::Connect(number));
        }
        for (number, episode) in case.episodes.iter().enumerate() {
            match episode.begins {
                When::At(at) => world.set(at, Due::Begin(number)),
                When::Done(count) => world.waiting.push((count, number)),
            }
        }
        world.set(case.heal_at, Due::Heal);
        Ok(world)
    }

    fn watch(&mut self, mut watch: Watch) {
        let mut ends: Vec<(LinkId, (Node, Node))> =
            self.clos.links().map(|(ends, link)| (link, ends)).collect();
        ends.sort_unstable();
        self.net.set_tap(Some(Box::new(move |now, link, sight, packet| {
            // Links are numbered from 0, and all of them are there.
            if let Some(&(_, ends)) = ends.get(link.0 as usize) {
                watch(now, ends, sight, packet);
            }
        })));
    }

    fn set(&mut self, at: Time, due: Due) {
        self.net.set_alarm(at, self.due.len() as u32);
        self.due.push(due);
    }

    fn run(&mut self) -> Check<Outcome> {
        while !self.is_done() {
            self.step(self.heal_at + PATIENCE_NS)?
                .then_some(())
                .ok_or_else(|| format!("work is left: {}", self.left()))?;
        }
        let done_at = self.net.now();
        // What is told together is heard one by one.
        while self.step(done_at)? {}
        self.check_done()?;
        let (took_ns, most_ns) = (done_at.since(self.heal_at), self.case.recovery_ns(self.bytes()));
        demand!(
            took_ns <= most_ns,
            "all was done {took_ns} ns after the network had healed; {most_ns} ns is the most"
        );
        self.fall_quiet()?;
        self.check_quiet()?;
        Ok(self.outcome(done_at))
    }

    fn is_done(&self) -> bool {
        self.connected == self.case.flows.len()
            && self.transfers.iter().all(|transfer| transfer.writer.finished())
    }

    fn name(&self, host: HostId) -> String {
        self.clos.fabric().name(Node::Host(host.0 as u16))
    }

    /// What is left to do, for whoever has to find out why.
    fn left(&self) -> String {
        let mut text = format!("{} of {} flows connected", self.connected, self.case.flows.len());
        for transfer in self.transfers.iter().filter(|transfer| !transfer.writer.finished()) {
            let status = self.net.transport(transfer.from.0).nic.endpoint.qp_status(transfer.from.1);
            text += &format!("; flow {} from {}: ", transfer.flow, self.name(transfer.from.0));
            text += &format!(
                "{:?} of {} posted, {status:?}",
                transfer.writer.ledger.tally, transfer.plan.messages
            );
        }
        text
    }

    /// Goes on until the next thing that somebody has to hear of; `false` if there is none before `until`.
    fn step(&mut self, until: Time) -> Check<bool> {
        demand!(self.net.counters().hops < MOST_HOPS, "packets without end: {:?}", self.net.counters());
        let happened = self.net.run(until);
        for host in self.net.hosts() {
            self.net.transport(host).audit.verdict()?;
        }
        match happened {
            None => return Ok(false),
            Some(SimEvent::Transport { host, event }) => self.on_transport_event(host, event)?,
            Some(SimEvent::Alarm(number)) => match self.due.get(number as usize).copied() {
                None => return Err(format!("nobody has set alarm {number}")),
                Some(Due::Connect(flow)) => self.connect(flow)?,
                Some(Due::Post(transfer)) => self.post(transfer)?,
                Some(Due::Receive(transfer)) => self.receive(transfer)?,
                Some(Due::Begin(episode)) => self.begin(episode)?,
                Some(Due::Turn { episode, begins }) => self.turn(episode, begins)?,
                Some(Due::Heal) => self.heal()?,
            },
        }
        Ok(true)
    }

    fn connect(&mut self, number: usize) -> Check {
        let case = self.case;
        let flow = case.flows.get(number).ok_or("the flow is one of the case")?;
        let hosts = flow.hosts.map(|host| HostId(host.into()));
        let rng = &mut self.rng;
        let fabric = self.clos.fabric();
        let transfers = self.net.with_pair((hosts[0], hosts[1]), |a, b, now| {
            let transfers = connect(case, flow, [a, b], now, rng)?;
            for (host, transfer) in [(a, &transfers[0]), (b, &transfers[1])] {
                let (from, to) = (transfer.from.0.0 as u16, transfer.to.0.0 as u16);
                let addresses = (0..case.fabric.planes).filter_map(|plane| fabric.address(to, plane));
                let fetches = transfer.plan.extended().max_dest_rd_atomic;
                host.audit.connect(transfer.from.1, (transfer.to.1, addresses), case.timers(from), fetches);
            }
            Ok::<_, String>(transfers)
        });
        let transfers = transfers.ok_or_else(|| format!("host {hosts:?} are two"))??;
        self.connected += 1;
        for transfer in transfers {
            let pause = self.rng.below(transfer.plan.pause_ns);
            let at = self.transfers.len();
            self.transfers.push(transfer);
            self.set(self.net.now() + pause, Due::Post(at));
        }
        Ok(())
    }

    /// Posts a few messages, and says when the next ones come.
    fn post(&mut self, at: usize) -> Check {
        let Some(transfer) = self.transfers.get_mut(at) else { return Ok(()) };
        let burst = transfer.writer.rng.range(1, transfer.plan.burst);
        let pause = 1 + transfer.writer.rng.below(transfer.plan.pause_ns);
        let mut postings = Vec::new();
        transfer.waits = false;
        for _ in 0..burst {
            if transfer.writer.all_posted() {
                break;
            }
            let Some(posting) = transfer.writer.next() else {
                transfer.waits = true;
                break;
            };
            postings.push(posting);
        }
        let (from, to, again) =
            (transfer.from, transfer.to, !transfer.waits && !transfer.writer.all_posted());
        let (ledger, late) = (&mut transfer.writer.ledger, &mut transfer.receives);
        let late_ns = transfer.late_ns;
        let (had_late, draw) = (!late.is_empty(), transfer.writer.rng.bits());
        let posted = self.net.with_pair((from.0, to.0), |sender, receiver, now| {
            for posting in postings {
                match &posting.receive {
                    Some(receive) if late_ns > 0 => late.push_back(receive.clone()),
                    Some(receive) => {
                        ledger.post_recv(receive.wr_id);
                        receive.post(&mut receiver.nic.endpoint, to.1).map_err(told)?;
                    }
                    None => {}
                }
                posting.post(now, from.1, &mut sender.nic.endpoint).map_err(told)?;
            }
            Ok(())
        });
        let has_late = !late.is_empty();
        if has_late && !had_late {
            self.set(self.net.now() + Rng::new(draw).below(late_ns), Due::Receive(at));
        }
        if again {
            self.set(self.net.now() + pause, Due::Post(at));
        }
        posted.unwrap_or(Ok(()))
    }

    /// Posts a few receive work requests that are late.
    fn receive(&mut self, at: usize) -> Check {
        let Some(transfer) = self.transfers.get_mut(at) else { return Ok(()) };
        let mut rng = transfer.writer.rng.fork();
        let (to, late_ns) = (transfer.to, transfer.late_ns);
        for _ in 0..rng.range(1, 8) {
            let Some(receive) = transfer.receives.pop_front() else { return Ok(()) };
            if !transfer.writer.ledger.receiver_failed {
                transfer.writer.ledger.post_recv(receive.wr_id);
                self.net
                    .with_transport(to.0, |host, _| receive.post(&mut host.nic.endpoint, to.1))
                    .map_err(told)?;
            }
        }
        if !transfer.receives.is_empty() {
            self.set(self.net.now() + 1 + rng.below(late_ns), Due::Receive(at));
        }
        Ok(())
    }

    fn transfer(&mut self, is: impl Fn(&Transfer) -> bool) -> Check<usize> {
        self.transfers.iter().position(is).ok_or_else(|| "an event of a queue pair that exists".to_owned())
    }

    fn on_transport_event(&mut self, host: HostId, event: Event) -> Check {
        match event {
            Event::Completion { wc, .. } => {
                let end = (host, wc.qpn);
                let sent = !wc.opcode.is_receive();
                let at =
                    self.transfer(|transfer| if sent { transfer.from == end } else { transfer.to == end })?;
                let ledger = &mut self.transfers[at].writer.ledger;
                if sent { ledger.on_send_completion(&wc) } else { ledger.on_receive_completion(&wc) }
            }
            Event::SendRetired { qpn, count } => self.retired((host, qpn), count),
            Event::QpFailed { qpn, reason } => {
                let may = self.case.may_fail && reason == FailReason::RetryExceeded;
                let name = self.name(host);
                demand!(may, "the queue pair {:#x} of {name} failed: {reason:?}", qpn.get());
                let (sends, receives) = (
                    self.transfer(|transfer| transfer.from == (host, qpn))?,
                    self.transfer(|transfer| transfer.to == (host, qpn))?,
                );
                self.transfers[sends].writer.ledger.failed = true;
                self.transfers[receives].writer.ledger.receiver_failed = true;
                Ok(())
            }
            Event::PlanesSwitched { .. } if self.case.roles.is_some() => Ok(()),
            other => Err(format!("nobody asked for it: {other:?}")),
        }
    }

    fn retired(&mut self, end: (HostId, Qpn), count: u32) -> Check {
        let at = self.transfer(|transfer| transfer.from == end)?;
        let now = self.net.now();
        let transfer = &mut self.transfers[at];
        transfer.writer.ledger.on_retired(count)?;
        if transfer.writer.ledger.outstanding() == 0 {
            self.net.with_transport(end.0, |host, _| host.audit.has_retired(end.1));
        }
        if core::mem::take(&mut transfer.waits) {
            let pause = transfer.writer.rng.below(transfer.plan.pause_ns);
            self.set(now + pause, Due::Post(at));
        }
        self.done += u64::from(count);
        let done = self.done;
        let due: Vec<_> = self.waiting.extract_if(.., |(count, _)| *count <= done).collect();
        due.into_iter().try_for_each(|(_, episode)| self.begin(episode))
    }

    /// An episode comes, for the first time, and so do its other times.
    fn begin(&mut self, number: usize) -> Check {
        self.check_memory()?;
        let now = self.net.now();
        let episode = self.case.episodes.get(number).ok_or("the episode is one of the case")?;
        for time in 0..u64::from(episode.times) {
            let begins = now + 2 * time * episode.lasts_ns;
            self.set(begins, Due::Turn { episode: number, begins: true });
            self.set(begins + episode.lasts_ns, Due::Turn { episode: number, begins: false });
        }
        Ok(())
    }

    /// What is wrong begins or ends, unless all has been mended.
    fn turn(&mut self, number: usize, begins: bool) -> Check {
        let episode = self.case.episodes.get(number).ok_or("the episode is one of the case")?;
        if self.healed {
            return Ok(());
        }
        let mut faults = episode.kind.faults(begins, episode.lasts_ns);
        match episode.kind {
            EpisodeKind::Slow { from, to, .. } if !begins => {
                let rate_bps = self.clos.rate_bps(from, to).ok_or("the link is there")?;
                faults.push(Fault::Rate { from, to, rate_bps });
            }
            EpisodeKind::DeadEvs { flow, end, one_in } => faults = self.dead_evs(begins, flow, end, one_in),
            EpisodeKind::Move { flow, end } => self.move_to_nic(begins, flow, end),
            EpisodeKind::Deny { host, planes, value, mask } => {
                self.avoid(HostId(host.into()), begins.then_some((planes, value, mask)))?;
            }
            _ => {}
        }
        for fault in faults {
            demand!(self.clos.apply(&mut self.net, &fault), "the fabric has no such part: {fault:?}");
        }
        Ok(())
    }

    /// Packets with some of a queue pair's entropy values are lost as they leave their host, or no longer.
    fn dead_evs(&self, begins: bool, flow: u32, end: u8, one_in: u32) -> Vec<Fault> {
        let of_flow = self.transfers.iter().filter(|transfer| transfer.flow == flow);
        let Some(transfer) = of_flow.clone().nth(usize::from(end)) else { return Vec::new() };
        let host = Node::Host(transfer.from.0.0 as u16);
        let states = self.net.transport(transfer.from.0).nic.endpoint.ev_states(transfer.from.1);
        let evs = states.into_iter().flatten().step_by(one_in as usize).map(|state| state.ev.0);
        let impairment = if begins {
            Impairment { loss: 1.0, evs: evs.collect(), ..Impairment::default() }
        } else {
            Impairment::default()
        };
        let fault = |to| Fault::Impair { from: host, to, impairment: impairment.clone() };
        self.clos.neighbours(host).map(fault).collect()
    }

    /// An operator moves a queue pair to the NIC that stands by, or back.
    fn move_to_nic(&mut self, standby: bool, flow: u32, end: u8) {
        let of_flow = self.transfers.iter().filter(|transfer| transfer.flow == flow);
        if let Some((host, qpn)) = of_flow.map(|transfer| transfer.from).nth(usize::from(end)) {
            let role = if standby { PlaneRole::Standby } else { PlaneRole::Primary };
            self.net.with_transport(host, |host, _| host.nic.endpoint.prefer_role(qpn, role));
        }
    }

    /// The queue pairs of a host avoid planes and entropy values, or none.
    fn avoid(&mut self, host: HostId, what: Option<(u32, u32, u32)>) -> Check {
        let rules = what.into_iter().flat_map(|(planes, value, mask)| {
            let planes = PlaneSet(planes).iter().map(|plane| DenyRule::Plane { plane }).collect::<Vec<_>>();
            planes.into_iter().chain([DenyRule::Ev { value, mask, plane: None }])
        });
        let list = DenyList::new(&rules.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
        self.net.with_transport(host, |host, _| {
            let endpoint = &mut host.nic.endpoint;
            endpoint.set_deny_list(Arc::new(list));
            let qpns: Vec<_> = endpoint.qpns().collect();
            for qpn in qpns {
                endpoint.follow_deny_list(qpn);
            }
        });
        Ok(())
    }

    /// Deny lists that are not followed since too few paths are left are looked at again and again.
    fn lift_lists(&mut self) -> Check {
        self.net.hosts().collect::<Vec<_>>().into_iter().try_for_each(|host| self.avoid(host, None))
    }

    fn heal(&mut self) -> Check {
        self.healed = true;
        self.clos.heal(&mut self.net);
        self.check_memory()
    }

    fn gave_up(&self) -> u64 {
        self.transfers.iter().filter(|transfer| transfer.writer.ledger.failed).count() as u64
    }

    fn sum(&self, value: fn(&Counters) -> u64) -> u64 {
        self.net.hosts().map(|host| value(self.net.transport(host).nic.endpoint.counters())).sum()
    }

    fn bytes(&self) -> u64 {
        let tallies = self.transfers.iter().map(|transfer| transfer.writer.ledger.tally);
        tallies.map(|tally| tally.bytes + tally.fetched).sum()
    }

    /// A count of all queue pairs whose planes have roles.
    fn sum_roles(&self, of: impl Fn(&RoleStatus) -> u64) -> u64 {
        let ends = self.transfers.iter().map(|transfer| transfer.from);
        let status = ends.filter_map(|(host, qpn)| self.net.transport(host).nic.endpoint.role_status(qpn));
        status.map(|status| of(&status)).sum()
    }

    fn outcome(&self, done_at: Time) -> Outcome {
        let net = self.net.counters();
        let links = self.net.links().map(|link| self.net.link(link).queue.trimmed);
        let tallies = || self.transfers.iter().map(|transfer| transfer.writer.ledger.tally);
        Outcome {
            runs: 1,
            packets: net.sent,
            hops: net.hops,
            messages: tallies().map(|tally| tally.retired).sum(),
            bytes: self.bytes(),
            fetches: self.sum(|counters| counters.rx_reads + counters.rx_atomics),
            not_ready: self.sum(|counters| counters.rx_not_ready),
            lost: net.lost + net.dropped + net.corrupted + net.overrun + net.unroutable,
            trimmed: links.sum(),
            retransmits: self.sum(|counters| counters.tx_retransmits),
            timeouts: self.sum(|counters| counters.timeouts),
            gave_up: self.gave_up(),
            failovers: self.sum_roles(|status| status.failovers),
            silent_failovers: self.sum_roles(|status| status.silent_failovers),
            failbacks: self.sum_roles(|status| status.failbacks),
            needless: self
                .sum(|counters| counters.rx_duplicates + counters.rx_old)
                .saturating_sub(net.duplicated),
            virtual_ns: done_at.max(self.heal_at).0,
            slowest_ns: done_at.since(self.heal_at),
        }
    }
}

/// Makes a queue pair at each of two hosts, with what they write to each other, and connects them.
fn connect(
    case: &Case,
    flow: &FlowPlan,
    [a, b]: [&mut Host; 2],
    now: Time,
    rng: &mut Rng,
) -> Check<[Transfer; 2]> {
    let qpn = |host: &mut Host, end: usize| {
        let init = host.qp_init(case, &flow.ends[end], flow.number);
        host.nic.endpoint.create_qp(init).map_err(told)
    };
    let qpns = [qpn(a, 0)?, qpn(b, 1)?];
    let info = |host: &Host, qpn| host.nic.endpoint.qp_info(qpn).ok_or("the queue pair is there");
    let infos = [info(a, qpns[0])?, info(b, qpns[1])?];
    a.nic.bring_up(now, [&infos[0], &infos[1]], case.retry).map_err(told)?;
    b.nic.bring_up(now, [&infos[1], &infos[0]], case.retry).map_err(told)?;
    let mtu = infos[0].mtu.min(infos[1].mtu);
    let mut transfer = |from: usize, sender: &mut Host, receiver: &mut Host| -> Check<Transfer> {
        let plan = flow.ends[from].clone();
        let work = work(&plan);
        let source = sender.memory(work.source_len(), rng)?;
        let mirror = sender.memory(work.source_len(), rng)?;
        let target = receiver.memory(work.target_len(), rng)?;
        // Drawn apart, so that what else a seed stands for does not depend on it.
        let results = sender.memory(work.results_len(), &mut Rng::new(!plan.seed))?;
        let memory = [source, mirror, target, results];
        let writer = Writer::new(work, qpns[from], mtu, memory, Rng::new(plan.seed))?;
        let end = |at: usize| (HostId(flow.hosts[at].into()), qpns[at]);
        Ok(Transfer {
            from: end(from),
            to: end(1 - from),
            flow: flow.number,
            late_ns: plan.extended().late_ns,
            plan,
            writer,
            waits: false,
            receives: VecDeque::new(),
        })
    };
    Ok([transfer(0, a, b)?, transfer(1, b, a)?])
}

fn work(plan: &EndPlan) -> Work {
    let &EndPlan { messages, largest, signaled, immediates, depth, sig_all, .. } = plan;
    Work { messages, largest, long: 0, signaled, immediates, depth, sig_all, kinds: plan.extended().kinds }
}
