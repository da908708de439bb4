//! Queues, and pools of queues of one device.

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
    locks::{Arc, AtomicU64, Mutex, Ordering, lock},
};
use std::{collections::HashMap, fmt, sync::Weak};

/// A stream of work on one device. Cheap to clone; clones are the same stream.
///
/// A queue is in-order unless it was opened otherwise: see [`Device::queue_with`]. On an out-of-order queue the buffers order the
/// launches that use them, and each launch's own event is its fence.
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

    /// The hub that the queue belongs to.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The recorder of the queue's events.
    #[doc(hidden)]
    #[inline]
    pub fn tracer(&self) -> &Tracer {
        &self.queue_state.tracer
    }

    /// Records an operation on this queue that has ended.
    #[doc(hidden)]
    pub fn record(&self, began: Began<'_>, fill: impl FnOnce(&mut Event)) {
        began.end(&self.queue_state, fill);
    }

    /// Records an operation on this queue that has ended, with its times on the device.
    #[doc(hidden)]
    pub fn record_timed(
        &self,
        began: Began<'_>,
        timed: Option<Timed>,
        fill: impl FnOnce(&mut Event),
    ) {
        began.end_timed(&self.queue_state, timed, fill);
    }

    /// Data of crates above, such as the handles and plans of libraries.
    #[doc(hidden)]
    pub fn extensions(&self) -> &Extensions {
        &self.queue_state.extensions
    }

    /// The options that the queue was opened with.
    pub fn spec(&self) -> QueueSpec {
        self.queue_state.spec
    }

    /// Makes work enqueued from now on wait for a fence of any queue of the hub, by the best sync method available. Returns that
    /// method. Semaphores, wait values and callbacks are used if the doctor has proven them for the two devices. Otherwise,
    /// across contexts, the calling thread waits.
    ///
    /// # Errors
    /// The error of the work before the fence; [`Error::Timeout`] if the thread had to wait too long.
    pub fn wait_for(&self, fence: &Fence) -> Result<SyncMethod> {
        let after =
            |point: &QueuePoint| self.hub.sync().after(&self.queue_state, point, Terms::PROVEN);
        let mut sync_methods = fence.points().iter().map(after);
        sync_methods.try_fold(SyncMethod::SameQueue, |lowest, sync_method| {
            sync_method.map(|sync_method| lowest.max(sync_method))
        })
    }

    /// The fence that is reached when all work enqueued so far is complete.
    pub fn fence(&self) -> Fence {
        let point = self.queue_state.note();
        if self.queue_state.is_foreign {
            // Enqueue the event now: the owner's later work may wait for onebuf. A failure is reported when the fence is used.
            let _ = point.event();
        }
        Fence::new(point, self.hub.timeout())
    }

    /// Makes the driver start enqueued work without further calls.
    pub fn flush(&self) -> Result<()> {
        self.queue_state.hal.flush()
    }

    /// Waits until all work enqueued so far is complete, at most for the hub's timeout.
    pub fn finish(&self) -> Result<()> {
        self.fence().wait(self.hub.timeout())
    }

    /// The native queue (a `cl_command_queue` for OpenCL), for libraries that enqueue work themselves; zero if there is none.
    /// Work enqueued there while a view of this queue is held is fenced like onebuf's own work. The handle is valid while the
    /// `Queue` lives.
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
    /// Opens an in-order queue.
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

    /// The device's default queue: in-order, opened at the first call, and shared by all callers of the hub. Launches that name no
    /// queue run on it.
    ///
    /// ```
    /// let hub = onebuf::discover()?;
    /// let buffer = hub.buffer_from(&[1_u8, 2, 3]).build()?;
    /// let queue = hub.host().default_queue()?;
    /// let view = buffer.read_on(&queue)?;
    /// assert_eq!(view.len(), 3);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Device::queue`].
    pub fn default_queue(&self) -> Result<Queue> {
        self.kept_queue(&self.hub().extensions().get::<DefaultQueues>().0)
    }

    /// A queue beside the default one, kept like it: other libraries' streams are ordered with it while they have a buffer, and the
    /// default queue does not wait for them.
    #[doc(hidden)]
    pub fn lending_queue(&self) -> Result<Queue> {
        self.kept_queue(&self.hub().extensions().get::<LendingQueues>().0)
    }

    fn kept_queue(&self, queues: &Mutex<HashMap<DeviceIx, DefaultQueue>>) -> Result<Queue> {
        let mut queues = lock(queues);
        if let Some(queue_state) = queues.get(&self.index()).and_then(DefaultQueue::get) {
            return Ok(Queue { hub: self.hub().clone(), queue_state });
        }
        let queue = self.queue()?;
        let kept = (!self.is_foreign()).then(|| queue.queue_state.clone());
        let opened = DefaultQueue { kept, queue_state: Arc::downgrade(&queue.queue_state) };
        queues.insert(self.index(), opened);
        Ok(queue)
    }

    /// Opens a queue with these options: out of order, with profiling.
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
    /// [`onebuf_hal::Error::Unsupported`] if the device has no out-of-order queues.
    pub fn queue_with(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(self.hub(), self.index(), spec)
    }

    /// Opens `count` queues, for use in rotation or by load.
    ///
    /// # Errors
    /// As for [`Device::queue_with`], and for a count of zero.
    pub fn queues(&self, count: usize, spec: QueueSpec) -> Result<QueuePool> {
        QueuePool::new(self, count, spec)
    }
}

/// The default queues of a hub's devices.
#[derive(Default)]
struct DefaultQueues(Mutex<HashMap<DeviceIx, DefaultQueue>>);

/// Their queues for lent buffers.
#[derive(Default)]
struct LendingQueues(Mutex<HashMap<DeviceIx, DefaultQueue>>);

struct DefaultQueue {
    queue_state: Weak<QueueState>,
    /// Keeps the queue open. `None` in a foreign context, which a queue would keep alive: it closes after its last user.
    kept: Option<Arc<QueueState>>,
}

impl DefaultQueue {
    fn get(&self) -> Option<Arc<QueueState>> {
        self.kept.clone().or_else(|| self.queue_state.upgrade())
    }
}

/// Queues of one device that many threads or jobs share. Choosing a queue takes no lock. Buffers order the work on different
/// queues where necessary.
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
            return Err(Error::invalid("a queue pool needs at least one queue"));
        }
        let queues = (0..count).map(|_| device.queue_with(spec)).collect::<Result<_>>()?;
        Ok(Self { queues, turn: AtomicU64::new(0) })
    }

    /// Returns the next queue in rotation.
    pub fn round_robin(&self) -> Queue {
        self.in_turn().next().unwrap_or(&self.queues[0]).clone()
    }

    /// Returns the queue with the least work that is not known to be complete; among equals, the next in rotation. Queries the
    /// driver about queues that received work since the last call. A queue whose work failed comes last; the error is left for
    /// the caller that waits for that work.
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

    /// Iterates over every queue once, starting with the next in rotation.
    fn in_turn(&self) -> impl Iterator<Item = &Queue> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize % self.queues.len();
        self.queues[turn..].iter().chain(&self.queues[..turn])
    }

    /// All queues.
    pub fn all(&self) -> &[Queue] {
        &self.queues
    }

    /// Waits until all work enqueued so far on any of the queues is complete. Waits for every queue, and then returns the first
    /// error.
    pub fn finish(&self) -> Result<()> {
        let outcomes: Vec<Result<()>> = self.queues.iter().map(Queue::finish).collect();
        outcomes.into_iter().collect()
    }
}
