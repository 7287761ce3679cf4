//! When probes leave, which returns are theirs, and which are lost.

use std::collections::VecDeque;

use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};

use crate::{Path, Payload, PayloadError, Plan};

/// How an agent probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Each T0 switch of the host is probed once in this time, in nanoseconds: 100 µs to 10 s. By default 1 ms (MRC paper, section 3).
    pub interval_ns: u64,
    /// Probes in each interval, 2 to 4096: one for each T0 switch, and the others for the paths above, which take turns. By default 64.
    pub probes_per_interval: u32,
    /// A probe that did not return in this time is lost, in nanoseconds: 100 µs to 250 ms. By default 20 ms, which is far longer than full queues
    /// delay a packet.
    pub timeout_ns: u64,
    /// If the agent was called so much later than it asked for, the probes in flight count as neither lost nor returned: their returns may have been
    /// dropped while nothing read them. In nanoseconds, 1 ms to 10 s; by default 10 ms.
    pub stall_ns: u64,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self { interval_ns: 1_000_000, probes_per_interval: 64, timeout_ns: 20_000_000, stall_ns: 10_000_000 }
    }
}

/// An agent cannot probe like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeSettingsError {
    /// A number is out of its range.
    #[error("{setting} = {value}: must be {min} to {max}")]
    Range {
        /// A field of [`ProbeSettings`].
        setting: &'static str,
        /// What was given.
        value: u64,
        /// The least that can be.
        min: u64,
        /// The most.
        max: u64,
    },
    /// There is no time for the paths above the T0 switches.
    #[error(
        "probes_per_interval = {given}: {planes} planes take one each, and the links above need at least one; set it to {} or more",
        planes + 1
    )]
    TooFew {
        /// What was given.
        given: u32,
        /// Planes of the fabric.
        planes: usize,
    },
    /// The records of probes would take too much memory.
    #[error(
        "{0} probes would be in flight, at most {MAX_IN_FLIGHT}: set timeout_ns or probes_per_interval lower, or interval_ns higher"
    )]
    InFlight(u64),
}

/// A probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Number of its path in the [`Plan`], which has the carrier and the plane.
    pub path: usize,
    /// What is in it.
    pub payload: Payload,
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of its path in the [`Plan`].
    pub path: usize,
    /// When it was sent.
    pub sent_ns: u64,
    /// How it ended.
    pub end: ProbeEnd,
}

/// How a probe ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeEnd {
    /// It came back.
    Returned {
        /// After this time; `None` if the agent was not called in between, so that the time says nothing about the network.
        rtt_ns: Option<u64>,
    },
    /// It did not come back in time.
    Lost,
}

/// Why a packet is not the return of a probe in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// It is no probe.
    #[error(transparent)]
    Malformed(#[from] PayloadError),
    /// A probe of another agent, or of an earlier run of this one.
    #[error("a probe of another agent or of an earlier run")]
    Foreign,
    /// Its sequence number is of a probe that was not sent, or so long ago that nothing is known about it.
    #[error("no probe with this sequence number is known")]
    Unknown,
    /// The nonce, the path or the plane where it came in is not that of the probe with this sequence number.
    #[error("it is not the probe that was sent with this sequence number")]
    Forged,
    /// The probe came back before.
    #[error("the probe came back before")]
    Duplicate,
    /// The probe was counted as lost.
    #[error("the probe came back after its timeout")]
    Late,
}

/// What a [`Prober`] has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounters {
    /// Probes handed out.
    pub tx_probes: u64,
    /// Probes that came back in time.
    pub rx_returned: u64,
    /// Probes that did not.
    pub lost: u64,
    /// Probes of which nothing can be said: the agent was not called while they were in flight, or the host's own queue was full.
    pub void: u64,
    /// Probes that were never sent, because the agent was called too late.
    pub skipped: u64,
    /// Packets that are no probes.
    pub rx_malformed: u64,
    /// See [`Refused::Foreign`].
    pub rx_foreign: u64,
    /// See [`Refused::Unknown`].
    pub rx_unknown: u64,
    /// See [`Refused::Forged`].
    pub rx_forged: u64,
    /// See [`Refused::Duplicate`].
    pub rx_duplicate: u64,
    /// See [`Refused::Late`].
    pub rx_late: u64,
}

/// Probes in flight, each of which takes 40 bytes, twice.
const MAX_IN_FLIGHT: u64 = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Returned,
    Lost,
    Void,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    path: usize,
    nonce: u64,
    at_ns: u64,
    state: State,
}

/// Schedules the probes of a [`Plan`], evenly in time, and finds out what became of them.
///
/// Each interval is cut into equal slots, and each slot has one probe: in the first ones of the T0 switches, in the others of the paths
/// above in turn. When each of these has had its turn, the next one's begins: [`upper_interval_ns`](Self::upper_interval_ns).
///
/// If the caller is late by up to two intervals, the probes that are due leave together. If it is later (a paused process), all but the
/// latest are skipped: there is no burst, and what was not sent is not lost. Time that goes backwards is taken for standing still.
///
/// Memory is bounded: one record for each probe of the last `2 × timeout_ns`. So is the work in each call: [`poll`](Self::poll) and
/// [`on_timeout`](Self::on_timeout) hand out one thing each time.
#[derive(Debug)]
pub struct Prober {
    settings: ProbeSettings,
    /// The paths of the plan.
    paths: Vec<Path>,
    /// How many of them turn at T0 switches of the host: the first ones.
    lower: usize,
    /// Slots of an interval.
    slots: u64,
    start_ns: u64,
    now_ns: u64,
    /// The next slot, counted from the start.
    slot: u64,
    /// The upper path whose turn it is.
    turn: usize,
    run: u64,
    rng: ChaCha12Rng,
    /// The latest probes, by sequence number.
    sent: VecDeque<Sent>,
    capacity: usize,
    /// Sequence number of the first one in `sent`.
    first_seq: u64,
    /// All before this one are decided, in the order in which they were sent.
    undecided_seq: u64,
    /// The agent was not called while those before this one were in flight.
    stalled_seq: u64,
    counters: ProbeCounters,
}

impl ProbeSettings {
    /// Checks the settings for a fabric of so many planes.
    ///
    /// # Errors
    /// What is wrong, by name.
    pub fn check(&self, planes: usize) -> Result<(), ProbeSettingsError> {
        let ranges = [
            ("interval_ns", self.interval_ns, 100_000, 10_000_000_000),
            ("probes_per_interval", u64::from(self.probes_per_interval), 2, 4096),
            ("timeout_ns", self.timeout_ns, 100_000, 250_000_000),
            ("stall_ns", self.stall_ns, 1_000_000, 10_000_000_000),
        ];
        for (setting, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(ProbeSettingsError::Range { setting, value, min, max });
            }
        }
        let in_flight = self.in_flight(u64::from(self.probes_per_interval));
        if in_flight > MAX_IN_FLIGHT {
            return Err(ProbeSettingsError::InFlight(in_flight));
        }
        if self.probes_per_interval as usize <= planes {
            return Err(ProbeSettingsError::TooFew { given: self.probes_per_interval, planes });
        }
        Ok(())
    }

    /// The most probes that are in flight if each interval has so many.
    const fn in_flight(&self, each: u64) -> u64 {
        self.timeout_ns.div_ceil(self.interval_ns).saturating_add(1).saturating_mul(each)
    }
}

/// Slots of an interval for so many paths.
const fn slots(settings: &ProbeSettings, paths: usize) -> u64 {
    let most = settings.probes_per_interval as usize;
    let slots = if paths < most { paths } else { most };
    if slots == 0 { 1 } else { slots as u64 }
}

impl Prober {
    /// A prober that starts now. `seed` must be from a cryptographic source: nonces are drawn from it.
    ///
    /// # Errors
    /// If the settings do not fit the plan.
    pub fn new(
        plan: &Plan,
        settings: ProbeSettings,
        seed: [u8; 32],
        now_ns: u64,
    ) -> Result<Self, ProbeSettingsError> {
        let paths: Vec<_> = plan.routes().map(|route| route.path).collect();
        let lower = plan.lower().len();
        settings.check(lower)?;
        let slots = slots(&settings, paths.len());
        let mut rng = ChaCha12Rng::from_seed(seed);
        let run = rng.next_u64();
        // Agents that start together do not send together.
        let phase = rng.next_u64() % settings.interval_ns;
        Ok(Self {
            settings,
            paths,
            lower,
            slots,
            start_ns: now_ns.saturating_add(phase),
            now_ns,
            slot: 0,
            turn: 0,
            run,
            rng,
            sent: VecDeque::new(),
            capacity: 2 * settings.in_flight(slots) as usize,
            first_seq: 0,
            undecided_seq: 0,
            stalled_seq: 0,
            counters: ProbeCounters::default(),
        })
    }

    /// Probes the paths of another plan of the same host from now on. Probes in flight over paths that stay are as before.
    ///
    /// # Errors
    /// If the settings do not fit the plan: nothing has changed.
    pub(crate) fn replan(
        &mut self,
        before: &Plan,
        plan: &Plan,
        now_ns: u64,
    ) -> Result<(), ProbeSettingsError> {
        let lower = plan.lower().len();
        self.settings.check(lower)?;
        self.advance(now_ns);
        let numbers: Vec<_> = before.routes().map(|route| plan.number(route.path)).collect();
        for sent in &mut self.sent {
            let number = numbers.get(sent.path).copied().flatten();
            sent.path = number.unwrap_or(usize::MAX);
            if number.is_none() && sent.state == State::InFlight {
                sent.state = State::Void;
                self.counters.void += 1;
            }
        }
        self.pass_decided();
        // The next slot is when it was due, and the first one of the new intervals.
        self.start_ns = self.slot_ns(self.slot);
        self.slot = 0;
        self.paths = plan.routes().map(|route| route.path).collect();
        self.lower = lower;
        self.slots = slots(&self.settings, self.paths.len());
        // Room for those in flight stays.
        self.capacity = self.capacity.max(2 * self.settings.in_flight(self.slots) as usize);
        self.turn %= (self.paths.len() - lower).max(1);
        Ok(())
    }

    /// How the prober probes.
    pub const fn settings(&self) -> &ProbeSettings {
        &self.settings
    }

    /// What the prober has done.
    pub const fn counters(&self) -> &ProbeCounters {
        &self.counters
    }

    /// The time in which each path above the T0 switches has its turn, in nanoseconds; 0 where there is none.
    pub fn upper_interval_ns(&self) -> u64 {
        let each = self.slots.saturating_sub(self.lower as u64).max(1);
        self.settings.interval_ns.saturating_mul((self.paths.len() - self.lower) as u64) / each
    }

    /// The next probe that is due, if one is. Call it again until there is none.
    pub fn poll(&mut self, now_ns: u64) -> Option<Probe> {
        self.advance(now_ns);
        if self.slot_ns(self.slot) > self.now_ns {
            return None;
        }
        self.skip_missed();
        let number = self.next_path();
        let path = *self.paths.get(number)?;
        let seq = self.next_seq();
        let nonce = self.rng.next_u64();
        self.make_room();
        self.sent.push_back(Sent { path: number, nonce, at_ns: self.now_ns, state: State::InFlight });
        self.counters.tx_probes += 1;
        Some(Probe { path: number, payload: Payload { path, run: self.run, seq, nonce } })
    }

    /// A probe was not sent, since the host's own queue was full. That is no news of the fabric, so nothing is known of the probe. (One that a link
    /// without carrier did not take is lost: say nothing.)
    pub fn on_unsent(&mut self, seq: u64) {
        if let Some(sent) = self.sent_mut(seq).filter(|sent| sent.state == State::InFlight) {
            sent.state = State::Void;
            self.counters.void += 1;
            self.pass_decided();
        }
    }

    /// A packet came in on the port of a plane, at the agent's address; `payload` is that of its UDP datagram. Pass on what has arrived before
    /// you call [`on_timeout`](Self::on_timeout): a probe is in flight until that says that it is lost.
    ///
    /// # Errors
    /// Why it is not the return of a probe in flight. It is counted, and changes nothing else.
    pub fn on_return(&mut self, now_ns: u64, plane: u8, payload: &[u8]) -> Result<Outcome, Refused> {
        self.advance(now_ns);
        let matched = self.take_return(plane, payload);
        let counters = &mut self.counters;
        *match matched {
            Ok(_) => &mut counters.rx_returned,
            Err(Refused::Malformed(_)) => &mut counters.rx_malformed,
            Err(Refused::Foreign) => &mut counters.rx_foreign,
            Err(Refused::Unknown) => &mut counters.rx_unknown,
            Err(Refused::Forged) => &mut counters.rx_forged,
            Err(Refused::Duplicate) => &mut counters.rx_duplicate,
            Err(Refused::Late) => &mut counters.rx_late,
        } += 1;
        self.pass_decided();
        matched
    }

    /// The next probe whose time is over, if there is one. Call it again until there is none.
    pub fn on_timeout(&mut self, now_ns: u64) -> Option<Outcome> {
        self.advance(now_ns);
        loop {
            let (seq, timeout_ns, now_ns) = (self.undecided_seq, self.settings.timeout_ns, self.now_ns);
            let stalled = seq < self.stalled_seq;
            let sent = self.sent_mut(seq).filter(|sent| sent.at_ns.saturating_add(timeout_ns) <= now_ns)?;
            let (path, sent_ns) = (sent.path, sent.at_ns);
            sent.state = if stalled { State::Void } else { State::Lost };
            self.pass_decided();
            if !stalled {
                self.counters.lost += 1;
                return Some(Outcome { path, sent_ns, end: ProbeEnd::Lost });
            }
            self.counters.void += 1;
        }
    }

    /// When to call [`on_timeout`](Self::on_timeout) and [`poll`](Self::poll) next.
    pub fn next_timeout(&self) -> u64 {
        let deadline = |sent: &Sent| sent.at_ns.saturating_add(self.settings.timeout_ns);
        let oldest = self.sent.get((self.undecided_seq - self.first_seq) as usize).map(deadline);
        oldest.unwrap_or(u64::MAX).min(self.slot_ns(self.slot))
    }

    /// Probes of which it is not known yet whether they come back.
    pub fn in_flight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.state == State::InFlight).count()
    }

    fn next_seq(&self) -> u64 {
        self.first_seq + self.sent.len() as u64
    }

    fn sent_mut(&mut self, seq: u64) -> Option<&mut Sent> {
        self.sent.get_mut(seq.checked_sub(self.first_seq)? as usize)
    }

    /// Takes note of the time, and of whether the caller is so late that returns may have been dropped.
    fn advance(&mut self, now_ns: u64) {
        if now_ns >= self.next_timeout().saturating_add(self.settings.stall_ns) {
            self.stalled_seq = self.next_seq();
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// When a slot begins.
    fn slot_ns(&self, slot: u64) -> u64 {
        let after = u128::from(slot) * u128::from(self.settings.interval_ns) / u128::from(self.slots);
        self.start_ns.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// Goes to the slot of now, if more than two intervals were missed.
    fn skip_missed(&mut self) {
        let since = u128::from(self.now_ns.saturating_sub(self.start_ns));
        let current = (since * u128::from(self.slots) / u128::from(self.settings.interval_ns)) as u64;
        let missed = current.saturating_sub(self.slot);
        if missed > 2 * self.slots {
            self.counters.skipped += missed;
            self.slot = current;
        }
    }

    /// The path of the current slot, which is over then.
    fn next_path(&mut self) -> usize {
        let place = (self.slot % self.slots) as usize;
        self.slot += 1;
        if place < self.lower {
            return place;
        }
        let path = self.lower + self.turn;
        self.turn = (self.turn + 1) % (self.paths.len() - self.lower).max(1);
        path
    }

    /// Forgets the oldest probe, if there is no room for another one.
    fn make_room(&mut self) {
        if self.sent.len() < self.capacity {
            return;
        }
        if self.sent.pop_front().is_some_and(|oldest| oldest.state == State::InFlight) {
            self.counters.void += 1;
        }
        self.first_seq += 1;
        self.undecided_seq = self.undecided_seq.max(self.first_seq);
        self.pass_decided();
    }

    /// Moves to the first probe that is in flight.
    fn pass_decided(&mut self) {
        while self.sent_mut(self.undecided_seq).is_some_and(|sent| sent.state != State::InFlight) {
            self.undecided_seq += 1;
        }
    }

    fn take_return(&mut self, plane: u8, payload: &[u8]) -> Result<Outcome, Refused> {
        let payload = Payload::from_bytes(payload)?;
        if payload.run != self.run {
            return Err(Refused::Foreign);
        }
        let (now_ns, stalled) = (self.now_ns, payload.seq < self.stalled_seq);
        let number = self.sent_mut(payload.seq).ok_or(Refused::Unknown)?.path;
        // There is none if the path is no longer in the plan.
        let path = self.paths.get(number).copied().unwrap_or(payload.path);
        let sent = self.sent_mut(payload.seq).ok_or(Refused::Unknown)?;
        if sent.nonce != payload.nonce || path != payload.path || payload.path.plane() != Some(plane) {
            return Err(Refused::Forged);
        }
        match sent.state {
            State::InFlight => sent.state = State::Returned,
            State::Returned => return Err(Refused::Duplicate),
            State::Lost | State::Void => return Err(Refused::Late),
        }
        let rtt_ns = (!stalled).then(|| now_ns.saturating_sub(sent.at_ns));
        Ok(Outcome { path: sent.path, sent_ns: sent.at_ns, end: ProbeEnd::Returned { rtt_ns } })
    }
}
