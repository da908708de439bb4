//! The trace of a known program, and that viewers can read the file.

use super::*;
use onebuf::pipeline::{Filled, Pipeline};
use onebuf_core::{
    Buffer, Cause, Device, Kernel, Queue, Signature, Source, Verdicts, args,
    fake::{Delay, FakeConfig, Sharing},
    topology::{DeviceIx, Verdict, VerdictState},
};
use onebuf_hal::{Access, MemoryKind, QueueSpec, RouteKind, SyncMethod};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const N: usize = 256;
const PLENTY: usize = 1 << 12;

fn builder() -> onebuf_core::HubBuilder {
    let builder = onebuf::builder().without(["opencl", "cuda", "hip"]);
    builder.without(["vulkan", "gl"]).verdicts(Default::default())
}

/// Two devices that share nothing, and the host.
fn hub(events: usize) -> Hub {
    let fake = |name: &str| FakeConfig {
        name: name.into(),
        shares_host_pages: Sharing::No,
        delay: Delay::Fixed(Duration::from_micros(50)),
        ..FakeConfig::default()
    };
    builder().fake(fake("one")).fake(fake("<two>")).trace(events).build().unwrap()
}

fn add(device: &Device, name: &'static str) -> Kernel {
    let source = Source::opencl_c("").with_native(name, |args| {
        args.slice_mut::<u32>(0)?.iter_mut().for_each(|x| *x += 1);
        Ok(())
    });
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
    // SAFETY: the kernel only touches elements of its slice, whatever the grid.
    #[allow(unsafe_code)]
    unsafe {
        device.program(&source).unwrap().kernel(name, signature).unwrap()
    }
}

fn launch(kernel: &Kernel, queue: &Queue, buffer: &Buffer<u32>) {
    queue.launch(kernel, [N], args![buffer.write_on(queue).unwrap()]).unwrap();
}

/// Uploads from the host, runs on both devices, and reads back.
fn program(hub: &Hub) -> Buffer<u32> {
    let [one, two] = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let buffer = hub.buffer::<u32>(N).shared_with([&one, &two]).name("signal").build().unwrap();
    let queues = [one.queue().unwrap(), two.queue().unwrap()];
    buffer.write(&[7; N]).unwrap();
    launch(&add(&one, "first"), &queues[0], &buffer);
    launch(&add(&one, "first"), &queues[0], &buffer);
    launch(&add(&two, "second"), &queues[1], &buffer);
    assert_eq!(buffer.to_vec().unwrap(), [10; N]);
    buffer
}

fn of(events: &[Event], what: What) -> Vec<&Event> {
    events.iter().filter(|event| event.what == what).collect()
}

/// Bytes and operations for each pair and cause.
type Sums = BTreeMap<(String, String, bool), (u64, u64)>;

fn ledger(hub: &Hub) -> Sums {
    let entries = hub.ledger().entries().into_iter();
    let implied = |cause| cause == Cause::Implied;
    entries.map(|e| ((e.from, e.to, implied(e.cause)), (e.bytes, e.operations))).collect()
}

fn copies(hub: &Hub, events: &[Event]) -> Sums {
    let id = |device: Option<DeviceIx>| hub.topology().node(device.unwrap()).id.clone();
    let mut sums = Sums::new();
    for event in of(events, What::Copy) {
        let key = (id(event.from), id(event.to), event.cause == Some(Cause::Implied));
        let sum = sums.entry(key).or_default();
        *sum = (sum.0 + event.bytes.unwrap(), sum.1 + 1);
    }
    sums
}

#[test]
fn a_known_program_is_there_and_nothing_else() {
    let hub = hub(PLENTY);
    let _buffer = program(&hub);
    let trace = hub.trace().unwrap();
    let events = trace.events();
    let names: Vec<&str> = of(&events, What::Launch).iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["first", "first", "second"]);
    assert_eq!(copies(&hub, &events), ledger(&hub));
    assert!(hub.ledger().implied_bytes() > 0, "the second device was meant to get a copy");
    let host = hub.host().index();
    let devices = [host, DeviceIx(1), DeviceIx(2)];
    let pairs: BTreeSet<_> =
        of(&events, What::HandOver).iter().map(|e| (e.from.unwrap(), e.device)).collect();
    assert!(pairs.contains(&(devices[1], devices[2])), "{pairs:?}");
    assert!(events.iter().all(|e| e.start <= e.end && !e.failed && e.clock == Clock::Host));
    assert!(of(&events, What::Stage).is_empty());
    assert!(of(&events, What::HandOver).iter().all(|e| e.buffer.as_deref() == Some("signal")));
    assert_eq!(trace.dropped(), 0);

    trace.clear();
    assert_eq!(trace.events(), []);
    hub.buffer::<u8>(64).build().unwrap().write(&[1; 64]).unwrap();
    let later = trace.events();
    assert_eq!((later.len(), later[0].what, later[0].bytes), (1, What::Copy, Some(64)));
}

#[test]
fn every_way_of_copying_is_told_as_the_ledger_has_it() {
    let hub = hub(PLENTY);
    let buffer = program(&hub);
    let [one, two] = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let queue = two.queue().unwrap();
    buffer.fill(1).unwrap();
    buffer.write_range(8..16, &[2; 8]).unwrap();
    buffer.batch().write(0, &[3; 4]).unwrap().write(100, &[4; 8]).unwrap().flush().unwrap();
    launch(&add(&two, "more"), &queue, &buffer);
    buffer.map_mut().unwrap()[0] = 9;
    buffer.read_async(.., vec![0; N]).unwrap().wait(hub.timeout()).unwrap();
    buffer.write_async(..8, vec![1; 8]).unwrap().wait(hub.timeout()).unwrap();
    buffer.copy_from(128, &buffer, ..64).unwrap();
    let other = hub.buffer::<u32>(N).shared_with([&one]).init(vec![5; N]).build().unwrap();
    other.copy_from(0, &buffer, 10..20).unwrap();
    onebuf_core::bridge::copy_async(&other, .., &buffer, 0).unwrap().1.wait_default().unwrap();
    onebuf_core::bridge::copy(&other, ..4, &other, 0).unwrap();
    let events = hub.trace().unwrap().events();
    assert_eq!(copies(&hub, &events), ledger(&hub));
    let names: BTreeSet<&str> = of(&events, What::Copy).iter().map(|e| e.name.as_str()).collect();
    for name in ["write", "read", "fill", "copy", "stage"] {
        assert!(names.contains(name), "{names:?} without {name}");
    }
}

#[test]
fn without_a_trace_there_is_none() {
    let hub = builder().build().unwrap();
    hub.buffer::<u8>(64).build().unwrap().fill(1).unwrap();
    assert!(hub.trace().is_none());
}

#[test]
fn the_newest_are_kept_and_the_rest_counted() {
    let hub = hub(3);
    let buffer = hub.buffer::<u8>(64).build().unwrap();
    for n in 1..=10 {
        buffer.write_range(..n, &vec![1; n]).unwrap();
    }
    let trace = hub.trace().unwrap();
    let bytes: Vec<_> = trace.events().iter().map(|event| event.bytes.unwrap()).collect();
    assert_eq!((bytes, trace.dropped()), (vec![8, 9, 10], 7));
    assert_eq!(file(&trace).other_data.dropped, 7);
}

#[test]
fn a_queue_that_times_its_work_tells_when_it_ran() {
    let hub = hub(PLENTY);
    let device = hub.device("fake:0").unwrap();
    let queue = device.queue_with(QueueSpec { profiling: true, ..QueueSpec::default() }).unwrap();
    let buffer = hub.buffer::<u32>(N).shared_with([&device]).build().unwrap();
    let kernel = add(&device, "timed");
    // Enough launches that some are queried while others run.
    (0..100).for_each(|_| launch(&kernel, &queue, &buffer));
    queue.finish().unwrap();
    let events = hub.trace().unwrap().events();
    let launches = of(&events, What::Launch);
    let (on_device, on_host): (Vec<&Event>, Vec<&Event>) =
        launches.into_iter().partition(|event| event.clock == Clock::Device);
    assert_eq!((on_host.len(), on_device.len()), (100, 100));
    for (host, device) in on_host.iter().zip(&on_device) {
        assert!(host.start <= device.start && device.start <= device.end);
        assert!(
            device.end - device.start >= Duration::from_micros(50),
            "less than the device takes"
        );
    }
    // In order, because the queue is in-order.
    assert!(on_device.windows(2).all(|pair| pair[0].end <= pair[1].start));
    check(&file(&hub.trace().unwrap()));
}

#[test]
fn queues_time_their_work_where_the_trace_wants_it() {
    for (wanted, times) in [(true, 1), (false, 0)] {
        let builder = builder().fake(FakeConfig::default()).trace(PLENTY);
        let hub = if wanted { builder.trace_devices() } else { builder }.build().unwrap();
        let device = hub.device("fake:0").unwrap();
        let (queue, kernel) = (device.queue().unwrap(), add(&device, "one"));
        let buffer = hub.buffer::<u32>(N).shared_with([&device]).build().unwrap();
        launch(&kernel, &queue, &buffer);
        queue.finish().unwrap();
        let events = hub.trace().unwrap().events();
        assert_eq!(events.iter().filter(|e| e.clock == Clock::Device).count(), times);
    }
}

#[test]
fn calls_of_libraries_are_launches() {
    use onebuf::libs::{Blas, Gemm};
    let hub = hub(PLENTY);
    let queue = hub.host().queue().unwrap();
    let [a, b, c] = [2.0, 3.0, 0.0].map(|x| hub.buffer::<f32>(4).init(vec![x; 4]).build().unwrap());
    let views = (a.read_on(&queue).unwrap(), b.read_on(&queue).unwrap());
    let blas = Blas::on(&queue).unwrap();
    blas.gemm(&Gemm::new(2, 2, 2), &views.0, &views.1, &mut c.write_on(&queue).unwrap()).unwrap();
    assert_eq!(c.to_vec().unwrap(), [12.0; 4]);
    let events = hub.trace().unwrap().events();
    let names: Vec<&str> = of(&events, What::Launch).iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["gemm"]);
}

#[cfg(feature = "tracing")]
#[test]
fn events_are_spans() {
    use std::sync::{Arc, Mutex};
    use tracing::{Event as Log, Metadata, Subscriber, field, span};

    /// The fields of the spans.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<String>>>);

    impl field::Visit for Heard {
        fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
            self.0.lock().unwrap().push(format!("{field}={value:?}"));
        }
    }

    impl Subscriber for Heard {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "onebuf" && metadata.is_span()
        }
        fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
            let mut heard = self.0.lock().unwrap();
            heard.push(attributes.metadata().name().into());
            span::Id::from_u64(heard.len() as u64)
        }
        fn record(&self, _: &span::Id, values: &span::Record<'_>) {
            values.record(&mut self.clone());
        }
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Log<'_>) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let heard = Heard::default();
    tracing::subscriber::with_default(heard.clone(), || {
        // Also without a trace.
        let hub = builder().build().unwrap();
        hub.buffer::<u8>(64).name("signal").build().unwrap().write(&[1; 64]).unwrap();
        assert!(hub.trace().is_none());
        let device = hub.device("fake:0").unwrap();
        let buffer = hub.buffer::<u32>(N).shared_with([&device]).build().unwrap();
        drop(buffer.write_on(&device.queue().unwrap()).unwrap());
        drop(buffer.map().unwrap());
    });
    let heard = heard.0.lock().unwrap();
    let copy = ["copy", "of=\"write\"", "bytes=64", "buffer=\"signal\"", "implied=false"];
    for what in copy.into_iter().chain(["hand_over", "sync=host_wait"]) {
        assert!(heard.iter().any(|line| line == what), "{what} in {heard:?}");
    }
    assert!(!heard.iter().any(|line| line == "launch"));
}

#[test]
fn a_launch_that_fails_is_told_as_one() {
    let probe = onebuf_hal::locks::Arc::new(onebuf_core::Probe::default());
    let config = FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
    let hub = builder().fake(config).trace(PLENTY).build().unwrap();
    let device = hub.device("fake:0").unwrap();
    let (queue, kernel) = (device.queue().unwrap(), add(&device, "broken"));
    let buffer = hub.buffer::<u32>(N).shared_with([&device]).build().unwrap();
    let view = buffer.write_on(&queue).unwrap();
    probe.fail_always("fake_launch", -5);
    queue.launch(&kernel, [N], args![view]).unwrap_err();
    let events = hub.trace().unwrap().events();
    let launches = of(&events, What::Launch);
    assert_eq!((launches.len(), launches[0].failed), (1, true));
}

#[test]
fn stages_are_told_with_their_frames() {
    let hub = hub(PLENTY);
    let device = hub.device("fake:0").unwrap();
    let kernel = add(&device, "plus");
    let make = |_| hub.buffer::<u32>(N).shared_with([&device]).build();
    let mut pipeline = Pipeline::builder(3, make)
        .source(|slot, frame| {
            if frame == 20 {
                return Ok(Filled::End);
            }
            slot.fill(frame as u32).map(|()| Filled::Frame)
        })
        .stage("twice", &device, |work| {
            work.queue.launch(&kernel, [N], args![work.slot.write_on(work.queue)?])
        })
        .sink(|slot, frame| {
            assert_eq!(slot.to_vec()?, [frame as u32 + 1; N]);
            Ok(())
        })
        .build()
        .unwrap();
    pipeline.run().unwrap();
    let trace = hub.trace().unwrap();
    let events = trace.events();
    for (name, frames) in [("twice", 20), ("sink", 20), ("source", 21)] {
        let stages = of(&events, What::Stage).into_iter().filter(|e| e.name == name);
        assert_eq!(stages.map(|e| e.frame.unwrap()).collect::<Vec<_>>(), Vec::from_iter(0..frames));
    }
    assert_eq!(of(&events, What::Launch).len(), 20);
    check(&file(&trace));
}

/// The uploads of a pipeline whose slots the host cannot map are in the trace by the device's clock, and run beside the kernels of earlier
/// frames. The control: with one slot nothing can.
#[test]
fn uploads_beside_kernels_are_seen() {
    let delay = Delay::Fixed(Duration::from_millis(3));
    let config = FakeConfig { delay, shares_host_pages: Sharing::Alias, ..FakeConfig::default() };
    // What the doctor would find: this fake device uses the pages themselves.
    let (known, mut verdicts) =
        (builder().fake(config.clone()).build().unwrap(), Verdicts::default());
    let verdict =
        Verdict { state: VerdictState::Proven, zero_copy: Some(true), ..Verdict::default() };
    let nodes = known.topology().nodes();
    verdicts.insert(&nodes[0], &nodes[1], RouteKind::HostPointer, verdict);
    let hub = builder().fake(config).verdicts(verdicts).trace(16 * PLENTY).trace_devices().build();
    let hub = hub.unwrap();
    let device = hub.device("fake:0").unwrap();
    let kernel = add(&device, "plus");
    let overlaps = |slots| {
        let before = hub.trace().unwrap().events().len();
        let make = |_| {
            let builder = hub.buffer::<u32>(N).shared_with([&device]).allocate_on(&device);
            builder.memory_kind(MemoryKind::Device).build()
        };
        let mut number = 0;
        let source = move |frame: &mut [u32]| {
            frame.fill(number);
            number += 1;
            Ok(if number <= 12 { Filled::Frame } else { Filled::End })
        };
        let mut pipeline = Pipeline::builder(slots, make)
            .feed(source, |slot: &Buffer<u32>| slot)
            .stage("plus", &device, |work| {
                work.queue.launch(&kernel, [N], args![work.slot.write_on(work.queue)?])
            })
            .sink(|slot, frame| {
                assert_eq!(slot.to_vec()?, [frame as u32 + 1; N]);
                Ok(())
            })
            .build()
            .unwrap();
        assert!(pipeline.explain().contains("a queue of its own uploads it"));
        pipeline.run().unwrap();
        drop(pipeline);
        let trace = hub.trace().unwrap();
        let events = trace.events().split_off(before);
        check(&file(&trace));
        let ran = |what| {
            let all = of(&events, what).into_iter();
            Vec::from_iter(all.filter(|event| event.clock == Clock::Device))
        };
        let (uploads, launches) = (ran(What::Copy), ran(What::Launch));
        assert_eq!((uploads.len(), launches.len()), (12, 12));
        assert!(uploads.iter().all(|upload| upload.bytes == Some(4 * N as u64)));
        let beside = |upload: &&&Event| {
            launches.iter().any(|launch| launch.start < upload.end && upload.start < launch.end)
        };
        uploads.iter().filter(beside).count()
    };
    // Threads of a busy machine are late, and then the two clocks are aligned less well.
    assert!((0..20).any(|_| overlaps(1) == 0), "the control");
    assert!((0..20).any(|_| overlaps(4) >= 3));
}

/// Parses the whole file and rejects unknown fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceFile {
    #[serde(rename = "displayTimeUnit")]
    unit: String,
    #[serde(rename = "otherData")]
    other_data: OtherData,
    #[serde(rename = "traceEvents")]
    events: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherData {
    schema: u32,
    program: String,
    dropped: u64,
}

#[derive(Deserialize)]
#[serde(tag = "ph", deny_unknown_fields)]
enum Line {
    M {
        name: String,
        pid: u64,
        tid: u64,
        args: BTreeMap<String, Value>,
    },
    X {
        cat: String,
        name: String,
        pid: u64,
        tid: u64,
        ts: f64,
        dur: f64,
        args: Args,
    },
    #[serde(rename = "s")]
    Start {
        id: u64,
        cat: String,
        name: String,
        pid: u64,
        tid: u64,
        ts: f64,
    },
    #[serde(rename = "f")]
    Finish {
        id: u64,
        cat: String,
        name: String,
        pid: u64,
        tid: u64,
        ts: f64,
        bp: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "that they can be read is what is tested")]
struct Args {
    device: String,
    queue: Option<u64>,
    from: Option<String>,
    from_queue: Option<u64>,
    to: Option<String>,
    bytes: Option<u64>,
    route: Option<onebuf_hal::RouteKind>,
    sync: Option<SyncMethod>,
    buffer: Option<String>,
    cause: Option<Cause>,
    frame: Option<u64>,
    #[serde(default)]
    failed: bool,
    clock: String,
}

fn file(trace: &Trace) -> TraceFile {
    let mut json = Vec::new();
    trace.write(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// Checks what viewers need, and returns the numbers of slices and arrows.
fn check(file: &TraceFile) -> (usize, usize) {
    assert_eq!((file.unit.as_str(), file.other_data.schema), ("ns", 2));
    assert_eq!(file.other_data.program, "onebuf");
    let (mut processes, mut threads) = (BTreeSet::new(), BTreeSet::new());
    let mut slices: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<(u64, u64, f64)>> = BTreeMap::new();
    for line in &file.events {
        match line {
            Line::M { name, pid, tid, args } => {
                assert_eq!(args.len(), 1);
                match name.as_str() {
                    "process_name" => assert!(processes.insert(*pid), "{pid} twice"),
                    "thread_name" => assert!(threads.insert((*pid, *tid)), "{tid} twice"),
                    "process_sort_index" | "thread_sort_index" => {}
                    other => panic!("{other}"),
                }
            }
            Line::X { cat, name, pid, tid, ts, dur, args } => {
                assert!(["launch", "hand-over", "wait", "copy", "stage"].contains(&cat.as_str()));
                assert!(!name.is_empty() && *ts >= 0.0 && *dur >= 0.0);
                assert!(["host", "device"].contains(&args.clock.as_str()));
                slices.entry((*pid, *tid)).or_default().push((*ts, ts + dur));
            }
            Line::Start { id, cat, name, pid, tid, ts }
            | Line::Finish { id, cat, name, pid, tid, ts, .. } => {
                assert_eq!((cat.as_str(), name.as_str()), ("hand-over", "hand-over"));
                arrows.entry(*id).or_default().push((*pid, *tid, *ts));
            }
        }
        if let Line::Finish { bp, .. } = line {
            assert_eq!(bp, "e");
        }
    }
    for (at, slices) in &mut slices {
        assert!(processes.contains(&at.0) && threads.contains(at), "{at:?} has no name");
        slices.sort_by(|a, b| (a.0, b.1).partial_cmp(&(b.0, a.1)).unwrap());
        assert_stacked(slices);
    }
    let inside = |(pid, tid, ts): &(u64, u64, f64)| {
        slices[&(*pid, *tid)].iter().any(|slice| (slice.0..=slice.1).contains(ts))
    };
    assert!(arrows.values().all(|ends| ends.len() == 2 && ends.iter().all(inside)));
    (slices.values().map(Vec::len).sum(), arrows.len())
}

/// Two slices of one thread are disjoint or nested.
fn assert_stacked(slices: &[(f64, f64)]) {
    let (mut open, rounding) = (Vec::<f64>::new(), 1e-4);
    for &(start, end) in slices {
        open.retain(|until| *until > start + rounding);
        assert!(open.iter().all(|until| end <= *until + rounding), "{start}..{end} in {open:?}");
        open.push(end);
    }
}

#[test]
fn the_file_is_strictly_of_the_format() {
    let hub = hub(PLENTY);
    let _buffer = program(&hub);
    let trace = hub.trace().unwrap();
    let file = file(&trace);
    let (slices, arrows) = check(&file);
    assert_eq!(slices, trace.events().len());
    assert!((1..=of(&trace.events(), What::HandOver).len()).contains(&arrows), "{arrows}");
    let named = |line: &Line| matches!(line, Line::M { args, .. } if args.get("name") == Some(&"fake:1 (<two>)".into()));
    assert!(file.events.iter().any(named));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.json");
    trace.save(&path).unwrap();
    let saved: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved["traceEvents"].as_array().unwrap().len(), file.events.len());
    assert!(trace.save(folder.path().join("absent/out.json")).is_err());
}

#[test]
fn what_overlaps_gets_lanes_of_its_own() {
    let event = |start: u64, end: u64| {
        let mut event = Event::new(What::Wait, DeviceIx(0), Some(1));
        (event.start, event.end) = (Duration::from_nanos(start), Duration::from_nanos(end));
        event
    };
    let events =
        [event(0, 10), event(0, 4), event(2, 6), event(5, 9), event(10, 11), event(10, 12)];
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|e| (e.start, std::cmp::Reverse(e.end)));
    // 0..10 holds 0..4 and then 5..9; 2..6 crosses 0..4; 10..12 holds 10..11.
    assert_eq!(lanes::assign(&sorted), [0, 0, 1, 0, 0, 0]);
}
