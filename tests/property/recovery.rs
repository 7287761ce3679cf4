//! Recovery, judged from the packets alone: how fast a loss is repaired, that a dead path is left, that a repeat takes
//! another path, and that nothing is sent twice where nothing was lost.

use std::collections::{BTreeMap, VecDeque};

use spindrift::time::Time;

use crate::plan::{NodePlan, Plan, Weather};
use crate::support::net::Hop;
use crate::support::pair::Patience;

/// Losses of first transmissions on a dead path, far enough apart that each could be noticed before the next, until the path
/// is left; one more for every answer that was lost meanwhile, because it may have been the one to tell. Decision 7 of
/// `docs/protocol.md`: a loss that the order or time rule finds moves the entropy value to `ASSUMED_BAD` at once. One that only a tail probe reveals makes it suspect, and the second such loss moves it.
/// The third allows for one whose packet the retransmission timer swept up with others, without a culprit. The last path of a plane
/// stays until its third loss in a row (decision 34).
const LOSSES_ON_A_DEAD_PATH: u64 = 3;

/// Round trips from a loss until it is repaired, beside the wait for a tail probe or the retransmission timer: the
/// answer to the probe (1), the time rule's fair round trip and reordering window, which may be as long as a round trip and four
/// times its variation (3), the repeat and its answer (1), the transport acknowledgement (1). Four more, because the
/// slowest of 4,000 seeds reached 99 % of that.
const ROUND_TRIPS_TO_REPAIR: u64 = 10;

/// Needless repeats in one direction of a fair run that pass. Excluded: packets that overtake each other by nanoseconds across planes. A
/// SACK that tells of the later one names the earlier as missing; if no other SACK is due within a round trip and
/// the reordering window, the time rule repeats it although it arrived right after.
pub(crate) const STRAY_REPEATS: u64 = 16;

/// Time that a round trip may take beside the network's part, ns: both hosts act at once in virtual time.
const SLACK_NS: u64 = 10_000;

/// The path of a packet that has not left.
const UNKNOWN_PATH: u64 = u64::MAX;

/// What the judge allows in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Nothing may be sent twice.
    no_repeats: bool,
    /// Paths that swallow everything stay dead.
    dead_paths: bool,
    /// A repeat never takes the path of the copy before it.
    other_path: bool,
    /// Losses are repaired within a bound.
    repair: bool,
    patience: Patience,
    rtt_ns: u64,
    /// Longest first wait for a tail probe.
    probe_ns: [u64; 2],
    /// What the time rule may wait beside what it has measured.
    reordering_ns: [u64; 2],
}

impl Limits {
    pub(crate) fn of(plan: &Plan) -> Self {
        let rtt_ns = plan.worst_rtt_ns() + SLACK_NS;
        let cut = plan.outages.iter().any(|outage| outage.to == Time::NEVER);
        // Thousands of packets, or answers to them, that wait at a slow port.
        let slow =
            |node: &NodePlan| node.ns_per_kib > 1_000 || u64::from(node.given_back) * node.full_ns > 500_000;
        // A port that is full for long again and again.
        let stuck = |node: &NodePlan| node.given_back > 1_000 && node.full_ns > 20_000;
        let congested = plan.nodes.iter().any(|node| stuck(node) || plan.is_wide() && slow(node));
        let steered = plan.pairs.iter().flatten().any(|end| end.denies);
        let judges = plan.judges_recovery;
        Self {
            no_repeats: judges && plan.weather == Weather::Fair && !plan.is_late(),
            dead_paths: judges && plan.weather == Weather::DeadPath,
            // Not where a whole plane dies: then the other one may be down to a single active path.
            other_path: judges
                && plan.weather == Weather::DeadPath
                && plan.outages.iter().all(|outage| outage.paths > 1),
            // Not where ports go down, paths are denied or a host is slow: then it is the plan that lets nothing be sent. Nor
            // where a queue pair may wait for others, or for receive work requests.
            repair: judges
                && !plan.is_late()
                && !(congested || steered || !plan.flaps.is_empty() || cut && plan.may_fail)
                && !plan.shares_cwnds(),
            patience: plan.patience,
            rtt_ns,
            // Two round trips, or one and four times its variation, which is at most half a round trip.
            probe_ns: [0, 1].map(|node| plan.nodes[node].tail_probe_floor_ns.max(3 * rtt_ns)),
            reordering_ns: [0, 1].map(|node| plan.nodes[node].initial_reordering_ns),
        }
    }

    /// Those of a queue pair with READs or atomic operations: a request is complete when the peer has sent the response,
    /// and how soon that is depends on all that the peer sends.
    pub(crate) const fn with_fetches(self) -> Self {
        Self { repair: false, ..self }
    }

    /// How long a requester that has heard nothing new for `silence_ns` waits at most until it speaks again: tail probes
    /// come at doubling intervals since the last news, so never further apart than the silence before, and the
    /// retransmission timer (decision 26) starts them over.
    fn wait_ns(&self, node: usize, silence_ns: u64) -> u64 {
        let interval = 1024_u64 << self.patience.timeout;
        let mut timer = interval;
        let mut passed = interval * (1 + u64::from(self.patience.linear));
        while passed <= silence_ns {
            timer *= 2;
            passed += timer;
        }
        self.probe_ns[node].max(silence_ns).min(timer)
    }

    fn repair_ns(&self, node: usize, silence_ns: u64) -> u64 {
        self.wait_ns(node, silence_ns) + ROUND_TRIPS_TO_REPAIR * self.rtt_ns + self.reordering_ns[node]
    }
}

/// A packet on the wire, as far as the judge cares.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// Packet `seq` of a direction. `last`: the last one of a message. `asks`: wants an answer at once. `is_response`: of a
    /// message that no work request of this direction stands for.
    Data { seq: u64, first_time: bool, last: bool, asks: bool, is_response: bool },
    /// SACK, NACK or transport acknowledgement for a direction.
    Answer,
}

/// Something that excuses a wait: when it happened and how long there had been no news then.
#[derive(Clone, Copy, Debug, Default)]
struct Excuse {
    at: Time,
    silence_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// One past its last packet.
    end: u64,
    /// Its last packet asked for an answer.
    asked: bool,
    last_sent: Excuse,
}

#[derive(Clone, Copy, Debug)]
struct DeadPath {
    losses: u64,
    last_counted: Time,
    /// Answers lost before the first loss.
    answers_before: u64,
}

/// One direction of a queue pair.
#[derive(Debug)]
pub(crate) struct Direction {
    limits: Limits,
    /// The node that sends the data.
    node: usize,
    /// Path of each packet's latest transmission, from `base` on.
    paths: VecDeque<u64>,
    base: u64,
    acked: u64,
    /// Messages with a packet sent, not retired, in order; the last one may lack its end.
    messages: VecDeque<Message>,
    message_open: bool,
    /// One past the highest packet that left the endpoint.
    begun: u64,
    /// When the sender last learned that more packets arrived, and when before that.
    news_at: Time,
    news_before: Time,
    last_sent: Excuse,
    /// The last copy of any packet of a message that is complete.
    retired_sent: Excuse,
    answer_lost: Excuse,
    answers_lost: u64,
    repeats: u64,
    dead: BTreeMap<u64, DeadPath>,
    pub(crate) facts: Facts,
}

/// What was there to judge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) widest: u64,
    pub(crate) dead_paths: u64,
    pub(crate) judged: u64,
    /// The longest repair, as a part of its limit, in thousandths.
    pub(crate) slowest: u64,
}

impl Direction {
    pub(crate) fn new(limits: Limits, node: usize) -> Self {
        Self {
            limits,
            node,
            paths: VecDeque::new(),
            base: 0,
            acked: 0,
            messages: VecDeque::new(),
            message_open: false,
            begun: 0,
            news_at: Time::ZERO,
            news_before: Time::ZERO,
            last_sent: Excuse::default(),
            retired_sent: Excuse::default(),
            answer_lost: Excuse::default(),
            answers_lost: 0,
            repeats: 0,
            dead: BTreeMap::new(),
            facts: Facts::default(),
        }
    }

    pub(crate) fn seen(&mut self, at: Time, hop: &Hop, seen: Seen) -> Result<(), String> {
        match seen {
            Seen::Answer => {
                if hop.lost {
                    self.answer_lost = self.excuse(at);
                    self.answers_lost += 1;
                }
                Ok(())
            }
            Seen::Data { seq, first_time, last, asks, is_response } => {
                self.paced(at)?;
                if first_time {
                    self.begin(at, seq, (last, asks, is_response));
                    self.died(at, hop)?;
                } else {
                    self.repeated(hop, seq)?;
                }
                self.note_path(seq, hop.path);
                self.note_sent(at, seq);
                Ok(())
            }
        }
    }

    /// A full queue of the host gave a packet back: it will be tried again, and whoever waits for it has to wait longer.
    pub(crate) fn given_back(&mut self, at: Time, seen: Seen) {
        match seen {
            Seen::Answer => self.answer_lost = self.excuse(at),
            Seen::Data { seq, first_time, last, asks, is_response } => {
                if first_time {
                    self.begin(at, seq, (last, asks, is_response));
                } else {
                    // Excluded: a probe for a packet that had arrived. The requester takes its path, not that of the
                    // copy before, for the last one.
                    self.note_path(seq, UNKNOWN_PATH);
                }
                self.note_sent(at, seq);
            }
        }
    }

    fn note_sent(&mut self, at: Time, seq: u64) {
        self.last_sent = self.excuse(at);
        let from = self.messages.partition_point(|message| message.end <= seq);
        if let Some(message) = self.messages.get_mut(from) {
            message.last_sent = self.last_sent;
        }
    }

    fn excuse(&self, at: Time) -> Excuse {
        Excuse { at, silence_ns: at.since(self.news_at) }
    }

    /// A packet leaves the endpoint, and was never seen before if `seq` is the next.
    fn begin(&mut self, at: Time, seq: u64, (last, asks, is_response): (bool, bool, bool)) {
        if seq < self.begun {
            return;
        }
        self.begun = seq + 1;
        if self.messages.is_empty() {
            self.news_at = at;
        }
        self.facts.widest = self.facts.widest.max((seq + 1).saturating_sub(self.acked));
        if is_response {
            return;
        }
        if !self.message_open {
            self.messages.push_back(Message { end: seq + 1, asked: asks, last_sent: self.excuse(at) });
        }
        if let Some(message) = self.messages.back_mut() {
            message.end = seq + 1;
            message.asked = asks;
            self.message_open = !last;
        }
    }

    /// A path that is dead is left.
    fn died(&mut self, at: Time, hop: &Hop) -> Result<(), String> {
        if !self.limits.dead_paths || !hop.lost {
            return Ok(());
        }
        let noticed_ns = self.limits.repair_ns(self.node, 0);
        let fresh = DeadPath { losses: 0, last_counted: Time::ZERO, answers_before: self.answers_lost };
        let path = self.dead.entry(hop.path).or_insert(fresh);
        if path.losses > 0 && at.since(path.last_counted) <= noticed_ns {
            return Ok(());
        }
        path.losses += 1;
        path.last_counted = at;
        self.facts.dead_paths += u64::from(path.losses == 1);
        if path.losses > LOSSES_ON_A_DEAD_PATH + self.answers_lost - path.answers_before {
            return Err(format!(
                "goes on to use the dead path {:#x} after {} losses",
                hop.path,
                path.losses - 1
            ));
        }
        Ok(())
    }

    fn repeated(&mut self, hop: &Hop, seq: u64) -> Result<(), String> {
        self.repeats += 1;
        if self.limits.no_repeats && self.repeats > STRAY_REPEATS {
            return Err(format!("sent packet {seq} again, repeat {}, and nothing was lost", self.repeats));
        }
        let before = seq.checked_sub(self.base).and_then(|at| self.paths.get(at as usize));
        if self.limits.other_path && before == Some(&hop.path) {
            return Err(format!("sent packet {seq} again on the path of the copy before, {:#x}", hop.path));
        }
        Ok(())
    }

    fn note_path(&mut self, seq: u64, path: u64) {
        let Some(at) = seq.checked_sub(self.base) else { return };
        let at = at as usize;
        if self.paths.len() <= at {
            self.paths.resize(at + 1, UNKNOWN_PATH);
        }
        self.paths[at] = path;
    }

    /// The sender was told that everything before `end` arrived.
    pub(crate) fn acknowledged(&mut self, at: Time, end: u64) {
        if end > self.acked {
            self.acked = end;
            if at > self.news_at {
                self.news_before = self.news_at;
            }
            self.news_at = at;
        }
    }

    /// While something is under way, no more than the bound passes between one transmission and the next.
    fn paced(&mut self, at: Time) -> Result<(), String> {
        if self.messages.is_empty() {
            return Ok(());
        }
        self.in_time(at, self.last_sent, "was silent")
    }

    fn in_time(&mut self, at: Time, since: Excuse, what: &str) -> Result<(), String> {
        if !self.limits.repair {
            return Ok(());
        }
        let since = if since.at < self.answer_lost.at { self.answer_lost } else { since };
        // The timers start over when there is news; what came just now may be why the wait ends.
        let news = if self.news_at < at { self.news_at } else { self.news_before };
        let since = if since.at < news { Excuse { at: news, silence_ns: 0 } } else { since };
        let (took, limit) = (at.since(since.at), self.limits.repair_ns(self.node, since.silence_ns));
        self.facts.judged += 1;
        self.facts.slowest = self.facts.slowest.max(1000 * took / limit);
        if took > limit {
            return Err(format!(
                "{what} for {took} ns from {}, at most {limit} was expected after {} ns without news, limits {:?}",
                since.at, since.silence_ns, self.limits
            ));
        }
        Ok(())
    }

    /// The oldest message is complete: soon after the last copy of any packet up to its end. If it asked for no
    /// acknowledgement, or that may be the answer that was lost since, a later packet of the direction brings it.
    pub(crate) fn retired(&mut self, at: Time) -> Result<(), String> {
        let Some(message) = self.messages.pop_front() else {
            return Err("retired a message that was never sent".to_owned());
        };
        if self.messages.is_empty() {
            self.message_open = false;
        }
        let gone = (message.end.saturating_sub(self.base) as usize).min(self.paths.len());
        self.paths.drain(..gone);
        self.base += gone as u64;
        if message.last_sent.at > self.retired_sent.at {
            self.retired_sent = message.last_sent;
        }
        let mut since = self.retired_sent;
        let acknowledged_by_later = !message.asked || self.answer_lost.at > since.at;
        if acknowledged_by_later && self.last_sent.at > self.answer_lost.at {
            since = self.last_sent;
        }
        self.in_time(at, since, "completed no message")
    }
}
