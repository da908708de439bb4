//! Foreign objects
//!
//! OpenCL objects that the application created: queries, and their contexts as devices of the hub. Native handles
//! (`cl_mem`, `cl_context`, `cl_command_queue`, `cl_event`) are `void *` here, so that no OpenCL header is needed.
//! onebuf rejects NULL and whatever the driver rejects. Beyond that the caller guarantees that a handle is alive, of
//! the right type, and of the OpenCL library that the hub has loaded.

use crate::{
    device::onebuf_device,
    entry::{entry, free},
    fault::{Fault, Result},
    handle::{Noun, noun},
    hub::{Hub, onebuf_hub},
    input::{Options, Slot, give, out, timeout},
    program::onebuf_program,
    queue::{ONEBUF_QUEUE_IN_ORDER, ONEBUF_QUEUE_OUT_OF_ORDER, onebuf_queue, onebuf_queue_order},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{self, onebuf_access, onebuf_host_access},
};
use onebuf::{
    Error, ForeignBufferInfo, ForeignContext, ForeignContextInfo, ForeignQueueInfo, Placement,
    QueueOrder, prelude::*,
};
use std::{ffi::c_void, ptr::null_mut};

/// A context that the application created. Free it with onebuf_context_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_context {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_context, Context, 13);

/// A context, and the handles of its devices.
#[doc(hidden)]
pub struct Context {
    pub(crate) context: ForeignContext,
    devices: Vec<onebuf_device>,
    /// The handles that this object owns: all, unless the context is the hub's own.
    foreign_devices: Vec<onebuf_device>,
}

impl Context {
    fn new(hub: &Hub, context: ForeignContext) -> Result<Self> {
        let devices = context.devices();
        let mut all = Self { context, devices: Vec::new(), foreign_devices: Vec::new() };
        for device in devices {
            let known = hub.handle(&device);
            let handle = known.map_or_else(|| onebuf_device::put(device), Ok)?;
            all.devices.push(handle);
            all.foreign_devices.extend(known.is_none().then_some(handle));
        }
        Ok(all)
    }

    fn at(&self, index: usize) -> Result<onebuf_device> {
        self.devices.get(index).copied().ok_or_else(|| {
            let count = self.devices.len();
            Fault::invalid(format!("device {index} of a context that has {count}"))
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.foreign_devices.iter().for_each(|device| drop(device.take()));
    }
}

/// A native handle that must not be null.
pub(crate) fn native(handle: *mut c_void, name: &'static str) -> Result<*mut c_void> {
    if handle.is_null() { Err(Fault::Null(name)) } else { Ok(handle) }
}

/// Where the bytes of a `cl_mem` lie, according to its flags.
pub type onebuf_placement = u32;
/// The driver decides.
pub const ONEBUF_PLACEMENT_DEVICE: onebuf_placement = 0;
/// In host memory of the application (`CL_MEM_USE_HOST_PTR`).
pub const ONEBUF_PLACEMENT_USE_HOST_POINTER: onebuf_placement = 1;
/// Where the driver can map them without a copy, if possible (`CL_MEM_ALLOC_HOST_PTR`).
pub const ONEBUF_PLACEMENT_ALLOC_HOST_POINTER: onebuf_placement = 2;
/// On the chip.
pub const ONEBUF_PLACEMENT_ON_CHIP: onebuf_placement = 3;

/// Properties of a `cl_mem`. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_foreign_buffer_info {
    /// `sizeof(onebuf_foreign_buffer_info)`.
    pub size: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Its `cl_mem_flags`.
    pub flags: u64,
    /// How kernels may access it.
    pub access: onebuf_access,
    /// How the host may access it.
    pub host_access: onebuf_host_access,
    /// Where its bytes lie.
    pub placement: onebuf_placement,
    /// Not zero: it was initialised from host memory (`CL_MEM_COPY_HOST_PTR`).
    pub copied: u32,
    /// Its `cl_context`. No reference is added.
    pub context: *mut c_void,
    /// The first of the context's devices that the hub knows, as the hub's handle; null if none.
    pub device: onebuf_device,
    /// How many of that context's devices the hub knows.
    pub device_count: usize,
    /// The host memory that it uses; NULL: none.
    pub host_pointer: *mut c_void,
    /// How many times it is mapped now. Kernels must not use it while it is mapped.
    pub map_count: u32,
    /// Its reference count.
    pub reference_count: u32,
    /// The `cl_mem` that it is a sub-buffer of; NULL: none. No reference is added.
    pub parent: *mut c_void,
    /// Its offset in the parent, in bytes.
    pub offset: usize,
    /// Whether it uses shared virtual memory: 1 or 0; -1 if the driver cannot tell (before OpenCL 2.0).
    pub uses_svm: i32,
    /// Not zero: kernels can also access its bytes by an SVM address.
    pub svm_can_alias: u32,
    /// The alignment that sub-buffers require.
    pub align_bytes: usize,
    /// Number of entries in its property list (memory imported from another API has some).
    pub property_count: usize,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_foreign_buffer_info {}

/// Properties of a `cl_context`. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_foreign_context_info {
    /// `sizeof(onebuf_foreign_context_info)`.
    pub size: usize,
    /// Number of its devices.
    pub device_count: usize,
    /// Number of its devices that the hub knows.
    pub known_count: usize,
    /// The first of those, as the hub's handle; null if none.
    pub device: onebuf_device,
    /// Number of entries in its property list.
    pub property_count: usize,
    /// Its reference count.
    pub reference_count: u32,
}
// SAFETY: plain numbers, the size first; handles are numbers.
unsafe impl Options for onebuf_foreign_context_info {}

/// Properties of a `cl_command_queue`. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_foreign_queue_info {
    /// `sizeof(onebuf_foreign_queue_info)`.
    pub size: usize,
    /// Its `cl_context`. No reference is added.
    pub context: *mut c_void,
    /// Its device, as the hub's handle; null if the hub does not know it.
    pub device: onebuf_device,
    /// Its `cl_command_queue_properties`.
    pub properties: u64,
    /// The order in which it runs commands.
    pub order: onebuf_queue_order,
    /// Not zero: profiling is enabled.
    pub profiling: u32,
    /// Its reference count.
    pub reference_count: u32,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_foreign_queue_info {}

fn placement(of: Placement) -> onebuf_placement {
    match of {
        Placement::UseHostPointer => ONEBUF_PLACEMENT_USE_HOST_POINTER,
        Placement::AllocHostPointer => ONEBUF_PLACEMENT_ALLOC_HOST_POINTER,
        Placement::OnChip => ONEBUF_PLACEMENT_ON_CHIP,
        _ => ONEBUF_PLACEMENT_DEVICE,
    }
}

/// The hub's handle of the first device in the list.
fn first(hub: &Hub, ids: &[String]) -> onebuf_device {
    let first = ids.first().and_then(|id| hub.hub.device(id).ok());
    first.and_then(|device| hub.handle(&device)).unwrap_or(onebuf_device { id: 0 })
}

fn pointer(address: Option<usize>) -> *mut c_void {
    address.map_or(null_mut(), |address| address as *mut c_void)
}

fn buffer_info(hub: &Hub, of: &ForeignBufferInfo) -> onebuf_foreign_buffer_info {
    onebuf_foreign_buffer_info {
        size: 0,
        bytes: of.bytes,
        flags: of.flags,
        access: words::access_number(of.access),
        host_access: words::host_access_number(of.host),
        placement: placement(of.placement),
        copied: of.copied.into(),
        context: of.context as *mut c_void,
        device: first(hub, &of.devices),
        device_count: of.devices.len(),
        host_pointer: pointer(of.host_pointer),
        map_count: of.map_count,
        reference_count: of.reference_count,
        parent: pointer(of.parent),
        offset: of.offset,
        uses_svm: of.uses_svm.map_or(-1, i32::from),
        svm_can_alias: of.svm_can_alias.into(),
        align_bytes: of.align_bytes,
        property_count: of.external.len(),
    }
}

/// Queries a `cl_mem`. ONEBUF_INVALID_ARGUMENT for an image or pipe, and for a handle that the driver rejects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_buffer_query(
    hub: onebuf_hub,
    cl_mem: *mut c_void,
    info: *mut onebuf_foreign_buffer_info,
) -> onebuf_status {
    entry(|| {
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignBufferInfo::query(&hub.hub, native(cl_mem, "cl_mem")?)?;
            give(buffer_info(&hub, &found), info, "info")
        }
    })
}

/// Describes a `cl_mem` in text, with the ids of the devices that the hub knows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_buffer_describe(
    hub: onebuf_hub,
    cl_mem: *mut c_void,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let (hub, cl_mem) = (hub.get()?, native(cl_mem, "cl_mem")?);
            // SAFETY: guaranteed by the caller.
            let found = unsafe { ForeignBufferInfo::query(&hub.hub, cl_mem)? };
            Ok(found.to_string().into_bytes())
        })
    })
}

/// Waits until the driver counts at most `references` references to a `cl_mem`, and returns its properties. The driver may
/// hold references of its own for some milliseconds after a command has completed. `timeout_ms` may be
/// ONEBUF_DEFAULT_TIMEOUT; ONEBUF_TIMEOUT with the last count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_buffer_at_rest(
    hub: onebuf_hub,
    cl_mem: *mut c_void,
    references: u32,
    timeout_ms: u64,
    info: *mut onebuf_foreign_buffer_info,
) -> onebuf_status {
    entry(|| {
        let (hub, cl_mem) = (hub.get()?, native(cl_mem, "cl_mem")?);
        let timeout = timeout(timeout_ms).unwrap_or(hub.hub.timeout());
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignBufferInfo::at_rest(&hub.hub, cl_mem, references, timeout)?;
            give(buffer_info(&hub, &found), info, "info")
        }
    })
}

fn context_info(hub: &Hub, of: &ForeignContextInfo) -> onebuf_foreign_context_info {
    onebuf_foreign_context_info {
        size: 0,
        device_count: of.device_count,
        known_count: of.devices.len(),
        device: first(hub, &of.devices),
        property_count: of.properties.len(),
        reference_count: of.reference_count,
    }
}

/// Queries a `cl_context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_context_query(
    hub: onebuf_hub,
    cl_context: *mut c_void,
    info: *mut onebuf_foreign_context_info,
) -> onebuf_status {
    entry(|| {
        let (hub, cl_context) = (hub.get()?, native(cl_context, "cl_context")?);
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignContextInfo::query(&hub.hub, cl_context)?;
            give(context_info(&hub, &found), info, "info")
        }
    })
}

/// Waits until the driver counts at most `references` references to a `cl_context`, and returns its properties, as
/// onebuf_foreign_buffer_at_rest() does for a `cl_mem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_context_at_rest(
    hub: onebuf_hub,
    cl_context: *mut c_void,
    references: u32,
    timeout_ms: u64,
    info: *mut onebuf_foreign_context_info,
) -> onebuf_status {
    entry(|| {
        let (hub, cl_context) = (hub.get()?, native(cl_context, "cl_context")?);
        let timeout = timeout(timeout_ms).unwrap_or(hub.hub.timeout());
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignContextInfo::at_rest(&hub.hub, cl_context, references, timeout)?;
            give(context_info(&hub, &found), info, "info")
        }
    })
}

fn queue_info(hub: &Hub, of: &ForeignQueueInfo) -> onebuf_foreign_queue_info {
    onebuf_foreign_queue_info {
        size: 0,
        context: of.context as *mut c_void,
        device: first(hub, of.device.as_slice()),
        properties: of.properties,
        order: match of.spec.order {
            QueueOrder::OutOfOrder => ONEBUF_QUEUE_OUT_OF_ORDER,
            _ => ONEBUF_QUEUE_IN_ORDER,
        },
        profiling: of.spec.profiling.into(),
        reference_count: of.reference_count,
    }
}

/// Queries a `cl_command_queue`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_queue_query(
    hub: onebuf_hub,
    cl_queue: *mut c_void,
    info: *mut onebuf_foreign_queue_info,
) -> onebuf_status {
    entry(|| {
        let (hub, cl_queue) = (hub.get()?, native(cl_queue, "cl_queue")?);
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignQueueInfo::query(&hub.hub, cl_queue)?;
            give(queue_info(&hub, &found), info, "info")
        }
    })
}

/// Waits until the driver counts at most `references` references to a `cl_command_queue`, and returns its properties, as
/// onebuf_foreign_buffer_at_rest() does for a `cl_mem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_queue_at_rest(
    hub: onebuf_hub,
    cl_queue: *mut c_void,
    references: u32,
    timeout_ms: u64,
    info: *mut onebuf_foreign_queue_info,
) -> onebuf_status {
    entry(|| {
        let (hub, cl_queue) = (hub.get()?, native(cl_queue, "cl_queue")?);
        let timeout = timeout(timeout_ms).unwrap_or(hub.hub.timeout());
        // SAFETY: guaranteed by the caller, for the handle and for `info`.
        unsafe {
            let found = ForeignQueueInfo::at_rest(&hub.hub, cl_queue, references, timeout)?;
            give(queue_info(&hub, &found), info, "info")
        }
    })
}

/// Moves a `cl_program` that the application has built to a CUDA or HIP device, as onebuf_program_graft() does. The program
/// is neither built nor released during the call. ONEBUF_UNSUPPORTED if it cannot be moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_foreign_program_graft(
    hub: onebuf_hub,
    cl_program: *mut c_void,
    device: onebuf_device,
    program: Slot<'_, onebuf_program>,
) -> onebuf_status {
    entry(|| {
        let program = out(program, "program")?;
        let (hub, device) = (hub.get()?, device.get()?);
        // SAFETY: guaranteed by the caller.
        let made = unsafe { hub.hub.graft_foreign(native(cl_program, "cl_program")?, &device)? };
        *program = onebuf_program::put(made)?;
        Ok(())
    })
}

/// Registers a `cl_context` of the application. Its devices become devices of the hub, with ids such as `opencl:0@1`:
/// queues and programs can be created in it, and buffers shared with it. Registering the same context again returns the
/// same registration. onebuf holds one reference until everything made in the context is gone. ONEBUF_BUSY if the hub
/// has no room for another device; ONEBUF_UNAVAILABLE for a hub without OpenCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_context_wrap(
    hub: onebuf_hub,
    cl_context: *mut c_void,
    context: Slot<'_, onebuf_context>,
) -> onebuf_status {
    entry(|| {
        let context = out(context, "context")?;
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller.
        let found = unsafe { hub.hub.foreign_context(native(cl_context, "cl_context")?)? };
        *context = onebuf_context::put(Context::new(&hub, found)?)?;
        Ok(())
    })
}

/// Opens the device in a second context, for libraries that must be kept apart. ONEBUF_UNSUPPORTED for a device without
/// contexts.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_second(
    hub: onebuf_hub,
    device: onebuf_device,
    context: Slot<'_, onebuf_context>,
) -> onebuf_status {
    entry(|| {
        let context = out(context, "context")?;
        let (hub, device) = (hub.get()?, device.get()?);
        if !device.hub().is(&hub.hub) {
            return Err(Fault::invalid(format!("device {device} belongs to another hub")));
        }
        *context = onebuf_context::put(Context::new(&hub, hub.hub.second_context(&device)?)?)?;
        Ok(())
    })
}

/// Number of devices of the context.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_device_count(
    context: onebuf_context,
    count: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        *out(count, "count")? = context.get()?.devices.len();
        Ok(())
    })
}

/// The device at an index of the context. The context owns the handle; the hub owns it if the context is the hub's own.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_device_at(
    context: onebuf_context,
    index: usize,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        *device = context.get()?.at(index)?;
        Ok(())
    })
}

/// The context's device that a queue belongs to. ONEBUF_FOREIGN_CONTEXT for a queue of another context.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_device_of(
    context: onebuf_context,
    queue: onebuf_queue,
    device: Slot<'_, onebuf_device>,
) -> onebuf_status {
    entry(|| {
        let device = out(device, "device")?;
        let (context, on) = (context.get()?, queue.get()?.device());
        let mut devices = context.context.devices().into_iter();
        let same_hub = on.hub().is(context.context.hub());
        let at = devices.position(|of| same_hub && of.index() == on.index());
        *device = context.at(at.ok_or_else(|| elsewhere(&on))?)?;
        Ok(())
    })
}

fn elsewhere(device: &onebuf::Device) -> Error {
    let (have, want) = (format!("a queue on {device}"), "a queue of this context".into());
    Error::ForeignContext { have, want }
}

/// The `cl_context`. Valid until the context is freed; no reference is added.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_native(
    context: onebuf_context,
    native: Slot<'_, *mut c_void>,
) -> onebuf_status {
    entry(|| {
        *out(native, "native")? = context.get()?.context.raw();
        Ok(())
    })
}

/// Frees a context and the handles of its devices. Objects made in it stay usable.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_context_free(context: onebuf_context) -> onebuf_status {
    free(context)
}
