//! MRC's own interface for programs, as OCP's Multipath Reliable Connection project defines it (`mrc.h`, API version 1.0.1): what
//! `lib_mrc.so`, `libnv_mrc.so` and `libmrc.so` do, in the same file as verbs.
//!
//! Its queue pairs are those of verbs with the rules of MRC 1.0: writes alone, no RNR, and attributes of MRC beside those of verbs. Of
//! the extensions they offer messages of zero bytes, which NCCL's plugin for MRC sends.
//!
//! | Module | What it holds |
//! |---|---|
//! | `abi` | what `mrc.h` declares |
//! | `ctl` | the interface of controllers (`mrc_ctl.h`) |
//! | `context` | versions, capabilities, the parent of all objects, its events |
//! | `completion` | completion queues and channels |
//! | `hint` | what a program tells of its traffic |
//! | `attributes` | MRC's attributes of a queue pair, and when they may change |
//! | `queue` | queue pairs |

pub(crate) mod abi;
pub(crate) mod attributes;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod ctl;
pub(crate) mod hint;
pub(crate) mod queue;
#[cfg(test)]
mod tests;

use core::ffi::c_int;

use crate::error::{count, set_errno};

/// A function that returns 0 or the code of an error, as those of verbs do. It sets `errno` too: the interface leaves open which of the
/// two a program looks at.
fn code(act: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let code = crate::error::code(act);
    told(code)
}

/// The code of a function of verbs, also in `errno`.
fn told(code: c_int) -> c_int {
    if code != 0 {
        set_errno(code);
    }
    code
}

/// A function that returns 0, or -1 with `errno`.
fn status(act: impl FnOnce() -> Result<(), c_int>) -> c_int {
    count(|| act().map(|()| 0))
}
