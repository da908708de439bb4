//! The object-safe traits, for every backend that implements the typed ones.
//!
//! What a call is given is checked here and nowhere else: whether an object is one of this backend and of this device, whether
//! a range lies inside its memory, whether a transfer is empty, what a region or a kernel may do with memory. Each object is
//! downcast once. The implementations cover all types of all backends, so there is no wrapper around an object, and no
//! allocation beside the one of the object itself.

mod device;
mod memory;
mod queue;

use crate::{
    Error, Event, Kernel, Memory, Queue, Result, Semaphore, checks,
    typed::{EventOf, KernelOf, MemoryOf, QueueOf, SemaphoreOf, TypedMemory, TypedQueue},
};

/// A memory's own type, when it belongs to the queue's device.
#[inline(always)]
pub(crate) fn own_memory<'m, Q: TypedQueue>(
    queue: &Q,
    memory: &'m dyn Memory,
) -> Result<&'m MemoryOf<Q>> {
    let own = memory.as_any().downcast_ref::<MemoryOf<Q>>();
    match own.filter(|own| TypedMemory::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "memory", own.map(TypedMemory::domain))),
    }
}

/// An event's own type, when it belongs to the queue's domain.
#[inline]
pub fn own_event<'e, Q: TypedQueue>(queue: &Q, event: &'e dyn Event) -> Result<&'e EventOf<Q>> {
    let own = event.as_any().downcast_ref::<EventOf<Q>>();
    match own.filter(|own| Event::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "an event", own.map(Event::domain))),
    }
}

/// A kernel's own type, when it belongs to the queue's device.
#[inline]
fn own_kernel<'k, Q: TypedQueue>(queue: &Q, kernel: &'k dyn Kernel) -> Result<&'k KernelOf<Q>> {
    let own = kernel.as_any().downcast_ref::<KernelOf<Q>>();
    match own.filter(|own| Kernel::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "a kernel", own.map(Kernel::domain))),
    }
}

/// A semaphore's own type, when it belongs to the queue's device.
fn own_semaphore<'s, Q: TypedQueue>(
    queue: &Q,
    semaphore: &'s dyn Semaphore,
) -> Result<&'s SemaphoreOf<Q>> {
    let own = semaphore.as_any().downcast_ref::<SemaphoreOf<Q>>();
    match own.filter(|own| Semaphore::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "a semaphore", own.map(Semaphore::domain))),
    }
}

/// A queue's own type, when it belongs to the memory's device.
fn own_queue<'q, M: TypedMemory>(memory: &M, queue: &'q dyn Queue) -> Result<&'q QueueOf<M>> {
    let (own, domain) = (queue.as_any().downcast_ref::<QueueOf<M>>(), TypedMemory::domain(memory));
    own.filter(|own| TypedQueue::domain(*own) == domain).ok_or_else(|| {
        checks::foreign("a queue", own.map(TypedQueue::domain), domain, TypedMemory::info(memory))
    })
}

#[cold]
fn foreign<Q: TypedQueue>(queue: &Q, what: &str, domain: Option<crate::Domain>) -> Error {
    checks::foreign(what, domain, TypedQueue::domain(queue), TypedQueue::info(queue))
}
