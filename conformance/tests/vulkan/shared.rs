//! A `VkQueue` that its owner and onebuf both use, and timeline semaphores in both directions. The test plays the owner.

use super::{
    N, alone, builder,
    foreign::{Made, Owner, wrap},
    machine,
};
use onebuf::{
    Buffer, CopyPolicy, Error, ForeignVulkan, Hub, Probe, Result, RouteKind, SyncMethod,
    VulkanHandles, VulkanPoint, VulkanSharedQueue, VulkanSubmission, prelude::*,
};
use onebuf_conformance::{Side, Step, assert_same, pages_apart, random_words, step_model};
use onebuf_sys::vulkan::{Device, vk, vk::Handle};
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

const SECONDS: Duration = Duration::from_secs(30);
/// Long enough for work that does not wait to run.
const MOMENT: Duration = Duration::from_millis(60);

/// The owner's queue and command pool, under one lock.
struct OwnersQueue {
    device: Arc<Device>,
    locked: Mutex<(vk::Queue, vk::CommandPool)>,
    /// How often onebuf submitted.
    submissions: AtomicUsize,
    refuses: AtomicBool,
}

impl fmt::Debug for OwnersQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the owner's queue")
    }
}

impl OwnersQueue {
    fn of(owner: &Owner) -> Arc<OwnersQueue> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(owner.family);
        // SAFETY: a live device that was created with this queue.
        let locked = unsafe {
            let queue = owner.device.raw().get_device_queue(owner.family, 0);
            (queue, owner.device.create_command_pool(&info).unwrap())
        };
        Arc::new(OwnersQueue {
            device: owner.device.clone(),
            locked: Mutex::new(locked),
            submissions: AtomicUsize::new(0),
            refuses: AtomicBool::new(false),
        })
    }

    /// Submits, while no other thread does.
    fn give(&self, waits: &[VulkanPoint], commands: &[usize], signals: &[VulkanPoint]) -> i32 {
        let split = |points: &[VulkanPoint]| -> (Vec<_>, Vec<_>) {
            let one = |point: &VulkanPoint| {
                (vk::Semaphore::from_raw(point.semaphore), point.value.unwrap())
            };
            points.iter().map(one).unzip()
        };
        let ((waits, values), (ends, end_values)) = (split(waits), split(signals));
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let commands: Vec<_> =
            commands.iter().map(|one| vk::CommandBuffer::from_raw(*one as u64)).collect();
        let mut times = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&end_values);
        let work = vk::SubmitInfo::default()
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .command_buffers(&commands)
            .signal_semaphores(&ends)
            .push_next(&mut times);
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: recorded commands, live semaphores, and the lock.
        let given = unsafe { self.device.queue_submit(locked.0, &[work], vk::Fence::null()) };
        given.map_or_else(|refused| refused.status.as_raw(), |()| 0)
    }

    /// Fills a buffer with a word, by a submission of the owner that first waits for `after`.
    fn fill(&self, made: &Made, word: u32, after: &[VulkanPoint]) {
        let commands = self.record(|commands| {
            // SAFETY: being recorded; a live buffer of whole words.
            unsafe {
                self.device.raw().cmd_fill_buffer(commands, made.buffer, 0, vk::WHOLE_SIZE, word);
            }
        });
        assert_eq!(self.give(after, &[commands.as_raw() as usize], &[]), 0);
    }

    fn record(&self, record: impl FnOnce(vk::CommandBuffer)) -> vk::CommandBuffer {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(locked.1).command_buffer_count(1);
        // SAFETY: a live pool, used under the lock.
        unsafe {
            let commands = self.device.allocate_command_buffers(&info).unwrap()[0];
            self.device
                .begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default())
                .unwrap();
            record(commands);
            self.device.end_command_buffer(commands).unwrap();
            commands
        }
    }

    fn end(&self) {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing uses the commands any longer.
        unsafe {
            self.device.raw().queue_wait_idle(locked.0).unwrap();
            self.device.destroy_command_pool(locked.1);
        }
    }
}

// SAFETY: it submits under the lock that the owner uses, too, and has the device.
unsafe impl VulkanSharedQueue for OwnersQueue {
    fn submit(&self, work: &VulkanSubmission<'_>) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::Busy { what: "the owner's queue".to_owned() });
        }
        self.submissions.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.give(work.waits, work.commands, work.signals), 0);
        Ok(())
    }

    fn raw(&self) -> usize {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner).0.as_raw() as usize
    }
}

/// A timeline semaphore of the owner.
struct OwnersTimeline(Arc<Device>, vk::Semaphore);

impl OwnersTimeline {
    fn new(device: &Arc<Device>) -> OwnersTimeline {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: a live device with timeline semaphores.
        let raw = unsafe { device.create_semaphore(&info) }.unwrap();
        OwnersTimeline(device.clone(), raw)
    }

    fn at(&self, value: u64) -> VulkanPoint {
        VulkanPoint { semaphore: self.1.as_raw(), value: Some(value) }
    }

    fn signal(&self, value: u64) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.1).value(value);
        // SAFETY: a live semaphore; the values of the tests grow.
        unsafe { self.0.raw().signal_semaphore(&info) }.unwrap();
    }

    fn end(self) {
        // SAFETY: no work uses it.
        unsafe { self.0.destroy_semaphore(self.1) };
    }
}

fn register(hub: &Hub, owner: &Owner, queue: &Arc<OwnersQueue>) -> ForeignVulkan {
    let handles = VulkanHandles { queues: &[], ..owner.handles() };
    // SAFETY: live handles, which the owner keeps; the lock excludes the owner's use of the queue.
    unsafe { hub.foreign_vulkan_shared(&handles, queue.clone()) }.unwrap()
}

/// The owner writes by its own submissions, onebuf by kernels and reads, without a wait between the two.
#[test]
fn owner_and_onebuf_take_turns() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["gl"]))) else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    let context = register(hub, &owner, &queue);
    let (side, owners) = (Side::open(&context.device()).unwrap(), context.queue().unwrap());
    let made = owner.make(N, false);
    let buffer = wrap(hub, &context, made.told(N, false, true)).unwrap();
    let mut before = vec![0; N];
    for round in 0..8 {
        let sync = buffer.hand_to(&owners).unwrap();
        assert!(sync <= SyncMethod::Event, "the owner's queue waits on the device: {sync}");
        queue.fill(&made, round + 1, &[]);
        buffer.written_until(&owners.fence()).unwrap();
        let mut model = vec![round + 1; N];
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        let seen = buffer.to_vec().unwrap();
        assert_same(&seen, &model, "the owner's fill, then a step of onebuf");
        // The control: every page differs from the last round's.
        assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
        before = seen;
    }
    // A view on the owner's queue: what the owner submits meanwhile is covered by it.
    let view = buffer.write_on(&owners).unwrap();
    assert_eq!(view.vk_buffer().unwrap().0, made.buffer.as_raw());
    queue.fill(&made, 77, &[]);
    drop(view);
    assert_eq!(*buffer.map().unwrap(), [77; N]);
    assert!(queue.submissions.load(Ordering::Relaxed) > 8, "onebuf's work goes by the owner");
    drop((buffer, side, owners, context, ours));
    queue.end();
    owner.end(vec![made]);
}

/// The owner's work is held up. Everything after it waits, and nothing before.
#[test]
fn work_of_the_owner_is_waited_for() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["gl", "opencl"])))
    else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    let context = register(hub, &owner, &queue);
    let (owners, gate) = (context.queue().unwrap(), OwnersTimeline::new(&owner.device));
    let made = owner.make(N, false);
    let buffer = wrap(hub, &context, made.told(N, false, true)).unwrap();
    made.set(&[0; N]);
    let earlier = owners.fence();
    earlier.wait(SECONDS).unwrap();
    queue.fill(&made, 5, &[gate.at(1)]);
    let fence = owners.fence();
    buffer.written_until(&fence).unwrap();
    assert!(earlier.is_done().unwrap());
    // The control: the fence does not wait for anything that is not held up.
    assert!(matches!(fence.wait(MOMENT), Err(Error::Timeout { .. })), "held up");
    assert!(!made.words(N).contains(&5));
    gate.signal(1);
    assert_eq!(*buffer.map().unwrap(), [5; N]);
    drop(fence);
    // A view on the owner's queue is an event behind the owner's work, too.
    let view = buffer.write_on(&owners).unwrap();
    queue.fill(&made, 6, &[gate.at(2)]);
    drop(view);
    let fence = buffer.fence().unwrap();
    assert!(matches!(fence.wait(MOMENT), Err(Error::Timeout { .. })), "held up");
    gate.signal(2);
    fence.wait(SECONDS).unwrap();
    assert_eq!(*buffer.map().unwrap(), [6; N]);
    drop((fence, earlier, buffer, owners, context, ours));
    queue.end();
    gate.end();
    owner.end(vec![made]);
}

/// A queue whose raw handle was given away is marked behind the caller's submissions, and before them waits for others.
#[test]
fn raw_queues_are_ordered_with_the_callers_work() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["gl", "opencl"])))
    else {
        return;
    };
    let hub = &ours.hub;
    let queue = OwnersQueue::of(&owner);
    // SAFETY: live handles, which the owner keeps. Only this thread uses the queue.
    let context = unsafe { hub.foreign_vulkan(&owner.handles()) }.unwrap();
    let (ours_there, gate) =
        (context.device().queue().unwrap(), OwnersTimeline::new(&owner.device));
    let made = owner.make(N, false);
    let buffer = wrap(hub, &context, made.told(N, false, true)).unwrap();
    buffer.fill(1).unwrap();
    let raw = ours_there.raw();
    assert_eq!(raw, VulkanSharedQueue::raw(&*queue));
    let view = buffer.write_on(&ours_there).unwrap();
    view.vk_buffer().unwrap();
    queue.fill(&made, 9, &[gate.at(1)]);
    drop(view);
    let fence = buffer.fence().unwrap();
    assert!(matches!(fence.wait(MOMENT), Err(Error::Timeout { .. })), "held up");
    gate.signal(1);
    assert_eq!(*buffer.map().unwrap(), [9; N]);
    drop((fence, buffer, ours_there, context, ours));
    queue.end();
    gate.end();
    owner.end(vec![made]);
}

/// A point of the owner's timeline is a fence; a fence of onebuf is a point that the owner's submissions wait for.
#[test]
fn semaphores_of_the_owner_are_waited_for() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["gl", "opencl"])))
    else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    let context = register(hub, &owner, &queue);
    let side = Side::open(&context.device()).unwrap();
    let (timeline, made) = (OwnersTimeline::new(&owner.device), owner.make(N, false));
    let point = |value| {
        // SAFETY: alive until the end of the test; the host signals it.
        unsafe { hub.wrap_vk_semaphore(&context, timeline.1.as_raw(), value) }.unwrap()
    };
    let first = point(3);
    let mut model = random_words(2, N);
    // SAFETY: as for `wrap`.
    let buffer = unsafe { hub.wrap_vk_buffer::<u32>(&context, made.told(N, false, true)) };
    let buffer = buffer.after(&first).build().unwrap();
    let sync = side.queue.wait_for(&first).unwrap();
    assert_eq!(sync, SyncMethod::Event, "on the device");
    assert!(!first.is_done().unwrap());
    side.step(&buffer, Step::nth(1)).unwrap();
    let stepped = side.queue.fence();
    assert!(matches!(stepped.wait(MOMENT), Err(Error::Timeout { .. })), "it waits for the owner");
    made.set(&model);
    timeline.signal(3);
    step_model(&mut model, Step::nth(1));
    assert_same(&buffer.to_vec().unwrap(), &model, "after the owner's signal");
    // Out: the owner's submission waits for a point that work of onebuf reaches.
    let held = point(4);
    side.queue.wait_for(&held).unwrap();
    side.step(&buffer, Step::nth(2)).unwrap();
    let points = side.queue.fence().vk_points(&context).unwrap();
    let waits: Vec<_> = points.iter().map(|point| point.get()).collect();
    assert_eq!(waits.len(), 1, "{points:?}");
    timeline.signal(4);
    queue.fill(&made, 13, &waits);
    buffer.written_until(&context.queue().unwrap().fence()).unwrap();
    assert_eq!(*buffer.map().unwrap(), [13; N]);
    assert!(first.vk_points(&context).unwrap().is_empty(), "it is reached");
    // Of other devices there is none.
    let other = ours.side("vulkan:0");
    let theirs = hub.buffer::<u32>(N).shared_with([&other.device]).build().unwrap();
    other.step(&theirs, Step::nth(0)).unwrap();
    match other.queue.fence().vk_points(&context) {
        Ok(none) => assert!(none.is_empty(), "reached already"),
        Err(why) => assert!(why.to_string().contains("of this VkDevice"), "{why}"),
    }
    // SAFETY: null is refused.
    let null = unsafe { hub.wrap_vk_semaphore(&context, 0, 1) }.unwrap_err();
    assert!(null.to_string().contains("null"), "{null}");
    drop((theirs, points, held, first, stepped, buffer, side, context, ours));
    queue.end();
    timeline.end();
    owner.end(vec![made]);
}

/// Memory that others import changes its owner with each hand-over, also for the application's own submissions.
#[test]
fn exported_memory_changes_its_owner() {
    let _alone = alone();
    let (Some(owner), Some(ours)) = (Owner::new(), machine(builder().without(["opencl"]))) else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    let context = register(hub, &owner, &queue);
    let (theirs, vulkan) = (Side::open(&context.device()).unwrap(), ours.side("vulkan:0"));
    let (owners, made) = (context.queue().unwrap(), owner.make(N, true));
    // SAFETY: as for `wrap`.
    let wrap = unsafe { hub.wrap_vk_buffer::<u32>(&context, made.told(N, true, false)) };
    let wrap = wrap.shared_with([&vulkan.device]).route(RouteKind::OpaqueFd);
    let buffer = wrap.copies(CopyPolicy::Forbid).build().unwrap();
    let before = hub.ledger().implied_bytes();
    for round in 0..4 {
        let view = buffer.write_on(&owners).unwrap();
        view.vk_buffer().unwrap();
        queue.fill(&made, round + 40, &[]);
        drop(view);
        let mut model = vec![round + 40; N];
        for (n, side) in (0..).zip([vulkan, &theirs, vulkan]) {
            side.step(&buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
            let other = if std::ptr::eq(side, vulkan) { &theirs } else { vulkan };
            assert_same(&other.look(&buffer).unwrap(), &model, "by a descriptor");
        }
    }
    assert_eq!(hub.ledger().implied_bytes(), before, "{}", hub.ledger());
    // A buffer of onebuf that begins in the owner's device.
    let own = hub.buffer::<u32>(N).shared_with([&context.device(), &vulkan.device]);
    let own = own.allocate_on(&context.device()).route(RouteKind::OpaqueFd).build().unwrap();
    let mut model = random_words(6, N);
    own.write(&model).unwrap();
    for (n, side) in (0..).zip([vulkan, &theirs, vulkan]) {
        side.step(&own, Step::nth(n)).unwrap();
        step_model(&mut model, Step::nth(n));
    }
    assert_same(&own.to_vec().unwrap(), &model, "allocated in the owner's device");
    drop((own, buffer, theirs, owners, context, ours));
    queue.end();
    owner.end(vec![made]);
}

/// A queue that refuses work is an error; the work is not lost, and nothing leaks.
#[test]
fn refusals_of_the_owners_queue_are_errors() {
    let _alone = alone();
    let probe = Probe::new();
    let (Some(owner), Some(ours)) =
        (Owner::new(), machine(builder().without(["gl", "opencl"]).probe(probe.clone())))
    else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    // SAFETY: live handles; there is no queue, which is refused.
    let none = unsafe { hub.foreign_vulkan(&VulkanHandles { queues: &[], ..owner.handles() }) };
    assert!(none.unwrap_err().to_string().contains("no queue"));
    // SAFETY: live handles, which the owner keeps. The queue is onebuf's alone.
    let alone = unsafe { hub.foreign_vulkan(&owner.handles()) }.unwrap();
    let missing = alone.queue().unwrap_err();
    assert!(matches!(missing, Error::Unsupported { .. }), "{missing}");
    drop(alone);
    let context = register(hub, &owner, &queue);
    let (side, made) = (Side::open(&context.device()).unwrap(), owner.make(N, false));
    let buffer: Buffer<u32> = wrap(hub, &context, made.told(N, false, true)).unwrap();
    let mut model = random_words(8, N);
    buffer.write(&model).unwrap();
    queue.refuses.store(true, Ordering::Relaxed);
    let refused = [
        side.step(&buffer, Step::nth(1)).and_then(|()| side.queue.flush()).unwrap_err(),
        context.queue().and_then(|owners| buffer.hand_to(&owners).map(drop)).unwrap_err(),
    ];
    assert!(refused.iter().all(|why| matches!(why, Error::Busy { .. })), "{refused:?}");
    queue.refuses.store(false, Ordering::Relaxed);
    step_model(&mut model, Step::nth(1));
    assert_same(&buffer.to_vec().unwrap(), &model, "after the refusals");
    drop((buffer, side, context, ours));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
    queue.end();
    owner.end(vec![made]);
}

/// Semaphores that work in the owner's queue waited for are destroyed only behind that work.
#[test]
fn semaphores_outlive_the_owners_work() {
    let _alone = alone();
    let probe = Probe::new();
    let (Some(owner), Some(ours)) =
        (Owner::new(), machine(builder().without(["gl", "opencl"]).probe(probe.clone())))
    else {
        return;
    };
    let (hub, queue) = (&ours.hub, OwnersQueue::of(&owner));
    let (gate, made) = (OwnersTimeline::new(&owner.device), owner.make(N, false));
    let semaphores = || probe.live().get("semaphore").copied().unwrap_or(0);
    let before = semaphores();
    let mut model = random_words(9, N);
    made.set(&model);
    for round in 0..60 {
        let context = register(hub, &owner, &queue);
        let (side, owners) = (Side::open(&context.device()).unwrap(), context.queue().unwrap());
        let buffer = wrap(hub, &context, made.told(N, false, true)).unwrap();
        side.step(&buffer, Step::nth(round)).unwrap();
        step_model(&mut model, Step::nth(round));
        // The owner's queue waits for the step, by a semaphore of onebuf.
        buffer.hand_to(&owners).unwrap();
        assert_same(&buffer.to_vec().unwrap(), &model, "a device of one round");
        drop((buffer, side, owners, context));
        assert_eq!(semaphores(), before, "round {round}");
    }
    let context = register(hub, &owner, &queue);
    drop(context.queue().unwrap());
    queue.fill(&made, 21, &[gate.at(1)]);
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| drop(context));
        std::thread::sleep(MOMENT);
        assert!(semaphores() > before, "the owner's work is held up");
        gate.signal(1);
        dropped.join().unwrap();
    });
    assert_eq!(semaphores(), before);
    queue.end();
    assert_eq!(made.words(N), [21; N]);
    drop(ours);
    gate.end();
    owner.end(vec![made]);
}
