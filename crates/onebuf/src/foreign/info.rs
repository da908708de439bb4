//! Properties of foreign OpenCL objects.

use super::context::Known;
use onebuf_core::{Hub, foreign::ElementLayout, internals::flags};
use onebuf_hal::{Access, Error, HostAccess, QueueSpec, Result};
use onebuf_opencl::foreign::{self, ContextFacts, MemoryFacts};
use onebuf_sys::opencl::consts as cl;
use std::{
    ffi::c_void,
    fmt, thread,
    time::{Duration, Instant},
};

/// Where the bytes of a buffer lie, according to its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// In application memory that the buffer was created over (`USE_HOST_PTR`).
    UseHostPointer,
    /// Where the driver can map them without a copy, if it can (`ALLOC_HOST_PTR`).
    AllocHostPointer,
    /// On the chip (TI's `USE_MSMC_TI`).
    OnChip,
    /// Where the driver chooses.
    Device,
}

/// The properties of a `cl_mem`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignBufferInfo {
    /// The size.
    pub bytes: usize,
    /// The creation flags, as OpenCL numbers them.
    pub flags: u64,
    /// What kernels may do with the buffer.
    pub access: Access,
    /// What the host may do with it.
    pub host: HostAccess,
    /// Where its bytes lie.
    pub placement: Placement,
    /// Whether it was initialized from host memory (`COPY_HOST_PTR`).
    pub copied: bool,
    /// The `cl_context`.
    pub context: usize,
    /// The hub's ids of that context's devices, as far as the hub knows them.
    pub devices: Vec<String>,
    /// The host memory that it was created over.
    pub host_pointer: Option<usize>,
    /// The current map count. While it is above zero, no kernel may use the buffer.
    pub map_count: u32,
    /// The reference count.
    pub reference_count: u32,
    /// The parent of a sub-buffer.
    pub parent: Option<usize>,
    /// The offset in the parent.
    pub offset: usize,
    /// Whether it was created over shared virtual memory; unknown before OpenCL 2.0.
    pub uses_svm: Option<bool>,
    /// The creation properties, such as those of memory imported from another API; empty before OpenCL 3.0.
    pub external: Vec<u64>,
    /// The alignment that its regions need.
    pub align_bytes: usize,
    /// Whether kernels can also access its bytes by a shared virtual address: it was created over one, or every pointer of
    /// the process is one.
    pub svm_can_alias: bool,
}

impl ForeignBufferInfo {
    /// Queries the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null, for an image or pipe, and if the driver
    /// detects that it is no memory object.
    ///
    /// # Safety
    /// `mem` is null, or a live `cl_mem` of the OpenCL library that this hub has loaded. Drivers do not detect all invalid
    /// handles.
    pub unsafe fn query(hub: &Hub, mem: *mut c_void) -> Result<Self> {
        let (cl, raw) = (Known::of(hub)?.cl(), mem.addr());
        // SAFETY: the caller's contract; a live buffer has a live context.
        let (facts, more, context) = unsafe {
            let facts = foreign::memory(cl, raw)?;
            let context = foreign::context(cl, facts.context)?;
            (facts, foreign::more(cl, raw, &context)?, context)
        };
        let known = KnownDevices::of(hub, &context)?;
        let MemoryFacts { bytes, flags, context, host_pointer, map_count, parent, offset } = facts;
        let over = host_pointer.filter(|_| flags & cl::CL_MEM_USE_HOST_PTR != 0);
        Ok(Self {
            bytes,
            flags,
            access: flags::access(flags),
            host: flags::host_access(flags),
            placement: placement(flags),
            copied: flags & cl::CL_MEM_COPY_HOST_PTR != 0,
            context,
            align_bytes: known.align_bytes,
            svm_can_alias: more.uses_svm == Some(true) || over.is_some() && known.svm_system,
            devices: known.ids,
            host_pointer: over,
            map_count,
            reference_count: more.reference_count,
            parent,
            offset,
            uses_svm: more.uses_svm,
            external: more.properties,
        })
    }

    /// Waits until the driver counts at most `references`, and returns the properties as they are then.
    ///
    /// A dropped wrap has released onebuf's references. The driver may hold references of its own for some milliseconds after a
    /// command has completed, and counts them; this call waits for those, too. It polls.
    ///
    /// # Errors
    /// [`Error::Timeout`](onebuf_hal::Error::Timeout) with the last count, and those of [`query`](Self::query).
    ///
    /// # Safety
    /// That of [`query`](Self::query), until the call returns.
    pub unsafe fn at_rest(
        hub: &Hub,
        mem: *mut c_void,
        references: u32,
        timeout: Duration,
    ) -> Result<Self> {
        // SAFETY: the caller's contract.
        let query = || unsafe { Self::query(hub, mem) };
        at_rest("cl_mem", query, |info| info.reference_count, references, timeout)
    }

    /// The number of elements of this type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) if the size is not a multiple of the element's.
    pub fn elements<T>(&self) -> Result<usize> {
        ElementLayout::of::<T>().count(self.bytes)
    }
}

/// Pause between two queries of a reference count.
const PAUSE: Duration = Duration::from_micros(200);

/// Repeats a query until it counts few enough references.
fn at_rest<I>(
    what: &str,
    query: impl Fn() -> Result<I>,
    count: impl Fn(&I) -> u32,
    references: u32,
    timeout: Duration,
) -> Result<I> {
    let start = Instant::now();
    loop {
        let info = query()?;
        let now = count(&info);
        if now <= references {
            return Ok(info);
        }
        if start.elapsed() >= timeout {
            let what = format!("the references of a {what}: {now}, waited for {references}");
            return Err(Error::timeout(what, timeout));
        }
        thread::sleep(PAUSE);
    }
}

fn placement(flags: u64) -> Placement {
    match flags {
        _ if flags & cl::CL_MEM_USE_HOST_PTR != 0 => Placement::UseHostPointer,
        _ if flags & cl::CL_MEM_ALLOC_HOST_PTR != 0 => Placement::AllocHostPointer,
        // The bit has this meaning on TI's platform only, and no other platform accepts it.
        _ if flags & cl::CL_MEM_USE_MSMC_TI != 0 => Placement::OnChip,
        _ => Placement::Device,
    }
}

/// What a hub knows about a context's devices.
struct KnownDevices {
    ids: Vec<String>,
    align_bytes: usize,
    svm_system: bool,
}

impl KnownDevices {
    fn of(hub: &Hub, context: &ContextFacts) -> Result<Self> {
        let known = Known::of(hub)?;
        let nodes = &hub.topology().nodes()[known.first..];
        let at = |raw: &usize| known.library.devices.iter().position(|device| device.is(*raw));
        let nodes: Vec<_> = context.devices.iter().filter_map(at).map(|at| &nodes[at]).collect();
        let aligns = nodes.iter().map(|node| node.info.caps.align_bytes);
        Ok(Self {
            align_bytes: aligns.max().unwrap_or(1),
            svm_system: !nodes.is_empty() && nodes.iter().all(|node| node.info.caps.svm_system),
            ids: nodes.iter().map(|node| node.id.clone()).collect(),
        })
    }
}

impl fmt::Display for ForeignBufferInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, access, host, placement, .. } = self;
        write!(f, "{bytes} bytes, kernels: {access}, host: {host}, {placement:?}")?;
        if self.parent.is_some() {
            write!(f, ", from byte {} of another", self.offset)?;
        }
        write!(f, ", on {}", self.devices.join(", "))
    }
}

/// The properties of a `cl_context`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignContextInfo {
    /// The hub's ids of its devices, as far as the hub knows them.
    pub devices: Vec<String>,
    /// The number of its devices, known or not.
    pub device_count: usize,
    /// The reference count.
    pub reference_count: u32,
    /// The creation properties.
    pub properties: Vec<isize>,
}

impl ForeignContextInfo {
    /// Queries the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null, and if the driver detects that it is no
    /// context.
    ///
    /// # Safety
    /// Null, or a live `cl_context` of the OpenCL library that this hub has loaded.
    pub unsafe fn query(hub: &Hub, context: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's contract.
        let facts = unsafe { foreign::context(Known::of(hub)?.cl(), context.addr()) }?;
        let devices = KnownDevices::of(hub, &facts)?.ids;
        let ContextFacts { devices: all, reference_count, properties } = facts;
        Ok(Self { devices, device_count: all.len(), reference_count, properties })
    }

    /// Waits until the driver counts at most `references`, and returns the properties as they are then.
    ///
    /// A dropped wrap has released onebuf's references. The driver may hold references of its own for some milliseconds after a
    /// command has completed, and counts them; this call waits for those, too. It polls.
    ///
    /// # Errors
    /// [`Error::Timeout`](onebuf_hal::Error::Timeout) with the last count, and those of [`query`](Self::query).
    ///
    /// # Safety
    /// That of [`query`](Self::query), until the call returns.
    pub unsafe fn at_rest(
        hub: &Hub,
        context: *mut c_void,
        references: u32,
        timeout: Duration,
    ) -> Result<Self> {
        // SAFETY: the caller's contract.
        let query = || unsafe { Self::query(hub, context) };
        at_rest("cl_context", query, |info| info.reference_count, references, timeout)
    }
}

/// The properties of a `cl_command_queue`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignQueueInfo {
    /// The hub's id of its device, if the hub knows it.
    pub device: Option<String>,
    /// The `cl_context`.
    pub context: usize,
    /// Whether it is in-order and has profiling.
    pub spec: QueueSpec,
    /// All property bits, as OpenCL numbers them.
    pub properties: u64,
    /// The reference count.
    pub reference_count: u32,
}

impl ForeignQueueInfo {
    /// Queries the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null, and if the driver detects that it is no
    /// queue.
    ///
    /// # Safety
    /// Null, or a live `cl_command_queue` of the OpenCL library that this hub has loaded.
    pub unsafe fn query(hub: &Hub, queue: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's contract.
        let facts = unsafe { foreign::queue(Known::of(hub)?.cl(), queue.addr()) }?;
        let foreign::QueueFacts { context, device, reference_count, spec, properties } = facts;
        let one = ContextFacts { devices: vec![device], reference_count: 0, properties: vec![] };
        let device = KnownDevices::of(hub, &one)?.ids.pop();
        Ok(Self { device, context, spec, properties, reference_count })
    }

    /// Waits until the driver counts at most `references`, and returns the properties as they are then.
    ///
    /// A dropped wrap has released onebuf's references. The driver may hold references of its own for some milliseconds after a
    /// command has completed, and counts them; this call waits for those, too. It polls.
    ///
    /// # Errors
    /// [`Error::Timeout`](onebuf_hal::Error::Timeout) with the last count, and those of [`query`](Self::query).
    ///
    /// # Safety
    /// That of [`query`](Self::query), until the call returns.
    pub unsafe fn at_rest(
        hub: &Hub,
        queue: *mut c_void,
        references: u32,
        timeout: Duration,
    ) -> Result<Self> {
        // SAFETY: the caller's contract.
        let query = || unsafe { Self::query(hub, queue) };
        at_rest("cl_command_queue", query, |info| info.reference_count, references, timeout)
    }
}
