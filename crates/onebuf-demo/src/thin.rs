//! The second stage for GPUs: a product with few columns, by registers.
//!
//! ```text
//!   SLICES * BLOCK channels at a time ──each group: BLOCK channels, 2 GROUP bins, BEAMS beams──► SLICES partial results ──► their sum
//! ```
//!
//! The result of a product with a few beams is small: one number a work-item would leave most of a GPU without work. So channels are
//! divided, too. A work-item has the sums of two bins of eight beams in registers, and reads each sample once for all of them.
//!
//! # Safety
//! The unsafe calls declare the signatures of the kernels whose text is in this file.

#![allow(unsafe_code)]

use crate::Shape;
use onebuf::{
    Access, Buffer, Call, Complex32, Device, Error, Grid, Kernel, MemoryKind, Queue, ReadView,
    Result, Signature, Source, WriteView, args, hal::DeviceKind,
};

/// Work-items of a group.
const GROUP: usize = 256;
/// Work-items of a group that sums up: many small groups use all multiprocessors.
const FEW: usize = 64;
/// Beams of a work-item: as many sums as leave room for three groups on a multiprocessor of an H200.
const BEAMS: usize = 8;
/// Channels of a group, whose weights it has in local memory. Also, sums do not grow by more than this many small terms one after another.
const BLOCK: usize = 64;
/// Maximum number of partial results: four groups or more for each multiprocessor of a large GPU, and little to sum up.
const SLICES: usize = 32;

/// Beyond the edges weights are zero, bins and channels are ones that exist, and nothing is stored. The loop over channels has a constant
/// number of rounds: NVIDIA's compiler then loads ahead, which makes it a third faster.
const TEXT: &str = "
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void products(global const float4 *restrict spectrum, global const float2 *restrict weights, global float4 *restrict parts,
              uint length, uint channels, uint beams, uint first) {
    local float4 w[BLOCK * BEAMS / 2];
    uint pairs = length / 2, pair = get_global_id(0), beam = (uint)get_group_id(2) * BEAMS;
    uint at = first + (uint)get_group_id(1) * BLOCK;
    for (uint i = get_local_id(0); i < BLOCK * BEAMS; i += GROUP) {
        uint b = i / BLOCK, c = i % BLOCK;
        bool known = beam + b < beams && at + c < channels;
        ((local float2 *)w)[c * BEAMS + b] =
            known ? weights[(size_t)(beam + b) * channels + at + c] : (float2)(0.0f, 0.0f);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    global const float4 *x = spectrum + min(pair, pairs - 1);
    float4 own[BEAMS];
    _Pragma(\"unroll\")
    for (uint b = 0; b < BEAMS; b++) own[b] = (float4)(0.0f);
    _Pragma(\"unroll 8\")
    for (uint c = 0; c < BLOCK; c++) {
        float4 a = x[(size_t)min(at + c, channels - 1) * pairs];
        float4 turned = (float4)(-a.y, a.x, -a.w, a.z);
        _Pragma(\"unroll\")
        for (uint b = 0; b < BEAMS; b += 2) {
            float4 two = w[(c * BEAMS + b) / 2];
            own[b] = fma(turned, (float4)(two.y), fma(a, (float4)(two.x), own[b]));
            own[b + 1] = fma(turned, (float4)(two.w), fma(a, (float4)(two.z), own[b + 1]));
        }
    }
    global float4 *part = parts + ((size_t)get_group_id(1) * beams + beam) * pairs + pair;
    _Pragma(\"unroll\")
    for (uint b = 0; b < BEAMS; b++)
        if (pair < pairs && beam + b < beams) part[(size_t)b * pairs] = own[b];
}

/* The first launch for a product ignores the previous result, the others add to it. */
kernel void total(global const float4 *restrict parts, global float4 *restrict out, uint pairs, uint slices,
                  uint first) {
    uint i = get_global_id(0);
    if (i >= pairs) return;
    float4 sum = first > 0 ? out[i] : (float4)(0.0f);
    _Pragma(\"unroll 16\")
    for (uint slice = 0; slice < slices; slice++) sum += parts[(size_t)slice * pairs + i];
    out[i] = sum;
}
";

/// The two kernels, and the memory of the partial results.
pub struct ThinProduct {
    products: Kernel,
    total: Kernel,
    parts: Buffer<Complex32>,
}

/// The first channel of each round of launches, and the number of its blocks.
fn rounds(channels: usize) -> impl Iterator<Item = [usize; 2]> {
    let firsts = (0..channels).step_by(SLICES * BLOCK);
    firsts.map(move |first| [first, (channels - first).div_ceil(BLOCK).min(SLICES)])
}

impl ThinProduct {
    /// Whether the device's groups are large enough. A CPU has too few registers.
    pub fn suits(device: &Device, shape: &Shape) -> bool {
        let (kind, caps) = (device.info().kind, &device.info().caps);
        let group = caps.max_group_size.min(caps.max_group_sizes[0]);
        let local = caps.local_memory_bytes as usize >= BLOCK * BEAMS * size_of::<Complex32>();
        let plain = kind != DeviceKind::Cpu && caps.max_loop_iterations.is_none();
        plain && group >= GROUP && local && shape.length.is_multiple_of(2)
    }

    /// Builds the kernels, if they suit the compiler's device. `compiler` is the device, or the device whose kernels are grafted onto it.
    pub fn of(compiler: &Device, device: &Device, shape: &Shape) -> Result<Self> {
        match Self::suits(compiler, shape) {
            true => Self::build(compiler, device, shape),
            false => Err(Error::unsupported(
                format!("a product of {shape:?} in registers on {compiler}"),
                "a GPU with groups of 256 work-items, and an even length",
            )),
        }
    }

    fn build(compiler: &Device, device: &Device, shape: &Shape) -> Result<Self> {
        let sizes = [("GROUP", GROUP), ("BEAMS", BEAMS), ("BLOCK", BLOCK)];
        let sizes = sizes.map(|(name, value)| format!("#define {name} {value}u\n")).concat();
        let program = compiler.program(&Source::opencl_c(format!("{sizes}{TEXT}")))?;
        // SAFETY: by `products_signature`, the views have matrices of these sizes, and the partial results have room for each block
        // of the grid. Indices of pairs, channels and beams are limited or compared before anything is loaded or stored.
        // Buffers are aligned as vectors are. Loops are bounded by constants.
        let products = unsafe { program.kernel("products", products_signature())? };
        // SAFETY: a work-item reads and writes the pair of its number, which is below their number; by `total_signature` the views have as many.
        let total = unsafe { program.kernel("total", total_signature())? };
        if compiler.index() != device.index() {
            products.graft(device)?;
            total.graft(device)?;
        }
        let parts = shape.results() * shape.channels.div_ceil(BLOCK).min(SLICES);
        let parts = device.hub().buffer(parts.max(1));
        let parts = parts.shared_with([device]).memory_kind(MemoryKind::Device).build()?;
        Ok(Self { products, total, parts })
    }

    /// Launches both kernels.
    pub fn run(
        &self,
        queue: &Queue,
        shape: &Shape,
        [x, w]: [&ReadView<'_, Complex32>; 2],
        out: &mut WriteView<'_, Complex32>,
    ) -> Result<()> {
        let [length, channels, beams] = [shape.length, shape.channels, shape.beams];
        let pairs = length * beams / 2;
        let [l, c, b, p] = [length, channels, beams, pairs].map(|size| size as u32);
        let mut parts = self.parts.write_on(queue)?;
        for [first, blocks] in rounds(channels) {
            let grid = [(length / 2).next_multiple_of(GROUP), blocks, beams.div_ceil(BEAMS)];
            let (grid, first) = (Grid::from(grid).local([GROUP, 1, 1]), first as u32);
            queue.launch(&self.products, grid, args![x, w, &mut parts, l, c, b, first])?;
            let grid = Grid::from([pairs.next_multiple_of(FEW)]).local([FEW]);
            let args = args![&mut parts, &mut *out, p, blocks as u32, first];
            queue.launch(&self.total, grid, args)?;
        }
        Ok(())
    }
}

fn number(call: &Call<'_>, index: usize) -> usize {
    call.value::<u32>(index).map_or(0, |number| number as usize)
}

fn products_signature() -> Signature {
    let fits = |call: &Call<'_>| {
        let [length, channels, beams, first] = [3, 4, 5, 6].map(|index| number(call, index));
        let blocks = call.global()[1];
        let wanted = [length * channels, channels * beams, length * beams * blocks];
        let held = (0..3).all(|index| (1..=call.len(index)).contains(&wanted[index]));
        let last = u32::try_from(first + blocks * BLOCK);
        let whole = length % 2 == 0 && channels < 1 << 31 && last.is_ok();
        check(held && whole)
    };
    let signature = Signature::new()
        .buffer::<Complex32>(Access::Read)
        .buffer::<Complex32>(Access::Read)
        .buffer::<Complex32>(Access::Write);
    let signature = signature.value::<u32>().value::<u32>().value::<u32>().value::<u32>();
    signature.require(fits)
}

fn total_signature() -> Signature {
    let fits = |call: &Call<'_>| {
        let [pairs, slices] = [2, 3].map(|index| number(call, index));
        check(2 * pairs * slices <= call.len(0) && 2 * pairs <= call.len(1))
    };
    let signature =
        Signature::new().buffer::<Complex32>(Access::Read).buffer::<Complex32>(Access::ReadWrite);
    signature.value::<u32>().value::<u32>().value::<u32>().require(fits)
}

fn check(fits: bool) -> Result<(), String> {
    if fits { Ok(()) } else { Err("a matrix that is empty, or more than its views hold".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{double, noise};
    use onebuf::Complex64;

    /// The product in double precision.
    fn expected(shape: &Shape, x: &[Complex32], w: &[Complex32]) -> Vec<Complex64> {
        let Shape { length, channels, .. } = *shape;
        let sum = |at: usize| {
            let (beam, bin) = (at / length, at % length);
            let term = |c: usize| double(x[c * length + bin]) * double(w[beam * channels + c]);
            (0..channels).map(term).sum()
        };
        (0..shape.results()).map(sum).collect()
    }

    /// The largest deviation, relative to the root of the number of terms.
    fn off(shape: &Shape, found: &[Complex32], expected: &[Complex64]) -> f64 {
        let off =
            found.iter().zip(expected).map(|(found, wanted)| (double(*found) - wanted).norm());
        off.fold(0.0, f64::max) / (shape.channels as f64).sqrt()
    }

    /// On CPUs, where the kernels are right as well: edges in every dimension, one block and many, several rounds.
    #[test]
    fn products_are_right() {
        let hub = onebuf::discover().unwrap();
        let suited = |device: &Device| device.info().caps.max_loop_iterations.is_none();
        let Some(device) = hub.select("opencl").into_iter().find(suited) else {
            println!("skip: products in registers: no OpenCL device without a limit of iterations");
            return;
        };
        for [length, channels, beams] in [[2, 3, 1], [8, 517, 9], [1026, 64, 8], [16, 4100, 17]] {
            let shape = Shape { length, channels, beams };
            let (x, w) = (noise(shape.samples()), noise(channels * beams));
            let memory = |len| hub.buffer::<Complex32>(len).shared_with([&device]);
            let [signal, weights] =
                [&x, &w].map(|data| memory(data.len()).init(data).build().unwrap());
            // The previous contents must not be part of a sum.
            let before = vec![Complex32::new(1e9, 1e9); shape.results()];
            let out = memory(before.len()).init(before).build().unwrap();
            let (queue, product) =
                (device.queue().unwrap(), ThinProduct::build(&device, &device, &shape).unwrap());
            for _ in 0..2 {
                let views = [signal.read_on(&queue).unwrap(), weights.read_on(&queue).unwrap()];
                let mut result = out.write_on(&queue).unwrap();
                product.run(&queue, &shape, views.each_ref(), &mut result).unwrap();
            }
            let (mut found, wanted) = (out.to_vec().unwrap(), expected(&shape, &x, &w));
            let error = off(&shape, &found, &wanted);
            assert!(error < 4e-6, "{shape:?} on {device}: {error}");
            let last = found.len() - 1;
            found[last] += Complex32::new(8e-6 * (channels as f32).sqrt(), 0.0);
            assert!(off(&shape, &found, &wanted) > 4e-6, "the control");
        }
    }

    #[test]
    fn rounds_cover_all_channels() {
        for channels in [1, 63, 64, 65, 2047, 2048, 2049, 1 << 19] {
            let mut next = 0;
            for [first, blocks] in rounds(channels) {
                assert!(
                    first == next && blocks <= SLICES && first + (blocks - 1) * BLOCK < channels
                );
                next = first + SLICES * BLOCK;
            }
            assert!(next >= channels);
        }
    }
}
