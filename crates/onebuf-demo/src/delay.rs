//! Delay and window as a separate kernel, if a library does the transform.
//!
//! # Safety
//! The unsafe call declares the signature of the kernel whose text is in this file.

#![allow(unsafe_code)]

use crate::{Interpolator, Place, Setup, Shape, dialect::like_cuda};
use onebuf::{
    Access, Buffer, Call, Complex32, Device, Grid, Kernel, Queue, Result, Signature, Source,
    SyncMethod, args, hal::NativeArgs,
};

/// Maximum number of work-items that share a channel.
const GROUP: usize = 256;

/// One sample of a channel, delayed by the taps `h` and windowed. One text for OpenCL, CUDA and HIP.
const DELAYED: &str = "
#define DELAYED(sum, samples, i) \\
    sum.x = 0.0f; \\
    sum.y = 0.0f; \\
    for (uint tap = 0; tap <= ORDER; tap++) \\
        if (i + shift + tap < LEN) { \\
            sum.x += h[tap] * samples[i + shift + tap].x; \\
            sum.y += h[tap] * samples[i + shift + tap].y; \\
        } \\
    sum.x *= window[i]; \\
    sum.y *= window[i];
";

/// The kernel in place: a group loads its whole channel to local memory before it writes.
const WHOLE: &str = "
kernel void delay(global float2 *signal, global const float2 *places, global const float *window) {
    local float2 x[LEN];
    global float2 *channel = signal + (size_t)get_group_id(0) * LEN;
    for (uint b = 0; b < LEN / GROUP; b++)
        x[get_local_id(0) + b * GROUP] = channel[get_local_id(0) + b * GROUP];
    float mu = places[get_group_id(0)].y;
    uint shift = (uint)(int)places[get_group_id(0)].x;
TAPS    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint b = 0; b < LEN / GROUP; b++) {
        uint i = get_local_id(0) + b * GROUP;
        float2 sum;
        DELAYED(sum, x, i)
        channel[i] = sum;
    }
}
";

/// The kernel for channels that are too long for local memory: it writes to other memory.
const LONG: &str = "
kernel void delay(global const float2 *signal, global float2 *out, global const float2 *places,
                  global const float *window) {
    size_t number = get_group_id(0) / (LEN / GROUP);
    uint i = get_group_id(0) % (LEN / GROUP) * GROUP + get_local_id(0);
    global const float2 *channel = signal + number * LEN;
    float mu = places[number].y;
    uint shift = (uint)(int)places[number].x;
TAPS    float2 sum;
    DELAYED(sum, channel, i)
    out[number * LEN + i] = sum;
}
";

/// The kernel, its tables, and its output memory if it does not work in place.
pub struct DelayKernel {
    kernel: Kernel,
    length: usize,
    group: usize,
    tables: Tables,
    scratch: Option<Buffer<Complex32>>,
}

/// The tables that every kernel of the first stage reads, on its device.
pub struct Tables {
    pub places: Buffer<[f32; 2]>,
    pub window: Buffer<f32>,
}

impl Tables {
    pub fn upload(device: &Device, setup: &Setup) -> Result<Self> {
        let places: Vec<_> = setup.places.iter().map(|place| [place.shift, place.mu]).collect();
        let builder = device.hub().buffer(places.len()).shared_with([device]);
        let places = builder.init(places).build()?;
        let builder = device.hub().buffer(setup.window.len()).shared_with([device]);
        Ok(Self { places, window: builder.init(&setup.window).build()? })
    }
}

impl DelayKernel {
    pub fn build(device: &Device, setup: &Setup) -> Result<Self> {
        let length = setup.shape.length;
        let most = GROUP.min(device.info().caps.max_group_size).max(1);
        // Both are powers of two, so that one divides the other.
        let group = (1 << most.ilog2()).min(length);
        // The host has no such limit.
        let long = length > Shape::USUAL && device.info().api.0 != "host";
        let program = device.program(&source(length, group, setup.interpolator, long))?;
        // SAFETY: in place, a group, whose size the grid fixes, reads and writes the `length` samples of its own channel.
        // Otherwise a work-item writes its own sample, to other memory. Both read the one place of their channel. `fits` accepts
        // only launches whose channels are all in the buffers, with a window of `length`. Taps are compared with the channel's
        // ends before they are read.
        let kernel = unsafe { program.kernel("delay", signature(length, group, long))? };
        let builder = device.hub().buffer(setup.shape.samples()).shared_with([device]);
        let scratch = if long { Some(builder.build()?) } else { None };
        Ok(Self { kernel, length, group, tables: Tables::upload(device, setup)?, scratch })
    }

    /// The memory of the delayed samples, if not in place.
    pub fn scratch(&self) -> Option<&Buffer<Complex32>> {
        self.scratch.as_ref()
    }

    /// Launches the kernel on the first channels, and returns the sync method of the queue.
    pub fn run(
        &self,
        queue: &Queue,
        signal: &Buffer<Complex32>,
        channels: usize,
    ) -> Result<SyncMethod> {
        let (places, window) =
            (self.tables.places.read_on(queue)?, self.tables.window.read_on(queue)?);
        let Some(scratch) = &self.scratch else {
            let signal = signal.write_on(queue)?;
            let (sync_method, grid) = (signal.sync_method(), self.grid(channels));
            queue.launch(&self.kernel, grid, args![signal, places, window])?;
            return Ok(sync_method);
        };
        let (from, to) = (signal.read_on(queue)?, scratch.write_on(queue)?);
        let (sync_method, grid) =
            (from.sync_method(), self.grid(channels * (self.length / self.group)));
        queue.launch(&self.kernel, grid, args![from, to, places, window])?;
        Ok(sync_method)
    }

    fn grid(&self, groups: usize) -> Grid {
        Grid::from([groups * self.group]).local([self.group])
    }
}

fn signature(length: usize, group: usize, long: bool) -> Signature {
    let per_channel = if long { length / group } else { 1 };
    let fits = move |call: &Call<'_>| {
        let channels = (call.global()[0] / group).div_ceil(per_channel);
        let samples = [channels * length; 2].into_iter().skip(usize::from(!long));
        let mut wanted = samples.chain([channels, length]).enumerate();
        match wanted.all(|(i, n)| n <= call.len(i)) {
            true => Ok(()),
            false => Err("more channels than the buffer has, or too short a window".into()),
        }
    };
    let signature = Signature::new();
    let signature = match long {
        false => signature.buffer::<Complex32>(Access::ReadWrite),
        true => signature.buffer::<Complex32>(Access::Read).buffer::<Complex32>(Access::Write),
    };
    signature.buffer::<[f32; 2]>(Access::Read).buffer::<f32>(Access::Read).require(fits)
}

fn source(length: usize, group: usize, interpolator: Interpolator, long: bool) -> Source {
    let text = if long { LONG } else { WHOLE };
    let [opencl, like_cuda] = texts(text, length, group, interpolator);
    let source = Source::opencl_c(opencl).with_cuda_c(like_cuda.clone()).with_hip_c(like_cuda);
    source.with_native("delay", move |args| on_the_host(args, length, group, interpolator))
}

/// The kernel's text in OpenCL C, and in CUDA C and HIP C.
fn texts(text: &str, length: usize, group: usize, interpolator: Interpolator) -> [String; 2] {
    let order = interpolator.order();
    let sizes = format!("#define LEN {length}\n#define GROUP {group}\n#define ORDER {order}\n");
    let text = format!("{sizes}{DELAYED}{}", text.replace("TAPS", &interpolator.statements()));
    let like_cuda = like_cuda(&text);
    [text, like_cuda]
}

/// The kernel on the host, channel by channel.
fn on_the_host(
    args: &mut NativeArgs<'_>,
    length: usize,
    group: usize,
    interpolator: Interpolator,
) -> Result<()> {
    let channels = args.global()[0] / group;
    let places = args.slice::<[f32; 2]>(1)?[..channels].to_vec();
    let window = args.slice::<f32>(2)?[..length].to_vec();
    let mut before = vec![Complex32::ZERO; length];
    let signal = args.slice_mut::<Complex32>(0)?.chunks_exact_mut(length);
    for (channel, [shift, mu]) in signal.zip(places) {
        before.copy_from_slice(channel);
        delay(interpolator, Place { shift, mu }, &before, &window, channel);
    }
    Ok(())
}

fn delay(
    with: Interpolator,
    place: Place,
    before: &[Complex32],
    window: &[f32],
    after: &mut [Complex32],
) {
    let taps: Vec<f32> = with.taps(place.mu.into()).into_iter().map(|tap| tap as f32).collect();
    for (number, (out, factor)) in after.iter_mut().zip(window).enumerate() {
        let at = |tap: usize| (number + tap).checked_add_signed(place.shift as isize);
        let term = |(tap, h): (usize, &f32)| Some(before.get(at(tap)?)? * h);
        *out = taps.iter().enumerate().filter_map(term).sum::<Complex32>() * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::{DelayKernel, Setup, WHOLE, texts};
    use crate::{Interpolator, Shape, setup::noise};
    use onebuf::{Complex32, Complex64, Device};

    /// The deviation of the kernel's samples from double precision, relative to the largest.
    fn worst(device: &Device, setup: &Setup) -> f64 {
        let Shape { length, channels, .. } = setup.shape;
        let samples = noise(setup.shape.samples());
        let builder = device.hub().buffer::<Complex32>(samples.len()).shared_with([device]);
        let (signal, queue) = (builder.init(&samples).build().unwrap(), device.queue().unwrap());
        let kernel = DelayKernel::build(device, setup).unwrap();
        kernel.run(&queue, &signal, channels).unwrap();
        let found = kernel.scratch().unwrap_or(&signal).to_vec().unwrap();
        let mut worst = 0.0;
        for (channel, found) in found.chunks(length).enumerate() {
            let wanted = setup.delayed(channel, &samples[channel * length..][..length]);
            let off = |(x, y): (&Complex32, &Complex64)| {
                (Complex64::new(x.re.into(), x.im.into()) - y).norm()
            };
            worst = found.iter().zip(&wanted).map(off).fold(worst, f64::max);
        }
        worst
    }

    /// Long delays in both directions, on every device; every order on the host, one elsewhere, where compilers take
    /// long.
    #[test]
    fn every_device_delays_as_the_reference_does() {
        let hub = onebuf::discover().unwrap();
        for order in Interpolator::ORDERS {
            let with = Interpolator::new(order).unwrap();
            let shape = Shape { length: 64, channels: 9, beams: 1 };
            let mut setup = Setup::new(shape, with);
            setup.places[1] = with.place(40.25);
            setup.places[2] = with.place(-40.75);
            setup.places[3] = with.place(1000.5);
            let opencl = if order == 5 { hub.select("opencl") } else { Vec::new() };
            for device in [hub.host()].iter().chain(&opencl) {
                let error = worst(device, &setup);
                assert!(error < 1e-6, "order {order} on {device}: {error}");
            }
            if let ([cl, ..], 5) = (&opencl[..], order) {
                let long = Shape { length: 4096, channels: 3, beams: 1 };
                let error = worst(cl, &Setup::new(long, with));
                assert!(error < 1e-6, "to other memory on {cl}: {error}");
            }
            let wrong = Setup { places: vec![with.place(0.4); 9], ..setup.clone() };
            let found = setup.delayed(0, &noise(64));
            let control = wrong.delayed(0, &noise(64));
            assert!(found.iter().zip(control).any(|(x, y)| (x - y).norm() > 0.1), "{order}");
        }
    }

    #[test]
    fn cuda_gets_a_text_of_its_own() {
        let [opencl, cuda] = texts(WHOLE, 8, 4, Interpolator::new(5).unwrap());
        assert!(opencl.contains("global float2") && opencl.contains("local float2 x[LEN]"));
        assert!(cuda.contains("__shared__ float2 x[LEN]") && !cuda.contains("global const"));
    }
}
