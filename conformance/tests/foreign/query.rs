//! Every query of a foreign object returns what class A knows about it.

use super::{alone, context, hub, owners, twin};
use onebuf::{
    Access, Error, ForeignBufferInfo, ForeignContextInfo, ForeignQueueInfo, HostAccess, Hub,
    Placement, QueueOrder, Result, prelude::*,
};
use onebuf_conformance::class_a::{ClassA, Own};
use onebuf_sys::opencl::{
    ClMem,
    consts::{
        CL_DEVICE_MEM_BASE_ADDR_ALIGN, CL_MEM_ALLOC_HOST_PTR, CL_MEM_COPY_HOST_PTR,
        CL_MEM_HOST_NO_ACCESS, CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_READ_ONLY,
        CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, CL_MEM_WRITE_ONLY,
        CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROFILING_ENABLE,
    },
};
use std::{
    alloc::Layout,
    ffi::c_void,
    ptr::{NonNull, null_mut},
};

const BYTES: usize = 5000 * 4;

/// The application's memory, aligned as every driver requires.
struct Pages(NonNull<u8>);

const LAYOUT: Layout = match Layout::from_size_align(BYTES, 4096) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

impl Pages {
    fn new() -> Self {
        // SAFETY: the layout is not empty.
        Self(NonNull::new(unsafe { std::alloc::alloc_zeroed(LAYOUT) }).expect("memory"))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated above, with that layout.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

fn ask(hub: &Hub, mem: &Own<ClMem>) -> ForeignBufferInfo {
    // SAFETY: class A holds a reference.
    unsafe { ForeignBufferInfo::query(hub, mem.raw()) }.expect("a live buffer")
}

/// Checks all answers about one buffer that class A created with these flags.
fn check_buffer(hub: &Hub, a: &ClassA, mem: &Own<ClMem>, flags: u64, over: Option<usize>) {
    let (info, what) = (ask(hub, mem), format!("{} {flags:#x}", a.platform));
    assert_eq!(info.bytes, BYTES, "{what}");
    assert_eq!(info.flags, flags, "{what}");
    let access = match flags & (CL_MEM_READ_ONLY | CL_MEM_WRITE_ONLY) {
        CL_MEM_READ_ONLY => Access::Read,
        CL_MEM_WRITE_ONLY => Access::Write,
        _ => Access::ReadWrite,
    };
    let host_bits = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    let host = match flags & host_bits {
        CL_MEM_HOST_READ_ONLY => HostAccess::Read,
        CL_MEM_HOST_WRITE_ONLY => HostAccess::Write,
        CL_MEM_HOST_NO_ACCESS => HostAccess::None,
        _ => HostAccess::ReadWrite,
    };
    let placement = match flags & (CL_MEM_USE_HOST_PTR | CL_MEM_ALLOC_HOST_PTR) {
        CL_MEM_USE_HOST_PTR => Placement::UseHostPointer,
        CL_MEM_ALLOC_HOST_PTR => Placement::AllocHostPointer,
        _ => Placement::Device,
    };
    assert_eq!((info.access, info.host, info.placement), (access, host, placement), "{what}");
    assert_eq!(info.copied, flags & CL_MEM_COPY_HOST_PTR != 0, "{what}");
    assert_eq!(info.context, a.context.raw().addr(), "{what}");
    assert_eq!(info.devices, [twin(hub, a).id()], "{what}");
    assert_eq!(info.host_pointer, over, "{what}");
    assert_eq!((info.map_count, info.reference_count), (0, mem.count()), "{what}");
    assert_eq!((info.parent, info.offset), (None, 0), "{what}");
    assert_ne!(info.uses_svm, Some(true), "{what}");
    assert!(info.external.is_empty(), "{what}: {:?}", info.external);
    let align = a.device_number(0, CL_DEVICE_MEM_BASE_ADDR_ALIGN).expect("an alignment") / 8;
    assert_eq!(info.align_bytes as u64, align, "{what}");
    assert_eq!(info.elements::<u32>(), Ok(BYTES / 4), "{what}");
    assert!(matches!(info.elements::<[u32; 3]>(), Err(Error::InvalidArgument(_))), "{what}");
    assert!(info.to_string().contains(twin(hub, a).id()), "{info}");
}

#[test]
fn buffers_are_what_class_a_made() {
    let _alone = alone("queries of buffers");
    let hub = hub();
    for a in owners() {
        let pages = Pages::new();
        let at = pages.0.as_ptr();
        let knows_host = !twin(&hub, &a).info().version.starts_with("OpenCL 1.1");
        for access in [CL_MEM_READ_WRITE, CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY] {
            for place in [0, CL_MEM_USE_HOST_PTR, CL_MEM_ALLOC_HOST_PTR, CL_MEM_COPY_HOST_PTR] {
                let over = place & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR) != 0;
                let host: *mut c_void = if over { at.cast() } else { null_mut() };
                // SAFETY: memory of that size, alive until after the buffer.
                let mem = unsafe { a.buffer(access | place, BYTES, host) };
                let used = (place == CL_MEM_USE_HOST_PTR).then_some(at.addr());
                check_buffer(&hub, &a, &mem, access | place, used);
            }
            let host = [CL_MEM_HOST_READ_ONLY, CL_MEM_HOST_WRITE_ONLY, CL_MEM_HOST_NO_ACCESS];
            for host in host.into_iter().filter(|_| knows_host) {
                // SAFETY: no host pointer.
                let mem = unsafe { a.buffer(access | host, BYTES, null_mut()) };
                check_buffer(&hub, &a, &mem, access | host, None);
            }
        }
    }
}

#[test]
fn a_part_knows_its_whole() {
    let _alone = alone("queries of sub-buffers");
    let hub = hub();
    for a in owners() {
        // SAFETY: no host pointer.
        let whole = unsafe { a.buffer(CL_MEM_READ_WRITE, BYTES, null_mut()) };
        let align = ask(&hub, &whole).align_bytes;
        let part = a.sub_buffer(&whole, CL_MEM_READ_ONLY, 2 * align, 400);
        let info = ask(&hub, &part);
        assert_eq!(info.parent, Some(whole.raw().addr()), "{}", a.platform);
        assert_eq!((info.offset, info.bytes), (2 * align, 400), "{}", a.platform);
        assert_eq!(info.access, Access::Read, "{}", a.platform);
        assert_eq!(info.context, a.context.raw().addr(), "{}", a.platform);
        assert_eq!(info.elements::<u64>(), Ok(50));
        assert_eq!(ask(&hub, &whole).parent, None);
        assert!(info.to_string().contains("of another"), "{info}");
    }
}

/// Whether the driver counts maps; Mesa's drivers report zero for every object.
pub fn counts_maps(a: &ClassA) -> bool {
    !["rusticl", "Clover"].contains(&a.platform.as_str())
}

#[test]
fn maps_and_references_are_counted() {
    let _alone = alone("queries of counts");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&[1; 64]);
        let more = mem.clone();
        assert_eq!(ask(&hub, &mem).reference_count, mem.count(), "{}", a.platform);
        drop(more);
        assert_eq!(ask(&hub, &mem).reference_count, 1, "{}", a.platform);
        let mapped = a.map(&a.queue, &mem, 64);
        let expected = u32::from(counts_maps(&a));
        assert_eq!(ask(&hub, &mem).map_count, expected, "{}", a.platform);
        a.unmap(&a.queue, &mem, mapped);
        assert_eq!(ask(&hub, &mem).map_count, 0, "{}", a.platform);
    }
}

#[test]
fn contexts_are_what_class_a_made() {
    let _alone = alone("queries of contexts");
    let hub = hub();
    for a in owners() {
        // SAFETY: class A holds a reference.
        let info = unsafe { ForeignContextInfo::query(&hub, a.context.raw()) }.unwrap();
        assert_eq!(info.devices, [twin(&hub, &a).id()]);
        assert_eq!((info.device_count, info.reference_count), (1, a.context.count()));
        assert!(info.properties.len().is_multiple_of(2), "pairs: {:?}", info.properties);
        let more = a.context.clone();
        let context = context(&hub, &a);
        assert_eq!(context.info().unwrap().reference_count, a.context.count());
        assert_eq!(context.raw(), a.context.raw());
        drop(more);
    }
}

#[test]
fn queues_are_what_class_a_made() {
    let _alone = alone("queries of queues");
    let hub = hub();
    for a in owners() {
        let both = CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE;
        for properties in [0, CL_QUEUE_PROFILING_ENABLE, both & !CL_QUEUE_PROFILING_ENABLE, both] {
            let Ok(queue) = a.queue_with(properties) else {
                assert_ne!(properties, 0, "{}", a.platform);
                continue;
            };
            // SAFETY: class A holds a reference.
            let info = unsafe { ForeignQueueInfo::query(&hub, queue.raw()) }.unwrap();
            let out = properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0;
            let order = if out { QueueOrder::OutOfOrder } else { QueueOrder::InOrder };
            assert_eq!(info.spec.order, order, "{}", a.platform);
            let profiling = properties & CL_QUEUE_PROFILING_ENABLE != 0;
            assert_eq!(info.spec.profiling, profiling, "{}", a.platform);
            assert_eq!(info.properties, properties, "{}", a.platform);
            assert_eq!(info.device.as_deref(), Some(twin(&hub, &a).id()));
            assert_eq!(info.context, a.context.raw().addr());
            assert_eq!(info.reference_count, queue.count());
        }
    }
}

fn assert_invalid<T: std::fmt::Debug>(refused: Result<T>, says: &str, what: &str) {
    let Err(Error::InvalidArgument(why)) = refused else { panic!("{what}: {refused:?}") };
    assert!(why.contains(says), "{what}: {why}");
}

#[test]
fn what_is_no_handle_is_told() {
    let _alone = alone("wrong handles");
    let hub = hub();
    if owners().is_empty() {
        return;
    }
    let none = null_mut();
    // SAFETY: null is allowed everywhere here.
    unsafe {
        assert_invalid(ForeignBufferInfo::query(&hub, none), "cl_mem: null", "a buffer");
        assert_invalid(ForeignContextInfo::query(&hub, none), "cl_context: null", "a context");
        assert_invalid(ForeignQueueInfo::query(&hub, none), "cl_command_queue: null", "a queue");
        assert_invalid(hub.wrap_buffer::<u32>(none).build(), "cl_mem: null", "a wrap");
        assert_invalid(hub.foreign_context(none), "cl_context: null", "a context");
        assert_invalid(hub.wrap_queue(none), "cl_command_queue: null", "a queue");
        assert_invalid(hub.wrap_event(none), "cl_event: null", "an event");
    }
}

#[test]
fn an_image_is_no_buffer() {
    let _alone = alone("images");
    let hub = hub();
    for a in owners() {
        let Some(image) = a.image() else { continue };
        let before = image.count();
        // SAFETY: class A holds a reference.
        let (asked, built) = unsafe {
            (
                ForeignBufferInfo::query(&hub, image.raw()),
                hub.wrap_buffer::<u32>(image.raw()).build(),
            )
        };
        assert_invalid(asked, "no buffer", &a.platform);
        assert_invalid(built, "no buffer", &a.platform);
        assert_eq!(image.count(), before, "{}", a.platform);
    }
}
