//! Both stages in OpenCL C, for one length of channel and one size of group.
//!
//! # Safety
//! The unsafe calls declare the signatures of the kernels whose text is in this file.

#![allow(unsafe_code)]

use super::Shape;
use onebuf::{
    Access, Call, Complex32, Device, Error, Grid, Kernel, Result, Signature, Source,
    hal::DeviceKind,
};
use std::fmt::Write;

/// Work-items that share one transform, at most. More would leave each too little between two barriers.
const GROUP: usize = 256;

/// On a CPU a group is a loop, and a barrier ends it: few items with much work each.
const CPU_GROUP: usize = 64;

/// Edge of the product's tiles, at most.
const TILE: usize = 16;

/// One pass of Stockham's transform: it sorts while it goes, so nothing is left to be permuted. `p` is the length of
/// the transforms that are done so far. All of a group's values are in its registers between the two barriers, so
/// that one array in local memory is enough.
const FFT_HEAD: &str = "
float2 times(float2 a, float2 b) { return (float2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

void load2(uint m, uint p, float2 *v, local const float2 *x, global const float2 *turns) {
    for (uint b = 0; b < PER / 2; b++) {
        uint i = m + b * GROUP;
        v[2 * b] = x[i];
        v[2 * b + 1] = times(x[i + LEN / 2], turns[(i & (p - 1)) * (LEN / 2 / p)]);
    }
}
void store2(uint m, uint p, const float2 *v, local float2 *x) {
    for (uint b = 0; b < PER / 2; b++) {
        uint i = m + b * GROUP, j = 2 * i - (i & (p - 1));
        x[j] = v[2 * b] + v[2 * b + 1];
        x[j + p] = v[2 * b] - v[2 * b + 1];
    }
}
void load4(uint m, uint p, float2 *v, local const float2 *x, global const float2 *turns) {
    for (uint b = 0; b < PER / 4; b++) {
        uint i = m + b * GROUP;
        float2 w = turns[(i & (p - 1)) * (LEN / 4 / p)], w2 = times(w, w);
        v[4 * b] = x[i];
        v[4 * b + 1] = times(x[i + LEN / 4], w);
        v[4 * b + 2] = times(x[i + LEN / 2], w2);
        v[4 * b + 3] = times(x[i + LEN / 4 * 3], times(w, w2));
    }
}
void store4(uint m, uint p, const float2 *v, local float2 *x) {
    for (uint b = 0; b < PER / 4; b++) {
        uint i = m + b * GROUP, k = i & (p - 1), j = 4 * (i - k) + k;
        float2 s = v[4 * b] + v[4 * b + 2], d = v[4 * b] - v[4 * b + 2];
        float2 t = v[4 * b + 1] + v[4 * b + 3], e = v[4 * b + 1] - v[4 * b + 3];
        e = (float2)(e.y, -e.x);
        x[j] = s + t;
        x[j + p] = d + e;
        x[j + 2 * p] = s - t;
        x[j + 3 * p] = d - e;
    }
}
";

/// Groups go by channel, work-items of a group by sample.
const FFT_START: &str = "
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fft(global float2 *signal, global const float2 *turns) {
    local float2 x[LEN];
    float2 v[PER];
    uint m = get_local_id(0);
    global float2 *channel = signal + get_group_id(0) * LEN;
    for (uint b = 0; b < PER; b++) x[m + b * GROUP] = channel[m + b * GROUP];
    barrier(CLK_LOCAL_MEM_FENCE);
";

const FFT_END: &str =
    "    for (uint b = 0; b < PER; b++) channel[m + b * GROUP] = x[m + b * GROUP];
}
";

/// Each group makes a tile of the result out of tiles of both factors. Past an edge there are zeroes, which change no
/// sum, and nothing is stored.
const BEAMS: &str = "
kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void beams(global const float2 *spectrum, global const float2 *weights, global float2 *out,
           uint length, uint channels, uint beams) {
    local float2 x[TILE][TILE], w[TILE][TILE + 1];
    uint i = get_local_id(0), j = get_local_id(1);
    uint bin = get_group_id(0) * TILE + i, first = get_group_id(1) * TILE, beam = first + j;
    float2 sum = (float2)(0.0f, 0.0f);
    for (uint at = 0; at < channels; at += TILE) {
        bool inside = bin < length && at + j < channels;
        x[j][i] = inside ? spectrum[(size_t)(at + j) * length + bin] : (float2)(0.0f, 0.0f);
        inside = beam < beams && at + i < channels;
        w[j][i] = inside ? weights[(size_t)beam * channels + at + i] : (float2)(0.0f, 0.0f);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < TILE; k++) {
            float2 a = x[k][i], b = w[j][k];
            sum += (float2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (bin < length && beam < beams) out[(size_t)beam * length + bin] = sum;
}
";

/// The transform's kernel, and how many work-items share one.
pub struct FftKernel {
    kernel: Kernel,
    group: usize,
}

impl FftKernel {
    pub fn build(device: &Device, length: usize) -> Result<Self> {
        let group = group(device, length)?;
        let program = device.program(&Source::opencl_c(fft_text(length, group)))?;
        let fits = move |call: &Call<'_>| match call.global() {
            [items, 1, 1] if items / group * length <= call.len(0) && length <= call.len(1) => {
                Ok(())
            }
            _ => Err("more channels than the buffer has, or too few turns".into()),
        };
        let signature = Signature::new().buffer::<Complex32>(Access::ReadWrite);
        let signature = signature.buffer::<Complex32>(Access::Read).require(fits);
        // SAFETY: a group, whose size the text fixes, reads and writes the `length` samples of its own channel, and
        // `fits` lets only launches through of as many groups as there are channels. `turns` is read below
        // `length`, and there are as many. Every loop is bounded by constants.
        let kernel = unsafe { program.kernel("fft", signature)? };
        Ok(Self { kernel, group })
    }

    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub fn grid(&self, channels: usize) -> Grid {
        Grid::from([channels * self.group]).local([self.group])
    }
}

/// A power of two, so that it divides every pass.
fn group(device: &Device, length: usize) -> Result<usize> {
    let info = device.info();
    let needs = (length * size_of::<Complex32>()) as u64;
    if info.caps.local_memory_bytes < needs {
        let what = format!("a transform of {length} samples on {device}");
        return Err(Error::unsupported(what, format!("{needs} bytes of local memory")));
    }
    let most = if info.kind == DeviceKind::Cpu { CPU_GROUP } else { GROUP };
    let most = most.min(info.caps.max_group_size).min(info.caps.max_group_sizes[0]).max(1);
    Ok((1 << most.ilog2()).min((length / 8).max(1)))
}

fn fft_text(length: usize, group: usize) -> String {
    let per = length / group;
    let mut text = format!("#define LEN {length}\n#define GROUP {group}\n#define PER {per}\n");
    text += FFT_HEAD;
    text += FFT_START;
    for (radix, p) in passes(length) {
        let barrier = "barrier(CLK_LOCAL_MEM_FENCE);";
        let _ = writeln!(text, "    load{radix}(m, {p}, v, x, turns);\n    {barrier}");
        let _ = writeln!(text, "    store{radix}(m, {p}, v, x);\n    {barrier}");
    }
    text + FFT_END
}

/// Radix and length so far of each pass: by two where the length is an odd power of two, then by four.
fn passes(length: usize) -> Vec<(usize, usize)> {
    let odd = length.ilog2() % 2 == 1;
    let (mut done, mut passes) = (1, Vec::new());
    while done < length {
        let radix = if odd && done == 1 { 2 } else { 4 };
        passes.push((radix, done));
        done *= radix;
    }
    passes
}

/// The product's kernel, and the edge of its tiles.
pub struct BeamsKernel {
    kernel: Kernel,
    tile: usize,
}

impl BeamsKernel {
    pub fn build(device: &Device) -> Result<Self> {
        let caps = &device.info().caps;
        let most = caps.max_group_size.isqrt().min(caps.max_group_sizes[0]);
        let most = most.min(caps.max_group_sizes[1]).clamp(1, TILE);
        let tile = 1 << most.ilog2();
        let program = device.program(&Source::opencl_c(format!("#define TILE {tile}\n{BEAMS}")))?;
        let fits = |call: &Call<'_>| {
            let number = |index| call.value::<u32>(index).map_or(0, |number| number as usize);
            let [length, channels, beams] = [3, 4, 5].map(number);
            let wanted = [length * channels, channels * beams, length * beams];
            let ok = (0..3).all(|index| (1..=call.len(index)).contains(&wanted[index]));
            if ok { Ok(()) } else { Err("a matrix that is empty or does not fit its view".into()) }
        };
        let signature = Signature::new()
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::Write)
            .value::<u32>()
            .value::<u32>()
            .value::<u32>()
            .require(fits);
        // SAFETY: every index of a matrix is below its size in both directions, which the kernel checks before each
        // access, and `fits` lets only sizes through that the views hold. Products of two 32-bit numbers do not
        // overflow. The loops are bounded by those sizes.
        let kernel = unsafe { program.kernel("beams", signature)? };
        Ok(Self { kernel, tile })
    }

    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub fn grid(&self, shape: &Shape) -> Grid {
        let round = |size: usize| size.next_multiple_of(self.tile);
        Grid::from([round(shape.length), round(shape.beams)]).local([self.tile, self.tile])
    }
}

#[cfg(test)]
mod tests {
    use super::{fft_text, passes};

    #[test]
    fn passes_make_the_length() {
        for log in 1..=11 {
            let product: usize = passes(1 << log).iter().map(|(radix, _)| radix).product();
            assert_eq!(product, 1 << log);
        }
        assert_eq!(passes(32), [(2, 1), (4, 2), (4, 8)]);
        assert!(fft_text(8, 1).contains("load2(m, 1, v, x, turns)"));
    }
}
