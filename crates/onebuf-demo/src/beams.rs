//! The second stage: beams, as weighted sums over all channels.

use crate::{
    Setup, Shape,
    choice::is_faster,
    opencl::{BeamsKernel, has_kernels},
    thin::ThinProduct,
};
use onebuf::{
    Buffer, Complex32, Device, Queue, ReadView, Result, SyncMethod, WriteView, args,
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
    /// On GPUs.
    Thin(Box<ThinProduct>),
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
        let (queue, shape) = (device.queue()?, &setup.shape);
        let way = match has_kernels(device) {
            true if ThinProduct::suits(device, shape) => {
                BeamsBy::Thin(Box::new(ThinProduct::of(device, device, shape)?))
            }
            true => BeamsBy::Kernel(BeamsKernel::build(device, shape.length)?),
            // Reports a missing library now, not at the first frame.
            false => Blas::on(&queue).map(|_| BeamsBy::Library)?,
        };
        Self::with(queue, setup, way)
    }

    /// The library, or OpenCL's kernels grafted onto the device if they are faster, or if there is no library. The first time for a
    /// shape, both are measured.
    ///
    /// # Errors
    /// The driver's errors; [`onebuf::Error::Unavailable`] if the library is not installed, and the kernels cannot be grafted.
    pub fn grafted(cl: &Device, device: &Device, setup: &Setup) -> Result<Self> {
        let queue = device.queue()?;
        let library = Blas::on(&queue).map(drop);
        match (ThinProduct::of(cl, device, &setup.shape), library) {
            (Ok(kernels), library) => {
                let kernels = Self::with(queue.clone(), setup, BeamsBy::Thin(Box::new(kernels)))?;
                match library {
                    Ok(()) => Self::with(queue, setup, BeamsBy::Library)?
                        .or_if_faster(kernels, &setup.shape),
                    Err(_) => Ok(kernels),
                }
            }
            (Err(error), Ok(())) => {
                tracing::debug!(%error, "beams by the library: no kernels");
                Self::with(queue, setup, BeamsBy::Library)
            }
            (Err(_), Err(missing)) => Err(missing),
        }
    }

    /// The other one if it is faster.
    fn or_if_faster(self, other: Self, shape: &Shape) -> Result<Self> {
        let device = self.queue.device();
        let memory = |len| device.hub().buffer::<Complex32>(len).shared_with([&device]).build();
        let (spectrum, out) = (memory(shape.samples())?, memory(shape.results())?);
        let Shape { length, channels, beams } = shape;
        let what = format!("grafted product or library: {length} x {channels} x {beams}");
        let run = |stage: &Self| stage.run(shape, &spectrum, &out).map(drop);
        let faster = is_faster(&self.queue, &what, || run(&other), || run(&self))?;
        Ok(if faster { other } else { self })
    }

    fn with(queue: Queue, setup: &Setup, way: BeamsBy) -> Result<Self> {
        let device = queue.device();
        let builder = device.hub().buffer(setup.weights.len()).shared_with([&device]);
        let weights = builder.init(&setup.weights).build()?;
        Ok(Self { queue, weights, way })
    }

    /// Whether a library computes the product.
    pub fn is_by_library(&self) -> bool {
        matches!(self.way, BeamsBy::Library)
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
        let (x, w) = (spectrum.read_on(queue)?, self.weights.read_on(queue)?);
        let (sync_method, mut out) = (x.sync_method(), out.write_on(queue)?);
        match &self.way {
            BeamsBy::Kernel(product) => launch(product, queue, shape, [&x, &w], &mut out)?,
            BeamsBy::Thin(product) => product.run(queue, shape, [&x, &w], &mut out)?,
            BeamsBy::Library => {
                let product = Gemm::new(shape.length, shape.beams, shape.channels);
                Blas::on(queue)?.gemm(&product, &x, &w, &mut out)?;
            }
        }
        Ok(sync_method)
    }
}

fn launch(
    product: &BeamsKernel,
    queue: &Queue,
    shape: &Shape,
    [x, w]: [&ReadView<'_, Complex32>; 2],
    out: &mut WriteView<'_, Complex32>,
) -> Result<()> {
    let [l, c, b] = [shape.length, shape.channels, shape.beams].map(|size| size as u32);
    for [from, to] in product.slices(shape.channels) {
        let args = args![x, w, &mut *out, l, c, b, from, to];
        queue.launch(product.kernel(), product.grid(shape), args)?;
    }
    Ok(())
}
