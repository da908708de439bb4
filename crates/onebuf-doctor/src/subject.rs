//! The parts of an experiment: two queues, one kernel on each, and the model that predicts the results.

use bytemuck::Pod;
use onebuf_core::{Buffer, Device, Grid, Kernel, Queue, Signature, Source, args};
use onebuf_hal::{Access, Result};
use std::collections::BTreeMap;

/// Work-items per group: a single size for OpenCL, because some runtimes compile for each size. Global sizes are multiples of
/// it on all APIs.
const GROUP: usize = 64;

/// A page of words. Large sizes use pages as elements and change only the first word, so that every page is touched at the
/// cost of few bytes.
pub(super) type Page = [u32; 1024];

const PAGES_KERNEL: &str = "onebuf_step_pages";

const TEXT: &str = "
#define STEP(name, type, stride) \\
kernel void name(global type *p, uint first, uint n, uint mul, uint add) { \\
    uint i = (uint)get_global_id(0); \\
    size_t at = (size_t)(first + i) * stride; \\
    if (i < n) p[at] = (type)(p[at] * mul + add + i); \\
}
STEP(onebuf_step, uint, 1)
STEP(onebuf_step_bytes, uchar, 1)
STEP(onebuf_step_pages, uint, 1024)
";

/// Definitions that make the text CUDA C and HIP C.
const PRELUDE: &str = "
#define kernel extern \"C\" __global__
#define uint unsigned int
#define uchar unsigned char
#define get_global_id(d) (blockIdx.x * blockDim.x + threadIdx.x)
";

/// The same kernels as shaders: the common beginning, and what each does to element `i` of `n`. Devices support fewer groups
/// than there are elements, so each work-item handles several.
const SHADER: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint p[]; };
layout(std140, binding = 1) uniform Values { uint first; uint n; uint mul; uint add; };
";
/// The number of groups that every device supports.
const SHADER_GROUPS: usize = 65535;
const SHADERS: [(&str, &str); 3] = [
    (
        "onebuf_step",
        "void main() {
            for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * 64u) {
                p[first + i] = p[first + i] * mul + add + i;
            }
        }",
    ),
    // The work-item of a word's first byte processes the whole word, because a shader cannot store single bytes.
    (
        "onebuf_step_bytes",
        "void step(uint i) {
            uint at = (first + i) >> 2;
            uint word = p[at];
            for (; i < n && (first + i) >> 2 == at; i++) {
                uint shift = 8u * ((first + i) & 3u);
                uint x = ((word >> shift) & 255u) * mul + add + i;
                word = (word & ~(255u << shift)) | ((x & 255u) << shift);
            }
            p[at] = word;
        }
        void main() {
            for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * 64u) {
                if (i == 0u || ((first + i) & 3u) == 0u) step(i);
            }
        }",
    ),
    (
        "onebuf_step_pages",
        "void main() {
            for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * 64u) {
                uint at = (first + i) * 1024u;
                p[at] = p[at] * mul + add + i;
            }
        }",
    ),
];

/// An element type of the experiments: words, and bytes for sizes that are not a multiple of a word.
pub(super) trait Unit: Pod + PartialEq + std::fmt::LowerHex {
    /// The kernel for this type.
    const KERNEL: &'static str;
    /// One step of one element, as in the kernel.
    fn step(self, index: u32, step: Step) -> Self;
    /// The low bits as an element.
    fn from_bits(bits: u32) -> Self;
}

impl Unit for u32 {
    const KERNEL: &'static str = "onebuf_step";

    fn step(self, index: u32, step: Step) -> Self {
        self.wrapping_mul(step.mul).wrapping_add(step.add).wrapping_add(index)
    }

    fn from_bits(bits: u32) -> Self {
        bits
    }
}

impl Unit for u8 {
    const KERNEL: &'static str = "onebuf_step_bytes";

    fn step(self, index: u32, step: Step) -> Self {
        u32::from(self).step(index, step) as u8
    }

    fn from_bits(bits: u32) -> Self {
        bits as u8
    }
}

/// The parameters of one kernel launch: every element of a range becomes `x * mul + add + i`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub mul: u32,
    pub add: u32,
}

/// Applies a step to the model.
pub(super) fn step_model<T: Unit>(model: &mut [T], step: Step) {
    for (i, x) in (0..).zip(model) {
        *x = x.step(i, step);
    }
}

/// The devices whose kernels were built before: several experiments use the same.
#[derive(Default)]
pub(super) struct Sides(BTreeMap<String, Side>);

impl Sides {
    /// Opens a queue on a device that the hub discovered.
    pub fn open(&mut self, device: &Device) -> Result<Side> {
        if let Some(side) = self.0.get(device.id()) {
            return Ok(Side { queue: device.queue()?, ..side.clone() });
        }
        let side = Side::open(device)?;
        self.0.insert(device.id().to_owned(), side.clone());
        Ok(side)
    }
}

/// One device's side of an experiment.
#[derive(Clone)]
pub(super) struct Side {
    pub device: Device,
    pub queue: Queue,
    words: Kernel,
    bytes: Kernel,
    pages: Kernel,
}

impl Side {
    pub fn open(device: &Device) -> Result<Self> {
        // A text replacement instead of a macro, because the compiler's own `__global__` expands to an attribute of the name
        // `global`.
        let like_cuda = format!("{PRELUDE}{}", TEXT.replace("global ", ""));
        let texts = Source::opencl_c(TEXT).with_cuda_c(like_cuda.clone()).with_hip_c(like_cuda);
        let texts = SHADERS.iter().fold(texts, |texts, (kernel, main)| {
            texts.with_glsl(*kernel, format!("{SHADER}{main}"))
        });
        let source = native_pages(native::<u8>(native::<u32>(texts)));
        let program = device.program(&source)?;
        let signature = |s: Signature| {
            let s = s.value::<u32>().value::<u32>().value::<u32>().value::<u32>();
            s.require(|call| {
                let [first, n] = [1, 2].map(|i| call.value::<u32>(i).unwrap_or(u32::MAX) as usize);
                if first + n <= call.len(0) {
                    Ok(())
                } else {
                    Err("the range is outside of the buffer".into())
                }
            })
        };
        let words = signature(Signature::new().buffer::<u32>(Access::ReadWrite));
        let bytes = signature(Signature::new().buffer::<u8>(Access::ReadWrite));
        let pages = signature(Signature::new().buffer::<Page>(Access::ReadWrite));
        // SAFETY: the text above touches only elements `first..first + n`, which the requirement checks.
        #[allow(unsafe_code)]
        let (words, bytes, pages) = unsafe {
            (
                program.kernel(u32::KERNEL, words)?,
                program.kernel(u8::KERNEL, bytes)?,
                program.kernel(PAGES_KERNEL, pages)?,
            )
        };
        Ok(Self { device: device.clone(), queue: device.queue()?, words, bytes, pages })
    }

    /// Launches a step over a range of elements, without waiting.
    pub fn step<T: Unit>(
        &self,
        buffer: &Buffer<T>,
        first: usize,
        n: usize,
        step: Step,
    ) -> Result<()> {
        let kernel = if T::KERNEL == u32::KERNEL { &self.words } else { &self.bytes };
        self.launch(kernel, buffer, first, n, step)
    }

    /// Launches a step over the first word of every page, without waiting.
    pub fn step_pages(&self, buffer: &Buffer<Page>, step: Step) -> Result<()> {
        self.launch(&self.pages, buffer, 0, buffer.len(), step)
    }

    fn launch<T: Pod>(
        &self,
        kernel: &Kernel,
        buffer: &Buffer<T>,
        first: usize,
        n: usize,
        step: Step,
    ) -> Result<()> {
        let view = buffer.write_on(&self.queue)?;
        let args = args![view, first as u32, n as u32, step.mul, step.add];
        self.queue.launch(kernel, self.grid(n), args)
    }

    fn grid(&self, n: usize) -> Grid {
        let grid = |items: usize| Grid::from([items.next_multiple_of(GROUP)]);
        // Other APIs choose the group size themselves, because groups of 64 may exceed their limit of groups per launch.
        match self.device.info().api.0 {
            "opencl" => grid(n).local([GROUP]),
            "gl" | "vulkan" => grid(n.min(SHADER_GROUPS * GROUP)),
            _ => grid(n),
        }
    }
}

/// Adds the kernel for devices that run functions of this process.
fn native<T: Unit>(source: Source) -> Source {
    source.with_native(T::KERNEL, |args| {
        let [first, n] = [1, 2].map(|i| args.value::<u32>(i));
        let (first, n) = (first? as usize, n? as usize);
        let step = Step { mul: args.value(3)?, add: args.value(4)? };
        step_model(&mut args.slice_mut::<T>(0)?[first..first + n], step);
        Ok(())
    })
}

fn native_pages(source: Source) -> Source {
    source.with_native(PAGES_KERNEL, |args| {
        let (n, step) = (args.value::<u32>(2)?, Step { mul: args.value(3)?, add: args.value(4)? });
        for (i, page) in (0..n).zip(args.slice_mut::<Page>(0)?) {
            page[0] = page[0].step(i, step);
        }
        Ok(())
    })
}
