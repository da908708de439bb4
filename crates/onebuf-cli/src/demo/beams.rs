//! The beams of the last frame, as a file for NumPy.

use onebuf::{
    Complex32, Result,
    pipeline::sink::{Npy, Sink},
};
use onebuf_demo::Shape;
use std::path::Path;

/// A file that is created before the first frame, so that a path that cannot be written is reported at once.
pub struct BeamsFile {
    file: Npy<Complex32>,
    length: usize,
}

impl BeamsFile {
    pub fn create(path: &Path, shape: Shape) -> Result<Self> {
        Ok(Self { file: Npy::create(path, &[shape.length])?, length: shape.length })
    }

    /// Writes a frame's beams, one row for each.
    pub fn write(&mut self, beams: &[Complex32]) -> Result<()> {
        let mut rows = beams.chunks_exact(self.length).zip(0..);
        rows.try_for_each(|(row, number)| self.file.take(row, number))
    }
}
