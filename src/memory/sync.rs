//! What threads share of the memory space, or what a model checker puts in its place (`tools/model.sh`).

pub(super) use core::sync::atomic::Ordering;
pub(super) use std::sync::PoisonError;

#[cfg(spindrift_loom)]
pub(super) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(not(spindrift_loom))]
pub(super) use {
    core::sync::atomic::AtomicU64,
    std::sync::{Mutex, MutexGuard},
};
