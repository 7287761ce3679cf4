//! The ports of one side of a run, with captures and faults around them.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use spindrift::wire::DscpMap;
use spindrift_pmd::Port;
use spindrift_pmd::fault::{FaultPlan, FaultPort, FaultStats};
use spindrift_pmd::pcap::{Capture, PcapPort};
use spindrift_pmd::rate::RatePort;

use super::options::Settings;

/// DSCP that the fault port writes on trimmed packets unless its rule says otherwise.
const FAULT_TRIM_DSCP: u8 = 12;

/// The ports of one side.
pub(crate) struct Nic {
    /// Of each lane, by plane.
    pub(crate) lanes: Vec<Vec<Box<dyn Port>>>,
    /// UDP port at which this side receives, if its ports know.
    pub(crate) udp_port: Option<u16>,
    pub(crate) faults: Vec<Arc<FaultStats>>,
    pub(crate) capture: Option<Capture>,
    /// Whether the kernel may segment what is sent.
    pub(crate) gso: bool,
}

impl Nic {
    pub(crate) fn new(lanes: Vec<Vec<Box<dyn Port>>>, udp_port: Option<u16>) -> Self {
        Self { lanes, udp_port, faults: Vec::new(), capture: None, gso: false }
    }

    pub(crate) fn planes(&self) -> usize {
        self.lanes.first().map_or(0, Vec::len)
    }

    /// The same with something around every port, told by lane and plane.
    fn wrapped(mut self, mut wrap: impl FnMut(usize, usize, Box<dyn Port>) -> Box<dyn Port>) -> Self {
        for (lane, ports) in self.lanes.iter_mut().enumerate() {
            *ports = ports.drain(..).enumerate().map(|(plane, port)| wrap(lane, plane, port)).collect();
        }
        self
    }

    /// Ports that are as slow as is wanted: above the faults, for what is lost on its way has left by a port.
    pub(crate) fn with_rate(self, settings: &Settings) -> Self {
        let Some(rate) = settings.link_rate else { return self };
        // Each lane has a part of its plane's link.
        let each = rate / self.lanes.len().max(1) as u64;
        self.wrapped(|_, _, port| Box::new(RatePort::new(port, each)))
    }

    /// Captures below the faults: what the network carries.
    pub(crate) fn with_capture(self, settings: &Settings) -> Result<Self> {
        let Some(path) = &settings.pcap else { return Ok(self) };
        let capture = Capture::create(path, lane_epoch_ns()).context("--pcap")?;
        let nic = self.wrapped(|_, _, port| Box::new(PcapPort::new(port, capture.clone())));
        Ok(Self { capture: Some(capture), ..nic })
    }

    /// Puts faults around every port. `side` makes the two sides' faults differ; those of lanes do too.
    pub(crate) fn with_faults(self, settings: &Settings, side: u64) -> Self {
        let Some(plan) = &settings.fault else { return self };
        let plan = recognisable(plan, settings.config.transport.dscp.unwrap_or_default());
        let seed = settings.seed.unwrap_or_default() ^ side.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut faults = Vec::new();
        let nic = self.wrapped(|lane, plane, port| {
            let seed = seed ^ (lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let port = FaultPort::new(port, plane, plan.clone(), seed);
            faults.push(port.stats());
            Box::new(port)
        });
        Self { faults, ..nic }
    }
}

/// Trimming switches and endpoints share a table of code points. Ports know none, so the fault port's own
/// default is replaced by the endpoint's.
fn recognisable(plan: &FaultPlan, dscp: DscpMap) -> FaultPlan {
    let mut plan = plan.clone();
    for trim in plan.rules.iter_mut().filter_map(|rule| rule.trim.as_mut()) {
        if trim.dscp == FAULT_TRIM_DSCP {
            trim.dscp = dscp.trimmed;
        }
    }
    plan
}

/// Nanoseconds from 1970 to the epoch of the lanes' clock, which is the first use of it: about now.
fn lane_epoch_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
