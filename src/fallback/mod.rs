//! Fallback between two queue pairs on different NICs, after the SHIFT paper: requests that were in flight on a NIC that
//! died are sent again over another one.
//!
//! This is for NICs whose transport state cannot be moved. Between two peers of this crate, a queue pair with
//! [planes that stand by](crate::path::PathConfig::standby) guarantees more: `docs/fallback.md` compares them.
//!
//! [`Context`] uses two contexts of [`verbs`](crate::verbs), one for each NIC. An application registers memory and makes
//! queue pairs there, posts and polls as ever, and sees one queue pair where there are two. [`Machine`] is what decides,
//! without clock, thread or NIC. It can drive other NICs that implement [`Verbs`].
//!
//! ```
//! use spindrift::fallback::{Context, FallbackConfig, MemoryStore, Nic, SendState};
//! use spindrift::pmd::loopback;
//! use spindrift::verbs::{self, Access, ContextConfig, QpConfig, SendOp, SendWr, Wc, nic};
//!
//! // Two NICs on each side, wired to those of the other side.
//! let (here, there) = loopback::pair(1, loopback::LoopbackConfig::default());
//! let (here_too, there_too) = loopback::pair(1, loopback::LoopbackConfig::default());
//! let store = MemoryStore::default();
//! let open = |ports: [Vec<loopback::LoopbackPort>; 2]| {
//!     let [default, backup] = ports.map(|ports| {
//!         let ports = nic(ports);
//!         let config = ContextConfig::new(&ports);
//!         verbs::Context::open(ports, config)
//!     });
//!     Context::open(&default?, &backup?, Box::new(store.clone()), 256, FallbackConfig::default())
//! };
//! let (mut client, mut server) = (open([here, here_too])?, open([there, there_too])?);
//!
//! // Memory on both NICs, and a queue pair.
//! let source = client.register(4096, Access::LOCAL_READ)?;
//! let target = server.register(4096, Access::REMOTE_WRITE)?;
//! let (ours, theirs) = (client.create_qp(&QpConfig::default())?, server.create_qp(&QpConfig::default())?);
//! server.connect(theirs, &client.info(ours)?)?;
//! client.connect(ours, &server.info(theirs)?)?;
//!
//! // In the background, both sides prepare what takes over.
//! let mut out = [Wc::default(); 16];
//! while !client.is_prepared(ours, Nic::Backup)? || !server.is_prepared(theirs, Nic::Backup)? {
//!     client.poll(&mut out);
//!     server.poll(&mut out);
//! }
//!
//! // For maintenance of the default NIC: nothing fails, and the order is kept.
//! client.prefer(ours, Nic::Backup)?;
//! while client.state(ours)?.0 != SendState::Fallback {
//!     client.poll(&mut out);
//!     server.poll(&mut out);
//! }
//!
//! source.region().write_at(0, b"over the backup")?;
//! let (local, remote) = (source.sge(0, 15)?, target.remote().at(0, 15)?);
//! client.post_send(ours, SendWr { wr_id: 1, op: SendOp::Write, local, remote, signaled: true, fence: false })?;
//! while client.poll(&mut out) == 0 {
//!     server.poll(&mut out);
//! }
//! assert!(out[0].wr_id == 1 && out[0].status.is_success());
//! let mut bytes = [0; 15];
//! target.region().read_at(0, &mut bytes)?;
//! assert_eq!(&bytes, b"over the backup");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens
//!
//! | Event | Reaction |
//! |---|---|
//! | a pair fails because of the network | both sides put it into ERROR, tell each other on a prepared pair what they have received, and send the rest again there |
//! | the pair that was chosen fails too | the next prepared pair, on the other NIC, up to [`max_attempts`](FallbackConfig::max_attempts) |
//! | an atomic operation, a marked request, or a read with something after it was in flight | the queue pair fails |
//! | the default NIC works again, after the hold time | sends move back behind a fence, each direction by itself |
//! | no pair is prepared, or the store cannot be reached for a key | the queue pair fails |
//! | a request fails because of the application | the queue pair fails, as without fallback |
//!
//! [`FallbackError`] is the reason. The first outstanding request completes with an error, the rest is flushed.

mod config;
mod connection;
mod context;
mod event;
mod machine;
mod message;
mod moves;
mod preparation;
mod queue;
mod store;
mod switch;
mod verbs;

#[cfg(test)]
mod tests;

pub use self::config::{Counters, FallbackConfig, FallbackError, ReceiveState, SendState};
pub use self::context::{Context, Mr, QpId};
pub use self::event::Event;
pub use self::machine::{EXTRA_RECEIVES, EXTRA_SENDS, Machine};
pub use self::preparation::{MakePairs, Preparation};
pub use self::store::{MemoryStore, PairRecord, Record, Store, StoreError, StoreKey};
pub use self::verbs::{Cause, Nic, PairId, RemoteKey, Verbs};
