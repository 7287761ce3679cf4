//! RoCEv2 on the hosts of a plan, DCQCN and priority flow control.

use std::sync::Arc;

use anyhow::Result;
use serde::Deserialize;
use spindrift_fabric::{ClosSpec, PfcSpec, QueueRules, Threshold};
use spindrift_roce::{AlphaRule, Dcqcn, Marking, Profile, Retry, RoceError, RoceSpec, queues};

use super::nic::{TransportKind, TransportTable};
use super::plan::Reader;
use crate::units::parse_size;

/// Headers of the longest packet, and what is around its frame, bytes: room for an outer IPv6 header and MRC's own, too.
const AROUND_PAYLOAD: u64 = 204;
/// The buffer of a switch in the public ns-3 model of HPCC, and the rate of a host's port that it is for.
const BUFFER_BYTES: u64 = 16_000_000;
const BUFFER_AT_BPS: u64 = 50_000_000_000;

/// Priority flow control.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PfcTable {
    enabled: Option<bool>,
    shared: Option<String>,
    alpha: Option<f64>,
    xoff: Option<String>,
    resume: Option<String>,
    headroom: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ProfileName {
    Off,
    Paper,
    Vendor,
    Aggressive,
    MostAggressive,
}

impl ProfileName {
    const fn profile(self) -> Option<Profile> {
        match self {
            Self::Off => None,
            Self::Paper => Some(Profile::Paper),
            Self::Vendor => Some(Profile::Vendor),
            Self::Aggressive => Some(Profile::Aggressive),
            Self::MostAggressive => Some(Profile::MostAggressive),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AlphaRuleName {
    EachCnp,
    EachInterval,
}

/// Congestion control of RoCE, on NICs and switches.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DcqcnTable {
    profile: Option<ProfileName>,
    kmin: Option<String>,
    kmax: Option<String>,
    pmax: Option<f64>,
    cnp_interval: Option<String>,
    g: Option<f64>,
    alpha_rule: Option<AlphaRuleName>,
    alpha_interval: Option<String>,
    decrease_interval: Option<String>,
    timer: Option<String>,
    byte_counter: Option<String>,
    fast_recovery: Option<u32>,
    additive: Option<String>,
    hyper: Option<String>,
    hyper_grows: Option<bool>,
    clamp_target: Option<bool>,
    min_rate: Option<String>,
}

impl PfcTable {
    /// What switches do; nothing if they drop packets instead.
    pub(super) fn read(
        &self,
        reader: &Reader<'_>,
        kind: TransportKind,
        clos: &ClosSpec,
        mtu: u32,
    ) -> Result<Option<PfcSpec>> {
        let wrong = |key: &str, why: &str| reader.wrong("pfc", key, why);
        if !self.enabled.unwrap_or(kind == TransportKind::Roce) {
            for (key, given) in self.given() {
                if given {
                    return Err(wrong(
                        key,
                        "has no effect without PFC; add enabled = true to [pfc], or leave it out",
                    ));
                }
            }
            return Ok(None);
        }
        let packet = u64::from(mtu) + AROUND_PAYLOAD;
        let usual = u128::from(BUFFER_BYTES) * u128::from(clos.host_rate_bps) / u128::from(BUFFER_AT_BPS);
        let shared = size(reader, "pfc", "shared", self.shared.as_ref())?.unwrap_or(usual as u64);
        if shared < 2 * packet {
            let why = format!("a switch needs room for two packets, which is {} bytes", 2 * packet);
            return Err(wrong("shared", &why));
        }
        let xoff = size(reader, "pfc", "xoff", self.xoff.as_ref())?;
        let xoff = match (xoff, self.alpha) {
            (Some(_), Some(_)) => {
                return Err(wrong("alpha", "leave it out, or leave out `xoff`, which takes its place"));
            }
            (Some(bytes), None) if bytes < packet || bytes > shared => {
                let why =
                    format!("write a size from one packet, {packet} bytes, to `shared`, {shared} bytes");
                return Err(wrong("xoff", &why));
            }
            (Some(bytes), None) => Threshold::Fixed(bytes),
            (None, alpha) => {
                let alpha = alpha.unwrap_or(0.125);
                if !(0.001..=64.0).contains(&alpha) {
                    return Err(wrong("alpha", "write a share of the free buffer from 0.001 to 64"));
                }
                Threshold::Dynamic { alpha_per_mille: (alpha * 1_000.0).round() as u64 }
            }
        };
        let base = PfcSpec::new(shared, packet);
        let resume_bytes = size(reader, "pfc", "resume", self.resume.as_ref())?.unwrap_or(base.resume_bytes);
        if let Threshold::Fixed(bytes) = xoff
            && resume_bytes > bytes
        {
            return Err(wrong("resume", "this is more than `xoff`: a link would never go on"));
        }
        let headroom_bytes = size(reader, "pfc", "headroom", self.headroom.as_ref())?;
        Ok(Some(PfcSpec { xoff, resume_bytes, headroom_bytes, ..base }))
    }

    const fn given(&self) -> [(&'static str, bool); 5] {
        [
            ("shared", self.shared.is_some()),
            ("alpha", self.alpha.is_some()),
            ("xoff", self.xoff.is_some()),
            ("resume", self.resume.is_some()),
            ("headroom", self.headroom.is_some()),
        ]
    }
}

impl DcqcnTable {
    /// What NICs do, the least time between two CNPs, and when switches mark; nothing if it is off.
    fn read(&self, reader: &Reader<'_>, port_bps: u64) -> Result<Option<(Dcqcn, u64, Marking)>> {
        let wrong = |key: &str, why: &str| reader.wrong("dcqcn", key, why);
        let Some(profile) = self.profile.unwrap_or(ProfileName::Vendor).profile() else {
            return match self.given().into_iter().find(|(_, given)| *given) {
                Some((key, _)) => {
                    Err(wrong(key, "has no effect with profile = \"off\"; leave it out, or name a profile"))
                }
                None => Ok(None),
            };
        };
        let base = profile.reaction(port_bps);
        let time = |key, value: &Option<String>, usual| reader.time("dcqcn", key, value.as_ref(), usual);
        let rate = |key, value: &Option<String>, usual| reader.rate("dcqcn", key, value.as_ref(), usual);
        let dcqcn = Dcqcn {
            g: self.g.unwrap_or(base.g),
            alpha: self.alpha_rule.map_or(base.alpha, |rule| match rule {
                AlphaRuleName::EachCnp => AlphaRule::EachCnp,
                AlphaRuleName::EachInterval => AlphaRule::EachInterval,
            }),
            alpha_interval_ns: time("alpha_interval", &self.alpha_interval, base.alpha_interval_ns)?,
            decrease_interval_ns: time(
                "decrease_interval",
                &self.decrease_interval,
                base.decrease_interval_ns,
            )?,
            timer_ns: time("timer", &self.timer, base.timer_ns)?,
            byte_counter: match size(reader, "dcqcn", "byte_counter", self.byte_counter.as_ref())? {
                None => base.byte_counter,
                Some(bytes) => Some(bytes).filter(|bytes| *bytes > 0),
            },
            fast_recovery: self.fast_recovery.unwrap_or(base.fast_recovery),
            additive_bps: rate("additive", &self.additive, base.additive_bps)?,
            hyper_bps: rate("hyper", &self.hyper, base.hyper_bps)?,
            hyper_grows: self.hyper_grows.unwrap_or(base.hyper_grows),
            clamp_target: self.clamp_target.unwrap_or(base.clamp_target),
            min_bps: rate("min_rate", &self.min_rate, base.min_bps.min(port_bps))?,
        };
        if !(dcqcn.g > 0.0 && dcqcn.g <= 1.0) {
            return Err(wrong("g", "write a gain above 0, up to 1"));
        }
        if dcqcn.min_bps > port_bps {
            return Err(wrong("min_rate", "this is more than the rate of a port, `fabric.host_rate`"));
        }
        let cnp_interval_ns = time("cnp_interval", &self.cnp_interval, profile.cnp_interval_ns())?;
        Ok(Some((dcqcn, cnp_interval_ns, self.marking(reader, profile.marking(port_bps))?)))
    }

    fn marking(&self, reader: &Reader<'_>, usual: Marking) -> Result<Marking> {
        let kmin_bytes = size(reader, "dcqcn", "kmin", self.kmin.as_ref())?.unwrap_or(usual.kmin_bytes);
        let kmax = size(reader, "dcqcn", "kmax", self.kmax.as_ref())?;
        let kmax_bytes = kmax.unwrap_or(usual.kmax_bytes.max(kmin_bytes));
        if kmax_bytes < kmin_bytes {
            return Err(reader.wrong("dcqcn", "kmax", "this must not be below `kmin`"));
        }
        let pmax = self.pmax.unwrap_or(f64::from(usual.pmax_ppm) / 1e6);
        if !(0.0..=1.0).contains(&pmax) {
            return Err(reader.wrong("dcqcn", "pmax", "write a share from 0 to 1"));
        }
        Ok(Marking { kmin_bytes, kmax_bytes, pmax_ppm: (pmax * 1e6).round() as u32 })
    }

    const fn given(&self) -> [(&'static str, bool); 16] {
        [
            ("kmin", self.kmin.is_some()),
            ("kmax", self.kmax.is_some()),
            ("pmax", self.pmax.is_some()),
            ("cnp_interval", self.cnp_interval.is_some()),
            ("g", self.g.is_some()),
            ("alpha_rule", self.alpha_rule.is_some()),
            ("alpha_interval", self.alpha_interval.is_some()),
            ("decrease_interval", self.decrease_interval.is_some()),
            ("timer", self.timer.is_some()),
            ("byte_counter", self.byte_counter.is_some()),
            ("fast_recovery", self.fast_recovery.is_some()),
            ("additive", self.additive.is_some()),
            ("hyper", self.hyper.is_some()),
            ("hyper_grows", self.hyper_grows.is_some()),
            ("clamp_target", self.clamp_target.is_some()),
            ("min_rate", self.min_rate.is_some()),
        ]
    }
}

/// The NIC of each host, and the queues that go with it.
pub(super) fn nic(
    reader: &Reader<'_>,
    clos: &ClosSpec,
    transport: &TransportTable,
    dcqcn: Option<&DcqcnTable>,
    pfc: Option<PfcSpec>,
) -> Result<(Arc<RoceSpec>, QueueRules)> {
    let port_bps = clos.host_rate_bps;
    let control = dcqcn.unwrap_or(&DcqcnTable::default()).read(reader, port_bps)?;
    let rules = queues(control.map(|(.., marking)| marking), port_bps, pfc);
    let base = RoceSpec::new(port_bps, None);
    let mut spec = RoceSpec { depth: transport.depth.unwrap_or(base.depth), dscp: rules.dscp, ..base };
    let qp = &mut spec.qp;
    qp.mtu = transport.mtu.unwrap_or(qp.mtu);
    qp.ack_every = transport.ack_every.unwrap_or(qp.ack_every);
    qp.retry = Retry {
        timeout: transport.timeout.unwrap_or(qp.retry.timeout),
        count: transport.retry_count.unwrap_or(qp.retry.count),
        ..qp.retry
    };
    if let Some((dcqcn, cnp_interval_ns, _)) = control {
        (qp.dcqcn, qp.cnp_interval_ns) = (Some(dcqcn), cnp_interval_ns);
    }
    if qp.ack_every == 0 {
        return Err(reader.wrong("transport", "ack_every", "write 1 or more"));
    }
    match spec.validate() {
        Err(RoceError::Setting { setting, why }) => Err(reader.wrong("transport", setting, why)),
        Err(error) => Err(reader.wrong("transport", "kind", &error.to_string())),
        Ok(()) => Ok((Arc::new(spec), rules)),
    }
}

fn size(reader: &Reader<'_>, table: &str, key: &str, value: Option<&String>) -> Result<Option<u64>> {
    let parsed = value.map(|text| parse_size(text).map_err(|why| reader.wrong(table, key, &why)));
    parsed.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{assert_documented, keys_of};

    #[test]
    fn every_key_is_documented() {
        assert_documented("## `sim`", "[pfc]", keys_of::<PfcTable>());
        assert_documented("## `sim`", "[dcqcn]", keys_of::<DcqcnTable>());
    }

    /// A key that is left out of these lists would have no effect without a word.
    #[test]
    fn keys_without_effect_are_known() {
        let names = |keys: &[(&'static str, bool)]| keys.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        let others = |keys: &[&'static str], first: &str| {
            keys.iter().copied().filter(|key| *key != first).collect::<Vec<_>>()
        };
        assert_eq!(names(&PfcTable::default().given()), others(keys_of::<PfcTable>(), "enabled"));
        assert_eq!(names(&DcqcnTable::default().given()), others(keys_of::<DcqcnTable>(), "profile"));
    }

    /// The names of a plan are those of the profiles.
    #[test]
    fn profiles_have_their_names() {
        for profile in Profile::ALL {
            let table: DcqcnTable = toml::from_str(&format!("profile = \"{}\"", profile.name())).unwrap();
            assert_eq!(table.profile.and_then(ProfileName::profile), Some(profile));
        }
    }
}
