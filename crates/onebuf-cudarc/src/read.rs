//! cudarc's memory that onebuf only reads.

use bytemuck::Pod;
use onebuf::{Buffer, Map, Queue, ReadView, Result};
use std::{fmt, ops::RangeBounds};

/// A [`Buffer`] over cudarc's memory that can be read and not written: by kernels, as a [`ReadView`], and by the host. cudarc and
/// other wraps may read the memory at the same time.
///
/// ```compile_fail
/// # fn run(stream: &onebuf_cudarc::CudarcStream, samples: cudarc::driver::CudaView<'_, f32>) -> onebuf::Result<()> {
/// stream.wrap_read(&samples)?.run(|shared| shared.fill(1.0))
/// # }
/// ```
///
/// ```no_run
/// # fn run(stream: &onebuf_cudarc::CudarcStream, samples: cudarc::driver::CudaView<'_, f32>) -> onebuf::Result<Vec<f32>> {
/// stream.wrap_read(&samples)?.run(|shared| shared.to_vec())
/// # }
/// ```
pub struct ReadBuffer<T: Pod>(pub(crate) Buffer<T>);

impl<T: Pod> ReadBuffer<T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a view for a kernel that reads. A launch that declares that it writes is refused.
    ///
    /// # Errors
    /// As for [`Buffer::read_on`].
    pub fn read_on<'b>(&'b self, queue: &'b Queue) -> Result<ReadView<'b, T>> {
        self.0.read_on(queue)
    }

    /// Reads the whole memory.
    ///
    /// # Errors
    /// As for [`Buffer::read`].
    pub fn read(&self, into: &mut [T]) -> Result<()> {
        self.0.read(into)
    }

    /// Reads a range of elements.
    ///
    /// # Errors
    /// As for [`Buffer::read_range`].
    pub fn read_range(&self, range: impl RangeBounds<usize>, into: &mut [T]) -> Result<()> {
        self.0.read_range(range, into)
    }

    /// Reads the whole memory into a new vector.
    ///
    /// # Errors
    /// As for [`Buffer::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.0.to_vec()
    }

    /// Maps the memory for the host to read.
    ///
    /// # Errors
    /// As for [`Buffer::map`].
    pub fn map(&self) -> Result<Map<'_, T>> {
        self.0.map()
    }

    /// How each device accesses the memory: see [`Buffer::explain`].
    pub fn explain(&self) -> String {
        self.0.explain()
    }
}

impl<T: Pod> fmt::Debug for ReadBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}
