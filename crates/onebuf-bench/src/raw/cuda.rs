//! The CUDA side of the baseline.
//!
//! # Safety
//! The stream is that of onebuf's own queue, which is kept alive beside it. The context is pushed when this is made
//! and popped when it is dropped, both on one thread: it is not `Send`.

use crate::machine::{ITEMS, TOUCH_PTX, next, sum};
use onebuf::{Error, Queue, Result};
use onebuf_sys::{
    CuStatus, Flavor, Refused,
    cuda_like::{CuContext, CuFunction, CuModule, CuStream, CudaLike, DevicePtr},
};
use std::{
    cell::Cell,
    ffi::{CString, c_void},
    ptr::null_mut,
};

/// The kernel of `TOUCH_PTX` on foreign memory.
pub struct RawCuda {
    pub(super) cu: CudaLike,
    device: i32,
    module: CuModule,
    function: CuFunction,
    pub(super) stream: CuStream,
    at: DevicePtr,
    added: Cell<u32>,
    /// Keeps the stream alive.
    _owner: Queue,
}

impl RawCuda {
    /// Loads the kernel.
    ///
    /// # Safety
    /// The queue's hub loaded the default library, and `at` is a device address of the queue's device. Nothing else
    /// uses it while [`RawCuda::turn`] runs.
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn new(owner: &Queue, at: u64) -> Result<Self> {
        let cu = CudaLike::load(Flavor::Cuda, None, None).map_err(|missing| {
            Error::Unavailable { what: "CUDA".into(), tried: missing.tried, reason: missing.reason }
        })?;
        let id = owner.device().id().to_owned();
        let ordinal = id.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        let ordinal = ordinal.ok_or_else(|| Error::unsupported("raw CUDA", "a CUDA queue"))?;
        let text = CString::new(TOUCH_PTX).map_err(|_| Error::invalid("PTX with a zero in it"))?;
        let refused = |refused| driver(&cu, refused);
        // SAFETY: the driver is initialised, because onebuf found the device; the text is NUL-terminated; the stream belongs to
        // the primary context, which onebuf uses.
        let (device, module, function) = unsafe {
            let device = cu.device(ordinal).map_err(refused)?;
            let context: CuContext = cu.retain_primary(device).map_err(refused)?;
            cu.push_current(context).map_err(refused)?;
            let image = text.as_ptr().cast::<c_void>();
            let module = cu.load_module(image, 0, null_mut(), null_mut()).map_err(refused)?;
            (device, module, cu.module_function(module, c"touch".as_ptr()).map_err(refused)?)
        };
        let (stream, at) = (CuStream(owner.raw() as *mut c_void), DevicePtr(at));
        let added = Cell::new(0);
        Ok(Self { cu, device, module, function, stream, at, added, _owner: owner.clone() })
    }

    /// One launch, without waiting.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn touch(&self) -> Result<()> {
        let (mut at, mut add) = (self.at, next(&self.added));
        let mut parameters = [(&raw mut at).cast::<c_void>(), (&raw mut add).cast()];
        let Self { cu, function, stream, .. } = self;
        let items = ITEMS as u32;
        // SAFETY: two parameters of the kernel's types; one thread accesses the memory, which only this stream uses by `new`'s
        // contract.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            cu.launch(*function, 1, 1, 1, items, 1, 1, 0, *stream, parameters, null_mut())
        }
        .map_err(|refused| driver(cu, refused))
    }

    /// Launches once and polls the stream until it is empty.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn turn(&self) -> Result<()> {
        self.touch()?;
        self.drain()
    }

    /// Waits until the stream is empty.
    pub(super) fn drain(&self) -> Result<()> {
        let Self { cu, stream, .. } = self;
        loop {
            // SAFETY: the stream is live.
            match unsafe { cu.stream_query(*stream) } {
                Err(refused) if refused.status == CuStatus::NOT_READY => std::hint::spin_loop(),
                done => return done.map_err(|refused| driver(cu, refused)),
            }
        }
    }

    /// The sum of all launches so far.
    pub fn added(&self) -> u32 {
        sum(self.added.get())
    }
}

impl Drop for RawCuda {
    fn drop(&mut self) {
        let mut popped = CuContext::NULL;
        // SAFETY: each was created here once, and is no longer used. A benchmark ignores refusals.
        unsafe {
            let _ = self.cu.unload_module(self.module);
            let _ = self.cu.pop_current(&raw mut popped);
            let _ = self.cu.release_primary(self.device);
        }
    }
}

pub(super) fn driver(cu: &CudaLike, refused: Refused) -> Error {
    let Refused { call, status } = refused;
    Error::Driver { api: "cuda", call, code: status.0, name: cu.error_name(status) }
}
