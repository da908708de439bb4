//! Host signals: words of pinned memory that a stream waits for.
//!
//! After the wait the stream writes to the word that it has passed, so the word can be reused. A stream cannot be made
//! to fail: if the host signal fails, the stream's work still runs, and the events after it [report the
//! failure](onebuf_hal::host_signals::Behind).

use super::{
    callbacks::CallbackStreams,
    device::{Context, Driver},
    pins::Share,
    queue::RawQueue,
};
use onebuf_hal::{
    self as hal, Result,
    host_signals::Outcome,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{CuStream, CudaLike, DevicePtr, consts},
};
use std::{
    fmt,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

const SHUT: u32 = 0;
const OPEN: u32 = 1;
const PASSED: u32 = 2;

const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / size_of::<u32>();

/// Whether the driver has every call that this module makes.
pub(super) fn is_there(table: &CudaLike) -> bool {
    (table.has_cuda_wait_value() || table.has_hip_wait_value()) && table.has_write_value()
}

/// Makes a stream wait until a word is at least `value`.
///
/// # Safety
/// The stream is live and of the current context, and the word stays visible to its device until the wait is over.
pub(super) unsafe fn wait_value(
    table: &CudaLike,
    stream: CuStream,
    at: DevicePtr,
    value: u32,
) -> Result<(), Refused> {
    let flags = consts::WAIT_VALUE_GEQ;
    // SAFETY: the caller guarantees the stream and the word.
    unsafe {
        match table.flavor() {
            Flavor::Cuda => table.cuda_wait_value(stream, at, value, flags),
            Flavor::Hip => table.hip_wait_value(stream, at, value, flags, u32::MAX),
        }
    }
}

/// One word of the context's pinned pages.
#[derive(Clone, Copy)]
struct Flag {
    host: NonNull<AtomicU32>,
    at: DevicePtr,
}

// SAFETY: an atomic that lives as long as the context, which the holder of a flag keeps alive.
unsafe impl Send for Flag {}
// SAFETY: as above.
unsafe impl Sync for Flag {}

impl Flag {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: inside a page that the context frees after every object created in it is gone.
        unsafe { self.host.as_ref() }
    }
}

/// The words of a context, in pages that are allocated as needed.
#[derive(Default)]
pub(super) struct Flags(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    shares: Vec<Share>,
    idle: Vec<Flag>,
    /// Words that a stream waits for and has not passed yet.
    busy: Vec<Flag>,
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({} pages)", lock(&self.0).shares.len())
    }
}

impl Flags {
    /// Returns an unsignalled word. The context is current.
    fn take(&self, driver: &Driver) -> Result<Flag, Refused> {
        let mut pages = lock(&self.0);
        if pages.idle.is_empty() {
            pages.collect();
        }
        if pages.idle.is_empty() {
            pages.grow(driver)?;
        }
        let flag = pages.idle.pop().ok_or(Refused {
            call: "a host signal",
            status: onebuf_sys::cuda_like::CuStatus::OUT_OF_MEMORY,
        })?;
        flag.word().store(SHUT, Ordering::Release);
        pages.busy.push(flag);
        Ok(flag)
    }

    /// Frees the pages when the context ends. The context is current, and no stream waits.
    pub fn free(&self, context: &Context) {
        let pages = std::mem::take(&mut *lock(&self.0));
        pages.shares.iter().for_each(|share| context.driver.pins.release(context, share));
    }
}

impl Pages {
    /// Reclaims the words that streams have passed.
    fn collect(&mut self) {
        let has_passed = |flag: &Flag| flag.word().load(Ordering::Acquire) == PASSED;
        let (passed, busy) = self.busy.drain(..).partition(has_passed);
        (self.idle, self.busy) = (passed, busy);
    }

    fn grow(&mut self, driver: &Driver) -> Result<(), Refused> {
        let (page, share) = driver.pins.allocate(driver, PAGE_BYTES, size_of::<u32>())?;
        let base = driver.pins.device_pointer(driver, &share);
        self.shares.push(share);
        let base = base?;
        let flag = |n: usize| {
            // SAFETY: inside the page.
            let host = unsafe { page.0.cast::<AtomicU32>().add(n) };
            let at = DevicePtr(base.0 + (n * size_of::<u32>()) as u64);
            NonNull::new(host).map(|host| Flag { host, at })
        };
        self.idle.extend((0..WORDS).filter_map(flag));
        Ok(())
    }
}

/// A word that a stream waits for. Signalled exactly once: by its holder, or when it is dropped.
pub(super) struct HostSignal {
    flag: Flag,
    outcome: Arc<Outcome>,
    settled: bool,
    /// Keeps the words alive.
    queue: Option<Arc<RawQueue>>,
}

impl HostSignal {
    /// Makes later work of the queue wait. The context is current.
    pub fn new(queue: &Arc<RawQueue>) -> Result<HostSignal> {
        let (driver, context) = (queue.driver(), &queue.context);
        let flag = driver.check(context.flags.take(driver))?;
        let mut host_signal = HostSignal {
            flag,
            outcome: Arc::default(),
            settled: false,
            queue: Some(queue.clone()),
        };
        // Recorded first, so that every event behind the wait includes it.
        queue.host_signals.push(host_signal.outcome.clone());
        // SAFETY: a live stream of the current context, and a word of that context.
        let enqueued = unsafe { wait_value(&driver.table, queue.raw, flag.at, OPEN) };
        // SAFETY: as above.
        let passes = || unsafe { driver.table.write_value(queue.raw, flag.at, PASSED, 0) };
        // After a failed call the word is signalled, in case the wait was enqueued.
        driver.check(enqueued.and_then(|()| passes()).inspect_err(|_| host_signal.settle(true)))?;
        Ok(host_signal)
    }

    fn settle(&mut self, opened: bool) {
        if !std::mem::replace(&mut self.settled, true) {
            self.outcome.settle(opened);
            self.flag.word().store(OPEN, Ordering::Release);
        }
    }
}

impl hal::HostSignal for HostSignal {
    fn open(mut self: Box<Self>, outcome: Result<()>) {
        self.settle(outcome.is_ok());
    }

    /// It stores to a word, and leaves the release of its queue to a thread.
    fn calls_driver(&self) -> bool {
        false
    }
}

impl Drop for HostSignal {
    /// Usually runs in a callback, where a queue must not be freed.
    fn drop(&mut self) {
        self.settle(false);
        self.queue.take().into_iter().for_each(CallbackStreams::retire);
    }
}
