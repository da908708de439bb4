//! The stub drivers, built with the C compiler.

use crate::absent;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const OPENCL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stub/opencl_stub.c");
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stub/cuda_stub.c");
const CUDA_MATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stub/math_stub.h");
const FLAGS: [&str; 9] =
    ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-shared", "-pthread"];

/// The path of the built OpenCL library; `None`, after a printed skip, without a C compiler.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn stub() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(|| build("libonebuf_stub.so", &[OPENCL])).clone()
}

/// The same of the library that plays CUDA, HIP, their compilers and their libraries for mathematics.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn cuda_stub() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(|| build("libonebuf_cuda_stub.so", &[CUDA, CUDA_MATH])).clone()
}

/// Of the first source, which includes the others. Beside the test programs, and only when a source is newer: a
/// library's time is a part of what verdicts depend on.
fn build(name: &str, sources: &[&str]) -> Option<PathBuf> {
    let program = env::current_exe().expect("the path of this program");
    let library = program.with_file_name(name);
    if sources.iter().all(|source| is_newer(&library, Path::new(source))) {
        return Some(library);
    }
    let scratch = library.with_extension(std::process::id().to_string());
    let built =
        Command::new("cc").args(FLAGS).arg("-o").arg(&scratch).arg(sources[0]).arg("-lm").status();
    match built {
        Ok(status) => assert!(status.success(), "the stub driver does not build"),
        Err(why) => {
            absent("stub driver", &format!("cc: {why}"));
            return None;
        }
    }
    fs::rename(&scratch, &library).expect("the stub driver in its place");
    Some(library)
}

fn is_newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    matches!((time(file), time(than)), (Some(file), Some(than)) if file > than)
}
