//! A sink that keeps frames in memory.

use super::Sink;
use onebuf_hal::Result;

/// Appends frames to a vector.
#[derive(Debug)]
pub struct Memory<'m, T>(&'m mut Vec<T>);

impl<'m, T> Memory<'m, T> {
    /// Appends to the vector's present contents.
    pub fn new(all: &'m mut Vec<T>) -> Self {
        Self(all)
    }
}

impl<T: Clone> Sink<T> for Memory<'_, T> {
    fn take(&mut self, frame: &[T], _number: u64) -> Result<()> {
        self.0.extend_from_slice(frame);
        Ok(())
    }
}
