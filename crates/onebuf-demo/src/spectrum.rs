//! The first stage: every channel is delayed, windowed and transformed, in place.

use crate::{Setup, Transform, delay::DelayKernel, opencl::has_kernels};
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
        let way = match has_kernels(device) {
            true => SpectrumBy::Kernels(Box::new(Transform::of(device, device, setup)?)),
            false => {
                // Reports a missing library now, not at the first frame.
                Fft::on(&queue)?;
                SpectrumBy::Library(DelayKernel::build(device, setup)?)
            }
        };
        Ok(Self { queue, length: setup.shape.length, way })
    }

    /// The OpenCL kernel in a queue of another API.
    ///
    /// # Errors
    /// The driver's errors, and those of [`onebuf::Program::graft`].
    pub fn grafted(cl: &Device, queue: &Queue, setup: &Setup) -> Result<Self> {
        let device = queue.device();
        let way = SpectrumBy::Kernels(Box::new(Transform::of(cl, &device, setup)?));
        Ok(Self { queue: queue.clone(), length: setup.shape.length, way })
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
