//! SPIR-V, assembled by hand.

use super::*;
use onebuf::{Error, Origin};
use onebuf_conformance::{Watchdog, note};
use tempfile::tempdir;

/// `kernel void add_one(global uint *x) { x[get_global_id(0)] += 1; }`
///
/// Ids: 1 kernel, 2 GlobalInvocationId, 3 void, 4 uint, 5 ulong, 6 ulong3, 7 pointer to 6, 8 global uint *,
/// 9 type of 1, 10 the number 1, 11 x, 12 label, 13 value of 2, 14 its first part, 15 &x[14], 16 and 17 the
/// element before and after.
#[rustfmt::skip]
const ADD_ONE: &[u32] = &[
    0x0723_0203, 0x0001_0000, 0, 18, 0,  // magic, SPIR-V 1.0, no generator, ids below 18, schema
    op(17, 2), 4,                        // OpCapability Addresses
    op(17, 2), 6,                        // OpCapability Kernel
    op(17, 2), 11,                       // OpCapability Int64
    op(14, 3), 2, 2,                     // OpMemoryModel Physical64 OpenCL
    op(15, 6), 6, 1, letters(b"add_"), letters(b"one\0"), 2, // OpEntryPoint Kernel %1 "add_one" %2
    op(71, 4), 2, 11, 28,                // OpDecorate %2 BuiltIn GlobalInvocationId
    op(71, 3), 2, 22,                    // OpDecorate %2 Constant
    op(19, 2), 3,                        // %3 = OpTypeVoid
    op(21, 4), 4, 32, 0,                 // %4 = OpTypeInt 32 0
    op(21, 4), 5, 64, 0,                 // %5 = OpTypeInt 64 0
    op(23, 4), 6, 5, 3,                  // %6 = OpTypeVector %5 3
    op(32, 4), 7, 1, 6,                  // %7 = OpTypePointer Input %6
    op(32, 4), 8, 5, 4,                  // %8 = OpTypePointer CrossWorkgroup %4
    op(33, 4), 9, 3, 8,                  // %9 = OpTypeFunction %3 %8
    op(43, 4), 4, 10, 1,                 // %10 = OpConstant %4 1
    op(59, 4), 7, 2, 1,                  // %2 = OpVariable %7 Input
    op(54, 5), 3, 1, 0, 9,               // %1 = OpFunction %3 None %9
    op(55, 3), 8, 11,                    // %11 = OpFunctionParameter %8
    op(248, 2), 12,                      // %12 = OpLabel
    op(61, 6), 6, 13, 2, 2, 32,          // %13 = OpLoad %6 %2 Aligned 32
    op(81, 5), 5, 14, 13, 0,             // %14 = OpCompositeExtract %5 %13 0
    op(70, 5), 8, 15, 11, 14,            // %15 = OpInBoundsPtrAccessChain %8 %11 %14
    op(61, 6), 4, 16, 15, 2, 4,          // %16 = OpLoad %4 %15 Aligned 4
    op(128, 5), 4, 17, 16, 10,           // %17 = OpIAdd %4 %16 %10
    op(62, 5), 15, 17, 2, 4,             // OpStore %15 %17 Aligned 4
    op(253, 1),                          // OpReturn
    op(56, 1),                           // OpFunctionEnd
];

/// An instruction's first word.
const fn op(code: u32, words: u32) -> u32 {
    words << 16 | code
}

const fn letters(four: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*four)
}

fn module() -> Vec<u8> {
    ADD_ONE.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn takes_spirv(device: &Device) -> bool {
    device.info().caps.il_versions.iter().any(|version| version.starts_with("SPIR-V"))
}

#[test]
fn a_module_runs_where_it_is_taken() {
    let _watchdog = Watchdog::new("SPIR-V", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let (first, second) = (hub(cache.path()), hub(cache.path()));
    for (device, again) in devices(&first).iter().zip(devices(&second)) {
        let name = &device.info().platform;
        if !takes_spirv(device) {
            let refused = device.program(&Source::spirv(module())).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{name}: {refused}");
            assert!(refused.to_string().contains("a source that has SPIR-V"), "{name}: {refused}");
            note(&format!("{name}: {refused}"));
            // With a text in the source, the text is used.
            assert_works(&device.program(&text().with_spirv(module())).unwrap());
            continue;
        }
        let built =
            device.program(&Source::spirv(module())).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(built.origin(), Origin::Built, "{name}");
        let seen = run(&built, "add_one", None).unwrap();
        assert!(seen.iter().zip(1..).all(|(seen, expected)| *seen == expected), "{name}: {seen:?}");
        note(&format!("{name}: SPIR-V ran, {:?}", device.info().caps.il_versions));
        if gives_binaries(&built) {
            let loaded = again.program(&Source::spirv(module())).unwrap();
            assert_eq!(loaded.origin(), Origin::Disk, "{name}");
            assert_eq!(run(&loaded, "add_one", None).unwrap(), seen, "{name}");
        }
        // SPIR-V is preferred to text.
        let both = again.program(&text().with_spirv(module())).unwrap();
        assert_eq!(run(&both, "add_one", None).unwrap(), seen, "{name}");
    }
}

#[test]
fn what_is_no_module_does_not_reach_the_driver() {
    let _alone = alone();
    let cache = tempdir().unwrap();
    let probe = Probe::new();
    let hub = watched(cache.path(), &probe);
    let whole = module();
    let reversed: Vec<u8> = whole.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
    for device in devices(&hub) {
        for wrong in
            [&whole[1..], &whole[..whole.len() - 1], &reversed[..18], b"", b"\x03\x02#\x07"]
        {
            probe.reset();
            let error = device.program(&Source::spirv(wrong.to_vec())).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{device}: {error}");
            let programs = probe.trace().iter().filter(|call| call.contains("Program")).count();
            assert_eq!(programs, 0, "{device}");
        }
    }
}

#[test]
fn declarations_are_compared_with_the_module() {
    let _watchdog = Watchdog::new("SPIR-V parameters", LIMIT);
    let _alone = alone();
    let cache = tempdir().unwrap();
    let hub = hub(cache.path());
    for device in devices(&hub).into_iter().filter(takes_spirv) {
        let program = device.program(&Source::spirv(module())).unwrap();
        // SAFETY: the kernel is not launched.
        let declare = |signature| unsafe { program.kernel("add_one", signature).map(drop) };
        for right in [
            Signature::new().each::<u32>(Access::ReadWrite),
            Signature::new().each::<i32>(Access::ReadWrite),
            Signature::new().buffer::<u8>(Access::ReadWrite),
        ] {
            declare(right).unwrap_or_else(|error| panic!("{device}: {error}"));
        }
        for (wrong, why) in [
            (Signature::new().value::<u32>(), "the two are of different kinds"),
            (Signature::new().local::<u32>(), "the two are of different kinds"),
            (Signature::new().each::<f32>(Access::ReadWrite), "the two have different types"),
            (Signature::new().each::<u16>(Access::ReadWrite), "the two have different types"),
            (Signature::new().each::<u8>(Access::ReadWrite), "would be too small"),
        ] {
            match declare(wrong) {
                Err(Error::InvalidArgument(said)) if said.ends_with(why) => {
                    assert!(
                        said.starts_with("parameter 0 of kernel `add_one` is `global"),
                        "{said}"
                    );
                }
                other => panic!("{device}: {other:?} is not: {why}"),
            }
        }
        note(&format!("{device}: parameters of SPIR-V are compared"));
    }
}
