//! Foreign memory as a buffer.

use super::{Borrowed, Whose, context::ForeignDevices, owner::Claim};
use crate::{
    buffer::{Buffer, Core, Few, Lender, Lent, Loan, Shape, Tag, Window, make_around, stricter},
    device::Device,
    fence::Fence,
    hub::Hub,
    plan::Request,
    topology::DeviceIx,
};
use bytemuck::Pod;
use onebuf_hal::{self as hal, AllocSpec, CopyPolicy, Error, Result, RouteKind, locks::Arc};
use std::{ffi::c_void, marker::PhantomData, ptr::NonNull};

/// Foreign memory of one API that can be wrapped.
///
/// # Safety
/// The memory that [`wrap`](Self::wrap) lends exists, with the stated size and address, while its loan lives.
#[doc(hidden)]
#[allow(unsafe_code)]
pub unsafe trait ForeignMemory {
    /// Returns the core that all wraps of this memory share, and the window for a wrapped sub-buffer.
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)>;
}

/// The parameters of a wrap.
#[doc(hidden)]
pub struct Asked<'a> {
    pub hub: &'a Hub,
    pub foreign_devices: &'a ForeignDevices,
    /// The native handle, name or address of the memory.
    pub handle: usize,
    /// The required number of elements.
    pub len: Option<usize>,
    pub element: ElementLayout,
    /// The device that the memory was said to be of.
    pub on: Option<OnDevice>,
    shape: Shape,
    after: &'a [&'a Fence],
}

/// The device that has the memory, and the number of bytes that its user stated: `None` if that overflows. In the builder,
/// because boxing it would cost a wrap an allocation.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct OnDevice {
    pub device: DeviceIx,
    pub bytes: Option<usize>,
}

/// Says whether the memory of a core at rest is still what a new wrap of it would find.
type Still<'a> = &'a dyn Fn(&dyn hal::Memory) -> Result<bool>;

/// The size and the name of a buffer's element type.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct ElementLayout {
    size: usize,
    align: usize,
    name: &'static str,
}

impl ElementLayout {
    pub fn of<T>() -> Self {
        let (size, align) = (size_of::<T>(), align_of::<T>());
        Self { size, align, name: std::any::type_name::<T>() }
    }

    /// Checks that elements can begin at this address.
    pub fn check_aligned(&self, at: usize) -> Result<()> {
        let Self { align, name, .. } = *self;
        match at.is_multiple_of(align) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{at:#x} is not aligned for {name} elements ({align} bytes)"
            ))),
        }
    }

    /// Returns the number of elements in `bytes` bytes.
    pub fn count(&self, bytes: usize) -> Result<usize> {
        let Self { size, name, .. } = *self;
        if size == 0 || !bytes.is_multiple_of(size) {
            return Err(Error::invalid(format!(
                "{bytes} bytes are not a whole number of {name} elements ({size} bytes each)"
            )));
        }
        Ok(bytes / size)
    }
}

/// Memory that its backend has wrapped.
#[doc(hidden)]
pub struct WrappedMemory {
    pub whose: Whose,
    pub memory: Arc<dyn hal::Memory>,
    pub spec: AllocSpec,
    /// The application's pages that the memory was created over.
    pub pages: Option<NonNull<u8>>,
}

impl Asked<'_> {
    /// Returns the core of the memory with this key. If there is none yet, `make` wraps the memory.
    pub fn core(
        self,
        key: usize,
        bytes: usize,
        make: impl FnOnce(&Shape) -> Result<WrappedMemory>,
    ) -> Result<Arc<Core>> {
        self.core_of(key, bytes, None, make)
    }

    /// Returns the core like [`Asked::core`], for memory to which the core holds no reference. The hub keeps the core when its last
    /// buffer is dropped, and the next wrap of the memory uses it again if `still` returns that the memory is unchanged.
    pub fn resting_core(
        self,
        key: usize,
        bytes: usize,
        still: impl Fn(&dyn hal::Memory) -> Result<bool>,
        make: impl FnOnce(&Shape) -> Result<WrappedMemory>,
    ) -> Result<Arc<Core>> {
        self.core_of(key, bytes, Some(&still), make)
    }

    fn core_of(
        self,
        key: usize,
        bytes: usize,
        still: Option<Still<'_>>,
        make: impl FnOnce(&Shape) -> Result<WrappedMemory>,
    ) -> Result<Arc<Core>> {
        let Self { hub, foreign_devices, mut shape, after, on, .. } = self;
        let (asked, policy) = (shape.devices.clone(), shape.policy);
        let alone = |on: &OnDevice| shape.is_plain() && asked.iter().all(|ix| *ix == on.device);
        let rests = on.filter(alone).zip(still);
        let mut made = false;
        let core = foreign_devices.wrapped.get(key, hub.timeout(), |resting| {
            made = true;
            if let (Some(mut core), Some((on, still))) = (resting, rests)
                && let Some(one) = Arc::get_mut(&mut core)
                && (one.bytes, one.align, one.policy) == (bytes, shape.align, policy)
                && one.plan.allocate_on == on.device
                && still(one.home())?
            {
                one.resume(hub, shape.name.take());
                return Ok(core);
            }
            let WrappedMemory { whose, memory, spec, pages } = make(&shape)?;
            let devices: Few<DeviceIx> = whose.devices().iter().copied().collect();
            let registration = whose.registration().map(|registration| registration as _);
            let tag = Tag { place: 0, number: key as u64 };
            let lender = Lender::Foreign { forget, keep: rests.map(|_| keep as _) };
            let loan = Loan { lender, tag, returned: false };
            let plan = &|beside: &Request| foreign_devices.plan(hub.topology(), beside);
            let lent = Lent { memory, spec, pages, after, registration, loan, plan };
            around(hub, &devices, lent, shape)
        })?;
        if core.bytes != bytes {
            let have = core.bytes;
            return Err(Error::invalid(format!(
                "the memory is already wrapped with {have} bytes, not {bytes}"
            )));
        }
        if !made {
            check_sees(&core, &asked, policy)?;
        }
        Ok(core)
    }
}

/// Configures how foreign memory is used. Created by `OpenClHubExt::wrap_buffer`, `OpenClHubExt::wrap_svm`,
/// `VulkanHubExt::wrap_vk_buffer`, `GlHubExt::wrap_gl_buffer` and `CudaHubExt::wrap_pointer`.
#[must_use = "nothing is wrapped until `build`"]
pub struct WrapBuilder<'h, T: Pod> {
    hub: &'h Hub,
    /// The native handle, name or address of the memory; `owned` passes it to the owner's `release`.
    handle: usize,
    /// Empty types are boxed without an allocation.
    what: Box<dyn ForeignMemory>,
    on: Option<OnDevice>,
    shape: Shape,
    len: Option<usize>,
    after: Vec<&'h Fence>,
    claim: Option<Claim>,
    fault: Option<Error>,
    /// Keeps the registrations of foreign devices alive until `build`.
    keeps: Vec<Device>,
    element: PhantomData<T>,
}

impl<'h, T: Pod> WrapBuilder<'h, T> {
    #[doc(hidden)]
    pub fn new(hub: &'h Hub, handle: usize, what: impl ForeignMemory + 'static) -> Self {
        let what = Box::new(what);
        let shape = Shape::new(align_of::<T>(), hub.copy_policy());
        let (len, after, claim, fault) = (None, Vec::new(), None, None);
        let (on, keeps) = (None, Vec::new());
        Self { hub, handle, what, on, shape, len, after, claim, fault, keeps, element: PhantomData }
    }

    /// States the device that has the memory, and its size.
    #[doc(hidden)]
    pub fn on(mut self, device: &Device, bytes: Option<usize>) -> Self {
        self.check_hub(device);
        self.on = Some(OnDevice { device: device.index(), bytes });
        self
    }

    fn check_hub(&mut self, device: &Device) {
        if !device.hub().is(self.hub) {
            let fault = Error::invalid(format!("device {device} belongs to another hub"));
            self.fault.get_or_insert(fault);
        }
    }

    /// Sets the required number of elements. `build` fails if the memory has another number.
    pub fn len(mut self, elements: usize) -> Self {
        self.len = Some(elements);
        self
    }

    /// Adds devices that use the buffer, besides those of its context.
    pub fn shared_with<'d>(mut self, devices: impl IntoIterator<Item = &'d Device>) -> Self {
        for device in devices {
            self.check_hub(device);
            self.shape.add_device(device.index());
            self.keeps.push(device.clone());
        }
        self
    }

    /// Sets what to do about implied copies. The default is the hub's policy; the stricter of the two applies.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.shape.policy = stricter(policy, self.hub.copy_policy());
        self
    }

    /// Sets the buffer's name in traces; the default is its number. The first wrap of a memory object decides.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.shape.name = Some(Arc::from(name.as_ref()));
        self
    }

    /// Declares that the owner's work on the memory ends at `fence`. Users of the buffer wait for it. May be called repeatedly.
    pub fn after(mut self, fence: &'h Fence) -> Self {
        self.after.push(fence);
        self
    }

    /// Forces the route by which the other devices access the memory.
    pub fn route(mut self, kind: RouteKind) -> Self {
        self.shape.route = Some(kind);
        self
    }

    /// Uses routes that drivers declare, and callbacks between their queues, although no experiment has proven them.
    pub fn trust_declared(mut self, trust: bool) -> Self {
        self.shape.trust_declared = trust;
        self
    }

    /// Also lets kernels of another API use the address at which a kernel sees the memory: see
    /// [`BufferBuilder::raw_addresses`](crate::BufferBuilder::raw_addresses). This gives HIP's kernels and libraries access to a
    /// plain `cl_mem` of an AMD device.
    pub fn raw_addresses(mut self, allow: bool) -> Self {
        self.shape.raw_addresses = allow;
        self
    }

    /// Takes over the caller's reference. onebuf calls `release` with the handle, once, when it no longer uses the memory and all
    /// work on onebuf's queues has completed. The caller must wait for work on the owner's queues. `release` is not called if
    /// `build` fails: the caller then keeps its reference. It is not called either if the work does not complete within the
    /// hub's timeout: the memory is then kept, and this hub cannot wrap it again.
    pub fn owned(mut self, release: impl FnOnce(*mut c_void) + Send + 'static) -> Self {
        self.claim = Some(Claim::new(self.handle, Box::new(release)));
        self
    }

    /// Wraps the memory. onebuf retains it, and releases that reference when the buffer is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of elements differs, or if the driver detects that the handle is no buffer;
    /// [`Error::Busy`] while the owner has the memory mapped, or if no device entry is free (see
    /// `OpenClHubExt::foreign_context`); [`Error::CopyForbidden`] as for any buffer.
    pub fn build(self) -> Result<Buffer<T>> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Self { hub, handle, what, on, shape, len, after, claim, keeps: _keeps, .. } = self;
        let element = ElementLayout::of::<T>();
        let foreign_devices = hub.foreign_devices();
        let after = &after;
        let asked = Asked { hub, foreign_devices, handle, len, element, on, shape, after };
        let (core, window) = what.wrap(asked)?;
        let buffer = Buffer::sharing(core, window);
        // Completed work needs no wait, and sharing may already have waited for it.
        let mut running = after.iter().filter(|fence| fence.is_done() != Ok(true));
        running.try_for_each(|fence| buffer.written_until(fence))?;
        buffer.add_claim(claim.map(Claim::due));
        Ok(buffer)
    }

    /// Wraps the memory for as long as `owner` is borrowed, so that the buffer cannot outlive its owner.
    ///
    /// # Errors
    /// As for [`WrapBuilder::build`].
    pub fn borrowed<O: ?Sized>(self, owner: &O) -> Result<Borrowed<'_, T>> {
        let _ = owner;
        self.build().map(Borrowed::new)
    }
}

/// Checks that the existing core has these devices and a policy as strict: the first wrap of the memory decided both.
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

/// Keeps the core of a dropped buffer for the next wrap of its memory.
fn keep(core: Arc<Core>) {
    let key = core.loan.as_ref().map(|loan| loan.tag.number as usize);
    // The core gives up its hub, which must live until the call returns.
    let hub = core.hub.clone();
    match key {
        Some(key) => hub.foreign_devices().wrapped.keep(key, core),
        None => drop(core),
    }
}

/// Removes the hub's record of wrapped memory.
fn forget(hub: &Hub, tag: Tag) {
    hub.foreign_devices().wrapped.forget(tag.number as usize);
}

/// Creates the core around foreign memory.
fn around(hub: &Hub, devices: &[DeviceIx], lent: Lent<'_>, mut shape: Shape) -> Result<Arc<Core>> {
    shape.devices.retain(|device| !devices.contains(device));
    shape.access = lent.spec.access;
    shape.host = lent.spec.host;
    shape.allocate_on = Some(devices[0]);
    shape.memory_kind = Some(lent.spec.memory_kind);
    make_around(hub, shape, lent, &devices[1..])
}
