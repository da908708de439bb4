//! OpenCL's creation flags, as numbers, on every OpenCL platform: which exclude each other, and that the
//! others take effect whether or not the driver supports them.

use super::regions::{put_and_take, put_model};
use crate::{Ending, Side, Step, Trial, assert_same, pages_apart, random_words, step_model};
use onebuf::{
    Access, Buffer, BufferBuilder, Error, HostAccess, Kernel, MemoryKind, Result, RouteKind, args,
};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

const N: usize = 2 * 1024;
const READ_WRITE: u64 = 1;
const WRITE_ONLY: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 2;
const USE_HOST_PTR: u64 = 1 << 3;
const ALLOC_HOST_PTR: u64 = 1 << 4;
const COPY_HOST_PTR: u64 = 1 << 5;
const HOST_WRITE_ONLY: u64 = 1 << 7;
const HOST_READ_ONLY: u64 = 1 << 8;
const HOST_NO_ACCESS: u64 = 1 << 9;
const USE_MSMC_TI: u64 = 1 << 20;
const ALL: [u64; 10] = [
    READ_WRITE,
    WRITE_ONLY,
    READ_ONLY,
    USE_HOST_PTR,
    ALLOC_HOST_PTR,
    COPY_HOST_PTR,
    HOST_WRITE_ONLY,
    HOST_READ_ONLY,
    HOST_NO_ACCESS,
    USE_MSMC_TI,
];

/// Pages that the test allocated, and how often they were dropped.
struct Pages {
    at: NonNull<u32>,
    dropped: Arc<AtomicU32>,
}

// SAFETY: plain memory, and the buffer synchronises its use.
unsafe impl Send for Pages {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pages {}

impl Pages {
    const LAYOUT: Layout = match Layout::from_size_align(4 * N + 4096, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    };

    /// Allocates one page more than the buffer, which starts `skip` words in.
    fn new(contents: &[u32], skip: usize) -> (NonNull<u32>, Arc<Pages>, Arc<AtomicU32>) {
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(Self::LAYOUT) };
        let at = NonNull::new(at.cast::<u32>()).expect("a few pages");
        // SAFETY: `skip` is at most a page.
        let first = unsafe { at.add(skip) };
        // SAFETY: the allocation has N words and a page, and nothing else uses it yet.
        unsafe { first.copy_from(NonNull::from(contents).cast(), contents.len()) };
        let dropped = Arc::new(AtomicU32::new(0));
        (first, Arc::new(Pages { at, dropped: dropped.clone() }), dropped)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        // SAFETY: allocated with this layout, once.
        unsafe { dealloc(self.at.as_ptr().cast(), Self::LAYOUT) };
    }
}

/// Runs a check on each OpenCL device, because the flags apply to OpenCL only.
fn each_opencl(t: &Trial<'_>, check: impl Fn(&Side)) {
    let opencl = t.sides().filter(|side| side.device.info().api.0 == "opencl");
    opencl.for_each(|side| t.on(&[side], "", || check(side)));
}

/// Builds the buffer for these flags, with the memory or contents that they require.
fn build(side: &Side, bits: u64, contents: &[u32]) -> Result<Buffer<u32>> {
    let builder = side.device.hub().buffer::<u32>(N).shared_with([&side.device]);
    let builder = match bits & USE_HOST_PTR {
        0 => builder.allocate_on(&side.device),
        _ => over(builder, contents).0,
    };
    let builder = builder.cl_flags(bits)?;
    if bits & COPY_HOST_PTR != 0 {
        builder.init(contents.to_vec()).build()
    } else {
        builder.build()
    }
}

fn over<'i>(
    builder: BufferBuilder<'i, u32>,
    contents: &[u32],
) -> (BufferBuilder<'i, u32>, NonNull<u32>, Arc<AtomicU32>) {
    let (at, pages, dropped) = Pages::new(contents, 0);
    let builder = builder.route(RouteKind::HostPointer).trust_declared(true);
    // SAFETY: N words that nothing else uses, alive as long as their owner.
    (unsafe { builder.host_memory(at, pages as Arc<dyn Any + Send + Sync>) }, at, dropped)
}

pub fn flags_that_exclude_each_other_are_refused(t: &Trial<'_>) {
    let sets: [&[u64]; 4] = [
        &[READ_WRITE, WRITE_ONLY, READ_ONLY],
        &[USE_HOST_PTR, ALLOC_HOST_PTR, USE_MSMC_TI],
        &[USE_HOST_PTR, COPY_HOST_PTR],
        &[HOST_WRITE_ONLY, HOST_READ_ONLY, HOST_NO_ACCESS],
    ];
    each_opencl(t, |side| {
        let mut refused = 0;
        for (a, b) in ALL.iter().flat_map(|a| ALL.iter().map(move |b| (*a, *b))) {
            let exclude = a != b && sets.iter().any(|set| set.contains(&a) && set.contains(&b));
            let parsed = t.hub().buffer::<u32>(N).shared_with([&side.device]).cl_flags(a | b);
            match parsed {
                Err(Error::InvalidArgument(why)) => {
                    assert!(exclude && why.contains("exclude each other"), "{a:#x} {b:#x}: {why}");
                    refused += 1;
                }
                Err(error) => panic!("{a:#x} {b:#x}: {error}"),
                Ok(_) => assert!(!exclude, "{a:#x} and {b:#x} were taken together"),
            }
        }
        assert_eq!(refused, 2 * (3 + 3 + 1 + 3), "{}", side.device);
        let unknown = t.hub().buffer::<u32>(N).cl_flags(1 << 6);
        assert!(matches!(unknown, Err(Error::InvalidArgument(_))));
        for (alone, wants) in [(USE_HOST_PTR, "host_memory"), (COPY_HOST_PTR, "init")] {
            let without = t.hub().buffer::<u32>(N).shared_with([&side.device]).cl_flags(alone);
            let Err(Error::InvalidArgument(why)) = without.unwrap().build() else { panic!() };
            assert!(why.contains(wants), "{why}");
        }
    });
}

#[track_caller]
fn allowed<T>(outcome: Result<T>, may: bool, why: &str, what: &str) -> Option<T> {
    match outcome {
        Ok(value) => {
            assert!(may, "{what}: accepted");
            Some(value)
        }
        Err(Error::InvalidArgument(text)) => {
            assert!(!may && text.contains(why), "{what}: {text}");
            None
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Tries every access of kernels and the host, and checks the contents after each.
fn use_it(
    side: &Side,
    kernels: &[Kernel; 2],
    buffer: &Buffer<u32>,
    bits: u64,
    first: Vec<u32>,
    what: &str,
) {
    let (reads, writes) = (bits & WRITE_ONLY == 0, bits & READ_ONLY == 0);
    let host_reads = bits & (HOST_WRITE_ONLY | HOST_NO_ACCESS) == 0;
    let host_writes = bits & (HOST_READ_ONLY | HOST_NO_ACCESS) == 0;
    let (queue, [put, take]) = (&side.queue, kernels);
    let plain = || side.device.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
    let seen_inside = || {
        let copy = plain();
        copy.copy_from(0, buffer, ..).unwrap_or_else(|e| panic!("{what}: {e}"));
        copy.to_vec().unwrap()
    };
    let mut model = first;
    assert_same(&seen_inside(), &model, what);

    let result = plain();
    let views = args![buffer.read_on(queue).unwrap(), result.write_on(queue).unwrap()];
    let taken = queue.launch(take, [N], views);
    if allowed(taken, reads, "made for write", what).is_some() {
        let model: Vec<u32> = model.iter().map(|x| x ^ 0x5a5a_5a5a).collect();
        assert_same(&result.to_vec().unwrap(), &model, what);
    }
    let written = queue.launch(put, [N], args![buffer.write_on(queue).unwrap(), 5u32]);
    if allowed(written, writes, "made for read", what).is_some() {
        model = put_model(5, N);
    }
    assert_same(&seen_inside(), &model, what);

    if let Some(seen) = allowed(buffer.to_vec(), host_reads, "host access", what) {
        assert_same(&seen, &model, what);
    }
    if let Some(map) = allowed(buffer.map(), host_reads, "host access", what) {
        assert_same(&map, &model, what);
    }
    let given = random_words(bits, N);
    if allowed(buffer.write(&given), host_writes, "host access", what).is_some() {
        model = given;
    }
    if let Some(mut map) = allowed(buffer.map_mut(), host_reads && host_writes, "host access", what)
    {
        map[3] = 4;
        model[3] = 4;
    }
    let batched = buffer.batch().write(9, &[1]).and_then(|batch| batch.flush());
    if allowed(batched, host_writes, "host access", what).is_some() {
        model[9] = 1;
    }
    let sent = buffer.write_async(20..22, vec![7, 8]);
    if let Some(mut sent) = allowed(sent, host_writes, "host access", what) {
        sent.wait(Duration::from_secs(20)).unwrap();
        model[20..22].copy_from_slice(&[7, 8]);
    }
    assert_same(&seen_inside(), &model, what);
    explained(side, buffer, bits, what);
}

fn explained(side: &Side, buffer: &Buffer<u32>, bits: u64, what: &str) {
    let text = buffer.explain();
    // Neither OpenCL 1.1 nor SVM has flags for the host's access.
    let svm = matches!(buffer.plan().memory_kind, MemoryKind::FineSvm | MemoryKind::CoarseSvm);
    let knows_host = !svm && !side.device.info().version.starts_with("OpenCL 1.1");
    let names = [
        (READ_ONLY, "CL_MEM_READ_ONLY", true),
        (WRITE_ONLY, "CL_MEM_WRITE_ONLY", true),
        (USE_HOST_PTR, "CL_MEM_USE_HOST_PTR", true),
        (ALLOC_HOST_PTR, "CL_MEM_ALLOC_HOST_PTR", true),
        (HOST_READ_ONLY, "CL_MEM_HOST_READ_ONLY", knows_host),
        (HOST_WRITE_ONLY, "CL_MEM_HOST_WRITE_ONLY", knows_host),
        (HOST_NO_ACCESS, "CL_MEM_HOST_NO_ACCESS", knows_host),
    ];
    for (bit, name, _) in names.into_iter().filter(|(bit, _, passed)| bits & bit != 0 && *passed) {
        assert!(text.contains(name), "{what}: {bit:#x} is not told: {text}");
    }
    assert!(knows_host || !text.contains("CL_MEM_HOST"), "{what}: an unknown flag: {text}");
}

pub fn every_allowed_combination_does_what_it_says(t: &Trial<'_>) {
    let data = random_words(3, N);
    each_opencl(t, |side| {
        let kernels = put_and_take(side).unwrap();
        let (mut worked, mut refused) = (0, 0);
        let places =
            [0, USE_HOST_PTR, ALLOC_HOST_PTR, COPY_HOST_PTR, ALLOC_HOST_PTR | COPY_HOST_PTR];
        for access in [0, READ_WRITE, WRITE_ONLY, READ_ONLY] {
            for host in [0, HOST_READ_ONLY, HOST_WRITE_ONLY, HOST_NO_ACCESS] {
                for place in places {
                    let bits = access | host | place;
                    let what = format!("{} {bits:#x}", side.device);
                    let held = place & (USE_HOST_PTR | COPY_HOST_PTR) != 0;
                    match build(side, bits, &data) {
                        Ok(buffer) => {
                            let first = if held { data.clone() } else { vec![0; N] };
                            use_it(side, &kernels, &buffer, bits, first, &what);
                            worked += 1;
                        }
                        // Memory of the host is always accessible to the host.
                        Err(Error::Unsupported { what: said, .. }) => {
                            assert!(place == USE_HOST_PTR && host != 0, "{what}: {said}");
                            assert!(said.contains("host access"), "{said}");
                            refused += 1;
                        }
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
            }
        }
        assert_eq!((worked, refused), (4 * 4 * 5 - 12, 12), "{}", side.device);
    });
}

pub fn on_chip_memory_is_refused_with_the_reason(t: &Trial<'_>) {
    t.each_device(|side| {
        let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]);
        let refused = builder.allocate_on(&side.device).cl_flags(USE_MSMC_TI).unwrap().build();
        let Err(error @ Error::Unsupported { .. }) = refused else { panic!("{refused:?}") };
        let text = error.to_string();
        assert!(text.contains("MSMC") && text.contains("Texas Instruments"), "{text}");
        assert!(text.contains(side.device.id()), "{text}");
        let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]);
        assert!(builder.memory_kind(MemoryKind::OnChip).build().is_err(), "{}", side.device);
    });
}

pub fn words_say_the_same_as_flags(t: &Trial<'_>) {
    each_opencl(t, |side| {
        let request =
            || t.hub().buffer::<u32>(N).shared_with([&side.device]).allocate_on(&side.device);
        let words = request().access(Access::Read).host_access(HostAccess::Write);
        let words = words.memory_kind(MemoryKind::MappedDevice).build().unwrap();
        let bits = READ_ONLY | HOST_WRITE_ONLY | ALLOC_HOST_PTR;
        let flags = request().cl_flags(bits).unwrap().build().unwrap();
        assert_eq!(words.explain(), flags.explain(), "{}", side.device);
        assert!(words.explain().contains("for kernels: read; for the host: write"));
        assert_ne!(words.explain(), request().build().unwrap().explain(), "the control");
    });
}

fn settled(dropped: &AtomicU32) -> u32 {
    let start = Instant::now();
    while dropped.load(Ordering::SeqCst) == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    dropped.load(Ordering::SeqCst)
}

pub fn kernels_write_the_callers_own_pages(t: &Trial<'_>) {
    t.each_device(|shared| {
        if !shared.device.info().caps.imports_host_pages {
            return Ending::not_applicable("the device imports no host pages");
        }
        let side = Side::open(&shared.device).unwrap();
        let (id, data) = (side.device.id(), random_words(4, N));
        let request = || t.hub().buffer::<u32>(N).shared_with([&side.device]);
        let (builder, at, dropped) = match id {
            "host" => {
                let (at, pages, dropped) = Pages::new(&data, 0);
                // SAFETY: N words that nothing else uses, alive as long as their owner.
                (unsafe { request().host_memory(at, pages) }, at, dropped)
            }
            _ => over(request(), &data),
        };
        let buffer = builder.build().unwrap_or_else(|e| panic!("{id}: {e}"));
        let mut model = data.clone();
        for round in 0..3 {
            side.step(&buffer, Step::nth(round)).unwrap();
            step_model(&mut model, Step::nth(round));
            let map = buffer.map().unwrap();
            // SAFETY: N words that nothing writes while the map is held.
            let seen = unsafe { NonNull::slice_from_raw_parts(at, N).as_ref() };
            assert_same(seen, &model, id);
            assert_eq!(pages_apart(seen, &data), [0, 1], "{id}: the control");
            assert_eq!(map.as_ptr(), at.as_ptr().cast_const(), "{id}: in place");
        }
        side.step(&buffer, Step::nth(9)).unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "{id}: dropped before the buffer");
        let other = request().build().unwrap();
        drop(buffer);
        // Rusticl keeps a kernel's last argument until it is replaced.
        side.step(&other, Step::nth(1)).unwrap();
        side.queue.finish().unwrap();
        assert_eq!(settled(&dropped), 1, "{id}: dropped once");
        Ending::Passed
    });
}

pub fn misplaced_memory_is_refused_and_given_back(t: &Trial<'_>) {
    t.each_device(|side| {
        let (at, pages, dropped) = Pages::new(&[5; N], 1);
        let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]);
        // SAFETY: N words from the second word on, alive as long as their owner.
        let refused = unsafe { builder.host_memory(at, pages) }.build();
        let Err(Error::InvalidArgument(why)) = refused else { panic!("{side:?}: {refused:?}") };
        assert!(why.contains("aligned to") && why.contains("0x"), "{why}");
        assert_eq!(settled(&dropped), 1, "{}", side.device);
    });
}

pub fn misplaced_memory_is_used_by_copies_on_request(t: &Trial<'_>) {
    t.each_device(|side| {
        let data: Vec<u32> = (0..N as u32).collect();
        let (at, pages, dropped) = Pages::new(&data, 1);
        let builder = t.hub().buffer::<u32>(N).shared_with([&side.device]);
        // SAFETY: N words from the second word on, alive as long as their owner.
        let builder = unsafe { builder.host_memory(at, pages) };
        let buffer = builder.route(RouteKind::Staged).build().unwrap();
        let before = t.hub().ledger().implied_bytes();
        let mut model = data.clone();
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        let map = buffer.map().unwrap();
        assert_same(&map, &model, side.device.id());
        assert_eq!(map.as_ptr(), at.as_ptr().cast_const(), "{}", side.device);
        let copied = t.hub().ledger().implied_bytes() > before;
        assert_eq!(copied, side.device.info().api.0 != "host", "{}", side.device);
        drop(map);
        drop(buffer);
        assert_eq!(settled(&dropped), 1, "{}", side.device);
    });
}
