//! A host of a simulated fabric that runs RoCEv2.
//!
//! A flow is a queue pair in each direction, with a UDP source port and so a path of its own. For QP scaling, a workload has
//! [several flows](spindrift_fabric::Striping) between two hosts.

use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use spindrift::time::Time;
use spindrift::wire::{DscpMap, Psn};
use spindrift_fabric::{
    Class, ConnectError, FlowEvent, Free, Message, Messenger, Packet, Transport, TransportStats,
};
use spindrift_srv6::Fabric;

use crate::dcqcn::Profile;
use crate::endpoint::{Counters, Endpoint, Ports, QpEvent};
use crate::qp::{Peer, QpSpec};
use crate::requester::{Retry, Status, Write};
use crate::wire::Path;

/// What the NIC of a host is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoceSpec {
    /// Its queue pairs.
    pub qp: QpSpec,
    /// Messages that may be outstanding on a flow.
    pub depth: u32,
    /// The classes: data is sent as what must not be trimmed, acknowledgements and CNPs as control.
    pub dscp: DscpMap,
}

impl RoceSpec {
    /// One queue pair for each flow, at ports of this rate in bits per second; with congestion control, or without.
    ///
    /// Packets have 4,096 bytes of payload, and every 16 are acknowledged. The timer is 67 ms, 4.096 us times 2 to the power of 14, and there are 7 retries, as
    /// `ib_write_bw` has them.
    pub const fn new(port_bps: u64, profile: Option<Profile>) -> Self {
        let (dcqcn, cnp_interval_ns) = match profile {
            Some(profile) => (Some(profile.reaction(port_bps)), profile.cnp_interval_ns()),
            None => (None, Profile::Vendor.cnp_interval_ns()),
        };
        let qp = QpSpec {
            mtu: 4_096,
            retry: Retry { timeout: 14, count: 7, doublings: 0 },
            ack_every: 16,
            cnp_interval_ns,
            dcqcn,
            line_bps: port_bps,
        };
        let dscp = DscpMap {
            trimmable: 0,
            no_trim: 4,
            trimmable_retx: 8,
            trimmed: 12,
            trimmed_last_hop: 16,
            control: 46,
        };
        Self { qp, depth: 128, dscp }
    }

    /// Checks what cannot work.
    ///
    /// # Errors
    /// The setting, and what is wrong with it.
    pub fn validate(&self) -> Result<(), RoceError> {
        let wrong = |setting, why| Err(RoceError::Setting { setting, why });
        match self {
            Self { depth: 0, .. } => wrong("depth", "a flow holds at least one message"),
            Self { qp: QpSpec { mtu, .. }, .. } if !matches!(mtu, 256 | 512 | 1024 | 2048 | 4096) => {
                wrong("mtu", "a path MTU is 256, 512, 1024, 2048 or 4096")
            }
            Self { qp: QpSpec { retry: Retry { timeout: 32.., .. }, .. }, .. } => {
                wrong("timeout", "it has 5 bits: 0 to 31")
            }
            Self { qp: QpSpec { retry: Retry { count: 8.., .. }, .. }, .. } => {
                wrong("retry_count", "it has 3 bits: 0 to 7")
            }
            Self { qp: QpSpec { line_bps: 0, .. }, .. } => wrong("line_bps", "a port has a rate"),
            _ => Ok(()),
        }
    }
}

/// Why a host cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoceError {
    /// A setting that cannot work.
    #[error("{setting}: {why}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The fabric has no such host.
    #[error("the fabric has no host {0}")]
    NoHost(u16),
}

/// One side of a connection, whose number is that of its queue pair.
#[derive(Debug, Default)]
struct Flow {
    /// Messages that are not complete.
    outstanding: u32,
    failed: bool,
}

/// A host that runs `RoCEv2`.
pub struct RoceHost {
    spec: Arc<RoceSpec>,
    endpoint: Endpoint,
    /// This host's ports.
    addresses: Vec<std::net::Ipv6Addr>,
    /// Those without a carrier, bit n for plane n.
    down: u32,
    flows: Vec<Flow>,
    events: VecDeque<FlowEvent>,
    rng: Xoshiro256PlusPlus,
}

impl fmt::Debug for RoceHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoceHost").field("flows", &self.flows.len()).finish_non_exhaustive()
    }
}

/// Source ports of RoCEv2 (RFC 6335: the dynamic ones).
const SOURCE_PORTS: u16 = 0xc000;

impl RoceHost {
    /// The host with this number of a fabric, whose switches choose paths by a hash.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn new(spec: &Arc<RoceSpec>, fabric: &Fabric, number: u16, seed: u64) -> Result<Self, RoceError> {
        spec.validate()?;
        let planes = fabric.shape().planes;
        let addresses: Option<_> = (0..planes).map(|plane| fabric.address(number, plane)).collect();
        Ok(Self {
            spec: Arc::clone(spec),
            endpoint: Endpoint::new(planes, spec.dscp),
            addresses: addresses.ok_or(RoceError::NoHost(number))?,
            down: 0,
            flows: Vec::new(),
            events: VecDeque::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        })
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// The rate of a flow, bits per second; `None` if there is no such.
    pub fn rate_bps(&mut self, now: Time, flow: u32) -> Option<u64> {
        self.endpoint.rate_bps(now, flow)
    }

    fn take(&mut self, event: QpEvent) {
        let (QpEvent::Completed { qp: number, .. } | QpEvent::Placed { qp: number, .. }) = event;
        let Some(flow) = self.flows.get_mut(number as usize) else { return };
        match event {
            QpEvent::Completed { wr_id, status: Status::Success, .. } => {
                flow.outstanding = flow.outstanding.saturating_sub(1);
                self.events.push_back(FlowEvent::Sent { flow: number, tag: wr_id as u32 });
            }
            QpEvent::Completed { status, .. } => {
                if !core::mem::replace(&mut flow.failed, true) {
                    self.events.push_back(FlowEvent::Failed { flow: number, why: explain(status) });
                }
            }
            QpEvent::Placed { placed, .. } => {
                if let (Some(tag), true) = (placed.imm, placed.last) {
                    self.events.push_back(FlowEvent::Received { flow: number, tag });
                }
            }
        }
    }
}

const fn explain(status: Status) -> &'static str {
    match status {
        Status::Success => "nothing",
        Status::RetryExceeded => "no answer, after all retries",
        Status::Refused => "the peer refused a packet",
        Status::Flushed => "an earlier message failed",
    }
}

impl Transport for RoceHost {
    type Event = FlowEvent;

    fn receive(&mut self, now: Time, _plane: u8, packet: &Packet) {
        self.endpoint.receive(now, packet.head(), packet.body_len());
    }

    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        let up = !self.down;
        let ports = Ports { control: free.of(Class::Control) & up, data: free.of(Class::Data) & up };
        let Some((head, plane)) = self.endpoint.transmit(now, ports) else { return false };
        out.set_virtual(head.bytes(), head.follows);
        out.plane = plane;
        true
    }

    fn next_timeout(&self) -> Time {
        self.endpoint.next_timeout()
    }

    fn on_timeout(&mut self, now: Time) {
        self.endpoint.on_timeout(now);
    }

    /// The NIC reads what came in meanwhile before its timers expire, so there is nothing to do.
    fn on_pause(&mut self, _from: Time, _until: Time) {}

    /// A queue pair has one path, which it keeps: nothing is sent on a port that is down, and the queue pair waits for it to come back, or
    /// fails when its retries are exhausted.
    fn carrier(&mut self, _now: Time, plane: u8, up: bool) {
        let bit = 1_u32.checked_shl(plane.into()).unwrap_or_default();
        self.down = if up { self.down & !bit } else { self.down | bit };
    }

    fn poll(&mut self) -> Option<FlowEvent> {
        while self.events.is_empty() {
            let event = self.endpoint.poll()?;
            self.take(event);
        }
        self.events.pop_front()
    }
}

impl Messenger for RoceHost {
    fn connect(_now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        if one.spec.qp.mtu != other.spec.qp.mtu {
            return Err(ConnectError("the hosts differ in `mtu`".into()));
        }
        // The planes in turn.
        let planes = one.addresses.len().min(other.addresses.len()) as u32;
        let plane = one.endpoint.qps() % planes.max(1);
        let address = |host: &Self| host.addresses.get(plane as usize).copied();
        let (Some(a), Some(b)) = (address(one), address(other)) else {
            return Err(ConnectError("the hosts have no plane in common".into()));
        };
        let [ours, theirs] = [&mut *one, &mut *other].map(|host| {
            let bits = host.rng.next_u64();
            let source_port = SOURCE_PORTS | bits as u16 & 0x3fff;
            (host.endpoint.next_qpn(), Psn::new((bits >> 16) as u32), source_port)
        });
        let sides = [(one, [ours, theirs], (a, b)), (other, [theirs, ours], (b, a))];
        Ok(sides.map(|(host, [(_, psn, source_port), (qpn, peer_psn, _)], (from, to))| {
            let path = Path { plane: plane as u8, from, to, source_port };
            let spec = host.spec.qp;
            host.flows.push(Flow::default());
            host.endpoint.add_qp(&spec, psn, Peer { qpn, psn: peer_psn, path })
        }))
    }

    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        let depth = self.spec.depth;
        let Some(at) = self.flows.get_mut(flow as usize) else { return false };
        if at.failed || at.outstanding >= depth {
            return false;
        }
        at.outstanding += 1;
        let Message { tag, len, notify } = message;
        let write = Write { wr_id: tag.into(), va: 0, len, imm: notify.then_some(tag) };
        self.endpoint.post(now, flow, write)
    }

    fn stats(&self) -> TransportStats {
        let counters = self.counters();
        TransportStats {
            placed_bytes: counters.placed_bytes,
            sent: counters.sent,
            repeats: counters.repeats,
            losses: counters.sequence_naks + counters.timeouts,
            timeouts: counters.timeouts,
            marked: counters.marked,
            trimmed: 0,
            cnps: counters.cnps,
            sequence_naks: counters.sequence_naks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused() {
        let good = RoceSpec::new(100_000_000_000, Some(Profile::Paper));
        assert_eq!(good.validate(), Ok(()));
        let qp = good.qp;
        let bad = [
            ("depth", RoceSpec { depth: 0, ..good }),
            ("mtu", RoceSpec { qp: QpSpec { mtu: 1_500, ..qp }, ..good }),
            ("timeout", RoceSpec { qp: QpSpec { retry: Retry { timeout: 32, ..qp.retry }, ..qp }, ..good }),
            ("retry_count", RoceSpec { qp: QpSpec { retry: Retry { count: 8, ..qp.retry }, ..qp }, ..good }),
            ("line_bps", RoceSpec { qp: QpSpec { line_bps: 0, ..qp }, ..good }),
        ];
        for (name, spec) in bad {
            assert!(
                matches!(spec.validate(), Err(RoceError::Setting { setting, .. }) if setting == name),
                "{name}"
            );
        }
    }
}
