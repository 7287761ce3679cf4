//! Timers of the requester: TLP, RTO, and the next search for losses.

use crate::time::Time;

use super::{Requester, SendContext};

/// Timer schedule of a queue pair (MRC 1.0 table 7-1). The interval stays the same for `linear` timeouts, then
/// doubles for `exponential` more. 25 exponential retries mean no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    pub(crate) timeout_ns: u64,
    pub(crate) linear: u8,
    pub(crate) exponential: u8,
}

impl RetryPolicy {
    const FOREVER: u8 = 25;

    /// Number of timeouts before the last one, which fails the queue pair.
    fn retries(&self) -> u32 {
        if self.exponential >= Self::FOREVER {
            return u32::MAX;
        }
        u32::from(self.linear) + u32::from(self.exponential)
    }

    /// The wait before timeout number `retries + 1`, or `None` when there is none left.
    fn interval_ns(&self, retries: u32) -> Option<u64> {
        if retries <= u32::from(self.linear) {
            return Some(self.timeout_ns);
        }
        let doublings = retries - u32::from(self.linear);
        (retries <= self.retries()).then(|| self.timeout_ns.saturating_mul(1 << doublings.min(24)))
    }

    /// The sum of the waits before timeout number `retries`, up to the 24th doubling.
    fn waited_ns(&self, retries: u32) -> u64 {
        let linear = u32::from(self.linear) + 1;
        let doublings = retries.saturating_sub(linear).min(24);
        self.timeout_ns.saturating_mul(u64::from(retries.min(linear)) + (2 << doublings) - 2)
    }
}

/// The result of a timer run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerVerdict {
    /// The queue pair has at most something to transmit.
    GoOn,
    /// All retries are used up: the queue pair fails.
    Exhausted,
}

impl Requester {
    /// The retransmission timer runs for at most this many times its setting. InfiniBand, section 9.7.6.1.3, allows
    /// one to four.
    const MOST_TIMEOUTS: u64 = 4;
    /// After an RTO, the first TLP follows after this fraction (1/n) of the silence so far.
    const SILENCE_PARTS: u64 = 4;

    /// The RTO: the wait of the schedule, or the PTO `late_ns` if that is longer, up to [`Self::MOST_TIMEOUTS`] times
    /// the setting.
    fn timeout_ns(&self, late_ns: u64) -> u64 {
        let retry = &self.setup.retry;
        let late_ns = late_ns.min(retry.timeout_ns.saturating_mul(Self::MOST_TIMEOUTS));
        // If the new schedule has fewer retries than are used up, its last wait applies.
        let retries = self.retries.min(retry.retries());
        retry.interval_ns(retries).map_or(0, |wait| wait.max(late_ns))
    }

    /// How long after `timer_base` the next TLP is due.
    ///
    /// Each TLP doubles the time waited so far, not a number of round trips: the first round-trip time measured may
    /// be much longer than the wait before it. After an RTO the series starts again, at a fraction of the silence so
    /// far. A peer that returns is then found soon, and a slow peer gets no additional load.
    fn probe_wait_ns(&self, late_ns: u64) -> u64 {
        late_ns.max(self.setup.probe_floor_ns).max(self.least_probe_wait_ns)
    }

    /// Records that a TLP is sent. It may have waited long for room in its port, so the next one waits at least a PTO
    /// from now.
    pub(super) fn probe_leaves(&mut self, now: Time) {
        let answer_ns = self.rtt.late_after_ns().max(self.setup.probe_floor_ns);
        let wait_ns = now.since(self.timer_base).saturating_add(answer_ns);
        self.least_probe_wait_ns = self.least_probe_wait_ns.max(wait_ns);
        self.tail_probes = self.tail_probes.wrapping_add(1);
        self.probe_pending = false;
    }

    /// Whether sending packet `seq` now starts timers that may expire before `armed_at`. Only the first packet in
    /// flight starts timers.
    #[inline]
    pub(crate) fn starts_timers(&self, seq: u64, now: Time, armed_at: Time) -> bool {
        let least_ns = self.setup.probe_floor_ns.min(self.setup.retry.timeout_ns);
        self.una == seq && now.after(least_ns) < armed_at
    }

    /// When [`on_timer`](Self::on_timer) must run next.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Time {
        if self.is_paused() {
            return self.ready_at();
        }
        self.next_expiry().min(self.ready_at())
    }

    /// When the next timer expires, other than the wait for a receive work request.
    #[inline]
    fn next_expiry(&self) -> Time {
        let awaits_answer = self.awaits_answer();
        if !awaits_answer && !self.busy() {
            return Time::NEVER;
        }
        let late_ns = self.rtt.late_after_ns();
        let timeout_at = self.timer_base.after(self.timeout_ns(late_ns));
        if !awaits_answer {
            return timeout_at;
        }
        let probe_at = self.timer_base.after(self.probe_wait_ns(late_ns));
        self.loss_check_at.min(timeout_at).min(probe_at)
    }

    /// Runs the timers that are due.
    pub(crate) fn on_timer(&mut self, now: Time, env: &mut SendContext<'_>) -> TimerVerdict {
        self.end_wait(now);
        if self.is_paused() {
            return TimerVerdict::GoOn;
        }
        if !self.awaits_answer() && (!self.busy() || env.paths.usable_planes().0 != 0) {
            // No acknowledgement is due. The queue pair may only wait for its turn, also in the middle of a message,
            // and that time does not count.
            self.start_over(now);
            return TimerVerdict::GoOn;
        }
        if now >= self.loss_check_at {
            // If only one packet is missing, its arrival completes everything, and the peer would have acknowledged
            // that. If two are missing, one that arrives late triggers no SACK.
            let last = self.reported == self.next && !self.queue.has_unsent() && self.lacks_one();
            self.scan_overdue(last, now, env);
        }
        let late_ns = self.rtt.late_after_ns();
        if now >= self.timer_base.after(self.timeout_ns(late_ns)) {
            return self.on_retransmission_timeout(now, env);
        }
        let probe_wait_ns = self.probe_wait_ns(late_ns);
        if self.awaits_answer() && now >= self.timer_base.after(probe_wait_ns) {
            self.least_probe_wait_ns = probe_wait_ns.saturating_mul(2);
            self.probe_pending = true;
        }
        TimerVerdict::GoOn
    }

    /// Uses up a retry and restarts the TLPs. A timeout does not tell lost packets from late ones, so nothing is
    /// declared lost here. Retransmitting a whole window to a slow peer would slow it further. The SACK for a TLP
    /// shows what is missing.
    fn on_retransmission_timeout(&mut self, now: Time, env: &mut SendContext<'_>) -> TimerVerdict {
        env.counters.timeouts += 1;
        self.retries += 1;
        self.any_plane = self.probe_pending;
        if self.setup.retry.interval_ns(self.retries).is_none() {
            return TimerVerdict::Exhausted;
        }
        (self.timer_base, self.timed_out_at) = (now, now);
        self.least_probe_wait_ns = self.setup.retry.waited_ns(self.retries) / Self::SILENCE_PARTS;
        self.probe_pending = true;
        TimerVerdict::GoOn
    }

    /// Sets another schedule at once. The current wait keeps its start and takes its length from the new schedule.
    /// Past timeouts count as used retries.
    pub(crate) const fn set_retry(&mut self, retry: RetryPolicy) {
        self.setup.retry = retry;
    }

    /// The number of RTOs since the peer last reported progress, and the current RTO in ns.
    pub(crate) fn retry(&self) -> (u32, u64) {
        (self.retries, self.timeout_ns(self.rtt.late_after_ns()))
    }

    /// The peer reported progress: the timers restart.
    pub(super) fn progress(&mut self, now: Time) {
        self.start_over(now);
        self.probe_pending = false;
    }

    /// The peer works, although it has no progress to report. The current wait starts again, but tail probes do not get
    /// more frequent than two in an RTO.
    pub(super) fn peer_is_alive(&mut self, now: Time) {
        self.timer_base = now;
        self.retries = 0;
        let most_ns = self.timeout_ns(self.rtt.late_after_ns()) / 2;
        self.least_probe_wait_ns = self.least_probe_wait_ns.min(most_ns);
    }

    pub(super) fn start_over(&mut self, now: Time) {
        self.timer_base = now;
        self.retries = 0;
        self.least_probe_wait_ns = 0;
        (self.tail_probes, self.probed) = (0, None);
        self.new_asked = false;
        self.any_plane = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_linear_then_exponential_then_over() {
        let policy = RetryPolicy { timeout_ns: 100, linear: 2, exponential: 3 };
        let waits: Vec<_> = (0..7).map(|retries| policy.interval_ns(retries)).collect();
        assert_eq!(
            waits,
            [Some(100), Some(100), Some(100), Some(200), Some(400), Some(800), None],
            "the first wait, two linear retries, three exponential ones"
        );
        let forever = RetryPolicy { timeout_ns: 1, linear: 0, exponential: 25 };
        assert_eq!(forever.interval_ns(1_000), Some(1 << 24));
        for policy in [
            policy,
            RetryPolicy { linear: 0, ..policy },
            RetryPolicy { linear: 7, exponential: 24, ..policy },
        ] {
            let mut waited = 0;
            for retries in 0..5 {
                assert_eq!(policy.waited_ns(retries), waited, "{policy:?} {retries}");
                waited += policy.interval_ns(retries).unwrap_or(0);
            }
        }
        assert_eq!(forever.waited_ns(u32::MAX), 1 + (2 << 24) - 2);
    }
}
