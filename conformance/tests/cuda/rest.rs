//! Wraps of one pointer again and again: the hub keeps the last ones at rest, and nothing of one is seen in the next.
//!
//! # Safety
//! That of `application.rs`.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason, above, for all raw calls")]

use super::{
    application::{App, Kind, everywhere, flavor_of},
    foreign::{add, adder, pointer, wrap},
    *,
};
use onebuf::prelude::*;
use onebuf_sys::cuda_like::DevicePtr;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Memory at one address may be another allocation in the next call: the driver is asked each time.
#[test]
fn a_pointer_is_described_anew_for_each_wrap() {
    everywhere(|hub, device, app| {
        let whole = |at: DevicePtr| hub.pointer_info(device, pointer(at.0)).unwrap().bytes;
        let at = app.call(|table| unsafe { table.alloc(N * 4) });
        for _ in 0..3 {
            // SAFETY: live memory, which only this thread uses.
            let buffer = unsafe { wrap(hub, device, at.0) }.build().unwrap();
            buffer.fill(5).unwrap();
            drop(buffer);
            assert_eq!(app.words(at.0, N), [5; N]);
        }
        let before = whole(at);
        app.call(|table| unsafe { table.free(at) });
        // SAFETY: refused.
        let gone = unsafe { wrap(hub, device, at.0) }.build();
        assert!(matches!(gone, Err(Error::InvalidArgument { .. })), "{:?}", gone.map(drop));
        // Not at the same address on every driver; the wrap has to be right in both cases.
        let larger = app.call(|table| unsafe { table.alloc(2 * before) });
        // SAFETY: as above.
        let buffer: Buffer<u32> =
            unsafe { hub.wrap_pointer(device, pointer(larger.0), 2 * before / 4) }.build().unwrap();
        buffer.fill(6).unwrap();
        assert_eq!(buffer.len(), 2 * before / 4);
        drop(buffer);
        assert_eq!(app.words(larger.0, 2 * before / 4), vec![6; 2 * before / 4]);
        app.call(|table| unsafe { table.free(larger) });
    });
}

#[test]
fn each_wrap_has_the_properties_that_it_asked_for() {
    everywhere(|hub, device, app| {
        let at = app.memory(Kind::Plain, N * 4);
        let (queue, kernel) = (device.queue().unwrap(), adder(device));
        let released = Arc::new(AtomicUsize::new(0));
        app.put(at, &[0; N]);
        for turn in 1..6u32 {
            let count = released.clone();
            // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
            let wrapped = unsafe { wrap(hub, device, at) };
            let buffer =
                wrapped.name("turn").owned(move |_| _ = count.fetch_add(1, Ordering::SeqCst));
            let buffer = buffer.build().unwrap();
            assert!(buffer.fence().is_none(), "no work of an earlier wrap");
            add(&queue, &kernel, &buffer, 1);
            assert!(buffer.fence().is_some());
            drop(buffer);
            assert_eq!(released.load(Ordering::SeqCst), turn as usize, "once for each wrap");
            assert_eq!(app.words(at, N), [turn; N], "the drop waits");
        }
        // Half of it, with another type and policy, then with the host: other cores.
        // SAFETY: as above.
        let half: Buffer<u16> =
            unsafe { hub.wrap_pointer(device, pointer(at), N) }.build().unwrap();
        assert_eq!(half.len(), N);
        drop(half);
        let strict = unsafe { wrap(hub, device, at) }.copies(CopyPolicy::Forbid).build().unwrap();
        drop(strict);
        let both = unsafe { wrap(hub, device, at) }.shared_with([&hub.host()]).build().unwrap();
        assert_eq!(both.map().unwrap()[..], [5; N]);
        drop(both);
        let alone = unsafe { wrap(hub, device, at) }.build().unwrap();
        assert_eq!(alone.to_vec().unwrap(), [5; N]);
    });
}

/// More pointers than rest, from several threads: each sees its own words.
#[test]
fn many_pointers_on_many_threads_are_wrapped_in_turn() {
    everywhere(|hub, device, app| {
        let at: Vec<u64> = (0..21).map(|_| app.memory(Kind::Plain, N * 4)).collect();
        at.iter().for_each(|at| app.put(*at, &[0; N]));
        thread::scope(|scope| {
            for part in at[..20].chunks(5) {
                scope.spawn(move || {
                    for turn in 0..40 {
                        // SAFETY: live memory, which only this thread uses.
                        let buffer =
                            unsafe { wrap(hub, device, part[turn % part.len()]) }.build().unwrap();
                        buffer.fill(turn as u32).unwrap();
                        assert_eq!(buffer.to_vec().unwrap()[7], turn as u32);
                    }
                });
            }
            // One pointer in two threads, which share its state whenever their wraps meet.
            for _ in 0..2 {
                let last = at[20];
                scope.spawn(move || {
                    for _ in 0..40 {
                        // SAFETY: live memory, which is only read.
                        let buffer = unsafe { wrap(hub, device, last) }.build().unwrap();
                        assert_eq!(buffer.to_vec().unwrap(), [0; N]);
                    }
                });
            }
        });
    });
}

/// A hub that rests nothing but cores is freed, and the primary context with it: the stub ends the process if not.
#[test]
fn a_hub_with_cores_at_rest_is_freed() {
    each(|api, builder| {
        let library = cuda_stub().unwrap().to_string_lossy().into_owned();
        let (app, probe) = (App::new(flavor_of(api), Some(&library), 0), Probe::new());
        let hub = builder.verdicts(Default::default()).probe(probe.clone()).build().unwrap();
        let device = hub.device(&format!("{api}:0")).unwrap();
        for _ in 0..12 {
            let at = app.memory(Kind::Plain, N * 4);
            // SAFETY: the memory lives until `app` is dropped.
            drop(unsafe { wrap(&hub, &device, at) }.build().unwrap());
        }
        let weak = hub.downgrade();
        drop((device, hub));
        assert!(weak.upgrade().is_none(), "nothing keeps the hub");
        assert_settled(&probe, api);
        drop(app);
    });
}
