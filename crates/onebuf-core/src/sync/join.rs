//! Two queues that are being joined, as the methods see them.

use super::{
    Events, Pair, callback_thread::CallbackThread, semaphores::Semaphores,
    wait_value_words::WaitValueTable,
};
use crate::{
    device_table::DeviceTable,
    queue_state::{QueuePoint, QueueState},
};
use onebuf_hal::{Event, locks::Arc};
use std::time::Duration;

/// The objects that the sync methods of one hub keep.
#[derive(Debug, Default)]
pub(crate) struct SyncTables {
    pub(super) wait_values: WaitValueTable,
    pub(super) semaphores: Semaphores,
    pub(super) callback_thread: Arc<CallbackThread>,
}

/// Two queues that are being joined.
pub(super) struct Join<'j> {
    pub devices: &'j DeviceTable,
    pub tables: &'j SyncTables,
    /// The queue that waits.
    pub queue: &'j Arc<QueueState>,
    /// The point that it waits for.
    pub point: &'j QueuePoint,
    /// If set, receives the events to wait for, because the caller passes them to its launches as wait lists.
    pub collected: Option<&'j mut Vec<Arc<dyn Event>>>,
}

impl<'j> Join<'j> {
    /// The pair, as known without an event of the sender.
    pub fn pair(&self) -> Pair<'j> {
        let (sender, receiver) = (&self.point.queue_state, self.queue);
        let pair = Pair::between(self.devices.topology(), sender.device, receiver.device);
        match sender.hal.domain() == receiver.hal.domain() {
            true => Pair { events: Events::OneContext, ..pair },
            // Two contexts of one device, or a device of another hub with the same index.
            false if pair.events == Events::OneContext => Pair { events: Events::Foreign, ..pair },
            false => pair,
        }
    }

    /// The pair, with the receiver's answer for this event.
    pub fn pair_by(&self, event: &dyn Event) -> Pair<'j> {
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
}
