//! A launch through onebuf beside the same launch by the raw C calls, on the same queue.
//!
//! What a launch through onebuf does more: it takes a view, checks every argument against the
//! signature, and notes where the queue is.

use criterion::Criterion;
use onebuf::{Buffer, Result, Strategy};
use onebuf_benches::{Side, TOUCH, hub, platforms, skip};
use onebuf_sys::{
    ClStatus,
    opencl::{ClContext, ClDevice, ClKernel, ClMem, ClProgram, ClQueue, OpenCl, consts},
};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
    time::{Duration, Instant},
};

const BENCH: &str = "launches beside the raw C call";

/// Launches between two waits: only enqueueing is timed, and no driver's queue grows without end.
const BATCH: u64 = 64;

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(20)
        .configure_from_args();
    let hub = hub(0)?;
    for device in platforms(&hub, 1, BENCH) {
        let side = Side::new(&device)?;
        let wish = hub.buffer::<u32>(1024).shared_with([&device]);
        let buffer = wish.strategy(Strategy::MappedDevice).build()?; // a cl_mem, for the raw call
        compare(&mut criterion, &side, &buffer)?;
    }
    criterion.final_summary();
    Ok(())
}

fn compare(criterion: &mut Criterion, side: &Side, buffer: &Buffer<u32>) -> Result<()> {
    let view = buffer.write_on(&side.queue)?;
    let Ok(mem) = view.cl_mem() else {
        skip(BENCH, "the buffer is no cl_mem here");
        return Ok(());
    };
    drop(view);
    let raw = Raw::new(side.queue.raw(), mem).map_err(|status| onebuf::Error::Driver {
        api: "opencl",
        call: "the raw launch",
        code: status.0,
        name: status.to_string(),
    })?;
    let mut group = criterion.benchmark_group(format!("launch_enqueue/{}", side.device));
    group.bench_function("onebuf", |bench| {
        bench.iter_custom(|launches| timed(launches, side, || side.touch(buffer)))
    });
    group.bench_function("raw", |bench| {
        bench.iter_custom(|launches| timed(launches, side, || raw.touch()))
    });
    group.finish();
    Ok(())
}

fn timed<E: std::fmt::Debug>(
    launches: u64,
    side: &Side,
    mut launch: impl FnMut() -> Result<(), E>,
) -> Duration {
    let mut spent = Duration::ZERO;
    for start in (0..launches).step_by(BATCH as usize) {
        let clock = Instant::now();
        for _ in start..launches.min(start + BATCH) {
            launch().expect("a launch");
        }
        spent += clock.elapsed();
        side.queue.finish().expect("the launches end");
    }
    spent
}

/// The same kernel by the C calls that a program without onebuf would make.
struct Raw {
    cl: OpenCl,
    queue: ClQueue,
    program: ClProgram,
    kernel: ClKernel,
    mem: ClMem,
}

impl Raw {
    /// In the context of onebuf's queue. Both it and the buffer outlive the result.
    fn new(queue: usize, mem: *mut c_void) -> Result<Self, ClStatus> {
        let cl = OpenCl::load(None, None).map_err(|_| ClStatus::NOT_LOADED)?;
        let (queue, mem) = (ClQueue(queue as *mut c_void), ClMem(mem));
        let (mut context, mut device) = (ClContext::NULL, ClDevice::NULL);
        let info = |name, to: *mut c_void| {
            // SAFETY: the queue is alive; both answers are one pointer large, as is what `to` is.
            unsafe { cl.get_command_queue_info(queue, name, size_of::<usize>(), to, null_mut()) }
        };
        info(consts::CL_QUEUE_CONTEXT, (&raw mut context).cast())?;
        info(consts::CL_QUEUE_DEVICE, (&raw mut device).cast())?;
        let (text, len) = (TOUCH.as_ptr().cast(), TOUCH.len());
        // SAFETY: one string of this length; the device is the context's; the names end in zero.
        let (program, kernel) = unsafe {
            let program =
                cl.create_program_with_source(context, 1, &raw const text, &raw const len)?;
            cl.build_program(program, 1, &raw const device, null(), None, null_mut())?;
            (program, cl.create_kernel(program, c"touch".as_ptr())?)
        };
        Ok(Raw { cl, queue, program, kernel, mem })
    }

    fn touch(&self) -> Result<(), ClStatus> {
        let (add, global) = (1_u32, 1_usize);
        let set = |index, size, value: *const c_void| {
            // SAFETY: the values are of the kernel's parameter types, and only this thread sets them.
            unsafe { self.cl.set_kernel_arg(self.kernel, index, size, value) }
        };
        set(0, size_of::<ClMem>(), (&raw const self.mem).cast())?;
        set(1, size_of::<u32>(), (&raw const add).cast())?;
        let Raw { cl, queue, kernel, .. } = self;
        // SAFETY: one dimension, one work-item; the memory is the kernel's alone on this queue.
        unsafe {
            cl.enqueue_nd_range_kernel(
                *queue,
                *kernel,
                1,
                null(),
                &raw const global,
                null(),
                0,
                null(),
                null_mut(),
            )
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: both are ours, and used no more. A benchmark has no use for a refusal.
        let _ =
            unsafe { (self.cl.release_kernel(self.kernel), self.cl.release_program(self.program)) };
    }
}
