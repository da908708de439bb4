//! The operations with the `opencl3` crate.
//!
//! # Safety
//! All kernels are [`TOUCH`], with its two parameters. Every transfer is waited for before its memory is freed.

use crate::{LEN, Library, Result};
use onebuf_bench::{ITEMS, TOUCH};
use opencl3::{
    command_queue::CommandQueue,
    context::Context,
    device::Device,
    kernel::{ExecuteKernel, Kernel},
    memory::{Buffer, CL_MEM_READ_WRITE},
    program::Program,
    types::CL_BLOCKING,
};
use std::{cell::Cell, ffi::c_void, ptr::null_mut};

pub struct WithOpencl3 {
    context: Context,
    queue: CommandQueue,
    kernel: Kernel,
    buffer: Buffer<u32>,
    launches: Cell<u32>,
    added: Cell<u32>,
}

impl WithOpencl3 {
    pub fn new(device: *mut c_void) -> Result<Self> {
        let context = Context::from_device(&Device::new(device))?;
        // SAFETY: the device belongs to the context, and a queue without properties is always allowed.
        let queue = unsafe { CommandQueue::create(&context, device, 0)? };
        let (kernel, buffer) = (kernel(&context)?, zeroes(&context, &queue)?);
        let (launches, added) = (Cell::new(0), Cell::new(0));
        Ok(Self { context, queue, kernel, buffer, launches, added })
    }
}

fn kernel(context: &Context) -> Result<Kernel> {
    let program = Program::create_and_build_from_source(context, TOUCH, "")?;
    Ok(Kernel::create(&program, "touch")?)
}

fn zeroes(context: &Context, queue: &CommandQueue) -> Result<Buffer<u32>> {
    // SAFETY: these flags take no host pointer.
    let mut buffer = unsafe { Buffer::create(context, CL_MEM_READ_WRITE, LEN, null_mut())? };
    // SAFETY: the call is waited for, so the pattern outlives it; the size is the buffer's.
    unsafe { queue.enqueue_fill_buffer(&mut buffer, &[0], 0, 4 * LEN, &[])? }.wait()?;
    Ok(buffer)
}

impl Library for WithOpencl3 {
    fn name(&self) -> &'static str {
        "opencl3"
    }

    fn launch(&self) -> Result<()> {
        let add = self.launches.get().wrapping_add(1);
        let mut run = ExecuteKernel::new(&self.kernel);
        // SAFETY: these are the kernel's parameters, and it touches the first element only.
        unsafe {
            run.set_arg(&self.buffer).set_arg(&add).set_global_work_size(ITEMS);
            run.enqueue_nd_range(&self.queue)?;
        }
        self.launches.set(add);
        self.added.set(self.added.get().wrapping_add(add));
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(self.queue.finish()?)
    }

    fn create_buffer(&self) -> Result<()> {
        zeroes(&self.context, &self.queue).map(drop)
    }

    fn reuse_program(&self) -> Result<()> {
        kernel(&self.context).map(drop)
    }

    fn sums(&self) -> Result<[u32; 2]> {
        let mut first = [0];
        // SAFETY: one element, and the call blocks.
        unsafe { self.queue.enqueue_read_buffer(&self.buffer, CL_BLOCKING, 0, &mut first, &[])? };
        Ok([first[0], self.added.get()])
    }
}
