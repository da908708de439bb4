//! Many threads, one hub: each program is built once per device.

use super::*;
use onebuf::Origin;
use onebuf_conformance::Watchdog;
use std::{
    sync::{Barrier, Mutex, PoisonError},
    thread,
};
use tempfile::tempdir;

const THREADS: usize = 8;
/// Launches of each thread on each device.
const ROUNDS: u32 = 10;

#[test]
fn eight_threads_on_every_platform_build_each_program_once() {
    let _watchdog = Watchdog::new("many threads", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    let devices = devices(&hub);
    // Drivers start one after the other, because start-up is not thread-safe.
    for device in &devices {
        device.queue().unwrap();
    }
    let (devices, barrier) = (&devices, &Barrier::new(THREADS));
    let origins: Vec<Vec<Origin>> = thread::scope(|scope| {
        let work = move |_| scope.spawn(move || one_thread(devices, barrier));
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (at, device) in devices.iter().enumerate() {
        let of_device = origins.iter().map(|origins| origins[at]);
        let built = of_device.clone().filter(|origin| *origin == Origin::Built).count();
        let shared = of_device.filter(|origin| *origin == Origin::Memory).count();
        assert_eq!((built, shared), (1, THREADS - 1), "{}", device.info().platform);
    }
}

/// Gets every device's program at the same time as the other threads, then launches on all devices.
fn one_thread(devices: &[Device], barrier: &Barrier) -> Vec<Origin> {
    let programs = devices.iter().map(|device| {
        barrier.wait();
        device.program(&text()).unwrap_or_else(|e| panic!("{device}: {e}"))
    });
    let programs: Vec<Program> = programs.collect();
    barrier.wait();
    for _ in 0..ROUNDS {
        programs.iter().for_each(assert_works_in_turn);
    }
    programs.iter().map(Program::origin).collect()
}

/// Launches by one thread at a time on a device whose driver crashes otherwise.
fn assert_works_in_turn(program: &Program) {
    static TURN: Mutex<()> = Mutex::new(());
    let fragile = program.device().info().caps.one_thread;
    let _turn = fragile.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    assert_works(program);
}

/// Counts the driver's builds.
#[test]
fn the_driver_is_asked_once() {
    let _watchdog = Watchdog::new("one build", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let probe = Probe::new();
    let hub = watched(cache.path(), &probe);
    for device in devices(&hub) {
        device.queue().unwrap();
        probe.reset();
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    device.program(&text()).unwrap()
                });
            }
        });
        assert_eq!(builds(&probe), 1, "{device}: {:?}", probe.trace());
    }
}
