//! Kernels on arrays of other libraries: compiled once for each device, launched in the stream that the array's library uses now.
//!
//! # Safety
//! Arrays are used in the order of that stream, as the library's own kernels use them, and the library keeps their memory until the stream has
//! done what was enqueued. The kernel is trusted: see `kernel`.

use crate::{
    array::PyBuffer,
    compile::{Code, Compiled, Source},
    ending::detached,
    error::{Fault, Result},
    kernel::{Named, PyKernel, Sizes},
    param::{Given, Param, Takes},
    stream::{self, has_streams},
    tensor::{self, Kind, Place},
    types::{PyDevice, PyFence, PyHub},
};
use onebuf::{Device, Hub, Queue, reflect::NativeArgument};
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyTuple},
};
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel that is compiled once for each device that its arguments are on: see `onebuf.kernel`.
#[pyclass(frozen, module = "onebuf", name = "TensorKernel")]
pub(crate) struct PyTensorKernel {
    text: String,
    name: Option<String>,
    options: String,
    each: bool,
    /// For buffers, and for arrays of the host.
    built: Mutex<Vec<(Device, Py<PyKernel>)>>,
    /// For arrays on devices.
    placed: Mutex<Vec<Arc<Placed>>>,
}

/// A kernel with its number of work-items: `k[n]`.
#[pyclass(frozen, module = "onebuf", name = "TensorLaunch")]
pub(crate) struct PyTensorLaunch {
    kernel: Py<PyTensorKernel>,
    grid: Sizes,
}

/// The kernel for arrays of one device, and the streams that it was launched in.
struct Placed {
    place: Place,
    kernel: Arc<Compiled>,
    streams: Mutex<Vec<Stream>>,
}

struct Stream {
    handle: usize,
    queue: Queue,
    /// What keeps the stream.
    _keeps: Option<Py<PyAny>>,
}

/// Streams that are remembered for a kernel. A program that makes a stream for each launch does not keep all of them.
const STREAMS: usize = 32;
/// Kernels with more parameters allocate.
const FEW: usize = 16;
/// CUDA's number of the default stream of each thread, which is another stream on each.
const PER_THREAD: usize = 2;

/// The first array among the arguments.
struct First<'a, 'py> {
    array: &'a Bound<'py, PyAny>,
    kind: Kind,
    place: Place,
}

impl PyTensorKernel {
    fn source(&self) -> Source<'_> {
        let Self { text, name, options, each, .. } = self;
        Source {
            code: Code::Text(text),
            language: Some("opencl_c"),
            name: name.as_deref(),
            options,
            each: *each,
            parameters: None,
        }
    }

    fn launch<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        grid: Option<Sizes>,
    ) -> Result<Option<PyFence>> {
        let (py, this) = (slf.py(), slf.get());
        let mut asked = None;
        let mut named = match named.filter(|named| !named.is_empty()) {
            None => Named::default(),
            Some(named) => {
                let named = named.copy()?;
                let name = intern!(py, "stream");
                asked = named.get_item(name)?.filter(|stream| !stream.is_none());
                if named.contains(name)? {
                    named.del_item(name)?;
                }
                Named::read(Some(&named))?
            }
        };
        named.grid = grid.or(named.grid);
        let mut first = None;
        let mut buffer = None;
        for given in args.iter_borrowed() {
            let kind = tensor::kind(&given)?;
            if kind == Kind::Buffer {
                buffer.get_or_insert_with(|| given.to_owned());
            } else if first.is_none()
                && let Some(place) = tensor::place(&given, kind, || default_hub(py))?
            {
                first = Some((given.to_owned(), kind, place));
            }
        }
        match (first, buffer) {
            (Some(_), Some(_)) => Err(Fault::invalid(
                "arrays and buffers in one launch: wrap the arrays with `Hub.from_dlpack`",
            )),
            (Some((array, kind, place)), None) if place != Place::Host => {
                let first = First { array: &array, kind, place };
                this.launch_on_arrays(&first, args, named, asked.as_ref()).map(|()| None)
            }
            (first, buffer) => {
                if asked.is_some() {
                    return Err(Fault::invalid(
                        "`stream` is for arrays on CUDA and HIP devices: use `queue`",
                    ));
                }
                match first {
                    Some(_) => this.launch_on_host(slf, args, named).map(|()| None),
                    None => this.launch_on_buffers(args, named, buffer.as_ref()),
                }
            }
        }
    }

    fn launch_on_buffers(
        &self,
        args: &Bound<'_, PyTuple>,
        named: Named,
        buffer: Option<&Bound<'_, PyAny>>,
    ) -> Result<Option<PyFence>> {
        let py = args.py();
        let device = match (&named.queue, buffer) {
            (Some(queue), _) => queue.device(),
            (None, Some(buffer)) => {
                device_of(buffer.cast::<PyBuffer>().map_err(PyErr::from)?.get())?
            }
            (None, None) => {
                return Err(Fault::invalid(
                    "none of the arguments is a buffer or an array: pass one, or choose a device by `Device.kernel`",
                ));
            }
        };
        let kernel = self.on_device(py, &device)?;
        kernel.bind(py).get().shared.launch(args, named)
    }

    /// Arrays of the host are wrapped by Python code.
    fn launch_on_host(
        &self,
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyTuple>,
        named: Named,
    ) -> Result<()> {
        let py = args.py();
        if named.queue.is_some() || named.fence {
            return Err(Fault::invalid(
                "`queue` and `fence` are for buffers: arrays of the host are complete when the launch returns",
            ));
        }
        let sizes =
            |sizes: Option<Sizes>| sizes.map(|sizes| PyTuple::new(py, sizes.used())).transpose();
        let (grid, local, offset) = (sizes(named.grid)?, sizes(named.local)?, sizes(named.offset)?);
        python(py)?.call_method1("_on_host", (slf, args, grid, local, offset))?;
        Ok(())
    }

    fn launch_on_arrays(
        &self,
        first: &First<'_, '_>,
        args: &Bound<'_, PyTuple>,
        named: Named,
        asked: Option<&Bound<'_, PyAny>>,
    ) -> Result<()> {
        let py = args.py();
        if named.queue.is_some() || named.fence {
            return Err(Fault::invalid(
                "`queue` and `fence` are for buffers: arrays on a device are used in `stream`, or in their library's current one",
            ));
        }
        let placed = self.placed(py, first.place)?;
        let (params, kernel) = (&placed.kernel.params, &placed.kernel);
        if args.len() != params.len() {
            let (name, takes, given) = (kernel.kernel.name(), params.len(), args.len());
            return Err(Fault::invalid(format!(
                "kernel `{name}` takes {takes} arguments, {given} were given"
            )));
        }
        let mut few = [const { Native::None }; FEW];
        let mut many = Vec::new();
        let natives = match few.get_mut(..params.len()) {
            Some(natives) => natives,
            None => {
                many.resize_with(params.len(), || Native::None);
                &mut many[..]
            }
        };
        let (mut elements, mut fewest) = (None, usize::MAX);
        for (index, (given, param)) in args.iter_borrowed().zip(params).enumerate() {
            natives[index] = match &param.takes {
                Takes::Buffer { .. } => {
                    let array = self
                        .array(&given, param, first)
                        .map_err(|why| kernel.misfit(index, &why))?;
                    elements.get_or_insert(array.elements);
                    fewest = fewest.min(array.elements);
                    Native::Address(array.address.to_ne_bytes())
                }
                _ => Native::Given(param.take(&given).map_err(|why| kernel.misfit(index, &why))?),
            };
        }
        let grid = named.grid.or(elements.map(Sizes::of)).ok_or_else(|| {
            Fault::invalid("a kernel without arrays needs its number of work-items: `k[n](…)`")
        })?;
        let items = grid.end(named.offset);
        if self.each && fewest < items {
            let name = kernel.kernel.name();
            return Err(Fault::invalid(format!(
                "kernel `{name}` refuses this launch: an array has {fewest} elements for {items} work-items"
            )));
        }
        let queue = placed.queue(py, first, asked)?;
        let grid = grid.grid(named.local, named.offset)?;
        let natives = &natives[..];
        detached(py, || {
            let mut few = [const { NativeArgument::Local(0) }; FEW];
            let many: Vec<NativeArgument<'_>>;
            let args = match few.get_mut(..natives.len()) {
                Some(args) => {
                    args.iter_mut().zip(natives).for_each(|(to, native)| *to = native.argument());
                    &*args
                }
                None => {
                    many = natives.iter().map(Native::argument).collect();
                    &many
                }
            };
            // SAFETY: the arguments were compared with the kernel's parameters, and the arrays are on its device; see the head of this file.
            unsafe { kernel.kernel.launch_native(&queue, grid, args) }
        })?;
        Ok(())
    }

    /// An array that fits a parameter.
    fn array(
        &self,
        given: &Bound<'_, PyAny>,
        param: &Param,
        first: &First<'_, '_>,
    ) -> Result<Fit, String> {
        let kind = tensor::kind(given).map_err(crate::param::text)?;
        if !given.is(first.array) {
            let place = tensor::place(given, kind, || default_hub(given.py()))
                .map_err(crate::param::text)?;
            match place {
                Some(place) if place == first.place => {}
                Some(place) => {
                    return Err(format!(
                        "the array is on {}, another is on {}",
                        place.id(),
                        first.place.id()
                    ));
                }
                None => return Err("an array is needed".to_owned()),
            }
        }
        let array = tensor::describe(given, kind)?;
        let Takes::Buffer { number, access } = &param.takes else {
            return Err("no array is needed".to_owned());
        };
        if number.as_ref().is_some_and(|number| !array.dtype.fits(number)) {
            return Err(format!("the array has {} elements", array.dtype.name()));
        }
        if array.read_only && access.writes() {
            return Err("the array is read-only, and the kernel may write it".to_owned());
        }
        if array.elements == 0 {
            return Err("the array has no element".to_owned());
        }
        let elements = param.elements_of(array.elements * array.dtype.size(), array.elements);
        Ok(Fit { address: array.address, elements })
    }

    /// The kernel for arrays of a device, which is compiled now if it was not.
    fn placed(&self, py: Python<'_>, place: Place) -> Result<Arc<Placed>> {
        let find = || {
            let placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
            placed.iter().find(|placed| placed.place == place).cloned()
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        let hub = default_hub(py)?;
        let id = place.id();
        let device = hub.device(&id).map_err(|why| {
            onebuf::Error::unsupported(format!("a kernel on an array of {id}"), why.to_string())
        })?;
        let kernel = self.on_device(py, &device)?.bind(py).get().shared.clone();
        // Its module stays loaded: it was used in streams of others, which may be gone when a hub ends.
        std::mem::forget(kernel.kernel.clone());
        let made = Arc::new(Placed { place, kernel, streams: Mutex::default() });
        if let Some(found) = find() {
            return Ok(found);
        }
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).push(made.clone());
        Ok(made)
    }

    fn on_device(&self, py: Python<'_>, device: &Device) -> Result<Py<PyKernel>> {
        let same = |known: &Device| known.hub().is(device.hub()) && known.index() == device.index();
        let find = || {
            let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
            built.iter().find(|(known, _)| same(known)).map(|(_, kernel)| kernel.clone_ref(py))
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        let compiled = match has_streams(device) {
            true => Compiled::grafted(py, device, &self.source())?,
            false => Compiled::native(py, device, &self.source())?,
        };
        let made = Py::new(py, PyKernel::new(compiled))?;
        // Another thread may have been faster.
        if let Some(found) = find() {
            return Ok(found);
        }
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.push((device.clone(), made.clone_ref(py)));
        Ok(made)
    }
}

struct Fit {
    address: usize,
    elements: usize,
}

/// An argument for the driver.
enum Native {
    None,
    Address([u8; size_of::<usize>()]),
    Given(Given),
}

impl Native {
    fn argument(&self) -> NativeArgument<'_> {
        match self {
            Native::Address(bytes) => NativeArgument::Bytes(bytes),
            Native::Given(Given::Value(bytes, count)) => NativeArgument::Bytes(&bytes[..*count]),
            Native::Given(Given::Long(bytes)) => NativeArgument::Bytes(bytes),
            Native::Given(Given::Local(bytes)) => NativeArgument::Local(*bytes),
            Native::Given(Given::Buffer(..)) | Native::None => NativeArgument::Bytes(&[]),
        }
    }
}

impl Placed {
    /// The queue over the stream that the caller names, or that the first array's library uses now.
    fn queue(
        &self,
        py: Python<'_>,
        first: &First<'_, '_>,
        asked: Option<&Bound<'_, PyAny>>,
    ) -> Result<Queue> {
        let (handle, keeps) = match asked {
            None => tensor::stream(first.array, first.kind, first.place)?,
            Some(asked) => match stream::NamedStream::of_caller(asked)? {
                stream::NamedStream::Handle(handle) => (handle, Some(asked.clone().unbind())),
                stream::NamedStream::Unordered => {
                    return Err(Fault::invalid("a launch needs a stream"));
                }
            },
        };
        let is_of_thread = handle == PER_THREAD && matches!(self.place, Place::Cuda(_));
        let find = || {
            let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.iter().find(|known| known.handle == handle).map(|known| known.queue.clone())
        };
        if let Some(found) = find().filter(|_| !is_of_thread) {
            return Ok(found);
        }
        let queue = stream::wrap(py, &self.kernel.device, handle)?;
        if !is_of_thread {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            let oldest = (streams.len() >= STREAMS).then(|| streams.remove(0));
            streams.push(Stream { handle, queue: queue.clone(), _keeps: keeps });
            drop(streams);
            // It may drop an object of Python's, which may call this again.
            drop(oldest);
        }
        Ok(queue)
    }
}

/// Python's part of this.
fn python(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static PYTHON: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let found = PYTHON
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("onebuf._kernel")?.into_any().unbind()))?;
    Ok(found.bind(py))
}

/// The hub that arrays of other libraries are used with.
fn default_hub(py: Python<'_>) -> Result<Hub> {
    let hub = python(py)?.call_method0("_default_hub")?;
    Ok(hub.cast::<PyHub>().map_err(PyErr::from)?.get().0.clone())
}

/// The device that kernels on a buffer run on: the one that it is lent to, an OpenCL device, or else one that OpenCL's kernels are grafted
/// onto.
fn device_of(buffer: &PyBuffer) -> Result<Device> {
    let root = buffer.root()?;
    if let Some(device) = root.lent_to() {
        return Ok(device);
    }
    let devices = root.devices();
    let api = |wanted: fn(&str) -> bool| devices.iter().find(|device| wanted(device.info().api.0));
    let found = api(|api| api == "opencl").or_else(|| api(|api| api == "cuda" || api == "hip"));
    found.cloned().ok_or_else(|| {
        Fault::invalid("the buffer is not shared with an OpenCL, CUDA or HIP device")
    })
}

#[pymethods]
impl PyTensorKernel {
    #[new]
    #[pyo3(signature = (source, name=None, *, options="", each=false))]
    fn new(source: String, name: Option<String>, options: &str, each: bool) -> Self {
        let (built, placed) = (Mutex::default(), Mutex::default());
        Self { text: source, name, options: options.to_owned(), each, built, placed }
    }

    /// The kernel for one device; grafted if it is a CUDA or HIP device.
    fn on(&self, py: Python<'_>, device: &Bound<'_, PyDevice>) -> Result<Py<PyKernel>> {
        self.on_device(py, &device.get().0)
    }

    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> Result<Option<PyFence>> {
        Self::launch(slf, args, named, None)
    }

    fn __getitem__(slf: &Bound<'_, Self>, grid: &Bound<'_, PyAny>) -> Result<PyTensorLaunch> {
        let grid = Sizes::parse(grid, "a grid")?;
        Ok(PyTensorLaunch { kernel: slf.clone().unbind(), grid })
    }

    fn __repr__(&self) -> String {
        let built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let on: Vec<_> = built.iter().map(|(device, _)| device.id()).collect();
        let name = self.name.as_deref().unwrap_or("a kernel");
        format!("<onebuf.TensorKernel of {name}, compiled for [{}]>", on.join(", "))
    }
}

#[pymethods]
impl PyTensorLaunch {
    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> Result<Option<PyFence>> {
        let this = slf.get();
        PyTensorKernel::launch(this.kernel.bind(slf.py()), args, named, Some(this.grid))
    }

    fn __repr__(&self) -> String {
        format!("<onebuf.TensorLaunch with {:?} work-items>", self.grid.used())
    }
}
