//! The congestion window of one plane, for networks whose switches drop packets.
//!
//! It grows and shrinks as that of CUBIC (RFC 9438), so that it takes as much as TCP does, with TCP beside it or not.
//! It doubles every round trip until the first loss, is cut by 0.7 for the losses of one round trip, and then grows
//! along a cubic curve, or by half a packet per round trip if that is more. Additions to CUBIC:
//!
//! | Observation | Reaction |
//! |---|---|
//! | a loss while round trips are short, and no more than one packet in fifty lost | none: random loss |
//! | round trips nearly as long as when packets were last lost | slower growth, the more so the smaller the window: the queue is about to overflow |
//! | more than a third of a round lost | the window becomes the delivered bytes, and doubles up to half of its old size |
//! | a packet that was declared lost arrives | the cut is undone |
//! | ECN marks, and half a millisecond of queueing | the window is cut by 0.85 (RFC 8511), as for a managed queue (RFC 3168) |
//! | ECN marks on a share of the packets, and less queueing, but some on all paths | it is cut by 0.3 times that share (after RFC 8257) |
//! | ECN marks, and a path without queueing | none: path selection uses that path (MRC paper, section 2.1) |
//! | nothing sent for a second | the window starts at ten packets again, and doubles up to three quarters of its old size |
//!
//! Small windows are paced: an ACK-clocked packet, which leaves as soon as another has left the queue, takes the
//! place of packets that arrive at random times. Below two packets, the window is a rate: the interval between
//! packets is a fraction of the smoothed round-trip time.

use super::Flight;
use crate::time::Time;

/// Factor of a cut after a loss (RFC 9438 section 4.6), and while the window doubles.
const BETA: f64 = 0.7;
const BETA_START: f64 = 0.5;
/// Factor of a cut after marks of a managed queue (RFC 8511 section 3.1).
const BETA_ECN: f64 = 0.85;
/// Share of the window that is cut if all packets are marked.
const MARKED_CUT: f64 = 0.3;
/// Packets wait on all paths if the shortest round trip of a round took this many times as long as the shortest of
/// all.
const WAITING: f64 = 1.1;
/// Queueing from which every mark counts, ns.
const MANAGED_QUEUE_NS: f64 = 500_000.0;
/// Growth of CUBIC, packets per second cubed (RFC 9438 section 5.1).
const CUBIC_C: f64 = 0.4;
/// Growth of a window of TCP Reno that is cut by `BETA` and yet takes as much as TCP Reno does, packets per round
/// trip (RFC 9438 section 4.3).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Full packets in the first window (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Full packets in the smallest window.
const LEAST_WINDOW: f64 = 1.0 / 64.0;
/// Windows below this many packets are a rate, and below this many are paced: the interval between packets is this
/// part of their share of the round trip.
const RATE_BELOW: f64 = 2.0;
const PACED_BELOW: f64 = 8.0;
const PACED_GAP: f64 = 0.8;
/// The slowest pace, ns, so that a queue pair does not fail because it hardly sends.
const LONGEST_GAP_NS: f64 = 250_000_000.0;
/// The queue is nearly full from this fraction below the round-trip time at which packets were lost.
const HEADROOM: f64 = 0.4;
/// Windows of this many packets do not grow more slowly then.
const BOLD_WINDOW: f64 = 48.0;
/// Packets in the smallest window after a round with many losses.
const LEAST_COLLAPSE: f64 = 4.0;
/// Lifetime of the smallest round-trip time, at least, ns; twice that at most.
const BASE_NS: u64 = 10_000_000_000;
/// Idle time after which a window is no longer known to fit, ns.
const IDLE_NS: u64 = 1_000_000_000;
/// Fraction of its old size up to which an idle window doubles.
const IDLE_LEFT: f64 = 0.75;
/// Losses of at most one in this many packets may be random: 2 %, the limit of BBR (draft-ietf-ccwg-bbr). With a limit
/// of 1 %, half of the losses count on a path that loses 1 % at random.
const CHANCE_PARTS: f64 = 50.0;
/// Full packets over which that is measured; at least half of it.
const CHANCE_PACKETS: f64 = 1024.0;

/// Observations since a packet left: a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// It ends when a packet that left now or later arrives.
    start: Time,
    /// Smallest round-trip time, ns; 0 without a sample.
    least_rtt: u64,
    samples: u32,
    marks: u32,
    acked: u64,
    lost: u64,
    /// The window was full.
    limited: bool,
    over: bool,
}

/// The state before a cut, to undo it.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// The cut covers losses of packets that left later than this.
    after: Time,
    cwnd: f64,
    w_max: f64,
    ssthresh: f64,
    /// Packets declared lost that have not arrived.
    losses: u32,
}

/// The reason of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Loss,
    Mark,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    mtu: f64,
    pub(super) cwnd: f64,
    pub(super) inflight: u64,
    /// Below it the window doubles every round trip.
    ssthresh: f64,
    srtt: f64,
    latest_rtt: u64,
    /// Longest round-trip time of this round and of the last, ns.
    longest: [u64; 2],
    /// Smallest round-trip time of this round, of the last and of the last few seconds, ns; 0 without a sample.
    base: [u64; 2],
    base_since: Time,
    /// Round-trip time when packets were lost because a queue was full, ns; 0 before the first.
    full_rtt: f64,
    round: Round,
    /// Losses of packets that left until then have been covered by a cut.
    cut_at: Time,
    undo: Option<Undo>,
    /// Recent bytes, and those of them that were lost.
    recent: (f64, f64),
    /// The round began before the last cut.
    settling: bool,
    /// CUBIC: the window before the last cut; when growth began, where the curve is flat, bytes, and when, seconds later.
    w_max: f64,
    epoch: Option<Time>,
    plateau: f64,
    k: f64,
    last_send: Time,
    /// Time at which the next packet may leave, if packets are paced.
    pub(super) next_send: Time,
}

impl Window {
    pub(super) fn new(mtu: f64) -> Self {
        Self {
            mtu,
            cwnd: FIRST_WINDOW * mtu,
            inflight: 0,
            ssthresh: f64::INFINITY,
            srtt: 0.0,
            latest_rtt: 0,
            longest: [0; 2],
            base: [0; 2],
            base_since: Time::ZERO,
            full_rtt: 0.0,
            round: Round::default(),
            cut_at: Time::ZERO,
            undo: None,
            recent: (0.0, 0.0),
            settling: false,
            w_max: 0.0,
            epoch: None,
            plateau: 0.0,
            k: 0.0,
            last_send: Time::ZERO,
            next_send: Time::ZERO,
        }
    }

    /// The smallest recent round-trip time, ns; 0 without a sample.
    pub(super) fn base_ns(&self) -> u64 {
        let [now, before] = self.base;
        if before == 0 { now } else { now.min(before) }
    }

    /// Whether the latest round trip took twice as long as the shortest one.
    pub(super) fn queues(&self) -> bool {
        self.latest_rtt >= 2 * self.base_ns().max(1)
    }

    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.cwnd < PACED_BELOW * self.mtu && self.srtt > 0.0
    }

    #[inline]
    fn is_rate(&self) -> bool {
        self.cwnd < RATE_BELOW * self.mtu
    }

    /// Whether there is room for a full packet.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        let inflight = self.inflight as f64;
        self.inflight == 0
            || if self.is_rate() { inflight < self.cwnd } else { inflight + self.mtu <= self.cwnd }
    }

    #[inline]
    pub(super) fn on_send(&mut self, packet: &Flight) {
        let now = packet.sent_at;
        if self.inflight == 0 {
            self.start_again(now);
        }
        self.last_send = now;
        self.inflight += packet.bytes;
        self.round.limited |= self.inflight as f64 + self.mtu > self.cwnd;
        if self.is_paced() {
            let part = if self.is_rate() { 1.0 } else { PACED_GAP };
            let full_ns = (part * self.srtt * self.mtu / self.cwnd).min(LONGEST_GAP_NS);
            let gap_ns = full_ns * packet.bytes as f64 / self.mtu;
            // Tail loss probes ignore the pace, and do not slow it down further.
            let latest = now.after(2 * full_ns as u64);
            self.next_send = self.next_send.max(now).after(gap_ns as u64).min(latest);
        }
    }

    fn start_again(&mut self, now: Time) {
        self.round.start = now;
        if self.last_send != Time::ZERO && now.since(self.last_send) > IDLE_NS {
            let first = FIRST_WINDOW * self.mtu;
            if self.cwnd > first {
                self.ssthresh = (IDLE_LEFT * self.cwnd).max(first);
                self.cwnd = first;
            }
            self.epoch = None;
        }
    }

    /// The bytes in flight before this window was in force are taken as its size.
    pub(super) fn take_over(&mut self) {
        self.shrink_to((self.inflight as f64).max(RATE_BELOW * self.mtu));
        (self.w_max, self.recent, self.next_send) = (0.0, (0.0, 0.0), Time::ZERO);
    }

    /// A packet leaves the network without information about congestion.
    pub(super) fn on_gone(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    /// A packet has arrived. The window may grow up to `most` bytes.
    #[inline]
    pub(super) fn on_arrival(&mut self, packet: &Flight, most: f64) {
        self.on_gone(packet.bytes);
        self.round.acked += packet.bytes;
        self.round.over |= packet.sent_at >= self.round.start;
        if self.cwnd < self.ssthresh && self.round.limited {
            let grown = (self.cwnd + (packet.bytes as f64).min(self.mtu)).min(self.ssthresh);
            self.cwnd = grown.min(most.max(self.cwnd));
        }
    }

    /// A round-trip time sample; `ecn`: the packet was marked.
    pub(super) fn on_sample(&mut self, now: Time, rtt_ns: u64, ecn: bool) {
        let rtt_ns = rtt_ns.max(1);
        let rtt = rtt_ns as f64;
        self.srtt = if self.srtt == 0.0 { rtt } else { self.srtt + (rtt - self.srtt) / 8.0 };
        self.latest_rtt = rtt_ns;
        self.longest[0] = self.longest[0].max(rtt_ns);
        let [base, _] = &mut self.base;
        if *base == 0 {
            self.base_since = now;
        }
        if *base == 0 || rtt_ns < *base {
            *base = rtt_ns;
        }
        let round = &mut self.round;
        round.least_rtt = if round.samples == 0 { rtt_ns } else { round.least_rtt.min(rtt_ns) };
        round.samples += 1;
        round.marks += u32::from(ecn);
    }

    /// A packet was lost, as far as known by congestion. Returns whether the window was cut.
    pub(super) fn on_loss(&mut self, now: Time, packet: &Flight) -> Option<Cut> {
        self.round.lost += packet.bytes;
        self.recent.1 += packet.bytes as f64;
        let chance = self.is_chance();
        if !chance {
            // The lost packet found the queue full, and so did its neighbours.
            let longest = self.longest[0].max(self.longest[1]) as f64;
            self.full_rtt = longest.max(self.full_rtt + (longest - self.full_rtt) / 16.0);
        }
        if packet.sent_at <= self.cut_at {
            if let Some(undo) = self.undo.as_mut().filter(|undo| packet.sent_at > undo.after) {
                undo.losses += 1;
            }
            return None;
        }
        if chance {
            return None;
        }
        let Self { cwnd, w_max, ssthresh, cut_at: after, .. } = *self;
        let undo = Undo { after, cwnd, w_max, ssthresh, losses: 1 };
        let starts = self.cwnd < self.ssthresh;
        self.cut(now, if starts { BETA_START } else { BETA });
        self.undo = Some(undo);
        Some(Cut::Loss)
    }

    /// Whether few packets are lost, and the queue is short.
    fn is_chance(&self) -> bool {
        let (all, lost) = self.recent;
        if all < CHANCE_PARTS * self.mtu || lost * CHANCE_PARTS > all {
            return false;
        }
        let base = self.base_ns() as f64;
        let short = if self.full_rtt > base { f64::midpoint(base, self.full_rtt) } else { 1.25 * base };
        (self.latest_rtt as f64) < short
    }

    /// A packet that was declared lost has arrived.
    pub(super) fn on_wrong_loss(&mut self, packet: &Flight) {
        self.recent.1 = (self.recent.1 - packet.bytes as f64).max(0.0);
        self.round.lost = self.round.lost.saturating_sub(packet.bytes);
        let answered = |undo: &&mut Undo| packet.sent_at > undo.after && packet.sent_at <= self.cut_at;
        let Some(undo) = self.undo.as_mut().filter(answered) else { return };
        undo.losses = undo.losses.saturating_sub(1);
        if undo.losses == 0 {
            let Undo { cwnd, w_max, ssthresh, .. } = *undo;
            self.cwnd = self.cwnd.max(cwnd);
            (self.w_max, self.ssthresh) = (w_max, ssthresh);
            (self.undo, self.epoch) = (None, None);
        }
    }

    fn cut(&mut self, now: Time, part: f64) {
        // Fast convergence (RFC 9438 section 4.7).
        let less = self.cwnd < self.w_max;
        self.w_max = if less { self.cwnd * (1.0 + part) / 2.0 } else { self.cwnd };
        self.cut_at = now;
        self.shrink_to(self.cwnd * part);
        self.settling = true;
    }

    fn shrink_to(&mut self, cwnd: f64) {
        self.cwnd = cwnd.max(LEAST_WINDOW * self.mtu);
        self.ssthresh = self.cwnd;
        (self.undo, self.epoch) = (None, None);
    }

    #[inline]
    pub(super) const fn round_is_over(&self) -> bool {
        self.round.over
    }

    /// Ends the round. The window may grow up to `most` bytes, by this `share` of its own growth. Returns whether the
    /// window was cut.
    #[inline(never)]
    pub(super) fn end_round(&mut self, now: Time, share: f64, most: f64) -> Option<Cut> {
        let round = self.round;
        self.round = Round { start: now, ..Round::default() };
        self.age(now, &round);
        if self.collapses(&round) {
            return Some(Cut::Loss);
        }
        if core::mem::take(&mut self.settling) {
            return None;
        }
        let cut = self.answer_marks(now, &round);
        if cut == Some(Cut::Mark) && self.settling {
            return cut;
        }
        if !round.limited {
            self.epoch = None;
        } else if round.lost == 0 && self.cwnd >= self.ssthresh {
            // A round of a window below one packet takes several round trips.
            let round_trips = (self.mtu / self.cwnd).max(1.0);
            self.grow(now, share * round_trips * self.headroom(round.least_rtt as f64), most);
        }
        cut
    }

    fn age(&mut self, now: Time, round: &Round) {
        self.longest = [0, self.longest[0]];
        let least = round.least_rtt as f64;
        if self.full_rtt > 0.0 && least > self.full_rtt {
            // So long without a loss.
            self.full_rtt += (least - self.full_rtt) / 4.0;
        }
        self.recent.0 += (round.acked + round.lost) as f64;
        if self.recent.0 > CHANCE_PACKETS * self.mtu {
            self.recent = (self.recent.0 / 2.0, self.recent.1 / 2.0);
        }
        if now.since(self.base_since) > BASE_NS {
            let least = if round.samples > 0 { round.least_rtt } else { self.base_ns() };
            self.base = [least, self.base[0]];
            self.base_since = now;
        }
    }

    /// After a loss of more than a third of the round, the delivered bytes become the window.
    fn collapses(&mut self, round: &Round) -> bool {
        let (before, acked) = (self.cwnd, round.acked as f64);
        if round.lost <= round.acked / 2 || before <= acked.max(LEAST_COLLAPSE * self.mtu) {
            return false;
        }
        self.shrink_to(acked.max(self.mtu));
        self.ssthresh = self.ssthresh.max(before / 2.0);
        self.settling = true;
        true
    }

    fn answer_marks(&mut self, now: Time, round: &Round) -> Option<Cut> {
        if round.marks == 0 || (round.least_rtt as f64) < WAITING * self.base_ns() as f64 {
            return None;
        }
        if (round.least_rtt - self.base_ns()) as f64 > MANAGED_QUEUE_NS {
            self.cut(now, BETA_ECN);
        } else {
            let marked = f64::from(round.marks) / f64::from(round.samples);
            self.shrink_to(self.cwnd * (1.0 - MARKED_CUT * marked));
        }
        Some(Cut::Mark)
    }

    /// The share of its growth that a window keeps while the queue is nearly full.
    fn headroom(&self, rtt: f64) -> f64 {
        if self.full_rtt == 0.0 {
            return 1.0;
        }
        let least = (self.cwnd / self.mtu / BOLD_WINDOW).min(1.0);
        ((self.full_rtt - rtt) / (HEADROOM * self.full_rtt)).clamp(least, 1.0)
    }

    /// This part of a round's growth (RFC 9438 sections 4.2 and 4.3).
    fn grow(&mut self, now: Time, part: f64, most: f64) {
        let packets = self.cwnd / self.mtu;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.plateau = self.w_max.max(self.cwnd);
            self.k = ((self.plateau - self.cwnd) / self.mtu / CUBIC_C).cbrt();
            now
        });
        let seconds = (now.since(epoch) as f64 + self.srtt) / 1e9 - self.k;
        let cubic = self.plateau / self.mtu + CUBIC_C * seconds * seconds * seconds - packets;
        let reno = if self.cwnd < self.w_max { RENO_ALPHA } else { 1.0 };
        let grown = self.cwnd + part * reno.max(cubic.min(packets / 2.0)) * self.mtu;
        self.cwnd = grown.min(most.max(self.cwnd));
    }
}
