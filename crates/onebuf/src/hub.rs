//! The hub: this process's view of the machine.

mod found;
mod pages;
mod pending;

use crate::{
    BufferBuilder, CopyPolicy, Error, Ledger, ProgramCache, Result, backend,
    device::Device,
    device_table::{DeviceEntry, DeviceTable, MAX_FOREIGN_DEVICES},
    extensions::Extensions,
    foreign::ForeignDevices,
    hal::{self, DeviceKind, Domain, QueueSpec},
    identity,
    observe::{BufferObservers, NewBuffer, Observer, Observers, Tracer},
    private_files,
    program::Programs,
    queue::{CallbackThread, QueueState},
    route::staging_pool::StagingPool,
    semaphores::Semaphores,
    sync::{Arc, lock},
    topology::{DeviceIx, Topology},
    verdicts::Verdicts,
    wait_value_words::WaitValueTable,
};
use bytemuck::Pod;
use found::{Found, Switch, Switches};
use onebuf_sys::{Probe, fork};
pub(crate) use pages::PageFile;
pub(crate) use pending::Pending;
use serde::Serialize;
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

/// An API that is not to be had here: a fact, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Which API.
    pub api: &'static str,
    /// What was tried, in order.
    pub tried: Vec<String>,
    /// Whether its library was there.
    pub loaded: bool,
    /// What the driver answered.
    pub code: Option<i32>,
    /// Why, in words.
    pub reason: String,
    /// What would help, if anything is known to.
    pub hint: Option<String>,
}

impl Hub {
    /// Finds what is installed and loads what experiments have shown before. A missing API is a fact,
    /// not an error; nothing is spawned and nothing is tried.
    ///
    /// ```
    /// let hub = onebuf::Hub::discover()?;
    /// assert!(hub.device("host").is_ok());
    /// # Ok::<(), onebuf::Error>(())
    /// ```
    pub fn discover() -> Result<Self> {
        Self::builder().build()
    }

    /// For hubs that are not the default.
    pub fn builder() -> HubBuilder {
        HubBuilder::default()
    }

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
    pub(crate) fn libraries(&self) -> &[(&'static str, String)] {
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
    pub(crate) fn foreign_devices(&self) -> &ForeignDevices {
        &self.0.foreign_devices
    }

    /// A number for another context.
    pub(crate) fn new_domain(&self) -> Domain {
        next_domain()
    }

    pub(crate) fn downgrade(&self) -> WeakHub {
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
    pub(crate) fn probe(&self) -> Option<&Arc<Probe>> {
        self.0.probe.as_ref()
    }

    /// What crates above keep with it.
    pub(crate) fn extensions(&self) -> &Extensions {
        &self.0.extensions
    }

    /// Where what happens is told.
    #[inline]
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// The observer of this type, if one is installed.
    pub(crate) fn observer<T: Observer>(&self) -> Option<Arc<T>> {
        self.0.observers.find()
    }

    /// The observer of this type, installed now unless it was before. It sees buffers that are made from now on, and no
    /// events: those want an observer that the hub is built with.
    pub(crate) fn observe_with<T: Observer>(&self, make: impl FnOnce() -> T) -> Arc<T> {
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
pub(crate) struct WeakHub(Weak<Inner>);

impl WeakHub {
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
#[derive(Default)]
#[must_use = "nothing is discovered until `build`"]
pub struct HubBuilder {
    switches: Switches,
    probe: Option<Arc<Probe>>,
    fakes: Vec<backend::fake::FakeConfig>,
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
    /// Loads this OpenCL library, whatever the environment says.
    pub fn opencl_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.opencl = Switch::Library(path_or_soname.into());
        self
    }

    /// Looks for no OpenCL.
    pub fn without_opencl(mut self) -> Self {
        self.switches.opencl = Switch::Off;
        self
    }

    /// Loads this CUDA driver, whatever the environment says.
    pub fn cuda_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.cuda = Switch::Library(path_or_soname.into());
        self
    }

    /// Looks for no CUDA.
    pub fn without_cuda(mut self) -> Self {
        self.switches.cuda = Switch::Off;
        self
    }

    /// Loads this HIP runtime, whatever the environment says.
    pub fn hip_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.hip = Switch::Library(path_or_soname.into());
        self
    }

    /// Looks for no HIP.
    pub fn without_hip(mut self) -> Self {
        self.switches.hip = Switch::Off;
        self
    }

    /// Loads this Vulkan loader, whatever the environment says.
    pub fn vulkan_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.vulkan = Switch::Library(path_or_soname.into());
        self
    }

    /// Looks for no Vulkan.
    pub fn without_vulkan(mut self) -> Self {
        self.switches.vulkan = Switch::Off;
        self
    }

    /// Loads this EGL for OpenGL, whatever the environment says.
    pub fn egl_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.egl = Switch::Library(path_or_soname.into());
        self
    }

    /// Looks for no OpenGL.
    pub fn without_gl(mut self) -> Self {
        self.switches.egl = Switch::Off;
        self
    }

    /// Looks for neither OpenGL nor Vulkan. Starting their drivers takes tens of milliseconds, which programs without
    /// shaders can save.
    pub fn without_graphics(self) -> Self {
        self.without_vulkan().without_gl()
    }

    /// Compiles CUDA C with this NVRTC, whatever the environment says.
    pub fn nvrtc_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.nvrtc = Switch::Library(path_or_soname.into());
        self
    }

    /// Compiles HIP C with this HIPRTC, whatever the environment says.
    pub fn hiprtc_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.hiprtc = Switch::Library(path_or_soname.into());
        self
    }

    /// Asks this ROCr about memory of HIP's and OpenCL's, whatever the environment says; `none` asks nobody.
    pub fn hsa_library(mut self, path_or_soname: impl Into<String>) -> Self {
        self.switches.hsa = Switch::Library(path_or_soname.into());
        self
    }

    /// Lets buffers of CUDA's and HIP's ask for [`MemoryKind::Managed`](crate::MemoryKind::Managed), whatever the environment says
    /// (`ONEBUF_MANAGED=1`): one address for host and kernels on a chip that has memory of its own, for libraries that want one
    /// pointer. Its pages move to whoever takes the buffer, which is counted as implied copies; so no plan chooses it, and
    /// [`CopyPolicy::Forbid`] refuses it to the host. Where a device has none, [`Hub::notes`] says why.
    ///
    /// ```
    /// # use onebuf::{Error, Hub, MemoryKind};
    /// let hub = Hub::builder().managed_memory(true).build()?;
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
        self.switches.managed = Some(allow);
        self
    }

    /// What crates above will keep with the hub.
    pub(crate) fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// Counts every driver call and lets chosen ones fail: for tests.
    pub fn probe(mut self, probe: Arc<Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Adds a device that exists only in tests.
    pub fn fake(mut self, config: backend::fake::FakeConfig) -> Self {
        self.fakes.push(config);
        self
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
    /// Only when the host itself cannot be used; everything else is in [`Hub::unavailable`] and
    /// [`Hub::notes`].
    pub fn build(self) -> Result<Hub> {
        if fork::is_child() && self.switches.any() {
            return Err(Error::forked("every device"));
        }
        // Before any driver is loaded: drivers change it.
        identity::environment();
        let programs = self.programs();
        let mut found = Found::default();
        let mut next = next_domain;
        found.add_all("host", [Arc::new(backend::host::HostDevice::new(next())) as _]);
        found.drivers(&self.switches, self.probe.clone(), &mut next);
        let mut fakes: Vec<Arc<dyn hal::Device>> = Vec::new();
        for mut config in self.fakes {
            config.domain = next();
            config.probe = config.probe.or(self.probe.clone());
            fakes.push(Arc::new(backend::fake::FakeDevice::new(config)));
        }
        found.add_all("fake", fakes);

        let (verdicts, note) = match self.verdicts {
            Some(verdicts) => (verdicts, None),
            None => Verdicts::load_or_note(self.cache.as_deref()),
        };
        found.notes.extend(note);
        let ids = found.nodes.iter().map(|node| node.id.clone());
        let ledger = Ledger::new(ids.collect(), MAX_FOREIGN_DEVICES);
        let foreign_devices = ForeignDevices::new(found.opencl, found.others, found.devices.len());
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
            libraries: self.switches.environment(),
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
