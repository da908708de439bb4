//! The tables without a GPU: what is missing, and the prototypes.

use super::*;
use crate::headers;

const BOTH: [Flavor; 2] = [Flavor::Cuda, Flavor::Hip];

#[test]
fn a_missing_library_is_a_value() {
    for flavor in BOTH {
        let missing = CudaLike::load(flavor, Some("/nonexistent.so"), None).unwrap_err();
        assert_eq!((missing.api, missing.loaded), (flavor.api(), false));
        assert_eq!(missing.tried, ["/nonexistent.so"]);
        assert!(missing.hint.contains("it comes with"), "{missing}");
        let missing = Rtc::load(flavor, Some("/nonexistent.so"), None).unwrap_err();
        assert!(missing.api.ends_with("rtc") && !missing.loaded, "{missing}");
    }
}

#[test]
fn none_switches_off() {
    for flavor in BOTH {
        let missing = CudaLike::load(flavor, Some("none"), None).unwrap_err();
        assert!(missing.tried.is_empty() && missing.reason.contains("switched off"), "{missing}");
    }
}

#[test]
fn a_library_that_is_another_says_what_it_lacks() {
    let lacks = |flavor| CudaLike::load(flavor, Some("libc.so.6"), None).unwrap_err();
    let (cuda, hip) = (lacks(Flavor::Cuda), lacks(Flavor::Hip));
    assert!(cuda.loaded && hip.loaded);
    assert!(cuda.reason.starts_with("libc.so.6 lacks cuGetErrorName, cuInit, "), "{cuda}");
    assert!(hip.reason.starts_with("libc.so.6 lacks hipGetErrorName, hipInit, "), "{hip}");
    for (missing, others) in [(&cuda, "hip"), (&hip, "cu")] {
        let words: Vec<_> = missing.reason.split([' ', ',']).collect();
        assert!(!words.iter().any(|word| word.starts_with(others)), "{missing}");
        assert!(words.iter().all(|word| !word.is_empty() || !missing.reason.contains(",,")));
    }
    assert!(!cuda.reason.contains("cuFuncGetParamInfo"), "optional symbols are not demanded");
}

#[test]
fn statuses_display_as_numbers_and_some_are_fatal() {
    let refused = Refused { call: "cuInit", status: CuStatus::NO_DEVICE };
    assert_eq!(refused.to_string(), "cuInit: status 100");
    assert!(CuStatus::ILLEGAL_ADDRESS.is_fatal() && CuStatus(716).is_fatal());
    assert!(!CuStatus::NOT_READY.is_fatal() && !CuStatus::OUT_OF_MEMORY.is_fatal());
    assert_eq!(CuStatus::SUCCESS.ok(), Ok(()));
}

/// HIP's own headers, where they are installed. `ONEBUF_HIP_INCLUDE` names another folder.
fn hip_headers() -> Option<String> {
    let folder = std::env::var("ONEBUF_HIP_INCLUDE").unwrap_or("/usr/include".into());
    let read = |name| std::fs::read_to_string(format!("{folder}/hip/{name}"));
    match read("hip_runtime_api.h").and_then(|a| Ok(a + &read("hiprtc.h")?)) {
        Ok(text) => Some(text),
        Err(why) => {
            println!("skip: no HIP headers in {folder}: {why}");
            None
        }
    }
}

#[test]
fn every_argument_has_the_size_that_hips_headers_say() {
    let Some(text) = hip_headers() else { return };
    let prototypes = headers::hip_prototypes(&text);
    let mut seen = 0;
    for ([_, hip], sizes) in CudaLike::SIZES.iter().chain(Rtc::SIZES) {
        if !hip.is_empty() {
            let said =
                prototypes.get(*hip).unwrap_or_else(|| panic!("{hip} is not in the headers"));
            assert_eq!(said, sizes, "{hip}");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn numbers_are_those_of_hips_headers() {
    let Some(text) = hip_headers() else { return };
    let attributes = headers::enumerators(&text, "hipDeviceAttribute_t");
    let is = |name: &str, Attribute([_, hip]): Attribute| {
        assert_eq!(attributes[&format!("hipDeviceAttribute{name}")], i64::from(hip), "{name}");
    };
    is("MaxThreadsPerBlock", Attribute::MAX_THREADS_PER_BLOCK);
    is("MaxBlockDimX", Attribute::MAX_BLOCK_DIM[0]);
    is("MaxBlockDimZ", Attribute::MAX_BLOCK_DIM[2]);
    is("MaxGridDimX", Attribute::MAX_GRID_DIM[0]);
    is("MaxGridDimZ", Attribute::MAX_GRID_DIM[2]);
    is("MaxSharedMemoryPerBlock", Attribute::MAX_SHARED_MEMORY_PER_BLOCK);
    is("SharedMemPerBlockOptin", Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    is("WarpSize", Attribute::WARP_SIZE);
    is("MultiprocessorCount", Attribute::MULTIPROCESSOR_COUNT);
    is("Integrated", Attribute::INTEGRATED);
    is("CanMapHostMemory", Attribute::CAN_MAP_HOST_MEMORY);
    is("ComputeCapabilityMajor", Attribute::COMPUTE_CAPABILITY[0]);
    is("ComputeCapabilityMinor", Attribute::COMPUTE_CAPABILITY[1]);
    let errors = headers::enumerators(&text, "hipError_t");
    for (name, status) in [
        ("OutOfMemory", CuStatus::OUT_OF_MEMORY),
        ("NoDevice", CuStatus::NO_DEVICE),
        ("InvalidImage", CuStatus::INVALID_IMAGE),
        ("NoBinaryForGpu", CuStatus::NO_BINARY_FOR_GPU),
        ("NotFound", CuStatus::NOT_FOUND),
        ("NotReady", CuStatus::NOT_READY),
        ("IllegalAddress", CuStatus::ILLEGAL_ADDRESS),
        ("HostMemoryAlreadyRegistered", CuStatus::HOST_MEMORY_ALREADY_REGISTERED),
        ("LaunchFailure", CuStatus::LAUNCH_FAILED),
        ("NotSupported", CuStatus::NOT_SUPPORTED),
    ] {
        assert_eq!(errors[&format!("hipError{name}")], i64::from(status.0), "{name}");
    }
}

#[test]
fn the_installed_hip_answers() {
    let table = match CudaLike::load(Flavor::Hip, None, None) {
        Ok(table) => table,
        Err(missing) => return println!("skip: {missing}"),
    };
    assert_eq!(table.error_name(CuStatus::NOT_READY), "hipErrorNotReady");
    // SAFETY: the first call there is.
    match unsafe { table.init(0) } {
        Ok(()) => {
            // SAFETY: initialised.
            let count = unsafe { table.device_count() };
            assert!(!matches!(count, Ok(0)), "no device is an error there");
        }
        Err(refused) => assert_eq!(refused.call, "hipInit"),
    }
}
