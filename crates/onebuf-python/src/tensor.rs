//! Arrays of other libraries as kernels need them: address, type, size and device, read without an allocation. DLPack's exchange API or the
//! libraries' own attributes are asked, because `__dlpack__` would make an object for each launch.

use crate::{
    array::PyBuffer,
    cuda_array::CudaArray,
    described::{Described, STRIDED},
    dtype::Dtype,
    error::Result,
    exchange::Exchange,
    param::PyLocal,
};
use onebuf::Hub;
use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBool, PyComplex, PyFloat, PyInt, PyTuple, PyType},
};
use std::sync::{Mutex, PoisonError};

/// What a class of arguments is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Value,
    Buffer,
    Torch(Option<Exchange>),
    Cupy,
    /// A library with DLPack's exchange API.
    Exchanged(Exchange),
    /// Its attributes tell, each time.
    Other,
}

/// Where an array's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Cuda(i32),
    Hip(i32),
}

impl Place {
    /// The place of DLPack's device type and number.
    fn of_dlpack((kind, number): (i32, i32)) -> Self {
        match kind {
            2 | 13 => Place::Cuda(number),
            10 => Place::Hip(number),
            _ => Place::Host,
        }
    }

    /// DLPack's device type and number.
    fn dlpack(self) -> (i32, i32) {
        match self {
            Place::Host => (1, 0),
            Place::Cuda(number) => (2, number),
            Place::Hip(number) => (10, number),
        }
    }

    /// The id of the device in a hub.
    pub fn id(self) -> String {
        match self {
            Place::Host => "host".to_owned(),
            Place::Cuda(number) => format!("cuda:{number}"),
            Place::Hip(number) => format!("hip:{number}"),
        }
    }
}

/// The kinds of the classes seen so far. The classes are kept, so that their addresses are not used again.
static KINDS: Mutex<Vec<(usize, Kind, Py<PyType>)>> = Mutex::new(Vec::new());

pub(crate) fn kind(given: &Bound<'_, PyAny>) -> Result<Kind> {
    let class = given.get_type();
    let key = class.as_ptr().addr();
    {
        let kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kind, _)) = kinds.iter().find(|(known, ..)| *known == key) {
            return Ok(*kind);
        }
    }
    let kind = classify(given)?;
    if kind != Kind::Other {
        let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.push((key, kind, class.unbind()));
    }
    Ok(kind)
}

fn classify(given: &Bound<'_, PyAny>) -> Result<Kind> {
    let py = given.py();
    if given.is_instance_of::<PyBuffer>() {
        return Ok(Kind::Buffer);
    }
    if given.is_instance_of::<PyFloat>()
        || given.is_instance_of::<PyInt>()
        || given.is_instance_of::<PyBool>()
        || given.is_instance_of::<PyComplex>()
        || given.is_instance_of::<PyTuple>()
        || given.is_instance_of::<PyLocal>()
    {
        return Ok(Kind::Value);
    }
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    for (module, class, kind) in [
        ("torch", "Tensor", Kind::Torch(Exchange::of(&given.get_type()))),
        ("cupy", "ndarray", Kind::Cupy),
    ] {
        let module = modules.call_method1(intern!(py, "get"), (module,))?;
        if let Some(class) = module.getattr_opt(class)?
            && given.is_instance(&class)?
        {
            return Ok(kind);
        }
    }
    Ok(Exchange::of(&given.get_type()).map_or(Kind::Other, Kind::Exchanged))
}

/// Where the array is; `None` if the argument is no array. Arrays without dimensions are values.
pub(crate) fn place(
    given: &Bound<'_, PyAny>,
    kind: Kind,
    hub: impl FnOnce() -> Result<Hub>,
) -> Result<Option<Place>> {
    let py = given.py();
    match kind {
        Kind::Value | Kind::Buffer => Ok(None),
        Kind::Torch(Some(exchange)) | Kind::Exchanged(exchange) => {
            Ok(Some(Place::of_dlpack(exchange.device(given)?)))
        }
        Kind::Torch(None) => {
            let index: i32 = given.call_method0(intern!(py, "get_device"))?.extract()?;
            Ok(Some(match (index, is_rocm(py)?) {
                (..0, _) => Place::Host,
                (_, false) => Place::Cuda(index),
                (_, true) => Place::Hip(index),
            }))
        }
        Kind::Cupy => {
            let data = given.getattr(intern!(py, "data"))?;
            let index = data.getattr(intern!(py, "device_id"))?.extract()?;
            Ok(Some(if cupy_is_hip(py)? { Place::Hip(index) } else { Place::Cuda(index) }))
        }
        Kind::Other => {
            if let Some(array) = CudaArray::of(given)? {
                return Ok(Some(Place::Cuda(array.device(&hub()?)?)));
            }
            let is_array = given.hasattr(intern!(py, "__dlpack__"))?;
            let dims = given.getattr_opt(intern!(py, "ndim"))?.map(|dims| dims.extract::<usize>());
            let has_dims = !dims.is_some_and(|dims| dims.is_ok_and(|dims| dims == 0));
            if !(is_array && has_dims) {
                return Ok(None);
            }
            let told = given.call_method0(intern!(py, "__dlpack_device__"))?;
            Ok(Some(Place::of_dlpack(told.extract()?)))
        }
    }
}

/// The array's memory, or why a kernel cannot use it.
pub(crate) fn describe(given: &Bound<'_, PyAny>, kind: Kind) -> Result<Described, String> {
    match kind {
        Kind::Torch(exchange) => torch(given, exchange).map_err(|error| error.to_string())?,
        Kind::Exchanged(exchange) => exchange.describe(given).map_err(|error| error.to_string())?,
        Kind::Cupy => cupy(given).map_err(|error| error.to_string())?,
        _ => match CudaArray::of(given) {
            Ok(Some(array)) => array.described(),
            Ok(None) => Err(no_array(given)),
            Err(fault) => Err(crate::param::text(fault)),
        },
    }
}

fn no_array(given: &Bound<'_, PyAny>) -> String {
    let name = given.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    match given.hasattr("__dlpack__") {
        Ok(true) => format!(
            "a {name}, which has no `__cuda_array_interface__`: wrap it by `Hub.from_dlpack`"
        ),
        _ => format!("a {name} where an array on the device is needed"),
    }
}

/// A tensor of PyTorch on a device.
fn torch(
    given: &Bound<'_, PyAny>,
    exchange: Option<Exchange>,
) -> PyResult<Result<Described, String>> {
    let py = given.py();
    let is = |name: &Bound<'_, pyo3::types::PyString>| given.call_method0(name)?.is_truthy();
    if given.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        return Ok(Err("the tensor requires a gradient, which PyTorch cannot compute through this kernel: `detach()` it, or use an \
                       `autograd.Function`"
            .to_owned()));
    }
    let found = match exchange {
        Some(exchange) => exchange.describe(given)?,
        None => torch_by_attributes(given)?,
    };
    let Ok(array) = found else { return Ok(found) };
    if is(intern!(py, "is_neg"))? || (array.dtype.is_complex() && is(intern!(py, "is_conj"))?) {
        return Ok(Err(
            "the tensor is conjugated or negated lazily: `resolve_conj()` or `resolve_neg()` first"
                .to_owned(),
        ));
    }
    Ok(Ok(array))
}

/// A tensor of a PyTorch without the exchange API.
fn torch_by_attributes(given: &Bound<'_, PyAny>) -> PyResult<Result<Described, String>> {
    let py = given.py();
    if !given.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
        return Ok(Err(STRIDED.to_owned()));
    }
    let dtype = match known_dtype(&given.getattr(intern!(py, "dtype"))?) {
        Ok(dtype) => dtype,
        Err(why) => return Ok(Err(why)),
    };
    let address = given.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let elements = given.call_method0(intern!(py, "numel"))?.extract()?;
    Ok(Ok(Described { address, elements, dtype, read_only: false }))
}

/// An array of CuPy.
fn cupy(given: &Bound<'_, PyAny>) -> PyResult<Result<Described, String>> {
    let py = given.py();
    let is_dense = match given.getattr_opt(intern!(py, "_c_contiguous"))? {
        Some(is_dense) => is_dense.is_truthy()?,
        None => given
            .getattr(intern!(py, "flags"))?
            .getattr(intern!(py, "c_contiguous"))?
            .is_truthy()?,
    };
    if !is_dense {
        return Ok(Err(STRIDED.to_owned()));
    }
    let dtype = match known_dtype(&given.getattr(intern!(py, "dtype"))?) {
        Ok(dtype) => dtype,
        Err(why) => return Ok(Err(why)),
    };
    let address = given.getattr(intern!(py, "data"))?.getattr(intern!(py, "ptr"))?.extract()?;
    let elements = given.getattr(intern!(py, "size"))?.extract()?;
    Ok(Ok(Described { address, elements, dtype, read_only: false }))
}

/// The types of the dtype objects seen so far. The objects are kept, so that their addresses are not used again.
static DTYPES: Mutex<Vec<(usize, Dtype, Py<PyAny>)>> = Mutex::new(Vec::new());

/// The type that a dtype object of PyTorch or NumPy names.
pub(crate) fn known_dtype(given: &Bound<'_, PyAny>) -> Result<Dtype, String> {
    let key = given.as_ptr().addr();
    {
        let known = DTYPES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, dtype, _)) = known.iter().find(|(at, ..)| *at == key) {
            return Ok(*dtype);
        }
    }
    let name = given.str().map(|name| name.to_string()).unwrap_or_default();
    let found = match name.strip_prefix("torch.") {
        Some(name) => Dtype::named(name)
            .ok_or_else(|| format!("elements of type {name}, which kernels have no name for")),
        None => Dtype::parse(given).map_err(crate::param::text),
    }?;
    let mut known = DTYPES.lock().unwrap_or_else(PoisonError::into_inner);
    // Types that are made for each array would fill the list.
    if known.len() < 64 {
        known.push((key, found, given.clone().unbind()));
    }
    Ok(found)
}

/// Whether PyTorch was built for ROCm, where it calls HIP's devices CUDA's.
fn is_rocm(py: Python<'_>) -> PyResult<bool> {
    static HIP: PyOnceLock<bool> = PyOnceLock::new();
    let ask = || {
        let version = py.import("torch")?.getattr("version")?;
        Ok::<_, PyErr>(version.getattr_opt("hip")?.is_some_and(|hip| !hip.is_none()))
    };
    HIP.get_or_try_init(py, ask).copied()
}

fn cupy_is_hip(py: Python<'_>) -> PyResult<bool> {
    static HIP: PyOnceLock<bool> = PyOnceLock::new();
    let ask = || {
        let runtime = py.import("cupy")?.getattr("cuda")?.getattr("runtime")?;
        runtime.getattr_opt("is_hip")?.map_or(Ok(false), |hip| hip.is_truthy())
    };
    HIP.get_or_try_init(py, ask).copied()
}

/// The stream that the array's library uses now, and an object to keep while it is used.
pub(crate) fn stream(
    given: &Bound<'_, PyAny>,
    kind: Kind,
    place: Place,
) -> Result<(usize, Option<Py<PyAny>>)> {
    let py = given.py();
    match kind {
        Kind::Torch(Some(exchange)) | Kind::Exchanged(exchange) => {
            Ok((exchange.stream(py, place.dlpack())?, None))
        }
        Kind::Torch(None) => {
            let (Place::Cuda(number) | Place::Hip(number)) = place else { return Ok((0, None)) };
            static ASK: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
            let find = || {
                let native = py.import("torch")?.getattr("_C")?;
                Ok::<_, PyErr>(native.getattr_opt("_cuda_getCurrentRawStream")?.map(Bound::unbind))
            };
            let at = match ASK.get_or_try_init(py, find)? {
                Some(ask) => ask.bind(py).call1((number,))?.extract()?,
                None => {
                    let stream = py
                        .import("torch")?
                        .getattr("cuda")?
                        .call_method1("current_stream", (number,))?;
                    stream.getattr("cuda_stream")?.extract()?
                }
            };
            Ok((at, None))
        }
        Kind::Cupy => {
            static ASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let find = || {
                Ok::<_, PyErr>(
                    py.import("cupy")?.getattr("cuda")?.getattr("get_current_stream")?.unbind(),
                )
            };
            let stream = ASK.get_or_try_init(py, find)?.bind(py).call0()?;
            let at = stream.getattr(intern!(py, "ptr"))?.extract()?;
            Ok((at, Some(stream.unbind())))
        }
        _ => Ok((CudaArray::of(given)?.and_then(|array| array.stream).unwrap_or(0), None)),
    }
}
