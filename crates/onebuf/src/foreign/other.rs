//! Foreign contexts of APIs other than OpenCL: one device each, and nothing that counts references.

use super::{
    context::Registration,
    wrap::{around, as_asked},
};
use crate::{
    Buffer, Error, Fence, Hub, Result, Strategy,
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

/// The device of a seat.
#[derive(Clone)]
pub(super) enum Seated {
    OpenCl(Arc<opencl::Device>),
    Vulkan(Arc<vulkan::Device>),
    Gl(Arc<gl::Device>),
}

impl Seated {
    pub fn hal(&self) -> Arc<dyn hal::Device> {
        match self {
            Seated::OpenCl(device) => device.clone(),
            Seated::Vulkan(device) => device.clone(),
            Seated::Gl(device) => device.clone(),
        }
    }

    pub fn opencl(&self) -> Option<&Arc<opencl::Device>> {
        match self {
            Seated::OpenCl(device) => Some(device),
            Seated::Vulkan(_) | Seated::Gl(_) => None,
        }
    }
}

/// A context that asks for a seat.
pub(super) struct Newcomer {
    pub device: Seated,
    pub other: Other,
    /// The id of the device that it is another context of.
    pub known_as: String,
}

/// What a registration keeps.
pub(super) struct Other {
    pub guest: Guest,
    /// What each memory of it that was wrapped is known by.
    keys: Mutex<HashMap<(u64, u64), usize>>,
}

pub(super) enum Guest {
    Vulkan(vulkan::foreign::Guest),
    Gl(gl::foreign::Guest),
}

impl Other {
    pub fn new(guest: Guest) -> Self {
        Self { guest, keys: Mutex::default() }
    }

    /// The device uses it from now on.
    pub fn sit(&self, seat: &Seated) {
        match (&self.guest, seat) {
            (Guest::Vulkan(guest), Seated::Vulkan(device)) => device.host_guest(guest),
            (Guest::Gl(guest), Seated::Gl(device)) => device.host_guest(guest),
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
        known.api == info.api && one && !node.id.contains(crate::roster::GUEST_MARK)
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

impl super::context::Guests {
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
    make: impl FnOnce() -> Result<(Arc<dyn hal::Memory>, Strategy)>,
) -> Result<Buffer<T>> {
    let (asked, policy, home) = (shape.devices.clone(), shape.policy, registration.first());
    let core = hub.guests().wrapped.get(key, hub.timeout(), || {
        let (memory, strategy) = make()?;
        let (access, host) = Default::default();
        let spec = AllocSpec { bytes, align: shape.align, strategy, access, host, hint: None };
        let (pages, guest) = (None, Some(registration.clone()));
        around(hub, &[home], Lent { key, memory, spec, pages, after, guest }, shape)
    })?;
    as_asked(core, bytes, &asked, policy)
}
