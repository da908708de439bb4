//! What foreign OpenCL objects are.

use super::context::Known;
use onebuf_core::{Hub, foreign::ElementLayout, internals::flags};
use onebuf_hal::{Access, HostAccess, QueueSpec, Result};
use onebuf_opencl::foreign::{self, ContextFacts, MemoryFacts};
use onebuf_sys::opencl::consts as cl;
use std::{ffi::c_void, fmt};

/// Where the bytes of a buffer lie, as far as its flags tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// In the memory of the application that the buffer was made over (`USE_HOST_PTR`).
    UseHostPointer,
    /// Where the driver can map them without a copy, if it can at all (`ALLOC_HOST_PTR`).
    AllocHostPointer,
    /// On the chip (TI's `USE_MSMC_TI`).
    OnChip,
    /// Wherever the driver likes.
    Device,
}

/// What a `cl_mem` is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignBufferInfo {
    /// Its size.
    pub bytes: usize,
    /// The flags that it was made with, as OpenCL numbers them.
    pub flags: u64,
    /// What kernels may do with it.
    pub access: Access,
    /// What the host may.
    pub host: HostAccess,
    /// Where its bytes lie.
    pub placement: Placement,
    /// Whether it was filled from host memory when it was made (`COPY_HOST_PTR`).
    pub copied: bool,
    /// Its `cl_context`.
    pub context: usize,
    /// The devices of that context: the hub's ids, where the hub knows them.
    pub devices: Vec<String>,
    /// The host memory that it was made over.
    pub host_pointer: Option<usize>,
    /// How often it is mapped now. While it is, no kernel may use it.
    pub map_count: u32,
    /// How many references there are to it.
    pub reference_count: u32,
    /// The buffer that it is a part of.
    pub parent: Option<usize>,
    /// Its first byte in that buffer.
    pub offset: usize,
    /// Whether it was made over shared virtual memory; not known before OpenCL 2.0.
    pub uses_svm: Option<bool>,
    /// The properties that it was made with, such as those of memory imported from another API; none
    /// before OpenCL 3.0.
    pub external: Vec<u64>,
    /// The alignment that regions of it must have.
    pub align_bytes: usize,
    /// Whether kernels can use its bytes by a shared virtual address as well: it was made over one, or every
    /// pointer of the process is one.
    pub svm_can_alias: bool,
}

impl ForeignBufferInfo {
    /// Asks the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null, for an image or pipe, and for what the driver knows to be no
    /// memory object.
    ///
    /// # Safety
    /// Null, or a live `cl_mem` of the OpenCL library that this hub has loaded. A driver cannot tell a handle
    /// that is neither.
    pub unsafe fn query(hub: &Hub, mem: *mut c_void) -> Result<Self> {
        let (cl, raw) = (Known::of(hub)?.cl(), mem.addr());
        // SAFETY: the caller's promise; a live buffer has a live context.
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

    /// How many elements of this type it has.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) when its size is no multiple of theirs.
    pub fn elements<T>(&self) -> Result<usize> {
        ElementLayout::of::<T>().count(self.bytes)
    }
}

fn placement(flags: u64) -> Placement {
    match flags {
        _ if flags & cl::CL_MEM_USE_HOST_PTR != 0 => Placement::UseHostPointer,
        _ if flags & cl::CL_MEM_ALLOC_HOST_PTR != 0 => Placement::AllocHostPointer,
        // The bit means this on TI's platform only, which is the only one that takes it.
        _ if flags & cl::CL_MEM_USE_MSMC_TI != 0 => Placement::OnChip,
        _ => Placement::Device,
    }
}

/// What a hub knows of a context's devices.
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

/// What a `cl_context` is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignContextInfo {
    /// Its devices: the hub's ids, where the hub knows them.
    pub devices: Vec<String>,
    /// How many devices it has, known or not.
    pub device_count: usize,
    /// How many references there are to it.
    pub reference_count: u32,
    /// The properties that it was made with.
    pub properties: Vec<isize>,
}

impl ForeignContextInfo {
    /// Asks the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null and for what the driver knows to be no context.
    ///
    /// # Safety
    /// Null, or a live `cl_context` of the OpenCL library that this hub has loaded.
    pub unsafe fn query(hub: &Hub, context: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::context(Known::of(hub)?.cl(), context.addr()) }?;
        let devices = KnownDevices::of(hub, &facts)?.ids;
        let ContextFacts { devices: all, reference_count, properties } = facts;
        Ok(Self { devices, device_count: all.len(), reference_count, properties })
    }
}

/// What a `cl_command_queue` is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForeignQueueInfo {
    /// Its device: the hub's id, where the hub knows it.
    pub device: Option<String>,
    /// Its `cl_context`.
    pub context: usize,
    /// Its order, and whether it takes times.
    pub spec: QueueSpec,
    /// All bits of its properties, as OpenCL numbers them.
    pub properties: u64,
    /// How many references there are to it.
    pub reference_count: u32,
}

impl ForeignQueueInfo {
    /// Asks the driver.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](onebuf_hal::Error::InvalidArgument) for null and for what the driver knows to be no queue.
    ///
    /// # Safety
    /// Null, or a live `cl_command_queue` of the OpenCL library that this hub has loaded.
    pub unsafe fn query(hub: &Hub, queue: *mut c_void) -> Result<Self> {
        // SAFETY: the caller's promise.
        let facts = unsafe { foreign::queue(Known::of(hub)?.cl(), queue.addr()) }?;
        let foreign::QueueFacts { context, device, reference_count, spec, properties } = facts;
        let one = ContextFacts { devices: vec![device], reference_count: 0, properties: vec![] };
        let device = KnownDevices::of(hub, &one)?.ids.pop();
        Ok(Self { device, context, spec, properties, reference_count })
    }
}
