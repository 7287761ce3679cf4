//! No congestion control: bytes in flight are counted but never limited.

use super::{AckSample, CongestionControl};
use crate::time::Time;

/// The NULL algorithm: always allows another packet. For back-to-back links and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCc {
    inflight: u64,
}

impl CongestionControl for NoCc {
    #[inline]
    fn on_send(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_add(bytes);
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckSample) {
        self.on_discard(ack.newly_acked);
    }

    fn on_trim_nack(&mut self, _now: Time, bytes: u64, _last_hop: bool) {
        self.on_discard(bytes);
    }

    fn on_loss(&mut self, _now: Time, bytes: u64) {
        self.on_discard(bytes);
    }

    #[inline]
    fn on_discard(&mut self, bytes: u64) {
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    #[inline]
    fn may_send(&self, _bytes: u64) -> bool {
        true
    }

    #[inline]
    fn wants_ack(&self, _bytes: u64) -> bool {
        false
    }

    fn cwnd(&self) -> u64 {
        u64::MAX
    }

    fn inflight(&self) -> u64 {
        self.inflight
    }
}
