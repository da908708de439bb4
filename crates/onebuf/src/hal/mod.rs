//! What devices are: the words in which memory and work are asked for, and plain data about devices.
//!
//! Inside the crate this is also what a backend is to everything above it: object-safe traits. No API's
//! name appears here. Two objects may meet in one call when their [`Domain`]s are equal; everything
//! else that joins two backends goes through an `Export`. The traits stay inside: they are contracts
//! between parts that trust each other, while everything public is safe to call.

mod backend;
mod base_device;
pub(crate) mod descriptor;
mod device;
mod foreign;
mod ipc;
mod object;
pub(crate) mod packing;
mod printable;
mod program;
mod queue;
mod semaphore;
mod source;
mod volatile;
mod words;

pub use backend::{Backend, Unavailable};
pub(crate) use backend::{Discovered, DriverLibrary, Search};
pub(crate) use base_device::{BaseDevice, LayeredHandles, LayeredRuntime};
pub use device::RawHandle;
pub(crate) use device::{
    AccessState, AddressFrom, AddressRange, AllocSpec, Device, Export, FdRange, HostRange, Memory,
    PageFile,
};
pub(crate) use foreign::{DeviceEntries, KnownAs, Library, SecondContext};
pub(crate) use ipc::IpcRange;
pub(crate) use object::{ContextHandles, NativeContext, ObjectHome, ObjectRange};
pub use printable::printable;
pub use program::NativeArgs;
pub(crate) use program::{Arg, Grid, Kernel, NativeArg, NativeKernel, Program};
pub(crate) use queue::{Callback, Event, HostSignal, PeerStretch, Queue};
pub use queue::{Profile, QueueOrder, QueueSpec};
pub(crate) use semaphore::{Semaphore, SharedSemaphore};
pub(crate) use source::{Language, Shader, Source, is_spirv};
pub(crate) use volatile::VolatileBytes;
pub use words::{
    Access, AddressSpace, Api, Caps, CopyPolicy, DeviceInfo, DeviceKind, Domain, FdKind, Hint,
    HostAccess, MemoryKind, PciAddress, PhysicalId, RouteKind, SyncMethod,
};
