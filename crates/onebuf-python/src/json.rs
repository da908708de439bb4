//! Plain data of the library as objects of Python.

use crate::{
    ending::enter,
    error::{Fault, Result},
};
use pyo3::prelude::*;
use serde::Serialize;

/// Plain data as Python objects.
pub(crate) fn objects<'py>(py: Python<'py>, data: &impl Serialize) -> Result<Bound<'py, PyAny>> {
    let _inside = enter(py);
    let json = serde_json::to_string(data).map_err(|why| Fault::invalid(why.to_string()))?;
    Ok(py.import("json")?.call_method1("loads", (json,))?)
}

/// A dictionary, by the names of its values.
macro_rules! dict {
    ($py:expr; $($name:literal: $value:expr),* $(,)?) => {{
        let all = pyo3::types::PyDict::new($py);
        $(all.set_item($name, $value)?;)*
        all
    }};
}
/// A dictionary of fields.
macro_rules! fields {
    ($py:expr; $of:expr; $($field:ident),* $(,)?) => {{
        let (of, all) = (&$of, pyo3::types::PyDict::new($py));
        $(all.set_item(stringify!($field), &of.$field)?;)*
        all
    }};
}
pub(crate) use {dict, fields};
