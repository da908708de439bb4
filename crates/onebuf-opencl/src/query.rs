//! Queries of the driver: the last three arguments of every `clGet…Info` are the same.

use bytemuck::Pod;
use onebuf_sys::ClStatus;
use std::{ffi::c_void, ptr};

/// Queries one value of known size.
pub(super) fn value<T: Pod>(
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Result<(), ClStatus>,
) -> Result<T, ClStatus> {
    let mut value = T::zeroed();
    ask(size_of::<T>(), (&raw mut value).cast(), ptr::null_mut())?;
    Ok(value)
}

/// Queries a value of unknown length.
pub(super) fn bytes(
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Result<(), ClStatus>,
) -> Result<Vec<u8>, ClStatus> {
    let mut length = 0;
    ask(0, ptr::null_mut(), &mut length)?;
    let mut bytes = vec![0; length];
    if length > 0 {
        ask(length, bytes.as_mut_ptr().cast(), ptr::null_mut())?;
    }
    Ok(bytes)
}

/// Queries a list of values. Lengths are in bytes; an incomplete value at the end is dropped.
pub(super) fn list<T: Pod>(
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Result<(), ClStatus>,
) -> Result<Vec<T>, ClStatus> {
    let bytes = bytes(ask)?;
    Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
}

/// Queries a text, without the terminating zero and surrounding white space.
pub(super) fn text(
    ask: impl Fn(usize, *mut c_void, *mut usize) -> Result<(), ClStatus>,
) -> Result<String, ClStatus> {
    let bytes = bytes(ask)?;
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).trim().to_owned())
}
