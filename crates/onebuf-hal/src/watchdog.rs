//! Reports driver calls that do not return.
//!
//! A call cannot be interrupted, so a driver that hangs blocks its thread. The watchdog logs a warning with the API, the call,
//! the device and the thread after the hub's timeout, and again each time the duration has doubled.
//!
//! Only calls that may block are watched ([`Post::watch`]); launches are not. A watched call costs two uncontended locks, less
//! than 0.1 µs. The first such call starts the watchdog thread. A call that finds the thread asleep wakes it, which costs 2 to
//! 7 µs. So the thread does not sleep before `LONGEST_LOOK` has passed without a new call: a program that calls drivers wakes
//! it at most twice a second, and in a program that does not, the thread sleeps forever. As a consequence, a warning may be
//! half a second late.

use std::{
    cell::OnceCell,
    collections::HashMap,
    // The standard library's, also under shuttle: drivers use real threads.
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

/// The limit of a call until a hub sets one.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// Minimum and maximum time between two checks of the running calls.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The number of the next call.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A device whose driver calls are watched: its name, and the time limit of its calls.
#[derive(Debug)]
pub struct Post {
    api: &'static str,
    name: String,
    /// The device's id in its hub, once it has one.
    id: OnceLock<String>,
    limit_ms: AtomicU64,
}

impl Post {
    /// A watchdog record for one device of that API.
    pub fn new(api: &'static str, name: impl Into<String>) -> Arc<Post> {
        let limit_ms = AtomicU64::new(DEFAULT_LIMIT.as_millis() as u64);
        Arc::new(Post { api, name: name.into(), id: OnceLock::new(), limit_ms })
    }

    /// Sets its id in a hub, and that hub's timeout.
    pub fn assign(&self, id: &str, timeout: Duration) {
        // A device belongs to one hub; the first id is kept.
        let _ = self.id.set(id.to_owned());
        let limit_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        self.limit_ms.store(limit_ms, Ordering::Relaxed);
    }

    /// The device's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The hub's timeout.
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.load(Ordering::Relaxed))
    }

    /// Makes a driver call that may block. The watchdog logs a warning if it does not return in time.
    pub fn watch<T>(self: &Arc<Self>, call: &'static str, make: impl FnOnce() -> T) -> T {
        // In a forked child locks may be held forever, and the watchdog thread does not exist.
        if onebuf_sys::fork::is_child() {
            return make();
        }
        // The slot of a thread that is ending is destroyed; its calls are not watched.
        let slot = SLOT.try_with(|slot| slot.get_or_init(ThreadCalls::open).0.clone()).ok();
        let _running = slot.map(|slot| slot.enter(call, self));
        make()
    }
}

/// A call that has not returned.
#[derive(Clone)]
struct Running {
    call: &'static str,
    post: Arc<Post>,
    number: u64,
}

/// One thread's running calls, the innermost last: a driver may call back.
struct ThreadCalls {
    thread: String,
    calls: Mutex<Vec<Running>>,
}

/// Removes the slot from the list when its thread ends.
struct Own(Arc<ThreadCalls>);

impl Drop for Own {
    fn drop(&mut self) {
        if onebuf_sys::fork::is_child() {
            return;
        }
        locked(&DOG.slots).retain(|slot| !Arc::ptr_eq(slot, &self.0));
    }
}

thread_local! {
    static SLOT: OnceCell<Own> = const { OnceCell::new() };
}

impl ThreadCalls {
    fn open() -> Own {
        let current = thread::current();
        let thread = match current.name() {
            Some(name) => name.to_owned(),
            None => format!("{:?}", current.id()),
        };
        let slot = Arc::new(ThreadCalls { thread, calls: Mutex::default() });
        locked(&DOG.slots).push(slot.clone());
        Own(slot)
    }

    fn enter(self: Arc<Self>, call: &'static str, post: &Arc<Post>) -> Leave {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        locked(&self.calls).push(Running { call, post: post.clone(), number });
        // Publishes the call before reading `sleeps`: the watchdog thread checks for calls once more after setting it.
        fence(Ordering::SeqCst);
        if DOG.sleeps.load(Ordering::Relaxed) {
            DOG.wake();
        }
        Leave(self)
    }
}

/// Removes the call when it has returned.
struct Leave(Arc<ThreadCalls>);

impl Drop for Leave {
    fn drop(&mut self) {
        locked(&self.0.calls).pop();
    }
}

/// The watchdog thread and the slots that it checks.
struct Dog {
    slots: Mutex<Vec<Arc<ThreadCalls>>>,
    sleeps: AtomicBool,
    awake: Mutex<bool>,
    woken: Condvar,
}

static DOG: Dog = Dog {
    slots: Mutex::new(Vec::new()),
    // Also true before the thread is started: `wake` starts it.
    sleeps: AtomicBool::new(true),
    awake: Mutex::new(false),
    woken: Condvar::new(),
};

impl Dog {
    #[cold]
    fn wake(&'static self) {
        #[cfg(all(test, not(onebuf_shuttle), not(miri)))]
        tests::WAKES.fetch_add(1, Ordering::Relaxed);
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let thread = thread::Builder::new().name("onebuf-watchdog".into());
            if let Err(why) = thread.spawn(|| self.run()) {
                tracing::warn!(%why, "driver calls that hang will go unnoticed: no thread to watch them");
            }
        });
        self.sleeps.store(false, Ordering::Relaxed);
        *locked(&self.awake) = true;
        self.woken.notify_one();
    }

    fn run(&self) {
        let (mut seen, mut before) = (HashMap::new(), 0);
        loop {
            // Read before the check: a call that begins during the check counts for the next one.
            let next = NEXT.load(Ordering::Relaxed);
            match look(&self.running(), &mut seen).or_else(|| linger(before, next)) {
                Some(pause) => thread::sleep(pause),
                None => self.sleep(),
            }
            before = next;
        }
    }

    /// Sleeps until a call begins.
    fn sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !self.running().is_empty() {
            self.sleeps.store(false, Ordering::Relaxed);
            return;
        }
        let mut awake = locked(&self.awake);
        while !std::mem::take(&mut *awake) {
            awake = self.woken.wait(awake).unwrap_or_else(PoisonError::into_inner);
        }
        // Also needed if the waking call cleared it before this thread set it.
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// The running calls, each with the name of its thread.
    fn running(&self) -> Vec<(String, Running)> {
        let slots = locked(&self.slots).clone();
        let of = |slot: &Arc<ThreadCalls>| {
            let calls = locked(&slot.calls).clone();
            calls.into_iter().map(|call| (slot.thread.clone(), call)).collect::<Vec<_>>()
        };
        slots.iter().flat_map(of).collect()
    }
}

/// Logs calls that have exceeded their limit. Returns when to check again; `None` if no call is running.
fn look(
    running: &[(String, Running)],
    seen: &mut HashMap<u64, (Instant, u32)>,
) -> Option<Duration> {
    let now = Instant::now();
    seen.retain(|number, _| running.iter().any(|(_, call)| call.number == *number));
    let mut next = LONGEST_LOOK;
    for (thread, Running { call, post, number }) in running {
        let (since, said) = seen.entry(*number).or_insert((now, 0));
        let (waited, limit) = (now - *since, post.limit());
        let due = limit.saturating_mul(1 << (*said).min(20));
        if waited >= due {
            *said += 1;
            let (api, device) = (post.api, post.id.get().unwrap_or(&post.name));
            let seconds = waited.as_secs_f64();
            tracing::warn!(
                api,
                call,
                device,
                thread,
                "{call} on {device} ({}) has not returned for {seconds:.1} s: the driver hangs or is still working; \
                 thread `{thread}` is blocked in it",
                post.name
            );
        }
        next = next.min(limit / 4);
    }
    (!running.is_empty()).then(|| next.max(SHORTEST_LOOK))
}

/// How long to stay awake while no call is running, given the next call's number at the last check and now. `None` if no call
/// has begun since.
fn linger(before: u64, now: u64) -> Option<Duration> {
    (before != now).then_some(LONGEST_LOOK)
}

/// Whether no other thread is inside a watched call.
pub fn others_are_out() -> bool {
    let own = SLOT.try_with(|slot| slot.get().map(|own| own.0.clone())).ok().flatten();
    let is_own = |slot: &Arc<ThreadCalls>| own.as_ref().is_some_and(|own| Arc::ptr_eq(slot, own));
    let slots = locked(&DOG.slots).clone();
    slots.iter().all(|slot| is_own(slot) || locked(&slot.calls).is_empty())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// How often a call has woken the watchdog thread.
    pub(super) static WAKES: AtomicU64 = AtomicU64::new(0);

    /// Waking costs a call several microseconds, so calls in quick succession must not wake the thread each time.
    #[test]
    fn calls_at_short_intervals_hardly_ever_wake_the_watchdog() {
        const CALLS: u32 = 10_000;
        let post = Post::new("fake", "a chip");
        let (start, before) = (Instant::now(), WAKES.load(Ordering::Relaxed));
        for _ in 0..CALLS {
            post.watch("short", || ());
            thread::sleep(Duration::from_micros(50));
        }
        let wakes = WAKES.load(Ordering::Relaxed) - before;
        // The thread cannot sleep more often than this, whatever other tests call meanwhile.
        let most = 2 + start.elapsed().as_millis() / LONGEST_LOOK.as_millis();
        assert!(u128::from(wakes) <= most, "{wakes} in {:?}, of {CALLS} calls", start.elapsed());
    }

    #[test]
    fn others_are_in_as_long_as_they_are() {
        let post = Post::new("fake", "a chip");
        assert_eq!(post.watch("mine", || 7), 7);
        let (go, gone) = mpsc::channel::<()>();
        let (there, came) = mpsc::channel();
        let other = thread::spawn(move || {
            post.watch("theirs", || {
                there.send(()).unwrap();
                gone.recv().unwrap();
            });
        });
        came.recv().unwrap();
        let calls = || DOG.running().iter().filter(|(_, call)| call.call == "theirs").count();
        assert_eq!((calls(), others_are_out()), (1, false));
        go.send(()).unwrap();
        other.join().unwrap();
        assert_eq!(calls(), 0);
    }

    #[test]
    fn it_stays_awake_as_long_as_calls_begin() {
        assert_eq!(linger(7, 9), Some(LONGEST_LOOK));
        assert_eq!(linger(9, 9), None);
    }

    #[test]
    fn a_call_is_told_of_again_at_growing_intervals() {
        let post = Post::new("fake", "a chip");
        post.assign("fake:0", Duration::from_millis(100));
        post.assign("fake:1", Duration::from_millis(40));
        assert_eq!(
            (post.id.get().unwrap().as_str(), post.limit()),
            ("fake:0", Duration::from_millis(40))
        );
        let running = [("main".to_owned(), Running { call: "hang", post, number: 1 })];
        let ago = |ms| Instant::now() - Duration::from_millis(ms);
        let mut seen = HashMap::from([(1, (ago(39), 0))]);
        assert_eq!(look(&running, &mut seen), Some(SHORTEST_LOOK));
        for (waited, said) in [(41, 1), (79, 1), (81, 2), (159, 2), (161, 3)] {
            seen.get_mut(&1).unwrap().0 = ago(waited);
            look(&running, &mut seen);
            assert!(seen[&1].1 >= said, "{waited} ms");
            seen.get_mut(&1).unwrap().1 = said;
        }
        assert_eq!((look(&[], &mut seen), seen.len()), (None, 0));
    }
}
