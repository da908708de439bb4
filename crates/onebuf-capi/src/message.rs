//! Error messages
//!
//! The message of a thread's last failure says what was wrong and what to do.

use crate::{
    entry::{entry, last_message, set_message},
    input::text,
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
