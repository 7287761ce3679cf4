//! A NIC: an endpoint, and how its packets become those of a network.

use std::sync::Arc;

use spindrift::endpoint::{
    Endpoint, EndpointConfig, EndpointError, LocalPort, QpInfo, QpModify, RetryAttr, Route, RtrAttr, RtsAttr,
    Transmit,
};
use spindrift::memory::Region;
use spindrift::path::PlaneSet;
use spindrift::pmd::{MacAddr, RxFrame, RxOrigin};
use spindrift::time::Time;
use spindrift::wire::stack::Outer;
use spindrift::wire::{ICRC_LEN, Qpn, icrc};
use spindrift_srv6::Fabric;

use crate::packet::Packet;
use crate::pfc::Free;

/// Hops of the inner and the outer packet.
const HOP_LIMIT: u8 = 64;

/// An endpoint with the ports of a host.
pub(crate) struct Nic {
    pub(crate) endpoint: Endpoint,
    /// What payloads are part of that exist as lengths alone; with none, they are real and have an iCRC.
    zeros: Option<Arc<Region>>,
    out: Transmit,
}

/// The settings of a host's endpoint, which can reach `peers` by source routing.
///
/// # Errors
/// The number of a host that the fabric does not have.
pub(crate) fn config(
    fabric: &Fabric,
    number: u16,
    peers: impl IntoIterator<Item = u16>,
    mtu: u32,
) -> Result<EndpointConfig, u16> {
    let planes = fabric.shape().planes;
    let ports: Option<_> = (0..planes).map(|plane| port(fabric, number, plane, mtu)).collect();
    let mut config = EndpointConfig { hop_limit: HOP_LIMIT, ..EndpointConfig::new(ports.ok_or(number)?) };
    for peer in peers {
        for plane in 0..planes {
            config.routes.push(route(fabric, number, peer, plane).ok_or(peer)?);
        }
    }
    Ok(config)
}

fn port(fabric: &Fabric, host: u16, plane: u8, mtu: u32) -> Option<LocalPort> {
    // Room for the longest headers around a full packet.
    let max_frame = mtu as usize + EndpointConfig::overhead(true) + 40;
    let [high, low] = host.to_be_bytes();
    Some(LocalPort {
        ip: fabric.address(host, plane)?.into(),
        mac: MacAddr([2, 0, 0, plane, high, low]),
        max_frame,
        source_ports: None,
        same_path_batch: 1,
    })
}

/// The source-routed paths from one host to another in a plane.
fn route(fabric: &Fabric, from: u16, to: u16, plane: u8) -> Option<Route> {
    let path = fabric.paths(from, to, plane)?;
    let outer = Outer { src: fabric.address(from, plane)?, path, hop_limit: HOP_LIMIT };
    let to = std::net::IpAddr::from(fabric.address(to, plane)?);
    Some(Route { outer: Some(outer), ..Route::new(to.into(), plane) })
}

impl Nic {
    pub(crate) fn new(endpoint: Endpoint, zeros: Option<Arc<Region>>) -> Self {
        Self { endpoint, zeros, out: Transmit::default() }
    }

    /// Takes a queue pair from RESET to RTS; `ours` and `theirs` are what the two sides tell each other.
    pub(crate) fn bring_up(
        &mut self,
        now: Time,
        [ours, theirs]: [&QpInfo; 2],
        retry: RetryAttr,
    ) -> Result<(), EndpointError> {
        let qpn = Qpn::new(ours.qpn);
        let rtr = RtrAttr::between(ours, theirs);
        let &QpInfo { mpr, max_wimm, max_rd_atomic, .. } = theirs;
        let rts = RtsAttr { mpr, max_wimm, max_rd_atomic, ..RtsAttr::default() };
        self.endpoint.modify_qp(now, qpn, QpModify::Init)?;
        self.endpoint.modify_qp(now, qpn, QpModify::Rtr(Box::new(rtr)))?;
        self.endpoint.modify_qp(now, qpn, QpModify::Rts(rts.with_retry(retry)))?;
        Ok(())
    }

    #[inline]
    pub(crate) fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
        let whole;
        let zeros;
        let rest = if let Some(bytes) = packet.body() {
            whole = [bytes.into()];
            &whole[..]
        } else {
            let zero = self.zeros.as_ref().map(|zeros| zeros.payload(0, packet.body_len() as usize));
            let Some(Ok(payload)) = zero else { return };
            zeros = [payload];
            &zeros[..]
        };
        let frame = RxFrame { origin: RxOrigin::Ethernet, data: packet.head(), rest };
        self.endpoint.receive(now, plane, &frame);
    }

    #[inline]
    pub(crate) fn transmit(&mut self, now: Time, free: Free, out: &mut Packet) -> bool {
        self.endpoint.begin_burst(1);
        // The endpoint selects a packet without regard to its class, so a plane must be free for all of them.
        if !self.endpoint.transmit(now, PlaneSet(free.all()), &mut self.out) {
            return false;
        }
        if self.zeros.is_some() {
            out.set_virtual(self.out.head(), self.out.payload.len + ICRC_LEN as u32);
        } else {
            let payload = self.endpoint.payload(&self.out);
            out.set_real(self.out.head(), |bytes| {
                payload.append_to(bytes, usize::MAX);
                bytes.extend(icrc::compute(self.out.l3(), payload, &[]));
            });
        }
        out.plane = self.out.port;
        true
    }

    pub(crate) fn on_timeout(&mut self, now: Time) {
        self.endpoint.on_timeout(now);
        self.endpoint.reclaim(now);
    }
}

/// The timers of a `Transport` that are a NIC's, for a host whose `nic` it is.
macro_rules! with_timers {
    () => {
        #[inline]
        fn next_timeout(&self) -> Time {
            self.nic.endpoint.next_timeout()
        }

        fn on_timeout(&mut self, now: Time) {
            self.nic.on_timeout(now);
        }
    };
}
pub(crate) use with_timers;

/// The part of `Transport` that is a NIC's, for a host whose `nic` it is.
macro_rules! with_nic {
    () => {
        #[inline]
        fn receive(&mut self, now: Time, plane: u8, packet: &Packet) {
            self.nic.receive(now, plane, packet);
        }

        #[inline]
        fn transmit(&mut self, now: Time, free: $crate::pfc::Free, out: &mut Packet) -> bool {
            self.nic.transmit(now, free, out)
        }

        $crate::nic::with_timers!();

        fn on_pause(&mut self, from: Time, until: Time) {
            self.nic.endpoint.on_driver_stall(from, until);
        }

        fn carrier(&mut self, now: Time, plane: u8, up: bool) {
            self.nic.endpoint.port_link(now, plane, up);
        }
    };
}
pub(crate) use with_nic;
