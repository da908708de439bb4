//! Buffers
//!
//! A buffer is one allocation that a set of devices can access. A region of a buffer is a buffer too. Sizes and offsets
//! are in bytes. Access is checked at run time: a buffer has many readers or one writer, and a call that conflicts
//! returns ONEBUF_BUSY.

use crate::{
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, array, bytes, bytes_mut, options, out, text_if_given},
    kept::{Buf, Kept},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{
        self, onebuf_access, onebuf_copies, onebuf_hint, onebuf_host_access, onebuf_memory_kind,
        onebuf_route, onebuf_sync_method,
    },
};
use onebuf::{BufferBuilder, Hub, plan::Plan, topology::Topology};
use std::{
    ffi::{c_char, c_void},
    ptr::NonNull,
    sync::Arc,
};

/// A buffer, or a region of one. Free it with onebuf_buffer_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_buffer {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_buffer, Kept, 5);

/// Options of a new buffer. Zero in every field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_buffer_options {
    /// `sizeof(onebuf_buffer_options)`.
    pub size: usize,
    /// The devices that use the buffer. The host need not be listed: reads, writes and mappings always work. Listing it
    /// requests memory that the host accesses without a copy.
    pub devices: *const onebuf_device,
    /// Number of devices.
    pub device_count: usize,
    /// How kernels access the buffer.
    pub access: onebuf_access,
    /// How the host accesses the buffer after it was created.
    pub host_access: onebuf_host_access,
    /// What to do about implied copies. The stricter of this and the hub's policy applies.
    pub copies: onebuf_copies,
    /// The expected use of the buffer.
    pub hint: onebuf_hint,
    /// Forces a memory kind.
    pub memory_kind: onebuf_memory_kind,
    /// Forces the route by which the other devices access the buffer.
    pub route: onebuf_route,
    /// Forces this sync method, or a lower one, between different APIs.
    pub sync: onebuf_sync_method,
    /// Not zero: also uses routes and callbacks that drivers declare but no experiment has proven on this machine.
    pub trust_declared: u32,
    /// Forces the device that allocates the memory, unless null.
    pub allocate_on: onebuf_device,
    /// Alignment in bytes, a power of two; zero: the largest alignment that a device requires.
    pub align: usize,
    /// OpenCL creation flags (`cl_mem_flags`), which are translated to the other fields; zero: none.
    pub cl_flags: u64,
    /// Initial contents, as many bytes as the buffer has; NULL: zeroes.
    pub contents: *const c_void,
    /// Host memory to be used in place, as many bytes as the buffer has; NULL: none. Do not use it until
    /// `host_memory_done` was called.
    pub host_memory: *mut c_void,
    /// Called once, on any thread, when neither onebuf nor a driver uses `host_memory` any more. It is also called if
    /// the buffer could not be created, unless `size` was wrong. May be NULL for memory that is never freed.
    pub host_memory_done: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// The argument of `host_memory_done`.
    pub host_memory_user: *mut c_void,
    /// Not zero: also allows kernels of another API to use the address that kernels of this API see
    /// (ONEBUF_ROUTE_RAW_ADDRESS). No specification guarantees that this works. The route is used only if it was proven
    /// on this machine and the runtime under both APIs confirms the owner of the memory.
    pub raw_addresses: u32,
    /// A name for messages, logs and traces; NULL: a number.
    pub name: *const c_char,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_buffer_options {}

/// Tells the caller when the host memory is no longer used.
struct HostOwner {
    done: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the caller guarantees that any thread may call the function.
unsafe impl Send for HostOwner {}
// SAFETY: as above.
unsafe impl Sync for HostOwner {}

impl Drop for HostOwner {
    fn drop(&mut self) {
        if let Some(done) = self.done {
            // SAFETY: the caller's function, called with the caller's argument.
            unsafe { done(self.user) };
        }
    }
}

/// Options after validation. From here on the caller is always told when the host memory is no longer used.
pub(crate) struct Asked {
    given: onebuf_buffer_options,
    owner: Arc<HostOwner>,
}

impl Asked {
    /// # Safety
    /// As for [`onebuf_buffer_create`].
    pub unsafe fn read(given: *const onebuf_buffer_options) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let given = unsafe { options(given)? };
        let done = given.host_memory_done.filter(|_| !given.host_memory.is_null());
        Ok(Self { given, owner: Arc::new(HostOwner { done, user: given.host_memory_user }) })
    }

    /// Whether the options contain host memory or initial contents.
    pub fn brings_bytes(&self) -> bool {
        !self.given.contents.is_null() || !self.given.host_memory.is_null()
    }

    /// An allocation request with all options except host memory and contents.
    ///
    /// # Safety
    /// As for [`onebuf_buffer_create`].
    pub unsafe fn shape<'c>(
        &self,
        builder: BufferBuilder<'c, u8>,
    ) -> Result<BufferBuilder<'c, u8>> {
        let given = &self.given;
        // SAFETY: guaranteed by the caller.
        let handles = unsafe { array(given.devices, given.device_count, "devices")? };
        let devices = handles.iter().map(|device| device.get()).collect::<Result<Vec<_>>>()?;
        let mut builder = builder.shared_with(devices.iter().map(|device| &**device));
        if given.cl_flags != 0 {
            builder = builder.cl_flags(given.cl_flags)?;
        }
        builder = choices(builder, given)?;
        // SAFETY: guaranteed by the caller.
        if let Some(name) = unsafe { text_if_given(given.name, "name")? } {
            builder = builder.name(name);
        }
        if given.allocate_on.id != 0 {
            builder = builder.allocate_on(&*given.allocate_on.get()?);
        }
        Ok(builder)
    }

    /// An allocation request with all options.
    ///
    /// # Safety
    /// As for [`onebuf_buffer_create`]. The returned builder is built or dropped before the caller's contents become
    /// invalid.
    pub unsafe fn builder<'c>(self, hub: &'c Hub, count: usize) -> Result<BufferBuilder<'c, u8>> {
        // SAFETY: guaranteed by the caller.
        let mut builder = unsafe { self.shape(hub.buffer::<u8>(count))? };
        let Self { given, owner } = self;
        if !given.contents.is_null() {
            // SAFETY: guaranteed by the caller.
            builder = builder.init(unsafe { bytes(given.contents, count, "contents")? });
        }
        if let Some(memory) = NonNull::new(given.host_memory) {
            // SAFETY: guaranteed by the caller.
            builder = unsafe { builder.host_memory(memory.cast(), owner) };
        }
        Ok(builder)
    }
}

fn choices<'c>(
    mut builder: BufferBuilder<'c, u8>,
    given: &onebuf_buffer_options,
) -> Result<BufferBuilder<'c, u8>> {
    // Zero keeps the value that the flags have set.
    let (access, host) = (words::access(given.access)?, words::host_access(given.host_access)?);
    if given.cl_flags == 0 || given.access != 0 {
        builder = builder.access(access);
    }
    if given.cl_flags == 0 || given.host_access != 0 {
        builder = builder.host_access(host);
    }
    builder =
        builder.copies(words::copies(given.copies)?).trust_declared(given.trust_declared != 0);
    builder = builder.raw_addresses(given.raw_addresses != 0);
    if let Some(hint) = words::hint(given.hint)? {
        builder = builder.hint(hint);
    }
    if let Some(memory_kind) = words::memory_kind(given.memory_kind)? {
        builder = builder.memory_kind(memory_kind);
    }
    if let Some(route) = words::route(given.route)? {
        builder = builder.route(route);
    }
    if let Some(sync_method) = words::sync_method(given.sync)? {
        builder = builder.sync(sync_method);
    }
    Ok(if given.align == 0 { builder } else { builder.align(given.align) })
}

/// Creates a buffer of `bytes` bytes. `options` may be NULL: then only the host uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_create(
    hub: onebuf_hub,
    bytes: usize,
    options: *const onebuf_buffer_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let asked = unsafe { Asked::read(options)? };
        let buffer = out(buffer, "buffer")?;
        // SAFETY: as above.
        let built = unsafe { asked.builder(&hub.get()?.hub, bytes)?.build()? };
        *buffer = onebuf_buffer::put(built.into())?;
        Ok(())
    })
}

/// Plans a buffer without creating it: where it would be allocated, by which route each device would access it, and why no
/// better route was chosen. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_plan(
    hub: onebuf_hub,
    bytes: usize,
    options: *const onebuf_buffer_options,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    // SAFETY: guaranteed by the caller.
    unsafe { planned(hub, bytes, options, text, |plan, topology| plan.explain(topology)) }
}

/// The same as JSON, as `onebuf plan --json` prints it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_plan_json(
    hub: onebuf_hub,
    bytes: usize,
    options: *const onebuf_buffer_options,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    // SAFETY: guaranteed by the caller.
    unsafe {
        planned(hub, bytes, options, text, |plan, topology| plan.to_json(topology).to_string())
    }
}

/// # Safety
/// As for [`onebuf_buffer_plan`].
unsafe fn planned(
    hub: onebuf_hub,
    bytes: usize,
    options: *const onebuf_buffer_options,
    text: Slot<'_, onebuf_string>,
    tell: fn(&Plan, &Topology) -> String,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller, also for what the options point at.
        let asked = unsafe { Asked::read(options)? };
        string::give(text, || {
            let hub = hub.get()?;
            // SAFETY: as above.
            let plan = unsafe { asked.shape(hub.hub.buffer::<u8>(bytes))?.plan()? };
            Ok(tell(&plan, hub.hub.topology()).into_bytes())
        })
    })
}

/// Creates a region: a part of a buffer as a buffer of its own. `access` may not exceed the access of the buffer. The
/// offset must be a multiple of every device's onebuf_device_region_align(). A region has no regions. Queues of one
/// device can use regions that do not overlap at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_region(
    buffer: onebuf_buffer,
    offset: usize,
    bytes: usize,
    access: onebuf_access,
    region: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        let region = out(region, "region")?;
        let buffer = buffer.get()?;
        let range = buffer.range(offset, bytes)?;
        *region = onebuf_buffer::put(Buf::region(&buffer, range, words::access(access)?)?.into())?;
        Ok(())
    })
}

/// Frees a buffer or region. The memory is freed after its views, mappings and regions are freed and no work uses it; a
/// buffer of a pool returns to the pool. A persistent map ends with the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_free(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| match buffer.id {
        0 => Ok(()),
        _ => buffer.take().map(|kept| kept.persistent.end()),
    })
}

/// The size of the buffer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_size(
    buffer: onebuf_buffer,
    bytes: Slot<'_, usize>,
) -> onebuf_status {
    entry(|| {
        *out(bytes, "bytes")? = buffer.get()?.len();
        Ok(())
    })
}

/// Explains in text where the buffer is allocated, by which route each device accesses it, and why no better route was
/// chosen.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_explain(
    buffer: onebuf_buffer,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(buffer.get()?.whole().0.explain().into_bytes())))
}

/// The plan of the buffer as JSON, as onebuf_buffer_plan_json() writes it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_explain_json(
    buffer: onebuf_buffer,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| {
        string::give(text, || {
            let kept = buffer.get()?;
            let whole = kept.whole().0;
            Ok(whole.plan().to_json(whole.hub().topology()).to_string().into_bytes())
        })
    })
}

/// Takes the buffer out of its pool: its memory is freed with it. Use this when other code keeps a handle of the memory. Without a
/// pool there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_detach(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| {
        buffer.get()?.whole().0.detach();
        Ok(())
    })
}

/// Writes `bytes` bytes at `offset`. Waits for earlier work. `data` may be reused when this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_write(
    buffer: onebuf_buffer,
    offset: usize,
    data: *const c_void,
    bytes: usize,
) -> onebuf_status {
    entry(|| {
        let buffer = buffer.get()?;
        let range = buffer.range(offset, bytes)?;
        // SAFETY: guaranteed by the caller.
        let data = unsafe { self::bytes(data, bytes, "data")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.write_range(range, data)?),
            Buf::Region { region, .. } => Ok(region.write_range(range, data)?),
        }
    })
}

/// One write of onebuf_buffer_write_batch().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_write {
    /// The first byte to write.
    pub offset: usize,
    /// The bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub bytes: usize,
}

/// Makes several writes in one hand-over; later ones win. If one of them is invalid, nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_write_batch(
    buffer: onebuf_buffer,
    writes: *const onebuf_write,
    write_count: usize,
) -> onebuf_status {
    entry(|| {
        let buffer = buffer.get()?;
        // SAFETY: guaranteed by the caller.
        let writes = unsafe { array(writes, write_count, "writes")? };
        let mut all = Vec::with_capacity(writes.len());
        for write in writes {
            let (_, range) = buffer.outer(write.offset, write.bytes)?;
            // SAFETY: guaranteed by the caller.
            all.push((range.start, unsafe { bytes(write.data, write.bytes, "data")? }));
        }
        let mut batch = buffer.whole().0.batch();
        for (at, data) in all {
            batch.write(at, data)?;
        }
        Ok(batch.flush()?)
    })
}

/// Does the first part of a hand-over to a device now: the queues that used the buffer release it, behind their work so
/// far. For batches on a chip that alternates between two APIs. With ONEBUF_READ other devices may go on reading. For a
/// region this applies to the whole buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_release_to(
    buffer: onebuf_buffer,
    device: onebuf_device,
    access: onebuf_access,
) -> onebuf_status {
    entry(|| {
        let access = words::access(access)?;
        Ok(buffer.get()?.whole().0.release_to(&*device.get()?, access)?)
    })
}

/// Reads `bytes` bytes at `offset`. Waits for earlier work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_read(
    buffer: onebuf_buffer,
    offset: usize,
    data: *mut c_void,
    bytes: usize,
) -> onebuf_status {
    entry(|| {
        let buffer = buffer.get()?;
        let range = buffer.range(offset, bytes)?;
        // SAFETY: guaranteed by the caller.
        let data = unsafe { bytes_mut(data, bytes, "data")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.read_range(range, data)?),
            Buf::Region { region, .. } => Ok(region.read_range(range, data)?),
        }
    })
}

/// Fills `bytes` bytes at `offset` with a repeated pattern; both are multiples of the pattern's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_fill(
    buffer: onebuf_buffer,
    offset: usize,
    bytes: usize,
    pattern: *const c_void,
    pattern_bytes: usize,
) -> onebuf_status {
    entry(|| {
        let buffer = buffer.get()?;
        let range = buffer.range(offset, bytes)?;
        if pattern_bytes > bytes {
            return Err(Fault::invalid("the pattern is longer than the range to fill"));
        }
        // SAFETY: guaranteed by the caller.
        let pattern = unsafe { self::bytes(pattern, pattern_bytes, "pattern")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.fill_pattern(range, pattern)?),
            Buf::Region { region, .. } => Ok(region.fill_pattern(range, pattern)?),
        }
    })
}

/// Declares that the contents are no longer needed. They are undefined until a kernel or a transfer writes them: the next user
/// copies nothing where a device has a copy of its own. A region keeps its contents. `ONEBUF_BUSY` while a view or a mapping is
/// held.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_discard(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| match &buffer.get()?.buf {
        Buf::Whole(buffer) => Ok(buffer.discard()?),
        Buf::Region { .. } => Ok(()),
    })
}

/// Copies bytes between two buffers of one hub, or inside one buffer. The copy stays on the device if both buffers
/// share one. Copying a region waits for its whole buffer.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_copy(
    to: onebuf_buffer,
    to_offset: usize,
    from: onebuf_buffer,
    from_offset: usize,
    bytes: usize,
) -> onebuf_status {
    entry(|| {
        let (to, from) = (to.get()?, from.get()?);
        let (target, to_range) = to.outer(to_offset, bytes)?;
        let (source, from_range) = from.outer(from_offset, bytes)?;
        Ok(target.copy_from(to_range.start, source, from_range)?)
    })
}

/// A fence for the last writes, or for the last reads if nothing was written yet. If there was no work at all, the
/// fence is null and the status is ONEBUF_OK.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_fence(
    buffer: onebuf_buffer,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        let found = match &buffer.get()?.buf {
            Buf::Whole(buffer) => buffer.fence(),
            Buf::Region { region, .. } => region.fence(),
        };
        if let Some(found) = found {
            *fence = onebuf_fence::put(found)?;
        }
        Ok(())
    })
}

/// A fence for all uses so far, reads and writes: when it is reached, the host may write the buffer. If there was no
/// work at all, the fence is null and the status is ONEBUF_OK.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_uses(
    buffer: onebuf_buffer,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        let found = match &buffer.get()?.buf {
            Buf::Whole(buffer) => buffer.uses(),
            Buf::Region { region, .. } => region.uses(),
        };
        if let Some(found) = found {
            *fence = onebuf_fence::put(found)?;
        }
        Ok(())
    })
}
