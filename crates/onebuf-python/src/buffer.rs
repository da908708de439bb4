//! Methods of buffers: arrays whose memory several devices access.

use crate::{
    array::{PyBuffer, arrays},
    dlpack,
    dtype::Dtype,
    ending::detached,
    error::{Fault, Result, export_error},
    given,
    layout::{self, Layout},
    mapping::PyMap,
    protocol,
    root::Root,
    types::{PyHub, PyQueue},
    view::PyView,
    wait,
};
use onebuf::Hub;
use pyo3::{buffer::PyUntypedBuffer, prelude::*, types::PyTuple};

/// The bytes of a contiguous Python object.
struct Bytes {
    view: PyUntypedBuffer,
}

impl Bytes {
    fn of(object: &Bound<'_, PyAny>, bytes: usize, write: bool) -> Result<Self> {
        let view = PyUntypedBuffer::get(object)?;
        if !view.is_c_contiguous() || (write && view.readonly()) {
            return Err(Fault::invalid(
                "the array must be C-contiguous, and writable to be read into",
            ));
        }
        if view.len_bytes() != bytes {
            let have = view.len_bytes();
            return Err(Fault::invalid(format!(
                "an array of {have} bytes where {bytes} are needed"
            )));
        }
        Ok(Self { view })
    }

    fn at(&self) -> usize {
        self.view.buf_ptr().addr()
    }
}

#[pymethods]
impl PyBuffer {
    /// The sizes of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.shape)
    }

    /// The type of the elements, as NumPy's object.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.dtype.numpy(py)
    }

    /// The distance between neighbours in each dimension, in bytes.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layout.strides)
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape.len()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.layout.len()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.item
    }

    /// The first byte of the array in its buffer.
    #[getter]
    fn offset(&self) -> usize {
        self.layout.offset
    }

    /// Whether the elements lie one after another in C order, as kernels need them.
    #[getter]
    fn contiguous(&self) -> bool {
        self.layout.is_dense()
    }

    /// Whether neither kernels nor the host may write the buffer.
    #[getter]
    fn readonly(&self) -> Result<bool> {
        Ok(self.root()?.read_only)
    }

    /// The hub that the buffer belongs to.
    #[getter]
    fn hub(&self) -> Result<PyHub> {
        Ok(PyHub(self.root()?.buffer.hub().clone()))
    }

    /// How many arrays, maps and DLPack consumers of the host have the buffer now.
    #[getter]
    fn host_users(&self) -> Result<usize> {
        Ok(self.root()?.host_users())
    }

    /// Where the memory is, which route each device uses, and why better routes were rejected.
    fn explain(&self) -> Result<String> {
        Ok(self.root()?.buffer.explain())
    }

    /// The plan of the buffer as a dictionary, as `onebuf plan --json` prints it.
    fn plan<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let root = self.root()?;
        let json = root.buffer.plan().to_json(root.buffer.hub().topology()).to_string();
        Ok(py.import("json")?.call_method1("loads", (json,))?)
    }

    /// Copies the elements out, after earlier work: into `out`, or into a new NumPy array.
    #[pyo3(signature = (out=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        out: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let to = arrays(py)?.call_method1("target", (self.shape(py)?, self.dtype(py)?, out))?;
        if !self.layout.is_dense() {
            let map = self.map(py, "r")?;
            arrays(py)?.call_method1("copy_out", (map, &to))?;
            return Ok(to);
        }
        let (root, range) = (self.root()?, self.layout.span());
        let bytes = Bytes::of(&to, range.len(), true)?;
        root.settle(py, false)?;
        let at = bytes.at();
        // SAFETY: `bytes` holds that many writable bytes there until after the call.
        detached(py, || unsafe { root.read(range, at as *mut u8) })?;
        Ok(to)
    }

    /// Copies elements in, after earlier work: anything that NumPy can broadcast to the shape.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<()> {
        if !self.layout.is_dense() {
            let map = self.map(py, "rw")?;
            arrays(py)?.call_method1("copy_in", (map, data))?;
            return Ok(());
        }
        let from = arrays(py)?.call_method1("given", (data, self.shape(py)?, self.dtype(py)?))?;
        let (root, range) = (self.root()?, self.layout.span());
        let bytes = Bytes::of(&from, range.len(), false)?;
        root.settle(py, true)?;
        let at = bytes.at();
        // SAFETY: `bytes` holds that many bytes there until after the call.
        detached(py, || unsafe { root.write(range, at as *const u8) })
    }

    /// Gives the host the memory in place, as a NumPy array inside a `with` block. `mode` is "rw" or "r".
    #[pyo3(signature = (mode="rw"))]
    pub fn map<'py>(&self, py: Python<'py>, mode: &str) -> Result<Bound<'py, PyMap>> {
        let write = match mode {
            "rw" => true,
            "r" => false,
            other => return Err(Fault::invalid(format!("mode {other:?}: use \"rw\" or \"r\""))),
        };
        let part = self.part(self.layout.clone(), self.dtype)?;
        Ok(Bound::new(py, PyMap::new(Py::new(py, part)?, write))?)
    }

    /// Gives one device the buffer for the duration of a `with` block: see `View`.
    #[pyo3(signature = (device, *, write=true, queue=None))]
    fn on<'py>(
        &self,
        py: Python<'py>,
        device: &Bound<'py, PyAny>,
        write: bool,
        queue: Option<Bound<'py, PyQueue>>,
    ) -> Result<PyView> {
        let hub: Hub = self.root()?.buffer.hub().clone();
        let device = given::device(&hub, device)?;
        let part = self.part(self.layout.clone(), self.dtype)?;
        let queue = queue.map(|queue| queue.get().0.clone());
        PyView::new(Py::new(py, part)?, device, queue, write)
    }

    /// Waits until all work on the buffer is done. `Timeout` if that takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let root = self.root()?;
        let timeout = timeout.map_or(Ok(root.buffer.hub().timeout()), wait::seconds)?;
        wait::for_work(py, root.buffer.uses(), timeout)
    }

    /// The same elements in another shape, without a copy.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> Result<Self> {
        let shape = match shape.len() {
            1 => layout::shape(&shape.get_item(0)?)?,
            _ => layout::shape(shape.as_any())?,
        };
        self.part(self.layout.reshape(shape)?, self.dtype)
    }

    /// The same bytes as elements of another type of the same size, without a copy.
    fn view(&self, dtype: &Bound<'_, PyAny>) -> Result<Self> {
        let dtype = Dtype::parse(dtype)?;
        let mut layout = self.layout.clone();
        if dtype.size() != layout.item {
            let last = layout.shape.len().checked_sub(1).filter(|_| layout.is_dense());
            let bytes = last.map(|at| layout.shape[at] * layout.item);
            match bytes.zip(last).filter(|(bytes, _)| bytes.is_multiple_of(dtype.size())) {
                Some((bytes, at)) => layout.shape[at] = bytes / dtype.size(),
                None => {
                    let (to, size) = (dtype.name(), dtype.size());
                    let what = format!(
                        "the last dimension does not divide into {to} ({size} bytes), or is not contiguous"
                    );
                    return Err(Fault::invalid(what));
                }
            }
            layout = Layout { offset: layout.offset, ..Layout::dense(layout.shape, dtype.size())? };
        }
        self.part(layout, dtype)
    }

    /// Drops this object's reference to the memory now; later uses of the object are errors. Slices, arrays and work keep it alive.
    fn free(&self, py: Python<'_>) {
        let root = self.slot().take();
        detached(py, || drop(root));
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> Result<Self> {
        self.part(self.layout.index(key)?, self.dtype)
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> Result<()> {
        self.part(self.layout.index(key)?, self.dtype)?.write(py, value)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.layout.shape.first().copied().ok_or_else(|| {
            pyo3::exceptions::PyTypeError::new_err("len() of a buffer without dimensions")
        })
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (&self.layout.shape, self.dtype.name());
        match self.root() {
            Ok(root) => format!("<onebuf.Buffer {shape:?} {dtype} on {}>", homes(&root)),
            Err(_) => format!("<onebuf.Buffer {shape:?} {dtype}, freed>"),
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let asked = dlpack::Asked { stream, max_version, dl_device, copy };
        dlpack::export(slf.get(), py, asked).map_err(|fault| export_error(py, fault))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter passes a view to fill in.
        unsafe { protocol::fill_of_buffer(slf, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut pyo3::ffi::Py_buffer) {
        // SAFETY: the interpreter passes a view that `__getbuffer__` filled in.
        unsafe { protocol::release(view) };
    }
}

/// The ids of the devices of a buffer.
fn homes(root: &Root) -> String {
    let topology = root.buffer.hub().topology();
    let plan = root.buffer.plan();
    let mut all: Vec<_> = plan.routes.iter().map(|hop| topology.node(hop.to).id.as_str()).collect();
    if all.is_empty() {
        all.push(&topology.node(plan.allocate_on).id);
    }
    all.join(", ")
}
