//! Error messages
//!
//! The message of a thread's last failure says what was wrong and what to do.

use crate::{
    entry::{entry, last_failure, last_message, set_message},
    input::{Options, give, text},
    status::onebuf_status,
};
use std::ffi::c_char;

/// The message of this thread's last call that failed; empty if none has. Valid until the thread's next call that
/// fails, or until the thread ends. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn onebuf_last_error_message() -> *const c_char {
    last_message()
}

/// Sets this thread's error message, as a call that fails does. For callbacks, whose reasons a pipeline passes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_set_error_message(message: *const c_char) -> onebuf_status {
    entry(|| {
        // SAFETY: guaranteed by the caller.
        set_message(unsafe { text(message, "message")? });
        Ok(())
    })
}

/// The parts of a failure, for programs that act on them. Set `size`; the call fills in the rest. Numbers that do not apply are
/// zero, and strings empty. Strings are valid until the thread's next call that fails.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct onebuf_error_info {
    /// `sizeof(onebuf_error_info)`.
    pub size: usize,
    /// The status of the call; ONEBUF_OK if the message was set by onebuf_set_error_message(), and if no call has failed.
    pub status: onebuf_status,
    /// The driver's own status, for ONEBUF_DRIVER.
    pub driver_code: i32,
    /// The requested bytes, for ONEBUF_OUT_OF_MEMORY.
    pub asked_bytes: u64,
    /// The limit, for ONEBUF_OUT_OF_MEMORY, if it is known.
    pub limit_bytes: u64,
    /// How long was waited, for ONEBUF_TIMEOUT.
    pub timeout_ms: u64,
    /// What it concerns: a device, an API, a route, a file, or what was requested.
    pub subject: *const c_char,
    /// The reason: what would be needed, the driver's name of its status, or the compiler's log.
    pub reason: *const c_char,
    /// The driver's call that failed, for ONEBUF_DRIVER.
    pub driver_call: *const c_char,
}
// SAFETY: plain numbers and pointers, the size first.
unsafe impl Options for onebuf_error_info {}

/// The parts of this thread's last failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onebuf_last_error(info: *mut onebuf_error_info) -> onebuf_status {
    entry(|| {
        let empty = c"".as_ptr();
        let nothing = onebuf_error_info {
            size: 0,
            status: 0,
            driver_code: 0,
            asked_bytes: 0,
            limit_bytes: 0,
            timeout_ms: 0,
            subject: empty,
            reason: empty,
            driver_call: empty,
        };
        let found = last_failure(|last| onebuf_error_info {
            size: 0,
            status: last.numbers.status,
            driver_code: last.numbers.driver_code,
            asked_bytes: last.numbers.asked_bytes,
            limit_bytes: last.numbers.limit_bytes,
            timeout_ms: last.numbers.timeout_ms,
            subject: last.subject.as_ptr(),
            reason: last.reason.as_ptr(),
            driver_call: last.driver_call.as_ptr(),
        });
        // SAFETY: guaranteed by the caller.
        unsafe { give(found.unwrap_or(nothing), info, "info") }
    })
}
