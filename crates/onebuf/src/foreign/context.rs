//! Foreign OpenCL contexts as devices of a hub.

use super::{ForeignContextInfo, UserEvent};
use onebuf_core::{
    Device, Hub,
    internals::{ForeignDevices, Whose},
    topology::DeviceIx,
};
use onebuf_hal::{self as hal, AllocSpec, DeviceEntries, Error, Library, Result, locks::Arc};
use onebuf_opencl::{self as opencl, OpenCl, foreign::Adopted};
use std::{ffi::c_void, fmt};

/// The discovered OpenCL devices.
#[derive(Clone, Copy)]
pub(super) struct Known<'h> {
    pub library: &'h opencl::Library,
    /// The index of the first one.
    pub first: usize,
}

impl<'h> Known<'h> {
    pub fn of(hub: &'h Hub) -> Result<Self> {
        Self::among(hub.foreign_devices())
    }

    pub fn among(foreign_devices: &'h ForeignDevices) -> Result<Self> {
        let (library, first) = foreign_devices.library("opencl", "OpenCL")?;
        Ok(Self { library, first })
    }

    pub fn cl(&self) -> &'h OpenCl {
        &self.library.cl
    }

    /// The device whose own context this is.
    fn owner_of(&self, context: usize) -> Option<DeviceIx> {
        let at = self.library.devices.iter().position(|device| device.owns(context))?;
        Some(DeviceIx((self.first + at) as u16))
    }

    /// The owner of a context of this hub. Registers the context if it is unknown.
    ///
    /// # Safety
    /// `context` is null or a live context.
    pub unsafe fn whose(&self, hub: &Hub, context: usize) -> Result<Whose> {
        // SAFETY: the caller's contract.
        let adopt =
            |entries: &mut dyn DeviceEntries| unsafe { self.library.adopt(context, entries) };
        hub.whose(context, || self.owner_of(context), adopt)
    }
}

/// The owner of a context. Registers the context if it is unknown.
///
/// # Safety
/// `context` is null or a live context.
pub(super) unsafe fn whose(hub: &Hub, context: usize) -> Result<Whose> {
    // SAFETY: the caller's contract.
    unsafe { Known::of(hub)?.whose(hub, context) }
}

/// One of the context's devices.
pub(super) fn device_of<'a>(
    hub: &'a Hub,
    whose: &'a Whose,
    ix: DeviceIx,
) -> Result<&'a opencl::Device> {
    let known = Known::of(hub)?;
    let device = match whose {
        Whose::Own(_) => known.library.devices.get(ix.get() - known.first),
        Whose::ForeignDevice(registration) => {
            let at = whose.devices().iter().position(|device| *device == ix);
            let members = &registration.foreign_device::<Adopted>()?.members;
            at.and_then(|at| members.get(at)).map(|member| &member.device)
        }
    };
    device
        .map(|device| &**device)
        .ok_or_else(|| Error::invalid("the device does not belong to this context"))
}

/// The device with this driver handle.
pub(super) fn index_of(whose: &Whose, device: usize) -> Result<DeviceIx> {
    let found = match whose {
        Whose::Own(ix) => Some(*ix),
        Whose::ForeignDevice(registration) => {
            let members = &registration.foreign_device::<Adopted>()?.members;
            let at = members.iter().position(|member| member.raw == device);
            at.map(|at| whose.devices()[at])
        }
    };
    found.ok_or_else(|| Error::invalid("the queue's device does not belong to its context"))
}

/// Wraps memory of this context, with its first device as the home.
///
/// # Safety
/// `raw` is a live buffer of this context and not a sub-buffer.
pub(super) unsafe fn wrap_memory(
    hub: &Hub,
    whose: &Whose,
    raw: usize,
    spec: &AllocSpec,
    flags: u64,
) -> Result<Arc<dyn hal::Memory>> {
    // SAFETY: the caller's contract.
    unsafe {
        match whose {
            Whose::Own(ix) => device_of(hub, whose, *ix)?.wrap_memory(raw, spec, flags),
            Whose::ForeignDevice(registration) => {
                let members = &registration.foreign_device::<Adopted>()?.members;
                members[0].foreign_device.wrap_memory(raw, spec, flags)
            }
        }
    }
}

/// A foreign OpenCL context, registered with a hub while this, or anything created in it, lives. Cheap to clone.
#[derive(Clone)]
pub struct ForeignContext {
    pub(super) hub: Hub,
    pub(super) raw: usize,
    pub(super) whose: Whose,
}

impl ForeignContext {
    /// The context's devices, as devices of the hub.
    pub fn devices(&self) -> Vec<Device> {
        self.whose.devices().iter().map(|ix| Device::new(&self.hub, *ix)).collect()
    }

    /// The context's first device. Most contexts have only one.
    pub fn device(&self) -> Device {
        Device::new(&self.hub, self.whose.devices()[0])
    }

    /// Queries the driver.
    pub fn info(&self) -> Result<ForeignContextInfo> {
        // SAFETY: the registration holds the context, or it is the hub's own.
        unsafe { ForeignContextInfo::query(&self.hub, self.raw()) }
    }

    /// The `cl_context`.
    pub fn raw(&self) -> *mut c_void {
        self.raw as *mut c_void
    }

    /// The hub that the context is registered with.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Creates an event of this context that the host completes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver cannot wait for the host.
    pub fn user_event(&self) -> Result<UserEvent> {
        UserEvent::new(&self.hub, &self.whose)
    }
}

impl fmt::Debug for ForeignContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignContext").field(&self.devices()).finish()
    }
}
