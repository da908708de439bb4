//! Foreign contexts of APIs other than OpenCL: one device each, and nothing that counts references.

use super::{
    context::Registration,
    wrap::{around, as_asked},
};
use crate::{
    Buffer, Error, Fence, Hub, MemoryKind, Result,
    backend::{gl, opencl, vulkan},
    buffer::{Lent, Shape},
    hal::{self, AllocSpec},
    sync::{Arc, Mutex, lock},
};
use bytemuck::Pod;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

/// What was found of those APIs.
#[derive(Default)]
pub(crate) struct Others {
    pub vulkan: Option<vulkan::Loader>,
    pub gl: Option<gl::Library>,
}

/// The device of a device entry.
#[derive(Clone)]
pub(super) enum EntryDevice {
    OpenCl(Arc<opencl::Device>),
    Vulkan(Arc<vulkan::Device>),
    Gl(Arc<gl::Device>),
}

impl EntryDevice {
    pub fn hal(&self) -> Arc<dyn hal::Device> {
        match self {
            EntryDevice::OpenCl(device) => device.clone(),
            EntryDevice::Vulkan(device) => device.clone(),
            EntryDevice::Gl(device) => device.clone(),
        }
    }

    pub fn opencl(&self) -> Option<&Arc<opencl::Device>> {
        match self {
            EntryDevice::OpenCl(device) => Some(device),
            EntryDevice::Vulkan(_) | EntryDevice::Gl(_) => None,
        }
    }
}

/// A context that asks for a device entry.
pub(super) struct Newcomer {
    pub device: EntryDevice,
    pub other: Other,
    /// The id of the device that it is another context of.
    pub known_as: String,
}

/// What a registration keeps.
pub(super) struct Other {
    pub foreign_device: ForeignDevice,
    /// What each memory of it that was wrapped is known by.
    keys: Mutex<HashMap<(u64, u64), usize>>,
}

pub(super) enum ForeignDevice {
    Vulkan(vulkan::foreign::ForeignDevice),
    Gl(gl::foreign::ForeignDevice),
}

impl Other {
    pub fn new(foreign_device: ForeignDevice) -> Self {
        Self { foreign_device, keys: Mutex::default() }
    }

    /// The device uses it from now on.
    pub fn sit(&self, entry: &EntryDevice) {
        match (&self.foreign_device, entry) {
            (ForeignDevice::Vulkan(foreign_device), EntryDevice::Vulkan(device)) => {
                device.host_foreign_device(foreign_device)
            }
            (ForeignDevice::Gl(foreign_device), EntryDevice::Gl(device)) => {
                device.host_foreign_device(foreign_device)
            }
            // Devices of two APIs have not the same facts.
            _ => {}
        }
    }

    /// What a memory is wrapped by: handles of these APIs are numbers, which two devices may give twice.
    pub fn key(&self, handle: u64, start: u64) -> usize {
        // From above, where no address of a process is.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut keys = lock(&self.keys);
        let next = || usize::MAX - NEXT.fetch_add(1, Ordering::Relaxed);
        *keys.entry((handle, start)).or_insert_with(next)
    }
}

/// By what id the hub knows a device like this one; the API's name where it has none.
pub(super) fn known_as(hub: &Hub, info: &hal::DeviceInfo) -> String {
    let same = |node: &&crate::topology::Node| {
        let known = &node.info;
        let one = known.physical.same_chip(&info.physical) || known.name == info.name;
        known.api == info.api && one && !node.id.contains(crate::device_table::FOREIGN_MARK)
    };
    let known = hub.topology().nodes().iter().find(same);
    known.map_or_else(|| info.api.0.to_owned(), |node| node.id.clone())
}

/// An API that this hub has not found.
fn unavailable(api: &str) -> Error {
    Error::Unavailable {
        what: format!("{api}, for foreign objects"),
        tried: Vec::new(),
        reason: "this hub found none; see `Hub::unavailable`".to_owned(),
    }
}

impl super::context::ForeignDevices {
    pub(super) fn vulkan(&self) -> Result<&vulkan::Loader> {
        self.others.vulkan.as_ref().ok_or_else(|| unavailable("Vulkan"))
    }

    pub(super) fn gl(&self) -> Result<&gl::Library> {
        self.others.gl.as_ref().ok_or_else(|| unavailable("OpenGL"))
    }
}

/// The core around memory of such a context, which `make` makes if there is none; and its form.
pub(super) fn sharing<T: Pod>(
    hub: &Hub,
    registration: &Arc<Registration>,
    (key, bytes): (usize, usize),
    shape: Shape,
    after: &[&Fence],
    make: impl FnOnce() -> Result<(Arc<dyn hal::Memory>, MemoryKind)>,
) -> Result<Buffer<T>> {
    let (asked, policy, home) = (shape.devices.clone(), shape.policy, registration.first());
    let core = hub.foreign_devices().wrapped.get(key, hub.timeout(), || {
        let (memory, memory_kind) = make()?;
        let (access, host) = Default::default();
        let spec = AllocSpec { bytes, align: shape.align, memory_kind, access, host, hint: None };
        let (pages, registration) = (None, Some(registration.clone() as _));
        around(hub, &[home], Lent { key, memory, spec, pages, after, registration }, shape)
    })?;
    as_asked(core, bytes, &asked, policy)
}
