//! Queues as callers hold them: one, or several of one device that are handed out in turn.

use crate::{
    device::Device,
    extensions::Extensions,
    fence::Fence,
    hub::Hub,
    observe::{Began, Event, Timed, Tracer},
    queue_state::{QueuePoint, QueueState},
    sync::Terms,
    topology::DeviceIx,
};
use onebuf_hal::{
    Error, QueueSpec, Result, SyncMethod,
    locks::{Arc, AtomicU64, Ordering},
};
use std::fmt;

/// A stream of work on one device. Cheap to clone; clones are the same stream.
///
/// In order unless it was opened otherwise: see [`Device::queue_with`]. On an out-of-order queue launches
/// run as the buffers they use allow, and each launch's own event is its fence.
#[derive(Clone)]
pub struct Queue {
    pub(crate) hub: Hub,
    pub(crate) queue_state: Arc<QueueState>,
}

impl Queue {
    pub(crate) fn new(hub: &Hub, device: DeviceIx, spec: QueueSpec) -> Result<Self> {
        let (native, context) = (hub.hal(device).queue(spec)?, hub.context_of(device));
        let queue_state = QueueState::of(device, native, spec, context).traced(hub.tracer());
        Ok(Self { hub: hub.clone(), queue_state: queue_state.drained_by(hub.pending()) })
    }

    /// The device that runs this queue's work.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.queue_state.device)
    }

    /// The hub it belongs to.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Where what happens on it is recorded.
    #[doc(hidden)]
    #[inline]
    pub fn tracer(&self) -> &Tracer {
        &self.queue_state.tracer
    }

    /// Records what has ended on it.
    #[doc(hidden)]
    pub fn record(&self, began: Began<'_>, fill: impl FnOnce(&mut Event)) {
        began.end(&self.queue_state, fill);
    }

    /// Records what has ended on it, and when it ran on the device.
    #[doc(hidden)]
    pub fn record_timed(
        &self,
        began: Began<'_>,
        timed: Option<Timed>,
        fill: impl FnOnce(&mut Event),
    ) {
        began.end_timed(&self.queue_state, timed, fill);
    }

    /// What crates above keep with it, as libraries' handles and plans.
    #[doc(hidden)]
    pub fn extensions(&self) -> &Extensions {
        &self.queue_state.extensions
    }

    /// How it was opened.
    pub fn spec(&self) -> QueueSpec {
        self.queue_state.spec
    }

    /// Makes work enqueued from now on wait for a fence of any queue of the hub, by the best sync method there
    /// is, and says which. Semaphores, numbers in memory and callbacks are used where the doctor has proven them for the two
    /// devices; otherwise, beyond one context, the calling thread waits.
    ///
    /// # Errors
    /// When the work behind the fence failed; [`Error::Timeout`] when the thread had to wait for it.
    pub fn wait_for(&self, fence: &Fence) -> Result<SyncMethod> {
        let after =
            |point: &QueuePoint| self.hub.sync().after(&self.queue_state, point, Terms::PROVEN);
        let mut sync_methods = fence.points().iter().map(after);
        sync_methods.try_fold(SyncMethod::SameQueue, |lowest, sync_method| {
            sync_method.map(|sync_method| lowest.max(sync_method))
        })
    }

    /// The point that everything enqueued so far will have reached.
    pub fn fence(&self) -> Fence {
        let point = self.queue_state.note();
        if self.queue_state.is_foreign {
            // Marked now: what its owner enqueues later may wait for us. A failure comes again when asked.
            let _ = point.event();
        }
        Fence::new(point, self.hub.timeout())
    }

    /// Sees to it that enqueued work starts without further calls.
    pub fn flush(&self) -> Result<()> {
        self.queue_state.hal.flush()
    }

    /// Waits until everything enqueued so far is done, for the hub's timeout at most.
    pub fn finish(&self) -> Result<()> {
        self.fence().wait(self.hub.timeout())
    }

    /// The native queue (a `cl_command_queue` for OpenCL) for libraries that enqueue work of their
    /// own; zero where there is none. Work enqueued there while a view of this queue is held is
    /// fenced like work of our own. The handle is valid while the `Queue` lives.
    pub fn raw(&self) -> usize {
        self.queue_state.give_away();
        self.queue_state.hal.raw()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.device().id())
    }
}

impl Device {
    /// A new in-order queue.
    pub fn queue(&self) -> Result<Queue> {
        let plain = QueueSpec::default();
        if self.hub().tracer().wants_device_times() {
            match self.queue_with(plain.profiled()) {
                Err(Error::Unsupported { .. }) => {}
                opened => return opened,
            }
        }
        self.queue_with(plain)
    }

    /// A new queue, out of order or with profiling.
    ///
    /// ```
    /// # use onebuf::QueueSpec;
    /// let hub = onebuf::discover()?;
    /// let timed = hub.host().queue_with(QueueSpec::default().profiled())?;
    /// # let _ = timed;
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Unsupported`] where the device has no out-of-order queues.
    pub fn queue_with(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(self.hub(), self.index(), spec)
    }

    /// So many new queues, to be handed out in turn or by how busy they are.
    ///
    /// # Errors
    /// As for [`Device::queue_with`], and for a count of zero.
    pub fn queues(&self, count: usize, spec: QueueSpec) -> Result<QueuePool> {
        QueuePool::new(self, count, spec)
    }
}

/// Queues of one device that many threads or jobs share. Handing one out costs no lock; buffers order the
/// work on them wherever it has to be.
///
/// ```
/// # use onebuf::QueueSpec;
/// let hub = onebuf::discover()?;
/// let queues = hub.host().queues(4, QueueSpec::default())?;
/// let first = queues.round_robin();
/// let idle = queues.least_busy();
/// queues.finish()?;
/// # let _ = (first, idle);
/// # Ok::<(), onebuf::Error>(())
/// ```
#[derive(Debug)]
pub struct QueuePool {
    queues: Vec<Queue>,
    turn: AtomicU64,
}

impl QueuePool {
    pub(crate) fn new(device: &Device, count: usize, spec: QueueSpec) -> Result<Self> {
        if count == 0 {
            return Err(Error::invalid("a pool of no queues: give at least one"));
        }
        let queues = (0..count).map(|_| device.queue_with(spec)).collect::<Result<_>>()?;
        Ok(Self { queues, turn: AtomicU64::new(0) })
    }

    /// The next queue, each in its turn.
    pub fn round_robin(&self) -> Queue {
        self.in_turn().next().unwrap_or(&self.queues[0]).clone()
    }

    /// The queue with the fewest pieces of work not known to be done; of several, the next in turn. Asks
    /// the driver about queues that were given work since. One whose work failed comes last: the error is
    /// for whoever waits for that work.
    pub fn least_busy(&self) -> Queue {
        let mut best: Option<(u64, &Queue)> = None;
        for queue in self.in_turn() {
            let backlog = queue.queue_state.backlog().unwrap_or(u64::MAX);
            if best.is_none_or(|(least, _)| backlog < least) {
                best = Some((backlog, queue));
            }
            if backlog == 0 {
                break;
            }
        }
        best.map_or(&self.queues[0], |(_, queue)| queue).clone()
    }

    /// Every queue once, from the one whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = &Queue> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize % self.queues.len();
        self.queues[turn..].iter().chain(&self.queues[..turn])
    }

    /// All of them.
    pub fn all(&self) -> &[Queue] {
        &self.queues
    }

    /// Waits until everything enqueued so far on any of them is done. Every queue is waited for; the first
    /// error is told.
    pub fn finish(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.queues.iter().map(Queue::finish).collect();
        outcomes.into_iter().collect()
    }
}
