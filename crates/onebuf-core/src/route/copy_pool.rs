//! The threads of a hub that help with large copies of host memory.
//!
//! They start with the first copy that is large enough, and end when there has been none for a while, or when the hub is dropped. A
//! copy never depends on them: the calling thread copies what no helper takes.
//!
//! # Safety
//! See `feed`.

#![allow(unsafe_code)]

use super::{
    feed::{CopySide, Division, Feed, pause},
    tuning::CopyTuning,
};
use onebuf_hal::locks::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, thread};
use std::{
    hint,
    time::{Duration, Instant},
};

/// How often a thread tries to take the lock before it sleeps.
const LOCK_LOOKS: u32 = if cfg!(onebuf_shuttle) { 0 } else { 200 };

/// The threads, and the copies that want help.
#[derive(Debug)]
pub(crate) struct CopyPool {
    shared: Arc<CopyThreads>,
    pub tuning: CopyTuning,
}

#[derive(Debug, Default)]
struct CopyThreads {
    work: Mutex<Work>,
    changed: Condvar,
    /// The number of copies so far, which threads that are awake look at.
    posted: AtomicU64,
}

#[derive(Debug, Default)]
struct Work {
    wanted: Vec<Wanted>,
    threads: usize,
    /// The number of threads that sleep.
    asleep: usize,
    /// Whether the hub is gone.
    has_ended: bool,
}

impl Work {
    fn is_wanted(&self) -> bool {
        self.wanted.iter().any(|wanted| wanted.helpers > 0)
    }
}

/// A copy, and how many more threads may help with it.
#[derive(Debug)]
struct Wanted {
    feed: Arc<Feed>,
    helpers: usize,
}

impl CopyPool {
    pub fn new(tuning: CopyTuning) -> Self {
        Self { shared: Arc::default(), tuning }
    }

    /// Copies a slice to another of the same length, by several threads if that is worthwhile.
    #[inline]
    pub fn copy_slice(&self, from: &[u8], to: &mut [u8]) {
        if from.len() != to.len() || from.len() < self.tuning.host_from_bytes {
            return to.copy_from_slice(from);
        }
        // SAFETY: two slices of this length, of which one is exclusive.
        unsafe { self.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }

    /// Copies host memory, by several threads if that is worthwhile.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `bytes` bytes, and the two do not overlap.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        let tuning = &self.tuning;
        if bytes < tuning.host_from_bytes || tuning.threads < 2 {
            // SAFETY: the caller guarantees this.
            return unsafe { to.copy_from_nonoverlapping(from, bytes) };
        }
        // One chunk, which is open from the beginning.
        let division = Division::whole(bytes, tuning.piece_bytes);
        let (from, to) = (CopySide::Whole(from.cast_mut()), CopySide::Whole(to));
        let streams = bytes >= tuning.stream_from_bytes;
        // SAFETY: the caller guarantees this until the guard below is dropped.
        let feed = Arc::new(unsafe { Feed::new(from, to, division, streams) });
        feed.open(1);
        let helped = self.help(&feed, tuning.threads_for(bytes));
        while feed.copy_one() {}
        let mut looks = 0;
        while !feed.is_copied(0) {
            looks = pause(looks);
        }
        drop(helped);
    }

    /// Lets threads copy pieces of the feed until the guard is dropped: this many, with the calling one.
    pub fn help(&self, feed: &Arc<Feed>, threads: usize) -> Helped<'_> {
        let helpers = threads.saturating_sub(1);
        // A forked child has neither these threads nor the thread that held the lock.
        if helpers > 0 && !onebuf_sys::fork::is_child() {
            let mut work = lock_awake(&self.shared.work);
            work.wanted.push(Wanted { feed: feed.clone(), helpers });
            while work.threads < helpers && self.start() {
                work.threads += 1;
            }
            self.shared.posted.fetch_add(1, Ordering::Release);
            let asleep = work.asleep > 0;
            drop(work);
            // One, which wakes the others: waking a thread takes the time of copying a piece.
            if asleep {
                self.shared.changed.notify_one();
            }
        }
        Helped { pool: self, feed: feed.clone(), listed: helpers > 0 }
    }

    fn start(&self) -> bool {
        let (shared, CopyTuning { awake, linger, .. }) = (self.shared.clone(), self.tuning);
        let named = thread::Builder::new().name("onebuf-copy".into());
        let started = named.spawn(move || shared.run(awake, linger));
        started.inspect_err(|why| tracing::debug!(%why, "no thread for copies")).is_ok()
    }
}

impl Drop for CopyPool {
    fn drop(&mut self) {
        // In a forked child there are no threads, and the lock may be held forever.
        if !onebuf_sys::fork::is_child() {
            lock(&self.shared.work).has_ended = true;
            self.shared.posted.fetch_add(1, Ordering::Release);
            self.shared.changed.notify_all();
        }
    }
}

impl CopyThreads {
    /// Helps with copies. After each, the thread stays awake for twice the time that it took, at most for `most`, and then sleeps
    /// for at most `linger`.
    fn run(&self, most: Duration, linger: Duration) {
        let mut awake = Duration::ZERO;
        while let Some(feed) = self.next(awake, linger) {
            let start = Instant::now();
            feed.help();
            feed.helpers.fetch_sub(1, Ordering::Release);
            awake = most.min(2 * start.elapsed());
        }
    }

    /// The next copy to help with; `None` if the thread should end.
    fn next(&self, awake: Duration, linger: Duration) -> Option<Arc<Feed>> {
        let (until, mut lingered) = (Instant::now() + awake, linger.is_zero());
        loop {
            let seen = self.posted.load(Ordering::Acquire);
            let mut work = lock_awake(&self.work);
            if let Some(wanted) = work.wanted.iter_mut().find(|wanted| wanted.helpers > 0) {
                wanted.helpers -= 1;
                let feed = wanted.feed.clone();
                feed.helpers.fetch_add(1, Ordering::Relaxed);
                let wake = work.is_wanted() && work.asleep > 0;
                drop(work);
                // Two, so that all are awake soon.
                if wake {
                    self.changed.notify_one();
                    self.changed.notify_one();
                }
                return Some(feed);
            }
            if lingered || work.has_ended {
                work.threads -= 1;
                return None;
            }
            drop(work);
            if !self.is_posted(seen, until) {
                lingered = self.sleep(linger);
            }
        }
    }

    /// Looks for a new copy until then; whether there is one.
    fn is_posted(&self, seen: u64, until: Instant) -> bool {
        let mut looks = 0;
        while Instant::now() < until {
            if self.posted.load(Ordering::Acquire) != seen {
                return true;
            }
            looks = pause(looks);
        }
        false
    }

    /// Sleeps until a copy wants help. Returns whether there was none for a long time.
    fn sleep(&self, linger: Duration) -> bool {
        let mut work = lock(&self.work);
        if work.is_wanted() || work.has_ended {
            return false;
        }
        work.asleep += 1;
        let waited = self.changed.wait_timeout(work, linger);
        let (mut work, late) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        work.asleep -= 1;
        late.timed_out() && !work.is_wanted()
    }
}

/// Locks, and looks for a while before it sleeps: several threads start with a copy at the same time, each has the lock for less than a
/// microsecond, and waking one that sleeps takes the time of copying several pieces.
fn lock_awake<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..LOCK_LOOKS {
        if let Ok(guard) = mutex.try_lock() {
            return guard;
        }
        hint::spin_loop();
    }
    lock(mutex)
}

/// Threads may copy pieces of a feed. When dropped, it waits until none does.
pub(crate) struct Helped<'p> {
    pool: &'p CopyPool,
    feed: Arc<Feed>,
    listed: bool,
}

impl Drop for Helped<'_> {
    fn drop(&mut self) {
        self.feed.close();
        if !self.listed || onebuf_sys::fork::is_child() {
            return;
        }
        lock_awake(&self.pool.shared.work)
            .wanted
            .retain(|wanted| !Arc::ptr_eq(&wanted.feed, &self.feed));
        // A helper is at most inside the copy of one piece.
        let mut looks = 0;
        while self.feed.helpers.load(Ordering::Acquire) > 0 {
            looks = pause(looks);
        }
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::{CopyPool, CopyTuning};
    use onebuf_hal::locks::Arc;
    use std::{thread, time::Duration};

    #[test]
    fn threads_end_with_their_hub() {
        let linger = Duration::from_secs(3600);
        let pool = CopyPool::new(CopyTuning {
            threads: 4,
            host_from_bytes: 1 << 20,
            linger,
            ..CopyTuning::default()
        });
        let (from, mut to) = (vec![7; 8 << 20], vec![0; 8 << 20]);
        pool.copy_slice(&from, &mut to);
        assert!(from == to);
        let threads = Arc::downgrade(&pool.shared);
        assert!(threads.strong_count() > 1, "no thread was started");
        drop(pool);
        for _ in 0..6000 {
            if threads.strong_count() == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} threads are left", threads.strong_count());
    }
}
