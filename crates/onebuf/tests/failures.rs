//! A failure is reported once, to a caller that waits for the work. A refused call changes nothing.
#![cfg(not(onebuf_shuttle))]

use onebuf::{
    Access, Buffer, Device, Error, HostAccess, Hub, Kernel, MemoryKind, NativeArgs, Pool, Probe,
    Queue, QueueSpec, Result, RouteKind, Signature, Source, args, doctor::Verdicts,
    fake::FakeConfig,
};
use std::{ptr::NonNull, sync::Arc, time::Duration};

const SOON: Duration = Duration::from_secs(10);

fn hub_of(fakes: impl IntoIterator<Item = FakeConfig>) -> Hub {
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Verdicts::default());
    fakes.into_iter().fold(builder, |builder, fake| builder.fake(fake)).build().unwrap()
}

fn kernel(
    device: &Device,
    run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
) -> Kernel {
    let program = device.program(&Source::default().with_native("k", run)).unwrap();
    // SAFETY: native kernels get slices, which are checked.
    unsafe { program.kernel("k", Signature::new().buffer::<u32>(Access::ReadWrite)).unwrap() }
}

fn bad(device: &Device) -> Kernel {
    kernel(device, |_| Err(Error::invalid("bad kernel")))
}

/// A buffer of zeroes on a fake device, and a queue.
fn simple(spec: QueueSpec) -> (Device, Queue, Buffer<u32>) {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue_with(spec).unwrap();
    let buffer = hub.buffer::<u32>(16).shared_with([&device]).build().unwrap();
    (device, queue, buffer)
}

#[test]
fn a_launchs_own_fence_tells_of_its_failure_whatever_was_waited_for_since() {
    for spec in [QueueSpec::default(), QueueSpec::out_of_order()] {
        let (device, queue, buffer) = simple(spec);
        let view = buffer.write_on(&queue).unwrap();
        let fence = queue.launch_fenced(&bad(&device), [1], args![view]).unwrap();
        fence.wait(SOON).unwrap_err();
        // The queue has reported the failure, and can be used again.
        queue.finish().unwrap();
        fence.wait(SOON).unwrap_err();
        fence.is_done().unwrap_err();
    }
}

#[test]
fn a_failure_on_an_out_of_order_queue_reaches_the_next_user() {
    let (device, queue, buffer) = simple(QueueSpec::out_of_order());
    let view = buffer.write_on(&queue).unwrap();
    let fence = queue.launch_fenced(&bad(&device), [1], args![view]).unwrap();
    fence.wait(SOON).unwrap_err();
    queue.finish().unwrap();
    buffer.to_vec().unwrap_err();
    buffer.to_vec().unwrap();
}

#[test]
fn asking_how_busy_queues_are_takes_no_failure_away() {
    let (device, _, buffer) = simple(QueueSpec::default());
    let queues = device.queues(1, QueueSpec::default()).unwrap();
    let queue = queues.round_robin();
    queue.launch(&bad(&device), [1], args![buffer.write_on(&queue).unwrap()]).unwrap();
    // At least one of these calls comes after the work has failed, on all but the slowest machines.
    for _ in 0..50 {
        queues.least_busy();
        std::thread::yield_now();
    }
    queues.finish().unwrap_err();
    queues.finish().unwrap();
}

/// Two fake devices with separate replicas. The second one has the newest contents, all twos.
fn staged(probe: &Arc<Probe>) -> (Kernel, Queue, Buffer<u32>) {
    let first = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
    let hub = hub_of([first, FakeConfig::default()]);
    let (home, other) = (hub.device("fake:0").unwrap(), hub.device("fake:1").unwrap());
    let builder = hub.buffer::<u32>(1024).shared_with([&home, &other]).allocate_on(&home);
    let buffer = builder.route(RouteKind::Staged).build().unwrap();
    buffer.fill(1).unwrap();
    let twos = kernel(&other, |args| {
        args.slice_mut::<u32>(0)?.fill(2);
        Ok(())
    });
    (twos, other.queue().unwrap(), buffer)
}

#[test]
fn a_write_that_failed_before_it_began_loses_nothing() {
    let probe = Probe::new();
    let (twos, queue, buffer) = staged(&probe);
    let mut failures = 0;
    for nth in 1..50 {
        queue.launch(&twos, [1], args![buffer.write_on(&queue).unwrap()]).unwrap();
        queue.finish().unwrap();
        probe.reset();
        probe.fail_nth(nth, -5);
        let wrote = buffer.write(&[3; 1024]);
        let failed = probe.failed();
        probe.reset();
        // Without pinned memory the write goes through ordinary memory.
        let want = if wrote.is_ok() { 3 } else { 2 };
        assert_eq!(buffer.to_vec().unwrap(), [want; 1024], "call {nth}, {failed:?}");
        failures += u32::from(wrote.is_err());
        if failed.is_none() {
            wrote.unwrap();
            assert!(failures > 0, "no failed call made the write fail");
            return;
        }
    }
    panic!("the calls never end");
}

#[test]
fn a_longer_life_of_a_pooled_buffer_has_no_bytes_that_nobody_wrote() {
    let hub = hub_of([FakeConfig::default(), FakeConfig::default()]);
    let (home, other) = (hub.device("fake:0").unwrap(), hub.device("fake:1").unwrap());
    let builder = |bytes| {
        let builder = hub.buffer::<u8>(bytes).shared_with([&home, &other]).allocate_on(&home);
        builder.route(RouteKind::Staged)
    };
    let (pool, queue) = (Pool::new(&hub), other.queue().unwrap());
    drop(pool.get(&builder((1 << 20) - 4096)).unwrap().write_on(&queue).unwrap());
    let second = pool.get(&builder(1 << 20)).unwrap();
    assert_eq!(pool.statistics().made, 1, "the same buffer again");
    assert!(second.to_vec().unwrap().iter().all(|&byte| byte == 0));
}

#[repr(align(4096))]
struct Page([u32; 1024]);

#[test]
fn memory_of_the_callers_is_one_buffers() {
    let hub = hub_of([FakeConfig::default()]);
    let page = Arc::new(Page([7; 1024]));
    let pointer = NonNull::from(&page.0).cast::<u32>();
    // SAFETY: the page is accessed only through buffers, which keep it alive.
    let builder = || unsafe { hub.buffer::<u32>(1024).host_memory(pointer, page.clone()) };
    let first = builder();
    first.clone().build().unwrap_err();
    assert_eq!(first.build().unwrap().to_vec().unwrap(), [7; 1024]);
    builder().memory_kind(MemoryKind::Device).build().unwrap_err();
    builder().allocate_on(&hub.device("fake:0").unwrap()).build().unwrap_err();
}

#[test]
fn a_host_that_must_keep_away_does_not_copy_either() {
    let hub = hub_of([FakeConfig::default()]);
    let device = hub.device("fake:0").unwrap();
    let builder = hub.buffer::<u32>(64).shared_with([&device]).init(vec![7; 64]);
    let hidden = builder.clone().host_access(HostAccess::None).build().unwrap();
    // A move inside the device needs no host. A move with a large overlap goes through the host, which has no access.
    hidden.copy_from(32, &hidden, ..32).unwrap();
    assert!(matches!(hidden.copy_from(1, &hidden, ..63), Err(Error::InvalidArgument(_))));
    let read_only = builder.host_access(HostAccess::Read);
    let refused = Pool::new(&hub).get(&read_only).unwrap_err().to_string();
    assert!(refused.contains("build it instead"), "{refused}");
    read_only.build().unwrap();
}

#[test]
fn what_fits_exactly_is_not_rounded_out_of_reach() {
    let most = 1000 << 10;
    let hub = hub_of([FakeConfig { max_alloc_bytes: most, ..FakeConfig::default() }]);
    let device = hub.device("fake:0").unwrap();
    let builder = hub.buffer::<u8>(most as usize).shared_with([&device]);
    Pool::new(&hub).get(&builder).unwrap();
    let limited = Pool::with_limit(&hub, most);
    drop(limited.get(&hub.buffer::<u8>(most as usize)).unwrap());
    limited.get(&hub.buffer::<u8>(most as usize + 1)).unwrap_err();
}

#[test]
fn nothing_is_known_about_grafts_onto_another_hub() {
    let hub = || onebuf::builder().without(["opencl", "vulkan", "gl"]);
    let small = hub().build().unwrap();
    let large = hub().fake(FakeConfig::default()).fake(FakeConfig::default()).build().unwrap();
    let last = large.devices().pop().unwrap();
    let verdict = small.graft_verdict(&small.host(), &last);
    assert!(verdict.why.contains("another hub"), "{}", verdict.why);
}
