//! Strings
//!
//! Text and bytes that onebuf returns. They are valid until the string is freed.

use crate::{
    entry::free,
    fault::Result,
    handle::{Noun, noun},
    input::{Slot, out},
    status::onebuf_status,
};
use std::ffi::c_char;

/// Text or bytes made by onebuf. Free it with onebuf_string_free().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_string {
    /// Zero is the null handle.
    pub id: u64,
}
noun!(onebuf_string, Bytes, 1);

/// Bytes, followed by a NUL.
#[doc(hidden)]
pub struct Bytes(Box<[u8]>);

/// Creates a string of these bytes.
pub(crate) fn give(
    slot: Slot<'_, onebuf_string>,
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<()> {
    let slot = out(slot, "text")?;
    *slot = of(make()?)?;
    Ok(())
}

/// The handle of a new string.
pub(crate) fn of(mut bytes: Vec<u8>) -> Result<onebuf_string> {
    bytes.push(0);
    onebuf_string::put(Bytes(bytes.into()))
}

/// The text, NUL-terminated; empty for an invalid handle. Valid until the string is freed.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_string_data(string: onebuf_string) -> *const c_char {
    // The table keeps the bytes in place until the caller frees them.
    string.get().map_or(c"".as_ptr(), |bytes| bytes.0.as_ptr().cast())
}

/// Size in bytes, without the terminating NUL; zero for an invalid handle.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_string_size(string: onebuf_string) -> usize {
    string.get().map_or(0, |bytes| bytes.0.len() - 1)
}

/// Frees a string.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_string_free(string: onebuf_string) -> onebuf_status {
    free(string)
}
