//! The first stage: every channel's Fourier transform, in place.

use super::{Shape, has_kernels, opencl::FftKernel};
use onebuf::{
    Buffer, Complex32, Complex64, Device, Queue, Result, Rung, args,
    libs::{Fft, Fft1d},
};
use std::f64::consts::TAU;

/// The stage on its device.
pub struct Spectrum {
    queue: Queue,
    length: usize,
    way: Way,
}

enum Way {
    /// Our own kernel, and exp(-2 pi i t / length) for every t.
    Kernel(FftKernel, Buffer<Complex32>),
    Library(Fft),
}

impl Way {
    fn kernel(fft: FftKernel, device: &Device, length: usize) -> Result<Self> {
        let table = device.hub().buffer(length).shared_with([device]);
        Ok(Way::Kernel(fft, table.init(turns(length)).build()?))
    }
}

impl Spectrum {
    /// Its name.
    pub const NAME: &str = "fft";

    /// Builds the kernel, or finds the library.
    ///
    /// # Errors
    /// The driver's; [`onebuf::Error::Unavailable`] where the library is not installed.
    pub fn open(device: &Device, shape: &Shape) -> Result<Self> {
        let (queue, length) = (device.queue()?, shape.length);
        let way = match has_kernels(device) {
            true => Way::kernel(FftKernel::build(device, length)?, device, length)?,
            false => Way::Library(Fft::on(&queue)?),
        };
        Ok(Self { queue, length, way })
    }

    /// OpenCL's kernel in a queue of another API.
    ///
    /// # Errors
    /// The driver's, and those of [`onebuf::Program::graft`].
    pub fn grafted(cl: &Device, queue: &Queue, shape: &Shape) -> Result<Self> {
        let (queue, length) = (queue.clone(), shape.length);
        let fft = FftKernel::graft(cl, &queue.device(), length)?;
        Ok(Self { way: Way::kernel(fft, &queue.device(), length)?, queue, length })
    }

    /// Its queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Starts it on the first channels, and says how its queue waits for its turn.
    ///
    /// # Errors
    /// The driver's.
    pub fn run(&self, signal: &Buffer<Complex32>, channels: usize) -> Result<Rung> {
        let mut view = signal.write_on(&self.queue)?;
        let rung = view.rung();
        match &self.way {
            Way::Kernel(fft, turns) => {
                let args = args![view, turns.read_on(&self.queue)?];
                self.queue.launch(fft.kernel(), fft.grid(channels), args)?;
            }
            Way::Library(fft) => {
                fft.transform(&Fft1d::forward(self.length, channels), &mut view)?;
            }
        }
        Ok(rung)
    }
}

/// In double precision first: a table is only as good as its numbers.
fn turns(length: usize) -> Vec<Complex32> {
    let turn = |t: usize| Complex64::cis(-TAU * t as f64 / length as f64);
    (0..length).map(turn).map(|w| Complex32::new(w.re as f32, w.im as f32)).collect()
}
