//! Senders are killed in the middle of frames, and others take over. Every frame that is complete is one sender's frame.

use crate::{
    Chaos,
    child::{Process, SOON},
};
use onebuf::{
    Buffer, Error, Grid, Result, args,
    pipeline::{
        Pipeline, Work,
        sink::{Sink as _, Udp as Sender},
        source::Udp,
    },
};
use onebuf_conformance::{GROUP, Side, Step, step_model};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Words of a frame: many packets, so that most kills are in the middle of one.
const N: usize = 16 << 10;
const PAYLOAD: usize = 1024;
/// How fast a sender sends.
const BYTES_PER_S: f64 = 40e6;
/// A sender that is quiet for so long is replaced.
const TAKEOVER_AFTER: Duration = Duration::from_millis(100);
const STEPS: [Step; 2] = [Step { mul: 3, add: 5 }, Step { mul: 5, add: 7 }];

/// The part of a sender: frames whose words count from a number that no other frame has.
pub fn send(to: &str, is_over: impl Fn() -> bool) {
    let sender = Sender::connect(to).expect("an address").stream(std::process::id());
    let mut sender = sender.payload(PAYLOAD).expect("a size").rate(BYTES_PER_S).expect("a rate");
    let mut first = std::process::id().wrapping_mul(0x9e37_79b9);
    while !is_over() {
        first = first.wrapping_add(0x0101_0101);
        let frame: Vec<u32> = (0..N as u32).map(|i| first.wrapping_add(i)).collect();
        sender.take(&frame, 0).expect("it can be sent");
    }
    sender.finish().expect("it can be sent");
}

/// What both stages make of a frame.
fn computed(mut frame: Vec<u32>) -> Vec<u32> {
    STEPS.iter().for_each(|step| step_model(&mut frame, *step));
    frame
}

/// Whether all words come from one frame, after both stages: they are linear, so neighbours have one distance.
fn is_one_frame(words: &[u32]) -> bool {
    let apart = |two: &[u32]| two[1].wrapping_sub(two[0]);
    let wanted = apart(&computed(vec![0, 1]));
    words.windows(2).all(|two| apart(two) == wanted)
}

#[test]
fn words_of_another_frame_are_noticed() {
    let frame = |first: u32| computed((first..first + N as u32).collect());
    let mut words = frame(7);
    assert!(is_one_frame(&words));
    words[N / 2..].copy_from_slice(&frame(9)[N / 2..]);
    assert!(!is_one_frame(&words));
}

fn stage(side: &Side, step: Step) -> impl FnMut(Work<'_, Buffer<u32>>) -> Result<()> + Send {
    move |work| {
        let arguments = args![work.slot.write_on(work.queue)?, 0u32, N as u32, step.mul, step.add];
        work.queue.launch(side.kernel(), Grid::from([N]).local([GROUP]), arguments)
    }
}

/// Receives through two devices while senders come and go.
pub fn are_killed(chaos: &mut Chaos<'_>) {
    let devices = [chaos.any_side().device.clone(), chaos.any_side().device.clone()];
    let [a, b] = devices.each_ref().map(|device| &chaos.machine.sides[device.index().get()]);
    let udp = Udp::bind("127.0.0.1:0").unwrap().takeover_after(TAKEOVER_AFTER);
    let (to, meter, udp) = (udp.address().unwrap().to_string(), udp.meter(), udp.timeout(SOON));
    let kills = 1 + chaos.random.below(3);
    let pauses: Vec<Duration> = (0..kills).map(|_| chaos.pause(150)).collect();
    let (hub, frames, over) = (&chaos.machine.hub, AtomicU64::new(0), AtomicBool::new(false));
    let make = |_| hub.buffer(N).shared_with(&devices).trust_declared(true).build();
    let check = |slot: &Buffer<u32>, _: u64| {
        frames.fetch_add(1, Ordering::Relaxed);
        let fits = is_one_frame(&slot.to_vec()?);
        if fits { Ok(()) } else { Err(Error::invalid("words of two frames in one")) }
    };
    let pipeline = Pipeline::builder(4, make).feed(udp, |slot| slot).sink(check);
    let pipeline = pipeline.stage("one", &a.device, stage(a, STEPS[0]));
    let pipeline = pipeline.stage("two", &b.device, stage(b, STEPS[1]));
    let mut pipeline = pipeline.build().unwrap();
    let report = thread::scope(|threads| {
        threads.spawn(|| {
            let wait = |reached: &dyn Fn() -> bool| await_progress(reached, &over);
            for (before, pause) in (0..).zip(&pauses) {
                let sender = Process::start("sender", &to);
                // Each is received before it is killed: the first at once, the next ones when the one before is quiet.
                wait(&|| meter.counts().packets > 0 && meter.counts().takeovers >= before);
                thread::sleep(*pause);
                sender.kill();
            }
            let last = Process::start("sender", &to);
            wait(&|| meter.counts().takeovers >= kills as u64);
            let wanted = frames.load(Ordering::Relaxed) + 10;
            wait(&|| frames.load(Ordering::Relaxed) >= wanted);
            last.finish();
            // Its end may be lost, as any packet on a busy machine: another sender takes over then, and ends in its turn.
            while !ends_within(&over, Duration::from_secs(3)) {
                let another = Process::start("sender", &to);
                ends_within(&over, 4 * TAKEOVER_AFTER);
                another.finish();
            }
        });
        let report = pipeline.run();
        over.store(true, Ordering::Relaxed);
        report
    });
    let report = report.unwrap_or_else(|failure| panic!("{} -> {}: {failure}", a.device, b.device));
    chaos.figures.frames += report.frames;
    chaos.figures.incomplete_frames += report.incomplete;
    // The host receives a frame, and checks it.
    let host = chaos.machine.hub.host();
    let way = [&host, &a.device, &b.device, &host];
    let changes = way.windows(2).filter(|two| two[0].index() != two[1].index()).count();
    chaos.figures.hand_overs += report.frames * changes as u64;
    chaos.figures.killed_senders += kills as u64;
}

/// Waits until something is reached, or the pipeline has ended: it reports why.
fn await_progress(reached: &dyn Fn() -> bool, over: &AtomicBool) {
    while !reached() && !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the end of the pipeline; false if it goes on after this time.
fn ends_within(over: &AtomicBool, time: Duration) -> bool {
    let start = Instant::now();
    await_progress(&|| start.elapsed() >= time, over);
    over.load(Ordering::Relaxed)
}
