//! Managed memory of discrete GPUs: opt-in, one pointer for host and kernels, pages moved by calls and counted.
//!
//! The stub is stricter than a driver: an access to pages that were not moved to that side ends the process.

use super::*;
use onebuf::{Cause, Entry, Hint, Pool};
use onebuf_conformance::{Hardware, gpus, play, reported};

const PAGE: usize = 4096;
/// Words in a page.
const WORDS: usize = PAGE / size_of::<u32>();

fn by_leave(api: &str) -> Option<HubBuilder> {
    Some(stubbed(api)?.verdicts(Default::default()).managed_memory(true))
}

fn each_managed(test: impl Fn(&Hub, &Side)) {
    each(|api, _| {
        let hub = by_leave(api).expect("it was there before").build().unwrap();
        test(&hub, &Side::open(&hub.device(api).unwrap()).unwrap());
    });
}

/// A managed buffer for the host and the device.
fn managed(hub: &Hub, side: &Side, n: usize) -> Buffer<u32> {
    let builder = hub.buffer::<u32>(n).shared_with([&hub.host(), &side.device]);
    builder.memory_kind(MemoryKind::Managed).build().unwrap()
}

/// The API's own pointer, as a number.
fn pointer(buffer: &Buffer<u32>, side: &Side) -> usize {
    let view = buffer.read_on(&side.queue).unwrap();
    match side.device.info().api.0 {
        "cuda" => view.cuda_ptr().unwrap() as usize,
        _ => view.hip_ptr().unwrap().addr(),
    }
}

/// Both sides take turns; each checks every element, and every moved byte is counted.
fn take_turns_on_pages(hub: &Hub, side: &Side, n: usize) {
    let (buffer, mut model) = (managed(hub, side, n), random_words(5, n));
    let (text, bytes) = (buffer.explain(), buffer.size_bytes() as u64);
    assert_eq!(buffer.plan().memory_kind, MemoryKind::Managed, "{text}");
    assert!(text.contains("svm_pointer, copies") && text.contains("pages move"), "{text}");

    // Requested transfers run on the device, where the pages are.
    let before = hub.ledger().implied_bytes();
    let moved = || hub.ledger().implied_bytes() - before;
    buffer.write(&model).unwrap();
    side.step(&buffer, Step::nth(0)).unwrap();
    step_model(&mut model, Step::nth(0));
    assert_same(&buffer.to_vec().unwrap(), &model, "read");
    assert_eq!(moved(), 0, "{}", hub.ledger());

    for turn in 1..5 {
        {
            let mut map = buffer.map_mut().unwrap();
            assert_same(&map, &model, "mapped");
            for (word, model) in map.iter_mut().zip(&mut model) {
                *word ^= turn;
                *model ^= turn;
            }
        }
        assert_same(&buffer.map().unwrap(), &model, "mapped again");
        assert_eq!(moved(), u64::from(2 * turn - 1) * bytes, "there, and not again");
        for half in 0..2 {
            side.step(&buffer, Step::nth(2 * turn + half)).unwrap();
            step_model(&mut model, Step::nth(2 * turn + half));
        }
        assert_eq!(moved(), u64::from(2 * turn) * bytes, "back, and not again");
    }
    assert_same(&side.look(&buffer).unwrap(), &model, "on the device");
    let here = buffer.map().unwrap().as_ptr().addr();
    assert_eq!(here, pointer(&buffer, side), "one pointer");
    control(hub, side, n, &model);
}

/// The control: separate buffers differ, and memory that the host never maps moves nothing.
fn control(hub: &Hub, side: &Side, n: usize, words: &[u32]) {
    let (one, other) = (managed(hub, side, n), managed(hub, side, n));
    one.write(words).unwrap();
    other.write(words).unwrap();
    let before = hub.ledger().implied_bytes();
    side.step(&other, Step::nth(1)).unwrap();
    assert_same(&one.to_vec().unwrap(), words, "left alone");
    assert_ne!(other.to_vec().unwrap(), words);
    assert_eq!(hub.ledger().implied_bytes(), before);
}

/// A sub-buffer moves its own pages, and no others.
fn take_parts(hub: &Hub, side: &Side) {
    let n = 8 * WORDS;
    let (buffer, mut model) = (managed(hub, side, n), random_words(6, n));
    buffer.write(&model).unwrap();
    let before = hub.ledger().implied_bytes();
    let moved = || (hub.ledger().implied_bytes() - before) as usize;
    let part = 2 * WORDS..3 * WORDS + 64;
    let region = buffer.sub_buffer(part.clone(), Access::ReadWrite).unwrap();
    assert_same(&region.map().unwrap(), &model[part.clone()], "a part");
    assert_eq!(moved(), 2 * PAGE, "a page and the beginning of another");
    region.map_mut().unwrap()[64] = 9;
    model[part.start + 64] = 9;
    assert_eq!(moved(), 2 * PAGE, "it is here");

    // The device uses a page that it has, then the whole buffer.
    let last = buffer.sub_buffer(7 * WORDS.., Access::ReadWrite).unwrap();
    side.step_view(last.write_on(&side.queue).unwrap(), WORDS, Step::nth(2)).unwrap();
    step_model(&mut model[7 * WORDS..], Step::nth(2));
    assert_eq!(moved(), 2 * PAGE);
    side.step(&buffer, Step::nth(3)).unwrap();
    step_model(&mut model, Step::nth(3));
    assert_eq!(moved(), 4 * PAGE, "{}", hub.ledger());
    assert_same(&buffer.map().unwrap(), &model, "all of it");
    assert_eq!(moved(), 4 * PAGE + n * size_of::<u32>());
}

/// Under `Forbid` the move is an error with a reason; reads and writes still work.
fn forbid(hub: &Hub, side: &Side) {
    let builder = hub.buffer::<u32>(N).memory_kind(MemoryKind::Managed).copies(CopyPolicy::Forbid);
    let refused = builder.clone().shared_with([&hub.host(), &side.device]).build().unwrap_err();
    assert!(matches!(&refused, Error::CopyForbidden { why, .. } if why.contains("pages move")));
    let (buffer, mut model) = (builder.shared_with([&side.device]), random_words(8, N));
    let buffer = buffer.init(model.clone()).build().unwrap();
    let before = hub.ledger().implied_bytes();
    side.step(&buffer, Step::nth(4)).unwrap();
    step_model(&mut model, Step::nth(4));
    for refused in [buffer.map().err(), buffer.map_mut().err()] {
        let said = matches!(&refused, Some(Error::CopyForbidden { why, .. }) if why.contains("pages of managed"));
        assert!(said, "{refused:?}");
    }
    buffer.write_range(3..4, &[17]).unwrap();
    model[3] = 17;
    assert_same(&buffer.to_vec().unwrap(), &model, "asked for");
    assert_eq!(hub.ledger().implied_bytes(), before, "{}", hub.ledger());
}

/// Pages are not moved away from a reader: they would migrate back uncounted.
fn in_turn(hub: &Hub, side: &Side) {
    let buffer = managed(hub, side, N);
    let view = buffer.read_on(&side.queue).unwrap();
    assert!(matches!(buffer.map(), Err(Error::Busy { .. })));
    drop(view);
    let map = buffer.map().unwrap();
    assert!(matches!(buffer.read_on(&side.queue), Err(Error::Busy { .. })));
    assert!(buffer.map().is_ok(), "readers of one side go together");
    drop(map);
    drop(buffer.read_on(&side.queue).unwrap());
}

#[test]
fn both_sides_use_one_pointer_and_every_move_is_counted() {
    each_managed(|hub, side| {
        for n in [1, 1023, WORDS, WORDS + 1, N, 64 * WORDS] {
            take_turns_on_pages(hub, side, n);
        }
        let implied = |from: &str, to: &str| {
            let entries = hub.ledger().entries().into_iter();
            let of = |e: &Entry| e.cause == Cause::Implied && e.from == from && e.to == to;
            entries.filter(of).map(|entry| entry.bytes).sum::<u64>()
        };
        let id = side.device.id();
        assert_eq!(implied("host", id), implied(id, "host"), "{}", hub.ledger());
        assert_eq!(implied("host", id) + implied(id, "host"), hub.ledger().implied_bytes());
    });
}

#[test]
fn parts_take_their_pages_along() {
    each_managed(take_parts);
}

#[test]
fn a_move_is_forbidden_like_any_copy() {
    each_managed(forbid);
}

#[test]
fn pages_do_not_move_under_a_reader() {
    each_managed(in_turn);
}

/// No plan chooses it by itself. Without opt-in it is unavailable, and a driver that lacks it returns a reason.
#[test]
fn it_is_only_to_be_had_by_leave_and_by_name() {
    each_managed(|hub, side| {
        let hints = [Hint::CpuPreferred, Hint::GpuPreferred, Hint::Coherent, Hint::Streaming];
        for hint in hints.map(Some).into_iter().chain([None]) {
            let builder = hub.buffer::<u32>(N).shared_with([&hub.host(), &side.device]);
            let builder = builder.allocate_on(&side.device).trust_declared(true);
            let builder = hint.into_iter().fold(builder, |builder, hint| builder.hint(hint));
            assert_ne!(builder.plan().unwrap().memory_kind, MemoryKind::Managed, "{hint:?}");
        }
        assert!(hub.notes().is_empty(), "{:?}", hub.notes());
    });
    each(|api, builder| {
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let device = hub.device(api).unwrap();
        assert!(!device.info().caps.memory_kinds.contains(&MemoryKind::Managed));
        let routes = hub.topology().between(device.index(), hub.host().index());
        assert!(routes.iter().all(|route| route.kind != RouteKind::SvmPointer), "{routes:?}");
        let refused = hub.buffer::<u32>(N).shared_with([&device]).memory_kind(MemoryKind::Managed);
        let refused = refused.build().unwrap_err();
        let said = refused.to_string();
        assert!(matches!(refused, Error::Unsupported { .. }), "{said}");
        assert!(
            said.contains("managed_memory(true)") && said.contains("ONEBUF_MANAGED=1"),
            "{said}"
        );
    });
}

/// A second GPU gets a replica of what the first or the host wrote last.
#[test]
fn another_gpu_gets_a_copy_of_what_is_newest() {
    each_managed(|hub, side| {
        let api = side.device.info().api;
        let other = Side::open(&hub.device(&format!("{api}:1")).unwrap()).unwrap();
        let builder = hub.buffer::<u32>(N).shared_with([&hub.host(), &side.device, &other.device]);
        let builder = builder.allocate_on(&side.device).memory_kind(MemoryKind::Managed);
        let (buffer, mut model) = (builder.build().unwrap(), random_words(9, N));
        buffer.write(&model).unwrap();
        for turn in 0..6 {
            buffer.map_mut().unwrap()[turn as usize] = turn;
            model[turn as usize] = turn;
            let steps = if turn % 2 == 0 { [&other, side] } else { [side, &other] };
            for (n, side) in (2 * turn..).zip(steps) {
                side.step(&buffer, Step::nth(n)).unwrap();
                step_model(&mut model, Step::nth(n));
            }
        }
        assert_same(&buffer.map().unwrap(), &model, "here");
        assert_same(&other.look(&buffer).unwrap(), &model, "elsewhere");
    });
}

/// Pages stay where the previous use left them.
#[test]
fn a_pooled_buffer_knows_where_its_pages_are() {
    each_managed(|hub, side| {
        let pool = Pool::new(hub);
        for (n, life) in [(N, 0), (100, 1), (N - 7, 2), (N, 3)] {
            let builder = hub.buffer::<u32>(n).shared_with([&hub.host(), &side.device]);
            let buffer = pool.get(&builder.memory_kind(MemoryKind::Managed)).unwrap();
            let mut model = random_words(life, n);
            buffer.map_mut().unwrap().copy_from_slice(&model);
            if life % 2 == 0 {
                side.step(&buffer, Step::nth(1)).unwrap();
                step_model(&mut model, Step::nth(1));
            }
            assert_same(&buffer.to_vec().unwrap(), &model, "a life");
        }
    });
}

/// Device and host take turns, up to the first error.
fn live_in_turn(device: &Device, _: &Buffer<u32>) -> Result<()> {
    let (hub, side) = (device.hub(), Side::open(device)?);
    for _ in 0..2 {
        let builder = hub.buffer::<u32>(N).shared_with([&hub.host(), device]);
        let (buffer, mut model) =
            (builder.memory_kind(MemoryKind::Managed).build()?, random_words(2, N));
        buffer.write(&model)?;
        for turn in 0..3 {
            side.step(&buffer, Step::nth(turn))?;
            step_model(&mut model, Step::nth(turn));
            let mut map = buffer.map_mut()?;
            assert_same(&map, &model, "mapped");
            (map[7], model[7]) = (turn, turn);
        }
        assert_same(&buffer.to_vec()?, &model, "read");
    }
    Ok(())
}

#[test]
fn turns_whose_calls_fail() {
    each(|api, _| {
        sweep_of(|| by_leave(api).expect("it was there before"), api, live_in_turn);
    });
}

/// A move that the driver refuses returns an error, moves nothing, counts nothing, and can be repeated.
#[test]
fn a_refused_move_leaves_everything_as_it_was() {
    each(|api, _| {
        let probe = Probe::new();
        let hub = by_leave(api).unwrap().probe(probe.clone()).build().unwrap();
        let side = Side::open(&hub.device(api).unwrap()).unwrap();
        let (buffer, mut model) = (managed(&hub, &side, N), random_words(4, N));
        buffer.write(&model).unwrap();
        let call = if api == "cuda" { "cuMemPrefetchAsync_v2" } else { "hipMemPrefetchAsync" };
        let refuse = |what: &mut dyn FnMut() -> Option<Error>| {
            probe.fail_always(call, 801);
            let before = hub.ledger().implied_bytes();
            let told = what();
            assert!(matches!(&told, Some(Error::Driver { call: c, .. }) if *c == call), "{told:?}");
            assert_eq!(hub.ledger().implied_bytes(), before);
            probe.reset();
        };
        refuse(&mut || buffer.map().err());
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&buffer.map().unwrap(), &model, "the second time");
        refuse(&mut || side.step(&buffer, Step::nth(2)).err());
        assert_same(&buffer.map().unwrap(), &model, "still here");
        side.step(&buffer, Step::nth(2)).unwrap();
        step_model(&mut model, Step::nth(2));
        assert_same(&buffer.to_vec().unwrap(), &model, "and there");
    });
}

/// The GPUs with managed memory. The driver's attributes decide whether there is one.
fn with_managed_memory(hub: &Hub) -> Vec<Device> {
    let (drivers, found) = (gpus(), [hub.select("cuda"), hub.select("hip")].concat());
    let has = |device: &Device| device.info().caps.memory_kinds.contains(&MemoryKind::Managed);
    let able: Vec<_> = found.into_iter().filter(has).collect();
    let moving = drivers.iter().filter(|gpu| gpu.moves_pages).count();
    let needs: &[Hardware] = if drivers.is_empty() { &[Hardware::Nvidia] } else { &[] };
    reported("GPU with managed memory", needs, moving, able.len());
    able
}

/// The driver's own attributes decide whether the test below runs.
#[test]
fn the_drivers_say_whether_there_is_managed_memory() {
    for api in ["CUDA", "HIP"] {
        play("managed::has_managed_memory", api, "", &[]);
        play("managed::has_none", api, "", &[("ONEBUF_CUDA_STUB_INTEGRATED", "1")]);
    }
}

fn any_managed() -> Hub {
    let builder = onebuf::builder().without(["opencl", "vulkan", "gl"]);
    builder.verdicts(Default::default()).managed_memory(true).build().unwrap()
}

#[test]
#[ignore = "started by the test above, with the stub in its part"]
fn has_managed_memory() {
    assert!(gpus().iter().all(|gpu| gpu.moves_pages), "{:?}", gpus());
    assert_eq!(with_managed_memory(&any_managed()).len(), 2);
    // The control: an onebuf without managed memory has not been skipped.
    let plain = onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Default::default());
    let plain = plain.build().unwrap();
    let missed = std::panic::AssertUnwindSafe(|| with_managed_memory(&plain));
    assert!(std::panic::catch_unwind(missed).is_err());
}

#[test]
#[ignore = "started by the test above, with the stub in its part"]
fn has_none() {
    assert!(gpus().iter().all(|gpu| !gpu.moves_pages), "{:?}", gpus());
    let has = |device: &Device| device.info().caps.memory_kinds.contains(&MemoryKind::Managed);
    assert!(!any_managed().devices().iter().any(has));
}

/// Takes turns on the real devices of this machine.
#[test]
fn real_devices_move_managed_pages() {
    let _alone = one_api();
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).verdicts(Default::default());
    let hub = builder.managed_memory(true).timeout(Duration::from_secs(30)).build().unwrap();
    let able = with_managed_memory(&hub);
    for device in &able {
        let side = Side::open(device).unwrap();
        for n in [1, 1023, WORDS + 1, N, (2 << 20) + 5] {
            let start = Instant::now();
            take_turns_on_pages(&hub, &side, n);
            note(&format!("{device}: {n} words in managed memory: {:?}", start.elapsed()));
        }
        take_parts(&hub, &side);
        forbid(&hub, &side);
        in_turn(&hub, &side);
        live_in_turn(device, &fresh(device).unwrap()).unwrap();
    }
    note(&hub.ledger().to_string());
}
