//! Status
//!
//! Every function that can fail returns a status and stores its results through pointers. The results are zero if it
//! failed.

use std::ffi::c_char;

/// The result of a call: ONEBUF_OK, or why it failed.
pub type onebuf_status = i32;

/// Success.
pub const ONEBUF_OK: onebuf_status = 0;
/// A library, driver or device is unavailable on this machine.
pub const ONEBUF_UNAVAILABLE: onebuf_status = 1;
/// The device or route does not support this.
pub const ONEBUF_UNSUPPORTED: onebuf_status = 2;
/// The call would need an implied copy, which the policy forbids.
pub const ONEBUF_COPY_FORBIDDEN: onebuf_status = 3;
/// The buffer is not shared with this device.
pub const ONEBUF_NOT_SHARED: onebuf_status = 4;
/// A conflicting view or mapping is held, or the work is not done yet.
pub const ONEBUF_BUSY: onebuf_status = 5;
/// Out of memory.
pub const ONEBUF_OUT_OF_MEMORY: onebuf_status = 6;
/// The device stopped working.
pub const ONEBUF_DEVICE_LOST: onebuf_status = 7;
/// The process at the other end is gone.
pub const ONEBUF_PEER_LOST: onebuf_status = 8;
/// An argument is invalid; the message names the argument and the rule.
pub const ONEBUF_INVALID_ARGUMENT: onebuf_status = 9;
/// An object belongs to another context or hub.
pub const ONEBUF_FOREIGN_CONTEXT: onebuf_status = 10;
/// The compiler rejected the program; the message contains the build log.
pub const ONEBUF_BUILD: onebuf_status = 11;
/// A wait timed out. The work may still finish.
pub const ONEBUF_TIMEOUT: onebuf_status = 12;
/// The driver returned a status that has no other name here.
pub const ONEBUF_DRIVER: onebuf_status = 13;
/// A file in onebuf's cache cannot be used.
pub const ONEBUF_CACHE: onebuf_status = 14;
/// The other process is not trusted: it belongs to another user, or violates the protocol.
pub const ONEBUF_PEER_REFUSED: onebuf_status = 15;
/// The handle is invalid: null, freed, of another kind, or never created.
pub const ONEBUF_INVALID_HANDLE: onebuf_status = 100;
/// A pointer that must not be NULL is NULL.
pub const ONEBUF_NULL_POINTER: onebuf_status = 101;
/// A bug in onebuf: please report the message.
pub const ONEBUF_PANIC: onebuf_status = 102;
/// An error for which this version has no other status.
pub const ONEBUF_OTHER: onebuf_status = 103;

/// The name of a status, such as `ONEBUF_BUSY`; `unknown` for any other number. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_status_name(status: onebuf_status) -> *const c_char {
    let name = match status {
        ONEBUF_OK => c"ONEBUF_OK",
        ONEBUF_UNAVAILABLE => c"ONEBUF_UNAVAILABLE",
        ONEBUF_UNSUPPORTED => c"ONEBUF_UNSUPPORTED",
        ONEBUF_COPY_FORBIDDEN => c"ONEBUF_COPY_FORBIDDEN",
        ONEBUF_NOT_SHARED => c"ONEBUF_NOT_SHARED",
        ONEBUF_BUSY => c"ONEBUF_BUSY",
        ONEBUF_OUT_OF_MEMORY => c"ONEBUF_OUT_OF_MEMORY",
        ONEBUF_DEVICE_LOST => c"ONEBUF_DEVICE_LOST",
        ONEBUF_PEER_LOST => c"ONEBUF_PEER_LOST",
        ONEBUF_INVALID_ARGUMENT => c"ONEBUF_INVALID_ARGUMENT",
        ONEBUF_FOREIGN_CONTEXT => c"ONEBUF_FOREIGN_CONTEXT",
        ONEBUF_BUILD => c"ONEBUF_BUILD",
        ONEBUF_TIMEOUT => c"ONEBUF_TIMEOUT",
        ONEBUF_DRIVER => c"ONEBUF_DRIVER",
        ONEBUF_CACHE => c"ONEBUF_CACHE",
        ONEBUF_PEER_REFUSED => c"ONEBUF_PEER_REFUSED",
        ONEBUF_INVALID_HANDLE => c"ONEBUF_INVALID_HANDLE",
        ONEBUF_NULL_POINTER => c"ONEBUF_NULL_POINTER",
        ONEBUF_PANIC => c"ONEBUF_PANIC",
        ONEBUF_OTHER => c"ONEBUF_OTHER",
        _ => c"unknown",
    };
    name.as_ptr()
}
