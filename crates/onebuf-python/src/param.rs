//! A kernel's parameters as its compiler reports them, and Python's values for them.

use crate::{
    array::{Piece, PyBuffer},
    error::{Fault, Result},
};
use onebuf::{
    Access, Signature,
    half::f16,
    reflect::{NumberType, ParameterKind, ReflectedParameter},
};
use pyo3::{buffer::PyUntypedBuffer, prelude::*};

/// Group-local memory as an argument: its size in bytes.
#[pyclass(frozen, module = "onebuf", name = "Local")]
pub(crate) struct PyLocal(pub usize);

#[pymethods]
impl PyLocal {
    #[new]
    fn new(nbytes: usize) -> Self {
        Self(nbytes)
    }

    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0
    }

    fn __repr__(&self) -> String {
        format!("onebuf.Local({})", self.0)
    }
}

/// A parameter.
pub(crate) struct Param {
    /// The declaration in the program's language.
    pub written: String,
    pub takes: Takes,
}

/// What a parameter takes.
pub(crate) enum Takes {
    Buffer {
        number: Option<NumberType>,
        access: Access,
    },
    Number(NumberType),
    /// A structure.
    Bytes(usize),
    Local,
}

/// An argument that was compared with its parameter.
pub(crate) enum Given {
    Buffer(Piece, Access),
    Value([u8; 128], usize),
    Long(Vec<u8>),
    Local(usize),
}

impl Param {
    pub fn new(index: usize, kernel: &str, reported: Option<ReflectedParameter>) -> Result<Self> {
        let unknown =
            |what: &str| Fault::invalid(format!("parameter {index} of kernel `{kernel}`: {what}"));
        let found = reported.ok_or_else(|| unknown("the driver does not report it"))?;
        let takes = match (found.kind, found.number, found.bytes) {
            (ParameterKind::Buffer, number, _) => {
                let access = if found.reads_only { Access::Read } else { Access::ReadWrite };
                Takes::Buffer { number, access }
            }
            (ParameterKind::Local, ..) => Takes::Local,
            (ParameterKind::Value, Some(number), _) => Takes::Number(number),
            (ParameterKind::Value, None, Some(bytes)) => Takes::Bytes(bytes),
            _ => {
                let what = format!("`{}` is no buffer, number or local memory", found.written);
                return Err(unknown(&what));
            }
        };
        Ok(Self { written: found.written, takes })
    }

    /// Adds the parameter to a signature. Buffers are bytes there, which fit every pointer.
    pub fn declare(&self, signature: Signature) -> Signature {
        match &self.takes {
            Takes::Buffer { access, .. } => signature.buffer::<u8>(*access),
            Takes::Number(number) => signature.bytes(number.size()),
            Takes::Bytes(bytes) => signature.bytes(*bytes),
            Takes::Local => signature.local::<u8>(),
        }
    }

    /// How many elements of the kernel's type a buffer has.
    pub fn elements(&self, buffer: &PyBuffer) -> usize {
        self.elements_of(buffer.layout.bytes(), buffer.layout.len())
    }

    /// How many elements of the kernel's type so many bytes are, which are that many elements of the array's type.
    pub fn elements_of(&self, bytes: usize, elements: usize) -> usize {
        match &self.takes {
            Takes::Buffer { number: Some(number), .. } => bytes / number.size(),
            _ => elements,
        }
    }

    /// The bytes that each work-item has of a buffer, if there is an element for each.
    pub fn each_bytes(&self) -> Option<usize> {
        match &self.takes {
            Takes::Buffer { number, .. } => Some(number.map_or(1, |number| number.size())),
            _ => None,
        }
    }

    /// Converts an argument, or says why it does not fit.
    pub fn take(&self, given: &Bound<'_, PyAny>) -> Result<Given, String> {
        match &self.takes {
            Takes::Buffer { number, access } => buffer(given, number.as_ref(), *access),
            Takes::Number(number) => value(given, number),
            Takes::Bytes(bytes) => raw_bytes(given, *bytes),
            Takes::Local => match given.cast::<PyLocal>() {
                Ok(local) => Ok(Given::Local(local.get().0)),
                Err(_) => Err("local memory is passed as `onebuf.Local(nbytes)`".into()),
            },
        }
    }
}

/// Why something was refused.
pub(crate) fn text(fault: Fault) -> String {
    match fault {
        Fault::Library(onebuf::Error::InvalidArgument(why)) => why,
        Fault::Library(error) => error.to_string(),
        Fault::Python(error) => error.to_string(),
    }
}

fn buffer(
    given: &Bound<'_, PyAny>,
    number: Option<&NumberType>,
    access: Access,
) -> Result<Given, String> {
    let Ok(given) = given.cast::<PyBuffer>() else {
        let name = given.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        return Err(format!("a {name} where a `onebuf.Buffer` is needed"));
    };
    let given = given.get();
    if number.is_some_and(|number| !given.dtype.fits(number)) {
        return Err(format!("the buffer has {} elements", given.dtype.name()));
    }
    given.piece().map(|piece| Given::Buffer(piece, access)).map_err(text)
}

/// A number, or a sequence of as many as the vector has.
fn value(given: &Bound<'_, PyAny>, number: &NumberType) -> Result<Given, String> {
    let mut bytes = [0; 128];
    if number.size() > bytes.len() {
        return Err(format!("a value of {} bytes", number.size()));
    }
    if number.lanes == 1 {
        one(given, number, &mut bytes)?;
        return Ok(Given::Value(bytes, number.size()));
    }
    let lanes: Vec<Bound<'_, PyAny>> =
        if number.lanes == 2 && number.is_float && given.is_instance_of::<pyo3::types::PyComplex>()
        {
            [given.getattr("real"), given.getattr("imag")].into_iter().flatten().collect()
        } else {
            let all = given.try_iter().and_then(Iterator::collect::<PyResult<Vec<_>>>);
            all.map_err(|_| format!("a sequence of {} numbers is needed", number.lanes))?
        };
    if lanes.len() != number.lanes {
        return Err(format!("{} numbers where {} are needed", lanes.len(), number.lanes));
    }
    for (lane, to) in lanes.iter().zip(bytes.chunks_exact_mut(number.bytes)) {
        one(lane, number, to)?;
    }
    Ok(Given::Value(bytes, number.size()))
}

/// Writes one number. Integers must be in the range of the signed or the unsigned type of their size.
fn one(given: &Bound<'_, PyAny>, number: &NumberType, to: &mut [u8]) -> Result<(), String> {
    if number.is_float {
        let real: f64 = given.extract().map_err(|_| "a number is needed".to_owned())?;
        match number.bytes {
            2 => to[..2].copy_from_slice(&f16::from_f64(real).to_ne_bytes()),
            4 => to[..4].copy_from_slice(&(real as f32).to_ne_bytes()),
            8 => to[..8].copy_from_slice(&real.to_ne_bytes()),
            other => return Err(format!("floating-point numbers of {other} bytes")),
        }
        return Ok(());
    }
    if given.is_instance_of::<pyo3::types::PyFloat>() {
        return Err("an integer is needed: convert the floating-point number".into());
    }
    let whole: i128 = given.extract().map_err(|_| "an integer is needed".to_owned())?;
    let bits = number.bytes as u32 * 8;
    if bits > 64 || whole < -(1i128 << (bits - 1)) || whole >= 1i128 << bits {
        return Err(format!("{whole} does not fit {bits} bits"));
    }
    to[..number.bytes].copy_from_slice(&whole.to_le_bytes()[..number.bytes]);
    Ok(())
}

/// A structure, as an object with the buffer protocol: `bytes`, a NumPy scalar.
fn raw_bytes(given: &Bound<'_, PyAny>, bytes: usize) -> Result<Given, String> {
    let needs = || format!("{bytes} bytes are needed: `bytes`, or a NumPy scalar of that size");
    let view = PyUntypedBuffer::get(given).map_err(|_| needs())?;
    if view.len_bytes() != bytes || !view.is_c_contiguous() {
        return Err(needs());
    }
    let mut copied = vec![0u8; bytes];
    // SAFETY: the view has that many bytes, which are contiguous, while it lives; the vector is new.
    unsafe { view.buf_ptr().cast::<u8>().copy_to_nonoverlapping(copied.as_mut_ptr(), bytes) };
    Ok(Given::Long(copied))
}
