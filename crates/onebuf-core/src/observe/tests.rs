//! Tests what an observer receives of a small program, and how its faults affect the program.

use super::*;
use crate::{
    Buffer, Device, Hub, HubBuilder, Kernel, Queue, Signature, Source, args,
    fake::{FakeConfig, Sharing},
};
use onebuf_hal::{
    Access,
    locks::{Mutex, lock},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

const N: usize = 64;

fn builder() -> HubBuilder {
    let fake = FakeConfig { shares_host_pages: Sharing::No, ..FakeConfig::default() };
    let builder = crate::builder().only(["host"]);
    builder.verdicts(Default::default()).fake(fake.clone()).fake(fake)
}

/// Keeps all events.
#[derive(Default)]
struct Recording {
    events: Mutex<Vec<(Event, Option<Timed>)>>,
    service_queues: Mutex<Vec<usize>>,
    buffers: Arc<Mutex<Vec<String>>>,
}

impl Observer for Recording {
    fn event(&self, event: Event, timed: Option<Timed>) {
        lock(&self.events).push((event, timed));
    }

    fn service_queue(&self, queue: usize) {
        lock(&self.service_queues).push(queue);
    }

    fn buffer_made(&self, buffer: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        let NewBuffer { name, bytes, home, routes, .. } = buffer;
        lock(&self.buffers).push(format!("{name}: {bytes} bytes at {}, {routes:?}", home.get()));
        Some(Arc::new(OneBuffer(self.buffers.clone())))
    }
}

struct OneBuffer(Arc<Mutex<Vec<String>>>);

impl BufferObserver for OneBuffer {
    fn handed_over(&self, from: DeviceIx, to: DeviceIx, _: SyncMethod) {
        lock(&self.0).push(format!("{} -> {}", from.get(), to.get()));
    }

    fn copied_implicitly(&self, bytes: u64) {
        lock(&self.0).push(format!("{bytes} copied"));
    }
}

impl Recording {
    fn of(&self, what: What) -> Vec<Event> {
        let events = lock(&self.events);
        events.iter().map(|(event, _)| event).filter(|event| event.what == what).cloned().collect()
    }
}

fn increment(device: &Device) -> Kernel {
    let source = Source::opencl_c("").with_native("increment", |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    });
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: it accesses only the elements of its slice, whatever the grid.
    #[allow(unsafe_code)]
    unsafe {
        device.program(&source).unwrap().kernel("increment", signature).unwrap()
    }
}

fn launch(device: &Device, queue: &Queue, buffer: &Buffer<u32>) {
    let kernel = increment(device);
    queue.launch(&kernel, [N], args![buffer.write_on(queue).unwrap()]).unwrap();
}

/// Writes a buffer, launches once on each of two devices, and reads it. Returns the result.
fn program(hub: &Hub) -> Vec<u32> {
    let devices = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let buffer = hub.buffer::<u32>(N).shared_with(&devices).name("signal").build().unwrap();
    buffer.write(&[7; N]).unwrap();
    for device in &devices {
        let queue = device.queue().unwrap();
        launch(device, &queue, &buffer);
        queue.finish().unwrap();
    }
    buffer.to_vec().unwrap()
}

#[test]
fn an_observer_sees_launches_hand_overs_copies_and_waits() {
    let seen = Arc::new(Recording::default());
    let hub = builder().observer(seen.clone()).build().unwrap();
    assert_eq!(program(&hub), [9; N]);

    let launches = seen.of(What::Launch);
    let on: Vec<usize> = launches.iter().map(|event| event.device.get()).collect();
    assert_eq!((launches[0].name.as_str(), on), ("increment", vec![1, 2]));
    let hand_overs = seen.of(What::HandOver);
    let between = |event: &Event| event.from == Some(DeviceIx(1)) && event.device == DeviceIx(2);
    let between = hand_overs.iter().find(|event| between(event)).expect("from one to the other");
    assert_eq!((between.buffer.as_deref(), between.bytes), (Some("signal"), Some(N as u64 * 4)));
    assert!(
        seen.of(What::Wait).iter().any(|event| event.sync_method == Some(SyncMethod::HostWait))
    );
    let copies = seen.of(What::Copy);
    let bytes =
        |cause| copies.iter().filter(move |e| e.cause == Some(cause)).map(|e| e.bytes.unwrap());
    assert_eq!(bytes(crate::Cause::Asked).sum::<u64>(), 2 * N as u64 * 4);
    assert_eq!(bytes(crate::Cause::Implied).sum::<u64>(), hub.ledger().implied_bytes());
    let events = lock(&seen.events);
    assert!(
        events.iter().all(|(event, _)| event.start <= event.end && event.end <= hub.tracer().now())
    );
    assert!(events.iter().all(|(_, timed)| timed.is_none()), "no queue was asked for times");
    assert!(!lock(&seen.service_queues).is_empty());
}

#[test]
fn an_observer_of_a_buffer_is_told_what_happens_to_it() {
    let seen = Arc::new(Recording::default());
    let hub = builder().observer(seen.clone()).build().unwrap();
    program(&hub);
    let told = lock(&seen.buffers);
    assert!(told[0].starts_with("signal: 256 bytes at "), "{told:?}");
    assert!(told.iter().any(|queue_state| queue_state == "1 -> 2"), "{told:?}");
    let implied = told
        .iter()
        .filter_map(|queue_state| queue_state.strip_suffix(" copied")?.parse::<u64>().ok());
    assert_eq!(implied.sum::<u64>(), hub.ledger().implied_bytes());
    assert!(hub.ledger().implied_bytes() > 0);
}

#[test]
fn devices_time_their_work_where_that_was_asked_for() {
    for wanted in [false, true] {
        let seen = Arc::new(Recording::default());
        let builder = builder().observer(seen.clone());
        let hub = if wanted { builder.device_times() } else { builder }.build().unwrap();
        program(&hub);
        let events = lock(&seen.events);
        let launches: Vec<_> = events.iter().filter(|(e, _)| e.what == What::Launch).collect();
        assert_eq!(launches.len(), 2);
        for (_, timed) in launches {
            assert_eq!(timed.is_some(), wanted);
            assert!(timed.iter().all(|timed| timed.profile().is_ok()));
        }
    }
    // Without an observer the times are not measured.
    let hub = builder().device_times().build().unwrap();
    assert!(!hub.tracer().wants_device_times());
}

/// Counts buffers, and wants no events.
#[derive(Default)]
struct Buffers(AtomicUsize);

impl Observer for Buffers {
    fn wants_events(&self) -> bool {
        false
    }

    fn event(&self, event: Event, _: Option<Timed>) {
        panic!("{event:?} was not wanted");
    }

    fn buffer_made(&self, _: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[test]
fn observers_stand_side_by_side_and_one_of_a_type() {
    let (seen, replaced) = (Arc::new(Recording::default()), Arc::new(Recording::default()));
    let buffers = Arc::new(Buffers::default());
    let builder = builder().observer(replaced.clone()).observer(buffers.clone());
    let hub = builder.observer(seen.clone()).build().unwrap();
    program(&hub);
    assert!(lock(&replaced.events).is_empty());
    assert_eq!((seen.of(What::Launch).len(), buffers.0.load(Ordering::Relaxed)), (2, 1));
    assert!(Arc::ptr_eq(&hub.observer::<Recording>().unwrap(), &seen));
}

#[test]
fn one_that_wants_no_events_costs_none_and_one_that_comes_later_sees_buffers() {
    let hub = builder().build().unwrap();
    assert!(!hub.tracer().has_observer() && hub.observer::<Buffers>().is_none());
    program(&hub);
    let late = hub.observe_with(Buffers::default);
    assert!(Arc::ptr_eq(&late, &hub.observe_with(Buffers::default)), "there is one");
    program(&hub);
    assert!(!hub.tracer().has_observer());
    assert_eq!(late.0.load(Ordering::Relaxed), 1, "only that of the second run");
}

/// Panics in every call.
#[derive(Default)]
struct Panics(AtomicUsize);

impl Panics {
    fn now(&self) -> ! {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("an observer's own mistake");
    }
}

impl Observer for Panics {
    fn event(&self, _: Event, _: Option<Timed>) {
        self.now();
    }
}

/// Installs observers of its buffers that panic.
#[derive(Default)]
struct PanicsLater(Arc<Panics>);

impl Observer for PanicsLater {
    fn buffer_made(&self, _: &NewBuffer) -> Option<Arc<dyn BufferObserver>> {
        Some(self.0.clone())
    }
}

impl BufferObserver for Panics {
    fn handed_over(&self, _: DeviceIx, _: DeviceIx, _: SyncMethod) {
        self.now();
    }

    fn copied_implicitly(&self, _: u64) {
        self.now();
    }
}

#[test]
fn a_panic_of_an_observer_stops_that_observer_and_nothing_else() {
    let (panics, later) = (Arc::new(Panics::default()), Arc::new(PanicsLater::default()));
    let seen = Arc::new(Recording::default());
    let builder = builder().observer(panics.clone()).observer(later.clone());
    let hub = builder.observer(seen.clone()).build().unwrap();
    assert_eq!(program(&hub), [9; N]);
    assert_eq!(panics.0.load(Ordering::Relaxed), 1, "it was called again");
    assert_eq!(later.0.0.load(Ordering::Relaxed), 1, "it was called again");
    assert_eq!(seen.of(What::Launch).len(), 2, "the others are told as before");
    // Each buffer has its own observer.
    assert_eq!(program(&hub), [9; N]);
    assert_eq!((panics.0.load(Ordering::Relaxed), later.0.0.load(Ordering::Relaxed)), (1, 2));
}

struct Slow;

impl Observer for Slow {
    fn event(&self, _: Event, _: Option<Timed>) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_slow_observer_slows_the_work_and_spoils_nothing() {
    let seen = Arc::new(Recording::default());
    let hub = builder().observer(Arc::new(Slow)).observer(seen.clone()).build().unwrap();
    let start = std::time::Instant::now();
    assert_eq!(program(&hub), [9; N]);
    let told = lock(&seen.events).len() as u32;
    assert!(start.elapsed() >= Duration::from_millis(2) * told, "it was not waited for");
}
