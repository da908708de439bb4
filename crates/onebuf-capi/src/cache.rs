//! The cache
//!
//! The folder with the doctor's verdicts and the compiled programs, which hubs of this user share. `folder` NULL means the
//! user's: `$XDG_CACHE_HOME/onebuf`.

use crate::{
    entry::entry,
    fault::Result,
    input::{Options, Slot, give, path_if_given},
    status::onebuf_status,
    string::{self, onebuf_string},
};
use onebuf::cache::{self, Contents};
use std::{borrow::Cow, ffi::c_char, os::unix::ffi::OsStrExt, path::Path};

/// The contents of a cache folder. Set `size`; the call fills in the rest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_cache_info {
    /// `sizeof(onebuf_cache_info)`.
    pub size: usize,
    /// Number of verdicts.
    pub verdicts: u64,
    /// Number of compiled programs.
    pub programs: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Not zero: the file of verdicts cannot be used; `verdicts` is zero then.
    pub verdicts_unusable: u32,
}
// SAFETY: plain numbers, the size first.
unsafe impl Options for onebuf_cache_info {}

/// # Safety
/// Null, or a NUL-terminated string.
unsafe fn folder<'a>(given: *const c_char) -> Result<Cow<'a, Path>> {
    // SAFETY: guaranteed by the caller.
    Ok(match unsafe { path_if_given(given) } {
        Some(folder) => folder.into(),
        None => cache::user_folder()?.into(),
    })
}

/// # Safety
/// As for [`give`].
unsafe fn tell(found: Contents, info: *mut onebuf_cache_info) -> Result<()> {
    let told = onebuf_cache_info {
        size: 0,
        verdicts: found.verdicts.unwrap_or(0) as u64,
        programs: found.programs as u64,
        bytes: found.bytes,
        verdicts_unusable: found.verdicts.is_none().into(),
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(told, info, "info") }
}

/// The path of the user's cache folder.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_cache_folder(text: Slot<'_, onebuf_string>) -> onebuf_status {
    entry(|| string::give(text, || Ok(cache::user_folder()?.as_os_str().as_bytes().to_vec())))
}

/// Counts the contents of a cache folder. A folder that does not exist is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_cache_query(
    folder: *const c_char,
    info: *mut onebuf_cache_info,
) -> onebuf_status {
    // SAFETY: guaranteed by the caller.
    entry(|| unsafe { tell(cache::contents(&self::folder(folder)?)?, info) })
}

/// Removes the verdicts and programs of a cache folder. Living hubs keep what they have loaded. `info` gets the earlier contents,
/// and may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_cache_clear(
    folder: *const c_char,
    info: *mut onebuf_cache_info,
) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        let held = cache::clear(&unsafe { self::folder(folder)? })?;
        // SAFETY: as above.
        if info.is_null() { Ok(()) } else { unsafe { tell(held, info) } }
    })
}
