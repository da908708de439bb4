//! Building a hub: which backends it uses, and how it behaves. This is the top module of the core: it may name every other
//! module, and none names it.
//!
//! # Safety
//! The caller that adds a backend guarantees that it fulfils the contract of [`Backend`].

#![allow(unsafe_code)]

mod found;
mod turn;

use crate::{
    device_table::{DeviceTable, MAX_FOREIGN_DEVICES, Services},
    extensions::Extensions,
    foreign::ForeignDevices,
    hub::{Hub, HubParts, next_domain},
    identity,
    ledger::Ledger,
    observe::{Observer, Observers},
    private_files,
    program::{ProgramCache, Programs},
    queue_state::PendingWork,
    route::CopyTuning,
    verdicts::Verdicts,
};
use found::{Backends, FoundDevices};
use onebuf_hal::{
    Api, Backend, CopyPolicy, Error, Result,
    fake::{FakeBackend, FakeConfig},
    locks::Arc,
};
use onebuf_sys::{Probe, fork};
use std::{any::Any, path::PathBuf, time::Duration};

/// The default timeout of waits.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Configures a hub: which APIs it looks for, and how it behaves.
#[must_use = "nothing is discovered until `build`"]
pub struct HubBuilder {
    backends: Backends,
    probe: Option<Arc<Probe>>,
    policy: CopyPolicy,
    timeout: Option<Duration>,
    copy_tuning: CopyTuning,
    cache: Option<PathBuf>,
    verdicts: Option<Verdicts>,
    program_cache: ProgramCache,
    program_cache_limit: Option<u64>,
    extensions: Extensions,
    observers: Vec<Arc<dyn Observer>>,
    device_times: bool,
}

impl HubBuilder {
    /// Starts with these backends, which include the host's. `onebuf::builder` passes all backends of the library.
    ///
    /// # Safety
    /// The backends fulfil the contract of [`Backend`].
    #[doc(hidden)]
    pub unsafe fn new(backends: Vec<Box<dyn Backend>>) -> Self {
        Self {
            // SAFETY: the caller's contract.
            backends: unsafe { Backends::new(backends) },
            probe: None,
            policy: CopyPolicy::default(),
            timeout: None,
            copy_tuning: CopyTuning::default(),
            cache: None,
            verdicts: None,
            program_cache: ProgramCache::default(),
            program_cache_limit: None,
            extensions: Extensions::default(),
            observers: Vec::new(),
            device_times: false,
        }
    }

    /// Uses only these APIs, by their names in device ids (`opencl`, `cuda`, `hip`, `vulkan`, `gl`), and loads no other driver.
    /// The host is always included, as are backends added by [`HubBuilder::fake`] and [`HubBuilder::backend`]; `["host"]`
    /// excludes all others. Further calls add to the list.
    ///
    /// ```
    /// let hub = onebuf::builder().only(["opencl", "cuda"]).build()?;
    /// assert!(hub.select("vulkan").is_empty());
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn only(mut self, apis: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.backends.only(apis);
        self
    }

    /// Excludes these APIs, and does not load their drivers. Starting the drivers of OpenGL and Vulkan takes tens of
    /// milliseconds, which programs without shaders can save.
    ///
    /// ```
    /// let hub = onebuf::builder().without(["vulkan", "gl"]).build()?;
    /// # let _ = hub;
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn without(mut self, apis: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.backends.without(apis);
        self
    }

    /// Loads this file as a driver or compiler, regardless of the environment; `none` disables the library.
    ///
    /// | name | library | environment |
    /// |---|---|---|
    /// | `opencl` | the OpenCL loader or driver | `ONEBUF_OPENCL_LIB` |
    /// | `cuda` | the CUDA driver | `ONEBUF_CUDA_LIB` |
    /// | `nvrtc` | the compiler of CUDA C | `ONEBUF_NVRTC_LIB` |
    /// | `hip` | the HIP runtime | `ONEBUF_HIP_LIB` |
    /// | `hiprtc` | the compiler of HIP C | `ONEBUF_HIPRTC_LIB` |
    /// | `hsa` | ROCr, queried about memory of HIP and OpenCL | `ONEBUF_HSA_LIB` |
    /// | `vulkan` | the Vulkan loader | `ONEBUF_VULKAN_LIB` |
    /// | `gl` | EGL, for OpenGL | `ONEBUF_EGL_LIB` |
    pub fn library(mut self, name: impl Into<String>, path_or_soname: impl Into<String>) -> Self {
        self.backends.library(name.into(), path_or_soname.into());
        self
    }

    /// Adds a backend.
    ///
    /// # Safety
    /// The backend fulfils the contract of [`Backend`], which safe code relies on.
    pub unsafe fn backend(mut self, backend: Box<dyn Backend>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { self.backends.add(backend) };
        self
    }

    /// Lets CUDA and HIP buffers use [`MemoryKind::Managed`](onebuf_hal::MemoryKind::Managed), regardless of the environment
    /// (`ONEBUF_MANAGED=1`). Managed memory has one address for host and kernels on a chip with its own memory, for libraries
    /// that need one pointer. Its pages move to the buffer's current user, which counts as implied copies. Therefore no plan
    /// chooses it, and [`CopyPolicy::Forbid`] refuses it to the host. If a device does not support it, [`Hub::notes`] has the
    /// reason.
    ///
    /// ```
    /// # use onebuf::{Error, MemoryKind};
    /// let hub = onebuf::builder().managed_memory(true).build()?;
    /// let Ok(gpu) = hub.device("cuda") else { return Ok(()) };
    /// let builder = hub.buffer::<f32>(1 << 20).shared_with([&hub.host(), &gpu]);
    /// match builder.memory_kind(MemoryKind::Managed).build() {
    ///     Ok(both) => {
    ///         both.map_mut()?.fill(1.0);
    ///         let (queue, here) = (gpu.queue()?, both.map()?.as_ptr().addr() as u64);
    ///         assert_eq!(both.read_on(&queue)?.cuda_ptr()?, here, "one pointer");
    ///     }
    ///     Err(Error::Unsupported { .. }) => println!("{:?}", hub.notes()),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn managed_memory(mut self, allow: bool) -> Self {
        self.backends.managed = Some(allow);
        self
    }

    /// Data that crates above will store in the hub.
    #[doc(hidden)]
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Counts every driver call and injects failures, for tests.
    pub fn probe(mut self, probe: Arc<Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Changes how large copies are divided, for tests and measurements.
    #[doc(hidden)]
    pub fn copy_tuning(mut self, change: impl FnOnce(&mut CopyTuning)) -> Self {
        change(&mut self.copy_tuning);
        self
    }

    /// Adds a fake device for tests.
    pub fn fake(self, config: FakeConfig) -> Self {
        // SAFETY: `FakeBackend` fulfils the contract: see its implementation.
        unsafe { self.backend(Box::new(FakeBackend::new(config))) }
    }

    /// Sets what to do about implied copies, for every buffer of the hub.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the timeout of waits. The default is 60 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the folder of cached verdicts and programs. The default is the user's cache folder.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Uses these verdicts instead of the user's cache folder. Programs, too, are then kept on disk only if
    /// [`HubBuilder::cache`] names a folder.
    pub fn verdicts(mut self, verdicts: Verdicts) -> Self {
        self.verdicts = Some(verdicts);
        self
    }

    /// Sets where compiled programs are cached. The default is in memory and on disk.
    pub fn program_cache(mut self, cache: ProgramCache) -> Self {
        self.program_cache = cache;
        self
    }

    /// Sets the size limit of the programs on disk, in bytes. The default is 256 MiB. The least recently used are removed first.
    pub fn program_cache_limit(mut self, bytes: u64) -> Self {
        self.program_cache_limit = Some(bytes);
        self
    }

    /// Adds an observer of what the hub does: see [`crate::observe`]. There is one observer of each type; a second one of the
    /// same type replaces the first.
    pub fn observer(mut self, observer: Arc<impl Observer>) -> Self {
        let other = |one: &Arc<dyn Observer>| {
            let one: &dyn Any = &**one;
            one.type_id() != (*observer).type_id()
        };
        self.observers.retain(other);
        self.observers.push(observer);
        self
    }

    /// Makes `Device::queue` open profiling queues if an observer wants events, so that launches also have times of the device's
    /// clock. Some drivers are slower with such queues.
    pub fn device_times(mut self) -> Self {
        self.device_times = true;
        self
    }

    /// The folder of caches; none if the verdicts were given without one.
    fn folder(&self) -> Option<PathBuf> {
        let users = || private_files::user_folder().ok().filter(|_| self.verdicts.is_none());
        self.cache.clone().or_else(users)
    }

    /// Discovers the devices, and builds the hub.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an API or library that no backend has; [`Error::Unavailable`] if the host itself
    /// cannot be used; [`Error::DeviceLost`] in a process that was forked after a driver had been loaded. Other problems are in
    /// [`Hub::unavailable`] and [`Hub::notes`].
    pub fn build(mut self) -> Result<Hub> {
        self.backends.check()?;
        if fork::is_child() && self.backends.any() {
            return Err(Error::forked("every device"));
        }
        // Before any driver is loaded, because drivers change the environment.
        identity::environment();
        let folder = self.folder();
        let programs = Programs::new(self.program_cache, folder.clone(), self.program_cache_limit);
        let mut found = FoundDevices::default();
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT);
        found.search(&self.backends, self.probe.clone(), next_domain, timeout);
        if found.nodes.first().is_none_or(|node| node.info.api != Api::HOST) {
            let reason = "the list of backends has no host backend".to_owned();
            return Err(Error::Unavailable { what: "the host".to_owned(), tried: vec![], reason });
        }

        let (verdicts, note) = match self.verdicts {
            Some(verdicts) => (verdicts, None),
            None => Verdicts::load_or_note(self.cache.as_deref()),
        };
        found.notes.extend(note);
        let ids = found.nodes.iter().map(|node| node.id.clone());
        let ledger = Ledger::new(ids.collect(), MAX_FOREIGN_DEVICES);
        // The first one is found fastest, and every wrap needs this one.
        *self.extensions.get_mut() = ForeignDevices::new(found.loaded);
        *self.extensions.get_mut() = programs;
        *self.extensions.get_mut() = found.hidden;
        for (node, device) in found.nodes.iter().zip(&found.devices) {
            if let Some(post) = device.post() {
                post.assign(&node.id, timeout);
            }
        }
        // After the drivers are loaded, so that its exit handler runs before theirs.
        let pending = PendingWork::new(timeout);
        let (observers, tracer) = Observers::built(self.observers, self.device_times);
        let services = Services { tracer: tracer.clone(), timeout, pending: pending.clone() };
        Ok(Hub::new(HubParts {
            device_table: DeviceTable::new(found.devices, found.nodes, verdicts, services),
            ledger,
            policy: self.policy,
            timeout,
            cache_folder: folder,
            copy_tuning: self.copy_tuning,
            unavailable: found.unavailable,
            notes: found.notes,
            libraries: self.backends.environment(),
            probe: self.probe,
            extensions: self.extensions,
            observers,
            tracer,
            pending,
        }))
    }
}
