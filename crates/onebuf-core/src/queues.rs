//! Several queues of one device, handed out in turn.

use crate::{Device, Queue};
use onebuf_hal::{
    Error, QueueSpec, Result,
    locks::{AtomicU64, Ordering},
};

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
