//! A queue pair: its two halves, its rate, and what waits to be sent.

use spindrift::time::Time;
use spindrift::wire::{AethKind, NakCode, Psn, Qpn};

use crate::dcqcn::{Dcqcn, ReactionPoint};
use crate::requester::{Requester, Retry};
use crate::responder::{NotificationPoint, Placed, Responder};
use crate::wire::{Content, Path};

/// What a queue pair is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpSpec {
    /// Payload of a full packet in bytes.
    pub mtu: u32,
    /// Retries.
    pub retry: Retry,
    /// Packets received between acknowledgements, at most.
    pub ack_every: u32,
    /// The least time between two CNPs, ns.
    pub cnp_interval_ns: u64,
    /// Congestion control; `None` to send at the rate of the port.
    pub dcqcn: Option<Dcqcn>,
    /// The rate of a port, bits per second.
    pub line_bps: u64,
}

/// What the two sides of a connection tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// The way to it.
    pub path: Path,
}

const PS_PER_NS: u64 = 1_000;
const PS_PER_S: u128 = 1_000_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) peer: Peer,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    notification: NotificationPoint,
    rate: Option<ReactionPoint>,
    line_bps: u64,
    /// A CNP waits to be sent.
    cnp_waits: bool,
    /// When the rate allows the next packet, in picoseconds.
    next_ps: u64,
    /// Whether it is in the lists of its endpoint: of those that may send, of those with an acknowledgement or a CNP to send.
    pub(crate) scheduled: bool,
    pub(crate) has_control: bool,
    /// For when its endpoint has set a timer for it.
    pub(crate) timer_at: Time,
}

impl Qp {
    /// Begins to send at `psn`.
    pub(crate) fn new(spec: &QpSpec, psn: Psn, peer: Peer) -> Self {
        Self {
            peer,
            requester: Requester::new(psn, spec.mtu, spec.retry),
            responder: Responder::new(peer.psn, spec.mtu, spec.ack_every),
            notification: NotificationPoint::new(spec.cnp_interval_ns),
            rate: spec.dcqcn.map(|dcqcn| ReactionPoint::new(dcqcn, spec.line_bps)),
            line_bps: spec.line_bps,
            cnp_waits: false,
            next_ps: 0,
            scheduled: false,
            has_control: false,
            timer_at: Time::NEVER,
        }
    }

    /// A packet for it has come in. What that placed.
    pub(crate) fn receive(&mut self, now: Time, content: &Content, marked: bool) -> Option<Placed> {
        match content {
            Content::Data(data) => {
                if marked {
                    self.responder.count_mark();
                    self.cnp_waits |= self.notification.on_mark(now);
                }
                return self.responder.receive(data);
            }
            Content::Ack { psn, aeth } => match aeth.kind() {
                AethKind::Ack => self.requester.on_ack(now, *psn),
                AethKind::Nak(NakCode::PsnSequence) => self.requester.on_sequence_nak(now, *psn),
                AethKind::Nak(_) => self.requester.on_refusal(now, *psn),
                // No credits are used, and no receive requests: none of these can be meant.
                AethKind::Other(_) => {}
            },
            Content::Cnp => {
                if let Some(rate) = &mut self.rate {
                    rate.on_cnp(now);
                }
            }
        }
        None
    }

    /// Whether a CNP or an acknowledgement waits to be sent.
    pub(crate) const fn control_waits(&self) -> bool {
        self.cnp_waits || self.responder.has_reply()
    }

    /// The one to send next: CNPs first, since the sender is too fast as long as it has not heard.
    pub(crate) fn control(&mut self) -> Option<Content> {
        if core::mem::take(&mut self.cnp_waits) {
            return Some(Content::Cnp);
        }
        self.responder.reply()
    }

    /// When its rate allows the next packet.
    pub(crate) const fn may_send_at(&self) -> Time {
        Time(self.next_ps.div_ceil(PS_PER_NS))
    }

    /// So many bytes have been given to the port: the next packet has to wait for as long as they take at the queue pair's rate.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64) {
        let Some(point) = &mut self.rate else { return };
        point.on_sent(now, bytes);
        let rate = point.rate_bps(now);
        if rate >= self.line_bps {
            return;
        }
        let takes = u128::from(bytes) * 8 * PS_PER_S / u128::from(rate.max(1));
        // It is asked up to a nanosecond after its time, which must not add up.
        let start = self.next_ps.max(now.0.saturating_mul(PS_PER_NS).saturating_sub(PS_PER_NS - 1));
        self.next_ps = start.saturating_add(takes as u64);
    }

    /// Its rate now, bits per second.
    pub(crate) fn rate_bps(&mut self, now: Time) -> u64 {
        self.rate.as_mut().map_or(self.line_bps, |rate| rate.rate_bps(now))
    }

    /// CNPs that came in, and that were sent.
    pub(crate) fn cnps(&self) -> [u64; 2] {
        [self.rate.as_ref().map_or(0, ReactionPoint::cnps), self.notification.sent()]
    }
}
