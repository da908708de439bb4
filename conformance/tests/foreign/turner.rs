//! A kernel of onebuf between two of class A's transforms.

use onebuf::{Access, Buffer, Complex32, Device, Kernel, Queue, Result, Signature, Source, args};

/// `x *= by`, for complex numbers.
fn turn(device: &Device) -> Result<Kernel> {
    const TEXT: &str = "kernel void turn(global float2 *x, float2 by) {
        float2 v = x[get_global_id(0)];
        x[get_global_id(0)] = (float2)(v.x * by.x - v.y * by.y, v.x * by.y + v.y * by.x);
    }";
    let source = Source::opencl_c(TEXT).with_native("turn", |args| {
        let by = args.value::<Complex32>(1)?;
        args.slice_mut::<Complex32>(0)?.iter_mut().for_each(|x| *x *= by);
        Ok(())
    });
    let signature = Signature::new().each::<Complex32>(Access::ReadWrite).value::<Complex32>();
    // SAFETY: work-item i touches element i.
    unsafe { device.program(&source)?.kernel("turn", signature) }
}

/// A device's queue, and a kernel that multiplies the numbers in a buffer.
pub struct Turner {
    pub queue: Queue,
    kernel: Kernel,
}

impl Turner {
    pub fn on(device: &Device) -> Self {
        Self { queue: device.queue().unwrap(), kernel: turn(device).unwrap() }
    }

    pub fn turn(&self, buffer: &Buffer<Complex32>, by: Complex32) {
        let view = buffer.write_on(&self.queue).unwrap();
        self.queue.launch(&self.kernel, [buffer.len()], args![view, by]).unwrap();
    }
}
