//! Namespaces of this thread.

use std::io;

use rustix::thread::UnshareFlags;

/// Moves this thread, which must be the only one of its process, into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptors stay as they are");
    // SAFETY: the table of descriptors is not unshared.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
