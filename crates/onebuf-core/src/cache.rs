//! The user's cache folder: the doctor's verdicts and compiled programs.
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

/// The contents of a cache folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// The number of verdicts; `None` if their file cannot be used.
    pub verdicts: Option<usize>,
    /// The number of compiled programs.
    pub programs: usize,
    /// The size of all files.
    pub bytes: u64,
}

/// Returns the contents of a folder. A missing folder is empty.
///
/// # Errors
/// [`Error::Cache`](onebuf_hal::Error::Cache) for a folder that cannot be read, or that other users can write to.
pub fn contents(folder: &Path) -> Result<Contents> {
    let verdicts = Verdicts::load(folder).ok().map(|verdicts| verdicts.len());
    let (programs, bytes) = Store::contents(folder)?;
    Ok(Contents { verdicts, programs, bytes: bytes + Verdicts::bytes(folder) })
}

/// Removes verdicts and programs. Returns the earlier contents. Whatever is in a file's place (a FIFO, a socket, a link) is
/// removed without being followed. An error in one part does not prevent clearing the other.
///
/// # Errors
/// [`Error::Cache`](onebuf_hal::Error::Cache) for a file that cannot be removed, or a folder of programs that other users can
/// write to.
pub fn clear(folder: &Path) -> Result<Contents> {
    let held = contents(folder);
    let verdicts = Verdicts::clear(folder);
    let programs = Store::clear(folder);
    verdicts?;
    programs?;
    // Contents that could not be counted are removed as well.
    Ok(held.unwrap_or(Contents { verdicts: None, ..Contents::default() }))
}
