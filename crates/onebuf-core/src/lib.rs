//! The core of onebuf: buffers, queues, fences, plans, programs and pools, built on the traits of [`onebuf_hal`].
//!
//! This crate depends only on `onebuf-hal`, `onebuf-graft` and `onebuf-sys`, and on no backend: a hub is built from a list of
//! backends, which `onebuf::builder` provides. Items that only onebuf's own crates need (pipelines, the doctor, libraries, peers,
//! observers) are public but hidden from the documentation; they may change in any release. Programs use the crate `onebuf`.

#![deny(unsafe_code)]

/// Counts allocations, for the tests that limit what a parser allocates.
#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[global_allocator]
static ALLOCATOR: onebuf_hal::testing::meter::Counting = onebuf_hal::testing::meter::Counting;

pub mod bridge;
mod buffer;
mod builder;
pub mod cache;
mod device;
mod device_table;
mod extensions;
mod fence;
pub mod foreign;
mod hub;
#[doc(hidden)]
pub mod identity;
#[doc(hidden)]
pub mod internals;
mod ledger;
pub mod observe;
pub mod plan;
pub mod pool;
#[doc(hidden)]
pub mod private_files;
mod program;
mod queue_state;
mod queues;
#[doc(hidden)]
pub mod route;
mod sync;
pub mod topology;
mod verdicts;
mod view;

pub use buffer::{
    Buffer, BufferBuilder, Exported, ImportBuilder, Map, MapMut, MapWrite, Pending, SubBuffer,
    WriteBatch,
};
pub use builder::HubBuilder;
pub use device::Device;
pub use fence::Fence;
pub use foreign::{Borrowed, NativeMemory, WrapBuilder};
pub use hub::Hub;
pub use ledger::{Cause, Entry, Ledger};
pub use pool::{Pool, PoolStatistics};
pub use program::{
    Arg, Call, Grid, IntoArg, Kernel, Origin, Program, ProgramCache, Signature, Source,
};
pub use queues::{Queue, QueuePool};
pub use verdicts::Verdicts;
pub use view::{ReadView, WriteView};

pub use bytemuck;
pub use half;
pub use num_complex::{self, Complex32, Complex64};
pub use onebuf_graft as graft;
pub use onebuf_hal::{
    Access, ApplicationError, CopyPolicy, Error, FdKind, Hint, HostAccess, MemoryKind, NativeArgs,
    Profile, QueueOrder, QueueSpec, Result, RouteKind, SyncMethod, Unavailable, printable,
};
pub use onebuf_sys::Probe;

/// Plain data about devices and memory.
pub mod hal {
    pub use onebuf_hal::{
        Access, AddressSpace, Api, Backend, Caps, CopyPolicy, DeviceInfo, DeviceKind, Domain,
        FdKind, Hint, HostAccess, MemoryKind, NativeArgs, PciAddress, PhysicalId, Profile,
        QueueOrder, QueueSpec, RawHandle, RouteKind, SyncMethod, Unavailable, printable,
    };
}

/// What drivers report about kernels, for front ends whose users do not declare parameters.
#[doc(hidden)]
pub mod reflect {
    pub use crate::program::ReflectedKernel;
    /// The arguments of [`Kernel::launch_native`](crate::Kernel::launch_native).
    pub use onebuf_hal::Arg as NativeArgument;
    pub use onebuf_hal::{NumberType, ParameterKind, ReflectedParameter};
}

/// Configuration of the fake device, which tests use: it has separate memory, delayed completion and a protocol checker.
pub mod fake {
    pub use onebuf_hal::fake::{Delay, FakeConfig, Sharing};
}

/// A hub builder with every backend, like the one that `onebuf::builder` returns.
#[cfg(test)]
pub(crate) fn builder() -> HubBuilder {
    use onebuf_cuda::{CudaLikeBackend, Flavor};
    // SAFETY: these are onebuf's own backends, which implement the contract of `onebuf_hal::Backend`.
    #[allow(unsafe_code)]
    unsafe {
        HubBuilder::new(vec![
            Box::new(onebuf_host::HostBackend),
            Box::new(onebuf_opencl::OpenClBackend),
            Box::new(CudaLikeBackend(Flavor::Cuda)),
            Box::new(CudaLikeBackend(Flavor::Hip)),
            Box::new(onebuf_vulkan::VulkanBackend),
            Box::new(onebuf_gl::GlBackend),
        ])
    }
}
