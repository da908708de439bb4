//! Events of OpenCL, in and out.

use super::context::device_of;
use onebuf_core::{
    Fence, Hub, Queue,
    internals::{self, Whose},
};
use onebuf_hal::{
    Error, Event, HostSignal, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_opencl::foreign;
use std::{ffi::c_void, fmt};

/// An event that the host completes. Dropped without, it fails: nothing waits for ever.
pub struct UserEvent {
    queue: Queue,
    /// Until it is completed.
    host_signal: Mutex<Option<Box<dyn HostSignal>>>,
    event: Arc<dyn Event>,
}

impl UserEvent {
    pub(super) fn new(hub: &Hub, whose: &Whose) -> Result<Self> {
        let queue = hub.queue_beside(whose)?;
        let device = device_of(hub, whose, queue.device().index())?;
        let (host_signal, event) = {
            // SAFETY: the event is made for this queue's own context.
            device.user_event(unsafe { internals::queue(&queue) })
        }?;
        Ok(Self { queue, host_signal: Mutex::new(Some(host_signal)), event })
    }

    /// The point that is reached when it is completed.
    pub fn fence(&self) -> Fence {
        self.queue.fence_at(self.event.clone())
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

/// OpenCL's events of a [`Fence`].
pub trait OpenClFenceExt {
    /// The events that must complete for this point to be reached, for code that enqueues by itself: none
    /// when it is known to have been reached.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for work on a device that has no such events.
    fn cl_events(&self) -> Result<Vec<ClEventHandle>>;
}

impl OpenClFenceExt for Fence {
    fn cl_events(&self) -> Result<Vec<ClEventHandle>> {
        let events = {
            // SAFETY: their handles are given away, and nothing is enqueued.
            unsafe { internals::events(self) }
        }?;
        if !events.iter().all(|event| foreign::is_event(&**event)) {
            let needs = "a fence of an OpenCL queue";
            return Err(Error::unsupported("a cl_event of this fence", needs));
        }
        Ok(events.into_iter().map(ClEventHandle).collect())
    }
}
