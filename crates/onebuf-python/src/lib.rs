//! The native module of the Python package `onebuf`.
//!
//! Each file is one noun. Classes stand low (`types`, `array`), their methods above what they use. Classes are frozen: what changes lies behind locks, and every call that may wait releases the interpreter
//! first. Errors of the library become the exceptions of `onebuf.errors`.
//!
//! # Safety
//! Memory that Python sees is kept mapped by a `root::HostUse`: by the capsule, the view of the buffer protocol or the block of the map
//! that shows it. Kernels are trusted to stay inside of their buffers, as the package's documentation says.

mod array;
mod buffer;
mod create;
mod device;
mod dlpack;
mod dtype;
mod ending;
mod ends;
mod error;
mod exit;
mod foreign;
mod given;
mod hub;
mod kernel;
mod layout;
mod mapping;
mod param;
mod pipeline;
mod protocol;
mod root;
mod types;
mod view;
mod wait;

use pyo3::prelude::*;

/// The native part of the package.
#[pymodule]
fn _onebuf(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let end = wrap_pyfunction!(exit::_end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    module.add_function(wrap_pyfunction!(hub::discover, module)?)?;
    module.add_class::<types::PyHub>()?;
    module.add_class::<hub::PyLedger>()?;
    module.add_class::<types::PyDevice>()?;
    module.add_class::<types::PyQueue>()?;
    module.add_class::<array::PyBuffer>()?;
    module.add_class::<mapping::PyMap>()?;
    module.add_class::<view::PyView>()?;
    module.add_class::<kernel::PyKernel>()?;
    module.add_class::<kernel::PyLaunch>()?;
    module.add_class::<param::PyLocal>()?;
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
