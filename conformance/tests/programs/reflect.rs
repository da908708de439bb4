//! Declared parameters are compared with the kernel's own, where the driver reports them.

use super::*;
use onebuf::{Complex32, Each, Error, Out, prelude::*};
use onebuf_conformance::{Watchdog, note};
use tempfile::tempdir;

const KERNELS: &str = "
typedef struct { float re, im; } pair;
kernel void gain(global float2 *x, constant float *by, global const uint *at, local float *tile, float4 v, uint n) {}
kernel void pairs(global pair *x, pair by) {}
";

/// The right declaration of `gain`.
fn right() -> Signature {
    let signature = Signature::new().each::<Complex32>(Access::ReadWrite);
    let signature = signature.buffer::<f32>(Access::Read).each::<u32>(Access::Read);
    signature.local::<f32>().value::<[f32; 4]>().value::<u32>()
}

/// A declaration, which parameter is wrong, and what the error says of it.
type Wrong = (Signature, usize, &'static str);

fn wrong() -> Vec<Wrong> {
    let new = Signature::new;
    let after_x = |s: Signature| s.each::<Complex32>(Access::ReadWrite);
    let after_by = |s: Signature| after_x(s).buffer::<f32>(Access::Read);
    let after_at = |s: Signature| after_by(s).each::<u32>(Access::Read);
    let after_tile = |s: Signature| after_at(s).local::<f32>();
    let after_v = |s: Signature| after_tile(s).value::<[f32; 4]>();
    let rest = |s: Signature| s.value::<[f32; 4]>().value::<u32>();
    let all_after_x =
        |s: Signature| rest(s.buffer::<f32>(Access::Read).each::<u32>(Access::Read).local::<f32>());
    vec![
        (all_after_x(new().value::<Complex32>()), 0, "the two are of different kinds"),
        (all_after_x(new().local::<Complex32>()), 0, "the two are of different kinds"),
        (all_after_x(new().buffer::<u32>(Access::ReadWrite)), 0, "the two have different types"),
        (all_after_x(new().buffer::<f64>(Access::ReadWrite)), 0, "the two have different types"),
        (
            all_after_x(new().each::<f32>(Access::ReadWrite)),
            0,
            "for each work-item would be too small",
        ),
        (
            rest(
                after_x(new())
                    .buffer::<f32>(Access::Write)
                    .each::<u32>(Access::Read)
                    .local::<f32>(),
            ),
            1,
            "the kernel only reads it",
        ),
        (
            rest(after_by(new()).each::<u32>(Access::ReadWrite).local::<f32>()),
            2,
            "the kernel only reads it",
        ),
        (
            rest(after_by(new()).each::<f32>(Access::Read).local::<f32>()),
            2,
            "the two have different types",
        ),
        (rest(after_at(new()).buffer::<f32>(Access::Read)), 3, "the two are of different kinds"),
        (rest(after_at(new()).local::<i32>()), 3, "the two have different types"),
        (after_tile(new()).value::<[f32; 3]>().value::<u32>(), 4, "the two have different sizes"),
        (after_tile(new()).value::<[u32; 4]>().value::<u32>(), 4, "the two have different types"),
        (after_v(new()).value::<f32>(), 5, "the two have different types"),
        (after_v(new()).bytes(8), 5, "the two have different sizes"),
    ]
}

/// Declarations that a driver cannot refuse.
fn harmless() -> Vec<Signature> {
    let rest = |s: Signature| s.local::<[f32; 2]>().value::<[f32; 4]>();
    let bytes = Signature::new().buffer::<u8>(Access::ReadWrite).buffer::<u8>(Access::ReadWrite);
    let bytes = bytes.buffer::<u8>(Access::Write).local::<u8>().bytes(16).bytes(4);
    let loose = Signature::new().buffer::<f32>(Access::Read).buffer::<[f32; 4]>(Access::Read);
    vec![bytes, rest(loose.buffer::<i32>(Access::Read)).value::<i32>()]
}

/// Declares a kernel that is not launched.
fn declare(program: &Program, kernel: &str, signature: Signature) -> Result<()> {
    // SAFETY: the kernels of this file do nothing, and are not launched.
    unsafe { program.kernel(kernel, signature).map(drop) }
}

#[test]
fn what_the_program_contradicts_is_refused_with_the_parameter() {
    let _watchdog = Watchdog::new("reflection", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub) {
        let program = device.program(&Source::opencl_c(KERNELS)).unwrap();
        declare(&program, "gain", right()).unwrap_or_else(|error| panic!("{device}: {error}"));
        for harmless in harmless() {
            let declared = format!("{harmless:?}");
            declare(&program, "gain", harmless)
                .unwrap_or_else(|e| panic!("{device} {declared}: {e}"));
        }
        // The device cannot know what the program's own types are.
        let pairs = Signature::new().each::<[f32; 2]>(Access::ReadWrite).value::<[u32; 2]>();
        declare(&program, "pairs", pairs).unwrap_or_else(|error| panic!("{device}: {error}"));
        let reports = wrong().into_iter().filter(|(signature, index, why)| {
            match declare(&program, "gain", signature.clone()) {
                Ok(()) => false,
                Err(Error::InvalidArgument(said)) => {
                    let about = format!("parameter {index} of kernel `gain` is `");
                    assert!(said.starts_with(&about) && said.ends_with(why), "{device}: {said}");
                    true
                }
                Err(error) => panic!("{device}: {error}"),
            }
        });
        let (reports, all) = (reports.count(), wrong().len());
        let platform = &device.info().platform;
        match reports {
            0 if platform == "Clover" => note("skip: reflection: clover reports no parameters"),
            _ => assert_eq!(reports, all, "{device}: each mistake is found on {platform}"),
        }
    }
}

#[test]
fn a_typed_kernel_that_is_not_the_programs_is_refused() {
    let _watchdog = Watchdog::new("typed reflection", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    let Ok(device) = hub.device("Portable Computing Language") else {
        return absent("PoCL", "not found");
    };
    const TEXT: &str = "kernel void f(global const float *x, global float *y, uint n) {}";
    // SAFETY: the kernel does nothing, here and below.
    unsafe { device.kernel::<(Each<&f32>, Each<Out<f32>>, u32)>(TEXT, "f").unwrap() };
    // SAFETY: as above.
    let wrong = unsafe { device.kernel::<(Each<&f32>, Each<&mut f32>, f32)>(TEXT, "f") };
    let said = wrong.unwrap_err().to_string();
    assert!(said.contains("parameter 2 of kernel `f` is `uint n` in the program"), "{said}");
    assert!(said.contains("declared as a value of type f32 (4 bytes)"), "{said}");
}

/// What was found by reading parameters must hold for options of the caller's, too, and may not be asked for twice.
#[test]
fn options_of_the_caller_are_kept() {
    let _watchdog = Watchdog::new("options", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub) {
        for options in ["-DTYPE=float", "-DTYPE=float -cl-kernel-arg-info"] {
            let source = Source::opencl_c("kernel void f(global TYPE *x) {}").with_options(options);
            let program = device.program(&source).unwrap();
            let floats = Signature::new().each::<f32>(Access::ReadWrite);
            declare(&program, "f", floats).unwrap_or_else(|error| panic!("{device}: {error}"));
        }
    }
}

/// A driver that reports nothing is believed to have what is declared, as one before OpenCL 1.2.
#[test]
fn a_driver_that_does_not_answer_refuses_nothing() {
    let _watchdog = Watchdog::new("reflection that fails", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let probe = Probe::new();
    let hub = watched(cache.path(), &probe);
    for device in devices(&hub) {
        let program = device.program(&Source::opencl_c(KERNELS)).unwrap();
        probe.fail_always("clGetKernelArgInfo", -19);
        for (signature, ..) in wrong() {
            declare(&program, "gain", signature)
                .unwrap_or_else(|error| panic!("{device}: {error}"));
        }
        probe.reset();
        declare(&program, "gain", right()).unwrap();
    }
}
