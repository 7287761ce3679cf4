//! DPDK behind safe functions. All `unsafe` of the crate is here.

#![allow(unsafe_code, reason = "calls of a C library, and the buffers that it lends")]

mod device;
mod eal;
mod queue;

pub(crate) use device::{Description, Device, MEMIF, Modes, Pool, Stats, control};
pub(crate) use eal::{init, join, log_len, log_lines, plugins, runtime_folder, take_log, version};
pub(crate) use queue::{RX_BATCH, RxQueue, Sent, TxQueue, copy};

use std::ffi::CStr;

/// An error number of DPDK: positive, one of the system's or one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// What a function returned that returns negative error numbers.
    fn check(result: i32) -> Result<i32, Self> {
        if result < 0 { Err(Self(-result)) } else { Ok(result) }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: returns static text, or text that is this thread's until its next call.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(self.0)) };
        f.write_str(&text.to_string_lossy())
    }
}
