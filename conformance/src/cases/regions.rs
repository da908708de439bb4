//! Regions of a buffer: written concurrently, restricted for kernels, refused where the rules forbid them.

use super::pairs::unaligned;
use crate::{
    Ending, Held, Side, Step, Trial, assert_same, is_held, kernels, pages_apart, random_words,
    shared, step_model,
};
use onebuf::{Access, Error, Kernel, MemoryKind, Result, RouteKind, Signature, SyncMethod, args};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(20);
/// A page in words: on every known driver a region may start at each page.
const PAGE: usize = 1024;
const HALF: usize = 3 * PAGE;
/// The second half does not end at a page boundary.
const N: usize = 2 * HALF + 77;

/// Asserts the variant of an error and that its text contains each of some words.
macro_rules! refused {
    ($outcome:expr, $kind:pat, $what:expr, $($word:expr),* $(,)?) => {{
        let error = match $outcome {
            Ok(_) => panic!("{}: {} was accepted", $what, stringify!($outcome)),
            Err(error) => error,
        };
        assert!(matches!(error, $kind), "{}: {error:?}", $what);
        let text = error.to_string();
        $(assert!(text.contains($word), "{}: `{}` is not in: {text}", $what, $word);)*
    }};
}

pub fn two_queues_write_a_half_each(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let other = Side::open(&side.device).unwrap();
        let mut model = random_words(1, N);
        buffer.write(&model).unwrap();
        let left = buffer.sub_buffer(..HALF, Access::ReadWrite).unwrap();
        let right = buffer.sub_buffer(HALF.., Access::ReadWrite).unwrap();
        let across = buffer.sub_buffer(PAGE..HALF + PAGE, Access::ReadWrite).unwrap();
        for round in 0..6 {
            let (one, two) = if round % 2 == 0 { (side, &other) } else { (&other, side) };
            let views = (left.write_on(&one.queue).unwrap(), right.write_on(&two.queue).unwrap());
            refused!(across.write_on(&one.queue), Error::Busy { .. }, what, "overlapping", "write");
            refused!(across.read_on(&two.queue), Error::Busy { .. }, what, "overlapping");
            refused!(buffer.write_on(&two.queue), Error::Busy { .. }, what, "overlapping");
            refused!(left.read_on(&one.queue), Error::Busy { .. }, what, "a write view");
            refused!(left.map(), Error::Busy { .. }, what, "a write view");
            let steps = [Step::nth(2 * round), Step::nth(2 * round + 1)];
            one.step_view(views.0, HALF, steps[0]).unwrap();
            two.step_view(views.1, N - HALF, steps[1]).unwrap();
            step_model(&mut model[..HALF], steps[0]);
            step_model(&mut model[HALF..], steps[1]);
        }
        assert_same(&other.look(buffer).unwrap(), &model, what);
        assert_same(&side.look(buffer).unwrap(), &model, what);
        assert_same(&buffer.map().unwrap(), &model, what);
    });
}

/// The control of the test above: work on one half changes each of its pages, and no other.
pub fn work_on_a_half_shows_on_its_pages_only(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let before = random_words(2, N);
        buffer.write(&before).unwrap();
        let right = buffer.sub_buffer(HALF.., Access::ReadWrite).unwrap();
        side.step_view(right.write_on(&side.queue).unwrap(), N - HALF, Step::nth(3)).unwrap();
        assert_eq!(pages_apart(&side.look(buffer).unwrap(), &before), [3, 4, 5, 6], "{what}");
        assert_eq!(pages_apart(&buffer.map().unwrap(), &before), [3, 4, 5, 6], "{what}");
        let left = buffer.sub_buffer(..HALF, Access::ReadWrite).unwrap();
        left.map_mut().unwrap().iter_mut().for_each(|x| *x = !*x);
        let all = [0, 1, 2, 3, 4, 5, 6];
        assert_eq!(pages_apart(&side.look(buffer).unwrap(), &before), all, "{what}");
    });
}

pub fn a_half_does_not_wait_for_the_other(t: &Trial<'_>) {
    t.each_holding(|machine, side| {
        let device = &side.device;
        for &memory_kind in &device.info().caps.memory_kinds {
            let (other, held) = (Side::open(device).unwrap(), Held::new(device).unwrap());
            let buffer = machine.hub.buffer::<u32>(N).shared_with([device]).allocate_on(device);
            let buffer = buffer.memory_kind(memory_kind).build().unwrap();
            let left = buffer.sub_buffer(..HALF, Access::ReadWrite).unwrap();
            let right = buffer.sub_buffer(HALF.., Access::ReadWrite).unwrap();
            held.launch(&side.queue, left.write_on(&side.queue).unwrap()).unwrap();

            // Work on the left half is held, and work on the right half completes.
            let mut model = vec![0; N];
            for round in 0..3 {
                let view = right.write_on(&other.queue).unwrap();
                other.step_view(view, N - HALF, Step::nth(round)).unwrap().wait(SECONDS).unwrap();
                step_model(&mut model[HALF..], Step::nth(round));
            }
            right.fence().unwrap().wait(SECONDS).unwrap();
            assert!(is_held(&left.fence().unwrap()), "{memory_kind}");
            assert!(
                is_held(&buffer.fence().unwrap()),
                "{memory_kind}: the whole is done when both halves are"
            );

            // The control: a region that overlaps the left half does wait.
            let across = buffer.sub_buffer(HALF - PAGE..HALF + PAGE, Access::Read).unwrap();
            drop(across.read_on(&other.queue).unwrap());
            let behind = other.queue.fence();
            assert!(is_held(&behind), "{memory_kind}: nothing was waited for");
            held.let_go();
            behind.wait(SECONDS).unwrap();
            left.fence().unwrap().wait(SECONDS).unwrap();
            model[..HALF].fill(1);
            assert_same(&buffer.to_vec().unwrap(), &model, &memory_kind.to_string());
        }
    });
}

const TEXT: &str = "
kernel void put(global uint *to, uint seed) {
    uint i = (uint)get_global_id(0);
    to[i] = i * 2654435761u + seed;
}
kernel void take(global const uint *from, global uint *to) {
    size_t i = get_global_id(0);
    to[i] = from[i] ^ 0x5a5a5a5au;
}";

pub fn put_model(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect()
}

/// Builds `put`, which only writes its buffer, and `take`, which only reads its first.
pub fn put_and_take(side: &Side) -> Result<[Kernel; 2]> {
    let source = kernels(TEXT)
        .with_native("put", |args| {
            let model = put_model(args.value(1)?, args.global()[0]);
            args.slice_mut(0)?[..model.len()].copy_from_slice(&model);
            Ok(())
        })
        .with_native("take", |args| {
            let ([n, ..], (from, to)) = (args.global(), args.pair::<u32, u32>(0, 1)?);
            to[..n].iter_mut().zip(from).for_each(|(to, from)| *to = from ^ 0x5a5a_5a5a);
            Ok(())
        });
    let program = side.device.program(&source)?;
    let put = Signature::new().each::<u32>(Access::Write).value::<u32>();
    let take = Signature::new().each::<u32>(Access::Read).each::<u32>(Access::Write);
    // SAFETY: work-item i touches element i of each buffer.
    Ok(unsafe { [program.kernel("put", put)?, program.kernel("take", take)?] })
}

pub fn one_kernel_writes_a_child_and_the_next_reads_another(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let [put, take] = put_and_take(side).unwrap();
        let queue = &side.queue;
        let old = random_words(4, N);
        buffer.write(&old).unwrap();
        let to = buffer.sub_buffer(PAGE..4 * PAGE, Access::Write).unwrap();
        let from = buffer.sub_buffer(PAGE..4 * PAGE, Access::Read).unwrap();
        let result = t.hub().buffer::<u32>(3 * PAGE).shared_with([&side.device]);
        let result = result.build().unwrap();
        queue.launch(&put, [3 * PAGE], args![to.write_on(queue).unwrap(), 9u32]).unwrap();
        let views = args![from.read_on(queue).unwrap(), result.write_on(queue).unwrap()];
        queue.launch(&take, [3 * PAGE], views).unwrap();
        let put_there = put_model(9, 3 * PAGE);
        let taken: Vec<u32> = put_there.iter().map(|x| x ^ 0x5a5a_5a5a).collect();
        assert_same(&result.to_vec().unwrap(), &taken, what);
        let mut model = old.clone();
        model[PAGE..4 * PAGE].copy_from_slice(&put_there);
        assert_same(&side.look(buffer).unwrap(), &model, what);
        assert_eq!(pages_apart(&model, &old), [1, 2, 3], "{what}: the control");

        refused!(to.read_on(queue), Error::InvalidArgument(_), what, "read", "made for write");
        refused!(from.write_on(queue), Error::InvalidArgument(_), what, "write", "made for read");
        let views = args![to.write_on(queue).unwrap(), result.write_on(queue).unwrap()];
        let wrong = queue.launch(&take, [3 * PAGE], views);
        refused!(wrong, Error::InvalidArgument(_), what, "argument 0", "made for write");
        let wrong = queue.launch(&put, [3 * PAGE], args![from.read_on(queue).unwrap(), 1u32]);
        refused!(wrong, Error::InvalidArgument(_), what, "argument 0", "a read view");
        let wrong = side.step_view(to.write_on(queue).unwrap(), PAGE, Step::nth(1));
        refused!(wrong, Error::InvalidArgument(_), what, "argument 0", "made for write");
        // More work-items than the region has elements; the whole buffer would have enough.
        let wrong = queue.launch(&put, [3 * PAGE + 1], args![to.write_on(queue).unwrap(), 1u32]);
        refused!(wrong, Error::InvalidArgument(_), what, "work-items");
        assert_same(&side.look(buffer).unwrap(), &model, what);
    });
}

pub fn what_the_rules_forbid_is_refused_everywhere(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let both = Access::ReadWrite;
        let align = side.device.info().caps.align_bytes;
        let rule = format!("multiple of {align} bytes");
        let words = align / 4;
        // The host shares most of the buffers, and its alignment is that of the least strict device.
        let who = if align > 64 { side.device.id() } else { "on " };
        for (first, byte) in [(1, 4), (words - 1, align - 4), (words + 1, align + 4)] {
            let (element, byte) = (format!("element {first}"), format!("byte {byte}"));
            let region = buffer.sub_buffer(first.., both);
            let words = [rule.as_str(), element.as_str(), byte.as_str(), who];
            refused!(
                region,
                Error::InvalidArgument(_),
                what,
                words[0],
                words[1],
                words[2],
                words[3]
            );
        }
        assert_eq!(buffer.sub_buffer(words..words + 1, both).unwrap().len(), 1, "{what}");
        for range in [0..0, N..N, N..N + 1, 0..N + 1, usize::MAX - 1..usize::MAX] {
            let region = buffer.sub_buffer(range, both);
            refused!(region, Error::InvalidArgument(_), what, "non-empty and inside");
        }
        for has in [Access::Read, Access::Write] {
            let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]).access(has);
            let narrow = builder.build().unwrap();
            for wider in [Access::Read, Access::Write, both].into_iter().filter(|a| *a != has) {
                let region = narrow.sub_buffer(.., wider);
                refused!(region, Error::InvalidArgument(_), what, "never more", "made for");
            }
            assert_eq!(narrow.sub_buffer(PAGE.., has).unwrap().access(), has, "{what}");
        }
        // None of the refused calls left a guard.
        buffer.fill(1).unwrap();
    });
}

pub fn the_strictest_of_the_devices_says_where_a_region_begins(t: &Trial<'_>) {
    t.each_pair(|from, to, what| {
        let buffer = shared(from, to, RouteKind::Staged, SyncMethod::HostWait, N).unwrap();
        let align = [from, to].map(|side| side.device.info().caps.align_bytes);
        let strictest = align[0].max(align[1]);
        let rule = format!("multiple of {strictest} bytes");
        let half = strictest / 8..;
        refused!(buffer.sub_buffer(half, Access::Read), Error::InvalidArgument(_), what, &rule);
        buffer.sub_buffer(strictest / 4.., Access::Read).unwrap();
    });
}

pub fn a_region_written_on_one_device_is_seen_whole_on_the_other(t: &Trial<'_>) {
    t.each_route(|from, to, kind, what| {
        let Some(buffer) = shared(from, to, kind, SyncMethod::HostWait, N) else {
            return unaligned();
        };
        let mut model = random_words(5, N);
        buffer.write(&model).unwrap();
        let left = buffer.sub_buffer(..HALF, Access::ReadWrite).unwrap();
        let right = buffer.sub_buffer(HALF.., Access::ReadWrite).unwrap();
        for (round, (one, two)) in (0..).zip([(from, to), (to, from)]) {
            let before = model.clone();
            let view = left.write_on(&one.queue).unwrap();
            let elsewhere = right.write_on(&two.queue);
            refused!(elsewhere, Error::Busy { .. }, what, "of other bytes");
            refused!(right.read_on(&two.queue), Error::Busy { .. }, what, "of other bytes");
            one.step_view(view, HALF, Step::nth(round)).unwrap();
            step_model(&mut model[..HALF], Step::nth(round));
            let seen = two.look(&buffer).unwrap();
            assert_same(&seen, &model, what);
            assert_eq!(pages_apart(&seen, &before), [0, 1, 2], "{what}: the control");
            assert_same(&buffer.map().unwrap(), &model, what);
            let view = right.write_on(&two.queue).unwrap();
            two.step_view(view, N - HALF, Step::nth(round + 7)).unwrap();
            step_model(&mut model[HALF..], Step::nth(round + 7));
        }
        assert_same(&from.look(&buffer).unwrap(), &model, what);
        assert_same(&to.look(&buffer).unwrap(), &model, what);
        assert_same(&buffer.to_vec().unwrap(), &model, what);
        Ending::Passed
    });
}

pub fn the_host_reads_writes_fills_and_maps_a_region(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let mut model = random_words(6, N);
        buffer.write(&model).unwrap();
        let region = buffer.sub_buffer(PAGE..3 * PAGE, Access::ReadWrite).unwrap();
        assert_eq!((region.len(), region.range()), (2 * PAGE, PAGE..3 * PAGE), "{what}");
        let bytes = 2 * PAGE as u64 * 4;
        let (asked, implied) =
            (|| t.hub().ledger().asked_bytes(), || t.hub().ledger().implied_bytes());

        let before = asked();
        let given = random_words(7, 2 * PAGE);
        region.write(&given).unwrap();
        model[PAGE..3 * PAGE].copy_from_slice(&given);
        let mut back = vec![0; 2 * PAGE];
        region.read(&mut back).unwrap();
        assert_same(&back, &given, what);
        assert_eq!(asked() - before, 2 * bytes, "{what}: the region's bytes, not the buffer's");
        refused!(region.read(&mut back[1..]), Error::InvalidArgument(_), what, "region of 2048");
        refused!(region.write(&model), Error::InvalidArgument(_), what, "region of 2048");
        assert_same(&side.look(buffer).unwrap(), &model, what);

        let before = implied();
        assert_same(&region.map().unwrap(), &given, what);
        let mut map = region.map_mut().unwrap();
        map.iter_mut().for_each(|x| *x ^= 3);
        map.unmap().unwrap();
        model[PAGE..3 * PAGE].iter_mut().for_each(|x| *x ^= 3);
        let copied = implied() - before;
        let hidden = buffer.plan().memory_kind == MemoryKind::Device;
        assert!(!hidden || copied == 3 * bytes, "{what}: {copied} bytes");
        side.step_view(region.write_on(&side.queue).unwrap(), PAGE, Step::nth(1)).unwrap();
        step_model(&mut model[PAGE..2 * PAGE], Step::nth(1));
        assert_same(&region.map().unwrap(), &model[PAGE..3 * PAGE], what);
        assert_same(&side.look(buffer).unwrap(), &model, what);

        let before = asked();
        region.fill(8).unwrap();
        assert_eq!(asked() - before, bytes, "{what}");
        model[PAGE..3 * PAGE].fill(8);
        assert_same(&buffer.to_vec().unwrap(), &model, what);
    });
}
