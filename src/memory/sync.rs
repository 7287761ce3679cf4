//! Shared state of the memory space, or its replacement by a model checker (`tools/model.sh`).

pub(super) use core::sync::atomic::Ordering;
pub(super) use std::sync::PoisonError;

#[cfg(spindrift_loom)]
pub(super) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(not(spindrift_loom))]
pub(super) use {
    core::sync::atomic::AtomicU64,
    std::sync::{Mutex, MutexGuard},
};
