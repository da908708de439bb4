//! Waits that periodically check the work of other queues on which they depend.

use super::{QueuePoint, QueueState};
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Ordering},
};
use std::{
    mem,
    time::{Duration, Instant},
};

/// How long a wait lasts before it checks the work of other queues.
pub(super) const WATCH: Duration = Duration::from_millis(100);

/// When that was checked last, and whether something had failed by then.
#[derive(Debug)]
pub(super) struct Watch {
    asked: Instant,
    pub heard: bool,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { asked: Instant::now(), heard: false }
    }

    /// Checks if enough time has passed. The answer may concern later work, which does not block this queue. So an error is
    /// returned only if it is still there at the next check, when the queue has had as long again to get past the wait.
    pub fn look(&mut self, queue_state: &QueueState) -> Result<()> {
        if self.asked.elapsed() < WATCH {
            return Ok(());
        }
        let answer = queue_state.joined.check(u64::MAX, &mut vec![(queue_state.number, u64::MAX)]);
        self.asked = Instant::now();
        match mem::replace(&mut self.heard, answer.is_err()) {
            true => answer,
            false => Ok(()),
        }
    }
}

impl QueueState {
    /// Records work that this queue waits for and whose outcome only its event reports.
    pub fn note_joined(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>) {
        self.joined.note(work, event, self.next());
        self.has_untold.store(true, Ordering::Release);
    }

    /// Records work that this queue waits for by a method that reports its outcome. It may never end if it waits for other
    /// queues itself.
    pub fn watch_with(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>) {
        if work.queue_state.waits_for_others() {
            self.joined.note_watched(work, event, self.next());
            self.has_untold.store(true, Ordering::Release);
        }
    }

    /// Records a signal or a wait value of another queue's work, which this queue waits for.
    pub fn note_signal(&self, sender: &Arc<QueueState>, sent: u64, until: u64) {
        self.joined.note_signal(sender, sent, until);
        self.has_untold.store(true, Ordering::Release);
    }

    /// The point that this queue reaches once everything enqueued by now is done.
    pub fn next(&self) -> u64 {
        self.noted.load(Ordering::Acquire) + 1
    }

    /// The number of pieces of work noted so far.
    pub fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether it waits, or has waited, for a signal behind that work.
    pub fn is_behind(&self, work: &QueuePoint) -> bool {
        self.joined.is_behind(work)
    }

    /// Records that it is ordered after this many pieces of another queue's work.
    pub fn put_behind(&self, sender: usize, covered: u64) {
        self.joined.put_behind(sender, covered);
    }

    /// Enqueues a wait and records it. A thread that waits for this queue meanwhile already watches other queues.
    pub fn expect<T>(&self, enqueue: impl FnOnce() -> T) -> T {
        self.joined.expect(enqueue)
    }

    /// Records that the queue has reached this point, without reporting how its work ended.
    pub fn pass(&self, reached: u64) {
        self.joined.pass(reached);
    }

    /// Whether this queue is known to wait on the device for work of other queues.
    pub fn waits_for_others(&self) -> bool {
        !self.joined.is_empty()
    }

    /// Blocks the calling thread until an event of this queue completes. A queue that waits for a signal or a wait value would
    /// wait forever if the sender has failed, so the senders are checked meanwhile.
    pub fn wait_watching(&self, event: &dyn hal::Event, timeout: Duration) -> Result<()> {
        if !self.waits_for_others() {
            return event.wait(timeout);
        }
        let (start, mut watch) = (Instant::now(), Watch::new());
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match event.wait(left.min(WATCH)) {
                Err(Error::Timeout { .. }) if left > WATCH => watch.look(self)?,
                Err(Error::Timeout { what, .. }) => return Err(Error::timeout(what, timeout)),
                outcome => return outcome,
            }
        }
    }

    /// The check of [`Self::wait_watching`] for a caller that polls, after a poll that found the work incomplete.
    pub fn look_around(&self) -> Result<()> {
        if !self.waits_for_others() {
            return Ok(());
        }
        // If another thread is checking now, its check serves both.
        let Ok(mut asked) = self.joined.asked.try_lock() else { return Ok(()) };
        asked.get_or_insert_with(Watch::new).look(self)
    }
}
