//! The controls: misuse that the stubs must not tolerate, because the other tests rely on it.

use super::*;
use onebuf_conformance::{class_a::cl, stub};
use onebuf_sys::{
    Flavor,
    cuda_like::{CuStream, CudaLike, DevicePtr},
    opencl::{ClQueue, consts::CL_TRUE},
};
use std::{
    env,
    process::Command,
    ptr::{null, null_mut},
};

/// Runs an ignored test in which the stub must end the process with status 99 and this message.
fn dies(test: &str, why: &str) {
    let (Some(opencl), Some(hip)) = (stub(), cuda_stub()) else { return };
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env("ONEBUF_STUB", "amd");
    command.env("ONEBUF_OPENCL_LIB", opencl).env("ONEBUF_CUDA_LIB", "none");
    for variable in ["ONEBUF_HIP_LIB", "ONEBUF_HIPRTC_LIB", "ONEBUF_HSA_LIB"] {
        command.env(variable, &hip);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(99), "{said}");
    assert!(said.contains(why), "`{why}` is not in: {said}");
}

#[test]
fn a_call_of_hips_on_svm_is_fatal() {
    dies("controls::filled_by_hip", "a call of the API was given memory that it does not know");
}

#[test]
fn an_svm_call_on_hips_memory_is_fatal() {
    dies("controls::copied_by_opencl", "an SVM copy was given memory of HIP's");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn filled_by_hip() {
    let rig = Rig::new();
    let buffer = rig.builder(&rig.cl.device, RouteKind::SvmPointer, N).build().unwrap();
    let view = buffer.write_on(&rig.hip.queue).unwrap();
    let table = CudaLike::load(Flavor::Hip, None, None).unwrap();
    let (at, stream) = (view.hip_ptr().unwrap(), CuStream(rig.hip.queue.raw() as *mut _));
    // SAFETY: live memory and a live stream; the call must not return.
    let filled = unsafe { table.fill_u8_async(DevicePtr(at as u64), 0, 4, stream) };
    panic!("the stub forgave it: {filled:?}");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn copied_by_opencl() {
    let rig = Rig::new();
    let buffer = rig.builder(&rig.hip.device, RouteKind::SvmPointer, N).build().unwrap();
    let view = buffer.write_on(&rig.cl.queue).unwrap();
    let (mut word, at) = (0u32, view.address().unwrap());
    let (queue, to) = (ClQueue(rig.cl.queue.raw() as *mut _), (&raw mut word).cast());
    // SAFETY: live objects and room for the word; the call must not return.
    let copied = unsafe {
        let (from, none, no) = (at.as_ptr().cast(), null(), null_mut());
        cl().enqueue_svm_memcpy(queue, CL_TRUE, to, from, 4, 0, none, no)
    };
    panic!("the stub forgave it: {copied:?}");
}
