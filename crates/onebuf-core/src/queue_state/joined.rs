//! Work of other queues that a queue waits for on the device: by semaphores, by wait values, or by events in a shared context.
//! None of these report how the work ended, and if it fails, the wait may never end. So the work is remembered until the queue
//! is past the wait.
//!
//! No driver is called under a lock: it would block a hand-over on another thread.

use super::{QueuePoint, QueueState, watch::Watch};
use onebuf_hal::{
    self as hal, Result,
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
};
use std::{
    collections::VecDeque,
    sync::{OnceLock, Weak},
};

/// Number of entries from which on completed ones are removed.
pub(super) const MOST: usize = 32;

/// Number of sending queues of which the last signal is remembered.
const SIGNALS: usize = 8;

/// The work that one queue waits for.
#[derive(Debug, Default)]
pub(super) struct Joined {
    /// The waits, oldest first.
    senders: Mutex<VecDeque<Arc<Sender>>>,
    /// Number of waits that are being enqueued and not in `senders` yet.
    coming: AtomicU64,
    /// Sending queues by number, and how many pieces of their work this queue is ordered after.
    behind: Mutex<VecDeque<(usize, u64)>>,
    /// The state of checks by callers that poll instead of waiting.
    pub asked: Mutex<Option<Watch>>,
}

/// One wait for another queue's work.
#[derive(Debug)]
struct Sender {
    /// The native queue. The queue state itself is held weakly: two queue states that wait for each other would keep each other
    /// alive forever.
    hal: Arc<dyn hal::Queue>,
    queue_state: Weak<QueueState>,
    /// The number of pieces of the sender's work up to what is waited for, including the signal if there is one.
    at: u64,
    /// The point of the waiting queue at which it first waits for the sender.
    since: u64,
    /// The wait is over once the waiting queue has reached this point.
    until: u64,
    /// The event that reports how the work ended. `None` if the end of the wait implies success: a signal does not come if the
    /// work before it failed.
    event: Option<Arc<dyn hal::Event>>,
    /// The event that is queried during the wait. For a signal it is created only after a caller has waited for a while.
    watch: OnceLock<Arc<dyn hal::Event>>,
}

impl Joined {
    /// Whether the queue is not known to wait for other work.
    pub fn is_empty(&self) -> bool {
        self.coming.load(Ordering::Acquire) == 0 && lock(&self.senders).is_empty()
    }

    /// Enqueues a wait and records it. A thread that waits for this queue meanwhile already watches other queues.
    pub fn expect<T>(&self, enqueue: impl FnOnce() -> T) -> T {
        self.coming.fetch_add(1, Ordering::AcqRel);
        let enqueued = enqueue();
        self.coming.fetch_sub(1, Ordering::AcqRel);
        enqueued
    }

    /// Whether the queue waits, or has waited, for a signal behind that work.
    pub fn is_behind(&self, work: &QueuePoint) -> bool {
        let covers = |(queue_state, covered): &(usize, u64)| {
            *queue_state == work.queue_state.number && *covered >= work.at
        };
        work.own.is_none() && lock(&self.behind).iter().any(covers)
    }

    /// Records that the queue is ordered after this many pieces of another queue's work. The most recent queues are remembered.
    pub fn put_behind(&self, queue_state: usize, covered: u64) {
        let mut behind = lock(&self.behind);
        let known = behind.iter().position(|(known, _)| *known == queue_state);
        let before = known.and_then(|at| behind.remove(at)).map_or(0, |(_, before)| before);
        behind.push_front((queue_state, covered.max(before)));
        behind.truncate(SIGNALS);
    }

    /// Records work whose event reports how it ended.
    pub fn note(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>, until: u64) {
        let event = Some(event.clone());
        self.push(Sender { event, ..Sender::of(&work.queue_state, work.at, until) });
    }

    /// Records work whose failure also fails this queue, but that may never end.
    pub fn note_watched(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>, until: u64) {
        let watch = OnceLock::from(event.clone());
        self.push(Sender { watch, ..Sender::of(&work.queue_state, work.at, until) });
    }

    /// Records a signal or wait value of a queue, enqueued as its work up to `at`. It replaces an earlier entry of that queue
    /// that was not queried yet. There are never more entries than semaphores in use: see [`Joined::pass`].
    pub fn note_signal(&self, queue_state: &Arc<QueueState>, at: u64, until: u64) {
        let mut new = Sender::of(queue_state, at, until);
        let mut all = lock(&self.senders);
        let Some(old) = all.iter_mut().find(|old| new.replaces(old)) else {
            return all.push_back(Arc::new(new));
        };
        new.since = old.since;
        match Arc::get_mut(old) {
            Some(place) => *place = new,
            None => *old = Arc::new(new),
        }
    }

    fn push(&self, sender: Sender) {
        let mut all = lock(&self.senders);
        all.push_back(Arc::new(sender));
        let many = all.len().saturating_sub(MOST);
        drop(all);
        if many > 0 {
            self.thin_out(many);
        }
    }

    /// Removes at most `many` entries that are over, for a queue that is never waited for. The oldest is queried first, because
    /// the others are unlikely to be done before it. One of the failed entries stays, for the next caller that waits.
    fn thin_out(&self, many: usize) {
        let (mut gone, mut failed) = (0, false);
        for sender in self.all() {
            let goes = match sender.ask() {
                Ok(false) => return,
                Ok(true) => true,
                Err(_) => sender.is_over() && std::mem::replace(&mut failed, true),
            };
            gone += usize::from(goes && self.remove(&sender));
            if gone >= many {
                return;
            }
        }
    }

    /// Returns an error if work has failed that the queue waits for up to its point `upto`, directly or through other queues.
    /// The failure stays recorded, because the queue may never continue. `seen` contains queues already checked, by number, and
    /// up to which point.
    pub fn check(&self, upto: u64, seen: &mut Vec<(usize, u64)>) -> Result<()> {
        let mut all = self.all().into_iter().filter(|sender| sender.since <= upto);
        all.try_for_each(|sender| sender.check(seen))
    }

    /// Removes the waits that are over because the queue has reached this point.
    pub fn pass(&self, reached: u64) {
        let is_over = |sender: &Arc<Sender>| sender.event.is_none() && sender.until <= reached;
        let mut all = lock(&self.senders);
        let over: Vec<_> = all.iter().filter(|sender| is_over(sender)).cloned().collect();
        all.retain(|sender| !is_over(sender));
        drop(all);
        // Without the lock: they may hold the last reference to a native queue.
        drop(over);
    }

    /// Like [`Joined::pass`], and returns a failure of completed work. The remaining work, and work after a failure, is queried
    /// by the next call.
    pub fn tell(&self, reached: u64) -> Result<()> {
        self.pass(reached);
        if let Ok(mut asked) = self.asked.try_lock() {
            *asked = None;
        }
        let mut all = self.all().into_iter().filter(|sender| sender.event.is_some());
        all.try_for_each(|sender| match sender.ask() {
            Ok(false) => Ok(()),
            Err(why) if !sender.is_over() => Err(why),
            // The thread that removes the entry reports it.
            ended => {
                if self.remove(&sender) {
                    ended.map(drop)
                } else {
                    Ok(())
                }
            }
        })
    }

    fn all(&self) -> Vec<Arc<Sender>> {
        lock(&self.senders).iter().cloned().collect()
    }

    /// Removes an entry. Returns whether it was still present.
    fn remove(&self, sender: &Arc<Sender>) -> bool {
        let mut all = lock(&self.senders);
        let at = all.iter().position(|known| Arc::ptr_eq(known, sender));
        at.and_then(|at| all.remove(at)).is_some()
    }

    #[cfg(all(test, not(onebuf_shuttle)))]
    pub fn count(&self) -> usize {
        lock(&self.senders).len()
    }
}

impl Sender {
    fn of(queue_state: &Arc<QueueState>, at: u64, until: u64) -> Sender {
        let (hal, queue_state) = (queue_state.hal.clone(), Arc::downgrade(queue_state));
        Sender { hal, queue_state, at, since: until, until, event: None, watch: OnceLock::new() }
    }

    fn replaces(&self, old: &Sender) -> bool {
        let unasked = old.event.is_none() && old.watch.get().is_none();
        unasked && Weak::ptr_eq(&self.queue_state, &old.queue_state) && self.at >= old.at
    }

    /// Whether the work has completed.
    fn ask(&self) -> Result<bool> {
        if let Some(event) = self.event.as_ref().or(self.watch.get()) {
            return event.poll();
        }
        if self.queue_state.upgrade().is_some_and(|queue_state| queue_state.has_reached(self.at)) {
            return Ok(true);
        }
        let made = self.hal.watch()?;
        self.watch.get_or_init(|| made).poll()
    }

    /// Whether the work is known to have ended, successfully or not.
    fn is_over(&self) -> bool {
        self.event.as_ref().or(self.watch.get()).is_some_and(|event| event.is_over())
    }

    /// Returns an error if it has failed, or if work that it waits for has failed.
    fn check(&self, seen: &mut Vec<(usize, u64)>) -> Result<()> {
        if self.ask()? {
            return Ok(());
        }
        let Some(queue_state) = self.queue_state.upgrade() else { return Ok(()) };
        if seen.iter().any(|(number, upto)| *number == queue_state.number && *upto >= self.at) {
            return Ok(());
        }
        seen.push((queue_state.number, self.at));
        queue_state.joined.check(self.at, seen)
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests;
