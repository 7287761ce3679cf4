//! NSCC, network-signalled congestion control (UET 1.0 section 3.6.13), which MRC adopts (the OCP API names it
//! `uet-1.0-nscc`).
//!
//! Two signals, four cases. The delay is the round-trip time less the smallest one seen:
//!
//! | | delay below target | delay at or above target |
//! |---|---|---|
//! | no ECN mark | grow, the more the further below | grow by a fair share |
//! | ECN mark | hold: only this path is congested | shrink, once a round-trip time |
//!
//! Trimmed or lost packets shrink the window by their size. *Quick adaptation* sets it at once to the bytes delivered
//! in the last round-trip time, if these were few.

use tracing::debug;

use super::config::MAX_WINDOW_BDP;
use super::{AckSample, CcConfig, CongestionControl};
use crate::time::Time;
use crate::wire::Qpn;

/// The link whose parameters the specification gives; others scale from it (UET 1.0 section 3.6.13).
const REFERENCE_BDP_BYTES: f64 = 150_000.0;
const REFERENCE_RTT_NS: f64 = 12_000.0;

/// Weight of a new sample in the average delay. The specification leaves the filter open; this is the
/// value of its reference simulation (htsim).
const DELAY_GAIN: f64 = 0.0125;

/// A delay below this counts as zero. The specification leaves it open; this is the value of its reference simulation
/// (htsim).
const ZERO_DELAY_NS: f64 = 1_000.0;

/// UET's `ACK_Gen_Trigger`.
const ACK_GEN_TRIGGER_BYTES: u64 = 16 * 1024;

/// Parameters that are constant for a queue pair. Times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug)]
struct Params {
    mtu: f64,
    /// Link rate in bytes per nanosecond.
    rate: f64,
    fixed_max_cwnd: Option<u64>,
    config_rtt: f64,
    target: f64,
    alpha: f64,
    fi: f64,
    fi_scale: f64,
    eta: f64,
    gamma: f64,
    max_md_jump: f64,
    disable_qa: bool,
    qa_gate: u8,
    qa_threshold: f64,
    adjust_bytes: u64,
    adjust_period: u64,
    ack_gen_trigger: u64,
}

impl Params {
    fn new(cfg: &CcConfig) -> Self {
        let set = &cfg.nscc;
        let mtu = f64::from(cfg.mtu_bytes);
        let rtt = cfg.base_rtt_ns as f64;
        let rate = cfg.link_rate_bps as f64 / 8e9;
        let target_share = if cfg.trimming { 0.75 } else { 1.0 };
        let target = set.target_delay_ns.map_or(target_share * rtt, |ns| ns as f64);
        let a = rate * rtt / REFERENCE_BDP_BYTES;
        let b = target / REFERENCE_RTT_NS;
        let qa_threshold = if cfg.trimming { f64::INFINITY } else { 4.0 * target };
        Self {
            mtu,
            rate,
            fixed_max_cwnd: set.max_cwnd_bytes,
            config_rtt: rtt,
            target,
            alpha: set.alpha.unwrap_or(4.0 * a * b * mtu / target),
            fi: set.fi.unwrap_or(5.0 * mtu * a),
            fi_scale: set.fi_scale.unwrap_or(0.25 * a),
            eta: set.eta.unwrap_or(0.15 * mtu * a),
            gamma: set.gamma.unwrap_or(0.8),
            max_md_jump: set.max_md_jump.unwrap_or(0.5),
            disable_qa: set.disable_qa,
            qa_gate: set.qa_gate.unwrap_or(3),
            qa_threshold: set.qa_threshold_ns.map_or(qa_threshold, |ns| ns as f64),
            adjust_bytes: set.adjust_bytes_threshold.unwrap_or(8 * u64::from(cfg.mtu_bytes)),
            adjust_period: set.adjust_period_threshold_ns.unwrap_or(cfg.base_rtt_ns),
            ack_gen_trigger: set.ack_gen_trigger_bytes.unwrap_or(ACK_GEN_TRIGGER_BYTES),
        }
    }

    /// The largest window on a path whose smallest round-trip time is `base_rtt`.
    fn max_cwnd(&self, base_rtt: u64) -> f64 {
        let max = self.fixed_max_cwnd.map_or(MAX_WINDOW_BDP * self.rate * base_rtt as f64, |max| max as f64);
        max.max(self.mtu)
    }
}

/// The state of NSCC for one queue pair.
#[derive(Clone, Debug)]
pub struct Nscc {
    cwnd: f64,
    inflight: u64,
    max_cwnd: f64,
    base_rtt: u64,
    avg_delay: f64,
    /// Increase to be applied at the next adjustment, times the window.
    increase: f64,
    /// Bytes acknowledged since the last adjustment.
    received: u64,
    last_adjust: Time,
    last_decrease: Time,
    fast: bool,
    /// Consecutive bytes acknowledged with a delay of about zero.
    idle_bytes: u64,
    /// Bytes acknowledged in this quick adaptation period.
    achieved: u64,
    qa_end: Option<Time>,
    trigger_qa: bool,
    /// After a quick adaptation: bytes that were in flight then, and those of them reported since.
    to_ignore: u64,
    ignored: u64,
    /// The window before the receiver's first penalty.
    saved_cwnd: Option<f64>,
    /// The queue pair in reports.
    pub(super) qpn: Qpn,
    params: Params,
}

impl Nscc {
    pub(super) fn new(cfg: &CcConfig, now: Time) -> Self {
        let params = Params::new(cfg);
        let max_cwnd = params.max_cwnd(cfg.base_rtt_ns);
        Self {
            cwnd: max_cwnd,
            inflight: 0,
            max_cwnd,
            base_rtt: cfg.base_rtt_ns,
            avg_delay: 0.0,
            increase: 0.0,
            received: 0,
            last_adjust: now,
            last_decrease: Time::ZERO,
            fast: false,
            idle_bytes: 0,
            achieved: 0,
            qa_end: None,
            trigger_qa: false,
            to_ignore: 0,
            ignored: 0,
            saved_cwnd: None,
            qpn: Qpn::new(0),
            params,
        }
    }

    /// The smallest round-trip time seen, nanoseconds; before any, the configured one.
    pub fn base_rtt_ns(&self) -> u64 {
        self.base_rtt
    }

    /// The average queueing delay, nanoseconds.
    pub fn avg_delay_ns(&self) -> u64 {
        self.avg_delay as u64
    }

    /// Bytes after which the receiver sends a SACK without a request.
    #[inline]
    pub(super) const fn ack_gen_trigger(&self) -> u64 {
        self.params.ack_gen_trigger
    }

    /// Whether a penalty of the receiver is in force.
    #[inline]
    pub(super) const fn is_penalised(&self) -> bool {
        self.saved_cwnd.is_some()
    }

    /// The largest window at present, bytes.
    pub fn max_cwnd(&self) -> u64 {
        self.max_cwnd as u64
    }

    /// Reports a cut of the window that is more than the size of a lost or trimmed packet. It reports nothing if the
    /// window was at its minimum before.
    #[cold]
    fn log_cut(&self, reason: &'static str, before: f64) {
        if self.cwnd >= before {
            return;
        }
        debug!(
            target: "spindrift::congestion",
            qpn = %self.qpn,
            reason,
            before_bytes = before as u64,
            cwnd_bytes = self.cwnd as u64,
            delay_ns = self.avg_delay as u64,
            "congestion window cut"
        );
    }

    /// The receiver's penalty: the window never exceeds the bytes in flight, and shrinks in proportion to those
    /// acknowledged.
    #[cold]
    fn penalise(&mut self, penalty: u8, newly: u64) {
        let before = self.cwnd;
        let cut = (u64::from(penalty) * newly) >> 7;
        self.shrink_to(before.min(self.inflight as f64) - cut as f64);
        if self.saved_cwnd.is_none() {
            self.saved_cwnd = Some(before);
            self.log_cut("penalty of the receiver", before);
        }
    }

    #[inline]
    fn shrink_to(&mut self, cwnd: f64) {
        self.cwnd = cwnd.max(self.params.mtu);
    }

    /// Takes a delay sample and returns the delay.
    #[inline]
    fn measure(&mut self, rtt_ns: u64) -> f64 {
        if rtt_ns < self.base_rtt {
            self.base_rtt = rtt_ns;
            self.max_cwnd = self.params.max_cwnd(rtt_ns);
        }
        let delay = (rtt_ns - self.base_rtt) as f64;
        self.average(delay);
        delay
    }

    #[inline]
    fn average(&mut self, sample: f64) {
        self.avg_delay += DELAY_GAIN * (sample - self.avg_delay);
    }

    /// Sets the window to the bytes delivered in the last period, if they were few and there is a reason. Returns
    /// `true` if the current signal needs no further reaction.
    #[inline]
    fn quick_adapt(&mut self, now: Time, loss: bool, mark: bool, delay: f64) -> bool {
        if self.params.disable_qa {
            return false;
        }
        let mut handled = false;
        if mark && self.ignored < self.to_ignore {
            // The signal is about a packet sent before the last adaptation.
            handled = true;
        } else if self.qa_end.is_none_or(|end| now >= end) {
            let reason = self.trigger_qa || loss || delay > self.params.qa_threshold;
            let little = self.achieved < (self.max_cwnd as u64) >> self.params.qa_gate;
            if self.qa_end.is_some() && reason && little {
                let before = self.cwnd;
                self.shrink_to(self.achieved as f64);
                self.log_cut("quick adaptation", before);
                self.to_ignore = self.inflight;
                self.ignored = 0;
                self.trigger_qa = false;
                handled = true;
            }
            self.achieved = 0;
            self.qa_end = Some(now + self.base_rtt + self.params.target as u64);
        }
        if handled {
            self.increase = 0.0;
            self.received = 0;
        }
        handled
    }

    /// No mark, delay below the target.
    #[inline]
    fn grow_proportionally(&mut self, newly: f64, newly_bytes: u64, delay: f64) {
        if delay < ZERO_DELAY_NS {
            self.idle_bytes = self.idle_bytes.saturating_add(newly_bytes);
            if self.fast || self.idle_bytes as f64 > self.cwnd {
                self.cwnd += newly * self.params.fi_scale;
                self.fast = true;
            }
        } else {
            self.idle_bytes = 0;
            self.fast = false;
        }
        if !self.fast {
            self.increase += self.params.alpha * newly * (self.params.target - delay);
        }
    }

    /// Marked, and delay at or above the target.
    #[cold]
    fn decrease(&mut self, now: Time) {
        self.fast = false;
        let above = self.avg_delay - self.params.target;
        if above > 0.0 && now.since(self.last_decrease) > self.base_rtt {
            let keep = 1.0 - self.params.gamma * above / self.avg_delay;
            let before = self.cwnd;
            self.shrink_to(before * keep.max(self.params.max_md_jump));
            self.last_decrease = now;
            self.log_cut("marks and delay", before);
        }
    }

    /// Applies the collected increase.
    #[inline]
    fn adjust(&mut self, now: Time) {
        let period_over = now.since(self.last_adjust) >= self.params.adjust_period;
        if !period_over && self.received <= self.params.adjust_bytes {
            return;
        }
        self.cwnd += self.increase / self.cwnd;
        if period_over {
            self.cwnd += self.params.eta;
            self.last_adjust = now;
        }
        self.cwnd = self.cwnd.min(self.max_cwnd);
        self.increase = 0.0;
        self.received = 0;
    }
}

impl CongestionControl for Nscc {
    #[inline]
    fn on_send(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_add(bytes);
    }

    fn on_ack(&mut self, ack: &AckSample) {
        let newly = ack.newly_acked;
        self.inflight = self.inflight.saturating_sub(newly);
        self.ignored = self.ignored.saturating_add(newly);
        self.received = self.received.saturating_add(newly);
        self.achieved = self.achieved.saturating_add(newly);
        if ack.penalty != 0 {
            self.penalise(ack.penalty, newly);
        }
        if ack.restore_cwnd
            && let Some(saved) = self.saved_cwnd.take()
        {
            self.cwnd = saved;
        }
        let Some(rtt_ns) = ack.rtt_ns else { return };
        let delay = self.measure(rtt_ns);
        if self.quick_adapt(ack.now, false, ack.ecn, delay) {
            return;
        }
        let low = delay < self.params.target;
        match (ack.ecn, low) {
            (false, _) if ack.penalty != 0 => return,
            (false, false) => self.increase += self.params.fi * newly as f64,
            (false, true) => self.grow_proportionally(newly as f64, newly, delay),
            (true, false) => self.decrease(ack.now),
            // Only this path is congested; path selection avoids it.
            (true, true) => {}
        }
        if ack.penalty == 0 {
            self.adjust(ack.now);
        }
    }

    /// The specification lets a trim on the last hop pass without a cut only if the receiver paces its senders by
    /// credit (RCCC). MRC has no such credit, so both kinds are treated alike.
    fn on_trim_nack(&mut self, now: Time, bytes: u64, _last_hop: bool) {
        self.inflight = self.inflight.saturating_sub(bytes);
        self.average(self.params.config_rtt);
        self.ignored = self.ignored.saturating_add(bytes);
        self.trigger_qa = true;
        if !self.quick_adapt(now, true, true, 0.0) {
            self.shrink_to(self.cwnd - bytes as f64);
        }
    }

    fn on_loss(&mut self, _now: Time, bytes: u64) {
        self.shrink_to(self.cwnd - bytes as f64);
        self.ignored = self.ignored.saturating_add(bytes);
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    fn on_discard(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    /// The specification requires room for a full packet whatever the size of the next. The window is never below one
    /// full packet, so this holds whenever nothing is in flight.
    #[inline]
    fn may_send(&self, _bytes: u64) -> bool {
        self.inflight == 0 || self.inflight as f64 + self.params.mtu <= self.cwnd
    }

    /// With this packet in flight, [`may_send`](Self::may_send) would refuse the next.
    #[inline]
    fn wants_ack(&self, bytes: u64) -> bool {
        (self.inflight + bytes) as f64 + self.params.mtu > self.cwnd
            || self.cwnd < self.params.ack_gen_trigger as f64
    }

    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn inflight(&self) -> u64 {
        self.inflight
    }
}
