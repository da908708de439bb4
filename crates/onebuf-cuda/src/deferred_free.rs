//! Frees objects after the work that uses them, without waiting for it.
//!
//! The drivers' own frees wait for the device, some of them forever. So an object whose users are busy is stored with
//! an event for each of them, and a later call frees it once those events are reached.

use super::{device::Context, layered::Below, queue::RawQueue};
use onebuf_hal::locks::{Arc, Mutex, Ordering, lock, thread};
use onebuf_sys::{
    Refused,
    cuda_like::{CuEvent, CuStatus, consts},
};
use std::{
    fmt,
    time::{Duration, Instant},
};

/// How long freeing may wait where nothing else is possible.
const FREE_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(200);

/// What frees a thing. The context is current then.
type FreeFn = Box<dyn FnOnce(&Context) + Send>;

struct DeferredFree {
    /// What must be reached first; each destroyed with the thing.
    events: Vec<CuEvent>,
    free: FreeFn,
}

/// Things that will be freed.
#[derive(Default)]
pub(super) struct DeferredFrees(Mutex<Vec<DeferredFree>>);

impl fmt::Debug for DeferredFrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeferredFrees({})", lock(&self.0).len())
    }
}

/// Whether a question about work was answered with its end, well or not.
fn is_over(answer: Result<(), Refused>) -> bool {
    answer.is_ok() || answer.is_err_and(|refused| refused.status.is_fatal())
}

impl Context {
    /// Frees a thing once everything that the queues were given has run; now, where it has.
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
            // Nothing will tell when it may go: better lost than freed under work.
            None => {
                tracing::error!(device = %self.driver.info.name, "leaked: its work does not end");
                std::mem::forget(free);
            }
        }
        self.sweep_current();
    }

    /// Frees what can be freed by now.
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

    /// Notes that a queue waits for what another API does.
    pub fn waits_outside(&self, queue: &Arc<RawQueue>) {
        let mut outside = lock(&self.outside);
        outside.retain(|known| known.strong_count() > 0);
        if !outside.iter().any(|known| known.as_ptr() == Arc::as_ptr(queue)) {
            outside.push(Arc::downgrade(queue));
        }
    }

    /// Whether a free could wait without an end: the drivers' own wait for the whole device, and a stream may be waiting
    /// for what only this thread will do. The context is current.
    fn is_held(&self) -> bool {
        let outside: Vec<_> =
            lock(&self.outside).iter().filter_map(std::sync::Weak::upgrade).collect();
        outside.iter().any(|queue| self.waits(queue))
    }

    /// Whether a queue waits for what another API does, or may do so for all that is known.
    fn waits(&self, queue: &RawQueue) -> bool {
        let flagged = queue.waits_outside.load(Ordering::Acquire);
        // SAFETY: a live stream.
        let busy = || !is_over(unsafe { self.table().stream_query(queue.raw) });
        queue.below.as_ref().is_some_and(Below::is_waiting) || flagged && busy()
    }

    /// At the end: frees everything, or says that it cannot.
    pub fn run_deferred_frees(&self) -> bool {
        let start = Instant::now();
        loop {
            self.sweep();
            if lock(&self.deferred_frees.0).is_empty() {
                return true;
            }
            if start.elapsed() > FREE_WAIT {
                return false;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Whether the queue's work has ended, well or not, before a while. The context is current.
    pub fn outwaits(&self, queue: &RawQueue) -> bool {
        wait_until(|| !self.waits(queue))
    }

    /// The context is current.
    pub fn destroy_event(&self, event: CuEvent) {
        // SAFETY: live, and destroyed once by whoever owned it.
        self.driver.note(unsafe { self.table().destroy_event(event) });
    }

    /// An event in each queue that is not done; none where that cannot be told.
    fn unreached(&self, users: &[Arc<RawQueue>]) -> Option<Vec<CuEvent>> {
        let mut events = Vec::new();
        for user in users {
            // SAFETY: a live stream.
            let query = || unsafe { self.table().stream_query(user.raw) };
            if is_over(query()) {
                continue;
            }
            match self.plain_event(user) {
                Ok(event) => events.push(event),
                Err(_) if wait_until(|| is_over(query())) => {}
                Err(_) => {
                    events.into_iter().for_each(|event| self.destroy_event(event));
                    return None;
                }
            }
        }
        Some(events)
    }

    /// An event behind everything so far. The context is current.
    pub fn plain_event(&self, queue: &RawQueue) -> Result<CuEvent, Refused> {
        self.event(queue, consts::EVENT_DISABLE_TIMING)
    }

    /// The same with flags of the caller's.
    pub fn event(&self, queue: &RawQueue, flags: u32) -> Result<CuEvent, Refused> {
        // SAFETY: a live stream of this context, which is current.
        unsafe {
            let event = self.table().create_event(flags)?;
            let recorded = self.table().record_event(event, queue.raw);
            recorded.inspect_err(|_| self.destroy_event(event))?;
            Ok(event)
        }
    }
}

/// Whether it came true in time.
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

/// Whether a refusal only says that work is under way.
pub(super) fn is_pending(refused: &Refused) -> bool {
    refused.status == CuStatus::NOT_READY
}
