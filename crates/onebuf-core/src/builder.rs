//! Making a hub: which backends are asked, and how the hub behaves. The top of the core: it may name every module of it, and none names it.
//!
//! # Safety
//! Backends are added by those who promise that they keep to the contract of [`Backend`].

#![allow(unsafe_code)]

mod found;

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

/// How long waits last when nothing else was said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a hub shall look for, and how it behaves.
#[must_use = "nothing is discovered until `build`"]
pub struct HubBuilder {
    backends: Backends,
    probe: Option<Arc<Probe>>,
    policy: CopyPolicy,
    timeout: Option<Duration>,
    cache: Option<PathBuf>,
    verdicts: Option<Verdicts>,
    program_cache: ProgramCache,
    program_cache_limit: Option<u64>,
    extensions: Extensions,
    observers: Vec<Arc<dyn Observer>>,
    device_times: bool,
}

impl HubBuilder {
    /// A hub of these backends: `onebuf::builder` has the list of those that there are. The host's is among them.
    ///
    /// # Safety
    /// They keep to the contract of [`Backend`].
    #[doc(hidden)]
    pub unsafe fn new(backends: Vec<Box<dyn Backend>>) -> Self {
        Self {
            // SAFETY: the caller's promise.
            backends: unsafe { Backends::new(backends) },
            probe: None,
            policy: CopyPolicy::default(),
            timeout: None,
            cache: None,
            verdicts: None,
            program_cache: ProgramCache::default(),
            program_cache_limit: None,
            extensions: Extensions::default(),
            observers: Vec::new(),
            device_times: false,
        }
    }

    /// Uses these APIs alone, by their names in device ids (`opencl`, `cuda`, `hip`, `vulkan`, `gl`), and loads no other
    /// driver. The host is always there, and so is what [`HubBuilder::fake`] and [`HubBuilder::backend`] add; `["host"]`
    /// asks for nothing else. Called again, it adds to the list.
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

    /// Leaves these APIs out, and does not load their drivers. Starting those of OpenGL and Vulkan takes tens of
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

    /// Loads this file as a driver or compiler, whatever the environment says; `none` loads none.
    ///
    /// | name | library | environment |
    /// |---|---|---|
    /// | `opencl` | the OpenCL loader or driver | `ONEBUF_OPENCL_LIB` |
    /// | `cuda` | the CUDA driver | `ONEBUF_CUDA_LIB` |
    /// | `nvrtc` | the compiler of CUDA C | `ONEBUF_NVRTC_LIB` |
    /// | `hip` | the HIP runtime | `ONEBUF_HIP_LIB` |
    /// | `hiprtc` | the compiler of HIP C | `ONEBUF_HIPRTC_LIB` |
    /// | `hsa` | ROCr, which is asked about memory of HIP's and OpenCL's | `ONEBUF_HSA_LIB` |
    /// | `vulkan` | the Vulkan loader | `ONEBUF_VULKAN_LIB` |
    /// | `gl` | EGL, for OpenGL | `ONEBUF_EGL_LIB` |
    pub fn library(mut self, name: impl Into<String>, path_or_soname: impl Into<String>) -> Self {
        self.backends.library(name.into(), path_or_soname.into());
        self
    }

    /// Adds a backend.
    ///
    /// # Safety
    /// It keeps to the contract of [`Backend`], which safe code relies on.
    pub unsafe fn backend(mut self, backend: Box<dyn Backend>) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.backends.add(backend) };
        self
    }

    /// Lets buffers of CUDA's and HIP's ask for [`MemoryKind::Managed`](onebuf_hal::MemoryKind::Managed), whatever the environment says
    /// (`ONEBUF_MANAGED=1`): one address for host and kernels on a chip that has memory of its own, for libraries that want one
    /// pointer. Its pages move to whoever takes the buffer, which is counted as implied copies; so no plan chooses it, and
    /// [`CopyPolicy::Forbid`] refuses it to the host. Where a device has none, [`Hub::notes`] says why.
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

    /// What crates above will keep with the hub.
    #[doc(hidden)]
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Counts every driver call and lets chosen ones fail: for tests.
    pub fn probe(mut self, probe: Arc<Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Adds a device that exists only in tests.
    pub fn fake(self, config: FakeConfig) -> Self {
        // SAFETY: it keeps to the contract: see its implementation.
        unsafe { self.backend(Box::new(FakeBackend::new(config))) }
    }

    /// What to do about implied copies, for every buffer of the hub.
    pub fn copies(mut self, policy: CopyPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// How long waits last; 60 s otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The folder of cached verdicts and programs; the user's cache folder otherwise.
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Uses these verdicts and not the user's cache folder: programs, too, are then kept on disk only
    /// where [`HubBuilder::cache`] names a folder.
    pub fn verdicts(mut self, verdicts: Verdicts) -> Self {
        self.verdicts = Some(verdicts);
        self
    }

    /// Where compiled programs are remembered; in memory and on disk otherwise.
    pub fn program_cache(mut self, cache: ProgramCache) -> Self {
        self.program_cache = cache;
        self
    }

    /// How many bytes of programs are kept on disk; 256 MiB otherwise. The least recently used go.
    pub fn program_cache_limit(mut self, bytes: u64) -> Self {
        self.program_cache_limit = Some(bytes);
        self
    }

    /// Tells this observer what the hub does: see [`crate::observe`]. There is one observer of each type; a second one of the
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

    /// Where an observer wants events, opens queues that nothing else was said of for profiling, so that launches have times of
    /// their device's clock, too. Some drivers take longer for such queues.
    pub fn device_times(mut self) -> Self {
        self.device_times = true;
        self
    }

    /// What programs are remembered in.
    fn programs(&self) -> Programs {
        let users = || private_files::user_folder().ok().filter(|_| self.verdicts.is_none());
        let folder = self.cache.clone().or_else(users);
        Programs::new(self.program_cache, folder, self.program_cache_limit)
    }

    /// Discovers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an API or library that no backend has; [`Error::Unavailable`] when the host itself
    /// cannot be used. Everything else is in [`Hub::unavailable`] and [`Hub::notes`].
    pub fn build(mut self) -> Result<Hub> {
        self.backends.check()?;
        if fork::is_child() && self.backends.any() {
            return Err(Error::forked("every device"));
        }
        // Before any driver is loaded: drivers change it.
        identity::environment();
        let programs = self.programs();
        let mut found = FoundDevices::default();
        found.search(&self.backends, self.probe.clone(), next_domain);
        if found.nodes.first().is_none_or(|node| node.info.api != Api::HOST) {
            let reason = "no backend has it".to_owned();
            return Err(Error::Unavailable { what: "the host".to_owned(), tried: vec![], reason });
        }

        let (verdicts, note) = match self.verdicts {
            Some(verdicts) => (verdicts, None),
            None => Verdicts::load_or_note(self.cache.as_deref()),
        };
        found.notes.extend(note);
        let ids = found.nodes.iter().map(|node| node.id.clone());
        let ledger = Ledger::new(ids.collect(), MAX_FOREIGN_DEVICES);
        *self.extensions.get_mut() = programs;
        *self.extensions.get_mut() = ForeignDevices::new(found.loaded);
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT);
        for (node, device) in found.nodes.iter().zip(&found.devices) {
            if let Some(post) = device.post() {
                post.assign(&node.id, timeout);
            }
        }
        // After the drivers were loaded: its handler runs before theirs.
        let pending = PendingWork::new(timeout);
        let (observers, tracer) = Observers::built(self.observers, self.device_times);
        let services = Services { tracer: tracer.clone(), timeout, pending: pending.clone() };
        Ok(Hub::new(HubParts {
            device_table: DeviceTable::new(found.devices, found.nodes, verdicts, services),
            ledger,
            policy: self.policy,
            timeout,
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
