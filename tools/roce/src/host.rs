//! A host of a simulated fabric that runs RoCEv2.
//!
//! A flow is `qps` queue pairs in each direction, each with a UDP source port and so a path of its own: QP scaling, as collective libraries do it.
//! A message is cut into as many parts, and is complete when all parts are.

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
    /// Queue pairs of a flow.
    pub qps: u32,
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
        Self { qp, qps: 1, depth: 128, dscp }
    }

    /// Checks what cannot work.
    ///
    /// # Errors
    /// The setting, and what is wrong with it.
    pub fn validate(&self) -> Result<(), RoceError> {
        let wrong = |setting, why| Err(RoceError::Setting { setting, why });
        match self {
            Self { qps: 0, .. } => wrong("qps", "a flow needs a queue pair"),
            Self { qps: 4_097.., .. } => wrong("qps", "at most 4096 for a flow"),
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

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    tag: u32,
    /// Parts that are not complete.
    parts: u32,
}

/// One side of a connection.
#[derive(Debug)]
struct Flow {
    /// Its first queue pair; the others follow it.
    first: u32,
    /// Messages that are not complete, oldest first, and how many were before them.
    outgoing: VecDeque<Outgoing>,
    begun: u64,
    /// Messages that notify: how many parts of them have come on each queue pair, and how many messages were complete.
    parts: Vec<u64>,
    received: u64,
    /// Their tags, as the first queue pair had them.
    tags: VecDeque<u32>,
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
    /// By queue pair: its flow.
    owners: Vec<u32>,
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
            owners: Vec::new(),
            events: VecDeque::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        })
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// The rates of a flow's queue pairs, bits per second.
    pub fn rates_bps(&mut self, now: Time, flow: u32) -> Vec<u64> {
        let Some(first) = self.flows.get(flow as usize).map(|flow| flow.first) else { return Vec::new() };
        let qps = first..first + self.spec.qps;
        qps.filter_map(|qp| self.endpoint.rate_bps(now, qp)).collect()
    }

    /// Makes one side of a flow, whose queue pairs are numbered from the next one on.
    fn add_flow(&mut self) -> u32 {
        self.flows.push(Flow {
            first: self.endpoint.qps(),
            outgoing: VecDeque::new(),
            begun: 0,
            parts: vec![0; self.spec.qps as usize],
            received: 0,
            tags: VecDeque::new(),
            failed: false,
        });
        self.flows.len() as u32 - 1
    }

    fn take(&mut self, event: QpEvent) {
        let (QpEvent::Completed { qp, .. } | QpEvent::Placed { qp, .. }) = event;
        let Some(&number) = self.owners.get(qp as usize) else { return };
        let Some(flow) = self.flows.get_mut(number as usize) else { return };
        match event {
            QpEvent::Completed { wr_id, status: Status::Success, .. } => {
                let at = wr_id.checked_sub(flow.begun).and_then(|at| flow.outgoing.get_mut(at as usize));
                if let Some(message) = at {
                    message.parts = message.parts.saturating_sub(1);
                }
                // In the order in which they were posted, as a completion queue has them.
                while let Some(&Outgoing { tag, .. }) =
                    flow.outgoing.front().filter(|message| message.parts == 0)
                {
                    flow.outgoing.pop_front();
                    flow.begun += 1;
                    self.events.push_back(FlowEvent::Sent { flow: number, tag });
                }
            }
            QpEvent::Completed { status, .. } => {
                if !core::mem::replace(&mut flow.failed, true) {
                    self.events.push_back(FlowEvent::Failed { flow: number, why: explain(status) });
                }
            }
            QpEvent::Placed { placed, .. } => {
                let (Some(tag), true) = (placed.imm, placed.last) else { return };
                let index = qp - flow.first;
                if index == 0 {
                    flow.tags.push_back(tag);
                }
                if let Some(parts) = flow.parts.get_mut(index as usize) {
                    *parts += 1;
                }
                // A message is there once its part has come on every queue pair: each of them keeps the order.
                let complete = flow.parts.iter().copied().min().unwrap_or_default();
                while flow.received < complete {
                    let Some(tag) = flow.tags.pop_front() else { break };
                    flow.received += 1;
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

/// How a message of `len` bytes is cut into `parts`, in whole packets: where each begins, and how long it is.
fn cut(len: u32, parts: u32, mtu: u32) -> impl Iterator<Item = (u32, u32)> {
    let packets = len.div_ceil(mtu.max(1));
    let each = u64::from(packets.div_ceil(parts.max(1))) * u64::from(mtu);
    (0..u64::from(parts)).map(move |part| {
        let begin = (part * each).min(len.into());
        let end = ((part + 1) * each).min(len.into());
        (begin as u32, (end - begin) as u32)
    })
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
    /// Both sides have as many queue pairs, so they must have been made with the same number of them.
    fn connect(_now: Time, one: &mut Self, other: &mut Self) -> Result<[u32; 2], ConnectError> {
        if one.spec.qps != other.spec.qps || one.spec.qp.mtu != other.spec.qp.mtu {
            return Err(ConnectError("the hosts differ in `qps` or `mtu`".into()));
        }
        let flows = [one.add_flow(), other.add_flow()];
        for _ in 0..one.spec.qps {
            let sides = [&mut *one, &mut *other].map(|host| {
                let bits = host.rng.next_u64();
                let source_port = SOURCE_PORTS | bits as u16 & 0x3fff;
                (host.endpoint.next_qpn(), Psn::new((bits >> 16) as u32), source_port)
            });
            let [ours, theirs] = sides;
            // The planes in turn.
            let planes = one.addresses.len().min(other.addresses.len()) as u32;
            let plane = one.endpoint.qps() % planes.max(1);
            let address = |host: &Self| host.addresses.get(plane as usize).copied();
            let (Some(a), Some(b)) = (address(one), address(other)) else {
                return Err(ConnectError("the hosts have no plane in common".into()));
            };
            for (host, flow, [(_, psn, source_port), (qpn, peer_psn, _)], (from, to)) in [
                (&mut *one, flows[0], [ours, theirs], (a, b)),
                (&mut *other, flows[1], [theirs, ours], (b, a)),
            ] {
                let path = Path { plane: plane as u8, from, to, source_port };
                let spec = host.spec.qp;
                host.endpoint.add_qp(&spec, psn, Peer { qpn, psn: peer_psn, path });
                host.owners.push(flow);
            }
        }
        Ok(flows)
    }

    /// A part that has no bytes is sent all the same if the message notifies: the receiver counts parts.
    fn post(&mut self, now: Time, flow: u32, message: Message) -> bool {
        let (qps, depth) = (self.spec.qps, self.spec.depth);
        let Some(at) = self.flows.get_mut(flow as usize) else { return false };
        if at.failed || at.outgoing.len() >= depth as usize {
            return false;
        }
        let Message { tag, len, notify } = message;
        let wr_id = at.begun + at.outgoing.len() as u64;
        let first = at.first;
        let parts: Vec<_> = (first..)
            .zip(cut(len, qps, self.spec.qp.mtu))
            .filter(|&(qp, (_, len))| notify || len > 0 || qp == first)
            .collect();
        at.outgoing.push_back(Outgoing { tag, parts: parts.len() as u32 });
        for (qp, (va, len)) in parts {
            let write = Write { wr_id, va: va.into(), len, imm: notify.then_some(tag) };
            self.endpoint.post(now, qp, write);
        }
        true
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
    fn a_message_is_cut_into_whole_packets() {
        let cut = |len, parts| cut(len, parts, 1_000).collect::<Vec<_>>();
        assert_eq!(cut(10_500, 1), [(0, 10_500)]);
        assert_eq!(cut(10_500, 4), [(0, 3_000), (3_000, 3_000), (6_000, 3_000), (9_000, 1_500)]);
        assert_eq!(cut(1, 3), [(0, 1), (1, 0), (1, 0)]);
        assert_eq!(cut(4_000, 3), [(0, 2_000), (2_000, 2_000), (4_000, 0)]);
        let all: u64 = cut(u32::MAX, 16).iter().map(|&(_, len)| u64::from(len)).sum();
        assert_eq!(all, u64::from(u32::MAX));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let good = RoceSpec::new(100_000_000_000, Some(Profile::Paper));
        assert_eq!(good.validate(), Ok(()));
        let qp = good.qp;
        let bad = [
            ("qps", RoceSpec { qps: 0, ..good }),
            ("qps", RoceSpec { qps: 4_097, ..good }),
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
