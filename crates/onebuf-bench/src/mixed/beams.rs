//! The second stage: beams, as sums over all channels with weights.

use super::{Shape, has_kernels, opencl::BeamsKernel, reference::weights};
use onebuf::{
    Buffer, Complex32, Device, Queue, Result, Rung, args,
    libs::{Blas, Gemm},
};

/// The stage on its device.
pub struct Beams {
    queue: Queue,
    weights: Buffer<Complex32>,
    way: Way,
}

enum Way {
    Kernel(BeamsKernel),
    Library(Blas),
}

impl Beams {
    /// Its name.
    pub const NAME: &str = "beams";

    /// Builds the kernel, or finds the library, and uploads the weights.
    ///
    /// # Errors
    /// The driver's; [`onebuf::Error::Unavailable`] where the library is not installed.
    pub fn open(device: &Device, shape: &Shape) -> Result<Self> {
        let queue = device.queue()?;
        let way = match has_kernels(device) {
            true => Way::Kernel(BeamsKernel::build(device, shape.length)?),
            false => Way::Library(Blas::on(&queue)?),
        };
        let weights = weights(shape);
        let wish = device.hub().buffer(weights.len()).shared_with([device]);
        Ok(Self { queue, weights: wish.init(weights).build()?, way })
    }

    /// Its queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Starts it, and says how its queue waits for its turn. A smaller shape than the one that it was opened for
    /// reads fewer weights.
    ///
    /// # Errors
    /// The driver's.
    pub fn run(
        &self,
        shape: &Shape,
        spectrum: &Buffer<Complex32>,
        out: &Buffer<Complex32>,
    ) -> Result<Rung> {
        let Shape { length, channels, beams } = *shape;
        let (x, w) = (spectrum.read_on(&self.queue)?, self.weights.read_on(&self.queue)?);
        let (rung, mut out) = (x.rung(), out.write_on(&self.queue)?);
        match &self.way {
            Way::Kernel(product) => {
                let [l, c, b] = [length, channels, beams].map(|size| size as u32);
                let args = args![x, w, out, l, c, b];
                self.queue.launch(product.kernel(), product.grid(shape), args)?;
            }
            Way::Library(blas) => {
                blas.gemm(&Gemm::new(length, beams, channels), &x, &w, &mut out)?;
            }
        }
        Ok(rung)
    }
}
