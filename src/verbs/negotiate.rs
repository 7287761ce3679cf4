//! Finds the attributes of a connection from the offers of two queue pairs.
//!
//! MRC has no connection manager. An application sends its peer a [`QpInfo`] and [`RemoteMr`]s over a channel of its own, or
//! over the TCP connection of the `spindrift-exchange` crate; [`negotiate`] then finds the attributes of the connection.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::endpoint::{EndpointConfig, QpInfo, RtrAttr};

/// Smallest path MTU: bytes of payload per packet.
pub const MIN_MTU: u32 = 256;

/// The largest number of ports (planes) of one NIC: the port status mask of MRC 1.0 table 7-20 has 32 bits.
pub const MAX_PORTS: usize = EndpointConfig::MAX_PORTS;

/// Largest 24-bit number: queue pair numbers and PSNs.
const MAX_U24: u32 = 0xff_ffff;

/// Smallest queue pair number of an application. The IBTA reserves 0 and 1; 2 is for endpoint operations (MRC 1.0
/// section 7.4.7).
const MIN_QPN: u32 = 3;

/// Memory that a peer may access, as far as its registration grants rights to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMr {
    /// Address of its first byte.
    pub addr: u64,
    /// Its remote key.
    pub rkey: u32,
    /// Its length in bytes.
    pub len: u64,
}

/// The agreement of two queue pairs, as seen by [`negotiate`]'s first argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Planes that both sides have, counted from the first. Further ports of one side are not used.
    pub planes: usize,
    /// Attributes for INIT → RTR: the peer, and the limits of what it sends.
    pub rtr: RtrAttr,
    /// PSN range for sending, in units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate in flight, for sending.
    pub max_wimm: u16,
    /// Reads and atomic operations in flight, for sending.
    pub max_rd_atomic: u8,
}

/// Why a peer was refused: one field, the value on each side, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: this side has {ours}, the peer has {theirs}; {fix}")]
pub struct Refusal {
    /// The field that does not fit.
    pub field: String,
    /// What the side that refuses has or needs.
    pub ours: String,
    /// What the refused side offered.
    pub theirs: String,
    /// How to fix it, worded for both sides.
    #[serde(default = "no_fix")]
    pub fix: String,
}

/// For a refusal without a fix.
fn no_fix() -> String {
    "see what the other side reports".to_owned()
}

impl Refusal {
    /// A refusal with [plain](plain_up_to) texts.
    pub fn new(
        field: impl Into<String>,
        ours: impl fmt::Display,
        theirs: impl fmt::Display,
        fix: impl Into<String>,
    ) -> Self {
        // A refusal may quote the peer in all texts: it also names unknown fields.
        let refusal =
            Self { field: field.into(), ours: ours.to_string(), theirs: theirs.to_string(), fix: fix.into() };
        refusal.cleaned()
    }

    /// The same refusal with plain texts, because a peer may have written it.
    #[must_use]
    pub fn cleaned(self) -> Self {
        Self {
            field: plain(&self.field),
            ours: plain(&self.ours),
            theirs: plain(&self.theirs),
            fix: plain(&self.fix),
        }
    }

    /// The same refusal from the point of view of the refused side.
    #[must_use]
    pub fn mirrored(self) -> Self {
        Self { ours: self.theirs, theirs: self.ours, ..self }
    }
}

fn plain(text: &str) -> String {
    plain_up_to(text, 200)
}

/// A peer's text without control characters, at most `max` characters long, for terminals and logs.
pub fn plain_up_to(text: &str, max: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(max).collect()
}

/// Finds the attributes that two queue pairs can use together.
///
/// The MTU, the PSN range and the writes with immediate are the smaller of both values. Capabilities are those of
/// both. The entropy format and the iCRC must be the same. Each side sends to the UDP port at which the other one
/// receives. Ports (planes) are paired by index, up to the smaller count. If both sides give [plane
/// ids](QpInfo::plane_ids), those must be the same for the paired ports.
///
/// # Errors
/// The first field that is malformed or does not fit.
pub fn negotiate(ours: &QpInfo, theirs: &QpInfo) -> Result<Negotiated, Refusal> {
    let same_version = "use versions of the software that share one";
    refuse_unless(ours.version == theirs.version, "version", ours.version, theirs.version, same_version)?;
    check_numbers(theirs)?;
    let icrc = "compute the iCRC on both sides or on neither";
    refuse_unless(ours.icrc == theirs.icrc, "icrc", ours.icrc, theirs.icrc, icrc)?;
    let entropy = "set the same entropy mode on both sides (kernel sockets need `udp`)";
    refuse_unless(
        ours.entropy == theirs.entropy,
        "entropy",
        &ours.entropy,
        bounded(&theirs.entropy),
        entropy,
    )?;
    let planes = ours.ports.len().min(theirs.ports.len());
    check_ports(ours, theirs, planes)?;
    Ok(Negotiated {
        planes,
        rtr: RtrAttr::between(ours, theirs),
        mpr: ours.mpr.min(theirs.mpr),
        max_wimm: ours.max_wimm.min(theirs.max_wimm),
        max_rd_atomic: ours.max_rd_atomic.min(theirs.max_rd_atomic),
    })
}

/// A peer's numbers come from the network: each must fit its field before it is used.
fn check_numbers(theirs: &QpInfo) -> Result<(), Refusal> {
    let fix = "the offer is out of range, mend the peer's settings";
    let qpn_ok = (MIN_QPN..=MAX_U24).contains(&theirs.qpn);
    refuse_unless(qpn_ok, "qpn", "3 to 2^24-1", theirs.qpn, fix)?;
    refuse_unless(theirs.psn <= MAX_U24, "psn", "0 to 2^24-1", theirs.psn, fix)?;
    refuse_unless(theirs.mtu >= MIN_MTU, "mtu", "at least 256", theirs.mtu, fix)?;
    refuse_unless(theirs.mpr != 0, "mpr", "at least 1", theirs.mpr, fix)?;
    refuse_unless(theirs.udp_port != 0, "udp_port", "1 to 65535", theirs.udp_port, fix)?;
    let ports_ok = (1..=MAX_PORTS).contains(&theirs.ports.len());
    refuse_unless(ports_ok, "ports", "1 to 32", theirs.ports.len(), fix)?;
    let ids_ok = theirs.plane_ids.is_empty() || theirs.plane_ids.len() == theirs.ports.len();
    let needed = format!("none or {}, one a port", theirs.ports.len());
    refuse_unless(ids_ok, "plane_ids", needed, theirs.plane_ids.len(), fix)
}

/// Whether port *n* of one side can be on the same plane as port *n* of the other, for all paired ports.
fn check_ports(ours: &QpInfo, theirs: &QpInfo, planes: usize) -> Result<(), Refusal> {
    for (at, port) in theirs.ports.iter().enumerate() {
        let usable = !port.ip.is_unspecified() && !port.ip.is_multicast();
        let fix = "give each plane an address of its own";
        refuse_unless(usable, &format!("address of port {at}"), "a host's address", port.ip, fix)?;
        let once = theirs.ports.iter().take(at).all(|other| other.ip != port.ip);
        refuse_unless(once, &format!("address of port {at}"), "each address once", port.ip, fix)?;
    }
    for (at, (our, their)) in ours.ports.iter().zip(&theirs.ports).enumerate() {
        let same_family = our.ip.is_ipv4() == their.ip.is_ipv4();
        let fix = "use IPv4 on both sides or IPv6";
        refuse_unless(same_family, &format!("IP family of port {at}"), our.ip, their.ip, fix)?;
    }
    // Without plane ids of both sides, there is nothing to compare.
    if ours.plane_ids.is_empty() || theirs.plane_ids.is_empty() {
        return Ok(());
    }
    let (mine, peers) = (ours.plane_ids.iter().take(planes), theirs.plane_ids.iter().take(planes));
    let fix = "list the ports of both sides in the same order of planes";
    refuse_unless(mine.eq(peers), "plane_ids", list(&ours.plane_ids), list(&theirs.plane_ids), fix)
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The first 40 characters of a peer's text.
pub fn bounded(text: &str) -> String {
    text.chars().take(40).collect()
}

fn refuse_unless(
    fits: bool,
    field: &str,
    ours: impl fmt::Display,
    theirs: impl fmt::Display,
    fix: &str,
) -> Result<(), Refusal> {
    if fits { Ok(()) } else { Err(Refusal::new(field, ours, theirs, fix)) }
}
