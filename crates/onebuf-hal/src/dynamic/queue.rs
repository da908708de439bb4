//! Implements the object-safe queue trait for every typed queue.
//!
//! # Safety
//! The contract of the object-safe trait is that of the typed one plus the argument checks, which are made here.

#![allow(unsafe_code)]

use crate::{
    self as hal, AccessState, Arg, Domain, Error, Grid, PeerStretch, Result, checks,
    locks::Arc,
    typed::{
        Args, EventOf, Events, MemoryOf, PeerSource, TypedMemory, TypedQueue, own_kernel,
        own_memory, own_semaphore,
    },
};

// SAFETY: the contract of `TypedQueue`; every object and every range is checked before it reaches the queue.
unsafe impl<Q: TypedQueue> hal::Queue for Q {
    #[inline]
    fn domain(&self) -> Domain {
        TypedQueue::domain(self)
    }

    #[inline]
    fn runs_at_once(&self) -> bool {
        TypedQueue::runs_at_once(self)
    }

    fn check_thread(&self) -> Result<()> {
        TypedQueue::check_thread(self)
    }

    #[inline]
    fn mark(&self) -> Result<Arc<dyn hal::Event>> {
        shared::<Q>(TypedQueue::mark(self))
    }

    #[inline]
    fn mark_and_flush(&self) -> Result<Arc<dyn hal::Event>> {
        shared::<Q>(TypedQueue::mark_and_flush(self))
    }

    fn watch(&self) -> Result<Arc<dyn hal::Event>> {
        shared::<Q>(TypedQueue::watch(self))
    }

    #[inline]
    fn wait_for(&self, events: &[Arc<dyn hal::Event>]) -> Result<()> {
        TypedQueue::wait_for(self, Events::new(self, events))
    }

    fn takes(&self, event: &dyn hal::Event) -> bool {
        TypedQueue::takes(self, event)
    }

    fn host_signal(&self) -> Result<Box<dyn hal::HostSignal>> {
        TypedQueue::host_signal(self)
    }

    #[inline]
    fn has_host_signals(&self) -> bool {
        TypedQueue::has_host_signals(self)
    }

    fn events_take_calls(&self) -> bool {
        TypedQueue::events_take_calls(self)
    }

    fn drains_soon(&self) -> bool {
        TypedQueue::drains_soon(self)
    }

    fn note_use(&self, memory: &dyn hal::Memory) -> Result<()> {
        TypedQueue::note_use(self, own_memory(self, memory)?)
    }

    fn wait_value(&self, memory: &dyn hal::Memory, offset: usize, value: u32) -> Result<()> {
        let memory = self::part(self, memory, offset, size_of::<u32>())?;
        // SAFETY: the memory belongs to this device and contains the word.
        unsafe { TypedQueue::wait_value(self, memory, offset, value) }
    }

    fn signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        let own = own_semaphore(self, semaphore)?;
        // SAFETY: the semaphore belongs to this device.
        unsafe { TypedQueue::signal(self, own) }
    }

    fn wait_signal(&self, semaphore: &dyn hal::Semaphore) -> Result<()> {
        let own = own_semaphore(self, semaphore)?;
        // SAFETY: the semaphore belongs to this device.
        unsafe { TypedQueue::wait_signal(self, own) }
    }

    #[inline]
    fn flush(&self) -> Result<()> {
        TypedQueue::flush(self)
    }

    #[inline]
    fn reside(&self, memory: &dyn hal::Memory, to: AccessState) -> Result<bool> {
        let own = own_memory(self, memory)?;
        // SAFETY: the memory belongs to this device.
        unsafe { TypedQueue::reside(self, own, to) }
    }

    fn move_pages(
        &self,
        memory: &dyn hal::Memory,
        offset: usize,
        bytes: usize,
        to: AccessState,
    ) -> Result<()> {
        let memory = own_memory(self, memory)?;
        checks::range(TypedMemory::bytes(memory), offset, bytes)?;
        // SAFETY: the memory belongs to this device and contains the range.
        unsafe { TypedQueue::move_pages(self, memory, offset, bytes, to) }
    }

    #[inline]
    unsafe fn read(
        &self,
        from: &dyn hal::Memory,
        offset: usize,
        into: *mut u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        let from = part(self, from, offset, bytes)?;
        checks::host_pointer(into, bytes)?;
        if bytes == 0 {
            return shared::<Q>(TypedQueue::mark(self));
        }
        // SAFETY: the memory contains the range, `into` is not null, and the caller keeps it valid until the event completes.
        shared::<Q>(unsafe { TypedQueue::read(self, from, offset, into, bytes) })
    }

    #[inline]
    unsafe fn write(
        &self,
        to: &dyn hal::Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<Arc<dyn hal::Event>> {
        let to = part(self, to, offset, bytes)?;
        checks::host_pointer(from, bytes)?;
        if bytes == 0 {
            return shared::<Q>(TypedQueue::mark(self));
        }
        // SAFETY: the memory contains the range, `from` is not null, and the caller keeps it valid until the event completes.
        shared::<Q>(unsafe { TypedQueue::write(self, to, offset, from, bytes) })
    }

    fn fill(
        &self,
        memory: &dyn hal::Memory,
        offset: usize,
        bytes: usize,
        pattern: &[u8],
    ) -> Result<()> {
        let memory = part(self, memory, offset, bytes)?;
        checks::fill(TypedMemory::bytes(memory), offset, bytes, pattern)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the memory belongs to this device and contains the range, which consists of whole patterns.
        unsafe { TypedQueue::fill(self, memory, offset, bytes, checks::shortest(pattern)) }
    }

    fn copy(
        &self,
        from: &dyn hal::Memory,
        from_offset: usize,
        to: &dyn hal::Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let from = part(self, from, from_offset, bytes)?;
        let to = part(self, to, to_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let (a, b) = (from.part(), to.part());
        if a.allocation == b.allocation {
            checks::apart(a.start + from_offset, b.start + to_offset, bytes)?;
        }
        // SAFETY: both memories belong to this device and contain the ranges, which do not overlap.
        unsafe { TypedQueue::copy(self, (from, from_offset), (to, to_offset), bytes) }
    }

    fn copy_from_peer(
        &self,
        from: PeerStretch<'_>,
        to: &dyn hal::Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<Option<Arc<dyn hal::Event>>> {
        let to = own_memory(self, to)?;
        checks::range(TypedMemory::bytes(to), to_offset, bytes)?;
        let Some(queue) = from.queue.as_any().downcast_ref::<Q>() else { return Ok(None) };
        let (memory, offset) = (own_memory(queue, from.memory)?, from.offset);
        checks::range(TypedMemory::bytes(memory), offset, bytes)?;
        let known = [memory, to].into_iter().all(TypedMemory::takes_transfers);
        if bytes == 0 || !known {
            return Ok(None);
        }
        let from = PeerSource { queue, memory, offset };
        // SAFETY: each memory belongs to the device of its queue and contains its range.
        let copied = unsafe { TypedQueue::copy_from_peer(self, from, (to, to_offset), bytes) }?;
        Ok(copied.map(|event| Arc::new(event) as _))
    }

    #[inline]
    unsafe fn launch(
        &self,
        kernel: &dyn hal::Kernel,
        grid: &Grid,
        args: &[Arg<'_>],
        after: &[Arc<dyn hal::Event>],
        wants_event: bool,
    ) -> Result<Option<Arc<dyn hal::Event>>> {
        let kernel = own_kernel(self, kernel)?;
        if hal::Kernel::parameters(kernel) != args.len() {
            return Err(miscounted(kernel, args.len()));
        }
        let (args, after) = (Args::new(self, args), Events::new(self, after));
        // SAFETY: the kernel belongs to this device, and the caller guarantees what it accesses.
        let event = unsafe { TypedQueue::launch(self, kernel, grid, args, after, wants_event) }?;
        Ok(event.map(|event| Arc::new(event) as _))
    }

    fn call_native(
        &self,
        uses: &[&dyn hal::Memory],
        call: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        for memory in uses {
            TypedQueue::note_use(self, own_memory(self, *memory)?)?;
        }
        TypedQueue::call_native(self, call)
    }

    fn raw(&self) -> usize {
        TypedQueue::raw(self)
    }
}

#[inline]
fn shared<Q: TypedQueue>(event: Result<EventOf<Q>>) -> Result<Arc<dyn hal::Event>> {
    Ok(Arc::new(event?))
}

/// Downcasts a memory that belongs to the queue's device, accepts transfers and contains the range.
#[inline]
fn part<'m, Q: TypedQueue>(
    queue: &Q,
    memory: &'m dyn hal::Memory,
    offset: usize,
    bytes: usize,
) -> Result<&'m MemoryOf<Q>> {
    let memory = own_memory(queue, memory)?;
    checks::range(TypedMemory::bytes(memory), offset, bytes)?;
    match TypedMemory::takes_transfers(memory) {
        true => Ok(memory),
        false => Err(unknown(queue)),
    }
}

#[cold]
fn unknown<Q: TypedQueue>(queue: &Q) -> Error {
    let api = TypedQueue::info(queue).api;
    Error::unsupported(
        format!("a read, write, fill or copy by {api} of memory that another API allocated"),
        "kernels, or a queue of the device that it was allocated on",
    )
}

#[cold]
fn miscounted(kernel: &dyn hal::Kernel, given: usize) -> Error {
    let (name, takes) = (kernel.name(), kernel.parameters());
    Error::invalid(format!("kernel `{name}` takes {takes} arguments, {given} given"))
}
