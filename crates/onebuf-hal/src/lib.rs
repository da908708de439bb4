//! The traits that a onebuf backend implements, and the plain data that describes memory and work.
//!
//! No API's name appears here. A backend implements [`Backend`], which finds devices, and the traits of [`typed`], whose
//! methods take the backend's own types. [`dynamic`] implements the object-safe [`Device`], [`Memory`] and [`Queue`], which the
//! core uses, on top of them and checks every argument. Two objects can be used in one call if their [`Domain`]s are equal;
//! everything else that joins two backends goes through an [`Export`].
//!
//! Programs use the crate `onebuf`, which re-exports only the plain data of this crate. The traits are contracts that safe code
//! relies on: for example, a backend's host pointer becomes a slice.
//!
//! This crate may use `onebuf-sys` and no other crate of the project.
//!
//! | module | contents |
//! | [`typed`] | the traits that a backend implements |
//! | [`dynamic`] | the object-safe traits on top of them, with the argument checks |
//! | [`checks`], [`native`], [`host_signals`], [`mapped`], [`patience`], [`shaders`] | helpers that several backends share |
//! | [`locks`] | locks, atomics and threads: the standard library's, or shuttle's |
//! | [`watchdog`] | reports driver calls that do not return |
//! | [`fake`] | a device for tests: separate memory, late completion, a protocol checker |

#![deny(unsafe_code)]

mod backend;
mod base_device;
pub mod checks;
pub mod descriptor;
mod device;
pub mod dynamic;
mod error;
pub mod fake;
mod foreign;
pub mod host_signals;
mod ipc;
pub mod locks;
pub mod mapped;
pub mod native;
mod object;
pub mod packing;
pub mod patience;
mod printable;
mod program;
mod queue;
mod reflect;
mod semaphore;
pub mod shaders;
mod source;
#[cfg(all(any(test, feature = "testing"), not(onebuf_shuttle), not(miri)))]
pub mod testing;
pub mod typed;
mod volatile;
pub mod watchdog;
mod words;

pub use backend::{Backend, Discovered, DriverLibrary, Search, Unavailable};
pub use base_device::{BaseDevice, LayeredHandles, LayeredRuntime};
pub use device::{
    AccessState, AddressFrom, AddressRange, AllocSpec, Device, Export, FdRange, HostRange, Memory,
    PageFile, RawHandle,
};
pub use error::{ApplicationError, Error, Result};
pub use foreign::{DeviceEntries, KnownAs, Library, SecondContext};
pub use ipc::IpcRange;
pub use object::{ContextHandles, NativeContext, ObjectHome, ObjectRange};
pub use printable::printable;
pub use program::{Arg, Grid, Kernel, NativeArg, NativeArgs, NativeKernel, Program};
pub use queue::{Callback, Event, HostSignal, PeerStretch, Profile, Queue, QueueOrder, QueueSpec};
pub use reflect::{NumberType, ParameterKind, ReflectedParameter};
pub use semaphore::{Semaphore, SharedSemaphore};
pub use source::{Language, Shader, Source, is_spirv};
pub use volatile::VolatileBytes;
pub use words::{
    Access, AddressSpace, Api, Caps, CopyPolicy, DeviceInfo, DeviceKind, Domain, FdKind, Hint,
    HostAccess, MemoryKind, PciAddress, PhysicalId, RouteKind, SyncMethod,
};

/// Parser tests measure what the parsers allocate.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: testing::meter::Counting = testing::meter::Counting;
