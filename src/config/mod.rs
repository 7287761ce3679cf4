//! Settings of an endpoint; every limit has a name and is checked.

mod deny_list;
mod qpn_share;
mod routes;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use spindrift_pmd::{ETHERNET_LEN, MacAddr, PortCaps};
use thiserror::Error;

use crate::seed::Seed;
use crate::wire::stack::Outer;
use crate::wire::{DscpMap, EntropyMode, Ev, OpPosition, StevOrder, UDP_PORT_MRC};

pub use deny_list::{DenyList, DenyListError, DenyRule};
pub use qpn_share::QpnShare;
pub use routes::Route;
pub(crate) use routes::Routes;

/// One local port: a plane of the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Source address of packets.
    pub ip: IpAddr,
    /// Source Ethernet address of packets.
    pub mac: MacAddr,
    /// Largest Ethernet frame in bytes, header included.
    pub max_frame: usize,
    /// The only UDP source ports that can be used, when the port is a set of kernel sockets.
    pub source_ports: Option<Vec<u16>>,
    /// How many packets of one entropy value are worth sending together; 1: no gain.
    pub same_path_batch: usize,
}

impl From<&PortCaps> for LocalPort {
    fn from(caps: &PortCaps) -> Self {
        Self {
            ip: caps.local_ip,
            mac: caps.mac,
            max_frame: caps.max_frame,
            source_ports: caps.source_ports.clone(),
            same_path_batch: caps.same_path_batch,
        }
    }
}

/// Address of one port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddr {
    /// IP address.
    pub ip: IpAddr,
    /// Ethernet address.
    pub mac: [u8; 6],
}

/// Sizes fixed at start. Each memory use that grows is limited by one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs of one endpoint; at most 2^20.
    pub max_qps: u32,
    /// Send work requests outstanding on a queue pair.
    pub max_send_wr: u32,
    /// Receive work requests outstanding on a queue pair.
    pub max_recv_wr: u32,
    /// Receive work requests that a shared receive queue holds.
    pub max_srq_wr: u32,
    /// Registered memory regions.
    pub max_regions: u32,
    /// Endpoint requests that get a response in a second, and as many reliability probes. Connected peers, which probe
    /// more often the more data they receive, may have one more response for each 128 KiB sent.
    pub answers_per_second: u32,
    /// PSNs by which the windows of all queue pairs with a dynamic PSN range together may exceed the least window of
    /// each, 1,024 PSNs. It takes 40 to 80 bytes of memory per PSN while packets arrive out of order. Queue pairs that
    /// receive much get equal shares of it, up to the negotiated range.
    pub window_budget_psns: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qps: 16_384,
            max_send_wr: 16_384,
            max_recv_wr: 16_384,
            max_srq_wr: 1 << 20,
            max_regions: 65_536,
            answers_per_second: 100_000,
            window_budget_psns: 1 << 17,
        }
    }
}

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Seed of every random choice: queue pair numbers, keys, PSNs, entropy values. [`EndpointConfig::new`] sets a
    /// fixed, publicly known one. A driver outside tests must set 256 bits from the operating system instead, as
    /// [`Context::open`](crate::verbs::Context::open) does.
    pub seed: Seed,
    /// The queue pair numbers that it may assign. Default all. A driver whose endpoints share addresses forwards
    /// packets between them, see [`Endpoint::take_forward`](crate::endpoint::Endpoint::take_forward).
    pub qpns: QpnShare,
    /// The local ports, one per plane.
    pub ports: Vec<LocalPort>,
    /// The plane number of each port, from a numbering that all hosts of the network share. Peers compare them when
    /// they connect, so that a different order of ports is noticed. Default empty: none are sent.
    pub plane_ids: Vec<u32>,
    /// Next hops and source-routed paths to peers. Without a route, packets go unencapsulated to the peer's Ethernet
    /// address. Default none.
    pub routes: Vec<Route>,
    /// UDP destination port to send to. Packets for 4971 and 4791 are accepted too, if the port passes them on.
    pub udp_port: u16,
    /// The fields that carry the entropy value.
    pub entropy: EntropyMode,
    /// Compute and check the invariant CRC.
    pub icrc: bool,
    /// DSCP of each traffic class.
    pub dscp: DscpMap,
    /// Mark data as trimmable, and send NACKs for trimmed packets.
    pub trimming: bool,
    /// Copy the response to a READ when its last packet leaves, and retransmit it from the copy: for applications that may
    /// unmap memory as soon as a peer has read it. It costs 15 to 30 % of the throughput of READs.
    pub copy_responses: bool,
    /// Send NACK `PSN_OOR_WINDOW` for packets beyond the receive window.
    pub oor_nack: bool,
    /// Position of the operation code in endpoint responses; peers should match by request id.
    pub op_position: OpPosition,
    /// IPv6 hop limit or IPv4 TTL of every packet.
    pub hop_limit: u8,
    /// Bytes received between SACKs, at least 1.
    pub sack_threshold_bytes: u32,
    /// Least PTO: time without an acknowledgement before a tail loss probe (TLP), in ns. It is also the PTO before the
    /// first round-trip sample.
    pub tail_probe_floor_ns: u64,
    /// Least reordering window of a new queue pair: how much longer than a round trip the time rule waits for packets
    /// on other paths. It fades as measurements replace it, within some tens of round trips.
    pub initial_reordering_ns: u64,
    /// Packets a queue pair sends before the next one has its turn.
    pub quantum: u32,
    /// Sizes fixed at start.
    pub limits: Limits,
}

impl EndpointConfig {
    /// The largest number of planes of an endpoint: the width of a port status mask.
    pub const MAX_PORTS: usize = 32;

    /// The longest [`initial_reordering_ns`](Self::initial_reordering_ns).
    pub const MAX_INITIAL_REORDERING_NS: u64 = 1_000_000_000;

    /// The bits of entropy values that packets carry: over IPv4, which has no flow label, only half of them.
    pub(crate) fn carried_ev_bits(&self) -> Ev {
        self.entropy.carried(Ev(u32::MAX), self.ports.iter().all(|port| port.ip.is_ipv6()))
    }

    /// Defaults for these ports. Ports on kernel sockets carry the entropy value in the UDP source port alone.
    pub fn new(ports: Vec<LocalPort>) -> Self {
        let sockets = ports.iter().any(|port| port.source_ports.is_some());
        Self {
            seed: Seed::fixed(1),
            qpns: QpnShare::ALL,
            ports,
            plane_ids: Vec::new(),
            routes: Vec::new(),
            udp_port: UDP_PORT_MRC,
            entropy: if sockets { EntropyMode::Udp } else { EntropyMode::Stev(StevOrder::SportHigh) },
            icrc: true,
            dscp: DscpMap::default(),
            trimming: true,
            copy_responses: false,
            oor_nack: false,
            op_position: OpPosition::default(),
            hop_limit: 255,
            sack_threshold_bytes: 16 * 1024,
            tail_probe_floor_ns: 100_000,
            initial_reordering_ns: 100_000,
            quantum: 32,
            limits: Limits::default(),
        }
    }

    /// Checks the settings, and names the first one that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let bad = |setting, why: &str| Err(ConfigError { setting, why: why.to_owned() });
        if self.ports.is_empty() || self.ports.len() > Self::MAX_PORTS {
            return bad("ports", "give between 1 and 32 ports, one a plane");
        }
        let v6 = self.ports[0].ip.is_ipv6();
        if self.ports.iter().any(|port| port.ip.is_ipv6() != v6) {
            return bad("ports", "all ports must be of one address family");
        }
        if !self.plane_ids.is_empty() && self.plane_ids.len() != self.ports.len() {
            return bad("plane_ids", "give one for each port, or none");
        }
        if (1..self.plane_ids.len()).any(|at| self.plane_ids[..at].contains(&self.plane_ids[at])) {
            return bad("plane_ids", "each port must be on a plane of its own");
        }
        let sockets = self.ports.iter().any(|port| port.source_ports.is_some());
        if sockets && self.entropy != EntropyMode::Udp {
            return bad(
                "entropy",
                "ports over kernel sockets carry the entropy in the UDP source port: use `udp`",
            );
        }
        if self.udp_port == 0 {
            return bad("udp_port", "0 is no port; 4971 and 4791 are usual");
        }
        if self.limits.max_qps == 0 || self.limits.max_qps > 1 << 20 {
            return bad("limits.max_qps", "give between 1 and 1048576");
        }
        let QpnShare { index, of } = self.qpns;
        if !(1..=QpnShare::MAX).contains(&of) || index >= of {
            return bad("qpns", "give 1 to 15 parts, and an index less than that");
        }
        if self.quantum == 0 {
            return bad("quantum", "must be at least 1 packet");
        }
        if self.initial_reordering_ns > Self::MAX_INITIAL_REORDERING_NS {
            return bad(
                "initial_reordering_ns",
                "must be at most 1 s: the time rule waits that long at first",
            );
        }
        if self.sack_threshold_bytes == 0 {
            return bad(
                "sack_threshold_bytes",
                "must be at least 1 byte, which acknowledges every packet; 16384 is usual",
            );
        }
        if self.tail_probe_floor_ns == 0 {
            return bad("tail_probe_floor_ns", "must be at least 1 ns, or the timer would never stand still");
        }
        Routes::new(self)?;
        if self.max_mtu() < 256 {
            return bad("ports.max_frame", "a frame must hold the headers and 256 bytes of payload");
        }
        if let Err(error) = self.dscp.validate() {
            return bad("dscp", &error.to_string());
        }
        if self.hop_limit == 0 {
            return bad("hop_limit", "must be at least 1");
        }
        Ok(())
    }

    /// Bytes of a frame that are not payload: Ethernet, IP, UDP, the longest request headers with an immediate, and
    /// the iCRC. The outer headers of routes are extra.
    pub const fn overhead(v6: bool) -> usize {
        ETHERNET_LEN + if v6 { 40 } else { 20 } + 8 + 12 + 4 + 4 + 16 + 4 + 4
    }

    /// Largest payload of a packet in bytes that every port can carry, on any route.
    pub fn max_mtu(&self) -> u32 {
        (0..self.ports.len()).map(|plane| self.max_mtu_of(plane)).min().unwrap_or(0)
    }

    /// Largest payload of a packet in bytes that the port of this plane can carry, on any route; 0 if there is no such
    /// port.
    pub fn max_mtu_of(&self, plane: usize) -> u32 {
        // The limit of every port: the length fields of IP and UDP have 16 bits.
        let longest = ETHERNET_LEN + usize::from(u16::MAX);
        let Some(port) = self.ports.get(plane) else { return 0 };
        let outer = self.routes.iter().filter(|route| usize::from(route.port) == plane);
        let outer = outer.filter_map(|route| route.outer.as_ref()).map(Outer::header_len).max().unwrap_or(0);
        port.max_frame.min(longest).saturating_sub(Self::overhead(port.ip.is_ipv6()) + outer) as u32
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("setting `{setting}`: {why}")]
pub struct ConfigError {
    /// Its name.
    pub setting: &'static str,
    /// What is wrong, and which values are valid.
    pub why: String,
}

/// A port that carries any entropy value.
#[cfg(test)]
pub(crate) fn test_port(last: u8) -> LocalPort {
    LocalPort {
        ip: [10, 0, 0, last].into(),
        mac: MacAddr([2, 0, 0, 0, 0, last]),
        max_frame: 1514,
        source_ports: None,
        same_path_batch: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::test_port as port;
    use super::*;

    /// The setting that is refused after this change to one that works.
    fn refused(change: impl FnOnce(&mut EndpointConfig)) -> Option<&'static str> {
        let mut config = EndpointConfig::new((1..=2).map(port).collect());
        change(&mut config);
        config.validate().err().map(|error| error.setting)
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        assert_eq!(refused(|_| ()), None);
        assert_eq!(refused(|config| config.udp_port = 0), Some("udp_port"));
        assert_eq!(refused(|config| config.quantum = 0), Some("quantum"));
        assert_eq!(refused(|config| config.hop_limit = 0), Some("hop_limit"));
        assert_eq!(refused(|config| config.tail_probe_floor_ns = 0), Some("tail_probe_floor_ns"));
        assert_eq!(refused(|config| config.dscp.control = 64), Some("dscp"));
        assert_eq!(refused(|config| config.sack_threshold_bytes = 1), None);
        assert_eq!(refused(|config| config.sack_threshold_bytes = 0), Some("sack_threshold_bytes"));
        for (qps, want) in [(0, Some("limits.max_qps")), (1, None), (1 << 20, None)] {
            assert_eq!(refused(|config| config.limits.max_qps = qps), want, "{qps}");
        }
        assert_eq!(refused(|config| config.limits.max_qps = (1 << 20) + 1), Some("limits.max_qps"));
        for (extra, want) in [(0, None), (1, Some("initial_reordering_ns"))] {
            let ns = EndpointConfig::MAX_INITIAL_REORDERING_NS + extra;
            assert_eq!(refused(|config| config.initial_reordering_ns = ns), want);
        }
        for (index, of, works) in
            [(0, 1, true), (14, 15, true), (1, 1, false), (2, 2, false), (0, 0, false), (0, 16, false)]
        {
            let want = (!works).then_some("qpns");
            assert_eq!(refused(|config| config.qpns = QpnShare { index, of }), want, "{index} of {of}");
        }
        let error = EndpointConfig::new(Vec::new()).validate().expect_err("no ports");
        assert!(error.to_string().contains("between 1 and 32"), "{error}");
    }

    #[test]
    fn ports_are_as_many_and_as_large_as_headers_and_masks_allow() {
        for (count, want) in [(0, Some("ports")), (1, None), (32, None), (33, Some("ports"))] {
            assert_eq!(refused(|config| config.ports = (1..=count).map(port).collect()), want, "{count}");
        }
        let v6 = |config: &mut EndpointConfig, at: usize| {
            config.ports[at].ip = [0xfd00, 0, 0, 0, 0, 0, 0, 1].into();
        };
        assert_eq!(refused(|config| v6(config, 0)), Some("ports"), "of two families");
        // Ethernet, IP, UDP, BTH with its MRC words, RETH, immediate, and iCRC; then 256 bytes.
        for (is_v6, least) in [
            (false, 14 + 20 + 8 + 12 + 8 + 16 + 4 + 4 + 256),
            (true, 14 + 40 + 8 + 12 + 8 + 16 + 4 + 4 + 256),
        ] {
            for (size, want) in [(least - 1, Some("ports.max_frame")), (least, None)] {
                let change = |config: &mut EndpointConfig| {
                    (0..2).filter(|_| is_v6).for_each(|at| v6(config, at));
                    config.ports[1].max_frame = size;
                };
                assert_eq!(refused(change), want, "{size}");
            }
            let mut config = EndpointConfig::new((1..=2).map(port).collect());
            (0..2).filter(|_| is_v6).for_each(|at| v6(&mut config, at));
            config.ports[1].max_frame = least + 10;
            assert_eq!(config.max_mtu(), 266, "of the smaller one");
            config.ports.iter_mut().for_each(|port| port.max_frame = 100_000);
            assert_eq!(config.max_mtu() as usize, 14 + 65_535 - (least - 256));
        }
    }

    #[test]
    fn planes_have_a_number_each_or_none() {
        for (ids, want) in [
            (vec![], None),
            (vec![7, 3], None),
            (vec![7], Some("plane_ids")),
            (vec![7, 3, 1], Some("plane_ids")),
            (vec![7, 7], Some("plane_ids")),
        ] {
            assert_eq!(refused(|config| config.plane_ids.clone_from(&ids)), want, "{ids:?}");
        }
    }

    /// Settings that kernel sockets cannot carry are refused, and are not their defaults.
    #[test]
    fn sockets_carry_the_entropy_in_the_source_port() {
        let sockets = |config: &mut EndpointConfig| config.ports[1].source_ports = Some(vec![50_000]);
        assert_eq!(refused(sockets), Some("entropy"));
        let mut ports = vec![port(1), port(2)];
        ports[1].source_ports = Some(vec![50_000]);
        let config = EndpointConfig::new(ports);
        assert_eq!((config.entropy, config.validate()), (EntropyMode::Udp, Ok(())));
        assert_eq!(refused(|config| config.entropy = EntropyMode::Udp), None);
    }
}
