//! A host of a swarm run: its NIC, with bytes in its memory, and nothing between the endpoint and whoever judges it.

use spindrift::congestion::{CcAlgorithm, CcConfig};
use spindrift::endpoint::{ConfigError, CqId, Endpoint, EndpointConfig, Event, QpCap, QpInit};
use spindrift::memory::{Access, PdId, Region};
use spindrift::path::{PathConfig, PlaneSet};
use spindrift::seed::Seed;
use spindrift::time::Time;
use spindrift::wire::{Msn, Psn};
use spindrift_srv6::Fabric;

use super::audit::{Audit, Before};
use super::case::{Case, EndPlan, Roles};
use super::ledger::{Check, Memory};
use super::rand::Rng;
use crate::nic::{self, Nic, with_timers};
use crate::packet::Packet;
use crate::pfc::Free;
use crate::transport::Transport;

/// See the [module documentation](self).
pub(super) struct Host {
    pub(super) nic: Nic,
    pub(super) audit: Audit,
    pd: PdId,
}

/// Why a host cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    #[error("the fabric has no host {0}")]
    NoHost(u16),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Host {
    pub(super) fn new(case: &Case, fabric: &Fabric, number: u16) -> Result<Self, HostError> {
        let ends = case.flows.iter().flat_map(|flow| [flow.hosts, [flow.hosts[1], flow.hosts[0]]]);
        let mut peers: Vec<_> = ends.filter(|[from, _]| *from == number).map(|[_, to]| to).collect();
        peers.sort_unstable();
        peers.dedup();
        let plan = case.hosts.get(usize::from(number)).ok_or(HostError::NoHost(number))?;
        let peers = peers.into_iter().filter(|_| case.srv6);
        let config = EndpointConfig {
            seed: Seed::fixed(case.seed ^ u64::from(number) << 48),
            icrc: plan.icrc,
            trimming: plan.trimming,
            sack_threshold_bytes: plan.sack_threshold_bytes,
            quantum: plan.quantum,
            oor_nack: plan.oor_nack,
            copy_responses: true,
            tail_probe_floor_ns: plan.tail_probe_floor_ns,
            initial_reordering_ns: plan.initial_reordering_ns,
            ..nic::config(fabric, number, peers, 4096).map_err(HostError::NoHost)?
        };
        let mut endpoint = Endpoint::new(config)?;
        let pd = endpoint.alloc_pd();
        Ok(Self { nic: Nic::new(endpoint, None), audit: Audit::new(case.fabric.planes), pd })
    }

    /// Registers memory, sometimes at the very end of the address space.
    pub(super) fn memory(&mut self, len: usize, rng: &mut Rng) -> Check<Memory> {
        let iova = if rng.one_in(4) { 0_u64.wrapping_sub(len as u64 + 1) } else { rng.bits() >> 8 & !7 };
        let region = Region::alloc_at(len, iova).map_err(|error| error.to_string())?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let key = self.nic.endpoint.register(self.pd, region.clone(), access);
        Ok(Memory { region, key: key.map_err(|error| error.to_string())? })
    }

    /// What the queue pair with this number is made of.
    pub(super) fn qp_init(&self, case: &Case, plan: &EndPlan, number: u32) -> QpInit {
        let planes = case.fabric.planes;
        let [active, backup] = plan.evs;
        let path = PathConfig {
            active,
            backup,
            min_active: active.min(4),
            spray_width: plan.spray_width,
            probes_to_revive: plan.probes_to_revive,
            probe_interval_ns: plan.probe_interval_ns,
            reverse_per_plane: plan.reverse_per_plane,
            ..roles(case.roles, planes)
        };
        let cc = match plan.cc {
            CcAlgorithm::Adaptive | CcAlgorithm::Nscc => CcConfig {
                algorithm: plan.cc,
                ..CcConfig::new(case.fabric.nic_rate_bps(), case.rtt_ns(), plan.mtu)
            },
            CcAlgorithm::None => CcConfig::none(),
        };
        QpInit {
            cap: QpCap { max_send_wr: plan.depth, max_recv_wr: 1024, max_send_sge: 16, max_recv_sge: 16 },
            path,
            cc,
            psn: Some(Psn::new(plan.psn)),
            msn: Msn::new(plan.msn),
            mpr_dest: plan.mpr,
            max_wimm_dest: plan.max_wimm,
            max_dest_rd_atomic: plan.extended().max_dest_rd_atomic,
            max_mtu: plan.mtu,
            dynamic_mpr: plan.dynamic_mpr,
            sig_all: plan.sig_all,
            ..QpInit::new(self.pd, CqId(2 * number), CqId(2 * number + 1))
        }
    }
}

/// Settings of paths whose planes have these roles.
fn roles(roles: Option<Roles>, planes: u8) -> PathConfig {
    let plain = PathConfig::new(planes);
    let Some(Roles { standby, probe_ns, hold_ns: [hold_ns, hold_max_ns] }) = roles else { return plain };
    PathConfig {
        standby: PlaneSet(standby),
        standby_probe_ns: probe_ns,
        failback_hold_ns: hold_ns,
        failback_hold_max_ns: hold_max_ns,
        ..plain
    }
}

impl Transport for Host {
    type Event = Event;

    fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
        let before = Before::new(self.nic.endpoint.counters());
        self.nic.receive(now, plane, packet);
        let endpoint = &self.nic.endpoint;
        let failovers = |qpn| {
            let of_roles = endpoint.role_status(qpn).map(|status| status.silent_failovers);
            of_roles
                .or_else(|| endpoint.deny_list_status(qpn).map(|status| status.silent_failovers))
                .unwrap_or(0)
        };
        self.audit.received(now, packet, before, endpoint.counters(), failovers);
    }

    fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        let sent = self.nic.transmit(now, free, out);
        if sent {
            self.audit.sent(now, out, self.nic.endpoint.counters());
        } else {
            self.audit.silent(now, free.all());
        }
        sent
    }

    with_timers!();

    fn on_pause(&mut self, from: Time, until: Time) {
        self.nic.endpoint.on_driver_stall(from, until);
        self.audit.on_pause(from, until);
    }

    fn carrier(&mut self, now: Time, plane: u8, up: bool) {
        self.nic.endpoint.port_link(now, plane, up);
        self.audit.carrier(plane, up);
    }

    fn poll(&mut self) -> Option<Event> {
        loop {
            match self.nic.endpoint.poll_event()? {
                Event::PathsChanged { qpn } => while self.nic.endpoint.poll_ev_event(qpn).is_some() {},
                event => {
                    if let Event::QpFailed { qpn, .. } = event {
                        self.audit.forget(qpn);
                    }
                    return Some(event);
                }
            }
        }
    }
}
