//! Folders and files that nobody else can write to.

use crate::{Error, Result};
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// What is read from here decides what memory is shared and what code runs: it must not come from
/// somebody else.
pub(crate) fn check_private(folder: &Path) -> Result<()> {
    let meta = fs::metadata(folder).map_err(|e| unusable(folder, e.to_string()))?;
    if is_private(&meta) {
        return Ok(());
    }
    let why = "not private: it must be yours, and writable by nobody else (chmod 700)";
    Err(unusable(folder, why.into()))
}

/// Ours, and writable by nobody else.
pub(crate) fn is_private(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0
}

/// Makes a folder, mode 0700, where there is none.
pub(crate) fn make_private(folder: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| unusable(folder, e.to_string()))?;
    check_private(folder)
}

fn unusable(path: &Path, reason: String) -> Error {
    Error::Cache { path: path.display().to_string(), reason }
}

/// Writes a file as a whole, mode 0600: readers see the old one or the new one. What was there is
/// replaced, and a link is replaced rather than followed. A crash of the machine may leave an empty
/// file; readers check what they read.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let scratch = temporary(path);
    let written = write_new(&scratch, parts).and_then(|()| fs::rename(&scratch, path));
    written.inspect_err(|_| drop(fs::remove_file(&scratch)))
}

fn write_new(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

/// A name beside a file that no other thread or process has: `.name.<process>.<number>.tmp`.
fn temporary(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.{}.{number}.tmp", std::process::id()))
}
