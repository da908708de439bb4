//! What class A does with its memory: kernels, transfers, maps, events.

use super::{ClassA, Own, check, cl};
use crate::{GROUP, Step};
use onebuf_sys::opencl::{
    ClContext, ClEvent, ClKernel, ClMem, ClProgram, ClQueue,
    consts::{
        CL_COMPLETE, CL_DEVICE_SVM_CAPABILITIES, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER,
        CL_EVENT_COMMAND_EXECUTION_STATUS, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_COPY_HOST_PTR,
        CL_MEM_READ_WRITE, CL_TRUE,
    },
};
use std::{
    ffi::{CStr, c_void},
    ptr::{NonNull, null, null_mut},
    sync::PoisonError,
};

/// `a_step` is [`crate::step_model`]'s; `a_spin` takes as long as its rounds say, and has a model as well.
const TEXT: &CStr = c"
kernel void a_step(global uint *p, uint n, uint mul, uint add) {
    uint i = (uint)get_global_id(0);
    if (i < n) p[i] = p[i] * mul + add + i;
}
#define NEXT x = x * 1664525u + 1013904223u;
kernel void a_spin(global uint *p, uint n, uint rounds, uint unused) {
    uint i = (uint)get_global_id(0);
    if (i >= n) return;
    uint x = p[i];
    for (uint r = 0; r < rounds; r++) {
        NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT NEXT
    }
    p[i] = x + unused;
}
";

/// Numbers that each round draws. llvmpipe leaves a kernel's loops after 65,535 iterations, all together.
const DRAWS: u32 = 16;
const MOST_ROUNDS: u32 = 65_000;

/// `rounds` of the congruential generator at once: maps `x -> a x + c` are composed by squaring.
pub fn spin_model(model: &mut [u32], rounds: u32) {
    let draws = rounds * DRAWS;
    let (mut a, mut c) = (1u32, 0u32);
    let (mut square_a, mut square_c) = (1_664_525u32, 1_013_904_223u32);
    for bit in 0..u32::BITS {
        if draws >> bit & 1 == 1 {
            (a, c) = (square_a.wrapping_mul(a), square_a.wrapping_mul(c).wrapping_add(square_c));
        }
        square_c = square_a.wrapping_mul(square_c).wrapping_add(square_c);
        square_a = square_a.wrapping_mul(square_a);
    }
    model.iter_mut().for_each(|x| *x = x.wrapping_mul(a).wrapping_add(c));
}

pub(super) fn program(context: &Own<ClContext>) -> Own<ClProgram> {
    let text = TEXT.as_ptr();
    // SAFETY: one text that ends with zero, so that it needs no length.
    let made = unsafe { cl().create_program_with_source(context.get(), 1, &text, null()) };
    // SAFETY: just made, so ours.
    let program: Own<ClProgram> = unsafe { Own::new(check("clCreateProgramWithSource", made)) };
    // SAFETY: for all devices of the context, without options or callback.
    let built =
        unsafe { cl().build_program(program.get(), 0, null(), c"".as_ptr(), None, null_mut()) };
    check("clBuildProgram", built);
    program
}

impl ClassA {
    /// A buffer that kernels read and write, with these words in it.
    pub fn words(&self, words: &[u32]) -> Own<ClMem> {
        let (flags, bytes) = (CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size_of_val(words));
        // SAFETY: the words are copied by the call itself.
        unsafe { self.buffer(flags, bytes, words.as_ptr().cast_mut().cast()) }
    }

    /// Enqueues [`crate::step_model`] over the first `n` words.
    pub fn step(
        &self,
        queue: &Own<ClQueue>,
        mem: &Own<ClMem>,
        n: usize,
        step: Step,
        waits: &[ClEvent],
    ) -> Own<ClEvent> {
        self.launch(c"a_step", queue, mem, [n as u32, step.mul, step.add], waits)
    }

    /// Enqueues [`spin_model`] over the first `n` words.
    pub fn spin(
        &self,
        queue: &Own<ClQueue>,
        mem: &Own<ClMem>,
        n: usize,
        rounds: u32,
        waits: &[ClEvent],
    ) -> Own<ClEvent> {
        assert!(rounds <= MOST_ROUNDS, "not every driver's loops go on for so long");
        self.launch(c"a_spin", queue, mem, [n as u32, rounds, 0], waits)
    }

    /// Each launch has a kernel of its own: some drivers read arguments late.
    fn launch(
        &self,
        name: &CStr,
        queue: &Own<ClQueue>,
        mem: &Own<ClMem>,
        words: [u32; 3],
        waits: &[ClEvent],
    ) -> Own<ClEvent> {
        // SAFETY: a built program that has this kernel.
        let made = unsafe { cl().create_kernel(self.program.get(), name.as_ptr()) };
        // SAFETY: just made, so ours.
        let kernel: Own<ClKernel> = unsafe { Own::new(check("clCreateKernel", made)) };
        let handle = mem.get();
        // SAFETY: the kernels take a buffer and three words; this thread alone has this one.
        unsafe {
            let set = |at, size, value| cl().set_kernel_arg(kernel.get(), at, size, value);
            check("clSetKernelArg", set(0, size_of::<ClMem>(), (&raw const handle).cast()));
            for (at, word) in (1..).zip(&words) {
                check("clSetKernelArg", set(at, size_of::<u32>(), (&raw const *word).cast()));
            }
        }
        let (global, local) = ((words[0] as usize).next_multiple_of(GROUP), GROUP);
        let (count, list) = wait_list(waits);
        let mut event = ClEvent::NULL;
        // SAFETY: arguments are set, and work-items past the words do nothing.
        let done = unsafe {
            let (queue, kernel) = (queue.get(), kernel.get());
            cl().enqueue_nd_range_kernel(
                queue,
                kernel,
                1,
                null(),
                &global,
                &local,
                count,
                list,
                &mut event,
            )
        };
        check("clEnqueueNDRangeKernel", done);
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).push(kernel);
        // SAFETY: made by the call.
        unsafe { Own::new(event) }
    }

    /// The words in a buffer, read by a queue; whatever was enqueued there before is done then.
    pub fn read(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, n: usize) -> Vec<u32> {
        let mut words = vec![0u32; n];
        let (bytes, to) = (n * size_of::<u32>(), words.as_mut_ptr().cast());
        let (queue, mem) = (queue.get(), mem.get());
        // SAFETY: blocking, into a vector with that much room.
        let done = unsafe {
            cl().enqueue_read_buffer(queue, mem, CL_TRUE, 0, bytes, to, 0, null(), null_mut())
        };
        check("clEnqueueReadBuffer", done);
        words
    }

    /// Writes words to the start of a buffer, and waits for it.
    pub fn write(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, words: &[u32]) {
        let (bytes, from) = (size_of_val(words), words.as_ptr().cast());
        let (queue, mem) = (queue.get(), mem.get());
        // SAFETY: blocking, from a slice of that length.
        let done = unsafe {
            cl().enqueue_write_buffer(queue, mem, CL_TRUE, 0, bytes, from, 0, null(), null_mut())
        };
        check("clEnqueueWriteBuffer", done);
    }

    /// Maps so many bytes for reading and writing, and waits for it.
    pub fn map(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, bytes: usize) -> NonNull<c_void> {
        let (flags, queue, mem) = (CL_MAP_READ | CL_MAP_WRITE, queue.get(), mem.get());
        // SAFETY: blocking; whoever uses the address keeps to the bytes.
        let mapped = unsafe {
            cl().enqueue_map_buffer(queue, mem, CL_TRUE, flags, 0, bytes, 0, null(), null_mut())
        };
        check("clEnqueueMapBuffer", mapped)
    }

    /// Unmaps, and waits for it.
    pub fn unmap(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, mapped: NonNull<c_void>) {
        // SAFETY: mapped by [`Self::map`], which the caller does once.
        let done = unsafe {
            let at = mapped.as_ptr();
            cl().enqueue_unmap_mem_object(queue.get(), mem.get(), at, 0, null(), null_mut())
        };
        check("clEnqueueUnmapMemObject", done);
        self.finish(queue);
    }

    /// An event that this program completes itself.
    pub fn user_event(&self) -> Own<ClEvent> {
        // SAFETY: a live context.
        let made = unsafe { cl().create_user_event(self.context.get()) };
        // SAFETY: just made, so ours.
        unsafe { Own::new(check("clCreateUserEvent", made)) }
    }

    /// Completes a user event.
    pub fn complete(&self, event: &Own<ClEvent>) {
        // SAFETY: a user event of this context, completed once by the caller.
        check("clSetUserEventStatus", unsafe {
            cl().set_user_event_status(event.get(), CL_COMPLETE)
        });
    }

    /// Whether an event's command is complete; a failed one is a panic.
    pub fn is_complete(&self, event: &Own<ClEvent>) -> bool {
        let mut status = 0i32;
        let (size, to) = (size_of::<i32>(), (&raw mut status).cast());
        let name = CL_EVENT_COMMAND_EXECUTION_STATUS;
        // SAFETY: a live event, and room for its status.
        check("clGetEventInfo", unsafe {
            cl().get_event_info(event.get(), name, size, to, null_mut())
        });
        assert!(status >= 0, "class A's command failed with {status}");
        status == CL_COMPLETE
    }

    /// Waits for events.
    pub fn wait(&self, events: &[ClEvent]) {
        let (count, list) = wait_list(events);
        // SAFETY: live events of one context.
        check("clWaitForEvents", unsafe { cl().wait_for_events(count, list) });
    }

    /// Submits what is enqueued.
    pub fn flush(&self, queue: &Own<ClQueue>) {
        // SAFETY: a live queue.
        check("clFlush", unsafe { cl().flush(queue.get()) });
    }

    /// Waits for a queue.
    pub fn finish(&self, queue: &Own<ClQueue>) {
        // SAFETY: a live queue.
        check("clFinish", unsafe { cl().finish(queue.get()) });
    }

    /// Coarse-grained shared virtual memory, where every device has it.
    pub fn svm(&self, bytes: usize) -> Option<Svm> {
        let coarse = |device| {
            let capabilities = self.device_number(device, CL_DEVICE_SVM_CAPABILITIES);
            capabilities.is_some_and(|bits| bits & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER != 0)
        };
        if !(0..self.devices.len()).all(coarse) {
            return None;
        }
        // SAFETY: the devices say that they have it.
        let made = unsafe { cl().svm_alloc(self.context.get(), CL_MEM_READ_WRITE, bytes, 0) };
        let pointer = made.expect("clSVMAlloc");
        Some(Svm { pointer, context: self.context.clone() })
    }
}

pub(super) fn wait_list(events: &[ClEvent]) -> (u32, *const ClEvent) {
    let list = if events.is_empty() { null() } else { events.as_ptr() };
    (events.len() as u32, list)
}

/// Shared virtual memory of class A.
#[derive(Debug)]
pub struct Svm {
    /// Where it is, on the devices too.
    pub pointer: NonNull<c_void>,
    context: Own<ClContext>,
}

impl Drop for Svm {
    fn drop(&mut self) {
        // SAFETY: allocated in this context, freed once.
        let freed = unsafe { cl().svm_free(self.context.get(), self.pointer.as_ptr()) };
        debug_assert!(freed.is_ok());
    }
}
