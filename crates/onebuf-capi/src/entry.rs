//! The wrapper around every exported function: statuses for errors and panics, and the thread's last error message.

use crate::{
    fault::{Details, Result},
    handle::Noun,
    status::{ONEBUF_OK, ONEBUF_PANIC, onebuf_status},
};
use std::{
    cell::{Cell, RefCell},
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// A thread's last failure, as C reads it.
#[derive(Default)]
pub(crate) struct Last {
    message: CString,
    pub numbers: Details,
    pub subject: CString,
    pub reason: CString,
    pub driver_call: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Runs the body of a function. Panics do not unwind out of it.
pub(crate) fn entry(body: impl FnOnce() -> Result<()>) -> onebuf_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ONEBUF_OK,
        Ok(Err(fault)) => fail(fault.details(), &fault.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text = format!("a bug in onebuf: panicked at `{}`", said.unwrap_or("?"));
            // Dropping the panic's payload could panic again.
            std::mem::forget(panic);
            fail(Details { status: ONEBUF_PANIC, ..Details::default() }, &text)
        }
    }
}

fn fail(details: Details, message: &str) -> onebuf_status {
    let status = details.status;
    remember(details, message);
    status
}

/// Sets the thread's error message.
pub(crate) fn set_message(message: &str) {
    remember(Details { reason: message.to_owned(), ..Details::default() }, message);
}

#[cold]
fn remember(details: Details, message: &str) {
    // A thread that is ending has no message any more, and no code left that reads it.
    let _ = LAST.try_with(|last| {
        let [message, subject, reason, driver_call] =
            [message, &details.subject, &details.reason, &details.driver_call].map(string);
        *last.borrow_mut() = Last { message, numbers: details, subject, reason, driver_call };
        COUNT.set(message_count().wrapping_add(1));
    });
}

fn string(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

/// Reads the thread's last failure. The strings stay in place until the next one.
pub(crate) fn last_failure<R>(read: impl FnOnce(&Last) -> R) -> Option<R> {
    LAST.try_with(|last| read(&last.borrow())).ok()
}

/// How many messages the thread has had.
pub(crate) fn message_count() -> u64 {
    COUNT.get()
}

/// The thread's message, if it is newer than the given count.
pub(crate) fn message_since(count: u64) -> Option<String> {
    let last = || LAST.try_with(|last| last.borrow().message.to_string_lossy().into_owned()).ok();
    (count != message_count()).then(last).flatten()
}

/// A pointer to the thread's last message.
pub(crate) fn last_message() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Frees the object of a handle. Freeing the null handle is no error.
pub(crate) fn free<N: Noun>(handle: N) -> onebuf_status {
    entry(|| match handle.id() {
        0 => Ok(()),
        _ => handle.take().map(drop),
    })
}
