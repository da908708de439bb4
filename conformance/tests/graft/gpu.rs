//! The kernels natively and grafted, on a GPU that both OpenCL and CUDA see: every byte of every buffer must be
//! the same afterwards.
//!
//! # Safety
//! The kernels are those of the corpus, launched with buffers that were made for them.

use crate::cases::{self, Case, Given};
use onebuf::{
    Access, Arg, Device, Error, IntoArg, Origin, Program, ProgramCache, Result, Signature, Source,
    args, prelude::*,
};
use onebuf_conformance::{
    Hardware, Step, Watchdog, assert_same, class_a::ClassA, lacking, note, one_api, random_words,
    step_model,
};
use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, time::Duration};

const TEXTS: [(&str, &str); 12] = {
    macro_rules! texts {
        ($($name:literal),*) => { [$(($name, include_str!(concat!("../../graft/", $name, ".cl")))),*] };
    }
    texts![
        "index",
        "local",
        "values",
        "atomics",
        "numbers",
        "vectors",
        "constant",
        "calls",
        "groups",
        "fft",
        "scope",
        "refused_printf"
    ]
};

pub fn text(file: &str) -> &'static str {
    TEXTS.iter().find(|(name, _)| *name == file).expect("a file of the corpus").1
}

/// A GPU as an OpenCL and a CUDA device; `None`, after a printed skip, if there is none.
fn pair() -> Option<(Device, Device)> {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .program_cache(ProgramCache::Memory);
    let hub = builder.timeout(Duration::from_secs(60)).build().expect("the host");
    let seen_twice = |cl: &Device| {
        let chip = cl.info().physical;
        let cuda = hub.select("cuda").into_iter().find(|d| d.info().physical.same_chip(&chip))?;
        Some((cl.clone(), cuda))
    };
    let found = hub.select("opencl").iter().find_map(seen_twice);
    if found.is_none() {
        lacking(&[Hardware::Nvidia], "no GPU that both OpenCL and CUDA see");
    }
    found
}

fn signature(case: &Case) -> Signature {
    let declared = case.args.iter().fold(Signature::new(), |signature, arg| match arg {
        Given::Buffer(_) => signature.buffer::<u8>(Access::ReadWrite),
        Given::Value(bytes) => signature.bytes(bytes.len()),
        Given::Local(_) => signature.local::<u8>(),
    });
    if case.offset { declared.offsets() } else { declared }
}

/// Launches a case and returns the contents of its buffers.
pub fn run(device: &Device, program: &Program, case: &Case) -> Result<Vec<Vec<u8>>> {
    // SAFETY: the case's buffers are as large as its kernel requires.
    let kernel = unsafe { program.kernel(case.kernel, signature(case)) }?;
    let queue = device.queue()?;
    let mut buffers = Vec::new();
    for arg in &case.args {
        if let Given::Buffer(contents) = arg {
            let buffer = device.hub().buffer::<u8>(contents.len()).shared_with([device]).build()?;
            buffer.write(contents)?;
            buffers.push(buffer);
        }
    }
    let mut next = buffers.iter();
    let args = case.args.iter().map(|arg| match arg {
        Given::Buffer(_) => Ok(next.next().expect("as many").write_on(&queue)?.into_arg()),
        Given::Value(bytes) => Ok(Arg::bytes(bytes)),
        Given::Local(bytes) => Ok(Arg::local::<u8>(*bytes)),
    });
    let args: Vec<Arg<'_>> = args.collect::<Result<_>>()?;
    queue.launch(&kernel, case.grid, args)?;
    buffers.iter().map(|buffer| buffer.to_vec()).collect()
}

/// Runs every case with these options; returns how many were compared, and the refused ones with their reasons.
fn compare(options: &str) -> Option<(usize, BTreeMap<&'static str, String>)> {
    let (cl, cuda) = pair()?;
    let (mut compared, mut refused) = (0, BTreeMap::new());
    let mut programs: BTreeMap<&str, Result<(Program, Program)>> = BTreeMap::new();
    for case in cases::all() {
        let built = programs.entry(case.file).or_insert_with(|| {
            let native = cl.program(&Source::opencl_c(text(case.file)).with_options(options))?;
            Ok((native.clone(), native.graft(&cuda)?))
        });
        let (native, grafted) = match built {
            Ok(programs) => programs,
            Err(why) => {
                refused.insert(case.file, why.to_string());
                continue;
            }
        };
        let what = format!("{} {:?} with `{options}`", case.kernel, case.grid);
        let native = run(&cl, native, &case).unwrap_or_else(|e| panic!("{what}, natively: {e}"));
        let grafted = match run(&cuda, grafted, &case) {
            Err(Error::Unsupported { what, needs }) if case.offset => {
                refused.insert(case.kernel, format!("{what}: {needs}"));
                continue;
            }
            grafted => grafted.unwrap_or_else(|e| panic!("{what}, grafted: {e}")),
        };
        for (at, (native, grafted)) in native.iter().zip(&grafted).enumerate() {
            assert_same(grafted, native, &format!("{what}, buffer {at}"));
        }
        let given = case.args.iter().filter_map(|arg| match arg {
            Given::Buffer(contents) => Some(contents),
            _ => None,
        });
        let changed = native.iter().zip(given).any(|(after, before)| after != before);
        assert!(changed || native.is_empty(), "{what}: the control, it does something");
        compared += 1;
    }
    note(&format!(
        "`{options}`: {compared} launches the same natively and grafted; refused: {refused:?}"
    ));
    Some((compared, refused))
}

#[test]
fn kernels_compute_the_same() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("grafted kernels", Duration::from_secs(240));
    for options in
        ["", "-cl-std=CL3.0", "-cl-fast-relaxed-math -cl-mad-enable", "-cl-nv-maxrregcount=32"]
    {
        let Some((compared, refused)) = compare(options) else { return };
        assert_eq!((compared, refused.len()), (cases::all().len(), 0), "`{options}`: {refused:?}");
    }
}

/// Without inlining, functions use values that only the kernel itself receives.
#[test]
fn without_the_optimizer_launches_begin_at_zero() {
    let _alone = one_api();
    let _watchdog = Watchdog::new("grafted kernels", Duration::from_secs(240));
    let Some((compared, refused)) = compare("-cl-opt-disable") else { return };
    assert!(refused["index"].contains("get_work_dim"), "{refused:?}");
    assert!(compared > 40, "{compared}");
}

/// The control: another launch offset gives another result, so the comparison can fail.
#[test]
fn another_offset_is_another_result() {
    let _alone = one_api();
    let Some((cl, cuda)) = pair() else { return };
    let program = cl.program(&Source::opencl_c(text("index"))).unwrap();
    let grafted = program.graft(&cuda).unwrap();
    let all = cases::all();
    let case = all.iter().find(|case| case.kernel == "index_plain" && case.offset);
    let (case, elsewhere) = (case.unwrap(), onebuf::Grid::from([96]).local([32]).offset([999]));
    let other = Case { grid: elsewhere, ..case.clone() };
    let native = run(&cl, &program, case).unwrap();
    assert_eq!(native[0][..4], 1000u32.to_le_bytes());
    assert_ne!(run(&cuda, &grafted, &other).unwrap(), native);
    assert_eq!(run(&cuda, &grafted, case).unwrap(), native);
}

#[test]
fn what_cannot_be_grafted_runs_natively() {
    let _alone = one_api();
    let Some((cl, cuda)) = pair() else { return };
    let program = cl.program(&Source::opencl_c(text("refused_printf"))).unwrap();
    let error = program.graft(&cuda).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("`printf` is not grafted"), "{error}");
}

#[test]
fn a_graft_is_remembered_on_disk() {
    let _alone = one_api();
    let Some((cl, _)) = pair() else { return };
    let cache = tempfile::tempdir().unwrap();
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let origin = || {
        let builder = onebuf::builder()
            .without(["vulkan", "gl"])
            .verdicts(Default::default())
            .cache(cache.path());
        let hub = builder.timeout(Duration::from_secs(60)).build().unwrap();
        let chip = cl.info().physical;
        let find = |api: &str| {
            let all = hub.select(api).into_iter();
            all.into_iter().find(|d| d.info().physical.same_chip(&chip)).unwrap()
        };
        let (cl, cuda) = (find("opencl"), find("cuda"));
        let native = cl.program(&Source::opencl_c(text("local"))).unwrap();
        let grafted = native.graft(&cuda).unwrap();
        let all = cases::all();
        let case = all.iter().find(|case| case.kernel == "local_mixed").unwrap();
        assert_eq!(run(&cuda, &grafted, case).unwrap(), run(&cl, &native, case).unwrap());
        let kept = cuda.program(&Source::binary(grafted.binary().unwrap())).unwrap();
        assert_eq!(run(&cuda, &kept, case).unwrap(), run(&cl, &native, case).unwrap());
        grafted.origin()
    };
    assert_eq!([origin(), origin()], [Origin::Built, Origin::Disk]);
}

/// A program that another part built, of which we have only the handle.
#[test]
fn a_foreign_program_is_grafted() {
    const WORDS: usize = 10_000;
    let _alone = one_api();
    let Some((cl, cuda)) = pair() else { return };
    let app = ClassA::of(&cl.info().platform).expect("it was there before");
    // SAFETY: the program is the application's, and alive.
    let program = unsafe { cuda.hub().graft_foreign(app.program.raw(), &cuda) }.unwrap();
    let takes = Signature::new().buffer::<u32>(Access::ReadWrite);
    let takes = takes.value::<u32>().value::<u32>().value::<u32>();
    // SAFETY: the kernel touches the first n words.
    let kernel = unsafe { program.kernel("a_step", takes) }.unwrap();
    let (mut model, step) = (random_words(4, WORDS), Step::nth(3));
    let words = cuda.hub().buffer::<u32>(WORDS).shared_with([&cuda]).build().unwrap();
    words.write(&model).unwrap();
    let queue = cuda.queue().unwrap();
    let args = args![words.write_on(&queue).unwrap(), WORDS as u32, step.mul, step.add];
    queue.launch(&kernel, [WORDS], args).unwrap();
    step_model(&mut model, step);
    assert_same(&words.to_vec().unwrap(), &model, "a foreign program");
}
