//! Compiled programs on disk.
//!
//! One file per program: `magic, version, lengths, key, binary, checksum`. Its name is a hash of the
//! key. The file also has the whole key, which is compared, so a hash collision only costs time.
//! Files are replaced as a whole, without locks. If two processes write the same program, the later one wins.

use crate::private_files;
use onebuf_hal::{Error, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

/// The folder's name in the cache folder.
const FOLDER: &str = "programs";
const MAGIC: &[u8; 8] = b"onebufpr";
/// The version of the file format and of the key's composition.
pub(super) const VERSION: u32 = 1;
const HEAD_BYTES: usize = MAGIC.len() + 4 + 8 + 8;
const SUM_BYTES: usize = 8;
/// The age after which a temporary file is abandoned: a live writer renames within milliseconds.
const TEMPORARY_LIFE: Duration = Duration::from_secs(3600);

/// A folder of compiled programs, bounded in size.
#[derive(Debug)]
pub(crate) struct Store {
    /// The cache folder; programs are in a subfolder.
    base: PathBuf,
    limit_bytes: u64,
    warned: AtomicBool,
}

/// A file in the folder.
struct StoredFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_temporary: bool,
}

impl Store {
    pub fn new(base: PathBuf, limit_bytes: u64) -> Self {
        Self { base, limit_bytes, warned: AtomicBool::new(false) }
    }

    /// Returns the binary stored for this key. Files that are damaged, belong to another user, or are writable by others are
    /// never used.
    pub fn load(&self, key: &[u8]) -> Option<Vec<u8>> {
        let path = self.path(key);
        match self.read(&path, key) {
            Ok(binary) => Some(binary),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::debug!("{} is not used: {error}", path.display());
                None
            }
        }
    }

    /// Stores a binary. The first failure is logged; failures have no other effect.
    pub fn save(&self, key: &[u8], binary: &[u8]) {
        if let Err(error) = self.write(key, binary)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("programs are not kept on disk: {error}");
        }
    }

    fn folder(&self) -> PathBuf {
        self.base.join(FOLDER)
    }

    fn path(&self, key: &[u8]) -> PathBuf {
        self.folder().join(format!("{:016x}.bin", fnv1a(&[key])))
    }

    fn read(&self, path: &Path, key: &[u8]) -> io::Result<Vec<u8>> {
        let mut file = private_files::open_private(path, self.limit_bytes)?;
        self.check_folders().map_err(io::Error::other)?;
        let bytes = private_files::read_private(&mut file, self.limit_bytes)?;
        let binary = decode(&bytes, key).map_err(io::Error::other)?.to_vec();
        // Records the use, for the order of removal. A failure only makes the file go sooner.
        drop(file.set_modified(SystemTime::now()));
        Ok(binary)
    }

    fn check_folders(&self) -> Result<()> {
        private_files::check_private(&self.base)
            .and_then(|()| private_files::check_private(&self.folder()))
    }

    fn write(&self, key: &[u8], binary: &[u8]) -> Result<()> {
        let head = head(key, binary);
        let sum = fnv1a(&[&head, key, binary]).to_le_bytes();
        let parts: [&[u8]; 4] = [&head, key, binary, &sum];
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes as u64 > self.limit_bytes {
            tracing::debug!("a program of {bytes} bytes is too large to be kept on disk");
            return Ok(());
        }
        private_files::make_private(&self.base)?;
        private_files::make_private(&self.folder())?;
        let path = self.path(key);
        private_files::replace(&path, &parts).map_err(|error| unusable(&path, &error))?;
        self.shrink(&path)
    }

    /// Removes the least recently used programs until the rest fits, and the files of crashed writers.
    fn shrink(&self, newest: &Path) -> Result<()> {
        let mut entries = entries(&self.folder())?;
        let old = |e: &StoredFile| e.used.elapsed().is_ok_and(|age| age > TEMPORARY_LIFE);
        entries.iter().filter(|e| e.is_temporary && old(e)).try_for_each(remove)?;
        entries.retain(|e| !e.is_temporary && e.path != newest);
        entries.sort_by_key(|entry| entry.used);
        let own = fs::symlink_metadata(newest).map_or(0, |meta| meta.len());
        let mut total = own + entries.iter().map(|e| e.bytes).sum::<u64>();
        for entry in entries {
            if total <= self.limit_bytes {
                break;
            }
            remove(&entry)?;
            total -= entry.bytes;
        }
        Ok(())
    }

    /// The number and the total size of the programs in a cache folder.
    pub fn contents(base: &Path) -> Result<(usize, u64)> {
        let entries = entries(&base.join(FOLDER))?;
        let programs = entries.iter().filter(|entry| !entry.is_temporary).count();
        Ok((programs, entries.iter().map(|entry| entry.bytes).sum()))
    }

    /// Removes every program from a cache folder, or the file in place of the folder of programs.
    pub fn clear(base: &Path) -> Result<()> {
        let folder = base.join(FOLDER);
        if fs::metadata(&folder).is_ok_and(|meta| !meta.is_dir()) {
            return fs::remove_file(&folder).map_err(|error| unusable(&folder, &error));
        }
        entries(&folder)?.iter().try_for_each(remove)?;
        // Fails if there are other files, which stay.
        drop(fs::remove_dir(folder));
        Ok(())
    }
}

/// The files in a folder that belong to this cache by their names. A missing folder has none.
fn entries(folder: &Path) -> Result<Vec<StoredFile>> {
    let list = match fs::read_dir(folder) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unusable(folder, &error)),
    };
    private_files::check_private(folder)?;
    Ok(list.filter_map(|item| entry(&item.ok()?)).collect())
}

/// `None` for unrelated files, and for a file that another process has just removed.
fn entry(item: &fs::DirEntry) -> Option<StoredFile> {
    let path = item.path();
    let ending = path.extension()?.to_str()?;
    let is_temporary = ending == "tmp";
    let meta = item.metadata().ok().filter(|meta| !meta.is_dir())?;
    let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    (is_temporary || ending == "bin").then_some(StoredFile {
        path,
        bytes: meta.len(),
        used,
        is_temporary,
    })
}

fn remove(entry: &StoredFile) -> Result<()> {
    match fs::remove_file(&entry.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(&entry.path, &error)),
        _ => Ok(()),
    }
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    private_files::unusable(path, error.to_string())
}

fn head(key: &[u8], binary: &[u8]) -> Vec<u8> {
    let lengths = [key.len() as u64, binary.len() as u64].map(u64::to_le_bytes);
    [&MAGIC[..], &VERSION.to_le_bytes(), &lengths[0], &lengths[1]].concat()
}

/// Returns the binary in a file's bytes if they are complete and belong to this key.
fn decode<'a>(bytes: &'a [u8], key: &[u8]) -> Result<&'a [u8], &'static str> {
    let (body, sum) = bytes.split_last_chunk::<SUM_BYTES>().ok_or("cut off")?;
    if fnv1a(&[body]) != u64::from_le_bytes(*sum) {
        return Err("damaged: wrong checksum");
    }
    let (found, rest) = body.split_at_checked(HEAD_BYTES).ok_or("cut off")?;
    let (its_key, binary) = rest.split_at_checked(key.len()).ok_or("of another key")?;
    if found != head(key, binary) || its_key != key {
        return Err("of another key or version");
    }
    if binary.is_empty() { Err("empty") } else { Ok(binary) }
}

/// FNV-1a: the same on every machine and in every version, and any single changed byte changes it. It detects
/// accidental damage; the folder's mode protects against other users.
fn fnv1a(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().copied().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
