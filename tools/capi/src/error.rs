//! Errors as C programs expect them, and panics that do not pass into C.

use core::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Sets `errno`.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = code };
}

/// The code of the system call that has just failed.
pub(crate) fn last_code() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A function that returns 0 or the code of an error. A panic is `EIO`.
pub(crate) fn code(act: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => libc::EIO,
    }
}

/// A function that returns an object, or null with `errno`.
pub(crate) fn object<T>(act: impl FnOnce() -> Result<*mut T, c_int>) -> *mut T {
    match catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(libc::EIO)) {
        Ok(object) => object,
        Err(code) => {
            set_errno(code);
            null_mut()
        }
    }
}

/// A function that returns a number of things, or -1 with `errno`.
pub(crate) fn count(act: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(libc::EIO)) {
        Ok(count) => count,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

/// Tells the user of the program what went wrong, beside the code that the program gets.
pub(crate) fn tell(what: &str, error: &dyn core::fmt::Display) {
    eprintln!("spindrift: {what}: {error}");
}

/// The code of an error of Spindrift's verbs.
pub(crate) fn code_of(error: &spindrift::verbs::VerbsError) -> c_int {
    use spindrift::verbs::VerbsError;

    match error {
        VerbsError::CqInUse { .. } => libc::EBUSY,
        VerbsError::Control(_) => libc::EIO,
        VerbsError::Memory(_) => libc::ENOMEM,
        VerbsError::Channel(error) => error.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

/// The code of a request that was refused.
pub(crate) const fn code_of_post(error: spindrift::verbs::PostError) -> c_int {
    use spindrift::verbs::PostError;

    match error {
        PostError::QueueFull { .. } => libc::ENOMEM,
        PostError::LaneFailed => libc::EIO,
        PostError::NotNegotiated { .. } => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}
