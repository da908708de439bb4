//! One device and its buffer: all transfers, in every memory kind.

use crate::{Ending, Random, Side, Step, Trial, assert_same, block_on, random_words, step_model};
use onebuf::{CopyPolicy, Fence, MemoryKind, hal::RawHandle};
use std::time::Duration;

const SECONDS: Duration = Duration::from_secs(20);
/// A multiple of neither a page nor a work-group.
const N: usize = 3 * 1024 + 77;

pub fn a_new_buffer_is_zeroed_or_what_was_given(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        assert_same(&buffer.to_vec().unwrap(), &[0; N], what);
        let given = random_words(1, N);
        let initial = t.hub().buffer::<u32>(N).shared_with([&side.device]).init(&given[..]);
        assert_same(&initial.build().unwrap().to_vec().unwrap(), &given, what);
    });
}

pub fn explain_says_where_it_lies(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let (id, memory_kind) = (side.device.id(), buffer.plan().memory_kind);
        let text = buffer.explain();
        assert!(text.contains(&format!("allocated on {id} as {memory_kind}")), "{what}: {text}");
        assert_eq!(buffer.plan().allocate_on, side.device.index(), "{what}");
        // The memory kind is real: SVM and host pages are addresses, the others are objects. CUDA and HIP have only addresses.
        let raw = buffer.read_on(&side.queue).unwrap().raw().unwrap();
        let by_address = ["cuda", "hip"].contains(&side.device.info().api.0)
            || matches!(
                memory_kind,
                MemoryKind::FineSvm | MemoryKind::CoarseSvm | MemoryKind::HostPages
            );
        assert_eq!(matches!(raw, RawHandle::Address(_)), by_address, "{what}: {raw:?}");
    });
}

pub fn ranges_are_written_read_and_filled(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let mut random = Random::new(2);
        let mut model = random_words(3, N);
        buffer.write(&model).unwrap();
        for round in 0..12 {
            let start = random.below(N - 1);
            let end = start + 1 + random.below(N - start);
            let part = random_words(round, end - start);
            match round % 4 {
                0 => {
                    buffer.write_range(start..end, &part).unwrap();
                    model[start..end].copy_from_slice(&part);
                }
                1 => {
                    buffer.fill_range(start..=end - 1, part[0]).unwrap();
                    model[start..end].fill(part[0]);
                }
                2 => {
                    side.step_range(buffer, start, end - start, Step::nth(part[0])).unwrap();
                    step_model(&mut model[start..end], Step::nth(part[0]));
                }
                _ => {
                    let mut seen = vec![0; end - start];
                    buffer.read_range(start..end, &mut seen).unwrap();
                    assert_same(&seen, &model[start..end], what);
                }
            }
        }
        assert_same(&buffer.to_vec().unwrap(), &model, what);
        buffer.fill(7).unwrap();
        assert_same(&side.look(buffer).unwrap(), &[7; N], what);
    });
}

pub fn copies_between_buffers_and_within_one(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let mut model = random_words(4, N);
        buffer.write(&model).unwrap();
        for other in &t.machine.sides {
            let memory_kind = *other.device.info().caps.memory_kinds.last().unwrap();
            let second = t.buffer(other, memory_kind, N);
            second.copy_from(5, buffer, 100..1100).unwrap();
            let mut expected = vec![0; N];
            expected[5..1005].copy_from_slice(&model[100..1100]);
            assert_same(
                &second.to_vec().unwrap(),
                &expected,
                &format!("{what} to {}", other.device),
            );
        }
        for (at, from) in [(10, 0..2000), (0, 10..2010), (1000, 0..500)] {
            buffer.copy_from(at, buffer, from.clone()).unwrap();
            model.copy_within(from, at);
            assert_same(&side.look(buffer).unwrap(), &model, what);
        }
    });
}

pub fn transfers_under_way_give_their_vector_back(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let mut model = random_words(5, N);
        let sent = buffer.write_async(.., model.clone()).unwrap().wait(SECONDS).unwrap();
        assert_same(&sent, &model, what);
        side.step(buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        let mut pending = buffer.read_async(10..N, vec![0; N - 10]).unwrap();
        assert_same(&pending.wait(SECONDS).unwrap(), &model[10..], what);
        assert!(pending.is_done().unwrap() && pending.wait(SECONDS).is_err(), "{what}");

        let sent = block_on(buffer.write_async(..2000, model[..2000].to_vec()).unwrap()).unwrap();
        assert_same(&sent, &model[..2000], what);
        let back = block_on(buffer.read_async(.., vec![0; N]).unwrap()).unwrap();
        assert_same(&back, &model, what);
        drop(buffer.write_async(..1, vec![9]).unwrap());
        model[0] = 9;
        assert_same(&buffer.to_vec().unwrap(), &model, what);
    });
}

pub fn a_batch_is_one_hand_over_and_later_writes_win(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let before = t.hub().ledger().asked_bytes();
        let mut batch = buffer.batch();
        batch.write(0, &[1; 10]).unwrap().write(10, &[2; 10]).unwrap();
        batch.write(5, &[3; 10]).unwrap().write(N - 1, &[4]).unwrap();
        assert!(batch.write(N, &[5]).is_err(), "{what}");
        batch.flush().unwrap();
        batch.write(100, &[6]).unwrap();
        drop(batch);
        let mut model = vec![0; N];
        model[..5].fill(1);
        model[5..15].fill(3);
        model[15..20].fill(2);
        (model[100], model[N - 1]) = (6, 4);
        assert_same(&side.look(buffer).unwrap(), &model, what);
        let read = 2 * N as u64 * 4; // by `look`
        assert_eq!(t.hub().ledger().asked_bytes() - before, 32 * 4 + read, "{what}");
    });
}

pub fn maps_are_slices_of_the_newest_contents(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let mut model = random_words(6, N);
        let implied = t.hub().ledger().implied_bytes();
        {
            let mut map = buffer.map_mut().unwrap();
            map.copy_from_slice(&model);
            assert_same(&map, &model, what);
        }
        for round in 0..3 {
            side.step(buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            assert_same(&buffer.map().unwrap(), &model, what);
            let two = (buffer.map().unwrap(), buffer.map().unwrap());
            assert_eq!(two.0[1], two.1[1], "{what}");
        }
        let mut map = buffer.map_mut().unwrap();
        map[N - 1] = 11;
        map.unmap().unwrap();
        model[N - 1] = 11;
        assert_same(&side.look(buffer).unwrap(), &model, what);
        let copied = t.hub().ledger().implied_bytes() - implied;
        let copies = buffer.plan().memory_kind == MemoryKind::Device;
        let bytes = buffer.size_bytes() as u64;
        // Two writable maps copy in both directions, nine read-only maps in one.
        assert!(!copies || copied == (2 * 2 + 9) * bytes, "{what}: {copied} bytes");
    });
}

pub fn fences_tell_when_the_work_is_done(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        side.step(buffer, Step::nth(1)).unwrap();
        let fence: Fence = buffer.fence().unwrap();
        fence.wait(SECONDS).unwrap();
        assert!(fence.is_done().unwrap(), "{what}");
        for _ in 0..5 {
            side.step(buffer, Step::nth(2)).unwrap();
        }
        let all = side.queue.fence();
        block_on(buffer.fence().unwrap()).unwrap();
        all.wait_default().unwrap();
        side.queue.finish().unwrap();
        let mut model = vec![0; N];
        [1, 2, 2, 2, 2, 2].iter().for_each(|&n| step_model(&mut model, Step::nth(n)));
        assert_same(&buffer.to_vec().unwrap(), &model, what);
    });
}

pub fn two_queues_of_one_device_are_ordered(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let other = Side::open(&side.device).unwrap();
        let mut model = vec![0; N];
        for round in 0..20 {
            let side = if round % 2 == 0 { side } else { &other };
            side.step(buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
        }
        assert_same(&buffer.to_vec().unwrap(), &model, what);
        // Several readers may hold views, on both queues.
        let views = [&side.queue, &other.queue, &side.queue].map(|q| buffer.read_on(q).unwrap());
        assert!(buffer.write_on(&side.queue).is_err(), "{what}");
        drop(views);
        drop(buffer.write_on(&side.queue).unwrap());
    });
}

/// What a device declares is what its own memory has; what the program requests is had by all memory with an address.
pub fn memory_is_aligned_for_every_device(t: &Trial<'_>) {
    t.each_memory_kind(N, |side, buffer, what| {
        let (kind, least) = (buffer.plan().memory_kind, side.device.info().caps.align_bytes);
        let mut addresses = 0;
        for align in [1, 64, 4096, 1 << 16] {
            let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]).align(align);
            let built = builder.allocate_on(&side.device).memory_kind(kind).build().unwrap();
            let align = align.max(least).max(64);
            let address = built.read_on(&side.queue).unwrap().address();
            let mapped = built.map().ok().filter(|_| kind == MemoryKind::HostPages);
            let seen = [
                address.ok().map(|address| address.as_ptr().addr()),
                mapped.map(|map| map.as_ptr().addr()),
            ];
            for at in seen.into_iter().flatten() {
                assert_eq!(at % align, 0, "{what}: {at:#x} to {align}");
                addresses += 1;
            }
        }
        match addresses {
            0 => Ending::not_applicable("its memory is an object without an address"),
            _ => Ending::Passed,
        }
    });
}

pub fn every_hint_and_policy_works(t: &Trial<'_>) {
    t.each_device(|side| {
        use onebuf::Hint::{Coherent, CpuPreferred, GpuPreferred, Streaming};
        for hint in [Coherent, CpuPreferred, GpuPreferred, Streaming] {
            let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]).hint(hint);
            let buffer = builder.copies(CopyPolicy::Forbid).build().unwrap();
            side.step(&buffer, Step::nth(3)).unwrap();
            let mut model = vec![0; N];
            step_model(&mut model, Step::nth(3));
            assert_same(&buffer.to_vec().unwrap(), &model, &format!("{} {hint}", side.device));
        }
    });
}
