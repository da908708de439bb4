//! The arguments and events of a call, downcast one by one: nothing is collected, so that a launch does not allocate.

use super::{EventOf, MemoryOf, TypedMemory, TypedQueue, own_event, own_memory};
use crate::{Access, Arg, Event, Result, checks, locks::Arc};

/// One kernel argument.
#[derive(Debug)]
pub enum TypedArg<'a, M> {
    /// Memory of the launching queue's device, how the kernel accesses it, and how many of its bytes belong to the argument.
    Memory(&'a M, Access, usize),
    /// A value's bytes.
    Bytes(&'a [u8]),
    /// Group-local memory of this many bytes.
    Local(usize),
}

/// The arguments of a launch.
pub struct Args<'a, Q> {
    queue: &'a Q,
    args: &'a [Arg<'a>],
}

impl<Q> Clone for Args<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q> Copy for Args<'_, Q> {}

impl<'a, Q: TypedQueue> Args<'a, Q> {
    /// The arguments of a launch on `queue`.
    #[inline]
    pub fn new(queue: &'a Q, args: &'a [Arg<'a>]) -> Self {
        Self { queue, args }
    }

    /// The number of arguments.
    #[inline]
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// The arguments as they were passed.
    #[inline]
    pub fn untyped(&self) -> &'a [Arg<'a>] {
        self.args
    }

    /// The arguments, downcast. An error for memory of another device, or for memory that was not created for this access.
    #[inline(always)]
    pub fn iter(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<TypedArg<'a, MemoryOf<Q>>>> + use<'a, Q> {
        let queue = self.queue;
        self.args.iter().map(move |arg| typed(queue, arg))
    }
}

#[inline(always)]
fn typed<'a, Q: TypedQueue>(queue: &Q, arg: &Arg<'a>) -> Result<TypedArg<'a, MemoryOf<Q>>> {
    Ok(match *arg {
        Arg::Memory(memory, access, bytes) => {
            let memory = own_memory(queue, memory)?;
            checks::access(memory.access(), access)?;
            TypedArg::Memory(memory, access, bytes.min(memory.bytes()))
        }
        Arg::Bytes(bytes) => TypedArg::Bytes(bytes),
        Arg::Local(bytes) => TypedArg::Local(bytes),
    })
}

/// The events that a queue is made to wait for. Some queues accept events of other domains.
pub struct Events<'a, Q> {
    queue: &'a Q,
    events: &'a [Arc<dyn Event>],
}

impl<Q> Clone for Events<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q> Copy for Events<'_, Q> {}

impl<'a, Q: TypedQueue> Events<'a, Q> {
    /// The events that `queue` is made to wait for.
    #[inline]
    pub fn new(queue: &'a Q, events: &'a [Arc<dyn Event>]) -> Self {
        Self { queue, events }
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events as they were passed, for queues that accept events of other APIs.
    #[inline]
    pub fn untyped(&self) -> &'a [Arc<dyn Event>] {
        self.events
    }

    /// The events, downcast. An error for an event of another domain.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<&'a EventOf<Q>>> + use<'a, Q> {
        let queue = self.queue;
        self.events.iter().map(move |event| own_event(queue, &**event))
    }
}
