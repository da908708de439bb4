//! The traits that a backend implements; their methods take the backend's own types.
//!
//! [`ApiTypes`] names the types of one API's objects. [`TypedDevice`], [`TypedMemory`] and [`TypedQueue`] are the objects whose
//! methods take other objects of the backend; [`dynamic`](crate::dynamic) implements the object-safe [`Device`](crate::Device),
//! [`Memory`](crate::Memory) and [`Queue`](crate::Queue) for all of them. Arguments have been checked before these methods are
//! called: objects belong to this backend and device, and ranges lie inside their memories. A method that relies on such a
//! check is `unsafe`, and the adapter calls it. Events, programs, kernels, semaphores and host signals take no other objects,
//! so a backend implements the object-safe traits for those directly.
//!
//! A minimal backend implements the methods without a default; everything else is optional.

mod device;
mod memory;
mod own;
mod queue;
mod views;

pub use device::TypedDevice;
pub use memory::{AllocationPart, TypedMemory};
pub use own::own_event;
pub(crate) use own::{own_kernel, own_memory, own_queue, own_semaphore};
pub use queue::{PeerSource, TypedQueue};
pub use views::{Args, Events, TypedArg};

use crate::{Domain, Event, Kernel, Program, Semaphore};

/// The types of one API's objects. A backend implements it for the type that implements [`Backend`](crate::Backend).
pub trait ApiTypes: Sized + 'static {
    /// Its devices.
    type Device: TypedDevice<Types = Self>;
    /// Its memory.
    type Memory: TypedMemory<Types = Self>;
    /// Its queues.
    type Queue: TypedQueue<Types = Self>;
    /// Its events.
    type Event: Event;
    /// Its built programs.
    type Program: Program;
    /// Its kernels.
    type Kernel: Kernel;
    /// Its semaphores; [`NoSemaphore`] if it neither creates nor imports any.
    type Semaphore: Semaphore;
}

/// The semaphore type of an API without semaphores.
#[derive(Debug)]
pub enum NoSemaphore {}

impl Semaphore for NoSemaphore {
    fn domain(&self) -> Domain {
        match *self {}
    }
}

/// The memory type of the API of queue `Q`.
pub type MemoryOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Memory;
/// The event type of the API of queue `Q`.
pub type EventOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Event;
/// The kernel type of the API of queue `Q`.
pub type KernelOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Kernel;
/// The semaphore type of the API of queue `Q`.
pub type SemaphoreOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Semaphore;
/// The queue type of the API of memory `M`.
pub type QueueOf<M> = <<M as TypedMemory>::Types as ApiTypes>::Queue;
