//! Reports driver calls that do not return.
//!
//! A call cannot be interrupted, so a driver that hangs blocks its thread. The watchdog logs a warning with the API,
//! the call, the device and the thread, after the hub's timeout, and again each time the duration has doubled.
//!
//! Only calls that may block are watched ([`Post::watch`]); launches are not. A watched call costs two uncontended
//! locks, less than 0.1 µs. The first such call starts the watching thread; a call that finds it asleep wakes it, which
//! costs 2 to 7 µs. So the thread does not sleep before `LONGEST_LOOK` has passed without a new call: a program that
//! calls drivers wakes it at most twice a second, and one that does not has a thread that sleeps forever. The price is
//! that a warning may be half a second late.

use std::{
    cell::OnceCell,
    collections::HashMap,
    // Drivers' threads are real ones, whatever schedules are being explored.
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

/// The limit of a call before a hub has set one.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at the calls that are under way.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The number that the next call gets.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A device whose driver is watched: its name, and the limit of its calls.
#[derive(Debug)]
pub struct Post {
    api: &'static str,
    name: String,
    /// The device's id in its hub, once it has one.
    id: OnceLock<String>,
    limit_ms: AtomicU64,
}

impl Post {
    /// A post for one device of that API.
    pub fn new(api: &'static str, name: impl Into<String>) -> Arc<Post> {
        let limit_ms = AtomicU64::new(DEFAULT_LIMIT.as_millis() as u64);
        Arc::new(Post { api, name: name.into(), id: OnceLock::new(), limit_ms })
    }

    /// Its id in a hub, and that hub's timeout.
    pub fn assign(&self, id: &str, timeout: Duration) {
        // A device is one hub's; the first name stays.
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

    /// Makes a driver's call that may block, and says so if it does not return in time.
    pub fn watch<T>(self: &Arc<Self>, call: &'static str, make: impl FnOnce() -> T) -> T {
        // Locks are as they were at the fork, and no thread looks.
        if onebuf_sys::fork::is_child() {
            return make();
        }
        // The slot of a thread that is ending is gone: nothing is watched then.
        let slot = SLOT.try_with(|slot| slot.get_or_init(Slot::open).0.clone()).ok();
        let _running = slot.map(|slot| slot.enter(call, self));
        make()
    }
}

/// A call that is under way.
#[derive(Clone)]
struct Running {
    call: &'static str,
    post: Arc<Post>,
    number: u64,
}

/// One thread's calls, the innermost last: a driver may call back.
struct Slot {
    thread: String,
    calls: Mutex<Vec<Running>>,
}

/// Takes the slot off the list when its thread ends.
struct Own(Arc<Slot>);

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

impl Slot {
    fn open() -> Own {
        let current = thread::current();
        let thread = match current.name() {
            Some(name) => name.to_owned(),
            None => format!("{:?}", current.id()),
        };
        let slot = Arc::new(Slot { thread, calls: Mutex::default() });
        locked(&DOG.slots).push(slot.clone());
        Own(slot)
    }

    fn enter(self: Arc<Self>, call: &'static str, post: &Arc<Post>) -> Leave {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        locked(&self.calls).push(Running { call, post: post.clone(), number });
        // Before the question whether the dog sleeps, as it looks once more before it does.
        fence(Ordering::SeqCst);
        if DOG.sleeps.load(Ordering::Relaxed) {
            DOG.wake();
        }
        Leave(self)
    }
}

/// Notes that the call has returned.
struct Leave(Arc<Slot>);

impl Drop for Leave {
    fn drop(&mut self) {
        locked(&self.0.calls).pop();
    }
}

/// The one thread that looks, and what it looks at.
struct Dog {
    slots: Mutex<Vec<Arc<Slot>>>,
    sleeps: AtomicBool,
    awake: Mutex<bool>,
    woken: Condvar,
}

static DOG: Dog = Dog {
    slots: Mutex::new(Vec::new()),
    // Not started yet is as good as asleep.
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
            // Before the look: a call that begins during it counts for the next.
            let next = NEXT.load(Ordering::Relaxed);
            match look(&self.running(), &mut seen).or_else(|| linger(before, next)) {
                Some(pause) => thread::sleep(pause),
                None => self.sleep(),
            }
            before = next;
        }
    }

    /// Until a call begins.
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
        // Also where the call that woke it had said so before it began to sleep.
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// What is under way, and on which thread.
    fn running(&self) -> Vec<(String, Running)> {
        let slots = locked(&self.slots).clone();
        let of = |slot: &Arc<Slot>| {
            let calls = locked(&slot.calls).clone();
            calls.into_iter().map(|call| (slot.thread.clone(), call)).collect::<Vec<_>>()
        };
        slots.iter().flat_map(of).collect()
    }
}

/// Warns of calls that are due, and says when to look again; none when nothing is under way.
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
                "{call} on {device} ({}) has not returned for {seconds:.1} s: the driver hangs, or works for so long; \
                 thread `{thread}` waits in it",
                post.name
            );
        }
        next = next.min(limit / 4);
    }
    (!running.is_empty()).then(|| next.max(SHORTEST_LOOK))
}

/// How long to stay awake though nothing is under way, by the next call's number at the last look and now; none when no call
/// has begun since.
fn linger(before: u64, now: u64) -> Option<Duration> {
    (before != now).then_some(LONGEST_LOOK)
}

/// Whether no other thread is inside a call that is watched.
pub fn others_are_out() -> bool {
    let own = SLOT.try_with(|slot| slot.get().map(|own| own.0.clone())).ok().flatten();
    let is_own = |slot: &Arc<Slot>| own.as_ref().is_some_and(|own| Arc::ptr_eq(slot, own));
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

    /// How often a call has woken the watching thread.
    pub(super) static WAKES: AtomicU64 = AtomicU64::new(0);

    /// Waking costs a call some microseconds, so calls that come one after the other do not.
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
        // It cannot sleep more often than this, whatever other tests call meanwhile.
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
