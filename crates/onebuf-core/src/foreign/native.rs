//! A buffer's memory on one device, for other code that keeps its handle.

use crate::{Buffer, device::Device};
use bytemuck::Pod;
use onebuf_hal::{Error, Memory, RawHandle, Result, locks::Arc};
use std::fmt;

/// A buffer's memory on one device. The native handle is valid while this lives, even if the buffer is dropped.
///
/// It grants no access: the bytes may be used while a view of the buffer on a queue of that device is held, and by work
/// submitted to that queue under the view.
#[derive(Clone)]
pub struct NativeMemory {
    memory: Arc<dyn Memory>,
    api: &'static str,
}

impl NativeMemory {
    /// The handle (`cl_mem`, `VkBuffer`, OpenGL name) or address (SVM, `CUdeviceptr`).
    pub fn raw(&self) -> RawHandle {
        self.memory.raw()
    }

    /// The byte in the handle's object at which the buffer begins.
    pub fn offset(&self) -> u64 {
        self.memory.raw_offset() as u64
    }

    /// The size of the buffer.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The API of the handle.
    pub fn api(&self) -> &'static str {
        self.api
    }

    /// The handle, if it is an object of that API.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an address, and for another API.
    pub fn object(&self, api: &str) -> Result<u64> {
        match self.raw() {
            RawHandle::Object(object) if self.api == api => Ok(object as u64),
            _ => {
                let what = format!("an object of {api} for memory of {}", self.api);
                Err(Error::unsupported(what, format!("a device of {api} that uses objects")))
            }
        }
    }
}

impl fmt::Debug for NativeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeMemory").field("api", &self.api).field("raw", &self.raw()).finish()
    }
}

impl<T: Pod> Buffer<T> {
    /// Returns the buffer's memory on that device, for code that keeps the native handle longer than a view: a `wgpu::Buffer`
    /// made of it, for example. The buffer never returns to a pool.
    ///
    /// ```
    /// # let hub = onebuf::discover()?;
    /// # let buffer = hub.buffer::<u32>(4).build()?;
    /// let memory = buffer.native_memory(&hub.host())?;
    /// assert_eq!((memory.api(), memory.bytes()), ("host", 16));
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotShared`]; [`Error::Unsupported`] if the device accesses the buffer through a mapping that does not
    /// last.
    pub fn native_memory(&self, device: &Device) -> Result<NativeMemory> {
        if !self.hub().is(device.hub()) {
            return Err(Error::invalid(format!("device {device} belongs to another hub")));
        }
        let (core, ix) = (self.whole_core()?, device.index());
        let alias = core.alias_of(ix).ok_or_else(|| core.not_shared(ix))?;
        let memory = core.aliases[alias].memory().ok_or_else(|| {
            let what = format!("memory of the buffer on {device} that lasts");
            Error::unsupported(what, "a device with memory of its own; use a map")
        })?;
        self.detach();
        Ok(NativeMemory { memory: memory.clone(), api: device.info().api.0 })
    }
}
