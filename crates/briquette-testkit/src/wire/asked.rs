//! Memory requested by a thread: decoding must not request more than its frame allows.
//!
//! The counting allocator needs `unsafe`, as `GlobalAlloc` is an unsafe trait. It forwards to the system's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

thread_local! {
    // Without a destructor and constant: reading it allocates nothing.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread requests.
#[derive(Debug, Clone, Copy)]
pub struct Counting;

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting allocates nothing. Growing goes
// through `alloc`, so that it counts in full.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Layout) -> *mut u8 {
        ASKED.set(ASKED.get().wrapping_add(block.size() as u64));
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(block) }
    }
    unsafe fn alloc_zeroed(&self, block: Layout) -> *mut u8 {
        ASKED.set(ASKED.get().wrapping_add(block.size() as u64));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(block) }
    }
    unsafe fn dealloc(&self, at: *mut u8, block: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, block) }
    }
}

/// Returns the bytes that this thread has requested so far.
///
/// # Panics
///
/// If the binary does not declare [`Counting`] as its allocator, because no claim about memory could then fail.
pub fn asked() -> u64 {
    let before = ASKED.get();
    drop(black_box(Box::new(0_u8)));
    assert_ne!(
        ASKED.get(),
        before,
        "the binary must declare `#[global_allocator] static COUNTING: Counting = Counting;`"
    );
    ASKED.set(before);
    before
}
