//! What the benchmarks have in common; see the files beside this one.
//!
//! `cargo bench -p onebuf-benches`, or `./dev bench`. What needs OpenCL is skipped, with a line that
//! says so, where there is none.

use onebuf::{
    Access, Buffer, Device, Hub, Kernel, Queue, Result, Signature, Source, args, doctor::Verdicts,
    fake::FakeConfig,
};
use std::io::Write;

/// A kernel that does next to nothing, so that what is measured is the way to it.
pub const TOUCH: &str = "kernel void touch(global uint *x, uint add) {
    if (get_global_id(0) == 0) x[0] += add;
}";

/// A hub with so many fake devices. Nothing is remembered, so that every run measures the same.
pub fn hub(fakes: usize) -> Result<Hub> {
    let builder = Hub::builder().verdicts(Verdicts::default());
    (0..fakes).fold(builder, |builder, _| builder.fake(FakeConfig::default())).build()
}

/// One device of each OpenCL platform; none, and a line that says so, when there are too few.
pub fn platforms(hub: &Hub, wanted: usize, bench: &str) -> Vec<Device> {
    let mut found = hub.select("opencl");
    found.dedup_by_key(|device| device.info().platform.clone());
    if found.len() < wanted {
        let reasons: Vec<_> =
            hub.unavailable().iter().map(|missing| missing.reason.as_str()).collect();
        let why = format!("{} of {wanted} OpenCL platforms {}", found.len(), reasons.join("; "));
        skip(bench, why.trim_end());
        return Vec::new();
    }
    found.truncate(wanted);
    found
}

/// Says that a benchmark is left out.
pub fn skip(bench: &str, why: &str) {
    // Where standard error is closed, nobody is there to be told.
    let _ = writeln!(std::io::stderr(), "skip: {bench}: {why}");
}

/// A queue and the kernel above.
pub struct Side {
    /// The device.
    pub device: Device,
    /// Its queue.
    pub queue: Queue,
    touch: Kernel,
}

impl Side {
    /// Builds the kernel for a device.
    pub fn new(device: &Device) -> Result<Self> {
        let program = device.program(&Source::opencl_c(TOUCH))?;
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
        // SAFETY: the kernel touches the first element, which every buffer has.
        let touch = unsafe { program.kernel("touch", signature)? };
        Ok(Self { device: device.clone(), queue: device.queue()?, touch })
    }

    /// One launch, not waited for.
    pub fn touch(&self, buffer: &Buffer<u32>) -> Result<()> {
        self.queue.launch(&self.touch, [1], args![buffer.write_on(&self.queue)?, 1_u32])
    }
}
