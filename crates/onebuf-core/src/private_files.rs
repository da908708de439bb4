//! Folders and files that no other user can write to, and the user's cache folder.

use onebuf_hal::{Error, Result};
use rustix::fs::FlockOperation;
use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Returns the user's cache folder: `onebuf` in `$XDG_CACHE_HOME`, or in `~/.cache`.
pub fn user_folder() -> Result<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    base.map(|base| base.join("onebuf")).ok_or_else(|| Error::Cache {
        path: "cache folder".into(),
        reason: "neither XDG_CACHE_HOME nor HOME is set to an absolute path: set one of them"
            .into(),
    })
}

/// Checks that only this user can write to the folder: its files decide what memory is shared and what code runs.
pub(crate) fn check_private(folder: &Path) -> Result<()> {
    let meta = fs::metadata(folder).map_err(|e| unusable(folder, e.to_string()))?;
    if is_private(&meta) {
        return Ok(());
    }
    let why = "not private: it must be yours, and writable by nobody else (chmod 700)";
    Err(unusable(folder, why.into()))
}

/// Whether this user owns the file, and no other user can write to it.
pub(crate) fn is_private(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0
}

/// Creates the folder with mode 0700 if it does not exist.
pub(crate) fn make_private(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| unusable(folder, e.to_string()))?;
    check_private(folder)
}

/// How long to wait for another process that writes to the folder. Writing takes milliseconds, unless the process was stopped.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// Waits until no other process writes to the folder, and keeps others waiting until the result is dropped. `None` if the lock
/// is not available in time, or not at all: files are still replaced as a whole then, but the later writer wins.
pub(crate) fn lock(folder: &Path) -> Option<impl Drop> {
    let opened = fs::File::open(folder).ok()?;
    let start = Instant::now();
    while let Err(error) = rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        let is_taken = matches!(error, rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR);
        if !is_taken || start.elapsed() >= MOST_WAIT {
            tracing::warn!(folder = %folder.display(), %error, "the folder is not locked");
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(OwnedFd::from(opened))
}

pub(crate) fn unusable(path: &Path, reason: String) -> Error {
    Error::Cache { path: path.display().to_string(), reason }
}

/// Opens a file of a private folder for reading. Checks that the opened file is a regular file of at most `limit` bytes that only
/// this user can write to. Links are not followed, and opening a FIFO or a device does not block.
pub(crate) fn open_private(path: &Path, limit: u64) -> io::Result<fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("a link, which is not followed"),
        Some(libc::ENXIO) => io::Error::other("not a regular file"), // a socket
        _ => error,
    })?;
    let meta = file.metadata()?;
    let wrong = match () {
        () if meta.is_dir() => "a folder where a file is expected: remove it",
        () if !meta.is_file() => "not a regular file",
        () if !is_private(&meta) => "not private: it must be yours, and writable by no other user",
        () if meta.len() > limit => "too large to be one that onebuf wrote",
        () => return Ok(file),
    };
    Err(io::Error::other(wrong))
}

/// Reads a file opened by `open_private`. It may have grown since, so at most `limit` bytes are read.
pub(crate) fn read_private(file: &mut fs::File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a whole file with mode 0600: readers see the old file or the new one. Anything in its place is replaced without
/// being opened, and a link is replaced rather than followed. A crash of the machine may leave an empty file; readers check
/// what they read.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    replace_with(path, parts, |_| Ok(()))
}

/// Like [`replace`], and waits until the bytes are on disk: after a crash of the machine the file is the old one or the new one,
/// complete.
pub(crate) fn replace_durably(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    replace_with(path, parts, fs::File::sync_all)
}

fn replace_with(
    path: &Path,
    parts: &[&[u8]],
    sync: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let (scratch, mut file) = scratch(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    let replaced = written.and_then(|()| sync(&file)).and_then(|()| fs::rename(&scratch, path));
    replaced.inspect_err(|_| drop(fs::remove_file(&scratch)))
}

/// Creates a new file beside another, `.name.<process>.<number>.tmp`. The name is unused: it differs from files that a crashed
/// process with the same id left, and from those that a live process in another container is writing.
fn scratch(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let scratch = path.with_file_name(format!(".{name}.{}.{number}.tmp", std::process::id()));
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&scratch) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (scratch, file)),
        }
    }
}

#[cfg(test)]
mod tests;
