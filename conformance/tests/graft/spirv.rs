//! The kernels natively and, as SPIR-V, grafted to a HIP runtime built on OpenCL. They are compiled here if possible, with
//! `ONEBUF_CLANG` and `ONEBUF_LLVM_SPIRV`, or `clang` and `llvm-spirv` in the path.

use crate::{
    cases::{self, Given},
    gpu::{run, text},
};
use onebuf::{Device, Error, Program, ProgramCache, Result, Source};
use onebuf_conformance::{Watchdog, assert_same, note, one_api};
use std::{collections::BTreeMap, env, fs, process::Command, time::Duration};

/// An OpenCL device, and the HIP device built on it.
fn pair() -> Option<(Device, Device)> {
    let builder = onebuf::builder().without(["vulkan", "gl"]).verdicts(Default::default());
    let builder = builder.program_cache(ProgramCache::Memory);
    let hub = builder.timeout(Duration::from_secs(60)).build().expect("the host");
    let both = |hip: Device| Some((hub.device(hip.info().caps.built_on.as_ref()?).ok()?, hip));
    hub.select("hip").into_iter().find_map(both)
}

/// A file of the corpus as a module; `None` without a compiler.
fn compile(file: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let [text_at, code_at, module_at] =
        ["k.cl", "k.bc", "k.spv"].map(|name| folder.path().join(name));
    fs::write(&text_at, text(file)).expect("a file");
    let tool = |variable, usual: &str| env::var(variable).unwrap_or(usual.to_owned());
    let clang = ["-c", "-emit-llvm", "-target", "spir64", "-cl-std=CL2.0", "-Xclang"];
    let clang = Command::new(tool("ONEBUF_CLANG", "clang"))
        .args(clang)
        .args(["-finclude-default-header", "-O1", "-o"])
        .args([&code_at, &text_at])
        .output();
    clang.ok().filter(|done| done.status.success())?;
    let spirv = Command::new(tool("ONEBUF_LLVM_SPIRV", "llvm-spirv"))
        .arg(&code_at)
        .args(["--spirv-max-version=1.2", "-o"])
        .arg(&module_at)
        .output();
    spirv.ok().filter(|done| done.status.success())?;
    fs::read(&module_at).ok()
}

#[test]
fn modules_compute_the_same() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("grafted modules", Duration::from_secs(240));
    let Some((cl, hip)) = pair() else { return note("skip: no HIP that is built on OpenCL") };
    if compile("local").is_none() {
        return note("skip: no compiler of SPIR-V");
    }
    let (mut compared, mut refused) = (0, BTreeMap::new());
    let mut programs: BTreeMap<&str, Result<(Program, Program)>> = BTreeMap::new();
    for case in cases::all() {
        let built = programs.entry(case.file).or_insert_with(|| {
            let module = compile(case.file).ok_or_else(|| Error::invalid("not compiled"))?;
            let native = cl.program(&Source::spirv(module))?;
            Ok((native.clone(), native.graft(&hip)?))
        });
        let (native, grafted) = match built {
            Ok(programs) => programs,
            Err(why) => {
                refused.insert(case.file, why.to_string());
                continue;
            }
        };
        let what = format!("{} {:?}", case.kernel, case.grid);
        let native = run(&cl, native, &case).unwrap_or_else(|e| panic!("{what}, natively: {e}"));
        let grafted = match run(&hip, grafted, &case) {
            Err(Error::Unsupported { what, needs }) => {
                refused.insert(case.kernel, format!("{what}: {needs}"));
                continue;
            }
            grafted => grafted.unwrap_or_else(|e| panic!("{what}, grafted: {e}")),
        };
        for (at, (native, grafted)) in native.iter().zip(&grafted).enumerate() {
            assert_same(grafted, native, &format!("{what}, buffer {at}"));
        }
        let mut given = case.args.iter().filter_map(|arg| match arg {
            Given::Buffer(contents) => Some(contents),
            _ => None,
        });
        let changed = native.iter().any(|after| given.next() != Some(after));
        assert!(changed || native.is_empty(), "{what}: the control, it does something");
        compared += 1;
    }
    note(&format!("{compared} launches the same natively and grafted; refused: {refused:#?}"));
    assert!(compared > 20, "{compared}");
}
