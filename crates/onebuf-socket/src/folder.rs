//! The private directory of the sockets, and the ownership of names.

use super::ending;
use onebuf_hal::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How often a name is tried again, and after which pause: [`sweep`] holds the lock of each name for a moment.
const TRIES: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(5);

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
    match is_private(parent).map_err(|error| unusable(parent, error))? {
        true => Ok(()),
        false => Err(unusable(
            parent,
            "a socket's directory must be yours and inaccessible to other users (chmod 700)",
        )),
    }
}

/// Whether it is a directory that is this user's alone.
fn is_private(folder: &Path) -> io::Result<bool> {
    // Does not follow links: the creator of a link could replace it.
    let meta = fs::symlink_metadata(folder)?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    Ok(meta.is_dir() && ours && meta.mode() & 0o077 == 0)
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
        if socket.parent() == Some(&folder()) {
            sweep(&folder());
        }
        let mut lock = socket.clone().into_os_string();
        lock.push(LOCK);
        let lock = PathBuf::from(lock);
        let file = lock_soon(&lock).map_err(|error| unusable(&lock, error))?;
        let Some(file) = file else {
            let what =
                format!("{} is in use by another owner; choose another name", socket.display());
            return Err(Error::Busy { what });
        };
        let name = Self { socket, lock, process: std::process::id(), file };
        clear(&name.socket).map_err(|error| unusable(&name.socket, error))?;
        ending::note(name.paths());
        Ok(name)
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.socket.clone(), self.lock.clone()]
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // After `remove_sockets` both files may be the next owner's.
        let has_name = leads_to(&self.lock, &self.file).unwrap_or(false);
        let cleared = if has_name { clear(&self.socket) } else { Ok(()) };
        // Up to here a signal removes the files; from here on they may be another owner's.
        ending::forget(&self.paths());
        // The lock file goes last: without it the socket may already be the next owner's.
        let unlock = |()| if has_name { fs::remove_file(&self.lock) } else { Ok(()) };
        if let Err(error) = cleared.and_then(unlock) {
            tracing::debug!(path = %self.socket.display(), %error, "could not remove a socket");
        }
    }
}

/// What a lock file's name has behind that of its socket.
const LOCK: &str = ".lock";

/// Removes the sockets that dead owners left in a folder, and their lock files. An owner is dead if no process holds its lock. Files that
/// cannot be removed stay.
pub(super) fn sweep(folder: &Path) {
    if !is_private(folder).unwrap_or(false) {
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for lock in entries.map(|entry| entry.path()) {
        let Some(socket) = lock.to_str().and_then(|path| path.strip_suffix(LOCK)) else { continue };
        if !socket.ends_with(".sock") {
            continue;
        }
        // The owner of a name keeps it locked; an owner that begins meanwhile finds out that the file is gone.
        let Ok(Some(_locked)) = lock_file(&lock, false) else { continue };
        let removed = clear(Path::new(socket)).and_then(|()| fs::remove_file(&lock));
        match removed {
            Ok(()) => tracing::debug!(socket, "removed a socket that a dead owner left"),
            Err(error) => tracing::debug!(socket, %error, "could not remove a socket"),
        }
    }
}

/// Removes the socket that a dead owner left, and nothing else.
fn clear(socket: &Path) -> io::Result<()> {
    match fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(meta) if meta.file_type().is_socket() => fs::remove_file(socket),
        Ok(_) => Err(io::Error::other("the path exists and is not a socket")),
        Err(error) => Err(error),
    }
}

/// Creates and locks the file; `None` if another process keeps the lock.
fn lock_soon(path: &Path) -> io::Result<Option<File>> {
    for _ in 1..TRIES {
        if let Some(file) = lock_file(path, true)? {
            return Ok(Some(file));
        }
        thread::sleep(TRY_AGAIN);
    }
    lock_file(path, true)
}

/// Opens and locks the file; `None` if another process holds the lock.
fn lock_file(path: &Path, create: bool) -> io::Result<Option<File>> {
    loop {
        let mut how = OpenOptions::new();
        let how = how.write(true).create(create).truncate(false).mode(0o600);
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
    fn a_sweep_removes_what_dead_owners_left_and_nothing_else() {
        let rights = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let left = |name: &str| {
            drop(std::os::unix::net::UnixListener::bind(path(name)).unwrap());
            fs::write(path(&format!("{name}{LOCK}")), "").unwrap();
        };
        let owner = Name::take(path("alive.sock")).unwrap();
        let _door = std::os::unix::net::UnixListener::bind(path("alive.sock")).unwrap();
        left("dead.sock");
        fs::write(path("lock-alone.sock.lock"), "").unwrap();
        // Not onebuf's: no lock, a file where the socket would be, another kind of name, a link to another place.
        drop(std::os::unix::net::UnixListener::bind(path("other.sock")).unwrap());
        for name in ["file.sock", "file.sock.lock", "x.lock", "notes.txt"] {
            fs::write(path(name), "precious").unwrap();
        }
        symlink(path("notes.txt"), path("link.sock.lock")).unwrap();
        sweep(folder.path());
        let entries = fs::read_dir(folder.path()).unwrap().flatten();
        let mut all: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        all.sort();
        let stay = ["alive.sock", "alive.sock.lock", "file.sock", "file.sock.lock"];
        assert_eq!(
            all,
            [&stay[..], &["link.sock.lock", "notes.txt", "other.sock", "x.lock"]].concat()
        );
        assert!(matches!(Name::take(path("alive.sock")), Err(Error::Busy { .. })), "still owned");
        drop(owner);
        sweep(&path("absent"));
        left("dead.sock");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        sweep(folder.path());
        assert!(path("dead.sock").exists(), "others may have put it there");
    }

    /// An owner that begins while others sweep gets its name all the same.
    #[test]
    fn names_are_taken_while_others_sweep() {
        let rights = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(rights).tempdir().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let done = || over.load(std::sync::atomic::Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done() {
                    sweep(folder.path());
                }
            });
            for _ in 0..300 {
                let name = Name::take(folder.path().join("x.sock")).unwrap();
                assert!(leads_to(&name.lock, &name.file).unwrap(), "swept while it is owned");
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
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
