//! Foreign objects without a separate client: contexts on the hub's devices that are not the hub's.

use super::*;
use onebuf_core::{Device, Hub, Signature, Source, Verdicts, args};
use onebuf_hal::{
    Access, CopyPolicy, Error, MemoryKind, RouteKind,
    locks::{Arc, AtomicU64, Ordering},
};
use onebuf_sys::{
    Probe,
    opencl::{ClContext, ClMem},
};
use std::{ffi::c_void, time::Instant};

const TWICE: &str = "kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";

fn hub() -> Hub {
    crate::builder()
        .without(["vulkan", "gl"])
        .verdicts(Verdicts::default())
        .build()
        .expect("the host is always there")
}

/// A second context on every discovered OpenCL device.
fn contexts(hub: &Hub) -> Vec<ForeignContext> {
    let devices = hub.select("opencl");
    if devices.is_empty() {
        eprintln!("skip: no OpenCL device");
    }
    devices.iter().map(|device| hub.second_context(device).unwrap()).collect()
}

#[test]
fn a_context_is_registered_once_and_given_up_once() {
    let hub = hub();
    for context in contexts(&hub) {
        assert_eq!(context.info().unwrap().reference_count, 1, "{context:?}");
        // SAFETY: the object is live.
        let again = unsafe { hub.foreign_context(context.raw()) }.unwrap();
        assert_eq!(again.device().index(), context.device().index());
        assert_eq!(context.info().unwrap().reference_count, 1);
        assert!(context.device().id().contains('@'));
        assert_eq!(hub.device(context.device().id()).unwrap().index(), again.device().index());
    }
}

#[test]
fn a_device_entry_that_was_left_is_taken_again() {
    let hub = hub();
    let Some(device) = hub.select("opencl").into_iter().next() else { return };
    let id = hub.second_context(&device).unwrap().device().id().to_owned();
    for _ in 0..3 * onebuf_core::internals::MAX_FOREIGN_DEVICES {
        assert_eq!(hub.second_context(&device).unwrap().device().id(), id);
    }
    let all: Vec<_> = (0..onebuf_core::internals::MAX_FOREIGN_DEVICES)
        .map(|_| hub.second_context(&device).unwrap())
        .collect();
    assert!(matches!(hub.second_context(&device), Err(Error::Busy { .. })));
    drop(all);
    assert!(hub.second_context(&device).is_ok());
}

#[test]
fn buffers_queues_and_programs_in_a_foreign_context() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        drop(context);
        let queue = device.queue().unwrap();
        let program = device.program(&Source::opencl_c(TWICE)).unwrap();
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        // SAFETY: there is one work-item per element.
        let twice = unsafe { program.kernel("twice", signature) }.unwrap();
        let buffer = hub.buffer::<u32>(1024).shared_with([&device]).build().unwrap();
        buffer.write(&[21; 1024]).unwrap();
        queue.launch(&twice, [1024], args![buffer.write_on(&queue).unwrap()]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), vec![42; 1024]);
    }
}

/// Memory in the device's context that is unknown to the hub. Its only reference belongs to the caller.
fn given_away(hub: &Hub, device: &Device, fill: u32) -> *mut c_void {
    let made = hub.buffer::<u32>(1024).shared_with([device]).memory_kind(MemoryKind::MappedDevice);
    let made = made.build().unwrap();
    made.write(&[fill; 1024]).unwrap();
    made.into_cl_mem(device).unwrap()
}

fn references(hub: &Hub, mem: *mut c_void) -> u32 {
    // SAFETY: every caller holds a reference.
    unsafe { ForeignBufferInfo::query(hub, mem) }.unwrap().reference_count
}

fn release(hub: &Hub, mem: *mut c_void) {
    // SAFETY: this is the caller's only reference.
    unsafe { super::context::Known::of(hub).unwrap().library.cl.release_mem_object(ClMem(mem)) }
        .unwrap();
}

#[test]
fn wraps_of_one_object_share_one_state() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        let mem = given_away(&hub, &device, 7);
        assert_eq!(references(&hub, mem), 1, "{device}");
        // SAFETY: the object is live and has no other user.
        let wrap = || unsafe { hub.wrap_buffer::<u32>(mem) };
        let first = wrap().len(1024).build().unwrap();
        assert_eq!(references(&hub, mem), 2);
        assert_eq!(first.to_vec().unwrap(), [7; 1024]);
        let second = wrap().build().unwrap();
        assert_eq!(references(&hub, mem), 2, "one for both");
        let map = second.map_mut().unwrap();
        assert!(matches!(first.map(), Err(Error::Busy { .. })));
        drop(map);
        assert!(wrap().len(1023).build().is_err());
        let strict = wrap().copies(CopyPolicy::Forbid).build();
        assert!(matches!(strict, Err(Error::Busy { .. })), "a policy that the first wrap has not");
        // SAFETY: the same live memory.
        assert!(unsafe { hub.wrap_buffer::<[u32; 3]>(mem) }.build().is_err());
        drop((first, second));
        assert_eq!(references(&hub, mem), 1);
        release(&hub, mem);
    }
}

/// A wrap makes the same queries as a careful program, and the same calls, except that it has an event to wait for with a
/// timeout where the program waits for the queue.
#[test]
fn a_wrap_makes_the_calls_of_a_c_program() {
    let probe = Probe::new();
    let hub = crate::builder()
        .without(["vulkan", "gl"])
        .verdicts(Verdicts::default())
        .probe(probe.clone())
        .build()
        .unwrap();
    for context in contexts(&hub) {
        let device = context.device();
        let mem = given_away(&hub, &device, 21);
        let queue = device.queue().unwrap();
        let program = device.program(&Source::opencl_c(TWICE)).unwrap();
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        // SAFETY: there is one work-item per element.
        let twice = unsafe { program.kernel("twice", signature) }.unwrap();
        probe.reset();
        // SAFETY: the object is live and has no other user.
        let wrapped = unsafe { hub.wrap_buffer::<u32>(mem) }.build().unwrap();
        queue.launch(&twice, [1024], args![wrapped.write_on(&queue).unwrap()]).unwrap();
        drop(wrapped);
        let mut calls = probe.trace();
        let waiting = ["clFlush", "clGetEventInfo", "clSetEventCallback"];
        calls.retain(|call| !waiting.contains(call));
        // Drivers differ in whether the launch or the drop waits for, and releases, the event.
        calls.sort_by_key(|call| *call == "clReleaseEvent");
        let mut expected = vec!["clGetMemObjectInfo"; 6];
        expected.extend(["clRetainMemObject", "clSetKernelArg", "clEnqueueNDRangeKernel"]);
        // The kernel would keep a reference to the owner's memory.
        expected.extend((device.info().platform == "rusticl").then_some("clSetKernelArg"));
        expected.extend(["clReleaseMemObject", "clReleaseEvent"]);
        assert_eq!(calls, expected, "{device}");
        release(&hub, mem);
    }
}

#[test]
fn an_owned_handle_is_given_back_once() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        let mem = given_away(&hub, &device, 7) as usize;
        let calls = Arc::new(AtomicU64::new(0));
        // SAFETY: the object is live and has no other user.
        let wrap = || unsafe { hub.wrap_buffer::<u32>(mem as *mut c_void) };
        let count = |calls: &Arc<AtomicU64>| {
            let calls = calls.clone();
            move |raw: *mut c_void| {
                assert_eq!(raw as usize, mem);
                calls.fetch_add(1, Ordering::Relaxed);
            }
        };
        assert!(wrap().len(1).owned(count(&calls)).build().is_err());
        let stranger = crate::builder().without(["opencl", "vulkan", "gl"]).build().unwrap().host();
        assert!(wrap().owned(count(&calls)).shared_with([&stranger]).build().is_err());
        drop(wrap().owned(count(&calls)));
        assert_eq!(calls.load(Ordering::Relaxed), 0, "not taken over");
        let wrapped = wrap().owned(count(&calls)).build().unwrap();
        let other = wrap().build().unwrap();
        drop(wrapped);
        assert_eq!(calls.load(Ordering::Relaxed), 0, "still in use");
        drop(other);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        release(&hub, mem as *mut c_void);
    }
}

#[test]
fn another_device_shares_a_wrapped_buffer() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        for other in hub.devices() {
            let mem = given_away(&hub, &device, 5);
            // SAFETY: the object is live and has no other user.
            let wrapped = unsafe { hub.wrap_buffer::<u32>(mem) }.shared_with([&other]);
            let wrapped = wrapped.build().unwrap();
            let queue = other.queue().unwrap();
            wrapped.write_on(&queue).map(drop).unwrap();
            wrapped.write_through(&queue, &[6; 1024]).unwrap();
            drop(wrapped);
            // SAFETY: as above.
            let again = unsafe { hub.wrap_buffer::<u32>(mem) }.build().unwrap();
            assert_eq!(again.to_vec().unwrap(), [6; 1024], "{other} wrote memory of {device}");
            drop(again);
            assert_eq!(references(&hub, mem), 1, "{device}, shared with {other}");
            release(&hub, mem);
        }
    }
}

#[test]
fn what_is_no_handle_is_told() {
    let hub = hub();
    if hub.select("opencl").is_empty() {
        return;
    }
    let none = std::ptr::null_mut();
    // SAFETY: null is allowed.
    unsafe {
        assert!(ForeignBufferInfo::query(&hub, none).is_err());
        assert!(ForeignContextInfo::query(&hub, none).is_err());
        assert!(ForeignQueueInfo::query(&hub, none).is_err());
        assert!(hub.wrap_buffer::<u32>(none).build().is_err());
        assert!(hub.wrap_queue(none).is_err());
        assert!(hub.wrap_event(none).is_err());
        assert!(hub.foreign_context(none).is_err());
    }
}

#[test]
fn events_go_in_and_out() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        let event = match context.user_event() {
            Ok(event) => event,
            Err(why) => {
                eprintln!("skip: {device}: {why}");
                continue;
            }
        };
        // SAFETY: the object is live.
        let fence = unsafe { hub.wrap_event(event.raw()) }.unwrap();
        let queue = device.queue().unwrap();
        queue.wait_for(&fence).unwrap();
        let behind = queue.fence();
        let handles = behind.cl_events().unwrap();
        assert_eq!(handles.len(), 1);
        // SAFETY: the object is live.
        let back = unsafe { hub.wrap_event(handles[0].raw()) }.unwrap();
        assert!(
            !behind.is_done().unwrap() && !back.is_done().unwrap() && !fence.is_done().unwrap()
        );
        event.complete();
        for fence in [behind, back, fence] {
            fence.wait_default().unwrap();
        }
    }
}

#[test]
fn an_owners_queue_is_ordered_both_ways() {
    let hub = hub();
    for context in contexts(&hub) {
        let device = context.device();
        let owners = device.queue().unwrap();
        // SAFETY: the object lives as long as `owners`.
        let wrapped = unsafe { hub.wrap_queue(owners.raw() as *mut c_void) }.unwrap();
        assert_eq!(wrapped.device().index(), device.index());
        let mem = given_away(&hub, &device, 1);
        // SAFETY: the object is live and has no other user.
        let buffer =
            unsafe { hub.wrap_buffer::<u32>(mem) }.after(&wrapped.fence()).build().unwrap();
        buffer.fill(3).unwrap();
        buffer.hand_to(&wrapped).unwrap();
        buffer.written_until(&wrapped.fence()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3; 1024]);
        let queue = hub.queue_for(&buffer).unwrap();
        assert_eq!(queue.device().index(), device.index());
        drop(buffer);
        assert_eq!(references(&hub, mem), 1);
        release(&hub, mem);
    }
}

/// Pages of the application are shared as pages with all devices, whichever wrapped them first.
#[test]
fn memory_over_the_applications_pages_is_shared_in_place() {
    let hub = hub();
    let cl = match super::context::Known::of(&hub) {
        Ok(known) => known.library.cl.clone(),
        Err(why) => return eprintln!("skip: {why}"),
    };
    let bytes = 1 << 16;
    for context in contexts(&hub) {
        let device = context.device();
        for other in hub.select("opencl") {
            let pages = hub.buffer::<u32>(bytes / 4).align(4096).build().unwrap();
            let at = pages.map_mut().unwrap().as_mut_ptr();
            let flags = onebuf_sys::opencl::consts::CL_MEM_USE_HOST_PTR;
            let raw = ClContext(context.raw());
            // SAFETY: the context is live, and the pages outlive the memory object and have no other user.
            let mem = unsafe { cl.create_buffer(raw, flags, bytes, at.cast()) }.unwrap().0;
            // SAFETY: the object is live and has no other user.
            let wrapped = unsafe { hub.wrap_buffer::<u32>(mem) }.shared_with([&other]);
            // Sharing maps the memory after the owner's work; that is no reason to refuse.
            let owners = device.queue().unwrap().fence();
            let wrapped = wrapped.after(&owners).trust_declared(true).build().unwrap();
            let kinds: Vec<_> = wrapped.plan().routes.iter().map(|hop| hop.kind).collect();
            assert!(kinds.contains(&RouteKind::HostPointer), "{device} with {other}: {kinds:?}");
            let queue = other.queue().unwrap();
            for round in 1..4 {
                wrapped.write_through(&queue, &vec![round; bytes / 4]).unwrap();
                wrapped.hand_to(&device.queue().unwrap()).unwrap();
                assert_eq!(
                    wrapped.read_through(&device.queue().unwrap()).unwrap(),
                    vec![round; bytes / 4]
                );
            }
            assert!(wrapped.explain().contains("host_pointer"));
            drop(wrapped);
            // Drivers report late that they have destroyed imports of the memory.
            let start = Instant::now();
            while references(&hub, mem) != 1 && start.elapsed() < hub.timeout() {
                std::thread::yield_now();
            }
            assert_eq!(references(&hub, mem), 1);
            release(&hub, mem);
        }
    }
}
