//! A program that uses opencl3: the second half of its computation runs on another platform (or on the host), on its own buffer.
//!
//! Its context, its queue and its buffer stay its own. There is no `unsafe` block for onebuf here, except for the kernel.
//!
//! `cargo run -p onebuf-examples --example opencl3-saxpy`

use onebuf::{Each, prelude::*};
use onebuf_opencl3::OpenCl3HubExt;
use opencl3::{
    command_queue::CommandQueue,
    context::Context,
    device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices},
    kernel::{ExecuteKernel, Kernel},
    memory::{Buffer, CL_MEM_READ_WRITE},
    program::Program,
    types::CL_BLOCKING,
};
use std::{error::Error, ptr};

const N: usize = 1 << 20;
const TEXT: &str = "kernel void saxpy(global float *z, float a, float y) {
    size_t i = get_global_id(0);
    z[i] = a * z[i] + y;
}";

fn main() -> Result<(), Box<dyn Error>> {
    let Some(id) = get_all_devices(CL_DEVICE_TYPE_ALL).ok().and_then(|all| all.first().copied())
    else {
        println!("no OpenCL here: nothing for opencl3 to compute");
        return Ok(());
    };
    // What every program with opencl3 has.
    let context = Context::from_device(&Device::new(id))?;
    #[allow(deprecated, reason = "runs on OpenCL 1.2, too")]
    let queue = CommandQueue::create_default(&context, 0)?;
    let program = Program::create_and_build_from_source(&context, TEXT, "")?;
    let saxpy = Kernel::create(&program, "saxpy")?;
    // SAFETY: a blocking write of as many floats as the buffer has.
    let mut samples = unsafe {
        let mut samples = Buffer::create(&context, CL_MEM_READ_WRITE, N, ptr::null_mut())?;
        queue.enqueue_write_buffer(&mut samples, CL_BLOCKING, 0, &vec![1.0f32; N], &[])?;
        samples
    };
    // SAFETY: the kernel touches its work-items' floats alone. It is not waited for.
    unsafe {
        let mut launch = ExecuteKernel::new(&saxpy);
        launch.set_arg(&samples).set_arg(&2.0f32).set_arg(&1.0f32).set_global_work_size(N);
        launch.enqueue_nd_range(&queue)?;
    }

    // And now onebuf: the queue and the buffer, one line each.
    let hub = onebuf::discover()?;
    let owners = hub.opencl3_queue(&queue)?;
    let other = hub.devices().into_iter().find(|one| one.id() == "opencl:1");
    let other = other.unwrap_or_else(|| hub.host());
    let fence = owners.fence(); // where the program's work ends
    let wrap = hub.opencl3_buffer(&mut samples, &fence)?;
    let shared = wrap.with(|wrap| wrap.shared_with([&other])).build()?;
    let source = onebuf::Source::opencl_c(TEXT).with_native("saxpy", |args| {
        let (a, y) = (args.value::<f32>(1)?, args.value::<f32>(2)?);
        args.slice_mut::<f32>(0)?.iter_mut().for_each(|z| *z = a * *z + y);
        Ok(())
    });
    // SAFETY: work-item i touches z[i] only.
    let again = unsafe { other.kernel::<(Each<&mut f32>, f32, f32)>(source, "saxpy")? };
    again.launch([N], (&*shared, 10.0, 5.0))?; // after the program's kernel
    let sync = shared.hand_to(&owners)?; // the program's next command comes after it
    println!("{}", shared.explain());
    drop(shared);

    let mut seen = vec![0.0f32; N];
    // SAFETY: a blocking read into memory of that size.
    unsafe { queue.enqueue_read_buffer(&samples, CL_BLOCKING, 0, &mut seen, &[])? };
    assert!(seen.iter().all(|&z| z == 35.0), "{:?}", &seen[..4]);
    println!("opencl3 reads what {other} computed: 35; its queue waited by {sync}");
    Ok(())
}
