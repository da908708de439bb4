//! A queue that runs all work immediately, on the thread that enqueues it.
//!
//! # Safety
//!
//! Every access is to a range that was checked to lie inside its memory, whose pages a [`HostMemory`] keeps mapped.
//! Transfers use [`VolatileBytes`], because another process, or another mapping in this one, may write the pages
//! regardless of access guards. Only kernels rely on exclusive access: by the contract of `hal`, the caller that
//! launches one holds a guard of a buffer that no other process sees.

#![allow(unsafe_code)]

use super::{HostBackend, HostMemory, event::Done, program::HostKernel};
use onebuf_hal::{
    DeviceInfo, Domain, Error, Grid, HostSignal, NativeArg, Profile, Result, VolatileBytes,
    locks::Arc,
    typed::{Args, Events, TypedArg, TypedMemory, TypedQueue},
    watchdog::Post,
};
use std::time::Instant;

/// Launches with more arguments than this allocate.
const FEW: usize = 8;

/// The calling thread, as a queue.
#[derive(Debug)]
pub struct HostQueue {
    domain: Domain,
    info: Arc<DeviceInfo>,
    /// When it was opened: the origin of its clock.
    opened: Instant,
    profiling: bool,
    /// Its limit bounds how long `wait_for` blocks the caller.
    post: Arc<Post>,
}

impl HostQueue {
    pub(super) fn new(
        domain: Domain,
        info: &Arc<DeviceInfo>,
        post: &Arc<Post>,
        profiling: bool,
    ) -> Self {
        let (info, post) = (info.clone(), post.clone());
        HostQueue { domain, info, opened: Instant::now(), profiling, post }
    }

    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Runs work, and returns an event with its times if the queue is profiled.
    fn timed(&self, work: impl FnOnce() -> Result<()>) -> Result<Done> {
        let started_ns = self.now_ns();
        work()?;
        let ended_ns = self.now_ns();
        let (queued_ns, submitted_ns) = (started_ns, started_ns);
        let profile = Profile { queued_ns, submitted_ns, started_ns, ended_ns };
        Ok(Done { domain: self.domain, profile: self.profiling.then_some(profile) })
    }

    fn done(&self) -> Done {
        Done { domain: self.domain, profile: None }
    }
}

fn volatile(memory: &HostMemory) -> VolatileBytes<'_> {
    // SAFETY: the memory has this many bytes, mapped for as long as it is borrowed.
    unsafe { VolatileBytes::new(memory.pointer(), memory.bytes()) }
}

fn native_arg(arg: TypedArg<'_, HostMemory>) -> Result<NativeArg<'_>> {
    match arg {
        TypedArg::Memory(memory, access, bytes) => Ok(NativeArg::Buffer {
            pointer: memory.pointer().as_ptr(),
            bytes,
            writes: access.writes(),
        }),
        TypedArg::Bytes(bytes) => Ok(NativeArg::Value(bytes)),
        TypedArg::Local(_) => Err(Error::unsupported(
            "a group-local argument of a native kernel",
            "a device with work-groups",
        )),
    }
}

// SAFETY: work is over when a call returns, and stays inside the given ranges.
unsafe impl TypedQueue for HostQueue {
    type Types = HostBackend;

    fn domain(&self) -> Domain {
        self.domain
    }

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn runs_at_once(&self) -> bool {
        true
    }

    fn mark(&self) -> Result<Done> {
        Ok(self.done())
    }

    /// Accepts events of any device: the calling thread waits.
    fn wait_for(&self, events: Events<'_, Self>) -> Result<()> {
        events.untyped().iter().try_for_each(|event| event.wait(self.post.limit()))
    }

    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        Err(Error::unsupported(
            format!("a host signal on {}", self.info.name),
            "a queue that runs asynchronously",
        ))
    }

    unsafe fn read(
        &self,
        from: &HostMemory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Done> {
        // SAFETY: the caller guarantees `bytes` valid bytes that only this call uses.
        volatile(from).read(offset, unsafe { std::slice::from_raw_parts_mut(into, bytes) })?;
        Ok(self.done())
    }

    unsafe fn write(
        &self,
        to: &HostMemory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Done> {
        // SAFETY: the caller guarantees `bytes` valid bytes that nothing writes meanwhile.
        volatile(to).write(offset, unsafe { std::slice::from_raw_parts(from, bytes) })?;
        Ok(self.done())
    }

    unsafe fn fill(
        &self,
        memory: &HostMemory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        volatile(memory).fill(offset, bytes, pattern)
    }

    unsafe fn copy(
        &self,
        (from, from_offset): (&HostMemory, usize),
        (to, to_offset): (&HostMemory, usize),
        bytes: usize,
    ) -> Result<()> {
        volatile(to).copy_from(to_offset, &volatile(from), from_offset, bytes)
    }

    unsafe fn launch(
        &self,
        kernel: &HostKernel,
        grid: &Grid,
        args: Args<'_, Self>,
        after: Events<'_, Self>,
        wants_event: bool,
    ) -> Result<Option<Done>> {
        kernel.check(grid)?;
        let (mut few, mut many) = ([NativeArg::Value(&[]); FEW], Vec::new());
        let room = match few.get_mut(..args.len()) {
            Some(room) => room,
            None => {
                many.resize(args.len(), NativeArg::Value(&[]));
                &mut many[..]
            }
        };
        for (to, arg) in room.iter_mut().zip(args.iter()) {
            *to = native_arg(arg?)?;
        }
        self.wait_for(after)?;
        // SAFETY: the memories behind the arguments are borrowed for this call, and the caller holds views of them that
        // match their accesses.
        let run = || unsafe { kernel.run(grid, room) };
        if wants_event { self.timed(run).map(Some) } else { run().map(|()| None) }
    }
}
