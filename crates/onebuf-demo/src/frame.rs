//! Both stages, and the memory of frames.

use crate::{Beams, Setup, Shape, Spectrum};
use onebuf::{Access, Buffer, BufferBuilder, Complex32, Device, Result, SyncMethod};

/// One frame's memory: the buffer that both devices share, and the second device's own for the result.
pub struct Frame {
    /// Samples, then their spectrum.
    pub signal: Buffer<Complex32>,
    /// The result.
    pub beams: Buffer<Complex32>,
}

/// The two stages on their devices.
pub struct Pipeline {
    /// The constants of all frames.
    pub setup: Setup,
    /// The devices of both stages.
    pub devices: [Device; 2],
    /// The compiler of the grafted kernels, if a stage has some.
    pub grafted_from: Option<Device>,
    first: Spectrum,
    second: Beams,
}

impl Pipeline {
    /// The stages' names.
    pub const STAGES: [&str; 2] = [Spectrum::NAME, Beams::NAME];

    /// Builds the kernels, or finds the libraries.
    ///
    /// # Errors
    /// The drivers' errors; [`onebuf::Error::Unavailable`] if a library is not installed.
    pub fn open(devices: &[Device; 2], setup: Setup) -> Result<Self> {
        let [first, second] = devices;
        let (first, second) = (Spectrum::open(first, &setup)?, Beams::open(second, &setup)?);
        Ok(Self { setup, devices: devices.clone(), grafted_from: None, first, second })
    }

    /// Both stages in one queue of the second device: OpenCL's kernels are compiled by the first device and grafted, unless the
    /// second device's library is faster. Both stages then belong to the second device.
    ///
    /// # Errors
    /// As for [`Pipeline::open`], and those of [`onebuf::Program::graft`].
    pub fn grafted([cl, device]: &[Device; 2], setup: Setup) -> Result<Self> {
        let second = Beams::grafted(cl, device, &setup)?;
        let first = Spectrum::grafted(cl, second.queue(), &setup)?;
        let any = !(first.is_by_library() && second.is_by_library());
        let (devices, grafted_from) = ([device.clone(), device.clone()], any.then(|| cl.clone()));
        Ok(Self { setup, devices, grafted_from, first, second })
    }

    /// The device that compiled a stage's kernels, if they are grafted.
    pub fn compiler(&self, stage: usize) -> Option<&Device> {
        let library = [self.first.is_by_library(), self.second.is_by_library()];
        self.grafted_from.as_ref().filter(|_| library.get(stage) == Some(&false))
    }

    /// The dimensions.
    pub fn shape(&self) -> Shape {
        self.setup.shape
    }

    /// The first stage.
    pub fn spectrum(&self) -> &Spectrum {
        &self.first
    }

    /// The second stage.
    pub fn beams(&self) -> &Beams {
        &self.second
    }

    /// Allocates one frame's memory. `builder` configures the shared buffer.
    ///
    /// # Errors
    /// Those of [`BufferBuilder::build`].
    pub fn frame(&self, builder: &BufferBuilder<'_, Complex32>) -> Result<Frame> {
        let second = &self.devices[1];
        let beams = second.hub().buffer(self.shape().results()).shared_with([second]).build()?;
        Ok(Frame { signal: builder.clone().build()?, beams })
    }

    /// Allocates the memory of this many frames.
    ///
    /// # Errors
    /// Those of [`BufferBuilder::build`].
    pub fn frames(
        &self,
        builder: &BufferBuilder<'_, Complex32>,
        count: usize,
    ) -> Result<Vec<Frame>> {
        (0..count).map(|_| self.frame(builder)).collect()
    }

    /// Brings the shared buffers to the first device and waits, so that this is not part of later measurements.
    ///
    /// # Errors
    /// The drivers' errors.
    pub fn prepare(&self, frames: &[Frame]) -> Result<()> {
        for frame in frames {
            drop(frame.signal.write_on(self.first.queue())?);
        }
        self.first.queue().finish()
    }

    /// Runs all frames through the first stage, then all through the second, and waits. On one device the stages take turns
    /// frame by frame: nothing is switched between them, and the second finds the spectrum in the GPU's cache. Returns the lowest sync method by
    /// which each stage waited.
    ///
    /// # Errors
    /// The drivers' errors.
    pub fn run(&self, frames: &[Frame]) -> Result<[SyncMethod; 2]> {
        let mut sync_methods = [SyncMethod::SameQueue; 2];
        let [first, second] = &self.devices;
        let each = if first.index() == second.index() { 1 } else { frames.len().max(1) };
        for frames in frames.chunks(each) {
            for frame in frames {
                let by = self.first.run(&frame.signal, self.shape().channels)?;
                sync_methods[0] = sync_methods[0].max(by);
            }
            if frames.len() > 1 {
                self.leave_first(frames)?;
            }
            for frame in frames {
                let by = self.second.run(&self.setup.product(), &frame.signal, &frame.beams)?;
                sync_methods[1] = sync_methods[1].max(by);
            }
        }
        self.second.queue().finish()?;
        Ok(sync_methods)
    }

    /// Waits so that the GPU switches once for all frames: a GPU that gets work from two APIs at once switches back and forth
    /// between their contexts. The first stage's queue is empty when the second stage begins.
    fn leave_first(&self, frames: &[Frame]) -> Result<()> {
        let first = self.first.queue();
        first.flush()?;
        for frame in frames {
            frame.signal.release_to(&self.devices[1], Access::ReadWrite)?;
        }
        first.finish()
    }

    /// Runs the first stage alone, and waits.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run_first(&self, frame: &Frame) -> Result<()> {
        self.first.run(&frame.signal, self.shape().channels)?;
        self.first.queue().finish()
    }

    /// Runs the second stage alone, and waits.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn run_second(&self, frame: &Frame) -> Result<()> {
        self.second.run(&self.setup.product(), &frame.signal, &frame.beams)?;
        self.second.queue().finish()
    }

    /// Runs the first stage on one channel, and waits: almost only overhead.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn touch_first(&self, frame: &Frame) -> Result<()> {
        self.first.run(&frame.signal, 1)?;
        self.first.queue().finish()
    }

    /// Runs the second stage on one channel, for one beam.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn touch_second(&self, frame: &Frame) -> Result<()> {
        let small = Shape { channels: 1, beams: 1, ..self.shape() };
        self.second.run(&small, &frame.signal, &frame.beams)?;
        self.second.queue().finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pipeline, Setup, Shape};
    use crate::{Expected, Interpolator, setup::noise};
    use onebuf::{Complex32, Device};

    /// Both stages on one device, for odd and even powers of two and sizes that no tile divides.
    fn is_right_on(device: &Device) {
        for (length, channels, beams, order) in
            [(2, 3, 1, 3), (8, 517, 9, 4), (32, 33, 5, 5), (256, 17, 16, 3), (16384, 3, 2, 3)]
        {
            let shape = Shape { length, channels, beams };
            let setup = Setup::new(shape, Interpolator::new(order).unwrap());
            let samples = noise(shape.samples());
            let devices = [device.clone(), device.clone()];
            let pipeline = Pipeline::open(&devices, setup.clone()).unwrap();
            let builder = device.hub().buffer::<Complex32>(samples.len()).shared_with([device]);
            let frames = pipeline.frames(&builder, 2).unwrap();
            frames[1].signal.write(&samples).unwrap();
            pipeline.run(&frames).unwrap();
            let error = |setup: &Setup, frame: usize, input: &[Complex32]| {
                let found = frames[frame].beams.to_vec().unwrap();
                Expected::of(setup, input).max_rel_error(&found)
            };
            assert_eq!(error(&setup, 0, &vec![Complex32::ZERO; samples.len()]), 0.0, "{device}");
            let right = error(&setup, 1, &samples);
            assert!(right < 1e-5, "{shape:?} on {device}: {right}");
            // Controls: a wrong delay of one channel, and a wrong window at one sample, are detected.
            let mut wrong = setup.clone();
            wrong.places[channels / 2].mu += 0.125;
            assert!(error(&wrong, 1, &samples) > 1e-3, "{shape:?} on {device}");
            let mut wrong = setup.clone();
            wrong.window[length / 2] *= 0.5;
            assert!(error(&wrong, 1, &samples) > 1e-3, "{shape:?} on {device}");
        }
    }

    /// On every device of this machine; without OpenCL, on the host's libraries alone.
    #[test]
    fn both_stages_are_right_on_every_device() {
        let hub = onebuf::discover().unwrap();
        is_right_on(&hub.host());
        let opencl = hub.select("opencl");
        if opencl.is_empty() {
            println!("skip: both stages on OpenCL: no device");
        }
        opencl.iter().for_each(is_right_on);
    }
}
