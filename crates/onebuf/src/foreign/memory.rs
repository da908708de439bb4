//! Foreign OpenCL memory as a buffer.

use super::{
    ForeignContext,
    context::{Known, device_of, wrap_memory},
};
use onebuf_core::{
    Hub,
    foreign::WrappedMemory,
    internals::{Asked, Core, ForeignMemory, Shape, Window, flags},
    topology::DeviceIx,
};
use onebuf_hal::{
    AllocSpec, Error, HostAccess, MemoryKind, Result,
    locks::{Arc, thread},
};
use onebuf_opencl::foreign::{self, MemoryFacts};
use onebuf_sys::opencl::consts as cl;
use std::{
    ptr::NonNull,
    time::{Duration, Instant},
};

/// A `cl_mem` that fulfils the contract of `wrap_buffer`.
pub(super) struct Object;

// SAFETY: the caller of `wrap_buffer` guarantees the handle; the driver reports its size.
unsafe impl ForeignMemory for Object {
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let (known, raw) = (Known::among(asked.foreign_devices)?, asked.handle);
        let cl = known.cl();
        // SAFETY: the contract of `wrap_buffer`.
        let facts = unsafe { foreign::memory(cl, raw) }?;
        let have = asked.element.count(facts.bytes)?;
        if let Some(len) = asked.len.filter(|len| *len != have) {
            return Err(Error::invalid(format!("the cl_mem has {have} elements, not {len}")));
        }
        let root = match facts.parent {
            // SAFETY: a live sub-buffer has a live parent.
            Some(parent) => (parent, unsafe { foreign::memory(cl, parent) }?),
            None => (raw, facts.clone()),
        };
        let hub = asked.hub;
        let core = asked.core(root.0, root.1.bytes, |shape| lend(hub, &known, &root, shape))?;
        let window = facts.parent.map(|_| window(&core, raw, &facts)).transpose()?;
        Ok((core, window))
    }
}

/// Wraps a whole memory object, with the most suitable memory kind.
fn lend(
    hub: &Hub,
    known: &Known<'_>,
    (raw, facts): &(usize, MemoryFacts),
    shape: &Shape,
) -> Result<WrappedMemory> {
    let raw = *raw;
    // Only the owner's mappings count: memory that this library has mapped has a core already, and does not get here.
    // SAFETY: the contract of `wrap_buffer`.
    if facts.map_count > 0 && unsafe { stays_mapped(known, raw) }? {
        return Err(Error::Busy {
            what: "its owner has the cl_mem mapped: unmap it first".to_owned(),
        });
    }
    // SAFETY: a live buffer has a live context.
    let whose = unsafe { known.whose(hub, facts.context) }?;
    let home = whose.devices()[0];
    let (access, host) = (flags::access(facts.flags), flags::host_access(facts.flags));
    // Raw addresses are only passed on for memory that need not be mapped.
    let memory_kind = match memory_kind(hub, home, facts.flags, host) {
        MemoryKind::MappedDevice if shape.raw_addresses && is_plain(facts.flags) => {
            MemoryKind::Device
        }
        memory_kind => memory_kind,
    };
    let (bytes, align) = (facts.bytes, shape.align);
    let spec = AllocSpec { bytes, align, memory_kind, access, host, hint: None };
    // SAFETY: the contract of `wrap_buffer`; the object is not a sub-buffer.
    let memory = unsafe { wrap_memory(hub, &whose, raw, &spec, facts.flags) }?;
    let over = facts.flags & cl::CL_MEM_USE_HOST_PTR != 0;
    let pages = facts.host_pointer.filter(|_| over && memory_kind == MemoryKind::MappedDevice);
    let pages = pages.and_then(|at| NonNull::new(at as *mut u8));
    Ok(WrappedMemory { whose, memory, spec, pages })
}

/// How late a driver may decrement its map count. PoCL 3.1 does so after the unmap is complete, even after `clFinish`: memory
/// that was returned a moment ago would seem to be mapped by its owner.
const LATE_COUNT: Duration = Duration::from_millis(50);

/// Whether memory whose map count is positive keeps it for `LATE_COUNT`.
///
/// # Safety
/// `raw` is a live buffer.
unsafe fn stays_mapped(known: &Known<'_>, raw: usize) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < LATE_COUNT {
        thread::yield_now();
        // SAFETY: the caller's contract.
        if unsafe { foreign::memory(known.cl(), raw) }?.map_count == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the memory object was created without host memory.
fn is_plain(flags: u64) -> bool {
    flags & (cl::CL_MEM_ALLOC_HOST_PTR | cl::CL_MEM_USE_HOST_PTR) == 0
}

/// The most suitable memory kind: maps if the driver gives access to the memory itself, enqueued copies if it would copy for
/// a map.
fn memory_kind(hub: &Hub, home: DeviceIx, flags: u64, host: HostAccess) -> MemoryKind {
    let for_host = !is_plain(flags);
    let unified = hub.topology().node(home).info.caps.unified_memory;
    match host {
        HostAccess::ReadWrite if for_host || unified => MemoryKind::MappedDevice,
        _ => MemoryKind::Device,
    }
}

/// A sub-buffer, with its owner's handle.
fn window(core: &Core, raw: usize, facts: &MemoryFacts) -> Result<Window> {
    let access = flags::access(facts.flags);
    let (offset, bytes) = (facts.offset, facts.bytes);
    // SAFETY: the driver reports a live sub-buffer of the core's memory.
    let part = unsafe { foreign::wrap_part(core.home(), raw, offset, bytes, access) }?;
    Ok(Window::new(core, offset, bytes, access, part))
}

/// Shared virtual memory that fulfils the contract of `wrap_svm`.
pub(super) struct Svm {
    pub context: ForeignContext,
    pub bytes: usize,
}

// SAFETY: the caller of `wrap_svm` guarantees the pointer and the size.
unsafe impl ForeignMemory for Svm {
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)> {
        let Self { context, bytes } = self;
        let (hub, pointer, whose, bytes) = (asked.hub, asked.handle, &context.whose, *bytes);
        if !context.hub().is(hub) {
            return Err(Error::invalid("the foreign context belongs to another hub"));
        }
        let home = whose.devices()[0];
        let caps = &hub.topology().node(home).info.caps;
        let memory_kinds = [MemoryKind::FineSvm, MemoryKind::CoarseSvm];
        // Mapping is correct for both memory kinds; not mapping is correct for one only.
        let memory_kind =
            memory_kinds.into_iter().rfind(|memory_kind| caps.memory_kinds.contains(memory_kind));
        let memory_kind = memory_kind.ok_or_else(|| {
            Error::unsupported("shared virtual memory of this context", "a device that supports it")
        })?;
        if bytes == 0 || bytes > isize::MAX as usize {
            return Err(Error::invalid(format!("shared virtual memory cannot have {bytes} bytes")));
        }
        let start = NonNull::new(pointer as *mut u8);
        let start =
            start.ok_or_else(|| Error::invalid("the pointer to shared virtual memory is null"))?;
        let core = asked.core(pointer, bytes, |shape| {
            let (access, host) = Default::default();
            let spec =
                AllocSpec { bytes, align: shape.align, memory_kind, access, host, hint: None };
            let device = device_of(hub, whose, home)?;
            // SAFETY: the contract of `wrap_svm`.
            let memory = unsafe { device.wrap_svm(start, &spec) }?;
            Ok(WrappedMemory { whose: whose.clone(), memory, spec, pages: None })
        })?;
        Ok((core, None))
    }
}
