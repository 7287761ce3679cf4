//! Requests and replies.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use spindrift::endpoint::{DenyRule, Endpoint};
use spindrift::path::{DenyListStatus, PlaneRole, PlaneSet, RoleStatus};
use spindrift::verbs::{PortAttr, QpAttr};
use spindrift::wire::Qpn;

use crate::counters::{CountersReport, state_name};
use crate::deny::DenyEntry;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// The state of the process.
    Status,
    /// Make a role of planes the preferred one: [`Qp::prefer_role`](spindrift::verbs::Qp::prefer_role).
    Prefer {
        /// The role.
        role: Role,
        /// The number of the queue pair; all if there is none.
        #[serde(default)]
        queue_pair: Option<u32>,
    },
    /// Avoid paths: [`Context::set_deny_list`](spindrift::verbs::Context::set_deny_list). All queue pairs of the process
    /// follow the rules of all sources together.
    Deny {
        /// Who wants it.
        source: String,
        /// Which paths.
        rules: Vec<DenyRule>,
        /// These are in place of all earlier rules of the source.
        #[serde(default)]
        replace: bool,
        /// The rules end by themselves after so many milliseconds; never if there is none.
        #[serde(default)]
        lifetime_ms: Option<u64>,
    },
    /// Avoid them no longer.
    Allow {
        /// Who wanted to avoid them.
        source: String,
        /// Which; all of the source if there is none.
        #[serde(default)]
        rules: Vec<DenyRule>,
    },
    /// What has been counted since the start.
    Counters,
}

/// A role of planes ([`PlaneRole`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Planes that carry packets by default.
    Primary,
    /// Planes that stand by.
    Standby,
}

impl From<Role> for PlaneRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Primary => Self::Primary,
            Role::Standby => Self::Standby,
        }
    }
}

impl From<PlaneRole> for Role {
    fn from(role: PlaneRole) -> Self {
        match role {
            PlaneRole::Primary => Self::Primary,
            PlaneRole::Standby => Self::Standby,
        }
    }
}

/// What a process replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Prefer`].
    Moved(Moved),
    /// To [`Request::Deny`] and [`Request::Allow`]: the rules now.
    Denied(Vec<DenyEntry>),
    /// To [`Request::Counters`].
    Counters(Box<CountersReport>),
    /// The request was not carried out, or only in part; why.
    Error(String),
}

/// The state of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the transport.
    pub version: String,
    /// The number of the process.
    pub process: u32,
    /// What the program calls itself.
    pub program: String,
    /// Lanes of the context.
    pub lanes: usize,
    /// The ports of the first lane.
    pub planes: Vec<PlaneStatus>,
    /// All queue pairs, lane by lane, in ascending order of their numbers.
    pub queue_pairs: Vec<QpStatus>,
    /// The paths that they avoid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<DenyEntry>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneStatus {
    /// Its plane.
    pub plane: usize,
    /// Kind and address.
    pub port: String,
    /// Its link is up.
    pub up: bool,
}

impl From<&PortAttr> for PlaneStatus {
    fn from(port: &PortAttr) -> Self {
        let up = port.link == spindrift::pmd::LinkState::Up;
        Self { plane: port.plane, port: port.name.clone(), up }
    }
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpStatus {
    /// Its number.
    pub queue_pair: u32,
    /// Its lane.
    pub lane: usize,
    /// `RESET`, `INIT`, `RTR`, `RTS` or `ERROR`.
    pub state: String,
    /// The peer, from RTR on.
    pub peer: Option<PeerStatus>,
    /// Planes whose ports are up on both sides, as far as is known.
    pub planes: Vec<u8>,
    /// The roles of its planes, if they have some.
    pub roles: Option<RolesStatus>,
    /// What it does with its second NIC, in mode `shift`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<ShiftStatus>,
    /// What of its paths is denied, if something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denied>,
    /// Send work requests not complete.
    pub sends_outstanding: u32,
}

/// The peer of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its queue pair's number.
    pub queue_pair: u32,
    /// Its addresses, by plane.
    pub addresses: Vec<IpAddr>,
}

/// The roles of a queue pair's planes ([`RoleStatus`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolesStatus {
    /// Planes that carry packets by default.
    pub primary: Vec<u8>,
    /// Planes that stand by.
    pub standby: Vec<u8>,
    /// Planes that carry packets now.
    pub serving: Vec<u8>,
    /// The role that carries packets whenever it is fit.
    pub preferred: Role,
    /// Times that packets left the planes of the preferred role.
    pub failovers: u64,
    /// Failovers that no port reported.
    pub silent_failovers: u64,
    /// Times that packets returned to the planes of the preferred role.
    pub failbacks: u64,
    /// The present hold time in nanoseconds.
    pub hold_ns: u64,
}

/// What a queue pair does about the deny list ([`DenyListStatus`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// Planes on the list.
    pub planes: Vec<u8>,
    /// Those of them that carry no data now. Others carry some because those that are not on the list do not suffice.
    pub avoided: Vec<u8>,
    /// Entropy values of other planes on the list.
    pub evs: u16,
    /// These are in use all the same, since the others do not suffice.
    pub released: bool,
    /// Times that nothing arrived on the planes that carried data, although no port reported it, while others stood by.
    #[serde(default)]
    pub silent_failovers: u64,
}

/// A queue pair with fallback in mode `shift` ([`spindrift::fallback`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShiftStatus {
    /// The state of its sending half, as in the paper, section 4.3.
    pub send: String,
    /// A queue pair is prepared on the NIC that it does not use.
    pub prepared: bool,
    /// Times that it has left a NIC that failed.
    pub switches: u64,
    /// Times that it has moved without a failure.
    pub moves: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Requests that had arrived although they had not completed, and were not sent again.
    pub spared: u64,
    /// Why it has failed for good, if it has.
    pub failure: Option<String>,
}

/// The numbers of the queue pairs that a [`Request::Prefer`] concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Their packets take the planes of the role from now on.
    pub now: Vec<u32>,
    /// Their packets take those planes once they have been fit for the hold time.
    pub later: Vec<u32>,
    /// Their planes have no roles.
    pub without_roles: Vec<u32>,
}

fn list(planes: PlaneSet) -> Vec<u8> {
    planes.iter().collect()
}

impl From<DenyListStatus> for Denied {
    fn from(status: DenyListStatus) -> Self {
        let DenyListStatus { planes, avoided, evs, released, silent_failovers } = status;
        Self { planes: list(planes), avoided: list(avoided), evs, released, silent_failovers }
    }
}

impl From<RoleStatus> for RolesStatus {
    fn from(status: RoleStatus) -> Self {
        Self {
            primary: list(status.primary),
            standby: list(status.standby),
            serving: list(status.serving),
            preferred: status.preferred.into(),
            failovers: status.failovers,
            silent_failovers: status.silent_failovers,
            failbacks: status.failbacks,
            hold_ns: status.hold_ns,
        }
    }
}

impl QpStatus {
    /// The queue pair with this number.
    pub fn of(endpoint: &Endpoint, lane: usize, qpn: Qpn) -> Option<Self> {
        let planes = endpoint.planes(qpn).unwrap_or(PlaneSet(0));
        let attr = endpoint.query_qp(qpn)?;
        let denied = endpoint.deny_list_status(qpn).map(Into::into);
        Some(Self { denied, ..Self::new(&attr, lane, planes, endpoint.role_status(qpn)) })
    }

    fn new(attr: &QpAttr, lane: usize, planes: PlaneSet, roles: Option<RoleStatus>) -> Self {
        let peer = attr.peer.as_ref().map(|peer| PeerStatus {
            queue_pair: peer.qpn.get(),
            addresses: peer.ports.iter().map(|port| port.ip).collect(),
        });
        Self {
            queue_pair: attr.qpn.get(),
            lane,
            state: state_name(attr.state).to_owned(),
            peer,
            planes: list(planes),
            roles: roles.map(Into::into),
            shift: None,
            denied: None,
            sends_outstanding: attr.sends_outstanding,
        }
    }
}
