//! Queues and events that somebody else made, as ours.

use super::{Registration, Whose};
use crate::{Fence, Hub, Queue, queue_state::QueueState, topology::DeviceIx};
use bytemuck::Pod;
use onebuf_hal::{self as hal, Error, QueueSpec, Result, locks::Arc};

impl Hub {
    /// A queue of ours at the device where the buffer lives, in its context: for work on this buffer.
    ///
    /// # Errors
    /// What the driver says when there is none yet and none can be made.
    pub fn queue_for<T: Pod>(&self, buffer: &crate::Buffer<T>) -> Result<Queue> {
        if !self.is(buffer.hub()) {
            return Err(Error::invalid("a buffer of another hub"));
        }
        let ours = self.service_queue_state(buffer.plan().allocate_on)?;
        let (device, native) = (ours.device, ours.hal.clone());
        let context = self.context_of(device);
        let queue_state = QueueState::of(device, native, ours.spec, context).traced(self.tracer());
        Ok(Queue { hub: self.clone(), queue_state: Arc::new(queue_state) })
    }

    /// A native queue of the owner's, as one of ours.
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

    /// A native queue that works at once, on the thread of its owner.
    #[doc(hidden)]
    pub fn foreign_inline_queue(
        &self,
        native: Arc<dyn hal::Queue>,
        foreign_device: &Arc<Registration>,
    ) -> Queue {
        let (ix, spec) = (foreign_device.first(), QueueSpec::default());
        let queue_state = QueueState::of(ix, native, spec, Some(foreign_device.clone()));
        let queue_state = queue_state.traced(self.tracer()).foreign().marked_at_once();
        Queue { hub: self.clone(), queue_state: Arc::new(queue_state) }
    }

    /// A queue for events that are in no queue. It is never a caller's, so nobody is in order with it.
    #[doc(hidden)]
    pub fn queue_beside(&self, whose: &Whose) -> Result<Queue> {
        let ix = whose.devices()[0];
        let service = self.service_queue_state(ix)?;
        Ok(self.foreign_queue(ix, service.hal.clone(), service.spec, whose.registration()))
    }
}

impl Queue {
    /// The native queue.
    pub(crate) fn native(&self) -> &Arc<dyn hal::Queue> {
        &self.queue_state.hal
    }

    /// The point that is reached when a native event of this queue is.
    #[doc(hidden)]
    pub fn fence_at(&self, event: Arc<dyn hal::Event>) -> Fence {
        Fence::new(self.queue_state.at_event(event), self.hub.timeout())
    }
}

impl Fence {
    /// The native events that must complete for this point to be reached, each on its way: whoever waits for one in another queue
    /// relies on that. None when the point is known to have been reached.
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
