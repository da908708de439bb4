//! Wrapping
//!
//! Memory and queues that somebody else made, used like those of onebuf, without a copy. onebuf holds one
//! reference to each while it uses it, and gives up exactly that one; a call that fails leaves every count as
//! it was.
//!
//! The owner's side. While a view or mapping of a wrapped buffer is held, and until work that was enqueued
//! under it is done, its owner does with the memory only what that allows: nothing beside a writer, reads
//! beside readers. What the owner has enqueued is the caller's to tell: `after`, onebuf_buffer_written_until(),
//! onebuf_queue_wait_for(). What onebuf has enqueued is over, and the memory unmapped and up to date, when the
//! last handle of a wrapped buffer was freed; onebuf_buffer_hand_to() orders the owner's queue behind it instead.

use crate::{
    buffer::onebuf_buffer,
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    foreign::{native, onebuf_context},
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, array, options, out},
    kept::{Buf, Kept, Whole},
    queue::onebuf_queue,
    status::onebuf_status,
    words::{self, onebuf_copies, onebuf_route, onebuf_sync_method},
};
use onebuf::{Buffer, Device, Fence, WrapBuilder, prelude::*};
use std::{ffi::c_void, ptr::NonNull, sync::Arc};

/// How foreign memory is to be used. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_wrap_options {
    /// `sizeof(onebuf_wrap_options)`.
    pub size: usize,
    /// How many bytes it must have; zero: as many as it has.
    pub bytes: usize,
    /// Other devices that use it, beside those of its own context.
    pub devices: *const onebuf_device,
    /// How many devices.
    pub device_count: usize,
    /// The owner's work on it ends there: whoever uses the buffer waits for these.
    pub after: *const onebuf_fence,
    /// How many fences.
    pub after_count: usize,
    /// What to do about implied copies; of this and the hub's choice the stricter holds.
    pub copies: onebuf_copies,
    /// Forces how the other devices see it.
    pub route: onebuf_route,
    /// Not zero: uses routes that drivers declare, and callbacks, although no experiment has proven them here.
    pub trust_declared: u32,
    /// Takes the caller's reference over, unless NULL: called once with the native handle (or pointer), when
    /// onebuf has done with the memory and all its work on it is over. It may be called on any thread, inside
    /// of any call that frees something; it must not throw, and must not wrap the same memory again. Not called
    /// when the call fails: then nothing was taken over.
    pub release: Option<unsafe extern "C" fn(native: *mut c_void, user: *mut c_void)>,
    /// What `release` is given besides.
    pub release_user: *mut c_void,
    /// Not zero: allows ONEBUF_ROUTE_RAW_ADDRESS, as in `onebuf_buffer_options`.
    pub raw_addresses: u32,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_wrap_options {}

/// The caller's function, and its argument.
struct Release {
    run: unsafe extern "C" fn(*mut c_void, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the caller promised that any thread may call.
unsafe impl Send for Release {}

impl Release {
    fn call(self, native: *mut c_void) {
        // SAFETY: the caller's function, with the arguments it is for.
        unsafe { (self.run)(native, self.user) }
    }
}

/// Options that were read, and what their handles name.
struct WrapOptions {
    given: onebuf_wrap_options,
    devices: Vec<Arc<Device>>,
    after: Vec<Arc<Fence>>,
}

impl WrapOptions {
    /// # Safety
    /// As for [`onebuf_buffer_wrap`].
    unsafe fn read(given: *const onebuf_wrap_options) -> Result<Self> {
        // SAFETY: the caller's promise, for all of these.
        let (given, devices, after) = unsafe {
            let given = options(given)?;
            let devices = array(given.devices, given.device_count, "devices")?;
            (given, devices, array(given.after, given.after_count, "after")?)
        };
        let devices = devices.iter().map(|device| device.get()).collect::<Result<_>>()?;
        let after = after.iter().map(|fence| fence.get()).collect::<Result<_>>()?;
        Ok(Self { given, devices, after })
    }

    fn build<'w>(&'w self, mut builder: WrapBuilder<'w, u8>) -> Result<Buffer<u8>> {
        let given = &self.given;
        builder = builder.shared_with(self.devices.iter().map(|device| &**device));
        builder =
            builder.copies(words::copies(given.copies)?).trust_declared(given.trust_declared != 0);
        builder = builder.raw_addresses(given.raw_addresses != 0);
        if let Some(route) = words::route(given.route)? {
            builder = builder.route(route);
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

/// A buffer over a `cl_mem` that somebody else made. The devices of its context see it, the host sees it
/// through mappings, and other devices by the routes that the plan finds, when the options name them.
/// `options` may be NULL.
///
/// A sub-buffer is wrapped as what it is: a region of its parent. All wraps of one memory object, of its parent
/// and of its parts share one state: views of one exclude views of the other, and each is ordered after the
/// other's work. ONEBUF_INVALID_ARGUMENT for another number of bytes; ONEBUF_BUSY while its owner has it mapped.
/// Not for what a buffer of the same hub was made of.
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
        // SAFETY: the caller's promise, also about what the options point at.
        let made = unsafe {
            let builder = WrapOptions::read(options)?;
            builder.build(hub.hub.wrap_buffer(cl_mem))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// A buffer over shared virtual memory that somebody else allocated in their context: so many bytes from
/// `pointer` on, which stay allocated until the buffer is gone. `options` may be NULL.
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
        // SAFETY: the caller's promise, also about what the options point at.
        let made = unsafe {
            let builder = WrapOptions::read(options)?;
            if ![0, bytes].contains(&builder.given.bytes) {
                return Err(Fault::invalid("options of another number of bytes"));
            }
            builder.build(context.hub().wrap_svm(context, pointer, bytes))?
        };
        *buffer = onebuf_buffer::put(made.into())?;
        Ok(())
    })
}

/// A `cl_command_queue` that somebody else made, to be used like one of ours. What its owner enqueues there is
/// in order with what we do, and onebuf_queue_fence() covers both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_queue_wrap(
    hub: onebuf_hub,
    cl_queue: *mut c_void,
    queue: Slot<'_, onebuf_queue>,
) -> onebuf_status {
    entry(|| {
        let queue = out(queue, "queue")?;
        // SAFETY: the caller's promise.
        let made = unsafe { hub.get()?.hub.wrap_queue(native(cl_queue, "cl_queue")?)? };
        *queue = onebuf_queue::put(made)?;
        Ok(())
    })
}

/// A queue of ours at the device where the buffer lives, in its context: for work on this buffer.
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

/// Whether its memory is somebody else's.
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

/// Somebody else's writes to this memory end at that point: whoever uses the buffer next waits for it.
/// ONEBUF_BUSY while a view or mapping of it is held, and while its newest contents are elsewhere: see
/// onebuf_buffer_hand_to(). A region means the whole buffer, here and below.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_written_until(
    buffer: onebuf_buffer,
    fence: onebuf_fence,
) -> onebuf_status {
    entry(|| Ok(buffer.get()?.whole().0.written_until(&*fence.get()?)?))
}

/// The same for somebody else's reads: whoever writes the buffer next waits for them.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_read_until(
    buffer: onebuf_buffer,
    fence: onebuf_fence,
) -> onebuf_status {
    entry(|| Ok(buffer.get()?.whole().0.read_until(&*fence.get()?)?))
}

/// Makes the newest contents visible on that queue and orders it after all work on the buffer, for commands
/// that its owner will enqueue there by itself. Says by which sync method; `sync_method` may be NULL.
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

/// Gives the buffer up for its `cl_mem` on that device, which is the caller's then: one reference, to be
/// released. All work on it is over, the newest contents are in it, and what it lies over stays until the driver
/// destroys it; it never returns to a pool. ONEBUF_BUSY, and nothing happened, while anything that was made of
/// the buffer is not freed. After any other failure the buffer is gone.
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
