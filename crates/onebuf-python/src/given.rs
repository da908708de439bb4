//! What Python passes for devices, words and sizes.

use crate::{
    error::{Fault, Result},
    types::PyDevice,
};
use onebuf::{Device, Hub};
use pyo3::{prelude::*, types::PyString};
use serde::de::DeserializeOwned;

/// The value that a word names: `copies="forbid"`, `route="staged"`.
pub(crate) fn word<T: DeserializeOwned>(what: &str, word: &str) -> Result<T> {
    serde_json::from_value(word.into())
        .map_err(|why| Fault::invalid(format!("{what}={word:?}: {why}")))
}

/// A device that Python names by itself or by a string.
pub(crate) fn device(hub: &Hub, given: &Bound<'_, PyAny>) -> Result<Device> {
    if let Ok(device) = given.cast::<PyDevice>() {
        return Ok(device.get().0.clone());
    }
    match given.cast::<PyString>() {
        Ok(name) => Ok(hub.device(name.to_cow()?.as_ref())?),
        Err(_) => Err(Fault::invalid("a device is a `Device`, or a string such as \"opencl:0\"")),
    }
}

/// Devices that Python names: a list, or one.
pub(crate) fn devices(hub: &Hub, given: &Bound<'_, PyAny>) -> Result<Vec<Device>> {
    if given.is_instance_of::<PyDevice>() || given.is_instance_of::<PyString>() {
        return Ok(vec![device(hub, given)?]);
    }
    given.try_iter()?.map(|one| device(hub, &one?)).collect()
}
