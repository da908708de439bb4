//! Refusals that depend on the devices, for which no GPU is needed.

use onebuf::{Error, Hub, Source, prelude::*};
use onebuf_conformance::{absent, class_a::ClassA, cuda_stub, one_api};
use std::{ptr, time::Duration};

const TEXT: &str = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }";

/// The available OpenCL devices, and a stub for CUDA.
fn hub() -> Option<Hub> {
    let library = cuda_stub()?.to_string_lossy().into_owned();
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .library("cuda", &library)
        .library("nvrtc", library)
        .without(["hip"]);
    let builder = builder.verdicts(Default::default()).timeout(Duration::from_secs(30));
    Some(builder.build().expect("the host"))
}

#[test]
fn only_ptx_is_grafted_to_cuda() {
    let _alone = one_api();
    let Some(hub) = hub() else { return };
    let cuda = hub.device("cuda").unwrap();
    let refused = |result: onebuf::Result<onebuf::Program>, why: &str| match result {
        Err(Error::Unsupported { what, needs }) => {
            assert!(format!("{what}: {needs}").contains(why), "{what}: {needs}");
        }
        other => panic!("{why}: {other:?}"),
    };
    let host = hub.host().program(&Source::default().with_native("twice", |_| Ok(()))).unwrap();
    refused(host.graft(&cuda), "compiled by OpenCL");
    let Some(cl) = hub.select("opencl").into_iter().next() else {
        return absent("OpenCL", "no device");
    };
    let program = cl.program(&Source::opencl_c(TEXT)).unwrap();
    refused(program.graft(&hub.host()), "a CUDA device");
    assert_eq!(program.graft_if_proven(&cuda).device().id(), cl.id(), "nothing is proven here");
    refused(program.graft(&cl), "a CUDA device");
    if cl.info().platform != "NVIDIA CUDA" {
        refused(program.graft(&cuda), "whose programs are PTX");
    }
}

#[test]
fn a_foreign_program_must_be_one() {
    let _alone = one_api();
    let Some(hub) = hub() else { return };
    let cuda = hub.device("cuda").unwrap();
    // SAFETY: null is allowed.
    let refused = unsafe { hub.graft_foreign(ptr::null_mut(), &cuda) };
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_) | Error::Unavailable { .. })),
        "{refused:?}"
    );
    // SAFETY: as above.
    let refused = unsafe { hub.graft_foreign(ptr::null_mut(), &hub.host()) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    let Some(app) = ClassA::of("Portable Computing Language") else {
        return absent("Portable Computing Language", "no device of this platform");
    };
    let references = app.program.count();
    // SAFETY: the program is the application's, and alive.
    let refused = unsafe { hub.graft_foreign(app.program.raw(), &cuda) };
    assert!(refused.unwrap_err().to_string().contains("whose programs are PTX"));
    assert_eq!(app.program.count(), references);
}
