//! One buffer, every compute API.
//!
//! A program allocates a [`Buffer`] once and uses it from CPU code, OpenCL (every platform on the machine), CUDA,
//! HIP, OpenGL and Vulkan. No bytes are copied where the machine allows it. The library waits for the right fence
//! automatically. Both can be verified: the [`Ledger`] counts every byte moved, and the [`doctor`] tests every route.
//!
//! ```text
//!   hub ── device ── queue ─┐
//!    │                      ├─ view: "this queue reads (or writes) this buffer now"
//!    └──── buffer ──────────┘        taken: release → fence → acquire.   dropped: queue point recorded.
//!            │
//!          plan: home, memory kind, and a route and a sync method for each device
//! ```
//!
//! # Example
//!
//! ```
//! use onebuf::{Each, Source, prelude::*};
//!
//! # fn main() -> onebuf::Result<()> {
//! let hub = onebuf::discover()?;                       // a missing API is not an error
//! let host = hub.host();
//! let signal = hub.buffer_from(&[1.0_f32; 1024]).shared_with([&host]).build()?;
//!
//! let twice = Source::opencl_c("kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }")
//!     .with_native("twice", |args| {                   // the same kernel for the CPU
//!         args.slice_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= 2.0);
//!         Ok(())
//!     });
//! // SAFETY: work-item i touches x[i] only.
//! let twice = unsafe { host.kernel::<(Each<&mut f32>,)>(twice, "twice")? };
//! twice.launch([1024], (&signal,))?;                   // refused if there were fewer elements
//! assert!(signal.map()?.iter().all(|&x| x == 2.0));    // waits for the kernel, reads in place
//! assert_eq!(hub.ledger().implied_bytes(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! Replace `hub.host()` by `hub.device("opencl:0")?` and nothing else changes; name several devices in
//! `shared_with`, and they take turns on the same bytes.
//!
//! # Scope
//!
//! Linux; buffers, not images; the host, OpenCL 1.1 to 3.1, CUDA, HIP, OpenGL (through EGL) and Vulkan (1.2 and
//! newer), each found at run time. A route is used when an experiment on this machine has proven it, or when the API's
//! contract guarantees it; see [`doctor`]. Implied copies are counted, and refused under [`CopyPolicy::Forbid`].
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | adds | costs |
//! |---|---|---|
//! | `cpu-libs` | matrix products, Fourier transforms and linear systems on queues of the host ([`libs`]) | the crates gemm and rustfft |
//! | `glsl` | kernels in GLSL on Vulkan, whose drivers take SPIR-V only; OpenGL needs no compiler of ours | the crate naga |
//! | `tracing` | a span of the crate [tracing](https://docs.rs/tracing) for each launch, hand-over, wait, copy and stage ([`trace`]) | no further crate: errors and warnings use it anyway |
//! | `testing` | `source::Synthetic` and `sink::Faults` in [`pipeline`], which tests, demonstrations and benchmarks use | nothing |
//!
//! Each API is loaded at run time: no feature chooses one, and none is needed to build.
//!
//! # Where to read on
//!
//! [`Hub`], [`BufferBuilder`] and [`DeviceKernelExt::kernel`] are the way in. See [`Buffer::sub_buffer`] for regions,
//! [`Device::queue_with`] for other kinds of queue, [`Pool`] for buffers that are created repeatedly, [`pipeline`] for
//! continuous streams of frames, [`peer`] for two processes, and [`trace`] for recorded events. [`plan::plan`] chooses routes
//! as a pure function of a [`topology::Topology`]. [`fake`] has a device for tests.

#![deny(unsafe_code)]

mod backends;
pub mod foreign;
pub mod prelude;
mod typed;

pub use backends::{builder, discover};
pub use foreign::{
    ClEventHandle, CudaHubExt, ForeignBufferInfo, ForeignContext, ForeignContextInfo, ForeignGl,
    ForeignGlBufferInfo, ForeignPointerInfo, ForeignQueueInfo, ForeignVulkan, GlHubExt, GlQueue,
    Here, OpenClFenceExt, OpenClHubExt, Placement, PointerKind, UserEvent, VulkanBuffer,
    VulkanFenceExt, VulkanHandles, VulkanHubExt, VulkanMemory, VulkanPoint, VulkanPointHandle,
    VulkanSharedQueue, VulkanSubmission,
};
#[doc(hidden)]
pub use onebuf_core::reflect;
pub use onebuf_core::{
    Access, ApplicationError, Arg, Borrowed, Buffer, BufferBuilder, Call, Cause, Complex32,
    Complex64, CopyPolicy, Device, Entry, Error, Exported, FdKind, Fence, Grid, Hint, HostAccess,
    Hub, HubBuilder, ImportBuilder, IntoArg, Kernel, Ledger, Map, MapMut, MapWrite, MemoryKind,
    NativeArgs, NativeMemory, Origin, Pending, Pool, PoolStatistics, Probe, Profile, Program,
    ProgramCache, Queue, QueueOrder, QueuePool, QueueSpec, ReadView, Result, RouteKind, Signature,
    Source, SubBuffer, SyncMethod, Unavailable, Verdicts, WrapBuilder, WriteBatch, WriteView, args,
    bridge, bytemuck, cache, fake, hal, half, num_complex, observe, plan, pool, printable,
    topology,
};
pub use onebuf_doctor as doctor;
pub use onebuf_graft as graft;
pub use onebuf_libs as libs;
pub use onebuf_observe::{live, trace};
pub use onebuf_peer as peer;
pub use onebuf_pipeline as pipeline;
pub use typed::{
    Argument, Arguments, DeviceKernelExt, Each, Local, Out, Parameter, Parameters,
    ProgramKernelExt, TypedKernel, Value,
};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/bridge.md")]
struct BridgePage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/pool.md")]
struct PoolPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/sync.md")]
struct SyncPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/programs.md")]
struct ProgramsPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/graft.md")]
struct GraftPage;

#[cfg(all(doctest, feature = "cpu-libs"))]
#[doc = include_str!("../../../docs/libs.md")]
struct LibsPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/foreign.md")]
struct ForeignPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/backends/cuda.md")]
struct CudaPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/backends/opengl.md")]
struct OpenGlPage;

#[cfg(all(doctest, feature = "glsl"))]
#[doc = include_str!("../../../docs/backends/vulkan.md")]
struct VulkanPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/neighbours/dma-buf.md")]
struct DmaBufPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/peers.md")]
struct PeersPage;

#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../../../docs/pipeline.md")]
struct PipelinePage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/trace.md")]
struct TracePage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/top.md")]
struct TopPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/coming-from.md")]
struct ComingFromPage;
