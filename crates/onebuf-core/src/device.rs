//! The public device handle, and device selection.

use crate::{hub::Hub, topology::DeviceIx};
use onebuf_hal::{DeviceInfo, DeviceKind, Error, Result, locks::Arc};
use std::{any::Any, fmt};

/// One API's view of one chip, such as `host` or `opencl:0`. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    hub: Hub,
    ix: DeviceIx,
    /// Keeps the foreign context alive that this device belongs to, if any.
    context: Option<Arc<dyn Any + Send + Sync>>,
}

impl Device {
    #[doc(hidden)]
    pub fn new(hub: &Hub, ix: DeviceIx) -> Self {
        Self { hub: hub.clone(), ix, context: hub.context_of(ix) }
    }

    /// Returns the device's id, such as `opencl:0`.
    pub fn id(&self) -> &str {
        &self.hub.topology().node(self.ix).id
    }

    /// Returns the device's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.hub.topology().node(self.ix).info
    }

    /// Returns the native handles that the device's objects are created with, each with the name of its type: `cl_platform_id`,
    /// `cl_device_id`, `cl_context`; `CUdevice`, `CUcontext`; `hipDevice_t`; `VkInstance`, `VkPhysicalDevice`, `VkDevice`;
    /// `EGLDisplay`, `EGLContext`. The host has none. A context is created if there is none yet. The handles are valid while the
    /// device lives; no references are added.
    ///
    /// # Errors
    /// The driver's error if the context cannot be created.
    pub fn native_handles(&self) -> Result<Vec<(&'static str, usize)>> {
        self.hub.hal(self.ix).native_handles()
    }

    /// Returns the device's index in the hub's device table, for [`crate::plan::Request`].
    pub fn index(&self) -> DeviceIx {
        self.ix
    }

    /// Whether the device belongs to a foreign context.
    pub(crate) fn is_foreign(&self) -> bool {
        self.context.is_some()
    }

    /// Returns the hub that the device belongs to.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }
}

/// By API: what shows devices that its drivers hide.
#[derive(Default)]
pub(crate) struct HiddenDevices(pub Vec<(&'static str, &'static str)>);

impl Hub {
    /// Returns every device that was found, the host first. Devices of foreign contexts are not included.
    pub fn devices(&self) -> Vec<Device> {
        let found = self.device_table().found() as u16;
        (0..found).map(|ix| Device::new(self, DeviceIx(ix))).collect()
    }

    /// Returns the first device that matches: by id (`opencl:1`), API (`opencl`), type (`cpu`, `gpu`,
    /// `accelerator`), or a part of its name or platform. Case is ignored.
    ///
    /// # Errors
    /// [`Error::Unavailable`], which lists the devices that were found and the APIs that could not be loaded.
    pub fn device(&self, selector: &str) -> Result<Device> {
        let found = self.select(selector).into_iter().next();
        found.or_else(|| self.foreign_device(selector)).ok_or_else(|| self.no_device(selector))
    }

    /// Finds a device of a foreign context by its complete id.
    fn foreign_device(&self, id: &str) -> Option<Device> {
        let at = self.topology().nodes().iter().position(|node| node.id == id.trim())?;
        let ix = DeviceIx(at as u16);
        self.context_of(ix).map(|_| Device::new(self, ix))
    }

    /// Returns every device that matches. Criteria are tried in the order of [`Hub::device`], and the first with a match decides.
    pub fn select(&self, selector: &str) -> Vec<Device> {
        let wanted = selector.trim().to_lowercase();
        let all = self.devices();
        let by = |fits: &dyn Fn(&Device) -> bool| -> Vec<Device> {
            all.iter().filter(|d| fits(d)).cloned().collect()
        };
        let matches = [
            by(&|d| d.id() == wanted),
            by(&|d| d.info().api.0 == wanted),
            by(&|d| d.info().kind.to_string() == wanted && d.info().kind != DeviceKind::Other),
            by(&|d| !wanted.is_empty() && d.info().name.to_lowercase().contains(&wanted)),
            by(&|d| !wanted.is_empty() && d.info().platform.to_lowercase().contains(&wanted)),
        ];
        matches.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The error for a selector that no device matches: what this hub has, and why it has no more, the requested API first.
    fn no_device(&self, selector: &str) -> Error {
        let found = &self.topology().nodes()[..self.device_table().found()];
        let found: Vec<_> = found.iter().map(|n| format!("{} ({})", n.id, n.info.name)).collect();
        let api = selector.trim().split(':').next().unwrap_or_default().to_lowercase();
        let missing = self.unavailable().iter().map(|u| {
            let hint = u.hint.as_deref().map_or_else(String::new, |hint| format!(" ({hint})"));
            format!("{}: {}{hint}", u.api, u.reason)
        });
        let hidden = self.extensions().get::<HiddenDevices>().0.iter();
        let hidden = hidden.filter(|(of, _)| *of == api).map(|(of, hint)| format!("{of}: {hint}"));
        let missing = missing.chain(hidden);
        let mut lines: Vec<_> =
            missing.chain(self.notes().iter().map(ToString::to_string)).collect();
        lines.sort_by_key(|line| !line.starts_with(&format!("{api}:")));
        let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
        Error::Unavailable {
            what: format!("device `{selector}`"),
            tried: Vec::new(),
            reason: format!("these were found: {}{lines}", found.join(", ")),
        }
    }

    /// Returns the CPU's device.
    pub fn host(&self) -> Device {
        Device::new(self, self.host_index())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.id(), self.info().name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices()).finish()
    }
}
