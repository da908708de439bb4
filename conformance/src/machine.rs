//! All devices, real and fake, opened once for a whole test program.

use crate::{Hardware, Side, require_devices};
use onebuf::{
    Buffer, Device, Error, Hub, HubBuilder, MemoryKind, RouteKind, SyncMethod,
    fake::{Delay, FakeConfig, Sharing},
    topology::{Route, Topology},
};
use std::{
    env,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// The OpenCL platforms of Mesa.
const MESA: [&str; 2] = ["rusticl", "Clover"];

/// One hub with all devices, and a side for each of them.
#[derive(Debug)]
pub struct Machine {
    /// The hub. It has no verdicts.
    pub hub: Hub,
    /// Every open device, the host first.
    pub sides: Vec<Side>,
}

impl Machine {
    /// Builds the hub and opens a side for each device.
    ///
    /// # Panics
    /// If a device that was found does not work.
    pub fn open(builder: HubBuilder) -> Self {
        Self::open_some(builder.build().expect("the host"), |_| true)
    }

    /// Opens a side for the host and for each device that `wanted` accepts. The others are not used, and may be broken.
    ///
    /// # Panics
    /// If a wanted device does not work.
    pub fn open_some(hub: Hub, wanted: impl Fn(&Device) -> bool) -> Self {
        let open = |device| Side::open(&device).unwrap_or_else(|e| panic!("{device}: {e}"));
        let devices = hub.devices().into_iter();
        let wanted = |device: &Device| device.id() == "host" || wanted(device);
        let sides = devices.filter(wanted).map(open).collect();
        Self { hub, sides }
    }

    /// Returns the side of the device that matches the selector.
    ///
    /// # Panics
    /// If no device matches.
    pub fn side(&self, selector: &str) -> &Side {
        let device = self.hub.device(selector).expect("a device of this machine");
        let mut sides = self.sides.iter();
        sides.find(|side| side.device.index() == device.index()).expect("a device that is open")
    }
}

/// The whole machine except Vulkan and OpenGL, because most of the suite's kernels are not written in GLSL: `tests/vulkan.rs`
/// and `tests/gl.rs` test pairs with those. The lock runs one test at a time: drivers in one process share LLVM and llvmpipe,
/// which are not all thread-safe at start-up, and tests read the hub's ledger.
pub fn machine() -> MutexGuard<'static, Machine> {
    static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| {
        let machine = Machine::open(everything().timeout(Duration::from_secs(30)));
        require_devices(&machine.hub);
        Mutex::new(machine)
    });
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The builder of [`machine`], for further hubs: every device except Vulkan and OpenGL, plus the fake devices; no verdicts.
pub fn everything() -> HubBuilder {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    // Without an AMD GPU, loading AMD's runtime in every test program would be useless. `ONEBUF_HIP_LIB` names another one.
    let has_hip = Hardware::Amd.is_here() || env::var_os("ONEBUF_HIP_LIB").is_some();
    let builder = if has_hip { builder } else { builder.without(["hip"]) };
    fakes().into_iter().fold(builder, HubBuilder::fake)
}

/// Fake devices with different behaviour.
pub fn fakes() -> [FakeConfig; 4] {
    let named = |name: &str| FakeConfig { name: name.into(), ..FakeConfig::default() };
    let late = Delay::Random { seed: 7, max: Duration::from_micros(300) };
    [
        FakeConfig { delay: late, ..named("late, with shadow copies") },
        FakeConfig { shares_host_pages: Sharing::Alias, unified: true, ..named("sharing pages") },
        FakeConfig {
            shares_host_pages: Sharing::No,
            memory_kinds: vec![MemoryKind::Device],
            delay: late,
            ..named("apart")
        },
        FakeConfig { callbacks: false, host_signals: false, delay: late, ..named("mute") },
    ]
}

/// A machine with the host and one fake device.
pub(crate) fn fake_machine(config: FakeConfig) -> Machine {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    Machine::open(builder.timeout(Duration::from_secs(20)).fake(config))
}

/// The number of threads that may use a device at once: `wanted`, or one if its driver crashes otherwise.
pub fn threads_on(device: &Device, wanted: usize) -> usize {
    if device.info().caps.one_thread { 1 } else { wanted }
}

/// Every ordered pair of different devices.
pub fn pairs(sides: &[Side]) -> impl Iterator<Item = (&Side, &Side)> {
    let all = sides.iter().flat_map(move |a| sides.iter().map(move |b| (a, b)));
    all.filter(|(a, b)| a.device.index() != b.device.index())
}

/// The sync methods that a pair must support. Mesa's drivers complete a map immediately, whatever the queue still waits for,
/// and refuse to unmap before the map. They cannot run work behind a host signal, as the doctor also finds.
pub fn sync_methods(a: &Side, b: &Side) -> &'static [SyncMethod] {
    let mesa = |side: &Side| MESA.contains(&side.device.info().platform.as_str());
    if mesa(a) || mesa(b) {
        &[SyncMethod::HostWait]
    } else {
        &[SyncMethod::HostWait, SyncMethod::SameQueue]
    }
}

/// The kinds of route that one device declares to another, without what its driver is known not to do.
pub fn kinds(hub: &Hub, from: &Side, to: &Side) -> Vec<RouteKind> {
    let topology = hub.topology();
    let routes = topology.between(from.device.index(), to.device.index());
    routes.iter().filter(|route| !moves(topology, route)).map(|route| route.kind).collect()
}

/// Whether another driver would import a map that moves. Rusticl maps through a copy of its own in Mesa 25.0 and 26.2 (22.3 and
/// 24.0 did not): the next map may be elsewhere. onebuf then refuses the hand-over, and the doctor the route.
pub(crate) fn moves(topology: &Topology, route: &Route) -> bool {
    let [from, to] = [route.from, route.to].map(|device| topology.node(device));
    let info = &from.info;
    let major = info.driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let by_copy = info.platform == "rusticl" && major.is_some_and(|major| major >= 25);
    by_copy && route.kind == RouteKind::HostPointer && to.info.api.0 != "host"
}

/// Builds a buffer on `from` that `to` accesses by the route, declared or proven. `None` if the driver's mapping is not
/// aligned as the other driver requires.
///
/// # Panics
/// If it cannot be built for another reason.
pub fn shared(
    from: &Side,
    to: &Side,
    kind: RouteKind,
    sync: SyncMethod,
    n: usize,
) -> Option<Buffer<u32>> {
    let builder = from.device.hub().buffer::<u32>(n).shared_with([&from.device, &to.device]);
    let builder = builder.allocate_on(&from.device).route(kind).sync(sync).trust_declared(true);
    match builder.build() {
        Ok(buffer) => Some(buffer),
        // The driver chooses the address at each allocation, so this is no property of the pair.
        Err(Error::Unsupported { needs, .. }) if needs.contains("align") => None,
        Err(error) => panic!("{} -> {} {kind}: {error}", from.device, to.device),
    }
}
