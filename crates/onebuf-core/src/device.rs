//! Devices as callers hold them.

use crate::{Hub, Program, Queue, QueuePool, Source, foreign::Registration, topology::DeviceIx};
use onebuf_hal::{DeviceInfo, Error, QueueSpec, Result, locks::Arc};
use std::fmt;

/// One API's view of one chip, such as `host` or `opencl:0`. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    hub: Hub,
    ix: DeviceIx,
    /// Keeps the foreign context that it belongs to, if it does.
    foreign_device: Option<Arc<Registration>>,
}

impl Device {
    #[doc(hidden)]
    pub fn new(hub: &Hub, ix: DeviceIx) -> Self {
        Self { hub: hub.clone(), ix, foreign_device: hub.foreign_devices().of(ix) }
    }

    /// Its id, such as `opencl:0`.
    pub fn id(&self) -> &str {
        &self.hub.topology().node(self.ix).id
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.hub.topology().node(self.ix).info
    }

    /// Its place in the hub's list, for [`crate::plan::Request`].
    pub fn index(&self) -> DeviceIx {
        self.ix
    }

    /// Whether it is one of a foreign context.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign_device.is_some()
    }

    /// The hub it belongs to.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// A new in-order queue.
    pub fn queue(&self) -> Result<Queue> {
        let plain = QueueSpec::default();
        if self.hub.tracer().wants_device_times() {
            match self.queue_with(plain.profiled()) {
                Err(Error::Unsupported { .. }) => {}
                opened => return opened,
            }
        }
        self.queue_with(plain)
    }

    /// A new queue, out of order or with profiling.
    ///
    /// ```
    /// # use onebuf::QueueSpec;
    /// let hub = onebuf::discover()?;
    /// let timed = hub.host().queue_with(QueueSpec::default().profiled())?;
    /// # let _ = timed;
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Unsupported`] where the device has no out-of-order queues.
    pub fn queue_with(&self, spec: QueueSpec) -> Result<Queue> {
        Queue::new(&self.hub, self.ix, spec)
    }

    /// So many new queues, to be handed out in turn or by how busy they are.
    ///
    /// # Errors
    /// As for [`Device::queue_with`], and for a count of zero.
    pub fn queues(&self, count: usize, spec: QueueSpec) -> Result<QueuePool> {
        QueuePool::new(self, count, spec)
    }

    /// A program for this device: remembered by the hub, loaded from the cache folder, or compiled now;
    /// [`Program::origin`] says which. Threads that ask for the same program at the same time get one, which
    /// one of them builds. A failure is not remembered. Programs that read files (`#include`, `-I`) are
    /// compiled each time, as nothing here would notice that a file changed.
    ///
    /// # Errors
    /// [`onebuf_hal::Error::Build`] with the compiler's log and the source lines it speaks of;
    /// [`onebuf_hal::Error::Unsupported`] when the source has no form that this device takes;
    /// [`onebuf_hal::Error::Timeout`] when another thread is building the same for longer than the hub waits.
    pub fn program(&self, source: &Source) -> Result<Program> {
        Program::build(self, source)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.id(), self.info().name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}
