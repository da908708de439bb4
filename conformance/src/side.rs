//! One device's side of a test: a queue, a kernel, and a model of the kernel.

use crate::kernels;
use onebuf::{
    Access, Buffer, Device, Fence, Grid, IntoArg, Kernel, MemoryKind, Queue, QueueSpec, Result,
    Signature, Source, args,
};

/// Work-items per group. One size, so that runtimes which compile per group size do so once.
pub const GROUP: usize = 64;

/// The only kernel that the stub driver also implements.
const TEXT: &str = "
kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
";

/// The kernel as a shader.
const SHADER: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint p[]; };
layout(std140, binding = 1) uniform Values { uint first; uint n; uint mul; uint add; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) p[first + i] = p[first + i] * mul + add + i;
}
";

/// One launch: every element of a range becomes `x * mul + add + i`. The kernel reads what it writes,
/// so lost, repeated or reordered work changes the result.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Odd, so that the multiplication is invertible.
    pub mul: u32,
    /// Any number.
    pub add: u32,
}

impl Step {
    /// A different step for every number.
    pub fn nth(n: u32) -> Self {
        Self { mul: n.wrapping_mul(2_654_435_761) | 1, add: n.wrapping_mul(40_503) ^ 0x5bd1_e995 }
    }
}

/// The kernel's effect on a slice that starts at its first element.
pub fn step_model(model: &mut [u32], step: Step) {
    for (i, x) in (0..).zip(model) {
        *x = x.wrapping_mul(step.mul).wrapping_add(step.add).wrapping_add(i);
    }
}

/// One device with a queue and the kernel.
#[derive(Debug)]
pub struct Side {
    /// The device.
    pub device: Device,
    /// A queue of it.
    pub queue: Queue,
    step: Kernel,
}

impl Side {
    /// Opens a queue and builds the kernel.
    pub fn open(device: &Device) -> Result<Self> {
        Self::open_with(device, QueueSpec::default())
    }

    /// Opens a queue with the given properties and builds the kernel.
    pub fn open_with(device: &Device, spec: QueueSpec) -> Result<Self> {
        let program = device.program(&source())?;
        let word = |s: Signature| s.value::<u32>();
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        let signature = word(word(word(word(signature)))).require(|call| {
            let [first, n] = [1, 2].map(|i| call.value::<u32>(i).unwrap_or(u32::MAX) as usize);
            if first + n <= call.len(0) { Ok(()) } else { Err("outside of the buffer".into()) }
        });
        // SAFETY: the text above touches only `p[first..first + n]`, which the requirement checks.
        let step = unsafe { program.kernel("onebuf_step", signature)? };
        Ok(Self { device: device.clone(), queue: device.queue_with(spec)?, step })
    }

    /// The kernel, for callers that use their own queue.
    pub fn kernel(&self) -> &Kernel {
        &self.step
    }

    /// Enqueues a step over a range of elements; does not wait.
    pub fn step_range(&self, b: &Buffer<u32>, first: usize, n: usize, step: Step) -> Result<()> {
        let arguments = args![b.write_on(&self.queue)?, first as u32, n as u32, step.mul, step.add];
        self.queue.launch(&self.step, groups(n), arguments)
    }

    /// Enqueues a step over the first elements of a view that was taken on this side's queue.
    pub fn step_view<'b>(&self, view: impl IntoArg<'b>, n: usize, step: Step) -> Result<Fence> {
        let arguments = args![view, 0u32, n as u32, step.mul, step.add];
        self.queue.launch_fenced(&self.step, groups(n), arguments)
    }

    /// Enqueues a step over the whole buffer; does not wait.
    pub fn step(&self, buffer: &Buffer<u32>, step: Step) -> Result<()> {
        self.step_range(buffer, 0, buffer.len(), step)
    }

    /// Returns the contents as this device sees them, copied by its own queue into its own memory.
    pub fn look(&self, buffer: &Buffer<u32>) -> Result<Vec<u32>> {
        drop(buffer.read_on(&self.queue)?);
        let own = self.device.hub().buffer::<u32>(buffer.len()).shared_with([&self.device]);
        let own = own.allocate_on(&self.device).memory_kind(self.least_visible()).build()?;
        own.copy_from(0, buffer, ..)?;
        own.to_vec()
    }

    /// The memory kind that fewest other devices can access, so that no other device can do the copy of [`Side::look`].
    fn least_visible(&self) -> MemoryKind {
        let memory_kinds = &self.device.info().caps.memory_kinds;
        memory_kinds.iter().copied().max().unwrap_or(MemoryKind::Device)
    }
}

/// A grid of `n` work-items, rounded up to whole groups.
fn groups(n: usize) -> Grid {
    Grid::from([n.next_multiple_of(GROUP)]).local([GROUP])
}

fn source() -> Source {
    let source = kernels(TEXT);
    source.with_glsl("onebuf_step", SHADER).with_native("onebuf_step", |args| {
        let [first, n] = [args.value::<u32>(1)? as usize, args.value::<u32>(2)? as usize];
        let step = Step { mul: args.value(3)?, add: args.value(4)? };
        step_model(&mut args.slice_mut(0)?[first..first + n], step);
        Ok(())
    })
}
