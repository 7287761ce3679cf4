//! What a controller has set of a device: its ports, and the profiles of entropy values and of congestion control. Nothing here touches
//! the system.
//!
//! A profile goes from INIT to OFFLINE to ONLINE and back the same way. One in INIT has nothing, so it is not kept. Only those ONLINE can be
//! used by queue pairs.

mod congestion;
mod entropy;
mod format;
#[cfg(test)]
mod tests;

use core::ffi::c_int;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::abi::{MAX_VENDOR_CFG_SIZE, profile_state};

pub(crate) use congestion::{Algorithm, CcChange, CcProfile, Nscc};
pub(crate) use entropy::{Entry, EvChange, EvProfile, Mode, Replacement};
pub(crate) use format::{Format, FormatChange, MAX_WIDTH};

/// Profiles of each kind that a device has at most.
pub(crate) const MAX_PROFILES: u32 = 64;
/// Entropy values of a profile, at most: each is a socket.
pub(crate) const MAX_EVS: u32 = 1024;

/// See the [module documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceState {
    /// Planes that are disabled, as a set.
    pub(crate) disabled: u32,
    formats: BTreeMap<u64, Format>,
    ev: BTreeMap<u64, EvProfile>,
    cc: BTreeMap<u64, CcProfile>,
}

/// Why a call is refused: the code for the program, and words for its user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: c_int,
    pub(crate) why: String,
}

pub(crate) type Result<T> = core::result::Result<T, Refusal>;

/// A refusal as a result.
pub(crate) fn refuse<T>(code: c_int, why: impl Into<String>) -> Result<T> {
    Err(Refusal { code, why: why.into() })
}

fn invalid<T>(why: impl Into<String>) -> Result<T> {
    refuse(libc::EINVAL, why)
}

/// The state of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProfileState {
    #[default]
    Init,
    Offline,
    Online,
}

impl ProfileState {
    pub(crate) fn of(value: u32) -> Result<Self> {
        match value {
            profile_state::INIT => Ok(Self::Init),
            profile_state::OFFLINE => Ok(Self::Offline),
            profile_state::ONLINE => Ok(Self::Online),
            _ => invalid(format!("{value} is no state of a profile")),
        }
    }

    pub(crate) const fn value(self) -> u32 {
        match self {
            Self::Init => profile_state::INIT,
            Self::Offline => profile_state::OFFLINE,
            Self::Online => profile_state::ONLINE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Offline => "OFFLINE",
            Self::Online => "ONLINE",
        }
    }

    /// The state after a step, of which there is one at a time.
    fn step(self, to: Option<Self>) -> Result<Self> {
        let to = to.unwrap_or(self);
        match (self, to) {
            (Self::Init, Self::Online) | (Self::Online, Self::Init) => {
                invalid(format!("from {} to {}: OFFLINE is between them", self.name(), to.name()))
            }
            (Self::Init, Self::Init) => invalid("the profile is in INIT, and its first step is to OFFLINE"),
            _ => Ok(to),
        }
    }
}

/// The state that a call wants, and the one that it takes the profile to be in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    pub(crate) to: Option<ProfileState>,
    pub(crate) from: Option<ProfileState>,
}

impl Step {
    /// The state that the profile has afterwards.
    fn from(self, now: ProfileState) -> Result<ProfileState> {
        if let Some(from) = self.from.filter(|from| *from != now) {
            return invalid(format!("the profile is {}, not {}", now.name(), from.name()));
        }
        now.step(self.to)
    }
}

/// A profile that queue pairs use, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Profile {
    Entropy(u64),
    Congestion(u64),
}

/// Bytes of a vendor, which are kept and given back.
pub(crate) type VendorCfg = Vec<u8>;

/// The bytes in their field of C.
pub(crate) fn vendor_bytes(kept: &VendorCfg) -> [u8; MAX_VENDOR_CFG_SIZE] {
    let mut bytes = [0; MAX_VENDOR_CFG_SIZE];
    bytes.iter_mut().zip(kept).for_each(|(to, from)| *to = *from);
    bytes
}

/// Profile 0 is the device's own, and nobody's to change.
fn check_id(id: u64) -> Result<()> {
    if id == 0 { invalid("profile 0 is the device's own; use another number") } else { Ok(()) }
}

/// Keeps a changed profile, or forgets one that is back in INIT.
fn keep<T>(profiles: &mut BTreeMap<u64, T>, id: u64, profile: T, state: ProfileState) -> Result<()> {
    if state == ProfileState::Init {
        profiles.remove(&id);
        return Ok(());
    }
    if !profiles.contains_key(&id) && profiles.len() >= MAX_PROFILES as usize {
        return refuse(libc::ENOSPC, format!("there are {MAX_PROFILES} profiles already"));
    }
    profiles.insert(id, profile);
    Ok(())
}

impl DeviceState {
    pub(crate) fn format(&self, id: u64) -> Option<&Format> {
        self.formats.get(&id)
    }

    pub(crate) fn ev(&self, id: u64) -> Option<&EvProfile> {
        self.ev.get(&id)
    }

    pub(crate) fn cc(&self, id: u64) -> Option<&CcProfile> {
        self.cc.get(&id)
    }

    pub(crate) fn profile_state(&self, profile: Profile) -> ProfileState {
        let state = match profile {
            Profile::Entropy(id) => self.ev.get(&id).map(|profile| profile.state),
            Profile::Congestion(id) => self.cc.get(&id).map(|profile| profile.state),
        };
        state.unwrap_or_default()
    }

    /// Makes a profile what it was before.
    pub(crate) fn restore(&mut self, profile: Profile, mut before: Self) {
        match profile {
            Profile::Entropy(id) => self.ev.extend(before.ev.remove_entry(&id)),
            Profile::Congestion(id) => self.cc.extend(before.cc.remove_entry(&id)),
        }
    }

    /// The state that some bytes of a file say.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn parse(bytes: &[u8]) -> core::result::Result<Self, String> {
        let state: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let most = state.ev.values().map(|profile| profile.entries().len()).max().unwrap_or(0);
        if most > MAX_EVS as usize {
            return Err(format!("a profile has {most} entropy values, of {MAX_EVS} at most"));
        }
        Ok(state)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn profiles(&self) -> impl Iterator<Item = &EvProfile> {
        self.ev.values()
    }

    /// Entropy values of all profiles.
    pub(crate) fn evs(&self) -> u32 {
        self.ev.values().map(|profile| profile.entries().len() as u32).sum()
    }

    /// Whether a port is enabled. Ports count from 1.
    pub(crate) fn is_enabled(&self, port: u8) -> bool {
        self.disabled & port_bit(port) == 0
    }

    pub(crate) fn set_enabled(&mut self, port: u8, enabled: bool) {
        if enabled {
            self.disabled &= !port_bit(port);
        } else {
            self.disabled |= port_bit(port);
        }
    }
}

/// The bit of a port in a set of planes.
fn port_bit(port: u8) -> u32 {
    1_u32.checked_shl(u32::from(port).wrapping_sub(1)).unwrap_or(0)
}
