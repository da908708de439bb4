//! A queue that runs everything at once, on the thread that enqueues it.
//!
//! # Safety
//!
//! Every access to memory is bounds-checked here first, and goes to pages that a [`HostMemory`] keeps
//! mapped. Transfers go through [`VolatileBytes`]: another process may write the pages, or another mapping in
//! this one, whatever guards say. Only kernels rely on exclusive access: by the contract of `hal`, the
//! caller that launches one holds a guard of a buffer that no other process sees.

#![allow(unsafe_code)]

use super::{API, HostMemory, event::Done, program::HostKernel};
use onebuf_hal::{
    AccessState, Arg, Domain, Error, Event, Grid, HostSignal, Kernel, Memory, NativeArg, Profile,
    Queue, Result, VolatileBytes, checks, locks::Arc, watchdog::Post,
};
use std::time::Instant;

/// Kernels with more arguments cost an allocation per launch.
const FEW: usize = 8;

/// The calling thread, as a queue.
#[derive(Debug)]
pub(super) struct HostQueue {
    domain: Domain,
    /// When it was opened; its clock starts there.
    opened: Instant,
    profiling: bool,
    /// Its limit is how long `wait_for` blocks the caller.
    post: Arc<Post>,
}

impl HostQueue {
    pub(super) fn new(domain: Domain, post: &Arc<Post>, profiling: bool) -> Self {
        HostQueue { domain, opened: Instant::now(), profiling, post: post.clone() }
    }

    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Runs something, and gives an event that knows when it ran.
    fn timed(&self, work: impl FnOnce() -> Result<()>) -> Result<Arc<dyn Event>> {
        let started_ns = self.now_ns();
        work()?;
        let ended_ns = self.now_ns();
        let (queued_ns, submitted_ns) = (started_ns, started_ns);
        let profile = Profile { queued_ns, submitted_ns, started_ns, ended_ns };
        Ok(Arc::new(Done { domain: self.domain, profile: self.profiling.then_some(profile) }))
    }

    fn memory<'a>(&self, memory: &'a dyn Memory) -> Result<&'a HostMemory> {
        HostMemory::of(memory, self.domain)
    }

    fn volatile<'a>(&self, memory: &'a dyn Memory) -> Result<VolatileBytes<'a>> {
        let memory = self.memory(memory)?;
        // SAFETY: it has so many bytes, mapped for as long as it is borrowed.
        Ok(unsafe { VolatileBytes::new(memory.pointer(), memory.bytes()) })
    }

    fn done(&self) -> Arc<dyn Event> {
        Arc::new(Done { domain: self.domain, profile: None })
    }

    fn native_arg<'a>(&self, arg: &Arg<'a>) -> Result<NativeArg<'a>> {
        match *arg {
            Arg::Memory(memory, access, bytes) => {
                let memory = self.memory(memory)?;
                Ok(NativeArg::Buffer {
                    pointer: memory.pointer().as_ptr(),
                    bytes: memory.bytes().min(bytes),
                    writes: access.writes(),
                })
            }
            Arg::Bytes(bytes) => Ok(NativeArg::Value(bytes)),
            Arg::Local(_) => Err(Error::unsupported(
                "a group-local argument of a native kernel",
                "a device with work-groups",
            )),
        }
    }
}

impl Queue for HostQueue {
    fn domain(&self) -> Domain {
        self.domain
    }

    fn runs_at_once(&self) -> bool {
        true
    }

    fn mark(&self) -> Result<Arc<dyn Event>> {
        Ok(self.done())
    }

    fn wait_for(&self, events: &[Arc<dyn Event>]) -> Result<()> {
        events.iter().try_for_each(|event| event.wait(self.post.limit()))
    }

    fn host_signal(&self) -> Result<Box<dyn HostSignal>> {
        Err(Error::unsupported(
            format!("a host signal on {API}"),
            "a queue that runs behind the caller's back",
        ))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn reside(&self, memory: &dyn Memory, _to: AccessState) -> Result<bool> {
        self.memory(memory).map(|_| false)
    }

    unsafe fn read(
        &self,
        from: &dyn Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>> {
        let source = self.volatile(from)?;
        checks::range(from.bytes(), offset, bytes)?;
        checks::host_pointer(into, bytes)?;
        if bytes > 0 {
            // SAFETY: the caller vouches for so many bytes, and that they are this call's alone.
            source.read(offset, unsafe { std::slice::from_raw_parts_mut(into, bytes) })?;
        }
        Ok(self.done())
    }

    unsafe fn write(
        &self,
        to: &dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn Event>> {
        let target = self.volatile(to)?;
        checks::range(to.bytes(), offset, bytes)?;
        checks::host_pointer(from, bytes)?;
        if bytes > 0 {
            // SAFETY: the caller vouches for so many bytes, and that nothing writes them meanwhile.
            target.write(offset, unsafe { std::slice::from_raw_parts(from, bytes) })?;
        }
        Ok(self.done())
    }

    fn fill(&self, memory: &dyn Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        let target = self.volatile(memory)?;
        let range = checks::fill(memory.bytes(), offset, bytes, pattern)?;
        target.fill(range.start, range.len(), pattern)
    }

    fn copy(
        &self,
        from: &dyn Memory,
        from_offset: usize,
        to: &dyn Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let source = checks::range(from.bytes(), from_offset, bytes)?;
        let target = checks::range(to.bytes(), to_offset, bytes)?;
        if self.memory(from)?.pointer() == self.memory(to)?.pointer() {
            checks::apart(source.start, target.start, bytes)?;
        }
        let (from, to) = (self.volatile(from)?, self.volatile(to)?);
        to.copy_from(target.start, &from, source.start, bytes)
    }

    unsafe fn launch(
        &self,
        kernel: &dyn Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn Event>>> {
        let HostKernel(code) =
            kernel.as_any().downcast_ref().ok_or_else(|| Error::ForeignContext {
                have: format!("{kernel:?}"),
                want: format!("a kernel of {API}"),
            })?;
        code.check(grid, args.len())?;
        let (mut few, mut many) = ([NativeArg::Value(&[]); FEW], Vec::new());
        let room = match few.get_mut(..args.len()) {
            Some(room) => room,
            None => {
                many.resize(args.len(), NativeArg::Value(&[]));
                &mut many[..]
            }
        };
        for (to, arg) in room.iter_mut().zip(args) {
            *to = self.native_arg(arg)?;
        }
        self.wait_for(after)?;
        // SAFETY: the memories behind the arguments are borrowed for this call, and the caller holds
        // views of them as their accesses say.
        let run = || unsafe { code.run(grid, room) };
        if wants_event { self.timed(run).map(Some) } else { run().map(|()| None) }
    }

    fn raw(&self) -> usize {
        0
    }
}
