//! A sink that writes frames to a NumPy file.

use super::{File, Sink};
use crate::npy::{Head, NpyElement};
use onebuf_hal::{Error, Result};
use std::{marker::PhantomData, path::Path};

/// Writes frames to a `.npy` file whose first axis counts them. The header is updated after each frame, so the file is always
/// valid.
#[derive(Debug)]
pub struct Npy<T> {
    file: File,
    shape: Vec<usize>,
    frames: u64,
    element: PhantomData<fn() -> T>,
}

impl<T: NpyElement> Npy<T> {
    /// Creates a file, or truncates an existing one, for frames of this shape.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be written, [`Error::InvalidArgument`] if the shape does not fit a header.
    pub fn create(path: impl AsRef<Path>, shape: &[usize]) -> Result<Self> {
        let head = Head::write(T::DESCR, 0, shape).map_err(Error::invalid)?;
        let mut file = File::create(path)?;
        file.append(&head)?;
        Ok(Self { file, shape: shape.into(), frames: 0, element: PhantomData })
    }
}

impl<T: NpyElement> Sink<T> for Npy<T> {
    fn take(&mut self, frame: &[T], _number: u64) -> Result<()> {
        let wanted = self.shape.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis));
        if wanted != Some(frame.len()) {
            let (have, shape) = (frame.len(), &self.shape);
            return Err(Error::invalid(format!(
                "a frame of {have} elements does not have the shape {shape:?}"
            )));
        }
        self.file.append(bytemuck::cast_slice(frame))?;
        self.frames += 1;
        let head = Head::write(T::DESCR, self.frames, &self.shape).map_err(Error::invalid)?;
        self.file.rewrite_head(&head)
    }
}
