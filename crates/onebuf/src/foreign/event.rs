//! OpenCL events, imported and exported.

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

/// An event that the host completes. Dropping it before completion fails the event, so that no wait is endless.
pub struct UserEvent {
    queue: Queue,
    /// `None` once it is completed.
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

    /// The fence that is reached when the event completes.
    pub fn fence(&self) -> Fence {
        self.queue.fence_at(self.event.clone())
    }

    /// The `cl_event`, for the owner's commands to wait for. Valid while this lives.
    pub fn raw(&self) -> *mut c_void {
        self.event.raw() as *mut c_void
    }

    /// Completes the event. Further calls do nothing.
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

/// A `cl_event` that other commands can wait for. Dropping it releases the event.
#[derive(Debug)]
pub struct ClEventHandle(Arc<dyn Event>);

impl ClEventHandle {
    /// The handle, valid while this lives.
    pub fn raw(&self) -> *mut c_void {
        self.0.raw() as *mut c_void
    }

    /// The handle with a reference that the caller must release.
    pub fn into_raw(self) -> Result<*mut c_void> {
        foreign::retain_event(&*self.0).map(|raw| raw as *mut c_void)
    }
}

/// OpenCL events of a [`Fence`].
pub trait OpenClFenceExt {
    /// The events that must complete before this fence is reached, for code that enqueues commands itself. Empty if the fence
    /// is known to have been reached.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the work runs on a device without OpenCL events.
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
