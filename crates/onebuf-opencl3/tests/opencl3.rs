//! A program that uses opencl3, on every OpenCL platform: its objects in onebuf, and back.

use onebuf::{CopyPolicy, Error, Hub, Probe, RouteKind, SyncMethod, doctor::Verdicts};
use onebuf_conformance::{
    Side, Step, Watchdog, absent, assert_same, assert_settled, forged_zero_copy, pages_apart,
    random_words, step_model,
};
use onebuf_opencl3::{
    OpenCl3BufferExt, OpenCl3FenceExt, OpenCl3HubExt, OpenCl3QueueExt, OpenCl3ViewExt,
};
use opencl3::{
    command_queue::CommandQueue,
    context::Context,
    device::{CL_DEVICE_TYPE_ALL, Device},
    event::{CL_COMPLETE, Event, create_user_event, set_user_event_status},
    kernel::{ExecuteKernel, Kernel},
    memory::{Buffer, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem},
    platform::get_platforms,
    program::Program,
};
use std::{
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const N: usize = 5 * 1024 + 77;
const MOMENT: Duration = Duration::from_millis(60);
const TEXT: &str = "kernel void grow(global uint *p, uint by) { p[get_global_id(0)] += by; }";

/// One test at a time, because Mesa's drivers are not all thread-safe at start-up.
fn alone() -> (MutexGuard<'static, ()>, Watchdog) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, Watchdog::new("opencl3", Duration::from_secs(240)))
}

fn hub(probe: &Arc<Probe>) -> Hub {
    let builder = || onebuf::builder().only(["opencl"]).timeout(Duration::from_secs(30));
    let base = builder().verdicts(Verdicts::default()).build().unwrap();
    builder().verdicts(forged_zero_copy(&base)).probe(probe.clone()).build().unwrap()
}

/// A program with its own context, queue and kernel on one device.
struct Owner {
    name: String,
    context: Context,
    queue: CommandQueue,
    grow: Kernel,
}

impl Owner {
    fn on(device: Device, name: String) -> Owner {
        let context = Context::from_device(&device).unwrap();
        #[allow(deprecated, reason = "clover has OpenCL 1.1")]
        let queue = CommandQueue::create_default(&context, 0).unwrap();
        let program = Program::create_and_build_from_source(&context, TEXT, "").unwrap();
        Owner { name, context, queue, grow: Kernel::create(&program, "grow").unwrap() }
    }

    fn buffer(&self, words: &[u32]) -> Buffer<u32> {
        // SAFETY: a blocking write of as many words as the buffer has.
        unsafe {
            let flags = CL_MEM_READ_WRITE;
            let mut buffer =
                Buffer::create(&self.context, flags, words.len(), ptr::null_mut()).unwrap();
            self.queue.enqueue_write_buffer(&mut buffer, 1, 0, words, &[]).unwrap();
            buffer
        }
    }

    fn read(&self, buffer: &Buffer<u32>) -> Vec<u32> {
        let mut words = vec![0; N];
        // SAFETY: a blocking read into memory of that size.
        unsafe { self.queue.enqueue_read_buffer(buffer, 1, 0, &mut words, &[]) }.unwrap();
        words
    }

    /// How many references the driver counts to its context and queue.
    fn references(&self) -> [u32; 2] {
        [self.context.reference_count().unwrap(), self.queue.reference_count().unwrap()]
    }

    /// Adds to every word, and does not wait.
    fn grow(&self, queue: &CommandQueue, buffer: &Buffer<u32>, by: u32, after: &[Event]) -> Event {
        let mut launch = ExecuteKernel::new(&self.grow);
        // SAFETY: the kernel touches its work-items' words alone, and the buffer has N.
        unsafe {
            launch.set_arg(buffer).set_arg(&by).set_global_work_size(N);
            for event in after {
                launch.set_wait_event(event);
            }
            launch.enqueue_nd_range(queue).unwrap()
        }
    }
}

/// Every platform that the program finds.
fn owners() -> Vec<Owner> {
    let platforms = get_platforms().unwrap_or_default();
    let device = |platform: &opencl3::platform::Platform| {
        let devices = platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default();
        let name = platform.name().unwrap_or_default();
        devices.first().map(|device| Owner::on(Device::new(*device), name))
    };
    let owners: Vec<_> = platforms.iter().filter_map(device).collect();
    if owners.is_empty() {
        absent("OpenCL", "opencl3 finds no device");
    }
    owners
}

/// The program's kernels and onebuf's take turns on the program's buffer, in its context and on the host. References return.
#[test]
fn buffers_are_used_in_place() {
    let _alone = alone();
    for owner in owners() {
        let probe = Probe::new();
        let hub = hub(&probe);
        let mut model = random_words(3, N);
        let mut buffer = owner.buffer(&model);
        let references = owner.references();
        let queue = hub.opencl3_queue(&owner.queue).unwrap();
        let side = Side::open(&queue.device()).unwrap();
        assert!(queue.device().id().contains('@'), "{}: a foreign context", owner.name);
        for round in 0..4 {
            owner.grow(&owner.queue, &buffer, round + 1, &[]);
            model.iter_mut().for_each(|x| *x = x.wrapping_add(round + 1));
            let before = model.clone();
            let shared = hub.opencl3_buffer(&mut buffer, &queue.fence()).unwrap().build().unwrap();
            side.step(&shared, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let seen = shared.to_vec().unwrap();
            assert_same(&seen, &model, &owner.name);
            // The control: the step changes every page.
            assert_eq!(pages_apart(&seen, &before).len(), (N * 4).div_ceil(4096));
            let sync = shared.hand_to(&queue).unwrap();
            assert!(sync <= SyncMethod::HostWait);
            drop(shared);
            assert_same(&owner.read(&buffer), &model, &owner.name);
        }
        drop((side, queue, hub));
        assert_settled(&probe, &owner.name);
        let start = Instant::now();
        // Drivers hold references of their own for a moment.
        while owner.references() > references && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(owner.references() <= references, "{}", owner.name);
    }
}

/// Asserts that only what was given away is left, soon.
#[track_caller]
fn assert_left(probe: &Probe, left: (&'static str, i64)) {
    let start = Instant::now();
    let live = || probe.live().into_iter().collect::<Vec<_>>();
    while live() != [left] && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(live(), [left]);
}

/// A user event that the program completes.
fn user_event(context: &Context) -> Event {
    Event::new(create_user_event(context.get()).unwrap())
}

fn complete(event: &Event) {
    set_user_event_status(event.get(), CL_COMPLETE).unwrap();
}

/// Work of the program is held up: onebuf's waits for it, by the queue's fence and by its event. Then the program's next command
/// waits for onebuf's events.
#[test]
fn events_order_in_both_directions() {
    let _alone = alone();
    // Queues of the other platforms do not wait for the host in every command.
    let Some(owner) = owners().into_iter().find(|owner| owner.name.contains("Portable")) else {
        return absent("PoCL", "not found");
    };
    let probe = Probe::new();
    let hub = hub(&probe);
    for by_queue in [true, false] {
        let mut buffer = owner.buffer(&[1; N]);
        let queue = hub.opencl3_queue(&owner.queue).unwrap();
        let side = Side::open(&queue.device()).unwrap();
        let gate = [user_event(&owner.context)];
        let grown = owner.grow(&owner.queue, &buffer, 4, &gate);
        owner.queue.flush().unwrap();
        let theirs = if by_queue { queue.fence() } else { hub.opencl3_event(&grown).unwrap() };
        let shared = hub.opencl3_buffer(&mut buffer, &theirs).unwrap().build().unwrap();
        side.step(&shared, Step::nth(1)).unwrap();
        let ours = side.queue.fence();
        assert!(matches!(ours.wait(MOMENT), Err(Error::Timeout { .. })), "held up");
        complete(&gate[0]);
        let mut model = vec![5; N];
        step_model(&mut model, Step::nth(1));
        let view = shared.write_on(&queue).unwrap();
        let mem = view.opencl3().unwrap();
        // The program's command waits for what onebuf has enqueued elsewhere, by events.
        let events = ours.opencl3().unwrap();
        owner.grow(&owner.queue, &mem, 7, &events);
        drop((view, mem));
        model.iter_mut().for_each(|x| *x = x.wrapping_add(7));
        assert_same(&shared.to_vec().unwrap(), &model, "both directions");
        drop((shared, theirs, ours, events));
        assert_same(&owner.read(&buffer), &model, "what the program finds");
    }
    drop(hub);
    // One event of each round was given to opencl3, which releases it.
    assert_left(&probe, ("event", 2));
}

/// onebuf's queue and buffers as opencl3's, with references that return; a buffer given up is the program's.
#[test]
fn objects_of_onebuf_are_objects_of_opencl3() {
    let _alone = alone();
    for owner in owners() {
        let probe = Probe::new();
        let hub = hub(&probe);
        let context = hub.opencl3_context(&owner.context).unwrap();
        let device = context.device();
        let ours = device.queue().unwrap();
        let memory = hub.buffer::<u32>(N).shared_with([&device]);
        let memory = memory.memory_kind(onebuf::MemoryKind::Device).build().unwrap();
        memory.write(&random_words(1, N)).unwrap();
        let mut model = random_words(1, N);
        let view = memory.write_on(&ours).unwrap();
        let (queue, mem) = (ours.opencl3().unwrap(), view.opencl3().unwrap());
        owner.grow(&queue, &mem, 9, &[]);
        drop((view, queue, mem));
        model.iter_mut().for_each(|x| *x = x.wrapping_add(9));
        assert_same(&memory.to_vec().unwrap(), &model, &owner.name);
        let given = memory.into_opencl3(&device).unwrap();
        drop((ours, device, context, hub));
        assert_same(&owner.read(&given), &model, "a buffer given up");
        drop(given);
        // It was given to opencl3, which releases it.
        assert_left(&probe, ("mem", 1));
    }
}

/// One buffer of the program for a second platform, in place; the control copies, and counts it.
#[test]
fn a_second_platform_works_in_place() {
    let _alone = alone();
    let owners = owners();
    let Some(owner) = owners.iter().find(|owner| owner.name.contains("Portable")) else {
        return absent("PoCL", "not found");
    };
    let probe = Probe::new();
    let hub = hub(&probe);
    let other = hub.device("rusticl").map(|device| Side::open(&device).unwrap());
    let Ok(other) = other else { return absent("rusticl", "not found") };
    let queue = hub.opencl3_queue(&owner.queue).unwrap();
    for route in [RouteKind::HostPointer, RouteKind::Staged] {
        let mut model = random_words(7, N);
        // Page-aligned, as the other platform needs it.
        let mut pages = vec![0u32; N + 2 * 1024];
        let start = pages.as_ptr().align_offset(4096);
        pages[start..start + N].copy_from_slice(&model);
        let at = pages[start..].as_mut_ptr().cast();
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        // SAFETY: N words, which outlive the buffer and are used through it alone.
        let mut buffer = unsafe { Buffer::create(&owner.context, flags, N, at) }.unwrap();
        let before = hub.ledger().implied_bytes();
        let fence = queue.fence();
        let staged = route == RouteKind::Staged;
        let policy = if staged { CopyPolicy::Allow } else { CopyPolicy::Forbid };
        let wrap = hub.opencl3_buffer(&mut buffer, &fence).unwrap();
        let wrap = wrap.with(|wrap| wrap.shared_with([&other.device]).route(route).copies(policy));
        let shared = wrap.build().unwrap();
        for round in 0..3 {
            other.step(&shared, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let view = shared.write_on(&queue).unwrap();
            owner.grow(&owner.queue, &view.opencl3().unwrap(), round, &[]);
            drop(view);
            model.iter_mut().for_each(|x| *x = x.wrapping_add(round));
            assert_same(&other.look(&shared).unwrap(), &model, "by the other platform");
        }
        let implied = hub.ledger().implied_bytes() - before;
        let expected = if staged { implied >= (N * 4) as u64 } else { implied == 0 };
        assert!(expected, "{implied} bytes: {}", shared.explain());
        shared.hand_to(&queue).unwrap();
        drop(shared);
        assert_same(&owner.read(&buffer), &model, "what the program finds");
    }
    drop((queue, other, hub));
    assert_settled(&probe, "onebuf");
}

/// Statuses of the driver and wrong objects are errors. opencl3 itself would panic, or pass the handle on.
#[test]
fn wrong_objects_are_told() {
    let _alone = alone();
    let Some(owner) = owners().into_iter().next() else { return };
    let none = onebuf::builder().only(["host"]).build().unwrap();
    let missing = none.opencl3_context(&owner.context).unwrap_err();
    assert!(matches!(missing, Error::Unavailable { .. }), "{missing}");
    // A hub with other drivers: the handle would mean nothing to it.
    if let Some(stub) = onebuf_conformance::stub() {
        let other = onebuf::builder().only(["opencl"]).library("opencl", stub.to_str().unwrap());
        let other = other.build().unwrap();
        let foreign = other.opencl3_queue(&owner.queue).unwrap_err();
        assert!(matches!(foreign, Error::ForeignContext { .. }), "{foreign}");
    }
    let probe = Probe::new();
    let hub = hub(&probe);
    let null = Context::new(ptr::null_mut(), &[]);
    let refused = hub.opencl3_context(&null).unwrap_err();
    assert!(refused.to_string().contains("null"), "{refused}");
    // Dropping it would panic in opencl3.
    std::mem::forget(null);
    let queue = hub.opencl3_queue(&owner.queue).unwrap();
    // SAFETY: a buffer of whole bytes, and no host memory.
    let odd =
        unsafe { Buffer::<u8>::create(&owner.context, CL_MEM_READ_WRITE, 10, ptr::null_mut()) };
    // `into` would release the object.
    let odd = std::mem::ManuallyDrop::new(odd.unwrap());
    let mut odd = Buffer::<u32>::new(odd.get());
    let refused = hub.opencl3_buffer(&mut odd, &queue.fence()).unwrap().build().unwrap_err();
    assert!(refused.to_string().contains("whole number of u32"), "{refused}");
    let host = hub.host().queue().unwrap();
    assert!(matches!(host.opencl3(), Err(Error::Unsupported { .. })));
    let bytes = hub.buffer::<u8>(4).build().unwrap();
    assert!(bytes.read_on(&host).unwrap().opencl3().is_err());
    drop((queue, host, bytes, hub));
    assert_settled(&probe, "onebuf");
}
