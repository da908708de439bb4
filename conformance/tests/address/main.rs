//! One chip, two APIs, one address space: OpenCL and HIP as on an AMD GPU, with both stubs. HIP's stub ends the process at
//! a call on memory that it did not allocate, OpenCL's at an SVM call on HIP's memory. OpenCL's queues let a kernel
//! overtake another one on the same HIP memory, unless a barrier is between them.

mod barrier;
mod controls;
mod doctor;
mod fds;
mod layered;
mod libraries;
mod raw;
mod turns;

use onebuf::{Buffer, BufferBuilder, Device, Hub, HubBuilder, Probe, RouteKind};
use onebuf_conformance::{Side, Step, assert_same, cuda_stub, play, random_words, step_model};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

const N: usize = 5000;

/// Runs an ignored test with stubs that behave like AMD's drivers.
fn play_amd(test: &str, part: &str, environment: &[(&str, &str)]) {
    let Some(hsa) = cuda_stub() else { return };
    let hsa = hsa.to_str().expect("a path").to_owned();
    let mut all = vec![("ONEBUF_HSA_LIB", hsa.as_str())];
    all.extend(environment);
    play(test, "HIP", part, &all);
}

macro_rules! plays {
    ($($(#[$why:meta])* $test:ident: $inner:ident($part:expr $(, $name:expr => $value:expr)*);)*) => {$(
        $(#[$why])*
        #[test]
        fn $test() {
            let module = module_path!().split_once("::").expect("a module").1;
            let inner = format!("{module}::{}", stringify!($inner));
            crate::play_amd(&inner, $part, &[$(($name, $value)),*]);
        }
    )*};
}
pub(crate) use plays;

/// A hub with both stubs, and its probe.
struct Rig {
    probe: std::sync::Arc<Probe>,
    hub: Hub,
    cl: Side,
    hip: Side,
}

impl Rig {
    fn new() -> Rig {
        Rig::over(onebuf::builder())
    }

    fn over(builder: HubBuilder) -> Rig {
        let probe = Probe::new();
        let builder = builder.verdicts(Default::default()).probe(probe.clone());
        let hub = builder.timeout(Duration::from_secs(30)).build().unwrap();
        let side = |id| Side::open(&hub.device(id).unwrap()).unwrap();
        let (cl, hip) = (side("opencl:0"), side("hip:0"));
        Rig { probe, cl, hip, hub }
    }

    /// A buffer that `on` allocates and the other device accesses by that kind of route. The caller vouches for the route.
    fn builder(&self, on: &Device, kind: RouteKind, n: usize) -> BufferBuilder<'_, u32> {
        let builder = self.hub.buffer::<u32>(n).shared_with([&self.cl.device, &self.hip.device]);
        builder.allocate_on(on).route(kind).trust_declared(true)
    }

    /// All routes between the two, each with the allocating device.
    fn ways(&self) -> [(Device, RouteKind); 4] {
        let (cl, hip) = (self.cl.device.clone(), self.hip.device.clone());
        [
            (cl.clone(), RouteKind::SvmPointer),
            (hip, RouteKind::SvmPointer),
            (cl.clone(), RouteKind::RawAddress),
            (cl, RouteKind::DmaBuf),
        ]
    }

    /// Drops everything and asserts that no objects and descriptors are left.
    fn end(self) {
        let Rig { probe, hub, cl, hip } = self;
        drop((cl, hip, hub));
        assert_settled(&probe, "at the end");
    }
}

/// Counts this process's descriptors of the stub's memory.
fn open() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("memfd:onebuf-stub")).count()
}

#[track_caller]
fn assert_settled(probe: &Probe, what: &str) {
    let start = Instant::now();
    while (open() > 0 || !probe.live().is_empty()) && start.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((open(), probe.live()), (0, Default::default()), "{what}: {:?}", probe.trace());
}

/// Both sides' kernels take turns, twice in a row on each; then every transfer that a caller can request.
fn take_turns(buffer: &Buffer<u32>, rig: &Rig) {
    let (n, Rig { cl, hip, .. }) = (buffer.len(), rig);
    let (mut model, what) = (random_words(n as u64, n), buffer.explain());
    buffer.write(&model).unwrap();
    for (turn, side) in (0..).zip([cl, hip, cl, cl, cl, hip, hip, cl]) {
        side.step(buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
    }
    for side in [cl, hip] {
        assert_same(&side.look(buffer).unwrap(), &model, &what);
        side.step(buffer, Step::nth(77)).unwrap();
        step_model(&mut model, Step::nth(77));
    }
    assert_same(&buffer.to_vec().unwrap(), &model, &what);
    asked_for(buffer, &mut model, rig);
}

/// Reads, writes, fills and copies between two kernels, on an API that may not know the memory.
fn asked_for(buffer: &Buffer<u32>, model: &mut [u32], Rig { hub, cl, hip, .. }: &Rig) {
    let n = buffer.len();
    for (turn, side) in (0..).zip([hip, cl]) {
        side.step(buffer, Step::nth(turn)).unwrap();
        step_model(model, Step::nth(turn));
        buffer.fill_range(..n.div_ceil(2), 7).unwrap();
        model[..n.div_ceil(2)].fill(7);
        buffer.write_range(n - 1.., &[turn]).unwrap();
        model[n - 1] = turn;
        side.step(buffer, Step::nth(turn + 9)).unwrap();
        step_model(model, Step::nth(turn + 9));
        let mut last = [0];
        buffer.read_range(n - 1.., &mut last).unwrap();
        assert_eq!(last[0], model[n - 1]);
        let other = hub.buffer::<u32>(n).shared_with([&side.device]).build().unwrap();
        other.copy_from(0, buffer, ..).unwrap();
        side.step(&other, Step::nth(3)).unwrap();
        step_model(model, Step::nth(3));
        buffer.copy_from(0, &other, ..).unwrap();
        let read = buffer.read_async(.., vec![0; n]).unwrap().wait(hub.timeout()).unwrap();
        assert_same(&read, model, "asynchronously");
    }
}
