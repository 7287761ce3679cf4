//! What a controller manages of a device, in a process that uses it: the state of the device, and what the processes say to each other.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::bus::{Bus, Census, Change, MAX_CHANGES, Message};
use super::events::EvEvents;
use super::state::{DeviceState, Profile, Refusal, Result, refuse};
use super::store::{Store, Version};
use crate::error::tell;
use crate::nic::mix;
use crate::plane::Plane;

/// How long a controller waits for the processes that use a device: they may have to wait for a core.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages that wait for a process whose queue is full, at most.
const MAX_UNSENT: usize = 64;
/// How long they wait until the next attempt, in nanoseconds.
pub(crate) const RETRY_NS: u64 = 20_000_000;

/// See the [module documentation](self).
pub(crate) struct Managed {
    store: Store,
    /// Without it the process hears of changes when its next queue pair connects.
    bus: Option<Bus>,
    planes: Vec<Arc<Plane>>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: Arc<DeviceState>,
    /// The version of the file that was read last, to see if it has changed.
    version: Option<Version>,
    /// The last damage of the file that was told.
    damage: String,
    unsent: BTreeMap<String, VecDeque<Message>>,
    queues: Vec<Weak<EvEvents>>,
    nonces: u64,
}

impl Managed {
    pub(crate) fn new(store: Store, device: IpAddr, planes: Vec<Arc<Plane>>, nonces: u64) -> Self {
        let bus = Bus::open(device, mix(nonces));
        let bus = bus.map_err(|error| tell("changes of profiles are not seen while connected", &error)).ok();
        let inner = Inner {
            state: Arc::default(),
            version: None,
            damage: String::new(),
            unsent: BTreeMap::new(),
            queues: Vec::new(),
            nonces: mix(nonces.wrapping_add(1)),
        };
        let managed = Self { store, bus, planes, inner: Mutex::new(inner) };
        managed.refresh();
        managed
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.bus.as_ref().map(Bus::fd)
    }

    /// Ports of the device.
    pub(crate) fn ports(&self) -> u8 {
        self.planes.len() as u8
    }

    pub(crate) fn planes(&self) -> &[Arc<Plane>] {
        &self.planes
    }

    /// The state as it was last read.
    pub(crate) fn state(&self) -> Arc<DeviceState> {
        Arc::clone(&self.inner().state)
    }

    /// The state now.
    pub(crate) fn read(&self) -> Result<Arc<DeviceState>> {
        // Under the lock: of two threads, the one that has read an older state must not be the last to keep it.
        let mut inner = self.inner();
        inner.state = Arc::new(self.store.read()?);
        Ok(Arc::clone(&inner.state))
    }

    /// Reads the state, and enables and disables ports by it. A damaged file changes nothing.
    pub(crate) fn refresh(&self) -> Arc<DeviceState> {
        let mut inner = self.inner();
        // Before the file: what is written after this is read now or at the next call.
        let version = self.store.version();
        if version.is_some() && inner.version == version {
            // Anybody can say that something has changed.
            return Arc::clone(&inner.state);
        }
        match self.store.read() {
            Ok(state) => {
                inner.state = Arc::new(state);
                inner.damage.clear();
                inner.version = version;
            }
            Err(refusal) => {
                if inner.damage != refusal.why {
                    tell("the state of the device", &refusal.why);
                }
                inner.damage = refusal.why;
            }
        }
        let state = Arc::clone(&inner.state);
        for (port, plane) in (1..).zip(&self.planes) {
            plane.set_enabled(state.is_enabled(port));
        }
        state
    }

    /// Changes the state, and tells all processes that use the device.
    pub(crate) fn change(&self, act: impl FnOnce(&mut DeviceState) -> Result<()>) -> Result<()> {
        let done = self.store.change(act);
        if done.as_ref().is_err_and(|refusal| refusal.code == libc::EPERM) {
            return done;
        }
        self.refresh();
        self.send(&Message::Changed);
        done
    }

    fn nonce(&self) -> u64 {
        let mut inner = self.inner();
        inner.nonces = mix(inner.nonces.wrapping_add(0x9e37_79b9_7f4a_7c15));
        inner.nonces
    }

    /// Who uses a profile.
    pub(crate) fn census(&self, profile: Profile) -> Result<Census> {
        let Some(bus) = &self.bus else {
            return refuse(libc::EIO, "this process cannot reach the others that use the device");
        };
        bus.ask(self.nonce(), profile, PATIENCE).map_err(|error| Refusal {
            code: libc::EIO,
            why: format!("the processes that use the device cannot be asked: {error}"),
        })
    }

    /// Whether no queue pair on this host uses a profile.
    pub(crate) fn check_unused(&self, profile: Profile) -> Result<()> {
        let Census { queue_pairs, silent, .. } = self.census(profile)?;
        if queue_pairs > 0 {
            return refuse(libc::EBUSY, format!("{queue_pairs} queue pairs use the profile; end them first"));
        }
        if silent > 0 {
            let why = format!("{silent} processes that use the device do not reply, and may use the profile");
            return refuse(libc::EBUSY, why);
        }
        Ok(())
    }

    /// The next message to this process; replies to what others ask by `count`, which says who uses a profile.
    pub(crate) fn receive(&self, count: impl Fn(Profile) -> (u32, Vec<(u32, u8)>)) -> Option<bool> {
        let bus = self.bus.as_ref()?;
        let (message, from) = bus.receive()?;
        match message {
            Some(Message::Changed) => return Some(true),
            Some(Message::Ask(profile)) => {
                let (queue_pairs, bad) = count(profile);
                bus.reply(&from, &Message::Uses { queue_pairs, bad });
            }
            Some(Message::Events { profile, changes, lost }) => {
                let mut inner = self.inner();
                inner.queues.retain(|queue| queue.strong_count() > 0);
                let queues = inner.queues.clone();
                drop(inner);
                for queue in queues.iter().filter_map(Weak::upgrade) {
                    queue.push(profile, &changes, lost > 0);
                }
            }
            Some(Message::Uses { .. }) | None => {}
        }
        Some(false)
    }

    /// A queue of this process wants events.
    pub(crate) fn add_queue(&self, queue: &Arc<EvEvents>) {
        self.inner().queues.push(Arc::downgrade(queue));
    }

    /// Tells whoever wants to know that entropy values of a profile have changed their state.
    pub(crate) fn report(&self, profile: u64, changes: &[Change], lost: u32) {
        let mut lost = lost;
        for changes in changes.chunks(MAX_CHANGES) {
            self.send(&Message::Events {
                profile,
                changes: changes.to_vec(),
                lost: core::mem::take(&mut lost),
            });
        }
    }

    fn send(&self, message: &Message) {
        let Some(bus) = &self.bus else { return };
        let mut inner = self.inner();
        for name in bus.processes() {
            // Later messages do not overtake those that wait.
            if !inner.unsent.contains_key(&name) && !bus.send_to(&name, message) {
                continue;
            }
            let waiting = inner.unsent.entry(name).or_default();
            if waiting.len() < MAX_UNSENT {
                waiting.push_back(message.clone());
            } else if let Message::Events { changes, lost, .. } = message {
                let count = (changes.len() as u32).saturating_add(*lost);
                let kept = waiting.iter_mut().rev().find_map(|kept| match kept {
                    Message::Events { lost, .. } => Some(lost),
                    _ => None,
                });
                if let Some(kept) = kept {
                    *kept = kept.saturating_add(count);
                }
            } else if !waiting.contains(message) {
                waiting.push_back(message.clone());
            }
        }
    }

    /// Sends what waits. Returns whether some still does.
    pub(crate) fn retry(&self) -> bool {
        let Some(bus) = &self.bus else { return false };
        let mut inner = self.inner();
        inner.unsent.retain(|name, waiting| {
            while let Some(message) = waiting.front() {
                if bus.send_to(name, message) {
                    return true;
                }
                waiting.pop_front();
            }
            false
        });
        !inner.unsent.is_empty()
    }

    /// Whether messages wait for room in the queues of other processes.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.inner().unsent.is_empty()
    }
}
