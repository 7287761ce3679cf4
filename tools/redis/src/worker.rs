//! The thread that talks to the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Client, Connection, RedisResult};
use spindrift::fallback::StoreError;

/// Time until the next attempt to connect.
const RETRY: Duration = Duration::from_millis(200);

/// What the store and its worker share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Records to put, the newest of each key.
    puts: BTreeMap<String, Vec<u8>>,
    /// Keys to ask for, in order, each once.
    gets: VecDeque<String>,
    asked: BTreeSet<String>,
    /// Replies that were not taken yet.
    replies: BTreeMap<String, Option<Vec<u8>>>,
    /// Keys of this side that the server may have.
    own: BTreeSet<String>,
    /// Why the last attempt failed.
    error: Option<String>,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a record put. It is put as soon as the server can be reached, whatever is returned.
    pub(super) fn put(&self, key: String, record: Vec<u8>) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.puts.insert(key, record);
        self.changed.notify_one();
        state.check()
    }

    /// The reply for a key, or `None` until it is there. Each reply is returned once; the next call asks again.
    pub(super) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let mut state = self.lock();
        if let Some(reply) = state.replies.remove(key) {
            return Ok(reply);
        }
        if state.asked.insert(key.to_owned()) {
            state.gets.push_back(key.to_owned());
            self.changed.notify_one();
        }
        state.check().map(|()| None)
    }

    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_one();
    }
}

impl State {
    fn check(&self) -> Result<(), StoreError> {
        self.error.as_ref().map_or(Ok(()), |error| Err(StoreError(error.clone())))
    }
}

/// One thing to do.
enum Job {
    Put(String, Vec<u8>),
    Get(String),
    Stop(Vec<String>),
}

/// The server, as the thread sees it.
pub(super) struct Worker {
    client: Client,
    timeout: Duration,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) const fn new(client: Client, timeout: Duration, shared: Arc<Shared>) -> Self {
        Self { client, timeout, shared }
    }

    pub(super) fn run(self) {
        let mut connection = None;
        loop {
            let job = self.next();
            let stop = matches!(job, Job::Stop(_));
            let done = self.carry_out(&mut connection, &job);
            if stop {
                return;
            }
            self.finish(job, done, &mut connection);
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Job {
        let mut state = self.shared.lock();
        loop {
            if state.stop {
                return Job::Stop(std::mem::take(&mut state.own).into_iter().collect());
            }
            if let Some((key, record)) = state.puts.pop_first() {
                return Job::Put(key, record);
            }
            if let Some(key) = state.gets.pop_front() {
                return Job::Get(key);
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self.client.get_connection_with_timeout(self.timeout)?;
        connection.set_read_timeout(Some(self.timeout))?;
        connection.set_write_timeout(Some(self.timeout))?;
        Ok(connection)
    }

    /// What the server says: the bytes under a key, if that was asked.
    fn carry_out(&self, connection: &mut Option<Connection>, job: &Job) -> RedisResult<Option<Vec<u8>>> {
        if connection.is_none() {
            *connection = Some(self.connect()?);
        }
        let Some(connection) = connection else { return Ok(None) };
        match job {
            Job::Put(key, record) => redis::cmd("SET").arg(key).arg(record).exec(connection).map(|()| None),
            Job::Get(key) => redis::cmd("GET").arg(key).query(connection),
            Job::Stop(keys) if keys.is_empty() => Ok(None),
            Job::Stop(keys) => redis::cmd("DEL").arg(keys).exec(connection).map(|()| None),
        }
    }

    /// Records what came of a job. One that failed is done again after a while.
    fn finish(&self, job: Job, done: RedisResult<Option<Vec<u8>>>, connection: &mut Option<Connection>) {
        let mut state = self.shared.lock();
        match (job, done) {
            (Job::Put(key, _), Ok(_)) => {
                state.own.insert(key);
                state.error = None;
            }
            (Job::Get(key), Ok(reply)) => {
                state.asked.remove(&key);
                state.replies.insert(key, reply);
                state.error = None;
            }
            (Job::Stop(_), _) => {}
            (job, Err(error)) => {
                *connection = None;
                state.error = Some(format!("the Redis server: {error}"));
                match job {
                    // A newer record of this key may have come meanwhile.
                    Job::Put(key, record) => drop(state.puts.entry(key).or_insert(record)),
                    Job::Get(key) => state.gets.push_front(key),
                    Job::Stop(_) => {}
                }
                // A stop ends the wait.
                drop(self.shared.changed.wait_timeout_while(state, RETRY, |state| !state.stop));
            }
        }
    }
}
