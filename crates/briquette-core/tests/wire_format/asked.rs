//! Memory requested by a thread: decoding must not request more than its frame allows. The fuzz targets also count with this
//! file.
//!
//! The counting allocator needs `unsafe`, as `GlobalAlloc` is an unsafe trait. It forwards to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Without a destructor and constant: reading it allocates nothing.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting allocates nothing. Growing goes
// through `alloc`, so that it counts in full.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Layout) -> *mut u8 {
        ASKED.set(ASKED.get().wrapping_add(block.size() as u64));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(block) }
    }
    unsafe fn dealloc(&self, at: *mut u8, block: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the bytes that this thread has requested so far.
pub fn asked() -> u64 {
    ASKED.get()
}
