//! Building buffers: from wishes to a plan to memory.
//!
//! # Safety
//! The one unsafe function takes memory of the caller's, who says that it may.

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

/// What a buffer shall be. Made by [`Hub::buffer`]. A clone is another wish for the same; one of a builder
/// with memory of the caller's cannot be built, because that memory is one buffer's.
#[must_use = "nothing is allocated until `build`"]
pub struct BufferBuilder<'i, T: Pod> {
    pub(crate) hub: Hub,
    pub(crate) len: usize,
    pub(crate) shape: Shape,
    initial: Option<Cow<'i, [T]>>,
    memory: Option<HostRange>,
    /// Flags that only go with memory, or contents, of the caller's.
    needs: Needs,
    /// What was wrong with an earlier call; told by `build`.
    fault: Option<Error>,
    /// Devices of foreign contexts, which stay what they are while this does.
    keeps: Vec<Device>,
}

/// What OpenCL's flags ask for beside themselves.
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
    /// A new buffer of so many elements; say what it shall be, then `build`.
    pub fn buffer<T: Pod>(&self, len: usize) -> BufferBuilder<'_, T> {
        BufferBuilder::new(self, len)
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

    /// The devices that use it. The host need not be named: reads, writes and maps always work, and
    /// naming it asks for memory that it sees without a copy.
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

    /// What kernels do with it; both by default.
    pub fn access(mut self, access: Access) -> Self {
        self.shape.access = access;
        self
    }

    /// What the host does with it once it is made; both by default. Less is for a buffer of one device:
    /// sharing goes through the host's mappings.
    pub fn host_access(mut self, access: HostAccess) -> Self {
        self.shape.host = access;
        self
    }

    /// What traces and viewers call it; its number otherwise.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.shape.name = Some(Arc::from(name.as_ref()));
        self
    }

    /// What its life will be like.
    pub fn hint(mut self, hint: Hint) -> Self {
        self.shape.hint = Some(hint);
        self
    }

    /// What to do about implied copies; the hub's policy by default. The stricter of the two holds.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = stricter(policy, self.hub.copy_policy());
        self
    }

    /// Alignment in bytes, a power of two. The default is the strictest of the devices', at least 64.
    pub fn align(mut self, bytes: usize) -> Self {
        if !bytes.is_power_of_two() || bytes > 1 << 30 {
            let fault = format!("alignment {bytes}: give a power of two up to 1 GiB");
            self.fault.get_or_insert(Error::invalid(fault));
        }
        self.shape.align = bytes.max(align_of::<T>());
        self
    }

    /// Forces the form of the memory.
    pub fn memory_kind(mut self, memory_kind: MemoryKind) -> Self {
        self.shape.memory_kind = Some(memory_kind);
        self
    }

    /// Forces where the memory lives.
    pub fn allocate_on(mut self, device: &Device) -> Self {
        self.check_hub(device);
        self.shape.allocate_on = Some(device.index());
        self.keeps.extend(device.is_foreign().then(|| device.clone()));
        self
    }

    /// Forces how the other devices see it, such as [`RouteKind::Staged`] for comparison.
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.shape.route = Some(kind);
        self
    }

    /// Forces a sync method, or a lower one, between different APIs.
    pub fn sync(mut self, sync_method: SyncMethod) -> Self {
        self.shape.sync = Some(sync_method);
        self
    }

    /// Uses routes that drivers declare, and callbacks between their queues, although no experiment on this machine has
    /// proven them. The doctor does; so may a caller who knows the machine.
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.shape.trust_declared = trust;
        self
    }

    /// Also lets another API's kernels use the address that this one's kernels see ([`RouteKind::RawAddress`]): no API
    /// promises that it means anything there, so it has to be asked for. It is used where it was proven here, and
    /// where the runtime under both APIs says whose memory it is.
    ///
    /// ```no_run
    /// # fn main() -> onebuf::Result<()> {
    /// # let hub = onebuf::discover()?;
    /// let (cl, hip) = (hub.device("opencl:0")?, hub.device("hip:0")?);
    /// let signal = hub.buffer::<f32>(1 << 20).shared_with([&cl, &hip]).allocate_on(&cl);
    /// let signal = signal.raw_addresses(true).build()?;
    /// println!("{}", signal.explain()); // by which route, and where it lies
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_addresses(mut self, allow: bool) -> Self {
        self.shape.raw_addresses = allow;
        self
    }

    /// What it holds at first; zeroes otherwise. Counted as a write that was asked for.
    pub fn init(mut self, contents: impl Into<Cow<'i, [T]>>) -> Self {
        self.initial = Some(contents.into());
        self
    }

    /// Uses memory of the caller's, where it lies (OpenCL: `CL_MEM_USE_HOST_PTR`). It holds what it held.
    /// `owner` is dropped when neither onebuf nor a driver uses the memory any more. What kernels wrote is
    /// there once the host has had the buffer: read or map it before looking through the pointer.
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of the builder's number of elements, at this address and
    /// used by nobody else, until `owner` is dropped.
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

    /// Takes OpenCL's own creation flags, by their numbers, and says the same in onebuf's words:
    ///
    /// | flag | here |
    /// |---|---|
    /// | `READ_WRITE`, `READ_ONLY`, `WRITE_ONLY` | [`access`](Self::access): about kernels |
    /// | `USE_HOST_PTR` | wants [`host_memory`](Self::host_memory) |
    /// | `ALLOC_HOST_PTR` | [`MemoryKind::MappedDevice`] |
    /// | `COPY_HOST_PTR` | wants [`init`](Self::init) |
    /// | `HOST_READ_ONLY`, `HOST_WRITE_ONLY`, `HOST_NO_ACCESS` | [`host_access`](Self::host_access) |
    /// | `USE_MSMC_TI` (1 << 20) | [`MemoryKind::OnChip`]: refused on every platform but TI's |
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for flags that exclude each other, whatever a driver would make of them,
    /// and for bits that are none of these.
    pub fn cl_flags(mut self, bits: u64) -> Result<Self> {
        let flags = super::flags::Flags::parse(bits)?;
        self.shape.access = flags.access;
        self.shape.host = flags.host;
        self.shape.memory_kind = flags.memory_kind.or(self.shape.memory_kind);
        self.needs = Needs { memory: flags.uses_memory, contents: flags.copies_contents };
        Ok(self)
    }

    /// What `build` would do, without doing it.
    pub fn plan(&self) -> Result<Plan> {
        plan(self.hub.topology(), &self.shape.request(&self.hub, self.bytes()?))
    }

    /// Allocates, and makes the memory visible to every device.
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

    /// Builds the buffer around memory of others, on a device that imports such.
    pub(crate) fn build_imported(mut self, device: DeviceIx, from: &Export) -> Result<Buffer<T>> {
        let bytes = self.bytes()?;
        if self.initial.is_some() || self.memory.is_some() || self.needs.any() {
            return Err(Error::invalid(
                "memory of others holds what it holds: leave `init`, `host_memory` away",
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

    /// How many bytes it will have, when everything said so far is right.
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

    /// The rules about memory and contents of the caller's.
    fn check_contents(&self) -> Result<()> {
        let (memory, contents) = (self.memory.is_some(), self.initial.is_some());
        let rules = [
            (memory || !self.needs.memory, "CL_MEM_USE_HOST_PTR without `host_memory`"),
            (contents || !self.needs.contents, "CL_MEM_COPY_HOST_PTR without `init`"),
            (!(memory && contents), "`host_memory` holds what it holds: leave `init` away"),
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

    /// Whether nothing that was said after `host_memory` contradicts it.
    fn stays_host_pages(&self) -> bool {
        let home = self.shape.allocate_on == Some(self.hub.host_index());
        home && self.shape.memory_kind == Some(MemoryKind::HostPages)
    }

    /// Whether a pool can have such a buffer ready: nothing in it is the caller's own.
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
