//! The key-value store that needs no server: records go straight to the peers, over the connections of the set-up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use spindrift::fallback::{Record, Store, StoreError, StoreKey};

use super::channel::Channel;
use super::message::ExchangeError;

/// Records of one peer that are kept.
const MAX_RECORDS: usize = 1 << 16;

/// Longest message of a peer, in bytes. A record is far shorter.
const MAX_RECORD_BYTES: usize = 64 << 10;

/// A record on its way to a peer.
#[derive(Serialize, Deserialize)]
struct Put<K, R> {
    key: K,
    record: R,
}

/// The default [`Store`] of queue pairs with fallback: each side sends its records to its peers, and looks up theirs in what
/// has arrived.
///
/// Clones are handles to the same store: one goes into the context, and another one takes a [`Channel`] for each peer. That
/// channel is used for nothing else, and stays open as long as the queue pairs exist. A peer whose channel has ended can no
/// longer prepare anything; its records stay.
///
/// ```no_run
/// # fn open() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use spindrift_exchange::{Channel, PeerStore};
///
/// let store = PeerStore::default();
/// // `Context::open(&default, &backup, Box::new(store.clone()), ..)`
/// store.add(Channel::connect("192.0.2.1:18515", Duration::from_secs(10))?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PeerStore {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    peers: Vec<Peer>,
    /// This side's records, for peers that come later.
    own: BTreeMap<String, Record>,
}

#[derive(Debug)]
struct Peer {
    channel: Channel,
    /// Their records, by key.
    records: BTreeMap<String, Record>,
    /// Why the channel is of no use any more.
    ended: Option<String>,
}

impl Peer {
    /// Does something with the channel, unless it has ended.
    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), ExchangeError>) {
        if self.ended.is_none()
            && let Err(error) = act(self)
        {
            self.ended = Some(format!("the connection to {}: {error}", self.channel.peer()));
        }
    }

    fn send(&mut self, key: &str, record: &Record) {
        self.attempt(|peer| peer.channel.try_send(&Put { key, record }));
    }

    /// Takes what has arrived.
    fn receive(&mut self) {
        self.attempt(|peer| {
            peer.channel.try_flush()?;
            while let Some(Put::<String, Record> { key, record }) = peer.channel.try_receive()? {
                if peer.records.len() >= MAX_RECORDS && !peer.records.contains_key(&key) {
                    return Err(ExchangeError::Malformed(format!("more than {MAX_RECORDS} records")));
                }
                peer.records.insert(key, record);
            }
            Ok(())
        });
    }
}

impl PeerStore {
    /// Another peer, over a connection of its own. It is sent all that was put before.
    pub fn add(&self, mut channel: Channel) {
        channel.set_max_message(MAX_RECORD_BYTES);
        let mut peer = Peer { channel, records: BTreeMap::new(), ended: None };
        self.with(|shared| {
            for (key, record) in &shared.own {
                peer.send(key, record);
            }
            shared.peers.push(peer);
        });
    }

    fn with<R>(&self, act: impl FnOnce(&mut Shared) -> R) -> R {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shared {
    /// An error if there are peers, and none of them can be reached.
    fn reach(&self) -> Result<(), StoreError> {
        let mut reasons = self.peers.iter().map(|peer| peer.ended.as_ref());
        match self.peers.first() {
            Some(first) if reasons.all(|reason| reason.is_some()) => {
                Err(StoreError(first.ended.clone().unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }
}

impl Store for PeerStore {
    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        self.with(|shared| {
            let key = key.to_string();
            shared.peers.iter_mut().for_each(|peer| peer.send(&key, record));
            shared.own.insert(key, record.clone());
            shared.reach()
        })
    }

    /// A look costs nothing.
    fn interval_ns(&self) -> u64 {
        1_000_000
    }

    /// If several peers have put a record under the same key, that of the first of them counts.
    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        self.with(|shared| {
            let key = key.to_string();
            shared.peers.iter_mut().for_each(Peer::receive);
            let found = shared.peers.iter().find_map(|peer| peer.records.get(&key).cloned());
            if found.is_none() {
                shared.reach()?;
            }
            Ok(found)
        })
    }
}
