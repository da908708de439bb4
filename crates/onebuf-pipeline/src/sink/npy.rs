//! Frames that are written to a NumPy file.

use super::{File, Sink};
use crate::npy::{Head, NpyElement};
use onebuf_hal::{Error, Result};
use std::{marker::PhantomData, path::Path};

/// Writes frames to a `.npy` file whose first axis counts them. The file is whole after each of them, whatever happens later.
#[derive(Debug)]
pub struct Npy<T> {
    file: File,
    shape: Vec<usize>,
    frames: u64,
    element: PhantomData<fn() -> T>,
}

impl<T: NpyElement> Npy<T> {
    /// Makes a file, or empties the one that there is, for frames of this shape.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for one that cannot be written, [`Error::InvalidArgument`] for a shape that fits no head.
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
            return Err(Error::invalid(format!("a frame of {have} elements of shape {shape:?}")));
        }
        self.file.append(bytemuck::cast_slice(frame))?;
        self.frames += 1;
        let head = Head::write(T::DESCR, self.frames, &self.shape).map_err(Error::invalid)?;
        self.file.rewrite_head(&head)
    }
}
