//! Both stages in OpenCL C, for one length of channel and one size of group.
//!
//! # Safety
//! The unsafe calls declare the signatures of the kernels whose text is in this file.

#![allow(unsafe_code)]

use super::{Interpolator, Setup, Shape};
use onebuf::{
    Access, Call, Complex32, Device, Error, Grid, Kernel, Program, Result, Signature, Source,
    hal::DeviceKind,
};
use std::fmt::Write;

/// Work-items that share one transform, at most. More would leave each too little between two barriers.
const GROUP: usize = 256;

/// On a CPU a group is a loop, and a barrier ends it: few items with much work each.
const CPU_GROUP: usize = 64;

/// Edge of the product's tiles, at most.
const TILE: usize = 16;

/// Strips of a group, at most.
const STRIPS: usize = 16;

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

/// What the first pass loads in place of the samples: those delayed, by the taps `h`, and windowed. A channel is in local
/// memory by then, so this costs no access to global memory and no barrier. Where `at` would be negative it wraps
/// around, beyond the end: there is silence on both sides. In the first pass there is nothing to turn.
const FFT_DELAY: &str = "
float2 delayed(uint i, const float *h, uint shift, local const float2 *x, global const float *window) {
    float2 sum = (float2)(0.0f, 0.0f);
    UNROLL
    for (uint tap = 0; tap <= ORDER; tap++)
        if (i + shift + tap < LEN) sum += h[tap] * x[i + shift + tap];
    return window[i] * sum;
}
void first(uint radix, uint m, float2 *v, const float *h, uint shift, local const float2 *x,
           global const float *window) {
    UNROLL
    for (uint b = 0; b < PER / radix; b++)
        UNROLL
        for (uint part = 0; part < radix; part++)
            v[radix * b + part] = delayed(m + b * GROUP + LEN / radix * part, h, shift, x, window);
}
";

/// Groups go by channel, work-items of a group by sample.
const FFT_START: &str = "
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fft(global float2 *signal, global const float2 *turns, global const float2 *places,
         global const float *window) {
    local float2 x[LEN];
    float2 v[PER];
    uint m = get_local_id(0);
    global float2 *channel = signal + get_group_id(0) * LEN;
    for (uint b = 0; b < PER; b++) x[m + b * GROUP] = channel[m + b * GROUP];
    float mu = places[get_group_id(0)].y;
    uint shift = (uint)(int)places[get_group_id(0)].x;
";

const BARRIER: &str = "    barrier(CLK_LOCAL_MEM_FENCE);\n";

const FFT_END: &str =
    "    for (uint b = 0; b < PER; b++) channel[m + b * GROUP] = x[m + b * GROUP];
}
";

/// Channels that are summed up by themselves first. What a beam looks at adds up in phase, and a sum that grows by one
/// small term after the other loses a digit for every factor of ten in their number.
const BLOCK: usize = 256;

/// Each group makes a tile of the result out of tiles of both factors. Past an edge there are zeroes, which change no
/// sum, and nothing is stored.
const BEAMS_BY_TILE: &str = "
kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void beams(global const float2 *spectrum, global const float2 *weights, global float2 *out,
           uint length, uint channels, uint beams) {
    local float2 x[TILE][TILE], w[TILE][TILE + 1];
    uint i = get_local_id(0), j = get_local_id(1);
    uint bin = get_group_id(0) * TILE + i, first = get_group_id(1) * TILE, beam = first + j;
    float2 sum = (float2)(0.0f, 0.0f), part = sum;
    for (uint at = 0; at < channels; at += TILE) {
        bool inside = bin < length && at + j < channels;
        x[j][i] = inside ? spectrum[(size_t)(at + j) * length + bin] : (float2)(0.0f, 0.0f);
        inside = beam < beams && at + i < channels;
        w[j][i] = inside ? weights[(size_t)beam * channels + at + i] : (float2)(0.0f, 0.0f);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < TILE; k++) {
            float2 a = x[k][i], b = w[j][k];
            part += (float2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
        }
        if ((at + TILE) % BLOCK == 0) {
            sum += part;
            part = (float2)(0.0f, 0.0f);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (bin < length && beam < beams) out[(size_t)beam * length + bin] = sum + part;
}
";

/// The same for CPUs, where local memory is no faster than any other and a barrier ends a loop: each work-item makes
/// `STRIP` bins of `AT_ONCE` beams, in registers. Beams past the last one are computed twice and not stored. Clover's
/// compiler takes neither `vload16` nor an array of pointers; buffers are aligned to more than a `float16`.
const BEAMS_BY_STRIP: &str = "
kernel void beams(global const float16 *spectrum, global const float2 *weights, global float16 *out,
                  uint length, uint channels, uint beams) {
    size_t strip = get_global_id(0), first = get_global_id(1) * AT_ONCE, strips = length / STRIP;
    size_t row[AT_ONCE];
    float16 sum[AT_ONCE], part[AT_ONCE];
    for (uint b = 0; b < AT_ONCE; b++) {
        row[b] = min(first + b, (size_t)beams - 1) * channels;
        sum[b] = (float16)(0.0f);
    }
    float16 sign = (float16)(-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1);
    for (uint at = 0; at < channels; at += BLOCK) {
        for (uint b = 0; b < AT_ONCE; b++) part[b] = (float16)(0.0f);
        for (uint c = at; c < min(at + BLOCK, channels); c++) {
            float16 a = spectrum[c * strips + strip], turned = sign * a.s1032547698badcfe;
            for (uint b = 0; b < AT_ONCE; b++) {
                float2 w = weights[row[b] + c];
                part[b] += a * w.x + turned * w.y;
            }
        }
        for (uint b = 0; b < AT_ONCE; b++) sum[b] += part[b];
    }
    for (uint b = 0; b < AT_ONCE && first + b < beams; b++)
        out[(first + b) * strips + strip] = sum[b];
}
";

/// Complex numbers of a `float16`.
const STRIP: usize = 8;

/// Beams per work-item: as many sums as registers hold.
const AT_ONCE: usize = 8;

/// The transform's kernel, and how many work-items share one.
pub struct FftKernel {
    kernel: Kernel,
    group: usize,
}

impl FftKernel {
    pub fn build(device: &Device, setup: &Setup) -> Result<Self> {
        let (program, group) = Self::program(device, setup)?;
        Self::of(&program, setup.shape.length, group)
    }

    /// Built by one device for a queue of another's.
    pub fn graft(cl: &Device, device: &Device, setup: &Setup) -> Result<Self> {
        let (program, group) = Self::program(cl, setup)?;
        Self::of(&program.graft(device)?, setup.shape.length, group)
    }

    fn program(device: &Device, setup: &Setup) -> Result<(Program, usize)> {
        let length = setup.shape.length;
        let group = group(device, length)?;
        // All of a work-item's values are in registers, if only the compiler sees every index. CPUs have too few.
        let unroll = device.info().kind != DeviceKind::Cpu;
        let text = fft_text(length, group, setup.interpolator, unroll);
        Ok((device.program(&Source::opencl_c(text))?, group))
    }

    fn of(program: &Program, length: usize, group: usize) -> Result<Self> {
        let fits = move |call: &Call<'_>| match call.global() {
            [items, 1, 1] => {
                let channels = items / group;
                let wanted = [channels * length, length, channels, length];
                let held = wanted.into_iter().enumerate().all(|(i, n)| n <= call.len(i));
                if held { Ok(()) } else { Err("more than a buffer or a table has".into()) }
            }
            _ => Err("channels go along one dimension".into()),
        };
        let signature = Signature::new()
            .buffer::<Complex32>(Access::ReadWrite)
            .buffer::<Complex32>(Access::Read)
            .buffer::<[f32; 2]>(Access::Read)
            .buffer::<f32>(Access::Read)
            .require(fits);
        // SAFETY: a group, whose size the text fixes, reads and writes the `length` samples of its own channel, and
        // reads its one place; `fits` lets only launches through of as many groups as there are of both. `turns` and
        // `window` are read below `length`, and there are as many. Taps are held against the channel's ends before
        // they are read. Every loop is bounded by constants.
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

fn fft_text(length: usize, group: usize, interpolator: Interpolator, unroll: bool) -> String {
    let (per, order) = (length / group, interpolator.order());
    let mut text = format!("#define LEN {length}\n#define GROUP {group}\n#define PER {per}\n");
    let unroll = if unroll { "_Pragma(\"unroll\")" } else { "" };
    text += &format!("#define ORDER {order}\n#define UNROLL {unroll}\n");
    text += &format!("{FFT_HEAD}{FFT_DELAY}{FFT_START}");
    text += &interpolator.statements();
    for (radix, p) in passes(length) {
        let load = match p {
            1 => format!("first({radix}, m, v, h, shift, x, window);"),
            _ => format!("load{radix}(m, {p}, v, x, turns);"),
        };
        let _ = writeln!(text, "{BARRIER}    {load}");
        let _ = writeln!(text, "{BARRIER}    store{radix}(m, {p}, v, x);");
    }
    text + BARRIER + FFT_END
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

/// The product's kernel, and how its work-items divide the result.
pub struct BeamsKernel {
    kernel: Kernel,
    cut: Cut,
}

enum Cut {
    /// Groups of so many by as many, one number each.
    Tiles(usize),
    /// Groups of so many in a row, each a strip.
    Strips(usize),
}

impl BeamsKernel {
    pub fn build(device: &Device, length: usize) -> Result<Self> {
        let cut = Cut::of(device, length);
        let program = device.program(&Source::opencl_c(cut.text()))?;
        let strips = matches!(cut, Cut::Strips(_));
        let fits = move |call: &Call<'_>| {
            let number = |index| call.value::<u32>(index).map_or(0, |number| number as usize);
            let [length, channels, beams] = [3, 4, 5].map(number);
            let wanted = [length * channels, channels * beams, length * beams];
            let held = (0..3).all(|index| (1..=call.len(index)).contains(&wanted[index]));
            let [wide, _, deep] = call.global();
            let whole = length % STRIP == 0 && wide * STRIP <= length && deep == 1;
            match held && (!strips || whole) {
                true => Ok(()),
                false => Err("a matrix that is empty, or more than its views hold".into()),
            }
        };
        let signature = Signature::new()
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::Read)
            .buffer::<Complex32>(Access::Write)
            .value::<u32>()
            .value::<u32>()
            .value::<u32>()
            .require(fits);
        // SAFETY: the views hold matrices of these sizes, by `fits`. By tiles, each index is held against its size
        // before it is used. By strips, those of bins are below the length by `fits` (and buffers are aligned as vectors are), those of channels by the loops,
        // those of beams by `min` and by the last loop's end. Products of two 32-bit numbers do not overflow, and
        // the loops are bounded by the sizes.
        let kernel = unsafe { program.kernel("beams", signature)? };
        Ok(Self { kernel, cut })
    }

    pub fn kernel(&self) -> &Kernel {
        &self.kernel
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
        if info.kind == DeviceKind::Cpu && length >= STRIP {
            let most = info.caps.max_group_size.min(wide).min(STRIPS);
            return Cut::Strips(power_below(most).min(length / STRIP));
        }
        Cut::Tiles(power_below(info.caps.max_group_size.isqrt().min(wide).min(high).min(TILE)))
    }

    fn text(&self) -> String {
        match self {
            Cut::Tiles(edge) => {
                format!("#define TILE {edge}\n#define BLOCK {BLOCK}u\n{BEAMS_BY_TILE}")
            }
            Cut::Strips(_) => {
                let sizes = format!("#define STRIP {STRIP}\n#define AT_ONCE {AT_ONCE}\n");
                format!("{sizes}#define BLOCK {BLOCK}u\n{BEAMS_BY_STRIP}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Interpolator, fft_text, passes};

    #[test]
    fn passes_make_the_length() {
        for log in 1..=11 {
            let product: usize = passes(1 << log).iter().map(|(radix, _)| radix).product();
            assert_eq!(product, 1 << log);
        }
        assert_eq!(passes(32), [(2, 1), (4, 2), (4, 8)]);
        let text = fft_text(8, 1, Interpolator::new(3).unwrap(), true);
        assert!(text.contains("first(2, m, v, h, shift, x, window)"), "{text}");
        assert!(text.contains("load4(m, 2, v, x, turns)"), "{text}");
        assert!(text.contains("_Pragma"), "{text}");
    }
}
