//! The arguments and events of a call, given their own types one by one: nothing is collected, so that a launch allocates
//! nothing.

use super::{EventOf, MemoryOf, TypedMemory, TypedQueue};
use crate::{Access, Arg, Event, Result, checks, dynamic, locks::Arc};

/// One kernel argument.
#[derive(Debug)]
pub enum TypedArg<'a, M> {
    /// Memory of the launching queue's device, made for what the kernel does with it, and how many of its bytes are the
    /// kernel's.
    Memory(&'a M, Access, usize),
    /// A value's bytes.
    Bytes(&'a [u8]),
    /// Group-local memory of so many bytes.
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
    /// Those of a launch on the queue.
    #[inline]
    pub fn new(queue: &'a Q, args: &'a [Arg<'a>]) -> Self {
        Self { queue, args }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// As they were given.
    #[inline]
    pub fn untyped(&self) -> &'a [Arg<'a>] {
        self.args
    }

    /// Each in its own type; an error for memory of another device, or made for something else.
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
            let memory = dynamic::own_memory(queue, memory)?;
            checks::access(memory.access(), access)?;
            TypedArg::Memory(memory, access, bytes.min(memory.bytes()))
        }
        Arg::Bytes(bytes) => TypedArg::Bytes(bytes),
        Arg::Local(bytes) => TypedArg::Local(bytes),
    })
}

/// Events that a queue is to wait for. Some queues take those of other domains.
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
    /// Those that the queue is to wait for.
    #[inline]
    pub fn new(queue: &'a Q, events: &'a [Arc<dyn Event>]) -> Self {
        Self { queue, events }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// As they were given, for queues that take other APIs' events.
    #[inline]
    pub fn untyped(&self) -> &'a [Arc<dyn Event>] {
        self.events
    }

    /// Each in its own type; an error for those of another domain.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<&'a EventOf<Q>>> + use<'a, Q> {
        let queue = self.queue;
        self.events.iter().map(move |event| dynamic::own_event(queue, &**event))
    }
}
