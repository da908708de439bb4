//! Objects given as trait objects, as the backend's own types: each is downcast, and refused if it belongs to another backend,
//! device or domain.

use super::{EventOf, KernelOf, MemoryOf, QueueOf, SemaphoreOf, TypedMemory, TypedQueue};
use crate::{Error, Event, Kernel, Memory, Queue, Result, Semaphore, checks};

/// Downcasts a memory that belongs to the queue's device.
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

/// Downcasts an event that belongs to the queue's domain.
#[inline]
pub fn own_event<'e, Q: TypedQueue>(queue: &Q, event: &'e dyn Event) -> Result<&'e EventOf<Q>> {
    let own = event.as_any().downcast_ref::<EventOf<Q>>();
    match own.filter(|own| Event::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "an event", own.map(Event::domain))),
    }
}

/// Downcasts a kernel that belongs to the queue's device.
#[inline]
pub(crate) fn own_kernel<'k, Q: TypedQueue>(
    queue: &Q,
    kernel: &'k dyn Kernel,
) -> Result<&'k KernelOf<Q>> {
    let own = kernel.as_any().downcast_ref::<KernelOf<Q>>();
    match own.filter(|own| Kernel::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "a kernel", own.map(Kernel::domain))),
    }
}

/// Downcasts a semaphore that belongs to the queue's device.
pub(crate) fn own_semaphore<'s, Q: TypedQueue>(
    queue: &Q,
    semaphore: &'s dyn Semaphore,
) -> Result<&'s SemaphoreOf<Q>> {
    let own = semaphore.as_any().downcast_ref::<SemaphoreOf<Q>>();
    match own.filter(|own| Semaphore::domain(*own) == TypedQueue::domain(queue)) {
        Some(own) => Ok(own),
        None => Err(foreign(queue, "a semaphore", own.map(Semaphore::domain))),
    }
}

/// Downcasts a queue that belongs to the memory's device.
pub(crate) fn own_queue<'q, M: TypedMemory>(
    memory: &M,
    queue: &'q dyn Queue,
) -> Result<&'q QueueOf<M>> {
    let (own, domain) = (queue.as_any().downcast_ref::<QueueOf<M>>(), TypedMemory::domain(memory));
    own.filter(|own| TypedQueue::domain(*own) == domain).ok_or_else(|| {
        checks::foreign("a queue", own.map(TypedQueue::domain), domain, TypedMemory::info(memory))
    })
}

#[cold]
fn foreign<Q: TypedQueue>(queue: &Q, what: &str, domain: Option<crate::Domain>) -> Error {
    checks::foreign(what, domain, TypedQueue::domain(queue), TypedQueue::info(queue))
}
