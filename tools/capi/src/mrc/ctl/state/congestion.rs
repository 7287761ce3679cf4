//! Profiles of congestion control.

use serde::{Deserialize, Serialize};
use spindrift::congestion::{CcAlgorithm, CcConfig, NsccOverrides};

use super::{DeviceState, ProfileState, Result, Step, VendorCfg, check_id, invalid, keep};
use crate::mrc::ctl::abi::mrc_ctl_cc_nscc_cfg;

/// An algorithm, by the name that the interface has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Algorithm {
    /// UET 1.0 section 3.6.13.
    Nscc,
    /// What queue pairs have without a profile, on a network.
    Adaptive,
    /// None.
    Off,
}

impl Algorithm {
    /// The names of the algorithms, in C.
    pub(crate) const NAMES: [(&'static core::ffi::CStr, Self); 2] =
        [(c"uet-1.0-nscc", Self::Nscc), (c"spindrift-adaptive", Self::Adaptive)];

    pub(crate) fn named(name: Option<&core::ffi::CStr>) -> Result<Self> {
        let Some(name) = name else { return Ok(Self::Off) };
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map_or_else(
            || invalid(format!("{}: there is no such algorithm", name.to_string_lossy())),
            |(_, algorithm)| Ok(*algorithm),
        )
    }
}

/// Parameters of NSCC, in units of bytes and nanoseconds; 0 for what the device has by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nscc {
    disable_qa: bool,
    adjust_bytes_threshold: u32,
    adjust_period_threshold: u32,
    base_rtt: u32,
    eta: f32,
    fi: f32,
    fi_scale: f32,
    gamma: f32,
    max_md_jump: f32,
    max_cwnd: u32,
    qa_gate: u8,
    qa_threshold: u32,
    target_delay: u32,
}

impl From<&mrc_ctl_cc_nscc_cfg> for Nscc {
    fn from(c: &mrc_ctl_cc_nscc_cfg) -> Self {
        Self {
            disable_qa: c.disable_qa != 0,
            adjust_bytes_threshold: c.adjust_bytes_threshold,
            adjust_period_threshold: c.adjust_period_threshold,
            base_rtt: c.base_rtt,
            eta: c.eta,
            fi: c.fi,
            fi_scale: c.fi_scale,
            gamma: c.gamma,
            max_md_jump: c.max_md_jump,
            max_cwnd: c.max_cwnd,
            qa_gate: c.qa_gate,
            qa_threshold: c.qa_threshold,
            target_delay: c.target_delay,
        }
    }
}

impl From<&Nscc> for mrc_ctl_cc_nscc_cfg {
    fn from(kept: &Nscc) -> Self {
        Self {
            disable_qa: kept.disable_qa.into(),
            adjust_bytes_threshold: kept.adjust_bytes_threshold,
            adjust_period_threshold: kept.adjust_period_threshold,
            base_rtt: kept.base_rtt,
            eta: kept.eta,
            fi: kept.fi,
            fi_scale: kept.fi_scale,
            gamma: kept.gamma,
            max_md_jump: kept.max_md_jump,
            max_cwnd: kept.max_cwnd,
            qa_gate: kept.qa_gate,
            qa_threshold: kept.qa_threshold,
            target_delay: kept.target_delay,
        }
    }
}

impl Nscc {
    /// The settings of a queue pair with these parameters, where `default` has its others.
    fn settings(&self, default: &CcConfig) -> CcConfig {
        let whole = |value: u32, default: Option<u64>| if value == 0 { default } else { Some(value.into()) };
        let real = |value: f32, default: Option<f64>| if value == 0.0 { default } else { Some(value.into()) };
        let usual = &default.nscc;
        let nscc = NsccOverrides {
            target_delay_ns: whole(self.target_delay, usual.target_delay_ns),
            max_cwnd_bytes: whole(self.max_cwnd, usual.max_cwnd_bytes),
            fi: real(self.fi, usual.fi),
            fi_scale: real(self.fi_scale, usual.fi_scale),
            eta: real(self.eta, usual.eta),
            gamma: real(self.gamma, usual.gamma),
            max_md_jump: real(self.max_md_jump, usual.max_md_jump),
            disable_qa: self.disable_qa,
            qa_gate: if self.qa_gate == 0 { usual.qa_gate } else { Some(self.qa_gate) },
            qa_threshold_ns: whole(self.qa_threshold, usual.qa_threshold_ns),
            adjust_bytes_threshold: whole(self.adjust_bytes_threshold, usual.adjust_bytes_threshold),
            adjust_period_threshold_ns: whole(self.adjust_period_threshold, usual.adjust_period_threshold_ns),
            ..*usual
        };
        let base_rtt_ns = if self.base_rtt == 0 { default.base_rtt_ns } else { self.base_rtt.into() };
        CcConfig { algorithm: CcAlgorithm::Nscc, base_rtt_ns, nscc, ..default.clone() }
    }
}

/// A profile of congestion control.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CcProfile {
    pub(crate) state: ProfileState,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) nscc: Option<Nscc>,
    pub(crate) vendor: VendorCfg,
}

/// What a call changes of a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct CcChange {
    pub(crate) step: Step,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) nscc: Option<Nscc>,
    pub(crate) vendor: Option<VendorCfg>,
}

impl CcProfile {
    fn apply(&mut self, change: CcChange) -> Result<()> {
        let now = self.state;
        let to = change.step.from(now)?;
        if let Some(algorithm) = change.algorithm.filter(|algorithm| Some(*algorithm) != self.algorithm) {
            if now == ProfileState::Online {
                return invalid("the algorithm of a profile changes while it is OFFLINE");
            }
            (self.algorithm, self.nscc) = (Some(algorithm), None);
        }
        if let Some(nscc) = change.nscc {
            if self.algorithm != Some(Algorithm::Nscc) {
                return invalid("only uet-1.0-nscc has a configuration");
            }
            // As it would be with the settings of any device.
            if let Err(error) = nscc.settings(&CcConfig::new(CcConfig::USUAL_LINK_BPS, 1, 4096)).validate() {
                return invalid(error.to_string());
            }
            self.nscc = Some(nscc);
        }
        if let Some(vendor) = change.vendor {
            self.vendor = vendor;
        }
        if to == ProfileState::Offline && self.algorithm.is_none() {
            return invalid("a profile needs its algorithm to be OFFLINE");
        }
        if to == ProfileState::Online && self.algorithm == Some(Algorithm::Nscc) && self.nscc.is_none() {
            return invalid("a profile of uet-1.0-nscc needs its configuration to be ONLINE");
        }
        self.state = to;
        Ok(())
    }

    /// The settings of queue pairs with this profile, where `default` are those without.
    pub(crate) fn settings(&self, default: &CcConfig) -> CcConfig {
        let algorithm = match (self.algorithm, &self.nscc) {
            (Some(Algorithm::Nscc), Some(nscc)) => return nscc.settings(default),
            (Some(Algorithm::Off), _) => CcAlgorithm::None,
            _ => CcAlgorithm::Adaptive,
        };
        CcConfig { algorithm, ..default.clone() }
    }
}

impl DeviceState {
    pub(crate) fn modify_cc(&mut self, id: u64, change: CcChange) -> Result<()> {
        check_id(id)?;
        let mut profile = self.cc.get(&id).cloned().unwrap_or_default();
        profile.apply(change)?;
        let state = profile.state;
        keep(&mut self.cc, id, profile, state)
    }
}
