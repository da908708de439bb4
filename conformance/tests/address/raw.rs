//! The raw address that a kernel sees: requested by the caller, reported by one work-item, confirmed by ROCr, or refused.

use super::*;
use onebuf::{CopyPolicy, Error, MemoryKind, prelude::*};
use onebuf_conformance::class_a::ClassA;

plays! {
    nobody_gets_it_unasked: opt_in("amd");
    each_call_in_its_turn: in_turn("amd");
    a_plain_cl_mem_of_somebody_elses_is_used_in_place: wrapped("amd");
    without_rocr_it_is_refused: without("amd", "ONEBUF_HSA_LIB" => "none");
    an_address_that_rocr_does_not_know_is_refused: wrong("amd,wrong_address");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn opt_in() {
    let rig = Rig::new();
    let builder = || {
        let builder = rig.hub.buffer::<u32>(N).shared_with([&rig.cl.device, &rig.hip.device]);
        let builder = builder.allocate_on(&rig.cl.device).memory_kind(MemoryKind::Device);
        builder.copies(CopyPolicy::Forbid).trust_declared(true)
    };
    let why = builder().build().unwrap_err().to_string();
    assert!(why.contains("opt-in: ask for `raw_addresses`"), "{why}");
    let buffer = builder().raw_addresses(true).build().unwrap();
    let text = buffer.explain();
    assert!(text.contains("hip:0: raw_address"), "{text}");
    // The memory of both devices is marked as experimental.
    assert_eq!(text.matches("experimental: never run on hardware").count(), 2, "{text}");
    take_turns(&buffer, &rig);
    // A request does not prove the route.
    let unproven = builder().raw_addresses(true).trust_declared(false).build().unwrap_err();
    assert!(unproven.to_string().contains("onebuf doctor"), "{unproven}");
    drop(buffer);
    rig.end();
}

/// The exact calls of building such a buffer.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn in_turn() {
    let rig = Rig::new();
    rig.probe.reset();
    let buffer = rig.builder(&rig.cl.device, RouteKind::RawAddress, N).build().unwrap();
    let trace = rig.probe.trace();
    let from = trace.iter().position(|call| *call == "clCreateProgramWithSource").unwrap();
    let asked = |call: &&&str| !call.starts_with("clGet") && !call.starts_with("hipGet");
    let calls: Vec<_> = trace[from..].iter().filter(asked).copied().collect();
    let expected = [
        "clCreateProgramWithSource",
        "clBuildProgram",
        "clCreateKernel",
        "clSetKernelArg",
        "clSetKernelArg",
        "clEnqueueNDRangeKernel",
        "clEnqueueReadBuffer",
    ];
    assert_eq!(&calls[..expected.len()], expected, "{trace:?}");
    let hsa: Vec<_> = calls.iter().filter(|call| call.starts_with("hsa")).collect();
    // One query for the address, and one for HIP's own memory to learn which agent owns it.
    assert_eq!(hsa, [&"hsa_amd_pointer_info"; 2], "{trace:?}");
    drop(buffer);
    rig.end();
}

/// Memory of a program that does not use onebuf, in HIP's kernels, and its contents afterwards.
#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn wrapped() {
    let rig = Rig::new();
    let a = ClassA::all().into_iter().next().unwrap();
    let mut model = random_words(6, N);
    let mem = a.words(&model);
    // SAFETY: a live buffer that nothing else uses.
    let wrap = || unsafe { rig.hub.wrap_buffer::<u32>(mem.raw()) };
    let builder = || wrap().shared_with([&rig.hip.device]).trust_declared(true);
    let builder = || builder().copies(CopyPolicy::Forbid);
    let why = builder().build().unwrap_err();
    assert!(matches!(why, Error::CopyForbidden { .. }), "{why}");
    let buffer = builder().raw_addresses(true).build().unwrap();
    assert!(buffer.explain().contains("raw_address"), "{}", buffer.explain());
    for turn in 0..3 {
        rig.hip.step(&buffer, Step::nth(turn)).unwrap();
        step_model(&mut model, Step::nth(turn));
    }
    assert_same(&buffer.to_vec().unwrap(), &model, "through OpenCL");
    drop(buffer);
    assert_same(&a.read(&a.queue, &mem, N), &model, "what the owner finds");
    assert_eq!(rig.hub.ledger().implied_bytes(), 0);
    drop((mem, a));
    rig.end();
}

fn refused(words: &str) {
    let rig = Rig::new();
    let builder = || rig.builder(&rig.cl.device, RouteKind::RawAddress, N);
    let why = builder().build().unwrap_err();
    assert!(matches!(why, Error::Unsupported { .. }), "{why}");
    assert!(why.to_string().contains(words), "`{words}` is not in: {why}");
    // An address that comes from the allocator needs no confirmation.
    let svm = rig.builder(&rig.cl.device, RouteKind::SvmPointer, N).build().unwrap();
    take_turns(&svm, &rig);
    drop(svm);
    rig.end();
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn without() {
    refused("ROCr cannot confirm the address");
}

#[test]
#[ignore = "started by a test above, with the stubs in their parts"]
fn wrong() {
    refused("ROCr did not allocate it");
}
