//! Pipelines on every pair of devices, with the number and contents of each frame checked: a thousand small frames, or ten
//! thousand with `ONEBUF_SOAK`.

use onebuf::{
    Buffer, Error, Grid, Result, args,
    fake::{Delay, FakeConfig},
    pipeline::{
        Filled, Pipeline, Work,
        sink::{Sink as _, Udp as Sender},
        source::Udp,
    },
};
use onebuf_conformance::{GROUP, Side, Step, Watchdog, machine, note, step_model};
use std::{thread, time::Duration};

const N: usize = 128;
const STEPS: [Step; 2] = [Step { mul: 3, add: 5 }, Step { mul: 5, add: 7 }];

fn frames() -> u64 {
    if std::env::var_os("ONEBUF_SOAK").is_some() { 10_000 } else { 1_000 }
}

/// The expected contents of a frame after both stages.
fn expected(frame: u64) -> Vec<u32> {
    let mut model = vec![frame as u32; N];
    STEPS.iter().for_each(|step| step_model(&mut model, *step));
    model
}

fn source(count: u64) -> impl FnMut(&Buffer<u32>, u64) -> Result<Filled> + Send {
    move |slot, frame| {
        if frame == count {
            return Ok(Filled::End);
        }
        slot.map_mut()?.fill(frame as u32);
        Ok(Filled::Frame)
    }
}

/// A stage on one side: the suite's kernel, in the pipeline's queue.
fn stage(side: &Side, step: Step) -> impl FnMut(Work<'_, Buffer<u32>>) -> Result<()> + Send {
    move |work| {
        let arguments = args![work.slot.write_on(work.queue)?, 0u32, N as u32, step.mul, step.add];
        work.queue.launch(side.kernel(), Grid::from([N]).local([GROUP]), arguments)
    }
}

fn sink(slot: &Buffer<u32>, frame: u64) -> Result<()> {
    if slot.map()?[..] == expected(frame)[..] {
        return Ok(());
    }
    Err(Error::invalid(format!("frame {frame} is not what both stages make of it")))
}

/// Real devices in pairs, and each with itself.
fn pairs_of(sides: &[Side]) -> Vec<[&Side; 2]> {
    let real: Vec<&Side> = sides.iter().filter(|s| s.device.info().api.0 != "fake").collect();
    real.iter().flat_map(|a| real.iter().map(|b| [*a, *b])).collect()
}

#[test]
fn every_frame_on_every_pair() {
    let machine = machine();
    let _watchdog = Watchdog::new("pipelines over every pair", Duration::from_secs(400));
    for [a, b] in pairs_of(&machine.sides) {
        let devices = [&a.device, &b.device];
        let make = |_| machine.hub.buffer(N).shared_with(devices).trust_declared(true).build();
        let pipeline = Pipeline::builder(4, make).source(source(frames())).sink(sink).batch(2);
        let pipeline = pipeline.stage("one", &a.device, stage(a, STEPS[0]));
        let pipeline = pipeline.stage("two", &b.device, stage(b, STEPS[1]));
        let report = pipeline.build().unwrap().run();
        let [from, to] = devices;
        let report = report.unwrap_or_else(|failure| panic!("{from} -> {to}: {failure}"));
        assert_eq!((report.frames, report.dropped, report.incomplete), (frames(), 0, 0));
        note(&format!("{from} -> {to}: {:.0} frames/s", report.frames_per_second()));
    }
}

/// Frames from the network go through a kernel of every device, in the slot in which they arrived.
#[test]
fn frames_over_udp_on_every_device() {
    const FRAMES: u64 = 100;
    let machine = machine();
    let _watchdog = Watchdog::new("pipelines over UDP", Duration::from_secs(120));
    let real = machine.sides.iter().filter(|side| side.device.info().api.0 != "fake");
    for side in real {
        let udp = Udp::bind("127.0.0.1:0").unwrap();
        let (meter, to) = (udp.meter(), udp.address().unwrap());
        let make =
            |_| machine.hub.buffer(N).shared_with([&side.device]).trust_declared(true).build();
        let check = |slot: &Buffer<u32>, frame: u64| {
            let mut model = vec![frame as u32; N];
            step_model(&mut model, STEPS[0]);
            if slot.to_vec()? == model { Ok(()) } else { Err(Error::invalid("another frame")) }
        };
        let pipeline = Pipeline::builder(4, make).feed(udp, |slot| slot).sink(check);
        let pipeline = pipeline.stage("one", &side.device, stage(side, STEPS[0]));
        let mut pipeline = pipeline.build().unwrap();
        let report = thread::scope(|threads| {
            threads.spawn(|| {
                let mut sender = Sender::connect(to).unwrap().payload(200).unwrap();
                (0..FRAMES).for_each(|frame| sender.take(&[frame as u32; N], frame).unwrap());
            });
            pipeline.run()
        });
        let report = report.unwrap_or_else(|failure| panic!("{}: {failure}", side.device));
        let counts = meter.counts();
        assert_eq!((report.frames, report.incomplete), (FRAMES, 0), "{}: {counts:?}", side.device);
        assert_eq!((counts.packets, counts.lost_packets), (3 * FRAMES, 0));
    }
}

/// A fence that is too late stops the pipeline with its own error, and the ring can be used again.
#[test]
fn a_late_device_is_a_timeout() {
    let late =
        FakeConfig { delay: Delay::Fixed(Duration::from_millis(400)), ..FakeConfig::default() };
    let hub = onebuf::builder().only(["host"]);
    let hub = hub.verdicts(Default::default()).fake(late);
    let hub = hub.timeout(Duration::from_millis(50)).build().unwrap();
    let side = Side::open(&hub.device("fake").unwrap()).unwrap();
    let make = |_| hub.buffer(N).shared_with([&side.device]).build();
    let pipeline = Pipeline::builder(2, make).source(source(100)).sink(sink);
    let mut pipeline =
        pipeline.stage("late", &side.device, stage(&side, STEPS[0])).build().unwrap();
    let failure = pipeline.run().unwrap_err();
    assert!(matches!(failure.error, Error::Timeout { .. }), "{failure}");
    assert!(failure.report.frames < 100);
}
