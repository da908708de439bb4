//! Tests of the fake device through the object-safe traits: the errors that it detects.
//!
//! # Safety
//!
//! Transfers are waited for before their arrays are dropped; kernels access memory as their arguments declare; host pointers
//! are used only while the host may access the memory.

#![allow(unsafe_code)]

use super::{Delay, FakeConfig, FakeDevice, Sharing, misuse};
use crate::{
    Access, AccessState, AllocSpec, Arg, Device, Domain, Error, Event, Export, Grid, HostAccess,
    Kernel, Memory, MemoryKind, NativeArgs, NativeKernel, Queue, QueueOrder, QueueSpec, Result,
    Source,
    locks::{Arc, Mutex},
};
use onebuf_sys::Probe;
use std::{sync::mpsc, time::Duration};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(20);
const GRID: Grid = Grid { dims: 1, global: [1; 3], local: None, offset: [0; 3] };

fn device() -> FakeDevice {
    FakeDevice::new(FakeConfig::default())
}

/// Memory of another fake device with plain host pages, and its export.
fn pages(bytes: usize) -> (Arc<dyn Memory>, Export) {
    let memory_kinds = vec![MemoryKind::FineSvm];
    let device =
        FakeDevice::new(FakeConfig { memory_kinds, domain: Domain(1), ..Default::default() });
    let memory = device.allocate(&spec(bytes, MemoryKind::FineSvm), None).unwrap();
    let export = memory.export(&*queue(&device)).unwrap();
    (memory, export)
}

fn spec(bytes: usize, memory_kind: MemoryKind) -> AllocSpec {
    AllocSpec {
        bytes,
        align: 64,
        memory_kind,
        access: Access::ReadWrite,
        host: HostAccess::ReadWrite,
        hint: None,
    }
}

fn mapped(device: &FakeDevice, bytes: usize) -> Arc<dyn Memory> {
    device.allocate(&spec(bytes, MemoryKind::MappedDevice), None).unwrap()
}

fn queue(device: &FakeDevice) -> Arc<dyn Queue> {
    device.queue(QueueSpec::default()).unwrap()
}

fn kernel(
    device: &FakeDevice,
    parameters: usize,
    run: impl Fn(&mut NativeArgs<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<Arc<dyn Kernel>> {
    let native = vec![NativeKernel { name: "k".into(), run: Arc::new(run) }];
    device.build(&Source { native, ..Source::default() })?.kernel("k", parameters)
}

/// Adds one to each byte.
fn increment(device: &FakeDevice) -> Result<Arc<dyn Kernel>> {
    kernel(device, 1, |args| {
        args.slice_mut::<u8>(0)?.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        Ok(())
    })
}

fn launch(queue: &dyn Queue, kernel: &dyn Kernel, memory: &dyn Memory) -> Result<()> {
    // SAFETY: the kernels of these tests go through `NativeArgs`, which checks bounds and access.
    unsafe {
        queue.launch(
            kernel,
            &GRID,
            &[Arg::Memory(memory, Access::ReadWrite, usize::MAX)],
            &[],
            false,
        )
    }
    .map(drop)
}

fn first_byte(queue: &dyn Queue, memory: &dyn Memory) -> Result<u8> {
    let mut byte = Box::new(0);
    // SAFETY: the byte is freed only after the event has completed.
    let outcome = unsafe { queue.read(memory, 0, &raw mut *byte, 1) }?.wait(LONG);
    if matches!(outcome, Err(Error::Timeout { .. })) {
        std::mem::forget(byte);
        return outcome.map(|()| 0);
    }
    outcome.map(|()| *byte)
}

fn finish(queue: &dyn Queue) -> Result<()> {
    queue.mark()?.wait(LONG)
}

fn host_byte(memory: &dyn Memory) -> u8 {
    // SAFETY: the tests call this only while the host may access the memory and its queue is idle.
    unsafe { *memory.host_pointer().expect("a host side").as_ref() }
}

fn set_host_byte(memory: &dyn Memory, value: u8) {
    // SAFETY: as above.
    unsafe { memory.host_pointer().expect("a host side").write(value) };
}

#[test]
fn the_protocol_checker_catches_work_on_memory_that_is_released() {
    let device = device();
    let queue = queue(&device);
    let (memory, add) = (mapped(&device, 8), increment(&device).unwrap());
    queue.fill(&*memory, 0, 8, &[1]).unwrap();
    assert_eq!(queue.reside(&*memory, AccessState::Released), Ok(true));
    launch(&*queue, &*add, &*memory).unwrap();
    assert_eq!(finish(&*queue), Err(misuse("fake_launch", "PROTOCOL")));
    assert_eq!(first_byte(&*queue, &*memory), Err(misuse("fake_read", "PROTOCOL")));

    assert_eq!(queue.reside(&*memory, AccessState::SharedRead), Ok(true));
    assert_eq!(first_byte(&*queue, &*memory), Ok(1), "readers may, while it is shared_read");
    queue.fill(&*memory, 0, 8, &[2]).unwrap();
    assert_eq!(finish(&*queue), Err(misuse("fake_fill", "PROTOCOL")));

    assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(true));
    launch(&*queue, &*add, &*memory).unwrap();
    assert_eq!(first_byte(&*queue, &*memory), Ok(2), "the queue goes on");
}

#[test]
fn host_and_device_see_each_other_only_by_hand_over() {
    let device = device();
    let queue = queue(&device);
    let (memory, add) = (mapped(&device, 4), increment(&device).unwrap());
    assert_eq!(memory.host_pointer(), None, "not mapped yet");
    queue.fill(&*memory, 0, 4, &[10]).unwrap();
    queue.reside(&*memory, AccessState::SharedRead).unwrap();
    finish(&*queue).unwrap();
    let address = memory.host_pointer();
    assert_eq!(host_byte(&*memory), 10);

    set_host_byte(&*memory, 77); // not allowed: the memory is only shared_read
    queue.reside(&*memory, AccessState::Acquired).unwrap();
    launch(&*queue, &*add, &*memory).unwrap();
    assert_eq!(first_byte(&*queue, &*memory), Ok(11), "so it is not taken over");

    queue.reside(&*memory, AccessState::Released).unwrap();
    finish(&*queue).unwrap();
    assert_eq!((memory.host_pointer(), host_byte(&*memory)), (address, 11));
    set_host_byte(&*memory, 20);
    queue.reside(&*memory, AccessState::Acquired).unwrap();
    assert_eq!(queue.reside(&*memory, AccessState::Acquired), Ok(false));
    assert_eq!(first_byte(&*queue, &*memory), Ok(20));
}

#[test]
fn a_shadow_import_is_a_copy_until_it_is_handed_over() {
    let (device, (original, export)) = (device(), pages(4));
    set_host_byte(&*original, 1);
    let (queue, shadow) = (queue(&device), device.import(&export, Access::ReadWrite).unwrap());
    assert_eq!(shadow.access_state(), AccessState::Acquired);
    assert_eq!(first_byte(&*queue, &*shadow), Ok(1), "contents at the import");
    set_host_byte(&*original, 2);
    assert_eq!(first_byte(&*queue, &*shadow), Ok(1), "nobody handed over");
    launch(&*queue, &*increment(&device).unwrap(), &*shadow).unwrap();
    queue.reside(&*shadow, AccessState::SharedRead).unwrap();
    finish(&*queue).unwrap();
    assert_eq!(host_byte(&*original), 2, "1 and 1");
    drop(original);
    assert_eq!(host_byte(&*shadow), 2, "the import keeps the pages");
}

#[test]
fn an_import_for_reading_writes_nothing_back() {
    let (device, (original, export)) = (device(), pages(4));
    let (queue, shadow) = (queue(&device), device.import(&export, Access::Read).unwrap());
    set_host_byte(&*original, 9);
    queue.reside(&*shadow, AccessState::Released).unwrap();
    finish(&*queue).unwrap();
    assert_eq!(host_byte(&*original), 9);
    let add = increment(&device).unwrap();
    assert!(matches!(launch(&*queue, &*add, &*shadow), Err(Error::InvalidArgument(_))));
}

#[test]
fn an_alias_import_is_the_pages() {
    let alias = FakeConfig { shares_host_pages: Sharing::Alias, ..Default::default() };
    let (device, (original, export)) = (FakeDevice::new(alias), pages(4));
    let (queue, view) = (queue(&device), device.import(&export, Access::ReadWrite).unwrap());
    assert!(!view.needs_access_state());
    queue.fill(&*view, 0, 4, &[3]).unwrap();
    finish(&*queue).unwrap();
    assert_eq!((host_byte(&*original), view.host_pointer()), (3, original.host_pointer()));

    let none = FakeDevice::new(FakeConfig { shares_host_pages: Sharing::No, ..Default::default() });
    assert!(matches!(none.import(&export, Access::Read), Err(Error::Unsupported { .. })));
    assert!(!none.info().caps.imports_host_pages);
}

#[test]
fn a_failure_reaches_all_that_depends_on_it_and_no_more() {
    let device = device();
    let (first, second) = (queue(&device), queue(&device));
    let memory = device.allocate(&spec(8, MemoryKind::Device), None).unwrap();
    let bang = kernel(&device, 1, |_| panic!("no luck")).unwrap();
    let host_signal = first.host_signal().unwrap();
    launch(&*first, &*bang, &*memory).unwrap();
    first.fill(&*memory, 0, 8, &[5]).unwrap();
    let failed = first.mark().unwrap();
    second.wait_for(std::slice::from_ref(&failed)).unwrap();
    second.fill(&*memory, 0, 8, &[6]).unwrap();
    let dependent = second.mark().unwrap();
    host_signal.open(Ok(()));

    let error = Error::invalid("native kernel `k` panicked: no luck");
    assert_eq!(failed.wait(LONG), Err(error.clone()));
    assert_eq!(failed.poll(), Err(error.clone()));
    assert_eq!(dependent.wait(LONG), Err(error));
    assert_eq!(first_byte(&*first, &*memory), Ok(0xA5), "no fill was run; the queue goes on");
    assert_eq!(finish(&*second), Ok(()));
}

#[test]
fn a_host_signal_holds_until_it_is_opened() {
    let device = device();
    let queue = queue(&device);
    let host_signal = queue.host_signal().unwrap();
    let event = queue.mark().unwrap();
    assert_eq!(event.poll(), Ok(false));
    let timeout = event.wait(SHORT).unwrap_err();
    assert_eq!(timeout, Error::timeout("an event of the fake device", SHORT));
    host_signal.open(Ok(()));
    assert_eq!(event.wait(LONG), Ok(()));
    assert_eq!(event.poll(), Ok(true));

    let host_signal = queue.host_signal().unwrap();
    let event = queue.mark().unwrap();
    host_signal.open(Err(Error::invalid("told so")));
    assert_eq!(event.wait(LONG), Err(Error::invalid("told so")));
}

#[test]
fn a_dropped_host_signal_fails_the_work_behind_it() {
    let device = device();
    let queue = queue(&device);
    drop(queue.host_signal().unwrap());
    assert_eq!(finish(&*queue), Err(misuse("fake_host_signal", "ABANDONED")));
    assert_eq!(finish(&*queue), Ok(()));
}

#[test]
fn a_queue_dropped_at_a_closed_host_signal_does_not_hang() {
    let device = device();
    let queue = queue(&device);
    let memory = mapped(&device, 4);
    let host_signal = queue.host_signal().unwrap();
    queue.fill(&*memory, 0, 4, &[1]).unwrap();
    let event = queue.mark().unwrap();
    drop((queue, memory));
    assert_eq!(event.poll(), Ok(false));
    host_signal.open(Ok(()));
    assert_eq!(event.wait(LONG), Ok(()), "the work still runs, on memory that it keeps");
}

#[test]
fn dropping_a_queue_drains_it() {
    let delay = Delay::Random { seed: 4, max: Duration::from_millis(2) };
    let device = FakeDevice::new(FakeConfig { delay, ..Default::default() });
    let (queue, memory) = (queue(&device), mapped(&device, 4));
    (0..5).for_each(|value| queue.fill(&*memory, 0, 4, &[value]).unwrap());
    let event = queue.mark().unwrap();
    drop(queue);
    assert_eq!(event.poll(), Ok(true));
}

#[test]
fn callbacks_run_once_and_may_drop_the_queue() {
    let device = device();
    let queue = queue(&device);
    let host_signal = queue.host_signal().unwrap();
    let event = queue.mark().unwrap();
    let (sender, receiver) = mpsc::channel();
    let held = queue.clone();
    let callback = move |outcome| {
        drop(held);
        sender.send(outcome).unwrap();
    };
    assert!(event.on_complete(Box::new(callback)).is_ok());
    assert!(event.on_complete(Box::new(|_| panic!("not the queue's problem"))).is_ok());
    drop(queue);
    host_signal.open(Ok(()));
    assert_eq!(receiver.recv_timeout(LONG), Ok(Ok(())));
    let (sender, receiver) = mpsc::channel();
    assert!(event.on_complete(Box::new(move |o| sender.send(o).unwrap())).is_ok());
    assert_eq!(receiver.try_recv(), Ok(Ok(())), "at once when it is over");
}

#[test]
fn what_is_switched_off_is_refused() {
    let config = FakeConfig {
        callbacks: false,
        host_signals: false,
        out_of_order: false,
        max_alloc_bytes: 64,
        ..Default::default()
    };
    let device = FakeDevice::new(config);
    let queue = queue(&device);
    assert!(matches!(queue.host_signal().err(), Some(Error::Unsupported { .. })));
    let (sender, receiver) = mpsc::channel();
    let refused = queue.mark().unwrap().on_complete(Box::new(move |o| sender.send(o).unwrap()));
    let (error, callback) = refused.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }));
    callback(Ok(()));
    assert_eq!(receiver.try_recv(), Ok(Ok(())), "the callback came back");
    assert!(matches!(
        device.queue(QueueSpec { order: QueueOrder::OutOfOrder, profiling: false }),
        Err(Error::Unsupported { .. })
    ));
    let large = device.allocate(&spec(65, MemoryKind::Device), None);
    assert!(matches!(large, Err(Error::OutOfMemory { limit: Some(64), .. })));
    let svm = device.allocate(&spec(8, MemoryKind::FineSvm), None);
    assert!(matches!(svm, Err(Error::Unsupported { .. })));
    let empty = device.allocate(&spec(0, MemoryKind::Device), None);
    assert!(matches!(empty, Err(Error::InvalidArgument(_))));
}

#[test]
fn bounds_and_domains_are_checked_when_enqueued() {
    let device = device();
    let (queue, memory) = (queue(&device), mapped(&device, 8));
    assert!(matches!(queue.fill(&*memory, 8, 1, &[0]), Err(Error::InvalidArgument(_))));
    assert!(matches!(queue.copy(&*memory, 0, &*memory, 1, 4), Err(Error::InvalidArgument(_))));
    let overflow = queue.copy(&*memory, usize::MAX, &*memory, 0, 4);
    assert!(matches!(overflow, Err(Error::InvalidArgument(_))));
    let (foreign, _) = pages(8);
    let error = queue.fill(&*foreign, 0, 8, &[0]).unwrap_err();
    assert!(matches!(error, Error::ForeignContext { .. }));
    queue.copy(&*memory, 0, &*memory, 4, 4).unwrap();
    assert_eq!(finish(&*queue), Ok(()));
}

#[test]
fn unordered_work_on_two_queues_is_a_race() {
    let device = device();
    let (first, second) = (queue(&device), queue(&device));
    let memory = mapped(&device, 8);
    let (started, wait_started) = mpsc::channel();
    let (release, wait_release) = mpsc::channel::<()>();
    let (started, wait_release) = (Mutex::new(started), Mutex::new(wait_release));
    let slow = kernel(&device, 1, move |_| {
        crate::locks::lock(&started).send(()).unwrap();
        crate::locks::lock(&wait_release).recv().unwrap();
        Ok(())
    });
    launch(&*first, &*slow.unwrap(), &*memory).unwrap();
    wait_started.recv().unwrap();
    second.fill(&*memory, 0, 8, &[1]).unwrap();
    assert_eq!(finish(&*second), Err(misuse("fake_fill", "RACE")));
    release.send(()).unwrap();
    assert_eq!(finish(&*first), Ok(()));
}

#[test]
fn an_out_of_order_queue_shuffles_what_nothing_orders() {
    let device = device();
    let queue =
        device.queue(QueueSpec { order: QueueOrder::OutOfOrder, profiling: false }).unwrap();
    let memory = device.allocate(&spec(1, MemoryKind::Device), None).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = order.clone();
    let note = kernel(&device, 2, move |args| {
        crate::locks::lock(&note).push(args.value::<u8>(1)?);
        Ok(())
    });
    let note = note.unwrap();
    let host_signal = queue.host_signal().unwrap();
    for number in 0..16 {
        let args = [Arg::Memory(&*memory, Access::Read, usize::MAX), Arg::Bytes(&[number])];
        // SAFETY: the kernel accesses no memory.
        unsafe { queue.launch(&*note, &GRID, &args, &[], false) }.unwrap();
    }
    let event = queue.mark().unwrap();
    host_signal.open(Ok(()));
    event.wait(LONG).unwrap();
    let mut order = crate::locks::lock(&order).clone();
    assert!(!order.is_sorted(), "{order:?}");
    order.sort_unstable();
    assert_eq!(order, (0..16).collect::<Vec<_>>());
}

/// The core passes each launch the events that it must wait for; this test omits them.
#[test]
fn out_of_order_launches_that_wait_for_nothing_are_a_race() {
    let device = device();
    let [first, second] = [0; 2].map(|_| device.queue(QueueSpec::out_of_order()).unwrap());
    let (memory, add) = (mapped(&device, 8), increment(&device).unwrap());
    let (started, wait_started) = mpsc::channel();
    let (release, wait_release) = mpsc::channel::<()>();
    let (started, wait_release) = (Mutex::new(started), Mutex::new(wait_release));
    let slow = kernel(&device, 1, move |_| {
        crate::locks::lock(&started).send(()).unwrap();
        crate::locks::lock(&wait_release).recv().unwrap();
        Ok(())
    });
    let slow = slow.unwrap();
    let start = |queue: &dyn Queue, kernel: &dyn Kernel, after: &[Arc<dyn Event>]| {
        let args = [Arg::Memory(&*memory, Access::ReadWrite, usize::MAX)];
        // SAFETY: the kernels go through `NativeArgs`, which checks bounds and access.
        unsafe { queue.launch(kernel, &GRID, &args, after, true) }.unwrap().unwrap()
    };
    let running = start(&*first, &*slow, &[]);
    wait_started.recv().unwrap();
    let unordered = start(&*second, &*add, &[]);
    assert_eq!(unordered.wait(LONG), Err(misuse("fake_launch", "RACE")));
    let ordered = start(&*second, &*add, std::slice::from_ref(&running));
    assert_eq!(ordered.poll(), Ok(false));
    release.send(()).unwrap();
    assert_eq!(ordered.wait(LONG), Ok(()));
    assert_eq!(running.wait(LONG), Ok(()));
}

/// Uses most calls of the device once.
fn work(device: &FakeDevice) -> Result<u8> {
    let (first, second) =
        (device.queue(QueueSpec::default())?, device.queue(QueueSpec::default())?);
    let memory = device.allocate(&spec(8, MemoryKind::MappedDevice), None)?;
    let add = increment(device)?;
    first.fill(&*memory, 0, 8, &[1])?;
    launch(&*first, &*add, &*memory)?;
    let host_signal = second.host_signal()?;
    let event: Arc<dyn Event> = first.mark()?;
    event.on_complete(Box::new(|outcome| host_signal.open(outcome))).map_err(|(error, _)| error)?;
    first.flush()?;
    launch(&*second, &*add, &*memory)?;
    let done = second.mark()?;
    first.wait_for(&[done])?;
    first.reside(&*memory, AccessState::SharedRead)?;
    finish(&*first)?;
    Ok(host_byte(&*memory))
}

#[test]
fn any_call_may_fail_and_nothing_leaks() {
    let probe = Probe::new();
    let config = FakeConfig { probe: Some(probe.clone()), ..Default::default() };
    let device = FakeDevice::new(config);
    for n in 1.. {
        probe.fail_nth(n, -6);
        let outcome = work(&device);
        let failed = probe.failed();
        assert!(probe.live().is_empty(), "{:?} after {failed:?}", probe.live());
        match (failed, outcome) {
            (None, outcome) => return assert_eq!(outcome, Ok(3)),
            (Some(call), Ok(value)) => {
                assert!(
                    call.starts_with("fake_release") || call == "fake_complete_host_signal",
                    "{call}"
                );
                assert_eq!(value, 3);
            }
            (Some(call), Err(error)) => assert!(error.to_string().contains(call), "{error}"),
        }
    }
}
