//! A source that reads raw frames from a file.

use super::{FrameSource, turns::Turns};
use crate::Filled;
use bytemuck::Pod;
use onebuf_hal::{Error, Result};
use std::{fs, io, os::unix::fs::FileExt, path::Path};

/// Reads frames that lie one after another in a file, as they lie in memory: little-endian, without separators.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    /// The path, for error messages.
    name: String,
    start: u64,
    end: u64,
    at: u64,
    turns: Turns,
}

impl File {
    /// Opens a file to be read once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let open = || -> io::Result<(fs::File, u64)> {
            let file = fs::File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, end) = open().map_err(|error| unreadable(&name, &error))?;
        Ok(Self { file, name, start: 0, end, at: 0, turns: Turns::ONE })
    }

    /// Repeats the file this many times instead of once.
    pub fn times(self, times: u64) -> Self {
        Self { turns: Turns::of(times), ..self }
    }

    /// Repeats the file forever.
    pub fn forever(self) -> Self {
        Self { turns: Turns::FOREVER, ..self }
    }

    /// The size of the data in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The first `most` bytes, or fewer if the file is shorter.
    pub(super) fn head(&self, most: usize) -> Result<Vec<u8>> {
        let mut head = vec![0; usize::try_from(self.end).map_or(most, |end| most.min(end))];
        self.read(&mut head, 0)?;
        Ok(head)
    }

    /// Restricts reading to this byte range.
    pub(super) fn part(self, start: u64, end: u64) -> Self {
        Self { start, end, at: start, ..self }
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(into, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let wanted = into.len();
                let what = format!(
                    "{}: the file was truncated: {wanted} bytes at offset {at} are missing",
                    self.name
                );
                Error::invalid(format!("{what} that existed when it was opened"))
            }
            _ => unreadable(&self.name, &error),
        })
    }
}

impl<T: Pod> FrameSource<T> for File {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(frame);
        let (all, one) = (self.bytes(), bytes.len() as u64);
        if all == 0 || one == 0 || !all.is_multiple_of(one) {
            let whole = all.checked_div(one).unwrap_or(0) * one;
            return Err(Error::invalid(format!(
                "{}: {all} bytes are not a multiple of the frame's {one}: an incomplete frame begins at offset {}",
                self.name,
                self.start + whole
            )));
        }
        if self.at == self.end {
            (self.at, _) = (self.start, self.turns.end_one());
        }
        if self.turns.is_over() {
            return Ok(Filled::End);
        }
        self.read(bytes, self.at)?;
        self.at += one;
        Ok(Filled::Frame)
    }
}

fn unreadable(name: &str, error: &io::Error) -> Error {
    Error::Unavailable {
        what: format!("file {name}"),
        tried: Vec::new(),
        reason: error.to_string(),
    }
}
