//! What `onebuf._torch` calls: the allocator for PyTorch.

use crate::{
    array::{Piece, PyBuffer},
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    layout::{self, Layout},
    torch::{self, Allocator, Recipe, Thrower},
    types::{PyDevice, PyHub, PyQueue},
};
use pyo3::{prelude::*, types::PyDict};

/// The allocator, which must have been made.
fn allocator() -> Result<&'static Allocator> {
    torch::get().ok_or_else(|| Fault::invalid("call `onebuf.torch_allocator` first"))
}

/// Adds these functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_torch_set, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_thrower, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_stats, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_empty_cache, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_view, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_queue, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_hand_over, module)?)?;
    module.add_function(wrap_pyfunction!(_torch_record, module)?)
}

/// Makes the allocator of this process. Each device has PyTorch's number, and the devices that share its memory.
#[pyfunction]
pub(crate) fn _torch_set(
    py: Python<'_>,
    hub: &Bound<'_, PyHub>,
    devices: Vec<(i32, Py<PyDevice>, Vec<Py<PyDevice>>)>,
    trust_declared: bool,
    limit: Option<usize>,
) -> Result<()> {
    let hub = hub.get().0.clone();
    let recipes: Vec<(i32, Recipe)> = devices
        .into_iter()
        .map(|(number, device, share)| {
            let share = share.iter().map(|device| device.get().0.clone()).collect();
            (number, Recipe { device: device.get().0.clone(), share, trust_declared })
        })
        .collect();
    detached(py, || {
        recipes.iter().try_for_each(|(_, recipe)| recipe.check(&hub))?;
        torch::set(hub, recipes, limit)
    })?;
    Ok(())
}

/// Sets the addresses of the functions by which PyTorch's exception for exhausted memory is thrown.
#[pyfunction]
pub(crate) fn _torch_thrower(
    allocate: usize,
    throw: usize,
    new: usize,
    construct: usize,
    class: usize,
) -> Result<()> {
    if [allocate, throw, new, construct, class].contains(&0) {
        return Err(Fault::invalid("a function without an address"));
    }
    torch::set_thrower(Thrower { allocate, throw, new, construct, class });
    Ok(())
}

/// The allocator's counters.
#[pyfunction]
pub(crate) fn _torch_stats(py: Python<'_>) -> Result<Bound<'_, PyDict>> {
    let allocator = allocator()?;
    let (stats, unshared) = detached(py, || allocator.stats())?;
    let all = PyDict::new(py);
    all.set_item("allocated_bytes", stats.allocated)?;
    all.set_item("allocated_bytes_peak", stats.allocated_peak)?;
    all.set_item("reserved_bytes", stats.reserved)?;
    all.set_item("reserved_bytes_peak", stats.reserved_peak)?;
    all.set_item("unshared_bytes", unshared)?;
    all.set_item("segments", stats.segments)?;
    all.set_item("blocks", stats.blocks)?;
    all.set_item("requests", stats.requests)?;
    Ok(all)
}

/// Frees the segments that nothing uses; the number of bytes.
#[pyfunction]
pub(crate) fn _torch_empty_cache(py: Python<'_>) -> Result<usize> {
    let allocator = allocator()?;
    Ok(detached(py, || allocator.empty_cache())?)
}

/// A buffer over the memory of an array that the allocator has allocated, and the device that it is on. Strides are in bytes.
#[pyfunction]
pub(crate) fn _torch_view<'py>(
    py: Python<'py>,
    at: usize,
    shape: &Bound<'py, PyAny>,
    strides: Option<Vec<isize>>,
    dtype: &Bound<'py, PyAny>,
) -> Result<(PyBuffer, PyDevice, i32)> {
    let allocator = allocator()?;
    let dtype = Dtype::parse(dtype)?;
    let mut layout = Layout::dense(layout::shape(shape)?, dtype.size())?;
    if let Some(strides) = strides {
        if strides.len() != layout.shape.len() || strides.iter().any(|stride| *stride < 0) {
            return Err(Fault::invalid(format!("strides {strides:?} for {:?}", layout.shape)));
        }
        layout.strides = strides;
    }
    let found = detached(py, || allocator.find(at, layout.span().end))?;
    layout.offset = found.offset;
    let device = allocator.device(found.device)?;
    Ok((PyBuffer::new(found.root, layout, dtype), PyDevice(device), found.device))
}

/// A stream of PyTorch as a queue.
#[pyfunction]
pub(crate) fn _torch_queue(py: Python<'_>, device: i32, stream: usize) -> Result<PyQueue> {
    let allocator = allocator()?;
    Ok(PyQueue(detached(py, || allocator.queue((device, stream)))?))
}

/// Orders a stream after earlier work on a buffer that is contiguous, and later work on it after what the stream has so far.
#[pyfunction]
pub(crate) fn _torch_hand_over(
    py: Python<'_>,
    buffer: &Bound<'_, PyBuffer>,
    queue: &Bound<'_, PyQueue>,
) -> Result<()> {
    let (piece, queue) = (buffer.get().piece()?, &queue.get().0);
    piece.root().check_kernel(&queue.device(), true)?;
    detached(py, || {
        match &piece {
            Piece::Whole(root) => drop(root.buffer.write_on(queue)?),
            Piece::Part(region, _) => drop(region.part.write_on(queue)?),
        }
        Ok(queue.flush()?)
    })
}

/// Notes that a stream uses the memory at an address.
#[pyfunction]
pub(crate) fn _torch_record(py: Python<'_>, at: usize, stream: usize) -> Result<()> {
    let allocator = allocator()?;
    detached(py, || allocator.record(at, stream));
    Ok(())
}
