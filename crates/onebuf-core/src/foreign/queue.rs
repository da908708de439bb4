//! Foreign queues and events.

use super::{Registration, Whose};
use crate::{Fence, Hub, Queue, queue_state::QueueState, topology::DeviceIx};
use bytemuck::Pod;
use onebuf_hal::{self as hal, Error, QueueSpec, Result, locks::Arc};

impl Hub {
    /// Returns a queue in the context of the device that allocated the buffer, for work on this buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a buffer of another hub; the driver's error if the device has no queue yet and none can be
    /// created.
    pub fn queue_for<T: Pod>(&self, buffer: &crate::Buffer<T>) -> Result<Queue> {
        if !self.is(buffer.hub()) {
            return Err(Error::invalid("the buffer belongs to another hub"));
        }
        let ours = self.service_queue_state(buffer.plan().allocate_on)?;
        let (device, native) = (ours.device, ours.hal.clone());
        let context = self.context_of(device);
        let queue_state = QueueState::of(device, native, ours.spec, context).traced(self.tracer());
        Ok(Queue { hub: self.clone(), queue_state: Arc::new(queue_state) })
    }

    /// Wraps a native queue of a foreign owner.
    #[doc(hidden)]
    pub fn foreign_queue(
        &self,
        device: DeviceIx,
        native: Arc<dyn hal::Queue>,
        spec: QueueSpec,
        registration: Option<Arc<Registration>>,
    ) -> Queue {
        let context = registration.map(|registration| registration as _);
        let queue_state = QueueState::of(device, native, spec, context);
        Queue {
            hub: self.clone(),
            queue_state: Arc::new(queue_state.traced(self.tracer()).foreign()),
        }
    }

    /// Wraps a native queue that only its owner's thread may use. Each use is marked at once, so that other threads can wait
    /// for it.
    #[doc(hidden)]
    pub fn foreign_inline_queue(
        &self,
        device: DeviceIx,
        native: Arc<dyn hal::Queue>,
        registration: Option<Arc<Registration>>,
    ) -> Queue {
        let context = registration.map(|registration| registration as _);
        let queue_state = QueueState::of(device, native, QueueSpec::default(), context);
        let queue_state = queue_state.traced(self.tracer()).foreign().marked_at_once();
        Queue { hub: self.clone(), queue_state: Arc::new(queue_state) }
    }

    /// A queue for events that belong to no queue. Callers never enqueue on it, so it is in order with no other queue.
    #[doc(hidden)]
    pub fn queue_beside(&self, whose: &Whose) -> Result<Queue> {
        let ix = whose.devices()[0];
        let service = self.service_queue_state(ix)?;
        Ok(self.foreign_queue(ix, service.hal.clone(), service.spec, whose.clone().registration()))
    }
}

impl Queue {
    /// The native queue.
    pub(crate) fn native(&self) -> &Arc<dyn hal::Queue> {
        &self.queue_state.hal
    }

    /// Returns the fence that is reached when `event`, a native event of this queue, completes.
    #[doc(hidden)]
    pub fn fence_at(&self, event: Arc<dyn hal::Event>) -> Fence {
        Fence::new(self.queue_state.at_event(event), self.hub.timeout())
    }
}

impl Fence {
    /// The native events that must complete before this fence is reached. Their queues are flushed, so that other queues can wait
    /// for them. Empty if the fence is known to have been reached.
    pub(crate) fn native_events(&self) -> Result<Vec<Arc<dyn hal::Event>>> {
        let mut events = Vec::new();
        for point in self.points() {
            let Some(event) = point.event()? else { continue };
            point.queue_state.hal.flush()?;
            events.push(event.clone());
        }
        Ok(events)
    }
}
