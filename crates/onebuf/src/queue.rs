//! Queues, and positions in them: the fences that cost nothing until somebody asks.

use crate::{
    Fence, Hub, Result,
    device::Device,
    hal::{self, Rung},
    program::{Arg, Grid, Kernel},
    sync::{Arc, AtomicU64, Mutex, Ordering, lock},
    topology::DeviceIx,
};
use std::{fmt, sync::OnceLock, time::Duration};

/// A stream of work on one device, in order. Cheap to clone; clones are the same stream.
#[derive(Clone)]
pub struct Queue {
    pub(crate) hub: Hub,
    pub(crate) line: Arc<Line>,
}

impl Queue {
    pub(crate) fn new(hub: &Hub, device: DeviceIx) -> Result<Self> {
        Ok(Self { hub: hub.clone(), line: hub.open_line(device)? })
    }

    /// The device that runs this queue's work.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.line.device)
    }

    /// Starts a kernel on the views given, which were taken on this queue. Given by value, as
    /// [`args!`](crate::args) makes them, they are released here.
    ///
    /// # Errors
    /// An argument that is missing, of the wrong type or kind, or a view of another queue is an
    /// [`crate::Error::InvalidArgument`] that names it; nothing was started then.
    pub fn launch<'b>(
        &self,
        kernel: &Kernel,
        grid: impl Into<Grid>,
        args: impl AsRef<[Arg<'b>]>,
    ) -> Result<()> {
        kernel.launch_on(self, grid.into(), args.as_ref())
    }

    /// The point that everything enqueued so far will have reached.
    pub fn fence(&self) -> Fence {
        Fence::new(self.line.position(), self.hub.timeout())
    }

    /// Sees to it that enqueued work starts without further calls.
    pub fn flush(&self) -> Result<()> {
        self.line.hal.flush()
    }

    /// Waits until everything enqueued so far is done, for the hub's timeout at most.
    pub fn finish(&self) -> Result<()> {
        self.fence().wait(self.hub.timeout())
    }

    /// The native queue (a `cl_command_queue` for OpenCL) for libraries that enqueue work of their
    /// own; zero where there is none. Work enqueued there while a view of this queue is held is
    /// fenced like work of our own. The handle is valid while the `Queue` lives.
    pub fn raw(&self) -> usize {
        self.line.hal.raw()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.device().id())
    }
}

/// One native queue and how far it is.
#[derive(Debug)]
pub(crate) struct Line {
    pub hal: Arc<dyn hal::Queue>,
    pub device: DeviceIx,
    callbacks: bool,
    gates: bool,
    /// How many pieces of work have been noted.
    noted: AtomicU64,
    /// How many of them are known to be complete.
    complete: AtomicU64,
    /// The newest event, and how many pieces of work it covers.
    mark: Mutex<Option<(u64, Arc<dyn hal::Event>)>>,
}

impl Line {
    pub fn new(device: DeviceIx, caps: &hal::Caps, hal: Arc<dyn hal::Queue>) -> Arc<Self> {
        Arc::new(Self {
            hal,
            device,
            callbacks: caps.callbacks,
            gates: caps.gates,
            noted: AtomicU64::new(0),
            complete: AtomicU64::new(0),
            mark: Mutex::new(None),
        })
    }

    /// Notes that work was enqueued; call it after the enqueue.
    pub fn note(self: &Arc<Self>) -> Position {
        let at = self.noted.fetch_add(1, Ordering::AcqRel) + 1;
        Position { line: self.clone(), at, event: OnceLock::new() }
    }

    /// Where the queue stands now.
    pub fn position(self: &Arc<Self>) -> Position {
        self.note()
    }

    /// Makes later work wait for a position, by the best rung there is but none better than `best`
    /// across APIs. Returns the rung that was used.
    pub fn after(&self, position: &Position, best: Rung, timeout: Duration) -> Result<Rung> {
        if std::ptr::eq(Arc::as_ptr(&position.line), self) {
            return Ok(Rung::SameQueue);
        }
        let Some(event) = position.event()? else { return Ok(Rung::SameQueue) };
        if event.poll()? {
            return Ok(Rung::SameQueue);
        }
        if event.domain() == self.hal.domain() {
            self.hal.wait_for(&[event])?;
            return Ok(Rung::Event);
        }
        if self.gates && position.line.callbacks && best <= Rung::Callback {
            return self.after_callback(&*event, timeout);
        }
        event.wait(timeout)?;
        Ok(Rung::HostWait)
    }

    /// The newest event if it covers so much, or a new one.
    fn event_for(&self, at: u64) -> Result<Arc<dyn hal::Event>> {
        let mut mark = lock(&self.mark);
        match &*mark {
            Some((covered, event)) if *covered >= at => Ok(event.clone()),
            _ => {
                // Read before marking: all work noted by now was enqueued before the mark.
                let covered = self.noted.load(Ordering::Acquire);
                let event = self.hal.mark()?;
                self.hal.flush()?;
                *mark = Some((covered, event.clone()));
                Ok(event)
            }
        }
    }

    /// Puts a gate into this queue that the event's callback opens.
    fn after_callback(&self, event: &dyn hal::Event, timeout: Duration) -> Result<Rung> {
        let gate = self.hal.gate()?;
        let Err((error, callback)) = event.on_complete(Box::new(move |outcome| gate.open(outcome)))
        else {
            return Ok(Rung::Callback);
        };
        tracing::warn!(%error, "no callback from this event: the thread waits instead");
        let outcome = event.wait(timeout);
        callback(outcome.clone());
        outcome.map(|()| Rung::HostWait)
    }
}

/// A point in a queue. Turned into an event only when somebody else has to wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub line: Arc<Line>,
    at: u64,
    /// The first event that was made to cover it; a later one would tell of later work too.
    event: OnceLock<Arc<dyn hal::Event>>,
}

impl Position {
    /// The event that covers this position; `None` when it is known to have been reached.
    pub fn event(&self) -> Result<Option<Arc<dyn hal::Event>>> {
        if self.line.complete.load(Ordering::Acquire) >= self.at {
            return Ok(None);
        }
        if let Some(event) = self.event.get() {
            return Ok(Some(event.clone()));
        }
        let event = self.line.event_for(self.at)?;
        Ok(Some(self.event.get_or_init(|| event).clone()))
    }

    /// Whether the work has certainly ended, well or not.
    pub fn is_over(&self) -> bool {
        self.event().is_ok_and(|event| event.is_none_or(|event| event.is_over()))
    }

    /// Whether it was reached. An error is that of the work or that of the question; only the first
    /// comes again.
    pub fn poll(&self) -> Result<bool> {
        let Some(event) = self.event()? else { return Ok(true) };
        let reached = event.poll()?;
        if reached {
            self.note_complete();
        }
        Ok(reached)
    }

    /// Waits on the calling thread.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let Some(event) = self.event()? else { return Ok(()) };
        event.wait(timeout)?;
        self.note_complete();
        Ok(())
    }

    /// Everything up to here is done: later questions need no driver call.
    fn note_complete(&self) {
        self.line.complete.fetch_max(self.at, Ordering::AcqRel);
    }

    /// Whether both are in one queue.
    pub fn same_line(&self, other: &Position) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }
}
