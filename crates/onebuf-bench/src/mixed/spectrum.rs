//! The first stage: every channel delayed, windowed and transformed, in place.

use super::{
    Setup,
    delay::{DelayKernel, Tables},
    has_kernels,
    opencl::FftKernel,
};
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
    /// One kernel of our own does all three.
    Kernel(Box<Fused>),
    Library(DelayKernel),
}

struct Fused {
    fft: FftKernel,
    /// exp(-2 pi i t / length) for every t.
    turns: Buffer<Complex32>,
    tables: Tables,
}

impl Way {
    fn kernel(fft: FftKernel, device: &Device, setup: &Setup) -> Result<Self> {
        let length = setup.shape.length;
        let table = device.hub().buffer(length).shared_with([device]);
        let turns = table.init(turns(length)).build()?;
        Ok(Way::Kernel(Box::new(Fused { fft, turns, tables: Tables::upload(device, setup)? })))
    }
}

impl Spectrum {
    /// Its name.
    pub const NAME: &str = "delay+fft";

    /// Builds the kernel, or finds the library.
    ///
    /// # Errors
    /// The driver's; [`onebuf::Error::Unavailable`] where the library is not installed.
    pub fn open(device: &Device, setup: &Setup) -> Result<Self> {
        let queue = device.queue()?;
        let way = match has_kernels(device) {
            true => Way::kernel(FftKernel::build(device, setup)?, device, setup)?,
            false => {
                // Now, not at the first frame, one learns that it is not installed.
                Fft::on(&queue)?;
                Way::Library(DelayKernel::build(device, setup)?)
            }
        };
        Ok(Self { queue, length: setup.shape.length, way })
    }

    /// OpenCL's kernel in a queue of another API.
    ///
    /// # Errors
    /// The driver's, and those of [`onebuf::Program::graft`].
    pub fn grafted(cl: &Device, queue: &Queue, setup: &Setup) -> Result<Self> {
        let device = queue.device();
        let way = Way::kernel(FftKernel::graft(cl, &device, setup)?, &device, setup)?;
        Ok(Self { queue: queue.clone(), length: setup.shape.length, way })
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
        self.run_on(&self.queue, signal, channels)
    }

    /// The same in another queue of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn run_on(
        &self,
        queue: &Queue,
        signal: &Buffer<Complex32>,
        channels: usize,
    ) -> Result<Rung> {
        let view = signal.write_on(queue)?;
        let rung = view.rung();
        match &self.way {
            Way::Kernel(fused) => {
                let Fused { fft, turns, tables: Tables { places, window } } = &**fused;
                let (turns, places) = (turns.read_on(queue)?, places.read_on(queue)?);
                let args = args![view, turns, places, window.read_on(queue)?];
                queue.launch(fft.kernel(), fft.grid(channels), args)?;
            }
            Way::Library(delay) => {
                delay.run(queue, view, channels)?;
                let plan = Fft1d::forward(self.length, channels);
                Fft::on(queue)?.transform(&plan, &mut signal.write_on(queue)?)?;
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
