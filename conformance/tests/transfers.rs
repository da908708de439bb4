//! Large transfers and staged copies: several threads copy through chunks, while the device transfers. Small chunks, so that each
//! copy has many; devices that run on the CPU are treated as if they had their own memory.

use onebuf::{
    Buffer, Device, Error, Hub, HubBuilder, MemoryKind, Probe, Result, RouteKind, bridge,
    doctor::Verdicts,
    fake::{Delay, FakeConfig},
};
use onebuf_conformance::{
    Watchdog, absent, assert_same, assert_settled, cuda_stub, note, on_message, one_api,
    random_words, threads_on,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const CHUNK: usize = 16 << 10;
const RING: usize = 3;
const LIMIT: Duration = Duration::from_secs(240);
/// `./dev` leaves Vulkan out of suites that do not name its loader.
const LOADER: &str = "libvulkan.so.1";
const SOON: Duration = Duration::from_secs(30);

/// Sizes around chunks, pieces and rings; none is a multiple of a page unless its name says so.
const SIZES: [usize; 8] = [
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK - 4095,
    RING * CHUNK,
    RING * CHUNK + 1,
    (2 * RING + 1) * CHUNK - 3,
    20 * CHUNK + 4096 + 77,
];

/// Divides every copy of at least a chunk among four threads.
fn many(builder: HubBuilder) -> HubBuilder {
    builder.verdicts(Verdicts::default()).timeout(SOON).copy_tuning(|tuning| {
        (tuning.chunk_bytes, tuning.piece_bytes) = (CHUNK, 4096);
        (tuning.ring, tuning.threads) = (RING, 4);
        tuning.awake = Duration::ZERO;
        (tuning.many_from_bytes, tuning.host_from_bytes) = (CHUNK, CHUNK);
        tuning.as_discrete = true;
    })
}

/// A hub for each set of drivers that this machine has, and one with fake devices.
fn each(test: impl Fn(&Hub, &str)) {
    let _alone = one_api();
    let _watchdog = Watchdog::new("transfers", LIMIT);
    let delay = Delay::Random { seed: 5, max: Duration::from_micros(200) };
    let fake = || FakeConfig { delay, ..FakeConfig::default() };
    let none = || onebuf::builder().without(["opencl", "vulkan", "gl", "cuda", "hip"]);
    test(&many(none().fake(fake()).fake(fake())).build().unwrap(), "fakes");
    let found = many(onebuf::builder().without(["hip"])).build().unwrap();
    if found.devices().len() > 1 {
        test(&found, "the drivers of this machine");
    } else {
        absent("transfers", "no driver found");
    }
    for api in ["cuda", "hip"] {
        let Some(library) = cuda_stub() else { return };
        let library = library.to_string_lossy().into_owned();
        let builder = onebuf::builder().without(["opencl", "vulkan", "gl"]);
        let builder = match api {
            "cuda" => builder.library("cuda", &library).library("nvrtc", library).without(["hip"]),
            _ => builder.library("hip", &library).library("hiprtc", library).without(["cuda"]),
        };
        test(&many(builder).build().unwrap(), api);
    }
}

fn kinds(device: &Device) -> Vec<MemoryKind> {
    device.info().caps.memory_kinds.clone()
}

fn devices(hub: &Hub) -> Vec<Device> {
    hub.devices().into_iter().filter(|device| device.id() != "host").collect()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let words = random_words(seed, len.div_ceil(4));
    words.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect()
}

/// Reads by transfers that are too small to be divided.
fn read_slowly(buffer: &Buffer<u8>) -> Vec<u8> {
    let mut all = vec![0; buffer.len()];
    for (n, part) in all.chunks_mut(CHUNK - 1).enumerate() {
        let at = n * (CHUNK - 1);
        buffer.read_range(at..at + part.len(), part).unwrap();
    }
    all
}

fn write_slowly(buffer: &Buffer<u8>, from: &[u8]) {
    for (n, part) in from.chunks(CHUNK - 1).enumerate() {
        let at = n * (CHUNK - 1);
        buffer.write_range(at..at + part.len(), part).unwrap();
    }
}

fn on(device: &Device, memory_kind: MemoryKind, len: usize) -> Buffer<u8> {
    let builder = device.hub().buffer::<u8>(len).shared_with([device]).allocate_on(device);
    builder.memory_kind(memory_kind).build().unwrap()
}

#[test]
fn every_byte_arrives_in_both_directions() {
    each(|hub, _| {
        for device in devices(hub) {
            for kind in kinds(&device) {
                for (seed, len) in (0..).zip(SIZES) {
                    let what = format!("{len} bytes of {kind} on {device}");
                    let buffer = on(&device, kind, len);
                    let mut model = bytes(seed, len);
                    buffer.write(&model).unwrap();
                    assert_eq!(read_slowly(&buffer), model, "written: {what}");
                    model = bytes(seed + 100, len);
                    write_slowly(&buffer, &model);
                    assert_eq!(buffer.to_vec().unwrap(), model, "read: {what}");
                }
            }
        }
    });
}

#[test]
fn ranges_leave_their_neighbours_alone() {
    let len = 25 * CHUNK + 4099;
    each(|hub, _| {
        for device in devices(hub) {
            let buffer = on(&device, kinds(&device)[0], len);
            let mut model = bytes(1, len);
            buffer.write(&model).unwrap();
            for (seed, size) in (2..).zip(SIZES) {
                for at in [1, 4095, CHUNK + 3, len - size] {
                    let what = format!("{size} bytes at {at} on {device}");
                    let part = bytes(seed, size);
                    buffer.write_range(at..at + size, &part).unwrap();
                    model[at..at + size].copy_from_slice(&part);
                    // One byte more on each side, in the middle of a larger slice.
                    let mut seen = vec![0xEE; size + 4];
                    let end = (at + size + 1).min(len);
                    let into = &mut seen[1..1 + end - (at - 1)];
                    buffer.read_range(at - 1..end, into).unwrap();
                    assert_eq!(*into, model[at - 1..end], "{what}");
                    assert!(seen[0] == 0xEE && seen[seen.len() - 1] == 0xEE, "{what}");
                }
            }
            assert_eq!(read_slowly(&buffer), model, "{device}");
            // The negative control: a wrong byte is noticed.
            model[len / 2] ^= 1;
            assert_ne!(read_slowly(&buffer), model, "{device}");
        }
    });
}

#[test]
fn staged_copies_carry_every_byte_between_every_pair() {
    each(|hub, _| {
        let all = hub.devices();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            if a.id() == b.id() {
                continue;
            }
            for (seed, len) in (0..).zip(SIZES) {
                let what = format!("{len} bytes from {a} to {b}");
                let builder = hub.buffer::<u8>(len).shared_with([a, b]).allocate_on(a);
                let staged = match builder.route(RouteKind::Staged).build() {
                    Ok(staged) => staged,
                    Err(error) => {
                        assert!(matches!(error, Error::Unsupported { .. }), "{what}: {error}");
                        continue;
                    }
                };
                let model = bytes(seed, len);
                staged.write(&model).unwrap();
                let (before, asked) = (hub.ledger().implied_bytes(), hub.ledger().asked_bytes());
                let queues = [a.queue().unwrap(), b.queue().unwrap()];
                for queue in [&queues[1], &queues[0], &queues[1]] {
                    // A writer, so that the other replica is outdated.
                    drop(staged.write_on(queue).unwrap());
                    queue.finish().unwrap();
                }
                assert!(hub.ledger().implied_bytes() - before >= len as u64, "{what}");
                assert_eq!(hub.ledger().asked_bytes(), asked, "{what}");
                assert_eq!(read_slowly(&staged), model, "{what}");
            }
        }
    });
}

#[test]
fn asked_bytes_are_counted_once() {
    each(|hub, _| {
        for device in devices(hub) {
            let len = 10 * CHUNK + 5;
            let buffer = on(&device, kinds(&device)[0], len);
            let (asked, implied) = (hub.ledger().asked_bytes(), hub.ledger().implied_bytes());
            buffer.write(&bytes(1, len)).unwrap();
            buffer.to_vec().unwrap();
            assert_eq!(hub.ledger().asked_bytes() - asked, 2 * len as u64, "{device}");
            assert_eq!(hub.ledger().implied_bytes(), implied, "{device}");
        }
    });
}

/// Asynchronous transfers go through chunks, too. A vector is free as soon as it is returned, and chunks return to their pool.
#[test]
fn asynchronous_transfers_carry_every_byte() {
    let len = 25 * CHUNK + 4099;
    each(|hub, what| {
        for device in devices(hub) {
            for kind in kinds(&device) {
                let what = format!("{kind} on {device}, {what}");
                let buffer = on(&device, kind, len);
                let mut model = bytes(1, len);
                buffer.write(&model).unwrap();
                for (seed, size) in (2..).zip(SIZES) {
                    let (at, part) = (CHUNK + 3, bytes(seed, size));
                    let range = at..at + size;
                    let mut write = buffer.write_async(range.clone(), part.clone()).unwrap();
                    // Ordered after the write, on the same memory, while that may be under way.
                    let mut read = buffer.read_async(range.clone(), vec![0xEE; size]).unwrap();
                    assert!(write.wait(SOON).unwrap() == part, "given back: {what}");
                    assert!(read.wait(SOON).unwrap() == part, "{size} bytes of {what}");
                    assert!(read.wait(SOON).is_err(), "the vector is returned once");
                    model[range].copy_from_slice(&part);
                    // One that is dropped has been made.
                    let again = bytes(seed + 50, size);
                    drop(buffer.write_async(..size, again.clone()).unwrap());
                    drop(buffer.read_async(..size, vec![0; size]).unwrap());
                    model[..size].copy_from_slice(&again);
                }
                assert_eq!(read_slowly(&buffer), model, "{what}");
                model[len - 1] ^= 1;
                assert_ne!(read_slowly(&buffer), model, "the control: {what}");
            }
        }
    });
}

/// What the host has mapped is copied from the map, without an unmap or another map.
#[test]
fn copies_read_from_maps() {
    let len = 21 * CHUNK + 77;
    each(|hub, what| {
        for device in devices(hub) {
            if !kinds(&device).contains(&MemoryKind::MappedDevice) {
                continue;
            }
            let what = format!("{device}, {what}");
            let pinned = on(&device, MemoryKind::MappedDevice, len);
            let target = on(&device, *kinds(&device).last().unwrap(), len);
            for round in 0..3 {
                let model = bytes(round, len);
                pinned.map_mut().unwrap().copy_from_slice(&model);
                let asked = hub.ledger().asked_bytes();
                bridge::copy(&pinned, .., &target, 0).unwrap();
                assert_eq!(hub.ledger().asked_bytes() - asked, len as u64, "{what}");
                assert_eq!(read_slowly(&target), model, "{what}");
                // The host still has what it wrote, and a part of it goes to another place.
                assert!(pinned.map().unwrap()[..] == model[..], "{what}");
                let (from, to, part) = (CHUNK + 3, 5, 7 * CHUNK + 1);
                pinned.map_mut().unwrap()[from] ^= 0xFF;
                bridge::copy(&pinned, from..from + part, &target, to).unwrap();
                let mut expected = model.clone();
                expected[to..to + part].copy_from_slice(&model[from..from + part]);
                assert_ne!(read_slowly(&target), expected, "the control: {what}");
                expected[to] ^= 0xFF;
                assert_eq!(read_slowly(&target), expected, "{what}");
                // The device has the memory: it copies by itself.
                let queue = device.queue().unwrap();
                drop(pinned.read_on(&queue).unwrap());
                bridge::copy(&pinned, .., &target, 0).unwrap();
                assert_eq!(read_slowly(&target), pinned.to_vec().unwrap(), "{what}");
            }
        }
    });
}

/// The way of such a copy is the pointer, and the driver gets no other call than the transfer.
#[test]
fn maps_stay_mapped_while_copies_read_them() {
    let _alone = one_api();
    let probe = Probe::new();
    let hub = many(onebuf::builder().without(["cuda", "hip", "vulkan", "gl"]).probe(probe.clone()));
    let hub = hub.build().unwrap();
    let Some(device) = devices(&hub).into_iter().next() else {
        return absent("maps", "no OpenCL driver");
    };
    let (pinned, target) = (MemoryKind::MappedDevice, MemoryKind::Device);
    let (pinned, target) = (on(&device, pinned, 9 * CHUNK), on(&device, target, 9 * CHUNK));
    pinned.map_mut().unwrap().fill(7);
    probe.reset();
    let crossing = bridge::copy(&pinned, .., &target, 0).unwrap();
    assert_eq!(crossing.way, RouteKind::HostPointer);
    let calls = probe.trace();
    assert!(calls.contains(&"clEnqueueWriteBuffer"), "{calls:?}");
    assert!(!calls.iter().any(|call| call.contains("Map") || call.contains("map")), "{calls:?}");
    assert!(target.to_vec().unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn threads_transfer_at_once() {
    each(|hub, _| {
        let len = 12 * CHUNK + 13;
        for device in devices(hub) {
            thread::scope(|scope| {
                for seed in 0..threads_on(&device, 4) as u64 {
                    let device = &device;
                    scope.spawn(move || {
                        let buffer = on(device, kinds(device)[0], len);
                        for round in 0..5 {
                            let model = bytes(10 * seed + round, len);
                            buffer.write(&model).unwrap();
                            assert_eq!(buffer.to_vec().unwrap(), model, "{device}, {seed}");
                        }
                    });
                }
            });
        }
    });
}

/// A scenario of divided transfers. Bytes that an earlier, failed run has left are overwritten.
fn scenario(buffer: &Buffer<u8>, staged: &Buffer<u8>, pair: &[Device; 2]) -> Result<()> {
    let (one, two) = (bytes(1, buffer.len()), bytes(2, staged.len()));
    buffer.write(&one)?;
    let mut seen = vec![0; one.len()];
    buffer.read(&mut seen)?;
    assert!(seen == one, "a transfer succeeded with wrong bytes");
    staged.write(&two)?;
    for device in pair.iter().rev() {
        let queue = device.queue()?;
        drop(staged.write_on(&queue)?);
        queue.finish()?;
    }
    let mut seen = vec![0; two.len()];
    staged.read(&mut seen)?;
    assert!(seen == two, "a staged copy succeeded with wrong bytes");
    let read = buffer.read_async(.., seen[..one.len()].to_vec())?.wait(SOON)?;
    assert!(read == one, "an asynchronous read succeeded with wrong bytes");
    buffer.write_async(.., two[..one.len()].to_vec())?.wait(SOON)?;
    if kinds(&pair[0]).contains(&MemoryKind::MappedDevice) {
        let builder = pair[0].hub().buffer::<u8>(two.len()).shared_with([&pair[0]]);
        let builder = builder.allocate_on(&pair[0]).memory_kind(MemoryKind::MappedDevice);
        let pinned = builder.build()?;
        pinned.write(&two)?;
        drop(pinned.map()?);
        bridge::copy(&pinned, ..buffer.len(), buffer, 0)?;
        let mut seen = vec![0; buffer.len()];
        buffer.read(&mut seen)?;
        assert!(seen == two[..seen.len()], "a copy from a map succeeded with wrong bytes");
    }
    Ok(())
}

/// Which calls of a scenario fail in turn, of these calls: the first of each kind and every so many; all with `ONEBUF_SOAK`.
fn chosen(calls: &[&'static str], [firsts, every]: [usize; 2]) -> Vec<usize> {
    let mut seen = BTreeMap::<&str, usize>::new();
    let all = std::env::var_os("ONEBUF_SOAK").is_some();
    let choose = |(n, call): (usize, &&'static str)| {
        let seen = seen.entry(call).or_default();
        *seen += 1;
        (all || *seen <= firsts || n % every == 0).then_some(n + 1)
    };
    calls.iter().enumerate().filter_map(choose).collect()
}

/// Host pages that were leaked on purpose: OpenGL failed to delete a buffer over them, or to say that its work on them is done, and may
/// still use them.
static LEAKED: AtomicUsize = AtomicUsize::new(0);

/// Counts them, by what onebuf logs.
fn count_leaks() {
    on_message(tracing::Level::ERROR, |message| {
        LEAKED.fetch_add(message.contains("they are leaked").into(), Ordering::Relaxed);
    });
}

/// Waits until nothing is left, except for one memory of OpenCL's and its queue and context for each time that pages were leaked since
/// `kept`.
fn settle(probe: &Probe, kept: usize, what: &str) {
    let start = Instant::now();
    let as_leaked = || {
        let (live, leaked) = (probe.live(), LEAKED.load(Ordering::Relaxed) - kept);
        let known = live.keys().all(|kind| ["context", "queue", "mem"].contains(kind));
        leaked > 0 && known && live.get("mem") == Some(&(leaked as i64))
    };
    while !as_leaked() {
        if probe.live().is_empty() || start.elapsed() > Duration::from_secs(60) {
            return assert_settled(probe, what);
        }
        thread::sleep(Duration::from_millis(1));
    }
    note(&format!("{what}: host pages were leaked, because OpenGL may still use them"));
}

/// Makes driver calls of the scenario fail in turn.
fn sweep(name: &str, which: [usize; 2], build: impl Fn(&Arc<Probe>) -> Option<(Hub, [Device; 2])>) {
    const CODES: [i32; 3] = [-5, -6, -36];
    count_leaks();
    let start = Instant::now();
    let open = |probe: &Arc<Probe>| {
        let (hub, pair) = build(probe)?;
        let buffer = on(&pair[0], kinds(&pair[0])[0], 7 * CHUNK + 5);
        let builder = hub.buffer::<u8>(8 * CHUNK + 9).shared_with(&pair).allocate_on(&pair[0]);
        let staged = builder.route(RouteKind::Staged).build().unwrap();
        Some((buffer, staged, pair, hub))
    };
    let probe = Probe::new();
    let Some((buffer, staged, pair, hub)) = open(&probe) else { return absent(name, "not found") };
    probe.reset();
    scenario(&buffer, &staged, &pair).unwrap();
    let calls = probe.trace();
    drop((buffer, staged, pair, hub));
    let (mut swept, mut previous) = (0, "");
    for n in chosen(&calls, which) {
        let (probe, kept) = (Probe::new(), LEAKED.load(Ordering::Relaxed));
        let (buffer, staged, pair, hub) = open(&probe).unwrap();
        probe.fail_nth(n as u64, CODES[n % CODES.len()]);
        let outcome = scenario(&buffer, &staged, &pair);
        // Threads poll more or less often, so that a run may have fewer calls.
        let Some(call) = probe.failed() else { continue };
        swept += 1;
        let what = format!("{name}: call {n}, {call}: {outcome:?}");
        assert!(!matches!(outcome, Err(Error::Timeout { .. })), "{what}");
        if std::mem::replace(&mut previous, call) != call {
            // The next use of a buffer reports failed work, once.
            let again = || scenario(&buffer, &staged, &pair);
            let mut runs = [again(), again(), again()].into_iter();
            assert!(runs.any(|run| run.is_ok()), "{what}: the buffers no longer work");
        }
        drop((buffer, staged, pair, hub));
        settle(&probe, kept, &what);
    }
    note(&format!("{name}: {swept} of {} calls swept in {:?}", calls.len(), start.elapsed()));
    assert!(swept >= 20, "{name}: {swept} calls are no scenario");
}

fn pair(hub: &Hub, ids: [&str; 2]) -> Option<[Device; 2]> {
    Some([hub.device(ids[0]).ok()?, hub.device(ids[1]).ok()?])
}

#[test]
fn whichever_call_of_a_fake_device_fails_nothing_leaks() {
    let _watchdog = Watchdog::new("the sweep over fake devices", LIMIT);
    sweep("fakes", [3, 13], |probe| {
        let fake = || FakeConfig { probe: Some(probe.clone()), ..FakeConfig::default() };
        let builder = onebuf::builder().without(["opencl", "vulkan", "gl", "cuda", "hip"]);
        let hub = many(builder.fake(fake()).fake(fake())).build().unwrap();
        let pair = pair(&hub, ["fake:0", "fake:1"])?;
        Some((hub, pair))
    });
}

#[test]
fn whichever_call_of_a_driver_fails_nothing_leaks() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("the sweep over drivers", LIMIT);
    for (name, ids) in [
        ("PoCL and lavapipe", ["Portable Computing Language", "vulkan:0"]),
        ("PoCL and llvmpipe", ["Portable Computing Language", "gl:0"]),
    ] {
        sweep(name, [1, 29], |probe| {
            let builder = onebuf::builder().library("vulkan", LOADER).without(["cuda", "hip"]);
            let hub = many(builder.probe(probe.clone())).build().unwrap();
            let pair = pair(&hub, ids)?;
            Some((hub, pair))
        });
    }
}

#[test]
fn whichever_call_of_the_stub_fails_nothing_leaks() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("the sweep over the stub", LIMIT);
    for api in ["cuda", "hip"] {
        let Some(library) = cuda_stub() else { return };
        let library = library.to_string_lossy().into_owned();
        sweep(api, [3, 13], |probe| {
            let builder =
                onebuf::builder().without(["opencl", "vulkan", "gl"]).probe(probe.clone());
            let (one, two) = if api == "cuda" { ("cuda", "nvrtc") } else { ("hip", "hiprtc") };
            let builder = builder.library(one, &library).library(two, &library);
            let builder = builder.without([if api == "cuda" { "hip" } else { "cuda" }]);
            let hub = many(builder).build().unwrap();
            let pair = pair(&hub, [&format!("{api}:0"), &format!("{api}:1")])?;
            Some((hub, pair))
        });
    }
}

/// The device takes longer than the timeout. The caller's slices are free at once, whatever the device does later.
#[test]
fn a_transfer_that_does_not_end_holds_no_memory_of_the_caller() {
    let _watchdog = Watchdog::new("a slow device", LIMIT);
    let slow = FakeConfig { delay: Delay::Fixed(Duration::from_millis(300)), ..Default::default() };
    let builder = onebuf::builder().without(["opencl", "vulkan", "gl", "cuda", "hip"]);
    let hub = many(builder.fake(slow)).timeout(Duration::from_millis(100)).build().unwrap();
    let device = hub.device("fake:0").unwrap();
    let len = 9 * CHUNK + 1;
    let make = || hub.buffer::<u8>(len).shared_with([&device]).build();
    // Even clearing new memory takes too long for some; what counts is that nothing else is touched.
    let Ok(buffer) = make() else { panic!("a new buffer waits for nothing") };
    let mut from = bytes(1, len);
    let error = buffer.write(&from).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    from.fill(0);
    let Ok(buffer) = make() else { panic!("a new buffer waits for nothing") };
    let mut into = vec![0xEE; len];
    let error = buffer.read(&mut into).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let seen = into.clone();
    thread::sleep(Duration::from_millis(1500));
    assert_same(&into, &seen, "no byte changes after the timeout");
}
