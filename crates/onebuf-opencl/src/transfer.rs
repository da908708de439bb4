//! Requested copies: reads, writes, fills, and copies between two memories of one device. Ranges have been checked and are
//! not empty.

use super::{
    conv::Version,
    event::Event,
    memory::Memory,
    queue::RawQueue,
    storage::{Object, Place},
};
use onebuf_hal::{Memory as _, Result, locks::Arc};
use onebuf_sys::opencl::{ClMem, consts as cl};
use std::{ffi::c_void, ptr};

/// The longest pattern that the driver's fill accepts; the length must also be a power of two.
const MAX_PATTERN: usize = 128;
/// The most bytes that one fill of the driver covers: whole patterns, whatever their length.
const MAX_FILL: usize = 1 << 30;
/// A fill of an object ends before this many patterns from the object's beginning. NVIDIA's driver (580.159) counts them in 32 bits: at
/// 2^31 it loses the device, and at 2^32 it fills the beginning of the object instead.
const MAX_COUNT: usize = 1 << 31;
/// The size of the host buffer from which other patterns are written repeatedly.
const CHUNK: usize = 1 << 20;

/// # Safety
/// `into` is valid for writes of `bytes`, and not otherwise used, until the event completes.
pub(super) unsafe fn read(
    queue: &Arc<RawQueue>,
    from: &Memory,
    offset: usize,
    into: *mut u8,
    bytes: usize,
) -> Result<Event> {
    from.start_use(queue, false)?;
    let (cl, no, none, into) = (&queue.driver().cl, cl::CL_FALSE, ptr::null(), into.cast());
    match from.place {
        // SAFETY: live objects of one context, a range that was checked, the caller's promise.
        Place::Object(mem) => unsafe {
            queue.enqueue("clEnqueueReadBuffer", |event| {
                cl.enqueue_read_buffer(queue.raw, mem, no, offset, bytes, into, 0, none, event)
            })
        },
        // SAFETY: as above.
        Place::Svm { pointer, .. } => unsafe {
            let from = pointer.void().byte_add(offset);
            queue.enqueue("clEnqueueSVMMemcpy", |event| {
                cl.enqueue_svm_memcpy(queue.raw, no, into, from, bytes, 0, none, event)
            })
        },
    }
}

/// # Safety
/// `from` is valid for reads of `bytes`, and not written, until the event completes.
pub(super) unsafe fn write(
    queue: &Arc<RawQueue>,
    to: &Memory,
    offset: usize,
    from: *const u8,
    bytes: usize,
) -> Result<Event> {
    to.start_use(queue, true)?;
    let (cl, no, none, from) = (&queue.driver().cl, cl::CL_FALSE, ptr::null(), from.cast());
    match to.place {
        // SAFETY: live objects of one context, a range that was checked, the caller's promise.
        Place::Object(mem) => unsafe {
            queue.enqueue("clEnqueueWriteBuffer", |event| {
                cl.enqueue_write_buffer(queue.raw, mem, no, offset, bytes, from, 0, none, event)
            })
        },
        // SAFETY: as above.
        Place::Svm { pointer, .. } => unsafe {
            let to = pointer.void().byte_add(offset);
            queue.enqueue("clEnqueueSVMMemcpy", |event| {
                cl.enqueue_svm_memcpy(queue.raw, no, to, from, bytes, 0, none, event)
            })
        },
    }
}

/// Fills with a pattern: by the driver's fill if it accepts the pattern, otherwise by writes or copies.
pub(super) fn fill(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    memory.start_use(queue, true)?;
    let takes = pattern.len().is_power_of_two() && pattern.len() <= MAX_PATTERN;
    match memory.place {
        Place::Object(mem) if takes && queue.driver().version >= Version::V1_2 => {
            fill_object(queue, memory, mem, (offset, bytes), pattern)
        }
        Place::Svm { pointer, .. } if takes => {
            filled_at_once(offset, bytes).try_for_each(|(at, bytes)| {
                // SAFETY: the range was checked.
                let at = unsafe { pointer.void().byte_add(at) };
                fill_svm(queue, at, bytes, pattern)
            })
        }
        _ => fill_by_commands(queue, memory, offset, bytes, pattern),
    }
}

/// A fill without the driver's fill.
fn fill_by_commands(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    match memory.place {
        Place::Object(mem) if !memory.takes_writes() => {
            fill_by_copies(queue, mem, offset, bytes, pattern)
        }
        _ => fill_by_writes(queue, memory, offset, bytes, pattern),
    }
}

/// How a part of a range is filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FillBy {
    /// By the driver, with the pattern repeated this many times.
    Driver(usize),
    /// By writes or copies.
    Commands,
}

/// The parts of a fill with a pattern of `n` bytes, as offset, length, and how. Beyond `MAX_COUNT` patterns longer ones are filled, and what
/// they do not cover at both ends is written: right up to 256 GiB. The range, and its offset, are whole patterns; `n` divides `MAX_PATTERN`.
fn fill_parts(offset: usize, bytes: usize, n: usize) -> [(usize, usize, FillBy); 4] {
    let end = offset + bytes;
    let near = end.min(n * MAX_COUNT).max(offset);
    let wide = near.next_multiple_of(MAX_PATTERN).min(end);
    let tail = (end / MAX_PATTERN * MAX_PATTERN).max(wide);
    // Without a rest there is nothing to widen.
    let [wide, tail] = if near == end { [end; 2] } else { [wide, tail] };
    [
        (offset, near - offset, FillBy::Driver(1)),
        (near, wide - near, FillBy::Commands),
        (wide, tail - wide, FillBy::Driver(MAX_PATTERN / n)),
        (tail, end - tail, FillBy::Commands),
    ]
}

fn fill_object(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    mem: ClMem,
    (offset, bytes): (usize, usize),
    pattern: &[u8],
) -> Result<()> {
    for (at, bytes, by) in fill_parts(offset, bytes, pattern.len()) {
        match by {
            _ if bytes == 0 => {}
            FillBy::Commands => fill_by_commands(queue, memory, at, bytes, pattern)?,
            FillBy::Driver(times) => {
                let pattern = pattern.repeat(times);
                filled_at_once(at, bytes)
                    .try_for_each(|(at, bytes)| fill_once(queue, mem, at, bytes, &pattern))?;
            }
        }
    }
    Ok(())
}

fn fill_once(
    queue: &RawQueue,
    mem: ClMem,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let (driver, at) = (queue.driver(), pattern.as_ptr().cast());
    // SAFETY: live objects of one context, a checked range in whole patterns; the pattern is copied
    // before the call returns.
    let filled = unsafe {
        let (queue, n, none, no) = (queue.raw, pattern.len(), ptr::null(), ptr::null_mut());
        driver.cl.enqueue_fill_buffer(queue, mem, at, n, offset, bytes, 0, none, no)
    };
    driver.check("clEnqueueFillBuffer", filled)
}

fn fill_svm(queue: &RawQueue, to: *mut c_void, bytes: usize, pattern: &[u8]) -> Result<()> {
    let (driver, at) = (queue.driver(), pattern.as_ptr().cast());
    // SAFETY: as in `fill_once`; the base is aligned to at least the longest pattern.
    let filled = unsafe {
        let (queue, n, none, no) = (queue.raw, pattern.len(), ptr::null(), ptr::null_mut());
        driver.cl.enqueue_svm_mem_fill(queue, to, at, n, bytes, 0, none, no)
    };
    driver.check("clEnqueueSVMMemFill", filled)
}

/// The ranges of one fill, as offset and length.
fn filled_at_once(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(MAX_FILL).map(move |at| (offset + at, MAX_FILL.min(bytes - at)))
}

/// Repeats a pattern, up to `CHUNK` bytes.
fn chunk(bytes: usize, pattern: &[u8]) -> Vec<u8> {
    pattern.repeat((CHUNK.min(bytes) / pattern.len()).max(1))
}

/// Fills memory that the host must not write, by copies from a buffer of repeated patterns.
fn fill_by_copies(
    queue: &Arc<RawQueue>,
    mem: ClMem,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let chunk = chunk(bytes, pattern);
    let from = Object::holding(&queue.context, cl::CL_MEM_READ_ONLY, &chunk)?;
    let fill = |at| {
        let len = chunk.len().min(bytes - at);
        copy_objects(queue, (from.mem, 0), (mem, offset + at), len)
    };
    let filled = (0..bytes).step_by(chunk.len()).try_for_each(fill);
    from.release(std::slice::from_ref(queue));
    filled
}

fn fill_by_writes(
    queue: &Arc<RawQueue>,
    memory: &Memory,
    offset: usize,
    bytes: usize,
    pattern: &[u8],
) -> Result<()> {
    let chunk = chunk(bytes, pattern);
    let mut written = Ok(());
    for at in (0..bytes).step_by(chunk.len()) {
        let len = chunk.len().min(bytes - at);
        // SAFETY: `chunk` is not changed, and `hold` keeps it, also after a failed write.
        let write = unsafe { write(queue, memory, offset + at, chunk.as_ptr(), len) };
        if let Err(why) = write {
            written = Err(why);
            break;
        }
    }
    queue.hold(chunk);
    written
}

/// Copies between two memories of the device.
pub(super) fn copy(
    queue: &Arc<RawQueue>,
    (from, from_offset): (&Memory, usize),
    (to, to_offset): (&Memory, usize),
    bytes: usize,
) -> Result<()> {
    from.start_use(queue, false)?;
    to.start_use(queue, true)?;
    if let (Place::Svm { pointer: a, .. }, Place::Svm { pointer: b, .. }) = (from.place, to.place) {
        // SAFETY: both ranges were checked.
        let (from, to) = unsafe { (a.void().byte_add(from_offset), b.void().byte_add(to_offset)) };
        return copy_svm(queue, from, to, bytes);
    }
    let (from, to) = (Seen::new(queue, from)?, Seen::new(queue, to)?);
    copy_objects(queue, (from.mem, from_offset), (to.mem, to_offset), bytes)
}

fn copy_svm(queue: &RawQueue, from: *mut c_void, to: *mut c_void, bytes: usize) -> Result<()> {
    let driver = queue.driver();
    // SAFETY: live allocations of the queue's context, ranges that were checked and do not overlap.
    let copied = unsafe {
        let (blocking, none, no) = (cl::CL_FALSE, ptr::null(), ptr::null_mut());
        driver.cl.enqueue_svm_memcpy(queue.raw, blocking, to, from, bytes, 0, none, no)
    };
    driver.check("clEnqueueSVMMemcpy", copied)
}

fn copy_objects(
    queue: &RawQueue,
    (from, from_offset): (ClMem, usize),
    (to, to_offset): (ClMem, usize),
    bytes: usize,
) -> Result<()> {
    let driver = queue.driver();
    // SAFETY: live objects of the queue's context, ranges that were checked and do not overlap.
    let copied = unsafe {
        let (a, b, none, no) = (from_offset, to_offset, ptr::null(), ptr::null_mut());
        driver.cl.enqueue_copy_buffer(queue.raw, from, to, a, b, bytes, 0, none, no)
    };
    driver.check("clEnqueueCopyBuffer", copied)
}

/// A memory as the object that a copy between SVM and a buffer needs.
///
/// SVM gets a temporary object for the call. By the specification `USE_HOST_PTR` on an SVM pointer uses the same
/// storage, and a released object stays valid until the commands that use it have completed.
struct Seen<'a> {
    queue: &'a RawQueue,
    mem: ClMem,
    made: bool,
}

impl<'a> Seen<'a> {
    fn new(queue: &'a RawQueue, memory: &Memory) -> Result<Seen<'a>> {
        let pointer = match memory.place {
            Place::Object(mem) => return Ok(Seen { queue, mem, made: false }),
            Place::Svm { pointer, .. } => pointer.void(),
        };
        let (driver, context) = (queue.driver(), queue.context.raw);
        let flags = cl::CL_MEM_USE_HOST_PTR | cl::CL_MEM_READ_WRITE;
        // SAFETY: SVM of this context, of this length; `start_use` has recorded the queue, so the memory is freed
        // only after the copy.
        let made = unsafe { driver.cl.create_buffer(context, flags, memory.bytes(), pointer) };
        Ok(Seen { queue, mem: driver.check("clCreateBuffer", made)?, made: true })
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        if self.made {
            let driver = self.queue.driver();
            // SAFETY: created by `new`, released once.
            let released = unsafe { driver.cl.release_mem_object(self.mem) };
            driver.note("clReleaseMemObject", released);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_fills_are_divided_into_whole_patterns() {
        let all = |offset, bytes| filled_at_once(offset, bytes).collect::<Vec<_>>();
        assert_eq!(all(8, 12), [(8, 12)]);
        assert_eq!(all(0, MAX_FILL), [(0, MAX_FILL)]);
        let parts = [(128, MAX_FILL), (128 + MAX_FILL, MAX_FILL), (128 + 2 * MAX_FILL, 4096)];
        assert_eq!(all(128, 2 * MAX_FILL + 4096), parts);
        assert_eq!(MAX_FILL % MAX_PATTERN, 0);
    }

    /// Each part as the driver counts: patterns from the beginning of the object.
    #[test]
    fn fills_far_from_the_beginning_count_long_patterns() {
        const GIB: usize = 1 << 30;
        let parts = |offset, bytes, n| {
            let parts = fill_parts(offset, bytes, n);
            let mut at = offset;
            for (start, len, by) in parts {
                assert_eq!((start, len % n), (at, 0), "{offset} {bytes} {n}: {parts:?}");
                at += len;
                if let FillBy::Driver(times) = by {
                    assert!(len == 0 || start % (times * n) == 0, "{parts:?}");
                    assert!(len == 0 || at.div_ceil(times * n) <= MAX_COUNT, "{parts:?}");
                } else {
                    assert!(len < MAX_PATTERN, "{parts:?}");
                }
            }
            assert_eq!(at, offset + bytes, "{parts:?}");
            parts.into_iter().filter(|part| part.1 > 0).map(|part| part.2).collect::<Vec<_>>()
        };
        let (plain, wide, commands) = (FillBy::Driver(1), FillBy::Driver(128), FillBy::Commands);
        assert_eq!(parts(5, 77, 1), [plain]);
        assert_eq!(parts(0, 2 * GIB, 1), [plain]);
        assert_eq!(parts(0, 2 * GIB + 4100, 1), [plain, wide, commands]);
        assert_eq!(parts(2 * GIB + 3, 4096, 1), [commands, wide, commands]);
        assert_eq!(parts(2 * GIB + 3, 60, 1), [commands]);
        assert_eq!(parts(2 * GIB, 128, 1), [wide]);
        assert_eq!(parts(4 * GIB, 4100, 4), [plain]);
        assert_eq!(parts(8 * GIB - 4, 8, 4), [plain, commands]);
        for n in [1, 2, 4, 16, 64, 128] {
            for (offset, bytes) in [(0, 0), (0, 9 * GIB), (n, 128 * n), (GIB * n - n, 3 * n)] {
                parts(offset, bytes, n);
            }
        }
    }
}
