//! The user's cache folder: the doctor's verdicts and the programs that were compiled.
//!
//! ```
//! let folder = onebuf::cache::user_folder()?;
//! let held = onebuf::cache::contents(&folder)?;
//! println!("{}: {} programs, {} bytes", folder.display(), held.programs, held.bytes);
//! # Ok::<(), onebuf::Error>(())
//! ```

pub use crate::private_files::user_folder;

use crate::{program::Store, verdicts::Verdicts};
use onebuf_hal::Result;
use serde::Serialize;
use std::path::Path;

/// What a cache folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// The doctor's verdicts; `None` when their file cannot be used.
    pub verdicts: Option<usize>,
    /// Compiled programs.
    pub programs: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// What a folder holds; nothing where there is none.
///
/// # Errors
/// [`Error::Cache`](onebuf_hal::Error::Cache) for a folder that cannot be read, or that others can write to.
pub fn contents(folder: &Path) -> Result<Contents> {
    let verdicts = Verdicts::load(folder).ok().map(|verdicts| verdicts.len());
    let (programs, bytes) = Store::contents(folder)?;
    Ok(Contents { verdicts, programs, bytes: bytes + Verdicts::bytes(folder) })
}

/// Forgets verdicts and programs. Returns what there was. Nothing is opened: whatever lies in a file's place
/// (a FIFO, a socket, a link) is removed. An error in one part does not keep the other from being cleared.
///
/// # Errors
/// [`Error::Cache`](onebuf_hal::Error::Cache) for a file that cannot be removed, or a folder of programs that others can write to.
pub fn clear(folder: &Path) -> Result<Contents> {
    let held = contents(folder);
    let verdicts = Verdicts::clear(folder);
    let programs = Store::clear(folder);
    verdicts?;
    programs?;
    // What could not be counted is gone now.
    Ok(held.unwrap_or(Contents { verdicts: None, ..Contents::default() }))
}
