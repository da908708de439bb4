//! The machine that workloads run on, and what they share.
//!
//! # Safety
//! One kernel is declared here; its text is below.

#![allow(unsafe_code)]

use crate::{Effort, Ranks};
use onebuf::{
    Access, Buffer, Device, Hub, Kernel, Program, Queue, Result, Signature, Source, WriteView, args,
};
use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Work-items of each launch. More than one, because for a single work-item onebuf passes the group size to the driver,
/// and the two sides of a comparison would not make the same call.
pub const ITEMS: usize = 64;

/// A kernel that does almost nothing, so that the overhead of the launch is measured.
pub const TOUCH: &str = "kernel void touch(global uint *x, uint add) {
    if (get_global_id(0) == 0) x[0] += add;
}";

/// The kernel in PTX, which NVIDIA's driver takes without a compiler.
pub(crate) const TOUCH_PTX: &str = ".version 6.0
.target sm_50
.address_size 64
.visible .entry touch(.param .u64 x, .param .u32 add) {
    .reg .pred %q;
    .reg .u32 %r<5>;
    .reg .u64 %a<2>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    or.b32 %r1, %r1, %r2;
    setp.ne.u32 %q, %r1, 0;
    @%q ret;
    ld.param.u64 %a1, [x];
    ld.param.u32 %r3, [add];
    cvta.to.global.u64 %a1, %a1;
    ld.global.u32 %r4, [%a1];
    add.u32 %r4, %r4, %r3;
    st.global.u32 [%a1], %r4;
    ret;
}
";

/// The kernel as a shader.
const TOUCH_GLSL: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Data { uint x[]; };
layout(std140, binding = 1) uniform Values { uint add; };
void main() {
    if (gl_GlobalInvocationID.x == 0u) x[0] += add;
}
";

/// The kernel as a text that no driver has compiled before. Drivers cache builds, some across processes, and some
/// ignore comments.
pub fn distinct_text() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!("constant ulong distinct[2] = {{ {}ul, {number}ul }};\n", time as u64);
    text + &TOUCH.replace("+= add", "+= add + (uint)(distinct[add & 1] & 0)")
}

/// Why a benchmark has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// A requirement is missing on this machine.
    Absent(String),
    /// It failed.
    Failed(onebuf::Error),
}

impl From<onebuf::Error> for Stop {
    fn from(error: onebuf::Error) -> Self {
        Stop::Failed(error)
    }
}

/// What to measure on, for how long, and with how much data.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Private: the raw C calls load the default library, so the hub must have loaded the same.
    pub(crate) hub: Hub,
    /// The effort.
    pub effort: Effort,
    /// The size of the buffers that are handed over.
    pub bytes: usize,
    /// How the program starts itself as a rank of MPI; without it rows of ranks are skipped.
    pub ranks: Option<Ranks>,
}

impl Bench {
    /// The default size of hand-overs.
    pub const BYTES: usize = 256 << 20;

    /// Discovers the devices of this machine.
    ///
    /// # Errors
    /// Those of [`onebuf::discover`].
    pub fn discover(effort: Effort, bytes: usize) -> Result<Self> {
        Ok(Self { hub: onebuf::discover()?, effort, bytes, ranks: None })
    }

    /// The hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }
}

/// One device of each OpenCL platform.
pub fn platforms(hub: &Hub) -> Vec<Device> {
    let mut found = hub.select("opencl");
    found.dedup_by_key(|device| device.info().platform.clone());
    found
}

/// Explains why there are too few platforms.
pub fn too_few_platforms(hub: &Hub, wanted: usize) -> String {
    let found = platforms(hub).len();
    let missing = hub.unavailable().iter().map(|api| format!("; {}", api.reason));
    let missing: String = missing.collect();
    let verb = if wanted == 1 { "platform is needed" } else { "platforms are needed" };
    format!("{wanted} OpenCL {verb}, found {found}{missing}")
}

/// A queue, the kernel above, and the expected sum of its launches.
pub struct Side {
    /// The queue.
    pub queue: Queue,
    touch: Kernel,
    added: Cell<u32>,
}

impl Side {
    /// Builds the kernel for a device.
    pub fn new(device: &Device) -> Result<Self> {
        Self::build(&device.queue()?, TOUCH)
    }

    /// Builds one of the texts above for an existing queue.
    pub fn build(queue: &Queue, text: impl Into<String>) -> Result<Self> {
        let source = Source::opencl_c(text.into()).with_ptx(TOUCH_PTX);
        let source = source.with_glsl("touch", TOUCH_GLSL);
        Self::of(queue, &queue.device().program(&source)?)
    }

    /// The OpenCL kernel, grafted to a queue of another API.
    pub fn grafted(cl: &Device, queue: &Queue) -> Result<Self> {
        Self::of(queue, &cl.program(&Source::opencl_c(TOUCH))?.graft(&queue.device())?)
    }

    fn of(queue: &Queue, program: &Program) -> Result<Self> {
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
        // SAFETY: the kernel accesses the first element, which every buffer has.
        let touch = unsafe { program.kernel("touch", signature)? };
        Ok(Self { queue: queue.clone(), touch, added: Cell::new(0) })
    }

    /// One launch, without waiting. Its value differs from the previous launch, as in real programs, so that setting it
    /// cannot be skipped.
    pub fn touch(&self, buffer: &Buffer<u32>) -> Result<()> {
        let view = buffer.write_on(&self.queue)?;
        self.queue.launch(&self.touch, [ITEMS], args![view, next(&self.added)])
    }

    /// One launch with a view that is already held.
    pub fn touch_held(&self, view: &mut WriteView<'_, u32>) -> Result<()> {
        self.queue.launch(&self.touch, [ITEMS], args![view, next(&self.added)])
    }

    /// Launches the kernel once and waits.
    pub fn turn(&self, buffer: &Buffer<u32>) -> Result<()> {
        self.touch(buffer)?;
        self.queue.finish()
    }

    /// The sum of all launches so far.
    pub fn added(&self) -> u32 {
        sum(self.added.get())
    }
}

/// The next value to add.
pub(crate) fn next(added: &Cell<u32>) -> u32 {
    added.set(added.get().wrapping_add(1));
    added.get()
}

/// The sum of this many launches, modulo 2³².
pub(crate) fn sum(launches: u32) -> u32 {
    let launches = u64::from(launches);
    (launches * (launches + 1) / 2) as u32
}

/// Checks the result, because a wrong result makes the measurement void.
pub(crate) fn check(buffer: &Buffer<u32>, added: u32) -> Result<()> {
    let mut first = [0];
    buffer.read_range(0..1, &mut first)?;
    if first == [added] {
        return Ok(());
    }
    let [found] = first;
    Err(onebuf::Error::Unsupported {
        what: "measuring a kernel whose result is wrong".into(),
        needs: format!("launches that add up to {added}, not {found}: try `onebuf doctor --fresh`"),
    })
}

#[cfg(test)]
mod tests {
    use super::{Cell, distinct_text, next, sum};

    #[test]
    fn launches_add_up() {
        let added = Cell::new(0);
        let total: u32 = (0..100).map(|_| next(&added)).sum();
        assert_eq!(total, sum(100));
        assert_eq!(sum(u32::MAX), 0x8000_0000, "wraps as the kernel does");
    }

    #[test]
    fn texts_differ() {
        assert_ne!(distinct_text(), distinct_text());
    }
}
