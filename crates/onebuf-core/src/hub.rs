//! The hub: this process's view of the machine.
//!
//! # Safety
//! Backends are added by those who promise that they keep to the contract of [`Backend`].

#![allow(unsafe_code)]

mod found;
mod pages;
mod pending;

use crate::{
    BufferBuilder, Ledger, ProgramCache,
    device::Device,
    device_table::{DeviceEntry, DeviceTable, MAX_FOREIGN_DEVICES},
    extensions::Extensions,
    foreign::ForeignDevices,
    identity,
    observe::{BufferObservers, NewBuffer, Observer, Observers, Tracer},
    private_files,
    program::Programs,
    queue::{CallbackThread, QueueState},
    route::staging_pool::StagingPool,
    semaphores::Semaphores,
    topology::{DeviceIx, Topology},
    verdicts::Verdicts,
    wait_value_words::WaitValueTable,
};
use bytemuck::Pod;
pub(crate) use found::Loaded;
use found::{Backends, Found};
use onebuf_hal::{
    self as hal, Api, Backend, CopyPolicy, DeviceKind, Domain, Error, QueueSpec, Result,
    Unavailable,
    fake::{FakeBackend, FakeConfig},
    locks::{Arc, lock},
};
use onebuf_sys::{Probe, fork};
pub(crate) use pending::Pending;
use std::{
    any::Any,
    fmt,
    path::PathBuf,
    sync::{
        OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long waits last when nothing else was said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// This process's view of the machine: the devices found, and what is known of the routes between
/// them. There is no global state; hubs live side by side. Cheap to clone; buffers, queues and
/// devices keep their hub alive.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    device_table: DeviceTable,
    foreign_devices: ForeignDevices,
    ledger: Ledger,
    policy: CopyPolicy,
    timeout: Duration,
    unavailable: Vec<Unavailable>,
    notes: Vec<Error>,
    /// The libraries that were asked for, as their environment variables have them.
    libraries: Vec<(&'static str, String)>,
    programs: Programs,
    wait_value_table: WaitValueTable,
    semaphores: Semaphores,
    callback_thread: Arc<CallbackThread>,
    /// Counts driver calls and lets chosen ones fail: for tests.
    probe: Option<Arc<Probe>>,
    /// What crates above keep with it.
    extensions: Extensions,
    /// To those of the observers that want events.
    tracer: Tracer,
    observers: Observers,
    /// The host's service queue, once it was needed: maps take it without a lock.
    host_queue_state: OnceLock<Arc<QueueState>>,
    /// What is under way. The last field: what the others leave is waited for.
    pending: Arc<Pending>,
}

impl Hub {
    /// Every device that was found, the host first. Devices of foreign contexts are their contexts'.
    pub fn devices(&self) -> Vec<Device> {
        let found = self.0.device_table.found() as u16;
        (0..found).map(|ix| Device::new(self, DeviceIx(ix))).collect()
    }

    /// The first device that fits: by id (`opencl:1`), API (`opencl`), type (`cpu`, `gpu`,
    /// `accelerator`), or a part of its name or platform, in any case.
    ///
    /// # Errors
    /// [`Error::Unavailable`] that lists what there is, and what could not be loaded.
    pub fn device(&self, selector: &str) -> Result<Device> {
        let found = self.select(selector).into_iter().next();
        found.or_else(|| self.foreign_device(selector)).ok_or_else(|| self.no_device(selector))
    }

    /// A device of a foreign context, by its whole id.
    fn foreign_device(&self, id: &str) -> Option<Device> {
        let at = self.topology().nodes().iter().position(|node| node.id == id.trim())?;
        let ix = DeviceIx(at as u16);
        self.foreign_devices().of(ix).map(|_| Device::new(self, ix))
    }

    /// Every device that fits, as for [`Hub::device`]; the kind of match that comes first there wins.
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

    fn no_device(&self, selector: &str) -> Error {
        let found = &self.topology().nodes()[..self.0.device_table.found()];
        let tried = found.iter().map(|n| format!("{} ({})", n.id, n.info.name));
        let missing = self.0.unavailable.iter();
        let missing = missing.map(|u| {
            let hint = u.hint.as_deref().map_or_else(String::new, |hint| format!(" ({hint})"));
            format!("; {}: {}{hint}", u.api, u.reason)
        });
        let notes = self.0.notes.iter().map(|note| format!("; {note}"));
        let more: String = missing.chain(notes).collect();
        Error::Unavailable {
            what: format!("device `{selector}`"),
            tried: tried.collect(),
            reason: format!("no device of this hub fits{more}"),
        }
    }

    /// The CPU.
    pub fn host(&self) -> Device {
        Device::new(self, self.host_index())
    }

    /// A new buffer of so many elements; say what it shall be, then `build`.
    pub fn buffer<T: Pod>(&self, len: usize) -> BufferBuilder<'_, T> {
        BufferBuilder::new(self, len)
    }

    /// The devices and routes, as [`crate::plan::plan`] takes them.
    pub fn topology(&self) -> &Topology {
        self.0.device_table.topology()
    }

    /// What was moved so far by buffers of this hub.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// APIs that are not to be had here, and why.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.0.unavailable
    }

    /// What went wrong while discovering without stopping it: an unreadable verdict cache, a device
    /// that did not answer.
    pub fn notes(&self) -> &[Error] {
        &self.0.notes
    }

    /// What the hub knew of its routes when it was made, as the doctor found it.
    pub fn verdicts(&self) -> &Verdicts {
        self.0.device_table.verdicts()
    }

    /// How long waits of this hub last.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// What this hub does about implied copies.
    pub fn copy_policy(&self) -> CopyPolicy {
        self.0.policy
    }

    /// Whether both are one hub.
    #[inline]
    pub fn is(&self, other: &Hub) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What a helper process must find in its environment to see the same devices.
    #[doc(hidden)]
    pub fn libraries(&self) -> &[(&'static str, String)] {
        &self.0.libraries
    }

    pub(crate) fn host_index(&self) -> DeviceIx {
        DeviceIx::HOST
    }

    pub(crate) fn hal(&self, device: DeviceIx) -> &dyn hal::Device {
        &*self.entry(device).device
    }

    pub(crate) fn entry(&self, device: DeviceIx) -> &DeviceEntry {
        self.0.device_table.entry(device)
    }

    pub(crate) fn device_table(&self) -> &DeviceTable {
        &self.0.device_table
    }

    /// What is known of foreign contexts and of what was wrapped.
    #[doc(hidden)]
    pub fn foreign_devices(&self) -> &ForeignDevices {
        &self.0.foreign_devices
    }

    /// A number for another context.
    pub(crate) fn new_domain(&self) -> Domain {
        next_domain()
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakHub {
        WeakHub(Arc::downgrade(&self.0))
    }

    /// What its queues have under way.
    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.0.pending
    }

    pub(crate) fn wait_value_table(&self) -> &WaitValueTable {
        &self.0.wait_value_table
    }

    /// Who opens host signals when callbacks come.
    pub(crate) fn callback_thread(&self) -> &Arc<CallbackThread> {
        &self.0.callback_thread
    }

    pub(crate) fn semaphores(&self) -> &Semaphores {
        &self.0.semaphores
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.0.programs
    }

    /// What counts driver calls and lets chosen ones fail, where a test asked for it.
    #[doc(hidden)]
    pub fn probe(&self) -> Option<&Arc<Probe>> {
        self.0.probe.as_ref()
    }

    /// What crates above keep with it.
    #[doc(hidden)]
    pub fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }

    /// Where what happens is told.
    #[inline]
    #[doc(hidden)]
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// The observer of this type, if one is installed.
    #[doc(hidden)]
    pub fn observer<T: Observer>(&self) -> Option<Arc<T>> {
        self.0.observers.find()
    }

    /// The observer of this type, installed now unless it was before. It sees buffers that are made from now on, and no
    /// events: those want an observer that the hub is built with.
    #[doc(hidden)]
    pub fn observe_with<T: Observer>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        self.0.observers.find_or_add(make)
    }

    /// Who is told of a new buffer.
    #[inline]
    pub(crate) fn buffer_observers(&self, describe: impl FnOnce() -> NewBuffer) -> BufferObservers {
        self.0.observers.of_buffer(describe)
    }

    /// Host memory for copies to and from a device.
    pub(crate) fn staging_pool(&self, device: DeviceIx) -> &StagingPool {
        &self.entry(device).staging_pool
    }

    /// The host's [service queue](Self::service_queue_state).
    pub(crate) fn host_queue_state(&self) -> Result<&Arc<QueueState>> {
        match self.0.host_queue_state.get() {
            Some(queue_state) => Ok(queue_state),
            None => {
                let queue_state = self.service_queue_state(self.host_index())?;
                Ok(self.0.host_queue_state.get_or_init(|| queue_state))
            }
        }
    }

    /// The queue for transfers and hand-overs that no queue of the caller's is at hand for.
    pub(crate) fn service_queue_state(&self, device: DeviceIx) -> Result<Arc<QueueState>> {
        let mut slot = lock(&self.entry(device).service);
        match &*slot {
            Some(queue_state) => Ok(queue_state.clone()),
            None => {
                let (hal, spec) = (self.hal(device), QueueSpec::default());
                let queue_state =
                    QueueState::of(device, hal.queue(spec)?, hal, spec, None).traced(self.tracer());
                let queue_state = queue_state.drained_by(&self.0.pending);
                self.tracer().service_queue(queue_state.number);
                Ok(slot.insert(queue_state).clone())
            }
        }
    }
}

/// A number for another context: no two of this process are the same, of whichever hubs.
fn next_domain() -> Domain {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Domain(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A hub that is not kept alive.
pub struct WeakHub(Weak<Inner>);

impl WeakHub {
    #[doc(hidden)]
    pub fn upgrade(&self) -> Option<Hub> {
        self.0.upgrade().map(Hub)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices()).finish()
    }
}

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
    pub fn build(self) -> Result<Hub> {
        self.backends.check()?;
        if fork::is_child() && self.backends.any() {
            return Err(Error::forked("every device"));
        }
        // Before any driver is loaded: drivers change it.
        identity::environment();
        let programs = self.programs();
        let mut found = Found::default();
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
        let foreign_devices = ForeignDevices::new(found.loaded, found.devices.len());
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT);
        for (node, device) in found.nodes.iter().zip(&found.devices) {
            if let Some(post) = device.post() {
                post.assign(&node.id, timeout);
            }
        }
        // After the drivers were loaded: its handler runs before theirs.
        let pending = Pending::new(timeout);
        let (observers, tracer) = Observers::built(self.observers, self.device_times);
        Ok(Hub(Arc::new(Inner {
            device_table: DeviceTable::new(found.devices, found.nodes, verdicts),
            foreign_devices,
            ledger,
            policy: self.policy,
            timeout,
            libraries: self.backends.environment(),
            unavailable: found.unavailable,
            notes: found.notes,
            programs,
            wait_value_table: WaitValueTable::default(),
            semaphores: Semaphores::default(),
            callback_thread: Arc::default(),
            probe: self.probe,
            extensions: self.extensions,
            tracer,
            observers,
            host_queue_state: OnceLock::new(),
            pending,
        })))
    }
}
