//! The bridge
//!
//! Copies between any two buffers by the shortest way there is: they may belong to different devices,
//! platforms, contexts, even hubs, and both may be regions. The source comes first. What was asked for is counted
//! as asked.

use crate::{
    buffer::onebuf_buffer,
    entry::entry,
    fault::Result,
    fence::onebuf_fence,
    handle::Noun,
    input::{Options, Slot, bytes_mut, give, options, out},
    kept::Buf,
    status::onebuf_status,
    words::{self, onebuf_route},
};
use onebuf::bridge::{self, Crossing, Place};
use std::ffi::c_void;

/// How a copy went. Set `size`; the rest is filled in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_crossing {
    /// `sizeof(onebuf_crossing)`.
    pub size: usize,
    /// How many bytes were copied: none where they were at their place already.
    pub bytes: u64,
    /// In how many chunks they went through host memory; zero where it was one copy.
    pub chunks: u64,
    /// How many bytes hand-overs of the two buffers copied meanwhile, though nobody had asked.
    pub implied_bytes: u64,
    /// By which way the bytes went.
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

/// Where the report goes, looked at before anything is copied; null for nobody.
struct Report(*mut onebuf_crossing);

impl Report {
    /// # Safety
    /// Null, or valid for reads and writes of as many bytes as its first word says, as long as this lives.
    unsafe fn to(crossing: *mut onebuf_crossing) -> Result<Self> {
        // SAFETY: the caller's promise.
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
        // SAFETY: promised when it was made.
        unsafe { give(told, self.0, "crossing") }
    }
}

/// Copies so many bytes, and waits until they are there. Source and target may be one buffer, and may overlap:
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
        // SAFETY: the caller's promise.
        let report = unsafe { Report::to(crossing)? };
        let (from, to) = (from.get()?, to.get()?);
        let (range, start) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?.start);
        report.tell(&bridge::copy(place(&from), range, place(&to), start)?)
    })
}

/// Starts the same, and gives the fence that tells when the bytes are there. Neither buffer can be used before
/// its turn: views and mappings taken meanwhile come after the copy. It is done before this returns where only
/// the host has one end, and where the buffers belong to two hubs. `crossing` may be NULL.
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
        // SAFETY: the caller's promise.
        let report = unsafe { Report::to(crossing)? };
        let (from, to) = (from.get()?, to.get()?);
        let (range, start) = (from.range(from_offset, bytes)?, to.range(to_offset, bytes)?.start);
        let (went, done) = bridge::copy_async(place(&from), range, place(&to), start)?;
        *fence = onebuf_fence::put(done)?;
        report.tell(&went)
    })
}

/// Copies so many bytes of the caller's into a buffer. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_from_host(
    data: *const c_void,
    to: onebuf_buffer,
    to_offset: usize,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: the caller's promise.
        let report = unsafe { Report::to(crossing)? };
        let to = to.get()?;
        let start = to.range(to_offset, bytes)?.start;
        // SAFETY: the caller's promise.
        let data = unsafe { crate::input::bytes(data, bytes, "data")? };
        report.tell(&bridge::from_host(data, place(&to), start)?)
    })
}

/// Copies so many bytes of a buffer to the caller. `crossing` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_bridge_to_host(
    from: onebuf_buffer,
    from_offset: usize,
    data: *mut c_void,
    bytes: usize,
    crossing: *mut onebuf_crossing,
) -> onebuf_status {
    entry(|| {
        // SAFETY: the caller's promise.
        let report = unsafe { Report::to(crossing)? };
        let from = from.get()?;
        let range = from.range(from_offset, bytes)?;
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut(data, bytes, "data")? };
        report.tell(&bridge::to_host(place(&from), range, data)?)
    })
}
