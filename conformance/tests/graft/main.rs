//! OpenCL kernels in CUDA's streams: how the rewriter changes NVIDIA's PTX, on any machine, and whether the result is
//! identical bit by bit, on a GPU that both APIs see.
//!
//! For HIP: `amd`, without a GPU, and `spirv`, on a HIP runtime built on OpenCL if available.
//!
//! `conformance/graft` has the kernels, and the PTX that NVIDIA's driver 580.159 made of them for an H200.

mod amd;
mod cases;
mod devices;
mod fuzz;
mod gpu;
mod spirv;
mod stages;
mod text;

/// Kernels and their PTX; a suffix of the name stands for the compiler's options.
macro_rules! corpus {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../graft/", $name, ".ptx")))),*]
    };
}

/// The programs that can be grafted.
const GRAFTED: [(&str, &str); 13] = corpus![
    "atomics",
    "calls",
    "constant",
    "constant.opt0",
    "fft",
    "groups",
    "groups.opt0",
    "index",
    "local",
    "local.opt0",
    "numbers",
    "scope",
    "values",
];

/// The programs that cannot be grafted.
const REFUSED: [(&str, &str); 4] =
    corpus!["index.opt0", "refused_image", "refused_printf", "refused_sampler"];
