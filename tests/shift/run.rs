//! Carrying out a plan, and what is demanded of the whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use spindrift::endpoint::EndpointConfig;
use spindrift::fallback::{FallbackError, Nic, PairId, SendState};
use spindrift::time::Time;

use crate::judge::Stream;
use crate::plan::{Act, Death, Plan, Trigger, Weather};
use crate::side::{Side, Store};
use crate::support::accusation::accusation;
use crate::support::link::Outage;
use crate::support::net::{Net, ports};
use crate::support::rand::Rng;

/// What a run came to; equal for equal seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) runs: u64,
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) virtual_ns: u64,
    pub(crate) hash: u64,
    pub(crate) reached: Reached,
}

/// Runs that reached a situation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) switched: u64,
    pub(crate) by_peer: u64,
    pub(crate) both_began: u64,
    pub(crate) repeated: u64,
    pub(crate) spared: u64,
    pub(crate) returned: u64,
    pub(crate) removed: u64,
    pub(crate) died_switching: u64,
    pub(crate) died_returning: u64,
    pub(crate) timed: u64,
    pub(crate) not_repeatable: u64,
    pub(crate) no_spare: u64,
    pub(crate) attempts: u64,
    pub(crate) store: u64,
    pub(crate) peer_gave_up: u64,
    pub(crate) succeeded: u64,
}

impl Reached {
    fn fields(&mut self) -> [(&'static str, &mut u64, u64); 16] {
        [
            ("switched to another pair", &mut self.switched, 300),
            ("switched because the peer did", &mut self.by_peer, 250),
            ("switched on both sides at once", &mut self.both_began, 70),
            ("sent requests again", &mut self.repeated, 70),
            ("left out what had arrived", &mut self.spared, 10),
            ("moved to another NIC without a failure", &mut self.returned, 250),
            ("lost a NIC for good", &mut self.removed, 130),
            ("had a death in the middle of a switch", &mut self.died_switching, 40),
            ("had a death in the middle of a return", &mut self.died_returning, 10),
            ("had a switch whose time was judged", &mut self.timed, 30),
            ("failed: not repeatable", &mut self.not_repeatable, 9),
            ("failed: nothing prepared", &mut self.no_spare, 8),
            ("failed: too many attempts", &mut self.attempts, 5),
            ("failed: the key-value store", &mut self.store, 1),
            ("failed: the peer gave up", &mut self.peer_gave_up, 9),
            ("succeeded", &mut self.succeeded, 900),
        ]
    }
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.packets += other.packets;
        self.messages += other.messages;
        self.virtual_ns += other.virtual_ns;
        self.hash = self.hash.rotate_left(1) ^ other.hash;
        let mut other = other.reached.clone();
        for ((_, sum, _), (_, more, _)) in self.reached.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }

    /// Notices when the plans drift away from what they are to reach, in thousandths of the runs. They lie somewhat below those of 20,000 seeds.
    pub(crate) fn check_shares(&mut self) {
        if self.runs < 4_000 {
            return;
        }
        for (what, count, share) in self.reached.fields() {
            let runs = self.runs;
            assert!(
                1_000 * *count >= share * runs,
                "only {count} of {runs} runs {what}, not {share} in 1,000"
            );
        }
    }
}

/// What happens at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timed(Time, u64, Act);

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct World<'a> {
    plan: &'a Plan,
    net: Net,
    store: Store,
    sides: [Side; 2],
    /// By the side that sends.
    streams: [Stream; 2],
    acts: BinaryHeap<Reverse<Timed>>,
    triggers: Vec<Trigger>,
    numbered: u64,
    /// The states of the sending halves and the pairs in use when they were last looked at, and since when a half switches.
    states: [SendState; 2],
    pairs: [(PairId, PairId); 2],
    since: [Option<Time>; 2],
    /// Both sides had a pair prepared on the other NIC when it began to switch.
    was_prepared: [bool; 2],
    reached: Reached,
}

pub(crate) fn run(plan: &Plan, print: bool) -> Outcome {
    let mut world = World::build(plan, print);
    world.work();
    world.settle();
    world.check();
    world.outcome()
}

fn endpoint_config(plan: &Plan, node: usize) -> EndpointConfig {
    let planes = plan.planes[node % 2];
    let mut config = EndpointConfig::new(ports(plan.v6, node, planes, 4300));
    config.seed = (plan.seed ^ (node as u64) << 32).into();
    config
}

impl<'a> World<'a> {
    fn build(plan: &'a Plan, print: bool) -> Self {
        let mut net = Net::new(plan.seed, plan.links.clone());
        net.trace.print = print;
        net.heal_at = plan.heal_at;
        for node in 0..4 {
            net.add(endpoint_config(plan, node));
        }
        let mut sides = [0, 1].map(|side| Side::new(plan, side, &mut net, [2 * side, 2 * side + 1]));
        let infos = [0, 1].map(|side: usize| {
            let first = sides[side].first;
            net.endpoint(first.node).qp_info(first.qpn).unwrap()
        });
        for (side, peer) in sides.iter_mut().zip([&infos[1], &infos[0]]) {
            side.connect(&mut net, peer);
        }
        let mut rng = Rng::new(plan.seed ^ 0x776f_726b);
        let streams = [0, 1].map(|from: usize| {
            let work = plan.sides[from].work;
            let source = sides[from].memory(&mut net, work.source_len(), &mut rng);
            let mirror = sides[from].memory(&mut net, source.region.len(), &mut rng);
            let target = sides[1 - from].memory(&mut net, work.target_len(), &mut rng);
            let results = sides[from].memory(&mut net, work.results_len(), &mut rng);
            let memory = [source, mirror, target, results];
            Stream::new(&plan.sides[from], &sides[from], plan.mtu, memory, rng.fork())
        });
        let mut world = Self {
            plan,
            net,
            store: Store::default(),
            sides,
            streams,
            acts: BinaryHeap::new(),
            triggers: plan.triggers.clone(),
            numbered: 0,
            states: [SendState::Default; 2],
            pairs: [(PairId::FIRST, PairId::FIRST); 2],
            since: [None; 2],
            was_prepared: [false; 2],
            reached: Reached::default(),
        };
        for (at, act) in &plan.acts {
            world.schedule(*at, *act);
        }
        world
    }

    fn schedule(&mut self, at: Time, act: Act) {
        self.numbered += 1;
        self.acts.push(Reverse(Timed(at, self.numbered, act)));
    }

    /// In a replay, prints what has happened.
    fn note(&self, what: &impl core::fmt::Debug) {
        if self.net.trace.print {
            println!("{} {what:?}", self.net.now);
        }
    }

    /// Lets the next thing happen.
    fn step(&mut self) {
        let act_at = self.acts.peek().map_or(Time::NEVER, |Reverse(act)| act.0);
        let of_sides = self.sides.iter().map(|side| side.round_at.min(side.poll_at));
        let due = of_sides.chain(self.streams.iter().map(Stream::due)).chain([act_at]).min();
        let due = due.unwrap_or(Time::NEVER);
        if due <= self.net.next_at() {
            self.net.now = self.net.now.max(due);
            self.do_due();
        } else {
            assert!(self.net.step(), "{}", self.net.why_stopped());
        }
        for side in &mut self.sides {
            side.notice(&self.net);
            if side.poll_at <= self.net.now {
                side.poll(&mut self.net, &mut self.store);
                side.notice(&self.net);
            }
        }
        self.judge();
    }

    fn do_due(&mut self) {
        let now = self.net.now;
        while let Some(Reverse(act)) = self.acts.peek().copied().filter(|Reverse(act)| act.0 <= now) {
            self.acts.pop();
            self.act(act.2);
        }
        for side in &mut self.sides {
            if side.round_at <= now {
                side.round(&mut self.net, &mut self.store);
            }
        }
        for from in 0..2 {
            if self.streams[from].due() <= now {
                let [one, other] = &mut self.sides;
                let (from_side, to_side) = if from == 0 { (one, other) } else { (other, one) };
                self.streams[from].act(&mut self.net, &mut self.store, from_side, to_side);
            }
        }
    }

    fn act(&mut self, act: Act) {
        self.note(&act);
        match act {
            Act::Die(nic, death, for_ns) => self.die(nic, death, for_ns),
            Act::LinksUp(side, nic) => self.set_links(side, nic, true),
            Act::Prefer(side, nic) => self.sides[side].machine.prefer(nic),
            Act::Store(side, up) => self.store.down[side] = !up,
        }
    }

    fn die(&mut self, nic: Nic, death: Death, for_ns: u64) {
        for state in self.sides.iter().map(|side| side.machine.send_state()) {
            self.reached.died_switching |= u64::from(state == SendState::Switching);
            let returning = matches!(state, SendState::WaitSignaled | SendState::WaitDrained);
            self.reached.died_returning |= u64::from(returning);
        }
        let until = self.net.now.after(for_ns);
        match death {
            Death::Silent(sender) => {
                for side in (0..2).filter(|side| sender.is_none_or(|sender| sender == *side)) {
                    self.silence(side, nic, until);
                }
            }
            Death::Links(side) => {
                self.set_links(side, nic, false);
                self.schedule(until, Act::LinksUp(side, nic));
            }
            Death::Removed(side) => {
                self.reached.removed = 1;
                self.silence(side, nic, Time::NEVER);
                self.silence(1 - side, nic, Time::NEVER);
                self.sides[side].lose(&mut self.net, &mut self.store, nic);
            }
        }
    }

    /// What this side's NIC sends is lost.
    fn silence(&mut self, side: usize, nic: Nic, to: Time) {
        let (from, sender) = (self.net.now, Some(self.sides[side].nics.nodes[nic as usize]));
        for plane in 0..self.plan.planes[nic as usize] {
            self.net.outages.push(Outage { from, to, plane, sender, paths: 0 });
        }
    }

    fn set_links(&mut self, number: usize, nic: Nic, up: bool) {
        let side = &mut self.sides[number];
        if side.nics.gone[nic as usize] {
            return;
        }
        for plane in 0..self.plan.planes[nic as usize] {
            self.net.schedule_link(self.net.now, side.nics.nodes[nic as usize], plane, up);
        }
        side.nics.down[nic as usize] = !up;
        if up {
            side.machine.on_link_up(nic);
        } else if self.plan.config.leave_on_link_down && !side.nics.down[nic.other() as usize] {
            side.with(&mut self.net, &mut self.store, |machine, hands| machine.on_link_down(hands, nic));
        }
    }

    /// Gives completions to the streams that they are of, and looks at the states.
    fn judge(&mut self) {
        for number in 0..2 {
            for wc in core::mem::take(&mut self.sides[number].done) {
                assert_eq!(wc.qpn, self.sides[number].first.qpn, "{wc:?}");
                if wc.opcode.is_receive() {
                    self.streams[1 - number].writer.ledger.on_receive_completion(&wc).unwrap();
                } else {
                    self.streams[number].on_sent(self.net.now, &wc);
                }
            }
            if let Some(error) = self.sides[number].machine.failure().copied()
                && self.sides[number].machine.send_state() == SendState::Failed
                && !self.streams[number].failed
            {
                self.streams[number].failed = true;
                self.on_failure(number, error);
            }
            self.look(number);
        }
    }

    fn on_failure(&mut self, number: usize, error: FallbackError) {
        let plan = self.plan;
        let rough = plan.weather == Weather::Rough;
        let kinds = plan.sides[number].work.kinds;
        let fetches = kinds.reads + kinds.atomics + plan.sides[number].once > 0;
        let store = plan.has(|act| matches!(act, Act::Store(..)));
        let (count, documented) = match error {
            FallbackError::NotRepeatable { .. } => (&mut self.reached.not_repeatable, fetches),
            FallbackError::NoSpare { .. } => (&mut self.reached.no_spare, true),
            FallbackError::AttemptsExhausted { .. } => (&mut self.reached.attempts, true),
            FallbackError::StoreUnreachable | FallbackError::UnknownRemoteKey => {
                (&mut self.reached.store, store)
            }
            FallbackError::PeerGaveUp => (&mut self.reached.peer_gave_up, true),
            _ => (&mut self.reached.store, false),
        };
        assert!(rough && documented, "side {number} failed at {}: {error}", self.net.now);
        *count = 1;
        self.streams[number].sender_failed();
        self.streams[1 - number].receiver_failed();
    }

    /// The state of a sending half, and how long a switch takes.
    fn look(&mut self, number: usize) {
        let now = self.net.now;
        let machine = &self.sides[number].machine;
        let (state, pairs) = (machine.send_state(), machine.pairs_in_use());
        if pairs != self.pairs[number] {
            self.note(&format_args!("side {number}: sends {}, receives {}", pairs.0, pairs.1));
            self.pairs[number] = pairs;
        }
        if state == self.states[number] {
            return;
        }
        self.note(&format_args!("side {number}: {state}, {:?}", self.sides[number].machine.counters()));
        let due: Vec<_> = self
            .triggers
            .iter_mut()
            .filter(|trigger| (trigger.side, trigger.state) == (number, state))
            .filter_map(|trigger| {
                trigger.nth = trigger.nth.checked_sub(1)?;
                (trigger.nth == 0).then_some((now.after(trigger.after_ns), trigger.act))
            })
            .collect();
        for (at, act) in due {
            self.schedule(at, act);
        }
        if state == SendState::Switching {
            self.since[number] = Some(now);
            // Whichever NIC has failed, unless both halves of both sides use the same.
            let in_use = self.sides.each_ref().map(|side| side.machine.pairs_in_use());
            let is_used = |nic| in_use.iter().all(|(tx, rx)| (tx.nic, rx.nic) == (nic, nic));
            let prepared = |nic| is_used(nic) || self.sides.iter().all(|side| side.machine.has_spare(nic));
            self.was_prepared[number] = Nic::ALL.into_iter().all(prepared);
        } else if let Some(since) = self.since[number].take() {
            self.judge_time(number, now.since(since));
        }
        if state == SendState::WaitDrained {
            // Its notice of the return crosses a report of the peer, and uses the pair that the peer's switch takes. The two then
            // agree on another pair, on a NIC that may have failed.
            self.was_prepared[1 - number] = false;
        }
        self.states[number] = state;
    }

    /// Where nothing is lost, a switch takes a round trip: this side's report arrives, and the peer's comes back.
    fn judge_time(&mut self, number: usize, took_ns: u64) {
        let plan = self.plan;
        if plan.weather != Weather::Fair || !self.was_prepared[number] {
            return;
        }
        self.reached.timed = 1;
        let polls: u64 = plan.sides.iter().map(|side| side.poll_ns).sum();
        let bound = plan.rtt_ns() + 2 * polls + 1_000;
        assert!(took_ns <= bound, "the switch of side {number} took {took_ns} ns, and not {bound} ns");
    }

    /// Posts and steps until every stream is done.
    fn work(&mut self) {
        let plan = self.plan;
        let most = 40 * (plan.heal_at.0 + plan.config.prepare_timeout_ns + plan.config.hold_max_ns)
            + 100 * plan.retry_ns();
        while !self.streams.iter().all(Stream::finished) {
            let left = || self.streams.each_ref().map(|stream| stream.writer.ledger.tally);
            assert!(self.net.now < Time(most), "work is left: {:?}, {:?}", self.states, left());
            self.step();
        }
    }

    /// Faults end, packets under way arrive, and both sides return to the NICs that they prefer.
    fn settle(&mut self) {
        let plan = self.plan;
        let last = self.acts.iter().map(|Reverse(act)| act.0).max().unwrap_or(Time::ZERO);
        let healed = last.max(plan.heal_at).max(self.net.now);
        let silent = self.net.outages.iter().map(|outage| outage.to).filter(|to| *to != Time::NEVER).max();
        let healed = healed.max(silent.unwrap_or(Time::ZERO));
        let returns =
            2 * plan.config.hold_max_ns + 4 * plan.config.probe_ns + 4 * plan.config.prepare_timeout_ns;
        let end = healed.after(returns + 10 * (plan.retry_ns() + plan.interval_ns + plan.round_ns()));
        while self.net.now < end && !(self.net.now > healed && self.is_settled()) {
            self.step();
        }
        assert!(self.is_settled(), "it does not return by {end}: {:?}", self.states);
    }

    /// Whether each side has failed, or uses the NIC that it prefers and works on both sides.
    fn is_settled(&self) -> bool {
        let failed = self.streams.iter().any(|stream| stream.failed);
        let gone = |nic: Nic| self.sides.iter().any(|side| side.nics.gone[nic as usize]);
        failed
            || self.sides.iter().all(|side| {
                let state = side.machine.send_state();
                let nic = side.machine.pairs_in_use().0.nic;
                let steady = matches!(state, SendState::Default | SendState::Fallback);
                steady && (nic == side.machine.preferred() || gone(side.machine.preferred()))
            })
    }

    fn check(&mut self) {
        for stream in &mut self.streams {
            stream.writer.check_end().unwrap();
            stream.writer.ledger.check_source().unwrap();
        }
        for side in &self.sides {
            if side.machine.send_state() != SendState::Failed && !self.streams.iter().any(|one| one.failed) {
                assert_eq!(side.machine.sends_outstanding(), 0);
            }
        }
        for node in &self.net.nodes {
            let counters = node.endpoint.counters();
            // Receives are posted late, and an update may come when its queue pair is gone.
            let except = ["rx_not_ready", "rx_foreign_port_status"];
            assert_eq!(accusation(counters, &except), None, "an honest peer was accused: {counters:#?}");
        }
    }

    fn outcome(mut self) -> Outcome {
        let reached = &mut self.reached;
        let counters = self.sides.each_ref().map(|side| side.machine.counters());
        reached.switched = counters.iter().any(|one| one.switches > 0).into();
        reached.by_peer = counters.iter().any(|one| one.switches_by_peer > 0).into();
        reached.both_began = counters.iter().all(|one| one.switches > 0).into();
        reached.repeated = counters.iter().any(|one| one.repeated > 0).into();
        reached.spared = counters.iter().any(|one| one.spared > 0).into();
        reached.returned = counters.iter().any(|one| one.moves > 0).into();
        reached.succeeded = u64::from(!self.streams.iter().any(|stream| stream.failed));
        Outcome {
            runs: 1,
            packets: self.net.trace.packets,
            messages: self.streams.iter().map(|stream| stream.writer.ledger.tally.posted).sum(),
            virtual_ns: self.net.now.0,
            hash: self.net.trace.hash().into(),
            reached: self.reached,
        }
    }
}
