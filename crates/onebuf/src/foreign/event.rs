//! Events of OpenCL, in and out.

use super::context::Whose;
use crate::{
    Error, Fence, Hub, Result,
    backend::opencl::foreign,
    hal::{Event, HostSignal},
    queue::QueueState,
    sync::{Arc, Mutex, lock},
};
use std::{ffi::c_void, fmt};

impl Hub {
    /// An event that somebody else made, as a fence: a queue can wait for it, a buffer be told of it
    /// ([`Buffer::written_until`](crate::Buffer::written_until)). Events that the host completes are as good.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what the driver knows to be none.
    ///
    /// # Safety
    /// Null, or a live `cl_event` of the OpenCL library that this hub has loaded.
    pub unsafe fn wrap_event(&self, event: *mut c_void) -> Result<Fence> {
        let (cl, raw) = (&self.foreign_devices().known()?.cl, event.addr());
        // SAFETY: the caller's promise.
        let (context, queue) = unsafe { foreign::event(cl, raw) }?;
        // SAFETY: a live event has a live context.
        let whose = unsafe { self.whose(context) }?;
        let queue_state = match queue {
            // SAFETY: a live event has a live queue, unless the host completes it.
            Some(queue) => unsafe { self.wrap_queue(queue as *mut c_void) }?.queue_state,
            None => self.beside(&whose)?,
        };
        let device = whose.device(self, queue_state.device)?;
        // SAFETY: an event of that queue, or of none.
        let event = unsafe { device.wrap_event(raw, &queue_state.hal, queue.is_none()) }?;
        Ok(Fence::new(queue_state.at_event(event), self.timeout()))
    }

    /// A line for events that are in no queue. It is never a caller's, so nobody is in order with it.
    fn beside(&self, whose: &Whose) -> Result<Arc<QueueState>> {
        let ix = whose.devices()[0];
        let (service, hal) = (self.service_queue_state(ix)?, self.hal(ix));
        let native = service.hal.clone();
        let queue_state = QueueState::of(ix, native, hal, service.spec, whose.registration());
        Ok(Arc::new(queue_state.traced(self.tracer()).foreign()))
    }
}

/// An event that the host completes. Dropped without, it fails: nothing waits for ever.
pub struct UserEvent {
    hub: Hub,
    queue_state: Arc<QueueState>,
    /// Until it is completed.
    host_signal: Mutex<Option<Box<dyn HostSignal>>>,
    event: Arc<dyn Event>,
}

impl UserEvent {
    pub(super) fn new(hub: &Hub, whose: &Whose) -> Result<Self> {
        let queue_state = hub.beside(whose)?;
        let (host_signal, event) =
            whose.device(hub, queue_state.device)?.user_event(&queue_state.hal)?;
        Ok(Self {
            hub: hub.clone(),
            queue_state,
            host_signal: Mutex::new(Some(host_signal)),
            event,
        })
    }

    /// The point that is reached when it is completed.
    pub fn fence(&self) -> Fence {
        Fence::new(self.queue_state.at_event(self.event.clone()), self.hub.timeout())
    }

    /// The `cl_event`, for the owner's commands to wait for; valid while this lives.
    pub fn raw(&self) -> *mut c_void {
        self.event.raw() as *mut c_void
    }

    /// Lets what waits for it run. Again, it does nothing.
    pub fn complete(&self) {
        let host_signal = lock(&self.host_signal).take();
        if let Some(host_signal) = host_signal {
            host_signal.open(Ok(()));
        }
    }
}

impl fmt::Debug for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UserEvent").field(&self.event).finish()
    }
}

/// A `cl_event` for commands of others to wait for. Released when dropped.
#[derive(Debug)]
pub struct ClEventHandle(Arc<dyn Event>);

impl ClEventHandle {
    /// The handle; valid while this lives.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw() as *mut c_void
    }

    /// The handle with a reference that is the caller's to release.
    pub fn into_raw(self) -> Result<*mut c_void> {
        foreign::retain_event(&*self.0).map(|raw| raw as *mut c_void)
    }
}

impl Fence {
    /// The events that must complete for this point to be reached, for code that enqueues by itself: none
    /// when it is known to have been reached.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for work on a device that has no such events.
    pub fn cl_events(&self) -> Result<Vec<ClEventHandle>> {
        let mut events = Vec::new();
        for point in self.points() {
            let Some(event) = point.event()? else { continue };
            if !foreign::is_event(&**event) {
                let needs = "a fence of an OpenCL queue";
                return Err(Error::unsupported("a cl_event of this fence", needs));
            }
            // Whoever waits for it in another queue relies on it being on its way.
            point.queue_state.hal.flush()?;
            events.push(ClEventHandle(event.clone()));
        }
        Ok(events)
    }
}
