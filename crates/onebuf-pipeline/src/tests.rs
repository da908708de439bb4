//! Behaviour that does not depend on the device, tested on the host: order, drops, failures, stops.

use super::*;
use onebuf_core::{
    Buffer, Hub, Verdicts,
    fake::{FakeConfig, Sharing},
    topology::{Verdict, VerdictState},
};
use onebuf_hal::{PhysicalId, RouteKind};
use std::{sync::Mutex, thread};

const N: usize = 64;

fn hub() -> Hub {
    let builder = onebuf::builder().without(["opencl", "cuda", "hip"]);
    builder.without(["vulkan", "gl"]).verdicts(Default::default()).build().unwrap()
}

/// Slots of one buffer on the host.
fn ring<'f>(hub: &'f Hub, depth: usize) -> Builder<'f, Buffer<u32>> {
    let host = hub.host();
    Pipeline::builder(depth, move |_| hub.buffer(N).shared_with([&host]).build())
}

/// A source of `count` frames that fills each with its number.
fn numbers(count: u64) -> impl FnMut(&Buffer<u32>, u64) -> Result<Filled> + Send {
    move |slot, frame| {
        if frame == count {
            return Ok(Filled::End);
        }
        slot.fill(frame as u32)?;
        Ok(Filled::Frame)
    }
}

/// A stage whose result shows how often, and in which order, it ran.
fn add(by: u32) -> impl FnMut(Work<'_, Buffer<u32>>) -> Result<()> + Send {
    move |work| {
        work.slot.map_mut()?.iter_mut().for_each(|x| *x = x.wrapping_mul(3).wrapping_add(by));
        Ok(())
    }
}

/// The result of two such stages on a frame.
fn expected(frame: u64) -> u32 {
    (frame as u32).wrapping_mul(9).wrapping_add(3 * 5 + 7)
}

/// A sink that checks contents and records which frames arrived.
fn checked(seen: &Mutex<Vec<u64>>) -> impl FnMut(&Buffer<u32>, u64) -> Result<()> + Send + '_ {
    |slot, frame| {
        let wrong = slot.to_vec()?.into_iter().find(|&x| x != expected(frame));
        if let Some(wrong) = wrong {
            return Err(Error::invalid(format!("{wrong} in frame {frame}")));
        }
        seen.lock().unwrap().push(frame);
        Ok(())
    }
}

fn two_stages<'f>(hub: &'f Hub, depth: usize) -> Builder<'f, Buffer<u32>> {
    let host = hub.host();
    ring(hub, depth).stage("first", &host, add(5)).stage("second", &host, add(7))
}

#[test]
fn every_frame_in_its_order_and_again() {
    let hub = hub();
    let shapes = [(1, 1), (2, 1), (3, 2), (8, 8), (5, 3)];
    for (one_thread, (depth, batch)) in
        [false, true].into_iter().flat_map(|t| shapes.map(|s| (t, s)))
    {
        let seen = Mutex::default();
        let mut pipeline = two_stages(&hub, depth).batch(batch);
        if one_thread {
            pipeline = pipeline.one_thread();
        }
        let mut pipeline = pipeline.source(numbers(500)).sink(checked(&seen)).build().unwrap();
        assert_eq!(pipeline.slots().len(), depth);
        for _ in 0..2 {
            let report = pipeline.run().unwrap();
            assert_eq!(seen.lock().unwrap().drain(..).collect::<Vec<_>>(), Vec::from_iter(0..500));
            assert_eq!((report.frames, report.dropped, report.on_the_way), (500, 0, 0));
            assert_eq!(report.stages.iter().map(|s| s.frames).collect::<Vec<_>>(), [500, 500]);
            assert!(report.latency.p50 <= report.latency.p99 && report.latency.p50.is_some());
        }
    }
}

/// Each of the checks above can fail.
#[test]
fn a_stage_that_is_left_out_is_found_out() {
    let (hub, seen) = (hub(), Mutex::default());
    let host = hub.host();
    let half = ring(&hub, 2).stage("first", &host, add(5));
    let failure = half.source(numbers(2)).sink(checked(&seen)).build().unwrap().run().unwrap_err();
    assert_eq!((&*failure.at, failure.frame), ("sink", 0));
}

#[test]
fn what_is_too_much_is_dropped_and_counted() {
    let hub = hub();
    for when_full in [WhenFull::DropOldest, WhenFull::DropNewest] {
        let seen = Mutex::default();
        // The sink blocks until the source has ended, so only the slots can hold frames.
        let (ended, go) = std::sync::mpsc::channel::<()>();
        let mut ended = Some(ended);
        let mut source = numbers(100);
        let source = move |slot: &Buffer<u32>, frame| {
            let filled = source(slot, frame)?;
            if filled == Filled::End {
                drop(ended.take());
            }
            Ok(filled)
        };
        let mut check = checked(&seen);
        let sink = move |slot: &Buffer<u32>, frame| {
            let _ = go.recv(); // ends when the sender is dropped
            check(slot, frame)
        };
        let pipeline = two_stages(&hub, 4).when_full(when_full).source(source).sink(sink);
        let report = pipeline.build().unwrap().run().unwrap();
        let seen = seen.into_inner().unwrap();
        assert_eq!(report.frames + report.dropped, 100, "{when_full:?}");
        assert_eq!(seen.len() as u64, report.frames);
        assert!(report.dropped >= 95 && seen.is_sorted(), "{when_full:?}: {seen:?}");
    }
}

#[test]
fn incomplete_frames_are_not_passed_on() {
    let (hub, seen) = (hub(), Mutex::default());
    let mut fill = numbers(30);
    let source = move |slot: &Buffer<u32>, frame| match fill(slot, frame)? {
        Filled::Frame if frame % 3 == 1 => Ok(Filled::Incomplete),
        other => Ok(other),
    };
    let pipeline = two_stages(&hub, 2).source(source).sink(checked(&seen));
    let report = pipeline.build().unwrap().run().unwrap();
    assert_eq!((report.frames, report.incomplete), (20, 10));
    assert!(seen.into_inner().unwrap().iter().all(|frame| frame % 3 != 1));
}

#[test]
fn a_stage_returns_the_applications_own_error() {
    #[derive(Debug, PartialEq)]
    struct TooLoud(u32);
    impl std::fmt::Display for TooLoud {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} dB are too loud", self.0)
        }
    }
    impl std::error::Error for TooLoud {}
    let (hub, seen) = (hub(), Mutex::default());
    let pipeline = ring(&hub, 2)
        .source(numbers(10))
        .stage("listen", &hub.host(), |_| Err(Error::application(TooLoud(120))))
        .sink(checked(&seen));
    let failure = pipeline.build().unwrap().run().unwrap_err();
    let Error::Application(error) = &failure.error else { panic!("{failure}") };
    assert_eq!(error.downcast_ref(), Some(&TooLoud(120)));
    assert!(error.downcast_ref::<std::fmt::Error>().is_none());
    assert!(failure.to_string().contains("120 dB are too loud"), "{failure}");
}

#[test]
fn a_failure_anywhere_stops_everything_and_is_told() {
    let hub = hub();
    let places = ["source", "first", "second", "sink"];
    for (at, one_thread) in places.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let seen = Mutex::default();
        let fails = |here: &str, frame: u64| -> Result<()> {
            if here == at && frame == 7 { Err(Error::invalid("on purpose")) } else { Ok(()) }
        };
        let (host, mut fill) = (hub.host(), numbers(1000));
        let (mut one, mut two, mut check) = (add(5), add(7), checked(&seen));
        let pipeline = ring(&hub, 3)
            .source(|slot, frame| fails("source", frame).and_then(|()| fill(slot, frame)))
            .stage("first", &host, |work| fails("first", work.frame).and_then(|()| one(work)))
            .stage("second", &host, |work| fails("second", work.frame).and_then(|()| two(work)))
            .sink(|slot, frame| fails("sink", frame).and_then(|()| check(slot, frame)));
        let pipeline = if one_thread { pipeline.one_thread() } else { pipeline };
        let failure = pipeline.build().unwrap().run().unwrap_err();
        assert_eq!((&*failure.at, failure.frame), (at, 7), "{failure}");
        assert!(matches!(failure.error, Error::InvalidArgument(_)) && failure.report.frames <= 7);
        assert_eq!(Error::from(failure), Error::invalid("on purpose"));
        let seen = seen.lock().unwrap();
        assert_eq!(*seen, Vec::from_iter(0..seen.len() as u64), "no gap");
    }
}

#[test]
fn it_stops_when_asked_and_what_was_on_its_way_comes_out() {
    let (hub, seen) = (hub(), Mutex::default());
    let pipeline = two_stages(&hub, 3).source(numbers(u64::MAX)).sink(checked(&seen));
    let mut pipeline = pipeline.build().unwrap();
    let handle = pipeline.handle();
    let report = thread::scope(|threads| {
        threads.spawn(|| {
            while handle.report().frames < 10 {
                thread::yield_now();
            }
            handle.stop();
        });
        pipeline.run().unwrap()
    });
    assert!(report.frames >= 10 && report.on_the_way == 0, "{report:?}");
    assert_eq!(report, Report { elapsed: report.elapsed, ..handle.report() });
    let seen = seen.lock().unwrap();
    assert_eq!(*seen, Vec::from_iter(0..report.frames), "the sink had all that entered");
}

#[test]
fn a_source_with_nothing_to_give_can_be_stopped() {
    let hub = hub();
    let pipeline = ring(&hub, 2).source(|_, _| Ok(Filled::Idle)).sink(|_, _| Ok(()));
    let mut pipeline = pipeline.build().unwrap();
    let handle = pipeline.handle();
    thread::scope(|threads| {
        threads.spawn(|| handle.stop());
        assert_eq!(pipeline.run().unwrap().frames, 0);
    });
}

#[test]
fn a_panic_stops_the_others_too() {
    let hub = hub();
    let host = hub.host();
    let pipeline = ring(&hub, 2).source(numbers(u64::MAX)).sink(|_, _| Ok(()));
    let mut pipeline = pipeline.stage("bad", &host, |_| panic!("on purpose")).build().unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pipeline.run()));
    assert!(ended.is_err());
}

#[test]
fn what_cannot_be_a_pipeline_is_refused() {
    let hub = hub();
    let whole = |depth| ring(&hub, depth).source(numbers(1)).sink(|_, _| Ok(()));
    let says = |builder: Builder<'_, Buffer<u32>>, what: &str| {
        let refused = builder.build().map(drop).unwrap_err();
        assert!(matches!(&refused, Error::InvalidArgument(why) if why.contains(what)), "{refused}");
    };
    says(ring(&hub, 1).source(numbers(1)), "without a sink");
    says(ring(&hub, 1).sink(|_, _| Ok(())), "without a source");
    says(whole(0), "at least one slot");
    says(whole(4).batch(5), "a batch of 5");
    says(whole(4).batch(0), "a batch of 0");
    assert_eq!(whole(4).build().unwrap().batch(), 1, "one device has nothing to change to");
}

/// A device with `one_thread` gets one thread, with the reason in the report; the caller can override it.
#[test]
fn a_driver_that_two_threads_crash_gets_one() {
    let fake = |one_thread| FakeConfig { one_thread, ..FakeConfig::default() };
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.verdicts(Default::default()).fake(fake(true)).fake(fake(false)).build().unwrap();
    let [fragile, sound] = ["fake:0", "fake:1"].map(|id| hub.device(id).unwrap());
    let run = |device: &onebuf_core::Device, how: fn(Builder<'_, ()>) -> Builder<'_, ()>| {
        let (here, threads) = (std::thread::current().id(), Mutex::new(Vec::new()));
        let note = || threads.lock().unwrap().push(std::thread::current().id());
        let pipeline = Pipeline::builder(2, |_| Ok(()))
            .source(|_, frame| Ok(if frame < 3 { Filled::Frame } else { Filled::End }))
            .stage("stage", device, |_| {
                note();
                Ok(())
            })
            .sink(|_, _| Ok(()));
        let mut pipeline = how(pipeline).build().unwrap();
        let (explained, report) = (pipeline.explain(), pipeline.run().unwrap());
        drop(pipeline);
        let alone = threads.into_inner().unwrap().iter().all(|thread| *thread == here);
        assert_eq!(alone, report.one_thread.is_some());
        assert_eq!(alone, explained.contains("on one thread: "), "{explained}");
        report.one_thread
    };
    let why = run(&fragile, |pipeline| pipeline).unwrap();
    assert!(why.contains("fake:0") && why.contains("two threads"), "{why}");
    assert_eq!(run(&fragile, |pipeline| pipeline.threads()), None);
    assert_eq!(run(&sound, |pipeline| pipeline), None);
    assert_eq!(run(&sound, |pipeline| pipeline.one_thread()).as_deref(), Some("asked for"));
}

/// With one thread, too, frames do not wait for later ones that the source may never deliver. An idle source is called again
/// with the same slot.
#[test]
fn frames_come_out_while_the_source_has_none() {
    let hub = hub();
    for one_thread in [false, true] {
        let seen = Mutex::new(Vec::new());
        let mut asked = Vec::new();
        // The second burst arrives after the first has left the pipeline.
        let source = |slot: &Buffer<u32>, frame: u64| {
            let slot_is = std::ptr::from_ref(slot).addr();
            if frame == 2 && seen.lock().unwrap().len() < 2 {
                asked.push(slot_is);
                thread::sleep(std::time::Duration::from_millis(1));
                return Ok(Filled::Idle);
            }
            if frame == 2 {
                assert!(asked.iter().all(|&other| other == slot_is), "one slot until it is filled");
            }
            numbers(5)(slot, frame)
        };
        let pipeline = two_stages(&hub, 4).source(source).sink(checked(&seen));
        let pipeline = if one_thread { pipeline.one_thread() } else { pipeline };
        let report = pipeline.build().unwrap().run().unwrap();
        assert_eq!((report.frames, &*seen.lock().unwrap()), (5, &vec![0, 1, 2, 3, 4]));
    }
}

/// Two fake devices of one chip, between which a change takes as long as given: a made-up verdict, whose physical twin is in
/// `conformance/tests/twins.rs`. As on an NVIDIA GPU, the first device exports no memory.
fn two_of_one_chip(handoff_us: f64) -> Hub {
    let physical = PhysicalId { uuid: Some([7; 16]), ..PhysicalId::default() };
    let build = |verdicts: Verdicts| {
        let fake =
            || FakeConfig { physical, shares_host_pages: Sharing::Alias, ..FakeConfig::default() };
        let builder = onebuf::builder().only(["host"]).fake(fake()).fake(fake());
        builder.verdicts(verdicts).build().unwrap()
    };
    let (known, mut verdicts) = (build(Verdicts::default()), Verdicts::default());
    let nodes = known.topology().nodes();
    let verdict = Verdict {
        state: VerdictState::Proven,
        zero_copy: Some(true),
        handoff_us: Some(handoff_us),
        ..Verdict::default()
    };
    for (from, to) in [(0, 1), (0, 2), (2, 1)] {
        verdicts.insert(&nodes[from], &nodes[to], RouteKind::HostPointer, verdict.clone());
    }
    build(verdicts)
}

/// Batches without a given size, on two APIs of one chip: the size after a run, and the frames that came out.
fn batch_after_a_run(hub: &Hub, depth: usize, frames: u64) -> (usize, String) {
    let [first, second] = [1, 2].map(|at| hub.devices()[at].clone());
    let slot = {
        let devices = [first.clone(), second.clone()];
        move |_| hub.buffer::<u32>(N).shared_with(&devices).build()
    };
    let (seen, touch) = (Mutex::default(), |by: u32| {
        move |work: Work<'_, Buffer<u32>>| {
            drop(work.slot.write_on(work.queue)?);
            add(by)(work)
        }
    });
    let builder = Pipeline::builder(depth, slot).stage("first", &first, touch(5));
    let builder = builder.stage("second", &second, touch(7));
    let mut pipeline = builder.source(numbers(frames)).sink(checked(&seen)).build().unwrap();
    assert_eq!((pipeline.batch(), pipeline.handle().batch()), (1, 1), "not known yet");
    pipeline.run().unwrap();
    let found = (pipeline.batch(), pipeline.explain());
    drop(pipeline);
    assert_eq!(seen.into_inner().unwrap(), Vec::from_iter(0..frames));
    found
}

#[test]
fn the_first_frames_show_how_large_batches_are() {
    // Nothing that the stages do here takes as long as ten changes.
    let slow = two_of_one_chip(1e6);
    let (batch, why) = batch_after_a_run(&slow, 16, 40);
    assert_eq!(batch, 8, "{why}");
    assert!(why.contains("batches of 8: a change of API takes 1.0s, the stages "), "{why}");
    assert_eq!(batch_after_a_run(&slow, 6, 40).0, 3, "half of the ring");
    let (batch, why) = batch_after_a_run(&slow, 16, 3);
    assert_eq!(batch, 1, "too few frames to know");
    assert!(why.contains("the first frames show"), "{why}");
    // A change that costs nothing is not batched.
    assert_eq!(batch_after_a_run(&two_of_one_chip(1e-3), 16, 40).0, 1);
}
