//! Status
//!
//! Every function that can fail returns a status and gives its results through pointers; what those point at
//! is zero when it failed.

use std::ffi::c_char;

/// How a call ended: ONEBUF_OK, or why it failed.
pub type onebuf_status = i32;

/// It did what was asked.
pub const ONEBUF_OK: onebuf_status = 0;
/// A library, driver or device is not on this machine.
pub const ONEBUF_UNAVAILABLE: onebuf_status = 1;
/// The device or route cannot do this.
pub const ONEBUF_UNSUPPORTED: onebuf_status = 2;
/// It would need a copy that nobody asked for, and the policy forbids those.
pub const ONEBUF_COPY_FORBIDDEN: onebuf_status = 3;
/// The buffer was made without this device.
pub const ONEBUF_NOT_SHARED: onebuf_status = 4;
/// Not now: somebody holds a conflicting view or mapping, or the work asked about is not done.
pub const ONEBUF_BUSY: onebuf_status = 5;
/// Memory ran out.
pub const ONEBUF_OUT_OF_MEMORY: onebuf_status = 6;
/// The device stopped working.
pub const ONEBUF_DEVICE_LOST: onebuf_status = 7;
/// The process at the other end is gone.
pub const ONEBUF_PEER_LOST: onebuf_status = 8;
/// The call itself is wrong; the message names the argument and the rule.
pub const ONEBUF_INVALID_ARGUMENT: onebuf_status = 9;
/// An object of one context or hub was given where another's is needed.
pub const ONEBUF_FOREIGN_CONTEXT: onebuf_status = 10;
/// The driver's compiler refused the program; the message has its log.
pub const ONEBUF_BUILD: onebuf_status = 11;
/// A wait ran out of time. The work may still finish.
pub const ONEBUF_TIMEOUT: onebuf_status = 12;
/// The driver answered with a status that has no better name here.
pub const ONEBUF_DRIVER: onebuf_status = 13;
/// A file of onebuf's own cannot be used.
pub const ONEBUF_CACHE: onebuf_status = 14;
/// The other process is not trusted: another user's, or one that does not keep to the rules.
pub const ONEBUF_PEER_REFUSED: onebuf_status = 15;
/// The handle names nothing: null, freed, of another kind, or never made.
pub const ONEBUF_INVALID_HANDLE: onebuf_status = 100;
/// A pointer is NULL that may not be.
pub const ONEBUF_NULL_POINTER: onebuf_status = 101;
/// A bug in onebuf: please report the message.
pub const ONEBUF_PANIC: onebuf_status = 102;
/// An error of a kind that this version has no number for.
pub const ONEBUF_OTHER: onebuf_status = 103;

/// The status' name, such as `ONEBUF_BUSY`; `unknown` for a number that is none. Never NULL.
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
