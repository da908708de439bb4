//! Events of OpenCL, in and out.

use super::context::Whose;
use crate::{
    Error, Fence, Hub, Result,
    backend::opencl::foreign,
    hal::{Event, Gate},
    queue::Line,
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
        let (cl, raw) = (&self.guests().known()?.cl, event.addr());
        // SAFETY: the caller's promise.
        let (context, queue) = unsafe { foreign::event(cl, raw) }?;
        // SAFETY: a live event has a live context.
        let whose = unsafe { self.whose(context) }?;
        let line = match queue {
            // SAFETY: a live event has a live queue, unless the host completes it.
            Some(queue) => unsafe { self.wrap_queue(queue as *mut c_void) }?.line,
            None => self.beside(&whose)?,
        };
        let device = whose.device(self, line.device)?;
        // SAFETY: an event of that queue, or of none.
        let event = unsafe { device.wrap_event(raw, &line.hal, queue.is_none()) }?;
        Ok(Fence::new(line.at_event(event), self.timeout()))
    }

    /// A line for events that are in no queue. It is never a caller's, so nobody is in order with it.
    fn beside(&self, whose: &Whose) -> Result<Arc<Line>> {
        let ix = whose.devices()[0];
        let (service, hal) = (self.service_line(ix)?, self.hal(ix));
        let native = service.hal.clone();
        let line = Line::of(ix, native, hal, service.spec, whose.guest());
        Ok(Arc::new(line.traced(self.tap()).foreign()))
    }
}

/// An event that the host completes. Dropped without, it fails: nothing waits for ever.
pub struct UserEvent {
    hub: Hub,
    line: Arc<Line>,
    /// Until it is completed.
    gate: Mutex<Option<Box<dyn Gate>>>,
    event: Arc<dyn Event>,
}

impl UserEvent {
    pub(super) fn new(hub: &Hub, whose: &Whose) -> Result<Self> {
        let line = hub.beside(whose)?;
        let (gate, event) = whose.device(hub, line.device)?.user_event(&line.hal)?;
        Ok(Self { hub: hub.clone(), line, gate: Mutex::new(Some(gate)), event })
    }

    /// The point that is reached when it is completed.
    pub fn fence(&self) -> Fence {
        Fence::new(self.line.at_event(self.event.clone()), self.hub.timeout())
    }

    /// The `cl_event`, for the owner's commands to wait for; valid while this lives.
    pub fn raw(&self) -> *mut c_void {
        self.event.raw() as *mut c_void
    }

    /// Lets what waits for it run. Again, it does nothing.
    pub fn complete(&self) {
        let gate = lock(&self.gate).take();
        if let Some(gate) = gate {
            gate.open(Ok(()));
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
        for position in self.positions() {
            let Some(event) = position.event()? else { continue };
            if !foreign::is_event(&**event) {
                let needs = "a fence of an OpenCL queue";
                return Err(Error::unsupported("a cl_event of this fence", needs));
            }
            // Whoever waits for it in another queue relies on it being on its way.
            position.line.hal.flush()?;
            events.push(ClEventHandle(event.clone()));
        }
        Ok(events)
    }
}
