//! Adaptive congestion control: the algorithm follows the congestion signals of the switches.
//!
//! Trims and marks are early and cheap signals, and NSCC is made for them. Where switches only drop, NSCC learns
//! little and mostly grows, so [windows of CUBIC for each plane](super::window) limit the bytes in flight. Trims
//! select NSCC; congestion losses without trims select the windows. Both algorithms process all events, so either can
//! take over at any time.

use tracing::debug;

use super::planes::Planes;
use super::window::Cut;
use super::{AckSample, CcConfig, CongestionControl, Flight, Nscc};
use crate::time::Time;
use crate::wire::Qpn;

/// Number of trimmed packets, or of windows cut for losses while packets waited in queues, that switches the
/// algorithm; and the minimum ratio to events of the other kind.
const SIGNS: u32 = 16;
const RATIO: u32 = 4;

/// NSCC where switches trim, a window of CUBIC for each plane where they drop.
#[derive(Clone, Debug)]
pub struct Adaptive {
    nscc: Nscc,
    planes: Planes,
    /// The windows per plane are in force.
    drops: bool,
    /// Packets trimmed, and windows cut for losses while packets waited in queues, since the last switch.
    trimmed: u32,
    lost: u32,
    /// Largest window at the configured round-trip time, bytes, and that time, ns.
    most: f64,
    config_rtt: f64,
}

impl Adaptive {
    pub(super) fn new(cfg: &CcConfig, now: Time) -> Self {
        Self {
            nscc: Nscc::new(cfg, now),
            planes: Planes::new(cfg.mtu_bytes),
            drops: !cfg.trimming,
            trimmed: 0,
            lost: 0,
            most: cfg.max_window(),
            config_rtt: cfg.base_rtt_ns as f64,
        }
    }

    /// Whether windows per plane limit the bytes in flight, instead of NSCC.
    pub const fn by_plane(&self) -> bool {
        self.drops
    }

    pub(super) const fn set_qpn(&mut self, qpn: Qpn) {
        self.nscc.qpn = qpn;
    }

    pub(super) fn make_room(&mut self, planes: u8) {
        self.planes.make_room(planes);
    }

    /// The largest window. The configured round-trip time is a hint: a longer one allows more.
    fn most(&self) -> f64 {
        let longer = self.planes.base_ns() as f64 / self.config_rtt;
        self.most * longer.max(1.0)
    }

    #[inline]
    pub(super) fn on_send(&mut self, packet: &Flight) {
        self.nscc.on_send(packet.bytes);
        self.planes.on_send(packet);
    }

    #[inline]
    pub(super) fn on_arrival(&mut self, packet: &Flight) {
        let most = self.most();
        self.planes.on_arrival(packet, most);
    }

    pub(super) fn on_ack(&mut self, ack: &AckSample) {
        self.nscc.on_ack(ack);
        if let Some(rtt_ns) = ack.rtt_ns {
            self.planes.on_sample(ack.now, ack.plane, rtt_ns, ack.ecn);
        }
        let (most, qpn, shows) = (self.most(), self.nscc.qpn, self.drops);
        self.planes.end_rounds(ack.now, most, |plane, cut, before, after| {
            if shows {
                log_cut(qpn, plane, cut, before, after);
            }
        });
    }

    pub(super) fn on_trim_nack(&mut self, now: Time, packet: &Flight, last_hop: bool) {
        self.nscc.on_trim_nack(now, packet.bytes, last_hop);
        self.lose(now, packet, true);
        self.trimmed += 1;
        if self.trimmed >= SIGNS && self.trimmed >= RATIO * self.lost {
            self.change(false);
        }
    }

    /// A packet in flight was lost. `counts`: the loss is a sign of congestion.
    pub(super) fn on_loss(&mut self, now: Time, packet: &Flight, counts: bool) {
        self.nscc.on_loss(now, packet.bytes);
        if !counts {
            return self.planes.on_gone(packet);
        }
        // Random losses, and losses of a failed path, do not depend on queueing.
        if self.lose(now, packet, true) && self.planes.queues(packet.plane) {
            self.lost += 1;
            if self.lost >= SIGNS && self.lost >= RATIO * self.trimmed {
                self.change(true);
            }
        }
    }

    /// A packet was lost whose retransmission still counts as in flight. Without queueing, the peer may have been
    /// paused instead.
    pub(super) fn on_repaired_loss(&mut self, now: Time, packet: &Flight) {
        if self.planes.queues(packet.plane) {
            self.lose(now, packet, false);
        }
    }

    /// Returns whether the window of the plane was cut.
    fn lose(&mut self, now: Time, packet: &Flight, in_flight: bool) -> bool {
        let before = self.planes.cwnd();
        let Some(cut) = self.planes.on_loss(now, packet, in_flight) else { return false };
        if self.drops {
            log_cut(self.nscc.qpn, packet.plane, cut, before, self.planes.cwnd());
        }
        true
    }

    /// A packet that was declared lost, and does not count as in flight, has arrived.
    pub(super) fn on_wrong_loss(&mut self, packet: &Flight) {
        self.planes.on_wrong_loss(packet);
    }

    /// A packet in flight now takes another path.
    pub(super) fn on_move(&mut self, from: &Flight, to: &Flight) {
        self.planes.on_gone(from);
        self.planes.on_send(to);
    }

    pub(super) fn on_discard(&mut self, packet: &Flight) {
        self.nscc.on_discard(packet.bytes);
        self.planes.on_gone(packet);
    }

    pub(super) fn clear(&mut self) {
        self.nscc.on_discard(self.nscc.inflight());
        self.planes.clear();
    }

    fn change(&mut self, drops: bool) {
        (self.trimmed, self.lost) = (0, 0);
        if self.drops != drops {
            self.drops = drops;
            if drops {
                self.planes.take_over();
            }
            debug!(
                target: "spindrift::congestion",
                qpn = %self.nscc.qpn,
                by = if drops { "a window for each plane" } else { "NSCC" },
                "congestion control follows the network"
            );
        }
    }

    /// The planes on which a packet of `bytes` may leave now.
    #[inline]
    pub(super) fn open_planes(&self, bytes: u64, now: Time) -> u32 {
        if !self.drops {
            return if self.nscc.may_send(bytes) { u32::MAX } else { 0 };
        }
        if self.fits(bytes) { self.planes.open(now) } else { 0 }
    }

    /// Whether all planes together have room for a packet of `bytes`.
    #[inline]
    fn fits(&self, bytes: u64) -> bool {
        let inflight = self.nscc.inflight();
        let fits = inflight == 0 || (inflight + bytes) as f64 <= self.most();
        fits && (!self.nscc.is_penalised() || self.nscc.may_send(bytes))
    }

    pub(super) fn opens_at(&self, now: Time) -> Time {
        if self.drops { self.planes.opens_at(now) } else { Time::NEVER }
    }

    #[inline]
    pub(super) fn wants_ack(&self, plane: u8, bytes: u64) -> bool {
        if !self.drops {
            return self.nscc.wants_ack(bytes);
        }
        let fills_all = (self.inflight() + bytes) as f64 + self.planes.mtu() > self.most();
        fills_all || self.planes.is_filled_by(plane, bytes, self.nscc.ack_gen_trigger())
    }

    pub(super) fn cwnd(&self) -> u64 {
        if self.drops { self.planes.cwnd().min(self.most()) as u64 } else { self.nscc.cwnd() }
    }

    #[inline]
    pub(super) fn inflight(&self) -> u64 {
        self.nscc.inflight()
    }
}

#[cold]
fn log_cut(qpn: Qpn, plane: u8, cut: Cut, before: f64, after: f64) {
    if after >= before {
        return;
    }
    let reason = match cut {
        Cut::Loss => "loss",
        Cut::Mark => "marks",
    };
    debug!(
        target: "spindrift::congestion",
        %qpn,
        plane,
        reason,
        before_bytes = before as u64,
        cwnd_bytes = after as u64,
        "congestion window cut"
    );
}
