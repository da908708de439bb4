//! The second stage: beams, as weighted sums over all channels.

use crate::{
    Setup, Shape,
    opencl::{BeamsKernel, has_kernels},
};
use onebuf::{
    Buffer, Complex32, Device, Queue, Result, SyncMethod, args,
    libs::{Blas, Gemm},
};

/// The stage on its device.
pub struct Beams {
    queue: Queue,
    weights: Buffer<Complex32>,
    way: BeamsBy,
}

enum BeamsBy {
    Kernel(BeamsKernel),
    Library,
}

impl Beams {
    /// The stage's name.
    pub const NAME: &str = "beams";

    /// Builds the kernel, or finds the library, and uploads the weights.
    ///
    /// # Errors
    /// The driver's errors; [`onebuf::Error::Unavailable`] if the library is not installed.
    pub fn open(device: &Device, setup: &Setup) -> Result<Self> {
        let queue = device.queue()?;
        let way = match has_kernels(device) {
            true => BeamsBy::Kernel(BeamsKernel::build(device, setup.shape.length)?),
            // Reports a missing library now, not at the first frame.
            false => Blas::on(&queue).map(|_| BeamsBy::Library)?,
        };
        let builder = device.hub().buffer(setup.weights.len()).shared_with([device]);
        Ok(Self { queue, weights: builder.init(&setup.weights).build()?, way })
    }

    /// The stage's queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Launches the stage, and returns the sync method of its queue. A smaller shape than it was opened for reads fewer weights.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run(
        &self,
        shape: &Shape,
        spectrum: &Buffer<Complex32>,
        out: &Buffer<Complex32>,
    ) -> Result<SyncMethod> {
        self.run_on(&self.queue, shape, spectrum, out)
    }

    /// Launches the stage in another queue of the device.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run_on(
        &self,
        queue: &Queue,
        shape: &Shape,
        spectrum: &Buffer<Complex32>,
        out: &Buffer<Complex32>,
    ) -> Result<SyncMethod> {
        let Shape { length, channels, beams } = *shape;
        let (x, w) = (spectrum.read_on(queue)?, self.weights.read_on(queue)?);
        let (sync_method, mut out) = (x.sync_method(), out.write_on(queue)?);
        match &self.way {
            BeamsBy::Kernel(product) => {
                let [l, c, b] = [length, channels, beams].map(|size| size as u32);
                for [from, to] in product.slices(channels) {
                    let args = args![&x, &w, &mut out, l, c, b, from, to];
                    queue.launch(product.kernel(), product.grid(shape), args)?;
                }
            }
            BeamsBy::Library => {
                let product = Gemm::new(length, beams, channels);
                Blas::on(queue)?.gemm(&product, &x, &w, &mut out)?;
            }
        }
        Ok(sync_method)
    }
}
