//! The second stage in OpenCL C, and in CUDA C and HIP C where a library of matrix products is missing.
//!
//! # Safety
//! The unsafe call declares the signature of the kernel whose text is in this file.

#![allow(unsafe_code)]

use crate::{Shape, dialect::like_cuda};
use onebuf::{
    Access, Call, Complex32, Device, Grid, Kernel, Result, Signature, Source, hal::DeviceKind,
};

/// Maximum tile size of the product.
const TILE: usize = 16;

/// Maximum number of strips of a group.
const STRIPS: usize = 16;

/// Channels that are summed separately first. Signals from a beam's direction add up in phase, and a sum that grows by
/// one small term after another loses a digit for every factor of ten in their number.
const BLOCK: usize = 256;

/// Each group computes a tile of the result from tiles of both factors. Beyond the edges tiles are zero, which changes
/// no sum, and nothing is stored. A launch processes the channels `from` to `to`, and adds to the previous result. One text for OpenCL, CUDA
/// and HIP.
const BEAMS_BY_TILE: &str = "
kernel SIZED
void beams(global const float2 *spectrum, global const float2 *weights, global float2 *out,
           uint length, uint channels, uint beams, uint from, uint to) {
    local float2 x[TILE][TILE], w[TILE][TILE + 1];
    uint i = get_local_id(0), j = get_local_id(1);
    uint bin = get_group_id(0) * TILE + i, first = get_group_id(1) * TILE, beam = first + j;
    float2 zero;
    zero.x = 0.0f;
    zero.y = 0.0f;
    float2 sum = zero, part = zero;
    for (uint at = from; at < to; at += TILE) {
        x[j][i] = zero;
        if (bin < length && at + j < to) x[j][i] = spectrum[(size_t)(at + j) * length + bin];
        w[j][i] = zero;
        if (beam < beams && at + i < to) w[j][i] = weights[(size_t)beam * channels + at + i];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < TILE; k++) {
            float2 a = x[k][i], b = w[j][k];
            part.x += a.x * b.x - a.y * b.y;
            part.y += a.x * b.y + a.y * b.x;
        }
        if ((at + TILE) % BLOCK == 0) {
            sum.x += part.x;
            sum.y += part.y;
            part = zero;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (bin >= length || beam >= beams) return;
    size_t place = (size_t)beam * length + bin;
    float2 before = zero;
    if (from > 0) before = out[place];
    sum.x += before.x + part.x;
    sum.y += before.y + part.y;
    out[place] = sum;
}
";

/// The variant for CPUs, where local memory is no faster than other memory and a barrier ends a loop: each work-item
/// computes `STRIP` bins of `AT_ONCE` beams in registers. Beams past the last one are computed twice and not stored.
/// Clover's compiler takes neither `vload16` nor an array of pointers; buffers are aligned to more than a `float16`.
const BEAMS_BY_STRIP: &str = "
kernel void beams(global const float16 *spectrum, global const float2 *weights, global float16 *out,
                  uint length, uint channels, uint beams, uint from, uint to) {
    size_t strip = get_global_id(0), first = get_global_id(1) * AT_ONCE, strips = length / STRIP;
    size_t row[AT_ONCE];
    float16 sum[AT_ONCE], part[AT_ONCE];
    for (uint b = 0; b < AT_ONCE; b++) {
        row[b] = min(first + b, (size_t)beams - 1) * channels;
        sum[b] = (float16)(0.0f);
    }
    float16 sign = (float16)(-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1);
    for (uint at = from; at < to; at += BLOCK) {
        for (uint b = 0; b < AT_ONCE; b++) part[b] = (float16)(0.0f);
        for (uint c = at; c < min(at + BLOCK, to); c++) {
            float16 a = spectrum[c * strips + strip], turned = sign * a.s1032547698badcfe;
            for (uint b = 0; b < AT_ONCE; b++) {
                float2 w = weights[row[b] + c];
                part[b] += a * w.x + turned * w.y;
            }
        }
        for (uint b = 0; b < AT_ONCE; b++) sum[b] += part[b];
    }
    for (uint b = 0; b < AT_ONCE && first + b < beams; b++) {
        size_t place = (first + b) * strips + strip;
        out[place] = from > 0 ? out[place] + sum[b] : sum[b];
    }
}
";

/// Complex numbers of a `float16`.
const STRIP: usize = 8;

/// Numbers of channels stay below this, so that no sum of two of them overflows 32 bits.
const MOST_CHANNELS: usize = 1 << 31;

/// Beams per work-item: as many sums as registers hold.
const AT_ONCE: usize = 8;

/// Whether the stages are our own kernels on this device.
pub fn has_kernels(device: &Device) -> bool {
    device.info().api.0 == "opencl"
}

/// Whether the device compiles the product's kernel, if its library is missing.
pub fn has_spare_kernel(device: &Device) -> bool {
    ["cuda", "hip"].contains(&device.info().api.0)
}

/// The product's kernel, and how its work-items divide the result.
pub struct BeamsKernel {
    kernel: Kernel,
    cut: Cut,
    /// Maximum number of channels per launch.
    slice: usize,
}

/// Channels per launch. Some drivers leave all loops of a work-item after a number of iterations, and the beams would
/// be wrong. A channel takes one iteration, and may take one for each beam and one for leaving the loop over them,
/// depending on whether the compiler unrolls that loop (of Mesa's two, rusticl does and clover does not).
fn slice(most_iterations: Option<u32>) -> usize {
    let Some(most) = most_iterations else { return MOST_CHANNELS };
    let (channel, block) = (AT_ONCE + 2, 2 * (AT_ONCE + 1) + 2);
    let blocks = (most as usize).saturating_sub(block) / (channel * BLOCK + block);
    blocks.max(1) * BLOCK
}

enum Cut {
    /// Square groups of this size, one number per work-item.
    Tiles(usize),
    /// Linear groups of this size, one strip per work-item.
    Strips(usize),
}

impl BeamsKernel {
    pub fn build(device: &Device, length: usize) -> Result<Self> {
        let cut = Cut::of(device, length);
        let slice = slice(device.info().caps.max_loop_iterations);
        let program = device.program(&cut.source())?;
        let strips = matches!(cut, Cut::Strips(_));
        let fits = move |call: &Call<'_>| {
            let number = |index| call.value::<u32>(index).map_or(0, |number| number as usize);
            let [length, channels, beams, from, to] = [3, 4, 5, 6, 7].map(number);
            let slice = from <= to && to <= channels && channels < MOST_CHANNELS;
            let wanted = [length * channels, channels * beams, length * beams];
            let held = (0..3).all(|index| (1..=call.len(index)).contains(&wanted[index]));
            let [wide, _, deep] = call.global();
            let whole = length % STRIP == 0 && wide * STRIP <= length && deep == 1;
            match held && slice && (!strips || whole) {
                true => Ok(()),
                false => Err("a matrix that is empty, or more than its views hold".into()),
            }
        };
        let signature = Signature::new()
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::ReadWrite)
            .value::<u32>()
            .value::<u32>()
            .value::<u32>()
            .value::<u32>()
            .value::<u32>()
            .require(fits);
        // SAFETY: by `fits`, the views hold matrices of these sizes. The kernel by tiles compares each index with its size before
        // it uses it. In the kernel by strips, bin indices are below the length by `fits`, and buffers are aligned as vectors
        // are; channel indices are bounded by the loops, and beam indices by `min` and by the end of the last loop. Products of
        // two 32-bit numbers and sums of channels do not overflow. Loops are bounded by the sizes.
        let kernel = unsafe { program.kernel("beams", signature)? };
        Ok(Self { kernel, cut, slice })
    }

    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The range of channels of each launch, in order.
    pub fn slices(&self, channels: usize) -> impl Iterator<Item = [u32; 2]> {
        let (slice, end) = (self.slice, channels as u32);
        (0..channels).step_by(slice).map(move |from| [from as u32, end.min((from + slice) as u32)])
    }

    pub fn grid(&self, shape: &Shape) -> Grid {
        let Shape { length, beams, .. } = *shape;
        match self.cut {
            Cut::Tiles(edge) => {
                let [wide, high] = [length, beams].map(|size| size.next_multiple_of(edge));
                Grid::from([wide, high]).local([edge, edge])
            }
            Cut::Strips(group) => {
                Grid::from([length / STRIP, beams.div_ceil(AT_ONCE)]).local([group, 1])
            }
        }
    }
}

impl Cut {
    fn of(device: &Device, length: usize) -> Self {
        let info = device.info();
        let [wide, high, _] = info.caps.max_group_sizes;
        let power_below = |most: usize| 1 << most.max(1).ilog2();
        if has_kernels(device) && info.kind == DeviceKind::Cpu && length >= STRIP {
            let most = info.caps.max_group_size.min(wide).min(STRIPS);
            return Cut::Strips(power_below(most).min(length / STRIP));
        }
        Cut::Tiles(power_below(info.caps.max_group_size.isqrt().min(wide).min(high).min(TILE)))
    }

    fn source(&self) -> Source {
        match self {
            Cut::Tiles(edge) => {
                let text = format!("#define TILE {edge}\n#define BLOCK {BLOCK}u\n{BEAMS_BY_TILE}");
                let sized = |by: &str| format!("#define SIZED {by}\n");
                let bounds = sized("__launch_bounds__(TILE * TILE)") + &like_cuda(&text);
                let group = sized("__attribute__((reqd_work_group_size(TILE, TILE, 1)))");
                Source::opencl_c(group + &text).with_cuda_c(bounds.clone()).with_hip_c(bounds)
            }
            Cut::Strips(_) => {
                let sizes = format!("#define STRIP {STRIP}\n#define AT_ONCE {AT_ONCE}\n");
                Source::opencl_c(format!("{sizes}#define BLOCK {BLOCK}u\n{BEAMS_BY_STRIP}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::slice;
    use crate::{Expected, Interpolator, Pipeline, Setup, Shape, setup::noise};
    use onebuf::{Complex32, Device};

    /// The error of the beams that both stages compute on a device.
    fn off(device: &Device, shape: Shape) -> f64 {
        let setup = Setup::new(shape, Interpolator::new(3).unwrap());
        let pipeline = Pipeline::open(&[device.clone(), device.clone()], setup.clone()).unwrap();
        let builder = device.hub().buffer::<Complex32>(shape.samples()).shared_with([device]);
        let frames = pipeline.frames(&builder, 1).unwrap();
        let samples = noise(shape.samples());
        frames[0].signal.write(&samples).unwrap();
        // The previous contents must not be part of a sum.
        frames[0].beams.write(&vec![Complex32::new(1e9, 1e9); shape.results()]).unwrap();
        pipeline.run(&frames).unwrap();
        Expected::of(&setup, &samples).max_rel_error(&frames[0].beams.to_vec().unwrap())
    }

    /// More channels than a gigabyte has at the usual length, in four megabytes and (by tiles) in one. Mesa's drivers
    /// for CPUs leave loops after 65,535 iterations.
    #[test]
    fn beams_of_many_channels_are_right() {
        let hub = onebuf::discover().unwrap();
        let devices = hub.select("opencl");
        if devices.is_empty() {
            println!("skip: beams of many channels: no OpenCL device");
            assert!(!std::env::var("ONEBUF_STRICT").is_ok_and(|set| set != "0"), "strict");
        }
        for device in &devices {
            for (length, channels) in [(8, 70_001), (2, 1 << 16)] {
                let off = off(device, Shape { length, channels, beams: 9 });
                assert!(off < 1e-5, "{device}, {channels} channels of {length}: {off}");
            }
        }
    }

    #[test]
    fn launches_stay_below_the_limit() {
        assert_eq!((slice(Some(0xffff)), slice(Some(1))), (6400, 256));
        assert!(slice(None) > 1 << 30);
    }
}
