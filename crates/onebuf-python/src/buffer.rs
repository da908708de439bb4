//! Methods of buffers: arrays whose memory several devices access.

use crate::{
    array::{PyBuffer, arrays},
    copying, descriptor, dlpack,
    dtype::Dtype,
    ending::{detached, enter},
    error::{Fault, Result, export_error},
    given,
    host_bytes::Bytes,
    json::objects,
    layout::{self, Layout},
    mapping::PyMap,
    owner, protocol,
    root::Root,
    transfer::PyTransfer,
    types::{PyFence, PyHub, PyQueue},
    view::PyView,
    wait,
};
use onebuf::{Access, Hub};
use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::sync::Arc;

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

    /// What kernels may do with the buffer: "read", "write" or "read_write".
    #[getter]
    fn access(&self) -> Result<String> {
        Ok(self.root()?.buffer.access().to_string())
    }

    /// Whether the memory is another library's.
    #[getter]
    fn is_foreign(&self) -> Result<bool> {
        Ok(self.root()?.buffer.is_foreign())
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
        objects(py, &root.buffer.plan().to_json(root.buffer.hub().topology()))
    }

    /// Copies the elements out, after earlier work: into `out`, or into a new NumPy array.
    #[pyo3(signature = (out=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        out: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let _inside = enter(py);
        let to = arrays(py)?.call_method1("target", (self.shape(py)?, self.dtype(py)?, out))?;
        if !self.layout.is_dense() {
            let map = self.map(py, "r")?;
            arrays(py)?.call_method1("copy_out", (map, &to))?;
            return Ok(to);
        }
        let (root, range) = (self.root()?, self.layout.span());
        let flat = to.call_method1("reshape", (-1,))?;
        let bytes = Bytes::of(&flat, range.len(), true)?;
        root.settle(py, false)?;
        let at = bytes.at();
        // SAFETY: `bytes` holds that many writable bytes there until after the call.
        detached(py, || unsafe { root.read(range, at as *mut u8) })?;
        Ok(to)
    }

    /// Copies elements in, after earlier work: anything that NumPy can broadcast to the shape.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<()> {
        let _inside = enter(py);
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

    /// Starts to copy the elements out, after earlier work: `Transfer.wait` returns the array. If the host has the buffer, it is
    /// copied at once.
    fn read_async(&self, py: Python<'_>) -> Result<PyTransfer> {
        copying::read_async(py, self)
    }

    /// Starts to copy elements in, after earlier work: anything that NumPy can broadcast to the shape. The data is copied first.
    fn write_async(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> Result<PyTransfer> {
        copying::write_async(py, self, data)
    }

    /// Sets all elements to one value, on the device that has them.
    fn fill(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> Result<()> {
        match copying::fill(py, self, value)? {
            true => Ok(()),
            false => self.write(py, value),
        }
    }

    /// Copies all elements of another buffer of the same type and shape, by the shortest way; the two may be of different devices and hubs.
    /// Returns how: a dictionary with `way`, `bytes`, `chunks` and `implied_bytes`.
    fn copy_from<'py>(
        &self,
        py: Python<'py>,
        other: &Bound<'py, PyBuffer>,
    ) -> Result<Bound<'py, PyAny>> {
        objects(py, &copying::copy(py, other.get(), self)?)
    }

    /// Declares that the contents are no longer needed: they are undefined from now on. The next user, a map too, copies nothing in
    /// where a device has a copy of its own. Needs the whole buffer.
    fn discard(&self, py: Python<'_>) -> Result<()> {
        let root = self.whole("discarded")?;
        Ok(detached(py, || root.buffer.discard())?)
    }

    /// Does the first part of a hand-over to a device now: queues that used the buffer release it behind their work so far. For batches on a
    /// GPU that alternates between two APIs. With `write=False` others may go on reading.
    #[pyo3(signature = (device, *, write=true))]
    fn release_to(&self, py: Python<'_>, device: &Bound<'_, PyAny>, write: bool) -> Result<()> {
        let root = self.root()?;
        let device = given::device(root.buffer.hub(), device)?;
        let access = if write { Access::ReadWrite } else { Access::Read };
        Ok(detached(py, || root.buffer.release_to(&device, access))?)
    }

    /// Takes the buffer out of its pool: its memory is freed with it, because other code keeps a handle.
    fn detach(&self) -> Result<()> {
        self.root()?.buffer.detach();
        Ok(())
    }

    /// Exports the memory as a file descriptor, for another API, library or process: a dictionary with `fd`, `kind`, `offset`, `bytes` and
    /// `allocation_bytes`. The descriptor is the caller's to close. `kind` is "opaque_fd" or "dma_buf". Needs the whole buffer, made with
    /// `memory_kind="exportable"`.
    ///
    /// The importer may write it at any time from now on, and nothing orders that with onebuf's work: maps in place are refused, `read` and `write` copy.
    #[pyo3(signature = (kind="opaque_fd"))]
    fn export_fd<'py>(&self, py: Python<'py>, kind: &str) -> Result<Bound<'py, PyDict>> {
        let root = self.whole("exported")?;
        descriptor::export(py, &root, kind)
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

    /// Makes a stream of another library wait for all work on the buffer, for what that library enqueues next: a number, an object of PyTorch,
    /// CuPy or numba, a `pyopencl.CommandQueue`, or an `onebuf.Queue`. `device` is a stream's, if the buffer is shared with several CUDA
    /// or HIP devices.
    #[pyo3(signature = (stream, device=None))]
    fn hand_to(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let root = self.root()?;
        let queue = owner::queue(py, &root, stream, device)?;
        root.check_kernel(&queue.device(), true)?;
        root.settle_for(py, queue.device().index(), true)?;
        detached(py, || root.buffer.hand_to(&queue).map(drop))?;
        Ok(())
    }

    /// Says that writes of another library to the memory, enqueued in a stream so far, come first: the next user of the buffer waits for
    /// them. `stream` as for `hand_to`, or a `Fence`. Meant for memory that was wrapped, after `hand_to`.
    #[pyo3(signature = (stream, device=None))]
    fn written_until(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let root = self.root()?;
        owner::until(py, &root, stream, device, true)
    }

    /// Says that reads of another library, enqueued in a stream so far, come before the next writer of the buffer.
    #[pyo3(signature = (stream, device=None))]
    fn read_until(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let root = self.root()?;
        owner::until(py, &root, stream, device, false)
    }

    /// The number of streams and views that have the buffer on the device that it is lent to.
    #[getter]
    fn device_users(&self) -> Result<usize> {
        Ok(self.root()?.device_users())
    }

    /// The point at which the last writes are done, or the last reads if nothing was written; None if there was no work. Of the whole buffer.
    fn fence(&self, py: Python<'_>) -> Result<Option<PyFence>> {
        let root = self.root()?;
        root.awake();
        let fence = detached(py, || root.buffer.fence());
        Ok(fence.map(|fence| PyFence::new(fence, root.buffer.hub())))
    }

    /// The point at which the last writes and the reads since are done: what a writer waits for.
    fn uses(&self, py: Python<'_>) -> Result<Option<PyFence>> {
        let root = self.root()?;
        root.awake();
        let fence = detached(py, || root.buffer.uses());
        Ok(fence.map(|fence| PyFence::new(fence, root.buffer.hub())))
    }

    /// Waits until all work on the buffer is done. `Timeout` if that takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> Result<()> {
        let root = self.root()?;
        let timeout = timeout.map_or(Ok(root.buffer.hub().timeout()), wait::seconds)?;
        root.awake();
        wait::for_work(py, root.buffer.uses(), timeout)
    }

    /// The same elements in another shape, without a copy. One size may be -1.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> Result<Self> {
        let shape = match shape.len() {
            1 => shape.get_item(0)?,
            _ => shape.as_any().clone(),
        };
        self.part(self.layout.reshape(layout::open_shape(&shape, self.layout.len())?)?, self.dtype)
    }

    /// The same elements with the dimensions in reverse order, without a copy. Kernels take contiguous buffers alone.
    #[getter(T)]
    fn transposed(&self) -> Result<Self> {
        self.part(self.layout.transposed(), self.dtype)
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

    /// NumPy's array of the memory in place. NumPy asks for it where the buffer protocol was refused, and would take the buffer for a
    /// sequence otherwise.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.call_method1("in_place", (slf, dtype, copy))
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
        let buffer = slf.get();
        let made = dlpack::Target::default_of(buffer)
            .and_then(|target| dlpack::export(buffer, py, target, true, asked));
        made.map_err(|fault| export_error(py, fault))
    }

    fn __dlpack_device__(&self) -> Result<(i32, i32)> {
        Ok(dlpack::Target::default_of(self)?.dlpack())
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

impl PyBuffer {
    /// The buffer, if this is all of it.
    fn whole(&self, what: &str) -> Result<Arc<Root>> {
        let root = self.root()?;
        match self.layout.bytes() == root.buffer.len() {
            true => Ok(root),
            false => Err(Fault::invalid(format!("a part cannot be {what}: the buffer can"))),
        }
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
