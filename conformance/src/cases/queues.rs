//! Queues of every kind: several, out of order, pooled, waiting for each other, profiled.

use crate::{
    Ending, Held, Machine, Side, Step, Trial, assert_same, fake_machine, forged, forged_verdicts,
    is_held, note, step_model,
};
use onebuf::{
    Buffer, Error, Queue, QueueOrder, QueuePool, QueueSpec, Result, SyncMethod, args,
    fake::{Delay, FakeConfig},
};
use std::{cell::RefCell, time::Duration};

const SECONDS: Duration = Duration::from_secs(20);
const N: usize = 300;

fn buffer(side: &Side, n: usize) -> Buffer<u32> {
    side.device.hub().buffer::<u32>(n).shared_with([&side.device]).build().unwrap()
}

/// Whether two handles refer to one queue: a launch accepts only views of its own queue.
fn same(side: &Side, a: &Queue, b: &Queue) -> bool {
    let buffer = buffer(side, 1);
    let arguments = args![buffer.write_on(a).unwrap(), 0u32, 1u32, 1u32, 0u32];
    match b.launch(side.kernel(), [1], arguments) {
        Ok(()) => true,
        Err(Error::InvalidArgument(why)) if why.contains("another queue") => false,
        Err(error) => panic!("{}: {error}", side.device),
    }
}

fn place(side: &Side, pool: &QueuePool, queue: &Queue) -> usize {
    pool.all().iter().position(|other| same(side, queue, other)).expect("a queue of the pool")
}

fn least_busy(side: &Side, pool: &QueuePool) -> usize {
    let queue = pool.least_busy();
    let at = place(side, pool, &queue);
    queue.finish().unwrap();
    at
}

pub fn round_robin_gives_each_queue_its_turn(t: &Trial<'_>) {
    t.each_device(|side| {
        let pool = side.device.queues(3, QueueSpec::default()).unwrap();
        let turns: Vec<usize> = (0..7).map(|_| place(side, &pool, &pool.round_robin())).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0], "{}", side.device);
        pool.finish().unwrap();
        let none = side.device.queues(0, QueueSpec::default());
        assert!(matches!(none, Err(Error::InvalidArgument(_))), "{}", side.device);
    });
}

pub fn least_busy_avoids_a_queue_that_is_held_up(t: &Trial<'_>) {
    t.each_holding(|_, side| {
        let device = &side.device;
        let held = Held::new(device).unwrap();
        let pool = device.queues(3, QueueSpec::default()).unwrap();
        let [first, second] = [buffer(side, 64), buffer(side, 64)];
        let hold_up = |queue: &Queue, buffer: &Buffer<u32>| {
            held.launch(queue, buffer.write_on(queue).unwrap()).unwrap();
        };
        hold_up(&pool.all()[0], &first);
        // Each queue gets a little work, and has finished it when the next is chosen.
        let places = |n| (0..n).map(|_| least_busy(side, &pool)).collect::<Vec<_>>();
        assert!(!places(6).contains(&0));
        // The control: round robin ignores the load.
        let turns: Vec<usize> = (0..3).map(|_| place(side, &pool, &pool.round_robin())).collect();
        assert!(turns.contains(&0), "{turns:?}");
        hold_up(&pool.all()[1], &second);
        pool.all()[2].finish().unwrap();
        assert_eq!(places(5), [2; 5]);
        (0..2).for_each(|_| held.let_go());
        pool.finish().unwrap();
        let mut idle = places(3);
        idle.sort_unstable();
        assert_eq!(idle, [0, 1, 2], "all idle: in turn");
    });
}

pub fn a_queue_waits_for_a_fence_of_its_own_context(t: &Trial<'_>) {
    t.each_holding(|_, side| {
        let device = &side.device;
        for spec in [QueueSpec::default(), QueueSpec::out_of_order()] {
            if spec.order == QueueOrder::OutOfOrder && !device.info().caps.out_of_order {
                continue;
            }
            let side = Side::open_with(device, spec).unwrap();
            let (waiting, free) =
                (Side::open_with(device, spec).unwrap(), Side::open(device).unwrap());
            let held = Held::new(device).unwrap();
            let buffers = [(); 3].map(|()| buffer(&side, N));
            held.launch(&side.queue, buffers[0].write_on(&side.queue).unwrap()).unwrap();
            assert_eq!(waiting.queue.wait_for(&side.queue.fence()).unwrap(), SyncMethod::Event);
            let step = |side: &Side, buffer: &Buffer<u32>| {
                side.step_view(buffer.write_on(&side.queue).unwrap(), N, Step::nth(1)).unwrap()
            };
            let (behind, beside) = (step(&waiting, &buffers[1]), step(&free, &buffers[2]));
            beside.wait(SECONDS).unwrap();
            assert!(is_held(&behind), "{spec:?}: it did not wait");
            held.let_go();
            behind.wait(SECONDS).unwrap();
            let mut model = vec![0; N];
            step_model(&mut model, Step::nth(1));
            assert_same(&buffers[1].to_vec().unwrap(), &model, "behind");
            assert_same(&buffers[0].to_vec().unwrap(), &[1; N], "before");
        }
    });
}

/// Work on one device is held, a fake one if there is one. Every queue that supports host signals waits without blocking a
/// thread, if that sync method is proven; the verdict is forged.
pub fn a_queue_waits_for_a_fence_of_another_device(t: &Trial<'_>) {
    let verdict = forged(None, Some(SyncMethod::Callback));
    let verdicts = forged_verdicts(&t.machine.hub, &verdict, |_| true);
    let machine = Machine::open(t.builder().verdicts(verdicts));
    let named = |side: &&Side| side.device.info().name == "sharing pages";
    let holds = |side: &&Side| Held::works_on(&side.device);
    let holder = machine.sides.iter().find(named).or_else(|| machine.sides.iter().find(holds));
    if let Some(first) = holder {
        let gated = |side: &&Side| {
            side.device.info().caps.host_signals && side.device.index() != first.device.index()
        };
        let gated: Vec<&Side> = machine.sides.iter().filter(gated).collect();
        gated.iter().for_each(|side| t.on(&[first, *side], "held up", || wait_behind(first, side)));
        if t.counts() {
            note(&format!("{} devices waited for another one's fence", gated.len()));
            assert!(!gated.is_empty());
        }
    }
    // With any sync method, the call works between any two devices.
    for (from, to) in crate::pairs(&machine.sides) {
        t.on(&[from, to], "", || {
            to.queue.wait_for(&from.queue.fence()).unwrap();
        });
    }
}

/// Holds work on the first device, and has a queue of the second wait for it.
fn wait_behind(first: &Side, side: &Side) {
    let (held, one) = (Held::new(&first.device).unwrap(), buffer(first, N));
    let (other, two) = (Side::open(&side.device).unwrap(), buffer(side, N));
    let view = two.write_on(&other.queue).unwrap();
    held.launch(&first.queue, one.write_on(&first.queue).unwrap()).unwrap();
    let sync_method = other.queue.wait_for(&first.queue.fence()).unwrap();
    assert!(
        (SyncMethod::Event..=SyncMethod::Callback).contains(&sync_method),
        "{}: {sync_method}",
        side.device
    );
    let behind = other.step_view(view, N, Step::nth(2)).unwrap();
    other.queue.flush().unwrap();
    assert!(is_held(&behind), "{}: it did not wait", side.device);
    held.let_go();
    behind.wait(SECONDS).unwrap();
    assert!(first.queue.fence().is_done().unwrap() || one.to_vec().unwrap() == [1; N]);
    let mut model = vec![0; N];
    step_model(&mut model, Step::nth(2));
    assert_same(&two.to_vec().unwrap(), &model, side.device.id());
}

pub fn profiles_tell_when_a_launch_ran(t: &Trial<'_>) {
    const LARGE: usize = 1 << 18;
    t.each_device(|side| {
        let timed = Side::open_with(&side.device, QueueSpec::default().profiled()).unwrap();
        let buffer = buffer(side, LARGE);
        let id = side.device.id();
        if let Some(why) = untimed(&timed, &buffer) {
            return Ending::Skipped(why);
        }
        let mut ends = Vec::new();
        for round in 0..3 {
            let view = buffer.write_on(&timed.queue).unwrap();
            let fence = timed.step_view(view, LARGE, Step::nth(round)).unwrap();
            fence.wait(SECONDS).unwrap();
            let profile = fence.profile().unwrap_or_else(|e| panic!("{id}: {e}"));
            let times =
                [profile.queued_ns, profile.submitted_ns, profile.started_ns, profile.ended_ns];
            assert!(times.is_sorted(), "{id}: {profile:?}");
            assert!(profile.run() > Duration::ZERO, "{id}: {profile:?}");
            ends.push((profile.started_ns, profile.ended_ns));
        }
        assert!(ends.is_sorted_by(|a, b| a.1 <= b.0), "{id}: one after the other, yet {ends:?}");
        let all = timed.queue.fence().profile();
        assert!(matches!(all, Err(Error::Unsupported { .. })), "{id}: {all:?}");
        let view = buffer.write_on(&side.queue).unwrap();
        let fence = side.step_view(view, LARGE, Step::nth(9)).unwrap();
        fence.wait(SECONDS).unwrap();
        let untimed = fence.profile();
        assert!(matches!(untimed, Err(Error::Unsupported { .. })), "{id}: {untimed:?}");
        Ending::Passed
    });
}

/// Returns why the driver records no times. One driver opens a profiling queue but records none; onebuf then returns an error
/// instead of zeroes.
fn untimed(timed: &Side, buffer: &Buffer<u32>) -> Option<String> {
    let view = buffer.write_on(&timed.queue).unwrap();
    let fence = timed.step_view(view, buffer.len(), Step::nth(0)).unwrap();
    fence.wait(SECONDS).unwrap();
    match fence.profile() {
        Ok(_) => None,
        Err(Error::Unsupported { needs, .. }) if needs.contains("measures them") => {
            assert_eq!(timed.device.info().api.0, "opencl");
            assert_ne!(timed.device.info().platform, "Portable Computing Language");
            Some(format!("profiles need {needs}"))
        }
        Err(error) => panic!("{}: {error}", timed.device),
    }
}

pub fn a_profile_is_busy_before_the_work_is_done(t: &Trial<'_>) {
    t.each_holding(|_, side| {
        let device = &side.device;
        let (side, held) = (
            Side::open_with(device, QueueSpec::default().profiled()).unwrap(),
            Held::new(device).unwrap(),
        );
        let buffer = buffer(&side, N);
        held.launch(&side.queue, buffer.write_on(&side.queue).unwrap()).unwrap();
        let fence = side.step_view(buffer.write_on(&side.queue).unwrap(), N, Step::nth(1)).unwrap();
        let early = fence.profile();
        assert!(matches!(early, Err(Error::Busy { .. })), "{early:?}");
        held.let_go();
        fence.wait(SECONDS).unwrap();
        assert!(fence.profile().unwrap().run() > Duration::ZERO);
    });
}

pub fn warming_up_is_a_launch_that_is_over(t: &Trial<'_>) {
    t.each_device(|side| {
        let buffer = buffer(side, N);
        let view = buffer.write_on(&side.queue).unwrap();
        let arguments = args![view, 0u32, N as u32, Step::nth(4).mul, Step::nth(4).add];
        side.queue.warm_up(side.kernel(), [320], arguments).unwrap();
        assert!(buffer.fence().unwrap().is_done().unwrap(), "{}", side.device);
        let mut model = vec![0; N];
        step_model(&mut model, Step::nth(4));
        assert_same(&buffer.to_vec().unwrap(), &model, side.device.id());
    });
}

/// Opens an out-of-order queue on a device that supports them; the others must return `Unsupported`.
pub fn out_of_order(side: &Side) -> Option<Side> {
    let opened = Side::open_with(&side.device, QueueSpec::out_of_order());
    match (opened, side.device.info().caps.out_of_order) {
        (Ok(opened), true) => Some(opened),
        (Err(Error::Unsupported { what, .. }), false) => {
            assert!(what.contains("out-of-order"), "{what}");
            None
        }
        (other, has) => panic!("{}: out of order {has}, yet {other:?}", side.device),
    }
}

pub fn out_of_order_queues_are_there_or_refused(t: &Trial<'_>) {
    let with = RefCell::new(Vec::new());
    t.each_device(|side| {
        if out_of_order(side).is_some() {
            with.borrow_mut().push(side.device.id());
        }
    });
    if t.counts() {
        let with = with.into_inner();
        note(&format!("out-of-order queues on {}", with.join(", ")));
        assert!(with.iter().any(|id| id.starts_with("fake")));
    }
}

/// The result for devices without out-of-order queues.
pub fn no_such_queues() -> Ending {
    Ending::not_applicable("the device has no out-of-order queues")
}

/// A guard on an out-of-order queue that launched nothing must not hide earlier work.
pub fn a_view_that_launched_nothing_hides_nothing(t: &Trial<'_>) {
    t.each_holding(|machine, side| {
        let (device, caps) = (&side.device, &side.device.info().caps);
        if !caps.out_of_order {
            return no_such_queues();
        }
        for &memory_kind in &caps.memory_kinds {
            let (before, held) = (Side::open(device).unwrap(), Held::new(device).unwrap());
            let [idle, after] = [QueueSpec::out_of_order(), QueueSpec::default()]
                .map(|spec| Side::open_with(device, spec).unwrap());
            let buffer =
                machine.hub.buffer::<u32>(N).shared_with([device]).memory_kind(memory_kind);
            let buffer = buffer.build().unwrap();
            held.launch(&before.queue, buffer.write_on(&before.queue).unwrap()).unwrap();
            drop(buffer.write_on(&idle.queue).unwrap());
            after.step(&buffer, Step::nth(1)).unwrap();
            assert!(is_held(&after.queue.fence()), "{memory_kind}: the work before was forgotten");
            held.let_go();
            let mut model = vec![1; N];
            step_model(&mut model, Step::nth(1));
            assert_same(&buffer.to_vec().unwrap(), &model, &memory_kind.to_string());
        }
        Ending::Passed
    });
}

/// Unordered launches run in another order than they were enqueued on the shuffling device: the control of the ordering tests.
pub fn independent_launches_are_shuffled(t: &Trial<'_>) {
    if !t.has_api("fake") {
        return;
    }
    let delay = Delay::Random { seed: 1, max: Duration::from_micros(100) };
    let machine = fake_machine(FakeConfig { delay, ..FakeConfig::default() });
    let fake = machine.side("fake:0");
    t.on(&[fake], "", || {
        let side = Side::open_with(&fake.device, QueueSpec::out_of_order().profiled()).unwrap();
        let held = Held::new(&fake.device).unwrap();
        let host_signal = buffer(&side, 1);
        held.launch(&side.queue, host_signal.write_on(&side.queue).unwrap()).unwrap();
        let buffers: Vec<Buffer<u32>> = (0..16).map(|_| buffer(&side, N)).collect();
        let start = |buffer: &Buffer<u32>| {
            side.step_view(buffer.write_on(&side.queue).unwrap(), N, Step::nth(1)).unwrap()
        };
        let fences: Vec<_> = buffers.iter().map(start).collect();
        held.let_go();
        let started = fences.iter().map(|fence| -> Result<u64> {
            fence.wait(SECONDS)?;
            Ok(fence.profile()?.started_ns)
        });
        let started: Vec<u64> = started.collect::<Result<_>>().unwrap();
        assert!(!started.is_sorted(), "sixteen launches in their own order: {started:?}");
    });
}
