//! Reports driver calls that do not return.
//!
//! A call cannot be interrupted, so a driver that hangs blocks its thread. The watchdog logs a warning with the API, the call,
//! the device and the thread after the hub's timeout, and again each time the duration has doubled.
//!
//! Only calls that may block are watched ([`Post::watch`]); launches are not. A watched call costs one atomic exchange and
//! a few stores, without locks or allocation. The first such call starts the watchdog thread. A call that finds the thread
//! asleep wakes it, which costs 2 to 7 µs. So the thread does not sleep before `LONGEST_LOOK` has passed without a new call: a
//! program that calls drivers wakes it at most twice a second, and in a program that does not, the thread sleeps forever. As a
//! consequence, a warning may be half a second late.
//!
//! # Safety
//! Each thread writes its running calls into slots that the watchdog thread reads at the same time. The call's name is
//! stored as a pointer and a length. A slot's number changes before and after every change of them, and the watchdog only uses a
//! pair that was read between two equal numbers.

#![allow(unsafe_code)]

use std::{
    cell::{Cell, OnceCell},
    collections::HashMap,
    slice,
    str,
    // The standard library's, also under shuttle: drivers use real threads.
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
    time::{Duration, Instant},
};

/// The limit of a call until a hub sets one.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// Minimum and maximum time between two checks of the running calls.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// A driver may call back, and the callback may call a driver. Calls below this depth are not watched; the outer ones are.
const LEVELS: usize = 4;

/// A device whose driver calls are watched: its name, and the time limit of its calls.
#[derive(Debug)]
pub struct Post {
    api: &'static str,
    name: String,
    /// The device's id in its hub, once it has one.
    id: OnceLock<String>,
    limit_ms: AtomicU64,
    /// The key of [`Dog::posts`].
    number: u64,
}

impl Post {
    /// A watchdog record for one device of that API.
    pub fn new(api: &'static str, name: impl Into<String>) -> Arc<Post> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let limit_ms = AtomicU64::new(DEFAULT_LIMIT.as_millis() as u64);
        let (name, number) = (name.into(), NEXT.fetch_add(1, Ordering::Relaxed));
        let post = Arc::new(Post { api, name, id: OnceLock::new(), limit_ms, number });
        locked(&DOG.posts).get_or_insert_default().insert(number, Arc::downgrade(&post));
        post
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
    pub fn watch<T>(&self, call: &'static str, make: impl FnOnce() -> T) -> T {
        // In a forked child locks may be held forever, and the watchdog thread does not exist.
        if onebuf_sys::fork::is_child() {
            return make();
        }
        let mut make = Some(make);
        let watched = OWN.try_with(|own| {
            let _running = own.get_or_init(OwnCalls::open).enter(call, self);
            make.take().map(|make| make())
        });
        match (watched, make) {
            (Ok(Some(made)), _) => made,
            // The slots of a thread that is ending are destroyed; its calls are not watched.
            (_, Some(make)) => make(),
            (_, None) => unreachable!("the closure has returned"),
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if !onebuf_sys::fork::is_child() {
            locked(&DOG.posts).get_or_insert_default().remove(&self.number);
        }
    }
}

/// A call that has not returned.
#[derive(Clone)]
struct Running {
    call: &'static str,
    post: Arc<Post>,
    number: CallNumber,
}

/// Identifies a call: its thread, its depth, and the number in its slot.
type CallNumber = (u64, usize, u64);

/// A place for one running call. Only its own thread writes to it.
#[derive(Default)]
struct CallSlot {
    /// Odd while a call is running.
    number: AtomicU64,
    /// The name of the call.
    call: AtomicPtr<u8>,
    call_bytes: AtomicUsize,
    /// The number of the call's [`Post`].
    post: AtomicU64,
}

impl CallSlot {
    fn begin(&self, call: &'static str, post: &Post) {
        let number = self.number.load(Ordering::Relaxed);
        // A reader that sees one of the new values also sees that the last call has ended.
        fence(Ordering::Release);
        self.call.store(call.as_ptr().cast_mut(), Ordering::Relaxed);
        self.call_bytes.store(call.len(), Ordering::Relaxed);
        self.post.store(post.number, Ordering::Relaxed);
        // Publishes the call before `sleeps` is read: the watchdog thread checks for calls once more after setting it.
        self.number.store(number + 1, Ordering::SeqCst);
        if DOG.sleeps.load(Ordering::SeqCst) {
            DOG.wake();
        }
    }

    fn end(&self) {
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number + 1, Ordering::Release);
    }

    fn is_running(&self) -> bool {
        !self.number.load(Ordering::SeqCst).is_multiple_of(2)
    }

    /// The running call: its number, its name, and the number of its post. `None` also if it ended meanwhile.
    fn read(&self) -> Option<(u64, &'static str, u64)> {
        let number = self.number.load(Ordering::SeqCst);
        let (call, bytes) =
            (self.call.load(Ordering::Relaxed), self.call_bytes.load(Ordering::Relaxed));
        let post = self.post.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if number.is_multiple_of(2) || self.number.load(Ordering::Relaxed) != number {
            return None;
        }
        // SAFETY: the number is odd and has not changed, so `begin` stored both values from one static string.
        let call = unsafe { str::from_utf8_unchecked(slice::from_raw_parts(call, bytes)) };
        Some((number, call, post))
    }
}

/// One thread's running calls, the innermost last.
struct ThreadCalls {
    number: u64,
    thread: String,
    slots: [CallSlot; LEVELS],
}

/// The calls of this thread. Removed from the list when the thread ends.
struct OwnCalls {
    calls: Arc<ThreadCalls>,
    /// How many calls are running.
    depth: Cell<usize>,
}

impl Drop for OwnCalls {
    fn drop(&mut self) {
        if onebuf_sys::fork::is_child() {
            return;
        }
        locked(&DOG.threads).retain(|thread| !Arc::ptr_eq(thread, &self.calls));
    }
}

thread_local! {
    static OWN: OnceCell<OwnCalls> = const { OnceCell::new() };
}

impl OwnCalls {
    fn open() -> OwnCalls {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (current, number) = (thread::current(), NEXT.fetch_add(1, Ordering::Relaxed));
        let thread = match current.name() {
            Some(name) => name.to_owned(),
            None => format!("{:?}", current.id()),
        };
        let calls = Arc::new(ThreadCalls { number, thread, slots: Default::default() });
        locked(&DOG.threads).push(calls.clone());
        OwnCalls { calls, depth: Cell::new(0) }
    }

    fn enter(&self, call: &'static str, post: &Post) -> Leave<'_> {
        let depth = self.depth.replace(self.depth.get() + 1);
        if let Some(slot) = self.calls.slots.get(depth) {
            slot.begin(call, post);
        }
        Leave(self)
    }
}

/// Removes the call when it has returned.
struct Leave<'a>(&'a OwnCalls);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let depth = self.0.depth.get() - 1;
        self.0.depth.set(depth);
        if let Some(slot) = self.0.calls.slots.get(depth) {
            slot.end();
        }
    }
}

/// The watchdog thread, and the threads and devices that it watches.
struct Dog {
    threads: Mutex<Vec<Arc<ThreadCalls>>>,
    posts: Mutex<Option<HashMap<u64, Weak<Post>>>>,
    sleeps: AtomicBool,
    awake: Mutex<bool>,
    woken: Condvar,
}

static DOG: Dog = Dog {
    threads: Mutex::new(Vec::new()),
    posts: Mutex::new(None),
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
            let now = self.calls();
            match look(&self.running(), &mut seen).or_else(|| linger(before, now)) {
                Some(pause) => thread::sleep(pause),
                None => self.sleep(),
            }
            before = now;
        }
    }

    /// A number that changes when a call begins, and when a thread comes or goes.
    fn calls(&self) -> u64 {
        let of = |thread: &Arc<ThreadCalls>| {
            thread.slots[0].number.load(Ordering::Relaxed).wrapping_add(thread.number)
        };
        locked(&self.threads).iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Sleeps until a call begins.
    fn sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
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
        let (threads, mut running) = (locked(&self.threads).clone(), Vec::new());
        for thread in threads {
            for (depth, slot) in thread.slots.iter().enumerate() {
                let Some((number, call, post)) = slot.read() else { continue };
                let posts = locked(&self.posts);
                let post = posts.as_ref().and_then(|posts| posts.get(&post)?.upgrade());
                drop(posts);
                let number = (thread.number, depth, number);
                running.extend(
                    post.map(|post| (thread.thread.clone(), Running { call, post, number })),
                );
            }
        }
        running
    }
}

/// Logs calls that have exceeded their limit. Returns when to check again; `None` if no call is running.
fn look(
    running: &[(String, Running)],
    seen: &mut HashMap<CallNumber, (Instant, u32)>,
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

/// How long to stay awake while no call is running, given [`Dog::calls`] at the last check and now. `None` if no call has begun
/// since.
fn linger(before: u64, now: u64) -> Option<Duration> {
    (before != now).then_some(LONGEST_LOOK)
}

/// Whether no other thread is inside a watched call.
pub fn others_are_out() -> bool {
    let own = OWN.try_with(|own| own.get().map(|own| own.calls.number)).ok().flatten();
    let threads = locked(&DOG.threads).clone();
    threads.iter().all(|thread| Some(thread.number) == own || !thread.slots[0].is_running())
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

    const FIRST: CallNumber = (0, 0, 1);

    #[test]
    fn nested_calls_are_seen_and_all_of_them_end() {
        let post = Post::new("fake", "a nest");
        let mine = || {
            let own = OWN.with(|own| own.get().unwrap().calls.number);
            let running = DOG.running().into_iter().filter(|(_, call)| call.number.0 == own);
            running.map(|(_, call)| call.call).collect::<Vec<_>>()
        };
        fn nest(post: &Arc<Post>, depth: usize, inside: &dyn Fn()) {
            match depth {
                0 => inside(),
                _ => post
                    .watch(["d", "c", "b", "a"][(depth - 1) % 4], || nest(post, depth - 1, inside)),
            }
        }
        for (depth, seen) in [(1, vec!["d"]), (2, vec!["c", "d"]), (6, vec!["c", "d", "a", "b"])] {
            nest(&post, depth, &|| assert_eq!(mine(), seen, "{depth}"));
            assert_eq!(mine(), [""; 0]);
        }
        let caught = std::panic::catch_unwind(|| post.watch("panics", || panic!("a test")));
        assert!(caught.is_err() && mine().is_empty());
    }

    /// Readers must never see a name that is mixed from two calls: it would be an invalid string.
    #[test]
    fn names_are_whole_while_calls_begin_and_end() {
        const NAMES: [&str; 3] = ["a", "a longer one", "the longest name of the three"];
        let (post, other) = (Post::new("fake", "a chip"), Post::new("fake", "another chip"));
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for name in NAMES.iter().cycle() {
                    let post = if name.len() == 1 { &other } else { &post };
                    post.watch(name, || std::hint::black_box(()));
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while seen.load(Ordering::Relaxed) < 2_000 {
                for (_, call) in DOG.running() {
                    let ours = Arc::ptr_eq(&call.post, &post) || Arc::ptr_eq(&call.post, &other);
                    if ours {
                        assert!(NAMES.contains(&call.call));
                        assert_eq!(call.call.len() == 1, Arc::ptr_eq(&call.post, &other));
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
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
        let running = [("main".to_owned(), Running { call: "hang", post, number: FIRST })];
        let ago = |ms| Instant::now() - Duration::from_millis(ms);
        let mut seen = HashMap::from([(FIRST, (ago(39), 0))]);
        assert_eq!(look(&running, &mut seen), Some(SHORTEST_LOOK));
        for (waited, said) in [(41, 1), (79, 1), (81, 2), (159, 2), (161, 3)] {
            seen.get_mut(&FIRST).unwrap().0 = ago(waited);
            look(&running, &mut seen);
            assert!(seen[&FIRST].1 >= said, "{waited} ms");
            seen.get_mut(&FIRST).unwrap().1 = said;
        }
        assert_eq!((look(&[], &mut seen), seen.len()), (None, 0));
    }
}
