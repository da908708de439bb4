//! A source that reads the frames of a NumPy file.

use super::{File, FrameSource};
use crate::{
    Filled,
    npy::{Head, MOST, NpyElement},
};
use onebuf_hal::{Error, Result};
use std::{marker::PhantomData, path::Path};

/// Reads the frames of a `.npy` file: its first axis counts them, or the whole array is one frame.
///
/// The file is checked strictly: its elements must be `T`, its order C's, and its size must match the shape.
#[derive(Debug)]
pub struct Npy<T> {
    file: File,
    shape: Vec<u64>,
    element: PhantomData<fn() -> T>,
}

impl<T: NpyElement> Npy<T> {
    /// Opens a file to be read once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be read, [`Error::InvalidArgument`] with the offset or the field if it is
    /// truncated or has other elements.
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
                "the file ends at offset {short}, but its shape {:?} needs data up to {end}",
                head.shape
            ))),
            long => {
                Err(about(format!("{} extra bytes after its data, at offset {end}", long - end)))
            }
        }
    }

    /// Repeats the file this many times instead of once.
    pub fn times(self, times: u64) -> Self {
        Self { file: self.file.times(times), ..self }
    }

    /// Repeats the file forever.
    pub fn forever(self) -> Self {
        Self { file: self.file.forever(), ..self }
    }

    /// The shape in the file's header.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Whether the array divides into frames of this many elements.
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
            "{}: shape {:?} does not divide into frames of {} elements along its first axis",
            self.file.name(),
            self.shape,
            frame.len()
        )))
    }
}
