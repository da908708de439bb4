//! What libraries say of device memory: the installed ones, and ones that claim it.

use crate::{
    launch::{self, Mpi},
    ranks::join,
};
use onebuf_mpi::GpuClaim;
use std::{env, path::Path, process::Command};

/// What the ranks are to find: a word for CUDA, and one for HIP.
const EXPECTED: &str = "ONEBUF_TEST_CLAIM";

fn installed() -> impl Iterator<Item = Mpi> {
    launch::all().into_iter().chain(launch::with_ulfm())
}

/// An answer depends on how a library was built, and on the machine. Whether it has the function does not.
#[test]
fn every_library_says_what_its_functions_say() {
    for mpi in installed() {
        let expected = match mpi.name {
            "Open MPI" => "answer silence",
            "MPICH" | "Open MPI 5" => "answer answer",
            "MPI 5" => "silence silence",
            other => panic!("{other} has no row here"),
        };
        mpi.run(2, "claims::rank_claim", &[(EXPECTED, expected)]);
    }
}

/// Real libraries below one that answers in their place.
#[test]
fn a_library_that_claims_device_memory_is_believed_to_claim_it() {
    let folder = tempfile::tempdir().unwrap();
    for mpi in installed() {
        for [cuda, hip] in [[1, 0], [0, 1]] {
            let shim = shim(&mpi, [cuda, hip], folder.path());
            let expected = [cuda, hip].map(|takes| if takes == 1 { "yes" } else { "no" }).join(" ");
            mpi.run(2, "claims::rank_claim", &[("ONEBUF_MPI_LIB", &shim), (EXPECTED, &expected)]);
        }
    }
}

#[test]
#[ignore = "a rank"]
fn rank_claim() {
    let world = join();
    let GpuClaim { cuda, hip, .. } = world.gpu_claim();
    let expected = env::var(EXPECTED).unwrap();
    for (said, expected) in [cuda, hip].into_iter().zip(expected.split(' ')) {
        let fits = match expected {
            "answer" => said.is_some(),
            "silence" => said.is_none(),
            exact => said == Some(exact == "yes"),
        };
        assert!(fits, "{said:?}, not {expected}: {}", world.library());
    }
}

/// Compiles a library that needs the MPI and gives these answers. Its own symbols are found before those of the MPI.
fn shim(mpi: &Mpi, [cuda, hip]: [i32; 2], folder: &Path) -> String {
    let name = format!("{}-{cuda}-{hip}", mpi.name.replace(' ', "-"));
    let [source, library] = ["c", "so"].map(|kind| folder.join(format!("{name}.{kind}")));
    let of_hip = if mpi.name.starts_with("Open MPI") { "rocm" } else { "hip" };
    let text = format!(
        "int MPIX_Query_cuda_support(void) {{ return {cuda}; }}\nint MPIX_Query_{of_hip}_support(void) {{ return {hip}; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(&library).arg(&source);
    let built = cc.args(mpi.to_link()).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library.into_os_string().into_string().unwrap()
}
