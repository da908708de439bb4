//! Class A's own work: kernels, transfers, maps, events.

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

/// `a_step` is [`crate::step_model`]; `a_spin` runs for the given number of rounds, and is [`spin_model`].
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

/// Numbers drawn in each round. llvmpipe leaves a kernel's loops after 65,535 iterations in total.
const DRAWS: u32 = 16;
const MOST_ROUNDS: u32 = 65_000;

/// Computes `rounds` of the congruential generator at once: the maps `x -> a x + c` are composed by squaring.
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
    // SAFETY: one zero-terminated text, so no length is needed.
    let made = unsafe { cl().create_program_with_source(context.get(), 1, &text, null()) };
    // SAFETY: just created, so the reference is ours.
    let program: Own<ClProgram> = unsafe { Own::new(check("clCreateProgramWithSource", made)) };
    // SAFETY: for all devices of the context, without options and callback.
    let built =
        unsafe { cl().build_program(program.get(), 0, null(), c"".as_ptr(), None, null_mut()) };
    check("clBuildProgram", built);
    program
}

impl ClassA {
    /// Creates a buffer with these words that kernels read and write.
    pub fn words(&self, words: &[u32]) -> Own<ClMem> {
        let (flags, bytes) = (CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size_of_val(words));
        // SAFETY: the call itself copies the words.
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

    /// Enqueues a kernel. Each launch has its own kernel object, because some drivers read arguments late.
    fn launch(
        &self,
        name: &CStr,
        queue: &Own<ClQueue>,
        mem: &Own<ClMem>,
        words: [u32; 3],
        waits: &[ClEvent],
    ) -> Own<ClEvent> {
        // SAFETY: the program is built and has this kernel.
        let made = unsafe { cl().create_kernel(self.program.get(), name.as_ptr()) };
        // SAFETY: just created, so the reference is ours.
        let kernel: Own<ClKernel> = unsafe { Own::new(check("clCreateKernel", made)) };
        let handle = mem.get();
        // SAFETY: the kernels take a buffer and three words, and only this thread has this kernel object.
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
        // SAFETY: all arguments are set, and work-items past the words do nothing.
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
        // SAFETY: the call created the event.
        unsafe { Own::new(event) }
    }

    /// Reads the words of a buffer, and waits for everything enqueued on the queue before.
    pub fn read(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, n: usize) -> Vec<u32> {
        let mut words = vec![0u32; n];
        let (bytes, to) = (n * size_of::<u32>(), words.as_mut_ptr().cast());
        let (queue, mem) = (queue.get(), mem.get());
        // SAFETY: the call blocks, and the vector has room for the bytes.
        let done = unsafe {
            cl().enqueue_read_buffer(queue, mem, CL_TRUE, 0, bytes, to, 0, null(), null_mut())
        };
        check("clEnqueueReadBuffer", done);
        words
    }

    /// Writes words to the start of a buffer, and waits.
    pub fn write(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, words: &[u32]) {
        let (bytes, from) = (size_of_val(words), words.as_ptr().cast());
        let (queue, mem) = (queue.get(), mem.get());
        // SAFETY: the call blocks, and the slice has that length.
        let done = unsafe {
            cl().enqueue_write_buffer(queue, mem, CL_TRUE, 0, bytes, from, 0, null(), null_mut())
        };
        check("clEnqueueWriteBuffer", done);
    }

    /// Maps `bytes` bytes for reading and writing, and waits.
    pub fn map(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, bytes: usize) -> NonNull<c_void> {
        let (flags, queue, mem) = (CL_MAP_READ | CL_MAP_WRITE, queue.get(), mem.get());
        // SAFETY: the call blocks; users of the address stay within the bytes.
        let mapped = unsafe {
            cl().enqueue_map_buffer(queue, mem, CL_TRUE, flags, 0, bytes, 0, null(), null_mut())
        };
        check("clEnqueueMapBuffer", mapped)
    }

    /// Unmaps, and waits.
    pub fn unmap(&self, queue: &Own<ClQueue>, mem: &Own<ClMem>, mapped: NonNull<c_void>) {
        // SAFETY: the address is from [`Self::map`], and the caller unmaps it once.
        let done = unsafe {
            let at = mapped.as_ptr();
            cl().enqueue_unmap_mem_object(queue.get(), mem.get(), at, 0, null(), null_mut())
        };
        check("clEnqueueUnmapMemObject", done);
        self.finish(queue);
    }

    /// Creates a user event.
    pub fn user_event(&self) -> Own<ClEvent> {
        // SAFETY: a live context.
        let made = unsafe { cl().create_user_event(self.context.get()) };
        // SAFETY: just created, so the reference is ours.
        unsafe { Own::new(check("clCreateUserEvent", made)) }
    }

    /// Completes a user event.
    pub fn complete(&self, event: &Own<ClEvent>) {
        // SAFETY: a user event of this context, completed once by the caller.
        check("clSetUserEventStatus", unsafe {
            cl().set_user_event_status(event.get(), CL_COMPLETE)
        });
    }

    /// Whether an event's command is complete; panics if it failed.
    pub fn is_complete(&self, event: &Own<ClEvent>) -> bool {
        let mut status = 0i32;
        let (size, to) = (size_of::<i32>(), (&raw mut status).cast());
        let name = CL_EVENT_COMMAND_EXECUTION_STATUS;
        // SAFETY: a live event, and `status` has `size` bytes.
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

    /// Flushes the queue.
    pub fn flush(&self, queue: &Own<ClQueue>) {
        // SAFETY: a live queue.
        check("clFlush", unsafe { cl().flush(queue.get()) });
    }

    /// Waits for all work of a queue.
    pub fn finish(&self, queue: &Own<ClQueue>) {
        // SAFETY: a live queue.
        check("clFinish", unsafe { cl().finish(queue.get()) });
    }

    /// Allocates coarse-grained shared virtual memory; `None` if a device does not support it.
    pub fn svm(&self, bytes: usize) -> Option<Svm> {
        let coarse = |device| {
            let capabilities = self.device_number(device, CL_DEVICE_SVM_CAPABILITIES);
            capabilities.is_some_and(|bits| bits & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER != 0)
        };
        if !(0..self.devices.len()).all(coarse) {
            return None;
        }
        // SAFETY: all devices report support.
        let made = unsafe { cl().svm_alloc(self.context.get(), CL_MEM_READ_WRITE, bytes, 0) };
        let pointer = made.expect("clSVMAlloc");
        Some(Svm { pointer, bytes, context: self.context.clone() })
    }

    /// Writes zeros into the memory, by the queue, and waits. In PoCL 6.0 such memory holds the queue whose kernel used it last,
    /// until another one writes.
    pub fn clear_svm(&self, queue: &Own<ClQueue>, svm: &Svm) {
        let (pattern, pointer) = (0u8, svm.pointer.as_ptr());
        let from = (&raw const pattern).cast();
        // SAFETY: memory of this context, and a pattern of one byte.
        let filled = unsafe {
            cl().enqueue_svm_mem_fill(
                queue.get(),
                pointer,
                from,
                1,
                svm.bytes,
                0,
                null(),
                null_mut(),
            )
        };
        check("clEnqueueSVMMemFill", filled);
        self.finish(queue);
    }
}

pub(super) fn wait_list(events: &[ClEvent]) -> (u32, *const ClEvent) {
    let list = if events.is_empty() { null() } else { events.as_ptr() };
    (events.len() as u32, list)
}

/// Shared virtual memory of class A.
#[derive(Debug)]
pub struct Svm {
    /// The address, which is valid on the devices too.
    pub pointer: NonNull<c_void>,
    bytes: usize,
    context: Own<ClContext>,
}

impl Drop for Svm {
    fn drop(&mut self) {
        // SAFETY: allocated in this context, freed once.
        let freed = unsafe { cl().svm_free(self.context.get(), self.pointer.as_ptr()) };
        debug_assert!(freed.is_ok());
    }
}
