//! What the two sides tell each other through a key-value store: the pairs that they prepare, and the keys of their memory.

use core::fmt;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::verbs::Nic;
use crate::endpoint::QpInfo;

/// The name of a record. Its text is the key in a store that has texts as keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreKey {
    /// The newest pair of a queue pair on one NIC: a [`PairRecord`].
    Pair {
        /// The first address of the default NIC.
        address: IpAddr,
        /// The queue pair's number.
        qpn: u32,
        /// The NIC of the pair.
        nic: Nic,
    },
    /// A memory region of a context: its remote key on the backup NIC.
    Region {
        /// The context's name, see [`PairRecord::home`].
        home: String,
        /// The remote key on the default NIC.
        rkey: u32,
    },
}

impl fmt::Display for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair { address, qpn, nic } => {
                let nic = match nic {
                    Nic::Default => "default",
                    Nic::Backup => "backup",
                };
                write!(f, "spindrift:2:pair:{address}:{qpn:06x}:{nic}")
            }
            Self::Region { home, rkey } => write!(f, "spindrift:2:region:{home}:{rkey:08x}"),
        }
    }
}

/// A pair that one side has made, for the other side to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRecord {
    /// Which of the pairs on that NIC.
    pub generation: u32,
    /// Those up to that one that have not ended on the side that made them.
    pub alive: Vec<u32>,
    /// The name of the context, under which the keys of its memory regions are found.
    pub home: String,
    /// How to connect to it.
    pub info: QpInfo,
    /// It is connected to the other side's pair of that generation. A pair is used when both sides say so: what is sent before is lost.
    pub connected: bool,
}

/// A record of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// Under [`StoreKey::Pair`].
    Pair(Box<PairRecord>),
    /// Under [`StoreKey::Region`]: the remote key on the backup NIC.
    Region(u32),
}

/// The store cannot be reached, or returned something that is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key-value store cannot be used: {0}")]
pub struct StoreError(pub String);

/// A key-value store on the management network, shared by both sides.
///
/// No call waits. A store that needs time works in the background, and is asked again. Whoever can write to the store can
/// redirect traffic, so it must be open to the job alone (SHIFT paper, section 4.4).
pub trait Store: Send {
    /// Puts a record under a key, in place of an older one.
    ///
    /// # Errors
    /// [`StoreError`]: the record may not be there, and the caller puts it again later.
    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError>;

    /// A good time between two looks for a record that may come, in nanoseconds. Default 20 ms.
    fn interval_ns(&self) -> u64 {
        20_000_000
    }

    /// The record under a key. `None`: there is none, or it has not arrived yet.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError>;
}

/// A store for contexts of one process. Clones are handles to the same store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    records: BTreeMap<StoreKey, Record>,
    down: bool,
}

impl MemoryStore {
    /// Lets all calls fail, or work again.
    pub fn set_down(&self, down: bool) {
        self.with(|shared| shared.down = down);
    }

    fn with<R>(&self, act: impl FnOnce(&mut Shared) -> R) -> R {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_with<R>(&self, act: impl FnOnce(&mut Shared) -> R) -> Result<R, StoreError> {
        self.with(|shared| {
            let refused = || StoreError("it is set to be down".to_owned());
            if shared.down { Err(refused()) } else { Ok(act(shared)) }
        })
    }
}

impl Store for MemoryStore {
    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        self.try_with(|shared| {
            shared.records.insert(key.clone(), record.clone());
        })
    }

    fn interval_ns(&self) -> u64 {
        1_000_000
    }

    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        self.try_with(|shared| shared.records.get(key).cloned())
    }
}
