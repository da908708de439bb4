//! Libraries on views: with the stub of CUDA's and ROCm's libraries, and with the real ones on a GPU. Results are
//! compared with the CPU implementation, which has its own tests.

mod calls;
mod faults;
mod results;

use onebuf::{HubBuilder, libs::Library, prelude::*};
use onebuf_conformance::{Watchdog, cuda_stub, one_api};
use std::{
    ffi::{CStr, c_char},
    time::Duration,
};

/// A hub with the stub's two devices as devices of one API, with that API's libraries.
fn stubbed(api: &str) -> Option<HubBuilder> {
    let library = cuda_stub()?.to_string_lossy().into_owned();
    let builder =
        onebuf::builder().without(["opencl", "vulkan", "gl"]).timeout(Duration::from_secs(30));
    let builder = builder.verdicts(Default::default());
    let (builder, own) = match api {
        "cuda" => (
            builder.library("cuda", &library).without(["hip"]),
            [Library::CuBlas, Library::CuFft, Library::CuSolver],
        ),
        _ => (
            builder.library("hip", &library).without(["cuda"]),
            [Library::RocBlas, Library::RocFft, Library::RocSolver],
        ),
    };
    Some(own.into_iter().fold(builder, |builder, own| builder.math_library(own, &library)))
}

/// Runs a test with both APIs.
fn each(test: impl Fn(&str, HubBuilder)) {
    let _alone = one_api();
    let _watchdog = Watchdog::new("the stub's libraries", Duration::from_secs(240));
    for api in ["cuda", "hip"] {
        let Some(builder) = stubbed(api) else { return };
        journal(); // discards what earlier tests left
        test(api, builder);
    }
}

/// Returns the calls of the stub's libraries since the last time, one line each.
fn journal() -> Vec<String> {
    let library = cuda_stub().expect("it was there before");
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: the stub's function writes a string of at most that many bytes.
    let text = unsafe {
        let stub = libloading::Library::new(library).unwrap();
        let log = stub.get::<unsafe extern "C" fn(*mut c_char, usize)>(c"onebuf_stub_log").unwrap();
        log(text.as_mut_ptr().cast(), text.len());
        CStr::from_ptr(text.as_ptr().cast())
    };
    text.to_str().unwrap().lines().map(str::to_owned).collect()
}
