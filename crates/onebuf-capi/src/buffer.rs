//! Buffers
//!
//! A buffer is memory that a set of devices sees: one allocation, however many they are. A region of one is
//! a buffer too. Sizes and offsets are bytes. Who may use a buffer when is decided at run time: many readers
//! or one writer, and whoever comes second gets ONEBUF_BUSY.

use crate::{
    device::onebuf_device,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    handle::{Noun, noun},
    hub::onebuf_hub,
    input::{Options, Slot, array, bytes, bytes_mut, options, out},
    kept::{Buf, Kept},
    status::onebuf_status,
    string::{self, onebuf_string},
    words::{
        self, onebuf_access, onebuf_copies, onebuf_hint, onebuf_host_access, onebuf_memory_kind,
        onebuf_route, onebuf_sync_method,
    },
};
use onebuf::{BufferBuilder, Hub};
use std::{ffi::c_void, ptr::NonNull, sync::Arc};

/// A buffer, or a region of one. Free it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_buffer {
    /// Zero names nothing.
    pub id: u64,
}
noun!(onebuf_buffer, Kept, 5);

/// What a buffer shall be. Zeroes are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_buffer_options {
    /// `sizeof(onebuf_buffer_options)`.
    pub size: usize,
    /// The devices that use it. The host need not be named: reads, writes and mappings always work, and
    /// naming it asks for memory that it sees without a copy.
    pub devices: *const onebuf_device,
    /// How many devices.
    pub device_count: usize,
    /// What kernels do with it.
    pub access: onebuf_access,
    /// What the host does with it once it is made.
    pub host_access: onebuf_host_access,
    /// What to do about implied copies; of this and the hub's choice the stricter holds.
    pub copies: onebuf_copies,
    /// What its life will be like.
    pub hint: onebuf_hint,
    /// Forces the form of the memory.
    pub memory_kind: onebuf_memory_kind,
    /// Forces how the other devices see it.
    pub route: onebuf_route,
    /// Forces a sync method, or a lower one, between different APIs.
    pub sync: onebuf_sync_method,
    /// Not zero: uses routes that drivers declare, and callbacks, although no experiment has proven them here.
    pub trust_declared: u32,
    /// Forces where the memory lives, unless null.
    pub allocate_on: onebuf_device,
    /// Alignment in bytes, a power of two; zero: the strictest of the devices'.
    pub align: usize,
    /// OpenCL's own creation flags, said in these words as well; zero: none.
    pub cl_flags: u64,
    /// What it holds at first, as many bytes as the buffer has; NULL: zeroes.
    pub contents: *const c_void,
    /// Memory of the caller's to be used where it lies, as many bytes as the buffer has; NULL: none. Nobody
    /// else uses it until `host_memory_done` was called.
    pub host_memory: *mut c_void,
    /// Called once, on any thread, when neither onebuf nor a driver uses `host_memory` any more: also when the
    /// buffer could not be made, unless `size` was wrong. May be NULL, for memory that is never freed.
    pub host_memory_done: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// What `host_memory_done` is given.
    pub host_memory_user: *mut c_void,
    /// Not zero: also lets another API's kernels use the address that this one's kernels see
    /// (ONEBUF_ROUTE_RAW_ADDRESS). No API promises that it means anything there; it is used where it was proven here,
    /// and where the runtime under both APIs says whose memory it is.
    pub raw_addresses: u32,
}
// SAFETY: plain numbers and pointers, the size first; handles are numbers.
unsafe impl Options for onebuf_buffer_options {}

/// Calls back when the caller's memory is free again.
struct HostOwner {
    done: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the pointer is only passed on, and the caller promised that any thread may call back.
unsafe impl Send for HostOwner {}
// SAFETY: as above.
unsafe impl Sync for HostOwner {}

impl Drop for HostOwner {
    fn drop(&mut self) {
        if let Some(done) = self.done {
            // SAFETY: the caller's function, with the argument it is for.
            unsafe { done(self.user) };
        }
    }
}

/// Options that were read, and who is told when the caller's memory is free: from here on always.
pub(crate) struct Asked {
    given: onebuf_buffer_options,
    owner: Arc<HostOwner>,
}

impl Asked {
    /// # Safety
    /// As for [`onebuf_buffer_create`].
    pub unsafe fn read(given: *const onebuf_buffer_options) -> Result<Self> {
        // SAFETY: the caller's promise.
        let given = unsafe { options(given)? };
        let done = given.host_memory_done.filter(|_| !given.host_memory.is_null());
        Ok(Self { given, owner: Arc::new(HostOwner { done, user: given.host_memory_user }) })
    }

    /// Whether they bring memory or contents of the caller's.
    pub fn brings_bytes(&self) -> bool {
        !self.given.contents.is_null() || !self.given.host_memory.is_null()
    }

    /// A wish with all that they say, but for memory and contents.
    ///
    /// # Safety
    /// As for [`onebuf_buffer_create`].
    pub unsafe fn shape<'c>(
        &self,
        builder: BufferBuilder<'c, u8>,
    ) -> Result<BufferBuilder<'c, u8>> {
        let given = &self.given;
        // SAFETY: the caller's promise.
        let handles = unsafe { array(given.devices, given.device_count, "devices")? };
        let devices = handles.iter().map(|device| device.get()).collect::<Result<Vec<_>>>()?;
        let mut builder = builder.shared_with(devices.iter().map(|device| &**device));
        if given.cl_flags != 0 {
            builder = builder.cl_flags(given.cl_flags)?;
        }
        builder = choices(builder, given)?;
        if given.allocate_on.id != 0 {
            builder = builder.allocate_on(&*given.allocate_on.get()?);
        }
        Ok(builder)
    }

    /// The wish that they are.
    ///
    /// # Safety
    /// As for [`onebuf_buffer_create`]. What it returns is built, or dropped, before the caller's contents go.
    pub unsafe fn builder<'c>(self, hub: &'c Hub, count: usize) -> Result<BufferBuilder<'c, u8>> {
        // SAFETY: the caller's promise.
        let mut builder = unsafe { self.shape(hub.buffer::<u8>(count))? };
        let Self { given, owner } = self;
        if !given.contents.is_null() {
            // SAFETY: the caller's promise.
            builder = builder.init(unsafe { bytes(given.contents, count, "contents")? });
        }
        if let Some(memory) = NonNull::new(given.host_memory) {
            // SAFETY: the caller's promise.
            builder = unsafe { builder.host_memory(memory.cast(), owner) };
        }
        Ok(builder)
    }
}

fn choices<'c>(
    mut builder: BufferBuilder<'c, u8>,
    given: &onebuf_buffer_options,
) -> Result<BufferBuilder<'c, u8>> {
    // Zeroes leave what the flags said.
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

/// Makes a buffer of so many bytes. `options` may be NULL: the host alone uses it then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_buffer_create(
    hub: onebuf_hub,
    bytes: usize,
    options: *const onebuf_buffer_options,
    buffer: Slot<'_, onebuf_buffer>,
) -> onebuf_status {
    entry(|| {
        // SAFETY: the caller's promise, also about what the options point at.
        let asked = unsafe { Asked::read(options)? };
        let buffer = out(buffer, "buffer")?;
        // SAFETY: as above.
        let built = unsafe { asked.builder(&hub.get()?.hub, bytes)?.build()? };
        *buffer = onebuf_buffer::put(built.into())?;
        Ok(())
    })
}

/// Some bytes of a buffer as a buffer of their own, for what `access` says: no more than the buffer itself
/// was made for. It begins at a multiple of every device's onebuf_device_region_align(). A region has no
/// regions. Regions that do not overlap are used at the same time by queues of one device.
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

/// Frees a buffer or region. The memory goes when its views, mappings and regions are freed too and no
/// work uses it; a buffer of a pool goes back to that. A standing map ends with it.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_free(buffer: onebuf_buffer) -> onebuf_status {
    entry(|| match buffer.id {
        0 => Ok(()),
        _ => buffer.take().map(|kept| kept.standing.end()),
    })
}

/// How many bytes it has.
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

/// Where it lies, who sees it by which route, and why no better one was taken, in words.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_buffer_explain(
    buffer: onebuf_buffer,
    text: Slot<'_, onebuf_string>,
) -> onebuf_status {
    entry(|| string::give(text, || Ok(buffer.get()?.whole().0.explain().into_bytes())))
}

/// Writes so many bytes from `offset` on. Waits for the work before; `data` is the caller's again afterwards.
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
        // SAFETY: the caller's promise.
        let data = unsafe { self::bytes(data, bytes, "data")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.write_range(range, data)?),
            Buf::Region { region, .. } => Ok(region.write_range(range, data)?),
        }
    })
}

/// Reads so many bytes from `offset` on. Waits for the work before.
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
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut(data, bytes, "data")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.read_range(range, data)?),
            Buf::Region { region, .. } => Ok(region.read_range(range, data)?),
        }
    })
}

/// Repeats a pattern over so many bytes from `offset` on; both are multiples of the pattern's size.
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
            return Err(Fault::invalid("a pattern that is longer than what it fills"));
        }
        // SAFETY: the caller's promise.
        let pattern = unsafe { self::bytes(pattern, pattern_bytes, "pattern")? };
        match &buffer.buf {
            Buf::Whole(buffer) => Ok(buffer.fill_pattern(range, pattern)?),
            Buf::Region { region, .. } => Ok(region.fill_pattern(range, pattern)?),
        }
    })
}

/// Copies so many bytes from one buffer to another of the same hub, or within one: inside a device where
/// both have one in common. A region's copy waits for the whole buffer.
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

/// The last writes as a fence (the last reads, where nothing was written yet); a null fence, and ONEBUF_OK,
/// when there was no work at all.
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
