//! The private directory of the sockets, and the ownership of names.

use super::ending;
use onebuf_hal::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The directory of named sockets: `onebuf` in `$XDG_RUNTIME_DIR`, or `onebuf-<uid>` in the directory for temporary files.
pub fn folder() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match set.filter(|base| base.is_absolute()) {
        Some(base) => base.join("onebuf"),
        None => std::env::temp_dir().join(format!("onebuf-{uid}")),
    }
}

/// The socket path of a name; a name that contains `/` is itself a path.
///
/// # Errors
/// [`Error::InvalidArgument`] unless the name has 1 to 64 letters, digits, `-`, `_` or `.`, and does not begin with a dot.
pub fn socket_path(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = (1..=64).contains(&name.len()) && name.chars().all(plain);
    if !fits || name.starts_with('.') {
        return Err(Error::invalid(format!(
            "invalid name `{name}`: use 1 to 64 letters, digits, `-`, `_` and `.`, without a leading dot; or a path"
        )));
    }
    Ok(folder().join(format!("{name}.sock")))
}

/// Creates the default directory if needed, and checks a socket's directory.
pub(super) fn prepare(socket: &Path) -> Result<()> {
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if parent == folder() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| unusable(parent, error))?;
    }
    // Does not follow links: the creator of a link could replace it.
    let meta = fs::symlink_metadata(parent).map_err(|error| unusable(parent, error))?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    if meta.is_dir() && ours && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(unusable(
        parent,
        "a socket's directory must be yours and inaccessible to other users (chmod 700)",
    ))
}

pub(super) fn unusable(path: &Path, reason: impl ToString) -> Error {
    Error::Cache { path: path.display().to_string(), reason: reason.to_string() }
}

/// Ownership of a socket's name. The owner holds a lock on the file next to the socket and may replace a socket that a dead
/// owner left. The kernel releases the lock when the process exits for any reason.
#[derive(Debug)]
pub struct Name {
    /// Where the socket lies.
    pub socket: PathBuf,
    lock: PathBuf,
    /// The owner's process id: a forked child inherits this value but does not own the name.
    process: u32,
    file: File,
}

impl Name {
    /// Takes the name, and keeps it until it is dropped.
    pub fn take(socket: PathBuf) -> Result<Self> {
        // The program may change its working directory and later use the same relative path.
        let socket = std::path::absolute(&socket).map_err(|error| unusable(&socket, error))?;
        prepare(&socket)?;
        let mut lock = socket.clone().into_os_string();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        let file = lock_file(&lock).map_err(|error| unusable(&lock, error))?;
        let Some(file) = file else {
            let what =
                format!("{} is in use by another owner; choose another name", socket.display());
            return Err(Error::Busy { what });
        };
        let name = Self { socket, lock, process: std::process::id(), file };
        name.clear().map_err(|error| unusable(&name.socket, error))?;
        ending::note(name.paths());
        Ok(name)
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.socket.clone(), self.lock.clone()]
    }

    /// Removes the socket that a dead owner left, and nothing else.
    fn clear(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.socket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(meta) if meta.file_type().is_socket() => fs::remove_file(&self.socket),
            Ok(_) => Err(io::Error::other("the path exists and is not a socket")),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // After `remove_sockets` both files may be the next owner's.
        let has_name = leads_to(&self.lock, &self.file).unwrap_or(false);
        let cleared = if has_name { self.clear() } else { Ok(()) };
        // Up to here a signal removes the files; from here on they may be another owner's.
        ending::forget(&self.paths());
        // The lock file goes last: without it the socket may already be the next owner's.
        let unlock = |()| if has_name { fs::remove_file(&self.lock) } else { Ok(()) };
        if let Err(error) = cleared.and_then(unlock) {
            tracing::debug!(path = %self.socket.display(), %error, "could not remove a socket");
        }
    }
}

/// Opens and locks the file; `None` if another process holds the lock.
fn lock_file(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut how = OpenOptions::new();
        let how = how.write(true).create(true).truncate(false).mode(0o600);
        let file = how.custom_flags(libc::O_NOFOLLOW).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        // The last owner may have removed the file between the two calls; then this lock has no effect.
        if leads_to(path, &file)? {
            return Ok(Some(file));
        }
    }
}

/// Whether the path still refers to this file.
fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    let mine = file.metadata()?;
    Ok(fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino())))
}

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn names_are_names_and_paths_are_paths() {
        assert!(socket_path("frames-1.a_b").unwrap().ends_with("frames-1.a_b.sock"));
        assert_eq!(socket_path("./x").unwrap(), Path::new("./x"));
        for wrong in ["", ".", "..", ".hidden", "a b", "ä", "a\0b", &"x".repeat(65)] {
            assert!(matches!(socket_path(wrong), Err(Error::InvalidArgument(_))), "{wrong}");
        }
    }

    #[test]
    fn folders_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |mode| {
            let rights = fs::Permissions::from_mode(mode);
            fs::set_permissions(folder.path(), rights).unwrap();
            prepare(&folder.path().join("x.sock"))
        };
        assert!(mode(0o700).is_ok());
        for open in [0o755, 0o770, 0o701] {
            assert!(mode(open).unwrap_err().to_string().contains("chmod 700"), "{open:o}");
        }
        mode(0o700).unwrap();
        symlink(folder.path(), folder.path().join("link")).unwrap();
        assert!(prepare(&folder.path().join("link/x.sock")).is_err(), "a link was followed");
        assert!(prepare(&folder.path().join("absent/x.sock")).is_err());
    }

    #[test]
    fn a_name_has_one_owner_and_leaves_nothing() {
        let rights = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
        let path = folder.path().join("x.sock");
        fs::write(&path, "precious").unwrap();
        assert!(Name::take(path.clone()).unwrap_err().to_string().contains("not a socket"));
        fs::remove_file(&path).unwrap();
        // A socket left by a dead owner.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = Name::take(path.clone()).unwrap();
        assert!(!path.exists());
        assert!(matches!(Name::take(path.clone()), Err(Error::Busy { .. })));
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let first = Name::take(path.clone()).unwrap();
        // As after `remove_sockets`: the name is free while its last owner still exists.
        fs::remove_file(&first.lock).unwrap();
        let next = Name::take(path.clone()).unwrap();
        let door = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists() && next.lock.exists(), "the next owner's files are removed");
        drop((next, door));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_do_not_depend_on_the_folder_that_a_program_is_in() {
        let rights = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(rights).tempdir_in(".").unwrap();
        let relative = Path::new(folder.path().file_name().unwrap()).join("x.sock");
        assert!(relative.is_relative());
        assert!(Name::take(relative).unwrap().socket.is_absolute());
    }
}
