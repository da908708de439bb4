//! The buffer builder: from requested properties to a plan and memory.
//!
//! # Safety
//! The one unsafe function takes the caller's memory; the caller promises that the memory stays valid.

#![allow(unsafe_code)]

use super::{
    Buffer,
    imported::make_imported,
    make::{Shape, make},
};
use crate::{
    Hub,
    device::Device,
    plan::{Plan, plan},
    topology::DeviceIx,
};
use bytemuck::Pod;
use onebuf_hal::{
    Access, CopyPolicy, Error, Export, Hint, HostAccess, HostRange, MemoryKind, Result, RouteKind,
    SyncMethod, locks::Arc,
};
use std::{any::Any, borrow::Cow, ptr::NonNull};

/// The requested properties of a buffer. Created by [`Hub::buffer`]. A clone builds another buffer with the same properties;
/// the clone of a builder with `host_memory` cannot be built, because that memory belongs to one buffer.
#[must_use = "nothing is allocated until `build`"]
pub struct BufferBuilder<'i, T: Pod> {
    pub(crate) hub: Hub,
    pub(crate) len: usize,
    pub(crate) shape: Shape,
    initial: Option<Cow<'i, [T]>>,
    memory: Option<HostRange>,
    /// OpenCL flags that require the caller's memory or contents.
    needs: Needs,
    /// The error of an earlier call; `build` returns it.
    fault: Option<Error>,
    /// Devices of foreign contexts, kept so that their device entries are not reused while the builder exists.
    keeps: Vec<Device>,
}

/// What OpenCL flags require from the caller.
#[derive(Clone, Copy, Default)]
struct Needs {
    memory: bool,
    contents: bool,
}

impl<T: Pod> Clone for BufferBuilder<'_, T> {
    fn clone(&self) -> Self {
        let second =
            "a second buffer over the same host memory: a clone of its builder cannot be built";
        let fault = self.memory.as_ref().map(|_| Error::invalid(second));
        Self {
            hub: self.hub.clone(),
            len: self.len,
            shape: self.shape.clone(),
            initial: self.initial.clone(),
            memory: None,
            needs: self.needs,
            fault: self.fault.clone().or(fault),
            keeps: self.keeps.clone(),
        }
    }
}

impl Needs {
    fn any(self) -> bool {
        self.memory || self.contents
    }
}

impl Hub {
    /// Starts a buffer of `len` elements: set its properties, then call `build`.
    pub fn buffer<T: Pod>(&self, len: usize) -> BufferBuilder<'_, T> {
        BufferBuilder::new(self, len)
    }

    /// Starts a buffer with these contents, and their length: set its other properties, then call `build`. The ledger counts the
    /// contents as a requested write.
    ///
    /// ```
    /// let hub = onebuf::discover()?;
    /// let samples = vec![0.5_f32; 1024];
    /// let signal = hub.buffer_from(&samples).shared_with([&hub.host()]).build()?;
    /// assert_eq!(signal.map()?[..], samples);
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn buffer_from<'i, T: Pod>(
        &self,
        contents: impl Into<Cow<'i, [T]>>,
    ) -> BufferBuilder<'i, T> {
        let contents = contents.into();
        BufferBuilder::new(self, contents.len()).init(contents)
    }
}

impl<'i, T: Pod> BufferBuilder<'i, T> {
    pub(crate) fn new(hub: &Hub, len: usize) -> Self {
        Self {
            hub: hub.clone(),
            len,
            shape: Shape::new(align_of::<T>(), hub.copy_policy()),
            initial: None,
            memory: None,
            needs: Needs::default(),
            fault: None,
            keeps: Vec::new(),
        }
    }

    /// Adds devices that use the buffer. The host need not be named: reads, writes and maps always work.
    /// Naming it requests memory that it sees without a copy.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        for device in devices {
            self.check_hub(device);
            self.shape.add_device(device.index());
            self.keeps.extend(device.is_foreign().then(|| device.clone()));
        }
        self
    }

    fn check_hub(&mut self, device: &Device) {
        if !device.hub().is(&self.hub) {
            let fault = Error::invalid(format!("device {device} belongs to another hub"));
            self.fault.get_or_insert(fault);
        }
    }

    /// Sets how kernels access the buffer; they read and write it by default.
    pub fn access(mut self, access: Access) -> Self {
        self.shape.access = access;
        self
    }

    /// Sets how the host accesses the buffer once it is built; it reads and writes it by default. Less is for a buffer of
    /// one device, or for routes by descriptors or between peers: other routes map or copy the memory on the host. If the
    /// buffer is shared with the host, too, the host maps it with this access, and runs no kernels on it.
    pub fn host_access(mut self, access: HostAccess) -> Self {
        self.shape.host = access;
        self
    }

    /// Sets the name that traces and viewers show; by default they show the buffer's number.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.shape.name = Some(Arc::from(name.as_ref()));
        self
    }

    /// Sets a hint about how the buffer will be used.
    pub fn hint(mut self, hint: Hint) -> Self {
        self.shape.hint = Some(hint);
        self
    }

    /// Sets the copy policy; the hub's by default. The stricter of the two applies.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = stricter(policy, self.hub.copy_policy());
        self
    }

    /// Sets the alignment in bytes, a power of two. The default is the strictest that the devices require, at least 64.
    pub fn align(mut self, bytes: usize) -> Self {
        if !bytes.is_power_of_two() || bytes > 1 << 30 {
            let fault = format!("alignment {bytes}: give a power of two up to 1 GiB");
            self.fault.get_or_insert(Error::invalid(fault));
        }
        self.shape.align = bytes.max(align_of::<T>());
        self
    }

    /// Forces the memory kind.
    pub fn memory_kind(mut self, memory_kind: MemoryKind) -> Self {
        self.shape.memory_kind = Some(memory_kind);
        self
    }

    /// Forces the device that allocates the memory.
    pub fn allocate_on(mut self, device: &Device) -> Self {
        self.check_hub(device);
        self.shape.allocate_on = Some(device.index());
        self.keeps.extend(device.is_foreign().then(|| device.clone()));
        self
    }

    /// Forces the route to the other devices, such as [`RouteKind::Staged`] for comparison.
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.shape.route = Some(kind);
        self
    }

    /// Forces a sync method between different APIs: this one or a lower one is used.
    pub fn sync(mut self, sync_method: SyncMethod) -> Self {
        self.shape.sync = Some(sync_method);
        self
    }

    /// Uses routes that drivers declare, and callbacks between their queues, although no experiment on this machine has
    /// proven them. The doctor uses this, and so may a caller who knows the machine.
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.shape.trust_declared = trust;
        self
    }

    /// Allows [`RouteKind::RawAddress`]: another API's kernels use the address that this API's kernels see. No API promises
    /// that the address is valid there, so the route is opt-in. It is used where an experiment on this machine has proven it, and
    /// where the runtime below both APIs identifies the memory's owner.
    ///
    /// ```no_run
    /// # fn main() -> onebuf::Result<()> {
    /// # let hub = onebuf::discover()?;
    /// let (cl, hip) = (hub.device("opencl:0")?, hub.device("hip:0")?);
    /// let signal = hub.buffer::<f32>(1 << 20).shared_with([&cl, &hip]).allocate_on(&cl);
    /// let signal = signal.raw_addresses(true).build()?;
    /// println!("{}", signal.explain()); // which route, and where the memory is
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_addresses(mut self, allow: bool) -> Self {
        self.shape.raw_addresses = allow;
        self
    }

    /// Sets the initial contents; zeroes by default. The ledger counts them as a requested write.
    pub fn init(mut self, contents: impl Into<Cow<'i, [T]>>) -> Self {
        self.initial = Some(contents.into());
        self
    }

    /// Uses the caller's memory in place (OpenCL: `CL_MEM_USE_HOST_PTR`), with the contents that it has.
    /// `owner` is dropped when neither onebuf nor a driver uses the memory any more. What kernels wrote is visible
    /// through the pointer only after a hand-over to the host: read or map the buffer first.
    ///
    /// The memory must be aligned as the devices need it, unless [`route`](Self::route) asks for [`RouteKind::Staged`]: each device
    /// then has a copy of its own.
    ///
    /// # Safety
    /// Until `owner` is dropped, `pointer` is valid for reads and writes of the builder's number of elements, the memory
    /// stays at this address, and no other code uses it.
    pub unsafe fn host_memory(
        mut self,
        pointer: NonNull<T>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let bytes = self.len.saturating_mul(size_of::<T>());
        self.memory = Some(HostRange { pointer: pointer.cast(), bytes, owner });
        self.shape.memory_kind = Some(MemoryKind::HostPages);
        self.shape.allocate_on = Some(self.hub.host_index());
        self
    }

    /// Sets the properties that OpenCL creation flags stand for:
    ///
    /// | flag | property |
    /// |---|---|
    /// | `READ_WRITE`, `READ_ONLY`, `WRITE_ONLY` | [`access`](Self::access) of kernels |
    /// | `USE_HOST_PTR` | requires [`host_memory`](Self::host_memory) |
    /// | `ALLOC_HOST_PTR` | [`MemoryKind::MappedDevice`] |
    /// | `COPY_HOST_PTR` | requires [`init`](Self::init) |
    /// | `HOST_READ_ONLY`, `HOST_WRITE_ONLY`, `HOST_NO_ACCESS` | [`host_access`](Self::host_access) |
    /// | `USE_MSMC_TI` (1 << 20) | [`MemoryKind::OnChip`]: supported only on TI's platform |
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for flags that exclude each other, even if a driver would accept them,
    /// and for other bits.
    pub fn cl_flags(mut self, bits: u64) -> Result<Self> {
        let flags = super::flags::Flags::parse(bits)?;
        self.shape.access = flags.access;
        self.shape.host = flags.host;
        self.shape.memory_kind = flags.memory_kind.or(self.shape.memory_kind);
        self.needs = Needs { memory: flags.uses_memory, contents: flags.copies_contents };
        Ok(self)
    }

    /// Returns the plan that `build` would use, without allocating.
    pub fn plan(&self) -> Result<Plan> {
        plan(self.hub.topology(), &self.shape.request(&self.hub, self.bytes()?))
    }

    /// Allocates the buffer and makes it accessible to every device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length of zero or one that overflows, a bad alignment, contents
    /// of another length or a device of another hub; [`Error::CopyForbidden`] when the policy rules
    /// every plan out; [`Error::OutOfMemory`].
    pub fn build(self) -> Result<Buffer<T>> {
        let bytes = self.bytes()?;
        self.check_contents()?;
        let contents = self.initial.as_deref().map(bytemuck::cast_slice);
        let core = make(&self.hub, &self.shape, bytes, contents, self.memory)?;
        Ok(Buffer::new(core))
    }

    #[doc(hidden)]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    #[doc(hidden)]
    pub fn elements(&self) -> usize {
        self.len
    }

    #[doc(hidden)]
    pub fn devices(&self) -> &[DeviceIx] {
        &self.shape.devices
    }

    /// Builds the buffer around memory that `device` imports by a descriptor or a handle.
    pub(crate) fn build_imported(mut self, device: DeviceIx, from: &Export) -> Result<Buffer<T>> {
        let bytes = self.bytes()?;
        if self.initial.is_some() || self.memory.is_some() || self.needs.any() {
            return Err(Error::invalid(
                "imported memory keeps its contents: remove `init` or `host_memory`",
            ));
        }
        let (have, offset) = match from {
            Export::Fd(range) => (range.bytes, range.offset),
            Export::Ipc(range) => (range.bytes, range.offset),
            other => return Err(Error::unsupported(other.name(), "a descriptor or a handle")),
        };
        if have != bytes || !offset.is_multiple_of(align_of::<T>()) {
            let what = format!("{have} bytes at offset {offset} for {bytes} bytes of elements");
            return Err(Error::invalid(what));
        }
        self.shape.add_device(device);
        self.shape.allocate_on = Some(device);
        Ok(Buffer::new(make_imported(&self.hub, &self.shape, from)?))
    }

    /// Returns the buffer's size in bytes, or the error of an earlier call.
    #[inline]
    pub(crate) fn bytes(&self) -> Result<usize> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let bytes = self.len.checked_mul(size_of::<T>()).filter(|&b| b <= isize::MAX as usize);
        match bytes {
            None => Err(Error::invalid(format!("{} elements overflow", self.len))),
            Some(0) => Err(Error::invalid("a buffer of zero bytes: give at least one element")),
            Some(bytes) => Ok(bytes),
        }
    }

    /// Checks the caller's memory and contents.
    fn check_contents(&self) -> Result<()> {
        let (memory, contents) = (self.memory.is_some(), self.initial.is_some());
        let rules = [
            (memory || !self.needs.memory, "CL_MEM_USE_HOST_PTR without `host_memory`"),
            (contents || !self.needs.contents, "CL_MEM_COPY_HOST_PTR without `init`"),
            (!(memory && contents), "`host_memory` keeps its contents: remove `init`"),
            (
                !memory || self.stays_host_pages(),
                "`host_memory` is host pages, allocated on the host",
            ),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(kept, _)| !kept) {
            return Err(Error::invalid(rule));
        }
        match self.initial.as_ref().map(|initial| initial.len()) {
            Some(len) if len != self.len => Err(Error::invalid(format!(
                "initial contents of {len} elements for a buffer of {}",
                self.len
            ))),
            _ => Ok(()),
        }
    }

    /// Whether no later call contradicts `host_memory`.
    fn stays_host_pages(&self) -> bool {
        let home = self.shape.allocate_on == Some(self.hub.host_index());
        home && self.shape.memory_kind == Some(MemoryKind::HostPages)
    }

    /// Checks that a pool can serve the buffer: it uses no memory of the caller.
    #[inline]
    pub(crate) fn check_poolable(&self) -> Result<()> {
        if self.memory.is_none() && self.initial.is_none() && !self.needs.any() {
            return Ok(());
        }
        if self.memory.is_some() || self.needs.memory {
            let why = "memory of the caller's in a pooled buffer: build it instead";
            return Err(Error::invalid(why));
        }
        if self.initial.is_some() && !self.shape.host.writes() {
            let why = "contents for a pooled buffer that the host may not write: build it instead";
            return Err(Error::invalid(why));
        }
        self.check_contents()
    }

    pub(crate) fn contents(&self) -> Option<&[T]> {
        self.initial.as_deref()
    }
}

pub(crate) fn stricter(a: CopyPolicy, b: CopyPolicy) -> CopyPolicy {
    let rank =
        |p| [CopyPolicy::Allow, CopyPolicy::Warn, CopyPolicy::Forbid].iter().position(|&q| q == p);
    if rank(a) >= rank(b) { a } else { b }
}
