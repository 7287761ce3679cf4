//! Which process made something. A child that `fork` makes has copies of all objects, but none of the threads that serve them, and
//! shares the sockets and rings with its parent: whoever touches a lane's ports there, or waits for its thread, harms both.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// The process that an object was made in, told in a few instructions.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// A word that the system sets to 0 in a child; none where the system cannot do that.
    word: Option<&'static AtomicU32>,
    /// What the word is in the process that made the object; the process's number where there is no word.
    mark: u32,
}

impl Home {
    /// The calling process.
    pub fn here() -> Self {
        static WORD: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
        static MARKS: AtomicU32 = AtomicU32::new(0);
        let Some(word) = *WORD.get_or_init(wiped_in_children) else {
            return Self { word: None, mark: std::process::id() };
        };
        if word.load(Ordering::Relaxed) == 0 {
            // A child goes on counting where its parent was.
            let mark = MARKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
            let _ = word.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self { word: Some(word), mark: word.load(Ordering::Relaxed) }
    }

    /// Whether this is another process: a child of the one that made the object, or a child's child.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        match self.word {
            Some(word) => word.load(Ordering::Relaxed) != self.mark,
            None => std::process::id() != self.mark,
        }
    }
}

/// A word on a page of its own that is 0 in children (`MADV_WIPEONFORK`, Linux 4.14).
fn wiped_in_children() -> Option<&'static AtomicU32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // Mappings are whole pages.
    let len = size_of::<AtomicU32>();
    // SAFETY: a new mapping, at an address that the system chooses, touches nothing that exists.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page is this function's alone.
    if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above, and nobody has its address.
        unsafe { libc::munmap(page, len) };
        return None;
    }
    // SAFETY: the page is zeroed, aligned, never unmapped, and only used as this word.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    #[test]
    fn children_are_elsewhere_and_at_home_with_what_they_make() {
        let home = Home::here();
        let by_number = Home { word: None, mark: std::process::id() };
        assert!(!home.is_elsewhere() && !by_number.is_elsewhere());
        let told = in_child(move || {
            let own = Home::here();
            let both = home.is_elsewhere() && by_number.is_elsewhere() && !own.is_elsewhere();
            // And its own child.
            let below =
                in_child(move || home.is_elsewhere() && own.is_elsewhere() && !Home::here().is_elsewhere());
            both && below == Some(true) && home.is_elsewhere()
        });
        assert_eq!(told, Some(true));
        assert!(!home.is_elsewhere());
    }
}
