//! The first stage: every channel is delayed, windowed and transformed, in place.

use crate::{Setup, Shape, Transform, choice::is_faster, delay::DelayKernel, opencl::has_kernels};
use onebuf::{
    Buffer, Complex32, Device, Kernel, Queue, Result, SyncMethod,
    libs::{Fft, Fft1d},
};

/// The stage on its device.
pub struct Spectrum {
    queue: Queue,
    length: usize,
    way: SpectrumBy,
}

enum SpectrumBy {
    /// Our kernels delay, window and transform.
    Kernels(Box<Transform>),
    Library(DelayKernel),
}

impl Spectrum {
    /// The stage's name.
    pub const NAME: &str = "delay+fft";

    /// Builds the kernel, or finds the library.
    ///
    /// # Errors
    /// The driver's errors; [`onebuf::Error::Unavailable`] if the library is not installed.
    pub fn open(device: &Device, setup: &Setup) -> Result<Self> {
        let queue = device.queue()?;
        match has_kernels(device) {
            true => Self::by_kernels(device, &queue, setup),
            false => Self::by_library(&queue, setup),
        }
    }

    /// The OpenCL kernels in a queue of another API, or the library where it is faster. The first time for a shape, both are measured.
    ///
    /// # Errors
    /// The driver's errors, and those of [`onebuf::Program::graft`].
    pub fn grafted(cl: &Device, queue: &Queue, setup: &Setup) -> Result<Self> {
        let kernels = Self::by_kernels(cl, queue, setup)?;
        match Self::by_library(queue, setup) {
            Ok(library) => kernels.unless_slower(library, &setup.shape),
            Err(error) => {
                tracing::debug!(%error, "transforms by kernels: no library");
                Ok(kernels)
            }
        }
    }

    fn by_kernels(compiler: &Device, queue: &Queue, setup: &Setup) -> Result<Self> {
        let transform = Transform::of(compiler, &queue.device(), setup)?;
        let way = SpectrumBy::Kernels(Box::new(transform));
        Ok(Self { queue: queue.clone(), length: setup.shape.length, way })
    }

    fn by_library(queue: &Queue, setup: &Setup) -> Result<Self> {
        // Reports a missing library now, not at the first frame.
        Fft::on(queue)?;
        let way = SpectrumBy::Library(DelayKernel::build(&queue.device(), setup)?);
        Ok(Self { queue: queue.clone(), length: setup.shape.length, way })
    }

    /// The library if it is faster.
    fn unless_slower(self, library: Self, shape: &Shape) -> Result<Self> {
        let device = self.queue.device();
        let signal = device.hub().buffer::<Complex32>(shape.samples()).shared_with([&device]);
        let signal = signal.build()?;
        let what = format!("library or grafted transform: {} x {}", shape.length, shape.channels);
        let run = |stage: &Self| stage.run(&signal, shape.channels).map(drop);
        let slower = is_faster(&self.queue, &what, || run(&library), || run(&self))?;
        Ok(if slower { library } else { self })
    }

    /// Whether a library transforms.
    pub fn is_by_library(&self) -> bool {
        matches!(self.way, SpectrumBy::Library(_))
    }

    /// All kernels that the stage launches; none if it calls libraries.
    pub fn kernels(&self) -> Vec<&Kernel> {
        match &self.way {
            SpectrumBy::Kernels(transform) => transform.kernels(),
            SpectrumBy::Library(_) => Vec::new(),
        }
    }

    /// The stage's queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Launches the stage on the first channels, and returns the sync method of its queue.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run(&self, signal: &Buffer<Complex32>, channels: usize) -> Result<SyncMethod> {
        self.run_on(&self.queue, signal, channels)
    }

    /// Launches the stage in another queue of the device.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run_on(
        &self,
        queue: &Queue,
        signal: &Buffer<Complex32>,
        channels: usize,
    ) -> Result<SyncMethod> {
        let delay = match &self.way {
            SpectrumBy::Kernels(transform) => return transform.run(queue, signal, channels),
            SpectrumBy::Library(delay) => delay,
        };
        let sync_method = delay.run(queue, signal, channels)?;
        let (fft, plan) = (Fft::on(queue)?, Fft1d::forward(self.length, channels));
        let mut to = signal.write_on(queue)?;
        match delay.scratch() {
            None => fft.transform(&plan, &mut to)?,
            Some(from) => fft.transform_into(&plan, &from.read_on(queue)?, &mut to)?,
        }
        Ok(sync_method)
    }
}
