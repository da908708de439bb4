//! Tests of the tables without a GPU: missing libraries, and prototypes.

use super::*;
use crate::headers;
use std::process::Command;

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

/// Skips a test; fails instead if `ONEBUF_STRICT` is set, because `./dev` installs what is needed.
fn absent(what: &str) {
    let strict = std::env::var("ONEBUF_STRICT").is_ok_and(|level| !["", "0"].contains(&&*level));
    assert!(!strict, "{what}, and ONEBUF_STRICT is set");
    println!("skip: {what}");
}

/// Compiles a code object, or returns the compiler's log. Names the target, so no GPU is needed.
fn compiled_for_amd(rtc: &Rtc, text: &std::ffi::CStr) -> Result<Vec<u8>, String> {
    let (name, target) = (c"program".as_ptr(), c"--offload-arch=gfx906".as_ptr());
    let mut bytes = 0;
    // SAFETY: NUL-terminated strings; a live program, and buffers of the sizes that it reports.
    unsafe {
        let none = std::ptr::null();
        let mut program = rtc.create_program(text.as_ptr(), name, 0, none, none).unwrap();
        let outcome = match rtc.compile(program, 1, &raw const target) {
            Ok(()) => {
                rtc.code_size(program, &raw mut bytes).unwrap();
                let mut code = vec![0; bytes];
                rtc.code(program, code.as_mut_ptr().cast()).unwrap();
                Ok(code)
            }
            Err(_) => {
                rtc.log_size(program, &raw mut bytes).unwrap();
                let mut log = vec![0; bytes];
                rtc.log(program, log.as_mut_ptr().cast()).unwrap();
                Err(String::from_utf8_lossy(&log).into_owned())
            }
        };
        rtc.destroy_program(&raw mut program).unwrap();
        outcome
    }
}

/// Runs in a separate process: AMD's compiler in Debian 12 contains clang but shares LLVM, which aborts if PoCL or
/// Clover load their clang too.
#[test]
fn the_real_hiprtc_compiles_without_a_device() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "--ignored", "--nocapture", "cuda_like::tests::hiprtc_compiles"]);
    let done = alone.output().unwrap();
    let said = [&*done.stdout, &*done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("{said}");
    assert!(done.status.success() && said.contains("1 passed"), "{:?}", done.status);
}

#[test]
#[ignore = "started by the test above"]
fn hiprtc_compiles() {
    let rtc = match Rtc::load(Flavor::Hip, None, None) {
        Ok(rtc) => rtc,
        Err(missing) => return absent(&missing.to_string()),
    };
    let scale = c"extern \"C\" __global__ void scale(float *x, float by) { x[threadIdx.x] *= by; }";
    let code = compiled_for_amd(&rtc, scale).unwrap();
    assert!(code.starts_with(b"\x7fELF"), "no code object: {:x?}", &code[..16.min(code.len())]);
    let has = |word: &[u8]| code.windows(word.len()).any(|part| part == word);
    assert!(has(b"scale.kd") && has(b"gfx906"), "another kernel, or for another GPU");
    let log = compiled_for_amd(&rtc, c"__global__ void scale( { }").unwrap_err();
    assert!(log.contains("error:"), "{log}");
}

/// Returns HIP's headers if they are installed. `ONEBUF_HIP_INCLUDE` names another folder.
fn hip_headers() -> Option<String> {
    let folder = std::env::var("ONEBUF_HIP_INCLUDE").unwrap_or("/usr/include".into());
    let read = |name| std::fs::read_to_string(format!("{folder}/hip/{name}"));
    match read("hip_runtime_api.h").and_then(|a| Ok(a + &read("hiprtc.h")?)) {
        Ok(text) => Some(text),
        Err(why) => {
            absent(&format!("no HIP headers in {folder}: {why}"));
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
        // Two of these exist only in chipStar, the other only in ROCm 6 and newer.
        let elsewhere = [
            "hipGetBackendNativeHandles",
            "hipGetNativeEventFromHipEvent",
            "hipGetDevicePropertiesR0600",
        ];
        if !hip.is_empty() && !elsewhere.contains(hip) {
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
    is("ConcurrentManagedAccess", Attribute::CONCURRENT_MANAGED_ACCESS);
    is("ComputeCapabilityMajor", Attribute::COMPUTE_CAPABILITY[0]);
    is("ComputeCapabilityMinor", Attribute::COMPUTE_CAPABILITY[1]);
    let cpu = format!("#define hipCpuDeviceId ((int){})", consts::DEVICE_CPU);
    assert!(text.contains(&cpu), "{cpu}");
    let errors = headers::enumerators(&text, "hipError_t");
    for (name, status) in [
        ("OutOfMemory", CuStatus::OUT_OF_MEMORY),
        ("NoDevice", CuStatus::NO_DEVICE),
        ("InvalidImage", CuStatus::INVALID_IMAGE),
        ("NoBinaryForGpu", CuStatus::NO_BINARY_FOR_GPU),
        ("NotFound", CuStatus::NOT_FOUND),
        ("NotReady", CuStatus::NOT_READY),
        ("IllegalAddress", CuStatus::ILLEGAL_ADDRESS),
        ("PeerAccessAlreadyEnabled", CuStatus::PEER_ACCESS_ALREADY_ENABLED),
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
        Err(missing) => return absent(&missing.to_string()),
    };
    assert_eq!(table.error_name(CuStatus::NOT_READY), "hipErrorNotReady");
    // SAFETY: `init` needs no earlier call.
    match unsafe { table.init(0) } {
        Ok(()) => {
            // SAFETY: initialised.
            let count = unsafe { table.device_count() };
            assert!(!matches!(count, Ok(0)), "no device is an error there");
        }
        Err(refused) => {
            let name = table.error_name(refused.status);
            assert!(["hipErrorInvalidDevice", "hipErrorNoDevice"].contains(&&*name), "{name}");
        }
    }
}

/// Returns the headers of the math libraries if they are installed: CUDA's by `ONEBUF_CUDA_INCLUDE`, ROCm's by
/// `ONEBUF_ROCM_INCLUDE`.
fn library_headers(flavor: Flavor) -> Option<String> {
    let variable = flavor.pick(["ONEBUF_CUDA_INCLUDE", "ONEBUF_ROCM_INCLUDE"]);
    let usual = flavor.pick(["/usr/local/cuda/include", "/opt/rocm/include"]);
    let folder = std::env::var(variable).unwrap_or(usual.into());
    let names: &[&str] = match flavor {
        Flavor::Cuda => &["cublas_api.h", "cufft.h", "cusolverDn.h"],
        Flavor::Hip => &[
            "rocblas/internal/rocblas-auxiliary.h",
            "rocblas/internal/rocblas-functions.h",
            "rocblas/internal/rocblas-types.h",
            "rocfft/rocfft.h",
            "rocsolver/rocsolver-functions.h",
        ],
    };
    let read = |name: &&str| std::fs::read_to_string(format!("{folder}/{name}"));
    match names.iter().map(read).collect::<Result<String, _>>() {
        Ok(text) => Some(headers::plain(&text)),
        Err(why) => {
            println!("skip: no headers of {} libraries in {folder}: {why}", flavor.api());
            None
        }
    }
}

#[test]
fn every_argument_has_the_size_that_the_libraries_headers_say() {
    for flavor in BOTH {
        let Some(text) = library_headers(flavor) else { continue };
        let mut seen = 0;
        for (names, sizes) in Blas::SIZES.iter().chain(Fft::SIZES).chain(Solver::SIZES) {
            let name = flavor.pick(*names);
            if !name.is_empty() {
                let said = headers::prototype(&text, name);
                assert_eq!(said.as_deref(), Some(*sizes), "{name}");
                seen += 1;
            }
        }
        assert!(seen > 28, "{seen}");
    }
}

/// The header parser distinguishes names, comments and types.
#[test]
fn prototypes_are_read() {
    let text = headers::plain(
        "rocblas_status\tfn_ab (rocblas_handle handle, /* x, */ const size_t n, // y\n int *p);\n\
         int fn_a(\n  float\n  x);\nint none(void);",
    );
    assert_eq!(headers::prototype(&text, "fn_a"), Some(vec![4]));
    assert_eq!(headers::prototype(&text, "fn_ab"), Some(vec![8, 8, 8]));
    assert_eq!(headers::prototype(&text, "none"), Some(vec![]));
    assert_eq!(headers::prototype(&text, "n_ab"), None);
}

#[test]
fn operations_are_numbered_as_in_the_headers() {
    let all = [Operation::NONE, Operation::TRANSPOSE, Operation::CONJUGATE_TRANSPOSE];
    let names = [
        ["CUBLAS_OP_N", "rocblas_operation_none"],
        ["CUBLAS_OP_T", "rocblas_operation_transpose"],
        ["CUBLAS_OP_C", "rocblas_operation_conjugate_transpose"],
    ];
    for flavor in BOTH {
        let Some(text) = library_headers(flavor) else { continue };
        // In some releases CUDA declares them in a separate header.
        let number = |name: &str| {
            let after = text.split(name).find_map(|rest| rest.trim_start().strip_prefix('='));
            after.map(|rest| rest.trim_start().split(|c: char| !c.is_numeric()).next().unwrap())
        };
        for (Operation(numbers), names) in all.iter().zip(names) {
            let (number, name) = (number(flavor.pick(names)), flavor.pick(names));
            assert_eq!(number, Some(flavor.pick(*numbers).to_string().as_str()), "{name}");
        }
    }
}

#[test]
fn libraries_that_are_missing_say_how_to_get_them() {
    for flavor in BOTH {
        let missing = [
            Blas::load(flavor, Some("/nonexistent.so"), None).unwrap_err(),
            Fft::load(flavor, Some("/nonexistent.so"), None).unwrap_err(),
            Solver::load(flavor, Some("/nonexistent.so"), None).unwrap_err(),
        ];
        for missing in missing {
            assert!(missing.hint.contains("ONEBUF_") && !missing.loaded, "{missing}");
        }
        let lacks = Solver::load(flavor, Some("libc.so.6"), None).unwrap_err();
        let (own, others) =
            flavor.pick([["cusolverDn", "rocsolver"], ["rocsolver", "cusolverDn"]]).into();
        assert!(lacks.reason.contains(own) && !lacks.reason.contains(others), "{lacks}");
    }
}

/// Checks that the installed libraries have every symbol of the tables.
#[test]
fn installed_libraries_are_complete() {
    for flavor in BOTH {
        let missing = [
            Blas::load(flavor, None, None).err(),
            Fft::load(flavor, None, None).err(),
            Solver::load(flavor, None, None).err(),
        ];
        for missing in missing.into_iter().flatten() {
            assert!(!missing.loaded, "{missing}");
            println!("skip: {missing}");
        }
    }
}
