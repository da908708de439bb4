//! Modules that try to exhaust memory or time.

use super::{
    has_variables, parameters, rewrite,
    tests::{KERNEL, OWN, UINT, module, named, op},
};
use onebuf_hal::{
    packing::{self, Slot},
    testing::{
        fuzz::{Bound, Form, Target},
        meter::measure,
    },
};

/// The bound that `docs/graft.md` promises.
const BOUND: Bound = Bound { per_byte: 64, fixed: 1 << 20 };

fn rewritten(module: &[u8]) -> Result<Vec<u8>, String> {
    let (_, taken) = measure(|| parameters(module, "k"));
    BOUND.check("parameters of SPIR-V", module, taken);
    let (image, taken) = measure(|| rewrite(module));
    BOUND.check("SPIR-V", module, taken);
    image
}

/// A group with many decorations is applied to many ids, many times.
#[test]
fn decorations_take_no_more_than_their_ids() {
    let said = op(71, &[OWN, 38, 2]).repeat(256);
    let ids: Vec<u32> = (1000..1256).collect();
    let applied = op(74, &[&[OWN], &ids[..]].concat()).repeat(195);
    let module = module(&[said, applied], &[UINT]);
    assert!((200 << 10..210 << 10).contains(&module.len()), "{}", module.len());
    assert!(rewritten(&module).is_ok());
}

/// One large structure is the type of many parameters: it is laid out once.
#[test]
fn structures_are_laid_out_once_for_all_parameters() {
    let members = 40_000;
    let structure = op(30, &[&[OWN][..], &vec![UINT; members]].concat());
    let module = module(&[structure], &[OWN; 10_000]);
    assert!((300 << 10..400 << 10).contains(&module.len()), "{}", module.len());
    let image = rewritten(&module).unwrap();
    let kernels = packing::read(&image).unwrap().unwrap();
    assert_eq!(kernels[0].slots, vec![Slot::Value(4 * members); 10_000]);
}

/// Each level contains the previous one twice: unless every type is laid out once, the work doubles with each level.
#[test]
fn types_in_types_are_laid_out_once() {
    let layers: Vec<_> = (0..30).map(|n| op(30, &[OWN + n + 1, OWN + n, OWN + n])).collect();
    let first = op(21, &[OWN, 32, 0]);
    let image = rewritten(&module(&[vec![first], layers].concat(), &[OWN + 30])).unwrap();
    assert_eq!(packing::read(&image).unwrap().unwrap()[0].slots, [Slot::Value(4 << 30)]);
}

/// Many names for one function with many parameters.
#[test]
fn entries_do_not_multiply_parameters() {
    let entries = |count: usize| {
        let entries = (0..count).map(|n| named(15, &[6, KERNEL], &format!("k{n}"), &[]));
        module(&entries.collect::<Vec<_>>(), &[UINT; 4_000])
    };
    assert!(rewritten(&entries(3)).is_ok());
    let why = rewritten(&entries(10_000)).unwrap_err();
    assert!(why.contains("arguments of all kernels together"), "{why}");
}

/// Kernels that all name many variables, one of which is the number of dimensions.
#[test]
fn kernels_that_ask_for_dimensions_are_counted_once() {
    let uses: Vec<u32> = (1000..1100).collect();
    let kernel = |n: usize| named(15, &[6, KERNEL], &format!("k{n}"), &uses);
    let kernels: Vec<_> = (0..1000).map(kernel).chain([op(71, &[OWN, 11, 30])]).collect();
    let image = rewritten(&module(&kernels, &[])).unwrap();
    let kernels = packing::read(&image).unwrap().unwrap();
    assert!(kernels.len() == 1001 && kernels.iter().all(|kernel| kernel.three_dims));
}

#[test]
fn fuzz_spirv_of_opencl() {
    let decorated = [
        op(71, &[OWN + 9, 38, 2]),
        op(71, &[OWN + 9, 11, 30]),
        op(74, &[OWN + 9, 60, 61, 62]),
        op(16, &[KERNEL, 17, 8, 4, 1]),
        op(32, &[OWN + 1, 5, UINT]),
        op(32, &[OWN + 2, 4, UINT]),
    ];
    let typed = [
        op(43, &[UINT, OWN + 4, 3]),
        op(28, &[OWN + 5, UINT, OWN + 4]),
        op(23, &[OWN + 3, UINT, 4]),
        op(30, &[OWN + 6, OWN + 5, UINT]),
        op(32, &[OWN + 7, 7, OWN + 6]),
        op(59, &[OWN, OWN + 2, 5, OWN + 1]),
        named(15, &[6, KERNEL], "other", &[OWN + 1]),
        named(11, &[OWN + 8], "OpenCL.std", &[]),
    ];
    let seeds = [
        module(&decorated, &[OWN + 1, OWN + 2, UINT]),
        module(&typed, &[OWN + 6, OWN + 3, UINT, UINT]),
    ];
    Target {
        name: "SPIR-V for OpenCL",
        bound: BOUND,
        input: &|random, most| Form::Spirv.changed(random, &seeds, most),
        parse: &|module| rewrite(module).is_ok() | has_variables(module),
    }
    .run();
}
