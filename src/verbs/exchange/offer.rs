//! What the two sides tell each other, and what follows from it.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::endpoint::{EndpointConfig, PortAddr, QpInfo, RtrAttr};
use crate::wire::{Msn, Psn};

/// Smallest path MTU in bytes of payload a packet.
pub const MIN_MTU: u32 = 256;

/// Most ports (planes) of one NIC: the port status mask of MRC 1.0 table 7-20 has 32 bits.
pub const MAX_PORTS: usize = EndpointConfig::MAX_PORTS;

/// Largest 24-bit number: queue pair numbers and PSNs.
const MAX_U24: u32 = 0xff_ffff;

/// Smallest queue pair number of an application: 0 and 1 are the IBTA's, 2 takes endpoint operations
/// (MRC 1.0 section 7.4.7).
const MIN_QPN: u32 = 3;

/// Memory that a peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMr {
    /// Address of its first byte.
    pub addr: u64,
    /// Its remote key.
    pub rkey: u32,
    /// Its length in bytes.
    pub len: u64,
}

/// One side's part of the exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Queue pairs, to be connected to the peer's of the same index.
    pub qps: Vec<QpInfo>,
    /// Memory that the peer may write.
    pub memory: Vec<RemoteMr>,
    /// Whatever the application wants its peer to know; up to [`MAX_APP_BYTES`](super::MAX_APP_BYTES).
    pub app: String,
}

/// What two queue pairs agreed on, from the side of [`negotiate`]'s first argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Attributes for INIT → RTR: the peer, and what it may send.
    pub rtr: RtrAttr,
    /// PSN range for sending, in units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate in flight, for sending.
    pub max_wimm: u16,
}

/// Why a peer was refused: one field, and what each side has there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: this side has {ours}, the peer has {theirs}")]
pub struct Refusal {
    /// The field that does not fit.
    pub field: String,
    /// What the side that refuses has or needs.
    pub ours: String,
    /// What the refused side offered.
    pub theirs: String,
}

impl Refusal {
    pub(crate) fn new(field: &str, ours: impl fmt::Display, theirs: impl fmt::Display) -> Self {
        Self { field: field.to_owned(), ours: ours.to_string(), theirs: theirs.to_string() }
    }

    /// The same refusal with each text cut to a line of plain characters: a peer's words end up on a terminal.
    pub(crate) fn cleaned(self) -> Self {
        let clean = |text: String| text.chars().filter(|c| !c.is_control()).take(200).collect();
        Self { field: clean(self.field), ours: clean(self.ours), theirs: clean(self.theirs) }
    }

    /// The same refusal as the refused side sees it.
    #[must_use]
    pub fn mirrored(self) -> Self {
        Self { field: self.field, ours: self.theirs, theirs: self.ours }
    }
}

/// Finds what two queue pairs can do together.
///
/// The MTU, the PSN range and the writes with immediate are the smaller of both; abilities are those of
/// both; the entropy format and the iCRC must be the same; each side sends to the UDP port at which the other receives;
/// ports (planes) are paired by index, up to the smaller count.
///
/// # Errors
/// The first field that is malformed or does not fit.
pub fn negotiate(ours: &QpInfo, theirs: &QpInfo) -> Result<Negotiated, Refusal> {
    refuse_unless(ours.version == theirs.version, "version", ours.version, theirs.version)?;
    check_numbers(theirs)?;
    refuse_unless(ours.icrc == theirs.icrc, "icrc", ours.icrc, theirs.icrc)?;
    refuse_unless(ours.entropy == theirs.entropy, "entropy", &ours.entropy, bounded(&theirs.entropy))?;
    Ok(Negotiated {
        rtr: RtrAttr {
            dest_qpn: theirs.qpn,
            rq_psn: Psn::new(theirs.psn),
            rq_msn: Msn::new(theirs.msn),
            path_mtu: ours.mtu.min(theirs.mtu),
            mpr_dest: ours.mpr,
            max_wimm_dest: ours.max_wimm,
            dynamic_mpr: ours.dynamic_mpr && theirs.dynamic_mpr,
            trim_nack: theirs.trim_nack,
            ports: pair_ports(&ours.ports, &theirs.ports)?,
            udp_port: theirs.udp_port,
        },
        mpr: ours.mpr.min(theirs.mpr),
        max_wimm: ours.max_wimm.min(theirs.max_wimm),
    })
}

/// A peer's numbers come from the network: each must fit its field before it is used.
fn check_numbers(theirs: &QpInfo) -> Result<(), Refusal> {
    let qpn_ok = (MIN_QPN..=MAX_U24).contains(&theirs.qpn);
    refuse_unless(qpn_ok, "qpn", "3 to 2^24-1", theirs.qpn)?;
    refuse_unless(theirs.psn <= MAX_U24, "psn", "0 to 2^24-1", theirs.psn)?;
    refuse_unless(theirs.mtu >= MIN_MTU, "mtu", "at least 256", theirs.mtu)?;
    refuse_unless(theirs.mpr != 0, "mpr", "at least 1", theirs.mpr)?;
    refuse_unless(theirs.udp_port != 0, "udp_port", "1 to 65535", theirs.udp_port)?;
    let ports_ok = (1..=MAX_PORTS).contains(&theirs.ports.len());
    refuse_unless(ports_ok, "ports", "1 to 32", theirs.ports.len())
}

fn pair_ports(ours: &[PortAddr], theirs: &[PortAddr]) -> Result<Vec<PortAddr>, Refusal> {
    for (plane, (our, their)) in ours.iter().zip(theirs).enumerate() {
        let same_family = our.ip.is_ipv4() == their.ip.is_ipv4();
        refuse_unless(same_family, &format!("IP family of port {plane}"), our.ip, their.ip)?;
    }
    Ok(theirs.iter().take(ours.len()).copied().collect())
}

/// Enough of a peer's text to understand it, and no more.
fn bounded(text: &str) -> String {
    text.chars().take(40).collect()
}

fn refuse_unless(
    fits: bool,
    field: &str,
    ours: impl fmt::Display,
    theirs: impl fmt::Display,
) -> Result<(), Refusal> {
    if fits { Ok(()) } else { Err(Refusal::new(field, ours, theirs)) }
}
