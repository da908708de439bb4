//! Vulkan: `ash`'s function tables, loaded at run time, with a probe in front.
//!
//! Only calls that can fail go through the probe. Recording a command and destroying an object cannot fail: commands
//! are recorded through [`Device::raw`], and destroyed objects are only counted.
//!
//! # Safety
//!
//! Each method has the contract of the C function it names; see the [crate page](crate#safety).

use std::ffi::{CStr, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::fork;
use crate::loader::{self, Missing, as_function, library_of};
use crate::probe::Probe;

mod device;

#[cfg(test)]
mod tests;

pub use ash::vk;
pub use device::Device;

const SONAMES: &[&str] = &["libvulkan.so.1", "libvulkan.so"];
const HINT: &str = "install a loader and a driver (on Debian or Ubuntu: apt install libvulkan1 mesa-vulkan-drivers)";

/// A call that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VkRefused {
    /// The C name of the call.
    pub call: &'static str,
    /// The driver's status.
    pub status: vk::Result,
}

impl fmt::Display for VkRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {:?} ({})", self.call, self.status, self.status.as_raw())
    }
}

impl std::error::Error for VkRefused {}

/// The probe, which every table calls before and after a call.
#[derive(Clone, Default)]
struct Watch(Option<Arc<Probe>>);

impl Watch {
    /// Makes a call, unless the probe fails it.
    fn call<T>(
        &self,
        call: &'static str,
        make: impl FnOnce() -> Result<T, vk::Result>,
    ) -> Result<T, VkRefused> {
        let refused = |status| VkRefused { call, status };
        if fork::is_child() {
            return Err(refused(vk::Result::from_raw(fork::FORKED)));
        }
        if let Some(probe) = &self.0 {
            probe.enter(call).map_err(|code| refused(vk::Result::from_raw(code)))?;
        }
        make().map_err(refused)
    }

    fn count(&self, kind: &'static str, change: i64) {
        if let Some(probe) = &self.0 {
            probe.count(kind, change);
        }
    }
}

/// The loader.
pub struct Vulkan {
    watch: Watch,
    entry: ash::Entry,
}

impl Vulkan {
    /// Opens the loader. Calls no driver.
    ///
    /// `library` is a path, a soname, or `none`. Without it the environment variable `ONEBUF_VULKAN_LIB` applies, and
    /// then the usual names are tried. Every call that can fail goes through `probe`, if there is one.
    pub fn load(library: Option<&str>, probe: Option<Arc<Probe>>) -> Result<Self, Missing> {
        let loaded = loader::open("vulkan", library, "ONEBUF_VULKAN_LIB", SONAMES, HINT)?;
        let Some(at) = loaded.symbol(c"vkGetInstanceProcAddr") else {
            return Err(Missing::incomplete("vulkan", loaded, &["vkGetInstanceProcAddr"], HINT));
        };
        // SAFETY: every Vulkan loader exports it with this prototype, and the library is never closed.
        let get_instance_proc_addr: vk::PFN_vkGetInstanceProcAddr = unsafe { as_function(at) };
        // `ash` aborts the process when a missing function is called.
        let needed = [c"vkCreateInstance", c"vkEnumerateInstanceVersion"];
        let is_there = |name: &CStr| {
            // SAFETY: global functions are looked up without an instance.
            unsafe { get_instance_proc_addr(vk::Instance::null(), name.as_ptr()) }.is_some()
        };
        let lacking = needed.iter().filter(|name| !is_there(name));
        let lacking: Vec<_> = lacking.filter_map(|name| name.to_str().ok()).collect();
        if !lacking.is_empty() {
            return Err(Missing::incomplete("vulkan", loaded, &lacking, HINT));
        }
        // SAFETY: as above.
        let entry = unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) };
        Ok(Self { watch: Watch(probe), entry })
    }

    /// The path of the loader.
    pub fn library(&self) -> Option<PathBuf> {
        library_of(self.entry.static_fn().get_instance_proc_addr as *const c_void)
    }

    /// Whether this is the address of the loader's `vkGetInstanceProcAddr`.
    pub fn is_entry(&self, at: *const c_void) -> bool {
        std::ptr::eq(self.entry.static_fn().get_instance_proc_addr as *const c_void, at)
    }

    /// `vkEnumerateInstanceVersion`
    pub fn version(&self) -> Result<u32, VkRefused> {
        self.watch.call("vkEnumerateInstanceVersion", || {
            // SAFETY: no preconditions.
            let version = unsafe { self.entry.try_enumerate_instance_version() };
            version.map(|version| version.unwrap_or(vk::API_VERSION_1_0))
        })
    }

    /// `vkCreateInstance`
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn create_instance(
        &self,
        info: &vk::InstanceCreateInfo<'_>,
    ) -> Result<Instance, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        let create = || unsafe { self.entry.create_instance(info, None) };
        let raw = self.watch.call("vkCreateInstance", create)?;
        self.watch.count("instance", 1);
        Ok(Instance { watch: self.watch.clone(), raw, adopted: false })
    }

    /// Wraps a foreign instance, which [`Instance::destroy`] does not destroy.
    ///
    /// # Safety
    ///
    /// A live instance of this loader that outlives every object created from the result.
    pub unsafe fn adopt_instance(&self, instance: vk::Instance) -> Instance {
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { ash::Instance::load(self.entry.static_fn(), instance) };
        Instance { watch: self.watch.clone(), raw, adopted: true }
    }
}

impl fmt::Debug for Vulkan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vulkan({:?})", self.library())
    }
}

/// The functions of one instance. [`Instance::destroy`] destroys it.
pub struct Instance {
    watch: Watch,
    raw: ash::Instance,
    adopted: bool,
}

impl Instance {
    /// Returns the functions that cannot fail.
    pub fn raw(&self) -> &ash::Instance {
        &self.raw
    }

    /// `vkEnumeratePhysicalDevices`
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        self.watch
            .call("vkEnumeratePhysicalDevices", || unsafe { self.raw.enumerate_physical_devices() })
    }

    /// `vkEnumerateDeviceExtensionProperties`: the extensions' names.
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn extensions(&self, device: vk::PhysicalDevice) -> Result<Vec<String>, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        let all = self.watch.call("vkEnumerateDeviceExtensionProperties", || unsafe {
            self.raw.enumerate_device_extension_properties(device)
        })?;
        let name = |one: &vk::ExtensionProperties| {
            one.extension_name_as_c_str().map(|name| name.to_string_lossy().into_owned())
        };
        Ok(all.iter().filter_map(|one| name(one).ok()).collect())
    }

    /// `vkCreateDevice`
    ///
    /// # Safety
    ///
    /// The contract of the C function.
    pub unsafe fn create_device(
        &self,
        physical: vk::PhysicalDevice,
        info: &vk::DeviceCreateInfo<'_>,
    ) -> Result<Device, VkRefused> {
        // SAFETY: the caller keeps the C function's contract.
        let create = || unsafe { self.raw.create_device(physical, info, None) };
        let raw = self.watch.call("vkCreateDevice", create)?;
        self.watch.count("device", 1);
        Ok(Device::new(self.watch.clone(), &self.raw, raw, false))
    }

    /// Wraps a foreign device, which [`Device::destroy`] does not destroy.
    ///
    /// # Safety
    ///
    /// A live device of this instance that outlives every object created from the result.
    pub unsafe fn adopt_device(&self, device: vk::Device) -> Device {
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { ash::Device::load(self.raw.fp_v1_0(), device) };
        Device::new(self.watch.clone(), &self.raw, raw, true)
    }

    /// `vkDestroyInstance`
    ///
    /// # Safety
    ///
    /// The contract of the C function; no object of this instance is used afterwards.
    pub unsafe fn destroy(&self) {
        if self.adopted || fork::is_child() {
            return;
        }
        // SAFETY: the caller keeps the C function's contract.
        unsafe { self.raw.destroy_instance(None) };
        self.watch.count("instance", -1);
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({:?})", self.raw.handle())
    }
}
