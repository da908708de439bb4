//! Leaving nothing behind when a signal ends the process.
//!
//! # Safety
//!
//! The handler only loads atomics and calls `getpid`, `write`, `sigaction` and `raise`, all of which a handler may call;
//! everything else happens on a thread. The structures given to the kernel are zeroed, and then filled as it wants them.

#![allow(unsafe_code)]

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

/// Those that end a process by default, and that users and service managers send.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The sockets that a process has, each with its lock and the process's id: a forked child has its parent's list.
static NAMES: Mutex<Vec<(u32, [PathBuf; 2])>> = Mutex::new(Vec::new());

/// The process that last had a new socket.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn names() -> MutexGuard<'static, Vec<(u32, [PathBuf; 2])>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket and its lock that are this process's from now on.
pub(crate) fn note(paths: [PathBuf; 2]) {
    let process = process::id();
    OWNER.store(process, Ordering::Relaxed);
    names().push((process, paths));
}

/// They were removed.
pub(super) fn forget(paths: &[PathBuf; 2]) {
    names().retain(|(_, other)| other != paths);
}

/// Removes every socket and lock file that this process has in a folder. For programs that end without dropping what has
/// them; [`remove_sockets_on_signals`] calls it by itself. In a forked child the parent's files stay.
pub fn remove_sockets() {
    let process = process::id();
    // A child that has none of its own must not wait for a lock that another thread of its parent held.
    if OWNER.load(Ordering::Relaxed) != process {
        return;
    }
    let all = mem::take(&mut *names());
    let own = all.iter().filter(|(owner, _)| *owner == process);
    // The lock last: without it the socket may be the next owner's.
    for path in own.flat_map(|(_, paths)| paths) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "not removed");
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the process as before, but its sockets and lock files are removed first.
///
/// Signals that the process ignores (`nohup`) or handles itself stay as they are. For a program's `main`; a library should leave
/// signals to the program. What SIGKILL leaves behind is taken over by the next owner of the name. As the first process of a
/// container, which signals do not end by default, the process exits with 128 and the signal's number, or ends by the signal.
///
/// A forked child ends by these signals as by default, and leaves the parent and its files alone; it may call this itself.
///
/// # Errors
/// [`Error::Driver`] when there is no descriptor or thread for it; no signal is handled then.
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
    // Open as long as the process lives: the handler writes there.
    mem::forget(write);
    // After the pipe: until then a child's handler must not write to its parent's.
    HANDLED_BY.store(process::id(), Ordering::Release);
    SIGNALS.into_iter().filter(|&signal| is_default(signal)).for_each(|signal| {
        set(signal, handler as *const () as libc::sighandler_t);
    });
    Ok(())
}

/// The process whose thread waits for signals.
static HANDLED_BY: AtomicU32 = AtomicU32::new(0);

/// Where the handler writes the number of its signal.
static SIGNALLED: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handler(signal: i32) {
    let byte = signal as u8;
    // SAFETY: one byte to a descriptor that is never closed, or a signal to this very thread; both may be done in a handler.
    // `errno` is what it was afterwards, for what was interrupted.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        if HANDLED_BY.load(Ordering::Acquire) == process::id() {
            libc::write(SIGNALLED.load(Ordering::Relaxed), ptr::from_ref(&byte).cast(), 1);
        } else {
            // A forked child: the pipe and its thread are the parent's. The signal comes when the handler has returned.
            set(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
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
    // SAFETY: all-zero is a valid set, to which the signal is added; then a signal for this very process, which ends it. Only
    // the first process of a container survives that: it exits, without its handlers.
    unsafe {
        let mut only: libc::sigset_t = mem::zeroed();
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, ptr::null_mut());
        libc::kill(libc::getpid(), signal);
        libc::_exit(128 + signal);
    }
}

/// Or what a parent has set by this file.
fn is_default(signal: i32) -> bool {
    // SAFETY: all-zero is a valid structure; the kernel fills it.
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
