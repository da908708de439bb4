//! Declared parameters are compared with those of PTX, or with their sizes, which the driver reports of any image.

use super::*;
use onebuf::{Complex32, Program};

const PTX: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .entry onebuf_step(
    .param .u64 .ptr .global .align 4 data,
    .param .u32 count,
    .param .f32 gain,
    .param .b32 seed,
    .param .align 4 .b8 pair[4]
)
{
    ret;
}
.visible .entry told(
    .param .u64 first, .param .u64 .ptr .const .align 8 second, .param .b64 third,
    .param .u32 a, .param .u32 b, .param .u32 c, .param .u32 d
)
{
    ret;
}
.visible .entry add(.param .u64 data, .param .u32 by) { ret; }
";
const CUDA_C: &str = "extern \"C\" __global__ void add(unsigned *data, unsigned by) {}";

/// Declares a kernel that is not launched.
fn declare(program: &Program, kernel: &str, signature: Signature) -> Result<()> {
    // SAFETY: the kernels of this file do nothing, and are not launched.
    unsafe { program.kernel(kernel, signature).map(drop) }
}

fn step() -> Signature {
    Signature::new().buffer::<u32>(Access::ReadWrite)
}

/// Each takes another kind of what PTX does not tell: types of data, addresses as numbers, vectors as one number.
fn right() -> Vec<(&'static str, Signature)> {
    let new = Signature::new;
    let four = |s: Signature| s.value::<u32>().value::<i32>().value::<u32>().bytes(4);
    vec![
        ("onebuf_step", step().value::<u32>().value::<f32>().value::<f32>().value::<[u8; 4]>()),
        ("onebuf_step", new().each::<Complex32>(Access::Read).bytes(4).bytes(4).bytes(4).bytes(4)),
        // Local memory is no parameter.
        ("onebuf_step", {
            let after = step().local::<f32>().value::<i32>().value::<f32>();
            after.local::<u64>().value::<i32>().value::<[i16; 2]>()
        }),
        ("told", four(step().buffer::<f64>(Access::Read).value::<f64>())),
        ("told", four(new().value::<u64>().buffer::<u8>(Access::ReadWrite).value::<[f32; 2]>())),
        ("told", four(new().value::<[u32; 2]>().buffer::<u32>(Access::Read).bytes(8))),
        ("add", step().value::<u32>()),
        ("add", new().value::<i64>().value::<i32>()),
    ]
}

/// What PTX contradicts: the kernel, the declaration, the parameter, and what the error says of it.
fn wrong() -> Vec<(&'static str, Signature, usize, &'static str)> {
    let new = Signature::new;
    let rest = |s: Signature| s.value::<f32>().value::<u32>().value::<u32>();
    let four = |s: Signature| s.value::<u32>().value::<u32>().value::<u32>().value::<u32>();
    let kinds = "the two are of different kinds";
    let types = "the two have different types";
    vec![
        ("onebuf_step", rest(new().value::<u64>().value::<u32>()), 0, kinds),
        ("onebuf_step", rest(step().buffer::<u32>(Access::Read)), 1, kinds),
        ("onebuf_step", rest(step().value::<f32>()), 1, types),
        ("onebuf_step", rest(step().value::<u64>()), 1, types),
        ("onebuf_step", rest(step().bytes(8)), 1, "the two have different sizes"),
        ("onebuf_step", four(step()), 2, types),
        (
            "onebuf_step",
            step().local::<u8>().value::<u32>().value::<f32>().value::<u64>().bytes(4),
            4,
            "the two have different sizes",
        ),
        ("told", four(step().buffer::<u8>(Access::Read).value::<u32>()), 2, "different sizes"),
        ("told", four(step().buffer::<u32>(Access::Write).value::<u64>()), 1, "only reads it"),
        ("told", four(new().value::<f64>().buffer::<u8>(Access::Read).bytes(8)), 0, types),
        ("add", new().value::<u32>().value::<u32>(), 0, types),
    ]
}

fn refused(program: &Program, kernel: &str, signature: Signature) -> String {
    match declare(program, kernel, signature) {
        Err(Error::InvalidArgument(said)) => said,
        other => panic!("{kernel}: {other:?}"),
    }
}

fn with_cuda(test: impl Fn(&Device, &Probe)) {
    each(|api, builder| {
        // HIP's driver loads no PTX, and reports no parameters.
        if api == "cuda" {
            let probe = Probe::new();
            let hub = builder.verdicts(Default::default()).probe(probe.clone()).build().unwrap();
            test(&hub.device("cuda:0").unwrap(), &probe);
        }
    });
}

#[test]
fn what_ptx_contradicts_is_refused_with_the_parameter() {
    with_cuda(|device, probe| {
        let program = device.program(&Source::ptx(PTX)).unwrap();
        // Drivers before CUDA 12.4 report no sizes; the text has them.
        for reports in [true, false] {
            if !reports {
                probe.fail_always("cuFuncGetParamInfo", 801);
            }
            for (kernel, signature) in right() {
                let what = format!("{kernel}, {signature:?}");
                declare(&program, kernel, signature).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            for (kernel, signature, index, why) in wrong() {
                let said = refused(&program, kernel, signature);
                let about = format!("parameter {index} of kernel `{kernel}` is `.param ");
                assert!(said.starts_with(&about) && said.ends_with(why), "{said}");
            }
            let said = refused(&program, "add", step());
            assert!(said.contains("kernel `add` takes 2 arguments"), "{said}");
            let said = refused(&program, "add", step().value::<u32>().value::<u32>());
            assert!(said.contains("takes 2 arguments besides local memory, 3 are"), "{said}");
        }
    });
}

/// A compiled image has no text: the driver's sizes are compared, if it reports them.
#[test]
fn sizes_of_a_binary_are_compared() {
    with_cuda(|device, probe| {
        let program = device.program(&Source::cuda_c(CUDA_C)).unwrap();
        declare(&program, "add", step().value::<f32>()).unwrap();
        declare(&program, "add", step().local::<u64>().value::<u32>()).unwrap();
        let said = refused(&program, "add", step().value::<u64>());
        assert!(said.contains("parameter 1 of kernel `add` is `4 bytes`"), "{said}");
        let said = refused(&program, "add", step().buffer::<u32>(Access::Read));
        assert!(said.ends_with("the two are of different kinds"), "{said}");
        let said = refused(&program, "add", step().value::<u32>().value::<u32>());
        assert!(said.contains("takes 2 arguments besides local memory"), "{said}");
        probe.fail_always("cuFuncGetParamInfo", 801);
        declare(&program, "add", step().value::<u64>()).expect("what is not known is trusted");
    });
}
