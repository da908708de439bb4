//! The types of elements, as NumPy, DLPack, the buffer protocol and kernels name them.

use crate::error::{Fault, Result};
use onebuf::reflect::NumberType;
use pyo3::{prelude::*, sync::PyOnceLock};

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dtype(&'static Facts);

#[derive(Debug, PartialEq, Eq)]
struct Facts {
    name: &'static str,
    /// NumPy's type string.
    descr: &'static str,
    /// The buffer protocol's, NUL-terminated.
    format: &'static std::ffi::CStr,
    code: u8,
    bytes: u8,
}

/// DLPack's codes.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

macro_rules! facts {
    ($($name:literal $descr:literal $format:literal $code:ident $bytes:literal;)*) => {
        &[$(Facts { name: $name, descr: $descr, format: $format, code: $code, bytes: $bytes }),*]
    };
}

static ALL: &[Facts] = facts! {
    "bool" "|b1" c"?" BOOL 1;
    "int8" "|i1" c"b" INT 1;
    "uint8" "|u1" c"B" UINT 1;
    "int16" "<i2" c"h" INT 2;
    "uint16" "<u2" c"H" UINT 2;
    "int32" "<i4" c"i" INT 4;
    "uint32" "<u4" c"I" UINT 4;
    "int64" "<i8" c"q" INT 8;
    "uint64" "<u8" c"Q" UINT 8;
    "float16" "<f2" c"e" FLOAT 2;
    "float32" "<f4" c"f" FLOAT 4;
    "float64" "<f8" c"d" FLOAT 8;
    "complex64" "<c8" c"Zf" COMPLEX 8;
    "complex128" "<c16" c"Zd" COMPLEX 16;
};

/// NumPy's `dtype`, which converts everything that names a type.
fn numpy_dtype(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DTYPE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = DTYPE
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("numpy")?.getattr("dtype")?.unbind()))?;
    Ok(made.bind(py))
}

impl Dtype {
    /// The type that a Python object names: a NumPy type, a string, `float`.
    pub fn parse(given: &Bound<'_, PyAny>) -> Result<Self> {
        let descr: String = if let Ok(text) = given.extract::<String>()
            && let Some(known) = Self::find(|facts| facts.name == text || facts.descr == text)
        {
            return Ok(known);
        } else {
            numpy_dtype(given.py())?.call1((given,))?.getattr("str")?.extract()?
        };
        Self::find(|facts| facts.descr == descr).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|facts| facts.name).collect();
            Fault::invalid(format!("elements of type `{descr}`: use one of {}", names.join(", ")))
        })
    }

    fn find(is_it: impl Fn(&Facts) -> bool) -> Option<Self> {
        ALL.iter().find(|facts| is_it(facts)).map(Self)
    }

    /// The type with DLPack's code, bits and lanes.
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Result<Self> {
        let found =
            Self::find(|facts| facts.code == code && facts.bytes.checked_mul(8) == Some(bits));
        found.filter(|_| lanes == 1).ok_or_else(|| {
            let name = if code == BFLOAT { "bfloat16: " } else { "" };
            Fault::invalid(format!(
                "elements of a type that kernels have no name for ({name}DLPack type code {code}, {bits} bits, {lanes} lanes)"
            ))
        })
    }

    /// The type of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::find(|facts| facts.name == name)
    }

    pub fn is_complex(self) -> bool {
        self.0.code == COMPLEX
    }

    /// Bytes; for kernels that take anything.
    pub fn bytes_alone() -> Self {
        Self(&ALL[2])
    }

    pub fn name(self) -> &'static str {
        self.0.name
    }

    pub fn descr(self) -> &'static str {
        self.0.descr
    }

    pub fn format(self) -> &'static std::ffi::CStr {
        self.0.format
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        self.0.bytes.into()
    }

    /// DLPack's code and bits.
    pub fn dlpack(self) -> (u8, u8) {
        (self.0.code, self.0.bytes * 8)
    }

    /// NumPy's object for it.
    pub fn numpy(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        numpy_dtype(py)?.call1((self.0.name,))
    }

    /// Whether a kernel's pointer to such numbers may point at these elements. Signs are not compared; a complex number is two
    /// floating-point numbers, and a truth value is a byte.
    pub fn fits(self, number: &NumberType) -> bool {
        let (is_float, bytes) = match self.0.code {
            COMPLEX => (true, self.size() / 2),
            FLOAT => (true, self.size()),
            _ => (false, self.size()),
        };
        (is_float, bytes) == (number.is_float, number.bytes)
    }
}
