//! Guards, fences and queues under many thread schedules: in every schedule the data is correct, errors are reported, and no
//! thread waits for ever.
//!
//! Shuttle prints the schedule of a failure; `shuttle::replay` runs it again. Empty unless built with
//! `--cfg onebuf_shuttle`, see `docs/testing.md`.
#![cfg(onebuf_shuttle)]

mod disorder;
mod leases;
mod pools;

use onebuf::{
    Access, Buffer, BufferBuilder, Device, Error, Hub, Kernel, NativeArgs, Queue, Result,
    RouteKind, Signature, Source, SyncMethod, args,
    doctor::Verdicts,
    fake::{FakeConfig, Sharing},
};
use shuttle::{
    Config, Runner, future,
    scheduler::{PctScheduler, RandomScheduler},
    sync::{Arc, Mutex},
    thread,
};
use std::time::Duration;

/// Schedules per scenario, kind of sharing and scheduler.
const ROUNDS: usize = 300;
/// The number of preemptions up to which the PCT scheduler reliably finds a bug.
const DEPTH: usize = 3;
/// Several elements, so that a kernel that is overtaken leaves them different.
const N: usize = 8;
const SOON: Duration = Duration::from_secs(30);

/// How the two devices access one buffer.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The host's pages, in place: only fences separate the kernels.
    Pages,
    /// The host's pages, through a copy that each hand-over refreshes.
    Shadows,
    /// One device's memory, which the other accesses through the first one's mapping.
    Mapped,
    /// Separate replicas, updated by staged copies.
    Staged,
    /// Like `Mapped`, but only the calling thread can wait.
    HostWaits,
}

const WAYS: [Way; 5] = [Way::Pages, Way::Shadows, Way::Mapped, Way::Staged, Way::HostWaits];

/// Runs a scenario for every kind of sharing, under both schedulers.
fn check(scenario: fn(World)) {
    for way in WAYS {
        let mut config = Config::new();
        config.stack_size = 1 << 18; // building a hub needs more than the default
        let run = move || scenario(World::new(way));
        Runner::new(RandomScheduler::new(ROUNDS), config.clone()).run(run);
        Runner::new(PctScheduler::new(DEPTH, ROUNDS), config).run(run);
    }
}

/// Two fake devices.
struct World {
    hub: Hub,
    a: Side,
    b: Side,
    way: Way,
}

impl World {
    fn new(way: Way) -> Self {
        let sharing = if matches!(way, Way::Pages) { Sharing::Alias } else { Sharing::Shadow };
        let host_signals = !matches!(way, Way::HostWaits);
        let fake = || FakeConfig { shares_host_pages: sharing, host_signals, ..Default::default() };
        let hub = onebuf::builder()
            .without(["opencl", "vulkan", "gl"])
            .verdicts(Verdicts::default())
            .timeout(SOON);
        let hub = hub.fake(fake()).fake(fake()).build().unwrap();
        let side = |id| Side::new(&hub.device(id).unwrap());
        World { a: side("fake:0"), b: side("fake:1"), hub, way }
    }

    /// A zeroed buffer that both devices share.
    fn buffer(&self) -> Buffer<u32> {
        let devices = [&self.a.device, &self.b.device];
        let builder = self.hub.buffer(N).shared_with(devices).trust_declared(true);
        let builder: BufferBuilder<'_, u32> = match self.way {
            Way::Pages | Way::Shadows => builder.allocate_on(&self.hub.host()),
            Way::Mapped | Way::HostWaits => builder.allocate_on(&self.a.device),
            Way::Staged => builder.route(RouteKind::Staged),
        };
        builder.build().unwrap()
    }
}

/// A queue and its kernels. Clones share the queue, and what its `look` kernel saw.
#[derive(Clone)]
struct Side {
    device: Device,
    queue: Queue,
    set: Kernel,
    add: Kernel,
    look: Kernel,
    fail: Kernel,
    seen: Arc<Mutex<Vec<u32>>>,
}

impl Side {
    fn new(device: &Device) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let source = Source::default()
            .with_native("set", set)
            .with_native("add", add)
            .with_native("fail", |_| Err(Error::invalid("as it was told")))
            .with_native("look", move |args| {
                let value = equal(args.slice::<u32>(0)?)?;
                log.lock().unwrap().push(value);
                Ok(())
            });
        let program = device.program(&source).unwrap();
        // SAFETY: `NativeArgs` keeps these functions in bounds and to their accesses.
        let kernel = |name, signature| unsafe { program.kernel(name, signature) }.unwrap();
        let writes = || Signature::new().buffer::<u32>(Access::ReadWrite);
        Side {
            device: device.clone(),
            queue: device.queue().unwrap(),
            set: kernel("set", writes().value::<u32>().value::<u32>()),
            add: kernel("add", writes()),
            fail: kernel("fail", writes()),
            look: kernel("look", Signature::new().buffer::<u32>(Access::Read)),
            seen,
        }
    }

    /// Another queue of the same device.
    fn beside(&self) -> Self {
        Self::new(&self.device)
    }

    /// Changes all elements from `from` to `to`.
    fn set(&self, buffer: &Buffer<u32>, from: u32, to: u32) -> Result<SyncMethod> {
        let view = buffer.write_on(&self.queue)?;
        let sync_method = view.sync_method();
        self.queue.launch(&self.set, [1], args![view, from, to]).map(|()| sync_method)
    }

    fn add(&self, buffer: &Buffer<u32>) -> Result<()> {
        self.queue.launch(&self.add, [1], args![buffer.write_on(&self.queue)?])
    }

    fn look(&self, buffer: &Buffer<u32>) -> Result<()> {
        self.queue.launch(&self.look, [1], args![buffer.read_on(&self.queue)?])
    }

    fn fail(&self, buffer: &Buffer<u32>) -> Result<()> {
        self.queue.launch(&self.fail, [1], args![buffer.write_on(&self.queue)?])
    }

    fn seen(&self) -> Vec<u32> {
        self.seen.lock().unwrap().clone()
    }
}

fn set(args: &mut NativeArgs<'_>) -> Result<()> {
    let (from, to) = (args.value::<u32>(1)?, args.value::<u32>(2)?);
    let found = equal(args.slice(0)?)?;
    if found != from {
        return Err(Error::invalid(format!("{found} where {from} was to be found")));
    }
    slowly(args.slice_mut(0)?, to);
    Ok(())
}

fn add(args: &mut NativeArgs<'_>) -> Result<()> {
    let found = equal(args.slice(0)?)?;
    slowly(args.slice_mut(0)?, found + 1);
    Ok(())
}

/// Writes in two halves, so that a reader that does not wait sees both values.
fn slowly(elements: &mut [u32], to: u32) {
    let (first, rest) = elements.split_at_mut(N / 2);
    first.fill(to);
    thread::yield_now();
    rest.fill(to);
}

/// Returns the common value of all elements.
fn equal(elements: &[u32]) -> Result<u32> {
    let first = elements[0];
    thread::yield_now();
    match elements.iter().all(|element| *element == first) {
        true => Ok(first),
        false => Err(Error::invalid(format!("half-written: {elements:?}"))),
    }
}

/// Tries again until there is no conflicting guard.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match attempt() {
            Err(Error::Busy { .. }) => thread::yield_now(),
            outcome => return outcome.unwrap(),
        }
    }
}

/// Runs both concurrently.
fn together(first: impl FnOnce() + Send + 'static, second: impl FnOnce() + Send + 'static) {
    let first = thread::spawn(first);
    let second = thread::spawn(second);
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn two_devices_take_turns() {
    check(|world| {
        let (buffer, way) = (world.buffer(), world.way);
        for (turn, side) in (0..).zip([&world.a, &world.b, &world.a, &world.b]) {
            let sync_method = side.set(&buffer, turn, turn + 1).unwrap();
            let gated = matches!(way, Way::Mapped);
            assert!(sync_method <= SyncMethod::Callback || !gated, "{sync_method} at turn {turn}");
        }
        assert_eq!(buffer.to_vec().unwrap(), [4; N]);
        world.a.queue.finish().unwrap();
        world.b.queue.finish().unwrap();
    });
}

/// Two readers share a device with each other, and one with the writer.
#[test]
fn readers_see_whole_writes_in_order() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        let readers = [world.b.clone(), world.b.beside(), world.a.beside()];
        let threads = readers.clone().map(|side| {
            let buffer = buffer.clone();
            thread::spawn(move || (0..2).for_each(|_| patiently(|| side.look(&buffer))))
        });
        for value in 0..2 {
            patiently(|| world.a.set(&buffer, value, value + 1));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.a.queue.finish().unwrap();
        for side in &readers {
            side.queue.finish().unwrap();
            assert!(side.seen().len() == 2 && side.seen().is_sorted(), "{:?}", side.seen());
        }
        assert_eq!(buffer.to_vec().unwrap(), [2; N]);
    });
}

#[test]
fn no_addition_is_lost_between_guards() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        let add = |side: &Side| {
            let (side, buffer) = (side.clone(), buffer.clone());
            move || (0..2).for_each(|_| patiently(|| side.add(&buffer)))
        };
        together(add(&world.a), add(&world.b));
        assert_eq!(buffer.to_vec().unwrap(), [4; N]);
    });
}

#[test]
fn maps_and_kernels_exclude_each_other() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        let (side, theirs, ours) = (world.b.clone(), buffer.clone(), buffer.clone());
        let kernels = move || (0..2).for_each(|_| patiently(|| side.add(&theirs)));
        let maps = move || {
            let mut map = patiently(|| ours.map_mut());
            let value = equal(&map).unwrap() + 1;
            slowly(&mut map, value);
        };
        together(kernels, maps);
        assert_eq!(*buffer.map().unwrap(), [3; N]);
    });
}

/// Three threads query the progress of one queue while two of them enqueue. Neither an event nor a wait may
/// cover work that was enqueued after it.
#[test]
fn marks_cover_only_what_was_enqueued_before() {
    check(|world| {
        let run = |reader: Side| {
            let (writer, buffer) = (world.a.clone(), world.buffer());
            move || {
                writer.set(&buffer, 0, 1).unwrap();
                reader.look(&buffer).unwrap();
                reader.queue.finish().unwrap();
                assert_eq!(reader.seen(), [1]);
            }
        };
        let queue = world.a.queue.clone();
        let waiter = thread::spawn(move || queue.finish().unwrap());
        together(run(world.b.clone()), run(world.b.beside()));
        waiter.join().unwrap();
    });
}

#[test]
fn everything_may_be_dropped_while_work_is_under_way() {
    check(|world| {
        let buffer = world.buffer();
        let World { a, b, hub, .. } = world;
        a.set(&buffer, 0, 1).unwrap();
        b.look(&buffer).unwrap();
        let (queue, seen) = (b.queue.clone(), b.seen.clone());
        together(move || drop((a, hub)), move || drop((buffer, b)));
        queue.finish().unwrap();
        assert_eq!(*seen.lock().unwrap(), [1]);
    });
}

/// A failure is reported once, to a waiter for that work; then the buffer can be used again.
#[test]
fn failed_work_is_told_and_over() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        world.a.fail(&buffer).unwrap();
        let (side, theirs) = (world.b.clone(), buffer.clone());
        let waited = thread::spawn(move || side.look(&theirs).and_then(|()| side.queue.finish()));
        let own = world.a.queue.finish();
        let waited = waited.join().unwrap();
        let told = [&own, &waited].into_iter().filter(|outcome| outcome.is_err()).count();
        assert!(told > 0, "nobody was told: {own:?}, {waited:?}");
        let again = (0..3).map(|_| buffer.write(&[7; N])).find(Result::is_ok);
        assert!(again.is_some(), "the buffer stays broken: {:?}", buffer.write(&[7; N]));
        assert_eq!(buffer.to_vec().unwrap(), [7; N]);
    });
}

#[test]
fn a_transfer_under_way_and_a_writer_do_not_mix() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        let (side, theirs) = (world.b.clone(), buffer.clone());
        let writer = thread::spawn(move || patiently(|| side.set(&theirs, 0, 1)));
        let pending = patiently(|| buffer.read_async(.., vec![9; N]));
        let read = future::block_on(pending).unwrap();
        assert!(equal(&read).unwrap() < 2, "{read:?}");
        writer.join().unwrap();

        let mut pending = buffer.write_async(.., vec![5; N]).unwrap();
        world.a.look(&buffer).unwrap();
        assert_eq!(pending.wait(SOON).unwrap(), [5; N]);
        world.a.queue.finish().unwrap();
        assert_eq!(world.a.seen(), [5]);
    });
}

#[test]
fn dropped_transfers_leave_nothing_behind() {
    check(|world| {
        let buffer = Arc::new(world.buffer());
        let (side, theirs) = (world.b.clone(), buffer.clone());
        let drops = move || drop(patiently(|| theirs.write_async(.., vec![3; N])));
        let ours = buffer.clone();
        together(drops, move || patiently(|| side.look(&ours)));
        world.b.queue.finish().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; N]);
        assert!([0, 3].contains(&world.b.seen()[0]), "{:?}", world.b.seen());
    });
}

#[test]
fn fences_wake_every_kind_of_waiter() {
    check(|world| {
        let buffer = world.buffer();
        world.a.set(&buffer, 0, 1).unwrap();
        world.b.look(&buffer).unwrap();
        let (awaited, waited) = (world.b.queue.fence(), Arc::new(world.b.queue.fence()));
        let shared = waited.clone();
        together(move || future::block_on(awaited).unwrap(), move || shared.wait(SOON).unwrap());
        assert!(waited.is_done().unwrap());
        assert_eq!(world.b.seen(), [1]);
    });
}
