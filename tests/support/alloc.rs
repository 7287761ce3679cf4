//! The system's allocator, counting.

#![allow(dead_code, reason = "each test crate uses a part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// To be made the global allocator of a test crate.
pub(crate) struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// Allocations of all threads so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Bytes that this thread has allocated, less what it has freed.
pub(crate) fn held_by_thread() -> i64 {
    HELD.get()
}

fn count(allocations: u64, bytes: i64) {
    ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
    HELD.set(HELD.get() + bytes);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}
