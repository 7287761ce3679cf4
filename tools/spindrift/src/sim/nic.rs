//! Settings of the transport on the hosts of a plan.

use std::sync::Arc;

use anyhow::Result;
use serde::Deserialize;
use spindrift::congestion::{CcAlgorithm, CcConfig};
use spindrift::endpoint::RetryAttr;
use spindrift::time::Time;
use spindrift_fabric::{ClosSpec, Either, HostId, Messenger as _, MrcHost, MrcSpec};
use spindrift_roce::{RoceHost, RoceSpec};
use spindrift_srv6::{Fabric, Node};

use super::plan::{Reader, base_rtt_ns};
use crate::config::{Cc, CcName, PathSet, RoutingName};

/// What endpoints call what they refuse, and the key of the plan that it comes from.
const REFUSED: [(&str, &str, &str); 9] = [
    ("mpr_dest", "transport", "mpr"),
    ("max_send_wr", "transport", "depth"),
    ("sack_threshold_bytes", "transport", "sack_threshold_bytes"),
    ("tail_probe_floor_ns", "transport", "tail_probe_floor_ns"),
    ("initial_reordering_ns", "transport", "initial_reordering_ns"),
    ("timeout", "transport", "timeout"),
    ("linear_retries", "transport", "linear_retries"),
    ("exponential_retries", "transport", "exponential_retries"),
    ("entropy value", "path", "evs"),
];

/// What hosts run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TransportKind {
    #[default]
    Mrc,
    Roce,
}

impl TransportKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mrc => "mrc",
            Self::Roce => "roce",
        }
    }

    /// What is wrong with a key or a table that only the other kind has.
    pub(super) fn unfit(self) -> String {
        let (own, other) = match self {
            Self::Mrc => (self, Self::Roce),
            Self::Roce => (self, Self::Mrc),
        };
        format!(
            "does not apply to transport.kind = \"{}\"; leave it out, or set it in the variants of kind \"{}\" alone",
            own.name(),
            other.name()
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TransportTable {
    pub(super) kind: TransportKind,
    routing: Option<RoutingName>,
    pub(super) mtu: Option<u32>,
    trimming: Option<bool>,
    sack_threshold_bytes: Option<u32>,
    tail_probe_floor_ns: Option<u64>,
    initial_reordering_ns: Option<u64>,
    pub(super) depth: Option<u32>,
    mpr: Option<u8>,
    pub(super) timeout: Option<u8>,
    linear_retries: Option<u8>,
    exponential_retries: Option<u8>,
    pub(super) retry_count: Option<u8>,
    pub(super) ack_every: Option<u32>,
}

impl TransportTable {
    /// Refuses keys that the kind of transport does not have.
    pub(super) fn check(&self, reader: &Reader<'_>) -> Result<()> {
        let mrc = [
            // RoCE has one path for each queue pair, which the switches choose.
            ("routing", self.routing == Some(RoutingName::Srv6)),
            ("trimming", self.trimming.is_some()),
            ("sack_threshold_bytes", self.sack_threshold_bytes.is_some()),
            ("tail_probe_floor_ns", self.tail_probe_floor_ns.is_some()),
            ("initial_reordering_ns", self.initial_reordering_ns.is_some()),
            ("mpr", self.mpr.is_some()),
            ("linear_retries", self.linear_retries.is_some()),
            ("exponential_retries", self.exponential_retries.is_some()),
        ];
        let roce = [("retry_count", self.retry_count.is_some()), ("ack_every", self.ack_every.is_some())];
        let unfit = match self.kind {
            TransportKind::Mrc => &roce[..],
            TransportKind::Roce => &mrc[..],
        };
        match unfit.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(reader.wrong("transport", key, &self.kind.unfit())),
            None => Ok(()),
        }
    }
}

/// A host of either kind.
pub(super) type Host = Either<MrcHost, RoceHost>;

/// How each host runs the transport.
#[derive(Debug)]
pub(super) enum Nics {
    /// By host.
    Mrc(Vec<Arc<MrcSpec>>),
    /// All alike.
    Roce(Arc<RoceSpec>),
}

impl Nics {
    pub(super) const fn kind(&self) -> TransportKind {
        match self {
            Self::Mrc(_) => TransportKind::Mrc,
            Self::Roce(_) => TransportKind::Roce,
        }
    }

    /// Payload of a full packet in bytes.
    pub(super) fn mtu(&self) -> u32 {
        match self {
            Self::Mrc(nics) => nics.first().map_or(1, |nic| nic.mtu),
            Self::Roce(nic) => nic.qp.mtu,
        }
    }

    /// The host with this number.
    ///
    /// # Errors
    /// What is wrong with its settings.
    pub(super) fn host(
        &self,
        fabric: &Fabric,
        number: u16,
        peers: Vec<u16>,
        seed: u64,
    ) -> Result<Host, String> {
        match self {
            Self::Mrc(nics) => {
                let nic = nics.get(usize::from(number)).ok_or_else(|| format!("no host {number}"))?;
                let host = MrcHost::new(nic, fabric, number, peers, seed);
                host.map(Either::First).map_err(|error| error.to_string())
            }
            Self::Roce(nic) => {
                let host = RoceHost::new(nic, fabric, number, seed);
                host.map(Either::Second).map_err(|error| error.to_string())
            }
        }
    }
}

/// What is different at some hosts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HostTable {
    hosts: Option<String>,
    path: Option<PathSet>,
    cc: Option<Cc>,
}

/// What is the same at all hosts but those that a [`HostTable`] is about.
#[derive(Debug)]
pub(super) struct NicTables<'a> {
    pub(super) transport: &'a TransportTable,
    pub(super) path: PathSet,
    pub(super) cc: Cc,
}

/// A table, and its name in the file.
type Named<'a, T> = (&'a str, &'a T);

impl NicTables<'_> {
    /// How each host of a fabric runs the transport.
    pub(super) fn read(
        &self,
        reader: &Reader<'_>,
        clos: &ClosSpec,
        fabric: &Fabric,
        others: &[HostTable],
    ) -> Result<Vec<Arc<MrcSpec>>> {
        let (path, cc) = (("path", &self.path), ("cc", &self.cc));
        let usual = Arc::new(self.nic(reader, clos, path, cc)?);
        let last = fabric.hosts().len() as u16 - 1;
        if last == 0 {
            return Err(reader.wrong("fabric", "hosts_per_t0", "a plan needs two hosts"));
        }
        try_out(reader, fabric, "path", [(0, &usual), (last, &usual)])?;
        let mut nics = vec![Arc::clone(&usual); usize::from(last) + 1];
        for (number, table) in others.iter().enumerate() {
            let place = format!("host.{number}");
            let missing = || reader.wrong(&place, "hosts", "`hosts` is missing");
            let hosts = table.hosts.as_ref().ok_or_else(missing)?;
            let (path_place, cc_place) = (format!("{place}.path"), format!("{place}.cc"));
            let path = table.path.as_ref().map_or(path, |path| (&path_place, path));
            let cc = table.cc.as_ref().map_or(cc, |cc| (&cc_place, cc));
            let nic = Arc::new(self.nic(reader, clos, path, cc)?);
            for HostId(host) in reader.hosts(fabric, &place, "hosts", hosts)? {
                let host = host as u16;
                let Some(at) = nics.get_mut(usize::from(host)) else { continue };
                if !Arc::ptr_eq(at, &usual) {
                    let why = format!("{} is named twice", fabric.name(Node::Host(host)));
                    return Err(reader.wrong(&place, "hosts", &why));
                }
                *at = Arc::clone(&nic);
            }
            try_out(reader, fabric, path.0, [(0, &nic), (last, &usual)])?;
        }
        Ok(nics)
    }

    fn nic(
        &self,
        reader: &Reader<'_>,
        clos: &ClosSpec,
        (path_place, path): Named<'_, PathSet>,
        (cc_place, cc): Named<'_, Cc>,
    ) -> Result<MrcSpec> {
        let transport = self.transport;
        let base = MrcSpec::new(clos.planes, clos.nic_rate_bps(), base_rtt_ns(clos));
        let paths = path.paths(clos.planes);
        paths.validate().map_err(|error| {
            let why = error.to_string();
            let key = why.split([' ', '.', ':']).next().unwrap_or_default().to_owned();
            reader.wrong(path_place, &key, &why)
        })?;
        let mtu = transport.mtu.unwrap_or(base.mtu);
        if !matches!(mtu, 1024 | 2048 | 4096) {
            let why = format!("{mtu} is not a path MTU; write 1024, 2048 or 4096");
            return Err(reader.wrong("transport", "mtu", &why));
        }
        let depth = transport.depth.unwrap_or(base.depth);
        if depth == 0 {
            return Err(reader.wrong("transport", "depth", "a queue pair holds at least one message"));
        }
        let retry = RetryAttr {
            timeout: transport.timeout.unwrap_or(base.retry.timeout),
            linear_retries: transport.linear_retries.unwrap_or(base.retry.linear_retries),
            exponential_retries: transport.exponential_retries.unwrap_or(base.retry.exponential_retries),
        };
        let rate_bps = cc.link_rate_gbps.map_or(clos.nic_rate_bps(), |gbps| (gbps * 1e9) as u64);
        let rtt_ns = cc.base_rtt_ns.unwrap_or_else(|| base_rtt_ns(clos));
        let algorithm = match cc.algorithm.unwrap_or(CcName::Auto) {
            CcName::None => CcAlgorithm::None,
            CcName::Auto | CcName::Adaptive => CcAlgorithm::Adaptive,
            CcName::Nscc => CcAlgorithm::Nscc,
        };
        let congestion = match algorithm {
            CcAlgorithm::None => CcConfig::none(),
            CcAlgorithm::Adaptive | CcAlgorithm::Nscc => CcConfig {
                algorithm,
                shared: cc.shared.unwrap_or_default(),
                trimming: clos.queues.trim_bytes.is_some(),
                ..CcConfig::new(rate_bps, rtt_ns, mtu)
            },
        };
        congestion.validate().map_err(|error| {
            let why = error.to_string();
            let key = if why.starts_with("base_rtt_ns") { "base_rtt_ns" } else { "link_rate_gbps" };
            reader.wrong(cc_place, key, &why)
        })?;
        Ok(MrcSpec {
            mtu,
            srv6: transport.routing != Some(RoutingName::Ecmp),
            path: paths,
            cc: congestion,
            trimming: transport.trimming.unwrap_or(base.trimming),
            sack_threshold_bytes: transport.sack_threshold_bytes.unwrap_or(base.sack_threshold_bytes),
            tail_probe_floor_ns: transport.tail_probe_floor_ns.unwrap_or(base.tail_probe_floor_ns),
            initial_reordering_ns: transport.initial_reordering_ns.unwrap_or(base.initial_reordering_ns),
            depth,
            mpr: transport.mpr.unwrap_or(base.mpr),
            retry,
        })
    }
}

/// Connects two hosts that are like this: what their endpoints refuse, the plan got wrong. `path` is where their paths are
/// from.
fn try_out(
    reader: &Reader<'_>,
    fabric: &Fabric,
    path: &str,
    [(one, nic), (other, other_nic)]: [(u16, &Arc<MrcSpec>); 2],
) -> Result<()> {
    let host =
        |nic, number, peer| MrcHost::new(nic, fabric, number, [peer], 0).map_err(|error| error.to_string());
    let connected = host(nic, one, other).and_then(|mut first| {
        let mut second = host(other_nic, other, one)?;
        MrcHost::connect(Time::ZERO, &mut first, &mut second).map_err(|error| error.to_string())
    });
    let Err(why) = connected else { return Ok(()) };
    let named = REFUSED.iter().find(|(name, ..)| why.contains(name));
    let (name, table, key) = named.copied().unwrap_or(("", "transport", ""));
    let mut why = why.trim_start_matches("cannot connect: ").to_owned();
    if table == "transport" && !name.is_empty() {
        why = why.replace("cap.", "").replace(name, key);
    }
    Err(reader.wrong(if table == "path" { path } else { table }, key, &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    #[test]
    fn every_key_is_documented() {
        let keys = keys_of::<TransportTable>();
        assert_documented("## `sim`", "[transport]", keys);
        assert_documented("## `sim`", "[[host]]", keys_of::<HostTable>());
    }
}
