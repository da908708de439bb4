//! Memory and processor time that a piece of code takes, on the calling thread.
//!
//! # Safety
//! The allocator is the system's. It only counts, in numbers of the thread that need no allocation themselves.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fmt,
    time::Duration,
};

/// The system's allocator with counters for each thread. Unit tests that measure declare it as their
/// `#[global_allocator]`; [`measure`] refuses to work without it.
pub struct Counting;

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Bytes that are allocated now. What another thread allocated may be freed here, so it may be negative.
    now: isize,
    most: isize,
    all: usize,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { now: 0, most: 0, all: 0 }) };
}

/// Notes an allocation beside which `freed` bytes are still there, and are given back then.
fn note(bytes: usize, freed: usize) {
    // A thread that ends has no counts any more.
    let _ = COUNTS.try_with(|counts| {
        let Counts { now, most, all } = counts.get();
        let both = now.wrapping_add_unsigned(bytes);
        let (most, all) = (most.max(both), all.wrapping_add(bytes));
        counts.set(Counts { now: both.wrapping_sub_unsigned(freed), most, all });
    });
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    /// The old memory counts until the new one is there, as it does where memory has to move.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes, layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// What a piece of code took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The most bytes that it had allocated at one time.
    pub peak: usize,
    /// The bytes that it allocated one after the other. It stands for work: what is allocated is written.
    pub all: usize,
    /// Processor time of this thread.
    pub time: Duration,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Taken { peak, all, time } = self;
        write!(f, "{peak} bytes at most, {all} in all, {time:?}")
    }
}

/// Whether allocations of this program are counted.
fn is_counting() -> bool {
    let before = COUNTS.get().all;
    drop(std::hint::black_box(Box::new(0_u8)));
    COUNTS.get().all != before
}

/// Runs it and measures. What it returns is still there when the peak is read.
pub fn measure<T>(code: impl FnOnce() -> T) -> (T, Taken) {
    assert!(is_counting(), "`Counting` is not this program's allocator");
    let before = COUNTS.get();
    COUNTS.set(Counts { most: before.now, ..before });
    let start = thread_time();
    let result = code();
    let time = thread_time().saturating_sub(start);
    let after = COUNTS.get();
    // A measurement around this one sees its peak, too.
    COUNTS.set(Counts { most: after.most.max(before.most), ..after });
    let peak = usize::try_from(after.most.wrapping_sub(before.now)).unwrap_or(0);
    (result, Taken { peak, all: after.all.wrapping_sub(before.all), time })
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer; this clock exists on every Linux.
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
    // Growing has the old and the new at one time.
    assert_eq!((taken.peak, taken.all), (4_000, 4_000), "{}", kept.len());
    let (other, taken) = measure(|| {
        let thread = std::thread::spawn(|| vec![0u8; 1 << 20]);
        thread.join().expect("a thread")
    });
    assert!(taken.peak < 1 << 18, "another thread's {} bytes: {taken}", other.len());
}
