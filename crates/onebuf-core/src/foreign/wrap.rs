//! Memory that somebody else made, as a buffer.

use super::{Borrowed, Whose, owner::Claim};
use crate::{
    buffer::{Buffer, Core, Lender, Lent, Loan, Shape, Tag, Window, make_around, stricter},
    device::Device,
    fence::Fence,
    hub::Hub,
    plan::Request,
    topology::DeviceIx,
};
use bytemuck::Pod;
use onebuf_hal::{self as hal, AllocSpec, CopyPolicy, Error, Result, RouteKind, locks::Arc};
use std::{ffi::c_void, marker::PhantomData, ptr::NonNull};

/// Memory of one API that can be wrapped.
///
/// # Safety
/// The memory that [`wrap`](Self::wrap) lends is there, as long as said and at the address said, while its loan lives.
#[doc(hidden)]
#[allow(unsafe_code)]
pub unsafe trait ForeignMemory {
    /// The handle that an owner's `release` is called with.
    fn handle(&self) -> usize;

    /// The state that all wraps of it share, and which part of it is meant.
    fn wrap(&self, asked: Asked<'_>) -> Result<(Arc<Core>, Option<Window>)>;
}

/// What a wrap is to be.
#[doc(hidden)]
pub struct Asked<'a> {
    pub hub: &'a Hub,
    /// How many elements it must have.
    pub len: Option<usize>,
    pub element: ElementLayout,
    shape: Shape,
    after: &'a [&'a Fence],
}

/// What a buffer has many of.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct ElementLayout {
    size: usize,
    name: &'static str,
}

impl ElementLayout {
    pub fn of<T>() -> Self {
        Self { size: size_of::<T>(), name: std::any::type_name::<T>() }
    }

    /// How many elements so many bytes are.
    pub fn count(&self, bytes: usize) -> Result<usize> {
        let Self { size, name } = *self;
        if size == 0 || !bytes.is_multiple_of(size) {
            return Err(Error::invalid(format!(
                "{bytes} bytes as elements of {name}, of {size} bytes"
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
    /// The application's pages that it lies over.
    pub pages: Option<NonNull<u8>>,
}

impl Asked<'_> {
    /// The core around the memory that is known by this key, which `make` wraps if there is none yet.
    pub fn core(
        self,
        key: usize,
        bytes: usize,
        make: impl FnOnce(&Shape) -> Result<WrappedMemory>,
    ) -> Result<Arc<Core>> {
        let Self { hub, shape, after, .. } = self;
        let (asked, policy) = (shape.devices.clone(), shape.policy);
        let foreign_devices = hub.foreign_devices();
        let core = foreign_devices.wrapped.get(key, hub.timeout(), || {
            let WrappedMemory { whose, memory, spec, pages } = make(&shape)?;
            let registration = whose.registration().map(|registration| registration as _);
            let tag = Tag { place: 0, number: key as u64 };
            let owner = foreign_devices.wrapped.clone();
            let loan = Loan { owner, lender: Lender::Foreign, tag };
            let plan = &|beside: &Request| foreign_devices.plan(hub.topology(), beside);
            let lent = Lent { memory, spec, pages, after, registration, loan, plan };
            around(hub, whose.devices(), lent, shape)
        })?;
        if core.bytes != bytes {
            let have = core.bytes;
            return Err(Error::invalid(format!("{bytes} bytes where {have} are wrapped already")));
        }
        check_sees(&core, &asked, policy)?;
        Ok(core)
    }
}

/// How a foreign memory is to be used. Made by `OpenClHubExt::wrap_buffer`,
/// `OpenClHubExt::wrap_svm`, `VulkanHubExt::wrap_vk_buffer` and
/// `GlHubExt::wrap_gl_buffer`.
#[must_use = "nothing is wrapped until `build`"]
pub struct WrapBuilder<'h, T: Pod> {
    hub: &'h Hub,
    what: Box<dyn ForeignMemory>,
    shape: Shape,
    len: Option<usize>,
    after: Vec<&'h Fence>,
    claim: Option<Claim>,
    fault: Option<Error>,
    /// Those of foreign contexts stay what they are while this does.
    keeps: Vec<Device>,
    element: PhantomData<T>,
}

impl<'h, T: Pod> WrapBuilder<'h, T> {
    #[doc(hidden)]
    pub fn new(hub: &'h Hub, what: impl ForeignMemory + 'static) -> Self {
        let what = Box::new(what);
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
        let raw = self.what.handle();
        self.claim = Some(Claim::new(raw, Box::new(release)));
        self
    }

    /// Wraps it, with a reference of our own that the buffer gives up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of elements, or what the driver knows to be no
    /// buffer; [`Error::Busy`] while the owner has it mapped, or for want of a device entry (see
    /// `OpenClHubExt::foreign_context`); [`Error::CopyForbidden`] as for any buffer.
    pub fn build(self) -> Result<Buffer<T>> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let Self { hub, what, shape, len, after, claim, keeps: _keeps, .. } = self;
        let element = ElementLayout::of::<T>();
        let (core, window) = what.wrap(Asked { hub, len, element, shape, after: &after })?;
        let buffer = Buffer::sharing(core, window);
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

/// Everything around memory of somebody else's.
fn around(hub: &Hub, devices: &[DeviceIx], lent: Lent<'_>, mut shape: Shape) -> Result<Arc<Core>> {
    shape.devices.retain(|device| !devices.contains(device));
    shape.access = lent.spec.access;
    shape.host = lent.spec.host;
    shape.allocate_on = Some(devices[0]);
    shape.memory_kind = Some(lent.spec.memory_kind);
    make_around(hub, shape, lent, &devices[1..])
}
