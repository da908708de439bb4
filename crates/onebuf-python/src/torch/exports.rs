//! The functions that PyTorch calls, by their names: with the interpreter's lock or without it, on any thread, also while the process ends.

use super::{get, throw};
use std::{
    cell::RefCell,
    ffi::{c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    /// The message of the error that is about to be thrown.
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Calls the allocator; null, after a message, if it fails. Nothing unwinds out of it.
fn guarded(
    size: isize,
    body: impl FnOnce(&super::Allocator, usize) -> onebuf::Result<usize>,
) -> usize {
    let Ok(bytes @ 1..) = usize::try_from(size) else { return 0 };
    let said = match catch_unwind(AssertUnwindSafe(|| get().map(|all| body(all, bytes)))) {
        Ok(Some(Ok(at))) => return at,
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => "onebuf.torch_allocator was not called".to_owned(),
        Err(_) => "a panic: this is an error of onebuf".to_owned(),
    };
    let reserved = get().and_then(|all| all.stats().ok()).map_or(0, |(stats, _)| stats.reserved);
    let text = format!(
        "CUDA out of memory. Tried to allocate {bytes} bytes by onebuf's allocator, which has {reserved} bytes: {said}"
    );
    let _ = MESSAGE.try_with(|place| *place.borrow_mut() = text);
    0
}

/// The message of this thread's last error, as an address and a length.
fn message() -> (*const u8, usize) {
    let found = MESSAGE.try_with(|place| {
        let text = place.borrow();
        (text.as_ptr(), text.len())
    });
    found.unwrap_or((c"CUDA out of memory".as_ptr().cast(), 18))
}

#[inline(never)]
fn allocate(size: isize, device: c_int, stream: usize) -> usize {
    guarded(size, |all, bytes| all.allocate((device, stream), bytes))
}

/// Allocates a block for a stream. Throws PyTorch's exception for exhausted memory, or returns null where that is not known.
///
/// # Safety
/// None: PyTorch's signature.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn onebuf_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let at = allocate(size, device, stream.addr());
    if at == 0 && size > 0 {
        let (text, length) = message();
        // SAFETY: this frame has nothing to drop.
        unsafe { throw::throw(text, length) };
    }
    at as *mut c_void
}

/// Gives a block back to its stream.
///
/// # Safety
/// `at` came from [`onebuf_torch_alloc`], and work of other streams on it was recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_torch_free(
    at: *mut c_void,
    _size: isize,
    _device: c_int,
    _stream: *mut c_void,
) {
    freed(at, |all, at| all.free(at));
}

/// Notes that another stream uses a block: it is not used again before that stream's work so far is done when it is freed.
///
/// # Safety
/// `at` came from [`onebuf_torch_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_torch_record_stream(at: *mut c_void, stream: *mut c_void) {
    freed(at, |all, at| {
        all.record(at, stream.addr());
        Ok(())
    });
}

/// Allocates a segment for PyTorch's own cache; null if there is no memory.
///
/// # Safety
/// None: PyTorch's signature.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_torch_segment_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    guarded(size, |all, bytes| all.allocate_segment((device, stream.addr()), bytes)) as *mut c_void
}

/// Frees a segment.
///
/// # Safety
/// `at` came from [`onebuf_torch_segment_alloc`]; its work is in its stream, in `stream`, or in streams that were recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_torch_segment_free(
    at: *mut c_void,
    _size: isize,
    _device: c_int,
    stream: *mut c_void,
) {
    freed(at, |all, at| match crate::ending::has_begun() {
        true => Ok(()),
        false => all.free_segment(at, stream.addr()),
    });
}

/// Calls the allocator about an address. Errors are logged: PyTorch has no way to hear of them.
fn freed(at: *mut c_void, body: impl FnOnce(&super::Allocator, usize) -> onebuf::Result<()>) {
    if at.is_null() {
        return;
    }
    let done = catch_unwind(AssertUnwindSafe(|| get().map(|all| body(all, at.addr()))));
    match done {
        Ok(Some(Ok(()))) | Ok(None) => {}
        Ok(Some(Err(error))) => eprintln!("onebuf: PyTorch's allocator: {error}"),
        Err(_) => eprintln!("onebuf: PyTorch's allocator: a panic, which is an error of onebuf"),
    }
}
