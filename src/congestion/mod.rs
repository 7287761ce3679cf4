//! Congestion control: limits the bytes that a queue pair has in flight.
//!
//! A [`Controller`] gets every packet sent, acknowledged, trimmed and lost, and decides whether another may be sent.
//! It is plain data without a clock. Bytes are nominal packet sizes: the UDP payload plus 40, so that an IPv4 and an
//! IPv6 path, with or without segment routing, count the same.
//!
//! A queue pair has a controller of its own, or shares one with others to the same peer ([`CcConfig::shared`]).
//!
//! There are two reactions to congestion. An ECN mark first makes the queue pair skip the marked path
//! ([`Paths::on_ecn`](crate::path::Paths::on_ecn)). Only if delay shows that all paths are full does the window
//! shrink (MRC paper, section 2.1).
//!
//! ```
//! use spindrift::congestion::{AckSample, CcConfig, Flight, build};
//! use spindrift::time::Time;
//!
//! // 100 Gb/s, 12 us round trip, 4 KiB packets.
//! let mut cc = build(&CcConfig::new(100_000_000_000, 12_000, 4096), Time::ZERO)?;
//! let packet = Flight { plane: 0, bytes: 4096, sent_at: Time::ZERO };
//! while cc.open_planes(4096, Time::ZERO) != 0 {
//!     cc.on_send(&packet);
//! }
//! let in_flight = cc.inflight();
//! cc.on_arrival(&packet);
//! cc.on_ack(&AckSample { rtt_ns: Some(12_000), ..AckSample::new(Time(12_000), 4096) });
//! assert_eq!(cc.inflight(), in_flight - 4096);
//! # Ok::<(), spindrift::congestion::CcConfigError>(())
//! ```

mod adaptive;
mod config;
mod none;
mod nscc;
mod planes;
#[cfg(test)]
mod tests;
mod window;

pub use self::adaptive::Adaptive;
pub use self::config::{CcAlgorithm, CcConfig, CcConfigError, NsccOverrides};
pub use self::none::NoCc;
pub use self::nscc::Nscc;

use crate::time::Time;
use crate::wire::Qpn;

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSample {
    /// Its time of arrival.
    pub now: Time,
    /// Bytes of the packets that it acknowledges for the first time and that were in flight.
    pub newly_acked: u64,
    /// The packet that triggered it was ECN-marked (SACK `m` = `SKIP_ONCE`, MRC 1.0 table 7-14).
    pub ecn: bool,
    /// Round-trip time, if it is certain which transmission is acknowledged: the packet was never retransmitted, or
    /// once and this acknowledges the retransmission.
    pub rtt_ns: Option<u64>,
    /// The receiver's window penalty in 1/128 (`rcv_cwnd_pen`, MRC 1.0 table 7-12).
    pub penalty: u8,
    /// The receiver takes its penalties back (`r_c`, MRC 1.0 table 7-12).
    pub restore_cwnd: bool,
    /// The plane of the packet that triggered it, if there is a round-trip time.
    pub plane: u8,
}

/// A packet in flight, as congestion control counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// The plane that it left on.
    pub plane: u8,
    /// Its nominal size.
    pub bytes: u64,
    /// Its send time.
    pub sent_at: Time,
}

impl AckSample {
    /// An acknowledgement of `newly_acked` bytes and nothing else.
    pub const fn new(now: Time, newly_acked: u64) -> Self {
        Self { now, newly_acked, ecn: false, rtt_ns: None, penalty: 0, restore_cwnd: false, plane: 0 }
    }
}

/// An algorithm that limits the bytes in flight.
pub trait CongestionControl {
    /// A packet of `bytes` is sent, first time or again.
    fn on_send(&mut self, bytes: u64);

    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &AckSample);

    /// The peer reports a packet of `bytes` as trimmed, on the last hop or before.
    fn on_trim_nack(&mut self, now: Time, bytes: u64, last_hop: bool);

    /// A packet of `bytes` was declared lost: inferred, not reported by a NACK.
    fn on_loss(&mut self, now: Time, bytes: u64);

    /// Packets of `bytes` in flight are discarded because the queue pair was reset or failed.
    fn on_discard(&mut self, bytes: u64);

    /// Whether a packet of `bytes` may leave now.
    ///
    /// Always true when nothing is in flight. Otherwise no acknowledgement could ever end the refusal.
    fn may_send(&self, bytes: u64) -> bool;

    /// Whether the next packet, of `bytes`, should request an acknowledgement (BTH.a), because the window may be used
    /// up before the receiver sends a SACK without a request.
    fn wants_ack(&self, bytes: u64) -> bool;

    /// The window in bytes.
    fn cwnd(&self) -> u64;

    /// Bytes sent and neither acknowledged, trimmed, lost nor discarded.
    fn inflight(&self) -> u64;
}

/// The congestion control of a queue pair, chosen at set-up.
#[derive(Clone, Debug)]
pub enum Controller {
    /// No limit.
    None(NoCc),
    /// NSCC.
    Nscc(Nscc),
    /// The algorithm that suits the network.
    Adaptive(Adaptive),
}

/// The controller for `cfg`, for a queue pair that starts at `now`.
///
/// # Errors
/// The errors of [`CcConfig::validate`].
pub fn build(cfg: &CcConfig, now: Time) -> Result<Controller, CcConfigError> {
    cfg.validate()?;
    Ok(match cfg.algorithm {
        CcAlgorithm::None => Controller::None(NoCc::default()),
        CcAlgorithm::Nscc => Controller::Nscc(Nscc::new(cfg, now)),
        CcAlgorithm::Adaptive => Controller::Adaptive(Adaptive::new(cfg, now)),
    })
}

macro_rules! forward {
    ($self:ident, $cc:ident => $call:expr, $adaptive:ident => $other:expr) => {
        match $self {
            Controller::None($cc) => $call,
            Controller::Nscc($cc) => $call,
            Controller::Adaptive($adaptive) => $other,
        }
    };
}

impl Controller {
    /// Sets the queue pair of this controller's reports, and its number of planes.
    pub(crate) fn set_up(&mut self, qpn: Qpn, planes: u8) {
        match self {
            Self::None(_) => {}
            Self::Nscc(nscc) => nscc.qpn = qpn,
            Self::Adaptive(adaptive) => {
                adaptive.set_qpn(qpn);
                adaptive.make_room(planes);
            }
        }
    }

    /// Whether [`on_arrival`](Self::on_arrival) must be called for each packet.
    #[inline]
    pub const fn counts_packets(&self) -> bool {
        matches!(self, Self::Adaptive(_))
    }

    /// A packet is sent, first time or again.
    #[inline]
    pub fn on_send(&mut self, packet: &Flight) {
        forward!(self, cc => cc.on_send(packet.bytes), adaptive => adaptive.on_send(packet));
    }

    /// A packet in flight has arrived. [`on_ack`](Self::on_ack) follows and counts it too.
    #[inline]
    pub fn on_arrival(&mut self, packet: &Flight) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.on_arrival(packet);
        }
    }

    /// An acknowledgement arrived.
    #[inline]
    pub fn on_ack(&mut self, ack: &AckSample) {
        forward!(self, cc => cc.on_ack(ack), adaptive => adaptive.on_ack(ack));
    }

    /// The peer reports a packet as trimmed, on the last hop or before.
    pub fn on_trim_nack(&mut self, now: Time, packet: &Flight, last_hop: bool) {
        forward!(
            self,
            cc => cc.on_trim_nack(now, packet.bytes, last_hop),
            adaptive => adaptive.on_trim_nack(now, packet, last_hop)
        );
    }

    /// A packet was declared lost: inferred, not reported by a NACK. `counts`: the loss is attributed to congestion
    /// and not to a dead path.
    pub fn on_loss(&mut self, now: Time, packet: &Flight, counts: bool) {
        forward!(
            self,
            cc => cc.on_loss(now, packet.bytes),
            adaptive => adaptive.on_loss(now, packet, counts)
        );
    }

    /// A copy of a packet was lost, and a later one arrived that a tail loss probe had sent. The packet counted as in
    /// flight throughout (RFC 8985 section 7.4).
    pub fn on_repaired_loss(&mut self, now: Time, copy: &Flight) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.on_repaired_loss(now, copy);
        }
    }

    /// A packet that was declared lost has arrived.
    pub fn on_wrong_loss(&mut self, packet: &Flight) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.on_wrong_loss(packet);
        }
    }

    /// A packet in flight is sent again, and counts on the plane of its latest copy.
    pub fn on_move(&mut self, from: &Flight, to: &Flight) {
        if let Self::Adaptive(adaptive) = self {
            adaptive.on_move(from, to);
        }
    }

    /// A packet in flight is discarded because the queue pair was reset or failed, or never left.
    pub fn on_discard(&mut self, packet: &Flight) {
        forward!(self, cc => cc.on_discard(packet.bytes), adaptive => adaptive.on_discard(packet));
    }

    /// Discards everything in flight.
    pub fn clear(&mut self) {
        forward!(self, cc => cc.on_discard(cc.inflight()), adaptive => adaptive.clear());
    }

    /// The planes on which a packet of `bytes` may leave now, a bit for each.
    ///
    /// There is always one when nothing is in flight, unless packets are paced. Otherwise no acknowledgement could
    /// ever end the refusal.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every packet; measured by benches/instructions.rs")]
    pub fn open_planes(&self, bytes: u64, now: Time) -> u32 {
        match self {
            // Whatever is in flight.
            Self::None(_) => u32::MAX,
            Self::Nscc(cc) => {
                if cc.may_send(bytes) {
                    u32::MAX
                } else {
                    0
                }
            }
            Self::Adaptive(adaptive) => adaptive.open_planes(bytes, now),
        }
    }

    /// Time at which a plane opens without an acknowledgement, because packets are paced; [`Time::NEVER`] if none
    /// does.
    pub fn opens_at(&self, now: Time) -> Time {
        match self {
            Self::Adaptive(adaptive) => adaptive.opens_at(now),
            Self::None(_) | Self::Nscc(_) => Time::NEVER,
        }
    }

    /// Whether the next packet, of `bytes` on this plane, should request an acknowledgement (BTH.a), because the
    /// window may be used up before the receiver sends a SACK without a request.
    #[inline]
    pub fn wants_ack(&self, plane: u8, bytes: u64) -> bool {
        forward!(self, cc => cc.wants_ack(bytes), adaptive => adaptive.wants_ack(plane, bytes))
    }

    /// The window in bytes, of all planes together.
    pub fn cwnd(&self) -> u64 {
        forward!(self, cc => cc.cwnd(), adaptive => adaptive.cwnd())
    }

    /// Bytes sent and neither acknowledged, trimmed, lost nor discarded.
    #[inline]
    pub fn inflight(&self) -> u64 {
        forward!(self, cc => cc.inflight(), adaptive => adaptive.inflight())
    }
}
