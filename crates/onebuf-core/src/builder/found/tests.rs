//! Tests of `found.rs`.

use onebuf_hal::{Api, Backend, Discovered, DriverLibrary, Error, Search, Unavailable};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

#[test]
fn helpers_are_told_what_was_asked_for() {
    let told = |builder: crate::HubBuilder| builder.backends.environment();
    assert!(told(crate::builder()).is_empty());
    let builder = crate::builder().without(["opencl"]).library("hip", "libx.so");
    let expected =
        [("ONEBUF_OPENCL_LIB", "none"), ("ONEBUF_HIP_LIB", "libx.so"), ("ONEBUF_MANAGED", "1")];
    let expected = expected.map(|(name, word)| (name, word.to_owned()));
    assert_eq!(told(builder.managed_memory(true)), expected);
    let only: Vec<_> = told(crate::builder().only(["cuda"]).library("nvrtc", "none"));
    let names: Vec<_> = only.iter().map(|(name, word)| (*name, word.as_str())).collect();
    assert_eq!(
        names,
        [
            ("ONEBUF_OPENCL_LIB", "none"),
            ("ONEBUF_NVRTC_LIB", "none"),
            ("ONEBUF_HIP_LIB", "none"),
            ("ONEBUF_VULKAN_LIB", "none"),
            ("ONEBUF_EGL_LIB", "none"),
        ]
    );
}

#[test]
fn what_was_added_by_hand_stays_unless_it_is_named() {
    let alone = || crate::builder().only(["host"]).verdicts(Default::default());
    let builder = || alone().fake(Default::default());
    let two = builder().fake(Default::default()).build().unwrap();
    let ids: Vec<_> = two.devices().iter().map(|device| device.id().to_owned()).collect();
    assert_eq!(ids, ["host", "fake:0", "fake:1"]);
    let off: Vec<_> = two.unavailable().iter().map(|one| one.api).collect();
    assert_eq!(off, ["opencl", "cuda", "hip", "vulkan", "gl"]);
    assert_eq!(builder().without(["fake"]).build().unwrap().devices().len(), 1);
}

#[test]
fn unknown_names_are_told() {
    let wrong = [
        crate::builder().only(["opencI"]),
        crate::builder().without(["fake"]),
        crate::builder().library("libcuda", "x.so"),
    ];
    for builder in wrong {
        let Err(Error::InvalidArgument(why)) = builder.build() else { panic!("built") };
        assert!(why.contains("this build knows"), "{why}");
    }
    // A hub needs a list of backends that includes the host.
    // SAFETY: an empty list has no contract to fulfil.
    let none = unsafe { crate::HubBuilder::new(Vec::new()) };
    assert!(matches!(none.build(), Err(Error::Unavailable { .. })));
}

/// A driver that takes its time, and knows how many threads are in it.
#[derive(Debug)]
struct Driver(&'static Visits);

#[derive(Debug, Default)]
struct Visits {
    inside: AtomicUsize,
    most: AtomicUsize,
    hangs: AtomicBool,
}

// SAFETY: it has no devices.
unsafe impl Backend for Driver {
    fn api(&self) -> Api {
        Api("slow")
    }

    fn libraries(&self) -> &'static [DriverLibrary] {
        &[DriverLibrary { name: "slow", variable: "ONEBUF_SLOW_LIB" }]
    }

    fn discover(&self, _: &Search<'_>) -> Result<Discovered, Unavailable> {
        self.0.most.fetch_max(self.0.inside.fetch_add(1, SeqCst) + 1, SeqCst);
        thread::sleep(Duration::from_millis(20));
        until(|| !self.0.hangs.load(SeqCst) || self.0.most.load(SeqCst) == 2);
        self.0.inside.fetch_sub(1, SeqCst);
        Ok(Discovered::default())
    }
}

fn until(is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

fn discover(visits: &'static Visits, timeout: Duration) {
    let builder = crate::builder().only(["host"]).verdicts(Default::default()).timeout(timeout);
    // SAFETY: it has no devices.
    unsafe { builder.backend(Box::new(Driver(visits))) }.build().unwrap();
}

#[test]
fn drivers_are_called_for_the_first_time_by_one_thread() {
    let (visits, start) = (Box::leak(Box::<Visits>::default()), Barrier::new(4));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                discover(visits, Duration::from_secs(60));
            });
        }
    });
    assert_eq!(visits.most.load(SeqCst), 1);
}

/// The first one is in its driver until another one is, too.
#[test]
fn a_driver_that_hangs_holds_up_no_other_hub() {
    let visits: &'static Visits = Box::leak(Box::<Visits>::default());
    visits.hangs.store(true, SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| discover(visits, Duration::from_secs(60)));
        until(|| visits.inside.load(SeqCst) == 1);
        discover(visits, Duration::from_millis(50));
        visits.hangs.store(false, SeqCst);
    });
    assert_eq!(visits.most.load(SeqCst), 2);
}
