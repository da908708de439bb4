//! A sink that writes raw frames to a file.

use super::Sink;
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

/// Writes frames one after another, as they lie in memory. [`source::File`](super::super::source::File) reads them.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    /// The path, for error messages.
    name: String,
}

impl File {
    /// Creates a file, or truncates an existing one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be written.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let file = fs::File::create(path).map_err(|error| unwritable(&name, &error))?;
        Ok(Self { file, name })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| unwritable(&self.name, &error))
    }

    /// Overwrites the first bytes.
    pub(super) fn rewrite_head(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, 0).map_err(|error| unwritable(&self.name, &error))
    }
}

impl<T: Pod> Sink<T> for File {
    fn take(&mut self, frame: &[T], _number: u64) -> Result<()> {
        self.append(bytemuck::cast_slice(frame))
    }
}

fn unwritable(name: &str, error: &io::Error) -> Error {
    Error::Unavailable {
        what: format!("file {name} for writing"),
        tried: Vec::new(),
        reason: error.to_string(),
    }
}
