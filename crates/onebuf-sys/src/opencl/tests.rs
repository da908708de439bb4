//! Compares the tables with the installed headers and with the installed OpenCL.

use std::collections::BTreeMap;
use std::ptr;

use super::consts::{
    CL_COMPLETE, CL_DEVICE_TYPE_ALL, CL_MEM_READ_WRITE, CL_PLATFORM_NAME, CL_TRUE,
};
use super::*;
use crate::headers;

#[test]
fn every_argument_has_the_size_that_the_headers_say() {
    let prototypes = headers::prototypes();
    if prototypes.is_empty() {
        return;
    }
    for (symbol, sizes) in OpenCl::SIZES.iter().chain(OpenClExt::SIZES) {
        assert_eq!(&prototypes[*symbol], sizes, "{symbol}");
    }
}

#[test]
fn a_missing_library_is_a_value() {
    let missing = OpenCl::load(Some("/nonexistent.so"), None).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("opencl", false));
    assert!(missing.hint.contains("apt install"));
}

#[test]
fn none_switches_opencl_off() {
    let missing = OpenCl::load(Some("none"), None).unwrap_err();
    assert!(missing.tried.is_empty() && missing.reason.contains("switched off"), "{missing}");
}

#[test]
fn a_library_that_is_not_opencl_says_what_it_lacks() {
    let missing = OpenCl::load(Some("libc.so.6"), None).unwrap_err();
    assert!(missing.loaded);
    assert!(missing.reason.starts_with("libc.so.6 lacks clGetPlatformIDs, "), "{missing}");
    assert!(!missing.reason.contains("clSVMAlloc"), "optional symbols are not demanded: {missing}");
}

/// The installed OpenCL with a probe, and its platforms. Without OpenCL it prints a skip and returns `None`.
fn installed() -> Option<(OpenCl, Arc<Probe>, Vec<ClPlatform>)> {
    let probe = Probe::new();
    let cl = OpenCl::load(None, Some(probe.clone())).map_err(|why| println!("skip: {why}")).ok()?;
    let mut platforms = [ClPlatform::NULL; 8];
    let mut count = 0;
    // SAFETY: room for 8 platforms.
    let found = unsafe { cl.get_platform_ids(8, platforms.as_mut_ptr(), &mut count) };
    found.map_err(|why| println!("skip: no OpenCL platform: {why}")).ok()?;
    probe.reset();
    Some((cl, probe, platforms[..count.min(8) as usize].to_vec()))
}

/// Creates a context on the first device.
fn context(cl: &OpenCl, platforms: &[ClPlatform]) -> Option<(ClDevice, ClContext)> {
    let mut device = ClDevice::NULL;
    let found = platforms.iter().any(|platform| {
        // SAFETY: room for one device.
        let got = unsafe {
            cl.get_device_ids(*platform, CL_DEVICE_TYPE_ALL, 1, &mut device, ptr::null_mut())
        };
        got.is_ok()
    });
    if !found {
        println!("skip: no OpenCL device");
        return None;
    }
    // SAFETY: one live device, no callback.
    let made = unsafe { cl.create_context(ptr::null(), 1, &device, None, ptr::null_mut()) };
    Some((device, made.unwrap()))
}

#[test]
fn platforms_have_names_and_files() {
    let Some((cl, _, platforms)) = installed() else { return };
    println!("{cl:?}");
    for platform in platforms {
        let mut name = [0u8; 256];
        // SAFETY: a live platform, and a buffer of the given length.
        unsafe {
            let at = name.as_mut_ptr().cast();
            cl.get_platform_info(platform, CL_PLATFORM_NAME, name.len(), at, ptr::null_mut())
                .unwrap();
            let name = CStr::from_bytes_until_nul(&name).unwrap();
            println!("{name:?} from {:?}", cl.driver_identity(platform));
            assert_ne!(cl.driver_identity(platform), cl.library(), "the loader is not the driver");
            let none = cl.extensions(platform, &[]);
            assert!(!none.has_enqueue_acquire_external_mem_objects());
            let (no, null) = (ClQueue::NULL, ptr::null());
            let not_loaded = none.enqueue_acquire_external_mem_objects(
                no,
                0,
                ptr::null(),
                0,
                null,
                ptr::null_mut(),
            );
            assert_eq!(not_loaded, Err(ClStatus::NOT_LOADED));
        }
    }
}

#[test]
fn the_second_call_can_be_made_to_fail() {
    let Some((cl, probe, _)) = installed() else { return };
    let mut count = 0;
    probe.fail_nth(2, ClStatus::OUT_OF_HOST_MEMORY.0);
    // SAFETY: queries only the count.
    let mut ask = || unsafe { cl.get_platform_ids(0, ptr::null_mut(), &mut count) };
    assert_eq!(ask(), Ok(()));
    assert_eq!(ask(), Err(ClStatus::OUT_OF_HOST_MEMORY));
    assert_eq!(ask(), Ok(()));
    assert_eq!((probe.failed(), probe.calls()), (Some("clGetPlatformIDs"), 3));
}

#[test]
fn a_failed_create_makes_nothing_and_a_failed_release_still_releases() {
    let Some((cl, probe, platforms)) = installed() else { return };
    let Some((_, context)) = context(&cl, &platforms) else { return };
    assert_eq!(probe.live(), BTreeMap::from([("context", 1)]));
    // SAFETY: a live context, used for the last time by its second release.
    unsafe {
        cl.retain_context(context).unwrap();
        assert_eq!(probe.live(), BTreeMap::from([("context", 2)]));
        cl.release_context(context).unwrap();

        probe.fail_nth(1, -4);
        let made = cl.create_buffer(context, CL_MEM_READ_WRITE, 64, ptr::null_mut());
        assert_eq!(made, Err(ClStatus::MEM_OBJECT_ALLOCATION_FAILURE));
        assert_eq!(probe.live(), BTreeMap::from([("context", 1)]));

        probe.fail_nth(1, -5);
        assert_eq!(cl.release_context(context), Err(ClStatus::OUT_OF_RESOURCES));
    }
    assert_eq!(probe.failed(), Some("clReleaseContext"));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
fn events_are_counted_where_they_are_asked_for() {
    let Some((cl, probe, platforms)) = installed() else { return };
    let Some((device, context)) = context(&cl, &platforms) else { return };
    let (mut wrote, data) = (ClEvent::NULL, [7u8; 64]);
    let mut back = [0u8; 64];
    // SAFETY: live handles, and host memory of the given length that outlives blocking commands.
    unsafe {
        let queue = cl.create_command_queue(context, device, 0).unwrap();
        let mem = cl.create_buffer(context, CL_MEM_READ_WRITE, 64, ptr::null_mut()).unwrap();
        let (from, none) = (data.as_ptr().cast(), ptr::null());
        cl.enqueue_write_buffer(queue, mem, CL_TRUE, 0, 64, from, 0, none, &mut wrote).unwrap();
        assert_eq!(probe.live()["event"], 1);

        let host_signal = cl.create_user_event(context).unwrap();
        probe.fail_nth(1, -5);
        let done = cl.set_user_event_status(host_signal, CL_COMPLETE);
        assert_eq!(done, Err(ClStatus::OUT_OF_RESOURCES), "reported, but done: nobody hangs");
        let (to, waits) = (back.as_mut_ptr().cast(), [wrote, host_signal]);
        let no_event = ptr::null_mut();
        cl.enqueue_read_buffer(queue, mem, CL_TRUE, 0, 64, to, 2, waits.as_ptr(), no_event)
            .unwrap();
        assert_eq!(probe.live()["event"], 2);

        cl.release_event(host_signal).unwrap();
        cl.release_event(wrote).unwrap();
        cl.release_mem_object(mem).unwrap();
        cl.release_command_queue(queue).unwrap();
        cl.release_context(context).unwrap();
    }
    assert_eq!(back, data);
    assert!(probe.live().is_empty(), "{:?} after {:?}", probe.live(), probe.trace());
}
