//! Frees objects after the work that uses them, without waiting for it.
//!
//! The drivers' own frees wait for the device, some of them forever. So an object whose users are busy is stored with
//! an event for each of them, and a later call that allocates, imports or waits frees it once those events are reached.

use super::{device::Context, layered::Below, queue::RawQueue};
use onebuf_hal::locks::{Arc, Mutex, Ordering, lock, thread};
use onebuf_sys::{
    Flavor, Refused,
    cuda_like::{CuEvent, CuStatus, consts},
};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// How long a free may block where it cannot be deferred.
pub(super) const FREE_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(200);

/// Frees an object. The context is current during the call.
type FreeFn = Box<dyn FnOnce(&Context) + Send>;

struct DeferredFree {
    /// Events that must be reached first; each is destroyed with the object.
    events: Vec<CuEvent>,
    free: FreeFn,
}

/// Objects that wait to be freed.
#[derive(Default)]
pub(super) struct DeferredFrees(Mutex<Vec<DeferredFree>>);

impl DeferredFrees {
    fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

impl fmt::Debug for DeferredFrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeferredFrees({})", self.count())
    }
}

/// Whether the status of a query means that the work has ended, with or without an error.
fn is_over(answer: Result<(), Refused>) -> bool {
    answer.is_ok() || answer.is_err_and(|refused| refused.status.is_fatal())
}

impl Context {
    /// Frees an object after all work enqueued in the queues so far; immediately if that work has ended.
    pub fn free_later(
        &self,
        users: &[Arc<RawQueue>],
        free: impl FnOnce(&Context) + Send + 'static,
    ) {
        let Some(_current) = self.enter_to_free() else {
            std::mem::forget(free);
            return;
        };
        match self.unreached(users) {
            Some(events) if events.is_empty() && !self.is_held() => free(self),
            Some(events) => {
                let free: FreeFn = Box::new(free);
                lock(&self.deferred_frees.0).push(DeferredFree { events, free });
            }
            // No event reports when the work ends: leak the object rather than free it in use.
            None => {
                tracing::error!(device = %self.driver.info.name, "leaked: its work does not end");
                std::mem::forget(free);
            }
        }
        self.sweep_current();
    }

    /// Frees every object whose work has ended.
    pub fn sweep(&self) {
        self.callback_streams.sweep();
        if !lock(&self.deferred_frees.0).is_empty()
            && let Some(_current) = self.enter_to_free()
        {
            self.sweep_current();
        }
    }

    fn sweep_current(&self) {
        if self.is_held() {
            return;
        }
        let deferred = std::mem::take(&mut *lock(&self.deferred_frees.0));
        let reached = |event: &CuEvent| {
            // SAFETY: a live event.
            is_over(unsafe { self.table().query_event(*event) })
        };
        for deferred_free in deferred {
            if deferred_free.events.iter().all(reached) {
                deferred_free.events.into_iter().for_each(|event| self.destroy_event(event));
                (deferred_free.free)(self);
            } else {
                lock(&self.deferred_frees.0).push(deferred_free);
            }
        }
    }

    /// Records that a queue waits for work of another API.
    pub fn waits_outside(&self, queue: &Arc<RawQueue>) {
        let mut outside = lock(&self.outside);
        outside.retain(|known| known.strong_count() > 0);
        if !outside.iter().any(|known| known.as_ptr() == Arc::as_ptr(queue)) {
            outside.push(Arc::downgrade(queue));
        }
    }

    /// Whether a free could block forever: the drivers' frees wait for the whole device, and a stream may be waiting
    /// for work that only this thread will do. The context is current.
    fn is_held(&self) -> bool {
        let outside: Vec<_> =
            lock(&self.outside).iter().filter_map(std::sync::Weak::upgrade).collect();
        outside.iter().any(|queue| self.waits(queue))
    }

    /// Whether a queue waits for work of another API, or may do so.
    fn waits(&self, queue: &RawQueue) -> bool {
        let flagged = queue.waits_outside.load(Ordering::Acquire);
        let busy = || !is_over(queue.query());
        queue.below.as_ref().is_some_and(Below::is_waiting) || flagged && busy()
    }

    /// Frees all objects when the context ends. Returns whether it succeeded within `FREE_WAIT`.
    pub fn run_deferred_frees(&self) -> bool {
        wait_until(|| {
            self.sweep();
            self.deferred_frees.count() == 0
        })
    }

    /// Repeats a call that lacked memory after each deferred free, until it no longer lacks memory, all objects are free, or
    /// `FREE_WAIT` is over: an object whose work does not end must not keep the others' memory. `None` if nothing was freed.
    pub fn free_until<T>(
        &self,
        allocate: impl Fn() -> Result<T, Refused>,
    ) -> Option<Result<T, Refused>> {
        let lacks = |made: &Result<T, Refused>| {
            made.as_ref().is_err_and(|refused| refused.status == CuStatus::OUT_OF_MEMORY)
        };
        let (start, mut made) = (Instant::now(), None);
        loop {
            let waiting = self.deferred_frees.count();
            self.sweep();
            let left = self.deferred_frees.count();
            if left < waiting {
                made = Some(allocate());
            }
            let over = left == 0 || start.elapsed() > FREE_WAIT;
            if over || made.as_ref().is_some_and(|made| !lacks(made)) {
                return made;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits up to `FREE_WAIT` until the queue no longer waits for work of another API; returns whether it does. The
    /// context is current.
    pub fn outwaits(&self, queue: &RawQueue) -> bool {
        wait_until(|| !self.waits(queue))
    }

    /// Waits up to `FREE_WAIT` until the queue has no unfinished work; returns whether it has none. The context is current.
    pub fn outlasts(&self, queue: &RawQueue) -> bool {
        wait_until(|| is_over(queue.query()))
    }

    /// Keeps an event without timing for the next use, or destroys it. The context is current.
    pub fn recycle_event(&self, event: CuEvent) {
        // A wait that was enqueued for it is not changed by another record.
        let kept = self.driver.flavor() == Flavor::Cuda && self.spare_events.give(event);
        if !kept {
            self.destroy_event(event);
        }
    }

    /// Destroys an event. The context is current.
    pub fn destroy_event(&self, event: CuEvent) {
        // SAFETY: live, and destroyed once by its owner.
        self.driver.note(unsafe { self.table().destroy_event(event) });
    }

    /// Records an event in each busy queue. Returns `None` if a queue refuses the event and its work does not end.
    fn unreached(&self, users: &[Arc<RawQueue>]) -> Option<Vec<CuEvent>> {
        let mut events = Vec::new();
        for user in users {
            if is_over(user.query()) {
                continue;
            }
            match self.plain_event(user) {
                Ok(event) => events.push(event),
                Err(_) if wait_until(|| is_over(user.query())) => {}
                Err(_) => {
                    events.into_iter().for_each(|event| self.destroy_event(event));
                    return None;
                }
            }
        }
        Some(events)
    }

    /// Records an event behind another event that any stream has recorded. The context is current.
    pub fn record_behind(&self, before: CuEvent, event: CuEvent) -> Result<(), Refused> {
        let table = self.table();
        // SAFETY: live events, and a live stream of the current context. The driver destroys the stream after its work.
        unsafe {
            let stream = table.create_stream(consts::STREAM_NON_BLOCKING)?;
            let waits = table.stream_wait_event(stream, before, 0);
            let recorded = waits.and_then(|()| table.record_event(event, stream));
            self.driver.note(table.destroy_stream(stream));
            recorded
        }
    }

    /// Records an event without timing after all work so far. The context is current.
    pub fn plain_event(&self, queue: &RawQueue) -> Result<CuEvent, Refused> {
        self.event(queue, consts::EVENT_DISABLE_TIMING)
    }

    /// Records an event with these flags after all work so far. The context is current.
    pub fn event(&self, queue: &RawQueue, flags: u32) -> Result<CuEvent, Refused> {
        let spare = match flags {
            consts::EVENT_DISABLE_TIMING => self.spare_events.get(),
            _ => None,
        };
        let event = match spare {
            Some(event) => event,
            // SAFETY: the context is current.
            None => unsafe { self.table().create_event(flags)? },
        };
        queue.record(event).inspect_err(|_| self.destroy_event(event))?;
        Ok(event)
    }
}

/// Events without timing that are not in use. Creating and destroying one takes longer than recording it, and with driver 580.159 the memory of
/// the device grew while events were created and destroyed for hand-overs between busy streams.
#[derive(Debug, Default)]
pub(super) struct SpareEvents(Mutex<Vec<CuEvent>>);

/// The most events that are kept.
const SPARE_EVENTS: usize = 1024;

impl SpareEvents {
    fn get(&self) -> Option<CuEvent> {
        lock(&self.0).pop()
    }

    /// Keeps an event; returns false if there are enough.
    fn give(&self, event: CuEvent) -> bool {
        let mut spare = lock(&self.0);
        let has_room = spare.len() < SPARE_EVENTS;
        if has_room {
            spare.push(event);
        }
        has_room
    }

    /// Returns all of them, to be destroyed.
    pub fn take(&self) -> Vec<CuEvent> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Polls until the condition is true; returns false after `FREE_WAIT`.
fn wait_until(is_true: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_true() {
        if start.elapsed() > FREE_WAIT {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Whether the status only means that work is still running.
pub(super) fn is_pending(refused: &Refused) -> bool {
    refused.status == CuStatus::NOT_READY
}
