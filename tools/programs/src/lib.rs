//! What `spindrift run` and the `libibverbs.so.1` of `tools/capi` have to agree on: `docs/programs.md` tells how programs as they are run
//! over Spindrift.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`settings`] | devices and their planes, as environment variables say |
//! | [`gid`] | addresses as GIDs, and the identity of a device |
//! | [`view`] | `/sys/class/infiniband` and `/dev/infiniband`, for programs that look there |
//! | [`report`] | what a process has moved |

pub mod gid;
mod namespace;
pub mod report;
pub mod settings;
pub mod view;

pub use settings::{NicSettings, OperatorFolder, Settings, SettingsError};
