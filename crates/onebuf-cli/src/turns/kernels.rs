//! Kernels that write and check the same words on a device, in place.
//!
//! # Safety
//! The two unsafe calls declare the signatures of the kernels whose text is in this file.
#![allow(unsafe_code)]

use super::page::{PAGE_WORDS, pages};
use onebuf::{Access, Buffer, Device, Kernel, Queue, Result, Signature, Source, args};

const TEXT: &str = "
helper uint word(uint seed, uint i) { return rotate((i ^ seed) * 0x2c1b3c6du, 13u); }
kernel void write_words(global uint *p, uint seed, uint n) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[i] = word(seed, i);
}
kernel void check_pages(global const uint *p, global uint *wrong, uint seed, uint n) {
    ulong page = get_global_id(0), first = page * PAGE_WORDS;
    uint bad = 0;
    for (ulong i = first; i < n && i < first + PAGE_WORDS; i++) bad |= p[i] ^ word(seed, (uint)i);
    if (first < n) wrong[page] = bad != 0;
}
";

/// Prefixes that make the text OpenCL C, or CUDA C and HIP C.
const OPENCL: &str = "#define helper\n";
const LIKE_CUDA: &str = "
#define helper static __device__
#define kernel extern \"C\" __global__
#define uint unsigned int
#define ulong unsigned long long
#define rotate(x, by) ((x) << (by) | (x) >> (32u - (by)))
#define get_global_id(d) (blockIdx.x * blockDim.x + threadIdx.x)
";

fn source() -> Source {
    let text = format!("#define PAGE_WORDS {PAGE_WORDS}u\n{TEXT}");
    // Replaced in the text, not by a macro: the compiler's own `__global__` is a macro with an attribute of that name.
    let like_cuda = format!("{LIKE_CUDA}{}", text.replace("global ", ""));
    let source = Source::opencl_c(format!("{OPENCL}{text}"));
    source.with_cuda_c(like_cuda.clone()).with_hip_c(like_cuda)
}

/// Work-items per group. One size, so that runtimes which compile per group size do so once.
const GROUP: usize = 64;

pub struct Kernels {
    device: Device,
    queue: Queue,
    write: Kernel,
    check: Kernel,
}

impl Kernels {
    pub fn build(device: &Device) -> Result<Self> {
        let program = device.program(&source())?;
        let words = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>().value::<u32>();
        let words = words.require(|call| match call.value::<u32>(2) {
            Some(n) if n as usize <= call.len(0) => Ok(()),
            _ => Err("more words than the buffer has".into()),
        });
        let paged = Signature::new().buffer::<u32>(Access::Read).buffer::<u32>(Access::ReadWrite);
        let paged =
            paged.value::<u32>().value::<u32>().require(|call| match call.value::<u32>(3) {
                Some(n) if n as usize <= call.len(0) && pages(n as usize) <= call.len(1) => Ok(()),
                _ => Err("more words than the buffer has, or more pages than are counted".into()),
            });
        // SAFETY: it accesses words below `n` only, and the requirement checks that there are as many.
        let write = unsafe { program.kernel("write_words", words)? };
        // SAFETY: it reads words below `n`, and writes one word per page; checked as above.
        let check = unsafe { program.kernel("check_pages", paged)? };
        Ok(Self { device: device.clone(), queue: device.queue()?, write, check })
    }

    pub fn write(&self, buffer: &Buffer<u32>, seed: u32) -> Result<()> {
        let n = buffer.len();
        let args = args![buffer.write_on(&self.queue)?, seed, n as u32];
        self.queue.launch(&self.write, grid(n), args)
    }

    pub fn wrong_pages(&self, buffer: &Buffer<u32>, seed: u32) -> Result<usize> {
        let (n, count) = (buffer.len(), pages(buffer.len()));
        // A page that was not checked counts as wrong.
        let wrong = self.device.hub().buffer::<u32>(count).shared_with([&self.device]);
        let wrong = wrong.init(vec![1; count]).build()?;
        let (p, w) = (buffer.read_on(&self.queue)?, wrong.write_on(&self.queue)?);
        self.queue.launch(&self.check, grid(count), args![p, w, seed, n as u32])?;
        Ok(wrong.to_vec()?.iter().filter(|&&bad| bad != 0).count())
    }
}

fn grid(items: usize) -> onebuf::Grid {
    onebuf::Grid::from([items.next_multiple_of(GROUP)]).local([GROUP])
}
