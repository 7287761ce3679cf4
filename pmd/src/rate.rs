//! A port that sends no faster than its link would, were it so slow.
//!
//! A NIC takes frames at the rate of its link and has its host wait; so does this. It makes a slow NIC of a port whose
//! medium has no rate of its own, such as a virtual link or a ring: no frame waits in a queue, and none is lost, for what there is no
//! room for stays with the caller.

use crate::forward_to_inner;
use crate::{LinkState, Medium, Port, PortCaps, PortCounters, TxFrame};

/// Picoseconds in a nanosecond: what a byte takes is no whole number of nanoseconds.
const PS: u128 = 1000;
/// Bits of a byte times picoseconds of a second.
const BIT_PS_PER_BYTE: u128 = 8_000_000_000_000;

/// How late the link may be, in nanoseconds: what a NIC sends out of its ring while its host sees to other things. More would be a burst
/// that the next queue on the way holds up.
pub const BURST_NS: u64 = 250_000;

/// A medium with a rate. Within a host there is none.
fn limited(medium: Medium, limit_bps: u64) -> Medium {
    match medium {
        Medium::Host => Medium::Host,
        Medium::Network { rate_bps } => {
            Medium::Network { rate_bps: Some(rate_bps.map_or(limit_bps, |its| its.min(limit_bps))) }
        }
    }
}

/// A port with a rate: whole Ethernet frames, without what a wire has around them, are counted.
///
/// A frame is sent as soon as the link would have sent all before it; after a pause, as many at once as it would have sent in the last
/// [`BURST_NS`].
pub struct RatePort<P: Port + ?Sized> {
    caps: PortCaps,
    rate_bps: u128,
    /// When the link has sent all that it was given.
    idle_at_ps: u128,
    /// Somebody waits for that.
    awaited: bool,
    refused: u64,
    inner: Box<P>,
}

impl<P: Port + ?Sized> RatePort<P> {
    /// Wraps `inner`, for so many bits per second; none counts as one. A port to a network says that this is its rate.
    pub fn new(inner: Box<P>, rate_bps: u64) -> Self {
        let mut caps = inner.caps().clone();
        caps.medium = limited(caps.medium, rate_bps);
        Self { caps, rate_bps: u128::from(rate_bps.max(1)), idle_at_ps: 0, awaited: false, refused: 0, inner }
    }

    /// How long so many bytes take.
    fn time_of(&self, bytes: u64) -> u128 {
        u128::from(bytes) * BIT_PS_PER_BYTE / self.rate_bps
    }

    /// How long a frame takes. One that is too long for the port is lost, and none of them takes longer than the longest that is not.
    fn time_of_frame(&self, frame: &TxFrame<'_>) -> u128 {
        self.time_of(frame.len().min(self.caps.max_frame) as u64)
    }

    /// The time, and since when the link has had nothing to do, as far as that counts.
    fn begin(&self, now_ns: u64) -> (u128, u128) {
        let now = u128::from(now_ns) * PS;
        (now, self.idle_at_ps.max(now.saturating_sub(u128::from(BURST_NS) * PS)))
    }
}

impl<P: Port + ?Sized> Port for RatePort<P> {
    forward_to_inner!(unsent, flush, rx_burst, reap, recall, readable);

    fn caps(&self) -> &PortCaps {
        &self.caps
    }

    /// Asked often enough for what else may have changed.
    fn link(&mut self) -> LinkState {
        let link = self.inner.link();
        let now = self.inner.caps();
        let lengths = |caps: &PortCaps| (caps.notes.len(), caps.send_errors.len(), caps.same_path_batch);
        if lengths(&self.caps) != lengths(now) {
            self.caps.notes.clone_from(&now.notes);
            self.caps.send_errors.clone_from(&now.send_errors);
            self.caps.same_path_batch = now.same_path_batch;
        }
        link
    }

    fn tx_room(&mut self, now_ns: u64) -> usize {
        let (now, idle_at) = self.begin(now_ns);
        self.awaited = idle_at > now;
        if self.awaited {
            self.refused += 1;
            return 0;
        }
        // However long they are.
        let longest = self.time_of(self.caps.max_frame as u64).max(1);
        let sure = 1 + (now - idle_at) / longest;
        self.inner.tx_room(now_ns).min(usize::try_from(sure).unwrap_or(usize::MAX))
    }

    fn tx_burst(&mut self, now_ns: u64, frames: &[TxFrame<'_>]) -> usize {
        let (now, idle_at) = self.begin(now_ns);
        let mut end = idle_at;
        let fits = frames.iter().take_while(|frame| {
            let fits = end <= now;
            end += self.time_of_frame(frame);
            fits
        });
        let fits = fits.count();
        let refused = fits < frames.len();
        self.refused += u64::from(refused);
        let offered = frames.get(..fits).unwrap_or(frames);
        let taken = self.inner.tx_burst(now_ns, offered);
        let unsent = self.inner.unsent();
        let sent = (0..).zip(offered.iter().take(taken)).filter(|(at, _)| unsent.binary_search(at).is_err());
        self.idle_at_ps = idle_at + sent.map(|(_, frame)| self.time_of_frame(frame)).sum::<u128>();
        self.awaited = refused && self.idle_at_ps > now;
        taken
    }

    fn next_event_ns(&self) -> Option<u64> {
        let own = self.awaited.then(|| u64::try_from(self.idle_at_ps.div_ceil(PS)).unwrap_or(u64::MAX));
        own.into_iter().chain(self.inner.next_event_ns()).min()
    }

    fn counters(&self) -> PortCounters {
        let inner = self.inner.counters();
        PortCounters { tx_full: inner.tx_full + self.refused, ..inner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_as_fast_as_its_slowest_part() {
        let network = |rate_bps| Medium::Network { rate_bps };
        for (medium, expected) in [
            (network(None), network(Some(5))),
            (network(Some(4)), network(Some(4))),
            (network(Some(6)), network(Some(5))),
            (Medium::Host, Medium::Host),
        ] {
            assert_eq!(limited(medium, 5), expected);
        }
    }
}
