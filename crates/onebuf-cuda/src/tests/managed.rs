//! Managed memory: opt-in, moved by calls, in order with the stream, and only the pages that must move.

use super::{
    faults::sweep_of,
    sharing::{argument, of_stub, recorded},
    *,
};
use onebuf_hal::{AccessState, FdKind, RawHandle};
use std::ffi::{CStr, c_int};

const PAGE: usize = 4096;

/// Sets one of the stub's settings.
fn tell(what: &CStr, value: c_int) {
    // SAFETY: the function's type in the stub.
    unsafe {
        let tell: unsafe extern "C" fn(c_int) = std::mem::transmute(of_stub(what));
        tell(value);
    }
}

fn by_leave(flavor: Flavor, probe: &Arc<Probe>) -> Option<Rig> {
    let library = stub();
    let libraries =
        Libraries { driver: library, compiler: library, hsa: Some("none"), managed: true };
    found_with(flavor, probe, libraries)
}

/// Like [`each`], with managed memory enabled.
fn each_managed(test: impl Fn(&Rig)) {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        let probe = Probe::new();
        let Some(rig) = by_leave(flavor, &probe) else { return };
        recorded();
        test(&rig);
        drop(rig);
        settle(&probe);
    }
}

/// The recorded moves: offset, bytes and destination.
fn moves(rig: &Rig) -> Vec<(usize, usize, i32)> {
    let name = rig.flavor.pick(["cuMemPrefetchAsync_v2(", "hipMemPrefetchAsync("]);
    let lines = recorded();
    let moves = lines.iter().filter(|line| line.starts_with(name));
    let number = |line: &str, name: &str| argument(line, name).parse::<i64>().unwrap();
    let parse = |line: &String| {
        let [offset, bytes, to] = ["offset", "bytes", "to"].map(|name| number(line, name));
        (offset as usize, bytes as usize, to as i32)
    };
    moves.map(parse).collect()
}

/// The host's view, after the queue's work.
fn seen(queue: &dyn hal::Queue, memory: &dyn hal::Memory) -> &'static mut [u8] {
    queue.mark().unwrap().wait(SECONDS).unwrap();
    let at = memory.host_pointer().unwrap();
    // SAFETY: managed memory of that length, which the tests keep longer than the slice; the stub ends the process on
    // access to pages that are not on the host.
    unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), memory.bytes()) }
}

fn add(rig: &Rig, queue: &dyn hal::Queue, memory: &dyn hal::Memory, words: usize) {
    let kernel = rig.kernel("add", 2).unwrap();
    let args = [Arg::Memory(memory, Access::ReadWrite, words * 4), Arg::Bytes(&[1, 0, 0, 0])];
    // SAFETY: `words` words.
    unsafe { queue.launch(&*kernel, &line(words), &args, &[], false) }.unwrap();
}

#[test]
fn it_is_there_by_leave_and_where_the_driver_can() {
    each(|rig| {
        assert!(!rig.device.info().caps.memory_kinds.contains(&MemoryKind::Managed));
        let refused = rig.memory(MemoryKind::Managed, 64).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    });
    each_managed(|rig| {
        let caps = &rig.device.info().caps;
        assert!(caps.memory_kinds.contains(&MemoryKind::Managed), "{caps:?}");
        assert!(!caps.memory_kinds.contains(&MemoryKind::FineSvm), "not at the same time");
        assert!(caps.words().contains(&"managed"));
        tell(c"onebuf_stub_managed", 0);
        let library = stub();
        let libraries =
            Libraries { driver: library, compiler: library, hsa: Some("none"), managed: true };
        let found = discover(rig.flavor, libraries, None, &mut || Domain(0), &|_| None).unwrap();
        tell(c"onebuf_stub_managed", 1);
        let without =
            |device: &Arc<Device>| !device.info().caps.memory_kinds.contains(&MemoryKind::Managed);
        assert!(found.devices.len() == 2 && found.devices.iter().all(without));
        let [first, _] = &found.problems[..] else { panic!("{:?}", found.problems) };
        assert!(first.contains("concurrent managed access"), "{first}");
    });
}

#[test]
fn pages_go_where_they_are_wanted() {
    each_managed(|rig| {
        let (queue, bytes) = (rig.queue(), 3 * PAGE + 100);
        let memory = rig.device.allocate(&spec(MemoryKind::Managed, bytes), Some(&numbers(bytes)));
        let memory = memory.unwrap();
        let (to_host, to_device) = (AccessState::Released, AccessState::Acquired);
        assert!(!memory.needs_access_state() && memory.memory_kind() == MemoryKind::Managed);
        let RawHandle::Address(at) = memory.raw() else { panic!("{memory:?}") };
        assert_eq!(at, memory.host_pointer().unwrap().addr().get(), "one address");
        assert!(at.is_multiple_of(PAGE));

        // It begins on the device, so no page has to move there.
        assert_eq!(moves(rig), []);
        assert_eq!(memory.misplaced(0, bytes, to_device), 0);
        assert_eq!(memory.misplaced(0, bytes, to_host), bytes);
        add(rig, &*queue, &*memory, bytes / 4);
        queue.move_pages(&*memory, 0, bytes, to_host).unwrap();
        assert_eq!(moves(rig), [(0, bytes, -1)]);
        let mut model = words(&numbers(bytes)[..bytes / 4 * 4]);
        model.iter_mut().for_each(|word| *word = word.wrapping_add(1));
        let host = seen(&*queue, &*memory);
        assert_eq!(words(&host[..bytes / 4 * 4]), model);

        // A part moves in whole pages, and pages that have moved do not move again.
        host[PAGE + 8] = 77;
        assert_eq!(memory.misplaced(PAGE + 8, 1, to_device), PAGE);
        queue.move_pages(&*memory, PAGE + 8, 1, to_device).unwrap();
        assert_eq!(moves(rig), [(PAGE, PAGE, 0)]);
        assert_eq!(memory.misplaced(0, bytes, to_device), bytes - PAGE);
        assert_eq!(memory.misplaced(0, bytes, to_host), PAGE);
        assert_eq!(get(&*queue, &*memory, PAGE + 8, 1), [77]);
        queue.move_pages(&*memory, 3 * PAGE, 100, to_device).unwrap();
        assert_eq!(moves(rig), [(3 * PAGE, 100, 0)], "not past the end");
        assert_eq!(memory.misplaced(0, bytes, to_device), 2 * PAGE);

        let part = memory.region(2 * PAGE, 256, Access::ReadWrite).unwrap();
        assert_eq!(part.misplaced(0, 256, to_device), PAGE);
        queue.move_pages(&*part, 0, 256, to_device).unwrap();
        assert_eq!(moves(rig), [(2 * PAGE, PAGE, 0)]);
        assert_eq!(
            (part.misplaced(0, 256, to_device), memory.misplaced(0, 1, to_device)),
            (0, PAGE)
        );
    });
}

/// A move runs after earlier work and before later work.
#[test]
fn a_move_is_in_order_with_its_stream() {
    each_managed(|rig| {
        let (queue, bytes) = (rig.queue(), 2 * PAGE);
        let memory = rig.memory(MemoryKind::Managed, bytes).unwrap();
        queue.fill(&*memory, 0, bytes, &[0]).unwrap();
        for turn in 1..6 {
            nap(rig, &*queue, 2);
            add(rig, &*queue, &*memory, bytes / 4);
            queue.move_pages(&*memory, 0, bytes, AccessState::Released).unwrap();
            assert!(words(seen(&*queue, &*memory)).iter().all(|word| *word == 2 * turn - 1));
            queue.move_pages(&*memory, 0, bytes, AccessState::Acquired).unwrap();
            add(rig, &*queue, &*memory, bytes / 4);
        }
        queue.move_pages(&*memory, 0, bytes, AccessState::Released).unwrap();
        drop(memory);
        queue.mark().unwrap().wait(SECONDS).unwrap();
    });
}

/// A page shared by two memories would move with the other one too.
#[test]
fn its_pages_are_its_own() {
    each_managed(|rig| {
        tell(c"onebuf_stub_crowd", 512);
        let memory = rig.memory(MemoryKind::Managed, 100).unwrap();
        tell(c"onebuf_stub_crowd", 0);
        let asked: Vec<_> =
            recorded().iter().map(|line| argument(line, "bytes").to_owned()).collect();
        assert_eq!(asked, [PAGE, 2 * PAGE].map(|bytes| bytes.to_string()), "once more, with room");
        let at = memory.host_pointer().unwrap().addr().get();
        assert!(at.is_multiple_of(PAGE), "{at:#x}");
        let queue = rig.queue();
        put(&*queue, &*memory, 0, &numbers(100));
        queue.move_pages(&*memory, 0, 100, AccessState::Released).unwrap();
        assert_eq!(seen(&*queue, &*memory), numbers(100));
    });
}

#[test]
fn others_do_not_get_it() {
    each_managed(|rig| {
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Managed, PAGE).unwrap());
        let refused = [
            memory.export(&*queue).err(),
            memory.export_fd(FdKind::DmaBuf).err(),
            memory.export_ipc().err(),
            memory.export_address(&*queue).err(),
            rig.other.import(&Export::Peer(memory.clone()), Access::Read).err(),
        ];
        for refused in refused {
            assert!(matches!(refused, Some(Error::Unsupported { .. })), "{refused:?}");
        }
        let device = rig.memory(MemoryKind::Device, PAGE).unwrap();
        let stays = queue.move_pages(&*device, 0, PAGE, AccessState::Released).unwrap_err();
        assert!(matches!(stays, Error::Unsupported { .. }), "{stays}");
        let wrong = queue.move_pages(&*memory, 1, PAGE, AccessState::Released).unwrap_err();
        assert!(matches!(wrong, Error::InvalidArgument(_)), "{wrong}");
        let there = rig.other.queue(QueueSpec::default()).unwrap();
        let strange = there.move_pages(&*memory, 0, PAGE, AccessState::Released).unwrap_err();
        assert!(matches!(strange, Error::ForeignContext { .. }), "{strange}");
        assert_eq!(memory.misplaced(0, PAGE, AccessState::Acquired), 0, "nothing was moved");
    });
}

/// A hand-over there and back, up to the first error. If the record of the pages is wrong, the stub ends the process.
fn turns(rig: &Rig) -> Result<()> {
    let queue = rig.device.queue(QueueSpec::default())?;
    let memory = rig.device.allocate(&spec(MemoryKind::Managed, 2 * PAGE), None)?;
    queue.fill(&*memory, 0, 2 * PAGE, &[3])?;
    for (to, bytes) in [(AccessState::Released, 2 * PAGE), (AccessState::Acquired, PAGE)] {
        let before = memory.misplaced(0, bytes, to);
        let moved = queue.move_pages(&*memory, 0, bytes, to);
        let left = if moved.is_ok() { 0 } else { before };
        assert_eq!(memory.misplaced(0, bytes, to), left, "what failed has changed nothing");
        moved?;
    }
    queue.fill(&*memory, 0, PAGE, &[4])?;
    let event = queue.mark()?;
    // So that the wait does not poll: each poll would be a call to fail.
    thread::sleep(Duration::from_millis(2));
    event.wait(SECONDS).or_else(|_| event.wait(SECONDS))?;
    assert_eq!(seen_half(&*memory), [3; PAGE]);
    Ok(())
}

/// The second page, which is on the host.
fn seen_half(memory: &dyn hal::Memory) -> &[u8] {
    let at = memory.host_pointer().unwrap();
    // SAFETY: the second of two pages, which was moved to the host.
    unsafe { std::slice::from_raw_parts(at.as_ptr().add(PAGE), PAGE) }
}

#[test]
fn each_call_fails_once_and_nothing_is_lost() {
    let _alone = alone();
    for flavor in [Flavor::Cuda, Flavor::Hip] {
        if stub().is_none() {
            return;
        }
        let seen = sweep_of(|probe| by_leave(flavor, probe), turns);
        let names = flavor.pick([
            ["cuMemAllocManaged", "cuMemPrefetchAsync_v2"],
            ["hipMallocManaged", "hipMemPrefetchAsync"],
        ]);
        for name in names {
            assert!(seen.contains(&name), "{name} was not made to fail: {seen:?}");
        }
    }
}

/// An attribute whose query fails counts as absent.
#[test]
fn an_attribute_that_cannot_be_asked_is_no() {
    let _alone = alone();
    let Some(library) = stub() else { return };
    let libraries =
        Libraries { driver: Some(library), compiler: None, hsa: Some("none"), managed: true };
    let mut without = 0;
    for n in 1.. {
        let probe = Probe::new();
        probe.fail_nth(n, 1);
        let found =
            discover(Flavor::Cuda, libraries, Some(probe.clone()), &mut || Domain(0), &|_| None);
        for device in found.iter().flat_map(|found| &found.devices) {
            let has = device.info().caps.memory_kinds.contains(&MemoryKind::Managed);
            without += usize::from(!has);
        }
        if probe.failed().is_none() {
            break;
        }
    }
    assert_eq!(without, 2, "one question of each of two devices");
}
