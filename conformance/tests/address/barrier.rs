//! The barrier between two OpenCL kernels that use HIP's memory: it is enqueued, and it is needed.

use super::*;
use onebuf_conformance::{
    GROUP,
    class_a::{ClassA, cl},
};
use onebuf_sys::opencl::{ClKernel, ClProgram};
use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

plays! {
    kernels_on_hips_memory_are_parted: parted("amd");
    without_the_barrier_the_second_is_first: needed("amd");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn parted() {
    let rig = Rig::new();
    let buffer = rig.builder(&rig.hip.device, RouteKind::SvmPointer, N).build().unwrap();
    let own = rig.hub.buffer::<u32>(N).shared_with([&rig.cl.device]).build().unwrap();
    rig.cl.step(&own, Step::nth(1)).unwrap();
    for side in [&rig.hip, &rig.cl] {
        side.step(&buffer, Step::nth(1)).unwrap();
    }
    rig.cl.queue.finish().unwrap();
    let before = rig.probe.trace();
    assert!(before.contains(&"clSetKernelArgSVMPointer"), "{before:?}");
    rig.probe.reset();
    for buffer in [&own, &own, &buffer, &buffer, &own, &buffer] {
        rig.cl.step(buffer, Step::nth(2)).unwrap();
    }
    let trace = rig.probe.trace();
    let barrier = "clEnqueueBarrierWithWaitList";
    let orders = ["clEnqueueNDRangeKernel", barrier];
    let calls: Vec<_> = trace.iter().filter(|call| orders.contains(call)).copied().collect();
    let kernel = orders[0];
    // A barrier before each kernel on HIP's memory, except the first one ever (above), and before no other kernel.
    let expected = [kernel, kernel, barrier, kernel, barrier, kernel, kernel, barrier, kernel];
    assert_eq!(calls, expected, "{trace:?}");
    for never in ["clEnqueueSVMMap", "clEnqueueSVMMemcpy", "clEnqueueSVMMemFill"] {
        assert!(!trace.contains(&never), "{never}");
    }
    drop((buffer, own));
    rig.end();
}

/// Two steps of raw OpenCL on HIP's memory, with or without a barrier between them.
fn two_steps(a: &ClassA, kernel: ClKernel, at: *mut c_void, barrier: bool) {
    let queue = a.queue.get();
    for turn in [1, 2] {
        let Step { mul, add } = Step::nth(turn);
        let size = [N.next_multiple_of(GROUP)];
        // SAFETY: live objects; the kernel takes an address and four words, and stays within the memory.
        unsafe {
            cl().set_kernel_arg_svm_pointer(kernel, 0, at).unwrap();
            for (index, word) in (1..).zip([0, N as u32, mul, add]) {
                cl().set_kernel_arg(kernel, index, 4, (&raw const word).cast()).unwrap();
            }
            let (from, local, none) = (null(), [GROUP], null());
            let (global, local) = (size.as_ptr(), local.as_ptr());
            let no = null_mut();
            cl().enqueue_nd_range_kernel(queue, kernel, 1, from, global, local, 0, none, no)
                .unwrap();
            if barrier {
                cl().enqueue_barrier_with_wait_list(queue, 0, null(), null_mut()).unwrap();
            }
        }
    }
    a.finish(&a.queue);
}

/// The control: without the barrier, the same driver computes a wrong result.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn needed() {
    let rig = Rig::new();
    let a = ClassA::all().into_iter().next().unwrap();
    let text =
        c"kernel void onebuf_step(global uint *p, uint first, uint n, uint mul, uint add) {}"
            .as_ptr();
    // SAFETY: a live context and one text; both objects are released below.
    let (program, kernel): (ClProgram, ClKernel) = unsafe {
        let program = cl().create_program_with_source(a.context.get(), 1, &text, null()).unwrap();
        cl().build_program(program, 0, null(), c"".as_ptr(), None, null_mut()).unwrap();
        (program, cl().create_kernel(program, c"onebuf_step".as_ptr()).unwrap())
    };
    let words = random_words(9, N);
    for barrier in [true, false] {
        let buffer = rig.hub.buffer::<u32>(N).shared_with([&rig.hip.device]);
        let buffer = buffer.init(words.clone()).build().unwrap();
        let view = buffer.write_on(&rig.hip.queue).unwrap();
        rig.hip.queue.finish().unwrap();
        two_steps(&a, kernel, view.hip_ptr().unwrap(), barrier);
        drop(view);
        let after = |turns: [u32; 2]| {
            let mut model = words.clone();
            turns.iter().for_each(|turn| step_model(&mut model, Step::nth(*turn)));
            model
        };
        let expected = if barrier { after([1, 2]) } else { after([2, 1]) };
        assert_same(&buffer.to_vec().unwrap(), &expected, &format!("with a barrier: {barrier}"));
        assert_ne!(after([1, 2]), after([2, 1]));
    }
    // SAFETY: both were created above.
    unsafe {
        cl().release_kernel(kernel).unwrap();
        cl().release_program(program).unwrap();
    }
    drop(a);
    rig.end();
}
