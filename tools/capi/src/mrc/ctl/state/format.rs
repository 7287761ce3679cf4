//! Formats of entropy values: how many bits of which fields a packet carries.

use serde::{Deserialize, Serialize};

use super::{DeviceState, ProfileState, Result, Step, VendorCfg, check_id, invalid, keep, refuse};
use crate::mrc::ctl::abi::fmt_mode;

/// Bits of an entropy value: a UDP source port.
pub(crate) const MAX_WIDTH: u32 = 16;
/// Fields of a format, at most.
const MAX_FIELDS: usize = MAX_WIDTH as usize;

/// A format, whose entropy values are UDP source ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Format {
    pub(crate) state: ProfileState,
    pub(crate) mode: u32,
    /// Bits of each field, the first one at the top of the port.
    pub(crate) widths: Vec<u8>,
    pub(crate) vendor: VendorCfg,
}

/// What a call changes of a format.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormatChange {
    pub(crate) step: Step,
    pub(crate) mode: Option<u32>,
    pub(crate) widths: Option<Vec<u8>>,
    pub(crate) vendor: Option<VendorCfg>,
}

impl Format {
    fn apply(&mut self, change: FormatChange) -> Result<()> {
        let now = self.state;
        let to = change.step.from(now)?;
        if now == ProfileState::Online && (change.mode.is_some() || change.widths.is_some()) {
            return refuse(libc::EBUSY, "the format is ONLINE; set it OFFLINE first");
        }
        if let Some(mode) = change.mode {
            self.set_mode(mode)?;
        }
        if let Some(widths) = change.widths {
            self.set_widths(widths)?;
        }
        if let Some(vendor) = change.vendor {
            self.vendor = vendor;
        }
        if to == ProfileState::Offline && self.mode == 0 {
            return invalid("a format needs its mode to be OFFLINE");
        }
        if to == ProfileState::Online && self.widths.is_empty() {
            return invalid("a format needs fields to be ONLINE");
        }
        self.state = to;
        Ok(())
    }

    fn set_mode(&mut self, mode: u32) -> Result<()> {
        let name = match mode {
            fmt_mode::UDP => {
                self.mode = mode;
                return Ok(());
            }
            fmt_mode::STEV => "STEV",
            fmt_mode::SRV6 => "SRv6",
            _ => return invalid(format!("{mode:#x} is no mode of a format")),
        };
        invalid(format!(
            "{name}: the ports of this device are kernel sockets, whose entropy values are UDP source ports"
        ))
    }

    fn set_widths(&mut self, widths: Vec<u8>) -> Result<()> {
        if widths.is_empty() || widths.contains(&0) {
            return invalid("a format has at least one field, and each has at least one bit");
        }
        let bits: u32 = widths.iter().map(|width| u32::from(*width)).sum();
        if bits > MAX_WIDTH || widths.len() > MAX_FIELDS {
            return refuse(libc::E2BIG, format!("{bits} bits: a UDP source port has {MAX_WIDTH}"));
        }
        self.widths = widths;
        Ok(())
    }
}

impl DeviceState {
    pub(crate) fn modify_format(&mut self, id: u64, change: FormatChange) -> Result<()> {
        check_id(id)?;
        let mut format = self.formats.get(&id).cloned().unwrap_or_default();
        let was = format.state;
        format.apply(change)?;
        let state = format.state;
        let is_used = || {
            let online = |profile: &&super::EvProfile| profile.state == ProfileState::Online;
            self.ev.values().filter(online).any(|profile| profile.format == Some(id))
        };
        if was == ProfileState::Online && state != was && is_used() {
            return refuse(
                libc::EBUSY,
                format!("a profile with format {id} is ONLINE; set it OFFLINE first"),
            );
        }
        keep(&mut self.formats, id, format, state)
    }
}
