//! Uses everything once on devices that count their objects; also run under Valgrind.

use onebuf::{HubBuilder, Probe};
use onebuf_conformance::{Side, Step, absent, fakes, fresh, life, note, second_life, stub};
use std::time::{Duration, Instant};

/// Waits, because late threads may still hold something.
fn settle(left: impl Fn() -> i64) -> i64 {
    let start = Instant::now();
    while left() != 0 && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    left()
}

#[test]
fn the_host_and_fake_devices_give_everything_back() {
    let probe = Probe::new();
    let builder = onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .verdicts(Default::default())
        .probe(probe.clone());
    let hub = fakes().into_iter().fold(builder, HubBuilder::fake).build().unwrap();
    for device in hub.devices() {
        life(&device).unwrap_or_else(|e| panic!("{device}: {e}"));
        let buffer = fresh(&device).unwrap();
        second_life(&device, &buffer).unwrap_or_else(|e| panic!("{device}: {e}"));
    }
    drop(hub);
    assert_eq!(settle(|| probe.live().values().sum()), 0, "{:?}", probe.live());
}

#[test]
fn a_driver_gets_everything_back() {
    let Some(path) = stub() else { return };
    // SAFETY: the stub's initialisers have no requirements, here or when the hub loads it.
    let library = unsafe { libloading::Library::new(&path) };
    let Ok(library) = library else { return absent("stub driver", "it does not load") };
    // SAFETY: that is the function's type in the source.
    let live = unsafe { library.get::<extern "C" fn() -> i32>(b"onebuf_stub_live") };
    let live = live.expect("the stub's own count");
    assert_eq!(live(), 0);
    let hub = onebuf::builder()
        .without(["vulkan", "gl"])
        .library("opencl", path.to_string_lossy())
        .verdicts(Default::default());
    let hub = hub.build().unwrap();
    let device = hub.device("opencl:0").unwrap();
    life(&device).unwrap();
    second_life(&device, &fresh(&device).unwrap()).unwrap();
    // The control: objects that are still in use are counted, then released.
    let side = Side::open(&device).unwrap();
    let buffer = hub.buffer::<u32>(1000).shared_with([&device]).build().unwrap();
    side.step(&buffer, Step::nth(1)).unwrap();
    let pending = buffer.read_async(.., vec![0; 1000]).unwrap();
    let most = live();
    assert!(most > 0);
    drop((pending, buffer, side, device, hub));
    assert_eq!(settle(|| live().into()), 0);
    note(&format!("the stub driver counted down from {most} objects to none"));
}
