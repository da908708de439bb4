//! A runtime over OpenCL (chipStar): the OpenCL objects behind its streams and events.
//!
//! A stream is an in-order `cl_command_queue` of the runtime: work enqueued there directly is ordered with HIP's work.
//! So a stream waits for an OpenCL event by a barrier in that queue. The runtime's own call that makes a HIP event from
//! a `cl_event` is not used: `hipStreamWaitEvent` treats such an event as never recorded, and succeeds without waiting.
//! In the other direction a recorded event *is* a `cl_event`, which OpenCL's queues can wait for; onebuf never adds a
//! reference to it, because the runtime releases it once too often when the HIP event is destroyed.

use super::{discover::Asked, event::Event, queue::RawQueue};
use onebuf_hal::{
    self as hal, Domain, LayeredHandles, Result,
    locks::{Arc, Mutex, lock},
};
use onebuf_sys::{Refused, cuda_like::CuStream};

impl Asked<'_> {
    /// Returns the OpenCL handles that this device is built on, if the runtime reports them and its events.
    pub fn layered(&self) -> Option<LayeredHandles> {
        let tells = self.table.has_native_handles() && self.table.has_native_event();
        let told = tells.then(|| self.ask_layered())?;
        told.inspect_err(|why| tracing::warn!(%why, "events are shared with no other API")).ok()
    }

    fn ask_layered(&self) -> Result<LayeredHandles, Refused> {
        // SAFETY: the first call has no preconditions; then the null stream of a device of this runtime; then the
        // previous device.
        unsafe {
            let before = self.table.current_device()?;
            self.table.set_device(self.device)?;
            let asked = self.table.native_stream(CuStream::NULL);
            self.table.set_device(before)?;
            asked.map(|native| LayeredHandles { device: native.device, context: native.context })
        }
    }
}

/// The OpenCL queue under a stream.
#[derive(Debug)]
pub(super) struct Below {
    queue: Arc<dyn hal::Queue>,
    /// Events that this queue waits for and that are not known to be over. `hipStreamQuery` cannot tell: it reports a
    /// stream as busy until a call has waited for the stream.
    awaited: Mutex<Vec<Arc<dyn hal::Event>>>,
}

impl Below {
    /// Returns the queue under a stream whose device is current; `None` if the hub does not use the device below.
    pub fn of(queue: &RawQueue) -> Result<Option<Below>> {
        let driver = queue.driver();
        let Some(layered_on) = &driver.layered_on else { return Ok(None) };
        // SAFETY: a live stream of the current device.
        let native = driver.check(unsafe { driver.table.native_stream(queue.raw) })?;
        // SAFETY: the runtime keeps it for as long as the stream lives.
        let queue = unsafe { layered_on.base_device.queue(native.queue) }?;
        Ok(Some(Below { queue, awaited: Mutex::default() }))
    }

    pub fn takes(&self, event: &dyn hal::Event) -> bool {
        self.queue.takes(event)
    }

    /// Makes later work of the stream wait. Records the event first, because another thread may check in between.
    pub fn wait_for(&self, event: &Arc<dyn hal::Event>) -> Result<()> {
        let mut awaited = lock(&self.awaited);
        awaited.retain(|known| !known.is_over());
        awaited.push(event.clone());
        drop(awaited);
        self.queue.wait_for(std::slice::from_ref(event))
    }

    /// Whether an event that the stream waits for is not over.
    pub fn is_waiting(&self) -> bool {
        let mut awaited = lock(&self.awaited);
        awaited.retain(|known| !known.is_over());
        !awaited.is_empty()
    }

    /// Starts the stream's work: the runtime starts it only when a call waits for it.
    pub fn flush(&self) -> Result<()> {
        self.queue.flush()
    }
}

impl Event {
    /// Returns the event's handle in the domain of the queue below, after flushing that queue.
    pub fn layered(&self, domain: Domain) -> Result<Option<usize>> {
        let Some(below) = self.below().filter(|below| below.queue.domain() == domain) else {
            return Ok(None);
        };
        // SAFETY: a live event, recorded when it was made.
        let native = unsafe { self.driver().table.event_beneath(self.handle()) };
        let native = self.driver().check(native)?;
        below.flush()?;
        Ok(Some(native))
    }
}
