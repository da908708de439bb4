//! Checked access to pointers that C passes in, and to results that go back.
//!
//! # Safety
//! See the crate's `# Safety` section. This module checks what can be checked; the rest is the caller's contract.

use crate::fault::{Fault, Result};
use std::{
    ffi::{CStr, OsStr, c_char, c_void},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::Path,
    slice,
    time::Duration,
};

/// A larger options structure was not initialised.
const MAX_OPTIONS_BYTES: usize = 4096;
/// Timeouts are capped here, so that adding one to a clock does not overflow.
const MAX_TIMEOUT_MS: u64 = u32::MAX as u64 * 1000;

/// The place of a result. Null is an error. The result is zero if the call fails.
pub(crate) type Slot<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// The value of a result until the call succeeds.
pub(crate) trait Blank {
    fn blank() -> Self;
}

macro_rules! blank {
    ($($type:ty = $zero:expr),*) => {$(
        impl Blank for $type {
            fn blank() -> Self {
                $zero
            }
        }
    )*};
}
blank!(bool = false, i32 = 0, u32 = 0, u64 = 0, usize = 0);
blank!(*mut c_void = std::ptr::null_mut(), *const c_void = std::ptr::null());

pub(crate) fn out<'a, T: Blank>(slot: Slot<'a, T>, name: &'static str) -> Result<&'a mut T> {
    slot.map(|slot| slot.write(T::blank())).ok_or(Fault::Null(name))
}

/// Bytes to read.
///
/// # Safety
/// Null, or valid for reads of `bytes` bytes that nothing changes meanwhile.
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    count: usize,
    name: &'static str,
) -> Result<&'a [u8]> {
    check(data.is_null(), count, name)?;
    // SAFETY: not null; the rest is guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(data.cast(), count) })
}

/// Bytes to write.
///
/// # Safety
/// Null, or valid for writes of `bytes` bytes that nothing else uses meanwhile.
pub(crate) unsafe fn bytes_mut<'a>(
    data: *mut c_void,
    count: usize,
    name: &'static str,
) -> Result<&'a mut [u8]> {
    check(data.is_null(), count, name)?;
    // SAFETY: not null; the rest is guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts_mut(data.cast(), count) })
}

fn check(is_null: bool, count: usize, name: &'static str) -> Result<()> {
    match (is_null, isize::try_from(count)) {
        (true, _) => Err(Fault::Null(name)),
        (_, Err(_)) => {
            Err(Fault::invalid(format!("`{name}`: {count} bytes exceed the address space")))
        }
        _ => Ok(()),
    }
}

/// An array; null is allowed if it is empty.
///
/// # Safety
/// Null, or valid for reads of `count` elements that nothing changes meanwhile.
pub(crate) unsafe fn array<'a, T>(
    data: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(data.is_null(), count.saturating_mul(size_of::<T>()), name)?;
    // SAFETY: not null; the rest is guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(data, count) })
}

/// Copies the first elements to an array of the caller; null is allowed if its capacity is zero.
///
/// # Safety
/// Null, or valid for writes of `capacity` elements that nothing else uses meanwhile.
pub(crate) unsafe fn fill<T: Copy>(
    found: &[T],
    to: *mut T,
    capacity: usize,
    name: &'static str,
) -> Result<()> {
    if capacity > 0 && to.is_null() {
        return Err(Fault::Null(name));
    }
    let most = capacity.min(found.len());
    // SAFETY: not null unless nothing is copied; the rest is guaranteed by the caller.
    unsafe { to.copy_from_nonoverlapping(found.as_ptr(), most) };
    Ok(())
}

/// # Safety
/// Null, or a NUL-terminated string.
unsafe fn string<'a>(text: *const c_char, name: &'static str) -> Result<&'a CStr> {
    match text.is_null() {
        true => Err(Fault::Null(name)),
        // SAFETY: not null; the rest is guaranteed by the caller.
        false => Ok(unsafe { CStr::from_ptr(text) }),
    }
}

/// A UTF-8 string.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<&'a str> {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { string(text, name)? };
    text.to_str().map_err(|why| Fault::invalid(format!("`{name}` is not UTF-8: {why}")))
}

/// An optional UTF-8 string.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn text_if_given<'a>(
    given: *const c_char,
    name: &'static str,
) -> Result<Option<&'a str>> {
    // SAFETY: guaranteed by the caller.
    if given.is_null() { Ok(None) } else { unsafe { text(given, name) }.map(Some) }
}

/// An optional path, in any bytes that the system uses.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn path_if_given<'a>(given: *const c_char) -> Option<&'a Path> {
    // SAFETY: guaranteed by the caller.
    let bytes = (!given.is_null()).then(|| unsafe { CStr::from_ptr(given) }.to_bytes());
    bytes.map(|bytes| Path::new(OsStr::from_bytes(bytes)))
}

/// A path that must be given.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn path<'a>(given: *const c_char, name: &'static str) -> Result<&'a Path> {
    // SAFETY: guaranteed by the caller.
    unsafe { path_if_given(given) }.ok_or(Fault::Null(name))
}

/// A structure that may grow: callers built against older or newer headers work too.
///
/// # Safety
/// `repr(C)`, begins with a `usize` that is its size in bytes, and valid for any bit pattern.
pub(crate) unsafe trait Options: Copy {}

/// Reads a structure that may grow; all zero if the pointer is null.
///
/// # Safety
/// Null, or valid for reads of as many bytes as its first word says.
pub(crate) unsafe fn options<T: Options>(given: *const T) -> Result<T> {
    let mut known = MaybeUninit::<T>::zeroed();
    if given.is_null() {
        // SAFETY: every bit pattern is valid, including zeroes.
        return Ok(unsafe { known.assume_init() });
    }
    // SAFETY: the first word is the size.
    let size = unsafe { given.cast::<usize>().read_unaligned() };
    // The size is a multiple of the structure's alignment, so no field is cut in two.
    let whole = size.is_multiple_of(size_of::<usize>());
    if !whole || !(size_of::<usize>()..=MAX_OPTIONS_BYTES).contains(&size) {
        return Err(Fault::invalid(format!(
            "options of size {size}: set `size` to the structure's sizeof"
        )));
    }
    // SAFETY: the caller's structure is as large as its first word says.
    let all = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
    let (mine, newer) = all.split_at(size.min(size_of::<T>()));
    if newer.iter().any(|byte| *byte != 0) {
        return Err(Fault::invalid("options that this version of onebuf does not know yet"));
    }
    // SAFETY: at most as many bytes as `known` has; every bit pattern is valid.
    Ok(unsafe {
        known.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(mine.as_ptr(), mine.len());
        known.assume_init()
    })
}

/// Writes a structure that may grow to a caller whose header may be older or newer.
///
/// # Safety
/// Null, or valid for reads and writes of as many bytes as its first word says.
pub(crate) unsafe fn give<T: Options>(found: T, to: *mut T, name: &'static str) -> Result<()> {
    if to.is_null() {
        return Err(Fault::Null(name));
    }
    // SAFETY: guaranteed by the caller, whose structure this reads.
    unsafe { options(to.cast_const())? };
    // SAFETY: the size was read and checked; the first word is the caller's and stays.
    unsafe {
        let size = to.cast::<usize>().read_unaligned();
        let (first, most) = (size_of::<usize>(), size.min(size_of::<T>()));
        let from = (&raw const found).cast::<u8>().add(first);
        to.cast::<u8>().add(first).copy_from_nonoverlapping(from, most - first);
    }
    Ok(())
}

/// A timeout; `None` means the hub's own.
pub(crate) fn timeout(timeout_ms: u64) -> Option<Duration> {
    let named = timeout_ms != crate::words::ONEBUF_DEFAULT_TIMEOUT;
    named.then(|| Duration::from_millis(timeout_ms.min(MAX_TIMEOUT_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Grown {
        size: usize,
        old: usize,
        new: usize,
    }
    // SAFETY: plain numbers, the size first.
    unsafe impl Options for Grown {}

    #[repr(C)]
    struct Newest {
        known: Grown,
        newest: usize,
    }

    fn read<T>(given: &T) -> Result<Grown> {
        // SAFETY: a structure of the size that it states.
        unsafe { options((&raw const *given).cast::<Grown>()) }
    }

    #[test]
    fn older_and_newer_callers_are_understood() {
        let older = Grown { size: 2 * size_of::<usize>(), old: 5, new: 9 };
        let found = read(&older).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((found.old, found.new), (5, 0), "what it does not know is zero");
        let size = size_of::<Newest>();
        let mut newer = Newest { known: Grown { size, old: 1, new: 2 }, newest: 0 };
        assert!(read(&newer).is_ok_and(|found| found.new == 2));
        newer.newest = 1;
        assert!(read(&newer).is_err_and(|why| why.to_string().contains("does not know yet")));
        for size in [0, 7, 12, MAX_OPTIONS_BYTES + 8, usize::MAX] {
            assert!(read(&Grown { size, old: 0, new: 0 }).is_err(), "{size}");
        }
    }

    #[test]
    fn waits_end() {
        assert_eq!(timeout(0), Some(Duration::ZERO));
        assert_eq!(timeout(u64::MAX), None);
        assert!(
            timeout(u64::MAX - 1)
                .is_some_and(|t| std::time::Instant::now().checked_add(t).is_some())
        );
    }
}
