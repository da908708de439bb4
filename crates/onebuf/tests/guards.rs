//! What several concurrent guards may and may not do, on a device with separate memory.

use onebuf::{
    Access, Buffer, CopyPolicy, Error, HostAccess, Hub, Kernel, MemoryKind, Queue, Result,
    RouteKind, Signature, Source, args,
    doctor::Verdicts,
    fake::{Delay, FakeConfig, Sharing},
    topology::{Verdict, VerdictState},
};
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

fn hub_of(configs: impl IntoIterator<Item = FakeConfig>) -> Hub {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    configs.into_iter().fold(builder, |builder, config| builder.fake(config)).build().unwrap()
}

fn add_one(queue: &Queue) -> Kernel {
    let source = Source::default().with_native("add_one", |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    });
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel accesses only the elements it is given.
    unsafe { queue.device().program(&source).unwrap().kernel("add_one", signature).unwrap() }
}

fn launch(buffer: &Buffer<u32>, queue: &Queue, kernel: &Kernel) -> Result<()> {
    queue.launch(kernel, [1], args![buffer.write_on(queue)?])
}

#[test]
fn readers_never_unmap_what_another_looks_through() {
    for memory_kind in [MemoryKind::MappedDevice, MemoryKind::CoarseSvm] {
        let hub = hub_of([FakeConfig::default()]);
        let device = hub.device("fake:0").unwrap();
        let buffer =
            hub.buffer::<u32>(64).shared_with([&device, &hub.host()]).memory_kind(memory_kind);
        let buffer = buffer.allocate_on(&device).trust_declared(true).build().unwrap();
        buffer.map_mut().unwrap().fill(7);
        let queue = device.queue().unwrap();

        let first = buffer.map().unwrap();
        let at = first.as_ptr();
        let view = buffer.read_on(&queue).unwrap();
        let second = buffer.map().unwrap();
        assert_eq!((at, first.as_ptr()), (second.as_ptr(), at), "{memory_kind}: the map has moved");
        assert!(first.iter().chain(second.iter()).all(|&x| x == 7), "{memory_kind}");
        drop((first, second, view));

        let kernel = add_one(&queue);
        launch(&buffer, &queue, &kernel).unwrap();
        assert!(buffer.map().unwrap().iter().all(|&x| x == 8), "{memory_kind}");
    }
}

#[test]
fn the_home_is_busy_while_another_reads_through_it_what_it_wrote() {
    let hub = hub_of([FakeConfig::default(), FakeConfig::default()]);
    let [home, other] = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let buffer = hub.buffer::<u32>(64).shared_with([&home, &other]).allocate_on(&home);
    let buffer = buffer.memory_kind(MemoryKind::MappedDevice).trust_declared(true).build().unwrap();
    let (at_home, away) = (home.queue().unwrap(), other.queue().unwrap());
    launch(&buffer, &away, &add_one(&away)).unwrap();

    let reading = buffer.read_on(&away).unwrap();
    assert!(matches!(buffer.read_on(&at_home), Err(Error::Busy { .. })));
    drop(reading);
    launch(&buffer, &at_home, &add_one(&at_home)).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2; 64]);
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_fence_tells_of_its_own_work_and_not_of_later_work() {
    let delay = Delay::Fixed(Duration::from_millis(20));
    let hub = hub_of([FakeConfig { delay, ..FakeConfig::default() }]);
    let device = hub.device("fake:0").unwrap();
    let buffer = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
    let queue = device.queue().unwrap();
    let kernel = add_one(&queue);
    launch(&buffer, &queue, &kernel).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut fence = pin!(queue.fence());
    assert!(fence.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    // Later work must not delay the fence, even if another fence has requested an event behind it.
    for _ in 0..20 {
        launch(&buffer, &queue, &kernel).unwrap();
    }
    let later = queue.fence();
    assert!(!later.is_done().unwrap());
    let start = Instant::now();
    while count.0.load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "nobody was woken");
        std::thread::yield_now();
    }
    assert!(!later.is_done().unwrap(), "the fence woke with the later work");
    assert!(fence.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    later.wait(Duration::from_secs(20)).unwrap();
}

#[test]
fn a_callers_word_is_enough_under_forbid() {
    let alias = FakeConfig { shares_host_pages: Sharing::Alias, ..FakeConfig::default() };
    let hub = hub_of([alias.clone(), alias]);
    let devices = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let buffer = hub.buffer::<u32>(64).shared_with(&devices).copies(CopyPolicy::Forbid);
    let buffer = buffer.trust_declared(true).build().unwrap();
    for device in &devices {
        let queue = device.queue().unwrap();
        launch(&buffer, &queue, &add_one(&queue)).unwrap();
    }
    assert_eq!(buffer.to_vec().unwrap(), [2; 64]);
}

#[test]
fn a_refuted_map_is_not_used() {
    let hub = hub_of([FakeConfig::default()]);
    let nodes = hub.topology().nodes().to_vec();
    let mut verdicts = Verdicts::default();
    for kind in [RouteKind::HostPointer, RouteKind::SvmPointer] {
        let verdict = Verdict {
            state: VerdictState::Refuted,
            why: "for a test".into(),
            ..Default::default()
        };
        verdicts.insert(&nodes[1], &nodes[0], kind, verdict);
    }
    let builder = onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .verdicts(verdicts)
        .fake(FakeConfig::default());
    let hub = builder.build().unwrap();
    let device = hub.device("fake:0").unwrap();
    let memory_kind = MemoryKind::MappedDevice;
    let buffer =
        hub.buffer::<u32>(64).shared_with([&device]).memory_kind(memory_kind).build().unwrap();
    buffer.map_mut().unwrap().fill(3);
    assert_eq!(buffer.to_vec().unwrap(), [3; 64]);
    // One counted copy in each direction.
    assert_eq!(hub.ledger().implied_bytes(), 2 * 64 * 4);
}

#[test]
fn what_did_not_happen_is_not_counted() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let buffer = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
    let queue = device.queue().unwrap();
    let view = buffer.write_on(&queue).unwrap();
    let before = hub.ledger().asked_bytes();
    assert!(matches!(buffer.read_async(.., vec![0; 64]), Err(Error::Busy { .. })));
    assert!(matches!(buffer.write_async(.., vec![0; 64]), Err(Error::Busy { .. })));
    assert_eq!(hub.ledger().asked_bytes(), before);
    drop(view);
}

#[test]
fn a_conflict_names_the_buffer_and_its_holder() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue().unwrap();
    let named = hub.buffer::<u32>(64).shared_with([&device, &hub.host()]).name("samples");
    let (named, numbered) = (named.build().unwrap(), hub.buffer::<u32>(64).build().unwrap());
    let busy = |error: Error| {
        assert!(matches!(error, Error::Busy { .. }), "{error:?}");
        error.to_string()
    };
    let view = named.write_on(&queue).unwrap();
    let said = busy(named.map().unwrap_err());
    assert_eq!(said, "busy: samples is in use: fake:0 holds a write view; end that first");
    let region = named.sub_buffer(0..16, Access::ReadWrite).unwrap();
    let said = busy(region.map().unwrap_err());
    assert!(said.contains("holds a write view of overlapping bytes"), "{said}");
    drop(view);
    let map = numbered.map().unwrap();
    let said = busy(numbered.map_mut().unwrap_err());
    assert!(said.contains("busy: buffer ") && said.contains("the host holds a read view or map"));
    drop(map);
    numbered.map_mut().unwrap();
}

#[test]
fn a_thread_waits_until_the_buffer_is_free() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let (one, two) = (device.queue().unwrap(), device.queue().unwrap());
    let buffer = hub.buffer::<u32>(64).shared_with([&device]).name("samples").build().unwrap();
    let short = Duration::from_millis(20);
    // Taken on a lease, and taken by a hand-over.
    for _ in 0..3 {
        let view = buffer.write_on(&one).unwrap();
        let clock = Instant::now();
        let late = buffer.when_free(short, || buffer.read_on(&two)).unwrap_err();
        assert!(matches!(&late, Error::Timeout { after_ms: 20, .. }), "{late:?}");
        assert!(late.to_string().contains("samples is in use: fake:0 holds"), "{late}");
        assert!(clock.elapsed() >= short);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let kernel = add_one(&two);
                let view = buffer.when_free(Duration::from_secs(30), || buffer.write_on(&two))?;
                two.launch(&kernel, [1], args![view])
            });
            std::thread::sleep(short);
            assert!(!waits.is_finished());
            drop(view);
            waits.join().unwrap().unwrap();
        });
    }
    assert_eq!(buffer.to_vec().unwrap(), [3; 64]);
    // Another error is returned at once.
    let elsewhere = hub.host().queue().unwrap();
    let refused = buffer.when_free(Duration::from_secs(600), || buffer.write_on(&elsewhere));
    assert!(
        refused.is_err_and(|error| !matches!(error, Error::Busy { .. } | Error::Timeout { .. }))
    );
}

#[test]
fn the_host_maps_ranges_and_overwrites() {
    let hub = hub_of([FakeConfig { shares_host_pages: Sharing::Alias, ..FakeConfig::default() }]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue().unwrap();
    let kernel = add_one(&queue);
    // The host sees the pages, or gets copies.
    for memory_kind in [MemoryKind::HostPages, MemoryKind::Device] {
        let in_place = memory_kind == MemoryKind::HostPages;
        let buffer = hub.buffer::<u32>(1024).shared_with([&device]).memory_kind(memory_kind);
        let buffer = buffer.trust_declared(true).build().unwrap();
        launch(&buffer, &queue, &kernel).unwrap();
        let implied = || hub.ledger().implied_bytes();
        let before = implied();
        assert_eq!(*buffer.map_range(10..14).unwrap(), [1; 4], "{memory_kind}");
        assert_eq!(implied() - before, if in_place { 0 } else { 16 }, "{memory_kind}");
        buffer.map_range_mut(10..14).unwrap()[1..3].fill(7);
        launch(&buffer, &queue, &kernel).unwrap();
        assert_eq!(buffer.to_vec().unwrap()[9..15], [2, 2, 8, 8, 2, 2], "{memory_kind}");
        // For writing alone: what is not written stays.
        let mut map = buffer.map_write(100..200).unwrap();
        assert_eq!(map.len(), 100);
        map.write(98, &[5, 6]).unwrap();
        let refused = map.write(99, &[5, 6]).unwrap_err();
        assert!(refused.to_string().contains("2 elements at 99 of a map of 100"), "{refused}");
        assert!(map.write(usize::MAX, &[1]).is_err());
        assert!(buffer.map().is_err(), "it excludes others");
        map.unmap().unwrap();
        assert_eq!(buffer.to_vec().unwrap()[196..202], [2, 2, 5, 6, 2, 2], "{memory_kind}");
        // Everything: no contents are brought to the host.
        launch(&buffer, &queue, &kernel).unwrap();
        let before = implied();
        let mut map = buffer.map_overwrite(..).unwrap();
        map.fill(3);
        assert_eq!(implied() - before, 0, "{memory_kind}: nothing is copied to the host");
        map.unmap().unwrap();
        launch(&buffer, &queue, &kernel).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [4; 1024], "{memory_kind}");
        let mut map = buffer.map_overwrite(1000..).unwrap();
        map.fill(9);
        drop(map);
        assert_eq!(buffer.to_vec().unwrap()[999..1002], [4, 9, 9], "{memory_kind}");
        for range in [5..5, 1000..1025, 2000..2001] {
            assert!(
                buffer.map_range(range.clone()).is_err_and(|e| e.to_string().contains("inside"))
            );
            assert!(buffer.map_overwrite(range).is_err());
        }
        let region = buffer.sub_buffer(512..1024, Access::ReadWrite).unwrap();
        region.map_overwrite(1..2).unwrap().fill(77);
        region.map_write(2..3).unwrap().fill(78);
        region.map_range_mut(3..4).unwrap()[0] = 79;
        assert_eq!(*region.map_range(0..5).unwrap(), [4, 77, 78, 79, 4], "{memory_kind}");
    }
}

#[test]
fn a_buffer_that_the_host_only_writes_is_filled_in_place() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue().unwrap();
    let kernel = add_one(&queue);
    for memory_kind in [MemoryKind::MappedDevice, MemoryKind::Device] {
        let in_place = memory_kind == MemoryKind::MappedDevice;
        let filled = hub.buffer::<u32>(64).shared_with([&device]).memory_kind(memory_kind);
        let filled = filled.host_access(HostAccess::Write).trust_declared(true).build().unwrap();
        assert!(
            filled.map().is_err() && filled.map_mut().is_err() && filled.map_range(..).is_err()
        );
        filled.map_overwrite(..).unwrap().fill(41);
        match filled.map_write(..1) {
            Ok(mut map) => map.fill(41),
            Err(refused) => assert!(!in_place && refused.to_string().contains("map_overwrite")),
        }
        launch(&filled, &queue, &kernel).unwrap();
        let seen = hub.buffer::<u32>(64).shared_with([&device]).build().unwrap();
        seen.copy_from(0, &filled, ..).unwrap();
        assert_eq!(seen.to_vec().unwrap(), [42; 64], "{memory_kind}");
    }
}

#[test]
fn a_host_that_is_named_maps_with_its_access_alone() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue().unwrap();
    let kernel = add_one(&queue);
    let shape = hub.buffer::<u32>(64).shared_with([&device, &hub.host()]).allocate_on(&device);
    let shape = shape.memory_kind(MemoryKind::MappedDevice).trust_declared(true);
    let filled = shape.clone().host_access(HostAccess::Write).build().unwrap();
    filled.map_write(..).unwrap().fill(41);
    assert!(filled.map().is_err() && filled.to_vec().is_err());
    launch(&filled, &queue, &kernel).unwrap();
    let read = shape.clone().host_access(HostAccess::Read).build().unwrap();
    read.copy_from(0, &filled, ..).unwrap();
    assert_eq!(*read.map().unwrap(), [42; 64]);
    assert!(read.map_mut().is_err() && read.map_write(..).is_err());
    // Kernels of the host would have full access.
    let on_host = hub.host().queue().unwrap();
    assert!(matches!(read.read_on(&on_host), Err(Error::NotShared { .. })));
    shape.build().unwrap().read_on(&on_host).unwrap();
    let kept_away = hub.buffer::<u32>(64).shared_with([&device, &hub.host()]).allocate_on(&device);
    let kept_away = kept_away.memory_kind(MemoryKind::MappedDevice).trust_declared(true);
    let kept_away = kept_away.host_access(HostAccess::None).build();
    assert!(
        matches!(kept_away, Err(Error::Unsupported { .. })),
        "the host is named, and has no access"
    );
    // A staged copy goes through the host.
    let staged = hub.buffer::<u32>(64).shared_with([&device, &hub.host()]).allocate_on(&device);
    let staged = staged.route(RouteKind::Staged).host_access(HostAccess::Read).build();
    assert!(matches!(staged, Err(Error::Unsupported { .. })));
}

#[test]
fn a_staged_copy_is_not_brought_to_a_host_that_overwrites_it() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue().unwrap();
    let kernel = add_one(&queue);
    let buffer = hub.buffer::<u32>(256).shared_with([&device, &hub.host()]).allocate_on(&device);
    let buffer = buffer.route(RouteKind::Staged).build().unwrap();
    for overwrites in [true, false] {
        launch(&buffer, &queue, &kernel).unwrap();
        let before = hub.ledger().implied_bytes();
        match overwrites {
            true => buffer.map_overwrite(..).unwrap().fill(5),
            false => buffer.map_mut().unwrap().fill(5), // the control
        }
        let copied = hub.ledger().implied_bytes() - before;
        assert_eq!(copied, if overwrites { 0 } else { 1024 }, "{overwrites}");
        launch(&buffer, &queue, &kernel).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [6; 256]);
    }
}
