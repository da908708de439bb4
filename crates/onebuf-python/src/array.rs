//! The class of buffers, and what other classes need of it. Its methods for Python stand in `buffer`, above what they use.

use crate::{
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result},
    layout::Layout,
    root::{HostUse, Region, Root},
};
use onebuf::{Queue, ReadView, WriteView};
use pyo3::{prelude::*, sync::PyOnceLock};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An array whose memory several devices access.
///
/// Made by `Hub.empty`, `Hub.array`, `Hub.from_dlpack` and `Hub.from_pyopencl`. Slices are parts of the same memory.
#[pyclass(frozen, weakref, module = "onebuf", name = "Buffer")]
pub(crate) struct PyBuffer {
    /// Empty after `free`.
    root: Mutex<Option<Arc<Root>>>,
    pub layout: Layout,
    pub dtype: Dtype,
    /// For kernels, if the array is a part of its buffer.
    region: OnceLock<Arc<Region>>,
}

/// What a kernel gets of a buffer.
pub(crate) enum Piece {
    Whole(Arc<Root>),
    Part(Arc<Region>, Arc<Root>),
}

impl Piece {
    pub fn root(&self) -> &Arc<Root> {
        match self {
            Piece::Whole(root) | Piece::Part(_, root) => root,
        }
    }

    /// Lets kernels on a queue read it while the view lives.
    pub fn read_on<'b>(&'b self, queue: &'b Queue) -> onebuf::Result<ReadView<'b, u8>> {
        match self {
            Piece::Whole(root) => root.buffer.read_on(queue),
            Piece::Part(region, _) => region.part.read_on(queue),
        }
    }

    /// Lets kernels on a queue read and write it while the view lives.
    pub fn write_on<'b>(&'b self, queue: &'b Queue) -> onebuf::Result<WriteView<'b, u8>> {
        match self {
            Piece::Whole(root) => root.buffer.write_on(queue),
            Piece::Part(region, _) => region.part.write_on(queue),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Piece::Whole(root) => root.buffer.len(),
            Piece::Part(region, _) => region.part.len(),
        }
    }

    /// The first byte in the buffer.
    pub fn start(&self) -> usize {
        match self {
            Piece::Whole(_) => 0,
            Piece::Part(region, _) => region.start,
        }
    }
}

impl PyBuffer {
    pub fn new(root: Arc<Root>, layout: Layout, dtype: Dtype) -> Self {
        Self { root: Mutex::new(Some(root)), layout, dtype, region: OnceLock::new() }
    }

    pub fn slot(&self) -> MutexGuard<'_, Option<Arc<Root>>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The buffer, unless it was freed.
    pub fn root(&self) -> Result<Arc<Root>> {
        self.slot().clone().ok_or_else(|| Fault::invalid("the buffer was freed"))
    }

    /// What kernels get: the whole buffer, or a region of it.
    pub fn piece(&self) -> Result<Piece> {
        let root = self.root()?;
        if !self.layout.is_dense() {
            return Err(Fault::invalid(
                "the buffer is not contiguous, and kernels take contiguous memory: pass the whole buffer and its strides",
            ));
        }
        if self.layout.bytes() == root.buffer.len() {
            return Ok(Piece::Whole(root));
        }
        if self.region.get().is_none() {
            let made = Arc::new(Region::new(&root, &self.layout)?);
            let _ = self.region.set(made);
        }
        match self.region.get() {
            Some(region) => Ok(Piece::Part(region.clone(), root)),
            None => Err(Fault::busy("the region is being made")),
        }
    }

    pub fn part(&self, layout: Layout, dtype: Dtype) -> Result<Self> {
        Ok(Self::new(self.root()?, layout, dtype))
    }

    /// Lends the array's buffer to the host; the pointer is that of the first element.
    pub fn lend(
        &self,
        py: Python<'_>,
        write: bool,
        who: &'static str,
    ) -> Result<(HostUse, *mut u8)> {
        let used = self.root()?.lend(py, write, who)?;
        // SAFETY: the offset is inside the buffer, which the map covers.
        let first = unsafe { used.data.add(self.layout.offset) };
        Ok((used, first))
    }
}

/// Dropping a buffer may wait, and may call the deleter of imported memory, which may need the interpreter.
impl Drop for PyBuffer {
    fn drop(&mut self) {
        let root = self.slot().take();
        let region = self.region.take();
        let last = root.as_ref().is_some_and(|root| Arc::strong_count(root) <= 2);
        if last {
            let gone = Python::try_attach(|py| detached(py, || drop((region, root))));
            let _ = gone;
        }
    }
}

/// Python helpers for arrays.
pub(crate) fn arrays(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ARRAYS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let found = ARRAYS
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("onebuf._arrays")?.into_any().unbind()))?;
    Ok(found.bind(py))
}
