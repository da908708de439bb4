//! A number of pieces of work: the fence that costs nothing until somebody asks.

use super::QueueState;
use crate::observe::What;
use onebuf_hal::{
    self as hal, Error, Result,
    locks::{Arc, Ordering},
};
use std::{sync::OnceLock, time::Duration};

/// A point in a queue. Turned into an event only when somebody else has to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct QueuePoint {
    pub queue_state: Arc<QueueState>,
    /// How many pieces of the queue's work there are up to here.
    pub at: u64,
    /// The first event that was made to cover it; a later one would tell of later work too.
    pub(super) event: OnceLock<Arc<dyn hal::Event>>,
    /// Instead of that, the event of one piece of work, which says nothing of what was enqueued before it.
    pub(super) own: Option<Arc<dyn hal::Event>>,
}

impl QueuePoint {
    /// Moves to where the queue stands now, if this is a position of that queue.
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

    /// The event that covers this position; `None` when it is known to have been reached.
    pub fn event(&self) -> Result<Option<&Arc<dyn hal::Event>>> {
        // It also tells how its work ended, which later work on the queue does not.
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

    /// Whether it is known to have been reached. No driver is asked.
    pub fn is_known(&self) -> bool {
        self.own.is_none() && self.queue_state.has_reached(self.at)
    }

    /// Whether there is an event already that tells, or nobody needs one.
    pub fn is_marked(&self) -> bool {
        let has_event = self.own.is_some() || self.event.get().is_some();
        has_event || self.is_known() || self.queue_state.is_marked(self.at)
    }

    /// When the work of an own event ran.
    pub fn profile(&self) -> Result<hal::Profile> {
        match &self.own {
            Some(event) => event.profile(),
            None => Err(Error::unsupported(
                "the time of this fence's work",
                "a fence of one launch: see `Queue::launch_fenced`",
            )),
        }
    }

    /// Whether the work has certainly ended, well or not.
    pub fn is_over(&self) -> bool {
        self.event().is_ok_and(|event| event.is_none_or(|event| event.is_over()))
    }

    /// Whether it was reached. An error is that of the work or that of the question; only the first
    /// comes again.
    pub fn poll(&self) -> Result<bool> {
        let reached = self.ask()?;
        if !reached {
            self.queue_state.look_around()?;
        }
        Ok(reached)
    }

    /// The same, whatever becomes of the work that it waits for.
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
        let Some(event) = self.event()? else { return Ok(()) };
        let began = self.queue_state.tracer.begin(What::Wait);
        let waited = self.queue_state.wait_watching(&**event, timeout);
        began.end(&self.queue_state, |event| event.thread_waited(&waited));
        waited?;
        self.settle()
    }

    /// The same by its event, which is known; not recorded.
    pub fn wait_by(&self, event: &dyn hal::Event, timeout: Duration) -> Result<()> {
        self.queue_state.wait_watching(event, timeout)?;
        self.settle()
    }

    /// It was reached: tells what nobody was told of.
    fn settle(&self) -> Result<()> {
        self.queue_state.tell(self.reached())?;
        self.note_complete();
        Ok(())
    }

    /// Everything up to here is done: later questions need no driver call.
    fn note_complete(&self) {
        self.queue_state.complete.fetch_max(self.reached(), Ordering::AcqRel);
    }

    /// How many pieces of work are done when this is reached. Of an own event none are known: another thread may have
    /// enqueued and noted its work between that event and its note.
    fn reached(&self) -> u64 {
        if self.own.is_none() { self.at } else { 0 }
    }

    /// Whether the other is reached when this is, whatever happens: both are in one in-order queue, and
    /// this is the later.
    pub fn is_behind(&self, other: &QueuePoint) -> bool {
        let ordered = self.queue_state.is_in_order() && self.own.is_none();
        ordered && Arc::ptr_eq(&self.queue_state, &other.queue_state) && self.at >= other.at
    }
}
