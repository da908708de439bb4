//! Requested copies: reads, writes, fills, and between two memories of one device.
//!
//! OpenGL reads into host memory synchronously, after whatever was enqueued before, however long that takes. So onebuf
//! first waits for that, with a timeout. Writes copy their data.
//! Ranges have been checked, and are not empty.

use super::{
    context::Context,
    conv,
    event::Event,
    memory::{Memory, TARGET},
};
use onebuf_hal::{Event as _, Result, locks::Arc};
use onebuf_sys::gl::{Gl, GlRefused, consts};
use std::ptr;

/// The least that patterns of odd lengths are written with; the rest is copied from there.
const SEED_BYTES: usize = 4096;
const SOURCE: u32 = consts::COPY_READ_BUFFER;

/// Host memory on its way to the context's thread.
#[derive(Clone, Copy)]
struct Place(*mut u8);

// SAFETY: an address; the caller promises that the memory is for this call alone.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// A method, since closures take a field without what is promised of the whole.
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
    context.mark()?.wait(context.driver.post.limit())?;
    match from.readable(offset) {
        // SAFETY: the range lies inside the map, all work before is over, and its writes are visible; the caller's
        // promise about `into`.
        Some(seen) => unsafe { into.copy_from_nonoverlapping(seen.as_ptr(), bytes) },
        None => read_buffer(context, from, from.byte(offset), Place(into), bytes)?,
    }
    Ok(Event::past(context.clone()))
}

fn read_buffer(
    context: &Context,
    from: &Memory,
    at: usize,
    into: Place,
    bytes: usize,
) -> Result<()> {
    let (name, shared) = (from.inner.name, from.is_shared());
    let (at, bytes) = (conv::signed(at), conv::signed(bytes));
    // SAFETY: the context is current, the range inside of a live buffer, and `into` is the caller's promise.
    context.run(|gl| unsafe {
        gl.bind_buffer(SOURCE, name)?;
        match shared {
            false => gl.read_buffer(SOURCE, at, bytes, into.at().cast()),
            true => read_aside(gl, at, bytes, into),
        }
    })
}

/// Through another buffer. On an H200 CUDA's turns cost 70 ms for 256 MiB of a buffer that `glGetBufferSubData` had read, and
/// nothing that grows with the size otherwise.
///
/// # Safety
/// The context is current, and a range of a live buffer bound as the source; `into` is valid for writes.
unsafe fn read_aside(gl: &Gl, at: isize, bytes: isize, into: Place) -> Result<(), GlRefused> {
    // SAFETY: the caller's promise; the buffer that is made here goes here.
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
    let at = to.byte(offset);
    let from = Place(from.cast_mut());
    let sync = context.run(|gl| {
        context.settle(gl)?;
        // SAFETY: the context is current, the range inside of a live buffer, and `from` is the caller's promise.
        unsafe { put(gl, to, at, from.at(), bytes)? };
        context.fence(gl)
    })?;
    Ok(Event::new(context.clone(), sync))
}

/// # Safety
/// The context is current, the range inside of a live buffer; `from` is valid for reads.
unsafe fn put(
    gl: &Gl,
    to: &Memory,
    at: usize,
    from: *const u8,
    bytes: usize,
) -> Result<(), GlRefused> {
    let (name, at, bytes) = (to.inner.name, conv::signed(at), conv::signed(bytes));
    // SAFETY: the caller's promise; a buffer that is made here goes here, and OpenGL keeps what it copies from.
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

/// What a pattern is called when the driver repeats it.
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
        // SAFETY: the context is current; a range of whole patterns inside of a live buffer; the pattern is as long
        // as its format says, and copied.
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
    // SAFETY: the context is current; everything lies inside of the range; the seed is copied.
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
        // SAFETY: the context is current; ranges inside of live buffers that do not overlap.
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
