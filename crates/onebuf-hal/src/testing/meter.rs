//! Measures memory and CPU time of code on the calling thread.
//!
//! # Safety
//! The allocator forwards to the system's and only counts, in thread-local numbers that need no allocation.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt,
    time::Duration,
};

/// The system allocator with counters per thread. Unit tests that measure declare it as their `#[global_allocator]`;
/// [`measure`] panics without it.
pub struct Counting;

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Bytes allocated now. It may be negative, because memory of another thread may be freed here.
    now: isize,
    most: isize,
    all: usize,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { now: 0, most: 0, all: 0 }) };
}

/// Counts an allocation, then `freed` bytes as freed: both exist for a moment.
fn note(bytes: usize, freed: usize) {
    // The counts of a thread that is ending are destroyed.
    let _ = COUNTS.try_with(|counts| {
        let Counts { now, most, all } = counts.get();
        let both = now.wrapping_add_unsigned(bytes);
        let (most, all) = (most.max(both), all.wrapping_add(bytes));
        counts.set(Counts { now: both.wrapping_sub_unsigned(freed), most, all });
    });
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    /// The old memory counts until the new memory exists, as when memory has to move.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// The resources that a piece of code used.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Peak of allocated bytes.
    pub peak: usize,
    /// Sum of all allocations. A measure of work, since allocated memory is written.
    pub all: usize,
    /// CPU time of this thread.
    pub time: Duration,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { peak, all, time } = self;
        write!(f, "{peak} bytes at most, {all} in all, {time:?}")
    }
}

/// Whether this program's allocations are counted.
fn is_counting() -> bool {
    let before = COUNTS.get().all;
    drop(std::hint::black_box(Box::new(0_u8)));
    COUNTS.get().all != before
}

/// Runs `code` and measures it. Its result still exists when the peak is read.
pub fn measure<T>(code: impl FnOnce() -> T) -> (T, Taken) {
    assert!(is_counting(), "`Counting` is not this program's allocator");
    let before = COUNTS.get();
    COUNTS.set(Counts { most: before.now, ..before });
    let start = thread_time();
    let result = code();
    let time = thread_time().saturating_sub(start);
    let after = COUNTS.get();
    // An enclosing measurement includes this peak.
    COUNTS.set(Counts { most: after.most.max(before.most), ..after });
    let peak = usize::try_from(after.most.wrapping_sub(before.now)).unwrap_or(0);
    (result, Taken { peak, all: after.all.wrapping_sub(before.all), time })
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; this clock exists on every Linux.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "the thread's clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn memory_is_counted_where_it_is_taken() {
    let ((), taken) = measure(|| {
        drop(vec![0u8; 10_000]);
        drop(vec![1u8; 20_000]);
    });
    assert_eq!((taken.peak, taken.all), (20_000, 30_000));
    let (kept, taken) = measure(|| {
        let mut kept = Vec::<u8>::with_capacity(1_000);
        kept.resize(3_000, 7);
        kept
    });
    // While it grows, the old and the new memory exist together.
    assert_eq!((taken.peak, taken.all), (4_000, 4_000), "{}", kept.len());
    let (other, taken) = measure(|| {
        let thread = std::thread::spawn(|| vec![0u8; 1 << 20]);
        thread.join().expect("a thread")
    });
    assert!(taken.peak < 1 << 18, "another thread's {} bytes: {taken}", other.len());
}
