//! The application's own CUDA and HIP objects: pointers of every kind, allocation handles, streams and events.
//!
//! The application is `application.rs`, which checks the memory with raw copies.
//!
//! # Safety
//! That of `application.rs`.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason, above, for all raw calls")]

use super::{
    application::{App, KINDS, Kind, LEAD, UNIT, everywhere, flavor_of},
    *,
};
use onebuf::{PointerKind, Queue, prelude::*};
use onebuf_conformance::{Hardware, lacking};
use onebuf_sys::cuda_like::{AccessDesc, CuStream, DevicePtr, Location, consts};
use std::ptr;

const ADD: &str = "extern \"C\" __global__ void add(unsigned *p, unsigned by) \
    { p[blockIdx.x * blockDim.x + threadIdx.x] += by; }";

pub fn pointer(at: u64) -> *mut c_void {
    ptr::without_provenance_mut(at as usize)
}

/// # Safety
/// As for `wrap_pointer`.
pub unsafe fn wrap<'h>(hub: &'h Hub, device: &Device, at: u64) -> onebuf::WrapBuilder<'h, u32> {
    unsafe { hub.wrap_pointer(device, pointer(at), N) }
}

pub fn adder(device: &Device) -> onebuf::Kernel {
    let program = device.program(&Source::cuda_c(ADD).with_hip_c(ADD)).unwrap();
    let signature = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
    // SAFETY: each work-item touches its own word, and there are as many as words.
    unsafe { program.kernel("add", signature) }.unwrap()
}

/// Adds to every word on a queue.
pub fn add(queue: &Queue, kernel: &onebuf::Kernel, buffer: &Buffer<u32>, by: u32) {
    queue.launch(kernel, [N], args![buffer.write_on(queue).unwrap(), by]).unwrap();
}

#[test]
fn pointers_of_every_kind_are_used_in_place() {
    everywhere(|hub, device, app| {
        let (queue, kernel) = (device.queue().unwrap(), adder(device));
        for kind in app.kinds() {
            let (at, mut model) = (app.memory(kind, N * 4), random_words(7, N));
            app.put(at, &model);
            let info = hub.pointer_info(device, pointer(at)).unwrap();
            let expected = match kind {
                Kind::Plain | Kind::Mapped | Kind::Async => PointerKind::Device,
                Kind::Managed => PointerKind::Managed,
                Kind::Pinned | Kind::Registered => PointerKind::Host,
            };
            assert_eq!((info.kind, info.exportable), (expected, kind == Kind::Mapped), "{kind:?}");
            assert_eq!(info.host.is_some(), expected != PointerKind::Device, "{kind:?}");
            assert!(info.start + LEAD <= at as usize && info.bytes >= LEAD + N * 4, "{info:?}");

            // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
            let buffer = unsafe { wrap(hub, device, at) }.build().unwrap();
            let moves = buffer.explain().contains("its pages move where kernels and copies access");
            assert_eq!(moves, kind == Kind::Managed, "{}", buffer.explain());
            let before = hub.ledger().implied_bytes();
            for turn in 1..4 {
                add(&queue, &kernel, &buffer, turn);
                queue.finish().unwrap();
                model.iter_mut().for_each(|word| *word = word.wrapping_add(turn));
                assert_same(&app.words(at, N), &model, &format!("{kind:?}: theirs"));
                model.iter_mut().for_each(|word| *word ^= 0x55);
                app.put(at, &model);
                assert_same(&buffer.to_vec().unwrap(), &model, &format!("{kind:?}: ours"));
            }
            assert_eq!(hub.ledger().implied_bytes(), before, "{kind:?}");
            // SAFETY: as above.
            let again = unsafe { wrap(hub, device, at) }.build().unwrap();
            let _writes = again.write_on(&queue).unwrap();
            assert!(matches!(buffer.read_on(&queue), Err(Error::Busy { .. })), "one state");
        }
    });
}

/// A wrap that is used once makes no more driver calls than a program without onebuf, except for making the context current.
#[test]
fn a_wrap_makes_the_calls_that_it_needs() {
    each(|api, builder| {
        let library = cuda_stub().unwrap().to_string_lossy().into_owned();
        let (app, probe) = (App::new(flavor_of(api), Some(&library), 0), Probe::new());
        let hub = builder.verdicts(Default::default()).probe(probe.clone()).build().unwrap();
        let device = hub.device(&format!("{api}:0")).unwrap();
        let (queue, kernel) = (device.queue().unwrap(), adder(&device));
        let at = app.memory(Kind::Plain, N * 4);
        // The context's calls differ: CUDA's are pushed and popped, HIP's device is queried.
        let calls = |done: &dyn Fn()| -> Vec<&str> {
            probe.reset();
            done();
            let context = ["cuCtxPushCurrent", "cuCtxPopCurrent", "hipGetDevice", "hipSetDevice"];
            let counts = |call: &&str| !context.iter().any(|name| call.starts_with(name));
            probe.trace().into_iter().filter(counts).collect()
        };
        let [query, launch, idle] = match api {
            "cuda" => ["cuPointerGetAttributes", "cuLaunchKernel", "cuStreamQuery"],
            _ => ["hipDrvPointerGetAttributes", "hipModuleLaunchKernel", "hipStreamQuery"],
        };
        // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
        let alone = calls(&|| drop(unsafe { wrap(&hub, &device, at) }.build().unwrap()));
        assert_eq!(alone, [query], "{api}");
        let used = calls(&|| {
            let buffer = unsafe { wrap(&hub, &device, at) }.build().unwrap();
            add(&queue, &kernel, &buffer, 1);
            // Ended before the drop waits for it, however busy this machine is.
            app.wait(CuStream(ptr::without_provenance_mut(queue.raw())));
        });
        assert_eq!(used, [query, launch, idle], "{api}");
        drop((kernel, queue, device, hub));
        drop(app);
        assert_settled(&probe, api);
    });
}

/// Work that takes longer than a moment is waited for by an event, and so is work that failed.
#[test]
fn a_wrap_of_long_work_is_returned_after_it() {
    everywhere(|hub, device, app| {
        let (queue, kernel) = (device.queue().unwrap(), adder(device));
        let at = app.memory(Kind::Plain, N * 4);
        app.put(at, &[7; N]);
        let held = app.hold(CuStream(ptr::without_provenance_mut(queue.raw())));
        // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
        let buffer = unsafe { wrap(hub, device, at) }.build().unwrap();
        add(&queue, &kernel, &buffer, 1);
        thread::scope(|scope| {
            let returned = scope.spawn(|| drop(buffer));
            thread::sleep(Duration::from_millis(5));
            assert!(!returned.is_finished(), "the memory is in use");
            held.release();
        });
        assert_same(&app.words(at, N), &[8; N], "after the drop");
    });
}

#[test]
fn plain_memory_says_that_kernels_must_come_to_it() {
    everywhere(|hub, device, app| {
        let at = app.memory(Kind::Plain, N * 4);
        // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
        let text = unsafe { wrap(hub, device, at) }.build().unwrap().explain();
        assert!(
            text.contains("the application's device memory") && text.contains("graft"),
            "{text}"
        );
    });
}

#[test]
fn a_buffer_is_used_after_its_owners_work_and_not_before() {
    everywhere(|hub, device, app| {
        for told in [true, false] {
            let (at, stream) = (app.memory(Kind::Plain, N * 4), app.stream());
            app.fill(at, 1, N, stream);
            app.wait(stream);
            let held = app.hold(stream);
            app.fill(at, 2, N, stream);
            // SAFETY: both live until `app` is dropped. The second wrap breaks the contract on purpose: its work is
            // not declared, and it only reads.
            let theirs = unsafe { hub.wrap_stream(device, stream.0) }.unwrap();
            let fence = theirs.fence();
            let wrapped = unsafe { wrap(hub, device, at) };
            let wrapped = if told { wrapped.after(&fence) } else { wrapped };
            let buffer = wrapped.build().unwrap();
            assert!(!fence.is_done().unwrap());
            thread::scope(|scope| {
                let reading = scope.spawn(|| buffer.to_vec().unwrap());
                if told {
                    thread::sleep(Duration::from_millis(30));
                    assert!(!reading.is_finished(), "it did not wait for its owner");
                    held.release();
                }
                let seen = reading.join().unwrap();
                assert_eq!(seen, [if told { 2 } else { 1 }; N], "{told}");
            });
            held.release();
            app.wait(stream);
        }
    });
}

/// The handles of default streams.
fn defaults() -> [CuStream; 3] {
    [0, consts::STREAM_LEGACY, consts::STREAM_PER_THREAD]
        .map(|handle| CuStream(ptr::without_provenance_mut(handle)))
}

#[test]
fn the_owners_streams_are_queues_in_order_with_its_work() {
    everywhere(|hub, device, app| {
        let kernel = adder(device);
        for stream in [app.stream()].into_iter().chain(defaults()) {
            let [at, copy] = [N * 4, N * 4].map(|bytes| app.memory(Kind::Plain, bytes));
            app.fill(copy, 0, N, stream);
            // SAFETY: both live until `app` is dropped, and only this thread uses them.
            let queue = unsafe { hub.wrap_stream(device, stream.0) }.unwrap();
            let buffer = unsafe { wrap(hub, device, at) }.build().unwrap();
            let held = app.hold(stream);
            app.fill(at, 10, N, stream);
            add(&queue, &kernel, &buffer, 3);
            app.call(|table| unsafe {
                table.copy_async(DevicePtr(copy), DevicePtr(at), N * 4, stream)
            });
            add(&queue, &kernel, &buffer, 4);
            let fence = queue.fence();
            thread::sleep(Duration::from_millis(10));
            assert!(!fence.is_done().unwrap(), "{stream:?}: its owner holds the stream");
            held.release();
            fence.wait_default().unwrap();
            assert_same(&app.words(copy, N), &[13; N], &format!("{stream:?}: between"));
            assert_same(&app.words(at, N), &[17; N], &format!("{stream:?}: at the end"));

            // A queue of onebuf's own, and back: `hand_to` orders the owner's next work after ours.
            let ours = device.queue().unwrap();
            add(&ours, &kernel, &buffer, 1);
            buffer.hand_to(&queue).unwrap();
            app.call(|table| unsafe {
                table.copy_async(DevicePtr(copy), DevicePtr(at), N * 4, stream)
            });
            app.wait(stream);
            assert_same(&app.words(copy, N), &[18; N], &format!("{stream:?}: handed back"));
        }
    });
}

#[test]
fn a_threads_default_stream_stays_on_its_thread() {
    everywhere(|hub, device, app| {
        let kernel = adder(device);
        let stream = defaults()[2];
        // SAFETY: the calling thread's default stream.
        let queue = unsafe { hub.wrap_stream(device, stream.0) }.unwrap();
        let buffer = hub.buffer::<u32>(N).shared_with([device]).build().unwrap();
        buffer.fill(5).unwrap();
        let held = app.hold(stream);
        add(&queue, &kernel, &buffer, 1);
        let fence = buffer.fence().unwrap();
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                let ours = device.queue().unwrap();
                // Waiting is possible on every thread; using the stream is not.
                let refused = buffer
                    .write_on(&queue)
                    .and_then(|view| queue.launch(&kernel, [N], args![view, 1u32]));
                assert!(matches!(refused, Err(Error::ForeignContext { .. })), "{refused:?}");
                assert!(!fence.is_done().unwrap());
                held.release();
                add(&ours, &kernel, &buffer, 1);
                assert_eq!(buffer.to_vec().unwrap(), [7; N]);
            });
            elsewhere.join().unwrap();
        });
        // Memory that the stream still uses is freed after its work, on whichever thread: the stub ends the process if not.
        let held = app.hold(stream);
        let used = hub.buffer::<u32>(N).shared_with([device]).build().unwrap();
        add(&queue, &kernel, &used, 1);
        thread::scope(|scope| drop(scope.spawn(move || drop(used)).join()));
        held.release();
        app.wait(stream);
    });
}

#[test]
fn the_owners_events_are_fences() {
    everywhere(|hub, device, app| {
        let (kernel, ours) = (adder(device), device.queue().unwrap());
        let (at, stream, event) = (app.memory(Kind::Plain, N * 4), app.stream(), app.event());
        // SAFETY: the event lives until `app` is dropped.
        let never = unsafe { hub.wrap_stream_event(device, event.0) }.unwrap();
        assert!(never.is_done().unwrap(), "it was not recorded");
        drop(never);
        let held = app.hold(stream);
        app.fill(at, 8, N, stream);
        app.call(|table| unsafe { table.record_event(event, stream) });
        // SAFETY: as above; it is not recorded again.
        let fence = unsafe { hub.wrap_stream_event(device, event.0) }.unwrap();
        let buffer = unsafe { wrap(hub, device, at) }.after(&fence).build().unwrap();
        add(&ours, &kernel, &buffer, 1);
        assert!(!fence.is_done().unwrap());
        let late = fence.wait(Duration::from_millis(20));
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        held.release();
        fence.wait_default().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [9; N]);
        drop((buffer, fence));
        let null = unsafe { hub.wrap_stream_event(device, ptr::null_mut()) };
        assert!(matches!(null, Err(Error::InvalidArgument { .. })), "{null:?}");
    });
}

#[test]
fn an_allocation_handle_is_mapped_and_keeps_its_memory() {
    everywhere(|hub, device, app| {
        const WORDS: usize = UNIT / 4;
        let (kernel, queue) = (adder(device), device.queue().unwrap());
        let (handle, theirs) = app.call(|table| unsafe {
            let handle = app.create(table, UNIT)?;
            Ok((handle, app.map(table, handle, UNIT)?))
        });
        // SAFETY: a live allocation of this size.
        let buffer: Buffer<u32> =
            unsafe { hub.wrap_allocation(device, handle.0, WORDS) }.build().unwrap();
        let mut model = random_words(3, WORDS);
        app.put(theirs.0, &model);
        queue.launch(&kernel, [WORDS], args![buffer.write_on(&queue).unwrap(), 2u32]).unwrap();
        queue.finish().unwrap();
        model.iter_mut().for_each(|word| *word = word.wrapping_add(2));
        assert_same(&app.words(theirs.0, WORDS), &model, "their mapping");
        app.call(|table| unsafe {
            table.unmap_allocation(theirs, UNIT)?;
            table.free_address(theirs, UNIT)?;
            table.release_allocation(handle)
        });
        assert_same(&buffer.to_vec().unwrap(), &model, "ours, after they let go");
        let exported = buffer.export(match device.info().api.0 {
            "cuda" => onebuf::FdKind::OpaqueFd,
            _ => onebuf::FdKind::DmaBuf,
        });
        assert!(exported.is_ok(), "{exported:?}");
        let odd = unsafe { hub.wrap_allocation::<u32>(device, 8, 3) }.build();
        assert!(matches!(odd, Err(Error::InvalidArgument { .. })), "{odd:?}");
    });
}

/// A pointer into virtual memory is shared with other APIs by a descriptor of its allocation, from its own offset on.
#[test]
fn memory_that_was_made_for_it_is_exported() {
    everywhere(|hub, device, app| {
        let kind = match device.info().api.0 {
            "cuda" => onebuf::FdKind::OpaqueFd,
            _ => onebuf::FdKind::DmaBuf,
        };
        let at = app.memory(Kind::Mapped, N * 4);
        // SAFETY: the memory lives until `app` is dropped.
        let buffer = unsafe { wrap(hub, device, at) }.build().unwrap();
        assert_eq!(buffer.plan().memory_kind, MemoryKind::Exportable);
        let exported = buffer.export(kind).unwrap();
        assert_eq!((exported.offset, exported.bytes), (LEAD, N * 4));
        let at = app.memory(Kind::Plain, N * 4);
        // SAFETY: as above.
        let plain = unsafe { wrap(hub, device, at) }.build().unwrap();
        if device.info().api.0 == "cuda" {
            let refused = plain.export(kind);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    });
}

/// On a GPU: an OpenCL kernel and the application's own calls on the same bytes, by a descriptor of its allocation.
#[test]
fn the_applications_memory_is_shared_with_opencl() {
    let _alone = one_api();
    let hub = onebuf::builder().without(["hip", "vulkan", "gl"]);
    let hub = hub.verdicts(Default::default()).build().unwrap();
    let chip = |device: &Device| device.info().physical.uuid;
    let Ok(cuda) = hub.device("cuda:0") else {
        return lacking(&[Hardware::Nvidia], "no CUDA device to share the application's memory of");
    };
    let opencl =
        hub.select("opencl").into_iter().find(|cl| chip(cl).is_some() && chip(cl) == chip(&cuda));
    let Some(opencl) = opencl else {
        return lacking(&[Hardware::Nvidia], "no OpenCL device on the chip of cuda:0");
    };
    let app = App::new(Flavor::Cuda, None, 0);
    let (at, mut model) = (app.memory(Kind::Mapped, N * 4), random_words(11, N));
    app.put(at, &model);
    // SAFETY: the memory lives until `app` is dropped, and only this thread uses it.
    let wrapped = unsafe { wrap(&hub, &cuda, at) }.shared_with([&opencl]).trust_declared(true);
    let buffer = wrapped.copies(CopyPolicy::Forbid).build().unwrap();
    let side = Side::open(&opencl).unwrap();
    for turn in 0..200 {
        side.step(&buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
        let queue = cuda.queue().unwrap();
        buffer.hand_to(&queue).unwrap();
        queue.finish().unwrap();
        assert_same(&app.words(at, N), &model, "after OpenCL's kernel");
        model.iter_mut().for_each(|word| *word ^= turn);
        app.put(at, &model);
    }
    assert_eq!(hub.ledger().implied_bytes(), 0, "{}", buffer.explain());
    // Plain memory has no such route, and that is said.
    let at = app.memory(Kind::Plain, N * 4);
    // SAFETY: as above.
    let refused = unsafe { wrap(&hub, &cuda, at) }.shared_with([&opencl]);
    let refused = refused.copies(CopyPolicy::Forbid).build().map(drop);
    assert!(matches!(refused, Err(Error::CopyForbidden { .. })), "{refused:?}");
    drop((buffer, side, opencl, cuda, hub));
    drop(app);
}

/// A caching allocator may map several allocations side by side and give out memory that crosses them.
#[test]
fn memory_that_is_mapped_in_pieces_is_one_to_its_owner() {
    everywhere(|hub, device, app| {
        let (start, handles) = app.call(|table| unsafe {
            // The last third is not mapped; CUDA's range of an address includes it.
            let start = table.reserve_address(3 * UNIT, 0, DevicePtr(0), 0)?;
            let location = Location { kind: consts::LOCATION_DEVICE, id: app.device };
            let access = AccessDesc { location, flags: consts::ACCESS_READ_WRITE };
            let mut handles = Vec::new();
            for n in 0..2 {
                let at = DevicePtr(start.0 + (n * UNIT) as u64);
                let handle = app.create(table, UNIT)?;
                table.map_allocation(at, UNIT, 0, handle, 0)?;
                table.set_access(at, UNIT, &access, 1)?;
                handles.push((at, handle));
            }
            Ok((start, handles))
        });
        let across = start.0 + (UNIT - N * 2) as u64;
        let buffer = unsafe { wrap(hub, device, across) }.build().unwrap();
        assert_eq!(buffer.plan().memory_kind, MemoryKind::Device, "no one descriptor has it all");
        drop(buffer);
        let beyond = start.0 + (2 * UNIT - N * 2) as u64;
        let refused = unsafe { wrap(hub, device, beyond) }.build().map(drop).unwrap_err();
        assert!(refused.to_string().contains("has only 10000 bytes from there on"), "{refused}");
        app.call(|table| unsafe {
            for (at, handle) in handles {
                table.unmap_allocation(at, UNIT)?;
                table.release_allocation(handle)?;
            }
            table.free_address(start, 3 * UNIT)
        });
    });
}

#[test]
fn wrong_pointers_and_streams_are_errors_with_the_reason() {
    everywhere(|hub, device, app| {
        let at = app.memory(Kind::Plain, N * 4);
        let says = |outcome: Result<Buffer<u32>>, words: &str| {
            let error = outcome.map(drop).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let local = vec![0u32; N];
        let end = hub.pointer_info(device, pointer(at)).unwrap();
        let beyond = (end.start + end.bytes) as u64 - 8;
        // SAFETY: none of them is wrapped; if one were, nothing would use it.
        unsafe {
            says(wrap(hub, device, 0).build(), "is no memory of");
            says(wrap(hub, device, local.as_ptr() as u64).build(), "must be pinned first");
            says(wrap(hub, device, at + 2).build(), "is not aligned for u32");
            says(wrap(hub, device, beyond).build(), "has only 8 bytes from there on");
            says(wrap(hub, device, at).len(N + 1).build(), "elements, not");
            says(hub.wrap_pointer(device, pointer(at), 0).build(), "no elements");
            says(hub.wrap_pointer(device, pointer(at), usize::MAX).build(), "no elements");
            says(wrap(hub, &hub.host(), at).build(), "a CUDA or HIP device");
            let refused = hub.wrap_stream(&hub.host(), ptr::null_mut());
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
        let info = hub.pointer_info(device, local.as_ptr().cast_mut().cast());
        assert!(matches!(info, Err(Error::InvalidArgument { .. })), "{info:?}");
    });
}

#[test]
fn another_devices_objects_are_refused() {
    each(|api, builder| {
        let library = cuda_stub().unwrap().to_string_lossy().into_owned();
        let hub = builder.verdicts(Default::default()).build().unwrap();
        let first = hub.device(&format!("{api}:0")).unwrap();
        let app = App::new(flavor_of(api), Some(&library), 1);
        let (at, stream) = (app.memory(Kind::Plain, N * 4), app.stream());
        // SAFETY: both live until `app` is dropped.
        let refused = unsafe { wrap(&hub, &first, at) }.build().map(drop).unwrap_err();
        assert!(matches!(refused, Error::ForeignContext { .. }), "{refused}");
        assert!(refused.to_string().contains("device 1"), "{refused}");
        if api == "cuda" {
            let refused = unsafe { hub.wrap_stream(&first, stream.0) };
            let Err(refused @ Error::ForeignContext { .. }) = refused else { panic!("wrapped") };
            assert!(refused.to_string().contains("an event of their streams"), "{refused}");
        }
        drop((first, hub));
        drop(app);
    });
}

/// Wraps and uses the application's objects again and again, with each call failing once.
#[test]
fn wraps_whose_calls_fail_lose_nothing() {
    each(|api, _| {
        let library = cuda_stub().unwrap().to_string_lossy().into_owned();
        let app = App::new(flavor_of(api), Some(&library), 0);
        let at = KINDS.map(|kind| app.memory(kind, N * 4));
        let (stream, event) = (app.stream(), app.event());
        let builder = || stubbed(api).expect("it was there before").verdicts(Default::default());
        sweep_of(builder, api, |device, _| {
            let hub = device.hub();
            // SAFETY: all of them live until `app` is dropped, and only this thread uses them.
            unsafe {
                let queue = hub.wrap_stream(device, stream.0)?;
                let after = hub.wrap_stream_event(device, event.0)?;
                for at in at {
                    let buffer: Buffer<u32> =
                        hub.wrap_pointer(device, pointer(at), N).after(&after).build()?;
                    buffer.fill(3)?;
                    drop(buffer.write_on(&queue)?);
                    buffer.hand_to(&queue)?;
                    assert_eq!(buffer.to_vec()?, [3; N]);
                }
            }
            Ok(())
        });
        drop(app);
    });
}
