//! Redis as the key-value store of [queue pairs with fallback](spindrift::fallback), as in the SHIFT paper (section 4.2).
//!
//! All sides of a job use the same server. It must be open to the job alone: whoever can write to it can redirect traffic.

mod worker;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use spindrift::fallback::{Record, Store, StoreError, StoreKey};

use worker::{Shared, Worker};

/// Settings of a store in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// Where the server is: `redis://[user:password@]host[:port][/database]`, or `unix:///path`.
    pub url: String,
    /// What all keys begin with, so that several jobs can use one server. Default empty.
    pub prefix: String,
    /// Limit for the connection and for each reply. Default 2 s.
    pub timeout: Duration,
}

impl RedisConfig {
    /// The server at `url`, and else defaults.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), prefix: String::new(), timeout: Duration::from_secs(2) }
    }
}

/// A [`Store`] in Redis. A thread of its own talks to the server, so that no call waits. It connects again when the server
/// comes back. Keys of this side are deleted when the store is dropped.
///
/// ```no_run
/// use spindrift_redis::{RedisConfig, RedisStore};
///
/// let config = RedisConfig { prefix: "job-7:".into(), ..RedisConfig::new("redis://192.0.2.9:6379") };
/// let store = RedisStore::open(&config)?;
/// // `Context::open(&default, &backup, Box::new(store), ..)`
/// # Ok::<(), spindrift::fallback::StoreError>(())
/// ```
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
    prefix: String,
    worker: Option<JoinHandle<()>>,
}

impl RedisStore {
    /// Begins to connect. A server that cannot be reached is reported by later calls.
    ///
    /// # Errors
    /// [`StoreError`] if the URL cannot be read, or if there is no thread.
    pub fn open(config: &RedisConfig) -> Result<Self, StoreError> {
        let client = redis::Client::open(config.url.as_str()).map_err(|error| {
            // The URL may have a password.
            StoreError(format!("the URL of the Redis server is not `redis://host[:port]`: {error}"))
        })?;
        let shared = Arc::<Shared>::default();
        let worker = Worker::new(client, config.timeout, Arc::clone(&shared));
        #[expect(clippy::disallowed_methods, reason = "so that no call of the store waits")]
        let thread =
            std::thread::Builder::new().name("spindrift-redis".to_owned()).spawn(move || worker.run());
        let worker = thread.map_err(|error| StoreError(format!("there is no thread for it: {error}")))?;
        Ok(Self { shared, prefix: config.prefix.clone(), worker: Some(worker) })
    }

    fn key(&self, key: &StoreKey) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl Store for RedisStore {
    fn put(&mut self, key: &StoreKey, record: &Record) -> Result<(), StoreError> {
        let record = serde_json::to_vec(record).map_err(|error| StoreError(error.to_string()))?;
        self.shared.put(self.key(key), record)
    }

    fn get(&mut self, key: &StoreKey) -> Result<Option<Record>, StoreError> {
        let key = self.key(key);
        let Some(bytes) = self.shared.get(&key)? else { return Ok(None) };
        let unreadable = |error| StoreError(format!("what is under {key} is no record: {error}"));
        serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(worker) = self.worker.take() {
            // A panic of the worker is in its own message.
            let _ = worker.join();
        }
    }
}
