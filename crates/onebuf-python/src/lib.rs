//! The native module of the Python package `onebuf`.
//!
//! Each file is one noun. Classes stand low (`types`, `array`), their methods above what they use. Classes are frozen: what changes lies behind locks, and every call that may wait releases the interpreter
//! first. Errors of the library become the exceptions of `onebuf.errors`.
//!
//! # Safety
//! Memory that Python sees is kept mapped by a `root::HostUse`: by the capsule, the view of the buffer protocol or the block of the map
//! that shows it. Memory of a CUDA or HIP device that other libraries see is kept by a `lend::DeviceUse`. Kernels are trusted to stay inside of their buffers, as the package's documentation says.

mod again;
mod allocator;
mod array;
mod buffer;
mod cache;
mod compile;
mod copying;
mod create;
mod cuda_array;
mod declared;
mod described;
mod descriptor;
mod device;
mod discover;
mod dl_abi;
mod dlpack;
mod doctor;
mod dtype;
mod ending;
mod ends;
mod error;
mod exchange;
mod exit;
mod fence;
mod foreign;
mod given;
mod host_bytes;
mod hub;
mod json;
mod kernel;
mod known;
mod later;
mod layout;
mod ledger;
mod lend;
mod libs;
mod live;
mod loan;
mod log;
mod mapping;
mod options;
mod owner;
mod param;
mod peer;
mod pipeline;
mod pool;
mod protocol;
mod ranks;
mod root;
mod solver;
mod stream;
mod tensor;
mod tensor_kernel;
mod torch;
mod trace;
mod transfer;
mod types;
mod view;
mod wait;

use pyo3::prelude::*;

/// The native part of the package.
#[pymodule]
fn _onebuf(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    log::start();
    let end = wrap_pyfunction!(exit::_end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    module.add_function(wrap_pyfunction!(discover::discover, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_level, module)?)?;
    allocator::register(module)?;
    cache::register(module)?;
    doctor::register(module)?;
    libs::register(module)?;
    solver::register(module)?;
    peer::register(module)?;
    ranks::register(module)?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<types::PyHub>()?;
    module.add_class::<ledger::PyLedger>()?;
    module.add_class::<types::PyDevice>()?;
    module.add_class::<types::PyQueue>()?;
    module.add_class::<types::PyFence>()?;
    module.add_class::<trace::PyTrace>()?;
    module.add_class::<transfer::PyTransfer>()?;
    module.add_class::<host_bytes::PyHostBytes>()?;
    module.add_class::<live::PyPublished>()?;
    module.add_class::<array::PyBuffer>()?;
    module.add_class::<mapping::PyMap>()?;
    module.add_class::<view::PyView>()?;
    module.add_class::<kernel::PyKernel>()?;
    module.add_class::<kernel::PyLaunch>()?;
    module.add_class::<param::PyLocal>()?;
    module.add_class::<tensor_kernel::PyTensorKernel>()?;
    module.add_class::<tensor_kernel::PyTensorLaunch>()?;
    module.add_class::<pipeline::PyPipeline>()?;
    module.add_class::<pipeline::PyWork>()?;
    module.add_class::<ends::PySource>()?;
    module.add_class::<ends::PySink>()?;
    module.add_function(wrap_pyfunction!(ends::source_memory, module)?)?;
    module.add_function(wrap_pyfunction!(ends::source_file, module)?)?;
    module.add_function(wrap_pyfunction!(ends::source_npy, module)?)?;
    module.add_function(wrap_pyfunction!(ends::source_synthetic, module)?)?;
    module.add_function(wrap_pyfunction!(ends::source_udp, module)?)?;
    module.add_function(wrap_pyfunction!(ends::source_tcp, module)?)?;
    module.add_function(wrap_pyfunction!(ends::sink_file, module)?)?;
    module.add_function(wrap_pyfunction!(ends::sink_npy, module)?)?;
    module.add_function(wrap_pyfunction!(ends::sink_udp, module)?)
}
