//! Ownership of wrapped memory: references, claims, guards, threads.

use super::{alone, context, hub, owners, queue, twin, wrap, wrapped};
use onebuf::{Access, Buffer, Error, Result, prelude::*};
use onebuf_conformance::{
    Side, Step, assert_same,
    class_a::{assert_restored, spin_model},
    random_words, step_model, threads_on,
};
use onebuf_sys::opencl::consts::CL_MEM_READ_WRITE;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const N: usize = 3000;

#[test]
fn a_wrapped_buffer_outlives_its_owner() {
    let _alone = alone("an owner that goes");
    for a in owners() {
        let hub = hub();
        let model = random_words(1, N);
        let mem = a.words(&model);
        let more = mem.clone();
        let before = mem.count();
        let buffer = wrapped(&hub, &mem);
        assert!(buffer.is_foreign());
        assert!(mem.count() > before, "{}: retained", a.platform);
        drop((mem, more));
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        drop(a);
        // Only this test holds references to the memory and the context now.
        side.step(&buffer, Step::nth(2)).unwrap();
        let mut model = model;
        step_model(&mut model, Step::nth(2));
        assert_same(&buffer.to_vec().unwrap(), &model, "without class A");
    }
}

#[test]
fn a_borrowed_buffer_is_a_buffer() {
    let _alone = alone("borrowed memory");
    let hub = hub();
    for a in owners() {
        let mut model = random_words(2, N);
        let mem = a.words(&model);
        let before = a.reference_counts(&[&mem], &[]);
        {
            let borrowed = wrap(&hub, &mem).len(N).borrowed(&mem).unwrap();
            assert_eq!(borrowed.len(), N);
            borrowed.write_range(7..9, &[1, 2]).unwrap();
        }
        model[7..9].copy_from_slice(&[1, 2]);
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

/// Waits for something that a driver's thread does.
#[track_caller]
fn eventually(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: never");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_claim_is_settled_once_and_after_our_work() {
    let _alone = alone("owned memory");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(3, N);
        let mem = a.words(&model);
        let (calls, at) = (Arc::new(AtomicU32::new(0)), mem.raw().addr());
        let (settled, done) = (calls.clone(), Arc::new(AtomicU32::new(0)));
        let all_done = done.clone();
        let kept = mem.clone();
        // A failed wrap takes no ownership.
        let other = calls.clone();
        let refused = wrap(&hub, &mem).len(N + 1).owned(move |_| {
            other.fetch_add(100, Ordering::SeqCst);
        });
        assert!(refused.build().is_err());
        let fences = Arc::new(std::sync::Mutex::new(Vec::new()));
        let at_release = fences.clone();
        let claim = move |raw: *mut std::ffi::c_void| {
            assert_eq!(raw.addr(), at);
            let fences: Vec<onebuf::Fence> = std::mem::take(&mut *at_release.lock().unwrap());
            let over = fences.iter().filter(|fence| fence.is_done() == Ok(true)).count();
            all_done.store(over as u32, Ordering::SeqCst);
            settled.fetch_add(1, Ordering::SeqCst);
            drop(mem);
        };
        let buffer = wrap(&hub, &kept).owned(claim).build().unwrap();
        let second = wrapped(&hub, &kept);
        for n in 0..3 {
            let view = buffer.write_on(&side.queue).unwrap();
            let fence = side.step_view(view, N, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
            fences.lock().unwrap().push(fence);
        }
        drop(buffer);
        assert_eq!(calls.load(Ordering::SeqCst), 0, "{}: still wrapped", a.platform);
        drop(second);
        eventually("the claim", || calls.load(Ordering::SeqCst) > 0);
        assert_eq!(done.load(Ordering::SeqCst), 3, "{}: before our work was over", a.platform);
        assert_same(&a.read(&a.queue, &kept, N), &model, &a.platform);
        drop((side, hub));
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{}: once", a.platform);
    }
}

#[test]
fn elements_are_counted() {
    let _alone = alone("element counts");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&vec![0; N]);
        let before = a.reference_counts(&[&mem], &[]);
        assert_eq!(wrap(&hub, &mem).len(N).build().unwrap().len(), N);
        assert_eq!(wrapped(&hub, &mem).len(), N);
        for wrong in [0, 1, N - 1, N + 1, usize::MAX] {
            let refused = wrap(&hub, &mem).len(wrong).build();
            let Err(Error::InvalidArgument(why)) = refused else { panic!("{wrong}: {refused:?}") };
            assert!(why.contains(&format!("{wrong}")) && why.contains("3000"), "{why}");
        }
        // SAFETY: class A holds a reference.
        let as_others = unsafe {
            let refused = hub.wrap_buffer::<[u32; 7]>(mem.raw()).build().map(drop);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
            hub.wrap_buffer::<[u32; 3]>(mem.raw()).build().unwrap()
        };
        assert_eq!(as_others.len(), N / 3);
        drop(as_others);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

fn is_busy<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Busy { .. }))
}

#[test]
fn two_wraps_of_one_object_exclude_each_other() {
    let _alone = alone("two wraps");
    let hub = hub();
    for a in owners() {
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(4, N);
        let mem = a.words(&model);
        let (one, two) = (wrapped(&hub, &mem), wrapped(&hub, &mem));
        let writing = one.write_on(&side.queue).unwrap();
        assert!(is_busy(two.read_on(&side.queue)), "{}", a.platform);
        assert!(is_busy(two.map()) && is_busy(two.write(&model)), "{}", a.platform);
        drop(writing);
        let reading = one.read_on(&side.queue).unwrap();
        drop(two.read_on(&side.queue).expect("readers go together"));
        assert!(is_busy(two.write_on(&side.queue)), "{}", a.platform);
        drop(reading);
        // Each is ordered after the other's work, on any queue.
        let other = Side::open(&side.device).unwrap();
        for n in 0..6 {
            let (side, buffer) = if n % 2 == 0 { (&side, &one) } else { (&other, &two) };
            side.step(buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
        }
        assert_same(&one.to_vec().unwrap(), &model, &a.platform);
        assert_same(&two.to_vec().unwrap(), &model, &a.platform);
    }
}

#[test]
fn a_whole_and_its_parts_exclude_each_other() {
    let _alone = alone("wholes and parts");
    let hub = hub();
    for a in owners() {
        let half = 4096.max(twin(&hub, &a).info().caps.align_bytes);
        let words = half / 4;
        let mut model = random_words(5, 2 * words);
        let mem = a.words(&model);
        let left = a.sub_buffer(&mem, CL_MEM_READ_WRITE, 0, half);
        let right = a.sub_buffer(&mem, CL_MEM_READ_WRITE, half, half);
        let before = a.reference_counts(&[&mem, &left, &right], &[]);
        let device = context(&hub, &a).device();
        let sides = [Side::open(&device).unwrap(), Side::open(&device).unwrap()];
        {
            let (l, r) = (wrapped(&hub, &left), wrapped(&hub, &right));
            let whole = wrapped(&hub, &mem);
            assert_eq!((l.len(), r.len(), whole.len()), (words, words, 2 * words));
            let views =
                (l.write_on(&sides[0].queue).unwrap(), r.write_on(&sides[1].queue).unwrap());
            assert!(is_busy(whole.read_on(&sides[0].queue)), "{}", a.platform);
            assert!(is_busy(wrapped(&hub, &left).map()), "{}", a.platform);
            sides[0].step_view(views.0, words, Step::nth(1)).unwrap();
            sides[1].step_view(views.1, words, Step::nth(2)).unwrap();
            step_model(&mut model[..words], Step::nth(1));
            step_model(&mut model[words..], Step::nth(2));
            assert_same(&whole.to_vec().unwrap(), &model, &a.platform);
            sides[0].step(&whole, Step::nth(3)).unwrap();
            step_model(&mut model, Step::nth(3));
            assert_same(&r.to_vec().unwrap(), &model[words..], &a.platform);
            r.fill(9).unwrap();
            model[words..].fill(9);
            assert_same(&l.map().unwrap(), &model[..words], &a.platform);
        }
        drop(sides);
        assert_same(&a.read(&a.queue, &mem, 2 * words), &model, &a.platform);
        assert_same(&a.read(&a.queue, &right, words), &model[words..], &a.platform);
        drop(device);
        let now = || a.reference_counts(&[&mem, &left, &right], &[]);
        assert_restored(&before, now, &a.platform);
    }
}

/// `x + 1 + i`: steps that commute.
const COUNT: Step = Step { mul: 1, add: 1 };

fn insist(side: &Side, buffer: &Buffer<u32>) {
    loop {
        match side.step(buffer, COUNT) {
            Err(Error::Busy { .. }) => thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

#[test]
fn threads_wrap_the_same_and_their_own() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 10;
    let _alone = alone("threads");
    for a in owners() {
        let hub = hub();
        let shared = a.words(&vec![0; N]);
        let before = a.reference_counts(&[&shared], &[]);
        let wraps = AtomicUsize::new(0);
        let count = threads_on(&context(&hub, &a).device(), THREADS);
        thread::scope(|scope| {
            let work = || {
                let own = a.words(&vec![0; N]);
                let side = Side::open(&context(&hub, &a).device()).unwrap();
                for _ in 0..ROUNDS {
                    insist(&side, &wrapped(&hub, &shared));
                    insist(&side, &wrapped(&hub, &own));
                    wraps.fetch_add(1, Ordering::Relaxed);
                }
                let mut model = vec![0; N];
                (0..ROUNDS).for_each(|_| step_model(&mut model, COUNT));
                assert_same(&wrapped(&hub, &own).to_vec().unwrap(), &model, "a thread's own");
            };
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
        });
        assert_eq!(wraps.into_inner(), count * ROUNDS);
        let mut model = vec![0; N];
        (0..count * ROUNDS).for_each(|_| step_model(&mut model, COUNT));
        assert_same(&a.read(&a.queue, &shared, N), &model, &a.platform);
        drop(hub);
        assert_restored(&before, || a.reference_counts(&[&shared], &[]), &a.platform);
    }
}

#[test]
fn dropping_the_last_wrap_waits_for_our_work() {
    let _alone = alone("the last wrap");
    let hub = hub();
    for a in owners() {
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        let mut model = random_words(6, N);
        let mem = a.words(&model);
        let ours = queue(&hub, &a.queue);
        for n in 0..5 {
            let buffer = wrapped(&hub, &mem);
            drop(a.spin(&a.queue, &mem, N, 5_000, &[]));
            spin_model(&mut model, 5_000);
            buffer.written_until(&ours.fence()).unwrap();
            side.step(&buffer, Step::nth(n)).unwrap();
            step_model(&mut model, Step::nth(n));
            drop(buffer);
            // No further calls of ours: the owner continues on its own.
            a.step(&a.queue, &mem, N, Step::nth(n + 10), &[]);
            step_model(&mut model, Step::nth(n + 10));
        }
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        // A region alone keeps the buffer wrapped.
        let part = wrapped(&hub, &mem);
        let region = part.sub_buffer(..1024, Access::Read).unwrap();
        assert_same(&region.map().unwrap(), &model[..1024], &a.platform);
    }
}
