//! The operations with the `ocl` crate.
//!
//! # Safety
//! All kernels are [`TOUCH`], with its two parameters.

use crate::{LEN, Library, Result};
use ocl::{
    Buffer, Context, Device, Kernel, Platform, Program, Queue,
    core::{DeviceId, DeviceInfo, DeviceInfoResult},
};
use onebuf_bench::{ITEMS, TOUCH};
use std::{cell::Cell, ffi::c_void};

pub struct WithOcl {
    context: Context,
    queue: Queue,
    kernel: Kernel,
    buffer: Buffer<u32>,
    launches: Cell<u32>,
    added: Cell<u32>,
}

impl WithOcl {
    pub fn new(device: *mut c_void) -> Result<Self> {
        // SAFETY: a device of the only OpenCL library in this process.
        let device = Device::from(unsafe { DeviceId::from_raw(device) });
        let DeviceInfoResult::Platform(platform) = device.info(DeviceInfo::Platform)? else {
            return Err("the device has no platform".into());
        };
        let context =
            Context::builder().platform(Platform::from(platform)).devices(device).build()?;
        let queue = Queue::new(&context, device, None)?;
        let buffer = zeroes(&queue)?;
        let kernel = kernel(&context, &queue, &buffer)?;
        let (launches, added) = (Cell::new(0), Cell::new(0));
        Ok(Self { context, queue, kernel, buffer, launches, added })
    }
}

fn kernel(context: &Context, queue: &Queue, buffer: &Buffer<u32>) -> Result<Kernel> {
    let program = Program::builder().src(TOUCH).devices(queue.device()).build(context)?;
    let mut kernel = Kernel::builder();
    kernel.program(&program).name("touch").queue(queue.clone()).global_work_size(ITEMS);
    Ok(kernel.arg(buffer).arg(0_u32).build()?)
}

/// Creates a buffer of zeroes and waits for the fill.
fn zeroes(queue: &Queue) -> Result<Buffer<u32>> {
    Ok(Buffer::builder().queue(queue.clone()).len(LEN).fill_val(0_u32).build()?)
}

impl Library for WithOcl {
    fn name(&self) -> &'static str {
        "ocl"
    }

    fn launch(&self) -> Result<()> {
        let add = self.launches.get().wrapping_add(1);
        self.kernel.set_arg(0, &self.buffer)?;
        self.kernel.set_arg(1, add)?;
        // SAFETY: these are the kernel's parameters, and it touches the first element only.
        unsafe { self.kernel.enq()? };
        self.launches.set(add);
        self.added.set(self.added.get().wrapping_add(add));
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(self.queue.finish()?)
    }

    fn create_buffer(&self) -> Result<()> {
        zeroes(&self.queue).map(drop)
    }

    fn reuse_program(&self) -> Result<()> {
        kernel(&self.context, &self.queue, &self.buffer).map(drop)
    }

    fn sums(&self) -> Result<[u32; 2]> {
        let mut first = [0_u32];
        self.buffer.read(&mut first[..]).enq()?;
        Ok([first[0], self.added.get()])
    }
}
