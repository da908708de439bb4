//! The baseline: what a careful program without onebuf does with C calls alone.
//!
//! # Safety
//! Handles belong to onebuf's own queue, which is kept alive beside them, or are created here. Memory is only passed to
//! blocking calls. Nothing here is used by two threads.

#![allow(unsafe_code)]

mod bus;
mod clfft;
mod cuda;
mod semaphore;
mod udp;
mod udp_pair;

pub use bus::{Direction, RawBus};
pub use clfft::RawClFft;
pub use cuda::RawCuda;
pub use semaphore::RawSemaphores;
pub use udp::RawUdp;
pub use udp_pair::{RawPair, RawSender, lost_packets};

use crate::machine::{ITEMS, TOUCH, next, sum};
use onebuf::{Error, Queue, Result};
use onebuf_sys::{
    ClStatus,
    opencl::{
        ClContext, ClDevice, ClEvent, ClKernel, ClMem, ClPlatform, ClProgram, ClQueue,
        ExternalCalls, OpenCl, consts,
    },
};
use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    ptr::{null, null_mut},
    thread,
    time::{Duration, Instant},
};

/// Timeout of the raw calls.
const PATIENCE: Duration = Duration::from_secs(60);

/// The native handles of an onebuf queue, and the objects created for it.
pub struct RawQueue {
    cl: OpenCl,
    queue: ClQueue,
    context: ClContext,
    device: ClDevice,
    /// Objects to release with this queue, in reverse order.
    made: RefCell<Vec<Made>>,
    /// Keeps the handles alive.
    _owner: Queue,
}

enum Made {
    Queue(ClQueue),
    Mem(ClMem),
    Program(ClProgram),
    Kernel(ClKernel),
}

impl RawQueue {
    /// The handles of an OpenCL queue.
    ///
    /// # Safety
    /// The queue's hub loaded the default library, not one that the caller chose.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another API's queue; the driver's errors.
    pub unsafe fn new(owner: &Queue) -> Result<Self> {
        let queue = ClQueue(owner.raw() as *mut c_void);
        if queue.is_null() || owner.device().info().api.0 != "opencl" {
            return Err(Error::unsupported("the raw C calls", "an OpenCL queue"));
        }
        let cl = load()?;
        let (mut context, mut device) = (ClContext::NULL, ClDevice::NULL);
        let info = |name, to: *mut c_void| {
            // SAFETY: the queue is live; both answers have the size of one pointer, as `to` has.
            unsafe { cl.get_command_queue_info(queue, name, size_of::<usize>(), to, null_mut()) }
                .map_err(driver("clGetCommandQueueInfo"))
        };
        info(consts::CL_QUEUE_CONTEXT, (&raw mut context).cast())?;
        info(consts::CL_QUEUE_DEVICE, (&raw mut device).cast())?;
        let made = RefCell::default();
        Ok(Self { cl, queue, context, device, made, _owner: owner.clone() })
    }

    /// A separate queue in the same context. onebuf cannot know what is enqueued in a queue whose handle was given
    /// away.
    ///
    /// # Safety
    /// As for [`RawQueue::new`]; and `context` is the queue's.
    unsafe fn beside(owner: &Queue, context: *mut c_void) -> Result<Self> {
        let (cl, context, mut device) = (load()?, ClContext(context), ClDevice::NULL);
        let (devices, to) = (consts::CL_CONTEXT_DEVICES, (&raw mut device).cast());
        // SAFETY: the context is live and has one device.
        unsafe { cl.get_context_info(context, devices, size_of::<ClDevice>(), to, null_mut()) }
            .map_err(driver("clGetContextInfo"))?;
        // SAFETY: the context is live, and the device belongs to it.
        let queue = unsafe { cl.create_command_queue(context, device, 0) };
        let queue = queue.map_err(driver("clCreateCommandQueue"))?;
        let made = RefCell::new(vec![Made::Queue(queue)]);
        Ok(Self { cl, queue, context, device, made, _owner: owner.clone() })
    }

    /// The `cl_device_id`, for other libraries.
    pub fn device(&self) -> *mut c_void {
        self.device.0
    }

    fn buffer(&self, bytes: usize) -> Result<ClMem> {
        let Self { cl, context, .. } = self;
        // SAFETY: these flags take no host pointer.
        let mem =
            unsafe { cl.create_buffer(*context, consts::CL_MEM_READ_WRITE, bytes, null_mut()) };
        self.keep(mem.map_err(driver("clCreateBuffer"))?, Made::Mem)
    }

    /// Keeps foreign memory alive.
    ///
    /// # Safety
    /// `mem` is a live `cl_mem`.
    unsafe fn retain(&self, mem: ClMem) -> Result<ClMem> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.cl.retain_mem_object(mem) }.map_err(driver("clRetainMemObject"))?;
        self.keep(mem, Made::Mem)
    }

    /// The kernel [`TOUCH`].
    fn kernel(&self) -> Result<ClKernel> {
        let (at, len) = (TOUCH.as_ptr().cast(), TOUCH.len());
        let Self { cl, context, device, .. } = self;
        // SAFETY: `at` and `len` describe one string.
        let program =
            unsafe { cl.create_program_with_source(*context, 1, &raw const at, &raw const len) };
        let program =
            self.keep(program.map_err(driver("clCreateProgramWithSource"))?, Made::Program)?;
        // SAFETY: the device belongs to the context; no options, no callback.
        unsafe { cl.build_program(program, 1, device, null(), None, null_mut()) }
            .map_err(driver("clBuildProgram"))?;
        // SAFETY: the program is built; the name is NUL-terminated.
        let kernel = unsafe { cl.create_kernel(program, c"touch".as_ptr()) };
        self.keep(kernel.map_err(driver("clCreateKernel"))?, Made::Kernel)
    }

    /// Waits for a command with a timeout, which `clFinish` does not have, and releases its event.
    fn wait_for(&self, event: ClEvent) -> Result<()> {
        let waited = self.wait(event);
        // SAFETY: the enqueue returned one reference, which is released once.
        waited.and(unsafe { self.cl.release_event(event) }.map_err(driver("clReleaseEvent")))
    }

    fn wait(&self, event: ClEvent) -> Result<()> {
        let Self { cl, queue, .. } = self;
        if self.is_complete(event)? {
            return Ok(());
        }
        // SAFETY: the queue is live.
        unsafe { cl.flush(*queue) }.map_err(driver("clFlush"))?;
        let start = Instant::now();
        while !self.is_complete(event)? {
            if start.elapsed() > PATIENCE {
                return Err(Error::timeout("a kernel of the raw calls", PATIENCE));
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn is_complete(&self, event: ClEvent) -> Result<bool> {
        let (mut status, what) = (0_i32, consts::CL_EVENT_COMMAND_EXECUTION_STATUS);
        let (bytes, to) = (size_of::<i32>(), (&raw mut status).cast());
        // SAFETY: the event is live, and `to` has room for the answer.
        unsafe { self.cl.get_event_info(event, what, bytes, to, null_mut()) }
            .map_err(driver("clGetEventInfo"))?;
        match status {
            ..consts::CL_COMPLETE => Err(driver("a kernel")(ClStatus(status))),
            _ => Ok(status == consts::CL_COMPLETE),
        }
    }

    fn keep<T: Copy>(&self, handle: T, made: fn(T) -> Made) -> Result<T> {
        self.made.borrow_mut().push(made(handle));
        Ok(handle)
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let cl = &self.cl;
        for made in self.made.take().into_iter().rev() {
            // SAFETY: each was created or retained here once, and is no longer used. A benchmark ignores refusals.
            let _ = unsafe {
                match made {
                    Made::Queue(queue) => cl.release_command_queue(queue),
                    Made::Mem(mem) => cl.release_mem_object(mem),
                    Made::Program(program) => cl.release_program(program),
                    Made::Kernel(kernel) => cl.release_kernel(kernel),
                }
            };
        }
    }
}

/// The queries that a library makes of a `cl_mem`: no host pointer if the flags exclude it, and no offset unless it is
/// a sub-buffer.
const QUESTIONS: [u32; 6] = [
    consts::CL_MEM_TYPE,
    consts::CL_MEM_FLAGS,
    consts::CL_MEM_ASSOCIATED_MEMOBJECT,
    consts::CL_MEM_SIZE,
    consts::CL_MEM_CONTEXT,
    consts::CL_MEM_MAP_COUNT,
];

/// Memory as a library gets it, and a kernel that uses it.
pub struct RawWrap {
    launch: RawLaunch,
}

impl RawWrap {
    /// Creates zeroed memory in the queue's context.
    ///
    /// # Safety
    /// As for [`RawQueue::new`]; and `context` is the queue's.
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn new(queue: &Queue, context: *mut c_void) -> Result<Self> {
        const BYTES: usize = 4096;
        // SAFETY: guaranteed by the caller.
        let on = unsafe { RawQueue::beside(queue, context)? };
        let (kernel, mem) = (on.kernel()?, on.buffer(BYTES)?);
        let zeroes = [0_u8; BYTES];
        // SAFETY: `zeroes` has the size of the memory, and is not used after this call returns.
        unsafe {
            on.cl.enqueue_write_buffer(
                on.queue,
                mem,
                1,
                0,
                BYTES,
                zeroes.as_ptr().cast(),
                0,
                null(),
                null_mut(),
            )
        }
        .map_err(driver("clEnqueueWriteBuffer"))?;
        Ok(Self { launch: RawLaunch { on, kernel, mem, added: Cell::new(0) } })
    }

    /// The `cl_mem`, valid as long as this lives.
    pub fn mem(&self) -> *mut c_void {
        self.launch.mem.0
    }

    /// The sum of the kernel's launches so far.
    pub fn added(&self) -> u32 {
        self.launch.added()
    }

    /// Queries, retains, runs the kernel, and releases.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn used(&self) -> Result<()> {
        self.hold(|| self.launch.turn())
    }

    /// Queries, retains and releases, without the kernel.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn unused(&self) -> Result<()> {
        self.hold(|| Ok(()))
    }

    fn hold(&self, during: impl FnOnce() -> Result<()>) -> Result<()> {
        let RawLaunch { on: RawQueue { cl, .. }, mem, .. } = &self.launch;
        for question in QUESTIONS {
            let mut answer = 0_u64;
            let narrow = matches!(question, consts::CL_MEM_TYPE | consts::CL_MEM_MAP_COUNT);
            let size = if narrow { size_of::<u32>() } else { size_of::<u64>() };
            // SAFETY: `mem` is live; the answer is at most as large as its place.
            unsafe {
                cl.get_mem_object_info(*mem, question, size, (&raw mut answer).cast(), null_mut())
            }
            .map_err(driver("clGetMemObjectInfo"))?;
            std::hint::black_box(answer);
        }
        // SAFETY: `mem` is live; the reference taken here is released below.
        unsafe { cl.retain_mem_object(*mem) }.map_err(driver("clRetainMemObject"))?;
        during()?;
        // SAFETY: as above.
        unsafe { cl.release_mem_object(*mem) }.map_err(driver("clReleaseMemObject"))
    }
}

/// The kernel [`TOUCH`] on foreign memory.
pub struct RawLaunch {
    on: RawQueue,
    kernel: ClKernel,
    mem: ClMem,
    added: Cell<u32>,
}

impl RawLaunch {
    /// Builds the kernel.
    ///
    /// # Safety
    /// As for [`RawQueue::new`]; and `mem` is a `cl_mem` of the queue's context. After a call of [`RawLaunch::touch`]
    /// nothing else uses it until the queue has finished.
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn new(queue: &Queue, mem: *mut c_void) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let on = unsafe { RawQueue::new(queue)? };
        // SAFETY: guaranteed by the caller.
        let mem = unsafe { on.retain(ClMem(mem))? };
        Ok(Self { kernel: on.kernel()?, on, mem, added: Cell::new(0) })
    }

    /// Sets both arguments and enqueues, without an event. A program with several buffers or values must set them each time, too.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn touch(&self) -> Result<()> {
        self.enqueue(null_mut())
    }

    /// Sets both arguments and enqueues, with an event unless `event` is null.
    fn enqueue(&self, event: *mut ClEvent) -> Result<()> {
        let (add, global) = (next(&self.added), ITEMS);
        self.set(0, size_of::<ClMem>(), (&raw const self.mem).cast())?;
        self.set(1, size_of::<u32>(), (&raw const add).cast())?;
        let RawLaunch { on: RawQueue { cl, queue, .. }, kernel, .. } = self;
        let (size, none) = (&raw const global, null());
        // SAFETY: one dimension; one work-item accesses the memory, which only this queue uses by `new`'s contract.
        unsafe {
            cl.enqueue_nd_range_kernel(*queue, *kernel, 1, none, size, none, 0, null(), event)
        }
        .map_err(driver("clEnqueueNDRangeKernel"))
    }

    /// Launches once and waits for the launch's event.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn turn(&self) -> Result<()> {
        let mut event = ClEvent::NULL;
        self.enqueue(&raw mut event)?;
        self.on.wait_for(event)
    }

    /// Launches once on another API's memory, which is acquired before and released after, and waits.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn turn_with(&self, external: &ExternalCalls) -> Result<()> {
        self.borrowed(external)?;
        // SAFETY: the queue is live.
        unsafe { self.on.cl.finish(self.on.queue) }.map_err(driver("clFinish"))
    }

    /// Launches once on another API's memory, without waiting.
    fn borrowed(&self, external: &ExternalCalls) -> Result<()> {
        let RawLaunch { on: RawQueue { cl, queue, .. }, mem, .. } = self;
        // SAFETY: the queue is live, the memory belongs to its context, and `external` to its platform.
        unsafe { cl.enqueue_acquire_external(external, *queue, *mem) }
            .map_err(driver("clEnqueueAcquireExternalMemObjectsKHR"))?;
        self.touch()?;
        // SAFETY: as above.
        unsafe { cl.enqueue_release_external(external, *queue, *mem) }
            .map_err(driver("clEnqueueReleaseExternalMemObjectsKHR"))
    }

    /// The functions for another API's memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a platform that has none; the driver's errors.
    pub fn external(&self) -> Result<ExternalCalls> {
        // SAFETY: the platform is live, and declares the extension because it imported the memory.
        unsafe { self.on.cl.external_calls(self.platform()?) }.ok_or_else(|| {
            Error::unsupported("raw calls on imported memory", "a platform with them")
        })
    }

    fn platform(&self) -> Result<ClPlatform> {
        let RawQueue { cl, device, .. } = &self.on;
        let (mut platform, bytes) = (ClPlatform::NULL, size_of::<ClPlatform>());
        let (name, to) = (consts::CL_DEVICE_PLATFORM, (&raw mut platform).cast());
        // SAFETY: the device is live, and `to` has room for the answer.
        unsafe { cl.get_device_info(*device, name, bytes, to, null_mut()) }
            .map_err(driver("clGetDeviceInfo"))?;
        Ok(platform)
    }

    fn set(&self, index: u32, size: usize, value: *const c_void) -> Result<()> {
        // SAFETY: the values are of the kernel's parameter types, and only this thread sets them.
        unsafe { self.on.cl.set_kernel_arg(self.kernel, index, size, value) }
            .map_err(driver("clSetKernelArg"))
    }

    /// The sum of all launches so far.
    pub fn added(&self) -> u32 {
        sum(self.added.get())
    }
}

/// The simplest fast copy between two devices: one whole read, one whole write.
pub struct RawCopy {
    ends: [(RawQueue, ClMem); 2],
    /// The host memory. Its pages are allocated before the measurement.
    host: Vec<u8>,
}

impl RawCopy {
    /// Allocates one buffer on each device, and host memory between them.
    ///
    /// # Safety
    /// As for [`RawQueue::new`], for both.
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn new(queues: [&Queue; 2], bytes: usize) -> Result<Self> {
        let end = |queue: &Queue| -> Result<_> {
            // SAFETY: guaranteed by the caller.
            let queue = unsafe { RawQueue::new(queue)? };
            let mem = queue.buffer(bytes)?;
            Ok((queue, mem))
        };
        // `vec![0; …]` would return pages that are not allocated yet.
        Ok(Self { ends: [end(queues[0])?, end(queues[1])?], host: vec![1; bytes] })
    }

    /// Copies from one device's buffer to the other's, and waits.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<()> {
        let (bytes, host) = (self.host.len(), self.host.as_mut_ptr());
        let (RawQueue { cl, queue, .. }, mem) = &self.ends[from];
        // SAFETY: the buffer and the host's memory have `bytes` bytes each; the call blocks.
        unsafe {
            cl.enqueue_read_buffer(*queue, *mem, 1, 0, bytes, host.cast(), 0, null(), null_mut())
        }
        .map_err(driver("clEnqueueReadBuffer"))?;
        let (RawQueue { cl, queue, .. }, mem) = &self.ends[to];
        // SAFETY: as above.
        unsafe {
            cl.enqueue_write_buffer(*queue, *mem, 1, 0, bytes, host.cast(), 0, null(), null_mut())
        }
        .map_err(driver("clEnqueueWriteBuffer"))
    }
}

/// One blocking write of host memory into a device buffer, as a program without onebuf does with host memory.
pub struct RawWrite {
    on: RawQueue,
    mem: ClMem,
    bytes: usize,
}

impl RawWrite {
    /// Allocates a buffer on the device.
    ///
    /// # Safety
    /// As for [`RawQueue::new`].
    ///
    /// # Errors
    /// The driver's errors.
    pub unsafe fn new(queue: &Queue, bytes: usize) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let on = unsafe { RawQueue::new(queue)? };
        let mem = on.buffer(bytes)?;
        Ok(Self { on, mem, bytes })
    }

    /// Copies, and waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another length than the buffer's; the driver's errors.
    pub fn write(&self, from: &[u8]) -> Result<()> {
        if from.len() != self.bytes {
            return Err(Error::invalid("a slice of another length than the buffer"));
        }
        let (RawQueue { cl, queue, .. }, mem) = (&self.on, self.mem);
        let (bytes, host) = (self.bytes, from.as_ptr().cast());
        // SAFETY: both have `bytes` bytes; the call blocks.
        unsafe { cl.enqueue_write_buffer(*queue, mem, 1, 0, bytes, host, 0, null(), null_mut()) }
            .map_err(driver("clEnqueueWriteBuffer"))
    }
}

fn load() -> Result<OpenCl> {
    OpenCl::load(None, None).map_err(|missing| Error::Unavailable {
        what: "OpenCL".into(),
        tried: missing.tried,
        reason: missing.reason,
    })
}

fn driver(call: &'static str) -> impl Fn(ClStatus) -> Error {
    move |status| {
        let name = status.name().unwrap_or("unknown").to_owned();
        Error::Driver { api: "opencl", call, code: status.0, name }
    }
}
