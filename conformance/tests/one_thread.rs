//! Pipelines on drivers that crash with two threads: they fall back to one thread automatically. Each run is a separate
//! process, an ignored test of this program.

use onebuf::{
    Buffer, Error, Grid, Hub, Result, args,
    pipeline::{Builder, Filled, Pipeline, Work},
};
use onebuf_conformance::{GROUP, Side, Step, Watchdog, absent, step_model};
use std::{env, process::Command, time::Duration};

const N: usize = 128;
const FRAMES: u64 = 200;
const STEPS: [Step; 2] = [Step { mul: 3, add: 5 }, Step { mul: 5, add: 7 }];
const PLATFORM: &str = "ONEBUF_TEST_PLATFORM";

fn stage(side: &Side, step: Step) -> impl FnMut(Work<'_, Buffer<u32>>) -> Result<()> + Send {
    move |work| {
        let arguments = args![work.slot.write_on(work.queue)?, 0u32, N as u32, step.mul, step.add];
        work.queue.launch(side.kernel(), Grid::from([N]).local([GROUP]), arguments)
    }
}

/// Device memory: source and sink map it by the device's service queue, while each stage launches by another queue.
fn frames<'f>(hub: &'f Hub, side: &'f Side) -> Builder<'f, Buffer<u32>> {
    let make = |_| hub.buffer(N).shared_with([&side.device]).allocate_on(&side.device).build();
    Pipeline::builder(4, make)
        .source(|slot, frame| {
            if frame == FRAMES {
                return Ok(Filled::End);
            }
            slot.map_mut()?.fill(frame as u32);
            Ok(Filled::Frame)
        })
        .stage("one", &side.device, stage(side, STEPS[0]))
        .stage("two", &side.device, stage(side, STEPS[1]))
        .sink(|slot, frame| {
            let mut model = vec![frame as u32; N];
            STEPS.iter().for_each(|step| step_model(&mut model, *step));
            let right = slot.map()?[..] == model[..];
            right.then_some(()).ok_or_else(|| Error::invalid(format!("frame {frame} is wrong")))
        })
}

#[test]
#[ignore = "started by `mesa_gets_one_thread_by_itself`"]
fn runs() {
    let platform = env::var(PLATFORM).unwrap();
    let hub = onebuf::builder().without(["cuda", "hip", "vulkan", "gl"]);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    let Some(device) = hub.select(&platform).into_iter().next() else { std::process::exit(77) };
    assert!(device.info().caps.one_thread, "{:?}", device.info());
    let side = Side::open(&device).unwrap();
    let mut pipeline = frames(&hub, &side).build().unwrap();
    assert!(pipeline.explain().contains("on one thread: "), "{}", pipeline.explain());
    let report = pipeline.run().unwrap();
    assert_eq!(report.frames, FRAMES);
    let why = report.one_thread.unwrap();
    assert!(why.contains("two threads") && why.contains(device.id()), "{why}");
    // The caller can force threads at its own risk: built here, not run.
    let forced = frames(&hub, &side).threads().build().unwrap();
    assert!(!forced.explain().contains("on one thread"), "{}", forced.explain());
}

#[test]
fn mesa_gets_one_thread_by_itself() {
    const RUNS: usize = 5;
    let _watchdog = Watchdog::new("pipelines on Mesa's drivers", Duration::from_secs(300));
    for platform in ["Clover", "rusticl"] {
        for run in 0..RUNS {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "runs", "--ignored", "--nocapture"]).env(PLATFORM, platform);
            let output = command.output().unwrap();
            if output.status.code() == Some(77) {
                absent(platform, "no device of its");
                break;
            }
            let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            assert!(
                output.status.success(),
                "{platform}, run {run}: {}: {}",
                output.status,
                said.join("\n")
            );
        }
    }
}

/// Other drivers keep their threads.
#[test]
fn others_keep_their_threads() {
    let hub = onebuf::builder().without(["cuda", "hip", "vulkan", "gl"]);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    let Some(device) = hub.select("portable computing language").into_iter().next() else {
        return absent("PoCL", "no device of its");
    };
    let side = Side::open(&device).unwrap();
    let report = frames(&hub, &side).build().unwrap().run().unwrap();
    assert_eq!((report.frames, report.one_thread), (FRAMES, None));
    let report = frames(&hub, &side).one_thread().build().unwrap().run().unwrap();
    assert_eq!(report.one_thread.as_deref(), Some("asked for"));
}
