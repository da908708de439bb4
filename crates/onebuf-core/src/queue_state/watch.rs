//! Waits that ask, now and then, after the work of others that they depend on.

use super::{QueuePoint, QueueState};
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Ordering},
};
use std::{
    mem,
    time::{Duration, Instant},
};

/// How long a wait goes on before it asks after the work of others.
pub(super) const WATCH: Duration = Duration::from_millis(100);

/// When that was asked last, and whether something had failed by then.
#[derive(Debug)]
pub(super) struct Watch {
    asked: Instant,
    pub heard: bool,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { asked: Instant::now(), heard: false }
    }

    /// Asks when it is time again. The answer may be that of later work, which keeps nobody here: so an error counts when the
    /// queue has had as long again to come past, and has not.
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
    /// Work that this queue waits for, and that only its event tells the end of.
    pub fn note_joined(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>) {
        self.joined.note(work, event, self.next());
        self.has_untold.store(true, Ordering::Release);
    }

    /// Work that this queue waits for in a way that tells its end; but that may never come, where it waits for others itself.
    pub fn watch_with(&self, work: &QueuePoint, event: &Arc<dyn hal::Event>) {
        if work.queue_state.waits_for_others() {
            self.joined.note_watched(work, event, self.next());
            self.has_untold.store(true, Ordering::Release);
        }
    }

    /// A signal or a number behind another queue's work, which this queue waits for.
    pub fn note_signal(&self, sender: &Arc<QueueState>, sent: u64, until: u64) {
        self.joined.note_signal(sender, sent, until);
        self.has_untold.store(true, Ordering::Release);
    }

    /// What was enqueued by now is over when the queue has come so far.
    pub fn next(&self) -> u64 {
        self.noted.load(Ordering::Acquire) + 1
    }

    /// How many pieces of work it was given so far.
    pub fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// Whether it waits already for a signal that is behind that work, or has.
    pub fn is_behind(&self, work: &QueuePoint) -> bool {
        self.joined.is_behind(work)
    }

    /// It is behind so many pieces of another queue's work, whatever else happens.
    pub fn put_behind(&self, sender: usize, covered: u64) {
        self.joined.put_behind(sender, covered);
    }

    /// Enqueues a wait and notes it. Another thread that waits behind it meanwhile watches already.
    pub fn expect<T>(&self, enqueue: impl FnOnce() -> T) -> T {
        self.joined.expect(enqueue)
    }

    /// It has come so far: somebody has learnt that who tells nobody how its work ended.
    pub fn pass(&self, reached: u64) {
        self.joined.pass(reached);
    }

    /// Whether work of others is known that this queue waits for on the device.
    pub fn waits_for_others(&self) -> bool {
        !self.joined.is_empty()
    }

    /// Waits on the calling thread for an event of this queue. One that waits for a signal or a number waits for ever when
    /// whoever was to give it has failed.
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

    /// The same for who asks again and again instead, and was told that it is not done.
    pub fn look_around(&self) -> Result<()> {
        if !self.waits_for_others() {
            return Ok(());
        }
        // Where another thread asks just now, it does so for both.
        let Ok(mut asked) = self.joined.asked.try_lock() else { return Ok(()) };
        asked.get_or_insert_with(Watch::new).look(self)
    }
}
