//! The bridge
//!
//! Copies bytes between any two buffers by the fastest path available. The buffers may belong to different devices,
//! platforms, contexts or hubs, and either may be a region. The source comes first. The ledger counts these bytes as
//! requested.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::{Fault, Result},
    fence::onebuf_fence,
    foreign::native,
    handle::Noun,
    hub::onebuf_hub,
    input::{Options, Slot, bytes_mut, give, options, out},
    kept::Buf,
    status::onebuf_status,
    words::{self, onebuf_route},
};
use onebuf::{
    Buffer, Hub, Queue,
    bridge::{self, Crossing, Place},
    prelude::*,
};
use std::ffi::c_void;

/// The report of a copy. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_crossing {
    /// `sizeof(onebuf_crossing)`.
    pub size: usize,
    /// Bytes that were copied; zero if they were already in place.
    pub bytes: u64,
    /// Number of chunks that went through host memory; zero for a single copy.
    pub chunks: u64,
    /// Bytes that hand-overs of the two buffers copied without being requested.
    pub implied_bytes: u64,
    /// The path that the bytes took.
    pub way: onebuf_route,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_crossing {}

fn place(buffer: &Buf) -> Place<'_, u8> {
    match buffer {
        Buf::Whole(buffer) => (&**buffer).into(),
        Buf::Region { region, .. } => region.into(),
    }
}

/// The caller's structure for the report; null for no report. Checked before anything is copied.
struct Report(*mut onebuf_crossing);

impl Report {
    /// # Safety
    /// Null, or valid for reads and writes of as many bytes as its first word says, for as long as this lives.
    unsafe fn to(crossing: *mut onebuf_crossing) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        unsafe { options(crossing.cast_const())? };
        Ok(Self(crossing))
    }

    fn tell(self, went: &Crossing) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        let (bytes, chunks, implied_bytes) = (went.bytes, went.chunks, went.implied_bytes);
        let way = words::route_number(went.way);
        let told = onebuf_crossing { size: 0, bytes, chunks, implied_bytes, way };
        // SAFETY: guaranteed when `self` was created.
        unsafe { give(told, self.0, "crossing") }
    }
}

/// Copies `bytes` bytes and waits until they have arrived. Source and target may be the same buffer and may overlap;
/// the target then holds what the source held. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_copy(
    from: onebuf_buffer,
    from_offset: usize,
    to: onebuf_buffer,
    to_offset: usize,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let report = unsafe { Report::to(crossing)? };
        let (from, to) = (from.get()?, to.get()?);
        let (range, start) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?.start);
        report.tell(&bridge::copy(place(&from), range, place(&to), start)?)
    })
}

/// Starts a copy of `bytes` bytes and returns a fence that completes when the bytes have arrived. Views and mappings
/// taken afterwards are ordered after the copy. The copy completes before this function returns if one of the buffers
/// is used by the host alone, or if the buffers belong to two hubs. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_copy_async(
    from: onebuf_buffer,
    from_offset: usize,
    to: onebuf_buffer,
    to_offset: usize,
    bytes: usize,
    crossing: *mut onebuf_crossing,
    fence: Slot<'_, onebuf_fence>,
) -> onebuf_status {
    entry(|| {
        let fence = out(fence, "fence")?;
        // SAFETY: guaranteed by the caller.
        let report = unsafe { Report::to(crossing)? };
        let (from, to) = (from.get()?, to.get()?);
        let (range, start) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?.start);
        let (went, done) = bridge::copy_async(place(&from), range, place(&to), start)?;
        *fence = onebuf_fence::put(done)?;
        report.tell(&went)
    })
}

/// A range of a `cl_mem` that the application created, and the queue on which the application uses it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_cl_range {
    /// The `cl_mem`.
    pub mem: *mut c_void,
    /// The `cl_command_queue`, of the same context.
    pub queue: *mut c_void,
    /// The first byte.
    pub offset: usize,
}

/// Copies `bytes` bytes between two `cl_mem` of the application, of any contexts and platforms, in one call: the copy
/// comes after the commands that the application has enqueued on both queues so far, and commands that it enqueues
/// afterwards come after the copy. The bytes have arrived when this returns. No object is kept. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_copy_cl(
    hub: onebuf_hub,
    from: Option<&onebuf_cl_range>,
    to: Option<&onebuf_cl_range>,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let report = unsafe { Report::to(crossing)? };
        let (from, to) = (from.ok_or(Fault::Null("from"))?, to.ok_or(Fault::Null("to"))?);
        let hub = hub.get()?;
        // SAFETY: guaranteed by the caller.
        let ((source, read), (target, written)) =
            unsafe { (wrapped(&hub.hub, from)?, wrapped(&hub.hub, to)?) };
        let (source, target) = (Buf::from(source), Buf::from(target));
        let range = source.range(from.offset, bytes)?;
        let start = target.range(to.offset, bytes)?.start;
        let went = bridge::copy(place(&source), range, place(&target), start)?;
        source.whole().0.hand_to(&read)?;
        target.whole().0.hand_to(&written)?;
        report.tell(&went)
    })
}

/// The memory and the queue of a range.
///
/// # Safety
/// As for [`onebuf_bridge_copy_cl`].
unsafe fn wrapped(hub: &Hub, range: &onebuf_cl_range) -> Result<(Buffer<u8>, Queue)> {
    let (mem, queue) = (native(range.mem, "mem")?, native(range.queue, "queue")?);
    // SAFETY: guaranteed by the caller.
    let queue = unsafe { hub.wrap_queue(queue)? };
    // SAFETY: as above; the fence covers the owner's commands on its queue.
    let buffer = unsafe { hub.wrap_buffer::<u8>(mem) }.after(&queue.fence()).build()?;
    Ok((buffer, queue))
}

/// Copies `bytes` bytes of host memory into a buffer and waits. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_from_host(
    data: *const c_void,
    to: onebuf_buffer,
    to_offset: usize,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let report = unsafe { Report::to(crossing)? };
        let to = to.get()?;
        let start = to.range(to_offset, bytes)?.start;
        // SAFETY: guaranteed by the caller.
        let data = unsafe { crate::input::bytes(data, bytes, "data")? };
        report.tell(&bridge::from_host(data, place(&to), start)?)
    })
}

/// Copies `bytes` bytes of a buffer into host memory and waits. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_to_host(
    from: onebuf_buffer,
    from_offset: usize,
    data: *mut c_void,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let report = unsafe { Report::to(crossing)? };
        let from = from.get()?;
        let range = from.range(from_offset, bytes)?;
        // SAFETY: guaranteed by the caller.
        let data = unsafe { bytes_mut(data, bytes, "data")? };
        report.tell(&bridge::to_host(place(&from), range, data)?)
    })
}
