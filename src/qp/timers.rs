//! Actions of a queue pair when its deadline expires.

use crate::requester::TimerVerdict;
use crate::time::Time;
use crate::work::WcStatus;

use super::{Cx, FailReason, Qp, QpState, Wakes};

impl Qp {
    /// The queue pair's next deadline.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Time {
        if !self.receives() {
            return Time::NEVER;
        }
        // While it is in the list, probes are sent as soon as there is room. It is armed again when it leaves the
        // list.
        let paths = match (self.state, self.in_control_list) {
            (QpState::Rts, false) => self.paths.next_timeout(),
            (QpState::Rts, true) => self.paths.next_expiry(),
            _ => Time::NEVER,
        };
        self.requester.next_timeout().min(paths).min(self.reverse.check_at()).min(self.pace_at)
    }

    /// Runs the timers.
    pub(crate) fn on_timeout(&mut self, cx: &mut Cx, now: Time) -> Wakes {
        let mut wakes = Wakes::NONE;
        cx.cwnds.now = now;
        if self.pace_at <= now {
            self.pace_at = Time::NEVER;
        }
        if self.state == QpState::Rts {
            let timeouts = cx.counters.timeouts;
            let (requester, mut env) = self.send_context(&mut cx.cwnds, &mut cx.counters);
            if requester.on_timer(now, &mut env) == TimerVerdict::Exhausted {
                cx.counters.retries_exhausted += 1;
                let culprit = Some((None, WcStatus::RetryExceeded));
                return self.fail(cx, FailReason::RetryExceeded, culprit) | Wakes::CWND;
            }
            if cx.counters.timeouts != timeouts {
                self.log_timeout(&cx.peers);
                wakes |= self.leave_shared_cwnd_on_rto(cx);
            }
        }
        if self.paths.next_timeout() <= now {
            self.paths.on_timer(now);
            wakes |= Wakes::CONTROL;
        }
        self.check_reverse_paths(cx, now);
        wakes | Wakes::DATA | Wakes::CWND | Wakes::ARM
    }
}
