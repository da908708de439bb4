//! Queue points: a count of pieces of work, which costs no driver call until a caller waits for it.

use super::QueueState;
use crate::observe::What;
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Ordering},
    patience,
};
use std::{sync::OnceLock, time::Duration};

/// A point in a queue. It becomes an event only when something has to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct QueuePoint {
    pub queue_state: Arc<QueueState>,
    /// The number of pieces of work up to this point.
    pub at: u64,
    /// The first event that covers it; a later event would also report later work.
    pub(super) event: OnceLock<Arc<dyn hal::Event>>,
    /// The event of one piece of work, used instead of `event`. It does not cover work that was enqueued before.
    pub(super) own: Option<Arc<dyn hal::Event>>,
}

impl QueuePoint {
    /// Moves to the queue's current position, if this is a point of that queue. Returns whether it is.
    #[inline]
    pub fn renew(&mut self, queue_state: &Arc<QueueState>) -> bool {
        let mine = Arc::ptr_eq(&self.queue_state, queue_state) && self.own.is_none();
        if mine {
            self.at = queue_state.advance();
            if self.event.get().is_some() {
                self.event = OnceLock::new();
            }
        }
        mine
    }

    /// The event that covers this point; `None` if the point is known to have been reached.
    pub fn event(&self) -> Result<Option<&Arc<dyn hal::Event>>> {
        // Also if the queue is past it: only this event reports how its work ended.
        if let Some(own) = &self.own {
            return Ok(Some(own));
        }
        if self.queue_state.has_reached(self.at) {
            return Ok(None);
        }
        if let Some(event) = self.event.get() {
            return Ok(Some(event));
        }
        let event = self.queue_state.event_for(self.at)?;
        Ok(Some(self.event.get_or_init(|| event)))
    }

    /// Whether it is known to have been reached. Calls no driver.
    pub fn is_known(&self) -> bool {
        self.own.is_none() && self.queue_state.has_reached(self.at)
    }

    /// Whether an event that covers it exists already, or none is needed.
    pub fn is_marked(&self) -> bool {
        let has_event = self.own.is_some() || self.event.get().is_some();
        has_event || self.is_known() || self.queue_state.is_marked(self.at)
    }

    /// Returns when the work ran, if the point has its own event.
    pub fn profile(&self) -> Result<hal::Profile> {
        match &self.own {
            Some(event) => event.profile(),
            None => Err(Error::unsupported(
                "the time of this fence's work",
                "a fence of one launch: see `Queue::launch_fenced`",
            )),
        }
    }

    /// Whether the work is known to have ended, successfully or not.
    pub fn is_over(&self) -> bool {
        self.event().is_ok_and(|event| event.is_none_or(|event| event.is_over()))
    }

    /// Whether it was reached. An error comes from the work or from the query; only an error of the work is returned again.
    pub fn poll(&self) -> Result<bool> {
        let reached = self.ask()?;
        if !reached {
            self.queue_state.look_around()?;
        }
        Ok(reached)
    }

    /// Like [`Self::poll`], without checking the work that this queue waits for.
    pub(super) fn ask(&self) -> Result<bool> {
        let Some(event) = self.event()? else { return Ok(true) };
        let reached = event.poll()?;
        if reached {
            self.settle()?;
        }
        Ok(reached)
    }

    /// Waits on the calling thread.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        if self.is_known() {
            return Ok(());
        }
        let began = self.queue_state.tracer.begin(What::Wait);
        let waited = match self.drains_soon(timeout) {
            true => Ok(()),
            false => self.wait_by_event(timeout),
        };
        began.end(&self.queue_state, |event| event.thread_waited(&waited));
        waited?;
        self.settle()
    }

    /// Whether the queue is idle within a moment. No event is made then: most waits for a short kernel end here. A queue that
    /// other threads keep busy, or whose work failed, needs the event.
    fn drains_soon(&self, timeout: Duration) -> bool {
        let queue_state = &self.queue_state;
        timeout > patience::AT_ONCE
            && !self.is_marked()
            && !queue_state.is_foreign
            && !queue_state.waits_for_others()
            && queue_state.hal.drains_soon()
    }

    fn wait_by_event(&self, timeout: Duration) -> Result<()> {
        let Some(event) = self.event()? else { return Ok(()) };
        self.queue_state.wait_watching(&**event, timeout)
    }

    /// Waits by its event, which the caller already has; not traced.
    pub fn wait_by(&self, event: &dyn hal::Event, timeout: Duration) -> Result<()> {
        self.queue_state.wait_watching(event, timeout)?;
        self.settle()
    }

    /// Records that it was reached, after returning a failure that was not reported yet.
    fn settle(&self) -> Result<()> {
        self.queue_state.tell(self.reached())?;
        self.note_complete();
        Ok(())
    }

    /// Records that everything up to here is done, so that later queries need no driver call.
    fn note_complete(&self) {
        self.queue_state.complete.fetch_max(self.reached(), Ordering::AcqRel);
    }

    /// The number of pieces of work that are done when this point is reached. Zero for a point with its own event: another
    /// thread may have enqueued and noted work between that event and its note.
    fn reached(&self) -> u64 {
        if self.own.is_none() { self.at } else { 0 }
    }

    /// Whether reaching this point implies that the other is reached: both are in one in-order queue, and this is not the
    /// earlier one.
    pub fn is_behind(&self, other: &QueuePoint) -> bool {
        let ordered = self.queue_state.is_in_order() && self.own.is_none();
        ordered && Arc::ptr_eq(&self.queue_state, &other.queue_state) && self.at >= other.at
    }
}
