//! What several concurrent guards may and may not do, on a device with separate memory.

use onebuf::{
    Access, Buffer, CopyPolicy, Error, Hub, Kernel, MemoryKind, Queue, Result, RouteKind,
    Signature, Source, args,
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
