//! How much a queue pair may have in flight.
//!
//! A [`Controller`] is told about every packet sent, acknowledged, trimmed and lost, and decides whether
//! another may be sent. It is plain data without a clock. Bytes are nominal packet sizes: the UDP payload
//! plus 40, so that an IPv4 and an IPv6 path, with or without segment routing, count the same.
//!
//! A queue pair has a controller of its own, or shares one with others to the same peer ([`CcConfig::shared`]).
//!
//! There are two reactions to congestion: an ECN mark first makes the queue pair skip the marked path
//! ([`Paths::on_ecn`](crate::path::Paths::on_ecn)), and only where delay shows that all paths are full
//! does the window shrink (MRC paper, section 2.1).
//!
//! ```
//! use spindrift::congestion::{AckSample, CcConfig, CongestionControl, build};
//! use spindrift::time::Time;
//!
//! // 100 Gb/s, 12 us round trip, 4 KiB packets.
//! let mut cc = build(&CcConfig::new(100_000_000_000, 12_000, 4096), Time::ZERO)?;
//! while cc.may_send(4096) {
//!     cc.on_send(4096);
//! }
//! let in_flight = cc.inflight();
//! cc.on_ack(&AckSample { rtt_ns: Some(12_000), ..AckSample::new(Time(12_000), 4096) });
//! assert_eq!(cc.inflight(), in_flight - 4096);
//! # Ok::<(), spindrift::congestion::CcConfigError>(())
//! ```

mod config;
mod none;
mod nscc;
#[cfg(test)]
mod tests;

pub use self::config::{CcAlgorithm, CcConfig, CcConfigError, NsccOverrides};
pub use self::none::NoCc;
pub use self::nscc::Nscc;

use crate::time::Time;
use crate::wire::Qpn;

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckSample {
    /// When it arrived.
    pub now: Time,
    /// Bytes of the packets that it acknowledges for the first time and that were in flight.
    pub newly_acked: u64,
    /// The packet that triggered it was ECN-marked (SACK `m` = `SKIP_ONCE`, MRC 1.0 table 7-14).
    pub ecn: bool,
    /// Round-trip time, if it is certain which transmission is acknowledged: the packet was never
    /// retransmitted, or once and this is the answer to the retransmission.
    pub rtt_ns: Option<u64>,
    /// The receiver's window penalty in 1/128 (`rcv_cwnd_pen`, MRC 1.0 table 7-12).
    pub penalty: u8,
    /// The receiver takes its penalties back (`r_c`, MRC 1.0 table 7-12).
    pub restore_cwnd: bool,
}

impl AckSample {
    /// An acknowledgement of `newly_acked` bytes that says nothing else.
    pub const fn new(now: Time, newly_acked: u64) -> Self {
        Self { now, newly_acked, ecn: false, rtt_ns: None, penalty: 0, restore_cwnd: false }
    }
}

/// An algorithm that limits what is in flight.
pub trait CongestionControl {
    /// A packet of `bytes` goes out, first time or again.
    fn on_send(&mut self, bytes: u64);

    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &AckSample);

    /// The peer reports a packet of `bytes` as trimmed, on the last hop or before.
    fn on_trim_nack(&mut self, now: Time, bytes: u64, last_hop: bool);

    /// A packet of `bytes` is taken for lost: inferred, not reported by a NACK.
    fn on_loss(&mut self, now: Time, bytes: u64);

    /// Packets of `bytes` in flight are given up because the queue pair was reset or failed.
    fn on_discard(&mut self, bytes: u64);

    /// Whether a packet of `bytes` may go now.
    ///
    /// Always true when nothing is in flight: without an acknowledgement to wait for, a refusal would
    /// never end.
    fn may_send(&self, bytes: u64) -> bool;

    /// Whether a packet of `bytes` that goes next should ask for an acknowledgement (BTH.a), because without one
    /// the window may run out before the receiver sends one of its own accord.
    fn wants_ack(&self, bytes: u64) -> bool;

    /// The window in bytes.
    fn cwnd(&self) -> u64;

    /// Bytes sent and neither acknowledged, trimmed, lost nor discarded.
    fn inflight(&self) -> u64;
}

/// The congestion control of a queue pair, chosen at set-up.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost a cache miss for every packet")]
pub enum Controller {
    /// No limit.
    None(NoCc),
    /// NSCC.
    Nscc(Nscc),
}

/// The controller that `cfg` describes, for a queue pair that starts at `now`.
///
/// # Errors
/// What [`CcConfig::validate`] finds.
pub fn build(cfg: &CcConfig, now: Time) -> Result<Controller, CcConfigError> {
    cfg.validate()?;
    Ok(match cfg.algorithm {
        CcAlgorithm::None => Controller::None(NoCc::default()),
        CcAlgorithm::Nscc => Controller::Nscc(Nscc::new(cfg, now)),
    })
}

impl Controller {
    /// Names the queue pair that this controller's reports are about.
    pub(crate) fn set_qpn(&mut self, qpn: Qpn) {
        if let Self::Nscc(nscc) = self {
            nscc.qpn = qpn;
        }
    }
}

macro_rules! forward {
    ($self:ident, $cc:ident => $call:expr) => {
        match $self {
            Controller::None($cc) => $call,
            Controller::Nscc($cc) => $call,
        }
    };
}

impl CongestionControl for Controller {
    #[inline]
    fn on_send(&mut self, bytes: u64) {
        forward!(self, cc => cc.on_send(bytes));
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckSample) {
        forward!(self, cc => cc.on_ack(ack));
    }

    fn on_trim_nack(&mut self, now: Time, bytes: u64, last_hop: bool) {
        forward!(self, cc => cc.on_trim_nack(now, bytes, last_hop));
    }

    fn on_loss(&mut self, now: Time, bytes: u64) {
        forward!(self, cc => cc.on_loss(now, bytes));
    }

    fn on_discard(&mut self, bytes: u64) {
        forward!(self, cc => cc.on_discard(bytes));
    }

    #[inline]
    fn may_send(&self, bytes: u64) -> bool {
        forward!(self, cc => cc.may_send(bytes))
    }

    #[inline]
    fn wants_ack(&self, bytes: u64) -> bool {
        forward!(self, cc => cc.wants_ack(bytes))
    }

    fn cwnd(&self) -> u64 {
        forward!(self, cc => cc.cwnd())
    }

    fn inflight(&self) -> u64 {
        forward!(self, cc => cc.inflight())
    }
}
