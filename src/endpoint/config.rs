//! Settings of an endpoint and its queue pairs; every limit has a name and is checked.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use spindrift_pmd::{MacAddr, PortCaps};
use thiserror::Error;

use crate::congestion::CcConfig;
use crate::memory::PdId;
use crate::path::PathConfig;
use crate::seed::Seed;
use crate::wire::stack::Outer;
use crate::wire::{DscpMap, EntropyMode, Msn, OpPosition, Psn, StevOrder, UDP_PORT_MRC};

use super::routes::{Route, Routes};

/// One local port: a plane of the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Address packets leave from.
    pub ip: IpAddr,
    /// Ethernet address packets leave from.
    pub mac: MacAddr,
    /// Largest Ethernet frame in bytes, header included.
    pub max_frame: usize,
    /// The only UDP source ports that can be used, when the port is a set of kernel sockets.
    pub source_ports: Option<Vec<u16>>,
    /// How many packets of one entropy value it pays to send together; 1 when none.
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

/// Sizes fixed at start. All memory that grows is bounded by one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs of one endpoint; at most 2^20.
    pub max_qps: u32,
    /// Send work requests outstanding on a queue pair.
    pub max_send_wr: u32,
    /// Receive work requests outstanding on a queue pair.
    pub max_recv_wr: u32,
    /// Registered memory regions.
    pub max_regions: u32,
    /// Endpoint requests answered in a second, and as many reliability probes.
    pub answers_per_second: u32,
    /// PSNs by which the windows of all queue pairs with a dynamic PSN range together may exceed the least window of
    /// each, 1,024 PSNs. It takes 40 to 80 bytes of memory for each PSN while packets arrive out of order. Queue pairs that
    /// receive much get equal shares of it, up to the range negotiated.
    pub window_budget_psns: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qps: 16_384,
            max_send_wr: 16_384,
            max_recv_wr: 16_384,
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
    /// fixed one, which repeats and which everybody knows: a driver outside tests has to put 256 bits from the
    /// operating system here, as [`Context::open`](crate::verbs::Context::open) does.
    pub seed: Seed,
    /// The local ports, one a plane.
    pub ports: Vec<LocalPort>,
    /// Which plane of the network each port is on, by numbers that all hosts of the network share; empty to tell nobody.
    /// Peers compare them when they connect, so that ports in different orders are noticed. Default empty.
    pub plane_ids: Vec<u32>,
    /// Next hops and source-routed paths to peers; without one, packets go as they are to the peer's Ethernet address.
    /// Default none.
    pub routes: Vec<Route>,
    /// UDP destination port to send to. Both 4971 and 4791 are accepted on receive besides.
    pub udp_port: u16,
    /// Where the entropy value travels.
    pub entropy: EntropyMode,
    /// Compute and check the invariant CRC.
    pub icrc: bool,
    /// DSCP of each traffic class.
    pub dscp: DscpMap,
    /// Mark data as trimmable, and answer trimmed packets with NACKs.
    pub trimming: bool,
    /// Answer packets beyond the receive window with NACK `PSN_OOR_WINDOW`.
    pub oor_nack: bool,
    /// Where endpoint responses carry their operation code; peers should match by request id.
    pub op_position: OpPosition,
    /// IPv6 hop limit or IPv4 TTL of every packet.
    pub hop_limit: u8,
    /// Bytes received between SACKs, at least 1.
    pub sack_threshold_bytes: u32,
    /// Silence after which a tail loss probe is sent before any round trip was measured, and the
    /// least silence after, ns.
    pub tail_probe_floor_ns: u64,
    /// How much longer than a round trip packets may take on other paths, as far as a new queue pair assumes: the time rule
    /// waits for them. Measuring takes its place within some tens of round trips.
    pub initial_reordering_ns: u64,
    /// Packets a queue pair sends before the next one has its turn.
    pub quantum: u32,
    /// Sizes fixed at start.
    pub limits: Limits,
}

impl EndpointConfig {
    /// Most planes an endpoint can have: the width of a port status mask.
    pub const MAX_PORTS: usize = 32;

    /// The longest [`initial_reordering_ns`](Self::initial_reordering_ns).
    pub const MAX_INITIAL_REORDERING_NS: u64 = 1_000_000_000;

    /// Bytes of an Ethernet header.
    const ETHERNET_LEN: usize = 14;

    /// Defaults for these ports. Kernel-socket ports put the entropy value in the UDP source port
    /// alone.
    pub fn new(ports: Vec<LocalPort>) -> Self {
        let sockets = ports.iter().any(|port| port.source_ports.is_some());
        Self {
            seed: Seed::fixed(1),
            ports,
            plane_ids: Vec::new(),
            routes: Vec::new(),
            udp_port: UDP_PORT_MRC,
            entropy: if sockets { EntropyMode::Udp } else { EntropyMode::Stev(StevOrder::SportHigh) },
            icrc: true,
            dscp: DscpMap::default(),
            trimming: true,
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

    /// Refuses settings that cannot work, naming the setting.
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

    /// Bytes of a frame that are not payload: Ethernet, IP, UDP, the longest request headers with
    /// an immediate, and the iCRC. Outer headers of routes come on top.
    pub const fn overhead(v6: bool) -> usize {
        Self::ETHERNET_LEN + if v6 { 40 } else { 20 } + 8 + 12 + 4 + 4 + 16 + 4 + 4
    }

    /// Largest payload every port can take in one packet, in bytes, whatever route it takes.
    pub fn max_mtu(&self) -> u32 {
        // Whatever a port takes, the length fields of IP and UDP have 16 bits.
        let longest = Self::ETHERNET_LEN + usize::from(u16::MAX);
        let room = (0..).zip(&self.ports).map(|(at, port)| {
            let outer = self.routes.iter().filter(|route| route.port == at);
            let outer =
                outer.filter_map(|route| route.outer.as_ref()).map(Outer::header_len).max().unwrap_or(0);
            port.max_frame.min(longest).saturating_sub(Self::overhead(port.ip.is_ipv6()) + outer)
        });
        room.min().unwrap_or(0) as u32
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("setting `{setting}`: {why}")]
pub struct ConfigError {
    /// Its name.
    pub setting: &'static str,
    /// What is wrong and what would do.
    pub why: String,
}

/// A completion queue of the driver: the endpoint only hands the number back with completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding.
    pub max_recv_wr: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128 }
    }
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Where send completions go.
    pub send_cq: CqId,
    /// Where receive completions go.
    pub recv_cq: CqId,
    /// Sizes.
    pub cap: QpCap,
    /// Every send work request is signalled.
    pub sig_all: bool,
    /// Entropy values and their health. `planes` and `source` follow the ports.
    pub path: PathConfig,
    /// Congestion control.
    pub cc: CcConfig,
    /// Initial PSN; random when not given.
    pub psn: Option<Psn>,
    /// Initial message number; both peers must agree. 0 unless a test starts near the wrap.
    pub msn: Msn,
    /// Window granted to the peer, units of 128 PSNs (at least 8 by MRC 1.0). The most, if it is dynamic.
    pub mpr_dest: u8,
    /// Writes with immediate the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Largest path MTU to offer, bytes; what the ports take when zero.
    pub max_mtu: u32,
    /// Take part in dynamic windows when the peer does, too: follow `mpr` in its SACKs, and grant it what
    /// [`Limits::window_budget_psns`] allows.
    pub dynamic_mpr: bool,
}

impl QpInit {
    /// Defaults: window 1024 PSNs, 128 immediates, MTU up to 4096, no congestion control (NSCC must
    /// be told the link's rate and round-trip time).
    pub fn new(pd: PdId, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            pd,
            send_cq,
            recv_cq,
            cap: QpCap::default(),
            sig_all: false,
            path: PathConfig::new(1),
            cc: CcConfig::none(),
            psn: None,
            msn: Msn::new(0),
            mpr_dest: 8,
            max_wimm_dest: 128,
            max_mtu: 4096,
            dynamic_mpr: false,
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

/// Everything a peer must know of a queue pair to connect to it: exchanged out of band, by
/// [`verbs::exchange`](crate::verbs) or by the application's own channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpInfo {
    /// Version of this structure: 1. Whoever speaks several writes the one that both speak; over
    /// [`verbs::exchange`](crate::verbs::exchange) that is seen to.
    pub version: u32,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Initial PSN of what this side sends, 24 bits.
    pub psn: u32,
    /// Initial message number of what this side sends.
    pub msn: u16,
    /// Window this side grants, units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate this side accepts in flight.
    pub max_wimm: u16,
    /// Largest payload of a packet this side can take, bytes.
    pub mtu: u32,
    /// This side answers trimmed packets with NACKs.
    pub trim_nack: bool,
    /// This side follows dynamic windows.
    pub dynamic_mpr: bool,
    /// This side computes and checks the invariant CRC.
    pub icrc: bool,
    /// UDP destination port this side listens on.
    pub udp_port: u16,
    /// Where this side puts and looks for entropy: `stev-sport-high`, `stev-sport-low` or `udp`.
    pub entropy: String,
    /// Ports, one a plane. Port *n* of one side is on the same plane as port *n* of the other.
    pub ports: Vec<PortAddr>,
    /// The plane of each port, if it is told: see [`EndpointConfig::plane_ids`]. Compared where both sides tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plane_ids: Vec<u32>,
}

impl QpInfo {
    /// The version of this structure that this code speaks.
    pub const VERSION: u32 = 1;
}

/// Name of an entropy mode in [`QpInfo`].
pub const fn entropy_name(mode: EntropyMode) -> &'static str {
    match mode {
        EntropyMode::Stev(StevOrder::SportHigh) => "stev-sport-high",
        EntropyMode::Stev(StevOrder::SportLow) => "stev-sport-low",
        EntropyMode::Udp => "udp",
    }
}

/// Attributes of INIT → RTR: the peer, and what this side accepts from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The peer's queue pair number.
    pub dest_qpn: u32,
    /// The peer's initial PSN.
    pub rq_psn: Psn,
    /// The peer's initial message number.
    pub rq_msn: Msn,
    /// Agreed payload bytes a packet, 256 to what both ports take.
    pub path_mtu: u32,
    /// Window granted to the peer, units of 128 PSNs.
    pub mpr_dest: u8,
    /// Writes with immediate the peer may have in flight.
    pub max_wimm_dest: u16,
    /// Both sides follow dynamic windows.
    pub dynamic_mpr: bool,
    /// The peer turns trimmed packets into NACKs.
    pub trim_nack: bool,
    /// The peer's ports, paired with ours by index.
    pub ports: Vec<PortAddr>,
    /// UDP destination port of the peer.
    pub udp_port: u16,
}

/// Attributes of RTR → RTS: what this side may send, and how long it goes on without an answer.
///
/// A queue pair that hears nothing new from its peer while packets are in flight waits one timeout, then
/// `linear_retries` more of the same length, then `exponential_retries` that double, and then fails with
/// [`RetryExceeded`](crate::endpoint::FailReason::RetryExceeded) (MRC 1.0 table 7-1). Anything new from the peer starts
/// all of this over. [`RtsAttr::budget_ns`] adds the waits up:
///
/// | `timeout` | `linear_retries` | `exponential_retries` | fails after |
/// |---|---|---|---|
/// | 14 | 7 | 5 | 1.2 s |
/// | 14 | 7 | 7 | 4.4 s |
/// | **14** | **7** | **9** (the default) | **17.3 s** |
/// | 14 | 7 | 11 | 68.8 s |
/// | 20 | 7 | 3 | 23.6 s |
/// | 21 | 7 | 0 | 17.2 s |
/// | any | any | 25 | never |
///
/// Between two timeouts the oldest packet is sent again, first after about two round trips (at least
/// [`tail_probe_floor_ns`](EndpointConfig::tail_probe_floor_ns)), then at doubling intervals, from each timeout anew. So traffic resumes at the
/// latest half a wait after a silent peer is back; with the defaults, within a third of the time that it was away
/// or 10 ms, whichever is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// Window granted by the peer, units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate in flight that the peer accepts.
    pub max_wimm: u16,
    /// Retransmission timeout is 1.024 us x 2^timeout, 1 to 24 (17.2 s).
    pub timeout: u8,
    /// Timeouts at the fixed interval, at most 7.
    pub linear_retries: u8,
    /// Timeouts at doubling intervals after those, at most 25; 25 means for ever.
    pub exponential_retries: u8,
}

impl RtsAttr {
    /// Largest timeout exponent.
    pub const MAX_TIMEOUT: u8 = 24;
    /// Most linear retries.
    pub const MAX_LINEAR: u8 = 7;
    /// Most exponential retries; this many mean for ever.
    pub const MAX_EXPONENTIAL: u8 = 25;

    /// The timeout in nanoseconds.
    pub const fn timeout_ns(&self) -> u64 {
        1024 << self.timeout
    }

    /// How long the queue pair goes on when it hears nothing new, in nanoseconds:
    /// `timeout_ns` x (`linear_retries` + 2^(`exponential_retries` + 1) - 1); `None` when for ever.
    ///
    /// ```
    /// use spindrift::endpoint::RtsAttr;
    ///
    /// let budget_s = |timeout, linear_retries, exponential_retries| {
    ///     let attr = RtsAttr { timeout, linear_retries, exponential_retries, ..RtsAttr::default() };
    ///     attr.budget_ns().map(|ns| ns as f64 / 1e9)
    /// };
    /// assert!((17.2..17.3).contains(&budget_s(14, 7, 9).unwrap()), "the default");
    /// assert!((4.3..4.4).contains(&budget_s(14, 7, 7).unwrap()));
    /// assert_eq!(budget_s(14, 0, 0), Some(0.016777216), "one timeout");
    /// assert_eq!(budget_s(14, 7, 25), None, "for ever");
    /// ```
    pub const fn budget_ns(&self) -> Option<u64> {
        if self.exponential_retries >= Self::MAX_EXPONENTIAL {
            return None;
        }
        let waits = self.linear_retries as u64 + (2 << self.exponential_retries) - 1;
        Some(self.timeout_ns().saturating_mul(waits))
    }
}

impl Default for RtsAttr {
    /// Timeout 14 (16.8 ms), seven retries at that interval and nine doubling: 17.3 s. A peer that stands still for
    /// 10 s (a debugger, a snapshot of a virtual machine, a network that converges) loses nothing, and the short
    /// first timeouts find a way around short outages soon.
    fn default() -> Self {
        Self { mpr: 8, max_wimm: 128, timeout: 14, linear_retries: 7, exponential_retries: 9 }
    }
}

/// A state change to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QpModify {
    /// Back to RESET from any state: all work is dropped without completions.
    Reset,
    /// RESET → INIT.
    Init,
    /// INIT → RTR.
    Rtr(Box<RtrAttr>),
    /// RTR → RTS.
    Rts(RtsAttr),
    /// To ERROR from any state: all work is flushed.
    Error,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Made, nothing set.
    Reset,
    /// Receive work requests may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Failed: work requests are flushed.
    Error,
}

/// A control operation that was refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EndpointError {
    /// No queue pair of that number.
    #[error("no queue pair {0:#08x}")]
    NoSuchQp(u32),
    /// The state machine does not allow the change.
    #[error("queue pair is in {from:?}; {to} is not reachable from there")]
    BadTransition {
        /// Current state.
        from: QpState,
        /// State asked for.
        to: &'static str,
    },
    /// An attribute is out of range.
    #[error("attribute `{name}` is {value}: {why}")]
    BadAttribute {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        why: &'static str,
    },
    /// A limit of the endpoint is reached.
    #[error("limit `{0}` is reached; raise it in the endpoint's settings")]
    Limit(&'static str),
    /// The path settings cannot work.
    #[error(transparent)]
    Path(#[from] crate::path::PathConfigError),
    /// The congestion control settings cannot work.
    #[error(transparent)]
    Congestion(#[from] crate::congestion::CcConfigError),
    /// The memory space refused.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    /// The peer's ports do not fit ours.
    #[error("peer's ports: {0}")]
    Ports(String),
}

/// A work request that was not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// No queue pair of that number.
    #[error("no such queue pair")]
    NoSuchQp,
    /// The queue is full.
    #[error("queue is full: wait for completions or make the queue pair with a larger capacity")]
    QueueFull,
    /// The state does not allow it: sends need RTS, receives INIT or later.
    #[error("queue pair is in {0:?}")]
    WrongState(QpState),
    /// A message has 1 to 2^32-1 bytes (MRC 1.0 section 5.1); an immediate does not travel alone.
    #[error("message is empty: MRC messages have 1 to 4294967295 bytes, with an immediate too")]
    Empty,
    /// The peer accepts no writes with immediate: the request would wait for ever.
    #[error("the peer accepts no writes with immediate: it connected with max_wimm 0")]
    NoImmediates,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use spindrift_srv6::{EvProfile, Field, Segments};

    use super::*;
    use crate::endpoint::tests::port;

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

    /// The first route that cannot work is named, with the reason.
    #[test]
    fn routes_that_cannot_work_are_named() {
        let outer = |bits: u8| {
            let path = EvProfile::new(&[96, 32], &[Field::fixed(32, 1), Field::low_bits(32, 0, bits)]);
            Outer { src: Ipv6Addr::LOCALHOST, path: path.expect("it fits"), hop_limit: 9 }
        };
        let why = |v6: bool, mode: Option<EntropyMode>, route: Route, more: Option<Route>| {
            let mut config = EndpointConfig::new((1..=2).map(port).collect());
            if v6 {
                config.ports.iter_mut().for_each(|port| port.ip = Ipv6Addr::LOCALHOST.into());
            }
            config.entropy = mode.unwrap_or(config.entropy);
            config.routes = [route].into_iter().chain(more).collect();
            config.validate().map_err(|error| {
                assert_eq!(error.setting, "routes");
                assert_eq!(Routes::new(&config).map(|_| ()), Err(error.clone()));
                error.why
            })
        };
        let to = |text: &str| Route::new(text.parse().expect("a prefix"), 1);
        let with = |bits| Route { outer: Some(outer(bits)), ..to("::/0") };
        let v4_with = |bits| Route { outer: Some(outer(bits)), ..to("0.0.0.0/0") };
        let low = Some(EntropyMode::Stev(StevOrder::SportLow));
        let udp = Some(EntropyMode::Udp);
        for good in [
            why(true, None, with(32), None),
            why(true, low, with(32), None),
            why(true, udp, with(0), None),
            why(false, None, v4_with(16), Some(to("10.0.0.0/8"))),
            why(false, low, v4_with(0), None),
            why(false, None, v4_with(16), Some(Route { port: 0, ..v4_with(16) })),
        ] {
            assert_eq!(good, Ok(()));
        }
        let not_carried = "outer.path takes the first";
        for (result, want) in [
            (
                why(true, None, Route { port: 2, ..to("::/0") }, None),
                "there is no such port, the last one is port 1",
            ),
            (why(false, None, to("::/0"), None), "family of the port's, 10.0.0.2"),
            (why(true, None, to("0.0.0.0/0"), None), "family of the port's, ::1"),
            (why(false, None, to("10.1.0.0/8"), None), "bits behind the prefix; write 10.0.0.0/8"),
            (
                why(
                    true,
                    None,
                    Route { outer: Some(Outer { hop_limit: 0, ..outer(1) }), ..to("::/0") },
                    None,
                ),
                "hop_limit",
            ),
            (why(true, udp, with(1), None), not_carried),
            (why(false, None, v4_with(17), None), not_carried),
            (why(false, low, v4_with(1), None), not_carried),
            (why(true, None, with(3), Some(to("::/0"))), "one before it for the same"),
        ] {
            let why = result.expect_err("it cannot work");
            assert!(why.contains(want), "{why:?} says nothing of {want:?}");
        }
        let second =
            why(true, None, with(3), Some(Route { port: 9, ..to("fd00::/64") })).expect_err("no port 9");
        assert!(second.starts_with("route 2 (to fd00::/64, port 9): "), "{second}");
    }

    /// Where the kernel makes the headers, there is nothing to say about them.
    #[test]
    fn sockets_have_no_routes_of_ours() {
        let refused = |at: u8, change: fn(&mut Route)| {
            let mut ports = vec![port(1), port(2)];
            ports[1].source_ports = Some(vec![50_000]);
            let mut config = EndpointConfig::new(ports);
            let mut route = Route::new("10.0.0.0/8".parse().expect("a prefix"), at);
            change(&mut route);
            config.routes = vec![route];
            config.validate().map_err(|error| error.why.contains("kernel sockets"))
        };
        let hop: fn(&mut Route) = |route| route.next_hop = Some(MacAddr([2; 6]));
        let outer: fn(&mut Route) = |route| {
            let path = Segments::from(Ipv6Addr::LOCALHOST).into();
            route.outer = Some(Outer { src: Ipv6Addr::LOCALHOST, path, hop_limit: 9 });
        };
        assert_eq!([hop, outer].map(|change| refused(0, change)), [Ok(()), Ok(())]);
        assert_eq!([hop, outer].map(|change| refused(1, change)), [Err(true), Err(true)]);
        assert_eq!(refused(1, |_| ()), Ok(()));
    }

    /// What the kernel's sockets cannot carry is refused, and is not the default for them.
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

    /// MRC 1.0 table 7-1: the timeout doubles with each step, and so do the exponential retries.
    #[test]
    fn the_retry_budget_adds_up_every_wait() {
        let attr = |timeout, linear_retries, exponential_retries| RtsAttr {
            timeout,
            linear_retries,
            exponential_retries,
            ..RtsAttr::default()
        };
        assert_eq!((attr(1, 0, 0).timeout_ns(), attr(24, 0, 0).timeout_ns()), (2048, 1024 << 24));
        assert_eq!(attr(1, 0, 0).budget_ns(), Some(2048));
        assert_eq!(attr(1, 3, 0).budget_ns(), Some(4 * 2048));
        assert_eq!(attr(1, 3, 2).budget_ns(), Some((1 + 3 + 2 + 4) * 2048));
        assert_eq!(attr(1, 0, 24).budget_ns(), Some(((1 << 25) - 1) * 2048));
        assert_eq!(attr(1, 0, 25).budget_ns(), None);
    }
}
