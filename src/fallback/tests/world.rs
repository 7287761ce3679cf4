//! Two machines over a model of two NICs on each side: reliable connections that deliver, acknowledge and fail one step at
//! a time.

use std::collections::BTreeMap;

use super::nics::{End, NO_KEY, Nics, key};
use crate::endpoint::QpCap;
use crate::fallback::machine::{Pair, Use};
use crate::fallback::{
    Cause, EXTRA_RECEIVES, EXTRA_SENDS, FallbackConfig, FallbackError, Machine, Nic, PairId, SendState,
};
use crate::time::Time;
use crate::wire::Qpn;
use crate::work::{GatherWr, RemoteAddr, ScatterWr, SendOp, Sge, Wc, WcOpcode, WcStatus};

/// The application's `wr_id` of its first send and receive.
const SEND: u64 = 1000;
const RECEIVE: u64 = 2000;

/// What an application posts: each with a number of its own, in order from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Write,
    UnsignaledWrite,
    Send,
    Atomic,
    Read,
}

impl Op {
    fn is_message(self) -> bool {
        self == Self::Send
    }
}

/// One side: its application, machine and NICs.
#[derive(Clone, Debug, Hash)]
pub(super) struct Side {
    pub(super) machine: Machine,
    pub(super) nics: Nics,
    script: &'static [Op],
    /// Requests posted.
    posted: usize,
    /// Requests of this side that the peer has executed, and how often.
    executed: Vec<u8>,
    /// Completions of send work requests that the application has seen: number, and success.
    pub(super) done: Vec<(u64, bool)>,
    /// The peer's messages that the application has received.
    pub(super) got: Vec<u32>,
    /// The receives of this side that were flushed.
    flushed: usize,
    receives: usize,
}

impl Side {
    fn new(script: &'static [Op], receives: usize, config: &FallbackConfig) -> Self {
        let cap = QpCap {
            max_send_wr: script.len().max(1) as u32,
            max_recv_wr: receives.max(1) as u32,
            ..QpCap::default()
        };
        let mut nics = Nics {
            ends: BTreeMap::new(),
            next: [1, 0],
            max_send: (cap.max_send_wr + EXTRA_SENDS) as usize,
            max_recv: (cap.max_recv_wr + EXTRA_RECEIVES) as usize,
            store_down: false,
            keys_pending: false,
        };
        nics.ends.insert(PairId::FIRST, End { connected: true, ..End::default() });
        let mut machine = Machine::new(config.clone(), cap, Qpn::new(1));
        machine.connected(Qpn::new(2));
        for number in 0..receives as u64 {
            machine.post_recv(&mut nics, ScatterWr { wr_id: RECEIVE + number, local: &[] }).expect("room");
        }
        Self {
            machine,
            nics,
            script,
            posted: 0,
            executed: vec![0; script.len()],
            done: Vec::new(),
            got: Vec::new(),
            flushed: 0,
            receives,
        }
    }

    fn post(&mut self) {
        let number = self.posted as u64;
        let script_op = self.script[self.posted];
        let op = match script_op {
            Op::Write | Op::UnsignaledWrite => SendOp::Write,
            Op::Send => SendOp::SendWithImm(number as u32),
            Op::Atomic => SendOp::FetchAdd(1),
            Op::Read => SendOp::Read,
        };
        let wr = GatherWr {
            wr_id: SEND + number,
            op,
            local: &[Sge { addr: 0, len: 8, lkey: number as u32 * 2 }],
            remote: RemoteAddr {
                addr: number,
                rkey: if script_op == Op::Send { NO_KEY } else { key(number, Nic::Default) },
            },
            signaled: script_op != Op::UnsignaledWrite,
            fence: false,
        };
        self.posted += 1;
        self.machine.post_gather(&mut self.nics, wr, false).expect("room");
        self.collect(None);
    }

    /// Takes the application's completions, and checks their order.
    fn collect(&mut self, direct: Option<Wc>) {
        // A completion that is returned comes after all that are queued.
        assert!(direct.is_none() || self.machine.next_wc().is_none(), "a completion overtakes another");
        for wc in direct.into_iter().chain(std::iter::from_fn(|| self.machine.next_wc())).collect::<Vec<_>>()
        {
            assert_eq!(wc.qpn, Qpn::new(1));
            let success = wc.status.is_success();
            if !wc.opcode.is_receive() {
                let number = wc.wr_id - SEND;
                assert!(
                    self.done.last().is_none_or(|last| last.0 < number && (last.1 || !success)),
                    "{wc:?}"
                );
                self.done.push((number, success));
            } else if success {
                assert_eq!(wc.wr_id - RECEIVE, self.got.len() as u64, "receives complete in order");
                assert_eq!(wc.src_qpn, Qpn::new(2));
                assert_eq!(self.flushed, 0);
                self.got.push(wc.imm.expect("an immediate"));
            } else {
                self.flushed += 1;
            }
        }
    }

    /// Whether the whole script has completed.
    fn sends_done(&self) -> bool {
        let last_signaled = self.script.iter().rposition(|op| *op != Op::UnsignaledWrite);
        match last_signaled {
            _ if self.posted < self.script.len() => false,
            None => self.executed.iter().all(|times| *times > 0),
            Some(last) => self.done.last().is_some_and(|done| done.0 >= last as u64),
        }
    }

    /// Whether everything has completed.
    pub(super) fn all_done(&self) -> bool {
        self.sends_done() && self.got.len() + self.flushed == self.receives
    }
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// The application posts its next request.
    Post(usize),
    /// The oldest request that was not executed yet arrives at the peer.
    Execute(usize, PairId),
    /// The acknowledgement of the oldest request arrives.
    Ack(usize, PairId),
    /// Retransmissions are exhausted.
    GiveUp(usize, PairId),
    /// The driver passes a completion on.
    Poll(usize, PairId),
    /// The driver makes a pair.
    Create(usize, Nic),
    /// The driver learns the attributes of the peer's pair.
    Connect(usize, PairId),
    /// The driver learns that the peer has connected its pair too.
    Prepared(usize, PairId),
    /// The driver learns that the peer has a newer pair.
    Stale(usize, PairId),
    /// The driver learns that the peer has given up a pair.
    Ended(usize, PairId),
    Tick(usize),
    /// A wait for a pair takes too long.
    Expire(usize),
    Down(Nic),
    Up(Nic),
    /// A NIC of one side is removed from the machine.
    Remove(usize, Nic),
}

/// The limits of a search.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Limits {
    /// Links that go down, and then may come up again.
    pub(super) downs: u8,
    pub(super) ups: u8,
    /// NICs that are removed.
    pub(super) removals: u8,
    /// Pairs on a NIC.
    pub(super) pairs: u32,
    /// Pairs are made and connected as soon as they can be. Else that may take any time.
    pub(super) prompt: bool,
}

/// Both sides, and the links between their NICs.
#[derive(Clone, Debug, Hash)]
pub(super) struct World {
    pub(super) sides: [Side; 2],
    down: [bool; 2],
    removed: [[bool; 2]; 2],
    left: Limits,
    /// The application polls only what is returned at once, and the rest later.
    pub(super) patient: bool,
}

impl World {
    /// Each side posts its script, and has receives for the messages of the other one.
    pub(super) fn new(scripts: [&'static [Op]; 2], config: &FallbackConfig, limits: Limits) -> Self {
        let messages = |script: &[Op]| script.iter().filter(|op| op.is_message()).count();
        let side = |at: usize| Side::new(scripts[at], messages(scripts[1 - at]), config);
        Self {
            sides: [side(0), side(1)],
            down: [false; 2],
            removed: [[false; 2]; 2],
            left: limits,
            patient: false,
        }
    }

    fn works(&self, nic: Nic) -> bool {
        !self.down[nic as usize] && !self.removed[0][nic as usize] && !self.removed[1][nic as usize]
    }

    /// All steps that are possible now.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = self.preparations();
        for at in 0..2 {
            let side = &self.sides[at];
            if side.posted < side.script.len() {
                steps.push(Step::Post(at));
            }
            for (&id, end) in &side.nics.ends {
                let there = self.sides[1 - at].nics.ends.get(&id);
                let reaches =
                    self.works(id.nic) && there.is_some_and(|there| there.connected && !there.error);
                if !end.completions.is_empty() {
                    steps.push(Step::Poll(at, id));
                }
                if let Some(first) = end.sends.front().filter(|_| end.connected) {
                    if reaches && let Some(next) = end.sends.iter().find(|out| !out.executed) {
                        let ready = there.is_some_and(|there| !there.receives.is_empty());
                        if ready || !next.op.takes_receive() {
                            steps.push(Step::Execute(at, id));
                        }
                    }
                    if self.works(id.nic) && first.executed {
                        steps.push(Step::Ack(at, id));
                    }
                    // The peer may still become ready if it has not connected yet.
                    let hopeless = there.is_none_or(|there| there.error);
                    if !self.works(id.nic) || hopeless && !first.executed {
                        steps.push(Step::GiveUp(at, id));
                    }
                }
            }
            steps.extend(self.endings(at));
            if side.machine.next_timeout() <= Time::ZERO {
                steps.push(Step::Tick(at));
            }
        }
        for nic in Nic::ALL {
            match self.down[nic as usize] {
                false if self.left.downs > 0 => steps.push(Step::Down(nic)),
                true if self.left.ups > 0 => steps.push(Step::Up(nic)),
                _ => {}
            }
            for at in 0..2 {
                if self.left.removals > 0 && !self.removed[at][nic as usize] {
                    steps.push(Step::Remove(at, nic));
                }
            }
        }
        steps
    }

    /// What the drivers do to have pairs prepared.
    fn preparations(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for at in 0..2 {
            let side = &self.sides[at];
            for (&id, end) in &side.nics.ends {
                let there = self.sides[1 - at].nics.ends.contains_key(&id);
                if !end.connected && !end.error && there {
                    steps.push(Step::Connect(at, id));
                }
                let both =
                    end.connected && self.sides[1 - at].nics.ends.get(&id).is_some_and(|end| end.connected);
                let is_created = |pair: &&Pair| pair.id == id && pair.used == Use::Created;
                if both && side.machine.pairs.iter().any(|pair| is_created(&pair)) {
                    steps.push(Step::Prepared(at, id));
                }
                let newer = self.sides[1 - at].nics.next[id.nic as usize] > id.generation + 1;
                // The peer makes a newer pair also because it uses this one, and this side may not know that yet.
                let gone = !there || !self.left.prompt;
                if gone && newer && !end.error && self.sides[at].machine.is_unused(id) {
                    steps.push(Step::Stale(at, id));
                }
            }
            for nic in Nic::ALL {
                let making = |(id, end): (&PairId, &End)| id.nic == nic && !end.connected && !end.error;
                if side.machine.wants(nic)
                    && self.generation(at, nic) < self.left.pairs
                    && !self.removed[at][nic as usize]
                    && !side.nics.ends.iter().any(making)
                {
                    steps.push(Step::Create(at, nic));
                }
            }
        }
        steps
    }

    /// Pairs that the peer has given up and this side has not. It learns that sooner or later.
    fn endings(&self, at: usize) -> impl Iterator<Item = Step> + '_ {
        let peer = &self.sides[1 - at];
        let ended = move |pair: &&Pair| {
            let nic = pair.id.nic;
            let made = pair.id.generation < peer.nics.next[nic as usize];
            let alive = peer.machine.alive(nic).any(|generation| generation == pair.id.generation);
            pair.used != Use::Ending && !pair.probing && made && !alive
        };
        self.sides[at].machine.pairs.iter().filter(ended).map(move |pair| Step::Ended(at, pair.id))
    }

    /// Time that passes when nothing else happens.
    pub(super) fn expiries(&self) -> impl Iterator<Item = Step> {
        let waits = |at: &usize| (Time(1)..Time::NEVER).contains(&self.sides[*at].machine.next_timeout());
        (0..2).filter(waits).map(Step::Expire)
    }

    /// The generation of the pair that `at` makes next: that of the peer's newest pair, if this side lacks it.
    fn generation(&self, at: usize, nic: Nic) -> u32 {
        let (own, peer) =
            (self.sides[at].nics.next[nic as usize], self.sides[1 - at].nics.next[nic as usize]);
        if peer > own { peer - 1 } else { own }
    }

    pub(super) fn take(&mut self, step: Step) {
        self.take_one(step);
        while self.left.prompt
            && let Some(step) = self.preparations().first()
        {
            self.take_one(*step);
        }
    }

    fn take_one(&mut self, step: Step) {
        match step {
            Step::Post(at) => self.sides[at].post(),
            Step::Execute(at, id) => self.execute(at, id),
            Step::Ack(at, id) => self.acknowledge(at, id),
            Step::GiveUp(at, id) => self.give_up(at, id),
            Step::Poll(at, id) => {
                // Those of a failed end are taken at once: only its own side notices them.
                loop {
                    let end = self.end(at, id);
                    let wc = end.completions.pop_front().expect("a completion");
                    self.drive(at, |machine, nics| machine.on_wc(nics, id, wc));
                    let end = self.sides[at].nics.ends.get(&id);
                    if end.is_none_or(|end| !end.error || end.completions.is_empty()) {
                        break;
                    }
                }
            }
            Step::Create(at, nic) => {
                let id = PairId { nic, generation: self.generation(at, nic) };
                self.sides[at].nics.next[nic as usize] = id.generation + 1;
                self.sides[at].nics.ends.insert(id, End::default());
                self.drive(at, |machine, nics| {
                    machine.created(nics, id);
                    None
                });
            }
            Step::Connect(at, id) => self.end(at, id).connected = true,
            Step::Ended(at, id) => self.drive(at, |machine, nics| {
                let alive: Vec<_> = machine.alive(id.nic).filter(|other| *other != id.generation).collect();
                machine.on_peer_pairs(nics, id.nic, id.generation, &alive);
                None
            }),
            Step::Prepared(at, id) => {
                self.drive(at, |machine, nics| {
                    machine.prepared(nics, id);
                    None
                });
            }
            Step::Stale(at, id) => self.drive(at, |machine, nics| {
                machine.on_stale(nics, id);
                None
            }),
            Step::Tick(at) => self.tick(at, Time::ZERO),
            Step::Expire(at) => {
                let until = self.sides[at].machine.next_timeout();
                self.tick(at, until);
            }
            Step::Down(nic) => {
                self.down[nic as usize] = true;
                self.left.downs -= 1;
            }
            Step::Up(nic) => {
                self.down[nic as usize] = false;
                self.left.ups -= 1;
            }
            Step::Remove(at, nic) => self.remove(at, nic),
        }
    }

    fn acknowledge(&mut self, at: usize, id: PairId) {
        let end = self.end(at, id);
        let out = end.sends.pop_front().expect("a request");
        if out.signaled {
            let (wr_id, opcode) = (out.wr_id, out.op.wc_opcode());
            end.completions.push_back(Wc { wr_id, opcode, byte_len: 8, ..Wc::default() });
        }
    }

    fn give_up(&mut self, at: usize, id: PairId) {
        let end = self.end(at, id);
        let out = end.sends.pop_front().expect("a request");
        let (wr_id, status, opcode) = (out.wr_id, WcStatus::RetryExceeded, out.op.wc_opcode());
        end.completions.push_back(Wc { wr_id, status, opcode, ..Wc::default() });
        end.cause = Some(Cause::Network);
        end.flush();
    }

    fn remove(&mut self, at: usize, nic: Nic) {
        self.left.removals -= 1;
        self.removed[at][nic as usize] = true;
        let ids: Vec<_> = self.sides[at].nics.ends.keys().copied().filter(|id| id.nic == nic).collect();
        for id in ids {
            let end = self.end(at, id);
            (end.error, end.gone) = (true, true);
            end.sends.clear();
            end.receives.clear();
            // A completion that was queued can still be had: its request may be complete at the peer too.
            while let Some(wc) =
                self.sides[at].nics.ends.get_mut(&id).and_then(|end| end.completions.pop_front())
            {
                self.drive(at, |machine, nics| machine.on_wc(nics, id, wc));
            }
            self.drive(at, |machine, nics| {
                machine.on_lost(nics, id);
                None
            });
        }
    }

    /// The pair in use on side `at` fails, as if something had been sent on it.
    pub(super) fn lose_first_of(&mut self, at: usize) {
        let (tx, _) = self.sides[at].machine.pairs_in_use();
        let end = self.end(at, tx);
        end.cause = Some(Cause::Network);
        end.completions.push_back(Wc { wr_id: 1 << 63, status: WcStatus::RetryExceeded, ..Wc::default() });
        end.flush();
    }

    /// Side `at` learns that the links of a NIC are down.
    pub(super) fn lose_links(&mut self, at: usize, nic: Nic) {
        self.drive(at, |machine, nics| {
            machine.on_link_down(nics, nic);
            None
        });
    }

    /// The applications poll everything.
    pub(super) fn collect(&mut self) {
        self.patient = false;
        (0..2).for_each(|at| self.drive(at, |_, _| None));
    }

    pub(super) fn tick(&mut self, at: usize, now: Time) {
        self.drive(at, |machine, nics| {
            machine.on_time(nics, now);
            None
        });
    }

    fn end(&mut self, at: usize, id: PairId) -> &mut End {
        self.sides[at].nics.ends.get_mut(&id).expect("a pair that exists")
    }

    fn drive(&mut self, at: usize, act: impl FnOnce(&mut Machine, &mut Nics) -> Option<Wc>) {
        let side = &mut self.sides[at];
        let direct = act(&mut side.machine, &mut side.nics);
        let before = side.got.len();
        if !self.patient || direct.is_some() {
            side.collect(direct);
        }
        for nth in before..self.sides[at].got.len() {
            self.check_received(at, nth);
        }
    }

    /// The application has the `nth` message: it is the right one, and all requests before it have been executed.
    fn check_received(&self, at: usize, nth: usize) {
        let (side, peer) = (&self.sides[at], &self.sides[1 - at]);
        let messages: Vec<_> = (0..peer.posted).filter(|number| peer.script[*number].is_message()).collect();
        let number = *messages.get(nth).expect("a message that was sent");
        assert_eq!(side.got[nth] as usize, number, "messages arrive in order, each once");
        let before = peer.executed.iter().take(number).zip(peer.script);
        assert!(
            before.clone().all(|(times, op)| *times > 0 || *op == Op::Read),
            "a message overtakes a write"
        );
    }

    fn execute(&mut self, at: usize, id: PairId) {
        let end = self.end(at, id);
        let out = end.sends.iter_mut().find(|out| !out.executed).expect("a request");
        out.executed = true;
        let (own, op, number) = (out.wr_id >> 63 != 0, out.op, out.number as usize);
        if !own {
            let script_op = self.sides[at].script[number];
            let times = &mut self.sides[at].executed[number];
            // Counts from there on do not matter, and would make more states.
            *times = (*times + 1).min(2);
            assert!(script_op != Op::Atomic || *times == 1, "an atomic operation is executed twice");
            let later = |got: &u32| *got as usize > number;
            assert!(
                !self.sides[1 - at].got.iter().any(later),
                "{number} overwrites what the peer has consumed"
            );
        }
        if op.takes_receive() {
            let there = self.end(1 - at, id);
            let wr_id = there.receives.pop_front().expect("a receive");
            let opcode = WcOpcode::Recv;
            there.completions.push_back(Wc { wr_id, opcode, imm: op.imm(), ..Wc::default() });
        }
    }

    /// Whether all applications have everything, and nothing is on its way that would change that.
    pub(super) fn is_settled(&self) -> bool {
        self.sides.iter().all(Side::all_done)
            && self.sides.iter().all(|side| side.nics.ends.values().all(|end| end.completions.is_empty()))
    }

    /// What must hold when nothing can happen any more.
    pub(super) fn check_end(&self) {
        for at in 0..2 {
            let (side, peer) = (&self.sides[at], &self.sides[1 - at]);
            assert!(side.all_done(), "side {at} is stuck: {:?}", side.machine);
            for (number, success) in &side.done {
                let number = *number as usize;
                let arrived = side.executed[number] > 0;
                assert!(
                    !success || arrived,
                    "request {number} of side {at} has succeeded and was not executed"
                );
                let message = side.script[number].is_message();
                let got = peer.got.contains(&(number as u32));
                assert!(
                    !success || !message || got,
                    "message {number} of side {at} has succeeded and did not arrive"
                );
            }
            if side.machine.failure().is_none() {
                assert!(side.done.iter().all(|done| done.1));
            }
            if matches!(side.machine.send_state(), SendState::Default | SendState::Fallback) {
                let in_use = side.machine.pairs_in_use();
                assert!(side.nics.ends.contains_key(&in_use.0) && side.nics.ends.contains_key(&in_use.1));
            }
        }
    }

    pub(super) fn failures(&self) -> [Option<FallbackError>; 2] {
        [0, 1].map(|at| self.sides[at].machine.failure().copied())
    }
}

impl World {
    /// Counters tell how a state was reached, and do not change what follows.
    pub(super) fn forget_counters(&mut self) {
        for side in &mut self.sides {
            side.machine.counters = crate::fallback::Counters::default();
        }
    }
}
