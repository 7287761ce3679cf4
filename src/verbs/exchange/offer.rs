//! What the two sides tell each other, and what follows from it.

use core::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Version 1 of the MRC protocol, as a bit of [`QpInfo::versions`] (OCP MRC API: protocol version bit 1).
pub const MRC_VERSION_1: u32 = 1;

/// Smallest path MTU in bytes of payload a packet.
pub const MIN_MTU: u32 = 256;

/// Most planes of one NIC: the port status mask of MRC 1.0 table 7-20 has 32 bits.
pub const MAX_PLANES: usize = 32;

/// Largest 24-bit number: queue pair numbers and PSNs.
const MAX_U24: u32 = 0xff_ffff;

/// Smallest queue pair number of an application: 0 and 1 are the IBTA's, 2 takes endpoint operations
/// (MRC 1.0 section 7.4.7).
const MIN_QPN: u32 = 3;

/// Everything a peer has to know about a queue pair in order to connect to it.
///
/// It serialises with serde, so that applications with a channel of their own (a job launcher, a key-value
/// store) can carry it in any format; [`negotiate`] then does what the TCP exchange would have done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInfo {
    /// MRC protocol versions understood, one bit each.
    pub versions: u32,
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First PSN that this side sends, 24 bits.
    pub psn: u32,
    /// Largest payload of a packet in bytes.
    pub mtu: u32,
    /// PSN range this side grants as a responder (`MPR_DEST`), in units of 128 PSNs.
    pub mpr: u8,
    /// Writes with immediate in flight that this side grants as a responder (`MAX_WIMM_DEST`).
    pub max_wimm: u16,
    /// Optional abilities.
    pub caps: Caps,
    /// Whether packets carry a checked iCRC. Both sides must agree.
    pub icrc: bool,
    /// Where packets carry their entropy value. Both sides must agree.
    pub entropy: EntropyFormat,
    /// UDP destination port at which this side receives.
    pub udp_port: u16,
    /// Addresses of the NIC's ports; the index is the plane.
    pub planes: Vec<PlaneAddr>,
}

/// Optional abilities of a queue pair (OCP MRC API, queue pair capabilities).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    /// Answers trimmed packets with a NACK.
    pub trim_nack: bool,
    /// Lets the granted PSN range change while connected.
    pub dynamic_mpr: bool,
    /// Adjusts reflected timestamps by its own service time.
    pub svc_time: bool,
}

/// Where a packet carries its entropy value (MRC paper, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntropyFormat {
    /// Upper half in the UDP source port, lower half in the IPv6 flow label.
    StevSportHigh,
    /// Lower half in the UDP source port, upper half in the IPv6 flow label.
    StevSportLow,
    /// All 16 bits in the UDP source port.
    Udp,
}

/// Where one plane of a NIC is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneAddr {
    /// IP address.
    pub ip: IpAddr,
    /// Ethernet address; zero where the kernel resolves it.
    pub mac: [u8; 6],
}

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
    /// MRC protocol version bit in use.
    pub version: u32,
    /// Payload bytes of a full packet, both ways.
    pub mtu: u32,
    /// PSN range for sending, in units of 128 PSNs.
    pub mpr: u8,
    /// PSN range granted to the peer, in units of 128 PSNs.
    pub mpr_dest: u8,
    /// Writes with immediate in flight, for sending.
    pub max_wimm: u16,
    /// Writes with immediate in flight granted to the peer.
    pub max_wimm_dest: u16,
    /// Abilities that both sides have.
    pub caps: Caps,
    /// The peer's queue pair number.
    pub peer_qpn: u32,
    /// First PSN that the peer sends.
    pub peer_psn: u32,
    /// UDP destination port to send to.
    pub peer_udp_port: u16,
    /// This side's and the peer's address of each plane in use.
    pub planes: Vec<(PlaneAddr, PlaneAddr)>,
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
/// planes are paired by index, up to the smaller count.
///
/// # Errors
/// The first field that is malformed or does not fit.
pub fn negotiate(ours: &QpInfo, theirs: &QpInfo) -> Result<Negotiated, Refusal> {
    check_numbers(theirs)?;
    let version = ours.versions & theirs.versions;
    refuse_unless(version != 0, "MRC versions (bits)", ours.versions, theirs.versions)?;
    refuse_unless(ours.icrc == theirs.icrc, "icrc", ours.icrc, theirs.icrc)?;
    refuse_unless(ours.entropy == theirs.entropy, "entropy format", ours.entropy, theirs.entropy)?;
    Ok(Negotiated {
        version: 1 << version.ilog2(),
        mtu: ours.mtu.min(theirs.mtu),
        mpr: ours.mpr.min(theirs.mpr),
        mpr_dest: ours.mpr,
        max_wimm: ours.max_wimm.min(theirs.max_wimm),
        max_wimm_dest: ours.max_wimm,
        caps: Caps {
            trim_nack: ours.caps.trim_nack && theirs.caps.trim_nack,
            dynamic_mpr: ours.caps.dynamic_mpr && theirs.caps.dynamic_mpr,
            svc_time: ours.caps.svc_time && theirs.caps.svc_time,
        },
        peer_qpn: theirs.qpn,
        peer_psn: theirs.psn,
        peer_udp_port: theirs.udp_port,
        planes: pair_planes(&ours.planes, &theirs.planes)?,
    })
}

/// A peer's numbers come from the network: each must fit its field before it is used.
fn check_numbers(theirs: &QpInfo) -> Result<(), Refusal> {
    let qpn_ok = (MIN_QPN..=MAX_U24).contains(&theirs.qpn);
    refuse_unless(qpn_ok, "queue pair number", "3 to 2^24-1", theirs.qpn)?;
    refuse_unless(theirs.psn <= MAX_U24, "first PSN", "0 to 2^24-1", theirs.psn)?;
    let mtu_ok = theirs.mtu >= MIN_MTU && theirs.mtu.is_multiple_of(4);
    refuse_unless(mtu_ok, "path MTU", "at least 256, a multiple of 4", theirs.mtu)?;
    refuse_unless(theirs.mpr != 0, "mpr", "at least 1", theirs.mpr)?;
    refuse_unless(theirs.udp_port != 0, "UDP port", "1 to 65535", theirs.udp_port)?;
    let planes_ok = (1..=MAX_PLANES).contains(&theirs.planes.len());
    refuse_unless(planes_ok, "planes", "1 to 32", theirs.planes.len())
}

fn pair_planes(ours: &[PlaneAddr], theirs: &[PlaneAddr]) -> Result<Vec<(PlaneAddr, PlaneAddr)>, Refusal> {
    let pairs: Vec<_> = ours.iter().copied().zip(theirs.iter().copied()).collect();
    refuse_unless(!pairs.is_empty(), "planes", ours.len(), theirs.len())?;
    for (plane, (our, their)) in pairs.iter().enumerate() {
        let same_family = our.ip.is_ipv4() == their.ip.is_ipv4();
        refuse_unless(same_family, &format!("IP family of plane {plane}"), our.ip, their.ip)?;
    }
    Ok(pairs)
}

fn refuse_unless(
    fits: bool,
    field: &str,
    ours: impl fmt::Display,
    theirs: impl fmt::Display,
) -> Result<(), Refusal> {
    if fits { Ok(()) } else { Err(Refusal::new(field, ours, theirs)) }
}

impl fmt::Display for EntropyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StevSportHigh => "STEV, source port = upper half",
            Self::StevSportLow => "STEV, source port = lower half",
            Self::Udp => "UDP source port",
        })
    }
}
