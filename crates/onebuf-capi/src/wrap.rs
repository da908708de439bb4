//! Wrapping
//!
//! Memory and queues that the application created, used like those of onebuf, without a copy. onebuf holds one
//! reference to each while it uses it, and releases exactly that one; a call that fails leaves every reference count
//! unchanged.
//!
//! Rules for the owner. While a view or mapping of a wrapped buffer is held, and until work enqueued under it is done,
//! the owner may use the memory only as other views could: not at all beside a writer, for reading beside readers. Tell
//! onebuf about work that the owner has enqueued: `after`, onebuf_buffer_written_until(), onebuf_queue_wait_for(). When
//! the last handle of a wrapped buffer is freed, onebuf's work is done and the memory is unmapped and up to date;
//! onebuf_buffer_hand_to() instead orders the owner's queue after that work.

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    foreign::{native, onebuf_context},
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, array, options, out, text_if_given},
    kept::{Buf, Kept, Whole},
    queue::onebuf_queue,
    status::onebuf_status,
    words::{self, onebuf_copies, onebuf_route, onebuf_sync_method},
};
use onebuf::{Buffer, Device, Fence, WrapBuilder, prelude::*};
use std::{
    ffi::{c_char, c_void},
    ptr::NonNull,
    sync::Arc,
};

/// Options of a wrapped buffer. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_wrap_options {
    /// `sizeof(onebuf_wrap_options)`.
    pub size: usize,
    /// The required size in bytes; zero: any.
    pub bytes: usize,
    /// Other devices that use it, besides those of its own context.
    pub devices: *const onebuf_device,
    /// Number of devices.
    pub device_count: usize,
    /// Fences after which the owner's work on the memory is done; users of the buffer wait for them.
    pub after: *const onebuf_fence,
    /// Number of fences.
    pub after_count: usize,
    /// What to do about implied copies. The stricter of this and the hub's policy applies.
    pub copies: onebuf_copies,
    /// Forces the route by which the other devices access it.
    pub route: onebuf_route,
    /// Not zero: also uses routes and callbacks that drivers declare but no experiment has proven on this machine.
    pub trust_declared: u32,
    /// Takes over the caller's reference, unless NULL: called once with the native handle (or pointer), when onebuf no
    /// longer uses the memory and all its work on it is done. It may be called on any thread, inside of any call that
    /// frees something; it must not throw, and must not wrap the same memory again. It is not called if the call fails:
    /// then the reference stays the caller's.
    pub release: Option<unsafe extern "C" fn(native: *mut c_void, user: *mut c_void)>,
    /// The second argument of `release`.
    pub release_user: *mut c_void,
    /// Not zero: allows ONEBUF_ROUTE_RAW_ADDRESS, as in `onebuf_buffer_options`.
    pub raw_addresses: u32,
    /// A name for messages, logs and traces; NULL: a number.
    pub name: *const c_char,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_wrap_options {}

/// The caller's function, and its argument.
struct Release {
    run: unsafe extern "C" fn(*mut c_void, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the caller guarantees that any thread may call the function.
unsafe impl Send for Release {}

impl Release {
    fn call(self, native: *mut c_void) {
        // SAFETY: the caller's function, called with its arguments.
        unsafe { (self.run)(native, self.user) }
    }
}

/// Options after validation, with the objects of their handles.
pub(crate) struct WrapOptions {
    given: onebuf_wrap_options,
    devices: Vec<Arc<Device>>,
    after: Vec<Arc<Fence>>,
    name: Option<String>,
}

impl WrapOptions {
    /// # Safety
    /// As for [`onebuf_buffer_wrap`].
    pub(crate) unsafe fn read(given: *const onebuf_wrap_options) -> Result<Self> {
        // SAFETY: guaranteed by the caller, for all of these.
        let (given, devices, after, name) = unsafe {
            let given = options(given)?;
            let devices = array(given.devices, given.device_count, "devices")?;
            let after = array(given.after, given.after_count, "after")?;
            (given, devices, after, text_if_given(given.name, "name")?)
        };
        let devices = devices.iter().map(|device| device.get()).collect::<Result<_>>()?;
        let after = after.iter().map(|fence| fence.get()).collect::<Result<_>>()?;
        Ok(Self { given, devices, after, name: name.map(str::to_owned) })
    }

    /// The required size in bytes; zero: any.
    pub(crate) fn bytes(&self) -> usize {
        self.given.bytes
    }

    pub(crate) fn build<'w>(&'w self, mut builder: WrapBuilder<'w, u8>) -> Result<Buffer<u8>> {
        let given = &self.given;
        builder = builder.shared_with(self.devices.iter().map(|device| &**device));
        builder =
            builder.copies(words::copies(given.copies)?).trust_declared(given.trust_declared != 0);
        builder = builder.raw_addresses(given.raw_addresses != 0);
        if let Some(route) = words::route(given.route)? {
            builder = builder.route(route);
        }
        if let Some(name) = &self.name {
            builder = builder.name(name);
        }
        if given.bytes > 0 {
            builder = builder.len(given.bytes);
        }
        builder = self.after.iter().fold(builder, |builder, fence| builder.after(fence));
        if let Some(run) = given.release {
            let release = Release { run, user: given.release_user };
            builder = builder.owned(move |native| release.call(native));
        }
        Ok(builder.build()?)
    }
}

/// Wraps a `cl_mem` of the application. The devices of its context access it, the host accesses it through mappings,
/// and the devices in the options by the routes that the plan finds. `options` may be NULL.
///
/// A sub-buffer is wrapped as a region of its parent. All wraps of one memory object, its parent and its sub-buffers
/// share one state: views of one exclude views of the other, and each is ordered after the other's work.
/// ONEBUF_INVALID_ARGUMENT for another size than the options require; ONEBUF_BUSY while its owner has it mapped. Do not
/// wrap memory of a buffer of the same hub.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap(
    hub: onebuf_hub,
    cl_mem: *mut c_void,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        let (hub, cl_mem) = (hub.get()?, native(cl_mem, "cl_mem")?);
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let made = unsafe {
            let builder = WrapOptions::read(options)?;
            builder.build(hub.hub.wrap_buffer(cl_mem))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// Wraps shared virtual memory that the application allocated in its context: `bytes` bytes at `pointer`, which stay
/// allocated until the buffer is gone. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_wrap_svm(
    context: onebuf_context,
    pointer: *mut c_void,
    bytes: usize,
    options: *const onebuf_wrap_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let buffer = out(buffer, "buffer")?;
        let context = &context.get()?.context;
        let pointer = NonNull::new(pointer.cast()).ok_or(Fault::Null("pointer"))?;
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let made = unsafe {
            let builder = WrapOptions::read(options)?;
            if ![0, bytes].contains(&builder.given.bytes) {
                return Err(Fault::invalid("`options.bytes` differs from `bytes`"));
            }
            builder.build(context.hub().wrap_svm(context, pointer, bytes))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// Wraps a `cl_command_queue` of the application. Commands of its owner and of onebuf are ordered in it, and
/// onebuf_queue_fence() covers both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_wrap(
    hub: onebuf_hub,
    cl_queue: *mut c_void,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        // SAFETY: guaranteed by the caller.
        let made = unsafe { hub.get()?.hub.wrap_queue(native(cl_queue, "cl_queue")?)? };
        *queue = onebuf_queue::put(made)?;
        Ok(())
    })
}

/// Creates a queue on the device and in the context where the buffer is allocated, for work on this buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_queue_for(
    buffer: onebuf_buffer,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        let buffer = buffer.get()?;
        let (whole, _) = buffer.whole();
        *queue = onebuf_queue::put(whole.hub().queue_for(whole)?)?;
        Ok(())
    })
}

/// Whether the buffer wraps foreign memory.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_is_foreign(
    buffer: onebuf_buffer,
    foreign: Slot<'_, bool>,
) -> onebuf_status {
    entry(|| {
        *out(foreign, "foreign")? = buffer.get()?.whole().0.is_foreign();
        Ok(())
    })
}

/// Tells onebuf that foreign writes to this memory end at the fence: the next user of the buffer waits for it.
/// ONEBUF_BUSY while a view or mapping of it is held, and while its newest contents are elsewhere: see
/// onebuf_buffer_hand_to(). For a region this applies to the whole buffer, here and below.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_written_until(
    buffer: onebuf_buffer,
    fence: onebuf_fence,
) -> onebuf_status {
    entry(|| Ok(buffer.get()?.whole().0.written_until(&*fence.get()?)?))
}

/// Tells onebuf that foreign reads of this memory end at the fence: the next writer of the buffer waits for it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_read_until(
    buffer: onebuf_buffer,
    fence: onebuf_fence,
) -> onebuf_status {
    entry(|| Ok(buffer.get()?.whole().0.read_until(&*fence.get()?)?))
}

/// Makes the newest contents visible on that queue and orders it after all work on the buffer, for commands that its
/// owner will enqueue there. Returns the sync method; `sync_method` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_hand_to(
    buffer: onebuf_buffer,
    queue: onebuf_queue,
    sync_method: Slot<'_, onebuf_sync_method>,
) -> onebuf_status {
    entry(|| {
        let used = buffer.get()?.whole().0.hand_to(&*queue.get()?)?;
        if let Some(sync_method) = sync_method {
            sync_method.write(words::sync_method_number(used));
        }
        Ok(())
    })
}

/// Gives up the buffer for its `cl_mem` on that device. The caller owns one reference and must release it. All work on
/// it is done, it holds the newest contents, and the memory below it stays until the driver destroys it; it never
/// returns to a pool. ONEBUF_BUSY, and nothing happens, while anything made from the buffer is not freed. After any
/// other failure the buffer is gone.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_into_cl_mem(
    buffer: onebuf_buffer,
    device: onebuf_device,
    cl_mem: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        let cl_mem = out(cl_mem, "cl_mem")?;
        let device = device.get()?;
        match &buffer.get()?.buf {
            Buf::Region { .. } => {
                return Err(Fault::invalid("a region cannot be given up: give its buffer up"));
            }
            Buf::Whole(Whole::Attached(_)) => {
                return Err(Fault::invalid("another process's buffer cannot be given up"));
            }
            Buf::Whole(Whole::Own(_)) => {}
        }
        let Buf::Whole(Whole::Own(whole)) = buffer.take_alone(Kept::is_free)?.buf else {
            unreachable!("no handle changes")
        };
        *cl_mem = whole.into_cl_mem(&device)?;
        Ok(())
    })
}
