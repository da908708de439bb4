//! The shell around every function: statuses for errors and panics, the thread's last message.

use crate::{
    handle::Noun,
    status::{
        ONEBUF_BUILD, ONEBUF_BUSY, ONEBUF_CACHE, ONEBUF_COPY_FORBIDDEN, ONEBUF_DEVICE_LOST,
        ONEBUF_DRIVER, ONEBUF_FOREIGN_CONTEXT, ONEBUF_INVALID_ARGUMENT, ONEBUF_INVALID_HANDLE,
        ONEBUF_NOT_SHARED, ONEBUF_NULL_POINTER, ONEBUF_OK, ONEBUF_OTHER, ONEBUF_OUT_OF_MEMORY,
        ONEBUF_PANIC, ONEBUF_PEER_LOST, ONEBUF_PEER_REFUSED, ONEBUF_TIMEOUT, ONEBUF_UNAVAILABLE,
        ONEBUF_UNSUPPORTED, onebuf_status,
    },
};
use onebuf::Error;
use std::{
    cell::{Cell, RefCell},
    ffi::CString,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Why a call from C failed.
pub(crate) enum Fault {
    /// A handle that names nothing; the text says why.
    Handle(String),
    /// A null pointer where none may be; the parameter's name.
    Null(&'static str),
    /// What the library said.
    Library(Error),
    /// What a function of the caller's returned, and why.
    Callback(onebuf_status, String),
}

pub(crate) type Result<T, E = Fault> = std::result::Result<T, E>;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Library(error)
    }
}

impl Fault {
    pub fn invalid(message: impl Into<String>) -> Self {
        Fault::Library(Error::invalid(message))
    }

    pub fn status(&self) -> onebuf_status {
        match self {
            Fault::Handle(_) => ONEBUF_INVALID_HANDLE,
            Fault::Null(_) => ONEBUF_NULL_POINTER,
            Fault::Library(error) => status_of(error),
            Fault::Callback(status, _) => *status,
        }
    }
}

fn status_of(error: &Error) -> onebuf_status {
    match error {
        Error::Unavailable { .. } => ONEBUF_UNAVAILABLE,
        Error::Unsupported { .. } => ONEBUF_UNSUPPORTED,
        Error::CopyForbidden { .. } => ONEBUF_COPY_FORBIDDEN,
        Error::NotShared { .. } => ONEBUF_NOT_SHARED,
        Error::Busy { .. } => ONEBUF_BUSY,
        Error::OutOfMemory { .. } => ONEBUF_OUT_OF_MEMORY,
        Error::DeviceLost { .. } => ONEBUF_DEVICE_LOST,
        Error::PeerLost { .. } => ONEBUF_PEER_LOST,
        Error::PeerRefused { .. } => ONEBUF_PEER_REFUSED,
        Error::InvalidArgument(_) => ONEBUF_INVALID_ARGUMENT,
        Error::ForeignContext { .. } => ONEBUF_FOREIGN_CONTEXT,
        Error::Build { .. } => ONEBUF_BUILD,
        Error::Timeout { .. } => ONEBUF_TIMEOUT,
        Error::Driver { .. } => ONEBUF_DRIVER,
        Error::Cache { .. } => ONEBUF_CACHE,
        _ => ONEBUF_OTHER,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Handle(why) | Fault::Callback(_, why) => f.write_str(why),
            Fault::Null(name) => write!(f, "`{name}` is NULL"),
            Fault::Library(error) => error.fmt(f),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Runs a function's body. Nothing unwinds out of it.
pub(crate) fn entry(body: impl FnOnce() -> Result<()>) -> onebuf_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ONEBUF_OK,
        Ok(Err(fault)) => fail(fault.status(), &fault.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text = format!("a bug in onebuf: panicked at `{}`", said.unwrap_or("?"));
            // Dropping what was thrown could throw again.
            std::mem::forget(panic);
            fail(ONEBUF_PANIC, &text)
        }
    }
}

fn fail(status: onebuf_status, message: &str) -> onebuf_status {
    set_message(message);
    status
}

/// What the thread's last message is from now on.
pub(crate) fn set_message(message: &str) {
    // A thread that is ending has no message any more, and nobody to read it.
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

/// The thread's message, if it came after there had been so many.
pub(crate) fn message_since(count: u64) -> Option<String> {
    let last = || LAST.try_with(|last| last.borrow().to_string_lossy().into_owned()).ok();
    (count != message_count()).then(last).flatten()
}

/// Where the thread's last message is.
pub(crate) fn last_message() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Frees what a handle names; the null handle names nothing, and freeing that is no error.
pub(crate) fn free<N: Noun>(handle: N) -> onebuf_status {
    entry(|| match handle.id() {
        0 => Ok(()),
        _ => handle.take().map(drop),
    })
}
