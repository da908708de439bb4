//! Folders and files that nobody else can write to.

use crate::{Error, Result};
use std::{
    fs,
    io::{self, Read, Write},
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

/// Reads a file as a whole, if it is one and has no more bytes than that.
pub(crate) fn read_whole(file: &fs::File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let meta = file.metadata()?;
    let too_large = || io::Error::other(format!("larger than {most_bytes} bytes"));
    if !meta.is_file() {
        return Err(io::Error::other("not a file"));
    }
    if meta.len() > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    // It may grow while it is read.
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes { Err(too_large()) } else { Ok(bytes) }
}

/// Writes a file as a whole, mode 0600: readers see the old one or the new one. What was there is
/// replaced, and a link is replaced rather than followed. A crash of the machine may leave an empty
/// file; readers check what they read.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let (scratch, mut file) = scratch(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part));
    let replaced = written.and_then(|()| fs::rename(&scratch, path));
    replaced.inspect_err(|_| drop(fs::remove_file(&scratch)))
}

/// A new file beside another, `.name.<process>.<number>.tmp`, whose name nobody else has: not what a
/// crashed process of the same number left, nor what a live one in another container is writing.
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
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_a_crashed_process_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (left, _) = scratch(&path).unwrap();
        // The next few names are taken, one of them by a link that must not be followed.
        let number: u64 = left.to_str().unwrap().rsplit('.').nth(1).unwrap().parse().unwrap();
        let name = |n| folder.path().join(format!(".file.{}.{n}.tmp", std::process::id()));
        symlink(folder.path().join("target"), name(number + 1)).unwrap();
        fs::write(name(number + 2), "old").unwrap();
        replace(&path, &[b"new ", b"contents"]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new contents");
        assert!(!folder.path().join("target").exists());
        assert_eq!(fs::read(name(number + 2)).unwrap(), b"old");
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a folder");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, &[b"x"]).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
