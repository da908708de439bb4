//! The stub drivers, built with the C compiler.

use crate::absent;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stub");
const OPENCL: &[&str] = &["opencl_stub.c"];
const CUDA: &[&str] = &["cuda_stub.c", "cuda_share.c", "hsa_stub.c"];
const CUDA_HEADERS: &[&str] = &["cuda_stub.h", "math_stub.h"];
const FLAGS: [&str; 7] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"];
const LIBRARY: &[&str] = &["-fPIC", "-shared", "-lm"];

/// The path of the built OpenCL library; `None`, after a printed skip, without a C compiler.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("libonebuf_stub.so", OPENCL, &[], LIBRARY)).clone()
}

/// The program that tests whether the OpenCL stub misbehaves as it promises, and only so; it takes the library's path.
///
/// # Panics
/// When there is a compiler and the program does not build.
pub fn selftest() -> Option<PathBuf> {
    build("onebuf_selftest", &["selftest.c"], &[], &["-ldl"])
}

/// The same of the library that plays CUDA, HIP, their compilers, HSA, and their libraries for mathematics.
///
/// # Panics
/// When there is a compiler and the stub does not build.
pub fn cuda_stub() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("libonebuf_cuda_stub.so", CUDA, CUDA_HEADERS, LIBRARY)).clone()
}

/// The program that tests what that library does with memory that others see; it takes the library's path.
///
/// # Panics
/// When there is a compiler and the program does not build.
pub fn share_selftest() -> Option<PathBuf> {
    build("onebuf_share_selftest", &["share_selftest.c"], &[], &["-ldl"])
}

/// Beside the test programs, and only when a source is newer: a library's time is a part of what
/// verdicts depend on.
fn build(name: &str, sources: &[&str], headers: &[&str], flags: &[&str]) -> Option<PathBuf> {
    let program = env::current_exe().expect("the path of this program");
    let built = program.with_file_name(name);
    let in_folder = |name: &&str| Path::new(FOLDER).join(name);
    if sources.iter().chain(headers).map(in_folder).all(|source| is_newer(&built, &source)) {
        return Some(built);
    }
    let scratch = built.with_extension(std::process::id().to_string());
    let sources = sources.iter().map(in_folder);
    let mut compile = Command::new("cc");
    match compile.args(FLAGS).arg("-o").arg(&scratch).args(sources).args(flags).status() {
        Ok(status) => assert!(status.success(), "{name} does not build"),
        Err(why) => {
            absent(name, &format!("cc: {why}"));
            return None;
        }
    }
    fs::rename(&scratch, &built).expect("what was built in its place");
    Some(built)
}

fn is_newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    matches!((time(file), time(than)), (Some(file), Some(than)) if file > than)
}
