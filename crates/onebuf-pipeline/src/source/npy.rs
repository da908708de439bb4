//! Frames of a NumPy file.

use super::{File, FrameSource};
use crate::{
    Filled,
    npy::{Head, MOST, NpyElement},
};
use onebuf_hal::{Error, Result};
use std::{marker::PhantomData, path::Path};

/// The frames of a `.npy` file: its first axis counts them, or all of it is one.
///
/// The file is taken at its word and no further: its element must be `T`, its order C's, and its size what the shape says.
#[derive(Debug)]
pub struct Npy<T> {
    file: File,
    shape: Vec<u64>,
    element: PhantomData<fn() -> T>,
}

impl<T: NpyElement> Npy<T> {
    /// Opens a file, to be read once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for one that cannot be read, [`Error::InvalidArgument`] for one that is not whole or has other
    /// elements, with the offset or the field.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = File::open(path)?;
        let about = |why: String| Error::invalid(format!("{}: {why}", file.name()));
        let head = Head::parse(&file.head(MOST)?).map_err(about)?;
        head.check(T::DESCR).map_err(about)?;
        let (start, end) = head.extent(size_of::<T>()).map_err(about)?;
        match file.bytes() {
            whole if whole == end => {
                let shape = head.shape;
                Ok(Self { file: file.part(start, end), shape, element: PhantomData })
            }
            short if short < end => Err(about(format!(
                "it ends at offset {short}, but its shape {:?} needs data up to {end}",
                head.shape
            ))),
            long => Err(about(format!("{} bytes behind its data, at offset {end}", long - end))),
        }
    }

    /// So many times instead of once.
    pub fn times(self, times: u64) -> Self {
        Self { file: self.file.times(times), ..self }
    }

    /// Without an end.
    pub fn forever(self) -> Self {
        Self { file: self.file.forever(), ..self }
    }

    /// The shape that the file says.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Whether the shape is one of frames with so many elements.
    fn fits(&self, elements: usize) -> bool {
        let many = |axes: &[u64]| axes.iter().product::<u64>();
        let behind_the_first = self.shape.get(1..).map(many);
        many(&self.shape) == elements as u64 || behind_the_first == Some(elements as u64)
    }
}

impl<T: NpyElement> FrameSource<T> for Npy<T> {
    fn fill(&mut self, frame: &mut [T]) -> Result<Filled> {
        if self.fits(frame.len()) {
            return self.file.fill(frame);
        }
        Err(Error::invalid(format!(
            "{}: shape {:?} has no frames of {} elements: its first axis would count them",
            self.file.name(),
            self.shape,
            frame.len()
        )))
    }
}
