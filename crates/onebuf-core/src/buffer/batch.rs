//! Batches of small writes, made in one hand-over.

use super::Buffer;
use bytemuck::Pod;
use onebuf_hal::Result;

/// Collects writes; [`flush`](WriteBatch::flush) makes them all in one hand-over. Later writes win.
///
/// Dropping the batch flushes the remaining writes, and only logs an error.
#[derive(Debug)]
pub struct WriteBatch<'b, T: Pod> {
    buffer: &'b Buffer<T>,
    /// Runs of elements in the order of writing: the index of the first element, and the contents.
    runs: Vec<(usize, Vec<T>)>,
}

impl<'b, T: Pod> WriteBatch<'b, T> {
    pub(super) fn new(buffer: &'b Buffer<T>) -> Self {
        Self { buffer, runs: Vec::new() }
    }

    /// Adds a write of the elements from `at` on. A write that begins where the last one ended is merged with it.
    ///
    /// # Errors
    /// For a range that is empty or outside the buffer; nothing is added then.
    pub fn write(&mut self, at: usize, from: &[T]) -> Result<&mut Self> {
        let end = at.saturating_add(from.len());
        self.buffer.byte_range(at..end)?;
        match self.runs.last_mut() {
            Some((start, run)) if *start + run.len() == at => run.extend_from_slice(from),
            _ => self.runs.push((at, from.to_vec())),
        }
        Ok(self)
    }

    /// Makes the writes.
    ///
    /// # Errors
    /// As for [`Buffer::write_range`]; the writes stay in the batch, and the flush may be repeated.
    pub fn flush(&mut self) -> Result<()> {
        if self.runs.is_empty() {
            return Ok(());
        }
        let bytes =
            |(at, run): &'_ (usize, Vec<T>)| (at * size_of::<T>(), run.len() * size_of::<T>());
        let total = self.runs.iter().map(|run| bytes(run).1).sum();
        let parts = self.runs.iter().map(|run| (bytes(run).0, bytemuck::cast_slice(&run.1)));
        let part = self.buffer.part();
        part.check_host(false, true)?;
        part.write_parts(parts)?;
        part.count_write(total);
        self.runs.clear();
        Ok(())
    }
}

impl<T: Pod> Drop for WriteBatch<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!(%error, "a dropped batch could not be flushed: its writes are lost");
        }
    }
}
