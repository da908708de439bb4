//! Requested transfers: reads, writes, fills, and copies between two memories of one device.
//!
//! OpenGL reads into host memory synchronously, after all earlier work, however long that takes. So onebuf first waits
//! for that work, with a timeout. Writes copy their data. Host memory of a coherent map is transferred by copies between two
//! buffers instead, which do not wait. The adapter has checked the ranges; none is empty.

use super::{
    context::Context,
    conv,
    event::Event,
    memory::{Memory, TARGET},
};
use onebuf_hal::{Event as _, Result, locks::Arc};
use onebuf_sys::gl::{Gl, GlRefused, consts};
use std::ptr;

/// Size of the first piece of a fill that the driver has no call for; the rest is copied from it.
const SEED_BYTES: usize = 4096;
const SOURCE: u32 = consts::COPY_READ_BUFFER;

/// A host address for the context's thread.
#[derive(Clone, Copy)]
struct TransferAddress(*mut u8);

// SAFETY: an address; the caller guarantees that only this call uses the memory.
unsafe impl Send for TransferAddress {}
// SAFETY: as above.
unsafe impl Sync for TransferAddress {}

impl TransferAddress {
    /// A method, because a closure would capture the field alone, which is not `Send`.
    fn at(&self) -> *mut u8 {
        self.0
    }
}

/// Copies to the host.
///
/// # Safety
/// `into` is valid for writes of this many bytes, and not touched otherwise.
pub(super) unsafe fn read(
    context: &Arc<Context>,
    from: &Memory,
    offset: usize,
    into: *mut u8,
    bytes: usize,
) -> Result<Event> {
    if from.readable(offset).is_none()
        && let Some((mapped, start)) = context.ours().mapped.find(into, bytes)
    {
        return directly(
            context,
            (from.inner.name, from.byte(offset)),
            (mapped.name, start),
            bytes,
        );
    }
    context.mark()?.wait(context.driver.post.limit())?;
    match from.readable(offset) {
        // SAFETY: the range is inside the map, all earlier work is over, and its writes are visible; the caller
        // guarantees that `into` is valid.
        Some(seen) => unsafe { into.copy_from_nonoverlapping(seen.as_ptr(), bytes) },
        None => read_buffer(context, from, from.byte(offset), TransferAddress(into), bytes)?,
    }
    Ok(Event::past(context.clone()))
}

/// Enqueues a copy between a buffer and one with a coherent map. OpenGL keeps the storage of both until the copy is done.
fn directly(
    context: &Arc<Context>,
    (from, from_at): (u32, usize),
    (to, to_at): (u32, usize),
    bytes: usize,
) -> Result<Event> {
    let [from_at, to_at, bytes] = [from_at, to_at, bytes].map(conv::signed);
    let sync = context.run(|gl| {
        context.settle(gl)?;
        // SAFETY: the context is current; ranges inside live buffers, which are different ones.
        unsafe {
            gl.bind_buffer(SOURCE, from)?;
            gl.bind_buffer(TARGET, to)?;
            gl.copy_buffer(SOURCE, TARGET, from_at, to_at, bytes)?;
        }
        context.fence(gl).inspect_err(|_| {
            // The caller gets no event, and may reuse its memory: the copy must be over.
            // SAFETY: the context is current.
            let _ = unsafe { gl.finish() };
        })
    })?;
    Ok(Event::new(context.clone(), sync))
}

fn read_buffer(
    context: &Context,
    from: &Memory,
    at: usize,
    into: TransferAddress,
    bytes: usize,
) -> Result<()> {
    let (name, shared) = (from.inner.name, from.is_shared());
    let (at, bytes) = (conv::signed(at), conv::signed(bytes));
    // SAFETY: the context is current, the range is inside a live buffer, and the caller guarantees that `into` is
    // valid.
    context.run(|gl| unsafe {
        gl.bind_buffer(SOURCE, name)?;
        match shared {
            false => gl.read_buffer(SOURCE, at, bytes, into.at().cast()),
            true => read_aside(gl, at, bytes, into),
        }
    })
}

/// Reads through another buffer. On an H200, each CUDA hand-over of 256 MiB takes 70 ms after `glGetBufferSubData` has
/// read the buffer; otherwise its cost does not grow with the size.
///
/// # Safety
/// The context is current, and the range is in a live buffer bound as the source; `into` is valid for writes.
unsafe fn read_aside(
    gl: &Gl,
    at: isize,
    bytes: isize,
    into: TransferAddress,
) -> Result<(), GlRefused> {
    // SAFETY: the caller guarantees this; the buffer created here is deleted here.
    unsafe {
        let staging = gl.create_buffer()?;
        let read = gl
            .bind_buffer(TARGET, staging)
            .and_then(|()| gl.buffer_data(TARGET, bytes, ptr::null(), consts::STREAM_DRAW))
            .and_then(|()| gl.copy_buffer(SOURCE, TARGET, at, 0, bytes))
            .and_then(|()| gl.read_buffer(TARGET, 0, bytes, into.at().cast()));
        read.and(gl.delete_buffer(staging))
    }
}

/// Copies from the host; `from` has been read when this returns.
///
/// # Safety
/// `from` is valid for reads of this many bytes, and not written otherwise.
pub(super) unsafe fn write(
    context: &Arc<Context>,
    to: &Memory,
    offset: usize,
    from: *const u8,
    bytes: usize,
) -> Result<Event> {
    if let Some((mapped, start)) = context.ours().mapped.find(from, bytes) {
        return directly(context, (mapped.name, start), (to.inner.name, to.byte(offset)), bytes);
    }
    let at = to.byte(offset);
    let from = TransferAddress(from.cast_mut());
    let sync = context.run(|gl| {
        context.settle(gl)?;
        // SAFETY: the context is current, the range is inside a live buffer, and the caller guarantees that `from` is
        // valid.
        unsafe { put(gl, to, at, from.at(), bytes)? };
        context.fence(gl)
    })?;
    Ok(Event::new(context.clone(), sync))
}

/// # Safety
/// The context is current, the range is inside a live buffer; `from` is valid for reads.
unsafe fn put(
    gl: &Gl,
    to: &Memory,
    at: usize,
    from: *const u8,
    bytes: usize,
) -> Result<(), GlRefused> {
    let (name, at, bytes) = (to.inner.name, conv::signed(at), conv::signed(bytes));
    // SAFETY: the caller guarantees this; a buffer created here is deleted here, and OpenGL keeps its storage for the
    // copy.
    unsafe {
        gl.bind_buffer(TARGET, name)?;
        if to.takes_writes() {
            return gl.write_buffer(TARGET, at, bytes, from.cast());
        }
        let staging = gl.create_buffer()?;
        let copied = gl
            .bind_buffer(SOURCE, staging)
            .and_then(|()| gl.buffer_data(SOURCE, bytes, from.cast(), consts::STREAM_DRAW))
            .and_then(|()| gl.copy_buffer(SOURCE, TARGET, 0, at, bytes));
        copied.and(gl.delete_buffer(staging))
    }
}

/// Repeats a pattern over a range.
pub(super) fn fill(
    context: &Arc<Context>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let at = memory.byte(offset);
    context.run(|gl| {
        context.settle(gl)?;
        match Clear::of(pattern.len()).filter(|_| at.is_multiple_of(pattern.len())) {
            Some(clear) => clear.fill(gl, memory.inner.name, at, bytes, pattern),
            None => fill_by_doubling(gl, memory, at, bytes, pattern),
        }
    })
}

/// OpenGL's formats for a pattern that `glClearBufferSubData` repeats.
struct Clear {
    internal: u32,
    format: u32,
    kind: u32,
}

impl Clear {
    fn of(len: usize) -> Option<Clear> {
        use consts::{
            R8UI, R16UI, R32UI, RED_INTEGER, RG_INTEGER, RG32UI, RGBA_INTEGER, RGBA32UI,
            UNSIGNED_BYTE, UNSIGNED_INT, UNSIGNED_SHORT,
        };
        let (internal, format, kind) = match len {
            1 => (R8UI, RED_INTEGER, UNSIGNED_BYTE),
            2 => (R16UI, RED_INTEGER, UNSIGNED_SHORT),
            4 => (R32UI, RED_INTEGER, UNSIGNED_INT),
            8 => (RG32UI, RG_INTEGER, UNSIGNED_INT),
            16 => (RGBA32UI, RGBA_INTEGER, UNSIGNED_INT),
            _ => return None,
        };
        Some(Clear { internal, format, kind })
    }

    fn fill(
        &self,
        gl: &Gl,
        name: u32,
        at: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<(), GlRefused> {
        let Clear { internal, format, kind } = *self;
        let (at, bytes) = (conv::signed(at), conv::signed(bytes));
        // SAFETY: the context is current; a range of whole patterns inside a live buffer; the pattern has the length of
        // its format, and is copied.
        unsafe {
            gl.bind_buffer(TARGET, name)?;
            gl.clear_buffer(TARGET, internal, at, bytes, format, kind, pattern.as_ptr().cast())
        }
    }
}

fn fill_by_doubling(
    gl: &Gl,
    memory: &Memory,
    at: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<(), GlRefused> {
    let seed = pattern.repeat((SEED_BYTES / pattern.len()).max(1));
    let mut filled = seed.len().min(bytes);
    // SAFETY: the context is current; all ranges are inside the buffer; the seed is copied.
    unsafe {
        put(gl, memory, at, seed.as_ptr(), filled)?;
        gl.bind_buffer(SOURCE, memory.inner.name)?;
        while filled < bytes {
            let more = filled.min(bytes - filled);
            let (from, to) = (conv::signed(at), conv::signed(at + filled));
            gl.copy_buffer(SOURCE, TARGET, from, to, conv::signed(more))?;
            filled += more;
        }
    }
    Ok(())
}

/// Copies inside the device.
pub(super) fn copy(
    context: &Arc<Context>,
    (from, from_offset): (&Memory, usize),
    (to, to_offset): (&Memory, usize),
    bytes: usize,
) -> Result<()> {
    let [source, target] = [from.byte(from_offset), to.byte(to_offset)].map(conv::signed);
    context.run(|gl| {
        context.settle(gl)?;
        // SAFETY: the context is current; ranges inside live buffers that do not overlap.
        unsafe {
            gl.bind_buffer(SOURCE, from.inner.name)?;
            gl.bind_buffer(TARGET, to.inner.name)?;
            gl.copy_buffer(SOURCE, TARGET, source, target, conv::signed(bytes))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::Clear;

    #[test]
    fn drivers_repeat_patterns_of_their_formats() {
        let cleared: Vec<usize> = (1..=32).filter(|len| Clear::of(*len).is_some()).collect();
        assert_eq!(cleared, [1, 2, 4, 8, 16]);
    }
}
