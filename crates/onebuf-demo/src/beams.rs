//! The second stage: beams, as weighted sums over all channels.

use crate::{
    Setup, Shape,
    choice::is_faster,
    opencl::{BeamsKernel, has_kernels, has_spare_kernel},
    thin::ThinProduct,
};
use onebuf::{
    Buffer, Complex32, Device, Error, Queue, ReadView, Result, SyncMethod, WriteView, args,
    libs::{Blas, Gemm},
};

/// The stage on its device.
pub struct Beams {
    queue: Queue,
    weights: Buffer<Complex32>,
    way: BeamsBy,
}

enum BeamsBy {
    /// OpenCL, and CUDA and HIP without a library.
    Kernel(BeamsKernel),
    /// On GPUs.
    Thin(Box<ThinProduct>),
    Library,
}

impl Beams {
    /// The stage's name.
    pub const NAME: &str = "beams";

    /// Builds the kernel, or finds the library, and uploads the weights. CUDA and HIP have a kernel for machines without the library.
    ///
    /// # Errors
    /// The driver's errors; [`Error::Unavailable`] if the library is not installed, and no compiler either.
    pub fn open(device: &Device, setup: &Setup) -> Result<Self> {
        let (queue, shape) = (device.queue()?, &setup.shape);
        let way = match has_kernels(device) {
            true if ThinProduct::suits(device, shape) => {
                BeamsBy::Thin(Box::new(ThinProduct::of(device, device, shape)?))
            }
            true => BeamsBy::Kernel(BeamsKernel::build(device, shape.length)?),
            // Reports a missing library now, not at the first frame.
            false => match Blas::on(&queue) {
                Ok(_) => BeamsBy::Library,
                Err(missing @ Error::Unavailable { .. }) if has_spare_kernel(device) => {
                    tracing::debug!(%missing, "beams by a kernel: no library");
                    BeamsBy::Kernel(spare_kernel(device, shape, missing)?)
                }
                Err(error) => return Err(error),
            },
        };
        Self::with(queue, setup, way)
    }

    /// The library, or OpenCL's kernels grafted onto the device if they are faster, or if there is no library. The first time for a
    /// shape, both are measured.
    ///
    /// # Errors
    /// The driver's errors; [`Error::Unavailable`] if the library is not installed, and the kernels cannot be grafted.
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

/// The kernel instead of a missing library. If there is no compiler either, the library is what to install.
fn spare_kernel(device: &Device, shape: &Shape, missing: Error) -> Result<BeamsKernel> {
    match BeamsKernel::build(device, shape.length) {
        Err(Error::Unavailable { .. }) => Err(missing),
        built => built,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Interpolator,
        setup::{double, noise},
    };
    use onebuf::{Complex64, Hub, libs::Library, prelude::*};
    use onebuf_conformance::{cuda_stub, one_api};

    const LIBRARIES: [Library; 2] = [Library::CuBlas, Library::RocBlas];

    /// The stub of CUDA or HIP, with or without its library of matrix products.
    fn stubbed(api: &str, blas: bool, compiler: bool) -> Option<Hub> {
        let stub = cuda_stub()?.to_string_lossy().into_owned();
        let given = |there: bool| if there { stub.clone() } else { "none".to_owned() };
        let builder =
            onebuf::builder().only([api]).library(api, &stub).verdicts(Default::default());
        let builder =
            builder.library(if api == "cuda" { "nvrtc" } else { "hiprtc" }, given(compiler));
        let builder = LIBRARIES
            .into_iter()
            .fold(builder, |all, library| all.math_library(library, given(blas)));
        Some(builder.build().unwrap())
    }

    /// The largest error of a product of noise, relative to the number of its terms.
    fn off(stage: &Beams, setup: &Setup) -> f64 {
        let (shape, device) = (setup.shape, stage.queue().device());
        let samples = noise(shape.samples());
        let memory = |len| device.hub().buffer::<Complex32>(len).shared_with([&device]);
        let spectrum = memory(samples.len()).init(&samples).build().unwrap();
        // The previous contents must not be part of a sum.
        let out = memory(shape.results())
            .init(vec![Complex32::new(1e9, 1e9); shape.results()])
            .build()
            .unwrap();
        stage.run(&shape, &spectrum, &out).unwrap();
        let found = out.to_vec().unwrap();
        let mut worst = 0.0;
        for beam in 0..shape.beams {
            for bin in 0..shape.length {
                let term = |c: usize| {
                    double(samples[c * shape.length + bin])
                        * double(setup.weights[beam * shape.channels + c])
                };
                let wanted: Complex64 = (0..shape.channels).map(term).sum();
                let error = (double(found[beam * shape.length + bin]) - wanted).norm()
                    / shape.channels as f64;
                worst = crate::setup::worse(worst, error);
            }
        }
        worst
    }

    #[test]
    fn without_a_library_a_kernel_forms_the_beams() {
        let _alone = one_api();
        let setup =
            Setup::new(Shape { length: 24, channels: 37, beams: 5 }, Interpolator::new(3).unwrap());
        for api in ["cuda", "hip"] {
            let Some(hub) = stubbed(api, false, true) else { return };
            let device = hub.device(&format!("{api}:0")).unwrap();
            let kernel = Beams::open(&device, &setup).unwrap();
            assert!(!kernel.is_by_library());
            let error = off(&kernel, &setup);
            assert!(error < 1e-6, "{api}: {error}");
            // The control: another setup's weights are not these.
            let wrong =
                Setup { weights: setup.weights.iter().rev().copied().collect(), ..setup.clone() };
            assert!(off(&kernel, &wrong) > 1e-3);
            drop((kernel, device, hub));
            let hub = stubbed(api, true, true).unwrap();
            let library = Beams::open(&hub.device(&format!("{api}:0")).unwrap(), &setup).unwrap();
            assert!(library.is_by_library());
            assert!(off(&library, &setup) < 1e-6);
        }
    }

    #[test]
    fn without_library_and_compiler_the_library_is_named() {
        let _alone = one_api();
        let setup =
            Setup::new(Shape { length: 8, channels: 4, beams: 2 }, Interpolator::new(3).unwrap());
        for (api, library) in [("cuda", "cublas"), ("hip", "rocblas")] {
            let Some(hub) = stubbed(api, false, false) else { return };
            let missing =
                Beams::open(&hub.device(&format!("{api}:0")).unwrap(), &setup).err().unwrap();
            assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
            assert!(missing.to_string().to_lowercase().contains(library), "{missing}");
        }
    }
}
