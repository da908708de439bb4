//! The wrapper around every exported function: statuses for errors and panics, and the thread's last error message.

use crate::{
    fault::Result,
    handle::Noun,
    status::{ONEBUF_OK, ONEBUF_PANIC, onebuf_status},
};
use std::{
    cell::{Cell, RefCell},
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Runs the body of a function. Panics do not unwind out of it.
pub(crate) fn entry(body: impl FnOnce() -> Result<()>) -> onebuf_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ONEBUF_OK,
        Ok(Err(fault)) => fail(fault.status(), &fault.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text = format!("a bug in onebuf: panicked at `{}`", said.unwrap_or("?"));
            // Dropping the panic's payload could panic again.
            std::mem::forget(panic);
            fail(ONEBUF_PANIC, &text)
        }
    }
}

fn fail(status: onebuf_status, message: &str) -> onebuf_status {
    set_message(message);
    status
}

/// Sets the thread's error message.
pub(crate) fn set_message(message: &str) {
    // A thread that is ending has no message any more, and no code left that reads it.
    let _ = LAST.try_with(|last| {
        let text = message.replace('\0', "\\0");
        *last.borrow_mut() = CString::new(text).unwrap_or_default();
        COUNT.set(message_count().wrapping_add(1));
    });
}

/// How many messages the thread has had.
pub(crate) fn message_count() -> u64 {
    COUNT.get()
}

/// The thread's message, if it is newer than the given count.
pub(crate) fn message_since(count: u64) -> Option<String> {
    let last = || LAST.try_with(|last| last.borrow().to_string_lossy().into_owned()).ok();
    (count != message_count()).then(last).flatten()
}

/// A pointer to the thread's last message.
pub(crate) fn last_message() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Frees the object of a handle. Freeing the null handle is no error.
pub(crate) fn free<N: Noun>(handle: N) -> onebuf_status {
    entry(|| match handle.id() {
        0 => Ok(()),
        _ => handle.take().map(drop),
    })
}
