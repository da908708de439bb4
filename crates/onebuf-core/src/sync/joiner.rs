//! Joining two queues now: the methods are asked in the policy's order until one has done it.

use super::{
    Events, Pair, Terms, callback_thread::CallbackThread, methods, policy, semaphores::Semaphores,
    wait_value_words::WaitValueTable,
};
use crate::{
    device_table::DeviceTable,
    observe::What,
    queue_state::{QueuePoint, QueueState},
    topology::DeviceIx,
};
use onebuf_hal::{Event, Result, SyncMethod, locks::Arc};
use std::time::Duration;

/// What the methods of one hub keep.
#[derive(Debug, Default)]
pub(crate) struct SyncTables {
    pub(super) wait_values: WaitValueTable,
    pub(super) semaphores: Semaphores,
    pub(super) callback_thread: Arc<CallbackThread>,
}

/// Makes queues of one hub wait for each other.
#[derive(Clone, Copy)]
pub(crate) struct Joiner<'h> {
    devices: &'h DeviceTable,
    tables: &'h SyncTables,
}

/// Two queues that are being joined.
pub(super) struct Join<'j> {
    pub devices: &'j DeviceTable,
    pub tables: &'j SyncTables,
    /// The queue that is to wait.
    pub queue: &'j Arc<QueueState>,
    /// What it is to wait for.
    pub point: &'j QueuePoint,
    /// Where the events go that the queue is to wait for, where the caller puts them into its own wait list.
    pub collected: Option<&'j mut Vec<Arc<dyn Event>>>,
}

impl<'j> Join<'j> {
    /// As far as is known without an event of the sender's.
    pub fn pair(&self) -> Pair<'j> {
        let (sender, receiver) = (&self.point.queue_state, self.queue);
        let pair = Pair::between(self.devices.topology(), sender.device, receiver.device);
        match sender.hal.domain() == receiver.hal.domain() {
            true => Pair { events: Events::OneContext, ..pair },
            // Two contexts of one device, or a device of another hub that has the same place there.
            false if pair.events == Events::OneContext => Pair { events: Events::Foreign, ..pair },
            false => pair,
        }
    }

    /// As the receiver says of this very event.
    fn pair_by(&self, event: &dyn Event) -> Pair<'j> {
        let receiver = &self.queue.hal;
        let events = match (receiver.takes(event), event.domain() == receiver.domain()) {
            (true, true) => Events::OneContext,
            (true, false) => Events::Taken,
            (false, _) => Events::Foreign,
        };
        Pair { events, ..self.pair() }
    }

    pub fn timeout(&self) -> Duration {
        self.devices.timeout()
    }

    fn run(&mut self, terms: Terms) -> Result<SyncMethod> {
        let mut tried = None;
        if !self.point.is_marked()
            && let Some(first) = methods(self.pair(), terms).next()
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
        let left = methods(self.pair_by(&**event), terms);
        for method in left.filter(|method| Some(method.word()) != tried) {
            if let Some(by) = method.join(self, event)? {
                return Ok(by);
            }
        }
        // Not reached: the host's wait is the last of all methods, and joins any two queues.
        point.wait_by(&**event, self.timeout()).map(|()| SyncMethod::HostWait)
    }
}

impl<'h> Joiner<'h> {
    pub fn new(devices: &'h DeviceTable, tables: &'h SyncTables) -> Self {
        Self { devices, tables }
    }

    /// The best method by which a queue of one device can be made to wait for another's.
    pub fn best(self, sender: DeviceIx, receiver: DeviceIx, terms: Terms) -> SyncMethod {
        policy::best(Pair::between(self.devices.topology(), sender, receiver), terms)
    }

    /// Makes later work of the queue wait for a point, by the best method that may join the two. Returns the method that was
    /// used.
    pub fn after(
        self,
        queue: &Arc<QueueState>,
        point: &QueuePoint,
        terms: Terms,
    ) -> Result<SyncMethod> {
        self.join(queue, point, terms, None)
    }

    /// Does the same for an out-of-order queue, whose launches wait for events one by one: those are collected instead of
    /// waited for.
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
