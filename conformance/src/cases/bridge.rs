//! Copies between any two buffers: every page arrives, nothing else changes, and the report is correct.

use crate::{
    Side, Step, Trial, assert_same, fake_machine, note, pages_apart, random_words, step_model,
};
use onebuf::{
    Access, Buffer, Error, MemoryKind, Result, RouteKind,
    bridge::{self, Crossing},
    fake::{FakeConfig, Sharing},
};
use std::{cell::RefCell, collections::BTreeMap};

/// Lengths in words: an odd number of pages and a bit; the other buffer is longer.
const N: usize = 5 * 1024 + 13;
const M: usize = 7 * 1024 + 5;

/// Start in the source, start in the target, and length of a range, in words.
const RANGES: [(usize, usize, usize); 5] =
    [(0, 0, N), (1, 3, N - 1), (7, 1029, 4096), (N - 1, M - 1, 1), (3, 2, 1)];

type Copy = fn(&Buffer<u32>, (usize, usize, usize), &Buffer<u32>) -> Result<Crossing>;

fn now(
    from: &Buffer<u32>,
    (at, to_at, len): (usize, usize, usize),
    to: &Buffer<u32>,
) -> Result<Crossing> {
    bridge::copy(from, at..at + len, to, to_at)
}

fn later(
    from: &Buffer<u32>,
    (at, to_at, len): (usize, usize, usize),
    to: &Buffer<u32>,
) -> Result<Crossing> {
    let (crossing, fence) = bridge::copy_async(from, at..at + len, to, to_at)?;
    fence.wait_default()?;
    Ok(crossing)
}

fn buffer(side: &Side, memory_kind: MemoryKind, n: usize) -> Buffer<u32> {
    let builder = side.device.hub().buffer::<u32>(n).shared_with([&side.device]);
    builder
        .allocate_on(&side.device)
        .memory_kind(memory_kind)
        .build()
        .unwrap_or_else(|e| panic!("{side:?}: {e}"))
}

/// The memory kind that most devices can access, and the one that fewest can.
fn memory_kinds(side: &Side) -> Vec<MemoryKind> {
    let all = side.device.info().caps.memory_kinds.iter().copied();
    let mut ends: Vec<MemoryKind> = all.clone().min().into_iter().chain(all.max()).collect();
    ends.dedup();
    ends
}

/// Copies every range, and compares every word of the target each time.
fn cross(from: &Buffer<u32>, to: &Buffer<u32>, copy: Copy, what: &str) -> Vec<RouteKind> {
    let (source, mut model) = (random_words(3, N), random_words(4, M));
    from.write(&source).unwrap();
    to.write(&model).unwrap();
    let control = pages_apart(&to.to_vec().unwrap()[..N], &source);
    assert_eq!(control.len(), N.div_ceil(1024), "{what}: the control is no control");
    let mut ways = Vec::new();
    for range @ (at, to_at, len) in RANGES {
        let crossing = copy(from, range, to).unwrap_or_else(|e| panic!("{what} {range:?}: {e}"));
        model[to_at..to_at + len].copy_from_slice(&source[at..at + len]);
        assert_same(&to.to_vec().unwrap(), &model, &format!("{what} {range:?}, {crossing}"));
        assert_eq!(crossing.bytes, 4 * len as u64, "{what}: {crossing}");
        assert_eq!(crossing.way == RouteKind::Staged, crossing.chunks > 0, "{what}: {crossing}");
        ways.push(crossing.way);
    }
    assert_same(&from.to_vec().unwrap(), &source, what);
    ways
}

/// Runs a check on every two devices, and on each with itself. The text names both.
fn each_two(t: &Trial<'_>, check: impl Fn(&Side, &Side, &str)) {
    let sides = &t.machine.sides;
    for (from, to) in sides.iter().flat_map(|from| sides.iter().map(move |to| (from, to))) {
        let what = format!("{} -> {}", from.device, to.device);
        t.on(&[from, to], "", || check(from, to, &what));
    }
}

fn every_pair(t: &Trial<'_>, copy: Copy, called: &str) {
    let ways = RefCell::new(BTreeMap::<RouteKind, usize>::new());
    each_two(t, |from, to, what| {
        for a in memory_kinds(from) {
            for b in memory_kinds(to) {
                let what = format!("{called} {what}, {a} to {b}");
                for way in cross(&buffer(from, a, N), &buffer(to, b, M), copy, &what) {
                    *ways.borrow_mut().entry(way).or_default() += 1;
                }
            }
        }
    });
    if t.counts() {
        let ways = ways.into_inner();
        note(&format!("bridge, {called}: {ways:?}"));
        for way in [RouteKind::Same, RouteKind::Staged] {
            assert!(ways.contains_key(&way), "no copy went by {way}: {ways:?}");
        }
    }
}

pub fn every_page_arrives_between_every_two_devices(t: &Trial<'_>) {
    every_pair(t, now, "copy");
}

pub fn every_page_arrives_without_waiting(t: &Trial<'_>) {
    every_pair(t, later, "copy_async");
}

pub fn what_kernels_wrote_is_copied_and_what_was_copied_is_seen_by_kernels(t: &Trial<'_>) {
    each_two(t, |from, to, what| {
        let (a, b) = (memory_kinds(from)[0], memory_kinds(to)[0]);
        let (source, target) = (buffer(from, a, N), buffer(to, b, N));
        for copy in [now as Copy, later] {
            let mut model = random_words(5, N);
            source.write(&model).unwrap();
            from.step(&source, Step::nth(1)).unwrap();
            copy(&source, (0, 0, N), &target).unwrap();
            to.step(&target, Step::nth(2)).unwrap();
            // The source is free again, and later changes to it are not copied.
            from.step(&source, Step::nth(3)).unwrap();
            step_model(&mut model, Step::nth(1));
            step_model(&mut model, Step::nth(2));
            assert_same(&to.look(&target).unwrap(), &model, what);
        }
    });
}

pub fn one_buffer_may_overlap_itself(t: &Trial<'_>) {
    let moves = [
        (0, 1, N - 1),
        (1, 0, N - 1),
        (0, 1000, 4000),
        (1000, 0, 4000),
        (0, 2500, 2500),
        (5, 5, 99),
    ];
    t.each_memory_kind(N, |_, buffer, what| {
        let mut model = random_words(6, N);
        buffer.write(&model).unwrap();
        for (at, to, len) in moves {
            let crossing = bridge::copy(buffer, at..at + len, buffer, to).unwrap();
            model.copy_within(at..at + len, to);
            let what = format!("{what}: {len} from {at} to {to}");
            assert_same(&buffer.to_vec().unwrap(), &model, &what);
            assert_eq!(crossing.bytes == 0, at == to, "{what}: {crossing}");
        }
    });
}

/// Copies more than two chunks, so that several are in flight, in both directions.
pub fn many_chunks_arrive_and_overlap(t: &Trial<'_>) {
    let find = |id| t.machine.sides.iter().find(|side| side.device.id() == id);
    let (Some(first), Some(second)) = (find("fake:0"), find("fake:2")) else { return };
    t.on(&[first, second], "", || {
        let n = 9 * (1 << 20) / 4 + 11;
        let (a, b) = (buffer(first, MemoryKind::Device, n), buffer(second, MemoryKind::Device, n));
        let mut model = random_words(9, n);
        a.write(&model).unwrap();
        let crossing = bridge::copy(&a, .., &b, 0).unwrap();
        assert_eq!((crossing.way, crossing.chunks), (RouteKind::Staged, 3), "{crossing}");
        assert_same(&b.to_vec().unwrap(), &model, "in chunks");
        for (at, to) in [(0, 1), (2, 0)] {
            let len = n - 2;
            let crossing = bridge::copy(&b, at..at + len, &b, to).unwrap();
            assert_eq!(crossing.way, RouteKind::Staged, "{crossing}");
            model.copy_within(at..at + len, to);
            assert_same(&b.to_vec().unwrap(), &model, "overlapping chunks");
        }
    });
}

pub fn regions_are_ends_as_well(t: &Trial<'_>) {
    each_two(t, |from, to, what| {
        let (a, b) = (buffer(from, memory_kinds(from)[0], N), buffer(to, memory_kinds(to)[0], M));
        let (source, mut model) = (random_words(1, N), random_words(2, M));
        a.write(&source).unwrap();
        b.write(&model).unwrap();
        let left = a.sub_buffer(1024..3072, Access::Read).unwrap();
        let right = b.sub_buffer(2048.., Access::ReadWrite).unwrap();
        bridge::copy(&left, 3..2000, &right, 5).unwrap();
        model[2053..4050].copy_from_slice(&source[1027..3024]);
        assert_same(&b.to_vec().unwrap(), &model, what);
        assert!(bridge::copy(&left, .., &right, right.len() - 5).is_err(), "{what}");
    });
}

pub fn host_memory_goes_both_ways(t: &Trial<'_>) {
    let ledger = t.hub().ledger();
    t.each_memory_kind(N, |_, buffer, what| {
        let mut model = vec![0; N];
        let asked = ledger.asked_bytes();
        let crossing = bridge::from_host(&random_words(1, 2001), buffer, 1023).unwrap();
        model[1023..3024].copy_from_slice(&random_words(1, 2001));
        assert_eq!(ledger.asked_bytes() - asked, crossing.bytes, "{what}");
        let mut back = vec![0; 3000];
        let crossing = bridge::to_host(buffer, 99..3099, &mut back).unwrap();
        assert_same(&back, &model[99..3099], &format!("{what}, {crossing}"));
        let short = bridge::to_host(buffer, .., &mut back);
        assert!(matches!(short, Err(Error::InvalidArgument(_))), "{what}: {short:?}");
    });
}

/// The copy is requested, once, by any route; the cost of a shadow copy is implied.
pub fn the_ledger_and_the_report_agree(t: &Trial<'_>) {
    let ledger = t.hub().ledger();
    each_two(t, |from, to, what| {
        let (a, b) = (buffer(from, memory_kinds(from)[0], N), buffer(to, memory_kinds(to)[0], N));
        for copy in [now as Copy, later] {
            let before = (ledger.asked_bytes(), ledger.implied_bytes());
            let crossing = copy(&a, (0, 1, N - 1), &b).unwrap();
            let after = (ledger.asked_bytes(), ledger.implied_bytes());
            assert_eq!(after.0 - before.0, crossing.bytes, "{what}: {crossing}");
            assert_eq!(after.1 - before.1, crossing.implied_bytes, "{what}: {crossing}");
        }
        let asked = ledger.asked_bytes();
        bridge::copy(&a, 5..10, &a, 5).unwrap();
        assert_eq!(ledger.asked_bytes(), asked, "{what}: nothing was copied");
    });
}

/// For memory that the host accesses in place, each transfer from or to a device is one copy through the pointer.
pub fn what_the_host_sees_is_not_bounced(t: &Trial<'_>) {
    let host = t.machine.side("host");
    t.each_device(|side| {
        if side.device.index() == host.device.index() {
            return;
        }
        let unified = side.device.info().caps.unified_memory;
        let apart = buffer(side, memory_kinds(side)[memory_kinds(side).len() - 1], N);
        let pages = buffer(host, MemoryKind::HostPages, N);
        for crossing in [bridge::copy(&pages, .., &apart, 0), bridge::copy(&apart, .., &pages, 0)] {
            let crossing = crossing.unwrap();
            let expected = if unified { RouteKind::HostPointer } else { RouteKind::Staged };
            let svm = apart.plan().memory_kind == MemoryKind::FineSvm;
            assert!(crossing.way == expected || svm, "{}: {crossing}", side.device);
        }
    });
}

pub fn two_hubs_meet_through_host_memory(t: &Trial<'_>) {
    let other = fake_machine(FakeConfig::default());
    let theirs = buffer(other.side("fake:0"), MemoryKind::Device, M);
    t.each_device(|side| {
        let ours = buffer(side, memory_kinds(side)[0], N);
        cross(&ours, &theirs, now, "to another hub");
        let crossing = bridge::copy(&theirs, 2..2 + N, &ours, 0).unwrap();
        assert_eq!(crossing.way, RouteKind::Staged);
        assert_same(&ours.to_vec().unwrap(), &theirs.to_vec().unwrap()[2..2 + N], "and back");
    });
}

pub fn what_cannot_be_copied_is_refused(t: &Trial<'_>) {
    if !t.has_api("fake") {
        return;
    }
    let machine = fake_machine(FakeConfig {
        shares_host_pages: Sharing::No,
        memory_kinds: vec![MemoryKind::Device],
        ..FakeConfig::default()
    });
    let fake = machine.side("fake:0");
    t.on(&[fake], "", || {
        let buffer = |n| machine.hub.buffer::<u32>(n).shared_with([&fake.device]).build().unwrap();
        let (a, b) = (buffer(10), buffer(5));
        let refused = |outcome: Result<Crossing>| {
            assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{outcome:?}");
        };
        refused(bridge::copy(&a, .., &b, 0));
        refused(bridge::copy(&a, 3..3, &b, 0));
        refused(bridge::copy(&a, 9..11, &b, 0));
        refused(bridge::copy(&a, ..2, &b, usize::MAX));
        refused(bridge::from_host(&[0; 6], &b, 0));
        let queue = fake.device.queue().unwrap();
        let view = b.write_on(&queue).unwrap();
        assert!(matches!(bridge::copy(&a, ..5, &b, 0), Err(Error::Busy { .. })));
        drop(view);
        bridge::copy(&a, ..5, &b, 0).unwrap();
    });
}
