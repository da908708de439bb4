//! The CUDA side of the baseline.
//!
//! # Safety
//! The stream is that of onebuf's own queue, which is kept alive beside it. The context is pushed when this is made
//! and popped when it is dropped, both on one thread: it is not `Send`.

use crate::machine::{ITEMS, TOUCH_PTX, next, sum};
use onebuf::{Error, Queue, Result};
use onebuf_sys::{
    CuStatus, Flavor, Refused,
    cuda_like::{CuContext, CuFunction, CuModule, CuStream, CudaLike, DevicePtr, consts},
};
use std::{
    cell::Cell,
    ffi::{CString, c_void},
    ptr::null_mut,
    time::{Duration, Instant},
};

/// How long a benchmark waits for its stream.
const LIMIT: Duration = Duration::from_secs(60);

/// The kernel of `TOUCH_PTX` on foreign memory.
pub struct RawCuda {
    pub(super) cu: CudaLike,
    device: i32,
    context: CuContext,
    module: CuModule,
    function: CuFunction,
    pub(super) stream: CuStream,
    at: DevicePtr,
    /// Whether this owns the memory at `at`.
    owned: bool,
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
        let (device, context, module, function) = unsafe {
            let device = cu.device(ordinal).map_err(refused)?;
            let context: CuContext = cu.retain_primary(device).map_err(refused)?;
            cu.push_current(context).map_err(refused)?;
            let image = text.as_ptr().cast::<c_void>();
            let module = cu.load_module(image, 0, null_mut(), null_mut()).map_err(refused)?;
            let function = cu.module_function(module, c"touch".as_ptr()).map_err(refused)?;
            (device, context, module, function)
        };
        let (stream, at) = (CuStream(owner.raw() as *mut c_void), DevicePtr(at));
        let added = Cell::new(0);
        let (owned, _owner) = (false, owner.clone());
        Ok(Self { cu, device, context, module, function, stream, at, owned, added, _owner })
    }

    /// Loads the kernel, and allocates zeroed memory as an application does.
    ///
    /// # Safety
    /// The queue's hub loaded the default library.
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn with_memory(owner: &Queue, bytes: usize) -> Result<Self> {
        // SAFETY: the caller's promise; the address is set below, before the first use.
        let mut raw = unsafe { Self::new(owner, 0) }?;
        // SAFETY: the context is current, and the memory is as long as the fill.
        unsafe {
            raw.at = raw.cu.alloc(bytes).map_err(|refused| driver(&raw.cu, refused))?;
            raw.owned = true;
            let filled = raw.cu.fill_u8_async(raw.at, 0, bytes, raw.stream);
            filled.map_err(|refused| driver(&raw.cu, refused))?;
        }
        raw.drain()?;
        Ok(raw)
    }

    /// The address of the memory.
    pub fn pointer(&self) -> *mut c_void {
        self.at.0 as usize as *mut c_void
    }

    /// Asks the driver what a wrap must know: context, addresses, kind, device, allocation and handle types. Makes the context
    /// current and restores it, as a library must.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn query(&self) -> Result<()> {
        let mut attributes = [
            consts::POINTER_CONTEXT,
            consts::POINTER_DEVICE_ADDRESS,
            consts::POINTER_HOST_ADDRESS,
            consts::POINTER_IS_MANAGED,
            consts::POINTER_DEVICE,
            consts::POINTER_RANGE_START,
            consts::POINTER_RANGE_BYTES,
            consts::POINTER_HANDLE_TYPES,
        ];
        let mut values = [0u64; 8];
        let mut places: [*mut c_void; 8] = std::array::from_fn(|n| (&raw mut values[n]).cast());
        let mut popped = CuContext::NULL;
        // SAFETY: the context is live, and there is a place of eight bytes for each attribute.
        let asked = unsafe {
            self.cu.push_current(self.context).and_then(|()| {
                let (attributes, places) = (attributes.as_mut_ptr(), places.as_mut_ptr());
                let asked = self.cu.pointer_attributes(8, attributes, places, self.at);
                asked.and(self.cu.pop_current(&raw mut popped))
            })
        };
        std::hint::black_box(values);
        asked.map_err(|refused| driver(&self.cu, refused))
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
        let start = Instant::now();
        // The clock is read seldom: reading it takes a part of the time that is measured.
        for polls in 1u64.. {
            // SAFETY: the stream is live.
            match unsafe { cu.stream_query(*stream) } {
                Err(refused) if refused.status == CuStatus::NOT_READY => std::hint::spin_loop(),
                done => return done.map_err(|refused| driver(cu, refused)),
            }
            if polls.is_multiple_of(1 << 16) && start.elapsed() > LIMIT {
                break;
            }
        }
        Err(Error::timeout("the raw stream", LIMIT))
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
            if self.owned {
                let _ = self.cu.free(self.at);
            }
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
