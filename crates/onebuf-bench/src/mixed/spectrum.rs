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

impl Spectrum {
    /// Its name.
    pub const NAME: &str = "fft";

    /// Builds the kernel, or finds the library.
    ///
    /// # Errors
    /// The driver's; [`onebuf::Error::Unavailable`] where the library is not installed.
    pub fn open(device: &Device, shape: &Shape) -> Result<Self> {
        let (queue, length) = (device.queue()?, shape.length);
        let way = if has_kernels(device) {
            let table = device.hub().buffer(length).shared_with([device]);
            Way::Kernel(FftKernel::build(device, length)?, table.init(turns(length)).build()?)
        } else {
            Way::Library(Fft::on(&queue)?)
        };
        Ok(Self { queue, length, way })
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
