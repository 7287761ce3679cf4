//! Profiles of entropy values.
//!
//! | Mode | Entropy values |
//! |---|---|
//! | `Auto` | the source ports that the kernel has chosen for the device |
//! | `Explicit` | those that the controller lists, each with its port. Without fields a value is the source port; with fields its bits fill them |
//! | `Generated` | source ports that the fields allow, evenly over their range, and in turn over the ports of the device |

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use spindrift::path::MAX_EVS as MAX_QP_EVS;
use spindrift_srv6::{EvProfile as Expansion, Field};

use super::format::MAX_WIDTH;
use super::{
    DeviceState, Format, MAX_EVS, ProfileState, Result, Step, VendorCfg, check_id, invalid, keep, refuse,
};
use crate::mrc::ctl::abi::{ev_mode, ev_state, mrc_ctl_ev_field};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Auto,
    Explicit,
    Generated,
}

impl Mode {
    pub(crate) fn of(value: u32) -> Result<Self> {
        match value {
            ev_mode::AUTO => Ok(Self::Auto),
            ev_mode::EXPLICIT => Ok(Self::Explicit),
            ev_mode::GENERATED => Ok(Self::Generated),
            _ => invalid(format!("{value:#x} is no mode of a profile")),
        }
    }

    pub(crate) const fn value(self) -> u32 {
        match self {
            Self::Auto => ev_mode::AUTO,
            Self::Explicit => ev_mode::EXPLICIT,
            Self::Generated => ev_mode::GENERATED,
        }
    }
}

/// A place in the list of entropy values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) value: u32,
    /// From 1; 0: there is no value here yet.
    pub(crate) port: u8,
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(crate) denied: bool,
}

impl Entry {
    /// The same place, whatever its state.
    fn is(&self, value: u32, port: u8) -> bool {
        (self.value, self.port) == (value, port)
    }
}

/// A field of an entropy value, as the interface has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvField {
    width: u32,
    init: u32,
    min: u32,
    max: u32,
    mask: u32,
}

impl From<&mrc_ctl_ev_field> for EvField {
    fn from(c: &mrc_ctl_ev_field) -> Self {
        Self { width: c.width, init: c.init_val, min: c.min_val, max: c.max_val, mask: c.mask }
    }
}

impl From<&EvField> for mrc_ctl_ev_field {
    fn from(kept: &EvField) -> Self {
        let EvField { width, init, min, max, mask } = *kept;
        Self { width, init_val: init, min_val: min, max_val: max, mask }
    }
}

/// A profile of entropy values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvProfile {
    pub(crate) state: ProfileState,
    pub(crate) mode: Option<Mode>,
    pub(crate) format: Option<u64>,
    pub(crate) fields: Vec<EvField>,
    pub(crate) count: u32,
    entries: Vec<Entry>,
    /// How its entropy values become source ports: the widths of its format's fields, when it was last set up.
    widths: Vec<u8>,
    pub(crate) min_active: u32,
    pub(crate) event_mask: u32,
    pub(crate) vendor: VendorCfg,
}

/// One entropy value in place of another, each with its port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replacement {
    pub(crate) old: (u32, u8),
    pub(crate) new: (u32, u8),
    pub(crate) denied: bool,
    /// Wherever the old one stands, not in its first place alone.
    pub(crate) all_copies: bool,
}

/// What a call changes of a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvChange {
    pub(crate) step: Step,
    pub(crate) mode: Option<Mode>,
    pub(crate) format: Option<u64>,
    pub(crate) count: Option<u32>,
    pub(crate) min_active: Option<u32>,
    pub(crate) event_mask: Option<u32>,
    pub(crate) vendor: Option<VendorCfg>,
    pub(crate) fields: Option<Vec<EvField>>,
    /// In order, until one is refused.
    pub(crate) replace: Vec<Replacement>,
    /// Entropy values with their ports, and whether they are denied from now on. The same.
    pub(crate) deny: Vec<((u32, u8), bool)>,
}

impl EvChange {
    /// Whether it changes what only a profile in OFFLINE lets change.
    fn is_setup(&self) -> bool {
        self.mode.is_some()
            || self.format.is_some()
            || self.count.is_some()
            || self.min_active.is_some()
            || self.event_mask.is_some()
            || self.fields.is_some()
            || !self.replace.is_empty()
    }
}

/// How the values of a profile are written in source ports.
fn expansion(fields: &[EvField], widths: &[u8]) -> Result<Expansion> {
    let bits: u32 = widths.iter().map(|width| u32::from(*width)).sum();
    // Paths are written in addresses. Here the first bits of one are the source port.
    let pad = 128_u32.saturating_sub(bits) as u8;
    let format: Vec<u8> = widths.iter().copied().chain([pad]).collect();
    let mut checked = Vec::with_capacity(fields.len());
    for field in fields {
        let EvField { width, init, min, max, mask } = *field;
        let Ok(width) = u8::try_from(width) else {
            return refuse(
                libc::E2BIG,
                format!("a field of {width} bits: a UDP source port has {MAX_WIDTH}"),
            );
        };
        checked.push(Field { width, init, min, max, mask });
    }
    let total: u32 = checked.iter().map(|field| u32::from(field.width)).sum();
    if checked.len() > widths.len() || total > bits {
        let (fields, places) = (checked.len(), widths.len());
        return refuse(
            libc::E2BIG,
            format!("{fields} fields of {total} bits: the format has {places} of {bits} bits"),
        );
    }
    Expansion::new(&format, &checked).or_else(|error| invalid(error.to_string()))
}

/// The source port of a value.
fn expand(expansion: &Expansion, widths: &[u8], value: u32) -> u32 {
    let bits: u32 = widths.iter().map(|width| u32::from(*width)).sum();
    let address = expansion.expand(value).destination().to_bits();
    address.checked_shr(128 - bits).unwrap_or(0) as u32
}

impl EvProfile {
    /// The device's own.
    pub(crate) fn of_device() -> Self {
        Self { state: ProfileState::Online, mode: Some(Mode::Auto), ..Self::default() }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The source port that an entropy value stands for.
    pub(crate) fn source_port(&self, value: u32) -> Result<u16> {
        let port = if self.mode == Some(Mode::Explicit) && !self.fields.is_empty() {
            let expansion = expansion(&self.fields, &self.widths)?;
            if let Err(error) = expansion.check(value) {
                return invalid(error.to_string());
            }
            expand(&expansion, &self.widths, value)
        } else {
            value
        };
        match u16::try_from(port) {
            Ok(port @ 1..) => Ok(port),
            _ => invalid(format!("entropy value {value:#x} is UDP source port {port}: use 1 to 65535")),
        }
    }

    fn set_up(&mut self, change: &EvChange) -> Result<()> {
        if let Some(mode) = change.mode {
            if self.mode.is_some_and(|before| before != mode) {
                (self.entries, self.count) = (Vec::new(), 0);
            }
            self.mode = Some(mode);
        }
        if let Some(count) = change.count {
            if count == 0 || count > MAX_EVS {
                return refuse(libc::E2BIG, format!("{count} entropy values: use 1 to {MAX_EVS}"));
            }
            self.count = count;
            if self.mode == Some(Mode::Explicit) {
                self.entries.resize(count as usize, Entry::default());
            }
        }
        if let Some(fields) = &change.fields {
            self.fields.clone_from(fields);
        }
        self.format = change.format.or(self.format);
        self.min_active = change.min_active.unwrap_or(self.min_active);
        if let Some(mask) = change.event_mask {
            if mask & !(ev_state::GOOD | ev_state::ASSUMED_BAD) != 0 {
                return invalid(format!("event mask {mask:#x}: there are events for GOOD and ASSUMED_BAD"));
            }
            self.event_mask = mask;
        }
        if let Some(vendor) = &change.vendor {
            self.vendor.clone_from(vendor);
        }
        Ok(())
    }

    /// Whether all fits together; makes the list of a profile that generates it.
    fn complete(&mut self, format: Option<&Format>, planes: u8) -> Result<()> {
        let Some(mode) = self.mode else { return invalid("a profile needs its mode to be OFFLINE") };
        if mode != Mode::Auto {
            let Some(format) = format.filter(|format| !format.widths.is_empty()) else {
                let id = self.format.map_or_else(|| "none".to_owned(), |id| id.to_string());
                return invalid(format!("format {id}: the profile needs one that has fields"));
            };
            if self.count == 0 {
                return invalid("the profile needs the number of its entropy values");
            }
            self.widths.clone_from(&format.widths);
            if !self.fields.is_empty() {
                expansion(&self.fields, &self.widths)?;
            }
        }
        if mode == Mode::Generated {
            self.generate(planes)?;
        }
        if mode != Mode::Auto && self.min_active > self.count {
            let (least, count) = (self.min_active, self.count);
            return invalid(format!("{least} entropy values stay active at least, and there are {count}"));
        }
        Ok(())
    }

    fn generate(&mut self, planes: u8) -> Result<()> {
        if self.fields.is_empty() {
            return invalid("a profile that generates its entropy values needs fields");
        }
        let expansion = expansion(&self.fields, &self.widths)?;
        let (each, planes) = (expansion.count(), u32::from(planes).max(1));
        let of_plane = u64::from(self.count.div_ceil(planes));
        if of_plane > each {
            let (count, most) = (self.count, each * u64::from(planes));
            return refuse(
                libc::E2BIG,
                format!("{count} entropy values: the fields and the {planes} ports have {most}"),
            );
        }
        let denied: BTreeSet<_> =
            self.entries.iter().filter(|entry| entry.denied).map(|entry| (entry.value, entry.port)).collect();
        let entries = (0..self.count).map(|at| {
            let (turn, port) = (u64::from(at / planes), (at % planes + 1) as u8);
            let value = expansion.nth(turn * each / of_plane).unwrap_or_default();
            let value = expand(&expansion, &self.widths, value);
            Entry { value, port, denied: denied.contains(&(value, port)) }
        });
        self.entries = entries.collect();
        Ok(())
    }

    fn replace(&mut self, by: &Replacement, planes: u8) -> Result<()> {
        if self.mode != Some(Mode::Explicit) {
            return invalid("only a profile with explicit entropy values has them replaced");
        }
        let (value, port) = by.new;
        if !(1..=planes).contains(&port) {
            return invalid(format!("port {port}: the device has ports 1 to {planes}"));
        }
        self.source_port(value)?;
        let new = Entry { value, port, denied: by.denied };
        let most = if by.all_copies { usize::MAX } else { 1 };
        let old = self.entries.iter_mut().filter(|entry| entry.is(by.old.0, by.old.1));
        if old.take(most).map(|entry| *entry = new).count() == 0 {
            return not_found(by.old);
        }
        Ok(())
    }

    fn deny(&mut self, ev: (u32, u8), denied: bool) -> Result<()> {
        let of = self.entries.iter_mut().filter(|entry| entry.port != 0 && entry.is(ev.0, ev.1));
        if of.map(|entry| entry.denied = denied).count() == 0 { not_found(ev) } else { Ok(()) }
    }

    /// Whether queue pairs can use it.
    fn check_online(&self, format: Option<&Format>, planes: u8) -> Result<()> {
        if self.mode == Some(Mode::Auto) {
            return Ok(());
        }
        if format.is_none_or(|format| format.state != ProfileState::Online) {
            return invalid("the format of a profile goes ONLINE before it");
        }
        let empty = self.entries.iter().filter(|entry| entry.port == 0).count();
        if empty > 0 {
            return invalid(format!("{empty} entropy values are not populated; replace them first"));
        }
        let of = move |plane: u8| self.entries.iter().filter(move |entry| entry.port == plane + 1);
        for entry in &self.entries {
            self.source_port(entry.value)?;
        }
        let most = (0..planes).map(|plane| of(plane).count()).max().unwrap_or(0) * usize::from(planes);
        if most > MAX_QP_EVS {
            let why =
                format!("one port has so many entropy values that all have {most}, of {MAX_QP_EVS} at most");
            return refuse(libc::E2BIG, why);
        }
        Ok(())
    }
}

fn not_found((value, port): (u32, u8)) -> Result<()> {
    refuse(libc::ENOENT, format!("there is no entropy value {value:#x} on port {port}"))
}

impl DeviceState {
    /// Changes a profile of a device with so many planes. What comes before a refused entry has taken effect.
    pub(crate) fn modify_ev(&mut self, id: u64, change: &EvChange, planes: u8) -> Result<()> {
        check_id(id)?;
        let mut profile = self.ev.get(&id).cloned().unwrap_or_default();
        let now = profile.state;
        let to = change.step.from(now)?;
        if to == ProfileState::Init {
            // Nothing of it is left that could be changed.
            return keep(&mut self.ev, id, profile, to);
        }
        if now == ProfileState::Online && change.is_setup() {
            return refuse(libc::EBUSY, "the profile is ONLINE; set it OFFLINE first");
        }
        profile.set_up(change)?;
        let format = profile.format.and_then(|id| self.formats.get(&id)).cloned();
        if now != ProfileState::Online {
            profile.complete(format.as_ref(), planes)?;
        }
        let mut done = change.replace.iter().try_for_each(|by| profile.replace(by, planes));
        done = done.and_then(|()| change.deny.iter().try_for_each(|(ev, denied)| profile.deny(*ev, *denied)));
        let mut state = if done.is_ok() { to } else { now };
        if state == ProfileState::Online
            && let Err(refusal) = profile.check_online(format.as_ref(), planes)
        {
            (state, done) = (now, Err(refusal));
        }
        if now == ProfileState::Init && done.is_err() {
            return done;
        }
        profile.state = state;
        keep(&mut self.ev, id, profile, state)?;
        done
    }
}
