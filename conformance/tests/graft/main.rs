//! OpenCL kernels in CUDA's streams: what the rewriter makes of NVIDIA's PTX, anywhere, and whether that computes
//! the same, bit by bit, where there is a GPU that both APIs see.
//!
//! The same for HIP is in `amd`, without a GPU, and in `spirv`, on a HIP runtime that is built on OpenCL, where there is one.
//!
//! `conformance/graft` has the kernels, and beside them what NVIDIA's driver 580.159 made of them for an H200.

mod amd;
mod cases;
mod devices;
mod fuzz;
mod gpu;
mod spirv;
mod stages;
mod text;

/// Kernels and what their compiler made of them; the names of the latter end as their options do.
macro_rules! corpus {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../graft/", $name, ".ptx")))),*]
    };
}

/// All that can be grafted.
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

/// All that cannot.
const REFUSED: [(&str, &str); 4] =
    corpus!["index.opt0", "refused_image", "refused_printf", "refused_sampler"];
