//! Leaving nothing behind when a signal ends the process.
//!
//! # Safety
//!
//! The handler only loads an atomic and writes to a pipe, which is all that a handler may do; everything else happens on a
//! thread. The structures given to the kernel are zeroed, and then filled as it wants them.

#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{
    fs::{self, File},
    io::{self, Read},
    mem,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
};

/// Those that end a process by default, and that users and service managers send.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The sockets that this process has, each with its lock.
static NAMES: Mutex<Vec<[PathBuf; 2]>> = Mutex::new(Vec::new());

/// A socket and its lock that are this process's from now on.
pub(super) fn note(paths: [PathBuf; 2]) {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).push(paths);
}

/// They were removed.
pub(super) fn forget(paths: &[PathBuf; 2]) {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other != paths);
}

/// Removes every socket and lock file that this process has in a folder. For programs that end without dropping what has
/// them; [`remove_sockets_on_signals`] calls it by itself.
pub fn remove_sockets() {
    let all = mem::take(&mut *NAMES.lock().unwrap_or_else(PoisonError::into_inner));
    // The lock last: without it the socket may be the next owner's.
    for path in all.iter().flatten() {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "not removed");
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the process as before, but its sockets and lock files are removed first.
///
/// Signals that the process ignores (`nohup`) or handles itself stay as they are. For a program's `main`; a library should leave
/// signals to the program. What SIGKILL leaves behind is taken over by the next owner of the name.
///
/// # Errors
/// [`Error::Driver`] when there is no descriptor or thread for it; no signal is handled then.
pub fn remove_sockets_on_signals() -> Result<()> {
    static DONE: OnceLock<()> = OnceLock::new();
    if DONE.get().is_some() {
        return Ok(());
    }
    let (signals, write) = io::pipe().map_err(failed("pipe"))?;
    let watch = move || end_by(File::from(OwnedFd::from(signals)));
    let thread = thread::Builder::new().name("onebuf-signals".into()).spawn(watch);
    thread.map_err(failed("pthread_create"))?;
    let write = OwnedFd::from(write);
    SIGNALLED.store(write.as_raw_fd(), Ordering::Release);
    // Open as long as the process lives: the handler writes there.
    mem::forget(write);
    SIGNALS.into_iter().filter(|&signal| is_default(signal)).for_each(|signal| {
        set(signal, handler as *const () as libc::sighandler_t);
    });
    let _ = DONE.set(());
    Ok(())
}

/// Where the handler writes the number of its signal.
static SIGNALLED: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handler(signal: i32) {
    let byte = signal as u8;
    // SAFETY: one byte to a descriptor that is never closed; `write` may be called in a handler. `errno` is what it was
    // afterwards, for what was interrupted.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(SIGNALLED.load(Ordering::Relaxed), ptr::from_ref(&byte).cast(), 1);
        *errno = before;
    }
}

/// Waits for a signal, cleans up, and ends the process by that signal.
fn end_by(mut signals: File) {
    let mut byte = [0; 1];
    if signals.read_exact(&mut byte).is_err() {
        return;
    }
    let signal = i32::from(byte[0]);
    remove_sockets();
    set(signal, libc::SIG_DFL);
    // SAFETY: a signal for this very process, which ends it.
    unsafe { libc::kill(libc::getpid(), signal) };
}

fn is_default(signal: i32) -> bool {
    // SAFETY: all-zero is a valid structure; the kernel fills it.
    unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_DFL
    }
}

fn set(signal: i32, action: libc::sighandler_t) {
    // SAFETY: an empty mask, a handler of this file or the default; calls that can go on after it do.
    unsafe {
        let mut new: libc::sigaction = mem::zeroed();
        new.sa_sigaction = action;
        new.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const new, ptr::null_mut());
    }
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Driver {
        api: "host",
        call,
        code: error.raw_os_error().unwrap_or(0),
        name: error.to_string(),
    }
}
