//! Ping-pong: each side replies to the other's message. Half of a round trip is the latency. READs and atomic operations are
//! round trips of their own, to which the transport of the other side responds.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use spindrift::verbs::{PostError, RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc};

use super::contents::Contents;
use super::endpoint_setup::{Far, Side, has_arrived};
use super::layout::Layout;
use super::mix::Mix;
use super::operation::Operation;
use super::pin::{Idle, cpu_time};
use super::preemption::Preemption;
use super::report::explain;
use super::transport::{Cq, Qp};

/// Rounds before those that count.
pub(crate) const WARM_UP: u64 = 100;
/// Time between two looks at whether to go on.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Polls between two looks at the clock: a power of two.
const CLOCK_POLLS: u32 = 64;
/// Receives kept posted: more than messages are ever in flight.
const RECEIVES: u32 = 4;
/// Longest latency that the histogram tells apart, ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// One poll more. Sleep is as long as those until the next look at the clock.
const fn after(polls: u32, has_slept: bool) -> u32 {
    let polls = if has_slept { polls | (CLOCK_POLLS - 1) } else { polls };
    polls.wrapping_add(1)
}

/// Asked about every 100 ms, with the number of the round; an error ends the game.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// What the leader measured.
#[derive(Clone, Debug)]
pub(crate) struct Led {
    /// Halves of the round trips, or whole ones if the other side's transport responds, ns.
    pub(crate) histogram: Histogram<u64>,
    pub(crate) elapsed: Duration,
    /// Time for which this process's threads had cores.
    pub(crate) cpu: Duration,
    /// Longest time that the leader's thread was not run.
    pub(crate) longest_pause: Duration,
}

/// What both sides know of a game.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Game {
    pub(crate) layout: Layout,
    pub(crate) rounds: u64,
    pub(crate) seed: u64,
}

impl Game {
    /// All rounds, the warm-up's among them.
    pub(crate) const fn all(&self) -> u64 {
        WARM_UP + self.rounds
    }
}

/// One side of the game, on its first queue pair and only lane.
///
/// A SEND takes a receive at the other side. A write of one packet is seen by its last byte in memory, as perftest does. The packets of a larger one
/// arrive in any order, so it carries an immediate, which says that all of it is there.
pub(crate) struct Player<'a> {
    side: &'a mut Side,
    /// All rounds of the game.
    all: u64,
    contents: Contents,
    local: Sge,
    remote: RemoteAddr,
    operation: Operation,
    /// Receives posted.
    expected: u64,
    /// Messages of the other side that have completed one, or round trips that are complete.
    arrived: u64,
    idle: Idle,
    /// Start of what is measured.
    start: Instant,
    cpu_before: Duration,
    pauses: Preemption,
    /// When it was last asked whether to go on.
    asked: Instant,
    /// Since a wait began.
    polls: u32,
}

impl<'a> Player<'a> {
    /// Gets ready; the peer may send once this has returned.
    pub(crate) fn new(side: &'a mut Side, game: Game, far: &Far, mtu: u32, idle: Idle) -> Result<Self> {
        let Game { layout, seed, .. } = game;
        let size = layout.size;
        let operation = match side.work.operations.only().context("a ping-pong has one operation")? {
            Operation::Write if size > mtu => Operation::WriteImm,
            operation => operation,
        };
        // Always the first slot's memory: the number of a round decides on the operation alone.
        let contents = Contents { layout, operations: Mix::One(operation), seed };
        let first = contents.request(0, 0);
        let local = if operation.is_fetch() { &side.target } else { &side.source };
        let local = local.sge(first.local, first.len)?;
        let remote =
            far.named(operation).at(first.remote as u64, first.len.into()).context("the peer's memory")?;
        side.target.region().store(size as usize - 1, 0)?;
        let start = Instant::now();
        let mut player = Self {
            side,
            all: game.all(),
            contents,
            local,
            remote,
            operation,
            expected: 0,
            arrived: 0,
            idle,
            start,
            cpu_before: cpu_time(),
            pauses: Preemption::default(),
            asked: start,
            polls: 0,
        };
        if operation.takes_receive() {
            (0..RECEIVES).try_for_each(|_| player.expect_one())?;
        }
        Ok(player)
    }

    /// Posts a receive, if there is one more message to come: the next size has others.
    fn expect_one(&mut self) -> Result<()> {
        if self.expected == self.all {
            return Ok(());
        }
        let local = if self.operation.fills_receive() {
            self.side.target.sge(0, self.local.len)?
        } else {
            Sge::EMPTY
        };
        let wr = RecvWr { wr_id: self.expected, local };
        match (&self.side.srq, self.side.qps.first_mut()) {
            (Some(srq), _) => srq.post_recv(wr)?,
            (None, Some(qp)) => qp.post_recv(wr)?,
            (None, None) => bail!("no queue pair"),
        }
        self.expected += 1;
        Ok(())
    }

    /// Where the last byte of a message is.
    const fn last(&self) -> usize {
        self.local.len as usize - 1
    }

    /// What the last byte of a round's message is; never 0, which the target starts with.
    fn marker(round: u64) -> u8 {
        (round % 255) as u8 + 1
    }

    /// Sends this round's message.
    pub(crate) fn send(&mut self, round: u64, go_on: GoOn<'_>) -> Result<()> {
        let op = self.contents.request(0, round).op;
        match op {
            SendOp::Read => {
                let stale = !self.side.source.region().load(self.last())?;
                self.side.target.region().store(self.last(), stale)?;
            }
            _ if self.operation.is_atomic() => {}
            _ => self.side.source.region().store(self.last(), Self::marker(round))?,
        }
        let wr =
            SendWr { wr_id: round, op, local: self.local, remote: self.remote, signaled: true, fence: false };
        loop {
            let Some(qp) = self.side.qps.first_mut() else { bail!("no queue pair") };
            match qp.post_send(wr) {
                Ok(()) => return Ok(()),
                // Acknowledgements of earlier rounds are still to come.
                Err(PostError::QueueFull { .. }) => {
                    let has_slept = self.poll()?;
                    self.look(round, has_slept, go_on)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One turn of the lane, within the game: the next one, or a message, follows at once. Returns whether it has slept after it.
    fn poll(&mut self) -> Result<bool> {
        let work = self.side.nics.poll_busy();
        self.see(work)
    }

    /// Takes completions after a turn that found so much work. Returns whether it has slept after it.
    fn see(&mut self, work: usize) -> Result<bool> {
        while let Some(wc) = self.side.cqs.first_mut().map(Cq::poll_one).transpose()?.flatten() {
            self.complete(&wc)?;
        }
        self.idle.after_turn(work, &self.side.nics, 0)
    }

    /// One turn of the lane that nothing is expected of: it only answers the peer.
    pub(crate) fn turn(&self) {
        self.side.nics.poll();
        std::thread::yield_now();
    }

    fn complete(&mut self, wc: &Wc) -> Result<()> {
        if !wc.status.is_success() {
            let failure = self.side.qps.first().and_then(Qp::failure);
            let why = explain(wc.status, failure, &self.side.retry, has_arrived(&self.side.nics));
            bail!("queue pair {:#08x}: round {} failed: {why}", wc.qpn.get(), wc.wr_id);
        }
        let (size, due) = (self.local.len, self.arrived);
        if wc.opcode.is_receive() {
            let imm = self.operation.has_imm().then_some(due as u32);
            if wc.byte_len != size || wc.imm != imm {
                let (bytes, found) = (wc.byte_len, wc.imm);
                bail!(
                    "round {due}: a message of {bytes} bytes with immediate {found:?} came, not {size} with {imm:?}"
                );
            }
            self.arrived += 1;
            self.expect_one()?;
        } else if self.operation.is_fetch() {
            self.arrived += 1;
        }
        Ok(())
    }

    /// Waits for the peer's message of this round.
    pub(crate) fn wait(&mut self, round: u64, go_on: GoOn<'_>) -> Result<()> {
        // A short wait does without the clock.
        self.polls = 0;
        loop {
            let has_slept = self.poll()?;
            let there = if self.operation.takes_receive() || self.operation.is_fetch() {
                self.arrived > round
            } else {
                self.side.target.region().load(self.last())? == Self::marker(round)
            };
            if there {
                return Ok(());
            }
            self.look(round, has_slept, go_on)?;
        }
    }

    /// Looks at the clock every few polls, and asks whether to go on when it is time.
    fn look(&mut self, round: u64, has_slept: bool, go_on: GoOn<'_>) -> Result<()> {
        self.polls = after(self.polls, has_slept);
        if !self.polls.is_multiple_of(CLOCK_POLLS) {
            return Ok(());
        }
        let now = Instant::now();
        self.pauses.look(now.saturating_duration_since(self.start));
        self.ask(now, round, go_on)
    }

    fn ask(&mut self, now: Instant, round: u64, go_on: GoOn<'_>) -> Result<()> {
        if now.saturating_duration_since(self.asked) < LOOK_INTERVAL {
            return Ok(());
        }
        self.asked = now;
        go_on(round)
    }

    /// Looks at the clock at the start of a round, and asks whether to go on when it is time. What was before the first round that
    /// counts is the warm-up's and forgotten with its pauses.
    fn begin(&mut self, round: u64, go_on: GoOn<'_>) -> Result<Instant> {
        let mut now = Instant::now();
        if now.saturating_duration_since(self.asked) >= LOOK_INTERVAL {
            self.ask(now, round, go_on)?;
            now = Instant::now();
        }
        if round == WARM_UP {
            (self.start, self.cpu_before, self.pauses) = (now, cpu_time(), Preemption::default());
        }
        self.pauses.look(now.saturating_duration_since(self.start));
        Ok(now)
    }

    /// Compares what the wait for a round has left in memory.
    fn compare(&self, round: u64) -> Result<()> {
        let Side { source, target, .. } = &*self.side;
        let is_right = match self.operation {
            // Seen by its last byte.
            Operation::Write => true,
            Operation::Read => target.region().load(self.last())? == source.region().load(self.last())?,
            operation if operation.is_atomic() => {
                let found = target.region().load_u64(self.contents.layout.cell(0, 0))?;
                found == self.contents.counter(0, round)
            }
            _ => target.region().load(self.last())? == Self::marker(round),
        };
        if !is_right {
            bail!("round {round}: memory does not hold what the {} had to leave there", self.operation);
        }
        Ok(())
    }

    /// Compares all bytes of the last READ.
    fn compare_last(&self) -> Result<()> {
        let Side { source, target, .. } = &*self.side;
        let pattern = |at: usize, out: &mut [u8]| Ok(source.read_at(at, out)?);
        if self.operation == Operation::Read
            && !self.contents.layout.holds(target.region(), &pattern, (0, 0))?
        {
            bail!("memory does not hold what the last READ had to leave there");
        }
        Ok(())
    }

    /// Sends first and measures half of each round trip, or each whole one.
    pub(crate) fn lead(&mut self, go_on: GoOn<'_>) -> Result<Led> {
        let parts = if self.operation.is_fetch() { 1 } else { 2 };
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
        for round in 0..self.all {
            let start = self.begin(round, go_on)?;
            self.send(round, go_on)?;
            self.wait(round, go_on)?;
            let part_ns = start.elapsed().as_nanos() as u64 / parts;
            if round >= WARM_UP {
                histogram.saturating_record(part_ns.max(1));
            }
            self.compare(round)?;
        }
        self.compare_last()?;
        let elapsed = self.start.elapsed();
        self.pauses.look(elapsed);
        let cpu = cpu_time().saturating_sub(self.cpu_before);
        Ok(Led { histogram, elapsed, cpu, longest_pause: self.pauses.longest() })
    }

    /// Answers so many rounds. Returns the longest time that this thread was not run.
    pub(crate) fn follow(&mut self, go_on: GoOn<'_>) -> Result<Duration> {
        for round in 0..self.all {
            self.wait(round, go_on)?;
            self.compare(round)?;
            self.send(round, go_on)?;
            // Behind the answer: nobody waits for this look at the clock.
            self.begin(round, go_on)?;
        }
        Ok(self.pauses.longest())
    }

    /// Polls until everything sent has been acknowledged.
    pub(crate) fn drain(&mut self, go_on: GoOn<'_>) -> Result<()> {
        while self.side.qps.first().is_some_and(|qp| qp.sends_outstanding() > 0) {
            let work = self.side.nics.poll();
            let has_slept = self.see(work)?;
            self.look(u64::MAX, has_slept, go_on)?;
        }
        Ok(())
    }
}
