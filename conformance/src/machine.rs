//! Every device there is, real and fake, opened once for a whole test program.

use crate::{Side, absent};
use onebuf::{
    Buffer, Error, Hub, HubBuilder, MemoryKind, RouteKind, SyncMethod,
    fake::{Delay, FakeConfig, Sharing},
    hal::DeviceInfo,
};
use std::{
    env,
    path::Path,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// The OpenCL platforms that `./dev` installs.
const REQUIRED: [&str; 3] = ["Portable Computing Language", "rusticl", "Clover"];
/// The OpenCL platform of NVIDIA's driver.
const NVIDIA: &str = "NVIDIA CUDA";

/// One hub over everything, and a side for each of its devices.
#[derive(Debug)]
pub struct Machine {
    /// The hub. It knows no verdicts.
    pub hub: Hub,
    /// Every device, the host first.
    pub sides: Vec<Side>,
}

impl Machine {
    /// Discovers and opens; `builder` says what there is besides the host.
    ///
    /// # Panics
    /// When a device that is there does not work.
    pub fn open(builder: HubBuilder) -> Self {
        let hub = builder.build().expect("the host");
        let open = |device| Side::open(&device).unwrap_or_else(|e| panic!("{device}: {e}"));
        let sides = hub.devices().into_iter().map(open).collect();
        Self { hub, sides }
    }

    /// The side of the device that fits.
    ///
    /// # Panics
    /// When there is none.
    pub fn side(&self, selector: &str) -> &Side {
        let device = self.hub.device(selector).expect("a device of this machine");
        &self.sides[device.index().get()]
    }
}

/// The whole machine but for Vulkan and OpenGL, in whose language most of the suite's kernels are not written:
/// `tests/vulkan.rs` and `tests/gl.rs` have pairs with those. One test at a time: drivers of one process share LLVM and
/// llvmpipe, which are not all sound when two of them start in two threads; and the ledger is the hub's.
pub fn machine() -> MutexGuard<'static, Machine> {
    static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| {
        let machine = Machine::open(everything().timeout(Duration::from_secs(30)));
        require_devices(&machine.hub);
        Mutex::new(machine)
    });
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`machine`] is made of, for hubs beside it: every device but those of graphics, and the fake ones; no verdicts.
pub fn everything() -> HubBuilder {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    // Where the kernel has no AMD GPU, AMD's runtime would be loaded in every test program for nothing. Another one is named.
    let has_hip = Path::new("/dev/kfd").exists() || env::var_os("ONEBUF_HIP_LIB").is_some();
    let builder = if has_hip { builder } else { builder.without(["hip"]) };
    fakes().into_iter().fold(builder, HubBuilder::fake)
}

/// Looks for the devices that have to be there: on a machine with an NVIDIA GPU its own two APIs, everywhere else what `./dev`
/// installs.
///
/// # Panics
/// When one is missing in strict mode.
pub fn require_devices(hub: &Hub) {
    let why = |api| {
        let missing = hub.unavailable().iter().find(|u| u.api == api).map(|u| u.reason.clone());
        missing.unwrap_or_else(|| "no device of this platform".into())
    };
    let has = |fits: &dyn Fn(&DeviceInfo) -> bool| hub.devices().iter().any(|d| fits(d.info()));
    let has_nvidia = Path::new("/dev/nvidiactl").exists();
    if has_nvidia && !has(&|info| info.api.0 == "cuda") {
        absent("CUDA", &why("cuda"));
    }
    let platforms: &[&str] = if has_nvidia { &[NVIDIA] } else { &REQUIRED };
    for platform in platforms {
        if !has(&|info| info.platform == *platform) {
            absent(platform, &why("opencl"));
        }
    }
}

/// Fake devices, each with habits of its own.
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

/// The host and one fake device.
pub(crate) fn fake_machine(config: FakeConfig) -> Machine {
    let builder = onebuf::builder().only(["host"]).verdicts(Default::default());
    Machine::open(builder.timeout(Duration::from_secs(20)).fake(config))
}

/// Every ordered pair of different devices.
pub fn pairs(sides: &[Side]) -> impl Iterator<Item = (&Side, &Side)> {
    let all = sides.iter().flat_map(move |a| sides.iter().map(move |b| (a, b)));
    all.filter(|(a, b)| a.device.index() != b.device.index())
}

/// The sync methods that a pair must work with. Mesa's drivers map at once, whatever the queue still waits
/// for, and refuse to unmap what is not mapped yet: work behind a host signal is not for them, as the doctor
/// finds out as well.
pub fn sync_methods(a: &Side, b: &Side) -> &'static [SyncMethod] {
    let mesa = |side: &Side| REQUIRED[1..].contains(&side.device.info().platform.as_str());
    if mesa(a) || mesa(b) {
        &[SyncMethod::HostWait]
    } else {
        &[SyncMethod::HostWait, SyncMethod::SameQueue]
    }
}

/// The kinds of route that one device declares to another.
pub fn kinds(hub: &Hub, from: &Side, to: &Side) -> Vec<RouteKind> {
    let routes = hub.topology().between(from.device.index(), to.device.index());
    routes.iter().map(|route| route.kind).collect()
}

/// A buffer that lives on `from` and that `to` sees by the route, declared or proven; `None` where the
/// driver's map turns out not to be aligned as the other driver needs it.
///
/// # Panics
/// When it cannot be built for another reason.
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
        // The address is the driver's choice at each allocation: a fact of this build, not of the pair.
        Err(Error::Unsupported { needs, .. }) if needs.contains("aligned") => None,
        Err(error) => panic!("{} -> {} {kind}: {error}", from.device, to.device),
    }
}
