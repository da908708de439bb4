//! Two devices and the memory between them, by every declared route.

use crate::{Ending, Side, Step, Trial, assert_same, note, random_words, shared, step_model};
use onebuf::{MemoryKind, RouteKind, SyncMethod};

/// Lengths in words: one page, and two sizes that are not whole pages.
const SIZES: [usize; 3] = [1024, 5 * 1024 + 1, 64 * 1024 + 13];

/// The result if the driver's mapping is unaligned. The driver chooses the address at each allocation.
pub fn unaligned() -> Ending {
    Ending::not_applicable("the driver's map is not aligned as the other driver needs it")
}

pub fn every_page_is_seen_from_both_sides(t: &Trial<'_>) {
    t.each_join(|from, to, kind, sync_method, what| {
        for n in SIZES {
            let Some(buffer) = shared(from, to, kind, sync_method, n) else { return unaligned() };
            let mut model = random_words(n as u64, n);
            buffer.write(&model).unwrap();
            for (round, (writer, reader)) in [(from, to), (to, from)].into_iter().enumerate() {
                let step = Step::nth(round as u32 + 1);
                writer.step(&buffer, step).unwrap();
                step_model(&mut model, step);
                assert_same(&reader.look(&buffer).unwrap(), &model, what);
                assert_same(&writer.look(&buffer).unwrap(), &model, what);
                assert_same(&buffer.map().unwrap(), &model, what);
            }
            // A part of the buffer, from both sides alternately; the rest stays unchanged.
            for side in [to, from, to] {
                side.step_range(&buffer, n / 3, n / 3, Step::nth(9)).unwrap();
                step_model(&mut model[n / 3..n / 3 * 2], Step::nth(9));
            }
            assert_same(&from.look(&buffer).unwrap(), &model, what);
            // Both devices see what the host writes in between.
            buffer.write_range(..10, &[1; 10]).unwrap();
            buffer.map_mut().unwrap()[10] = 2;
            model[..10].fill(1);
            model[10] = 2;
            assert_same(&to.look(&buffer).unwrap(), &model, what);
            assert_same(&buffer.to_vec().unwrap(), &model, what);
        }
        Ending::Passed
    });
}

pub fn interleaved_kernels_run_in_the_order_of_the_program(t: &Trial<'_>) {
    const ROUNDS: u32 = 20;
    let handed_over = std::cell::Cell::new(0);
    t.each_join(|from, to, kind, sync_method, what| {
        let n = 500;
        let Some(buffer) = shared(from, to, kind, sync_method, n) else { return unaligned() };
        let mut model = vec![0; n];
        for round in 0..ROUNDS {
            for (side, add) in [(from, 0), (to, 1)] {
                let step = Step::nth(2 * round + add);
                side.step(&buffer, step).unwrap_or_else(|e| panic!("{what}, round {round}: {e}"));
                step_model(&mut model, step);
            }
        }
        assert_same(&buffer.to_vec().unwrap(), &model, what);
        handed_over.set(handed_over.get() + 2 * ROUNDS);
        Ending::Passed
    });
    if t.counts() {
        let (handed_over, fakes_and_host_alone) = (handed_over.get(), 2000);
        note(&format!("{handed_over} hand-overs between kernels"));
        assert!(handed_over >= fakes_and_host_alone, "{handed_over} hand-overs");
    }
}

pub fn readers_on_both_sides_share(t: &Trial<'_>) {
    t.each_join(|from, to, kind, sync_method, what| {
        let n = 2000;
        let Some(buffer) = shared(from, to, kind, sync_method, n) else { return unaligned() };
        let model = random_words(8, n);
        buffer.write(&model).unwrap();
        {
            let _views = [from, to, from].map(|side| buffer.read_on(&side.queue).unwrap());
            let map = buffer.map();
            // The host's own copy of a staged buffer is up to date.
            assert_same(&map.unwrap(), &model, what);
            assert!(buffer.write_on(&from.queue).is_err(), "{what}");
            assert!(buffer.fill(1).is_err(), "{what}");
        }
        to.step(&buffer, Step::nth(1)).unwrap();
        let mut stepped = model;
        step_model(&mut stepped, Step::nth(1));
        assert_same(&from.look(&buffer).unwrap(), &stepped, what);
        Ending::Passed
    });
}

pub fn explain_names_the_route_and_the_sync_method(t: &Trial<'_>) {
    t.each_join(|from, to, kind, sync_method, what| {
        let Some(buffer) = shared(from, to, kind, sync_method, 1024) else { return unaligned() };
        let text = buffer.explain();
        // Nothing is proven here; only fine-grained SVM and descriptors are free of copies by contract.
        let copies = match (kind, buffer.plan().memory_kind) {
            (RouteKind::Staged, _) => "copies",
            (RouteKind::OpaqueFd | RouteKind::DmaBuf, _) => "no copies",
            (RouteKind::SvmPointer, MemoryKind::FineSvm) if to.device.id() == "host" => "no copies",
            _ => "may copy",
        };
        let said = format!("{}: {kind}, {copies}, joined by", to.device);
        assert!(text.contains(&said), "{what}: `{said}` is not in {text}");
        let plan = buffer.plan();
        assert_eq!(plan.routes.len(), 2, "{what}");
        assert!(plan.routes.iter().all(|hop| !hop.why.is_empty()), "{what}: {text}");
        // A plan names the best method of the two directions: the one in use is as good as planned or forced in one of them, and
        // not a callback if that was ruled out.
        let hop = plan.routes.iter().find(|hop| hop.to == to.device.index()).unwrap();
        from.step(&buffer, Step::nth(1)).unwrap();
        let there = buffer.write_on(&to.queue).unwrap().sync_method();
        to.step(&buffer, Step::nth(2)).unwrap();
        let back = buffer.write_on(&from.queue).unwrap().sync_method();
        assert!(
            there.min(back) <= hop.sync.max(sync_method),
            "{what}: {there} and {back} where {} is planned",
            hop.sync
        );
        let is_callback = [there, back].contains(&SyncMethod::Callback);
        assert!(sync_method != SyncMethod::HostWait || !is_callback, "{what}: {there} and {back}");
        Ending::Passed
    });
}

pub fn three_devices_take_turns(t: &Trial<'_>) {
    let sides: Vec<&Side> = t.machine.sides.iter().collect();
    for three in sides.windows(3) {
        t.on(three, "", || {
            let n = 3000;
            let builder = t.hub().buffer::<u32>(n).shared_with(three.iter().map(|s| &s.device));
            let buffer = builder.sync(SyncMethod::HostWait).build().unwrap();
            let mut model = vec![0; n];
            for round in 0..12 {
                three[round % 3].step(&buffer, Step::nth(round as u32)).unwrap();
                step_model(&mut model, Step::nth(round as u32));
            }
            for side in three {
                let what = format!("{three:?} seen by {}", side.device);
                assert_same(&side.look(&buffer).unwrap(), &model, &what);
            }
        });
    }
}
