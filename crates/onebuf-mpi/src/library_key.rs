//! What identifies an MPI library in the key of a verdict.

use std::{collections::BTreeSet, env, fs, os::unix::fs::MetadataExt, path::Path};

/// What the library calls itself, in one line, the variables that choose how it moves bytes, and the files that do: a part of the key of
/// verdicts.
pub(crate) fn library_key(library: &str) -> String {
    let name = library.split_whitespace().collect::<Vec<_>>().join(" ");
    let chooses = |name: &str| WAYS.iter().any(|prefix| name.starts_with(prefix));
    let set =
        env::vars_os().map(|(name, value)| [name, value].map(|one| one.display().to_string()));
    let set: BTreeSet<String> =
        set.filter(|[name, _]| chooses(name)).map(|pair| pair.join("=")).collect();
    let set: Vec<String> = set.into_iter().collect();
    format!("{name} with [{}] in [{}]", set.join(" "), files().join(" "))
}

/// The loaded files that move MPI's bytes, with their sizes and dates.
fn files() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let moves = |path: &&str| {
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        FILES.iter().any(|prefix| name.starts_with(prefix))
    };
    let paths: BTreeSet<&str> = paths.filter(moves).collect();
    let dated = paths.into_iter().filter_map(|path| {
        let data = fs::metadata(path).ok()?;
        Some(format!("{path} {} {}.{:09}", data.len(), data.mtime(), data.mtime_nsec()))
    });
    dated.collect()
}

/// How the names of variables begin that choose how MPI moves bytes.
const WAYS: [&str; 12] = [
    "FI_",
    "MPICH_GPU",
    "MPIR_CVAR_",
    "OMPI_MCA_accelerator",
    "OMPI_MCA_btl",
    "OMPI_MCA_mpi_cuda",
    "OMPI_MCA_mtl",
    "OMPI_MCA_opal_cuda",
    "OMPI_MCA_pml",
    "OMPI_MCA_smsc",
    "PSM2_",
    "UCX_",
];

/// How the names of files begin that move MPI's bytes.
const FILES: [&str; 9] = [
    "libfabric",
    "libmpi",
    "libopen-pal",
    "libpsm2",
    "libucp",
    "libucs",
    "libuct",
    "mca_btl",
    "mca_pml",
];
