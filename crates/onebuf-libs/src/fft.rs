//! Fourier transforms.

use super::{
    engine::Engine,
    libraries::Libraries,
    native,
    number::Sample,
    operand::{Operand, Wanted, narrow},
};
use crate::operand::Written;
use onebuf_core::{Queue, WriteView};
use onebuf_hal::{Access, Error, Result};
use std::fmt;

/// The direction of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Multiplies by exp(-2 pi i j k / n).
    Forward,
    /// Multiplies by exp(+2 pi i j k / n), without dividing by n.
    Inverse,
}

/// A batch of one-dimensional complex transforms, one after another in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "it does nothing until given to `Fft::transform`"]
pub struct Fft1d {
    len: usize,
    batch: usize,
    direction: Direction,
}

impl Fft1d {
    /// `batch` forward transforms of `len` samples each.
    pub fn forward(len: usize, batch: usize) -> Self {
        Self { len, batch, direction: Direction::Forward }
    }

    /// `batch` inverse transforms of `len` samples each. The result is scaled by `len`.
    pub fn inverse(len: usize, batch: usize) -> Self {
        Self { len, batch, direction: Direction::Inverse }
    }

    /// Samples of each transform.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to transform. [`Fft::transform`] refuses such a plan.
    pub fn is_empty(&self) -> bool {
        self.len == 0 || self.batch == 0
    }

    /// The number of transforms.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The direction.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Checks the sizes and returns the total number of samples.
    fn settle(&self) -> Result<usize> {
        let Self { len, batch, .. } = *self;
        if self.is_empty() {
            return Err(Error::invalid(format!("{batch} transforms of {len} samples are empty")));
        }
        narrow("the length of a transform", len)?;
        narrow("the number of transforms", batch)?;
        // No overflow: both are below 2^31.
        Ok(len * batch)
    }
}

/// Fourier transforms on one queue. Cheap to create: the queue caches the plans.
#[derive(Clone)]
pub struct Fft {
    queue: Queue,
    engine: Engine,
}

impl Fft {
    /// Opens the library for a queue's device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such library, [`Error::Unavailable`] if it is not installed.
    pub fn on(queue: &Queue) -> Result<Fft> {
        let engine = Engine::of(queue, "a Fourier transform")?;
        if let Some(flavor) = engine.native() {
            Libraries::fft(queue.hub(), flavor)?;
        }
        Ok(Fft { queue: queue.clone(), engine })
    }

    /// Transforms in place. On a GPU the call enqueues and returns; on the host it computes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is nothing to transform, the data does not fit the view, or the view is on another
    /// queue. The data is unchanged then.
    pub fn transform<T: Sample>(&self, plan: &Fft1d, x: &mut WriteView<'_, T>) -> Result<()> {
        let total = plan.settle()?;
        Wanted::new("x", total, Access::ReadWrite).check::<T>(&self.queue, x.hold())?;
        super::told(&self.queue, "fft", || match self.engine {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => super::cpu::fft::<T>(&self.queue, plan, None, x.hold_mut()),
            Engine::Native(flavor) => native::fft::<T>(&self.queue, flavor, plan, None, x.hold()),
        })
    }

    /// Transforms `from` into `to`. `from` is unchanged.
    ///
    /// # Errors
    /// As for [`Fft::transform`].
    pub fn transform_into<T: Sample>(
        &self,
        plan: &Fft1d,
        from: &impl Operand<T>,
        to: &mut WriteView<'_, T>,
    ) -> Result<()> {
        let total = plan.settle()?;
        Wanted::new("from", total, Access::Read).check::<T>(&self.queue, from.held().0)?;
        Wanted::new("to", total, Access::ReadWrite).check::<T>(&self.queue, to.hold())?;
        super::told(&self.queue, "fft", || match self.engine {
            #[cfg(feature = "cpu-libs")]
            Engine::Host => {
                super::cpu::fft::<T>(&self.queue, plan, Some(from.held().0), to.hold_mut())
            }
            Engine::Native(flavor) => {
                native::fft::<T>(&self.queue, flavor, plan, Some(from.held().0), to.hold())
            }
        })
    }
}

impl fmt::Debug for Fft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fft({:?}, {:?})", self.queue, self.engine)
    }
}
