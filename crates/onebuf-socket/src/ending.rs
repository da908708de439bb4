//! Removes sockets when a signal ends the process.
//!
//! # Safety
//!
//! The handler only loads atomics and calls `getpid`, `write`, `sigaction` and `raise`, which are async-signal-safe.
//! Everything else happens on a thread. Structures for the kernel are zeroed first and then filled in.

#![allow(unsafe_code)]

use super::folder::{folder, sweep};
use onebuf_hal::{Error, Result};
use std::{
    fs::{self, File},
    io::{self, Read},
    mem,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    process, ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
    thread,
};

/// Signals that end a process by default and that users and service managers send.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The sockets of a process, each with its lock file and the process's id: a forked child inherits its parent's list.
static NAMES: Mutex<Vec<(u32, [PathBuf; 2])>> = Mutex::new(Vec::new());

/// The process that created the last socket.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn names() -> MutexGuard<'static, Vec<(u32, [PathBuf; 2])>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a socket and its lock file of this process.
pub(crate) fn note(paths: [PathBuf; 2]) {
    let process = process::id();
    OWNER.store(process, Ordering::Relaxed);
    names().push((process, paths));
}

/// Unregisters them after they were removed.
pub(super) fn forget(paths: &[PathBuf; 2]) {
    names().retain(|(_, other)| other != paths);
}

/// Removes every socket and lock file that this process has created, and those that processes which have died left in the directory of
/// named sockets. For programs that exit without dropping their owners; [`remove_sockets_on_signals`] calls it by itself. In a forked child
/// the parent's files stay.
pub fn remove_sockets() {
    let process = process::id();
    // A child without sockets must not wait for a lock that another thread of its parent held.
    if OWNER.load(Ordering::Relaxed) != process {
        return;
    }
    let all = mem::take(&mut *names());
    let own = all.iter().filter(|(owner, _)| *owner == process);
    // The lock file goes last: without it the socket may already be the next owner's.
    for path in own.flat_map(|(_, paths)| paths) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "could not remove a socket");
        }
    }
    sweep(&folder());
}

/// Makes SIGINT, SIGTERM and SIGHUP remove the process's sockets and lock files before they end the process as usual.
///
/// Signals that the process ignores (`nohup`) or handles itself stay as they are. Call this from a program's `main`; a
/// library should leave signals to the program. Files left by SIGKILL are removed by the next process that takes a name in the same
/// directory, or calls [`remove_sockets`]. Signals do not end the first process of a container by default; it exits with 128 plus the
/// signal's number, or ends by the signal.
///
/// These signals end a forked child as by default, without touching the parent or its files. The child may call this function
/// itself.
///
/// # Errors
/// [`Error::Driver`] if no descriptor or thread is available. No signal is handled then.
pub fn remove_sockets_on_signals() -> Result<()> {
    if HANDLED_BY.load(Ordering::Relaxed) == process::id() {
        return Ok(());
    }
    let (signals, write) = io::pipe().map_err(failed("pipe"))?;
    let watch = move || end_by(File::from(OwnedFd::from(signals)));
    let thread = thread::Builder::new().name("onebuf-signals".into()).spawn(watch);
    thread.map_err(failed("pthread_create"))?;
    let write = OwnedFd::from(write);
    SIGNALLED.store(write.as_raw_fd(), Ordering::Release);
    // Stays open while the process lives, because the handler writes to it.
    mem::forget(write);
    // Set after the pipe: before that a child's handler must not write to its parent's pipe.
    HANDLED_BY.store(process::id(), Ordering::Release);
    SIGNALS.into_iter().filter(|&signal| is_default(signal)).for_each(|signal| {
        set(signal, handler as *const () as libc::sighandler_t);
    });
    Ok(())
}

/// Runs `words` before one of the signals that [`remove_sockets_on_signals`] handles ends the process: a last message, on a thread that is
/// inside of no other call. It replaces the words of an earlier call. They must be brief: launchers of jobs kill what does not end.
pub fn before_signals_end(words: impl FnOnce() + Send + 'static) {
    *last_words() = Some(Box::new(words));
}

/// What is still to be said.
static LAST_WORDS: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

fn last_words() -> MutexGuard<'static, Option<Box<dyn FnOnce() + Send>>> {
    LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process whose thread waits for signals.
static HANDLED_BY: AtomicU32 = AtomicU32::new(0);

/// Where the handler writes the signal's number.
static SIGNALLED: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handler(signal: i32) {
    let byte = signal as u8;
    // SAFETY: writes one byte to a descriptor that is never closed, or raises a signal in this thread; both are
    // async-signal-safe. `errno` is restored for the interrupted code.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        if HANDLED_BY.load(Ordering::Acquire) == process::id() {
            libc::write(SIGNALLED.load(Ordering::Relaxed), ptr::from_ref(&byte).cast(), 1);
        } else {
            // In a forked child the pipe and its thread are the parent's. The raised signal is delivered when the handler
            // returns.
            set(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        *errno = before;
    }
}

/// Waits for a signal, removes the sockets, and ends the process by that signal.
fn end_by(mut signals: File) {
    let mut byte = [0; 1];
    if signals.read_exact(&mut byte).is_err() {
        return;
    }
    let signal = i32::from(byte[0]);
    let words = last_words().take();
    words.into_iter().for_each(|words| words());
    remove_sockets();
    set(signal, libc::SIG_DFL);
    // SAFETY: all-zero is a valid set, to which the signal is added. The signal to this process then ends it. Only the first
    // process of a container survives that; it exits without running exit handlers.
    unsafe {
        let mut only: libc::sigset_t = mem::zeroed();
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, ptr::null_mut());
        libc::kill(libc::getpid(), signal);
        libc::_exit(128 + signal);
    }
}

/// Whether the signal has its default action, or a handler that a parent set with this module.
fn is_default(signal: i32) -> bool {
    // SAFETY: all-zero is a valid structure, which the kernel fills in.
    let now = unsafe {
        let mut now: libc::sigaction = mem::zeroed();
        if libc::sigaction(signal, ptr::null(), &raw mut now) != 0 {
            return false;
        }
        now.sa_sigaction
    };
    [libc::SIG_DFL, handler as *const () as libc::sighandler_t].contains(&now)
}

fn set(signal: i32, action: libc::sighandler_t) {
    // SAFETY: the mask is empty, and the action is this module's handler or the default; interrupted calls restart.
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
