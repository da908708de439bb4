//! What a backend implements: traits whose methods take the backend's own types.
//!
//! [`ApiTypes`] names the types of one API's objects. [`TypedDevice`], [`TypedMemory`] and [`TypedQueue`] are those objects
//! whose methods take other objects of the backend; [`dynamic`](crate::dynamic) implements the object-safe
//! [`Device`](crate::Device), [`Memory`](crate::Memory) and [`Queue`](crate::Queue) for all of them. An argument has been
//! checked before a method here sees it: it is of this backend and of this device, and ranges lie inside their
//! memories. A method that relies on such a check is `unsafe`, and the adapter calls it. Events, programs, kernels, semaphores
//! and host signals take no other objects, so a backend implements the object-safe traits for those directly.
//!
//! A small backend implements the methods that have no default; everything else is optional.

mod device;
mod memory;
mod queue;
mod views;

pub use device::TypedDevice;
pub use memory::{AllocationPart, TypedMemory};
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
    /// Points in its queues.
    type Event: Event;
    /// Its built programs.
    type Program: Program;
    /// Kernels of its programs.
    type Kernel: Kernel;
    /// Semaphores that it makes or imports; [`NoSemaphore`] where it does neither.
    type Semaphore: Semaphore;
}

/// The semaphores of an API that has none.
#[derive(Debug)]
pub enum NoSemaphore {}

impl Semaphore for NoSemaphore {
    fn domain(&self) -> Domain {
        match *self {}
    }
}

/// The memory of the API that `Q` is a queue of.
pub type MemoryOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Memory;
/// The events of the API that `Q` is a queue of.
pub type EventOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Event;
/// The kernels of the API that `Q` is a queue of.
pub type KernelOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Kernel;
/// The semaphores of the API that `Q` is a queue of.
pub type SemaphoreOf<Q> = <<Q as TypedQueue>::Types as ApiTypes>::Semaphore;
/// The queues of the API that `M` is memory of.
pub type QueueOf<M> = <<M as TypedMemory>::Types as ApiTypes>::Queue;
