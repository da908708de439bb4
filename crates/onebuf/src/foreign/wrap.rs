//! Memory that somebody else made, as a buffer.

use super::{
    Borrowed, ForeignContext, ForeignGl, ForeignVulkan, VulkanBuffer, context::Whose, gl,
    info::elements, owner::Claim, vulkan,
};
use crate::{
    Buffer, CopyPolicy, Error, Fence, HostAccess, Hub, MemoryKind, Queue, Result, RouteKind,
    backend::opencl::foreign::{self, MemoryFacts},
    buffer::{Core, Lent, Shape, Window, flags, make_around, stricter},
    device::Device,
    hal::AllocSpec,
    queue::QueueState,
    sync::{Arc, thread},
    topology::DeviceIx,
};
use bytemuck::Pod;
use onebuf_sys::opencl::consts as cl;
use std::{
    ffi::c_void,
    marker::PhantomData,
    ptr::NonNull,
    time::{Duration, Instant},
};

/// How a foreign memory is to be used. Made by [`Hub::wrap_buffer`], [`Hub::wrap_svm`],
/// [`Hub::wrap_vk_buffer`] and [`Hub::wrap_gl_buffer`].
#[must_use = "nothing is wrapped until `build`"]
pub struct WrapBuilder<'h, T: Pod> {
    hub: &'h Hub,
    what: What,
    shape: Shape,
    len: Option<usize>,
    after: Vec<&'h Fence>,
    claim: Option<Claim>,
    fault: Option<Error>,
    /// Those of foreign contexts stay what they are while this does.
    keeps: Vec<Device>,
    element: PhantomData<T>,
}

/// What is wrapped.
pub(super) enum What {
    Object(usize),
    Svm { context: ForeignContext, pointer: usize, bytes: usize },
    Vulkan { context: ForeignVulkan, buffer: VulkanBuffer },
    Gl { context: ForeignGl, name: u32 },
}

impl Hub {
    /// A buffer over a `cl_mem` that somebody else made, without a copy. The devices of its context see
    /// it, the host sees it through maps, and other devices by the routes that the planner finds, when
    /// [`WrapBuilder::shared_with`] names them.
    ///
    /// A sub-buffer is wrapped as what it is: a region of its parent. All wraps of one memory object, of its
    /// parent and of its parts share one state: guards of one exclude guards of the other, and each is ordered
    /// after the other's work.
    ///
    /// # Safety
    /// Null, or a live `cl_mem` of the OpenCL library that this hub has loaded, that no [`Buffer`] of this hub
    /// has made. While a guard of the buffer is held, and until work that was enqueued under it is done,
    /// the owner does with the memory only what the guard allows: nothing beside a writer, reads beside
    /// readers. Work of the owner's that is still to be waited for is told by [`WrapBuilder::after`] or
    /// [`Buffer::written_until`].
    pub unsafe fn wrap_buffer<T: Pod>(&self, mem: *mut c_void) -> WrapBuilder<'_, T> {
        WrapBuilder::new(self, What::Object(mem.addr()))
    }

    /// A buffer over shared virtual memory that somebody else allocated in their context.
    ///
    /// # Safety
    /// `pointer` was given by `clSVMAlloc` (or lies inside what was) in that context, with so many elements from
    /// there on, and stays allocated until the buffer is dropped. For the rest, as for
    /// [`Hub::wrap_buffer`].
    pub unsafe fn wrap_svm<T: Pod>(
        &self,
        context: &ForeignContext,
        pointer: NonNull<T>,
        len: usize,
    ) -> WrapBuilder<'_, T> {
        let bytes = len.saturating_mul(size_of::<T>());
        let (context, pointer) = (context.clone(), pointer.addr().get());
        WrapBuilder::new(self, What::Svm { context, pointer, bytes })
    }

    /// A queue of ours at the device where the buffer lives, in its context: for work on this buffer.
    ///
    /// # Errors
    /// What the driver says when there is none yet and none can be made.
    pub fn queue_for<T: Pod>(&self, buffer: &Buffer<T>) -> Result<Queue> {
        if !self.is(buffer.hub()) {
            return Err(Error::invalid("a buffer of another hub"));
        }
        let ours = self.service_queue_state(buffer.plan().allocate_on)?;
        let (device, native) = (ours.device, ours.hal.clone());
        let registration = self.foreign_devices().of(device);
        let queue_state = QueueState::of(device, native, self.hal(device), ours.spec, registration)
            .traced(self.tracer());
        Ok(Queue { hub: self.clone(), queue_state: Arc::new(queue_state) })
    }
}

impl<'h, T: Pod> WrapBuilder<'h, T> {
    pub(super) fn new(hub: &'h Hub, what: What) -> Self {
        let shape = Shape::new(align_of::<T>(), hub.copy_policy());
        let (len, after, claim, fault) = (None, Vec::new(), None, None);
        let keeps = Vec::new();
        Self { hub, what, shape, len, after, claim, fault, keeps, element: PhantomData }
    }

    /// How many elements it must have.
    pub fn len(mut self, elements: usize) -> Self {
        self.len = Some(elements);
        self
    }

    /// Other devices that use it, beside those of its own context.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        for device in devices {
            if !device.hub().is(self.hub) {
                let fault = Error::invalid(format!("device {device} belongs to another hub"));
                self.fault.get_or_insert(fault);
            }
            self.shape.add_device(device.index());
            self.keeps.push(device.clone());
        }
        self
    }

    /// What to do about implied copies; the hub's policy by default. The stricter of the two holds.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = stricter(policy, self.hub.copy_policy());
        self
    }

    /// What traces call it; its number otherwise. The first wrap of a memory decides.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.shape.name = Some(Arc::from(name.as_ref()));
        self
    }

    /// The owner's work on it ends there: whoever uses the buffer waits for that. May be said more than once.
    pub fn after(mut self, fence: &'h Fence) -> Self {
        self.after.push(fence);
        self
    }

    /// Forces how the other devices see it.
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.shape.route = Some(kind);
        self
    }

    /// Uses routes that drivers declare, and callbacks between their queues, although no experiment has proven them.
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.shape.trust_declared = trust;
        self
    }

    /// Also lets another API's kernels use the address that a kernel sees the memory at: see
    /// [`BufferBuilder::raw_addresses`](crate::BufferBuilder::raw_addresses). So HIP's kernels and libraries get at a plain
    /// `cl_mem` of an AMD device.
    pub fn raw_addresses(mut self, allow: bool) -> Self {
        self.shape.raw_addresses = allow;
        self
    }

    /// Takes the caller's reference over: `release` is called with the handle, once, when onebuf has
    /// done with the memory and all work on its own queues is over. Work that was put on a queue of the owner's
    /// is the owner's to wait for. Not called when `build` fails: then nothing was taken over; nor when that
    /// work does not end before the hub's timeout: then the memory is kept, and this hub wraps it no more.
    pub fn owned(mut self, release: impl FnOnce(*mut c_void) + Send + 'static) -> Self {
        let raw = match &self.what {
            What::Object(raw) => *raw,
            What::Svm { pointer, .. } => *pointer,
            What::Vulkan { buffer, .. } => vulkan::handle(buffer) as usize,
            What::Gl { name, .. } => *name as usize,
        };
        self.claim = Some(Claim::new(raw, Box::new(release)));
        self
    }

    /// Wraps it, with a reference of our own that the buffer gives up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of elements, or what the driver knows to be no
    /// buffer; [`Error::Busy`] while the owner has it mapped, or for want of a device entry (see
    /// [`Hub::foreign_context`]); [`Error::CopyForbidden`] as for any buffer.
    pub fn build(self) -> Result<Buffer<T>> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Self { hub, what, shape, len, after, claim, keeps: _keeps, .. } = self;
        let buffer = match what {
            What::Object(raw) => wrap_object(hub, raw, shape, len, &after),
            What::Svm { context, .. } if !context.hub().is(hub) => {
                Err(Error::invalid("a foreign context of another hub"))
            }
            What::Svm { context, pointer, bytes } => {
                wrap_svm(hub, &context.whose, pointer, bytes, shape, &after)
            }
            What::Vulkan { context, buffer } => {
                vulkan::wrap(hub, &context, &buffer, shape, len, &after)
            }
            What::Gl { context, name } => gl::wrap(hub, &context, name, shape, len, &after),
        }?;
        // Work that is over need not be waited for; sharing may have waited for it.
        let mut running = after.iter().filter(|fence| fence.is_done() != Ok(true));
        running.try_for_each(|fence| buffer.written_until(fence))?;
        buffer.add_claim(claim.map(Claim::due));
        Ok(buffer)
    }

    /// Wraps it for as long as `owner` is borrowed: a wrapper that cannot outlive what it is about.
    ///
    /// # Errors
    /// As for [`WrapBuilder::build`].
    pub fn borrowed<O: ?Sized>(self, owner: &O) -> Result<Borrowed<'_, T>> {
        let _ = owner;
        self.build().map(Borrowed::new)
    }
}

fn wrap_object<T: Pod>(
    hub: &Hub,
    raw: usize,
    shape: Shape,
    len: Option<usize>,
    after: &[&Fence],
) -> Result<Buffer<T>> {
    let cl = &hub.foreign_devices().known()?.cl;
    // SAFETY: the promise that was made to `Hub::wrap_buffer`.
    let facts = unsafe { foreign::memory(cl, raw) }?;
    check_len::<T>(&facts, len)?;
    let root = match facts.parent {
        // SAFETY: a live part has a live whole.
        Some(parent) => (parent, unsafe { foreign::memory(cl, parent) }?),
        None => (raw, facts.clone()),
    };
    let core = core_around(hub, root.0, &root.1, shape, after)?;
    if facts.parent.is_none() {
        return Ok(Buffer::sharing(core, None));
    }
    let window = window(&core, raw, &facts)?;
    Ok(Buffer::sharing(core, Some(window)))
}

fn check_len<T: Pod>(facts: &MemoryFacts, len: Option<usize>) -> Result<()> {
    let have = elements::<T>(facts.bytes)?;
    match len {
        Some(len) if len != have => {
            Err(Error::invalid(format!("{len} elements in a cl_mem of {have}")))
        }
        _ => Ok(()),
    }
}

/// The state that all wraps of a memory object share.
fn core_around(
    hub: &Hub,
    raw: usize,
    facts: &MemoryFacts,
    shape: Shape,
    after: &[&Fence],
) -> Result<Arc<Core>> {
    let (asked, policy) = (shape.devices.clone(), shape.policy);
    let core = hub.foreign_devices().wrapped.get(raw, hub.timeout(), || {
        // Mapped by us is no matter, but then there was a core.
        // SAFETY: the promise that was made to `Hub::wrap_buffer`.
        if facts.map_count > 0 && unsafe { stays_mapped(hub, raw) }? {
            return Err(Error::Busy {
                what: "its owner has the cl_mem mapped: unmap it first".to_owned(),
            });
        }
        // SAFETY: a live buffer has a live context.
        let whose = unsafe { hub.whose(facts.context) }?;
        let home = whose.devices()[0];
        let (access, host) = (flags::access(facts.flags), flags::host_access(facts.flags));
        // An address is handed on of memory that need not be mapped.
        let memory_kind = match memory_kind(hub, home, facts.flags, host) {
            MemoryKind::MappedDevice if shape.raw_addresses && is_plain(facts.flags) => {
                MemoryKind::Device
            }
            memory_kind => memory_kind,
        };
        let spec = AllocSpec {
            bytes: facts.bytes,
            align: shape.align,
            memory_kind,
            access,
            host,
            hint: None,
        };
        // SAFETY: the promise that was made to `Hub::wrap_buffer`; it is no part of another.
        let memory = unsafe { whose.wrap_memory(hub, raw, &spec, facts.flags) }?;
        let over = facts.flags & cl::CL_MEM_USE_HOST_PTR != 0;
        let pages = facts.host_pointer.filter(|_| over && memory_kind == MemoryKind::MappedDevice);
        let pages = pages.and_then(|at| NonNull::new(at as *mut u8));
        let registration = whose.registration().map(|registration| registration as _);
        around(
            hub,
            whose.devices(),
            Lent { key: raw, memory, spec, pages, after, registration },
            shape,
        )
    })?;
    check_sees(&core, &asked, policy)?;
    Ok(core)
}

/// How late a driver may be in counting a map down. PoCL 3.1 does so after the unmap is complete, also after
/// `clFinish`: memory that was given back a moment ago would seem to be mapped by its owner.
const LATE_COUNT: Duration = Duration::from_millis(50);

/// Whether memory that counted as mapped still does, a moment later.
///
/// # Safety
/// A live buffer.
unsafe fn stays_mapped(hub: &Hub, raw: usize) -> Result<bool> {
    let (cl, start) = (&hub.foreign_devices().known()?.cl, Instant::now());
    while start.elapsed() < LATE_COUNT {
        thread::yield_now();
        // SAFETY: the caller's promise.
        if unsafe { foreign::memory(cl, raw) }?.map_count == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A core is made for the devices, and with the policy, that were named when it was wrapped first.
fn check_sees(core: &Core, asked: &[DeviceIx], policy: CopyPolicy) -> Result<()> {
    if stricter(core.policy, policy) != core.policy {
        let (has, wants) = (core.policy, policy);
        return Err(Error::Busy {
            what: format!(
                "the memory is wrapped already, with implied copies under `{has}` and not `{wants}`: drop that first"
            ),
        });
    }
    match asked.iter().find(|device| core.alias_of(**device).is_none()) {
        None => Ok(()),
        Some(device) => Err(Error::Busy {
            what: format!(
                "the memory is wrapped already, without {}: name it there, or drop that first",
                core.device_id(*device)
            ),
        }),
    }
}

/// Whether it was made without any memory of the host's.
fn is_plain(flags: u64) -> bool {
    flags & (cl::CL_MEM_ALLOC_HOST_PTR | cl::CL_MEM_USE_HOST_PTR) == 0
}

/// In what form it is best used: through maps where the driver gives the memory itself, by enqueued copies
/// where it would copy behind them.
fn memory_kind(hub: &Hub, home: DeviceIx, flags: u64, host: HostAccess) -> MemoryKind {
    let for_host = !is_plain(flags);
    let unified = hub.topology().node(home).info.caps.unified_memory;
    match host {
        HostAccess::ReadWrite if for_host || unified => MemoryKind::MappedDevice,
        _ => MemoryKind::Device,
    }
}

/// Everything around memory of somebody else's.
pub(super) fn around(
    hub: &Hub,
    devices: &[DeviceIx],
    lent: Lent<'_>,
    mut shape: Shape,
) -> Result<Arc<Core>> {
    shape.devices.retain(|device| !devices.contains(device));
    shape.access = lent.spec.access;
    shape.host = lent.spec.host;
    shape.allocate_on = Some(devices[0]);
    shape.memory_kind = Some(lent.spec.memory_kind);
    make_around(hub, shape, lent, &devices[1..])
}

/// A part, with the handle that its owner knows it by.
fn window(core: &Core, raw: usize, facts: &MemoryFacts) -> Result<Window> {
    let access = flags::access(facts.flags);
    let (offset, bytes) = (facts.offset, facts.bytes);
    // SAFETY: a live part of the whole that the core is around, as the driver says.
    let part = unsafe { foreign::wrap_part(core.home(), raw, offset, bytes, access) }?;
    Ok(Window::new(core, offset, bytes, access, part))
}

fn wrap_svm<T: Pod>(
    hub: &Hub,
    whose: &Whose,
    pointer: usize,
    bytes: usize,
    shape: Shape,
    after: &[&Fence],
) -> Result<Buffer<T>> {
    let home = whose.devices()[0];
    let caps = &hub.topology().node(home).info.caps;
    let memory_kinds = [MemoryKind::FineSvm, MemoryKind::CoarseSvm];
    // Mapping what need not be mapped is right for both forms; not mapping is right for one.
    let memory_kind =
        memory_kinds.into_iter().rfind(|memory_kind| caps.memory_kinds.contains(memory_kind));
    let memory_kind = memory_kind.ok_or_else(|| {
        Error::unsupported("shared virtual memory of this context", "a device that has it")
    })?;
    if bytes == 0 || bytes > isize::MAX as usize {
        return Err(Error::invalid(format!("shared virtual memory of {bytes} bytes")));
    }
    let start = NonNull::new(pointer as *mut u8);
    let start = start.ok_or_else(|| Error::invalid("shared virtual memory: null"))?;
    let (access, host) = Default::default();
    let spec = AllocSpec { bytes, align: shape.align, memory_kind, access, host, hint: None };
    let (asked, policy) = (shape.devices.clone(), shape.policy);
    let core = hub.foreign_devices().wrapped.get(pointer, hub.timeout(), || {
        let device = whose.device(hub, home)?;
        // SAFETY: the promise that was made to `Hub::wrap_svm`.
        let memory = unsafe { device.wrap_svm(start, &spec) }?;
        let (pages, registration) =
            (None, whose.registration().map(|registration| registration as _));
        around(
            hub,
            whose.devices(),
            Lent { key: pointer, memory, spec, pages, after, registration },
            shape,
        )
    })?;
    as_asked(core, bytes, &asked, policy)
}

/// A core that may be an earlier wrap's, if it is what this one asks for.
pub(super) fn as_asked<T: Pod>(
    core: Arc<Core>,
    bytes: usize,
    asked: &[DeviceIx],
    policy: CopyPolicy,
) -> Result<Buffer<T>> {
    if core.bytes != bytes {
        let have = core.bytes;
        return Err(Error::invalid(format!("{bytes} bytes where {have} are wrapped already")));
    }
    check_sees(&core, asked, policy)?;
    Ok(Buffer::sharing(core, None))
}
