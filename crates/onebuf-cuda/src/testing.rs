//! The stub library for tests of several crates: CUDA and HIP without a GPU.

use crate::Flavor;
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

const STUBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/stub");

/// Serialises tests: the stub emulates one API at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stub library, built once. Without a C compiler it prints a skip and returns `None`.
pub fn stub() -> Option<&'static str> {
    static LIBRARY: OnceLock<Option<String>> = OnceLock::new();
    LIBRARY.get_or_init(build).as_deref()
}

fn build() -> Option<String> {
    let program = std::env::current_exe().unwrap();
    let name = format!("libcuda_stub-{}.so", std::process::id());
    let library: PathBuf = program.with_file_name(name);
    compile(&library)?;
    // Loaded now, so that the file can be deleted; later loads find the library by its name.
    onebuf_sys::cuda_like::CudaLike::load(Flavor::Cuda, library.to_str(), None).unwrap();
    std::fs::remove_file(&library).unwrap();
    library.to_str().map(str::to_owned)
}

/// Builds the stub library at this path. Without a C compiler it prints a skip and returns `None`.
pub fn compile(library: &Path) -> Option<()> {
    let flags = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-o"];
    let names = std::fs::read_to_string(format!("{STUBS}/cuda_stub.sources")).unwrap();
    let sources = names.lines().map(|name| format!("{STUBS}/{name}"));
    match Command::new("cc").args(flags).arg(library).args(sources).arg("-lm").status() {
        Ok(status) => assert!(status.success(), "the stub does not build"),
        Err(why) => {
            println!("skip: no stub library without a C compiler: {why}");
            return None;
        }
    }
    Some(())
}
