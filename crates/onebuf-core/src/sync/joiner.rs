//! Joins two queues: tries the methods in the policy's order until one succeeds.

use super::{Join, Pair, SyncTables, Terms, policy};
use crate::{
    device_table::DeviceTable,
    observe::What,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};

/// Makes queues of one hub wait for each other.
#[derive(Clone, Copy)]
pub(crate) struct Joiner<'h> {
    devices: &'h DeviceTable,
    tables: &'h SyncTables,
}

impl Join<'_> {
    /// Joins the queues by the first method that succeeds.
    fn run(&mut self, terms: Terms) -> Result<SyncMethod> {
        let mut tried = None;
        if !self.point.is_marked()
            && let Some(first) = policy::methods(self.pair(), terms).next()
        {
            match first.join_unmarked(self) {
                Some(true) => return Ok(first.word()),
                Some(false) => tried = Some(first.word()),
                None => {}
            }
        }
        let point = self.point;
        let Some(event) = point.event()? else { return Ok(SyncMethod::SameQueue) };
        if event.poll()? {
            return Ok(SyncMethod::SameQueue);
        }
        let left = policy::methods(self.pair_by(&**event), terms);
        for method in left.filter(|method| Some(method.word()) != tried) {
            if let Some(by) = method.join(self, event)? {
                return Ok(by);
            }
        }
        // Not reached: `HostWait` is the last method, and joins any two queues.
        point.wait_by(&**event, self.timeout()).map(|()| SyncMethod::HostWait)
    }
}

impl<'h> Joiner<'h> {
    pub fn new(devices: &'h DeviceTable, tables: &'h SyncTables) -> Self {
        Self { devices, tables }
    }

    /// The best method that makes a queue of one device wait for a queue of another.
    pub fn best(self, sender: DeviceIx, receiver: DeviceIx, terms: Terms) -> SyncMethod {
        policy::best(Pair::between(self.devices.topology(), sender, receiver), terms)
    }

    /// Makes later work of the queue wait for a point, by the best method that is allowed. Returns the method that was used.
    pub fn after(
        self,
        queue: &Arc<QueueState>,
        point: &QueuePoint,
        terms: Terms,
    ) -> Result<SyncMethod> {
        self.join(queue, point, terms, None)
    }

    /// Like [`Self::after`], for an out-of-order queue: events are collected for the wait lists of its launches instead of
    /// being waited for here.
    pub fn collect(
        self,
        queue: &Arc<QueueState>,
        point: &QueuePoint,
        terms: Terms,
        events: &mut Vec<Arc<dyn Event>>,
    ) -> Result<SyncMethod> {
        self.join(queue, point, terms, Some(events))
    }

    fn join(
        self,
        queue: &Arc<QueueState>,
        point: &QueuePoint,
        terms: Terms,
        collected: Option<&mut Vec<Arc<dyn Event>>>,
    ) -> Result<SyncMethod> {
        if queue.is_in_order() && Arc::ptr_eq(&point.queue_state, queue) {
            return Ok(SyncMethod::SameQueue);
        }
        let began = queue.tracer.begin(What::Wait);
        let Joiner { devices, tables } = self;
        let joined = Join { devices, tables, queue, point, collected }.run(terms);
        if joined != Ok(SyncMethod::SameQueue) {
            began.end(queue, |event| {
                event.came_from(&point.queue_state);
                event.sync_method = joined.as_ref().ok().copied();
                event.failed = joined.is_err();
            });
        }
        joined
    }
}
